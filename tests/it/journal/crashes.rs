//! A process that defers a call and replays it, and crashes at any of its requests.
use std::{cell::Cell, sync::Arc, time::Duration};

use steadfast::{
    journal::{Gate, Journal, JournalConfig, Replay},
    queue::Queue,
    store::{Key, PutOptions, Scan, Store, StoreExt},
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
};

use crate::engines::{Engine, World};

const S: fn(u64) -> Duration = Duration::from_secs;

fn journal(world: &World, queue: Arc<dyn Queue>) -> Journal {
    Journal::builder(queue, JournalConfig::default()).clock(&world.clock).build().unwrap()
}

/// Replays until an entry was charged at the bank, which knows a charge by its key.
async fn replay(journal: &Journal, bank: &dyn Store) {
    let charged = tokio::sync::Notify::new();
    let charge = async |entry: Replay| {
        let charge = bank.put(Key::new("bank", &entry.key), "10 euro".into(), PutOptions::new()).await;
        if charge.is_ok() {
            charged.notify_one();
        }
        charge.map(drop)
    };
    journal.run(charged.notified(), || Gate::Open, charge).await.unwrap();
}

fn test(engine: Engine, process: &CrashingProcess) {
    let world = engine.world();
    let (queue, bank) = (process.queue(world.queue.clone()), process.store(world.store.clone()));
    let accepted = Cell::new(false);
    world.run(process.run(async {
        let journal = journal(&world, queue);
        if journal.defer("order-1", "10 euro").await.is_ok() {
            accepted.set(true);
            replay(&journal, &*bank).await;
        }
    }));
    let others = journal(&world, world.queue.clone());
    // A caller without a response calls again, under the same key.
    if !accepted.get() {
        world.run(others.defer("order-1", "10 euro")).unwrap();
        assert_eq!(world.depths(), (1, 0));
    }
    world.time.advance(S(31));
    if world.depths().0 > 0 {
        world.run(replay(&others, &*world.store));
    }
    let charged = world.run(world.store.scan_all(Scan::partition("bank"))).unwrap();
    assert_eq!((charged.len(), world.depths()), (1, (0, 0)));
}

// Guarantee: journal 1.
#[test]
fn an_entry_of_a_process_that_crashes_at_any_request_is_replayed() {
    for engine in Engine::ALL {
        // Message, delivery, charge, settlement at least.
        let requests = crash_at_every_write(|process| test(engine, process));
        assert!(requests >= 4, "{requests}");
    }
}

// Guarantee: journal 1.
#[test]
fn an_entry_is_replayed_whichever_request_fails() {
    for engine in Engine::ALL {
        fail_at_every_write(|process| test(engine, process));
    }
}
