//! Settings of limits, time-outs, retries and budgets change while in use.
//! An invalid change is rejected as a whole, learned state is kept, clones follow. A call in flight
//! ends once: under the settings that admitted it, or under the new ones.
use std::{
    fmt::Debug,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    task::Context,
    time::Duration,
};

use futures::task::noop_waker_ref;
use proptest::prelude::*;
use steadfast::{
    FailureKind, Pipeline,
    Priority::{High, Low, Normal},
    Reason, Rejected, Verdict,
    backoff::{BackoffConfig, Jitter},
    config::ConfigError,
    entropy::Entropy,
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    testing::{ManualClock, ScriptedService, drop_at_every_await},
    throttling::{
        AdaptiveLimitConfig, AdaptiveLimiter, ClientThrottle, ClientThrottleConfig, ConcurrencyLimitConfig,
        ConcurrencyLimiter, Degradation, DegradationConfig, DegradationEvent, Gauge, KeyedRateLimitConfig,
        KeyedRateLimiter, QueueOrder, Quota, RateLimitConfig, RateLimiter, Shedder, ShedderConfig, ThrottlingEvent,
    },
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;

/// Makes invalid changes, each rejected with the name of its field and without visible effect, and
/// then a valid one.
fn refuses_whole<C: Clone + Debug + PartialEq>(
    seen: impl Fn() -> C,
    change: impl Fn(C) -> Result<(), ConfigError>,
    bad: Vec<(C, &str)>,
    good: C,
) {
    let before = seen();
    assert_ne!(before, good);
    for (config, field) in bad {
        assert_eq!(change(config.clone()).unwrap_err().field(), field, "{config:?}");
        assert_eq!(seen(), before, "after {config:?}");
    }
    change(good.clone()).unwrap();
    assert_eq!(seen(), good);
}

type Turn<'a> = Pin<Box<dyn Future<Output = Result<(), Rejected>> + 'a>>;

fn poll(turn: &mut Turn<'_>) -> Option<Result<(), Rejected>> {
    match turn.as_mut().poll(&mut Context::from_waker(noop_waker_ref())) {
        std::task::Poll::Ready(result) => Some(result),
        std::task::Poll::Pending => None,
    }
}

/// Work that takes `time`.
async fn takes(clock: &Clock, time: Duration) -> Result<(), ()> {
    clock.sleep(time).await;
    Ok(())
}

fn rate(config: impl Into<RateLimitConfig>) -> (RateLimiter, Clock, ManualClock) {
    let (clock, time) = Clock::manual();
    (RateLimiter::builder(config).clock(&clock).build().unwrap(), clock, time)
}

fn drain(limiter: &RateLimiter) -> u32 {
    (0..).take_while(|_| limiter.try_acquire().is_ok()).count() as u32
}

fn places(config: ConcurrencyLimitConfig) -> (ConcurrencyLimiter, Clock, ManualClock) {
    let (clock, time) = Clock::manual();
    (ConcurrencyLimiter::builder(config).clock(&clock).build().unwrap(), clock, time)
}

#[test]
fn an_invalid_change_of_a_rate_limit_changes_nothing() {
    let (limiter, _, _) = rate(Quota::per_second(10));
    limiter.try_acquire_n(4).unwrap();
    let config = |permits| RateLimitConfig::from(Quota::per_second(permits));
    let bad = vec![
        (config(0).max_wait(S(9)), "permits"),
        (RateLimitConfig::from(Quota::new(1, Duration::ZERO)).strict(), "per"),
        (RateLimitConfig::from(Quota::per_second(5).burst(2)).strict(), "burst"),
        (config(1_000_001).strict(), "permits"),
        (Quota::per_second(5).burst(0).into(), "burst"),
    ];
    let clone = limiter.clone();
    refuses_whole(|| clone.config(), |config| limiter.reconfigure(config), bad, config(20).max_wait(S(1)));
    assert_eq!(drain(&clone), 12, "it is as full as it was: six tenths");
}

/// Used permits stay used, and waiting calls keep their order.
#[test]
fn a_rate_limit_can_change_its_mode_in_use() {
    let (limiter, _, time) = rate(Quota::per_second(10));
    limiter.try_acquire_n(7).unwrap();
    limiter.reconfigure(RateLimitConfig::from(Quota::per_second(10)).strict()).unwrap();
    assert_eq!(drain(&limiter), 3);
    time.advance(MS(999));
    assert_eq!(drain(&limiter), 0, "never more than ten in any window");
    time.advance(MS(1));
    limiter.try_acquire_n(4).unwrap();
    limiter.reconfigure(RateLimitConfig::from(Quota::per_second(10))).unwrap();
    assert_eq!(drain(&limiter), 6);
    time.advance(S(1));
    assert_eq!(drain(&limiter), 10);
}

#[derive(Debug, Clone)]
enum Step {
    Advance(u64),
    Take(u32),
    Wait(u32, u64),
    Leave(prop::sample::Index),
    Change(u32, u64, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0u64..400).prop_map(Step::Advance),
        3 => (1u32..4).prop_map(Step::Take),
        4 => (1u32..4, 0u64..2_000).prop_map(|(n, wait)| Step::Wait(n, wait)),
        1 => any::<prop::sample::Index>().prop_map(Step::Leave),
        2 => (1u32..8, 100u64..1_500, prop::bool::ANY).prop_map(|(n, per, strict)| Step::Change(n, per, strict)),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    /// At any change and time: a waiting call gets one answer within its maximum wait, no permits
    /// are created, and one burst is free after a quiet time.
    #[test]
    fn a_changed_rate_limit_loses_and_creates_no_permits(counts_change: bool, steps in steps()) {
        let (limiter, _, time) = rate(Quota::new(4, MS(1_000)));
        let mut waiting: Vec<(Turn<'_>, Duration, u32)> = Vec::new();
        let start = time.now();
        // Shares of a full limit: the part that was free or came back, and the part that was used.
        let (mut quota, mut there, mut used) = ((4, 1_000), 1.0, 0.0);
        for step in steps {
            let mut uses = 0;
            match step {
                Step::Advance(ms) => {
                    time.advance(MS(ms));
                    there += ms as f64 / quota.1 as f64;
                }
                Step::Take(n) => uses += if limiter.try_acquire_n(n).is_ok() { n } else { 0 },
                Step::Wait(n, ms) => {
                    let mut turn: Turn<'_> = Box::pin(limiter.acquire_n(n, MS(ms)));
                    match poll(&mut turn) {
                        Some(Ok(())) => uses += n,
                        Some(Err(_)) => {}
                        None => waiting.push((turn, time.now() - start + MS(ms), n)),
                    }
                }
                Step::Leave(_) if waiting.is_empty() => {}
                Step::Leave(which) => drop(waiting.remove(which.index(waiting.len()))),
                Step::Change(n, per, strict) => {
                    let config = RateLimitConfig::from(Quota::new(n, MS(per)));
                    limiter.reconfigure(if strict && counts_change { config.strict() } else { config }).unwrap();
                    quota = (n, per);
                }
            }
            let (now, mut late) = (time.now() - start, false);
            waiting.retain_mut(|(turn, latest, n)| match poll(turn) {
                None => {
                    late |= now >= *latest;
                    true
                }
                Some(answer) => {
                    uses += if answer.is_ok() { *n } else { 0 };
                    false
                }
            });
            prop_assert!(!late, "who waits is answered by the end of its patience");
            used += f64::from(uses) / f64::from(quota.0);
            // In strict mode used permits are kept as a number, not as a share.
            prop_assert!(counts_change || used <= there + 1e-6, "{} used of {}", used, there);
        }
        waiting.clear();
        limiter.reconfigure(Quota::new(5, MS(1_000))).unwrap();
        time.advance(S(60));
        prop_assert_eq!(drain(&limiter), 5);
    }
}

/// A waiting call is dropped at every await point while the limit changes.
#[test]
fn a_call_dropped_during_a_change_leaves_nothing_reserved() {
    for to_strict in [false, true] {
        let (limiter, clock, time) = rate(Quota::per_second(1));
        let next = RateLimitConfig::from(Quota::new(2, S(2)));
        let next = if to_strict { next.strict() } else { next };
        drop_at_every_await(
            &time,
            || async {
                limiter.reconfigure(Quota::per_second(1)).unwrap();
                let change = async {
                    clock.sleep(MS(500)).await;
                    limiter.reconfigure(next).unwrap();
                };
                let _ = futures::join!(limiter.acquire_n(1, S(30)), limiter.acquire_n(1, S(30)), change);
            },
            |_| {
                limiter.reconfigure(next).unwrap();
                time.advance(S(60));
                assert_eq!(drain(&limiter), 2);
                time.advance(S(60));
            },
        );
    }
}

#[test]
fn an_invalid_change_of_a_keyed_limit_changes_nothing() {
    let (clock, time) = Clock::manual();
    let limiter =
        KeyedRateLimiter::builder(KeyedRateLimitConfig::from(Quota::per_second(4)).tiers([Quota::per_second(100)]))
            .tier_of(|key: &u32| (*key >= 10).then_some(0))
            .clock(&clock)
            .build()
            .unwrap();
    let clone = limiter.clone();
    limiter.try_acquire_n(&1, 2).unwrap();
    limiter.try_acquire_n(&10, 50).unwrap();
    let q = Quota::per_second;
    let of = |quota: Quota, tiers: &[Quota]| KeyedRateLimitConfig::from(quota).tiers(tiers.iter().copied());
    let bad = vec![
        (of(q(0), &[]), "limit.permits"),
        (of(q(1), &[q(1), q(0)]), "tiers[1].permits"),
        (of(q(1), &[]).max_keys(0), "max_keys"),
        (RateLimitConfig::from(q(1)).strict().into(), "limit.mode"),
    ];
    // The same rate over four and ten seconds, so that used permits return at another time.
    let good = of(Quota::new(8, S(4)), &[Quota::new(10, S(10))]).max_keys(100);
    refuses_whole(|| clone.config(), |config| limiter.reconfigure(config), bad, good);
    // Each key is as full as before: half.
    let drain = |key| (0..).take_while(|_| clone.try_acquire(&key).is_ok()).count();
    assert_eq!((drain(1), drain(10), drain(2), drain(11)), (4, 5, 8, 10));
    // A key of a removed tier gets the default quota.
    time.advance(S(10));
    limiter.reconfigure(q(3)).unwrap();
    assert_eq!((drain(1), drain(10), drain(12)), (3, 3, 3));
}

/// Many threads call while the quotas change: no key ever gets more than the larger burst plus the
/// returned permits.
#[test]
fn a_changing_keyed_limit_creates_no_permits() {
    let (clock, _) = Clock::manual();
    let limiter = KeyedRateLimiter::builder(Quota::per_minute(100)).clock(&clock).build().unwrap();
    let taken: Vec<AtomicU32> = (0..50).map(|_| AtomicU32::new(0)).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0..20_000usize {
                    let key = round % 50;
                    if limiter.try_acquire(&key).is_ok() {
                        taken[key].fetch_add(1, SeqCst);
                    }
                }
            });
        }
        // Increased and decreased again: a used-up key stays used up.
        for round in 0..40 {
            let permits = if round % 2 == 0 { 50 } else { 100 };
            limiter.reconfigure(Quota::per_minute(permits)).unwrap();
        }
    });
    for (key, taken) in taken.iter().enumerate() {
        let taken = taken.load(SeqCst);
        assert!((50..=100).contains(&taken), "{taken} of key {key}");
        assert!(limiter.try_acquire(&key).is_err());
    }
}

#[test]
fn an_invalid_change_of_a_concurrency_limit_changes_nothing() {
    let (limiter, ..) = places(ConcurrencyLimitConfig::of(2).queue(3).max_wait(S(5)));
    let clone = limiter.clone();
    let permit = clone.try_acquire().unwrap();
    let bad = vec![
        (ConcurrencyLimitConfig::of(0).queue(9).max_wait(S(9)), "capacity"),
        (ConcurrencyLimitConfig::of(9).queue(9).max_wait(Duration::ZERO), "max_wait"),
    ];
    let good = ConcurrencyLimitConfig::of(4).queue(1).max_wait(S(1)).order(QueueOrder::NewestFirst);
    refuses_whole(|| clone.config(), |config| limiter.reconfigure(config), bad, good);
    assert_eq!(clone.available(), 3, "the call under way keeps its place");
    drop(permit);
    assert_eq!(
        (clone.available(), limiter.reconfigure(limiter.config().capacity(0)).unwrap_err().field()),
        (4, "capacity")
    );
}

// Guarantee: throttling 11.
/// A waiting call is served or rejected by its place in the old order, under the new length of the
/// queue.
#[test]
fn the_queue_of_a_concurrency_limit_survives_a_change() {
    let config = ConcurrencyLimitConfig::of(1).queue(8).max_wait(S(60));
    for order in [QueueOrder::Fifo, QueueOrder::NewestFirst] {
        let (limiter, ..) = places(config);
        let running = limiter.try_acquire().unwrap();
        let mut turns: Vec<_> = (0..5).map(|_| Box::pin(limiter.acquire())).collect();
        let mut cx = Context::from_waker(noop_waker_ref());
        turns.iter_mut().for_each(|turn| assert!(turn.as_mut().poll(&mut cx).is_pending()));
        // Two permits more, and room for one waiting call: two are served before one is rejected.
        limiter.reconfigure(ConcurrencyLimitConfig::of(3).queue(1).max_wait(S(60)).order(order)).unwrap();
        let answers: Vec<_> = turns.iter_mut().map(|turn| turn.as_mut().poll(&mut cx)).collect();
        let seen: Vec<_> = answers
            .iter()
            .map(|answer| match answer {
                std::task::Poll::Ready(Ok(_)) => "runs",
                std::task::Poll::Ready(Err(rejected)) if rejected.reason() == Reason::QueueFull => "full",
                std::task::Poll::Ready(Err(_)) => "?",
                std::task::Poll::Pending => "waits",
            })
            .collect();
        match order {
            QueueOrder::Fifo => assert_eq!(seen, ["runs", "runs", "waits", "full", "full"]),
            QueueOrder::NewestFirst => assert_eq!(seen, ["full", "full", "waits", "runs", "runs"]),
            _ => unreachable!(),
        }
        assert_eq!((limiter.available(), limiter.waiting()), (0, 1));
        drop((answers, turns, running));
        assert_eq!((limiter.available(), limiter.waiting()), (3, 0));
    }
}

#[test]
fn a_change_of_a_concurrency_limit_conserves_its_permits() {
    let (limiter, clock, time) = places(ConcurrencyLimitConfig::of(1));
    drop_at_every_await(
        &time,
        || async {
            limiter.reconfigure(ConcurrencyLimitConfig::of(1).queue(4).max_wait(S(9))).unwrap();
            let call = || limiter.call(|| takes(&clock, MS(100)));
            let change = async {
                clock.sleep(MS(50)).await;
                limiter.reconfigure(ConcurrencyLimitConfig::of(2).queue(1).max_wait(S(9))).unwrap();
                clock.sleep(MS(100)).await;
                limiter.reconfigure(ConcurrencyLimitConfig::of(1).queue(0).max_wait(S(9))).unwrap();
            };
            let _ = futures::join!(call(), call(), call(), call(), change);
        },
        |_| assert_eq!((limiter.available(), limiter.waiting()), (i64::from(limiter.capacity()), 0)),
    );
}

#[test]
fn an_invalid_change_of_an_adaptive_limit_changes_nothing() {
    let (clock, time) = Clock::manual();
    let first = AdaptiveLimitConfig::default().limits(50, 1, 100);
    let limiter = AdaptiveLimiter::builder(first).clock(&clock).build().unwrap();
    let clone = limiter.clone();
    let bad = vec![
        (first.limits(0, 0, 5), "min"),
        (first.limits(9, 1, 5), "initial"),
        (first.window(Duration::ZERO).min_calls(1), "window"),
        (first.shares(steadfast::throttling::PriorityShares::new(0.9, 0.5, 1.0)), "shares.normal"),
    ];
    let good = first.limits(20, 10, 30).queue(2).max_wait(S(1));
    let runs = Pipeline::new().then(limiter.clone());
    // The limit has learned from these calls; otherwise it would start again at the new `initial`.
    assert!(time.block_on(runs.call(|| takes(&clock, MS(10)))).is_ok());
    let under_way = async { runs.call(|| takes(&clock, S(1))).await };
    time.block_on(async {
        let change = async {
            refuses_whole(|| clone.config(), |config| limiter.reconfigure(config), bad, good);
            // The limit is clipped to the new bounds; `initial` applies only to new limits.
            assert_eq!((clone.limit(), clone.in_flight()), (30, 1));
            limiter.reconfigure(good.limits(60, 60, 90)).unwrap();
            assert_eq!((clone.limit(), clone.in_flight()), (60, 1));
        };
        assert!(futures::join!(under_way, change).0.is_ok());
        // It has learned by now, and is clipped to the new bounds.
        limiter.reconfigure(good).unwrap();
        assert_eq!((clone.limit(), clone.in_flight()), (30, 0));
    });
    assert_eq!(clone.in_flight(), 0);
}

/// The learned and the configured limit agree in the end, in any order of concurrent updates.
#[test]
fn an_adaptive_limit_stays_within_changing_bounds() {
    let config = AdaptiveLimitConfig::default()
        .by(steadfast::throttling::Adaptation::Aimd)
        .window(Duration::from_nanos(1))
        .min_calls(1);
    let limiter = AdaptiveLimiter::new(config.limits(50, 1, 100)).unwrap();
    let pipeline = Pipeline::new().then(limiter.clone()).classify(|answer: &Result<bool, ()>| match answer {
        Ok(true) => Verdict::success(),
        _ => Verdict::failure(FailureKind::Overloaded),
    });
    let (clock, time) = Clock::manual();
    drop(clock);
    for round in 0..20 {
        std::thread::scope(|scope| {
            scope.spawn(|| (0..200).for_each(|i| _ = time.block_on(pipeline.call(async || Ok(i % 3 > 0)))));
            scope.spawn(|| {
                for bound in 1..200 {
                    let max = 1 + (bound * 7 + round) % 100;
                    limiter.reconfigure(config.limits(1, 1, max)).unwrap();
                }
                limiter.reconfigure(config.limits(1, 1, 5)).unwrap();
            });
        });
        assert!((1..=5).contains(&limiter.limit()), "{}", limiter.limit());
        assert_eq!(limiter.in_flight(), 0);
    }
}

#[test]
fn an_invalid_change_of_a_client_throttle_changes_nothing() {
    let (clock, time) = Clock::manual();
    let first = ClientThrottleConfig::sre().min_rps(1e6).window(S(12));
    let throttle = ClientThrottle::builder(first).clock(&clock).build().unwrap();
    let (clone, mut events) = (throttle.clone(), throttle.events());
    (0..30).for_each(|_| clone.try_acquire().unwrap().record(Verdict::failure(FailureKind::Overloaded)));
    let (before, under_way) = (clone.try_acquire().unwrap(), clone.try_acquire().unwrap());
    let bad = vec![
        (first.k(0.0), "k"),
        (first.window(Duration::ZERO).k(9.0), "window"),
        (first.max_rejection(2.0), "max_rejection"),
    ];
    refuses_whole(|| clone.config(), |config| throttle.reconfigure(config), bad, first.window(S(24)));
    let seen = clone.snapshot();
    assert_eq!((seen.requests, seen.accepts), (32, 0), "what was seen stays seen");
    assert_eq!(events.try_recv().unwrap().unwrap().what, ThrottlingEvent::LimitChanged);
    // Calls in flight: the accepted one counts with its request; the dropped one is neither lost
    // nor taken back twice.
    before.record(Verdict::success());
    drop(under_way);
    let seen = clone.snapshot();
    assert_eq!((seen.requests, seen.accepts), (32, 1), "what was counted before the change is not taken back after it");
    // A shorter window keeps the counts in proportion.
    throttle.reconfigure(first.window(S(6))).unwrap();
    assert_eq!(clone.snapshot().requests, 8);
    time.advance(S(7));
    assert_eq!(clone.snapshot().requests, 0);
}

#[test]
fn an_invalid_change_of_a_shedder_changes_nothing() {
    let ((clock, time), load) = (Clock::manual(), Gauge::new());
    let first = ShedderConfig::default().limit("load", 0.0, 1.0).sample_every(S(3600));
    let shedder = Shedder::builder(first.clone()).clock(&clock).gauge("load", load.clone()).build().unwrap();
    let clone = shedder.clone();
    load.set(0.5);
    assert_eq!(clone.shed_share(Normal), 0.5);
    let bad = vec![
        (ShedderConfig::default(), "limits.load"),
        (first.clone().limit("load", 1.0, 0.0).min_priority(High), "limits.load.hard"),
        (first.clone().min_priority(Low), "min_priority"),
    ];
    let good = first.clone().limit("load", -0.5, 0.5);
    load.set(0.25);
    refuses_whole(|| clone.config(), |config| shedder.reconfigure(config), bad, good.clone());
    // The gauge is read again at once under the new limits, although readings are an hour apart.
    assert!((clone.shed_share(High) - 0.25).abs() < 1e-9);
    // The share that is shed is kept: it falls by the new times, not to zero at once.
    shedder.reconfigure(good.limit("load", 5.0, 6.0)).unwrap();
    assert!((clone.shed_share(High) - 0.25).abs() < 1e-9, "held");
    time.advance(S(3600));
    assert_eq!(clone.shed_share(Low), 0.0);
}

/// The change comes while a gauge is being read under the old settings.
#[test]
fn a_shedder_that_changes_during_a_reading_reads_again() {
    let (clock, _) = Clock::manual();
    let own: Arc<std::sync::OnceLock<Shedder>> = Arc::default();
    let first = ShedderConfig::default().limit("load", 10.0, 11.0).sample_every(S(3600));
    let (next, inner) = (first.clone().limit("load", 0.0, 1.0), own.clone());
    let reads = move || {
        if let Some(shedder) = inner.get() {
            shedder.reconfigure(next.clone()).unwrap();
        }
        1.0
    };
    let shedder = Shedder::builder(first).clock(&clock).gauge("load", reads).build().unwrap();
    let _ = own.set(shedder.clone());
    assert!(shedder.try_acquire(High).is_ok(), "read by the old limits");
    assert!(shedder.try_acquire(High).is_err(), "and by the new ones at once");
}

#[test]
fn an_invalid_change_of_a_degradation_changes_nothing() {
    let ((clock, time), load) = (Clock::manual(), Gauge::new());
    let first = DegradationConfig::of(["a", "b", "c"]).limit("load", 0.0, 1.0).step(S(1)).hold(S(10));
    let degradation = Degradation::builder(first.clone()).clock(&clock).gauge("load", load.clone()).build().unwrap();
    let clone = degradation.clone();
    let [a, b, c] = ["a", "b", "c"].map(|name| degradation.feature(name).unwrap());
    load.set(0.5);
    assert_eq!([a.is_enabled(), b.is_enabled(), c.is_enabled()], [false, true, true]);
    let bad = vec![
        (DegradationConfig::of(["c", "a"]), "limits.load"),
        (DegradationConfig::of(["c", "c"]).limit("load", 0.0, 1.0), "features"),
        (first.clone().margin(-1.0), "margin"),
    ];
    let mut events = degradation.events();
    let good = DegradationConfig::of(["c", "d", "b"]).limit("load", 0.0, 1.0).step(S(1)).hold(S(10));
    refuses_whole(|| clone.config(), |config| degradation.reconfigure(config), bad, good);
    // One feature was off, and one is off now: the first of the new order. A removed feature is
    // always on.
    assert_eq!([a.is_enabled(), b.is_enabled(), c.is_enabled()], [true, true, false]);
    assert_eq!(clone.switched_off().iter().map(ToString::to_string).collect::<Vec<_>>(), ["c"]);
    let told: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect();
    assert_eq!(told[0], DegradationEvent::SwitchedOff { feature: "c".into() });
    time.advance(S(1));
    assert!(!clone.feature("d").unwrap().is_enabled(), "the next of the new order");
    time.advance(S(1));
    assert_eq!([a.is_enabled(), b.is_enabled(), c.is_enabled()], [true, false, false]);
    // Fewer features than were off.
    degradation.reconfigure(DegradationConfig::of(["b"]).limit("load", 0.0, 1.0)).unwrap();
    assert_eq!([a.is_enabled(), b.is_enabled(), c.is_enabled()], [true, false, true]);
}

#[test]
fn a_waiting_call_keeps_its_time_out_when_the_limit_changes() {
    let (clock, time) = Clock::manual();
    let timeout = Timeout::builder(S(1)).clock(&clock).build();
    let clone = timeout.clone();
    let service = ScriptedService::new("hang", &clock).unwrap();
    let start = time.now();
    let ended = time.block_on(async {
        let call = async |limit: &Timeout| {
            let _ = limit.call(|| service.call()).await;
            clock.now() - start
        };
        let change = async {
            clock.sleep(MS(500)).await;
            timeout.reconfigure(MS(100)).unwrap();
            call(&clone).await
        };
        futures::join!(call(&timeout), call(&clone), change)
    });
    assert_eq!(ended, (S(1), S(1), MS(600)));
    assert_eq!((clone.limit(), service.running(), service.dropped()), (MS(100), 0, 3));
    timeout.reconfigure(Duration::MAX).unwrap();
    assert_eq!(clone.limit(), Duration::MAX);
    assert!(time.block_on(clone.call(|| takes(&clock, S(1_000_000)))).is_ok());
    // A call dropped at any await point leaves nothing behind.
    timeout.reconfigure(MS(100)).unwrap();
    drop_at_every_await(&time, || clone.call(|| service.call()), |_| assert_eq!(service.running(), 0));
}

#[test]
fn an_invalid_change_of_a_retry_changes_nothing() {
    let (clock, time) = Clock::manual();
    let steady = |ms| BackoffConfig::default().between(MS(ms), MS(ms)).jitter(Jitter::None);
    let first = RetryConfig::default().idempotent(true).max_attempts(3).backoff(steady(100));
    let retry = Retry::builder(first).clock(&clock).build().unwrap();
    let clone = retry.clone();
    let bad = vec![
        (first.max_attempts(0).retry_nested(true), "max_attempts"),
        (first.max_elapsed(Duration::ZERO), "max_elapsed"),
        (first.retry_on(steadfast::outcome::KindSet::of(&[])), "retry_on"),
    ];
    let good = first.max_attempts(5).backoff(steady(10));
    let service = ScriptedService::new("503", &clock).unwrap();
    time.block_on(async {
        let change = async {
            clock.sleep(MS(150)).await;
            refuses_whole(|| clone.config(), |config| retry.reconfigure(config), bad, good);
        };
        // In flight: five attempts under the new settings, with the delays that the call began
        // with; each is made once.
        let error = futures::join!(clone.call(|| service.call()), change).0.unwrap_err();
        assert_eq!(error.attempts(), 5);
    });
    assert_eq!((service.calls(), service.gaps()), (5, vec![MS(100); 4]));
    // Fewer attempts than were made already: the call ends with its next failure.
    retry.reconfigure(first).unwrap();
    let service = ScriptedService::new("503", &clock).unwrap();
    time.block_on(async {
        let change = async {
            clock.sleep(MS(150)).await;
            retry.reconfigure(first.max_attempts(1)).unwrap();
        };
        assert_eq!(futures::join!(clone.call(|| service.call()), change).0.unwrap_err().attempts(), 3);
    });
    assert_eq!((service.calls(), service.running()), (3, 0));
}

#[test]
fn an_invalid_change_of_a_budget_changes_nothing() {
    let (clock, time) = Clock::manual();
    let first = RetryBudgetConfig::default().ratio(0.5).window(S(10)).min_per_second(0);
    let budget = RetryBudget::new(first).unwrap();
    let config = RetryConfig::default()
        .idempotent(true)
        .max_attempts(2)
        .backoff(BackoffConfig::default().between(MS(1), MS(1)).jitter(Jitter::None));
    let retry = Retry::builder(config).clock(&clock).entropy(&Entropy::from_seed(1)).budget(&budget).build().unwrap();
    let (fails, goes) = (ScriptedService::new("503", &clock).unwrap(), ScriptedService::new("ok", &clock).unwrap());
    (0..100).for_each(|_| assert!(time.block_on(retry.call(|| goes.call())).is_ok()));
    assert_eq!(budget.balance(time.now()), 50);
    (0..20).for_each(|_| assert!(time.block_on(retry.call(|| fails.call())).is_err()));
    assert_eq!((fails.calls(), budget.balance(time.now())), (40, 40), "20 retries of 60 that were earned");
    let bad = vec![
        (first.ratio(-1.0).window(S(20)), "ratio"),
        (first.ratio(0.0), "ratio"),
        (first.window(Duration::ZERO), "window"),
        (first.cost(0).timeout_cost(1), "cost"),
    ];
    let clone = budget.clone();
    refuses_whole(|| clone.config(), |config| budget.reconfigure(config), bad, first.ratio(0.25).window(S(20)));
    assert_eq!(clone.balance(time.now()), 10, "earned 30 and taken 20");
    budget.reconfigure(first.ratio(0.25)).unwrap();
    assert_eq!(clone.balance(time.now()), 5, "earned 15 and taken 10: half of the window, half of each");
    // The change applies to all that share the budget, from now on.
    (0..30).for_each(|_| _ = time.block_on(retry.call(|| fails.call())));
    let retries = fails.calls() - 40 - 30;
    assert!((5..=12).contains(&retries), "{retries}: what was left, and a quarter of what came");
}
