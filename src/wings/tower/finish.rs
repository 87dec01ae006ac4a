//! Conversions of a call's result to that of the service.
use std::{error::Error, fmt};

use crate::outcome::CallError;

/// The error type of stacks of layers: any error in a box.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A conversion from the pipeline's result to the service's.
pub trait Finish<T, E>: Send + Sync {
    /// Error type of the service.
    type Error;

    /// Converts the result.
    #[expect(clippy::missing_errors_doc, reason = "an error stays one, or becomes a response")]
    fn finish(&self, result: Result<T, CallError<E>>) -> Result<T, Self::Error>;
}

/// Leaves the [`CallError`] as it is, with the service's own error inside if that is the cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flat;

impl<T, E> Finish<T, E> for Flat {
    type Error = CallError<E>;

    fn finish(&self, result: Result<T, CallError<E>>) -> Result<T, CallError<E>> {
        result
    }
}

/// Converts the error to a [`BoxError`] that holds a [`CallError`] of [`OperationError`], for every
/// error type of the inner service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Boxing;

impl<T, E: Into<BoxError>> Finish<T, E> for Boxing {
    type Error = BoxError;

    fn finish(&self, result: Result<T, CallError<E>>) -> Result<T, BoxError> {
        result.map_err(|error| error.map_operation(|e| OperationError(e.into())).into())
    }
}

/// The inner service's error in a box. Unlike [`BoxError`] it implements [`Error`].
#[derive(Debug)]
pub struct OperationError(BoxError);

impl OperationError {
    /// Returns the inner service's error by reference, for downcasts.
    pub fn get_ref(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }

    /// Returns the inner service's error.
    pub fn into_inner(self) -> BoxError {
        self.0
    }
}

impl fmt::Display for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for OperationError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// Converts a rejection or a time-out to [a response](crate::http::answer), and leaves the
/// service's own error as it is. For servers, whose error is often
/// [`Infallible`](std::convert::Infallible).
#[cfg(feature = "http")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answering;

#[cfg(feature = "http")]
impl<B: Default, E> Finish<http::Response<B>, E> for Answering {
    type Error = E;

    fn finish(&self, result: Result<http::Response<B>, CallError<E>>) -> Result<http::Response<B>, E> {
        result.or_else(|error| match error.into_operation() {
            Ok(own) => Err(own),
            Err(policy) => Ok(crate::http::policy_answer(&policy)),
        })
    }
}
