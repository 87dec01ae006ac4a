//! The machine of the queue in memory. Takes `now` as an argument; knows neither async nor tokio.
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use bytes::Bytes;

use super::{Delivery, Depth, Message, MessageId, Peeked, QueueError, Receipt};
use crate::time::{Instant, Timestamp};

/// What is in a queue.
///
/// Messages lie in slots that are used again. Each is in exactly one of four states, and but for the last in one of three orders: new
/// ones in the order of sending, those that came back in the same order, hidden ones by the time of their return, and those
/// behind another of their group nowhere: their group has them.
#[derive(Default)]
pub(super) struct State {
    slots: Vec<Option<Stored>>,
    free: Vec<usize>,
    fresh: VecDeque<Place>,
    returned: BTreeSet<Place>,
    hidden: BTreeSet<(Instant, Place)>,
    groups: HashMap<String, VecDeque<usize>>,
    /// By de-duplication id; and in the order of their end.
    sent: HashMap<String, (MessageId, Instant)>,
    ends: VecDeque<(Instant, String)>,
    /// Numbers deliveries: no receipt comes twice.
    handed_out: u64,
}

/// The number of the message, which gives the order, and its slot.
type Place = (u64, usize);

pub(super) struct Stored {
    number: u64,
    body: Bytes,
    headers: BTreeMap<String, String>,
    group: Option<String>,
    deliveries: u32,
    attempts: u32,
    expiries: u32,
    sent_at: Timestamp,
    reason: Option<String>,
    /// When its own delay is over, if it has one.
    delayed: Option<Instant>,
    /// The number of the delivery that may settle it; 0 is none.
    receipt: u64,
    at: At,
}

/// What becomes of a delivery whose message is hidden anew.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// It goes on: its message is hidden for longer.
    Not,
    /// It ends, and was an attempt.
    Attempt,
    /// It ends, and was none.
    Uncounted,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Fresh,
    Returned,
    Hidden(Instant),
    Behind,
}

impl Stored {
    pub(super) fn new(number: u64, message: Message, sent_at: Timestamp) -> Self {
        let Message { body, headers, group, .. } = message;
        Self {
            number,
            body,
            headers,
            group,
            deliveries: 0,
            attempts: 0,
            expiries: 0,
            sent_at,
            reason: None,
            delayed: None,
            receipt: 0,
            at: At::Behind,
        }
    }

    /// The same, set aside.
    pub(super) fn dead(mut self, reason: String) -> Self {
        (self.reason, self.delayed, self.receipt) = (Some(reason), None, 0);
        self
    }

    fn id(&self) -> MessageId {
        MessageId::from_numbers(self.number, 0)
    }
}

impl State {
    /// An empty one, whose receipts have numbers above this.
    pub(super) fn numbering_receipts_from(handed_out: u64) -> Self {
        Self { handed_out, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The id of a message with this de-duplication id, if one was sent within the window.
    pub(super) fn duplicate(&mut self, id: &str, now: Instant) -> Option<MessageId> {
        while let Some((end, id)) = self.ends.front()
            && *end <= now
        {
            self.sent.remove(id);
            self.ends.pop_front();
        }
        self.sent.get(id).map(|(id, _)| id.clone())
    }

    pub(super) fn remember(&mut self, id: String, message: MessageId, end: Instant) {
        self.ends.push_back((end, id.clone()));
        self.sent.insert(id, (message, end));
    }

    /// Adds a message, hidden until then.
    pub(super) fn add(&mut self, mut stored: Stored, until: Instant, now: Instant) -> MessageId {
        let id = stored.id();
        let group = stored.group.clone();
        stored.delayed = (until > now).then_some(until);
        stored.at = stored.delayed.map_or(At::Fresh, At::Hidden);
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
        match stored.at {
            _ if !first => stored.at = At::Behind,
            At::Hidden(until) => drop(self.hidden.insert((until, place))),
            _ if self.fresh.back().is_none_or(|last| *last < place) => self.fresh.push_back(place),
            // A dead letter is older than what was sent since.
            _ => {
                stored.at = At::Returned;
                self.returned.insert(place);
            }
        }
        self.slots[slot] = Some(stored);
        id
    }

    /// Hands out up to so many, hidden until then.
    pub(super) fn take(&mut self, max: usize, now: Instant, visibility: Duration) -> Vec<Delivery> {
        self.bring_back(now);
        let until = now + visibility;
        let mut taken = Vec::with_capacity(max.min(self.fresh.len() + self.returned.len()));
        while taken.len() < max
            && let Some(place) = self.next()
        {
            self.handed_out += 1;
            let Some(stored) = &mut self.slots[place.1] else { continue };
            if stored.receipt != 0 {
                // The last delivery ended without a word.
                stored.attempts = stored.attempts.saturating_add(1);
                stored.expiries = stored.expiries.saturating_add(1);
            }
            stored.receipt = self.handed_out;
            stored.deliveries = stored.deliveries.saturating_add(1);
            stored.at = At::Hidden(until);
            self.hidden.insert((until, place));
            let receipt = Receipt::from_numbers(place.1 as u64, stored.receipt);
            let mut delivery =
                Delivery::new(stored.id(), receipt, stored.body.clone(), stored.deliveries, stored.sent_at);
            (delivery.attempts, delivery.expiries) = (stored.attempts, stored.expiries);
            delivery.headers.clone_from(&stored.headers);
            delivery.group.clone_from(&stored.group);
            delivery.reason.clone_from(&stored.reason);
            taken.push(delivery);
        }
        taken
    }

    /// The oldest that can be handed out.
    fn next(&mut self) -> Option<Place> {
        match (self.fresh.front(), self.returned.first()) {
            (Some(fresh), Some(returned)) if returned < fresh => self.returned.pop_first(),
            (None, Some(_)) => self.returned.pop_first(),
            _ => self.fresh.pop_front(),
        }
    }

    /// Makes visible what is due.
    fn bring_back(&mut self, now: Instant) {
        while let Some((until, place)) = self.hidden.first().copied()
            && until <= now
        {
            self.hidden.pop_first();
            self.returned.insert(place);
            if let Some(stored) = &mut self.slots[place.1] {
                stored.at = At::Returned;
            }
        }
    }

    /// When the next hidden message comes back.
    pub(super) fn next_return(&self) -> Option<Instant> {
        self.hidden.first().map(|(until, _)| *until)
    }

    /// The slot of the message that this receipt may settle.
    fn slot(&self, receipt: &Receipt) -> Result<usize, QueueError> {
        let (slot, number) = receipt.as_numbers().ok_or(QueueError::LeaseLost)?;
        let slot = usize::try_from(slot).unwrap_or(usize::MAX);
        match self.slots.get(slot) {
            Some(Some(stored)) if stored.receipt == number && number != 0 => Ok(slot),
            _ => Err(QueueError::LeaseLost),
        }
    }

    /// Takes the message out for good.
    pub(super) fn remove(&mut self, receipt: &Receipt) -> Result<Option<Stored>, QueueError> {
        let slot = self.slot(receipt)?;
        self.leave(slot);
        let stored = self.slots[slot].take();
        self.free.push(slot);
        if let Some(group) = stored.as_ref().and_then(|stored| stored.group.as_ref()) {
            self.move_up(&group.clone());
        }
        Ok(stored)
    }

    /// Hides the message until then, or makes it visible at once; `ends` says what becomes of its delivery.
    pub(super) fn hide(&mut self, receipt: &Receipt, until: Option<Instant>, ends: Ends) -> Result<(), QueueError> {
        let slot = self.slot(receipt)?;
        self.leave(slot);
        let Some(stored) = &mut self.slots[slot] else { return Ok(()) };
        let place = (stored.number, slot);
        if ends != Ends::Not {
            stored.receipt = 0;
        }
        if ends == Ends::Attempt {
            (stored.attempts, stored.expiries) = (stored.attempts.saturating_add(1), 0);
        }
        match until {
            Some(until) => {
                stored.at = At::Hidden(until);
                self.hidden.insert((until, place));
            }
            None => {
                stored.at = At::Returned;
                self.returned.insert(place);
            }
        }
        Ok(())
    }

    /// Takes a message that was handed out from the order that it is in.
    fn leave(&mut self, slot: usize) {
        let Some(stored) = &self.slots[slot] else { return };
        let place = (stored.number, slot);
        match stored.at {
            At::Hidden(until) => drop(self.hidden.remove(&(until, place))),
            At::Returned => drop(self.returned.remove(&place)),
            At::Fresh | At::Behind => {}
        }
    }

    /// The first of a group has gone: the next one's turn has come.
    fn move_up(&mut self, group: &str) {
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
                stored.at = At::Hidden(until);
                self.hidden.insert((until, place));
            }
            None => {
                stored.at = At::Returned;
                self.returned.insert(place);
            }
        }
    }

    pub(super) fn depth(&self, now: Instant) -> Depth {
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

    pub(super) fn peek(&self, max: usize, now: Instant) -> Vec<Peeked> {
        let mut all: Vec<&Stored> = self.slots.iter().flatten().collect();
        all.sort_unstable_by_key(|stored| stored.number);
        let peeked = all.into_iter().take(max).map(|stored| {
            let hidden = matches!(stored.at, At::Hidden(until) if until > now);
            let mut peeked = Peeked::new(stored.id(), stored.body.clone(), stored.deliveries, stored.sent_at, hidden);
            (peeked.attempts, peeked.expiries) = (stored.attempts, stored.expiries);
            peeked.headers.clone_from(&stored.headers);
            peeked.group.clone_from(&stored.group);
            peeked.reason.clone_from(&stored.reason);
            peeked
        });
        peeked.collect()
    }

    /// Deletes all messages, and gives their number. What was sent stays known for its window.
    pub(super) fn purge(&mut self) -> u64 {
        let gone = self.len() as u64;
        let (sent, ends) = (std::mem::take(&mut self.sent), std::mem::take(&mut self.ends));
        *self = Self { sent, ends, handed_out: self.handed_out, ..Self::default() };
        gone
    }
}
