//! Orderly stops, children that do not stop, and dropped runs.
use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use steadfast::{
    supervisor::{
        Child, ChildContext, Supervisor, SupervisorConfig, SupervisorError, SupervisorEvent as Event, Unstopped,
    },
    testing::drop_at_every_await,
};

use super::{Act, Log, acting, builder, obedient, steady, told};
use crate::world::{MS, S, World};

/// Counts its instances that were not dropped.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, SeqCst);
        Self(count.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn deaf(name: &'static str, alive: &Arc<AtomicUsize>) -> Child {
    let alive = alive.clone();
    Child::new(name, move |_| {
        let alive = Alive::new(&alive);
        async move {
            pending::<()>().await;
            drop(alive);
            Ok::<_, String>(())
        }
    })
}

// Guarantee: supervisor 5.
#[test]
fn a_child_that_does_not_stop_is_dropped_after_its_time_and_named() {
    let (world, log, alive) = (World::new(), Log::default(), Arc::default());
    let (built, events) = told(builder(&world, SupervisorConfig::default()));
    let supervisor = built.child(obedient("a", &log)).child(deaf("deaf", &alive)).build().unwrap();
    let began = world.clock.now();
    let report = world.run(S(60), supervisor.run(world.clock.sleep(S(1)))).unwrap().unwrap();
    assert_eq!(world.clock.now() - began, S(11));
    assert_eq!(report.unstopped.len(), 1);
    assert_eq!((report.unstopped[0].child.as_str(), report.unstopped[0].how), ("deaf", Unstopped::Dropped));
    assert_eq!(alive.load(SeqCst), 0);
    assert_eq!(log.take(), ["start a", "stop a"]);
    assert!(events.all().contains(&Event::Dropped { child: "deaf".into() }));
}

// Guarantee: supervisor 5.
#[test]
fn all_children_together_stop_within_the_shutdown_timeout() {
    let (world, alive) = (World::new(), Arc::default());
    let names = ["a", "b", "c", "d", "e"];
    let built =
        names.into_iter().fold(builder(&world, SupervisorConfig::default()), |b, name| b.child(deaf(name, &alive)));
    let supervisor = built.build().unwrap();
    let began = world.clock.now();
    let report = world.run(S(60), supervisor.run(world.clock.sleep(S(1)))).unwrap().unwrap();
    let took = world.clock.now() - began - S(1);
    assert!(took > S(20) && took <= S(25), "{took:?}");
    let named: Vec<_> = report.unstopped.iter().map(|unstopped| unstopped.child.as_str()).collect();
    assert_eq!(named, names);
    assert_eq!(alive.load(SeqCst), 0);
}

// Guarantee: supervisor 5.
#[test]
fn a_child_that_cannot_be_dropped_is_named_and_the_run_returns() {
    let (world, log, alive) = (World::new(), Log::default(), Arc::default());
    // The spawner stands for a thread that is blocked: after the first poll it does not poll the task any more.
    let (pool, stuck) = (world.pool.clone(), Arc::new(std::sync::Mutex::new(Vec::new())));
    let (kept, number) = (stuck.clone(), AtomicUsize::new(0));
    let supervisor = builder(&world, SupervisorConfig::default())
        .spawner(move |task| match number.fetch_add(1, SeqCst) {
            1 => kept.lock().unwrap().push(task),
            _ => pool.spawn(task),
        })
        .child(obedient("a", &log))
        .child(deaf("blocked", &alive))
        .build()
        .unwrap();
    let began = world.clock.now();
    let report = world.run(S(60), supervisor.run(world.clock.sleep(S(1)))).unwrap().unwrap();
    assert_eq!(world.clock.now() - began, S(12));
    assert_eq!((report.unstopped[0].child.as_str(), report.unstopped[0].how), ("blocked", Unstopped::Blocked));
    assert_eq!(log.take(), ["start a", "stop a"]);
    drop(supervisor);
    stuck.lock().unwrap().clear();
}

// Guarantee: supervisor 5.
#[test]
fn a_shutdown_interrupts_back_off_start_and_escalation() {
    // A back-off of a minute.
    let (world, log) = (World::new(), Log::default());
    let supervisor = builder(&world, steady(S(60))).child(acting("a", &log, vec![Act::Fail])).build().unwrap();
    let began = world.clock.now();
    world.run(S(60), supervisor.run(world.clock.sleep(S(1)))).unwrap().unwrap();
    assert_eq!(world.clock.now() - began, S(1));
    // A start that takes for ever: the child is asked to stop, and dropped.
    let world = World::new();
    let hangs = acting("a", &log, vec![Act::Hang]).waits_for_ready();
    let supervisor = builder(&world, steady(MS(1))).child(hangs).child(obedient("b", &log)).build().unwrap();
    let began = world.clock.now();
    world.run(S(60), supervisor.run(world.clock.sleep(S(1)))).unwrap().unwrap();
    assert_eq!(world.clock.now() - began, S(11));
    // An escalation that waits for a child: it keeps its time, and its error.
    let (world, alive) = (World::new(), Arc::default());
    let supervisor = builder(&world, steady(MS(1)).max_restarts(0))
        .child(deaf("deaf", &alive))
        .child(acting("b", &log, vec![Act::Fail]))
        .build()
        .unwrap();
    let began = world.clock.now();
    let ended = world.run(S(60), supervisor.run(world.clock.sleep(S(1)))).unwrap();
    assert!(matches!(ended, Err(SupervisorError::Escalated { .. })));
    assert_eq!(world.clock.now() - began, S(10));
}

// Guarantee: supervisor 5.
#[test]
fn a_nested_child_that_does_not_stop_is_named_with_its_path_within_the_time_of_its_parent() {
    let (world, alive) = (World::new(), Arc::default());
    let config = SupervisorConfig::default();
    let inner = builder(&world, config).child(deaf("deaf", &alive)).build().unwrap();
    let outer = builder(&world, config).child(Child::supervisor("feeds", inner)).build().unwrap();
    let began = world.clock.now();
    let report = world.run(S(60), outer.run(world.clock.sleep(S(1)))).unwrap().unwrap();
    assert!(world.clock.now() - began <= S(11), "{:?}", world.clock.now() - began);
    assert_eq!(report.unstopped.len(), 1, "{report:?}");
    assert_eq!((report.unstopped[0].child.as_str(), report.unstopped[0].how), ("feeds/deaf", Unstopped::Dropped));
    assert_eq!(alive.load(SeqCst), 0);
}

#[test]
fn a_run_dropped_at_every_await_leaves_no_child_behind() {
    let world = World::new();
    let alive: Arc<AtomicUsize> = Arc::default();
    let counted = alive.clone();
    let child = Child::new("a", move |cx: ChildContext| {
        let alive = Alive::new(&counted);
        async move {
            cx.ready();
            cx.stopping().await;
            drop(alive);
            Ok::<_, String>(())
        }
    });
    let failing = acting("b", &Log::default(), vec![Act::Fail]);
    let built = builder(&world, steady(MS(100))).child(child.waits_for_ready()).child(failing);
    let supervisor: Supervisor = built.child(deaf("deaf", &alive)).build().unwrap();
    let polls = drop_at_every_await(
        &world.time,
        || world.with_tasks(supervisor.run(world.clock.sleep(S(2)))),
        |_| {
            // The tasks are told, and drop their children when they run next.
            world.run(MS(1), pending::<()>());
            assert_eq!(alive.load(SeqCst), 0);
        },
    );
    assert!(polls > 5, "{polls}");
}

#[test]
fn a_supervisor_runs_once_at_a_time() {
    let (world, log) = (World::new(), Log::default());
    let supervisor = builder(&world, SupervisorConfig::default()).child(obedient("a", &log)).build().unwrap();
    let other = supervisor.clone();
    let both = async {
        let shutdown = world.clock.sleep(S(1));
        let second = async {
            world.clock.sleep(MS(10)).await;
            other.run(pending()).await
        };
        futures::join!(supervisor.run(shutdown), second)
    };
    let (first, second) = world.run(S(60), both).unwrap();
    assert!(first.is_ok());
    assert_eq!(second.unwrap_err(), SupervisorError::AlreadyRunning);
}
