//! Many calls wait at a rate limit and leave: each costs its own wake-up, not one for every call
//! behind it.
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use steadfast::{
    Rejected,
    throttling::{Quota, RateLimitConfig, RateLimiter},
    time::{Clock, ManualClock},
};

const S: fn(u64) -> Duration = Duration::from_secs;

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

type Turn<'a> = Pin<Box<dyn Future<Output = Result<(), Rejected>> + 'a>>;

fn limiter(strict: bool) -> (RateLimiter, ManualClock) {
    let (clock, time) = Clock::manual();
    let config = RateLimitConfig::from(Quota::per_second(1));
    let config = if strict { config.strict() } else { config };
    let limiter = RateLimiter::builder(config).clock(&clock).build().unwrap();
    limiter.try_acquire().unwrap();
    (limiter, time)
}

/// Begins `n` waiting calls, each with a count of its wake-ups.
fn crowd(limiter: &RateLimiter, n: usize) -> Vec<(Turn<'_>, Arc<Count>)> {
    let begin = |_| {
        let count = Arc::new(Count::default());
        let mut turn: Turn<'_> = Box::pin(limiter.acquire_n(1, Duration::MAX));
        assert!(poll(&mut turn, &count).is_none());
        (turn, count)
    };
    (0..n).map(begin).collect()
}

fn poll(turn: &mut Turn<'_>, count: &Arc<Count>) -> Option<Result<(), Rejected>> {
    match turn.as_mut().poll(&mut Context::from_waker(&Waker::from(count.clone()))) {
        std::task::Poll::Ready(result) => Some(result),
        std::task::Poll::Pending => None,
    }
}

// Guarantee: throttling 4.
#[test]
fn callers_that_leave_a_queue_wake_at_most_one_other_each() {
    const N: usize = 1_000;
    for strict in [false, true] {
        for order in ["first", "last", "any"] {
            let (limiter, _hand) = limiter(strict);
            let mut crowd = crowd(&limiter, N);
            let (mut wakes, mut at) = (0, 7);
            while !crowd.is_empty() {
                at = (at * 31 + 17) % crowd.len();
                let leaves = match order {
                    "first" => 0,
                    "last" => crowd.len() - 1,
                    _ => at,
                };
                drop(crowd.remove(leaves));
                // Polls the calls that were woken.
                for (turn, count) in &mut crowd {
                    if count.0.swap(0, SeqCst) > 0 {
                        wakes += 1;
                        assert!(poll(turn, count).is_none());
                    }
                }
            }
            assert!(wakes <= N, "{wakes} wake-ups of {N} that leave, {order} first, strict: {strict}");
        }
    }
}

// Guarantee: throttling 4.
/// After calls have left, each other one passes at the first moment that the limit allows, in
/// order.
#[test]
fn callers_behind_one_that_left_pass_as_early_as_the_limit_allows() {
    for strict in [false, true] {
        for leaves in [vec![0], vec![2], vec![0, 0, 0], vec![3, 1, 0], vec![5], vec![4, 3]] {
            let (limiter, time) = limiter(strict);
            let mut crowd = crowd(&limiter, 6);
            let start = time.now();
            leaves.iter().for_each(|at| drop(crowd.remove(*at)));
            let left = crowd.len() as u64;
            let mut passed = Vec::new();
            while !crowd.is_empty() {
                let woken = crowd.iter_mut().position(|(_, count)| count.0.swap(0, SeqCst) > 0);
                let Some(woken) = woken else {
                    let next = time.next_timer().expect("a call waits, but no timer is left");
                    time.advance_to(next);
                    continue;
                };
                let (turn, count) = &mut crowd[woken];
                if poll(turn, count).is_some() {
                    assert_eq!(woken, 0, "in order");
                    passed.push((time.now() - start).as_secs());
                    drop(crowd.remove(0));
                }
            }
            assert_eq!(passed, (1..=left).collect::<Vec<_>>(), "strict: {strict}, {leaves:?} left");
        }
    }
}

// Guarantee: throttling 4, 5.
/// The same after a change of the quota.
#[test]
fn callers_in_a_queue_pass_as_early_as_a_faster_limit_allows() {
    for strict in [false, true] {
        let (limiter, time) = limiter(strict);
        let start = time.now();
        let crowd = crowd(&limiter, 10);
        limiter.reconfigure(limiter.config().with_quota(Quota::per_second(10))).unwrap();
        drop(crowd);
        let turns = || futures::future::join_all((0..10).map(|_| limiter.acquire_n(1, S(60))));
        time.block_on(async {
            futures::join!(turns(), async {
                limiter.reconfigure(limiter.config().with_quota(Quota::per_second(2))).unwrap();
                limiter.reconfigure(limiter.config().with_quota(Quota::per_second(10))).unwrap();
            })
        });
        assert!(time.now() - start <= S(2), "{:?}, strict: {strict}", time.now() - start);
    }
}
