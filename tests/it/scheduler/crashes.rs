//! A process that submits and runs an order, and crashes at any request to the queue or the store.
use std::{collections::BTreeSet, time::Duration};

use steadfast::{
    entropy::Entropy,
    saga::SagaPhase,
    scheduler::{Scheduler, Submission},
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
};

use crate::{
    engines::Engine,
    saga::world::{Answer, S, State},
    scheduler::world::{World, order},
};

fn submission() -> Submission<State> {
    order("42").reply_to("web-1", "request-7")
}

fn test(engine: Engine, fails: bool, process: &CrashingProcess) {
    let world = World::on(engine);
    if fails {
        world.saga.services.answer("room", vec![Answer::Failed; 2]);
    }
    let (store, queue) = (process.store(world.saga.store.clone()), process.queue(world.queue.clone()));
    // One task, so that no poll runs beside a saga.
    let saga = world.process_on("a", world.saga.trip(), store, queue.clone()).saga().clone();
    let replies = world.replies.clone();
    let crashes = Scheduler::builder(saga, queue, World::config().concurrency(1))
        .clock(&world.clock)
        .entropy(&Entropy::from_seed(8))
        .replies(move |_| Some(replies.clone()))
        .build()
        .unwrap();
    let submitted = std::cell::Cell::new(false);
    world.block_on(process.run(async {
        while crashes.submit(submission()).await.is_err() {}
        submitted.set(true);
        let done = async {
            // Long enough for a saga whose requests fail for a while, and over before a poll of the empty queue.
            for _ in 0..60_000 {
                if world.replies.depth().await.unwrap().total() >= 2 {
                    break;
                }
                world.clock.sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = crashes.run(done).await;
    }));
    let other = world.process("b", world.saga.trip());
    if !submitted.get() {
        world.submit(&other, submission());
    }
    world.run(&[&other], S(200));
    let status = world.block_on(other.read("42")).unwrap().unwrap();
    assert_eq!(status.phase, if fails { SagaPhase::Compensated } else { SagaPhase::Completed });
    let told: BTreeSet<_> = world.told().into_iter().collect();
    let end = if fails { "request-7 compensated" } else { "request-7 completed" };
    assert_eq!(told.into_iter().collect::<Vec<_>>(), [end, "request-7 received"]);
    assert_eq!(world.depths(), (0, 0));
}

// Guarantee: scheduler 1, 7.
#[test]
fn an_order_whose_process_crashes_at_any_request_ends_and_is_replied_to() {
    for engine in Engine::ALL {
        for fails in [false, true] {
            let requests = crash_at_every_write(|process| test(engine, fails, process));
            // Submission, delivery, look, start, steps, status, completion; polls.
            assert!(requests >= 8, "{requests}");
        }
    }
}

// Guarantee: scheduler 1, 7.
#[test]
fn an_order_ends_and_is_replied_to_whichever_request_fails() {
    for fails in [false, true] {
        fail_at_every_write(|process| test(Engine::Memory, fails, process));
    }
}
