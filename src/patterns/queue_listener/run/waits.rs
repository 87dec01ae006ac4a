//! What a task waits for: its settlements, a handler, a store, its turn to handle a message alone.
use std::{
    future::Future,
    pin::{Pin, pin},
};

use futures_util::future::join_all;

use crate::{
    queue_listener::{
        Handled, QueueCall, QueueListenerEvent as Event,
        counters::Count,
        lease::{Held, Lease, renewal::Dropped},
        run::{
            intake::Alone,
            state::{Shift, Stage},
            worker::{Worker, once},
        },
        settle::{How, Settled, Settling},
    },
    race::{First, race},
};

impl Worker {
    /// What is done is one request.
    pub(crate) fn is_one_request(&self) -> bool {
        let sources = &self.shift.inner.sources;
        sources.len() == 1 && sources.first().is_some_and(|source| self.done.len() <= source.most)
    }

    pub(crate) async fn settle_rest(&mut self, shift: &Shift, request: Settled<'_>) {
        shift.share(0);
        // What the request takes is no handler's time.
        self.looks.look(shift, shift.now());
        self.looks.forget();
        match shift.rest(QueueCall::Settle, shift.inner.config.call_limit(), request).await {
            Some(answer) => shift.answered_all(&mut self.done, answer),
            None => shift.unanswered(&mut self.done),
        }
    }

    /// Settles what is done, in one request for each source; what fails is tried again beside this task.
    pub(crate) async fn settle(&mut self) {
        self.looks.forget();
        let sources = self.shift.inner.sources.len();
        if sources > 1 {
            // The sort is stable: each source's stay in order.
            self.done.sort_by_key(|settling| settling.source);
        }
        while let Some(first) = self.done.first() {
            let (source, most) = (first.source, self.shift.inner.sources[first.source].most);
            let n = self.done.iter().take(most).take_while(|settling| settling.source == source).count();
            let mut rest = if n < self.done.len() { self.done.split_off(n) } else { Vec::new() };
            // The rest stays in hand, and is counted out where this task is aborted.
            let later = rest.len();
            self.begun += later;
            self.shift.settle_once(&mut self.done).await;
            self.begun -= later;
            self.shift.send_out(self.done.drain(..));
            if !rest.is_empty() {
                std::mem::swap(&mut self.done, &mut rest);
            }
        }
    }

    /// Waits until nothing else is in hand, so that a message that may end the process takes no other with it; nothing where the run
    /// halts before, or the message is lost.
    pub(crate) async fn alone<'a>(&mut self, shift: &'a Shift, mut held: Box<Held>) -> Option<(Alone<'a>, Box<Held>)> {
        let guard = Alone(shift);
        self.begun = 1;
        self.settle().await;
        let drained = async {
            let mut stage = shift.watch();
            let halts = async { drop(stage.wait_for(|stage| *stage != Stage::Works).await) };
            matches!(race(shift.fewer_than(2), halts).await, First::One(()))
        };
        let is_drained = self.keep(std::slice::from_mut(&mut held.lease), pin!(drained)).await;
        self.begun = 0;
        if held.lease.lost {
            return None;
        }
        if is_drained != Ok(true) {
            self.done.push(held.lease.settling(How::HandBack));
            return None;
        }
        Some((guard, held))
    }

    /// Waits for a handler, keeps its leases, and lets nothing else wait for it.
    pub(crate) async fn wait<H: Future>(
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
        self.looks.forget();
        shift.room.took(shift.now() - began, 1, true);
        match ended {
            First::One(output) => Ok(output),
            First::Other(why) => Err(why),
        }
    }

    /// Waits for something that goes with a message, and keeps its lease; the rest is left to others if it is not ready at once.
    pub(crate) async fn keep<F: Future>(
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
        self.looks.forget();
        shift.room.took(shift.now() - began, 1, true);
        match ended {
            First::One(output) => Ok(output),
            First::Other(why) => Err(why),
        }
    }

    /// Remembers messages as handled. They are completed also where that fails.
    pub(crate) async fn remember(&mut self, leases: &mut [Lease], keys: Vec<String>) {
        let shift = self.shift.clone();
        let remembered = join_all(keys.iter().map(|key| shift.remember(key)));
        let _ = self.keep(leases, pin!(remembered)).await;
    }

    /// A handler was dropped, though it had its lease.
    pub(crate) fn dropped(&self, lease: Lease, why: Dropped) -> Settling {
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
