//! Keys for single paths and folders: checks, uses, revocations, limits of bodies.
mod attacks;

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use steadfast::{
    entropy::Entropy,
    observe::Subscription,
    port::{Capability, PortErrorKind},
    store::{InMemoryStore, Store},
    testing::{ManualClock, PortAnswer, ScriptedPort, drop_at_every_await},
    time::{Clock, Timestamp},
    token::{Key, KeyRing, TokenReason},
    valet_key::{
        Grant, KeyRefused, LimitedError, OnStoreFailure, Operation, Pass, ValetKey, ValetKeyConfig,
        ValetKeyEvent as Event, ValetKeys,
    },
};

use crate::fuzz::{inputs, mutated};

const S: fn(u64) -> Duration = Duration::from_secs;

struct World {
    time: ManualClock,
    clock: Clock,
    ring: KeyRing,
    store: Arc<InMemoryStore>,
    keys: ValetKeys,
}

impl World {
    fn new() -> Self {
        let (clock, time) = Clock::manual();
        time.set_wall(Timestamp::from_millis(1_800_000_000_000));
        let ring = KeyRing::new([Key::secret("one", &[7; 32]).unwrap()]).unwrap();
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        let keys = Self::keys_on(&clock, &ring, store.clone(), ValetKeyConfig::default());
        Self { time, clock, ring, store, keys }
    }

    fn keys_on(clock: &Clock, ring: &KeyRing, store: Arc<dyn Store>, config: ValetKeyConfig) -> ValetKeys {
        ValetKeys::builder("files", ring.clone(), config).revocable(store).clock(clock).build().unwrap()
    }

    fn on(&self, store: Arc<dyn Store>, config: ValetKeyConfig) -> ValetKeys {
        Self::keys_on(&self.clock, &self.ring, store, config)
    }

    fn issue(&self, grant: Grant) -> ValetKey {
        self.keys.issue(grant).unwrap()
    }

    fn check(&self, operation: Operation, path: &str, key: &ValetKey) -> Result<Pass, KeyRefused> {
        self.time.block_on(self.keys.check(operation, path, key.as_str()))
    }

    fn why(&self, operation: Operation, path: &str, key: &ValetKey) -> &'static str {
        self.check(operation, path, key).unwrap_err().as_str()
    }
}

fn told(events: &mut Subscription<Event>) -> Vec<Event> {
    std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect()
}

// Guarantee: valet_key 1.
#[test]
fn a_key_is_for_one_operation_on_one_path_or_below_one_folder() {
    let world = World::new();
    let (folder, file) = (world.issue(Grant::put("t7/in/")), world.issue(Grant::get("t7/out/a.pdf")));
    for path in ["/t7/in/a", "/t7/in/a/b", "/t7/in/%20"] {
        let pass = world.check(Operation::Put, path, &folder).unwrap();
        assert_eq!((pass.path(), pass.operation()), (&path[1..], Operation::Put));
    }
    for path in [
        "/t7/in",
        "/t7/in/",
        "/t7/in/a/",
        "/t7/inbox",
        "/t7/inbox/a",
        "/t7",
        "/",
        "",
        "t7/in/a",
        "/t7/in/../out/a",
        "/t7/in/%2e%2e/a",
        "/t7/in//a",
        "/t7/%69n/a",
        "/t7/in/a%2fb",
        "/t7/in/a;b",
        "/T7/in/a",
        "/t7/in/a\\b",
    ] {
        assert_eq!(world.why(Operation::Put, path, &folder), "path", "{path}");
    }
    assert!(world.check(Operation::Get, "/t7/out/a.pdf", &file).is_ok());
    for path in ["/t7/out/a.pdf/", "/t7/out/a.pdf2", "/t7/out/a.pdf/b", "/t7/out/", "/t7/out/a"] {
        assert_eq!(world.why(Operation::Get, path, &file), "path", "{path}");
    }
    for operation in [Operation::Put, Operation::List, Operation::Delete] {
        assert_eq!(world.why(operation, "/t7/out/a.pdf", &file), "operation");
    }
    let list = world.issue(Grant::list("t7/"));
    assert!(
        world.check(Operation::List, "/t7/", &list).is_ok() && world.check(Operation::List, "/t7/in/", &list).is_ok()
    );
    assert_eq!(world.why(Operation::List, "/t8/", &list), "path");
}

// Guarantee: valet_key 1.
#[test]
fn grants_for_everything_and_settings_that_promise_too_much_are_refused() {
    let world = World::new();
    let plain = ValetKeys::new("files", world.ring.clone(), ValetKeyConfig::default()).unwrap();
    for (grant, expected) in [
        (Grant::get(""), "everything"),
        (Grant::get("/"), "everything"),
        (Grant::get("/a"), "strict path"),
        (Grant::put("a/../"), "strict path"),
        (Grant::put("a//b"), "strict path"),
        (Grant::put("x".repeat(1025)), "strict path"),
        (Grant::put("a").single_use(), "store"),
        (Grant::put("a").tag(""), "tag"),
        (Grant::put("a").tag("x".repeat(129)), "tag"),
        (Grant::put("a").expires_in(S(0)), "max_lifetime"),
        (Grant::put("a").expires_in(S(604_801)), "max_lifetime"),
    ] {
        let refused = plain.issue(grant.clone()).unwrap_err().to_string();
        assert!(refused.contains(expected), "{grant:?}: {refused}");
    }
    let config = ValetKeyConfig::default();
    for (config, field) in [
        (config.max_lifetime(S(604_801)), "max_lifetime"),
        (config.max_lifetime(S(60)), "lifetime"),
        (config.lifetime(S(0)), "lifetime"),
        (config.early(S(3601)), "early"),
        (config.call_timeout(S(0)), "call_timeout"),
    ] {
        assert_eq!(ValetKeys::new("files", world.ring.clone(), config).unwrap_err().field(), field);
    }
    for name in ["", "a/tag"] {
        assert!(ValetKeys::new(name, world.ring.clone(), config).is_err());
    }
    for lacks in [Capability::TimeToLive, Capability::Linearizable] {
        let without = ScriptedPort::changing(&world.clock, move |can| can.without(lacks));
        let builder = ValetKeys::builder("files", world.ring.clone(), config);
        assert!(builder.revocable(without.store(world.store.clone())).build().is_err());
    }
}

// Guarantee: valet_key 1.
#[test]
fn a_key_that_is_expired_too_new_altered_or_of_others_is_refused() {
    let world = World::new();
    let key = world.issue(Grant::get("a"));
    let reason = |keys: &ValetKeys, key: &str| match world.time.block_on(keys.check(Operation::Get, "/a", key)) {
        Err(KeyRefused::Token(refused)) => Some(refused.reason()),
        _ => None,
    };
    let with = |name: &str, ring: KeyRing| {
        ValetKeys::builder(name, ring, ValetKeyConfig::default()).clock(&world.clock).build().unwrap()
    };
    let other = KeyRing::new([Key::secret("one", &[8; 32]).unwrap()]).unwrap();
    assert_eq!(reason(&with("others", world.ring.clone()), key.as_str()), Some(TokenReason::Audience));
    assert_eq!(reason(&with("files", other), key.as_str()), Some(TokenReason::Signature));
    assert_eq!(reason(&world.keys, ""), Some(TokenReason::Missing));
    assert_eq!(reason(&world.keys, "a.b.c"), Some(TokenReason::Malformed));
    let seal = world.ring.sign("handover-call+jwt", "files", world.clock.wall() + S(9), &()).unwrap();
    assert_eq!(reason(&world.keys, &seal), Some(TokenReason::Malformed), "of another type");
    let odd = serde_json::json!({ "id": "../key", "op": "get", "path": "a", "iat": 0 });
    let odd = world.ring.sign("valet+jwt", "files", world.clock.wall() + S(9), &odd).unwrap();
    assert_eq!(reason(&world.keys, &odd), Some(TokenReason::Malformed), "an id of another form");
    // By a clock that is 5 min behind it is valid, and by none further behind.
    world.time.set_wall(Timestamp::from_millis(1_800_000_000_000 - 300_000));
    assert!(world.check(Operation::Get, "/a", &key).is_ok());
    world.time.set_wall(Timestamp::from_millis(1_800_000_000_000 - 300_001));
    assert_eq!(reason(&world.keys, key.as_str()), Some(TokenReason::NotYetValid));
    world.time.set_wall(key.expires_at() + S(29));
    assert!(world.check(Operation::Get, "/a", &key).is_ok(), "within the difference of clocks");
    world.time.set_wall(key.expires_at() + S(31));
    assert_eq!(reason(&world.keys, key.as_str()), Some(TokenReason::Expired));
    assert!(!format!("{key:?} {:?}", world.keys).contains(key.as_str()));
}

// Guarantee: valet_key 2.
#[test]
fn the_first_byte_beyond_the_limit_ends_a_body() {
    let world = World::new();
    let key = world.issue(Grant::put("a/").max_bytes(10).tag("ada"));
    let mut events = world.keys.events();
    for (chunks, passes, ends_whole) in [
        (vec!["12345", "67890"], 2, true),
        (vec![], 0, true),
        (vec!["12345", "678901"], 1, false),
        (vec!["12345678901"], 0, false),
        (vec!["1234567890", "", "1", "2"], 2, false),
    ] {
        let pass = world.check(Operation::Put, "/a/b", &key).unwrap();
        assert_eq!(pass.max_bytes(), Some(10));
        let body = stream::iter(chunks.iter().map(|chunk| Ok::<_, std::convert::Infallible>(*chunk)));
        let read: Vec<_> = world.time.block_on(pass.limit(body).collect());
        assert_eq!(read.iter().filter(|one| one.is_ok()).count(), passes, "{chunks:?}");
        let errors: Vec<_> = read.iter().filter(|one| one.is_err()).collect();
        assert!(ends_whole && errors.is_empty() || matches!(errors[..], [Err(LimitedError::TooLarge)]), "{chunks:?}");
        let bytes: usize = read.iter().flatten().map(|chunk| chunk.len()).sum();
        let told = told(&mut events);
        let [Event::Used { .. }, Event::Transferred { bytes: counted, is_whole, tag, .. }] = &told[..] else {
            panic!("{told:?}")
        };
        let tag = tag.as_ref().map(|tag| tag.as_str());
        assert_eq!((*counted, *is_whole, tag), (bytes as u64, ends_whole, Some("ada")), "{chunks:?}");
    }
    // A body that fails, and one that is dropped.
    let pass = world.check(Operation::Put, "/a/b", &key).unwrap();
    let body = stream::iter([Ok("123"), Err("broken"), Ok("4")]);
    let read: Vec<_> = world.time.block_on(pass.limit(body).collect());
    assert_eq!(read, [Ok("123"), Err(LimitedError::Body("broken"))]);
    drop(pass.limit(stream::empty::<Result<&str, ()>>()));
    let unlimited = world.issue(Grant::put("a/"));
    let pass = world.check(Operation::Put, "/a/b", &unlimited).unwrap();
    let body = stream::iter((0..100).map(|_| Ok::<_, ()>(vec![0; 10_000])));
    assert_eq!(world.time.block_on(pass.limit(body).count()), 100);
    let ended =
        told(&mut events).into_iter().filter(|event| matches!(event, Event::Transferred { is_whole: false, .. }));
    assert_eq!(ended.count(), 2);
}

// Guarantee: valet_key 3.
#[test]
fn of_a_thousand_requests_with_a_key_for_one_use_one_is_let_in() {
    let world = World::new();
    let key = world.issue(Grant::put("a/").single_use());
    assert_eq!(world.why(Operation::Get, "/a/b", &key), "operation", "a refused request does not use it up");
    let others: Vec<_> = (0..4).map(|_| world.on(world.store.clone(), ValetKeyConfig::default())).collect();
    let calls = (0..1000).map(|n| others[n % 4].check(Operation::Put, "/a/b", key.as_str()));
    let all = world.time.block_on(futures::future::join_all(calls));
    assert_eq!(all.iter().filter(|checked| checked.is_ok()).count(), 1);
    assert!(all.iter().all(|checked| checked.is_ok() || matches!(checked, Err(KeyRefused::Used))));
    // For as long as it is valid.
    world.time.set_wall(key.expires_at() + S(29));
    assert_eq!(world.why(Operation::Put, "/a/b", &key), "used");
    let without = ValetKeys::builder("files", world.ring.clone(), ValetKeyConfig::default()).clock(&world.clock);
    let key = world.issue(Grant::put("a/").single_use());
    let refused =
        world.time.block_on(without.build().unwrap().check(Operation::Put, "/a/b", key.as_str())).unwrap_err();
    assert_eq!((refused.as_str(), refused.status()), ("unavailable", 503), "a process without a store lets none in");
}

// Guarantee: valet_key 4.
#[test]
fn a_revocation_holds_from_the_next_check_on_in_each_process() {
    let world = World::new();
    let other = world.on(world.store.clone(), ValetKeyConfig::default());
    let (one, two) = (world.issue(Grant::get("a").tag("ada")), world.issue(Grant::get("a").tag("ada")));
    let (bobs, once) = (world.issue(Grant::get("a").tag("bob")), world.issue(Grant::get("a").single_use()));
    let renewed = world.time.block_on(world.keys.renew(one.as_str())).unwrap();
    world.time.block_on(other.revoke_key(one.id())).unwrap();
    world.time.block_on(other.revoke_key(once.id())).unwrap();
    assert_eq!(world.why(Operation::Get, "/a", &one), "revoked");
    assert_eq!(world.why(Operation::Get, "/a", &renewed), "revoked", "and what it was renewed into");
    assert_eq!(world.why(Operation::Get, "/a", &once), "used");
    assert!(world.time.block_on(world.keys.renew(one.as_str())).is_err());
    assert!(world.check(Operation::Get, "/a", &two).is_ok());
    world.time.block_on(other.revoke_tag("ada")).unwrap();
    assert_eq!(world.why(Operation::Get, "/a", &two), "revoked");
    assert!(world.check(Operation::Get, "/a", &bobs).is_ok());
    // By a clock that is ahead of the revoker's a key may be issued before, and have a later time.
    world.time.advance(S(300));
    assert_eq!(world.why(Operation::Get, "/a", &world.issue(Grant::get("a").tag("ada"))), "revoked");
    world.time.advance(S(1));
    let later = world.issue(Grant::get("a").tag("ada"));
    assert!(world.check(Operation::Get, "/a", &later).is_ok());
    // A revocation by a clock that is behind takes none back.
    world.time.block_on(world.keys.revoke_tag("ada")).unwrap();
    world.time.set_wall(Timestamp::from_millis(1_800_000_000_000));
    world.time.block_on(world.keys.revoke_tag("ada")).unwrap();
    world.time.set_wall(Timestamp::from_millis(1_800_000_301_000));
    assert_eq!(world.why(Operation::Get, "/a", &later), "revoked");
    // For as long as any key may live.
    let long = world.issue(Grant::get("a").tag("eve").expires_in(S(604_800)));
    world.time.block_on(world.keys.revoke_tag("eve")).unwrap();
    world.time.advance(S(604_800));
    assert_eq!(world.why(Operation::Get, "/a", &long), "revoked");
    let without = ValetKeys::new("files", world.ring.clone(), ValetKeyConfig::default()).unwrap();
    assert!(world.time.block_on(without.revoke_tag("ada")).is_err());
    assert!(world.time.block_on(world.keys.revoke_key("../tag/ada")).is_err());
}

// Guarantee: valet_key 4.
#[test]
fn a_renewal_keeps_rights_id_and_length_of_life() {
    let world = World::new();
    let first = world.issue(Grant::put("a/").max_bytes(7).tag("ada").expires_in(S(600)));
    let mut key = first.clone();
    for _ in 0..50 {
        world.time.advance(S(599) + Duration::from_millis(300));
        key = world.time.block_on(world.keys.renew(key.as_str())).unwrap();
        assert_eq!(key.id(), first.id());
        let left = key.expires_at().as_millis() - world.clock.wall().as_millis();
        assert_eq!(left, 600_000);
    }
    let pass = world.check(Operation::Put, "/a/b", &key).unwrap();
    assert_eq!((pass.max_bytes(), pass.tag(), pass.id()), (Some(7), Some("ada"), first.id()));
    assert_eq!(world.why(Operation::Put, "/a/b", &first), "expired");
    assert!(world.time.block_on(world.keys.renew(first.as_str())).is_err(), "an expired key is not renewed");
    let once = world.issue(Grant::put("a/").single_use());
    assert!(matches!(world.time.block_on(world.keys.renew(once.as_str())), Err(KeyRefused::Used)));
    assert!(world.check(Operation::Put, "/a/b", &once).is_ok(), "it was not used up");
}

// Guarantee: valet_key 4.
#[test]
fn while_the_store_is_away_keys_are_refused_unless_the_settings_allow_them() {
    let world = World::new();
    let port = ScriptedPort::new(&world.clock);
    let deny = world.on(port.store(world.store.clone()), ValetKeyConfig::default());
    let config = ValetKeyConfig::default().on_store_failure(OnStoreFailure::Allow);
    let allow = world.on(port.store(world.store.clone()), config);
    let (key, once) = (world.issue(Grant::get("a").tag("ada")), world.issue(Grant::get("a").single_use()));
    let check = |keys: &ValetKeys, key: &ValetKey| world.time.block_on(keys.check(Operation::Get, "/a", key.as_str()));
    for answer in [PortAnswer::fail(PortErrorKind::Unavailable), PortAnswer::hang()] {
        port.by(move |_| answer);
        let start = world.clock.now();
        let refused = check(&deny, &key).unwrap_err();
        assert_eq!((refused.status(), refused.retry_after()), (503, Some(S(1))), "{refused}");
        assert!(world.clock.now() - start <= S(3), "both requests at once");
        assert!(check(&allow, &key).is_ok());
        assert_eq!(check(&allow, &once).unwrap_err().as_str(), "unavailable", "one for a single use never");
    }
    port.by(|_| PortAnswer::lose(PortErrorKind::Unavailable));
    assert_eq!(check(&deny, &once).unwrap_err().as_str(), "unavailable");
    port.by(|_| PortAnswer::pass());
    assert_eq!(check(&deny, &once).unwrap_err().as_str(), "used", "the insert had been applied");
    assert!(check(&deny, &key).is_ok());
}

// Guarantee: valet_key 5.
#[test]
fn events_name_ids_tags_and_paths_and_never_a_key() {
    let world = World::new();
    let mut events = world.keys.events();
    let key = world.issue(Grant::put("a/").tag("ada"));
    world.check(Operation::Put, "/a/b", &key).unwrap();
    world.check(Operation::Put, "/c", &key).unwrap_err();
    world.time.block_on(world.keys.check(Operation::Put, "/c", "nonsense")).unwrap_err();
    world.time.block_on(world.keys.revoke_key(key.id())).unwrap();
    world.time.block_on(world.keys.revoke_tag("ada")).unwrap();
    let told = told(&mut events);
    let (id, tag) = (Some(key.id().into()), Some("ada".into()));
    let [Event::Issued { .. }, Event::Used { path, .. }, refused, malformed, revoked, all] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(path.as_str(), "a/b");
    assert_eq!(refused, &Event::Refused { id: id.clone(), tag: tag.clone(), why: "path" });
    assert_eq!(malformed, &Event::Refused { id: None, tag: None, why: "malformed" });
    assert_eq!((revoked, all), (&Event::Revoked { id, tag: None }, &Event::Revoked { id: None, tag }));
    let text = format!("{told:?}");
    assert!(key.as_str().split('.').all(|part| !text.contains(part)), "{text}");
}

// Guarantee: valet_key 3.
#[test]
fn a_check_that_is_dropped_at_any_await_lets_nobody_in_twice() {
    let world = World::new();
    let port = ScriptedPort::new(&world.clock);
    port.by(|_| PortAnswer::pass().request_takes(S(1)).answer_takes(S(1)));
    let keys = world.on(port.store(world.store.clone()), ValetKeyConfig::default());
    let (plain, once) = (world.issue(Grant::get("a").tag("ada")), world.issue(Grant::get("a").tag("ada").single_use()));
    let polls = drop_at_every_await(&world.time, || keys.check(Operation::Get, "/a", plain.as_str()), |_| {});
    assert!(polls >= 2);
    drop_at_every_await(&world.time, || keys.renew(plain.as_str()), |_| {});
    drop_at_every_await(&world.time, || keys.revoke_tag("bob"), |_| {});
    drop_at_every_await(&world.time, || keys.revoke_key(plain.id()), |_| {});
    assert_eq!(world.why(Operation::Get, "/a", &plain), "revoked");
    let passed = std::cell::Cell::new(0);
    drop_at_every_await(
        &world.time,
        || async {
            if keys.check(Operation::Get, "/a", once.as_str()).await.is_ok() {
                passed.set(passed.get() + 1);
            }
        },
        |_| {},
    );
    assert!(passed.get() <= 1);
    assert_eq!(world.why(Operation::Get, "/a", &once), "used");
}

#[test]
fn of_random_keys_none_is_accepted() {
    let world = World::new();
    let entropy = Entropy::from_seed(7);
    let (one, other) = (world.issue(Grant::put("a/").max_bytes(9)), world.issue(Grant::get("b/").tag("ada")));
    let parts: Vec<&[u8]> = [&one, &other].iter().flat_map(|key| key.as_str().split('.')).map(str::as_bytes).collect();
    let mut accepted = 0;
    for _ in 0..inputs() {
        let key = mutated(one.as_str().as_bytes(), &parts, &entropy);
        let key = String::from_utf8_lossy(&key);
        let is_same = key == one.as_str() || key == other.as_str();
        accepted += u64::from(!is_same && world.time.block_on(world.keys.check(Operation::Put, "/a/b", &key)).is_ok());
    }
    assert_eq!(accepted, 0);
    assert!(world.check(Operation::Put, "/a/b", &one).is_ok());
}
