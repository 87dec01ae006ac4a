//! Unique keys: claims, and their takeover.
use std::time::Duration;

use super::{
    IndexTableError, IndexTableEvent,
    stored::{self, owner},
    table::{Entry, TableInner},
};
use crate::{
    store::{Key, Precondition, StoreError, Version},
    time::Instant,
};

/// Number of times `patience` for which a claim may be renewed without its row having the key.
const RENEWED: u32 = 10;

impl<V> TableInner<V> {
    /// Claims a unique key for a row, also again: the entry has another version afterwards, and no
    /// copy. Returns that version.
    pub(super) async fn claim(&self, entry: &Entry, of: Key<'_>) -> Result<Version, IndexTableError> {
        let index = &self.indexes[entry.index];
        let try_put = async |when: Precondition| match self
            .ask(index.store.put(entry.as_key(), stored::claim(of, None), when.into()))
            .await
        {
            Ok(version) => Ok(Some(version)),
            Err(StoreError::Conflict { .. }) => Ok(None),
            Err(error) => Err(IndexTableError::from(error)),
        };
        let (mut unchanged, mut since): (Option<Version>, Option<Instant>) = (None, None);
        if let Some(version) = try_put(Precondition::Absent).await? {
            return Ok(version);
        }
        loop {
            let Some(found) = self.ask(index.store.get(entry.as_key())).await? else {
                if let Some(version) = try_put(Precondition::Absent).await? {
                    return Ok(version);
                }
                continue;
            };
            let when = Precondition::Version(found.version);
            let (owner, _) = owner(&entry.row, found.value).map_err(IndexTableError::Store)?;
            if owner.as_key() == of {
                if let Some(version) = try_put(when).await? {
                    return Ok(version);
                }
                continue;
            }
            // Behind the claim: a put of the owner that claims anew from now on changes its version.
            let row = self.read(owner.as_key()).await?;
            if let Some(value) = row.as_ref().and_then(|row| row.live()) {
                let keys = self.keys(entry.index, &self.decode(owner.as_key(), value)?);
                if keys.contains(&entry.key) {
                    return Err(IndexTableError::Duplicate { index: index.name.to_string(), key: entry.key.clone() });
                }
            }
            // Puts that are refused may renew the claim all the time. `patience` spares a put that is
            // on its way; the touch alone keeps it from being accepted.
            let since = *since.get_or_insert(self.clock.now());
            let is_renewed = self.clock.now() - since >= self.config.patience.saturating_mul(RENEWED);
            if unchanged == Some(found.version) || is_renewed {
                // A put of the owner that is still on its way is refused from here on.
                if self.touch(owner.as_key(), row.as_ref()).await?
                    && let Some(version) = try_put(when).await?
                {
                    self.send_event(|| IndexTableEvent::TookOver { index: index.name.to_string() });
                    return Ok(version);
                }
                continue;
            }
            unchanged = Some(found.version);
            self.clock.sleep(self.patience()).await;
        }
    }

    /// Returns `patience`, and up to as much again: two puts that wait for each other must not take
    /// over from each other at the same time, again and again.
    fn patience(&self) -> Duration {
        let patience = self.config.patience;
        let most = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        patience.saturating_add(Duration::from_nanos(self.entropy.up_to(most)))
    }
}
