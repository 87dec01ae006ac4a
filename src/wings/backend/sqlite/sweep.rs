//! Deletion of expired rows, a limited number at a time.
use rusqlite::Connection;

use super::notifier::KEPT_FOR;

/// Queries that check for expired rows, and that delete those that expired first, each by an index.
/// The check is much cheaper, and most sweeps find nothing.
const STEPS: [(&str, &str); 3] = [
    (
        "SELECT 1 FROM records WHERE ends IS NOT NULL AND ends <= ? LIMIT 1",
        "DELETE FROM records WHERE (partition, row) IN (SELECT partition, row FROM records
         WHERE ends IS NOT NULL AND ends <= ? ORDER BY ends LIMIT ?)",
    ),
    (
        "SELECT 1 FROM sent WHERE ends <= ? LIMIT 1",
        "DELETE FROM sent WHERE (queue, deduplication) IN
         (SELECT queue, deduplication FROM sent WHERE ends <= ? ORDER BY ends LIMIT ?)",
    ),
    (
        "SELECT 1 FROM notices WHERE sent_at <= ? LIMIT 1",
        "DELETE FROM notices WHERE (topic, number) IN
         (SELECT topic, number FROM notices WHERE sent_at <= ? ORDER BY sent_at LIMIT ?)",
    ),
];

/// Deletes up to `most` rows of each table. Returns `true` if more rows may have expired.
pub(super) fn sweep(connection: &Connection, now: i64, most: u64) -> rusqlite::Result<bool> {
    let mut more = false;
    for ((look, delete), ended) in STEPS.into_iter().zip([now, now, now.saturating_sub(KEPT_FOR)]) {
        if connection.prepare_cached(look)?.exists([ended])? {
            let most_rows = i64::try_from(most).unwrap_or(i64::MAX);
            let deleted = connection.prepare_cached(delete)?.execute((ended, most_rows))?;
            more |= deleted as u64 >= most && most > 0;
        }
    }
    Ok(more)
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;
    use crate::backend::sqlite::{SqliteConfig, schema};

    #[test]
    fn a_sweep_looks_by_an_index_and_compiles_its_statements_once() {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::at(folder.path().join("state.db"));
        let (connection, _) = schema::open(&config, None).unwrap();
        for (row, ends) in (0..).zip([10, 20, 20, 30]) {
            let put = "INSERT INTO records (partition, row, value, version, ends) VALUES ('p', ?, x'', 1, ?)";
            connection.execute(put, (row.to_string(), ends)).unwrap();
        }
        assert!(!sweep(&connection, 9, 2).unwrap());
        assert!(sweep(&connection, 20, 2).unwrap());
        assert!(!sweep(&connection, 20, 2).unwrap());
        let left: i64 = connection.query_row("SELECT count(*) FROM records", [], |row| row.get(0)).unwrap();
        assert_eq!(left, 1);
        for sql in STEPS.into_iter().flat_map(|(look, delete)| [look, delete]) {
            let statement = connection.prepare_cached(sql).unwrap();
            assert_eq!(statement.get_status(StatementStatus::RePrepare), 0, "{sql}");
            assert_eq!(statement.get_status(StatementStatus::FullscanStep), 0, "{sql}");
        }
    }
}
