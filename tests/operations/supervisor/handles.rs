//! Restarts of one child on request.
use std::future::pending;

use futures::FutureExt;
use steadfast::supervisor::{
    Child, ChildContext, Restart, RestartError, Strategy, Supervisor, SupervisorConfig, SupervisorEvent as Event,
};

use super::{Act, Log, acting, builder, obedient, steady, told};
use crate::world::{MS, S, World};

/// Runs the supervisor for a minute, beside a task that may restart its children.
fn beside<T>(world: &World, supervisor: &Supervisor, task: impl Future<Output = T>) -> T {
    let run = Box::pin(supervisor.run(world.clock.sleep(S(60))));
    let both = world.run(S(100), futures::future::join(run, Box::pin(task))).unwrap();
    assert!(both.0.unwrap().unstopped.is_empty());
    both.1
}

// Guarantee: supervisor 9.
#[test]
fn a_restart_on_request_stops_and_starts_one_child_and_uses_no_budget() {
    for strategy in [Strategy::OneForOne, Strategy::OneForAll, Strategy::RestForOne] {
        let (world, log) = (World::new(), Log::default());
        let (built, events) = told(builder(&world, SupervisorConfig::default().strategy(strategy).max_restarts(0)));
        let built = built.child(obedient("a", &log)).child(obedient("b", &log).waits_for_ready());
        let supervisor = built.child(obedient("c", &log)).build().unwrap();
        let handle = supervisor.handle("b").unwrap();
        beside(&world, &supervisor, async {
            world.clock.sleep(S(1)).await;
            log.take();
            for _ in 0..10 {
                handle.restart().await.unwrap();
                assert_eq!(log.take(), ["stop b", "start b"]);
            }
            assert_eq!(supervisor.state()[1].restarts, 0);
            assert_eq!(supervisor.state()[1].instance, 11);
        });
        let asked = Event::RestartRequested { child: "b".into() };
        assert_eq!(events.all().iter().filter(|event| **event == asked).count(), 10);
    }
}

// Guarantee: supervisor 9.
#[test]
fn a_restart_returns_when_the_new_instance_is_ready_or_has_failed() {
    let (world, log) = (World::new(), Log::default());
    let clock = world.clock.clone();
    let slow = Child::new("slow", move |cx: ChildContext| {
        let clock = clock.clone();
        async move {
            clock.sleep(S(2)).await;
            match cx.instance() {
                3 => return Err("no listener".to_owned()),
                _ => cx.ready(),
            }
            cx.stopping().await;
            clock.sleep(S(1)).await;
            Ok(())
        }
    });
    let hangs = acting("hangs", &log, vec![Act::Fail, Act::Fail, Act::Fail]).waits_for_ready();
    let supervisor = builder(&world, steady(S(10))).child(slow.waits_for_ready()).child(hangs).build().unwrap();
    let (slow, hangs) = (supervisor.handle("slow").unwrap(), supervisor.handle("hangs").unwrap());
    beside(&world, &supervisor, async {
        world.clock.sleep(S(5)).await;
        let began = world.clock.now();
        slow.restart().await.unwrap();
        assert_eq!(world.clock.now() - began, S(3), "a second to stop, and two to start");
        assert_eq!(slow.restart().await, Err(RestartError::Failed { cause: "no listener".to_owned() }));
        // It waits for ten seconds now; a request ends that.
        let began = world.clock.now();
        slow.restart().await.unwrap();
        assert_eq!(world.clock.now() - began, S(2));
        assert_eq!(hangs.restart().await, Err(RestartError::Failed { cause: "broken".to_owned() }));
    });
}

#[test]
fn a_restart_of_what_does_not_run_is_refused() {
    let (world, log) = (World::new(), Log::default());
    let ends = acting("ends", &log, vec![Act::End]).restart(Restart::Transient);
    let once = obedient("once", &log).restart(Restart::Temporary);
    let slow = {
        let clock = world.clock.clone();
        Child::new("slow", move |cx: ChildContext| {
            let clock = clock.clone();
            async move {
                cx.stopping().await;
                clock.sleep(S(5)).await;
                Ok::<_, String>(())
            }
        })
    };
    let supervisor = builder(&world, SupervisorConfig::default()).child(ends).child(once).child(slow).build().unwrap();
    let error = supervisor.handle("other").unwrap_err();
    assert_eq!((error.field(), error.to_string().contains("`other` is none")), ("child", true));
    let handles = ["ends", "once", "slow"].map(|name| supervisor.handle(name).unwrap());
    assert_eq!(handles[0].name(), "ends");
    let [ends, once, slow] = handles;
    assert_eq!(world.run(S(1), slow.restart()).unwrap(), Err(RestartError::NotRunning));
    beside(&world, &supervisor, async {
        world.clock.sleep(S(1)).await;
        assert_eq!(ends.restart().await, Err(RestartError::Finished));
        once.restart().await.unwrap();
        // The shutdown begins within the stop of this one.
        world.clock.sleep(S(58)).await;
        assert_eq!(slow.restart().await, Err(RestartError::NotRunning));
        assert_eq!(slow.restart().await, Err(RestartError::NotRunning));
    });
    assert_eq!(world.run(S(1), slow.restart()).unwrap(), Err(RestartError::NotRunning));
}

// Guarantee: supervisor 9.
#[test]
fn a_restart_dropped_at_every_await_is_made_all_the_same_and_one_of_a_dropped_run_returns() {
    let (world, log) = (World::new(), Log::default());
    let supervisor = builder(&world, SupervisorConfig::default()).child(obedient("a", &log)).build().unwrap();
    let handle = supervisor.handle("a").unwrap();
    beside(&world, &supervisor, async {
        world.clock.sleep(S(1)).await;
        let mut restart = Box::pin(handle.restart());
        assert!(restart.as_mut().now_or_never().is_none());
        drop(restart);
        world.clock.sleep(S(1)).await;
        assert_eq!(log.take(), ["start a", "stop a", "start a"]);
    });
    let mut asked = Box::pin(handle.restart());
    let mut run = Box::pin(supervisor.run(pending()));
    world.run(MS(1), &mut run);
    assert!(asked.as_mut().now_or_never().is_none());
    drop(run);
    assert_eq!(world.run(S(1), asked).unwrap(), Err(RestartError::NotRunning));
}
