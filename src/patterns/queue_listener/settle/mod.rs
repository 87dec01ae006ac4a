//! Settling deliveries: many in one request, and again after a failure.
//!
//! Four types describe the end of a delivery, in this order:
//!
//! 1. [`Disposition`](crate::queue_listener::Disposition): the result of the handler.
//! 2. [`Decision`]: the listener's decision, after limits, outages and delays.
//! 3. [`Settle`](crate::queue::Settle): the settlement that the queue's port takes.
//! 4. [`PendingSettlement`]: a delivery with its decision, until the queue has answered.
pub(crate) mod decision;
pub(crate) mod outage;
pub(crate) mod unsettled;

use std::collections::VecDeque;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;

use crate::{
    backoff::Backoff,
    port::{BoxFuture, ErrorClass, Failure, PortError},
    queue::{QueueError, Settle},
    queue_listener::{QueueCall, QueueListenerEvent as Event, counters::Held, lease::Lease, run::state::RunState},
    race::{First, race},
    sync::Mutex,
};

pub(crate) use decision::Decision;

/// Answers to a settle request: one for each settlement, or a failure of the whole request.
type Answers = Result<Vec<Result<(), QueueError>>, QueueError>;

/// The future of one settle request.
pub(crate) type SettleRequest<'a> = BoxFuture<'a, Answers>;

/// Settlements of one source that wait to be sent.
#[derive(Default)]
pub(crate) struct Outbox {
    settlements: Mutex<VecDeque<PendingSettlement>>,
    came: Notify,
}

/// A delivery with its decision, until the queue has settled it.
pub(crate) struct PendingSettlement {
    pub(crate) lease: Lease,
    pub(crate) decision: Decision,
    /// `true` if a settle request was sent and its reply was lost.
    pub(crate) may_be_settled: bool,
    /// `true` if the delivery no longer counts as outstanding, because its first settle request
    /// failed or its lease was lost.
    pub(crate) is_overdue: bool,
    /// `true` if the last request found a target of the forward full.
    pub(crate) found_full: bool,
    /// Present while the results are held until the target has room.
    pub(crate) held: Option<Held>,
}

impl RunState {
    /// Returns the request that settles these deliveries, all of one source.
    pub(crate) fn settle_request(&self, settlements: &[PendingSettlement]) -> SettleRequest<'_> {
        let request = |pending: &PendingSettlement| {
            let mut settle = pending.decision.settle(pending.lease.attempt);
            if let (Settle::Forward { messages }, Some(held)) = (&mut settle, &pending.held) {
                let wait = self.now() - held.since;
                messages.iter_mut().for_each(|(_, message)| message.has_waited(wait));
            }
            (pending.lease.receipt.clone(), settle)
        };
        let requests = settlements.iter().map(request).collect();
        let source = settlements.first().map_or(0, |first| first.lease.source);
        self.inner.counters.requests.add(1);
        self.inner.sources[source].queue.settle(requests)
    }

    /// Settles these deliveries, all of one source. Leaves those to be tried again.
    pub(crate) async fn settle_once(&self, settlements: &mut Vec<PendingSettlement>) {
        let request = self.settle_request(settlements);
        match self.requests.timed(QueueCall::Settle, self.requests.limit(), request).await {
            Some(answer) => self.answered_all(settlements, answer),
            None => self.unanswered(settlements),
        }
    }

    /// Applies the answers to a settle request. Leaves the settlements to be tried again.
    pub(crate) fn answered_all(&self, settlements: &mut Vec<PendingSettlement>, answer: Answers) {
        match answer {
            Ok(answers) => {
                if self.inner.has_cancelled() {
                    self.inner.note_ended(settlements, &answers);
                }
                let mut answers = answers.into_iter();
                let (mut completed, mut ended) = (0, 0);
                settlements.retain_mut(|settlement| {
                    let stays = self.answered(settlement, answers.next(), &mut completed);
                    ended += usize::from(!stays && !settlement.is_overdue);
                    stays
                });
                if completed > 0 {
                    self.inner.counters.ends.handled.add(completed);
                }
                self.intake.ended(ended);
            }
            Err(error) => {
                self.requests.failed(QueueCall::Settle, &error);
                if error.class() == ErrorClass::Permanent {
                    self.intake.ended(outstanding(settlements));
                    settlements.drain(..).for_each(|settlement| self.settling_lost(&settlement));
                } else if error.may_have_been_applied() {
                    self.unanswered(settlements);
                } else if let Some(full) = error.backend().filter(|error| error.class() == ErrorClass::Throttled) {
                    self.hold_all(settlements, full);
                }
            }
        }
    }

    /// Records that a request may have been applied although no reply came.
    #[cold]
    pub(crate) fn unanswered(&self, settlements: &mut [PendingSettlement]) {
        settlements.iter_mut().for_each(|settlement| settlement.may_be_settled = true);
    }

    /// Applies one answer. Returns `true` if the settlement is to be tried again.
    #[inline]
    fn answered(
        &self,
        settlement: &mut PendingSettlement,
        answer: Option<Result<(), QueueError>>,
        completed: &mut u64,
    ) -> bool {
        match answer {
            Some(Ok(())) => {
                if matches!(settlement.decision, Decision::Complete) {
                    *completed += 1;
                } else {
                    self.report(settlement);
                }
                false
            }
            Some(Err(QueueError::Failed(error))) if error.class() != ErrorClass::Permanent => {
                settlement.may_be_settled |= error.may_have_been_applied();
                !self.gives_up_forward(settlement, &error)
            }
            Some(Err(QueueError::Failed(error))) if matches!(settlement.decision, Decision::Forward(_)) => {
                self.settle_otherwise(settlement, self.forward_refused(settlement, &error));
                false
            }
            Some(Err(_)) | None => {
                self.settling_lost(settlement);
                false
            }
        }
    }

    /// Holds the forwards of a request that was refused as a whole, because the server is full, if
    /// the listener holds forwards. If the run stops, releases their messages: a release needs no
    /// room.
    #[cold]
    fn hold_all(&self, settlements: &mut Vec<PendingSettlement>, full: &PortError) {
        let (stops, mut ended) = (self.lifecycle.stops(), 0);
        settlements.retain_mut(|settlement| {
            if !self.inner.holds || !matches!(settlement.decision, Decision::Forward(_)) {
                return true;
            }
            if stops {
                self.settle_otherwise(settlement, self.forward_delayed(full));
                ended += usize::from(!settlement.is_overdue);
            } else {
                settlement.held.get_or_insert_with(|| self.inner.counters.hold(self.now()));
            }
            !stops
        });
        self.intake.ended(ended);
    }

    /// Releases the message of a forward to a full target when a third of its lease is left, or
    /// when the run stops, and then returns `true`. If the delivery expired instead, again and
    /// again, other processes would take the message for one that kills its process. A listener
    /// that holds forwards renews the lease instead.
    #[cold]
    fn gives_up_forward(&self, settlement: &mut PendingSettlement, error: &PortError) -> bool {
        let is_forward = matches!(settlement.decision, Decision::Forward(_));
        settlement.found_full = is_forward && error.class() == ErrorClass::Throttled;
        let holds = self.inner.holds;
        if settlement.found_full && holds {
            settlement.held.get_or_insert_with(|| self.inner.counters.hold(self.now()));
        }
        let gives_up = settlement.found_full
            && (!holds && settlement.lease.until < self.now() + self.inner.visibility() / 3 || self.lifecycle.stops());
        if gives_up {
            self.settle_otherwise(settlement, self.forward_delayed(error));
        }
        gives_up
    }

    /// Settles a delivery by another decision than its forward, at once: the forward may be one of
    /// several that wait before they are tried again.
    #[cold]
    fn settle_otherwise(&self, settlement: &PendingSettlement, decision: Decision) {
        let mut other = settlement.lease.clone().settlement(decision);
        (other.may_be_settled, other.is_overdue) = (settlement.may_be_settled, true);
        self.forget_results(settlement);
        self.send_out([other]);
    }

    pub(crate) fn forget_results(&self, settlement: &PendingSettlement) {
        if settlement.is_overdue {
            self.inner.unsettled.lock().forget_results(settlement);
        }
    }

    #[cold]
    pub(crate) fn settling_lost(&self, settlement: &PendingSettlement) {
        let PendingSettlement { lease: Lease { id, deliveries, .. }, may_be_settled, decision, .. } = settlement;
        if matches!(decision, Decision::LeaseLost) {
            // It was reported when the lease was lost.
            return;
        }
        self.inner.counters.ends.leases_lost.add(1);
        self.event(|| Event::LeaseLost { id: id.clone(), deliveries: *deliveries, may_be_settled: *may_be_settled });
    }

    /// Counts and reports a settlement that the queue accepted.
    #[cold]
    fn report(&self, settlement: &mut PendingSettlement) {
        if matches!(settlement.decision, Decision::Forward(_)) {
            self.forget_results(settlement);
        }
        let PendingSettlement { lease: Lease { id, deliveries, attempt, .. }, decision, .. } = settlement;
        let ends = &self.inner.counters.ends;
        match decision {
            Decision::Complete | Decision::LeaseLost => {}
            Decision::Forward(_) => ends.handled.add(1),
            Decision::Duplicate => ends.duplicates.add(1),
            Decision::Release { after } => {
                ends.released.add(1);
                if !after.is_zero() {
                    self.outages.returns.lock().add(self.now() + *after);
                }
                self.event(|| Event::Released { messages: 1 });
            }
            Decision::Cancelled { .. } => {
                ends.cancelled.add(1);
                self.event(|| Event::Cancelled { id: id.clone() });
            }
            Decision::Refused { after, error } => {
                ends.refused.add(1);
                self.outages.returns.lock().add(self.now() + *after);
                let (after, error) = (*after, std::mem::take(error));
                self.event(|| Event::Refused { id: id.clone(), error, after });
            }
            Decision::Snooze { after } => {
                ends.snoozed.add(1);
                let after = *after;
                self.outages.returns.lock().add(self.now() + after);
                self.event(|| Event::Snoozed { id: id.clone(), after });
            }
            Decision::Retry { after, failure } => {
                ends.failed.add(1);
                self.outages.returns.lock().add(self.now() + *after);
                let (after, error) = (*after, std::mem::take(&mut failure.error));
                self.event(|| Event::Failed {
                    id: id.clone(),
                    attempt: *attempt,
                    deliveries: *deliveries,
                    error,
                    after,
                });
            }
            Decision::DeadLetter { reason, .. } => {
                ends.dead_lettered.add(1);
                let reason = std::mem::take(reason);
                self.event(|| Event::DeadLettered { id: id.clone(), reason });
            }
        }
    }

    /// Hands settlements to the future that settles beside the tasks.
    pub(crate) fn send_out(&self, settlements: impl IntoIterator<Item = PendingSettlement>) {
        for settlement in settlements {
            self.intake.sent_out(1);
            let outbox = &self.outboxes[settlement.lease.source];
            outbox.settlements.lock().push_back(settlement);
            self.intake.woke();
            outbox.came.notify_one();
        }
    }

    /// Waits for settlements that were sent out, and returns those of one request.
    async fn outgoing(&self, source: usize) -> Vec<PendingSettlement> {
        let (outbox, most) = (&self.outboxes[source], self.inner.sources[source].most);
        loop {
            {
                let mut settlements = outbox.settlements.lock();
                if !settlements.is_empty() {
                    let n = settlements.len().min(most);
                    return settlements.drain(..n).collect();
                }
            }
            outbox.came.notified().await;
        }
    }

    /// Records settlements that were made or given up.
    pub(crate) fn settled(&self, n: usize) {
        self.intake.settled(n);
        self.check_idle();
    }

    /// Settles the deliveries that tasks send out, until the run ends. Failed ones are retried
    /// concurrently with new ones, as long as the queue may still accept them.
    pub(crate) async fn settle_all(&self, source: usize) {
        let mut again = FuturesUnordered::new();
        let mut fresh: Option<BoxFuture<'_, Vec<Failing>>> = None;
        loop {
            let comes = async {
                match &mut fresh {
                    Some(fresh) => fresh.await,
                    None => vec![Failing { settlements: self.outgoing(source).await, times: 0 }],
                }
            };
            let retried = async { if again.is_empty() { std::future::pending().await } else { again.next().await } };
            match race(comes, retried).await {
                First::One(failing) if fresh.take().is_some() => {
                    again.extend(failing.into_iter().map(|failing| self.settle_again(failing)));
                }
                First::One(new) => {
                    fresh = new.into_iter().next().map(|new| Box::pin(self.settle_again(new)) as BoxFuture<'_, _>);
                }
                First::Other(failing) => {
                    let failing = failing.unwrap_or_default();
                    again.extend(failing.into_iter().map(|failing| self.settle_again(failing)));
                }
            }
        }
    }

    /// Settles these deliveries once, after a pause if they failed before, and returns those to be
    /// tried again. If the whole request failed, its halves are retried separately, until the
    /// settlement that fails is alone.
    async fn settle_again(&self, failing: Failing) -> Vec<Failing> {
        let Failing { mut settlements, times } = failing;
        if times > 0 {
            let mut busy = self.inner.config.load().busy;
            let waits_for_room =
                settlements.iter().any(|settlement| settlement.found_full || settlement.held.is_some());
            if waits_for_room {
                // Several requests before `gives_up_forward` and the end of the lease.
                busy.cap = busy.cap.min(self.inner.visibility() / 8);
            }
            let mut pauses = Backoff::checked(busy, &self.inner.entropy);
            let pause = self.inner.clock.sleep(pauses.nth(times.min(64) - 1).unwrap_or_default());
            if waits_for_room {
                race(pause, self.lifecycle.begins_to_stop()).await;
            } else {
                pause.await;
            }
            settlements.iter_mut().for_each(|settlement| settlement.found_full = false);
            self.renew_held(&mut settlements).await;
        }
        let n = settlements.len();
        self.settle_once(&mut settlements).await;
        let failed = settlements.len();
        self.intake.ended(outstanding(&settlements));
        settlements.iter_mut().for_each(|settlement| settlement.is_overdue = true);
        if !settlements.is_empty() {
            let mut unsettled = self.inner.unsettled.lock();
            settlements.iter().for_each(|settlement| unsettled.note(settlement));
        }
        // The queue may accept a settlement after the end of the lease, if no other process
        // received the message.
        let (now, visibility) = (self.now(), self.inner.visibility());
        settlements.retain(|settlement| {
            let useful = settlement.lease.until + visibility > now;
            if !useful {
                self.settling_lost(settlement);
            }
            useful
        });
        self.settled(n - settlements.len());
        // Each forward to a full target has an answer of its own.
        let each_is_full = settlements.iter().all(|settlement| settlement.found_full);
        // Some of the results found room, so others may at once.
        let times = if self.inner.holds && failed < n { 0 } else { times };
        let half = if failed == n && !each_is_full { settlements.len() / 2 } else { 0 };
        let second = settlements.split_off(settlements.len() - half);
        let parts = [settlements, second].into_iter().filter(|part| !part.is_empty());
        parts.map(|settlements| Failing { settlements, times: times + 1 }).collect()
    }
}

/// Counts the settlements that are still outstanding.
fn outstanding(settlements: &[PendingSettlement]) -> usize {
    settlements.iter().filter(|settlement| !settlement.is_overdue).count()
}

/// Settlements to be tried again, and the number of failed requests so far.
struct Failing {
    settlements: Vec<PendingSettlement>,
    times: usize,
}
