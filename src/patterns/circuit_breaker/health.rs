//! Recovery by a health probe: a loop asks the other side, so that no caller's request is risked to find out.
use std::{
    future::{Future, poll_fn},
    pin::pin,
};

use super::{
    CircuitBreaker, Permit, State, Transition,
    gate::load,
    policy::{Inner, Shared},
};
use crate::{
    observe::Subscription,
    outcome::FailureKind,
    race::{First, race},
    sync::{AtomicU32, Ordering},
    time::Instant,
};

impl CircuitBreaker {
    /// Finds out by `probe`, instead of by callers' requests, whether the other side is well again, until `shutdown` is ready. Spawn it
    /// beside the work.
    ///
    /// While it runs, callers are not let through as probes. When the open time is over it calls `probe`, one at a time, as often as
    /// `half_open` asks for: enough good ones close the breaker, a bad one too many opens it again, for longer: the open time is the
    /// probe's back-off. Every error is a failure, whatever its kind; where slowness is a rule, a slow probe is bad too. A probe that
    /// hangs is dropped after `half_open.max_duration`, so give it a time-out of its own. An isolated breaker is not probed. Where several such
    /// loops run, one of them probes; when the last has ended, callers probe as ever.
    ///
    /// ```
    /// use std::time::Duration;
    /// use steadfast::{circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State}, time::Clock};
    ///
    /// let (clock, hand) = Clock::manual();
    /// let config = CircuitBreakerConfig::default().permitted_calls(2, 1.0);
    /// let breaker = CircuitBreaker::new(config).unwrap().with_clock(&clock);
    /// breaker.force_open(Duration::from_secs(5));
    ///
    /// let shutdown = clock.sleep(Duration::from_secs(6));
    /// hand.block_on(breaker.run(async || Ok::<_, std::io::Error>(()), shutdown)); // asks nobody for 5 s, then twice
    /// assert_eq!(breaker.state(), State::Closed);
    /// ```
    ///
    /// # Cancel safety
    /// Dropped, it drops the probe that is under way, which counts for nothing: its place is free again, and callers probe as ever.
    pub async fn run<F, E>(&self, mut probe: impl FnMut() -> F, shutdown: impl Future<Output = ()>)
    where
        F: Future<Output = Result<(), E>>,
    {
        let Inner { core, shared } = &*self.0;
        let Shared { set, clock, .. } = &**shared;
        let gate = core.gate(set);
        let _attached = Held::one_more(&gate.probers);
        let mut changes = self.transitions();
        let mut shutdown = pin!(shutdown);
        loop {
            // The state is read after the subscription was made: whatever comes later wakes it.
            let next = match self.state() {
                State::Closed | State::Isolated => None,
                State::Open => Some(load(&gate.until)),
                State::HalfOpen => Some(Instant::default()),
            };
            let due = next.is_some_and(|next| clock.now() >= next);
            let turn = if due { Held::alone(&gate.probing) } else { None };
            let admitted = turn.as_ref().and_then(|_| core.admit_as(set, || clock.now(), true).ok());
            self.0.flush();
            let Some(ticket) = admitted.filter(|ticket| ticket.probe) else {
                let wake = match self.state() {
                    State::Closed | State::Isolated => None,
                    State::Open => Some(load(&gate.until)).filter(|until| clock.now() < *until),
                    // Others are probing: by then their probes have ended or hung. A deadline that is past is never waited for.
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
                let mut work = pin!(permit.run(&mut probe));
                let work = poll_fn(|cx| permit.run(|| work.as_mut().poll(cx)));
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

    /// Waits for a change of state, or for this instant.
    async fn changed(&self, changes: &mut Subscription<Transition>, wake: Option<Instant>) {
        match wake {
            // What was missed is read from the state.
            None => drop(changes.recv().await),
            Some(at) => drop(race(changes.recv(), self.0.shared.clock.sleep_until(at)).await),
        }
    }
}

/// A count that is one higher while it lives.
struct Held<'a>(&'a AtomicU32);

impl<'a> Held<'a> {
    fn one_more(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }

    fn alone(count: &'a AtomicU32) -> Option<Self> {
        count.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_ok().then(|| Self(count))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
