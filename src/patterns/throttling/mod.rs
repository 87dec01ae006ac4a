//! Throttling: how often, how much at once, and who goes first when not all can be served.
//!
//! A [`RateLimiter`] bounds calls in a time, a [`KeyedRateLimiter`] does so for each tenant, a [`ConcurrencyLimiter`] (a bulkhead)
//! bounds calls that run at once, an [`AdaptiveLimiter`] finds that bound by itself. A [`ClientThrottle`] turns a client's own calls away while the
//! other side refuses them, a [`Shedder`] gives up the calls that matter least while a gauge is high, a [`Degradation`] serves all of them with less.
//!
//! # When, and when not
//!
//! When service levels must hold, when no tenant may take all, when bursts come, when cost has a ceiling. Not in place of
//! scaling: it is a stop-gap while that happens.
//!
//! | what is scarce | take |
//! |---|---|
//! | calls in a time: a contract, a price per call | [`RateLimiter`]; by tenant [`KeyedRateLimiter`]; between processes [`SharedRateLimiter`] |
//! | the other side's places, and it is known how many | [`ConcurrencyLimiter`] |
//! | the same, and it is not known, or changes | [`AdaptiveLimiter`] |
//! | the other side's patience: it refuses, and each refusal costs it too | [`ClientThrottle`] |
//! | this side's own processor, memory, queue | [`Shedder`]; where work can be left out, [`Degradation`] |
//! | any of the limits above, for calls that matter more | [`PriorityShares`] |
//!
//! # Defaults
//!
//! | setting | rate limit | concurrency limit |
//! |---|---|---|
//! | how much | 100 a second, all at once if need be | 32 at once |
//! | waiting | not at all | 128 wait for at most 1 s |
//! | order | of arrival | of arrival, or newest first |
//! | a server's hint | pauses it for as long, at most 15 min | is not heeded |
//! | keys ([`KeyedRateLimiter`]) | 1,048,576 at most | |
//!
//! | setting | adaptive limit | client throttle | shedder | degradation |
//! |---|---|---|---|---|
//! | begins | at 20, from 1 to 200 | above 2 requests for each accepted one, in 2 minutes | above a soft limit | above a soft limit, one feature a second |
//! | at most | | 90 % rejected | all but critical calls, from the hard limit on | all features, from the hard limit on |
//! | reacts | each 100 ms and 10 calls | with each request | each 100 ms: at once | each 100 ms: at once |
//! | a server's hint | pauses it for as long, at most 15 min | | | |
//! | lets go | with the latencies | with each accept | after 200 ms, in 3 s | after 10 s, a feature each 10 s |
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
//! The examples `throttling` (each limit by itself), `overload` and `multi_tenant_surveys` show more.
//!
//! # Who goes first
//!
//! A call has a [`Priority`](crate::Priority), given by [`with_priority`](crate::call::with_priority). Under overload there are two ways to serve
//! what matters most:
//!
//! - [`PriorityShares`] of an [`AdaptiveLimiter`]: a low call is let in while less than half of the limit is taken. It decides by what is taken in
//!   that moment, needs no gauge, and cannot swing. It sees one other side's places, and nothing else.
//! - A [`Shedder`]: sees whatever a gauge sees. What it sheds is a share that follows the gauge, not a class that comes and goes, so that it
//!   comes to rest between the limits. The wider they are apart, the calmer; the nearer, the shorter the queue that it allows.
//!
//! Three times the capacity for a minute (the example `overload`, of seed 1; a service of 100 requests a second gets 40 of high priority, 100 of
//! normal and 160 of low):
//!
//! | client | high: served | its p99 | normal | low | worst 5 s to best | well again after |
//! |---|---|---|---|---|---|---|
//! | a time-out alone | 0.8 % | 996 ms | 0.7 % | 0.8 % | | not in 40 s |
//! | limit with shares | 100.0 % | 264 ms | 60.7 % | 0.5 % | 6.4 % | 0 s |
//! | shedder | 99.8 % | 467 ms | 59.8 % | 1.2 % | 9.1 % | 0 s |
//!
//! A refusal for the sake of others says so ([`Rejected::is_shed`](crate::Rejected::is_shed)): such work may be deferred, where a call over its rate
//! should come back later.
//!
//! # What the other side asks for
//!
//! A failure may come with a hint: "come back in 60 s" ([`Hint`](crate::Hint), read by feature `http`). A [`RateLimiter`], a [`KeyLimit`] and an
//! [`AdaptiveLimiter`] in a pipeline then let no call pass for that long, at most for their `max_hint`. Calls that run go on. When the time is
//! over a smooth limit has one permit and then the even flow; a strict one has what its window allows. The hint is that of the outcome that
//! reaches the limiter: inside a retry that of each attempt, outside it that of the last. [`RateLimiter::pause`] and
//! [`AdaptiveLimiter::pause`] do the same for calls that are made by another door. A [`SharedRateLimiter`], a [`ConcurrencyLimiter`] and a
//! [`ClientThrottle`] heed no hint.
//!
//! # When to come back
//!
//! | refused by | [`retry_after`](crate::Rejected::retry_after) |
//! |---|---|
//! | rate limit, by key and shared too | exact, if nobody else takes the permit |
//! | adaptive limit | an estimate: what a call takes now, for as many as wait, over as many as run at once. None before the first call ended |
//! | shedder, feature | the time before which less will not be shed |
//! | concurrency limit | none: it reads no clock while places are free, and does not know what a call takes |
//! | client throttle | none: its odds fall with what others send, and what comes of it |
//!
//! # Changes while in use
//!
//! Each of them has `reconfigure`: a bad change is refused whole, clones follow, and what was learnt or used is kept.
//!
//! | | what is kept | who waits |
//! |---|---|---|
//! | rate limit, keyed limit | how full it is; strict, and from one way of counting to the other: what was used | is set anew, in order; refused at once if it comes too late now |
//! | concurrency limit | who runs | keeps patience and order; refused where the queue becomes too short, after all free places are given |
//! | adaptive limit | what it has learnt, between the new bounds | as above |
//! | client throttle | requests and accepts, in proportion to a shorter window | |
//! | shedder | how much is shed; it falls by the new times | |
//! | degradation | how many features are off, by the new order | |
//!
//! # Composing
//!
//! Rate limit outside concurrency limit, both outside the retry: what is refused costs the other side nothing, and a call that waits
//! for its turn holds no place. Both see the call's deadline, and refuse at once what could not begin before it. A shedder, or a feature of a
//! degradation, stands outside all of them: it protects this side. A client throttle stands inside the retry, so that each attempt counts, and
//! outside the attempt's time-out. A retry does not repeat what any of them refused.
//!
//! # Cancel safety
//!
//! A call that is dropped while it waits leaves the queue, and those behind it move up. A place is free again when its permit is
//! dropped, also by a panic. A rate limit's permit, once its turn has come, is used. To a client throttle a dropped call counts as if it had not been
//! made. A shedder and a degradation hold nothing for a call; their `run` may be dropped at any time.
//!
//! # Events
//!
//! [`ThrottlingEvent`]: rejected, queued, paused, limit changed, shedding began and ended. [`DegradationEvent`]: a feature switched off, or on.
//! Those of the keyed limiter carry the name of the key, where it is [named by](KeyedRateLimiter::named_by) one.
//!
//! # Considerations
//!
//! 1. Throttling is decided early, as part of the design: it shows in the interface, as an error
//!    with a time to come back. (advice)
//! 2. It reacts fast and lets go fast: permits come back continuously, not at the end of a window; a shedder follows its gauge upwards at once, and
//!    its hysteresis is stated: held for [`hold`](ShedderConfig::hold), to nothing within [`recover`](ShedderConfig::recover). (default)
//! 3. A refusal is a specific error, [`Rejected`](crate::Rejected), with a time to come back where one is known (the table
//!    above); over HTTP 429 or 503 with `retry-after`, by feature `http`. (default)
//! 4. A stop-gap while scaling out: [`RateLimiter::set_quota`], [`KeyedRateLimiter::reconfigure`]
//!    and [`ConcurrencyLimiter::resize`] follow the capacity while in use. The example
//!    `multi_tenant_surveys` doubles its quotas when a second instance has come. (option)
//! 5. If scaling costs more than a short refusal, refuse. (advice)
//! 6. If demand outruns throttling itself, keep reserve: a refusal costs some tens of nanoseconds, but not nothing. Limits that leave no head-room
//!    are told by [`explain`](crate::Pipeline::explain): soft and hard limits that are as good as one, a burst of one, `k` of one, shares that
//!    keep no place. (warning)
//! 7. Strategies: reject over a rate per tenant ([`KeyedRateLimiter::with_tiers`]); switch off what is not essential ([`Degradation`]); level by
//!    priority ([`PriorityShares`], [`Shedder`]) and by what a tenant is worth (tiers); what was shed may be deferred
//!    ([`Rejected::is_shed`](crate::Rejected::is_shed), [`journal`](crate::journal)). (default)
//! 8. Metering per tenant: [`KeyedRateLimiter::usage`] reads what a tenant has used of its quota now (default);
//!    [`metered`](KeyedRateLimiter::metered), the limiter counts what each took and was refused, for [`readings`](KeyedRateLimiter::readings).
//!
//! # Pitfalls
//!
//! An adaptive limit takes latency for load. Where calls differ in kind, give each kind a limiter of its own: a slow kind among fast ones reads as
//! overload. Once a minute it holds calls back, for as long as ten of them take, to measure what one takes alone; those that cannot wait so long are
//! refused. Where that takes longer than about a second (calls of 5 s take 10 s), it measures less often: at most a fiftieth of the time. So after a
//! lasting shift of a slow service's latency it recovers in minutes, not in one. (Envoy measures on a fixed interval, and says of it that requests may
//! be refused meanwhile; Netflix's second gradient measures nothing, and takes a long mean for the base, which creeps.)
//!
//! A smooth limit lets a burst pass and then the even flow: up to `permits + burst` in one window. Where a contract says "never more than
//! n in any window", take [`RateLimitConfig::strict`]. A limit in one process bounds that process: three instances admit three times
//! as much; a [`SharedRateLimiter`] bounds them together, through a store ([`shared`]).
//!
//! A limiter of keys that strangers choose is bounded by [`max_keys`](KeyedRateLimiter::max_keys): beyond it, keys that are back soonest are
//! forgotten first, so that an attacker who invents keys resets those who used little, not those who used much. Calls that wait for a key are
//! told of their turns by each other: one that is kept and not polled delays those behind it.
//!
//! A client throttle takes the refusals of one other side: give each target one of its own. Its formula has no memory of when: as the book has it
//! ([`ClientThrottleConfig::sre`]) it may come to reject nearly all of what is sent to a service that takes a fixed share of the requests, not a
//! fixed number. The default rejects 90 % at most. It counts requests before they return: a client that begins with a hundred at once sees a hundred
//! that nobody has accepted; `min_rps` says from which load on it judges.
//!
//! A shedder is as good as its gauge: one that lags by seconds makes it swing. The age of the oldest request in a queue is a better one than the
//! queue's length, and either is better than the processor's load, which says 100 % at all overloads alike.
//!
//! # Source
//!
//! The adaptive limit: Netflix, "Performance Under Load", 2018, and its library concurrency-limits (AIMD); Envoy's adaptive concurrency (the
//! gradient against a minimum that is measured again). "Throttling pattern" and "Bulkhead pattern", Azure Architecture Center. GCRA: ITU-T I.371.
//! Newest first under overload: Ben Maurer, "Fail at Scale" (ACM Queue, 2015). The client throttle, and priorities as four classes: Alejandro
//! Forero Cuervo, "Handling Overload" (Site Reliability Engineering, 2016); its aggression and floor: Envoy's admission control. Shedding by a cut
//! through priorities that follows the load: Zhou et al., "Overload Control for Scaling WeChat Microservices" (SoCC 2018).
mod adaptive;
mod client;
mod concurrency;
mod event;
mod keyed;
#[cfg(all(test, steadfast_loom))]
mod loom_tests;
mod rate;
pub mod shared;
mod shed;

pub(crate) use adaptive::AdaptivePermit;
pub use adaptive::{Adaptation, AdaptiveLimitConfig, AdaptiveLimiter, PriorityShares};
pub use client::{ClientThrottle, ClientThrottleConfig, ClientThrottlePermit, ClientThrottleSnapshot};
pub use concurrency::{ConcurrencyLimitConfig, ConcurrencyLimiter, ConcurrencyPermit, QueueOrder};
pub use event::{DegradationEvent, ThrottlingEvent};
pub use keyed::{KeyLimit, KeyUsage, KeyedRateLimiter, Metered};
pub use rate::{Limit, Quota, RateLimitConfig, RateLimiter, RateMode, check_all};
pub use shared::{SharedRateLimitConfig, SharedRateLimitEvent, SharedRateLimiter, Sharing, WhenDown};
pub(crate) use shed::Gauges;
pub use shed::{Degradation, DegradationConfig, Feature, Gauge, Limits, Reading, Shedder, ShedderConfig};
