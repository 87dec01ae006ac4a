//! The decisions of a view: generations, checkpoints, the cut of a page, who stands by. Pure
//! machines.
//!
//! A generation is the fold of the sources up to its checkpoint. One is served, and at most one is
//! built beside it. A page takes effect in one batch that requires the version of the checkpoint on
//! which it was computed, so each event is folded once, by any number of projectors. The served
//! generation changes in one batch that requires both checkpoints as they were compared, so no
//! reader sees an earlier place after a later one.
use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};

use super::{
    config::Undecodable,
    projection::{Projection, Sourced},
    source::Item,
};
use crate::{
    port::{PortError, PortErrorKind},
    store::Version,
    stream::Position,
    time::Instant,
};

/// The origin of a generation that is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// It is folded from the first event on.
    Events,
    /// A loader still writes its rows: projectors leave it alone.
    Loading,
    /// All rows of its loader are there, and later events are folded into them.
    Loaded,
}

/// The generation that is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) generation: u64,
    pub(super) origin: Origin,
}

/// The generations of a version of the view.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Generations {
    /// The one that is served.
    pub(super) live: Option<u64>,
    pub(super) next: Option<Next>,
    /// The highest number that was given. None is given twice.
    pub(super) last: u64,
    /// Those whose rows are yet to be deleted.
    pub(super) old: Vec<u64>,
    pub(super) is_retired: bool,
}

impl Generations {
    /// Begins a new generation in place of the one that is built, and returns its number.
    pub(super) fn begin(&mut self, origin: Origin) -> u64 {
        self.old.extend(self.next.take().map(|next| next.generation));
        self.last += 1;
        self.next = Some(Next { generation: self.last, origin });
        self.last
    }

    /// Ends the load of a generation. Returns `false` if it is not the one that is built.
    pub(super) fn loaded(&mut self, generation: u64) -> bool {
        match &mut self.next {
            Some(next) if next.generation == generation => {
                next.origin = Origin::Loaded;
                true
            }
            _ => false,
        }
    }

    /// Serves the generation that was built, and returns its number.
    pub(super) fn switch(&mut self) -> Option<u64> {
        let next = self.next.take()?.generation;
        self.old.extend(self.live.replace(next));
        Some(next)
    }

    /// Takes back the generation that is built. Returns `false` if it is another one.
    pub(super) fn give_up(&mut self, generation: u64) -> bool {
        let given_up = self.next.take_if(|next| next.generation == generation);
        self.old.extend(given_up.as_ref().map(|next| next.generation));
        given_up.is_some()
    }

    /// Leaves out the served generation, whose rows were lost.
    pub(super) fn lose(&mut self) {
        self.old.extend(self.live.take());
    }

    pub(super) fn retire(&mut self) {
        self.lose();
        self.old.extend(self.next.take().map(|next| next.generation));
        self.is_retired = true;
    }

    /// Returns the generation that projectors build.
    pub(super) fn built(&self) -> Option<u64> {
        self.next.as_ref().filter(|next| next.origin != Origin::Loading).map(|next| next.generation)
    }
}

/// The last event of a partition that was folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Place {
    /// Its offset, 0 for none.
    pub(super) offset: u64,
    /// Its hash; `None` if it was not read.
    pub(super) hash: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourcePlaces {
    pub(super) identity: String,
    pub(super) places: Vec<Place>,
}

/// An event that did not decode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parked {
    pub(super) position: Position,
    pub(super) reason: String,
}

/// Parked streams, by source and name.
pub(super) type ParkedStreams = BTreeMap<(u64, String), Parked>;

/// Maximum number of parked streams. Above it a projector stops.
const MAX_PARKED: usize = 1_000;
/// Maximum number of characters of a reason that is kept.
const REASON: usize = 200;

/// The place of a generation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Checkpoint {
    pub(super) sources: Vec<SourcePlaces>,
    /// Number and bytes of its rows.
    pub(super) rows: u64,
    pub(super) bytes: u64,
    pub(super) parked: ParkedStreams,
    /// The event that is another one in its source by now.
    pub(super) diverged: Option<(u64, Position)>,
}

impl Checkpoint {
    /// Returns the checkpoint before the first event of these sources.
    pub(super) fn before<'a>(sources: impl Iterator<Item = (&'a str, u16)>) -> Self {
        let places = |partitions| vec![Place::default(); usize::from(partitions)];
        let of = |(identity, partitions): (&str, u16)| SourcePlaces {
            identity: identity.to_owned(),
            places: places(partitions),
        };
        Self { sources: sources.map(of).collect(), ..Self::default() }
    }

    pub(super) fn place_mut(&mut self, slot: usize) -> Option<&mut Place> {
        self.sources.iter_mut().flat_map(|source| &mut source.places).nth(slot)
    }

    /// Returns `true` if no place is before that of the other checkpoint.
    pub(super) fn covers(&self, other: &Self) -> bool {
        other.sources.iter().all(|theirs| {
            let ours = self.sources.iter().find(|ours| ours.identity == theirs.identity);
            ours.is_some_and(|ours| {
                let at_least = |(ours, theirs): (&Place, &Place)| ours.offset >= theirs.offset;
                ours.places.len() == theirs.places.len() && ours.places.iter().zip(&theirs.places).all(at_least)
            })
        })
    }

    /// Returns `true` if a generation with this checkpoint may be served in place of the live one.
    ///
    /// A live one that diverged has no place to go back from, and neither is there one without a
    /// live one: then the generation must have reached the ends of its sources.
    pub(super) fn may_follow(&self, live: Option<&Self>, has_caught_up: bool) -> bool {
        self.diverged.is_none()
            && match live.filter(|live| live.diverged.is_none()) {
                Some(live) => self.covers(live),
                None => has_caught_up,
            }
    }
}

/// The next step of a projector that stands by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It goes on.
    Works,
    /// It looks whether the sources have more, until then it waits.
    Looks,
    /// It waits until then.
    Waits(Instant),
}

/// A projector among others, by one generation.
#[derive(Debug, Default)]
pub(super) struct Rivalry {
    standby: Option<Standby>,
}

#[derive(Debug)]
struct Standby {
    /// Version of the checkpoint as it was seen last.
    version: Option<Version>,
    until: Instant,
    /// The sources had more at the last look.
    has_more: bool,
}

impl Rivalry {
    /// Another projector has moved the checkpoint.
    pub(super) fn lost(&mut self, now: Instant, standby: Duration) {
        self.standby = Some(Standby { version: None, until: now + standby, has_more: false });
    }

    /// Decides on the checkpoint's version that was read.
    pub(super) fn turn(&mut self, version: Version, now: Instant, standby: Duration) -> Turn {
        let Some(waiting) = &mut self.standby else { return Turn::Works };
        if waiting.version != Some(version) {
            *waiting = Standby { version: Some(version), until: now + standby, has_more: false };
        }
        match waiting.until {
            until if now < until => Turn::Waits(until),
            _ if waiting.has_more => {
                self.standby = None;
                Turn::Works
            }
            _ => Turn::Looks,
        }
    }

    /// Takes the result of a look at the sources.
    pub(super) fn looked(&mut self, has_more: bool, now: Instant, standby: Duration) {
        if let Some(waiting) = &mut self.standby {
            (waiting.until, waiting.has_more) = (now + standby, has_more);
        }
    }
}

/// The reason for which a page ends before a record that cannot be folded.
#[derive(Debug, Clone)]
pub(super) enum Stop {
    Undecodable(PortError),
    TooWide { rows: usize },
}

/// The records that are folded in one batch.
pub(super) struct Cut<'a, E> {
    /// Number of records.
    pub(super) taken: usize,
    /// Rows that they change, each with its number: in the order in which events name them.
    pub(super) keys: BTreeMap<String, usize>,
    /// The events, each with the number of a row that it changes.
    pub(super) folds: Vec<(usize, &'a Sourced<E>)>,
    /// Streams that are left out from now on.
    pub(super) parked: ParkedStreams,
    /// The reason for which not all were taken, other than the size of the batch.
    pub(super) stop: Option<Stop>,
}

/// Takes as many of the records as change at most `most` rows.
///
/// `source_of` returns the source of a slot, and `check` refuses keys that no row can have.
pub(super) fn cut<'a, P: Projection>(
    projection: &P,
    items: &'a [Item<P::Event>],
    (source_of, check): (impl Fn(usize) -> u64, impl Fn(&str) -> Result<(), PortError>),
    parked: &ParkedStreams,
    undecodable: Undecodable,
    most: usize,
) -> Cut<'a, P::Event> {
    let (keys, folds) = (BTreeMap::new(), Vec::with_capacity(items.len()));
    let mut page = Cut { taken: 0, keys, folds, parked: ParkedStreams::new(), stop: None };
    for item in items {
        let (keys, folds) = (page.keys.len(), page.folds.len());
        let newly = page.add(projection, item, (source_of(item.slot), parked), undecodable, &check);
        page.stop = match newly {
            Err(error) => Some(Stop::Undecodable(error)),
            Ok(newly) if parked.len() + page.parked.len() + newly.len() > MAX_PARKED => {
                let full = format!("view: more than {MAX_PARKED} streams would be parked");
                Some(Stop::Undecodable(PortError::new(PortErrorKind::Corrupt, full)))
            }
            Ok(_) if page.keys.len() > most && page.taken == 0 => Some(Stop::TooWide { rows: page.keys.len() }),
            Ok(newly) if page.keys.len() <= most => {
                page.parked.extend(newly);
                page.taken += 1;
                continue;
            }
            Ok(_) => None,
        };
        page.undo(keys, folds);
        return page;
    }
    page
}

impl<'a, E> Cut<'a, E> {
    /// Adds the events of a record that are folded, and returns the streams that it parks.
    fn add<P: Projection<Event = E>>(
        &mut self,
        projection: &P,
        item: &'a Item<E>,
        (source, before): (u64, &ParkedStreams),
        undecodable: Undecodable,
        check: impl Fn(&str) -> Result<(), PortError>,
    ) -> Result<ParkedStreams, PortError> {
        let mut newly = ParkedStreams::new();
        for event in item.events.as_ref().map_err(Clone::clone)? {
            let stream = match event {
                Ok(event) => &event.stream,
                Err((stream, _)) => stream,
            };
            let place = || stream.clone().map(|stream| (source, stream));
            let parked = [before, &self.parked, &newly];
            if parked.iter().any(|parked| !parked.is_empty() && place().is_some_and(|of| parked.contains_key(&of))) {
                continue;
            }
            let (keys, folds) = (self.keys.len(), self.folds.len());
            let folded = match event {
                Ok(event) => {
                    let mut keys = projection.keys(event);
                    keys.sort_unstable();
                    keys.dedup();
                    keys.into_iter().try_for_each(|key| self.fold(key, event, &check))
                }
                Err((_, error)) => Err(error.clone()),
            };
            let Err(error) = folded else { continue };
            self.undo(keys, folds);
            match place() {
                // An event of a newer release is no damage: a process of that release folds it.
                Some(place) if undecodable == Undecodable::Park && error.kind() != PortErrorKind::TooNew => {
                    let reason = shortened(error.to_string());
                    newly.insert(place, Parked { position: item.recorded.position, reason });
                }
                _ => return Err(error),
            }
        }
        Ok(newly)
    }

    /// Adds an event to the row with this key.
    fn fold(
        &mut self,
        key: String,
        event: &'a Sourced<E>,
        check: impl Fn(&str) -> Result<(), PortError>,
    ) -> Result<(), PortError> {
        let next = self.keys.len();
        let nth = match self.keys.entry(key) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                check(new.key())?;
                *new.insert(next)
            }
        };
        self.folds.push((nth, event));
        Ok(())
    }

    /// Takes back all that was added behind so many keys and folds.
    fn undo(&mut self, keys: usize, folds: usize) {
        self.keys.retain(|_, nth| *nth < keys);
        self.folds.truncate(folds);
    }
}

/// Returns the beginning of a text: each read gets the checkpoint with all reasons.
fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(REASON) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}

/// Folds events into rows, each with its key, by their numbers.
pub(super) fn fold<P: Projection>(
    projection: &P,
    rows: &mut [(&str, Option<P::Row>)],
    folds: &[(usize, &Sourced<P::Event>)],
) {
    for (nth, event) in folds {
        let (key, row) = &mut rows[*nth];
        *row = projection.fold(key, row.take(), event);
    }
}
