//! Successive terms: tokens, unknown outcomes, resignation, many candidates, stalled tasks.
use std::{
    collections::BTreeSet,
    future::pending,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::future::join_all;
use steadfast::{
    leader_election::{Call, Leader, LeaderElectionEvent as Event, TermEnd},
    notify::InMemoryNotifier,
    store::{DeleteOptions, Key, Store},
    testing::PortAnswer,
};

use crate::leader_election::world::{DEADLINE, MS, POLL, S, TERM, World, poll, told};

// Guarantee: leader_election 8.
#[test]
fn tokens_grow_across_terms_resignations_restarts_and_a_deleted_record() {
    World::each(|world| {
        let mut tokens = Vec::new();
        let elect = |node: &crate::leader_election::world::Node| world.run(S(60), node.campaign()).unwrap().unwrap();
        let (a, b) = (world.node("a"), world.node("b"));
        let first = elect(&a);
        tokens.push(first.token());
        world.run(S(1), first.resign()).unwrap().unwrap();
        // Elected again after a resignation, then superseded because it does not renew.
        tokens.push(elect(&a).token());
        tokens.push(elect(&b).token());
        // A restarted process is another candidate, with another instance.
        let restarted = world.node("b");
        assert_ne!(restarted.holder(), b.holder());
        tokens.push(elect(&restarted).token());
        if let Some(store) = &world.store {
            for (partition, row) in store.records().keys() {
                let deleted = store.delete(Key::new(partition, row), DeleteOptions::new());
                assert!(world.time.block_on(deleted).unwrap());
            }
        }
        tokens.push(elect(&world.node("c")).token());
        assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
    });
}

// Guarantee: leader_election 9.
#[test]
fn a_grant_whose_reply_was_lost_is_not_assumed_but_asked_for_again() {
    World::each(|world| {
        let (node, other) = (world.node("a"), world.node("b"));
        let mut events = node.events();
        node.line.always("", PortAnswer::silent());
        let start = world.now();
        let campaign = async {
            world.clock.sleep(S(4)).await;
            assert!(!node.is_leader(), "the node assumes no grant");
            node.line.always("", PortAnswer::pass());
            pending::<()>().await
        };
        let both = async {
            tokio::select! { elected = node.campaign() => elected, () = campaign => unreachable!() }
        };
        // The record is the node's own, by the number in its id, so it need not wait for the term to pass.
        let leadership = world.run(TERM, both).unwrap().unwrap();
        assert!(world.now() - start < S(4) + S(3) + POLL);
        let [first, .., last] = &node.line.calls("acquire")[..] else { panic!("the node asked only once") };
        assert_eq!(leadership.deadline(), last.began + DEADLINE, "counted from the call that was answered");
        assert_eq!(first.ended.unwrap() - first.began, S(3));
        let told = told(&mut events);
        assert_eq!(told[0], Event::CallFailed { call: Call::Acquire, kind: None, left: None });
        assert!(world.run(S(5), other.campaign()).is_none(), "the name is held");
    });
}

// Guarantee: leader_election 9.
#[test]
fn a_grant_whose_reply_is_never_received_delays_the_next_leader_by_its_term() {
    World::each(|world| {
        let (node, other) = (world.node("a"), world.node("b"));
        node.line.always("", PortAnswer::silent());
        let start = world.now();
        assert!(world.run(MS(1), node.campaign()).is_none());
        let _leads = world.run(S(60), other.campaign()).unwrap().unwrap();
        assert!(!node.is_leader());
        assert!(world.now() - start >= TERM && world.now() - start <= TERM + POLL);
    });
}

// Guarantee: leader_election 9.
#[test]
fn a_renewal_whose_reply_was_lost_is_not_counted_and_the_next_one_is() {
    World::each(|world| {
        let node = world.node("a");
        let start = world.now();
        let mut leadership = world.run(S(1), node.campaign()).unwrap().unwrap();
        let token = leadership.token();
        node.line.always("", PortAnswer::silent());
        assert!(world.run(MS(7900), leadership.lost()).is_none());
        assert_eq!(node.line.calls("renew").len(), 1);
        assert_eq!(leadership.deadline() - start, DEADLINE, "as if it had not been applied");
        node.line.always("", PortAnswer::pass());
        assert!(world.run(MS(200), leadership.lost()).is_none());
        let renewed = node.line.calls("renew");
        assert_eq!(renewed.len(), 2);
        assert_eq!(leadership.deadline(), renewed[1].began + DEADLINE);
        assert_eq!(leadership.token(), token);
    });
}

// Guarantee: leader_election 10.
#[test]
fn an_expired_record_of_the_node_itself_is_acquired_anew_and_never_renewed() {
    World::each(|world| {
        let node = world.node("a");
        let mut leadership = world.run(S(1), node.campaign()).unwrap().unwrap();
        let expired = leadership.token();
        world.time.advance(TERM);
        assert_eq!(world.run(S(1), leadership.lost()), Some(TermEnd::NotRenewed));
        assert!(node.line.calls("renew").is_empty());
        let renewed = steadfast::lease::Lease::renew(&*node.leases, "job", node.holder(), expired, TERM);
        assert!(world.time.block_on(renewed).unwrap_err().is_not_held());
        let anew = world.run(S(1), node.campaign()).unwrap().unwrap();
        assert!(anew.token() > expired && anew.is_leader() && !leadership.is_leader());
    });
}

// Guarantee: leader_election 11.
#[test]
fn after_a_resignation_a_successor_leads_at_once_with_notices_and_within_a_poll_without() {
    for notices in [true, false] {
        World::each(|world| {
            let notifier = Arc::new(InMemoryNotifier::new());
            let node = |id| world.node_with(id, |b| if notices { b.notifier(notifier.clone()) } else { b });
            let (first, second) = (node("first"), node("second"));
            for after in [S(0), MS(300), MS(1700), S(7)] {
                let mut leads = world.run(S(60), first.campaign()).unwrap().unwrap();
                let successor = async {
                    let leads = second.campaign().await.unwrap();
                    (world.now(), leads)
                };
                let resigns = async {
                    tokio::select! { why = leads.lost() => panic!("{why:?}"), () = world.clock.sleep(after) => {} }
                    leads.resign().await.unwrap();
                    world.now()
                };
                let ((elected, leads), resigned) =
                    world.run(S(60), async { tokio::join!(successor, resigns) }).unwrap();
                assert!(elected - resigned <= if notices { MS(100) } else { POLL }, "{after:?}");
                world.run(S(1), leads.resign()).unwrap().unwrap();
            }
        });
    }
}

// Guarantee: leader_election 11.
#[test]
fn resigning_an_old_term_changes_nothing() {
    World::each(|world| {
        let (old, new) = (world.node("old"), world.node("new"));
        let paused = world.run(S(1), old.campaign()).unwrap().unwrap();
        let mut leads = world.run(S(60), new.campaign()).unwrap().unwrap();
        assert!(world.run(S(1), paused.resign()).unwrap().unwrap_err().is_not_held());
        assert!(world.run(S(60), async { tokio::join!(leads.lost(), old.campaign()) }).is_none());
        assert!(leads.is_leader() && !old.is_leader());
    });
}

// Guarantee: leader_election 11.
#[test]
fn any_node_can_make_the_leader_resign() {
    for notices in [true, false] {
        World::each(|world| {
            let notifier = Arc::new(InMemoryNotifier::new());
            let node = |id| world.node_with(id, |b| if notices { b.notifier(notifier.clone()) } else { b });
            let (leader, other, asks) = (node("leader"), node("other"), node("asks"));
            let mut events = leader.events();
            assert!(!world.run(S(1), asks.request_resign()).unwrap().unwrap(), "no node leads");
            let leads = leader.run(pending(), async |term| term.lost().await);
            let stands = async {
                world.clock.sleep(S(1)).await;
                let _leads = other.campaign().await.unwrap();
                world.now()
            };
            let asked = async {
                world.clock.sleep(S(7)).await;
                assert!(leader.is_leader());
                assert!(asks.request_resign().await.unwrap());
                world.now()
            };
            let all = async { tokio::join!(stands, asked) };
            let all = async {
                tokio::select! { _ = leads => unreachable!(), all = all => all }
            };
            let (elected, asked) = world.run(S(60), all).unwrap();
            assert!(elected - asked <= if notices { MS(100) } else { S(5) + POLL }, "{:?}", elected - asked);
            let told = told(&mut events);
            assert!(
                told.iter().any(|e| matches!(e, Event::Ended { why: TermEnd::ResignRequested, released: true, .. }))
            );
        });
    }
}

// Guarantee: leader_election 12.
#[test]
fn a_hundred_candidates_ask_about_once_a_poll_each_and_not_together() {
    World::each(|world| {
        let dies = world.node("dies");
        let dead = world.run(S(1), dies.campaign()).unwrap().unwrap();
        let nodes: Vec<_> = (0..100).map(|i| world.node(&format!("n{i}"))).collect();
        let time = TERM + S(30);
        let elected = AtomicBool::new(false);
        let all = nodes.iter().map(|node| async {
            let mut leads = node.campaign().await.unwrap();
            assert!(!elected.swap(true, Ordering::SeqCst), "one is elected");
            leads.lost().await
        });
        assert!(world.run(time, join_all(all)).is_none());
        assert!(elected.into_inner() && !dead.is_leader());
        let (mut starts, mut all) = (BTreeSet::new(), 0);
        for node in &nodes {
            let calls = node.line.calls("acquire");
            // Attempts are at least 0.7 polls apart, except the one when the term has passed.
            assert!(calls.len() as u32 <= time.as_millis() as u32 / 1400 + 2, "{}", calls.len());
            let close = calls.windows(2).filter(|pair| pair[1].began - pair[0].began < POLL.mul_f64(0.7)).count();
            assert!(close <= 1, "{close}");
            // The first calls are left out: in this test all candidates start at once.
            starts.extend(calls.iter().skip(1).map(|call| call.began));
            all += calls.len() - 1;
        }
        assert!(all > 1500);
        assert_eq!(starts.len(), all, "no two calls at the same time, before or after the term has passed");
    });
}

// Guarantee: leader_election 13.
#[test]
fn the_lease_of_a_stalled_task_is_kept_and_an_event_reports_it() {
    World::each(|world| {
        let (node, other) = (world.node("a"), world.node("b"));
        let mut events = node.events();
        let ended = AtomicBool::new(false);
        let leads = node.run(world.clock.sleep(S(20)), async |_| {
            // The task is told to end after 20 s and ends after 90 s.
            world.clock.sleep(S(90)).await;
            ended.store(true, Ordering::SeqCst);
        });
        let start = world.now();
        let stands = async {
            let _leads = other.campaign().await.unwrap();
            assert!(ended.load(Ordering::SeqCst), "the task has ended before another leads");
            world.now() - start
        };
        let (_, elected) = world.run(S(200), async { tokio::join!(leads, stands) }).unwrap();
        assert!(elected >= S(90) && elected <= S(90) + POLL, "{elected:?}");
        let told = told(&mut events);
        let stalled: Vec<_> = told
            .iter()
            .filter_map(|e| if let Event::TaskStalled { since, .. } = e { Some(*since) } else { None })
            .collect();
        assert_eq!(stalled[0], S(1), "after the grace");
        assert!(stalled.len() > 10 && stalled.is_sorted());
        assert!(told.iter().any(|e| matches!(e, Event::Ending { why: TermEnd::Shutdown, .. })));
        assert!(matches!(told.last(), Some(Event::Ended { why: TermEnd::Shutdown, released: true, .. })));
    });
}

#[test]
fn a_slow_observer_receives_every_change_of_leader_in_order() {
    for world in [World::in_memory(), World::over_store()] {
        let (a, b) = (world.node("a"), world.node("b"));
        let mut observer = a.observe();
        let mut expected = vec![Leader::Unknown];
        for _ in 0..1500 {
            let leads = world.run(S(60), a.campaign()).unwrap().unwrap();
            expected.push(Leader::Own(leads.token()));
            world.run(S(1), leads.resign()).unwrap().unwrap();
            expected.push(Leader::Unknown);
            let leads = world.run(S(60), b.campaign()).unwrap().unwrap();
            // `a` asks for the lease and is not granted it.
            let mut campaign = pin!(a.campaign());
            assert!(poll(campaign.as_mut()).is_pending());
            expected.push(Leader::Other { holder: b.holder().to_owned(), token: leads.token() });
            world.run(S(1), leads.resign()).unwrap().unwrap();
        }
        let told: Vec<_> = std::iter::from_fn(|| observer.try_recv()).collect();
        assert_eq!(told, expected);
    }
}
