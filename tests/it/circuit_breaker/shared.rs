//! Breakers that tell other processes of their openings, on the manual clock: "Circuit breaker" 11.
use std::{sync::Arc, time::Duration};

use steadfast::{
    Pipeline, Reason,
    circuit_breaker::{
        CircuitBreaker, CircuitBreakerConfig, KeyedBreakers, KeyedBreakersConfig, SharedCircuitBreaker,
        SharedCircuitBreakerConfig, SharedCircuitBreakerEvent as Event, State,
    },
    entropy::Entropy,
    notify::{InMemoryNotifier, Notice, NoticeSource, Notices, Notifier},
    outcome::TripRule,
    port::{BoxFuture, Capabilities, PortError, PortErrorKind},
    store::{InMemoryStore, Key, Store, StoreExt},
    testing::{
        drop_at_every_await,
        faults::{FaultClient, FaultConfig, FaultNetwork},
    },
    time::Clock,
};

use crate::cache_aside::world::{MS, S, World};

/// Opens after 3 failures in a row, for 10 s, without jitter.
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

    fn at(&self, process: &str, config: SharedCircuitBreakerConfig, clock: &Clock) -> SharedCircuitBreaker {
        let store = self.client(process).store(self.world.store.clone());
        let breaker = CircuitBreaker::new(rules()).unwrap().with_clock(clock).with_entropy(&Entropy::from_seed(3));
        SharedCircuitBreaker::new(breaker, store, "payments", config).unwrap().as_process(process).unwrap()
    }

    fn start(&self, shared: SharedCircuitBreaker) -> SharedCircuitBreaker {
        let runs = shared.clone();
        self.world.background.spawn(async move { runs.run(std::future::pending()).await });
        self.world.turn();
        shared
    }

    /// A process with its loop.
    fn process(&self, name: &str, config: SharedCircuitBreakerConfig) -> SharedCircuitBreaker {
        self.start(self.at(name, config, &self.world.clock))
    }

    /// The same with a notifier.
    fn prompt(&self, name: &str, config: SharedCircuitBreakerConfig) -> SharedCircuitBreaker {
        let notifier = self.client(name).notifier(self.world.notifier.clone());
        self.start(self.at(name, config, &self.world.clock).with_notifier(notifier))
    }

    /// Its calls fail until it opens.
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
fn one_process_s_opening_opens_the_others_for_as_long() {
    let shared = Shared::new();
    let (a, b, c) = (shared.process("a", config()), shared.process("b", config()), shared.process("c", config()));
    let mut events = b.events();
    shared.trip(&a);
    shared.world.turn();
    assert!(!is_open(&b), "it has not looked");
    shared.world.pass(S(1));
    assert!(is_open(&b) && is_open(&c));
    assert!(left(&b) >= left(&a) && left(&b) <= left(&a) + S(1), "{:?} {:?}", left(&b), left(&a));
    let opened = events.try_recv().unwrap().unwrap().what;
    assert!(matches!(opened, Event::OpenedWithOthers { reports: 1, .. }), "{opened:?}");
    // Its calls are rejected, and told why.
    let error = shared.world.run(b.breaker().call(async || Ok::<_, ()>(()))).unwrap_err();
    let steadfast::Cause::Rejected(rejected) = error.into_cause() else { panic!("it ran") };
    assert!(matches!(rejected.reason(), Reason::CircuitOpen { rule: TripRule::Shared, .. }));
    assert!(rejected.to_string().contains("opened in other processes"), "{rejected}");
    // It ends by itself: everyone probes, and nobody heard an echo.
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
fn with_a_notifier_the_others_hear_at_once() {
    let shared = Shared::new();
    let (a, b) = (shared.prompt("a", config()), shared.prompt("b", config()));
    shared.trip(&a);
    shared.world.turn();
    assert_eq!((left(&a), left(&b)), (S(10), S(10)));
}

// Guarantee: circuit_breaker 11.
#[test]
fn a_quorum_opens_the_others_for_as_long_as_so_many_are_open() {
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
fn who_follows_is_no_vote() {
    let shared = Shared::new();
    let (a, b) = (shared.prompt("a", config()), shared.prompt("b", config()));
    let careful = shared.prompt("c", config().quorum(2));
    shared.trip(&a);
    shared.world.pass(S(3));
    assert!(is_open(&b) && !is_open(&careful), "a is open by itself, b only follows");
    assert_eq!(shared.world.store.records().len(), 1);
}

// Guarantee: circuit_breaker 11.
#[test]
fn each_opening_is_followed_once_so_that_closing_by_hand_holds() {
    let shared = Shared::new();
    let (a, b) = (shared.prompt("a", config()), shared.prompt("b", config()));
    shared.trip(&a);
    shared.world.pass(S(2));
    b.breaker().close();
    shared.world.pass(S(5));
    assert!(is_open(&a) && !is_open(&b), "it is not overruled");
    a.breaker().close();
    shared.world.turn();
    assert!(shared.world.store.records().is_empty(), "the report is taken back");
    shared.trip(&a);
    shared.world.pass(MS(60));
    assert!(is_open(&b), "a new opening is a new one");
}

// Guarantee: circuit_breaker 11.
#[test]
fn a_breaker_that_judges_for_itself_is_left_alone() {
    let shared = Shared::new();
    let (a, b, c) = (shared.prompt("a", config()), shared.prompt("b", config()), shared.prompt("c", config()));
    // b is open for less, c probes.
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
fn an_opening_that_is_over_may_follow_another() {
    let shared = Shared::new();
    let (a, b) = (shared.prompt("a", config()), shared.prompt("b", config()));
    b.breaker().force_open(S(1));
    shared.world.pass(S(2));
    assert_eq!((b.breaker().state(), is_open(&b)), (State::Open, false), "nobody has called since");
    a.breaker().close();
    shared.trip(&a);
    shared.world.pass(MS(60));
    assert!(is_open(&b));
}

// Guarantee: circuit_breaker 11.
#[test]
fn a_store_that_is_down_leaves_each_with_its_own_state() {
    let shared = Shared::new();
    let (a, b) = (shared.process("a", config()), shared.process("b", config()));
    let mut events = a.events();
    shared.client("a").cut();
    shared.trip(&a);
    shared.world.pass(S(3));
    assert!(is_open(&a) && !is_open(&b) && a.is_store_down());
    let kind = Some(PortErrorKind::Unavailable);
    assert_eq!(events.try_recv().unwrap().unwrap().what, Event::StoreFailed { kind });
    // Once it is back the others hear of what is left.
    shared.client("a").heal();
    shared.world.pass(S(2));
    assert!(is_open(&b) && !a.is_store_down());
    assert!(left(&b) <= left(&a) + S(1), "{:?} {:?}", left(&b), left(&a));
    // One that hangs is down too, and holds no call.
    shared.client("a").pause();
    shared.world.pass(S(3));
    assert!(a.is_store_down());
    shared.world.pass(S(10));
    assert!(shared.world.run(a.breaker().call(async || Ok::<_, ()>(()))).is_ok());
}

// Guarantee: circuit_breaker 11.
#[test]
fn a_partition_keeps_what_is_behind_it_to_itself() {
    let shared = Shared::new();
    let (a, b, c) = (shared.process("a", config()), shared.process("b", config()), shared.process("c", config()));
    shared.client("c").cut();
    shared.trip(&a);
    shared.world.pass(S(2));
    assert!(is_open(&b) && !is_open(&c));
    shared.trip(&c);
    shared.world.pass(S(1));
    assert_eq!(b.reports().len(), 1, "nobody hears it");
    shared.client("c").heal();
    shared.world.pass(S(2));
    assert_eq!((b.reports().len(), c.reports().len()), (2, 1));
}

// Guarantee: circuit_breaker 11.
#[test]
fn clocks_that_differ_change_nothing() {
    let shared = Shared::new();
    // Each runs at a rate of its own, from an origin of its own.
    let clocks = [0.98, 1.0, 1.02].map(|rate| shared.world.hand.clock_at_rate(rate));
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
fn the_report_of_a_process_that_is_gone_ends() {
    let shared = Shared::new();
    let gone = shared.at("gone", config(), &shared.world.clock);
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
fn who_begins_later_opens_with_those_that_are_open() {
    let shared = Shared::new();
    let a = shared.process("a", config());
    a.breaker().force_open(S(60));
    shared.world.pass(S(30));
    let late = shared.process("late", config());
    assert!(left(&late) >= left(&a) && left(&late) <= left(&a) + S(1), "the report is renewed: {:?}", left(&late));
}

// Guarantee: circuit_breaker 11.
#[test]
fn on_shutdown_the_report_is_taken_back() {
    let shared = Shared::new();
    let a = shared.at("a", config(), &shared.world.clock);
    a.breaker().force_open(S(60));
    shared.world.run(a.run(shared.world.clock.sleep(S(2))));
    assert!(shared.world.store.records().is_empty());
    assert!(is_open(&a), "the breaker is as it was");
}

// Guarantee: circuit_breaker 11.
#[test]
fn shadow_mode_and_isolation_are_each_process_s_own() {
    let shared = Shared::new();
    let (a, b) = (shared.prompt("a", config()), shared.prompt("b", config()));
    a.breaker().set_shadow(true);
    shared.trip(&a);
    shared.world.pass(S(3));
    assert!(!is_open(&b), "what is only measured is told to nobody");
    a.breaker().set_shadow(false);
    a.breaker().isolate();
    shared.world.pass(S(3));
    assert!(!is_open(&b));
    assert!(shared.world.store.records().is_empty());
}

// Guarantee: circuit_breaker 11.
#[test]
fn of_a_family_no_more_open_with_others_than_may() {
    let shared = Shared::new();
    let config_of_all = KeyedBreakersConfig::from(rules()).max_open(0.5);
    let registry = KeyedBreakers::<u32>::new(config_of_all).unwrap().with_clock(&shared.world.clock);
    let start = |key: u32| {
        let name = format!("host-{key}");
        let store: Arc<InMemoryStore> = shared.world.store.clone();
        let member = SharedCircuitBreaker::new(registry.get(&key), store.clone(), &*name, config()).unwrap();
        let other = CircuitBreaker::new(rules()).unwrap().with_clock(&shared.world.clock);
        let other = SharedCircuitBreaker::new(other, store, &*name, config()).unwrap();
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
fn a_row_of_somebody_else_is_no_report() {
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
fn nothing_of_it_is_on_the_way_of_a_call() {
    let shared = Shared::new();
    let a = shared.prompt("a", config());
    let before = shared.network.counts().requests;
    let pipeline = Pipeline::new().then(a.breaker().clone());
    for _ in 0..1000 {
        assert!(shared.world.run(pipeline.call(async || Ok::<_, ()>(()))).is_ok());
    }
    assert_eq!(shared.network.counts().requests, before);
    shared.world.pass(S(60));
    assert_eq!(shared.network.counts().requests - before, 60, "a read for each look, and no write");
}

// Guarantee: circuit_breaker 11.
#[test]
fn hints_that_flood_are_no_flood_of_requests() {
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
fn settings_are_checked_by_name_and_change_while_in_use() {
    let breaker = || CircuitBreaker::new(rules()).unwrap();
    let store = || Arc::new(InMemoryStore::new());
    let refused = |config| SharedCircuitBreaker::new(breaker(), store(), "x", config).unwrap_err();
    assert_eq!(refused(config().quorum(0)).field(), "agreement.quorum");
    assert_eq!(refused(config().poll(MS(1))).field(), "poll");
    assert_eq!(refused(config().stale_after(S(1))).field(), "stale_after");
    assert_eq!(refused(config().call_timeout(Duration::ZERO)).field(), "call_timeout");
    assert_eq!(SharedCircuitBreaker::new(breaker(), store(), "", config()).unwrap_err().field(), "name");
    let fine = SharedCircuitBreaker::new(breaker(), store(), "x", config()).unwrap();
    assert_eq!(fine.clone().as_process("").unwrap_err().field(), "process");
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
fn a_dropped_loop_leaves_the_breaker_and_a_report_that_ends() {
    let shared = Shared::new();
    shared.network.configure(FaultConfig::default().latency(MS(1), MS(1))).unwrap();
    let world = &shared.world;
    let a = shared.at("a", config(), &world.clock).with_notifier(world.notifier.clone());
    let polls = drop_at_every_await(
        &world.hand,
        || {
            a.breaker().force_open(S(60));
            a.run(world.clock.sleep(MS(1500)))
        },
        |polls| {
            assert!(polls == 0 || is_open(&a));
            world.hand.advance(S(6));
            assert!(world.store.records().is_empty(), "after {polls}");
            a.breaker().reset();
        },
    );
    assert!(polls > 8, "{polls}");
}

/// Notices of a line that breaks when its time has come, again and again from then on or once.
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
    fn publish<'a>(&'a self, _: &'a str, _: bytes::Bytes) -> BoxFuture<'a, Result<(), PortError>> {
        Box::pin(async { Ok(()) })
    }
    fn subscribe<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Notices, PortError>> {
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
    /// A process whose notifier breaks at that time, and tells nothing else.
    fn deaf(
        &self,
        name: &str,
        config: SharedCircuitBreakerConfig,
        after: Duration,
        again: bool,
    ) -> SharedCircuitBreaker {
        let clock = self.world.clock.clone();
        let notifier = Arc::new(Breaks { at: clock.now() + after, clock, again });
        self.start(self.at(name, config, &self.world.clock).with_notifier(notifier))
    }
}

#[test]
fn after_a_gap_in_its_hints_a_breaker_looks_at_once() {
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
    assert!(is_open(&c), "found by looking");
}

#[test]
fn gaps_without_end_cause_no_more_requests_than_looking_does() {
    let shared = Shared::new();
    let _breaker = shared.deaf("a", config(), S(0), true);
    let before = shared.network.counts().requests;
    shared.world.pass(S(60));
    let requests = shared.network.counts().requests - before;
    assert!((60..=121).contains(&requests), "{requests}");
}

/// A row that says 584 years, and is never renewed.
#[test]
fn a_damaged_report_opens_others_for_no_longer_than_they_would_open_by_themselves() {
    for millis in [u64::MAX.to_string(), "86400000000".to_owned()] {
        let shared = Shared::new();
        let b = shared.process("b", config());
        let (partition, row) = ("circuit breaker payments", "of a");
        let damaged = format!("circuit 1 open 7f-3 {millis}");
        let options = steadfast::store::PutOptions::new();
        shared.world.run(shared.world.store.put(Key::new(partition, row), damaged.into(), options)).unwrap();
        shared.world.pass(S(2));
        assert!(is_open(&b) && left(&b) <= S(15 * 60), "{:?}", left(&b));
        assert!(b.reports().iter().all(|report| report.until <= shared.world.hand.now() + S(15 * 60)));
        // Once it is gone, so is the opening.
        let key = Key::new(partition, row);
        shared.world.run(shared.world.store.delete(key, steadfast::store::DeleteOptions::default())).unwrap();
        shared.world.pass(S(2));
        assert!(!is_open(&b));
        assert!(shared.world.run(b.breaker().call(async || Ok::<_, ()>(()))).is_ok());
    }
}

#[test]
fn an_opening_that_ends_early_by_hand_ends_elsewhere_too_and_a_long_one_goes_on() {
    for (for_long, early) in [(S(600), S(5)), (S(3600), S(2400))] {
        let shared = Shared::new();
        let (a, b) = (shared.process("a", config()), shared.process("b", config()));
        a.breaker().force_open(for_long);
        let until = shared.world.hand.now() + early;
        while shared.world.hand.now() < until {
            shared.world.pass(S(5));
            assert!(is_open(&b), "as long as the report stands");
        }
        a.breaker().close();
        shared.world.pass(S(2));
        assert!(!is_open(&b), "{for_long:?}");
        assert!(shared.world.run(b.breaker().call(async || Ok::<_, ()>(()))).is_ok());
        assert_eq!(b.breaker().state(), State::Closed);
    }
    // Who closes here is not overruled by a report that still stands.
    let shared = Shared::new();
    let (a, b) = (shared.process("a", config()), shared.process("b", config()));
    a.breaker().force_open(S(600));
    shared.world.pass(S(2));
    b.breaker().close();
    shared.world.pass(S(30));
    assert_eq!(b.breaker().state(), State::Closed);
    // Nor is a breaker that is open by itself changed.
    b.breaker().force_open(S(400));
    a.breaker().close();
    shared.world.pass(S(10));
    assert!(left(&b) > S(380));
}
