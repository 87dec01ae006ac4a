//! The interface that all election strategies share.
use super::{LeaderElection, by_message::MessageElection};
use crate::port::BoxFuture;

/// A node's view of the leadership, independent of the strategy that elects the leader.
///
/// Safety depends on the strategy: an election over a lease is safe, one
/// [by messages](super::by_message) is not.
pub trait Elector: Send + Sync {
    /// Returns `true` if this node considers itself the leader now.
    fn is_leader(&self) -> bool;

    /// Participates in elections until the future is dropped.
    ///
    /// # Cancel safety
    /// If the future is dropped, this node no longer leads, or sends nothing. A later call
    /// participates again.
    fn participate(&self) -> BoxFuture<'_, ()>;
}

impl Elector for LeaderElection {
    fn is_leader(&self) -> bool {
        LeaderElection::is_leader(self)
    }

    fn participate(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // A permanent error has been reported by an event. No caller is there to receive it, so ask again.
            while self.run(std::future::pending(), async |term| term.lost().await).await.is_err() {
                self.0.clock.sleep(self.0.some_of_a_poll()).await;
            }
        })
    }
}

impl Elector for MessageElection {
    fn is_leader(&self) -> bool {
        MessageElection::is_leader(self)
    }

    fn participate(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.run())
    }
}
