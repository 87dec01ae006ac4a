//! The same by hand on Redis: one multiplexed connection, and a script for each operation that needs
//! one.
//!
//! The promises are those of the port as one would write them by hand. The version of a record grows
//! over deletions and fail-overs: it is the server's time, or the last version plus one. A delivery
//! has a time-out, a receipt that ends with it, and a count. Nothing else of what the ports add: no
//! fences, no scans, no batches, no groups, no delays, no de-duplication, no restored connections, no
//! time limits, no classified errors.
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use redis::{Client, RedisResult, Script, aio::MultiplexedConnection, cmd, pipe};

use crate::{BODY, RECORDS, Work, measure::Subject};

const PUT: &str = "
    local known = redis.call('HGET', KEYS[1], 'version')
    if ARGV[1] ~= '' and known ~= ARGV[1] then return false end
    local time = redis.call('TIME')
    local version = math.max((tonumber(known) or 0) + 1, time[1] * 1000000 + time[2])
    version = string.format('%.0f', version)
    redis.call('HSET', KEYS[1], 'value', ARGV[2], 'version', version)
    return version";

/// KEYS: messages (`b` and id -> body, `d` and id -> deliveries), ids that are ready, ids that are
/// hidden, last id.
const SEND: &str = "
    local last, fields, ids = redis.call('INCRBY', KEYS[4], #ARGV), {}, {}
    for i = 1, #ARGV do
        ids[i] = last - #ARGV + i
        fields[2 * i - 1], fields[2 * i] = 'b' .. ids[i], ARGV[i]
    end
    redis.call('HSET', KEYS[1], unpack(fields))
    redis.call('RPUSH', KEYS[2], unpack(ids))
    return ids";

/// ARGV: most messages, visibility in microseconds. Returns id, count of deliveries and body of each.
const TAKE: &str = "
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    local due = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now), 'LIMIT', 0, 100)
    if #due > 0 then
        redis.call('ZREM', KEYS[3], unpack(due))
        redis.call('RPUSH', KEYS[2], unpack(due))
    end
    local ids = redis.call('LPOP', KEYS[2], ARGV[1])
    if not ids then return {} end
    local fields, counts, hidden, taken = {}, {}, {}, {}
    for i, id in ipairs(ids) do fields[2 * i - 1], fields[2 * i] = 'd' .. id, 'b' .. id end
    local found = redis.call('HMGET', KEYS[1], unpack(fields))
    local at = string.format('%.0f', now + ARGV[2])
    for i, id in ipairs(ids) do
        local count = (tonumber(found[2 * i - 1]) or 0) + 1
        counts[2 * i - 1], counts[2 * i] = 'd' .. id, count
        hidden[2 * i - 1], hidden[2 * i] = at, id
        taken[3 * i - 2], taken[3 * i - 1], taken[3 * i] = id, count, found[2 * i]
    end
    redis.call('HSET', KEYS[1], unpack(counts))
    redis.call('ZADD', KEYS[3], unpack(hidden))
    return taken";

/// ARGV: id and count of deliveries of each, which are its receipt. Returns the number of those that
/// were settled.
const DONE: &str = "
    local fields, ids, gone = {}, {}, {}
    for i = 1, #ARGV, 2 do fields[#fields + 1] = 'd' .. ARGV[i] end
    local counts = redis.call('HMGET', KEYS[1], unpack(fields))
    for i = 1, #counts do
        if counts[i] == ARGV[2 * i] then
            ids[#ids + 1] = ARGV[2 * i - 1]
            gone[#gone + 1], gone[#gone + 2] = fields[i], 'b' .. ARGV[2 * i - 1]
        end
    end
    if #ids == 0 then return 0 end
    redis.call('HDEL', KEYS[1], unpack(gone))
    return redis.call('ZREM', KEYS[3], unpack(ids))";

const KEYS: [&str; 4] = ["jobs:messages", "jobs:ready", "jobs:hidden", "jobs:last"];

struct ByHand {
    work: Work,
    connection: MultiplexedConnection,
    put: Script,
    send: Script,
    take: Script,
    done: Script,
    versions: Mutex<Vec<String>>,
    rows: Vec<String>,
}

pub async fn subject(work: Work, url: &str) -> Arc<dyn Subject> {
    let client = Client::open(url).expect("a URL");
    let connection = client.get_multiplexed_async_connection().await.expect("it connects");
    let rows: Vec<_> = (0..RECORDS).map(|i| format!("bench:row-{i:04}")).collect();
    let [put, send, take, done] = [PUT, SEND, TAKE, DONE].map(Script::new);
    let versions = Mutex::new(vec![String::new(); 64]);
    let by_hand = ByHand { work, connection, put, send, take, done, versions, rows };
    if !work.is_queue() {
        for row in &by_hand.rows {
            by_hand.put(row, "").await.expect("a row");
        }
    }
    Arc::new(by_hand)
}

impl ByHand {
    async fn put(&self, row: &str, known: &str) -> RedisResult<String> {
        self.put.key(row).arg(known).arg(&BODY[..]).invoke_async(&mut self.connection.clone()).await
    }

    async fn send(&self, n: usize) -> RedisResult<()> {
        let mut call = self.send.prepare_invoke();
        for key in KEYS {
            call.key(key);
        }
        for _ in 0..n {
            call.arg(&BODY[..]);
        }
        let sent: Vec<u64> = call.invoke_async(&mut self.connection.clone()).await?;
        assert_eq!(sent.len(), n);
        Ok(())
    }

    async fn take(&self, n: usize) -> RedisResult<()> {
        let mut call = self.take.prepare_invoke();
        for key in KEYS {
            call.key(key);
        }
        call.arg(n).arg(60_000_000);
        let taken: Vec<(String, u64, Vec<u8>)> = call.invoke_async(&mut self.connection.clone()).await?;
        if taken.is_empty() {
            return Ok(());
        }
        let mut call = self.done.prepare_invoke();
        for key in KEYS {
            call.key(key);
        }
        for (id, count, body) in &taken {
            assert_eq!(body.len(), BODY.len());
            call.arg(id).arg(count);
        }
        let done: usize = call.invoke_async(&mut self.connection.clone()).await?;
        assert_eq!(done, taken.len());
        Ok(())
    }

    async fn once(&self, caller: usize, i: usize) -> RedisResult<()> {
        let (mut connection, row) = (self.connection.clone(), &self.rows[(caller * 61 + i) % RECORDS]);
        match self.work {
            Work::Get => {
                let (value, _): (Vec<u8>, String) =
                    cmd("HMGET").arg(row).arg("value").arg("version").query_async(&mut connection).await?;
                assert_eq!(value.len(), BODY.len());
            }
            Work::Put => drop(self.put(row, "").await?),
            Work::Cas => {
                let known = self.versions.lock().expect("no panic")[caller].clone();
                let version = self.put(&self.rows[caller], &known).await?;
                self.versions.lock().expect("no panic")[caller] = version;
            }
            Work::Send(n) => self.send(n).await?,
            Work::Take(n) => self.take(n).await?,
            Work::Append | Work::Forward(_) | Work::Events(_) => unreachable!("a stream does it"),
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
            let mut purge = pipe();
            purge.cmd("DEL").arg(&KEYS).ignore();
            let () = purge.query_async(&mut self.connection.clone()).await.expect("a purge");
            if let Work::Take(n) = self.work {
                let mut left = operations * n;
                while left > 0 {
                    let some = left.min(256);
                    self.send(some).await.expect("messages");
                    left -= some;
                }
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
