//! What stands around the calls of each service.
use std::{sync::Arc, time::Duration};

use hyper::StatusCode;
use steadfast::{
    BoxedPipeline, ConfigError, Pipeline,
    backoff::BackoffConfig,
    cache_aside::CacheAsideConfig,
    call::{Identity, Stack},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, HalfOpenConfig, OpenConfig, TripConfig},
    entropy::Entropy,
    port::ByFailure,
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    sharding::ShardId,
    throttling::{Quota, RateLimitConfig, RateLimiter},
    time::Clock,
    timeout::Timeout,
};

use crate::{
    args::Args,
    client::{HttpError, classify},
    services::Service,
};

/// The pipeline of one service, and its breaker, for the report.
#[derive(Clone)]
pub struct Protection {
    pub pipeline: BoxedPipeline<StatusCode, HttpError>,
    pub breaker: Option<CircuitBreaker>,
}

impl Protection {
    /// All five.
    pub fn all(args: &Args, entropy: &Entropy) -> Result<Arc<[Self]>, ConfigError> {
        Service::ALL.into_iter().map(|service| Self::new(service, args, entropy)).collect()
    }

    /// How many calls its breaker has rejected.
    pub fn turned_away(&self) -> u64 {
        self.breaker.as_ref().map_or(0, |breaker| breaker.snapshot().rejected)
    }

    fn new(service: Service, args: &Args, entropy: &Entropy) -> Result<Self, ConfigError> {
        let bare = Pipeline::new().named(service.as_str()).classify(classify);
        if args.unprotected {
            return Ok(Self { pipeline: bare.boxed(), breaker: None });
        }
        let breaker = CircuitBreaker::new(
            CircuitBreakerConfig::default()
                .count_window(40, 10)
                .trip(TripConfig::default().failure_rate(0.5).consecutive_failures(8))
                .open(open())
                .half_open(half_open()),
        )?
        .named(service.as_str())
        .with_entropy(entropy);
        let retry = RetryConfig::default()
            .max_attempts(3)
            .backoff(BackoffConfig::default().between(Duration::from_millis(20), Duration::from_millis(200)))
            // A server that wants to be left alone for longer fails the call at once, with the hint: the request is put back
            // until then, and its worker does something else.
            .max_hint(Duration::from_millis(200));
        let pipeline = bare
            .then(Timeout::new(CALL).named("call"))
            .then(
                Retry::new(retry)?
                    .named(service.as_str())
                    .with_entropy(entropy)
                    .with_budget(&RetryBudget::new(RetryBudgetConfig::default())?),
            )
            .then(breaker.clone())
            // Inside the breaker: a call that it rejects takes no turn from one that it lets through.
            .then(pace(args)?.map(|pace| pace.named(service.as_str())))
            .then(Timeout::new(Duration::from_millis(300)).named("attempt"));
        Ok(Self { pipeline: pipeline.boxed(), breaker: Some(breaker) })
    }
}

/// What stands around the calls of one shard: the others' breakers have no part in it. Nothing is tried again here: what failed is put back, and
/// comes again when its shard does.
pub type ShardPipeline = Pipeline<Stack<Stack<Identity, CircuitBreaker>, Timeout>, ByFailure>;

/// The pipeline of one shard, and its breaker, for the report.
pub fn shard(shard: ShardId, clock: &Clock, entropy: &Entropy) -> Result<(ShardPipeline, CircuitBreaker), ConfigError> {
    let trip = TripConfig::default().failure_rate(0.5).consecutive_failures(5);
    let config = CircuitBreakerConfig::default().count_window(40, 10).trip(trip).open(open()).half_open(half_open());
    let breaker = CircuitBreaker::new(config)?.named(shard.to_string()).with_clock(clock).with_entropy(entropy);
    let attempt = Timeout::new(CALL).named("shard").with_clock(clock);
    let pipeline = Pipeline::new().classify(ByFailure).then(breaker.clone()).then(attempt);
    Ok((pipeline.named(shard.to_string()), breaker))
}

/// How accounts are cached. An account that is suspended is looked up anew after one second, give or take a tenth and the time of a look-up: that is
/// the bound within which a suspension is honoured. What is expired is not served, also while the service is away: who may have
/// been suspended waits.
pub fn accounts() -> CacheAsideConfig {
    let second = Duration::from_secs(1);
    // The pipeline has its own time-outs.
    CacheAsideConfig::default().capacity(100_000).ttl(second, second / 10).hard_timeout(None)
}

/// For how long after a suspension a request may pass, at the most: the times of a copy, and those of the look-up that made it.
pub fn honoured_within() -> Duration {
    accounts().ttl + accounts().jitter + CALL
}

/// The longest that a call may take, with its retries.
const CALL: Duration = Duration::from_secs(2);

/// Where starts are bounded so are each service's calls, at twice that: a service that comes back after a crash meets all
/// the work that waited for it, and should not fall over again.
fn pace(args: &Args) -> Result<Option<RateLimiter>, ConfigError> {
    let Some(rate) = args.rate() else { return Ok(None) };
    let quota = Quota::per_second(rate.saturating_mul(2)).burst((rate / 50).max(1));
    RateLimiter::new(RateLimitConfig::from(quota).max_wait(Duration::from_millis(500))).map(Some)
}

/// The services here crash for seconds, not for minutes: so the breaker looks again soon.
fn open() -> OpenConfig {
    let mut open = OpenConfig::default();
    (open.initial_delay, open.max_delay, open.reset_after) =
        (Duration::from_millis(300), Duration::from_millis(1200), Duration::from_secs(5));
    open
}

fn half_open() -> HalfOpenConfig {
    let mut half_open = HalfOpenConfig::default();
    (half_open.permitted_calls, half_open.success_rate, half_open.max_duration) = (3, 0.6, Duration::from_secs(1));
    half_open
}
