//! A task: finds a message, has it handled, ends its delivery.
//!
//! There are two paths. A handler that is ready at its first poll was held up by nothing: its message costs no timer and no entry anywhere, and
//! is settled with others. For one that waits, what else this task has to do is left to others, and its lease is kept while it runs.
//! Messages that wait belong to no task, so that none waits behind another's handler, filter or settlement.
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

use futures_util::future::join_all;

use super::{
    Handled, QueueCall, QueueListenerEvent as Event, Work,
    counters::Count,
    keep::{Caught, Dropped},
    lot::{Held, How, Lease, Settling},
    poller::{Next, Poller},
    room::Alone,
    settle::Settled,
    shift::Shift,
    work::Cancel,
};
use crate::{
    race::{First, race, yield_now},
    time::Instant,
};

/// After so many messages in a row that were held up by nothing, others have their turn.
const FAIR: u32 = 64;

/// Where so many messages do not take long, each is settled with others; else as soon as it is done.
const SOON: usize = 32;

/// So many messages that do not take long are begun after one look at the time.
const LOOK: usize = 8;

/// One task of a run.
pub(super) struct Worker {
    pub(super) shift: Arc<Shift>,
    pub(super) done: Vec<Settling>,
    /// Messages that it has in hand and that are not done.
    pub(super) begun: usize,
    pub(super) cancel: Cancel,
    pub(super) poller: Poller,
    in_a_row: u32,
    /// The last look at the time, and how many messages were handled at once since.
    looked: Option<Instant>,
    since_look: usize,
    /// Its handlers hold no other task's thread.
    is_spawned: bool,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It was aborted, or its run is over: what it had in hand is so no more.
        self.shift.room.ended(self.done.len() + self.begun);
    }
}

impl Worker {
    pub(super) fn new(shift: Arc<Shift>, is_spawned: bool) -> Self {
        let poller = Poller::new(&shift);
        Self {
            shift,
            done: Vec::new(),
            begun: 0,
            cancel: Cancel::new(),
            poller,
            in_a_row: 0,
            looked: None,
            since_look: 0,
            is_spawned,
        }
    }

    /// Handles messages, one after another, until it ends.
    ///
    /// What waits for nothing is in this one function on purpose: a future within a future is moved into its place, and that of a poll
    /// or of a handler that waits is large.
    pub(super) async fn work<F, H>(mut self, handler: F)
    where
        F: Fn(Work) -> H,
        H: Future<Output: Into<Handled>>,
    {
        let shift = self.shift.clone();
        let mut next = None;
        loop {
            if shift.halts() {
                self.hand_back();
            }
            let alone = match next.take() {
                Some(held) => self.alone(&shift, held).await,
                None => None,
            };
            let is_alone = alone.is_some();
            let (alone, held) = match alone {
                Some((guard, held)) => (Some(guard), Some(held)),
                // As many as one poll gives are settled together, whosoever poll it was.
                None if self.done.len() >= shift.inner.config.batch => (None, None),
                None => (None, shift.next_waiting()),
            };
            let Some(Held { delivery, mut lease }) = held else {
                if !self.done.is_empty() {
                    if self.is_one_request() {
                        let mut request = shift.settling(&self.done);
                        match once(request.as_mut()).await {
                            Some(answer) => shift.answered_all(&mut self.done, answer),
                            None => self.settle_rest(&shift, request).await,
                        }
                        shift.send_out(self.done.drain(..));
                    } else {
                        self.settle().await;
                    }
                    continue;
                }
                let mut asked = self.poller.ask(&shift);
                if let Some(request) = &mut asked
                    && let Some(answer) = once(request.receive.as_mut()).await
                {
                    match (answer, asked.take()) {
                        (Ok(deliveries), Some(asked)) if !deliveries.is_empty() => {
                            let n = deliveries.len();
                            let (at, alone) = self.poller.took(&shift, deliveries, asked);
                            self.looks(at);
                            self.share(&shift, n);
                            next = alone;
                            continue;
                        }
                        (answer, Some(mut request)) => {
                            request.receive = Box::pin(std::future::ready(answer));
                            asked = Some(request);
                        }
                        (_, None) => {}
                    }
                }
                self.looked = None;
                match self.poller.find(&shift, asked).await {
                    Next::Look => {
                        self.share(&shift, 0);
                        continue;
                    }
                    Next::Alone(held) => {
                        next = Some(*held);
                        continue;
                    }
                    Next::End => return,
                }
            };
            self.begun = 1;
            // A look at the time is most of what a message costs here: where they are quick, not each needs one.
            let is_plain = self.is_plain(&lease);
            if !is_plain && !self.admit(&delivery, &mut lease).await {
                self.begun = 0;
                continue;
            }
            let key = shift.filter_key(&delivery);
            let work = Work::new(delivery, self.cancel.next());
            let mut call = pin!(Caught::new());
            let mut leases = [lease];
            let output = match call.as_mut().begin(&handler, work).await {
                Some(output) => {
                    self.in_a_row += 1;
                    self.since_look += 1;
                    Ok(output)
                }
                None => self.wait(call, &mut leases).await,
            };
            let handled = output.map(|output| output.map_or_else(Handled::retry, Into::into));
            if let (Ok(Handled::Complete), Some(key)) = (&handled, key) {
                self.remember(&mut leases, vec![key]).await;
            }
            let [lease] = leases;
            self.begun = 0;
            match handled {
                _ if lease.lost => {}
                Ok(Handled::Complete) => {
                    shift.completes(&lease);
                    self.done.push(lease.settling(How::Complete));
                }
                Ok(handled) => self.done.push(shift.judge(lease, handled)),
                Err(why) => {
                    let dropped = self.dropped(lease, why);
                    self.done.push(dropped);
                }
            }
            if is_alone {
                self.settle().await;
                drop(alone);
            } else if !shift.room.is_quick(SOON) {
                // It would wait for as long as the next takes.
                shift.send_out(self.done.drain(..));
            }
            if self.in_a_row >= FAIR || !shift.room.is_quick(SOON) {
                self.in_a_row = 0;
                yield_now().await;
            }
        }
    }

    /// What is done is one request.
    fn is_one_request(&self) -> bool {
        let sources = &self.shift.inner.sources;
        sources.len() == 1 && sources.first().is_some_and(|source| self.done.len() <= source.most)
    }

    async fn settle_rest(&mut self, shift: &Shift, request: Settled<'_>) {
        shift.share(0);
        // What the request takes is no handler's time.
        self.looks(shift.now());
        self.looked = None;
        match shift.rest(QueueCall::Settle, shift.inner.config.call_limit(), request).await {
            Some(answer) => shift.answered_all(&mut self.done, answer),
            None => shift.unanswered(&mut self.done),
        }
    }

    /// A look at the time: tells how long the messages since the last one took.
    #[inline]
    pub(super) fn looks(&mut self, now: Instant) {
        if let Some(before) = self.looked.replace(now) {
            self.shift.room.took(now - before, self.since_look, self.is_spawned);
        }
        self.since_look = 0;
    }

    /// Has others take what this task does not begin soon, of so many messages that it took, the first of which it takes itself.
    #[inline]
    fn share(&self, shift: &Shift, n: usize) {
        if (n > 1 || n == 0) && (!shift.room.is_quick(n.max(SOON)) || shift.inner.filter.is_some()) {
            shift.share(1);
        }
    }

    /// Nothing has to be asked about it, and the last look at the time was not long ago.
    #[inline]
    fn is_plain(&self, lease: &Lease) -> bool {
        let shift = &self.shift;
        self.since_look < LOOK
            && self.looked.is_some_and(|looked| shift.has_time(lease, looked))
            && shift.room.is_quick(SOON)
            && lease.attempt <= shift.inner.config.max_attempts
            && shift.inner.filter.is_none()
    }

    /// Waits until nothing else is in hand, so that a message that may end the process takes no other with it; nothing where the run
    /// halts before, or the message is lost.
    pub(super) async fn alone<'a>(&mut self, shift: &'a Shift, held: Held) -> Option<(Alone<'a>, Held)> {
        let guard = Alone(shift);
        self.settle().await;
        self.begun = 1;
        let Held { delivery, lease } = held;
        let mut leases = [lease];
        let drained = async {
            let mut stage = shift.watch();
            let halts = async { drop(stage.wait_for(|stage| *stage != super::shift::Stage::Works).await) };
            matches!(race(shift.fewer_than(2), halts).await, First::One(()))
        };
        let is_drained = self.keep(&mut leases, pin!(drained)).await;
        let [lease] = leases;
        self.begun = 0;
        if lease.lost {
            return None;
        }
        if is_drained != Ok(true) {
            self.done.push(lease.settling(How::HandBack));
            return None;
        }
        Some((guard, Held { delivery, lease }))
    }

    /// Settles what is done, in one request for each source; what fails is tried again beside this task.
    pub(super) async fn settle(&mut self) {
        self.looked = None;
        let sources = self.shift.inner.sources.len();
        if sources > 1 {
            // The sort is stable: each source's stay in order.
            self.done.sort_by_key(|settling| settling.source);
        }
        while let Some(first) = self.done.first() {
            let (source, most) = (first.source, self.shift.inner.sources[first.source].most);
            let n = self.done.iter().take(most).take_while(|settling| settling.source == source).count();
            let mut rest = if n < self.done.len() { self.done.split_off(n) } else { Vec::new() };
            self.shift.settle_once(&mut self.done).await;
            self.shift.send_out(self.done.drain(..));
            if !rest.is_empty() {
                std::mem::swap(&mut self.done, &mut rest);
            }
        }
    }

    /// Hands back what no handler has begun with.
    #[cold]
    pub(super) fn hand_back(&mut self) {
        self.shift.hand_back_waiting();
        self.shift.send_out(self.done.drain(..));
    }

    /// Waits for a handler, keeps its leases, and lets nothing else wait for it.
    pub(super) async fn wait<H: Future>(
        &mut self,
        future: Pin<&mut H>,
        leases: &mut [Lease],
    ) -> Result<H::Output, Dropped> {
        self.in_a_row = 0;
        let shift = self.shift.clone();
        shift.share(0);
        shift.send_out(self.done.drain(..));
        let _counted = InFlight::of(&shift.inner.counters.in_flight, leases.len());
        let began = shift.now();
        let kept = shift.keep(leases, &self.cancel, Some(began), &mut self.poller.stage);
        let ended = race(future, kept).await;
        self.looked = None;
        self.since_look = 0;
        shift.room.took(shift.now() - began, 1, true);
        match ended {
            First::One(output) => Ok(output),
            First::Other(why) => Err(why),
        }
    }

    /// Waits for something that goes with a message, and keeps its lease; the rest is left to others if it is not ready at once.
    pub(super) async fn keep<F: Future>(
        &mut self,
        leases: &mut [Lease],
        mut future: Pin<&mut F>,
    ) -> Result<F::Output, Dropped> {
        if let Some(output) = once(future.as_mut()).await {
            return Ok(output);
        }
        let shift = self.shift.clone();
        shift.share(0);
        shift.send_out(self.done.drain(..));
        let began = shift.now();
        let ended = race(future, shift.keep(leases, &self.cancel, None, &mut self.poller.stage)).await;
        (self.looked, self.since_look) = (None, 0);
        shift.room.took(shift.now() - began, 1, true);
        match ended {
            First::One(output) => Ok(output),
            First::Other(why) => Err(why),
        }
    }

    /// Remembers messages as handled. They are completed also where that fails.
    pub(super) async fn remember(&mut self, leases: &mut [Lease], keys: Vec<String>) {
        let shift = self.shift.clone();
        let remembered = join_all(keys.iter().map(|key| shift.remember(key)));
        let _ = self.keep(leases, pin!(remembered)).await;
    }

    /// A handler was dropped, though it had its lease.
    pub(super) fn dropped(&self, lease: Lease, why: Dropped) -> Settling {
        self.shift.event(|| Event::HandlerDropped { id: lease.id.clone() });
        match why {
            Dropped::TooLong => self.shift.judge(lease, Handled::retry("the handler took too long")),
            // Not its fault: it is not counted as a failure, and comes back at once.
            Dropped::Stops | Dropped::Lost => lease.settling(How::HandBack),
        }
    }
}

/// A message that was counted as in flight is not any more when this is dropped.
struct InFlight<'a>(&'a Count, u64);

impl<'a> InFlight<'a> {
    fn of(count: &'a Count, n: usize) -> Self {
        count.add(n as u64);
        Self(count, n as u64)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.sub(self.1);
    }
}

/// What one poll gives.
async fn once<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
