//! The idempotency filter of a run: asks whether a message was handled before, and notes that it was.
use crate::{
    queue::Delivery,
    queue_listener::{QueueCall, run::state::Shift},
};

impl Shift {
    /// What a message is remembered by, if it is.
    #[inline]
    pub(crate) fn filter_key(&self, delivery: &Delivery) -> Option<String> {
        self.inner.filter.as_ref().map(|filter| filter.id(delivery))
    }

    /// Whether the message was handled before. Where the store does not say, it is handled: rather twice than never.
    pub(crate) async fn is_duplicate(&self, delivery: &Delivery) -> bool {
        let Some(filter) = &self.inner.filter else { return false };
        let id = filter.id(delivery);
        let known = self.request(QueueCall::Filter, self.inner.config.call_limit(), filter.was_handled(&id)).await;
        matches!(known, Some(Ok(true)))
    }

    /// The message was handled.
    pub(crate) async fn remember(&self, id: &str) {
        let Some(filter) = &self.inner.filter else { return };
        // Its failure is told; the message is completed all the same.
        let _ = self.request(QueueCall::Filter, self.inner.config.call_limit(), filter.record(id)).await;
    }
}
