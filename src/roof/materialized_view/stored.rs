//! The stored form of a view: rows, and their binary encoding.
//!
//! A view is one partition of the store:
//!
//! | row | content |
//! |---|---|
//! | `v/VERSION` | the generations of a version: the one that is served, the one that is built |
//! | `c/VERSION/GENERATION` | the checkpoint of a generation |
//! | `r/VERSION/GENERATION/KEY` | a row, as the user's codec writes it |
use std::collections::BTreeMap;

use bytes::Bytes;

use super::state::{Checkpoint, Generations, Next, Origin, Parked, Place, SourcePlaces};
use crate::{
    port::{PortError, PortErrorKind},
    record::Unreadable,
    stream::Position,
    wire::{In, Out},
};

/// Version of the encoding of rows.
const FORMAT: u64 = 1;

pub(super) fn version_row(version: u32) -> String {
    format!("v/{version}")
}

pub(super) fn checkpoint_row(version: u32, generation: u64) -> String {
    format!("c/{version}/{generation}")
}

/// Returns the beginning of the names of a generation's rows.
pub(super) fn rows_of(version: u32, generation: u64) -> String {
    format!("r/{version}/{generation}/")
}

pub(super) fn damaged(row: &str) -> PortError {
    PortError::new(PortErrorKind::Corrupt, format!("view: the row {row:?} cannot be decoded"))
}

fn open<T>(row: &str, value: Bytes, read: impl FnOnce(&mut In) -> Option<T>) -> Result<T, PortError> {
    In::open(value, FORMAT, read).map_err(|unreadable| match unreadable {
        Unreadable::TooNew => {
            PortError::new(PortErrorKind::TooNew, format!("view: the row {row:?} was written by a newer release"))
        }
        Unreadable::Foreign => damaged(row),
    })
}

fn flag(input: &mut In) -> Option<bool> {
    match input.number()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn origin(input: &mut In) -> Option<Origin> {
    let number = input.number()?;
    [Origin::Events, Origin::Loading, Origin::Loaded].into_iter().find(|origin| *origin as u64 == number)
}

impl Generations {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Out::of_form(FORMAT);
        out.option(self.live, Out::number);
        out.option(self.next.as_ref(), |out, next| {
            out.number(next.generation);
            out.number(next.origin as u64);
        });
        out.number(self.last);
        out.list(self.old.iter(), |out, generation| out.number(*generation));
        out.number(u64::from(self.is_retired));
        out.into_bytes()
    }

    pub(super) fn decode(row: &str, value: Bytes) -> Result<Self, PortError> {
        open(row, value, |input| {
            Some(Self {
                live: input.option(In::number)?,
                next: input.option(|input| Some(Next { generation: input.number()?, origin: origin(input)? }))?,
                last: input.number()?,
                old: input.list(In::number)?,
                is_retired: flag(input)?,
            })
        })
    }
}

fn add_position(out: &mut Out, (source, position): (u64, Position)) {
    out.number(source);
    out.number(u64::from(position.partition));
    out.number(position.offset);
}

fn take_position(input: &mut In) -> Option<(u64, Position)> {
    let (source, partition) = (input.number()?, u16::try_from(input.number()?).ok()?);
    Some((source, Position::new(partition, input.number()?)))
}

impl Checkpoint {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Out::of_form(FORMAT);
        out.list(self.sources.iter(), |out, source| {
            out.text(&source.identity);
            out.list(source.places.iter(), |out, place| {
                out.number(place.offset);
                out.option(place.hash, Out::number);
            });
        });
        out.number(self.rows);
        out.number(self.bytes);
        out.list(self.parked.iter(), |out, ((source, stream), parked)| {
            out.text(stream);
            add_position(out, (*source, parked.position));
            out.text(&parked.reason);
        });
        out.option(self.diverged, add_position);
        out.into_bytes()
    }

    pub(super) fn decode(row: &str, value: Bytes) -> Result<Self, PortError> {
        open(row, value, |input| {
            let sources = input.list(|input| {
                let identity = input.text()?;
                let place = |input: &mut In| Some(Place { offset: input.number()?, hash: input.option(In::number)? });
                Some(SourcePlaces { identity, places: input.list(place)? })
            })?;
            let (rows, bytes) = (input.number()?, input.number()?);
            let parked = input.list(|input| {
                let (stream, (source, position)) = (input.text()?, take_position(input)?);
                Some(((source, stream), Parked { position, reason: input.text()? }))
            })?;
            let parked = parked.into_iter().collect::<BTreeMap<_, _>>();
            Some(Self { sources, rows, bytes, parked, diverged: input.option(take_position)? })
        })
    }
}
