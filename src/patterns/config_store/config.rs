//! Settings of a configuration store and of its publisher.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, require_some_time, setters};

/// Maximum number of layers.
const MAX_LAYERS: usize = 16;

/// Settings of a [`ConfigStore`](super::ConfigStore).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ConfigStoreConfig {
    /// Interval between two looks at the store, give or take a fifth. 30 s by default, 1 s at
    /// least.
    #[serde(with = "human")]
    pub poll_interval: Duration,
    /// Time limit of one request to the store. 5 s by default.
    #[serde(with = "human")]
    pub call_timeout: Duration,
    /// Maximum size of a document, in bytes. 1 MiB by default.
    pub max_document: usize,
    /// Behaviour of a start that cannot read or use the revision in effect. By default
    /// `last_known_good` if there is a local store, else `fail`.
    pub on_start_failure: Option<OnStartFailure>,
    /// Time for which a process runs well before its revision counts as good. By default 60 s if
    /// there is a local store, else there is no trial.
    #[serde(with = "human::option")]
    pub trial: Option<Duration>,
    /// Number of starts with a revision on trial that end in the death of the process, before the
    /// revision is quarantined. 2 by default.
    pub max_trial_starts: u32,
}

/// Behaviour of a start that cannot read or use the revision in effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnStartFailure {
    /// The process starts with the last revision that passed its trial here.
    LastKnownGood,
    /// The process does not start.
    Fail,
}

impl Default for ConfigStoreConfig {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(30),
            call_timeout: Duration::from_secs(5),
            max_document: 1 << 20,
            on_start_failure: None,
            trial: None,
            max_trial_starts: 2,
        }
    }
}

setters! {
    impl ConfigStoreConfig {
        poll_interval: Duration,
        call_timeout: Duration,
        max_document: usize,
        on_start_failure: Option<OnStartFailure>,
        trial: Option<Duration>,
        max_trial_starts: u32,
    }
}

impl ConfigStoreConfig {
    pub(super) fn check(&self, has_local: bool, layers: &[String]) -> Result<(), ConfigError> {
        require(self.poll_interval >= Duration::from_secs(1), "poll_interval", "must be at least 1 s")?;
        require_some_time(self.call_timeout, "call_timeout")?;
        require(self.max_document >= 1, "max_document", "must be at least 1")?;
        require(self.max_trial_starts >= 1, "max_trial_starts", "must be at least 1")?;
        require(has_local || self.trial.is_none(), "trial", "needs a local store")?;
        if let Some(trial) = self.trial {
            require_some_time(trial, "trial")?;
        }
        let needs_local = self.on_start_failure == Some(OnStartFailure::LastKnownGood);
        require(has_local || !needs_local, "on_start_failure", "needs a local store for `last_known_good`")?;
        check_layers(layers)
    }

    /// Returns the time of a trial, if there are trials.
    pub(super) fn trial_time(&self, has_local: bool) -> Option<Duration> {
        has_local.then(|| self.trial.unwrap_or(Duration::from_secs(60)))
    }

    pub(super) fn takes_last_good(&self, has_local: bool) -> bool {
        has_local && self.on_start_failure != Some(OnStartFailure::Fail)
    }
}

/// Refuses no layers, too many, and a name that is empty or comes twice.
pub(super) fn check_layers(layers: &[String]) -> Result<(), ConfigError> {
    let rule = "must be from 1 to 16 documents, each with a name of its own";
    let is_distinct = layers.iter().enumerate().all(|(i, layer)| !layer.is_empty() && !layers[..i].contains(layer));
    require((1..=MAX_LAYERS).contains(&layers.len()) && is_distinct, "layers", rule)
}

/// Settings of a [`ConfigPublisher`](super::ConfigPublisher).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct PublisherConfig {
    /// Time limit of one request to the store. 5 s by default.
    #[serde(with = "human")]
    pub call_timeout: Duration,
    /// Maximum size of a document, in bytes. 1 MiB by default.
    pub max_document: usize,
    /// Number of revisions that are kept for a rollback and an audit. 100 by default, 2 at least.
    /// Give all publishers of a configuration the same number: the smallest one deletes.
    pub history: usize,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        Self { call_timeout: Duration::from_secs(5), max_document: 1 << 20, history: 100 }
    }
}

setters! {
    impl PublisherConfig {
        call_timeout: Duration,
        max_document: usize,
        history: usize,
    }
}

impl PublisherConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.call_timeout, "call_timeout")?;
        require(self.max_document >= 1, "max_document", "must be at least 1")?;
        // The head lists them all, and each process reads it at each look.
        require((2..=1_000).contains(&self.history), "history", "must be from 2 to 1,000")
    }
}
