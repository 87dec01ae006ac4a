//! Options of single calls.
use std::{sync::Arc, time::Duration};

use super::{CacheAsideConfig, Loaded};
use crate::config::{ConfigError, require, require_some_time, setters};

/// Options of the loads that one call starts, in place of the settings of the cache.
///
/// [`CacheAside::with`](super::CacheAside::with) checks them and returns a view of the cache with
/// them. A value's own settings, see [`Loaded`], win over these.
///
/// ```
/// use std::{convert::Infallible, time::Duration};
/// use steadfast::cache_aside::{CacheAside, CacheAsideConfig, LoadOptions};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let prices: CacheAside<String, u32> = CacheAside::new(CacheAsideConfig::default())?;
///
/// // Built once, used for many calls.
/// let options = LoadOptions::default().ttl(Duration::from_secs(5)).tags(["volatile"]);
/// let volatile = prices.with(options)?;
/// assert_eq!(volatile.get_or_load("btc", || async { Ok::<u32, Infallible>(117) }).await?, 117);
/// assert_eq!(prices.get("btc").await, Some(117)); // the same cache
///
/// let wrong = prices.with(LoadOptions::default().hard_timeout(Duration::from_secs(60)));
/// let text = "invalid `hard_timeout`: must be at most the cache's `hard_timeout`";
/// assert_eq!(wrong.unwrap_err().to_string(), text);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Time for which the value is fresh.
    pub ttl: Option<Duration>,
    /// Maximum random time that is added to the time to live. At most `ttl`.
    pub jitter: Option<Duration>,
    /// Time for which the cache remembers that the source has nothing under the key.
    pub negative_ttl: Option<Duration>,
    /// Age up to which the value is served while the source fails. Longer than `ttl`; requires the
    /// cache's `stale`.
    pub stale_max_age: Option<Duration>,
    /// Tags of the value, besides those that the loader adds.
    pub tags: Vec<String>,
    /// Time of waiting after which an expired value is served, while the load continues in the
    /// background. Requires the cache's `stale`.
    pub soft_timeout: Option<Duration>,
    /// Maximum time of the load. At most the cache's, because claims in the remote tier last that
    /// long.
    pub hard_timeout: Option<Duration>,
    /// Skips the lookup in the local tier. A value that may be served while the source fails is
    /// skipped, too.
    pub skip_local_read: bool,
    /// Keeps the value out of the local tier. Requires a remote tier.
    pub skip_local_write: bool,
    /// Skips the lookup in the remote tier. Requires a remote tier.
    pub skip_remote_read: bool,
    /// Keeps the loaded value out of the remote tier; an older one stays there. Requires a remote
    /// tier.
    pub skip_remote_write: bool,
}

setters! {
    impl LoadOptions {
        ttl: Option<Duration>,
        jitter: Option<Duration>,
        negative_ttl: Option<Duration>,
        stale_max_age: Option<Duration>,
        tags: [impl Into<String>],
        soft_timeout: Option<Duration>,
        hard_timeout: Option<Duration>,
        skip_local_read: bool,
        skip_local_write: bool,
        skip_remote_read: bool,
        skip_remote_write: bool,
    }
}

impl LoadOptions {
    pub(super) fn check(&self, config: &CacheAsideConfig, has_remote: bool) -> Result<(), ConfigError> {
        let ttl = self.ttl.unwrap_or(config.ttl);
        require_some_time(ttl, "ttl")?;
        if let Some(jitter) = self.jitter {
            require(jitter <= ttl, "jitter", "must be at most `ttl`")?;
        }
        if let Some(ttl) = self.negative_ttl {
            require_some_time(ttl, "negative_ttl")?;
        }
        if let Some(max_age) = self.stale_max_age {
            require(config.stale.is_some(), "stale_max_age", "requires the cache's `stale`")?;
            require(max_age > ttl, "stale_max_age", "must be longer than `ttl`")?;
        }
        let hard = self.hard_timeout.or(config.hard_timeout);
        if let Some(own) = self.hard_timeout {
            require_some_time(own, "hard_timeout")?;
            let fits = config.hard_timeout.is_none_or(|most| own <= most);
            require(fits, "hard_timeout", "must be at most the cache's `hard_timeout`")?;
        }
        if let Some(soft) = self.soft_timeout {
            require(config.stale.is_some(), "soft_timeout", "requires the cache's `stale`")?;
            require(!self.skip_local_read, "soft_timeout", "cannot be combined with `skip_local_read`")?;
            require(hard.is_none_or(|hard| soft < hard), "soft_timeout", "must be below `hard_timeout`")?;
        }
        for (skips, name) in [
            (self.skip_local_write, "skip_local_write"),
            (self.skip_remote_read, "skip_remote_read"),
            (self.skip_remote_write, "skip_remote_write"),
        ] {
            require(!skips || has_remote, name, "requires a remote tier")?;
        }
        let keeps = !(self.skip_local_write && self.skip_remote_write);
        require(keeps, "skip_local_write", "cannot be combined with `skip_remote_write`")
    }

    fn apply<V>(&self, mut loaded: Loaded<V>) -> Loaded<V> {
        loaded.ttl = loaded.ttl.or(self.ttl);
        loaded.tags.extend(self.tags.iter().cloned());
        if self.jitter.is_some() || self.stale_max_age.is_some() || self.skip_local_write || self.skip_remote_write {
            // The value may live for less than the options assume.
            let jitter = self.jitter.map(|jitter| loaded.ttl.map_or(jitter, |ttl| jitter.min(ttl)));
            let rare = loaded.rare();
            rare.jitter = rare.jitter.or(jitter);
            rare.stale_max_age = rare.stale_max_age.or(self.stale_max_age);
            rare.skip_local_write |= self.skip_local_write;
            rare.skip_remote_write |= self.skip_remote_write;
        }
        loaded
    }
}

/// The options of one call: none, which costs nothing, or shared ones.
pub(super) trait CallOptions: Clone + Send + Sync + 'static {
    fn get(&self) -> Option<&LoadOptions>;

    #[inline]
    fn is(&self, flag: impl FnOnce(&LoadOptions) -> bool) -> bool {
        self.get().is_some_and(flag)
    }

    #[inline]
    fn soft_timeout(&self, config: &CacheAsideConfig) -> Option<Duration> {
        self.get().and_then(|options| options.soft_timeout).or(config.soft_timeout)
    }

    #[inline]
    fn hard_timeout(&self, config: &CacheAsideConfig) -> Option<Duration> {
        self.get().and_then(|options| options.hard_timeout).or(config.hard_timeout)
    }

    #[inline]
    fn negative_ttl(&self, config: &CacheAsideConfig) -> Option<Duration> {
        self.get().and_then(|options| options.negative_ttl).or(config.negative_ttl)
    }

    /// Returns the loaded value with the options for what it does not set itself.
    #[inline]
    fn apply<V>(&self, loaded: Loaded<V>) -> Loaded<V> {
        match self.get() {
            Some(options) => options.apply(loaded),
            None => loaded,
        }
    }
}

impl CallOptions for () {
    #[inline]
    fn get(&self) -> Option<&LoadOptions> {
        None
    }
}

impl CallOptions for Arc<LoadOptions> {
    #[inline]
    fn get(&self) -> Option<&LoadOptions> {
        Some(self)
    }
}
