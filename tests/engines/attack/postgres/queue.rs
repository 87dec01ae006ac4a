//! Queues at their limits.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use steadfast::{
    backend::postgres::PostgresConfig,
    port::PortErrorKind,
    queue::{Message, Queue, QueueExt, Receive, Settle},
    store::{Precondition, Store, Write},
};

use super::{super::*, *};

/// Receivers that share a statement share its limit on bytes as well: those that got nothing look again.
#[tokio::test(flavor = "multi_thread")]
async fn each_of_many_receivers_at_once_gets_one_of_as_many_large_messages() {
    const MANY: usize = 64;
    let postgres = connect(&shared()).await;
    let queue = Arc::new(postgres.queue("q").await.unwrap());
    for _ in 0..MANY {
        queue.send_one(Message::new(vec![7; 4 << 20])).await.unwrap();
    }
    let receivers: Vec<_> = (0..MANY)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move { take(&*queue, 1).await.len() })
        })
        .collect();
    let mut empty = 0;
    for receiver in receivers {
        empty += usize::from(ends("receiving", receiver).await.unwrap() == 0);
    }
    assert_eq!(empty, 0, "{:?}: so many receivers got nothing", queue.depth().await.unwrap());
}

/// The largest batch of the largest messages is more than the server takes in one request.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_too_large_for_the_server_is_invalid_and_ends_no_connection() {
    let config = shared().request_timeout(Duration::from_secs(30)).connections(2);
    let postgres = connect(&config).await;
    let (store, queue) = (postgres.store(), postgres.queue("q").await.unwrap());
    let body = bytes::Bytes::from(vec![7; 64 << 20]);
    let messages = || vec![Message::new(body.clone()); 17];
    let error = ends("sending", queue.send(messages())).await.unwrap_err();
    says(&error, PortErrorKind::Invalid, &["messages", "bytes"]);
    let mut client = client(server::Postgres::shared()).await;
    let transaction = client.transaction().await.unwrap();
    let error = ends("sending", queue.send_within(&transaction, messages())).await.unwrap_err();
    says(&error, PortErrorKind::Invalid, &["messages", "bytes"]);
    let writes = || (0..17).map(|i| Write::put(i.to_string(), body.clone(), Precondition::Any)).collect::<Vec<_>>();
    let error = ends("writing", store.batch("p", writes())).await.unwrap_err();
    says(&error, PortErrorKind::Invalid, &["writes", "bytes"]);
    let error = ends("writing", store.batch_within(&transaction, "p", writes())).await.unwrap_err();
    says(&error, PortErrorKind::Invalid, &["writes", "bytes"]);
    transaction.rollback().await.unwrap();
    send(&queue, ["end"]).await;
    let taken = take(&queue, 1).await;
    let forwards = messages().into_iter().map(|message| (queue.address().unwrap(), message)).collect::<Vec<_>>();
    let settled = ends("settling", queue.settle(vec![(taken[0].receipt.clone(), Settle::forward(forwards))])).await;
    says(&settled.unwrap().remove(0).unwrap_err(), PortErrorKind::Invalid, &["messages", "bytes"]);
    assert_eq!(queue.depth().await.unwrap().total(), 1);
}

/// A purge of many large messages goes on in steps: one statement for all would exceed the time limit of each attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_of_large_messages_is_made_in_steps() {
    let proxy = server::Proxy::start(server::Postgres::shared().port());
    let url = server::Postgres::shared().url_at(proxy.port());
    let queue = connect(&shared().url(url)).await.queue("q").await.unwrap();
    for i in 0..30 {
        let message = |at: i32| Message::new(vec![7; 1 << 20]).group(format!("g{}", (i + at) % 7));
        queue.send((0..4).map(message).collect()).await.unwrap();
    }
    let before = proxy.round_trips();
    assert_eq!(ends("purging", queue.purge()).await.unwrap(), 120);
    assert!(proxy.round_trips() - before >= 4, "{} round trips", proxy.round_trips() - before);
    assert_eq!(queue.depth().await.unwrap().total(), 0);
    // The groups begin anew.
    queue.send_one(Message::new("x").group("g1")).await.unwrap();
    assert_eq!(take(&queue, 1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_by_the_thousand_and_long_reasons_come_back_as_they_were() {
    let postgres = connect(&shared()).await;
    let queue = postgres.queue("q").await.unwrap();
    let mut message = Message::new("").group("\u{0}").deduplicate("x".repeat(1024));
    for i in 0..20_000 {
        message = message.header(format!("name {i}:\u{0}"), format!("{i}:ü").repeat(3));
    }
    queue.send_one(message.clone()).await.unwrap();
    let taken = take(&queue, 1).await.remove(0);
    assert_eq!(taken.headers, message.headers);
    let reason = "no\u{0}".repeat(100_000);
    queue.settle(vec![(taken.receipt, Settle::dead_letter(reason.clone()))]).await.unwrap().remove(0).unwrap();
    let dead = take(&*queue.dead_letters().unwrap(), 1).await.remove(0);
    assert_eq!((dead.reason, dead.headers), (Some(reason), message.headers));
}

/// Marks of receivers are of one life of the server's memory. A backend that is killed ends that, and the server itself
/// goes on: what it had not written to the disk is gone, the last ids included.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_one_backend_hides_no_message_that_is_sent_later() {
    let server = server::Postgres::with(&[("synchronous_commit", "off"), ("wal_writer_delay", "10s")]);
    let postgres = connect(&PostgresConfig::at(server.url())).await;
    let queue = postgres.queue("q").await.unwrap();
    // The log is written in full up to here.
    send(&queue, ["durable"]).await;
    server.psql("set synchronous_commit = on; create table written ()");
    // A disk that is slow: the log stays in memory from here on.
    let pid_of = |what: &str| server.psql(&format!("select pid from pg_stat_activity where {what} limit 1"));
    let signal = |signal: &str, pid: &str| {
        assert!(std::process::Command::new("kill").args([signal, pid]).status().unwrap().success());
    };
    signal("-STOP", &pid_of("backend_type = 'walwriter'"));
    for round in 0..4 {
        for i in 0..40 {
            send(&queue, [format!("{round} {i}")]).await;
        }
        for taken in take(&queue, 100).await {
            queue.complete(&taken.receipt).await.unwrap();
        }
        // Long enough for the marks to move.
        server::pass(Duration::from_millis(1100)).await;
        assert!(take(&queue, 100).await.is_empty());
    }
    let last = server.psql("select last_value from steadfast.message_ids");
    signal("-KILL", &pid_of("application_name = 'steadfast'"));
    server::wait_until("the server's recovery", || {
        let log = server.whole_log();
        log.split_once("reinitializing").is_some_and(|(_, later)| later.contains("ready to accept connections"))
    });
    ends("the handle's return", async {
        while queue.send_one(Message::new("after")).await.is_err() {
            server::look_again().await;
        }
    })
    .await;
    assert_ne!(server.psql("select last_value from steadfast.message_ids"), last, "the last ids are gone");
    let mut found = 0;
    while let [_, ..] = &take(&queue, 100).await[..] {
        found += 1;
    }
    assert!(found > 0, "{:?}", queue.depth().await.unwrap());
    assert_eq!(queue.depth().await.unwrap().visible, 0);
}

/// A receiver that waits does not miss messages of a queue that is purged all the time.
#[tokio::test(flavor = "multi_thread")]
async fn receiving_settling_peeking_and_purging_at_once_agree() {
    let postgres = connect(&shared()).await;
    let queue = Arc::new(postgres.queue("q").await.unwrap());
    let sender = tokio::spawn({
        let queue = queue.clone();
        async move {
            for i in 0..400 {
                queue.send_one(Message::new(i.to_string()).group(format!("g{}", i % 5))).await.unwrap();
            }
        }
    });
    let is_sent = Arc::new(AtomicBool::new(false));
    let receiver = tokio::spawn({
        let (queue, is_sent) = (queue.clone(), is_sent.clone());
        async move {
            let mut ended = 0_u64;
            loop {
                // A busy sender may pause for longer than the wait.
                let is_last = is_sent.load(SeqCst);
                let receive = Receive::new(3, Duration::from_secs(600)).wait(Duration::from_secs(1));
                let taken = queue.receive(receive).await.unwrap();
                if taken.is_empty() && is_last {
                    return ended;
                }
                for taken in taken {
                    match queue.complete(&taken.receipt).await {
                        Ok(()) => ended += 1,
                        Err(error) => assert!(error.is_lease_lost(), "{error}"),
                    }
                }
            }
        }
    });
    let mut purged = 0;
    for _ in 0..20 {
        queue.peek(10).await.unwrap();
        purged += queue.purge().await.unwrap();
        server::pass(Duration::from_millis(5)).await;
    }
    sender.await.unwrap();
    is_sent.store(true, SeqCst);
    let ended = ends("receiving", receiver).await.unwrap();
    assert_eq!((ended + purged, queue.depth().await.unwrap().total()), (400, 0));
}
