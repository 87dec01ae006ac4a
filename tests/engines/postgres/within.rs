//! Writes within a transaction of the user.
use std::time::Duration;

use steadfast::{
    backend::postgres::{Postgres, PostgresConfig},
    port::FencingToken,
    store::{Key, Precondition, PutOptions, Store, StoreError, StoreExt, Write},
};
use tokio_postgres::{Client, NoTls};

use super::{connect, shared};
use crate::server;

const ORDER: Key<'static> = Key::new("shop", "42");

/// Returns the user's own connection.
async fn client(server: &server::Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Places an order: a row of the user, a record, an event of a sequence.
async fn place(postgres: &Postgres, table: &str, transaction: &tokio_postgres::Transaction<'_>) {
    transaction.execute(&format!("insert into {table} values (42)"), &[]).await.unwrap();
    let writes = vec![Write::put("42", "placed", Precondition::Absent), Write::append("events/", "placed 42")];
    let versions = postgres.store().batch_within(transaction, "shop", writes).await.unwrap();
    assert!(versions[0].is_some() && versions[1].is_some_and(|number| number.as_u64() == 1));
}

/// Returns a schema with a table of the user beside the crate's.
async fn shop(server: &server::Postgres, config: &PostgresConfig) -> (Postgres, String) {
    let postgres = connect(config).await;
    let table = format!("\"{}\".orders", config.schema);
    server.psql(&format!("create table {table} (id int)"));
    (postgres, table)
}

#[tokio::test]
async fn what_is_written_within_a_transaction_appears_with_its_commit() {
    let (server, config) = (server::Postgres::shared(), shared());
    let (postgres, table) = shop(server, &config).await;
    let mut client = client(server).await;
    let transaction = client.transaction().await.unwrap();
    place(&postgres, &table, &transaction).await;
    assert_eq!(postgres.store().get(ORDER).await.unwrap(), None);
    transaction.commit().await.unwrap();
    assert_eq!(server.psql(&format!("select count(*) from {table}")), "1");
    assert_eq!(postgres.store().get(ORDER).await.unwrap().unwrap().value, "placed");
}

#[tokio::test]
async fn what_is_written_within_a_transaction_goes_with_its_rollback() {
    let (server, config) = (server::Postgres::shared(), shared());
    let (postgres, table) = shop(server, &config).await;
    let mut client = client(server).await;
    let transaction = client.transaction().await.unwrap();
    place(&postgres, &table, &transaction).await;
    transaction.rollback().await.unwrap();
    assert_eq!(server.psql(&format!("select count(*) from {table}")), "0");
    assert_eq!(postgres.store().get(ORDER).await.unwrap(), None);
    let first = postgres.store().batch("shop", vec![Write::append_after("events/", "first", 0)]).await.unwrap();
    assert_eq!(first[0].unwrap().as_u64(), 1, "no number was taken");
}

#[tokio::test]
async fn a_server_that_is_killed_between_keeps_neither_or_both() {
    let server = server::Postgres::start();
    let config = PostgresConfig::at(server.url());
    let (postgres, table) = shop(&server, &config).await;
    for commits in [false, true] {
        let mut client = client(&server).await;
        let transaction = client.transaction().await.unwrap();
        place(&postgres, &table, &transaction).await;
        if commits {
            transaction.commit().await.unwrap();
        }
        server.restart();
        let (orders, records) = (
            server.psql(&format!("select count(*) from {table}")),
            server.psql("select count(*) from steadfast.records"),
        );
        assert_eq!((orders.as_str(), records.as_str()), if commits { ("1", "2") } else { ("0", "0") });
    }
}

#[tokio::test]
async fn a_refused_batch_leaves_the_transaction_usable_and_nothing_in_it() {
    let (server, config) = (server::Postgres::shared(), shared());
    let (postgres, _) = shop(server, &config).await;
    let store = postgres.store();
    store.insert(ORDER, "placed").await.unwrap();
    store.put(Key::new("shop", "fenced"), "x".into(), PutOptions::new().fence(FencingToken::new(5))).await.unwrap();
    let mut client = client(server).await;
    let transaction = client.transaction().await.unwrap();
    let other = || Write::put("other", "x", Precondition::Any);
    let taken = vec![other(), Write::put("42", "x", Precondition::Absent)];
    let refused = store.batch_within(&transaction, "shop", taken).await;
    assert!(matches!(refused, Err(StoreError::Conflict { write: 1, current: Some(_) })), "{refused:?}");
    let stale = vec![other(), Write::put("fenced", "x", PutOptions::new().fence(FencingToken::new(4)))];
    let refused = store.batch_within(&transaction, "shop", stale).await;
    assert!(matches!(refused, Err(StoreError::Fenced { write: 1, .. })), "{refused:?}");
    let last = vec![Write::put("last", "x", Precondition::Absent)];
    store.batch_within(&transaction, "shop", last).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(store.get(Key::new("shop", "other")).await.unwrap(), None);
    assert!(store.get(Key::new("shop", "last")).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_makes_writers_of_its_keys_wait_and_no_others() {
    let (server, config) = (server::Postgres::shared(), shared());
    let (postgres, _) = shop(server, &config).await;
    let store = postgres.store();
    let mut client = client(server).await;
    let transaction = client.transaction().await.unwrap();
    let held = vec![Write::put("42", "theirs", Precondition::Any)];
    store.batch_within(&transaction, "shop", held).await.unwrap();
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.put(ORDER, "mine".into(), PutOptions::new()).await }
    });
    // Among them some that gather with the one that waits.
    let others = (0..200).map(|i| {
        let store = store.clone();
        tokio::spawn(
            async move { store.put(Key::new("shop", &format!("other {i}")), "x".into(), PutOptions::new()).await },
        )
    });
    for other in others.collect::<Vec<_>>() {
        other.await.unwrap().unwrap();
    }
    assert!(!waiting.is_finished());
    transaction.commit().await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(store.get(ORDER).await.unwrap().unwrap().value, "mine");
}
