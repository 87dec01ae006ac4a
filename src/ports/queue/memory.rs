//! The queue in memory.
use std::{fmt, sync::Arc, time::Duration};

use super::{
    Address, Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, QueueFuture, Receipt, Receive, Settle,
    memory_core::QueueCore, settle::check_visibility, state::Hide,
};
use crate::{
    build::{Builder, Common, Component},
    config::Name,
    port::{Capabilities, Capability},
    race::race,
    time::Instant,
};

/// A queue in this process's memory, for tests, and for work that may end with the process.
///
/// A clone is the same queue. All queues in the memory of one process can
/// [forward](Settle::Forward) messages to each other. Without [`bounded`](InMemoryQueue::builder)
/// the queue grows while more messages are sent than handled.
#[derive(Clone)]
pub struct InMemoryQueue(Arc<QueueCore>);

pub(super) const CAN: Capabilities = Capabilities::of(
    "memory",
    &[
        Capability::Linearizable,
        Capability::Groups,
        Capability::Ordered,
        Capability::Deduplication,
        Capability::Delay,
        Capability::Push,
        Capability::ErrorHistory,
        Capability::Forward,
    ],
)
.largest_value(64 << 20)
.largest_batch(1000)
.largest_key(1024);

/// Default time for which the queue remembers a de-duplication id.
const WINDOW: Duration = Duration::from_secs(300);

/// Arguments of a queue in memory, beside name, clock and entropy.
#[derive(Debug)]
pub struct InMemoryQueueSpec {
    name: Name,
    bound: usize,
    window: Duration,
}

impl Builder<InMemoryQueue> {
    /// Sets the number of messages at which the queue is full. No bound by default.
    pub fn bounded(mut self, messages: usize) -> Self {
        self.spec.bound = messages;
        self
    }

    /// Sets the time for which the queue remembers a de-duplication id. Five minutes by default.
    /// With zero, it recognizes duplicates within one request.
    pub fn deduplicating_for(mut self, window: Duration) -> Self {
        // A request has one time, after which the shortest window ends.
        self.spec.window = window.max(Duration::from_nanos(1));
        self
    }
}

impl Component for InMemoryQueue {
    type Built = Self;
    type Spec = InMemoryQueueSpec;

    fn assemble(spec: InMemoryQueueSpec, Common { clock, .. }: Common) -> Self {
        let InMemoryQueueSpec { name, bound, window } = spec;
        Self(QueueCore::new(name, bound, window, clock))
    }
}

impl InMemoryQueue {
    /// Creates an empty queue, with a queue of dead letters beside it.
    pub fn new(name: impl Into<Name>) -> Self {
        Self::builder(name).build()
    }

    /// Creates a builder of an empty queue of this name.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CInMemoryQueue%3E): `bounded`,
    /// `deduplicating_for`.
    pub fn builder(name: impl Into<Name>) -> Builder<Self> {
        Builder::new(InMemoryQueueSpec { name: name.into(), bound: usize::MAX, window: WINDOW })
    }

    fn try_send(&self, messages: Vec<Message>) -> Result<Vec<MessageId>, QueueError> {
        Message::check(&messages, &CAN)?;
        let (times, mut state) = (self.0.times(), self.0.state());
        let len = state.len();
        self.0.check_room(&mut state, len, times.0, messages.iter())?;
        let ids = messages.into_iter().map(|message| self.0.accept(&mut state, times, message)).collect();
        drop(state);
        self.0.wake();
        Ok(ids)
    }

    async fn wait_for(&self, max: usize, receive: Receive) -> Vec<Delivery> {
        let end = self.0.clock.now() + receive.wait;
        let _wakes_next = WakesNextReceiver(&self.0);
        loop {
            let next_return = {
                let now = self.0.clock.now();
                let mut state = self.0.state();
                let taken = state.take(max, now, receive.visibility);
                if !taken.is_empty() || now >= end {
                    return taken;
                }
                state.next_return()
            };
            let until = next_return.map_or(end, |at| at.min(end));
            // `Notify` stores a permit, so a notification before this wait is not lost.
            race(self.0.available.notified(), self.0.clock.sleep_until(until)).await;
        }
    }

    fn forward_all(&self, forwards: &mut Vec<(Receipt, Vec<(Address, Message)>)>) -> Vec<Result<(), QueueError>> {
        if forwards.is_empty() { Vec::new() } else { self.0.forward(std::mem::take(forwards)) }
    }

    fn settle_all(&self, settlements: Vec<(Receipt, Settle)>) -> Vec<Result<(), QueueError>> {
        let mut settled = Vec::with_capacity(settlements.len());
        // Forwards that follow each other lock their queues once.
        let mut forwards = Vec::new();
        for (receipt, how) in settlements {
            let (now, checked) = (self.0.clock.now(), how.check(&CAN));
            if checked.is_err() || !matches!(how, Settle::Forward { .. }) {
                settled.extend(self.forward_all(&mut forwards));
            }
            settled.push(match (checked, how) {
                (Err(refused), _) => Err(refused.into()),
                (Ok(()), Settle::Forward { messages }) => {
                    forwards.push((receipt, messages));
                    continue;
                }
                (Ok(()), Settle::Complete) => self.0.state().remove(&receipt).map(drop),
                (Ok(()), Settle::Abandon { after, error }) => {
                    self.0.state().abandon(&receipt, visible_at(now, after), error)
                }
                (Ok(()), Settle::Release { after }) => {
                    self.0.state().hide(&receipt, visible_at(now, after), Hide::Release)
                }
                (Ok(()), Settle::DeadLetter { reason, error }) => self.0.dead_letter(&receipt, reason, error, now),
            });
        }
        settled.extend(self.forward_all(&mut forwards));
        settled
    }
}

/// Returns the time at which a message becomes visible again; `None` is at once.
fn visible_at(now: Instant, after: Duration) -> Option<Instant> {
    (!after.is_zero()).then(|| now + after)
}

/// Wakes the next receiver on drop, whatever the outcome: messages may remain, and the timer for
/// the next redelivery was owned by this receiver.
struct WakesNextReceiver<'a>(&'a QueueCore);

impl Drop for WakesNextReceiver<'_> {
    fn drop(&mut self) {
        self.0.wake();
    }
}

impl Queue for InMemoryQueue {
    fn capabilities(&self) -> Capabilities {
        CAN.deduplicating_for(self.0.window)
    }

    fn identity(&self) -> String {
        self.0.identity()
    }

    fn address(&self) -> Option<Address> {
        Some(Address::of_memory(self.0.clone()))
    }

    fn send<'a>(&'a self, messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        Box::pin(async move { self.try_send(messages) })
    }

    fn receive<'a>(&'a self, receive: Receive) -> QueueFuture<'a, Vec<Delivery>> {
        Box::pin(async move {
            let max = receive.check(&CAN)?;
            Ok(self.wait_for(max, receive).await)
        })
    }

    fn settle<'a>(&'a self, settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>> {
        Box::pin(async move {
            let settled = self.settle_all(settlements);
            self.0.wake();
            Ok(settled)
        })
    }

    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> QueueFuture<'a, ()> {
        Box::pin(async move {
            check_visibility(visibility)?;
            self.0.state().hide(receipt, Some(self.0.clock.now() + visibility), Hide::Extend)?;
            self.0.wake();
            Ok(())
        })
    }

    fn mark_begun<'a>(&'a self, receipt: &'a Receipt, visibility: Duration, begun: bool) -> QueueFuture<'a, ()> {
        Box::pin(async move {
            check_visibility(visibility)?;
            self.0.state().hide(receipt, Some(self.0.clock.now() + visibility), Hide::Mark(begun))?;
            self.0.wake();
            Ok(())
        })
    }

    fn depth(&self) -> QueueFuture<'_, Depth> {
        Box::pin(async move { Ok(self.0.state().depth(self.0.clock.now())) })
    }

    fn peek(&self, max: usize) -> QueueFuture<'_, Vec<Peeked>> {
        Box::pin(async move { Ok(self.0.state().peek(max.min(CAN.max_batch()), self.0.clock.now())) })
    }

    fn purge(&self) -> QueueFuture<'_, u64> {
        Box::pin(async move { Ok(self.0.state().purge()) })
    }

    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        let dead = self.0.dead.clone()?;
        Some(Arc::new(Self(dead)))
    }
}

impl fmt::Debug for InMemoryQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let messages = self.0.state().len();
        f.debug_struct("InMemoryQueue").field("name", &self.0.name).field("messages", &messages).finish()
    }
}
