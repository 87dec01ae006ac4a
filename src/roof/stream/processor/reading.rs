//! Reading the events of a partition, up to `max_ahead` above the watermark.
use std::{
    future::Future,
    task::{Context, Poll},
    time::Duration,
};

use super::{Delivered, OutOfRange, StreamCall, StreamProcessorEvent as Event, delivered::OfRead, worker::Worker};
use crate::{
    hash::stable_hash,
    port::{AskError, BoxFuture, Capability, PortError, PortErrorKind, ask},
    queue_listener::Disposition,
    stream::{Bounds, Read, Recorded},
    time::Instant,
};

/// Maximum number of events of one read.
const READ: u64 = 500;

/// Number of events of one answer from which on more may be there: a topic may answer in pages.
const PAGE: u64 = 64;

/// Time within which an empty answer is no wait of the topic.
const AT_ONCE: Duration = Duration::from_millis(50);

/// Time after which the end of the topic is asked for, if no read has shown it.
pub(super) const LOOK: Duration = Duration::from_secs(5);

/// A read in flight.
pub(super) struct Reading<'a> {
    max: u64,
    since: Instant,
    future: BoxFuture<'a, Result<Vec<Recorded>, AskError<PortError>>>,
}

/// A request for the end of the topic in flight.
pub(super) type Looking<'a> = BoxFuture<'a, Result<Bounds, AskError<PortError>>>;

impl<'a, F, H> Worker<'a, F, H>
where
    F: Fn(Delivered) -> H,
    H: Future,
    H::Output: Into<Disposition>,
{
    /// Begins a read if there is room for its events.
    pub(super) fn read(&mut self, now: Instant) -> bool {
        if self.lanes.is_idle()
            && self.halted.is_none()
            && let Some(to) = self.gap.take()
        {
            self.skip(to, now);
        }
        let room = self.lanes.room(self.core.config.load().max_ahead.into());
        let is_worth_it =
            room >= READ.min(u64::from(self.core.config.load().max_ahead).div_ceil(4)) || self.lanes.peek().is_none();
        let may_read = self.halted.is_none() && self.gap.is_none() && self.reading.is_none() && room > 0;
        if !may_read || !is_worth_it || now < self.read_at {
            return false;
        }
        self.has_rung = false;
        let (core, partition, max) = (self.core, self.partition, room.min(READ));
        let mut read = Read::from(self.lanes.next()).max(max as usize);
        if core.topic.capabilities().has(Capability::Push) {
            read = read.wait(core.config.load().idle.max);
        }
        let limit = core.call_timeout().saturating_add(read.wait);
        let future = Box::pin(ask(&core.clock, limit, core.topic.read(partition, read)));
        self.reading = Some(Reading { max, since: now, future });
        true
    }

    pub(super) fn poll_reading(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let Some(reading) = &mut self.reading else { return false };
        let Poll::Ready(result) = reading.future.as_mut().poll(cx) else { return false };
        let (max, since) = (reading.max, reading.since);
        self.reading = None;
        let (idle, unit) = (self.core.config.load().idle, self.core.entropy.unit());
        match result {
            Ok(events) if events.is_empty() => {
                self.sees_end(self.lanes.next(), now);
                let (delay, _) = self.idle.found_nothing(&idle, unit);
                self.read_at = if now - since < AT_ONCE && !self.has_rung { now + delay } else { now };
            }
            Ok(events) => {
                self.idle.reset();
                let count = events.len() as u64;
                for recorded in OfRead::all(events) {
                    let (offset, next) = (recorded.position.offset, self.lanes.next());
                    if offset != next {
                        self.out_of_order(offset, next);
                        break;
                    }
                    let key = recorded.event.key.as_ref().map(|key| stable_hash(key.as_bytes()));
                    self.lanes.push(key, recorded);
                }
                let may_be_all = count < max.min(PAGE) && self.lanes.next() >= self.end;
                if may_be_all {
                    self.sees_end(self.lanes.next(), now);
                }
                self.end = self.end.max(self.lanes.next());
                self.read_at = if may_be_all { now + idle.min.min(AT_ONCE) } else { now };
            }
            Err(error) => {
                let kind = error.kind();
                self.core.failed(StreamCall::Read, Some(self.partition), kind);
                if let (Some(PortErrorKind::Corrupt | PortErrorKind::TooNew), AskError::Failed(error)) = (kind, &error)
                {
                    self.halt(&format!("the event {} cannot be read: {error}", self.lanes.next()));
                }
                let (delay, _) = self.idle.found_nothing(&idle, unit);
                self.read_at = now + delay;
            }
        }
        true
    }

    /// Returns `true` if more events may be in the topic than reads will show: the partition is
    /// halted, or has no room for a read, or reads on below the end.
    pub(super) fn is_behind(&self, now: Instant) -> bool {
        let has_no_room = self.reading.is_none() && now >= self.read_at;
        self.halted.is_some() || has_no_room || self.lanes.next() < self.end
    }

    /// Asks for the end of the topic if it was not seen for a while: the lag counts up to there.
    pub(super) fn look(&mut self, now: Instant) -> bool {
        if self.looking.is_some() || now < self.look_at || !self.is_behind(now) {
            return false;
        }
        let (core, limit) = (self.core, self.core.call_timeout());
        self.looking = Some(Box::pin(ask(&core.clock, limit, core.topic.bounds(self.partition))));
        true
    }

    pub(super) fn poll_looking(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let Some(looking) = &mut self.looking else { return false };
        let Poll::Ready(result) = looking.as_mut().poll(cx) else { return false };
        self.looking = None;
        match result {
            Ok(bounds) => self.sees_end(bounds.next, now),
            Err(error) => {
                self.core.failed(StreamCall::Read, Some(self.partition), error.kind());
                self.look_at = now + LOOK;
            }
        }
        true
    }

    fn sees_end(&mut self, end: u64, now: Instant) {
        self.end = self.end.max(end);
        self.look_at = now + LOOK;
    }

    fn out_of_order(&mut self, offset: u64, next: u64) {
        if offset < next {
            self.halt(&format!("the topic returned the event {offset} in place of {next}"));
        } else {
            self.gap = Some(offset);
        }
    }

    /// Goes on at `to` or halts, because the topic no longer has the events before it.
    fn skip(&mut self, to: u64, now: Instant) {
        let (partition, from) = (self.partition, self.lanes.next());
        if self.core.config.load().on_out_of_range == OutOfRange::Halt {
            return self.halt(&format!("the next event is {from}, and the topic goes on at {to}"));
        }
        let lost = self.lanes.skip_to(to);
        self.checkpoint.lost = self.checkpoint.lost.saturating_add(lost);
        self.core.event(|| Event::Skipped { partition, from, to, lost });
        self.unwritten += 1;
        self.unwritten_since.get_or_insert(now);
        self.read_at = now;
    }
}
