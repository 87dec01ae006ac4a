//! What a call's end looks like from outside.
use std::{error::Error, fmt};

use crate::outcome::CallError;
#[cfg(feature = "http")]
use crate::outcome::Cause;

/// The error of stacks of layers: any.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Makes the service's result of the pipeline's.
pub trait Finish<T, E>: Send + Sync {
    /// The error of the service.
    type Error;

    /// What the caller of the service gets.
    #[expect(clippy::missing_errors_doc, reason = "what was an error stays one, or becomes an answer")]
    fn finish(&self, result: Result<T, CallError<E>>) -> Result<T, Self::Error>;
}

/// The error is the [`CallError`], with the service's own error inside where that is the cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flat;

impl<T, E> Finish<T, E> for Flat {
    type Error = CallError<E>;

    fn finish(&self, result: Result<T, CallError<E>>) -> Result<T, CallError<E>> {
        result
    }
}

/// The error is a [`BoxError`] that holds a [`CallError`] of [`OperationError`], whatever the inner service fails with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Boxing;

impl<T, E: Into<BoxError>> Finish<T, E> for Boxing {
    type Error = BoxError;

    fn finish(&self, result: Result<T, CallError<E>>) -> Result<T, BoxError> {
        result.map_err(|error| error.map_operation(|e| OperationError(e.into())).into())
    }
}

/// The inner service's error in a box: as it is, but an error that errors can hold.
#[derive(Debug)]
pub struct OperationError(BoxError);

impl OperationError {
    /// The error itself, to look what it is.
    pub fn get_ref(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }

    /// The error itself.
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

/// A refusal or a time-out becomes [an answer](crate::http::answer); the service's own error stays as it is. For servers, whose error is often
/// [`Infallible`](std::convert::Infallible).
#[cfg(feature = "http")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answering;

#[cfg(feature = "http")]
impl<B: Default, E> Finish<http::Response<B>, E> for Answering {
    type Error = E;

    fn finish(&self, result: Result<http::Response<B>, CallError<E>>) -> Result<http::Response<B>, E> {
        result.or_else(|error| match error.cause() {
            Cause::Rejected(_) | Cause::TimedOut(_) => Ok(crate::http::answer(&error)),
            // There is one: that is the cause.
            Cause::Operation(_) => match error.into_cause() {
                Cause::Operation(own) => Err(own),
                Cause::Rejected(rejected) => Ok(crate::http::refusal(&rejected)),
                Cause::TimedOut(_) => Ok(http::Response::default()),
            },
        })
    }
}
