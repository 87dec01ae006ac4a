//! The component that loads aggregates, and executes their commands.
use std::sync::Arc;

use quick_cache::sync::Cache;

use super::{
    aggregate::{Aggregate, ExecuteError, Executed},
    codec::EventCodec,
    commit::Commit,
    config::AggregateConfig,
    decide::{Decider, Known, Order, Reply},
    event::AggregateEvent,
    store::EventStore,
    stored::{self, Snapshot, StoredEvent},
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, debug_fields},
    codec::Codec,
    config::ConfigError,
    entropy::Entropy,
    gather::Gather,
    observe::{Events, Subscription},
    port::PortError,
    time::Clock,
};

/// Loads aggregates of one type from a log, and executes their commands. The
/// [module's page](super) has an example.
///
/// Clones share their state.
pub struct AggregateStore<A: Aggregate> {
    inner: Arc<AggregateInner<A>>,
    slots: Arc<Cache<String, Slot<A>>>,
}

impl<A: Aggregate> Clone for AggregateStore<A> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), slots: self.slots.clone() }
    }
}

debug_fields!([A: Aggregate] AggregateStore<A>, |this| log: this.inner.log, config: this.inner.config);

pub(super) struct AggregateInner<A: Aggregate> {
    pub(super) log: EventStore,
    pub(super) codec: EventCodec<A::Event>,
    pub(super) snapshots: Option<(Codec<A>, u32)>,
    pub(super) config: AggregateConfig,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    events: Events<AggregateEvent>,
}

/// An aggregate in this process: its commands wait here for each other.
type Slot<A> = Arc<Gather<Order<A>, Reply<A>>>;

/// Arguments of a store of aggregates, beside clock and entropy.
pub struct AggregateStoreSpec<A: Aggregate> {
    log: EventStore,
    codec: EventCodec<A::Event>,
    snapshots: Option<(Codec<A>, u32)>,
    config: AggregateConfig,
}

impl<A: Aggregate> Builder<AggregateStore<A>> {
    /// Writes snapshots by this codec, in the commit that crosses
    /// [`snapshot_every`](AggregateConfig::snapshot_every). One of another schema is not read.
    pub fn snapshots(mut self, codec: Codec<A>, schema: u32) -> Self {
        self.spec.snapshots = Some((codec, schema));
        self
    }
}

impl<A: Aggregate> Component for AggregateStore<A> {
    type Built = Result<Self, ConfigError>;
    type Spec = AggregateStoreSpec<A>;

    fn assemble(spec: AggregateStoreSpec<A>, common: Common) -> Self::Built {
        let AggregateStoreSpec { log, codec, snapshots, config } = spec;
        config.check()?;
        codec.check()?;
        let (clock, entropy, events) = (common.clock.clone(), common.entropy(), common.hooks.events());
        let slots = Arc::new(Cache::new(config.cached_states as usize));
        Ok(Self { inner: Arc::new(AggregateInner { log, codec, snapshots, config, clock, entropy, events }), slots })
    }
}

impl<A: Aggregate> HasEntropy for AggregateStore<A> {}
impl<A: Aggregate> HasEvents<AggregateEvent> for AggregateStore<A> {}

impl<A: Aggregate> AggregateStore<A> {
    /// Creates a store of the aggregates of this type in a log.
    ///
    /// # Errors
    /// If a setting breaks a rule, or the codec has no step from an older schema to the next one.
    pub fn new(log: EventStore, codec: EventCodec<A::Event>, config: AggregateConfig) -> Result<Self, ConfigError> {
        Self::builder(log, codec, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new).
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CAggregateStore%3CA%3E%3E):
    /// `snapshots`.
    pub fn builder(log: EventStore, codec: EventCodec<A::Event>, config: AggregateConfig) -> Builder<Self> {
        Builder::new(AggregateStoreSpec { log, codec, snapshots: None, config })
    }

    /// Executes a command of an aggregate: its events are committed, or it is rejected. A command
    /// id is accepted once within [`remember`](super::EventStoreConfig::remember).
    ///
    /// Commands of one aggregate that meet in this process are decided one after the other, and
    /// committed together. After a conflict with another process the command is decided anew.
    ///
    /// A command without events commits nothing, and its id is not remembered.
    ///
    /// # Errors
    /// [`Rejected`](ExecuteError::Rejected) by the aggregate;
    /// [`Conflict`](ExecuteError::Conflict) after
    /// [`max_attempts`](AggregateConfig::max_attempts); [`Refused`](ExecuteError::Refused) for an
    /// id that was used for another stream, or a commit that breaks a rule;
    /// [`Store`](ExecuteError::Store) if the store failed, or an event cannot be decoded.
    ///
    /// # Cancel safety
    /// If the future is dropped, the command was executed, is executed later, or never. Others do
    /// not notice. Repeat it with the same id to be sure.
    pub async fn execute(
        &self,
        stream: &str,
        command_id: impl Into<String>,
        command: A::Command,
    ) -> Result<Executed, ExecuteError<A::Error>> {
        let inner = &self.inner;
        if !inner.log.inner.spawner.is_there() {
            let message = "events: no runtime to execute the command in";
            return Err(ExecuteError::Store(PortError::new(crate::port::PortErrorKind::Closed, message)));
        }
        let new = || {
            let most = inner.config.max_group as usize;
            let decider = Decider::new(inner.clone(), stream.to_owned());
            Ok::<_, std::convert::Infallible>(Arc::new(Gather::in_order(
                most,
                inner.log.inner.spawner.clone(),
                decider,
            )))
        };
        let Ok(slot) = self.slots.get_or_insert_with(stream, new);
        slot.send(Order { id: command_id.into(), command }).await.map_err(ExecuteError::Store)?
    }

    /// Returns the state of an aggregate and its version, 0 if it has no events.
    ///
    /// # Errors
    /// `Corrupt` or `TooNew` for a row or an event that cannot be decoded; none is skipped. Any
    /// error of the store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn load(&self, stream: &str) -> Result<(A, u64), PortError> {
        let known = self.inner.read(stream, None).await?;
        Ok((known.state, known.version))
    }

    /// Returns the state of an aggregate as of a version; of the last one, if it has fewer events.
    ///
    /// # Errors
    /// Same as [`load`](Self::load).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn load_at(&self, stream: &str, version: u64) -> Result<A, PortError> {
        let mut known = Known::default();
        self.inner.fold(stream, &mut known, version).await?;
        Ok(known.state)
    }

    /// Returns all events of an aggregate with their places, without those that are ignored.
    ///
    /// # Errors
    /// Same as [`load`](Self::load).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn history(&self, stream: &str) -> Result<Vec<(StoredEvent, A::Event)>, PortError> {
        let (mut history, mut after) = (Vec::new(), 0);
        loop {
            let events = self.inner.log.read(stream, after, PAGE).await?;
            let Some(last) = events.last() else { return Ok(history) };
            after = last.version;
            for stored in events {
                if let Some(event) = self.inner.codec.decode(&stored.event)? {
                    history.push((stored, event));
                }
            }
        }
    }

    /// Compares the state that a load returns with the fold of all events. `false` means that a
    /// snapshot is wrong, such as after a change of `evolve` without another schema.
    ///
    /// # Errors
    /// Same as [`load`](Self::load).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn verify(&self, stream: &str) -> Result<bool, PortError>
    where
        A: PartialEq,
    {
        let (state, version) = self.load(stream).await?;
        Ok(self.load_at(stream, version).await? == state)
    }

    /// Returns the log.
    pub fn log(&self) -> &EventStore {
        &self.inner.log
    }

    /// Subscribes to the events that follow.
    pub fn events(&self) -> Subscription<AggregateEvent> {
        self.inner.events.subscribe()
    }
}

/// Events in a page of a load.
const PAGE: usize = 500;
/// Number of events of a load above which it is reported.
const LONG: u64 = 1_000;

impl<A: Aggregate> AggregateInner<A> {
    pub(super) fn send(&self, event: AggregateEvent) {
        self.events.send(Some(&self.log.inner.name), self.clock.now(), || event);
    }

    /// Returns the state, from a known one on, or else from the snapshot.
    pub(super) async fn read(&self, stream: &str, known: Option<Known<A>>) -> Result<Known<A>, PortError> {
        let mut known = match known {
            Some(known) => known,
            None => self.read_snapshot(stream).await?,
        };
        let before = known.version;
        self.fold(stream, &mut known, u64::MAX).await?;
        if known.version - before > LONG {
            let events = known.version - before;
            self.send(AggregateEvent::LongStream { stream: stream.to_owned(), events });
        }
        Ok(known)
    }

    /// Applies the events behind a state, up to a version.
    async fn fold(&self, stream: &str, known: &mut Known<A>, until: u64) -> Result<(), PortError> {
        while known.version < until {
            let left = usize::try_from(until - known.version).unwrap_or(usize::MAX);
            let wanted = left.min(PAGE);
            let events = self.log.read(stream, known.version, wanted).await?;
            let is_last = events.len() < wanted;
            for stored in events {
                if let Some(event) = self.codec.decode(&stored.event)? {
                    known.state.evolve(&event);
                }
                known.version = stored.version;
            }
            if is_last {
                break;
            }
        }
        Ok(())
    }

    async fn read_snapshot(&self, stream: &str) -> Result<Known<A>, PortError> {
        let Some((codec, schema)) = &self.snapshots else { return Ok(Known::default()) };
        let row = stored::snapshot_row(stream);
        let Some((value, _)) = self.log.inner.get(&row).await? else { return Ok(Known::default()) };
        let ignored = |reason: String| {
            self.send(AggregateEvent::SnapshotIgnored { stream: stream.to_owned(), reason });
            Ok(Known::default())
        };
        // The events are the truth: a snapshot that cannot be read costs their fold.
        match Snapshot::decode(&row, value) {
            Ok(snapshot) if snapshot.schema != *schema => {
                ignored(format!("it has schema {}, and this process reads {schema}", snapshot.schema))
            }
            Ok(snapshot) => match codec.decode(&snapshot.state) {
                Ok(state) => Ok(Known { state, version: snapshot.version }),
                Err(error) => ignored(error.to_string()),
            },
            Err(error) => ignored(error.to_string()),
        }
    }

    /// Adds the snapshot to a commit that crosses the interval.
    pub(super) fn with_snapshot(&self, commit: Commit, before: u64, after: &Known<A>) -> Commit {
        let every = u64::from(self.config.snapshot_every);
        let Some((codec, schema)) = &self.snapshots else { return commit };
        if before / every == after.version / every {
            return commit;
        }
        // A state that cannot be encoded, or is too large for a row, is folded from its events.
        match codec.encode(&after.state) {
            Ok(state) if state.len() < self.log.inner.can.max_value() / 2 => {
                commit.snapshot(Snapshot { schema: *schema, version: after.version, state: state.into() }.encode())
            }
            _ => commit,
        }
    }
}
