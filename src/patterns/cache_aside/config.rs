//! Settings of a cache.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::remote::lookup::LONGEST;
use crate::config::{ConfigError, Effect, human, require, require_share, require_some_time, setters};

/// Settings of a [`CacheAside`](super::CacheAside): plain data, from code or from a document.
///
/// ```
/// use steadfast::cache_aside::{CacheAside, CacheAsideConfig};
///
/// let config: CacheAsideConfig = toml::from_str(r#"
///     capacity = 50000
///     ttl = "5min"
///     jitter = "30s"
///     stale = { max_age = "2h", throttle = "1min" }
///     soft_timeout = "100ms"
///     refresh_ahead = 0.9
/// "#).unwrap();
/// assert!(CacheAside::<u64, String>::new(config).is_ok());
///
/// let empty = CacheAsideConfig::default().capacity(0);
/// let refused = CacheAside::<u64, String>::new(empty).unwrap_err();
/// assert_eq!(refused.to_string(), "invalid `capacity`: must be at least 1");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct CacheAsideConfig {
    /// Capacity of the local tier, in entries, or in weight if a weigher is set. 10,000 by default.
    pub capacity: u64,
    /// Time for which a value is fresh after it was loaded or put. 60 s by default. A loader may
    /// set another one for its value.
    #[serde(with = "human")]
    pub ttl: Duration,
    /// Maximum random time that is added to each time to live, so that values that were loaded
    /// together do not expire together. 6 s by default.
    #[serde(with = "human")]
    pub jitter: Duration,
    /// Time without access after which an entry expires. None by default. It never extends a time
    /// to live.
    #[serde(with = "human::option", skip_serializing_if = "Option::is_none")]
    pub sliding: Option<Duration>,
    /// Time for which the cache remembers that the source has nothing under a key. None by default:
    /// the source is asked each time.
    #[serde(with = "human::option", skip_serializing_if = "Option::is_none")]
    pub negative_ttl: Option<Duration>,
    /// Settings for serving expired values while the source fails. None by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale: Option<StaleConfig>,
    /// Time of waiting for a load after which an expired value is served, if there is one, while
    /// the load continues in the background. None by default; requires `stale`.
    #[serde(with = "human::option", skip_serializing_if = "Option::is_none")]
    pub soft_timeout: Option<Duration>,
    /// Maximum time of a load. 30 s by default. It also limits each get, whichever caller drives
    /// its load; with a remote tier `remote.timeout` and `remote.wait` are added.
    #[serde(with = "human::option", skip_serializing_if = "Option::is_none")]
    pub hard_timeout: Option<Duration>,
    /// Share of the time to live after which a hit starts a load in the background, once per value.
    /// None by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_ahead: Option<f64>,
    /// The `beta` of XFetch, an early refresh at random. It is the more likely, the longer the load
    /// took and the nearer the expiry is. None by default; its authors use 1, and more is earlier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xfetch: Option<f64>,
    /// Maximum number of keys of one call of the loader of
    /// [`get_or_load_many`](super::CacheAside::get_or_load_many). 1000 by default.
    pub max_batch: u32,
    /// Handling of a load when no caller waits for it any more. It is dropped by default.
    pub unattended: Unattended,
    /// Settings of the remote tier, if one is attached.
    pub remote: RemoteConfig,
}

/// Settings for serving expired values while the source fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct StaleConfig {
    /// Maximum age of a value that is served, counted from its load.
    #[serde(with = "human")]
    pub max_age: Duration,
    /// Minimum time between a failed load and the next one. 10 s by default.
    #[serde(with = "human", default = "ten_seconds")]
    pub throttle: Duration,
}

impl StaleConfig {
    /// Returns settings for serving values up to this age.
    pub const fn new(max_age: Duration) -> Self {
        Self { max_age, throttle: ten_seconds() }
    }
}

setters! {
    impl StaleConfig {
        max_age: Duration,
        throttle: Duration,
    }
}

const fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

/// Handling of a load when no caller waits for it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Unattended {
    /// Drops the load.
    #[default]
    Drop,
    /// Finishes the load in the background and stores its value.
    Finish,
}

/// Settings of the remote tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RemoteConfig {
    /// Maximum time that requests to the remote tier and the backplane add to a call in total: to
    /// look up, to claim and to store the loaded value. 100 ms by default. A
    /// [`clear`](super::CacheAside::clear) may take it once per page of rows.
    #[serde(with = "human")]
    pub timeout: Duration,
    /// Cool-down: time between two attempts to reach a remote tier or a backplane that is suspended
    /// after failures. 1 s by default. Pending invalidations are retried at most every 100 ms.
    #[serde(with = "human")]
    pub rest: Duration,
    /// Time for which the local tier keeps a value of the remote tier, which itself keeps the value
    /// for the rest of its time to live. A tenth of the time to live by default.
    #[serde(with = "human::option", skip_serializing_if = "Option::is_none")]
    pub local_ttl: Option<Duration>,
    /// Maximum time that a load waits for the load of another process before it asks the source
    /// itself. 1 s by default.
    #[serde(with = "human")]
    pub wait: Duration,
    /// Maximum number of loaded values that are written to the remote tier in the background at a
    /// time. A load then returns once its value is stored in this process. Above the number, or
    /// without a spawner, the value is written within the call. 0 by default: always within the
    /// call.
    pub background_writes: u32,
}

impl Default for CacheAsideConfig {
    fn default() -> Self {
        Self {
            capacity: 10_000,
            ttl: Duration::from_secs(60),
            jitter: Duration::from_secs(6),
            sliding: None,
            negative_ttl: None,
            stale: None,
            soft_timeout: None,
            hard_timeout: Some(Duration::from_secs(30)),
            refresh_ahead: None,
            xfetch: None,
            max_batch: 1000,
            unattended: Unattended::Drop,
            remote: RemoteConfig::default(),
        }
    }
}

impl Default for RemoteConfig {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(100),
            rest: Duration::from_secs(1),
            local_ttl: None,
            wait: Duration::from_secs(1),
            background_writes: 0,
        }
    }
}

setters! {
    impl RemoteConfig {
        timeout: Duration,
        rest: Duration,
        local_ttl: Option<Duration>,
        wait: Duration,
        background_writes: u32,
    }
}

setters! {
    impl CacheAsideConfig {
        capacity: u64,
        ttl: Duration,
        jitter: Duration,
        sliding: Option<Duration>,
        negative_ttl: Option<Duration>,
        stale: Option<StaleConfig>,
        soft_timeout: Option<Duration>,
        hard_timeout: impl Into<Option<Duration>>,
        refresh_ahead: Option<f64>,
        xfetch: Option<f64>,
        max_batch: u32,
        unattended: Unattended,
        remote: RemoteConfig,
    }
}

impl CacheAsideConfig {
    /// Checks a configuration that is to replace this one while the cache is in use.
    pub(super) fn check_change(&self, next: &Self) -> Result<Effect, ConfigError> {
        next.check()?;
        let same = self.unattended == next.unattended;
        Ok(match require(same, "unattended", "must stay as it is while the cache is in use") {
            Ok(()) => Effect::of_change(self, next),
            Err(error) => Effect::Restart(error),
        })
    }

    /// Returns the time to live of a claim in the remote tier, which is longer than a load takes.
    pub(super) fn claim_ttl(&self) -> Duration {
        /// The time if loads have no time limit.
        const LONG: Duration = Duration::from_secs(300);
        let load = self.hard_timeout.unwrap_or(LONG);
        load.saturating_add(self.remote.timeout.saturating_mul(3)).min(LONGEST)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(self.capacity >= 1, "capacity", "must be at least 1")?;
        require(self.capacity <= u64::MAX >> 16, "capacity", "must be below 2^48")?;
        require_some_time(self.ttl, "ttl")?;
        require(self.jitter <= self.ttl, "jitter", "must be at most `ttl`")?;
        if let Some(idle) = self.sliding {
            require_some_time(idle, "sliding")?;
        }
        if let Some(ttl) = self.negative_ttl {
            require_some_time(ttl, "negative_ttl")?;
        }
        if let Some(stale) = self.stale {
            require(stale.max_age > self.ttl, "stale.max_age", "must be longer than `ttl`")?;
            require_some_time(stale.throttle, "stale.throttle")?;
        }
        if let Some(soft) = self.soft_timeout {
            require(self.stale.is_some(), "soft_timeout", "requires `stale`")?;
            require(self.hard_timeout.is_none_or(|hard| soft < hard), "soft_timeout", "must be below `hard_timeout`")?;
        }
        if let Some(hard) = self.hard_timeout {
            require_some_time(hard, "hard_timeout")?;
        }
        if let Some(share) = self.refresh_ahead {
            require_share(share, "refresh_ahead")?;
            require(share < 1.0, "refresh_ahead", "must be above 0 and below 1")?;
        }
        if let Some(beta) = self.xfetch {
            require(beta > 0.0 && beta.is_finite(), "xfetch", "must be above 0")?;
        }
        require(self.max_batch >= 1, "max_batch", "must be at least 1")?;
        require_some_time(self.remote.timeout, "remote.timeout")?;
        require_some_time(self.remote.rest, "remote.rest")?;
        require_some_time(self.remote.wait, "remote.wait")?;
        if let Some(local) = self.remote.local_ttl {
            require_some_time(local, "remote.local_ttl")?;
            require(local < self.ttl, "remote.local_ttl", "must be below `ttl`")?;
        }
        Ok(())
    }
}
