//! Rate limits.
use std::{collections::VecDeque, future::Future, pin::pin, task::Context, time::Duration};

use futures::{future::join_all, task::noop_waker_ref};
use proptest::prelude::*;
use steadfast::{
    Pipeline, Reason,
    throttling::{KeyedRateLimitConfig, KeyedRateLimiter, Quota, RateLimitConfig, RateLimiter, try_acquire_all},
    time::{Clock, Instant},
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn limiter(config: impl Into<RateLimitConfig>) -> (RateLimiter, Clock, steadfast::testing::ManualClock) {
    let (clock, time) = Clock::manual();
    (RateLimiter::builder(config).clock(&clock).build().unwrap(), clock, time)
}

/// Takes all available permits and returns their number.
fn drain(limiter: &RateLimiter) -> u32 {
    (0..).take_while(|_| limiter.try_acquire().is_ok()).count() as u32
}

// Guarantee: throttling 1.
#[test]
fn a_burst_is_followed_by_the_even_flow() {
    let (limiter, _, time) = limiter(Quota::per_second(10).burst(3));
    assert_eq!(drain(&limiter), 3);
    time.advance(MS(100));
    assert_eq!(drain(&limiter), 1);
    time.advance(MS(250));
    assert_eq!(drain(&limiter), 2);
    time.advance(Duration::from_secs(3600));
    assert_eq!(drain(&limiter), 3);
}

// Guarantee: throttling 1.
/// Elsewhere a caller was seen to sleep for the whole wait in vain.
#[test]
fn retry_after_is_exact() {
    for config in [Quota::per_second(3).burst(2).into(), RateLimitConfig::from(Quota::per_second(3)).strict()] {
        let (limiter, _, time) = limiter(config);
        for step in [MS(0), MS(7), MS(501), MS(13)] {
            time.advance(step);
            drain(&limiter);
            let wait = limiter.try_acquire().unwrap_err().retry_after().unwrap();
            time.advance(wait - Duration::from_nanos(1));
            assert_eq!(limiter.try_acquire().unwrap_err().retry_after(), Some(Duration::from_nanos(1)));
            time.advance(Duration::from_nanos(1));
            limiter.try_acquire().unwrap();
        }
    }
}

// Guarantee: throttling 3.
#[test]
fn a_call_gets_all_its_permits_or_none() {
    let (limiter, _, time) = limiter(Quota::per_second(10));
    limiter.try_acquire_n(7).unwrap();
    let error = limiter.try_acquire_n(4).unwrap_err();
    assert_eq!((error.reason(), error.retry_after()), (Reason::RateLimited, Some(MS(100))));
    limiter.try_acquire_n(3).unwrap();
    time.advance(Duration::from_secs(9));
    let never = limiter.try_acquire_n(11).unwrap_err();
    assert_eq!((never.reason(), never.retry_after()), (Reason::TooLarge, None));
    assert_eq!(drain(&limiter), 10);
}

// Guarantee: throttling 4.
#[test]
fn acquire_serves_in_order_of_arrival() {
    let (limiter, clock, time) = limiter(Quota::per_second(10).burst(1));
    let start = time.now();
    let order = std::sync::Mutex::new(Vec::new());
    time.block_on(join_all((0..5).map(|i| {
        let (limiter, clock, order) = (&limiter, &clock, &order);
        async move {
            limiter.acquire().await;
            order.lock().unwrap().push((i, clock.now() - start));
        }
    })));
    let expected: Vec<_> = (0..5).map(|i| (i, MS(100 * i))).collect();
    assert_eq!(order.into_inner().unwrap(), expected);
}

// Guarantee: throttling 4.
#[test]
fn a_dropped_call_gives_its_turn_back_and_later_calls_move_up() {
    for config in [Quota::per_second(10).burst(1).into(), RateLimitConfig::from(Quota::new(1, MS(100))).strict()] {
        let (limiter, clock, time) = limiter(config);
        let start = time.now();
        limiter.try_acquire().unwrap();
        time.block_on(async {
            let mut cx = Context::from_waker(noop_waker_ref());
            let mut gives_up = Box::pin(limiter.acquire());
            assert!(gives_up.as_mut().poll(&mut cx).is_pending());
            let mut stays = pin!(limiter.acquire());
            assert!(stays.as_mut().poll(&mut cx).is_pending());
            clock.sleep(MS(50)).await;
            drop(gives_up);
            stays.await;
        });
        assert_eq!(time.now() - start, MS(100), "{config:?}");
        assert_eq!(limiter.try_acquire().unwrap_err().retry_after(), Some(MS(100)));
    }
}

// Guarantee: throttling 4.
#[test]
fn a_call_that_cannot_pass_in_time_is_rejected_at_once() {
    let (limiter, clock, time) = limiter(RateLimitConfig::from(Quota::per_second(1)).max_wait(MS(1500)));
    limiter.try_acquire().unwrap();
    let start = time.now();
    let error = time.block_on(limiter.acquire_n(1, MS(999))).unwrap_err();
    assert_eq!((time.now(), error.retry_after()), (start, Some(MS(1000))));
    // As a policy: by `max_wait`, and by the call's deadline.
    let pipeline = Pipeline::new().then(Timeout::builder(MS(800)).clock(&clock).build()).then(limiter.clone());
    let error = time.block_on(pipeline.call(|| async { Ok::<_, ()>(()) })).unwrap_err();
    assert!(error.is_rejected());
    assert_eq!(time.now(), start);
    time.block_on(Pipeline::new().then(limiter.clone()).call(|| async { Ok::<_, ()>(()) })).unwrap();
    assert_eq!(time.now() - start, MS(1000));
    // A rejected call reserves nothing.
    assert_eq!(limiter.try_acquire().unwrap_err().retry_after(), Some(MS(1000)));
}

// Guarantee: throttling 5.
#[test]
fn the_limit_changes_while_in_use() {
    let (limiter, clock, time) = limiter(Quota::per_second(1).burst(1));
    limiter.try_acquire().unwrap();
    let start = time.now();
    time.block_on(async {
        let waits = async {
            limiter.acquire().await;
            clock.now() - start
        };
        let change = async {
            clock.sleep(MS(100)).await;
            limiter.reconfigure(limiter.config().with_quota(Quota::per_second(10).burst(1))).unwrap();
        };
        // 900 ms of one permit's wait were left; at ten times the pace, 90.
        assert_eq!(futures::join!(waits, change).0, MS(190));
    });
    assert_eq!(limiter.reconfigure(limiter.config().with_quota(Quota::per_second(0))).unwrap_err().field(), "permits");
    assert_eq!(limiter.config().permits, 10);
}

// Guarantee: throttling 5.
#[test]
fn repeated_changes_neither_create_nor_lose_permits() {
    for strict in [false, true] {
        let mut config = RateLimitConfig::from(Quota::per_second(10));
        if strict {
            config = config.strict();
        }
        let (limiter, _, time) = limiter(config);
        drain(&limiter);
        for _ in 0..1000 {
            limiter.reconfigure(limiter.config().with_quota(Quota::per_second(1000))).unwrap();
            limiter.reconfigure(limiter.config().with_quota(Quota::per_second(10))).unwrap();
        }
        assert_eq!(drain(&limiter), 0);
        time.advance(Duration::from_secs(2));
        assert_eq!(drain(&limiter), 10);
    }
}

// Guarantee: throttling 3.
#[test]
fn several_limits_are_all_or_nothing() {
    let (per_second, clock, _hand) = limiter(Quota::per_second(5));
    let per_minute = RateLimiter::builder(Quota::per_minute(3)).clock(&clock).build().unwrap();
    for _ in 0..3 {
        try_acquire_all(&[&per_second, &per_minute]).unwrap();
    }
    for _ in 0..50 {
        assert_eq!(
            try_acquire_all(&[&per_second, &per_minute]).unwrap_err().retry_after(),
            Some(Duration::from_secs(20))
        );
    }
    assert_eq!(drain(&per_second), 2);
}

// Guarantee: throttling 7.
#[test]
fn each_tenant_has_the_quota_of_its_tier() {
    let (clock, time) = Clock::manual();
    let limiter =
        KeyedRateLimiter::builder(KeyedRateLimitConfig::from(Quota::per_second(2)).tiers([Quota::per_second(5)]))
            .tier_of(|tenant: &&str| tenant.starts_with("gold").then_some(0))
            .clock(&clock)
            .build()
            .unwrap();
    let drain = |tenant| (0..).take_while(|_| limiter.try_acquire(&tenant).is_ok()).count();
    assert_eq!((drain("gold-1"), drain("tin-1"), drain("tin-2"), drain("tin-1")), (5, 2, 2, 0));
    assert_eq!(limiter.try_acquire(&"tin-1").unwrap_err().retry_after(), Some(MS(500)));
    assert_eq!(limiter.try_acquire_n(&"tin-1", 3).unwrap_err().reason(), Reason::TooLarge);
    time.advance(MS(500));
    assert_eq!((drain("gold-1"), drain("tin-1")), (2, 1));
    let refused = KeyedRateLimiter::<u8>::new(KeyedRateLimitConfig::default().tiers([Quota::per_second(0)]));
    assert_eq!(refused.unwrap_err().field(), "tiers[0].permits");
}

// Guarantee: throttling 8.
#[test]
fn idle_keys_make_room() {
    let (clock, time) = Clock::manual();
    let limiter = KeyedRateLimiter::builder(Quota::per_second(1)).clock(&clock).build().unwrap();
    for generation in 0..20u64 {
        for key in 0..10_000 {
            limiter.try_acquire(&(generation * 10_000 + key)).unwrap();
        }
        time.advance(Duration::from_secs(2));
    }
    assert!(limiter.len() < 40_000, "{}", limiter.len());
    limiter.forget_idle();
    assert!(limiter.is_empty());
}

#[derive(Debug, Clone)]
enum Step {
    Advance(u64),
    Check(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0u64..400_000_000).prop_map(Step::Advance),
        Just(Step::Advance(1)),
        (1u32..6).prop_map(Step::Check)
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    // Guarantee: throttling 1.
    /// Compared with a bucket that holds fractions of a permit, in whole numbers.
    #[test]
    fn a_smooth_limit_equals_a_token_bucket(permits in 1u32..20, burst in 1u32..20, steps in steps()) {
        let (limiter, _, time) = limiter(Quota::per_second(permits).burst(burst));
        let interval = 1_000_000_000u64.div_ceil(permits.into());
        let full = u64::from(burst) * interval;
        let mut level = full; // in nanoseconds of refilling
        for step in steps {
            match step {
                Step::Advance(by) => {
                    time.advance(Duration::from_nanos(by));
                    level = full.min(level + by);
                }
                Step::Check(n) => {
                    let cost = u64::from(n) * interval;
                    match limiter.try_acquire_n(n) {
                        Ok(()) => {
                            prop_assert!(cost <= level);
                            level -= cost;
                        }
                        Err(e) if n > burst => prop_assert_eq!(e.reason(), Reason::TooLarge),
                        Err(e) => prop_assert_eq!(e.retry_after(), Some(Duration::from_nanos(cost - level))),
                    }
                }
            }
        }
    }

    // Guarantee: throttling 2.
    /// Compared with a list of all admitted permits, over every window.
    #[test]
    fn a_strict_limit_never_admits_more_than_n_in_any_window(permits in 1u32..8, steps in steps()) {
        let (limiter, _, time) = limiter(RateLimitConfig::from(Quota::per_second(permits)).strict());
        let mut admitted: VecDeque<Instant> = VecDeque::new();
        for step in steps {
            match step {
                Step::Advance(by) => time.advance(Duration::from_nanos(by)),
                Step::Check(n) => {
                    let now = time.now();
                    let recent = admitted.iter().filter(|at| now - **at < Duration::from_secs(1)).count() as u32;
                    let answer = limiter.try_acquire_n(n);
                    prop_assert_eq!(answer.is_ok(), recent + n <= permits);
                    if answer.is_ok() {
                        admitted.extend((0..n).map(|_| now));
                    }
                }
            }
        }
    }

    // Guarantee: throttling 4.
    /// Waiting calls give up at random: each other call gets exactly one turn, in order, and the
    /// flow is never exceeded.
    #[test]
    fn turns_are_conserved(gives_up in proptest::collection::vec(proptest::option::of(1u64..900), 1..25), strict: bool) {
        let mut config = RateLimitConfig::from(Quota::new(2, MS(200)).burst(2));
        if strict {
            config = RateLimitConfig::from(Quota::new(2, MS(200))).strict();
        }
        let (limiter, clock, time) = limiter(config);
        let start = time.now();
        let turns = time.block_on(join_all(gives_up.iter().map(|patience| {
            let (limiter, clock) = (&limiter, &clock);
            async move {
                let turn = pin!(async { limiter.acquire().await; clock.now() - start });
                match patience {
                    None => Some(turn.await),
                    Some(ms) => match futures::future::select(turn, pin!(clock.sleep(MS(*ms)))).await {
                        futures::future::Either::Left((at, _)) => Some(at),
                        futures::future::Either::Right(_) => None,
                    },
                }
            }
        })));
        let turns: Vec<Duration> = turns.into_iter().flatten().collect();
        prop_assert!(turns.is_sorted());
        for (i, at) in turns.iter().enumerate().skip(2) {
            let apart = *at - turns[i - 2];
            prop_assert!(apart >= if strict { MS(200) } else { MS(100) }, "{:?}", turns);
        }
        time.advance(Duration::from_secs(10));
        prop_assert_eq!(drain(&limiter), 2);
    }
}
