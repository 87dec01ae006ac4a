//! Processing one partition: polls its reader, its handlers and its checkpointer beside each other.
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use super::{
    Delivered, StreamCall, StreamProcessorEvent as Event, checkpoint_store::Claimed, checkpointer::Checkpointer,
    component::ProcessorCore, config::OutOfRange, delivered::OfRead, handlers::Handlers, lanes::Lanes, reader::Reader,
    state::lag, wake_ups::Alarm,
};
use crate::{
    port::{FencingToken, PortErrorKind},
    stream::Position,
    time::{Instant, Sleep},
    work::EventDisposition,
};

/// Maximum number of handlers that start in one poll, before other partitions have a turn.
const STARTS: usize = 64;

/// The partition of a worker, as its parts share it.
pub(super) struct Partition<'a> {
    pub(super) core: &'a ProcessorCore,
    pub(super) number: u16,
    /// The order of its events.
    pub(super) lanes: Lanes<OfRead>,
    /// The reason for which no further event starts.
    pub(super) halted: Option<String>,
}

impl Partition<'_> {
    /// Halts the partition: no further event starts.
    pub(super) fn halt(&mut self, reason: &str) {
        if self.halted.is_none() {
            let (partition, reason) = (self.number, reason.to_owned());
            self.halted = Some(reason.clone());
            self.core.event(|| Event::Halted { partition, reason });
        }
    }

    pub(super) fn failed(&self, call: StreamCall, kind: Option<PortErrorKind>) {
        self.core.failed(call, Some(self.number), kind);
    }
}

/// The owner's work on one partition.
pub(super) struct Worker<'a, F, H> {
    pub(super) partition: Partition<'a>,
    pub(super) reader: Reader<'a>,
    pub(super) handlers: Handlers<'a, F, H>,
    pub(super) checkpointer: Checkpointer<'a>,
    alarm: Arc<Alarm>,
    is_draining: bool,
    timer: Option<(Instant, Pin<Box<Sleep>>)>,
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
    H::Output: Into<EventDisposition>,
{
    pub(super) fn new(
        core: &'a ProcessorCore,
        handler: &'a F,
        number: u16,
        token: FencingToken,
        claimed: Claimed,
        alarm: Arc<Alarm>,
    ) -> Self {
        let Claimed { mut checkpoint, version, end } = claimed;
        let now = core.clock.now();
        let lanes = Lanes::new(std::mem::take(&mut checkpoint.finished));
        Self {
            partition: Partition { core, number, lanes, halted: None },
            reader: Reader::new(end, now),
            handlers: Handlers::new(handler, token),
            checkpointer: Checkpointer::new(checkpoint, version, now),
            alarm,
            is_draining: false,
            timer: None,
        }
    }

    /// Stops reading and starting. [`poll`](Self::poll) is ready when the handlers have ended and
    /// the last checkpoint is written.
    pub(super) fn drain(&mut self) {
        self.is_draining = true;
        self.reader.stop();
        self.checkpointer.drain();
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<WorkerEnd> {
        let clock = &self.partition.core.clock;
        let mut starts = STARTS;
        if self.alarm.take(cx.waker()) {
            self.reader.expect_events(clock.now());
        }
        loop {
            let now = clock.now();
            let mut has_moved = self.poll_handlers(cx, now);
            match self.checkpointer.poll(cx, &self.partition, now) {
                Poll::Ready(Some(end)) => return Poll::Ready(end),
                Poll::Ready(None) => has_moved = true,
                Poll::Pending => {}
            }
            if !self.is_draining {
                has_moved |= self.reader.poll(cx, &mut self.partition, now);
                self.partition.lanes.wake(now);
                has_moved |= self.start(cx, now, &mut starts);
                self.skip(now);
                has_moved |= self.reader.begin(&self.partition, now);
            }
            let is_over = self.is_draining && self.handlers.is_idle();
            has_moved |= self.checkpointer.begin(&self.partition, is_over, now);
            if is_over && !self.checkpointer.is_behind() {
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

    /// Settles the events whose handlers have ended, and the dead letters that were sent.
    fn poll_handlers(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let mut has_moved = false;
        while let Some((position, output)) = self.handlers.poll_ended(cx) {
            self.settle(position, output.map(Into::into), now);
            has_moved = true;
        }
        while let Some((position, sent)) = self.handlers.poll_buried(cx) {
            match sent {
                Ok(()) => self.finish(position, now),
                Err(error) => self.halt_at(position, &format!("its dead letter was refused: {error}")),
            }
            has_moved = true;
        }
        has_moved
    }

    /// Starts the events that are ready.
    fn start(&mut self, cx: &mut Context<'_>, now: Instant, starts: &mut usize) -> bool {
        let before = *starts;
        let most = self.partition.core.config.load().max_in_flight as usize;
        while *starts > 0
            && self.partition.halted.is_none()
            && self.partition.lanes.running() < most
            && self.checkpointer.permits(&self.partition)
        {
            let Some((position, recorded, failures)) = self.partition.lanes.start() else { break };
            *starts -= 1;
            let recorded = recorded.clone();
            if let Some(crashes) = self.checkpointer.condemns(position, &self.partition) {
                self.bury(position, format!("its process died {crashes} times while it ran"));
            } else if let Some(output) = self.handlers.start(cx, position, recorded, failures.saturating_add(1)) {
                self.settle(position, output.map(Into::into), now);
            }
        }
        *starts < before
    }

    /// Goes on behind events that the topic no longer has, or halts.
    fn skip(&mut self, now: Instant) {
        let Some(to) = self.reader.take_gap(&self.partition, now) else { return };
        let (core, partition, from) = (self.partition.core, self.partition.number, self.partition.lanes.next());
        if core.config.load().on_out_of_range == OutOfRange::Halt {
            return self.partition.halt(&format!("the next event is {from}, and the topic goes on at {to}"));
        }
        let lost = self.partition.lanes.skip_to(to);
        self.checkpointer.skip(lost, now);
        core.event(|| Event::Skipped { partition, from, to, lost });
    }

    /// Marks an event that ran as finished.
    pub(super) fn finish(&mut self, position: u64, now: Instant) {
        let lanes = &mut self.partition.lanes;
        lanes.finish(position);
        self.checkpointer.finish(position, lanes.finished().watermark(), now);
    }

    /// Ends the run of an event, which runs again at `at`.
    pub(super) fn delay(&mut self, position: u64, at: Instant) {
        self.partition.lanes.delay(position, at);
        self.checkpointer.delay(position);
    }

    /// Halts the partition because of one event, which ran.
    pub(super) fn halt_at(&mut self, position: u64, reason: &str) {
        self.delay(position, Instant::FAR_FUTURE);
        let at = Position::new(self.partition.number, position);
        self.partition.halt(&format!("event {at}: {reason}"));
    }

    /// Waits for the next time at which something is due. Returns `true` if one has come.
    fn poll_timer(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let partition = &self.partition;
        let mut due = self.checkpointer.next_due(partition, now);
        if !self.is_draining {
            let delayed = partition.lanes.next_due().filter(|_| partition.halted.is_none());
            due = [due, delayed, self.reader.next_due(partition, now)].into_iter().flatten().min();
        }
        let Some(due) = due else {
            self.timer = None;
            return false;
        };
        if self.timer.as_ref().is_none_or(|(at, _)| *at != due) {
            self.timer = Some((due, Box::pin(partition.core.clock.sleep_until(due))));
        }
        let is_ready = self.timer.as_mut().is_some_and(|(_, timer)| timer.as_mut().poll(cx).is_ready());
        if is_ready {
            self.timer = None;
        }
        is_ready
    }

    /// Updates the state that others see.
    fn show(&self) {
        let Partition { core, number, lanes, halted } = &self.partition;
        let mut owned = core.holdings.owned.lock();
        let Some(state) = owned.get_mut(number) else { return };
        state.watermark = lanes.finished().watermark();
        state.end = self.reader.end();
        state.lag = lag(state.end, lanes.finished());
        state.in_flight = self.handlers.running();
        state.lost = self.checkpointer.lost();
        if state.halted != *halted {
            state.halted.clone_from(halted);
        }
    }
}
