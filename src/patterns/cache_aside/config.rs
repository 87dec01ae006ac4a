//! Settings of a cache.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, require_share, require_some_time};

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
    /// Handling of a load when no caller waits for it any more. It is dropped by default.
    pub unattended: Unattended,
    /// Settings of the remote tier, if one is attached.
    pub remote: RemoteConfig,
}

/// Settings for serving expired values while the source fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StaleConfig {
    /// Maximum age of a value that is served, counted from its load.
    #[serde(with = "human")]
    pub max_age: Duration,
    /// Minimum time between a failed load and the next one. 10 s by default.
    #[serde(with = "human", default = "ten_seconds")]
    pub throttle: Duration,
}

const fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

/// Handling of a load when no caller waits for it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
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
        }
    }
}

impl CacheAsideConfig {
    /// Sets the capacity of the local tier.
    #[must_use]
    pub const fn capacity(mut self, capacity: u64) -> Self {
        self.capacity = capacity;
        self
    }

    /// Sets the time to live, and the random time that is added to it.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration, jitter: Duration) -> Self {
        self.ttl = ttl;
        self.jitter = jitter;
        self
    }

    /// Expires entries after this time without access.
    #[must_use]
    pub const fn sliding(mut self, idle: Duration) -> Self {
        self.sliding = Some(idle);
        self
    }

    /// Remembers for this time that the source has nothing under a key.
    #[must_use]
    pub const fn negative_ttl(mut self, ttl: Duration) -> Self {
        self.negative_ttl = Some(ttl);
        self
    }

    /// Serves expired values while the source fails, up to `max_age`, and asks the source at most
    /// every `throttle`.
    #[must_use]
    pub const fn stale(mut self, max_age: Duration, throttle: Duration) -> Self {
        self.stale = Some(StaleConfig { max_age, throttle });
        self
    }

    /// Serves an expired value, if there is one, after waiting this long for a load.
    #[must_use]
    pub const fn soft_timeout(mut self, timeout: Duration) -> Self {
        self.soft_timeout = Some(timeout);
        self
    }

    /// Sets the maximum time of a load; `None` for no limit.
    #[must_use]
    pub const fn hard_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.hard_timeout = timeout;
        self
    }

    /// Refreshes a value in the background after this share of its time to live.
    #[must_use]
    pub const fn refresh_ahead(mut self, share: f64) -> Self {
        self.refresh_ahead = Some(share);
        self
    }

    /// Refreshes early at random, by XFetch with this `beta`.
    #[must_use]
    pub const fn xfetch(mut self, beta: f64) -> Self {
        self.xfetch = Some(beta);
        self
    }

    /// Sets the handling of a load when no caller waits for it any more.
    #[must_use]
    pub const fn unattended(mut self, then: Unattended) -> Self {
        self.unattended = then;
        self
    }

    /// Sets the settings of the remote tier.
    #[must_use]
    pub const fn remote(mut self, remote: RemoteConfig) -> Self {
        self.remote = remote;
        self
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

impl RemoteConfig {
    /// Sets the maximum time that the remote tier may add to a call.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the time between two attempts to reach a suspended tier.
    #[must_use]
    pub const fn rest(mut self, rest: Duration) -> Self {
        self.rest = rest;
        self
    }

    /// Sets the time for which the local tier keeps a value of the remote tier.
    #[must_use]
    pub const fn local_ttl(mut self, ttl: Duration) -> Self {
        self.local_ttl = Some(ttl);
        self
    }

    /// Sets the maximum time that a load waits for the load of another process.
    #[must_use]
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}
