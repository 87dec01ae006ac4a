//! Processing one partition: polls its read, its handlers and its checkpoint beside each other.
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{
    Delivered, PartitionState, StreamProcessorEvent as Event,
    alarm::Alarm,
    checkpoint::{Checkpoint, Suspect},
    component::ProcessorCore,
    delivered::OfRead,
    lanes::Lanes,
    reading::{LOOK, Looking, Reading},
    records::{Claimed, Written},
    state::lag,
};
use crate::{
    port::{BoxFuture, FencingToken},
    queue_listener::{Cancel, Cancelled, Caught, Disposition, Idle},
    store::Version,
    stream::Position,
    time::{Instant, Sleep},
};

/// Maximum number of handlers that start in one poll, before other partitions have a turn.
const STARTS: usize = 64;

/// The owner's work on one partition.
pub(super) struct Worker<'a, F, H> {
    pub(super) core: &'a ProcessorCore,
    pub(super) handler: &'a F,
    pub(super) partition: u16,
    pub(super) token: FencingToken,
    pub(super) cancel: Cancel,
    pub(super) cancelled: Cancelled,
    pub(super) lanes: Lanes<OfRead>,
    /// The checkpoint but for its finished events, and the version of the last one.
    pub(super) checkpoint: Checkpoint,
    pub(super) version: Version,
    /// Position that the next event of the topic will get, as far as known.
    pub(super) end: u64,
    pub(super) running: FuturesUnordered<Running<H>>,
    pub(super) spare: Vec<Pin<Box<Caught<H>>>>,
    pub(super) burying: FuturesUnordered<BoxFuture<'a, (u64, Result<(), String>)>>,
    pub(super) reading: Option<Reading<'a>>,
    pub(super) read_at: Instant,
    /// Asks for the end of the topic; and the time of the next such request.
    pub(super) looking: Option<Looking<'a>>,
    pub(super) look_at: Instant,
    pub(super) idle: Idle,
    pub(super) alarm: Arc<Alarm>,
    /// It has rung since the last read began.
    pub(super) has_rung: bool,
    /// The first position behind events that the topic no longer has.
    pub(super) gap: Option<u64>,
    pub(super) writing: Option<BoxFuture<'a, Written>>,
    /// Number of finished events since the last checkpoint, and the time of the first.
    pub(super) unwritten: u64,
    pub(super) unwritten_since: Option<Instant>,
    pub(super) write_at: Instant,
    /// A checkpoint is due now: it has something beside finished events.
    pub(super) is_write_forced: bool,
    /// The recorded event may start.
    pub(super) armed: Option<u64>,
    pub(super) arming: Option<u64>,
    pub(super) halted: Option<String>,
    pub(super) is_draining: bool,
    pub(super) timer: Option<(Instant, Pin<Box<Sleep>>)>,
}

/// A handler that runs.
pub(super) struct Running<H> {
    pub(super) position: u64,
    pub(super) future: Option<Pin<Box<Caught<H>>>>,
}

impl<H: Future> Future for Running<H> {
    type Output = (u64, Result<H::Output, String>, Option<Pin<Box<Caught<H>>>>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.future else { return Poll::Pending };
        let Poll::Ready(output) = future.as_mut().poll(cx) else { return Poll::Pending };
        future.as_mut().end();
        Poll::Ready((self.position, output, self.future.take()))
    }
}

/// The end of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerEnd {
    /// A later owner has claimed the partition.
    Superseded,
    /// It was drained: no handler runs, and the last checkpoint is written.
    Drained,
}

impl<'a, F, H> Worker<'a, F, H>
where
    F: Fn(Delivered) -> H,
    H: Future,
    H::Output: Into<Disposition>,
{
    pub(super) fn new(
        core: &'a ProcessorCore,
        handler: &'a F,
        partition: u16,
        token: FencingToken,
        claimed: Claimed,
        alarm: Arc<Alarm>,
    ) -> Self {
        let Claimed { mut checkpoint, version, end } = claimed;
        let mut cancel = Cancel::new();
        let now = core.clock.now();
        Self {
            core,
            handler,
            partition,
            token,
            cancelled: cancel.next(),
            cancel,
            lanes: Lanes::new(std::mem::take(&mut checkpoint.finished)),
            checkpoint,
            version,
            end,
            running: FuturesUnordered::new(),
            spare: Vec::new(),
            burying: FuturesUnordered::new(),
            reading: None,
            read_at: now,
            looking: None,
            look_at: now + LOOK,
            idle: Idle::default(),
            alarm,
            has_rung: false,
            gap: None,
            writing: None,
            unwritten: 0,
            unwritten_since: None,
            write_at: now,
            is_write_forced: false,
            armed: None,
            arming: None,
            halted: None,
            is_draining: false,
            timer: None,
        }
    }

    /// Stops reading and starting. [`poll`](Self::poll) is ready when the handlers have ended and
    /// the last checkpoint is written.
    pub(super) fn drain(&mut self) {
        self.is_draining = true;
        (self.reading, self.looking) = (None, None);
        // The end of this owner is no crash.
        let suspect = self.checkpoint.suspect.map(|suspect| Suspect { is_running: false, ..suspect });
        let is_changed = self.checkpoint.claims > 0 || suspect != self.checkpoint.suspect;
        (self.checkpoint.claims, self.checkpoint.suspect) = (0, suspect);
        (self.armed, self.arming) = (None, None);
        self.is_write_forced |= is_changed;
    }

    /// Asks the handlers to stop.
    pub(super) fn cancel(&self) {
        self.cancel.signal();
    }

    /// Drops the handlers that still run, and returns their number.
    pub(super) fn abandon(&mut self) -> usize {
        let dropped = self.running.len() + self.burying.len();
        self.running.clear();
        self.burying.clear();
        dropped
    }

    /// Returns the time since which events are finished and not in the checkpoint.
    fn is_dirty(&self) -> bool {
        self.unwritten > 0 || self.is_write_forced
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<WorkerEnd> {
        let mut starts = STARTS;
        if self.alarm.take(cx.waker()) {
            self.idle.reset();
            self.has_rung = true;
            self.read_at = self.core.clock.now();
        }
        loop {
            let now = self.core.clock.now();
            let mut has_moved = self.poll_running(cx, now);
            match self.poll_writing(cx, now) {
                Poll::Ready(Some(end)) => return Poll::Ready(end),
                Poll::Ready(None) => has_moved = true,
                Poll::Pending => {}
            }
            if !self.is_draining {
                has_moved |= self.poll_reading(cx, now) | self.poll_looking(cx, now);
                self.lanes.wake(now);
                has_moved |= self.start(cx, now, &mut starts);
                has_moved |= self.read(now) | self.look(now);
            }
            has_moved |= self.write(now);
            let is_idle = self.running.is_empty() && self.burying.is_empty();
            if self.is_draining && is_idle && self.writing.is_none() && !self.is_dirty() {
                return Poll::Ready(WorkerEnd::Drained);
            }
            if starts == 0 {
                cx.waker().wake_by_ref();
                break;
            }
            if !has_moved && !self.poll_timer(cx, now) {
                break;
            }
        }
        self.show();
        Poll::Pending
    }

    /// Ends the handlers and dead letters that are ready.
    fn poll_running(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let mut has_moved = false;
        while let Poll::Ready(Some((position, output, spare))) = self.running.poll_next_unpin(cx) {
            self.spare.extend(spare);
            self.settle(position, output.map(Into::into), now);
            has_moved = true;
        }
        while let Poll::Ready(Some((position, sent))) = self.burying.poll_next_unpin(cx) {
            match sent {
                Ok(()) => self.finish(position, now),
                Err(error) => self.halt_at(position, &format!("its dead letter was refused: {error}")),
            }
            has_moved = true;
        }
        has_moved
    }

    /// Marks an event that ran as finished.
    pub(super) fn finish(&mut self, position: u64, now: Instant) {
        self.lanes.finish(position);
        self.unwritten += 1;
        self.unwritten_since.get_or_insert(now);
        self.checkpoint.claims = 0;
        let is_careful = self.lanes.finished().watermark() < self.checkpoint.careful_until;
        if !is_careful {
            self.checkpoint.careful_until = 0;
        }
        if !is_careful || self.checkpoint.suspect.is_some_and(|suspect| suspect.position == position) {
            self.checkpoint.suspect = None;
        }
    }

    /// Begins a checkpoint if it is due.
    fn write(&mut self, now: Instant) -> bool {
        let config = self.core.config.load();
        let is_last = self.is_draining && self.running.is_empty() && self.burying.is_empty();
        let since = self.unwritten_since.unwrap_or(now);
        let is_due = self.is_write_forced
            || self.unwritten >= config.checkpoint_every.into()
            || self.unwritten > 0 && (is_last || now - since >= config.checkpoint_interval);
        if !is_due || self.writing.is_some() || now < self.write_at {
            return false;
        }
        self.checkpoint.writes += 1;
        let checkpoint = Checkpoint { finished: self.lanes.finished().clone(), ..self.checkpoint.clone() };
        self.writing = Some(Box::pin(self.core.write(self.partition, checkpoint, self.version)));
        (self.unwritten, self.unwritten_since, self.is_write_forced) = (0, None, false);
        true
    }

    fn poll_writing(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Option<WorkerEnd>> {
        let Some(writing) = &mut self.writing else { return Poll::Pending };
        let Poll::Ready(written) = writing.as_mut().poll(cx) else { return Poll::Pending };
        self.writing = None;
        match written {
            Written::Applied(version) => {
                self.version = version;
                self.armed = self.arming.take();
            }
            Written::Failed(version) => {
                self.version = version.unwrap_or(self.version);
                self.is_write_forced = true;
                // The pause of a whole interval would outlast a short grace.
                self.write_at = now + self.core.config.load().checkpoint_interval.min(Duration::from_millis(200));
            }
            Written::Superseded => return Poll::Ready(Some(WorkerEnd::Superseded)),
        }
        Poll::Ready(None)
    }

    /// Halts the partition: no further event starts.
    pub(super) fn halt(&mut self, reason: &str) {
        if self.halted.is_none() {
            let (partition, reason) = (self.partition, reason.to_owned());
            self.halted = Some(reason.clone());
            self.core.event(|| Event::Halted { partition, reason });
        }
    }

    /// Halts the partition because of one event, which ran.
    pub(super) fn halt_at(&mut self, position: u64, reason: &str) {
        self.delay(position, Instant::FAR_FUTURE);
        self.halt(&format!("event {}: {reason}", Position::new(self.partition, position)));
    }

    /// Waits for the next time at which something is due. Returns `true` if one has come.
    fn poll_timer(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let config = self.core.config.load();
        let mut due = None;
        let mut add = |at: Instant| due = Some(due.map_or(at, |due: Instant| due.min(at)));
        if self.writing.is_none() && self.is_dirty() {
            let since = self.unwritten_since.map_or(now, |since| since + config.checkpoint_interval);
            add(if self.is_write_forced { self.write_at } else { since.max(self.write_at) });
        }
        if !self.is_draining && self.looking.is_none() && self.is_behind(now) {
            add(self.look_at);
        }
        if !self.is_draining && self.halted.is_none() {
            if self.reading.is_none() && self.gap.is_none() && self.read_at > now {
                add(self.read_at);
            }
            if let Some(at) = self.lanes.next_due() {
                add(at);
            }
        }
        let Some(due) = due else {
            self.timer = None;
            return false;
        };
        if self.timer.as_ref().is_none_or(|(at, _)| *at != due) {
            self.timer = Some((due, Box::pin(self.core.clock.sleep_until(due))));
        }
        let is_ready = self.timer.as_mut().is_some_and(|(_, timer)| timer.as_mut().poll(cx).is_ready());
        if is_ready {
            self.timer = None;
        }
        is_ready
    }

    /// Updates the state that others see.
    fn show(&self) {
        let mut owned = self.core.owned.lock();
        let Some(state) = owned.get_mut(&self.partition) else { return };
        let finished = self.lanes.finished();
        state.watermark = finished.watermark();
        state.lag = lag(self.end, finished);
        state.end = self.end;
        state.in_flight = self.running.len();
        state.lost = self.checkpoint.lost;
        if state.halted != self.halted {
            state.halted.clone_from(&self.halted);
        }
    }
}

/// Creates the state of a partition that is owned from now on.
pub(super) fn shown(partition: u16, member: &str) -> PartitionState {
    PartitionState::new(partition, Some(member.to_owned()))
}
