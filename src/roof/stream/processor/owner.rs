//! The term of an owner: it claims the partition, processes it, and hands it over.
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    time::Duration,
};

use tokio::sync::watch;

use super::{
    Delivered, StreamProcessorEvent as Event,
    checkpoint_store::Unclaimed,
    component::ProcessorCore,
    wake_ups::Alarm,
    worker::{Worker, WorkerEnd},
};
use crate::{
    leader_election::{Leadership, TermEnd},
    port::PortError,
    race::{First, race},
    time::Instant,
    work::EventDisposition,
};

/// The reason for which an owner gives its partition up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Term(TermEnd),
    /// The processor stops, or the partition is to be claimed anew.
    Asked,
}

/// Waits until a flag is set. The end of its sender sets it, too.
pub(super) async fn set(mut flag: watch::Receiver<bool>) {
    let _ = flag.wait_for(|is_set| *is_set).await;
}

async fn end(leadership: &mut Leadership, stopped: watch::Receiver<bool>, alarm: &Alarm) -> End {
    match race(leadership.lost(), race(set(stopped), alarm.resume.notified())).await {
        First::One(end) => End::Term(end),
        First::Other(_) => End::Asked,
    }
}

/// Renews the term until it is over.
async fn keep(leadership: &mut Leadership) {
    while !matches!(leadership.lost().await, TermEnd::NotRenewed | TermEnd::Superseded) {}
}

/// The end of one phase of a hand-over.
enum Phase {
    Ended(WorkerEnd),
    TimedOut,
    TermOver,
}

impl ProcessorCore {
    /// Owns a partition until its term ends, it is asked to resign, or the processor stops. Returns
    /// `true` if it ended without a hand-over: then others are to be elected first.
    ///
    /// # Errors
    /// A permanent failure of the store.
    pub(super) async fn own<F, H>(
        &self,
        partition: u16,
        mut leadership: Leadership,
        handler: &F,
        stopped: watch::Receiver<bool>,
    ) -> Result<bool, PortError>
    where
        F: Fn(Delivered) -> H,
        H: Future,
        H::Output: Into<EventDisposition>,
    {
        let (token, alarm) = (leadership.token(), self.holdings.alarm(partition).unwrap_or_default());
        let claim = pin!(self.claim(partition, token));
        let mut worker = match race(claim, end(&mut leadership, stopped.clone(), &alarm)).await {
            First::One(Ok(claimed)) => {
                let (watermark, until) = (claimed.checkpoint.finished.watermark(), claimed.checkpoint.careful_until);
                self.event(|| Event::Claimed { partition, token, watermark });
                if until > watermark {
                    self.event(|| Event::Careful { partition, until });
                }
                Worker::new(self, handler, partition, token, claimed, alarm.clone())
            }
            First::One(Err(Unclaimed::Halted(reason))) => {
                // It is kept: another owner would find the same.
                if let Some(state) = self.holdings.owned.lock().get_mut(&partition) {
                    state.halted = Some(reason.clone());
                }
                self.event(|| Event::Halted { partition, reason });
                end(&mut leadership, stopped, &alarm).await;
                self.resign(partition, leadership, true).await;
                return Ok(false);
            }
            First::One(Err(Unclaimed::Failed(error))) => {
                self.resign(partition, leadership, true).await;
                return Err(error);
            }
            First::One(Err(Unclaimed::Superseded)) | First::Other(_) => {
                self.resign(partition, leadership, true).await;
                return Ok(true);
            }
        };
        let ended = race(poll_fn(|cx| worker.poll(cx)), end(&mut leadership, stopped, &alarm)).await;
        let mut is_handed_over = false;
        let is_clean = match ended {
            First::One(_) | First::Other(End::Term(TermEnd::Superseded)) => {
                // A later owner goes on: nothing of this one may be recorded.
                worker.handlers.cancel();
                worker.handlers.abandon();
                false
            }
            First::Other(End::Term(TermEnd::NotRenewed)) => {
                worker.drain();
                worker.handlers.cancel();
                let deadline = leadership.deadline();
                let ended = race(poll_fn(|cx| worker.poll(cx)), self.clock.sleep_until(deadline)).await;
                worker.handlers.abandon();
                matches!(ended, First::One(WorkerEnd::Drained))
            }
            First::Other(_) => {
                is_handed_over = true;
                self.hand_over(&mut worker, &mut leadership).await
            }
        };
        drop(worker);
        self.resign(partition, leadership, is_clean).await;
        Ok(!is_handed_over)
    }

    /// Ends the handlers and writes the last checkpoint, within the term. Returns `true` if no
    /// handler was dropped.
    async fn hand_over<F, H>(&self, worker: &mut Worker<'_, F, H>, leadership: &mut Leadership) -> bool
    where
        F: Fn(Delivered) -> H,
        H: Future,
        H::Output: Into<EventDisposition>,
    {
        let config = self.config.now();
        let term = leadership.term();
        let mut kept = pin!(keep(leadership));
        worker.drain();
        let mut phase = self.phase(worker, kept.as_mut(), config.drain_timeout).await;
        if matches!(phase, Phase::TimedOut) {
            worker.handlers.cancel();
            phase = self.phase(worker, kept.as_mut(), config.election.grace).await;
        }
        let mut is_clean = true;
        if matches!(phase, Phase::TimedOut) {
            is_clean = worker.handlers.abandon() == 0;
            phase = self.phase(worker, kept.as_mut(), config.election.call_timeout).await;
        }
        match phase {
            Phase::Ended(end) => is_clean && end == WorkerEnd::Drained,
            Phase::TimedOut => false,
            Phase::TermOver => {
                worker.handlers.cancel();
                // Zero if another node has the lease.
                let deadline: Instant = term.deadline();
                let ended = race(poll_fn(|cx| worker.poll(cx)), self.clock.sleep_until(deadline)).await;
                worker.handlers.abandon() == 0 && matches!(ended, First::One(WorkerEnd::Drained))
            }
        }
    }

    async fn phase<F, H>(
        &self,
        worker: &mut Worker<'_, F, H>,
        kept: Pin<&mut impl Future<Output = ()>>,
        limit: Duration,
    ) -> Phase
    where
        F: Fn(Delivered) -> H,
        H: Future,
        H::Output: Into<EventDisposition>,
    {
        let over = race(kept, self.clock.sleep(limit));
        match race(poll_fn(|cx| worker.poll(cx)), over).await {
            First::One(end) => Phase::Ended(end),
            First::Other(First::One(())) => Phase::TermOver,
            First::Other(First::Other(())) => Phase::TimedOut,
        }
    }

    async fn resign(&self, partition: u16, leadership: Leadership, is_clean: bool) {
        let token = leadership.token();
        // If it cannot be released, it is free when its term has passed; the election reports that.
        let _ = leadership.resign().await;
        self.event(|| Event::Released { partition, token, is_clean });
    }
}
