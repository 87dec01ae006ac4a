//! Changes of leader, delivered in order to every observer, fast or slow.
use std::{collections::VecDeque, fmt, sync::Arc};

use tokio::sync::Notify;

use crate::{
    port::FencingToken,
    sync::{Mutex, MutexGuard},
};

/// The leader, as far as one node knows.
#[derive(Debug, Clone, PartialEq, Eq)]
// Exhaustive: a node knows of no leader, of itself, or of another one.
pub enum Leader {
    /// No leader is known.
    Unknown,
    /// This node leads, with this fencing token.
    Own(FencingToken),
    /// Another node leads.
    Other {
        /// Id of the holder.
        holder: String,
        /// Fencing token of its term.
        token: FencingToken,
    },
}

/// A subscription to every change of leader that a node sees, in order. Created by
/// [`LeaderElection::observe`](super::LeaderElection::observe).
///
/// It loses no change, however slowly it is read: changes are kept until they are read. A term
/// makes two or three of them.
pub struct Observer(Arc<Mailbox>);

#[derive(Default)]
struct Mailbox {
    changes: Mutex<VecDeque<Leader>>,
    came: Notify,
}

impl Observer {
    /// Waits for the next change and returns it. The first item is the state at the time of
    /// subscribing.
    ///
    /// # Cancel safety
    /// If the future is dropped while it waits, no change is lost.
    pub async fn recv(&mut self) -> Leader {
        loop {
            if let Some(change) = self.try_recv() {
                return change;
            }
            // `Notify` keeps a permit for a change that arrives between the check and this wait.
            self.0.came.notified().await;
        }
    }

    /// Returns the next change, if there is one already.
    pub fn try_recv(&mut self) -> Option<Leader> {
        self.0.changes().pop_front()
    }
}

impl Mailbox {
    fn changes(&self) -> MutexGuard<'_, VecDeque<Leader>> {
        self.changes.lock()
    }

    fn put(&self, leader: Leader) {
        self.changes().push_back(leader);
        self.came.notify_one();
    }
}

/// The sending end of all observers.
pub(super) struct Transitions(Mutex<ObserverList>);

struct ObserverList {
    leader: Leader,
    observers: Vec<Arc<Mailbox>>,
}

impl Transitions {
    pub(super) fn new() -> Self {
        Self(Mutex::new(ObserverList { leader: Leader::Unknown, observers: Vec::new() }))
    }

    pub(super) fn observe(&self) -> Observer {
        let mut inner = self.inner();
        let mailbox = Arc::new(Mailbox::default());
        mailbox.put(inner.leader.clone());
        inner.observers.push(mailbox.clone());
        Observer(mailbox)
    }

    /// Sends the new leader to all observers, and returns `true` if it differs from the one before.
    pub(super) fn tell(&self, leader: Leader) -> bool {
        let mut inner = self.inner();
        if inner.leader == leader {
            return false;
        }
        inner.leader = leader;
        let ObserverList { leader, observers } = &mut *inner;
        // A mailbox with one reference has lost its observer.
        observers.retain(|mailbox| Arc::strong_count(mailbox) > 1);
        observers.iter().for_each(|mailbox| mailbox.put(leader.clone()));
        true
    }

    pub(super) fn leader(&self) -> Leader {
        self.inner().leader.clone()
    }

    fn inner(&self) -> MutexGuard<'_, ObserverList> {
        self.0.lock()
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("waiting", &self.0.changes().len()).finish()
    }
}
