//! Outcomes of a closed breaker across a change of its configuration.
use super::{
    CircuitBreakerConfig, WindowConfig,
    bads::Bads,
    plan::Plan,
    tally::{NONE, Tally, tagged},
    word::Word,
};
use crate::sync::{AtomicU64, Ordering};

impl Tally {
    /// Takes over another configuration: the plan, the windows, and the outcomes that fit them.
    /// Called under the breaker's lock. `bads` is `None` if no failure was ever recorded.
    pub(super) fn reshape(&self, word: &AtomicU64, config: &CircuitBreakerConfig, mut bads: Option<&mut Bads>) {
        let was = self.plan();
        let mut plan = Plan::of(config, was.depth());
        let mut same_windows = was.by_count() == plan.by_count() && was.by_time() == plan.by_time();
        if let (true, WindowConfig::Time { time, buckets }) = (plan.by_time(), config.window) {
            let same = |depth| self.rates.at(depth).is_some_and(|windows| windows.has_shape(time, buckets));
            if !was.by_time() || !same(was.depth()) {
                same_windows = false;
                plan = Plan::of(config, self.rates.make_room(time, buckets));
                // Before the word: a caller that sees the new generation sees its windows.
                if let Some(windows) = self.rates.at(plan.depth()) {
                    windows.reshape(time, buckets);
                }
            }
        }
        if !same_windows {
            self.newest_bad.store(NONE, Ordering::Release);
            bads.iter_mut().for_each(|bads| bads.clear_window());
        }
        self.plan.store(plan.0, Ordering::Release);
        // A success that began by the old plan must not be counted by it: the new generation makes
        // its compare-and-set fail. Time windows of an unchanged shape are kept, and belong to
        // their generation.
        if !same_windows || plan.by_count() && plan != was {
            self.renumber(word, was, plan, bads.as_deref_mut());
        }
        if !was.in_a_row() || !plan.in_a_row() {
            self.streak.store(0, Ordering::Release);
        }
        if let Some(bads) = bads {
            bads.weigh_over(config.trip.weight_period);
        }
    }

    /// Moves a closed breaker's word to the next generation, with the outcomes that its new window
    /// holds.
    fn renumber(&self, word: &AtomicU64, was: Plan, plan: Plan, bads: Option<&mut Bads>) {
        let mut seen = Word(word.load(Ordering::Acquire));
        if !seen.is_closed() {
            return; // its count is of probes; its windows are emptied when it closes
        }
        let moved = loop {
            let held = if was.by_count() && plan.by_count() { seen.filled(was.size()) } else { 0 };
            // A full window keeps its count; a window that is not full counts the outcomes that it
            // holds.
            let full = plan.by_count() && held >= plan.size();
            let next = seen.with_window(full, if full { seen.count() } else { held }).next();
            match word.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break next,
                Err(changed) => seen = Word(changed),
            }
        };
        if let (Some(bads), true) = (bads, plan.by_count()) {
            // Entries that successes had pushed out of the old window must not reappear in a larger
            // one.
            bads.forget_before(seen.count(), was.size());
            bads.shift(seen.count().wrapping_sub(moved.count()));
            bads.forget_before(moved.count(), plan.size());
            let newest = bads.newest().map_or(NONE, |number| tagged(moved, number));
            self.newest_bad.store(newest, Ordering::Release);
        }
        self.carry_streak(moved.generation());
    }

    /// Moves the consecutive failures to the next generation. A success that comes in between sees
    /// a streak of another generation, and is counted under the lock.
    fn carry_streak(&self, generation: u32) {
        let mut streak = self.streak.load(Ordering::Acquire);
        loop {
            let carried = u64::from(generation) << 32 | u64::from(streak as u32);
            match self.streak.compare_exchange(streak, carried, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(changed) => streak = changed,
            }
        }
    }
}
