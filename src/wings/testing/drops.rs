//! A harness that drops a future at every await point.
use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
};

use crate::time::ManualClock;

/// Drops a future at each of its await points in turn, and returns the number of polls that it
/// needs to complete.
///
/// The first future of `make` is dropped before its first poll, the next one after one poll, and so
/// on, until one completes. After each, `check` is called with the number of polls. Whenever a
/// future waits, `time` jumps to the next timer, so that sleeps and queues are reached as await
/// points.
///
/// ```
/// use steadfast::{
///     testing::drop_at_every_await,
///     throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter},
///     time::Clock,
/// };
/// use std::time::Duration;
///
/// let (clock, time) = Clock::manual();
/// let config = ConcurrencyLimitConfig::of(1);
/// let limiter = ConcurrencyLimiter::builder(config).clock(&clock).build().unwrap();
/// let polls = drop_at_every_await(
///     &time,
///     || limiter.call(async || Ok::<_, ()>(clock.sleep(Duration::from_secs(1)).await)),
///     |_| assert_eq!(limiter.available(), 1),
/// );
/// assert_eq!(polls, 2);
/// ```
///
/// # Panics
/// If the future waits and no timer is left to wake it, or if it takes more than 10,000 polls.
pub fn drop_at_every_await<F: Future>(
    time: &ManualClock,
    mut make: impl FnMut() -> F,
    mut check: impl FnMut(usize),
) -> usize {
    for polls in 0..=10_000 {
        let ended = run_for(time, make(), polls);
        check(polls);
        if ended {
            return polls;
        }
    }
    panic!("the future did not complete within 10,000 polls");
}

/// Polls the future at most `polls` times and drops it; returns `true` if it completed.
fn run_for(time: &ManualClock, future: impl Future, polls: usize) -> bool {
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    let mut future = pin!(future);
    for _ in 0..polls {
        while !woken.0.swap(false, Ordering::SeqCst) {
            let next = time.next_timer();
            assert!(next.is_some(), "the future waits, and no timer is left to wake it");
            time.advance_to(next.unwrap_or_default());
        }
        let polled = time.run_blocking(|| future.as_mut().poll(&mut Context::from_waker(&waker)));
        if polled.is_ready() {
            return true;
        }
    }
    false
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}
