//! Building a configuration store, and reading from it.
use std::{fmt, future::Future, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use thiserror::Error;

use super::{
    ConfigStoreConfig, ConfigStoreEvent as Event, Documents, RejectReason, Revision,
    documents::BoxError,
    local::{Kept, LocalRow},
    members::{self, Member},
    revision::Load,
    run::Asked,
    state::Id,
};
use crate::{
    config::{ConfigError, Name, require},
    entropy::Entropy,
    hash::stable_hash,
    notify::Notifier,
    observe::{self, Events, Hooks, Subscription},
    port::Capability,
    revisions::Revisions,
    store::{Store, StoreError},
    sync::{AtomicU64, Mutex},
    time::{Clock, Instant},
};

/// Error of a [`ConfigStore`]. It has no values of a document.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum ConfigStoreError {
    /// The arguments do not fit together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store failed, or has a head in the form of a newer release.
    #[error("the store of the configuration failed: {0}")]
    Store(StoreError),
    /// The local store failed.
    #[error("the local store of the configuration failed: {0}")]
    Local(StoreError),
    /// Nothing has been published under this name.
    #[error("nothing has been published")]
    NothingPublished,
    /// The revision is not taken.
    #[error("revision {number} is not taken: {}", reason.as_str())]
    Rejected {
        /// Number of the revision.
        number: u64,
        /// Reason.
        reason: RejectReason,
        /// Field of the settings, or name of the document, if the loader named one.
        field: Option<String>,
    },
}

/// Settings from documents in a store, with a copy in this process. A clone is the same, and shares
/// the copy. The [module's page](super) states the guarantees.
pub struct ConfigStore<T>(pub(super) Arc<Inner<T>>);

pub(super) struct Inner<T> {
    pub(super) source: Source<T>,
    pub(super) current: ArcSwap<Revision<T>>,
}

/// A source of revisions of documents.
pub(super) struct Source<T> {
    pub(super) name: Name,
    pub(super) config: ConfigStoreConfig,
    pub(super) revisions: Revisions,
    pub(super) layers: Vec<String>,
    pub(super) load: Box<Load<T>>,
    pub(super) local: Option<LocalRow>,
    pub(super) member: Member,
    pub(super) notifier: Option<Arc<dyn Notifier>>,
    pub(super) entropy: Entropy,
    pub(super) clock: Clock,
    pub(super) events: Events<Event>,
    pub(super) kept: Mutex<Kept>,
    pub(super) seen: Mutex<Seen>,
    /// Number of the revision that was in effect for all processes at the last look.
    pub(super) for_all: AtomicU64,
    pub(super) asked: Asked,
    /// Held while a revision is read and taken.
    pub(super) turn: tokio::sync::Mutex<()>,
}

/// The results of the last looks at the store.
#[derive(Default)]
pub(super) struct Seen {
    /// Time of the last look that succeeded.
    pub(super) at: Option<Instant>,
    /// The revision in effect that this process does not take.
    pub(super) rejected: Option<(Id, ConfigStoreError)>,
}

/// State of a [`ConfigStore`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigState {
    /// Number that this process runs.
    pub number: u64,
    /// Time since the last look at the store that succeeded; `None` if none did. One that found a
    /// head, and not its revision, has failed.
    pub age: Option<Duration>,
    /// Number that this process runs, while it is on trial.
    pub on_trial: Option<u64>,
    /// Number of the revision that this process does not take, and the reason.
    pub rejected: Option<(u64, RejectReason)>,
}

impl<T: Send + Sync + 'static> ConfigStore<T> {
    /// Creates a builder of the configuration with this name. `load` makes the settings of the
    /// documents: it parses, merges and checks.
    pub fn builder<E: Into<BoxError>>(
        store: Arc<dyn Store>,
        name: impl Into<Name>,
        load: impl Fn(&Documents) -> Result<T, E> + Send + Sync + 'static,
        config: ConfigStoreConfig,
    ) -> ConfigStoreBuilder<T> {
        ConfigStoreBuilder {
            store,
            name: name.into(),
            load: Box::new(move |documents| load(documents).map_err(Into::into)),
            config,
            layers: Vec::new(),
            notifier: None,
            local: None,
            member: None,
            is_fit: None,
            clock: Clock::default(),
            entropy: Entropy::default(),
            hooks: Hooks::default(),
        }
    }

    /// Returns the revision in effect in this process: an atomic load.
    #[inline]
    pub fn current(&self) -> Arc<Revision<T>> {
        self.0.current.load_full()
    }

    /// Returns the state.
    pub fn state(&self) -> ConfigState {
        let source = &self.0.source;
        let (known, now) = (self.current().known, source.clock.now());
        let number = known.id.number;
        let on_trial = source.kept.lock().trials.is_on_trial(known).then_some(number);
        let seen = source.seen.lock();
        ConfigState { number, age: seen.at.map(|at| now - at), on_trial, rejected: seen.rejection() }
    }

    /// Returns the name of the configuration.
    pub fn name(&self) -> &Name {
        &self.0.source.name
    }

    /// Subscribes to the events from now on. Those of `build` reach the
    /// [hooks](ConfigStoreBuilder::on_event) alone.
    pub fn events(&self) -> Subscription<Event> {
        self.0.source.events.subscribe()
    }
}

impl Seen {
    /// Returns the number that is not taken, and the reason.
    pub(super) fn rejection(&self) -> Option<(u64, RejectReason)> {
        match &self.rejected {
            Some((_, ConfigStoreError::Rejected { number, reason, .. })) => Some((*number, *reason)),
            _ => None,
        }
    }
}

impl<T> Source<T> {
    pub(super) fn tell(&self, event: Event) {
        self.events.send(Some(&self.name), self.clock.now(), || event);
    }
}

impl<T> Clone for ConfigStore<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for ConfigStore<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0.current.load().number();
        f.debug_struct("ConfigStore")
            .field("name", &self.0.source.name)
            .field("number", &number)
            .finish_non_exhaustive()
    }
}

/// The arguments of a configuration store, from [`ConfigStore::builder`].
#[must_use = "a builder builds nothing before `build`"]
pub struct ConfigStoreBuilder<T> {
    store: Arc<dyn Store>,
    name: Name,
    load: Box<Load<T>>,
    config: ConfigStoreConfig,
    layers: Vec<String>,
    notifier: Option<Arc<dyn Notifier>>,
    local: Option<Arc<dyn Store>>,
    member: Option<String>,
    is_fit: Option<Box<dyn Fn() -> bool + Send + Sync>>,
    clock: Clock,
    entropy: Entropy,
    hooks: Hooks,
}

impl<T: Send + Sync + 'static> ConfigStoreBuilder<T> {
    /// Sets the documents that the program reads, which are its layers. The loader sees no other
    /// ones, and none that is missing.
    pub fn layers(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.layers = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the notifier by which changes arrive earlier than by polling.
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>) -> Self {
        self.notifier = Some(notifier);
        self
    }

    /// Sets the store of this process alone: trials and the last good revision are in it. Programs
    /// with other layers have rows of their own there. From then on each end of the process without
    /// an orderly end of [`run`](ConfigStore::run) counts as a death of a revision on trial.
    pub fn local(mut self, store: Arc<dyn Store>) -> Self {
        self.local = Some(store);
        self
    }

    /// Sets the name of this process among those that read the configuration. It takes part in
    /// roll-outs, and is listed by [`ConfigPublisher::members`](super::ConfigPublisher::members) if
    /// the store has times to live and lets the process write.
    pub fn member(mut self, name: impl Into<String>) -> Self {
        self.member = Some(name.into());
        self
    }

    /// Sets the health check of trials and roll-outs: a trial passes after a time in which it
    /// always returns `true`. [`Health::is_fit`](crate::health::Health::is_fit) is one.
    pub fn health_check(mut self, is_fit: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.is_fit = Some(Box::new(is_fit));
        self
    }

    /// Sets the clock. tokio's by default.
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// Sets the source of randomness for delays. Seeded by the system by default.
    pub fn entropy(mut self, entropy: &Entropy) -> Self {
        self.entropy = entropy.clone();
        self
    }

    /// Calls `hook` with each event, where it is sent, as
    /// [`Builder::on_event`](crate::Builder::on_event).
    pub fn on_event(mut self, hook: impl Fn(&observe::Event<Event>) + Send + Sync + 'static) -> Self {
        self.hooks.add(hook);
        self
    }

    /// Reads the revision in effect, and builds.
    ///
    /// # Errors
    /// A setting violates its rule, a store lacks a capability or fails, nothing has been
    /// published, or the revision is not taken, and
    /// [`on_start_failure`](ConfigStoreConfig::on_start_failure) has nothing better.
    ///
    /// # Cancel safety
    /// A dropped build may count as a death of the process while the revision is on trial.
    pub fn build(self) -> impl Future<Output = Result<ConfigStore<T>, ConfigStoreError>> + Send {
        async move {
            let source = self.assemble()?;
            let first = source.start().await?;
            Ok(ConfigStore(Arc::new(Inner { source, current: ArcSwap::from_pointee(first) })))
        }
    }

    fn assemble(self) -> Result<Source<T>, ConfigError> {
        let Self { store, name, load, config, layers, notifier, local, member, is_fit, clock, entropy, hooks } = self;
        config.check(local.is_some(), &layers)?;
        let can = store.capabilities();
        can.require(Capability::Linearizable).map_err(|lacks| lacks.refuse("store"))?;
        require(!name.as_str().is_empty(), "name", "must not be empty")?;
        let is_named = member.as_ref().is_none_or(|member| !member.is_empty());
        require(is_named, "member", "must not be empty")?;
        let life = entropy.next_u64();
        let member = Member::new(&store, (&clock, config.call_timeout), &name, member, is_fit, life);
        let revisions = members::revisions(store, &clock, config.call_timeout, &name);
        let longest = revisions.longest_key().max(member.longest_key());
        require(longest <= can.max_key(), "name", "must not be longer than the store's keys")?;
        let local = match local {
            None => None,
            Some(store) => {
                let can = store.capabilities();
                can.require(Capability::Durable).map_err(|lacks| lacks.refuse("local"))?;
                let partition = format!("config-local {name}");
                // Programs with other layers have trials and good revisions of their own.
                let layers_of = stable_hash(layers.join("\0").as_bytes());
                let row = format!("{layers_of:016x} {}", member.name().unwrap_or("process"));
                let longest = partition.len().max(row.len());
                require(longest <= can.max_key(), "local", "must not have keys longer than the local store's")?;
                let writing = tokio::sync::Mutex::default();
                Some(LocalRow { store, clock: clock.clone(), limit: config.call_timeout, partition, row, writing })
            }
        };
        Ok(Source {
            name,
            config,
            revisions,
            layers,
            load,
            local,
            member,
            notifier,
            entropy,
            clock,
            events: hooks.events(),
            kept: Mutex::default(),
            seen: Mutex::default(),
            for_all: AtomicU64::new(0),
            asked: Asked::default(),
            turn: tokio::sync::Mutex::default(),
        })
    }
}

impl<T> fmt::Debug for ConfigStoreBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigStoreBuilder")
            .field("name", &self.name)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
