//! Calls by key: routed to the shard that owns it, and again after that has changed.
use std::future::Future;

use super::{
    Refused, ShardDirectory, ShardingError,
    key::{KeyBytes, ShardKey},
    map::ShardId,
};
use crate::{
    backoff::Backoff,
    outcome::{CallError, Cause},
    port::{Failure, PortError},
};

/// The destination of a routed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Routed {
    /// The shard that owns the key.
    pub shard: ShardId,
    /// The version of the map. Send it with the request, for the shard's own
    /// [check](super::ShardGuard::enter).
    pub version: u64,
}

impl Routed {
    /// Creates the destination of a request that a router of this version sends to this shard.
    pub const fn new(shard: ShardId, version: u64) -> Self {
        Self { shard, version }
    }
}

/// Error of a call at one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError<E> {
    /// The shard refused the request; nothing was done.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The operation failed.
    #[error("{0}")]
    Failed(E),
}

/// Converts the error of a call through the shard's own pipeline. A refusal of the shard stays one,
/// and is routed again; any other error is the call's.
///
/// ```
/// # use steadfast::{Pipeline, port::{self, PortError}, sharding::{Refused, ShardError}};
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let pipeline = Pipeline::new().classify(port::verdict);
/// let ask = || async { Err::<(), ShardError<PortError>>(Refused::Moving.into()) };
/// let answer = pipeline.call(ask).await.map_err(ShardError::from);
/// assert!(matches!(answer, Err(ShardError::Refused(Refused::Moving))));
/// # });
/// ```
impl<E> From<CallError<ShardError<E>>> for ShardError<CallError<ShardError<E>>> {
    fn from(error: CallError<ShardError<E>>) -> Self {
        match error.cause() {
            Cause::Operation(ShardError::Refused(refused)) => Self::Refused(*refused),
            _ => Self::Failed(error),
        }
    }
}

/// A refusal is on its merits: the shard works, and no breaker counts it as a failure.
impl<E: Failure> Failure for ShardError<E> {
    fn backend(&self) -> Option<&PortError> {
        match self {
            Self::Refused(_) => None,
            Self::Failed(error) => error.backend(),
        }
    }
}

/// Error of a routed call.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError<E> {
    /// No shard owns the key.
    #[error("no shard owns the key")]
    NoShard,
    /// The shard still refused the request at the retry time-out, for this reason; nothing was
    /// done.
    #[error(transparent)]
    Refused(Refused),
    /// The map could not be refreshed; nothing was done.
    #[error(transparent)]
    Directory(ShardingError),
    /// The operation failed.
    #[error("{0}")]
    Failed(E),
}

impl ShardDirectory {
    /// Runs an operation on the shard that owns the key. If the shard reports that this map is
    /// stale, the map is refreshed, once for all concurrent callers, and the operation runs again.
    /// If the key is being moved, the operation runs again after a delay, until the [retry
    /// time-out](super::ShardDirectoryConfig::retry_timeout). A shard that refuses has done
    /// nothing, so it is safe to run the operation again.
    ///
    /// Put each shard's own breaker into the operation.
    ///
    /// # Errors
    /// [`RouteError`].
    ///
    /// # Cancel safety
    /// That of the operation.
    pub async fn route<T, E, F>(
        &self,
        key: &(impl ShardKey + ?Sized),
        mut operation: impl FnMut(Routed) -> F,
    ) -> Result<T, RouteError<E>>
    where
        F: Future<Output = Result<T, ShardError<E>>>,
    {
        let key = KeyBytes::of(key);
        let mut map = self.map();
        let mut retry_timeout = None;
        loop {
            let refused = match map.shard_of_bytes(key.as_slice()) {
                Some(shard) => {
                    if let Some(meter) = &self.0.meter {
                        meter.record(shard, key.as_slice());
                    }
                    match operation(Routed { shard, version: map.version() }).await {
                        Ok(value) => return Ok(value),
                        Err(ShardError::Failed(error)) => return Err(RouteError::Failed(error)),
                        Err(ShardError::Refused(refused)) => Some(refused),
                    }
                }
                None => None,
            };
            let first = retry_timeout.is_none();
            let (until, pauses) = retry_timeout.get_or_insert_with(|| {
                let config = &self.0.config;
                (self.0.clock.now() + config.retry_timeout, Backoff::checked(config.backoff, &self.0.entropy))
            });
            // A refresh resolves a stale map at once, while a move needs time.
            let by_a_look = first && matches!(refused, None | Some(Refused::Stale(_)));
            if !by_a_look {
                let pause = pauses.next().unwrap_or_default();
                let Some(refused) = refused else { return Err(RouteError::NoShard) };
                if self.0.clock.now() + pause > *until {
                    return Err(RouteError::Refused(refused));
                }
                self.0.clock.sleep(pause).await;
            }
            map = self.refresh_past(map.version()).await.map_err(RouteError::Directory)?;
        }
    }
}
