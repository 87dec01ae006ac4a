//! The called service's half of a saga: applies an action once, its compensation once, and refuses
//! an action that arrives after its compensation.
use std::{fmt, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    config::ConfigError,
    port::{Capability, PortError, PortErrorKind},
    store::{Key, Precondition, Store, StoreError, Version, Write},
};

/// Applies actions and compensations by their idempotency keys, for a service that sagas call.
///
/// The service passes the writes of a request; they are applied together with a record of the key,
/// all or none, so that a repeated request changes nothing. The rows and the records lie in one
/// partition. Clones share the store.
///
/// ```
/// use std::sync::Arc;
/// use steadfast::{
///     saga::{Compensated, Executed, Participant},
///     store::{InMemoryStore, StoreError, Write},
/// };
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), StoreError> {
/// let seats = Participant::new(Arc::new(InMemoryStore::new()), "seats").unwrap();
/// let take = || vec![Write::put("seat/12A", "trip-42", steadfast::store::Precondition::Absent)];
/// let free = || vec![Write::delete("seat/12A", steadfast::store::DeleteOptions::new())];
///
/// let key = "trip/trip-42/seat"; // from the request
/// assert_eq!(seats.execute(key, take(), "12A").await?, Executed::Applied);
/// assert_eq!(seats.execute(key, take(), "12A").await?, Executed::AlreadyApplied("12A".into()));
/// assert_eq!(seats.compensate(key, free()).await?, Compensated::Applied);
///
/// // The compensation of an action that never came bars it.
/// let late = "trip/trip-43/seat";
/// assert_eq!(seats.compensate(late, free()).await?, Compensated::NeverExecuted);
/// assert_eq!(seats.execute(late, take(), "12A").await?, Executed::TooLate);
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// Of any number of concurrent requests with one key, each half is applied at most once, whatever
/// their order, and whatever process is killed. The records stay for ever: they are what bars a
/// late request. Delete rows that begin with `p/` when no request with their keys can arrive any
/// more.
#[derive(Clone)]
pub struct Participant {
    store: Arc<dyn Store>,
    partition: Arc<str>,
}

/// The result of [`Participant::execute`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Executed {
    /// The action was applied by this request.
    Applied,
    /// The action was applied by an earlier request, with this reply.
    AlreadyApplied(Bytes),
    /// The action was compensated, before or after it arrived. Nothing was applied.
    TooLate,
}

/// The result of [`Participant::compensate`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compensated {
    /// The action was undone by this request.
    Applied,
    /// An earlier request undid or barred the action.
    AlreadyCompensated,
    /// The action had not arrived. Nothing was applied, and it is refused from now on.
    NeverExecuted,
}

/// The record of a key.
enum Fate {
    Executed(Bytes),
    Barred,
}

/// First byte of the record of an applied action; its reply follows.
const EXECUTED: u8 = b'+';
/// Record of a compensated or barred action.
const BARRED: &[u8] = b"-";

impl Participant {
    /// Creates a participant whose records lie in this partition.
    ///
    /// # Errors
    /// If the partition is empty, or the store lacks [`AtomicBatch`](Capability::AtomicBatch) or
    /// [`Linearizable`](Capability::Linearizable).
    pub fn new(store: Arc<dyn Store>, partition: impl Into<Arc<str>>) -> Result<Self, ConfigError> {
        let (partition, can) = (partition.into(), store.capabilities());
        can.check_key("partition", &partition).map_err(|error| ConfigError::new("partition", error.to_string()))?;
        for needed in [Capability::AtomicBatch, Capability::Linearizable] {
            can.require(needed).map_err(|lacks| lacks.refuse("store"))?;
        }
        Ok(Self { store, partition })
    }

    /// Applies an action: writes `rows` unless a request with this key was applied before, and
    /// records `reply`, which repeated requests get.
    ///
    /// # Errors
    /// Those of the store. A conflict of one of `rows` is an error, with the index of that row;
    /// nothing was applied. After an error that leaves the outcome open, repeat the request.
    ///
    /// # Cancel safety
    /// If the future is dropped, the action was applied as a whole or not at all. Repeat it.
    pub async fn execute(&self, key: &str, rows: Vec<Write>, reply: impl Into<Bytes>) -> Result<Executed, StoreError> {
        let row = row_of(key)?;
        let reply = reply.into();
        let mut record = BytesMut::with_capacity(1 + reply.len());
        record.put_u8(EXECUTED);
        record.put_slice(&reply);
        let record = record.freeze();
        loop {
            match self.read(&row).await? {
                Some((Fate::Executed(reply), _)) => return Ok(Executed::AlreadyApplied(reply)),
                Some((Fate::Barred, _)) => return Ok(Executed::TooLate),
                None if self.write(&row, record.clone(), Precondition::Absent, &rows).await? => {
                    return Ok(Executed::Applied);
                }
                None => {}
            }
        }
    }

    /// Undoes an action: writes `rows` if the action with this key was applied and not undone. From
    /// then on the action is refused, also one that has not arrived yet.
    ///
    /// Pass the key of the action ([`Step::action_key`](super::Step::action_key)).
    ///
    /// # Errors
    /// Same as [`execute`](Self::execute).
    ///
    /// # Cancel safety
    /// Same as [`execute`](Self::execute).
    pub async fn compensate(&self, key: &str, rows: Vec<Write>) -> Result<Compensated, StoreError> {
        let row = row_of(key)?;
        let barred = || Bytes::from_static(BARRED);
        loop {
            match self.read(&row).await? {
                Some((Fate::Barred, _)) => return Ok(Compensated::AlreadyCompensated),
                Some((Fate::Executed(_), version))
                    if self.write(&row, barred(), Precondition::Version(version), &rows).await? =>
                {
                    return Ok(Compensated::Applied);
                }
                None if self.write(&row, barred(), Precondition::Absent, &[]).await? => {
                    return Ok(Compensated::NeverExecuted);
                }
                // Another process wrote it meanwhile.
                Some(_) | None => {}
            }
        }
    }

    /// Returns the reply of an action that was applied and not undone, for a service that needs it
    /// to undo the action.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn reply(&self, key: &str) -> Result<Option<Bytes>, StoreError> {
        match self.read(&row_of(key)?).await? {
            Some((Fate::Executed(reply), _)) => Ok(Some(reply)),
            Some((Fate::Barred, _)) | None => Ok(None),
        }
    }

    async fn read(&self, row: &str) -> Result<Option<(Fate, Version)>, StoreError> {
        let Some(record) = self.store.get(Key::new(&self.partition, row)).await? else { return Ok(None) };
        let fate = match record.value.first() {
            Some(&EXECUTED) => Fate::Executed(record.value.slice(1..)),
            _ if &*record.value == BARRED => Fate::Barred,
            _ => {
                let message = format!("the row {row:?} is no record of a participant: something else writes to it");
                return Err(PortError::new(PortErrorKind::Corrupt, message).into());
            }
        };
        Ok(Some((fate, record.version)))
    }

    /// Writes the record of a key with the rows. Returns `false` if the record has changed.
    async fn write(&self, row: &str, record: Bytes, when: Precondition, rows: &[Write]) -> Result<bool, StoreError> {
        let mut writes = vec![Write::put(row, record, when)];
        writes.extend_from_slice(rows);
        match self.store.batch(&self.partition, writes).await {
            Ok(_) => Ok(true),
            Err(StoreError::Conflict { write: 0, .. }) => Ok(false),
            Err(StoreError::Conflict { write, current }) => Err(StoreError::Conflict { write: write - 1, current }),
            Err(StoreError::Fenced { write, highest }) => {
                Err(StoreError::Fenced { write: write.saturating_sub(1), highest })
            }
            Err(error) => Err(error),
        }
    }
}

fn row_of(key: &str) -> Result<String, StoreError> {
    if key.is_empty() {
        return Err(PortError::invalid("key", "must not be empty").into());
    }
    Ok(format!("p/{key}"))
}

impl fmt::Debug for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Participant").field("store", &self.store).field("partition", &self.partition).finish()
    }
}
