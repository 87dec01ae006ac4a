//! The queue in this process's memory.
use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use super::{
    Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, Receipt, Receive, Settle,
    settle::check_visibility,
    state::{Ends, State, Stored},
};
use crate::{
    config::Name,
    entropy::Entropy,
    port::{BoxFuture, Capabilities, Capability, PortError, PortErrorKind},
    race::race,
    time::{Clock, Instant},
};

/// A queue in this process's memory. For tests, and for work that may go with the process.
///
/// A clone is the same queue. Without [`bounded`](Self::bounded) it grows for as long as more is sent than handled.
#[derive(Clone)]
pub struct InMemoryQueue {
    shared: Arc<Shared>,
    clock: Clock,
}

struct Shared {
    name: Name,
    identity: u64,
    state: Mutex<State>,
    /// Somebody who waits may find something now.
    came: Notify,
    /// Numbers messages, of this queue and of its dead letters.
    numbers: Arc<AtomicU64>,
    bound: usize,
    window: Duration,
    dead: Option<Arc<Shared>>,
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

/// For how long a de-duplication id is remembered, if nothing else is set.
const WINDOW: Duration = Duration::from_secs(300);

impl InMemoryQueue {
    /// An empty queue, with a queue of dead letters beside it.
    pub fn new(name: impl Into<Name>) -> Self {
        Self::make(name.into(), usize::MAX, WINDOW, Clock::default())
    }

    fn make(name: Name, bound: usize, window: Duration, clock: Clock) -> Self {
        let numbers = Arc::new(AtomicU64::new(0));
        let entropy = Entropy::from_os();
        let shared = |name, dead, receipts_from| {
            let state = Mutex::new(State::numbering_receipts_from(receipts_from));
            let (came, numbers) = (Notify::new(), numbers.clone());
            let identity = entropy.next_u64();
            Arc::new(Shared { name, identity, state, came, numbers, bound, window, dead })
        };
        // Numbers of their own, so that no receipt of the one is good in the other.
        let dead = shared(Name::from(format!("{name}/dead")), None, 1 << 63);
        Self { shared: shared(name, Some(dead), 0), clock }
    }

    /// The same, empty, and full at so many messages.
    #[must_use]
    pub fn bounded(self, messages: usize) -> Self {
        Self::make(self.shared.name.clone(), messages, self.shared.window, self.clock)
    }

    /// The same, empty, and remembering a de-duplication id for so long. Five minutes by default.
    #[must_use]
    pub fn deduplicating_for(self, window: Duration) -> Self {
        Self::make(self.shared.name.clone(), self.shared.bound, window, self.clock)
    }

    /// Reads the time from this clock. tokio's by default.
    #[must_use]
    pub fn with_clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    fn try_send(&self, messages: Vec<Message>) -> Result<Vec<MessageId>, QueueError> {
        Message::check(&messages, &CAN)?;
        let (now, sent_at) = (self.clock.now(), self.clock.wall());
        let mut state = self.shared.state();
        let known = |state: &mut State, message: &Message| {
            message.deduplication_id.as_deref().and_then(|id| state.duplicate(id, now))
        };
        let room = self.shared.bound.saturating_sub(state.len());
        if messages.len() > room {
            // What repeats within the request needs room once.
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
            let id = state.add(Stored::new(number, message, sent_at), until, now);
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
        let _wakes_the_next = Leaving(&self.shared);
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
            // A notification that comes before this waits is kept for it.
            race(self.shared.came.notified(), self.clock.sleep_until(until)).await;
        }
    }

    fn settle_one(&self, receipt: &Receipt, how: Settle) -> Result<(), QueueError> {
        let now = self.clock.now();
        match how {
            Settle::Complete => drop(self.shared.state().remove(receipt)?),
            Settle::Abandon { after } => self.shared.state().hide(receipt, later(now, after), Ends::Attempt)?,
            Settle::Release { after } => self.shared.state().hide(receipt, later(now, after), Ends::Uncounted)?,
            Settle::DeadLetter { reason } => {
                let dead = self.shared.dead.as_ref().ok_or_else(no_dead_letters)?;
                // First this queue's lock, then that of its dead letters: nobody takes them the other way round.
                let mut state = self.shared.state();
                if let Some(stored) = state.remove(receipt)? {
                    dead.state().add(stored.dead(reason), now, now);
                }
                drop(state);
                dead.wake();
            }
        }
        Ok(())
    }
}

/// When a message comes back; `None` is at once.
fn later(now: Instant, after: Duration) -> Option<Instant> {
    (!after.is_zero()).then(|| now + after)
}

/// Dead letters are settled, but not set aside once more.
fn no_dead_letters() -> QueueError {
    PortError::new(PortErrorKind::Unsupported, "a dead letter cannot be dead-lettered again: complete or abandon it")
        .into()
}

/// Who goes, with messages, without, or dropped, wakes the next who waits: more may be there, and what this one knew of the time of
/// the next return must be known by somebody.
struct Leaving<'a>(&'a Shared);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.wake();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One who waits looks.
    fn wake(&self) {
        self.came.notify_one();
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
            self.shared.state().hide(receipt, Some(self.clock.now() + visibility), Ends::Not)?;
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
