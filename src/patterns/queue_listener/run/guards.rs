//! Guards of the capacity of a run: each returns on drop what it stands for.
use crate::queue_listener::{lease::Lease, run::state::RunState};

/// Capacity reserved for a poll; returned on drop.
pub(crate) struct Reserved<'a>(&'a RunState, pub(crate) usize);

impl<'a> Reserved<'a> {
    pub(crate) fn of(run: &'a RunState) -> Option<Self> {
        let n = run.reserve();
        (n > 0).then_some(Self(run, n))
    }

    /// Reserves none: the messages of a wait are counted when they arrive.
    pub(crate) const fn nothing(run: &'a RunState) -> Self {
        Self(run, 0)
    }

    /// Takes the reserved capacity for messages that arrived.
    pub(crate) fn used(&mut self) -> usize {
        std::mem::take(&mut self.1)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.1 > 0 {
            self.0.intake.ended(self.1);
        }
    }
}

/// The probation of a suspect message; ends on drop.
pub(crate) struct Probation<'a>(pub(crate) &'a RunState, pub(crate) Lease);

impl Drop for Probation<'_> {
    fn drop(&mut self) {
        self.0.end_probation(&self.1);
    }
}
