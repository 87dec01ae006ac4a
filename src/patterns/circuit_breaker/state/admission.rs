//! Admission of a call: permission, or the reason of a refusal.
use super::{
    super::{
        OnTimeout,
        window::{ALL, Setting},
    },
    Core, Gate, State, load,
};
use crate::{
    outcome::{FailureKind, TripRule},
    time::Instant,
};

/// Permission to make one call, tied to a state generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Ticket {
    pub(in super::super) generation: u32,
    pub(in super::super) probe: bool,
}

/// Why a call was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Refusal {
    /// Open, for `wait` more nanoseconds.
    Open {
        since: Instant,
        rule: TripRule,
        last: Option<FailureKind>,
        wait: u64,
    },
    Isolated {
        since: Instant,
    },
    ProbesTaken,
    SlowStart,
}

impl Core {
    /// Admits a call if the breaker is closed and not in a slow start.
    #[inline]
    pub(in super::super) fn admit_closed(&self) -> Option<Ticket> {
        let word = self.word();
        word.passes_all().then_some(Ticket { generation: word.generation(), probe: false })
    }

    /// Admits a call in any state. `now` is called only if it is needed.
    #[inline]
    pub(in super::super) fn admit(&self, set: &Setting, now: impl Fn() -> Instant) -> Result<Ticket, Refusal> {
        self.admit_as(set, now, false)
    }

    /// Admits a call, of a caller or of a health probe loop. While such a loop runs, callers do not
    /// probe.
    #[inline]
    pub(in super::super) fn admit_as(
        &self,
        set: &Setting,
        now: impl Fn() -> Instant,
        prober: bool,
    ) -> Result<Ticket, Refusal> {
        let gate = self.gate(set);
        let waits = |gate: &Gate| !prober && gate.probers.get() > 0;
        let refuse = |refusal| {
            if !prober {
                gate.count_rejection();
            }
            Err(refusal)
        };
        loop {
            let word = self.word_of_values();
            match word.state() {
                State::Closed if word.in_slow_start() => {
                    let (began, now) = (load(&gate.slow_start), now());
                    if self.word().generation() != word.generation() {
                        continue; // it may be another slow start
                    }
                    let share = set.live.slow_start_share(now - began);
                    if share >= ALL {
                        self.end_slow_start(set, word.generation(), now);
                    } else if !gate.passes(share) {
                        return refuse(Refusal::SlowStart);
                    }
                    return Ok(Ticket { generation: word.generation(), probe: false });
                }
                State::Closed => return Ok(Ticket { generation: word.generation(), probe: false }),
                State::Isolated => {
                    let since = load(&gate.since);
                    if self.word() != word {
                        continue; // the time may be that of an opening
                    }
                    return refuse(Refusal::Isolated { since });
                }
                State::Open => {
                    let (until, now) = (load(&gate.until), now());
                    if now < until {
                        let (since, (rule, last)) = (load(&gate.since), gate.why());
                        if self.word() != word {
                            continue; // the values may belong to another opening
                        }
                        let wait = until.as_nanos() - now.as_nanos();
                        return refuse(Refusal::Open { since, rule, last, wait });
                    }
                    if waits(gate) {
                        return refuse(Refusal::ProbesTaken);
                    }
                    let mut inner = self.inner.lock();
                    if self.word() == word {
                        return Ok(self.half_open(set, self.fresh(set, &mut inner), now));
                    }
                }
                State::HalfOpen => {
                    let deadline = load(&gate.deadline);
                    if self.word().generation() != word.generation() {
                        continue;
                    }
                    let now = now();
                    let refused = waits(gate) || word.count() >= set.live.permitted_calls();
                    if refused && now < deadline {
                        return refuse(Refusal::ProbesTaken);
                    }
                    let mut inner = self.inner.lock();
                    let word = self.word();
                    if word.state() != State::HalfOpen {
                        continue;
                    }
                    let inner = self.fresh(set, &mut inner);
                    if inner.probes.hang(now) {
                        inner.patience.timed_out(word.generation());
                        match inner.config.half_open.on_timeout {
                            OnTimeout::Open => self.open(set, inner, now, TripRule::HalfOpenTimeout, None),
                            OnTimeout::Close => self.close(set, inner, now, false),
                        }
                    } else if waits(gate) || word.count() >= set.live.permitted_calls() {
                        return refuse(Refusal::ProbesTaken);
                    } else {
                        inner.probes.admit(now);
                        self.set_probes(gate, inner, word.with_count(word.count() + 1));
                        return Ok(Ticket { generation: word.generation(), probe: true });
                    }
                }
            }
        }
    }
}
