//! Builder of a listener.
use std::sync::Arc;

use tokio::sync::watch;

use super::{
    Level, PriorityOrder, QueueControl, QueueListener, QueueListenerConfig, QueueListenerEvent,
    control::{partition, state::ControlState, watch::Paused},
    counters::Counters,
    listener::{Inner, Rule, Runs, Source},
    poll::hints::Hints,
    run::scaler::tasks_by_depth,
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, HasName},
    config::{ConfigError, Live, Name, require},
    notify::Notifier,
    port::Capability,
    queue::{IdempotencyFilter, Queue},
};

/// Arguments of a listener, beside name, clock and entropy.
pub struct QueueListenerSpec {
    queues: Vec<(Arc<dyn Queue>, Level)>,
    order: PriorityOrder,
    config: QueueListenerConfig,
    hints: Option<Hints>,
    filter: Option<IdempotencyFilter>,
    rule: Rule,
    control: Option<QueueControl>,
    holds: bool,
}

impl QueueListener {
    /// Creates a listener of this queue.
    ///
    /// # Errors
    /// If a setting breaks a rule, or the queue lacks a capability that the configuration requires.
    pub fn new(queue: Arc<dyn Queue>, config: QueueListenerConfig) -> Result<Self, ConfigError> {
        Self::builder(queue, config).build()
    }

    /// Creates a builder of a listener of this queue.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CQueueListener%3E): `level`,
    /// `source`, `order`, `notifier`, `idempotency_filter`, `control`, `scaling`.
    pub fn builder(queue: Arc<dyn Queue>, config: QueueListenerConfig) -> Builder<Self> {
        Builder::new(QueueListenerSpec {
            queues: vec![(queue, Level::default())],
            order: PriorityOrder::default(),
            config,
            hints: None,
            filter: None,
            rule: Arc::new(tasks_by_depth),
            control: None,
            holds: false,
        })
    }
}

impl Builder<QueueListener> {
    /// Sets the priority and weight of the first queue, if there are several.
    pub fn level(mut self, level: Level) -> Self {
        if let Some((_, first)) = self.spec.queues.first_mut() {
            *first = level;
        }
        self
    }

    /// Adds another queue to receive from.
    pub fn source(mut self, queue: Arc<dyn Queue>, level: Level) -> Self {
        self.spec.queues.push((queue, level));
        self
    }

    /// Sets the order in which several queues are polled. Strict by default.
    pub fn order(mut self, order: PriorityOrder) -> Self {
        self.spec.order = order;
        self
    }

    /// Wakes the listener by notices of this topic. Publish a notice after each `send`, or send
    /// through an [`AnnouncingQueue`](crate::queue::AnnouncingQueue).
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>, topic: impl Into<Name>) -> Self {
        self.spec.hints = Some(Hints { notifier, topic: topic.into() });
        self
    }

    /// Skips messages that were handled before, by this filter.
    pub fn idempotency_filter(mut self, filter: IdempotencyFilter) -> Self {
        self.spec.filter = Some(filter);
        self
    }

    /// Obeys this control: it pauses the listener's queues and cancels their messages, from any
    /// process. A run takes no message before its first successful read of the control's records.
    pub fn control(mut self, control: &QueueControl) -> Self {
        self.spec.control = Some(control.clone());
        self
    }

    /// Holds results whose target is full, until there is room or the run stops: their leases are
    /// renewed, and while [`max_tasks`](QueueListenerConfig::max_tasks) messages are held, no more
    /// are received. Without it they are released after a part of their lease.
    pub(crate) fn holds_forwards(mut self) -> Self {
        self.spec.holds = true;
        self
    }

    /// Sets the rule that gives the number of tasks for a number of waiting messages. By default 10
    /// tasks below 100 messages, 50 below 1,000, else 100.
    pub fn scaling(mut self, rule: impl Fn(u64) -> u32 + Send + Sync + 'static) -> Self {
        self.spec.rule = Arc::new(rule);
        self
    }
}

impl Component for QueueListener {
    type Built = Result<Self, ConfigError>;
    type Spec = QueueListenerSpec;

    fn assemble(spec: QueueListenerSpec, common: Common) -> Self::Built {
        let QueueListenerSpec { queues, order, config, hints, filter, rule, control, holds } = spec;
        let (entropy, Common { name, clock, hooks, .. }) = (common.entropy(), common);
        config.check()?;
        config.check_wakes(hints.is_some())?;
        require(
            queues.iter().all(|(_, level)| level.weight > 0),
            "weight",
            "must be at least 1: a queue of weight 0 would never be polled",
        )?;
        if let Some(filter) = &filter {
            filter.store().capabilities().require(Capability::TimeToLive).map_err(|lacks| lacks.refuse("filter"))?;
            require(!filter.window().is_zero(), "window", "must be longer than zero")?;
        }
        let control = control.map(|control| {
            Box::new(ControlState::new(control, queues.iter().map(|(queue, _)| partition(&**queue)).collect()))
        });
        let source = |(queue, level): (Arc<dyn Queue>, Level)| Source {
            level,
            most: queue.capabilities().max_batch().max(1),
            has_dead_letters: queue.dead_letters().is_some(),
            wakes: queue.capabilities().has(Capability::Push),
            queue,
        };
        Ok(Self(Arc::new(Inner {
            sources: queues.into_iter().map(source).collect(),
            order,
            config: Live::new(config),
            clock,
            entropy,
            hints,
            filter,
            rule,
            name,
            counters: Counters::default(),
            unsettled: Default::default(),
            paused: watch::Sender::new(Paused { is_unknown: control.is_some(), ..Paused::default() }),
            control,
            holds,
            runs: Runs::default(),
            events: hooks.events(),
        })))
    }
}

impl HasName for QueueListener {}
impl HasEntropy for QueueListener {}
impl HasEvents<QueueListenerEvent> for QueueListener {}
