//! Building an election.
use std::sync::Arc;

use super::{
    LeaderElection, LeaderElectionConfig, LeaderElectionEvent, election::ElectionInner, observers::Transitions,
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents},
    config::{ConfigError, Name, require},
    lease::Lease,
    notify::Notifier,
    port::Capability,
    sync::Mutex,
};

/// Arguments of an election, beside name, clock and entropy.
pub struct LeaderElectionSpec {
    leases: Arc<dyn Lease>,
    name: Name,
    config: LeaderElectionConfig,
    candidate: String,
    notifier: Option<Arc<dyn Notifier>>,
    health: Option<Health>,
}

/// A callback that returns `true` if the service is fit to lead.
pub(super) type Health = Arc<dyn Fn() -> bool + Send + Sync>;

impl LeaderElection {
    /// Creates a candidate for the leadership of `name`, which is kept in `leases`.
    ///
    /// # Errors
    /// If a setting breaks a rule, or the lease's backend lacks a capability that an election
    /// needs.
    pub fn new(
        leases: Arc<dyn Lease>,
        name: impl Into<Name>,
        config: LeaderElectionConfig,
    ) -> Result<Self, ConfigError> {
        Self::builder(leases, name, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new).
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CLeaderElection%3E):
    /// `candidate`, `notifier`, `health_check`.
    pub fn builder(leases: Arc<dyn Lease>, name: impl Into<Name>, config: LeaderElectionConfig) -> Builder<Self> {
        let (name, candidate) = (name.into(), "candidate".to_owned());
        Builder::new(LeaderElectionSpec { leases, name, config, candidate, notifier: None, health: None })
    }
}

impl Builder<LeaderElection> {
    /// Sets the candidate's id, such as the name of a host or pod.
    ///
    /// Candidates with the same id are still told apart, by a random number that is added to each.
    pub fn candidate(mut self, id: impl Into<String>) -> Self {
        self.spec.candidate = id.into();
        self
    }

    /// Sets a notifier. With it a successor learns of a resignation at once, not at its next poll.
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>) -> Self {
        self.spec.notifier = Some(notifier);
        self
    }

    /// Sets a health check that runs before each renewal and before each attempt to be elected.
    ///
    /// While it returns `false`, a leader resigns and a candidate waits. It must be quick and must
    /// not block.
    pub fn health_check(mut self, is_fit: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.spec.health = Some(Arc::new(is_fit));
        self
    }
}

impl Component for LeaderElection {
    type Built = Result<Self, ConfigError>;
    type Spec = LeaderElectionSpec;

    fn assemble(spec: LeaderElectionSpec, common: Common) -> Self::Built {
        let LeaderElectionSpec { leases, name, config, candidate, notifier, health } = spec;
        let (entropy, Common { clock, hooks, .. }) = (common.entropy(), common);
        config.check()?;
        require(!name.as_str().is_empty(), "name", "must not be empty")?;
        require(!candidate.is_empty(), "candidate", "must not be empty")?;
        let can = leases.capabilities();
        can.require(Capability::Fencing).map_err(|lacks| lacks.refuse("leases"))?;
        let holder = format!("{}#{:016x}", candidate, entropy.next_u64());
        let longest = name.as_str().len().max(holder.len());
        require(
            longest <= can.max_key(),
            "name",
            "must not be longer than the lease's backend can hold, and neither must `candidate`",
        )?;
        Ok(Self(Arc::new(ElectionInner {
            topic: format!("steadfast/leader/{}", name),
            leases,
            name,
            holder,
            config,
            clock,
            entropy,
            notifier,
            health,
            events: hooks.events(),
            transitions: Transitions::new(),
            standing: Mutex::default(),
        })))
    }
}

impl HasEntropy for LeaderElection {}
impl HasEvents<LeaderElectionEvent> for LeaderElection {}
