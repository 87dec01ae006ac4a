//! The machine against a naive model of OTP's supervisor, and its promises under every delay.
use std::{collections::VecDeque, time::Duration};

use proptest::{prelude::*, sample::select};

use super::{
    ChildPhase, Restart, Strategy as Sets, SupervisorConfig,
    state::{Action, ChildRules, End, Machine, Outcome},
};
use crate::{entropy::Entropy, time::Instant};

const START: Instant = Instant::from_nanos(1_000_000_000);

/// A restart, stop or start, as both sides report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Stopped(usize),
    Started(usize),
}

/// The rules of a child: type, optional, waited for.
type Rules = (Restart, bool, bool);

fn any_rules() -> impl Strategy<Value = Vec<Rules>> {
    let restart = select(vec![Restart::Permanent, Restart::Permanent, Restart::Transient, Restart::Temporary]);
    prop::collection::vec((restart, prop::bool::weighted(0.2), any::<bool>()), 1..6)
}

fn any_sets() -> impl Strategy<Value = Sets> {
    select(vec![Sets::OneForOne, Sets::OneForAll, Sets::RestForOne])
}

fn machine(config: SupervisorConfig, rules: &[Rules], seed: u64) -> Machine {
    let rules = rules.iter().enumerate().map(|(i, (restart, is_optional, waits_for_ready))| ChildRules {
        name: i.to_string().into(),
        restart: *restart,
        is_optional: *is_optional,
        waits_for_ready: *waits_for_ready,
    });
    Machine::new(config, rules.collect(), Entropy::from_seed(seed))
}

/// The reason for which an instance ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    Normal,
    Failure,
    /// A restart of the child alone was asked for, as by OTP's `restart_child`.
    Requested,
}

fn any_exit() -> impl Strategy<Value = Exit> {
    select(vec![Exit::Normal, Exit::Failure, Exit::Requested])
}

/// OTP's supervisor, written as its source is: a list of children, of which some live.
struct Model {
    sets: Sets,
    children: Vec<Rules>,
    /// `None` once a temporary child is deleted; else whether it lives.
    lives: Vec<Option<bool>>,
    max_restarts: usize,
    window: Duration,
    restarts: Vec<Instant>,
    is_over: bool,
}

impl Model {
    fn exits(&mut self, child: usize, normally: bool, now: Instant) -> Vec<Step> {
        let (restart, is_optional, _) = self.children[child];
        self.lives[child] = Some(false);
        match (restart, normally) {
            (Restart::Temporary, _) => {
                self.lives[child] = None;
                return Vec::new();
            }
            (Restart::Transient, true) => return Vec::new(),
            _ => {}
        }
        let mut steps = Vec::new();
        // Ours, not OTP's: an optional child uses no budget and is restarted alone.
        if is_optional {
            self.start(child..child + 1, &mut steps);
            return steps;
        }
        self.restarts.push(now);
        self.restarts.retain(|at| now - *at <= self.window);
        if self.restarts.len() > self.max_restarts {
            self.terminate(0, &mut steps);
            self.is_over = true;
            return steps;
        }
        let end = self.children.len();
        match self.sets {
            Sets::OneForOne => self.start(child..child + 1, &mut steps),
            Sets::OneForAll => {
                self.terminate(0, &mut steps);
                self.start(0..end, &mut steps);
            }
            Sets::RestForOne => {
                self.terminate(child, &mut steps);
                self.start(child..end, &mut steps);
            }
        }
        steps
    }

    fn terminate(&mut self, from: usize, steps: &mut Vec<Step>) {
        for child in (from..self.children.len()).rev() {
            if self.lives[child] == Some(true) {
                steps.push(Step::Stopped(child));
                self.lives[child] = if self.children[child].0 == Restart::Temporary { None } else { Some(false) };
            }
        }
    }

    fn start(&mut self, children: std::ops::Range<usize>, steps: &mut Vec<Step>) {
        for child in children {
            if self.lives[child] == Some(false) {
                steps.push(Step::Started(child));
                self.lives[child] = Some(true);
            }
        }
    }
}

/// Lets the machine act until nothing is due, with children that obey at once.
fn settle(machine: &mut Machine, now: &mut Instant, rules: &[Rules]) -> Vec<Step> {
    let mut steps = Vec::new();
    loop {
        let actions = machine.advance(*now);
        let is_quiet = actions.is_empty();
        for action in actions {
            match action {
                Action::Start { child, instance } => {
                    steps.push(Step::Started(child));
                    if rules[child].2 {
                        machine.ready(child, instance, *now);
                    }
                }
                Action::Stop { child, .. } => {
                    steps.push(Step::Stopped(child));
                    let instance = machine.slots[child].instance;
                    machine.ended(child, instance, End::Finished, *now);
                }
                Action::Drop { child } => panic!("{child} is dropped, although it obeys"),
            }
        }
        if machine.outcome().is_some() || is_quiet && machine.next() == Instant::FAR_FUTURE {
            return steps;
        }
        if is_quiet {
            *now = machine.next().max(*now);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    // Guarantee: supervisor 2.
    #[test]
    fn a_failure_stops_and_restarts_the_set_that_the_naive_model_of_otp_does(
        rules in any_rules(), sets in any_sets(), max_restarts in 0u32..5, seed: u64,
        exits in prop::collection::vec((any::<prop::sample::Index>(), any_exit(), 0u64..40), 1..16),
    ) {
        let config = SupervisorConfig::default().strategy(sets).max_restarts(max_restarts);
        let (mut machine, mut now) = (machine(config, &rules, seed), START);
        let mut model = Model {
            sets,
            children: rules.clone(),
            lives: vec![Some(false); rules.len()],
            max_restarts: max_restarts as usize,
            window: config.restart_window,
            restarts: Vec::new(),
            is_over: false,
        };
        let mut started = Vec::new();
        model.start(0..rules.len(), &mut started);
        // Optional children are started with the others here: none waits.
        prop_assert_eq!(settle(&mut machine, &mut now, &rules), started);
        for (which, exit, seconds) in exits {
            let running: Vec<_> = (0..rules.len()).filter(|i| machine.slots[*i].phase == ChildPhase::Ready).collect();
            if running.is_empty() {
                break;
            }
            let child = running[which.index(running.len())];
            now = now + Duration::from_secs(seconds);
            let instance = machine.slots[child].instance;
            let expected = match exit {
                Exit::Requested => {
                    prop_assert_eq!(machine.restart_on_request(child), Ok(instance + 1));
                    vec![Step::Stopped(child), Step::Started(child)]
                }
                Exit::Normal => {
                    machine.ended(child, instance, End::Finished, now);
                    model.exits(child, true, now)
                }
                Exit::Failure => {
                    machine.ended(child, instance, End::Failed("broken".to_owned()), now);
                    model.exits(child, false, now)
                }
            };
            prop_assert_eq!(settle(&mut machine, &mut now, &rules), expected);
            if exit == Exit::Requested {
                prop_assert_eq!(machine.has_restarted(child, instance + 1), Some(Ok(())));
            }
            let lives: Vec<_> = machine.slots.iter().map(|slot| slot.phase == ChildPhase::Ready).collect();
            let expected: Vec<_> = model.lives.iter().map(|lives| *lives == Some(true)).collect();
            prop_assert_eq!(lives, expected);
            let escalated = matches!(machine.outcome(), Some(Outcome::Escalated { .. }));
            prop_assert_eq!(escalated, model.is_over);
            if escalated {
                break;
            }
        }
    }
}

/// The reaction of an instance to what it is asked, each after some milliseconds.
#[derive(Debug, Clone, Copy)]
struct Habits {
    ready_after: Option<u64>,
    ends_after: Option<(u64, bool)>,
    stops_after: Option<u64>,
    drops_after: Option<u64>,
}

fn any_habits() -> impl Strategy<Value = Habits> {
    let some = |below: u64| prop::option::weighted(0.8, 0..below);
    let parts = (some(40_000), prop::option::of((0u64..90_000, any::<bool>())), some(20_000), some(3_000));
    parts.prop_map(|(ready_after, ends_after, stops_after, drops_after)| Habits {
        ready_after,
        ends_after,
        stops_after,
        drops_after,
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Happens {
    Ready,
    Ends(bool),
    Stops,
    Drops,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    // Guarantee: supervisor 5.
    #[test]
    fn under_every_delay_no_child_runs_twice_and_a_shutdown_ends_in_its_time(
        rules in any_rules(), sets in any_sets(), seed: u64, shuts_after in 0u64..200_000,
        habits in prop::collection::vec(any_habits(), 8),
        requests in prop::collection::vec((0u64..200_000, any::<prop::sample::Index>()), 0..4),
    ) {
        let config = SupervisorConfig::default().strategy(sets).max_restarts(3);
        let mut machine = machine(config, &rules, seed);
        let shut_at = START + Duration::from_millis(shuts_after);
        let mut due: VecDeque<(Instant, usize, u64, Happens)> = VecDeque::new();
        let (mut now, mut alive, mut is_shut, mut ending) = (START, vec![false; rules.len()], false, None);
        let mut requests: Vec<_> =
            requests.iter().map(|(ms, which)| (START + Duration::from_millis(*ms), which.index(rules.len()))).collect();
        let mut asked = Vec::new();
        // The children that a failure, a late start or a request stops: none other may be stopped.
        let mut may_stop = vec![false; rules.len()];
        let after = |now: Instant, ms: u64| now + Duration::from_millis(ms);
        for turn in 0.. {
            prop_assert!(turn < 20_000, "the machine turns without end");
            let actions = machine.advance(now);
            for event in std::mem::take(&mut machine.events) {
                use super::{ChildFailure, SupervisorEvent as Event};
                let number = |name: &crate::config::Name| name.as_str().parse::<usize>().unwrap();
                match event {
                    Event::Stopping => ending = ending.or(Some(now)),
                    Event::RestartRequested { child } => may_stop[number(&child)] = true,
                    Event::Failed { child, failure: ChildFailure::StartTimeout, .. } => may_stop[number(&child)] = true,
                    Event::Restarting { child, .. } => {
                        let child = number(&child);
                        let set = match sets {
                            _ if rules[child].1 => child..child,
                            Sets::OneForOne => child..child,
                            Sets::OneForAll => 0..rules.len(),
                            Sets::RestForOne => child + 1..rules.len(),
                        };
                        set.for_each(|other| may_stop[other] |= alive[other] && other != child);
                    }
                    _ => {}
                }
            }
            for action in actions {
                match action {
                    Action::Start { child, instance } => {
                        may_stop[child] = false;
                        prop_assert!(!alive[child], "{} runs twice", child);
                        // A set starts in order, behind those that are needed and not ready.
                        let holds_up = |slot: &super::state::Slot| {
                            let is_ready = matches!(slot.phase, ChildPhase::Ready | ChildPhase::Finished);
                            !slot.rules.is_optional && !is_ready && sets != Sets::OneForOne
                        };
                        prop_assert!(!machine.slots.iter().take(child).any(holds_up), "{} starts early", child);
                        alive[child] = true;
                        let habit = habits[(child + instance as usize) % habits.len()];
                        due.extend(habit.ready_after.map(|ms| (after(now, ms), child, instance, Happens::Ready)));
                        let ends = habit.ends_after;
                        due.extend(ends.map(|(ms, well)| (after(now, ms), child, instance, Happens::Ends(well))));
                    }
                    Action::Stop { child, by } => {
                        prop_assert!(alive[child] && by >= now);
                        let may_stop = std::mem::take(&mut may_stop[child]);
                        prop_assert!(may_stop || ending.is_some(), "{} is in no set", child);
                        let instance = machine.slots[child].instance;
                        let habit = habits[(child + instance as usize) % habits.len()];
                        due.extend(habit.stops_after.map(|ms| (after(now, ms), child, instance, Happens::Stops)));
                        let is_waited_for = |slot: &&super::state::Slot| {
                            slot.phase == ChildPhase::Stopping && !slot.rules.is_optional
                        };
                        let stopping = machine.slots.iter().filter(is_waited_for).count();
                        let is_apart = is_shut || ending.is_some() || sets == Sets::OneForOne;
                        prop_assert!(is_apart || stopping <= 1, "one at a time");
                    }
                    Action::Drop { child } => {
                        prop_assert!(alive[child]);
                        let instance = machine.slots[child].instance;
                        let habit = habits[(child + instance as usize) % habits.len()];
                        due.extend(habit.drops_after.map(|ms| (after(now, ms), child, instance, Happens::Drops)));
                    }
                }
            }
            asked.retain(|(child, instance)| machine.has_restarted(*child, *instance).is_none());
            if let Some(outcome) = machine.outcome() {
                prop_assert!(asked.is_empty(), "nobody answers {:?}", asked);
                // None is left behind without a name.
                for (slot, alive) in machine.slots.iter().zip(&alive) {
                    prop_assert!(!alive || slot.unstopped == Some(super::Unstopped::Blocked));
                }
                if let Some(began) = ending {
                    prop_assert!(now - began <= config.shutdown_timeout, "{:?} took {:?}", outcome, now - began);
                }
                return Ok(());
            }
            let happens = due.iter().map(|(at, ..)| *at).min().unwrap_or(Instant::FAR_FUTURE);
            let shuts = if is_shut { Instant::FAR_FUTURE } else { shut_at };
            let asks = requests.iter().map(|(at, _)| *at).min().unwrap_or(Instant::FAR_FUTURE);
            let next = machine.next().min(happens).min(shuts).min(asks);
            prop_assert!(next < Instant::FAR_FUTURE, "the machine waits for nothing");
            now = now.max(next);
            if !is_shut && now >= shut_at {
                is_shut = true;
                machine.shut_down(now);
            }
            for (_, child) in requests.extract_if(.., |(at, _)| *at <= now) {
                asked.extend(machine.restart_on_request(child).ok().map(|instance| (child, instance)));
            }
            let (past, later): (Vec<_>, Vec<_>) = due.into_iter().partition(|(at, ..)| *at <= now);
            due = later.into();
            for (_, child, instance, happens) in past {
                if machine.slots[child].instance != instance || !alive[child] {
                    continue;
                }
                let end = match happens {
                    Happens::Ready => {
                        machine.ready(child, instance, now);
                        continue;
                    }
                    Happens::Ends(true) | Happens::Stops => End::Finished,
                    Happens::Ends(false) => End::Failed("broken".to_owned()),
                    Happens::Drops => End::Dropped,
                };
                alive[child] = false;
                machine.ended(child, instance, end, now);
            }
        }
    }
}

fn child(is_optional: bool, waits_for_ready: bool) -> Rules {
    (Restart::Permanent, is_optional, waits_for_ready)
}

// Guarantee: supervisor 4.
#[test]
fn a_child_that_blocks_in_the_stop_for_a_restart_escalates() {
    let config = SupervisorConfig::default().strategy(Sets::OneForAll);
    let mut machine = machine(config, &[child(false, false), child(false, false)], 1);
    machine.advance(START);
    machine.ended(0, 1, End::Failed("broken".to_owned()), START);
    let mut now = START;
    // The second child neither stops nor is dropped.
    while machine.outcome().is_none() {
        assert!(now < START + Duration::from_secs(60), "nothing happens any more");
        machine.advance(now);
        now = machine.next().max(now);
    }
    assert_eq!(machine.outcome(), Some(Outcome::Escalated { child: 1 }));
    assert_eq!(machine.slots[1].causes.back().unwrap(), "it blocks its thread");
}

#[test]
fn a_child_that_is_ready_after_its_start_has_failed_does_not_count() {
    let config = SupervisorConfig::default().strategy(Sets::RestForOne);
    let rules = [child(false, true), child(false, false)];
    let mut machine = machine(config, &rules, 1);
    machine.advance(START);
    let late = START + config.start_timeout;
    machine.advance(late);
    machine.ready(0, 1, late);
    assert_eq!(machine.slots[0].phase, ChildPhase::Stopping);
    assert!(machine.advance(late).is_empty(), "the second child still waits");
}

#[test]
fn a_child_that_was_ready_for_long_and_is_restarted_with_its_set_has_short_delays_again() {
    use crate::backoff::{BackoffConfig, Jitter};
    let delays = BackoffConfig::default().between(Duration::from_secs(1), Duration::from_secs(64)).jitter(Jitter::None);
    let config = SupervisorConfig::default().strategy(Sets::OneForAll).backoff(delays);
    let rules = [child(false, false), child(false, false)];
    let (mut machine, mut now) = (machine(config.max_restarts(100), &rules, 1), START);
    settle(&mut machine, &mut now, &rules);
    for _ in 0..4 {
        machine.ended(0, machine.slots[0].instance, End::Failed("broken".to_owned()), now);
        settle(&mut machine, &mut now, &rules);
    }
    now = now + config.reset_after;
    machine.ended(1, machine.slots[1].instance, End::Failed("broken".to_owned()), now);
    settle(&mut machine, &mut now, &rules);
    let began = now;
    machine.ended(0, machine.slots[0].instance, End::Failed("broken".to_owned()), now);
    settle(&mut machine, &mut now, &rules);
    assert_eq!(now - began, Duration::from_secs(1));
}

#[test]
fn stopping_a_child_costs_the_same_beside_ten_thousand_others_as_beside_a_hundred() {
    // Looks at children for each child that is stopped, as a run makes them.
    let looks = |sets, count: usize, restarts: bool| {
        let rules = vec![child(false, false); count];
        let config = SupervisorConfig::default().strategy(sets);
        let (mut machine, mut now) = (machine(config, &rules, 1), START);
        settle(&mut machine, &mut now, &rules);
        machine.slots.take_unseen();
        let before = machine.slots.looks();
        match restarts {
            true => machine.ended(0, 1, End::Failed("broken".to_owned()), now),
            false => machine.shut_down(now),
        }
        let (wanted, mut stopped) = (count - usize::from(restarts), 0);
        while stopped < wanted {
            let actions = machine.advance(now);
            // The new states are shown.
            assert!(machine.slots.take_unseen().into_iter().all(|child| machine.slots[child].instance == 1));
            assert!(machine.outcome().is_none() && machine.next() != Instant::FAR_FUTURE);
            for action in actions {
                let Action::Stop { child, .. } = action else { panic!("{action:?}") };
                machine.ended(child, 1, End::Finished, now);
                stopped += 1;
            }
        }
        (machine.slots.looks() - before) as f64 / count as f64
    };
    for (sets, restarts) in
        [(Sets::OneForOne, false), (Sets::OneForAll, false), (Sets::RestForOne, false), (Sets::OneForAll, true)]
    {
        let (few, many) = (looks(sets, 100, restarts), looks(sets, 10_000, restarts));
        assert!(many < 30.0 && many < few * 1.2, "{sets:?}: {few} looks a child, and {many}");
    }
}
