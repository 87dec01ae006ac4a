//! Ending deliveries: many in one request, again where it failed.
use std::time::Duration;

use super::{
    Handled, QueueCall, QueueListenerEvent as Event,
    lot::{How, Lease, Settling},
    shift::Shift,
};
use crate::{
    backoff::Backoff,
    port::{BoxFuture, ErrorClass, Failure},
    queue::QueueError,
    time::Timestamp,
};

/// What a request to settle gives.
type Answers = Result<Vec<Result<(), QueueError>>, QueueError>;

/// A request to settle.
pub(super) type Settled<'a> = BoxFuture<'a, Answers>;

impl Shift {
    /// What is to become of a message, by what came of it.
    pub(super) fn judge(&self, lease: Lease, handled: Handled) -> Settling {
        let how = match handled {
            Handled::Complete => How::Complete,
            Handled::Retry { after, error } => self.failed(&lease, after, error),
            Handled::HandBack => How::HandBack,
            Handled::DeadLetter { reason } => self.set_aside(&lease, &reason),
        };
        lease.settling(how)
    }

    #[cold]
    fn failed(&self, lease: &Lease, after: Option<Duration>, error: String) -> How {
        if lease.deliveries >= self.inner.config.max_deliveries {
            return self.set_aside(lease, &format!("failed too often: {error}"));
        }
        How::Retry { after: after.unwrap_or_else(|| self.pause(lease.deliveries)), error }
    }

    /// The delay after so many deliveries.
    fn pause(&self, deliveries: u32) -> Duration {
        // After some dozens it has long been the longest.
        let before = deliveries.saturating_sub(1).min(64) as usize;
        let config = self.inner.config.retry;
        Backoff::checked(config, &self.inner.entropy).nth(before).unwrap_or(config.cap)
    }

    /// A dead letter, with what people ask about it. A queue without dead letters keeps it, and hands it out seldom.
    #[cold]
    pub(super) fn set_aside(&self, lease: &Lease, why: &str) -> How {
        let reason = format!("{why} (delivery {}, set aside {})", lease.deliveries, Timestamp::now());
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
        match self.rest(QueueCall::Settle, self.inner.config.call_timeout, request).await {
            Some(answer) => self.answered_all(settlings, answer),
            None => self.unanswered(settlings),
        }
    }

    /// The answer to a request; leaves those that are to be tried again.
    pub(super) fn answered_all(&self, settlings: &mut Vec<Settling>, answer: Answers) {
        match answer {
            Ok(answers) => {
                let mut answers = answers.into_iter();
                let mut completed = 0;
                settlings.retain_mut(|settling| self.answered(settling, answers.next(), &mut completed));
                if completed > 0 {
                    self.inner.counters.handled.add(completed);
                }
            }
            Err(error) => {
                self.tell_failure(QueueCall::Settle, &error);
                if error.class() == ErrorClass::Permanent {
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
        let Settling { id, deliveries, may_be_settled, .. } = settling;
        self.inner.counters.leases_lost.add(1);
        self.event(|| Event::LeaseLost { id: id.clone(), deliveries: *deliveries, may_be_settled: *may_be_settled });
    }

    /// Says what was settled.
    #[cold]
    fn tell(&self, settling: &mut Settling) {
        let Settling { id, deliveries, how, .. } = settling;
        let counters = &self.inner.counters;
        match how {
            How::Complete => {}
            How::Duplicate => counters.duplicates.add(1),
            How::HandBack => {
                counters.handed_back.add(1);
                self.event(|| Event::HandedBack { messages: 1 });
            }
            How::Retry { after, error } => {
                counters.failed.add(1);
                let (after, error) = (*after, std::mem::take(error));
                self.event(|| Event::Failed { id: id.clone(), deliveries: *deliveries, error, after });
            }
            How::DeadLetter { reason } => {
                counters.dead_lettered.add(1);
                let reason = std::mem::take(reason);
                self.event(|| Event::DeadLettered { id: id.clone(), reason });
            }
        }
    }

    /// Settles what the tasks send out, for ever: what fails is tried again, for as long as it can be of use.
    pub(super) async fn settle_all(&self, source: usize) {
        loop {
            let mut settlings = self.outgoing(source).await;
            let mut pauses = Backoff::checked(self.inner.config.busy, &self.inner.entropy);
            let mut left = settlings.len();
            loop {
                self.settle_once(&mut settlings).await;
                // Beyond its end a lease may yet be honoured, where nobody else was handed the message.
                let (now, visibility) = (self.now(), self.inner.config.visibility);
                settlings.retain(|settling| {
                    let useful = settling.until + visibility > now;
                    if !useful {
                        self.settling_lost(settling);
                    }
                    useful
                });
                self.settled(left - settlings.len());
                left = settlings.len();
                if left == 0 {
                    break;
                }
                let pause = pauses.next().unwrap_or_default();
                self.inner.clock.sleep(pause).await;
            }
        }
    }
}
