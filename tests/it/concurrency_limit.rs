//! Throttling, behaviour 3: concurrency limits.
use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures::{future::join_all, task::noop_waker_ref};
use steadfast::{
    Pipeline, PolicyKind, Reason, Rejected,
    entropy::Entropy,
    testing::ManualClock,
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter, ConcurrencyPermit, QueueOrder, ThrottlingEvent},
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn limiter(config: ConcurrencyLimitConfig) -> (ConcurrencyLimiter, Clock, ManualClock) {
    let (clock, hand) = Clock::manual();
    (ConcurrencyLimiter::new(config).unwrap().with_clock(&clock), clock, hand)
}

type Wish<'a> = Pin<Box<dyn Future<Output = Result<ConcurrencyPermit<'a>, Rejected>> + Send + 'a>>;

fn poll<'a>(wish: &mut Wish<'a>) -> Option<Result<ConcurrencyPermit<'a>, Rejected>> {
    match wish.as_mut().poll(&mut Context::from_waker(noop_waker_ref())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// One that waits.
fn waits(limiter: &ConcurrencyLimiter) -> Wish<'_> {
    let mut wish: Wish<'_> = Box::pin(limiter.acquire());
    assert!(poll(&mut wish).is_none());
    wish
}

#[test]
fn throttling_3_capacity_bounds_what_runs_at_once() {
    let (limiter, clock, hand) = limiter(ConcurrencyLimitConfig::of(3).queue(100, MS(10_000)));
    let (running, most) = (&std::cell::Cell::new(0), &std::cell::Cell::new(0));
    let start = hand.now();
    hand.block_on(join_all((0..10).map(|_| async {
        let _permit = limiter.acquire().await.unwrap();
        running.set(running.get() + 1);
        most.set(running.get().max(most.get()));
        clock.sleep(MS(100)).await;
        running.set(running.get() - 1);
    })));
    assert_eq!((most.get(), hand.now() - start), (3, MS(400)));
    assert_eq!((limiter.available(), limiter.waiting()), (3, 0));
}

#[test]
fn throttling_3_rejects_say_queue_full_or_waited_too_long() {
    let (limiter, clock, hand) = limiter(ConcurrencyLimitConfig::of(1).queue(1, MS(250)));
    let limiter = limiter.named("db");
    let mut events = limiter.events();
    let _runs = limiter.try_acquire().unwrap();
    let start = hand.now();
    let waited = hand.block_on(async {
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
    assert_eq!(hand.now() - start, MS(250));
    assert_eq!(waited.to_string(), "rejected by the concurrency limit `db`: waited too long (250ms)");
    assert_eq!((waited.by(), waited.retry_after()), (PolicyKind::ConcurrencyLimit, None));
    let told: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect();
    let rejected = |reason| ThrottlingEvent::Rejected { reason, retry_after: None };
    assert_eq!(told[0], ThrottlingEvent::Queued { wait: None });
    assert_eq!(told[1], rejected(Reason::QueueFull));
    assert_eq!(told[2..], [rejected(Reason::WaitedTooLong { limit: MS(250) })]);
}

#[test]
fn throttling_3_without_a_queue_it_rejects_at_once() {
    let (limiter, _, hand) = limiter(ConcurrencyLimitConfig::of(1).queue(0, Duration::ZERO));
    let _runs = limiter.try_acquire().unwrap();
    let start = hand.now();
    assert_eq!(hand.block_on(limiter.acquire()).unwrap_err().reason(), Reason::QueueFull);
    assert_eq!(hand.now(), start);
}

#[test]
fn throttling_3_a_wait_ends_with_the_calls_deadline() {
    let (limiter, clock, hand) = limiter(ConcurrencyLimitConfig::of(1).queue(5, MS(1000)));
    let _runs = limiter.try_acquire().unwrap();
    let start = hand.now();
    let pipeline = Pipeline::new().then(Timeout::new(MS(300)).with_clock(&clock)).then(limiter.clone());
    let error = hand.block_on(pipeline.call(|| async { Ok::<_, ()>(()) })).unwrap_err();
    assert!(error.is_rejected(), "{error:?}");
    assert_eq!((hand.now() - start, error.attempts(), limiter.waiting()), (MS(300), 0, 0));
}

/// Who is served in which order, and whom a full queue turns away.
#[test]
fn throttling_3_fifo_and_newest_first() {
    for (order, expected) in [(QueueOrder::Fifo, [0, 1, 2]), (QueueOrder::NewestFirst, [3, 2, 1])] {
        let (limiter, ..) = limiter(ConcurrencyLimitConfig::of(1).queue(3, MS(1000)).order(order));
        let mut runs = Some(limiter.try_acquire().unwrap());
        let mut wishes: Vec<(usize, Wish<'_>)> = (0..3).map(|i| (i, waits(&limiter))).collect();
        let mut last: Wish<'_> = Box::pin(limiter.acquire());
        match order {
            QueueOrder::Fifo => assert_eq!(poll(&mut last).unwrap().unwrap_err().reason(), Reason::QueueFull),
            QueueOrder::NewestFirst => {
                assert!(poll(&mut last).is_none());
                assert_eq!(poll(&mut wishes[0].1).unwrap().unwrap_err().reason(), Reason::QueueFull);
                drop(wishes.remove(0));
                wishes.push((3, last));
            }
        }
        for expected in expected {
            drop(runs.take());
            let (at, permit) =
                wishes.iter_mut().enumerate().find_map(|(at, (_, wish))| Some((at, poll(wish)?.unwrap()))).unwrap();
            assert_eq!(wishes.remove(at).0, expected, "{order:?}");
            runs = Some(permit);
        }
        assert_eq!(limiter.waiting(), 0);
    }
}

#[test]
fn throttling_3_weights_take_several_places_and_nobody_passes_a_heavy_one() {
    let (limiter, clock, _) = limiter(ConcurrencyLimitConfig::of(4));
    let heavy = limiter.weighing(3);
    let light = limiter.try_acquire().unwrap();
    let first = heavy.try_acquire().unwrap();
    assert_eq!(limiter.available(), 0);
    let mut second = waits(&heavy);
    drop(light);
    let mut third = waits(&limiter);
    assert!(limiter.try_acquire().is_err(), "somebody waits");
    drop(first);
    let second = poll(&mut second).unwrap().unwrap();
    let third = poll(&mut third).unwrap().unwrap();
    assert_eq!(limiter.available(), 0);
    drop((second, third));
    assert_eq!(limiter.available(), 4);
    assert_eq!(limiter.weighing(5).try_acquire().unwrap_err().reason(), Reason::TooLarge);
    assert_eq!(limiter.weighing(u32::MAX).try_acquire().unwrap_err().reason(), Reason::TooLarge);
    // A weight was once lost with a new name or clock.
    let renamed = limiter.weighing(3).named("heavy").with_clock(&clock);
    let _permit = renamed.try_acquire().unwrap();
    assert_eq!(renamed.available(), 1);
}

/// A heavy call that gives up was in the way of the light ones behind it.
#[test]
fn throttling_3_leaving_lets_those_behind_go() {
    let (limiter, ..) = limiter(ConcurrencyLimitConfig::of(4));
    let heavy = limiter.weighing(4);
    let _light = limiter.try_acquire().unwrap();
    let in_the_way = waits(&heavy);
    let mut behind = waits(&limiter);
    drop(in_the_way);
    assert!(poll(&mut behind).unwrap().is_ok());
}

#[test]
fn throttling_3_resize_in_use() {
    let (limiter, ..) = limiter(ConcurrencyLimitConfig::of(2));
    let heavy = limiter.weighing(2);
    let (a, b) = (limiter.try_acquire().unwrap(), limiter.try_acquire().unwrap());
    // Grow: who waits goes at once.
    let mut waiting = waits(&limiter);
    limiter.resize(3).unwrap();
    let c = poll(&mut waiting).unwrap().unwrap();
    // Shrink below what is out: it runs on, and nobody begins before enough is back.
    let mut heavy_waits = waits(&heavy);
    let mut light_waits = waits(&limiter);
    limiter.resize(1).unwrap();
    assert_eq!((limiter.available(), limiter.capacity()), (-2, 1));
    assert_eq!(poll(&mut heavy_waits).unwrap().unwrap_err().reason(), Reason::TooLarge);
    drop(a);
    drop(b);
    assert!(poll(&mut light_waits).is_none());
    drop(c);
    assert!(poll(&mut light_waits).unwrap().is_ok());
    assert_eq!(limiter.available(), 1);
    let error = limiter.resize(0).unwrap_err();
    assert_eq!((error.field(), limiter.capacity()), ("capacity", 1));
}

/// Permits are conserved over a million random cancels, panics and drops, with weights, both orders and resizes.
#[test]
fn throttling_3_permits_are_conserved_over_a_million_cancels_panics_and_drops() {
    for (seed, order) in [(1, QueueOrder::Fifo), (2, QueueOrder::NewestFirst)] {
        let (limiter, _, hand) = limiter(ConcurrencyLimitConfig::of(8).queue(16, MS(5)).order(order));
        let random = Entropy::from_seed(seed);
        let kinds: Vec<ConcurrencyLimiter> = (1..=3).map(|weight| limiter.weighing(weight)).collect();
        let mut calls: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = Vec::new();
        let mut cx = Context::from_waker(noop_waker_ref());
        let mut ends = 0;
        while ends < 500_000 {
            let pick = random.up_to(31) as usize;
            match random.up_to(15) {
                // A call begins; it will hang, end or panic after some polls.
                0..6 if calls.len() < 32 => {
                    let (limiter, mut polls, panics) = (&kinds[pick % 3], random.up_to(2), pick % 8 == 0);
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
                // One is polled.
                0..12 if pick < calls.len() => {
                    let polled = catch_unwind(AssertUnwindSafe(|| calls[pick].as_mut().poll(&mut cx)));
                    if !matches!(polled, Ok(Poll::Pending)) {
                        drop(calls.swap_remove(pick));
                        ends += 1;
                    }
                }
                // One is dropped, wherever it is.
                12..15 if pick < calls.len() => {
                    drop(calls.swap_remove(pick));
                    ends += 1;
                }
                15 if pick == 0 => limiter.resize(random.up_to(7) as u32 + 3).unwrap(),
                15 if pick == 1 => hand.advance(MS(3)),
                _ => {}
            }
            assert!(limiter.available() <= limiter.capacity().into());
        }
        calls.clear();
        assert_eq!((limiter.available(), limiter.waiting()), (limiter.capacity().into(), 0));
        assert!(limiter.weighing(limiter.capacity()).try_acquire().is_ok());
        assert_eq!(hand.next_timer(), None);
    }
}

/// The same with threads that race for the places.
#[test]
fn throttling_3_permits_are_conserved_among_threads() {
    for order in [QueueOrder::Fifo, QueueOrder::NewestFirst] {
        let (limiter, ..) = limiter(ConcurrencyLimitConfig::of(3).queue(4, MS(1000)).order(order));
        let running = std::sync::atomic::AtomicI64::new(0);
        std::thread::scope(|scope| {
            for seed in 0..4u64 {
                let (limiter, running) = (&limiter, &running);
                scope.spawn(move || {
                    use std::sync::atomic::Ordering::SeqCst;
                    let random = Entropy::from_seed(seed);
                    let limiter = limiter.weighing(seed as u32 % 2 + 1);
                    let weight = seed as i64 % 2 + 1;
                    for _ in 0..20_000 {
                        let mut wish: Wish<'_> = Box::pin(limiter.acquire());
                        let permit = (0..random.up_to(20)).find_map(|_| poll(&mut wish));
                        if let Some(Ok(permit)) = permit {
                            assert!(running.fetch_add(weight, SeqCst) + weight <= 3);
                            running.fetch_sub(weight, SeqCst);
                            drop(permit);
                        }
                    }
                });
            }
        });
        assert_eq!((limiter.available(), limiter.waiting()), (3, 0));
        assert!(limiter.weighing(3).try_acquire().is_ok());
    }
}
