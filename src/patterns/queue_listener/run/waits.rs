//! Waits of a task: for settlements, for a handler, for a store, and for the record of a suspect
//! message.
use std::{
    future::Future,
    pin::{Pin, pin},
};

use futures_util::future::join_all;

use crate::{
    queue::AttemptErrorKind,
    queue_listener::{
        Disposition, QueueCall, QueueListenerEvent as Event,
        lease::{Lease, renewal::Dropped},
        run::{
            state::{Probation, RunState},
            worker::{Worker, once},
        },
        settle::{Decision, PendingSettlement, SettleRequest},
    },
    race::{First, race},
    time::Instant,
};

impl Worker {
    /// Returns `true` if the finished messages fit into one settle request.
    pub(crate) fn is_one_request(&self) -> bool {
        let sources = &self.run.inner.sources;
        sources.len() == 1 && sources.first().is_some_and(|source| self.done.len() <= source.most)
    }

    pub(crate) async fn settle_rest(&mut self, run: &RunState, request: SettleRequest<'_>) {
        run.share(0);
        // The time of the request is not that of a handler.
        self.looks.look(run, run.now());
        self.looks.forget();
        match run.requests.timed(QueueCall::Settle, run.requests.limit(), request).await {
            Some(answer) => run.answered_all(&mut self.done, answer),
            None => run.unanswered(&mut self.done),
        }
    }

    /// Settles the finished messages, in one request for each source. Failed ones are retried
    /// beside this task.
    pub(crate) async fn settle(&mut self) {
        self.looks.forget();
        let sources = self.run.inner.sources.len();
        if sources > 1 {
            // The sort is stable, so the messages of each source keep their order.
            self.done.sort_by_key(|settlement| settlement.lease.source);
        }
        while let Some(first) = self.done.first() {
            let source = first.lease.source;
            let most = self.run.inner.sources[source].most;
            let n = self.done.iter().take(most).take_while(|settlement| settlement.lease.source == source).count();
            let mut rest = if n < self.done.len() { self.done.split_off(n) } else { Vec::new() };
            // The rest stays outstanding, and is subtracted if this task is aborted.
            let later = rest.len();
            self.begun += later;
            self.run.settle_once(&mut self.done).await;
            self.begun -= later;
            self.run.send_out(self.done.drain(..));
            if !rest.is_empty() {
                std::mem::swap(&mut self.done, &mut rest);
            }
        }
    }

    /// Lets a suspect message begin alone, so that it takes no other one with it: waits for
    /// handlers that run, at most for a third of the visibility time-out, and records that its
    /// handler begins. Returns `false` if it must not begin: the record was not confirmed, so that
    /// a death could not be told from a lost answer.
    pub(crate) async fn begins(&mut self, lease: &mut Lease) -> bool {
        if !lease.is_suspect() {
            return true;
        }
        let run = self.run.clone();
        lease.alone_since = run.now();
        self.settle().await;
        let closed = self.keep(std::slice::from_mut(lease), pin!(run.close(run.parts.third))).await;
        if closed.is_err() || run.lifecycle.is_halted() {
            return self.ends(lease, Decision::RELEASE);
        }
        let asked = lease.clone();
        let marked = self.keep(std::slice::from_mut(lease), pin!(run.mark_begun(&asked, true))).await;
        match marked {
            Ok(Some(sent)) => lease.renewed(sent, run.inner.visibility()),
            Ok(None) => return self.ends(lease, run.put_off()),
            Err(_) => return self.ends(lease, Decision::RELEASE),
        }
        // It has waited long: meanwhile it may have been cancelled, or its queue paused.
        if run.inner.is_cancelled(lease) {
            return self.ends(lease, run.cancelled(lease));
        }
        if run.lifecycle.is_halted() || run.inner.is_source_paused(lease.source) {
            return self.ends(lease, Decision::RELEASE);
        }
        lease.begun = !lease.lost;
        lease.begun
    }

    /// Ends a message without its handler, unless its lease is lost. Returns `false`: it does not
    /// begin.
    pub(crate) fn ends(&mut self, lease: &Lease, decision: Decision) -> bool {
        if !lease.lost {
            self.done.push(lease.clone().settlement(decision));
        }
        false
    }

    /// Settles a suspect message whose handler has ended, and lets the next one begin.
    pub(crate) async fn end_suspect(&mut self, probation: Probation<'_>) {
        if self.done.iter().any(|settlement| matches!(settlement.decision, Decision::Forward(_))) {
            // It may wait long for room in its target, and its handler no longer ends the process.
            self.run.mark_begun(&probation.1, false).await;
        }
        self.settle().await;
    }

    /// Waits for a handler and renews its leases.
    pub(crate) async fn wait<H: Future>(
        &mut self,
        future: Pin<&mut H>,
        leases: &mut [Lease],
    ) -> Result<H::Output, Dropped> {
        self.in_a_row = 0;
        let run = self.run.clone();
        let _counted = run.inner.counters.in_flight.enter(leases.len() as u32);
        let _handling = run.tasks.handling.enter(1);
        // One task polls for messages that arrive meanwhile.
        let least = run.tasks.least(run.expects_returns());
        run.grow(None, |_| least());
        self.beside_others(future, leases, Some(run.now())).await
    }

    /// Waits for a future that belongs to messages, and renews their leases.
    pub(crate) async fn keep<F: Future>(
        &mut self,
        leases: &mut [Lease],
        mut future: Pin<&mut F>,
    ) -> Result<F::Output, Dropped> {
        match once(future.as_mut()).await {
            Some(output) => Ok(output),
            None => self.beside_others(future, leases, None).await,
        }
    }

    /// Waits for a future and renews leases. Finished and waiting messages are left to others
    /// meanwhile.
    async fn beside_others<F: Future>(
        &mut self,
        future: Pin<&mut F>,
        leases: &mut [Lease],
        handler_began: Option<Instant>,
    ) -> Result<F::Output, Dropped> {
        let run = self.run.clone();
        run.share(0);
        run.send_out(self.done.drain(..));
        let began = run.now();
        let ended = race(future, run.keep(leases, &self.cancel, handler_began, &mut self.poller.stage)).await;
        self.looks.forget();
        run.intake.took(run.now() - began, 1, true);
        match ended {
            First::One(output) => Ok(output),
            First::Other(why) => Err(why),
        }
    }

    /// Records messages as handled. They are completed even if that fails.
    pub(crate) async fn remember(&mut self, leases: &mut [Lease], keys: Vec<String>) {
        let run = self.run.clone();
        let remembered = join_all(keys.iter().map(|key| run.requests.remember(key)));
        let _ = self.keep(leases, pin!(remembered)).await;
    }

    /// Reports a handler that was dropped although it had its lease, and decides on its message.
    pub(crate) fn dropped(&self, lease: Lease, why: Dropped) -> PendingSettlement {
        self.run.event(|| Event::HandlerDropped { id: lease.id.clone() });
        match why {
            _ if self.run.inner.is_cancelled(&lease) => {
                let decision = self.run.cancelled(&lease);
                lease.settlement(decision)
            }
            Dropped::TooLong => {
                self.run.decide(lease, Disposition::retry("the handler timed out"), AttemptErrorKind::TimedOut)
            }
            // The message is not to blame: it is released, and no attempt is counted.
            Dropped::Stopping | Dropped::Lost => lease.settlement(Decision::RELEASE),
        }
    }
}
