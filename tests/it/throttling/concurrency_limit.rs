//! The concurrency limit.
use std::{
    future::Future,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::Mutex,
    task::Context,
    time::Duration,
};

use futures::{
    future::{FutureExt, join, join_all},
    task::noop_waker_ref,
};
use steadfast::{
    Pipeline, Reason,
    entropy::Entropy,
    testing::{ManualClock, ScriptedService},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter, QueueOrder},
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn limiter(config: ConcurrencyLimitConfig) -> (ConcurrencyLimiter, Clock, ManualClock) {
    let (clock, time) = Clock::manual();
    (ConcurrencyLimiter::builder(config).clock(&clock).build().unwrap(), clock, time)
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(noop_waker_ref())) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

// Guarantee: throttling 11.
#[test]
fn no_more_calls_run_at_once_than_the_capacity() {
    let (limiter, clock, time) = limiter(ConcurrencyLimitConfig::of(3).queue(100).max_wait(MS(60_000)));
    let service = ScriptedService::new("ok in 100ms", &clock).unwrap();
    let start = time.now();
    let answers = time.block_on(join_all((0..10).map(|_| limiter.call(|| service.call()))));
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!((service.most_running(), time.now() - start, limiter.available()), (3, MS(400), 3));
}

// Guarantee: throttling 12.
#[test]
fn a_full_queue_and_too_long_a_wait_are_different_rejections() {
    let (limiter, _, time) = limiter(ConcurrencyLimitConfig::of(1).queue(1).max_wait(MS(250)));
    let _taken = limiter.try_acquire().unwrap();
    let start = time.now();
    let (waits, refused) = time.block_on(join(limiter.acquire(), limiter.acquire()));
    let refused = refused.unwrap_err();
    assert_eq!(refused.to_string(), "rejected by the concurrency limit: queue full");
    let waited = waits.unwrap_err();
    assert_eq!(waited.reason(), Reason::WaitedTooLong { limit: MS(250) });
    assert_eq!(waited.to_string(), "rejected by the concurrency limit: waited too long (250ms)");
    assert_eq!(time.now() - start, MS(250));
}

// Guarantee: throttling 12.
#[test]
fn the_wait_is_clipped_to_the_deadline() {
    let (limiter, clock, time) = limiter(ConcurrencyLimitConfig::of(1).queue(1).max_wait(MS(5000)));
    let _taken = limiter.try_acquire().unwrap();
    let start = time.now();
    let pipeline = Pipeline::new().then(Timeout::builder(MS(300)).clock(&clock).build()).then(limiter.clone());
    let error = time.block_on(pipeline.call(|| async { Ok::<_, ()>(()) })).unwrap_err();
    assert_eq!((time.now() - start, limiter.waiting(), error.attempts()), (MS(300), 0, 0));
}

/// Returns the order in which four waiting calls are served.
fn served(order: QueueOrder) -> Vec<u32> {
    let (limiter, clock, time) = limiter(ConcurrencyLimitConfig::of(1).queue(9).max_wait(MS(60_000)).order(order));
    let log = Mutex::new(Vec::new());
    let taken = limiter.try_acquire().unwrap();
    time.block_on(async {
        let calls = join_all((1..=4).map(|i| {
            let (limiter, log, clock) = (&limiter, &log, &clock);
            async move {
                let _place = limiter.acquire().await.unwrap();
                log.lock().unwrap().push(i);
                clock.sleep(MS(1)).await;
            }
        }));
        let release = async {
            clock.sleep(MS(10)).await;
            drop(taken);
        };
        join(calls, release).await;
    });
    log.into_inner().unwrap()
}

// Guarantee: throttling 11.
#[test]
fn the_queue_is_served_in_the_configured_order() {
    assert_eq!(served(QueueOrder::Fifo), [1, 2, 3, 4]);
    assert_eq!(served(QueueOrder::NewestFirst), [4, 3, 2, 1]);
}

// Guarantee: throttling 11.
#[test]
fn newest_first_rejects_the_oldest_call_of_a_full_queue() {
    let config = ConcurrencyLimitConfig::of(1).queue(2).max_wait(MS(60_000)).order(QueueOrder::NewestFirst);
    let (limiter, ..) = limiter(config);
    let taken = limiter.try_acquire().unwrap();
    let mut calls: Vec<_> = (0..3).map(|_| Box::pin(limiter.acquire())).collect();
    for call in &mut calls {
        assert!(poll(call.as_mut()).is_none());
    }
    assert_eq!(poll(calls[0].as_mut()).unwrap().unwrap_err().reason(), Reason::QueueFull);
    drop(taken);
    assert!(poll(calls[1].as_mut()).is_none());
    assert!(poll(calls[2].as_mut()).unwrap().is_ok());
}

// Guarantee: throttling 11.
#[test]
fn no_new_call_overtakes_a_waiting_one() {
    let (limiter, ..) = limiter(ConcurrencyLimitConfig::of(2).queue(9).max_wait(MS(1000)));
    let one = limiter.try_acquire().unwrap();
    let large = limiter.weighing(2);
    let mut waits = pin!(large.acquire());
    assert!(poll(waits.as_mut()).is_none());
    assert_eq!(limiter.try_acquire().unwrap_err().reason(), Reason::QueueFull);
    drop(one);
    assert!(poll(waits.as_mut()).unwrap().is_ok());
}

// Guarantee: throttling 11.
#[test]
fn a_weighted_call_takes_several_permits() {
    let (limiter, _, time) = limiter(ConcurrencyLimitConfig::of(5).queue(0).max_wait(MS(0)));
    let heavy = limiter.weighing(3);
    let permit = heavy.try_acquire().unwrap();
    assert!(heavy.try_acquire().is_err());
    assert_eq!(limiter.available(), 2);
    drop(permit);
    assert_eq!(time.block_on(limiter.weighing(6).acquire()).unwrap_err().reason(), Reason::TooLarge);
    assert_eq!(limiter.weighing(6).try_acquire().unwrap_err().reason(), Reason::TooLarge);
}

// Guarantee: throttling 11, 13, 19.
#[test]
fn the_capacity_changes_while_in_use() {
    let (limiter, ..) = limiter(ConcurrencyLimitConfig::of(1).queue(9).max_wait(MS(1000)));
    let first = limiter.try_acquire().unwrap();
    let mut second = pin!(limiter.acquire());
    assert!(poll(second.as_mut()).is_none());
    limiter.reconfigure(limiter.config().capacity(3)).unwrap();
    let second = poll(second.as_mut()).unwrap().unwrap();
    assert_eq!((limiter.capacity(), limiter.available()), (3, 1));
    limiter.reconfigure(limiter.config().capacity(1)).unwrap();
    assert_eq!(limiter.available(), -1);
    drop(first);
    assert!(limiter.try_acquire().is_err());
    drop(second);
    assert!(limiter.try_acquire().is_ok());
    assert_eq!(limiter.reconfigure(limiter.config().capacity(0)).unwrap_err().field(), "capacity");
    assert_eq!(limiter.capacity(), 1);
}

// Guarantee: throttling 12.
#[test]
fn a_waiting_call_that_no_longer_fits_is_rejected() {
    let (limiter, ..) = limiter(ConcurrencyLimitConfig::of(4).queue(9).max_wait(MS(1000)));
    let _place = limiter.try_acquire().unwrap();
    let large = limiter.weighing(4);
    let mut waits = pin!(large.acquire());
    assert!(poll(waits.as_mut()).is_none());
    limiter.reconfigure(limiter.config().capacity(3)).unwrap();
    assert_eq!(poll(waits.as_mut()).unwrap().unwrap_err().reason(), Reason::TooLarge);
}

// Guarantee: throttling 13.
#[test]
fn a_panic_gives_its_permit_back() {
    let (limiter, _, time) = limiter(ConcurrencyLimitConfig::of(1));
    let panics = limiter.call(|| async { if true { panic!("boom") } else { Ok::<(), ()>(()) } });
    assert!(time.block_on(AssertUnwindSafe(panics).catch_unwind()).is_err());
    assert_eq!(limiter.available(), 1);
}

// Guarantee: throttling 13.
/// A million calls that end, panic, or are dropped while they wait or run.
#[test]
fn permits_are_conserved_over_a_million_random_ends() {
    let draw = Entropy::from_seed(11);
    for order in [QueueOrder::Fifo, QueueOrder::NewestFirst] {
        let (limiter, ..) = limiter(ConcurrencyLimitConfig::of(4).queue(8).max_wait(MS(1000)).order(order));
        let limiters = [limiter.clone(), limiter.weighing(2), limiter.weighing(3)];
        let mut waiting: Vec<Pin<Box<dyn Future<Output = _>>>> = Vec::new();
        let mut running = Vec::new();
        for _ in 0..500_000 {
            match draw.up_to(9) {
                0..=3 => {
                    let limiter = &limiters[draw.up_to(2) as usize];
                    waiting.push(Box::pin(limiter.acquire()));
                }
                4 | 5 if !waiting.is_empty() => {
                    let i = draw.up_to(waiting.len() as u64 - 1) as usize;
                    if let Some(result) = poll(waiting[i].as_mut()) {
                        drop(waiting.swap_remove(i));
                        running.extend(result.ok());
                    }
                }
                6 if !waiting.is_empty() => {
                    drop(waiting.swap_remove(draw.up_to(waiting.len() as u64 - 1) as usize));
                }
                7 | 8 if !running.is_empty() => {
                    drop(running.swap_remove(draw.up_to(running.len() as u64 - 1) as usize));
                }
                9 if !running.is_empty() && draw.up_to(99) == 0 => {
                    let permit = running.pop();
                    let panics = AssertUnwindSafe(move || {
                        let _permit = permit;
                        std::panic::resume_unwind(Box::new("boom"));
                    });
                    assert!(std::panic::catch_unwind(panics).is_err());
                }
                _ => {}
            }
            if waiting.len() > 20 {
                waiting.clear();
            }
        }
        waiting.clear();
        running.clear();
        assert_eq!((limiter.available(), limiter.waiting()), (4, 0), "{order:?}");
    }
}

// Guarantee: throttling 13.
#[test]
fn permits_are_conserved_between_threads() {
    let limiter = ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(3).queue(64).max_wait(MS(60_000))).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..32u64)
            .map(|i| {
                let limiter = limiter.clone();
                tokio::spawn(async move {
                    let draw = Entropy::from_seed(i);
                    for _ in 0..500 {
                        let mut call = Box::pin(limiter.call(async || {
                            tokio::task::yield_now().await;
                            Ok::<_, ()>(())
                        }));
                        if draw.up_to(3) == 0 {
                            let _ = futures::poll!(&mut call); // and is dropped, wherever it is
                        } else {
                            let _ = call.await;
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!((limiter.available(), limiter.waiting()), (3, 0));
}
