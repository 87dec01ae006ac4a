//! Admission of messages to their handler, and handlers of whole batches.
use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use futures_util::future::join_all;

use crate::{
    queue::{AttemptErrorKind, Delivery},
    queue_listener::{
        Disposition, Work,
        lease::{Lease, LeasedDelivery},
        poll::Next,
        run::{state::Probation, worker::Worker},
        settle::Decision,
    },
    work::Caught,
};

impl Worker {
    /// Handles messages in batches until the task ends.
    pub(crate) async fn work_in_batches<F, H>(mut self, handler: F)
    where
        F: Fn(Vec<Work>) -> H,
        H: Future<Output = Vec<Disposition>>,
    {
        let run = self.run.clone();
        loop {
            if run.lifecycle.is_halted() {
                self.release_all();
            }
            if self.done.is_empty() && run.tasks.ends_surplus() {
                return;
            }
            let batch = run.take_batch();
            if let [LeasedDelivery { lease, .. }] = &batch[..]
                && lease.is_suspect()
            {
                let probation = Probation(&run, lease.clone());
                self.handle_batch(&handler, batch).await;
                self.end_suspect(probation).await;
            } else if !batch.is_empty() {
                run.share(0);
                self.handle_batch(&handler, batch).await;
            } else if !self.done.is_empty() {
                self.settle().await;
            } else {
                match self.poller.find(&run, None).await {
                    Next::Look => {}
                    Next::End => return,
                }
            }
        }
    }

    /// Returns `true` if the handler may begin. It may not if the attempts are used up, too little
    /// of the lease is left, or the filter knows the message.
    pub(crate) async fn admit(&mut self, delivery: &Delivery, lease: &mut Lease) -> bool {
        let run = self.run.clone();
        self.look();
        if let Some(decision) = run.barred(lease) {
            return self.ends(lease, decision);
        }
        if !self.has_time(std::slice::from_mut(lease)).await {
            return false;
        }
        if run.inner.filter.is_none() {
            return true;
        }
        let is_duplicate = self.keep(std::slice::from_mut(lease), pin!(run.requests.is_duplicate(delivery))).await;
        match is_duplicate {
            Ok(false) => self.has_time(std::slice::from_mut(lease)).await,
            Ok(true) => self.ends(lease, Decision::Duplicate),
            Err(_) => self.ends(lease, Decision::RELEASE),
        }
    }

    /// Returns `true` if at least one lease is left with enough time to begin. Gives up the others.
    pub(crate) async fn has_time(&mut self, leases: &mut [Lease]) -> bool {
        let run = &self.run;
        let now = run.now();
        if leases.iter().any(|lease| !lease.lost && !run.has_time(lease, now)) {
            run.share(0);
            join_all(leases.iter_mut().map(|lease| run.is_fresh(lease))).await;
        }
        leases.iter().any(|lease| !lease.lost)
    }

    async fn handle_batch<F, H>(&mut self, handler: &F, batch: Vec<LeasedDelivery>)
    where
        F: Fn(Vec<Work>) -> H,
        H: Future<Output = Vec<Disposition>>,
    {
        let run = self.run.clone();
        let (mut works, mut leases) = (Vec::new(), Vec::new());
        self.begun = batch.len();
        for (mut delivery, lease) in self.admit_all(batch).await {
            delivery.age = lease.age_of(&delivery, run.now());
            works.push(delivery);
            leases.push(lease);
        }
        self.begun = leases.len();
        // A suspect message is a batch of its own.
        if let [lease] = &mut leases[..]
            && !self.begins(lease).await
        {
            leases.clear();
        }
        if leases.is_empty() {
            self.begun = 0;
            return;
        }
        let cancelled = self.cancel.next();
        let works: Vec<_> = works.into_iter().map(|delivery| Work::new(delivery, cancelled.clone())).collect();
        let keys: Vec<_> = works.iter().map(|work| run.requests.filter_key(work)).collect();
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
            Ok(Err(panic)) => {
                let leased = leases.into_iter().filter(|lease| !lease.lost);
                self.begun = 0;
                return self.done.extend(leased.map(|lease| run.panicked(lease, &panic)));
            }
            Err(why) => {
                let leased = leases.into_iter().filter(|lease| !lease.lost);
                let dropped: Vec<_> = leased.map(|lease| self.dropped(lease, why)).collect();
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
                    .unwrap_or_else(|| Disposition::retry("the batch handler returned no result for this message"))
            })
            .collect();
        let keys = keys.into_iter().zip(&handled).filter(|(_, handled)| **handled == Disposition::Complete);
        let keys: Vec<_> = keys.filter_map(|(key, _)| key).collect();
        if !keys.is_empty() {
            self.remember(&mut leases, keys).await;
        }
        self.begun = 0;
        for (lease, handled) in leases.into_iter().zip(handled) {
            if !lease.lost {
                self.done.push(run.decide(lease, handled, AttemptErrorKind::Failed));
            }
        }
    }

    /// Returns the messages of a batch whose handler may begin. The filter is asked for all of them
    /// concurrently.
    async fn admit_all(&mut self, batch: Vec<LeasedDelivery>) -> Vec<(Delivery, Lease)> {
        let run = self.run.clone();
        let (mut deliveries, mut leases) = (Vec::new(), Vec::new());
        for LeasedDelivery { delivery, lease } in batch {
            if let Some(decision) = run.barred(&lease) {
                self.done.push(lease.settlement(decision));
            } else {
                deliveries.push(delivery);
                leases.push(lease);
            }
        }
        if leases.is_empty() || !self.has_time(&mut leases).await {
            return Vec::new();
        }
        let mut is_duplicate = vec![false; deliveries.len()];
        if run.inner.filter.is_some() {
            let asked = join_all(deliveries.iter().map(|delivery| run.requests.is_duplicate(delivery)));
            match self.keep(&mut leases, pin!(asked)).await {
                Ok(answers) => is_duplicate = answers,
                Err(_) => {
                    let leased = leases.into_iter().filter(|lease| !lease.lost);
                    self.done.extend(leased.map(|lease| lease.settlement(Decision::RELEASE)));
                    return Vec::new();
                }
            }
            self.has_time(&mut leases).await;
        }
        let mut admitted = Vec::new();
        for ((delivery, lease), is_duplicate) in deliveries.into_iter().zip(leases).zip(is_duplicate) {
            match is_duplicate {
                _ if lease.lost => {}
                true => self.done.push(lease.settlement(Decision::Duplicate)),
                false => admitted.push((delivery, lease)),
            }
        }
        admitted
    }
}
