//! The spawner of background work: early refreshes, and loads whose callers were served a stale
//! value.
use std::{fmt, sync::Arc};

use crate::port::BoxFuture;

/// Spawns onto the current tokio runtime, or by the user's function.
#[derive(Clone)]
pub(super) enum Spawner {
    Tokio,
    Own(Arc<dyn Fn(BoxFuture<'static, ()>) + Send + Sync>),
}

impl Spawner {
    /// Returns `true` if spawned work would run.
    pub(super) fn is_there(&self) -> bool {
        match self {
            Self::Tokio => tokio::runtime::Handle::try_current().is_ok(),
            Self::Own(_) => true,
        }
    }

    /// Spawns the work, or drops it if there is no runtime.
    pub(super) fn spawn(&self, work: BoxFuture<'static, ()>) {
        match self {
            Self::Tokio => {
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    runtime.spawn(work);
                }
            }
            Self::Own(spawn) => spawn(work),
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
