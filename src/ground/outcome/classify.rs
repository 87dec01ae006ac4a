//! Classifiers: they judge the results of operations.
use std::sync::Arc;

use super::{CallError, Cause, FailureKind, Hint, Retrying, Verdict};

/// Judges the result of an operation, both errors and values.
///
/// Every `Fn(&Result<T, E>) -> Verdict` implements it. Without a classifier of your own,
/// [`Pipeline::retry_if`](crate::Pipeline::retry_if) and
/// [`Pipeline::fail_when`](crate::Pipeline::fail_when) take a predicate.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not classify results of type `Result<{T}, {E}>`",
    label = "expected a classifier of `Result<{T}, {E}>`",
    note = "a classifier is a closure `|result: &Result<{T}, {E}>| -> Verdict` or a type that implements `Classify<{T}, {E}>`"
)]
pub trait Classify<T, E>: Send + Sync {
    /// Returns the verdict on `result`.
    fn classify(&self, result: &Result<T, E>) -> Verdict;

    /// Returns the error as which a call returns `value`, which it judged a failure or a rejection;
    /// or `value` itself, the default, which the call then returns as `Ok`.
    ///
    /// It is called after each attempt that ended with such a value. The verdict stays the same.
    /// [`Pipeline::error_for_value`](crate::Pipeline::error_for_value) sets it with a closure.
    ///
    /// # Errors
    /// Returns the error that replaces `value`.
    fn error_for(&self, value: T, _verdict: Verdict) -> Result<T, E> {
        Ok(value)
    }

    /// Sees each failure that a retry repeats, before the wait. Does nothing by default;
    /// [`Pipeline::on_retry`](crate::Pipeline::on_retry) adds a hook to any classifier.
    fn on_retry(&self, _retrying: &Retrying<'_, T, E>) {}
}

/// The default classifier: every `Ok` is a success and every `Err` a failure of kind
/// [`FailureKind::Other`].
///
/// This holds for the [`CallError`] of a nested pipeline, too: the rejection of an inner breaker is
/// a failure of the outer call. A pipeline around another one takes [`ByCallError`]. It cannot be
/// the default: an error of any type may borrow, so its type cannot be asked for at run time, and
/// Rust cannot choose an implementation by type (specialisation).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ErrIsFailure;

impl<T, E> Classify<T, E> for ErrIsFailure {
    #[inline]
    fn classify(&self, result: &Result<T, E>) -> Verdict {
        match result {
            Ok(_) => Verdict::success(),
            Err(_) => Verdict::failure(FailureKind::Other),
        }
    }
}

/// Classifier for calls of a nested pipeline, whose errors are [`CallError`]s. It keeps the verdict
/// of that pipeline.
///
/// A rejection by an inner policy becomes a [rejection](Verdict::refused) of the outer call, with
/// the same retry time. An outer retry does not repeat it and an outer breaker does not count it.
/// [`CallError::is_rejected`] and [`CallError::retry_after`] report it. Any other error keeps the
/// kind, the weight and the hint that the inner classifier gave it. Every `Ok` is a success.
///
/// ```
/// use steadfast::{
///     Pipeline,
///     circuit_breaker::CircuitBreaker,
///     outcome::ByCallError,
///     retry::{Retry, RetryConfig},
/// };
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let breaker = CircuitBreaker::new(Default::default()).unwrap();
/// breaker.force_open(std::time::Duration::from_secs(30));
/// let inner = Pipeline::new().then(breaker);
/// let retry = Retry::new(RetryConfig::default()).unwrap();
/// let outer = Pipeline::new().then(retry).classify(ByCallError);
///
/// let ask = async || Ok::<_, std::io::Error>(7);
/// let error = outer.call_with(|attempt| inner.call_within(attempt, ask)).await.unwrap_err();
/// assert!(error.is_rejected() && error.retry_after().is_some());
/// assert_eq!(error.attempts(), 1); // asked once, and nothing was sent
/// assert_eq!(error.into_operation().unwrap().attempts(), 0);
/// # });
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByCallError;

impl<T, E> Classify<T, CallError<E>> for ByCallError {
    fn classify(&self, result: &Result<T, CallError<E>>) -> Verdict {
        let Err(error) = result else { return Verdict::success() };
        let verdict = error.verdict();
        match error.cause() {
            // A failure that a policy produced (say an injected fault) keeps its verdict.
            Cause::Rejected(rejected) if !verdict.is_failure() => {
                let hint = rejected.retry_after().map_or(Hint::None, Hint::RetryAfter);
                Verdict::refused().with_hint(hint)
            }
            _ => verdict,
        }
    }
}

#[diagnostic::do_not_recommend]
impl<T, E, F: Fn(&Result<T, E>) -> Verdict + Send + Sync> Classify<T, E> for F {
    #[inline]
    fn classify(&self, result: &Result<T, E>) -> Verdict {
        self(result)
    }
}

impl<T, E> Classify<T, E> for Arc<dyn Classify<T, E>> {
    fn classify(&self, result: &Result<T, E>) -> Verdict {
        (**self).classify(result)
    }

    fn error_for(&self, value: T, verdict: Verdict) -> Result<T, E> {
        (**self).error_for(value, verdict)
    }

    fn on_retry(&self, retrying: &Retrying<'_, T, E>) {
        (**self).on_retry(retrying);
    }
}
