//! A count of what is in progress, lowered by guards.
use crate::sync::{AtomicU32, Ordering};

/// Number of things in progress: each guard counts for its number until it is dropped.
///
/// All accesses are `SeqCst`, because one user compares the count with another atomic: a task
/// enters and then reads whether there is room, and another task makes room and then reads the
/// count.
#[derive(Default)]
pub(crate) struct InProgress(AtomicU32);

/// Part of an [`InProgress`].
pub(crate) struct InProgressGuard<'a> {
    count: &'a InProgress,
    n: u32,
}

impl InProgress {
    /// Returns the current number.
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Counts `n` more until the guard is dropped.
    pub(crate) fn enter(&self, n: u32) -> InProgressGuard<'_> {
        self.0.fetch_add(n, Ordering::SeqCst);
        InProgressGuard { count: self, n }
    }

    /// Counts `n` more until the guard is dropped, unless they would be more than `most`.
    #[allow(dead_code, reason = "used by a room of a group")]
    pub(crate) fn enter_within(&self, n: u32, most: u32) -> Option<InProgressGuard<'_>> {
        let more = |now: u32| now.checked_add(n).filter(|sum| *sum <= most);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        Some(InProgressGuard { count: self, n })
    }

    /// Counts one if nothing is in progress.
    pub(crate) fn enter_alone(&self) -> Option<InProgressGuard<'_>> {
        let is_alone = self.0.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        // Not `then_some`: a guard that is built and dropped would lower the count.
        is_alone.then(|| InProgressGuard { count: self, n: 1 })
    }
}

impl Drop for InProgressGuard<'_> {
    fn drop(&mut self) {
        self.count.0.fetch_sub(self.n, Ordering::SeqCst);
    }
}
