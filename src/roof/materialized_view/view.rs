//! The view: its component, and its reads.
use std::{
    collections::BTreeSet,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::try_join_all;
use tokio::sync::Notify;

use super::{
    AsOf, Projection, SourceCodec, ViewConfig, ViewError, ViewEvent,
    source::{ReadPage, Source, hash_of},
    state::{Checkpoint, Generations, Place},
    stored::{checkpoint_row, rows_of, version_row},
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, debug_fields},
    codec::Codec,
    config::{ConfigError, Name},
    entropy::Entropy,
    event_sourcing::Token,
    notify::{Hints, Notifier},
    observe::{Events, Subscription},
    port::{AskError, Capabilities, Capability, PortError, PortErrorKind, ask},
    race::race,
    store::{Scan, Store, StoreError, Version},
    stream::{Bounds, Position, Read, Recorded, Topic},
    time::{Clock, Instant},
};

/// A view of topics: rows that a [`Projection`] computes from their events. The [module's
/// page](super) has the details.
///
/// Clones share their state.
pub struct View<P: Projection>(pub(super) Arc<ViewInner<P>>);

impl<P: Projection> Clone for View<P> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

debug_fields!([P: Projection] View<P>, |this| name: this.0.name, config: this.0.config, store: this.0.store);

pub(super) struct ViewInner<P: Projection> {
    pub(super) store: Arc<dyn Store>,
    pub(super) name: Name,
    /// Name of the store's partition.
    pub(super) partition: String,
    pub(super) projection: P,
    pub(super) codec: Codec<P::Row>,
    pub(super) sources: Vec<Source<P::Event>>,
    pub(super) config: ViewConfig,
    pub(super) can: Capabilities,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    pub(super) events: Events<ViewEvent>,
    /// Generation that the last read found served, 0 for none: a guess that saves a request.
    live: AtomicU64,
    /// Wakes waiting reads of this process.
    changed: Notify,
    notifier: Option<Arc<dyn Notifier>>,
    /// Held by the one waiting read that receives for all.
    hints: tokio::sync::Mutex<Hints>,
}

/// Arguments of a view, beside clock and entropy.
pub struct ViewSpec<P: Projection> {
    store: Arc<dyn Store>,
    name: Name,
    projection: P,
    codec: Codec<P::Row>,
    config: ViewConfig,
    sources: Vec<Source<P::Event>>,
    notifier: Option<Arc<dyn Notifier>>,
}

impl<P: Projection> Builder<View<P>> {
    /// Adds a topic: the [topic of a log](crate::event_sourcing::EventStore::topic) with an
    /// [`EventCodec`](crate::event_sourcing::EventCodec), or any other one with a [`Codec`] of its
    /// bodies. Each has a name of its own.
    pub fn source(mut self, topic: impl Topic + 'static, codec: impl Into<SourceCodec<P::Event>>) -> Self {
        self.spec.sources.push(Source::new(Arc::new(topic), codec.into()));
        self
    }

    /// Announces pages through this notifier, so that readers who wait in other processes wait
    /// less. They also poll.
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>) -> Self {
        self.spec.notifier = Some(notifier);
        self
    }
}

impl<P: Projection> Component for View<P> {
    type Built = Result<Self, ConfigError>;
    type Spec = ViewSpec<P>;

    fn assemble(spec: ViewSpec<P>, common: Common) -> Self::Built {
        let ViewSpec { store, name, projection, codec, config, sources, notifier } = spec;
        config.check()?;
        let can = store.capabilities();
        for needed in [Capability::AtomicBatch, Capability::Linearizable] {
            can.require(needed).map_err(|lacks| lacks.refuse("store"))?;
        }
        let partition = format!("view/{name}");
        let is_named = !name.as_str().is_empty() && can.check_key("name", &partition).is_ok();
        if !is_named {
            return Err(ConfigError::new(
                "name",
                format!("must not be empty, nor too long for the store, is {name:?}"),
            ));
        }
        let (mut names, mut identities) = (BTreeSet::new(), BTreeSet::new());
        for source in &sources {
            if !names.insert(source.name.as_str()) || !identities.insert(source.identity.as_str()) {
                return Err(ConfigError::new(
                    "source",
                    format!("must name each topic once, has {} twice", source.name),
                ));
            }
        }
        let (clock, entropy, events) = (common.clock.clone(), common.entropy(), common.hooks.events());
        let (live, changed) = (AtomicU64::new(0), Notify::new());
        let hints = tokio::sync::Mutex::new(Hints::new(Duration::ZERO));
        let inner = ViewInner {
            store,
            name,
            partition,
            projection,
            codec,
            sources,
            config,
            can,
            clock,
            entropy,
            events,
            live,
            changed,
            notifier,
            hints,
        };
        Ok(Self(Arc::new(inner)))
    }
}

impl<P: Projection> HasEntropy for View<P> {}
impl<P: Projection> HasEvents<ViewEvent> for View<P> {}

/// The answer to a read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ViewRow<R> {
    /// The row; `None` if there is none.
    pub row: Option<R>,
    /// The place of which it is the fold.
    pub as_of: AsOf,
}

/// The state of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ViewState {
    /// Number of the generation that is served.
    pub generation: Option<u64>,
    /// The place that it has; that of the one that is built if none is served.
    pub as_of: AsOf,
    /// The ends of the sources.
    pub head: AsOf,
    /// Number of its rows.
    pub rows: u64,
    /// Bytes of its rows, as the codec writes them.
    pub bytes: u64,
    /// Number of streams that are left out.
    pub parked: u64,
    /// The place of a generation that is built beside the served one.
    pub next: Option<AsOf>,
    /// A source has other events than the view was built from.
    pub has_diverged: bool,
}

/// A stream that is left out, because an event of it did not decode.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParkedStream {
    /// Name of the topic.
    pub topic: String,
    /// The stream, or the key of the events.
    pub stream: String,
    /// The place of the first event that is left out.
    pub position: Position,
    /// The reason, or its first 200 characters.
    pub reason: String,
}

/// Time limit of one request to the store or a topic.
pub(super) const ATTEMPT: Duration = Duration::from_secs(5);
/// First and longest delay between two polls of a waiting read.
const POLLS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// Time limit of a notice, which delays the next page.
const NOTICE: Duration = Duration::from_millis(200);
/// Time for which notices are not received after a gap.
const AFTER_GAP: Duration = Duration::from_secs(1);

impl<P: Projection> View<P> {
    /// Creates a builder of the view with this name: the partition `view/NAME` of the store. The
    /// codec writes the rows.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CView%3CP%3E%3E): `source`,
    /// `notifier`. A view without a source takes its rows from [`regenerate`](Self::regenerate)
    /// alone.
    ///
    /// Its `build` fails if the store lacks [`AtomicBatch`](Capability::AtomicBatch) or
    /// [`Linearizable`](Capability::Linearizable), or if a setting breaks a rule.
    pub fn builder(
        store: Arc<dyn Store>,
        name: impl Into<Name>,
        projection: P,
        codec: Codec<P::Row>,
        config: ViewConfig,
    ) -> Builder<Self> {
        let (name, sources) = (name.into(), Vec::new());
        Builder::new(ViewSpec { store, name, projection, codec, config, sources, notifier: None })
    }

    /// Returns a row, and the place of which it is the fold.
    ///
    /// # Errors
    /// [`Building`](ViewError::Building) before the view has caught up once,
    /// [`Diverged`](ViewError::Diverged) if its source was restored,
    /// [`Retired`](ViewError::Retired), `Invalid` for a key that no row can have, or an error of
    /// the store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn get(&self, key: &str) -> Result<ViewRow<P::Row>, ViewError> {
        let inner = &*self.0;
        let (served, row) = inner.served(Some(key)).await?;
        let row = match row {
            Some((name, value)) => Some(inner.codec.decode(&value).map_err(|error| {
                ViewError::Store(PortError::new(PortErrorKind::Corrupt, format!("view: the row {name:?}: {error}")))
            })?),
            None => None,
        };
        Ok(ViewRow { row, as_of: inner.as_of(&served) })
    }

    /// Returns a row that has all that the token covers, and waits for it, at most for `wait`.
    ///
    /// # Errors
    /// [`Behind`](ViewError::Behind) if the view did not get there in time. `Invalid` for a token
    /// of a log that is no source of the view. Same as [`get`](Self::get) else.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn get_after(&self, key: &str, token: &Token, wait: Duration) -> Result<ViewRow<P::Row>, ViewError> {
        let inner = &*self.0;
        let is_of = |source: &Source<_>| source.name.as_str() == token.log() && source.topic.partitions() == 1;
        if !inner.sources.iter().any(is_of) {
            let rule = format_args!("must be of a source with one partition, is of {:?}", token.log());
            return Err(ViewError::Invalid(PortError::invalid("token", rule)));
        }
        let mut waiting = Waiting::new(inner, Some(wait));
        loop {
            let changed = inner.changed.notified();
            let error = match self.get(key).await {
                Ok(read) if read.as_of.covers(token) => return Ok(read),
                Ok(read) => ViewError::Behind { as_of: read.as_of },
                Err(error) => error,
            };
            waiting.pause(error, changed).await?;
        }
    }

    /// Waits until this version of the view has caught up once, and is served.
    ///
    /// # Errors
    /// Same as [`get`](Self::get), but for `Building`.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn ready(&self) -> Result<(), ViewError> {
        let inner = &*self.0;
        let mut waiting = Waiting::new(inner, None);
        loop {
            let changed = inner.changed.notified();
            match inner.served(None).await {
                Ok(_) => return Ok(()),
                Err(error) => waiting.pause(error, changed).await?,
            }
        }
    }

    /// Returns the state, as the store has it.
    ///
    /// # Errors
    /// [`Retired`](ViewError::Retired), or an error of the store or of a source.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn state(&self) -> Result<ViewState, ViewError> {
        let inner = &*self.0;
        let look = inner.look(self.0.config.version).await.map_err(ViewError::Store)?;
        let generations = look.generations.as_ref().map(|(generations, _)| generations.clone()).unwrap_or_default();
        if generations.is_retired {
            return Err(ViewError::Retired);
        }
        let head = inner.head().await.map_err(ViewError::Store)?;
        let next = look.next.map(|(next, _)| next);
        let (served, next) = match (look.live, next) {
            (Some((live, _)), next) => (live, next.map(|next| inner.as_of(&next))),
            (None, next) => (next.unwrap_or_else(|| inner.before()), None),
        };
        Ok(ViewState {
            generation: generations.live,
            as_of: inner.as_of(&served),
            head,
            rows: served.rows,
            bytes: served.bytes,
            parked: served.parked.len() as u64,
            next,
            has_diverged: served.diverged.is_some(),
        })
    }

    /// Returns the streams that are left out, because an event of them did not decode. A
    /// [rebuild](Self::rebuild) folds them anew.
    ///
    /// # Errors
    /// Same as [`get`](Self::get).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn parked(&self) -> Result<Vec<ParkedStream>, ViewError> {
        let inner = &*self.0;
        let (served, _) = inner.served(None).await?;
        let named = served.parked.iter().map(|((source, stream), parked)| ParkedStream {
            topic: inner.topic_of(&served, *source),
            stream: stream.clone(),
            position: parked.position,
            reason: parked.reason.clone(),
        });
        Ok(named.collect())
    }

    /// Subscribes to the events that follow.
    pub fn events(&self) -> Subscription<ViewEvent> {
        self.0.events.subscribe()
    }
}

/// The rows that say what is served and built, as of one moment, each with its version.
pub(super) struct Look {
    pub(super) generations: Option<(Generations, Version)>,
    pub(super) live: Option<(Checkpoint, Version)>,
    pub(super) next: Option<(Checkpoint, Version)>,
}

impl Look {
    /// Returns `true` if there is a generation that is served, and has not diverged.
    pub(super) fn has_live(&self) -> bool {
        self.live.as_ref().is_some_and(|(live, _)| live.diverged.is_none())
    }

    /// Returns `true` if the generation that is built may be served.
    pub(super) fn may_switch(&self, has_caught_up: bool) -> bool {
        let live = self.live.as_ref().map(|(live, _)| live);
        self.next.as_ref().is_some_and(|(next, _)| next.may_follow(live, has_caught_up))
    }
}

/// The text of a request to the store or a topic without an answer.
pub(super) fn unanswered(error: AskError<StoreError>) -> PortError {
    match error.or_timed_out("view: the store did not answer in time") {
        StoreError::Failed(error) => error,
        refused => {
            PortError::new(PortErrorKind::Corrupt, format!("view: another program wrote to the view: {refused}"))
        }
    }
}

impl<P: Projection> ViewInner<P> {
    pub(super) fn send_event(&self, event: impl FnOnce() -> ViewEvent) {
        self.events.send(Some(&self.name), self.clock.now(), event);
    }

    /// Returns the checkpoint before the first event.
    pub(super) fn before(&self) -> Checkpoint {
        let sources = self.sources.iter().map(|source| (source.identity.as_str(), source.topic.partitions()));
        Checkpoint::before(sources)
    }

    /// Returns the name of a source of a checkpoint.
    pub(super) fn topic_of(&self, checkpoint: &Checkpoint, source: u64) -> String {
        let at = usize::try_from(source).unwrap_or(usize::MAX);
        let identity = checkpoint.sources.get(at).map_or("", |source| source.identity.as_str());
        let named = self.sources.iter().find(|source| source.identity == identity);
        named.map_or(identity, |source| source.name.as_str()).to_owned()
    }

    pub(super) fn as_of(&self, checkpoint: &Checkpoint) -> AsOf {
        let sources = (0..).zip(&checkpoint.sources).map(|(nth, source)| {
            let offsets = source.places.iter().map(|place| place.offset).collect();
            (Name::from(self.topic_of(checkpoint, nth)), offsets)
        });
        AsOf::new(sources.collect())
    }

    pub(super) async fn bounds(&self, source: usize, partition: u16) -> Result<Bounds, PortError> {
        let bounds = ask(&self.clock, ATTEMPT, self.sources[source].topic.bounds(partition)).await;
        bounds.map_err(|error| error.or_timed_out("view: a source did not answer in time"))
    }

    /// Returns the ends of the sources.
    pub(super) async fn head(&self) -> Result<AsOf, PortError> {
        let sources = (0..).zip(&self.sources).map(|(nth, source)| async move {
            let ends = (0..source.topic.partitions()).map(|partition| self.bounds(nth, partition));
            let ends = try_join_all(ends).await?.into_iter().map(|bounds| bounds.next - 1);
            Ok::<_, PortError>((source.name.clone(), ends.collect()))
        });
        Ok(AsOf::new(try_join_all(sources).await?))
    }

    /// Reads the events behind a checkpoint, all of them of whole records.
    pub(super) async fn read_page(
        &self,
        checkpoint: &Checkpoint,
        first: usize,
    ) -> Result<ReadPage<P::Event>, ViewError> {
        let parts: Vec<_> = checkpoint
            .sources
            .iter()
            .zip(0u64..)
            .flat_map(|(of, source)| {
                let at = self.sources.iter().position(|ours| ours.identity == of.identity).unwrap_or_default();
                of.places.iter().zip(0u16..).map(move |(place, partition)| (source, at, partition, *place))
            })
            .collect();
        let each = (self.config.page as usize).div_ceil(parts.len().max(1));
        let reads = parts.iter().map(|&(source, at, partition, place)| async move {
            self.read_part(at, partition, place, each).await.map(|found| (source, at, found))
        });
        let mut pages = Vec::new();
        for (slot, (source, at, found)) in try_join_all(reads).await?.into_iter().enumerate() {
            match found {
                Ok(found) => pages.push((slot, at, found)),
                Err(position) => return Ok(Err((source, position))),
            }
        }
        if !pages.is_empty() {
            // No partition waits behind the others for ever, where a page is full before it.
            let at = first % pages.len();
            pages.rotate_left(at);
        }
        let item = |slot, at: usize| move |recorded| self.sources[at].item(slot, recorded);
        let items = pages.into_iter().flat_map(|(slot, at, found)| found.into_iter().map(item(slot, at)));
        Ok(Ok(items.take(self.config.page as usize).collect()))
    }

    /// Reads a partition behind a place, and the event there once more. The inner error is an event
    /// that is another one by now.
    async fn read_part(
        &self,
        at: usize,
        partition: u16,
        place: Place,
        most: usize,
    ) -> Result<Result<Vec<Recorded>, Position>, ViewError> {
        let (source, last) = (&self.sources[at], Position::new(partition, place.offset));
        let known = place.hash.filter(|_| place.offset > 0);
        let from = if known.is_some() { place.offset } else { place.offset + 1 };
        let read = async |from, most| {
            let read = ask(&self.clock, ATTEMPT, source.topic.read(partition, Read::from(from).max(most))).await;
            read.map_err(|error| ViewError::Store(error.or_timed_out("view: a source did not answer in time")))
        };
        let is_last = |first: &Recorded| first.position.offset == place.offset;
        let (found, is_there) = loop {
            let mut found = read(from, most + usize::from(known.is_some())).await?;
            let Some((known, first)) = known.zip(found.first().filter(|first| is_last(first))) else {
                break (found, false);
            };
            if hash_of(&first.event) != known {
                return Ok(Err(last));
            }
            found.remove(0);
            // An answer may end with that event, although more follow.
            if found.is_empty() {
                found = read(place.offset + 1, most).await?;
                // They may be those of a log that was restored since, or before, if the event came from
                // the memory of the process.
                let again = if found.is_empty() { None } else { read(place.offset, 1).await?.into_iter().next() };
                if !found.is_empty() && !again.is_some_and(|again| is_last(&again) && hash_of(&again.event) == known) {
                    continue;
                }
            }
            // Here it stands: the log is no shorter one.
            break (found, true);
        };
        let trimmed =
            |first| ViewError::Trimmed { topic: source.name.to_string(), first: Position::new(partition, first) };
        match found.first() {
            Some(first) if first.position.offset > place.offset + 1 => Err(trimmed(first.position.offset)),
            Some(_) => Ok(Ok(found)),
            None if is_there => Ok(Ok(found)),
            None => {
                let bounds = self.bounds(at, partition).await.map_err(ViewError::Store)?;
                match bounds.first {
                    _ if bounds.next <= place.offset => Ok(Err(last)),
                    first if first > place.offset + 1 => Err(trimmed(first)),
                    _ => Ok(Ok(found)),
                }
            }
        }
    }

    /// Returns these rows of the view as of one moment, in their order.
    pub(super) async fn named(&self, names: &[&str]) -> Result<Vec<Option<(Bytes, Version)>>, PortError> {
        let scan = Scan::partition(&self.partition).named(names.iter().copied());
        let mut rows = ask(&self.clock, ATTEMPT, self.store.scan(&scan)).await.map_err(unanswered)?.rows;
        // Names that are in order, as those of a page are, have their rows one behind the other.
        let mut next = 0;
        let found = |name: &&str| {
            let at = match rows.get(next) {
                Some(row) if row.row == **name => next,
                _ => rows.binary_search_by(|row| (*row.row).cmp(name)).ok()?,
            };
            next = at + 1;
            Some((std::mem::take(&mut rows[at].value), rows[at].version))
        };
        Ok(names.iter().map(found).collect())
    }

    /// Returns the generations of a version, with the checkpoints of the served and the built one,
    /// as of one moment.
    pub(super) async fn look(&self, version: u32) -> Result<Look, PortError> {
        let row = version_row(version);
        let mut known = Generations::default();
        loop {
            let name = |generation: Option<u64>| generation.map(|of| checkpoint_row(version, of));
            let (live, next) = (name(known.live), name(known.next.as_ref().map(|next| next.generation)));
            let names: Vec<&str> =
                [Some(row.as_str()), live.as_deref(), next.as_deref()].into_iter().flatten().collect();
            let mut found = self.named(&names).await?.into_iter();
            let Some((value, at)) = found.next().flatten() else {
                return Ok(Look { generations: None, live: None, next: None });
            };
            let generations = Generations::decode(&row, value)?;
            if (generations.live, &generations.next) == (known.live, &known.next) {
                let mut checkpoint = |name: Option<String>| match name.and_then(|name| Some((found.next()??, name))) {
                    Some(((value, at), name)) => Ok(Some((Checkpoint::decode(&name, value)?, at))),
                    None => Ok::<_, PortError>(None),
                };
                let (live, next) = (checkpoint(live)?, checkpoint(next)?);
                return Ok(Look { generations: Some((generations, at)), live, next });
            }
            known = generations;
        }
    }

    /// Returns the checkpoint of the served generation, and a row of it with its name, as of one
    /// moment.
    async fn served(&self, key: Option<&str>) -> Result<(Checkpoint, Option<(String, Bytes)>), ViewError> {
        let version = self.config.version;
        let version_row = version_row(version);
        let mut generation = self.live.load(Relaxed);
        loop {
            let checkpoint = checkpoint_row(version, generation);
            key.map_or(Ok(()), |key| self.check_key(generation, key)).map_err(ViewError::Invalid)?;
            let name = key.map(|key| rows_of(version, generation) + key);
            let mut names = vec![version_row.as_str(), checkpoint.as_str()];
            names.extend(name.as_deref());
            let found = self.named(&names).await.map_err(ViewError::Store)?;
            let Some(Some((value, _))) = found.first() else { return Err(self.building().await) };
            let generations = Generations::decode(&version_row, value.clone()).map_err(ViewError::Store)?;
            if generations.is_retired {
                return Err(ViewError::Retired);
            }
            let Some(live) = generations.live else { return Err(self.building().await) };
            // The generation was replaced since: its rows may be deleted by now.
            if live != generation {
                self.live.store(live, Relaxed);
                generation = live;
                continue;
            }
            // Its rows were lost. A projector begins anew.
            let Some(Some((value, _))) = found.get(1) else { return Err(self.building().await) };
            let served = Checkpoint::decode(&checkpoint, value.clone()).map_err(ViewError::Store)?;
            if let Some((source, position)) = served.diverged {
                return Err(ViewError::Diverged { topic: self.topic_of(&served, source), position });
            }
            let row = found.into_iter().nth(2).flatten();
            return Ok((served, name.zip(row.map(|(value, _)| value))));
        }
    }

    /// Returns the error of a read before the view is served.
    async fn building(&self) -> ViewError {
        let as_of = match self.look(self.config.version).await {
            Ok(look) => self.as_of(&look.next.map_or_else(|| self.before(), |(next, _)| next)),
            Err(error) => return ViewError::Store(error),
        };
        match self.head().await {
            Ok(head) => ViewError::Building { as_of, head },
            Err(error) => ViewError::Store(error),
        }
    }

    /// Wakes readers that wait: those of this process at once, others by a notice.
    pub(super) async fn announce(&self) {
        self.changed.notify_waiters();
        if let Some(notifier) = &self.notifier {
            // A lost notice costs the wait until the next poll.
            drop(ask(&self.clock, NOTICE, notifier.publish(&self.partition, Bytes::new())).await);
        }
    }

    /// Receives notices and wakes readers. One reader at a time does so for all of this view.
    async fn hear(&self) {
        let Some(notifier) = &self.notifier else { return pending().await };
        let mut hints = self.hints.lock().await;
        if hints.subscribe(Some(notifier), &self.partition, (&self.clock, ATTEMPT)).await.is_err() {
            return pending().await;
        }
        loop {
            hints.recv(&self.clock, AFTER_GAP, |_| true).await;
            self.changed.notify_waiters();
        }
    }
}

/// A read that is repeated until the view is where it is wanted.
struct Waiting<'a, P: Projection> {
    view: &'a ViewInner<P>,
    until: Option<Instant>,
    pause: Duration,
}

impl<'a, P: Projection> Waiting<'a, P> {
    fn new(view: &'a ViewInner<P>, limit: Option<Duration>) -> Self {
        Self { view, until: limit.map(|limit| view.clock.now() + limit), pause: POLLS.0 }
    }

    /// Waits for a change behind a read, or for the next poll. Returns the error of the read if it
    /// is another one than `Behind` or `Building`, or the time is over.
    async fn pause(&mut self, error: ViewError, changed: impl Future<Output = ()>) -> Result<(), ViewError> {
        let now = self.view.clock.now();
        let is_early = matches!(error, ViewError::Behind { .. } | ViewError::Building { .. });
        if !is_early || self.until.is_some_and(|until| now >= until) {
            return Err(error);
        }
        let next_poll = self.until.unwrap_or(now + self.pause).min(now + self.pause);
        self.pause = (self.pause * 2).min(POLLS.1);
        let polls = async { self.view.clock.sleep_until(next_poll).await };
        race(changed, race(polls, self.view.hear())).await;
        Ok(())
    }
}
