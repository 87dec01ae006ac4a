//! The states of all children: a machine that knows neither async nor tokio.
//!
//! | phase | goes to | when |
//! |---|---|---|
//! | `Waiting` | `Starting`, or `Ready` if no child waits for it | its delay has passed, and it is its turn |
//! | `Starting` | `Ready` | the child is ready |
//! | `Starting`, `Ready` | `Waiting` | it failed |
//! | | `Finished` | it ended without a failure, or is temporary |
//! | | `Stopping` | it belongs to a set that is stopped, or was not ready in time |
//! | `Stopping` | `Dropping` | it did not end in time |
//! | `Stopping`, `Dropping` | `Waiting` | it has ended, and is started again |
//! | | `Finished` | it has ended for good |
//! | `Waiting` | `Finished` | all children are stopped |
//! | `Finished` | `Waiting` | it is not temporary, and a set that it belongs to is restarted |
use std::{collections::VecDeque, time::Duration};

use super::{
    ChildFailure, Restart, RestartError, Strategy, SupervisorConfig, SupervisorEvent as Event, config::DROP_GRACE,
    slots::Slots,
};
use crate::{
    backoff::Backoff,
    config::Name,
    entropy::Entropy,
    time::{Instant, scaled},
};

/// Phase of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChildPhase {
    /// It is not started yet, or waits for the delay before its restart.
    Waiting,
    /// It runs, and is not ready yet.
    Starting,
    /// It runs.
    Ready,
    /// It was asked to stop.
    Stopping,
    /// It did not stop in time, and is being dropped.
    Dropping,
    /// It has ended, or was never started, and is not started again.
    Finished,
}

/// Number of causes that an escalation names.
const CAUSES: usize = 5;

/// Reason for which a child is not restarted on request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Ending,
    Finished,
}

/// The rules of one child.
#[derive(Debug, Clone)]
pub(super) struct ChildRules {
    pub(super) name: Name,
    pub(super) restart: Restart,
    pub(super) is_optional: bool,
    pub(super) waits_for_ready: bool,
}

impl ChildRules {
    /// Returns `true` if the failures of the child use the budget.
    pub(super) fn counts(&self) -> bool {
        !self.is_optional && self.restart != Restart::Temporary
    }
}

/// The end of a child's instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    Finished,
    Failed(String),
    Panicked(String),
    /// Dropped, as the machine asked.
    Dropped,
}

/// An action that the shell takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Start {
        child: usize,
        instance: u64,
    },
    /// Asks the child to stop until `by`.
    Stop {
        child: usize,
        by: Instant,
    },
    Drop {
        child: usize,
    },
}

/// The way in which a child that did not stop was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unstopped {
    /// It did not end after it was asked to, and was dropped.
    Dropped,
    /// It blocks its thread, and still runs.
    Blocked,
}

/// Reason for which all children are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Shutdown,
    Escalation { child: usize },
}

pub(super) struct Slot {
    pub(super) rules: ChildRules,
    pub(super) phase: ChildPhase,
    pub(super) instance: u64,
    pub(super) restarts: u64,
    pub(super) causes: VecDeque<String>,
    pub(super) unstopped: Option<Unstopped>,
    /// Earliest time of the next start.
    not_before: Instant,
    /// Time limit of the phase.
    until: Instant,
    ready_at: Instant,
    /// `true` while it must be stopped, until it has ended.
    pub(super) is_stopped: bool,
    /// `true` if it could not be dropped in time.
    is_blocked: bool,
    /// Text of its failure while all children were stopped.
    pub(super) failed_in_stop: Option<String>,
    /// `true` once later children need not wait for its first start.
    has_passed: bool,
    /// `true` from a request for a restart until the next start.
    is_requested: bool,
    /// The last instance that was ready.
    ready_instance: u64,
    backoff: Backoff,
}

impl Slot {
    pub(super) fn runs(&self) -> bool {
        matches!(self.phase, ChildPhase::Starting | ChildPhase::Ready)
    }
    pub(super) fn ends(&self) -> bool {
        matches!(self.phase, ChildPhase::Stopping | ChildPhase::Dropping)
    }
    /// Lets its delays begin anew if it was ready for long enough.
    fn reset(&mut self, config: &SupervisorConfig, entropy: &Entropy, now: Instant) {
        if self.ready_at != Instant::FAR_FUTURE && now - self.ready_at >= config.reset_after {
            self.backoff = Backoff::checked(config.backoff, entropy);
        }
    }
    fn is_temporary(&self) -> bool {
        self.rules.restart == Restart::Temporary
    }
}

/// Goes through the children in order: may the next one start, if it waits?
struct Turn {
    is_alone: bool,
    /// `true` once an earlier child holds up those that come.
    is_held: bool,
}

impl Turn {
    fn is_of(&self, slot: &Slot) -> bool {
        self.is_alone && slot.instance > 0 || !self.is_held
    }

    fn pass(&mut self, slot: &Slot) {
        let has_passed = match slot.phase {
            _ if slot.rules.is_optional => true,
            _ if self.is_alone => slot.has_passed,
            phase => matches!(phase, ChildPhase::Ready | ChildPhase::Finished),
        };
        self.is_held |= !has_passed;
    }
}

/// All children of one run.
pub(super) struct Machine {
    config: SupervisorConfig,
    entropy: Entropy,
    pub(super) slots: Slots,
    /// Times of the restarts within the window.
    restarts: VecDeque<Instant>,
    ending: Option<Ending>,
    ending_since: Instant,
    /// Time at which the run ends, once all children are stopped.
    end_by: Instant,
    pub(super) events: Vec<Event>,
}

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Stopped,
    Escalated { child: usize },
}

impl Machine {
    pub(super) fn new(config: SupervisorConfig, rules: Vec<ChildRules>, entropy: Entropy) -> Self {
        let slot = |rules| Slot {
            rules,
            phase: ChildPhase::Waiting,
            instance: 0,
            restarts: 0,
            causes: VecDeque::new(),
            unstopped: None,
            not_before: Instant::default(),
            until: Instant::FAR_FUTURE,
            ready_at: Instant::FAR_FUTURE,
            is_stopped: false,
            is_blocked: false,
            failed_in_stop: None,
            has_passed: false,
            is_requested: false,
            ready_instance: 0,
            backoff: Backoff::checked(config.backoff, &entropy),
        };
        let slots = Slots::new(rules.into_iter().map(slot).collect());
        let restarts = VecDeque::new();
        Self {
            config,
            slots,
            entropy,
            restarts,
            ending: None,
            ending_since: Instant::default(),
            end_by: Instant::FAR_FUTURE,
            events: Vec::new(),
        }
    }

    /// Records that an instance is ready.
    pub(super) fn ready(&mut self, child: usize, instance: u64, now: Instant) {
        let slot = &mut self.slots[child];
        if slot.instance == instance && slot.phase == ChildPhase::Starting && !slot.is_stopped {
            slot.phase = ChildPhase::Ready;
            (slot.ready_at, slot.until, slot.has_passed) = (now, Instant::FAR_FUTURE, true);
            slot.ready_instance = instance;
            self.events.push(Event::Ready { child: slot.rules.name.clone() });
        }
    }

    /// Records the end of an instance. Restarts follow from it.
    pub(super) fn ended(&mut self, child: usize, instance: u64, end: End, now: Instant) {
        let slot = &mut self.slots[child];
        if slot.instance != instance || !(slot.runs() || slot.ends()) {
            return;
        }
        let failed = match end {
            End::Failed(cause) => Some((ChildFailure::Error, cause)),
            End::Panicked(cause) => Some((ChildFailure::Panic, cause)),
            End::Finished if slot.rules.restart == Restart::Permanent && !slot.is_stopped => {
                Some((ChildFailure::Ended, "a permanent child ended".to_owned()))
            }
            End::Finished | End::Dropped => None,
        };
        let failure = failed.as_ref().map(|(failure, _)| *failure);
        if self.ending.is_some() {
            slot.failed_in_stop = failed.as_ref().map(|(_, cause)| cause.clone());
        }
        if let Some((failure, cause)) = failed {
            let counts = !self.slots[child].is_stopped;
            self.note(child, failure, cause, counts);
        }
        let slot = &mut self.slots[child];
        if std::mem::take(&mut slot.is_blocked) {
            slot.unstopped = Some(Unstopped::Dropped);
        }
        if std::mem::take(&mut slot.is_stopped) {
            // The end of a stop, whichever way it went: no failure.
            let is_over = self.ending.is_some() || slot.is_temporary() && !slot.is_requested;
            slot.phase = if is_over { ChildPhase::Finished } else { ChildPhase::Waiting };
            return;
        }
        match failure {
            Some(_) => self.restart(child, false, now),
            None => {
                slot.phase = ChildPhase::Finished;
                slot.has_passed = true;
                self.events.push(Event::Finished { child: slot.rules.name.clone() });
            }
        }
    }

    /// Stops the child, if it runs, and starts it again. Returns the number of its next instance.
    pub(super) fn restart_on_request(&mut self, child: usize) -> Result<u64, Refusal> {
        let slot = &mut self.slots[child];
        match slot.phase {
            _ if self.ending.is_some() => return Err(Refusal::Ending),
            ChildPhase::Finished => return Err(Refusal::Finished),
            ChildPhase::Starting | ChildPhase::Ready => slot.is_stopped = true,
            // It is being stopped, or waits: its next start is the one that is asked for.
            ChildPhase::Waiting | ChildPhase::Stopping | ChildPhase::Dropping => {}
        }
        slot.not_before = Instant::default();
        slot.is_requested = true;
        self.events.push(Event::RestartRequested { child: slot.rules.name.clone() });
        Ok(slot.instance + 1)
    }

    /// Returns the end of a restart that was asked for, once this instance or a later one is ready
    /// or has failed.
    pub(super) fn has_restarted(&self, child: usize, instance: u64) -> Option<Result<(), RestartError>> {
        let slot = &self.slots[child];
        if slot.ready_instance >= instance {
            return Some(Ok(()));
        }
        match slot.phase {
            _ if self.ending.is_some() => Some(Err(RestartError::NotRunning)),
            ChildPhase::Finished => Some(Err(RestartError::Finished)),
            ChildPhase::Starting if !slot.is_stopped => None,
            _ if slot.instance < instance => None,
            _ => Some(Err(RestartError::Failed { cause: slot.causes.back().cloned().unwrap_or_default() })),
        }
    }

    /// Asks all children to stop.
    pub(super) fn shut_down(&mut self, now: Instant) {
        self.stop_all(now, Ending::Shutdown);
    }

    /// Stops all children within this time at most, from now on.
    pub(super) fn end_by(&mut self, by: Instant) {
        self.end_by = self.end_by.min(by);
    }

    /// Tells a failure. Unless it happened in a stop, it is among the causes of an escalation.
    fn note(&mut self, child: usize, failure: ChildFailure, cause: String, counts: bool) {
        let slot = &mut self.slots[child];
        if counts {
            slot.causes.push_back(cause.clone());
        }
        if slot.causes.len() > CAUSES {
            slot.causes.pop_front();
        }
        self.events.push(Event::Failed { child: slot.rules.name.clone(), failure, cause });
    }

    /// Restarts a child that failed with its set, or stops all children if that exceeds the budget.
    /// If its instance still `runs`, that is stopped first.
    fn restart(&mut self, child: usize, runs: bool, now: Instant) {
        let slot = &mut self.slots[child];
        if self.ending.is_some() || slot.is_temporary() {
            slot.is_stopped = runs;
            if !runs {
                slot.phase = ChildPhase::Finished;
            }
            slot.has_passed = true;
            return;
        }
        if !slot.rules.is_optional {
            self.restarts.push_back(now);
            while self.restarts.front().is_some_and(|at| now - *at > self.config.restart_window) {
                self.restarts.pop_front();
            }
            if self.restarts.len() > self.config.max_restarts as usize {
                if !runs {
                    slot.phase = ChildPhase::Finished;
                }
                self.escalate(child, now);
                return;
            }
        }
        slot.reset(&self.config, &self.entropy, now);
        let delay = slot.backoff.next().unwrap_or_default();
        slot.restarts += 1;
        slot.is_stopped = runs;
        if !runs {
            slot.phase = ChildPhase::Waiting;
        }
        let (not_before, name) = (now + delay, slot.rules.name.clone());
        slot.not_before = not_before;
        let others = self.others(child);
        let mut count = 0;
        for other in &others {
            let other = &mut self.slots[*other];
            count += usize::from(other.phase != ChildPhase::Waiting && !other.is_temporary());
            match other.phase {
                ChildPhase::Starting | ChildPhase::Ready => {
                    other.reset(&self.config, &self.entropy, now);
                    other.is_stopped = true;
                }
                ChildPhase::Finished => other.phase = ChildPhase::Waiting,
                _ => {}
            }
            other.not_before = other.not_before.max(not_before);
        }
        self.events.push(Event::Restarting { child: name, delay, others: count });
    }

    /// Returns the children that are restarted with this one. An optional child is restarted alone.
    fn others(&self, child: usize) -> Vec<usize> {
        let from = match self.config.strategy {
            _ if self.slots[child].rules.is_optional => return Vec::new(),
            Strategy::OneForOne => return Vec::new(),
            Strategy::OneForAll => 0,
            Strategy::RestForOne => child + 1,
        };
        let is_left = |other: &usize| {
            let slot = &self.slots[*other];
            *other != child && !(slot.is_temporary() && slot.phase == ChildPhase::Finished)
        };
        (from..self.slots.len()).filter(is_left).collect()
    }

    fn escalate(&mut self, child: usize, now: Instant) {
        self.events.push(Event::Escalated { child: self.slots[child].rules.name.clone() });
        self.stop_all(now, Ending::Escalation { child });
    }

    fn stop_all(&mut self, now: Instant, why: Ending) {
        if self.ending.is_some() {
            return;
        }
        self.ending = Some(why);
        self.ending_since = now;
        self.end_by = self.end_by.min(now + self.config.shutdown_timeout);
        self.events.push(Event::Stopping);
        for child in 0..self.slots.len() {
            let slot = &mut self.slots[child];
            match slot.phase {
                // A child that does not run now is not named as one that did not stop.
                ChildPhase::Waiting | ChildPhase::Finished => {
                    (slot.phase, slot.unstopped) = (ChildPhase::Finished, None);
                }
                _ => slot.is_stopped = true,
            }
        }
    }

    /// Applies the time limits that have passed, and returns the actions that are due.
    pub(super) fn advance(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        self.slots.file();
        for child in Vec::from_iter(self.slots.moving().iter().copied()) {
            self.expire(child, now, &mut actions);
        }
        self.slots.file();
        if now >= self.drop_by() {
            for child in Vec::from_iter(self.slots.to_stop().iter().copied()) {
                self.expire(child, now, &mut actions);
            }
        }
        self.stop_next(now, &mut actions);
        let Some(mut turn) = self.turn() else { return actions };
        // In order: a child that starts may let the next one start, and one that waits holds up those after it.
        for child in 0..self.slots.len() {
            let slot = &self.slots[child];
            if slot.phase == ChildPhase::Waiting && now >= slot.not_before && turn.is_of(slot) {
                self.start(child, now, &mut actions);
            }
            turn.pass(&self.slots[child]);
        }
        actions
    }

    fn expire(&mut self, child: usize, now: Instant, actions: &mut Vec<Action>) {
        let drop_by = self.drop_by();
        let slot = &mut self.slots[child];
        match slot.phase {
            ChildPhase::Starting if now >= slot.until && !slot.is_stopped => {
                let text = format!("not ready within {:?}", self.config.start_timeout);
                self.note(child, ChildFailure::StartTimeout, text, true);
                self.restart(child, true, now);
            }
            // At the end of a shutdown, also those whose turn has not come.
            ChildPhase::Stopping if now >= slot.until.min(drop_by) => self.drop_child(child, now, actions),
            ChildPhase::Starting | ChildPhase::Ready if slot.is_stopped && now >= drop_by => {
                self.drop_child(child, now, actions);
            }
            ChildPhase::Dropping if !slot.is_blocked && now >= slot.until.min(self.end_by) => {
                slot.is_blocked = true;
                slot.unstopped = Some(Unstopped::Blocked);
                self.events.push(Event::Blocked { child: slot.rules.name.clone() });
                let is_needed = !slot.rules.is_optional && !slot.is_temporary();
                if is_needed && self.ending.is_none() {
                    // It cannot be started again, and others may wait for it without end.
                    self.note(child, ChildFailure::Blocked, "it blocks its thread".to_owned(), true);
                    self.escalate(child, now);
                }
            }
            _ => {}
        }
    }

    fn drop_child(&mut self, child: usize, now: Instant, actions: &mut Vec<Action>) {
        let slot = &mut self.slots[child];
        slot.phase = ChildPhase::Dropping;
        slot.until = now + DROP_GRACE;
        slot.unstopped = Some(Unstopped::Dropped);
        self.events.push(Event::Dropped { child: slot.rules.name.clone() });
        actions.push(Action::Drop { child });
    }

    /// Returns the time from which children are dropped without a time of their own.
    fn drop_by(&self) -> Instant {
        match self.ending {
            Some(_) => self.end_by.saturating_sub(self.config.drop_share()),
            None => Instant::FAR_FUTURE,
        }
    }

    /// Returns the time from which all children that are left are asked to stop at once, so that
    /// each is asked before it is dropped.
    fn ask_all_from(&self) -> Instant {
        let drop_by = self.drop_by();
        match self.ending {
            Some(_) => {
                let half = (drop_by - self.ending_since) / 2;
                drop_by.saturating_sub(self.config.stop_timeout.min(half))
            }
            None => Instant::FAR_FUTURE,
        }
    }

    /// Asks the last of the children that must stop, unless one is stopping already. No other child
    /// waits for an optional one. Near the end of a shutdown all are asked at once.
    fn stop_next(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let goes_on = self.ending.is_none();
        let at_once = now >= self.ask_all_from() || (goes_on && self.config.strategy == Strategy::OneForOne);
        let holds_up = |slot: &Slot| !(at_once || goes_on && slot.rules.is_optional);
        let holds_up_now = |slot: &Slot| slot.ends() && !slot.is_blocked && holds_up(slot);
        self.slots.file();
        let mut waits = !at_once && self.slots.moving().iter().any(|child| holds_up_now(&self.slots[*child]));
        let by = (now + self.config.stop_timeout).min(self.drop_by());
        while at_once || !waits {
            let Some(child) = self.slots.to_stop().last().copied() else { break };
            let slot = &mut self.slots[child];
            waits |= holds_up(slot);
            (slot.phase, slot.until) = (ChildPhase::Stopping, by);
            actions.push(Action::Stop { child, by });
            self.slots.file();
        }
    }

    /// Returns the turn of the first child, or `None` if no child may start.
    fn turn(&self) -> Option<Turn> {
        let (waiting, moving, to_stop) = (self.slots.waiting(), self.slots.moving(), self.slots.to_stop());
        if waiting.is_empty() {
            return None;
        }
        // A set is started when all of it has ended.
        let is_of_set = |slot: &Slot| slot.is_stopped && !slot.rules.is_optional;
        let is_alone = self.config.strategy == Strategy::OneForOne;
        let set_ends = !is_alone && to_stop.iter().chain(moving).any(|child| is_of_set(&self.slots[*child]));
        (!set_ends).then_some(Turn { is_alone, is_held: false })
    }

    fn start(&mut self, child: usize, now: Instant, actions: &mut Vec<Action>) {
        let slot = &mut self.slots[child];
        slot.instance += 1;
        (slot.unstopped, slot.is_requested) = (None, false);
        if slot.rules.waits_for_ready {
            (slot.phase, slot.ready_at) = (ChildPhase::Starting, Instant::FAR_FUTURE);
            slot.until = now + self.config.start_timeout;
        } else {
            (slot.phase, slot.ready_at) = (ChildPhase::Ready, now);
            (slot.until, slot.has_passed, slot.ready_instance) = (Instant::FAR_FUTURE, true, slot.instance);
        }
        self.events.push(Event::Started { child: slot.rules.name.clone(), instance: slot.instance });
        actions.push(Action::Start { child, instance: slot.instance });
    }

    /// Returns the time of the next call of [`advance`](Self::advance), if no child changes before.
    pub(super) fn next(&mut self) -> Instant {
        self.slots.file();
        let of_moving = self.slots.moving().iter().map(|child| self.due(&self.slots[*child]));
        let of_stops = if self.slots.to_stop().is_empty() { Instant::FAR_FUTURE } else { self.ask_all_from() };
        let mut next = of_moving.fold(of_stops, Instant::min);
        if let Some(mut turn) = self.turn() {
            for slot in self.slots.iter() {
                if slot.phase == ChildPhase::Waiting && turn.is_of(slot) {
                    next = next.min(slot.not_before);
                }
                turn.pass(slot);
            }
        }
        next
    }

    /// Returns the time limit of a child that starts, stops or is dropped.
    fn due(&self, slot: &Slot) -> Instant {
        match slot.phase {
            ChildPhase::Starting if slot.is_stopped => self.ask_all_from(),
            ChildPhase::Starting => slot.until,
            ChildPhase::Stopping => slot.until.min(self.drop_by()),
            ChildPhase::Dropping if !slot.is_blocked => slot.until.min(self.end_by),
            _ => Instant::FAR_FUTURE,
        }
    }

    /// Returns `true` once each child that is waited for has been ready, or has ended for good.
    pub(super) fn has_started(&self) -> bool {
        self.slots.iter().all(|slot| slot.rules.is_optional || slot.has_passed)
    }

    /// Returns the end of the run, if it has ended: no child runs, or none that can be stopped.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        let is_over =
            |slot: &Slot| slot.phase == ChildPhase::Finished || self.ending.is_some() && slot.is_blocked && slot.ends();
        if !self.slots.iter().all(is_over) {
            return None;
        }
        Some(match self.ending {
            Some(Ending::Escalation { child }) => Outcome::Escalated { child },
            Some(Ending::Shutdown) | None => Outcome::Stopped,
        })
    }
}

impl ChildPhase {
    /// Returns `true` while an instance of the child runs.
    pub const fn is_running(self) -> bool {
        !matches!(self, Self::Waiting | Self::Finished)
    }
}

/// Returns the time of which a poll of this duration is the share.
pub(super) fn time_for(took: Duration, share: f64) -> Duration {
    scaled(took, 1.0 / share)
}
