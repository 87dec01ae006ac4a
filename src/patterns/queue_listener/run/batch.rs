//! What a task does with messages before their handler begins, and with those that are handled by the batch.
use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use futures_util::future::join_all;

use crate::{
    queue::Delivery,
    queue_listener::{
        Handled, Work,
        lease::{Held, Lease},
        poll::Next,
        run::{caught::Caught, worker::Worker},
        settle::How,
    },
};

impl Worker {
    /// Handles the messages of a poll together, until it ends.
    pub(crate) async fn work_in_batches<F, H>(mut self, handler: F)
    where
        F: Fn(Vec<Work>) -> H,
        H: Future<Output = Vec<Handled>>,
    {
        let shift = self.shift.clone();
        let mut next = None;
        loop {
            if shift.halts() {
                self.hand_back();
            }
            if let Some(held) = next.take() {
                if let Some((guard, held)) = self.alone(&shift, held).await {
                    self.handle_batch(&handler, vec![*held]).await;
                    self.settle().await;
                    drop(guard);
                }
                continue;
            }
            let batch = std::iter::from_fn(|| shift.next_waiting());
            let batch: Vec<_> = batch.take(shift.inner.config.batch).collect();
            if !batch.is_empty() {
                shift.share(0);
                self.handle_batch(&handler, batch).await;
            } else if !self.done.is_empty() {
                self.settle().await;
            } else {
                match self.poller.find(&shift, None).await {
                    Next::Look => {}
                    Next::Alone(held) => next = Some(held),
                    Next::End => return,
                }
            }
        }
    }

    /// Whether a message is for its handler: not where it was tried too often, comes too late, or for the second time.
    pub(crate) async fn admit(&mut self, delivery: &Delivery, lease: &mut Lease) -> bool {
        let shift = self.shift.clone();
        self.look();
        if lease.attempt > shift.inner.config.max_attempts {
            let how = shift.set_aside(lease, "exceeded max attempts without being settled");
            self.done.push(lease.clone().settling(how));
            return false;
        }
        if !self.has_time(std::slice::from_mut(lease)).await {
            return false;
        }
        if shift.inner.filter.is_none() {
            return true;
        }
        let is_duplicate = self.keep(std::slice::from_mut(lease), pin!(shift.is_duplicate(delivery))).await;
        match is_duplicate {
            _ if lease.lost => false,
            Ok(false) => self.has_time(std::slice::from_mut(lease)).await,
            Ok(true) => {
                self.done.push(lease.clone().settling(How::Duplicate));
                false
            }
            Err(_) => {
                self.done.push(lease.clone().settling(How::HandBack));
                false
            }
        }
    }

    /// Whether all of these that are not lost have enough of their leases left to begin with; others are given up. False where none has.
    pub(crate) async fn has_time(&mut self, leases: &mut [Lease]) -> bool {
        let shift = &self.shift;
        let now = shift.now();
        if leases.iter().any(|lease| !lease.lost && !shift.has_time(lease, now)) {
            shift.share(0);
            join_all(leases.iter_mut().map(|lease| shift.is_fresh(lease))).await;
        }
        leases.iter().any(|lease| !lease.lost)
    }

    async fn handle_batch<F, H>(&mut self, handler: &F, batch: Vec<Held>)
    where
        F: Fn(Vec<Work>) -> H,
        H: Future<Output = Vec<Handled>>,
    {
        let shift = self.shift.clone();
        let (mut works, mut leases) = (Vec::new(), Vec::new());
        self.begun = batch.len();
        for (delivery, lease) in self.admit_all(batch).await {
            works.push(delivery);
            leases.push(lease);
        }
        self.begun = leases.len();
        if leases.is_empty() {
            return;
        }
        let cancelled = self.cancel.next();
        let works: Vec<_> = works.into_iter().map(|delivery| Work::new(delivery, cancelled.clone())).collect();
        let keys: Vec<_> = works.iter().map(|work| shift.filter_key(work)).collect();
        let mut call = pin!(Caught::new());
        let mut works = Some(works);
        let began =
            poll_fn(|cx| Poll::Ready(works.take().and_then(|works| call.as_mut().begin(cx, || handler(works)))));
        let ended = match began.await {
            Some(output) => Ok(output),
            None => self.wait(call, &mut leases).await,
        };
        let handled = match ended {
            Ok(Ok(handled)) => handled,
            Ok(Err(panic)) => leases.iter().map(|_| Handled::retry(&panic)).collect(),
            Err(why) => {
                let held = leases.into_iter().filter(|lease| !lease.lost);
                let dropped: Vec<_> = held.map(|lease| self.dropped(lease, why)).collect();
                self.begun = 0;
                return self.done.extend(dropped);
            }
        };
        let mut handled = handled.into_iter();
        let handled: Vec<_> = leases
            .iter()
            .map(|_| {
                handled
                    .next()
                    .unwrap_or_else(|| Handled::retry("the batch handler returned no result for this message"))
            })
            .collect();
        let keys = keys.into_iter().zip(&handled).filter(|(_, handled)| **handled == Handled::Complete);
        let keys: Vec<_> = keys.filter_map(|(key, _)| key).collect();
        if !keys.is_empty() {
            self.remember(&mut leases, keys).await;
        }
        self.begun = 0;
        for (lease, handled) in leases.into_iter().zip(handled) {
            if !lease.lost {
                self.done.push(shift.judge(lease, handled));
            }
        }
    }

    /// Those messages of a batch that are for its handler. The filter is asked for all at once.
    async fn admit_all(&mut self, batch: Vec<Held>) -> Vec<(Delivery, Lease)> {
        let shift = self.shift.clone();
        let (mut deliveries, mut leases) = (Vec::new(), Vec::new());
        for Held { delivery, lease } in batch {
            if lease.attempt > shift.inner.config.max_attempts {
                let how = shift.set_aside(&lease, "exceeded max attempts without being settled");
                self.done.push(lease.settling(how));
            } else {
                deliveries.push(delivery);
                leases.push(lease);
            }
        }
        if leases.is_empty() || !self.has_time(&mut leases).await {
            return Vec::new();
        }
        let mut is_duplicate = vec![false; deliveries.len()];
        if shift.inner.filter.is_some() {
            let asked = join_all(deliveries.iter().map(|delivery| shift.is_duplicate(delivery)));
            match self.keep(&mut leases, pin!(asked)).await {
                Ok(answers) => is_duplicate = answers,
                Err(_) => {
                    let held = leases.into_iter().filter(|lease| !lease.lost);
                    self.done.extend(held.map(|lease| lease.settling(How::HandBack)));
                    return Vec::new();
                }
            }
            self.has_time(&mut leases).await;
        }
        let mut admitted = Vec::new();
        for ((delivery, lease), is_duplicate) in deliveries.into_iter().zip(leases).zip(is_duplicate) {
            match is_duplicate {
                _ if lease.lost => {}
                true => self.done.push(lease.settling(How::Duplicate)),
                false => admitted.push((delivery, lease)),
            }
        }
        admitted
    }
}
