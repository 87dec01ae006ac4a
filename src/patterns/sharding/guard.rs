//! The shard's own check: it refuses keys that are not its own, so that a stale router never reads or writes at the wrong shard, and
//! work of a mover that was overtaken.
use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::{
    directory::{ShardDirectory, ShardingError},
    key::{KeyBytes, ShardKey},
    map::{ShardId, ShardMap},
    step::{Move, Step},
};
use crate::sync::Mutex;

/// Why a shard refused. Nothing was done. A shard sends it to the router as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refused {
    /// The key is not this shard's, and the router's map is the older one: refresh it.
    #[error(transparent)]
    Stale(#[from] StaleMap),
    /// The key is not this shard's by its own map, which is older than the router's: the shard has to refresh it.
    #[error("the shard is behind: it has version {shard} of the map, the router {router}")]
    Behind {
        /// The version by which the router sent it.
        router: u64,
        /// The shard's version.
        shard: u64,
    },
    /// The key is being moved: ask again in a moment.
    #[error("the key is being moved")]
    Moving,
    /// The mover was overtaken: the step that it works for is not this shard's newest. It must not go on.
    #[error("the move is at another step by now, or over")]
    Overtaken,
}

/// The router's map is older than the shard's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("stale map: the router has version {router}, the shard version {shard}")]
pub struct StaleMap {
    /// The version by which the router sent it.
    pub router: u64,
    /// The shard's version.
    pub shard: u64,
}

/// What somebody wants with a key. A key that is being moved can be read for longer than it can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// To read it.
    Read,
    /// To write it.
    Write,
}

/// A shard's own copy of the map, which it checks every request by. A clone is the same guard.
///
/// A shard that starts [opens](Self::open) it before it serves anybody.
#[derive(Clone)]
pub struct ShardGuard(Arc<Inner>);

struct Inner {
    shard: ShardId,
    held: Mutex<Held>,
    left: Notify,
}

struct Held {
    map: Arc<ShardMap>,
    /// How many are inside, by the version that let them in.
    inside: BTreeMap<u64, usize>,
}

/// Somebody who was let in: keep it while the work goes on, and drop it when that has ended, whatever its end.
#[must_use = "who is let in and leaves at once is not protected"]
pub struct Entered {
    guard: Arc<Inner>,
    version: u64,
}

impl ShardGuard {
    /// The check of this shard, by this map.
    pub fn new(shard: ShardId, map: Arc<ShardMap>) -> Self {
        let held = Mutex::new(Held { map, inside: BTreeMap::new() });
        Self(Arc::new(Inner { shard, held, left: Notify::new() }))
    }

    /// The check of this shard, by the newest map that the directory has.
    ///
    /// # Errors
    /// As [`ShardDirectory::refresh`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn open(shard: ShardId, directory: &ShardDirectory) -> Result<Self, ShardingError> {
        Ok(Self::new(shard, directory.refresh().await?))
    }

    /// The shard that it is the check of.
    pub fn shard(&self) -> ShardId {
        self.0.shard
    }

    /// The map that it checks by.
    pub fn map(&self) -> Arc<ShardMap> {
        self.0.held.lock().map.clone()
    }

    /// Takes a newer map, by which it checks from now on; an older one is passed over. Returns when everybody who was let in by an older
    /// one has left: what a move does next may then rely on it.
    ///
    /// # Cancel safety
    /// The map is taken at the first poll. Dropped, it does not wait: call it again with the same map to wait on.
    pub async fn install(&self, map: Arc<ShardMap>) {
        let version = {
            let mut held = self.0.held.lock();
            if map.version() > held.map.version() {
                held.map = map;
            }
            held.map.version()
        };
        loop {
            let mut left = std::pin::pin!(self.0.left.notified());
            // Registered before it looks, so that no leaving falls between.
            left.as_mut().enable();
            if self.0.held.lock().inside.keys().next().is_none_or(|oldest| *oldest >= version) {
                return;
            }
            left.await;
        }
    }

    /// Lets a request in, unless it is refused. `router` is the version of the map by which it was sent. Whoever is inside is waited for by a
    /// move's next step: keep it short.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn enter(&self, key: &(impl ShardKey + ?Sized), access: Access, router: u64) -> Result<Entered, Refused> {
        let key = KeyBytes::of(key);
        let mut held = self.0.held.lock();
        let shard = held.map.version();
        if held.map.shard_of_bytes(key.as_slice()) != Some(self.0.shard) {
            return Err(if router > shard {
                Refused::Behind { router, shard }
            } else {
                StaleMap { router, shard }.into()
            });
        }
        match (held.map.held_up(key.as_slice()), access) {
            (None, _) | (Some(Step::Frozen), Access::Read) => Ok(held.let_in(&self.0)),
            (Some(_), _) => Err(Refused::Moving),
        }
    }

    /// The same, where this shard's map may be the older one: then it is refreshed first.
    ///
    /// # Errors
    /// [`Refused`], also where the map could not be refreshed.
    ///
    /// # Cancel safety
    /// Dropped, nobody is inside.
    pub async fn enter_fresh(
        &self,
        directory: &ShardDirectory,
        key: &(impl ShardKey + ?Sized),
        access: Access,
        router: u64,
    ) -> Result<Entered, Refused> {
        let entered = self.enter(key, access, router);
        let Err(Refused::Behind { shard, .. }) = entered else { return entered };
        match directory.refresh_past(shard).await {
            Ok(map) => self.take(map),
            Err(_) => return entered,
        }
        self.enter(key, access, router)
    }

    /// Takes a newer map and waits for nobody: nothing is done for it here.
    fn take(&self, map: Arc<ShardMap>) {
        let mut held = self.0.held.lock();
        if map.version() > held.map.version() {
            held.map = map;
        }
    }

    /// Lets a mover's work in, at either end of the move: only the one that the newest map here names, at the step that it names. A mover
    /// that was paused finds that it was overtaken, and undoes nothing.
    ///
    /// # Errors
    /// [`Refused::Overtaken`].
    pub fn enter_move(&self, work: &Move) -> Result<Entered, Refused> {
        let mut held = self.0.held.lock();
        if held.map.moving() == Some(work) && [work.from, work.to].contains(&self.0.shard) {
            Ok(held.let_in(&self.0))
        } else {
            Err(Refused::Overtaken)
        }
    }
}

impl Held {
    fn let_in(&mut self, guard: &Arc<Inner>) -> Entered {
        let version = self.map.version();
        *self.inside.entry(version).or_default() += 1;
        Entered { guard: guard.clone(), version }
    }
}

impl Entered {
    /// The version of the map that let it in.
    pub const fn version(&self) -> u64 {
        self.version
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut held = self.guard.held.lock();
        if let Some(inside) = held.inside.get_mut(&self.version) {
            *inside -= 1;
            if *inside == 0 {
                held.inside.remove(&self.version);
                drop(held);
                self.guard.left.notify_waiters();
            }
        }
    }
}

impl fmt::Debug for ShardGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.0.held.lock();
        let inside: usize = held.inside.values().sum();
        let mut shown = f.debug_struct("ShardGuard");
        shown.field("shard", &self.0.shard).field("version", &held.map.version()).field("inside", &inside).finish()
    }
}

impl fmt::Debug for Entered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entered").field("version", &self.version).finish()
    }
}
