//! The sources of a view: topics, and the way from what they hold to events.
use std::{fmt, sync::Arc};

use super::projection::Sourced;
use crate::{
    codec::Codec,
    config::Name,
    event_sourcing::{EventCodec, StoredCommit},
    hash::stable_hash,
    port::{PortError, PortErrorKind},
    stream::{Event, Position, Recorded, Topic},
    wire::Out,
};

/// An event of a record, or its stream and the reason for which it does not decode.
pub(super) type Decoded<E> = Result<Sourced<E>, (Option<String>, PortError)>;

/// Takes an event of a record: its stream, and the event, or the reason for which it does not
/// decode.
type Take<'a, E> = dyn FnMut(Option<String>, Result<E, PortError>) + 'a;

type Decode<E> = dyn Fn(&Recorded, &mut Take<'_, E>) -> Result<(), PortError> + Send + Sync;

/// The way from the records of a topic to a view's events. A clone shares its functions.
///
/// It is made from an [`EventCodec`] for a log, whose records are commits, and from a [`Codec`] for
/// a topic whose bodies are the events. [`map`](Self::map) converts those of a source with another
/// type.
///
/// ```
/// use steadfast::{codec::Codec, materialized_view::SourceCodec};
///
/// enum Fact { Clicks(u32) }
///
/// let json: Codec<u32> = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
/// let clicks = SourceCodec::from(json).map(Fact::Clicks);
/// # drop(clicks);
/// ```
pub struct SourceCodec<E>(Arc<Decode<E>>);

impl<E> Clone for SourceCodec<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<E> fmt::Debug for SourceCodec<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SourceCodec")
    }
}

impl<E: 'static> From<EventCodec<E>> for SourceCodec<E> {
    fn from(codec: EventCodec<E>) -> Self {
        Self(Arc::new(move |recorded, take| {
            for of_it in StoredCommit::open(recorded)?.events {
                if let Some(event) = codec.decode(&of_it.event).transpose() {
                    take(Some(of_it.stream), event);
                }
            }
            Ok(())
        }))
    }
}

impl<E: 'static> From<Codec<E>> for SourceCodec<E> {
    fn from(codec: Codec<E>) -> Self {
        Self(Arc::new(move |recorded, take| {
            let decoded = codec.decode(&recorded.event.body);
            let decoded = decoded.map_err(|error| PortError::new(PortErrorKind::Corrupt, error.to_string()));
            take(recorded.event.key.clone(), decoded);
            Ok(())
        }))
    }
}

impl<E: 'static> SourceCodec<E> {
    /// Converts each event by a function.
    #[must_use]
    pub fn map<F>(self, map: impl Fn(E) -> F + Send + Sync + 'static) -> SourceCodec<F> {
        SourceCodec(Arc::new(move |recorded, take| {
            (self.0)(recorded, &mut |stream, event| take(stream, event.map(&map)))
        }))
    }
}

/// A topic of a view.
pub(super) struct Source<E> {
    pub(super) topic: Arc<dyn Topic>,
    pub(super) name: Name,
    pub(super) identity: String,
    codec: SourceCodec<E>,
}

/// A record as it is folded: all of its events, or none.
pub(super) struct Item<E> {
    /// Index of the partition among all partitions of all sources.
    pub(super) slot: usize,
    pub(super) recorded: Recorded,
    /// The events; the error if the record itself does not decode.
    pub(super) events: Result<Vec<Decoded<E>>, PortError>,
}

impl<E> Source<E> {
    pub(super) fn new(topic: Arc<dyn Topic>, codec: SourceCodec<E>) -> Self {
        let (name, identity) = (Name::from(topic.name().to_owned()), topic.identity());
        Self { topic, name, identity, codec }
    }

    /// Decodes a record of one of its partitions.
    pub(super) fn item(&self, slot: usize, recorded: Recorded) -> Item<E> {
        // Most records have one: a vector that grows begins with room for four.
        let mut events = Vec::with_capacity(1);
        let (topic, position, id) = (&self.name, recorded.position, &recorded.event.id);
        let decoded = (self.codec.0)(&recorded, &mut |stream, event| {
            events.push(match event {
                Ok(event) => Ok(Sourced { topic: topic.clone(), position, stream, id: id.clone(), event }),
                Err(error) => Err((stream, error)),
            });
        });
        let events = decoded.map(|()| events);
        Item { slot, recorded, events }
    }
}

/// The items of a page; or the place of an event that is another one by now.
pub(super) type ReadPage<E> = Result<Vec<Item<E>>, (u64, Position)>;

/// Returns a number by which an event is recognised when it is read again.
pub(super) fn hash_of(event: &Event) -> u64 {
    let mut out = Out::default();
    out.option(event.key.as_deref(), Out::text);
    out.option(event.id.as_deref(), Out::text);
    out.list(event.headers.iter(), |out, (name, value)| {
        out.text(name);
        out.text(value);
    });
    out.bytes(&event.body);
    stable_hash(&out.into_bytes())
}
