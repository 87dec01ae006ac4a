//! The addresses that a prober asks, and what it reports of them.
use std::{fmt, net::IpAddr, time::Duration};

use reqwest::Url;
use serde::{Serialize, Serializer};
use thiserror::Error;

use super::{ProberConfig, config::DAY};
use crate::{
    config::{ConfigError, Name, human, require},
    health::HealthStatus,
    time::Timestamp,
};

/// Part of a body in which the expected text is looked for, in bytes.
pub(super) const MAX_BODY: usize = 64 * 1024;

/// An address that a [`Prober`](super::Prober) asks by `GET`, with the answer that is expected:
/// status 200 and any body, unless its methods say otherwise.
///
/// ```
/// use steadfast::health::Target;
///
/// let ada = Target::new("shop of ada", "https://ada.shop.example/readyz").text("healthy");
/// let closed = Target::new("admin", "https://shop.example/admin").status(401);
/// # drop((ada.addresses(["203.0.113.7".parse().unwrap()]), closed));
/// ```
#[derive(Clone)]
pub struct Target {
    pub(super) name: Name,
    url: String,
    status: u16,
    text: Option<String>,
    addresses: Vec<IpAddr>,
}

impl Target {
    /// Creates a target: a name, and an address with `http` or `https`.
    pub fn new(name: impl Into<Name>, url: impl Into<String>) -> Self {
        Self { name: name.into(), url: url.into(), status: 200, text: None, addresses: Vec::new() }
    }

    /// Sets the text that the first 64 KiB of the body must contain. Without one a missing page
    /// that is answered with 200 goes unnoticed.
    #[must_use]
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.text = Some(text.into());
        self
    }

    /// Sets the expected status. 200 by default. Redirects are not followed.
    #[must_use]
    pub fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Sets the addresses that the name may have. Any by default.
    #[must_use]
    pub fn addresses(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.addresses = addresses.into_iter().collect();
        self
    }
}

/// Shows the name alone: an address may hold a password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A target whose settings are valid.
pub(super) struct Checked {
    pub(super) name: Name,
    pub(super) url: Url,
    pub(super) status: u16,
    pub(super) text: Option<String>,
    pub(super) addresses: Vec<IpAddr>,
}

impl Checked {
    pub(super) fn new(target: Target) -> Result<Self, ConfigError> {
        let Target { name, url, status, text, addresses } = target;
        require(!name.as_str().is_empty(), "target", "must have a name")?;
        let refuse = |rule: &str| ConfigError::new("target", rule.to_owned()).within(name.as_str());
        let parsed = Url::parse(&url).ok();
        let usable = parsed.filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host());
        let Some(url) = usable else { return Err(refuse("must have an address with `http` or `https` and a host")) };
        if !(200..600).contains(&status) {
            return Err(refuse("must expect a status from 200 to 599"));
        }
        if text.as_ref().is_some_and(String::is_empty) {
            return Err(refuse("must not expect an empty text, which each body contains"));
        }
        if text.as_ref().is_some_and(|text| text.len() > MAX_BODY) {
            return Err(refuse("must not expect a text of more than 64 KiB, of which no body is read"));
        }
        Ok(Self { name, url, status, text, addresses })
    }
}

/// Reason for which a target is unhealthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProbeFailure {
    /// The look-up of its name failed.
    #[error("the name has no address")]
    NoAddress,
    /// Its name has an address that is not among the expected ones. Nothing was sent there.
    #[error("the name has an unexpected address")]
    UnexpectedAddress,
    /// There was no connection, no TLS, or no whole answer.
    #[error("no answer")]
    NoAnswer,
    /// The probe exceeded its time limit.
    #[error("timed out")]
    TimedOut,
    /// The answer has another status than the expected one.
    #[error("unexpected status")]
    Status,
    /// The body does not contain the expected text.
    #[error("the expected text is missing")]
    MissingText,
    /// The certificate ends within `certificate_failure`, or cannot be read.
    #[error("the certificate ends too soon")]
    Certificate,
}

impl ProbeFailure {
    /// Returns the reason as a word: `missing_text`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoAddress => "no_address",
            Self::UnexpectedAddress => "unexpected_address",
            Self::NoAnswer => "no_answer",
            Self::TimedOut => "timed_out",
            Self::Status => "status",
            Self::MissingText => "missing_text",
            Self::Certificate => "certificate",
        }
    }
}

/// The report on one probe. It has no text of an error: events have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProbeReport {
    /// Name of the target.
    #[serde(serialize_with = "as_text")]
    pub target: Name,
    /// Status: degraded if only the end of the certificate is near.
    pub status: HealthStatus,
    /// Reason, if it is unhealthy: the first one in the order of [`ProbeFailure`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<ProbeFailure>,
    /// Status code of the answer, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    /// Time from the end of the look-up to the end of what was read of the answer, or to the
    /// failure.
    #[serde(with = "human")]
    pub latency: Duration,
    /// Duration of the look-up of the name. Zero for an address without a name.
    #[serde(with = "human")]
    pub look_up: Duration,
    /// Whole days until the end of the certificate, if the server has shown one and answered,
    /// whatever the answer was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub days_left: Option<u64>,
}

fn as_text<S: Serializer>(name: &Name, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(name.as_str())
}

impl ProbeReport {
    pub(super) fn new(target: &Checked) -> Self {
        Self {
            target: target.name.clone(),
            status: HealthStatus::Healthy,
            failure: None,
            code: None,
            latency: Duration::ZERO,
            look_up: Duration::ZERO,
            days_left: None,
        }
    }

    /// Judges a certificate by its end.
    pub(super) fn judge_certificate(
        &mut self,
        end: Timestamp,
        now: Timestamp,
        config: &ProberConfig,
    ) -> Result<(), ProbeFailure> {
        let left = Duration::from_millis(end.as_millis().saturating_sub(now.as_millis()));
        self.days_left = Some(left.as_secs() / DAY.as_secs());
        if left <= config.certificate_failure {
            return Err(ProbeFailure::Certificate);
        }
        if left <= config.certificate_warning {
            self.status = HealthStatus::Degraded;
        }
        Ok(())
    }
}
