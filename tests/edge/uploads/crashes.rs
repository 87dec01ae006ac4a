//! Completions that crash, are dropped, fail or race at any of their requests, those to the object store among them.
use std::{cell::Cell, time::Duration};

use steadfast::{
    entropy::Entropy,
    testing::{PortAnswer, ScriptedPort, crash_at_every_write, drop_at_every_await, fail_at_every_write},
    valet_key::{RejectReason, StoreKind, Ticket, UploadError},
};

use super::{S, SCAM, SCAN, SCAN_SHA256, World, rejected, scan, told};

/// Another process completes it, and sweeps. Then there is one accepted object or none, and nothing else.
fn recovers(world: &World, ticket: &Ticket, is_good: bool) {
    let result = world.complete(ticket);
    match is_good {
        true => assert_eq!(world.bucket.accepted(), [(result.unwrap().path, SCAN.to_vec())]),
        false => assert_eq!(rejected(result), RejectReason::Digest),
    }
    assert_eq!(world.bucket.incoming(), 0);
    world.time.advance(S(900 + 3600 + 1));
    world.sweep_for(S(1));
    assert_eq!(world.bucket.all().len(), usize::from(is_good), "{:?}", world.bucket.all());
    assert!(world.rows().iter().all(|row| row.contains("/done/")), "{:?}", world.rows());
    assert_eq!(world.complete(ticket).is_ok(), is_good);
}

/// An upload that is right, or one whose digest is wrong.
fn uploaded(is_good: bool) -> (World, Ticket) {
    let world = World::new(StoreKind::Azure);
    let ticket = world.begin(scan().sha256(SCAN_SHA256));
    world.bucket.upload(&ticket, if is_good { SCAN } else { SCAM }).unwrap();
    (world, ticket)
}

// Guarantee: valet_key 7.
#[test]
fn a_completion_that_crashes_at_any_request_leaves_one_accepted_object_or_none() {
    for is_good in [true, false] {
        let requests = crash_at_every_write(|process| {
            let (world, ticket) = uploaded(is_good);
            let bucket = world.bucket.behind(|gate| process.store(gate));
            let uploads = world.on(&bucket, process.store(world.store.clone()));
            world.time.block_on(process.run(async {
                let _ = uploads.complete(&ticket.id).await;
                // The end of its URL, with which the bytes return.
                world.time.set_wall(world.clock.wall() + S(900));
                uploads.run(world.clock.sleep(S(1))).await;
            }));
            recovers(&world, &ticket, is_good);
        });
        // Five requests to the bucket, of two requests each, and nine to the store.
        assert!(requests >= 19, "{requests}");
    }
}

// Guarantee: valet_key 7.
#[test]
fn a_sweep_and_a_beginning_that_crash_at_any_request_leave_nothing_behind() {
    crash_at_every_write(|process| {
        let (world, ticket) = uploaded(true);
        let bucket = world.bucket.behind(|gate| process.store(gate));
        let uploads = world.on(&bucket, process.store(world.store.clone()));
        world.time.block_on(process.run(uploads.begin("t8", scan())));
        world.time.advance(S(900 + 3600 + 1));
        world.time.block_on(process.run(uploads.run(world.clock.sleep(S(7000)))));
        world.sweep_for(S(1));
        recovers(&world, &ticket, true);
    });
}

// Guarantee: valet_key 7.
#[test]
fn a_completion_whose_requests_fail_or_are_unanswered_ends_when_it_is_repeated() {
    for is_good in [true, false] {
        fail_at_every_write(|process| {
            let (world, ticket) = uploaded(is_good);
            let bucket = world.bucket.behind(|gate| process.store(gate));
            let uploads = world.on(&bucket, process.store(world.store.clone()));
            world.time.block_on(process.run(async {
                for _ in 0..3 {
                    match uploads.complete(&ticket.id).await {
                        Err(error) if error.status() == 503 => {}
                        _ => break,
                    }
                }
            }));
            recovers(&world, &ticket, is_good);
        });
    }
}

// Guarantee: valet_key 7.
#[test]
fn futures_of_uploads_that_are_dropped_at_any_await_leave_one_accepted_object_or_none() {
    for is_good in [true, false] {
        let (world, ticket) = uploaded(is_good);
        let slow = ScriptedPort::new(&world.clock);
        slow.by(|_| PortAnswer::pass().request_takes(S(1)).answer_takes(S(1)));
        world.port.by(|_| PortAnswer::pass().request_takes(S(1)).answer_takes(S(1)));
        let bucket = world.bucket.behind(|gate| slow.store(gate));
        let uploads = world.on(&bucket, world.store.clone());
        let ended = Cell::new(0);
        let completed = || async {
            let result = uploads.complete(&ticket.id).await;
            // Each drop leaves a copy, and there are at most 100.
            let is_end = matches!(result, Ok(_) | Err(UploadError::Rejected { .. }));
            ended.set(ended.get() + u32::from(is_end));
        };
        let polls = drop_at_every_await(&world.time, completed, |_| {
            assert!(world.bucket.accepted().iter().all(|(_, bytes)| bytes == SCAN || bytes == SCAM));
        });
        assert!(polls > 5 && ended.get() == 1, "{polls}");
        drop_at_every_await(&world.time, || uploads.begin("t8", scan()), |_| {});
        world.port.by(|_| PortAnswer::pass());
        world.time.advance(S(900 + 3600 + 1));
        world.sweep_for(S(1));
        recovers(&world, &ticket, is_good);
    }
}

/// Runs completions of one upload in some processes, with delays from a seed.
fn race(seed: u64) {
    let entropy = Entropy::from_seed(seed);
    let (world, ticket) = uploaded(entropy.up_to(3) > 0);
    let is_good = world.bucket.all().values().any(|bytes| bytes == SCAN);
    let delays = move |entropy: Entropy| {
        move |_: &steadfast::testing::PortCall| {
            let millis = |entropy: &Entropy| Duration::from_millis(entropy.up_to(9));
            PortAnswer::pass().request_takes(millis(&entropy)).answer_takes(millis(&entropy))
        }
    };
    let slow = ScriptedPort::new(&world.clock);
    slow.by(delays(Entropy::from_seed(entropy.next_u64())));
    world.port.by(delays(Entropy::from_seed(entropy.next_u64())));
    // The client writes again while they run; the URL binds nothing.
    let (client, mut after) = (ticket.clone(), entropy.up_to(25));
    world.bucket.on_request(move |_, bucket| {
        after = after.wrapping_sub(1);
        if after == 0 {
            let _ = bucket.upload(&client, if is_good { SCAM } else { SCAN });
        }
    });
    let processes: Vec<_> = (0..2 + entropy.up_to(2))
        .map(|_| world.on(&world.bucket.behind(|gate| slow.store(gate)), world.store.clone()))
        .collect();
    let mut events: Vec<_> = processes.iter().map(|uploads| uploads.events()).collect();
    let calls = processes.iter().map(|uploads| uploads.complete(&ticket.id));
    let results = world.time.block_on(futures::future::join_all(calls));
    let first = format!("{:?}", results[0]);
    assert!(results.iter().all(|result| format!("{result:?}") == first), "{results:?}");
    assert_eq!(events.iter_mut().map(|events| told(events).len()).sum::<usize>(), 1, "one result is one event");
    match &results[0] {
        Ok(accepted) => assert_eq!(world.bucket.accepted(), [(accepted.path.clone(), SCAN.to_vec())]),
        Err(error) => {
            assert_eq!(rejected(Err(error.clone())), RejectReason::Digest);
            assert!(world.bucket.accepted().is_empty());
        }
    }
    world.port.by(|_| PortAnswer::pass());
    world.time.advance(S(900 + 3600 + 1));
    world.sweep_for(S(1));
    assert_eq!(world.bucket.all().len(), usize::from(results[0].is_ok()));
}

// Guarantee: valet_key 7.
#[test]
fn parallel_completions_have_one_result_in_500_schedules() {
    for seed in 0..500 {
        let raced = std::panic::catch_unwind(|| race(seed));
        assert!(raced.is_ok(), "seed {seed}");
    }
}

// Guarantee: valet_key 7.
#[test]
fn a_copy_that_is_made_after_the_end_is_deleted_by_its_completion() {
    let (world, ticket) = uploaded(true);
    let late = ScriptedPort::new(&world.clock);
    // Its third request to the gate of the bucket is the one before the copy.
    late.by(|call| if call.number == 3 { PortAnswer::pass().held() } else { PortAnswer::pass() });
    let slow = world.on(&world.bucket.behind(|gate| late.store(gate)), world.store.clone());
    let fast = world.uploads();
    let (one, other) = world.time.block_on(async {
        let overtakes = async {
            let accepted = fast.complete(&ticket.id).await;
            // The URL of this store writes again.
            world.bucket.upload(&ticket, SCAM).unwrap();
            late.release();
            accepted
        };
        futures::join!(slow.complete(&ticket.id), overtakes)
    });
    let accepted = one.unwrap();
    assert_eq!(accepted, other.unwrap());
    assert_eq!(world.bucket.accepted(), [(accepted.path, SCAN.to_vec())]);
}
