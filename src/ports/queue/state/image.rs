//! The state of a queue as bytes, so that another process can go on with it.
use bytes::Bytes;

use super::{
    super::{ErrorHistory, MessageId, Unexplained},
    Position, QueueState, StoredMessage,
};
use crate::{
    time::{Instant, Timestamp},
    wire::{In, Out},
};

impl QueueState {
    /// Adds the whole state. Receipts name slots, so the slots are kept as they are.
    pub(crate) fn encode(&self, out: &mut Out) {
        out.number(self.handed_out);
        out.list(self.slots.iter(), |out, slot| out.option(slot.as_ref(), |out, stored| stored.encode(out)));
        out.list(self.free.iter(), |out, slot| out.number(*slot as u64));
        out.list(self.groups.iter(), |out, (group, members)| {
            out.text(group);
            out.list(members.iter(), |out, slot| out.number(*slot as u64));
        });
        out.list(self.ends.iter(), |out, (end, id)| {
            out.number(end.as_nanos());
            out.text(id);
            let message = self.sent.get(id).and_then(|(message, _)| message.as_numbers());
            out.number(message.map_or(0, |(number, _)| number));
        });
    }

    /// Returns the state that was [encoded](Self::encode); `None` if the bytes have another form.
    pub(crate) fn decode(input: &mut In) -> Option<Self> {
        let mut state = Self { handed_out: input.number()?, ..Self::default() };
        state.slots = input.list(|input| input.option(StoredMessage::decode))?;
        state.free = input.list(slot)?;
        state.groups = input.list(|input| Some((input.text()?, input.list(slot)?.into())))?.into_iter().collect();
        for (end, id, message) in input.list(|input| Some((input.number()?, input.text()?, input.number()?)))? {
            state.remember(id, MessageId::from_numbers(message, 0), Instant::from_nanos(end));
        }
        // A message that was never delivered may be among the returned ones: both are in one order.
        for (slot, stored) in state.slots.iter_mut().enumerate() {
            let Some(stored) = stored else { continue };
            let place = (stored.number, slot);
            match stored.position {
                Position::Fresh | Position::Returned => drop(state.returned.insert(place)),
                Position::Hidden(until) => drop(state.hidden.insert((until, place))),
                Position::BehindItsGroup => {}
            }
        }
        let slots = state.slots.len();
        let members = state.groups.values().flatten();
        state.free.iter().chain(members).all(|slot| *slot < slots).then_some(state)
    }
}

impl StoredMessage {
    fn encode(&self, out: &mut Out) {
        out.number(self.number);
        out.bytes(&self.body);
        out.list(self.headers.iter(), |out, (name, value)| {
            out.text(name);
            out.text(value);
        });
        out.option(self.group.as_deref(), Out::text);
        [self.deliveries, self.attempts, self.unexplained.number()]
            .iter()
            .for_each(|count| out.number(u64::from(*count)));
        out.number(self.accepted.as_nanos());
        out.number(self.sent_at.as_millis());
        out.option(self.reason.as_deref(), Out::text);
        out.option(self.errors.encode().as_deref(), Out::text);
        out.option(self.delayed, |out, until| out.number(until.as_nanos()));
        out.number(self.receipt);
        match self.position {
            Position::Fresh | Position::Returned => out.number(0),
            Position::BehindItsGroup => out.number(1),
            Position::Hidden(until) => {
                out.number(2);
                out.number(until.as_nanos());
            }
        }
    }

    fn decode(input: &mut In) -> Option<Self> {
        Some(Self {
            number: input.number()?,
            // A part of the image would hold all of it in memory.
            body: Bytes::copy_from_slice(&input.bytes()?),
            headers: input.list(|input| Some((input.text()?, input.text()?)))?.into_iter().collect(),
            group: input.option(In::text)?,
            deliveries: count(input)?,
            attempts: count(input)?,
            unexplained: Unexplained::from_number(count(input)?),
            accepted: Instant::from_nanos(input.number()?),
            sent_at: Timestamp::from_millis(input.number()?),
            reason: input.option(In::text)?,
            errors: input.option(In::text)?.map_or_else(ErrorHistory::default, |text| ErrorHistory::decode(&text)),
            delayed: input.option(In::number)?.map(Instant::from_nanos),
            receipt: input.number()?,
            position: match input.number()? {
                0 => Position::Returned,
                1 => Position::BehindItsGroup,
                2 => Position::Hidden(Instant::from_nanos(input.number()?)),
                _ => return None,
            },
        })
    }
}

fn count(input: &mut In) -> Option<u32> {
    input.number()?.try_into().ok()
}

fn slot(input: &mut In) -> Option<usize> {
    input.number()?.try_into().ok()
}
