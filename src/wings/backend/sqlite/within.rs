//! Writes within a transaction of the user on the same file.
//!
//! The writes of the ports and the user's own statements take effect together, with the commit of
//! the user's transaction, or not at all.
use rusqlite::{Connection, Transaction};

use super::{
    SqliteQueue, SqliteStore,
    failure::{failure, file_failure},
    handle::SqliteCore,
    send_sql,
    store_sql::{self, Applied},
};
use crate::{
    port::{Capabilities, PortError},
    queue::{Message, MessageId, Queue, QueueError},
    store::{Store, StoreError, Version, Write},
};

impl SqliteStore {
    /// Writes several rows of one partition within a transaction of yours on this file: they take
    /// effect with its commit, and not at all if it is rolled back. Otherwise the same as
    /// [`Store::batch`].
    ///
    /// A refusal, and an error of SQLite, write nothing, and leave the transaction usable. Begin
    /// the transaction as `IMMEDIATE`, and keep it short: all writers of the file wait for its end.
    ///
    /// ```
    /// use rusqlite::TransactionBehavior;
    /// use steadfast::{
    ///     backend::sqlite::{Sqlite, SqliteConfig},
    ///     store::{Key, Precondition, Store, Write},
    /// };
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("state.db");
    /// let sqlite = Sqlite::open(SqliteConfig::at(&path))?;
    /// let mut connection = rusqlite::Connection::open(&path)?;
    /// let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    /// transaction.execute_batch("CREATE TABLE orders (id INTEGER)")?;
    /// let write = Write::put("42", "placed", Precondition::Absent);
    /// sqlite.store().batch_within(&transaction, "orders", vec![write])?;
    /// transaction.commit()?;
    /// assert!(sqlite.store().get(Key::new("orders", "42")).await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Same as [`Store::batch`], and `Invalid` if the transaction is on another file.
    pub fn batch_within(
        &self,
        transaction: &Transaction<'_>,
        partition: &str,
        writes: Vec<Write>,
    ) -> Result<Vec<Option<Version>>, StoreError> {
        let can: Capabilities = self.capabilities();
        Write::check_batch(partition, &writes, &can)?;
        let applied = within(&self.0, transaction, |c, now| store_sql::write(c, now, partition, &writes))?;
        let version = |applied| match applied {
            Applied::Put(version) => Some(version),
            Applied::Deleted(_) | Applied::Checked => None,
        };
        Ok(applied.into_iter().map(version).collect())
    }
}

impl SqliteQueue {
    /// Sends messages within a transaction of yours on this file: they are enqueued with its
    /// commit, and not at all if it is rolled back. Otherwise the same as [`Queue::send`].
    ///
    /// Waiting receivers find the messages at their next poll after the commit.
    ///
    /// # Errors
    /// Same as [`Queue::send`], and `Invalid` if the transaction is on another file.
    pub fn send_within(
        &self,
        transaction: &Transaction<'_>,
        messages: Vec<Message>,
    ) -> Result<Vec<MessageId>, QueueError> {
        Message::check(&messages, &self.capabilities())?;
        let (id, options) = (self.id, self.send_options());
        within(&self.shared, transaction, |c, now| send_sql::send(c, now, id, &messages, options))
    }
}

/// Runs the work in a savepoint, so that an error leaves nothing of it in the transaction.
fn within<T, E: From<PortError>>(
    core: &SqliteCore,
    transaction: &Transaction<'_>,
    work: impl FnOnce(&Connection, i64) -> rusqlite::Result<Result<T, E>>,
) -> Result<T, E> {
    let path = &core.config.path;
    check_file(core, transaction)?;
    let run = || {
        transaction.execute_batch("SAVEPOINT steadfast")?;
        let done = work(transaction, core.time.now());
        if !matches!(done, Ok(Ok(_))) && !transaction.is_autocommit() {
            transaction.execute_batch("ROLLBACK TO steadfast")?;
        }
        if !transaction.is_autocommit() {
            transaction.execute_batch("RELEASE steadfast")?;
        }
        done
    };
    run().map_err(|error| E::from(failure(path, error)))?
}

fn check_file(core: &SqliteCore, transaction: &Transaction<'_>) -> Result<(), PortError> {
    let other = || PortError::invalid("transaction", "must be on the file of this handle");
    let path = transaction.path().filter(|path| !path.is_empty()).ok_or_else(other)?;
    let real = std::fs::canonicalize(path).map_err(|error| file_failure(path.as_ref(), error))?;
    if real == core.config.path { Ok(()) } else { Err(other()) }
}
