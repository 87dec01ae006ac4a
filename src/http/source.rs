//! What an error's sources tell: the system's own errors, which clients wrap in theirs.
use std::{error::Error, io};

use crate::outcome::FailureKind;

/// The kind of failure by the [`io::Error`]s among an error and its sources: a connection that was refused, or had nowhere to go, is
/// `connect` (nothing was sent); a time-out is one; anything else, and an error without one, is `other`.
///
/// ```
/// use std::io;
/// use steadfast::{FailureKind, http::kind_by_source};
///
/// let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
/// assert_eq!(kind_by_source(&refused), FailureKind::Connect);
/// let reset = io::Error::from(io::ErrorKind::ConnectionReset);
/// assert_eq!(kind_by_source(&reset), FailureKind::Other); // perhaps after it was sent
/// ```
pub fn kind_by_source(error: &(dyn Error + 'static)) -> FailureKind {
    // An error may say that it is its own source: that is no reason to hang.
    let sources = std::iter::successors(Some(error), |error| <dyn Error>::source(*error)).take(64);
    let mut kinds = sources.filter_map(|error| error.downcast_ref::<io::Error>()).map(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::AddrNotAvailable => FailureKind::Connect,
        io::ErrorKind::TimedOut => FailureKind::Timeout,
        _ => FailureKind::Other,
    });
    kinds.find(|kind| *kind != FailureKind::Other).unwrap_or(FailureKind::Other)
}
