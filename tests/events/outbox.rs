//! The outbox: a message is sent if and only if its commit took effect.
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use steadfast::{
    event_sourcing::{
        AggregateConfig, AggregateStore, Commit, EventStore, EventStoreConfig, Expected::*, Outbox, OutboxConfig,
        OutboxEvent,
    },
    observe::Event,
    port::{Capabilities, Failure, PortErrorKind},
    queue::{InMemoryQueue, Message, Queue, QueueExt},
    store::{InMemoryStore, Store},
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
    time::Clock,
};

use crate::{
    aggregates::{Book, SeatEvent, Seats, codec},
    append,
    crashes::new_name,
    event,
    unsteady::Unsteady,
};

async fn open(store: &Arc<dyn Store>, name: &str, queues: &[(&str, Capabilities)]) -> EventStore {
    let log = EventStore::builder(store.clone(), name, EventStoreConfig::default());
    queues.iter().fold(log, |log, (queue, can)| log.outbox(*queue, *can)).build().await.unwrap()
}

fn outbox(log: &EventStore, name: &str, queue: &Arc<dyn Queue>) -> Outbox {
    Outbox::new(log, name, queue.clone(), OutboxConfig::default()).unwrap()
}

fn queue(name: &str) -> Arc<dyn Queue> {
    Arc::new(InMemoryQueue::new(name))
}

fn mail(id: &str, text: &str) -> Commit {
    append(id, "a", Any, "A").send("mails", Message::new(text.to_owned()).header("for", id.to_owned()).group("g"))
}

async fn bodies(queue: &dyn Queue) -> Vec<String> {
    let mut bodies = Vec::new();
    while let Some(delivery) = queue.receive_one(Duration::from_secs(60)).await.unwrap() {
        bodies.push(String::from_utf8_lossy(&delivery.body).into_owned());
        queue.complete(&delivery.receipt).await.unwrap();
    }
    bodies
}

// Guarantee: event_sourcing 14.
#[tokio::test(start_paused = true)]
async fn a_message_is_sent_if_and_only_if_its_commit_took_effect_in_the_order_of_the_log() {
    let (store, mails): (Arc<dyn Store>, _) = (Arc::new(InMemoryStore::new()), queue("mails"));
    let log = open(&store, "log", &[("mails", mails.capabilities())]).await;
    for n in 0..250 {
        log.commit(mail(&n.to_string(), &n.to_string())).await.unwrap();
        log.commit(append("late", "a", Version(9999), "A").send("mails", Message::new("refused"))).await.unwrap_err();
    }
    // Messages alone, and two of them in a commit.
    let alone = Commit::new("alone").send("mails", Message::new("250").group("g"));
    log.commit(alone.send("mails", Message::new("251").group("g"))).await.unwrap();
    assert!(log.commit(mail("7", "again")).await.unwrap().is_repeated);
    outbox(&log, "mails", &mails).run(Clock::tokio().sleep(Duration::from_secs(1))).await.unwrap();
    assert_eq!(bodies(&*mails).await, (0..252).map(|n| n.to_string()).collect::<Vec<_>>());

    // The next run goes on behind them, and wakes for a commit.
    let box_of_mails = outbox(&log, "mails", &mails);
    let commits = async {
        Clock::tokio().sleep(Duration::from_secs(30)).await;
        log.commit(mail("next", "252")).await.unwrap();
    };
    let runs = box_of_mails.run(Clock::tokio().sleep(Duration::from_secs(31)));
    futures::join!(commits, async { runs.await.unwrap() });
    assert_eq!(bodies(&*mails).await, ["252"]);
}

// Guarantee: event_sourcing 14.
#[tokio::test(start_paused = true)]
async fn a_queue_that_is_down_holds_up_itself_alone_and_two_outboxes_send_each_message_once() {
    let (store, mails): (Arc<dyn Store>, _) = (Arc::new(InMemoryStore::new()), queue("mails"));
    let full: Arc<dyn Queue> = Arc::new(InMemoryQueue::builder("bills").bounded(2).build());
    let queues = [("mails", mails.capabilities()), ("bills", full.capabilities())];
    let (log, other) = (open(&store, "log", &queues).await, open(&store, "log", &queues).await);
    for n in 0..30 {
        log.commit(mail(&n.to_string(), &n.to_string()).send("bills", Message::new(n.to_string()))).await.unwrap();
    }
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = events.clone();
    let bills = Outbox::builder(&log, "bills", full.clone(), OutboxConfig::default())
        .on_event(move |event: &Event<OutboxEvent>| seen.lock().unwrap().push(event.what))
        .build()
        .unwrap();
    let stop = || Clock::tokio();
    let (one, two) = (outbox(&log, "mails", &mails), outbox(&other, "mails", &mails));
    let (first, second, third) = (stop(), stop(), stop());
    let runs = futures::join!(
        one.run(first.sleep(Duration::from_secs(20))),
        two.run(second.sleep(Duration::from_secs(20))),
        bills.run(third.sleep(Duration::from_secs(20)))
    );
    for run in [runs.0, runs.1, runs.2] {
        run.unwrap();
    }
    assert_eq!(bodies(&*mails).await, (0..30).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(bodies(&*full).await, ["0", "1"]);
    let events = events.lock().unwrap();
    // All of them are too many for the queue, and one by one they fill it.
    let failed = |kind| OutboxEvent::SendFailed { kind: Some(kind) };
    assert_eq!(events[..2], [failed(PortErrorKind::Invalid), failed(PortErrorKind::Full)]);
    assert!(events[1..].iter().all(|event| *event == failed(PortErrorKind::Full)), "{events:?}");
}

// Guarantee: event_sourcing 15.
#[tokio::test(start_paused = true)]
async fn a_message_that_its_queue_would_refuse_is_refused_by_the_commit() {
    let unsteady = Arc::new(Unsteady::default());
    let store: Arc<dyn Store> = unsteady.clone();
    let can = Capabilities::of("small", &[]).largest_value(200);
    let log = open(&store, "log", &[("mails", can)]).await;
    let commit = |message: Message| append("1", "a", Any, "A").send("mails", message);
    for (commit, words) in [
        (append("1", "a", Any, "A").send("bills", Message::new("")), "`queue`"),
        (commit(Message::new("x".repeat(201))), "`body`"),
        (commit(Message::new("").deduplicate("mine")), "`deduplication_id`"),
        (commit(Message::new("").group("g")), "`groups`"),
        (Commit::new("1").append("a", Any, []).send("mails", Message::new("")), "`events`"),
    ] {
        let error = log.commit(commit).await.unwrap_err();
        assert!(error.to_string().contains(words), "names no {words}: {error}");
        assert!(error.backend().is_some());
    }
    assert_eq!(unsteady.batches.load(std::sync::atomic::Ordering::SeqCst), 0);

    let mails = queue("mails");
    let refused = Outbox::new(&log, "bills", mails.clone(), OutboxConfig::default()).unwrap_err();
    assert_eq!(refused.field(), "name");
    for (config, field) in [
        (OutboxConfig::default().page(0), "page"),
        (OutboxConfig::default().standby(Duration::ZERO), "standby"),
        (OutboxConfig::default().call_timeout(Duration::ZERO), "call_timeout"),
    ] {
        assert_eq!(Outbox::new(&log, "mails", mails.clone(), config).unwrap_err().field(), field);
    }
}

// Guarantee: event_sourcing 14.
#[tokio::test(start_paused = true)]
async fn commits_that_were_trimmed_before_their_messages_were_sent_are_an_error() {
    let (store, mails): (Arc<dyn Store>, _) = (Arc::new(InMemoryStore::new()), queue("mails"));
    let log = open(&store, "log", &[("mails", mails.capabilities())]).await;
    for n in 0..5 {
        log.commit(mail(&n.to_string(), "text")).await.unwrap();
    }
    log.trim(3).await.unwrap();
    let ran = outbox(&log, "mails", &mails).run(std::future::pending()).await;
    assert_eq!(ran.unwrap_err().kind(), PortErrorKind::Corrupt);
    assert!(bodies(&*mails).await.is_empty());
}

// Guarantee: event_sourcing 14.
#[tokio::test(start_paused = true)]
async fn an_aggregate_sends_messages_with_its_events_and_none_with_a_rejection() {
    let (store, mails): (Arc<dyn Store>, _) = (Arc::new(InMemoryStore::new()), queue("mails"));
    let log = open(&store, "log", &[("mails", mails.capabilities())]).await;
    let seats = AggregateStore::<Seats>::builder(log.clone(), codec(), AggregateConfig::default())
        .messages(|stream, event| match event {
            SeatEvent::Booked { seats } => vec![("mails".to_owned(), Message::new(format!("{stream}: {seats}")))],
            _ => Vec::new(),
        })
        .build()
        .unwrap();
    for (id, book) in [("1", 30), ("2", 0), ("3", 30), ("1", 30), ("4", 20)] {
        drop(seats.execute("conf", id, Book(book)).await);
    }
    outbox(&log, "mails", &mails).run(Clock::tokio().sleep(Duration::from_secs(1))).await.unwrap();
    assert_eq!(bodies(&*mails).await, ["conf: 30", "conf: 20"]);
}

/// Runs an outbox until its messages are sent.
async fn sends(log: &EventStore, mails: Arc<dyn Queue>, clock: &Clock) {
    let config = OutboxConfig::default().page(2);
    let mut retry = config.retry;
    retry = retry.between(Duration::from_millis(1), Duration::from_millis(2));
    let outbox = Outbox::new(log, "mails", mails, config.retry(retry).standby(Duration::from_millis(1))).unwrap();
    outbox.run(clock.sleep(Duration::from_millis(60))).await.unwrap();
}

// Guarantee: event_sourcing 14.
#[test]
fn an_outbox_whose_process_ends_or_fails_at_any_request_sends_each_message_once() {
    // Time passes when nothing else is to be done: a busy machine changes no run.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let store = Arc::new(InMemoryStore::new()) as Arc<dyn Store>;
    let test = |process: &CrashingProcess| {
        let (name, mails) = (new_name(), queue("mails"));
        let queues = [("mails", mails.capabilities())];
        let clock = Clock::tokio();
        runtime.block_on(async {
            let log = open(&store, &name, &queues).await;
            for n in 0..5 {
                log.commit(mail(&n.to_string(), &n.to_string())).await.unwrap();
            }
        });
        let (crashing, sent) = (process.store(store.clone()), process.queue(mails.clone()));
        runtime.block_on(process.run(async {
            let log = EventStore::builder(crashing, &*name, EventStoreConfig::default());
            let Ok(log) = log.outbox("mails", mails.capabilities()).build().await else { return };
            sends(&log, sent, &clock).await;
        }));
        runtime.block_on(async {
            let log = open(&store, &name, &queues).await;
            log.commit(append("last", "b", Any, "B").append("c", Any, [event("C")])).await.unwrap();
            sends(&log, mails.clone(), &clock).await;
            assert_eq!(bodies(&*mails).await, (0..5).map(|n| n.to_string()).collect::<Vec<_>>());
        });
    };
    assert!(crash_at_every_write(test) >= 9);
    assert!(fail_at_every_write(test) >= 9);
}
