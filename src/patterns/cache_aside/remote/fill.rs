//! The remote tier: storing a loaded value, and releasing a claim.
use std::time::Duration;

use bytes::Bytes;

use super::super::{
    RemoteCall,
    loaded::ValueSettings,
    remote::lookup::{Claim, Fault, LONGEST, Remote, RemoteFill},
    remote::record::{Kind, Stored, lock_of, mark_of},
    report::Report,
};
use crate::{
    store::{DeleteOptions, Key, Precondition, PutOptions, Version},
    time::Instant,
};

/// The content of a record that is to be stored: a value, or `None` if the source has none.
pub(crate) struct Content<'a, V> {
    pub(crate) value: Option<&'a V>,
    pub(crate) ttl: Duration,
    pub(crate) tags: &'a [String],
    pub(crate) settings: &'a ValueSettings,
}

impl<V> Remote<V> {
    /// Stores the result of a load within the rest of the call's time-out.
    pub(crate) async fn fill(&self, report: &Report, claim: &Claim, content: Content<'_, V>) -> RemoteFill {
        let deadline = report.now() + claim.left;
        let (ttl, tags) = (content.ttl, content.tags);
        let filled = match self.encode(report, content, claim.born) {
            None => Err(Fault::Refused),
            Some(bytes) => match self.invalidated_since(report, deadline, tags, claim.born).await {
                Ok(true) => {
                    return RemoteFill::Superseded { released: self.release(report, claim, deadline).await };
                }
                Ok(false) => {
                    let options = PutOptions::new().when(Precondition::Version(claim.version)).ttl(ttl.min(LONGEST));
                    let put = self.store.put(self.key(&claim.row), bytes, options);
                    self.ask(report, RemoteCall::Fill, deadline, put).await.inspect_err(|fault| {
                        if let Fault::Refused = fault {
                            report.not_storable();
                        }
                    })
                }
                Err(fault) => Err(fault),
            },
        };
        self.unlock(report, claim, deadline).await;
        match filled {
            Ok(version) => RemoteFill::Stored(version),
            Err(Fault::Conflict) => RemoteFill::Superseded { released: true },
            // The value that was to be refreshed is deleted, too: the source has another one or none.
            Err(Fault::Refused)
                if self.release_version(report, (RemoteCall::Fill, &claim.row), claim.version, deadline).await =>
            {
                RemoteFill::Nothing
            }
            Err(Fault::Refused | Fault::Down) => RemoteFill::Unknown,
        }
    }

    /// Releases a claim without storing. Returns `true` if the claim is known to be gone.
    pub(crate) async fn release(&self, report: &Report, claim: &Claim, deadline: Instant) -> bool {
        if claim.lock.is_some() {
            return self.unlock(report, claim, deadline).await;
        }
        self.release_version(report, (RemoteCall::Fill, &claim.row), claim.version, deadline).await
    }

    pub(crate) async fn release_version(
        &self,
        report: &Report,
        (call, row): (RemoteCall, &str),
        version: Version,
        deadline: Instant,
    ) -> bool {
        let options = DeleteOptions::new().when(Precondition::Version(version));
        let deleted = self.ask(report, call, deadline, self.store.delete(self.key(row), options)).await;
        !matches!(deleted, Err(Fault::Down))
    }

    async fn unlock(&self, report: &Report, claim: &Claim, deadline: Instant) -> bool {
        let Some(lock) = claim.lock else { return true };
        let (row, options) = (lock_of(&claim.row), DeleteOptions::new().when(Precondition::Version(lock)));
        let deleted = self.store.delete(Key::new(&self.marks, &row), options);
        !matches!(self.ask(report, RemoteCall::Fill, deadline, deleted).await, Err(Fault::Down))
    }

    /// Returns the record of a value that was loaded now, or reports that it cannot be stored and
    /// returns `None`.
    pub(crate) fn encode(
        &self,
        report: &Report,
        Content { value, ttl, tags, settings }: Content<'_, V>,
        born: u64,
    ) -> Option<Bytes> {
        if ttl.is_zero() || settings.skip_remote_write {
            return None;
        }
        let most = self.store.capabilities().max_key();
        let payload = match value {
            Some(value) => self.codec.encode(value).ok(),
            None => Some(Vec::new()),
        };
        let payload = payload.filter(|_| tags.iter().all(|tag| mark_of(tag).len() <= most));
        let Some(payload) = payload else {
            report.not_storable();
            return None;
        };
        let kind = if value.is_some() { Kind::Value } else { Kind::Absent };
        let loaded = report.clock.wall();
        let (tags, payload, stale_max_age) = (tags.to_vec(), payload.into(), settings.stale_max_age);
        let validator = settings.validator.clone().filter(|_| value.is_some());
        Some(Stored { kind, ttl, born, loaded, tags, validator, stale_max_age, payload }.encode())
    }
}
