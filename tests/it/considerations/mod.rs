//! The considerations of the patterns' sources that a default, a rejection or a warning meets, one
//! assertion each.
//! Considerations that only a page meets, and parts that do not exist yet, are not here. The
//! numbers are those of `docs/considerations.md`.
mod cache;
mod leader;
mod listener;
mod pages;
mod saga;
mod scheduler;
mod sharding;

use std::time::Duration;

use steadfast::{
    Cause, FailureKind, Hint, Pipeline, Priority, Reason, Verdict,
    backoff::{BackoffConfig, Jitter},
    call::not_idempotent,
    circuit_breaker::{
        CircuitBreaker, CircuitBreakerConfig, CircuitBreakerEvent, KeyedBreakers, OpenConfig, State, TripConfig,
    },
    entropy::Entropy,
    outcome::TripRule,
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig, RetryEvent},
    testing::ManualClock,
    throttling::{
        AdaptiveLimitConfig, AdaptiveLimiter, ClientThrottle, ClientThrottleConfig, Degradation, DegradationConfig,
        KeyedRateLimitConfig, KeyedRateLimiter, PriorityShares, Quota, RateLimiter, Shedder, ShedderConfig,
    },
    time::Clock,
    timeout::Timeout,
};

const S: fn(u64) -> Duration = Duration::from_secs;

fn breaker(config: CircuitBreakerConfig) -> (CircuitBreaker, ManualClock) {
    let (clock, time) = Clock::manual();
    (CircuitBreaker::builder(config).clock(&clock).entropy(&Entropy::from_seed(1)).build().unwrap(), time)
}

fn retry(config: RetryConfig) -> (Retry, ManualClock) {
    let (clock, time) = Clock::manual();
    (Retry::builder(config).clock(&clock).entropy(&Entropy::from_seed(1)).build().unwrap(), time)
}

fn fail(breaker: &CircuitBreaker, kind: FailureKind, times: u32) {
    (0..times).for_each(|_| breaker.try_acquire().unwrap().record(Verdict::failure(kind)));
}

fn in_a_row(n: u32) -> CircuitBreakerConfig {
    CircuitBreakerConfig::default().trip(TripConfig::default().consecutive_failures(n))
}

/// 1: the rejection states when to retry.
#[test]
fn a_rejection_states_when_to_retry() {
    let (breaker, _) = breaker(in_a_row(1));
    fail(&breaker, FailureKind::Server, 1);
    let wait = breaker.try_acquire().unwrap_err().retry_after().unwrap();
    assert!((S(5)..=S(5) * 11 / 10).contains(&wait), "{wait:?}");
}

/// 2 (default): it trips after more time-outs than refused connections.
#[test]
fn a_breaker_weighs_kinds_of_failure_differently() {
    let trips_after = |kind| {
        let rules = TripConfig::default().weighted_failures(6, S(10));
        let (breaker, _) = breaker(CircuitBreakerConfig::default().trip(rules));
        (1..).find(|_| {
            fail(&breaker, kind, 1);
            breaker.state() == State::Open
        })
    };
    assert_eq!((trips_after(FailureKind::Connect), trips_after(FailureKind::Timeout)), (Some(2), Some(6)));
}

/// 3 (default), 13 (default): failed calls and state transitions are events.
#[test]
fn failed_calls_and_state_transitions_are_events() {
    let (breaker, time) = breaker(in_a_row(2).half_open_calls(1, 1.0));
    let mut events = breaker.events();
    breaker.try_acquire().unwrap().record(Verdict::success());
    fail(&breaker, FailureKind::Server, 2);
    time.advance(S(60));
    breaker.try_acquire().unwrap().record(Verdict::success());
    let told: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect();
    let failed = CircuitBreakerEvent::Failed { kind: FailureKind::Server };
    assert_eq!(told[..2], [failed, failed]);
    assert!(matches!(told[2], CircuitBreakerEvent::Opened { rule: TripRule::ConsecutiveFailures, openings: 1, .. }));
    assert_eq!(told[3..], [CircuitBreakerEvent::HalfOpened, CircuitBreakerEvent::Closed]);
}

/// 4 (default): the open time grows with repeated openings, and decays after a calm time.
#[test]
fn the_open_time_grows_with_repeated_openings() {
    let open = OpenConfig::default().jitter(0.0);
    let (breaker, time) = breaker(in_a_row(1).open(open).half_open_calls(1, 1.0));
    let open_for = || {
        fail(&breaker, FailureKind::Server, 1);
        let open_for = breaker.snapshot().retry_after.unwrap();
        time.advance(open_for);
        breaker.try_acquire().unwrap().record(Verdict::success());
        open_for
    };
    assert_eq!([open_for(), open_for(), open_for()], [S(5), S(10), S(20)]);
    time.advance(S(3 * 60));
    assert_eq!(open_for(), S(5));
}

/// 5 (option): recovery by a probe instead of by callers.
#[test]
fn a_probe_detects_recovery() {
    let (clock, time) = Clock::manual();
    let breaker = CircuitBreaker::builder(in_a_row(1).half_open_calls(1, 1.0)).clock(&clock).build().unwrap();
    fail(&breaker, FailureKind::Server, 1);
    time.block_on(breaker.run(async || Ok::<_, ()>(()), clock.sleep(S(10))));
    assert_eq!(breaker.state(), State::Closed);
}

/// 8 (option): a failing shard does not open the breakers of others.
#[test]
fn each_shard_has_its_own_breaker() {
    let shards = KeyedBreakers::new(in_a_row(1)).unwrap();
    fail(&shards.get(&1), FailureKind::Server, 1);
    assert_eq!((shards.get(&1).state(), shards.get(&2).state()), (State::Open, State::Closed));
}

/// 6 (default): manual operation.
#[test]
fn a_breaker_can_be_operated_manually() {
    let (breaker, _) = breaker(CircuitBreakerConfig::default());
    breaker.force_open(S(60));
    assert_eq!(breaker.state(), State::Open);
    breaker.reset();
    assert_eq!(breaker.state(), State::Closed);
    breaker.isolate();
    assert!(matches!(breaker.try_acquire().unwrap_err().reason(), Reason::Isolated { .. }));
}

/// 7 (default).
#[test]
fn a_call_that_hangs_delays_none_of_ten_thousand_others() {
    let (breaker, time) = breaker(CircuitBreakerConfig::default().count_window(20_000, 10_000));
    let pipeline = Pipeline::new().then(breaker.clone());
    let start = time.now();
    time.block_on(async {
        let mut hangs = Box::pin(pipeline.call(std::future::pending::<Result<(), ()>>));
        assert!(futures::poll!(&mut hangs).is_pending());
        let others = (0..10_000).map(|n| pipeline.call(move || async move { if n % 4 == 0 { Err(n) } else { Ok(n) } }));
        let answers = futures::future::join_all(others).await;
        assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 2_500);
        assert!(futures::poll!(&mut hangs).is_pending());
    });
    assert_eq!((time.now(), breaker.state(), breaker.snapshot().calls), (start, State::Closed, 10_000));
}

/// 9 (default): an announced outage opens it at once, for the stated time.
#[test]
fn an_announced_outage_opens_a_breaker_for_its_duration() {
    let (breaker, _) = breaker(CircuitBreakerConfig::default());
    let away = Verdict::failure(FailureKind::Overloaded).with_hint(Hint::UnavailableFor(S(300)));
    breaker.try_acquire().unwrap().record(away);
    assert_eq!(breaker.snapshot().retry_after, Some(S(300)));
}

/// 11 (warning): a breaker without a time-out inside; slow calls have a trip rule of their own.
#[test]
fn calls_that_hang_open_a_breaker_with_a_time_out() {
    let (breaker, time) = breaker(CircuitBreakerConfig::default().trip(TripConfig::default().slow_calls(0.5, S(1))));
    let warnings = Pipeline::new().then(Timeout::new(S(60))).then(breaker.clone()).explain().warnings();
    assert!(warnings.iter().any(|w| w.contains("no time-out inside it")), "{warnings:?}");
    let slow: Vec<_> = (0..20).map(|_| breaker.try_acquire().unwrap()).collect();
    time.advance(S(30));
    slow.into_iter().for_each(|permit| permit.record(Verdict::success()));
    assert_eq!(breaker.state(), State::Open);
}

/// 12 (default): an outer retry stops at its rejection.
#[test]
fn a_retry_stops_at_the_rejection_of_a_breaker() {
    let (breaker, time) = breaker(CircuitBreakerConfig::default());
    breaker.force_open(S(60));
    let pipeline = Pipeline::new().then(retry(RetryConfig::default().idempotent(true).max_attempts(9)).0).then(breaker);
    let error = time.block_on(pipeline.call(|| async { Ok::<_, ()>(()) })).unwrap_err();
    assert_eq!((error.attempts(), time.next_timer()), (0, None));
    assert!(matches!(error.into_cause(), Cause::Rejected(_)));
}

/// 1 (default): presets for interactive and batch work.
#[test]
fn presets_for_interactive_and_batch_work_differ() {
    let (quick, patient) = (RetryConfig::interactive(), RetryConfig::batch());
    assert!(quick.max_attempts < patient.max_attempts && quick.backoff.cap < patient.backoff.cap);
    assert!(quick.max_elapsed.is_some() && patient.max_elapsed.is_none());
}

/// 2 and 3 (warnings): no jitter, no budget, no breaker.
#[test]
fn explain_warns_about_an_aggressive_retry() {
    let aggressive = RetryConfig::default().idempotent(true).backoff(BackoffConfig::default().jitter(Jitter::None));
    let warns = |pipeline: &steadfast::call::Explanation, word| pipeline.warnings().iter().any(|w| w.contains(word));
    let alone = Pipeline::new().then(retry(aggressive).0).explain();
    assert!(warns(&alone, "without jitter") && warns(&alone, "neither a budget nor a circuit breaker"));
    let budget = RetryBudget::new(RetryBudgetConfig::default()).unwrap();
    let tame = Pipeline::new()
        .then(Retry::builder(RetryConfig::default().idempotent(true)).budget(&budget).build().unwrap())
        .then(Timeout::new(S(1)));
    assert_eq!(tame.explain().warnings(), [""; 0]);
}

/// 4 (default): an operation that is not idempotent is repeated only if it was certainly not sent.
#[test]
fn an_operation_that_is_not_idempotent_is_sent_once() {
    for (kind, attempts) in [(FailureKind::Timeout, 1), (FailureKind::Connect, 3)] {
        let (retry, time) = retry(RetryConfig::default().idempotent(true));
        let pipeline = Pipeline::new().then(retry).classify(move |_: &Result<(), ()>| Verdict::failure(kind));
        let error = time.block_on(pipeline.call(not_idempotent(|| async { Err(()) }))).unwrap_err();
        assert_eq!(error.attempts(), attempts, "{kind}");
    }
}

/// 5 (default): the delay follows the server's hint, and the kind of failure decides if there is
/// another attempt.
#[test]
fn the_delay_fits_the_kind_of_failure() {
    let (retry, time) = retry(RetryConfig::default().idempotent(true).max_attempts(2));
    let (start, throttled) = (time.now(), Verdict::failure(FailureKind::Throttled).with_retry_after(S(7)));
    let pipeline = Pipeline::new().then(retry);
    let asked = pipeline.clone().classify(move |_: &Result<(), ()>| throttled);
    time.block_on(asked.call(|| async { Err(()) })).unwrap_err();
    assert!(time.now() - start >= S(7));
    let own_fault = pipeline.classify(|_: &Result<(), ()>| Verdict::failure(FailureKind::Client));
    assert_eq!(time.block_on(own_fault.call(|| async { Err(()) })).unwrap_err().attempts(), 1);
}

/// 7 (default): nested retries do not multiply.
#[test]
fn nested_retries_do_not_multiply() {
    let (retry, time) = retry(RetryConfig::default().idempotent(true));
    let pipeline = Pipeline::new().then(retry.clone()).then(retry);
    assert_eq!(time.block_on(pipeline.call(|| async { Err::<(), _>(()) })).unwrap_err().attempts(), 3);
}

/// 8 (default): every failure that led to a retry is an event.
#[test]
fn every_retried_failure_is_an_event() {
    let (retry, time) = retry(RetryConfig::default().idempotent(true));
    let mut events = retry.events();
    time.block_on(retry.call(|| async { Err::<(), _>(()) })).unwrap_err();
    let told: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect();
    let attempt = |n, told: &RetryEvent| matches!(told, RetryEvent::Retrying { attempt, cause: Cause::Operation(_), .. } if *attempt == n);
    assert!(attempt(1, &told[0]) && attempt(2, &told[1]) && told.len() == 3, "{told:?}");
}

/// 9 (option): the first retry is immediate, the next ones have delays.
#[test]
fn a_rare_failure_can_be_retried_at_once() {
    let config = RetryConfig::default().idempotent(true).backoff(BackoffConfig::default().immediate_first(true));
    let (retry, time) = retry(config.max_attempts(2));
    let start = time.now();
    time.block_on(retry.call(|| async { Err::<(), _>(()) })).unwrap_err();
    assert_eq!(time.now(), start);
}

/// 10 (default).
#[test]
fn instances_that_failed_together_retry_spread_over_the_whole_delay() {
    let (clock, time) = Clock::manual();
    let config = RetryConfig::default().idempotent(true).max_attempts(2);
    let instances = (0..1_000).map(|n| {
        let retry = Retry::builder(config).clock(&clock).entropy(&Entropy::from_seed(n)).build().unwrap();
        let clock = &clock;
        async move {
            let mut last = clock.now();
            let call = retry.call(|| {
                last = clock.now();
                async { Err::<(), _>(()) }
            });
            call.await.unwrap_err();
            last
        }
    });
    let start = time.now();
    let back = time.block_on(futures::future::join_all(instances));
    let mut tenths = [0; 10];
    let tenth = config.backoff.base.as_nanos() / 10;
    back.iter().for_each(|at| tenths[((*at - start).as_nanos() / tenth) as usize] += 1);
    assert!(tenths.iter().all(|n| (60..=140).contains(n)), "{tenths:?}");
}

/// 2 (default): permits return one by one, so the limit releases as soon as the load eases.
#[test]
fn a_limit_reacts_at_once_and_releases_fast() {
    let (clock, time) = Clock::manual();
    let limiter = RateLimiter::builder(Quota::per_minute(60)).clock(&clock).build().unwrap();
    while limiter.try_acquire().is_ok() {}
    time.advance(S(1));
    assert!(limiter.try_acquire().is_ok());
}

/// 3 (default): a rejection is a specific error with a retry time.
#[test]
fn a_rejection_is_a_specific_error_with_a_retry_time() {
    let (clock, time) = Clock::manual();
    let limiter = RateLimiter::builder(Quota::per_minute(1)).clock(&clock).build().unwrap();
    limiter.try_acquire().unwrap();
    let error = time.block_on(limiter.call(|| async { Ok::<_, ()>(()) })).unwrap_err();
    assert!(error.is_rejected());
    assert_eq!((error.attempts(), error.retry_after()), (0, Some(S(60))));
}

/// 4 (option).
#[test]
fn a_raised_limit_admits_more_at_once() {
    let (clock, time) = Clock::manual();
    let limiter = RateLimiter::builder(Quota::per_second(10).burst(1)).clock(&clock).build().unwrap();
    let a_second = || {
        let passed = (0..1_000).filter(|_| {
            time.advance(Duration::from_millis(1));
            limiter.try_acquire().is_ok()
        });
        passed.count()
    };
    let before = a_second();
    limiter.reconfigure(limiter.config().with_quota(Quota::per_second(20).burst(1))).unwrap();
    let scaled_out = a_second();
    assert!((9..=11).contains(&before) && (19..=21).contains(&scaled_out), "{before} {scaled_out}");
}

/// 6 (warning): limits without headroom cause a warning.
#[test]
fn limits_without_headroom_cause_a_warning() {
    let narrow =
        Shedder::builder(ShedderConfig::default().limit("cpu", 0.9, 0.91)).gauge("cpu", || 0.0).build().unwrap();
    let shares = AdaptiveLimitConfig::default().shares(PriorityShares::new(1.0, 1.0, 1.0));
    let told = [
        (Pipeline::new().then(narrow).explain(), "no head-room"),
        (Pipeline::new().then(RateLimiter::new(Quota::per_second(10).burst(1)).unwrap()).explain(), "no head-room"),
        (
            Pipeline::new().then(ClientThrottle::new(ClientThrottleConfig::default().k(1.0)).unwrap()).explain(),
            "no head-room",
        ),
        (Pipeline::new().then(AdaptiveLimiter::new(shares).unwrap()).explain(), "reserve nothing"),
    ];
    for (explanation, what) in told {
        assert!(explanation.warnings().iter().any(|warning| warning.contains(what)), "{explanation}");
    }
}

/// 7 (default): the least important work is given up first, by switching it off or by shedding it;
/// the rejection says so.
#[test]
fn less_important_work_is_given_up_first() {
    let shedder =
        Shedder::builder(ShedderConfig::default().limit("cpu", 0.7, 0.9)).gauge("cpu", || 0.8).build().unwrap();
    assert!(shedder.try_acquire(Priority::Low).unwrap_err().is_shed());
    assert!(shedder.try_acquire(Priority::High).is_ok());
    let degradation = Degradation::builder(DegradationConfig::of(["avatars", "search"]).limit("cpu", 0.7, 0.9))
        .gauge("cpu", || 0.8)
        .build()
        .unwrap();
    assert!(degradation.feature("avatars").unwrap().ensure_enabled().unwrap_err().is_shed());
    assert!(degradation.feature("search").unwrap().ensure_enabled().is_ok());
}

/// 7 and 8 (defaults): each tenant has its own rate, and none takes another's share.
#[test]
fn each_tenant_has_its_own_rate() {
    let (clock, _) = Clock::manual();
    let config = KeyedRateLimitConfig::from(Quota::per_minute(1)).tiers([Quota::per_minute(5)]);
    let gold = |tenant: &&str| (*tenant == "gold").then_some(0);
    let limiter = KeyedRateLimiter::builder(config).tier_of(gold).clock(&clock).build().unwrap();
    let taken = ["tin", "gold", "other"].map(|tenant| (0..9).filter(|_| limiter.try_acquire(&tenant).is_ok()).count());
    assert_eq!(taken, [1, 5, 1]);
}

#[test]
fn a_breaker_without_a_name_causes_a_warning() {
    let warns = |explanation: steadfast::call::Explanation| {
        explanation.warnings().iter().any(|warning| warning.contains("opens for all when one fails"))
    };
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    assert!(warns(breaker.explain()), "{}", breaker.explain());
    assert!(!warns(
        CircuitBreaker::builder(CircuitBreakerConfig::default()).name("bank-eu-1").build().unwrap().explain()
    ));
    // A registry has one breaker per key.
    let registry: KeyedBreakers<String> = KeyedBreakers::new(CircuitBreakerConfig::default()).unwrap();
    assert!(!warns(registry.explain()));
    assert!(
        registry.explain().to_string().contains("circuit breaker: opens on 50 % failures"),
        "{}",
        registry.explain()
    );
    // Other risky settings cause warnings here, too.
    let eager = CircuitBreakerConfig::default().count_window(10, 2);
    let eager: KeyedBreakers<String> = KeyedBreakers::new(eager).unwrap();
    assert!(eager.explain().warnings().iter().any(|warning| warning.contains("head-room")), "{}", eager.explain());
}
