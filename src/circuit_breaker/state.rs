//! The machine: who is admitted, and what an outcome does. Takes `now` as an argument; knows neither async nor tokio.
//!
//! Admission while closed, and a success in a healthy window, are loads of one cache line. Every change of state happens under
//! the lock; the word is written last, so whoever reads it sees all that belongs to it.
use super::{
    CircuitBreakerConfig, CircuitBreakerEvent as Event, State, Undecided,
    tally::{Mark, Tally},
    word::Word,
};
use crate::{
    backoff::scaled,
    entropy::Entropy,
    observe::Events,
    outcome::{FailureKind, TripRule},
    striped::Striped,
    sync::{AtomicU32, AtomicU64, Mutex, Ordering},
    time::Instant,
};
use std::{sync::OnceLock, time::Duration};

/// What all calls of a breaker (and all breakers of one family) have in common.
pub(super) struct Setting {
    pub(super) config: CircuitBreakerConfig,
    pub(super) entropy: Entropy,
    pub(super) events: Events<Event>,
}

/// One breaker's state.
pub(super) struct Core {
    pub(super) word: AtomicU64,
    pub(super) tally: Tally,
    /// When it opened, or was isolated; when the open time ends; when half-open must have come to a decision.
    since: AtomicU64,
    until: AtomicU64,
    deadline: AtomicU64,
    /// The rule that opened it, and the kind of the last failure plus one, in a byte each.
    why: AtomicU32,
    /// Made when it first stops being closed.
    rejections: OnceLock<Box<Striped>>,
    /// Nothing until something goes wrong: a healthy breaker of a large family stays small.
    inner: Mutex<Option<Box<Inner>>>,
}

#[derive(Default)]
pub(super) struct Inner {
    openings: u32,
    closed_since: Option<Instant>,
    good: u32,
    bad: u32,
    pub(super) bads: super::tally::Bads,
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
}

impl Core {
    pub(super) fn new(config: &CircuitBreakerConfig) -> Self {
        Self {
            word: AtomicU64::new(Word::new(State::Closed, 0, 0).0),
            tally: Tally::new(config),
            since: AtomicU64::new(0),
            until: AtomicU64::new(0),
            deadline: AtomicU64::new(0),
            why: AtomicU32::new(0),
            rejections: OnceLock::new(),
            inner: Mutex::new(None),
        }
    }

    pub(super) fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// Leave to make a call, if it is closed.
    #[inline]
    pub(super) fn admit_closed(&self) -> Option<Ticket> {
        let word = self.word();
        word.is_closed().then_some(Ticket { generation: word.generation(), probe: false })
    }

    /// Asks to make a call in whatever state. `now` is read only if it is needed.
    #[inline]
    pub(super) fn admit(&self, set: &Setting, now: impl Fn() -> Instant) -> Result<Ticket, Refusal> {
        loop {
            let word = self.word();
            match word.state() {
                State::Closed => return Ok(Ticket { generation: word.generation(), probe: false }),
                State::Isolated => {
                    self.count_rejection();
                    return Err(Refusal::Isolated { since: self.since() });
                }
                State::Open => {
                    let (until, now) = (load(&self.until), now());
                    if now < until {
                        let (since, (rule, last)) = (self.since(), self.why());
                        if self.word() != word {
                            continue; // the values may belong to another opening
                        }
                        self.count_rejection();
                        return Err(Refusal::Open { since, rule, last, wait: until.as_nanos() - now.as_nanos() });
                    }
                    let mut inner = self.inner.lock();
                    if self.word() == word {
                        return Ok(self.half_open(set, inner.get_or_insert_default(), now));
                    }
                }
                State::HalfOpen => {
                    let deadline = load(&self.deadline);
                    if self.word().generation() != word.generation() {
                        continue;
                    }
                    let now = now();
                    if now >= deadline {
                        let mut inner = self.inner.lock();
                        if self.word().generation() == word.generation() {
                            let inner = inner.get_or_insert_default();
                            match set.config.half_open.undecided {
                                Undecided::Open => self.open(set, inner, now, TripRule::Undecided, None),
                                Undecided::Close => self.close(set, inner, now),
                            }
                        }
                    } else if word.count() >= set.config.half_open.probes {
                        self.count_rejection();
                        return Err(Refusal::ProbesTaken);
                    } else if self.replace(word, word.with_count(word.count() + 1)) {
                        return Ok(Ticket { generation: word.generation(), probe: true });
                    }
                }
            }
        }
    }

    #[inline]
    fn count_rejection(&self) {
        self.rejections.get_or_init(|| Box::new(Striped::new())).increase();
    }

    /// How many calls were refused.
    pub(super) fn rejected(&self) -> u64 {
        self.rejections.get().map_or(0, |counter| counter.sum())
    }

    /// Gives back a ticket whose call came to nothing.
    pub(super) fn ignore(&self, ticket: Ticket) {
        if !ticket.probe {
            return;
        }
        loop {
            let word = self.word();
            let current = word.state() == State::HalfOpen && word.generation() == ticket.generation;
            if !current || self.replace(word, word.with_count(word.count() - 1)) {
                return;
            }
        }
    }

    /// Records a success that was not slow. True if it may have changed the state.
    #[inline]
    pub(super) fn success(&self, set: &Setting, ticket: Ticket, now: impl Fn() -> Instant) -> bool {
        if ticket.probe {
            self.probed(set, ticket, true, None, now());
            true
        } else if self.tally.success(&self.word, &set.config, ticket.generation, &now) {
            // The outcomes before it are bad enough, and it brings the window to where they are judged.
            self.judge(set, ticket, None, &now);
            true
        } else {
            false
        }
    }

    /// Records a failure, or a slow success.
    #[cold]
    pub(super) fn bad(&self, set: &Setting, ticket: Ticket, mark: Mark, now: impl Fn() -> Instant) {
        if ticket.probe {
            let good = mark.failure.is_none() && !mark.slow;
            self.probed(set, ticket, good, Some(mark), now());
        } else {
            self.judge(set, ticket, Some(mark), &now);
        }
    }

    /// Records what is not plain success, or judges a success, and opens if a rule says so.
    #[cold]
    fn judge(&self, set: &Setting, ticket: Ticket, mark: Option<Mark>, now: &dyn Fn() -> Instant) {
        let mut inner = self.inner.lock();
        let word = self.word();
        if !word.is_closed() || word.generation() != ticket.generation {
            return;
        }
        let inner = inner.get_or_insert_default();
        let made = match mark {
            Some(mark) => {
                self.remember(mark);
                self.tally.bad(&self.word, &set.config, ticket.generation, &mut inner.bads, mark, now)
            }
            None => self.tally.success_judged(&self.word, &set.config),
        };
        let unavailable = mark.and_then(|m| m.unavailable);
        let rule = match unavailable {
            Some(_) => Some(TripRule::Unavailable),
            None => self.tally.verdict(made, &set.config, &inner.bads, now),
        };
        if let Some(rule) = rule {
            self.open(set, inner, now(), rule, mark.and_then(|m| m.unavailable.or(m.retry_after)));
        }
    }

    /// Records a probe's outcome.
    fn probed(&self, set: &Setting, ticket: Ticket, good: bool, mark: Option<Mark>, now: Instant) {
        let mut inner = self.inner.lock();
        let word = self.word();
        if word.state() != State::HalfOpen || word.generation() != ticket.generation {
            return;
        }
        let inner = inner.get_or_insert_default();
        if let Some(mark) = mark {
            self.remember(mark);
        }
        *if good { &mut inner.good } else { &mut inner.bad } += 1;
        let half_open = &set.config.half_open;
        let hint = mark.and_then(|m| m.unavailable.or(m.retry_after));
        if mark.is_some_and(|m| m.unavailable.is_some()) {
            self.open(set, inner, now, TripRule::Unavailable, hint);
        } else if inner.good >= half_open.required() {
            self.close(set, inner, now);
        } else if inner.bad > half_open.probes - half_open.required() {
            self.open(set, inner, now, TripRule::Probes, hint);
        }
    }

    /// Isolates it: it stays open until somebody closes it.
    pub(super) fn isolate(&self, set: &Setting, now: Instant) {
        let mut inner = self.inner.lock();
        self.forget_calm(set, inner.get_or_insert_default(), now);
        self.since.store(now.as_nanos(), Ordering::Release);
        self.enter(State::Isolated, 0);
        set.events.stage(now, || Event::Isolated);
    }

    /// Closes it by hand; with `forget`, also forgets earlier openings.
    pub(super) fn close_by_hand(&self, set: &Setting, now: Instant, forget: bool) {
        let mut inner = self.inner.lock();
        let inner = inner.get_or_insert_default();
        if forget {
            inner.openings = 0;
            self.why.store(0, Ordering::Release);
        }
        self.close(set, inner, now);
    }

    /// Opens it by hand for `d`.
    pub(super) fn open_by_hand(&self, set: &Setting, now: Instant, d: Duration) {
        let mut inner = self.inner.lock();
        let inner = inner.get_or_insert_default();
        self.forget_calm(set, inner, now);
        self.open_until(set, inner, now, TripRule::ByHand, d);
    }

    /// Opens it for `d` because others did, unless it is open by itself, or judging.
    pub(super) fn open_with_others(&self, set: &Setting, now: Instant, d: Duration) -> bool {
        let mut inner = self.inner.lock();
        let follows = match self.word().state() {
            State::Closed => true,
            State::Open => now >= self.until(),
            State::HalfOpen | State::Isolated => false,
        };
        if follows {
            let inner = inner.get_or_insert_default();
            self.forget_calm(set, inner, now);
            self.open_until(set, inner, now, TripRule::Shared, d);
        }
        follows
    }

    fn half_open(&self, set: &Setting, inner: &mut Inner, now: Instant) -> Ticket {
        (inner.good, inner.bad) = (0, 0);
        self.deadline.store((now + set.config.half_open.max).as_nanos(), Ordering::Release);
        let generation = self.enter(State::HalfOpen, 1);
        set.events.stage(now, || Event::HalfOpened);
        Ticket { generation, probe: true }
    }

    fn close(&self, set: &Setting, inner: &mut Inner, now: Instant) {
        if !self.word().is_closed() {
            inner.closed_since = Some(now);
        }
        self.tally.clear(&mut inner.bads);
        self.enter(State::Closed, 0);
        set.events.stage(now, || Event::Closed);
    }

    fn open(&self, set: &Setting, inner: &mut Inner, now: Instant, rule: TripRule, hint: Option<Duration>) {
        let open = &set.config.open;
        self.forget_calm(set, inner, now);
        let grown = scaled(open.base, open.factor.powf(f64::from(inner.openings))).min(open.cap);
        inner.openings = inner.openings.saturating_add(1);
        let jittered = scaled(grown, 1.0 + open.jitter * set.entropy.unit()).min(open.cap);
        let hint = hint.unwrap_or_default().min(open.max_hint);
        self.open_until(set, inner, now, rule, if rule == TripRule::Unavailable { hint } else { jittered.max(hint) });
    }

    /// Forgets an opening for each stable time that it was closed. Called before it leaves that state.
    fn forget_calm(&self, set: &Setting, inner: &mut Inner, now: Instant) {
        if let (true, Some(closed)) = (self.word().is_closed(), inner.closed_since) {
            let calm = (now - closed).as_nanos() / set.config.open.stable_for.as_nanos();
            inner.openings = inner.openings.saturating_sub(u32::try_from(calm).unwrap_or(u32::MAX));
        }
    }

    fn open_until(&self, set: &Setting, inner: &mut Inner, now: Instant, rule: TripRule, open_for: Duration) {
        let (_, last) = self.why();
        // Release: whoever reads one of them without the lock sees that the word was changed since the opening before.
        self.since.store(now.as_nanos(), Ordering::Release);
        self.until.store((now + open_for).as_nanos(), Ordering::Release);
        let last_bits = self.why.load(Ordering::Relaxed) & 0xff;
        self.why.store(u32::from(rule.to_bits()) << 8 | last_bits, Ordering::Release);
        self.enter(State::Open, 0);
        let openings = inner.openings;
        set.events.stage(now, || Event::Opened { rule, open_for, openings, last });
    }

    /// Writes the state, in a new generation. Called under the lock, after everything that belongs to the state.
    fn enter(&self, state: State, count: u32) -> u32 {
        let word = Word::new(state, self.word().generation().wrapping_add(1), count);
        if state != State::Closed {
            // Now, so that no rejection has to allocate it.
            self.rejections.get_or_init(|| Box::new(Striped::new()));
        }
        // A concurrent compare-and-set of the old generation loses; whoever made it is late. (A store would do, but loom orders
        // only swaps among compare-and-sets.)
        self.word.swap(word.0, Ordering::AcqRel);
        word.generation()
    }

    fn replace(&self, old: Word, new: Word) -> bool {
        self.word.compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn remember(&self, mark: Mark) {
        if let Some(kind) = mark.failure {
            let rule = self.why.load(Ordering::Relaxed) & 0xff00;
            self.why.store(rule | (u32::from(kind.to_bits()) + 1), Ordering::Release);
        }
    }

    pub(super) fn why(&self) -> (TripRule, Option<FailureKind>) {
        let why = self.why.load(Ordering::Acquire);
        (TripRule::from_bits((why >> 8) as u8), (why as u8).checked_sub(1).and_then(FailureKind::from_bits))
    }

    pub(super) fn since(&self) -> Instant {
        load(&self.since)
    }

    pub(super) fn until(&self) -> Instant {
        load(&self.until)
    }

    /// Openings in a row, and failures and slow calls in the count window.
    pub(super) fn figures(&self, config: &CircuitBreakerConfig, now: Instant) -> (u32, super::tally::Counts) {
        let inner = self.inner.lock();
        let none = Inner::default();
        let inner = inner.as_deref().unwrap_or(&none);
        (inner.openings, self.tally.counts(self.word(), config, &inner.bads, now))
    }
}

fn load(at: &AtomicU64) -> Instant {
    Instant::from_nanos(at.load(Ordering::Acquire))
}
