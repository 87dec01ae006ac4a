//! The length of a term, and the times at which a node may consider itself the leader.
mod by_message;
mod crashes;
mod drops;
mod edges;
mod terms;
pub(crate) mod world;

use std::{
    future::pending,
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
};

use steadfast::{
    leader_election::{Fenced, LeaderElection, LeaderElectionConfig, LeaderElectionEvent as Event, TermEnd},
    lease::InMemoryLease,
    store::{InMemoryStore, Key, StoreExt},
    testing::PortAnswer,
    time::{Clock, Instant, TimeSource},
};

use crate::leader_election::world::{DEADLINE, MS, POLL, REFUSED, S, TERM, WARNING, World, poll, takes, told};

// Guarantee: leader_election 2.
#[test]
fn a_term_counts_from_the_sending_of_the_call_that_was_granted_or_renewed() {
    World::each(|world| {
        let node = world.node("a");
        takes(&node.line, MS(500), MS(1500));
        let start = world.now();
        let mut leadership = world.run(S(10), node.campaign()).unwrap().unwrap();
        assert_eq!(world.now() - start, S(2));
        assert_eq!(leadership.deadline() - start, DEADLINE);
        // The renewals begin 5 s and 10 s after the start; the reply to the second is not received.
        assert!(world.run(S(9), leadership.lost()).is_none());
        assert_eq!(node.line.calls("renew").len(), 2);
        assert_eq!(leadership.deadline() - start, S(5) + DEADLINE);
    });
}

// Guarantee: leader_election 2.
#[test]
fn a_grant_whose_reply_arrives_after_the_term_makes_no_leader() {
    World::each(|world| {
        let node = world.node("a");
        let mut events = node.events();
        takes(&node.line, MS(0), S(1));
        {
            let mut campaign = pin!(node.campaign());
            assert!(poll(campaign.as_mut()).is_pending());
            world.time.advance(TERM * 2);
            assert!(poll(campaign.as_mut()).is_pending());
            assert!(!node.is_leader());
        }
        let told = told(&mut events);
        assert!(matches!(told[..], [Event::GrantedTooLate { took, .. }] if took == TERM * 2), "{told:?}");
        assert!(world.run(S(10), node.campaign()).unwrap().unwrap().is_leader());
    });
}

// Guarantee: leader_election 2.
#[test]
fn a_renewal_whose_reply_arrives_after_the_term_renews_nothing() {
    World::each(|world| {
        let node = world.node("a");
        let mut leadership = world.run(S(10), node.campaign()).unwrap().unwrap();
        takes(&node.line, MS(0), S(1));
        let mut lost = Box::pin(leadership.lost());
        assert!(poll(lost.as_mut()).is_pending());
        world.time.advance(S(5));
        assert!(poll(lost.as_mut()).is_pending());
        assert_eq!(node.line.calls("renew").len(), 1);
        world.time.advance(TERM * 2);
        assert!(!node.is_leader());
        assert_eq!(poll(lost.as_mut()), Poll::Ready(TermEnd::NotRenewed));
        assert!(!node.is_leader());
    });
}

// Guarantee: leader_election 3.
#[test]
fn the_time_out_of_a_renewal_is_clipped_to_what_is_left_of_the_term() {
    World::each(|world| {
        let node = world.node("a");
        let start = world.now();
        let mut leadership = world.run(S(10), node.campaign()).unwrap().unwrap();
        node.line.always("", PortAnswer::hang());
        assert_eq!(world.run(S(60), leadership.lost()), Some(TermEnd::NotRenewed));
        assert_eq!(world.now() - start, WARNING);
        let took: Vec<_> = node.line.calls("renew").iter().map(|call| call.ended.unwrap() - call.began).collect();
        let [whole @ .., clipped] = &took[..] else { panic!("no renewal") };
        assert!(!whole.is_empty() && whole.iter().all(|took| *took == S(3)), "{took:?}");
        assert!(*clipped < S(3), "{took:?}");
        assert_eq!(node.line.calls("renew").last().unwrap().ended.unwrap() - start, WARNING);
    });
}

// Guarantee: leader_election 4.
#[test]
fn without_the_store_the_work_has_ended_a_margin_before_the_term_is_over() {
    for mode in [REFUSED, PortAnswer::hang(), PortAnswer::silent()] {
        for obeys in [true, false] {
            World::each(|world| {
                let node = world.node("a");
                let start = world.now();
                let (told, ended) = (Mutex::new(None), Mutex::new(None));
                let work = async {
                    node.run(pending(), async |term| {
                        let _ends = Ends(&world.clock, &ended);
                        term.lost().await;
                        assert!(term.is_leader(), "there is the grace left");
                        *told.lock().unwrap() = Some(world.now() - start);
                        if !obeys {
                            pending().await
                        }
                    })
                    .await
                };
                let cut = async {
                    world.clock.sleep(S(7)).await;
                    node.line.always("", mode);
                    pending::<()>().await
                };
                world.run(S(30), async { tokio::join!(work, cut) });
                // Renewed for the last time 5 s after the start.
                assert_eq!(*told.lock().unwrap(), Some(S(5) + WARNING), "{mode:?}");
                let ended = ended.lock().unwrap().unwrap() - start;
                assert_eq!(ended, S(5) + if obeys { WARNING } else { DEADLINE }, "{mode:?}");
                assert!(ended <= S(5) + TERM - S(1));
            });
        }
    }
}

/// Records the time at which it is dropped.
struct Ends<'a>(&'a Clock, &'a Mutex<Option<Instant>>);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        *self.1.lock().unwrap() = Some(self.0.now());
    }
}

// Guarantee: leader_election 5.
#[test]
fn a_term_too_short_for_its_renewals_is_refused_with_the_rule() {
    let build =
        |config: LeaderElectionConfig| LeaderElection::builder(Arc::new(InMemoryLease::new()), "job", config).build();
    let config = LeaderElectionConfig::default();
    let refused = build(config.term(S(15)).renew_every(S(14)).call_timeout(MS(11_600))).unwrap_err();
    assert_eq!(refused.field(), "term");
    assert!(refused.rule().contains("`renew_every + call_timeout + grace + margin`"), "{refused}");
    // Each of the four durations counts, and so does clock drift; equal to 14,985 ms is too long.
    let fits = config.renew_every(MS(9984));
    assert!(build(fits).is_ok());
    assert!(build(config.renew_every(MS(9985))).is_err());
    for one_more in [
        fits.call_timeout(MS(3001)),
        fits.grace(MS(1001)),
        fits.margin(MS(1001)),
        fits.term(MS(14_998)),
        fits.clock_drift(0.0011),
    ] {
        assert!(build(one_more).is_err(), "{one_more:?}");
    }
}

// Guarantee: leader_election 6.
#[test]
fn a_holder_that_was_paused_for_two_terms_does_not_lead_and_does_not_write() {
    World::each(|world| {
        let (old, new) = (world.node("old"), world.node("new"));
        let data = InMemoryStore::new();
        let (key, log) = (Key::new("report", "today"), Fenced::new(Vec::new()));
        let mut paused = world.run(S(10), old.campaign()).unwrap().unwrap();
        world.time.block_on(data.put_fenced(key, "old", paused.token())).unwrap();
        log.with(paused.token(), |log| log.push("old")).unwrap();

        let leads = world.run(TERM * 2, new.campaign()).unwrap().unwrap();
        world.time.block_on(data.put_fenced(key, "new", leads.token())).unwrap();
        log.with(leads.token(), |log| log.push("new")).unwrap();

        // The paused node continues, and knows at its first call.
        assert!(!paused.is_leader() && !paused.term().is_leader() && !old.is_leader());
        let late = world.time.block_on(data.put_fenced(key, "late", paused.token())).unwrap_err();
        assert!(late.is_fenced(), "{late}");
        log.with(paused.token(), |log| log.push("late")).unwrap_err();
        assert_eq!(log.into_inner(), ["old", "new"]);
        assert_eq!(world.run(S(1), paused.lost()), Some(TermEnd::NotRenewed));
        assert!(old.line.calls("renew").is_empty());
    });
}

/// A clock that is ahead of another one by a fixed duration.
struct Ahead(Clock, std::time::Duration);

impl TimeSource for Ahead {
    fn now(&self) -> Instant {
        self.0.now() + self.1
    }
    fn sleep_until(&self, at: Instant) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.0.sleep_until(at.saturating_sub(self.1)))
    }
}

// Guarantee: leader_election 7.
#[test]
fn wall_clocks_of_two_nodes_have_no_effect() {
    for leader_ahead in [true, false] {
        World::each(|world| {
            let ahead = Clock::from_source(Ahead(world.clock.clone(), S(3600)));
            let clock = |is_ahead: bool| if is_ahead { &ahead } else { &world.clock };
            let leader = world.node_on(clock(leader_ahead), "leader", |builder| builder);
            let other = world.node_on(clock(!leader_ahead), "other", |builder| builder);
            let mut leadership = world.run(S(10), leader.campaign()).unwrap().unwrap();
            // While the leader renews, no other node takes over.
            let both = async { tokio::join!(leadership.lost(), other.campaign()) };
            assert!(world.run(S(600), both).is_none());
            assert!(leadership.is_leader());
            // After its death another node does, neither before nor long after its term is over.
            let died = leader.line.calls("renew").last().unwrap().began;
            let _elected = world.run(S(60), other.campaign()).unwrap().unwrap();
            assert!(!leadership.is_leader());
            let after = world.now() - died;
            assert!(after >= TERM && after <= TERM + S(5) + POLL, "{after:?}");
        });
    }
}

// Guarantee: leader_election 7.
#[test]
fn no_source_file_of_the_election_or_the_lease_names_wall_time() {
    let src = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut read = 0;
    for room in ["patterns/leader_election", "ports/lease"] {
        for entry in std::fs::read_dir(src.join(room)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(!text.contains("Timestamp") && !text.contains("SystemTime"), "{}", path.display());
                read += 1;
            }
        }
    }
    assert!(read > 10);
}
