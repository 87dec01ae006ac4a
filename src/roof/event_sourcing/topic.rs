//! The log as a topic.
use std::{pin::pin, sync::Arc, time::Duration};

use super::{
    store::EventStoreInner,
    stored::{COMMITS, StoredCommit},
};
use crate::{
    build::debug_fields,
    port::{Capabilities, Capability, PortError, PortErrorKind, PortFuture},
    race::race,
    stream::{Appended, Bounds, Event, Position, Read, Recorded, Topic},
};

/// A log as a [`Topic`] of one partition, from [`EventStore::topic`](super::EventStore::topic).
///
/// The offset of an event is the number of the commit, its key is the commit's first stream, and
/// its id is that of the command. `append` and `trim` are `Unsupported`: commits are made and
/// trimmed by the log itself.
///
/// A processor orders events by their key: commits with the same first stream are in order, and
/// those of another one run beside them, also if both append to one stream.
#[derive(Clone)]
pub struct LogTopic(Arc<EventStoreInner>);

debug_fields!(LogTopic, |this| name: this.0.name, store: this.0.store);

/// First and longest delay between two polls of a waiting read; the latter with a notifier, too.
const POLLS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

impl StoredCommit {
    /// Returns the commit that an event of the log's topic is.
    ///
    /// # Errors
    /// `Corrupt` if the event is none, `TooNew` if a newer release wrote it.
    pub fn open(recorded: &Recorded) -> Result<Self, PortError> {
        Self::decode(recorded.position.offset, recorded.event.body.clone())
    }
}

impl LogTopic {
    pub(super) const fn new(log: Arc<EventStoreInner>) -> Self {
        Self(log)
    }

    fn check(partition: u16) -> Result<(), PortError> {
        if partition == 0 {
            return Ok(());
        }
        let rule = format_args!("must be below 1, the number of partitions, is {partition}");
        Err(PortError::invalid("partition", rule))
    }

    fn refused<T>(what: &str) -> Result<T, PortError> {
        Err(PortError::new(PortErrorKind::Unsupported, format!("events: the topic of a log has no {what}")))
    }

    async fn read_now(&self, read: &Read) -> Result<Vec<Recorded>, PortError> {
        let rows = self.0.commit_rows(read.from - 1, read.max).await?;
        let recorded = rows.into_iter().map(|(number, row)| {
            let (command, stream) = StoredCommit::decode_head(number, row.value.clone())?;
            let mut event = Event::new(row.value).id(command);
            event.key = stream;
            Ok(Recorded::new(Position::new(0, number), event))
        });
        recorded.collect()
    }

    async fn read_or_wait(&self, partition: u16, read: Read) -> Result<Vec<Recorded>, PortError> {
        read.check()?;
        Self::check(partition)?;
        let log = &*self.0;
        let (until, mut pause) = (log.clock.now() + read.wait, POLLS.0);
        loop {
            // Listens before it reads: a commit behind the read wakes it.
            let mut changed = pin!(log.changed.notified());
            changed.as_mut().enable();
            let events = self.read_now(&read).await?;
            let now = log.clock.now();
            if !events.is_empty() || now >= until {
                return Ok(events);
            }
            let next_poll = until.min(now + pause);
            pause = (pause * 2).min(POLLS.1);
            let polls = async { log.clock.sleep_until(next_poll).await };
            race(changed, race(polls, log.hear())).await;
        }
    }
}

impl Topic for LogTopic {
    fn capabilities(&self) -> Capabilities {
        self.0.can.without(Capability::Deduplication)
    }

    fn identity(&self) -> String {
        self.0.identity.clone()
    }

    fn name(&self) -> &str {
        self.0.name.as_str()
    }

    fn partitions(&self) -> u16 {
        1
    }

    fn append(&self, _: u16, _: Vec<Event>) -> PortFuture<'_, Vec<Appended>> {
        Box::pin(async { Self::refused("`append`: make a commit") })
    }

    fn read(&self, partition: u16, read: Read) -> PortFuture<'_, Vec<Recorded>> {
        Box::pin(self.read_or_wait(partition, read))
    }

    fn bounds(&self, partition: u16) -> PortFuture<'_, Bounds> {
        Box::pin(async move {
            Self::check(partition)?;
            // The end first: a trim deletes only what lies before it.
            let next = self.0.last(COMMITS).await? + 1;
            let first = self.0.commit_rows(0, 1).await?.first().map_or(next, |(number, _)| *number);
            Ok(Bounds::new(first.min(next), next))
        })
    }

    fn trim(&self, _: u16, _: u64) -> PortFuture<'_, u64> {
        Box::pin(async { Self::refused("`trim`: trim the log") })
    }
}
