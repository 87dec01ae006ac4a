//! A client throttle, which rejects its own calls while the service refuses too many of them.
use std::time::Duration;

use proptest::prelude::*;
use steadfast::{
    Cause, FailureKind, Pipeline, PolicyKind, Reason, Verdict,
    entropy::Entropy,
    outcome::KindSet,
    testing::{ManualClock, ScriptedService, drop_at_every_await},
    throttling::{ClientThrottle, ClientThrottleConfig, Quota, RateLimiter, ThrottlingEvent},
    time::Clock,
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;

fn throttle(config: ClientThrottleConfig) -> (ClientThrottle, Clock, ManualClock) {
    let (clock, time) = Clock::manual();
    (
        ClientThrottle::builder(config).name("search").clock(&clock).entropy(&Entropy::from_seed(1)).build().unwrap(),
        clock,
        time,
    )
}

fn sees(throttle: &ClientThrottle) -> (u64, u64) {
    let seen = throttle.snapshot();
    (seen.requests, seen.accepts)
}

const REFUSED: Verdict = Verdict::failure(FailureKind::Overloaded);

/// The tick of a request that does not count.
const NEVER: u64 = u64::MAX;

/// The formula, independently: the probability that the next request is rejected.
fn formula(k: f64, requests: usize, accepts: usize) -> f64 {
    ((requests as f64 - k * accepts as f64) / (requests as f64 + 1.0)).max(0.0)
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Advance(u64),
    /// A change of `k`.
    Change(f64),
    Begin,
    /// One request under way ends with this verdict, or is dropped if `None`.
    End(prop::sample::Index, Option<Verdict>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = any::<prop::sample::Index>;
    let verdict = prop_oneof![
        3 => Just(Some(Verdict::success())),
        4 => Just(Some(REFUSED)),
        1 => Just(Some(Verdict::failure(FailureKind::Throttled))),
        1 => Just(Some(Verdict::failure(FailureKind::Server))),
        1 => Just(Some(Verdict::ignore())),
        1 => Just(None),
    ];
    let step = prop_oneof![
        1 => (0u64..400).prop_map(Step::Advance),
        1 => (1.0f64..4.0).prop_map(Step::Change),
        5 => Just(Step::Begin),
        4 => (which(), verdict).prop_map(|(which, verdict)| Step::End(which, verdict)),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    // Guarantee: throttling 16.
    /// Compared with a list of all requests, by the same draws: the same calls are rejected with
    /// the same probabilities.
    #[test]
    fn a_throttle_equals_the_formula_over_a_list_of_requests(k in 1.0f64..4.0, steps in steps()) {
        let (mut k, window, buckets) = (k, 1_200, 12);
        let config = ClientThrottleConfig::sre().k(k).window(MS(window));
        let (clock, time) = Clock::manual();
        let (entropy, twin) = (Entropy::from_seed(9), Entropy::from_seed(9));
        let throttle = ClientThrottle::builder(config).clock(&clock).entropy(&entropy).build().unwrap();
        // The tick at which each request began, and `true` if it was accepted.
        let mut list: Vec<(u64, bool)> = Vec::new();
        let mut under_way = Vec::new();
        let tick = || time.now().as_nanos() / (window * 1_000_000 / buckets);
        for step in steps {
            match step {
                Step::Advance(ms) => time.advance(MS(ms)),
                Step::Change(next) => {
                    k = next;
                    throttle.reconfigure(config.k(k)).unwrap();
                }
                Step::Begin => {
                    let live: Vec<_> = list.iter().filter(|(at, _)| *at != NEVER && tick() - at < buckets).collect();
                    let odds = formula(k, live.len(), live.iter().filter(|(_, accepted)| *accepted).count());
                    let rejects = odds > 0.0 && twin.unit() < odds;
                    list.push((tick(), false));
                    match throttle.try_acquire() {
                        Ok(permit) => {
                            prop_assert!(!rejects);
                            under_way.push((list.len() - 1, permit));
                        }
                        Err(rejected) => {
                            prop_assert!(rejects);
                            prop_assert_eq!(rejected.reason(), Reason::LikelyRefused);
                        }
                    }
                }
                Step::End(..) if under_way.is_empty() => {}
                Step::End(which, verdict) => {
                    let (at, permit) = under_way.swap_remove(which.index(under_way.len()));
                    match verdict {
                        Some(verdict) => permit.record(verdict),
                        None => drop(permit),
                    }
                    let is_nothing = verdict.is_none_or(|verdict| verdict == Verdict::ignore());
                    let is_refused = verdict.is_some_and(|verdict| {
                        verdict == REFUSED || verdict == Verdict::failure(FailureKind::Throttled)
                    });
                    if is_nothing {
                        list[at].0 = NEVER; // as if it had not been
                    } else {
                        list[at].1 = !is_refused;
                    }
                }
            }
            let live: Vec<_> = list.iter().filter(|(at, _)| *at != NEVER && tick() - at < buckets).collect();
            let accepts = live.iter().filter(|(_, accepted)| *accepted).count();
            let seen = throttle.snapshot();
            prop_assert_eq!((seen.requests, seen.accepts), (live.len() as u64, accepts as u64));
            prop_assert_eq!(seen.rejection, formula(k, live.len(), accepts));
        }
    }
}

// Guarantee: throttling 16.
#[test]
fn the_formula_gives_the_published_figures() {
    // Requests, accepted ones, and the probability for K = 2.
    let table = [(0, 0, 0.0), (1, 0, 0.5), (9, 0, 0.9), (100, 50, 0.0), (100, 51, 0.0), (99, 24, 0.51), (99, 0, 0.99)];
    for (requests, accepts, rejection) in table {
        // Below the floor nothing is rejected.
        let (throttle, ..) = throttle(ClientThrottleConfig::sre().min_rps(1e6));
        for i in 0..requests {
            let permit = throttle.try_acquire().unwrap();
            permit.record(if i < accepts { Verdict::success() } else { REFUSED });
        }
        throttle.reconfigure(ClientThrottleConfig::sre()).unwrap();
        let seen = throttle.snapshot();
        assert_eq!(seen.rejection, rejection, "{seen:?}");
        assert_eq!(seen.rejection, formula(2.0, requests, accepts));
    }
}

// Guarantee: throttling 16.
/// A burst into a service that hangs is throttled before the first request fails.
#[test]
fn requests_count_before_they_return() {
    let (throttle, ..) = throttle(ClientThrottleConfig::sre());
    let mut under_way = Vec::new();
    for n in 0..50 {
        assert_eq!(sees(&throttle), (n, 0));
        assert_eq!(throttle.snapshot().rejection, formula(2.0, n as usize, 0));
        under_way.push(throttle.try_acquire());
    }
    assert!(under_way.iter().any(Result::is_err));
    // All sent requests are accepted in the end; those that were rejected here still count.
    let rejected = under_way.iter().filter(|permit| permit.is_err()).count() as u64;
    under_way.into_iter().flatten().for_each(|permit| permit.record(Verdict::success()));
    assert_eq!(sees(&throttle), (50, 50 - rejected));
}

// Guarantee: throttling 16.
#[test]
fn a_dropped_call_does_not_count() {
    let (throttle, clock, time) = throttle(ClientThrottleConfig::sre());
    let service = ScriptedService::new("ok in 1s", &clock).unwrap();
    let pipeline = Pipeline::new().then(throttle.clone()).classify(ScriptedService::classify);
    let polls = drop_at_every_await(
        &time,
        || pipeline.call(|| service.call()),
        |polls| {
            let ended = u64::from(polls == 2);
            assert_eq!((sees(&throttle), service.running()), ((ended, ended), 0));
        },
    );
    assert_eq!(polls, 2);
    // Without a pipeline.
    drop_at_every_await(
        &time,
        || throttle.call(|| service.call()),
        |polls| assert_eq!(sees(&throttle), if polls == 2 { (2, 2) } else { (1, 1) }),
    );
    // And a panic.
    let panics = std::panic::AssertUnwindSafe(|| time.block_on(pipeline.call(async || -> Result<u16, _> { panic!() })));
    assert!(std::panic::catch_unwind(panics).is_err());
    assert_eq!(sees(&throttle), (2, 2));
}

// Guarantee: throttling 16.
#[test]
fn only_refusals_count_as_not_accepted() {
    for (answer, accepts) in [("ok", 1), ("429", 0), ("503", 0), ("500", 1), ("404", 1), ("reset", 1)] {
        let (throttle, clock, time) = throttle(ClientThrottleConfig::sre());
        let service = ScriptedService::new(answer, &clock).unwrap();
        let pipeline = Pipeline::new().then(throttle.clone()).classify(ScriptedService::classify);
        let _ = time.block_on(pipeline.call(|| service.call()));
        assert_eq!(sees(&throttle), (1, accepts), "{answer}");
    }
    // Other kinds are refusals if the settings name them.
    let config = ClientThrottleConfig::sre().refusals(KindSet::of(&[FailureKind::Server]));
    let (throttle, ..) = throttle(config);
    throttle.try_acquire().unwrap().record(Verdict::failure(FailureKind::Server));
    assert_eq!(sees(&throttle), (1, 0));
    let (throttle, ..) = self::throttle(config);
    throttle.try_acquire().unwrap().record(REFUSED);
    assert_eq!(sees(&throttle), (1, 1));
}

// Guarantee: throttling 16.
/// A call that an inner policy rejected was never sent: the service has neither accepted nor
/// refused it.
#[test]
fn a_call_that_an_inner_policy_rejected_does_not_count() {
    let (throttle, clock, time) = throttle(ClientThrottleConfig::sre());
    let rate = RateLimiter::builder(Quota::per_second(1)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(throttle.clone()).then(rate);
    for _ in 0..100 {
        let _ = time.block_on(pipeline.call(async || Ok::<_, ()>(())));
    }
    assert_eq!(sees(&throttle), (1, 1));
}

// Guarantee: throttling 16.
#[test]
fn floor_maximum_and_aggression_shape_the_probability() {
    // By default one call in ten still passes, and few calls prove nothing.
    let (throttle, ..) = throttle(ClientThrottleConfig::default());
    for n in 0..10_000 {
        if let Ok(permit) = throttle.try_acquire() {
            permit.record(REFUSED);
        } else {
            assert!(n >= 120, "one a second, on the average of two minutes, is the floor: {n}");
        }
    }
    assert_eq!(throttle.snapshot().rejection, 0.9);
    // Envoy's formula: ((n - s / threshold) / (n + 1)) to the power of one over the aggression,
    // over all failures, at most 0.8.
    let config = ClientThrottleConfig::admission(0.5).aggression(2.0);
    let (throttle, ..) = self::throttle(config.min_rps(1e6));
    throttle.try_acquire().unwrap().record(Verdict::success());
    (0..3).for_each(|_| throttle.try_acquire().unwrap().record(Verdict::failure(FailureKind::Server)));
    throttle.reconfigure(config).unwrap();
    assert_eq!(throttle.snapshot().rejection, (2.0f64 / 5.0).sqrt());
    throttle.reconfigure(config.max_rejection(0.5)).unwrap();
    assert_eq!(throttle.snapshot().rejection, 0.5);
}

// Guarantee: throttling 16.
/// The share of rejected calls equals the stated probability.
#[test]
fn the_share_of_rejected_calls_equals_the_probability() {
    let (throttle, ..) = throttle(ClientThrottleConfig::sre());
    (0..1_000).for_each(|_| throttle.try_acquire().unwrap().record(Verdict::success()));
    // From here on nothing is accepted.
    let (mut expected, mut rejected) = (0.0, 0.0);
    for _ in 0..20_000 {
        expected += throttle.snapshot().rejection;
        match throttle.try_acquire() {
            Ok(permit) => permit.record(REFUSED),
            Err(_) => rejected += 1.0,
        }
    }
    assert!(f64::abs(rejected - expected) / expected < 0.02, "{rejected} rejected, {expected} expected");
    assert!(rejected > 10_000.0);
}

// Guarantee: throttling 16.
/// A service that accepts 100 a second under 1,000: it receives little more than twice its
/// capacity, and when the load ends, so does the throttling.
#[test]
fn an_overloaded_service_gets_fewer_requests_and_recovers() {
    let (throttle, _, time) = throttle(ClientThrottleConfig::sre().window(S(10)));
    let second = |calls: u64| {
        let (mut sent, mut served) = (0, 0);
        for _ in 0..calls {
            time.advance(S(1) / calls as u32);
            if let Ok(permit) = throttle.try_acquire() {
                sent += 1;
                served += u64::from(served < 100);
                permit.record(if sent <= 100 { Verdict::success() } else { REFUSED });
            }
        }
        (sent, served)
    };
    for _ in 0..30 {
        second(1_000);
    }
    for _ in 0..30 {
        let (sent, served) = second(1_000);
        assert!((150..260).contains(&sent), "{sent} sent");
        assert_eq!(served, 100, "the service works at full speed");
    }
    // In each window the share that passes doubles.
    for _ in 0..40 {
        second(50);
    }
    assert_eq!((second(50), throttle.snapshot().rejection), ((50, 50), 0.0));
}

// Guarantee: throttling 16.
#[test]
fn a_rejection_carries_its_policy_and_reason_and_is_an_event() {
    let (throttle, _, time) = throttle(ClientThrottleConfig::sre());
    let mut events = throttle.events();
    let pipeline = Pipeline::new().then(throttle.clone()).classify(|_: &Result<(), ()>| REFUSED);
    let mut calls = 0;
    let error = loop {
        let error = time.block_on(pipeline.call(|| {
            calls += 1;
            async { Err::<(), _>(()) }
        }));
        match error.unwrap_err().into_cause() {
            Cause::Rejected(rejected) => break rejected,
            _ => continue,
        }
    };
    assert!(calls >= 1);
    assert_eq!(
        (error.by(), error.reason(), error.name()),
        (PolicyKind::ClientThrottle, Reason::LikelyRefused, Some("search"))
    );
    assert_eq!(error.retry_after(), None, "the decision is random, so the call may pass at once");
    let event = events.try_recv().unwrap().unwrap();
    assert_eq!(event.what, ThrottlingEvent::Rejected { reason: Reason::LikelyRefused, retry_after: None });
    assert_eq!(event.number, 1);
}

// Guarantee: throttling 19.
#[test]
fn invalid_settings_are_refused_with_the_field_s_name() {
    let config = ClientThrottleConfig::default;
    let refused = [
        (config().k(0.9), "k"),
        (config().k(f64::NAN), "k"),
        (config().window(Duration::ZERO), "window"),
        (config().window(S(3601)), "window"),
        (config().aggression(0.0), "aggression"),
        (config().aggression(f64::INFINITY), "aggression"),
        (config().min_rps(-1.0), "min_rps"),
        (config().max_rejection(1.1), "max_rejection"),
        (config().max_rejection(f64::NAN), "max_rejection"),
        (config().refusals(KindSet::of(&[])), "refusals"),
    ];
    for (config, field) in refused {
        assert_eq!(ClientThrottle::new(config).unwrap_err().field(), field, "{config:?}");
    }
    assert!(toml::from_str::<ClientThrottleConfig>("kk = 2.0").is_err());
}

#[test]
fn explain_warns_of_extreme_settings() {
    let explain = |config| Pipeline::new().then(ClientThrottle::new(config).unwrap()).explain().to_string();
    assert!(
        !explain(ClientThrottleConfig::default()).contains("warning"),
        "{}",
        explain(ClientThrottleConfig::default())
    );
    assert!(explain(ClientThrottleConfig::sre()).contains("hardly any call finds out"));
    assert!(explain(ClientThrottleConfig::default().k(1.0)).contains("no head-room"));
}
