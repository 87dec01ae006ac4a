//! The settings in effect, for whatever reads them when it starts.
use std::{fmt, sync::Arc};

use crate::{health::Check, sync::Mutex};

/// The settings that a [`Reconfigurer`](super::Reconfigurer) has put into effect. A clone shows the
/// same ones. A child that is restarted for a change reads its section here.
pub struct InEffect<S>(Arc<Mutex<State<S>>>);

struct State<S> {
    settings: Arc<S>,
    /// The parts that may run something else.
    suspects: Vec<usize>,
}

impl<S> InEffect<S> {
    /// Creates the settings that a process starts with.
    pub fn new(settings: S) -> Self {
        Self(Arc::new(Mutex::new(State { settings: Arc::new(settings), suspects: Vec::new() })))
    }

    /// Returns the settings.
    pub fn get(&self) -> Arc<S> {
        self.0.lock().settings.clone()
    }

    /// Returns `false` after a change that failed and could not be undone, until a later one
    /// succeeds.
    pub fn is_whole(&self) -> bool {
        self.0.lock().suspects.is_empty()
    }

    pub(super) fn suspects(&self) -> Vec<usize> {
        self.0.lock().suspects.clone()
    }

    pub(super) fn suspect(&self, parts: impl IntoIterator<Item = usize>) {
        let mut state = self.0.lock();
        state.suspects.extend(parts);
        state.suspects.sort_unstable();
        state.suspects.dedup();
    }

    pub(super) fn set(&self, settings: Arc<S>) {
        self.0.lock().settings = settings;
    }

    /// Notes that all parts run these settings.
    pub(super) fn set_whole(&self, settings: Arc<S>) {
        *self.0.lock() = State { settings, suspects: Vec::new() };
    }
}

impl<S: Send + Sync + 'static> InEffect<S> {
    /// Returns a required local check of [`health`](crate::health), which fails while a change is
    /// applied in part.
    pub fn check(&self, name: &str) -> Check {
        let state = self.clone();
        let check = move || {
            let is_whole = state.is_whole();
            async move { if is_whole { Ok(()) } else { Err("a change of the settings is applied in part") } }
        };
        Check::local(name, check)
    }
}

impl<S> From<S> for InEffect<S> {
    fn from(settings: S) -> Self {
        Self::new(settings)
    }
}

impl<S> Clone for InEffect<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S> fmt::Debug for InEffect<S> {
    /// Settings may have what a log must not show.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InEffect").field("is_whole", &self.is_whole()).finish_non_exhaustive()
    }
}
