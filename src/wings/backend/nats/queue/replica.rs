//! A copy of a queue's state, built from its log.
use std::{collections::HashMap, time::Duration};

use bytes::Bytes;

use super::{
    entry::{Call, Entry, Part, Unreadable},
    machine::{Machine, Numbers, Outcome},
};
use crate::time::Instant;

/// The state, and the place in the log up to which it goes.
///
/// A copy begins at the first message of the log. If that is not the first one ever, some handle
/// has stored the state in the log, in parts ([`Entry::Checkpoint`]), and then removed the messages
/// before it. Messages of the log are numbered without gaps, so a missing one is noticed.
pub(super) struct Replica {
    phase: Phase,
    /// Number of the next message.
    next: u64,
    /// Number of the last message that was there at the beginning.
    until: u64,
    /// Number and time of the last message that was read.
    last: Option<(u64, u64)>,
    /// `true` until the reader has shown that the log still has the last message.
    is_resuming: bool,
    /// Time on the local clock at which the last message arrived.
    heard: Instant,
    /// Number of bytes since the last checkpoint.
    bytes: usize,
    /// Size of the last checkpoint.
    checkpoint: usize,
    checkpoints: Checkpoints,
}

/// Number of bytes between two checkpoints, at least. Reading so many takes a part of a second.
const CHECKPOINT: usize = 4 << 20;

enum Phase {
    /// No message was read yet.
    Begin,
    /// Messages are kept until a checkpoint is complete.
    Loading {
        first: u64,
        kept: Vec<(u64, Instant, Bytes)>,
    },
    Live(Box<Machine>),
    /// The log cannot be applied.
    Broken(Broken),
}

/// The reason for which a log cannot be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    Unreadable(Unreadable),
    /// Messages are missing, and no checkpoint replaces them.
    Incomplete,
    /// The stream was replaced or deleted.
    Deleted,
}

/// Result of a message of the log.
#[derive(Debug)]
pub(super) enum Applied {
    /// Outcomes of calls of this handle, by their numbers.
    Done(Vec<(u64, Outcome)>),
    /// The message with this number is missing: begin anew.
    Gap(u64),
    /// The log is not the one that was read: begin anew.
    Another,
}

/// Parts of checkpoints that are not complete, by their writer and place.
#[derive(Default)]
struct Checkpoints(HashMap<(u64, u64), Vec<Bytes>>);

impl Checkpoints {
    /// Adds a part, and returns the whole if it is the last one.
    fn add(&mut self, key: (u64, u64), (part, parts): (u64, u64), bytes: Bytes) -> Option<Bytes> {
        if part == 0 {
            self.0.insert(key, Vec::new());
        }
        let known = self.0.get_mut(&key)?;
        if known.len() as u64 != part {
            self.0.remove(&key);
            return None;
        }
        known.push(bytes);
        (part + 1 == parts).then(|| self.0.remove(&key).unwrap_or_default().concat().into())
    }
}

impl Replica {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Begin,
            next: 1,
            until: 0,
            last: None,
            is_resuming: false,
            heard: Instant::default(),
            bytes: 0,
            checkpoint: 0,
            checkpoints: Checkpoints::default(),
        }
    }

    /// Returns the number of the message with which a new reader begins: the last one that was
    /// read, so that a log that has lost its end is noticed. `None` if the copy has to
    /// [`begin`](Self::begin).
    pub(super) fn resume(&mut self) -> Option<u64> {
        let (last, _) = self.last?;
        self.is_resuming = true;
        Some(last)
    }

    /// Returns `true`, and forgets everything, if the log was to show its last message.
    pub(super) fn has_lost_its_end(&mut self) -> bool {
        let is_resuming = self.is_resuming;
        if is_resuming {
            self.reset();
        }
        is_resuming
    }

    /// Forgets everything.
    pub(super) fn reset(&mut self) {
        *self = Self::new();
    }

    pub(super) const fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Live(_))
    }

    /// Returns `true` if it has all messages that were there at the beginning.
    pub(super) const fn is_complete(&self) -> bool {
        self.is_live() && self.next > self.until
    }

    /// Returns the number of messages of the beginning that were not read yet.
    pub(super) const fn left(&self) -> u64 {
        (self.until + 1).saturating_sub(self.next)
    }

    /// Returns the reason for which the log cannot be applied.
    pub(super) const fn broken(&self) -> Option<Broken> {
        match &self.phase {
            Phase::Broken(broken) => Some(*broken),
            _ => None,
        }
    }

    /// Begins with a log of these first and last messages. Returns the number of the first one to
    /// read.
    pub(super) fn begin(&mut self, messages: u64, first: u64, last: u64) -> u64 {
        *self = Self { until: last, ..Self::new() };
        // A log that an operator has emptied is the log of an empty queue.
        if messages == 0 {
            (self.phase, self.next) = (Phase::Live(Box::new(Machine::new())), last + 1);
        } else if first <= 1 {
            self.phase = Phase::Live(Box::new(Machine::new()));
        } else {
            (self.phase, self.next) = (Phase::Loading { first, kept: Vec::new() }, first);
        }
        self.next
    }

    /// Returns the number of messages that are visible now, as far as the copy can tell, and the
    /// time until another one returns.
    pub(super) fn outlook(&self, part: Part, now: Instant) -> Option<(usize, Option<Duration>)> {
        let Phase::Live(machine) = &self.phase else { return None };
        if !self.is_complete() {
            return None;
        }
        let at = machine.now() + (now - self.heard);
        let (visible, next) = machine.outlook(part, at);
        Some((visible, next.map(|next| next - at)))
    }

    /// Applies a message of the log.
    pub(super) fn apply(&mut self, number: u64, stored_at: u64, now: Instant, message: Bytes, origin: u64) -> Applied {
        if std::mem::take(&mut self.is_resuming) {
            if self.last == Some((number, stored_at)) {
                self.heard = now;
                return Applied::Done(Vec::new());
            }
            self.reset();
            return Applied::Another;
        }
        if number != self.next {
            let missing = self.next;
            self.reset();
            return Applied::Gap(missing);
        }
        self.next += 1;
        self.heard = now;
        self.last = Some((number, stored_at));
        let stored_at = Instant::from_nanos(stored_at);
        let entry = match Entry::decode(message.clone()) {
            Ok(entry) => entry,
            Err(Unreadable::Foreign) => return self.give_up_loading(number),
            Err(reason) => return self.give_up(Broken::Unreadable(reason)),
        };
        match (&mut self.phase, entry) {
            (Phase::Live(machine), Entry::Checkpoint { part, parts, bytes, .. }) => {
                machine.advance(stored_at);
                // A checkpoint that another handle has begun need not be written twice.
                if part == 0 {
                    self.checkpoint = bytes.len().saturating_mul(usize::try_from(parts).unwrap_or(usize::MAX));
                    self.bytes = 0;
                }
                Applied::Done(Vec::new())
            }
            (Phase::Loading { kept, .. }, Entry::Checkpoint { writer, at, part, parts, bytes }) => {
                // Keep only its position: replay needs its time.
                kept.push((number, stored_at, Bytes::new()));
                if let Some(whole) = self.checkpoints.add((writer, at), (part, parts), bytes)
                    && let Some(done) = self.load(at, whole, origin)
                {
                    return done;
                }
                self.give_up_loading(number)
            }
            (Phase::Live(machine), Entry::Calls { origin: of, calls }) => {
                self.bytes += message.len();
                match run(machine, number, stored_at, calls, of == origin) {
                    Some(done) => Applied::Done(done),
                    None => self.give_up(Broken::Unreadable(Unreadable::Damaged)),
                }
            }
            (Phase::Loading { kept, .. }, Entry::Calls { .. }) => {
                kept.push((number, stored_at, message));
                self.give_up_loading(number)
            }
            (Phase::Begin | Phase::Broken(_), _) => Applied::Done(Vec::new()),
        }
    }

    /// Takes up the state that a checkpoint contains. `None` if it is too old, or damaged: another
    /// one may follow.
    fn load(&mut self, at: u64, whole: Bytes, own: u64) -> Option<Applied> {
        let Phase::Loading { first, kept } = &mut self.phase else { return None };
        if at + 1 < *first {
            return None;
        }
        let size = whole.len();
        let mut machine = Machine::decode(whole)?;
        let kept = std::mem::take(kept);
        (self.bytes, self.checkpoint) = (0, size);
        // Parts of writers that are gone. A copy that is live needs none.
        self.checkpoints.0.clear();
        // Calls of this handle may be among those that were kept, and their callers wait.
        let mut all = Vec::new();
        for (number, stored_at, message) in kept.into_iter().filter(|(number, ..)| *number > at) {
            let done = match Entry::decode(message) {
                Ok(Entry::Calls { origin, calls }) => run(&mut machine, number, stored_at, calls, origin == own),
                _ => {
                    machine.advance(stored_at);
                    Some(Vec::new())
                }
            };
            let Some(done) = done else { return Some(self.give_up(Broken::Unreadable(Unreadable::Damaged))) };
            all.extend(done);
        }
        self.phase = Phase::Live(Box::new(machine));
        Some(Applied::Done(all))
    }

    /// Gives up if the messages that were there at the beginning had no checkpoint.
    fn give_up_loading(&mut self, number: u64) -> Applied {
        match &self.phase {
            Phase::Loading { .. } if number >= self.until => self.give_up(Broken::Incomplete),
            _ => Applied::Done(Vec::new()),
        }
    }

    /// Refuses all calls from now on.
    pub(super) fn give_up(&mut self, broken: Broken) -> Applied {
        self.phase = Phase::Broken(broken);
        Applied::Done(Vec::new())
    }

    /// Returns the time since the last message arrived.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        now - self.heard
    }

    /// Returns `true` if the log has grown enough since the last checkpoint for another one.
    pub(super) fn is_due(&self) -> bool {
        self.is_complete() && self.bytes > CHECKPOINT.max(self.checkpoint * 2)
    }

    /// Returns the state and its place, if a checkpoint is [due](Self::is_due).
    pub(super) fn image(&self) -> Option<(u64, Bytes)> {
        match &self.phase {
            Phase::Live(machine) if self.is_due() => Some((self.next - 1, machine.encode())),
            _ => None,
        }
    }
}

/// Applies the calls of an entry. `None` if one is damaged.
fn run(
    machine: &mut Machine,
    number: u64,
    stored_at: Instant,
    calls: Vec<(u64, Part, Bytes)>,
    is_own: bool,
) -> Option<Vec<(u64, Outcome)>> {
    machine.advance(stored_at);
    let mut numbers = Numbers::of_entry(number);
    let mut done = Vec::new();
    for (number, part, call) in calls {
        let outcome = machine.apply(part, Call::decode(call)?, &mut numbers, is_own);
        if let (Some(outcome), true) = (outcome, is_own) {
            done.push((number, outcome));
        }
    }
    Some(done)
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests;
