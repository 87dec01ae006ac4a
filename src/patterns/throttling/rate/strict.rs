//! "Never more than n in any window": the times of the last n permits.
use std::collections::VecDeque;

use super::Quota;
use crate::time::nanos;

/// One strict limit. Its user holds the lock.
pub(super) struct Strict {
    permits: usize,
    window: u64,
    /// When each permit was (or, reserved, will be) used, oldest first; at most `permits` that still count, and the reserved.
    used: VecDeque<u64>,
}

impl Strict {
    pub(super) fn new(quota: &Quota) -> Self {
        Self { permits: quota.permits as usize, window: nanos(quota.per), used: VecDeque::new() }
    }

    /// Takes `n` permits at `now` or in the future, not before `pause` and if that is not beyond `latest`: when they may be used. `n` must be
    /// at most the permits of a window.
    pub(super) fn reserve(&mut self, n: u32, now: u64, pause: u64, latest: u64) -> Result<u64, u64> {
        while self.used.front().is_some_and(|at| at.saturating_add(self.window) <= now) {
            self.used.pop_front();
        }
        // The last permit that must have left the window before these enter it.
        let blocking = (self.used.len() + n as usize).checked_sub(self.permits + 1);
        let ready = blocking.map_or(now, |i| self.used[i].saturating_add(self.window)).max(now).max(pause);
        // In order of arrival: never before somebody who reserved earlier.
        let ready = self.used.back().map_or(ready, |last| ready.max(*last));
        if ready > latest {
            return Err(ready - now);
        }
        self.used.extend(std::iter::repeat_n(ready, n as usize));
        Ok(ready)
    }

    /// Gives back the last `n` permits, all reserved.
    pub(super) fn give_back_last(&mut self, n: u64) {
        self.used.truncate(self.used.len().saturating_sub(n as usize));
    }

    /// Gives back up to `n` permits that were used at `at`; fewer where some have left the window meanwhile.
    pub(super) fn give_back_at(&mut self, n: u32, at: u64) {
        let from = self.used.partition_point(|used| *used < at);
        let to = self.used.partition_point(|used| *used <= at);
        self.used.drain(from..to.min(from + n as usize));
    }

    /// How many permits count at `now`.
    pub(super) fn used(&self, now: u64) -> u64 {
        self.used.iter().filter(|at| at.saturating_add(self.window) > now).count() as u64
    }

    /// Begins anew, with so many permits used now, at most all.
    pub(super) fn restart(&mut self, used: u64, now: u64) {
        self.used.clear();
        self.used.extend(std::iter::repeat_n(now, (used as usize).min(self.permits)));
    }

    /// Changes the limit; what was used stays used.
    pub(super) fn change(&mut self, quota: &Quota) {
        self.permits = quota.permits as usize;
        self.window = nanos(quota.per);
    }
}
