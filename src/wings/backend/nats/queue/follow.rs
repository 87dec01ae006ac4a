//! Reads the log of a queue, and shortens it.
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{
    super::{
        api::Purge,
        link::Effect,
        reader::{Range, Reader},
        setup,
    },
    entry,
    log::{Log, Task},
    machine::Outcome,
    replica::{Applied, Broken},
};
use crate::{
    port::PortError,
    race::{First, race},
    spawn::Spawner,
};

/// First and longest pause between attempts to read the log.
const PAUSE: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];
/// Largest part of a checkpoint.
const PART: usize = 512 << 10;

impl Log {
    /// Starts the reader, unless it runs.
    pub(super) fn follow(self: &Arc<Self>) {
        if !self.is_followed.swap(true, Ordering::AcqRel) {
            let task = Task::new(self, |log| log.is_followed.store(false, Ordering::Release));
            Spawner::Tokio.spawn(async move { task.log.read_all().await });
        }
    }

    /// Reads the log until the queue is dropped, or the log cannot be applied.
    async fn read_all(self: &Arc<Self>) {
        let mut stopped = self.stopped.subscribe();
        let read = async {
            let (mut pause, mut missing) = (PAUSE[0], None);
            while self.replica.lock().broken().is_none() {
                // Another attempt follows, also after an error.
                pause = if self.read(&mut missing).await.is_ok() { PAUSE[0] } else { (pause * 2).min(PAUSE[1]) };
                self.changed.send_replace(());
                self.link.base().clock.sleep(pause).await;
            }
        };
        race(read, stopped.wait_for(|stopped| *stopped)).await;
    }

    /// Finds the first message to read, and begins a new copy if there is none to go on with.
    async fn begin(&self, missing: &mut Option<u64>) -> Result<Option<u64>, PortError> {
        if let Some(last) = self.replica.lock().resume() {
            return Ok(Some(last));
        }
        // A message that is missing is behind the first one if it was deleted by itself.
        let is_deleted = match *missing {
            Some(number) => !setup::has_message(&self.link, &self.stream.name, number).await?,
            None => false,
        };
        let found = setup::find(&self.link, &self.stream.name).await?;
        let mut replica = self.replica.lock();
        let Some(info) = found.filter(|info| info.config.metadata.identity == self.stream.identity) else {
            replica.give_up(Broken::Deleted);
            return Ok(None);
        };
        let state = info.state;
        if is_deleted && missing.take().is_some_and(|number| state.first_seq <= number) {
            replica.give_up(Broken::Incomplete);
            return Ok(None);
        }
        Ok(Some(replica.begin(state.messages, state.first_seq, state.last_seq)))
    }

    /// Reads the log by one consumer, until messages may be missing.
    async fn read(self: &Arc<Self>, missing: &mut Option<u64>) -> Result<(), PortError> {
        let Some(from) = self.begin(missing).await? else { return Ok(()) };
        self.changed.send_replace(());
        let mut reader = Reader::open(&self.link, &self.stream.name, Range::From(from)).await?;
        if reader.pending == 0 && self.replica.lock().has_lost_its_end() {
            reader.close().await;
            return Ok(());
        }
        while let First::One(Some(entry)) = race(reader.next(), self.reopen.notified()).await {
            let (place, now) = (entry.place, self.link.base().clock.now());
            let (applied, is_due, is_broken) = {
                let mut replica = self.replica.lock();
                let payload = entry.message.payload;
                let applied = replica.apply(place.sequence, place.stored_at, now, payload, self.origin);
                (applied, replica.is_due(), replica.broken().is_some())
            };
            match applied {
                Applied::Done(done) => self.answer(done),
                Applied::Gap(number) => {
                    *missing = Some(number);
                    break;
                }
                Applied::Another => break,
            }
            if is_broken {
                break;
            }
            if is_due && !self.is_checkpointing.swap(true, Ordering::AcqRel) {
                let task = Task::new(self, |log| log.is_checkpointing.store(false, Ordering::Release));
                Spawner::Tokio.spawn(async move { task.log.checkpoint().await });
            }
        }
        reader.close().await;
        Ok(())
    }

    /// Stores the state in the log, and removes the messages before it.
    async fn checkpoint(&self) {
        let base = self.link.base();
        // All handles see at the same time that one is due. Most often the first spares the others.
        base.clock.sleep(Duration::from_micros(base.entropy.up_to(300_000))).await;
        let image = self.replica.lock().image();
        if let Some((at, state)) = image {
            // An attempt that fails is repeated with a later entry.
            let _ = self.store_checkpoint(at, &state).await;
        }
    }

    async fn store_checkpoint(&self, at: u64, state: &[u8]) -> Result<(), PortError> {
        let size = self.largest.min(PART);
        let parts = state.len().div_ceil(size) as u64;
        let writer = self.link.base().entropy.next_u64();
        for (part, bytes) in (0..).zip(state.chunks(size)) {
            let entry = entry::checkpoint(writer, at, (part, parts), bytes);
            let stored = self.link.store(self.subject.clone(), None, entry).await?;
            stored.map_err(|error| self.link.rejected("the queue cannot be written", &error))?;
        }
        let call = format!("STREAM.PURGE.{}", self.stream.name);
        let purged =
            self.link.api::<serde::de::IgnoredAny>(&call, &Purge { filter: None, seq: at + 1 }, Effect::Writes).await?;
        purged.map(drop).map_err(|error| self.link.rejected("the log cannot be shortened", &error))
    }

    fn answer(&self, done: Vec<(u64, Outcome)>) {
        for (number, outcome) in done {
            if let Some(caller) = self.callers.lock().remove(&number) {
                // The caller may be gone.
                let _ = caller.send(outcome);
            }
        }
        self.changed.send_replace(());
    }
}
