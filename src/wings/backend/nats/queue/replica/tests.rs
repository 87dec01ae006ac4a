//! Copies of logs that are long, torn, damaged or shortened.
#![allow(clippy::unwrap_used, reason = "tests")]
use super::{
    super::entry::{calls, checkpoint, frame},
    *,
};
use crate::queue::Message;

/// A log as the server keeps it.
struct Log(Vec<Bytes>);

impl Log {
    fn call(&mut self, call: &Call) {
        self.0.push(calls(7, [frame(self.0.len() as u64, Part::Messages, &call.encode().unwrap())].iter()));
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
        let Applied::Done(done) = copy.apply(number, number, Instant::default(), message, 7) else { panic!("a gap") };
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
    assert!(matches!(copy.apply(3, 3, Instant::default(), log.0[2].clone(), 0), Applied::Gap(2)));
    assert_eq!(copy.resume(), None, "it begins anew");
}

#[test]
fn a_log_that_has_lost_its_end_is_another_one() {
    let mut log = Log(Vec::new());
    (0..5).for_each(|i| log.call(&send(&i.to_string())));
    let mut same = log.from(1);
    assert_eq!(same.resume(), Some(5));
    assert!(matches!(same.apply(5, 5_000, Instant::default(), log.0[4].clone(), 0), Applied::Done(_)));
    assert!(same.is_complete() && same.resume() == Some(5));
    // The fifth message is another one by now.
    assert!(matches!(same.apply(5, 9_000, Instant::default(), log.0[4].clone(), 0), Applied::Another));
    assert_eq!(same.resume(), None, "it begins anew");
}

#[test]
fn a_copy_is_complete_when_it_has_read_what_was_there() {
    let mut log = Log(Vec::new());
    (0..2).for_each(|i| log.call(&send(&i.to_string())));
    let mut copy = Replica::new();
    copy.begin(3, 1, 3);
    log.read(&mut copy);
    assert!(copy.is_live() && !copy.is_complete() && copy.left() == 1);
    assert!(copy.outlook(Part::Messages, Instant::default()).is_none());
    log.call(&send("2"));
    log.read(&mut copy);
    assert!(copy.is_complete() && copy.outlook(Part::Messages, Instant::default()).is_some());
}

#[test]
fn a_checkpoint_that_another_handle_has_begun_is_not_due() {
    let mut log = Log(Vec::new());
    let mut copy = Replica::new();
    copy.begin(0, 1, 0);
    let large = "x".repeat(1 << 20);
    (0..5).for_each(|_| log.call(&send(&large)));
    log.read(&mut copy);
    assert!(copy.is_due());
    let other = log.from(1);
    log.checkpoint(&other, 1, 8);
    log.0.truncate(6);
    log.read(&mut copy);
    assert!(!copy.is_due(), "its first part was read");
    // If the other one ends, the next is due when the log has grown again.
    (0..11).for_each(|_| log.call(&send(&large)));
    log.read(&mut copy);
    assert!(copy.is_due());
}

#[test]
fn a_damaged_checkpoint_is_passed_over_if_another_one_follows() {
    let mut log = Log(Vec::new());
    (0..5).for_each(|i| log.call(&send(&i.to_string())));
    let first = log.from(1);
    log.0.push(checkpoint(1, 5, (0, 1), b"damaged"));
    let alone = log.from(6);
    assert_eq!(alone.broken(), Some(Broken::Incomplete));
    let at = log.checkpoint(&first, 2, 2);
    assert_eq!(at, 5);
    let second = log.from(6);
    assert!(second.is_live(), "{:?}", second.broken());
    assert_eq!(second.left(), 0);
}

#[test]
fn a_message_of_another_program_is_passed_over() {
    let mut log = Log(Vec::new());
    log.call(&send("a"));
    log.0.push("hello".into());
    log.call(&send("b"));
    let copy = log.from(1);
    assert_eq!(copy.outlook(Part::Messages, Instant::default()).map(|(visible, _)| visible), Some(2));
}

#[test]
fn a_log_that_was_emptied_is_that_of_an_empty_queue() {
    let mut copy = Replica::new();
    assert_eq!((copy.begin(0, 8, 7), copy.is_complete()), (8, true));
}
