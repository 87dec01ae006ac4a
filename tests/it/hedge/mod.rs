//! Hedge: further attempts after a delay or a failure, one result, and the conditions that stop
//! hedging.
mod doors;
mod edges;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use proptest::prelude::*;
use steadfast::{
    Cause, FailureKind, Pipeline, PolicyKind, Reason,
    call::{AttemptInfo, not_idempotent},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State},
    hedge::{Hedge, HedgeCause, HedgeConfig, HedgeDelay, HedgeEvent, PercentileConfig, SuppressReason},
    observe::Subscription,
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    testing::{ManualClock, ScriptedService},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter},
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn world(script: &str, config: HedgeConfig) -> (Hedge, ScriptedService, Clock, ManualClock) {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new(script, &clock).unwrap();
    (Hedge::builder(config).name("h").clock(&clock).build().unwrap(), service, clock, time)
}

fn told(events: &mut Subscription<HedgeEvent>) -> Vec<HedgeEvent> {
    std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect()
}

// Guarantee: hedge 1.
#[test]
fn after_the_delay_a_second_attempt_starts_beside_the_first() {
    let (hedge, service, _, time) = world("ok in 1s, ok in 20ms", HedgeConfig::after(MS(50)).idempotent(true));
    let mut events = hedge.events();
    let start = time.now();
    assert_eq!(time.block_on(hedge.call(|| service.call())).unwrap(), 200);
    assert_eq!((time.now() - start, service.gaps(), service.dropped()), (MS(70), vec![MS(50)], 1));
    let late = HedgeCause::Late { delay: MS(50) };
    assert_eq!(told(&mut events), [HedgeEvent::Hedged { hedge: 1, cause: late }, HedgeEvent::Won { hedge: 1 }]);
}

// Guarantee: hedge 1.
#[test]
fn a_first_attempt_that_ends_in_time_runs_alone() {
    let (hedge, service, _, time) = world("ok in 49ms, ok", HedgeConfig::after(MS(50)).idempotent(true));
    let mut events = hedge.events();
    for _ in 0..2 {
        time.block_on(hedge.call(|| service.call())).unwrap();
    }
    assert_eq!((service.calls(), told(&mut events)), (2, vec![]));
}

// Guarantee: hedge 6.
#[test]
fn the_first_attempt_can_win_after_a_second_has_started() {
    let (hedge, service, _, time) = world("ok in 60ms, 204 in 1s", HedgeConfig::after(MS(50)).idempotent(true));
    assert_eq!(time.block_on(hedge.call(|| service.call())).unwrap(), 200);
    assert_eq!((service.calls(), service.dropped(), service.running()), (2, 1, 0));
}

// Guarantee: hedge 3.
#[test]
fn a_failed_attempt_starts_the_next_at_once() {
    let (hedge, service, _, time) = world("503 in 10ms, ok in 5ms", HedgeConfig::after(MS(50)).idempotent(true));
    let mut events = hedge.events();
    let pipeline = Pipeline::new().then(hedge).classify(ScriptedService::classify);
    let start = time.now();
    time.block_on(pipeline.call(|| service.call())).unwrap();
    assert_eq!((time.now() - start, service.gaps()), (MS(15), vec![MS(10)]));
    let failed = HedgeCause::Failed { cause: Cause::Operation(FailureKind::Overloaded) };
    assert_eq!(told(&mut events), [HedgeEvent::Hedged { hedge: 1, cause: failed }, HedgeEvent::Won { hedge: 1 }]);
}

// Guarantee: hedge 3.
#[test]
fn a_failure_beside_others_starts_the_next_attempt_and_restarts_the_delay() {
    let config = HedgeConfig::after(MS(50)).idempotent(true).max_attempts(4);
    let (hedge, service, _, time) = world("ok in 1s, 503 in 10ms, ok in 1s, ok in 5ms", config);
    let pipeline = Pipeline::new().then(hedge).classify(ScriptedService::classify);
    let start = time.now();
    time.block_on(pipeline.call(|| service.call())).unwrap();
    assert_eq!(service.gaps(), [MS(50), MS(10), MS(50)]);
    assert_eq!((time.now() - start, service.most_running(), service.dropped()), (MS(115), 3, 2));
}

// Guarantee: hedge 3.
#[test]
fn a_fatal_failure_ends_all_attempts() {
    let (hedge, service, _, time) =
        world("ok in 1s, 404 in 10ms", HedgeConfig::after(MS(50)).idempotent(true).max_attempts(3));
    let pipeline = Pipeline::new().then(hedge).classify(ScriptedService::classify);
    let start = time.now();
    let error = time.block_on(pipeline.call(|| service.call())).unwrap_err();
    assert_eq!((error.verdict().kind(), error.attempts()), (Some(FailureKind::Client), 2));
    assert_eq!((time.now() - start, service.calls(), service.dropped()), (MS(60), 2, 1));
    // The same holds for a first attempt that runs alone.
    let (hedge, service, _, time) = world("404", HedgeConfig::after(MS(50)).idempotent(true));
    let pipeline = Pipeline::new().then(hedge).classify(ScriptedService::classify);
    assert_eq!(time.block_on(pipeline.call(|| service.call())).unwrap_err().attempts(), 1);
}

#[test]
fn events_name_the_time_out_that_ended_an_attempt() {
    let (hedge, service, clock, time) = world("hang", HedgeConfig::after(MS(500)).idempotent(true));
    let mut events = hedge.events();
    let limit = Timeout::builder(MS(20)).name("attempt").clock(&clock).build();
    let pipeline = Pipeline::new().then(hedge).then(limit);
    time.block_on(pipeline.call(|| service.call())).unwrap_err();
    let text = |cause: &Cause<FailureKind>| (cause.kind(), cause.to_string());
    let timed_out = (Some(FailureKind::Timeout), "timed out after 20ms (`attempt`)".to_owned());
    match &told(&mut events)[..] {
        [
            HedgeEvent::Hedged { hedge: 1, cause: HedgeCause::Failed { cause: first } },
            HedgeEvent::AllFailed { attempts: 2, cause: last },
        ] => {
            assert_eq!((text(first), text(last)), (timed_out.clone(), timed_out));
        }
        told => panic!("{told:?}"),
    }
}

// Guarantee: hedge 4.
#[test]
fn attempts_are_bounded_by_max_attempts() {
    for max in [1, 2, 5] {
        let (hedge, service, clock, time) =
            world("hang", HedgeConfig::after(MS(10)).idempotent(true).max_attempts(max));
        let pipeline = Pipeline::new().then(Timeout::builder(MS(1000)).clock(&clock).build()).then(hedge);
        let error = time.block_on(pipeline.call(|| service.call())).unwrap_err();
        assert!(error.is_timed_out());
        assert_eq!((service.calls(), service.most_running(), error.attempts()), (max as usize, max as usize, max));
        assert_eq!((service.running(), service.dropped()), (0, max as usize));
    }
}

// Guarantee: hedge 6.
#[test]
fn if_all_attempts_fail_the_last_failure_is_the_result() {
    let config = HedgeConfig::after(MS(50)).idempotent(true).max_attempts(3);
    let (hedge, service, _, time) = world("503 in 10ms, 500 in 10ms, 429 in 10ms", config);
    let mut events = hedge.events();
    let pipeline = Pipeline::new().then(hedge).classify(ScriptedService::classify);
    let error = time.block_on(pipeline.call(|| service.call())).unwrap_err();
    assert_eq!((error.attempts(), error.verdict().kind()), (3, Some(FailureKind::Throttled)));
    let last = told(&mut events).pop();
    let cause = Cause::Operation(FailureKind::Throttled);
    assert_eq!(last, Some(HedgeEvent::AllFailed { attempts: 3, cause }));
}

// Guarantee: hedge 4.
#[test]
fn hedges_are_paid_from_the_budget_shared_with_the_retry() {
    let (clock, time) = Clock::manual();
    let budget = RetryBudget::new(RetryBudgetConfig::default().ratio(0.2).min_per_second(0)).unwrap();
    let hedge =
        Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true)).clock(&clock).budget(&budget).build().unwrap();
    let retry = Retry::builder(RetryConfig::default().idempotent(true)).clock(&clock).budget(&budget).build().unwrap();
    let service = ScriptedService::new("ok in 20ms", &clock).unwrap();
    let mut events = hedge.events();
    // Once with the hedge alone, and once inside a retry that counted the call: each call counts
    // once.
    let pipelines = [Pipeline::new().then(None).then(hedge.clone()), Pipeline::new().then(Some(retry)).then(hedge)];
    for (i, pipeline) in pipelines.iter().enumerate() {
        let before = service.calls();
        for _ in 0..100 {
            time.block_on(pipeline.call(|| service.call())).unwrap();
        }
        assert_eq!(service.calls() - before, 120, "{i}");
        let told = told(&mut events);
        let held = told
            .iter()
            .filter(|e| **e == HedgeEvent::Suppressed { reason: SuppressReason::Budget, cause: None })
            .count();
        assert_eq!(held, 80, "nothing in flight is touched, and the original outcome is returned");
        time.advance(Duration::from_secs(60));
    }
}

// Guarantee: hedge 5.
#[test]
fn an_operation_that_is_not_idempotent_runs_once() {
    let (hedge, service, _, time) = world("ok in 1s, 503", HedgeConfig::after(MS(10)).idempotent(true));
    time.block_on(hedge.call(not_idempotent(|| service.call()))).unwrap();
    time.block_on(hedge.call(not_idempotent(|| service.call()))).unwrap_err();
    assert_eq!(service.calls(), 2);
    let (hedge, service, _, time) = world("ok in 1s", HedgeConfig::after(MS(10)).idempotent(false));
    time.block_on(hedge.call(|| service.call())).unwrap();
    assert_eq!(service.calls(), 1);
    // The same holds in a pipeline that is called within a marked call.
    let (hedge, service, _, time) = world("ok in 1s", HedgeConfig::after(MS(10)).idempotent(true));
    let outer = AttemptInfo::with_deadline(time.now() + MS(5000));
    time.block_on(Pipeline::new().then(hedge).call_within(outer, not_idempotent(|| service.call()))).unwrap();
    assert_eq!(service.calls(), 1);
}

// Guarantee: hedge 5.
#[test]
fn an_operation_that_cannot_run_concurrently_runs_once() {
    struct Counts(u32);
    impl steadfast::call::Operation for Counts {
        type Output = u32;
        type Error = ();
        async fn run(&mut self, _: steadfast::call::CallContext<'_>) -> Result<u32, ()> {
            self.0 += 1;
            Ok(self.0)
        }
    }
    let (hedge, _, _, time) = world("ok", HedgeConfig::after(Duration::ZERO).idempotent(true));
    assert_eq!(time.block_on(hedge.call(Counts(0))).unwrap(), 1);
    let warnings = Pipeline::new().then(hedge).explain_for(&Counts(0)).warnings();
    assert!(warnings.iter().any(|w| w.contains("cannot run concurrently")), "{warnings:?}");
}

// Guarantee: hedge 6.
/// The caller sees both the dropped futures and the winner.
#[test]
fn the_losers_are_dropped_before_the_result_is_returned() {
    let (hedge, _, clock, time) = world("ok", HedgeConfig::after(MS(10)).idempotent(true).max_attempts(3));
    let held = Arc::new(());
    let started = AtomicU32::new(0);
    // The third attempt wins, then the first, then the second.
    for slow in [[1000, 1000, 5], [25, 1000, 1000], [1000, 15, 1000]] {
        started.store(0, SeqCst);
        let operation = || {
            let (held, clock) = (held.clone(), clock.clone());
            let takes = slow[started.fetch_add(1, SeqCst) as usize];
            async move {
                clock.sleep(MS(takes)).await;
                drop(held);
                Ok::<_, ()>(takes)
            }
        };
        time.block_on(async {
            assert_eq!(hedge.call(operation).await.unwrap(), *slow.iter().min().unwrap());
            assert_eq!(Arc::strong_count(&held), 1);
        });
        assert_eq!(started.load(SeqCst), 3);
    }
}

// Guarantee: hedge 7.
#[test]
fn a_push_back_stops_hedging_for_the_stated_time() {
    let config = HedgeConfig::after(MS(10)).idempotent(true).max_attempts(5);
    let (hedge, service, clock, time) = world("ok in 1s, 429 retry-after 3s, ok in 100ms", config);
    let mut events = hedge.events();
    let pipeline = Pipeline::new().then(hedge).classify(ScriptedService::classify);
    // Attempts in flight continue.
    time.block_on(pipeline.call(|| service.call())).unwrap();
    assert_eq!(service.calls(), 2);
    let cause = || Some(Cause::Operation(FailureKind::Throttled));
    let pushed_back = |cause| HedgeEvent::Suppressed { reason: SuppressReason::PushedBack, cause };
    assert_eq!(told(&mut events).last(), Some(&pushed_back(cause())));
    // Two seconds are left, so another call is not hedged either.
    time.block_on(pipeline.call(|| service.call())).unwrap();
    assert_eq!((service.calls(), told(&mut events)), (3, vec![pushed_back(None)]));
    time.block_on(clock.sleep(Duration::from_secs(3)));
    time.block_on(pipeline.call(|| service.call())).unwrap();
    assert_eq!(service.calls(), 8);
    // A hint to a lone first attempt ends the call.
    let (hedge, service, _, time) = world("429 retry-after 3s", HedgeConfig::after(MS(10)).idempotent(true));
    let pipeline = Pipeline::new().then(hedge).classify(ScriptedService::classify);
    let error = time.block_on(pipeline.call(|| service.call())).unwrap_err();
    assert_eq!((error.attempts(), error.retry_after()), (1, Some(Duration::from_secs(3))));
}

// Guarantee: hedge 2.
#[test]
fn the_delay_is_a_percentile_once_there_are_enough_samples() {
    let percentile = PercentileConfig::default()
        .percentile(0.9)
        .min_samples(50)
        .window(Duration::from_secs(60))
        .floor(MS(5))
        .until_known(MS(80));
    let config = HedgeConfig::default().idempotent(true).delay(HedgeDelay::Percentile(percentile));
    let (hedge, _, clock, time) = world("ok", config);
    let call = |takes| {
        time.block_on(hedge.call(|| async {
            clock.sleep(takes).await;
            Ok::<_, ()>(())
        }))
    };
    assert_eq!(hedge.delay(), MS(80));
    for i in 0..49 {
        call(MS(20 + i % 2)).unwrap();
    }
    time.advance(Duration::from_secs(1));
    assert_eq!(hedge.delay(), MS(80), "one too few");
    call(MS(20)).unwrap();
    time.advance(Duration::from_secs(1));
    assert!((MS(21)..=MS(24)).contains(&hedge.delay()), "{:?}", hedge.delay());
    // The delay has a minimum.
    for _ in 0..2000 {
        call(MS(1)).unwrap();
    }
    time.advance(Duration::from_secs(1));
    assert_eq!(hedge.delay(), MS(5));
    // Old samples do not count.
    time.advance(Duration::from_secs(61));
    assert_eq!(hedge.delay(), MS(80));
}

// Guarantee: hedge 2.
/// A hedged call counts with the time of the whole call.
#[test]
fn hedging_does_not_lower_the_percentile() {
    let percentile = PercentileConfig::default()
        .min_samples(10)
        .window(Duration::from_secs(3600))
        .floor(MS(1))
        .until_known(MS(1000));
    let config = HedgeConfig::default().idempotent(true).delay(HedgeDelay::Percentile(percentile));
    let (hedge, _, clock, time) = world("ok", config);
    let (calls, hedges) = (AtomicU32::new(0), AtomicU32::new(0));
    // First attempts take from 10 ms to 110 ms, hedged ones 10 ms.
    let entropy = steadfast::entropy::Entropy::from_seed(1);
    for _ in 0..5_000 {
        let first = std::sync::atomic::AtomicBool::new(true);
        let call = hedge.call(|| {
            let clock = clock.clone();
            let first = first.swap(false, SeqCst);
            (if first { &calls } else { &hedges }).fetch_add(1, SeqCst);
            let takes = if first { 10 + entropy.up_to(100) } else { 10 };
            async move {
                clock.sleep(MS(takes)).await;
                Ok::<_, ()>(())
            }
        });
        time.block_on(call).unwrap();
    }
    let share = f64::from(hedges.load(SeqCst)) / f64::from(calls.load(SeqCst));
    assert!((0.04..=0.06).contains(&share), "{share}");
    assert!((MS(102)..=MS(108)).contains(&hedge.delay()), "{:?}", hedge.delay());
}

// Guarantee: hedge 6.
#[test]
fn a_hedge_works_in_the_standard_order_of_policies() {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new("hang, ok in 20ms", &clock).unwrap();
    let budget = RetryBudget::new(RetryBudgetConfig::default()).unwrap();
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1)).clock(&clock).build().unwrap();
    let breaker =
        CircuitBreaker::builder(CircuitBreakerConfig::default().count_window(20, 20)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new()
        .then(Timeout::builder(MS(5000)).clock(&clock).build())
        .then(limiter.clone())
        .then(Retry::builder(RetryConfig::default().idempotent(true)).clock(&clock).budget(&budget).build().unwrap())
        .then(
            Hedge::builder(HedgeConfig::after(MS(50)).idempotent(true)).clock(&clock).budget(&budget).build().unwrap(),
        )
        .then(breaker.clone())
        .then(Timeout::builder(MS(100)).clock(&clock).build())
        .classify(ScriptedService::classify);
    assert_eq!(pipeline.explain().warnings(), [""; 0]);
    let start = time.now();
    assert_eq!(time.block_on(pipeline.call(|| service.call())).unwrap(), 200);
    assert_eq!((time.now() - start, limiter.available(), service.running()), (MS(70), 1, 0));
    // The dropped attempt is neither a failure nor a success.
    assert_eq!((breaker.snapshot().calls, breaker.snapshot().failures), (1, 0));
    // The same through a boxed pipeline.
    let boxed = pipeline.boxed::<u16, steadfast::testing::ScriptedError>();
    let service = ScriptedService::new("hang, ok in 20ms", &clock).unwrap();
    assert_eq!(time.block_on(boxed.call(|| service.call())).unwrap(), 200);
    assert_eq!((service.calls(), breaker.snapshot().calls), (2, 2));
}

// Guarantee: hedge 3.
#[test]
fn the_time_out_of_an_attempt_starts_the_next_attempt() {
    let (hedge, service, clock, time) = world("hang, ok in 20ms", HedgeConfig::after(MS(200)).idempotent(true));
    let pipeline = Pipeline::new().then(hedge).then(Timeout::builder(MS(100)).clock(&clock).build());
    let warnings = pipeline.explain().warnings();
    assert!(warnings.iter().any(|w| w.contains("fires first")), "{warnings:?}");
    time.block_on(pipeline.call(|| service.call())).unwrap();
    assert_eq!(service.gaps(), [MS(100)]);
}

// Guarantee: hedge 6.
#[test]
fn a_dropped_attempt_returns_its_permit_of_a_half_open_breaker() {
    let (clock, time) = Clock::manual();
    let breaker =
        CircuitBreaker::builder(CircuitBreakerConfig::default().half_open_calls(2, 1.0)).clock(&clock).build().unwrap();
    breaker.force_open(MS(1));
    time.advance(MS(1));
    let service = ScriptedService::new("ok in 1s, ok in 10ms", &clock).unwrap();
    let hedge = Hedge::builder(HedgeConfig::after(MS(50)).idempotent(true)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(hedge).then(breaker.clone());
    time.block_on(pipeline.call(|| service.call())).unwrap();
    // Both permits were taken, one success was recorded, and the dropped attempt returned its
    // permit.
    assert_eq!(breaker.state(), State::HalfOpen);
    breaker.try_acquire().unwrap().record(steadfast::Verdict::success());
    assert_eq!(breaker.state(), State::Closed);
}

// Guarantee: hedge 7.
#[test]
fn a_rejection_inside_stops_hedging_but_hides_no_result() {
    let (clock, time) = Clock::manual();
    let places = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1).queue(0).max_wait(MS(1)))
        .clock(&clock)
        .build()
        .unwrap();
    let hedge =
        Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true).max_attempts(3)).clock(&clock).build().unwrap();
    let mut events = hedge.events();
    let pipeline = Pipeline::new().then(hedge).then(places);
    let service = ScriptedService::new("ok in 100ms, 503 in 100ms", &clock).unwrap();
    time.block_on(pipeline.call(|| service.call())).unwrap();
    let told = told(&mut events);
    let HedgeEvent::Suppressed { reason: SuppressReason::Rejected, cause: Some(Cause::Rejected(rejected)) } = &told[1]
    else {
        panic!("{told:?}")
    };
    assert_eq!((told.len(), rejected.by(), rejected.reason()), (2, PolicyKind::ConcurrencyLimit, Reason::QueueFull));
    // The attempt's failure is the result, not the rejection of the hedged attempt.
    let error = time.block_on(pipeline.call(|| service.call())).unwrap_err();
    assert!(matches!(error.cause(), Cause::Operation(_)), "{error}");
    assert_eq!((service.calls(), error.attempts()), (2, 1));
}

// Guarantee: hedge 1.
#[test]
fn an_operation_can_read_the_number_of_its_attempt() {
    let (hedge, _, clock, time) = world("ok", HedgeConfig::after(MS(10)).idempotent(true).max_attempts(3));
    let retry = Retry::builder(RetryConfig::default().idempotent(true).max_attempts(2))
        .clock(&clock)
        .delays(|| [Duration::ZERO].into_iter())
        .build()
        .unwrap();
    let pipeline = Pipeline::new().then(retry).then(hedge);
    let seen = std::sync::Mutex::new(Vec::new());
    let error = time.block_on(pipeline.call_with(|attempt| {
        seen.lock().unwrap().push((attempt.number(), attempt.hedge()));
        let clock = clock.clone();
        async move {
            clock.sleep(MS(100)).await;
            Err::<(), _>("no")
        }
    }));
    assert_eq!(error.unwrap_err().attempts(), 6);
    assert_eq!(*seen.lock().unwrap(), [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]);
}

/// One attempt of a script, as the model sees it.
#[derive(Debug, Clone, Copy)]
struct Act {
    ms: u64,
    does: &'static str,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let does = prop::sample::select(vec!["ok", "ok", "503", "503", "404", "429 retry-after 1h"]);
    prop::collection::vec((0..60u64, does).prop_map(|(ms, does)| Act { ms, does }), 6)
}

impl Act {
    /// Attempt number `n` takes 2^n ns more than its milliseconds, so that no two events coincide.
    fn takes(self, n: usize) -> u64 {
        self.ms * 1_000_000 + (1 << n)
    }
}

/// The model: the end of the call, its result, and the number of attempts.
fn naive(acts: &[Act], max: usize, delay: u64) -> (u64, &'static str, usize) {
    let mut ends = vec![(acts[0].takes(0), 0)];
    let (mut started, mut due, mut held, mut last) = (1, delay, false, "");
    loop {
        ends.sort_unstable();
        let may = !held && started < max;
        let late = may && ends.first().is_none_or(|(at, _)| due < *at) && !ends.is_empty();
        let now = if late { due } else { ends.first().map_or(u64::MAX, |(at, _)| *at) };
        if !late {
            let (_, n) = ends.remove(0);
            match acts[n].does {
                fatal @ ("ok" | "404") => return (now, fatal, started),
                failed => {
                    last = failed;
                    held |= failed != "503";
                }
            }
        }
        if !held && started < max {
            ends.push((now + acts[started].takes(started), started));
            started += 1;
            due = now + delay;
        }
        if ends.is_empty() {
            return (now, last, started);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    // Guarantee: hedge 1, 3, 6.
    #[test]
    fn a_hedged_call_behaves_as_a_naive_model_of_its_timeline(acts in acts(), max in 1usize..=6, delay in 0u64..40) {
        let (clock, time) = Clock::manual();
        let script: Vec<_> = acts.iter().enumerate().map(|(n, act)| format!("{} in {}ns", act.does, act.takes(n))).collect();
        let service = ScriptedService::new(&script.join(", "), &clock).unwrap();
        let hedge = Hedge::builder(HedgeConfig::after(MS(delay)).idempotent(true).max_attempts(max as u32)).clock(&clock).build().unwrap();
        let pipeline = Pipeline::new().then(hedge).classify(ScriptedService::classify);
        let start = time.now();
        let result = time.block_on(pipeline.call(|| service.call()));
        let kind = result.as_ref().map_or_else(|error| error.verdict().kind(), |_| None);
        let (at, does, attempts) = naive(&acts, max, delay * 1_000_000);
        let expected = match does {
            "ok" => None,
            "503" => Some(FailureKind::Overloaded),
            "404" => Some(FailureKind::Client),
            _ => Some(FailureKind::Throttled),
        };
        prop_assert_eq!(kind, expected);
        prop_assert_eq!(((time.now() - start).as_nanos() as u64, service.calls()), (at, attempts));
        prop_assert_eq!(service.running(), 0);
        if let Err(error) = result {
            prop_assert_eq!(error.attempts() as usize, attempts);
        }
    }
}

// Guarantee: hedge 5.
/// By each door, an operation without a mark runs once, however slow it is or fails.
#[test]
fn an_unmarked_operation_is_never_hedged_by_default() {
    let (hedge, service, clock, time) = world("ok in 2s", HedgeConfig::after(MS(50)));
    let pipeline = steadfast::Pipeline::new().then(hedge.clone());
    let answer = time.block_on(hedge.call(|| service.call()));
    assert_eq!((answer.unwrap(), service.calls()), (200, 1));
    time.block_on(pipeline.call(|| service.call())).unwrap();
    assert_eq!(service.calls(), 2);
    time.block_on(pipeline.boxed::<u16, steadfast::testing::ScriptedError>().call(|| service.call())).unwrap();
    assert_eq!(service.calls(), 3);
    let config = steadfast::standard::StandardConfig::default().hedge(HedgeConfig::after(MS(50)));
    let standard = steadfast::standard::Standard::builder(config).clock(&clock).build().unwrap().into_pipeline();
    time.block_on(standard.call(|| service.call())).unwrap();
    assert_eq!(service.calls(), 4);
    time.block_on(standard.call(steadfast::call::idempotent(|| service.call()))).unwrap();
    assert_eq!(service.calls(), 6);
}
