//! Subscription to notices of new messages.
use std::sync::{Arc, atomic::Ordering};

use crate::{
    backoff::Backoff,
    config::Name,
    notify::{Notice, Notifier},
    queue_listener::{QueueCall, run::state::RunState},
};

/// The notifier and the topic of a listener.
#[derive(Debug, Clone)]
pub(crate) struct Hints {
    pub(crate) notifier: Arc<dyn Notifier>,
    pub(crate) topic: Name,
}

/// Receives notices until the run ends, and calls the tasks for each.
pub(crate) async fn hear_hints(run: &RunState) {
    let Some(Hints { notifier, topic }) = &run.inner.hints else { return std::future::pending().await };
    let mut pauses = Backoff::checked(run.inner.config.load().busy, &run.inner.entropy);
    let mut notices = loop {
        let subscribed = notifier.subscribe(topic.as_str());
        if let Some(Ok(notices)) = run.requests.make(QueueCall::Notify, run.inner.call_limit(), subscribed).await {
            break notices;
        }
        // One task polls until the subscription succeeds.
        run.tasks.without_hints.store(true, Ordering::Release);
        run.call();
        run.inner.clock.sleep(pauses.next().unwrap_or_default()).await;
    };
    run.tasks.without_hints.store(false, Ordering::Release);
    // Messages sent before the subscription had no notice for this listener.
    run.call();
    loop {
        let notice = notices.recv().await;
        run.call();
        if notice == Notice::Gap {
            // Backs off, so that a subscription that breaks repeatedly does not cause repeated
            // polls.
            run.inner.clock.sleep(pauses.next().unwrap_or_default()).await;
        } else {
            pauses = Backoff::checked(run.inner.config.load().busy, &run.inner.entropy);
        }
    }
}
