//! Reading the events of a partition, up to `max_ahead` above the watermark.
use std::{
    task::{Context, Poll},
    time::Duration,
};

use super::{StreamCall, delivered::OfRead, worker::Partition};
use crate::{
    hash::stable_hash,
    port::{AskError, BoxFuture, Capability, PortError, PortErrorKind, ask},
    stream::{Bounds, Read, Recorded},
    time::Instant,
    work::Idle,
};

/// Maximum number of events of one read.
const READ: u64 = 500;

/// Number of events of one answer from which on more may be there: a topic may answer in pages.
const PAGE: u64 = 64;

/// Time within which an empty answer is no wait of the topic.
const AT_ONCE: Duration = Duration::from_millis(50);

/// Time after which the end of the topic is asked for, if no read has shown it.
const LOOK: Duration = Duration::from_secs(5);

/// The reads of one owner, and its requests for the end of the topic.
pub(super) struct Reader<'a> {
    reading: Option<Reading<'a>>,
    read_at: Instant,
    looking: Option<BoxFuture<'a, Result<Bounds, AskError<PortError>>>>,
    look_at: Instant,
    idle: Idle,
    /// A notice arrived since the last read began.
    has_rung: bool,
    /// The first position behind events that the topic no longer has.
    gap: Option<u64>,
    /// Position that the next event of the topic will get, as far as known.
    end: u64,
}

/// A read in flight.
struct Reading<'a> {
    max: u64,
    since: Instant,
    future: BoxFuture<'a, Result<Vec<Recorded>, AskError<PortError>>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(end: u64, now: Instant) -> Self {
        Self {
            reading: None,
            read_at: now,
            looking: None,
            look_at: now + LOOK,
            idle: Idle::default(),
            has_rung: false,
            gap: None,
            end,
        }
    }

    /// Returns the position that the next event of the topic will get, as far as known.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Drops the requests that are under way.
    pub(super) fn stop(&mut self) {
        (self.reading, self.looking) = (None, None);
    }

    /// Reads at once, because a notice told of events.
    pub(super) fn expect_events(&mut self, now: Instant) {
        self.idle.reset();
        self.has_rung = true;
        self.read_at = now;
    }

    /// Returns the position behind a gap in the topic, once the events before it are finished. The
    /// next read is due then.
    pub(super) fn take_gap(&mut self, partition: &Partition<'a>, now: Instant) -> Option<u64> {
        if !partition.lanes.is_idle() || partition.halted.is_some() {
            return None;
        }
        self.gap.take().inspect(|_| self.read_at = now)
    }

    /// Begins a read if there is room for its events, and asks for the end of the topic if it was
    /// not seen for a while: the lag counts up to there.
    pub(super) fn begin(&mut self, partition: &Partition<'a>, now: Instant) -> bool {
        self.read(partition, now) | self.look(partition, now)
    }

    /// Polls the requests that are under way.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, partition: &mut Partition<'a>, now: Instant) -> bool {
        self.poll_reading(cx, partition, now) | self.poll_looking(cx, partition, now)
    }

    fn read(&mut self, partition: &Partition<'a>, now: Instant) -> bool {
        let (core, lanes) = (partition.core, &partition.lanes);
        let max_ahead = u64::from(core.config.load().max_ahead);
        let room = lanes.room(max_ahead);
        let is_worth_it = room >= READ.min(max_ahead.div_ceil(4)) || lanes.peek().is_none();
        let may_read = partition.halted.is_none() && self.gap.is_none() && self.reading.is_none() && room > 0;
        if !may_read || !is_worth_it || now < self.read_at {
            return false;
        }
        self.has_rung = false;
        let max = room.min(READ);
        let mut read = Read::from(lanes.next()).max(max as usize);
        if core.topic.capabilities().has(Capability::Push) {
            read = read.wait(core.config.load().idle.max);
        }
        let limit = core.call_timeout().saturating_add(read.wait);
        let future = Box::pin(ask(&core.clock, limit, core.topic.read(partition.number, read)));
        self.reading = Some(Reading { max, since: now, future });
        true
    }

    fn poll_reading(&mut self, cx: &mut Context<'_>, partition: &mut Partition<'a>, now: Instant) -> bool {
        let Some(reading) = &mut self.reading else { return false };
        let Poll::Ready(result) = reading.future.as_mut().poll(cx) else { return false };
        let (max, since) = (reading.max, reading.since);
        self.reading = None;
        let (idle, unit) = (partition.core.config.load().idle, partition.core.entropy.unit());
        match result {
            Ok(events) if events.is_empty() => {
                self.sees_end(partition.lanes.next(), now);
                let (delay, _) = self.idle.found_nothing(&idle, unit);
                self.read_at = if now - since < AT_ONCE && !self.has_rung { now + delay } else { now };
            }
            Ok(events) => {
                self.idle.reset();
                let may_be_all = (events.len() as u64) < max.min(PAGE);
                for recorded in OfRead::all(events) {
                    let (offset, next) = (recorded.position.offset, partition.lanes.next());
                    if offset < next {
                        partition.halt(&format!("the topic returned the event {offset} in place of {next}"));
                        break;
                    }
                    if offset > next {
                        self.gap = Some(offset);
                        break;
                    }
                    let key = recorded.event.key.as_ref().map(|key| stable_hash(key.as_bytes()));
                    partition.lanes.push(key, recorded);
                }
                let next = partition.lanes.next();
                let may_be_all = may_be_all && next >= self.end;
                if may_be_all {
                    self.sees_end(next, now);
                }
                self.end = self.end.max(next);
                self.read_at = if may_be_all { now + idle.min.min(AT_ONCE) } else { now };
            }
            Err(error) => {
                let kind = error.kind();
                partition.failed(StreamCall::Read, kind);
                if let (Some(PortErrorKind::Corrupt | PortErrorKind::TooNew), AskError::Failed(error)) = (kind, &error)
                {
                    partition.halt(&format!("the event {} cannot be read: {error}", partition.lanes.next()));
                }
                let (delay, _) = self.idle.found_nothing(&idle, unit);
                self.read_at = now + delay;
            }
        }
        true
    }

    /// Returns `true` if more events may be in the topic than reads will show: the partition is
    /// halted, or has no room for a read, or reads on below the end.
    fn is_behind(&self, partition: &Partition<'a>, now: Instant) -> bool {
        let has_no_room = self.reading.is_none() && now >= self.read_at;
        partition.halted.is_some() || has_no_room || partition.lanes.next() < self.end
    }

    fn look(&mut self, partition: &Partition<'a>, now: Instant) -> bool {
        if self.looking.is_some() || now < self.look_at || !self.is_behind(partition, now) {
            return false;
        }
        let core = partition.core;
        self.looking = Some(Box::pin(ask(&core.clock, core.call_timeout(), core.topic.bounds(partition.number))));
        true
    }

    fn poll_looking(&mut self, cx: &mut Context<'_>, partition: &Partition<'a>, now: Instant) -> bool {
        let Some(looking) = &mut self.looking else { return false };
        let Poll::Ready(result) = looking.as_mut().poll(cx) else { return false };
        self.looking = None;
        match result {
            Ok(bounds) => self.sees_end(bounds.next, now),
            Err(error) => {
                partition.failed(StreamCall::Read, error.kind());
                self.look_at = now + LOOK;
            }
        }
        true
    }

    fn sees_end(&mut self, end: u64, now: Instant) {
        self.end = self.end.max(end);
        self.look_at = now + LOOK;
    }

    /// Returns the time at which the next request is due.
    pub(super) fn next_due(&self, partition: &Partition<'a>, now: Instant) -> Option<Instant> {
        let look = (self.looking.is_none() && self.is_behind(partition, now)).then_some(self.look_at);
        let may_read = partition.halted.is_none() && self.reading.is_none() && self.gap.is_none();
        let read = (may_read && self.read_at > now).then_some(self.read_at);
        look.into_iter().chain(read).min()
    }
}
