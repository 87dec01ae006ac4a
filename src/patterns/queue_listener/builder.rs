//! Making a listener.
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

/// What a listener is made of. From [`QueueListener::builder`].
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

    /// Sets how the first queue is asked, where there are several.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        if let Some((_, first)) = self.queues.first_mut() {
            *first = level;
        }
        self
    }

    /// Takes from this queue, too.
    #[must_use]
    pub fn also(mut self, queue: Arc<dyn Queue>, level: Level) -> Self {
        self.queues.push((queue, level));
        self
    }

    /// Sets how several queues share the listener. Strict by default.
    #[must_use]
    pub const fn order(mut self, order: PriorityOrder) -> Self {
        self.order = order;
        self
    }

    /// Sets the settings.
    #[must_use]
    pub const fn config(mut self, config: QueueListenerConfig) -> Self {
        self.config = config;
        self
    }

    /// Reads the time from this clock. tokio's by default.
    #[must_use]
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// Draws the delays from this stream. Seeded by the system by default.
    #[must_use]
    pub fn entropy(mut self, entropy: &Entropy) -> Self {
        self.entropy = Some(entropy.clone());
        self
    }

    /// Is woken by notices to this topic: publish one after each `send`, or send through an [`AnnouncingQueue`](super::AnnouncingQueue).
    #[must_use]
    pub fn woken_by(mut self, notifier: Arc<dyn Notifier>, topic: impl Into<Name>) -> Self {
        self.hints = Some(Hints { notifier, topic: topic.into() });
        self
    }

    /// Remembers what was handled, and does not handle it again.
    #[must_use]
    pub fn filter(mut self, filter: IdempotencyFilter) -> Self {
        self.filter = Some(filter);
        self
    }

    /// Sets how many tasks so many waiting messages ask for. [`tasks_by_depth`] by default.
    #[must_use]
    pub fn scale_by(mut self, rule: impl Fn(u64) -> u32 + Send + Sync + 'static) -> Self {
        self.rule = Arc::new(rule);
        self
    }

    /// Gives it a name, for events.
    #[must_use]
    pub fn named(mut self, name: impl Into<Name>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Makes the listener.
    ///
    /// # Errors
    /// Where a setting breaks a rule, or a backend lacks what is asked of it.
    pub fn build(self) -> Result<QueueListener, ConfigError> {
        self.config.check()?;
        require(
            self.config.min_tasks > 0 || self.hints.is_some(),
            "min_tasks",
            "must be at least 1 where nothing wakes the listener: see `woken_by`",
        )?;
        require(
            self.queues.iter().all(|(_, level)| level.weight > 0),
            "weight",
            "must be at least 1: a queue of no weight would never be asked",
        )?;
        if let Some(filter) = &self.filter {
            filter.store().capabilities().require(Capability::TimeToLive).map_err(|lacks| lacks.refuse("filter"))?;
            require(!filter.window().is_zero(), "window", "must be longer than zero")?;
        }
        let (queues, levels): (Vec<_>, Vec<_>) = self.queues.into_iter().unzip();
        let source = |queue: Arc<dyn Queue>| Source {
            most: queue.capabilities().max_batch().max(1),
            sets_aside: queue.dead_letters().is_some(),
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
            shifts: Default::default(),
            rests: Notify::new(),
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
