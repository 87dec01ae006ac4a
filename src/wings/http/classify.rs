//! The classifier of HTTP responses.
use std::time::Duration;

use http::{HeaderMap, Response, StatusCode};

use super::{grpc, hints::retry_after, kind_of};
use crate::{
    outcome::{Class, Classify, FailureKind, Hint, Verdict},
    time::{Clock, Timestamp},
};

/// A classifier that judges an HTTP response by its status and reads its hints; [the page](super)
/// has both tables.
///
/// It fits any client whose operation returns an `http::Response`, and with feature `reqwest` also
/// that client.
///
/// ```
/// use http::Response;
/// use hyper_util::client::legacy;
/// use steadfast::{Classify, FailureKind, Verdict, http::{ByStatus, kind_by_source}};
///
/// // Only the client knows that it failed while connecting.
/// let judge = ByStatus::new().errors(|error: &legacy::Error| {
///     let kind = if error.is_connect() { FailureKind::Connect } else { kind_by_source(error) };
///     Verdict::failure(kind)
/// });
/// let answer = Response::builder().status(503).header("retry-after", "90").body(()).unwrap();
/// let verdict = judge.classify(&Ok(answer));
/// assert_eq!(verdict.kind(), Some(FailureKind::Overloaded));
/// assert_eq!(verdict.hint(), steadfast::Hint::UnavailableFor(std::time::Duration::from_secs(90)));
/// ```
#[derive(Clone, Copy)]
pub struct ByStatus<F = AnyError> {
    errors: F,
    except: fn(StatusCode) -> Option<Class>,
    unavailable_from: Duration,
    grpc: bool,
    /// If set, the client follows no redirects.
    pub(super) direct: bool,
    now: fn() -> Timestamp,
}

/// The default judge of errors: every error is a failure of kind `other`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnyError;

/// A judge of a client's errors: any `Fn(&E) -> Verdict`.
pub trait JudgeError<E>: Send + Sync {
    /// Returns the verdict on a call that returned no response.
    fn judge(&self, error: &E) -> Verdict;
}

impl<E> JudgeError<E> for AnyError {
    fn judge(&self, _: &E) -> Verdict {
        Verdict::failure(FailureKind::Other)
    }
}

impl<E, F: Fn(&E) -> Verdict + Send + Sync> JudgeError<E> for F {
    fn judge(&self, error: &E) -> Verdict {
        self(error)
    }
}

impl ByStatus {
    /// Returns a classifier by the table of [the page](super). An error without a response is of
    /// kind `other`.
    pub const fn new() -> Self {
        Self {
            errors: AnyError,
            except: |_| None,
            unavailable_from: Duration::from_secs(60),
            grpc: false,
            direct: false,
            now: || Clock::tokio().wall(),
        }
    }
}

impl<F> ByStatus<F> {
    /// Sets the judge of errors. Return `connect` only for an error that the client itself calls a
    /// connect error: such failures are retried even for operations that must not run twice. See
    /// [`kind_by_source`](super::kind_by_source) for errors that wrap others.
    pub fn errors<G>(self, errors: G) -> ByStatus<G> {
        let Self { errors: _, except, unavailable_from, grpc, direct, now } = self;
        ByStatus { errors, except, unavailable_from, grpc, direct, now }
    }

    /// Sets exceptions: a status for which `except` returns a class gets that class.
    ///
    /// ```
    /// use steadfast::{Class, http::ByStatus};
    ///
    /// // For this call "not found" is a success.
    /// let judge = ByStatus::new().except(|status| (status == 404).then_some(Class::Success));
    /// ```
    #[must_use]
    pub const fn except(mut self, except: fn(StatusCode) -> Option<Class>) -> Self {
        self.except = except;
        self
    }

    /// Judges a response of status 200 by its `grpc-status`, if the headers have one.
    #[must_use]
    pub const fn grpc(mut self) -> Self {
        self.grpc = true;
        self
    }

    /// States that the client follows no redirects, as one with `redirect::Policy::none()`.
    ///
    /// reqwest's failed connect then is of kind `connect`: nothing was sent, so that also an
    /// operation that must not run twice is repeated. Without this statement it is of kind `other`,
    /// because it may belong to a redirect that the first server sent after its work. It concerns
    /// reqwest's errors alone: those of other clients are judged by [`errors`](Self::errors).
    ///
    /// ```
    /// # #[cfg(feature = "reqwest")] {
    /// use steadfast::http::ByStatus;
    ///
    /// let redirects = reqwest::redirect::Policy::none();
    /// let client = reqwest::Client::builder().redirect(redirects).build()?;
    /// let judge = ByStatus::new().without_redirects();
    /// # let _ = (client, judge);
    /// # }
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn without_redirects(mut self) -> Self {
        self.direct = true;
        self
    }

    /// Sets the wait from which an overloaded service counts as [away](Hint::UnavailableFor).
    /// Default: one minute.
    #[must_use]
    pub const fn unavailable_from(mut self, wait: Duration) -> Self {
        self.unavailable_from = wait;
        self
    }

    /// Sets the source of wall time for a response that has a date to return and no `date` of its
    /// own. Default: [`Clock::wall`] of tokio's clock, the system's wall time.
    #[must_use]
    pub const fn with_wall_time(mut self, now: fn() -> Timestamp) -> Self {
        self.now = now;
        self
    }

    /// Returns the verdict on a response with this status and these headers.
    #[inline]
    pub fn verdict(&self, status: StatusCode, headers: &HeaderMap) -> Verdict {
        if status.as_u16() < 400 && !self.grpc && (self.except)(status).is_none() {
            return Verdict::success();
        }
        self.look_closer(status, headers)
    }

    #[cold]
    #[inline(never)]
    fn look_closer(&self, status: StatusCode, headers: &HeaderMap) -> Verdict {
        let verdict = match ((self.except)(status), kind_of(status)) {
            (Some(class), _) => Verdict::of(class),
            (None, Some(kind)) => Verdict::failure(kind),
            (None, None) if !self.grpc => return Verdict::success(),
            (None, None) => {
                return grpc::code(headers).map_or(Verdict::success(), |code| grpc::verdict_of(code, headers));
            }
        };
        let Some(kind) = verdict.kind() else { return verdict };
        let pushed = if self.grpc { grpc::push_back(headers) } else { None };
        let read = || retry_after(headers, (self.now)());
        verdict.with_hint(pushed.or_else(|| read().map(|wait| self.hint(kind, wait))).unwrap_or_default())
    }

    fn hint(&self, kind: FailureKind, wait: Duration) -> Hint {
        match kind {
            FailureKind::Overloaded if wait >= self.unavailable_from => Hint::UnavailableFor(wait),
            _ => Hint::RetryAfter(wait),
        }
    }
}

impl<B, E, F: JudgeError<E>> Classify<Response<B>, E> for ByStatus<F> {
    #[inline]
    fn classify(&self, result: &Result<Response<B>, E>) -> Verdict {
        match result {
            Ok(answer) => self.verdict(answer.status(), answer.headers()),
            Err(error) => self.errors.judge(error),
        }
    }
}

impl Default for ByStatus {
    fn default() -> Self {
        Self::new()
    }
}

crate::build::debug_fields!([F] ByStatus<F>, |this| unavailable_from: this.unavailable_from, grpc: this.grpc);
