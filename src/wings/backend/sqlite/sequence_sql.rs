//! SQL statements of sequences.
use std::collections::HashMap;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};

use super::store_sql::version;
use crate::store::{Sequence, StoreError, Version};

/// The last numbers of the sequences to which a batch appends.
pub(super) type Lasts<'a> = HashMap<&'a str, u64>;

/// Returns the last number of a sequence, 0 if it has none.
pub(super) fn last(connection: &Connection, partition: &str, sequence: Sequence<'_>) -> rusqlite::Result<u64> {
    let mut last = connection.prepare_cached("SELECT last FROM sequences WHERE partition = ? AND name = ?")?;
    let last = last.query_row([partition, sequence.as_str()], |row| row.get::<_, i64>(0)).optional()?;
    Ok(last.map_or(0, i64::unsigned_abs))
}

/// Fast path: appends to a sequence that has begun. Returns `None` if it has not, if it is full, or
/// if `after` is not its last number; nothing is written then.
pub(super) fn append_one(
    connection: &Connection,
    partition: &str,
    name: &str,
    value: &Bytes,
    after: Option<u64>,
) -> rusqlite::Result<Option<Version>> {
    let advance = "UPDATE sequences SET last = last + 1
         WHERE partition = ?1 AND name = ?2 AND last < ?3 AND (?4 IS NULL OR last = ?4) RETURNING last";
    let bound = params![partition, name, signed(Sequence::LAST), after.map(signed)];
    let number = connection.prepare_cached(advance)?.query_row(bound, |row| row.get::<_, i64>(0)).optional()?;
    number.map(|number| insert(connection, partition, Sequence::new(name), number, value)).transpose()
}

/// Checks an append, and advances the last number of its sequence in `lasts`.
pub(super) fn advance<'a>(
    connection: &Connection,
    now: i64,
    partition: &str,
    (name, after): (&'a str, Option<u64>),
    lasts: &mut Lasts<'a>,
) -> rusqlite::Result<Result<(), StoreError>> {
    let sequence = Sequence::new(name);
    let before = match lasts.get(name) {
        Some(last) => *last,
        None => last(connection, partition, sequence)?,
    };
    match sequence.next(before, after) {
        Ok(next) => lasts.insert(name, next),
        Err(refused) => return Ok(Err(refused)),
    };
    if before == 0 { look_for_rows(connection, now, partition, sequence) } else { Ok(Ok(())) }
}

/// Looks for rows that puts left before the first append, and deletes the expired ones. Afterwards
/// no put can create one.
fn look_for_rows(
    connection: &Connection,
    now: i64,
    partition: &str,
    sequence: Sequence<'_>,
) -> rusqlite::Result<Result<(), StoreError>> {
    let of_form = "SELECT row, ends FROM records WHERE partition = ? AND row >= ? AND row <= ?";
    let mut of_form = connection.prepare_cached(of_form)?;
    let (lowest, highest) = sequence.bounds();
    let mut found = of_form.query([partition, &lowest, &highest])?;
    let mut expired: Vec<String> = Vec::new();
    while let Some(row) = found.next()? {
        let (name, ends): (String, Option<i64>) = (row.get(0)?, row.get(1)?);
        match ends {
            _ if Sequence::of_row(&name) != Some(sequence) => {}
            Some(ends) if ends <= now => expired.push(name),
            _ => return Ok(Err(sequence.refuse_first(&name))),
        }
    }
    let mut delete = connection.prepare_cached("DELETE FROM records WHERE partition = ? AND row = ?")?;
    expired.iter().try_for_each(|row| delete.execute([partition, row]).map(drop))?;
    Ok(Ok(()))
}

/// Writes the last numbers.
pub(super) fn record(connection: &Connection, partition: &str, lasts: &Lasts<'_>) -> rusqlite::Result<()> {
    for (name, last) in lasts {
        let advance = "UPDATE sequences SET last = ?3 WHERE partition = ?1 AND name = ?2";
        if connection.prepare_cached(advance)?.execute(params![partition, name, signed(*last)])? == 0 {
            let begin = "INSERT INTO sequences (partition, name, last) VALUES (?, ?, ?)";
            connection.prepare_cached(begin)?.execute(params![partition, name, signed(*last)])?;
        }
    }
    Ok(())
}

/// Inserts the row with the last number of its sequence, and takes the number from `lasts`. If
/// another program has written the row, the statement fails: it never replaces one.
pub(super) fn append(
    connection: &Connection,
    partition: &str,
    sequence: &str,
    value: &Bytes,
    lasts: &mut Lasts<'_>,
) -> rusqlite::Result<Version> {
    let Some(last) = lasts.get_mut(sequence) else { return Err(rusqlite::Error::InvalidQuery) };
    let number = signed(*last);
    *last -= 1;
    insert(connection, partition, Sequence::new(sequence), number, value)
}

fn insert(
    connection: &Connection,
    partition: &str,
    sequence: Sequence<'_>,
    number: i64,
    value: &Bytes,
) -> rusqlite::Result<Version> {
    let insert = "INSERT INTO records (partition, row, value, version) VALUES (?, ?, ?, ?)";
    let row = sequence.row(number.unsigned_abs());
    connection.prepare_cached(insert)?.execute(params![partition, row, &value[..], number])?;
    Ok(version(number))
}

/// Converts a number, which is at most [`Sequence::LAST`].
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
