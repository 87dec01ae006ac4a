//! State machine of the queue in memory. It takes `now` as an argument, and uses neither async nor
//! tokio.
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use bytes::Bytes;

use super::{
    AttemptError, Delivery, Depth, ErrorHistory, Message, MessageId, Peeked, QueueError, Receipt, Unexplained,
};
use crate::time::{Instant, Timestamp};

/// The messages of a queue.
///
/// Messages are in slots that are reused. Each message is in one of four states. New messages are
/// ordered by sending (`fresh`), returned ones likewise (`returned`), hidden ones by the time of
/// their return (`hidden`). A message behind another of its group is in none of these: only its
/// group holds it.
#[derive(Default)]
pub(crate) struct QueueState {
    slots: Vec<Option<StoredMessage>>,
    free: Vec<usize>,
    fresh: VecDeque<OrderKey>,
    returned: BTreeSet<OrderKey>,
    hidden: BTreeSet<(Instant, OrderKey)>,
    groups: HashMap<String, VecDeque<usize>>,
    /// Sent messages by de-duplication id; `ends` has the ids in the order in which they expire.
    sent: HashMap<String, (MessageId, Instant)>,
    ends: VecDeque<(Instant, String)>,
    /// Counter of deliveries, so that no receipt repeats.
    handed_out: u64,
}

/// The number of a message, which determines its order, and its slot.
type OrderKey = (u64, usize);

pub(crate) struct StoredMessage {
    number: u64,
    body: Bytes,
    headers: BTreeMap<String, String>,
    group: Option<String>,
    deliveries: u32,
    attempts: u32,
    unexplained: Unexplained,
    /// Time of acceptance on the queue's clock, and on the wall clock.
    accepted: Instant,
    sent_at: Timestamp,
    reason: Option<String>,
    errors: ErrorHistory,
    /// End of the message's own delay, if it has one.
    delayed: Option<Instant>,
    /// Number of the delivery that may settle the message; 0 is none.
    receipt: u64,
    position: Position,
}

/// The reason for which a delivered message is hidden again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hide {
    /// The delivery continues: its message is hidden for longer.
    Extend,
    /// The same, and it is recorded whether the handling of the message has begun.
    Mark(bool),
    /// The delivery ends, and counts as an attempt.
    Abandon,
    /// The delivery ends, and does not count as an attempt.
    Release,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Fresh,
    Returned,
    Hidden(Instant),
    BehindItsGroup,
}

impl StoredMessage {
    pub(crate) fn new(number: u64, message: Message, (accepted, sent_at): (Instant, Timestamp)) -> Self {
        let Message { body, headers, group, .. } = message;
        Self {
            number,
            body,
            headers,
            group,
            deliveries: 0,
            attempts: 0,
            unexplained: Unexplained::default(),
            accepted,
            sent_at,
            reason: None,
            errors: ErrorHistory::default(),
            delayed: None,
            receipt: 0,
            position: Position::BehindItsGroup,
        }
    }

    /// Converts the message into a dead letter.
    pub(crate) fn into_dead_letter(mut self, reason: String, error: Option<Box<AttemptError>>) -> Self {
        self.add_error(error);
        (self.reason, self.delayed, self.receipt) = (Some(reason), None, 0);
        self.unexplained = self.unexplained.marked(false);
        self
    }

    fn add_error(&mut self, error: Option<Box<AttemptError>>) {
        if let Some(error) = error {
            self.errors.push(*error);
        }
    }

    fn id(&self) -> MessageId {
        MessageId::from_numbers(self.number, 0)
    }
}

impl QueueState {
    /// Creates an empty state whose receipts have numbers above this one.
    pub(crate) fn numbering_receipts_from(handed_out: u64) -> Self {
        Self { handed_out, ..Self::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the id of the message with this de-duplication id, if one was sent within the
    /// window.
    pub(crate) fn duplicate(&mut self, id: &str, now: Instant) -> Option<MessageId> {
        while let Some((end, id)) = self.ends.front()
            && *end <= now
        {
            self.sent.remove(id);
            self.ends.pop_front();
        }
        self.sent.get(id).map(|(id, _)| id.clone())
    }

    pub(crate) fn remember(&mut self, id: String, message: MessageId, end: Instant) {
        self.ends.push_back((end, id.clone()));
        self.sent.insert(id, (message, end));
    }

    /// Adds a message that is hidden until `until`.
    pub(crate) fn add(&mut self, mut stored: StoredMessage, until: Instant, now: Instant) -> MessageId {
        let id = stored.id();
        let group = stored.group.clone();
        stored.delayed = (until > now).then_some(until);
        stored.position = stored.delayed.map_or(Position::Fresh, Position::Hidden);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let place = (stored.number, slot);
        let mut first = true;
        if let Some(group) = group {
            let members = self.groups.entry(group).or_default();
            first = members.is_empty();
            members.push_back(slot);
        }
        match stored.position {
            _ if !first => stored.position = Position::BehindItsGroup,
            Position::Hidden(until) => drop(self.hidden.insert((until, place))),
            _ if self.fresh.back().is_none_or(|last| *last < place) => self.fresh.push_back(place),
            // A dead letter is older than messages that were sent since, so it is inserted in
            // order.
            _ => {
                stored.position = Position::Returned;
                self.returned.insert(place);
            }
        }
        self.slots[slot] = Some(stored);
        id
    }

    /// Delivers up to `max` messages, hidden for `visibility`.
    pub(crate) fn take(&mut self, max: usize, now: Instant, visibility: Duration) -> Vec<Delivery> {
        self.bring_back(now);
        let until = now + visibility;
        let mut taken = Vec::with_capacity(max.min(self.fresh.len() + self.returned.len()));
        while taken.len() < max
            && let Some(place) = self.next()
        {
            self.handed_out += 1;
            let Some(stored) = &mut self.slots[place.1] else { continue };
            if stored.receipt != 0 {
                // The receipt is still set, so the last delivery expired without being settled.
                stored.attempts = stored.attempts.saturating_add(1);
                stored.unexplained = stored.unexplained.expired();
            }
            stored.receipt = self.handed_out;
            stored.deliveries = stored.deliveries.saturating_add(1);
            stored.position = Position::Hidden(until);
            self.hidden.insert((until, place));
            let receipt = Receipt::from_numbers(place.1 as u64, stored.receipt);
            let mut delivery =
                Delivery::new(stored.id(), receipt, stored.body.clone(), stored.deliveries, stored.sent_at);
            delivery.attempts = stored.attempts;
            (delivery.expiries, delivery.crashes) = (stored.unexplained.expiries(), stored.unexplained.crashes());
            delivery.age = now - stored.accepted;
            delivery.headers.clone_from(&stored.headers);
            delivery.group.clone_from(&stored.group);
            delivery.reason.clone_from(&stored.reason);
            delivery.errors.clone_from(&stored.errors);
            taken.push(delivery);
        }
        taken
    }

    /// Removes and returns the oldest visible message.
    fn next(&mut self) -> Option<OrderKey> {
        match (self.fresh.front(), self.returned.first()) {
            (Some(fresh), Some(returned)) if returned < fresh => self.returned.pop_first(),
            (None, Some(_)) => self.returned.pop_first(),
            _ => self.fresh.pop_front(),
        }
    }

    /// Makes messages visible whose time is over.
    fn bring_back(&mut self, now: Instant) {
        while let Some((until, place)) = self.hidden.first().copied()
            && until <= now
        {
            self.hidden.pop_first();
            self.returned.insert(place);
            if let Some(stored) = &mut self.slots[place.1] {
                stored.position = Position::Returned;
            }
        }
    }

    /// Returns the time at which the next hidden message becomes visible.
    pub(crate) fn next_return(&self) -> Option<Instant> {
        self.hidden.first().map(|(until, _)| *until)
    }

    /// Returns the slot of the message that this receipt may settle.
    fn slot(&self, receipt: &Receipt) -> Result<usize, QueueError> {
        let (slot, number) = receipt.as_numbers().ok_or(QueueError::LeaseLost)?;
        let slot = usize::try_from(slot).unwrap_or(usize::MAX);
        match self.slots.get(slot) {
            Some(Some(stored)) if stored.receipt == number && number != 0 => Ok(slot),
            _ => Err(QueueError::LeaseLost),
        }
    }

    /// Checks that this receipt may settle a message.
    pub(crate) fn check_receipt(&self, receipt: &Receipt) -> Result<(), QueueError> {
        self.slot(receipt).map(drop)
    }

    /// Removes the message from the queue.
    pub(crate) fn remove(&mut self, receipt: &Receipt) -> Result<Option<StoredMessage>, QueueError> {
        let slot = self.slot(receipt)?;
        self.detach(slot);
        let stored = self.slots[slot].take();
        self.free.push(slot);
        if let Some(group) = stored.as_ref().and_then(|stored| stored.group.as_ref()) {
            self.release_next_of_group(&group.clone());
        }
        Ok(stored)
    }

    /// Ends the delivery as a failed attempt with this error.
    pub(crate) fn abandon(
        &mut self,
        receipt: &Receipt,
        until: Option<Instant>,
        error: Option<Box<AttemptError>>,
    ) -> Result<(), QueueError> {
        if error.is_some() {
            let slot = self.slot(receipt)?;
            if let Some(stored) = &mut self.slots[slot] {
                stored.add_error(error);
            }
        }
        self.hide(receipt, until, Hide::Abandon)
    }

    /// Hides the message until `until`, or makes it visible at once.
    pub(crate) fn hide(&mut self, receipt: &Receipt, until: Option<Instant>, reason: Hide) -> Result<(), QueueError> {
        let slot = self.slot(receipt)?;
        self.detach(slot);
        let Some(stored) = &mut self.slots[slot] else { return Ok(()) };
        let place = (stored.number, slot);
        match reason {
            Hide::Extend => {}
            Hide::Mark(begun) => stored.unexplained = stored.unexplained.marked(begun),
            Hide::Release => (stored.receipt, stored.unexplained) = (0, stored.unexplained.marked(false)),
            Hide::Abandon => {
                let tried = stored.attempts.saturating_sub(stored.unexplained.untried());
                stored.attempts = tried.saturating_add(1);
                (stored.receipt, stored.unexplained) = (0, Unexplained::default());
            }
        }
        match until {
            Some(until) => {
                stored.position = Position::Hidden(until);
                self.hidden.insert((until, place));
            }
            None => {
                stored.position = Position::Returned;
                self.returned.insert(place);
            }
        }
        Ok(())
    }

    /// Removes a delivered message from the order that holds it.
    fn detach(&mut self, slot: usize) {
        let Some(stored) = &self.slots[slot] else { return };
        let place = (stored.number, slot);
        match stored.position {
            Position::Hidden(until) => drop(self.hidden.remove(&(until, place))),
            Position::Returned => drop(self.returned.remove(&place)),
            Position::Fresh | Position::BehindItsGroup => {}
        }
    }

    /// Makes the next message of a group available after the first was removed.
    fn release_next_of_group(&mut self, group: &str) {
        let Some(members) = self.groups.get_mut(group) else { return };
        members.pop_front();
        let Some(next) = members.front().copied() else {
            self.groups.remove(group);
            return;
        };
        let Some(stored) = &mut self.slots[next] else { return };
        let place = (stored.number, next);
        match stored.delayed {
            Some(until) => {
                stored.position = Position::Hidden(until);
                self.hidden.insert((until, place));
            }
            None => {
                stored.position = Position::Returned;
                self.returned.insert(place);
            }
        }
    }

    pub(crate) fn depth(&self, now: Instant) -> Depth {
        let mut depth = Depth::default();
        for (_, (_, slot)) in self.hidden.iter().filter(|(until, _)| *until > now) {
            match &self.slots[*slot] {
                Some(stored) if stored.deliveries == 0 => depth.delayed += 1,
                _ => depth.in_flight += 1,
            }
        }
        depth.visible = self.len() as u64 - depth.delayed - depth.in_flight;
        depth
    }

    pub(crate) fn peek(&self, max: usize, now: Instant) -> Vec<Peeked> {
        let mut all: Vec<&StoredMessage> = self.slots.iter().flatten().collect();
        all.sort_unstable_by_key(|stored| stored.number);
        let peeked = all.into_iter().take(max).map(|stored| {
            let hidden = matches!(stored.position, Position::Hidden(until) if until > now);
            let mut peeked = Peeked::new(stored.id(), stored.body.clone(), stored.deliveries, stored.sent_at, hidden);
            peeked.attempts = stored.attempts;
            (peeked.expiries, peeked.crashes) = (stored.unexplained.expiries(), stored.unexplained.crashes());
            peeked.headers.clone_from(&stored.headers);
            peeked.group.clone_from(&stored.group);
            peeked.reason.clone_from(&stored.reason);
            peeked.errors.clone_from(&stored.errors);
            peeked
        });
        peeked.collect()
    }

    /// Deletes all messages, and returns their number. De-duplication ids are kept for their
    /// window.
    pub(crate) fn purge(&mut self) -> u64 {
        let gone = self.len() as u64;
        let (sent, ends) = (std::mem::take(&mut self.sent), std::mem::take(&mut self.ends));
        *self = Self { sent, ends, handed_out: self.handed_out, ..Self::default() };
        gone
    }
}
