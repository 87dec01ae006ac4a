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
        Child, ChildContext, Restart, Supervisor, SupervisorConfig, SupervisorError, SupervisorEvent as Event,
        Unstopped,
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
fn each_child_is_asked_to_stop_before_it_is_dropped() {
    let (world, log, alive) = (World::new(), Log::default(), Arc::default());
    let built = builder(&world, SupervisorConfig::default()).child(obedient("writer", &log));
    let built = ["a", "b", "c"].into_iter().fold(built, |b, name| b.child(deaf(name, &alive)));
    let report = world.run(S(60), built.build().unwrap().run(world.clock.sleep(S(1)))).unwrap().unwrap();
    assert_eq!(log.take(), ["start writer", "stop writer"]);
    assert_eq!(report.unstopped.len(), 3);
}

// Guarantee: supervisor 5.
#[test]
fn a_later_run_starts_no_second_instance_beside_one_that_is_blocked() {
    let (world, alive) = (World::new(), Arc::default());
    let stuck = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (kept, pool) = (stuck.clone(), world.pool.clone());
    let spawns = Arc::new(AtomicUsize::new(0));
    let counted = spawns.clone();
    let supervisor = builder(&world, SupervisorConfig::default())
        .spawner(move |task| match counted.fetch_add(1, SeqCst) {
            0 => kept.lock().unwrap().push(task),
            _ => pool.spawn(task),
        })
        .child(deaf("blocked", &alive))
        .build()
        .unwrap();
    let report = world.run(S(60), supervisor.run(world.clock.sleep(S(1)))).unwrap().unwrap();
    assert_eq!(report.unstopped[0].how, Unstopped::Blocked);
    let error = world.run(S(60), supervisor.run(pending())).unwrap().unwrap_err();
    assert!(error.to_string().contains("an instance of an earlier run blocks its thread"), "{error}");
    assert_eq!(spawns.load(SeqCst), 1, "no second one is started");
    // Its thread is free again.
    stuck.lock().unwrap().clear();
    world.run(S(60), supervisor.run(world.clock.sleep(S(1)))).unwrap().unwrap();
    assert_eq!(spawns.load(SeqCst), 2);
}

// Guarantee: supervisor 5.
#[test]
fn a_child_that_cannot_be_dropped_is_named_and_the_run_returns() {
    let (world, log, alive) = (World::new(), Log::default(), Arc::default());
    // The spawner stands for a thread that is blocked: it does not poll the task.
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
fn a_shutdown_interrupts_back_off_and_start_and_leaves_an_escalation_its_error() {
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
            assert!(supervisor.state().iter().all(|child| !child.phase.is_running()), "{:?}", supervisor.state());
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

// Guarantee: supervisor 5.
#[test]
fn a_child_that_fails_within_the_stop_is_in_the_report_also_under_another_supervisor() {
    let (world, log) = (World::new(), Log::default());
    let fails = |name: &'static str| {
        Child::new(name, |cx: ChildContext| async move {
            cx.stopping().await;
            Err::<(), _>("the last write failed")
        })
    };
    let inner = builder(&world, SupervisorConfig::default()).child(fails("prices")).build().unwrap();
    let built = builder(&world, SupervisorConfig::default()).child(obedient("a", &log)).child(fails("b"));
    let supervisor = built.child(Child::supervisor("feeds", inner)).build().unwrap();
    let report = world.run(S(60), supervisor.run(world.clock.sleep(S(1)))).unwrap().unwrap();
    assert!(report.unstopped.is_empty());
    let failed: Vec<_> = report.failed.iter().map(|one| (one.child.as_str(), one.cause.as_str())).collect();
    assert_eq!(failed, [("b", "the last write failed"), ("feeds/prices", "the last write failed")]);
    assert_eq!(supervisor.state()[1].last_failure, None, "it is no cause of an escalation");
    // The next run is another one.
    let report = world.run(S(60), supervisor.run(async {})).unwrap().unwrap();
    assert!(report.failed.is_empty());
}

// Guarantee: supervisor 5.
#[test]
fn a_child_that_blocks_a_real_thread_is_named_and_runs_again_when_the_thread_is_free() {
    use std::sync::mpsc;
    let (world, log) = (World::new(), Log::default());
    let (begun, has_begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(std::sync::Mutex::new(released));
    let blocks = Child::new("blocks", move |_| {
        let (begun, released) = (begun.clone(), released.clone());
        async move {
            begun.send(()).unwrap();
            let _ = released.lock().unwrap().recv();
            Ok::<_, String>(())
        }
    });
    let threads = Arc::new(std::sync::Mutex::new(Vec::new()));
    let kept = threads.clone();
    let supervisor = builder(&world, SupervisorConfig::default())
        .spawner(move |task| kept.lock().unwrap().push(std::thread::spawn(|| steadfast::time::block_on(task))))
        .child(obedient("a", &log))
        .child(blocks.restart(Restart::Transient))
        .build()
        .unwrap();
    let has_begun = || async {
        world.clock.sleep(S(1)).await;
        has_begun.recv_timeout(S(30)).unwrap();
    };
    let report = world.run(S(60), supervisor.run(has_begun())).unwrap().unwrap();
    let named: Vec<_> = report.unstopped.iter().map(|one| (one.child.as_str(), one.how)).collect();
    assert_eq!(named.last(), Some(&("blocks", Unstopped::Blocked)));
    let end_threads = || threads.lock().unwrap().drain(..).for_each(|thread| thread.join().unwrap());
    release.send(()).unwrap();
    end_threads();
    // It runs again, and ends by itself.
    release.send(()).unwrap();
    world.run(S(60), supervisor.run(has_begun())).unwrap().unwrap();
    assert_eq!(supervisor.state()[1].instance, 1, "the first one of this run");
    end_threads();
}

// Guarantee: supervisor 3.
#[test]
fn a_child_whose_runtime_drops_it_has_failed() {
    let world = World::new();
    let supervisor = builder(&world, steady(MS(1)).max_restarts(1))
        .spawner(drop)
        .child(Child::new("a", |_| pending::<Result<(), String>>()))
        .build()
        .unwrap();
    let error = world.run(S(60), supervisor.run(pending())).unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "child `a` failed too often: the task was dropped by its runtime; the task was dropped by its runtime"
    );
}
