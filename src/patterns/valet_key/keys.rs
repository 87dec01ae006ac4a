//! Keys in use: issue, check, renewal, revocation.
use std::{fmt, sync::Arc, time::Duration};

use super::{
    Grant, KeyRefused, Limited, OnStoreFailure, Operation, ValetKeyConfig, ValetKeyEvent as Event,
    claims::{Claims, LEEWAY, is_id},
    config::{CEILING, MAX_EARLY},
    grant::MAX_TAG,
};
use crate::{
    build::{Builder, Common, Component, HasEvents},
    config::{ConfigError, Name, require},
    observe::{Events, Subscription},
    port::{AskError, Capability, ErrorClass, PortError, PortErrorKind, ask},
    race::both,
    store::{Key, Precondition, PutOptions, Record, Store, StoreError},
    time::{Clock, Timestamp},
    token::{KeyRing, SignError, crypto::random_id},
};

/// Issues keys for bytes that this service serves, and checks them. The [module's page](super) has
/// the details.
///
/// Clones share their settings and events.
#[derive(Clone)]
pub struct ValetKeys(Arc<Inner>);

struct Inner {
    name: Name,
    ring: KeyRing,
    store: Option<Arc<dyn Store>>,
    config: ValetKeyConfig,
    clock: Clock,
    events: Events<Event>,
}

/// Arguments of valet keys, beside their clock.
pub struct ValetKeysSpec {
    name: Name,
    ring: KeyRing,
    store: Option<Arc<dyn Store>>,
    config: ValetKeyConfig,
}

/// Type of the tokens.
const TYP: &str = "valet+jwt";

/// Partition of the store with the keys that were used or revoked.
const PARTITION: &str = "valet-key";

/// Time for which a row stays beyond the life of each key: neither the settings nor the clock of
/// the process that writes it end it sooner.
const SKEW: Duration = Duration::from_secs(MAX_EARLY.as_secs() + 4 * LEEWAY.as_secs());

const USED: &str = "used";
const REVOKED: &str = "revoked";

impl Builder<ValetKeys> {
    /// Sets the store in which used and revoked keys are written down. All processes that check the
    /// keys need it.
    pub fn revocable(mut self, store: Arc<dyn Store>) -> Self {
        self.spec.store = Some(store);
        self
    }
}

impl Component for ValetKeys {
    type Built = Result<Self, ConfigError>;
    type Spec = ValetKeysSpec;

    fn assemble(spec: ValetKeysSpec, Common { clock, hooks, .. }: Common) -> Self::Built {
        let ValetKeysSpec { name, ring, store, config } = spec;
        config.check()?;
        let is_name = (1..=MAX_TAG).contains(&name.as_str().len()) && !name.as_str().contains('/');
        require(is_name, "name", "must have 1 to 128 bytes, and no `/`")?;
        if let Some(store) = &store {
            for needed in [Capability::TimeToLive, Capability::Linearizable] {
                store.capabilities().require(needed).map_err(|lacks| lacks.refuse("store"))?;
            }
        }
        Ok(Self(Arc::new(Inner { name, ring, store, config, clock, events: hooks.events() })))
    }
}

impl HasEvents<Event> for ValetKeys {}

crate::build::debug_fields!(ValetKeys, |this| name: this.0.name, is_revocable: this.0.store.is_some());

impl ValetKeys {
    /// Creates keys of this name without a store: they are valid until they expire.
    ///
    /// # Errors
    /// If a setting breaks its rule, or the name is empty, has more than 128 bytes or a `/`.
    pub fn new(name: impl Into<Name>, ring: KeyRing, config: ValetKeyConfig) -> Result<Self, ConfigError> {
        Self::builder(name, ring, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new).
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CValetKeys%3E): `revocable`.
    pub fn builder(name: impl Into<Name>, ring: KeyRing, config: ValetKeyConfig) -> Builder<Self> {
        Builder::new(ValetKeysSpec { name: name.into(), ring, store: None, config })
    }

    /// Issues a key.
    ///
    /// # Errors
    /// If the grant breaks a rule, or the ring cannot sign.
    pub fn issue(&self, grant: Grant) -> Result<ValetKey, IssueError> {
        let lifetime = grant.check(&self.0.config, self.0.store.is_some())?;
        let Grant { operation, path, max_bytes, is_single_use, tag, .. } = grant;
        let id = random_id().ok_or(SignError::NoRandomness)?;
        let iat = self.0.clock.wall();
        let (iat, born) = (iat.as_millis(), None);
        let claims = Claims { id, operation, path, max_bytes, is_single_use, tag, iat, born };
        Ok(self.sign(&claims, Timestamp::from_millis(iat) + lifetime)?)
    }

    /// Checks a key for a request: its operation, and its path, which begins with `/`. A key for
    /// one use is used up by it.
    ///
    /// # Errors
    /// The reason for which the request is refused.
    ///
    /// # Cancel safety
    /// A key for one use is used up or not, and the caller cannot tell which.
    pub async fn check(&self, operation: Operation, path: &str, key: &str) -> Result<Pass, KeyRefused> {
        let mut seen = None;
        let checked = self.checked(operation, path, key, &mut seen).await;
        match &checked {
            Ok(pass) => {
                let Pass { id, tag, path, .. } = pass;
                let (id, tag, path) = (id.clone(), tag.clone(), path.clone());
                self.send(|| Event::Used { id, tag, operation, path });
            }
            Err(refused) => self.refused(refused, seen),
        }
        checked
    }

    /// Returns a new key with the rights and the id of this one, valid for as long as this one was.
    /// Call it for a holder who may go on, before the key ends. While the store is away none is
    /// renewed, whatever the settings say: the new key would outlive the outage.
    ///
    /// # Errors
    /// The reason for which the key is refused. One for a single use is not renewed.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn renew(&self, key: &str) -> Result<ValetKey, KeyRefused> {
        let mut seen = None;
        let renewed = self.renewed(key, &mut seen).await;
        if let Err(refused) = &renewed {
            self.refused(refused, seen);
        }
        renewed
    }

    /// Revokes the key of this id, and all into which it was renewed. It holds from the next check
    /// on, in each process.
    ///
    /// # Errors
    /// Those of the store, after which the revocation may hold or not; without one, `Unsupported`.
    ///
    /// # Cancel safety
    /// The key is revoked or not.
    pub async fn revoke_key(&self, id: &str) -> Result<(), StoreError> {
        if !is_id(id) {
            return Err(PortError::invalid("id", "must be the id of a key").into());
        }
        let row = self.row("key", id);
        let options = PutOptions::new().ttl(CEILING + SKEW);
        self.ask(self.store()?.put(Key::new(PARTITION, &row), REVOKED.into(), options)).await?;
        self.send(|| Event::Revoked { id: Some(id.into()), tag: None });
        Ok(())
    }

    /// Revokes all keys of this tag that were issued so far, by whichever process: those of the
    /// next [`early`](ValetKeyConfig::early) with them, and at least of 30 s, since clocks differ.
    /// It holds from the next check on, in each process.
    ///
    /// # Errors
    /// Those of the store, after which the revocation may hold or not; without one, `Unsupported`.
    ///
    /// # Cancel safety
    /// The keys are revoked or not.
    pub async fn revoke_tag(&self, tag: &str) -> Result<(), StoreError> {
        let Inner { config, clock, .. } = &*self.0;
        let (store, row) = (self.store()?, self.row("tag", tag));
        let key = Key::new(PARTITION, &row);
        loop {
            let old = self.ask(store.get(key)).await?;
            // A key of a process whose clock is ahead is valid, and has a later time.
            let now = (clock.wall() + config.early.max(LEEWAY)).as_millis();
            // A revocation by a clock that is ahead holds as long.
            let until = old.as_ref().and_then(time_of).map_or(now, |time| time.max(now));
            let when = old.map_or(Precondition::Absent, |record| Precondition::Version(record.version));
            let options = PutOptions::new().when(when).ttl(CEILING + SKEW);
            match self.ask(store.put(key, until.to_string().into(), options)).await {
                // After a slow request there may be keys that are newer.
                Ok(_) if clock.wall().as_millis() <= until => break,
                Ok(_) => {}
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        self.send(|| Event::Revoked { id: None, tag: Some(tag.into()) });
        Ok(())
    }

    /// Subscribes to the events, from now on.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    fn row(&self, kind: &str, name: &str) -> String {
        format!("{}/{kind}/{name}", self.0.name)
    }

    async fn ask<T>(&self, request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let Inner { clock, config, .. } = &*self.0;
        let asked = ask(clock, config.call_timeout, request).await;
        asked.map_err(|error| error.or_timed_out("the store of revoked keys did not answer in time"))
    }

    fn store(&self) -> Result<&Arc<dyn Store>, StoreError> {
        let none = || PortError::new(PortErrorKind::Unsupported, "these keys have no store: make them revocable");
        self.0.store.as_ref().ok_or_else(|| none().into())
    }

    fn send(&self, event: impl FnOnce() -> Event) {
        self.0.events.send(Some(&self.0.name), self.0.clock.now(), event);
    }

    fn refused(&self, refused: &KeyRefused, seen: Option<Claims>) {
        if let KeyRefused::Unavailable { kind, .. } = refused {
            self.send(|| Event::StoreAway { kind: *kind });
        }
        let tag = seen.as_ref().and_then(|claims| claims.tag.as_deref()).map(Name::from);
        let id = seen.map(|claims| Name::from(&claims.id));
        self.send(|| Event::Refused { id, tag, why: refused.as_str() });
    }

    fn sign(&self, claims: &Claims, expires_at: Timestamp) -> Result<ValetKey, SignError> {
        let Inner { name, ring, .. } = &*self.0;
        let key = ring.sign(TYP, name.as_str(), expires_at, claims)?;
        let id = Name::from(&claims.id);
        self.send(|| {
            let (id, tag) = (id.clone(), claims.tag.as_deref().map(Name::from));
            Event::Issued { id, tag, operation: claims.operation, path: Name::from(&claims.path) }
        });
        Ok(ValetKey { key, id, expires_at })
    }

    async fn checked(
        &self,
        operation: Operation,
        path: &str,
        key: &str,
        seen: &mut Option<Claims>,
    ) -> Result<Pass, KeyRefused> {
        let Inner { name, ring, config, clock, .. } = &*self.0;
        let now = clock.wall();
        let (claims, end) = ring.verify_with_end::<Claims>(TYP, name.as_str(), now, key).map_err(KeyRefused::Token)?;
        let claims = seen.insert(claims);
        let path = claims.judge(operation, path, now, config.early)?;
        self.take(claims, end, config.on_store_failure).await?;
        Ok(Pass {
            id: Name::from(&claims.id),
            tag: claims.tag.as_deref().map(Name::from),
            operation,
            path: Name::from(path),
            max_bytes: claims.max_bytes,
            keys: self.clone(),
        })
    }

    async fn renewed(&self, key: &str, seen: &mut Option<Claims>) -> Result<ValetKey, KeyRefused> {
        let Inner { name, ring, config, clock, .. } = &*self.0;
        let now = clock.wall();
        let (claims, end) = ring.verify_with_end::<Claims>(TYP, name.as_str(), now, key).map_err(KeyRefused::Token)?;
        let claims = seen.insert(claims);
        claims.judge_time(now, config.early)?;
        if claims.is_single_use {
            return Err(KeyRefused::Used);
        }
        self.take(claims, end, OnStoreFailure::Deny).await?;
        // Whole seconds, to which an end is rounded up: a key does not grow with each renewal.
        let seconds = end.as_millis().saturating_sub(claims.iat) / 1000;
        let lifetime = Duration::from_secs(seconds.max(1)).min(config.max_lifetime);
        let next = Claims { iat: now.as_millis(), born: Some(claims.born()), ..claims.clone() };
        self.sign(&next, now + lifetime).map_err(KeyRefused::Sign)
    }

    /// Returns the record of a row, if there is a row to look for.
    async fn look(
        &self,
        store: &Arc<dyn Store>,
        row: Option<&str>,
        on_failure: OnStoreFailure,
    ) -> Result<Option<Record>, KeyRefused> {
        let Inner { config, clock, .. } = &*self.0;
        let Some(row) = row else { return Ok(None) };
        match ask(clock, config.call_timeout, store.get(Key::new(PARTITION, row))).await {
            Ok(record) => Ok(record),
            Err(error) if on_failure == OnStoreFailure::Allow && is_passing(error.kind()) => {
                let kind = error.kind();
                self.send(|| Event::StoreAway { kind });
                Ok(None)
            }
            Err(error) => Err(KeyRefused::Unavailable { kind: error.kind(), retry_after: config.retry_after }),
        }
    }

    /// Refuses a key that was revoked, and uses up one for a single use.
    async fn take(&self, claims: &Claims, end: Timestamp, on_failure: OnStoreFailure) -> Result<(), KeyRefused> {
        let Inner { store, config, clock, .. } = &*self.0;
        let away = |kind| KeyRefused::Unavailable { kind, retry_after: config.retry_after };
        let Some(store) = store else {
            return if claims.is_single_use { Err(away(Some(PortErrorKind::Unsupported))) } else { Ok(()) };
        };
        let (of_key, of_tag) = (self.row("key", &claims.id), claims.tag.as_deref().map(|tag| self.row("tag", tag)));
        let key = Key::new(PARTITION, &of_key);
        let row_of_key = (!claims.is_single_use).then_some(of_key.as_str());
        let (tag, key_row) =
            both(self.look(store, of_tag.as_deref(), on_failure), self.look(store, row_of_key, on_failure)).await;
        // A time that cannot be read is one of a later release, and revokes.
        if tag?.is_some_and(|record| time_of(&record).is_none_or(|time| claims.is_revoked_at(time))) {
            return Err(KeyRefused::Revoked);
        }
        if key_row?.is_some() {
            return Err(KeyRefused::Revoked);
        }
        if !claims.is_single_use {
            return Ok(());
        }
        // From the key, not from this process's clock, which may jump.
        let lifetime = Duration::from_millis(end.as_millis().saturating_sub(claims.iat));
        let options = PutOptions::new().when(Precondition::Absent).ttl(lifetime + SKEW);
        match ask(clock, config.call_timeout, store.put(key, USED.into(), options)).await {
            Ok(_) => Ok(()),
            Err(AskError::Failed(failed)) if failed.is_conflict() => Err(KeyRefused::Used),
            Err(error) => Err(away(error.kind())),
        }
    }
}

/// Returns `true` for a time-out, and for a failure after which the store may come back.
fn is_passing(kind: Option<PortErrorKind>) -> bool {
    kind.is_none_or(|kind| kind.class() != ErrorClass::Permanent)
}

/// Returns the time of a revocation, in milliseconds since 1970.
fn time_of(record: &Record) -> Option<u64> {
    std::str::from_utf8(&record.value).ok()?.parse().ok()
}

/// A key, for its holder. It is shown to nobody else, and is in no event.
#[derive(Clone, PartialEq, Eq)]
pub struct ValetKey {
    key: String,
    id: Name,
    expires_at: Timestamp,
}

impl ValetKey {
    /// Returns the text of the key, for a header or a query.
    pub fn as_str(&self) -> &str {
        &self.key
    }

    /// Returns the id, by which the key is revoked.
    pub fn id(&self) -> &str {
        self.id.as_str()
    }

    /// Returns the time at which the key expires.
    pub const fn expires_at(&self) -> Timestamp {
        self.expires_at
    }
}

impl fmt::Debug for ValetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValetKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A request that was let in: see [`ValetKeys::check`].
#[derive(Debug, Clone)]
pub struct Pass {
    id: Name,
    tag: Option<Name>,
    operation: Operation,
    path: Name,
    max_bytes: Option<u64>,
    keys: ValetKeys,
}

impl Pass {
    /// Returns the path, without the first `/`.
    pub fn path(&self) -> &str {
        self.path.as_str()
    }

    /// Returns the operation.
    pub const fn operation(&self) -> Operation {
        self.operation
    }

    /// Returns the id of the key.
    pub fn id(&self) -> &str {
        self.id.as_str()
    }

    /// Returns the tag of the grant.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_ref().map(Name::as_str)
    }

    /// Returns the most bytes that a body may have, if the grant limits them.
    pub const fn max_bytes(&self) -> Option<u64> {
        self.max_bytes
    }

    /// Returns the body, which ends with an error at the first chunk that is beyond the limit,
    /// whatever length was declared. Its bytes are an event when it ends.
    pub fn limit<S>(&self, body: S) -> Limited<S> {
        let transfer = Transfer { pass: self.clone(), bytes: 0, is_whole: false };
        Limited::new(body, self.max_bytes, transfer)
    }
}

/// The progress of a body. Its drop sends the event.
pub(super) struct Transfer {
    pass: Pass,
    pub(super) bytes: u64,
    pub(super) is_whole: bool,
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let Self { pass: Pass { id, tag, keys, .. }, bytes, is_whole } = self;
        keys.send(|| Event::Transferred { id: id.clone(), tag: tag.clone(), bytes: *bytes, is_whole: *is_whole });
    }
}

/// The error of a key that cannot be issued.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    /// The grant breaks a rule.
    #[error(transparent)]
    Grant(#[from] ConfigError),
    /// The ring cannot sign.
    #[error(transparent)]
    Sign(#[from] SignError),
}
