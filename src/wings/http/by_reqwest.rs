//! reqwest's answers and errors.
use reqwest::{Error, Response};

use super::{ByStatus, kind_by_source, kind_of};
use crate::outcome::{Classify, FailureKind, Verdict};

/// The verdict on an error of reqwest's, which came in the place of an answer.
///
/// | what went wrong | verdict |
/// |---|---|
/// | the request could not be built | `client`: the caller's fault, and nothing was sent |
/// | no connection, also by a time-out | `connect`: nothing was sent |
/// | a time-out after that | `timeout` |
/// | too many redirects | `client` |
/// | a status, by `error_for_status` | by its status; the headers, and so the hints, are gone |
/// | a body that broke off or cannot be read | `server` |
/// | anything else while it was under way | `other`: whether it was sent is unknown |
///
/// A client that follows redirects may have had an answer before the connection that failed: after a 303 the first server has done its
/// work. Send what must not run twice by a client with `redirect::Policy::none`.
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

/// Returns whether this is an error of reqwest's that says that there was no connection.
pub(super) fn is_connect(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<Error>().is_some_and(Error::is_connect)
}
