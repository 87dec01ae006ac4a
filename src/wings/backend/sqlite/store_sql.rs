//! SQL statements of the store.
use std::{collections::HashMap, ops::Bound};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};

use super::{clock::micros, sequence_sql};
use crate::{
    port::FencingToken,
    store::{
        Continuation, Order, Page, Precondition, PutOptions, Record, Row, Scan, Sequence, StoreError, Version, Write,
    },
};

/// Maximum size of a page: it ends with the row that reaches this many bytes.
const PAGE_BYTES: usize = 1 << 20;

pub(super) fn get(connection: &Connection, partition: &str, row: &str, now: i64) -> rusqlite::Result<Option<Record>> {
    let mut get =
        connection.prepare_cached("SELECT value, version, ends FROM records WHERE partition = ? AND row = ?")?;
    let mut found = get.query([partition, row])?;
    let Some(found) = found.next()? else { return Ok(None) };
    if found.get::<_, Option<i64>>(2)?.is_some_and(|ends| ends <= now) {
        return Ok(None);
    }
    let value = Bytes::copy_from_slice(found.get_ref(0)?.as_blob()?);
    Ok(Some(Record { value, version: version(found.get(1)?) }))
}

/// The result of a write.
pub(super) enum Applied {
    Put(Version),
    Deleted(bool),
    Checked,
}

/// Writes to one partition, all or none.
pub(super) fn write(
    connection: &Connection,
    now: i64,
    partition: &str,
    writes: &[Write],
) -> rusqlite::Result<Result<Vec<Applied>, StoreError>> {
    if let [Write::Put { row, value, options: options @ PutOptions { fence: None, .. } }] = writes
        && let Some(version) = replace(connection, now, (partition, row), value, *options)?
    {
        return Ok(Ok(vec![Applied::Put(version)]));
    }
    if let [Write::Append { sequence, value, after }] = writes
        && let Some(number) = sequence_sql::append_one(connection, partition, sequence, value, *after)?
    {
        return Ok(Ok(vec![Applied::Put(number)]));
    }
    // All writes are checked before the first one, so that a refusal leaves nothing to undo.
    let (mut lasts, mut before) = (HashMap::new(), Vec::with_capacity(writes.len()));
    for (i, write) in writes.iter().enumerate() {
        let checked = match write {
            Write::Append { sequence, after, .. } => {
                sequence_sql::advance(connection, now, partition, (sequence, *after), &mut lasts)?.map(|()| None)
            }
            _ => check(connection, now, partition, write)?,
        };
        match checked {
            Ok(found) => before.push(found),
            Err(refused) => return Ok(Err(refused.of_write(i))),
        }
    }
    sequence_sql::record(connection, partition, &lasts)?;
    // Read once, since what the batch deletes are other rows than those that it creates.
    let mut floor = None;
    let mut applied = Vec::with_capacity(writes.len());
    // Backwards, because the last number of each sequence is known.
    for (write, found) in writes.iter().zip(before).rev() {
        applied.push(match write {
            Write::Append { sequence, value, .. } => {
                Applied::Put(sequence_sql::append(connection, partition, sequence, value, &mut lasts)?)
            }
            _ => apply(connection, now, partition, (write, found, &mut floor))?,
        });
    }
    applied.reverse();
    Ok(Ok(applied))
}

/// Fast path: replaces an existing record. Returns `None` if the precondition fails or there is no
/// record.
fn replace(
    connection: &Connection,
    now: i64,
    key: (&str, &str),
    value: &Bytes,
    options: PutOptions,
) -> rusqlite::Result<Option<Version>> {
    let before = match options.when {
        Precondition::Absent => return Ok(None),
        Precondition::Version(wanted) => number(wanted),
        Precondition::Any => match stored(connection, now, key.0, key.1)? {
            Some((before, false)) => before,
            _ => return Ok(None),
        },
    };
    // The next version is known here. Returning it from the statement would cost a tenth of the
    // write.
    let mut put = connection.prepare_cached(
        "UPDATE records SET value = ?3, version = version + 1, ends = ?4
         WHERE partition = ?1 AND row = ?2 AND (ends IS NULL OR ends > ?5) AND version = ?6",
    )?;
    let ends = options.ttl.map(|ttl| now.saturating_add(micros(ttl)));
    let changed = put.execute(params![key.0, key.1, &value[..], ends, now, before])?;
    Ok((changed == 1).then(|| version(before + 1)))
}

/// The version of a stored record, and `true` if it has expired.
type Stored = Option<(i64, bool)>;

fn stored(connection: &Connection, now: i64, partition: &str, row: &str) -> rusqlite::Result<Stored> {
    let mut stored = connection.prepare_cached("SELECT version, ends FROM records WHERE partition = ? AND row = ?")?;
    let found = stored.query_row([partition, row], |found| {
        let ends: Option<i64> = found.get(1)?;
        Ok((found.get(0)?, ends.is_some_and(|ends| ends <= now)))
    });
    found.optional()
}

/// Checks a write, and returns the record that it finds.
fn check(
    connection: &Connection,
    now: i64,
    partition: &str,
    write: &Write,
) -> rusqlite::Result<Result<Stored, StoreError>> {
    let Some(row) = write.row() else { return Ok(Ok(None)) };
    if let Some(token) = write.fence() {
        let mut highest = connection.prepare_cached("SELECT token FROM fences WHERE partition = ? AND row = ?")?;
        let highest = highest.query_row([partition, row], |row| row.get::<_, i64>(0)).optional()?;
        let highest = highest.map(|token| FencingToken::new(token.cast_unsigned()));
        if let Some(highest) = highest.filter(|highest| token < *highest) {
            return Ok(Err(StoreError::Fenced { write: 0, highest }));
        }
    }
    let found = stored(connection, now, partition, row)?;
    let current = found.filter(|(_, ended)| !ended);
    if let Err(refused) = write.when().check(current.map(|(number, _)| version(number))) {
        return Ok(Err(refused));
    }
    let creates = current.is_none() && matches!(write, Write::Put { .. });
    match Sequence::of_row(row).filter(|_| creates) {
        Some(of) if sequence_sql::last(connection, partition, of)? > 0 => Ok(Err(of.refuse_put(row))),
        _ => Ok(Ok(found)),
    }
}

/// Replaces a record. Returning the version from the statement would double its cost: SQLite keeps
/// what it returns in a temporary table of its own.
const REPLACE: &str = "UPDATE records SET value = ?3, version = ?4, ends = ?5 WHERE partition = ?1 AND row = ?2";

const INSERT: &str = "INSERT INTO records (partition, row, value, version, ends) VALUES (?, ?, ?, ?, ?)";

/// Applies a checked write, which found this record. Versions of new ones begin above the floor.
fn apply(
    connection: &Connection,
    now: i64,
    partition: &str,
    (write, found, floor): (&Write, Stored, &mut Option<i64>),
) -> rusqlite::Result<Applied> {
    if let (Some(token), Some(row)) = (write.fence(), write.row()) {
        let mut put =
            connection.prepare_cached("INSERT OR REPLACE INTO fences (partition, row, token) VALUES (?, ?, ?)")?;
        // SQLite's integers are signed: the upper half of the tokens is stored as negative numbers, and compared above.
        put.execute(params![partition, row, token.as_u64().cast_signed()])?;
    }
    match write {
        Write::Put { row, value, options } => {
            let ends = options.ttl.map(|ttl| now.saturating_add(micros(ttl)));
            // Above the version before, and above those of all deleted records.
            let (next, put) = match (found, &mut *floor) {
                (Some((before, _)), _) => (before + 1, REPLACE),
                (None, Some(floor)) => (*floor + 1, INSERT),
                (None, unread) => (*unread.insert(highest_deleted(connection)?) + 1, INSERT),
            };
            connection.prepare_cached(put)?.execute(params![partition, row, &value[..], next, ends])?;
            Ok(Applied::Put(version(next)))
        }
        Write::Delete { row, .. } => {
            let Some((_, ended)) = found else { return Ok(Applied::Deleted(false)) };
            connection
                .prepare_cached("DELETE FROM records WHERE partition = ? AND row = ?")?
                .execute([partition, row])?;
            Ok(Applied::Deleted(!ended))
        }
        // A check was made, and an append is applied with its number.
        Write::Check { .. } | Write::Append { .. } => Ok(Applied::Checked),
    }
}

/// Returns the highest version of all deleted records. A new record's version is above it, so that
/// no version repeats. A trigger raises it.
fn highest_deleted(connection: &Connection) -> rusqlite::Result<i64> {
    let mut floor = connection.prepare_cached("SELECT value FROM meta WHERE name = 'floor'")?;
    let text: Option<String> = floor.query_row([], |row| row.get(0)).optional()?;
    Ok(text.and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// Returns one page as a snapshot, and the number of expired rows that it skipped.
pub(super) fn scan(connection: &Connection, scan: &Scan, limit: usize, now: i64) -> rusqlite::Result<(Page, usize)> {
    if let Some(names) = scan.names() {
        return named(connection, &scan.partition, &names, limit, now);
    }
    let (from, to) = scan.bounds();
    let mut sql = String::from("SELECT row, value, version, ends FROM records WHERE partition = ?");
    let mut bound: Vec<&str> = vec![&scan.partition];
    for (end, operators) in [(from, [">=", ">"]), (to.as_ref().map(String::as_str), ["<=", "<"])] {
        let (operator, row) = match end {
            Bound::Included(row) => (operators[0], row),
            Bound::Excluded(row) => (operators[1], row),
            Bound::Unbounded => continue,
        };
        sql.push_str(&format!(" AND row {operator} ?"));
        bound.push(row);
    }
    sql.push_str(match scan.order {
        Order::Ascending => " ORDER BY row",
        Order::Descending => " ORDER BY row DESC",
    });
    let mut select = connection.prepare_cached(&sql)?;
    let mut found = select.query(params_from_iter(bound))?;
    let (mut page, mut bytes, mut ended) = (Page::default(), 0, 0);
    while let Some(row) = found.next()? {
        if row.get::<_, Option<i64>>(3)?.is_some_and(|ends| ends <= now) {
            ended += 1;
            continue;
        }
        if page.rows.len() == limit || bytes >= PAGE_BYTES {
            page.next = page.rows.last().map(|last| Continuation::behind(&*last.row));
            break;
        }
        let value = Bytes::copy_from_slice(row.get_ref(1)?.as_blob()?);
        bytes += value.len();
        page.rows.push(Row { row: row.get(0)?, value, version: version(row.get(2)?) });
    }
    Ok((page, ended))
}

/// Returns the named rows as a snapshot, as [`scan`] does. The page ends at the limit alone.
fn named(
    connection: &Connection,
    partition: &str,
    names: &[&str],
    limit: usize,
    now: i64,
) -> rusqlite::Result<(Page, usize)> {
    let step = |sql| connection.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
    // One statement for each name needs a transaction around all of them.
    step("BEGIN")?;
    let read = read_named(connection, partition, names, limit, now);
    let ended = step("COMMIT");
    if !connection.is_autocommit() {
        // The connection is used again.
        connection.execute_batch("ROLLBACK")?;
    }
    ended.and(read)
}

fn read_named(
    connection: &Connection,
    partition: &str,
    names: &[&str],
    limit: usize,
    now: i64,
) -> rusqlite::Result<(Page, usize)> {
    let (mut page, mut ended) = (Page::default(), 0);
    let mut select =
        connection.prepare_cached("SELECT value, version, ends FROM records WHERE partition = ? AND row = ?")?;
    for name in names {
        let mut found = select.query([partition, name])?;
        let Some(found) = found.next()? else { continue };
        if found.get::<_, Option<i64>>(2)?.is_some_and(|ends| ends <= now) {
            ended += 1;
            continue;
        }
        if page.rows.len() == limit {
            page.next = page.rows.last().map(|last| Continuation::behind(&*last.row));
            break;
        }
        let value = Bytes::copy_from_slice(found.get_ref(0)?.as_blob()?);
        page.rows.push(Row { row: (*name).to_owned(), value, version: version(found.get(1)?) });
    }
    Ok((page, ended))
}

pub(super) fn version(number: i64) -> Version {
    Version::new(number.unsigned_abs())
}

/// Converts a version. One that exceeds SQLite's integers equals no stored one.
fn number(version: Version) -> i64 {
    i64::try_from(version.as_u64()).unwrap_or(-1)
}
