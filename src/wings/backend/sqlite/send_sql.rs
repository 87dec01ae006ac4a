//! SQL statements that enqueue messages, and the addresses of queues in a file.
use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::{
    queue::CAN,
    queue_sql::{Answer, BEHIND_GROUP, first_of, time_after},
};
use crate::{
    port::PortError,
    queue::{Address, Message, MessageId},
    time::Timestamp,
};

/// Returns the text that distinguishes this queue from all others, with the file's generated name.
pub(super) fn identity(file: &str, queue: i64) -> String {
    format!("sqlite-{file}-{queue}")
}

/// Returns the queue in this file that the address names. The address of a queue is its identity.
pub(super) fn queue_of(address: &Address, file: &str) -> Option<i64> {
    address.as_text()?.strip_prefix("sqlite-")?.strip_prefix(file)?.strip_prefix('-')?.parse().ok()
}

/// Properties of accepted messages beside their own.
#[derive(Clone, Copy)]
pub(super) struct SendOptions {
    /// Time for which a de-duplication id is remembered.
    pub(super) window: i64,
    pub(super) sent_at: Timestamp,
}

/// A statement that enqueues messages.
pub(super) struct Enqueue<'c> {
    connection: &'c Connection,
    now: i64,
    ends: i64,
    sent_at: i64,
    insert: CachedStatement<'c>,
}

impl<'c> Enqueue<'c> {
    pub(super) fn new(connection: &'c Connection, now: i64, options: SendOptions) -> rusqlite::Result<Self> {
        let insert = connection.prepare_cached(
            "INSERT INTO messages (queue, visible_at, deliveries, receipt, due, sent_at, accepted_at, body, headers, grp)
             VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?)",
        )?;
        let sent_at = i64::try_from(options.sent_at.as_millis()).unwrap_or(i64::MAX);
        Ok(Self { connection, now, ends: now.saturating_add(options.window), sent_at, insert })
    }

    /// Enqueues a message, unless it is a duplicate, and returns its id.
    pub(super) fn enqueue(&mut self, queue: i64, message: &Message) -> rusqlite::Result<i64> {
        let Self { connection, now, ends, sent_at, .. } = *self;
        if let Some(known) = known(connection, now, queue, message)? {
            return Ok(known);
        }
        let due = time_after(now, message.delay);
        let visible_at = match &message.group {
            Some(group) if first_of(connection, queue, group)?.is_some() => BEHIND_GROUP,
            _ => due,
        };
        let headers = encode(&message.headers);
        self.insert.execute(params![
            queue,
            visible_at,
            due,
            sent_at,
            now,
            &message.body[..],
            headers,
            message.group
        ])?;
        let id = connection.last_insert_rowid();
        if let Some(deduplication) = &message.deduplication_id {
            let sql = "INSERT OR REPLACE INTO sent (queue, deduplication, message, ends) VALUES (?, ?, ?, ?)";
            connection.prepare_cached(sql)?.execute(params![queue, deduplication, id, ends])?;
        }
        Ok(id)
    }
}

pub(super) fn send(
    connection: &Connection,
    now: i64,
    queue: i64,
    messages: &[Message],
    options: SendOptions,
) -> Answer<Vec<MessageId>> {
    let mut enqueue = Enqueue::new(connection, now, options)?;
    let ids =
        messages.iter().map(|message| Ok(MessageId::from_numbers(enqueue.enqueue(queue, message)?.unsigned_abs(), 0)));
    ids.collect::<rusqlite::Result<_>>().map(Ok)
}

/// Returns the message that was sent with the same de-duplication id within the window.
fn known(connection: &Connection, now: i64, queue: i64, message: &Message) -> rusqlite::Result<Option<i64>> {
    let Some(id) = &message.deduplication_id else { return Ok(None) };
    let mut known =
        connection.prepare_cached("SELECT message FROM sent WHERE queue = ? AND deduplication = ? AND ends > ?")?;
    known.query_row(params![queue, id, now], |row| row.get(0)).optional()
}

/// Returns the queues in this file that these messages are for. `exist` has those that were found.
///
/// # Errors
/// `Unsupported` if the file has no such queue: it may be an older copy, with the same name.
pub(super) fn targets(
    connection: &Connection,
    messages: &[(Address, Message)],
    file: &str,
    exist: &mut BTreeSet<i64>,
) -> rusqlite::Result<Result<Vec<i64>, PortError>> {
    let mut targets = Vec::with_capacity(messages.len());
    for (address, _) in messages {
        let Some(queue) = queue_of(address, file) else { return Ok(Err(address.refuse(&CAN))) };
        if !exist.contains(&queue) {
            // Dead letters have the negative number of their queue.
            let mut find = connection.prepare_cached("SELECT 1 FROM queues WHERE id IN (?1, -?1)")?;
            if !find.exists([queue])? {
                return Ok(Err(address.refuse(&CAN)));
            }
            exist.insert(queue);
        }
        targets.push(queue);
    }
    Ok(Ok(targets))
}

/// Encodes headers as text: each name and value behind its length in bytes. `None` if there are
/// none.
fn encode(headers: &BTreeMap<String, String>) -> Option<String> {
    if headers.is_empty() {
        return None;
    }
    let texts = headers.iter().flat_map(|(name, value)| [name, value]);
    Some(texts.fold(String::new(), |all, text| all + &format!("{}:{text}", text.len())))
}
