//! Successful calls allocate nothing, nor do rejections by an open breaker or a limit.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]
use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use steadfast::{
    FailureKind, Pipeline, Verdict,
    cache_aside::{CacheAside, CacheAsideConfig},
    call::{AttemptInfo, with_state},
    chaos::{Chaos, ChaosConfig, ChaosRule},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, KeyedBreakers},
    coalesce::Coalesce,
    fallback::{Fallback, FallbackConfig},
    hedge::{Hedge, HedgeConfig},
    metrics::Metrics,
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    standard::{Standard, StandardConfig},
    throttling::{
        AdaptiveLimitConfig, AdaptiveLimiter, ClientThrottle, ClientThrottleConfig, ConcurrencyLimitConfig,
        ConcurrencyLimiter, Degradation, DegradationConfig, Gauge, KeyedRateLimitConfig, KeyedRateLimiter,
        PriorityShares, Quota, RateLimiter, Shedder, ShedderConfig,
    },
    time::Instant,
    timeout::Timeout,
    tower::PipelineLayer,
};
use tower_layer::Layer;
use tower_service::Service;

fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("nothing here waits"),
    }
}

fn allocations(work: impl FnMut()) -> u64 {
    let mut work = work;
    work(); // what is made once is made now
    allocation_counter::measure(|| (0..100).for_each(|_| work())).count_total
}

const PLENTY: Quota = Quota::per_second(1_000_000);

/// A service that answers at once.
#[derive(Clone)]
struct Seven;

impl Service<()> for Seven {
    type Response = u32;
    type Error = ();
    type Future = std::future::Ready<Result<u32, ()>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        std::future::ready(Ok(7))
    }
}

#[test]
fn a_call_of_a_service_without_boxes_allocates_nothing() {
    let limiter = ConcurrencyLimiter::new(ConcurrencyLimitConfig::default()).unwrap();
    let pipeline = Pipeline::new().then(limiter).then(Retry::new(RetryConfig::default()).unwrap());
    let layer = PipelineLayer::new(pipeline);
    let (mut unboxed, mut boxed) = (layer.unboxed(Seven), layer.layer(Seven));
    assert_eq!(allocations(|| assert!(now(unboxed.call(())).is_ok())), 0);
    assert_eq!(allocations(|| assert!(now(boxed.call(())).is_ok())), 100);
}

// Guarantee: call 4.
#[test]
fn a_call_that_succeeds_allocates_nothing() {
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).name("db").build().unwrap();
    let budget = RetryBudget::new(RetryBudgetConfig::default()).unwrap();
    let pipeline = Pipeline::new()
        .named("all of them")
        .then(Timeout::builder(Duration::from_secs(2)).name("total").build())
        .then(RateLimiter::new(PLENTY).unwrap())
        .then(ConcurrencyLimiter::new(ConcurrencyLimitConfig::default()).unwrap())
        .then(Retry::builder(RetryConfig::default()).budget(&budget).build().unwrap())
        .then(breaker)
        .then(Timeout::new(Duration::from_secs(1)));
    assert_eq!(allocations(|| assert!(now(pipeline.call(|| async { Ok::<_, ()>(1) })).is_ok())), 0);
}

// Guarantee: call 4.
#[test]
fn a_call_through_a_single_policy_allocates_nothing() {
    async fn works() -> Result<u8, ()> {
        Ok(1)
    }
    let timeout = Timeout::new(Duration::from_secs(2));
    let retry = Retry::new(RetryConfig::default()).unwrap();
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    let rate = RateLimiter::new(PLENTY).unwrap();
    let places = ConcurrencyLimiter::new(ConcurrencyLimitConfig::default()).unwrap();
    assert_eq!(allocations(|| assert!(now(timeout.call(works)).is_ok())), 0);
    assert_eq!(allocations(|| assert!(now(retry.call(works)).is_ok())), 0);
    assert_eq!(allocations(|| assert!(now(breaker.call(works)).is_ok())), 0);
    assert_eq!(allocations(|| assert!(now(rate.call(works)).is_ok())), 0);
    assert_eq!(allocations(|| assert!(now(places.call(works)).is_ok())), 0);
    assert_eq!(allocations(|| drop(places.try_acquire().unwrap())), 0);
    assert_eq!(allocations(|| drop(now(places.acquire()).unwrap())), 0);
    assert_eq!(allocations(|| breaker.try_acquire().unwrap().record(steadfast::Verdict::success())), 0);
}

// Guarantee: standard 5.
#[test]
fn a_call_through_the_standard_stack_allocates_nothing() {
    let calls = Standard::new(StandardConfig::default()).unwrap().into_pipeline();
    assert_eq!(allocations(|| assert!(now(calls.call_with(|_| async { Ok::<_, ()>(1) })).is_ok())), 0);
}

// Guarantee: standard 6.
#[test]
fn only_a_standard_stack_inside_another_allocates_once_a_call() {
    let stack = || Standard::new(StandardConfig::default()).unwrap();
    let work = || async { Ok::<_, ()>(1) };
    let timeout = Timeout::new(Duration::from_secs(2));
    let calls = Pipeline::new().then(timeout.clone()).then(stack()).then(timeout.clone()).then(Some(timeout.clone()));
    assert_eq!(allocations(|| assert!(now(calls.call(work)).is_ok())), 0);
    let nested = Pipeline::new().then(stack()).then(timeout.clone()).then(stack());
    assert_eq!(allocations(|| assert!(now(nested.call(work)).is_ok())), 100);
    // So does one that is entered from outside, and no other policy.
    let outside = AttemptInfo::with_deadline(Instant::FAR_FUTURE);
    let calls = stack().into_pipeline();
    assert_eq!(allocations(|| assert!(now(calls.call_within(outside, work)).is_ok())), 100);
    let calls = Pipeline::new().then(timeout);
    assert_eq!(allocations(|| assert!(now(calls.call_within(outside, work)).is_ok())), 0);
}

// Guarantee: call 4.
#[test]
fn a_boxed_pipeline_makes_two_allocations_a_call() {
    let calls = Pipeline::new().then(Timeout::new(Duration::from_secs(2))).boxed::<u8, ()>();
    assert_eq!(allocations(|| assert!(now(calls.call(|| async { Ok(1) })).is_ok())), 2 * 100);
}

// Guarantee: hedge 1.
/// The same holds for a first attempt that waits and ends in time, and for a rejected one.
#[test]
fn a_hedge_whose_first_attempt_ends_in_time_allocates_nothing() {
    let budget = RetryBudget::new(RetryBudgetConfig::default()).unwrap();
    let (clock, time) = steadfast::time::Clock::manual();
    for config in [HedgeConfig::default(), HedgeConfig::after(Duration::from_secs(1)).idempotent(true).max_attempts(5)]
    {
        let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
        let hedge = Hedge::builder(config).clock(&clock).budget(&budget).build().unwrap();
        let calls = Pipeline::new().then(hedge).then(breaker.clone());
        assert_eq!(allocations(|| assert!(now(calls.call(|| async { Ok::<_, ()>(1) })).is_ok())), 0);
        // The remaining allocations are the timers of the manual clock, and the waker of its
        // `block_on`.
        let bare =
            Pipeline::new().then(Timeout::builder(Duration::from_secs(1)).clock(&clock).build()).then(breaker.clone());
        let waits = || async {
            clock.sleep(Duration::from_millis(5)).await;
            Ok::<_, ()>(1)
        };
        let by_timeout = allocations(|| assert!(time.block_on(bare.call(waits)).is_ok()));
        assert_eq!(allocations(|| assert!(time.block_on(calls.call(waits)).is_ok())), by_timeout);
        breaker.force_open(Duration::from_secs(3600));
        assert_eq!(allocations(|| assert!(now(calls.call(|| async { Ok::<_, ()>(1) })).is_err())), 0);
    }
}

// Guarantee: fallback 2.
#[test]
fn a_success_with_an_unused_fallback_or_disabled_chaos_allocates_nothing() {
    let fallback = Fallback::builder(FallbackConfig::default().on_rejections(false)).name("f").build().unwrap();
    let chaos = Chaos::new(ChaosConfig::of([ChaosRule::hang(1.0)]).enabled(false)).unwrap();
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    let calls = Pipeline::new().then(fallback.clone()).then(breaker.clone()).then(chaos.clone());
    let works = || async { Ok::<_, ()>(1) };
    assert_eq!(allocations(|| assert!(now(calls.call(works)).is_ok())), 0);
    assert_eq!(allocations(|| assert!(now(calls.call_or(works, |_| std::future::ready(Ok(2)))).is_ok())), 0);
    assert_eq!(allocations(|| assert!(now(fallback.call(works, |_| std::future::ready(Ok(2)))).is_ok())), 0);
    assert_eq!(allocations(|| assert!(now(chaos.call(chaos.outcomes(works, || Ok(2)))).is_ok())), 0);
    // The same holds for a rejection that the fallback lets pass.
    breaker.force_open(Duration::from_secs(3600));
    assert_eq!(allocations(|| assert!(now(calls.call_or(works, |_| std::future::ready(Ok(2)))).is_err())), 0);
}

// Guarantee: call 4.
#[test]
fn predicates_errors_for_values_marks_and_lent_states_allocate_nothing_in_a_success() {
    let retry = Retry::new(RetryConfig::default()).unwrap();
    let calls = Pipeline::new()
        .then(retry)
        .retry_if(|error: &u32| *error == 503)
        .fail_when(|result: &Result<u32, u32>| result.is_err())
        .error_for_value(Err::<u32, u32>);
    let works = || async { Ok::<u32, u32>(1) };
    let instead = |_: steadfast::call::Failed<'_, u32, u32>| std::future::ready(Ok(2));
    assert_eq!(allocations(|| assert!(now(calls.call(works)).is_ok())), 0);
    assert_eq!(allocations(|| assert!(now(calls.call_or(works, instead)).is_ok())), 0);
    assert_eq!(allocations(|| assert!(now(calls.call_or_marked(works, instead)).is_ok())), 0);
    let mut state = 0;
    let lent = || {
        let add = with_state(&mut state, async |state| {
            *state += 1;
            Ok::<u32, u32>(*state)
        });
        assert!(now(calls.call(add)).is_ok());
    };
    assert_eq!(allocations(lent), 0);
}

// Guarantee: circuit_breaker 4.
#[test]
fn a_rejection_by_an_open_breaker_allocates_nothing() {
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).name("db").build().unwrap();
    breaker.force_open(Duration::from_secs(3600));
    assert_eq!(allocations(|| assert!(now(breaker.call(|| async { Ok::<_, ()>(1) })).is_err())), 0);
    assert_eq!(allocations(|| assert!(breaker.try_acquire().is_err())), 0);
}

// Guarantee: throttling 20.
#[test]
fn a_rejection_by_a_rate_limit_allocates_nothing() {
    let limiter = RateLimiter::builder(Quota::per_minute(1)).name("api").build().unwrap();
    assert_eq!(allocations(|| drop(limiter.try_acquire())), 0);
    assert!(limiter.try_acquire().is_err());
}

// Guarantee: throttling 20.
/// An adaptive limit, a throttle, a shedder and a feature.
#[test]
fn other_limiters_allocate_nothing_when_they_admit_or_reject() {
    let load = Gauge::new();
    let shares = AdaptiveLimitConfig::default().shares(PriorityShares::default());
    let limiter = AdaptiveLimiter::builder(shares).name("places").build().unwrap();
    let throttle = ClientThrottle::builder(ClientThrottleConfig::sre()).name("client").build().unwrap();
    let config = ShedderConfig::default().limit("load", 0.0, 1.0).sample_every(Duration::from_nanos(1));
    let shedder = Shedder::builder(config).name("front").gauge("load", load.clone()).build().unwrap();
    let config = DegradationConfig::of(["a"]).limit("load", 0.0, 1.0).sample_every(Duration::from_nanos(1));
    let degradation = Degradation::builder(config).gauge("load", load.clone()).build().unwrap();
    let pipeline = Pipeline::new()
        .then(shedder.clone())
        .then(degradation.feature("a").unwrap())
        .then(limiter)
        .then(throttle.clone());
    assert_eq!(allocations(|| assert!(now(pipeline.call(|| async { Ok::<_, ()>(1) })).is_ok())), 0);
    load.set(1.0);
    assert_eq!(allocations(|| assert!(now(pipeline.call(|| async { Ok::<_, ()>(1) })).is_err())), 0);
    assert_eq!(allocations(|| assert!(degradation.feature("a").unwrap().ensure_enabled().is_err())), 0);
    let refused = || throttle.try_acquire().map(|permit| permit.record(Verdict::failure(FailureKind::Overloaded)));
    while refused().is_ok() {}
    assert_eq!(allocations(|| drop(refused())), 0);
}

// Guarantee: throttling 8.
#[test]
fn a_keyed_limiter_of_a_million_keys_fits_into_two_hundred_bytes_a_key() {
    let limiter = KeyedRateLimiter::new(Quota::per_minute(1)).unwrap();
    let used = allocation_counter::measure(|| {
        for key in 0..1_000_000u64 {
            limiter.try_acquire(&key).unwrap();
        }
    });
    let per_key = used.bytes_current as f64 / 1e6;
    println!("{per_key:.1} bytes a key");
    assert!((16.0..=200.0).contains(&per_key), "{per_key}");
}

#[test]
fn a_cache_hit_allocates_nothing_beyond_the_clone_of_the_value() {
    let cache: CacheAside<u32, u64> = CacheAside::new(CacheAsideConfig::default()).unwrap();
    let get = || assert_eq!(now(cache.get_or_load(&1, || async { Ok::<u64, ()>(7) })).unwrap(), 7);
    assert_eq!(allocations(get), 0);
    // The same holds with tags, which each hit checks.
    let tagged = || async { Ok::<_, ()>(steadfast::cache_aside::Loaded::new(7).tag("t")) };
    now(cache.get_or_load(&2, tagged)).unwrap();
    assert_eq!(allocations(|| assert_eq!(now(cache.get(&2)), Some(7))), 0);
}

/// A flight, and the work in a box. (The eviction library's queues grow now and then.)
#[test]
fn a_cache_miss_whose_loader_is_ready_makes_two_allocations_as_does_a_coalesced_call() {
    let cache: CacheAside<u32, u64> = CacheAside::new(CacheAsideConfig::default().capacity(1000)).unwrap();
    let mut key = 0;
    let mut miss = || {
        key += 1;
        assert_eq!(now(cache.get_or_load(&key, || async { Ok::<u64, ()>(7) })).unwrap(), 7);
    };
    (0..5000).for_each(|_| miss());
    let made = allocations(miss);
    assert!((200..=210).contains(&made), "{made} for 100 misses");
    let coalesce = Coalesce::<u32, u64>::new();
    assert_eq!(allocations(|| assert_eq!(now(coalesce.run(&1, || async { 7 })), Ok(7))), 200);
}

#[test]
fn metrics_allocate_nothing_during_calls() {
    let metrics = Metrics::on(metrics::NoopRecorder);
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    metrics.watch("db", &breaker).unwrap();
    let pipeline = Pipeline::new().then(metrics.calls("db")).then(breaker.clone());
    assert_eq!(allocations(|| now(pipeline.call(|| async { Ok::<_, ()>(7) })).map_or((), drop)), 0);
    // The same holds for a rejection, which the breaker counts.
    breaker.isolate();
    let refused = Pipeline::new().then(breaker);
    assert_eq!(allocations(|| now(refused.call(|| async { Ok::<_, ()>(7) })).map_or_else(drop, drop)), 0);
}

/// Returns the number of allocations of a single run.
fn allocated(work: impl FnOnce()) -> u64 {
    allocation_counter::measure(work).count_total
}

// Guarantee: throttling 20.
#[test]
fn a_borrowed_key_makes_an_owned_one_only_for_a_new_entry() {
    let limiter = KeyedRateLimiter::<String>::new(Quota::new(100, Duration::from_secs(3600))).unwrap();
    assert!(allocated(|| limiter.try_acquire("tenant-7").unwrap()) > 0);
    assert_eq!(allocated(|| limiter.try_acquire("tenant-7").unwrap()), 0);
    assert_eq!(allocated(|| limiter.try_acquire_n(&*"tenant-7".to_owned(), 3).unwrap()), 1); // the caller's own
    assert_eq!(allocated(|| assert_eq!(limiter.usage("tenant-7").used, 5)), 0);
    assert_eq!(allocated(|| assert_eq!(limiter.usage("nobody").used, 0)), 0);
    assert_eq!(limiter.keys(), ["tenant-7"]);

    let breakers = KeyedBreakers::<String>::new(CircuitBreakerConfig::default()).unwrap();
    assert_eq!(allocated(|| assert!(breakers.peek("one").is_none() && !breakers.forget("one"))), 0);
    assert!(allocated(|| drop(breakers.get("one"))) > 0);
    assert_eq!(allocated(|| drop(breakers.get("one"))), 0);
    assert_eq!(breakers.len(), 1);
    assert!(breakers.forget("one"));
}

#[test]
fn an_owned_key_makes_no_copy_for_a_tier() {
    let config = KeyedRateLimitConfig::from(Quota::per_second(10)).tiers([Quota::per_second(100)]);
    let limiter = KeyedRateLimiter::builder(config).tier_of(|key: &String| key.starts_with("gold").then_some(0));
    let limiter = limiter.build().unwrap();
    let gold = "gold-7".to_owned();
    limiter.try_acquire(&gold).unwrap();
    assert_eq!(allocated(|| limiter.try_acquire(&gold).unwrap()), 0);
    assert_eq!(limiter.usage("gold-7").quota, Quota::per_second(100));
}

// Guarantee: call 10.
#[test]
fn a_call_that_blocks_and_succeeds_allocates_nothing() {
    let pipeline = Pipeline::new()
        .then(Timeout::new(Duration::from_secs(2)))
        .then(Retry::new(RetryConfig::interactive()).unwrap())
        .then(CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap());
    assert_eq!(allocations(|| assert!(pipeline.call_blocking(|| Ok::<_, ()>(1)).is_ok())), 0);
    assert_eq!(allocations(|| steadfast::time::block_on(async {})), 0);
}
