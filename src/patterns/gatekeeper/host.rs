//! The side of the trusted host, which opens.
use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    TrustedHostConfig, TrustedHostEvent as Event,
    seal::{MAX_NAME, Opened, Way, opened},
};
use crate::{
    build::{Builder, Common, Component, HasEvents},
    codec::{Codec, CodecError},
    config::{ConfigError, Name, require},
    observe::{Events, Subscription},
    port::{AskError, Capability, PortErrorKind, ask},
    queue::Delivery,
    store::{Key, Precondition, PutOptions, Store},
    time::Clock,
    token::{KeyRing, TokenRefused},
};

/// Opens what the gates of one host have sealed, each seal once. The [module's page](super) has the
/// details.
///
/// Clones share their keys and events. Any number of hosts of one name may share a store.
pub struct TrustedHost<T>(Arc<Inner<T>>);

struct Inner<T> {
    host: Name,
    keys: KeyRing,
    store: Arc<dyn Store>,
    codec: Codec<T>,
    config: TrustedHostConfig,
    clock: Clock,
    events: Events<Event>,
}

/// Arguments of a trusted host, beside its clock.
pub struct TrustedHostSpec<T> {
    host: Name,
    keys: KeyRing,
    store: Arc<dyn Store>,
    codec: Codec<T>,
    config: TrustedHostConfig,
}

/// Partition of the store with the seals that were used.
const USED: &str = "hand-over";

impl<T> Component for TrustedHost<T> {
    type Built = Result<Self, ConfigError>;
    type Spec = TrustedHostSpec<T>;

    fn assemble(spec: TrustedHostSpec<T>, Common { clock, hooks, .. }: Common) -> Self::Built {
        let TrustedHostSpec { host, keys, store, codec, config } = spec;
        config.check()?;
        require((1..=MAX_NAME).contains(&host.as_str().len()), "host", "must have 1 to 128 bytes")?;
        let are_public = keys.keys().iter().all(|key| !key.signs());
        require(are_public, "keys", "must be public keys: a host signs nothing")?;
        let can = store.capabilities();
        for needed in [Capability::TimeToLive, Capability::Linearizable] {
            can.require(needed).map_err(|lacks| lacks.refuse("store"))?;
        }
        let events = hooks.events();
        Ok(Self(Arc::new(Inner { host, keys, store, codec, config, clock, events })))
    }
}

impl<T> HasEvents<Event> for TrustedHost<T> {}

impl<T> TrustedHost<T> {
    /// Creates the host of this name, with the public keys of its gates, and a store for the seals
    /// that were used.
    ///
    /// # Errors
    /// If a setting breaks its rule, the name is empty or has more than 128 bytes, a key signs, or
    /// the store has no [`TimeToLive`](Capability::TimeToLive) or is not
    /// [`Linearizable`](Capability::Linearizable).
    pub fn new(
        host: impl Into<Name>,
        keys: KeyRing,
        store: Arc<dyn Store>,
        codec: Codec<T>,
        config: TrustedHostConfig,
    ) -> Result<Self, ConfigError> {
        Self::builder(host, keys, store, codec, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new).
    pub fn builder(
        host: impl Into<Name>,
        keys: KeyRing,
        store: Arc<dyn Store>,
        codec: Codec<T>,
        config: TrustedHostConfig,
    ) -> Builder<Self> {
        Builder::new(TrustedHostSpec { host: host.into(), keys, store, codec, config })
    }

    /// Opens the body of a call. Each seal is accepted once, by one host.
    ///
    /// # Errors
    /// The reason for which nothing was opened.
    ///
    /// # Cancel safety
    /// The seal is used up or not, and the caller cannot tell which: the gate must seal anew.
    pub async fn open(&self, sealed: &[u8]) -> Result<T, OpenError> {
        let opened = self.open_as(sealed, Way::Call, Bytes::from_static(b"call")).await;
        self.tell(opened)
    }

    /// Opens a message, such as the `Work` of a queue listener. A seal is used up for its message:
    /// further deliveries of this one are accepted, and a copy in another message is not.
    ///
    /// # Errors
    /// The reason for which nothing was opened. All but [`Unavailable`](OpenError::Unavailable)
    /// stay in further attempts: make the message a dead letter.
    ///
    /// # Cancel safety
    /// Cancel safe: the next delivery is accepted.
    pub async fn open_message(&self, delivery: &Delivery) -> Result<T, OpenError> {
        // Each delivery repeats both; the number alone may be that of a message in another queue.
        let message = format!("message {} of {}", delivery.id, delivery.sent_at.as_millis());
        let opened = self.open_as(&delivery.body, Way::Message, message.into()).await;
        self.tell(opened)
    }

    /// Subscribes to the events of the host, from now on.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    async fn open_as(&self, sealed: &[u8], way: Way, user: Bytes) -> Result<T, OpenError> {
        let Inner { host, keys, codec, config, clock, .. } = &*self.0;
        let limits = (clock.wall(), config.max_lifetime);
        let opened = opened(keys, host.as_str(), way, limits, sealed).map_err(OpenError::Refused)?;
        self.take(&opened, user).await?;
        codec.decode(opened.content).map_err(OpenError::Content)
    }

    /// Uses up a seal: one insert, of which one succeeds.
    async fn take(&self, seal: &Opened<'_>, user: Bytes) -> Result<(), OpenError> {
        let Inner { host, store, config, clock, .. } = &*self.0;
        let row = format!("{host}/{}", seal.id);
        let (key, limit) = (Key::new(USED, &row), config.call_timeout);
        let away = |kind| OpenError::Unavailable { kind, retry_after: config.retry_after };
        let options = PutOptions::new().when(Precondition::Absent).ttl(seal.remembered_for(clock.wall()));
        match ask(clock, limit, store.put(key, user.clone(), options)).await {
            Ok(_) => return Ok(()),
            Err(AskError::Failed(failed)) if failed.is_conflict() => {}
            Err(error) => return Err(away(error.kind())),
        }
        if !user.starts_with(b"message ") {
            return Err(OpenError::Used);
        }
        match ask(clock, limit, store.get(key)).await {
            Ok(Some(record)) if record.value == user => Ok(()),
            Ok(_) => Err(OpenError::Used),
            Err(error) => Err(away(error.kind())),
        }
    }

    fn tell(&self, opened: Result<T, OpenError>) -> Result<T, OpenError> {
        if let Err(error) = &opened {
            let Inner { host, clock, events, .. } = &*self.0;
            events.send(Some(host), clock.now(), || match error {
                OpenError::Refused(refused) => Event::Refused { reason: refused.reason() },
                OpenError::Used => Event::Replayed,
                OpenError::Content(_) => Event::Undecodable,
                OpenError::Unavailable { kind, .. } => Event::StoreAway { kind: *kind },
            });
        }
        opened
    }
}

impl<T> Clone for TrustedHost<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for TrustedHost<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrustedHost").field("host", &self.0.host).finish_non_exhaustive()
    }
}

/// Reason for which a host opened nothing.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The seal is missing, malformed, of an unknown key, for another host, expired, or not that of
    /// the content.
    #[error("seal refused: {0}")]
    Refused(TokenRefused),
    /// The seal was used before.
    #[error("seal used before")]
    Used,
    /// The content behind a valid seal cannot be decoded.
    #[error("the content cannot be decoded")]
    Content(#[source] CodecError),
    /// The store does not tell whether the seal was used. Over HTTP this is a 503. Since the answer
    /// may have been lost after the seal was used up, a gate seals anew for its next call; a
    /// message keeps its seal.
    #[error("the store of used seals is away")]
    Unavailable {
        /// Kind of the store's failure; `None` for a time-out.
        kind: Option<PortErrorKind>,
        /// Time after which the caller may return.
        retry_after: Duration,
    },
}

impl OpenError {
    /// Returns the time after which the caller may return; only while the store is away.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unavailable { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }
}
