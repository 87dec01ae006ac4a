//! The description of a listener, with warnings about its settings.
use super::{PriorityOrder, QueueListener};
use crate::{
    call::{Explanation, Layer},
    outcome::PolicyKind,
};

/// Number of handlers above which a missing concurrency limit is a warning: the default of
/// `max_tasks`.
const MANY: u32 = 16;

impl QueueListener {
    /// Describes the listener, with warnings about its settings. It does not know the handler; use
    /// [`explain_with`](Self::explain_with) for both.
    pub fn explain(&self) -> Explanation {
        self.explain_with(&Explanation::default())
    }

    /// Describes the listener and the pipeline that its handler calls, with the warnings of both.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use steadfast::{
    ///     Pipeline,
    ///     queue::InMemoryQueue,
    ///     queue_listener::{QueueListener, QueueListenerConfig},
    ///     throttling::{Quota, RateLimiter},
    /// };
    ///
    /// let queue = Arc::new(InMemoryQueue::new("invoices"));
    /// let listener = QueueListener::new(queue, QueueListenerConfig::default()).unwrap();
    /// assert!(listener.explain().warnings()[0].contains("no rate limit"));
    ///
    /// let bank = Pipeline::new().then(RateLimiter::new(Quota::per_second(50)).unwrap());
    /// assert!(listener.explain_with(&bank.explain()).warnings().is_empty());
    /// ```
    pub fn explain_with(&self, handler: &Explanation) -> Explanation {
        let config = self.0.config.now();
        let has = |kind| handler.layers().iter().any(|layer| layer.kind() == kind);
        let (rate, concurrency) = (has(PolicyKind::RateLimit), has(PolicyKind::ConcurrencyLimit));
        let queues = match (self.0.sources.len(), self.0.order) {
            (1, _) => String::new(),
            (n, PriorityOrder::Strict) => format!(" from {n} queues in strict order"),
            (n, PriorityOrder::Weighted) => format!(" from {n} queues by weight"),
        };
        let control = match self.0.control.as_ref().map(|control| (control.interval(), control.paused())) {
            None => String::new(),
            Some((poll, None)) => format!("; obeys a queue control, read each {poll:?} at most, not read yet"),
            Some((poll, Some(0))) => format!("; obeys a queue control, read each {poll:?} at most"),
            Some((poll, Some(paused))) => {
                format!("; obeys a queue control, read each {poll:?} at most, which paused {paused} of its queues")
            }
        };
        let idles =
            if self.0.sources.iter().all(|source| source.wakes) { "waits in the queue for" } else { "polls each" };
        let settings = format!(
            "takes up to {} messages a poll{queues} for {} to {} handlers; hides each for {:?}; {} attempts; {idles} {:?} to {:?} \
             when idle{control}",
            config.batch,
            config.min_tasks,
            config.max_tasks,
            config.visibility,
            config.max_attempts,
            config.idle.min,
            config.idle.max
        );
        let mut layer = Layer::new(PolicyKind::Custom("queue listener"), self.0.name.clone(), settings);
        if !rate && !concurrency {
            layer = layer.with_warning(
                "the handler has no rate limit and no concurrency limit: a peak in the queue reaches the service behind it",
            );
        }
        if config.max_tasks > MANY && !concurrency {
            layer = layer.with_warning(format!(
                "up to {} concurrent handlers without a concurrency limit: more handlers may add contention in the \
                 service behind them instead of throughput",
                config.max_tasks
            ));
        }
        handler.clone().within(layer)
    }
}
