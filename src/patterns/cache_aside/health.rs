//! The health of the remote tier and of the backplane: whether requests are sent, by the rate of their failures.
//!
//! One slow answer says nothing: of a thousand requests one is slow somewhere. A tier is left when half of the requests in the window fail,
//! or several in a row. While it is left, one request at a time tries whether it is back.
use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use crate::{
    sync::{AtomicU32, AtomicU64},
    time::Instant,
    window::TimeWindow,
};

const WINDOW: Duration = Duration::from_secs(10);
/// A bucket holds 16 million requests of one second, which no connection to a tier carries: none is ever full.
const BUCKETS: u32 = 10;

/// Consecutive failures after which a tier is left, whatever the window holds: a tier that went away costs few callers a time-out each.
const IN_A_ROW: u32 = 3;

/// How a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    /// With an error.
    Refused,
    /// No answer came in time, which a request alone does not prove much by.
    Slow,
}

pub(super) struct Health {
    asked: TimeWindow,
    failed: TimeWindow,
    in_a_row: AtomicU32,
    /// Until when the tier is left, in nanoseconds; 0 where it is not.
    left_until: AtomicU64,
    rest: Duration,
}

impl Health {
    pub(super) fn new(rest: Duration) -> Self {
        Self {
            asked: TimeWindow::new(WINDOW, BUCKETS),
            failed: TimeWindow::new(WINDOW, BUCKETS),
            in_a_row: AtomicU32::new(0),
            left_until: AtomicU64::new(0),
            rest,
        }
    }

    /// Returns whether a request may be sent. After the rest one caller is let through, and the others when that one had an answer.
    pub(super) fn admits(&self, now: Instant) -> bool {
        let until = self.left_until.load(SeqCst);
        if until == 0 {
            return true;
        }
        // The one that is let through may be dropped: so the next goes a rest later, not when this one has ended.
        let next = (now + self.rest).as_nanos();
        now.as_nanos() >= until && self.left_until.compare_exchange(until, next, SeqCst, SeqCst).is_ok()
    }

    /// Notes an answer.
    pub(super) fn answered(&self, now: Instant) {
        self.asked.add(0, now, 1);
        self.in_a_row.store(0, SeqCst);
        self.left_until.store(0, SeqCst);
    }

    /// Notes a failure, and leaves the tier if there are too many.
    pub(super) fn failed(&self, now: Instant, how: Failed) {
        self.asked.add(0, now, 1);
        self.failed.add(0, now, 1);
        let in_a_row = self.in_a_row.fetch_add(1, SeqCst).saturating_add(1);
        let failed = self.failed.sum(0, now);
        let half = failed * 2 >= self.asked.sum(0, now);
        let enough = how == Failed::Refused || failed >= u64::from(IN_A_ROW);
        if in_a_row >= IN_A_ROW || half && enough {
            self.left_until.store((now + self.rest).as_nanos(), SeqCst);
        }
    }
}
