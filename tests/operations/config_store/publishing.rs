//! Publishing, rolling back, and the audit.
use std::{
    error::Error as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use steadfast::{
    ConfigError,
    config_store::{
        Change, ConfigPublisher, ConfigStore, ConfigStoreConfig, OnStartFailure, PublishError, PublisherConfig,
    },
    port::{Capability, Failure as _},
    store::{InMemoryStore, Key, Page, PutOptions, Scan, Store, StoreExt, StoreFuture, Version},
    time::Timestamp,
};

use super::{Parses, both, builder, load, now, publisher};
use crate::{
    engines::Engine,
    moody_store::{Mode, Moody},
    world::{MS, S, World},
};

fn memory(world: &World) -> Arc<dyn Store> {
    Arc::new(InMemoryStore::builder().clock(&world.clock).build())
}

// Guarantee: config_store 1.
#[test]
fn a_change_that_one_of_the_readers_refuses_is_not_published_and_the_error_names_reader_and_field() {
    let world = World::new();
    let store = memory(&world);
    let publisher = ConfigPublisher::builder(store.clone(), "shop", PublisherConfig::default())
        .reader(["org"], |d| d.text("org").map(drop))
        .reader(["org", "billing"], load)
        .clock(&world.clock)
        .build()
        .unwrap();
    let refused = |change: Change| match now(&world, publisher.publish(change)).unwrap_err() {
        error @ PublishError::Invalid { .. } => {
            let PublishError::Invalid { reader, field, source } = error.clone() else { unreachable!() };
            (error.to_string(), reader, field, source.map(|source| source.to_string()), error.source().is_some())
        }
        other => panic!("{other}"),
    };
    let (text, reader, field, source, has_source) = refused(both(13));
    assert_eq!((reader.as_str(), field.as_deref(), has_source), ("org, billing", Some("luck"), true));
    assert_eq!(source.as_deref(), Some("invalid `luck`: must not be 13"));
    assert!(!text.contains("13"), "{text}");
    // A document that is missing, or is no text, is named; a panic is a refusal.
    let (_, _, field, ..) = refused(Change::to("org", "1"));
    assert_eq!(field.as_deref(), Some("billing"));
    let (_, _, field, ..) = refused(both(1).and(Change::to("billing", b"\xff\xfe1\x00".to_vec())));
    assert_eq!(field.as_deref(), Some("billing"));
    let (_, _, field, source, _) = refused(both(666));
    assert_eq!((field, source), (None, None));
    assert_eq!(now(&world, publisher.head()).unwrap(), 0);
    assert_eq!(now(&world, publisher.publish(both(1))).unwrap(), 1);
    let rows = now(&world, store.scan_all(Scan::partition("config shop"))).unwrap();
    assert_eq!(rows.len(), 2, "the head and one revision");
}

// Guarantee: config_store 1.
#[test]
fn of_two_publishers_that_expect_one_number_one_wins_and_without_an_expectation_both_do() {
    for engine in Engine::ALL {
        let engine = engine.world();
        let world = World::at(&engine.time);
        let (one, other) = (publisher(&world, &engine.store, 1), publisher(&world, &engine.store, 2));
        assert_eq!(now(&world, one.publish(both(1))).unwrap(), 1);
        let both_at_once =
            async { futures::join!(one.publish(both(2).expecting(1)), other.publish(both(3).expecting(1))) };
        let results = now(&world, both_at_once);
        let [won, lost] = if results.0.is_ok() { [results.0, results.1] } else { [results.1, results.0] };
        assert_eq!(won.unwrap(), 2);
        assert!(matches!(lost, Err(PublishError::Superseded { expected: 1, current: 2 })), "{lost:?}");
        let all = async { futures::join!(one.publish(both(4)), other.publish(both(5))) };
        let (a, b) = now(&world, all);
        let mut numbers = [a.unwrap(), b.unwrap()];
        numbers.sort_unstable();
        assert_eq!(numbers, [3, 4]);
    }
}

#[test]
fn a_change_without_effect_and_one_that_is_too_large_are_refused() {
    let world = World::new();
    let store = memory(&world);
    let config = PublisherConfig::default().max_document(10);
    let publisher = ConfigPublisher::builder(store, "shop", config).clock(&world.clock).build().unwrap();
    now(&world, publisher.publish(both(1))).unwrap();
    assert!(matches!(now(&world, publisher.publish(both(1))), Err(PublishError::Unchanged)));
    assert_eq!(now(&world, publisher.publish(both(1).force())).unwrap(), 2);
    let error = now(&world, publisher.publish(Change::to("org", "12345678901"))).unwrap_err();
    assert_eq!(error.to_string(), "invalid `org`: must have at most 10 bytes");
    let error = now(&world, publisher.publish(both(2).by("a".repeat(1_025)))).unwrap_err();
    assert!(error.to_string().contains("author"));
    let error = now(&world, publisher.publish(Change::to("", "1"))).unwrap_err();
    assert!(error.to_string().contains("document"));
    now(&world, publisher.publish(Change::remove("org"))).unwrap();
    let names = now(&world, publisher.documents(3)).unwrap();
    assert_eq!(names.names().collect::<Vec<_>>(), ["billing"]);
}

// Guarantee: config_store 1.
#[test]
fn of_two_publishers_that_have_read_one_head_one_wins_and_the_row_of_the_other_is_discarded() {
    let world = World::new();
    let moody = Arc::new(Moody::new(&world.clock));
    let store: Arc<dyn Store> = moody.clone();
    let (one, other) = (publisher(&world, &store, 1), publisher(&world, &store, 2));
    now(&world, one.publish(both(1))).unwrap();
    moody.is(Mode::Slow(MS(10)));
    let results = async { futures::join!(one.publish(both(2).expecting(1)), other.publish(both(3).expecting(1))) };
    let (a, b) = now(&world, results);
    assert_eq!([&a, &b].iter().filter(|result| matches!(result, Ok(2))).count(), 1, "{a:?} {b:?}");
    let is_superseded = |e: &PublishError| matches!(e, PublishError::Superseded { expected: 1, current: 2 });
    assert!(a.err().or(b.err()).is_some_and(|error| is_superseded(&error)));
    let (a, b) = now(&world, async { futures::join!(one.publish(both(4)), other.publish(both(5))) });
    let mut numbers = [a.unwrap(), b.unwrap()];
    numbers.sort_unstable();
    assert_eq!(numbers, [3, 4]);
    let rows = now(&world, store.scan_all(Scan::partition("config shop").prefix("rev "))).unwrap();
    assert_eq!(rows.len(), 4);
}

// Guarantee: config_store 1.
#[test]
fn changes_that_are_joined_keep_what_each_expects_and_says() {
    let world = World::new();
    let publisher = publisher(&world, &memory(&world), 1);
    let change = |number: &str| Change::to("org", number.to_owned());
    now(&world, publisher.publish(change("1").and(Change::to("billing", "1").by("ada").because("launch")))).unwrap();
    let audit = now(&world, publisher.audit(1)).unwrap();
    assert_eq!((audit[0].author.as_str(), audit[0].reason.as_str()), ("ada", "launch"));
    let error = now(&world, publisher.publish(change("2").and(Change::remove("billing").expecting(9)))).unwrap_err();
    assert!(matches!(error, PublishError::Superseded { expected: 9, current: 1 }), "{error}");
    let torn = change("2").expecting(1).and(Change::remove("billing").expecting(2));
    let error = now(&world, publisher.publish(torn)).unwrap_err();
    assert!(matches!(&error, PublishError::Change(error) if error.field() == "expecting"), "{error}");
    let forced = change("1").expecting(1).and(Change::to("billing", "1").force());
    assert_eq!(now(&world, publisher.publish(forced)).unwrap(), 2);
}

/// A store that counts the bytes that its scans return, and fails after it has written some rows.
#[derive(Debug)]
struct Watched {
    store: Arc<dyn Store>,
    scanned: AtomicU64,
    /// Rows whose puts are applied, and never answered.
    silent: Mutex<Option<&'static str>>,
}

impl Watched {
    fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { store, scanned: AtomicU64::new(0), silent: Mutex::new(None) })
    }
}

impl Store for Watched {
    forward_store! { store: capabilities, get, delete, batch }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        let is_silent = self.silent.lock().unwrap().take_if(|rows| key.row.starts_with(*rows)).is_some();
        Box::pin(async move {
            let written = self.store.put(key, value, options).await;
            if is_silent {
                std::future::pending::<()>().await;
            }
            written
        })
    }

    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        Box::pin(async move {
            let page = self.store.scan(scan).await?;
            let bytes: usize = page.rows.iter().map(|row| row.value.len()).sum();
            self.scanned.fetch_add(bytes as u64, SeqCst);
            Ok(page)
        })
    }
}

// Guarantee: config_store 6.
#[test]
fn a_publication_reads_nothing_of_the_history() {
    let world = World::new();
    let watched = Watched::new(memory(&world));
    let store: Arc<dyn Store> = watched.clone();
    let config = PublisherConfig::default().history(10);
    let publisher = ConfigPublisher::builder(store.clone(), "shop", config).clock(&world.clock).build().unwrap();
    for number in 1..=50 {
        now(&world, publisher.publish(Change::to("org", format!("{number}{}", "x".repeat(10_000))))).unwrap();
    }
    assert_eq!(watched.scanned.load(SeqCst), 0);
    let rows = now(&world, store.scan_all(Scan::partition("config shop").prefix("rev "))).unwrap();
    assert_eq!(rows.len(), 10);
}

// Guarantee: config_store 1.
#[test]
fn a_publication_whose_reply_was_lost_is_found_behind_a_later_one() {
    let world = World::new();
    let watched = Watched::new(memory(&world));
    let (shared, store): (_, Arc<dyn Store>) = (watched.store.clone(), watched.clone());
    let (one, other) = (publisher(&world, &store, 1), publisher(&world, &shared, 2));
    now(&world, one.publish(both(1))).unwrap();
    *watched.silent.lock().unwrap() = Some("head");
    let later = async {
        world.clock.sleep(S(1)).await;
        other.publish(both(3).expecting(2)).await
    };
    let (ours, later) = now(&world, async { futures::join!(one.publish(both(2).expecting(1)), later) });
    assert_eq!((ours.unwrap(), later.unwrap()), (2, 3));
}

// Guarantee: config_store 1.
#[test]
fn a_failure_before_the_head_is_moved_leaves_nothing_open() {
    let world = World::new();
    let watched = Watched::new(memory(&world));
    let store: Arc<dyn Store> = watched.clone();
    let one = publisher(&world, &store, 1);
    now(&world, one.publish(both(1))).unwrap();
    *watched.silent.lock().unwrap() = Some("rev");
    let error = now(&world, one.publish(both(2))).unwrap_err();
    assert!(matches!(&error, PublishError::Store(error) if !error.may_have_been_applied()), "{error}");
    let moody = Arc::new(Moody::new(&world.clock));
    let hangs = publisher(&world, &(moody.clone() as Arc<dyn Store>), 1);
    moody.is(Mode::Hangs);
    let error = now(&world, hangs.publish(both(2))).unwrap_err();
    assert!(matches!(&error, PublishError::Store(error) if !error.may_have_been_applied()), "{error}");
}

// Guarantee: config_store 7.
#[test]
fn the_debug_form_of_an_error_of_a_publisher_has_no_value() {
    let world = World::new();
    let publisher = ConfigPublisher::builder(memory(&world), "shop", PublisherConfig::default())
        .reader(["org"], |d| toml::from_str::<toml::Table>(d.text("org").unwrap()))
        .clock(&world.clock)
        .build()
        .unwrap();
    let error = now(&world, publisher.publish(Change::to("org", "password = hunter2"))).unwrap_err();
    assert!(matches!(error, PublishError::Invalid { .. }));
    assert!(!format!("{error:?} {error:#?} {error}").contains("hunter2"), "{error:?}");
}

// Guarantee: config_store 6.
// Guarantee: config_store 7.
#[test]
fn a_rollback_is_a_new_revision_and_the_audit_tells_who_why_when_and_from_where() {
    let world = World::new();
    let store = memory(&world);
    world.time.set_wall(Timestamp::from_millis(5_000));
    let publisher = publisher(&world, &store, 1);
    let changes = async {
        for number in 1..=3 {
            publisher.publish(both(number).by(format!("author {number}")).because("it must")).await.unwrap();
        }
        publisher.rollback(1, "bob", "too many errors").await.unwrap()
    };
    assert_eq!(now(&world, changes), 4);
    let audit = now(&world, publisher.audit(10)).unwrap();
    let told: Vec<_> =
        audit.iter().map(|i| (i.number, i.author.as_str(), i.reason.as_str(), i.source, i.at.as_millis())).collect();
    assert_eq!(told[0], (4, "bob", "too many errors", Some(1), 5_000));
    assert_eq!(told[1], (3, "author 3", "it must", None, 5_000));
    assert_eq!((audit.len(), audit[0].digest == audit[3].digest, audit[0].digest == audit[1].digest), (4, true, false));
    assert_eq!(now(&world, publisher.documents(4)).unwrap().text("org").unwrap(), "1");
    assert!(matches!(now(&world, publisher.rollback(9, "bob", "")), Err(PublishError::NotInHistory(9))));
}

// Guarantee: config_store 6.
#[test]
fn only_revisions_beyond_the_history_are_deleted_and_rows_that_no_head_refers_to() {
    let world = World::new();
    let store = memory(&world);
    let config = PublisherConfig::default().history(3);
    let publisher = ConfigPublisher::builder(store.clone(), "shop", config).clock(&world.clock).build().unwrap();
    // What a publisher leaves that crashed before it moved the head.
    let key = steadfast::store::Key::new("config shop", "rev 00000000000000000002 00000000000000aa");
    now(&world, store.insert(key, "left behind")).unwrap();
    for number in 1..=6 {
        now(&world, publisher.publish(both(number))).unwrap();
        let rows = now(&world, store.scan_all(Scan::partition("config shop").prefix("rev "))).unwrap();
        assert!(rows.len() as u64 <= number.min(3) + u64::from(number == 1), "{number}: {}", rows.len());
    }
    assert!(now(&world, publisher.documents(4)).is_ok());
    assert!(matches!(now(&world, publisher.documents(3)), Err(PublishError::NotInHistory(3))));
    let error = now(&world, publisher.rollback(3, "ada", "")).unwrap_err();
    assert!(matches!(error, PublishError::NotInHistory(3)), "{error}");
}

// Guarantee: config_store 7.
#[test]
fn the_number_that_each_member_runs_is_listed() {
    let world = World::new();
    let store = memory(&world);
    let publisher = publisher(&world, &store, 1);
    now(&world, publisher.publish(both(1))).unwrap();
    let parses = Parses::default();
    let build = |name: &str| now(&world, builder(&world, &store, &parses).member(name).build()).unwrap();
    let (one, other) = (build("eu-1"), build("eu-2"));
    let stop = || world.clock.sleep(S(50));
    let accept = |_| async { Ok::<_, steadfast::config_store::Veto>(()) };
    let script = async {
        world.clock.sleep(S(1)).await;
        publisher.publish(both(2)).await.unwrap();
        one.refresh().await.unwrap();
        world.clock.sleep(MS(10)).await;
        let members = publisher.members().await.unwrap();
        let told: Vec<_> = members.iter().map(|m| (m.member.as_str(), m.number, m.rejected, m.is_fit)).collect();
        assert_eq!(told, [("eu-1", 2, None, true), ("eu-2", 1, None, true)]);
        world.clock.sleep(S(40)).await;
        let members = publisher.members().await.unwrap();
        assert_eq!(members.iter().map(|m| m.number).collect::<Vec<_>>(), [2, 2]);
        world.clock.sleep(S(10)).await;
        assert!(publisher.members().await.unwrap().is_empty(), "an orderly end leaves no row");
    };
    let all = async { futures::join!(one.run(stop(), accept), other.run(stop(), accept), script) };
    world.run(S(100), all).unwrap();
    // A store without times to live has no list.
    let poor: Arc<dyn Store> = Arc::new(Without(InMemoryStore::new(), Capability::TimeToLive));
    let publisher = self::publisher(&world, &poor, 1);
    let error = now(&world, publisher.members()).unwrap_err();
    assert!(matches!(&error, PublishError::Store(error) if error.backend().is_some()), "{error}");
}

/// A store without one of its capabilities.
#[derive(Debug)]
pub(super) struct Without(pub(super) InMemoryStore, pub(super) Capability);

impl Store for Without {
    forward_store! { 0: get, put, delete, scan, batch }

    fn capabilities(&self) -> steadfast::port::Capabilities {
        self.0.capabilities().without(self.1)
    }
}

#[test]
fn what_does_not_fit_together_is_refused_by_name() {
    let world = World::new();
    let store = memory(&world);
    now(&world, publisher(&world, &store, 1).publish(both(1))).unwrap();
    let built = |config: ConfigStoreConfig| {
        ConfigStore::builder(store.clone(), "shop", load, config).layers(["org", "billing"])
    };
    let refused = |builder: steadfast::config_store::ConfigStoreBuilder<super::Settings>| {
        now(&world, builder.clock(&world.clock).build()).unwrap_err().to_string()
    };
    let config = ConfigStoreConfig::default;
    assert!(refused(built(config().poll_interval(MS(999)))).contains("poll_interval"));
    assert!(refused(built(config().trial(S(9)))).contains("`trial`: needs a local store"));
    assert!(refused(built(config().on_start_failure(OnStartFailure::LastKnownGood))).contains("on_start_failure"));
    assert!(refused(built(config()).layers(Vec::<String>::new())).contains("layers"));
    assert!(refused(built(config()).layers((0..17).map(|i| i.to_string()))).contains("layers"));
    assert!(refused(built(config()).layers(["a", "a"])).contains("layers"));
    assert!(refused(built(config()).member("")).contains("member"));
    let loses = Arc::new(Without(InMemoryStore::new(), Capability::Durable));
    assert!(refused(built(config()).local(loses)).contains("`local`: needs `durable`"));
    let forks: Arc<dyn Store> = Arc::new(Without(InMemoryStore::new(), Capability::Linearizable));
    let error = ConfigPublisher::builder(forks.clone(), "shop", PublisherConfig::default()).build().unwrap_err();
    assert_eq!(error.field(), "store");
    assert!(refused(ConfigStore::builder(forks, "shop", load, config()).layers(["org"])).contains("store"));
    let publisher = |config| {
        ConfigPublisher::builder(store.clone(), "shop", config).build().map_err(|e: ConfigError| e.field().to_owned())
    };
    assert_eq!(publisher(PublisherConfig::default().history(1)).unwrap_err(), "history");
    assert_eq!(publisher(PublisherConfig::default().max_document(0)).unwrap_err(), "max_document");
    let empty = ConfigPublisher::builder(store.clone(), "", PublisherConfig::default()).build().unwrap_err();
    assert_eq!(empty.field(), "name");
    let error = refused(ConfigStore::builder(store.clone(), "other", load, config()).layers(["org"]));
    assert_eq!(error, "nothing has been published");
}
