//! The settings of a component in use, which are replaced as a whole.
use std::{fmt, ops::Deref, sync::Arc};

use arc_swap::ArcSwap;

/// The settings in effect. A clone shares them.
pub(crate) struct Live<C>(Arc<ArcSwap<C>>);

impl<C: Copy> Live<C> {
    pub(crate) fn new(config: C) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(config)))
    }

    /// Returns a copy.
    pub(crate) fn now(&self) -> C {
        **self.0.load()
    }

    /// Borrows the settings, for code that is too hot for a copy. Not across an `.await`.
    #[inline]
    pub(crate) fn load(&self) -> impl Deref<Target = Arc<C>> {
        self.0.load()
    }

    pub(crate) fn replace(&self, config: C) {
        self.0.store(Arc::new(config));
    }
}

impl<C> Clone for Live<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C: fmt::Debug> fmt::Debug for Live<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.load().fmt(f)
    }
}
