//! reqwest's responses and errors.
use reqwest::{Error, Response};

use super::{ByStatus, kind_by_source, kind_of};
use crate::outcome::{Classify, FailureKind, Verdict};

/// Returns the verdict on an error of reqwest.
///
/// | error | verdict |
/// |---|---|
/// | the request could not be built | `client`: the caller's fault, and nothing was sent |
/// | no connection, also because of a time-out | `connect`: nothing was sent |
/// | a time-out after that | `timeout` |
/// | too many redirects | `client` |
/// | a status, by `error_for_status` | by its status; the headers, and so the hints, are gone |
/// | a body that ended early or cannot be read | `server` |
/// | any other error | `other`: whether the request was sent is unknown |
///
/// A client that follows redirects may have had a response before the connection that failed: after
/// a 303 the first server has done its work. Send requests that must not run twice through a client
/// with `redirect::Policy::none`.
pub fn reqwest_error(error: &Error) -> Verdict {
    let kind = match error.status().and_then(kind_of) {
        Some(kind) => kind,
        None if error.is_builder() || error.is_redirect() => FailureKind::Client,
        None if error.is_connect() => FailureKind::Connect,
        None if error.is_timeout() => FailureKind::Timeout,
        None if error.is_body() || error.is_decode() => FailureKind::Server,
        None => kind_by_source(error),
    };
    Verdict::failure(kind)
}

impl<F: Send + Sync> Classify<Response, Error> for ByStatus<F> {
    #[inline]
    fn classify(&self, result: &Result<Response, Error>) -> Verdict {
        match result {
            Ok(answer) => self.verdict(answer.status(), answer.headers()),
            Err(error) => reqwest_error(error),
        }
    }
}

/// Returns `true` if this is an error of reqwest that reports a failed connect.
pub(super) fn is_connect(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<Error>().is_some_and(Error::is_connect)
}
