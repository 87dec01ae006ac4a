//! The state that all handles of a queue in memory share, and the steps that change several queues.

// Locks: a step that changes several queues locks them in the order of their `rank`, which no two
// queues share. A queue of dead letters is ranked directly above its queue, so dead-lettering locks
// the queue first. No lock is held while a receiver is woken.
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use super::{
    Address, AttemptError, Message, MessageId, QueueError, Receipt,
    memory::CAN,
    state::{QueueState, StoredMessage},
};
use crate::{
    config::Name,
    entropy::Entropy,
    port::{PortError, PortErrorKind},
    sync::{Mutex, MutexGuard},
    time::{Clock, Instant, Timestamp},
};

pub(super) struct QueueCore {
    pub(super) name: Name,
    identity: u64,
    /// Place of the queue in the order in which several queues are locked.
    rank: u64,
    state: Mutex<QueueState>,
    /// Notified when a waiting receiver may find a message.
    pub(super) available: Notify,
    /// Counter of message numbers, shared by this queue and its dead letters.
    numbers: Arc<AtomicU64>,
    bound: usize,
    pub(super) window: Duration,
    pub(super) clock: Clock,
    pub(super) dead: Option<Arc<QueueCore>>,
}

/// Rank of the next queue. It only has to be unique, so `Relaxed` suffices.
static NEXT_RANK: AtomicU64 = AtomicU64::new(0);

impl QueueCore {
    /// Creates a queue with its dead letters.
    pub(super) fn new(name: Name, bound: usize, window: Duration, clock: Clock) -> Arc<Self> {
        let numbers = Arc::new(AtomicU64::new(0));
        let entropy = Entropy::from_os();
        let rank = NEXT_RANK.fetch_add(2, Ordering::Relaxed);
        let make = |name, dead, rank, receipts_from| {
            let state = Mutex::new(QueueState::numbering_receipts_from(receipts_from));
            let (available, numbers, clock) = (Notify::new(), numbers.clone(), clock.clone());
            let identity = entropy.next_u64();
            Arc::new(Self { name, identity, rank, state, available, numbers, bound, window, clock, dead })
        };
        // Receipts are numbered apart, so that a receipt of one queue is never valid in the other.
        let dead = make(Name::from(format!("{name}/dead")), None, rank + 1, 1 << 63);
        make(name, Some(dead), rank, 0)
    }

    pub(super) fn identity(&self) -> String {
        format!("memory-{:016x}", self.identity)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock()
    }

    /// Wakes one waiting receiver.
    pub(super) fn wake(&self) {
        self.available.notify_one();
    }

    /// Returns the time of acceptance of a message that arrives now: on the queue's clock, and on
    /// the wall clock.
    pub(super) fn times(&self) -> (Instant, Timestamp) {
        (self.clock.now(), self.clock.wall())
    }

    /// Checks that there is room for these messages among `len` others. Duplicates take none.
    pub(super) fn check_room<'a>(
        &self,
        state: &mut QueueState,
        len: usize,
        now: Instant,
        messages: impl Iterator<Item = &'a Message> + Clone,
    ) -> Result<(), QueueError> {
        let room = self.bound.saturating_sub(len);
        if room >= CAN.max_batch() || messages.clone().count() <= room {
            return Ok(());
        }
        // Messages with one de-duplication id within the request take one place.
        let mut ids = BTreeSet::new();
        let new = messages.filter(|message| match message.deduplication_id.as_deref() {
            Some(id) => state.duplicate(id, now).is_none() && ids.insert(id),
            None => true,
        });
        let new = new.count();
        if new > 1 && new > self.bound {
            let rule = format_args!("must be at most {} for the queue {:?}, are {new}", self.bound, self.name);
            return Err(PortError::invalid("messages", rule).into());
        }
        if new > room {
            let message = format!("the queue {:?} is full: it holds {} messages", self.name, state.len());
            return Err(PortError::new(PortErrorKind::Full, message).into());
        }
        Ok(())
    }

    /// Enqueues a message for which there is room, unless it is a duplicate, and returns its id.
    pub(super) fn accept(
        &self,
        state: &mut QueueState,
        (now, sent_at): (Instant, Timestamp),
        mut message: Message,
    ) -> MessageId {
        let deduplication = message.deduplication_id.take();
        if let Some(known) = deduplication.as_deref().and_then(|id| state.duplicate(id, now)) {
            return known;
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let until = now + message.delay;
        let id = state.add(StoredMessage::new(number, message, (now, sent_at)), until, now);
        if let Some(text) = deduplication {
            state.remember(text, id.clone(), now + self.window);
        }
        id
    }

    /// Moves a message to the dead letters.
    pub(super) fn dead_letter(
        &self,
        receipt: &Receipt,
        reason: String,
        error: Option<Box<AttemptError>>,
        now: Instant,
    ) -> Result<(), QueueError> {
        let dead = self.dead.as_ref().ok_or_else(no_dead_letters)?;
        let mut state = self.state();
        if let Some(stored) = state.remove(receipt)? {
            dead.state().add(stored.into_dead_letter(reason, error), now, now);
        }
        drop(state);
        dead.wake();
        Ok(())
    }

    /// Forwards each of several deliveries: removes its message and enqueues others, or does
    /// neither. The queues are locked once for all.
    pub(super) fn forward(
        self: &Arc<Self>,
        forwards: Vec<(Receipt, Vec<(Address, Message)>)>,
    ) -> Vec<Result<(), QueueError>> {
        let forwards: Vec<_> = forwards.into_iter().map(|(receipt, sent)| (receipt, to_queues(sent))).collect();
        let mut queues = vec![self.clone()];
        for (target, _) in forwards.iter().flat_map(|(_, sent)| sent.iter().flatten()) {
            if let Err(at) = queues.binary_search_by_key(&target.rank, |queue| queue.rank) {
                queues.insert(at, target.clone());
            }
        }
        let mut locked = Locked(queues.iter().map(|queue| (&**queue, queue.state(), queue.times())).collect());
        let own = locked.place(self);
        let forward = |(receipt, sent): (Receipt, Result<_, PortError>)| locked.forward(own, &receipt, sent?);
        let results = forwards.into_iter().map(forward).collect();
        drop(locked);
        // A woken receiver wakes the next one.
        queues.iter().for_each(|queue| queue.wake());
        results
    }
}

/// Returns the queues at these addresses with their messages.
///
/// # Errors
/// `Unsupported` if one is an address of another backend.
fn to_queues(messages: Vec<(Address, Message)>) -> Result<Vec<(Arc<QueueCore>, Message)>, PortError> {
    messages.into_iter().map(|(address, message)| Ok((address.into_memory()?, message))).collect()
}

/// Queues that are locked together, in the order of their ranks, each with the time of acceptance
/// of what arrives now.
struct Locked<'a>(Vec<(&'a QueueCore, MutexGuard<'a, QueueState>, (Instant, Timestamp))>);

impl Locked<'_> {
    fn place(&self, queue: &QueueCore) -> usize {
        self.0.partition_point(|(other, ..)| other.rank < queue.rank)
    }

    /// Removes a message of the queue at place `own`, and enqueues others, all of them or none.
    fn forward(
        &mut self,
        own: usize,
        receipt: &Receipt,
        sent: Vec<(Arc<QueueCore>, Message)>,
    ) -> Result<(), QueueError> {
        // All is checked before anything changes.
        self.0[own].1.check_receipt(receipt)?;
        for (at, (queue, state, (now, _))) in self.0.iter_mut().enumerate() {
            // The ended message makes room in its own queue.
            let len = state.len() - usize::from(at == own);
            let messages = sent.iter().filter(|(target, _)| target.rank == queue.rank);
            queue.check_room(state, len, *now, messages.map(|(_, message)| message))?;
        }
        self.0[own].1.remove(receipt)?;
        for (target, message) in sent {
            let place = self.place(&target);
            let (_, state, times) = &mut self.0[place];
            target.accept(state, *times, message);
        }
        Ok(())
    }
}

/// Returns the error of a dead letter that would be dead-lettered again.
fn no_dead_letters() -> QueueError {
    PortError::new(PortErrorKind::Unsupported, "a dead letter cannot be dead-lettered again: complete or abandon it")
        .into()
}
