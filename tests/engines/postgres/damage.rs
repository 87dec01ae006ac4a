//! A schema that changes under a connected handle, and rows that an operator's hand damaged.
use std::{collections::BTreeSet, time::Duration};

use steadfast::{
    backend::{
        ConnectionEvent,
        postgres::{Postgres, PostgresConfig, PostgresQueue},
    },
    lease::{Acquired, Lease},
    port::{Failure, FencingToken, PortErrorKind},
    queue::{Message, Queue, QueueExt, Receive, Settle},
    store::{Key, Precondition, PutOptions, Scan, Store, StoreExt, Write},
};
use tokio_postgres::NoTls;

use super::{connect, shared};
use crate::server;

const KEY: Key<'static> = Key::new("p", "r");
const MINUTE: Duration = Duration::from_secs(60);

/// Fails unless the error is of this kind and has these words.
#[track_caller]
fn says<T>(answer: Result<T, impl Failure + std::fmt::Display>, kind: PortErrorKind, words: &[&str], what: &str) {
    let Err(error) = answer else { panic!("{what}: accepted") };
    let text = error.to_string();
    assert_eq!(error.backend().map(|error| error.kind()), Some(kind), "{what}: {text}");
    assert!(!error.may_have_been_applied(), "{what}: {text}");
    words.iter().for_each(|word| assert!(text.contains(word), "{what} names {word:?}: {text}"));
}

async fn drop_schema(config: &PostgresConfig) -> Postgres {
    server::Postgres::shared().psql(&format!("drop schema \"{}\" cascade", config.schema));
    connect(config).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_handle_of_a_queue_whose_schema_was_made_anew_accepts_nothing() {
    let config = shared();
    let postgres = connect(&config).await;
    let queue = postgres.queue("q").await.unwrap();
    queue.send(vec![Message::new("a"), Message::new("b").group("g")]).await.unwrap();
    let taken = queue.receive(Receive::new(2, MINUTE)).await.unwrap();
    let again = drop_schema(&config).await;
    let reopened = again.queue("q").await.unwrap();
    let gone = |what: &'static str| (PortErrorKind::Corrupt, ["queue", "open it again"], what);
    let mut accepted = 0;
    for i in 0..20 {
        let message = Message::new(i.to_string());
        let message = if i % 2 == 0 { message } else { message.group("g").deduplicate(i.to_string()) };
        accepted += usize::from(queue.send_one(message).await.is_ok());
    }
    assert_eq!(accepted, 0, "of 20 sends so many were accepted into a queue that nobody has");
    let (kind, words, what) = gone("send");
    says(queue.send_one(Message::new("x")).await, kind, &words, what);
    says(queue.receive(Receive::new(1, MINUTE)).await, kind, &words, "receive");
    says(queue.receive(Receive::new(1, MINUTE).wait(MINUTE)).await, kind, &words, "a receive that waits");
    for how in [Settle::Complete, Settle::abandon(Duration::ZERO), Settle::dead_letter("no".to_owned())] {
        for taken in &taken {
            says(queue.settle(vec![(taken.receipt.clone(), how.clone())]).await, kind, &words, "settle");
        }
    }
    says(queue.extend(&taken[0].receipt, MINUTE).await, kind, &words, "extend");
    says(queue.depth().await, kind, &words, "depth");
    says(queue.peek(1).await, kind, &words, "peek");
    says(queue.purge().await, kind, &words, "purge");
    let dead = queue.dead_letters().unwrap();
    says(dead.receive(Receive::new(1, MINUTE)).await, kind, &words, "receive of dead letters");
    let (mut client, connection) = tokio_postgres::connect(&config.url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let transaction = client.transaction().await.unwrap();
    says(queue.send_within(&transaction, vec![Message::new("x")]).await, kind, &words, "send_within");
    drop(transaction);
    // The handle opens it again.
    assert_eq!(reopened.depth().await.unwrap().total(), 0);
    postgres.queue("q").await.unwrap().send_one(Message::new("y")).await.unwrap();
    assert_eq!(reopened.receive_one(MINUTE).await.unwrap().unwrap().body, "y");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_schema_is_noticed_by_each_request_of_a_connected_handle() {
    let (server, config) = (server::Postgres::shared(), shared());
    let postgres = connect(&config).await;
    let (store, lease, queue) = (postgres.store(), postgres.lease(), postgres.queue("q").await.unwrap());
    let version = store.insert(KEY, "x").await.unwrap();
    queue.send((0..4).map(|i| Message::new(i.to_string())).collect()).await.unwrap();
    let taken = queue.receive(Receive::new(2, MINUTE)).await.unwrap();
    let Acquired::Granted(token) = lease.acquire("n", "h", MINUTE).await.unwrap() else { panic!("it is free") };
    let set = |value: &str| server.psql(&format!("update \"{}\".meta set value = {value}", config.schema));
    set("value + 1");
    let (kind, words) = (PortErrorKind::TooNew, ["newer release", "upgrade"]);
    for row in ["r", "missing"] {
        says(store.get(Key::new("p", row)).await, kind, &words, "get");
        says(store.put(Key::new("p", row), "y".into(), PutOptions::new()).await, kind, &words, "put");
        says(store.delete(Key::new("p", row), Precondition::Any.into()).await, kind, &words, "delete");
    }
    says(store.replace(KEY, "y", version).await, kind, &words, "replace");
    says(store.put_fenced(KEY, "y", FencingToken::new(1)).await, kind, &words, "fenced");
    says(store.batch("p", vec![Write::append("s/", "x")]).await, kind, &words, "append");
    says(store.scan(&Scan::partition("p")).await, kind, &words, "scan");
    says(store.scan(&Scan::partition("nowhere")).await, kind, &words, "scan of nothing");
    let many: Vec<String> = (0..100).map(|i| i.to_string()).collect();
    let gets = futures::future::join_all(many.iter().map(|row| store.get(Key::new("p", row)))).await;
    gets.into_iter().for_each(|get| says(get, kind, &words, "gets that meet"));
    let puts =
        futures::future::join_all(many.iter().map(|row| store.put(Key::new("p", row), "y".into(), PutOptions::new())));
    puts.await.into_iter().for_each(|put| says(put, kind, &words, "puts that meet"));
    says(lease.acquire("n", "h", MINUTE).await, kind, &words, "acquire");
    says(lease.renew("n", "h", token, MINUTE).await, kind, &words, "renew");
    says(lease.read("n").await, kind, &words, "read");
    says(lease.request_release("n", token).await, kind, &words, "request_release");
    says(lease.release("n", "h", token).await, kind, &words, "release");
    says(postgres.queue("other").await, kind, &words, "open");
    says(queue.send_one(Message::new("x")).await, kind, &words, "send");
    says(queue.send_one(Message::new("x").group("g")).await, kind, &words, "send to a group");
    says(queue.receive(Receive::new(1, MINUTE)).await, kind, &words, "receive");
    says(queue.complete(&taken[0].receipt).await, kind, &words, "complete");
    says(queue.abandon(&taken[0].receipt, Duration::ZERO).await, kind, &words, "abandon");
    says(queue.extend(&taken[0].receipt, MINUTE).await, kind, &words, "extend");
    says(queue.depth().await, kind, &words, "depth");
    says(queue.peek(1).await, kind, &words, "peek");
    says(queue.purge().await, kind, &words, "purge");
    set("value - 1");
    // Nothing was done, and the handle works again.
    assert_eq!(store.get(KEY).await.unwrap().unwrap().version, version);
    assert_eq!(queue.depth().await.unwrap().total(), 4);
    queue.complete(&taken[0].receipt).await.unwrap();
    lease.release("n", "h", token).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_was_dropped_is_named_also_by_a_handle_that_migrates() {
    let server = server::Postgres::shared();
    let tables =
        ["records", "fences", "sequences", "leases", "queues", "messages", "message_groups", "sent", "queue_life"];
    for table in tables {
        let config = shared();
        let postgres = connect(&config).await;
        let (store, lease) = (postgres.store(), postgres.lease());
        let queue = postgres.queue("q").await.unwrap();
        server.psql(&format!("drop table \"{}\".{table}", config.schema));
        for config in [config.clone(), config.clone().migrate(false)] {
            says(Postgres::connect(config).await, PortErrorKind::Corrupt, &[table, "drop the schema"], table);
        }
        let error = match table {
            "records" => store.get(KEY).await.map(drop).map_err(|error| error.to_string()),
            "fences" => store.put_fenced(KEY, "x", FencingToken::new(1)).await.map(drop).map_err(|e| e.to_string()),
            "sequences" => store.batch("p", vec![Write::append("s/", "x")]).await.map(drop).map_err(|e| e.to_string()),
            "leases" => lease.read("n").await.map(drop).map_err(|error| error.to_string()),
            "queue_life" => queue.receive(Receive::new(1, MINUTE)).await.map(drop).map_err(|e| e.to_string()),
            _ => {
                let message = Message::new("x").group("g").deduplicate("d");
                queue.send_one(message).await.map(drop).map_err(|error| error.to_string())
            }
        }
        .unwrap_err();
        assert!(error.contains(table) && error.contains("restore"), "{table}: {error}");
    }
}

/// Returns the numbers of the bodies that arrive until the queue seems to be empty.
async fn receive_all(queue: &PostgresQueue, max: usize) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    loop {
        let taken = queue.receive(Receive::new(max, MINUTE)).await.unwrap_or_else(|error| panic!("{error}"));
        if taken.is_empty() {
            return all;
        }
        for taken in taken {
            all.insert(String::from_utf8(taken.body.to_vec()).unwrap());
            queue.complete(&taken.receipt).await.unwrap();
        }
    }
}

/// Changes of one row that no release of the crate makes.
const DAMAGES: [&str; 20] = [
    "deliveries = 2147483647",
    "deliveries = -1",
    "attempts = 2147483647",
    "attempts = -7",
    "expiries = -1",
    "receipt = -1",
    "size = -1",
    "accepted_at = -9223372036854775808",
    "accepted_at = 9223372036854775807",
    "due = -9223372036854775808",
    "due = 9223372036854775807",
    "id = -id",
    "errors = array[null::bytea]",
    "errors = array[array[''::bytea], array[''::bytea]]",
    "deliveries = null",
    "attempts = null, expiries = null",
    "receipt = null",
    "size = null",
    "accepted_at = null, due = null",
    "body = null",
];

fn without_not_null(server: &server::Postgres, config: &PostgresConfig) {
    for column in ["deliveries", "attempts", "expiries", "receipt", "size", "accepted_at", "due", "body"] {
        server.psql(&format!("alter table \"{}\".messages alter {column} drop not null", config.schema));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_row_of_a_queue_is_set_aside_and_its_neighbours_flow() {
    let (server, config) = (server::Postgres::shared(), shared());
    let postgres = connect(&config).await;
    without_not_null(server, &config);
    let mut events = postgres.events();
    for (number, damage) in DAMAGES.into_iter().enumerate() {
        // One at a time, many at once; ready, hidden before, and the first of a group.
        for (kind, max) in [("ready", 1), ("ready", 32), ("hidden", 32), ("group", 32)] {
            let what = format!("{damage}, {kind}, {max} at a time");
            let queue = postgres.queue(&format!("q {number} {kind} {max}")).await.unwrap();
            let message = |i: usize| {
                let message = Message::new(i.to_string());
                match kind {
                    "hidden" => message.delay(Duration::from_micros(1)),
                    "group" => message.group(format!("g{}", i % 4)),
                    _ => message,
                }
            };
            let ids = queue.send((0..20).map(message).collect()).await.unwrap();
            let id = ids[3].to_string();
            let row = id.split('-').next().unwrap();
            let changed = format!("update \"{}\".messages set {damage} where id = {row} returning id", config.schema);
            let row = server.psql(&changed);
            let found = receive_all(&queue, max).await;
            let all: BTreeSet<String> = (0..20).filter(|i| *i != 3).map(|i| i.to_string()).collect();
            assert_eq!(found, all, "{what}");
            let event = server::ends(events.recv()).await.unwrap().what;
            let ConnectionEvent::SetAside { message, place } = &event else { panic!("{what}: {event:?}") };
            assert!(message.contains(&row) && place.contains("messages"), "{what}: {event:?}");
            // It is not received again, counts for nothing, and does not disturb an operator.
            assert!(receive_all(&queue, max).await.is_empty(), "{what}");
            assert_eq!(queue.depth().await.unwrap().total(), 0, "{what}");
            assert!(queue.peek(100).await.unwrap().is_empty(), "{what}");
            // Mended, as the page says.
            let mend = "id = abs(id), due = 0, accepted_at = 0, receipt = 0, deliveries = 0, attempts = 0, expiries = 0, \
                        size = 0, errors = null, body = ''";
            server.psql(&format!(
                "update \"{0}\".messages set {mend}, visible_at = \"{0}\".now_us() where id = {row}",
                config.schema
            ));
            assert_eq!(receive_all(&queue, max).await.len(), 1, "{what}");
        }
    }
}

/// A later message of a group whose time is out of all bounds holds up no other one for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_row_inside_a_group_is_set_aside_and_a_purge_deletes_it() {
    let (server, config) = (server::Postgres::shared(), shared());
    let postgres = connect(&config).await;
    without_not_null(server, &config);
    // A changed id would change the order.
    for damage in DAMAGES.into_iter().filter(|damage| !damage.starts_with("id")) {
        let queue = postgres.queue("q").await.unwrap();
        let ids = queue.send((0..5).map(|i| Message::new(i.to_string()).group("g")).collect()).await.unwrap();
        let id = ids[2].to_string();
        let row = id.split('-').next().unwrap();
        server.psql(&format!("update \"{}\".messages set {damage} where id = {row}", config.schema));
        let found = receive_all(&queue, 32).await;
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["0", "1", "3", "4"], "{damage}");
        assert_eq!(queue.purge().await.unwrap(), 1, "{damage}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_record_is_corrupt_and_its_neighbours_are_read() {
    let (server, config) = (server::Postgres::shared(), shared());
    let store = connect(&config).await.store();
    let records = format!("\"{}\".records", config.schema);
    for column in ["value", "version"] {
        server.psql(&format!("alter table {records} alter {column} drop not null"));
    }
    let rows: Vec<String> = (0..20).map(|i| format!("row {i}")).collect();
    for damage in ["value = null", "version = null", "version = -5", "version = 0"] {
        for row in &rows {
            store.put(Key::new("p", row), "x".into(), PutOptions::new()).await.unwrap();
        }
        server.psql(&format!("update {records} set {damage} where key = 'row 7'"));
        let words = ["row 7", "damaged"];
        says(store.get(Key::new("p", "row 7")).await, PortErrorKind::Corrupt, &words, damage);
        // Those that meet share a request.
        for _ in 0..3 {
            let gets = rows.iter().map(|row| store.get(Key::new("p", row)));
            for (row, got) in rows.iter().zip(futures::future::join_all(gets).await) {
                if row == "row 7" {
                    says(got, PortErrorKind::Corrupt, &words, damage);
                } else {
                    assert_eq!(got.unwrap().unwrap().value, "x", "{damage}: {row}");
                }
            }
        }
        // A page would have a gap that nobody sees.
        says(store.scan(&Scan::partition("p")).await, PortErrorKind::Corrupt, &words, damage);
        assert_eq!(store.scan(&Scan::partition("p").prefix("row 1")).await.unwrap().rows.len(), 11, "{damage}");
        // It is replaced, or deleted.
        if damage == "value = null" {
            store.delete(Key::new("p", "row 7"), Precondition::Any.into()).await.unwrap();
        }
        let version = store.put(Key::new("p", "row 7"), "new".into(), PutOptions::new()).await.unwrap();
        let found = store.get(Key::new("p", "row 7")).await.unwrap().unwrap();
        assert_eq!((found.value, found.version), ("new".into(), version), "{damage}");
    }
    server.psql(&format!("update {records} set version = 9223372036854775807 where key = 'row 7'"));
    let puts = rows.iter().map(|row| store.put(Key::new("p", row), "y".into(), PutOptions::new()));
    for (row, put) in rows.iter().zip(futures::future::join_all(puts).await) {
        if row == "row 7" {
            says(put, PortErrorKind::Corrupt, &["out of range"], "the last version");
        } else {
            put.unwrap();
        }
    }
}

/// A delivery that sets messages of several groups aside once locked the groups in the order of the messages.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_messages_of_two_groups_are_set_aside_while_a_transaction_locks_both_groups() {
    let (server, config) = (server::Postgres::shared(), shared());
    let postgres = connect(&config).await;
    let mut events = postgres.events();
    let queue = postgres.queue("q").await.unwrap();
    queue.send(vec![Message::new("0").group("b"), Message::new("1").group("a")]).await.unwrap();
    queue.send(vec![Message::new("2").group("b"), Message::new("3").group("a")]).await.unwrap();
    server.psql(&format!(
        "update \"{0}\".messages set deliveries = -5 where body in (convert_to('0', 'UTF8'), convert_to('1', 'UTF8'))",
        config.schema
    ));
    // As a send of both groups does it.
    let lock = |group| {
        let schema = &config.schema;
        format!("select 1 from \"{schema}\".message_groups where key = convert_to('{group}', 'UTF8') for update")
    };
    let (mut client, connection) = tokio_postgres::connect(&config.url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let transaction = client.transaction().await.unwrap();
    transaction.query(&lock("a"), &[]).await.unwrap();
    let receives = tokio::spawn(async move { receive_all(&queue, 10).await });
    let waits = format!(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%{}%queue_deliver%'",
        config.schema
    );
    server::wait_until("the delivery waits", || server.psql(&waits).trim() != "0");
    transaction.query(&lock("b"), &[]).await.unwrap();
    transaction.commit().await.unwrap();
    let received = server::ends(receives).await.unwrap();
    assert_eq!(received, BTreeSet::from(["2".to_owned(), "3".to_owned()]));
    for _ in 0..2 {
        let event = server::ends(events.recv()).await.unwrap().what;
        assert!(matches!(event, ConnectionEvent::SetAside { .. }), "{event:?}");
    }
}
