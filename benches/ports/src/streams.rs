//! Raw streams of Redis: one multiplexed connection, a stream with a consumer group.
//!
//! A stream promises less than a queue: an entry is settled by its id, also by a consumer whose time
//! is over and whose entry another one has claimed; no delays, no groups, no de-duplication.
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use redis::{Client, Pipeline, RedisResult, Value, aio::MultiplexedConnection, cmd, pipe};

use crate::{BODY, Work, measure::Subject};

struct Streams {
    work: Work,
    connection: MultiplexedConnection,
    /// Messages that were received and not ended.
    received: Mutex<Vec<Vec<u8>>>,
}

pub async fn subject(work: Work, url: &str) -> Arc<dyn Subject> {
    let client = Client::open(url).expect("a URL");
    let connection = client.get_multiplexed_async_connection().await.expect("it connects");
    Arc::new(Streams { work, connection, received: Mutex::default() })
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

impl Streams {
    async fn once(&self, caller: usize) -> RedisResult<()> {
        let mut connection = self.connection.clone();
        match self.work {
            Work::Get | Work::Put | Work::Cas | Work::Events(_) => unreachable!("a stream has no records"),
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

impl Subject for Streams {
    fn prepare(&self, operations: usize) -> BoxFuture<'_, ()> {
        Box::pin(async move {
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
                let (mut take, messages) = (cmd("XREADGROUP"), operations * n);
                take.arg("GROUP").arg("workers").arg(0).arg("COUNT").arg(messages).arg("STREAMS").arg("jobs").arg(">");
                *self.received.lock().expect("no panic") =
                    ids(&take.query_async(&mut connection).await.expect("messages"));
            }
        })
    }

    fn work(self: Arc<Self>, caller: usize, operations: usize) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            for _ in 0..operations {
                self.once(caller).await.expect("Redis");
            }
        })
    }
}
