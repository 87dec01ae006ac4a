//! What a breaker looks like at one moment: for dashboards, gauges, and whoever decides by hand.
use std::time::Duration;

use super::{
    CircuitBreaker, State,
    gate::load,
    plan::ALL,
    policy::{Inner, Shared},
    state::{Core, Figures},
};
use crate::time::Instant;

/// What a breaker looks like at one moment.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Its state. An open breaker whose time is over is open until a call comes.
    pub state: State,
    /// How long it has been in that state.
    pub in_state: Duration,
    /// The share of the calls that it lets pass now: 1 closed, 0 open or isolated, between them in a ramp; 0 half-open, where it lets
    /// single probes pass.
    pub share: f64,
    /// Calls in its window.
    pub calls: u64,
    /// Failures in its window.
    pub failures: u64,
    /// Slow calls in its window.
    pub slow: u64,
    /// Openings in a row.
    pub openings: u32,
    /// Since when it is open or isolated.
    pub since: Option<Instant>,
    /// How long it stays open yet.
    pub retry_after: Option<Duration>,
    /// Calls rejected since it was made.
    pub rejected: u64,
    /// Calls that failed since it was made, probes among them.
    pub total_failures: u64,
    /// Calls that were slow since it was made.
    pub total_slow: u64,
    /// Openings since it was made.
    pub total_openings: u64,
    /// How often a rule would have opened it, but too large a share of its family was open.
    pub total_suppressed: u64,
    time: [Duration; 4],
}

impl Snapshot {
    /// How long it was in this state since it was made, all times together. Those of the four states add up to its life.
    pub fn time_in(&self, state: State) -> Duration {
        self.time[usize::from(state.number())]
    }
}

impl CircuitBreaker {
    /// What it looks like now. Takes its lock for a moment: for dashboards, not for every call.
    pub fn snapshot(&self) -> Snapshot {
        let Inner { core, shared } = &*self.0;
        let Shared { set, clock, .. } = &**shared;
        let now = clock.now();
        let Figures { word, entered, openings, counts, totals } = core.figures(now);
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
        let of_gate = |is: bool| gate.filter(|_| is);
        Snapshot {
            state,
            in_state,
            share,
            calls: counts.calls,
            failures: counts.failures,
            slow: counts.slow,
            openings,
            since: of_gate(matches!(state, State::Open | State::Isolated)).map(|gate| load(&gate.since)),
            retry_after: of_gate(state == State::Open).map(|gate| load(&gate.until) - now),
            rejected: Core::rejected(core),
            total_failures: totals.failures,
            total_slow: totals.slow,
            total_openings: totals.openings,
            total_suppressed: totals.suppressed,
            time,
        }
    }
}
