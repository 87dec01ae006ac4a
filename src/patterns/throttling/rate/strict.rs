//! The strict limit: at most n permits in any window, by the times of the last n permits.
use std::collections::VecDeque;

use super::Quota;
use crate::time::nanos;

/// One strict limit. The caller holds the lock.
pub(super) struct Strict {
    permits: usize,
    window: u64,
    /// Time of use of each permit, oldest first, with reserved ones in the future. At most
    /// `permits` that still count, and the reserved ones.
    used: VecDeque<u64>,
}

impl Strict {
    pub(super) fn new(quota: &Quota) -> Self {
        Self { permits: quota.permits as usize, window: nanos(quota.per), used: VecDeque::new() }
    }

    /// Takes `n` permits at `now`, or reserves them for later, not before `pause` and not after
    /// `latest`. Returns the time from which they may be used, or the time that they must wait. `n`
    /// must be at most the permits of a window.
    pub(super) fn reserve(&mut self, n: u32, now: u64, pause: u64, latest: u64) -> Result<u64, u64> {
        while self.used.front().is_some_and(|at| at.saturating_add(self.window) <= now) {
            self.used.pop_front();
        }
        // The last permit that must leave the window before the new ones enter it.
        let blocking = (self.used.len() + n as usize).checked_sub(self.permits + 1);
        let ready = blocking.map_or(now, |i| self.used[i].saturating_add(self.window)).max(now).max(pause);
        // In order of arrival: never before an earlier reservation.
        let ready = self.used.back().map_or(ready, |last| ready.max(*last));
        if ready > latest {
            return Err(ready - now);
        }
        self.used.extend(std::iter::repeat_n(ready, n as usize));
        Ok(ready)
    }

    /// Gives back the last `n` permits, all of which are reserved.
    pub(super) fn give_back_last(&mut self, n: u64) {
        self.used.truncate(self.used.len().saturating_sub(n as usize));
    }

    /// Gives back up to `n` permits that were used at `at`; fewer if some have left the window
    /// since.
    pub(super) fn give_back_at(&mut self, n: u32, at: u64) {
        let from = self.used.partition_point(|used| *used < at);
        let to = self.used.partition_point(|used| *used <= at);
        self.used.drain(from..to.min(from + n as usize));
    }

    /// Returns the number of permits that count at `now`.
    pub(super) fn used(&self, now: u64) -> u64 {
        self.used.iter().filter(|at| at.saturating_add(self.window) > now).count() as u64
    }

    /// Starts again, with `used` permits used now, at most `permits`.
    pub(super) fn restart(&mut self, used: u64, now: u64) {
        self.used.clear();
        self.used.extend(std::iter::repeat_n(now, (used as usize).min(self.permits)));
    }

    /// Changes the limit; used permits stay used.
    pub(super) fn change(&mut self, quota: &Quota) {
        self.permits = quota.permits as usize;
        self.window = nanos(quota.per);
    }
}
