//! A keyed rate limiter: metering, waiting, strict mode, policies by key, several limits, and the
//! maximum number of keys.
use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;
use steadfast::{
    Builder, FailureKind, Hint, Pipeline, Reason, Verdict,
    call::AttemptInfo,
    testing::drop_at_every_await,
    throttling::{
        KeyedRateLimitConfig, KeyedRateLimiter, Limit, Quota, RateLimitConfig, RateLimiter, ThrottlingEvent as Event,
        try_acquire_all,
    },
    time::{Clock, ManualClock},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;

fn limiter(config: impl Into<KeyedRateLimitConfig>) -> (KeyedRateLimiter<u32>, ManualClock) {
    let (builder, time) = builder(config);
    (builder.build().unwrap(), time)
}

fn builder(config: impl Into<KeyedRateLimitConfig>) -> (Builder<KeyedRateLimiter<u32>>, ManualClock) {
    let (clock, time) = Clock::manual();
    (KeyedRateLimiter::builder(config).clock(&clock), time)
}

fn strict(quota: Quota) -> RateLimitConfig {
    RateLimitConfig::from(quota).strict()
}

#[test]
fn the_use_of_a_key_s_quota_can_be_read() {
    for config in [Quota::per_second(10).into(), strict(Quota::per_second(10))] {
        let (limiter, time) = limiter(config);
        limiter.try_acquire_n(&1, 4).unwrap();
        let usage = limiter.usage(&1);
        assert_eq!((usage.used, usage.available, usage.quota), (4, 6, Quota::per_second(10)));
        assert_eq!((limiter.usage(&2).used, limiter.usage(&2).available), (0, 10));
        assert_eq!(limiter.keys(), [1]);
        time.advance(S(1));
        assert_eq!(limiter.usage(&1).used, 0);
    }
}

proptest! {
    /// A bill may be based on the meter: all permits that a key took or was refused, by any method,
    /// are read exactly once.
    #[test]
    fn a_meter_by_tenant_counts_every_permit_once(
        steps in prop::collection::vec((0u32..5, 1u32..4, 0u8..5, 0u64..700), 1..200), is_strict: bool,
    ) {
        let quota = Quota::per_second(3);
        let (limiter, time) = builder(if is_strict { strict(quota) } else { quota.into() });
        let limiter = limiter.metered().build().unwrap();
        let mut model = BTreeMap::<u32, (u64, u64)>::new();
        let mut read = BTreeMap::<u32, (u64, u64)>::new();
        for (key, n, method, ms) in steps {
            time.advance(MS(ms));
            let ok = match method {
                0 => time.block_on(limiter.acquire_n(&key, n, MS(300))).is_ok(),
                1 => {
                    for (key, metered) in limiter.readings() {
                        let sum = read.entry(key).or_default();
                        *sum = (sum.0 + metered.admitted, sum.1 + metered.refused);
                    }
                    continue;
                }
                _ => limiter.try_acquire_n(&key, n).is_ok(),
            };
            let sum = model.entry(key).or_default();
            if ok { sum.0 += u64::from(n) } else { sum.1 += u64::from(n) }
        }
        for (key, metered) in limiter.readings() {
            let sum = read.entry(key).or_default();
            *sum = (sum.0 + metered.admitted, sum.1 + metered.refused);
        }
        prop_assert_eq!(read, model);
        prop_assert!(limiter.readings().is_empty());
    }

    // Guarantee: throttling 7.
    /// In either mode, and by every method, a key equals an unkeyed limiter with the same settings.
    #[test]
    fn each_key_equals_a_limiter_of_its_own(
        steps in prop::collection::vec((0u32..3, 0u32..6, 0u8..4, 0u64..900), 1..120), is_strict: bool,
    ) {
        let quota = Quota::new(3, S(1));
        let config = if is_strict { strict(quota) } else { quota.into() };
        let (limiter, time) = limiter(config);
        let own: Vec<_> = (0..3).map(|_| RateLimiter::builder(config).clock(&time.clock()).build().unwrap()).collect();
        for (key, n, method, ms) in steps {
            time.advance(MS(ms));
            let one = &own[key as usize];
            match method {
                0 => {
                    // Concurrently, so that both are asked at the same time.
                    let both = time.block_on(async {
                        futures::join!(limiter.acquire_n(&key, n, MS(700)), one.acquire_n(n, MS(700)))
                    });
                    prop_assert_eq!(both.0, both.1);
                }
                1 => {
                    limiter.pause(&key, MS(50));
                    one.pause(MS(50));
                }
                2 => limiter.forget_idle(),
                _ => prop_assert_eq!(limiter.try_acquire_n(&key, n), one.try_acquire_n(n)),
            }
        }
    }
}

// Guarantee: throttling 4, 7.
#[test]
fn callers_wait_for_a_key_in_order_and_not_for_another() {
    for config in [Quota::new(1, S(1)).into(), strict(Quota::new(1, S(1)))] {
        let (limiter, time) = limiter(config);
        limiter.try_acquire(&1).unwrap();
        let start = time.now();
        let took = time.block_on(async {
            let wait = async |key| {
                limiter.acquire(&key).await.unwrap();
                (time.now() - start).as_secs()
            };
            futures::join!(wait(1), wait(1), wait(2), wait(1))
        });
        assert_eq!(took, (1, 2, 0, 3));
        let refused = time.block_on(limiter.acquire_n(&1, 1, MS(999))).unwrap_err();
        assert_eq!((refused.reason(), refused.retry_after()), (Reason::RateLimited, Some(S(1))));
        assert_eq!(time.block_on(limiter.acquire_n(&1, 2, S(60))).unwrap_err().reason(), Reason::TooLarge);
        assert_eq!(time.now() - start, S(3), "no call waited in vain");
        // A waiting call keeps its key.
        time.advance(S(60));
        limiter.forget_idle();
        assert!(limiter.is_empty());
    }
}

// Guarantee: throttling 4.
#[test]
fn a_caller_dropped_while_it_waits_for_a_key_takes_nothing() {
    for config in [Quota::new(2, S(1)).into(), strict(Quota::new(2, S(1)))] {
        let (limiter, time) = limiter(config);
        drop_at_every_await(
            &time,
            || async {
                let _ = futures::join!(
                    limiter.acquire_n(&1, 2, S(9)),
                    limiter.acquire_n(&1, 2, S(9)),
                    limiter.acquire_n(&1, 1, S(9))
                );
            },
            |_| {
                time.advance(S(60));
                assert_eq!((0..5).filter(|_| limiter.try_acquire(&1).is_ok()).count(), 2);
                time.advance(S(60));
            },
        );
    }
}

// Guarantee: throttling 2, 5.
#[test]
fn a_strict_limit_of_a_key_holds_in_every_window_and_after_a_change() {
    let (limiter, time) = limiter(strict(Quota::per_second(10)));
    let passed = |n| (0..n).filter(|_| limiter.try_acquire(&7).is_ok()).count();
    time.advance(MS(900));
    assert_eq!(passed(5), 5);
    time.advance(MS(600));
    assert_eq!(passed(20), 5);
    time.advance(MS(399));
    assert_eq!(passed(20), 0);
    time.advance(MS(1));
    assert_eq!(passed(20), 5);
    limiter.reconfigure(strict(Quota::per_second(12))).unwrap();
    assert_eq!((passed(20), limiter.config().limit.mode), (2, strict(Quota::per_second(1)).mode));
    let burst = limiter.reconfigure(strict(Quota::per_second(5).burst(2))).unwrap_err();
    assert_eq!(burst.field(), "limit.burst");
    assert_eq!(limiter.reconfigure(Quota::per_second(5)).unwrap_err().field(), "limit.mode");
}

// Guarantee: throttling 4, 6.
#[test]
fn the_limit_of_a_key_is_a_policy_that_waits_and_obeys_hints() {
    let (limiter, time) = limiter(RateLimitConfig::from(Quota::new(1, S(1))).max_wait(S(2)));
    let tenant = Pipeline::new().then(limiter.for_key(1));
    assert!(tenant.explain().to_string().contains("for each key"), "{}", tenant.explain());
    let start = time.now();
    let call = || time.block_on(tenant.call(|| async { Ok::<_, ()>(()) }));
    assert_eq!([call(), call(), call()].map(|answer| answer.is_ok()), [true; 3]);
    assert_eq!(time.now() - start, S(2));
    // Before the deadline, or not at all.
    let soon = AttemptInfo::with_deadline(time.now() + MS(500));
    let late = time.block_on(tenant.call_within(soon, || async { Ok::<_, ()>(()) })).unwrap_err();
    assert!(late.is_rejected());
    assert!(time.block_on(limiter.for_key(2).call(|| async { Ok::<_, ()>(()) })).is_ok(), "another key");
    let away = |_: &Result<(), ()>| Verdict::failure(FailureKind::Throttled).with_hint(Hint::RetryAfter(S(60)));
    let other = Pipeline::new().then(limiter.for_key(3)).classify(away);
    assert!(!time.block_on(other.call(|| async { Err::<(), _>(()) })).unwrap_err().is_rejected());
    let refused = time.block_on(other.call(|| async { Err::<(), _>(()) })).unwrap_err();
    assert_eq!((refused.is_rejected(), refused.retry_after()), (true, Some(S(60))));
    assert!(limiter.try_acquire(&4).is_ok());
}

// Guarantee: throttling 3.
#[test]
fn limits_of_keys_and_of_all_calls_are_acquired_as_one() {
    let (limiter, time) = builder(Quota::new(2, S(10)));
    let for_all = RateLimiter::builder(Quota::new(3, S(60))).clock(&time.clock()).build().unwrap();
    let metered = limiter.metered().build().unwrap();
    let both = |key| try_acquire_all::<dyn Limit>(&[&metered.for_key(key), &for_all]);
    assert!(both(1).is_ok() && both(1).is_ok());
    assert_eq!(both(1).unwrap_err().retry_after(), Some(S(5)), "the tenant's own");
    assert_eq!(for_all.config().permits, 3);
    assert!(both(2).is_ok());
    assert_eq!(both(3).unwrap_err().retry_after(), Some(S(20)), "that of all calls");
    assert_eq!(metered.usage(&3).used, 0, "given back");
    let mut read: Vec<_> = metered.readings().into_iter().map(|(key, metered)| (key, metered.admitted)).collect();
    read.sort_unstable();
    assert_eq!(read.into_iter().filter(|(_, admitted)| *admitted > 0).collect::<Vec<_>>(), [(1, 2), (2, 1)]);
}

#[test]
fn events_carry_the_name_of_the_key() {
    let (clock, time) = Clock::manual();
    let limiter = KeyedRateLimiter::builder(Quota::new(1, S(1))).clock(&clock).name("tenants");
    let limiter = limiter.name_by(|key| format!("tenant-{key}").into()).build().unwrap();
    let mut events = limiter.events();
    limiter.try_acquire(&1).unwrap();
    let refused = limiter.try_acquire(&1).unwrap_err();
    assert_eq!(refused.name(), Some("tenant-1"));
    time.block_on(limiter.acquire(&1)).unwrap();
    limiter.pause(&2, S(9));
    limiter.reconfigure(Quota::new(1, S(2))).unwrap();
    let sent: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap())
        .map(|event| (event.source.map(|name| name.to_string()), event.what))
        .collect();
    let name = |name: &str| Some(name.to_owned());
    assert_eq!(
        sent,
        [
            (name("tenant-1"), Event::Rejected { reason: Reason::RateLimited, retry_after: Some(S(1)) }),
            (name("tenant-1"), Event::Queued { wait: Some(S(1)) }),
            (name("tenant-2"), Event::Paused { time: S(9) }),
            (name("tenants"), Event::LimitChanged),
        ]
    );
}

// Guarantee: throttling 8.
/// An attacker invents keys.
#[test]
fn a_full_limiter_keeps_the_keys_that_used_most() {
    for config in [Quota::new(100, S(3_600)).into(), strict(Quota::new(100, S(3_600)))] {
        let (limiter, _hand) = limiter(KeyedRateLimitConfig::from(config).max_keys(1_000));
        limiter.try_acquire_n(&0, 100).unwrap();
        for key in 1..20_000 {
            limiter.try_acquire(&key).unwrap();
            assert!(limiter.len() <= 1_024, "{}", limiter.len());
        }
        assert!(limiter.len() > 700, "{}", limiter.len());
        assert!(limiter.try_acquire(&0).is_err(), "the busiest key is not forgotten");
    }
    assert_eq!(
        KeyedRateLimiter::<u32>::new(KeyedRateLimitConfig::default().max_keys(0)).unwrap_err().field(),
        "max_keys"
    );
}
