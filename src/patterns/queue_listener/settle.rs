//! Ending deliveries: many in one request, again where it failed.
use std::{sync::atomic::Ordering, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::{
    Handled, QueueCall, QueueListenerEvent as Event,
    lot::{How, Lease, Settling},
    outage::Outage,
    shift::Shift,
};
use crate::{
    backoff::Backoff,
    port::{BoxFuture, ErrorClass, Failure},
    queue::QueueError,
    race::{First, race},
    time::{Instant, scaled},
};

/// What a request to settle gives.
type Answers = Result<Vec<Result<(), QueueError>>, QueueError>;

/// A request to settle.
pub(super) type Settled<'a> = BoxFuture<'a, Answers>;

impl Shift {
    /// What is to become of a message, by what came of it.
    pub(super) fn judge(&self, lease: Lease, handled: Handled) -> Settling {
        let how = match handled {
            Handled::Complete => {
                self.completes(&lease);
                How::Complete
            }
            Handled::Retry { after, error } => self.failed(&lease, after, error),
            Handled::HandBack => How::HandBack,
            Handled::Refused { after, error } => {
                self.troubled(|outage, now| outage.refused(now));
                self.refused(after, error)
            }
            Handled::DeadLetter { reason } => self.set_aside(&lease, &reason),
        };
        lease.settling(how)
    }

    /// A message is handled: an outage in which it was refused is over.
    #[inline]
    pub(super) fn completes(&self, lease: &Lease) {
        if self.troubled.load(Ordering::Acquire) {
            self.troubled(|outage, _| outage.succeeded(lease.was_released()));
        }
    }

    fn troubled<T>(&self, tell: impl FnOnce(&mut Outage, Instant) -> T) -> T {
        let now = self.now();
        let mut outage = self.outage.lock();
        let told = tell(&mut outage, now);
        self.troubled.store(!outage.is_over(), Ordering::Release);
        told
    }

    #[cold]
    fn failed(&self, lease: &Lease, after: Option<Duration>, error: String) -> How {
        if self.troubled(|outage, now| outage.failed(lease.was_released(), now)) {
            return self.refused(None, error);
        }
        if lease.attempt >= self.inner.config.max_attempts {
            return self.set_aside(lease, &format!("failed too often: {error}"));
        }
        How::Retry { after: after.unwrap_or_else(|| self.pause(lease.attempt)), error }
    }

    /// What was refused comes back when the refusal says, and a little later: many are not to come back together.
    fn refused(&self, after: Option<Duration>, error: String) -> How {
        let entropy = &self.inner.entropy;
        let after = match after {
            Some(after) => {
                let after = after.clamp(SHORTEST_REFUSAL, Handled::LONGEST_REFUSAL);
                after.saturating_add(scaled((after / 10).min(LATEST), entropy.unit()))
            }
            None => scaled(UNKNOWN, 0.5 + entropy.unit() / 2.0),
        };
        How::Refused { after, error }
    }

    /// The delay after so many attempts.
    fn pause(&self, attempts: u32) -> Duration {
        // After some dozens it has long been the longest.
        let before = attempts.saturating_sub(1).min(64) as usize;
        let config = self.inner.config.retry;
        Backoff::checked(config, &self.inner.entropy).nth(before).unwrap_or(config.cap)
    }

    /// A dead letter, with what people ask about it. A queue without dead letters keeps it, and hands it out seldom.
    #[cold]
    pub(super) fn set_aside(&self, lease: &Lease, why: &str) -> How {
        let reason = format!(
            "{why} (attempt {}, delivery {}, set aside {})",
            lease.attempt,
            lease.deliveries,
            self.inner.clock.wall()
        );
        if self.inner.sources[lease.source].sets_aside {
            How::DeadLetter { reason }
        } else {
            How::Retry { after: self.inner.config.retry.cap, error: reason }
        }
    }

    /// The request to settle these, of one source.
    pub(super) fn settling(&self, settlings: &[Settling]) -> Settled<'_> {
        let requests = settlings.iter().map(|settling| (settling.receipt.clone(), settling.how.settle())).collect();
        let source = settlings.first().map_or(0, |first| first.source);
        self.inner.counters.requests.add(1);
        self.inner.sources[source].queue.settle(requests)
    }

    /// Settles these, of one source; leaves those that are to be tried again.
    pub(super) async fn settle_once(&self, settlings: &mut Vec<Settling>) {
        let request = self.settling(settlings);
        match self.rest(QueueCall::Settle, self.inner.config.call_limit(), request).await {
            Some(answer) => self.answered_all(settlings, answer),
            None => self.unanswered(settlings),
        }
    }

    /// The answer to a request; leaves those that are to be tried again.
    pub(super) fn answered_all(&self, settlings: &mut Vec<Settling>, answer: Answers) {
        match answer {
            Ok(answers) => {
                let mut answers = answers.into_iter();
                let (mut completed, mut ended) = (0, 0);
                settlings.retain_mut(|settling| {
                    let stays = self.answered(settling, answers.next(), &mut completed);
                    ended += usize::from(!stays && !settling.is_overdue);
                    stays
                });
                if completed > 0 {
                    self.inner.counters.handled.add(completed);
                }
                self.room.ended(ended);
            }
            Err(error) => {
                self.tell_failure(QueueCall::Settle, &error);
                if error.class() == ErrorClass::Permanent {
                    self.room.ended(in_hand(settlings));
                    settlings.drain(..).for_each(|settling| self.settling_lost(&settling));
                } else if error.may_have_been_applied() {
                    self.unanswered(settlings);
                }
            }
        }
    }

    /// No answer in time says nothing about the request.
    #[cold]
    pub(super) fn unanswered(&self, settlings: &mut [Settling]) {
        settlings.iter_mut().for_each(|settling| settling.may_be_settled = true);
    }

    /// One answer; true if it is to be tried again.
    #[inline]
    fn answered(&self, settling: &mut Settling, answer: Option<Result<(), QueueError>>, completed: &mut u64) -> bool {
        match answer {
            Some(Ok(())) => {
                if matches!(settling.how, How::Complete) {
                    *completed += 1;
                } else {
                    self.tell(settling);
                }
                false
            }
            Some(Err(QueueError::Failed(error))) if error.class() != ErrorClass::Permanent => {
                settling.may_be_settled |= error.may_have_been_applied();
                true
            }
            Some(Err(_)) | None => {
                self.settling_lost(settling);
                false
            }
        }
    }

    #[cold]
    fn settling_lost(&self, settling: &Settling) {
        let Settling { id, deliveries, may_be_settled, how, .. } = settling;
        if matches!(how, How::GiveUp) {
            // It was told when it was given up.
            return;
        }
        self.inner.counters.leases_lost.add(1);
        self.event(|| Event::LeaseLost { id: id.clone(), deliveries: *deliveries, may_be_settled: *may_be_settled });
    }

    /// Says what was settled.
    #[cold]
    fn tell(&self, settling: &mut Settling) {
        let Settling { id, deliveries, attempt, how, .. } = settling;
        let counters = &self.inner.counters;
        match how {
            How::Complete | How::GiveUp => {}
            How::Duplicate => counters.duplicates.add(1),
            How::HandBack => {
                counters.handed_back.add(1);
                self.event(|| Event::HandedBack { messages: 1 });
            }
            How::Refused { after, error } => {
                counters.refused.add(1);
                self.returns.lock().add(self.now() + *after);
                let (after, error) = (*after, std::mem::take(error));
                self.event(|| Event::Refused { id: id.clone(), error, after });
            }
            How::Retry { after, error } => {
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
            How::DeadLetter { reason } => {
                counters.dead_lettered.add(1);
                let reason = std::mem::take(reason);
                self.event(|| Event::DeadLettered { id: id.clone(), reason });
            }
        }
    }

    /// Settles what the tasks send out, for ever. What fails is tried again apart from what comes, for as long as that can be of use.
    pub(super) async fn settle_all(&self, source: usize) {
        let mut again = FuturesUnordered::new();
        let mut fresh: Option<BoxFuture<'_, Vec<Failing>>> = None;
        loop {
            let comes = async {
                match &mut fresh {
                    Some(fresh) => fresh.await,
                    None => vec![Failing { settlings: self.outgoing(source).await, times: 0 }],
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

    /// Settles these once, after a pause where they failed before; gives what is to be tried again. Where a request fails as a whole its
    /// halves are tried apart: one message that cannot be settled is alone in the end.
    async fn settle_again(&self, failing: Failing) -> Vec<Failing> {
        let Failing { mut settlings, times } = failing;
        if times > 0 {
            let pauses = Backoff::checked(self.inner.config.busy, &self.inner.entropy);
            let pause = pauses.clone().nth(times.min(64) - 1).unwrap_or_default();
            self.inner.clock.sleep(pause).await;
        }
        let n = settlings.len();
        self.settle_once(&mut settlings).await;
        let failed = settlings.len();
        self.room.ended(in_hand(&settlings));
        settlings.iter_mut().for_each(|settling| settling.is_overdue = true);
        if !settlings.is_empty() {
            self.note_unsettled(&settlings);
        }
        // Beyond its end a lease may yet be honoured, where nobody else was handed the message.
        let (now, visibility) = (self.now(), self.inner.config.visibility);
        settlings.retain(|settling| {
            let useful = settling.until + visibility > now;
            if !useful {
                self.settling_lost(settling);
            }
            useful
        });
        self.settled(n - settlings.len());
        let half = if failed == n { settlings.len() / 2 } else { 0 };
        let second = settlings.split_off(settlings.len() - half);
        let parts = [settlings, second].into_iter().filter(|part| !part.is_empty());
        parts.map(|settlings| Failing { settlings, times: times + 1 }).collect()
    }
}

/// How many of these count as in hand.
fn in_hand(settlings: &[Settling]) -> usize {
    settlings.iter().filter(|settling| !settling.is_overdue).count()
}

/// Settlements that are to be tried, and how often they were.
struct Failing {
    settlings: Vec<Settling>,
    times: usize,
}

/// A refused message comes back after this at the earliest: one that is refused at once again must not be handed out without a pause.
const SHORTEST_REFUSAL: Duration = Duration::from_millis(100);

/// A refused message comes back after this, and after half of it at the earliest, where the refusal says nothing.
const UNKNOWN: Duration = Duration::from_secs(1);

/// A refused message comes back this much later at most than the refusal says.
const LATEST: Duration = Duration::from_secs(1);
