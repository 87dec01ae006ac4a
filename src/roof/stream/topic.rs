//! The trait of a partitioned log.
use std::{fmt, sync::Arc, time::Duration};

use super::{Appended, Event, Recorded};
use crate::{
    config::setters,
    port::{Capabilities, PortError, PortFuture},
};

/// Options of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Read {
    /// First position wanted, from 1.
    pub from: u64,
    /// Maximum number of events to return. 100 by default.
    pub max: usize,
    /// Longest wait for an event if there is none yet. Zero by default: the answer comes at once.
    pub wait: Duration,
}

setters! {
    impl Read {
        max: usize,
        wait: Duration,
    }
}

impl Read {
    /// Creates options that read from this position on.
    pub const fn from(position: u64) -> Self {
        Self { from: position, max: 100, wait: Duration::ZERO }
    }

    /// Rejects options that violate a rule of all topics. For topics.
    ///
    /// # Errors
    /// `Invalid`, with the name of the field and the rule.
    pub fn check(&self) -> Result<(), PortError> {
        if self.from == 0 {
            return Err(PortError::invalid("from", "must be at least 1"));
        }
        if self.max == 0 {
            return Err(PortError::invalid("max", "must be at least 1"));
        }
        Ok(())
    }
}

/// The positions of a partition that exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bounds {
    /// First position that is kept; equal to `next` if none is.
    pub first: u64,
    /// Position that the next event will get.
    pub next: u64,
}

impl Bounds {
    /// Creates bounds. For topics.
    pub const fn new(first: u64, next: u64) -> Self {
        Self { first, next }
    }
}

/// A partitioned log: each partition is a list of events with dense positions.
///
/// The trait is object-safe: producers and processors hold an `Arc<dyn Topic>`, and a log server
/// can implement it. The public conformance suite (`testing::conformance`, feature `testing`)
/// checks an implementation, with one named test for each case.
///
/// 1. **Positions are dense.** Those of a partition begin at 1 and grow by 1, in the order in which
///    appends took effect. No position is used twice, also after a trim or a restart.
/// 2. **A request is all or none**, and its events get consecutive positions in their order.
/// 3. **A reader misses no event.** If a read returns an event, that read and each later one see
///    all lower ones that were not trimmed. An event never changes.
/// 4. **An accepted event is there.** Each read and each `bounds` after the answer of an append
///    sees its events, through any handle of the topic.
/// 5. **An id is accepted once** within the topic's window
///    ([`deduplicates_for`](Capabilities::deduplicates_for)): a second event with the id, in the
///    same partition, is not appended, and its answer has the position of the first.
/// 6. **A trim deletes a prefix.** A read from below starts at the first position that is kept.
///    Another handle that has read deleted events may return them once more.
/// 7. **A dropped future** leaves its request applied as a whole or not at all.
pub trait Topic: Send + Sync + fmt::Debug {
    /// Returns the capabilities of the backend, and the limits of this topic: the size of an event
    /// ([`Event::size`]), the number of events in a request, and the size of a key and an id.
    fn capabilities(&self) -> Capabilities;

    /// Returns a text that distinguishes this topic from every other one, of at most 128 bytes. It
    /// stays for as long as the topic exists.
    fn identity(&self) -> String;

    /// Returns the name.
    fn name(&self) -> &str;

    /// Returns the number of partitions, 1 to 1,024. It never changes.
    fn partitions(&self) -> u16;

    /// Appends events to a partition, all or none, and returns their positions in their order.
    ///
    /// # Errors
    /// `Invalid` for an event that [`Event::check`] rejects, or a partition that does not exist.
    /// Another error if the backend failed; if it
    /// [may have been applied](PortError::may_have_been_applied), only events with an id can be
    /// appended again without a risk of duplicates.
    ///
    /// # Cancel safety
    /// If the future is dropped, all events were appended, or none.
    fn append(&self, partition: u16, events: Vec<Event>) -> PortFuture<'_, Vec<Appended>>;

    /// Returns the next events of a partition, in order and without holes. If there is none, waits
    /// for one, at most for `read.wait`.
    ///
    /// The answer may have fewer events than `max`, although more exist; it is empty only if there
    /// is none. From a position below the first that is kept, it starts with that one. From a
    /// position beyond the end it is empty; [`bounds`](Self::bounds) tells.
    ///
    /// # Errors
    /// `Invalid` for a position or a maximum of 0, or a partition that does not exist. `Corrupt`
    /// for a record that cannot be decoded.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn read(&self, partition: u16, read: Read) -> PortFuture<'_, Vec<Recorded>>;

    /// Returns the positions that exist.
    ///
    /// # Errors
    /// `Invalid` for a partition that does not exist, or a failure of the backend.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn bounds(&self, partition: u16) -> PortFuture<'_, Bounds>;

    /// Deletes all events below a position, and returns their number. A position beyond the end
    /// deletes all events; the next one still gets the next position.
    ///
    /// # Errors
    /// `Invalid` for a partition that does not exist, or a failure of the backend.
    ///
    /// # Cancel safety
    /// If the future is dropped, some of the events may be deleted: always those with the lowest
    /// positions.
    fn trim(&self, partition: u16, before: u64) -> PortFuture<'_, u64>;
}

impl<T: Topic + ?Sized> Topic for Arc<T> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }
    fn identity(&self) -> String {
        (**self).identity()
    }
    fn name(&self) -> &str {
        (**self).name()
    }
    fn partitions(&self) -> u16 {
        (**self).partitions()
    }
    fn append(&self, partition: u16, events: Vec<Event>) -> PortFuture<'_, Vec<Appended>> {
        (**self).append(partition, events)
    }
    fn read(&self, partition: u16, read: Read) -> PortFuture<'_, Vec<Recorded>> {
        (**self).read(partition, read)
    }
    fn bounds(&self, partition: u16) -> PortFuture<'_, Bounds> {
        (**self).bounds(partition)
    }
    fn trim(&self, partition: u16, before: u64) -> PortFuture<'_, u64> {
        (**self).trim(partition, before)
    }
}
