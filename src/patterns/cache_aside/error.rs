//! The error of a load.
use std::{error::Error, fmt, sync::Arc, time::Duration};

/// The error of a load. All callers that waited for the load get the same.
///
/// One conversion turns it into the error of a service, whatever the loader's error is:
///
/// ```
/// use std::time::Duration;
/// use steadfast::cache_aside::{CacheAside, CacheAsideConfig, LoadAborted, LoadError};
///
/// #[derive(Debug, Clone)]
/// struct DbError; // the loader's own error
///
/// #[derive(Debug)]
/// enum AppError {
///     Db(DbError),
///     Cache(LoadAborted),
/// }
///
/// impl From<DbError> for AppError {
///     fn from(error: DbError) -> Self {
///         Self::Db(error)
///     }
/// }
///
/// impl<E: Into<AppError> + Clone> From<LoadError<E>> for AppError {
///     fn from(error: LoadError<E>) -> Self {
///         error.into_loader().map_or_else(Self::Cache, Into::into)
///     }
/// }
///
/// async fn price(prices: &CacheAside<u64, u32>) -> Result<u32, AppError> {
///     Ok(prices.get_or_load(&7, || async { Err::<u32, _>(DbError) }).await?)
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let prices = CacheAside::new(CacheAsideConfig::default()).unwrap();
/// assert!(matches!(price(&prices).await, Err(AppError::Db(DbError))));
/// # });
/// ```
///
/// A loader's error that is not `Clone` comes out in its `Arc`, by
/// [`into_shared`](Self::into_shared). Then the conversion has `Arc<E>: Into<AppError>` as its
/// bound.
#[non_exhaustive]
pub enum LoadError<E> {
    /// The loader failed.
    Failed(Arc<E>),
    /// The load, or the caller's wait for it, took longer than `hard_timeout`.
    TimedOut {
        /// The time limit.
        after: Duration,
    },
    /// The loader panicked while another caller drove it. Callers with a loader of another type
    /// load by themselves.
    Panicked,
}

impl<E> LoadError<E> {
    /// Returns the loader's error, if it gave one.
    pub fn failed(&self) -> Option<&E> {
        match self {
            Self::Failed(error) => Some(error),
            Self::TimedOut { .. } | Self::Panicked => None,
        }
    }

    /// Returns the loader's error by value, cloned if other callers share it.
    ///
    /// # Errors
    /// The reason, if the loader gave no error.
    pub fn into_loader(self) -> Result<E, LoadAborted>
    where
        E: Clone,
    {
        self.into_shared().map(Arc::unwrap_or_clone)
    }

    /// Returns the loader's error, which all callers that waited for the load share.
    ///
    /// # Errors
    /// The reason, if the loader gave no error.
    pub fn into_shared(self) -> Result<Arc<E>, LoadAborted> {
        match self {
            Self::Failed(error) => Ok(error),
            Self::TimedOut { after } => Err(LoadAborted::TimedOut { after }),
            Self::Panicked => Err(LoadAborted::Panicked),
        }
    }
}

/// The end of a load whose loader gave no error: a [`LoadError`] without the loader's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadAborted {
    /// As [`LoadError::TimedOut`].
    TimedOut {
        /// The time limit.
        after: Duration,
    },
    /// As [`LoadError::Panicked`].
    Panicked,
}

impl fmt::Display for LoadAborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut { after } => write!(f, "the load took longer than {after:?}"),
            Self::Panicked => f.write_str("the shared loader panicked"),
        }
    }
}

impl Error for LoadAborted {}

impl<E> Clone for LoadError<E> {
    fn clone(&self) -> Self {
        match self {
            Self::Failed(error) => Self::Failed(error.clone()),
            Self::TimedOut { after } => Self::TimedOut { after: *after },
            Self::Panicked => Self::Panicked,
        }
    }
}

impl<E: fmt::Debug> fmt::Debug for LoadError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => f.debug_tuple("Failed").field(error).finish(),
            Self::TimedOut { after } => f.debug_struct("TimedOut").field("after", after).finish(),
            Self::Panicked => f.write_str("Panicked"),
        }
    }
}

impl<E: fmt::Display> fmt::Display for LoadError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::TimedOut { after } => LoadAborted::TimedOut { after: *after }.fmt(f),
            Self::Panicked => LoadAborted::Panicked.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for LoadError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.failed().and_then(Error::source)
    }
}
