//! A resource that refuses writers whose term is over.
use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::port::FencingToken;

/// A guard around a resource: remembers the highest token that it has seen, and refuses lower ones.
///
/// It is for resources in this process (a device, a file). One that several processes reach has to do the check itself, where the write is
/// applied: a [`Store`](crate::store::Store) does ([`put_fenced`](crate::store::StoreExt::put_fenced)).
///
/// ```
/// use steadfast::{leader_election::Fenced, port::FencingToken};
///
/// let (old, new) = (FencingToken::new(7), FencingToken::new(8));
/// let log = Fenced::new(Vec::new());
/// log.with(old, |log| log.push("from the first leader")).unwrap();
/// log.with(new, |log| log.push("from the second")).unwrap();
/// // The first was paused, and does not know.
/// let refused = log.with(old, |log| log.push("too late")).unwrap_err();
/// assert_eq!(refused.to_string(), "the fencing token 7 is too low: 8 was seen");
/// ```
pub struct Fenced<T>(Mutex<Inner<T>>);

struct Inner<T> {
    highest: Option<FencingToken>,
    resource: T,
}

/// A write of a term that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the fencing token {token} is too low: {highest} was seen")]
#[non_exhaustive]
pub struct TooLow {
    /// The token of the write.
    pub token: FencingToken,
    /// The highest that the resource has seen.
    pub highest: FencingToken,
}

impl<T> Fenced<T> {
    /// A guard that has seen no token.
    pub const fn new(resource: T) -> Self {
        Self(Mutex::new(Inner { highest: None, resource }))
    }

    /// Lets the resource be used under this token, and remembers it.
    ///
    /// # Errors
    /// Where a higher token was seen; the resource was not touched.
    pub fn with<R>(&self, token: FencingToken, act: impl FnOnce(&mut T) -> R) -> Result<R, TooLow> {
        let mut inner = self.inner();
        if let Some(highest) = inner.highest.filter(|highest| token < *highest) {
            return Err(TooLow { token, highest });
        }
        inner.highest = Some(token);
        Ok(act(&mut inner.resource))
    }

    /// The highest token that it has seen.
    pub fn highest(&self) -> Option<FencingToken> {
        self.inner().highest
    }

    /// The resource, without the guard.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).resource
    }

    fn inner(&self) -> MutexGuard<'_, Inner<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for Fenced<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fenced").field("highest", &self.highest()).finish_non_exhaustive()
    }
}
