//! Pruning: releases that are no longer kept, and then the files that none of the others has.
use std::collections::{BTreeMap, HashSet};

use futures_util::{StreamExt as _, stream};

use super::{
    SiteError, SitePublisher, SitePublisherEvent as Event,
    manifest::{Content, Manifest},
    session::{Session, kept_for},
};
use crate::time::Timestamp;

/// Result of [`SitePublisher::prune`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Pruned {
    /// Numbers of the releases that are no longer kept.
    pub releases: Vec<u64>,
    /// Number of objects that were deleted.
    pub files: usize,
}

impl SitePublisher {
    /// Deletes the releases that are not kept, and the files that they alone have, with those of
    /// attempts that failed. It deletes nothing that no release has listed.
    ///
    /// # Errors
    /// [`SiteError::Damaged`]: a release that is kept cannot be read, so it may have any file.
    /// Publish, and in time it is kept no more. What was not deleted is left to the next call.
    /// After the first delete the lease stays until its term is over: another one may be on its
    /// way.
    ///
    /// # Cancel safety
    /// Same as an error. The lease stays until its term is over.
    pub async fn prune(&self) -> Result<Pruned, SiteError> {
        let session = self.begin().await?;
        let pruned = session.during(self.prune_within(&session)).await?;
        if pruned != Pruned::default() {
            self.tell(Event::Pruned { releases: pruned.releases.len(), files: pruned.files });
        }
        Ok(pruned)
    }

    async fn prune_within(&self, session: &Session<'_>) -> Result<Pruned, SiteError> {
        let head = &session.head;
        let mut listed = BTreeMap::new();
        for (number, _) in head.rows() {
            let manifest = match session.manifest(number).await {
                Err(SiteError::Damaged(_)) => None,
                found => found?,
            };
            listed.insert(number, manifest);
        }
        let kept = self.kept(&listed, head.stable());
        let next = head.keep(|number| kept.contains(&number));
        let unlisted = session.revisions.unlisted(&next).await?;
        if unlisted.is_empty() && next == *head {
            return Ok(Pruned::default());
        }
        // From here on no rollback reaches them, and a later release has a higher number than each of
        // these rows. A publisher that has begun since the start refuses this.
        let last = unlisted.iter().map(|(number, ..)| *number).max();
        session.move_head(&next.after(last.unwrap_or_default())).await?;
        let mut used: HashSet<String> = HashSet::new();
        for number in kept {
            // A release that cannot be read may have any file.
            let manifest = listed[&number].as_ref().ok_or(SiteError::Damaged(number))?;
            used.extend(manifest.objects().map(|(key, _)| key));
        }
        let (mut pruned, mut failed) = (Pruned::default(), None);
        for (number, owner, bytes) in unlisted {
            // One that a newer release of this crate wrote is left to that.
            let Ok(manifest) = Manifest::decode(number, bytes) else { continue };
            let was_listed = head.owner(number) == Some(owner);
            let objects = manifest.objects().filter(|(key, _)| !used.contains(key));
            let deletes = stream::iter(objects.map(|object| self.delete(session, object, was_listed)));
            let mut deletes = deletes.buffer_unordered(self.0.config.parallelism);
            let mut is_left = false;
            while let Some(deleted) = deletes.next().await {
                match deleted {
                    Ok(deleted) => pruned.files += usize::from(deleted),
                    // One name that the bucket refuses keeps no other object.
                    Err(error @ SiteError::Bucket { .. }) => {
                        is_left = true;
                        failed.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            drop(deletes);
            if is_left {
                continue;
            }
            pruned.releases.extend(was_listed.then_some(number));
            session.begin_delete()?;
            session.revisions.discard(number, owner).await;
        }
        failed.map_or(Ok(pruned), Err)
    }

    /// Returns the numbers of the releases that are kept.
    fn kept(&self, listed: &BTreeMap<u64, Option<Manifest>>, stable: u64) -> HashSet<u64> {
        let config = &self.0.config;
        let now = self.0.clock.wall().as_millis();
        let kept_for = u64::try_from(kept_for(config).as_millis()).unwrap_or(u64::MAX);
        // The time at which the next one took its place.
        let mut replaced: Option<Timestamp> = None;
        let mut kept = HashSet::new();
        for (nth, (number, manifest)) in listed.iter().rev().enumerate() {
            let is_young = replaced.is_none_or(|at| now < at.as_millis().saturating_add(kept_for));
            if nth < config.keep_releases || is_young || *number == stable {
                kept.insert(*number);
            }
            replaced = manifest.as_ref().map(|manifest| manifest.at).or(replaced);
        }
        kept
    }

    /// Deletes an object. `was_listed`: all of its release's objects were verified. Another one may
    /// be what the release was refused for, and belong to somebody else: it is compared.
    async fn delete(
        &self,
        session: &Session<'_>,
        (key, content): (String, Content),
        was_listed: bool,
    ) -> Result<bool, SiteError> {
        let bucket = &self.0.bucket;
        if !was_listed && bucket.holds(&key, content).await? != Some(true) {
            return Ok(false);
        }
        // A publisher that acquires the lease next may count on this object.
        session.begin_delete()?;
        bucket.delete(&key).await
    }
}
