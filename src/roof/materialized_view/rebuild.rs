//! Rebuilds: generations that are built beside the served one, and the end of a version.
use std::{collections::BTreeMap, fmt, pin::pin, time::Duration};

use super::{
    Projection, View, ViewError, ViewEvent,
    run::Projector,
    source::hash_of,
    state::{Checkpoint, Generations, Origin, Place},
    stored::{checkpoint_row, rows_of, version_row},
    view::{ATTEMPT, Look, ViewInner},
};
use crate::{
    port::{AskError, ErrorClass, Failure, PortError, PortErrorKind, ask},
    race::{First, race},
    store::{Precondition, StoreError, Version, Write},
    stream::{Position, Read},
};

/// Time between two signs of a load that returns no rows.
const SIGN: Duration = Duration::from_secs(10);

impl<P: Projection> View<P> {
    /// Folds all events anew, and serves the result once it is no step back. Readers are served the
    /// old rows until then. Returns when the new ones are served, and the old ones are deleted.
    ///
    /// A rebuild that is under way is joined. One whose process died is resumed by the projectors,
    /// and by the next call.
    ///
    /// # Errors
    /// Same as [`run`](Self::run), and [`Replaced`](ViewError::Replaced) if another rebuild took
    /// its place. A rebuild that cannot succeed is given up, and the old rows are served on.
    ///
    /// # Cancel safety
    /// If the future is dropped, projectors go on with the rebuild, if it has begun.
    pub async fn rebuild(&self) -> Result<(), ViewError> {
        let inner = &*self.0;
        if inner.sources.is_empty() {
            return Err(ViewError::Invalid(PortError::invalid("source", "must be there, to fold it anew")));
        }
        let generation = loop {
            let look = inner.look_of_own().await?;
            let next = look.generations.as_ref().and_then(|(generations, _)| generations.next.as_ref());
            let can_go_on = look.next.as_ref().is_some_and(|(next, _)| next.diverged.is_none());
            if let Some(next) = next.filter(|next| can_go_on && next.origin == Origin::Events) {
                break next.generation;
            }
            let (generations, at) = look.generations.unzip();
            let generations = generations.unwrap_or_default();
            if generations.is_retired {
                return Err(ViewError::Retired);
            }
            inner.check_first().await?;
            if let Some((generation, _)) = inner.begin(&generations, at, &inner.before(), Origin::Events).await? {
                break generation;
            }
            inner.clock.sleep(inner.config.idle.min).await;
        };
        inner.finish(generation).await
    }

    /// Writes rows of any source as a new generation, and serves them once all are written. `load`
    /// is called with 0, 1, .. and returns the next rows with their keys; none ends the load.
    /// Readers are served the old rows until then.
    ///
    /// Of a view with sources, the events behind the ends that its sources had before the load are
    /// folded into the new rows.
    ///
    /// # Errors
    /// `Invalid` for a key that comes twice, has a zero byte or is too long for the store,
    /// [`Replaced`](ViewError::Replaced) if another rebuild took its place. The error of `load` as
    /// `Store`, of the kind `Other`. Same as [`run`](Self::run) else.
    ///
    /// # Cancel safety
    /// If the future is dropped, the old rows are served, and the next rebuild deletes the new
    /// ones. If none were served yet, projectors build them from events a minute later. So they do
    /// if `load` blocks its thread for a minute.
    pub async fn regenerate<E: fmt::Display>(
        &self,
        load: impl AsyncFnMut(u64) -> Result<Vec<(String, P::Row)>, E>,
    ) -> Result<(), ViewError> {
        let inner = &*self.0;
        let ends = inner.ends().await.map_err(ViewError::Store)?;
        let (generation, at) = loop {
            let look = inner.look_of_own().await?;
            let (generations, at) = look.generations.unzip();
            let generations = generations.unwrap_or_default();
            if generations.is_retired {
                return Err(ViewError::Retired);
            }
            if let Some(begun) = inner.begin(&generations, at, &ends, Origin::Loading).await? {
                break begun;
            }
            inner.clock.sleep(inner.config.idle.min).await;
        };
        if let Err(error) = inner.load(generation, ends, at, load).await {
            let is_retired = inner.give_up(generation, true).await;
            return Err(if is_retired { ViewError::Retired } else { error });
        }
        inner.finish(generation).await
    }

    /// Deletes another version of the view, and returns `true` if there was one. Processes of that
    /// version get [`Retired`](ViewError::Retired) from then on.
    ///
    /// # Errors
    /// `Invalid` for this version; an error of the store.
    ///
    /// # Cancel safety
    /// If the future is dropped, the version may be retired, and rows of it may be left. Call it
    /// again.
    pub async fn retire(&self, version: u32) -> Result<bool, ViewError> {
        let inner = &*self.0;
        if version == inner.config.version {
            let rule = format_args!("must be another one than {version}, which this process has");
            return Err(ViewError::Invalid(PortError::invalid("version", rule)));
        }
        let mut was_there = false;
        loop {
            let look = inner.look(version).await.map_err(ViewError::Store)?;
            let Some((mut generations, at)) = look.generations else { return Ok(false) };
            if !generations.is_retired {
                was_there = true;
                generations.retire();
                let put = Write::put(version_row(version), generations.encode(), Precondition::Version(at));
                inner.batch(vec![put]).await?;
            } else if let Some(old) = generations.old.first() {
                was_there = true;
                inner.delete_page(version, &generations, at, *old).await?;
            } else {
                return Ok(was_there);
            }
        }
    }
}

impl<P: Projection> ViewInner<P> {
    /// Looks at the generations, and refuses those of other sources.
    async fn look_of_own(&self) -> Result<Look, ViewError> {
        let look = self.look(self.config.version).await.map_err(ViewError::Store)?;
        for (checkpoint, _) in look.live.iter().chain(&look.next) {
            self.check_sources(checkpoint)?;
        }
        Ok(look)
    }

    /// Refuses sources whose first event is gone.
    async fn check_first(&self) -> Result<(), ViewError> {
        for (nth, source) in self.sources.iter().enumerate() {
            for partition in 0..source.topic.partitions() {
                let first = self.bounds(nth, partition).await.map_err(ViewError::Store)?.first;
                if first > 1 {
                    let (topic, first) = (source.name.to_string(), Position::new(partition, first));
                    return Err(ViewError::Trimmed { topic, first });
                }
            }
        }
        Ok(())
    }

    /// Takes back a generation that cannot be built, if another one is served, or it is a load.
    /// Returns `true` if the version was retired.
    async fn give_up(&self, generation: u64, is_load: bool) -> bool {
        let version = self.config.version;
        let gives_up = async {
            let look = self.look(version).await.map_err(ViewError::Store)?;
            let Some((mut generations, at)) = look.generations else { return Ok(false) };
            if (is_load || generations.live.is_some()) && generations.give_up(generation) {
                let put = Write::put(version_row(version), generations.encode(), Precondition::Version(at));
                self.batch(vec![put]).await?;
            }
            Ok::<_, ViewError>(generations.is_retired)
        };
        gives_up.await.unwrap_or_else(|error| {
            // Projectors leave it alone, and the next call joins it, and gives it up.
            self.send_event(|| ViewEvent::Failed { kind: error.backend().map(PortError::kind) });
            false
        })
    }

    /// Writes the rows of a load.
    async fn load<E: fmt::Display>(
        &self,
        generation: u64,
        mut checkpoint: Checkpoint,
        mut at: Version,
        mut load: impl AsyncFnMut(u64) -> Result<Vec<(String, P::Row)>, E>,
    ) -> Result<(), ViewError> {
        for nth in 0.. {
            let loaded = {
                let mut loads = pin!(load(nth));
                loop {
                    match race(&mut loads, self.clock.sleep(SIGN)).await {
                        First::One(loaded) => break loaded,
                        First::Other(()) => at = self.give_sign(generation, &checkpoint, at).await?,
                    }
                }
            };
            let loaded = loaded.map_err(|error| {
                ViewError::Store(PortError::new(PortErrorKind::Other, format!("view: the load failed: {error}")))
            })?;
            if loaded.is_empty() {
                break;
            }
            let most = self.can.max_batch().saturating_sub(1).max(1);
            let mut loaded = loaded.into_iter().peekable();
            while loaded.peek().is_some() {
                let rows: Vec<_> = loaded.by_ref().take(most).collect();
                at = self.write_rows(generation, &mut checkpoint, at, &rows).await?;
            }
        }
        loop {
            let look = self.look(self.config.version).await.map_err(ViewError::Store)?;
            let (mut generations, at) = look.generations.ok_or(ViewError::Replaced)?;
            if !generations.loaded(generation) {
                return Err(ViewError::Replaced);
            }
            let row = version_row(self.config.version);
            if self.batch(vec![Write::put(row, generations.encode(), Precondition::Version(at))]).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Writes the checkpoint of a load again, so that projectors see that it goes on. Returns its
    /// version.
    async fn give_sign(&self, generation: u64, checkpoint: &Checkpoint, at: Version) -> Result<Version, ViewError> {
        let row = checkpoint_row(self.config.version, generation);
        loop {
            let put = Write::put(&*row, checkpoint.encode(), Precondition::Version(at));
            match self.batch(vec![put]).await {
                Ok(Some(versions)) => return versions.first().copied().flatten().ok_or(ViewError::Replaced),
                Ok(None) => {}
                Err(error) if error.class() == ErrorClass::Permanent => return Err(error),
                Err(_) => self.clock.sleep(self.config.idle.max).await,
            }
            // A lost reply looks like a conflict. Nobody else writes the checkpoint of a load.
            if let Ok(look) = self.look(self.config.version).await {
                let next = look.generations.and_then(|(generations, _)| generations.next);
                return match (next, look.next) {
                    (Some(next), Some((_, at))) if next.generation == generation => Ok(at),
                    _ => Err(ViewError::Replaced),
                };
            }
        }
    }

    /// Builds a generation until it is served.
    async fn finish(&self, generation: u64) -> Result<(), ViewError> {
        let is_over =
            |generations: &Generations| generations.next.as_ref().is_none_or(|next| next.generation != generation);
        if let Err(error) = Projector::new(self, false).runs(is_over).await {
            self.give_up(generation, false).await;
            return Err(error);
        }
        let look = self.look(self.config.version).await.map_err(ViewError::Store)?;
        let live = look.generations.and_then(|(generations, _)| generations.live);
        // A later one has it in its past, or took its place.
        if live.is_none_or(|live| live < generation) {
            return Err(ViewError::Replaced);
        }
        if let Err(error) = self.delete_old().await {
            // They cost storage alone: a projector, or the next rebuild, deletes them.
            self.send_event(|| ViewEvent::Failed { kind: error.backend().map(PortError::kind) });
        }
        Ok(())
    }

    /// Deletes the generations that are no longer served.
    async fn delete_old(&self) -> Result<(), ViewError> {
        let version = self.config.version;
        loop {
            let look = self.look(version).await.map_err(ViewError::Store)?;
            let Some((generations, at)) = look.generations else { return Ok(()) };
            let Some(old) = generations.old.first() else { return Ok(()) };
            self.delete_page(version, &generations, at, *old).await?;
        }
    }

    /// Returns the checkpoint behind all events that the sources have.
    async fn ends(&self) -> Result<Checkpoint, PortError> {
        let mut ends = self.before();
        let parts = self
            .sources
            .iter()
            .enumerate()
            .flat_map(|(nth, source)| (0..source.topic.partitions()).map(move |partition| (nth, partition)));
        for (slot, (nth, partition)) in parts.enumerate() {
            let offset = self.bounds(nth, partition).await?.next - 1;
            let read = self.sources[nth].topic.read(partition, Read::from(offset.max(1)).max(1));
            let read = ask(&self.clock, ATTEMPT, read).await;
            let found = read.map_err(|error| error.or_timed_out("view: a source did not answer in time"))?;
            let last = found.first().filter(|last| last.position.offset == offset);
            if let Some(place) = ends.place_mut(slot) {
                *place = Place { offset, hash: last.map(|last| hash_of(&last.event)) };
            }
        }
        Ok(ends)
    }

    /// Writes rows of a load, and returns the version of its checkpoint.
    async fn write_rows(
        &self,
        generation: u64,
        checkpoint: &mut Checkpoint,
        at: Version,
        rows: &[(String, P::Row)],
    ) -> Result<Version, ViewError> {
        let (version, prefix) = (self.config.version, rows_of(self.config.version, generation));
        let mut encoded = BTreeMap::new();
        for (key, row) in rows {
            self.check_key(generation, key).map_err(ViewError::Invalid)?;
            let value = self.encode_row(key, row)?;
            (checkpoint.rows, checkpoint.bytes) = (checkpoint.rows + 1, checkpoint.bytes + value.len() as u64);
            if encoded.insert(format!("{prefix}{key}"), value).is_some() {
                return Err(twice(key));
            }
        }
        let of_load = checkpoint_row(version, generation);
        let mut writes = vec![Write::put(of_load, checkpoint.encode(), Precondition::Version(at))];
        writes.extend(encoded.into_iter().map(|(row, value)| Write::put(row, value, Precondition::Absent)));
        let names: Vec<String> = writes.iter().filter_map(|write| write.row().map(str::to_owned)).collect();
        match ask(&self.clock, ATTEMPT, self.store.batch(&self.partition, writes)).await {
            Ok(versions) => versions.first().copied().flatten().ok_or(ViewError::Replaced),
            Err(AskError::Failed(StoreError::Conflict { write: 0, .. })) => Err(ViewError::Replaced),
            Err(AskError::Failed(StoreError::Conflict { write, .. })) => {
                Err(twice(names.get(write).and_then(|name| name.strip_prefix(prefix.as_str())).unwrap_or_default()))
            }
            Err(error) => Err(ViewError::Store(super::view::unanswered(error))),
        }
    }
}

fn twice(key: &str) -> ViewError {
    ViewError::Invalid(PortError::invalid("load", format_args!("must return each key once, returned {key:?} again")))
}
