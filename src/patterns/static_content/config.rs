//! Settings of a site, for its publishers and its services.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    address::{SAFE, is_safe},
    config::{ConfigError, human, require, require_some_time, setters},
};

/// Settings of a [`SitePublisher`](super::SitePublisher) and a [`StaticSite`](super::StaticSite).
/// Give both the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SiteConfig {
    /// Address under which the bucket is served: with `https`, or with `http` on loopback.
    /// Required.
    pub base: String,
    /// Number of the latest releases that pruning keeps. 5 by default.
    pub keep_releases: usize,
    /// Time for which pruning keeps a release after another one took its place. 7 days by default.
    #[serde(with = "human")]
    pub keep_for: Duration,
    /// Interval between two looks at the store, give or take a fifth. 30 s by default, 1 s at
    /// least.
    #[serde(with = "human")]
    pub poll_interval: Duration,
    /// Number of requests to the bucket, or of reads of the store, at a time. 8 by default.
    pub parallelism: usize,
    /// Time limit of one request to the store, the lease or the bucket. Uploads and downloads may
    /// take 60 times as long. 5 s by default.
    #[serde(with = "human")]
    pub call_timeout: Duration,
    /// Time for which a publisher holds the lease at a time: after its death the next one waits so
    /// long. 30 s by default, four times `call_timeout` at least.
    #[serde(with = "human")]
    pub lease_term: Duration,
}

impl Default for SiteConfig {
    fn default() -> Self {
        Self {
            base: String::new(),
            keep_releases: 5,
            keep_for: Duration::from_secs(7 * 24 * 3600),
            poll_interval: Duration::from_secs(30),
            parallelism: 8,
            call_timeout: Duration::from_secs(5),
            lease_term: Duration::from_secs(30),
        }
    }
}

setters! {
    impl SiteConfig {
        base: impl Into<String>,
        keep_releases: usize,
        keep_for: Duration,
        poll_interval: Duration,
        parallelism: usize,
        call_timeout: Duration,
        lease_term: Duration,
    }
}

impl SiteConfig {
    /// Creates the default settings for a bucket that is served under this address.
    pub fn at(base: impl Into<String>) -> Self {
        Self { base: base.into(), ..Self::default() }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(is_safe(&self.base) && !self.base.contains(['?', '#']), "base", SAFE)?;
        require(self.keep_releases >= 1, "keep_releases", "must be at least 1")?;
        require(self.poll_interval >= Duration::from_secs(1), "poll_interval", "must be at least 1 s")?;
        require(self.parallelism >= 1, "parallelism", "must be at least 1")?;
        require_some_time(self.call_timeout, "call_timeout")?;
        let needed = self.call_timeout.saturating_mul(4);
        require(self.lease_term >= needed, "lease_term", "must be at least four times `call_timeout`")
    }

    /// Returns the address of an object.
    pub(super) fn url(&self, key: &str) -> String {
        let mut url = self.base.trim_end_matches('/').to_owned() + "/";
        for byte in key.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
                url.push(char::from(byte));
            } else {
                url.push_str(&format!("%{byte:02X}"));
            }
        }
        url
    }
}
