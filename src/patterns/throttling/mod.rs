//! Throttling: rate limits, concurrency limits, load shedding and degradation.
//!
//! A [`RateLimiter`] bounds the calls per period, a [`KeyedRateLimiter`] does so for each tenant,
//! and a [`SharedRateLimiter`] for many processes together. A [`ConcurrencyLimiter`] (a bulkhead)
//! bounds the calls that run at once, and an [`AdaptiveLimiter`] finds that bound itself. A
//! [`ClientThrottle`] rejects a client's own calls while the service refuses them. A [`Shedder`]
//! rejects the least important calls while a gauge is high, and a [`Degradation`] switches features
//! off instead.
//!
//! # When, and when not
//!
//! Use it to keep service levels under load, to share capacity fairly between tenants, to survive
//! bursts, and to bound costs. It does not replace scaling: it bridges the time until more capacity
//! is available. Decide on it early, since it shows in your interface: as an error with a time to
//! come back.
//!
//! | scarce resource | use |
//! |---|---|
//! | calls per period: a contract, a price per call | [`RateLimiter`]; by tenant [`KeyedRateLimiter`]; between processes [`SharedRateLimiter`] |
//! | capacity of a service, of a known size | [`ConcurrencyLimiter`] |
//! | capacity of a service, of an unknown or changing size | [`AdaptiveLimiter`] |
//! | capacity of a service that refuses calls, where each refusal costs it too | [`ClientThrottle`] |
//! | this process's own processor, memory or queue | [`Shedder`]; where work can be left out, [`Degradation`] |
//! | any of the limits above, reserved for important calls | [`PriorityShares`] |
//!
//! # Defaults
//!
//! | setting | rate limit | concurrency limit |
//! |---|---|---|
//! | limit | 100 a second, burst of 100 | 32 at once |
//! | waiting | none (`max_wait`); `acquire` waits | 128 calls wait for at most 1 s |
//! | a window | even flow after a burst; `strict()` for never more in any window | |
//! | order | first in, first out | first in, first out; or newest first |
//! | a server's hint | pauses the limit, at most 15 min | ignored |
//! | keys ([`KeyedRateLimiter`]) | at most 1,048,576 | |
//!
//! | setting | adaptive limit | client throttle | shedder | degradation |
//! |---|---|---|---|---|
//! | start | at 20, from 1 to 200 | above 2 requests per accepted one, in 2 minutes | above a soft limit | above a soft limit, one feature a second |
//! | maximum | | 90 % rejected | all but critical calls, from the hard limit on | all features, from the hard limit on |
//! | reaction | every 100 ms and 10 calls | with each request | every 100 ms, at once | every 100 ms, at once |
//! | a server's hint | pauses the limit, at most 15 min | | | |
//! | recovery | with the latencies | with each accepted request | after 200 ms, within 3 s | after 10 s, a feature every 10 s |
//!
//! # Example
//!
//! ```
//! use std::io;
//! use steadfast::{CallError, ConfigError, call::with_priority, Pipeline, Priority};
//! use steadfast::throttling::{AdaptiveLimitConfig, AdaptiveLimiter, KeyedRateLimiter, Quota};
//!
//! /// A search that no tenant can use alone, and that is never asked for more than it can answer.
//! struct Search {
//!     tenants: KeyedRateLimiter<String>,
//!     capacity: AdaptiveLimiter,
//! }
//!
//! impl Search {
//!     fn new() -> Result<Self, ConfigError> {
//!         let tenants = KeyedRateLimiter::new(Quota::per_second(10).burst(20))?;
//!         let capacity = AdaptiveLimiter::new(AdaptiveLimitConfig::default())?;
//!         Ok(Self { tenants, capacity })
//!     }
//!
//!     async fn find(&self, tenant: &str, words: &str) -> Result<Vec<u64>, CallError<io::Error>> {
//!         // Above the tenant's rate the call is rejected, with the time to come back.
//!         let calls = Pipeline::new().then(self.tenants.for_key(tenant.to_owned()));
//!         calls.then(&self.capacity).call(with_priority(Priority::High, || ask(words))).await
//!     }
//! }
//! # async fn ask(_words: &str) -> io::Result<Vec<u64>> { Ok(vec![7]) }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() { assert_eq!(Search::new().unwrap().find("acme", "tea").await.unwrap(), [7]) }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{Priority, throttling::{
//!     AdaptiveLimitConfig, AdaptiveLimiter, ConcurrencyLimitConfig, ConcurrencyLimiter,
//!     KeyedRateLimiter, Quota, RateLimiter, Shedder, ShedderConfig,
//! }};
//!
//! # async fn send() -> std::io::Result<()> { Ok(()) }
//! # fn processor() -> f64 { 0.2 }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // 1. Ten calls a second after a burst of ten (`.burst(1)` for none); a call waits for its turn.
//! let rate = RateLimiter::new(Quota::per_second(10))?;
//! rate.acquire().await;
//! send().await?;
//!
//! // 2. The same for each tenant; a call above it is rejected.
//! let tenants: KeyedRateLimiter<String> = KeyedRateLimiter::new(Quota::per_minute(600))?;
//! tenants.try_acquire("acme")?; // the error has `retry_after()`
//!
//! // 3. At most eight calls at once.
//! let bulkhead = ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(8))?;
//! bulkhead.call(|| send()).await?;
//!
//! // 4. As many calls at once as the service can take: the limit follows its latency.
//! let capacity = AdaptiveLimiter::new(AdaptiveLimitConfig::default())?;
//! capacity.call(|| send()).await?;
//!
//! // 5. Under load, reject the less important requests first.
//! let load = ShedderConfig::default().limit("processor", 0.7, 0.9);
//! let shedder = Shedder::builder(load).gauge("processor", processor).build()?;
//! shedder.try_acquire(Priority::Low)?;
//! # Ok(())
//! # }
//! ```
//!
//! # In a test
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{
//!     throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter, Quota, RateLimiter},
//!     time::Clock,
//! };
//!
//! let (clock, driver) = Clock::manual();
//! let quota = Quota::per_second(10).burst(2);
//! let limiter = RateLimiter::builder(quota).clock(&clock).build().unwrap();
//! assert!(limiter.try_acquire().is_ok());
//! assert!(limiter.try_acquire().is_ok());
//! let rejected = limiter.try_acquire().unwrap_err();
//! assert_eq!(rejected.retry_after(), Some(Duration::from_millis(100))); // exact
//! driver.advance(Duration::from_millis(100));
//! assert!(limiter.try_acquire().is_ok());
//!
//! let bulkhead = ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(1)).unwrap();
//! let permit = bulkhead.try_acquire().unwrap();
//! assert!(bulkhead.try_acquire().is_err());
//! drop(permit);
//! assert!(bulkhead.try_acquire().is_ok());
//! ```
//!
//! The examples `throttling` (each limit by itself), `overload` and `multi_tenant_surveys` show
//! more.
//!
//! # Priorities
//!
//! A call has a [`Priority`](crate::Priority), set by
//! [`with_priority`](crate::call::with_priority). Under overload there are two ways to serve
//! important calls first:
//!
//! - [`PriorityShares`] of an [`AdaptiveLimiter`]: a low call is admitted while less than half of
//!   the limit is in use. The decision depends on the current use alone, needs no gauge and cannot
//!   oscillate. It knows the capacity of one service, and nothing else.
//! - A [`Shedder`] knows whatever its gauges report. The share of calls that it sheds follows the
//!   gauge continuously, so that the load settles between the limits. A wide distance between the
//!   limits is calmer, a narrow one allows a shorter queue.
//!
//! Three times the capacity for a minute (the example `overload`, seed 1; a service of 100 requests
//! a second gets 40 of high priority, 100 of normal and 160 of low):
//!
//! | client | high: served | its p99 | normal | low | worst 5 s to best | recovered after |
//! |---|---|---|---|---|---|---|
//! | a time-out alone | 0.8 % | 996 ms | 0.7 % | 0.8 % | | not in 40 s |
//! | limit with shares | 100.0 % | 264 ms | 60.7 % | 0.5 % | 6.4 % | 0 s |
//! | shedder | 99.8 % | 467 ms | 59.8 % | 1.2 % | 9.1 % | 0 s |
//!
//! [`Rejected::is_shed`](crate::Rejected::is_shed) tells a call that was shed for more important
//! ones from a call above its rate. The former may be deferred, the latter should come back later.
//!
//! # Hints of a server
//!
//! A failure may carry a hint such as "come back in 60 s" ([`Hint`](crate::Hint), read by feature
//! `http`). A [`RateLimiter`], a [`KeyLimit`] and an [`AdaptiveLimiter`] in a pipeline then admit
//! no call for that time, at most for their `max_hint`. Running calls go on. Afterwards a smooth
//! limit has one permit and then the even flow; a strict one has what its window allows. The hint
//! is that of the outcome that reaches the limiter: of each attempt inside a retry, of the last
//! attempt outside it. [`RateLimiter::pause`] and [`AdaptiveLimiter::pause`] do the same for calls
//! that are made without the policy, and [`RateLimiter::resume`] and [`AdaptiveLimiter::resume`]
//! end a pause at once. A [`SharedRateLimiter`], a [`ConcurrencyLimiter`] and a [`ClientThrottle`]
//! ignore hints.
//!
//! One hint stops all calls of the limit. Set `max_hint` to zero for a service that sheds single
//! requests with a 503 and `Retry-After`: at 2 % of such answers, each with a second, a limit would
//! admit 50 calls a second, whatever its rate. Retries and breakers still obey the hint.
//!
//! # Time to come back
//!
//! | rejected by | [`retry_after`](crate::Rejected::retry_after) |
//! |---|---|
//! | rate limit, also by key and shared | exact, if no other caller takes the permit |
//! | adaptive limit | an estimate: the latency of a call, times the waiting calls, divided by the calls at once; none before the first call ended |
//! | shedder, feature | the time before which shedding does not decrease, or the feature is not enabled |
//! | concurrency limit | none: it reads no clock while permits are free, and does not know how long a call takes |
//! | client throttle | none: its probability depends on the other requests and their outcomes |
//!
//! # Changes while in use
//!
//! Each component has `reconfigure`. An invalid change is refused whole, clones follow, and learned
//! or used state is kept.
//!
//! | | kept | waiting calls |
//! |---|---|---|
//! | rate limit, keyed limit | the used share of the burst; in strict mode, and between the modes, the used permits | reserve again, in order; rejected at once if they now come too late |
//! | concurrency limit | running calls | keep their maximum wait and order; rejected if the queue becomes too short, after all free permits are granted |
//! | adaptive limit | what was learned, within the new bounds | as above |
//! | client throttle | requests and accepts, in proportion to a shorter window | |
//! | shedder | the amount of shedding; it falls by the new times | |
//! | degradation | the number of disabled features, in the new order | |
//!
//! # Composing
//!
//! Put the rate limit outside the concurrency limit, and both outside the retry: a rejected call
//! then costs the service nothing, and a call that waits for its turn holds no permit. Both see the
//! call's deadline, and reject at once a call that could not begin before it. A shedder, or a
//! feature of a degradation, stands outside all of them, since it protects this process. A client
//! throttle stands inside the retry, so that each attempt counts, and outside the attempt's
//! time-out. A retry does not repeat a call that any of them rejected.
//!
//! Code that is not async has `call_blocking` on each policy, and waits for a permit by
//! `block_on(limiter.acquire())`; see [code that is not async](crate::call#code-that-is-not-async)
//! and [`block_on`](crate::time::block_on).
//!
//! # Guarantees
//!
//! 1. A smooth rate limit equals a token bucket of `burst` permits that refills evenly.
//!    `retry_after` is exact: one nanosecond earlier the permit is not there.
//! 2. A strict rate limit admits at most `permits` in any window of length `per`.
//! 3. A call gets all its `n` permits or none, and [`try_acquire_all`] one of each limit or none. A
//!    number that can never fit is rejected as too large.
//! 4. Waiting calls pass in order of arrival. A dropped one gives back its turn, and later ones
//!    move up. A call that could not pass in time is rejected at once.
//! 5. A change of the limit neither creates nor loses permits. Waiting calls reserve again, and
//!    those that no longer fit are rejected.
//! 6. A pause, by a server's hint or by hand, admits no call before its end, and a hint pauses for
//!    at most `max_hint`. Only `resume` ends one earlier.
//! 7. Each key has a limit of its own, with the quota of its tier. Calls of one key do not delay
//!    those of another.
//! 8. Keys are remembered only while their permits are out, at most `max_keys` of them; beyond
//!    that, the keys that use least are forgotten first.
//! 9. Processes that share a limit together admit no more than a single limiter would, plus
//!    [`slack`](SharedRateLimitConfig::slack), even if they crash, stall or start with wrong
//!    clocks.
//! 10. While the store is down, each process spends its leased permits first, and then decides as
//!     `when_down` says. Only the call that tries the store again waits for it.
//! 11. A concurrency limit runs at most `capacity` calls, by weight. Its queue is bounded and
//!     served in the configured order, and no new call overtakes it.
//! 12. Its rejections distinguish a full queue, too long a wait and too large a weight. A wait ends
//!     at the call's deadline.
//! 13. Permits are conserved over completions, drops, panics and changes of the capacity.
//! 14. An adaptive limit does not grow while its callers are the bottleneck. It ignores dropped
//!     calls and calls that began under an earlier, higher limit. It recovers after a lasting shift
//!     of latency.
//! 15. With shares, a call is admitted only while the use by calls of all priorities stays within
//!     the share of its own. Beyond a share below the whole limit it is shed at once and holds
//!     nothing.
//! 16. A client throttle rejects with the probability of its formula. Requests count before they
//!     return; dropped calls, and those that an inner policy rejected, do not count.
//! 17. A shedder sheds the lowest priority first, and never `min_priority` or above. Shedding rises
//!     at once, is sustained, and then falls to nothing in no less than `recovery`.
//! 18. A degradation switches features off in the stated order and on in reverse order; from the
//!     hard limit on, all of them at once. For both, a gauge that reads NaN changes nothing.
//! 19. Invalid settings are refused whole, with the field's name.
//! 20. In one process, neither an admitted nor a rejected call allocates, unless it waits, a
//!     limiter has to remember a new key, or it asks `tier_of` or `name_by` about a borrowed one.
//!
//! # Cancel safety
//!
//! A call that is dropped while it waits leaves the queue, and later calls move up. A concurrency
//! permit is given back when it is dropped, also by a panic. A rate limit's permit is used once its
//! turn has come. A dropped call does not count for a client throttle. A shedder and a degradation
//! hold nothing for a call; their `run` may be dropped at any time.
//!
//! # Events
//!
//! [`ThrottlingEvent`]: rejected, queued, paused, resumed, limit changed, shedding began and ended.
//! [`DegradationEvent`]: a feature switched off or on. Events of the keyed limiter carry the name
//! of the key if the limiter is [named by](KeyedRateLimiter::builder) key.
//!
//! # Pitfalls
//!
//! An adaptive limit takes latency for load. If calls differ in kind, give each kind a limiter of
//! its own: a slow kind among fast ones looks like overload. Once a minute the limiter holds calls
//! back, for as long as ten of them take, to measure the base latency; calls that cannot wait so
//! long are rejected. If that takes longer than about a second (calls of 5 s take 10 s), it
//! measures less often: at most a fiftieth of the time. So after a lasting shift of a slow
//! service's latency it recovers in minutes, not in one. (Envoy measures on a fixed interval, and
//! says of it that requests may be rejected meanwhile. Netflix's second gradient measures nothing,
//! and takes a long mean for the base, which creeps.)
//!
//! A smooth limit admits a burst and then the even flow: up to `permits + burst` in one window. If
//! a contract says "never more than n in any window", use [`RateLimitConfig::strict`]. A limit in
//! one process bounds that process: three instances admit three times as much. A
//! [`SharedRateLimiter`] bounds them together, through a store ([`shared`]).
//!
//! A limiter whose keys are chosen by strangers is bounded by
//! [`max_keys`](field@KeyedRateLimitConfig::max_keys). Beyond it, the keys whose permits return
//! soonest are forgotten first, so that an attacker who invents keys resets light users, not heavy
//! ones. Calls
//! that wait for a key learn of their turns from each other: a call that is kept and not polled
//! delays those behind it.
//!
//! A client throttle reacts to the refusals of one service: give each target one of its own. The
//! formula of the book ([`ClientThrottleConfig::sre`]) may come to reject nearly all calls to a
//! service that accepts a fixed share of the requests, not a fixed number. The default rejects at
//! most 90 %. It counts requests before they return: a client that begins with a hundred at once
//! sees a hundred that were not accepted; `min_rps` sets the load from which on it rejects.
//!
//! A shedder is as good as its gauge: a gauge that lags by seconds makes it oscillate. The age of
//! the oldest request in a queue is a better gauge than the queue's length. Either is better than
//! the processor's load, which reads 100 % at every degree of overload.
//!
//! # Source
//!
//! The adaptive limit: Netflix, "Performance Under Load", 2018, and its library concurrency-limits
//! (AIMD); Envoy's adaptive concurrency (the gradient against a minimum that is measured again).
//! "Throttling pattern" and "Bulkhead pattern", Azure Architecture Center. GCRA: ITU-T I.371.
//! Newest first under overload: Ben Maurer, "Fail at Scale" (ACM Queue, 2015). The client throttle,
//! and priorities as four classes: Alejandro Forero Cuervo, "Handling Overload" (Site Reliability
//! Engineering, 2016); its aggression and floor: Envoy's admission control. Shedding by a cut
//! through priorities that follows the load: Zhou et al., "Overload Control for Scaling WeChat
//! Microservices" (SoCC 2018).
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
pub use keyed::{KeyLimit, KeyUsage, KeyedRateLimitConfig, KeyedRateLimiter, Metered};
pub use rate::{Limit, Quota, RateLimitConfig, RateLimiter, RateMode, try_acquire_all};
pub use shared::{SharedRateLimitConfig, SharedRateLimitEvent, SharedRateLimiter, Sharing, WhenDown};
pub(crate) use shed::Gauges;
pub use shed::{Degradation, DegradationConfig, Feature, Gauge, Limits, Reading, Shedder, ShedderConfig};
