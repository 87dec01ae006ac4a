//! The part of a call's error that is no error of the operation, and the conversions that split an
//! error by it.
use std::time::Duration;

use super::{CallError, CallErrorParts, Cause, Rejected, TimedOut};

/// The error of a call that the policies ended: the part of a [`CallError`] that is no error of the
/// operation. [`CallError::into_operation`] returns it.
///
/// It names no type of the operation, so one variant of a service's own error holds it for all
/// operations: [the page](super) shows such an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A policy rejected the call before the operation ran.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// A time-out dropped the operation.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
}

impl PolicyError {
    /// Returns the time to wait before the next call, if the rejecting policy stated one.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Rejected(rejected) => rejected.retry_after(),
            Self::TimedOut(_) => None,
        }
    }
}

impl<E> From<PolicyError> for Cause<E> {
    fn from(error: PolicyError) -> Self {
        match error {
            PolicyError::Rejected(rejected) => Self::Rejected(rejected),
            PolicyError::TimedOut(timed_out) => Self::TimedOut(timed_out),
        }
    }
}

impl<E> Cause<E> {
    /// Returns the operation's own error, or the error of the policy that ended the call.
    ///
    /// # Errors
    /// Returns a [`PolicyError`] if a policy ended the call.
    pub fn into_operation(self) -> Result<E, PolicyError> {
        match self {
            Self::Operation(error) => Ok(error),
            Self::Rejected(rejected) => Err(rejected.into()),
            Self::TimedOut(timed_out) => Err(timed_out.into()),
        }
    }
}

impl<E> CallError<E> {
    /// Returns the operation's own error, or the error of the policy that ended the call. Drops the
    /// number of attempts, the history and the fallback's error; [`into_parts`](Self::into_parts)
    /// returns them.
    ///
    /// ```
    /// use steadfast::{Pipeline, timeout::Timeout};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    /// # runtime.unwrap().block_on(async {
    /// let parse = async || "seven".parse::<u8>();
    /// let error = Pipeline::new().call(parse).await.unwrap_err();
    /// assert_eq!(error.into_operation().unwrap().to_string(), "invalid digit found in string");
    ///
    /// let hang = async || std::future::pending::<Result<u8, std::num::ParseIntError>>().await;
    /// let short = Timeout::new(std::time::Duration::from_millis(1));
    /// let error = Pipeline::new().then(short).call(hang).await.unwrap_err();
    /// assert_eq!(error.into_operation().unwrap_err().to_string(), "timed out after 1ms");
    /// # });
    /// ```
    ///
    /// # Errors
    /// Returns a [`PolicyError`] if a policy ended the call.
    pub fn into_operation(self) -> Result<E, PolicyError> {
        self.into_cause().into_operation()
    }
}

impl<E> CallError<CallError<E>> {
    /// Merges the error of a nested call with that of the inner call, as if one pipeline had made
    /// both.
    ///
    /// If the inner call ended the outer one, cause and verdict are the inner call's. The number of
    /// attempts is also that of the inner call, unless the outer call ran it several times. History
    /// and fallback are the outer call's, or the inner call's if the outer one has none.
    ///
    /// ```
    /// use std::time::Duration;
    /// use steadfast::{Pipeline, circuit_breaker::CircuitBreaker, outcome::ByCallError};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let breaker = CircuitBreaker::new(Default::default()).unwrap();
    /// breaker.force_open(Duration::from_secs(30));
    /// let (outer, inner) = (Pipeline::new().classify(ByCallError), Pipeline::new().then(breaker));
    /// let ask = async || Ok::<_, std::io::Error>(7);
    /// let error = outer.call_with(|attempt| inner.call_within(attempt, ask)).await.unwrap_err();
    ///
    /// let error = error.flatten(); // a `CallError<std::io::Error>`
    /// assert_eq!((error.attempts(), error.is_rejected()), (0, true)); // the inner breaker's
    /// # });
    /// ```
    #[must_use]
    pub fn flatten(self) -> CallError<E> {
        let CallErrorParts { cause, verdict, attempts, history, fallback } = self.into_parts();
        let history = history.map(|history| history.map_first(Cause::flatten));
        let fallback = fallback.map(Cause::flatten);
        match cause.into_operation() {
            Err(policy) => CallError::new(policy.into(), verdict, attempts).with(history, fallback),
            Ok(inner) => {
                let inner = inner.into_parts();
                let attempts = if attempts > 1 { attempts } else { inner.attempts };
                CallError::new(inner.cause, inner.verdict, attempts)
                    .with(history.or(inner.history), fallback.or(inner.fallback))
            }
        }
    }
}

impl<E> Cause<CallError<E>> {
    /// Replaces the error of an inner call with the cause that ended that call.
    fn flatten(self) -> Cause<E> {
        self.into_operation().map_or_else(Cause::from, CallError::into_cause)
    }
}
