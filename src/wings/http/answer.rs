//! The other direction: responses to callers whose request a policy rejected, or whose call failed.
use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header::RETRY_AFTER};

use crate::outcome::{CallError, Cause, FailureKind, PolicyError, PolicyKind, Rejected};

/// Returns the response to a request that a policy rejected: 429 for a rate limit, 503 for any
/// other policy, with `retry-after` if the time to return is known.
///
/// A rate limit on this service's own calls to another service says nothing about the caller:
/// change the status to 503 in that case.
///
/// ```
/// use http::Response;
/// use steadfast::{http::refusal, throttling::{KeyedRateLimiter, Quota}, time::Clock};
///
/// let (clock, _) = Clock::manual();
/// let limiter = KeyedRateLimiter::builder(Quota::per_minute(2)).clock(&clock).build().unwrap();
/// let _ = (limiter.try_acquire(&"tenant"), limiter.try_acquire(&"tenant"));
/// let answer: Response<String> = refusal(&limiter.try_acquire(&"tenant").unwrap_err());
/// assert_eq!(answer.status().as_u16(), 429);
/// assert_eq!(answer.headers()["retry-after"], "30");
/// ```
pub fn refusal<B: Default>(rejected: &Rejected) -> Response<B> {
    respond(status_of_refusal(rejected), rejected.retry_after())
}

/// Returns the response to a request whose call a policy ended: as [`refusal`] for a rejection, 504
/// for a time-out. For a service whose own error holds a [`PolicyError`], as
/// [the page](crate::outcome) of outcomes shows.
pub fn policy_answer<B: Default>(error: &PolicyError) -> Response<B> {
    match error {
        PolicyError::Rejected(rejected) => refusal(rejected),
        PolicyError::TimedOut(_) => respond(StatusCode::GATEWAY_TIMEOUT, None),
    }
}

/// Returns the response to a request whose call failed, with the status of [`status_of`]. It has a
/// `retry-after` if the policy or the server gave a time to return.
pub fn answer<E, B: Default>(error: &CallError<E>) -> Response<B> {
    respond(status_of(error), error.retry_after())
}

/// Returns the status for a failed call, as [`answer`] uses it.
///
/// | cause of the failure | status |
/// |---|---|
/// | rejected by a rate limit | 429 |
/// | rejected by any other policy, also by one [inside the operation](crate::Verdict::refused) | 503 |
/// | a time-out; the operation's error of kind `timeout` | 504 |
/// | its error of kind `throttled` or `overloaded` | 503 |
/// | its error of kind `connect` or `server` | 502 |
/// | its error of any other kind | 500: this service's own fault, as far as its caller can tell |
pub fn status_of<E>(error: &CallError<E>) -> StatusCode {
    match (error.cause(), error.verdict().kind()) {
        (Cause::Rejected(rejected), _) => status_of_refusal(rejected),
        (Cause::TimedOut(_), _) | (_, Some(FailureKind::Timeout)) => StatusCode::GATEWAY_TIMEOUT,
        (_, Some(FailureKind::Throttled | FailureKind::Overloaded)) => StatusCode::SERVICE_UNAVAILABLE,
        _ if error.verdict().is_refused() => StatusCode::SERVICE_UNAVAILABLE,
        (_, Some(FailureKind::Connect | FailureKind::Server)) => StatusCode::BAD_GATEWAY,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Returns a wait as a value of `retry-after`: whole seconds, rounded up, so that no caller returns
/// too early.
pub fn retry_after_value(wait: Duration) -> HeaderValue {
    HeaderValue::from(wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)))
}

fn status_of_refusal(rejected: &Rejected) -> StatusCode {
    match rejected.by() {
        PolicyKind::RateLimit => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

pub(super) fn respond<B: Default>(status: StatusCode, wait: Option<Duration>) -> Response<B> {
    let mut answer = Response::new(B::default());
    *answer.status_mut() = status;
    if let Some(wait) = wait {
        answer.headers_mut().insert(RETRY_AFTER, retry_after_value(wait));
    }
    answer
}
