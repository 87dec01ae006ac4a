//! Building a supervisor, and what it shows of its children.
use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::sync::mpsc::UnboundedSender;

use super::{
    Child, ChildPhase, SupervisorConfig, SupervisorEvent as Event, Unstopped, checkpoint::CheckpointRow,
    context::Numbered, lives::Lives, meter::Meter, state::Machine,
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, HasName},
    call::{Explanation, Layer},
    config::{ConfigError, Name, require},
    entropy::Entropy,
    in_progress::InProgress,
    observe::{Events, Subscription},
    outcome::PolicyKind,
    port::{BoxFuture, Capability},
    spawn::Spawner,
    store::Store,
    sync::Mutex,
    time::{Clock, Instant},
};

/// Number of restarts of nested supervisors, multiplied, above which [`Supervisor::explain`] warns.
const MANY: u64 = 25;

/// Runs the long-lived tasks of a process. The [module's page](super) states the guarantees.
///
/// A clone is the same supervisor. One of them may run at a time.
#[derive(Clone)]
pub struct Supervisor(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) name: Option<Name>,
    pub(super) config: SupervisorConfig,
    pub(super) children: Vec<Child>,
    pub(super) checkpoints: Option<Arc<dyn Store>>,
    pub(super) spawner: Spawner,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    pub(super) meters: Vec<Arc<Meter>>,
    pub(super) lives: Vec<Lives>,
    pub(super) states: Mutex<Vec<Seen>>,
    pub(super) running: InProgress,
    /// The way to the current run.
    pub(super) orders: Mutex<Option<UnboundedSender<Numbered>>>,
    pub(super) events: Events<Event>,
}

/// The state of a child when the machine last moved.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    phase: ChildPhase,
    instance: u64,
    restarts: u64,
    cause: Option<String>,
}

/// The state of one child.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChildState {
    /// Name of the child.
    pub name: Name,
    /// Phase of its current or last instance.
    pub phase: ChildPhase,
    /// Number of its current or last instance; 0 before the first start.
    pub instance: u64,
    /// Number of its failures that led to a restart.
    pub restarts: u64,
    /// Text of its last failure.
    pub last_failure: Option<String>,
    /// Number of polls of all instances.
    pub polls: u64,
    /// Total time of these polls.
    pub poll_time: Duration,
    /// Duration of the longest poll.
    pub longest_poll: Duration,
}

/// A child that did not stop.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnstoppedChild {
    /// Name of the child. That of a nested one follows the name of its supervisor's child, as in
    /// `feeds/prices`.
    pub child: String,
    /// The way in which it was left.
    pub how: Unstopped,
}

impl Supervisor {
    /// Creates a builder. At least one child must be added.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CSupervisor%3E): `child`,
    /// `checkpoints`, `spawner`.
    pub fn builder(config: SupervisorConfig) -> Builder<Self> {
        let (children, spawner) = (Vec::new(), Spawner::default());
        Builder::new(SupervisorSpec { config, children, checkpoints: None, spawner })
    }

    /// Returns the name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_ref().map(Name::as_str)
    }

    /// Returns the configuration.
    pub fn config(&self) -> SupervisorConfig {
        self.0.config
    }

    /// Subscribes to the events.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    /// Returns the states of all children, in the order of their start.
    pub fn state(&self) -> Vec<ChildState> {
        let mut seen = self.0.states.lock().clone();
        if self.0.running.get() == 0 {
            // A run that ended or was dropped may have left instances behind, and nothing else runs.
            for (seen, lives) in seen.iter_mut().zip(&self.0.lives).filter(|(seen, _)| seen.instance > 0) {
                seen.phase = if lives.is_any() { ChildPhase::Dropping } else { ChildPhase::Finished };
            }
        }
        let states = self.0.children.iter().zip(seen).zip(&self.0.meters).map(|((child, seen), meter)| ChildState {
            name: child.rules().name.clone(),
            phase: seen.phase,
            instance: seen.instance,
            restarts: seen.restarts,
            last_failure: seen.cause,
            polls: meter.polls(),
            poll_time: meter.busy(),
            longest_poll: meter.longest(),
        });
        states.collect()
    }

    /// Describes the supervisor, with warnings about its settings.
    ///
    /// ```
    /// use steadfast::supervisor::{Child, Supervisor, SupervisorConfig};
    ///
    /// # fn main() -> Result<(), steadfast::ConfigError> {
    /// let feed = Child::new("feed", |_| async { Ok::<_, String>(()) });
    /// let often = SupervisorConfig::default().max_restarts(6);
    /// let feeds = Supervisor::builder(often).child(feed).build()?;
    /// let all = Supervisor::builder(often).child(Child::supervisor("feeds", feeds)).build()?;
    /// assert!(all.explain().warnings()[0].contains("36 restarts"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn explain(&self) -> Explanation {
        let config = &self.0.config;
        let names: Vec<_> = self.0.children.iter().map(Child::name).collect();
        let settings = format!(
            "{}: {}; {} restarts in {:?}, after {:?} to {:?}; stops in {:?}",
            config.strategy.as_str(),
            names.join(", "),
            config.max_restarts,
            config.restart_window,
            config.backoff.base,
            config.backoff.cap,
            config.shutdown_timeout,
        );
        let mut layer = Layer::new(PolicyKind::Custom("supervisor"), self.0.name.clone(), settings);
        for nested in self.0.children.iter().filter(|child| child.nested().is_some() && child.rules().counts()) {
            let budget = nested.nested().map_or(1, Supervisor::budget);
            let product = u64::from(config.max_restarts).saturating_mul(budget);
            if product > MANY {
                let name = nested.name();
                layer = layer.with_warning(format!(
                    "the budgets of {name} and of its supervisor multiply: up to {product} restarts before an escalation",
                ));
            }
        }
        let counted = self.0.children.iter().filter(|child| child.rules().counts()).count();
        if (config.max_restarts as usize) < counted {
            layer = layer.with_warning(format!(
                "{counted} children share a budget of {}: one fault that all of them meet stops all",
                config.max_restarts
            ));
        }
        let mut explanation = Explanation::default();
        explanation.push(layer);
        explanation
    }

    /// Returns the names of the children of which an instance lives, with those of nested ones.
    pub(super) fn living(&self) -> Vec<String> {
        let mut names = Vec::new();
        for (child, lives) in self.0.children.iter().zip(&self.0.lives) {
            if lives.is_any() {
                names.push(child.name().to_owned());
            }
            let nested = child.nested().map(Self::living).unwrap_or_default();
            names.extend(nested.into_iter().map(|name| format!("{}/{name}", child.name())));
        }
        names
    }

    /// Returns the names of supervisors that have checkpoints: its own, and those of nested ones.
    fn checkpointed(&self) -> Vec<Name> {
        let nested = self.0.children.iter().filter_map(Child::nested).flat_map(Self::checkpointed);
        nested.chain(self.0.checkpoints.as_ref().and(self.0.name.clone())).collect()
    }

    /// Returns the largest number of restarts before an escalation.
    fn budget(&self) -> u64 {
        let counted = self.0.children.iter().filter(|child| child.rules().counts());
        let nested = counted.filter_map(Child::nested).map(Self::budget).max();
        u64::from(self.0.config.max_restarts).saturating_mul(nested.unwrap_or(1))
    }
}

impl Inner {
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Sends the events of the machine, and shows its state.
    pub(super) fn show(&self, machine: &mut Machine) {
        let unseen = machine.slots.take_unseen();
        let mut states = self.states.lock();
        for child in unseen {
            let (seen, slot) = (&mut states[child], &machine.slots[child]);
            (seen.phase, seen.instance, seen.restarts) = (slot.phase, slot.instance, slot.restarts);
            if seen.cause.as_ref() != slot.causes.back() {
                seen.cause = slot.causes.back().cloned();
            }
        }
        drop(states);
        let now = self.now();
        for event in machine.events.drain(..) {
            self.events.send(self.name.as_ref(), now, || event);
        }
    }

    /// Returns the row of a child's checkpoint, for a new instance.
    pub(super) fn checkpoint(&self, child: &Child) -> Option<CheckpointRow> {
        let key = (partition(self.name.as_ref()), child.name().to_owned());
        let timing = (self.clock.clone(), self.config.call_timeout);
        Some(CheckpointRow::new(self.checkpoints.clone()?, timing, key, self.entropy.next_u64()))
    }
}

fn partition(name: Option<&Name>) -> String {
    format!("supervisor {}", name.map_or("", Name::as_str))
}

/// Arguments of a supervisor, beside name, clock and entropy.
pub struct SupervisorSpec {
    config: SupervisorConfig,
    children: Vec<Child>,
    checkpoints: Option<Arc<dyn Store>>,
    spawner: Spawner,
}

impl Builder<Supervisor> {
    /// Adds a child. Children are started in the order in which they are added, and stopped in the
    /// reverse order.
    pub fn child(mut self, child: Child) -> Self {
        self.spec.children.push(child);
        self
    }

    /// Sets the store of checkpoints. The supervisor needs a name then, which its rows have.
    pub fn checkpoints(mut self, store: Arc<dyn Store>) -> Self {
        self.spec.checkpoints = Some(store);
        self
    }

    /// Sets the function that spawns the task of each child, such as that of a second runtime for
    /// children that compute. The current tokio runtime by default.
    pub fn spawner(mut self, spawn: impl Fn(BoxFuture<'static, ()>) + Send + Sync + 'static) -> Self {
        self.spec.spawner = Spawner::own(spawn);
        self
    }
}

impl Component for Supervisor {
    type Built = Result<Self, ConfigError>;
    type Spec = SupervisorSpec;

    fn assemble(spec: SupervisorSpec, common: Common) -> Self::Built {
        let SupervisorSpec { config, children, checkpoints, spawner } = spec;
        config.check()?;
        require(!children.is_empty(), "child", "must be added at least once")?;
        let mut names = HashSet::new();
        for child in &children {
            child.check().map_err(|e| e.within(child.name()))?;
            if !names.insert(child.name()) {
                return Err(ConfigError::new("child", format!("must not have the name `{}` twice", child.name())));
            }
        }
        if let Some(store) = &checkpoints {
            let can = store.capabilities();
            can.require(Capability::Linearizable).map_err(|lacks| lacks.refuse("checkpoints"))?;
            require(common.name.is_some(), "name", "must be set for checkpoints")?;
            let longest = names.iter().map(|name| name.len()).max().unwrap_or_default();
            let longest = longest.max(partition(common.name.as_ref()).len());
            require(longest <= can.max_key(), "name", "must not be longer than the store's keys")?;
        }
        let owners = children.iter().filter_map(Child::nested).flat_map(Supervisor::checkpointed);
        let owners = owners.chain(checkpoints.as_ref().and(common.name.clone()));
        let mut rows = HashSet::new();
        for name in owners {
            if !rows.insert(name.clone()) {
                let rule = format!("must not be that of two supervisors with checkpoints: `{name}`");
                return Err(ConfigError::new("name", rule));
            }
        }
        let entropy = common.entropy();
        let seen = Seen { phase: ChildPhase::Waiting, instance: 0, restarts: 0, cause: None };
        Ok(Self(Arc::new(Inner {
            name: common.name,
            config,
            meters: children.iter().map(|_| Arc::default()).collect(),
            lives: children.iter().map(|_| Lives::default()).collect(),
            states: Mutex::new(vec![seen; children.len()]),
            children,
            checkpoints,
            spawner,
            clock: common.clock,
            entropy,
            running: InProgress::default(),
            orders: Mutex::default(),
            events: common.hooks.events(),
        })))
    }
}

impl HasName for Supervisor {}
impl HasEntropy for Supervisor {}
impl HasEvents<Event> for Supervisor {}

crate::build::debug_fields!(Supervisor, |this| name: this.0.name, children: this.0.children);
