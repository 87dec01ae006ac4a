//! Rate limits that processes share through a store, on the manual clock.
use std::{
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use futures::future::join_all;
use steadfast::{
    Builder, Pipeline, Reason, Rejected,
    call::AttemptInfo,
    port::PortErrorKind,
    store::{InMemoryStore, Key, Store, StoreExt},
    testing::{
        ManualClock, drop_at_every_await,
        faults::{FaultClient, FaultConfig, FaultNetwork},
    },
    throttling::{Quota, SharedRateLimitConfig, SharedRateLimitEvent as Event, SharedRateLimiter, Sharing, WhenDown},
    time::{Clock, Timestamp},
};

use crate::cache_aside::world::World;

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;
const WALL: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// Ten a second, two at once.
fn ten() -> SharedRateLimitConfig {
    Quota::per_second(10).burst(2).into()
}

fn leased() -> SharedRateLimitConfig {
    SharedRateLimitConfig::from(Quota::per_second(100).burst(100)).leased(MS(100))
}

/// One store behind a network, and processes that share it.
struct Shared {
    clock: Clock,
    time: ManualClock,
    store: Arc<InMemoryStore>,
    network: FaultNetwork,
}

impl Shared {
    fn new() -> Self {
        let (clock, time) = Clock::manual();
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        let network = FaultNetwork::new(FaultConfig::default(), 1, &clock).unwrap();
        Self { clock, time, store, network }
    }

    fn client(&self, process: &str) -> FaultClient {
        self.network.client(process)
    }

    fn limiter(&self, process: &str, config: SharedRateLimitConfig) -> SharedRateLimiter {
        self.limiter_at(process, config, WALL)
    }

    fn builder(&self, process: &str, config: SharedRateLimitConfig) -> Builder<SharedRateLimiter> {
        let store = self.client(process).store(self.store.clone());
        SharedRateLimiter::builder(store, "payments", config).clock(&self.clock).wall_time(WALL)
    }

    fn limiter_at(&self, process: &str, config: SharedRateLimitConfig, wall: Timestamp) -> SharedRateLimiter {
        self.builder(process, config).wall_time(wall).build().unwrap()
    }

    fn acquire(&self, limiter: &SharedRateLimiter) -> Result<(), Rejected> {
        self.time.block_on(limiter.acquire())
    }

    fn requests(&self) -> u64 {
        self.network.counts().requests
    }
}

fn is_ready(future: impl Future<Output = Result<(), Rejected>>) -> bool {
    let mut future = Box::pin(future);
    matches!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())), std::task::Poll::Ready(Ok(())))
}

// Guarantee: throttling 9.
#[test]
fn processes_share_one_limit_exactly() {
    let shared = Shared::new();
    let (a, b) = (shared.limiter("a", ten()), shared.limiter("b", ten()));
    assert!(shared.acquire(&a).is_ok() && shared.acquire(&b).is_ok());
    let rejected = shared.acquire(&a).unwrap_err();
    assert_eq!((rejected.reason(), rejected.retry_after()), (Reason::RateLimited, Some(MS(100))));
    assert_eq!(rejected.name(), Some("payments"));
    assert!(shared.acquire(&b).is_err());
    shared.time.advance(MS(100));
    assert!(shared.acquire(&b).is_ok());
    assert_eq!(shared.acquire(&a).unwrap_err().retry_after(), Some(MS(100)), "b has taken it");
    // For ten seconds both processes try at every millisecond: the limit holds, and neither is
    // starved.
    let mut admitted = [0; 2];
    for _ in 0..10_000 {
        shared.time.advance(MS(1));
        for (i, limiter) in [&a, &b].into_iter().enumerate() {
            admitted[i] += u32::from(shared.acquire(limiter).is_ok());
        }
    }
    assert_eq!(admitted[0] + admitted[1], 100);
}

// Guarantee: throttling 9.
#[test]
fn an_exhausted_limit_is_not_asked_again() {
    let shared = Shared::new();
    let limiter = shared.limiter("a", ten());
    assert!(shared.acquire(&limiter).is_ok() && shared.acquire(&limiter).is_ok());
    let before = shared.requests();
    for _ in 0..1000 {
        assert!(shared.acquire(&limiter).is_err());
    }
    assert_eq!(shared.requests(), before);
}

// Guarantee: throttling 4, 9.
#[test]
fn calls_that_may_wait_reserve_their_turns_across_processes() {
    let shared = Shared::new();
    let (a, b) = (shared.limiter("a", ten().max_wait(MS(250))), shared.limiter("b", ten().max_wait(MS(250))));
    let start = shared.time.now();
    let took = |limiter: SharedRateLimiter| {
        let clock = shared.clock.clone();
        async move { limiter.acquire().await.map(|()| clock.now() - start) }
    };
    let calls = join_all([&a, &b, &a, &b, &a].map(|limiter| took(limiter.clone())));
    let mut waits: Vec<_> = shared.time.block_on(calls);
    let refused = waits.iter().filter(|wait| wait.is_err()).count();
    waits.retain(Result::is_ok);
    let mut waits: Vec<_> = waits.into_iter().flatten().collect();
    waits.sort_unstable();
    assert_eq!(waits, [MS(0), MS(0), MS(100), MS(200)]);
    assert_eq!(refused, 1, "a call with a wait of 300 ms is rejected at once");
}

// Guarantee: throttling 3, 9.
#[test]
fn a_call_for_more_permits_than_the_burst_is_rejected() {
    let shared = Shared::new();
    let limiter = shared.limiter("a", ten());
    assert_eq!(shared.time.block_on(limiter.acquire_n(3)).unwrap_err().reason(), Reason::TooLarge);
    assert!(shared.time.block_on(limiter.acquire_n(2)).is_ok());
    assert_eq!(shared.time.block_on(limiter.acquire_n(2)).unwrap_err().retry_after(), Some(MS(200)));
    assert!(shared.time.block_on(limiter.acquire_n(0)).is_ok());
}

#[test]
fn the_row_expires_once_it_equals_an_absent_one() {
    let shared = Shared::new();
    let limiter = shared.limiter("a", ten());
    assert!(shared.acquire(&limiter).is_ok());
    assert_eq!(shared.store.records().len(), 1);
    shared.time.advance(MS(151));
    assert!(shared.store.records().is_empty());
    assert!(shared.time.block_on(limiter.acquire_n(2)).is_ok());
}

/// The row of a fast limit once lasted for 2 ms, so that it was there for the read of another process and gone for its
/// write: a conflict with nobody, and two requests more.
#[test]
fn a_row_does_not_expire_between_a_read_and_the_write_that_follows() {
    let shared = Shared::new();
    shared.network.configure(FaultConfig::default().latency(MS(5), MS(5))).unwrap();
    let config = SharedRateLimitConfig::from(Quota::per_second(1_000));
    let (a, b) = (shared.limiter("a", config), shared.limiter("b", config));
    // The read of `b` arrives 1 ms after the write of `a`.
    let later = async {
        shared.clock.sleep(MS(11)).await;
        b.acquire().await
    };
    let (first, second) = shared.time.block_on(futures::future::join(a.acquire(), later));
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(shared.requests(), 4);
}

// Guarantee: throttling 9.
#[test]
fn a_lease_is_spent_without_the_store() {
    let shared = Shared::new();
    let limiter = shared.limiter("a", leased());
    // Ten calls in each tenth of a second: that is what is leased after the first.
    for _ in 0..10 {
        assert!(shared.acquire(&limiter).is_ok());
        shared.time.advance(MS(10));
    }
    let before = shared.requests();
    let mut ok = 0;
    for _ in 0..1000 {
        ok += u32::from(shared.acquire(&limiter).is_ok());
        shared.time.advance(MS(10));
    }
    let asked = shared.requests() - before;
    assert!(ok >= 990, "{ok}");
    assert!(asked <= 2 * 130, "a lease for each tenth of a second, each a read and a write: {asked}");
}

// Guarantee: throttling 9.
#[test]
fn unspent_leases_return_to_other_processes_when_they_expire() {
    let shared = Shared::new();
    let (a, b) = (shared.limiter("a", leased()), shared.limiter("b", leased()));
    for _ in 0..20 {
        assert!(shared.acquire(&a).is_ok());
        shared.time.advance(MS(10));
    }
    assert!(a.leased() > 0);
    shared.time.advance(MS(100));
    assert_eq!(a.leased(), 0, "the lease has expired");
    shared.time.advance(S(1));
    // The whole limit is available to the other process.
    let taken = (0..200).filter(|_| shared.acquire(&b).is_ok()).count();
    assert!((100..=110).contains(&taken), "{taken}");
}

// Guarantee: throttling 9.
#[test]
fn leases_keep_the_limit_and_the_stated_slack() {
    let shared = Shared::new();
    let config = SharedRateLimitConfig::from(Quota::per_second(100).burst(10)).leased(MS(100)).call_timeout(MS(50));
    let limiters: Vec<_> = ["a", "b", "c"].iter().map(|name| shared.limiter(name, config)).collect();
    let mut admitted = Vec::new();
    for ms in 0..5_000_u64 {
        for limiter in &limiters {
            if shared.acquire(limiter).is_ok() {
                admitted.push(ms);
            }
        }
        shared.time.advance(MS(1));
    }
    let most = admitted.iter().map(|from| admitted.iter().filter(|at| (*from..from + 1000).contains(at)).count()).max();
    let slack = config.slack(Duration::ZERO) as usize;
    assert_eq!(slack, 10);
    assert!(most.unwrap() <= 110 + slack, "{most:?}");
    assert!(admitted.len() > 430, "and they use what there is: {}", admitted.len());
}

#[test]
fn the_loop_leases_ahead_so_that_calls_do_not_wait_for_the_store() {
    let world = World::new();
    let network = FaultNetwork::new(FaultConfig::default().latency(MS(5), MS(5)), 1, &world.clock).unwrap();
    let store = network.client("a").store(world.store.clone());
    let limiter = SharedRateLimiter::builder(store, "payments", leased()).clock(&world.clock).build().unwrap();
    let ahead = limiter.clone();
    world.background.spawn(async move { ahead.run(std::future::pending()).await });
    world.turn();
    let mut waited = 0;
    for _ in 0..500 {
        if !is_ready(limiter.acquire()) {
            waited += 1;
            let _ = world.run(limiter.acquire());
        }
        world.pass(MS(20));
    }
    assert!(waited < 10, "only until it knows what is needed: {waited}");
    // Without calls nothing is leased.
    world.pass(S(1));
    let before = network.counts().requests;
    world.pass(S(10));
    assert_eq!(network.counts().requests, before);
}

#[test]
fn a_loop_ends_on_shutdown() {
    let world = World::new();
    let limiter =
        SharedRateLimiter::builder(world.store.clone(), "payments", leased()).clock(&world.clock).build().unwrap();
    world.run(limiter.run(world.clock.sleep(MS(1))));
}

// Guarantee: throttling 10.
#[test]
fn fail_open_admits_calls_while_the_store_is_down() {
    let shared = Shared::new();
    let limiter = shared.limiter("a", ten().when_down(WhenDown::FailOpen));
    shared.client("a").cut();
    for _ in 0..100 {
        assert!(shared.acquire(&limiter).is_ok());
    }
    assert!(limiter.is_store_down());
    assert_eq!(shared.requests(), 1, "the store is not asked for each call");
    shared.client("a").heal();
    shared.time.advance(S(1));
    assert!(shared.acquire(&limiter).is_ok() && shared.acquire(&limiter).is_ok());
    assert!(!limiter.is_store_down());
    assert!(shared.acquire(&limiter).is_err(), "and the limit holds again");
}

// Guarantee: throttling 10.
#[test]
fn fail_closed_rejects_calls_while_the_store_is_down() {
    let shared = Shared::new();
    let limiter = shared.limiter("a", ten().when_down(WhenDown::FailClosed));
    shared.client("a").cut();
    let rejected = shared.acquire(&limiter).unwrap_err();
    assert_eq!((rejected.reason(), rejected.retry_after()), (Reason::StoreDown, Some(S(1))));
    assert_eq!(
        rejected.to_string(),
        "rejected by the rate limit `payments`: the shared store does not answer; try again in 1s"
    );
    shared.client("a").heal();
    shared.time.advance(S(1));
    assert!(shared.acquire(&limiter).is_ok());
}

// Guarantee: throttling 10.
#[test]
fn local_share_admits_a_share_per_process_while_the_store_is_down() {
    let shared = Shared::new();
    let config = SharedRateLimitConfig::from(Quota::per_second(10).burst(4)).when_down(WhenDown::LocalShare(0.5));
    let (a, b) = (shared.limiter("a", config), shared.limiter("b", config));
    // One process has used the limit and the other has not: that counts against its share.
    for _ in 0..4 {
        assert!(shared.acquire(&a).is_ok());
    }
    shared.client("a").cut();
    shared.client("b").cut();
    let rejected = shared.acquire(&a);
    assert!(rejected.is_err(), "the process has used more than its share of the burst");
    assert!(shared.acquire(&b).is_ok() && shared.acquire(&b).is_ok() && shared.acquire(&b).is_err());
    let mut admitted = [0; 2];
    for _ in 0..10_000 {
        shared.time.advance(MS(1));
        for (i, limiter) in [&a, &b].into_iter().enumerate() {
            admitted[i] += u32::from(shared.acquire(limiter).is_ok());
        }
    }
    assert_eq!(admitted, [50, 50], "five a second each");
}

// Guarantee: throttling 10.
#[test]
fn leased_permits_are_spent_first_when_the_store_goes_down() {
    let shared = Shared::new();
    let limiter = shared.limiter("a", leased().when_down(WhenDown::FailClosed));
    for _ in 0..20 {
        assert!(shared.acquire(&limiter).is_ok());
        shared.time.advance(MS(10));
    }
    shared.client("a").cut();
    let left = limiter.leased();
    assert!(left > 0);
    for _ in 0..left {
        assert!(shared.acquire(&limiter).is_ok());
    }
    assert_eq!(shared.acquire(&limiter).unwrap_err().reason(), Reason::StoreDown);
    // Events report it.
    let mut events = limiter.events();
    shared.time.advance(S(1));
    let _ = shared.acquire(&limiter);
    shared.client("a").heal();
    shared.time.advance(S(1));
    assert!(shared.acquire(&limiter).is_ok());
    let mut sent = Vec::new();
    while let Ok(Some(event)) = events.try_recv() {
        sent.push(event.what);
    }
    sent.truncate(3);
    let failed = Event::StoreFailed { kind: Some(PortErrorKind::Unavailable) };
    let rejected = Event::Rejected { reason: Reason::StoreDown, retry_after: Some(S(1)) };
    assert_eq!(sent, [failed, rejected, Event::StoreBack]);
}

// Guarantee: throttling 10.
#[test]
fn a_store_that_hangs_holds_one_call_for_the_time_out_and_no_other() {
    let shared = Shared::new();
    let limiter = shared.limiter("a", ten().when_down(WhenDown::FailOpen).call_timeout(MS(200)));
    shared.client("a").pause();
    let start = shared.time.now();
    // All calls at once: the first one finds out for all.
    let all = shared.time.block_on(join_all((0..50).map(|_| limiter.acquire())));
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(shared.time.now() - start, MS(200));
    // After `rest` one call asks again; the others do not wait for its answer.
    shared.time.advance(S(1));
    let mut asks = Box::pin(limiter.acquire());
    assert!(asks.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(is_ready(limiter.acquire()));
    shared.client("a").resume();
    shared.time.block_on(asks).unwrap();
    assert!(!limiter.is_store_down());
}

// Guarantee: throttling 10.
#[test]
fn an_answer_that_is_seen_too_late_counts_as_a_store_that_is_down() {
    let shared = Shared::new();
    let limiter = shared.limiter("a", ten().when_down(WhenDown::FailClosed).call_timeout(MS(200)));
    shared.network.configure(FaultConfig::default().latency(MS(10), MS(10))).unwrap();
    let mut call = Box::pin(limiter.acquire());
    let mut cx = Context::from_waker(Waker::noop());
    // The process is stopped or starved while its answer arrives.
    while call.as_mut().poll(&mut cx).is_pending() && shared.store.records().is_empty() {
        let next = shared.time.next_timer().unwrap();
        shared.time.advance_to(next);
    }
    shared.time.advance(S(5));
    assert!(matches!(call.as_mut().poll(&mut cx), std::task::Poll::Ready(Err(r)) if r.reason() == Reason::StoreDown));
}

// Guarantee: throttling 7, 9.
#[test]
fn each_tenant_has_a_row_and_a_quota_of_its_own() {
    let shared = Shared::new();
    let tiers = |limiter: Builder<SharedRateLimiter>| {
        let gold = |tenant: &str| tenant.starts_with("gold").then_some(0);
        limiter.tiers(&[Quota::per_second(100).burst(20)], gold).build().unwrap()
    };
    let (a, b) = (tiers(shared.builder("a", ten())), tiers(shared.builder("b", ten())));
    for (tenant, burst) in [("plain", 2), ("gold-1", 20), ("all", 2)] {
        let (a, b) = (a.tenant(tenant).unwrap(), b.tenant(tenant).unwrap());
        let taken = (0..30).filter(|i| shared.acquire(if i % 2 == 0 { &a } else { &b }).is_ok()).count();
        assert_eq!(taken, burst, "{tenant}");
    }
    assert!(shared.acquire(&a).is_ok(), "the limit of all is another than that of the tenant `all`");
    let rows: Vec<_> = shared.store.records().into_keys().collect();
    let row = |row: &str| ("rate limit payments".to_owned(), row.to_owned());
    assert_eq!(rows, [row("all"), row("of all"), row("of gold-1"), row("of plain")]);
    assert_eq!(a.tenant(&"x".repeat(2000)).unwrap_err().kind(), PortErrorKind::Invalid);
}

// Guarantee: throttling 8.
#[test]
fn tenants_that_are_idle_are_forgotten() {
    let shared = Shared::new();
    let limiter = shared.limiter("a", ten());
    for i in 0..10_000 {
        let tenant = limiter.tenant(&format!("tenant-{i}")).unwrap();
        assert!(shared.acquire(&tenant).is_ok());
        shared.time.advance(MS(10));
    }
    assert!(shared.store.records().len() < 20, "rows expire by themselves");
    assert!(limiter.tenants() < 100, "{limiter:?} remembers {}", limiter.tenants());
}

// Guarantee: throttling 9.
#[test]
fn a_wrong_wall_clock_costs_a_burst_at_most_and_once() {
    let shared = Shared::new();
    let hour = 3_600_000;
    let ahead = shared.limiter_at("a", ten(), Timestamp::from_millis(WALL.as_millis() + hour));
    let right = shared.limiter_at("b", ten(), WALL);
    let behind = shared.limiter_at("c", ten(), Timestamp::from_millis(WALL.as_millis() - hour));
    let mut admitted = 0;
    for _ in 0..10 {
        for limiter in [&behind, &right, &ahead] {
            admitted += u32::from(shared.acquire(limiter).is_ok());
        }
    }
    assert!(admitted <= 3 * 2, "{admitted}");
    // From then on they count together.
    let mut later = 0;
    for _ in 0..10_000 {
        shared.time.advance(MS(1));
        for limiter in [&behind, &right, &ahead] {
            later += u32::from(shared.acquire(limiter).is_ok());
        }
    }
    assert!((99..=101).contains(&later), "{later}");
}

// Guarantee: throttling 10.
#[test]
fn a_row_that_cannot_be_read_is_a_store_that_is_down() {
    let shared = Shared::new();
    let limiter = shared.limiter("a", ten().when_down(WhenDown::FailClosed));
    let key = Key::new("rate limit payments", "all");
    shared.time.block_on(shared.store.insert(key, "something else")).unwrap();
    let mut events = limiter.events();
    assert_eq!(shared.acquire(&limiter).unwrap_err().reason(), Reason::StoreDown);
    let sent = events.try_recv().unwrap().unwrap().what;
    assert_eq!(sent, Event::StoreFailed { kind: Some(PortErrorKind::Corrupt) });
}

// Guarantee: throttling 5.
#[test]
fn the_limit_can_change_while_in_use() {
    let shared = Shared::new();
    let limiter = shared.limiter("a", ten());
    let tenant = limiter.tenant("acme").unwrap();
    assert!(shared.acquire(&limiter).is_ok() && shared.acquire(&limiter).is_ok());
    let bad = limiter.reconfigure(ten().when_down(WhenDown::LocalShare(0.0))).unwrap_err();
    assert_eq!(bad.field(), "when_down.local_share");
    assert_eq!(limiter.config(), ten(), "nothing has changed");
    let mut events = limiter.events();
    limiter.reconfigure(SharedRateLimitConfig::from(Quota::per_second(10).burst(5))).unwrap();
    assert_eq!(events.try_recv().unwrap().unwrap().what, Event::LimitChanged);
    let more = (0..10).filter(|_| shared.acquire(&limiter).is_ok()).count();
    assert_eq!(more, 3, "taken permits stay taken");
    let tenants = (0..10).filter(|_| shared.acquire(&tenant).is_ok()).count();
    assert_eq!(tenants, 5, "clones and tenants share it");
    limiter.reconfigure(leased()).unwrap();
    shared.time.advance(S(10));
    for _ in 0..10 {
        assert!(shared.acquire(&limiter).is_ok());
        shared.time.advance(MS(10));
    }
    assert!(limiter.leased() > 0, "the mode of sharing can change");
}

// Guarantee: throttling 19.
#[test]
fn invalid_settings_are_refused_with_the_field_s_name() {
    let store = || Arc::new(InMemoryStore::new());
    let refused = |config: SharedRateLimitConfig| SharedRateLimiter::new(store(), "x", config).unwrap_err();
    assert_eq!(refused(Quota::per_second(0).into()).field(), "permits");
    assert_eq!(refused(ten().leased(MS(1))).field(), "sharing.leased.every");
    assert_eq!(refused(ten().call_timeout(Duration::ZERO)).field(), "call_timeout");
    assert_eq!(refused(ten().when_down(WhenDown::LocalShare(1.5))).field(), "when_down.local_share");
    assert_eq!(SharedRateLimiter::new(store(), "", ten()).unwrap_err().field(), "name");
    let tiers = SharedRateLimiter::builder(store(), "x", ten()).tiers(&[Quota::per_second(0)], |_| None).build();
    assert_eq!(tiers.unwrap_err().field(), "tiers[0].permits");
    let read = |text: &str| toml::from_str::<SharedRateLimitConfig>(text);
    assert_eq!(read("").unwrap(), SharedRateLimitConfig::default());
    assert_eq!(read("sharing = \"exact\"\nwhen_down = \"fail_open\"").unwrap().when_down, WhenDown::FailOpen);
    assert!(read("sharing = { leased = { every = \"1s\", share = 3 } }").is_err());
    assert!(read("colour = 3").is_err());
    let written = toml::to_string(&leased()).unwrap();
    assert_eq!(read(&written).unwrap(), leased(), "{written}");
    assert_eq!(leased().sharing, Sharing::Leased { every: MS(100) });
}

// Guarantee: throttling 4.
#[test]
fn as_a_policy_it_obeys_the_deadline() {
    let shared = Shared::new();
    let limiter = shared.limiter("a", ten().max_wait(S(10)));
    let pipeline = Pipeline::new().then(limiter.clone());
    let run = || pipeline.call(async || Ok::<_, ()>(7));
    assert_eq!(shared.time.block_on(run()).unwrap(), 7);
    assert_eq!(shared.time.block_on(limiter.call(async || Ok::<_, ()>(8))).unwrap(), 8);
    let info = AttemptInfo::with_deadline(shared.time.now() + MS(50));
    let start = shared.time.now();
    let error = shared.time.block_on(pipeline.call_within(info, async || Ok::<_, ()>(7))).unwrap_err();
    assert!(error.is_rejected());
    assert_eq!(shared.time.now(), start, "a call that cannot begin in time is rejected at once");
    let text = pipeline.explain().to_string();
    assert!(text.contains("10 calls every 1s, at most 2 at once, shared exactly"), "{text}");
}

// Guarantee: throttling 4, 9.
#[test]
fn a_dropped_call_gives_its_turn_back_and_the_limit_holds() {
    for config in [ten().max_wait(S(10)), ten().leased(MS(100)).max_wait(S(10))] {
        let shared = Shared::new();
        shared.network.configure(FaultConfig::default().latency(MS(1), MS(1))).unwrap();
        let limiter = shared.limiter("a", config);
        for _ in 0..2 {
            shared.acquire(&limiter).unwrap();
        }
        let polls = drop_at_every_await(
            &shared.time,
            || limiter.acquire(),
            |_| {
                // The next caller gets its turn.
                shared.time.advance(S(1));
                assert!(shared.time.block_on(limiter.acquire()).is_ok());
            },
        );
        assert!(polls > 3, "{polls}");
    }
}

#[test]
fn calls_go_on_after_the_loop_is_dropped() {
    let shared = Shared::new();
    shared.network.configure(FaultConfig::default().latency(MS(1), MS(1))).unwrap();
    let limiter = shared.limiter("a", leased());
    let work = || async {
        let calls = async {
            for _ in 0..20 {
                limiter.acquire().await.unwrap();
                shared.clock.sleep(MS(10)).await;
            }
        };
        let (_, ()) = futures::join!(limiter.run(shared.clock.sleep(MS(250))), calls);
    };
    let polls = drop_at_every_await(&shared.time, work, |_| {
        shared.time.advance(S(1));
        assert!(shared.time.block_on(limiter.acquire()).is_ok());
    });
    assert!(polls > 20, "{polls}");
    assert_eq!(shared.store.capabilities().backend(), "memory");
}
