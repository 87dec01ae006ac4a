//! The backplane: notices between processes. They carry keys and versions, never values.
use std::sync::Arc;

use bytes::Bytes;

use super::super::{
    CacheAsideConfig, RemoteCall,
    remote::health::{Failed, Health},
    remote::pending::Invalidation,
    report::Report,
};
use crate::{
    config::Live,
    notify::Notifier,
    port::{AskError, ask_until},
    store::Version,
    time::Instant,
};

pub(crate) struct Backplane {
    pub(crate) notifier: Arc<dyn Notifier>,
    pub(crate) topic: String,
    /// Identifies this cache's notices among those of others.
    pub(crate) me: u64,
    pub(crate) config: Live<CacheAsideConfig>,
    pub(crate) health: Health,
}

/// The content of a notice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CacheNotice {
    /// A row and the version of the value that was put there, or `None` for an invalidation.
    Row(String, Option<Version>),
    Tag(String),
    All,
}

impl Backplane {
    /// Publishes a notice, unless the backplane is cooling down after failures. Returns `true` if
    /// that is known to be done.
    pub(crate) async fn publish(&self, report: &Report, notice: &CacheNotice, deadline: Instant) -> bool {
        let now = report.now();
        if !self.health.admits(now) {
            return false;
        }
        let request = self.notifier.publish(&self.topic, encode(self.me, notice));
        let answer = ask_until(&report.clock, deadline, request).await;
        let how = match &answer {
            Ok(()) => {
                self.health.answered(report.now());
                return true;
            }
            Err(AskError::Failed(_)) => Some(Failed::Refused),
            // A time-out after a short wait says nothing about the backplane.
            Err(AskError::TimedOut) => (deadline - now >= self.config.now().remote.timeout / 2).then_some(Failed::Slow),
        };
        if let Some(how) = how {
            self.health.failed(now, report.now(), how);
        }
        report.remote_failed(RemoteCall::Notify, answer.err().and_then(|error| error.kind()));
        false
    }

    /// Reads a notice. Returns `None` for this cache's own, and [`CacheNotice::All`] for one that
    /// cannot be read.
    pub(crate) fn read(&self, notice: &Bytes) -> Option<CacheNotice> {
        match decode(notice) {
            Some((sender, _)) if sender == self.me => None,
            Some((_, content)) => Some(content),
            None => Some(CacheNotice::All),
        }
    }
}

impl Invalidation {
    /// Returns the notice of this invalidation. A claim has none.
    pub(crate) fn notice(&self) -> Option<CacheNotice> {
        match self {
            Self::All => Some(CacheNotice::All),
            Self::Tag(tag) => Some(CacheNotice::Tag(tag.clone())),
            Self::Row(row) => Some(CacheNotice::Row(row.clone(), None)),
            Self::Claim(..) => None,
        }
    }
}

fn encode(me: u64, notice: &CacheNotice) -> Bytes {
    let text = match notice {
        CacheNotice::Row(row, None) => format!("cache 1 {me:016x} row\n{row}"),
        CacheNotice::Row(row, Some(version)) => format!("cache 1 {me:016x} row {version}\n{row}"),
        CacheNotice::Tag(tag) => format!("cache 1 {me:016x} tag\n{tag}"),
        CacheNotice::All => format!("cache 1 {me:016x} all\n"),
    };
    text.into()
}

fn decode(notice: &Bytes) -> Option<(u64, CacheNotice)> {
    let (header, name) = std::str::from_utf8(notice).ok()?.split_once('\n')?;
    let (sender, what) = header.strip_prefix("cache 1 ")?.split_once(' ')?;
    let content = match what {
        "row" => CacheNotice::Row(name.to_owned(), None),
        "tag" => CacheNotice::Tag(name.to_owned()),
        "all" => CacheNotice::All,
        _ => {
            let version = what.strip_prefix("row ")?.parse().ok()?;
            CacheNotice::Row(name.to_owned(), Some(Version::new(version)))
        }
    };
    Some((u64::from_str_radix(sender, 16).ok()?, content))
}
