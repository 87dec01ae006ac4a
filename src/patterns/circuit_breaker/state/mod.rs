//! State machine of a breaker: its state, and the effect of an outcome. Admission of calls is in
//! `admission.rs`. Takes `now` as an argument; knows neither async nor tokio.

// States: closed, open, half-open, isolated (`word.rs`). The word holds the state, its generation
// and a count.
//
// Admission while closed is one `Acquire` load of the word; a success in a healthy count window is
// three loads of one cache line. Every change of state happens under the lock `inner`, and swaps the
// word last, `AcqRel`: a caller that loads the new word sees all values that belong to the new
// state (`word.rs`, `window/mod.rs`).
//
// Invariant: the generation changes only under the lock. A ticket carries the generation that
// admitted it, and an outcome counts only if its ticket's generation belongs to the present state
// (`Word::is_since` of `lineage`). That is checked under the lock, by a compare-and-set of the whole
// word, or by the epoch of a time window's bucket. So a late outcome moves nothing.
//
// A successful compare-and-set of a closed word (a counted outcome, the end of a slow start) is
// lock-free; it changes no generation and loses against a concurrent change of state. The word of
// every other state is written only under the lock.

mod admission; // admits a call, or says why not
mod transitions; // opening, closing, half-opening
mod word; // what admission reads

pub(super) use admission::{Refusal, Ticket};
pub use word::State;
pub(super) use word::{Gate, Word, load};

use super::{
    CircuitBreakerConfig,
    probes::{Patience, Probes},
    window::{Bads, Counted, Mark, Setting, Tally},
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

/// State of one breaker.
pub(super) struct Core {
    pub(super) word: AtomicU64,
    pub(super) tally: Tally,
    /// Time at which the breaker entered its present state.
    pub(super) entered: AtomicU64,
    /// Allocated when the breaker first leaves the closed state.
    gate: OnceLock<Box<Gate>>,
    /// State under the lock; allocated at the first outcome that is not a plain success.
    pub(super) inner: Mutex<Option<Box<Inner>>>,
    pub(super) name: Option<Name>,
    /// Of a breaker in a registry: `true` if it was used since the last sweep for idle keys.
    pub(super) used: AtomicBool,
    pub(super) shadow: AtomicBool,
}

/// State that is read and written under the lock alone.
pub(super) struct Inner {
    /// Configuration that this breaker uses, and its version.
    pub(super) config: Arc<CircuitBreakerConfig>,
    number: u32,
    pub(super) openings: u32,
    pub(super) closed_since: Option<Instant>,
    /// First generation of the present state. Outcomes of this generation or a later one count.
    pub(super) lineage: u32,
    pub(super) probes: Probes,
    pub(super) patience: Patience,
    pub(super) bads: Bads,
    pub(super) totals: Totals,
    /// Kind of the last failure. The gate has a copy, once it is allocated.
    pub(super) last: Option<FailureKind>,
}

/// Totals over the life of a breaker.
#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) openings: u64,
    pub(super) failures: u64,
    pub(super) slow: u64,
    pub(super) suppressed: u64,
    /// Time spent in each state, without the present stay.
    pub(super) time: [Duration; 4],
    /// Number of consecutive openings that came soon after closing.
    pub(super) flaps: u32,
    /// `true` if an event has reported that the present opening is suppressed.
    pub(super) suppression_sent: bool,
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
            patience: Patience::default(),
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

    /// Returns the state under the lock, updated to the current configuration.
    pub(super) fn fresh<'a>(&self, set: &Setting, inner: &'a mut Option<Box<Inner>>) -> &'a mut Inner {
        let is_new = inner.is_none();
        let inner = inner.get_or_insert_with(|| Box::new(Inner::new(set)));
        if is_new || inner.number != set.number() {
            (inner.number, inner.config) = set.whole();
            self.tally.reshape(&self.word, &inner.config, Some(&mut inner.bads));
        }
        inner
    }

    /// Writes the number of used permits of a half-open breaker, and the time at which its probes
    /// will have hung. Called under the lock.
    fn set_probes(&self, gate: &Gate, inner: &Inner, word: Word) {
        gate.deadline.store(inner.probes.deadline().as_nanos(), Ordering::Release);
        // Only the holder of the lock writes a half-open word. (A store would suffice, but loom orders only
        // read-modify-writes among compare-and-sets.)
        self.word.swap(word.0, Ordering::AcqRel);
    }

    /// Returns the number of rejected calls.
    pub(super) fn rejected(&self) -> u64 {
        self.gate_if_any().map_or(0, Gate::rejected)
    }

    /// Returns a ticket whose call has no outcome.
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

    /// Records a success if its window is full, and no other rule counts it: the commonest case,
    /// inlined. Returns `false` if it is not recorded yet. The success counts as of the load of the
    /// word, as in [`Tally::success`].
    #[inline]
    pub(super) fn success_at_once(&self, ticket: Ticket) -> bool {
        let seen = self.word();
        !ticket.probe && seen.is_full_and_closed(ticket.generation) && self.tally.success_of_full(&self.word, seen)
    }

    /// Records a success that was not slow. Returns `true` if it may have changed the state.
    #[inline]
    pub(super) fn success(&self, set: &Setting, ticket: Ticket, now: impl Fn() -> Instant) -> bool {
        if ticket.probe {
            self.probed(set, ticket, None, now());
            return true;
        }
        match self.tally.success(&self.word, &set.live, ticket.generation, &now) {
            Counted::Done => false,
            // Either this success completes the calls over which the failures before it are judged, or the
            // window was replaced.
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

    /// Records an outcome under the lock: a failure, a slow success, or a success at which the
    /// rules are judged. Opens the breaker if a rule is broken.
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
                // Counted again if the windows were replaced meanwhile.
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
        let good = mark.is_none_or(|mark| mark.failure.is_none() && !mark.slow);
        if word.state() != State::HalfOpen || word.generation() != ticket.generation {
            if good {
                inner.patience.succeeded_late(ticket.generation, Word::is_between);
            }
            return;
        }
        if let Some(mark) = mark {
            self.remember(inner, mark);
        }
        inner.probes.record(now, good);
        self.set_probes(self.gate(set), inner, word);
        let hint = mark.and_then(|m| m.unavailable.or(m.retry_after));
        if mark.is_some_and(|m| m.unavailable.is_some()) {
            self.open(set, inner, now, TripRule::Unavailable, hint);
        } else {
            self.decide(set, inner, now, hint);
        }
    }

    /// Counts a failure or slow call in the totals, and stores its kind.
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
}
