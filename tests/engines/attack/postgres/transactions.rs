//! Transactions of the user: other isolation levels, savepoints, failures.
use steadfast::{
    backend::postgres::Postgres,
    port::{Failure, FencingToken, PortErrorKind},
    queue::{Message, QueueExt},
    store::{Key, Precondition, PutOptions, Store, StoreExt, Write},
};
use tokio_postgres::IsolationLevel;

use super::{super::*, *};

/// A transaction with one snapshot does not see what was committed after its first statement.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_another_isolation_level_is_refused() {
    let (server, config) = (server::Postgres::shared(), shared());
    let postgres = connect(&config).await;
    let (store, queue) = (postgres.store(), postgres.queue("q").await.unwrap());
    let mut client = client(server).await;
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let transaction = client.build_transaction().isolation_level(level).start().await.unwrap();
        transaction.query("select 1", &[]).await.unwrap();
        let row = format!("{level:?}");
        store.put(Key::new("p", &row), "there".into(), PutOptions::new().fence(FencingToken::new(9))).await.unwrap();
        let check = vec![Write::check_row(&*row, Precondition::Absent), Write::put("other", "x", Precondition::Any)];
        let error = store.batch_within(&transaction, "p", check).await.expect_err("the row is there");
        says(&error, PortErrorKind::Unsupported, &["READ COMMITTED"]);
        let error = queue.send_within(&transaction, vec![Message::new("x")]).await.expect_err("as for the store");
        says(&error, PortErrorKind::Unsupported, &["READ COMMITTED"]);
        transaction.query("select 1", &[]).await.expect("the transaction is usable");
        transaction.commit().await.unwrap();
    }
    assert!(store.get(Key::new("p", "other")).await.unwrap().is_none());
    assert_eq!(queue.depth().await.unwrap().total(), 0);
}

async fn of(
    postgres: &Postgres,
) -> (steadfast::backend::postgres::PostgresStore, steadfast::backend::postgres::PostgresQueue) {
    (postgres.store(), postgres.queue("q").await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_that_is_rolled_back_takes_its_writes_and_messages_with_it() {
    let postgres = connect(&shared()).await;
    let (store, queue) = of(&postgres).await;
    let mut client = client(server::Postgres::shared()).await;
    let mut transaction = client.transaction().await.unwrap();
    for (row, keeps) in [("a", true), ("b", false), ("c", true)] {
        let savepoint = transaction.transaction().await.unwrap();
        store.batch_within(&savepoint, "p", vec![Write::put(row, row, Precondition::Absent)]).await.unwrap();
        store.batch_within(&savepoint, "p", vec![Write::append("log/", row)]).await.unwrap();
        queue.send_within(&savepoint, vec![Message::new(row).group("g").deduplicate(row)]).await.unwrap();
        if keeps { savepoint.commit().await.unwrap() } else { savepoint.rollback().await.unwrap() }
    }
    transaction.commit().await.unwrap();
    let rows = store.scan_all(steadfast::store::Scan::partition("p")).await.unwrap();
    let rows: Vec<_> = rows.iter().map(|row| row.row.as_str()).collect();
    assert_eq!(rows, ["a", "c", "log/00000000000000000001", "log/00000000000000000002"]);
    for body in ["a", "c"] {
        let taken = take(&queue, 9).await;
        assert_eq!(taken.iter().map(|taken| &taken.body[..]).collect::<Vec<_>>(), [body.as_bytes()]);
        queue.complete(&taken[0].receipt).await.unwrap();
    }
    // What was rolled back is not remembered either.
    queue.send_one(Message::new("b").deduplicate("b")).await.unwrap();
    assert_eq!(take(&queue, 9).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_transaction_and_a_time_limit_of_the_user_are_errors_with_a_name() {
    let postgres = connect(&shared()).await;
    let (store, queue) = of(&postgres).await;
    let (mut client, mut other) = (client(server::Postgres::shared()).await, client(server::Postgres::shared()).await);
    let put = || vec![Write::put("r", "x", Precondition::Any)];
    let transaction = client.transaction().await.unwrap();
    transaction.query("select 1/0", &[]).await.unwrap_err();
    let error = store.batch_within(&transaction, "p", put()).await.unwrap_err();
    assert!(error.to_string().contains("aborted") && !error.may_have_been_applied(), "{error}");
    let error = queue.send_within(&transaction, vec![Message::new("x")]).await.unwrap_err();
    assert!(error.to_string().contains("aborted") && !error.may_have_been_applied(), "{error}");
    transaction.rollback().await.unwrap();
    // The other transaction has the lock of the key.
    let holds = other.transaction().await.unwrap();
    store.batch_within(&holds, "p", put()).await.unwrap();
    for setting in ["set local statement_timeout = '50ms'", "set local lock_timeout = '50ms'"] {
        let transaction = client.transaction().await.unwrap();
        transaction.execute(setting, &[]).await.unwrap();
        let error = store.batch_within(&transaction, "p", put()).await.unwrap_err();
        assert_ne!(error.class(), steadfast::port::ErrorClass::Permanent, "{error}");
        assert!(!error.may_have_been_applied(), "{error}");
        transaction.rollback().await.unwrap();
    }
    holds.rollback().await.unwrap();
    store.insert(Key::new("p", "r"), "x").await.unwrap();
}

/// A transaction that is open holds the group of its messages. Other groups, and messages without one, go on.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_stops_the_senders_of_its_group_alone() {
    let postgres = connect(&shared()).await;
    let queue = postgres.queue("q").await.unwrap();
    let mut client = client(server::Postgres::shared()).await;
    let transaction = client.transaction().await.unwrap();
    queue.send_within(&transaction, vec![Message::new("first").group("held")]).await.unwrap();
    let senders: Vec<_> = (0..40)
        .map(|i| {
            let queue = queue.clone();
            tokio::spawn(async move {
                let group = match i % 4 {
                    0 => Some("held".to_owned()),
                    1 => Some(format!("group {i}")),
                    _ => None,
                };
                let mut message = Message::new(i.to_string());
                message.group = group;
                queue.send_one(message).await
            })
        })
        .collect();
    let (held, others): (Vec<_>, Vec<_>) = (0..).zip(senders).partition(|(i, _)| i % 4 == 0);
    for (i, sender) in others {
        ends("sending", sender).await.unwrap().unwrap_or_else(|error| panic!("{i}: {error}"));
    }
    assert!(!held.iter().any(|(_, sender)| sender.is_finished()), "the group is held");
    transaction.rollback().await.unwrap();
    for (i, sender) in held {
        ends("sending", sender).await.unwrap().unwrap_or_else(|error| panic!("{i}: {error}"));
    }
    ends("sending", queue.send_one(Message::new("last").group("held"))).await.unwrap();
}
