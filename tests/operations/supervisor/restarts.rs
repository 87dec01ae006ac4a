//! Starts, failures, restarts and escalations.
use std::future::pending;

use steadfast::supervisor::{
    Child, ChildContext, ChildFailure, ChildPhase, Restart, Strategy, SupervisorConfig, SupervisorError,
    SupervisorEvent as Event,
};

use super::{Act, Log, acting, builder, obedient, steady, told};
use crate::world::{MS, S, World};

// Guarantee: supervisor 1.
#[test]
fn children_start_in_order_and_wait_for_the_one_before_to_be_ready() {
    let (world, log) = (World::new(), Log::default());
    let (clock, ready) = (world.clock.clone(), log.clone());
    let slow = Child::new("slow", move |cx: ChildContext| {
        let (clock, ready) = (clock.clone(), ready.clone());
        async move {
            clock.sleep(S(3)).await;
            ready.add("slow is ready");
            cx.ready();
            cx.stopping().await;
            Ok::<_, String>(())
        }
    });
    let supervisor = builder(&world, SupervisorConfig::default())
        .child(obedient("a", &log))
        .child(slow.waits_for_ready())
        .child(obedient("c", &log))
        .build()
        .unwrap();
    let look = async {
        world.clock.sleep(S(1)).await;
        supervisor.state()
    };
    let looked = async { futures::future::select(Box::pin(look), Box::pin(supervisor.run(pending()))).await };
    let futures::future::Either::Left((state, run)) = world.run(S(2), looked).unwrap() else { panic!("it ended") };
    drop(run);
    assert_eq!(log.take(), ["start a"]);
    let phases: Vec<_> = state.iter().map(|child| child.phase).collect();
    assert_eq!(phases, [ChildPhase::Ready, ChildPhase::Starting, ChildPhase::Waiting]);
    let report = world.run(S(60), supervisor.run(world.clock.sleep(S(10)))).unwrap().unwrap();
    assert!(report.unstopped.is_empty());
    assert_eq!(log.take(), ["start a", "slow is ready", "start c", "stop c", "stop a"]);
}

// Guarantee: supervisor 1.
#[test]
fn a_child_that_is_not_ready_in_time_has_failed_and_the_next_ones_go_on_waiting() {
    let (world, log) = (World::new(), Log::default());
    let (built, events) = told(builder(&world, steady(MS(100))));
    let supervisor =
        built.child(acting("a", &log, vec![Act::Hang]).waits_for_ready()).child(obedient("b", &log)).build().unwrap();
    world.run(S(60), supervisor.run(world.clock.sleep(S(50)))).unwrap().unwrap();
    // 30 s until it should be ready, 10 s to stop, then it is dropped and started again.
    assert_eq!(log.take(), ["start a", "start a", "start b", "stop b", "stop a"]);
    let starts = events.starts("a");
    assert_eq!(starts[1] - starts[0], S(40));
    let timed_out = events.all().into_iter().any(|event| {
        matches!(event, Event::Failed { failure: ChildFailure::StartTimeout, cause, .. } if cause == "not ready within 30s")
    });
    assert!(timed_out);
}

// Guarantee: supervisor 1.
#[test]
fn an_optional_child_delays_nothing_and_never_escalates() {
    let (world, log) = (World::new(), Log::default());
    let never = acting("never", &log, vec![Act::Hang; 100]).waits_for_ready().optional();
    let broken = acting("broken", &log, vec![Act::Fail; 1000]).optional();
    let config = steady(MS(100)).strategy(Strategy::OneForAll).max_restarts(0);
    let supervisor = builder(&world, config).child(never).child(broken).child(obedient("c", &log)).build().unwrap();
    let report = world.run(S(1000), supervisor.run(world.clock.sleep(S(600)))).unwrap().unwrap();
    assert!(log.take().iter().filter(|entry| *entry == "start c").count() == 1, "it is not restarted with the others");
    let restarts: Vec<_> = supervisor.state().iter().map(|child| child.restarts).collect();
    assert!(restarts[0] > 10 && restarts[1] > 50 && restarts[2] == 0, "{restarts:?}");
    assert_eq!(report.unstopped.len(), 1, "{report:?}");
}

// Guarantee: supervisor 2.
#[test]
fn a_failure_stops_the_rest_in_reverse_and_starts_it_in_order_without_their_budget() {
    let (world, log) = (World::new(), Log::default());
    let config = steady(MS(100)).strategy(Strategy::RestForOne).max_restarts(1);
    let failing = acting("b", &log, vec![Act::Fail]);
    let supervisor = builder(&world, config)
        .child(obedient("a", &log))
        .child(failing)
        .child(obedient("c", &log))
        .child(obedient("d", &log))
        .build()
        .unwrap();
    world.run(S(60), supervisor.run(world.clock.sleep(S(1)))).unwrap().unwrap();
    let expected =
        "start a, start b, start c, start d, stop d, stop c, start b, start c, start d, stop d, stop c, stop b, stop a";
    assert_eq!(log.take().join(", "), expected);
}

// Guarantee: supervisor 3.
#[test]
fn an_error_a_panic_at_each_stage_and_the_end_of_a_permanent_child_are_failures() {
    let acts = [
        (Act::Fail, ChildFailure::Error, "broken"),
        (Act::PanicInConstruction, ChildFailure::Panic, "the child panicked: cannot be built"),
        (Act::PanicInPoll, ChildFailure::Panic, "the child panicked: cannot go on"),
        (Act::PanicInDrop, ChildFailure::Panic, "the child panicked: cannot be dropped"),
        (Act::End, ChildFailure::Ended, "a permanent child ended"),
    ];
    for (act, failure, cause) in acts {
        let (world, log) = (World::new(), Log::default());
        let (built, events) = told(builder(&world, steady(MS(100))));
        let supervisor = built.child(acting("a", &log, vec![act])).build().unwrap();
        world.run(S(60), supervisor.run(world.clock.sleep(S(1)))).unwrap().unwrap();
        assert_eq!(log.take(), ["start a", "start a", "stop a"], "{act:?}");
        let failed = Event::Failed { child: "a".into(), failure, cause: cause.to_owned() };
        assert!(events.all().contains(&failed), "{act:?}: {:?}", events.all());
        assert_eq!(supervisor.state()[0].last_failure.as_deref(), Some(cause));
    }
}

// Guarantee: supervisor 3.
#[test]
fn a_panic_in_the_drop_of_a_child_that_hangs_is_told_and_the_child_is_started_again() {
    let (world, log) = (World::new(), Log::default());
    let (built, events) = told(builder(&world, steady(MS(100))));
    let hangs = acting("a", &log, vec![Act::HangAndPanicInDrop]).waits_for_ready();
    let supervisor = built.child(hangs).build().unwrap();
    world.run(S(60), supervisor.run(world.clock.sleep(S(50)))).unwrap().unwrap();
    assert_eq!(log.take(), ["start a", "start a", "stop a"]);
    let cause = "the child panicked when it was dropped: cannot be dropped".to_owned();
    assert!(events.all().contains(&Event::Failed { child: "a".into(), failure: ChildFailure::Panic, cause }));
}

#[test]
fn transient_and_temporary_children_may_end_and_a_run_ends_with_its_last_child() {
    let (world, log) = (World::new(), Log::default());
    let transient = acting("transient", &log, vec![Act::Fail, Act::End]).restart(Restart::Transient);
    let temporary = acting("temporary", &log, vec![Act::Fail]).restart(Restart::Temporary);
    let supervisor = builder(&world, SupervisorConfig::default()).child(transient).child(temporary).build().unwrap();
    let report = world.run(S(60), supervisor.run(pending())).expect("it ends by itself").unwrap();
    assert!(report.unstopped.is_empty());
    assert_eq!(log.take(), ["start transient", "start temporary", "start transient"]);
    assert!(supervisor.state().iter().all(|child| child.phase == ChildPhase::Finished));
}

// Guarantee: supervisor 4.
#[test]
fn one_restart_above_the_budget_stops_all_children_and_names_the_child_with_its_causes() {
    let (world, log) = (World::new(), Log::default());
    let config = steady(MS(100)).max_restarts(2);
    let (built, events) = told(builder(&world, config));
    let supervisor = built.child(obedient("a", &log)).child(acting("b", &log, vec![Act::Fail; 9])).build().unwrap();
    let error = world.run(S(60), supervisor.run(pending())).unwrap().unwrap_err();
    let SupervisorError::Escalated { child, causes, unstopped } = &error else { panic!("{error}") };
    assert_eq!((child.as_str(), causes.len(), unstopped.len()), ("b", 3, 0));
    assert_eq!(error.to_string(), "child `b` failed too often: broken; broken; broken");
    assert_eq!(log.take(), ["start a", "start b", "start b", "start b", "stop a"]);
    // 100 ms, then 200 ms: OTP would have used the budget up at once.
    let starts = events.starts("b");
    assert_eq!((starts[1] - starts[0], starts[2] - starts[1]), (MS(100), MS(200)));
}

// Guarantee: supervisor 4.
#[test]
fn failures_further_apart_than_the_window_never_escalate_and_a_long_run_resets_the_delay() {
    let (world, log) = (World::new(), Log::default());
    let (clock, log_in) = (world.clock.clone(), log.clone());
    let every_minute = Child::new("a", move |_| {
        let clock = clock.clone();
        log_in.add("start");
        async move {
            clock.sleep(S(61)).await;
            Err::<(), _>("broken")
        }
    });
    let (built, events) = told(builder(&world, steady(MS(100)).max_restarts(1)));
    let supervisor = built.child(every_minute).build().unwrap();
    world.run(S(1000), supervisor.run(world.clock.sleep(S(900)))).unwrap().unwrap();
    assert!(log.take().len() > 10);
    let starts = events.starts("a");
    assert!(starts.windows(2).all(|two| two[1] - two[0] == S(61) + MS(100)), "{starts:?}");
}

// Guarantee: supervisor 4.
#[test]
fn an_escalation_of_a_nested_supervisor_is_one_failure_of_its_parents_child() {
    let (world, log) = (World::new(), Log::default());
    // The inner child fails five times: an inner run takes three failures.
    let inner = builder(&world, steady(MS(100)).max_restarts(2))
        .child(acting("feed", &log, vec![Act::Fail; 3]))
        .child(obedient("beside", &log))
        .build()
        .unwrap();
    let (built, events) = told(builder(&world, steady(MS(100)).max_restarts(1)));
    let outer = built.child(Child::supervisor("feeds", inner).waits_for_ready()).child(obedient("last", &log));
    let outer = outer.build().unwrap();
    let error = world.run(S(60), outer.run(pending())).unwrap().unwrap_err();
    let SupervisorError::Escalated { child, causes, .. } = error else { panic!("{error}") };
    assert_eq!(child.as_str(), "feeds");
    assert_eq!(causes, vec!["child `feed` failed too often: broken; broken; broken"; 2]);
    let failures = events.all().iter().filter(|event| matches!(event, Event::Failed { .. })).count();
    assert_eq!(failures, 2);
    let log = log.take();
    assert_eq!(log.iter().filter(|entry| *entry == "start feed").count(), 6, "{log:?}");
    assert_eq!(log.last().unwrap(), "stop last");
}

// Guarantee: supervisor 1.
#[test]
fn a_nested_supervisor_is_ready_when_all_of_its_children_have_started() {
    let (world, log) = (World::new(), Log::default());
    let clock = world.clock.clone();
    let slow = Child::new("slow", move |cx: ChildContext| {
        let clock = clock.clone();
        async move {
            clock.sleep(S(3)).await;
            cx.ready();
            cx.stopping().await;
            Ok::<_, String>(())
        }
    });
    let inner = builder(&world, SupervisorConfig::default()).child(slow.waits_for_ready()).build().unwrap();
    let (built, events) = told(builder(&world, SupervisorConfig::default()));
    let outer = built.child(Child::supervisor("feeds", inner).waits_for_ready()).child(obedient("last", &log));
    world.run(S(60), outer.build().unwrap().run(world.clock.sleep(S(10)))).unwrap().unwrap();
    assert_eq!(events.starts("last")[0] - events.starts("feeds")[0], S(3));
}

// Guarantee: supervisor 2.
#[test]
fn of_ten_thousand_children_a_thousand_that_fail_at_once_are_restarted_and_none_is_lost_or_doubled() {
    use std::sync::{
        Arc,
        atomic::{AtomicU8, Ordering::SeqCst},
    };
    const CHILDREN: usize = 10_000;
    let world = World::new();
    let running: Arc<Vec<AtomicU8>> = Arc::new((0..CHILDREN).map(|_| AtomicU8::new(0)).collect());
    let clock = world.clock.clone();
    let mut built = builder(&world, steady(MS(100)).max_restarts(1_000));
    for i in 0..CHILDREN {
        let (running, clock) = (running.clone(), clock.clone());
        let child = Child::new(i.to_string(), move |cx: ChildContext| {
            let (running, clock) = (running.clone(), clock.clone());
            async move {
                assert_eq!(running[i].fetch_add(1, SeqCst), 0, "{i} runs twice");
                let fails = i % 10 == 0 && cx.instance() == 1;
                match fails {
                    true => clock.sleep(S(1)).await,
                    false => cx.stopping().await,
                }
                running[i].fetch_sub(1, SeqCst);
                if fails { Err("all of these at once".to_owned()) } else { Ok(()) }
            }
        });
        built = built.child(child);
    }
    let supervisor = built.build().unwrap();
    let script = async {
        world.clock.sleep(S(5)).await;
        assert!(running.iter().all(|running| running.load(SeqCst) == 1), "one is lost");
        let restarted = supervisor.state().iter().filter(|child| (child.instance, child.restarts) == (2, 1)).count();
        assert_eq!(restarted, 1_000);
        assert_eq!(supervisor.state().iter().filter(|child| child.instance == 1).count(), CHILDREN - 1_000);
    };
    // The run is dropped: the stop of so many, one after another, is no part of this.
    let both = futures::future::select(Box::pin(script), Box::pin(supervisor.run(pending())));
    assert!(matches!(world.run(S(60), both), Some(futures::future::Either::Left(_))));
}

// Guarantee: supervisor 1.
#[test]
fn three_thousand_children_that_are_ready_one_after_another_start_in_order() {
    let (world, log) = (World::new(), Log::default());
    let names: Vec<&'static str> = (0..3_000).map(|i| &*i.to_string().leak()).collect();
    let built = builder(&world, SupervisorConfig::default());
    let built = names.iter().fold(built, |built, name| built.child(obedient(name, &log).waits_for_ready()));
    world.run(S(60), built.build().unwrap().run(world.clock.sleep(S(1)))).unwrap().unwrap();
    let starts = names.iter().map(|name| format!("start {name}"));
    let stops = names.iter().rev().map(|name| format!("stop {name}"));
    assert_eq!(log.take(), starts.chain(stops).collect::<Vec<_>>());
}
