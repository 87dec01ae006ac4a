//! The processor, and its builder.
use std::{collections::BTreeMap, sync::Arc, sync::atomic::AtomicBool, time::Duration};

use super::{StreamProcessorConfig, StreamProcessorEvent as Event, wake_ups::Holdings};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents},
    config::{ConfigError, Effect, Live, Name, Reconfigure, require},
    entropy::Entropy,
    hash::stable_hash,
    leader_election::{LeaderElection, LeaderElectionEvent},
    lease::Lease,
    notify::Notifier,
    observe::{Events, Subscription},
    port::{Capability, PortErrorKind},
    queue::Queue,
    store::Store,
    stream::Topic,
    sync::Mutex,
    time::Clock,
};

/// One member of a group that processes the events of a topic. The [room's page](crate::stream)
/// has an example.
///
/// A clone is the same member and shares its state; one clone runs at a time.
#[derive(Clone)]
pub struct StreamProcessor(pub(super) Arc<ProcessorCore>);

pub(super) struct ProcessorCore {
    pub(super) topic: Arc<dyn Topic>,
    /// Hash of the topic's identity.
    pub(super) topic_hash: u64,
    pub(super) group: Name,
    pub(super) store: Arc<dyn Store>,
    /// The partition of the store with checkpoints and members.
    pub(super) partition: String,
    pub(super) dead_letters: Option<Arc<dyn Queue>>,
    pub(super) config: Live<StreamProcessorConfig>,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    pub(super) events: Events<Event>,
    /// The id of this member, with a random number.
    pub(super) member: String,
    pub(super) is_running: AtomicBool,
    /// The partitions that this member owns.
    pub(super) holdings: Holdings,
    pub(super) elections: Elections,
}

/// The elections of the partitions' owners.
pub(super) struct Elections {
    common: Common,
    leases: Arc<dyn Lease>,
    notifier: Option<Arc<dyn Notifier>>,
    by_partition: Mutex<BTreeMap<u16, LeaderElection>>,
}

impl Elections {
    pub(super) fn notifier(&self) -> Option<&Arc<dyn Notifier>> {
        self.notifier.as_ref()
    }
}

/// Arguments of a processor, beside clock and entropy.
pub struct StreamProcessorSpec {
    topic: Arc<dyn Topic>,
    group: Name,
    leases: Arc<dyn Lease>,
    store: Arc<dyn Store>,
    config: StreamProcessorConfig,
    member: String,
    dead_letters: Option<Arc<dyn Queue>>,
    notifier: Option<Arc<dyn Notifier>>,
}

impl Builder<StreamProcessor> {
    /// Sets the member's id, such as the name of a host or pod.
    ///
    /// Members with the same id are still told apart, by a random number that is added to each.
    pub fn member(mut self, id: impl Into<String>) -> Self {
        self.spec.member = id.into();
        self
    }

    /// Sets the queue that receives events whose attempts are used up. Without it their partition
    /// halts.
    pub fn dead_letters(mut self, queue: Arc<dyn Queue>) -> Self {
        self.spec.dead_letters = Some(queue);
        self
    }

    /// Sets a notifier. With it an owner learns at once of new events in a
    /// [`StoreTopic`](crate::stream::StoreTopic) whose producers have it too, and of a request to
    /// resign, and a successor that a partition is free; without it, at the next poll and renewal.
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>) -> Self {
        self.spec.notifier = Some(notifier);
        self
    }
}

impl Component for StreamProcessor {
    type Built = Result<Self, ConfigError>;
    type Spec = StreamProcessorSpec;

    fn assemble(spec: StreamProcessorSpec, common: Common) -> Self::Built {
        let StreamProcessorSpec { topic, group, leases, store, config, member, dead_letters, notifier } = spec;
        config.check()?;
        require(!group.as_str().is_empty(), "group", "must not be empty")?;
        // The name of the topic follows it, which may contain one.
        require(!group.as_str().contains('/'), "group", "must not contain `/`")?;
        require(!member.is_empty(), "member", "must not be empty")?;
        let can = store.capabilities();
        can.require(Capability::Fencing).map_err(|lacks| lacks.refuse("checkpoints"))?;
        can.require(Capability::Linearizable).map_err(|lacks| lacks.refuse("checkpoints"))?;
        if let Some(queue) = &dead_letters {
            // An event is sent again if its owner dies before its checkpoint.
            queue.capabilities().require(Capability::Deduplication).map_err(|lacks| lacks.refuse("dead_letters"))?;
        }
        let partition = format!("stream-group/{group}/{}", topic.name());
        let common = Common { entropy: Some(common.entropy()), name: None, ..common };
        let entropy = common.entropy();
        let member = format!("{member}#{:016x}", entropy.next_u64());
        let longest = partition.len().max(member.len() + 2);
        require(longest <= can.max_key(), "group", "must not be longer than the store can hold, nor the member's id")?;
        // Election names have the same limit.
        let last = format!("{partition}/{}", topic.partitions());
        require(last.len() <= leases.capabilities().max_key(), "group", "must not be longer than the leases can hold")?;
        let processor = Self(Arc::new(ProcessorCore {
            topic_hash: stable_hash(topic.identity().as_bytes()),
            topic,
            group,
            store,
            partition,
            dead_letters,
            config: Live::new(config),
            clock: common.clock.clone(),
            entropy,
            events: common.hooks.events(),
            member,
            is_running: AtomicBool::new(false),
            holdings: Holdings::default(),
            elections: Elections { common, leases, notifier, by_partition: Mutex::default() },
        }));
        // Refuses settings of the election now.
        processor.0.election(0)?;
        Ok(processor)
    }
}

impl HasEntropy for StreamProcessor {}
impl HasEvents<Event> for StreamProcessor {}
impl HasEvents<LeaderElectionEvent> for StreamProcessor {}

impl StreamProcessor {
    /// Creates a member of a group that processes a topic. `leases` has the ownership of its
    /// partitions, and `checkpoints` its progress.
    ///
    /// # Errors
    /// If a setting breaks a rule, or a backend lacks a capability: the store
    /// [`Fencing`](Capability::Fencing) or [`Linearizable`](Capability::Linearizable), the leases
    /// `Fencing`.
    pub fn new(
        topic: impl Topic + 'static,
        group: impl Into<Name>,
        leases: Arc<dyn Lease>,
        checkpoints: Arc<dyn Store>,
        config: StreamProcessorConfig,
    ) -> Result<Self, ConfigError> {
        Self::builder(topic, group, leases, checkpoints, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new).
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CStreamProcessor%3E): `member`,
    /// `dead_letters`, `notifier`.
    pub fn builder(
        topic: impl Topic + 'static,
        group: impl Into<Name>,
        leases: Arc<dyn Lease>,
        checkpoints: Arc<dyn Store>,
        config: StreamProcessorConfig,
    ) -> Builder<Self> {
        Builder::new(StreamProcessorSpec {
            topic: Arc::new(topic),
            group: group.into(),
            leases,
            store: checkpoints,
            config,
            member: "member".to_owned(),
            dead_letters: None,
            notifier: None,
        })
    }

    /// Returns the queue that receives events whose attempts are used up.
    #[cfg_attr(not(feature = "console"), allow(dead_code, reason = "read by the console alone"))]
    pub(crate) fn dead_letters(&self) -> Option<&Arc<dyn Queue>> {
        self.0.dead_letters.as_ref()
    }

    /// Returns the current settings.
    pub fn config(&self) -> StreamProcessorConfig {
        self.0.config.now()
    }

    /// Replaces the settings while the processor is in use, for all clones. A running hand-over
    /// keeps its times; all other settings hold from their next use on.
    ///
    /// # Errors
    /// If a setting breaks its rule, or if `max_ahead`, `rebalance_interval` or `election` is
    /// another one: these are recorded, or the same in all members. Nothing has changed then.
    pub fn reconfigure(&self, config: StreamProcessorConfig) -> Result<(), ConfigError> {
        if let Effect::Restart(error) = self.validate(&config)? {
            return Err(error);
        }
        self.0.config.replace(config);
        Ok(())
    }

    /// Returns the member's id with its random number.
    pub fn member(&self) -> &str {
        &self.0.member
    }

    /// Subscribes to the events that follow.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }
}

impl Reconfigure<StreamProcessorConfig> for StreamProcessor {
    fn config(&self) -> StreamProcessorConfig {
        self.config()
    }

    fn validate(&self, next: &StreamProcessorConfig) -> Result<Effect, ConfigError> {
        next.check()?;
        Ok(self.config().change_to(next))
    }

    fn apply(&self, next: StreamProcessorConfig) -> Result<(), ConfigError> {
        self.reconfigure(next)
    }
}

impl ProcessorCore {
    pub(super) fn event(&self, event: impl FnOnce() -> Event) {
        self.events.send(Some(&self.group), self.clock.now(), event);
    }

    /// Returns the time limit of one request.
    pub(super) fn call_timeout(&self) -> Duration {
        self.config.load().election.call_timeout
    }

    pub(super) fn failed(&self, call: super::StreamCall, partition: Option<u16>, kind: Option<PortErrorKind>) {
        self.event(|| Event::CallFailed { call, partition, kind });
    }

    /// Returns the election of a partition's owner.
    pub(super) fn election(&self, partition: u16) -> Result<LeaderElection, ConfigError> {
        let Elections { common, leases, notifier, by_partition } = &self.elections;
        if let Some(election) = by_partition.lock().get(&partition) {
            return Ok(election.clone());
        }
        let name = format!("{}/{partition}", self.partition);
        let mut builder = LeaderElection::builder(leases.clone(), name, self.config.load().election);
        builder = builder.candidate(self.member.clone());
        if let Some(notifier) = notifier {
            builder = builder.notifier(notifier.clone());
        }
        builder.common = common.clone();
        let election = builder.build().map_err(|error| error.within("election"))?;
        by_partition.lock().insert(partition, election.clone());
        Ok(election)
    }
}

crate::build::debug_fields!(StreamProcessor, |this|
    topic: this.0.topic, group: this.0.group, member: this.0.member, config: this.0.config
);
