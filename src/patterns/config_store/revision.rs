//! A revision as a program holds it.
use std::{fmt, ops::Deref, sync::Arc};

use super::{Documents, RevisionInfo, documents::BoxError, state::Known};

/// A revision of the settings. It is dereferenced to the settings, and never changes.
pub struct Revision<T> {
    pub(super) info: RevisionInfo,
    pub(super) value: Arc<T>,
    /// The layers that were parsed.
    pub(super) documents: Documents,
    pub(super) known: Known,
}

impl<T> Revision<T> {
    /// Returns the number.
    pub const fn number(&self) -> u64 {
        self.info.number
    }

    /// Returns the settings.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Returns author, reason, time and digest.
    pub const fn info(&self) -> &RevisionInfo {
        &self.info
    }
}

impl<T> Deref for Revision<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> fmt::Debug for Revision<T> {
    /// Shows the description alone: settings may have what a log must not show.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Revision").field("info", &self.info).finish_non_exhaustive()
    }
}

/// The refusal of a revision by the program. Any error becomes one by `?` or `into`.
pub struct Veto(pub(super) BoxError);

impl Veto {
    /// Creates a veto with a reason.
    pub fn new(reason: impl Into<BoxError>) -> Self {
        Self(reason.into())
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Veto {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}

impl fmt::Debug for Veto {
    /// Shows no reason, which may quote a value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Veto(..)")
    }
}

/// Settings by documents: the user's function.
pub(super) type Load<T> = dyn Fn(&Documents) -> Result<T, BoxError> + Send + Sync;
