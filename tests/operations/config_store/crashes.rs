//! Crashes at each request: of a publisher, and of a process on trial.
use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use steadfast::{
    config_store::{
        ConfigPublisher, ConfigStore, ConfigStoreConfig, ConfigStoreEvent, PublisherConfig, RejectReason, Veto,
    },
    entropy::Entropy,
    observe::Event,
    store::{InMemoryStore, Store},
    testing::{crash_at_every_write, drop_at_every_await, fail_at_every_write},
};

use super::{Disk, Parses, both, builder, now, publisher};
use crate::{
    engines::Engine,
    moody_store::{Mode, Moody},
    world::{MS, S, World},
};

// Guarantee: config_store 1.
#[test]
fn a_publisher_that_crashes_at_any_request_has_published_as_a_whole_or_not_at_all() {
    for engine in Engine::ALL {
        let requests = crash_at_every_write(|process| {
            let engine = engine.world();
            let (world, parses) = (World::at(&engine.time), Parses::default());
            let good = publisher(&world, &engine.store, 1);
            now(&world, good.publish(both(1))).unwrap();
            now(&world, good.publish(both(2))).unwrap();
            let crashes = publisher(&world, &process.store(engine.store.clone()), 2);
            let work = async {
                crashes.publish(both(3)).await.unwrap();
                crashes.rollback(1, "ada", "no").await.unwrap();
            };
            let _ = world.run(S(60), process.run(work));
            let head = now(&world, good.head()).unwrap();
            let settings = now(&world, builder(&world, &engine.store, &parses).build()).unwrap();
            let current = settings.current();
            assert_eq!(current.number(), head);
            assert!(matches!((head, current.org), (2, 2) | (3, 3) | (4, 1)), "{head} {}", current.org);
            assert_eq!(current.org, current.billing);
            // Another one goes on.
            assert_eq!(now(&world, good.publish(both(9))).unwrap(), head + 1);
            assert_eq!(now(&world, settings.refresh()).unwrap(), head + 1);
        });
        assert!(requests >= 8, "{requests}");
    }
}

// Guarantee: config_store 1.
#[test]
fn a_publisher_that_repeats_what_failed_has_its_change_once() {
    let requests = fail_at_every_write(|process| {
        let world = World::new();
        let store: Arc<dyn Store> = Arc::new(InMemoryStore::builder().clock(&world.clock).build());
        now(&world, publisher(&world, &store, 1).publish(both(1))).unwrap();
        let fails = publisher(&world, &process.store(store.clone()), 2);
        let work = async {
            // Whoever expects a number finds out: either it was published, or nothing was.
            while let Err(error) = fails.publish(both(2).expecting(1)).await {
                if let steadfast::config_store::PublishError::Superseded { current, .. } = error {
                    assert_eq!(current, 2);
                    break;
                }
            }
        };
        world.run(S(60), process.run(work)).unwrap();
        let publisher = publisher(&world, &store, 3);
        assert_eq!(now(&world, publisher.head()).unwrap(), 2);
        assert_eq!(now(&world, publisher.audit(9)).unwrap().len(), 2);
    });
    assert!(requests >= 4, "{requests}");
}

// Guarantee: config_store 5.
#[test]
fn a_process_that_crashes_at_any_request_of_a_trial_starts_with_a_good_revision_in_the_end() {
    for engine in Engine::ALL {
        let requests = crash_at_every_write(|process| {
            let (shared, own) = (engine.world(), Parses::default());
            let world = World::at(&shared.time);
            let local: Arc<dyn Store> = match engine {
                Engine::Memory => Arc::new(Disk(Arc::new(InMemoryStore::builder().clock(&world.clock).build()))),
                Engine::Sqlite => shared.store.clone(),
            };
            let publisher = publisher(&world, &shared.store, 1);
            let config = || ConfigStoreConfig::default().trial(S(10));
            let has_passed = Arc::new(AtomicBool::new(false));
            let build = |store: Arc<dyn Store>, local: Arc<dyn Store>| {
                let built = ConfigStore::builder(store, "shop", own.load(), config()).layers(["org", "billing"]);
                let passed = has_passed.clone();
                let built = built.on_event(move |event: &Event<ConfigStoreEvent>| {
                    passed.fetch_or(event.what == ConfigStoreEvent::TrialPassed { number: 1 }, SeqCst);
                });
                built.local(local).clock(&world.clock).entropy(&Entropy::from_seed(3)).build()
            };
            now(&world, publisher.publish(both(1))).unwrap();
            // The process starts, passes its trial, and takes the next revision.
            let life = async {
                let settings = build(process.store(shared.store.clone()), process.store(local.clone())).await.unwrap();
                let script = async {
                    world.clock.sleep(S(15)).await;
                    publisher.publish(both(2)).await.unwrap();
                    world.clock.sleep(S(36)).await;
                };
                let run = settings.run(pending(), |_| async { Ok::<_, Veto>(()) });
                futures::future::select(Box::pin(script), Box::pin(run)).await;
            };
            let _ = world.run(S(60), process.run(life));
            if now(&world, publisher.head()).unwrap() == 1 {
                now(&world, publisher.publish(both(2))).unwrap();
            }
            // From now on it dies whenever it has parsed revision 2.
            let mut deaths = 0;
            let last = loop {
                let settings = now(&world, build(shared.store.clone(), local.clone())).unwrap();
                let dies = settings.current().number() == 2 && settings.state().on_trial == Some(2);
                // A crash before the first revision had passed leaves no good one to start with.
                if !dies || deaths == 5 {
                    break settings;
                }
                deaths += 1;
            };
            match (last.current().number(), last.state().on_trial) {
                (1, None) => {
                    assert_eq!(last.state().rejected, Some((2, RejectReason::Quarantined)));
                    assert!((1..=2).contains(&deaths), "{deaths}");
                }
                (2, Some(2)) => assert!(!has_passed.load(SeqCst)),
                // The second one has passed its trial before the crash.
                (2, None) => assert_eq!(deaths, 0),
                other => panic!("{other:?}"),
            }
        });
        assert!(requests >= 5, "{requests}");
    }
}

// Guarantee: config_store 1.
#[test]
fn a_publisher_dropped_at_every_await_publishes_as_a_whole_or_not_at_all() {
    let world = World::new();
    let moody = Arc::new(Moody::new(&world.clock));
    let store: Arc<dyn Store> = moody.clone();
    let slow = ConfigPublisher::builder(store.clone(), "shop", PublisherConfig::default()).clock(&world.clock).build();
    let slow = slow.unwrap();
    now(&world, slow.publish(both(1))).unwrap();
    moody.is(Mode::Slow(MS(10)));
    let mut number = 1;
    let mut check = |_| {
        let head = now(&world, slow.head()).unwrap();
        assert!(head >= number);
        number = head;
        let documents = now(&world, slow.documents(head)).unwrap();
        assert_eq!(documents.text("org").unwrap(), documents.text("billing").unwrap());
    };
    let mut n = 1;
    let polls = drop_at_every_await(
        &world.time,
        || {
            n += 1;
            slow.publish(both(n))
        },
        &mut check,
    );
    assert!(polls >= 4, "{polls}");
    let polls = drop_at_every_await(&world.time, || slow.rollback(1, "ada", "no"), &mut check);
    assert!(polls >= 4, "{polls}");
    for polls in [
        drop_at_every_await(&world.time, || slow.audit(3), |_| {}),
        drop_at_every_await(&world.time, || slow.documents(1), |_| {}),
        drop_at_every_await(&world.time, || slow.head(), |_| {}),
    ] {
        assert!(polls >= 2, "{polls}");
    }
}
