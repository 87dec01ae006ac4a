//! Chaos: latency, fault, outcome, hang and panic, by rate and by scope, seeded; off unless it is
//! enabled.
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock, mpsc},
    thread,
    time::Duration,
};

use futures::FutureExt;
use proptest::prelude::*;
use steadfast::{
    Builder, Cause, FailureKind, Pipeline, PolicyKind, Priority, Reason,
    call::{AttemptInfo, CallContext, OperationName, named, not_idempotent, with_priority},
    chaos::{Chaos, ChaosConfig, ChaosEvent, ChaosRule, Injected, Injection},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State, TripConfig},
    entropy::Entropy,
    hedge::{Hedge, HedgeConfig},
    observe::{Event, Subscription},
    retry::{Retry, RetryConfig},
    testing::{ManualClock, ScriptedService, drop_at_every_await},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter},
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

static PRICE: OperationName = OperationName::new("price");
static STOCK: OperationName = OperationName::new("stock");

fn world(rules: impl IntoIterator<Item = ChaosRule>) -> (Chaos, ScriptedService, Clock, ManualClock) {
    let (chaos, service, clock, time) = builder(rules);
    (chaos.build().unwrap(), service, clock, time)
}

fn builder(rules: impl IntoIterator<Item = ChaosRule>) -> (Builder<Chaos>, ScriptedService, Clock, ManualClock) {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new("ok", &clock).unwrap();
    let chaos = Chaos::builder(ChaosConfig::of(rules)).name("c").clock(&clock).entropy(&Entropy::from_seed(1));
    (chaos, service, clock, time)
}

fn told(events: &mut Subscription<ChaosEvent>) -> Vec<ChaosEvent> {
    std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect()
}

// Guarantee: chaos 2.
#[test]
fn latency_delays_attempts_by_the_clock_of_the_policy() {
    let (chaos, service, _, time) = world([ChaosRule::latency(MS(10), MS(200), 1.0)]);
    let mut events = chaos.events();
    let mut seen = Vec::new();
    for _ in 0..200 {
        let start = time.now();
        time.block_on(chaos.call(|| service.call())).unwrap();
        seen.push(time.now() - start);
    }
    assert!(seen.iter().all(|took| (MS(10)..=MS(200)).contains(took)));
    assert!(seen.iter().any(|took| *took < MS(30)) && seen.iter().any(|took| *took > MS(180)), "{seen:?}");
    assert_eq!(
        told(&mut events)
            .into_iter()
            .map(|e| match e {
                ChaosEvent::Delayed { by } => by,
                other => panic!("{other:?}"),
            })
            .collect::<Vec<_>>(),
        seen
    );
    assert_eq!((chaos.injected().delayed, service.calls()), (200, 200));
    // Several delays add up.
    let (chaos, service, _, time) =
        world([ChaosRule::latency(MS(10), MS(10), 1.0), ChaosRule::latency(MS(5), MS(5), 1.0)]);
    let start = time.now();
    time.block_on(chaos.call(|| service.call())).unwrap();
    assert_eq!((time.now() - start, chaos.injected().delayed), (MS(15), 1));
}

// Guarantee: chaos 2.
#[test]
fn a_fault_is_judged_as_its_kind_and_reported_as_injected() {
    let (chaos, service, _, time) = world([ChaosRule::fault_with_hint(FailureKind::Throttled, MS(3000), 1.0)]);
    let mut events = chaos.events();
    let error = time.block_on(chaos.call(|| service.call())).unwrap_err();
    assert_eq!(
        (error.verdict().kind(), error.retry_after(), error.attempts()),
        (Some(FailureKind::Throttled), Some(MS(3000)), 0)
    );
    let Cause::Rejected(rejected) = error.cause() else { panic!("{error}") };
    assert_eq!(
        (rejected.by(), rejected.reason()),
        (PolicyKind::Chaos, Reason::Injected { kind: FailureKind::Throttled })
    );
    assert_eq!(error.to_string(), "rejected by the chaos `c`: an injected fault (throttled); try again in 3s");
    assert_eq!((service.calls(), told(&mut events)), (0, vec![ChaosEvent::Failed { kind: FailureKind::Throttled }]));
}

// Guarantee: chaos 2.
#[test]
fn every_policy_treats_a_fault_as_real() {
    // A retry repeats it, though it does not repeat rejections; its hint is used; a breaker counts it.
    let (chaos, service, clock, time) =
        world([ChaosRule::fault_with_hint(FailureKind::Overloaded, MS(3000), 1.0).attempts([1, 2])]);
    let retry = Retry::builder(RetryConfig::default().idempotent(true)).clock(&clock).build().unwrap();
    let breaker =
        CircuitBreaker::builder(CircuitBreakerConfig::default().trip(TripConfig::default().consecutive_failures(3)));
    let breaker = breaker.clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(retry).then(breaker.clone()).then(chaos.clone());
    let start = time.now();
    time.block_on(pipeline.call(|| service.call())).unwrap();
    assert!(time.now() - start >= MS(6000));
    assert_eq!((service.calls(), chaos.injected().failed, chaos.injected().attempts), (1, 2, 3));
    // A hedge starts the next attempt at once.
    let (chaos, service, clock, time) = builder([ChaosRule::fault(FailureKind::Connect, 1.0)]);
    let chaos = chaos.filter(|cx| cx.hedge() == 0).build().unwrap();
    let hedge = Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true)).clock(&clock).build().unwrap();
    time.block_on(Pipeline::new().then(hedge).then(chaos.clone()).call(|| service.call())).unwrap();
    assert_eq!((service.calls(), chaos.injected().attempts), (1, 1));
    // Three consecutive faults open the breaker.
    let (chaos, service, _, time) = world([ChaosRule::fault(FailureKind::Connect, 1.0)]);
    let pipeline = Pipeline::new().then(breaker.clone()).then(chaos);
    (0..3).for_each(|_| drop(time.block_on(pipeline.call(|| service.call()))));
    assert_eq!(breaker.state(), State::Open);
}

// Guarantee: chaos 2.
#[test]
fn a_result_of_the_operation_s_own_types_can_be_injected() {
    let (chaos, service, clock, time) = world([ChaosRule::outcome(1.0).attempts([1])]);
    let mut events = chaos.events();
    let retry = Retry::builder(RetryConfig::default().idempotent(true)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(retry).classify(|result: &Result<u16, _>| match result {
        Ok(503) => steadfast::Verdict::failure(FailureKind::Overloaded),
        other => ScriptedService::classify(other),
    });
    let answer = time.block_on(pipeline.call(chaos.outcomes(|| service.call(), || Ok(503))));
    assert_eq!((answer.unwrap(), service.calls(), chaos.injected().replaced), (200, 1, 1));
    assert_eq!(told(&mut events), [ChaosEvent::Replaced]);
    // The policy alone does not apply such a rule.
    assert!(time.block_on(chaos.call(|| service.call())).is_ok());
    // Otherwise it has the properties of the operation, under a hedge too.
    let wrapped =
        chaos.outcomes(not_idempotent(with_priority(Priority::High, named(&PRICE, || service.call()))), || Ok(1));
    use steadfast::call::Operation;
    assert!(wrapped.is_idempotent() == Some(false) && wrapped.can_overlap());
    assert_eq!((wrapped.priority(), wrapped.name().map(OperationName::as_str)), (Some(Priority::High), Some("price")));
    let hedge = Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true)).clock(&clock).build().unwrap();
    assert_eq!(time.block_on(hedge.call(chaos.outcomes(|| service.call(), || Ok(7)))).unwrap(), 7);
    chaos.set_enabled(false);
    assert_eq!(time.block_on(hedge.call(chaos.outcomes(|| service.call(), || Ok(7)))).unwrap(), 200);
}

// Guarantee: chaos 2.
#[test]
fn a_hang_ends_with_a_time_out_and_frees_all_permits() {
    let (chaos, service, clock, time) = world([ChaosRule::hang(1.0)]);
    let mut events = chaos.events();
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1)).clock(&clock).build().unwrap();
    let timeout = Timeout::builder(MS(100)).clock(&clock).build();
    let pipeline = Pipeline::new().then(timeout).then(limiter.clone()).then(chaos.clone());
    assert!(time.block_on(pipeline.call(|| service.call())).unwrap_err().is_timed_out());
    assert_eq!((service.calls(), limiter.available(), chaos.injected().hung), (0, 1, 1));
    assert_eq!(told(&mut events), [ChaosEvent::Hung]);
}

// Guarantee: chaos 2.
#[test]
fn an_injected_panic_unwinds_and_other_policies_count_it() {
    let (chaos, service, clock, time) = world([ChaosRule::panic(1.0)]);
    let config = CircuitBreakerConfig::default().trip(TripConfig::default().consecutive_failures(1));
    let breaker = CircuitBreaker::builder(config).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(breaker.clone()).then(chaos.clone());
    assert!(catch_unwind(AssertUnwindSafe(|| time.block_on(pipeline.call(|| service.call())))).is_err());
    assert_eq!((breaker.state(), chaos.injected().panicked, service.calls()), (State::Open, 1, 0));
}

// Guarantee: chaos 3.
#[test]
fn a_rule_applies_at_its_rate() {
    let (chaos, service, _, time) = world([
        ChaosRule::latency(MS(1), MS(2), 0.2),
        ChaosRule::fault(FailureKind::Server, 0.1),
        ChaosRule::panic(0.05),
    ]);
    for _ in 0..10_000 {
        let _ = time.block_on(AssertUnwindSafe(chaos.call(|| service.call())).catch_unwind());
    }
    let injected = chaos.injected();
    let near = |n: u64, expected: f64| (n as f64 / expected - 1.0).abs() < 0.1;
    assert!(
        near(injected.delayed, 2000.0) && near(injected.failed, 1000.0) && near(injected.panicked, 450.0),
        "{injected:?}"
    );
    assert_eq!(injected.attempts, 10_000);
    assert_eq!(service.calls() as u64, 10_000 - injected.failed - injected.panicked);
}

// Guarantee: chaos 3.
#[test]
fn a_rule_applies_by_operation_name_and_attempt_number() {
    let rule = ChaosRule::fault(FailureKind::Server, 1.0);
    let (chaos, service, clock, time) = world([rule.clone().operations(["price", "tax"]), rule.attempts([2])]);
    let price = |chaos: &Chaos| time.block_on(chaos.call(named(&PRICE, || service.call()))).is_ok();
    assert!(!price(&chaos));
    assert!(time.block_on(chaos.call(named(&STOCK, || service.call()))).is_ok());
    assert!(time.block_on(chaos.call(|| service.call())).is_ok());
    // Every mark of an operation is kept, inside another call too.
    let marked = || with_priority(Priority::Low, not_idempotent(named(&PRICE, || service.call())));
    assert!(time.block_on(chaos.call(marked())).is_err());
    let outer = AttemptInfo::with_deadline(clock.now() + MS(1000));
    let pipeline = Pipeline::new().then(chaos.clone());
    assert!(time.block_on(pipeline.call_within(outer, marked())).is_err());
    assert!(time.block_on(pipeline.call_within(outer, || service.call())).is_ok());
    // The other rule applies to the second attempt.
    let once = ScriptedService::new("503, ok", &clock).unwrap();
    let retry = Retry::builder(RetryConfig::default().idempotent(true).max_attempts(2)).clock(&clock).build().unwrap();
    let error = time.block_on(Pipeline::new().then(retry).then(chaos).call(|| once.call())).unwrap_err();
    assert_eq!((error.is_rejected(), error.attempts()), (true, 1));
}

// Guarantee: chaos 3.
#[test]
fn a_filter_restricts_the_attempts() {
    let (chaos, service, _, time) = builder([ChaosRule::fault(FailureKind::Server, 1.0)]);
    let chaos = chaos.filter(|cx: CallContext<'_>| cx.priority() == Priority::Low).build().unwrap();
    assert!(time.block_on(chaos.call(|| service.call())).is_ok());
    assert!(time.block_on(chaos.call(with_priority(Priority::Low, || service.call()))).is_err());
    assert_eq!(chaos.injected().attempts, 1);
}

/// Returns the effect on each of 100 consecutive attempts.
fn effects(seed: u64, rules: &[ChaosRule]) -> Vec<String> {
    let (chaos, service, _, time) = builder(rules.to_vec());
    let chaos = chaos.entropy(&Entropy::from_seed(seed)).build().unwrap();
    let one = |name| {
        let start = time.now();
        let call = AssertUnwindSafe(chaos.call(named(name, || service.call()))).catch_unwind();
        let came_to = match time.block_on(call) {
            Err(_) => "panic".to_owned(),
            Ok(result) => result.map_or_else(|e| format!("{:?}", e.verdict().kind()), |_| "ok".into()),
        };
        format!("{came_to} {:?}", time.now() - start)
    };
    (0..100).map(|i| one(if i % 2 == 0 { &PRICE } else { &STOCK })).collect()
}

fn mixed() -> Vec<ChaosRule> {
    vec![ChaosRule::latency(MS(0), MS(100), 0.3), ChaosRule::fault(FailureKind::Server, 0.2), ChaosRule::panic(0.2)]
}

// Guarantee: chaos 4.
#[test]
fn the_same_seed_injects_the_same_faults() {
    assert_eq!(effects(7, &mixed()), effects(7, &mixed()));
    assert_ne!(effects(7, &mixed()), effects(8, &mixed()));
}

// Guarantee: chaos 4.
#[test]
fn the_scope_of_a_rule_changes_no_other_draw() {
    let mut narrowed = mixed();
    narrowed[1] = narrowed[1].clone().operations(["price"]);
    for (i, (all, some)) in effects(7, &mixed()).into_iter().zip(effects(7, &narrowed)).enumerate() {
        if i % 2 == 0 {
            assert_eq!(all, some);
        } else {
            assert!(all == some || all.starts_with("Some(Server)"), "{i}: {all} {some}");
        }
    }
}

// Guarantee: chaos 1.
#[test]
fn nothing_is_injected_until_chaos_is_enabled() {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new("ok", &clock).unwrap();
    assert!(!ChaosConfig::default().enabled);
    let config: ChaosConfig = toml::from_str("rules = [{ inject = \"panic\", rate = 1.0 }]").unwrap();
    let chaos = Chaos::builder(config).clock(&clock).build().unwrap();
    let mut events = chaos.events();
    assert!(time.block_on(chaos.call(|| service.call())).is_ok());
    assert_eq!((chaos.is_enabled(), chaos.injected()), (false, Injected::default()));
    let clone = chaos.clone();
    clone.set_enabled(true);
    clone.set_enabled(true);
    assert!(catch_unwind(AssertUnwindSafe(|| time.block_on(chaos.call(|| service.call())))).is_err());
    clone.set_enabled(false);
    assert!(time.block_on(chaos.call(|| service.call())).is_ok());
    assert_eq!(told(&mut events), [ChaosEvent::SwitchedOn, ChaosEvent::Panicked, ChaosEvent::SwitchedOff]);
}

#[test]
fn a_hook_may_switch_chaos_off_as_soon_as_it_is_on() {
    let (end, ended) = mpsc::channel();
    thread::spawn(move || {
        let own: Arc<OnceLock<Chaos>> = Arc::default();
        let hooked = own.clone();
        let off = move |event: &Event<ChaosEvent>| {
            if event.what == ChaosEvent::SwitchedOn {
                hooked.get().unwrap().set_enabled(false);
            }
        };
        let chaos = Chaos::builder(ChaosConfig::default()).on_event(off).build().unwrap();
        own.set(chaos.clone()).unwrap();
        chaos.set_enabled(true);
        chaos.reconfigure(ChaosConfig::default().enabled(true)).unwrap();
        end.send(chaos.is_enabled()).unwrap();
    });
    assert!(!ended.recv_timeout(Duration::from_secs(20)).expect("a lock is held while a hook runs"));
}

// Guarantee: chaos 5.
#[test]
fn a_configuration_is_replaced_for_all_clones_and_an_invalid_one_is_refused_as_a_whole() {
    let (chaos, service, _, time) = world([ChaosRule::fault(FailureKind::Server, 1.0)]);
    let pipeline = Pipeline::new().then(chaos.clone());
    let kind = || time.block_on(pipeline.call(|| service.call())).err().and_then(|e| e.verdict().kind());
    assert_eq!(kind(), Some(FailureKind::Server));
    let bad = ChaosConfig::of([ChaosRule::fault(FailureKind::Connect, 1.0), ChaosRule::hang(1.5)]);
    let before = chaos.config();
    assert_eq!(chaos.reconfigure(bad).unwrap_err().field(), "rules.1.rate");
    assert_eq!((chaos.config(), kind()), (before, Some(FailureKind::Server)));
    chaos.reconfigure(ChaosConfig::of([ChaosRule::fault(FailureKind::Connect, 1.0)])).unwrap();
    assert_eq!(kind(), Some(FailureKind::Connect));
    chaos.reconfigure(ChaosConfig::default()).unwrap();
    assert_eq!((kind(), chaos.injected().failed), (None, 3));
}

// Guarantee: chaos 5.
#[test]
fn invalid_values_are_refused_by_name() {
    let refused = |rule: ChaosRule| Chaos::new(ChaosConfig::of([rule])).unwrap_err().field().to_owned();
    for rate in [0.0, -0.1, 1.1, f64::NAN] {
        assert_eq!(refused(ChaosRule::hang(rate)), "rules.0.rate");
    }
    assert_eq!(refused(ChaosRule::latency(MS(2), MS(1), 1.0)), "rules.0.inject.latency.min");
    assert_eq!(refused(ChaosRule::latency(MS(0), MS(0), 1.0)), "rules.0.inject.latency.max");
    assert_eq!(refused(ChaosRule::fault(FailureKind::Panic, 1.0)), "rules.0.inject.fault.kind");
    assert_eq!(refused(ChaosRule::hang(1.0).attempts([1, 0])), "rules.0.attempts");
    assert_eq!(refused(ChaosRule::hang(1.0).operations([""])), "rules.0.operations");
    let many = ChaosConfig::of(vec![ChaosRule::hang(0.1); 101]);
    assert_eq!(Chaos::new(many).unwrap_err().field(), "rules");
    for (text, names) in [
        ("enable = true", "enable"),
        ("rules = [{ inject = \"hang\", rate = 0.1, often = true }]", "often"),
        ("rules = [{ inject = { latency = { most = \"1s\" } }, rate = 0.1 }]", "most"),
        ("rules = [{ inject = \"storm\", rate = 0.1 }]", "storm"),
        ("rules = [{ inject = \"hang\" }]", "rate"),
    ] {
        let error = toml::from_str::<ChaosConfig>(text).unwrap_err().to_string();
        assert!(error.contains(names), "{error}");
    }
}

// Guarantee: chaos 5.
#[test]
fn a_configuration_is_read_back_from_a_document() {
    let config = ChaosConfig::of([
        ChaosRule::latency(MS(1), MS(2), 0.5),
        ChaosRule::fault_with_hint(FailureKind::Overloaded, MS(5), 0.25).operations(["price"]),
        ChaosRule::fault(FailureKind::Connect, 0.25).attempts([1, 2]),
        ChaosRule::new(Injection::Outcome, 0.125),
        ChaosRule::hang(1.0),
        ChaosRule::panic(1.0),
    ]);
    let text = toml::to_string(&config).unwrap();
    assert_eq!(toml::from_str::<ChaosConfig>(&text).unwrap(), config, "{text}");
}

// Guarantee: chaos 1.
#[test]
fn explain_warns_of_chaos_in_a_build_and_of_its_position() {
    let (chaos, _, _, _) =
        world([ChaosRule::hang(0.5).operations(["price"]), ChaosRule::fault(FailureKind::Server, 0.1)]);
    let timeout = Timeout::new(MS(100));
    let pipeline = Pipeline::new().then(timeout.clone()).then(chaos.clone());
    assert_eq!(pipeline.explain().warnings(), ["the chaos `c`: is built in and enabled: it injects faults on purpose"]);
    let text = pipeline.explain().to_string();
    assert!(text.contains("2. chaos `c`: enabled: hang in 50 % of price; fault (server) in 10 %"), "{text}");
    chaos.set_enabled(false);
    let warnings = pipeline.explain().warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("as soon as it is enabled"), "{warnings:?}");
    let warnings = Pipeline::new().then(chaos).then(timeout).explain().warnings();
    assert!(warnings.iter().any(|w| w.contains("calls that it hangs never end")), "{warnings:?}");
    assert!(
        warnings.iter().any(|w| w.contains("stands outside the time-out, which never sees its faults")),
        "{warnings:?}"
    );
}

#[test]
fn a_call_dropped_at_any_await_frees_all_permits() {
    let (chaos, service, clock, time) = world([ChaosRule::latency(MS(10), MS(10), 1.0)]);
    let slow = ScriptedService::new("ok in 10ms", &clock).unwrap();
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(limiter.clone()).then(chaos);
    let polls = drop_at_every_await(
        &time,
        || pipeline.call(|| slow.call()),
        |_| assert_eq!((slow.running(), limiter.available()), (0, 1)),
    );
    assert_eq!((polls, service.calls()), (3, 0));
}

proptest! {
    // Guarantee: chaos 6.
    /// Compares the counts with the result of each call.
    #[test]
    fn the_counts_equal_a_naive_model(
        seed: u64,
        rates in prop::collection::vec(0.01f64..=1.0, 4),
        calls in 1usize..60,
    ) {
        let (chaos, service, clock, time) = builder([
            ChaosRule::latency(MS(1), MS(50), rates[0]),
            ChaosRule::fault(FailureKind::Server, rates[1]),
            ChaosRule::hang(rates[2]),
            ChaosRule::panic(rates[3]),
        ]);
        let chaos = chaos.entropy(&Entropy::from_seed(seed)).build().unwrap();
        let mut events = chaos.events();
        let pipeline = Pipeline::new().then(Timeout::builder(MS(100)).clock(&clock).build()).then(chaos.clone());
        let mut seen = Injected::default();
        for _ in 0..calls {
            let start = time.now();
            let result = time.block_on(AssertUnwindSafe(pipeline.call(|| service.call())).catch_unwind());
            let took = time.now() - start;
            seen.attempts += 1;
            match result {
                Err(_) => seen.panicked += 1,
                Ok(Err(error)) if error.is_timed_out() => seen.hung += 1,
                Ok(Err(_)) => seen.failed += 1,
                Ok(Ok(_)) => prop_assert!(took < MS(100)),
            }
        }
        let told = told(&mut events);
        seen.delayed = told.iter().filter(|e| matches!(e, ChaosEvent::Delayed { .. })).count() as u64;
        prop_assert_eq!(seen, chaos.injected());
        let ended = told.len() as u64 - seen.delayed;
        prop_assert_eq!(ended, seen.failed + seen.hung + seen.panicked);
        prop_assert_eq!(service.calls() as u64, seen.attempts - ended);
    }
}
