//! The state machine of a queue. Each handle applies the entries of the log in their order, with
//! the times at which the server stored them, and so all handles have the same state.
use bytes::Bytes;

use super::entry::{Call, Part, Stub};
use crate::{
    port::{PortError, PortErrorKind},
    queue::{
        Delivery, Depth, Message, MessageId, Peeked, QueueError, Receipt, Settle,
        state::{Hide, QueueState, StoredMessage},
    },
    time::{Instant, Timestamp},
    wire::{In, Out},
};

/// Messages, dead letters, and the time.
pub(super) struct Machine {
    messages: QueueState,
    letters: QueueState,
    /// Time of the queue: that of the server's clock without its steps back.
    now: Instant,
    /// Time of the last entry by the server's clock.
    stamp: Instant,
}

/// Result of a call.
#[derive(Debug)]
pub(super) enum Outcome {
    Sent(Vec<MessageId>),
    Taken(Vec<Delivery>),
    Settled(Vec<Result<(), QueueError>>),
    Extended(Result<(), QueueError>),
    Purged(u64),
    Depth(Depth),
    Peeked(Vec<Peeked>),
}

/// Number of messages of an entry, at most: the lower bits of a message's number.
const NUMBER_BITS: u32 = 20;

/// The numbers of the messages that an entry sends.
pub(super) struct Numbers(u64);

impl Numbers {
    /// Creates the numbers of the entry with this number.
    pub(super) const fn of_entry(sequence: u64) -> Self {
        Self(sequence << NUMBER_BITS)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }

    /// Returns the id of the next message.
    pub(super) const fn next_id(&mut self) -> MessageId {
        MessageId::from_numbers(self.next(), 0)
    }

    /// Returns the numbers from here on, and advances by `messages`.
    pub(super) const fn skip(&mut self, messages: usize) -> Self {
        let from = self.0;
        self.0 += messages as u64;
        Self(from)
    }
}

impl Machine {
    pub(super) fn new() -> Self {
        let letters = QueueState::numbering_receipts_from(1 << 63);
        let (now, stamp) = (Instant::default(), Instant::default());
        Self { messages: QueueState::default(), letters, now, stamp }
    }

    pub(super) const fn now(&self) -> Instant {
        self.now
    }

    /// Takes up the time of an entry. If the server's clock was set back, the time goes on from
    /// where it was, so that nothing waits until the clock has caught up.
    pub(super) fn advance(&mut self, stamp: Instant) {
        self.now = self.now + (stamp - self.stamp);
        self.stamp = stamp;
    }

    fn part(&mut self, part: Part) -> &mut QueueState {
        match part {
            Part::Messages => &mut self.messages,
            Part::DeadLetters => &mut self.letters,
        }
    }

    fn seen(&self, part: Part) -> &QueueState {
        match part {
            Part::Messages => &self.messages,
            Part::DeadLetters => &self.letters,
        }
    }

    /// Returns the number of messages that are visible at a time, and the time of the next return
    /// behind it.
    pub(super) fn outlook(&self, part: Part, at: Instant) -> (usize, Option<Instant>) {
        let state = self.seen(part);
        (state.visible(at), state.next_return())
    }

    /// Applies a call. Without `is_own`, nothing is returned for one that changes nothing.
    pub(super) fn apply(&mut self, part: Part, call: Call, numbers: &mut Numbers, is_own: bool) -> Option<Outcome> {
        let now = self.now;
        Some(match call {
            Call::Send { messages, window } => {
                Outcome::Sent(messages.into_iter().map(|it| self.send(part, it, window, numbers.next())).collect())
            }
            Call::Take { max, visibility } => Outcome::Taken(self.part(part).take(max, now, visibility)),
            Call::Settle { settlements } => Outcome::Settled(
                settlements.into_iter().map(|(receipt, how)| self.settle(part, receipt, how)).collect(),
            ),
            Call::Extend { receipt, visibility, begun } => {
                let until = Some(now + visibility);
                Outcome::Extended(self.part(part).hide(
                    &receipt_of(receipt),
                    until,
                    begun.map_or(Hide::Extend, Hide::Mark),
                ))
            }
            Call::Purge => Outcome::Purged(self.part(part).purge()),
            Call::Depth if is_own => Outcome::Depth(self.seen(part).depth(now)),
            Call::Peek { max } if is_own => Outcome::Peeked(self.seen(part).peek(max, now)),
            Call::Depth | Call::Peek { .. } => return None,
        })
    }

    fn send(&mut self, part: Part, mut message: Message, window: std::time::Duration, number: u64) -> MessageId {
        let now = self.now;
        let sent_at = Timestamp::from_millis(self.stamp.as_nanos() / 1_000_000);
        let state = self.part(part);
        let deduplication = message.deduplication_id.take();
        if let Some(known) = deduplication.as_deref().and_then(|id| state.duplicate(id, now)) {
            return known;
        }
        let until = now + message.delay;
        // A part of the entry would hold all of it in memory.
        message.body = Bytes::copy_from_slice(&message.body);
        let id = state.add(StoredMessage::new(number, message, (now, sent_at)), until, now);
        if let Some(text) = deduplication {
            // A request has one time, after which the shortest window ends.
            state.remember(text, id.clone(), now + window.max(std::time::Duration::from_nanos(1)));
        }
        id
    }

    fn settle(&mut self, part: Part, receipt: Stub, how: Settle) -> Result<(), QueueError> {
        let (now, receipt) = (self.now, receipt_of(receipt));
        let visible_at = |after: std::time::Duration| (!after.is_zero()).then(|| now + after);
        match how {
            Settle::Complete => self.part(part).remove(&receipt).map(drop),
            Settle::Abandon { after, error } => self.part(part).abandon(&receipt, visible_at(after), error),
            Settle::Release { after } => self.part(part).hide(&receipt, visible_at(after), Hide::Release),
            Settle::DeadLetter { .. } if part == Part::DeadLetters => {
                let message = "a dead letter cannot be dead-lettered again: complete or abandon it";
                Err(PortError::new(PortErrorKind::Unsupported, message).into())
            }
            Settle::DeadLetter { reason, error } => {
                if let Some(stored) = self.messages.remove(&receipt)? {
                    self.letters.add(stored.into_dead_letter(reason, error), now, now);
                }
                Ok(())
            }
            // A handle refuses it before it writes.
            Settle::Forward { .. } => Err(QueueError::LeaseLost),
        }
    }

    /// Returns the whole state as bytes.
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Out::default();
        out.number(self.now.as_nanos());
        out.number(self.stamp.as_nanos());
        self.messages.encode(&mut out);
        self.letters.encode(&mut out);
        out.into_bytes()
    }

    pub(super) fn decode(bytes: Bytes) -> Option<Self> {
        let mut input = In::new(bytes);
        let (now, stamp) = (Instant::from_nanos(input.number()?), Instant::from_nanos(input.number()?));
        let (messages, letters) = (QueueState::decode(&mut input)?, QueueState::decode(&mut input)?);
        input.is_empty().then_some(Self { messages, letters, now, stamp })
    }
}

fn receipt_of((slot, number): Stub) -> Receipt {
    Receipt::from_numbers(slot, number)
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::entropy::Entropy;

    /// Returns a random call, which often names a receipt that is valid.
    fn call(entropy: &Entropy, receipts: &[Stub]) -> Call {
        let span = |entropy: &Entropy| Duration::from_secs(entropy.up_to(5));
        let visibility = Duration::from_secs(1 + entropy.up_to(5));
        let receipt = || match receipts.len() {
            0 => (0, 1),
            some => receipts[entropy.up_to(some as u64 - 1) as usize],
        };
        match entropy.up_to(9) {
            0..=2 => {
                let message = |_| {
                    let message = Message::new(entropy.next_u64().to_string()).delay(span(entropy));
                    let message =
                        if entropy.up_to(1) == 0 { message.group(entropy.up_to(2).to_string()) } else { message };
                    if entropy.up_to(1) == 0 { message.deduplicate(entropy.up_to(9).to_string()) } else { message }
                };
                Call::Send { messages: (0..entropy.up_to(3)).map(message).collect(), window: span(entropy) }
            }
            3..=5 => Call::Take { max: 1 + entropy.up_to(3) as usize, visibility },
            6 => Call::Extend { receipt: receipt(), visibility, begun: None },
            7 if entropy.up_to(20) == 0 => Call::Purge,
            _ => {
                let how = match entropy.up_to(3) {
                    0 => Settle::Complete,
                    1 => Settle::abandon(span(entropy)),
                    2 => Settle::release(span(entropy)),
                    _ => Settle::dead_letter("no"),
                };
                Call::Settle { settlements: vec![(receipt(), how)] }
            }
        }
    }

    #[test]
    fn a_machine_that_is_restored_from_its_bytes_goes_on_as_the_first_one() {
        for seed in 0..200 {
            let entropy = Entropy::from_seed(seed);
            let (mut first, mut second) = (Machine::new(), Machine::new());
            let mut receipts = Vec::new();
            for step in 1..150 {
                if entropy.up_to(9) == 0 {
                    second = Machine::decode(second.encode()).unwrap();
                }
                let part = if entropy.up_to(4) == 0 { Part::DeadLetters } else { Part::Messages };
                let call = call(&entropy, &receipts);
                let at = first.now() + Duration::from_millis(entropy.up_to(2_000));
                let run = |machine: &mut Machine| {
                    machine.advance(at);
                    let mut numbers = Numbers::of_entry(step);
                    let outcome = machine.apply(part, call.clone(), &mut numbers, true);
                    let depth = machine.apply(part, Call::Depth, &mut numbers, true);
                    let peeked = machine.apply(part, Call::Peek { max: 10 }, &mut numbers, true);
                    (outcome, format!("{depth:?} {peeked:?} {:?}", machine.outlook(part, at)))
                };
                let ((one, seen), (other, also_seen)) = (run(&mut first), run(&mut second));
                assert_eq!((format!("{one:?}"), seen), (format!("{other:?}"), also_seen), "seed {seed}, step {step}");
                if let Some(Outcome::Taken(taken)) = one {
                    receipts.extend(taken.iter().filter_map(|delivery| delivery.receipt.as_numbers()));
                }
            }
        }
    }

    #[test]
    fn the_time_goes_on_when_the_clock_is_set_back() {
        let mut machine = Machine::new();
        let second = |n: u64| Instant::from_nanos(n * 1_000_000_000);
        let run = |machine: &mut Machine, call| machine.apply(Part::Messages, call, &mut Numbers::of_entry(1), true);
        machine.advance(second(10_000));
        let messages = vec![Message::new("a").delay(Duration::from_secs(5))];
        run(&mut machine, Call::Send { messages, window: Duration::ZERO });
        let take = || Call::Take { max: 1, visibility: Duration::from_secs(1) };
        let taken = |outcome| matches!(outcome, Some(Outcome::Taken(taken)) if taken.len() == 1);
        // The clock is set back by an hour.
        for (at, is_visible) in [(6_400, false), (6_404, false), (6_405, true)] {
            machine.advance(second(at));
            assert_eq!(taken(run(&mut machine, take())), is_visible, "{at} s");
        }
    }

    #[test]
    fn a_message_holds_neither_its_entry_nor_a_checkpoint_in_memory() {
        let messages = (0..3).map(|i| Message::new(format!("body {i}"))).collect();
        let entry = Call::Send { messages, window: Duration::ZERO }.encode().unwrap();
        let mut machine = Machine::new();
        machine.apply(Part::Messages, Call::decode(entry.clone()).unwrap(), &mut Numbers::of_entry(1), true);
        assert!(entry.is_unique());
        let state = machine.encode();
        let copy = Machine::decode(state.clone()).unwrap();
        assert!(state.is_unique());
        assert_eq!(copy.encode(), state);
    }

    #[test]
    fn a_damaged_state_is_noticed() {
        let mut machine = Machine::new();
        machine.advance(Instant::from_nanos(1_000));
        let messages = vec![Message::new("a").group("g").deduplicate("1"), Message::new("b").group("g")];
        let send = Call::Send { messages, window: Duration::from_secs(1) };
        machine.apply(Part::Messages, send, &mut Numbers::of_entry(1), true);
        let bytes = machine.encode();
        assert!(Machine::decode(bytes.clone()).is_some());
        for end in 0..bytes.len() {
            assert!(Machine::decode(bytes.slice(..end)).is_none(), "cut at {end}");
        }
    }
}
