//! Leader election: the considerations of the pattern's source that a default, an event, an option or a refusal
//! meets.
use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use steadfast::{
    leader_election::LeaderElectionEvent as Event,
    port::PortErrorKind,
    store::{Key, Scan, Store, StoreExt},
    testing::PortAnswer,
};

use crate::leader_election::world::{POLL, REFUSED, S, TERM, World, told};

#[test]
fn a_leader_outlives_a_fault_that_passes_and_another_leads_where_it_lasts() {
    World::each(|world| {
        let (first, second) = (world.node("first"), world.node("second"));
        let leads = first.run(pending(), async |term| term.lost().await);
        let watches = async {
            world.clock.sleep(S(1)).await;
            first.line.always("", REFUSED);
            world.clock.sleep(S(5)).await;
            first.line.always("", PortAnswer::pass());
            world.clock.sleep(S(30)).await;
            assert!(first.is_leader(), "the fault has passed");
            first.line.always("", REFUSED);
            drop(second.campaign().await.unwrap());
            assert!(!first.is_leader(), "the fault has lasted");
        };
        world.run(S(200), async {
            tokio::select! { _ = leads => panic!("it gave up"), () = watches => {} }
        });
    });
}

#[test]
fn a_dead_leader_is_followed_within_a_term_and_a_poll() {
    World::each(|world| {
        let (first, second) = (world.node("first"), world.node("second"));
        let leads = world.run(S(60), first.campaign()).unwrap().unwrap();
        first.line.always("", REFUSED); // it dies, and releases nothing
        let died = world.now();
        drop(leads);
        drop(world.run(S(60), second.campaign()).expect("another leads").unwrap());
        assert!(world.now() - died <= TERM + POLL * 2, "{:?}", world.now() - died);
    });
}

#[test]
fn a_leader_that_is_scaled_in_resigns_so_that_another_leads_soon() {
    World::each(|world| {
        let (first, second) = (world.node("first"), world.node("second"));
        let leads = first.run(world.clock.sleep(S(5)), async |term| term.lost().await);
        let follows = async {
            world.clock.sleep(S(1)).await;
            drop(second.campaign().await.unwrap());
            world.now()
        };
        let start = world.now();
        let (_, elected) = world.run(S(60), async { tokio::join!(leads, follows) }).unwrap();
        assert!(elected - start <= S(5) + POLL, "{:?}", elected - start);
    });
}

#[test]
fn without_its_store_nobody_leads_and_each_failed_call_is_an_event() {
    World::each(|world| {
        let node = world.node("only");
        let mut events = node.events();
        node.line.always("", REFUSED);
        assert!(world.run(S(60), node.campaign()).is_none(), "nobody leads");
        let (told, called) = (told(&mut events), node.line.calls("acquire").len() + node.line.calls("read").len());
        let failed = told.iter().filter(|event| matches!(event, Event::CallFailed { .. })).count();
        assert!(failed >= 10 && failed + 1 >= called, "{failed} of {called}: {told:?}");
    });
}

#[test]
fn a_leader_that_stalls_is_ended_by_its_health_check_though_it_could_renew() {
    World::each(|world| {
        let fit = Arc::new(AtomicBool::new(true));
        let asked = fit.clone();
        let ill = world.node_with("ill", |builder| builder.health_check(move || asked.load(SeqCst)));
        let other = world.node("other");
        let leads = ill.run(pending(), async |term| term.lost().await);
        let falls_ill = async {
            world.clock.sleep(S(1)).await;
            fit.store(false, SeqCst);
            drop(other.campaign().await.unwrap());
            assert!(!ill.is_leader());
        };
        let ended = world.run(S(60), async {
            tokio::select! { _ = leads => panic!("it gave up"), () = falls_ill => {} }
        });
        assert!(ended.is_some(), "another leads");
    });
}

#[test]
fn a_record_that_is_no_lease_is_refused_and_left_as_it_is() {
    let world = World::over_store();
    let store = world.store.clone().unwrap();
    let node = world.node("first");
    drop(world.run(S(60), node.campaign()).unwrap().unwrap());
    let rows = world.time.block_on(store.scan_all(Scan::partition("leases"))).unwrap();
    assert_eq!(rows.len(), 1, "the one record of the election");
    let key = Key::new("leases", &rows[0].row);
    world.time.block_on(store.put(key, "somebody's own".into(), Default::default())).unwrap();
    let refused = world.run(S(60), world.node("second").campaign()).expect("it ends by itself").unwrap_err();
    assert_eq!(refused.kind(), PortErrorKind::Corrupt);
    let kept = world.time.block_on(store.get(key)).unwrap().unwrap();
    assert_eq!(&kept.value[..], b"somebody's own");
}
