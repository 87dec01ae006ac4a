//! A server asks clients to come back later: limiters admit nothing before, and rejections carry
//! the time.
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    task::{Context, Waker},
    time::Duration,
};

use steadfast::{
    CallError, FailureKind, Hint, Pipeline, Reason, Verdict,
    call::Policy,
    throttling::{
        AdaptiveLimitConfig, AdaptiveLimiter, KeyedRateLimiter, Quota, RateLimitConfig, RateLimiter, RateMode,
        ThrottlingEvent, try_acquire_all,
    },
    time::{Clock, ManualClock},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;

/// A service that refuses with a hint, and counts its calls.
#[derive(Clone, Default)]
struct Refuses(Arc<AtomicU32>);

impl Refuses {
    /// Makes calls that are all refused with this hint. Returns the number that reached the
    /// service, and the last result.
    fn calls<P: Policy + Clone>(
        &self,
        policy: &P,
        time: &ManualClock,
        n: u32,
        hint: Hint,
    ) -> (u32, Option<CallError<()>>) {
        let verdict = move |_: &Result<(), ()>| Verdict::failure(FailureKind::Throttled).with_hint(hint);
        let pipeline = Pipeline::new().then(policy.clone()).classify(verdict);
        let before = self.0.load(SeqCst);
        let mut last = None;
        for _ in 0..n {
            let call = || async {
                self.0.fetch_add(1, SeqCst);
                Err(())
            };
            last = time.block_on(pipeline.call(call)).err();
        }
        (self.0.load(SeqCst) - before, last)
    }
}

fn rate(config: impl Into<RateLimitConfig>) -> (RateLimiter, Clock, ManualClock) {
    let (clock, time) = Clock::manual();
    (RateLimiter::builder(config).clock(&clock).build().unwrap(), clock, time)
}

// Guarantee: throttling 6.
#[test]
fn after_a_hint_no_call_passes_a_rate_limit_before_the_time_is_over() {
    for config in [Quota::per_second(100).into(), RateLimitConfig::from(Quota::per_second(100)).strict()] {
        for wait in [S(60), MS(1_500)] {
            let (limiter, _, time) = rate(config);
            let service = Refuses::default();
            let (sent, last) = service.calls(&limiter, &time, 10, Hint::RetryAfter(wait));
            assert_eq!((sent, last.unwrap().retry_after()), (1, Some(wait)), "{config:?}");
            time.advance(wait - Duration::from_nanos(1));
            let refused = limiter.try_acquire().unwrap_err();
            assert_eq!(refused.retry_after(), Some(Duration::from_nanos(1)));
            time.advance(Duration::from_nanos(1));
            assert!(limiter.try_acquire().is_ok());
        }
    }
}

// Guarantee: throttling 6.
#[test]
fn after_a_pause_a_smooth_limit_goes_on_evenly_and_a_strict_one_by_its_window() {
    let (limiter, _, time) = rate(Quota::per_second(10));
    limiter.pause(S(5));
    time.advance(S(5));
    assert_eq!((limiter.try_acquire().is_ok(), limiter.try_acquire().is_ok()), (true, false));
    time.advance(MS(100));
    assert!(limiter.try_acquire().is_ok());
    let (limiter, _, time) = rate(RateLimitConfig::from(Quota::per_second(10)).strict());
    limiter.pause(S(5));
    time.advance(S(5));
    assert_eq!((0..20).filter(|_| limiter.try_acquire().is_ok()).count(), 10);
}

// Guarantee: throttling 6.
#[test]
fn after_a_hint_an_adaptive_limit_admits_no_call_before_the_time_is_over() {
    let (clock, time) = Clock::manual();
    let limiter = AdaptiveLimiter::builder(AdaptiveLimitConfig::default()).clock(&clock).build().unwrap();
    let service = Refuses::default();
    let (sent, last) = service.calls(&limiter, &time, 10, Hint::UnavailableFor(S(60)));
    let last = last.unwrap();
    assert_eq!((sent, last.retry_after()), (1, Some(S(60))));
    assert!(matches!(last.cause(), steadfast::Cause::Rejected(rejected) if rejected.reason() == Reason::AskedToPause));
    time.advance(S(59));
    assert_eq!(service.calls(&limiter, &time, 10, Hint::None).0, 0);
    time.advance(S(1));
    assert_eq!(service.calls(&limiter, &time, 10, Hint::None).0, 10);
}

// Guarantee: throttling 6.
/// A hint comes from an untrusted server.
#[test]
fn a_hint_pauses_for_at_most_max_hint_and_a_shorter_one_ends_no_pause() {
    let (limiter, _, time) = rate(RateLimitConfig::default().max_hint(S(10)));
    let service = Refuses::default();
    let never = Hint::RetryAfter(Duration::MAX);
    assert_eq!(service.calls(&limiter, &time, 2, never).1.unwrap().retry_after(), Some(S(10)));
    limiter.pause(S(1));
    time.advance(S(9));
    assert!(limiter.try_acquire().is_err());
    time.advance(S(1));
    assert_eq!(service.calls(&limiter, &time, 10, Hint::DoNotRetry).0, 1, "evenly; the failure named no time");
    let (limiter, _, time) = rate(RateLimitConfig::default().max_hint(S(0)));
    assert_eq!(service.calls(&limiter, &time, 10, never).0, 10);
    let (clock, time) = Clock::manual();
    let config = AdaptiveLimitConfig::default().max_hint(S(10));
    let adaptive = AdaptiveLimiter::builder(config).clock(&clock).build().unwrap();
    assert_eq!(service.calls(&adaptive, &time, 2, never).1.unwrap().retry_after(), Some(S(10)));
    adaptive.reconfigure(config.max_hint(S(0))).unwrap();
    time.advance(S(10));
    assert_eq!(service.calls(&adaptive, &time, 10, never).0, 10);
}

// Guarantee: throttling 6.
/// The default maximum is 15 minutes.
#[test]
fn a_hint_of_a_year_pauses_for_a_bounded_time_by_default() {
    let (limiter, clock, time) = rate(Quota::per_second(5));
    let service = Refuses::default();
    let year = Hint::RetryAfter(S(365 * 86_400));
    assert_eq!(service.calls(&limiter, &time, 2, year).1.unwrap().retry_after(), Some(S(900)));
    let adaptive = AdaptiveLimiter::builder(AdaptiveLimitConfig::default()).clock(&clock).build().unwrap();
    assert_eq!(service.calls(&adaptive, &time, 2, year).1.unwrap().retry_after(), Some(S(900)));
}

// Guarantee: throttling 4, 6.
#[test]
fn a_waiting_call_waits_for_the_end_of_a_pause_or_is_rejected_at_once() {
    for config in [Quota::new(1, S(1)).into(), RateLimitConfig::from(Quota::new(1, S(1))).strict()] {
        let (limiter, clock, time) = rate(config);
        let mut events = limiter.events();
        limiter.try_acquire().unwrap();
        let start = clock.now();
        let (patient, hasty, _) = time.block_on(async {
            futures::join!(limiter.acquire_n(1, S(60)), limiter.acquire_n(1, S(5)), async { limiter.pause(S(30)) })
        });
        assert!(patient.is_ok());
        assert_eq!((clock.now() - start, hasty.unwrap_err().reason()), (S(30), Reason::RateLimited));
        let sent: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect();
        assert!(sent.contains(&ThrottlingEvent::Paused { time: S(30) }), "{sent:?}");
    }
}

// Guarantee: throttling 6.
/// Neither permits that are given back nor another quota end it earlier.
#[test]
fn a_pause_outlasts_permits_that_come_back_and_changes_of_the_quota() {
    let (limiter, clock, time) = rate(Quota::new(1, S(60)).burst(3));
    let spent = RateLimiter::builder(Quota::new(1, S(600))).clock(&clock).build().unwrap();
    spent.try_acquire().unwrap();
    limiter.pause(S(30));
    assert!(try_acquire_all(&[&limiter, &spent]).is_err());
    let mut waiting = Box::pin(limiter.acquire_n(1, S(600)));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(&mut cx).is_pending());
    drop(waiting);
    for config in [Quota::per_second(1000).into(), RateLimitConfig::from(Quota::per_second(7)).strict()] {
        limiter.reconfigure(config).unwrap();
        assert_eq!(limiter.try_acquire().unwrap_err().retry_after(), Some(S(30)));
    }
    limiter.reconfigure(limiter.config().with_quota(Quota::per_second(3))).unwrap();
    limiter.reconfigure(Quota::per_second(3)).unwrap();
    assert_eq!(limiter.try_acquire().unwrap_err().retry_after(), Some(S(30)));
    time.advance(S(30));
    assert!(limiter.try_acquire().is_ok());
}

// Guarantee: throttling 6.
/// A hint of 900 s stopped all calls for a quarter of an hour, whatever the operator knew.
#[test]
fn resume_ends_a_pause_by_a_hint_and_creates_no_permit() {
    for config in [Quota::per_second(10).into(), RateLimitConfig::from(Quota::per_second(10)).strict()] {
        let (limiter, _, time) = rate(config);
        let mut events = limiter.events();
        let service = Refuses::default();
        assert_eq!(service.calls(&limiter, &time, 10, Hint::RetryAfter(S(900))).0, 1);
        time.advance(S(60));
        assert!(limiter.try_acquire().is_err());
        limiter.resume();
        let first = (0..20).filter(|_| limiter.try_acquire().is_ok()).count();
        assert_eq!(first, if config.mode == RateMode::Strict { 10 } else { 1 }, "as after the end of the pause");
        time.advance(MS(1000));
        assert_eq!((0..20).filter(|_| limiter.try_acquire().is_ok()).count(), 10);
        // Pauses and resumes without end admit no more than the limit.
        for _ in 0..100 {
            limiter.pause(S(900));
            limiter.resume();
            assert!(limiter.try_acquire().is_err());
        }
        limiter.resume();
        let told = std::iter::from_fn(|| events.try_recv().unwrap());
        assert_eq!(told.filter(|event| event.what == ThrottlingEvent::Resumed).count(), 101);
    }
}

// Guarantee: throttling 6.
#[test]
fn resume_wakes_waiting_calls_in_order_and_a_changed_limit_resumes_at_its_new_pace() {
    let (limiter, _, time) = rate(Quota::per_second(10));
    limiter.pause(S(900));
    let mut first = Box::pin(limiter.acquire());
    let mut second = Box::pin(limiter.acquire());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut cx).is_pending() && second.as_mut().poll(&mut cx).is_pending());
    limiter.resume();
    assert!(first.as_mut().poll(&mut cx).is_ready() && second.as_mut().poll(&mut cx).is_pending());
    time.advance(MS(100));
    assert!(second.as_mut().poll(&mut cx).is_ready());

    limiter.pause(S(900));
    limiter.reconfigure(Quota::per_second(1000)).unwrap();
    assert!(limiter.try_acquire().is_err());
    limiter.resume();
    time.advance(MS(10));
    assert_eq!((0..100).filter(|_| limiter.try_acquire().is_ok()).count(), 10);
}

// Guarantee: throttling 6.
#[test]
fn resume_ends_the_pause_of_a_key_and_of_an_adaptive_limit() {
    let (clock, time) = Clock::manual();
    let keyed = KeyedRateLimiter::<String>::builder(Quota::per_second(10)).clock(&clock).build().unwrap();
    keyed.pause("a", S(900));
    keyed.pause("b", S(900));
    keyed.resume("a");
    keyed.resume("c");
    assert!(keyed.try_acquire("a").is_ok() && keyed.try_acquire("b").is_err());

    let limiter = AdaptiveLimiter::builder(AdaptiveLimitConfig::default()).clock(&clock).build().unwrap();
    let service = Refuses::default();
    assert_eq!(service.calls(&limiter, &time, 10, Hint::UnavailableFor(S(900))).0, 1);
    limiter.resume();
    assert_eq!(service.calls(&limiter, &time, 10, Hint::None).0, 10);
}
