//! The spawner of background work, which the user may replace.
//!
//! A pattern spawns no task that the user did not ask for. Where background work is the point, as
//! in an early refresh, the pattern spawns it through a [`Spawner`].
use std::{fmt, pin::Pin, sync::Arc};

/// Work to be run to its end.
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Spawns onto the current tokio runtime, or by the user's function.
#[derive(Clone, Default)]
pub(crate) enum Spawner {
    #[default]
    Tokio,
    Own(Arc<dyn Fn(Work) + Send + Sync>),
}

impl Spawner {
    /// Creates a spawner that calls the user's function.
    pub(crate) fn own(spawn: impl Fn(Work) + Send + Sync + 'static) -> Self {
        Self::Own(Arc::new(spawn))
    }

    /// Returns `true` if spawned work would run.
    pub(crate) fn is_there(&self) -> bool {
        match self {
            Self::Tokio => tokio::runtime::Handle::try_current().is_ok(),
            Self::Own(_) => true,
        }
    }

    /// Spawns the work, or drops it if there is no runtime.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Tokio => {
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    runtime.spawn(work);
                }
            }
            Self::Own(spawn) => spawn(Box::pin(work)),
        }
    }
}

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tokio => "Tokio",
            Self::Own(_) => "Own",
        })
    }
}
