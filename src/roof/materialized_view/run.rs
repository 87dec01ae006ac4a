//! The projector: it folds pages of events into generations, and serves them.
use std::{collections::BTreeMap, future::pending, pin::pin, time::Duration};

use futures_util::future::{join, select_all};

use super::{
    AsOf, Projection, View, ViewError, ViewEvent,
    source::{Item, ReadPage, hash_of},
    state::{self, Checkpoint, Cut, Generations, Origin, Place, Rivalry, Stop, Turn},
    stored::{checkpoint_row, rows_of, version_row},
    view::{ATTEMPT, Look, ViewInner, unanswered},
};
use crate::{
    port::{AskError, ErrorClass, Failure, PortError, PortErrorKind, ask},
    race::{First, race},
    store::{DeleteOptions, Precondition, Scan, StoreError, Version, Write},
    stream::{Position, Read, Recorded},
    time::Instant,
    work::Idle,
};

/// A generation as a projector knows it.
struct Follower<E> {
    generation: u64,
    rivalry: Rivalry,
    /// Partition with which the next page begins.
    first: usize,
    /// The next page, read while the last one was written.
    ahead: Ahead<E>,
}

/// Maximum number of old rows that are deleted between two pages of events.
const DELETED: usize = 100;
/// Time without a sign of a load, after which the rows are built from events instead.
const ABANDONED: Duration = Duration::from_secs(60);

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Something changed: the next step follows at once.
    More,
    /// The sources have no more.
    CaughtUp,
    /// Another projector is at work: nothing is done until then.
    Waits(Instant),
}

/// A projector of one process.
pub(super) struct Projector<'a, P: Projection> {
    view: &'a ViewInner<P>,
    /// The served generation is folded, too, and not only the one that is built.
    folds_live: bool,
    live: Follower<P::Event>,
    next: Follower<P::Event>,
    /// The generation that it does not build, as its checkpoint was when that failed for good.
    failed: Option<(u64, Version)>,
    /// Ends of the sources that a generation goes for before it is served as the first one, and
    /// `true` if it was at most a page behind them.
    goal: Option<(u64, AsOf, bool)>,
    /// A load without a served generation, as its checkpoint was, and since when.
    load: Option<(u64, Version, Instant)>,
    idle: Idle,
    /// Offsets behind which the sources are watched.
    offsets: Vec<u64>,
}

impl<P: Projection> View<P> {
    /// Folds events into rows until `shutdown` is ready. Any number of processes may run it: one
    /// folds, the others stand by, and one of them takes over if it ends.
    ///
    /// Failures of the store and of sources are events, and the requests are repeated.
    ///
    /// # Errors
    /// [`Diverged`](ViewError::Diverged), [`Trimmed`](ViewError::Trimmed),
    /// [`TooWide`](ViewError::TooWide), [`Undecodable`](ViewError::Undecodable),
    /// [`Retired`](ViewError::Retired), or a permanent failure of the store or a source. The rows
    /// stay as of the page before. `Invalid` if the view has no source, or others than the
    /// generation that is served: give such a view another version.
    ///
    /// # Cancel safety
    /// If the future is dropped, the last page took effect or not. Another projector goes on.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) -> Result<(), ViewError> {
        if self.0.sources.is_empty() {
            return Err(ViewError::Invalid(PortError::invalid("source", "must be there, to follow it")));
        }
        let ran = match race(shutdown, Projector::new(&self.0, true).runs(|_| false)).await {
            First::One(()) => Ok(()),
            First::Other(ended) => ended,
        };
        if let Err(error) = &ran {
            self.0.send_event(|| ViewEvent::Stopped { reason: error.to_string() });
        }
        ran
    }
}

impl<'a, P: Projection> Projector<'a, P> {
    pub(super) fn new(view: &'a ViewInner<P>, folds_live: bool) -> Self {
        let (live, next) = (Follower::default(), Follower::default());
        let (idle, offsets) = (Idle::default(), Vec::new());
        Self { view, folds_live, live, next, failed: None, goal: None, load: None, idle, offsets }
    }

    /// Works until the generations are as wanted, which is asked before each turn.
    pub(super) async fn runs(mut self, is_done: impl Fn(&Generations) -> bool) -> Result<(), ViewError> {
        loop {
            let progress = match self.turn(&is_done).await {
                Ok(None) => return Ok(()),
                Ok(Some(progress)) => progress,
                Err(error) if error.class() == ErrorClass::Permanent => return Err(error),
                Err(error) => {
                    self.view.send_event(|| ViewEvent::Failed { kind: error.backend().map(PortError::kind) });
                    let pause = self.pause();
                    self.view.clock.sleep(pause).await;
                    continue;
                }
            };
            match progress {
                Progress::More => self.idle.reset(),
                Progress::CaughtUp => {
                    let pause = self.pause();
                    self.watch(pause).await;
                }
                Progress::Waits(until) => self.view.clock.sleep_until(until).await,
            }
        }
    }

    fn pause(&mut self) -> Duration {
        self.idle.found_nothing(&self.view.config.idle, self.view.entropy.unit()).0
    }

    /// Waits until a source has more, or the time is over.
    async fn watch(&self, pause: Duration) {
        let parts = self
            .view
            .sources
            .iter()
            .flat_map(|source| (0..source.topic.partitions()).map(move |partition| (source, partition)));
        let mut reads: Vec<_> = parts
            .zip(&self.offsets)
            .map(|((source, partition), offset)| {
                source.topic.read(partition, Read::from(offset + 1).max(1).wait(pause))
            })
            .collect();
        let finds = async {
            while !reads.is_empty() {
                let (found, _, others) = select_all(std::mem::take(&mut reads)).await;
                if found.is_ok_and(|found| !found.is_empty()) {
                    return;
                }
                reads = others;
            }
            // A topic that does not wait, or fails, is asked again behind the pause.
            pending().await
        };
        race(pin!(finds), self.view.clock.sleep(pause)).await;
    }

    /// Does the next step for each generation. `None` once the generations are as wanted.
    async fn turn(&mut self, is_done: impl Fn(&Generations) -> bool) -> Result<Option<Progress>, ViewError> {
        let (view, version) = (self.view, self.view.config.version);
        let look = view.look(version).await.map_err(ViewError::Store)?;
        let Some((generations, at)) = look.generations.clone() else {
            let begun = view.begin(&Generations::default(), None, &view.before(), Origin::Events).await?;
            return Ok(Some(if begun.is_some() { Progress::More } else { Progress::CaughtUp }));
        };
        if generations.is_retired {
            return Err(ViewError::Retired);
        }
        if is_done(&generations) {
            return Ok(None);
        }
        let is_lost = generations.live.is_some() && look.live.is_none();
        let has_no_next = look.next.is_none() && (generations.next.is_some() || generations.live.is_none());
        if is_lost || has_no_next {
            let mut changed = generations.clone();
            if is_lost {
                changed.lose();
            }
            let begun = view.begin(&changed, Some(at), &view.before(), Origin::Events).await?;
            return Ok(Some(if begun.is_some() { Progress::More } else { Progress::CaughtUp }));
        }
        if self.resumes(&look).await? {
            return Ok(Some(Progress::More));
        }
        if self.is_abandoned(&look) {
            let begun = view.begin(&generations, Some(at), &view.before(), Origin::Events).await?;
            return Ok(Some(if begun.is_some() { Progress::More } else { Progress::CaughtUp }));
        }
        let mut progress = Vec::new();
        let built = generations.built().zip(look.next.as_ref());
        let built = built.filter(|(generation, (_, at))| self.failed != Some((*generation, *at)));
        // A rebuild takes the place of one that diverged, and its process may have died.
        let is_replaced = look.live.as_ref().is_some_and(|(live, _)| live.diverged.is_some()) && built.is_some();
        if let (true, Some(generation), Some(checkpoint)) =
            (self.folds_live && !is_replaced, generations.live, &look.live)
        {
            self.live.follows(generation);
            progress.push(step(view, &mut self.live, checkpoint).await?);
            self.offsets = view.offsets(&checkpoint.0);
        }
        if let Some((generation, checkpoint)) = built {
            self.next.follows(generation);
            match step(view, &mut self.next, checkpoint).await {
                Ok(stepped) => {
                    if stepped == Progress::CaughtUp
                        && (self.switches(&look, true).await? || self.finds_diverged(&look).await?)
                    {
                        return Ok(Some(Progress::More));
                    }
                    if stepped == Progress::More && !look.has_live() {
                        self.sets_goal(generation, &checkpoint.0).await?;
                    }
                    progress.push(stepped);
                    if look.live.is_none() || !self.folds_live {
                        self.offsets = view.offsets(&checkpoint.0);
                    }
                }
                // What is served goes on. Another process may be able to build it.
                Err(error) if self.folds_live && look.live.is_some() && error.class() == ErrorClass::Permanent => {
                    self.failed = Some((generation, checkpoint.1));
                    view.send_event(|| ViewEvent::RebuildStopped { generation, reason: error.to_string() });
                }
                Err(error) => return Err(error),
            }
        }
        let stands_by = |progress: &Progress| matches!(progress, Progress::Waits(_));
        if let Some(old) = generations.old.first()
            && (progress.is_empty() || !progress.iter().all(stands_by))
        {
            view.delete_page(version, &generations, at, *old).await?;
            return Ok(Some(Progress::More));
        }
        let earliest = |one: Progress, other: Progress| match (one, other) {
            (Progress::More, _) | (_, Progress::More) => Progress::More,
            (Progress::Waits(one), Progress::Waits(other)) => Progress::Waits(one.min(other)),
            _ => Progress::CaughtUp,
        };
        Ok(Some(progress.into_iter().reduce(earliest).unwrap_or(Progress::CaughtUp)))
    }

    /// Sets the ends that a generation goes for, once it has reached those before. A source that
    /// never rests has no other end.
    async fn sets_goal(&mut self, generation: u64, checkpoint: &Checkpoint) -> Result<(), ViewError> {
        let at = self.view.as_of(checkpoint);
        if !self.goal.as_ref().is_some_and(|(of, goal, _)| *of == generation && !at.reaches(goal)) {
            let head = self.view.head().await.map_err(ViewError::Store)?;
            let is_near = at.events_to(&head) <= u64::from(self.view.config.page);
            self.goal = Some((generation, head, is_near));
        }
        Ok(())
    }

    /// Returns `true` if the generation that is built has all events up to ends that it was near.
    fn has_reached_goal(&self, look: &Look) -> bool {
        let (Some((of, goal, true)), Some((next, _))) = (&self.goal, &look.next) else { return false };
        let built = look.generations.as_ref().and_then(|(generations, _)| generations.built());
        built == Some(*of) && self.view.as_of(next).reaches(goal)
    }

    /// Notes that the served generation has diverged, where no projector of it may be at work: a
    /// generation that has caught up, and is behind it, could never take its place.
    async fn finds_diverged(&self, look: &Look) -> Result<bool, ViewError> {
        let live = look.generations.as_ref().and_then(|(generations, _)| generations.live);
        let (false, true, Some(live), Some(checkpoint)) = (self.folds_live, look.has_live(), live, &look.live) else {
            return Ok(false);
        };
        match self.view.read_page(&checkpoint.0, 0).await? {
            Ok(_) => Ok(false),
            Err(place) => self.view.set_diverged(live, checkpoint, place).await.map(|()| true),
        }
    }

    /// Returns `true` for a load that nobody goes on with, and that nothing is served beside.
    fn is_abandoned(&mut self, look: &Look) -> bool {
        let (Some((generations, _)), Some((_, written))) = (&look.generations, &look.next) else { return false };
        let loads = generations.next.as_ref().filter(|next| next.origin == Origin::Loading);
        let (Some(next), None) = (loads, generations.live) else { return false };
        let now = self.view.clock.now();
        match self.load {
            Some((generation, at, since)) if (generation, at) == (next.generation, *written) => {
                now.saturating_since(since) >= ABANDONED
            }
            _ => {
                self.load = Some((next.generation, *written, now));
                false
            }
        }
    }

    /// Serves a generation that has reached the served one, or its goal. Its process may have died
    /// before it could: the sources may have been restored since.
    async fn resumes(&self, look: &Look) -> Result<bool, ViewError> {
        let built = look.generations.as_ref().and_then(|(generations, _)| generations.built());
        let (Some(generation), Some(next)) = (built, &look.next) else { return Ok(false) };
        let has_reached_goal = self.has_reached_goal(look);
        if !look.may_switch(has_reached_goal) {
            return Ok(false);
        }
        match self.view.read_page(&next.0, 0).await? {
            Ok(_) => self.switches(look, has_reached_goal).await,
            Err(place) => self.view.set_diverged(generation, next, place).await.map(|()| true),
        }
    }

    /// Serves the generation that was built, if that is no step back. The batch requires both
    /// checkpoints as they were compared.
    async fn switches(&self, look: &Look, has_caught_up: bool) -> Result<bool, ViewError> {
        let (Some((generations, at)), Some((_, next_at))) = (&look.generations, &look.next) else {
            return Ok(false);
        };
        let (view, version) = (self.view, self.view.config.version);
        if !look.may_switch(has_caught_up) {
            return Ok(false);
        }
        let mut switched = generations.clone();
        let Some(generation) = switched.switch() else { return Ok(false) };
        let mut writes = vec![
            Write::put(version_row(version), switched.encode(), Precondition::Version(*at)),
            Write::check_row(checkpoint_row(version, generation), Precondition::Version(*next_at)),
        ];
        if let (Some(live), Some((_, live_at))) = (generations.live, &look.live) {
            writes.push(Write::check_row(checkpoint_row(version, live), Precondition::Version(*live_at)));
        }
        let is_switched = view.batch(writes).await?.is_some();
        if is_switched {
            view.send_event(|| ViewEvent::Switched { generation });
            view.announce().await;
        }
        Ok(is_switched)
    }
}

impl<E> Default for Follower<E> {
    fn default() -> Self {
        Self { generation: 0, rivalry: Rivalry::default(), first: 0, ahead: None }
    }
}

impl<E> Follower<E> {
    fn follows(&mut self, generation: u64) {
        if self.generation != generation {
            *self = Self { generation, ..Self::default() };
        }
    }
}

/// Folds the next page of a generation.
async fn step<P: Projection>(
    view: &ViewInner<P>,
    follower: &mut Follower<P::Event>,
    known: &(Checkpoint, Version),
) -> Result<Progress, ViewError> {
    let (checkpoint, at) = known;
    if let Some((source, position)) = checkpoint.diverged {
        return Err(ViewError::Diverged { topic: view.topic_of(checkpoint, source), position });
    }
    view.check_sources(checkpoint)?;
    let standby = view.config.standby;
    let turn = follower.rivalry.turn(*at, view.clock.now(), standby);
    if let Turn::Waits(until) = turn {
        return Ok(Progress::Waits(until));
    }
    let page = match follower.ahead.take() {
        Some((behind, page)) if behind == *at => page,
        _ => view.read_page(checkpoint, follower.first).await?,
    };
    let items = match page {
        Ok(items) => items,
        Err(place) => {
            view.set_diverged(follower.generation, known, place).await?;
            return Ok(Progress::More);
        }
    };
    follower.first = follower.first.wrapping_add(1);
    if turn == Turn::Looks {
        let now = view.clock.now();
        follower.rivalry.looked(!items.is_empty(), now, standby);
        // The projector that built it may have died before it could serve it.
        return Ok(if items.is_empty() { Progress::CaughtUp } else { Progress::Waits(now + standby) });
    }
    if items.is_empty() {
        return Ok(Progress::CaughtUp);
    }
    let generation = follower.generation;
    match view.fold_page(generation, checkpoint, *at, (&items, follower.first)).await? {
        Some(ahead) => {
            follower.ahead = ahead;
            view.announce().await;
            Ok(Progress::More)
        }
        None => {
            let now = view.clock.now();
            follower.rivalry.lost(now, standby);
            view.send_event(|| ViewEvent::StandsBy { generation });
            Ok(Progress::Waits(now + standby))
        }
    }
}

/// A page that was read ahead, and the version of the checkpoint that it follows.
type Ahead<E> = Option<(Version, ReadPage<E>)>;

impl<P: Projection> ViewInner<P> {
    /// Refuses a checkpoint of other sources.
    pub(super) fn check_sources(&self, checkpoint: &Checkpoint) -> Result<(), ViewError> {
        let ours = self.sources.iter().map(|source| (source.identity.as_str(), usize::from(source.topic.partitions())));
        let theirs = checkpoint.sources.iter().map(|source| (source.identity.as_str(), source.places.len()));
        let (ours, theirs): (BTreeMap<_, _>, BTreeMap<_, _>) = (ours.collect(), theirs.collect());
        if ours == theirs {
            return Ok(());
        }
        let rule = "must be those of which the view was built: give another set another `version`";
        Err(ViewError::Invalid(PortError::invalid("source", rule)))
    }

    /// Notes the place of an event that is another one by now.
    async fn set_diverged(
        &self,
        generation: u64,
        (checkpoint, at): &(Checkpoint, Version),
        place: (u64, Position),
    ) -> Result<(), ViewError> {
        let diverged = Checkpoint { diverged: Some(place), ..checkpoint.clone() };
        let row = checkpoint_row(self.config.version, generation);
        // The next turn says so; after a conflict it looks at the other projector's checkpoint.
        self.batch(vec![Write::put(row, diverged.encode(), Precondition::Version(*at))]).await?;
        Ok(())
    }

    /// Returns the offsets of a checkpoint in the order of the view's own sources.
    fn offsets(&self, checkpoint: &Checkpoint) -> Vec<u64> {
        let of = |identity: &str| checkpoint.sources.iter().find(|source| source.identity == identity);
        let places = self.sources.iter().filter_map(|source| of(&source.identity)).flat_map(|source| &source.places);
        places.map(|place| place.offset).collect()
    }

    /// Folds records, and writes the page. `None` if another projector was faster. While a page is
    /// written that others follow, the next one is read, which begins with partition `first`: it is
    /// that behind the new version of the checkpoint.
    async fn fold_page(
        &self,
        generation: u64,
        checkpoint: &Checkpoint,
        at: Version,
        (items, first): (&[Item<P::Event>], usize),
    ) -> Result<Option<Ahead<P::Event>>, ViewError> {
        let sources: Vec<u64> =
            (0..).zip(&checkpoint.sources).flat_map(|(nth, source)| source.places.iter().map(move |_| nth)).collect();
        let source_of = |slot: usize| sources.get(slot).copied().unwrap_or_default();
        let (undecodable, most) = (self.config.undecodable, self.can.max_batch().saturating_sub(1));
        let check = |key: &str| self.check_key(generation, key);
        let page = state::cut(&self.projection, items, (source_of, check), &checkpoint.parked, undecodable, most);
        if page.taken == 0 {
            let (source, position) = (source_of(items[0].slot), items[0].recorded.position);
            return Err(self.stopped(checkpoint, source, position, page.stop, most));
        }
        let mut next = checkpoint.clone();
        let lasts: BTreeMap<usize, &Recorded> =
            items[..page.taken].iter().map(|item| (item.slot, &item.recorded)).collect();
        for (slot, last) in lasts {
            if let Some(place) = next.place_mut(slot) {
                *place = Place { offset: last.position.offset, hash: Some(hash_of(&last.event)) };
            }
        }
        next.parked.extend(page.parked.clone());
        let mut writes = self.rows_of_page(generation, &mut next, &page).await?;
        let rows = writes.len() as u64;
        let row = checkpoint_row(self.config.version, generation);
        writes.insert(0, Write::put(row, next.encode(), Precondition::Version(at)));
        let is_full = page.taken < items.len() || items.len() >= self.config.page as usize;
        // A read that fails is made again behind the page, and tells then.
        let reads = async { if is_full { self.read_page(&next, first).await.ok() } else { None } };
        let (written, ahead) = join(self.batch(writes), reads).await;
        let Some(versions) = written? else { return Ok(None) };
        self.send_event(|| ViewEvent::Projected { generation, records: page.taken as u64, rows });
        for ((_, stream), parked) in page.parked {
            self.send_event(|| ViewEvent::Parked { stream, reason: parked.reason });
        }
        Ok(Some(versions[0].zip(ahead)))
    }

    /// Refuses a key that no row of a generation can have.
    pub(super) fn check_key(&self, generation: u64, key: &str) -> Result<(), PortError> {
        match key.contains('\0') {
            true => Err(PortError::invalid("keys", "must have no zero byte")),
            false => self.can.check_key("keys", &(rows_of(self.config.version, generation) + key)),
        }
    }

    /// Encodes a row. Refuses one that is too large for the store.
    pub(super) fn encode_row(&self, key: &str, row: &P::Row) -> Result<Vec<u8>, ViewError> {
        let value = self.codec.encode(row).map_err(|error| self.bad_row(key, error))?;
        self.can.check_value("row", &value).map_err(|error| {
            ViewError::Store(PortError::new(error.kind(), format!("view: the row of {key:?}: {error}")))
        })?;
        Ok(value)
    }

    fn stopped(
        &self,
        checkpoint: &Checkpoint,
        source: u64,
        position: Position,
        stop: Option<Stop>,
        most: usize,
    ) -> ViewError {
        let topic = self.topic_of(checkpoint, source);
        match stop {
            Some(Stop::TooWide { rows }) => ViewError::TooWide { topic, position, rows, most },
            Some(Stop::Undecodable(reason)) => ViewError::Undecodable { topic, position, reason },
            None => ViewError::Store(PortError::new(PortErrorKind::Other, "view: a page without records")),
        }
    }

    /// Reads the rows that a page changes, folds its events into them, and returns the writes.
    async fn rows_of_page(
        &self,
        generation: u64,
        next: &mut Checkpoint,
        page: &Cut<'_, P::Event>,
    ) -> Result<Vec<Write>, ViewError> {
        let prefix = rows_of(self.config.version, generation);
        let names: Vec<String> = page.keys.keys().map(|key| format!("{prefix}{key}")).collect();
        let before = self.named(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let before = before.map_err(ViewError::Store)?;
        let mut rows: Vec<(&str, Option<P::Row>)> = page.keys.iter().map(|_| ("", None)).collect();
        for ((key, nth), before) in page.keys.iter().zip(&before) {
            let row = before.as_ref().map(|(value, _)| self.codec.decode(value)).transpose();
            rows[*nth] = (key, row.map_err(|error| self.bad_row(key, error))?);
        }
        state::fold(&self.projection, &mut rows, &page.folds);
        let mut writes = Vec::new();
        for (((key, nth), name), before) in page.keys.iter().zip(names).zip(before) {
            let before = before.map(|(value, _)| value);
            let after = rows[*nth].1.as_ref().map(|row| self.encode_row(key, row)).transpose()?;
            if after.as_deref() == before.as_deref() {
                continue;
            }
            next.rows = (next.rows + u64::from(after.is_some())).saturating_sub(u64::from(before.is_some()));
            let bytes = |value: Option<usize>| value.unwrap_or_default() as u64;
            next.bytes = (next.bytes + bytes(after.as_ref().map(Vec::len)))
                .saturating_sub(bytes(before.as_ref().map(bytes::Bytes::len)));
            writes.push(match after {
                Some(value) => Write::put(name, value, Precondition::Any),
                None => Write::delete(name, DeleteOptions::new()),
            });
        }
        Ok(writes)
    }

    fn bad_row(&self, key: &str, error: impl std::fmt::Display) -> ViewError {
        ViewError::Store(PortError::new(PortErrorKind::Corrupt, format!("view: the row of {key:?}: {error}")))
    }

    /// Sends a batch. `None` if a row has another version than it requires.
    pub(super) async fn batch(&self, writes: Vec<Write>) -> Result<Option<Vec<Option<Version>>>, ViewError> {
        match ask(&self.clock, ATTEMPT, self.store.batch(&self.partition, writes)).await {
            Ok(versions) => Ok(Some(versions)),
            Err(AskError::Failed(StoreError::Conflict { .. })) => Ok(None),
            Err(error) => Err(ViewError::Store(unanswered(error))),
        }
    }

    /// Begins a generation with this checkpoint in place of the one that is built. Returns its
    /// number and the version of its checkpoint, or `None` if another process has changed the
    /// generations.
    pub(super) async fn begin(
        &self,
        generations: &Generations,
        at: Option<Version>,
        checkpoint: &Checkpoint,
        origin: Origin,
    ) -> Result<Option<(u64, Version)>, ViewError> {
        let (version, mut begun) = (self.config.version, generations.clone());
        let generation = begun.begin(origin);
        let when = at.map_or(Precondition::Absent, Precondition::Version);
        let put = Write::put(version_row(version), begun.encode(), when);
        let first = Write::put(checkpoint_row(version, generation), checkpoint.encode(), Precondition::Absent);
        let written = self.batch(vec![put, first]).await?;
        Ok(written.and_then(|versions| Some((generation, versions.get(1).copied().flatten()?))))
    }

    /// Deletes a page of the rows of a generation that is no longer served: its checkpoint first,
    /// so that no page of a late projector is accepted. With the last row it is forgotten.
    pub(super) async fn delete_page(
        &self,
        version: u32,
        generations: &Generations,
        at: Version,
        generation: u64,
    ) -> Result<(), ViewError> {
        let checkpoint = Write::delete(checkpoint_row(version, generation), DeleteOptions::new());
        self.batch(vec![checkpoint]).await?;
        let most = DELETED.min(self.can.max_batch());
        let rows = Scan::partition(&self.partition).prefix(rows_of(version, generation)).limit(most);
        let page = ask(&self.clock, ATTEMPT, self.store.scan(&rows)).await;
        let page = page.map_err(|error| ViewError::Store(unanswered(error)))?;
        if !page.rows.is_empty() {
            let writes = page.rows.iter().map(|row| Write::delete(&*row.row, DeleteOptions::new()));
            self.batch(writes.collect()).await?;
        }
        if page.next.is_none() {
            let mut remaining = generations.clone();
            remaining.old.retain(|old| *old != generation);
            self.batch(vec![Write::put(version_row(version), remaining.encode(), Precondition::Version(at))]).await?;
        }
        Ok(())
    }
}
