//! Builder of a listener.
use std::{fmt, sync::Arc};

use tokio::sync::{Notify, watch};

use super::{
    Level, PriorityOrder, QueueListener, QueueListenerConfig,
    counters::Counters,
    listener::{Inner, Rule, Source},
    poll::hints::Hints,
    run::scaler::tasks_by_depth,
};
use crate::{
    config::{ConfigError, Name, require},
    entropy::Entropy,
    notify::Notifier,
    observe::Events,
    port::Capability,
    queue::{IdempotencyFilter, Queue},
    time::Clock,
};

/// Builder of a [`QueueListener`]. Created by [`QueueListener::builder`].
pub struct QueueListenerBuilder {
    queues: Vec<(Arc<dyn Queue>, Level)>,
    order: PriorityOrder,
    config: QueueListenerConfig,
    clock: Clock,
    entropy: Option<Entropy>,
    hints: Option<Hints>,
    filter: Option<IdempotencyFilter>,
    rule: Rule,
    name: Option<Name>,
}

impl QueueListenerBuilder {
    pub(super) fn new(queue: Arc<dyn Queue>) -> Self {
        Self {
            queues: vec![(queue, Level::default())],
            order: PriorityOrder::default(),
            config: QueueListenerConfig::default(),
            clock: Clock::default(),
            entropy: None,
            hints: None,
            filter: None,
            rule: Arc::new(tasks_by_depth),
            name: None,
        }
    }

    /// Sets the priority and weight of the first queue, if there are several.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        if let Some((_, first)) = self.queues.first_mut() {
            *first = level;
        }
        self
    }

    /// Adds another queue to receive from.
    #[must_use]
    pub fn source(mut self, queue: Arc<dyn Queue>, level: Level) -> Self {
        self.queues.push((queue, level));
        self
    }

    /// Sets the order in which several queues are polled. Strict by default.
    #[must_use]
    pub const fn order(mut self, order: PriorityOrder) -> Self {
        self.order = order;
        self
    }

    /// Sets the configuration.
    #[must_use]
    pub const fn config(mut self, config: QueueListenerConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the clock. tokio's by default.
    #[must_use]
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// Sets the source of random delays. Seeded by the system by default.
    #[must_use]
    pub fn entropy(mut self, entropy: &Entropy) -> Self {
        self.entropy = Some(entropy.clone());
        self
    }

    /// Wakes the listener by notices of this topic. Publish a notice after each `send`, or send
    /// through an [`AnnouncingQueue`](crate::queue::AnnouncingQueue).
    #[must_use]
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>, topic: impl Into<Name>) -> Self {
        self.hints = Some(Hints { notifier, topic: topic.into() });
        self
    }

    /// Skips messages that were handled before, by this filter.
    #[must_use]
    pub fn filter(mut self, filter: IdempotencyFilter) -> Self {
        self.filter = Some(filter);
        self
    }

    /// Sets the rule that gives the number of tasks for a number of waiting messages. By default
    /// 10 tasks below 100 messages, 50 below 1,000, else 100.
    #[must_use]
    pub fn scaling(mut self, rule: impl Fn(u64) -> u32 + Send + Sync + 'static) -> Self {
        self.rule = Arc::new(rule);
        self
    }

    /// Sets the name that events carry.
    #[must_use]
    pub fn named(mut self, name: impl Into<Name>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Builds the listener.
    ///
    /// # Errors
    /// If a setting breaks a rule, or a backend lacks a capability that the configuration requires.
    pub fn build(self) -> Result<QueueListener, ConfigError> {
        self.config.check()?;
        require(
            self.config.min_tasks > 0 || self.hints.is_some(),
            "min_tasks",
            "must be at least 1 unless a `notifier` wakes the listener",
        )?;
        require(
            self.queues.iter().all(|(_, level)| level.weight > 0),
            "weight",
            "must be at least 1: a queue of weight 0 would never be polled",
        )?;
        if let Some(filter) = &self.filter {
            filter.store().capabilities().require(Capability::TimeToLive).map_err(|lacks| lacks.refuse("filter"))?;
            require(!filter.window().is_zero(), "window", "must be longer than zero")?;
        }
        let (queues, levels): (Vec<_>, Vec<_>) = self.queues.into_iter().unzip();
        let source = |queue: Arc<dyn Queue>| Source {
            most: queue.capabilities().max_batch().max(1),
            has_dead_letters: queue.dead_letters().is_some(),
            queue,
        };
        Ok(QueueListener(Arc::new(Inner {
            sources: queues.into_iter().map(source).collect(),
            levels,
            order: self.order,
            config: self.config,
            clock: self.clock,
            entropy: self.entropy.unwrap_or_default(),
            hints: self.hints,
            filter: self.filter,
            rule: self.rule,
            name: self.name,
            counters: Counters::default(),
            depth: Default::default(),
            unsettled: Default::default(),
            paused: watch::Sender::new(false),
            runs: Default::default(),
            idle: Notify::new(),
            events: Events::new(),
        })))
    }
}

impl fmt::Debug for QueueListenerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueListenerBuilder")
            .field("name", &self.name)
            .field("queues", &self.queues)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
