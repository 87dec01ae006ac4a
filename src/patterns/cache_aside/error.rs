//! Why a load gave no value.
use std::{error::Error, fmt, sync::Arc, time::Duration};

/// Why a load gave no value. All who waited for the load get the same.
#[non_exhaustive]
pub enum LoadError<E> {
    /// The loader failed.
    Failed(Arc<E>),
    /// The load took longer than `hard_timeout`, or the caller waited that long, and was given up.
    TimedOut {
        /// How long that is.
        after: Duration,
    },
    /// The loader panicked while another caller drove it. Callers with a loader of another type ask by themselves.
    Panicked,
}

impl<E> LoadError<E> {
    /// The loader's error, where it gave one.
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
            Self::Panicked => f.write_str("the loader panicked in the hands of another caller"),
        }
    }
}

impl<E: Error + 'static> Error for LoadError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.failed().and_then(Error::source)
    }
}
