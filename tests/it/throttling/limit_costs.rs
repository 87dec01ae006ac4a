//! The cost of limits to healthy callers: measuring a slow service, times to come back, remembered
//! keys, and unknown gauges.
use std::{cell::Cell, pin::pin, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use steadfast::{
    FailureKind, Pipeline, Priority, Reason, Verdict,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, KeyedBreakers, KeyedBreakersConfig, State, TripConfig},
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    throttling::{
        AdaptiveLimitConfig, AdaptiveLimiter, ConcurrencyLimitConfig, ConcurrencyLimiter, Degradation,
        DegradationConfig, Gauge, PriorityShares, Shedder, ShedderConfig,
    },
    time::Clock,
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;

/// Returns the share of calls that are rejected in an hour, by a service with a fixed latency.
fn refused_share(config: AdaptiveLimitConfig, takes: Duration, every: Duration) -> f64 {
    let (clock, time) = Clock::manual();
    let limiter = AdaptiveLimiter::builder(config).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(limiter);
    let (all, refused) = (Cell::new(0_u32), Cell::new(0_u32));
    let mut running = FuturesUnordered::new();
    time.block_on(async {
        let end = clock.now() + S(3_600);
        while clock.now() < end {
            running.push(async {
                let work = || async {
                    clock.sleep(takes).await;
                    Ok::<_, ()>(())
                };
                all.set(all.get() + 1);
                if pipeline.call(work).await.is_err() {
                    refused.set(refused.get() + 1);
                }
            });
            let mut next = pin!(clock.sleep(every));
            loop {
                let more = running.next();
                match futures::future::select(next.as_mut(), pin!(more)).await {
                    futures::future::Either::Right((Some(()), _)) => {}
                    futures::future::Either::Right((None, _)) => {
                        next.as_mut().await;
                        break;
                    }
                    futures::future::Either::Left(_) => break,
                }
            }
        }
    });
    f64::from(refused.get()) / f64::from(all.get())
}

/// A third of the limit is in use. The limiter rejects calls while it measures, for as long as some
/// calls take.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn an_adaptive_limit_that_measures_a_slow_service_rejects_few_calls() {
    for takes in [MS(50), MS(500), S(2), S(5), S(20)] {
        let every = takes / 8;
        let share = refused_share(AdaptiveLimitConfig::default(), takes, every);
        assert!(share < 0.03, "{takes:?}: {share}");
    }
}

#[test]
fn a_rejection_by_an_adaptive_limit_estimates_when_a_permit_is_free() {
    let (clock, time) = Clock::manual();
    let shares = PriorityShares::new(0.5, 1.0, 1.0);
    let config = AdaptiveLimitConfig::default().limits(2, 1, 4).queue(1).max_wait(S(9)).shares(shares);
    let limiter = AdaptiveLimiter::builder(config).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(limiter.clone());
    let work = || async {
        clock.sleep(S(2)).await;
        Ok::<_, ()>(())
    };
    time.block_on(async {
        pipeline.call(work).await.unwrap();
        let three = futures::future::join_all((0..3).map(|_| pipeline.call(work)));
        let refused = async {
            let full = pipeline.call(work).await.unwrap_err();
            // One call waits and two run at once, each of which takes two seconds.
            assert_eq!((full.is_rejected(), full.retry_after()), (true, Some(S(2))));
            let low = steadfast::call::with_priority(Priority::Low, work);
            let shed = pipeline.call(low).await.unwrap_err();
            assert_eq!((shed.is_rejected(), shed.retry_after()), (true, Some(S(2))));
        };
        futures::join!(three, refused);
    });
}

/// The limiter reads no clock while its permits are free, so it does not know how long a call
/// takes.
#[test]
fn a_rejection_by_a_concurrency_limit_has_no_time() {
    let limiter = ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(1).queue(0).max_wait(S(1))).unwrap();
    let _held = limiter.try_acquire().unwrap();
    assert_eq!(limiter.try_acquire().unwrap_err().retry_after(), None);
}

/// The target received none of these calls.
#[test]
fn rejections_by_an_open_breaker_earn_no_retries() {
    let (clock, time) = Clock::manual();
    let budget = RetryBudget::new(RetryBudgetConfig::default().ratio(0.2).min_per_second(1)).unwrap();
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
    let retry = Retry::builder(RetryConfig::default()).clock(&clock).budget(&budget).build().unwrap();
    let pipeline = Pipeline::new().then(retry).then(breaker.clone());
    let floor = budget.balance(clock.now());
    breaker.isolate();
    for _ in 0..1_000 {
        assert!(time.block_on(pipeline.call(|| async { Ok::<_, ()>(()) })).is_err());
        time.advance(MS(1));
    }
    assert_eq!(budget.balance(clock.now()), floor);
    breaker.close();
    for _ in 0..100 {
        time.block_on(pipeline.call(|| async { Ok::<_, ()>(()) })).unwrap();
    }
    assert_eq!(budget.balance(clock.now()), floor + 20);
}

/// An attacker invents hosts.
#[test]
fn breakers_by_key_remember_no_more_keys_than_configured_and_keep_what_is_open() {
    let (clock, time) = Clock::manual();
    let rules = CircuitBreakerConfig::default().trip(TripConfig::default().consecutive_failures(1));
    let breakers =
        KeyedBreakers::builder(KeyedBreakersConfig::from(rules).max_keys(1_000)).clock(&clock).build().unwrap();
    let fail = |key: u32| {
        if let Ok(permit) = breakers.get(&key).try_acquire() {
            permit.record(Verdict::failure(FailureKind::Connect));
        }
    };
    fail(0);
    let held = breakers.get(&1);
    for key in 2..20_000 {
        breakers.get(&key);
        assert!(breakers.len() <= 1_024, "{}", breakers.len());
    }
    assert!(breakers.len() > 700, "{}", breakers.len());
    assert_eq!(breakers.peek(&0).unwrap().state(), State::Open);
    assert!(breakers.peek(&1).is_some());
    drop(held);
    // All remembered breakers are open: a new one works, and is not remembered.
    for key in 20_000..40_000 {
        fail(key);
    }
    assert!(breakers.len() <= 1_024);
    assert!(breakers.get(&50_000).try_acquire().is_ok());
    time.advance(S(1));
    assert!(breakers.get(&50_001).try_acquire().is_ok());
    let none = KeyedBreakers::<u32>::new(KeyedBreakersConfig::from(rules).max_keys(0));
    assert!(none.is_err_and(|refused| refused.field() == "max_keys"));
}

// Guarantee: throttling 17, 18.
/// An unknown value has the same effect on both: nothing changes.
#[test]
fn a_gauge_that_is_not_a_number_changes_nothing_for_a_shedder_and_a_degradation() {
    let (clock, time) = Clock::manual();
    let gauge = Gauge::new();
    let config = ShedderConfig::default().limit("cpu", 0.5, 1.0);
    let shedder = Shedder::builder(config).clock(&clock).gauge("cpu", gauge.clone()).build().unwrap();
    let config = DegradationConfig::of(["a", "b"]).limit("cpu", 0.5, 1.0);
    let degradation = Degradation::builder(config).clock(&clock).gauge("cpu", gauge.clone()).build().unwrap();
    let (a, b) = (degradation.feature("a").unwrap(), degradation.feature("b").unwrap());
    let seen = |now| {
        gauge.set(now);
        time.advance(S(60));
        let _ = (shedder.try_acquire(Priority::Low), a.is_enabled());
        ((shedder.shed_share(Priority::Low) * 100.0).round(), a.is_enabled(), b.is_enabled())
    };
    assert_eq!(seen(f64::NAN), (0.0, true, true));
    assert_eq!(seen(0.6), (60.0, false, true));
    assert_eq!(seen(f64::NAN), (60.0, false, true));
    assert_eq!(seen(f64::NAN), (60.0, false, true));
    let refused = shedder.try_acquire(Priority::Low).err().or(shedder.try_acquire(Priority::Low).err());
    assert!(refused.is_none_or(|refused| matches!(refused.reason(), Reason::Shed { .. })));
    assert_eq!(seen(0.1).0, 0.0);
}
