//! Notices through a SQLite file: found by looking, within this process told at once.
use std::{collections::VecDeque, fmt, sync::Arc};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};

use super::handle::Shared;
use crate::{
    notify::{Notice, NoticeSource, Notices, Notifier, check},
    port::{BoxFuture, Capabilities, Capability, PortError, check_part},
    race::race,
};

/// The notifier in a SQLite file. From [`Sqlite::notifier`](super::Sqlite::notifier); a clone is the same.
///
/// A subscriber looks every [`poll`](super::SqliteConfig::poll); what this process publishes it is told at once. The last 10,000 notices
/// are kept, for ten minutes: who is further behind is told of a gap.
#[derive(Clone)]
pub struct SqliteNotifier(pub(super) Arc<Shared>);

const CAN: Capabilities = Capabilities::of("sqlite", &[Capability::Shared]).largest_value(1 << 20).largest_key(1024);

const KEPT: i64 = 10_000;
const KEPT_FOR: i64 = 600_000_000;

/// So many are read at once.
const PAGE: i64 = 100;

impl Notifier for SqliteNotifier {
    fn capabilities(&self) -> Capabilities {
        CAN
    }

    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> BoxFuture<'a, Result<(), PortError>> {
        Box::pin(async move {
            check(topic, &notice, &CAN)?;
            let topic = topic.to_owned();
            let published = self.0.writer.write(move |c, now| {
                let mut put = c.prepare_cached("INSERT INTO notices (topic, body, sent_at) VALUES (?, ?, ?)")?;
                put.execute(params![topic, &notice[..], now])?;
                Ok(Ok::<_, PortError>(()))
            });
            published.await?;
            self.0.noticed.notify_waiters();
            Ok(())
        })
    }

    fn subscribe<'a>(&'a self, topic: &'a str) -> BoxFuture<'a, Result<Notices, PortError>> {
        Box::pin(async move {
            check_part("topic", topic, &CAN)?;
            let seen = self.0.readers.read(newest)?;
            let (shared, topic) = (self.0.clone(), topic.to_owned());
            Ok(Notices::new(Source { shared, topic, seen, read: VecDeque::new() }))
        })
    }
}

/// The number of the newest notice that was ever published.
fn newest(connection: &Connection) -> rusqlite::Result<i64> {
    let mut newest = connection.prepare_cached("SELECT seq FROM sqlite_sequence WHERE name = 'notices'")?;
    Ok(newest.query_row([], |row| row.get(0)).optional()?.unwrap_or(0))
}

/// Up to which number notices were deleted.
fn deleted(connection: &Connection) -> rusqlite::Result<i64> {
    let mut deleted = connection.prepare_cached("SELECT value FROM meta WHERE name = 'notices_deleted'")?;
    let text: Option<String> = deleted.query_row([], |row| row.get(0)).optional()?;
    Ok(text.and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// Deletes what is too old or too much.
pub(super) fn sweep(connection: &Connection, now: i64) -> rusqlite::Result<()> {
    let by_number = newest(connection)? - KEPT;
    let mut by_age = connection.prepare_cached("SELECT max(number) FROM notices WHERE sent_at <= ? AND number <= ?")?;
    // Only the oldest are looked at: numbers and times grow together.
    let mut oldest = connection.prepare_cached("SELECT min(number) FROM notices")?;
    let Some(oldest) = oldest.query_row([], |row| row.get::<_, Option<i64>>(0))? else { return Ok(()) };
    let by_age = by_age.query_row([now - KEPT_FOR, oldest + KEPT], |row| row.get::<_, Option<i64>>(0))?;
    let upto = by_number.max(by_age.unwrap_or(0));
    if upto >= oldest {
        connection.prepare_cached("DELETE FROM notices WHERE number <= ?")?.execute([upto])?;
        let mut put =
            connection.prepare_cached("INSERT OR REPLACE INTO meta (name, value) VALUES ('notices_deleted', ?)")?;
        put.execute([upto.to_string()])?;
    }
    Ok(())
}

struct Source {
    shared: Arc<Shared>,
    topic: String,
    /// Up to which number notices were read.
    seen: i64,
    read: VecDeque<Notice>,
}

impl Source {
    /// Reads what came, if anything.
    fn look(&mut self) -> Result<(), PortError> {
        let (topic, seen) = (&self.topic, self.seen);
        let (deleted, found) = self.shared.readers.read(|c| {
            // One transaction, so that nothing is deleted in between.
            let look = c.unchecked_transaction()?;
            let deleted = deleted(&look)?;
            let mut found = Vec::new();
            {
                let sql = "SELECT number, body FROM notices WHERE topic = ? AND number > ? ORDER BY number LIMIT ?";
                let mut select = look.prepare_cached(sql)?;
                let mut rows = select.query(params![topic, seen, PAGE])?;
                while let Some(row) = rows.next()? {
                    found.push((row.get::<_, i64>(0)?, Bytes::copy_from_slice(row.get_ref(1)?.as_blob()?)));
                }
            }
            look.commit()?;
            Ok((deleted, found))
        })?;
        if deleted > self.seen {
            self.read.push_back(Notice::Gap);
            self.seen = deleted;
        }
        for (number, body) in found {
            self.read.push_back(Notice::Message(body));
            self.seen = self.seen.max(number);
        }
        Ok(())
    }
}

impl NoticeSource for Source {
    fn recv(&mut self) -> BoxFuture<'_, Notice> {
        Box::pin(async move {
            loop {
                let shared = self.shared.clone();
                // From here on, so that none comes between the look and the wait.
                let told = shared.noticed.notified();
                // What is published while it cannot be read is still there later, or is told as a gap.
                let failing = self.look().is_err();
                if let Some(notice) = self.read.pop_front() {
                    return notice;
                }
                let poll = shared.clock.sleep(shared.config.poll);
                if failing {
                    poll.await;
                } else {
                    race(told, poll).await;
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
