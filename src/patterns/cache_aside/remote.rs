//! The remote tier: a store that several processes share, and the guard over it.
//!
//! Whoever is to load a key claims its row first; what the load stores is put in the place of exactly that claim. Invalidating
//! deletes the row, whatever it holds. So a load that began before an invalidation finds its claim gone, and versions never repeat:
//! nothing old is stored. No clock is compared; a record ends by the store's own.
//!
//! Tags have a counter in the store, and so has their sequence: a value knows the number at which its load began, a tag that of its last
//! invalidation. A value whose tag has the higher number does not count.
use std::{future::Future, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{
    RemoteCall, RemoteConfig,
    codec::Codec,
    health::{Failed, Health},
    report::Report,
    wire::{Kind, SEQUENCE, Stored, Unread, lock_of, mark_of, number},
};
use crate::{
    port::{Failure, PortError, PortErrorKind},
    race::{First, both, race},
    store::{Key, Precondition, PutOptions, Record, Store, StoreError, Version},
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
    pub(super) health: Health,
}

/// No value is kept longer, and the mark of a tag's invalidation longer than that: so marks end, too.
pub(super) const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// Maximum number of requests of one kind that are under way at a time: marks of a value's tags, payments of what is owed.
pub(super) const SIDE_BY_SIDE: usize = 64;

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
    /// The time since its load, by the wall clocks of two processes.
    pub(super) age: Duration,
    pub(super) version: Version,
}

/// The right to store what a load gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) row: String,
    /// The record that the load's takes the place of.
    pub(super) version: Version,
    pub(super) born: u64,
    /// The rest of the call's time-out, for storing what is loaded.
    pub(super) left: Duration,
    /// Of a refresh, which leaves the value where it is: the version of the row that keeps others from refreshing, too.
    pub(super) lock: Option<Version>,
}

pub(super) enum Filled {
    Stored(Version),
    /// It is not to be kept, or cannot be: nothing is there.
    Nothing,
    /// Nobody knows what is there: perhaps the claim.
    Unknown,
    /// An invalidation overtook it; `released` unless its claim may still be there.
    Superseded {
        released: bool,
    },
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
    /// Looks for the row, and requests until `deadline`. Where this look is for a load, waits for what another process loads; that is not
    /// counted against the deadline, but against its own.
    pub(super) async fn look(&self, report: &Report, row: &str, purpose: Purpose, mut deadline: Instant) -> Looked<V> {
        let patience = report.now() + self.config.wait;
        let mut left = None;
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
            let stored = record.as_ref().and_then(|record| read(report, record));
            match (&record, stored) {
                (_, Some(Stored { kind: Kind::Claim(by), .. })) if by != self.me => {
                    // A claim that is never redeemed ends by itself.
                    match purpose {
                        Purpose::Load { .. } if report.now() < patience => {
                            let left = *left.get_or_insert(deadline - report.now());
                            report.sleep(pause.min(patience - report.now())).await;
                            pause = (pause * 2).min(Duration::from_millis(50));
                            deadline = report.now() + left;
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
                    let left = deadline - report.now();
                    return Looked::Claimed(Claim { row: row.to_owned(), version, born, left, lock: None });
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
        // The store has not ended it: if it seems older than its time to live, the two clocks differ.
        let age = report.clock.wall().as_millis().saturating_sub(stored.loaded.as_millis());
        let age = Duration::from_millis(age).min(stored.ttl);
        Ok(Some(Found { value, tags: stored.tags, ttl: stored.ttl, age, version: record.version }))
    }

    /// Whether one of the tags was invalidated after this number. All of them are asked for side by side.
    pub(super) async fn overtook(
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
        let (claimed, born) = both(put, self.sequence(report, deadline)).await;
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
        match both(put, self.sequence(report, deadline)).await {
            (Ok(lock), Ok(born)) => {
                let left = deadline - report.now();
                Looked::Claimed(Claim { row: row.to_owned(), version, born, left, lock: Some(lock) })
            }
            _ => Looked::Elsewhere,
        }
    }

    /// The number of the sequence now.
    async fn sequence(&self, report: &Report, deadline: Instant) -> Result<u64, Fault> {
        let record = self.ask(report, RemoteCall::Look, deadline, self.store.get(Key::new(&self.marks, SEQUENCE)));
        Ok(record.await?.map_or(0, |record| record.version.as_u64()))
    }

    /// The number of a tag's last invalidation; 0 where there is none, the highest where it is damaged.
    async fn mark(&self, report: &Report, deadline: Instant, tag: &str) -> Result<u64, Fault> {
        let row = mark_of(tag);
        let key = Key::new(&self.marks, &row);
        // A value has many tags: one slow answer among so many is asked for again.
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
            report.unread(Unread::Damaged);
            // A new mark takes its place; until then all values with the tag count as invalidated.
            self.invalidate_tag(report, deadline, tag).await;
            return Ok(u64::MAX);
        };
        Ok(number)
    }

    /// One request, within its time.
    pub(super) async fn ask<T>(
        &self,
        report: &Report,
        call: RemoteCall,
        deadline: Instant,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Fault> {
        // A request that is ready at once needs no timer.
        let timer = async {
            let given = deadline - report.now();
            report.clock.sleep_until(deadline).await;
            given
        };
        let (kind, how) = match race(request, timer).await {
            First::One(Ok(answer)) => {
                self.health.answered(report.now());
                return Ok(answer);
            }
            First::One(Err(StoreError::Conflict { .. })) => {
                self.health.answered(report.now());
                return Err(Fault::Conflict);
            }
            First::One(Err(error)) => match error.backend().map(PortError::kind) {
                Some(PortErrorKind::Invalid | PortErrorKind::Unsupported) => return Err(Fault::Refused),
                kind => (Some(kind.unwrap_or(PortErrorKind::Other)), Some(Failed::Refused)),
            },
            // What had little time left says nothing about the tier.
            First::Other(given) => (None, (given >= self.config.timeout / 2).then_some(Failed::Slow)),
        };
        // Those of an invalidation are tried again and again: the trouble of one key or tag says nothing about the tier.
        if let Some(how) = how.filter(|_| call != RemoteCall::Invalidate) {
            self.health.failed(report.now(), how);
        }
        report.remote_failed(call, kind);
        Err(Fault::Down)
    }

    pub(super) fn key<'a>(&'a self, row: &'a str) -> Key<'a> {
        Key::new(&self.values, row)
    }
}

/// Reads a record; one that cannot be read is told, and counts as none.
fn read(report: &Report, record: &Record) -> Option<Stored> {
    Stored::decode(&record.value).map_err(|why| report.unread(why)).ok()
}
