//! Snapshot of a breaker at one moment: for dashboards, gauges and manual decisions.
use std::time::Duration;

use super::{
    CircuitBreaker, State,
    policy::{Inner, Shared},
    state::{Core, Totals, Word, load},
    window::{ALL, Counts},
};
use crate::{
    outcome::{FailureKind, TripRule},
    time::Instant,
};

/// A breaker at one moment.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// State. An open breaker whose time is over remains open until a call comes.
    pub state: State,
    /// Time since the breaker entered this state.
    pub in_state: Duration,
    /// Share of the calls that pass now: 1 closed, 0 open or isolated, between them in a slow
    /// start; 0 half-open, when only probes pass.
    pub share: f64,
    /// Number of calls in the window.
    pub calls: u64,
    /// Number of failures in the window.
    pub failures: u64,
    /// Number of slow calls in the window.
    pub slow: u64,
    /// Number of consecutive openings.
    pub openings: u32,
    /// Time of the opening or isolation, while open or isolated.
    pub since: Option<Instant>,
    /// Rule that opened the breaker, while open.
    pub rule: Option<TripRule>,
    /// Kind of the last failure before the opening, while open.
    pub last: Option<FailureKind>,
    /// Remaining open time, while open.
    pub retry_after: Option<Duration>,
    /// Number of rejected calls since the breaker was created.
    pub rejected: u64,
    /// Number of failed calls since the breaker was created, with probes.
    pub total_failures: u64,
    /// Number of slow calls since the breaker was created.
    pub total_slow: u64,
    /// Number of openings since the breaker was created.
    pub total_openings: u64,
    /// Number of openings suppressed because `max_open` of the registry was reached.
    pub total_suppressed: u64,
    time: [Duration; 4],
    /// Time at which the breaker entered this state.
    pub(crate) entered: Instant,
}

impl Snapshot {
    /// Returns the total time that the breaker has spent in this state. The four states add up to
    /// its life.
    pub fn time_in(&self, state: State) -> Duration {
        self.time[usize::from(state.number())]
    }
}

impl CircuitBreaker {
    /// Takes a snapshot. Locks the breaker for a moment: for dashboards, not for every call.
    pub fn snapshot(&self) -> Snapshot {
        let Inner { core, shared } = &*self.0;
        let Shared { set, clock, .. } = &**shared;
        let now = clock.now();
        let Figures { word, entered, opening, openings, counts, totals } = core.figures(now);
        let (state, in_state) = (word.state(), now - entered);
        let mut time = totals.time;
        time[usize::from(state.number())] += in_state;
        let gate = core.gate_if_any();
        let share = match (state, gate) {
            (State::Closed, Some(gate)) if word.in_slow_start() => {
                set.live.slow_start_share(now - load(&gate.slow_start)) as f64 / ALL as f64
            }
            (State::Closed, _) => 1.0,
            _ => 0.0,
        };
        let why = gate.filter(|_| state == State::Open).map(|gate| gate.why());
        Snapshot {
            state,
            in_state,
            share,
            calls: counts.calls,
            failures: counts.failures,
            slow: counts.slow,
            openings,
            since: opening.map(|(since, _)| since),
            rule: why.map(|(rule, _)| rule),
            last: why.and_then(|(_, last)| last),
            retry_after: opening.filter(|_| state == State::Open).map(|(_, until)| until - now),
            rejected: Core::rejected(core),
            total_failures: totals.failures,
            total_slow: totals.slow,
            total_openings: totals.openings,
            total_suppressed: totals.suppressed,
            time,
            entered,
        }
    }
}

/// Values of a snapshot, read under the lock.
pub(super) struct Figures {
    pub(super) word: Word,
    pub(super) entered: Instant,
    /// Start and end of the opening, if the breaker is open or isolated.
    pub(super) opening: Option<(Instant, Instant)>,
    /// Number of consecutive openings.
    pub(super) openings: u32,
    pub(super) counts: Counts,
    pub(super) totals: Totals,
}

impl Core {
    /// Returns the values of a snapshot. The lock keeps the state from changing meanwhile.
    pub(super) fn figures(&self, now: Instant) -> Figures {
        let inner = self.inner.lock();
        let (word, entered) = (self.word(), load(&self.entered));
        let (openings, counts, totals) = match inner.as_deref() {
            Some(inner) => (inner.openings, self.tally.counts(word, &inner.bads, now), inner.totals),
            None => (0, self.tally.counts_of_good(word, now), Totals::default()),
        };
        let gate = self.gate_if_any().filter(|_| word.has_opening());
        let opening = gate.map(|gate| (load(&gate.since), load(&gate.until)));
        Figures { word, entered, opening, openings, counts, totals }
    }
}
