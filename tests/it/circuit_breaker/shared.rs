//! Breakers that share their openings between processes, on the manual clock.
use std::{sync::Arc, time::Duration};

use steadfast::{
    Builder, Pipeline, Reason,
    circuit_breaker::{
        CircuitBreaker, CircuitBreakerConfig, KeyedBreakers, KeyedBreakersConfig, SharedCircuitBreaker,
        SharedCircuitBreakerConfig, SharedCircuitBreakerEvent as Event, State,
    },
    entropy::Entropy,
    notify::{InMemoryNotifier, Notice, NoticeSource, Notices, Notifier},
    outcome::TripRule,
    port::{BoxFuture, Capabilities, PortErrorKind, PortFuture},
    store::{InMemoryStore, Key, Store, StoreExt},
    testing::{
        drop_at_every_await,
        faults::{FaultClient, FaultConfig, FaultNetwork},
    },
    time::Clock,
};

use crate::cache_aside::world::{MS, S, World};

/// Returns a configuration that opens after 3 consecutive failures, for 10 s, without jitter.
fn rules() -> CircuitBreakerConfig {
    toml::from_str(
        r#"
        trip = { consecutive_failures = 3 }
        open = { initial_delay = "10s", max_delay = "80s", jitter = 0.0 }
        half_open = { permitted_calls = 1, success_rate = 1.0 }
        "#,
    )
    .unwrap()
}

fn config() -> SharedCircuitBreakerConfig {
    SharedCircuitBreakerConfig::default()
}

/// Processes that share one store and one notifier, behind a network.
struct Shared {
    world: World,
    network: FaultNetwork,
}

impl Shared {
    fn new() -> Self {
        let world = World::new();
        let network = FaultNetwork::new(FaultConfig::default(), 1, &world.clock).unwrap();
        Self { world, network }
    }

    fn client(&self, process: &str) -> FaultClient {
        self.network.client(process)
    }

    fn at(&self, process: &str, config: SharedCircuitBreakerConfig, clock: &Clock) -> Builder<SharedCircuitBreaker> {
        let store = self.client(process).store(self.world.store.clone());
        let breaker = CircuitBreaker::builder(rules()).clock(clock).entropy(&Entropy::from_seed(3)).build().unwrap();
        SharedCircuitBreaker::builder(breaker, store, "payments", config).process(process)
    }

    fn start(&self, shared: Builder<SharedCircuitBreaker>) -> SharedCircuitBreaker {
        let shared = shared.build().unwrap();
        let runs = shared.clone();
        self.world.background.spawn(async move { runs.run(std::future::pending()).await });
        self.world.turn();
        shared
    }

    /// Starts a process with its loop.
    fn process(&self, name: &str, config: SharedCircuitBreakerConfig) -> SharedCircuitBreaker {
        self.start(self.at(name, config, &self.world.clock))
    }

    /// Starts a process with its loop and a notifier.
    fn prompt(&self, name: &str, config: SharedCircuitBreakerConfig) -> SharedCircuitBreaker {
        let notifier = self.client(name).notifier(self.world.notifier.clone());
        self.start(self.at(name, config, &self.world.clock).notifier(notifier))
    }

    /// Fails calls until the breaker opens.
    fn trip(&self, shared: &SharedCircuitBreaker) {
        for _ in 0..3 {
            let _ = self.world.run(shared.breaker().call(async || Err::<(), _>("down")));
        }
        assert_eq!(shared.breaker().state(), State::Open);
    }
}

fn left(shared: &SharedCircuitBreaker) -> Duration {
    shared.breaker().snapshot().retry_after.unwrap_or_default()
}

fn is_open(shared: &SharedCircuitBreaker) -> bool {
    !left(shared).is_zero()
}

// Guarantee: circuit_breaker 11.
#[test]
fn an_opening_of_one_process_opens_the_others_for_the_same_time() {
    let shared = Shared::new();
    let (a, b, c) = (shared.process("a", config()), shared.process("b", config()), shared.process("c", config()));
    let mut events = b.events();
    shared.trip(&a);
    shared.world.turn();
    assert!(!is_open(&b), "no poll yet");
    shared.world.pass(S(1));
    assert!(is_open(&b) && is_open(&c));
    assert!(left(&b) >= left(&a) && left(&b) <= left(&a) + S(1), "{:?} {:?}", left(&b), left(&a));
    let opened = events.try_recv().unwrap().unwrap().what;
    assert!(matches!(opened, Event::OpenedWithOthers { reports: 1, .. }), "{opened:?}");
    // Its calls are rejected with the reason.
    let error = shared.world.run(b.breaker().call(async || Ok::<_, ()>(()))).unwrap_err();
    let steadfast::Cause::Rejected(rejected) = error.into_cause() else { panic!("it ran") };
    assert!(matches!(rejected.reason(), Reason::CircuitOpen { rule: TripRule::Shared, .. }));
    assert!(rejected.to_string().contains("opened in other processes"), "{rejected}");
    // It ends by itself: each process probes, and there is no echo.
    shared.world.pass(S(12));
    for process in [&a, &b, &c] {
        assert!(shared.world.run(process.breaker().call(async || Ok::<_, ()>(()))).is_ok());
        assert_eq!(process.breaker().state(), State::Closed);
    }
    shared.world.pass(S(60));
    assert!([&a, &b, &c].iter().all(|process| process.breaker().state() == State::Closed));
    assert!(shared.world.store.records().is_empty());
}

// Guarantee: circuit_breaker 11.
#[test]
fn with_a_notifier_the_others_open_at_once() {
    let shared = Shared::new();
    let (a, b) = (shared.prompt("a", config()), shared.prompt("b", config()));
    shared.trip(&a);
    shared.world.turn();
    assert_eq!((left(&a), left(&b)), (S(10), S(10)));
}

// Guarantee: circuit_breaker 11.
#[test]
fn a_quorum_opens_the_others_while_that_many_are_open() {
    let shared = Shared::new();
    let processes: Vec<_> = ["a", "b", "c", "d"].iter().map(|name| shared.prompt(name, config().quorum(2))).collect();
    let [a, b, c, d] = &processes[..] else { panic!() };
    shared.trip(a);
    shared.world.pass(S(4));
    assert!(!is_open(c) && !is_open(d), "one is not enough");
    shared.trip(b);
    shared.world.turn();
    assert_eq!((left(a), left(b)), (S(6), S(10)));
    assert!(left(c) <= S(6) && left(c) > S(5), "as long as two are open, by what a's last report says: {:?}", left(c));
    assert_eq!(left(c), left(d), "c follows, and is no vote");
    shared.world.pass(S(7));
    assert!(!is_open(c) && is_open(b));
    assert_eq!(c.reports().len(), 1);
}

// Guarantee: circuit_breaker 11.
#[test]
fn a_breaker_that_opened_with_others_is_no_vote() {
    let shared = Shared::new();
    let (a, b) = (shared.prompt("a", config()), shared.prompt("b", config()));
    let careful = shared.prompt("c", config().quorum(2));
    shared.trip(&a);
    shared.world.pass(S(3));
    assert!(is_open(&b) && !is_open(&careful), "a opened by its own rules, b followed");
    assert_eq!(shared.world.store.records().len(), 1);
}

// Guarantee: circuit_breaker 11.
#[test]
fn each_opening_is_followed_once_so_that_a_manual_close_holds() {
    let shared = Shared::new();
    let (a, b) = (shared.prompt("a", config()), shared.prompt("b", config()));
    shared.trip(&a);
    shared.world.pass(S(2));
    b.breaker().close();
    shared.world.pass(S(5));
    assert!(is_open(&a) && !is_open(&b), "the manual close holds");
    a.breaker().close();
    shared.world.turn();
    assert!(shared.world.store.records().is_empty(), "the report is deleted");
    shared.trip(&a);
    shared.world.pass(MS(60));
    assert!(is_open(&b), "a new opening is followed");
}

// Guarantee: circuit_breaker 11.
#[test]
fn a_breaker_that_is_open_half_open_or_isolated_by_itself_does_not_follow() {
    let shared = Shared::new();
    let (a, b, c) = (shared.prompt("a", config()), shared.prompt("b", config()), shared.prompt("c", config()));
    // b is open for a shorter time, c probes.
    b.breaker().force_open(S(3));
    shared.world.pass(S(3));
    c.breaker().close();
    c.breaker().force_open(MS(1));
    shared.world.pass(MS(1));
    let probe = c.breaker().try_acquire().unwrap();
    b.breaker().force_open(S(2));
    shared.trip(&a);
    shared.world.turn();
    assert_eq!((left(&b), c.breaker().state()), (S(2), State::HalfOpen));
    drop(probe);
    b.breaker().isolate();
    shared.world.pass(S(4));
    assert_eq!(b.breaker().state(), State::Isolated);
}

// Guarantee: circuit_breaker 11.
#[test]
fn a_breaker_whose_open_time_is_over_follows_a_new_opening() {
    let shared = Shared::new();
    let (a, b) = (shared.prompt("a", config()), shared.prompt("b", config()));
    b.breaker().force_open(S(1));
    shared.world.pass(S(2));
    assert_eq!((b.breaker().state(), is_open(&b)), (State::Open, false), "no call has come since");
    a.breaker().close();
    shared.trip(&a);
    shared.world.pass(MS(60));
    assert!(is_open(&b));
}

// Guarantee: circuit_breaker 11.
#[test]
fn without_the_store_each_process_keeps_its_own_state() {
    let shared = Shared::new();
    let (a, b) = (shared.process("a", config()), shared.process("b", config()));
    let mut events = a.events();
    shared.client("a").cut();
    shared.trip(&a);
    shared.world.pass(S(3));
    assert!(is_open(&a) && !is_open(&b) && a.is_store_down());
    let kind = Some(PortErrorKind::Unavailable);
    assert_eq!(events.try_recv().unwrap().unwrap().what, Event::StoreFailed { kind });
    // Once the store is back, the others open for the remaining time.
    shared.client("a").heal();
    shared.world.pass(S(2));
    assert!(is_open(&b) && !a.is_store_down());
    assert!(left(&b) <= left(&a) + S(1), "{:?} {:?}", left(&b), left(&a));
    // A store that hangs counts as down, and delays no call.
    shared.client("a").pause();
    shared.world.pass(S(3));
    assert!(a.is_store_down());
    shared.world.pass(S(10));
    assert!(shared.world.run(a.breaker().call(async || Ok::<_, ()>(()))).is_ok());
}

// Guarantee: circuit_breaker 11.
#[test]
fn a_process_behind_a_partition_neither_reports_nor_follows() {
    let shared = Shared::new();
    let (a, b, c) = (shared.process("a", config()), shared.process("b", config()), shared.process("c", config()));
    shared.client("c").cut();
    shared.trip(&a);
    shared.world.pass(S(2));
    assert!(is_open(&b) && !is_open(&c));
    shared.trip(&c);
    shared.world.pass(S(1));
    assert_eq!(b.reports().len(), 1, "its report is not seen");
    shared.client("c").heal();
    shared.world.pass(S(2));
    assert_eq!((b.reports().len(), c.reports().len()), (2, 1));
}

// Guarantee: circuit_breaker 11.
#[test]
fn clocks_that_differ_change_nothing() {
    let shared = Shared::new();
    // Each clock has its own rate and origin.
    let clocks = [0.98, 1.0, 1.02].map(|rate| shared.world.time.clock_at_rate(rate));
    shared.world.pass(S(1000));
    let [a, b, c] = [("a", &clocks[0]), ("b", &clocks[1]), ("c", &clocks[2])]
        .map(|(name, clock)| shared.start(shared.at(name, config(), clock)));
    shared.trip(&b);
    shared.world.pass(MS(1100));
    for process in [&a, &c] {
        let off = left(process).abs_diff(left(&b));
        assert!(is_open(process) && off < MS(1500), "{off:?}");
    }
}

// Guarantee: circuit_breaker 11.
#[test]
fn the_report_of_a_process_that_is_gone_expires() {
    let shared = Shared::new();
    let gone = shared.at("gone", config(), &shared.world.clock).build().unwrap();
    gone.breaker().force_open(S(3600));
    let mut run = Box::pin(gone.run(std::future::pending()));
    assert!(shared.world.begin(&mut run).is_pending());
    drop(run);
    assert_eq!(shared.world.store.records().len(), 1);
    shared.world.pass(S(5));
    assert!(shared.world.store.records().is_empty());
    let late = shared.process("late", config());
    shared.world.pass(S(10));
    assert!(!is_open(&late));
}

// Guarantee: circuit_breaker 11.
#[test]
fn a_process_that_starts_later_opens_with_the_others() {
    let shared = Shared::new();
    let a = shared.process("a", config());
    a.breaker().force_open(S(60));
    shared.world.pass(S(30));
    let late = shared.process("late", config());
    assert!(left(&late) >= left(&a) && left(&late) <= left(&a) + S(1), "the report is renewed: {:?}", left(&late));
}

// Guarantee: circuit_breaker 11.
#[test]
fn the_report_is_deleted_on_shutdown() {
    let shared = Shared::new();
    let a = shared.at("a", config(), &shared.world.clock).build().unwrap();
    a.breaker().force_open(S(60));
    shared.world.run(a.run(shared.world.clock.sleep(S(2))));
    assert!(shared.world.store.records().is_empty());
    assert!(is_open(&a), "the breaker is as it was");
}

// Guarantee: circuit_breaker 11.
#[test]
fn shadow_mode_and_isolation_are_local_to_a_process() {
    let shared = Shared::new();
    let (a, b) = (shared.prompt("a", config()), shared.prompt("b", config()));
    a.breaker().set_shadow(true);
    shared.trip(&a);
    shared.world.pass(S(3));
    assert!(!is_open(&b), "shadow mode reports nothing");
    a.breaker().set_shadow(false);
    a.breaker().isolate();
    shared.world.pass(S(3));
    assert!(!is_open(&b));
    assert!(shared.world.store.records().is_empty());
}

// Guarantee: circuit_breaker 11.
#[test]
fn openings_with_others_do_not_exceed_max_open_of_a_registry() {
    let shared = Shared::new();
    let config_of_all = KeyedBreakersConfig::from(rules()).max_open(0.5);
    let registry = KeyedBreakers::<u32>::builder(config_of_all).clock(&shared.world.clock).build().unwrap();
    let start = |key: u32| {
        let name = format!("host-{key}");
        let store: Arc<InMemoryStore> = shared.world.store.clone();
        let member = SharedCircuitBreaker::builder(registry.get(&key), store.clone(), &*name, config());
        let other = CircuitBreaker::builder(rules()).clock(&shared.world.clock).build().unwrap();
        let other = SharedCircuitBreaker::builder(other, store, &*name, config());
        (shared.start(member), shared.start(other))
    };
    let pairs: Vec<_> = (0..4).map(start).collect();
    for (_, other) in &pairs {
        other.breaker().force_open(S(8));
    }
    shared.world.pass(S(3));
    let open = pairs.iter().filter(|(member, _)| is_open(member)).count();
    assert_eq!((open, registry.open_now()), (2, 2));
    shared.world.pass(S(8));
    pairs.iter().for_each(|(member, _)| member.breaker().close());
    assert_eq!(registry.open_now(), 0, "each is counted once");
}

// Guarantee: circuit_breaker 11.
#[test]
fn a_malformed_row_is_no_report() {
    let shared = Shared::new();
    for (i, value) in ["", "circuit 2 open x 90000", "rate 1 1 1", "circuit 1 open x y"].iter().enumerate() {
        let row = format!("of other-{i}");
        shared.world.run(shared.world.store.insert(Key::new("circuit breaker payments", &row), *value)).unwrap();
    }
    let a = shared.process("a", config());
    shared.world.pass(S(3));
    assert!(!is_open(&a) && !a.is_store_down() && a.reports().is_empty());
}

// Guarantee: circuit_breaker 11.
#[test]
fn a_call_makes_no_request_to_the_store() {
    let shared = Shared::new();
    let a = shared.prompt("a", config());
    let before = shared.network.counts().requests;
    let pipeline = Pipeline::new().then(a.breaker().clone());
    for _ in 0..1000 {
        assert!(shared.world.run(pipeline.call(async || Ok::<_, ()>(()))).is_ok());
    }
    assert_eq!(shared.network.counts().requests, before);
    shared.world.pass(S(60));
    assert_eq!(shared.network.counts().requests - before, 60, "one read per poll, and no write");
}

// Guarantee: circuit_breaker 11.
#[test]
fn a_flood_of_hints_causes_no_flood_of_requests() {
    let shared = Shared::new();
    let _a = shared.prompt("a", config());
    let before = shared.network.counts().requests;
    for _ in 0..1000 {
        let publish = shared.world.notifier.publish("circuit breaker payments", "of b".into());
        shared.world.run(publish).unwrap();
        shared.world.pass(MS(1));
    }
    let asked = shared.network.counts().requests - before;
    assert!(asked <= 22, "{asked} in a second");
}

// Guarantee: circuit_breaker 11.
#[test]
fn invalid_settings_are_refused_by_name_and_valid_ones_apply_while_in_use() {
    let breaker = || CircuitBreaker::new(rules()).unwrap();
    let store = || Arc::new(InMemoryStore::new());
    let refused = |config| SharedCircuitBreaker::new(breaker(), store(), "x", config).unwrap_err();
    assert_eq!(refused(config().quorum(0)).field(), "agreement.quorum");
    assert_eq!(refused(config().poll(MS(1))).field(), "poll");
    assert_eq!(refused(config().stale_after(S(1))).field(), "stale_after");
    assert_eq!(refused(config().call_timeout(Duration::ZERO)).field(), "call_timeout");
    assert_eq!(SharedCircuitBreaker::new(breaker(), store(), "", config()).unwrap_err().field(), "name");
    let fine = SharedCircuitBreaker::builder(breaker(), store(), "x", config());
    assert_eq!(fine.process("").build().unwrap_err().field(), "process");
    assert!(toml::from_str::<SharedCircuitBreakerConfig>("colour = 3").is_err());
    let written = toml::to_string(&config().quorum(3)).unwrap();
    assert_eq!(toml::from_str::<SharedCircuitBreakerConfig>(&written).unwrap(), config().quorum(3), "{written}");

    let shared = Shared::new();
    let (a, b) = (shared.prompt("a", config().quorum(2)), shared.prompt("b", config().quorum(2)));
    let mut events = b.events();
    b.reconfigure(config().quorum(0)).unwrap_err();
    assert_eq!(b.config(), config().quorum(2), "nothing has changed");
    shared.trip(&a);
    shared.world.pass(S(2));
    assert!(!is_open(&b));
    b.clone().reconfigure(config()).unwrap();
    assert_eq!(events.try_recv().unwrap().unwrap().what, Event::ConfigChanged);
    shared.world.pass(S(1));
    assert!(is_open(&b));
}

// Guarantee: circuit_breaker 11.
#[test]
fn a_dropped_loop_leaves_the_breaker_unchanged_and_its_report_expires() {
    let shared = Shared::new();
    shared.network.configure(FaultConfig::default().latency(MS(1), MS(1))).unwrap();
    let world = &shared.world;
    let a = shared.at("a", config(), &world.clock).notifier(world.notifier.clone()).build().unwrap();
    let polls = drop_at_every_await(
        &world.time,
        || {
            a.breaker().force_open(S(60));
            a.run(world.clock.sleep(MS(1500)))
        },
        |polls| {
            assert!(polls == 0 || is_open(&a));
            world.time.advance(S(6));
            assert!(world.store.records().is_empty(), "after {polls}");
            a.breaker().reset();
        },
    );
    assert!(polls > 8, "{polls}");
}

/// Notifier whose connection breaks at a time, once or again and again from then on.
#[derive(Debug)]
struct Breaks {
    clock: Clock,
    at: steadfast::time::Instant,
    again: bool,
}

impl Notifier for Breaks {
    fn capabilities(&self) -> Capabilities {
        InMemoryNotifier::new().capabilities()
    }
    fn publish<'a>(&'a self, _: &'a str, _: bytes::Bytes) -> PortFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }
    fn subscribe<'a>(&'a self, _: &'a str) -> PortFuture<'a, Notices> {
        let (clock, at, again) = (self.clock.clone(), self.at, self.again);
        Box::pin(async move { Ok(Notices::new(Breaking { clock, at: Some(at), again })) })
    }
}

struct Breaking {
    clock: Clock,
    at: Option<steadfast::time::Instant>,
    again: bool,
}

impl NoticeSource for Breaking {
    fn recv(&mut self) -> BoxFuture<'_, Notice> {
        Box::pin(async {
            let Some(at) = self.at else { return std::future::pending().await };
            self.clock.sleep_until(at).await;
            self.at = self.at.filter(|_| self.again);
            Notice::Gap
        })
    }
}

impl Shared {
    /// Starts a process whose notifier breaks at that time, and delivers nothing else.
    fn deaf(
        &self,
        name: &str,
        config: SharedCircuitBreakerConfig,
        after: Duration,
        again: bool,
    ) -> SharedCircuitBreaker {
        let clock = self.world.clock.clone();
        let notifier = Arc::new(Breaks { at: clock.now() + after, clock, again });
        self.start(self.at(name, config, &self.world.clock).notifier(notifier))
    }
}

#[test]
fn a_gap_in_the_hints_causes_a_poll_at_once() {
    let shared = Shared::new();
    let rarely = config().poll(S(8)).stale_after(S(30));
    let (a, b, c) =
        (shared.process("a", rarely), shared.deaf("b", rarely, S(3), false), shared.deaf("c", rarely, S(60), false));
    shared.world.pass(S(1));
    shared.trip(&a);
    shared.world.pass(S(2) - MS(1));
    assert!(!is_open(&b) && !is_open(&c), "the hint was lost");
    shared.world.pass(MS(1));
    assert!(is_open(&b), "a hint may have been lost in the gap");
    assert!(!is_open(&c));
    shared.world.pass(S(5));
    assert!(is_open(&c), "found by polling");
}

#[test]
fn endless_gaps_cause_no_more_requests_than_polling() {
    let shared = Shared::new();
    let _breaker = shared.deaf("a", config(), S(0), true);
    let before = shared.network.counts().requests;
    shared.world.pass(S(60));
    let requests = shared.network.counts().requests - before;
    assert!((60..=121).contains(&requests), "{requests}");
}

/// A row with an open time of 584 years that is never renewed.
#[test]
fn a_damaged_report_opens_a_breaker_for_no_longer_than_its_own_maximum() {
    for millis in [u64::MAX.to_string(), "86400000000".to_owned()] {
        let shared = Shared::new();
        let b = shared.process("b", config());
        let (partition, row) = ("circuit breaker payments", "of a");
        let damaged = format!("circuit 1 open 7f-3 {millis}");
        let options = steadfast::store::PutOptions::new();
        shared.world.run(shared.world.store.put(Key::new(partition, row), damaged.into(), options)).unwrap();
        shared.world.pass(S(2));
        assert!(is_open(&b) && left(&b) <= S(15 * 60), "{:?}", left(&b));
        assert!(b.reports().iter().all(|report| report.until <= shared.world.time.now() + S(15 * 60)));
        // The opening ends with the report.
        let key = Key::new(partition, row);
        shared.world.run(shared.world.store.delete(key, steadfast::store::DeleteOptions::default())).unwrap();
        shared.world.pass(S(2));
        assert!(!is_open(&b));
        assert!(shared.world.run(b.breaker().call(async || Ok::<_, ()>(()))).is_ok());
    }
}

#[test]
fn a_manual_close_ends_the_opening_elsewhere_and_a_long_opening_is_prolonged() {
    for (for_long, early) in [(S(600), S(5)), (S(3600), S(2400))] {
        let shared = Shared::new();
        let (a, b) = (shared.process("a", config()), shared.process("b", config()));
        a.breaker().force_open(for_long);
        let until = shared.world.time.now() + early;
        while shared.world.time.now() < until {
            shared.world.pass(S(5));
            assert!(is_open(&b), "as long as the report stands");
        }
        a.breaker().close();
        shared.world.pass(S(2));
        assert!(!is_open(&b), "{for_long:?}");
        assert!(shared.world.run(b.breaker().call(async || Ok::<_, ()>(()))).is_ok());
        assert_eq!(b.breaker().state(), State::Closed);
    }
    // A manual close here holds while the report still stands.
    let shared = Shared::new();
    let (a, b) = (shared.process("a", config()), shared.process("b", config()));
    a.breaker().force_open(S(600));
    shared.world.pass(S(2));
    b.breaker().close();
    shared.world.pass(S(30));
    assert_eq!(b.breaker().state(), State::Closed);
    // A breaker that opened by its own rules is not changed.
    b.breaker().force_open(S(400));
    a.breaker().close();
    shared.world.pass(S(10));
    assert!(left(&b) > S(380));
}
