//! The other direction: what a policy refused, as an answer to whoever asked.
use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header::RETRY_AFTER};

use crate::outcome::{CallError, Cause, FailureKind, PolicyKind, Rejected};

/// The answer to a request that a policy refused: 429 where the rate limit did, 503 for any other, with `retry-after` where the time to
/// come back is known.
///
/// A rate limit that bounds what this service asks of another says nothing about its caller: change the status to 503 there.
///
/// ```
/// use http::Response;
/// use steadfast::{http::refusal, throttling::{KeyedRateLimiter, Quota}, time::Clock};
///
/// let (clock, _) = Clock::manual();
/// let limiter = KeyedRateLimiter::new(Quota::per_minute(2)).unwrap().with_clock(&clock);
/// let _ = (limiter.try_acquire(&"tenant"), limiter.try_acquire(&"tenant"));
/// let answer: Response<String> = refusal(&limiter.try_acquire(&"tenant").unwrap_err());
/// assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (429, &http::HeaderValue::from_static("30")));
/// ```
pub fn refusal<B: Default>(rejected: &Rejected) -> Response<B> {
    respond(status_of_refusal(rejected), rejected.retry_after())
}

/// The answer to a request whose call failed: [`refusal`]'s, 504 for a time-out, 502, 503, 504 or 500 for an error of the other side by
/// its kind. With `retry-after` where the policy or the other side said when.
pub fn answer<E, B: Default>(error: &CallError<E>) -> Response<B> {
    respond(status_of(error), error.retry_after())
}

/// The status of [`answer`].
///
/// | what ended the call | status |
/// |---|---|
/// | refused by a rate limit | 429 |
/// | refused by any other policy, also by one [inside the operation](crate::Verdict::refused) | 503 |
/// | a time-out; the operation's error of kind `timeout` | 504 |
/// | its error of kind `throttled` or `overloaded` | 503 |
/// | of kind `connect` or `server` | 502 |
/// | of any other kind | 500: this service's own fault, as far as its caller can tell |
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

/// A wait as a value of `retry-after`: whole seconds, rounded up, so that nobody comes too early.
pub fn retry_after_value(wait: Duration) -> HeaderValue {
    HeaderValue::from(wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)))
}

fn status_of_refusal(rejected: &Rejected) -> StatusCode {
    match rejected.by() {
        PolicyKind::RateLimit => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn respond<B: Default>(status: StatusCode, wait: Option<Duration>) -> Response<B> {
    let mut answer = Response::new(B::default());
    *answer.status_mut() = status;
    if let Some(wait) = wait {
        answer.headers_mut().insert(RETRY_AFTER, retry_after_value(wait));
    }
    answer
}
