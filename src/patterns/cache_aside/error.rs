//! The error of a load.
use std::{error::Error, fmt, sync::Arc, time::Duration};

/// The error of a load. All callers that waited for the load get the same.
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
}

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
            Self::TimedOut { after } => write!(f, "the load took longer than {after:?}"),
            Self::Panicked => f.write_str("the shared loader panicked"),
        }
    }
}

impl<E: Error + 'static> Error for LoadError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.failed().and_then(Error::source)
    }
}
