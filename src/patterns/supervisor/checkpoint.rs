//! The checkpoint of a child: one row, which the latest instance owns.
//!
//! A new instance takes the row over: it writes the row anew under its own random number. So each
//! save of an earlier instance is a conflict. After a write whose reply was lost, the row shows by
//! that number that the write was this instance's own.
use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use thiserror::Error;

use crate::{
    port::{AskError, ask},
    store::{Key, Precondition, Record, Store, StoreError, Version},
    sync::Mutex,
    time::Clock,
    wire::{In, Out},
};

/// Error of a child's checkpoint.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A later instance of the child has taken the checkpoint over, or its row was deleted.
    #[error("a later instance of the child has taken the checkpoint over, or it was deleted")]
    Superseded,
    /// The supervisor has no store for checkpoints.
    #[error("the supervisor has no store for checkpoints")]
    NotConfigured,
    /// The row has a form that this release does not know.
    #[error("the checkpoint has an unknown form")]
    Unreadable,
    /// The store failed, or did not answer in time.
    #[error("the store of checkpoints failed: {0}")]
    Store(StoreError),
}

/// Number of the stored form.
const FORM: u64 = 1;

/// The checkpoint as it is stored.
#[derive(Debug, PartialEq)]
struct Stored {
    /// Random number of the instance that wrote it.
    owner: u64,
    /// The saved bytes; `None` before the first save.
    bytes: Option<Bytes>,
}

impl Stored {
    fn encode(&self) -> Bytes {
        let mut out = Out::of_form(FORM);
        out.number(self.owner);
        out.option(self.bytes.as_ref(), |out, bytes| out.bytes(bytes));
        out.into_bytes()
    }

    fn decode(record: &Record) -> Result<Self, CheckpointError> {
        let read = |input: &mut In| Some(Self { owner: input.number()?, bytes: input.option(In::bytes)? });
        In::open(record.value.clone(), FORM, read).map_err(|_| CheckpointError::Unreadable)
    }
}

/// The row, as one instance sees it.
pub(super) struct CheckpointRow {
    store: Arc<dyn Store>,
    clock: Clock,
    limit: Duration,
    partition: String,
    row: String,
    owner: u64,
    /// Version of this instance's last write, once it has taken the row over.
    version: Mutex<Option<Version>>,
    /// `true` once a later instance has taken it over: from then on nothing is read or written.
    is_superseded: Mutex<bool>,
}

impl CheckpointRow {
    pub(super) fn new(
        store: Arc<dyn Store>,
        (clock, limit): (Clock, Duration),
        (partition, row): (String, String),
        owner: u64,
    ) -> Self {
        Self { store, clock, limit, partition, row, owner, version: Mutex::default(), is_superseded: Mutex::default() }
    }

    fn key(&self) -> Key<'_> {
        Key::new(&self.partition, &self.row)
    }

    /// Takes the row over and returns what was saved.
    pub(super) async fn claim(&self) -> Result<Option<Bytes>, CheckpointError> {
        loop {
            self.check()?;
            let record = self.read().await?;
            let stored = record.as_ref().map(Stored::decode).transpose()?;
            let version = record.map(|record| record.version);
            let (owner, bytes) = stored.map_or((None, None), |stored| (Some(stored.owner), stored.bytes));
            if owner == Some(self.owner) {
                *self.version.lock() = version;
                return Ok(bytes);
            }
            // This instance had it, and another one has it now.
            if self.version.lock().is_some() {
                return Err(self.superseded());
            }
            let when = version.map_or(Precondition::Absent, Precondition::Version);
            match self.write(bytes.clone(), when).await {
                Ok(()) => return Ok(bytes),
                // Another instance took it over in between.
                Err(AskError::Failed(StoreError::Conflict { .. })) => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    pub(super) async fn save(&self, bytes: Bytes) -> Result<(), CheckpointError> {
        self.check()?;
        let first = *self.version.lock();
        let mut version = match first {
            Some(version) => version,
            None => {
                self.claim().await?;
                let claimed = *self.version.lock();
                claimed.ok_or_else(|| self.superseded())?
            }
        };
        loop {
            match self.write(Some(bytes.clone()), Precondition::Version(version)).await {
                Ok(()) => return Ok(()),
                Err(AskError::Failed(StoreError::Conflict { .. })) => {}
                Err(error) => return Err(failed(error)),
            }
            // An earlier write of this instance may have been applied although its reply was lost.
            let record = self.read().await?.ok_or_else(|| self.superseded())?;
            if Stored::decode(&record)?.owner != self.owner {
                return Err(self.superseded());
            }
            version = record.version;
        }
    }

    fn check(&self) -> Result<(), CheckpointError> {
        if *self.is_superseded.lock() { Err(CheckpointError::Superseded) } else { Ok(()) }
    }

    fn superseded(&self) -> CheckpointError {
        *self.is_superseded.lock() = true;
        CheckpointError::Superseded
    }

    async fn read(&self) -> Result<Option<Record>, CheckpointError> {
        ask(&self.clock, self.limit, self.store.get(self.key())).await.map_err(failed)
    }

    async fn write(&self, bytes: Option<Bytes>, when: Precondition) -> Result<(), AskError<StoreError>> {
        let stored = Stored { owner: self.owner, bytes };
        let version = ask(&self.clock, self.limit, self.store.put(self.key(), stored.encode(), when.into())).await?;
        *self.version.lock() = Some(version);
        Ok(())
    }
}

fn failed(error: AskError<StoreError>) -> CheckpointError {
    CheckpointError::Store(error.or_timed_out("no answer in time"))
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_stored_checkpoint_comes_back_and_another_form_is_refused() {
        for bytes in [None, Some(Bytes::new()), Some(Bytes::from_static(b"step 100"))] {
            let stored = Stored { owner: u64::MAX, bytes };
            let record = Record::new(stored.encode(), Version::new(1));
            assert_eq!(Stored::decode(&record).unwrap(), stored);
        }
        for other in [&b""[..], b"\x02\x00\x00", b"\x01\x00\x00\x00"] {
            let record = Record::new(Bytes::copy_from_slice(other), Version::new(1));
            assert!(matches!(Stored::decode(&record), Err(CheckpointError::Unreadable)), "{other:?}");
        }
    }
}
