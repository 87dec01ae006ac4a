//! The source's values, and the oldest value that each get may give.
use std::{collections::VecDeque, time::Duration};

use steadfast::{cache_aside::Reached, time::Instant};

pub(super) const PROCESSES: usize = 3;
pub(super) const KEYS: usize = 24;

/// A cached value: its key, its number, and a proof that the source had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) key: u32,
    pub(super) number: u64,
    pub(super) check: u64,
}

impl Value {
    pub(super) fn new(key: u32, number: u64) -> Self {
        let check = (u64::from(key) << 48 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        Self { key, number, check }
    }
}

/// The minimum that a get of one key in one process may give.
#[derive(Debug, Default, Clone)]
struct Floor {
    now: u64,
    /// Times from which the minimum is higher, for writes whose notice has not arrived.
    later: VecDeque<(Instant, u64)>,
}

/// An update that has reached the remote tier and was published; its notices may not have arrived
/// yet.
#[derive(Debug)]
struct Telling {
    by: usize,
    /// Range of the numbers of its notices.
    from: u64,
    to: u64,
    written: Vec<(usize, u64)>,
    waiting: Vec<usize>,
}

/// Notices of one process, as another receives them.
#[derive(Debug, Default, Clone)]
pub(super) struct Heard {
    /// The first notice after the subscription began; `None` without one.
    pub(super) since: Option<u64>,
    /// All notices below this number have arrived or were lost.
    pub(super) below: u64,
    pub(super) lost: VecDeque<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Truth {
    pub(super) source: [u64; KEYS],
    floors: [Vec<Floor>; PROCESSES],
    /// Minimums of updates that have reached everything, which a starting process may rely on.
    everywhere: [u64; KEYS],
    telling: Vec<Telling>,
    /// By receiver and sender.
    pub(super) heard_of: [[Heard; PROCESSES]; PROCESSES],
    /// Time for which a value may be served without a notice, by whether the update has reached the
    /// remote tier.
    pub(super) untold: Duration,
    pub(super) owed_for: Duration,
    pub(super) writers: u32,
    pub(super) putting: bool,

    pub(super) gets: u64,
    pub(super) hits: u64,
    /// Gets that drove a load or a lookup in the remote tier.
    pub(super) led: u64,
    pub(super) loads: u64,
    pub(super) errors: u64,
    /// The same while the tier was healthy: the gets that drove, and those of them that loaded
    /// without its answer, or without asking.
    pub(super) led_healthy: u64,
    pub(super) past: u64,
    pub(super) never_asked: u64,
    pub(super) slowest: Duration,
    pub(super) updates: u64,
    pub(super) pending: u64,
    pub(super) heard: u64,
    pub(super) kills: u64,
    pub(super) flips: u64,
    pub(super) total: u64,
    pub(super) violations: Vec<String>,
}

impl Truth {
    pub(super) fn new(untold: Duration, owed_for: Duration) -> Self {
        let floors = std::array::from_fn(|_| vec![Floor::default(); KEYS]);
        Self { floors, untold, owed_for, ..Self::default() }
    }

    pub(super) fn share_past(&self) -> f64 {
        self.past as f64 / (self.led_healthy as f64).max(1.0)
    }

    pub(super) fn violation(&mut self, what: String) {
        self.total += 1;
        // Some of each kind.
        let sort = |what: &str| ["took", "never had", "is older"].iter().position(|sort| what.contains(sort));
        if self.violations.iter().filter(|other| sort(other) == sort(&what)).count() < 4 {
            self.violations.push(what);
        }
    }

    pub(super) fn write(&mut self, key: usize) -> (usize, u64) {
        self.source[key] += 1;
        (key, self.source[key])
    }

    fn raise(&mut self, process: usize, written: &[(usize, u64)]) {
        for (key, number) in written {
            let floor = &mut self.floors[process][*key];
            floor.now = floor.now.max(*number);
        }
    }

    /// Records that an update has returned, with the range of its notices' numbers.
    pub(super) fn returned(
        &mut self,
        by: usize,
        written: Vec<(usize, u64)>,
        reached: Reached,
        (from, to): (u64, u64),
        now: Instant,
    ) {
        self.updates += 1;
        self.raise(by, &written);
        let everywhere = reached == Reached::Everywhere;
        let bound = if everywhere { self.untold } else { self.owed_for };
        for floors in &mut self.floors {
            for (key, number) in &written {
                floors[*key].later.push_back((now + bound, *number));
            }
        }
        if everywhere {
            for (key, number) in &written {
                self.everywhere[*key] = self.everywhere[*key].max(*number);
            }
            let waiting = (0..PROCESSES).filter(|other| *other != by).collect();
            self.telling.push(Telling { by, from, to, written, waiting });
        } else {
            self.pending += 1;
        }
    }

    /// Raises the floors of processes that have received notices meanwhile. Called when nothing
    /// makes progress at this instant.
    pub(super) fn settled(&mut self) {
        let mut telling = std::mem::take(&mut self.telling);
        let mut told = Vec::new();
        telling.retain_mut(|update| {
            update.waiting.retain(|process| {
                let heard = &self.heard_of[*process][update.by];
                let is_lost = heard.lost.iter().any(|lost| (update.from..update.to).contains(lost));
                if is_lost || heard.since.is_none_or(|since| since > update.from) {
                    return false;
                }
                let has_heard = heard.below >= update.to;
                if has_heard {
                    told.push((*process, update.written.clone()));
                }
                !has_heard
            });
            !update.waiting.is_empty()
        });
        self.heard += told.len() as u64;
        for (process, written) in told {
            self.raise(process, &written);
        }
        self.telling = telling;
    }

    /// Records the start of a process. It has no entries, and the remote tier has nothing older
    /// than the updates that have reached it.
    pub(super) fn started(&mut self, process: usize) {
        for (floor, number) in self.floors[process].iter_mut().zip(self.everywhere) {
            floor.now = number;
        }
    }

    /// Returns the minimum for a get that begins now.
    pub(super) fn floor(&mut self, process: usize, key: usize, now: Instant) -> u64 {
        let floor = &mut self.floors[process][key];
        while let Some((_, number)) = floor.later.front().filter(|(from, _)| *from <= now) {
            floor.now = floor.now.max(*number);
            floor.later.pop_front();
        }
        floor.now
    }
}
