//! The remote tier: a store that several processes share, and the guard over it.
//!
//! Whoever is to load a key claims its row first; what the load stores is put in the place of exactly that claim. Invalidating
//! deletes the row, whatever it holds. So a load that began before an invalidation finds its claim gone, and versions never repeat:
//! nothing old is stored. No clock is compared; a record ends by the store's own.
//!
//! Tags have a counter in the store, and so has their sequence: a value knows the number at which its load began, a tag that of its last
//! invalidation. A value whose tag has the higher number does not count.
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;

use super::{
    RemoteCall, RemoteConfig,
    codec::Codec,
    report::Report,
    wire::{Kind, SEQUENCE, Stored, lock_of, mark_of, number},
};
use crate::{
    port::{Failure, PortError, PortErrorKind},
    race::{First, both, race},
    store::{DeleteOptions, Key, Precondition, PutOptions, Record, Store, StoreError, Version},
    time::Instant,
};

pub(super) struct Remote<V> {
    pub(super) store: Arc<dyn Store>,
    pub(super) codec: Codec<V>,
    pub(super) config: RemoteConfig,
    /// The partition of the values, and that of the tags' counters.
    pub(super) values: String,
    pub(super) marks: String,
    /// Tells this cache's claims from those of others.
    pub(super) me: u64,
    /// How long a claim holds: longer than a load takes.
    pub(super) claim_ttl: Duration,
    /// Until when it is left alone, after a failure; by the cache's clock, in nanoseconds.
    pub(super) rests_until: AtomicU64,
}

/// No value is kept longer, and the mark of a tag's invalidation longer than that: so marks end, too.
pub(super) const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// What a look is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Somebody waits, and will load. What is there does not do where this process has loaded a newer value without the remote tier.
    Load { takes: bool },
    /// A value of this version is to be replaced while it is valid.
    Refresh(Option<Version>),
    /// Somebody asks what is there.
    LookUp,
}

/// What a look gave.
pub(super) enum Looked<V> {
    Found(Found<V>),
    /// Load it, and store it under this claim.
    Claimed(Claim),
    /// Another process loads it.
    Elsewhere,
    /// It is not there, and this look claims nothing.
    Nothing,
    /// The remote tier cannot be asked, or may not be: load without it.
    Without,
}

pub(super) struct Found<V> {
    pub(super) value: Option<V>,
    pub(super) tags: Vec<String>,
    pub(super) ttl: Duration,
    pub(super) version: Version,
}

/// The right to store what a load gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) row: String,
    /// The record that the load's takes the place of.
    pub(super) version: Version,
    born: u64,
    /// Of a refresh, which leaves the value where it is: the version of the row that keeps others from refreshing, too.
    pub(super) lock: Option<Version>,
}

pub(super) enum Filled {
    Stored(Version),
    /// It is not to be kept, or cannot be: nothing is there.
    Nothing,
    /// Nobody knows what is there: perhaps the claim.
    Unknown,
    /// The claim was gone: an invalidation overtook it.
    Superseded,
}

/// What came of a put.
pub(super) enum Put {
    Stored(Version),
    /// Another put or invalidation overtook it.
    Overtaken,
    /// Nobody knows what is there now.
    Unknown,
    /// The codec, or the store, does not take the value; what was there before is gone.
    NotStorable,
}

/// Why a request gave nothing.
pub(super) enum Fault {
    Conflict,
    /// The store does not take it.
    Refused,
    Down,
}

impl<V> Remote<V> {
    /// Whether it may be asked now, after its last failure.
    pub(super) fn is_up(&self, now: Instant) -> bool {
        now.as_nanos() >= self.rests_until.load(Relaxed)
    }

    /// Looks for the row. Waits for what another process loads, if this look is for a load.
    pub(super) async fn look(&self, report: &Report, row: &str, purpose: Purpose) -> Looked<V> {
        let start = report.now();
        if !self.is_up(start) {
            return Looked::Without;
        }
        let patience = start + self.config.wait;
        let mut deadline = start + self.config.timeout;
        let mut pause = Duration::from_millis(2);
        loop {
            let record = match self.ask(report, RemoteCall::Look, deadline, self.store.get(self.key(row))).await {
                Ok(record) => record,
                Err(Fault::Refused) => {
                    report.not_storable();
                    return Looked::Without;
                }
                Err(Fault::Conflict | Fault::Down) => return Looked::Without,
            };
            let stored = record.as_ref().and_then(|record| Stored::decode(&record.value));
            if record.is_some() && stored.is_none() {
                report.undecodable();
            }
            match (&record, stored) {
                (_, Some(Stored { kind: Kind::Claim(by), .. })) if by != self.me => {
                    // A claim that is never redeemed ends by itself.
                    match purpose {
                        Purpose::Load { .. } if report.now() < patience => {
                            report.sleep(pause).await;
                            pause = (pause * 2).min(Duration::from_millis(50));
                            deadline = report.now() + self.config.timeout;
                            continue;
                        }
                        // The other may yet store its own: nothing is claimed over it.
                        Purpose::Load { .. } => return Looked::Without,
                        Purpose::Refresh(_) => return Looked::Elsewhere,
                        Purpose::LookUp => return Looked::Nothing,
                    }
                }
                (Some(record), Some(stored)) if !matches!(stored.kind, Kind::Claim(_)) => {
                    match self.found(report, deadline, record, stored).await {
                        Ok(Some(found)) => match purpose {
                            Purpose::Refresh(known) if known.is_none_or(|known| known == found.version) => {
                                return self.claim_refresh(report, deadline, row, found.version).await;
                            }
                            Purpose::Load { takes: false } => {}
                            _ => return Looked::Found(found),
                        },
                        Ok(None) => {}
                        Err(_) => return Looked::Without,
                    }
                }
                _ => {}
            }
            if purpose == Purpose::LookUp {
                return Looked::Nothing;
            }
            let when = record.map_or(Precondition::Absent, |record| Precondition::Version(record.version));
            match self.claim(report, (RemoteCall::Look, self.me), deadline, row, when).await {
                Ok((version, born)) => {
                    return Looked::Claimed(Claim { row: row.to_owned(), version, born, lock: None });
                }
                // Another was faster: look what it did.
                Err(Fault::Conflict) if report.now() < patience => {}
                Err(_) => return Looked::Without,
            }
        }
    }

    /// The value of a record, if it decodes, and none of its tags was invalidated.
    async fn found(
        &self,
        report: &Report,
        deadline: Instant,
        record: &Record,
        stored: Stored,
    ) -> Result<Option<Found<V>>, Fault> {
        if self.overtook(report, deadline, &stored.tags, stored.born).await? {
            return Ok(None);
        }
        let value = match stored.kind {
            Kind::Absent => None,
            _ => match self.codec.decode(&stored.payload) {
                None => {
                    report.undecodable();
                    return Ok(None);
                }
                some => some,
            },
        };
        Ok(Some(Found { value, tags: stored.tags, ttl: stored.ttl, version: record.version }))
    }

    /// Whether one of the tags was invalidated after this number.
    async fn overtook(&self, report: &Report, deadline: Instant, tags: &[String], born: u64) -> Result<bool, Fault> {
        for tag in tags {
            if self.mark(report, deadline, &mark_of(tag)).await? > born {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Claims the row, and gives the claim's version and the number at which a load that follows begins.
    pub(super) async fn claim(
        &self,
        report: &Report,
        (call, by): (RemoteCall, u64),
        deadline: Instant,
        row: &str,
        when: Precondition,
    ) -> Result<(Version, u64), Fault> {
        let claim = Stored::claim(by, self.claim_ttl).encode();
        let options = PutOptions::new().when(when).ttl(self.claim_ttl);
        let put = self.ask(report, call, deadline, self.store.put(self.key(row), claim, options));
        let (claimed, born) = both(put, self.mark(report, deadline, SEQUENCE)).await;
        Ok((claimed?, born?))
    }

    /// The value stays where it is while it is refreshed, guarded by its own version; a row of its own keeps others from refreshing, too.
    async fn claim_refresh(&self, report: &Report, deadline: Instant, row: &str, version: Version) -> Looked<V> {
        let lock_row = lock_of(row);
        let key = Key::new(&self.marks, &lock_row);
        let options = PutOptions::new().when(Precondition::Absent).ttl(self.claim_ttl);
        let put = self.ask(
            report,
            RemoteCall::Look,
            deadline,
            self.store.put(key, format!("{:016x}", self.me).into(), options),
        );
        match both(put, self.mark(report, deadline, SEQUENCE)).await {
            (Ok(lock), Ok(born)) => Looked::Claimed(Claim { row: row.to_owned(), version, born, lock: Some(lock) }),
            _ => Looked::Elsewhere,
        }
    }

    /// The number of a tag's last invalidation, or of the sequence; 0 where there is none.
    async fn mark(&self, report: &Report, deadline: Instant, row: &str) -> Result<u64, Fault> {
        let record = self.ask(report, RemoteCall::Look, deadline, self.store.get(Key::new(&self.marks, row))).await?;
        Ok(record.map_or(0, |record| match row {
            SEQUENCE => record.version.as_u64(),
            _ => number(&record.value),
        }))
    }

    /// Stores what a load gave.
    pub(super) async fn fill(
        &self,
        report: &Report,
        claim: &Claim,
        value: Option<&V>,
        ttl: Duration,
        tags: &[String],
    ) -> Filled {
        let deadline = report.now() + self.config.timeout;
        let filled = match self.encode(report, value, ttl, tags, claim.born) {
            None => Err(Fault::Refused),
            Some(bytes) => match self.overtook(report, deadline, tags, claim.born).await {
                Ok(true) => {
                    self.release(report, claim).await;
                    return Filled::Superseded;
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
        self.unlock(report, claim).await;
        match filled {
            Ok(version) => Filled::Stored(version),
            Err(Fault::Conflict) => Filled::Superseded,
            // A value that was to be refreshed goes, too: the source has another, or none.
            Err(Fault::Refused) if self.release_version(report, &claim.row, claim.version).await => Filled::Nothing,
            Err(Fault::Refused | Fault::Down) => Filled::Unknown,
        }
    }

    /// Gives a claim back: nothing will be stored.
    pub(super) async fn release(&self, report: &Report, claim: &Claim) -> bool {
        if claim.lock.is_some() {
            return self.unlock(report, claim).await;
        }
        self.release_version(report, &claim.row, claim.version).await
    }

    pub(super) async fn release_version(&self, report: &Report, row: &str, version: Version) -> bool {
        let deadline = report.now() + self.config.timeout;
        let options = DeleteOptions::new().when(Precondition::Version(version));
        let deleted = self.ask(report, RemoteCall::Fill, deadline, self.store.delete(self.key(row), options)).await;
        !matches!(deleted, Err(Fault::Down))
    }

    async fn unlock(&self, report: &Report, claim: &Claim) -> bool {
        let Some(lock) = claim.lock else { return true };
        let deadline = report.now() + self.config.timeout;
        let (row, options) = (lock_of(&claim.row), DeleteOptions::new().when(Precondition::Version(lock)));
        let deleted = self.store.delete(Key::new(&self.marks, &row), options);
        !matches!(self.ask(report, RemoteCall::Fill, deadline, deleted).await, Err(Fault::Down))
    }

    /// The record of a value; `None`, which is told, where it cannot be stored.
    pub(super) fn encode(
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
        Some(Stored { kind, ttl, born, tags: tags.to_vec(), payload: payload.into() }.encode())
    }

    /// One request, within its time. After a failure the remote tier rests.
    pub(super) async fn ask<T>(
        &self,
        report: &Report,
        call: RemoteCall,
        deadline: Instant,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Fault> {
        // A request that is ready at once needs no timer.
        let kind = match race(request, async { report.clock.sleep_until(deadline).await }).await {
            First::One(Ok(answer)) => return Ok(answer),
            First::One(Err(StoreError::Conflict { .. })) => return Err(Fault::Conflict),
            First::One(Err(error)) => match error.backend().map(PortError::kind) {
                Some(PortErrorKind::Invalid | PortErrorKind::Unsupported) => return Err(Fault::Refused),
                kind => Some(kind.unwrap_or(PortErrorKind::Other)),
            },
            First::Other(()) => None,
        };
        self.rests_until.store((report.now() + self.config.rest).as_nanos(), Relaxed);
        report.remote_failed(call, kind);
        Err(Fault::Down)
    }

    pub(super) fn key<'a>(&'a self, row: &'a str) -> Key<'a> {
        Key::new(&self.values, row)
    }
}
