//! Use of the idempotency filter by a run.
use crate::{
    queue::Delivery,
    queue_listener::{QueueCall, run::state::RunState},
};

impl RunState {
    /// Returns the identity under which a message is remembered, if there is a filter.
    #[inline]
    pub(crate) fn filter_key(&self, delivery: &Delivery) -> Option<String> {
        self.inner.filter.as_ref().map(|filter| filter.id(delivery))
    }

    /// Returns `true` if the message was handled before. If the store fails, returns `false`: a
    /// message may be handled twice, but is never skipped.
    pub(crate) async fn is_duplicate(&self, delivery: &Delivery) -> bool {
        let Some(filter) = &self.inner.filter else { return false };
        let id = filter.id(delivery);
        let known = self.request(QueueCall::Filter, self.inner.call_limit(), filter.was_handled(&id)).await;
        matches!(known, Some(Ok(true)))
    }

    /// Records that the message was handled.
    pub(crate) async fn remember(&self, id: &str) {
        let Some(filter) = &self.inner.filter else { return };
        // A failure is reported by `request`; the message is completed nevertheless.
        let _ = self.request(QueueCall::Filter, self.inner.call_limit(), filter.record(id)).await;
    }
}
