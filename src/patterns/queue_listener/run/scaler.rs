//! How many tasks there are: who may end, and how many are to begin. A machine without time.

/// The tasks of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Staff {
    /// As many stay when there is nothing to do.
    pub(crate) min: u32,
    /// There are never more.
    pub(crate) max: u32,
    /// How many there are, those that are to begin among them.
    pub(crate) tasks: u32,
    /// The most that there were.
    pub(crate) most: u32,
    /// How many are to begin and have not.
    to_begin: u32,
    /// Nobody begins any more.
    closed: bool,
}

impl Staff {
    pub(crate) const fn new(min: u32, max: u32) -> Self {
        Self { min, max, tasks: 0, most: 0, to_begin: 0, closed: false }
    }

    /// Has as many begin as are missing to so many; gives how many that are.
    pub(crate) fn grow_to(&mut self, wanted: u32) -> u32 {
        let wanted = wanted.clamp(self.min, self.max);
        let more = if self.closed { 0 } else { wanted.saturating_sub(self.tasks) };
        self.tasks += more;
        self.to_begin += more;
        self.most = self.most.max(self.tasks);
        more
    }

    /// There is a reason to look: somebody has to be there.
    pub(crate) fn call(&mut self) -> u32 {
        self.grow_to(1)
    }

    /// One that found nothing for long asks to end. It must not where there was a reason to look since it last did, or where only so
    /// many are left.
    pub(crate) fn may_end(&mut self, has_looked: bool, min: u32) -> bool {
        let may = self.closed || (self.tasks > min && has_looked);
        if may {
            self.tasks = self.tasks.saturating_sub(1);
        }
        may
    }

    /// One has ended that could not ask.
    pub(crate) fn ended(&mut self) {
        self.tasks = self.tasks.saturating_sub(1);
    }

    /// Takes those that are to begin.
    pub(crate) fn beginners(&mut self) -> u32 {
        std::mem::take(&mut self.to_begin)
    }

    pub(crate) fn has_beginners(&self) -> bool {
        self.to_begin > 0
    }

    /// Nobody begins any more.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.tasks -= std::mem::take(&mut self.to_begin);
    }
}

/// How many tasks so many waiting messages ask for: 10 below 100, 50 below 1,000, else 100. The default rule.
pub fn tasks_by_depth(waiting: u64) -> u32 {
    match waiting {
        0..100 => 10,
        100..1_000 => 50,
        _ => 100,
    }
}
