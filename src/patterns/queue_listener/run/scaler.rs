//! The number of tasks of a run. A state machine without time.

/// The number of tasks of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scaler {
    /// Minimum number of tasks, also when there is no work.
    pub(crate) min: u32,
    /// Maximum number of tasks.
    pub(crate) max: u32,
    /// Current number of tasks, including those to be started.
    pub(crate) tasks: u32,
    /// Number of tasks to be started.
    to_start: u32,
    /// `true` if no more tasks start.
    closed: bool,
}

impl Scaler {
    pub(crate) const fn new(min: u32, max: u32) -> Self {
        Self { min, max, tasks: 0, to_start: 0, closed: false }
    }

    /// Grows to the wanted number of tasks, within the bounds. Returns the number of tasks to be
    /// started.
    pub(crate) fn grow_to(&mut self, wanted: u32) -> u32 {
        let wanted = wanted.clamp(self.min, self.max);
        let more = if self.closed { 0 } else { wanted.saturating_sub(self.tasks) };
        self.tasks += more;
        self.to_start += more;
        more
    }

    /// Decides whether a task that found nothing for a long time may end. It may not if there was a
    /// call since its last poll, or if only `min` tasks are left.
    pub(crate) fn may_end(&mut self, has_looked: bool, min: u32) -> bool {
        let may = self.closed || (self.tasks > min && has_looked);
        if may {
            self.tasks = self.tasks.saturating_sub(1);
        }
        may
    }

    /// Decides whether a task ends because there are more than `max`.
    pub(crate) fn ends_surplus(&mut self) -> bool {
        let ends = self.tasks > self.max;
        if ends {
            self.tasks -= 1;
        }
        ends
    }

    /// Records that a task ended without asking.
    pub(crate) fn ended(&mut self) {
        self.tasks = self.tasks.saturating_sub(1);
    }

    /// Takes the number of tasks to be started.
    pub(crate) fn take_to_start(&mut self) -> u32 {
        std::mem::take(&mut self.to_start)
    }

    pub(crate) fn has_to_start(&self) -> bool {
        self.to_start > 0
    }

    /// Starts no more tasks.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.tasks -= std::mem::take(&mut self.to_start);
    }
}

/// Returns the number of tasks for a number of waiting messages: 10 below 100, 50 below 1,000, else
/// 100. The default rule.
pub(in super::super) fn tasks_by_depth(waiting: u64) -> u32 {
    match waiting {
        0..100 => 10,
        100..1_000 => 50,
        _ => 100,
    }
}
