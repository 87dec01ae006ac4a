//! The adaptive concurrency limit, alone and in a queue listener.
use std::{
    cell::{Cell, RefCell},
    future::pending,
    pin::pin,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Waker},
    thread,
    time::Duration,
};

use steadfast::{
    FailureKind, Pipeline, Verdict,
    entropy::Entropy,
    queue::{InMemoryQueue, Message, Queue, QueueExt},
    queue_listener::{Disposition, QueueListener, QueueListenerConfig, Work},
    throttling::{Adaptation, AdaptiveLimitConfig, AdaptiveLimiter, Quota, RateLimitConfig, RateLimiter},
    time::{Clock, ManualClock},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;

fn limiter(config: AdaptiveLimitConfig) -> (AdaptiveLimiter, Clock, ManualClock) {
    let (clock, time) = Clock::manual();
    (AdaptiveLimiter::builder(config).clock(&clock).entropy(&Entropy::from_seed(1)).build().unwrap(), clock, time)
}

/// Runs `callers` callers for `time`, each of which makes one call after another.
async fn load(limiter: &AdaptiveLimiter, clock: &Clock, callers: usize, time: Duration, latency: Duration) {
    let end = clock.now() + time;
    let caller = async || {
        while clock.now() < end {
            let call = limiter.call(async || {
                clock.sleep(latency).await;
                Ok::<_, ()>(())
            });
            let _ = call.await;
        }
    };
    futures::future::join_all((0..callers).map(|_| caller())).await;
}

// Guarantee: throttling 14.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn the_limit_does_not_grow_while_the_caller_is_the_bottleneck() {
    for by in [Adaptation::Gradient, Adaptation::Aimd] {
        let (limiter, clock, time) = limiter(AdaptiveLimitConfig::default().by(by).limits(10, 1, 1000));
        time.block_on(load(&limiter, &clock, 1, S(600), MS(10)));
        assert_eq!(limiter.limit(), 10, "{by:?}");
        // With enough callers the limit does grow.
        time.block_on(load(&limiter, &clock, 100, S(60), MS(10)));
        assert!(limiter.limit() > 90, "{by:?}: {}", limiter.limit());
        assert!(limiter.limit() <= 220, "{by:?}: at most twice what is asked for: {}", limiter.limit());
    }
}

// Guarantee: throttling 14.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn the_limit_recovers_from_a_lasting_shift_of_latency() {
    let (limiter, clock, time) = limiter(AdaptiveLimitConfig::default().limits(50, 1, 200));
    time.block_on(load(&limiter, &clock, 100, S(60), MS(10)));
    let before = limiter.limit();
    time.block_on(load(&limiter, &clock, 100, S(20), MS(100)));
    assert!(before > 90 && limiter.limit() > 20, "{} of {before}: measured again, at once", limiter.limit());
    time.block_on(load(&limiter, &clock, 100, S(60), MS(100)));
    assert!(limiter.limit() > 90, "{} of {before}", limiter.limit());
}

// Guarantee: throttling 14.
#[test]
fn dropped_calls_and_calls_of_an_earlier_limit_are_ignored() {
    let config = AdaptiveLimitConfig::default().by(Adaptation::Aimd).limits(20, 1, 100).window(MS(1)).min_calls(1);
    let (limiter, clock, time) = limiter(config);
    let overloaded = |result: &Result<(), ()>| match result {
        Ok(()) => Verdict::success(),
        Err(()) => Verdict::failure(FailureKind::Overloaded),
    };
    let pipeline = Pipeline::new().then(limiter.clone()).classify(overloaded);
    // Twenty calls fail together: the limit falls once, not by 0.9 to the power of twenty.
    let fails = || {
        pipeline.call(async || {
            clock.sleep(MS(10)).await;
            Err::<(), ()>(())
        })
    };
    time.block_on(futures::future::join_all((0..20).map(|_| fails())));
    assert_eq!(limiter.limit(), 18);
    for _ in 0..100 {
        let dropped = async {
            tokio::select! { biased; _ = fails() => {}, () = clock.sleep(MS(5)) => {} }
        };
        time.block_on(dropped);
    }
    assert_eq!((limiter.limit(), limiter.in_flight()), (18, 0));
}

// Guarantee: throttling 19.
#[test]
fn invalid_settings_are_refused_with_the_field_s_name() {
    let config = AdaptiveLimitConfig::default();
    for (config, field) in [
        (config.limits(1, 0, 2), "min"),
        (config.limits(3, 1, 2), "initial"),
        (config.window(S(0)).min_calls(1), "window"),
        (config.window(S(1)).min_calls(0), "min_calls"),
        (config.remeasure(S(0)), "remeasure"),
    ] {
        assert_eq!(AdaptiveLimiter::new(config).unwrap_err().field(), field);
    }
}

/// A service that serves a fixed number of calls at once, while more wait for their turn.
struct Service {
    clock: Clock,
    permits: tokio::sync::Semaphore,
    /// Milliseconds.
    takes: AtomicU64,
    inside: AtomicU32,
}

impl Service {
    async fn serve(&self) -> Result<(), String> {
        self.inside.fetch_add(1, SeqCst);
        let _counts = Leaves(&self.inside);
        let _permit = self.permits.acquire().await.unwrap();
        self.clock.sleep(MS(self.takes.load(SeqCst))).await;
        Ok(())
    }
}

struct Leaves<'a>(&'a AtomicU32);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

// Guarantee: queue_listener 12.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn when_the_service_slows_down_tenfold_concurrency_settles_within_10_s_and_recovers_with_it() {
    let (limiter, clock, time) = limiter(AdaptiveLimitConfig::default().limits(10, 1, 100).queue(1000).max_wait(S(60)));
    let service = Service {
        clock: clock.clone(),
        permits: tokio::sync::Semaphore::new(20),
        takes: AtomicU64::new(10),
        inside: AtomicU32::new(0),
    };
    let pipeline = Pipeline::new().then(limiter.clone());
    let queue = Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
    for _ in 0..300 {
        time.block_on(queue.send((0..1000).map(|_| Message::new("x")).collect())).unwrap();
    }
    let listener = QueueListener::builder(queue.clone(), QueueListenerConfig::default().tasks(64, 64))
        .clock(&clock)
        .build()
        .unwrap();
    let run =
        listener.run(clock.sleep(S(90)), async |_: Work| Disposition::of_call(pipeline.call(|| service.serve()).await));
    let samples = RefCell::new(Vec::new());
    let script = async {
        // The limit in each second: 30 s healthy, 30 s slow, 30 s healthy.
        for second in 0..90 {
            service.takes.store(if (30..60).contains(&second) { 100 } else { 10 }, SeqCst);
            clock.sleep(S(1)).await;
            samples.borrow_mut().push(limiter.limit());
            assert!(service.inside.load(SeqCst) <= 100);
        }
    };
    time.block_on(async { tokio::join!(run, script).0 }).unwrap();
    let samples = samples.into_inner();
    let of = |seconds: std::ops::Range<usize>| {
        let some = &samples[seconds];
        (*some.iter().min().unwrap(), *some.iter().max().unwrap())
    };
    let (well, slow, again) = (of(10..30), of(40..60), of(70..90));
    // As many as the service serves at once and may queue; the number is the same while it is slow.
    for (what, (least, most)) in [("well", well), ("settled", slow), ("recovered", again)] {
        assert!(least >= 20 && most <= 45 && most - least <= 4, "{what}: {samples:?}");
    }
    // In between the limit is reduced for some seconds.
    assert!(samples[30..35].iter().any(|limit| *limit < 20), "{samples:?}");
    assert_eq!(listener.state().failed, 0);
}

// Guarantee: queue_listener 12.
#[test]
fn a_rate_limit_makes_an_even_load_of_any_arrival_curve() {
    let (clock, time) = Clock::manual();
    let rate = RateLimiter::builder(RateLimitConfig::from(Quota::per_second(100).burst(1)).max_wait(S(600)))
        .clock(&clock)
        .build()
        .unwrap();
    let pipeline = Pipeline::new().then(rate);
    let queue = Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
    let listener = QueueListener::builder(queue.clone(), Default::default()).clock(&clock).build().unwrap();
    let (served, by_second) = (AtomicU32::new(0), Mutex::new(vec![0; 60]));
    let start = clock.now();
    let run = listener.run(clock.sleep(S(59)), async |_: Work| {
        let call = pipeline.call(async || {
            served.fetch_add(1, SeqCst);
            by_second.lock().unwrap()[(clock.now() - start).as_secs() as usize] += 1;
            Ok::<_, String>(())
        });
        Disposition::of_call(call.await)
    });
    let send = async {
        for _ in 0..5 {
            queue.send((0..1000).map(|_| Message::new("x")).collect()).await.unwrap();
            clock.sleep(S(2)).await;
        }
    };
    time.block_on(async { tokio::join!(run, send).0 }).unwrap();
    assert_eq!(served.load(SeqCst), 5000);
    assert!(by_second.lock().unwrap()[1..49].iter().all(|n| (99..=101).contains(n)), "{by_second:?}");
}

// Guarantee: queue_listener 13.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn past_its_bound_a_queue_says_that_it_is_full_and_nothing_accepted_is_lost() {
    let (clock, time) = Clock::manual();
    let queue = Arc::new(InMemoryQueue::builder("jobs").bounded(5_000).clock(&clock).build());
    let config = QueueListenerConfig::default().tasks(1, 64).batch(100);
    let listener = QueueListener::builder(queue.clone(), config).clock(&clock).build().unwrap();
    // The handler can process 1,280 a second; 1,000 a second arrive, and 5,000 a second for 10 s.
    let run = listener.run(clock.sleep(S(120)), async |_| clock.sleep(MS(50)).await);
    let (accepted, full) = (Cell::new(0u64), Cell::new(0u64));
    let send = async {
        for tick in 0..3000u64 {
            let n = if (1000..1500).contains(&tick) { 100 } else { 20 };
            match queue.send((0..n).map(|_| Message::new("x")).collect()).await {
                Ok(ids) => accepted.set(accepted.get() + ids.len() as u64),
                Err(error) => {
                    use steadfast::port::{Failure, PortErrorKind};
                    assert_eq!(error.backend().unwrap().kind(), PortErrorKind::Full);
                    full.set(full.get() + n);
                }
            }
            assert!(queue.depth().await.unwrap().total() <= 5_000, "bounded");
            clock.sleep(MS(20)).await;
        }
    };
    time.block_on(async { tokio::join!(run, send).0 }).unwrap();
    assert!(full.get() > 0);
    assert_eq!(listener.state().handled, accepted.get());
    assert_eq!(time.block_on(queue.depth()).unwrap().total(), 0);
    assert!(time.block_on(queue.receive_one(S(1))).unwrap().is_none());
    assert_eq!(time.block_on(queue.dead_letters().unwrap().depth()).unwrap().total(), 0);
}

#[test]
fn after_concurrent_changes_the_queue_is_that_of_the_configuration() {
    let config = AdaptiveLimitConfig::default().min(1).max(1).initial(1);
    let (limiter, ..) = limiter(config);
    let (configs, together) = ([config.queue(0), config.queue(1)], Barrier::new(2));
    let change = |config| {
        together.wait();
        limiter.reconfigure(config).unwrap();
        together.wait();
    };
    let mut wrong = 0;
    thread::scope(|scope| {
        let rounds = 0..5_000;
        let theirs = rounds.clone();
        scope.spawn(|| theirs.for_each(|_| change(configs[1])));
        for _ in rounds {
            change(configs[0]);
            let never = || pending::<Result<(), ()>>();
            let (mut runs, mut waits) = (pin!(limiter.call(never)), pin!(limiter.call(never)));
            let mut cx = Context::from_waker(Waker::noop());
            let is_pending =
                [runs.as_mut().poll(&mut cx), waits.as_mut().poll(&mut cx)].map(|polled| polled.is_pending());
            wrong += usize::from(is_pending != [true, limiter.config().queue > 0]);
        }
    });
    assert_eq!(wrong, 0);
}
