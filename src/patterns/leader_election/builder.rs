//! Building an election.
use std::{fmt, sync::Arc};

use super::{LeaderElection, LeaderElectionConfig, election::ElectionInner, transitions::Transitions};
use crate::{
    config::{ConfigError, Name, require},
    entropy::Entropy,
    lease::Lease,
    notify::Notifier,
    observe::Events,
    port::Capability,
    sync::Mutex,
    time::Clock,
};

/// The builder of a [`LeaderElection`], from [`LeaderElection::builder`].
pub struct LeaderElectionBuilder {
    leases: Arc<dyn Lease>,
    name: Name,
    candidate: String,
    config: LeaderElectionConfig,
    clock: Clock,
    entropy: Option<Entropy>,
    notifier: Option<Arc<dyn Notifier>>,
    health: Option<Health>,
}

/// A callback that returns `true` if the service is fit to lead.
pub(super) type Health = Arc<dyn Fn() -> bool + Send + Sync>;

impl LeaderElectionBuilder {
    pub(super) fn new(leases: Arc<dyn Lease>, name: Name) -> Self {
        Self {
            leases,
            name,
            candidate: "candidate".to_owned(),
            config: LeaderElectionConfig::default(),
            clock: Clock::default(),
            entropy: None,
            notifier: None,
            health: None,
        }
    }

    /// Sets the candidate's id, such as the name of a host or pod.
    ///
    /// Candidates with the same id are still told apart, by a random number that is added to each.
    #[must_use]
    pub fn candidate(mut self, id: impl Into<String>) -> Self {
        self.candidate = id.into();
        self
    }

    /// Sets the configuration.
    #[must_use]
    pub const fn config(mut self, config: LeaderElectionConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the clock. tokio's by default.
    #[must_use]
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// Sets the source of randomness for waits and for the number in the candidate's id. Seeded by
    /// the system by default.
    #[must_use]
    pub fn entropy(mut self, entropy: &Entropy) -> Self {
        self.entropy = Some(entropy.clone());
        self
    }

    /// Sets a notifier. With it a successor learns of a resignation at once, not at its next poll.
    #[must_use]
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>) -> Self {
        self.notifier = Some(notifier);
        self
    }

    /// Sets a health check that runs before each renewal and before each attempt to be elected.
    ///
    /// While it returns `false`, a leader resigns and a candidate waits. It must be quick and must
    /// not block.
    #[must_use]
    pub fn health_check(mut self, is_fit: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.health = Some(Arc::new(is_fit));
        self
    }

    /// Builds the election.
    ///
    /// # Errors
    /// If a setting breaks a rule, or the lease's backend lacks a capability that an election
    /// needs.
    pub fn build(self) -> Result<LeaderElection, ConfigError> {
        self.config.check()?;
        require(!self.name.as_str().is_empty(), "name", "must not be empty")?;
        require(!self.candidate.is_empty(), "candidate", "must not be empty")?;
        let can = self.leases.capabilities();
        can.require(Capability::Linearizable).map_err(|lacks| lacks.refuse("leases"))?;
        can.require(Capability::Fencing).map_err(|lacks| lacks.refuse("leases"))?;
        let entropy = self.entropy.unwrap_or_default();
        let holder = format!("{}#{:016x}", self.candidate, entropy.next_u64());
        let longest = self.name.as_str().len().max(holder.len());
        require(
            longest <= can.max_key(),
            "name",
            "must not be longer than the lease's backend can hold, and neither must `candidate`",
        )?;
        Ok(LeaderElection::new(ElectionInner {
            topic: format!("steadfast/leader/{}", self.name),
            leases: self.leases,
            name: self.name,
            holder,
            config: self.config,
            clock: self.clock,
            entropy,
            notifier: self.notifier,
            health: self.health,
            events: Events::new(),
            transitions: Transitions::new(),
            standing: Mutex::default(),
        }))
    }
}

impl fmt::Debug for LeaderElectionBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderElectionBuilder")
            .field("name", &self.name)
            .field("candidate", &self.candidate)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
