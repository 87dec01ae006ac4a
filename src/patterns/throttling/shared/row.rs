//! The limit's row, and the time in which it counts; no I/O.
//!
//! The row has the theoretical arrival time of the
//! [algorithm](crate::throttling::RateMode::Smooth), and the time at which it was written. Both are
//! in *shared time*: each process reads the wall clock once, when it begins, goes on with its
//! monotonic clock, and never falls behind a time that it reads in the row (a hybrid logical clock:
//! Kulkarni et al., "Logical Physical Clocks", 2014). So later jumps of a wall clock do not matter,
//! and processes that began with different times converge to the one furthest ahead. A clock that
//! is ahead by `d` counts as if it had waited for `d`: that gives away at most one burst, once.
use bytes::Bytes;

use super::super::rate::gcra::Pace;
use crate::{
    port::{PortError, PortErrorKind},
    record::{Unreadable, check_form},
    sync::{AtomicU64, Ordering},
    time::{Clock, Timestamp},
};

/// Names the form of a row, so that another one can follow.
const FORM: &str = "rate 1";

/// The time that processes share, in nanoseconds since 1970.
pub(super) struct SharedTime {
    clock: Clock,
    /// The difference to the clock. It only grows. `fetch_max` on one word, so `Relaxed` suffices.
    ahead: AtomicU64,
}

impl SharedTime {
    /// Creates shared time; the wall clock reads `wall` now.
    pub(super) fn new(clock: Clock, wall: Timestamp) -> Self {
        let wall = wall.as_millis().saturating_mul(1_000_000).min(BEYOND / 2);
        let ahead = wall.saturating_sub(clock.now().as_nanos());
        Self { clock, ahead: AtomicU64::new(ahead) }
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.now().as_nanos().saturating_add(self.ahead.load(Ordering::Relaxed))
    }

    /// Advances to a time that another process has seen.
    pub(super) fn seen(&self, time: u64) {
        self.ahead.fetch_max(time.saturating_sub(self.clock.now().as_nanos()), Ordering::Relaxed);
    }
}

/// Upper bound of all times in a row (the year 2262). A later time was not written by a process
/// that shares this limit.
const BEYOND: u64 = 1 << 63;

/// The content of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Row {
    /// The theoretical arrival time.
    pub(super) tat: u64,
    /// The time at which the row was written.
    pub(super) written: u64,
}

/// Maximum distance of a row's time ahead of this process's time: no two wall clocks differ by
/// more. A row further ahead was misread or damaged; if it were believed, this process would admit
/// no call for as long.
const AHEAD: u64 = 24 * 3600 * 1_000_000_000;

impl Row {
    /// Returns `true` if a process that shares this limit can have written the row by `now`. Other
    /// processes reserve with the same patience as this one, give or take a day.
    pub(super) fn is_plausible(self, pace: Pace, now: u64, patience: u64) -> bool {
        let latest = now.saturating_add(AHEAD);
        self.written <= latest && self.tat <= latest.saturating_add(pace.span).saturating_add(patience)
    }

    pub(super) fn encode(self) -> Bytes {
        format!("{FORM} {} {}", self.tat, self.written).into()
    }

    pub(super) fn decode(value: &[u8]) -> Result<Self, PortError> {
        let corrupt = || PortError::new(PortErrorKind::Corrupt, "the row of a shared rate limit is malformed");
        let text = std::str::from_utf8(value).map_err(|_| corrupt())?;
        let at = text.match_indices(' ').nth(1).map(|(at, _)| at).ok_or_else(corrupt)?;
        let (form, rest) = (&text[..at], &text[at + 1..]);
        check_form(FORM, form).map_err(|reason| match reason {
            Unreadable::TooNew => {
                let message = "the row of a shared rate limit was written by a newer release";
                PortError::new(PortErrorKind::TooNew, message)
            }
            Unreadable::Foreign => corrupt(),
        })?;
        let (tat, written) = rest.split_once(' ').ok_or_else(corrupt)?;
        match (tat.parse(), written.parse()) {
            (Ok(tat), Ok(written)) if tat < BEYOND && written < BEYOND => Ok(Self { tat, written }),
            _ => Err(corrupt()),
        }
    }
}

/// Permits that were taken from a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) permits: u32,
    /// The arrival time after the permits.
    pub(super) tat: u64,
    /// Time that the permits must wait.
    pub(super) wait: u64,
}

/// Takes as many permits as are available at `now`, up to `want`. If there are fewer than `least`,
/// reserves `least` for later if the wait is within `patience`, and otherwise returns that wait.
/// `least` must be at most the burst of the pace.
pub(super) fn grant(pace: Pace, tat: u64, now: u64, least: u32, want: u32, patience: u64) -> Result<Grant, u64> {
    let from = tat.max(now);
    let there = now.saturating_add(pace.span).saturating_sub(from) / pace.interval.max(1);
    let permits = u32::try_from(there).unwrap_or(u32::MAX).min(want).max(least);
    let tat = from.saturating_add(pace.interval.saturating_mul(u64::from(permits)));
    let wait = tat.saturating_sub(pace.span).saturating_sub(now);
    if wait <= patience { Ok(Grant { permits, tat, wait }) } else { Err(wait) }
}

/// Returns the pace of a share of a limit: slower and with a smaller burst in proportion, at least
/// one permit.
pub(super) fn share_of(pace: Pace, share: f64) -> Pace {
    let interval = (pace.interval as f64 / share).ceil() as u64;
    // Not below one permit at once.
    Pace { interval, span: pace.span.max(interval) }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;
    use crate::throttling::Quota;
    use proptest::prelude::*;

    #[test]
    fn a_row_is_read_as_it_was_written_and_nothing_else_is() {
        let row = Row { tat: 1_700_000_000_123_456_789, written: 1_700_000_000_000_000_000 };
        assert_eq!(Row::decode(&row.encode()).unwrap(), row);
        assert_eq!(Row::decode(b"rate 2 1 1").unwrap_err().kind(), PortErrorKind::TooNew);
        for bad in [
            "",
            "rate 1",
            "rate 1 1",
            "rate x 1 1",
            "rate 0 1 1",
            "rate 1 x 1",
            "rate 1 18446744073709551615 1",
            "leader 1 1",
            "rate 1 1 1 1",
        ] {
            assert_eq!(Row::decode(bad.as_bytes()).unwrap_err().kind(), PortErrorKind::Corrupt, "{bad}");
        }
    }

    #[test]
    fn shared_time_never_falls_behind_what_it_saw() {
        let (clock, driver) = Clock::manual();
        let time = SharedTime::new(clock, Timestamp::from_millis(5_000));
        assert_eq!(time.now(), 5_000_000_000);
        time.seen(4_000_000_000);
        assert_eq!(time.now(), 5_000_000_000);
        time.seen(9_000_000_000);
        driver.advance(std::time::Duration::from_secs(1));
        assert_eq!(time.now(), 10_000_000_000);
    }

    proptest! {
        /// Compared with counting by hand: granted permits fit every window, and refused ones would
        /// not have.
        #[test]
        fn grants_keep_the_limit_and_refuse_nothing_that_fits(
            permits in 1u32..20, burst in 1u32..20,
            asks in prop::collection::vec((0u64..400, 1u32..5, 0u32..12, 0u64..300), 1..60),
        ) {
            let quota = Quota::new(permits, std::time::Duration::from_nanos(1000)).burst(burst);
            let pace = Pace::new(&quota);
            let (mut now, mut tat, mut given): (u64, u64, Vec<(u64, u64)>) = (10_000, 0, Vec::new());
            for (passes, least, more, patience) in asks {
                now += passes;
                let least = least.min(burst);
                match grant(pace, tat, now, least, least + more, patience) {
                    Ok(taken) => {
                        prop_assert!(taken.permits >= least && taken.permits <= least + more && taken.wait <= patience);
                        tat = taken.tat;
                        given.push((now + taken.wait, u64::from(taken.permits)));
                    }
                    Err(wait) => {
                        prop_assert!(wait > patience);
                        // Exact: rejected one nanosecond earlier, granted then.
                        prop_assert!(grant(pace, tat, now + wait, least, least, 0).is_ok());
                        prop_assert!(grant(pace, tat, now + wait - 1, least, least, 0).is_err());
                    }
                }
                for (i, (from, _)) in given.iter().enumerate() {
                    let in_window: u64 = given[i..].iter().map(|(_, n)| n).sum();
                    let to = given[given.len() - 1].0;
                    prop_assert!(in_window * pace.interval <= (to - from) + pace.span);
                }
            }
        }
    }
}
