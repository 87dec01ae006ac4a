//! The breaker against a model that keeps every record and counts anew each time.
use std::time::Duration;

use proptest::prelude::*;

use super::{
    CircuitBreaker, CircuitBreakerConfig, Permit, SlowStartConfig, State, TripConfig, WindowConfig,
    probes::model::{Probe, waited},
};
use crate::{
    outcome::{FailureKind, Verdict},
    time::{Clock, Instant, ManualClock},
};

#[derive(Debug, Clone, Copy)]
#[expect(clippy::large_enum_variant, reason = "a few hundred of them")]
enum Step {
    Success,
    Failure {
        weight: u32,
    },
    /// A success that takes longer than a call may.
    Slow,
    Ignored,
    Dropped,
    /// A call that ends only at the next such step, in any state.
    Late {
        /// `None` if the outcome is ignored.
        fails: Option<bool>,
    },
    Advance(u64),
    Reconfigure(CircuitBreakerConfig),
}

#[derive(Clone, Copy)]
struct Record {
    at: Instant,
    failed: bool,
    slow: bool,
    weight: u32,
}

/// Naive version of the documented behaviour.
struct Model {
    config: CircuitBreakerConfig,
    state: Modelled,
    generation: u32,
    openings: i32,
    closed_since: Option<Instant>,
    /// Generations of half-open states, and of those that timed out since the limit was doubled.
    half_open: Vec<u32>,
    timed_out: Vec<u32>,
    doublings: u32,
}

enum Modelled {
    Closed(Closed),
    Open { until: Instant },
    HalfOpen { max: Duration, good: u32, bad: u32, log: Vec<(Instant, Probe)> },
}

#[derive(Default)]
struct Closed {
    window: Vec<Record>,
    weights: Vec<Record>,
    in_a_row: u32,
    /// Start of the slow start, and the sum of the shares of all calls since.
    slow_start: Option<(Instant, f64)>,
}

const SLOW: Duration = Duration::from_millis(100);

impl Model {
    fn admit(&mut self, now: Instant) -> Option<u32> {
        let probes = self.config.half_open.permitted_calls;
        match &mut self.state {
            Modelled::Closed(closed) => {
                if let Some((began, sum)) = &mut closed.slow_start {
                    let share = self.config.slow_start.map_or(1.0, |slow_start| {
                        let steps = ((now - *began).as_nanos() * u128::from(slow_start.steps)
                            / slow_start.window.as_nanos()) as f64;
                        slow_start.min_share
                            + (1.0 - slow_start.min_share) * (steps / f64::from(slow_start.steps)).min(1.0)
                    });
                    let before = *sum;
                    *sum += share;
                    if share >= 1.0 {
                        closed.slow_start = None;
                    } else if before.ceil() == (before + share).ceil() {
                        return None;
                    }
                }
            }
            Modelled::Open { until } if now >= *until => {
                let max = self.config.half_open.max_duration * 2_u32.pow(self.doublings);
                self.enter(Modelled::HalfOpen { max, good: 0, bad: 0, log: vec![(now, Probe::Began)] });
                self.half_open.push(self.generation);
            }
            Modelled::Open { .. } => return None,
            Modelled::HalfOpen { max, log, .. } if waited(log, now).1 >= *max => {
                self.timed_out.push(self.generation);
                self.open(now);
                return None;
            }
            Modelled::HalfOpen { good, bad, log, .. } if waited(log, now).0 + *good + *bad < probes => {
                log.push((now, Probe::Began));
            }
            Modelled::HalfOpen { .. } => return None,
        }
        Some(self.generation)
    }

    fn record(&mut self, generation: u32, now: Instant, record: Option<Record>) {
        if generation != self.generation {
            let succeeded = record.is_some_and(|record| !record.failed && !record.slow);
            let is_between = self.timed_out.first().is_some_and(|first| *first <= generation)
                && self.timed_out.last().is_some_and(|last| generation <= *last);
            if succeeded && is_between && self.half_open.contains(&generation) {
                (self.doublings, self.timed_out) = ((self.doublings + 1).min(10), Vec::new());
            }
            return;
        }
        let decided = match (&mut self.state, record) {
            (Modelled::HalfOpen { log, .. }, None) => {
                log.push((now, Probe::Dropped));
                None
            }
            (Modelled::HalfOpen { good, bad, log, .. }, Some(record)) => {
                log.push((now, Probe::Judged));
                *if record.failed || record.slow { bad } else { good } += 1;
                self.settled(now)
            }
            (Modelled::Closed(closed), Some(record)) => {
                if self.config.has_rate() {
                    closed.window.push(record);
                }
                closed.weights.push(record);
                closed.in_a_row = if record.failed { closed.in_a_row + 1 } else { 0 };
                self.settled(now)
            }
            _ => None,
        };
        self.settle(decided, now);
    }

    /// Returns whether the breaker closes (`true`) or opens (`false`) now.
    fn settled(&self, now: Instant) -> Option<bool> {
        let required = self.config.half_open.required();
        match self.state {
            Modelled::HalfOpen { good, .. } if good >= required => Some(true),
            Modelled::HalfOpen { bad, .. } => (bad > self.config.half_open.permitted_calls - required).then_some(false),
            Modelled::Closed(_) => self.broken(now).then_some(false),
            Modelled::Open { .. } => None,
        }
    }

    fn settle(&mut self, decided: Option<bool>, now: Instant) {
        match decided {
            Some(true) => {
                self.closed_since = Some(now);
                let slow_start = self.config.slow_start.map(|_| (now, 0.0));
                self.enter(Modelled::Closed(Closed { slow_start, ..Closed::default() }));
            }
            Some(false) => self.open(now),
            None => {}
        }
    }

    fn reconfigure(&mut self, config: CircuitBreakerConfig, now: Instant) {
        let old = std::mem::replace(&mut self.config, config);
        if let Modelled::Closed(closed) = &mut self.state {
            match (old.window, config.window) {
                _ if !old.has_rate() || !config.has_rate() => closed.window.clear(),
                (WindowConfig::Calls { calls: was }, WindowConfig::Calls { calls }) => {
                    let held = closed.window.len().min(was as usize).min(calls as usize);
                    closed.window.drain(..closed.window.len() - held);
                }
                (was, is) if was == is => {}
                _ => closed.window.clear(),
            }
            if old.trip.consecutive_failures.is_none() || config.trip.consecutive_failures.is_none() {
                closed.in_a_row = 0;
            }
            if old.trip.weight_period != config.trip.weight_period {
                closed.weights.clear();
            }
        }
        self.settle(self.settled(now), now);
    }

    /// Returns the records in the window of the rates.
    fn window(&self, now: Instant) -> Vec<Record> {
        let Modelled::Closed(closed) = &self.state else { return Vec::new() };
        match self.config.window {
            WindowConfig::Calls { calls } => closed.window.iter().rev().take(calls as usize).copied().collect(),
            WindowConfig::Time { time, buckets } => {
                closed.window.iter().filter(|r| within(now, r.at, time, buckets)).copied().collect()
            }
        }
    }

    fn broken(&self, now: Instant) -> bool {
        let Modelled::Closed(closed) = &self.state else { return false };
        let trip = &self.config.trip;
        let window = self.window(now);
        let share = |what: fn(&Record) -> bool| {
            let bad = window.iter().filter(|r| what(r)).count();
            if window.len() < self.config.min_calls as usize { 0.0 } else { bad as f64 / window.len() as f64 }
        };
        let weights = |period| closed.weights.iter().filter(move |r| within(now, r.at, period, 10)).map(|r| r.weight);
        let weight: u32 = trip.weight_period.map_or(0, |period| weights(period).sum());
        trip.failure_rate.is_some_and(|rate| share(|r| r.failed) >= rate)
            || trip.slow_call_rate.is_some_and(|rate| share(|r| r.slow) >= rate)
            || trip.consecutive_failures.is_some_and(|n| closed.in_a_row >= n)
            || trip.weight.is_some_and(|limit| weight >= limit)
    }

    fn open(&mut self, now: Instant) {
        let open = &self.config.open;
        if let (Modelled::Closed(_), Some(since)) = (&self.state, self.closed_since) {
            let calm = (now - since).as_nanos() / open.reset_after.as_nanos();
            self.openings = (self.openings - calm as i32).max(0);
        }
        let time = open.initial_delay.mul_f64(open.factor.powi(self.openings)).min(open.max_delay);
        self.openings += 1;
        self.enter(Modelled::Open { until: now + time });
    }

    fn enter(&mut self, state: Modelled) {
        self.state = state;
        self.generation += 1;
    }

    fn state(&self) -> State {
        match self.state {
            Modelled::Closed(_) => State::Closed,
            Modelled::Open { .. } => State::Open,
            Modelled::HalfOpen { .. } => State::HalfOpen,
        }
    }
}

impl CircuitBreakerConfig {
    fn has_rate(&self) -> bool {
        self.trip.failure_rate.is_some() || self.trip.slow_call_rate.is_some()
    }
}

/// Returns whether `at` lies in the last `buckets` steps of `span`, of which the step of `now` is
/// the last.
fn within(now: Instant, at: Instant, span: Duration, buckets: u32) -> bool {
    let width = (span / buckets).as_nanos() as u64;
    now.as_nanos() / width - at.as_nanos() / width < u64::from(buckets)
}

fn configs() -> impl Strategy<Value = CircuitBreakerConfig> {
    let window = prop_oneof![
        (1u32..12).prop_map(|calls| WindowConfig::Calls { calls }),
        (1u64..6, 1u32..6)
            .prop_map(|(s, buckets)| WindowConfig::Time { time: Duration::from_millis(s * 600), buckets }),
    ];
    let share = || proptest::option::of(prop_oneof![Just(0.1), Just(0.25), Just(0.5), Just(1.0)]);
    let rules = (share(), share(), proptest::option::of(1u32..6), proptest::option::of(1u32..30));
    // Shares that binary fractions hold exactly.
    let slow_start = (200u64..3000, prop_oneof![Just(0.25), Just(0.5)], prop_oneof![Just(1), Just(2), Just(4)])
        .prop_map(|(ms, from, steps)| SlowStartConfig::stepped(Duration::from_millis(ms), from, steps));
    let half_open = (1u32..5, prop_oneof![Just(0.3), Just(0.6), Just(1.0)]);
    (window, 1u32..12, rules, half_open, proptest::option::of(slow_start), any::<bool>()).prop_filter_map(
        "at least one rule",
        |(window, min_calls, rules, (probes, success_rate), slow_start, long)| {
            let (failure_rate, slow_call_rate, consecutive_failures, weight) = rules;
            let mut config = CircuitBreakerConfig { window, min_calls, ..CircuitBreakerConfig::default() };
            if let WindowConfig::Calls { calls } = window {
                config.min_calls = min_calls.min(calls);
            }
            config.trip = TripConfig {
                failure_rate,
                slow_call_rate,
                slow_call: slow_call_rate.map(|_| SLOW),
                consecutive_failures,
                weight,
                weight_period: weight.map(|_| Duration::from_millis(if long { 3000 } else { 1500 })),
            };
            config.slow_start = slow_start;
            config.open.jitter = 0.0;
            config.open.initial_delay = Duration::from_millis(500);
            config.open.reset_after = Duration::from_millis(2000);
            (config.half_open.permitted_calls, config.half_open.success_rate) = (probes, success_rate);
            config.half_open.max_duration = Duration::from_millis(3000);
            config.check().is_ok().then_some(config)
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Success),
        6 => (1u32..6).prop_map(|weight| Step::Failure { weight }),
        2 => Just(Step::Slow),
        1 => Just(Step::Ignored),
        1 => Just(Step::Dropped),
        2 => any::<Option<bool>>().prop_map(|fails| Step::Late { fails }),
        4 => (0u64..1200).prop_map(Step::Advance),
        1 => configs().prop_map(Step::Reconfigure),
    ];
    proptest::collection::vec(step, 1..150)
}

/// Makes one call of the breaker and of the model, and ends both in the same way.
fn step(breaker: &CircuitBreaker, model: &mut Model, time: &ManualClock, step: Step) -> Result<(), TestCaseError> {
    let permit = breaker.try_acquire().ok();
    let admitted = model.admit(time.now());
    prop_assert_eq!(permit.is_some(), admitted.is_some());
    let (Some(permit), Some(generation)) = (permit, admitted) else { return Ok(()) };
    if matches!(step, Step::Slow) {
        time.advance(SLOW + Duration::from_nanos(1));
    }
    let slow = matches!(step, Step::Slow) && model.config.trip.slow_call.is_some();
    let (verdict, failed, weight) = match step {
        Step::Failure { weight } => (Verdict::failure(FailureKind::Server).weighing(weight), true, weight),
        Step::Ignored => (Verdict::ignore(), false, 0),
        _ => (Verdict::success(), false, 0),
    };
    let now = time.now();
    match step {
        Step::Dropped => drop(permit),
        _ => permit.record(verdict),
    }
    let counted = !matches!(step, Step::Dropped | Step::Ignored);
    model.record(generation, now, counted.then_some(Record { at: now, failed, slow, weight }));
    Ok(())
}

proptest! {
    // 256 cases; `.ci/run` sets 2,000 by `PROPTEST_CASES`.

    #[test]
    fn the_state_machine_equals_the_naive_model(config in configs(), steps in steps()) {
        let (clock, time) = Clock::manual();
        let began = time.now();
        let breaker = CircuitBreaker::builder(config).clock(&clock).build().unwrap();
        let closed = Modelled::Closed(Closed::default());
        let mut model = Model {
            config,
            state: closed,
            generation: 0,
            openings: 0,
            closed_since: None,
            half_open: Vec::new(),
            timed_out: Vec::new(),
            doublings: 0,
        };
        let mut late: Option<(Permit<'_>, u32)> = None;
        for s in steps {
            match s {
                Step::Advance(ms) => time.advance(Duration::from_millis(ms)),
                Step::Reconfigure(config) => {
                    breaker.reconfigure(config).unwrap();
                    model.reconfigure(config, time.now());
                }
                Step::Late { fails } => match late.take() {
                    None => {
                        let (permit, admitted) = (breaker.try_acquire().ok(), model.admit(time.now()));
                        prop_assert_eq!(permit.is_some(), admitted.is_some());
                        late = permit.zip(admitted);
                    }
                    Some((permit, generation)) => {
                        // Slow only under a slow-call rule, and by its duration.
                        permit.record(match fails {
                            Some(true) => Verdict::failure(FailureKind::Server).weighing(1),
                            Some(false) => Verdict::success(),
                            None => Verdict::ignore(),
                        });
                        let now = time.now();
                        if fails.is_some() && model.config.trip.slow_call.is_some() {
                            // The model does not know the start of the call: other steps cover slowness.
                            return Ok(());
                        }
                        let record = fails.map(|failed| Record { at: now, failed, slow: false, weight: u32::from(failed) });
                        model.record(generation, now, record);
                    }
                },
                s => step(&breaker, &mut model, &time, s)?,
            }
            let (snapshot, window) = (breaker.snapshot(), model.window(time.now()));
            prop_assert_eq!(snapshot.state, model.state());
            let count = |what: fn(&Record) -> bool| window.iter().filter(|r| what(r)).count() as u64;
            let held = (count(|_| true), count(|r| r.failed), count(|r| r.slow));
            prop_assert_eq!((snapshot.calls, snapshot.failures, snapshot.slow), held);
            let life = State::ALL.iter().map(|state| snapshot.time_in(*state)).sum::<Duration>();
            prop_assert_eq!(life, time.now() - began);
        }
    }
}

#[test]
fn the_count_may_wrap_without_effect() {
    let (clock, _hand) = Clock::manual();
    let rules = TripConfig::default().failure_rate(0.5);
    let config = CircuitBreakerConfig::default().trip(rules).count_window(10, 10);
    let breaker = CircuitBreaker::builder(config).clock(&clock).build().unwrap();
    let record = |verdict, n| (0..n).for_each(|_| breaker.try_acquire().unwrap().record(verdict));
    record(Verdict::success(), 20);
    // As after 2^32 outcomes.
    breaker.set_count_for_test(u32::MAX - 3);
    record(Verdict::failure(FailureKind::Server), 4);
    record(Verdict::success(), 9);
    assert_eq!((breaker.state(), breaker.snapshot().failures), (State::Closed, 1));
    record(Verdict::failure(FailureKind::Server), 4);
    assert_eq!(breaker.state(), State::Closed);
    record(Verdict::failure(FailureKind::Server), 1);
    assert_eq!(breaker.state(), State::Open);
}
