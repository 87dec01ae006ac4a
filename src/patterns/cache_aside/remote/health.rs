//! The health of the remote tier and of the backplane: a circuit breaker on the rate of failures.
//!
//! One slow answer proves nothing, because one request in a thousand is slow anywhere. The tier is
//! suspended if half of the requests in the window fail, or several in a row. While it is
//! suspended, one request at a time probes whether it answers again.
//!
//! One pause of the server makes all requests time out that are in flight then. They say the same
//! thing, so they count once in the row: a failure counts only if its request began after the last
//! answer, and after the end of the last failure that counted.
//
// `suspended_until` is the whole state: 0 while requests are sent, or else the time of the next probe.
//
// - `admits` moves the time forward by compare-and-set, so of all callers at that time one wins.
// - `answered` stores 0 and `failed` stores a new time. If both run at once, the last store wins, and
//   the next request corrects it.
// - `in_a_row` may be off by the requests that end at the same time; it is only a threshold.
// - `row_from` only grows. Of failures that end at the same time, one moves it by compare-and-set and
//   counts; the others began before it.
//
// No other memory is published by these atomics. `SeqCst` is used because this path is not hot.
use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use crate::{
    sync::{AtomicU32, AtomicU64},
    time::{Instant, nanos},
    window::TimeWindow,
};

const WINDOW: Duration = Duration::from_secs(10);
/// Number of buckets of the window. A bucket holds 16 million requests of one second, which no
/// connection to a tier carries, so it never overflows.
const BUCKETS: u32 = 10;

/// Consecutive failures that suspend a tier, whatever the window holds, so that a tier that went
/// away costs only few callers a time-out each.
const IN_A_ROW: u32 = 3;

/// The kind of a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The tier answered with an error.
    Refused,
    /// No answer came in time. A single time-out proves little.
    Slow,
}

pub(crate) struct Health {
    asked: TimeWindow,
    failed: TimeWindow,
    in_a_row: AtomicU32,
    /// Time of the last answer, or of the last failure in the row if that is later, in nanoseconds.
    row_from: AtomicU64,
    /// Time until which the tier is suspended, in nanoseconds; 0 if it is not.
    suspended_until: AtomicU64,
    /// Cool-down, in nanoseconds.
    rest: AtomicU64,
}

impl Health {
    pub(crate) fn new(rest: Duration) -> Self {
        Self {
            asked: TimeWindow::new(WINDOW, BUCKETS),
            failed: TimeWindow::new(WINDOW, BUCKETS),
            in_a_row: AtomicU32::new(0),
            row_from: AtomicU64::new(0),
            suspended_until: AtomicU64::new(0),
            rest: AtomicU64::new(nanos(rest)),
        }
    }

    pub(crate) fn set_rest(&self, rest: Duration) {
        self.rest.store(nanos(rest), SeqCst);
    }

    fn rest(&self) -> Duration {
        Duration::from_nanos(self.rest.load(SeqCst))
    }

    /// Returns `true` if a request may be sent. While the tier is suspended, one caller per `rest`
    /// may probe it.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        let until = self.suspended_until.load(SeqCst);
        if until == 0 {
            return true;
        }
        // The probing caller may be dropped, so the next probe depends on time, not on its end.
        let next = (now + self.rest()).as_nanos();
        now.as_nanos() >= until && self.suspended_until.compare_exchange(until, next, SeqCst, SeqCst).is_ok()
    }

    /// Returns `true` while the tier is suspended.
    #[cfg_attr(not(any(feature = "console", feature = "metrics")), allow(dead_code, reason = "read by both alone"))]
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended_until.load(SeqCst) != 0
    }

    /// Records an answer.
    pub(crate) fn answered(&self, now: Instant) {
        self.asked.add(0, now, 1);
        self.row_from.fetch_max(now.as_nanos(), SeqCst);
        self.in_a_row.store(0, SeqCst);
        self.suspended_until.store(0, SeqCst);
    }

    /// Records a failure of a request that began at `began`, and suspends the tier after too many.
    pub(crate) fn failed(&self, began: Instant, now: Instant, how: Failed) {
        self.asked.add(0, now, 1);
        self.failed.add(0, now, 1);
        let in_a_row = self.count_in_row(began, now);
        let failed = self.failed.sum(0, now);
        let half = failed * 2 >= self.asked.sum(0, now);
        let enough = how == Failed::Refused || failed >= u64::from(IN_A_ROW);
        if in_a_row >= IN_A_ROW || half && enough {
            self.suspended_until.store((now + self.rest()).as_nanos(), SeqCst);
        }
    }

    /// Returns the number of failures in the row, with this one if it counts, or else 0.
    fn count_in_row(&self, began: Instant, now: Instant) -> u32 {
        let from = self.row_from.load(SeqCst);
        let counts = began.as_nanos() >= from
            && self.row_from.compare_exchange(from, now.as_nanos().max(from), SeqCst, SeqCst).is_ok();
        if counts { self.in_a_row.fetch_add(1, SeqCst).saturating_add(1) } else { 0 }
    }
}
