//! A rate limit that processes share through a [`Store`](crate::store::Store): in one row, moved by compare-and-set.
//!
//! # When, and when not
//!
//! When a limit is one for many processes: a price per call, a tenant's contract, a service behind that takes so much from all of us. Not where
//! a fixed part for each process does as well: a [`RateLimiter`](super::RateLimiter) costs nanoseconds, and needs no store.
//!
//! # How it works
//!
//! The row has one number, the theoretical arrival time of the [leaky bucket](super::RateMode::Smooth) that all processes fill together. Where
//! it is shared [`Exact`](Sharing::Exact)ly each admission is a read and a compare-and-set of that row. With [`Leased`](Sharing::Leased) quota a
//! process takes several permits at once, as many as it needed lately, ahead of its calls ([`run`](SharedRateLimiter::run)), and spends
//! them in place without the store; what it does not spend in time is lost. A refusal is remembered: others only ever take from the row, so
//! while it is known to be used up nobody asks it, but once in 10 s.
//!
//! | | exact | leased |
//! |---|---|---|
//! | a call costs | two requests to the store | a clock reading and two atomic operations; now and then two requests, ahead of it |
//! | slack, beside one limiter in one place | what the limit gives in `call_timeout` | what it gives in `every`, if that is longer |
//! | lost | nothing | what is leased and not spent |
//!
//! [`SharedRateLimitConfig::slack`] states it in permits: 100 a second with leases of 100 ms is 10.
//!
//! **Time** in the row is the process's: its wall clock, read once when the limiter is made, and its monotonic clock from then on. No process
//! falls behind what it reads in the row, so processes whose clocks differed when they began come together at the one that is ahead. Until they have,
//! the difference may let as much more pass as the limit gives in that time, at most a burst for each process that begins with a wrong
//! clock. A jump of a wall clock later changes nothing. The row ends by the store's own clock, once it says no more than one that is not
//! there.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `permits`, `per`, `burst` | 100 a second, all at once if need be | for all processes together |
//! | `sharing` | `exact` | or `{ leased = { every = "100ms" } }` |
//! | `when_down` | `{ local_share = 1.0 }` | or `fail_open`, `fail_closed` |
//! | `max_wait` | none | |
//! | `call_timeout` | 250 ms | longer is down |
//! | `rest` | 1 s | so long a store that was down is not asked |
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
//! let config = SharedRateLimitConfig::from(Quota::per_minute(2)).when_down(WhenDown::LocalShare(0.5));
//! let here = SharedRateLimiter::new(store.clone(), "payments", config)?;
//! let there = SharedRateLimiter::new(store, "payments", config)?;
//!
//! here.acquire().await?;
//! there.acquire().await?;
//! let rejected = here.acquire().await.unwrap_err();
//! assert!(rejected.retry_after().unwrap() <= Duration::from_secs(30));
//!
//! // A tenant has a limit of its own under it, in a row of its own.
//! here.tenant("acme")?.acquire().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Composing
//!
//! A [`SharedRateLimiter`] is a policy, in the place of a [`RateLimiter`](super::RateLimiter): outside the retry. It sees the call's deadline.
//! A local limiter outside it keeps what cannot pass in any case from the store.
//!
//! # When the store is down
//!
//! An error of the store, or no answer within `call_timeout`, is down: for `rest` it is not asked, and each call is decided as
//! [`when_down`](WhenDown) says; then one call finds out. What is leased is spent first. While only some processes are cut off, the others go on with the whole
//! limit, and local shares come on top.
//!
//! A row that lies implausibly far ahead (a day beyond what the limit can explain) was misread or damaged: as if the store were down. A refusal by
//! the row is believed for 10 s at most, and then asked for again. Where others are faster a thousand times, each time giving the thread up, that
//! is down too.
//!
//! # Cancel safety
//!
//! A dropped `acquire` may have taken its permit, which is lost then: never more is admitted than was taken. Turns are given back.
//!
//! # Events
//!
//! [`SharedRateLimitEvent`]: rejected, leased, the store failed and is back, limit changed.
//!
//! # Considerations
//!
//! 1. A limit that is shared is a dependency that is shared: what happens without it is a setting, not an accident. (`when_down`)
//! 2. Waiting callers of one process take turns, so that it does not race with itself; between processes whoever writes first is first. (default)
//! 3. Per tenant: [`tenant`](SharedRateLimiter::tenant), with tiers. (default)
//!
//! # Pitfalls
//!
//! - Shared exactly, one process makes one admission after the other: some hundreds to some thousands a second, as the store is fast. Above, lease.
//! - A lease needs as much burst as it is to hold: with `burst = 1` every permit is a lease of its own.
//! - Demand that comes and goes within one `every` is leased late: the calls that find nothing wait for the store themselves.
//! - Several permits at once are spent from one lease: they may ask the store although two leases would have enough together.
//! - A new quota has to reach all processes: each counts the row at its own pace.
//!
//! # Source
//!
//! GCRA: ITU-T I.371. Quota handed out in advance: "Doorman", Google, 2016; Envoy's rate limit quota service. Time that never falls behind what was
//! seen: Kulkarni et al., "Logical Physical Clocks", 2014.
mod account;
mod admit;
mod config;
mod event;
mod leases;
mod limiter;
mod row;

pub use config::{SharedRateLimitConfig, Sharing, WhenDown};
pub use event::SharedRateLimitEvent;
pub use limiter::SharedRateLimiter;
