//! Attacks on revocations and uses: outages of the store, clocks that differ or jump, settings that differ.
use steadfast::{
    port::PortErrorKind,
    testing::{PortAnswer, ScriptedPort},
    time::Timestamp,
    valet_key::{Grant, OnStoreFailure, Operation, ValetKeyConfig, ValetKeyEvent as Event},
};

use super::{S, World, told};

const START: u64 = 1_800_000_000_000;

// Guarantee: valet_key 4.
#[test]
fn no_key_is_renewed_while_the_store_is_away() {
    let world = World::new();
    let port = ScriptedPort::new(&world.clock);
    let config = ValetKeyConfig::default().on_store_failure(OnStoreFailure::Allow);
    let allow = world.on(port.store(world.store.clone()), config);
    let key = world.issue(Grant::get("a").tag("ada"));
    world.time.block_on(world.keys.revoke_tag("ada")).unwrap();
    world.time.advance(S(400));
    port.by(|_| PortAnswer::fail(PortErrorKind::Unavailable));
    let renewed = world.time.block_on(allow.renew(key.as_str()));
    assert_eq!(renewed.unwrap_err().as_str(), "unavailable", "or it were a right that outlives the outage");
}

// Guarantee: valet_key 4.
#[test]
fn a_tag_is_revoked_by_a_clock_that_is_behind_the_one_of_the_issue() {
    for behind in [40, 290] {
        let world = World::new();
        let key = world.issue(Grant::get("a").tag("ada"));
        world.time.set_wall(Timestamp::from_millis(START - behind * 1000));
        world.time.block_on(world.keys.revoke_tag("ada")).unwrap();
        assert_eq!(world.why(Operation::Get, "/a", &key), "revoked", "{behind}");
    }
}

// Guarantee: valet_key 4.
#[test]
fn what_was_issued_or_renewed_during_a_revocation_is_revoked() {
    let world = World::new();
    let port = ScriptedPort::new(&world.clock);
    let slow = world.on(port.store(world.store.clone()), ValetKeyConfig::default().call_timeout(S(10_000)));
    let first = world.issue(Grant::get("a").tag("ada").expires_in(S(3600)));
    port.by(|call| match call.method {
        "put" if call.number == 1 => PortAnswer::pass().request_takes(S(800)),
        _ => PortAnswer::pass(),
    });
    let meanwhile = async {
        world.clock.sleep(S(799)).await;
        let renewed = world.keys.renew(first.as_str()).await.unwrap();
        (renewed, world.issue(Grant::get("a").tag("ada")))
    };
    let (revoked, (renewed, issued)) = world.time.block_on(async { futures::join!(slow.revoke_tag("ada"), meanwhile) });
    revoked.unwrap();
    for key in [&first, &renewed, &issued] {
        assert_eq!(world.why(Operation::Get, "/a", key), "revoked");
    }
}

// Guarantee: valet_key 3.
#[test]
fn a_clock_that_jumps_gives_no_second_use() {
    let world = World::new();
    let key = world.issue(Grant::put("a/").single_use().expires_in(S(3600)));
    world.time.set_wall(Timestamp::from_millis(START + 3_599_000));
    assert!(world.check(Operation::Put, "/a/b", &key).is_ok());
    world.time.set_wall(Timestamp::from_millis(START));
    world.time.advance(S(122));
    assert_eq!(world.why(Operation::Put, "/a/b", &key), "used");
}

// Guarantee: valet_key 4.
#[test]
fn a_revocation_by_a_process_with_other_settings_holds_as_long_as_any_key() {
    let world = World::new();
    let short = world.on(world.store.clone(), ValetKeyConfig::default().max_lifetime(S(900)));
    let grant = || Grant::get("a").expires_in(S(86_400));
    let (one, tagged, once) =
        (world.issue(grant()), world.issue(grant().tag("ada")), world.issue(grant().single_use()));
    assert!(world.check(Operation::Get, "/a", &once).is_ok());
    for id in [one.id(), once.id()] {
        world.time.block_on(short.revoke_key(id)).unwrap();
    }
    world.time.block_on(short.revoke_tag("ada")).unwrap();
    world.time.advance(S(1080));
    assert_eq!(world.why(Operation::Get, "/a", &one), "revoked");
    assert_eq!(world.why(Operation::Get, "/a", &tagged), "revoked");
    assert_eq!(world.why(Operation::Get, "/a", &once), "used", "not a second time");
}

// Guarantee: valet_key 4.
#[test]
fn a_revocation_ends_while_the_store_hangs() {
    let world = World::new();
    let port = ScriptedPort::new(&world.clock);
    let keys = world.on(port.store(world.store.clone()), ValetKeyConfig::default());
    port.by(|_| PortAnswer::hang());
    let key = world.issue(Grant::get("a"));
    let both = async { futures::join!(keys.revoke_key(key.id()), keys.revoke_tag("ada")) };
    let ended = world.time.block_on(async {
        tokio::select! {
            biased;
            ended = both => Some(ended),
            () = world.clock.sleep(S(4)) => None,
        }
    });
    let (one, all) = ended.expect("both end within their time limit");
    assert!(one.is_err() && all.is_err());
}

// Guarantee: valet_key 4.
#[test]
fn keys_that_pass_without_the_store_are_told_and_only_while_it_may_come_back() {
    let world = World::new();
    let port = ScriptedPort::new(&world.clock);
    let config = ValetKeyConfig::default().on_store_failure(OnStoreFailure::Allow);
    let allow = world.on(port.store(world.store.clone()), config);
    let (key, mut events) = (world.issue(Grant::get("a")), allow.events());
    let mut answered = |kind| {
        port.by(move |_| PortAnswer::fail(kind));
        let checked = world.time.block_on(allow.check(Operation::Get, "/a", key.as_str()));
        assert_eq!(told(&mut events).first(), Some(&Event::StoreAway { kind: Some(kind) }));
        checked.is_ok()
    };
    assert!(answered(PortErrorKind::Unavailable) && answered(PortErrorKind::Throttled));
    assert!(!answered(PortErrorKind::Denied) && !answered(PortErrorKind::Corrupt));
}
