//! Edge cases: refused settings and backends, health, endless notices, two campaigns of one node.
use std::{
    cell::Cell,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use steadfast::{
    leader_election::{
        Call, Elector, Fenced, Leader, LeaderElection, LeaderElectionConfig, LeaderElectionEvent as Event, TermEnd,
    },
    lease::{Acquired, InMemoryLease, Lease},
    notify::{InMemoryNotifier, Notice, NoticeSource, Notices, Notifier},
    port::{BoxFuture, Capabilities, Capability, PortErrorKind, PortFuture},
    store::{Key, PutOptions, Store},
    testing::{PortAnswer, ScriptedPort},
    time::Clock,
};

use crate::leader_election::world::{DEADLINE, MS, POLL, S, TERM, WARNING, World, takes, told};

#[test]
fn settings_come_from_a_document_and_unknown_ones_are_refused() {
    let config: LeaderElectionConfig = toml::from_str("term = '30s'\nclock_drift = 0.01").unwrap();
    assert_eq!(config, LeaderElectionConfig::default().term(S(30)).clock_drift(0.01));
    let text = toml::to_string(&config).unwrap();
    assert_eq!(toml::from_str::<LeaderElectionConfig>(&text).unwrap(), config);
    assert!(toml::from_str::<LeaderElectionConfig>("terms = '30s'").is_err());
    assert_eq!(LeaderElectionConfig::of_term(TERM), LeaderElectionConfig::default());
    let build = |config| LeaderElection::builder(Arc::new(InMemoryLease::new()), "job", config).build();
    for term in [MS(15), S(3), S(60), S(3600)] {
        assert!(build(LeaderElectionConfig::of_term(term)).is_ok(), "{term:?}");
    }
    let config = LeaderElectionConfig::default();
    for (wrong, field) in [
        (config.term(MS(0)), "term"),
        (config.renew_every(MS(0)), "renew_every"),
        (config.call_timeout(MS(0)), "call_timeout"),
        (config.poll(MS(0)), "poll"),
        (config.clock_drift(-0.1), "clock_drift"),
        (config.clock_drift(f64::NAN), "clock_drift"),
        (config.clock_drift(0.5), "clock_drift"),
        (config.renew_every(Duration::MAX), "term"),
    ] {
        assert_eq!(build(wrong).unwrap_err().field(), field);
    }
    let name = |name: &str, id: &str| {
        LeaderElection::builder(Arc::new(InMemoryLease::new()), name.to_owned(), Default::default())
            .candidate(id)
            .build()
    };
    assert_eq!(name("", "a").unwrap_err().field(), "name");
    assert_eq!(name("job", "").unwrap_err().field(), "candidate");
    assert_eq!(name(&"x".repeat(2000), "a").unwrap_err().field(), "name");
}

#[test]
fn settings_without_bounds_overflow_nothing() {
    World::each(|world| {
        let _largest = LeaderElectionConfig::of_term(Duration::MAX);
        let config = LeaderElectionConfig::default().poll(Duration::MAX).health_tolerance(Duration::MAX);
        let node = world.node_of("a", config);
        // After its task has ended, the node waits for the longest duration before it asks again.
        let ran = node.run(world.clock.sleep(S(20)), async |_| assert!(node.health().healthy));
        assert!(world.run(S(60), ran).unwrap().is_ok());
        assert!(!node.is_leader());
    });
}

#[test]
fn futures_of_an_election_can_be_spawned() {
    fn spawnable<T: Send + 'static>(_: T) {}
    let world = World::in_memory();
    let election = world.node("a").election;
    let clock = world.clock.clone();
    spawnable(async move {
        election.run(clock.sleep(S(1)), |term| async move { term.lost().await }).await.unwrap();
        let mut leads = election.campaign().await.unwrap();
        leads.lost().await;
        leads.resign().await.unwrap();
        election.request_resign().await.unwrap();
        election.observe().recv().await;
        election.participate().await;
    });
}

/// Returns leases that lack one capability.
fn lacking(leases: InMemoryLease, capability: Capability) -> Arc<dyn Lease> {
    ScriptedPort::changing(&Clock::tokio(), move |can| can.without(capability)).lease(Arc::new(leases))
}

#[test]
fn leases_without_a_needed_capability_are_refused_by_its_name() {
    let leases = lacking(InMemoryLease::new(), Capability::Fencing);
    let refused = LeaderElection::builder(leases, "job", Default::default()).build().unwrap_err();
    assert_eq!(refused.field(), "leases");
    assert!(refused.rule().contains(Capability::Fencing.as_str()), "{refused}");
}

#[test]
fn a_campaign_over_leases_that_a_fail_over_may_forget_begins_with_a_warning() {
    let (clock, time) = Clock::manual();
    time.block_on(async {
        for (lacks, warns) in [(Capability::Linearizable, true), (Capability::Durable, false)] {
            let leases = lacking(InMemoryLease::builder().clock(&clock).build(), lacks);
            let election = LeaderElection::builder(leases, "job", Default::default()).clock(&clock).build().unwrap();
            let mut events = election.events();
            drop(election.campaign().await.unwrap());
            let first = events.recv().await.unwrap().what;
            assert_eq!(matches!(first, Event::GrantsMayBeForgotten { backend: "memory" }), warns, "{first:?}");
        }
    });
}

#[test]
fn a_second_campaign_of_one_node_ends_its_first_term_before_the_next_begins() {
    World::each(|world| {
        let node = world.node("a");
        let first = world.run(S(1), node.campaign()).unwrap().unwrap();
        let second = world.run(S(1), node.clone().campaign()).unwrap().unwrap();
        assert!(second.token() > first.token());
        assert!(second.is_leader() && !first.is_leader());
        // The end of the first term does not affect the second.
        drop(first);
        assert!(second.is_leader() && node.is_leader());
        assert_eq!(node.leader(), Leader::Own(second.token()));
    });
}

/// A subscription whose connection breaks again and again.
#[derive(Debug)]
struct Breaks;

impl Notifier for Breaks {
    fn capabilities(&self) -> Capabilities {
        InMemoryNotifier::new().capabilities()
    }
    fn publish<'a>(&'a self, _: &'a str, _: bytes::Bytes) -> PortFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }
    fn subscribe<'a>(&'a self, _: &'a str) -> PortFuture<'a, Notices> {
        Box::pin(async { Ok(Notices::new(Breaks)) })
    }
}

impl NoticeSource for Breaks {
    fn recv(&mut self) -> BoxFuture<'_, Notice> {
        Box::pin(async { Notice::Gap })
    }
}

#[test]
fn endless_notices_do_not_cause_endless_calls() {
    World::each(|world| {
        let node = |id| world.node_with(id, |b| b.notifier(Arc::new(Breaks)));
        let (leader, other) = (node("a"), node("b"));
        let mut leads = world.run(S(1), leader.campaign()).unwrap().unwrap();
        // `lost` comes first: a future that never waits would block this thread.
        assert!(world.run(S(10), async { tokio::join!(leads.lost(), other.campaign()) }).is_none());
        for calls in [leader.line.calls("renew").len(), other.line.calls("acquire").len()] {
            assert!((2..=210).contains(&calls), "{calls}");
        }
    });
}

#[test]
fn health_is_bad_when_a_leader_has_not_renewed_for_its_term_and_the_tolerance() {
    World::each(|world| {
        let node = world.node("a");
        assert!(node.health().healthy && !node.health().leading);
        let mut leads = world.run(S(1), node.campaign()).unwrap().unwrap();
        assert!(world.run(S(6), leads.lost()).is_none());
        let health = node.health();
        assert!(health.healthy && health.leading);
        assert_eq!(health.since_renewal, Some(S(1)), "renewed 5 s after the start");
        world.time.advance(TERM + S(5) - S(1));
        assert!(node.health().healthy, "the tolerance is included");
        world.time.advance(MS(1));
        assert!(!node.health().healthy);
        drop(leads);
        assert!(node.health().healthy && !node.health().leading);
    });
}

#[test]
fn an_unhealthy_leader_resigns_and_an_unhealthy_candidate_waits() {
    World::each(|world| {
        let fit = Arc::new(AtomicBool::new(true));
        let asked = fit.clone();
        let ill = world.node_with("ill", |b| b.health_check(move || asked.load(Ordering::SeqCst)));
        let mut events = ill.events();
        let other = world.node("other");
        let leads = ill.run(pending(), async |term| term.lost().await);
        let stands = async {
            world.clock.sleep(S(1)).await;
            assert!(ill.is_leader());
            fit.store(false, Ordering::SeqCst);
            let leads = other.campaign().await.unwrap();
            let elected = world.now();
            leads.resign().await.unwrap();
            world.clock.sleep(S(60)).await;
            assert!(!ill.is_leader(), "it waits");
            fit.store(true, Ordering::SeqCst);
            world.clock.sleep(S(5)).await;
            assert!(ill.is_leader());
            elected
        };
        let start = world.now();
        let both = async {
            tokio::select! { _ = leads => unreachable!(), at = stands => at }
        };
        let elected = world.run(S(200), both).unwrap();
        assert!(elected - start <= S(5) + POLL, "at the next renewal");
        let told = told(&mut events);
        assert!(told.iter().any(|e| matches!(e, Event::Ended { why: TermEnd::Unhealthy, released: true, .. })));
    });
}

#[test]
fn a_candidate_whose_task_has_ended_lets_others_ask_first() {
    World::each(|world| {
        let (a, b) = (world.node("a"), world.node("b"));
        let order = std::sync::Mutex::new(Vec::new());
        let work = |node: &'static str| {
            let (order, clock) = (&order, &world.clock);
            move |_| async move {
                order.lock().unwrap().push(node);
                clock.sleep(S(10)).await;
            }
        };
        let both = async { tokio::join!(a.run(pending(), work("a")), b.run(pending(), work("b"))) };
        assert!(world.run(S(100), both).is_none());
        let order = order.into_inner().unwrap();
        assert!(order.len() >= 6 && order.windows(2).all(|pair| pair[0] != pair[1]), "{order:?}");
    });
}

#[test]
fn a_stalled_task_is_dropped_at_its_deadline_when_the_store_fails_too() {
    World::each(|world| {
        let node = world.node("a");
        let mut events = node.events();
        let start = world.now();
        let leads = node.run(world.clock.sleep(S(20)), async |_| pending().await);
        let cut = async {
            world.clock.sleep(S(33)).await;
            assert!(node.is_leader(), "kept while it stalls");
            node.line.always("", PortAnswer::hang());
            pending::<()>().await
        };
        let both = async {
            tokio::select! { ran = leads => ran, () = cut => unreachable!() }
        };
        world.run(S(100), both).unwrap().unwrap();
        let renewed = node.line.calls("renew").iter().rfind(|call| call.ended == Some(call.began)).unwrap().began;
        // The release timed out.
        assert_eq!(world.now() - renewed, DEADLINE + S(3));
        assert!(renewed - start > S(25));
        let told = told(&mut events);
        let [.., dropped, failed, ended] = &told[..] else { panic!("{told:?}") };
        assert!(matches!(dropped, Event::TaskDropped { .. }), "{told:?}");
        assert!(matches!(failed, Event::CallFailed { call: Call::Release, .. }), "{told:?}");
        assert!(matches!(ended, Event::Ended { why: TermEnd::NotRenewed, released: false, .. }), "{told:?}");
    });
}

#[test]
fn reports_of_a_stall_do_not_interrupt_slow_renewals() {
    World::each(|world| {
        let node = world.node("a");
        let mut events = node.events();
        takes(&node.line, MS(0), MS(2500));
        // The task is told to end after 20 s and ends after 90 s.
        let ran = node.run(world.clock.sleep(S(20)), async |term| {
            world.clock.sleep(S(90)).await;
            assert!(term.is_leader());
        });
        world.run(S(200), ran).unwrap().unwrap();
        let renewals = node.line.calls("renew");
        // Shutdown interrupts the first renewal, and the end of the task the last one.
        let cut = renewals.iter().filter(|call| call.ended.unwrap() - call.began != MS(2500)).count();
        assert!(renewals.len() > 15 && cut <= 2, "{cut} of {}", renewals.len());
        let told = told(&mut events);
        assert!(!told.iter().any(|e| matches!(e, Event::TaskDropped { .. })), "{told:?}");
    });
}

#[test]
fn a_leader_whose_lease_was_granted_anew_ends_its_task_at_its_next_renewal_and_releases_nothing() {
    World::each(|world| {
        let node = world.node("a");
        let mut events = node.events();
        let dropped = Cell::new(None);
        let leads = node.run(pending(), async |_| {
            let _ends = Ends(&dropped, world);
            pending().await
        });
        let taken = async {
            world.clock.sleep(S(7)).await;
            // Another process acquires it under the same id: only the token differs.
            let granted = node.leases.acquire("job", node.holder(), TERM * 10).await.unwrap();
            assert!(matches!(granted, Acquired::Granted(_)));
            world.clock.sleep(S(4)).await;
            assert_eq!(dropped.get(), Some(S(10)), "when the second renewal was refused");
            assert!(!node.is_leader());
            assert!(node.leases.read("job").await.unwrap().is_some(), "the new grant stands");
        };
        let start = world.now();
        assert_eq!(start.as_nanos(), 1_000_000_000);
        let both = async {
            tokio::select! { _ = leads => unreachable!(), () = taken => () }
        };
        world.run(S(100), both).unwrap();
        let told = told(&mut events);
        let ended = told
            .iter()
            .find_map(|e| if let Event::Ended { why, released, .. } = e { Some((*why, *released)) } else { None });
        assert_eq!(ended, Some((TermEnd::Superseded, false)), "{told:?}");
    });
}

/// Records the time at which it is dropped, counted from the clock's start.
struct Ends<'a>(&'a Cell<Option<Duration>>, &'a World);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.set(Some(Duration::from_nanos(self.1.now().as_nanos() - 1_000_000_000)));
    }
}

#[test]
fn a_record_that_is_not_a_lease_is_refused_and_left_as_it_is() {
    let world = World::over_store();
    let store = world.store.clone().unwrap();
    let record = Key::new("leases", "lease job");
    let (node, other) = (world.node("a"), world.node("b"));
    let mut events = node.events();
    let foreign = |text: &'static str| world.time.block_on(store.put(record, text.into(), PutOptions::new())).unwrap();
    let mut asked = 0;
    let is_there = || world.time.block_on(store.get(record)).unwrap().map(|record| record.value);
    use PortErrorKind::{Corrupt, TooNew};
    for (text, kind, reason) in [
        ("", Corrupt, "is not a lease"),
        ("the cron table", Corrupt, "is not a lease"),
        ("lease 2\nholder b", TooNew, "newer release"),
        ("lease 1\ntoken x\nterm 1\nb", Corrupt, "is not a lease"),
    ] {
        let version = foreign(text);
        let error = world.run(S(60), node.campaign()).expect("the candidate stops asking").unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        asked += 1;
        assert!(!node.is_leader() && node.line.calls("acquire").len() == asked, "{text}");
        let told = told(&mut events);
        assert!(
            matches!(told[..], [Event::CallFailed { call: Call::Acquire, kind: Some(found), .. }] if found == kind),
            "{told:?}"
        );
        assert!(world.run(S(1), other.request_resign()).unwrap().is_err());
        let kept = world.time.block_on(store.get(record)).unwrap().unwrap();
        assert_eq!((kept.value.as_ref(), kept.version), (text.as_bytes(), version));
    }
    // A foreign record replaces a held lease: the leader does not overwrite it, and ends in time.
    world.time.block_on(store.delete(record, Default::default())).unwrap();
    let mut leads = world.run(S(1), node.campaign()).unwrap().unwrap();
    let began = world.now();
    foreign("the cron table");
    assert_eq!(world.run(S(60), leads.lost()), Some(TermEnd::NotRenewed));
    assert!(world.now() <= began + WARNING);
    assert!(world.run(S(10), leads.resign()).unwrap().is_err());
    assert_eq!(is_there().unwrap(), "the cron table");
}

/// The pitfall of a record that is deleted behind the lease, as the page describes it.
#[test]
fn after_its_record_was_deleted_a_leader_believes_in_its_term_until_it_renews_or_the_term_is_over() {
    for cut_off in [false, true] {
        let world = World::over_store();
        let store = world.store.clone().unwrap();
        let (old, new) = (world.node("old"), world.node("new"));
        let mut leads = world.run(S(1), old.campaign()).unwrap().unwrap();
        let began = world.now();
        let fenced = Fenced::new(0);
        fenced.with(leads.token(), |written| *written += 1).unwrap();
        world.time.block_on(store.delete(Key::new("leases", "lease job"), Default::default())).unwrap();
        if cut_off {
            old.line.always("", PortAnswer::hang());
        }
        let successor = world.run(S(1), new.campaign()).unwrap().unwrap();
        assert!(leads.is_leader() && successor.is_leader(), "two believe that they lead");
        assert!(successor.token() > leads.token());
        fenced.with(successor.token(), |written| *written += 1).unwrap();
        let late = fenced.with(leads.token(), |written| *written += 1);
        assert!(late.is_err(), "the resource tells them apart");
        let why = world.run(S(60), leads.lost()).unwrap();
        if cut_off {
            assert_eq!((why, leads.is_leader()), (TermEnd::NotRenewed, true));
            world.time.advance_to(began + DEADLINE);
        } else {
            assert_eq!((why, world.now() - began), (TermEnd::Superseded, S(5)), "its next renewal fails");
        }
        assert!(!leads.is_leader());
    }
}
