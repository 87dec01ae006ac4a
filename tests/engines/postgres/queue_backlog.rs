//! A transaction that stays open: the rows that are deleted meanwhile stay, and receivers skip them.
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use steadfast::{
    port::Capability,
    queue::{Delivery, Message, Queue, QueueExt, Receive, Settle},
};
use tokio_postgres::{Client, NoTls};

use super::{connect, new_schema, patient, shared};
use crate::server;

const MINUTE: Duration = Duration::from_secs(60);

async fn client(server: &server::Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn complete(queue: &dyn Queue, taken: Vec<Delivery>) {
    let all = taken.into_iter().map(|delivery| (delivery.receipt, Settle::Complete)).collect();
    assert!(queue.settle(all).await.unwrap().iter().all(Result::is_ok));
}

async fn receive(queue: &dyn Queue, max: usize) -> Vec<Delivery> {
    queue.receive(Receive::new(max, MINUTE)).await.unwrap()
}

fn bodies(taken: &[Delivery]) -> BTreeSet<String> {
    taken.iter().map(|delivery| String::from_utf8_lossy(&delivery.body).into_owned()).collect()
}

async fn send(queue: &dyn Queue, messages: usize) {
    for some in (0..messages).collect::<Vec<_>>().chunks(1000) {
        queue.send(some.iter().map(|i| Message::new(i.to_string())).collect()).await.unwrap();
    }
}

/// Moves the marks of a receiver: it receives and completes messages, with pauses.
async fn move_marks(queue: &dyn Queue) {
    for _ in 0..4 {
        send(queue, 300).await;
        for _ in 0..2 {
            complete(queue, receive(queue, 290).await).await;
            server::pass(Duration::from_millis(25)).await;
        }
        while let taken = receive(queue, 1000).await
            && !taken.is_empty()
        {
            complete(queue, taken).await;
        }
    }
}

/// Counts what the scans of the queue's indexes visited, which is the work that grows with dead rows.
#[tokio::test(flavor = "multi_thread")]
async fn receiving_skips_what_a_transaction_left_open_keeps() {
    let messages: usize = std::env::var("STEADFAST_BACKLOG").map_or(20_000, |n| n.parse().unwrap());
    let server = server::Postgres::start();
    let config = patient(server.url()).schema(new_schema());
    let postgres = connect(&config).await;
    let queue = postgres.queue("jobs").await.unwrap();
    send(&queue, messages).await;
    let mut other = client(&server).await;
    // It has a snapshot and a number, so that neither its own rows nor what is deleted meanwhile is removed.
    let open = other.transaction().await.unwrap();
    open.batch_execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT txid_current()").await.unwrap();
    let (mut rates, mut received, start) = (Vec::new(), 0, Instant::now());
    while received < messages && start.elapsed() < MINUTE {
        let (began, mut done) = (Instant::now(), 0);
        // A part that took too long ended early, so that the last one may be smaller.
        let part = (messages / 10).min(messages - received);
        while done < part && began.elapsed() < MINUTE / 10 {
            let taken = queue.receive(Receive::new(10, Duration::from_secs(2))).await.unwrap();
            assert!(!taken.is_empty(), "{received} of {messages} were received");
            // Those that a busy machine completes too late come again.
            let all = taken.into_iter().map(|delivery| (delivery.receipt, Settle::Complete)).collect();
            done += queue.settle(all).await.unwrap().iter().filter(|settled| settled.is_ok()).count();
        }
        received += done;
        rates.push(done as f64 / began.elapsed().as_secs_f64());
    }
    open.rollback().await.unwrap();
    drop((queue, postgres));
    // The statistics of a connection are written when it ends.
    let mut visited = 0.0;
    server::wait_until("the statistics are written", || {
        let open = server.psql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'steadfast'");
        let read = server.psql(
            "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE indexrelname IN ('messages_ready', 'messages_hidden')",
        );
        visited = read.trim().parse::<f64>().unwrap() / received as f64;
        open == "0" && visited >= 1.0
    });
    println!("{visited:.0} index entries visited for each of {received} messages; messages per second: {rates:.0?}");
    // Without marks each receive of ten visits all earlier messages: about 2,000 entries for each of 20,000.
    assert!(visited < 400.0, "{visited:.0} index entries were visited for each message");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_transaction_that_commits_late_is_received() {
    let postgres = connect(&shared()).await;
    let queue = postgres.queue("jobs").await.unwrap();
    let mut user = client(server::Postgres::shared()).await;
    let transaction = user.transaction().await.unwrap();
    let late = [Message::new("late"), Message::new("delayed").delay(Duration::from_millis(1))];
    queue.send_within(&transaction, late.into()).await.unwrap();
    // Messages with higher numbers come and go meanwhile.
    move_marks(&queue).await;
    transaction.commit().await.unwrap();
    let taken = receive(&queue, 10).await;
    assert_eq!(bodies(&taken), BTreeSet::from(["late".to_owned(), "delayed".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_return_behind_the_marks_are_received() {
    let postgres = connect(&shared()).await;
    let (queue, other) = (postgres.queue("jobs").await.unwrap(), postgres.queue("jobs").await.unwrap());
    let sent = [
        Message::new("abandoned"),
        Message::new("released"),
        Message::new("expired"),
        Message::new("first").group("g"),
        Message::new("second").group("g"),
    ];
    queue.send(sent.into()).await.unwrap();
    // A busy machine needs more than a minute for what comes next.
    let taken = other.receive(Receive::new(10, MINUTE * 60)).await.unwrap();
    assert_eq!(taken.len(), 4);
    let of = |body: &str| taken.iter().find(|delivery| delivery.body == body).unwrap().receipt.clone();
    move_marks(&queue).await;
    other.abandon(&of("abandoned"), Duration::ZERO).await.unwrap();
    other.release(&of("released"), Duration::ZERO).await.unwrap();
    other.extend(&of("expired"), Duration::from_millis(1)).await.unwrap();
    other.complete(&of("first")).await.unwrap();
    server::pass(Duration::from_millis(5)).await;
    let back = receive(&queue, 10).await;
    let expected = ["abandoned", "released", "expired", "second"].map(str::to_owned);
    assert_eq!(bodies(&back), BTreeSet::from(expected));
}

/// The time of the schema is that of a function, which the test replaces.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_the_servers_clock_hides_no_message() {
    let config = shared();
    let postgres = connect(&config).await;
    let queue = postgres.queue("jobs").await.unwrap();
    let set_clock = |seconds: i64| {
        server::Postgres::shared().psql(&format!(
            "CREATE OR REPLACE FUNCTION \"{}\".now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
             'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {seconds}::bigint * 1000000'",
            config.schema
        ))
    };
    move_marks(&queue).await;
    queue.send(vec![Message::new("ready"), Message::new("delayed").delay(Duration::from_millis(10))]).await.unwrap();
    set_clock(-3600);
    let earlier = receive(&queue, 10).await;
    assert_eq!(bodies(&earlier), BTreeSet::from(["ready".to_owned()]), "the delay ends by the earlier clock");
    queue.abandon(&earlier[0].receipt, Duration::from_millis(10)).await.unwrap();
    queue.send_one(Message::new("new").delay(Duration::from_millis(10))).await.unwrap();
    server::pass(Duration::from_millis(20)).await;
    // The clock is right again before anything was received.
    set_clock(0);
    let expected = ["ready", "delayed", "new"].map(str::to_owned);
    assert_eq!(bodies(&receive(&queue, 10).await), BTreeSet::from(expected));
    assert!(queue.capabilities().has(Capability::Delay));
}
