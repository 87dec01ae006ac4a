//! Hints that there is work: heard by the listener, told by who sends.
use std::sync::{Arc, atomic::Ordering};

use crate::{
    backoff::Backoff,
    config::Name,
    notify::{Notice, Notifier},
    queue_listener::{QueueCall, run::state::Shift},
};

/// Where hints come from.
#[derive(Debug, Clone)]
pub(crate) struct Hints {
    pub(crate) notifier: Arc<dyn Notifier>,
    pub(crate) topic: Name,
}

impl Shift {
    /// Hears hints, for ever, and has somebody look at each.
    pub(crate) async fn hear(&self) {
        let Some(Hints { notifier, topic }) = &self.inner.hints else { return std::future::pending().await };
        let mut pauses = Backoff::checked(self.inner.config.busy, &self.inner.entropy);
        let mut notices = loop {
            let subscribed = notifier.subscribe(topic.as_str());
            if let Some(Ok(notices)) = self.request(QueueCall::Notify, self.inner.config.call_limit(), subscribed).await
            {
                break notices;
            }
            // Until then somebody goes on polling, as without hints.
            self.deaf.store(true, Ordering::Release);
            self.call();
            self.inner.clock.sleep(pauses.next().unwrap_or_default()).await;
        };
        self.deaf.store(false, Ordering::Release);
        // What was sent before the subscription was told to nobody.
        self.call();
        loop {
            let notice = notices.recv().await;
            self.call();
            if notice == Notice::Gap {
                // A line that breaks again and again must not have us poll again and again.
                self.inner.clock.sleep(pauses.next().unwrap_or_default()).await;
            } else {
                pauses = Backoff::checked(self.inner.config.busy, &self.inner.entropy);
            }
        }
    }
}
