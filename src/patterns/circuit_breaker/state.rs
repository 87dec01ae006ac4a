//! The machine: who is admitted, and what an outcome does. Takes `now` as an argument; knows neither async nor tokio.
//!
//! Admission while closed, and a success in a healthy window, are loads of one cache line. Every change of state happens under
//! the lock; the word is written last, so whoever reads it sees all that belongs to it.
use super::{
    CircuitBreakerConfig, OnTimeout, State,
    bads::{Bads, Counts},
    gate::{Gate, load},
    plan::{ALL, Setting},
    probes::Probes,
    tally::{Counted, Mark, Tally},
    word::Word,
};
use crate::{
    config::Name,
    outcome::{FailureKind, TripRule},
    sync::{AtomicU64, Mutex, Ordering},
    time::Instant,
};
use std::{
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::Duration,
};

/// One breaker's state.
pub(super) struct Core {
    pub(super) word: AtomicU64,
    pub(super) tally: Tally,
    /// When it came into the state that it is in.
    pub(super) entered: AtomicU64,
    /// Made when it first stops being closed.
    gate: OnceLock<Box<Gate>>,
    /// Nothing until something goes wrong.
    pub(super) inner: Mutex<Option<Box<Inner>>>,
    pub(super) name: Option<Name>,
    /// Of a family's member: whether it was asked for since its family last looked for idle ones.
    pub(super) used: AtomicBool,
    pub(super) shadow: AtomicBool,
}

/// What is read and written under the lock alone.
pub(super) struct Inner {
    /// The settings that it goes by, and their number.
    pub(super) config: Arc<CircuitBreakerConfig>,
    number: u32,
    pub(super) openings: u32,
    pub(super) closed_since: Option<Instant>,
    /// The first generation of the state that it is in: an outcome of any since then counts.
    pub(super) lineage: u32,
    pub(super) probes: Probes,
    pub(super) bads: Bads,
    pub(super) totals: Totals,
    /// The kind of the last failure, while it has no gate to tell it.
    pub(super) last: Option<FailureKind>,
}

/// What is counted over a breaker's life.
#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) openings: u64,
    pub(super) failures: u64,
    pub(super) slow: u64,
    pub(super) suppressed: u64,
    /// In each state, until it came into the one that it is in.
    pub(super) time: [Duration; 4],
    /// How many times in a row it opened again soon after it had closed.
    pub(super) flaps: u32,
    /// Whether it was told of the present opening that it is spared.
    pub(super) suppression_sent: bool,
}

pub(super) struct Figures {
    pub(super) word: Word,
    pub(super) entered: Instant,
    /// Openings in a row.
    pub(super) openings: u32,
    pub(super) counts: Counts,
    pub(super) totals: Totals,
}

/// Leave to make a call, by a generation of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) generation: u32,
    pub(super) probe: bool,
}

/// No leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// For so many nanoseconds more.
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

impl Inner {
    fn new(set: &Setting) -> Self {
        let (number, config) = set.whole();
        let bads = Bads::new(&config);
        Self {
            config,
            number,
            openings: 0,
            closed_since: None,
            lineage: 0,
            probes: Probes::default(),
            bads,
            totals: Totals::default(),
            last: None,
        }
    }
}

impl Core {
    pub(super) fn new(config: &CircuitBreakerConfig, now: Instant, name: Option<Name>) -> Self {
        Self {
            word: AtomicU64::new(Word::new(State::Closed, 0, 0).0),
            tally: Tally::new(config),
            entered: AtomicU64::new(now.as_nanos()),
            gate: OnceLock::new(),
            inner: Mutex::new(None),
            name,
            used: AtomicBool::new(true),
            shadow: AtomicBool::new(false),
        }
    }

    pub(super) fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    pub(super) fn gate(&self, set: &Setting) -> &Gate {
        self.gate.get_or_init(|| Box::new(Gate::new(set.open_limit.is_some())))
    }

    pub(super) fn gate_if_any(&self) -> Option<&Gate> {
        self.gate.get().map(|gate| &**gate)
    }

    /// What the lock guards, by the settings of now.
    pub(super) fn fresh<'a>(&self, set: &Setting, inner: &'a mut Option<Box<Inner>>) -> &'a mut Inner {
        let is_new = inner.is_none();
        let inner = inner.get_or_insert_with(|| Box::new(Inner::new(set)));
        if is_new || inner.number != set.number() {
            (inner.number, inner.config) = set.whole();
            self.tally.reshape(&self.word, &inner.config, Some(&mut inner.bads));
        }
        inner
    }

    /// Leave to make a call, if it is closed and lets all calls pass.
    #[inline]
    pub(super) fn admit_closed(&self) -> Option<Ticket> {
        let word = self.word();
        word.passes_all().then_some(Ticket { generation: word.generation(), probe: false })
    }

    /// Asks to make a call in whatever state. `now` is read only if it is needed.
    #[inline]
    pub(super) fn admit(&self, set: &Setting, now: impl Fn() -> Instant) -> Result<Ticket, Refusal> {
        self.admit_as(set, now, false)
    }

    /// Asks to make a call, as a caller or as the probe of a loop: with such a loop at work, callers do not probe.
    #[inline]
    pub(super) fn admit_as(&self, set: &Setting, now: impl Fn() -> Instant, prober: bool) -> Result<Ticket, Refusal> {
        let gate = self.gate(set);
        let waits = |gate: &Gate| !prober && gate.probers.load(Ordering::Acquire) > 0;
        let refuse = |refusal| {
            if !prober {
                gate.count_rejection();
            }
            Err(refusal)
        };
        loop {
            let word = self.word();
            match word.state() {
                State::Closed if word.in_slow_start() => {
                    let (began, now) = (load(&gate.slow_start), now());
                    if self.word().generation() != word.generation() {
                        continue; // it may be another ramp
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
                State::Isolated => return refuse(Refusal::Isolated { since: load(&gate.since) }),
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

    /// Writes how many probes of a half-open breaker are taken, and when those in flight will have hung. Called under the lock.
    fn set_probes(&self, gate: &Gate, inner: &Inner, word: Word) {
        gate.deadline.store(inner.probes.deadline().as_nanos(), Ordering::Release);
        // Only the lock's holder writes a half-open word. (A store would do, but loom orders only swaps among compare-and-sets.)
        self.word.swap(word.0, Ordering::AcqRel);
    }

    /// How many calls were refused.
    pub(super) fn rejected(&self) -> u64 {
        self.gate_if_any().map_or(0, Gate::rejected)
    }

    /// Gives back a ticket whose call came to nothing.
    pub(super) fn ignore(&self, set: &Setting, ticket: Ticket, now: impl Fn() -> Instant) {
        if !ticket.probe {
            return;
        }
        let now = now();
        let mut inner = self.inner.lock();
        let word = self.word();
        if word.state() == State::HalfOpen && word.generation() == ticket.generation {
            let inner = self.fresh(set, &mut inner);
            inner.probes.leave(now);
            self.set_probes(self.gate(set), inner, word.with_count(word.count() - 1));
        }
    }

    /// Records a success that was not slow. True if it may have changed the state.
    #[inline]
    pub(super) fn success(&self, set: &Setting, ticket: Ticket, now: impl Fn() -> Instant) -> bool {
        if ticket.probe {
            self.probed(set, ticket, None, now());
            return true;
        }
        match self.tally.success(&self.word, &set.live, ticket.generation, &now) {
            Counted::Done => false,
            // The outcomes before it are bad enough, and it brings the window to where they are judged; or the window is another.
            counted => {
                self.judge(set, ticket, None, counted == Counted::Late, &now);
                true
            }
        }
    }

    /// Records a failure, or a slow success.
    #[cold]
    pub(super) fn bad(&self, set: &Setting, ticket: Ticket, mark: Mark, now: impl Fn() -> Instant) {
        if ticket.probe {
            self.probed(set, ticket, Some(mark), now());
        } else {
            self.judge(set, ticket, Some(mark), false, &now);
        }
    }

    /// Records what is not plain success, or counts a success that the rules are judged at, and opens if one says so.
    #[cold]
    fn judge(&self, set: &Setting, ticket: Ticket, mark: Option<Mark>, late: bool, now: &dyn Fn() -> Instant) {
        let mut inner = self.inner.lock();
        let inner = self.fresh(set, &mut inner);
        let word = self.word();
        if !word.is_closed() || !word.is_since(inner.lineage, ticket.generation) {
            return;
        }
        let made = match mark {
            Some(mark) => {
                self.remember(inner, mark);
                self.tally.bad(&self.word, word.generation(), &mut inner.bads, mark, now)
            }
            None => {
                // Once more where its windows were changed under it.
                let late = late || word.generation() != ticket.generation;
                let again = || self.tally.success(&self.word, &set.live, word.generation(), &now);
                if late && again() != Counted::Judge {
                    return;
                }
                self.tally.success_judged(&self.word)
            }
        };
        let hint = mark.and_then(|m| m.unavailable.or(m.retry_after));
        let rule = match mark.and_then(|m| m.unavailable) {
            Some(_) => Some(TripRule::Unavailable),
            None => self.tally.verdict(made, &inner.config, &inner.bads, now),
        };
        if let Some(rule) = rule {
            self.trip(set, inner, now(), rule, hint);
        } else {
            inner.totals.suppression_sent = false;
        }
    }

    /// Records a probe's outcome.
    fn probed(&self, set: &Setting, ticket: Ticket, mark: Option<Mark>, now: Instant) {
        let mut inner = self.inner.lock();
        let inner = self.fresh(set, &mut inner);
        let word = self.word();
        if word.state() != State::HalfOpen || word.generation() != ticket.generation {
            return;
        }
        if let Some(mark) = mark {
            self.remember(inner, mark);
        }
        let good = mark.is_none_or(|mark| mark.failure.is_none() && !mark.slow);
        inner.probes.record(now, good);
        self.set_probes(self.gate(set), inner, word);
        let hint = mark.and_then(|m| m.unavailable.or(m.retry_after));
        if mark.is_some_and(|m| m.unavailable.is_some()) {
            self.open(set, inner, now, TripRule::Unavailable, hint);
        } else {
            self.decide(set, inner, now, hint);
        }
    }

    fn remember(&self, inner: &mut Inner, mark: Mark) {
        inner.totals.slow += u64::from(mark.slow);
        if let Some(kind) = mark.failure {
            inner.totals.failures += 1;
            inner.last = Some(kind);
            if let Some(gate) = self.gate_if_any() {
                gate.set_last(Some(kind));
            }
        }
    }

    /// What it looks like at one moment: no state changes meanwhile.
    pub(super) fn figures(&self, now: Instant) -> Figures {
        let inner = self.inner.lock();
        let (word, entered) = (self.word(), load(&self.entered));
        let (openings, counts, totals) = match inner.as_deref() {
            Some(inner) => (inner.openings, self.tally.counts(word, &inner.bads, now), inner.totals),
            None => (0, self.tally.counts_of_good(word, now), Totals::default()),
        };
        Figures { word, entered, openings, counts, totals }
    }

    pub(super) fn replace(&self, old: Word, new: Word) -> bool {
        self.word.compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}
