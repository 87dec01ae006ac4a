//! The same by hand: one rusqlite connection behind a mutex, called in place, its statements
//! prepared once.
//!
//! Nothing of what the ports add: no fences, no groups, no ends of records, no second process, no
//! error types. Called in place, it blocks the executor for the time of a sync; by `spawn_blocking`
//! it is kind to other tasks.
use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use futures::future::BoxFuture;
use rusqlite::{Connection, TransactionBehavior, params};

use crate::{BODY, Mode, RECORDS, Work, measure::Subject};

struct ByHand {
    work: Work,
    connection: Mutex<Connection>,
    versions: Mutex<Vec<i64>>,
    /// Messages that were received and not ended.
    received: Mutex<Vec<i64>>,
    rows: Vec<String>,
    /// Whether each operation is sent to the runtime's threads for blocking work, as an async
    /// service has to.
    elsewhere: bool,
}

pub fn subject(work: Work, mode: Mode, path: &Path, elsewhere: bool) -> Arc<dyn Subject> {
    let connection = Connection::open(path).expect("it opens");
    let synchronous = if mode == Mode::Durable { "FULL" } else { "NORMAL" };
    connection
        .execute_batch(&format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous};
             CREATE TABLE records (partition TEXT, row TEXT, value BLOB, version INTEGER,
                 PRIMARY KEY (partition, row)) WITHOUT ROWID;
             CREATE TABLE log (sequence TEXT, number INTEGER, value BLOB, PRIMARY KEY (sequence, number)) WITHOUT ROWID;
             CREATE TABLE events (partition INTEGER, number INTEGER, body BLOB, PRIMARY KEY (partition, number))
                 WITHOUT ROWID;
             CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB, visible_at INTEGER, receipt INTEGER,
                 deliveries INTEGER);
             CREATE TABLE others (id INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB, visible_at INTEGER, receipt INTEGER,
                 deliveries INTEGER);
             CREATE INDEX others_by_time ON others (visible_at, id);
             CREATE INDEX messages_by_time ON messages (visible_at, id);"
        ))
        .expect("the schema");
    let rows: Vec<String> = (0..RECORDS).map(|i| format!("row-{i:04}")).collect();
    for row in &rows {
        connection.execute("INSERT INTO records VALUES ('bench', ?, ?, 0)", params![row, BODY]).expect("a row");
    }
    let (versions, received) = (Mutex::new(vec![0; 64]), Mutex::default());
    Arc::new(ByHand { work, connection: Mutex::new(connection), versions, received, rows, elsewhere })
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as i64
}

impl ByHand {
    fn once(&self, caller: usize, i: usize) -> rusqlite::Result<()> {
        let row = &self.rows[(caller * 61 + i) % RECORDS];
        let mut connection = self.connection.lock().expect("no panic");
        match self.work {
            Work::Get => {
                let mut get =
                    connection.prepare_cached("SELECT value, version FROM records WHERE partition = ? AND row = ?")?;
                let (value, _): (Vec<u8>, i64) = get.query_row(("bench", row), |r| Ok((r.get(0)?, r.get(1)?)))?;
                assert_eq!(value.len(), BODY.len());
            }
            Work::Put => {
                let put = "UPDATE records SET value = ?, version = version + 1 WHERE partition = ? AND row = ?";
                assert_eq!(connection.prepare_cached(put)?.execute(params![BODY, "bench", row])?, 1);
            }
            Work::Cas => {
                let mut versions = self.versions.lock().expect("no panic");
                let put = "UPDATE records SET value = ?, version = version + 1
                           WHERE partition = ? AND row = ? AND version = ?";
                let put = connection.prepare_cached(put)?.execute(params![
                    BODY,
                    "bench",
                    self.rows[caller],
                    versions[caller]
                ])?;
                assert_eq!(put, 1);
                versions[caller] += 1;
            }
            Work::Append => {
                let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                {
                    let last = "SELECT coalesce(max(number), 0) FROM log WHERE sequence = ?";
                    let last: i64 = transaction.prepare_cached(last)?.query_row(["log/"], |row| row.get(0))?;
                    let insert = "INSERT INTO log VALUES (?, ?, ?)";
                    transaction.prepare_cached(insert)?.execute(params!["log/", last + 1, BODY])?;
                }
                transaction.commit()?;
            }
            Work::Events(n) => {
                let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                {
                    let partition = caller as i64 % 32;
                    let last = "SELECT coalesce(max(number), 0) FROM events WHERE partition = ?";
                    let last: i64 = transaction.prepare_cached(last)?.query_row([partition], |row| row.get(0))?;
                    let mut insert = transaction.prepare_cached("INSERT INTO events VALUES (?, ?, ?)")?;
                    for number in last + 1..=last + n as i64 {
                        insert.execute(params![partition, number, BODY])?;
                    }
                }
                transaction.commit()?;
            }
            Work::Send(n) => {
                let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                {
                    let send = "INSERT INTO messages (body, visible_at, deliveries) VALUES (?, ?, 0)";
                    let mut send = transaction.prepare_cached(send)?;
                    for _ in 0..n {
                        send.execute(params![BODY, now()])?;
                    }
                }
                transaction.commit()?;
            }
            Work::Take(n) => {
                let receipt = Instant::now().elapsed().as_nanos() as i64 ^ now();
                let mut taken: Vec<i64> = Vec::new();
                {
                    let take = "UPDATE messages SET visible_at = ?1 + 60000000, receipt = ?2, deliveries = deliveries + 1
                                WHERE id IN (SELECT id FROM messages WHERE visible_at <= ?1 ORDER BY visible_at, id LIMIT ?3)
                                RETURNING id, body";
                    let mut take = connection.prepare_cached(take)?;
                    let mut found = take.query(params![now(), receipt, n as i64])?;
                    while let Some(message) = found.next()? {
                        taken.push(message.get(0)?);
                        let _body: Vec<u8> = message.get(1)?;
                    }
                }
                let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                {
                    let done = "DELETE FROM messages WHERE id = ? AND receipt = ?";
                    let mut done = transaction.prepare_cached(done)?;
                    for id in taken {
                        assert_eq!(done.execute(params![id, receipt])?, 1);
                    }
                }
                transaction.commit()?;
            }
            Work::Forward(n) => {
                let mut received = self.received.lock().expect("no panic");
                let left = received.len() - n;
                let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                {
                    let mut done = transaction.prepare_cached("DELETE FROM messages WHERE id = ? AND receipt = ?")?;
                    let send = "INSERT INTO others (body, visible_at, deliveries) VALUES (?, ?, 0)";
                    let mut send = transaction.prepare_cached(send)?;
                    for id in received.drain(left..) {
                        assert_eq!(done.execute(params![id, 1])?, 1);
                        send.execute(params![BODY, now()])?;
                    }
                }
                transaction.commit()?;
            }
        }
        Ok(())
    }
}

impl Subject for ByHand {
    fn prepare(&self, operations: usize) -> BoxFuture<'_, ()> {
        let mut connection = self.connection.lock().expect("no panic");
        if self.work.is_queue() {
            connection.execute_batch("DELETE FROM messages; DELETE FROM others").expect("a purge");
        }
        if let Work::Forward(n) = self.work {
            let mut received = self.received.lock().expect("no panic");
            received.clear();
            let transaction = connection.transaction().expect("a transaction");
            for _ in 0..operations * n {
                let send = "INSERT INTO messages (body, visible_at, receipt, deliveries) VALUES (?, ?, 1, 1)";
                let sent = transaction.prepare_cached(send).and_then(|mut s| s.execute(params![BODY, i64::MAX]));
                sent.expect("a send");
                received.push(transaction.last_insert_rowid());
            }
            transaction.commit().expect("a commit");
        }
        if let Work::Take(n) = self.work {
            let transaction = connection.transaction().expect("a transaction");
            for _ in 0..operations * n {
                let send = "INSERT INTO messages (body, visible_at, deliveries) VALUES (?, ?, 0)";
                transaction.prepare_cached(send).and_then(|mut s| s.execute(params![BODY, now()])).expect("a send");
            }
            transaction.commit().expect("a commit");
        }
        Box::pin(async {})
    }

    fn work(self: Arc<Self>, caller: usize, operations: usize) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            for i in 0..operations {
                if self.elsewhere {
                    let time = self.clone();
                    tokio::task::spawn_blocking(move || time.once(caller, i).expect("SQLite")).await.expect("a thread");
                } else {
                    self.once(caller, i).expect("SQLite");
                    // Where it blocks it must let others run at least in between.
                    tokio::task::yield_now().await;
                }
            }
        })
    }
}
