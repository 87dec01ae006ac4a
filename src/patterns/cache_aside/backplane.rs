//! The backplane: notices between processes. They carry keys and versions, never values.
use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    RemoteCall,
    debts::Debt,
    health::{Failed, Health},
    report::Report,
};
use crate::{
    notify::Notifier,
    race::{First, race},
    store::Version,
    time::Instant,
};

pub(super) struct Backplane {
    pub(super) notifier: Arc<dyn Notifier>,
    pub(super) topic: String,
    /// Identifies this cache's notices among those of others.
    pub(super) me: u64,
    pub(super) timeout: Duration,
    pub(super) health: Health,
}

/// The content of a notice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// A row and the version of the value that was put there, or `None` for an invalidation.
    Row(String, Option<Version>),
    Tag(String),
    All,
}

impl Backplane {
    /// Publishes a notice, unless the backplane is cooling down after failures. Returns `true` if
    /// that is known to be done.
    pub(super) async fn tell(&self, report: &Report, told: &Told, deadline: Instant) -> bool {
        let now = report.now();
        if !self.health.admits(now) {
            return false;
        }
        let publish = self.notifier.publish(&self.topic, encode(self.me, told));
        let (kind, how) = match race(publish, async { report.clock.sleep_until(deadline).await }).await {
            First::One(Ok(())) => {
                self.health.answered(report.now());
                return true;
            }
            First::One(Err(error)) => (Some(error.kind()), Some(Failed::Refused)),
            // A time-out after a short wait says nothing about the backplane.
            First::Other(()) => (None, (deadline - now >= self.timeout / 2).then_some(Failed::Slow)),
        };
        if let Some(how) = how {
            self.health.failed(report.now(), how);
        }
        report.remote_failed(RemoteCall::Notify, kind);
        false
    }

    /// Reads a notice. Returns `None` for this cache's own, and [`CacheNotice::All`] for one that
    /// cannot be read.
    pub(super) fn hear(&self, notice: &Bytes) -> Option<Told> {
        match decode(notice) {
            Some((sender, _)) if sender == self.me => None,
            Some((_, told)) => Some(told),
            None => Some(Told::All),
        }
    }
}

impl Debt {
    /// Returns the notice of this invalidation. A claim has none.
    pub(super) fn told(&self) -> Option<Told> {
        match self {
            Self::All => Some(Told::All),
            Self::Tag(tag) => Some(Told::Tag(tag.clone())),
            Self::Row(row) => Some(Told::Row(row.clone(), None)),
            Self::Claim(..) => None,
        }
    }
}

fn encode(me: u64, told: &Told) -> Bytes {
    let text = match told {
        Told::Row(row, None) => format!("cache 1 {me:016x} row\n{row}"),
        Told::Row(row, Some(version)) => format!("cache 1 {me:016x} row {version}\n{row}"),
        Told::Tag(tag) => format!("cache 1 {me:016x} tag\n{tag}"),
        Told::All => format!("cache 1 {me:016x} all\n"),
    };
    text.into()
}

fn decode(notice: &Bytes) -> Option<(u64, Told)> {
    let (header, name) = std::str::from_utf8(notice).ok()?.split_once('\n')?;
    let (sender, what) = header.strip_prefix("cache 1 ")?.split_once(' ')?;
    let told = match what {
        "row" => Told::Row(name.to_owned(), None),
        "tag" => Told::Tag(name.to_owned()),
        "all" => Told::All,
        _ => {
            let version = what.strip_prefix("row ")?.parse().ok()?;
            Told::Row(name.to_owned(), Some(Version::new(version)))
        }
    };
    Some((u64::from_str_radix(sender, 16).ok()?, told))
}
