//! The settings of a component in use, which are replaced as a whole.
use std::{fmt, ops::Deref, sync::Arc};

use arc_swap::ArcSwap;

use super::ConfigError;

/// Applies the `newest` settings to parts that have copies of them, until the copies are the newest
/// ones. Concurrent changes may apply theirs in any order, and the newest stand in the end. No lock
/// is held meanwhile: `apply` may run hooks.
///
/// # Errors
/// Those of `apply`.
pub(crate) fn apply_newest<C: PartialEq>(
    newest: impl Fn() -> C,
    apply: impl Fn(&C) -> Result<(), ConfigError>,
) -> Result<(), ConfigError> {
    let mut config = newest();
    loop {
        apply(&config)?;
        let now = newest();
        if now == config {
            return Ok(());
        }
        config = now;
    }
}

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

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use std::cell::Cell;

    use super::apply_newest;

    /// The older of two concurrent changes was the last one to apply its settings, and they stayed.
    #[test]
    fn settings_that_change_while_they_are_applied_are_applied_again() {
        let (newest, applied) = (Cell::new(1), Cell::new(0));
        let apply = |config: &u32| {
            // Another change replaces and applies its settings first.
            if newest.get() < 3 {
                newest.set(newest.get() + 1);
                applied.set(newest.get());
            }
            applied.set(*config);
            Ok(())
        };
        apply_newest(|| newest.get(), apply).unwrap();
        assert_eq!((newest.get(), applied.get()), (3, 3));
    }
}
