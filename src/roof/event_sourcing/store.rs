//! The log: its component, and its reads.
use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use bytes::Bytes;
use tokio::sync::Notify;

use super::{
    announce::Announcer,
    commit::{Commit, Committed, Context, Job},
    config::EventStoreConfig,
    counts::{Counts, EventStoreState},
    error::CommitError,
    send::{ATTEMPT, Answer, Done, Requests, unanswered},
    state::Limits,
    stored::{self, COMMITS, LOG, ROWS, StoredCommit, StoredEvent},
    token::Token,
    topic::LogTopic,
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, debug_fields},
    config::Name,
    entropy::Entropy,
    gather::Gather,
    in_progress::{InProgress, InProgressGuard},
    notify::Notifier,
    port::{AskError, BoxFuture, Capabilities, Capability, PortError, PortErrorKind, PortFuture, ask},
    spawn::Spawner,
    store::{Key, Precondition, PutOptions, Record, Row, Scan, Sequence, Store, StoreError, StoreExt, Version},
    stream::notices::notices_of,
    time::Clock,
};

/// A log of commits over a store. The [module's page](super) has the details.
///
/// Clones share their state.
#[derive(Clone)]
pub struct EventStore {
    pub(super) inner: Arc<EventStoreInner>,
    gather: Arc<Gather<Job, Answer>>,
}

debug_fields!(EventStore, |this| name: this.inner.name, config: this.inner.config, store: this.inner.store);

pub(super) struct EventStoreInner {
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    pub(super) name: Name,
    pub(super) identity: String,
    /// Name of the store's partition.
    pub(super) partition: String,
    pub(super) can: Capabilities,
    pub(super) config: EventStoreConfig,
    pub(super) limits: Limits,
    /// Capabilities of the queues of outboxes, by name.
    pub(super) outboxes: BTreeMap<String, Capabilities>,
    pub(super) spawner: Spawner,
    pending: InProgress,
    pub(super) counts: Counts,
    /// Wakes waiting readers of this process.
    pub(super) changed: Notify,
    pub(super) announcer: Option<Announcer>,
}

/// Arguments of a log, beside clock and entropy.
pub struct EventStoreSpec {
    store: Arc<dyn Store>,
    name: Name,
    config: EventStoreConfig,
    notifier: Option<Arc<dyn Notifier>>,
    spawner: Spawner,
    outboxes: BTreeMap<String, Capabilities>,
}

impl Builder<EventStore> {
    /// Announces commits through this notifier, so that readers in other processes wait less. They
    /// also poll. Notices are published by a task, one at a time.
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>) -> Self {
        self.spec.notifier = Some(notifier);
        self
    }

    /// Lets commits send to a queue of this name. A message that a queue with these capabilities
    /// would refuse is refused by the commit. An [`Outbox`](super::Outbox) sends them.
    pub fn outbox(mut self, queue: impl Into<String>, can: Capabilities) -> Self {
        self.spec.outboxes.insert(queue.into(), can);
        self
    }

    /// Sets the spawner of requests and notices. By default each is a task of the tokio runtime in
    /// which the commit is made.
    pub fn spawner(mut self, spawn: impl Fn(BoxFuture<'static, ()>) + Send + Sync + 'static) -> Self {
        self.spec.spawner = Spawner::own(spawn);
        self
    }
}

impl Component for EventStore {
    /// The log is created, or found, when this future is polled.
    type Built = PortFuture<'static, Self>;
    type Spec = EventStoreSpec;

    fn assemble(spec: EventStoreSpec, common: Common) -> Self::Built {
        Box::pin(open(spec, common))
    }
}

impl HasEntropy for EventStore {}

async fn open(spec: EventStoreSpec, common: Common) -> Result<EventStore, PortError> {
    let EventStoreSpec { store, name, config, notifier, spawner, outboxes } = spec;
    config.check()?;
    let can = store.capabilities();
    for needed in [Capability::OrderedAppend, Capability::Linearizable, Capability::TimeToLive] {
        can.require(needed)?;
    }
    if name.as_str().is_empty() {
        return Err(PortError::invalid("name", "must not be empty"));
    }
    let partition = format!("events/{name}");
    can.check_key("name", &partition)?;
    for queue in outboxes.keys() {
        can.check_key("outbox", &stored::outbox_row(queue))?;
        if queue.is_empty() {
            return Err(PortError::invalid("outbox", "must not be empty"));
        }
    }
    let (clock, entropy) = (common.clock.clone(), common.entropy());
    let new = entropy.id();
    let identity = find_or_create(&*store, &clock, &partition, new).await?;
    let announcer = notifier.map(|notifier| Announcer::new(notifier, notices_of(&identity)));
    let inner = Arc::new(EventStoreInner {
        limits: Limits { writes: can.max_batch(), commits: config.max_batch as usize },
        pending: InProgress::default(),
        counts: Counts::default(),
        changed: Notify::new(),
        spawner: spawner.clone(),
        store,
        clock,
        entropy,
        name,
        identity,
        partition,
        can,
        config,
        announcer,
        outboxes,
    });
    let gather = Arc::new(Gather::in_order(inner.limits.writes, spawner, Requests(inner.clone())));
    Ok(EventStore { inner, gather })
}

/// Returns the identity of a log, which is created if there is none.
async fn find_or_create(store: &dyn Store, clock: &Clock, partition: &str, new: String) -> Result<String, PortError> {
    let key = Key::new(partition, LOG);
    let get = || async { ask(clock, ATTEMPT, store.get(key)).await.map_err(unanswered) };
    if let Some(record) = get().await? {
        return stored::decode_log(record.value);
    }
    let put = store.put(key, stored::encode_log(&new), PutOptions::from(Precondition::Absent));
    match ask(clock, ATTEMPT, put).await {
        Ok(_) => Ok(new),
        // Another process has created it meanwhile.
        Err(AskError::Failed(StoreError::Conflict { .. })) => match get().await? {
            Some(record) => stored::decode_log(record.value),
            None => Err(stored::damaged(LOG)),
        },
        Err(error) => Err(unanswered(error)),
    }
}

impl EventStore {
    /// Opens the log with this name, and creates it if it does not exist. It is the partition
    /// `events/NAME` of the store.
    ///
    /// # Errors
    /// `Unsupported` if the store lacks [`OrderedAppend`](Capability::OrderedAppend),
    /// [`Linearizable`](Capability::Linearizable) or [`TimeToLive`](Capability::TimeToLive).
    /// `Invalid` if a name or a setting breaks a rule, `TooNew` if a newer release created the log.
    /// Another error if the store failed: open it again.
    ///
    /// # Cancel safety
    /// If the future is dropped, the log was created or not. Open it again.
    pub async fn open(store: Arc<dyn Store>, name: impl Into<Name>) -> Result<Self, PortError> {
        Self::builder(store, name, EventStoreConfig::default()).build().await
    }

    /// Creates a builder with the arguments of [`open`](Self::open) and the settings. Its `build`
    /// returns the future that opens the log.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CEventStore%3E): `notifier`,
    /// `outbox`, `spawner`.
    pub fn builder(store: Arc<dyn Store>, name: impl Into<Name>, config: EventStoreConfig) -> Builder<Self> {
        let spawner = Spawner::default();
        let (name, outboxes) = (name.into(), BTreeMap::new());
        Builder::new(EventStoreSpec { store, name, config, notifier: None, spawner, outboxes })
    }

    /// Applies a commit: all of it, or nothing. Commits of this process that meet share a request.
    ///
    /// # Errors
    /// [`Conflict`](CommitError::Conflict), [`Taken`](CommitError::Taken),
    /// [`RowConflict`](CommitError::RowConflict) and [`CommandReused`](CommitError::CommandReused)
    /// as their pages say: nothing was written. [`Invalid`](CommitError::Invalid) for a commit that
    /// breaks a rule; it names the field. [`Store`](CommitError::Store) with `Full` if
    /// [`max_pending`](EventStoreConfig::max_pending) commits are under way, `Closed` outside of a
    /// runtime, or any error of the store.
    ///
    /// # Cancel safety
    /// If the future is dropped, the commit was applied, is applied later, or never. Others do not
    /// notice. Repeat it with the same id to be sure.
    pub async fn commit(&self, commit: Commit) -> Result<Committed, CommitError> {
        if commit.is_repeated {
            let token = self.token().await.map_err(CommitError::Store)?;
            let repeated = Ok(Done::Repeated { command: 0, token: token.clone() });
            self.inner.counts.answer(&repeated, 1);
            return Ok(Committed { token, versions: BTreeMap::new(), is_repeated: true });
        }
        let job = self.inner.prepare(commit)?;
        let _pending = self.inner.enter().map_err(CommitError::Store)?;
        match self.send(job).await? {
            Done::Committed(mut done) => done.pop().ok_or_else(|| {
                CommitError::Store(PortError::new(PortErrorKind::Other, "events: no answer").outcome_unknown())
            }),
            Done::Repeated { token, .. } => Ok(Committed { token, versions: BTreeMap::new(), is_repeated: true }),
        }
    }

    /// Sends a job with others.
    pub(super) async fn send(&self, job: Job) -> Answer {
        self.gather.send(job).await.map_err(CommitError::Store)?
    }

    /// Returns events of a stream behind a version, in order, at most `max`.
    ///
    /// # Errors
    /// `Corrupt` for a row that is missing or cannot be decoded, `TooNew` for one of a newer
    /// release; none is skipped. Any error of the store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn read(&self, stream: &str, after: u64, max: usize) -> Result<Vec<StoredEvent>, PortError> {
        let name = stored::events_of(stream);
        let rows = self.inner.rows(Sequence::new(&name), after, max).await?;
        let mut events: Vec<StoredEvent> = Vec::with_capacity(rows.len());
        for ((version, row), expected) in rows.into_iter().zip(after.saturating_add(1)..) {
            if version != expected {
                return Err(stored::hole(&Sequence::new(&name).row(expected)));
            }
            events.push(StoredEvent::decode(&row.row, version, row.value)?);
        }
        Ok(events)
    }

    /// Returns the version of a stream: the number of its events, 0 for none.
    ///
    /// # Errors
    /// Any error of the store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn version(&self, stream: &str) -> Result<u64, PortError> {
        self.inner.version(stream).await
    }

    /// Returns commits behind a number, in order, at most `max`. If the next ones were trimmed, it
    /// begins with the first that is kept.
    ///
    /// # Errors
    /// Same as [`read`](Self::read).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn commits(&self, after: u64, max: usize) -> Result<Vec<StoredCommit>, PortError> {
        let rows = self.inner.commit_rows(after, max).await?;
        rows.into_iter().map(|(number, row)| StoredCommit::decode(number, row.value)).collect()
    }

    /// Returns a token that covers all commits so far.
    ///
    /// # Errors
    /// Any error of the store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn token(&self) -> Result<Token, PortError> {
        self.inner.token().await
    }

    /// Returns the first stream of the commit that holds a claim, or `None` if it is free.
    ///
    /// # Errors
    /// Any error of the store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn holder(&self, claim: &str) -> Result<Option<String>, PortError> {
        self.inner.holder(claim).await
    }

    /// Returns a row of yours, whose name begins with `u/`.
    ///
    /// # Errors
    /// `Invalid` for another name, or any error of the store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn row(&self, row: &str) -> Result<Option<Record>, PortError> {
        if !row.starts_with(ROWS) {
            return Err(PortError::invalid("row", format_args!("must begin with `u/`, is {row:?}")));
        }
        let found = self.inner.get(row).await?;
        Ok(found.map(|(value, version)| Record::new(value, version)))
    }

    /// Returns the log as a topic of one partition, whose events are the commits. Processors and
    /// other readers follow it as any topic. [`StoredCommit::open`] gives the contents of an event.
    pub fn topic(&self) -> LogTopic {
        LogTopic::new(self.inner.clone())
    }

    /// Deletes the commits below a number, but never the last one, and returns how many there were.
    /// Streams stay as they are.
    ///
    /// # Errors
    /// Any error of the store. Some commits may be deleted: always those with the lowest numbers.
    ///
    /// # Cancel safety
    /// If the future is dropped, some of the commits may be deleted: always those with the lowest
    /// numbers.
    pub async fn trim(&self, before: u64) -> Result<u64, PortError> {
        let inner = &self.inner;
        let end = inner.last(COMMITS).await?.min(before);
        let first = inner.rows(COMMITS, 0, 1).await?.first().map_or(end, |(first, _)| *first);
        let mut deleted = 0;
        // Page by page, each with its time limit.
        for from in (first..end).step_by(PAGE) {
            let to = end.min(from.saturating_add(PAGE as u64));
            let range = (Bound::Included(COMMITS.row(from)), Bound::Excluded(COMMITS.row(to)));
            let scan = Scan::partition(&inner.partition).range(range.0, range.1);
            deleted += ask(&inner.clock, ATTEMPT, inner.store.delete_scanned(scan)).await.map_err(unanswered)?;
        }
        Ok(deleted)
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        self.inner.name.as_str()
    }

    /// Returns the number of commits and commands under way, and totals since this handle was
    /// opened.
    pub fn state(&self) -> EventStoreState {
        self.inner.counts.state(self.inner.pending.get())
    }
}

/// Most rows in a page: what the engines return at most.
const PAGE: usize = 1_000;
/// Most rows in a page of a search for a commit.
const SEARCHED: usize = 100;

impl EventStoreInner {
    /// Counts a commit or a command until the guard is dropped.
    pub(super) fn enter(&self) -> Result<InProgressGuard<'_>, PortError> {
        let most = self.config.max_pending;
        let Some(pending) = self.pending.enter_within(1, most) else {
            return Err(PortError::new(PortErrorKind::Full, format!("events: {most} commits are under way")));
        };
        if !self.spawner.is_there() {
            return Err(PortError::new(PortErrorKind::Closed, "events: no runtime to send the request in"));
        }
        Ok(pending)
    }

    /// Checks a commit, and returns it in the form in which it is sent.
    pub(super) fn prepare(&self, commit: Commit) -> Result<Job, CommitError> {
        let context = Context {
            partition: &self.partition,
            can: &self.can,
            outboxes: &self.outboxes,
            remember: self.config.remember,
            request: self.request_id(),
            at: self.clock.wall(),
        };
        commit.prepare(&context).map_err(CommitError::Invalid)
    }

    pub(super) async fn get(&self, row: &str) -> Result<Option<(Bytes, Version)>, PortError> {
        let read = ask(&self.clock, ATTEMPT, self.store.get(Key::new(&self.partition, row))).await;
        Ok(read.map_err(unanswered)?.map(|record| (record.value, record.version)))
    }

    /// Returns rows of a sequence with their numbers, behind one, at most `max`.
    async fn rows(&self, sequence: Sequence<'_>, after: u64, max: usize) -> Result<Vec<(u64, Row)>, PortError> {
        let mut rows = Vec::new();
        if max == 0 {
            return Ok(rows);
        }
        let mut scan = Scan::partition(&self.partition).sequence(sequence, after).limit(max.min(PAGE));
        loop {
            let page = ask(&self.clock, ATTEMPT, self.store.scan(&scan)).await.map_err(unanswered)?;
            let of_it = page.rows.into_iter().filter_map(|row| Some((sequence.number(&row.row)?, row)));
            rows.extend(of_it.take(max - rows.len()));
            match page.next {
                Some(next) if rows.len() < max => scan = scan.after(next).limit((max - rows.len()).min(PAGE)),
                _ => return Ok(rows),
            }
        }
    }

    /// Returns commits behind a number as their rows, in order and without a hole.
    pub(super) async fn commit_rows(&self, after: u64, max: usize) -> Result<Vec<(u64, Row)>, PortError> {
        let mut rows: Vec<(u64, Row)> = Vec::new();
        let mut scan = Scan::partition(&self.partition).sequence(COMMITS, after).limit(max.clamp(1, PAGE));
        loop {
            let page = ask(&self.clock, ATTEMPT, self.store.scan(&scan)).await.map_err(unanswered)?;
            let found: Vec<_> =
                page.rows.into_iter().filter_map(|row| Some((COMMITS.number(&row.row)?, row))).collect();
            // A page is one snapshot, and a trim deletes what is lowest.
            if let Some(pair) = found.windows(2).find(|pair| pair[0].0 + 1 != pair[1].0) {
                return Err(stored::hole(&COMMITS.row(pair[0].0 + 1)));
            }
            match (rows.last(), found.first()) {
                (None, Some((first, _))) if after > 0 && *first > after + 1 => {
                    let kept = self.rows(COMMITS, 0, 1).await?.first().map_or(*first, |(kept, _)| *kept);
                    if kept <= after {
                        return Err(stored::hole(&COMMITS.row(after + 1)));
                    }
                }
                // A trim came between the pages. The next read tells.
                (Some((last, _)), Some((first, _))) if *first != last + 1 => return Ok(rows),
                _ => {}
            }
            rows.extend(found);
            rows.truncate(max);
            match page.next {
                Some(next) if rows.len() < max => scan = scan.after(next).limit((max - rows.len()).min(PAGE)),
                _ => return Ok(rows),
            }
        }
    }

    /// Returns the last number of a sequence, 0 for none.
    pub(super) async fn last(&self, sequence: Sequence<'_>) -> Result<u64, PortError> {
        let mut scan = Scan::partition(&self.partition).sequence(sequence, 0).descending().limit(1);
        loop {
            let page = ask(&self.clock, ATTEMPT, self.store.scan(&scan)).await.map_err(unanswered)?;
            if let Some(number) = page.rows.iter().find_map(|row| sequence.number(&row.row)) {
                return Ok(number);
            }
            match page.next {
                Some(next) => scan = scan.after(next),
                None => return Ok(0),
            }
        }
    }

    pub(super) async fn version(&self, stream: &str) -> Result<u64, PortError> {
        self.last(Sequence::new(&stored::events_of(stream))).await
    }

    pub(super) async fn token(&self) -> Result<Token, PortError> {
        Ok(Token::new(self.name.clone(), self.last(COMMITS).await?))
    }

    pub(super) async fn holder(&self, claim: &str) -> Result<Option<String>, PortError> {
        let row = stored::claim_row(claim);
        match self.get(&row).await? {
            Some((value, _)) => Ok(Some(stored::decode_claim(&row, value)?)),
            None => Ok(None),
        }
    }

    /// Returns the version of the last event that a command appended to a stream.
    pub(super) async fn find_version(&self, stream: &str, command: &str) -> Result<Option<u64>, PortError> {
        let name = stored::events_of(stream);
        let sequence = Sequence::new(&name);
        let mut scan = Scan::partition(&self.partition).sequence(sequence, 0).descending().limit(SEARCHED);
        loop {
            let page = ask(&self.clock, ATTEMPT, self.store.scan(&scan)).await.map_err(unanswered)?;
            for row in page.rows {
                let Some(version) = sequence.number(&row.row) else { continue };
                if StoredEvent::decode(&row.row, version, row.value)?.command == command {
                    return Ok(Some(version));
                }
            }
            match page.next {
                Some(next) => scan = scan.after(next),
                None => return Ok(None),
            }
        }
    }

    /// Returns the answers to commits that were applied, by the row of the first, the newest first.
    pub(super) async fn find(&self, job: &Job) -> Result<Vec<Committed>, PortError> {
        let mut scan = Scan::partition(&self.partition).sequence(COMMITS, 0).descending().limit(SEARCHED);
        let (mut newest, mut first) = (0, None);
        while first.is_none() {
            let page = ask(&self.clock, ATTEMPT, self.store.scan(&scan)).await.map_err(unanswered)?;
            for row in page.rows {
                let Some(number) = COMMITS.number(&row.row) else { continue };
                newest = newest.max(number);
                let commit = StoredCommit::decode(number, row.value)?;
                if job.commands.first().is_some_and(|command| command.id == commit.command) {
                    first = Some(number);
                    break;
                }
            }
            match page.next {
                Some(next) => scan = scan.after(next),
                // It was trimmed since: a later place covers it.
                None => break,
            }
        }
        let done = (0..).zip(&job.commands).map(|(nth, command)| {
            let number = first.map_or(newest, |first| first + nth);
            let token = Token::new(self.name.clone(), number);
            Committed { token, versions: command.versions.clone(), is_repeated: false }
        });
        Ok(done.collect())
    }
}
