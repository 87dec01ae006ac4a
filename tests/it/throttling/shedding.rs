//! Calls are shed by priority while a gauge is high, and limits reserve permits for important
//! calls.
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::task::noop_waker_ref;
use proptest::prelude::*;
use steadfast::{
    Cause, Outcome, Pipeline, PolicyKind,
    Priority::{self, Critical, High, Low, Normal},
    Reason, Rejected,
    call::{Attempt, AttemptInfo, CallContext, Operation, Policy, not_idempotent, with_priority},
    entropy::Entropy,
    retry::{Retry, RetryConfig},
    testing::{ManualClock, ScriptedService, drop_at_every_await},
    throttling::{
        AdaptiveLimitConfig, AdaptiveLimiter, Gauge, PriorityShares, Shedder, ShedderConfig, ThrottlingEvent,
    },
    time::Clock,
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;

/// Settings with one gauge, which is 0 at the soft limit and 1 at the hard one.
fn config() -> ShedderConfig {
    ShedderConfig::default().limit("load", 0.0, 1.0)
}

fn shedder(config: ShedderConfig) -> (Shedder, Gauge, Clock, ManualClock) {
    let ((clock, time), load) = (Clock::manual(), Gauge::new());
    let shedder = Shedder::builder(config)
        .name("front")
        .clock(&clock)
        .entropy(&Entropy::from_seed(1))
        .gauge("load", load.clone())
        .build()
        .unwrap();
    (shedder, load, clock, time)
}

fn shares(shedder: &Shedder) -> [f64; 4] {
    Priority::ALL.map(|priority| shedder.shed_share(priority))
}

// Guarantee: throttling 17.
#[test]
fn the_lowest_priority_is_shed_first_and_the_minimum_priority_never() {
    let table = [
        (-1.0, [0.0, 0.0, 0.0, 0.0]),
        (0.0, [0.0, 0.0, 0.0, 0.0]),
        (0.25, [0.75, 0.0, 0.0, 0.0]),
        (0.5, [1.0, 0.5, 0.0, 0.0]),
        (0.75, [1.0, 1.0, 0.25, 0.0]),
        (1.0, [1.0, 1.0, 1.0, 0.0]),
        (f64::INFINITY, [1.0, 1.0, 1.0, 0.0]),
    ];
    for (value, expected) in table {
        let (shedder, load, ..) = shedder(config());
        load.set(value);
        assert_eq!(shares(&shedder), expected, "at {value}");
        for (priority, share) in Priority::ALL.into_iter().zip(expected) {
            let shed = (0..2_000).filter(|_| shedder.try_acquire(priority).is_err()).count() as f64;
            assert!((shed / 2_000.0 - share).abs() < 0.04, "{shed} of 2,000 {priority} calls at {value}");
        }
    }
    // The settings name the lowest priority that is never shed.
    let (shedder, load, ..) = shedder(config().min_priority(High));
    load.set(1.0);
    assert_eq!(shares(&shedder), [1.0, 1.0, 0.0, 0.0]);
}

// Guarantee: throttling 17.
#[test]
fn shedding_rises_at_once_and_falls_slowly_after_a_while() {
    let (shedder, load, _, time) = shedder(config().sustain(S(1)).recovery(S(9)));
    load.set(1.0);
    assert_eq!(shedder.shed_share(High), 1.0, "at once");
    load.set(0.0);
    for _ in 0..10 {
        assert_eq!(shares(&shedder), [1.0, 1.0, 1.0, 0.0], "sustained for a second");
        time.advance(MS(100));
    }
    // Nine seconds from everything to nothing: three for each class, the highest first.
    let mut before = 3.0;
    for tick in 0..=90 {
        let cut: f64 = shares(&shedder).iter().sum();
        assert!((cut - (3.0 - f64::from(tick) / 30.0)).abs() < 1e-6, "{cut} after {tick} ticks");
        assert!(cut <= before);
        before = cut;
        time.advance(MS(100));
    }
    assert_eq!(shares(&shedder), [0.0; 4]);
}

// Guarantee: throttling 17.
/// A gauge that oscillates around its limit does not make the shedding oscillate.
#[test]
fn a_swinging_gauge_is_met_by_steady_shedding() {
    let (shedder, load, _, time) = shedder(config());
    let mut seen = Vec::new();
    for tick in 0..200 {
        load.set(if tick % 2 == 0 { 0.5 } else { -0.5 });
        seen.push(shedder.shed_share(Normal));
        time.advance(MS(100));
    }
    assert!(seen.iter().all(|share| (share - 0.5).abs() < 1e-9), "{seen:?}");
}

proptest! {
    // Guarantee: throttling 17.
    /// For any course of the gauge: never less than it demands, no rise without demand, no fall
    /// while sustained, none that is too fast, and nothing in the end.
    #[test]
    fn hysteresis_holds_for_every_course_of_the_gauge(
        hold in 0u64..800, recover in 100u64..5_000, course in prop::collection::vec((-1.0f64..1.5, 0u64..400), 1..100)
    ) {
        let (shedder, load, _, time) = shedder(config().sustain(MS(hold)).recovery(MS(recover)));
        let cut = || shares(&shedder).iter().sum::<f64>();
        let (mut before, mut risen, mut sampled) = (0.0f64, time.now(), time.now());
        for (value, ms) in course {
            load.set(value);
            time.advance(MS(100 + ms)); // so that it is read again
            let (now, next) = (time.now(), cut());
            let wanted = value.clamp(0.0, 1.0) * 3.0;
            prop_assert!(next >= wanted - 1e-9);
            if wanted >= before {
                prop_assert!((next - wanted).abs() < 1e-9, "up at once");
                risen = now;
            } else {
                let free = now - sampled.max(risen + MS(hold));
                let fall = 3.0 * free.as_secs_f64() / MS(recover).as_secs_f64();
                prop_assert!((next - wanted.max(before - fall)).abs() < 1e-6, "{} after {} by {} to {}", next, before, fall, wanted);
            }
            (before, sampled) = (next, now);
        }
        load.set(0.0);
        time.advance(MS(100));
        cut();
        time.advance(MS(100 + hold + recover));
        prop_assert_eq!(cut(), 0.0);
    }
}

// Guarantee: throttling 17.
#[test]
fn the_gauge_with_the_highest_pressure_decides() {
    let (clock, time) = Clock::manual();
    let (cpu, depth) = (Gauge::new(), Arc::new(AtomicU32::new(0)));
    let config =
        ShedderConfig::default().limit("cpu", 0.7, 0.9).limit("depth", 1_000.0, 5_000.0).limit("idle", -0.4, -0.1);
    let read = depth.clone();
    let shedder = Shedder::builder(config)
        .name("front")
        .clock(&clock)
        .gauge("cpu", cpu.clone())
        .gauge("depth", move || f64::from(read.load(SeqCst)))
        .build()
        .unwrap();
    let cut = || {
        time.advance(S(10));
        let _ = shares(&shedder); // the fall since the last reading
        time.advance(S(10));
        shares(&shedder).iter().sum::<f64>()
    };
    assert_eq!(cut(), 0.0);
    depth.store(3_000, SeqCst);
    assert_eq!(cut(), 1.5);
    cpu.set(0.85);
    assert!((cut() - 2.25).abs() < 1e-9);
    depth.store(5_000, SeqCst);
    assert_eq!(cut(), 3.0);
    // An unknown gauge is left out; without a known one nothing changes.
    depth.store(0, SeqCst);
    cpu.set(f64::NAN);
    assert_eq!(cut(), 0.0);
}

#[test]
fn a_gauge_of_the_same_name_replaces_the_earlier_one() {
    let shedder = Shedder::builder(config()).gauge("load", || 0.0).gauge("load", || 9.0).build().unwrap();
    assert_eq!(shedder.shed_share(High), 1.0);
}

// Guarantee: throttling 19.
#[test]
fn invalid_settings_are_refused_with_the_field_s_name() {
    let refused = [
        (config().limit("load", 0.9, 0.7), "limits.load.hard"),
        (config().limit("load", 0.9, 0.9), "limits.load.hard"),
        (config().limit("load", f64::NAN, 0.9), "limits.load.soft"),
        (config().limit("load", 0.0, f64::INFINITY), "limits.load.hard"),
        (config().sample_every(Duration::ZERO), "sample_every"),
        (config().sustain(S(1)).recovery(Duration::ZERO), "recovery"),
        (config().min_priority(Low), "min_priority"),
    ];
    for (config, field) in refused {
        assert_eq!(Shedder::new(config).unwrap_err().field(), field);
    }
    let unknown = Shedder::builder(config()).gauge("lod", || 0.0).build().unwrap_err();
    assert_eq!(unknown.field(), "limits.lod");
    assert!(toml::from_str::<ShedderConfig>("limits.cpu = { soft = 0.7, hart = 0.9 }").is_err());
}

// Guarantee: throttling 17.
/// One call reads the gauge when a reading is due, and none in between.
#[test]
fn a_gauge_is_read_once_per_interval() {
    let ((clock, time), reads) = (Clock::manual(), Arc::new(AtomicU32::new(0)));
    let counter = reads.clone();
    let shedder = Shedder::builder(config())
        .clock(&clock)
        .gauge("load", move || f64::from(counter.fetch_add(1, SeqCst)) * 0.0)
        .build()
        .unwrap();
    for expected in 1..=20 {
        (0..100).for_each(|_| shedder.try_acquire(Low).unwrap());
        assert_eq!(reads.load(SeqCst), expected);
        time.advance(MS(99));
        shedder.try_acquire(Low).unwrap();
        assert_eq!(reads.load(SeqCst), expected, "not before its time");
        time.advance(MS(1));
    }
}

// Guarantee: throttling 17.
/// A gauge is foreign code: it may panic, or call the shedder itself.
#[test]
fn a_gauge_may_panic_or_call_the_shedder() {
    let ((clock, time), broken) = (Clock::manual(), Arc::new(AtomicBool::new(true)));
    let (fault, own) = (broken.clone(), Arc::new(OnceLock::<Shedder>::new()));
    let inner = own.clone();
    let reads = move || {
        assert!(!fault.load(SeqCst), "the gauge is broken");
        1.0 - inner.get().map_or(0.0, |shedder| shedder.shed_share(Critical))
    };
    let shedder = Shedder::builder(config()).clock(&clock).gauge("load", reads).build().unwrap();
    let _ = own.set(shedder.clone());
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| shedder.try_acquire(Low)));
    assert!(panics.is_err());
    assert!(shedder.try_acquire(Low).is_ok(), "later calls are not affected");
    broken.store(false, SeqCst);
    time.advance(MS(100));
    assert!(shedder.try_acquire(High).is_err(), "the next due call reads it");
}

// Guarantee: throttling 17.
#[test]
fn as_a_policy_a_shedder_uses_the_call_s_priority() {
    let (shedder, load, _, time) = shedder(config());
    let pipeline = Pipeline::new().then(shedder.clone());
    load.set(0.5);
    let call = |priority| time.block_on(pipeline.call(with_priority(priority, async || Ok::<_, ()>(priority))));
    assert_eq!((call(High).unwrap(), call(Critical).unwrap()), (High, Critical));
    let Cause::Rejected(rejected) = call(Low).unwrap_err().into_cause() else { panic!("shed") };
    assert_eq!((rejected.by(), rejected.name()), (PolicyKind::Shed, Some("front")));
    assert_eq!(rejected.reason(), Reason::Shed { priority: Low });
    assert!(rejected.is_shed());
    assert_eq!(rejected.retry_after(), Some(MS(200)), "shedding does not decrease before");
    // A call without a priority is normal.
    load.set(2.0 / 3.0);
    time.advance(MS(100));
    assert!(time.block_on(pipeline.call(async || Ok::<_, ()>(()))).unwrap_err().is_rejected());
    // The priority travels inwards; a call without a pipeline is normal too.
    assert!(time.block_on(shedder.call(async || Ok::<_, ()>(()))).unwrap_err().is_rejected());
    assert!(time.block_on(shedder.call(with_priority(High, async || Ok::<_, ()>(())))).is_ok());
}

// Guarantee: throttling 17.
#[test]
fn events_report_when_shedding_begins_and_ends() {
    let (shedder, load, clock, time) = shedder(config());
    let mut events = shedder.events();
    // By a task of its own while no calls come.
    let shutdown = clock.sleep(S(20));
    let course = async {
        for (at, value) in [(5, 0.4), (6, 0.9), (7, 0.0), (14, 0.1)] {
            clock.sleep_until(steadfast::time::Instant::default() + S(at)).await;
            load.set(value);
        }
    };
    let start = time.now();
    time.block_on(async { futures::join!(shedder.run(shutdown), course) });
    assert_eq!(time.now() - start, S(20), "the task ends with its shutdown");
    let sent: Vec<_> =
        std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| (event.number, event.what)).collect();
    let (began, ended) = (ThrottlingEvent::SheddingBegan, ThrottlingEvent::SheddingEnded);
    assert_eq!(sent, [(1, began), (2, ended), (3, began)]);
}

#[test]
fn every_future_of_a_shedder_can_be_dropped() {
    let (shedder, load, clock, time) = shedder(config());
    let service = ScriptedService::new("ok in 1s", &clock).unwrap();
    drop_at_every_await(&time, || shedder.call(|| service.call()), |_| assert_eq!(service.running(), 0));
    load.set(0.2);
    drop_at_every_await(
        &time,
        || shedder.run(clock.sleep(MS(350))),
        |polls| assert!(polls == 0 || shedder.shed_share(Low) > 0.5, "calls go on reading the gauge"),
    );
}

#[test]
fn explain_warns_of_narrow_limits_and_missing_gauges() {
    let explain = |shedder: Shedder| Pipeline::new().then(shedder).explain().to_string();
    let (good, ..) = shedder(config());
    assert!(!explain(good.clone()).contains("warning"), "{}", explain(good));
    assert!(explain(Shedder::new(config()).unwrap()).contains("no gauge is watched"));
    let narrow = Shedder::builder(config().limit("load", 0.9, 0.91)).gauge("load", || 0.0).build().unwrap();
    assert!(explain(narrow).contains("no head-room"));
    let forgotten = Shedder::builder(config().limit("cpu", 0.7, 0.9)).gauge("load", || 0.0).build().unwrap();
    assert!(explain(forgotten).contains("`cpu`, which is not watched"));
}

/// Returns a limiter of a fixed limit, with shares.
fn limiter(capacity: u32, shares: PriorityShares) -> (AdaptiveLimiter, ManualClock) {
    let (clock, time) = Clock::manual();
    let config =
        AdaptiveLimitConfig::default().limits(capacity, capacity, capacity).queue(64).max_wait(S(3600)).shares(shares);
    (AdaptiveLimiter::builder(config).clock(&clock).build().unwrap(), time)
}

type Call<'a> = Pin<Box<dyn Future<Output = Option<Rejected>> + 'a>>;

/// Begins a call that never ends by itself.
fn call(limiter: &AdaptiveLimiter, priority: Priority) -> Call<'_> {
    Box::pin(async move {
        match limiter.call(with_priority(priority, std::future::pending::<Result<(), ()>>)).await {
            Err(error) => match error.into_cause() {
                Cause::Rejected(rejected) => Some(rejected),
                _ => None,
            },
            Ok(()) => None,
        }
    })
}

fn poll(call: &mut Call<'_>) -> Poll<Option<Rejected>> {
    call.as_mut().poll(&mut Context::from_waker(noop_waker_ref()))
}

// Guarantee: throttling 15.
/// A call that was shed once gave back a permit that it had never had, which removed the limit.
#[test]
fn a_call_beyond_its_share_is_shed_and_holds_nothing() {
    let (limiter, _) = limiter(10, PriorityShares::default());
    let mut running: Vec<Call<'_>> = Vec::new();
    for (priority, most) in [(Low, 5), (Normal, 8), (High, 10)] {
        while limiter.in_flight() < most {
            let mut one = call(&limiter, priority);
            assert!(poll(&mut one).is_pending(), "{priority} beside {}", running.len());
            running.push(one);
        }
        for lower in Priority::ALL.into_iter().filter(|p| *p <= priority && *p < High) {
            for _ in 0..100 {
                let Poll::Ready(Some(rejected)) = poll(&mut call(&limiter, lower)) else { panic!("shed") };
                assert_eq!(rejected.reason(), Reason::Shed { priority: lower });
                assert!(rejected.is_shed());
                assert_eq!(limiter.in_flight(), most);
            }
        }
    }
    // Calls with the whole limit wait for a permit.
    let mut waits = call(&limiter, High);
    assert!(poll(&mut waits).is_pending());
    assert_eq!((limiter.waiting(), limiter.in_flight(), limiter.load()), (1, 10, 1.0));
    drop(running.pop());
    assert!(poll(&mut waits).is_pending());
    assert_eq!((limiter.waiting(), limiter.in_flight()), (0, 10), "it runs");
}

proptest! {
    // Guarantee: throttling 15.
    /// Compared with two numbers and a queue.
    #[test]
    fn shares_equal_a_count_of_running_and_waiting_calls(
        capacity in 1u32..12, low in 0.01f64..0.6, more in 0.0f64..0.4,
        steps in prop::collection::vec((prop::bool::ANY, 0usize..4, any::<prop::sample::Index>()), 1..120)
    ) {
        let shares = PriorityShares::new(low, low + more, 1.0);
        let (limiter, _) = limiter(capacity, shares);
        let own = [low, low + more, 1.0, 1.0].map(|share| ((f64::from(capacity) * share).round() as usize).max(1));
        let mut calls: Vec<Call<'_>> = Vec::new();
        // The first calls run; the others wait in order of arrival.
        let running = |calls: &Vec<Call<'_>>| calls.len().min(capacity as usize);
        for (begins, priority, which) in steps {
            if begins {
                let mut one = call(&limiter, Priority::ALL[priority]);
                // A call with the whole limit waits, and no call overtakes a waiting one.
                let waits = calls.len() >= capacity as usize;
                let admitted = if priority >= 2 { true } else { !waits && running(&calls) < own[priority] };
                prop_assert_eq!(poll(&mut one).is_pending(), admitted);
                if admitted {
                    calls.push(one);
                }
            } else if !calls.is_empty() {
                drop(calls.remove(which.index(calls.len())));
                calls.iter_mut().for_each(|call| assert!(poll(call).is_pending()));
            }
            prop_assert_eq!(limiter.in_flight() as usize, running(&calls));
            prop_assert_eq!(limiter.waiting(), calls.len() - running(&calls));
        }
        drop(calls);
        prop_assert_eq!((limiter.in_flight(), limiter.waiting()), (0, 0));
    }
}

// Guarantee: throttling 19.
#[test]
fn shares_are_refused_where_a_lower_priority_has_more() {
    let refused = [
        (PriorityShares::new(0.6, 0.5, 1.0), "shares.normal"),
        (PriorityShares::new(0.5, 1.0, 0.9), "shares.high"),
        (PriorityShares::new(-0.1, 0.5, 1.0), "shares.low"),
        (PriorityShares::new(0.1, f64::NAN, 1.0), "shares.normal"),
        (PriorityShares::new(0.1, 0.5, 1.1), "shares.high"),
    ];
    for (shares, field) in refused {
        let error = AdaptiveLimiter::new(AdaptiveLimitConfig::default().shares(shares)).unwrap_err();
        assert_eq!(error.field(), field);
    }
    let all = AdaptiveLimiter::new(AdaptiveLimitConfig::default().shares(PriorityShares::new(1.0, 1.0, 1.0))).unwrap();
    assert!(Pipeline::new().then(all).explain().to_string().contains("reserve nothing"));
}

/// A policy that records the priority of its calls.
#[derive(Clone, Default)]
struct Sees(Arc<Mutex<Vec<Priority>>>);

impl Policy for Sees {
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        self.0.lock().unwrap().push(cx.priority());
        inner.attempt(cx).await
    }
}

// Guarantee: throttling 15, 17.
#[test]
fn a_priority_travels_inwards_with_its_call() {
    let ((clock, time), sees) = (Clock::manual(), Sees::default());
    let seen = || std::mem::take(&mut *sees.0.lock().unwrap());
    let retry =
        || Retry::builder(RetryConfig::default().idempotent(true).max_attempts(3)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(retry()).then(sees.clone());
    let works = async || Ok::<_, ()>(());
    time.block_on(async {
        let _ = pipeline.call(works).await;
        assert_eq!(seen(), [Normal], "a call without a priority");
        let _ = pipeline.call(with_priority(Low, async || Err::<(), _>(()))).await;
        assert_eq!(seen(), [Low; 3], "each attempt");
        let _ = pipeline.call(with_priority(High, not_idempotent(works))).await;
        let _ = pipeline.call(not_idempotent(with_priority(High, works))).await;
        assert_eq!(seen(), [High; 2], "with other priorities outside or inside");
        let _ = pipeline.call(with_priority(Critical, with_priority(Low, works))).await;
        assert_eq!(seen(), [Critical], "the outer one of two priorities");
        let boxed = Pipeline::new().then(sees.clone()).boxed::<(), ()>();
        let _ = boxed.call(with_priority(Low, works)).await;
        assert_eq!(seen(), [Low], "through a box");
        // Into another pipeline: the outer call's priority, unless the inner one has its own.
        let outer = Pipeline::new();
        for (inner_mark, expected) in [(None, High), (Some(Low), Low)] {
            let inner = pipeline.clone();
            let info = Mutex::new(None);
            let _ = outer
                .call(with_priority(
                    High,
                    WithInfo(|attempt: AttemptInfo| {
                        *info.lock().unwrap() = Some(attempt);
                        std::future::ready(Ok::<_, ()>(()))
                    }),
                ))
                .await;
            let attempt = info.into_inner().unwrap().unwrap();
            let _ = match inner_mark {
                Some(mark) => inner.call_within(attempt, with_priority(mark, works)).await,
                None => inner.call_within(attempt, works).await,
            };
            assert_eq!(seen(), [expected]);
        }
    });
}

/// An operation that receives its attempt, and can have a priority.
struct WithInfo<F>(F);

impl<F, Fut> Operation for WithInfo<F>
where
    F: FnMut(AttemptInfo) -> Fut + Send,
    Fut: Future<Output = Result<(), ()>> + Send,
{
    type Output = ();
    type Error = ();

    fn run(&mut self, cx: CallContext<'_>) -> impl Future<Output = Result<(), ()>> + Send {
        (self.0)(cx.info())
    }
}
