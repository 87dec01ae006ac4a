//! The control of queues, through which operators pause them and cancel messages.
use std::sync::Arc;

use super::{super::Console, queue::Control};
use crate::{
    build::Builder,
    port::BoxFuture,
    queue::{MessageId, Queue},
    queue_listener::QueueControl,
    store::StoreError,
};

impl Builder<Console> {
    /// Lets operators pause the queues that follow, and cancel their messages, through this
    /// control.
    pub fn control(mut self, control: &QueueControl) -> Self {
        self.spec.control = Some(Arc::new(control.clone()));
        self
    }
}

impl Control for QueueControl {
    fn is_paused<'a>(&'a self, queue: &'a dyn Queue) -> BoxFuture<'a, Result<bool, String>> {
        Box::pin(async move { self.is_paused(queue).await.map_err(words) })
    }

    fn set_paused<'a>(&'a self, queue: &'a dyn Queue, paused: bool) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let done = if paused { self.pause(queue).await } else { self.resume(queue).await };
            done.map_err(words)
        })
    }

    fn cancel<'a>(&'a self, queue: &'a dyn Queue, id: MessageId) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move { self.cancel(queue, &id).await.map_err(words) })
    }
}

fn words(error: StoreError) -> String {
    format!("the store of the control: {error}")
}
