//! Taking revisions: reads, layers, what is not taken, notices and polls.
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use futures::future::{join_all, pending};
use steadfast::{
    ConfigError,
    config_store::{Change, ConfigStoreConfig, ConfigStoreError, ConfigStoreEvent as Event, RejectReason, Veto},
    notify::{InMemoryNotifier, Notice, NoticeSource, Notices, Notifier},
    port::{BoxFuture, Capabilities, PortErrorKind, PortFuture},
    store::{InMemoryStore, Key, PutOptions, Record, Scan, Store, StoreExt, StoreFuture},
    testing::drop_at_every_await,
};

use super::{Disk, Parses, Told, both, builder, follow, now, publisher};
use crate::{
    moody_store::{Mode, Moody},
    world::{MS, S, World},
};

fn memory(world: &World) -> Arc<dyn Store> {
    Arc::new(InMemoryStore::builder().clock(&world.clock).build())
}

// Guarantee: config_store 2.
#[test]
fn no_read_of_a_hundred_thousand_during_changes_of_two_layers_mixes_moments() {
    let world = World::new();
    let (store, parses) = (memory(&world), Parses::default());
    let publisher = publisher(&world, &store, 1);
    now(&world, publisher.publish(both(1))).unwrap();
    let settings = now(&world, builder(&world, &store, &parses).build()).unwrap();
    let (is_over, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (settings, is_over, reads) = (settings.clone(), is_over.clone(), reads.clone());
            std::thread::spawn(move || {
                let mut seen = BTreeSet::new();
                while !is_over.load(SeqCst) {
                    let now = settings.current();
                    assert_eq!(now.org, now.billing, "revision {} mixes moments", now.number());
                    seen.insert(now.number());
                    reads.fetch_add(1, SeqCst);
                }
                seen.len()
            })
        })
        .collect();
    let mut number = 1;
    while reads.load(SeqCst) < 100_000 || number < 200 {
        number += 1;
        now(&world, publisher.publish(both(number + 1_000))).unwrap();
        now(&world, settings.refresh()).unwrap();
    }
    is_over.store(true, SeqCst);
    let seen: Vec<usize> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
    println!("{} reads during {number} changes; each reader saw {seen:?} revisions", reads.load(SeqCst));
    assert!(seen.iter().all(|seen| *seen > 1));
}

// Guarantee: config_store 2.
#[test]
fn a_revision_that_changes_none_of_the_layers_is_taken_without_parsing() {
    let world = World::new();
    let (store, parses, told) = (memory(&world), Parses::default(), Told::default());
    let publisher = publisher(&world, &store, 1);
    now(&world, publisher.publish(both(1))).unwrap();
    let settings = now(&world, told.by(builder(&world, &store, &parses)).build()).unwrap();
    now(&world, publisher.publish(Change::to("orders", "of another program"))).unwrap();
    assert_eq!(now(&world, settings.refresh()).unwrap(), 2);
    assert_eq!((settings.current().number(), parses.count()), (2, 1));
    assert_eq!(told.take(), [Event::Applied { from: 1, number: 2, is_same: true }]);
    // The loader does not see the documents of others.
    let names = builder(&world, &store, &parses).layers(["org", "orders"]).build();
    let error = now(&world, names).unwrap_err();
    assert!(matches!(error, ConfigStoreError::Rejected { field: Some(field), .. } if field == "billing"));
}

// Guarantee: config_store 3.
#[test]
fn a_revision_that_cannot_be_used_leaves_the_one_before_with_one_event_and_later_ones_apply() {
    let world = World::new();
    let (store, parses, told) = (memory(&world), Parses::default(), Told::default());
    let publisher = publisher(&world, &store, 1);
    now(&world, publisher.publish(both(1))).unwrap();
    let built = told.by(builder(&world, &store, &parses));
    let settings = now(&world, built.build()).unwrap();
    // Changes the stored bytes of the newest revision.
    let damage = |how: &dyn Fn(&mut Vec<u8>)| {
        let rows = now(&world, store.scan_all(Scan::partition("config shop").prefix("rev "))).unwrap();
        let last = rows.last().unwrap();
        let mut bytes = last.value.to_vec();
        how(&mut bytes);
        now(&world, store.put(Key::new("config shop", &last.row), Bytes::from(bytes), PutOptions::new())).unwrap();
    };
    let huge = || both(2).and(Change::to("org", "1".repeat((1 << 20) + 1)));
    let generous = {
        let config = steadfast::config_store::PublisherConfig::default().max_document(2 << 20);
        let built = steadfast::config_store::ConfigPublisher::builder(store.clone(), "shop", config);
        built.clock(&world.clock).build().unwrap()
    };
    type Damage<'a> = Option<&'a dyn Fn(&mut Vec<u8>)>;
    let cases: [(Change, Damage<'_>, RejectReason, Option<&str>); 7] = [
        (both(13), None, RejectReason::Refused, Some("luck")),
        (both(666), None, RejectReason::Panicked, None),
        (both(2).and(Change::to("org", b"\xff\xfe1\x00".to_vec())), None, RejectReason::Refused, Some("org")),
        (huge(), None, RejectReason::TooLarge, Some("org")),
        (both(3), Some(&|bytes| *bytes.last_mut().unwrap() ^= 1), RejectReason::WrongDigest, None),
        (both(4), Some(&|bytes| bytes.truncate(9)), RejectReason::Unreadable, None),
        (both(5), Some(&|bytes| bytes[0] = 9), RejectReason::Unreadable, None),
    ];
    let mut number = 1;
    for (change, harm, reason, field) in cases {
        let good = settings.current().number();
        number = now(&world, generous.publish(change)).unwrap();
        if let Some(harm) = harm {
            damage(harm);
        }
        follow(&world, &settings, S(200));
        assert_eq!((settings.current().number(), settings.current().org), (good, 1));
        assert_eq!(settings.state().rejected, Some((number, reason)));
        let field = field.map(str::to_owned);
        assert_eq!(told.take(), [Event::Rejected { number, reason, field: field.clone() }], "{reason:?}");
        let error = now(&world, settings.refresh()).unwrap_err();
        assert!(matches!(error, ConfigStoreError::Rejected { number: n, .. } if n == number));
        assert!(told.take().is_empty(), "one event for one revision");
        // The next good one applies, though its predecessor cannot be read.
        if harm.is_none() {
            number = now(&world, publisher.publish(both(1).force())).unwrap();
        } else {
            number = now(&world, publisher.rollback(1, "ada", "")).unwrap();
        }
        assert_eq!(now(&world, settings.refresh()).unwrap(), number);
        assert!(matches!(told.take()[..], [Event::Applied { .. }]));
    }
    assert_eq!(number, 15);
}

// Guarantee: config_store 3.
#[test]
fn a_vetoed_revision_is_not_taken_and_not_offered_again() {
    let world = World::new();
    let (store, parses, told) = (memory(&world), Parses::default(), Told::default());
    let publisher = publisher(&world, &store, 1);
    now(&world, publisher.publish(both(1))).unwrap();
    let settings = now(&world, told.by(builder(&world, &store, &parses)).build()).unwrap();
    let offered = Arc::new(Mutex::new(Vec::new()));
    let seen = offered.clone();
    let run = settings.run(pending(), move |next| {
        seen.lock().unwrap().push(next.number());
        async move {
            match next.org {
                2 => Err(Veto::from(ConfigError::new("org", "must not be 2"))),
                3 => Err(Veto::new("no")),
                _ => Ok(()),
            }
        }
    });
    let script = async {
        for number in [2, 3, 4] {
            publisher.publish(both(number)).await.unwrap();
            world.clock.sleep(S(100)).await;
        }
    };
    world.run(S(400), async { futures::join!(run, script) });
    assert_eq!(*offered.lock().unwrap(), [2, 3, 4]);
    let vetoed = |number, field: Option<&str>| Event::Rejected {
        number,
        reason: RejectReason::Vetoed,
        field: field.map(str::to_owned),
    };
    let applied = Event::Applied { from: 1, number: 4, is_same: false };
    assert_eq!(told.take(), [vetoed(2, Some("org")), vetoed(3, None), applied]);
}

// Guarantee: config_store 4.
#[test]
fn a_change_arrives_with_its_notice_or_within_a_poll_and_is_applied_once() {
    let world = World::new();
    let (store, parses) = (memory(&world), Parses::default());
    let notifier: Arc<dyn Notifier> = Arc::new(InMemoryNotifier::new());
    let quiet = publisher(&world, &store, 1);
    let loud = steadfast::config_store::ConfigPublisher::builder(store.clone(), "shop", Default::default());
    let loud = loud.clock(&world.clock).notifier(notifier.clone()).build().unwrap();
    now(&world, quiet.publish(both(1))).unwrap();
    let settings = now(&world, builder(&world, &store, &parses).notifier(notifier).build()).unwrap();
    let applied = Arc::new(Mutex::new(Vec::new()));
    let (seen, clock) = (applied.clone(), world.clock.clone());
    let run = settings.run(pending(), move |next| {
        seen.lock().unwrap().push((next.number(), clock.now()));
        async { Ok::<_, Veto>(()) }
    });
    let script = async {
        world.clock.sleep(S(10)).await;
        let mut sent = Vec::new();
        for number in 2..=9 {
            let publisher = if number % 2 == 0 { &loud } else { &quiet };
            sent.push((number, world.clock.now()));
            publisher.publish(both(number)).await.unwrap();
            world.clock.sleep(S(100)).await;
        }
        sent
    };
    let limited = async { futures::future::select(Box::pin(run), Box::pin(script)).await };
    let sent = match world.run(S(2_000), limited).unwrap() {
        futures::future::Either::Right((sent, _)) => sent,
        futures::future::Either::Left(_) => unreachable!(),
    };
    let applied = applied.lock().unwrap();
    assert_eq!(applied.len(), sent.len());
    for ((number, at), (sent_number, sent_at)) in applied.iter().zip(&sent) {
        assert_eq!(number, sent_number);
        let limit = if number % 2 == 0 { MS(200) } else { S(36) };
        assert!(*at - *sent_at <= limit, "{number}: {:?}", *at - *sent_at);
    }
}

// Guarantee: config_store 4.
#[test]
fn while_the_store_is_away_the_revision_stays_and_its_age_grows() {
    let world = World::new();
    let moody = Arc::new(Moody::new(&world.clock));
    let (store, parses, told): (Arc<dyn Store>, _, _) = (moody.clone(), Parses::default(), Told::default());
    let publisher = publisher(&world, &store, 1);
    now(&world, publisher.publish(both(1))).unwrap();
    let settings = now(&world, told.by(builder(&world, &store, &parses)).build()).unwrap();
    assert_eq!(settings.state().age, Some(S(0)));
    for mode in [Mode::Fails(PortErrorKind::Unavailable), Mode::Hangs] {
        moody.is(mode);
        follow(&world, &settings, S(300));
        assert_eq!(settings.current().number(), 1);
        assert!(settings.state().age.unwrap() >= S(300));
        let failures = told.take();
        assert!(
            failures.len() >= 7 && failures.iter().all(|e| matches!(e, Event::RefreshFailed { .. })),
            "{failures:?}"
        );
        assert!(matches!(now(&world, settings.refresh()), Err(ConfigStoreError::Store(_))));
        told.take();
    }
    moody.is(Mode::Well);
    now(&world, publisher.publish(both(2))).unwrap();
    follow(&world, &settings, S(36));
    assert_eq!(settings.current().number(), 2);
    assert!(settings.state().age.unwrap() <= S(36));
    // Without a local store a start fails.
    moody.is(Mode::Fails(PortErrorKind::Unavailable));
    assert!(matches!(now(&world, builder(&world, &store, &parses).build()), Err(ConfigStoreError::Store(_))));
}

// Guarantee: config_store 4.
#[test]
fn a_head_from_a_backup_is_taken_with_an_event() {
    let world = World::new();
    let (store, parses, told) = (memory(&world), Parses::default(), Told::default());
    let publisher = publisher(&world, &store, 1);
    let key = Key::new("config shop", "head");
    now(&world, publisher.publish(both(1))).unwrap();
    let backup = now(&world, store.get(key)).unwrap().unwrap();
    now(&world, publisher.publish(both(2))).unwrap();
    let settings = now(&world, told.by(builder(&world, &store, &parses)).build()).unwrap();
    now(&world, store.put(key, backup.value, PutOptions::new())).unwrap();
    assert_eq!(now(&world, settings.refresh()).unwrap(), 1);
    assert_eq!(told.take(), [Event::Applied { from: 2, number: 1, is_same: false }]);
    assert_eq!(settings.current().org, 1);
}

// Guarantee: config_store 4.
#[test]
fn a_number_that_is_given_again_after_a_backup_is_another_revision() {
    let world = World::new();
    let (store, parses, told) = (memory(&world), Parses::default(), Told::default());
    let publisher = publisher(&world, &store, 1);
    let key = Key::new("config shop", "head");
    now(&world, publisher.publish(both(1))).unwrap();
    let backup = now(&world, store.get(key)).unwrap().unwrap().value;
    let settings = now(&world, told.by(builder(&world, &store, &parses)).build()).unwrap();
    // The second one runs, or is refused, when the backup is restored and another second one is published.
    for first in [2, 13] {
        assert_eq!(now(&world, publisher.publish(both(first))).unwrap(), 2);
        assert_eq!(now(&world, settings.refresh()).is_ok(), first == 2);
        now(&world, store.put(key, backup.clone(), PutOptions::new())).unwrap();
        assert_eq!(now(&world, publisher.publish(both(5))).unwrap(), 2);
        assert_eq!(now(&world, settings.refresh()).unwrap(), 2);
        assert_eq!(settings.current().org, 5);
        assert!(settings.state().rejected.is_none());
        now(&world, store.put(key, backup.clone(), PutOptions::new())).unwrap();
        assert_eq!(now(&world, settings.refresh()).unwrap(), 1);
    }
}

// Guarantee: config_store 4.
#[test]
fn the_age_grows_while_the_revision_in_effect_is_missing_or_the_head_is_and_events_say_so() {
    let world = World::new();
    let (store, parses, told) = (memory(&world), Parses::default(), Told::default());
    let publisher = publisher(&world, &store, 1);
    now(&world, publisher.publish(both(1))).unwrap();
    let settings = now(&world, told.by(builder(&world, &store, &parses)).build()).unwrap();
    now(&world, publisher.publish(both(2))).unwrap();
    let rows = now(&world, store.scan_all(Scan::partition("config shop").prefix("rev "))).unwrap();
    now(&world, store.delete(Key::new("config shop", &rows[1].row), Default::default())).unwrap();
    for head_is_there in [true, false] {
        follow(&world, &settings, S(300));
        assert!(settings.state().age.unwrap() >= S(300), "{:?}", settings.state());
        let events = told.take();
        assert!(events.len() >= 7 && events.iter().all(|e| *e == Event::RefreshFailed { kind: None }), "{events:?}");
        if head_is_there {
            now(&world, store.delete(Key::new("config shop", "head"), Default::default())).unwrap();
        }
    }
}

// Guarantee: config_store 3.
#[test]
fn the_end_of_one_of_two_runs_lets_no_refresh_past_the_other() {
    let world = World::new();
    let (store, parses) = (memory(&world), Parses::default());
    let publisher = publisher(&world, &store, 1);
    now(&world, publisher.publish(both(1))).unwrap();
    let settings = now(&world, builder(&world, &store, &parses).build()).unwrap();
    let veto = |_| async { Err::<(), _>(Veto::new("no")) };
    let run = |time| Box::pin(settings.run(world.clock.sleep(time), veto));
    let (one, other) = (run(S(5)), run(S(50)));
    let script = async {
        world.clock.sleep(S(6)).await;
        publisher.publish(both(2)).await.unwrap();
        assert!(settings.refresh().await.is_err());
    };
    world.run(S(60), async { futures::join!(one, other, script) }).unwrap();
    assert_eq!(settings.current().number(), 1);
}

// Guarantee: config_store 4.
#[test]
fn a_refresh_beside_a_run_passes_through_its_function_and_ends_with_it() {
    let world = World::new();
    let (store, parses) = (memory(&world), Parses::default());
    let publisher = publisher(&world, &store, 1);
    now(&world, publisher.publish(both(1))).unwrap();
    let settings = now(&world, builder(&world, &store, &parses).build()).unwrap();
    let offered = Arc::new(AtomicU64::new(0));
    let seen = offered.clone();
    let run = settings.run(world.clock.sleep(S(20)), move |_| {
        seen.fetch_add(1, SeqCst);
        async { Ok::<_, Veto>(()) }
    });
    let script = async {
        world.clock.sleep(S(2)).await;
        publisher.publish(both(2)).await.unwrap();
        let numbers = join_all((0..5).map(|_| settings.refresh())).await;
        assert!(numbers.into_iter().all(|number| number.unwrap() == 2));
        assert_eq!(offered.load(SeqCst), 1);
        world.clock.sleep(S(30)).await;
        // The run has ended: the refresh looks itself.
        publisher.publish(both(3)).await.unwrap();
        assert_eq!(settings.refresh().await.unwrap(), 3);
        assert_eq!(offered.load(SeqCst), 1);
    };
    world.run(S(100), async { futures::join!(run, script) }).unwrap();
}

/// A store that counts its reads.
#[derive(Debug)]
struct Reads {
    store: Arc<dyn Store>,
    gets: AtomicU64,
}

impl Store for Reads {
    forward_store! { store: capabilities, put, delete, scan, batch }

    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        self.gets.fetch_add(1, SeqCst);
        self.store.get(key)
    }
}

/// A notifier whose connection breaks whenever it is there again.
#[derive(Debug)]
struct Breaks;

struct Gaps;

impl NoticeSource for Gaps {
    fn recv(&mut self) -> BoxFuture<'_, Notice> {
        Box::pin(async { Notice::Gap })
    }
}

impl Notifier for Breaks {
    fn capabilities(&self) -> Capabilities {
        InMemoryNotifier::new().capabilities()
    }

    fn publish<'a>(&'a self, _: &'a str, _: Bytes) -> PortFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn subscribe<'a>(&'a self, _: &'a str) -> PortFuture<'a, Notices> {
        Box::pin(async { Ok(Notices::new(Gaps)) })
    }
}

#[test]
fn a_connection_that_breaks_repeatedly_causes_no_more_looks_than_twice_the_polls() {
    let world = World::new();
    let counted = Arc::new(Reads { store: memory(&world), gets: AtomicU64::new(0) });
    let (store, parses): (Arc<dyn Store>, _) = (counted.clone(), Parses::default());
    now(&world, publisher(&world, &store, 1).publish(both(1))).unwrap();
    let settings = now(&world, builder(&world, &store, &parses).notifier(Arc::new(Breaks)).build()).unwrap();
    let before = counted.gets.load(SeqCst);
    follow(&world, &settings, S(300));
    let looks = counted.gets.load(SeqCst) - before;
    assert!(looks <= 26, "{looks}");
}

#[test]
fn a_thousand_idle_processes_make_at_most_34_reads_a_second() {
    let world = World::new();
    let counted = Arc::new(Reads { store: memory(&world), gets: AtomicU64::new(0) });
    let (store, parses): (Arc<dyn Store>, _) = (counted.clone(), Parses::default());
    now(&world, publisher(&world, &store, 1).publish(both(1))).unwrap();
    let build = |seed: u64| {
        let entropy = steadfast::entropy::Entropy::from_seed(seed);
        now(&world, builder(&world, &store, &parses).entropy(&entropy).build()).unwrap()
    };
    let all: Vec<_> = (0..1_000).map(build).collect();
    let runs = || join_all(all.iter().map(|settings| settings.run(pending(), |_| async { Ok::<_, Veto>(()) })));
    let (mut began, clock) = (0, world.clock.clone());
    let script = async {
        // The first look of each is its start.
        clock.sleep(S(60)).await;
        began = counted.gets.load(SeqCst);
        clock.sleep(S(300)).await;
    };
    world.run(S(400), async { futures::future::select(Box::pin(script), Box::pin(runs())).await });
    let reads = counted.gets.load(SeqCst) - began;
    println!("{} reads a second", reads as f64 / 300.0);
    assert!(reads as f64 / 300.0 <= 34.0, "{reads}");
}

#[test]
fn a_run_and_a_refresh_dropped_at_every_await_leave_a_whole_revision() {
    let world = World::new();
    let moody = Arc::new(Moody::new(&world.clock));
    let (store, parses): (Arc<dyn Store>, _) = (moody.clone(), Parses::default());
    let publisher = publisher(&world, &store, 1);
    now(&world, publisher.publish(both(1))).unwrap();
    let local = Arc::new(Disk(memory(&world)));
    let config = ConfigStoreConfig::default().trial(S(5));
    let built = steadfast::config_store::ConfigStore::builder(store.clone(), "shop", parses.load(), config);
    let built = built.layers(["org", "billing"]).local(local).clock(&world.clock).build();
    let settings = now(&world, built).unwrap();
    moody.is(Mode::Slow(MS(10)));
    let number = std::cell::Cell::new(1);
    let next = || {
        number.set(number.get() + 1);
        now(&world, publisher.publish(both(number.get()))).unwrap();
    };
    let is_whole = |_| {
        let now = settings.current();
        assert!(now.org == now.billing && now.org == now.number() && now.number() <= number.get());
    };
    let polls = drop_at_every_await(
        &world.time,
        || {
            next();
            settings.refresh()
        },
        is_whole,
    );
    assert!(polls >= 2, "{polls}");
    assert_eq!(settings.current().number(), number.get());
    let polls = drop_at_every_await(
        &world.time,
        || {
            next();
            settings.run(world.clock.sleep(S(8)), |_| async {
                world.clock.sleep(MS(10)).await;
                Ok::<_, Veto>(())
            })
        },
        is_whole,
    );
    assert!(polls >= 4, "{polls}");
    assert_eq!(settings.current().number(), number.get());
    let build = || builder(&world, &store, &parses).build();
    assert!(drop_at_every_await(&world.time, build, |_| {}) >= 2);
}
