//! Classifiers that refine another one; the methods of a pipeline create them.
use std::fmt;

use super::{Classify, FailureKind, Retrying, Verdict};

/// A classifier under which only errors that satisfy a predicate are retried; created by
/// [`Pipeline::retry_if`](crate::Pipeline::retry_if).
#[derive(Clone, Copy)]
pub struct RetryIf<C, F> {
    classify: C,
    retries: F,
}

/// A classifier under which the results that satisfy a predicate are failures; created by
/// [`Pipeline::fail_when`](crate::Pipeline::fail_when).
#[derive(Clone, Copy)]
pub struct FailWhen<C, F> {
    classify: C,
    fails: F,
}

/// A classifier that returns an error for a value that it judges a failure; created by
/// [`Pipeline::error_for_value`](crate::Pipeline::error_for_value).
#[derive(Clone, Copy)]
pub struct ErrorForValue<C, F> {
    classify: C,
    error: F,
}

impl<C, F> RetryIf<C, F> {
    pub(crate) const fn new(classify: C, retries: F) -> Self {
        Self { classify, retries }
    }
}

impl<C, F> FailWhen<C, F> {
    pub(crate) const fn new(classify: C, fails: F) -> Self {
        Self { classify, fails }
    }
}

impl<C, F> ErrorForValue<C, F> {
    pub(crate) const fn new(classify: C, error: F) -> Self {
        Self { classify, error }
    }
}

impl<T, E, C: Classify<T, E>, F: Fn(&E) -> bool + Send + Sync> Classify<T, E> for RetryIf<C, F> {
    #[inline]
    fn classify(&self, result: &Result<T, E>) -> Verdict {
        let verdict = self.classify.classify(result);
        match result {
            Err(error) if verdict.is_failure() && !(self.retries)(error) => Verdict::failure(FailureKind::Client),
            _ => verdict,
        }
    }

    fn error_for(&self, value: T, verdict: Verdict) -> Result<T, E> {
        self.classify.error_for(value, verdict)
    }

    fn on_retry(&self, retrying: &Retrying<'_, T, E>) {
        self.classify.on_retry(retrying);
    }
}

impl<T, E, C: Classify<T, E>, F: Fn(&Result<T, E>) -> bool + Send + Sync> Classify<T, E> for FailWhen<C, F> {
    #[inline]
    fn classify(&self, result: &Result<T, E>) -> Verdict {
        let verdict = self.classify.classify(result);
        match ((self.fails)(result), verdict.is_failure()) {
            (true, false) => Verdict::failure(FailureKind::Other),
            (false, true) => Verdict::success(),
            (true, true) | (false, false) => verdict,
        }
    }

    fn error_for(&self, value: T, verdict: Verdict) -> Result<T, E> {
        self.classify.error_for(value, verdict)
    }

    fn on_retry(&self, retrying: &Retrying<'_, T, E>) {
        self.classify.on_retry(retrying);
    }
}

impl<T, E, C: Classify<T, E>, F: Fn(T) -> Result<T, E> + Send + Sync> Classify<T, E> for ErrorForValue<C, F> {
    #[inline]
    fn classify(&self, result: &Result<T, E>) -> Verdict {
        self.classify.classify(result)
    }

    fn error_for(&self, value: T, verdict: Verdict) -> Result<T, E> {
        self.classify.error_for(value, verdict).and_then(&self.error)
    }

    fn on_retry(&self, retrying: &Retrying<'_, T, E>) {
        self.classify.on_retry(retrying);
    }
}

impl<C: fmt::Debug, F> fmt::Debug for RetryIf<C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RetryIf").field(&self.classify).finish_non_exhaustive()
    }
}

impl<C: fmt::Debug, F> fmt::Debug for FailWhen<C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FailWhen").field(&self.classify).finish_non_exhaustive()
    }
}

impl<C: fmt::Debug, F> fmt::Debug for ErrorForValue<C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ErrorForValue").field(&self.classify).finish_non_exhaustive()
    }
}
