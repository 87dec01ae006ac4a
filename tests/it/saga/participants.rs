//! The called service's half: each key is applied once, undone once, and barred for ever.
use std::sync::Arc;

use steadfast::{
    saga::{Compensated, Executed, Participant},
    store::{Key, Precondition, Scan, Store, StoreError, StoreExt, Write},
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
    time::Clock,
};

use crate::engines::{Engine, World};

const KEY: &str = "trip/42/seat";

fn participant(store: Arc<dyn Store>) -> Participant {
    Participant::new(store, "seats").unwrap()
}

fn take() -> Vec<Write> {
    vec![Write::append("log/", "taken"), Write::put("12A", "42", Precondition::Absent)]
}

fn free() -> Vec<Write> {
    vec![Write::append("log/", "freed"), Write::delete("12A", steadfast::store::DeleteOptions::new())]
}

/// Returns the log of applied writes.
fn log(world: &World) -> Vec<String> {
    let rows = world.run(world.store.scan_all(Scan::partition("seats").prefix("log/"))).unwrap();
    rows.into_iter().map(|row| String::from_utf8_lossy(&row.value).into_owned()).collect()
}

// Guarantee: saga 13.
#[test]
fn an_action_is_applied_once_and_its_reply_is_repeated() {
    for engine in Engine::ALL {
        let world = engine.world();
        let seats = participant(world.store.clone());
        assert_eq!(world.run(seats.execute(KEY, take(), "12A")).unwrap(), Executed::Applied);
        for _ in 0..2 {
            assert_eq!(world.run(seats.execute(KEY, take(), "13B")).unwrap(), Executed::AlreadyApplied("12A".into()));
        }
        assert_eq!(world.run(seats.reply(KEY)).unwrap(), Some("12A".into()));
        assert_eq!(log(&world), ["taken"]);
    }
}

// Guarantee: saga 13.
#[test]
fn a_compensation_is_applied_once_and_bars_the_action() {
    for engine in Engine::ALL {
        let world = engine.world();
        let seats = participant(world.store.clone());
        world.run(seats.execute(KEY, take(), "12A")).unwrap();
        assert_eq!(world.run(seats.compensate(KEY, free())).unwrap(), Compensated::Applied);
        assert_eq!(world.run(seats.compensate(KEY, free())).unwrap(), Compensated::AlreadyCompensated);
        assert_eq!(world.run(seats.execute(KEY, take(), "12A")).unwrap(), Executed::TooLate);
        assert_eq!((log(&world), world.run(seats.reply(KEY)).unwrap()), (vec!["taken".into(), "freed".into()], None));
        // Another key is another action.
        assert_eq!(world.run(seats.execute("trip/43/seat", take(), "12A")).unwrap(), Executed::Applied);
    }
}

// Guarantee: saga 13.
#[test]
fn an_action_that_arrives_after_its_compensation_has_no_effect() {
    for engine in Engine::ALL {
        let world = engine.world();
        let seats = participant(world.store.clone());
        assert_eq!(world.run(seats.compensate(KEY, free())).unwrap(), Compensated::NeverExecuted);
        assert_eq!(world.run(seats.compensate(KEY, free())).unwrap(), Compensated::AlreadyCompensated);
        assert_eq!(world.run(seats.execute(KEY, take(), "12A")).unwrap(), Executed::TooLate);
        assert_eq!(log(&world), Vec::<String>::new());
    }
}

#[test]
fn a_row_that_the_store_refuses_applies_nothing_and_is_named() {
    let world = Engine::Memory.world();
    let seats = participant(world.store.clone());
    world.run(world.store.put(Key::new("seats", "12A"), "41".into(), Default::default())).unwrap();
    let refused = world.run(seats.execute(KEY, take(), "12A")).unwrap_err();
    assert!(matches!(refused, StoreError::Conflict { write: 1, .. }), "{refused:?}");
    assert!(log(&world).is_empty() && world.run(seats.reply(KEY)).unwrap().is_none());
    assert!(world.run(seats.execute("", take(), "12A")).is_err());
    world.run(world.store.put(Key::new("seats", "p/other"), "x".into(), Default::default())).unwrap();
    assert!(
        world
            .run(seats.execute("other", vec![], "12A"))
            .unwrap_err()
            .to_string()
            .contains("no record of a participant")
    );
}

/// Takes a seat and gives it back; a caller without a reply repeats its request.
fn crash_test(engine: Engine, process: &CrashingProcess) {
    let world = engine.world();
    let seats = participant(process.store(world.store.clone()));
    let _ = world.run(process.run(async {
        seats.execute(KEY, take(), "12A").await?;
        seats.compensate(KEY, free()).await.map(drop)
    }));
    let other = participant(world.store.clone());
    world.run(other.execute(KEY, take(), "12A")).unwrap();
    world.run(other.compensate(KEY, free())).unwrap();
    assert_eq!(world.run(other.execute(KEY, take(), "12A")).unwrap(), Executed::TooLate);
    assert_eq!(log(&world), ["taken", "freed"]);
}

// Guarantee: saga 13.
#[test]
fn each_half_is_applied_once_whichever_request_crashes_or_fails() {
    for engine in Engine::ALL {
        assert_eq!(crash_at_every_write(|process| crash_test(engine, process)), 4);
        fail_at_every_write(|process| crash_test(engine, process));
    }
}

// Guarantee: saga 13.
#[test]
fn concurrent_requests_of_one_key_apply_each_half_at_most_once() {
    use steadfast::testing::faults::{FaultConfig, FaultNetwork, for_each_seed};
    for_each_seed(0..300, |seed| {
        let (clock, time) = Clock::manual();
        let store: Arc<dyn Store> = Arc::new(steadfast::store::InMemoryStore::builder().clock(&clock).build());
        let ms = std::time::Duration::from_millis;
        let faults = FaultConfig::default().latency(ms(0), ms(10)).doubled(0.1).late(0.5);
        let network = FaultNetwork::new(faults, seed, &clock).unwrap();
        let one = |i: usize| {
            let seats = participant(network.client(&i.to_string()).store(store.clone()));
            async move {
                match i {
                    0..4 => drop(seats.execute(KEY, take(), "12A").await),
                    _ => drop(seats.compensate(KEY, free()).await),
                }
            }
        };
        time.block_on(futures::future::join_all((0..6).map(one)));
        let rows = time.block_on(store.scan_all(Scan::partition("seats").prefix("log/"))).unwrap();
        let log: Vec<_> = rows.iter().map(|row| &*row.value).collect();
        assert!(log.is_empty() || log == [b"taken", b"freed"], "{log:?}");
    });
}
