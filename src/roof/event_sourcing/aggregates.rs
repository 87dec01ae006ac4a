//! The component that loads aggregates, and executes their commands.
use std::{
    any::Any,
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
};

use bytes::Bytes;
use quick_cache::sync::Cache;

use super::{
    aggregate::{Aggregate, ExecuteError, Executed},
    codec::EventCodec,
    commit::{self, Commit, Expected},
    config::AggregateConfig,
    decide::{Decider, Known, Order, Reply},
    error::{Cause, CommitError},
    event::AggregateEvent,
    handle::Replies,
    store::EventStore,
    stored::{self, Snapshot, StoredEvent},
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, debug_fields},
    caught::panic_text,
    codec::Codec,
    config::ConfigError,
    entropy::Entropy,
    gather::Gather,
    observe::{Events, Subscription},
    port::{PortError, PortErrorKind},
    queue::Message,
    sync::Mutex,
    time::Clock,
};

/// Loads aggregates of one type from a log, and executes their commands. The
/// [module's page](super) has an example.
///
/// Clones share their state.
pub struct AggregateStore<A: Aggregate> {
    pub(super) inner: Arc<AggregateInner<A>>,
    slots: Arc<Slots<A>>,
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
    sends: Option<Sends<A>>,
    pub(super) replies: Option<Replies>,
    pub(super) config: AggregateConfig,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    events: Events<AggregateEvent>,
}

/// The messages of an event: the stream, the event, and queues with messages.
type Sends<A> = Arc<dyn Fn(&str, &<A as Aggregate>::Event) -> Vec<(String, Message)> + Send + Sync>;

/// An aggregate in this process: its commands wait here for each other.
type Slot<A> = Arc<Commands<A>>;
type Commands<A> = Gather<Order<A>, Reply<A>>;

/// The aggregates of this process.
struct Slots<A: Aggregate> {
    /// Those that were used last, which keep their states.
    cached: Cache<String, Slot<A>>,
    /// Those that are in use or cached: two slots of one aggregate would conflict with each other.
    live: Mutex<HashMap<String, Weak<Commands<A>>>>,
}

impl<A: Aggregate> Slots<A> {
    fn new(cached: usize) -> Self {
        Self { cached: Cache::new(cached), live: Mutex::default() }
    }

    fn get(&self, stream: &str, new: impl FnOnce() -> Slot<A>) -> Slot<A> {
        if let Some(slot) = self.cached.get(stream) {
            return slot;
        }
        let slot = {
            let mut live = self.live.lock();
            let slot = live.get(stream).and_then(Weak::upgrade).unwrap_or_else(new);
            live.insert(stream.to_owned(), Arc::downgrade(&slot));
            if live.len() > 2 * self.cached.len() + 64 {
                live.retain(|_, slot| slot.strong_count() > 0);
            }
            slot
        };
        self.cached.insert(stream.to_owned(), slot.clone());
        slot
    }
}

/// Arguments of a store of aggregates, beside clock and entropy.
pub struct AggregateStoreSpec<A: Aggregate> {
    log: EventStore,
    codec: EventCodec<A::Event>,
    snapshots: Option<(Codec<A>, u32)>,
    sends: Option<Sends<A>>,
    pub(super) replies: Option<Replies>,
    config: AggregateConfig,
}

impl<A: Aggregate> Builder<AggregateStore<A>> {
    /// Writes snapshots by this codec, in the commit that crosses
    /// [`snapshot_every`](AggregateConfig::snapshot_every). One of another schema is not read: give
    /// each type of aggregate over the same streams schemas of its own.
    pub fn snapshots(mut self, codec: Codec<A>, schema: u32) -> Self {
        self.spec.snapshots = Some((codec, schema));
        self
    }

    /// Sends messages with each event that [`execute`](AggregateStore::execute),
    /// [`add`](AggregateStore::add) or [`handle`](AggregateStore::handle) appends, in its commit:
    /// `messages` gets the stream and the event, and returns queues with messages. Pure: after a
    /// conflict it is called again.
    pub fn messages(
        mut self,
        messages: impl Fn(&str, &A::Event) -> Vec<(String, Message)> + Send + Sync + 'static,
    ) -> Self {
        self.spec.sends = Some(Arc::new(messages));
        self
    }
}

impl<A: Aggregate> Component for AggregateStore<A> {
    type Built = Result<Self, ConfigError>;
    type Spec = AggregateStoreSpec<A>;

    fn assemble(spec: AggregateStoreSpec<A>, common: Common) -> Self::Built {
        let AggregateStoreSpec { log, codec, snapshots, sends, replies, config } = spec;
        config.check()?;
        codec.check()?;
        let (clock, entropy, events) = (common.clock.clone(), common.entropy(), common.hooks.events());
        let slots = Arc::new(Slots::new(config.cached_states as usize));
        Ok(Self {
            inner: Arc::new(AggregateInner { log, codec, snapshots, sends, replies, config, clock, entropy, events }),
            slots,
        })
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
    /// `messages`, `replies`, `snapshots`.
    pub fn builder(log: EventStore, codec: EventCodec<A::Event>, config: AggregateConfig) -> Builder<Self> {
        Builder::new(AggregateStoreSpec { log, codec, snapshots: None, sends: None, replies: None, config })
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
    /// [`Store`](ExecuteError::Store) if the store failed, an event cannot be decoded or code of
    /// the aggregate panicked; with `Full` if
    /// [`max_pending`](super::EventStoreConfig::max_pending) commits and commands are under way.
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
        let (inner, id) = (&self.inner, command_id.into());
        // A command that the aggregate rejects asks for its id, too.
        let names = commit::check_names(&inner.log.inner.can, &id, stream);
        names.map_err(|error| ExecuteError::Refused(CommitError::Invalid(error)))?;
        let _pending = inner.log.inner.enter().map_err(ExecuteError::Store)?;
        let slot = self.slots.get(stream, || {
            let most = inner.config.max_group as usize;
            let decider = Decider::new(inner.clone(), stream.to_owned());
            Arc::new(Gather::in_order(most, inner.log.inner.spawner.clone(), decider))
        });
        slot.send(Order { id, command }).await.map_err(ExecuteError::Store)?
    }

    /// Adds a command of an aggregate to a commit: its events, their messages, and the version on
    /// which it was decided. So one commit changes several aggregates, or takes a
    /// [claim](Commit::claim). A command without events adds its version alone.
    ///
    /// A commit whose id was accepted before is answered as
    /// [repeated](super::Committed::is_repeated) by [`commit`](EventStore::commit), also if the
    /// aggregate would reject the command by now. After a
    /// [conflict](super::CommitError::Conflict), begin anew with a new commit. The page has
    /// [an example](super#two-aggregates-in-one-commit). No snapshot is written.
    ///
    /// # Errors
    /// [`Rejected`](ExecuteError::Rejected) by the aggregate, [`Refused`](ExecuteError::Refused) if
    /// a name breaks a rule or an event cannot be encoded, [`Store`](ExecuteError::Store) if the
    /// store failed, an event cannot be decoded or code of the aggregate panicked.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing but the commit, of which nothing was written.
    pub async fn add(
        &self,
        mut commit: Commit,
        stream: &str,
        command: &A::Command,
    ) -> Result<Commit, ExecuteError<A::Error>> {
        let (inner, log) = (&self.inner, &self.inner.log.inner);
        let names = commit::check_names(&log.can, commit.id().unwrap_or(stream), stream);
        names.map_err(|error| ExecuteError::Refused(CommitError::Invalid(error)))?;
        if commit.is_repeated {
            return Ok(commit);
        }
        let known = inner.read(stream, None).await.map_err(ExecuteError::Store)?;
        let decided = catch_unwind(AssertUnwindSafe(|| match known.state.decide(command) {
            Ok(events) if events.is_empty() => Ok(commit.clone().expect(stream, known.version)),
            Ok(events) => inner.add_events(commit.clone(), stream, known.version, &events),
            Err(reason) => Err(ExecuteError::Rejected(reason)),
        }));
        let panicked = |panic: Box<dyn Any + Send>| panicked(&*panic, &format!("a command of {stream:?}"));
        let rejected = match decided.unwrap_or_else(|panic| Err(ExecuteError::Store(panicked(panic)))) {
            Err(ExecuteError::Rejected(reason)) => ExecuteError::Rejected(reason),
            other => return other,
        };
        // A command that was accepted before is no rejection.
        let Some(id) = commit.id() else { return Err(rejected) };
        let first = commit.first_stream().unwrap_or(stream);
        match log.has_accepted(id, first).await {
            Ok(true) => {
                commit.is_repeated = true;
                Ok(commit)
            }
            Ok(false) => Err(rejected),
            Err(error) => Err(ExecuteError::Store(error)),
        }
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

/// Returns the error of a panic in the user's code.
pub(super) fn panicked(panic: &(dyn Any + Send), at: &str) -> PortError {
    let message = format!("events: panicked at {at}: {}", panic_text(panic));
    PortError::new(PortErrorKind::Other, message).with_source(Cause::Panicked)
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
        let (mut known, is_whole) = match known.filter(|known| known.version > 0) {
            Some(known) => self.read_tail(stream, known).await?,
            None => (self.read_snapshot(stream).await?, false),
        };
        let before = known.version;
        if !is_whole {
            self.fold(stream, &mut known, u64::MAX).await?;
        }
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
            events.iter().try_for_each(|stored| self.apply(stream, known, stored))?;
            if is_last {
                break;
            }
        }
        Ok(())
    }

    fn apply(&self, stream: &str, known: &mut Known<A>, stored: &StoredEvent) -> Result<(), PortError> {
        let evolved = catch_unwind(AssertUnwindSafe(|| {
            if let Some(event) = self.codec.decode(&stored.event)? {
                known.state.evolve(&event);
            }
            Ok(())
        }));
        evolved.unwrap_or_else(|panic| Err(panicked(&*panic, &format!("event {} of {stream:?}", stored.version))))?;
        known.version = stored.version;
        Ok(())
    }

    /// Applies the next events behind a state of this process, and returns `true` if these were
    /// all. A state whose last event does not exist, because the store has lost it, is given up.
    async fn read_tail(&self, stream: &str, mut known: Known<A>) -> Result<(Known<A>, bool), PortError> {
        let events = self.log.read(stream, known.version - 1, PAGE).await?;
        let Some((_, behind)) = events.split_first() else { return Ok((self.read_snapshot(stream).await?, false)) };
        behind.iter().try_for_each(|stored| self.apply(stream, &mut known, stored))?;
        Ok((known, events.len() < PAGE))
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

    /// Adds events and their messages to a commit.
    pub(super) fn add_events(
        &self,
        commit: Commit,
        stream: &str,
        version: u64,
        events: &[A::Event],
    ) -> Result<Commit, ExecuteError<A::Error>> {
        let encoded: Result<Vec<_>, PortError> = events.iter().map(|event| self.codec.encode(event)).collect();
        let encoded = encoded.map_err(CommitError::Invalid)?;
        Ok(self.with_messages(commit.append(stream, Expected::Version(version), encoded), stream, events))
    }

    /// Adds the messages of events to their commit.
    fn with_messages(&self, commit: Commit, stream: &str, events: &[A::Event]) -> Commit {
        let Some(sends) = &self.sends else { return commit };
        let messages = events.iter().flat_map(|event| sends(stream, event));
        messages.fold(commit, |commit, (queue, message)| commit.send(queue, message))
    }

    /// Returns the snapshot for a commit that crosses the interval. A state that cannot be encoded,
    /// or is too large for a row, has none: it is folded from its events.
    pub(super) fn snapshot(&self, before: u64, after: &Known<A>) -> Option<Bytes> {
        let every = u64::from(self.config.snapshot_every);
        let (codec, schema) = self.snapshots.as_ref().filter(|_| before / every != after.version / every)?;
        let state = codec.encode(&after.state).ok()?;
        Some(Snapshot { schema: *schema, version: after.version, state: state.into() }.encode())
    }
}
