//! Messages that are sent within a user's own transaction.
use std::time::Duration;

use steadfast::{
    port::{Failure, PortError, PortErrorKind},
    queue::{Message, Queue, QueueExt, Receive},
};
use tokio_postgres::{Client, NoTls};

use super::{connect, patient, shared};
use crate::server;

const MINUTE: Duration = Duration::from_secs(60);
/// Longer than a test: nothing but a notice ends the wait of a receiver.
const HOUR: Duration = Duration::from_secs(3600);

async fn client() -> Client {
    let (client, connection) = tokio_postgres::connect(&server::Postgres::shared().url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_transaction_are_sent_with_its_commit_alone() {
    let postgres = connect(&shared()).await;
    let queue = postgres.queue("jobs").await.unwrap();
    let mut user = client().await;
    let message = || vec![Message::new("a").deduplicate("1").header("b", "c")];
    let rolled_back = user.transaction().await.unwrap();
    queue.send_within(&rolled_back, message()).await.unwrap();
    assert_eq!(queue.depth().await.unwrap().total(), 0, "not before the commit");
    rolled_back.rollback().await.unwrap();
    assert_eq!(queue.depth().await.unwrap().total(), 0);
    // Its id is not remembered.
    let committed = user.transaction().await.unwrap();
    let ids = queue.send_within(&committed, message()).await.unwrap();
    committed.commit().await.unwrap();
    let taken = queue.receive_one(MINUTE).await.unwrap().unwrap();
    assert_eq!((&taken.id, &taken.body[..], taken.headers["b"].as_str()), (&ids[0], &b"a"[..], "c"));
    assert_eq!(queue.send(message()).await.unwrap(), ids);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_whose_connection_is_killed_sends_nothing() {
    let postgres = connect(&shared()).await;
    let queue = postgres.queue("jobs").await.unwrap();
    let mut user = client().await;
    let pid: i32 = user.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let transaction = user.transaction().await.unwrap();
    queue.send_within(&transaction, vec![Message::new("a").group("g")]).await.unwrap();
    server::Postgres::shared().psql(&format!("SELECT pg_terminate_backend({pid})"));
    assert!(transaction.commit().await.is_err());
    // The group is free at once.
    queue.send_one(Message::new("b").group("g")).await.unwrap();
    let taken = queue.receive(Receive::new(10, MINUTE)).await.unwrap();
    assert_eq!(taken.iter().map(|delivery| &delivery.body[..]).collect::<Vec<_>>(), [b"b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commit_wakes_a_waiting_receiver() {
    let postgres = connect(&shared().poll(HOUR)).await;
    let queue = postgres.queue("jobs").await.unwrap();
    let mut user = client().await;
    let waits = tokio::spawn({
        let queue = queue.clone();
        async move { queue.receive(Receive::new(1, MINUTE).wait(HOUR)).await.unwrap() }
    });
    server::pass(Duration::from_millis(100)).await;
    let transaction = user.transaction().await.unwrap();
    queue.send_within(&transaction, vec![Message::new("a")]).await.unwrap();
    transaction.commit().await.unwrap();
    let taken = server::ends(waits).await.unwrap();
    assert_eq!(taken.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_message_leaves_the_transaction_as_it_is() {
    let postgres = connect(&shared()).await;
    let queue = postgres.queue("jobs").await.unwrap();
    let mut user = client().await;
    let transaction = user.transaction().await.unwrap();
    let refused = queue.send_within(&transaction, vec![Message::new("a").group("")]).await.unwrap_err();
    assert_eq!(refused.backend().map(PortError::kind), Some(PortErrorKind::Invalid));
    queue.send_within(&transaction, vec![Message::new("b")]).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(queue.depth().await.unwrap().total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_costs_one_commit_as_long_as_nobody_waits() {
    let server = server::Postgres::with(&[("autovacuum", "off")]);
    let postgres = connect(&patient(server.url()).poll(HOUR)).await;
    let queue = postgres.queue("jobs").await.unwrap();
    let commits = || server.psql("select pg_snapshot_xmax(pg_current_snapshot())").parse::<u64>().unwrap();
    // A notice is a transaction with a number, as a write is. They are sent behind the messages.
    let wait = || server::pass(Duration::from_millis(100));
    let before = commits();
    for _ in 0..10 {
        queue.send_one(Message::new("a")).await.unwrap();
        wait().await;
    }
    assert_eq!(commits() - before, 10);
    let waits = tokio::spawn({
        let others = postgres.queue("others").await.unwrap();
        async move { others.receive(Receive::new(1, MINUTE).wait(HOUR)).await.unwrap() }
    });
    let wakes = "select count(*) from pg_locks where locktype = 'advisory' and mode = 'ShareLock'";
    server::wait_until("the receiver listens", || server.psql(wakes) == "1");
    let queue = postgres.queue("others").await.unwrap();
    queue.send_one(Message::new("b")).await.unwrap();
    assert_eq!(server::ends(waits).await.unwrap().len(), 1);
}
