//! Settling deliveries: many in one request, and again after a failure.
//!
//! Four types describe the end of a delivery, in this order:
//!
//! 1. [`Disposition`]: the result of the handler.
//! 2. [`Decision`]: the listener's decision, after limits, outages and delays.
//! 3. [`Settle`]: the settlement that the queue's port takes.
//! 4. [`PendingSettlement`]: a delivery with its decision, until the queue has answered.
pub(crate) mod outage;
pub(crate) mod outbox;
pub(crate) mod unsettled;

use std::{sync::atomic::Ordering, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::{
    backoff::Backoff,
    port::{BoxFuture, ErrorClass, Failure},
    queue::{MessageId, QueueError, Receipt, Settle},
    queue_listener::{
        Disposition, QueueCall, QueueListenerEvent as Event, lease::Lease, run::state::RunState, settle::outage::Outage,
    },
    race::{First, race},
    time::{Instant, Timestamp, scaled},
};

/// Answers to a settle request: one for each settlement, or a failure of the whole request.
type Answers = Result<Vec<Result<(), QueueError>>, QueueError>;

/// The future of one settle request.
pub(crate) type SettleRequest<'a> = BoxFuture<'a, Answers>;

/// A delivery with its decision, until the queue has settled it.
pub(crate) struct PendingSettlement {
    pub(crate) source: usize,
    pub(crate) id: MessageId,
    pub(crate) receipt: Receipt,
    pub(crate) deliveries: u32,
    pub(crate) attempt: u32,
    pub(crate) expiries: u32,
    pub(crate) until: Instant,
    pub(crate) decision: Decision,
    /// `true` if a settle request was sent and its reply was lost.
    pub(crate) may_be_settled: bool,
    /// `true` if the delivery no longer counts as outstanding, because its first settle request
    /// failed or its lease was lost.
    pub(crate) is_overdue: bool,
}

#[derive(Clone)]
pub(crate) enum Decision {
    /// The handler completed.
    Complete,
    /// The message was handled before.
    Duplicate,
    /// The attempt failed; the message is delivered again after the delay.
    Retry {
        after: Duration,
        error: String,
    },
    DeadLetter {
        reason: String,
    },
    /// The message was not tried.
    Release,
    /// A dependency of the handler refused the message or is away. It is delivered again after the
    /// delay, and no attempt is counted.
    Refused {
        after: Duration,
        error: String,
    },
    /// The lease was lost, which is already reported. If the queue still accepts the release, it
    /// explains the end of the delivery.
    LeaseLost,
}

impl Decision {
    pub(crate) fn settle(&self) -> Settle {
        match self {
            Self::Complete | Self::Duplicate => Settle::Complete,
            Self::Retry { after, .. } => Settle::abandon(*after),
            Self::DeadLetter { reason } => Settle::dead_letter(reason.clone()),
            Self::Release | Self::LeaseLost => Settle::release(Duration::ZERO),
            Self::Refused { after, .. } => Settle::release(*after),
        }
    }
}

impl RunState {
    /// Decides how a delivery is settled, by the result of its handler.
    pub(crate) fn decide(&self, lease: Lease, disposition: Disposition) -> PendingSettlement {
        let decision = match disposition {
            Disposition::Complete => {
                self.completes(&lease);
                Decision::Complete
            }
            Disposition::Retry { after, error } => self.failed(&lease, after, error),
            Disposition::Release => Decision::Release,
            Disposition::Refused { after, error } => {
                self.in_outage(|outage, now| outage.refused(now));
                self.refused(after, error)
            }
            Disposition::DeadLetter { reason } => self.dead_letter(&lease, &reason),
        };
        lease.settlement(decision)
    }

    /// Records a success, which ends the outage if the message was refused in it.
    #[inline]
    pub(crate) fn completes(&self, lease: &Lease) {
        if self.in_outage.load(Ordering::Acquire) {
            self.in_outage(|outage, _| outage.succeeded(lease.was_released()));
        }
    }

    fn in_outage<T>(&self, change: impl FnOnce(&mut Outage, Instant) -> T) -> T {
        let now = self.now();
        let mut outage = self.outage.lock();
        let result = change(&mut outage, now);
        self.in_outage.store(!outage.is_over(), Ordering::Release);
        result
    }

    #[cold]
    fn failed(&self, lease: &Lease, after: Option<Duration>, error: String) -> Decision {
        if self.in_outage(|outage, now| outage.failed(lease.was_released(), now)) {
            return self.refused(None, error);
        }
        if lease.attempt >= self.inner.config.max_attempts {
            return self.dead_letter(lease, &format!("exceeded max attempts: {error}"));
        }
        Decision::Retry { after: after.unwrap_or_else(|| self.pause(lease.attempt)), error }
    }

    /// Returns the decision on a refused message. Up to 10 % of random delay, at most `LATEST`,
    /// keep many messages from returning together.
    fn refused(&self, after: Option<Duration>, error: String) -> Decision {
        let entropy = &self.inner.entropy;
        let after = match after {
            Some(after) => {
                let after = after.clamp(SHORTEST_REFUSAL, Disposition::LONGEST_REFUSAL);
                after.saturating_add(scaled((after / 10).min(LATEST), entropy.unit()))
            }
            None => scaled(UNKNOWN, 0.5 + entropy.unit() / 2.0),
        };
        Decision::Refused { after, error }
    }

    /// Returns the delay before the next attempt.
    fn pause(&self, attempts: u32) -> Duration {
        // The delay has long reached its maximum by then, so the iterator need not go further.
        let before = attempts.saturating_sub(1).min(64) as usize;
        let config = self.inner.config.retry;
        Backoff::checked(config, &self.inner.entropy).nth(before).unwrap_or(config.cap)
    }

    /// Returns the decision for a dead letter, with details for people. In a queue without dead
    /// letters the message is retried with the maximum delay.
    #[cold]
    pub(crate) fn dead_letter(&self, lease: &Lease, why: &str) -> Decision {
        let reason = format!(
            "{why} (attempt {}, delivery {}, dead-lettered at {})",
            lease.attempt,
            lease.deliveries,
            Timestamp::now()
        );
        if self.inner.sources[lease.source].has_dead_letters {
            Decision::DeadLetter { reason }
        } else {
            Decision::Retry { after: self.inner.config.retry.cap, error: reason }
        }
    }

    /// Returns the request that settles these deliveries, all of one source.
    pub(crate) fn settle_request(&self, settlements: &[PendingSettlement]) -> SettleRequest<'_> {
        let requests =
            settlements.iter().map(|settlement| (settlement.receipt.clone(), settlement.decision.settle())).collect();
        let source = settlements.first().map_or(0, |first| first.source);
        self.inner.counters.requests.add(1);
        self.inner.sources[source].queue.settle(requests)
    }

    /// Settles these deliveries, all of one source. Leaves those to be tried again.
    pub(crate) async fn settle_once(&self, settlements: &mut Vec<PendingSettlement>) {
        let request = self.settle_request(settlements);
        match self.bounded(QueueCall::Settle, self.inner.config.call_limit(), request).await {
            Some(answer) => self.answered_all(settlements, answer),
            None => self.unanswered(settlements),
        }
    }

    /// Applies the answers to a settle request. Leaves the settlements to be tried again.
    pub(crate) fn answered_all(&self, settlements: &mut Vec<PendingSettlement>, answer: Answers) {
        match answer {
            Ok(answers) => {
                let mut answers = answers.into_iter();
                let (mut completed, mut ended) = (0, 0);
                settlements.retain_mut(|settlement| {
                    let stays = self.answered(settlement, answers.next(), &mut completed);
                    ended += usize::from(!stays && !settlement.is_overdue);
                    stays
                });
                if completed > 0 {
                    self.inner.counters.handled.add(completed);
                }
                self.intake.ended(ended);
            }
            Err(error) => {
                self.report_failure(QueueCall::Settle, &error);
                if error.class() == ErrorClass::Permanent {
                    self.intake.ended(outstanding(settlements));
                    settlements.drain(..).for_each(|settlement| self.settling_lost(&settlement));
                } else if error.may_have_been_applied() {
                    self.unanswered(settlements);
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
                true
            }
            Some(Err(_)) | None => {
                self.settling_lost(settlement);
                false
            }
        }
    }

    #[cold]
    fn settling_lost(&self, settlement: &PendingSettlement) {
        let PendingSettlement { id, deliveries, may_be_settled, decision, .. } = settlement;
        if matches!(decision, Decision::LeaseLost) {
            // It was reported when the lease was lost.
            return;
        }
        self.inner.counters.leases_lost.add(1);
        self.event(|| Event::LeaseLost { id: id.clone(), deliveries: *deliveries, may_be_settled: *may_be_settled });
    }

    /// Counts and reports a settlement that the queue accepted.
    #[cold]
    fn report(&self, settlement: &mut PendingSettlement) {
        let PendingSettlement { id, deliveries, attempt, decision, .. } = settlement;
        let counters = &self.inner.counters;
        match decision {
            Decision::Complete | Decision::LeaseLost => {}
            Decision::Duplicate => counters.duplicates.add(1),
            Decision::Release => {
                counters.released.add(1);
                self.event(|| Event::Released { messages: 1 });
            }
            Decision::Refused { after, error } => {
                counters.refused.add(1);
                self.returns.lock().add(self.now() + *after);
                let (after, error) = (*after, std::mem::take(error));
                self.event(|| Event::Refused { id: id.clone(), error, after });
            }
            Decision::Retry { after, error } => {
                counters.failed.add(1);
                self.returns.lock().add(self.now() + *after);
                let (after, error) = (*after, std::mem::take(error));
                self.event(|| Event::Failed {
                    id: id.clone(),
                    attempt: *attempt,
                    deliveries: *deliveries,
                    error,
                    after,
                });
            }
            Decision::DeadLetter { reason } => {
                counters.dead_lettered.add(1);
                let reason = std::mem::take(reason);
                self.event(|| Event::DeadLettered { id: id.clone(), reason });
            }
        }
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
            let pauses = Backoff::checked(self.inner.config.busy, &self.inner.entropy);
            let pause = pauses.clone().nth(times.min(64) - 1).unwrap_or_default();
            self.inner.clock.sleep(pause).await;
        }
        let n = settlements.len();
        self.settle_once(&mut settlements).await;
        let failed = settlements.len();
        self.intake.ended(outstanding(&settlements));
        settlements.iter_mut().for_each(|settlement| settlement.is_overdue = true);
        if !settlements.is_empty() {
            self.note_unsettled(&settlements);
        }
        // The queue may accept a settlement after the end of the lease, if no other process
        // received the message.
        let (now, visibility) = (self.now(), self.inner.config.visibility);
        settlements.retain(|settlement| {
            let useful = settlement.until + visibility > now;
            if !useful {
                self.settling_lost(settlement);
            }
            useful
        });
        self.settled(n - settlements.len());
        let half = if failed == n { settlements.len() / 2 } else { 0 };
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

/// Minimum delay of a refused message, so that an immediate second refusal does not become a busy
/// loop.
const SHORTEST_REFUSAL: Duration = Duration::from_millis(100);

/// Maximum delay of a refused message whose refusal gives none; the minimum is half of it.
const UNKNOWN: Duration = Duration::from_secs(1);

/// Maximum random delay that is added to that of a refusal.
const LATEST: Duration = Duration::from_secs(1);
