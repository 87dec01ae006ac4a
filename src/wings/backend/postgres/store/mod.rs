//! The store in a schema of PostgreSQL.
pub(super) mod get;
pub(super) mod schema;
pub(super) mod sql;

use std::{
    fmt,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use bytes::Bytes;
use tokio_postgres::{Row as SqlRow, Transaction, types::Type};

use self::{
    get::{Found, Getter, Wanted, damaged},
    sql::{Answer, Applied, Job, SendJobs, send_jobs, size, version},
};
use super::{
    Postgres,
    handle::PostgresCore,
    link::{Link, Param, READ_COMMITTED, check_size, refuse_isolation},
    sweep::Sweeper,
};
use crate::{
    gather::Gather,
    port::{BoxFuture, Capabilities, Capability, PortError, PortErrorKind},
    store::{
        Continuation, DeleteOptions, Key, Order, Page, PutOptions, Record, Row, Scan, Store, StoreError, Version, Write,
    },
};

/// The store in a schema, from [`Postgres::store`]. A clone is the same store.
///
/// A value has at most 64 MiB, and a batch at most 512 MiB of values and 1,000 writes. A larger one
/// is refused as `Invalid` before it is sent.
///
/// A record that was damaged by hand, without a value or with a version below 1, is `Corrupt` for a
/// [`get`](Store::get), and so is each page of a [`scan`](Store::scan) that would contain it: both
/// name it. A put or a delete without a precondition mends it.
#[derive(Clone)]
pub struct PostgresStore(Arc<PostgresCore>);

/// The parts of the store that all its handles of one [`Postgres`] share.
pub(crate) struct StoreCore {
    writes: Gather<Job, Answer>,
    crowds: Crowds,
    /// The statement that writes within a transaction of the user.
    within: String,
    sender: Arc<SendJobs>,
    sweeper: Arc<Sweeper>,
    reads: Gather<Wanted, Found>,
    getter: Arc<Getter>,
}

const CAN: Capabilities = Capabilities::of(
    "postgres",
    &[
        Capability::Durable,
        Capability::Shared,
        Capability::Linearizable,
        Capability::AtomicBatch,
        Capability::OrderedVersions,
        Capability::Fencing,
        Capability::OrderedAppend,
        Capability::TimeToLive,
    ],
)
.largest_value(64 << 20)
.largest_batch(1000)
.largest_key(1024);

/// A page ends with the row that reaches this many bytes.
const PAGE_BYTES: i64 = 1 << 20;

/// Maximum number of rows of several jobs in a statement.
const JOBS: usize = 64;

/// Number of writes from which a job may wait for its locks without a try before.
const LARGE: usize = 4;

/// Partitions to which other processes write all the time, as to a log. A large job finds a lock
/// taken there, and is sent twice: those that follow wait at once.
struct Crowds([AtomicU8; 64]);

impl Default for Crowds {
    fn default() -> Self {
        Self([const { AtomicU8::new(0) }; 64])
    }
}

impl Crowds {
    /// Jobs that wait without a try, after one that was busy.
    const NEXT: u8 = 16;

    fn of(&self, partition: &str) -> &AtomicU8 {
        &self.0[(crate::hash::stable_hash(partition.as_bytes()) % 64) as usize]
    }

    fn met(&self, partition: &str) {
        self.of(partition).store(Self::NEXT, Ordering::Relaxed);
    }

    fn is_expected(&self, partition: &str) -> bool {
        self.of(partition).fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

impl StoreCore {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        let (sender, getter) = (Arc::new(SendJobs::new(link)), Arc::new(Getter::new(link)));
        Self {
            writes: Gather::new("postgres", JOBS, sender.clone()),
            crowds: Crowds::default(),
            // Without an end of a job nothing is done.
            within: sender.sql.replace("$4", &format!("CASE WHEN {READ_COMMITTED} THEN $4 ELSE '{{}}' END")),
            sender,
            sweeper: Sweeper::new(link.sql("SELECT {s}.store_sweep($1)")),
            reads: Gather::new("postgres", JOBS, getter.clone()),
            getter,
        }
    }
}

impl Postgres {
    /// Returns the store in this schema.
    pub fn store(&self) -> PostgresStore {
        PostgresStore(self.0.clone())
    }
}

fn no_answer() -> StoreError {
    PortError::new(PortErrorKind::Other, "postgres: a write has no answer").outcome_unknown().into()
}

impl PostgresStore {
    async fn write(&self, partition: &str, writes: Vec<Write>) -> Result<Vec<Applied>, StoreError> {
        let (core, rows) = (&self.0.store, writes.len());
        let job = Job { partition: partition.to_owned(), writes };
        let waits = rows >= LARGE && core.crowds.is_expected(partition);
        let mut answer = if waits { Answer::Busy(job) } else { core.writes.send(job).await? };
        if let Answer::Busy(job) = answer {
            if rows >= LARGE && !waits {
                core.crowds.met(partition);
            }
            // Alone it waits for its locks, without making other callers wait.
            answer = core.sender.send_alone(job).await.ok_or_else(no_answer)?;
        }
        let done = match answer {
            Answer::Done(done) => done?,
            Answer::Busy(_) => return Err(no_answer()),
        };
        core.sweeper.wrote(&self.0.link, rows);
        if done.len() == rows { Ok(done) } else { Err(no_answer()) }
    }

    /// Writes several rows of one partition within a transaction of yours: they take effect with
    /// its commit, and not at all if it is rolled back. Otherwise the same as [`Store::batch`].
    ///
    /// The transaction is one of any connection to the same database, at the isolation level `READ
    /// COMMITTED`. Until its end it holds the locks of the keys: other writers of these keys, and a
    /// few others, wait for it. A refusal leaves the transaction usable.
    ///
    /// # Errors
    /// Same as [`Store::batch`], and `Unsupported` for another isolation level.
    ///
    /// # Cancel safety
    /// If the future is dropped, the writes are part of the transaction or not: roll it back.
    pub async fn batch_within(
        &self,
        transaction: &Transaction<'_>,
        partition: &str,
        writes: Vec<Write>,
    ) -> Result<Vec<Option<Version>>, StoreError> {
        Write::check_batch(partition, &writes, &self.capabilities())?;
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        check_size("writes", writes.iter().map(size).sum())?;
        let versions = versions_of(&writes);
        let (link, sql) = (&self.0.link, &self.0.store.within);
        let job = Job { partition: partition.to_owned(), writes };
        let mut answers = send_jobs(link, Some(transaction), sql, true, vec![job]).await;
        match answers.pop() {
            // Nothing was done.
            Some(Answer::Done(Ok(done))) if done.is_empty() => Err(refuse_isolation(link.place()).into()),
            Some(Answer::Done(done)) => Ok(versions(done?)),
            _ => Err(no_answer()),
        }
    }

    /// Reads a page with one statement, which is one snapshot.
    async fn read_page(&self, scan: &Scan) -> Result<Page, StoreError> {
        let link = &self.0.link;
        let limit = scan.limit.min(CAN.max_batch());
        let (names, (from, to)) = (scan.names(), scan.bounds());
        let names: Option<Vec<&[u8]>> = names.map(|names| names.into_iter().map(str::as_bytes).collect());
        let partition = scan.partition.as_bytes();
        let (mut rows, mut bounds) = (String::new(), Vec::new());
        let mut bound = |operator: &str, row: &[u8]| {
            bounds.push(row.to_vec());
            rows.push_str(&format!(" AND key {operator} ${}", 1 + bounds.len()));
        };
        let mut params: Vec<Param<'_>> = vec![(&partition, Type::BYTEA)];
        if let Some(names) = &names {
            rows.push_str(" AND key = ANY ($2)");
            params.push((names, Type::BYTEA_ARRAY));
        } else {
            match from {
                Bound::Included(row) => bound(">=", row.as_bytes()),
                Bound::Excluded(row) => bound(">", row.as_bytes()),
                Bound::Unbounded => {}
            }
            match &to {
                Bound::Included(row) => bound("<=", row.as_bytes()),
                Bound::Excluded(row) => bound("<", row.as_bytes()),
                Bound::Unbounded => {}
            }
            params.extend(bounds.iter().map(|row| (row as &(dyn tokio_postgres::types::ToSql + Sync), Type::BYTEA)));
        }
        let order = match scan.order {
            Order::Ascending => "key",
            Order::Descending => "key DESC",
        };
        // Named rows are one snapshot of all of them, whatever their size.
        let bytes = if names.is_some() { i64::MAX } else { PAGE_BYTES };
        let sql = link.sql(&format!(
            "SELECT key, value, version, found FROM (
               SELECT key, value, version, count(*) OVER () AS found,
                 sum(coalesce(octet_length(value), 0)) OVER (ORDER BY {order} ROWS UNBOUNDED PRECEDING)
                   - coalesce(octet_length(value), 0) AS before
               FROM (SELECT key, value, version FROM {{s}}.records WHERE part = $1{rows} AND {{fits}}
                 AND (ends IS NULL OR ends > (SELECT {{s}}.now_us())) ORDER BY {order} LIMIT {}) AS live
             ) AS sized WHERE before < {bytes} ORDER BY {order} LIMIT {limit}",
            limit + 1
        ));
        let found = link.read_once(&sql, &params).await?;
        let total = found.first().map(|row| link.column::<i64>(row, 3)).transpose()?.unwrap_or(0);
        let rows = found.iter().map(|row| self.row(row)).collect::<Result<Vec<_>, _>>()?;
        let has_more = u64::try_from(total).is_ok_and(|total| total > rows.len() as u64);
        let next = rows.last().filter(|_| has_more).map(|last| Continuation::behind(&*last.row));
        Ok(Page::new(rows, next))
    }

    fn row(&self, found: &SqlRow) -> Result<Row, PortError> {
        let link = &self.0.link;
        let key = String::from_utf8(link.column(found, 0)?);
        let key = key.map_err(|_| PortError::new(PortErrorKind::Corrupt, "postgres: a key is not UTF-8"))?;
        let value = link.column::<Option<&[u8]>>(found, 1)?;
        let number = link.column::<Option<i64>>(found, 2)?.filter(|number| *number > 0);
        // A page without it would have a gap that nobody sees.
        let (Some(value), Some(number)) = (value, number) else { return Err(damaged(&key)) };
        Ok(Row::new(key, Bytes::copy_from_slice(value), version(number)))
    }
}

/// Returns the function that picks the versions of puts and appends from the results.
fn versions_of(writes: &[Write]) -> impl FnOnce(Vec<Applied>) -> Vec<Option<Version>> + use<> {
    let has: Vec<bool> = writes.iter().map(|write| matches!(write, Write::Put { .. } | Write::Append { .. })).collect();
    move |done| has.into_iter().zip(done).map(|(has, number)| number.filter(|_| has).map(version)).collect()
}

impl Store for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        if self.0.server.is_durable { CAN } else { CAN.without(Capability::Durable) }
    }

    fn get<'a>(&'a self, key: Key<'a>) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            key.check(&CAN)?;
            let StoreCore { reads, getter, .. } = &self.0.store;
            match reads.send(Wanted::new(key)).await? {
                Found::Done(found) => Ok(found?),
                Found::Large => Ok(getter.get(key.partition, key.row).await?),
            }
        })
    }

    fn put<'a>(
        &'a self,
        key: Key<'a>,
        value: Bytes,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        Box::pin(async move {
            key.check(&CAN)?;
            let write = Write::put(key.row, value, options);
            write.check(&CAN)?;
            match self.write(key.partition, vec![write]).await?[..] {
                [Some(number)] => Ok(version(number)),
                _ => Err(no_answer()),
            }
        })
    }

    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            key.check(&CAN)?;
            let write = Write::delete(key.row, options);
            write.check(&CAN)?;
            Ok(self.write(key.partition, vec![write]).await? == [Some(1)])
        })
    }

    fn scan<'a>(&'a self, scan: &'a Scan) -> BoxFuture<'a, Result<Page, StoreError>> {
        Box::pin(async move {
            scan.check(&CAN)?;
            self.read_page(scan).await
        })
    }

    fn batch<'a>(
        &'a self,
        partition: &'a str,
        writes: Vec<Write>,
    ) -> BoxFuture<'a, Result<Vec<Option<Version>>, StoreError>> {
        Box::pin(async move {
            Write::check_batch(partition, &writes, &CAN)?;
            if writes.is_empty() {
                return Ok(Vec::new());
            }
            check_size("writes", writes.iter().map(size).sum())?;
            let versions = versions_of(&writes);
            Ok(versions(self.write(partition, writes).await?))
        })
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("link", &self.0.link).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_job_that_was_busy_sixteen_of_its_partition_wait_at_once_and_then_one_tries_again() {
        let crowds = Crowds::default();
        assert!(!crowds.is_expected("log"));
        crowds.met("log");
        assert_eq!((0..20).filter(|_| crowds.is_expected("log")).count(), 16);
        assert!(!crowds.is_expected("another log"));
    }
}
