//! The concurrency limit's queue: events, weights, calls that leave, and random sequences.
use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures::task::noop_waker_ref;
use steadfast::{
    PolicyKind, Reason, Rejected,
    entropy::Entropy,
    testing::ManualClock,
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter, ConcurrencyPermit, QueueOrder, ThrottlingEvent},
    time::Clock,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn limiter(config: ConcurrencyLimitConfig) -> (ConcurrencyLimiter, Clock, ManualClock) {
    let (clock, time) = Clock::manual();
    (ConcurrencyLimiter::builder(config).name("db").clock(&clock).build().unwrap(), clock, time)
}

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<ConcurrencyPermit<'a>, Rejected>> + Send + 'a>>;

fn poll<'a>(waiting: &mut Waiting<'a>) -> Option<Result<ConcurrencyPermit<'a>, Rejected>> {
    match waiting.as_mut().poll(&mut Context::from_waker(noop_waker_ref())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Begins a call that waits.
fn waits(limiter: &ConcurrencyLimiter) -> Waiting<'_> {
    let mut waiting: Waiting<'_> = Box::pin(limiter.acquire());
    assert!(poll(&mut waiting).is_none());
    waiting
}

// Guarantee: throttling 12.
#[test]
fn a_rejection_says_queue_full_or_waited_too_long() {
    let (limiter, clock, time) = limiter(ConcurrencyLimitConfig::of(1).queue(1).max_wait(MS(250)));
    let mut events = limiter.events();
    let _runs = limiter.try_acquire().unwrap();
    let start = time.now();
    let waited = time.block_on(async {
        let waits = limiter.acquire();
        let full = async {
            clock.sleep(MS(1)).await;
            limiter.acquire().await.unwrap_err()
        };
        let (waited, full) = futures::join!(waits, full);
        assert_eq!(full.reason(), Reason::QueueFull);
        assert_eq!(full.to_string(), "rejected by the concurrency limit `db`: queue full");
        waited.unwrap_err()
    });
    assert_eq!(time.now() - start, MS(250));
    assert_eq!(waited.to_string(), "rejected by the concurrency limit `db`: waited too long (250ms)");
    assert_eq!((waited.by(), waited.retry_after()), (PolicyKind::ConcurrencyLimit, None));
    let sent: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect();
    let rejected = |reason| ThrottlingEvent::Rejected { reason, retry_after: None };
    assert_eq!(sent[0], ThrottlingEvent::Queued { wait: None });
    assert_eq!(sent[1], rejected(Reason::QueueFull));
    assert_eq!(sent[2..], [rejected(Reason::WaitedTooLong { limit: MS(250) })]);
}

// Guarantee: throttling 12.
#[test]
fn a_limit_without_a_queue_rejects_at_once() {
    let (limiter, _, time) = limiter(ConcurrencyLimitConfig::of(1).queue(0).max_wait(Duration::ZERO));
    let _runs = limiter.try_acquire().unwrap();
    let start = time.now();
    assert_eq!(time.block_on(limiter.acquire()).unwrap_err().reason(), Reason::QueueFull);
    assert_eq!(time.now(), start);
}

// Guarantee: throttling 11.
#[test]
fn no_light_call_overtakes_a_heavy_one_that_waits() {
    let (limiter, ..) = limiter(ConcurrencyLimitConfig::of(4));
    let heavy = limiter.weighing(3);
    let light = limiter.try_acquire().unwrap();
    let first = heavy.try_acquire().unwrap();
    assert_eq!(limiter.available(), 0);
    let mut second = waits(&heavy);
    drop(light);
    let mut third = waits(&limiter);
    assert!(limiter.try_acquire().is_err(), "a call waits");
    drop(first);
    let second = poll(&mut second).unwrap().unwrap();
    let third = poll(&mut third).unwrap().unwrap();
    assert_eq!(limiter.available(), 0);
    drop((second, third));
    assert_eq!(limiter.available(), 4);
    assert_eq!(limiter.weighing(5).try_acquire().unwrap_err().reason(), Reason::TooLarge);
    assert_eq!(limiter.weighing(u32::MAX).try_acquire().unwrap_err().reason(), Reason::TooLarge);
}

// Guarantee: throttling 11.
/// A heavy call at the head of the queue blocks lighter ones until it gives up.
#[test]
fn calls_behind_one_that_leaves_can_run() {
    let (limiter, ..) = limiter(ConcurrencyLimitConfig::of(4));
    let heavy = limiter.weighing(4);
    let _light = limiter.try_acquire().unwrap();
    let in_the_way = waits(&heavy);
    let mut behind = waits(&limiter);
    drop(in_the_way);
    assert!(poll(&mut behind).unwrap().is_ok());
}

// Guarantee: throttling 11, 13.
#[test]
fn growth_admits_waiting_calls_and_shrinking_waits_for_running_ones() {
    let (limiter, ..) = limiter(ConcurrencyLimitConfig::of(2));
    let heavy = limiter.weighing(2);
    let (a, b) = (limiter.try_acquire().unwrap(), limiter.try_acquire().unwrap());
    // Growth: the waiting call runs at once.
    let mut waiting = waits(&limiter);
    limiter.reconfigure(limiter.config().capacity(3)).unwrap();
    let c = poll(&mut waiting).unwrap().unwrap();
    // Shrinking below the used permits: running calls go on, and none begins before enough permits
    // are back.
    let mut heavy_waits = waits(&heavy);
    let mut light_waits = waits(&limiter);
    limiter.reconfigure(limiter.config().capacity(1)).unwrap();
    assert_eq!((limiter.available(), limiter.capacity()), (-2, 1));
    assert_eq!(poll(&mut heavy_waits).unwrap().unwrap_err().reason(), Reason::TooLarge);
    drop(a);
    drop(b);
    assert!(poll(&mut light_waits).is_none());
    drop(c);
    assert!(poll(&mut light_waits).unwrap().is_ok());
    assert_eq!(limiter.available(), 1);
    let error = limiter.reconfigure(limiter.config().capacity(0)).unwrap_err();
    assert_eq!((error.field(), limiter.capacity()), ("capacity", 1));
}

// Guarantee: throttling 13.
/// Like the million random ends, but with whole calls and weights, while the capacity changes and
/// time passes.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn whole_calls_conserve_permits_while_the_capacity_changes() {
    for (seed, order) in [(1, QueueOrder::Fifo), (2, QueueOrder::NewestFirst)] {
        let (limiter, _, time) = limiter(ConcurrencyLimitConfig::of(8).queue(16).max_wait(MS(5)).order(order));
        let random = Entropy::from_seed(seed);
        let kinds: Vec<ConcurrencyLimiter> = (1..=3).map(|weight| limiter.weighing(weight)).collect();
        let mut calls: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = Vec::new();
        let mut cx = Context::from_waker(noop_waker_ref());
        let mut ends = 0;
        while ends < 200_000 {
            let pick = random.up_to(31) as usize;
            match random.up_to(15) {
                // A call begins; after some polls it will hang, end or panic.
                0..6 if calls.len() < 32 => {
                    let (limiter, mut polls, panics) = (&kinds[pick % 3], random.up_to(2), pick.is_multiple_of(8));
                    let call = limiter.call(move || {
                        futures::future::poll_fn(move |cx| match polls {
                            0 if panics => std::panic::resume_unwind(Box::new("the operation panics")),
                            0 => Poll::Ready(Ok::<_, ()>(())),
                            _ => {
                                polls -= 1;
                                cx.waker().wake_by_ref();
                                Poll::Pending
                            }
                        })
                    });
                    calls.push(Box::pin(async move { drop(call.await) }));
                }
                // One call is polled.
                0..12 if pick < calls.len() => {
                    let polled = catch_unwind(AssertUnwindSafe(|| calls[pick].as_mut().poll(&mut cx)));
                    if !matches!(polled, Ok(Poll::Pending)) {
                        drop(calls.swap_remove(pick));
                        ends += 1;
                    }
                }
                // One call is dropped, at any await point.
                12..15 if pick < calls.len() => {
                    drop(calls.swap_remove(pick));
                    ends += 1;
                }
                15 if pick == 0 => limiter.reconfigure(limiter.config().capacity(random.up_to(7) as u32 + 3)).unwrap(),
                15 if pick == 1 => time.advance(MS(3)),
                _ => {}
            }
            assert!(limiter.available() <= limiter.capacity().into());
        }
        calls.clear();
        assert_eq!((limiter.available(), limiter.waiting()), (limiter.capacity().into(), 0));
        assert!(limiter.weighing(limiter.capacity()).try_acquire().is_ok());
        assert_eq!(time.next_timer(), None);
    }
}
