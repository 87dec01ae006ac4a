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
        until: u64,
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
    /// Its first messages are missing, and no checkpoint replaces them.
    Incomplete,
}

/// Result of a message of the log.
#[derive(Debug)]
pub(super) enum Applied {
    /// Outcomes of calls of this handle, by their numbers.
    Done(Vec<(u64, Outcome)>),
    /// A message is missing: begin anew.
    Gap,
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
        let (phase, next, heard) = (Phase::Begin, 1, Instant::default());
        Self { phase, next, heard, bytes: 0, checkpoint: 0, checkpoints: Checkpoints::default() }
    }

    /// Returns `true` if it has to [`begin`](Self::begin).
    pub(super) const fn is_new(&self) -> bool {
        matches!(self.phase, Phase::Begin)
    }

    pub(super) const fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Live(_))
    }

    /// Returns the reason for which the log cannot be applied.
    pub(super) const fn broken(&self) -> Option<Broken> {
        match &self.phase {
            Phase::Broken(broken) => Some(*broken),
            _ => None,
        }
    }

    /// Returns the number of the next message.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// Begins with a log of these first and last messages.
    pub(super) fn begin(&mut self, messages: u64, first: u64, last: u64) {
        *self = Self::new();
        // A log that an operator has emptied is the log of an empty queue.
        if messages == 0 {
            (self.phase, self.next) = (Phase::Live(Box::new(Machine::new())), last + 1);
        } else if first <= 1 {
            self.phase = Phase::Live(Box::new(Machine::new()));
        } else {
            (self.phase, self.next) = (Phase::Loading { first, until: last, kept: Vec::new() }, first);
        }
    }

    /// Returns the number of messages that are visible now, as far as the copy can tell, and the
    /// time until another one returns.
    pub(super) fn outlook(&self, part: Part, now: Instant) -> Option<(usize, Option<Duration>)> {
        let Phase::Live(machine) = &self.phase else { return None };
        let at = machine.now() + (now - self.heard);
        let (visible, next) = machine.outlook(part, at);
        Some((visible, next.map(|next| next - at)))
    }

    /// Applies a message of the log.
    pub(super) fn apply(&mut self, number: u64, stored_at: u64, now: Instant, message: Bytes, origin: u64) -> Applied {
        if number != self.next {
            *self = Self::new();
            return Applied::Gap;
        }
        self.next += 1;
        self.heard = now;
        self.bytes += message.len();
        let stored_at = Instant::from_nanos(stored_at);
        let entry = match Entry::decode(message.clone()) {
            Ok(entry) => entry,
            Err(reason) => return self.give_up(Broken::Unreadable(reason)),
        };
        match (&mut self.phase, entry) {
            (_, Entry::Checkpoint { writer, at, part, parts, bytes }) => {
                if let Phase::Live(machine) = &mut self.phase {
                    machine.advance(stored_at);
                } else if let Phase::Loading { kept, .. } = &mut self.phase {
                    kept.push((number, stored_at, message));
                }
                let whole = self.checkpoints.add((writer, at), (part, parts), bytes);
                if let Some(whole) = whole {
                    return self.checkpoint(at, whole, origin);
                }
                self.give_up_loading(number)
            }
            (Phase::Live(machine), Entry::Calls { origin: of, calls }) => {
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

    /// Takes up the state that a checkpoint contains, unless the copy has one.
    fn checkpoint(&mut self, at: u64, whole: Bytes, own: u64) -> Applied {
        (self.bytes, self.checkpoint) = (0, whole.len());
        let Phase::Loading { first, kept, .. } = &mut self.phase else {
            // Parts of writers that are gone are not kept for ever. A copy that is live needs none.
            self.checkpoints.0.clear();
            return Applied::Done(Vec::new());
        };
        if at + 1 < *first {
            return Applied::Done(Vec::new());
        }
        let kept = std::mem::take(kept);
        let Some(mut machine) = Machine::decode(whole) else {
            return self.give_up(Broken::Unreadable(Unreadable::Damaged));
        };
        // Calls of this handle may be among those that were kept, and their callers wait.
        let mut all = Vec::new();
        for (number, stored_at, message) in kept.into_iter().filter(|(number, ..)| *number > at) {
            let done = match Entry::decode(message) {
                Ok(Entry::Calls { origin, calls }) => run(&mut machine, number, stored_at, calls, origin == own),
                Ok(Entry::Checkpoint { .. }) => {
                    machine.advance(stored_at);
                    Some(Vec::new())
                }
                Err(_) => None,
            };
            let Some(done) = done else { return self.give_up(Broken::Unreadable(Unreadable::Damaged)) };
            all.extend(done);
        }
        self.phase = Phase::Live(Box::new(machine));
        Applied::Done(all)
    }

    /// Gives up if the messages that were there at the beginning had no checkpoint.
    fn give_up_loading(&mut self, number: u64) -> Applied {
        match &self.phase {
            Phase::Loading { until, .. } if number >= *until => self.give_up(Broken::Incomplete),
            _ => Applied::Done(Vec::new()),
        }
    }

    fn give_up(&mut self, broken: Broken) -> Applied {
        self.phase = Phase::Broken(broken);
        Applied::Done(Vec::new())
    }

    /// Returns the time since the last message arrived.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        now - self.heard
    }

    /// Returns `true` if the log has grown enough since the last checkpoint for another one.
    pub(super) fn is_due(&self) -> bool {
        self.is_live() && self.bytes > CHECKPOINT.max(self.checkpoint * 2)
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
mod tests {
    use super::{
        super::entry::{calls, checkpoint, frame},
        *,
    };
    use crate::queue::Message;

    /// A log as the server keeps it.
    struct Log(Vec<Bytes>);

    impl Log {
        fn call(&mut self, call: &Call) {
            self.0.push(calls(7, [frame(self.0.len() as u64, Part::Messages, &call.encode())].iter()));
        }

        /// Stores the state of a copy in so many parts.
        fn checkpoint(&mut self, of: &Replica, writer: u64, parts: u64) -> u64 {
            let Phase::Live(machine) = &of.phase else { panic!("the copy is live") };
            let (at, whole) = (of.next - 1, machine.encode());
            let size = whole.len().div_ceil(parts as usize);
            let chunks: Vec<_> = whole.chunks(size).collect();
            for (part, chunk) in chunks.iter().enumerate() {
                self.0.push(checkpoint(writer, at, (part as u64, chunks.len() as u64), chunk));
            }
            at
        }

        /// Lets a copy read on, as far as the log goes.
        fn read(&self, copy: &mut Replica) {
            while let Some(message) = self.0.get(copy.next as usize - 1) {
                let number = copy.next;
                copy.apply(number, number * 1_000, Instant::default(), message.clone(), 0);
            }
        }

        /// Returns a copy that begins at this message.
        fn from(&self, first: u64) -> Replica {
            let mut copy = Replica::new();
            copy.begin(self.0.len() as u64 - first + 1, first, self.0.len() as u64);
            self.read(&mut copy);
            copy
        }
    }

    fn bytes(copy: &Replica) -> Option<Bytes> {
        let Phase::Live(machine) = &copy.phase else { return None };
        Some(machine.encode())
    }

    fn send(body: &str) -> Call {
        Call::Send { messages: vec![Message::new(body.to_owned())], window: Duration::ZERO }
    }

    #[test]
    fn a_copy_that_begins_at_a_checkpoint_is_as_one_that_read_all() {
        let mut log = Log(Vec::new());
        (0..20).for_each(|i| log.call(&send(&i.to_string())));
        log.call(&Call::Take { max: 3, visibility: Duration::from_secs(1) });
        let mut first = log.from(1);
        // Calls of others come between the parts, and one checkpoint is never completed.
        let at = log.checkpoint(&first, 1, 4);
        let torn = log.0.pop().unwrap();
        log.call(&send("between"));
        log.checkpoint(&first, 2, 4);
        log.call(&send("behind"));
        log.read(&mut first);
        let second = log.from(at + 1);
        assert!(second.is_live());
        assert_eq!(bytes(&second), bytes(&first));
        // The missing part comes late, behind another complete one.
        log.0.push(torn);
        log.read(&mut first);
        assert_eq!(bytes(&log.from(at + 1)), bytes(&first));
    }

    #[test]
    fn a_call_that_was_read_before_the_checkpoint_was_complete_is_answered() {
        let mut log = Log(Vec::new());
        (0..5).for_each(|i| log.call(&send(&i.to_string())));
        let first = log.from(1);
        log.call(&send("own"));
        let at = log.checkpoint(&first, 1, 1);
        let mut copy = Replica::new();
        copy.begin(2, at + 1, at + 2);
        let mut answered = Vec::new();
        for number in at + 1..=at + 2 {
            // The log's calls are of the handle 7.
            let message = log.0[number as usize - 1].clone();
            let Applied::Done(done) = copy.apply(number, number, Instant::default(), message, 7) else {
                panic!("a gap")
            };
            answered.extend(done.into_iter().map(|(number, _)| number));
        }
        assert!(copy.is_live());
        assert_eq!(answered, [5], "its number");
    }

    #[test]
    fn a_log_without_its_beginning_and_without_a_checkpoint_is_refused() {
        let mut log = Log(Vec::new());
        (0..5).for_each(|i| log.call(&send(&i.to_string())));
        assert_eq!(log.from(3).broken(), Some(Broken::Incomplete));
        // A checkpoint that is too old does not replace what is missing.
        let mut early = Replica::new();
        early.begin(1, 1, 1);
        early.apply(1, 1_000, Instant::default(), log.0[0].clone(), 0);
        log.checkpoint(&early, 1, 1);
        log.call(&send("behind"));
        assert_eq!(log.from(3).broken(), Some(Broken::Incomplete));
        assert!(log.from(2).is_live());
    }

    #[test]
    fn a_missing_message_is_a_gap() {
        let mut log = Log(Vec::new());
        (0..3).for_each(|i| log.call(&send(&i.to_string())));
        let mut copy = Replica::new();
        copy.begin(1, 1, 3);
        assert!(matches!(copy.apply(1, 1, Instant::default(), log.0[0].clone(), 0), Applied::Done(_)));
        assert!(matches!(copy.apply(3, 3, Instant::default(), log.0[2].clone(), 0), Applied::Gap));
        assert!(copy.is_new());
    }

    #[test]
    fn a_log_that_was_emptied_is_that_of_an_empty_queue() {
        let mut copy = Replica::new();
        copy.begin(0, 8, 7);
        assert_eq!((copy.is_live(), copy.next()), (true, 8));
    }
}
