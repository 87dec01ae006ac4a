//! Receivers that ask at once: none returns empty while a message is visible.
use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use steadfast::{
    backend::postgres::{Postgres, PostgresConfig},
    port::{Failure, PortError, PortErrorKind},
    queue::{Delivery, Message, Queue, QueueError, QueueExt, Receive},
};
use tokio::task::JoinHandle;

use super::{connect, connect_in_haste, shared};
use crate::server::{self, Proxy};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const RECEIVERS: usize = 64;

/// Opens the queue with several handles, as several processes do.
async fn handles(config: &PostgresConfig, number: usize) -> Vec<Postgres> {
    join_all((0..number).map(|_| connect(config))).await
}

/// Lets all receivers ask for one message at once, without a wait, and returns their answers.
async fn ask(handles: &[Postgres]) -> Vec<JoinHandle<Result<Vec<Delivery>, QueueError>>> {
    let mut asked = Vec::new();
    for at in 0..RECEIVERS {
        let queue = handles[at % handles.len()].queue("jobs").await.unwrap();
        asked.push(async move { queue.receive(Receive::new(1, HOUR)).await });
    }
    asked.into_iter().map(tokio::spawn).collect()
}

async fn received(asked: Vec<JoinHandle<Result<Vec<Delivery>, QueueError>>>) -> Vec<Delivery> {
    let mut received = Vec::new();
    for one in asked {
        received.extend(one.await.unwrap().unwrap_or_else(|error| panic!("{error}")));
    }
    received
}

// Guarantee: queue 5.
#[tokio::test(flavor = "multi_thread")]
async fn each_of_64_receivers_gets_one_of_64_messages() {
    // Of one process, and of eight.
    for number in [1, 8] {
        let handles = handles(&shared(), number).await;
        let queue = handles[0].queue("jobs").await.unwrap();
        for round in 0..10 {
            queue.send((0..RECEIVERS).map(|at| Message::new(at.to_string())).collect()).await.unwrap();
            let received = received(ask(&handles).await).await;
            assert_eq!(received.len(), RECEIVERS, "{number} handles, round {round}");
            queue
                .settle(received.into_iter().map(|one| (one.receipt, steadfast::queue::Settle::Complete)).collect())
                .await
                .unwrap();
        }
    }
}

// Guarantee: queue 5.
#[tokio::test(flavor = "multi_thread")]
async fn receivers_look_again_while_another_transaction_holds_the_only_message() {
    let server = server::Postgres::shared();
    let proxy = Arc::new(Proxy::start(server.port()));
    let config = shared().request_timeout(HOUR);
    // Each looks by a request of its own.
    let handles = handles(&config.clone().url(server.url_at(proxy.port())), RECEIVERS).await;
    handles[0].queue("jobs").await.unwrap().send_one(Message::new("a")).await.unwrap();
    let (mut user, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let holder = user.transaction().await.unwrap();
    holder.batch_execute(&format!("select from \"{}\".messages for update", config.schema)).await.unwrap();
    let asked = ask(&handles).await;
    let looks = || proxy.round_trips() / RECEIVERS as u64;
    let before = looks();
    while looks() < before + 14 && !asked.iter().any(JoinHandle::is_finished) {
        server::pass(Duration::from_millis(1)).await;
    }
    let early = asked.iter().filter(|one| one.is_finished()).count();
    assert_eq!(early, 0, "so many came back although the message is visible");
    holder.rollback().await.unwrap();
    assert_eq!(received(asked).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_another_transaction_holds_for_long_is_an_error_and_not_an_empty_answer() {
    let config = shared();
    let hurried = connect_in_haste(&config.clone().request_timeout(Duration::from_millis(500))).await;
    let queue = connect(&config).await.queue("jobs").await.unwrap();
    let hurried = crate::faults::again("queue", || hurried.queue("jobs")).await.0;
    queue.send_one(Message::new("a")).await.unwrap();
    let (mut user, connection) =
        tokio_postgres::connect(&server::Postgres::shared().url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let holder = user.transaction().await.unwrap();
    holder.batch_execute(&format!("select from \"{}\".messages for update", config.schema)).await.unwrap();
    let error = server::ends(async {
        loop {
            let error = hurried.receive(Receive::new(1, MINUTE)).await.unwrap_err();
            // A busy server may not look once in that time.
            if error.backend().map(PortError::kind) != Some(PortErrorKind::TimedOut) {
                break error;
            }
        }
    })
    .await;
    assert_eq!(error.backend().map(PortError::kind), Some(PortErrorKind::Throttled), "{error}");
    assert!(error.to_string().contains("another transaction"), "{error}");
    // Others are received meanwhile.
    queue.send_one(Message::new("b")).await.unwrap();
    assert_eq!(&queue.receive_one(MINUTE).await.unwrap().unwrap().body[..], b"b");
}
