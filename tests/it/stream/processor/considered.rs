//! The considerations of a stream (`docs/considerations.md`), as far as no other test shows a point.
use std::{
    future::pending,
    sync::{Arc, Mutex},
};

use steadfast::{
    port::FencingToken,
    store::{Precondition, PutOptions, Scan, Store, StoreError, Write},
    stream::{Delivered, Position},
    work::EventDisposition,
};

use super::world::{S, World, numbered};

const EFFECTS: &str = "effects";

/// Writes the effect of an event once, under the token of its owner.
async fn write_effect(store: &dyn Store, position: Position, token: FencingToken) -> Result<(), StoreError> {
    let effect = Write::put(format!("done/{position}"), position.to_string(), Precondition::Absent);
    let fence = Write::put("owner", "", PutOptions::new().fence(token));
    store.batch(EFFECTS, vec![fence, effect]).await.map(drop)
}

/// 7 (default): the position identifies an event that runs again, and the token fences an earlier owner.
#[test]
fn an_event_that_runs_again_is_recognised_by_its_position_and_its_earlier_owner_is_fenced() {
    let world = World::new(1);
    world.topic.add(0, numbered("", 1..4));
    let (late, repeated) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(Vec::new())));
    // It writes the effect of the first event, and dies before its write for the second one, without a checkpoint.
    let (store, noted) = (world.store.clone(), late.clone());
    world.start_as("a", World::quick().max_in_flight(1).checkpoint_interval(S(3600)), move |event: Arc<Delivered>| {
        let (store, noted) = (store.clone(), noted.clone());
        async move {
            if event.position.offset == 2 {
                *noted.lock().unwrap() = Some((event.position, event.token()));
                pending::<()>().await;
            }
            write_effect(&*store, event.position, event.token()).await.unwrap();
            EventDisposition::Complete
        }
    });
    world.pass_until(S(20), || late.lock().unwrap().is_some());
    world.kill("a");
    let (store, noted) = (world.store.clone(), repeated.clone());
    world.start_as("b", World::quick(), move |event: Arc<Delivered>| {
        let (store, noted) = (store.clone(), noted.clone());
        async move {
            match write_effect(&*store, event.position, event.token()).await {
                Ok(()) => {}
                // The effect is there.
                Err(StoreError::Conflict { write: 1, .. }) => noted.lock().unwrap().push(event.position.offset),
                Err(error) => panic!("{error}"),
            }
            EventDisposition::Complete
        }
    });
    world.pass_until(S(60), || world.watermark(0) == 3);
    assert_eq!(world.texts(), ["1", "2", "1", "2", "3"]);
    assert_eq!(*repeated.lock().unwrap(), [1]);
    // The write of the first owner, which was on its way when it died, arrives now.
    let (position, token) = late.lock().unwrap().unwrap();
    let arrives = world.time.block_on(write_effect(&*world.store, position, token));
    assert!(matches!(arrives, Err(StoreError::Fenced { write: 0, .. })), "{arrives:?}");
    let effects = world.time.block_on(world.store.scan(&Scan::partition(EFFECTS))).unwrap();
    assert_eq!(effects.rows.iter().filter(|row| row.row.starts_with("done/")).count(), 3);
}

/// The levels and messages that a subscriber received from streams.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(tracing::Level, String)>>>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        if event.metadata().target() != "steadfast::stream" {
            return;
        }
        let mut message = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            if field.name() == "message" {
                message = format!("{value:?}");
            }
        });
        self.0.lock().unwrap().push((*event.metadata().level(), message));
    }
}

/// 10 (warning): work that fails for good is an event at the level of a warning or an error.
#[test]
fn work_that_fails_for_good_is_told_at_the_levels_of_warnings_and_errors() {
    use tracing_subscriber::layer::SubscriberExt as _;
    let lines = Lines::default();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(lines.clone()), || {
        let world = World::new(1);
        world.topic.add(0, numbered("", 1..4));
        let config = World::quick().max_deliveries(2);
        // An attempt that fails and is repeated raises no alarm.
        world.start_as("m", config, |event: Arc<Delivered>| async move {
            if event.position.offset == 2 && event.attempt() == 1 {
                EventDisposition::retry("away for a moment")
            } else {
                EventDisposition::Complete
            }
        });
        world.pass(S(5));
        let alarms = |level: tracing::Level| {
            let lines = lines.0.lock().unwrap();
            lines.iter().filter(|line| line.0 == level).map(|line| line.1.clone()).collect::<Vec<_>>()
        };
        assert_eq!((alarms(tracing::Level::WARN), alarms(tracing::Level::ERROR)), (vec![], vec![]));
        world.stop("m");
        world.pass(S(2));
        world.topic.add(0, numbered("", 4..6));
        world.start_as("m", config, |event: Arc<Delivered>| async move {
            if event.position.offset == 4 {
                EventDisposition::retry("no such tenant")
            } else {
                EventDisposition::Complete
            }
        });
        world.pass(S(5));
        assert_eq!(
            (alarms(tracing::Level::WARN), alarms(tracing::Level::ERROR)),
            (vec!["dead-lettered".to_owned()], vec![])
        );
        // The topic loses events before they were processed: its partition halts.
        world.stop("m");
        world.pass(S(2));
        world.topic.add(0, numbered("", 6..12));
        world.time.block_on(steadfast::stream::Topic::trim(&*world.topic, 0, 9)).unwrap();
        world.start_as("m", config, |_| super::world::complete());
        world.pass(S(5));
        assert_eq!(alarms(tracing::Level::ERROR), ["halted: needs an operator"]);
    });
}
