//! reqwest's responses and errors.
use reqwest::{Error, Response};

use super::{ByStatus, kind_by_source, kind_of};
use crate::outcome::{Classify, FailureKind, Verdict};

/// Returns the verdict on an error of reqwest.
///
/// | error | verdict |
/// |---|---|
/// | the request could not be built | `client`: the caller's fault, and nothing was sent |
/// | a time-out, also of a connect | `timeout` |
/// | too many redirects | `client` |
/// | a status, by `error_for_status` | by its status; the headers, and so the hints, are gone |
/// | a body that ended early or cannot be read | `server` |
/// | any other error, also a failed connect | `other`: whether the request was sent is unknown |
///
/// A failed connect does not prove that nothing was sent: a client follows redirects by default,
/// and after a 303 the first server has done its work. The error does not tell which connection it
/// was. For a client with `redirect::Policy::none()`, use
/// [`ByStatus::without_redirects`], which judges a failed connect as `connect`.
pub fn reqwest_error(error: &Error) -> Verdict {
    verdict(error, false)
}

/// Returns the verdict on an error; with `direct`, a failed connect proves that nothing was sent.
fn verdict(error: &Error, direct: bool) -> Verdict {
    let kind = match error.status().and_then(kind_of) {
        Some(kind) => kind,
        None if error.is_builder() || error.is_redirect() => FailureKind::Client,
        None if direct && error.is_connect() => FailureKind::Connect,
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
            Err(error) => verdict(error, self.direct),
        }
    }
}
