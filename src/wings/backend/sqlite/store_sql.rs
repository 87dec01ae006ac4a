//! SQL statements of the store.
use std::ops::Bound;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};

use super::clock::micros;
use crate::{
    port::FencingToken,
    store::{Continuation, Order, Page, Precondition, PutOptions, Record, Row, Scan, StoreError, Version, Write},
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
    // All writes are checked before the first one, so that a refusal leaves nothing to undo.
    for (i, write) in writes.iter().enumerate() {
        if let Err(refused) = check(connection, now, partition, write)? {
            return Ok(Err(refused.of_write(i)));
        }
    }
    writes.iter().map(|write| apply(connection, now, partition, write)).collect::<rusqlite::Result<_>>().map(Ok)
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

/// Returns the version of a stored record, and `true` if it has expired.
fn stored(connection: &Connection, now: i64, partition: &str, row: &str) -> rusqlite::Result<Option<(i64, bool)>> {
    let mut stored = connection.prepare_cached("SELECT version, ends FROM records WHERE partition = ? AND row = ?")?;
    let found = stored.query_row([partition, row], |found| {
        let ends: Option<i64> = found.get(1)?;
        Ok((found.get(0)?, ends.is_some_and(|ends| ends <= now)))
    });
    found.optional()
}

fn check(
    connection: &Connection,
    now: i64,
    partition: &str,
    write: &Write,
) -> rusqlite::Result<Result<(), StoreError>> {
    if let Some(token) = write.fence() {
        let mut highest = connection.prepare_cached("SELECT token FROM fences WHERE partition = ? AND row = ?")?;
        let highest = highest.query_row([partition, write.row()], |row| row.get::<_, i64>(0)).optional()?;
        let highest = highest.map(|token| FencingToken::new(token.unsigned_abs()));
        if let Some(highest) = highest.filter(|highest| token < *highest) {
            return Ok(Err(StoreError::Fenced { write: 0, highest }));
        }
    }
    let found = stored(connection, now, partition, write.row())?;
    Ok(write.when().check(found.filter(|(_, ended)| !ended).map(|(number, _)| version(number))))
}

fn apply(connection: &Connection, now: i64, partition: &str, write: &Write) -> rusqlite::Result<Applied> {
    if let Some(token) = write.fence() {
        let mut put =
            connection.prepare_cached("INSERT OR REPLACE INTO fences (partition, row, token) VALUES (?, ?, ?)")?;
        put.execute(params![partition, write.row(), i64::try_from(token.as_u64()).unwrap_or(i64::MAX)])?;
    }
    let found = stored(connection, now, partition, write.row())?;
    match write {
        Write::Put { row, value, options } => {
            // Above the version before, and above those of all deleted records.
            let next = match found {
                Some((before, _)) => before + 1,
                None => floor(connection)? + 1,
            };
            let ends = options.ttl.map(|ttl| now.saturating_add(micros(ttl)));
            let mut put = connection.prepare_cached(
                "INSERT OR REPLACE INTO records (partition, row, value, version, ends) VALUES (?, ?, ?, ?, ?)",
            )?;
            put.execute(params![partition, row, &value[..], next, ends])?;
            Ok(Applied::Put(version(next)))
        }
        Write::Delete { row, .. } => {
            let Some((_, ended)) = found else { return Ok(Applied::Deleted(false)) };
            connection
                .prepare_cached("DELETE FROM records WHERE partition = ? AND row = ?")?
                .execute([partition, row])?;
            Ok(Applied::Deleted(!ended))
        }
    }
}

/// Returns the highest version of all deleted records. A new record's version is above it, so that
/// no version repeats. A trigger raises it.
fn floor(connection: &Connection) -> rusqlite::Result<i64> {
    let mut floor = connection.prepare_cached("SELECT value FROM meta WHERE name = 'floor'")?;
    let text: Option<String> = floor.query_row([], |row| row.get(0)).optional()?;
    Ok(text.and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// Returns one page as a snapshot, and the number of expired rows that it skipped.
pub(super) fn scan(connection: &Connection, scan: &Scan, limit: usize, now: i64) -> rusqlite::Result<(Page, usize)> {
    let (from, to) = scan.bounds();
    let mut sql = String::from("SELECT row, value, version, ends <= ?2 FROM records WHERE partition = ?1");
    let mut bound: Vec<&str> = Vec::new();
    let mut between = |bound_at: Option<(&'static str, usize)>| {
        if let Some((operator, at)) = bound_at {
            sql.push_str(&format!(" AND row {operator} ?{at}"));
        }
    };
    match from {
        Bound::Included(row) => {
            bound.push(row);
            between(Some((">=", 2 + bound.len())));
        }
        Bound::Excluded(row) => {
            bound.push(row);
            between(Some((">", 2 + bound.len())));
        }
        Bound::Unbounded => {}
    }
    match &to {
        Bound::Included(row) => {
            bound.push(row);
            between(Some(("<=", 2 + bound.len())));
        }
        Bound::Excluded(row) => {
            bound.push(row);
            between(Some(("<", 2 + bound.len())));
        }
        Bound::Unbounded => {}
    }
    sql.push_str(match scan.order {
        Order::Ascending => " ORDER BY row",
        Order::Descending => " ORDER BY row DESC",
    });
    let mut select = connection.prepare_cached(&sql)?;
    let mut values: Vec<&dyn rusqlite::ToSql> = vec![&scan.partition, &now];
    values.extend(bound.iter().map(|row| row as &dyn rusqlite::ToSql));
    let mut found = select.query(&values[..])?;
    let (mut page, mut bytes, mut ended) = (Page::default(), 0, 0);
    while let Some(row) = found.next()? {
        if row.get::<_, Option<bool>>(3)?.unwrap_or(false) {
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

fn version(number: i64) -> Version {
    Version::new(number.unsigned_abs())
}

/// Converts a version. One that exceeds SQLite's integers equals no stored one.
fn number(version: Version) -> i64 {
    i64::try_from(version.as_u64()).unwrap_or(-1)
}
