//! The guard of a fleet.
use std::{future::pending, sync::Arc};

use steadfast::{
    entropy::Entropy,
    health::{Group, GroupReason, Health, HealthConfig, HealthEvent as Event, HealthStatus as Is},
    port::PortErrorKind,
    store::{Scan, Store, StoreExt},
    testing::{PortAnswer, ScriptedPort, crash_at_every_write, drop_at_every_await},
    time::block_on,
};

use super::{Thing, Told, builder};
use crate::{
    engines::Engine,
    moody_store::{Mode, Moody},
    world::{MS, S, World},
};

fn member(world: &World, store: Arc<dyn Store>, number: usize, db: &Thing, told: &Told) -> Health {
    let built = told.by(builder(world, HealthConfig::default())).entropy(&Entropy::from_seed(number as u64));
    built.check(db.dependency("db").required()).fleet(store, format!("replica-{number}")).build().unwrap()
}

fn counts(members: &[Health]) -> (usize, usize) {
    let reports = members.iter().map(|health| health.last_report(&Group::Readiness));
    let of = |reason| reports.clone().filter(|report| report.reason == Some(reason)).count();
    (of(GroupReason::Ejected), of(GroupReason::Stayed))
}

// Guarantee: health 4.
#[test]
fn of_twenty_that_lose_a_dependency_at_once_ten_leave_and_ten_stay_and_all_return() {
    for engine in Engine::ALL {
        let engine = engine.world();
        let (world, db, told) = (World::at(&engine.time), Thing::default(), Told::default());
        let members: Vec<_> = (0..20).map(|i| member(&world, engine.store.clone(), i, &db, &told)).collect();
        let all = futures::future::join_all(members.iter().map(|health| health.run(world.clock.sleep(S(200)))));
        let script = async {
            world.clock.sleep(S(30)).await;
            assert_eq!(counts(&members), (0, 0));
            db.breaks();
            for _ in 0..70 {
                world.clock.sleep(S(1)).await;
                assert!(counts(&members).0 <= 10);
            }
            assert_eq!(counts(&members), (10, 10));
            let of = |wanted: fn(&Event) -> bool| told.all().iter().filter(|event| wanted(event)).count();
            assert_eq!(of(|event| matches!(event, Event::Ejected { .. })), 10);
            assert_eq!(of(|event| matches!(event, Event::Stayed { .. })), 10, "told once by each");
            assert!(members.iter().all(|health| health.last_report(&Group::Liveness).status == Is::Healthy));
            db.heals();
            world.clock.sleep(S(30)).await;
            assert_eq!(counts(&members), (0, 0));
        };
        world.run(S(300), async { futures::join!(all, script) }).unwrap();
        // After an orderly end no row is left.
        assert!(world.run(S(1), engine.store.scan_all(Scan::partition("health shop"))).unwrap().unwrap().is_empty());
    }
}

// Guarantee: health 4.
#[test]
fn a_local_failure_always_leaves_and_an_unknown_store_ejects_nobody() {
    let (world, db, told) = (World::new(), Thing::default(), Told::default());
    let (disk, store) = (Thing::default(), Arc::new(Moody::new(&world.clock)));
    store.is(Mode::Fails(PortErrorKind::Unavailable));
    let built = told.by(builder(&world, HealthConfig::default())).check(db.dependency("db").required());
    let health = built.check(disk.local("disk")).fleet(store.clone(), "replica-1").build().unwrap();
    let script = async {
        world.clock.sleep(S(10)).await;
        db.breaks();
        world.clock.sleep(S(30)).await;
        let report = health.last_report(&Group::Readiness);
        assert_eq!((report.status, report.reason), (Is::Degraded, Some(GroupReason::Stayed)));
        disk.breaks();
        world.clock.sleep(S(30)).await;
        assert_eq!(health.last_report(&Group::Readiness).status, Is::Unhealthy);
        store.is(Mode::Well);
        disk.heals();
        world.clock.sleep(S(30)).await;
        // It is the only member: half of one is none.
        assert_eq!(health.last_report(&Group::Readiness).status, Is::Degraded);
    };
    world.run(S(300), async { futures::join!(script, health.run(world.clock.sleep(S(110)))) }).unwrap();
    let events = told.all();
    assert!(events.contains(&Event::StoreFailed { kind: Some(PortErrorKind::Unavailable) }));
    assert!(events.contains(&Event::StoreBack) && events.contains(&Event::Stayed { members: 1 }));
}

// Guarantee: health 4.
#[test]
fn the_slot_of_a_member_that_dies_is_free_when_its_row_has_expired() {
    let (world, db, told) = (World::new(), Thing::default(), Told::default());
    let store: Arc<dyn Store> = Arc::new(steadfast::store::InMemoryStore::builder().clock(&world.clock).build());
    let members: Vec<_> = (0..3).map(|i| member(&world, store.clone(), i, &db, &told)).collect();
    let script = async {
        let all = futures::future::join_all(members.iter().map(|health| health.run(pending())));
        let broken = async {
            world.clock.sleep(S(10)).await;
            db.breaks();
            world.clock.sleep(S(30)).await;
        };
        futures::future::select(Box::pin(all), Box::pin(broken)).await;
        assert_eq!(counts(&members), (1, 2));
        let is_ejected = |health: &&Health| health.last_report(&Group::Readiness).reason == Some(GroupReason::Ejected);
        let dead = members.iter().find(is_ejected).unwrap();
        let others: Vec<_> = members.iter().filter(|health| !is_ejected(health)).cloned().collect();
        // It stands still: before its row expires, it does not count itself as ejected any more.
        let goes_on = async {
            world.clock.sleep(S(26)).await;
            assert_ne!(dead.last_report(&Group::Readiness).reason, Some(GroupReason::Ejected));
            world.clock.sleep(S(60)).await;
        };
        let alive = futures::future::join_all(others.iter().map(|health| health.run(pending())));
        futures::future::select(Box::pin(alive), Box::pin(goes_on)).await;
        assert_eq!(counts(&others).0, 1);
    };
    world.run(S(300), script).unwrap();
}

// Guarantee: health 4.
#[test]
fn the_requests_of_five_hundred_members_that_lose_a_dependency_at_once_are_bounded() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    let (world, db, told) = (World::new(), Thing::default(), Told::default());
    let (requests, reads) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = (requests.clone(), reads.clone());
    let store: Arc<dyn Store> = Arc::new(steadfast::store::InMemoryStore::builder().clock(&world.clock).build());
    let store: Arc<dyn Store> = Arc::new(crate::world::Counted { store, requests: counted.0, reads: counted.1 });
    let members: Vec<_> = (0..500).map(|i| member(&world, store.clone(), i, &db, &told)).collect();
    let all = futures::future::join_all(members.iter().map(|health| health.run(pending())));
    let script = async {
        world.clock.sleep(S(30)).await;
        let idle = requests.swap(0, SeqCst);
        assert_eq!(reads.load(SeqCst), 0, "nobody reads the fleet while all is well");
        // One renewal in ten seconds each.
        assert!(idle <= 500 * 4, "{idle}");
        db.breaks();
        world.clock.sleep(S(30)).await;
        let busy = requests.swap(0, SeqCst);
        assert_eq!(counts(&members), (250, 250));
        // Each renews its row and its slot every ten seconds, and looks for a slot as often, with six requests at most.
        println!("500 members, 30 s: {idle} requests without, {busy} with the loss of a dependency");
        assert!(busy <= 500 * 12, "{busy}");
    };
    world.run(S(100), async { futures::future::select(Box::pin(script), Box::pin(all)).await }).unwrap();
}

// Guarantee: health 4.
#[test]
fn a_member_that_crashes_at_any_request_leaves_no_more_than_its_slot_and_that_for_a_time() {
    for engine in Engine::ALL {
        let requests = crash_at_every_write(|process| {
            let engine = engine.world();
            let (world, db, told) = (World::at(&engine.time), Thing::default(), Told::default());
            let other = member(&world, engine.store.clone(), 2, &db, &told);
            let crashes = member(&world, process.store(engine.store.clone()), 1, &db, &told);
            let first = async {
                futures::join!(
                    process.run(crashes.run(world.clock.sleep(S(40)))),
                    other.run(world.clock.sleep(S(120)))
                );
            };
            let judged = async {
                world.clock.sleep(S(1)).await;
                db.breaks();
                for second in 1..120 {
                    world.clock.sleep(S(1)).await;
                    // From its end on it is no member.
                    let members = if second < 38 { vec![crashes.clone(), other.clone()] } else { vec![other.clone()] };
                    assert!(counts(&members).0 <= 1);
                }
            };
            world.run(S(200), async { futures::join!(first, judged) }).unwrap();
        });
        assert!(requests >= 3, "{requests}");
    }
}

#[test]
fn a_watch_dropped_at_every_await_ejects_no_more_than_the_slots() {
    let (world, db, told) = (World::new(), Thing::default(), Told::default());
    let store = Arc::new(Moody::new(&world.clock));
    store.is(Mode::Slow(MS(10)));
    let members: Vec<_> = (0..3).map(|i| member(&world, store.clone(), i, &db, &told)).collect();
    world.run(S(4), futures::future::join_all(members.iter().map(|health| health.run(pending()))));
    db.breaks();
    world.run(S(20), futures::future::join_all(members[1..].iter().map(|health| health.run(pending()))));
    let polls = drop_at_every_await(
        &world.time,
        || world.with_tasks(members[0].run(world.clock.sleep(S(12)))),
        |_| {
            assert!(counts(&members).0 <= 1);
            let rows = block_on(store.store.scan_all(Scan::partition("health shop"))).unwrap();
            assert!(rows.iter().filter(|row| row.row.starts_with("slot")).count() <= 1);
        },
    );
    assert!(polls > 3, "{polls}");
}

// Guarantee: health 4.
#[test]
fn a_member_that_was_never_ready_is_not_because_of_a_fleet() {
    let (world, db, told) = (World::new(), Thing::default(), Told::default());
    let store: Arc<dyn Store> = Arc::new(steadfast::store::InMemoryStore::builder().clock(&world.clock).build());
    db.breaks();
    let health = member(&world, store, 1, &db, &told);
    assert_eq!(health.last_report(&Group::Readiness).status, Is::Unhealthy);
    world.run(S(60), health.run(world.clock.sleep(S(30))));
    assert!(!health.is_fit());
    db.heals();
    world.run(S(60), health.run(world.clock.sleep(S(30))));
    assert!(health.is_fit());
}

// Guarantee: health 4.
#[test]
fn members_that_left_return_when_the_fleet_becomes_smaller() {
    let (world, db, told) = (World::new(), Thing::default(), Told::default());
    let store: Arc<dyn Store> = Arc::new(steadfast::store::InMemoryStore::builder().clock(&world.clock).build());
    let members: Vec<_> = (0..8).map(|i| member(&world, store.clone(), i, &db, &told)).collect();
    let run = |which: Vec<usize>| {
        let runs = which.into_iter().map(|i| members[i].run(pending())).collect::<Vec<_>>();
        futures::future::join_all(runs)
    };
    world.run(S(10), run((0..8).collect()));
    db.breaks();
    world.run(S(40), run((0..8).collect()));
    assert_eq!(counts(&members), (4, 4));
    // Those that stayed are gone.
    let left = (0..8).filter(|i| members[*i].last_report(&Group::Readiness).reason == Some(GroupReason::Ejected));
    let left: Vec<_> = left.collect();
    world.run(S(60), run(left.clone()));
    let left: Vec<_> = left.iter().map(|i| members[*i].clone()).collect();
    assert_eq!(counts(&left), (2, 2));
}

// Guarantee: health 4.
#[test]
fn members_that_stop_or_fail_by_themselves_are_not_counted_and_hold_no_slot() {
    let (world, db, told) = (World::new(), Thing::default(), Told::default());
    let store: Arc<dyn Store> = Arc::new(steadfast::store::InMemoryStore::builder().clock(&world.clock).build());
    let disks: Vec<_> = (0..8).map(|_| Thing::default()).collect();
    let members: Vec<_> = (0..8)
        .map(|i| {
            let built = told.by(builder(&world, HealthConfig::default())).entropy(&Entropy::from_seed(i as u64));
            let built = built.check(db.dependency("db").required()).check(disks[i].local("disk"));
            built.fleet(store.clone(), format!("replica-{i}")).build().unwrap()
        })
        .collect();
    let all = futures::future::join_all(members.iter().map(|health| health.run(pending())));
    let script = async {
        world.clock.sleep(S(10)).await;
        // Two fail by themselves, and two are about to stop.
        disks[..2].iter().for_each(Thing::breaks);
        futures::future::join_all(members[2..4].iter().map(Health::stopping)).await;
        world.clock.sleep(S(20)).await;
        assert_eq!(rows_at(&store).await, (4, 0), "four are left");
        db.breaks();
        world.clock.sleep(S(40)).await;
        assert_eq!(counts(&members[4..]), (2, 2), "half of the four");
        assert_eq!(rows_at(&store).await, (4, 2));
        // The disks are well again: two more members, and one more slot.
        disks[..2].iter().for_each(Thing::heals);
        for _ in 0..60 {
            world.clock.sleep(S(1)).await;
            assert!(counts(&members).0 <= 3);
        }
        assert_eq!((counts(&members), rows_at(&store).await), ((3, 3), (6, 3)));
        // One that was ejected fails by itself: another one has its slot, and the one member less is a slot less.
        let ejected = members
            .iter()
            .position(|health| health.last_report(&Group::Readiness).reason == Some(GroupReason::Ejected));
        disks[ejected.unwrap()].breaks();
        world.clock.sleep(S(40)).await;
        assert_eq!((counts(&members), rows_at(&store).await), ((2, 3), (5, 2)));
    };
    let both = futures::future::select(Box::pin(script), Box::pin(all));
    assert!(matches!(world.run(S(300), both), Some(futures::future::Either::Left(_))));
}

/// Returns the numbers of members and of slots.
async fn rows_at(store: &Arc<dyn Store>) -> (usize, usize) {
    let rows = store.scan_all(Scan::partition("health shop")).await.unwrap();
    let of = |prefix: &str| rows.iter().filter(|row| row.row.starts_with(prefix)).count();
    (of("member"), of("slot"))
}

// Guarantee: health 4.
#[test]
fn a_renewal_whose_reply_is_lost_neither_returns_the_member_nor_costs_a_slot() {
    let (world, db, told) = (World::new(), Thing::default(), Told::default());
    let store: Arc<dyn Store> = Arc::new(steadfast::store::InMemoryStore::builder().clock(&world.clock).build());
    let ports = [ScriptedPort::new(&world.clock), ScriptedPort::new(&world.clock)];
    let members: Vec<_> = (0..2).map(|i| member(&world, ports[i].store(store.clone()), i, &db, &told)).collect();
    let all = futures::future::join_all(members.iter().map(|health| health.run(pending())));
    let script = async {
        world.clock.sleep(S(10)).await;
        db.breaks();
        world.clock.sleep(S(30)).await;
        let reason = |i: usize| members[i].last_report(&Group::Readiness).reason;
        let which = usize::from(reason(1) == Some(GroupReason::Ejected));
        // From now on each write is made, and its reply lost, every other time.
        let mut number = 0;
        ports[which].by(move |call| {
            number += u32::from(call.method == "put");
            let loses = call.method == "put" && number % 2 == 0;
            if loses { PortAnswer::lose(PortErrorKind::Unavailable) } else { PortAnswer::pass() }
        });
        for _ in 0..100 {
            world.clock.sleep(S(1)).await;
            assert_eq!(reason(which), Some(GroupReason::Ejected));
            assert_eq!(rows_at(&store).await.1, 1);
        }
    };
    let both = futures::future::select(Box::pin(script), Box::pin(all));
    assert!(matches!(world.run(S(300), both), Some(futures::future::Either::Left(_))));
    let events = told.all();
    assert!(!events.contains(&Event::Returned), "{events:?}");
}

// Guarantee: health 4.
#[test]
fn a_slot_that_is_lost_while_the_store_is_away_is_told_as_well() {
    let (world, db, told) = (World::new(), Thing::default(), Told::default());
    let store = Arc::new(Moody::new(&world.clock));
    let shared: Arc<dyn Store> = store.clone();
    let members: Vec<_> = (0..2).map(|i| member(&world, shared.clone(), i, &db, &told)).collect();
    let all = futures::future::join_all(members.iter().map(|health| health.run(pending())));
    let script = async {
        world.clock.sleep(S(10)).await;
        db.breaks();
        world.clock.sleep(S(30)).await;
        assert_eq!(counts(&members), (1, 1));
        store.is(Mode::Fails(PortErrorKind::Unavailable));
        world.clock.sleep(S(40)).await;
        assert_eq!(counts(&members), (0, 2));
        store.is(Mode::Well);
        world.clock.sleep(S(40)).await;
        assert_eq!(counts(&members), (1, 1));
        let told = told.all();
        let ends: Vec<_> =
            told.iter().filter(|event| matches!(event, Event::Ejected { .. } | Event::Returned)).collect();
        assert!(matches!(ends[..], [Event::Ejected { .. }, Event::Returned, Event::Ejected { .. }]), "{ends:?}");
    };
    let both = futures::future::select(Box::pin(script), Box::pin(all));
    assert!(matches!(world.run(S(300), both), Some(futures::future::Either::Left(_))));
}

// Guarantee: health 4.
#[test]
fn a_fleet_whose_rows_are_more_than_one_page_is_counted_whole() {
    let (world, db, told) = (World::new(), Thing::default(), Told::default());
    let store: Arc<dyn Store> = Arc::new(steadfast::store::InMemoryStore::builder().clock(&world.clock).build());
    let store: Arc<dyn Store> = Arc::new(crate::world::SmallPages { store, rows: 3 });
    let members: Vec<_> = (0..10).map(|i| member(&world, store.clone(), i, &db, &told)).collect();
    let all = futures::future::join_all(members.iter().map(|health| health.run(pending())));
    let script = async {
        world.clock.sleep(S(10)).await;
        db.breaks();
        world.clock.sleep(S(40)).await;
        assert_eq!(counts(&members), (5, 5));
    };
    let both = futures::future::select(Box::pin(script), Box::pin(all));
    assert!(matches!(world.run(S(300), both), Some(futures::future::Either::Left(_))));
}

// Guarantee: health 4.
#[test]
fn above_five_hundred_members_nobody_leaves_and_the_requests_are_bounded() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    let (world, db, told) = (World::new(), Thing::default(), Told::default());
    let requests = Arc::new(AtomicUsize::new(0));
    let store: Arc<dyn Store> = Arc::new(steadfast::store::InMemoryStore::builder().clock(&world.clock).build());
    let store: Arc<dyn Store> =
        Arc::new(crate::world::Counted { store, requests: requests.clone(), reads: Arc::default() });
    let members: Vec<_> = (0..501).map(|i| member(&world, store.clone(), i, &db, &told)).collect();
    let all = futures::future::join_all(members.iter().map(|health| health.run(pending())));
    let script = async {
        world.clock.sleep(S(30)).await;
        db.breaks();
        requests.store(0, SeqCst);
        world.clock.sleep(S(60)).await;
        assert_eq!(counts(&members), (0, 501));
        // A renewal and a look, each in ten seconds, for each member.
        let busy = requests.load(SeqCst);
        println!("501 members, 60 s without their dependency: {busy} requests");
        assert!(busy <= 501 * 2 * 7, "{busy}");
        let events = told.all().iter().filter(|event| **event == Event::TooManyMembers).count();
        assert_eq!(events, 501, "told once by each");
    };
    let both = futures::future::select(Box::pin(script), Box::pin(all));
    assert!(matches!(world.run(S(300), both), Some(futures::future::Either::Left(_))));
}
