//! State transitions: each under the lock, and the word last.
use std::time::Duration;

use super::{
    super::{
        CircuitBreakerConfig, CircuitBreakerEvent as Event, Transition,
        probes::{Patience, Probes},
        window::Setting,
    },
    Core, Inner, State, Ticket, Word, load,
};
use crate::{backoff::scaled, outcome::TripRule, sync::Ordering, time::Instant};

/// Number of consecutive openings soon after closing from which on the breaker flaps.
const FLAPS: u32 = 3;

impl Core {
    /// Isolates the breaker: it stays open until it is closed manually.
    pub(in super::super) fn isolate(&self, set: &Setting, now: Instant) {
        let mut inner = self.inner.lock();
        let inner = self.fresh(set, &mut inner);
        self.forget_calm(inner, now);
        let gate = self.gate(set);
        self.begin_replacing();
        gate.since.store(now.as_nanos(), Ordering::Release);
        self.enter(set, inner, now, Word::new(State::Isolated, 0, 0), None);
        set.events.stage_as(self.name.as_ref(), now, || Event::Isolated);
    }

    /// Closes the breaker manually. With `forget`, also forgets earlier openings.
    pub(in super::super) fn close_manually(&self, set: &Setting, now: Instant, forget: bool) {
        let mut inner = self.inner.lock();
        let inner = self.fresh(set, &mut inner);
        if forget {
            (inner.openings, inner.totals.flaps, inner.last) = (0, 0, None);
            inner.patience = Patience::default();
            if let Some(gate) = self.gate_if_any() {
                gate.set_last(None);
            }
        }
        self.close(set, inner, now, true);
    }

    /// Opens the breaker manually for `d`.
    pub(in super::super) fn open_manually(&self, set: &Setting, now: Instant, d: Duration) {
        let mut inner = self.inner.lock();
        let inner = self.fresh(set, &mut inner);
        self.forget_calm(inner, now);
        self.open_until(set, inner, now, TripRule::Manual, d);
    }

    /// Opens the breaker for `d` because other processes opened theirs. Returns `false` if it is
    /// open by its own rules, half-open or isolated, or if its registry's limit is reached.
    pub(in super::super) fn open_with_others(&self, set: &Setting, now: Instant, d: Duration) -> bool {
        let mut inner = self.inner.lock();
        let follows = match self.word().state() {
            State::Closed => set.open_limit.as_ref().is_none_or(|limit| limit.try_open()),
            State::Open => self.gate_if_any().is_none_or(|gate| now >= load(&gate.until)),
            State::HalfOpen | State::Isolated => false,
        };
        if follows {
            let inner = self.fresh(set, &mut inner);
            self.forget_calm(inner, now);
            self.open_until(set, inner, now, TripRule::Shared, d);
        }
        follows
    }

    /// Sets the remaining open time of a breaker that opened with others. A breaker that opened by
    /// its own rules is left unchanged.
    pub(in super::super) fn stay_open_with_others(&self, now: Instant, left: Duration) {
        let _inner = self.inner.lock();
        if let (State::Open, Some(gate)) = (self.word().state(), self.gate_if_any())
            && gate.why().0 == TripRule::Shared
        {
            gate.until.store((now + left).as_nanos(), Ordering::Release);
        }
    }

    /// Takes over a replaced configuration, and judges the recorded outcomes by it.
    pub(in super::super) fn reconfigured(&self, set: &Setting, now: Instant) {
        let mut inner = self.inner.lock();
        if inner.is_none() {
            // No failure was ever recorded, so there is nothing to judge, and a healthy breaker of
            // a large registry stays small.
            return self.tally.reshape(&self.word, &set.whole().1, None);
        }
        let inner = self.fresh(set, &mut inner);
        let word = self.word();
        if word.state() == State::HalfOpen {
            self.decide(set, inner, now, None);
        } else if word.is_closed()
            && let Some(rule) = self.tally.verdict(self.tally.as_it_is(word), &inner.config, &inner.bads, &|| now)
        {
            self.trip(set, inner, now, rule, None);
        }
    }

    /// Enters the half-open state, and admits the first probe.
    pub(in super::super) fn half_open(&self, set: &Setting, inner: &mut Inner, now: Instant) -> Ticket {
        inner.probes = Probes::begin(now, inner.patience.limit(inner.config.half_open.max_duration));
        self.gate(set).deadline.store(inner.probes.deadline().as_nanos(), Ordering::Release);
        let generation = self.enter(set, inner, now, Word::new(State::HalfOpen, 0, 1), None);
        set.events.stage_as(self.name.as_ref(), now, || Event::HalfOpened);
        Ticket { generation, probe: true }
    }

    /// Closes or opens the breaker as soon as the results of the probes settle it.
    pub(in super::super) fn decide(&self, set: &Setting, inner: &mut Inner, now: Instant, hint: Option<Duration>) {
        let half_open = inner.config.half_open;
        if inner.probes.good >= half_open.required() {
            self.close(set, inner, now, false);
        } else if inner.probes.bad > half_open.permitted_calls - half_open.required() {
            self.open(set, inner, now, TripRule::Probes, hint);
        }
    }

    /// Closes the breaker and empties its windows.
    pub(in super::super) fn close(&self, set: &Setting, inner: &mut Inner, now: Instant, is_manual: bool) {
        if !self.word().is_closed() {
            inner.closed_since = Some(now);
        }
        self.tally.clear(&mut inner.bads);
        inner.totals.suppression_sent = false;
        let slow_start = inner.config.slow_start.is_some() && !is_manual;
        if slow_start {
            self.gate(set).begin_slow_start(now);
        }
        self.enter(set, inner, now, Word::new(State::Closed, 0, 0).with_slow_start(slow_start), None);
        set.events.stage_as(self.name.as_ref(), now, || Event::Closed);
    }

    /// Replaces the word `old` by `new`, if it is still `old`.
    pub(in super::super) fn replace(&self, old: Word, new: Word) -> bool {
        self.word.compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Ends the slow start: all calls pass.
    #[cold]
    pub(in super::super) fn end_slow_start(&self, set: &Setting, generation: u32, now: Instant) {
        let _inner = self.inner.lock();
        loop {
            let word = self.word();
            if !word.is_closed() || !word.in_slow_start() || word.generation() != generation {
                return;
            }
            if self.replace(word, word.with_slow_start(false)) {
                return set.events.stage_as(self.name.as_ref(), now, || Event::SlowStartEnded);
            }
        }
    }

    /// Opens a closed breaker by a rule, if its registry's limit allows it.
    pub(in super::super) fn trip(
        &self,
        set: &Setting,
        inner: &mut Inner,
        now: Instant,
        rule: TripRule,
        hint: Option<Duration>,
    ) {
        if set.open_limit.as_ref().is_none_or(|limit| limit.try_open()) {
            return self.open(set, inner, now, rule, hint);
        }
        inner.totals.suppressed += 1;
        if !std::mem::replace(&mut inner.totals.suppression_sent, true) {
            set.events.stage_as(self.name.as_ref(), now, || Event::Suppressed { rule });
        }
    }

    /// Opens the breaker by a rule, for a time that grows with consecutive openings.
    pub(in super::super) fn open(
        &self,
        set: &Setting,
        inner: &mut Inner,
        now: Instant,
        rule: TripRule,
        hint: Option<Duration>,
    ) {
        let open = inner.config.open;
        let flaps = self.word().is_closed() && inner.closed_since.is_some_and(|closed| now - closed < open.reset_after);
        if self.word().is_closed() {
            inner.totals.flaps = if flaps { inner.totals.flaps.saturating_add(1) } else { 0 };
        }
        self.forget_calm(inner, now);
        let grown = scaled(open.initial_delay, open.factor.powf(f64::from(inner.openings))).min(open.max_delay);
        inner.openings = inner.openings.saturating_add(1);
        let jittered = scaled(grown, 1.0 + open.jitter * set.entropy.unit()).min(open.max_delay);
        let hint = hint.unwrap_or_default().min(open.max_hint);
        let open_for = if rule == TripRule::Unavailable { hint } else { jittered.max(hint) };
        self.open_until(set, inner, now, rule, open_for);
        let times = inner.totals.flaps;
        if flaps && times >= FLAPS {
            set.events.stage_as(self.name.as_ref(), now, || Event::Flapped { times });
        }
    }

    /// Subtracts one opening for each `reset_after` in the closed state. Called before the breaker
    /// leaves that state.
    fn forget_calm(&self, inner: &mut Inner, now: Instant) {
        if let (true, Some(closed)) = (self.word().is_closed(), inner.closed_since) {
            let calm = (now - closed).as_nanos() / inner.config.open.reset_after.as_nanos();
            inner.openings = inner.openings.saturating_sub(u32::try_from(calm).unwrap_or(u32::MAX));
        }
    }

    fn open_until(&self, set: &Setting, inner: &mut Inner, now: Instant, rule: TripRule, open_for: Duration) {
        let gate = self.gate(set);
        self.begin_replacing();
        gate.set_last(inner.last);
        let (_, last) = gate.why();
        // Release: a caller that reads one of them without the lock also sees every change of the
        // word up to here (`word.rs`).
        gate.since.store(now.as_nanos(), Ordering::Release);
        gate.until.store((now + open_for).as_nanos(), Ordering::Release);
        gate.set_rule(rule);
        inner.totals.openings += 1;
        self.enter(set, inner, now, Word::new(State::Open, 0, 0), Some((rule, open_for)));
        let openings = inner.openings;
        set.events.stage_as(self.name.as_ref(), now, || Event::Opened { rule, open_for, openings, last });
    }

    /// Returns the word. If the values of an opening are being replaced, waits for the new ones.
    #[inline]
    pub(in super::super) fn word_of_values(&self) -> Word {
        loop {
            let word = self.word();
            if !word.is_replacing() {
                return word;
            }
            drop(self.inner.lock()); // held while they are replaced
        }
    }

    /// Marks the word of an open or isolated breaker, whose values in the gate are replaced next.
    /// [`enter`](Self::enter) ends the mark. Called under the lock.
    fn begin_replacing(&self) {
        let word = self.word();
        if word.has_opening() {
            self.word.swap(word.with_count(1).0, Ordering::AcqRel);
        }
    }

    /// Writes the state, in a new generation. Called under the lock, after all values of that
    /// state. An opening of a closed breaker by a rule was counted in the registry's limit before.
    fn enter(
        &self,
        set: &Setting,
        inner: &mut Inner,
        now: Instant,
        to: Word,
        opened: Option<(TripRule, Duration)>,
    ) -> u32 {
        let (from, after) = (self.word().state(), now - load(&self.entered));
        let to_state = to.state();
        if to_state != State::Closed {
            self.gate(set); // allocated here, so that no rejection allocates
        }
        if from != to_state {
            inner.totals.time[usize::from(from.number())] += after;
            self.entered.store(now.as_nanos(), Ordering::Release);
        }
        if let Some(limit) = &set.open_limit {
            let by_rule = opened.is_some_and(|(rule, _)| rule != TripRule::Manual);
            match (from, to_state) {
                (State::Closed, State::Closed) => {}
                (State::Closed, _) if !by_rule => limit.count_open(),
                (_, State::Closed) => limit.count_closed(),
                _ => {}
            }
        }
        // A concurrent compare-and-set of the old generation fails: its outcome is late. The old word's
        // generation cannot change without the lock. (A store would suffice, but loom orders only
        // read-modify-writes among compare-and-sets.)
        let word = to.in_generation(self.word().generation()).next();
        inner.lineage = word.generation();
        self.word.swap(word.0, Ordering::AcqRel);
        if from != to_state || to_state == State::Open {
            let (rule, open_for) = opened.unzip();
            set.transitions.stage_as(self.name.as_ref(), now, || Transition {
                from,
                to: to_state,
                after,
                rule,
                open_for,
            });
        }
        word.generation()
    }

    /// Returns whether a registry may remove the breaker: it is as good as new, or the time to
    /// probe is long past and no call has come.
    pub(in super::super) fn is_forgettable(&self, config: &CircuitBreakerConfig, now: Instant) -> bool {
        let inner = self.inner.lock();
        let calm = config.open.reset_after;
        match (self.word().state(), inner.as_deref()) {
            (_, None) => true,
            (State::Isolated, _) => false,
            (State::Closed, Some(inner)) => {
                inner.openings == 0
                    || inner.closed_since.is_some_and(|closed| now - closed >= calm.saturating_mul(inner.openings))
            }
            (State::Open, Some(_)) => self.gate_if_any().is_none_or(|gate| now >= load(&gate.until) + calm),
            (State::HalfOpen, Some(_)) => self.gate_if_any().is_none_or(|gate| now >= load(&gate.deadline) + calm),
        }
    }
}
