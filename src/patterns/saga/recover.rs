//! Recovery: finds sagas without a living executor, and runs them.
use std::{
    collections::HashMap,
    future::{Future, pending},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::sync::{Semaphore, watch};

use super::{
    Saga, SagaError,
    core::{SagaCore, Seen, Takes},
    execution::{Driven, Leave},
    records::{OPEN, STUCK, Stored, index_row, of_store, record_row},
    state::Progress,
};
use crate::{
    port::{BoxFuture, ErrorClass},
    race::{First, race},
    store::{Row, Scan},
};

/// Maximum number of recovered sagas that run at once. Those that wait for a delay do not count.
const RUNNING: usize = 64;

/// Records as they were seen in earlier scans, by id.
pub(crate) type AllSeen = HashMap<String, Seen>;

/// The sagas to take over.
type Found = Result<Vec<(String, Stored)>, SagaError>;

impl<T: Send + Sync + 'static> Saga<T> {
    /// Finds open sagas whose executor is gone, and runs them, until `shutdown` is ready. One
    /// process is enough, and several are safe.
    ///
    /// It reads all open sagas every [`scan_interval`](super::SagaConfig::scan_interval), and takes
    /// over those whose record did not change for
    /// [`takeover_after`](super::SagaConfig::takeover_after) beyond their own delay; those that
    /// were released, at once. It never takes a saga that this component runs. After `shutdown`
    /// it waits for the attempts under way, and releases their sagas.
    ///
    /// # Errors
    /// Permanent failures of the store, such as a missing permission. Other failures are events.
    ///
    /// # Cancel safety
    /// A dropped future is a crash of its executions: their sagas are recovered later.
    pub async fn recover(&self, shutdown: impl Future<Output = ()>) -> Result<(), SagaError> {
        self.core.recover(shutdown).await
    }

    /// Returns the ids of all open sagas, and `true` for those that are stuck.
    ///
    /// # Errors
    /// [`Store`](SagaError::Store).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn list_open(&self) -> Result<Vec<(String, bool)>, SagaError> {
        Ok(self.list_open_up_to(usize::MAX).await?.0)
    }

    /// Returns the first open sagas, and `true` if these are all. It reads no further page once it
    /// has `most`.
    pub(crate) async fn list_open_up_to(&self, most: usize) -> Result<(Vec<(String, bool)>, bool), SagaError> {
        let mut open = Vec::new();
        let mut scan = self.core.index();
        loop {
            let page = self.core.patiently(|| self.core.store.scan(&scan)).await.map_err(of_store)?;
            open.extend(page.rows.iter().map(|row| (id_of(row).to_owned(), &*row.value == STUCK.as_bytes())));
            match page.next {
                Some(next) if open.len() < most => scan.after = Some(next),
                next => return Ok((open, next.is_none())),
            }
        }
    }
}

fn id_of(row: &Row) -> &str {
    row.row.get(2..).unwrap_or_default()
}

impl SagaCore {
    fn index(&self) -> Scan {
        Scan::partition(&self.partition).prefix(index_row("")).limit(self.store.capabilities().max_batch().min(100))
    }

    async fn recover(self: &Arc<Self>, shutdown: impl Future<Output = ()>) -> Result<(), SagaError> {
        let mut shutdown = pin!(shutdown);
        let (stop, stopped) = watch::channel(false);
        let running = Arc::new(Semaphore::new(RUNNING));
        let mut work: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
        let mut scan = self.clone().scan_after(Duration::ZERO, AllSeen::new());
        loop {
            let worked = async {
                if work.next().await.is_none() {
                    pending::<()>().await;
                }
            };
            match race(shutdown.as_mut(), race(scan.as_mut(), worked)).await {
                First::One(()) => break,
                First::Other(First::Other(())) => {}
                First::Other(First::One((seen, found))) => {
                    for (id, stored) in found? {
                        work.push(Box::pin(self.clone().run_recovered(id, stored, running.clone(), stopped.clone())));
                    }
                    scan = self.clone().scan_after(self.config.load().scan_interval, seen);
                }
            }
        }
        // Sagas that wait for a permit or a delay are left at once, the others at their next step.
        running.close();
        stop.send_replace(true);
        while work.next().await.is_some() {}
        Ok(())
    }

    fn scan_after(self: Arc<Self>, after: Duration, mut seen: AllSeen) -> BoxFuture<'static, (AllSeen, Found)> {
        Box::pin(async move {
            self.clock.sleep(after).await;
            let found = match self.stalled(&mut seen, Takes::Stalled).await {
                Err(SagaError::Store(error)) if error.class() != ErrorClass::Permanent => Ok(Vec::new()),
                found => found,
            };
            (seen, found)
        })
    }

    /// Returns the open sagas that this process may take over.
    pub(super) async fn stalled(&self, seen: &mut AllSeen, takes: Takes) -> Found {
        let (mut stalled, mut still, mut scan) = (Vec::new(), AllSeen::new(), self.index());
        loop {
            let page = self.patiently(|| self.store.scan(&scan)).await.map_err(of_store)?;
            let open = page.rows.iter().filter(|row| &*row.value == OPEN.as_bytes()).map(id_of);
            let open: Vec<_> = open.filter(|id| !self.is_local(id)).collect();
            if !open.is_empty() {
                let records = Scan::partition(&self.partition).named(open.into_iter().map(record_row));
                let records = self.patiently(|| self.store.scan(&records)).await.map_err(of_store)?;
                for row in records.rows {
                    let (id, version) = (id_of(&row).to_owned(), row.version);
                    let mut of_id = seen.remove(&id).flatten();
                    match Progress::decode(&row.value) {
                        Ok(progress) if progress.is_open() => {
                            let stored = Stored { progress, version };
                            if self.may_take(&stored, &mut of_id, takes) {
                                stalled.push((id.clone(), stored));
                            }
                        }
                        Ok(_) => continue, // it ended meanwhile
                        // An unreadable record keeps no other saga from its recovery, and is reported once.
                        Err(reason) => {
                            if of_id.is_none_or(|(seen, _)| seen != version) {
                                self.incompatible(&id, reason);
                            }
                            of_id = Some((version, self.clock.now()));
                        }
                    }
                    still.insert(id, of_id);
                }
            }
            match page.next {
                Some(next) => scan.after = Some(next),
                None => {
                    *seen = still;
                    return Ok(stalled);
                }
            }
        }
    }

    /// Runs a stalled saga, whose record was seen as it is in `stored`, until it ends or another
    /// executor takes it.
    async fn run_recovered(
        self: Arc<Self>,
        id: String,
        mut stored: Stored,
        running: Arc<Semaphore>,
        mut stopped: watch::Receiver<bool>,
    ) {
        let leave = Leave { when_deferred: true, when_stopped: Some(stopped.clone()) };
        loop {
            let Ok(permit) = running.acquire().await else { return };
            let Some(local) = self.enter(&id) else { return };
            // Failures are events. The next scan finds what is left.
            let Ok(Some(execution)) = self.claim(stored, local).await else { return };
            let Ok(Driven::Released(delay)) = execution.drive(&leave).await else { return };
            drop(permit);
            if let First::One(_) = race(stopped.wait_for(|stopped| *stopped), self.clock.sleep(delay)).await {
                return;
            }
            match self.read_known(&id).await {
                // Unless another executor has taken it meanwhile.
                Ok(now) if now.progress.is_open() && now.progress.owner.is_none() => stored = now,
                _ => return,
            }
        }
    }
}
