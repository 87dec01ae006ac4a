//! The one place where results are judged.
use std::sync::Arc;

use super::{FailureKind, Verdict};

/// Judges what an operation came back with: errors as well as values.
///
/// Any `Fn(&Result<T, E>) -> Verdict` is one.
pub trait Classify<T, E>: Send + Sync {
    /// The verdict on `result`.
    fn classify(&self, result: &Result<T, E>) -> Verdict;
}

/// Every `Ok` is a success and every `Err` a failure of kind [`FailureKind::Other`]: the default.
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
}
