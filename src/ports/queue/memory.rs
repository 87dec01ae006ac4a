//! The queue in memory.
use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use super::{
    Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, Receipt, Receive, Settle,
    settle::check_visibility,
    state::{Hide, QueueState, StoredMessage},
};
use crate::{
    build::{Builder, Common, Component},
    config::Name,
    entropy::Entropy,
    port::{BoxFuture, Capabilities, Capability, PortError, PortErrorKind},
    race::race,
    sync::{Mutex, MutexGuard},
    time::{Clock, Instant},
};

/// A queue in this process's memory, for tests, and for work that may end with the process.
///
/// A clone is the same queue. Without [`bounded`](Builder::bounded) the queue grows while more
/// messages are sent than handled.
#[derive(Clone)]
pub struct InMemoryQueue {
    shared: Arc<QueueCore>,
    clock: Clock,
}

struct QueueCore {
    name: Name,
    identity: u64,
    state: Mutex<QueueState>,
    /// Notified when a waiting receiver may find a message.
    available: Notify,
    /// Counter of message numbers, shared by this queue and its dead letters.
    numbers: Arc<AtomicU64>,
    bound: usize,
    window: Duration,
    dead: Option<Arc<QueueCore>>,
}

const CAN: Capabilities = Capabilities::of(
    "memory",
    &[
        Capability::Linearizable,
        Capability::Groups,
        Capability::Ordered,
        Capability::Deduplication,
        Capability::Delay,
        Capability::Push,
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
    pub fn deduplicating_for(mut self, window: Duration) -> Self {
        self.spec.window = window;
        self
    }
}

impl Component for InMemoryQueue {
    type Built = Self;
    type Spec = InMemoryQueueSpec;

    fn assemble(spec: InMemoryQueueSpec, Common { clock, .. }: Common) -> Self {
        let InMemoryQueueSpec { name, bound, window } = spec;
        let numbers = Arc::new(AtomicU64::new(0));
        let entropy = Entropy::from_os();
        let shared = |name, dead, receipts_from| {
            let state = Mutex::new(QueueState::numbering_receipts_from(receipts_from));
            let (available, numbers) = (Notify::new(), numbers.clone());
            let identity = entropy.next_u64();
            Arc::new(QueueCore { name, identity, state, available, numbers, bound, window, dead })
        };
        // Receipts are numbered apart, so that a receipt of one queue is never valid in the other.
        let dead = shared(Name::from(format!("{name}/dead")), None, 1 << 63);
        Self { shared: shared(name, Some(dead), 0), clock }
    }
}

impl InMemoryQueue {
    /// Creates an empty queue, with a queue of dead letters beside it.
    pub fn new(name: impl Into<Name>) -> Self {
        Self::builder(name).build()
    }

    /// Creates a builder of an empty queue of this name.
    pub fn builder(name: impl Into<Name>) -> Builder<Self> {
        Builder::new(InMemoryQueueSpec { name: name.into(), bound: usize::MAX, window: WINDOW })
    }

    fn try_send(&self, messages: Vec<Message>) -> Result<Vec<MessageId>, QueueError> {
        Message::check(&messages, &CAN)?;
        let (now, sent_at) = (self.clock.now(), self.clock.wall());
        let mut state = self.shared.state();
        let known = |state: &mut QueueState, message: &Message| {
            message.deduplication_id.as_deref().and_then(|id| state.duplicate(id, now))
        };
        let room = self.shared.bound.saturating_sub(state.len());
        if messages.len() > room {
            // Messages with one de-duplication id within the request take one place.
            let mut ids = BTreeSet::new();
            let new = messages.iter().filter(|message| {
                known(&mut state, message).is_none()
                    && message.deduplication_id.as_deref().is_none_or(|id| ids.insert(id))
            });
            if new.count() > room {
                let message = format!("the queue {:?} is full: it holds {} messages", self.shared.name, state.len());
                return Err(PortError::new(PortErrorKind::Full, message).into());
            }
        }
        let mut ids = Vec::with_capacity(messages.len());
        for mut message in messages {
            if let Some(id) = known(&mut state, &message) {
                ids.push(id);
                continue;
            }
            let number = self.shared.numbers.fetch_add(1, Ordering::Relaxed);
            let (until, deduplication) = (now + message.delay, message.deduplication_id.take());
            let id = state.add(StoredMessage::new(number, message, sent_at), until, now);
            if let Some(text) = deduplication {
                state.remember(text, id.clone(), now + self.shared.window);
            }
            ids.push(id);
        }
        drop(state);
        self.shared.wake();
        Ok(ids)
    }

    async fn wait_for(&self, max: usize, receive: Receive) -> Vec<Delivery> {
        let end = self.clock.now() + receive.wait;
        let _wakes_next = WakesNextReceiver(&self.shared);
        loop {
            let next_return = {
                let now = self.clock.now();
                let mut state = self.shared.state();
                let taken = state.take(max, now, receive.visibility);
                if !taken.is_empty() || now >= end {
                    return taken;
                }
                state.next_return()
            };
            let until = next_return.map_or(end, |at| at.min(end));
            // `Notify` stores a permit, so a notification before this wait is not lost.
            race(self.shared.available.notified(), self.clock.sleep_until(until)).await;
        }
    }

    fn settle_one(&self, receipt: &Receipt, how: Settle) -> Result<(), QueueError> {
        let now = self.clock.now();
        match how {
            Settle::Complete => drop(self.shared.state().remove(receipt)?),
            Settle::Abandon { after } => self.shared.state().hide(receipt, visible_at(now, after), Hide::Abandon)?,
            Settle::Release { after } => self.shared.state().hide(receipt, visible_at(now, after), Hide::Release)?,
            Settle::DeadLetter { reason } => {
                let dead = self.shared.dead.as_ref().ok_or_else(no_dead_letters)?;
                // Lock order: first this queue, then its dead letters. No code takes them in
                // reverse.
                let mut state = self.shared.state();
                if let Some(stored) = state.remove(receipt)? {
                    dead.state().add(stored.into_dead_letter(reason), now, now);
                }
                drop(state);
                dead.wake();
            }
        }
        Ok(())
    }
}

/// Returns the time at which a message becomes visible again; `None` is at once.
fn visible_at(now: Instant, after: Duration) -> Option<Instant> {
    (!after.is_zero()).then(|| now + after)
}

/// Returns the error of a dead letter that would be dead-lettered again.
fn no_dead_letters() -> QueueError {
    PortError::new(PortErrorKind::Unsupported, "a dead letter cannot be dead-lettered again: complete or abandon it")
        .into()
}

/// Wakes the next receiver on drop, whatever the outcome: messages may remain, and the timer for
/// the next redelivery was owned by this receiver.
struct WakesNextReceiver<'a>(&'a QueueCore);

impl Drop for WakesNextReceiver<'_> {
    fn drop(&mut self) {
        self.0.wake();
    }
}

impl QueueCore {
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock()
    }

    /// Wakes one waiting receiver.
    fn wake(&self) {
        self.available.notify_one();
    }
}

impl Queue for InMemoryQueue {
    fn capabilities(&self) -> Capabilities {
        CAN
    }

    fn identity(&self) -> String {
        format!("memory-{:016x}", self.shared.identity)
    }

    fn send<'a>(&'a self, messages: Vec<Message>) -> BoxFuture<'a, Result<Vec<MessageId>, QueueError>> {
        Box::pin(async move { self.try_send(messages) })
    }

    fn receive<'a>(&'a self, receive: Receive) -> BoxFuture<'a, Result<Vec<Delivery>, QueueError>> {
        Box::pin(async move {
            let max = receive.check(&CAN)?;
            Ok(self.wait_for(max, receive).await)
        })
    }

    fn settle<'a>(
        &'a self,
        settlements: Vec<(Receipt, Settle)>,
    ) -> BoxFuture<'a, Result<Vec<Result<(), QueueError>>, QueueError>> {
        Box::pin(async move {
            let settled = settlements.into_iter().map(|(receipt, how)| self.settle_one(&receipt, how)).collect();
            self.shared.wake();
            Ok(settled)
        })
    }

    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> BoxFuture<'a, Result<(), QueueError>> {
        Box::pin(async move {
            check_visibility(visibility)?;
            self.shared.state().hide(receipt, Some(self.clock.now() + visibility), Hide::Extend)?;
            self.shared.wake();
            Ok(())
        })
    }

    fn depth(&self) -> BoxFuture<'_, Result<Depth, QueueError>> {
        Box::pin(async move { Ok(self.shared.state().depth(self.clock.now())) })
    }

    fn peek(&self, max: usize) -> BoxFuture<'_, Result<Vec<Peeked>, QueueError>> {
        Box::pin(async move { Ok(self.shared.state().peek(max.min(CAN.max_batch()), self.clock.now())) })
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64, QueueError>> {
        Box::pin(async move { Ok(self.shared.state().purge()) })
    }

    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        let dead = self.shared.dead.clone()?;
        Some(Arc::new(Self { shared: dead, clock: self.clock.clone() }))
    }
}

impl fmt::Debug for InMemoryQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let messages = self.shared.state().len();
        f.debug_struct("InMemoryQueue").field("name", &self.shared.name).field("messages", &messages).finish()
    }
}
