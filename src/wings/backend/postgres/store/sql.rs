//! Jobs of the store as arrays, and their answers.
use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio_postgres::{Row, Transaction, types::Type};

use super::super::{
    link::failure::failure,
    link::{Effect, Link, Param},
};
use crate::{
    gather::{SendBatch, row},
    port::{BoxFuture, FencingToken, PortError, PortErrorKind},
    store::{Precondition, PutOptions, Sequence, StoreError, Version, Write},
};

/// Writes to one partition, all or none.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) partition: String,
    pub(crate) writes: Vec<Write>,
}

/// The result of one write: a version, the number of an append, or 1 for a deleted record.
pub(crate) type Applied = Option<i64>;

/// The answer to a job.
pub(crate) enum Answer {
    Done(Result<Vec<Applied>, StoreError>),
    /// Nothing was applied, because another transaction holds the lock of a key.
    Busy(Job),
}

/// Number of stripes onto which the locks of keys fall, so that a large batch takes a limited
/// number of the server's locks.
const STRIPES: u64 = 16_384;

/// The statement's parameters for several jobs.
#[derive(Default)]
struct Arrays<'a> {
    locks: BTreeSet<(i32, i32)>,
    ends: Vec<i32>,
    kinds: Vec<i32>,
    parts: Vec<&'a [u8]>,
    keys: Vec<&'a [u8]>,
    values: Vec<Option<&'a [u8]>>,
    whens: Vec<Option<i64>>,
    ttls: Vec<Option<i64>>,
    tokens: Vec<Option<i64>>,
    names: Vec<Option<&'a [u8]>>,
}

/// The statement that writes.
pub(crate) const WRITE: &str = "SELECT job, write, status, number, blocking
    FROM {s}.store_write($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
    WHERE {fits}";

/// The statement of one plain put. Most replace a record: without the function, that costs what it
/// costs without a port. The snapshot is older than the lock, but an update follows a row to its
/// latest version, and finds none if it was deleted.
const PUT: &str = "WITH replaced AS (
        UPDATE {s}.records AS r SET value = $4, ends = {ends},
            version = greatest(nextval('{s}.versions'), r.version + 1)
        WHERE r.part = $2 AND r.key = $3 AND pg_try_advisory_xact_lock({class}, $1){when}
        RETURNING r.version)
    SELECT coalesce((SELECT version FROM replaced), {s}.store_put($1, $2, $3, $4, $5, $6)) WHERE {fits}";

/// Returns the statement of one plain put. The server sets up each expression anew whenever it runs
/// the statement, also those that it does not need. So the clock is not in that of a put without a
/// TTL: if such a put has a precondition, a record with an end is left to the function.
fn put(has_precondition: bool, has_ttl: bool) -> String {
    let (ends, when) = match (has_precondition, has_ttl) {
        (false, false) => ("NULL", ""),
        (true, false) => ("NULL", " AND r.version = $5 AND r.ends IS NULL"),
        (false, true) => ("{s}.now_us() + $6", ""),
        (true, true) => ("{s}.now_us() + $6", " AND r.version = $5 AND (r.ends IS NULL OR r.ends > {s}.now_us())"),
    };
    PUT.replace("{ends}", ends).replace("{when}", when)
}

/// The statement of several plain puts.
pub(crate) const PUTS: &str = "SELECT {s}.store_puts($1, $2, $3, $4, $5, $6) WHERE {fits}";

impl<'a> Arrays<'a> {
    fn of(jobs: &'a [Job]) -> Self {
        let mut arrays = Self::default();
        for (i, job) in (0..).zip(jobs) {
            job.writes.iter().for_each(|write| arrays.push(i, &job.partition, write));
            arrays.ends.push(i32::try_from(arrays.kinds.len()).unwrap_or(i32::MAX));
        }
        arrays
    }

    fn push(&mut self, job: i32, partition: &'a str, write: &'a Write) {
        let (kind, key, value, ttl, name) = match write {
            Write::Put { row, value, options } => {
                let name = Sequence::of_row(row).map(|of| of.as_str());
                (0, row.as_str(), Some(&value[..]), options.ttl.map(micros), name)
            }
            Write::Delete { row, .. } => (1, row.as_str(), None, None, None),
            Write::Append { sequence, value, .. } => (2, sequence.as_str(), Some(&value[..]), None, None),
            Write::Check { row, .. } => (3, row.as_str(), None, None, None),
        };
        // A put that may create a row of a sequence excludes its first append.
        for locked in [Some(key), name].into_iter().flatten() {
            self.locks.insert((stripe(partition, locked), job));
        }
        self.kinds.push(kind);
        self.parts.push(partition.as_bytes());
        self.keys.push(key.as_bytes());
        self.values.push(value);
        self.whens.push(match write {
            Write::Append { after, .. } => after.map(|after| i64::try_from(after).unwrap_or(-1)),
            _ => wanted(write.when()),
        });
        self.ttls.push(ttl);
        self.tokens.push(write.fence().map(ordered));
        self.names.push(name.map(str::as_bytes));
    }
}

const ABSENT: Option<i64> = Some(-1);

/// Returns a precondition as a number: none for any, -1 for absence, otherwise the version.
fn wanted(when: Precondition) -> Option<i64> {
    match when {
        Precondition::Any => None,
        Precondition::Absent => ABSENT,
        // One that exceeds the engine's integers equals no stored version.
        Precondition::Version(version) => Some(i64::try_from(version.as_u64()).unwrap_or(-2)),
    }
}

/// Returns the stripe of a key's lock: the same in each process and release.
fn stripe(partition: &str, key: &str) -> i32 {
    let mut text = Vec::with_capacity(partition.len() + key.len() + 8);
    text.extend_from_slice(&(partition.len() as u64).to_le_bytes());
    text.extend_from_slice(partition.as_bytes());
    text.extend_from_slice(key.as_bytes());
    (crate::hash::stable_hash(&text) % STRIPES) as i32
}

/// Returns a duration in microseconds, rounded up. A longer one than the engine counts does not
/// end.
pub(crate) fn micros(d: Duration) -> i64 {
    // Half of the range is left for the time to which it is added.
    i64::try_from(d.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX).min(i64::MAX / 2)
}

/// Maps a token to a signed number of the same order.
const fn ordered(token: FencingToken) -> i64 {
    (token.as_u64() ^ (1 << 63)).cast_signed()
}

const fn unordered(number: i64) -> FencingToken {
    FencingToken::new(number.cast_unsigned() ^ (1 << 63))
}

pub(crate) fn version(number: i64) -> Version {
    Version::new(number.unsigned_abs())
}

/// Sends these jobs as one statement, and reads the answers.
///
/// With `waits`, the statement waits for the locks of its keys; otherwise jobs may be busy.
pub(crate) async fn send_jobs(
    link: &Link,
    within: Option<&Transaction<'_>>,
    sql: &str,
    waits: bool,
    jobs: Vec<Job>,
) -> Vec<Answer> {
    let answered = {
        let arrays = Arrays::of(&jobs);
        let (stripes, of): (Vec<i32>, Vec<i32>) = arrays.locks.iter().copied().unzip();
        let params: [Param<'_>; 12] = [
            (&waits, Type::BOOL),
            (&of, Type::INT4_ARRAY),
            (&stripes, Type::INT4_ARRAY),
            (&arrays.ends, Type::INT4_ARRAY),
            (&arrays.kinds, Type::INT4_ARRAY),
            (&arrays.parts, Type::BYTEA_ARRAY),
            (&arrays.keys, Type::BYTEA_ARRAY),
            (&arrays.values, Type::BYTEA_ARRAY),
            (&arrays.whens, Type::INT8_ARRAY),
            (&arrays.ttls, Type::INT8_ARRAY),
            (&arrays.tokens, Type::INT8_ARRAY),
            (&arrays.names, Type::BYTEA_ARRAY),
        ];
        let sent = match within {
            None => link.query(Effect::Write, sql, &params).await,
            Some(transaction) => {
                let sent = transaction.query_typed(sql, &params).await;
                sent.map_err(|error| failure(link.place(), error, Effect::Write))
            }
        };
        sent.and_then(|rows| {
            let mut answers: Vec<Vec<Outcome>> = jobs.iter().map(|job| Vec::with_capacity(job.writes.len())).collect();
            for row in &rows {
                let outcome = Outcome::read(row)?;
                answers.get_mut(outcome.job).ok_or_else(unexpected)?.push(outcome);
            }
            Ok(answers)
        })
    };
    match answered {
        Ok(answers) => jobs.into_iter().zip(answers).map(|(job, outcomes)| answer(job, outcomes)).collect(),
        Err(error) => jobs.iter().map(|_| Answer::Done(Err(error.clone().into()))).collect(),
    }
}

/// One row of the answer, as the page of the schema lists them.
struct Outcome {
    job: usize,
    write: usize,
    status: i32,
    number: Option<i64>,
    found: Option<Vec<u8>>,
}

impl Outcome {
    fn read(row: &Row) -> Result<Self, PortError> {
        let read = || -> Result<_, tokio_postgres::Error> {
            let index = |i| row.try_get::<_, i32>(i).map(|n| usize::try_from(n).unwrap_or(usize::MAX));
            let (job, write) = (index(0)?, index(1)?);
            Ok(Self { job, write, status: row.try_get(2)?, number: row.try_get(3)?, found: row.try_get(4)? })
        };
        read().map_err(|error| unexpected().with_source(error))
    }
}

fn unexpected() -> PortError {
    let message = "postgres: the schema's functions answered in another form: another release replaced them";
    PortError::new(PortErrorKind::TooNew, message).outcome_unknown()
}

fn answer(job: Job, outcomes: Vec<Outcome>) -> Answer {
    let Some(refused) = outcomes.iter().find(|outcome| outcome.status != 0) else {
        return Answer::Done(Ok(outcomes.into_iter().map(|outcome| outcome.number).collect()));
    };
    let row = || job.writes.get(refused.write).and_then(Write::row).unwrap_or_default();
    let error = match (refused.status, refused.number) {
        (1, current) => StoreError::Conflict { write: 0, current: current.map(version) },
        (2, Some(highest)) => StoreError::Fenced { write: 0, highest: unordered(highest) },
        (3, _) => match Sequence::of_row(row()) {
            Some(of) => of.refuse_put(row()),
            None => unexpected().into(),
        },
        (4 | 5, _) => match (job.writes.get(refused.write), &refused.found) {
            (Some(Write::Append { sequence, .. }), Some(found)) => {
                Sequence::new(sequence).refuse_first(&String::from_utf8_lossy(found))
            }
            (Some(Write::Append { sequence, .. }), None) => match Sequence::new(sequence).next(Sequence::LAST, None) {
                Err(full) => full,
                Ok(_) => unexpected().into(),
            },
            _ => unexpected().into(),
        },
        (9, _) => return Answer::Busy(job),
        _ => unexpected().into(),
    };
    Answer::Done(Err(error.of_write(refused.write)))
}

/// Returns the size of the value of a write.
pub(crate) fn size(write: &Write) -> usize {
    match write {
        Write::Put { value, .. } | Write::Append { value, .. } => value.len(),
        Write::Delete { .. } | Write::Check { .. } => 0,
    }
}

/// Sends jobs of one handle.
pub(crate) struct SendJobs {
    pub(crate) link: Arc<Link>,
    pub(crate) sql: String,
    /// By [the form](Plain::form) of the put.
    puts_of_one: [String; 4],
    puts: String,
}

/// A job of one put without a token, to a row that cannot belong to a sequence.
struct Plain<'a> {
    stripe: i32,
    partition: &'a [u8],
    key: &'a [u8],
    value: &'a [u8],
    wanted: Option<i64>,
    ttl: Option<i64>,
}

impl<'a> Plain<'a> {
    fn of(job: &'a Job) -> Option<Self> {
        let [Write::Put { row, value, options: PutOptions { when, ttl, fence: None, .. } }] = &job.writes[..] else {
            return None;
        };
        Sequence::of_row(row).is_none().then(|| Self {
            stripe: stripe(&job.partition, row),
            partition: job.partition.as_bytes(),
            key: row.as_bytes(),
            value,
            wanted: wanted(*when),
            ttl: ttl.map(micros),
        })
    }

    /// Returns the form of its statement: 1 for a precondition, and 2 for a TTL.
    fn form(&self) -> usize {
        usize::from(self.wanted.is_some()) + 2 * usize::from(self.ttl.is_some())
    }
}

impl SendJobs {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        let puts_of_one = [0, 1, 2, 3].map(|form| link.sql(&put(form & 1 != 0, form & 2 != 0)));
        Self { link: link.clone(), sql: link.sql(WRITE), puts_of_one, puts: link.sql(PUTS) }
    }

    /// Sends plain puts, and returns the version of each, or -1 if its lock is taken, or `None` if
    /// its precondition failed.
    async fn send_puts(&self, puts: &[Plain<'_>]) -> Result<Vec<Option<i64>>, PortError> {
        if let [put] = puts {
            let params: [Param<'_>; 6] = [
                (&put.stripe, Type::INT4),
                (&put.partition, Type::BYTEA),
                (&put.key, Type::BYTEA),
                (&put.value, Type::BYTEA),
                (&put.wanted, Type::INT8),
                (&put.ttl, Type::INT8),
            ];
            let rows = self.link.query(Effect::Write, &self.puts_of_one[put.form()], &params).await?;
            return Ok(vec![self.link.column(rows.first().ok_or_else(unexpected)?, 0)?]);
        }
        let stripes: Vec<i32> = puts.iter().map(|put| put.stripe).collect();
        let parts: Vec<&[u8]> = puts.iter().map(|put| put.partition).collect();
        let keys: Vec<&[u8]> = puts.iter().map(|put| put.key).collect();
        let values: Vec<&[u8]> = puts.iter().map(|put| put.value).collect();
        let wanted: Vec<Option<i64>> = puts.iter().map(|put| put.wanted).collect();
        let ttls: Vec<Option<i64>> = puts.iter().map(|put| put.ttl).collect();
        let params: [Param<'_>; 6] = [
            (&stripes, Type::INT4_ARRAY),
            (&parts, Type::BYTEA_ARRAY),
            (&keys, Type::BYTEA_ARRAY),
            (&values, Type::BYTEA_ARRAY),
            (&wanted, Type::INT8_ARRAY),
            (&ttls, Type::INT8_ARRAY),
        ];
        let rows = self.link.query(Effect::Write, &self.puts, &params).await?;
        let done: Vec<Option<i64>> = self.link.column(rows.first().ok_or_else(unexpected)?, 0)?;
        if done.len() == puts.len() { Ok(done) } else { Err(unexpected()) }
    }

    /// Sends jobs that may be busy. Those that are not plain, and those whose precondition failed,
    /// go to the function that tells why.
    async fn send_jobs(&self, jobs: Vec<Job>) -> Vec<Answer> {
        let plain: Option<Vec<Plain<'_>>> = jobs.iter().map(Plain::of).collect();
        let done = match plain {
            Some(plain) if plain.len() == 1 || plain.iter().all(|put| put.wanted != ABSENT) => {
                self.send_puts(&plain).await
            }
            _ => return send_jobs(&self.link, None, &self.sql, false, jobs).await,
        };
        let done = match done {
            Ok(done) => done,
            Err(error) => return jobs.iter().map(|_| Answer::Done(Err(error.clone().into()))).collect(),
        };
        let mut refused = Vec::new();
        let mut answers: Vec<Option<Answer>> = Vec::with_capacity(jobs.len());
        for (job, done) in jobs.into_iter().zip(done) {
            answers.push(match done {
                None => {
                    refused.push(job);
                    None
                }
                Some(-1) => Some(Answer::Busy(job)),
                version => Some(Answer::Done(Ok(vec![version]))),
            });
        }
        if !refused.is_empty() {
            let mut told = send_jobs(&self.link, None, &self.sql, false, refused).await.into_iter();
            answers.iter_mut().filter(|answer| answer.is_none()).for_each(|answer| *answer = told.next());
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Answer::Done(Err(unexpected().into())))).collect()
    }

    /// Sends one job, which waits for its locks.
    pub(crate) async fn send_alone(&self, job: Job) -> Option<Answer> {
        let _permit = match self.link.patience().await {
            Ok(permit) => permit,
            Err(error) => return Some(Answer::Done(Err(error.into()))),
        };
        send_jobs(&self.link, None, &self.sql, true, vec![job]).await.pop()
    }
}

impl SendBatch<Job, Answer> for Arc<SendJobs> {
    fn send(&self, jobs: Vec<Job>) -> BoxFuture<'_, Vec<Answer>> {
        Box::pin(async move {
            let again = if jobs.len() > 1 { jobs.clone() } else { Vec::new() };
            let mut answers = self.send_jobs(jobs).await;
            // One job may have been the cause, and nothing was applied: each is tried alone.
            let is_of_one = |answer: &Answer| {
                let Answer::Done(Err(StoreError::Failed(error))) = answer else { return false };
                !error.may_have_been_applied()
                    && matches!(
                        error.kind(),
                        PortErrorKind::Invalid
                            | PortErrorKind::Other
                            | PortErrorKind::Throttled
                            | PortErrorKind::Corrupt
                    )
            };
            if !again.is_empty() && answers.iter().all(is_of_one) {
                answers = again.into_iter().map(Answer::Busy).collect();
            }
            answers
        })
    }

    fn weight(&self, job: &Job) -> usize {
        job.writes.iter().map(|write| row(size(write))).sum()
    }
}
