//! Throttling: how often, and how much at once.
//!
//! A [`RateLimiter`] bounds calls in a time, a [`KeyedRateLimiter`] does so for each tenant, a [`ConcurrencyLimiter`] (a bulkhead)
//! bounds calls that run at once, an [`AdaptiveLimiter`] finds that bound by itself.
//!
//! # When, and when not
//!
//! When service levels must hold, when no tenant may take all, when bursts come, when cost has a ceiling. A rate limit protects the
//! other side from this one (or a price per call); a concurrency limit protects this side from a slow other side. Not in place of
//! scaling: it is a stop-gap while that happens.
//!
//! # Defaults
//!
//! | setting | rate limit | concurrency limit |
//! |---|---|---|
//! | how much | 100 a second, all at once if need be | 32 at once |
//! | waiting | not at all | 128 wait for at most 1 s |
//! | order | of arrival | of arrival, or newest first |
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter, Quota, RateLimiter}, time::Clock};
//!
//! let (clock, hand) = Clock::manual();
//! let limiter = RateLimiter::new(Quota::per_second(10).burst(2)).unwrap().with_clock(&clock);
//! assert!(limiter.check().is_ok());
//! assert!(limiter.check().is_ok());
//! let rejected = limiter.check().unwrap_err();
//! assert_eq!(rejected.retry_after(), Some(Duration::from_millis(100))); // exact
//! hand.advance(Duration::from_millis(100));
//! assert!(limiter.check().is_ok());
//!
//! let places = ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(1)).unwrap();
//! let place = places.try_acquire().unwrap();
//! assert!(places.try_acquire().is_err());
//! drop(place);
//! assert!(places.try_acquire().is_ok());
//! ```
//!
//! # Composing
//!
//! Rate limit outside concurrency limit, both outside the retry: what is refused costs the other side nothing, and a call that waits
//! for its turn holds no place. Both see the call's deadline, and refuse at once what could not begin before it.
//!
//! # Cancel safety
//!
//! A call that is dropped while it waits leaves the queue, and those behind it move up. A place is free again when its permit is
//! dropped, also by a panic. A rate limit's permit, once its turn has come, is used.
//!
//! # Events
//!
//! [`ThrottlingEvent`]: rejected, queued, limit changed. The keyed limiter has none: its errors tell the caller.
//!
//! # Considerations
//!
//! 1. Throttling is decided early, as part of the design: it shows in the interface, as an error with a time to come back.
//! 2. It reacts fast and lets go fast: permits come back continuously, not at the end of a window. (default)
//! 3. A refusal is a specific error with a time to come back: [`Rejected`](crate::Rejected). (default)
//! 4. A stop-gap while scaling out: [`RateLimiter::set_quota`] and [`ConcurrencyLimiter::resize`] follow the capacity while in use.
//! 5. If scaling costs more than a short refusal, refuse.
//! 6. If demand outruns throttling itself, keep reserve: a refusal costs some tens of nanoseconds, but not nothing.
//! 7. Strategies: reject over a rate per tenant ([`KeyedRateLimiter::with_tiers`]); shedding by priority and deferring come with a
//!    later version.
//! 8. Metering per tenant: the keyed limiter is the meter. (default)
//!
//! # Pitfalls
//!
//! An adaptive limit takes latency for load. Where calls differ in kind, give each kind a limiter of its own: a slow kind among fast ones reads as
//! overload. Once a minute it holds some calls back, for as long as ten of them take, to measure what one takes alone.
//!
//! A smooth limit lets a burst pass and then the even flow: up to `permits + burst` in one window. Where a contract says "never more than
//! n in any window", take [`RateLimitConfig::strict`]. A limit in one process bounds that process: three instances admit three times
//! as much; a [`SharedRateLimiter`] bounds them together, through a store ([`shared`]).
//!
//! # Source
//!
//! The adaptive limit: Netflix, "Performance Under Load", 2018, and its library concurrency-limits (AIMD); Envoy's adaptive concurrency (the gradient against a
//! minimum that is measured again). "Throttling pattern" and "Bulkhead pattern", Azure Architecture Center. GCRA: ITU-T I.371. Newest first under overload: Ben
//! Maurer, "Fail at Scale" (ACM Queue, 2015).
mod adaptive;
mod adaptive_config;
mod client_throttle;
mod client_throttle_config;
mod concurrency;
mod concurrency_config;
mod degradation;
mod degradation_config;
mod degradation_state;
mod event;
mod gauge;
mod gcra;
mod gradient;
mod keyed;
#[cfg(all(test, steadfast_loom))]
mod loom_tests;
mod odds;
mod rate;
mod rate_config;
mod semaphore;
pub mod shared;
mod shares;
mod shed;
mod shed_config;
mod shed_state;
mod strict;
#[cfg(all(test, not(steadfast_loom)))]
mod tests;
mod turns;

pub use adaptive::AdaptiveLimiter;
pub(crate) use adaptive::AdaptivePermit;
pub use adaptive_config::{Adaptation, AdaptiveLimitConfig};
pub use client_throttle::{ClientThrottle, ClientThrottlePermit, ClientThrottleSnapshot};
pub use client_throttle_config::ClientThrottleConfig;
pub use concurrency::{ConcurrencyLimiter, ConcurrencyPermit};
pub use concurrency_config::{ConcurrencyLimitConfig, QueueOrder};
pub use degradation::{Degradation, Feature};
pub use degradation_config::DegradationConfig;
pub use event::{DegradationEvent, ThrottlingEvent};
pub(crate) use gauge::Gauges;
pub use gauge::{Gauge, Limits, Reading};
pub use keyed::KeyedRateLimiter;
pub use rate::{RateLimiter, check_all};
pub use rate_config::{Quota, RateLimitConfig, RateMode};
pub use shared::{SharedRateLimitConfig, SharedRateLimitEvent, SharedRateLimiter, Sharing, WhenDown};
pub use shares::PriorityShares;
pub use shed::Shedder;
pub use shed_config::ShedderConfig;
