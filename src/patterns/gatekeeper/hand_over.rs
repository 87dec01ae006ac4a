//! The side of the gate, which seals.
use std::{fmt, sync::Arc};

use bytes::Bytes;

use super::{
    HandOverConfig,
    seal::{MAX_NAME, Way, sealed},
};
use crate::{
    build::{Builder, Common, Component},
    codec::{Codec, CodecError},
    config::{ConfigError, Name, require},
    queue::{Message, MessageId, QueueError, SendOnly},
    time::Clock,
    token::{Algorithm, KeyRing, SignError},
};

/// Seals values for one trusted host. The [module's page](super) has the details.
///
/// It has no method to open what it sealed:
///
/// ```compile_fail,E0599
/// # use steadfast::gatekeeper::HandOver;
/// # fn read(hand_over: &HandOver<String>, sealed: &[u8]) {
/// hand_over.open(sealed); // does not compile
/// # }
/// ```
pub struct HandOver<T>(Arc<Inner<T>>);

struct Inner<T> {
    host: Name,
    ring: KeyRing,
    codec: Codec<T>,
    config: HandOverConfig,
    clock: Clock,
}

/// Arguments of a hand-over, beside its clock.
pub struct HandOverSpec<T> {
    host: Name,
    ring: KeyRing,
    codec: Codec<T>,
    config: HandOverConfig,
}

impl<T> Component for HandOver<T> {
    type Built = Result<Self, ConfigError>;
    type Spec = HandOverSpec<T>;

    fn assemble(spec: HandOverSpec<T>, Common { clock, .. }: Common) -> Self::Built {
        let HandOverSpec { host, ring, codec, config } = spec;
        config.check()?;
        require((1..=MAX_NAME).contains(&host.as_str().len()), "host", "must have 1 to 128 bytes")?;
        let signs = ring.keys().first().is_some_and(|key| key.signs() && key.algorithm() == Algorithm::EdDsa);
        require(signs, "ring", "must begin with a private key of Ed25519")?;
        Ok(Self(Arc::new(Inner { host, ring, codec, config, clock })))
    }
}

impl<T> HandOver<T> {
    /// Creates the way to the host of this name, with the keys that sign for it.
    ///
    /// # Errors
    /// If a setting breaks its rule, the name is empty or has more than 128 bytes, or the newest
    /// key is no private key of Ed25519.
    pub fn new(
        host: impl Into<Name>,
        ring: KeyRing,
        codec: Codec<T>,
        config: HandOverConfig,
    ) -> Result<Self, ConfigError> {
        Self::builder(host, ring, codec, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new).
    pub fn builder(host: impl Into<Name>, ring: KeyRing, codec: Codec<T>, config: HandOverConfig) -> Builder<Self> {
        Builder::new(HandOverSpec { host: host.into(), ring, codec, config })
    }

    /// Returns the value, encoded and sealed, as the body of a call. Each call of the host needs a
    /// seal of its own.
    ///
    /// # Errors
    /// If the value cannot be encoded, or the newest key only verifies.
    pub fn seal(&self, value: &T) -> Result<Bytes, HandOverError> {
        self.sealed(value, Way::Call, self.0.config.call_lifetime)
    }

    /// Sends the value, encoded and sealed, in a message.
    ///
    /// # Errors
    /// As [`seal`](Self::seal), and those of [`send`](crate::queue::Queue::send).
    ///
    /// # Cancel safety
    /// The message is accepted or not, and the caller cannot tell which.
    pub async fn send(&self, queue: &SendOnly, value: &T) -> Result<MessageId, HandOverError> {
        let sealed = self.sealed(value, Way::Message, self.0.config.queue_lifetime)?;
        Ok(queue.send(Message::new(sealed)).await?)
    }

    fn sealed(&self, value: &T, way: Way, lifetime: std::time::Duration) -> Result<Bytes, HandOverError> {
        let Inner { host, ring, codec, clock, .. } = &*self.0;
        let content = codec.encode(value)?;
        Ok(sealed(ring, host.as_str(), way, clock.wall() + lifetime, &content)?)
    }
}

impl<T> Clone for HandOver<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for HandOver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandOver").field("host", &self.0.host).finish_non_exhaustive()
    }
}

/// The error of a value that cannot be handed over.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HandOverError {
    /// The value cannot be encoded.
    #[error(transparent)]
    Content(#[from] CodecError),
    /// The seal cannot be made.
    #[error(transparent)]
    Seal(#[from] SignError),
    /// The queue did not accept the message.
    #[error(transparent)]
    Queue(#[from] QueueError),
}
