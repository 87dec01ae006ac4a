//! Where work goes that nobody waits for: refreshes ahead, loads whose callers were served a stale value.
use std::{fmt, sync::Arc};

use crate::port::BoxFuture;

/// A task of the current tokio runtime, or what the user says.
#[derive(Clone)]
pub(super) enum Spawner {
    Tokio,
    Own(Arc<dyn Fn(BoxFuture<'static, ()>) + Send + Sync>),
}

impl Spawner {
    /// Whether anything would run what is spawned.
    pub(super) fn is_there(&self) -> bool {
        match self {
            Self::Tokio => tokio::runtime::Handle::try_current().is_ok(),
            Self::Own(_) => true,
        }
    }

    /// Runs it, or drops it where there is nothing that could.
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
