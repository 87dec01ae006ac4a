//! The shard's own check. It refuses keys of other shards, so that a stale router never reads or
//! writes at the wrong shard. It also refuses the work of a mover whose step was superseded.
use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::{
    directory::{ShardDirectory, ShardingError},
    key::{KeyBytes, ShardKey},
    map::{ShardId, ShardMap},
    move_steps::{Move, Step},
};
use crate::sync::Mutex;

/// Reason for which a shard refused a request. Nothing was done. The shard sends it to the router
/// as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refused {
    /// Another shard owns the key, and the router's map is older: refresh it.
    #[error(transparent)]
    Stale(#[from] StaleMap),
    /// Another shard owns the key by the shard's own map, which is older than the router's: the
    /// shard must refresh it.
    #[error("stale map: the shard has version {shard}, the router version {router}")]
    Behind {
        /// The version of the router's map.
        router: u64,
        /// The version of the shard's map.
        shard: u64,
    },
    /// The key is being moved: try again soon.
    #[error("the key is being moved")]
    Moving,
    /// The mover's step is not the newest one that this shard knows. The mover must stop.
    #[error("superseded: the move is at another step, or has ended")]
    Superseded,
}

/// Error of a router whose map is older than the shard's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("stale map: the router has version {router}, the shard version {shard}")]
#[non_exhaustive]
pub struct StaleMap {
    /// The version of the router's map.
    pub router: u64,
    /// The version of the shard's map.
    pub shard: u64,
}

impl StaleMap {
    /// Creates the error of these versions.
    pub const fn new(router: u64, shard: u64) -> Self {
        Self { router, shard }
    }
}

/// Kind of access to a key. A key that is moved can be read for longer than it can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
// Exhaustive: a request reads or writes.
pub enum Access {
    /// A read.
    Read,
    /// A write.
    Write,
}

/// A shard's own copy of the map, against which it checks each request. A clone is the same guard.
///
/// A shard [opens](Self::open) its guard at start-up, before it serves requests.
#[derive(Clone)]
pub struct ShardGuard(Arc<GuardCore>);

struct GuardCore {
    shard: ShardId,
    state: Mutex<GuardState>,
    released: Notify,
}

struct GuardState {
    map: Arc<ShardMap>,
    /// Number of permits, by the version of the map that issued them.
    permits: BTreeMap<u64, usize>,
}

/// Permission to work on a key. Hold it while the work runs, and drop it when the work has ended,
/// whatever its result.
#[must_use = "a permit that is dropped at once protects nothing"]
pub struct ShardPermit {
    guard: Arc<GuardCore>,
    version: u64,
}

impl ShardGuard {
    /// Creates the guard of this shard with this map.
    pub fn new(shard: ShardId, map: Arc<ShardMap>) -> Self {
        let state = Mutex::new(GuardState { map, permits: BTreeMap::new() });
        Self(Arc::new(GuardCore { shard, state, released: Notify::new() }))
    }

    /// Creates the guard of this shard with the directory's newest map.
    ///
    /// # Errors
    /// Same as [`ShardDirectory::refresh`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn open(shard: ShardId, directory: &ShardDirectory) -> Result<Self, ShardingError> {
        Ok(Self::new(shard, directory.refresh().await?))
    }

    /// Returns the shard.
    pub fn shard(&self) -> ShardId {
        self.0.shard
    }

    /// Returns the current map.
    pub fn map(&self) -> Arc<ShardMap> {
        self.0.state.lock().map.clone()
    }

    /// Replaces the map by a newer one; ignores an older one. Returns when all permits of older
    /// maps were dropped. The next step of a move relies on that.
    ///
    /// # Cancel safety
    /// The map is replaced in the first poll. Dropping the future only ends the wait: call this
    /// again with the same map to wait.
    pub async fn install(&self, map: Arc<ShardMap>) {
        let version = {
            let mut state = self.0.state.lock();
            if map.version() > state.map.version() {
                state.map = map;
            }
            state.map.version()
        };
        loop {
            let mut released = std::pin::pin!(self.0.released.notified());
            // Registered before the check, so that no release is missed between the two.
            released.as_mut().enable();
            if self.0.state.lock().permits.keys().next().is_none_or(|oldest| *oldest >= version) {
                return;
            }
            released.await;
        }
    }

    /// Checks a request, and returns its permit. `router` is the version of the router's map. The
    /// next step of a move waits for all permits: hold them briefly.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn enter(&self, key: &(impl ShardKey + ?Sized), access: Access, router: u64) -> Result<ShardPermit, Refused> {
        let key = KeyBytes::of(key);
        let mut state = self.0.state.lock();
        let shard = state.map.version();
        if state.map.shard_of_bytes(key.as_slice()) != Some(self.0.shard) {
            return Err(if router > shard {
                Refused::Behind { router, shard }
            } else {
                StaleMap { router, shard }.into()
            });
        }
        match (state.map.blocking_step(key.as_slice()), access) {
            (None, _) | (Some(Step::Frozen), Access::Read) => Ok(state.issue(&self.0)),
            (Some(_), _) => Err(Refused::Moving),
        }
    }

    /// Checks a request as [`enter`](Self::enter) does, but refreshes this shard's map first if it
    /// may be older than the router's.
    ///
    /// # Errors
    /// [`Refused`], also if the map could not be refreshed.
    ///
    /// # Cancel safety
    /// If the future is dropped, no permit exists.
    pub async fn enter_fresh(
        &self,
        directory: &ShardDirectory,
        key: &(impl ShardKey + ?Sized),
        access: Access,
        router: u64,
    ) -> Result<ShardPermit, Refused> {
        let permit = self.enter(key, access, router);
        let Err(Refused::Behind { shard, .. }) = permit else { return permit };
        match directory.refresh_past(shard).await {
            Ok(map) => self.replace_map(map),
            Err(_) => return permit,
        }
        self.enter(key, access, router)
    }

    /// Replaces the map by a newer one without waiting for permits, because no step of a move
    /// depends on it here.
    fn replace_map(&self, map: Arc<ShardMap>) {
        let mut state = self.0.state.lock();
        if map.version() > state.map.version() {
            state.map = map;
        }
    }

    /// Checks the work of a mover, at either shard of a move: the move and its step must be those
    /// of the newest map here. A mover that was paused is refused if its step was superseded, so
    /// that it undoes nothing.
    ///
    /// # Errors
    /// [`Refused::Superseded`].
    pub fn enter_move(&self, work: &Move) -> Result<ShardPermit, Refused> {
        let mut state = self.0.state.lock();
        if state.map.moving() == Some(work) && [work.from, work.to].contains(&self.0.shard) {
            Ok(state.issue(&self.0))
        } else {
            Err(Refused::Superseded)
        }
    }
}

impl GuardState {
    fn issue(&mut self, guard: &Arc<GuardCore>) -> ShardPermit {
        let version = self.map.version();
        *self.permits.entry(version).or_default() += 1;
        ShardPermit { guard: guard.clone(), version }
    }
}

impl ShardPermit {
    /// Returns the version of the map that issued the permit.
    pub const fn version(&self) -> u64 {
        self.version
    }
}

impl Drop for ShardPermit {
    fn drop(&mut self) {
        let mut state = self.guard.state.lock();
        if let Some(permits) = state.permits.get_mut(&self.version) {
            *permits -= 1;
            if *permits == 0 {
                state.permits.remove(&self.version);
                drop(state);
                self.guard.released.notify_waiters();
            }
        }
    }
}

impl fmt::Debug for ShardGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.lock();
        let permits: usize = state.permits.values().sum();
        let mut shown = f.debug_struct("ShardGuard");
        shown.field("shard", &self.0.shard).field("version", &state.map.version()).field("permits", &permits).finish()
    }
}

impl fmt::Debug for ShardPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardPermit").field("version", &self.version).finish()
    }
}
