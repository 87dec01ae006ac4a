//! Settings of uploads.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, require_some_time, setters};

/// Settings of [`Uploads`](super::Uploads).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct UploadConfig {
    /// Kind of the object store, by which the headers are chosen that its signature binds.
    /// [`S3`](StoreKind::S3) by default.
    pub kind: StoreKind,
    /// Time for which a URL is valid. 15 min by default; at most
    /// [`credentials_lifetime`](Self::credentials_lifetime), and 7 d.
    #[serde(with = "human")]
    pub url_lifetime: Duration,
    /// Time for which the credentials live that sign the URLs, since a URL ends with them. 1 h by
    /// default, as those of a role do.
    #[serde(with = "human")]
    pub credentials_lifetime: Duration,
    /// Most bytes of one upload. 10 MiB by default, and at most 5 GiB.
    pub max_bytes: u64,
    /// Most bytes that the outstanding uploads of one tag may have declared. 1 GiB by default. An
    /// upload is outstanding until it has ended and its URL has, which may write again until then.
    pub max_outstanding: u64,
    /// Time after the end of its URL for which an upload that began before may still run. 1 h by
    /// default. Then an upload that nobody reported is completed, or ends. At
    /// least twice [`call_timeout`](Self::call_timeout).
    #[serde(with = "human")]
    pub grace: Duration,
    /// Time for which the result of an upload is kept after that. 7 d by default.
    #[serde(with = "human")]
    pub keep_results: Duration,
    /// Pause of [`run`](super::Uploads::run) between two sweeps. 1 min by default.
    #[serde(with = "human")]
    pub sweep_interval: Duration,
    /// Time limit of each request to either store. 30 s by default: raise it if a copy of
    /// `max_bytes` takes longer.
    #[serde(with = "human")]
    pub call_timeout: Duration,
    /// Time limit of one inspection. 5 min by default. After it another
    /// completion inspects another copy.
    #[serde(with = "human")]
    pub inspect_timeout: Duration,
    /// Time after which a caller may return while a store is away. 1 s by default.
    #[serde(with = "human")]
    pub retry_after: Duration,
}

/// Kind of an object store, which says what its signed URLs bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StoreKind {
    /// Amazon S3, or a store with its interface: a URL binds type, checksum and absence, and by the
    /// checksum the length.
    S3,
    /// Google Cloud Storage: a URL binds type, length and absence.
    Gcs,
    /// Azure Blob Storage: a URL binds the name alone.
    Azure,
}

impl StoreKind {
    /// Returns the kind as a word: `s3`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gcs => "gcs",
            Self::Azure => "azure",
        }
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The most that one request can write or copy.
const CEILING: u64 = 5 << 30;

impl Default for UploadConfig {
    fn default() -> Self {
        Self {
            kind: StoreKind::S3,
            url_lifetime: Duration::from_secs(900),
            credentials_lifetime: Duration::from_secs(3600),
            max_bytes: 10 << 20,
            max_outstanding: 1 << 30,
            grace: Duration::from_secs(3600),
            keep_results: DAY * 7,
            sweep_interval: Duration::from_secs(60),
            call_timeout: Duration::from_secs(30),
            inspect_timeout: Duration::from_secs(300),
            retry_after: Duration::from_secs(1),
        }
    }
}

setters! {
    impl UploadConfig {
        kind: StoreKind,
        url_lifetime: Duration,
        credentials_lifetime: Duration,
        max_bytes: u64,
        max_outstanding: u64,
        grace: Duration,
        keep_results: Duration,
        sweep_interval: Duration,
        call_timeout: Duration,
        inspect_timeout: Duration,
        retry_after: Duration,
    }
}

impl UploadConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.url_lifetime, "url_lifetime")?;
        require(self.url_lifetime <= DAY * 7, "url_lifetime", "must be at most 7 d")?;
        let rule = "must be at most `credentials_lifetime`, with which a URL ends";
        require(self.url_lifetime <= self.credentials_lifetime, "url_lifetime", rule)?;
        require((1..=CEILING).contains(&self.max_bytes), "max_bytes", "must be 1 to 5 GiB")?;
        require(self.max_bytes <= self.max_outstanding, "max_outstanding", "must be at least `max_bytes`")?;
        require_some_time(self.call_timeout, "call_timeout")?;
        // A request may still run for so long when the row is forgotten that names what it writes.
        let is_over = self.call_timeout.saturating_mul(2) <= self.grace;
        require(is_over, "grace", "must be at least twice `call_timeout`")?;
        require_some_time(self.keep_results, "keep_results")?;
        require_some_time(self.sweep_interval, "sweep_interval")?;
        require_some_time(self.inspect_timeout, "inspect_timeout")
    }
}
