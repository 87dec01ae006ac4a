//! How long the queue takes to answer.
//
// Both values are estimates. No other data is read on the strength of them, so `Relaxed` suffices,
// and a concurrent update may be lost.
use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::time::nanos;

/// Largest number of times that the time limit is doubled.
const DOUBLINGS: u32 = 10;

/// Shortest time for which a stop waits for the answer of a request that may take messages.
const LEAST: Duration = Duration::from_millis(50);

/// Recent times of answers.
#[derive(Default)]
pub(crate) struct Answers {
    /// Number of times that the time limit is doubled: once for each request in a row that timed
    /// out.
    doublings: AtomicU32,
    /// The slowest recent answer, in nanoseconds.
    slowest: AtomicU64,
}

impl Answers {
    /// Returns the time limit of a request. It grows from `base` while requests time out, so that a
    /// queue that is slow, but works, can be used; at most to `most`.
    pub(crate) fn limit(&self, base: Duration, most: Duration) -> Duration {
        base.saturating_mul(1 << self.doublings.load(Relaxed)).min(most).max(base)
    }

    /// Records a request that timed out.
    pub(crate) fn timed_out(&self) {
        let doublings = self.doublings.load(Relaxed);
        self.doublings.store((doublings + 1).min(DOUBLINGS), Relaxed);
    }

    /// Records an answer that came after this time.
    pub(crate) fn came_after(&self, time: Duration, base: Duration) {
        let slowest = self.slowest.load(Relaxed);
        self.slowest.store(nanos(time).max(slowest - slowest / 8), Relaxed);
        if time <= base && self.doublings.load(Relaxed) > 0 {
            self.doublings.store(0, Relaxed);
        }
    }

    /// Returns the time for which a wait that has to end still waits for its answer: four times
    /// that of the slowest recent answer. A request that the wait has just made may take messages.
    pub(crate) fn patience(&self, most: Duration) -> Duration {
        Duration::from_nanos(self.slowest.load(Relaxed)).saturating_mul(4).max(LEAST).min(most)
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_limit_grows_while_requests_time_out_and_falls_with_a_quick_answer() {
        let (base, most) = (Duration::from_secs(5), Duration::from_secs(15));
        let answers = Answers::default();
        assert_eq!(answers.limit(base, most), base);
        answers.timed_out();
        assert_eq!(answers.limit(base, most), base * 2);
        answers.timed_out();
        answers.came_after(Duration::from_secs(6), base);
        assert_eq!(answers.limit(base, most), most, "a slow answer keeps it");
        answers.came_after(base, base);
        assert_eq!(answers.limit(base, most), base);
        assert_eq!(answers.limit(base, Duration::from_secs(1)), base);
    }

    #[test]
    fn a_stop_waits_as_long_as_recent_answers_took() {
        let answers = Answers::default();
        let most = Duration::from_secs(5);
        assert_eq!(answers.patience(most), LEAST);
        answers.came_after(Duration::from_millis(100), most);
        assert_eq!(answers.patience(most), Duration::from_millis(400));
        (0..100).for_each(|_| answers.came_after(Duration::from_millis(1), most));
        assert_eq!(answers.patience(most), LEAST);
        answers.came_after(most, most);
        assert_eq!(answers.patience(most), most);
    }
}
