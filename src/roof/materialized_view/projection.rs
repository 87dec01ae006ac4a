//! The projection: the user's functions from events to rows.
use crate::{config::Name, stream::Position};

/// The rows of a view as a function of events.
///
/// Both functions are pure: they are called again in another process, and in a rebuild years later.
/// Give a changed function another [version](super::ViewConfig::version).
pub trait Projection: Send + Sync + 'static {
    /// The event.
    type Event: Send + Sync;
    /// The row.
    type Row: Send + Sync;

    /// Returns the keys of the rows that an event changes.
    fn keys(&self, event: &Sourced<Self::Event>) -> Vec<String>;

    /// Returns a row as it is after an event; `None` deletes it. `key` is one of
    /// [`keys`](Self::keys).
    fn fold(&self, key: &str, row: Option<Self::Row>, event: &Sourced<Self::Event>) -> Option<Self::Row>;
}

/// An event with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sourced<E> {
    /// Name of the topic.
    pub topic: Name,
    /// The place of the event. Events of one commit share it.
    pub position: Position,
    /// The stream of an event of a log, else the key of the event.
    pub stream: Option<String>,
    /// Id of the command of an event of a log, else the id of the event.
    pub id: Option<String>,
    /// The event.
    pub event: E,
}

impl<E> Sourced<E> {
    /// Creates an event without stream and id, for tests of a projection.
    pub fn new(topic: impl Into<Name>, position: Position, event: E) -> Self {
        Self { topic: topic.into(), position, stream: None, id: None, event }
    }
}
