//! Cache-aside: look in the cache; on a miss load from the source, keep a copy; after a change of the source, invalidate. What was
//! invalidated is never served again, also where a load was under way.
//!
//! # When, and when not
//!
//! Where a source is slower or dearer than what is asked of it, what will be asked for cannot be foreseen, and a bounded staleness does no
//! harm. Not for a static set that fits: [`prime`](CacheAside::prime) a map once, without expiry. Not for the state of sessions that are tied
//! to one server. Not where the source has a cache of its own that reads through.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `capacity` | 10,000 | entries, or weight with a [`weigher`](CacheAsideBuilder::weigher) |
//! | `ttl`, `jitter` | 60 s, 6 s | an entry is fresh for `ttl` to `ttl + jitter`; a loader may [say otherwise](Loaded) for its value |
//! | `sliding` | off | expires what nobody asked for so long |
//! | `negative_ttl` | off | remembers that the source has nothing |
//! | `stale` | off | serves what is expired while the source fails: to `max_age`, asking no more often than `throttle` (10 s) |
//! | `soft_timeout` | off | serves what is expired after so long a wait; the load goes on in the background |
//! | `hard_timeout` | 30 s | gives a load up; no get takes longer than this, and `remote.timeout` and `remote.wait` with a remote tier |
//! | `refresh_ahead` | off | a hit after this share of `ttl` starts a load in the background, once for each value |
//! | `xfetch` | off | the same by chance, the likelier the dearer the load and the nearer the expiry |
//! | `unattended` | drop | what becomes of a load that nobody waits for any more |
//! | `remote.timeout` | 100 ms | maximum time that requests to the remote tier add to a call, in all |
//! | `remote.rest` | 1 s | time between two attempts to reach a remote tier or a backplane that was left after failures |
//! | `remote.local_ttl` | `ttl` / 10 | how long this process keeps what the remote tier keeps longer |
//! | `remote.wait` | 1 s | for the load of another process |
//!
//! # Example
//!
//! ```
//! use std::{convert::Infallible, time::Duration};
//! use steadfast::cache_aside::{CacheAside, CacheAsideConfig};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let prices: CacheAside<String, u32> = CacheAside::new(CacheAsideConfig::default())?;
//! let load = || async { Ok::<u32, Infallible>(117) }; // asks the source
//!
//! assert_eq!(prices.get_or_load("eur", load).await?, 117);
//! assert_eq!(prices.get_or_load("eur", load).await?, 117); // a hit
//! assert_eq!(prices.stats().loads, 1);
//!
//! // The source first, then the cache: `update` has no other order.
//! prices.update("eur", async { Ok::<(), Infallible>(()) }).await?;
//! assert_eq!(prices.get("eur").await, None);
//! # Ok(())
//! # }
//! ```
//!
//! # What holds, and within which bounds
//!
//! - **In one process**, from when an [`invalidate`](CacheAside::invalidate), [`invalidate_tag`](CacheAside::invalidate_tag),
//!   [`clear`](CacheAside::clear), [`put`](CacheAside::put) or [`update`](CacheAside::update) has returned, no get that starts gives a value that
//!   was read before it. A load that was under way gives its value to those who waited for it already, and stores it nowhere.
//! - **In another process** the same holds from when it has heard of it (a [backplane](CacheAsideBuilder::backplane), and
//!   [`run`](CacheAside::run)); without, or where the notice is lost and its loss is not told, `remote.local_ttl` later.
//! - **In the remote tier** a load stores its value only in the place of the claim that it laid down before it asked the source, by
//!   compare-and-set, and every invalidation takes the claim away. So no process stores there what it read before.
//! - **A remote tier that fails** fails no call: loads do without it. It is left when half of the requests of the last 10 s fail, or three in
//!   a row, and tried by one call at a time until it answers. One slow answer costs the call that waits for it `remote.timeout`, and
//!   nothing else.
//! - **An invalidation that is not delivered** is *owed*, and [`Reached::ThisProcess`] says so. It has two halves: the write to the remote
//!   tier, and then the notice to other processes. Each is paid once, by [`run`](CacheAside::run), beside the calls. Until the first
//!   half is paid, this process goes without the remote tier for the keys that it concerns: one key, the values with one tag, or all of
//!   them after a [`clear`](CacheAside::clear). A load helps with what concerns its own key, within `remote.timeout`. A clear that is
//!   interrupted goes on where it was. Above 10,000 keys and tags that are owed, they become one clear. A process that ends takes its debts
//!   along: then others are bound by the times to live alone.
//! - **A damaged record** of the remote tier does not have its checksum: it is a miss, and an event. A damaged mark of a tag invalidates the tag.
//! - **The age of a value** travels with its record, by the wall clocks of the processes: `stale.max_age` holds whichever process loaded the
//!   value, give or take the difference of their clocks.
//! - **If the source changes and nobody invalidates**, a value is served for `ttl + jitter`, and with `stale` to its `max_age`. With a remote tier
//!   the difference of the processes' wall clocks is added, but at most `remote.local_ttl` with its jitter.
//!
//! Of two writers who `put` what they wrote at the same time, the later put need not be the later write: [`update`](CacheAside::update)
//! where more than one may write.
//!
//! # Composing
//!
//! Around a pipeline: the loader calls out through [time-outs, retries and a breaker](crate::Pipeline), which then work once for all who wait,
//! and a hit costs none of them. `hard_timeout` is longer than what the pipeline may take, or it cuts its retries short. An open breaker is
//! an error like any other: with `stale` what is expired is served meanwhile.
//!
//! # Cancel safety
//!
//! A dropped get takes nothing from others who wait: one of them drives the load on. They also take it over from a get that is neither polled
//! nor dropped. A dropped change (`invalidate`, `update`, ...) holds in this
//! process all the same, and is owed to the others. A dropped [`run`](CacheAside::run) hears no more.
//!
//! # Events
//!
//! [`CacheAsideEvent`]: load failed, left in background, superseded, remote failed, undecodable, damaged, too heavy, not storable, owed, settled,
//! gap. Hits, misses and loads are [counted](CacheAside::stats), as are stale hits, failures, evictions and invalidations.
//!
//! # Considerations
//!
//! 1. The lifetime fits how the data is used: too short loads for ever, too long goes stale (default: one minute; said above).
//! 2. Eviction: a bound for all, by weight if you like; the library's policy resists scans (default).
//! 3. Priming does not replace loading on demand: [`prime`](CacheAside::prime) takes the place of
//!    nothing (default).
//! 4. The source may change behind the cache: the bounds above (default).
//! 5. A local cache is private to its process: shorter times, or a remote tier with a backplane. A failing backplane is an event
//!    (warning).
//! 6. The source is written first, then the key invalidated (default: [`update`](CacheAside::update)).
//! 7. A cache that fails never fails the call (default).
//! 8. What is absent is not cached unless you ask for it (default).
//!
//! # Pitfalls
//!
//! - `invalidate` before the write leaves a gap in which a reader caches the old value. [`update`](CacheAside::update) cannot be called that way.
//! - With a backplane spawn [`run`](CacheAside::run), and prime after it has subscribed: a new subscription takes what is there for expired.
//! - A waiter drives the load that it waits for. If it is neither polled nor dropped, another takes over after a quarter of the limit, at
//!   most after 250 ms: do not keep a get half done. A loader that blocks its thread cannot be taken over; then each waiter has its limit.
//! - A loader that panics unwinds the caller that drives it; those that wait with a loader of the same type get [`LoadError::Panicked`].
//! - A loader that asks the cache for its own key waits for itself, until `hard_timeout`.
//! - Errors are shared by those who waited, so they come as [`LoadError`] around an `Arc`. Callers with different error types on one key
//!   load apart when a load fails.
//! - Sliding expiry is this process's: the remote tier keeps a value for its time to live.
//! - In the remote tier, caches of one name are one: give each kind of value its own name.
//! - XFetch knows how long a load took where this process made it. What another one loaded is refreshed by that one.
//! - `remote.timeout` has room for three round trips, or what is loaded is not stored in the remote tier: to look, to claim, to store.
//! - With a [`weigher`](CacheAsideBuilder::weigher) the local tier is one table under one lock, so that an entry may weigh up to 97 % of the
//!   capacity. A heavier entry is not kept, and is told.
//! - Wall clocks that differ by more than `ttl` make what another process loaded seem expired: it is read from the remote tier each time.
//! - Records of an earlier form are misses, but tags are marked in another place: do not run the two releases on one store.
//!
//! # Source
//!
//! The cache-aside pattern of the cloud design patterns (Microsoft, 2014); leases against stale sets: Nishtala and others, "Scaling Memcache at
//! Facebook", NSDI 2013; early refresh: Vattani, Chierichetti, Lowenstein, "Optimal Probabilistic Cache Stampede Prevention", VLDB 2015; eviction:
//! the `quick_cache` crate (S3-FIFO and Clock-PRO: Yang and others, SOSP 2023; Jiang, Chen, Zhang, USENIX ATC 2005).
mod backplane;
mod builder;
mod cache;
mod change;
mod codec;
mod config;
mod debts;
mod entry;
mod error;
mod event;
mod health;
mod inner;
mod load;
mod loaded;
mod local;
mod miss;
mod remote;
mod remote_change;
mod remote_fill;
mod report;
mod run;
mod shared;
mod spawner;
mod stats;
mod tags;
#[cfg(all(test, not(steadfast_loom)))]
mod tests;
mod wait;
mod wire;

pub use builder::CacheAsideBuilder;
pub use cache::CacheAside;
pub use change::Reached;
pub use codec::Codec;
pub use config::{CacheAsideConfig, RemoteConfig, StaleConfig, Unattended};
pub use error::LoadError;
pub use event::{CacheAsideEvent, RemoteCall};
pub use loaded::Loaded;
pub use stats::CacheAsideStats;
