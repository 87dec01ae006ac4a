//! Cache-aside: look in the cache; on a miss load from the source and keep a copy; after a change
//! of the source, invalidate. An invalidated value is never served again, even if a load was in
//! progress.
//!
//! # When, and when not
//!
//! Use it where the source is slow or expensive for the number of requests, the requested keys
//! cannot be foreseen, and bounded staleness does no harm. Do not use it for a static set that fits
//! into memory: [`prime`](CacheAside::prime) a map once, without expiry. Do not use it for the
//! state of sessions that are tied to one server, nor where the source has a read-through cache of
//! its own.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `capacity` | 10,000 | entries, or weight with a [`weigher`](CacheAside::builder) |
//! | `ttl`, `jitter` | 60 s, 6 s | an entry is fresh for `ttl` to `ttl + jitter`; a loader may [set its own](Loaded) |
//! | `sliding` | off | expires entries after this time without access |
//! | `negative_ttl` | off | remembers that the source has nothing |
//! | `stale` | off | serves expired values while the source fails: up to `max_age`, asking at most every `throttle` (10 s) |
//! | `soft_timeout` | off | serves an expired value after this wait; the load continues in the background. Zero, with `stale`, is stale-while-revalidate |
//! | `hard_timeout` | 30 s | ends a load; no get takes longer than this, plus `remote.timeout` and `remote.wait` with a remote tier |
//! | `refresh_ahead` | off | a hit after this share of `ttl` starts a load in the background, once per value |
//! | `xfetch` | off | the same at random, the likelier the slower the load and the nearer the expiry |
//! | `max_batch` | 1000 | keys of one loader call of [`get_or_load_many`](CacheAside::get_or_load_many) |
//! | `unattended` | drop | handling of a load when no caller waits for it any more |
//! | `remote.timeout` | 100 ms | maximum time that requests to the remote tier add to a call, in total |
//! | `remote.rest` | 1 s | cool-down between two attempts to reach a suspended remote tier or backplane |
//! | `remote.local_ttl` | `ttl` / 10 | time for which this process keeps a value of the remote tier |
//! | `remote.wait` | 1 s | maximum wait for the load of another process |
//! | `remote.background_writes` | 0 | loaded values that are written to the remote tier beside their calls, at a time |
//!
//! # Example
//!
//! ```
//! use std::io;
//! use steadfast::{ConfigError, cache_aside::{CacheAside, CacheAsideConfig, LoadError}};
//!
//! struct Prices {
//!     cache: CacheAside<String, u32>,
//! }
//!
//! impl Prices {
//!     fn new() -> Result<Self, ConfigError> {
//!         Ok(Self { cache: CacheAside::new(CacheAsideConfig::default())? })
//!     }
//!
//!     async fn price(&self, item: &str) -> Result<u32, LoadError<io::Error>> {
//!         let key = item.to_owned(); // a load may outlive the caller that began it
//!         self.cache.get_or_load(item, || async move { select_price(&key).await }).await
//!     }
//!
//!     async fn set_price(&self, item: &str, price: u32) -> io::Result<()> {
//!         // Writes the source first, then invalidates: no reader sees the old price afterwards.
//!         self.cache.update(item, update_price(item, price)).await
//!     }
//! }
//! # async fn select_price(_item: &str) -> io::Result<u32> { Ok(117) }
//! # async fn update_price(_item: &str, _price: u32) -> io::Result<()> { Ok(()) }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let prices = Prices::new()?;
//! # assert_eq!(prices.price("tea").await?, 117);
//! # assert_eq!(prices.price("tea").await?, 117);
//! # assert_eq!((prices.cache.stats().loads, prices.cache.stats().hits), (1, 1));
//! # prices.set_price("tea", 118).await?;
//! # assert_eq!(prices.cache.get("tea").await, None);
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::{collections::HashMap, future::pending, io, sync::Arc, time::Duration};
//! use steadfast::{backend, codec::Codec};
//! use steadfast::cache_aside::{CacheAside, CacheAsideConfig, Loaded, StaleConfig};
//!
//! # async fn find(_id: u64) -> io::Result<Option<String>> { Ok(None) }
//! # async fn find_all(ids: Vec<u64>) -> io::Result<HashMap<u64, String>> {
//! #     Ok(ids.into_iter().map(|id| (id, "tea".to_owned())).collect())
//! # }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // 1. A value that may be absent; the absence is remembered for ten seconds.
//! let config = CacheAsideConfig::default().negative_ttl(Duration::from_secs(10));
//! let names: CacheAside<u64, String> = CacheAside::new(config)?;
//! let name = names.get_or_load_optional(&7, || find(7)).await?;
//!
//! // 2. Expired values for an hour while the source fails.
//! let config = config.stale(StaleConfig::new(Duration::from_secs(3600)));
//!
//! // 3. One cache for all processes: a shared tier, and notices of invalidations.
//! let backend = backend::open("memory:").await?; // in a service, a server
//! let codec = Codec::new(|name: &String| Ok::<_, io::Error>(name.clone().into_bytes()),
//!     |bytes| String::from_utf8(bytes.to_vec()));
//! let names = CacheAside::<u64, String>::builder(config)
//!     .name("names")
//!     .remote(backend.store(), codec)
//!     .backplane(backend.notifier())
//!     .build()?;
//! let notices = names.clone();
//! tokio::spawn(async move { notices.run(pending()).await });
//!
//! // 4. Several keys at once: one call of the loader for those that are missing.
//! let found = names.get_or_load_many(&[7, 8], |missing: Vec<u64>| find_all(missing)).await?;
//!
//! // 5. A time to live and a tag of one value, and the end of all values with the tag.
//! names.put(&7, Loaded::new("tea".to_owned()).ttl(Duration::from_secs(5)).tag("drinks")).await;
//! names.invalidate_tag("drinks").await;
//! # Ok(())
//! # }
//! ```
//!
//! # Further ways to get a value
//!
//! - [`get_or_load_optional`](CacheAside::get_or_load_optional): the source may have nothing.
//! - [`get_or_load_many`](CacheAside::get_or_load_many): several keys at once, from one call of a
//!   loader.
//! - [`get_or_refresh`](CacheAside::get_or_refresh): the loader receives the expired value and its
//!   [`Validator`], asks the source whether the value has changed, and answers
//!   [`Stale::not_modified`] if it has not. It works for every expired value that this process
//!   still keeps, with or without `stale`, and for early refreshes. The remote tier keeps the
//!   validator with the value. A confirmed value is written there once more, because its record
//!   also holds its times. With feature `http`, `steadfast::http` has helpers for the headers.
//! - [`with`](CacheAside::with): [`LoadOptions`] for single calls.
//!
//! A time to live, jitter, tags and more are taken from the first of these that sets them: the
//! [`Loaded`] value, the options of the call that started the load, the settings of the cache. So a
//! loader can decide by what it has read, for example to keep an unfinished order for 5 s only.
//! Tags of value and call add up.
//!
//! # Background writes
//!
//! With `remote.background_writes` a load returns once its value is stored in this process, and its
//! write to the remote tier goes through the [spawner](CacheAside::builder). Puts and
//! invalidations are never in the background. [`CacheAside::flush`] waits for the writes in
//! progress, as does [`run`](CacheAside::run) on shutdown.
//!
//! The guarantees below hold for background writes, too: a write finds its claim gone if an
//! invalidation or a put came first. The price is paid by the process that loaded. Within the call,
//! a load learns from the remote tier that another process invalidated its key, and does not store
//! the value. In the background it learns that up to `remote.timeout` after it has stored the value
//! locally, and removes it then. In between, this process serves a value that another process has
//! invalidated, unless the notice of the backplane arrives first. If the process ends, its writes
//! in progress are lost, and other processes wait for `remote.wait` once and load by themselves.
//!
//! # Errors
//!
//! [`LoadError`] is the error of every get. [`LoadError::into_loader`] returns the loader's own
//! error. One `From` on top of it makes `?` work in a service: see the example at [`LoadError`].
//!
//! # Consistency and its bounds
//!
//! - **In one process**, once an [`invalidate`](CacheAside::invalidate),
//!   [`invalidate_tag`](CacheAside::invalidate_tag), [`clear`](CacheAside::clear),
//!   [`put`](CacheAside::put) or [`update`](CacheAside::update) has returned, no get that starts
//!   gives a value that was read before it. A load in progress gives its value to the callers that
//!   waited for it already, and stores it nowhere.
//! - **In another process** the same holds once it has received the notice (with a
//!   [backplane](CacheAside::builder) and [`run`](CacheAside::run)). Without a backplane,
//!   or if the loss of a notice goes unnoticed, it holds after `remote.local_ttl`.
//! - **In the remote tier** a load claims the row before it asks the source, and stores its value
//!   only in the place of that claim, by compare-and-set. Every invalidation deletes the claim. So
//!   no process stores a value there that it read before an invalidation.
//! - **A failing remote tier** fails no call: loads do without it. It is suspended when half of the
//!   requests of the last 10 s fail, or three in a row, and probed by one call at a time until it
//!   answers. A failure counts in the row only if its request began after the last answer and after
//!   the end of the failure before, so one pause of the server counts once, however many requests
//!   it hits. One slow answer costs only the call that waits for it, and at most `remote.timeout`.
//! - **An undelivered invalidation** is *pending*, and [`Reached::ThisProcess`] says so. It has two
//!   steps, the write to the remote tier and then the notice to other processes. Each is delivered
//!   once, by [`run`](CacheAside::run), beside the calls. While the write is pending, this process
//!   does not use the remote tier for the affected keys: one key, the values with one tag, or all
//!   after a [`clear`](CacheAside::clear). A load delivers the write for its own key, within
//!   `remote.timeout`. An interrupted clear continues where it was. Above 10,000 pending keys and
//!   tags, they become one clear. If the process ends, its pending invalidations are lost, and
//!   other processes are bound by the times to live alone.
//! - **A damaged record** of the remote tier fails its checksum: it is a miss, and an event. A
//!   damaged mark of a tag invalidates the tag.
//! - **The age of a value** is stored with its record, by the wall clocks of the processes. So
//!   `stale.max_age` holds whichever process loaded the value, up to the difference of their
//!   clocks.
//! - **If the source changes and nothing invalidates**, a value is served for `ttl + jitter`, and
//!   with `stale` up to its `max_age`. With a remote tier the difference of the processes' wall
//!   clocks is added, but at most `remote.local_ttl` with its jitter.
//!
//! If two writers `put` what they wrote at the same time, the later put need not be the later
//! write. Use [`update`](CacheAside::update) if there may be more than one writer.
//!
//! # Composing
//!
//! Put the cache around a pipeline: the loader calls out through [time-outs, retries and a
//! breaker](crate::Pipeline), which then work once for all waiting callers, and a hit costs none of
//! them. `hard_timeout` should be longer than the pipeline may take, or it cuts the retries short.
//! An open breaker is an error like any other: with `stale`, expired values are served meanwhile.
//! Callers with different deadlines share a load, so its pipeline must not have the deadline of one
//! of them: enter it by [`call`](crate::Pipeline::call), or by `call_within` with a deadline of the
//! load's own.
//!
//! # Guarantees
//!
//! 1. Concurrent gets of a key run one loader in this process, and all get its value. With a remote
//!    tier, one process loads and the others wait for it.
//! 2. If the caller that drives a load is dropped, a waiting caller continues it. A load without
//!    callers is dropped or finished, as configured. A panicking loader leaves its key usable.
//! 3. A load that an invalidation, a put, a clear or a tag's invalidation overlaps gives its value
//!    to its own callers and is never stored, in this process or in the remote tier.
//! 4. With `stale`, an expired value is served while loads fail, up to `max_age`, and the source is
//!    asked at most every `throttle`.
//! 5. `soft_timeout` applies only if an expired value can be served, `hard_timeout` always. After a
//!    soft time-out the load continues once, and its value serves the next get.
//! 6. Refresh-ahead starts at most one load per stored value, and all gets meanwhile are hits. If
//!    it fails, the valid value stays.
//! 7. A refresh in progress loses against a `put`.
//! 8. XFetch refreshes at the rate of its paper.
//! 9. With jitter, expiries are spread evenly over `ttl` to `ttl + jitter`.
//! 10. Without the remote tier, gets are served from the local tier or the loader. When it returns,
//!     no older value overwrites a newer one.
//! 11. A notice is published after the remote write has succeeded. After a gap in the subscription
//!     every older local entry counts as expired.
//! 12. The invalidation of a tag does not depend on wall clocks.
//! 13. A remote value that does not decode is a miss, not an error.
//! 14. A future that is dropped at any await point takes no result from other callers.
//! 15. Rare slow answers, also in bursts, make no more gets bypass the tier than they hit. No get
//!     waits longer for pending invalidations than stated above, each is delivered once, and one
//!     key's trouble stays its own.
//! 16. A bad configuration is refused when the cache is built or reconfigured, with the name of the
//!     setting, and bad options of a call when they are set.
//! 17. A value that is not modified is kept with its tags, and its time to live starts anew, in
//!     this process and in the remote tier. Like a loaded value, it is not stored if an
//!     invalidation overlaps its load.
//! 18. The options of a call hold for the load that it starts and for its value. A call that joins
//!     a load has only its own limits of waiting.
//! 19. A background write stores nothing over an invalidation or a put that came after its load
//!     began. At most `remote.background_writes` are in progress; any other is made within its
//!     call.
//! 20. A get of several keys calls the loader once, or once for each `max_batch` keys, with exactly
//!     the keys that neither a tier has nor another call loads. Keys whose lookup in the remote
//!     tier takes longer than `remote.timeout` are loaded by further calls.
//!
//! # Cancel safety
//!
//! A dropped get takes nothing from other callers: one of them drives the load on. If it was a get
//! of several keys, a caller that joined for one of them drives on the load of all. They also take
//! it over from a get that is neither polled nor dropped. A dropped change (`invalidate`, `update`,
//! ...) holds in this process all the same, and stays pending for the others. A dropped
//! [`run`](CacheAside::run) receives nothing more.
//!
//! # Events
//!
//! [`CacheAsideEvent`]: load failed, left in background, superseded, remote failed, undecodable,
//! damaged, too heavy, not storable, invalidation pending, invalidations delivered, gap. Hits,
//! misses and loads are [counted](CacheAside::stats), as are stale hits, failures, evictions and
//! invalidations.
//!
//! # Pitfalls
//!
//! - `invalidate` before the write leaves a gap in which a reader caches the old value.
//!   [`update`](CacheAside::update) cannot be called that way.
//! - With a backplane spawn [`run`](CacheAside::run), and prime after it has subscribed: a new
//!   subscription treats existing entries as expired.
//! - A waiting caller drives the load that it waits for. If it is neither polled nor dropped,
//!   another takes over after a quarter of the limit, at most after 250 ms: do not keep a get half
//!   done. A loader that blocks its thread cannot be taken over; then each caller waits up to its
//!   limit.
//! - A loader that panics unwinds the caller that drives it. Callers with a loader of the same type
//!   get [`LoadError::Panicked`].
//! - A loader that asks the cache for its own key waits for itself, until `hard_timeout`.
//! - Errors are shared by all waiting callers, so they come as [`LoadError`] around an `Arc`.
//!   Callers with different error types on one key load separately when a load fails.
//! - Sliding expiry is local to this process: the remote tier keeps a value for its time to live.
//! - In the remote tier, caches of one name are one: give each kind of value its own name.
//! - XFetch knows the duration of a load only in the process that made it. Other processes do not
//!   refresh that value early.
//! - `remote.timeout` needs room for three round trips: to look up, to claim, to store. Otherwise
//!   loaded values are not stored in the remote tier.
//! - With a [`weigher`](CacheAside::builder) the local tier is one table under one lock, so
//!   that an entry may weigh up to 97 % of the capacity. A heavier entry is not kept, and an event
//!   says so.
//! - If wall clocks differ by more than `ttl`, values of other processes seem expired: they are
//!   read from the remote tier each time.
//! - A record with a validator or a `stale_max_age` of its own is a miss for releases that do not
//!   know them. Records without are the same in both.
//! - A get with `skip_local_read` joins a load in progress, which may have begun before the get.
//! - Loads of a get of several keys are [counted](CacheAside::stats) key by key. A slow key of the
//!   remote tier delays the others by at most `remote.timeout`.
//! - Records of an earlier format are misses, but tags are marked in another place: do not run the
//!   two releases on one store.
//!
//! # Source
//!
//! The cache-aside pattern of the cloud design patterns (Microsoft, 2014); `soft_timeout` and
//! `hard_timeout`, conditional refresh and background writes: FusionCache; conditional requests:
//! RFC 9110; leases against stale sets: Nishtala and others, "Scaling Memcache at Facebook", NSDI
//! 2013; early refresh: Vattani, Chierichetti, Lowenstein, "Optimal Probabilistic Cache Stampede
//! Prevention", VLDB 2015; eviction: the `quick_cache` crate (S3-FIFO and Clock-PRO: Yang and
//! others, SOSP 2023; Jiang, Chen, Zhang, USENIX ATC 2005).
mod builder;
mod config;
mod error;
mod event;
mod load; // one load for all its callers
mod loaded;
mod local; // the tier in memory
mod many; // `get_or_load_many`
mod many_load; // one load of several keys
mod miss; // a key without a fresh value
mod options;
mod read; // `get_or_load` and its kin
mod refresh; // refresh ahead: when a hit starts one, and its run
mod remote; // the tier in a store, and the backplane
mod report;
mod run; // notices of other processes
mod state; // what all clones share
mod stats;
#[cfg(all(test, not(steadfast_loom)))]
mod tests;
mod validator; // values with a mark by which the source tells whether they changed
mod view; // options per call
mod wait; // waiting for a load
mod write; // `put` and invalidations

pub use config::{CacheAsideConfig, RemoteConfig, StaleConfig, Unattended};
pub use error::{LoadAborted, LoadError};
pub use event::{CacheAsideEvent, RemoteCall};
pub use loaded::Loaded;
pub use options::LoadOptions;
pub use read::CacheAside;
pub use stats::CacheAsideStats;
pub use validator::{Stale, Validator};
pub use view::CacheView;
pub use write::Reached;
