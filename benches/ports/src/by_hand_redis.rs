//! The same by hand on Redis: one multiplexed connection, a hash and a script for records, a stream
//! with a consumer group for messages.
//!
//! A stream promises a receiver a time-out (by `XCLAIM`), settling by id and a count of deliveries.
//! Nothing else of what the ports add: no fences, no groups, no delays, no ends of records, no restored
//! connections, no classified errors.
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use redis::{Client, Pipeline, RedisResult, Script, Value, aio::MultiplexedConnection, cmd, pipe};

use crate::{BODY, RECORDS, Work, measure::Subject};

const CAS: &str = "
    if ARGV[1] ~= '' and redis.call('HGET', KEYS[1], 'version') ~= ARGV[1] then return false end
    redis.call('HSET', KEYS[1], 'value', ARGV[2])
    return redis.call('HINCRBY', KEYS[1], 'version', 1)";

struct ByHand {
    work: Work,
    connection: MultiplexedConnection,
    cas: Script,
    versions: Mutex<Vec<String>>,
    /// Messages that were received and not ended.
    received: Mutex<Vec<Vec<u8>>>,
    rows: Vec<String>,
}

pub async fn subject(work: Work, url: &str) -> Arc<dyn Subject> {
    let client = Client::open(url).expect("a URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("it connects");
    let rows: Vec<_> = (0..RECORDS).map(|i| format!("bench:row-{i:04}")).collect();
    let cas = Script::new(CAS);
    for row in &rows {
        let put: RedisResult<i64> = cas.key(row).arg("").arg(&BODY[..]).invoke_async(&mut connection).await;
        put.expect("a row");
    }
    Arc::new(ByHand {
        work,
        connection,
        cas,
        versions: Mutex::new(vec![String::new(); 64]),
        received: Mutex::default(),
        rows,
    })
}

fn sends(n: usize) -> Pipeline {
    let mut sends = pipe();
    for _ in 0..n {
        sends.cmd("XADD").arg("jobs").arg("*").arg("b").arg(&BODY[..]);
    }
    sends
}

/// Returns the ids of an answer of `XREADGROUP`.
fn ids(answer: &Value) -> Vec<Vec<u8>> {
    let parts = |value: &Value| match value {
        Value::Array(parts) => parts.clone(),
        _ => Vec::new(),
    };
    let mut ids = Vec::new();
    for stream in parts(answer) {
        for entry in parts(&stream).get(1).map(&parts).unwrap_or_default() {
            if let Some(Value::BulkString(id)) = parts(&entry).first() {
                ids.push(id.clone());
            }
        }
    }
    ids
}

impl ByHand {
    async fn once(&self, caller: usize, i: usize) -> RedisResult<()> {
        let (mut connection, row) = (self.connection.clone(), &self.rows[(caller * 61 + i) % RECORDS]);
        match self.work {
            Work::Get => {
                let (value, _): (Vec<u8>, String) =
                    cmd("HMGET").arg(row).arg("value").arg("version").query_async(&mut connection).await?;
                assert_eq!(value.len(), BODY.len());
            }
            Work::Put => {
                let _: i64 = self.cas.key(row).arg("").arg(&BODY[..]).invoke_async(&mut connection).await?;
            }
            Work::Cas => {
                let known = self.versions.lock().expect("no panic")[caller].clone();
                let row = &self.rows[caller];
                let version: i64 = self.cas.key(row).arg(known).arg(&BODY[..]).invoke_async(&mut connection).await?;
                self.versions.lock().expect("no panic")[caller] = version.to_string();
            }
            Work::Append => {
                let _: String =
                    cmd("XADD").arg("log").arg("*").arg("v").arg(&BODY[..]).query_async(&mut connection).await?;
            }
            Work::Send(n) => {
                let sent: Vec<String> = sends(n).query_async(&mut connection).await?;
                assert_eq!(sent.len(), n);
            }
            Work::Take(n) => {
                let mut take = cmd("XREADGROUP");
                take.arg("GROUP").arg("workers").arg(caller).arg("COUNT").arg(n).arg("STREAMS").arg("jobs").arg(">");
                let ids = ids(&take.query_async(&mut connection).await?);
                if !ids.is_empty() {
                    // Settled, and deleted.
                    let mut done = pipe();
                    done.atomic().cmd("XACK").arg("jobs").arg("workers").arg(&ids).cmd("XDEL").arg("jobs").arg(&ids);
                    let (settled, _): (usize, usize) = done.query_async(&mut connection).await?;
                    assert_eq!(settled, ids.len());
                }
            }
            Work::Forward(n) => {
                let ids: Vec<Vec<u8>> = {
                    let mut received = self.received.lock().expect("no panic");
                    let left = received.len() - n;
                    received.drain(left..).collect()
                };
                let mut done = pipe();
                done.atomic().cmd("XACK").arg("jobs").arg("workers").arg(&ids).cmd("XDEL").arg("jobs").arg(&ids);
                for _ in 0..n {
                    done.cmd("XADD").arg("others").arg("*").arg("b").arg(&BODY[..]).ignore();
                }
                let (settled, _): (usize, usize) = done.query_async(&mut connection).await?;
                assert_eq!(settled, n);
            }
        }
        Ok(())
    }
}

impl Subject for ByHand {
    fn prepare(&self, operations: usize) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if !self.work.is_queue() {
                return;
            }
            let mut connection = self.connection.clone();
            let mut fresh = pipe();
            fresh.cmd("DEL").arg("jobs").arg("others").ignore();
            fresh.cmd("XGROUP").arg("CREATE").arg("jobs").arg("workers").arg("0").arg("MKSTREAM").ignore();
            let () = fresh.query_async(&mut connection).await.expect("a stream");
            if let Work::Take(n) | Work::Forward(n) = self.work {
                let mut left = operations * n;
                while left > 0 {
                    let some = left.min(256);
                    let _: Vec<String> = sends(some).query_async(&mut connection).await.expect("messages");
                    left -= some;
                }
            }
            if let Work::Forward(n) = self.work {
                let mut take = cmd("XREADGROUP");
                take.arg("GROUP")
                    .arg("workers")
                    .arg(0)
                    .arg("COUNT")
                    .arg(operations * n)
                    .arg("STREAMS")
                    .arg("jobs")
                    .arg(">");
                *self.received.lock().expect("no panic") =
                    ids(&take.query_async(&mut connection).await.expect("messages"));
            }
        })
    }

    fn work(self: Arc<Self>, caller: usize, operations: usize) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            for i in 0..operations {
                self.once(caller, i).await.expect("Redis");
            }
        })
    }
}
