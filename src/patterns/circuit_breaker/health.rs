//! Recovery by a health probe: a loop calls a health endpoint, so that no caller's request is a
//! probe.
use std::{future::Future, pin::pin};

use super::{
    CircuitBreaker, Permit, State, Transition,
    policy::{Inner, Shared},
    state::load,
};
use crate::{
    observe::Subscription,
    outcome::FailureKind,
    race::{First, race},
    time::Instant,
};

impl CircuitBreaker {
    /// Probes the service by `probe`, instead of by callers' requests, until `shutdown` is ready.
    /// Spawn it beside the work.
    ///
    /// While this loop runs, callers do not pass as probes. When the open time is over it calls
    /// `probe`, one at a time, up to `half_open.permitted_calls` times. Enough successes close the
    /// breaker. Too many failures open it again, for longer: the open time is the back-off between
    /// probes.
    ///
    /// Every error is a failure, of any kind. If slowness is a rule, a slow probe fails too. A
    /// probe that hangs is dropped after `half_open.max_duration`, so give it a time-out of its
    /// own. An isolated breaker is not probed. If several such loops run, one of them probes at a
    /// time; after the last one has ended, callers probe again.
    ///
    /// ```
    /// use std::time::Duration;
    /// use steadfast::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State};
    /// use steadfast::time::Clock;
    ///
    /// let (clock, time) = Clock::manual();
    /// let config = CircuitBreakerConfig::default().half_open_calls(2, 1.0);
    /// let breaker = CircuitBreaker::builder(config).clock(&clock).build().unwrap();
    /// breaker.force_open(Duration::from_secs(5));
    ///
    /// let shutdown = clock.sleep(Duration::from_secs(6));
    /// // No probe for 5 s, then two of them.
    /// time.block_on(breaker.run(async || Ok::<_, std::io::Error>(()), shutdown));
    /// assert_eq!(breaker.state(), State::Closed);
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the loop drops the probe in flight, which counts as nothing and frees its permit.
    /// Callers probe again.
    pub async fn run<F, E>(&self, mut probe: impl FnMut() -> F, shutdown: impl Future<Output = ()>)
    where
        F: Future<Output = Result<(), E>>,
    {
        let Inner { core, shared } = &*self.0;
        let Shared { set, clock, .. } = &**shared;
        let gate = core.gate(set);
        let _attached = gate.probers.enter(1);
        let mut changes = self.transitions();
        let mut shutdown = pin!(shutdown);
        loop {
            // The state is read after the subscription was made: any later change wakes this loop.
            let next = match self.state() {
                State::Closed | State::Isolated => None,
                State::Open => Some(load(&gate.until)),
                State::HalfOpen => Some(Instant::default()),
            };
            let due = next.is_some_and(|next| clock.now() >= next);
            let turn = if due { gate.probing.enter_alone() } else { None };
            let admitted = turn.as_ref().and_then(|_| core.admit_as(set, || clock.now(), true).ok());
            self.0.flush();
            let Some(ticket) = admitted.filter(|ticket| ticket.probe) else {
                let wake = match self.state() {
                    State::Closed | State::Isolated => None,
                    State::Open => Some(load(&gate.until)).filter(|until| clock.now() < *until),
                    // Another loop is probing: by its deadline its probe has ended or hung. A deadline in the
                    // past is not waited for.
                    State::HalfOpen => {
                        let now = clock.now();
                        let deadline = load(&gate.deadline);
                        Some(if deadline > now { deadline } else { now + self.config().half_open.max_duration })
                    }
                };
                drop(turn);
                match race(shutdown.as_mut(), self.changed(&mut changes, wake)).await {
                    First::One(()) => return,
                    First::Other(()) => continue,
                }
            };
            let mut permit = Permit::new(&self.0, Some(ticket));
            let result = {
                let work = permit.run(&mut probe);
                let work = permit.watch(work);
                let limit = clock.sleep_until(load(&gate.deadline));
                match race(work, race(shutdown.as_mut(), limit)).await {
                    First::One(result) => Some(result),
                    First::Other(First::One(())) => return,
                    First::Other(First::Other(())) => None,
                }
            };
            if let Some(result) = result {
                permit.settle_probe(result.err().map(|_| FailureKind::Other));
            }
        }
    }

    /// Waits for a change of state, or for the instant `wake`.
    async fn changed(&self, changes: &mut Subscription<Transition>, wake: Option<Instant>) {
        match wake {
            // Missed transitions do no harm: the caller reads the state.
            None => drop(changes.recv().await),
            Some(at) => drop(race(changes.recv(), self.0.shared.clock.sleep_until(at)).await),
        }
    }
}
