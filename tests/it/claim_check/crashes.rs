//! A sender and a receiver that crash at any of their requests to the queue and to the store.
use std::{cell::Cell, sync::Arc, time::Duration};

use steadfast::{
    claim_check::{ClaimCheck, ClaimCheckConfig},
    entropy::Entropy,
    queue::{Message, Queue, QueueError, QueueExt},
    store::{Scan, Store, StoreExt},
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
};

use crate::engines::{Engine, World};

const S: fn(u64) -> Duration = Duration::from_secs;
const KEEP: Duration = Duration::from_secs(1_000);
const BODY: &[u8] = &[7; 100];

/// The last acknowledged step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Progress {
    Began,
    Sent,
    Completed,
}

fn checked(world: &World, queue: Arc<dyn Queue>, store: Arc<dyn Store>, seed: u64) -> ClaimCheck {
    let config = ClaimCheckConfig::default().threshold(10).keep(KEEP);
    ClaimCheck::builder(queue, store, config).clock(&world.clock).entropy(&Entropy::from_seed(seed)).build().unwrap()
}

fn bodies(world: &World) -> usize {
    world.run(world.store.scan_all(Scan::partition("claim-check"))).unwrap().len()
}

fn test(engine: Engine, process: &CrashingProcess) {
    let world = engine.world();
    let progress = Cell::new(Progress::Began);
    let message = || Message::new(BODY).deduplicate("scan-1");
    let queue = checked(&world, process.queue(world.queue.clone()), process.store(world.store.clone()), 1);
    let _ = world.run(process.run(async {
        queue.send_one(message()).await?;
        progress.set(Progress::Sent);
        if let Some(taken) = queue.receive_one(S(30)).await? {
            assert_eq!(&taken.body[..], BODY);
            queue.complete(&taken.receipt).await?;
            progress.set(Progress::Completed);
        }
        Ok::<_, QueueError>(())
    }));
    let progress = progress.get();
    let others = checked(&world, world.queue.clone(), world.store.clone(), 2);
    // A message that may have been sent is sent again, under its id.
    if progress == Progress::Began {
        world.run(others.send_one(message())).unwrap();
    }
    world.time.advance(S(31));
    let taken = world.run(others.receive_one(S(30))).unwrap();
    match &taken {
        Some(taken) => {
            assert!(progress != Progress::Completed && taken.body[..] == *BODY, "{progress:?}");
            world.run(others.complete(&taken.receipt)).unwrap();
        }
        // The completion may have been applied.
        None => assert!(progress >= Progress::Sent, "the message is lost"),
    }
    assert_eq!(world.depths(), (0, 0));
    if process.to_string() == "no crash" {
        assert_eq!(bodies(&world), 0, "nothing is left behind");
    }
    world.time.advance(KEEP);
    assert_eq!(bodies(&world), 0, "an orphan ends");
}

// Guarantee: claim_check 2.
#[test]
fn a_message_whose_sender_and_receiver_crash_at_any_request_has_its_body_until_it_is_completed() {
    for engine in Engine::ALL {
        // Body, message; message, body; completion, body.
        assert_eq!(crash_at_every_write(|process| test(engine, process)), 6);
    }
}

// Guarantee: claim_check 2.
#[test]
fn a_message_has_its_body_whichever_request_fails() {
    for engine in Engine::ALL {
        assert_eq!(fail_at_every_write(|process| test(engine, process)), 6);
    }
}
