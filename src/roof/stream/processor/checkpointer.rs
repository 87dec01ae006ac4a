//! The progress of a partition: what its next checkpoint has, and when that is written.
use std::{
    task::{Context, Poll},
    time::Duration,
};

use super::{
    checkpoint::{Checkpoint, Suspect},
    checkpoint_store::Written,
    worker::{Partition, WorkerEnd},
};
use crate::{port::BoxFuture, store::Version, time::Instant};

/// Maximum delay after a checkpoint that could not be written: a whole interval would outlast a
/// short grace.
const AFTER_FAILURE: Duration = Duration::from_millis(200);

/// The checkpoints of one owner. Those of the careful mode also decide which event may start.
pub(super) struct Checkpointer<'a> {
    /// The checkpoint but for its finished events, and the version of the last one.
    checkpoint: Checkpoint,
    version: Version,
    writing: Option<BoxFuture<'a, Written>>,
    /// Number of finished events since the last checkpoint, and the time of the first.
    unwritten: u64,
    unwritten_since: Option<Instant>,
    write_at: Instant,
    /// A checkpoint is due now: it has something beside finished events.
    is_forced: bool,
    /// Position of the suspect event whose record is being written.
    recording: Option<u64>,
    /// Position of the suspect event whose record is stored: it may start.
    recorded: Option<u64>,
}

impl<'a> Checkpointer<'a> {
    pub(super) fn new(checkpoint: Checkpoint, version: Version, now: Instant) -> Self {
        Self {
            checkpoint,
            version,
            writing: None,
            unwritten: 0,
            unwritten_since: None,
            write_at: now,
            is_forced: false,
            recording: None,
            recorded: None,
        }
    }

    /// Returns `true` if something is not in a checkpoint, or one is being written.
    pub(super) fn is_behind(&self) -> bool {
        self.is_dirty() || self.writing.is_some()
    }

    /// Returns `true` if there is something that the last checkpoint does not have.
    fn is_dirty(&self) -> bool {
        self.unwritten > 0 || self.is_forced
    }

    /// Returns the number of lost events.
    pub(super) fn lost(&self) -> u64 {
        self.checkpoint.lost
    }

    /// Marks an event that ran as finished.
    pub(super) fn finish(&mut self, position: u64, watermark: u64, now: Instant) {
        self.count(now);
        self.checkpoint.claims = 0;
        let is_careful = watermark < self.checkpoint.careful_until;
        if !is_careful {
            self.checkpoint.careful_until = 0;
        }
        if !is_careful || self.suspect(position).is_some() {
            self.checkpoint.suspect = None;
        }
    }

    /// Marks events as skipped, of which so many were not finished.
    pub(super) fn skip(&mut self, lost: u64, now: Instant) {
        self.checkpoint.lost = self.checkpoint.lost.saturating_add(lost);
        self.count(now);
    }

    fn count(&mut self, now: Instant) {
        self.unwritten += 1;
        self.unwritten_since.get_or_insert(now);
    }

    /// Ends the run of an event that is not finished.
    pub(super) fn delay(&mut self, position: u64) {
        if let Some(suspect) = &mut self.checkpoint.suspect
            && suspect.position == position
            && suspect.is_running
        {
            // A process that dies from now on was not killed by this event.
            suspect.is_running = false;
            self.is_forced = true;
        }
    }

    /// Prepares the last checkpoint of an owner that starts no further event.
    pub(super) fn drain(&mut self) {
        // The end of this owner is no crash.
        let suspect = self.checkpoint.suspect.map(|suspect| Suspect { is_running: false, ..suspect });
        self.is_forced |= self.checkpoint.claims > 0 || suspect != self.checkpoint.suspect;
        (self.checkpoint.claims, self.checkpoint.suspect) = (0, suspect);
        (self.recorded, self.recording) = (None, None);
    }

    /// Returns `true` if the next event may start. In the careful mode it must be recorded before,
    /// and alone.
    pub(super) fn permits(&mut self, partition: &Partition<'_>) -> bool {
        let lanes = &partition.lanes;
        if lanes.finished().watermark() >= self.checkpoint.careful_until {
            return true;
        }
        let Some(next) = lanes.peek() else { return false };
        // A delayed event that has killed its process holds up the others, so that none takes its place in
        // the record.
        let is_suspect = self.checkpoint.suspect.is_some_and(|suspect| suspect.crashes > 0 && suspect.position != next);
        if lanes.running() > 0 || is_suspect && lanes.next_due().is_some() {
            return false;
        }
        if self.condemns(next, partition).is_some() || self.recorded.take_if(|at| *at == next).is_some() {
            return true;
        }
        if self.recording.is_none() && self.writing.is_none() {
            let crashes = self.suspect(next).map_or(0, |suspect| suspect.crashes);
            self.checkpoint.suspect = Some(Suspect { position: next, crashes, is_running: true });
            (self.recorded, self.recording) = (None, Some(next));
            self.is_forced = true;
        }
        false
    }

    /// Returns the number of processes that an event has killed, if they are too many.
    pub(super) fn condemns(&self, position: u64, partition: &Partition<'_>) -> Option<u32> {
        let crashes = self.suspect(position)?.crashes;
        (crashes >= partition.core.config.load().max_crashes).then_some(crashes)
    }

    fn suspect(&self, position: u64) -> Option<Suspect> {
        self.checkpoint.suspect.filter(|suspect| suspect.position == position)
    }

    /// Begins a checkpoint if it is due. The last one is due at once.
    pub(super) fn begin(&mut self, partition: &Partition<'a>, is_last: bool, now: Instant) -> bool {
        let config = partition.core.config.load();
        let since = self.unwritten_since.unwrap_or(now);
        let is_due = self.is_forced
            || self.unwritten >= config.checkpoint_every.into()
            || self.unwritten > 0 && (is_last || now - since >= config.checkpoint_interval);
        if !is_due || self.writing.is_some() || now < self.write_at {
            return false;
        }
        self.checkpoint.writes += 1;
        let checkpoint = Checkpoint { finished: partition.lanes.finished().clone(), ..self.checkpoint.clone() };
        self.writing = Some(Box::pin(partition.core.write(partition.number, checkpoint, self.version)));
        (self.unwritten, self.unwritten_since, self.is_forced) = (0, None, false);
        true
    }

    /// Polls the checkpoint that is being written.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        partition: &Partition<'a>,
        now: Instant,
    ) -> Poll<Option<WorkerEnd>> {
        let Some(writing) = &mut self.writing else { return Poll::Pending };
        let Poll::Ready(written) = writing.as_mut().poll(cx) else { return Poll::Pending };
        self.writing = None;
        match written {
            Written::Applied(version) => {
                self.version = version;
                self.recorded = self.recording.take();
            }
            Written::Failed(version) => {
                self.version = version.unwrap_or(self.version);
                self.is_forced = true;
                self.write_at = now + partition.core.config.load().checkpoint_interval.min(AFTER_FAILURE);
            }
            Written::Superseded => return Poll::Ready(Some(WorkerEnd::Superseded)),
        }
        Poll::Ready(None)
    }

    /// Returns the time at which the next checkpoint is due.
    pub(super) fn next_due(&self, partition: &Partition<'a>, now: Instant) -> Option<Instant> {
        if self.writing.is_some() || !self.is_dirty() {
            return None;
        }
        let interval = partition.core.config.load().checkpoint_interval;
        let since = self.unwritten_since.map_or(now, |since| since + interval);
        Some(if self.is_forced { self.write_at } else { since.max(self.write_at) })
    }
}
