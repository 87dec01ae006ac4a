//! Deletes what has ended, a bounded number of rows at a time.
use rusqlite::Connection;

use super::notifier::KEPT_FOR;

/// Each deletes the rows that ended first, by an index.
const STEPS: [&str; 3] = [
    "DELETE FROM records WHERE (partition, row) IN (SELECT partition, row FROM records
     WHERE ends IS NOT NULL AND ends <= ? ORDER BY ends LIMIT ?)",
    "DELETE FROM sent WHERE (queue, deduplication) IN
     (SELECT queue, deduplication FROM sent WHERE ends <= ? ORDER BY ends LIMIT ?)",
    "DELETE FROM notices WHERE (topic, number) IN
     (SELECT topic, number FROM notices WHERE sent_at <= ? ORDER BY sent_at LIMIT ?)",
];

/// Deletes at most so many rows of each table. Returns true where more may have ended.
pub(super) fn sweep(connection: &Connection, now: i64, most: u64) -> rusqlite::Result<bool> {
    let mut more = false;
    for (step, ended) in STEPS.into_iter().zip([now, now, now.saturating_sub(KEPT_FOR)]) {
        let deleted = connection.prepare_cached(step)?.execute((ended, i64::try_from(most).unwrap_or(i64::MAX)))?;
        more |= deleted as u64 >= most && most > 0;
    }
    Ok(more)
}
