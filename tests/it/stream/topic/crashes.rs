//! A process that appends and trims, and crashes at any request to the store.
use std::{cell::Cell, sync::Arc};

use steadfast::{
    stream::{Bounds, Event, Read, StoreTopic, Topic},
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
};

use crate::engines::Engine;

fn request(name: &str) -> Vec<Event> {
    (0..3).map(|n| Event::new(format!("{name}.{n}")).id(format!("{name}.{n}"))).collect()
}

/// Appends, trims and appends; then another process appends what was not accepted.
fn test(engine: Engine, process: &CrashingProcess) {
    let world = engine.world();
    let (clock, store) = (world.clock.clone(), world.store.clone());
    let accepted = Cell::new(0);
    let crashing = process.store(store.clone());
    world.run(process.run(async {
        let topic = loop {
            let opened = StoreTopic::builder(crashing.clone(), "t", 2).clock(&clock).build().await;
            if let Ok(topic) = opened {
                break topic;
            }
        };
        for name in ["a", "b", "c"] {
            while topic.append(0, request(name)).await.is_err() {}
            accepted.set(accepted.get() + 1);
            if name == "b" {
                while topic.trim(0, 3).await.is_err() {}
            }
        }
    }));
    world.run(async {
        let topic = StoreTopic::builder(store.clone(), "t", 2).clock(&clock).build().await.unwrap();
        let bounds = topic.bounds(0).await.unwrap();
        assert!(bounds.next > accepted.get() * 3, "an accepted event is missing: {bounds:?}");
        // Requests are there as a whole.
        assert_eq!((bounds.next - 1) % 3, 0, "{bounds:?}");
        for name in ["a", "b", "c"] {
            topic.append(0, request(name)).await.unwrap();
        }
        assert_eq!(topic.bounds(0).await.unwrap(), Bounds::new(bounds.first, 10));
        topic.trim(0, 3).await.unwrap();
        let all = topic.read(0, Read::from(1)).await.unwrap();
        let all: Vec<_> = all.into_iter().map(|recorded| (recorded.position.offset, recorded.event.body)).collect();
        let expected = ["a", "b", "c"].iter().flat_map(|name| request(name)).map(|event| event.body);
        let expected: Vec<_> = (1..).zip(expected).skip(2).collect();
        assert_eq!(all, expected);
    });
}

// Guarantee: stream 16.
#[test]
fn appends_of_a_process_that_crashes_at_any_request_are_whole_and_none_is_doubled() {
    for engine in Engine::ALL {
        assert!(crash_at_every_write(|process| test(engine, process)) >= 7);
    }
}

// Guarantee: stream 16.
#[test]
fn appends_whose_requests_fail_are_whole_and_none_is_doubled() {
    for engine in Engine::ALL {
        fail_at_every_write(|process| test(engine, process));
    }
}

// Guarantee: stream 16.
#[test]
fn an_append_without_ids_is_applied_once_whichever_reply_is_lost() {
    fail_at_every_write(|process| {
        let world = Engine::Memory.world();
        let (clock, store) = (world.clock.clone(), world.store.clone());
        let failing = process.store(store.clone());
        let accepted = world.run(process.run(async {
            let topic = StoreTopic::builder(failing, "t", 1).clock(&clock).build().await?;
            let mut accepted = Vec::new();
            for n in 0..3 {
                // A failure without an effect may be repeated.
                while let Err(error) = topic.append(0, vec![Event::new(n.to_string())]).await {
                    assert!(!error.may_have_been_applied(), "the topic learns the outcome: {error}");
                }
                accepted.push(n.to_string());
            }
            Ok::<_, steadfast::port::PortError>(accepted)
        }));
        let Some(Ok(accepted)) = accepted else { return };
        world.run(async {
            let topic = StoreTopic::builder(Arc::clone(&store), "t", 1).clock(&clock).build().await.unwrap();
            let all = topic.read(0, Read::from(1)).await.unwrap();
            let all: Vec<_> = all.iter().map(|recorded| String::from_utf8_lossy(&recorded.event.body)).collect();
            assert_eq!(all, accepted);
        });
    });
}
