//! The kind of a failure by the errors that an error wraps.
use std::{error::Error, io};

use crate::outcome::FailureKind;

/// Returns the kind of failure by the errors that `error` wraps, itself included.
///
/// | error found | kind |
/// |---|---|
/// | tonic's `ConnectError` (with feature `tonic`) | `connect`: nothing was sent |
/// | an [`io::Error`] of kind `TimedOut` | `timeout` |
/// | anything else | `other` |
///
/// No other [`io::ErrorKind`] proves that nothing was sent. Linux ends established connections with
/// `HostUnreachable`, `NetworkUnreachable` and `ConnectionRefused`, too: after the loss of a route,
/// or on an ICMP message, a read fails with them long after the server has read the request. Only
/// the client knows that it failed while connecting. hyper's legacy client reports it by
/// `Error::is_connect`: check that first. A client that follows redirects, as reqwest does by
/// default, reports it also for a later request, when the first server has done its work.
///
/// ```
/// use std::io;
/// use steadfast::{FailureKind, http::kind_by_source};
///
/// let late = io::Error::from(io::ErrorKind::TimedOut);
/// assert_eq!(kind_by_source(&late), FailureKind::Timeout);
/// let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
/// assert_eq!(kind_by_source(&refused), FailureKind::Other); // perhaps after the request was sent
/// ```
pub fn kind_by_source(error: &(dyn Error + 'static)) -> FailureKind {
    // Bounded, because an error may be its own source.
    let sources = std::iter::successors(Some(error), |error| <dyn Error>::source(*error)).take(64);
    let mut kinds = sources.filter_map(kind_of_one);
    kinds.next().unwrap_or(FailureKind::Other)
}

fn kind_of_one(error: &(dyn Error + 'static)) -> Option<FailureKind> {
    #[cfg(feature = "tonic")]
    if super::by_tonic::is_connect(error) {
        return Some(FailureKind::Connect);
    }
    let timed_out = error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut);
    timed_out.then_some(FailureKind::Timeout)
}
