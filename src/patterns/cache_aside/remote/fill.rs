//! The remote tier: storing a loaded value, and releasing a claim.
use std::time::Duration;

use bytes::Bytes;

use super::super::{
    RemoteCall,
    remote::lookup::{Claim, Fault, LONGEST, Remote, RemoteFill},
    remote::record::{Kind, Stored, lock_of, mark_of},
    report::Report,
};
use crate::{
    store::{DeleteOptions, Key, Precondition, PutOptions, Version},
    time::Instant,
};

impl<V> Remote<V> {
    /// Stores the result of a load within the rest of the call's time-out.
    pub(crate) async fn fill(
        &self,
        report: &Report,
        claim: &Claim,
        value: Option<&V>,
        ttl: Duration,
        tags: &[String],
    ) -> RemoteFill {
        let deadline = report.now() + claim.left;
        let filled = match self.encode(report, value, ttl, tags, claim.born) {
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
        value: Option<&V>,
        ttl: Duration,
        tags: &[String],
        born: u64,
    ) -> Option<Bytes> {
        if ttl.is_zero() {
            return None;
        }
        let most = self.store.capabilities().max_key();
        let payload = match value {
            Some(value) => self.codec.encode(value),
            None => Some(Vec::new()),
        };
        let payload = payload.filter(|_| tags.iter().all(|tag| mark_of(tag).len() <= most));
        let Some(payload) = payload else {
            report.not_storable();
            return None;
        };
        let kind = if value.is_some() { Kind::Value } else { Kind::Absent };
        let loaded = report.clock.wall();
        Some(Stored { kind, ttl, born, loaded, tags: tags.to_vec(), payload: payload.into() }.encode())
    }
}
