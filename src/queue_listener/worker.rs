//! A task: finds a message, has it handled, ends its delivery.
//!
//! Two ways lead through a message. A handler that is ready at its first poll was held up by nothing: its message costs no timer, no lock
//! and no entry anywhere, and is settled with the others of its lot. One that waits gives the rest of its lot to the other tasks, sends out
//! what is to be settled, and has its lease kept while it runs.
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

use super::{
    Handled, QueueCall, QueueListenerEvent as Event, Work,
    counters::Count,
    keep::{Caught, Dropped},
    lot::{Held, How, Lease, Lot, Settling},
    poller::{Asked, Next, Poller},
    settle::Settled,
    shift::Shift,
    work::Cancel,
};
use crate::{
    queue::Delivery,
    race::{First, race},
};

/// After so many messages in a row that were held up by nothing, others have their turn.
const FAIR: u32 = 64;

/// One task of a run.
pub(super) struct Worker {
    pub(super) shift: Arc<Shift>,
    lot: Lot,
    done: Vec<Settling>,
    cancel: Cancel,
    poller: Poller,
    in_a_row: u32,
}

impl Worker {
    pub(super) fn new(shift: Arc<Shift>) -> Self {
        let poller = Poller::new(&shift);
        Self { shift, lot: Lot::empty(), done: Vec::new(), cancel: Cancel::new(), poller, in_a_row: 0 }
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
        loop {
            if shift.halts() {
                self.hand_back();
            }
            let own = self.lot.len() > 0;
            let Some((delivery, mut lease)) = self.next() else {
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
                if let Some(Asked { receive, .. }) = &mut asked
                    && let Some(answer) = once(receive.as_mut()).await
                {
                    match answer {
                        Ok(deliveries) if !deliveries.is_empty() => {
                            self.lot = self.poller.took(&shift, deliveries, asked.map(|asked| asked.since));
                            continue;
                        }
                        answer => *receive = Box::pin(std::future::ready(answer)),
                    }
                }
                match self.poller.find(&shift, &mut self.lot, asked).await {
                    Next::Look => continue,
                    Next::End => return,
                }
            };
            // A look at the time is most of what a message costs here. A lot is this task's own for as long as nothing waits, so that not each of
            // its messages needs one.
            let is_plain = own && self.in_a_row & 7 != 0 && self.is_plain(&lease);
            if !is_plain && !self.admit(&delivery, &mut lease).await {
                continue;
            }
            let key = shift.filter_key(&delivery);
            let work = Work::new(delivery, self.cancel.next());
            let mut call = pin!(Caught::new());
            let (lease, handled) = match call.as_mut().begin(&handler, work).await {
                Some(output) => {
                    self.in_a_row += 1;
                    (lease, output.map_or_else(Handled::retry, Into::into))
                }
                None => match self.attend(call, lease).await {
                    Some((lease, output)) => (lease, output.map_or_else(Handled::retry, Into::into)),
                    None => continue,
                },
            };
            if matches!(handled, Handled::Complete) {
                if let Some(key) = key {
                    shift.remember(&key).await;
                }
                self.done.push(lease.settling(How::Complete));
            } else {
                self.done.push(shift.judge(lease, handled));
            }
            if self.in_a_row >= FAIR {
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
        match shift.rest(QueueCall::Settle, shift.inner.config.call_timeout, request).await {
            Some(answer) => shift.answered_all(&mut self.done, answer),
            None => shift.unanswered(&mut self.done),
        }
    }

    /// Nothing has to be asked about it, but for the time.
    #[inline]
    fn is_plain(&self, lease: &Lease) -> bool {
        let inner = &self.shift.inner;
        lease.deliveries <= inner.config.max_deliveries && inner.filter.is_none()
    }

    /// Handles the messages of a poll together, until it ends.
    pub(super) async fn work_in_batches<F, H>(mut self, handler: F)
    where
        F: Fn(Vec<Work>) -> H,
        H: Future<Output = Vec<Handled>>,
    {
        loop {
            if self.shift.halts() {
                self.hand_back();
            }
            let (mut works, mut leases) = (Vec::new(), Vec::new());
            let cancelled = self.cancel.next();
            while works.len() < self.shift.inner.config.batch
                && let Some((delivery, mut lease)) = self.next()
            {
                if self.admit(&delivery, &mut lease).await {
                    works.push(Work::new(delivery, cancelled.clone()));
                    leases.push(lease);
                }
            }
            if !works.is_empty() {
                self.handle_batch(&handler, works, leases).await;
            } else if let Next::End = self.find().await {
                return;
            }
        }
    }

    /// The next message, of this task's own lot or of those that wait for a task.
    #[inline]
    fn next(&mut self) -> Option<(Delivery, Lease)> {
        if let Some(delivery) = self.lot.deliveries.next() {
            let lease = Lease::of(&delivery, self.lot.source, self.lot.since, self.shift.inner.config.visibility);
            return Some((delivery, lease));
        }
        self.shift.next_waiting().map(|Held { delivery, lease }| (delivery, lease))
    }

    /// Settles what is done, then finds work.
    async fn find(&mut self) -> Next {
        if !self.done.is_empty() {
            self.settle().await;
            return Next::Look;
        }
        self.poller.find(&self.shift, &mut self.lot, None).await
    }

    /// Settles what is done, in one request for each source; what fails is tried again beside this task.
    async fn settle(&mut self) {
        let sources = self.shift.inner.sources.len();
        if sources > 1 {
            // The sort is stable: each source's stay in order.
            self.done.sort_by_key(|settling| settling.source);
        }
        while let Some(first) = self.done.first() {
            let (source, most) = (first.source, self.shift.inner.sources[first.source].most);
            let n = self.done.iter().take(most).take_while(|settling| settling.source == source).count();
            let mut rest = if n < self.done.len() { self.done.split_off(n) } else { Vec::new() };
            // Held by a guard: dropped in the middle they are as unsettled as they were.
            self.shift.settle_once(&mut self.done).await;
            self.shift.send_out(self.done.drain(..));
            if !rest.is_empty() {
                std::mem::swap(&mut self.done, &mut rest);
            }
        }
    }

    /// Hands back what no handler has begun with.
    #[cold]
    fn hand_back(&mut self) {
        self.shift.offer(&mut self.lot);
        self.shift.hand_back_waiting();
        self.shift.send_out(self.done.drain(..));
    }

    /// Whether a message is for its handler: not where it comes too often, too late, or for the second time.
    async fn admit(&mut self, delivery: &Delivery, lease: &mut Lease) -> bool {
        let inner = &self.shift.inner;
        if lease.deliveries > inner.config.max_deliveries {
            let how = self.shift.set_aside(lease, "handed out too often, and never settled");
            self.done.push(lease.clone().settling(how));
            return false;
        }
        if !self.shift.is_fresh(lease).await {
            return false;
        }
        if inner.filter.is_some() && self.shift.is_duplicate(delivery, lease).await {
            if !lease.lost {
                self.done.push(lease.clone().settling(How::Duplicate));
            }
            return false;
        }
        true
    }

    /// Waits for a handler that was not ready at once; nothing where its lease is lost.
    async fn attend<O>(
        &mut self,
        call: Pin<&mut Caught<impl Future<Output = O>>>,
        lease: Lease,
    ) -> Option<(Lease, Result<O, String>)> {
        self.in_a_row = 0;
        let mut leases = [lease];
        let ended = self.wait(call, &mut leases).await;
        let [lease] = leases;
        match ended {
            Ok(output) if !lease.lost => Some((lease, output)),
            Ok(_) | Err(Dropped::Lost) => None,
            Err(why) => {
                self.done.push(self.dropped(lease, why));
                None
            }
        }
    }

    /// Waits for a handler, keeps its leases, and lets nothing else wait for it.
    async fn wait<H: Future>(&mut self, future: Pin<&mut H>, leases: &mut [Lease]) -> Result<H::Output, Dropped> {
        let shift = &*self.shift;
        shift.offer(&mut self.lot);
        shift.send_out(self.done.drain(..));
        let _counted = InFlight::of(&shift.inner.counters.in_flight, leases.len());
        let began = shift.now();
        let kept = shift.keep(leases, &self.cancel, began, &mut self.poller.stage);
        match race(future, kept).await {
            First::One(output) => Ok(output),
            First::Other(why) => Err(why),
        }
    }

    /// A handler was dropped, though it had its lease.
    fn dropped(&self, lease: Lease, why: Dropped) -> Settling {
        self.shift.event(|| Event::HandlerDropped { id: lease.id.clone() });
        match why {
            Dropped::TooLong => self.shift.judge(lease, Handled::retry("the handler took too long")),
            // Not its fault: it is not counted as a failure, and comes back at once.
            Dropped::Stops | Dropped::Lost => lease.settling(How::HandBack),
        }
    }

    async fn handle_batch<F, H>(&mut self, handler: &F, works: Vec<Work>, mut leases: Vec<Lease>)
    where
        F: Fn(Vec<Work>) -> H,
        H: Future<Output = Vec<Handled>>,
    {
        let keys: Vec<_> = works.iter().map(|work| self.shift.filter_key(work)).collect();
        let mut call = pin!(Caught::new());
        let ended = match call.as_mut().begin(handler, works).await {
            Some(output) => Ok(output),
            None => self.wait(call, &mut leases).await,
        };
        let handled = match ended {
            Ok(Ok(handled)) => handled,
            Ok(Err(panic)) => leases.iter().map(|_| Handled::retry(&panic)).collect(),
            Err(why) => {
                let held = leases.into_iter().filter(|lease| !lease.lost);
                let dropped: Vec<_> = held.map(|lease| self.dropped(lease, why)).collect();
                return self.done.extend(dropped);
            }
        };
        let mut handled = handled.into_iter();
        for (lease, key) in leases.into_iter().zip(keys) {
            let handled = handled.next().unwrap_or_else(|| Handled::retry("the handler said nothing of this message"));
            if lease.lost {
                continue;
            }
            if let Some(key) = key
                && handled == Handled::Complete
            {
                self.shift.remember(&key).await;
            }
            self.done.push(self.shift.judge(lease, handled));
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

/// Lets others have their turn.
async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
