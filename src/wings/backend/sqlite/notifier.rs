//! Notifications through a SQLite file: polled, and signalled at once within this process.
use std::{collections::VecDeque, fmt, sync::Arc};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::Notify;

use super::handle::SqliteCore;
use crate::{
    notify::{Notice, NoticeSource, Notices, Notifier, check_notice},
    port::{BoxFuture, Capabilities, Capability, PortError, PortFuture},
    race::race,
};

/// The notifier in a SQLite file, from [`Sqlite::notifier`](super::Sqlite::notifier). A clone is
/// the same notifier.
///
/// A subscriber polls at the interval [`poll`](super::SqliteConfig::poll); notices of this process
/// reach it at once. Each topic keeps its last 10,000 notices, for ten minutes: a subscriber that
/// is further behind receives a gap. One topic causes no gap in another.
///
/// Each topic that was ever published to keeps one row with its name and number in the file.
#[derive(Clone)]
pub struct SqliteNotifier(pub(super) Arc<SqliteCore>);

const CAN: Capabilities = Capabilities::of("sqlite", &[Capability::Shared]).largest_value(1 << 20).largest_key(1024);

const KEPT: i64 = 10_000;
pub(super) const KEPT_FOR: i64 = 600_000_000;

/// Maximum numbers of notices, and of bytes, in a page.
const PAGE: i64 = 100;
const PAGE_BYTES: usize = 1 << 20;

impl Notifier for SqliteNotifier {
    fn capabilities(&self) -> Capabilities {
        CAN
    }

    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> PortFuture<'a, ()> {
        Box::pin(async move {
            check_notice(topic, &notice, &CAN)?;
            let name = topic.to_owned();
            let publish = move |c: &Connection, now| publish(c, now, &name, &notice).map(Ok::<_, PortError>);
            self.0.writer.write(publish).await?;
            self.0.notify_topic(topic);
            Ok(())
        })
    }

    fn subscribe<'a>(&'a self, topic: &'a str) -> PortFuture<'a, Notices> {
        Box::pin(async move {
            CAN.check_key("topic", topic)?;
            let name: Arc<str> = topic.into();
            let of = name.clone();
            let seen = self.0.readers.read(move |c| newest(c, &of)).await?;
            let (shared, published) = (self.0.clone(), self.0.subscribe_topic(topic));
            Ok(Notices::new(SqliteSubscription { shared, published, topic: name, seen, read: VecDeque::new() }))
        })
    }
}

fn publish(connection: &Connection, now: i64, topic: &str, notice: &[u8]) -> rusqlite::Result<()> {
    let mut next = connection.prepare_cached(
        "INSERT INTO topics (topic, newest) VALUES (?, 1)
         ON CONFLICT (topic) DO UPDATE SET newest = newest + 1 RETURNING id, newest",
    )?;
    let (id, number): (i64, i64) = next.query_row([topic], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut put =
        connection.prepare_cached("INSERT INTO notices (topic, number, sent_at, body) VALUES (?, ?, ?, ?)")?;
    put.execute(params![id, number, now, notice])?;
    if number > KEPT {
        let mut trim = connection.prepare_cached("DELETE FROM notices WHERE topic = ? AND number <= ?")?;
        trim.execute([id, number - KEPT])?;
    }
    Ok(())
}

/// Reads the number of the topic's newest notice, 0 before the first. Numbers are consecutive.
fn newest(connection: &Connection, topic: &str) -> rusqlite::Result<i64> {
    let mut newest = connection.prepare_cached("SELECT newest FROM topics WHERE topic = ?")?;
    Ok(newest.query_row([topic], |row| row.get(0)).optional()?.unwrap_or(0))
}

/// Reads one page of the notices after this number, and the number of the newest one.
fn read_after(connection: &Connection, topic: &str, seen: i64) -> rusqlite::Result<(i64, Vec<(i64, Bytes)>)> {
    let newest = newest(connection, topic)?;
    let mut found = Vec::new();
    if newest == seen {
        return Ok((newest, found));
    }
    let mut select = connection.prepare_cached(
        "SELECT number, body FROM notices WHERE topic = (SELECT id FROM topics WHERE topic = ?) AND number > ?
         ORDER BY number LIMIT ?",
    )?;
    let mut rows = select.query(params![topic, seen, PAGE])?;
    let mut bytes = 0;
    while bytes < PAGE_BYTES
        && let Some(row) = rows.next()?
    {
        let body = Bytes::copy_from_slice(row.get_ref(1)?.as_blob()?);
        bytes += body.len();
        found.push((row.get(0)?, body));
    }
    Ok((newest, found))
}

struct SqliteSubscription {
    shared: Arc<SqliteCore>,
    /// Notified when this process publishes to the topic.
    published: Arc<Notify>,
    topic: Arc<str>,
    /// Number of the last notice that was read.
    seen: i64,
    read: VecDeque<Notice>,
}

impl SqliteSubscription {
    /// Reads new notices, if there are any.
    async fn poll(&mut self) -> Result<(), PortError> {
        let (topic, seen) = (self.topic.clone(), self.seen);
        let (newest, found) = self.shared.readers.read(move |c| read_after(c, &topic, seen)).await?;
        if found.is_empty() && newest != self.seen {
            // All unread notices were deleted, or the topic itself was and restarts.
            self.read.push_back(Notice::Gap);
            self.seen = newest;
        }
        for (number, body) in found {
            if number != self.seen + 1 {
                self.read.push_back(Notice::Gap);
            }
            self.read.push_back(Notice::Message(body));
            self.seen = number;
        }
        Ok(())
    }
}

impl Drop for SqliteSubscription {
    fn drop(&mut self) {
        self.shared.unsubscribe_topic(&self.topic, &mut self.published);
    }
}

impl NoticeSource for SqliteSubscription {
    fn recv(&mut self) -> BoxFuture<'_, Notice> {
        Box::pin(async move {
            loop {
                if let Some(notice) = self.read.pop_front() {
                    return notice;
                }
                let (shared, published) = (self.shared.clone(), self.published.clone());
                // Registered before the poll, so that a notice between the poll and the wait is not
                // missed.
                let published = published.notified();
                // Notices that are published while the file cannot be read are read later, or
                // reported as a gap.
                let failing = self.poll().await.is_err();
                if !self.read.is_empty() {
                    continue;
                }
                let poll = shared.clock.sleep(shared.config.poll);
                if failing {
                    poll.await;
                } else {
                    race(published, poll).await;
                }
            }
        })
    }
}

impl fmt::Debug for SqliteNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteNotifier").field("path", &self.0.config.path).finish_non_exhaustive()
    }
}
