//! Conversions of the error of a call: into its parts, and into a standard error.
use std::{
    error::Error,
    fmt::{self, Debug, Display},
    ops::Deref,
};

use super::{CallError, Cause, History, Verdict};

/// The parts of a [`CallError`]; [`CallError::into_parts`] returns them.
#[derive(Debug)]
#[non_exhaustive]
pub struct CallErrorParts<E> {
    /// The cause that ended the call.
    pub cause: Cause<E>,
    /// The verdict on the last attempt; [`Class::Ignore`](super::Class::Ignore) for a rejection.
    pub verdict: Verdict,
    /// Number of times that the operation was started.
    pub attempts: u32,
    /// The attempts of the retry, if a retry stood around the operation and saw it fail.
    pub history: Option<History<E>>,
    /// The error of the fallback, if one ran and failed.
    pub fallback: Option<Cause<E>>,
}

impl<E> CallError<E>
where
    E: Deref,
    E::Target: Error,
{
    /// Converts the error to a standard [`Error`], for operations whose error is a pointer to one:
    /// `anyhow::Error`, or `Box<dyn Error + Send + Sync>`.
    ///
    /// Such a pointer is no [`Error`] itself, so a [`CallError`] of it is none either, and `?`
    /// cannot convert it. Text, source and everything else stay as they are.
    ///
    /// ```
    /// use std::error::Error;
    /// use steadfast::{CallError, Pipeline};
    ///
    /// async fn price(text: &str) -> Result<u32, Box<dyn Error + Send + Sync>> {
    ///     let parse = || async { Ok::<_, Box<dyn Error + Send + Sync>>(text.parse()?) };
    ///     let price = Pipeline::new().call(parse).await.map_err(CallError::into_std)?;
    ///     Ok(price)
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// assert_eq!(price("7").await.unwrap(), 7);
    /// assert_eq!(price("x").await.unwrap_err().to_string(), "invalid digit found in string");
    /// # });
    /// ```
    pub fn into_std(self) -> CallError<DynError<E>> {
        self.map_operation(DynError)
    }
}

/// A pointer to an error, such as `anyhow::Error` or `Box<dyn Error + Send + Sync>`, as an
/// [`Error`]; [`CallError::into_std`] creates it.
///
/// Text and source are those of the error behind the pointer.
pub struct DynError<E>(E);

impl<E> DynError<E> {
    /// Returns the pointer by reference, for downcasts.
    pub const fn get_ref(&self) -> &E {
        &self.0
    }

    /// Returns the pointer.
    pub fn into_inner(self) -> E {
        self.0
    }
}

impl<E: Debug> Debug for DynError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: Display> Display for DynError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E> Error for DynError<E>
where
    E: Debug + Display + Deref,
    E::Target: Error,
{
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
