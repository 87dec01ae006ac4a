//! One append: the events of a request, and the writes that append them. Knows no store and no
//! time.
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use super::{
    Appended, Event, Position,
    stored::{self, Head, OVERHEAD, RequestId},
    turns,
};
use crate::{
    port::Capabilities,
    store::{Precondition, PutOptions, Version, Write},
};

/// Size of a row of events, in bytes, behind which the next event begins another one. Readers
/// receive whole rows.
const ROW: usize = 128 << 10;

/// The events of one request.
#[derive(Debug)]
pub(super) struct Request {
    events: Vec<Event>,
    fates: Vec<Fate>,
    /// Size behind which the next event begins another row.
    largest_row: usize,
}

/// The fate of an event of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is appended.
    New,
    /// An earlier event of the request, with this index, has its id.
    SameAs(usize),
    /// The event at this offset has its id.
    DuplicateOf(u64),
}

impl Request {
    /// Creates a request, for a store with these limits; `None` if its events are so large that
    /// they need more rows than a batch has.
    pub(super) fn new(events: Vec<Event>, store: &Capabilities) -> Option<Self> {
        let mut ids: HashMap<&str, usize> = HashMap::new();
        let mut fates = Vec::with_capacity(events.len());
        for (index, event) in events.iter().enumerate() {
            let earlier = event.id.as_deref().and_then(|id| match ids.get(id) {
                Some(earlier) => Some(*earlier),
                None => ids.insert(id, index).and(None),
            });
            fates.push(earlier.map_or(Fate::New, Fate::SameAs));
        }
        let ids = events.iter().filter(|event| event.id.is_some()).count();
        let rows = store.max_batch().saturating_sub(1 + turns::WRITES + ids);
        // Larger rows only if there would be too many.
        let mut limits = [store.max_value().min(ROW), store.max_value()].into_iter();
        let largest_row = limits.find(|limit| rows_of(&events, *limit) <= rows)?;
        Some(Self { events, fates, largest_row })
    }

    /// Returns the rows of the ids of the events that would be appended.
    pub(super) fn id_rows(&self) -> Vec<String> {
        self.new_events().filter_map(|event| event.id.as_deref().map(stored::id_row)).collect()
    }

    /// Excludes the events whose ids were accepted before: offsets by row. Returns `false` if there
    /// is none.
    pub(super) fn exclude(&mut self, accepted: &BTreeMap<String, u64>) -> bool {
        let mut excludes = false;
        for (event, fate) in self.events.iter().zip(&mut self.fates) {
            let row = event.id.as_deref().map(stored::id_row);
            if let (Fate::New, Some(offset)) = (*fate, row.and_then(|row| accepted.get(&row))) {
                *fate = Fate::DuplicateOf(*offset);
                excludes = true;
            }
        }
        excludes
    }

    /// Returns `true` if no event is to be appended.
    pub(super) fn is_empty(&self) -> bool {
        self.new_events().next().is_none()
    }

    /// Returns the writes that append the events behind this head; those of the writer's turn are
    /// behind the head, too.
    pub(super) fn writes(
        &self,
        (head, version): (&Head, Option<Version>),
        request: RequestId,
        window: Option<Duration>,
        of_turn: impl FnOnce(u64) -> Vec<Write>,
    ) -> (Head, Vec<Write>) {
        let (mut rows, mut row, mut size, mut first) = (Vec::new(), Vec::new(), OVERHEAD, head.next);
        let mut ids = Vec::new();
        let absent = || PutOptions::from(Precondition::Absent);
        let mut end = |first: &mut u64, row: &mut Vec<&Event>| {
            let value = stored::encode_events(request, row);
            rows.push(Write::put(stored::events_row(*first), value, absent()));
            *first += row.len() as u64;
            row.clear();
        };
        for event in self.new_events() {
            let adds = stored::encoded_size(event);
            if !row.is_empty() && size + adds > self.largest_row {
                end(&mut first, &mut row);
                size = OVERHEAD;
            }
            if let Some(id) = &event.id {
                let offset = first + row.len() as u64;
                let mut options = absent();
                options.ttl = window;
                ids.push(Write::put(stored::id_row(id), stored::encode_offset(offset), options));
            }
            row.push(event);
            size += adds;
        }
        if !row.is_empty() {
            end(&mut first, &mut row);
        }
        let after = Head { next: first, request, appended_at: head.next, ..*head };
        let when = version.map_or(Precondition::Absent, Precondition::Version);
        // The head is first: a conflict there is named before any other.
        let mut writes = vec![Write::put(stored::HEAD, after.encode(), when)];
        writes.extend(of_turn(first));
        writes.extend(rows);
        writes.extend(ids);
        (after, writes)
    }

    /// Returns the answers, if the new events were appended from this offset on.
    pub(super) fn answers(&self, partition: u16, first: u64) -> Vec<Appended> {
        let at = |offset| Position::new(partition, offset);
        let mut next = first;
        let mut answers: Vec<Appended> = Vec::with_capacity(self.fates.len());
        for fate in &self.fates {
            answers.push(match *fate {
                Fate::New => {
                    next += 1;
                    Appended::new(at(next - 1))
                }
                Fate::SameAs(index) => match answers.get(index) {
                    Some(earlier) => Appended::duplicate_of(earlier.position),
                    None => Appended::duplicate_of(at(first)),
                },
                Fate::DuplicateOf(offset) => Appended::duplicate_of(at(offset)),
            });
        }
        answers
    }

    fn new_events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().zip(&self.fates).filter_map(|(event, fate)| (*fate == Fate::New).then_some(event))
    }
}

/// Returns the number of rows of at most this size that events take.
fn rows_of(events: &[Event], largest: usize) -> usize {
    let (mut rows, mut size) = (0, usize::MAX);
    for adds in events.iter().map(stored::encoded_size) {
        size = size.saturating_add(adds);
        if size > largest {
            rows += 1;
            size = OVERHEAD + adds;
        }
    }
    rows
}
