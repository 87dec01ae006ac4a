//! Leases over any store, by compare-and-set. No wall clock is compared, and no two clocks are
//! synchronized.
//!
//! A record names the holder and its term, and each renewal changes its version. A challenger that
//! has seen ONE version for a whole term, on its own monotonic clock, knows that the holder has not
//! renewed for that long. It counts from the moment at which its first read of that version
//! RETURNED. The write that it saw was applied before that, and the holder counts from a moment
//! before the write was applied. So the holder's term is over when the challenger's wait is, if
//! both clocks run at the same rate. The holder subtracts the difference of rates
//! (`leader_election` does).
//!
//! Source: Cary Gray and David Cheriton, "Leases", 1989. Kubernetes' client-go also observes a
//! version instead of a time stamp.
use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    Acquired, Held, Lease, LeaseError, LeaseFuture, Renewed, check_grant, check_holder,
    record::{Stored, decode, encode},
};
use crate::{
    build::{Builder, Common, Component},
    config::ConfigError,
    port::{Capabilities, Capability, FencingToken, PortError, PortErrorKind},
    store::{DeleteOptions, Key, Precondition, Record, Store, StoreError, StoreExt, Version},
    sync::{Mutex, MutexGuard},
    time::{Clock, Instant},
};

/// Leases kept in a [`Store`], as one process sees them.
///
/// The token of a grant is the version of the write that made it. Versions grow, also across the
/// deletion of the record, and so do tokens.
///
/// Each instance observes other holders by itself, so two instances wait independently. A clone is
/// the same instance.
#[derive(Clone)]
pub struct StoreLease {
    store: Arc<dyn Store>,
    partition: Arc<str>,
    clock: Clock,
    /// State by name, one entry for each name that this process asks for.
    seen: Arc<Mutex<HashMap<String, Seen>>>,
}

/// The state of a name, as this instance knows it.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// Version of the record, and the time at which this instance first read it.
    record: Option<(Version, Instant)>,
    /// The grant of a holder that uses this instance.
    own: Option<Own>,
}

#[derive(Clone, Copy)]
struct Own {
    token: FencingToken,
    version: Version,
    /// End of the term, as the holder counts it.
    ends: Instant,
}

/// Prefixes of the rows in the partition: records of leases, and requests to release them.
const LEASE: &str = "lease ";
const REQUEST: &str = "release ";

/// Arguments of a lease over a store, beside name, clock and entropy.
pub struct StoreLeaseSpec {
    store: Arc<dyn Store>,
    partition: Arc<str>,
}

impl Builder<StoreLease> {
    /// Sets the partition, which must hold nothing else. `leases` by default.
    pub fn partition(mut self, partition: &str) -> Self {
        self.spec.partition = partition.into();
        self
    }
}

impl Component for StoreLease {
    type Built = Result<Self, ConfigError>;
    type Spec = StoreLeaseSpec;

    fn assemble(spec: StoreLeaseSpec, Common { clock, .. }: Common) -> Self::Built {
        let StoreLeaseSpec { store, partition } = spec;
        let can = store.capabilities();
        can.require(Capability::Linearizable).map_err(|lacks| lacks.refuse("store"))?;
        can.require(Capability::OrderedVersions).map_err(|lacks| lacks.refuse("store"))?;
        Ok(Self { store, partition, clock, seen: Arc::default() })
    }
}

impl StoreLease {
    /// Creates an instance over the partition `leases` of this store.
    ///
    /// # Errors
    /// If the store lacks [`Linearizable`](Capability::Linearizable) or
    /// [`OrderedVersions`](Capability::OrderedVersions).
    pub fn new(store: Arc<dyn Store>) -> Result<Self, ConfigError> {
        Self::builder(store).build()
    }

    /// Creates a builder of an instance over this store.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CStoreLease%3E): `partition`.
    pub fn builder(store: Arc<dyn Store>) -> Builder<Self> {
        Builder::new(StoreLeaseSpec { store, partition: "leases".into() })
    }

    /// Reads the record of a row, and returns it with the time at which the read returned.
    async fn stored(&self, row: &str) -> Result<(Option<Stored>, Instant), LeaseError> {
        let key = Key::new(&self.partition, row);
        let record = self.store.get(key).await?;
        let read = self.clock.now();
        Ok((record.map(|record| decode(key, &record)).transpose()?, read))
    }

    /// Writes the record if the precondition holds.
    async fn write(
        &self,
        row: &str,
        holder: &str,
        token: Option<FencingToken>,
        term: Duration,
        when: Precondition,
    ) -> Result<Version, StoreError> {
        self.store.put(Key::new(&self.partition, row), encode(holder, token, term), when.into()).await
    }

    /// Returns the time for which another holder's record must still be seen unchanged.
    fn left(&self, name: &str, stored: &Stored, read: Instant) -> Duration {
        let mut all = self.seen();
        let seen = all.entry(name.to_owned()).or_default();
        let since = match seen.record {
            Some((version, since)) if version == stored.version => since,
            _ => read,
        };
        seen.record = Some((stored.version, since));
        since.saturating_add(stored.term) - read
    }

    fn own(&self, name: &str, token: FencingToken) -> Option<Own> {
        self.seen().get(name)?.own.filter(|own| own.token == token)
    }

    /// Records a grant of this instance, unless a later one is known.
    fn remember(&self, name: &str, own: Own) {
        let mut all = self.seen();
        let seen = all.entry(name.to_owned()).or_default();
        if seen.own.is_none_or(|known| known.token <= own.token) {
            seen.own = Some(own);
        }
    }

    fn forget(&self, name: &str, token: FencingToken) {
        if let Some(seen) = self.seen().get_mut(name) {
            seen.own = seen.own.filter(|own| own.token != token);
        }
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<String, Seen>> {
        self.seen.lock()
    }

    async fn try_acquire(&self, name: &str, holder: &str, term: Duration) -> Result<Acquired, LeaseError> {
        let row = format!("{LEASE}{name}");
        let start = self.clock.now();
        // A conflict means that the record changed after it was read: by a faster candidate, or by
        // this very write if the reply to its first try was lost. A second read tells.
        for _ in 0..2 {
            let (stored, read) = self.stored(&row).await?;
            let when = match stored {
                None => Precondition::Absent,
                // The holder itself need not wait for its own term.
                Some(stored) if stored.holder == holder => Precondition::Version(stored.version),
                Some(stored) => {
                    let left = self.left(name, &stored, read);
                    if !left.is_zero() {
                        return Ok(Acquired::Held(Held::new(stored.holder, stored.token, stored.term, left)));
                    }
                    Precondition::Version(stored.version)
                }
            };
            match self.write(&row, holder, None, term, when).await {
                Ok(version) => {
                    let token = FencingToken::new(version.as_u64());
                    self.remember(name, Own { token, version, ends: start + term });
                    return Ok(Acquired::Granted(token));
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let message = format!("the lease {name:?} is changing its holder: ask again");
        Err(PortError::new(PortErrorKind::Throttled, message).into())
    }

    async fn try_renew(
        &self,
        name: &str,
        holder: &str,
        token: FencingToken,
        term: Duration,
    ) -> Result<Renewed, LeaseError> {
        let row = format!("{LEASE}{name}");
        let start = self.clock.now();
        let known = self.own(name, token).ok_or(LeaseError::NotHeld)?;
        if start >= known.ends {
            return Err(LeaseError::NotHeld); // an expired grant is acquired anew, never renewed
        }
        let mut written = self.write(&row, holder, Some(token), term, Precondition::Version(known.version)).await;
        if let Err(StoreError::Conflict { .. }) = written {
            // The version may have been changed by an earlier renewal whose reply was lost.
            let (stored, _) = self.stored(&row).await?;
            let own = stored.filter(|stored| stored.holder == holder && stored.token == token);
            let Some(own) = own else {
                self.forget(name, token);
                return Err(LeaseError::NotHeld);
            };
            written = self.write(&row, holder, Some(token), term, Precondition::Version(own.version)).await;
        }
        self.remember(name, Own { token, version: written?, ends: start + term });
        self.release_requested(name, token).await
    }

    /// Returns whether a release of this grant was requested. A failure to read counts as no
    /// request, so that a successful renewal is not lost.
    async fn release_requested(&self, name: &str, token: FencingToken) -> Result<Renewed, LeaseError> {
        let row = format!("{REQUEST}{name}");
        let request = self.store.get(Key::new(&self.partition, &row)).await;
        let asked = request.ok().flatten().is_some_and(|request| request.value == token.to_string().as_bytes());
        Ok(Renewed::new(asked))
    }

    async fn try_release(&self, name: &str, holder: &str, token: FencingToken) -> Result<(), LeaseError> {
        let row = format!("{LEASE}{name}");
        let own = self.own(name, token);
        // The record of an ended grant is deleted as well, so that no challenger has to observe it for a term.
        let has_ended = own.is_some_and(|own| self.clock.now() >= own.ends);
        let mut known = own.map(|own| own.version);
        // Retried once: a renewal whose reply was lost may have changed the version.
        for _ in 0..2 {
            let version = match known.take() {
                Some(version) => version,
                None => {
                    let (stored, _) = self.stored(&row).await?;
                    let own = stored.filter(|stored| stored.holder == holder && stored.token == token);
                    own.ok_or(LeaseError::NotHeld)?.version
                }
            };
            let options = DeleteOptions::new().when(Precondition::Version(version));
            match self.store.delete(Key::new(&self.partition, &row), options).await {
                Err(StoreError::Conflict { .. }) => {}
                done => {
                    done?;
                    self.forget(name, token);
                    return if has_ended { Err(LeaseError::NotHeld) } else { Ok(()) };
                }
            }
        }
        Err(LeaseError::NotHeld)
    }
}

impl Lease for StoreLease {
    fn capabilities(&self) -> Capabilities {
        // Tokens are ordered because versions are. Names get a prefix, which shortens the limit.
        let can = self.store.capabilities().with(Capability::Fencing);
        can.largest_key(can.max_key().saturating_sub(LEASE.len().max(REQUEST.len())))
    }

    fn acquire<'a>(&'a self, name: &'a str, holder: &'a str, term: Duration) -> LeaseFuture<'a, Acquired> {
        Box::pin(async move {
            check_grant(name, holder, term, &self.capabilities())?;
            self.try_acquire(name, holder, term).await
        })
    }

    fn renew<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
        term: Duration,
    ) -> LeaseFuture<'a, Renewed> {
        Box::pin(async move {
            check_grant(name, holder, term, &self.capabilities())?;
            self.try_renew(name, holder, token, term).await
        })
    }

    fn release<'a>(&'a self, name: &'a str, holder: &'a str, token: FencingToken) -> LeaseFuture<'a, ()> {
        Box::pin(async move {
            check_holder(name, holder, &self.capabilities())?;
            self.try_release(name, holder, token).await
        })
    }

    fn read<'a>(&'a self, name: &'a str) -> LeaseFuture<'a, Option<Held>> {
        Box::pin(async move {
            self.capabilities().check_key("name", name)?;
            let (stored, read) = self.stored(&format!("{LEASE}{name}")).await?;
            Ok(stored.map(|stored| {
                let left = match self.own(name, stored.token) {
                    Some(own) => own.ends - read,
                    None => self.left(name, &stored, read),
                };
                Held::new(stored.holder, stored.token, stored.term, left)
            }))
        })
    }

    fn request_release<'a>(&'a self, name: &'a str, token: FencingToken) -> LeaseFuture<'a, ()> {
        Box::pin(async move {
            self.capabilities().check_key("name", name)?;
            let (stored, _) = self.stored(&format!("{LEASE}{name}")).await?;
            if stored.is_none_or(|stored| stored.token != token) {
                return Ok(()); // no grant that a renewal could report it to
            }
            // A row of its own: only renewals may change the version of the record. A late request
            // for an earlier grant does not replace one for a later grant.
            let row = format!("{REQUEST}{name}");
            let raise = |request: Option<&Record>| {
                let known = request.and_then(|request| std::str::from_utf8(&request.value).ok()?.parse().ok());
                known.is_none_or(|known: u64| known < token.as_u64()).then(|| token.to_string().into())
            };
            self.store.update(Key::new(&self.partition, &row), raise).await?;
            Ok(())
        })
    }
}

crate::build::debug_fields!(StoreLease, |this| store: this.store, partition: this.partition);
