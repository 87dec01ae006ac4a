//! Who leads, told in order, also to who listens slowly.
use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use crate::port::FencingToken;

/// Who leads, as one node knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leader {
    /// Nobody, or nobody that this node knows of.
    Unknown,
    /// This node, with this token.
    Own(FencingToken),
    /// Another.
    Other {
        /// Its id.
        holder: String,
        /// The token of its term.
        token: FencingToken,
    },
}

/// Every change of leader that a node sees, in order. Made by [`LeaderElection::observe`](super::LeaderElection::observe).
///
/// It loses nothing, however slowly it is read: changes are kept until they are. (A term makes two or three of them.)
pub struct Observer(Arc<Mailbox>);

#[derive(Default)]
struct Mailbox {
    changes: Mutex<VecDeque<Leader>>,
    came: Notify,
}

impl Observer {
    /// The next change; waits for it. The first is how things stood when this was made.
    ///
    /// # Cancel safety
    /// Dropped while it waits, it loses nothing.
    pub async fn recv(&mut self) -> Leader {
        loop {
            if let Some(change) = self.try_recv() {
                return change;
            }
            // One that comes in between is kept as a permit.
            self.0.came.notified().await;
        }
    }

    /// The next change, if there is one already.
    pub fn try_recv(&mut self) -> Option<Leader> {
        self.0.changes().pop_front()
    }
}

impl Mailbox {
    fn changes(&self) -> MutexGuard<'_, VecDeque<Leader>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, leader: Leader) {
        self.changes().push_back(leader);
        self.came.notify_one();
    }
}

/// The sending end.
pub(super) struct Transitions(Mutex<Inner>);

struct Inner {
    leader: Leader,
    observers: Vec<Arc<Mailbox>>,
}

impl Transitions {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Inner { leader: Leader::Unknown, observers: Vec::new() }))
    }

    pub(super) fn observe(&self) -> Observer {
        let mut inner = self.inner();
        let mailbox = Arc::new(Mailbox::default());
        mailbox.put(inner.leader.clone());
        inner.observers.push(mailbox.clone());
        Observer(mailbox)
    }

    /// Tells of this leader, if it is another than before. True if it is.
    pub(super) fn tell(&self, leader: Leader) -> bool {
        let mut inner = self.inner();
        if inner.leader == leader {
            return false;
        }
        inner.leader = leader;
        let Inner { leader, observers } = &mut *inner;
        // Who is alone with its mailbox has nobody left to read it.
        observers.retain(|mailbox| Arc::strong_count(mailbox) > 1);
        observers.iter().for_each(|mailbox| mailbox.put(leader.clone()));
        true
    }

    pub(super) fn leader(&self) -> Leader {
        self.inner().leader.clone()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("waiting", &self.0.changes().len()).finish()
    }
}
