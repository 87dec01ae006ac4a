//! The pipelines of the services and shards.
use std::{sync::Arc, time::Duration};

use hyper::StatusCode;
use steadfast::{
    BoxedPipeline, ConfigError, Pipeline,
    backoff::BackoffConfig,
    cache_aside::CacheAsideConfig,
    call::Identity,
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
    /// Builds the pipelines of all five services.
    pub fn all(args: &Args, entropy: &Entropy) -> Result<Arc<[Self]>, ConfigError> {
        Service::ALL.into_iter().map(|service| Self::new(service, args, entropy)).collect()
    }

    /// Returns the number of calls that the breaker rejected.
    pub fn turned_away(&self) -> u64 {
        self.breaker.as_ref().map_or(0, |breaker| breaker.snapshot().rejected)
    }

    fn new(service: Service, args: &Args, entropy: &Entropy) -> Result<Self, ConfigError> {
        let bare = Pipeline::new().named(service.as_str()).classify(classify);
        if args.unprotected {
            return Ok(Self { pipeline: bare.boxed(), breaker: None });
        }
        let breaker = CircuitBreaker::builder(
            CircuitBreakerConfig::default()
                .count_window(40, 10)
                .trip(TripConfig::default().failure_rate(0.5).consecutive_failures(8))
                .open(open())
                .half_open(half_open()),
        )
        .name(service.as_str())
        .entropy(entropy)
        .build()?;
        let retry = RetryConfig::default()
            .max_attempts(3)
            .backoff(BackoffConfig::default().between(Duration::from_millis(20), Duration::from_millis(200)))
            // A longer hint fails the call at once: the request is deferred until then, and its worker continues with another.
            .max_hint(Duration::from_millis(200));
        let pipeline = bare
            .then(Timeout::builder(CALL).name("call").build())
            .then(
                Retry::builder(retry)
                    .name(service.as_str())
                    .entropy(entropy)
                    .budget(&RetryBudget::new(RetryBudgetConfig::default())?)
                    .build()?,
            )
            .then(breaker.clone())
            // Inside the breaker: rejected calls use no permits.
            .then(pace(service, args)?)
            .then(Timeout::builder(Duration::from_millis(300)).name("attempt").build());
        Ok(Self { pipeline: pipeline.boxed(), breaker: Some(breaker) })
    }
}

/// The policies around the calls of one shard, with its own breaker. Nothing is retried here: a failed call is deferred
/// and repeated when its shard is available.
pub type ShardPipeline = Pipeline<((Identity, CircuitBreaker), Timeout), ByFailure>;

/// The pipeline of one shard, and its breaker, for the report.
pub fn shard(shard: ShardId, clock: &Clock, entropy: &Entropy) -> Result<(ShardPipeline, CircuitBreaker), ConfigError> {
    let trip = TripConfig::default().failure_rate(0.5).consecutive_failures(5);
    let config = CircuitBreakerConfig::default().count_window(40, 10).trip(trip).open(open()).half_open(half_open());
    let breaker = CircuitBreaker::builder(config).name(shard.to_string()).clock(clock).entropy(entropy).build()?;
    let attempt = Timeout::builder(CALL).name("shard").clock(clock).build();
    let pipeline = Pipeline::new().classify(ByFailure).then(breaker.clone()).then(attempt);
    Ok((pipeline.named(shard.to_string()), breaker))
}

/// Settings of the account cache. An account is read again after one second, plus or minus a tenth and the duration of a
/// read: that bounds the time until a suspension takes effect. Expired entries are not served, not even while the
/// service is down: a possibly suspended owner waits.
pub fn accounts() -> CacheAsideConfig {
    let second = Duration::from_secs(1);
    // The pipeline has its own time-outs.
    CacheAsideConfig::default().capacity(100_000).ttl(second).jitter(second / 10).hard_timeout(None)
}

/// Maximum time after a suspension in which a request may pass: the lifetime of a copy, and the duration of its read.
pub fn honoured_within() -> Duration {
    accounts().ttl + accounts().jitter + CALL
}

/// Maximum duration of a call with its retries.
const CALL: Duration = Duration::from_secs(2);

/// Rate limit of each service's calls: twice the rate of starts, if that is limited. It protects a service that recovers
/// from a crash from all the waiting work. A 503 is about its own request, which is deferred as long as it says; it does
/// not pause the others.
fn pace(service: Service, args: &Args) -> Result<Option<RateLimiter>, ConfigError> {
    let Some(rate) = args.rate() else { return Ok(None) };
    let quota = Quota::per_second(rate.saturating_mul(2)).burst((rate / 50).max(1));
    let config = RateLimitConfig::from(quota).max_wait(Duration::from_millis(500)).max_hint(Duration::ZERO);
    RateLimiter::builder(config).name(service.as_str()).build().map(Some)
}

/// Settings of the open state: the services crash for seconds, not minutes, so the breaker probes soon.
fn open() -> OpenConfig {
    OpenConfig::default()
        .initial_delay(Duration::from_millis(300))
        .max_delay(Duration::from_millis(1200))
        .reset_after(Duration::from_secs(5))
}

fn half_open() -> HalfOpenConfig {
    HalfOpenConfig::default().permitted_calls(3).success_rate(0.6).max_duration(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// Regression: the pace of a service that sheds one request in fifty fell to a sixth of its rate.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_a_service_sheds_does_not_pause_the_others() {
        let args = Args::parse_from(["drone_delivery", "--rate", "300"]);
        let service = Protection::new(Service::Drone, &args, &Entropy::from_seed(1)).unwrap();
        let (clock, shed) = (Clock::tokio(), Some(Duration::from_secs(1)));
        let before = clock.now();
        let sheds = || HttpError::Status { status: StatusCode::SERVICE_UNAVAILABLE, retry_after: shed };
        let refused = service.pipeline.call(async || Err(sheds())).await;
        assert_eq!(refused.unwrap_err().retry_after(), shed);
        service.pipeline.call(async || Ok(StatusCode::OK)).await.unwrap();
        assert_eq!(clock.now(), before);
    }
}
