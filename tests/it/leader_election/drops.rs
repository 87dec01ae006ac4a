//! The election's futures, dropped at every await point: no node leads without knowing it, and no
//! event is sent twice.
use std::{cell::Cell, future::pending, pin::pin, sync::Arc};

use steadfast::{
    leader_election::{Elector, Leader, LeaderElectionEvent as Event, TermEnd},
    notify::InMemoryNotifier,
    testing::drop_at_every_await,
};

use crate::leader_election::world::{DEADLINE, MS, REFUSED, S, TERM, WARNING, World, poll, takes, told, within};

#[test]
fn a_dropped_run_drops_its_task_and_ends_its_term_at_once() {
    World::each(|world| {
        let (node, other) = (world.node("a"), world.node("b"));
        let held = Cell::new(None);
        let ran = node.run(pending(), async |term| {
            held.set(Some(term));
            pending().await
        });
        assert!(world.run(S(7), ran).is_none());
        let term = held.take().unwrap();
        assert!(!term.is_leader() && !node.is_leader() && term.is_ending());
        let renewed = node.line.calls("renew").last().unwrap().began;
        let _leads = world.run(S(60), other.campaign()).unwrap().unwrap();
        assert!(world.now() - renewed >= TERM, "for others the term has to pass");
    });
}

#[test]
fn a_campaign_dropped_at_every_await_leaves_no_node_that_believes_to_lead() {
    World::each(|world| {
        let notifier = Arc::new(InMemoryNotifier::new());
        let (node, other) = (world.node_with("a", |b| b.notifier(notifier.clone())), world.node("b"));
        let held = world.run(S(1), other.campaign()).unwrap().unwrap();
        takes(&node.line, MS(100), MS(100));
        let polls = drop_at_every_await(
            &world.time,
            || node.campaign(),
            |_| {
                assert!(!node.is_leader() && !node.health().leading);
                // After any number of dropped campaigns, the node is granted the lease anew.
                if !held.is_leader() {
                    let leads = world.run(TERM * 2, node.campaign()).unwrap().unwrap();
                    assert!(leads.is_leader());
                    world.run(S(1), leads.resign()).unwrap().unwrap();
                }
            },
        );
        assert!(polls > 3, "{polls}");
    });
}

#[test]
fn lost_dropped_at_every_await_counts_no_unanswered_renewal() {
    World::each(|world| {
        let node = world.node("a");
        let mut leads = world.run(S(1), node.campaign()).unwrap().unwrap();
        takes(&node.line, MS(100), MS(100));
        let leads = tokio::sync::Mutex::new(&mut leads);
        // Each call continues from the state of the last one, until the store stops answering.
        let polls = drop_at_every_await(
            &world.time,
            || async {
                let mut leads = leads.try_lock().unwrap();
                leads.lost().await
            },
            |polls| {
                let calls = node.line.calls("renew");
                let answered = calls.iter().rfind(|call| call.ended.unwrap() - call.began == MS(200));
                if let Some(last) = answered {
                    assert_eq!(leads.try_lock().unwrap().deadline(), last.began + DEADLINE);
                }
                if polls == 12 {
                    node.line.always("", REFUSED);
                }
            },
        );
        assert!(polls > 12, "{polls}");
    });
}

#[test]
fn a_resignation_dropped_at_every_await_has_ended_the_term_and_reports_it_once() {
    World::each(|world| {
        let node = world.node_with("a", |b| b.notifier(Arc::new(InMemoryNotifier::new())));
        let mut events = node.events();
        takes(&node.line, MS(100), MS(100));
        let polls = drop_at_every_await(
            &world.time,
            || {
                // The record is the node's own, so it need not wait for the term to pass.
                let leads = world.run(S(1), node.campaign()).unwrap().unwrap();
                leads.resign()
            },
            |_| {
                assert!(!node.is_leader() && !node.health().leading);
                let told = told(&mut events);
                assert!(
                    matches!(told[..], [Event::Elected { token, .. }, Event::Ended { token: ended, .. }] if token == ended),
                    "{told:?}"
                );
            },
        );
        assert!(polls >= 3, "{polls}");
    });
}

#[test]
fn a_run_dropped_at_every_await_leaves_no_task_and_no_term() {
    World::each(|world| {
        let node = world.node("a");
        takes(&node.line, MS(100), MS(100));
        let running = Cell::new(0);
        struct Runs<'a>(&'a Cell<i32>);
        impl Drop for Runs<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() - 1);
            }
        }
        let polls = drop_at_every_await(
            &world.time,
            || {
                node.run(world.clock.sleep(S(12)), async |term| {
                    running.set(running.get() + 1);
                    let _runs = Runs(&running);
                    term.lost().await;
                    world.clock.sleep(MS(1500)).await;
                })
            },
            |_| {
                assert_eq!(running.get(), 0);
                assert!(!node.is_leader() && !node.health().leading);
            },
        );
        assert!(polls > 8, "{polls}");
    });
}

#[test]
fn requests_waits_and_observers_dropped_at_every_await_lose_nothing() {
    World::each(|world| {
        let (node, asks) = (world.node("a"), world.node("b"));
        let mut leads = world.run(S(1), node.campaign()).unwrap().unwrap();
        takes(&asks.line, MS(100), MS(100));
        let polls = drop_at_every_await(&world.time, || asks.request_resign(), |_| assert!(leads.is_leader()));
        assert!(polls >= 3, "{polls}");
        assert_eq!(world.run(S(20), leads.lost()), Some(TermEnd::ResignRequested));
        world.run(S(1), leads.resign()).unwrap().unwrap();

        // Each waiting task is told of the end of a term, also one whose earlier wait was dropped
        // and one that starts later.
        let began = world.now();
        let leads = world.run(S(1), node.campaign()).unwrap().unwrap();
        let (term, clock) = (leads.term(), &world.clock);
        let waits = || async {
            for time in [S(4), S(4), S(60)] {
                let told = within(clock, time, term.lost()).await.is_some();
                assert_eq!(told, clock.now() >= began + WARNING, "{:?}", clock.now() - began);
            }
        };
        let mut dropped_early = 0;
        let polls = drop_at_every_await(&world.time, waits, |_| {
            // The term is not renewed: its tasks are told at the warning, and not before.
            assert_eq!(term.is_ending(), world.now() >= began + WARNING, "{:?}", world.now() - began);
            dropped_early += u64::from(!term.is_ending());
        });
        assert!(polls >= 1 && dropped_early >= 2, "{polls} {dropped_early}");
        assert!(term.is_ending() && poll(pin!(term.lost())).is_ready());
        drop(leads);

        let mut observer = node.observe();
        {
            let mut recv = pin!(observer.recv());
            assert!(poll(recv.as_mut()).is_ready());
        }
        {
            let mut recv = pin!(observer.recv());
            assert!(poll(recv.as_mut()).is_pending());
        }
        let leads = world.run(S(1), node.campaign()).unwrap().unwrap();
        assert_eq!(observer.try_recv(), Some(Leader::Own(leads.token())));
        drop(leads);

        // The interface of all strategies: a node participates until the future is dropped.
        let strategy: &dyn Elector = &node.election;
        assert!(world.run(S(60), strategy.participate()).is_none());
        assert!(!strategy.is_leader());
    });
}
