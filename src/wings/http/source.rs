//! What an error's sources tell: the errors of clients and of the system that an error wraps.
use std::{error::Error, io};

use crate::outcome::FailureKind;

/// Returns the kind of failure by the errors that `error` wraps, itself included.
///
/// | found among them | kind |
/// |---|---|
/// | reqwest's error that says `is_connect`, tonic's `ConnectError` (by the features of those names) | `connect`: nothing was sent |
/// | an [`io::Error`] of kind `TimedOut` | `timeout` |
/// | anything else | `other` |
///
/// Another [`io::ErrorKind`] never proves that nothing was sent. Linux ends established connections with `HostUnreachable`,
/// `NetworkUnreachable` and `ConnectionRefused`, too: after a route is lost, or at an ICMP message, a read fails with them, long after
/// the server has read the request. Only the client knows that it was still connecting. hyper's legacy client tells by its own
/// `Error::is_connect`: ask that first.
///
/// ```
/// use std::io;
/// use steadfast::{FailureKind, http::kind_by_source};
///
/// let late = io::Error::from(io::ErrorKind::TimedOut);
/// assert_eq!(kind_by_source(&late), FailureKind::Timeout);
/// let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
/// assert_eq!(kind_by_source(&refused), FailureKind::Other); // perhaps after it was sent
/// ```
pub fn kind_by_source(error: &(dyn Error + 'static)) -> FailureKind {
    // An error may say that it is its own source: that is no reason to hang.
    let sources = std::iter::successors(Some(error), |error| <dyn Error>::source(*error)).take(64);
    let mut kinds = sources.filter_map(kind_of_one);
    kinds.next().unwrap_or(FailureKind::Other)
}

fn kind_of_one(error: &(dyn Error + 'static)) -> Option<FailureKind> {
    #[cfg(feature = "reqwest")]
    if super::by_reqwest::is_connect(error) {
        return Some(FailureKind::Connect);
    }
    #[cfg(feature = "tonic")]
    if super::by_tonic::is_connect(error) {
        return Some(FailureKind::Connect);
    }
    let timed_out = error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut);
    timed_out.then_some(FailureKind::Timeout)
}
