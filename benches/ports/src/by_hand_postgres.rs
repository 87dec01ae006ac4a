//! The same by hand on PostgreSQL: eight tokio-postgres connections, statements prepared once, each
//! operation a statement of its own.
//!
//! The promises of a receiver are those of the port: a time-out, a receipt that settles, a count of
//! deliveries. Nothing else of what the ports add: no fences, no groups, no ends of records, no
//! restored connections, no time limits, no classified errors.
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use tokio_postgres::{Client, NoTls, Statement};

use crate::{BODY, RECORDS, Work, measure::Subject};

/// As many as a handle of ours has.
const CONNECTIONS: usize = 8;

const SCHEMA: &str = "
    CREATE TABLE by_hand.records (partition bytea, row bytea, value bytea NOT NULL, version bigint NOT NULL,
        PRIMARY KEY (partition, row));
    CREATE TABLE by_hand.messages (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL,
        visible_at timestamptz NOT NULL DEFAULT clock_timestamp(), receipt bigint, deliveries int NOT NULL DEFAULT 0);
    CREATE INDEX ON by_hand.messages (visible_at, id);
    CREATE TABLE by_hand.others (LIKE by_hand.messages INCLUDING ALL);
    CREATE TABLE by_hand.log (sequence bytea, number bigint, value bytea NOT NULL, PRIMARY KEY (sequence, number));
    CREATE TABLE by_hand.sequences (sequence bytea PRIMARY KEY, last bigint NOT NULL);
    INSERT INTO by_hand.sequences VALUES ('log', 0);
    CREATE SEQUENCE by_hand.receipts";

struct ByHand {
    work: Work,
    connections: Vec<Connection>,
    versions: Mutex<Vec<i64>>,
    /// Messages that were received and not ended, with their receipts.
    received: Mutex<Vec<(i64, i64)>>,
    rows: Vec<Vec<u8>>,
}

struct Connection {
    client: Client,
    get: Statement,
    put: Statement,
    cas: Statement,
    send: Statement,
    take: Statement,
    done: Statement,
    append: Statement,
    forward: Statement,
}

impl Connection {
    async fn open(url: &str) -> Self {
        let client = connect(url).await;
        let prepare = async |sql| client.prepare(sql).await.expect("a statement");
        Self {
            get: prepare("SELECT value, version FROM by_hand.records WHERE partition = $1 AND row = $2").await,
            put: prepare(
                "UPDATE by_hand.records SET value = $3, version = version + 1 WHERE partition = $1 AND row = $2
                 RETURNING version",
            )
            .await,
            cas: prepare(
                "UPDATE by_hand.records SET value = $3, version = version + 1
                 WHERE partition = $1 AND row = $2 AND version = $4 RETURNING version",
            )
            .await,
            send: prepare("INSERT INTO by_hand.messages (body) SELECT unnest($1::bytea[]) RETURNING id").await,
            take: prepare(
                "UPDATE by_hand.messages SET visible_at = clock_timestamp() + interval '60 s',
                     receipt = nextval('by_hand.receipts'), deliveries = deliveries + 1
                 WHERE id IN (SELECT id FROM by_hand.messages WHERE visible_at <= clock_timestamp()
                     ORDER BY visible_at, id LIMIT $1 FOR UPDATE SKIP LOCKED)
                 RETURNING id, receipt, body, deliveries",
            )
            .await,
            done: prepare(
                "DELETE FROM by_hand.messages m USING unnest($1::bigint[], $2::bigint[]) AS d (id, receipt)
                 WHERE m.id = d.id AND m.receipt = d.receipt",
            )
            .await,
            append: prepare(
                "WITH next AS (UPDATE by_hand.sequences SET last = last + 1 WHERE sequence = $1 RETURNING last)
                 INSERT INTO by_hand.log SELECT $1, last, $2 FROM next RETURNING number",
            )
            .await,
            forward: prepare(
                "WITH done AS (DELETE FROM by_hand.messages m USING unnest($1::bigint[], $2::bigint[]) AS d (id, receipt)
                     WHERE m.id = d.id AND m.receipt = d.receipt RETURNING m.id)
                 INSERT INTO by_hand.others (body) SELECT $3 FROM done",
            )
            .await,
            client,
        }
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("it connects");
    tokio::spawn(connection);
    client
}

pub async fn subject(work: Work, url: &str) -> Arc<dyn Subject> {
    connect(url).await.batch_execute(SCHEMA).await.expect("the schema");
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(Connection::open(url).await);
    }
    let rows: Vec<_> = (0..RECORDS).map(|i| format!("row-{i:04}").into_bytes()).collect();
    let insert = "INSERT INTO by_hand.records SELECT 'bench', unnest($1::bytea[]), $2, 0";
    connections[0].client.execute(insert, &[&rows, &&BODY[..]]).await.expect("rows");
    Arc::new(ByHand { work, connections, versions: Mutex::new(vec![0; 64]), received: Mutex::default(), rows })
}

impl ByHand {
    async fn once(&self, caller: usize, i: usize) -> Result<(), tokio_postgres::Error> {
        let connection = &self.connections[caller % CONNECTIONS];
        let client = &connection.client;
        let (partition, row, body) = (&b"bench"[..], &self.rows[(caller * 61 + i) % RECORDS], &BODY[..]);
        match self.work {
            Work::Get => {
                let found = client.query_one(&connection.get, &[&partition, &row]).await?;
                assert_eq!(found.get::<_, &[u8]>(0).len(), BODY.len());
            }
            Work::Put => drop(client.query_one(&connection.put, &[&partition, &row, &body]).await?),
            Work::Cas => {
                let known = self.versions.lock().expect("no panic")[caller];
                let row = &self.rows[caller];
                let written = client.query_one(&connection.cas, &[&partition, &row, &body, &known]).await?;
                self.versions.lock().expect("no panic")[caller] = written.get(0);
            }
            Work::Append => drop(client.query_one(&connection.append, &[&&b"log"[..], &body]).await?),
            Work::Events(_) => unreachable!("measured in a file"),
            Work::Send(n) => assert_eq!(client.query(&connection.send, &[&vec![body; n]]).await?.len(), n),
            Work::Take(n) => {
                let taken = client.query(&connection.take, &[&(n as i64)]).await?;
                let ids: Vec<i64> = taken.iter().map(|row| row.get(0)).collect();
                let receipts: Vec<i64> = taken.iter().map(|row| row.get(1)).collect();
                let done = client.execute(&connection.done, &[&ids, &receipts]).await?;
                assert_eq!(done as usize, ids.len());
            }
            Work::Forward(n) => {
                let (ids, receipts): (Vec<i64>, Vec<i64>) = {
                    let mut received = self.received.lock().expect("no panic");
                    let left = received.len() - n;
                    received.drain(left..).unzip()
                };
                let sent = client.execute(&connection.forward, &[&ids, &receipts, &body]).await?;
                assert_eq!(sent as usize, n);
            }
        }
        Ok(())
    }
}

impl Subject for ByHand {
    fn prepare(&self, operations: usize) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let connection = &self.connections[0];
            if self.work.is_queue() {
                connection.client.batch_execute("TRUNCATE by_hand.messages, by_hand.others").await.expect("a purge");
            }
            if let Work::Take(n) | Work::Forward(n) = self.work {
                let fill = "INSERT INTO by_hand.messages (body) SELECT $1 FROM generate_series(1, $2::bigint)";
                let messages = (operations * n) as i64;
                connection.client.execute(fill, &[&&BODY[..], &messages]).await.expect("messages");
            }
            if let Work::Forward(_) = self.work {
                let taken = connection.client.query(&connection.take, &[&i64::MAX]).await.expect("messages");
                *self.received.lock().expect("no panic") = taken.iter().map(|row| (row.get(0), row.get(1))).collect();
            }
        })
    }

    fn work(self: Arc<Self>, caller: usize, operations: usize) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            for i in 0..operations {
                self.once(caller, i).await.expect("PostgreSQL");
            }
        })
    }
}
