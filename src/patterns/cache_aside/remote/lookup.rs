//! The remote tier: a store that several processes share, and the guard against stale writes.
//!
//! A process that is to load a key claims its row first, and stores the loaded value only in the
//! place of exactly that claim. An invalidation deletes the row, whatever it holds. So a load that
//! began before an invalidation finds its claim gone, and as versions never repeat, it stores
//! nothing. No clocks are compared; records expire by the store's own clock.
//!
//! Tags have counters in the store, numbered by one sequence. A value records the number at which
//! its load began, and a tag that of its last invalidation. If the tag's number is higher, the
//! value is invalid.
use std::{future::Future, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};

use super::super::{
    CacheAsideConfig, RemoteCall,
    loaded::ValueSettings,
    remote::health::{Failed, Health},
    remote::pending::{Invalidation, PendingInvalidations},
    remote::record::{Kind, ReadError, SEQUENCE, Stored, lock_of, mark_of, number},
    report::Report,
};
use crate::{
    codec::Codec,
    config::Live,
    port::{AskError, Failure, PortError, PortErrorKind, ask_until},
    race::{First, both, race},
    store::{Key, Precondition, PutOptions, Record, Store, StoreError, Version},
    time::Instant,
};

pub(crate) struct Remote<V> {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) codec: Codec<V>,
    pub(crate) config: Live<CacheAsideConfig>,
    /// Partition of the values.
    pub(crate) values: String,
    pub(crate) marks: String,
    /// Identifies this cache's claims among those of others.
    pub(crate) me: u64,
    pub(crate) health: Health,
}

/// Maximum time to live of a value. The mark of an invalidated tag lives longer, and expires as
/// well.
pub(crate) const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// Maximum number of concurrent requests of one kind: tag marks of a value, pending invalidations.
pub(crate) const SIDE_BY_SIDE: usize = 64;

/// The purpose of a lookup in the remote tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupPurpose {
    /// A caller waits and will load. With `takes` unset, a stored value is not used, because this
    /// process has loaded a newer one without the remote tier.
    Load { takes: bool },
    /// A value of this version is to be replaced while it is still valid.
    Refresh(Option<Version>),
    /// The caller only asks for a stored value.
    LookUp,
}

/// The result of a lookup in the remote tier.
pub(crate) enum RemoteLookup<V> {
    Found(RemoteValue<V>),
    /// The caller must load the value and store it under this claim.
    Claimed(Claim),
    /// There is a value with a tag whose invalidation is pending.
    Blocked(Invalidation),
    /// Another process loads the value.
    Elsewhere,
    /// There is no value, and this lookup claims nothing.
    Nothing,
    /// The remote tier cannot or must not be used: load without it.
    Without,
}

pub(crate) struct RemoteValue<V> {
    pub(crate) value: Option<V>,
    pub(crate) tags: Vec<String>,
    pub(crate) settings: ValueSettings,
    pub(crate) ttl: Duration,
    /// Time since the load, by the wall clocks of two processes.
    pub(crate) age: Duration,
    pub(crate) version: Version,
}

/// The right to store the result of a load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) row: String,
    /// Version of the record that the loaded value replaces.
    pub(crate) version: Version,
    pub(crate) born: u64,
    /// Rest of the call's time-out, for storing the loaded value.
    pub(crate) left: Duration,
    /// For a refresh, which leaves the value in place: the version of the lock row that keeps other
    /// processes from refreshing, too.
    pub(crate) lock: Option<Version>,
}

pub(crate) enum RemoteFill {
    Stored(Version),
    /// Nothing is stored: the value is not to be kept, or cannot be stored.
    Nothing,
    /// The content of the row is unknown; it may still be the claim.
    Unknown,
    /// An invalidation came first. `released` is `false` if the claim may still be there.
    Superseded {
        released: bool,
    },
}

/// The result of a put to the remote tier.
pub(crate) enum RemotePut {
    Stored(Version),
    /// Another put or an invalidation came first.
    Superseded,
    /// The content of the row is unknown.
    Unknown,
    /// The codec or the store refuses the value. The previous content is deleted.
    NotStorable,
}

/// The reason for which a request to the remote tier failed.
pub(crate) enum Fault {
    Conflict,
    /// The store refuses the request as invalid or unsupported.
    Refused,
    Down,
}

impl<V> Remote<V> {
    /// Looks the row up; requests end at `deadline`.
    ///
    /// A lookup for a load waits for the load of another process. That wait is bounded by
    /// `config.wait` and does not count against the deadline.
    pub(crate) async fn look(
        &self,
        (report, invalidations): (&Report, &PendingInvalidations),
        row: &str,
        purpose: LookupPurpose,
        mut deadline: Instant,
    ) -> RemoteLookup<V> {
        let patience = report.now() + self.config.now().remote.wait;
        let mut left = None;
        let mut pause = Duration::from_millis(2);
        loop {
            let record = match self.ask(report, RemoteCall::Look, deadline, self.store.get(self.key(row))).await {
                Ok(record) => record,
                Err(Fault::Refused) => {
                    report.not_storable();
                    return RemoteLookup::Without;
                }
                Err(Fault::Conflict | Fault::Down) => return RemoteLookup::Without,
            };
            let stored = record.as_ref().and_then(|record| read(report, record));
            match (&record, stored) {
                (_, Some(Stored { kind: Kind::Claim(by), .. })) if by != self.me => {
                    // A claim that is never redeemed expires by its time to live.
                    match purpose {
                        LookupPurpose::Load { .. } if report.now() < patience => {
                            let left = *left.get_or_insert(deadline - report.now());
                            report.sleep(pause.min(patience - report.now())).await;
                            pause = (pause * 2).min(Duration::from_millis(50));
                            deadline = report.now() + left;
                            continue;
                        }
                        // The other process may yet store its value, so nothing is claimed over it.
                        LookupPurpose::Load { .. } => return RemoteLookup::Without,
                        LookupPurpose::Refresh(_) => return RemoteLookup::Elsewhere,
                        LookupPurpose::LookUp => return RemoteLookup::Nothing,
                    }
                }
                (Some(record), Some(stored)) if !matches!(stored.kind, Kind::Claim(_)) => {
                    // Asked before the marks are read: an invalidation that is delivered in between is in them.
                    if let Some(invalidation) = invalidations.blocking_tag(&stored.tags) {
                        return RemoteLookup::Blocked(invalidation);
                    }
                    match self.found(report, deadline, record, stored).await {
                        Ok(Some(found)) => match purpose {
                            LookupPurpose::Refresh(known) if known.is_none_or(|known| known == found.version) => {
                                return self.claim_refresh(report, deadline, row, found.version).await;
                            }
                            LookupPurpose::Load { takes: false } => {}
                            _ => return RemoteLookup::Found(found),
                        },
                        Ok(None) => {}
                        Err(_) => return RemoteLookup::Without,
                    }
                }
                _ => {}
            }
            if purpose == LookupPurpose::LookUp {
                return RemoteLookup::Nothing;
            }
            let when = record.map_or(Precondition::Absent, |record| Precondition::Version(record.version));
            match self.claim(report, (RemoteCall::Look, self.me), deadline, row, when).await {
                Ok((version, born)) => {
                    let left = deadline - report.now();
                    return RemoteLookup::Claimed(Claim { row: row.to_owned(), version, born, left, lock: None });
                }
                // Another process claimed first: look up what it stored.
                Err(Fault::Conflict) if report.now() < patience => {}
                Err(_) => return RemoteLookup::Without,
            }
        }
    }

    /// Returns the value of a record, if it decodes and none of its tags was invalidated.
    async fn found(
        &self,
        report: &Report,
        deadline: Instant,
        record: &Record,
        stored: Stored,
    ) -> Result<Option<RemoteValue<V>>, Fault> {
        if self.invalidated_since(report, deadline, &stored.tags, stored.born).await? {
            return Ok(None);
        }
        let value = match stored.kind {
            Kind::Absent => None,
            _ => match self.codec.decode(&stored.payload) {
                Ok(value) => Some(value),
                Err(_) => {
                    report.undecodable();
                    return Ok(None);
                }
            },
        };
        // The store has not expired the record. If it seems older than its time to live, clocks differ.
        let age = report.clock.wall().as_millis().saturating_sub(stored.loaded.as_millis());
        let age = Duration::from_millis(age).min(stored.ttl);
        let Stored { tags, ttl, validator, stale_max_age, .. } = stored;
        let settings = ValueSettings { validator, stale_max_age, ..ValueSettings::default() };
        Ok(Some(RemoteValue { value, tags, settings, ttl, age, version: record.version }))
    }

    /// Returns `true` if one of the tags was invalidated after this number. Requests run
    /// concurrently.
    pub(crate) async fn invalidated_since(
        &self,
        report: &Report,
        deadline: Instant,
        tags: &[String],
        born: u64,
    ) -> Result<bool, Fault> {
        for tags in tags.chunks(SIDE_BY_SIDE) {
            let mut marks: FuturesUnordered<_> = tags.iter().map(|tag| self.mark(report, deadline, tag)).collect();
            while let Some(mark) = marks.next().await {
                if mark? > born {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Claims the row. Returns the claim's version and the number at which the following load
    /// begins.
    pub(crate) async fn claim(
        &self,
        report: &Report,
        (call, by): (RemoteCall, u64),
        deadline: Instant,
        row: &str,
        when: Precondition,
    ) -> Result<(Version, u64), Fault> {
        let ttl = self.config.now().claim_ttl();
        let claim = Stored::claim(by, ttl).encode();
        let options = PutOptions::new().when(when).ttl(ttl);
        let put = self.ask(report, call, deadline, self.store.put(self.key(row), claim, options));
        let (claimed, born) = both(put, self.sequence(report, deadline)).await;
        Ok((claimed?, born?))
    }

    /// Claims a refresh. The value stays in place, guarded by its own version; a lock row keeps
    /// other processes from refreshing, too.
    async fn claim_refresh(&self, report: &Report, deadline: Instant, row: &str, version: Version) -> RemoteLookup<V> {
        let lock_row = lock_of(row);
        let key = Key::new(&self.marks, &lock_row);
        let options = PutOptions::new().when(Precondition::Absent).ttl(self.config.now().claim_ttl());
        let put = self.ask(
            report,
            RemoteCall::Look,
            deadline,
            self.store.put(key, format!("{:016x}", self.me).into(), options),
        );
        match both(put, self.sequence(report, deadline)).await {
            (Ok(lock), Ok(born)) => {
                let left = deadline - report.now();
                RemoteLookup::Claimed(Claim { row: row.to_owned(), version, born, left, lock: Some(lock) })
            }
            _ => RemoteLookup::Elsewhere,
        }
    }

    /// Returns the current number of the sequence.
    async fn sequence(&self, report: &Report, deadline: Instant) -> Result<u64, Fault> {
        let record = self.ask(report, RemoteCall::Look, deadline, self.store.get(Key::new(&self.marks, SEQUENCE)));
        Ok(record.await?.map_or(0, |record| record.version.as_u64()))
    }

    /// Returns the number of a tag's last invalidation: 0 if there is none, the maximum if it is
    /// damaged.
    async fn mark(&self, report: &Report, deadline: Instant, tag: &str) -> Result<u64, Fault> {
        let row = mark_of(tag);
        let key = Key::new(&self.marks, &row);
        // A value may have many tags, so a slow answer for one is hedged by a second request.
        let again = async {
            let now = report.now();
            report.clock.sleep_until(now + (deadline - now) / 4).await;
            self.store.get(key).await
        };
        let read = async {
            match race(self.store.get(key), again).await {
                First::One(read) | First::Other(read) => read,
            }
        };
        let Some(record) = self.ask(report, RemoteCall::Look, deadline, read).await? else { return Ok(0) };
        let Some(number) = number(&record.value) else {
            report.read_error(ReadError::Damaged);
            // A new mark replaces it. Until then all values with the tag count as invalidated.
            self.invalidate_tag(report, deadline, tag).await;
            return Ok(u64::MAX);
        };
        Ok(number)
    }

    /// Sends one request and waits for it until the deadline.
    pub(crate) async fn ask<T>(
        &self,
        report: &Report,
        call: RemoteCall,
        deadline: Instant,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Fault> {
        let began = report.now();
        let given = deadline - began;
        let (kind, how) = match ask_until(&report.clock, deadline, request).await {
            Ok(answer) => {
                self.health.answered(report.now());
                return Ok(answer);
            }
            Err(AskError::Failed(StoreError::Conflict { .. })) => {
                self.health.answered(report.now());
                return Err(Fault::Conflict);
            }
            Err(AskError::Failed(error)) => match error.backend().map(PortError::kind) {
                Some(PortErrorKind::Invalid | PortErrorKind::Unsupported) => return Err(Fault::Refused),
                kind => (Some(kind.unwrap_or(PortErrorKind::Other)), Some(Failed::Refused)),
            },
            // A time-out after a short wait says nothing about the tier.
            Err(AskError::TimedOut) => (None, (given >= self.config.now().remote.timeout / 2).then_some(Failed::Slow)),
        };
        // Invalidations are retried again and again; trouble with one key or tag says nothing about the tier.
        if let Some(how) = how.filter(|_| call != RemoteCall::Invalidate) {
            self.health.failed(began, report.now(), how);
        }
        report.remote_failed(call, kind);
        Err(Fault::Down)
    }

    pub(crate) fn key<'a>(&'a self, row: &'a str) -> Key<'a> {
        Key::new(&self.values, row)
    }
}

/// Parses a record. An unreadable one is reported and counts as absent.
fn read(report: &Report, record: &Record) -> Option<Stored> {
    Stored::decode(&record.value).map_err(|why| report.read_error(why)).ok()
}
