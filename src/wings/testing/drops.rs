//! Dropping a future at every point where it can be dropped.
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

/// Runs the future that `make` makes up to its first await point and drops it there, then a new one up to its second, and so on,
/// until one comes to its end; after each, calls `check` with the number of polls that it had. Returns how many it took in all.
///
/// Whenever the future waits, `hand` jumps to the next timer, so sleeps and waits for a turn are await points that are reached.
///
/// ```
/// use steadfast::{testing::drop_at_every_await, throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter}, time::Clock};
/// use std::time::Duration;
///
/// let (clock, hand) = Clock::manual();
/// let limiter = ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(1)).unwrap().with_clock(&clock);
/// let polls = drop_at_every_await(
///     &hand,
///     || limiter.call(async || Ok::<_, ()>(clock.sleep(Duration::from_secs(1)).await)),
///     |_| assert_eq!(limiter.available(), 1),
/// );
/// assert_eq!(polls, 2);
/// ```
///
/// # Panics
/// If the future waits and no timer is left to wake it, or if it takes more than 10,000 polls.
pub fn drop_at_every_await<F: Future>(
    hand: &ManualClock,
    mut make: impl FnMut() -> F,
    mut check: impl FnMut(usize),
) -> usize {
    for polls in 0..=10_000 {
        let ended = run_for(hand, make(), polls);
        check(polls);
        if ended {
            return polls;
        }
    }
    panic!("the future did not come to its end within 10,000 polls");
}

/// Polls the future so often, at most, and drops it; whether it came to its end.
fn run_for(hand: &ManualClock, future: impl Future, polls: usize) -> bool {
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    let mut future = pin!(future);
    for _ in 0..polls {
        while !woken.0.swap(false, Ordering::SeqCst) {
            let next = hand.next_timer();
            assert!(next.is_some(), "the future waits, and no timer is left to wake it");
            hand.advance_to(next.unwrap_or_default());
        }
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
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
