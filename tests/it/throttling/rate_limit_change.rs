//! Waiting calls of a rate limit when the limit changes or other calls leave.
use std::{
    future::Future,
    pin::{Pin, pin},
    task::Context,
    time::Duration,
};

use futures::{
    future::select,
    stream::{FuturesOrdered, StreamExt},
    task::noop_waker_ref,
};
use steadfast::{
    Pipeline, Reason, Rejected,
    testing::ManualClock,
    throttling::{Quota, RateLimitConfig, RateLimiter, ThrottlingEvent, try_acquire_all},
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn limiter(config: impl Into<RateLimitConfig>) -> (RateLimiter, Clock, ManualClock) {
    let (clock, time) = Clock::manual();
    (RateLimiter::builder(config).clock(&clock).build().unwrap(), clock, time)
}

fn drain(limiter: &RateLimiter) -> u32 {
    (0..).take_while(|_| limiter.try_acquire().is_ok()).count() as u32
}

type Turn<'a> = Pin<Box<dyn Future<Output = Result<(), Rejected>> + 'a>>;

/// Begins a call that waits.
fn waits(limiter: &RateLimiter, n: u32, max_wait: Duration) -> Turn<'_> {
    let mut turn: Turn<'_> = Box::pin(limiter.acquire_n(n, max_wait));
    assert!(poll(&mut turn).is_none());
    turn
}

fn poll(turn: &mut Turn<'_>) -> Option<Result<(), Rejected>> {
    match turn.as_mut().poll(&mut Context::from_waker(noop_waker_ref())) {
        std::task::Poll::Ready(result) => Some(result),
        std::task::Poll::Pending => None,
    }
}

// Guarantee: throttling 5.
/// Such a call once waited on with a smaller reservation. Giving that back in full minted permits,
/// or wrapped around and closed the limiter for 584 years.
#[test]
fn a_call_that_no_longer_fits_is_rejected_and_creates_no_permit() {
    for strict in [false, true] {
        let config = RateLimitConfig::from(Quota::new(10, Duration::from_secs(3600)));
        let (limiter, _, time) = limiter(if strict { config.strict() } else { config });
        limiter.try_acquire_n(10).unwrap();
        for _ in 0..5 {
            let mut too_large = waits(&limiter, 10, Duration::MAX);
            let left = waits(&limiter, 9, Duration::MAX);
            let mut small = waits(&limiter, 2, Duration::MAX);
            limiter.reconfigure(limiter.config().with_quota(Quota::new(3, Duration::from_secs(3600)))).unwrap();
            assert_eq!(poll(&mut too_large).unwrap().unwrap_err().reason(), Reason::TooLarge);
            assert!(poll(&mut small).is_none());
            drop(left);
            drop(small);
            assert_eq!(drain(&limiter), 0);
            limiter.reconfigure(limiter.config().with_quota(Quota::new(10, Duration::from_secs(3600)))).unwrap();
            assert_eq!(drain(&limiter), 0);
        }
        time.advance(Duration::from_secs(3600));
        assert_eq!(drain(&limiter), 10);
    }
}

// Guarantee: throttling 4, 5.
/// The call is also rejected at once if the limit gets slower while it waits; it once slept past
/// its limit.
#[test]
fn a_slower_limit_rejects_at_once_the_calls_that_it_makes_too_late() {
    let (limiter, clock, time) = limiter(RateLimitConfig::from(Quota::per_second(10).burst(1)).max_wait(MS(500)));
    let mut events = limiter.events();
    limiter.try_acquire().unwrap();
    let start = time.now();
    let error = time.block_on(async {
        let pipeline = Pipeline::new().then(Timeout::builder(MS(300)).clock(&clock).build()).then(limiter.clone());
        let call = pipeline.call(|| async { Ok::<_, ()>(()) });
        let slower = async {
            clock.sleep(MS(50)).await;
            limiter.reconfigure(limiter.config().with_quota(Quota::per_second(1).burst(1))).unwrap();
        };
        futures::join!(call, slower).0.unwrap_err()
    });
    // Half of the one permit was back, and stays: the other half takes 500 ms now, more than the
    // deadline allows.
    assert_eq!((time.now() - start, error.retry_after()), (MS(50), Some(MS(500))));
    assert!(error.is_rejected());
    time.advance(MS(499));
    limiter.try_acquire().unwrap_err();
    time.advance(MS(1));
    limiter.try_acquire().unwrap();
    let sent: Vec<_> =
        std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| (event.number, event.what)).collect();
    assert_eq!(sent[0], (1, ThrottlingEvent::Queued { wait: Some(MS(100)) }));
    assert_eq!(sent[1], (2, ThrottlingEvent::LimitChanged));
    let rejected = ThrottlingEvent::Rejected { reason: Reason::RateLimited, retry_after: Some(MS(500)) };
    assert_eq!(sent[2], (3, rejected));
}

// Guarantee: throttling 5.
/// Lowering an exhausted limit once closed it until the old burst had returned at the new pace:
/// here for 99 s.
#[test]
fn a_lowered_limit_goes_on_at_its_new_pace() {
    let (limiter, _, time) = limiter(Quota::per_second(1000));
    assert_eq!(drain(&limiter), 1000);
    limiter.reconfigure(limiter.config().with_quota(Quota::per_second(10))).unwrap();
    assert_eq!(limiter.try_acquire().unwrap_err().retry_after(), Some(MS(100)));
    time.advance(MS(100));
    assert_eq!(drain(&limiter), 1);
    // A full limit is full after the change, in either direction.
    time.advance(Duration::from_secs(1));
    limiter.reconfigure(limiter.config().with_quota(Quota::per_second(1000))).unwrap();
    assert_eq!(drain(&limiter), 1000);
}

// Guarantee: throttling 5.
/// Calls come and go and the quota changes while the clock stands still: after a quiet period there
/// is one burst.
#[test]
fn many_changes_cause_no_drift() {
    let quotas = [Quota::per_second(10), Quota::new(7, MS(333)), Quota::per_minute(3), Quota::per_second(1_000_000)];
    for strict in [false, true] {
        let config = RateLimitConfig::from(quotas[0]);
        let (limiter, _, time) = limiter(if strict { config.strict() } else { config });
        let mut turns: Vec<Turn<'_>> = Vec::new();
        let random = steadfast::entropy::Entropy::from_seed(11);
        drain(&limiter);
        for round in 0..2_000 {
            match random.up_to(4) {
                0 => limiter.reconfigure(limiter.config().with_quota(quotas[random.up_to(3) as usize])).unwrap(),
                1 if !turns.is_empty() => drop(turns.swap_remove(random.up_to(turns.len() as u64 - 1) as usize)),
                2 if round % 10 == 0 => time.advance(Duration::from_nanos(random.up_to(400_000_000))),
                _ => {
                    let mut turn: Turn<'_> = Box::pin(limiter.acquire_n(random.up_to(2) as u32 + 1, MS(60_000)));
                    if poll(&mut turn).is_none() {
                        turns.push(turn);
                    }
                }
            }
            turns.retain_mut(|turn| poll(turn).is_none());
        }
        turns.clear();
        limiter.reconfigure(limiter.config().with_quota(quotas[0])).unwrap();
        time.advance(Duration::from_secs(3600));
        assert_eq!(drain(&limiter), 10, "strict: {strict}");
        assert_eq!(limiter.try_acquire().unwrap_err().retry_after(), Some(if strict { MS(1000) } else { MS(100) }));
    }
}

/// The largest numbers.
#[test]
fn the_largest_numbers_do_not_overflow() {
    let century = Duration::from_secs(100 * 366 * 24 * 3600);
    for quota in
        [Quota::new(u32::MAX, Duration::from_secs(5)), Quota::new(1, Duration::from_secs(366 * 24 * 3600)).burst(100)]
    {
        let (limiter, _, time) = limiter(quota);
        limiter.try_acquire_n(quota.largest()).unwrap();
        let wait = limiter.try_acquire().unwrap_err().retry_after().unwrap();
        assert!(wait <= century);
        assert!(limiter.try_acquire_n(u32::MAX).is_err());
        let turn = waits(&limiter, quota.largest(), Duration::MAX);
        drop(turn);
        time.advance(wait);
        limiter.try_acquire().unwrap();
        // At the end of time nothing panics.
        time.advance(Duration::MAX);
        let _ = limiter.try_acquire_n(quota.largest());
        limiter.reconfigure(limiter.config().with_quota(Quota::per_second(1))).unwrap();
        let _ = limiter.try_acquire();
    }
}

// Guarantee: throttling 3.
/// A call for zero permits passes unless other calls wait.
#[test]
fn zero_permits_take_nothing() {
    for strict in [false, true] {
        let config = RateLimitConfig::from(Quota::per_second(2));
        let (limiter, _, time) = limiter(if strict { config.strict() } else { config });
        for _ in 0..10 {
            limiter.try_acquire_n(0).unwrap();
            time.block_on(limiter.acquire_n(0, Duration::ZERO)).unwrap();
        }
        assert_eq!(drain(&limiter), 2);
        limiter.try_acquire_n(0).unwrap();
    }
}

// Guarantee: throttling 3.
/// Calls that wait behind permits that `try_acquire_all` gives back move up.
#[test]
fn several_limits_that_fail_together_take_nothing() {
    for strict in [false, true] {
        let config = RateLimitConfig::from(Quota::new(5, MS(500)));
        let config = if strict { config.strict() } else { config };
        let (first, clock, time) = limiter(config);
        let last = RateLimiter::builder(Quota::per_minute(1)).clock(&clock).build().unwrap();
        last.try_acquire().unwrap();
        for _ in 0..100 {
            // The same limiter twice takes two permits, or none.
            assert!(try_acquire_all(&[&first, &first, &last]).is_err());
            time.advance(Duration::from_micros(1));
        }
        assert_eq!(drain(&first), 5);
        assert!(try_acquire_all::<RateLimiter>(&[]).is_ok());
        assert!(try_acquire_all(&[&last, &first]).is_err());
    }
}

// Guarantee: throttling 3.
/// The time to come back is that of the slowest limit. It was once that of the first, after which
/// the next one rejected the call.
#[test]
fn several_limits_return_the_time_when_all_are_ready() {
    for strict in [false, true] {
        let with = |quota: Quota| if strict { RateLimitConfig::from(quota).strict() } else { quota.into() };
        let (second, clock, time) = limiter(with(Quota::per_second(1)));
        let minute = RateLimiter::builder(with(Quota::per_minute(1))).name("minute").clock(&clock).build().unwrap();
        let ample = RateLimiter::builder(with(Quota::per_minute(7))).clock(&clock).build().unwrap();
        let all = [&ample, &second, &minute, &ample];
        try_acquire_all(&all).unwrap();
        time.advance(MS(500));
        let mut events = minute.events();
        let rejected = try_acquire_all(&all).unwrap_err();
        assert_eq!((rejected.name(), rejected.retry_after()), (Some("minute"), Some(MS(59_500))));
        assert!(events.try_recv().unwrap().is_some());
        time.advance(MS(59_500) - Duration::from_nanos(1));
        assert_eq!(try_acquire_all(&all).unwrap_err().retry_after(), Some(Duration::from_nanos(1)));
        time.advance(Duration::from_nanos(1));
        try_acquire_all(&all).unwrap();
        assert_eq!(drain(&ample), 5);
    }
}

// Guarantee: throttling 4.
/// Calls behind one that leaves come exactly one turn earlier, although they sleep until their old
/// time.
#[test]
fn calls_behind_one_that_leaves_are_woken_and_pass_at_exact_times() {
    for strict in [false, true] {
        let quota = if strict { Quota::new(1, MS(100)) } else { Quota::per_second(10).burst(1) };
        let config = RateLimitConfig::from(quota);
        let (limiter, clock, time) = limiter(if strict { config.strict() } else { config });
        let start = time.now();
        // Each call has a waker of its own. The third and the fifth give up after 150 ms.
        let calls: FuturesOrdered<_> = (0..6)
            .map(|i| {
                let (limiter, clock) = (&limiter, &clock);
                async move {
                    if i == 2 || i == 4 {
                        let _gives_up = select(pin!(limiter.acquire()), pin!(clock.sleep(MS(150)))).await;
                        return None;
                    }
                    limiter.acquire().await;
                    Some((clock.now() - start).as_millis())
                }
            })
            .collect();
        let came: Vec<_> = time.block_on(calls.collect());
        assert_eq!(came, [Some(0), Some(100), None, Some(200), None, Some(300)], "strict: {strict}");
    }
}

// Guarantee: throttling 4.
/// A turn that has come is used, even if its call is dropped before it notices.
#[test]
fn a_turn_that_has_come_is_used() {
    let (limiter, _, time) = limiter(Quota::per_second(10).burst(1));
    limiter.try_acquire().unwrap();
    let turn = waits(&limiter, 1, MS(100));
    time.advance(MS(100));
    drop(turn);
    assert_eq!(limiter.try_acquire().unwrap_err().retry_after(), Some(MS(100)));
}
