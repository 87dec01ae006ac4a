//! A rate limit that processes share through a [`Store`](crate::store::Store): one row, changed by
//! compare-and-set.
//!
//! # When, and when not
//!
//! Use it if one limit is for many processes: a price per call, a tenant's contract, a service with
//! a fixed capacity for all clients. If a fixed part per process does as well, use a
//! [`RateLimiter`](super::RateLimiter), which costs nanoseconds and needs no store.
//!
//! # How it works
//!
//! The row has one number, the theoretical arrival time of the [leaky
//! bucket](super::RateMode::Smooth) that all processes fill together. With
//! [`Exact`](Sharing::Exact) sharing, each admission is a read and a compare-and-set of that row.
//! With [`Leased`](Sharing::Leased) sharing, a process takes several permits at once, as many as it
//! needed lately, ahead of its calls ([`run`](SharedRateLimiter::run)). It spends them locally
//! without the store; permits that are not spent in time are lost. A refusal is remembered: other
//! processes only ever take from the row, so while the limit is known to be exhausted, the store is
//! asked only once in 10 s.
//!
//! | | exact | leased |
//! |---|---|---|
//! | cost of a call | two requests to the store | a clock reading and two atomic operations; now and then two requests, ahead of it |
//! | slack, compared with a single limiter | what the limit gives in `call_timeout` | what it gives in `every`, if that is longer |
//! | lost permits | none | those that are leased and not spent |
//!
//! [`SharedRateLimitConfig::slack`] states it in permits: 100 a second with leases of 100 ms is 10.
//!
//! **Time** in the row is the process's: its wall clock, read once when the limiter is made, and
//! its monotonic clock from then on. No process falls behind a time that it reads in the row, so
//! processes whose clocks differed at the beginning converge to the one that is ahead. Until then,
//! the difference may admit as much more as the limit gives in that time, at most a burst for each
//! process that begins with a wrong clock. Later jumps of a wall clock change nothing. The row
//! expires by the store's own clock, a moment after it means the same as an absent row.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `permits`, `per`, `burst` | 100 a second, burst of 100 | for all processes together |
//! | `sharing` | `exact` | or `{ leased = { every = "100ms" } }` |
//! | `when_down` | `{ local_share = 1.0 }` | or `fail_open`, `fail_closed` |
//! | `max_wait` | none | |
//! | `call_timeout` | 250 ms | beyond it the store is down |
//! | `rest` | 1 s | time for which a store that was down is not asked |
//!
//! # Example
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{
//!     store::InMemoryStore,
//!     throttling::{Quota, SharedRateLimiter, WhenDown, SharedRateLimitConfig},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Arc::new(InMemoryStore::new()); // or one that other processes see
//! let quota = Quota::per_minute(2);
//! let config = SharedRateLimitConfig::from(quota).when_down(WhenDown::LocalShare(0.5));
//! let here = SharedRateLimiter::new(store.clone(), "payments", config)?;
//! let there = SharedRateLimiter::new(store, "payments", config)?;
//!
//! here.acquire().await?;
//! there.acquire().await?;
//! let rejected = here.acquire().await.unwrap_err();
//! assert!(rejected.retry_after().unwrap() <= Duration::from_secs(30));
//!
//! // A tenant has a limit of its own, in a row of its own.
//! here.tenant("acme")?.acquire().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Composing
//!
//! A [`SharedRateLimiter`] is a policy, and stands where a [`RateLimiter`](super::RateLimiter)
//! would: outside the retry. It sees the call's deadline. A local limiter outside it saves the
//! store requests for calls that cannot pass in any case.
//!
//! # When the store is down
//!
//! The store is down if it returns an error or does not answer within `call_timeout`. For `rest` it
//! is not asked, and each call is decided as [`when_down`](WhenDown) says; then one call asks
//! again. Leased permits are spent first. While only some processes are cut off, the others go on
//! with the whole limit, and the local shares come on top.
//!
//! A row that is implausibly far ahead (a day beyond what the limit can explain) was misread or
//! damaged, and is treated as a store that is down. A refusal by the row is believed for at most 10
//! s. A compare-and-set that loses to other processes a thousand times, yielding in between, is
//! treated in the same way.
//!
//! # Cancel safety
//!
//! A dropped `acquire` may have taken its permit, which is then lost: the limit is never exceeded.
//! Turns are given back.
//!
//! # Events
//!
//! [`SharedRateLimitEvent`]: rejected, leased, the store failed and is back, limit changed.
//!
//! # Pitfalls
//!
//! - The row is one for all processes. If its changes a second, times the time of a request, come
//!   near to 1, processes lose to each other and the requests multiply: stay below a tenth.
//! - With exact sharing, one process makes one admission after the other: some hundreds to some
//!   thousands a second, depending on the store. Above that, use leases.
//! - A lease needs a burst of its size: with `burst = 1` every permit is a lease of its own.
//! - Demand that changes within one `every` is leased late: calls that find no leased permit wait
//!   for the store themselves.
//! - Several permits at once are spent from one lease: such a call may ask the store although two
//!   leases together would have enough.
//! - A new quota has to reach all processes: each counts the row at its own pace.
//!
//! # Source
//!
//! GCRA: ITU-T I.371. Quota handed out in advance: "Doorman", Google, 2016; Envoy's rate limit
//! quota service. Time that never falls behind what was seen: Kulkarni et al., "Logical Physical
//! Clocks", 2014.
mod account;
mod admit;
mod config;
mod event;
mod leases;
mod limiter;
mod row;
mod tenants;

pub use config::{SharedRateLimitConfig, Sharing, WhenDown};
pub use event::SharedRateLimitEvent;
pub use limiter::SharedRateLimiter;
