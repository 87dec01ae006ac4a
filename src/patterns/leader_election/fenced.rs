//! A guard that refuses writes under an old fencing token.
use std::sync::{Mutex, MutexGuard};

use crate::{port::FencingToken, sync::unpoisoned};

/// A guard around a resource that remembers the highest token it has seen and refuses lower ones.
///
/// It protects a resource of this process (a device, a file). A resource that several processes
/// reach must check the token itself, where the write is applied. A
/// [`Store`](crate::store::Store) does so with [`put_fenced`](crate::store::StoreExt::put_fenced).
///
/// ```
/// use steadfast::{leader_election::Fenced, port::FencingToken};
///
/// let (old, new) = (FencingToken::new(7), FencingToken::new(8));
/// let log = Fenced::new(Vec::new());
/// log.with(old, |log| log.push("from the first leader")).unwrap();
/// log.with(new, |log| log.push("from the second")).unwrap();
/// // The first leader was paused and does not know of the second.
/// let refused = log.with(old, |log| log.push("too late")).unwrap_err();
/// assert_eq!(refused.to_string(), "stale fencing token 7: 8 was already seen");
/// ```
pub struct Fenced<T>(Mutex<FencedInner<T>>);

struct FencedInner<T> {
    highest: Option<FencingToken>,
    resource: T,
}

/// The error for a write under a token below the highest one seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stale fencing token {token}: {highest} was already seen")]
#[non_exhaustive]
pub struct StaleToken {
    /// Token of the refused write.
    pub token: FencingToken,
    /// Highest token that the resource has seen.
    pub highest: FencingToken,
}

impl<T> Fenced<T> {
    /// Creates a guard that has seen no token.
    pub const fn new(resource: T) -> Self {
        Self(Mutex::new(FencedInner { highest: None, resource }))
    }

    /// Calls `act` with the resource and remembers the token.
    ///
    /// # Errors
    /// [`StaleToken`] if a higher token was seen; the resource was not touched.
    pub fn with<R>(&self, token: FencingToken, act: impl FnOnce(&mut T) -> R) -> Result<R, StaleToken> {
        let mut inner = self.inner();
        if let Some(highest) = inner.highest.filter(|highest| token < *highest) {
            return Err(StaleToken { token, highest });
        }
        inner.highest = Some(token);
        Ok(act(&mut inner.resource))
    }

    /// Returns the highest token seen.
    pub fn highest(&self) -> Option<FencingToken> {
        self.inner().highest
    }

    /// Returns the resource without the guard.
    pub fn into_inner(self) -> T {
        unpoisoned(self.0.into_inner()).resource
    }

    fn inner(&self) -> MutexGuard<'_, FencedInner<T>> {
        unpoisoned(self.0.lock())
    }
}

crate::build::debug_fields!([T] Fenced<T>, |this| highest: this.highest());
