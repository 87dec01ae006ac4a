//! What all ways to elect a leader have in common.
use super::{LeaderElection, by_message::MessageElection};
use crate::port::BoxFuture;

/// A node's view of who leads, however the leader is elected: the seam behind which a strategy can be exchanged.
///
/// Whether it is safe is the strategy's matter: over a lease it is, [by messages](super::by_message) it is not.
pub trait Elector: Send + Sync {
    /// Whether this node takes itself for the leader now.
    fn is_leader(&self) -> bool;

    /// Takes part until it is dropped.
    ///
    /// # Cancel safety
    /// Dropped, this node leads no longer, or is silent; called again, it takes part again.
    fn take_part(&self) -> BoxFuture<'_, ()>;
}

impl Elector for LeaderElection {
    fn is_leader(&self) -> bool {
        LeaderElection::is_leader(self)
    }

    fn take_part(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // What does not pass by itself is told by an event; there is nothing better to do than to ask again.
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

    fn take_part(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.run())
    }
}
