//! SQL statements of the queue.
//!
//! A message is visible from `visible_at` on. A message behind another of its group is never
//! visible; when it becomes the first, it gets its own time, `due`. `receipt` is the number of the
//! delivery that may settle the message, 0 for none. If it is not 0 when the message is delivered
//! again, that earlier delivery expired. Dead letters are in a queue of their own in the same
//! table, so that dead-lettering is one statement.
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{
    clock::micros,
    queue::CAN,
    send_sql::{Enqueue, SendOptions, targets},
};
use crate::{
    port::{PortError, PortErrorKind},
    queue::{AttemptError, Delivery, Depth, ErrorHistory, MessageId, Peeked, QueueError, Receipt, Settle, Unexplained},
    time::Timestamp,
};

/// `visible_at` of a message behind another of its group.
pub(super) const BEHIND_GROUP: i64 = i64::MAX;

/// Maximum size of the messages of a receive or a peek. Only a single message may be larger.
pub(super) const MAX_BYTES: usize = 16 << 20;

pub(super) type Answer<T> = rusqlite::Result<Result<T, QueueError>>;

pub(super) fn find(connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    let mut find = connection.prepare_cached("SELECT id FROM queues WHERE name = ?")?;
    find.query_row([name], |row| row.get(0)).optional()
}

/// Returns the queue of a queue's dead letters: it has the negative number.
pub(super) const fn dead(queue: i64) -> i64 {
    -queue
}

/// Returns the time `after` from now. The longest one is below that of a message behind another,
/// and no clock reaches it.
pub(super) fn time_after(now: i64, after: Duration) -> i64 {
    now.saturating_add(micros(after)).min(BEHIND_GROUP - 1)
}

/// Returns the first message of a group, and its own due time.
pub(super) fn first_of(connection: &Connection, queue: i64, group: &str) -> rusqlite::Result<Option<(i64, i64)>> {
    let sql = "SELECT id, due FROM messages WHERE queue = ? AND grp = ? ORDER BY id LIMIT 1";
    let mut first = connection.prepare_cached(sql)?;
    first.query_row(params![queue, group], |row| Ok((row.get(0)?, row.get(1)?))).optional()
}

/// Returns the time at which the next message becomes visible, if there is one.
pub(super) fn next_visible(connection: &Connection, queue: i64) -> rusqlite::Result<Option<i64>> {
    let mut next = connection.prepare_cached("SELECT min(visible_at) FROM messages WHERE queue = ?")?;
    let next: Option<i64> = next.query_row([queue], |row| row.get(0))?;
    Ok(next.filter(|at| *at != BEHIND_GROUP))
}

pub(super) fn receive(
    connection: &Connection,
    now: i64,
    queue: i64,
    max: usize,
    visibility: Duration,
) -> Answer<Vec<Delivery>> {
    let mut select = connection.prepare_cached(
        "SELECT id, deliveries, sent_at, body, headers, grp, reason, attempts, expiries, receipt <> 0, errors,
                coalesce(accepted_at, due)
         FROM messages WHERE queue = ? AND visible_at <= ? ORDER BY visible_at, id LIMIT ?",
    )?;
    let mut hide = connection.prepare_cached(
        "UPDATE messages SET visible_at = ?1, deliveries = ?2, receipt = ?2, attempts = ?3, expiries = ?4 WHERE id = ?5",
    )?;
    let mut found = select.query(params![queue, now, i64::try_from(max).unwrap_or(i64::MAX)])?;
    let (mut taken, mut bytes) = (Vec::new(), 0);
    while let Some(row) = found.next()? {
        let (body, headers) = (row.get_ref(3)?.as_blob()?, row.get_ref(4)?.as_str_or_null()?);
        bytes += body.len() + headers.map_or(0, str::len);
        if bytes > MAX_BYTES && !taken.is_empty() {
            break;
        }
        let (id, before): (i64, u32) = (row.get(0)?, row.get(1)?);
        let deliveries = before.saturating_add(1);
        let receipt = Receipt::from_numbers(id.unsigned_abs(), deliveries.into());
        let id_of = MessageId::from_numbers(id.unsigned_abs(), 0);
        let body = Bytes::copy_from_slice(body);
        let mut delivery = Delivery::new(id_of, receipt, body, deliveries, timestamp(row, 2)?);
        delivery.headers = decode(headers);
        (delivery.group, delivery.reason) = (row.get(5)?, row.get(6)?);
        delivery.errors = errors_in(row, 10)?;
        let age = now.saturating_sub(row.get(11)?).max(0);
        delivery.age = Duration::from_micros(age.unsigned_abs());
        // The receipt was never settled, so the last delivery expired.
        let expired = row.get::<_, bool>(9)?;
        delivery.attempts = row.get::<_, u32>(7)?.saturating_add(expired.into());
        let before = Unexplained::from_number(row.get(8)?);
        let unexplained = if expired { before.expired() } else { before };
        (delivery.expiries, delivery.crashes) = (unexplained.expiries(), unexplained.crashes());
        taken.push((id, unexplained, delivery));
    }
    let until = time_after(now, visibility);
    for (id, unexplained, delivery) in &taken {
        let Delivery { deliveries, attempts, .. } = delivery;
        hide.execute(params![until, deliveries, attempts, unexplained.number(), id])?;
    }
    Ok(Ok(taken.into_iter().map(|(_, _, delivery)| delivery).collect()))
}

/// Returns the id and the delivery number of a receipt.
fn numbers(receipt: &Receipt) -> Option<(i64, i64)> {
    let (id, delivery) = receipt.as_numbers()?;
    Some((i64::try_from(id).ok()?, i64::try_from(delivery).ok()?))
}

pub(super) fn settle(
    connection: &Connection,
    now: i64,
    queue: i64,
    settlements: &[(Receipt, Settle)],
    file: &str,
    options: SendOptions,
) -> Answer<Vec<Result<(), QueueError>>> {
    // Most settlements complete a message without a group, which needs no further lookup.
    let sql = "DELETE FROM messages WHERE id = ? AND receipt = ? AND queue = ? AND grp IS NULL";
    let mut complete_alone = connection.prepare_cached(sql)?;
    let (mut enqueue, mut exist) = (None, BTreeSet::new());
    let settled = settlements.iter().map(|(receipt, how)| {
        let Some((id, delivery)) = numbers(receipt) else { return Ok(Err(QueueError::LeaseLost)) };
        match how {
            Settle::Complete if complete_alone.execute([id, delivery, queue])? == 1 => Ok(Ok(())),
            Settle::Complete => complete(connection, queue, id, delivery),
            Settle::Abandon { after, error } => {
                let until = time_after(now, *after);
                // Takes back the attempts of `Unexplained::untried`.
                let sql = "UPDATE messages SET visible_at = ?, receipt = 0, expiries = 0, attempts = 1
                    + max(0, attempts - max(0, (expiries & 65535) - (expiries >> 17) - (expiries >= 131072)))
                    WHERE id = ? AND receipt = ? AND queue = ?";
                let changed = connection.prepare_cached(sql)?.execute(params![until, id, delivery, queue])?;
                if changed == 1 {
                    add_error(connection, id, error.as_deref())?;
                }
                settled_or_lost(changed)
            }
            Settle::Release { after } => {
                let until = time_after(now, *after);
                let sql = "UPDATE messages SET visible_at = ?, receipt = 0, expiries = expiries & ~65536
                    WHERE id = ? AND receipt = ? AND queue = ?";
                settled_or_lost(connection.prepare_cached(sql)?.execute(params![until, id, delivery, queue])?)
            }
            Settle::DeadLetter { reason, error } => {
                let moved = dead_letter(connection, now, queue, (id, delivery), reason)?;
                if moved.is_ok() {
                    add_error(connection, id, error.as_deref())?;
                }
                Ok(moved)
            }
            Settle::Forward { messages } => {
                let targets = match how.check(&CAN) {
                    Ok(()) => targets(connection, messages, file, &mut exist)?,
                    Err(refused) => Err(refused),
                };
                // Nothing has changed yet.
                let targets = match targets {
                    Ok(targets) => targets,
                    Err(refused) => return Ok(Err(refused.into())),
                };
                if complete_alone.execute([id, delivery, queue])? == 0
                    && let Err(lost) = complete(connection, queue, id, delivery)?
                {
                    return Ok(Err(lost));
                }
                let enqueue = match &mut enqueue {
                    Some(enqueue) => enqueue,
                    none => none.insert(Enqueue::new(connection, now, options)?),
                };
                for (target, (_, message)) in targets.into_iter().zip(messages) {
                    enqueue.enqueue(target, message)?;
                }
                Ok(Ok(()))
            }
        }
    });
    settled.collect::<rusqlite::Result<_>>().map(Ok)
}

/// Adds the error of an attempt to the row of its message.
fn add_error(connection: &Connection, id: i64, error: Option<&AttemptError>) -> rusqlite::Result<()> {
    let Some(error) = error else { return Ok(()) };
    let mut select = connection.prepare_cached("SELECT errors FROM messages WHERE id = ?")?;
    let mut errors = select.query_row([id], |row| errors_in(row, 0))?;
    errors.push(error.clone());
    let mut update = connection.prepare_cached("UPDATE messages SET errors = ? WHERE id = ?")?;
    update.execute(params![errors.encode(), id]).map(drop)
}

fn errors_in(row: &Row<'_>, at: usize) -> rusqlite::Result<ErrorHistory> {
    Ok(row.get_ref(at)?.as_str_or_null()?.map(ErrorHistory::decode).unwrap_or_default())
}

/// Returns [`QueueError::LeaseLost`] if no row was changed: the receipt is stale.
fn settled_or_lost(changed: usize) -> rusqlite::Result<Result<(), QueueError>> {
    Ok(if changed == 1 { Ok(()) } else { Err(QueueError::LeaseLost) })
}

fn complete(connection: &Connection, queue: i64, id: i64, delivery: i64) -> Answer<()> {
    let sql = "DELETE FROM messages WHERE id = ? AND receipt = ? AND queue = ? RETURNING grp";
    let mut delete = connection.prepare_cached(sql)?;
    let group: Option<Option<String>> = delete.query_row([id, delivery, queue], |row| row.get(0)).optional()?;
    let Some(group) = group else { return Ok(Err(QueueError::LeaseLost)) };
    show_next_of_group(connection, queue, group.as_deref())?;
    Ok(Ok(()))
}

fn dead_letter(connection: &Connection, now: i64, queue: i64, (id, delivery): (i64, i64), reason: &str) -> Answer<()> {
    if queue < 0 {
        let message = "a dead letter cannot be dead-lettered again: complete or abandon it";
        return Ok(Err(PortError::new(PortErrorKind::Unsupported, message).into()));
    }
    let mut group = connection.prepare_cached("SELECT grp FROM messages WHERE id = ? AND receipt = ? AND queue = ?")?;
    let group: Option<Option<String>> = group.query_row([id, delivery, queue], |row| row.get(0)).optional()?;
    let Some(group) = group else { return Ok(Err(QueueError::LeaseLost)) };
    let visible_at = match &group {
        Some(group) if first_of(connection, dead(queue), group)?.is_some() => BEHIND_GROUP,
        _ => now,
    };
    // `due` may have been the time of acceptance, as in `receive`.
    let sql = "UPDATE messages SET queue = ?, visible_at = ?, accepted_at = coalesce(accepted_at, due), due = ?,
        receipt = 0, expiries = expiries & ~65536, reason = ? WHERE id = ?";
    connection.prepare_cached(sql)?.execute(params![dead(queue), visible_at, now, reason, id])?;
    show_next_of_group(connection, queue, group.as_deref())?;
    Ok(Ok(()))
}

/// Makes the next message of a group visible after the first was removed.
fn show_next_of_group(connection: &Connection, queue: i64, group: Option<&str>) -> rusqlite::Result<()> {
    let Some(group) = group else { return Ok(()) };
    if let Some((next, due)) = first_of(connection, queue, group)? {
        let sql = "UPDATE messages SET visible_at = ? WHERE id = ? AND visible_at = ?";
        connection.prepare_cached(sql)?.execute([due, next, BEHIND_GROUP])?;
    }
    Ok(())
}

pub(super) fn extend(
    connection: &Connection,
    now: i64,
    queue: i64,
    receipt: &Receipt,
    visibility: Duration,
    begun: Option<bool>,
) -> Answer<()> {
    let until = time_after(now, visibility);
    let Some((id, delivery)) = numbers(receipt) else { return Ok(Err(QueueError::LeaseLost)) };
    let sql = match begun {
        None => "UPDATE messages SET visible_at = ? WHERE id = ? AND receipt = ? AND queue = ?",
        // The mark of `Unexplained`.
        Some(true) => {
            "UPDATE messages SET visible_at = ?, expiries = expiries | 65536
                WHERE id = ? AND receipt = ? AND queue = ?"
        }
        Some(false) => {
            "UPDATE messages SET visible_at = ?, expiries = expiries & ~65536
                WHERE id = ? AND receipt = ? AND queue = ?"
        }
    };
    settled_or_lost(connection.prepare_cached(sql)?.execute([until, id, delivery, queue])?)
}

pub(super) fn depth(connection: &Connection, queue: i64, now: i64) -> rusqlite::Result<Depth> {
    // One statement, so that all counts are of one moment. It uses the index alone, except for
    // hidden messages.
    let mut depth = connection.prepare_cached(
        "SELECT (SELECT count(*) FROM messages WHERE queue = ?2 AND visible_at <= ?1)
                + (SELECT count(*) FROM messages WHERE queue = ?2 AND visible_at = ?3),
                count(*) FILTER (WHERE deliveries = 0), count(*) FILTER (WHERE deliveries > 0)
         FROM messages WHERE queue = ?2 AND visible_at > ?1 AND visible_at < ?3",
    )?;
    let number = |row: &Row<'_>, at: usize| Ok::<_, rusqlite::Error>(row.get::<_, i64>(at)?.unsigned_abs());
    depth.query_row([now, queue, BEHIND_GROUP], |row| {
        Ok(Depth { visible: number(row, 0)?, delayed: number(row, 1)?, in_flight: number(row, 2)? })
    })
}

pub(super) fn peek(connection: &Connection, queue: i64, max: usize, now: i64) -> rusqlite::Result<Vec<Peeked>> {
    let mut select = connection.prepare_cached(
        "SELECT id, deliveries, sent_at, body, headers, grp, reason, visible_at, attempts, expiries, errors
         FROM messages
         WHERE id IN (SELECT id FROM messages WHERE queue = ? ORDER BY id LIMIT ?) ORDER BY id",
    )?;
    let mut found = select.query([queue, i64::try_from(max).unwrap_or(i64::MAX)])?;
    let (mut all, mut bytes) = (Vec::new(), 0);
    while let Some(row) = found.next()? {
        let (body, headers) = (row.get_ref(3)?.as_blob()?, row.get_ref(4)?.as_str_or_null()?);
        bytes += body.len() + headers.map_or(0, str::len);
        if bytes > MAX_BYTES && !all.is_empty() {
            break;
        }
        let id = MessageId::from_numbers(row.get::<_, i64>(0)?.unsigned_abs(), 0);
        let visible_at: i64 = row.get(7)?;
        let body = Bytes::copy_from_slice(body);
        let hidden = visible_at > now && visible_at != BEHIND_GROUP;
        let mut peeked = Peeked::new(id, body, row.get(1)?, timestamp(row, 2)?, hidden);
        peeked.headers = decode(headers);
        (peeked.group, peeked.reason) = (row.get(5)?, row.get(6)?);
        let unexplained = Unexplained::from_number(row.get(9)?);
        (peeked.attempts, peeked.expiries, peeked.crashes) =
            (row.get(8)?, unexplained.expiries(), unexplained.crashes());
        peeked.errors = errors_in(row, 10)?;
        all.push(peeked);
    }
    Ok(all)
}

pub(super) fn purge(connection: &Connection, queue: i64) -> Answer<u64> {
    Ok(Ok(connection.prepare_cached("DELETE FROM messages WHERE queue = ?")?.execute([queue])? as u64))
}

fn timestamp(row: &Row<'_>, at: usize) -> rusqlite::Result<Timestamp> {
    Ok(Timestamp::from_millis(row.get::<_, i64>(at)?.unsigned_abs()))
}

fn decode(mut text: Option<&str>) -> BTreeMap<String, String> {
    let mut next = || {
        let (length, rest) = text?.split_once(':')?;
        let (found, rest) = rest.split_at_checked(length.parse().ok()?)?;
        text = Some(rest);
        Some(found.to_owned())
    };
    let mut headers = BTreeMap::new();
    while let (Some(name), Some(value)) = (next(), next()) {
        headers.insert(name, value);
    }
    headers
}
