//! A term, as the leader's work sees it.
//
// A `Term` is written by one `Leadership` and read by any number of tasks.
//
// - `since`, `warning` and `deadline` are times in nanoseconds. Only `counted` stores them, and
//   `TermTimes` never moves them back, so a reader that sees an old value stops too early, never too
//   late. Each reader uses one of the three at a time; no decision needs two of them to agree.
// - `ended` is set once and never cleared. `deadline()` reads it first: a renewal that is counted
//   after the end stores a later deadline, which no reader uses any more.
// - `told` wakes waiting tasks. `end` stores `ended` before it sends on `told`, so a task that was
//   woken by it sees the end.
//
// No other memory is published through these atomics: Release and Acquire are stronger than the
// three times need.
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::sync::watch;

use super::{LeaderElectionConfig, term_times::TermTimes};
use crate::{
    config::Name,
    port::FencingToken,
    race::{First, race},
    time::{Clock, Instant},
};

/// A term of office: its deadline, and the token for its writes. A clone is the same term.
#[derive(Clone)]
pub struct Term {
    shared: Arc<TermState>,
    clock: Clock,
}

struct TermState {
    name: Name,
    token: FencingToken,
    /// Time from which the holder must not act; renewals move it forward.
    deadline: AtomicU64,
    /// `true` once the term has ended, whatever the deadline says. It is never reset, so a renewal
    /// that is counted late revives nothing.
    ended: AtomicBool,
    /// Time at which the work is told to end.
    warning: AtomicU64,
    /// Start of the last call that granted or renewed the term.
    since: AtomicU64,
    told: watch::Sender<bool>,
}

impl Term {
    pub(super) fn new(
        name: &Name,
        token: FencingToken,
        clock: &Clock,
        config: &LeaderElectionConfig,
        count: TermTimes,
    ) -> Self {
        let shared = TermState {
            name: name.clone(),
            token,
            deadline: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            warning: AtomicU64::new(0),
            since: AtomicU64::new(0),
            told: watch::Sender::new(false),
        };
        let term = Self { shared: Arc::new(shared), clock: clock.clone() };
        term.counted(config, count);
        term
    }

    /// Returns the name that is led.
    pub fn name(&self) -> &Name {
        &self.shared.name
    }

    /// Returns the fencing token for writes: above that of every earlier term, below every later
    /// one.
    pub fn token(&self) -> FencingToken {
        self.shared.token
    }

    /// Returns `true` if the term lasts by the clock at this moment.
    ///
    /// This suffices for actions that complete at once. Longer actions need a
    /// [fenced](super::Fenced) resource.
    pub fn is_leader(&self) -> bool {
        self.clock.now() < self.deadline()
    }

    /// Returns the time from which the holder must not act, unless the term is renewed before. Once
    /// the term has ended this is the clock's origin.
    pub fn deadline(&self) -> Instant {
        if self.shared.ended.load(Ordering::Acquire) {
            return Instant::default();
        }
        Instant::from_nanos(self.shared.deadline.load(Ordering::Acquire))
    }

    /// Waits until the work is to end, because the term is about to run out or to be given up.
    ///
    /// Work that has not ended by the [deadline](Self::deadline) of a term that ran out is dropped.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn lost(&self) {
        let mut told = self.shared.told.subscribe();
        while !*told.borrow_and_update() {
            let warning = Instant::from_nanos(self.shared.warning.load(Ordering::Acquire));
            if self.clock.now() >= warning {
                return;
            }
            // Wakes on a message or at the warning, which a renewal may have moved meanwhile.
            match race(told.changed(), self.clock.sleep_until(warning)).await {
                First::One(_) | First::Other(()) => {}
            }
        }
    }

    /// Returns `true` if the work was told to end.
    pub fn is_ending(&self) -> bool {
        let warning = Instant::from_nanos(self.shared.warning.load(Ordering::Acquire));
        *self.shared.told.borrow() || self.clock.now() >= warning
    }

    pub(super) fn counted(&self, config: &LeaderElectionConfig, count: TermTimes) {
        self.shared.since.store(count.since().as_nanos(), Ordering::Release);
        self.shared.warning.store(count.warning(config).as_nanos(), Ordering::Release);
        self.shared.deadline.store(count.deadline(config).as_nanos(), Ordering::Release);
    }

    /// Tells the work to end.
    pub(super) fn tell(&self) {
        self.shared.told.send_replace(true);
    }

    /// Ends the term now, whatever the clock says.
    pub(super) fn end(&self) {
        self.shared.ended.store(true, Ordering::Release);
        self.tell();
    }

    pub(super) fn since(&self) -> Instant {
        Instant::from_nanos(self.shared.since.load(Ordering::Acquire))
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term")
            .field("name", self.name())
            .field("token", &self.token())
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}
