//! Commands from a queue.
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::future::join_all;
use steadfast::{
    codec::Codec,
    event_sourcing::{
        AGGREGATE, Aggregate, AggregateConfig, AggregateStore, COMMAND_ID, COMMAND_STATUS, Commit, EventCodec,
        EventStore, EventStoreConfig, Expected::*, NewEvent, Outbox, OutboxConfig,
    },
    port::{Capabilities, PortError, PortErrorKind},
    queue::{
        Address, Delivery, Depth, InMemoryQueue, Message, MessageId, Peeked, Queue, QueueError, QueueExt, QueueFuture,
        Receipt, Receive, Requester, Settle,
    },
    queue_listener::{QueueListener, QueueListenerConfig, Work},
    store::{InMemoryStore, Store},
    time::Clock,
    work::Disposition,
};

use crate::{
    append, log,
    unsteady::{Treat, Unsteady},
};

/// Seats of which there are ten.
#[derive(Default, Clone)]
struct Seats(u32);

impl Aggregate for Seats {
    type Command = u32;
    type Event = u32;
    type Error = &'static str;

    fn decide(&self, seats: &u32) -> Result<Vec<u32>, &'static str> {
        match *seats {
            0 => Ok(Vec::new()),
            666 => panic!("no such seat"),
            seats if self.0 + seats > 10 => Err("sold out"),
            seats => Ok(vec![seats]),
        }
    }

    fn evolve(&mut self, seats: &u32) {
        self.0 += seats;
    }
}

fn seats(log: EventStore) -> AggregateStore<Seats> {
    let json = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    let codec = EventCodec::new(json, |_: &u32| "Booked");
    AggregateStore::new(log, codec, AggregateConfig::default().max_attempts(2)).unwrap()
}

fn decode(message: &Delivery) -> Result<u32, String> {
    std::str::from_utf8(&message.body).ok().and_then(|text| text.parse().ok()).ok_or_else(|| "no number".to_owned())
}

async fn handle(seats: &AggregateStore<Seats>, mut message: Message) -> Disposition {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let id = || format!("cmd {}", LAST.fetch_add(1, SeqCst));
    message.headers.entry(COMMAND_ID.to_owned()).or_insert_with(id);
    let queue = InMemoryQueue::new("commands");
    queue.send_one(message).await.unwrap();
    let message = queue.receive_one(Duration::from_secs(60)).await.unwrap().unwrap();
    seats.handle(&message, decode).await
}

// Guarantee: event_sourcing 16.
#[tokio::test(start_paused = true)]
async fn a_command_is_executed_once_however_often_its_message_is_delivered() {
    let store: Arc<dyn Store> = Arc::new(InMemoryStore::new());
    let seats = seats(log(&store).await);
    let queue = InMemoryQueue::new("commands");
    let command = |id: &str| Message::new("2").group("conf").header(COMMAND_ID, id);
    queue.send(vec![command("1"), command("2")]).await.unwrap();
    for _ in 0..2 {
        let message = queue.receive_one(Duration::from_secs(60)).await.unwrap().unwrap();
        for _ in 0..3 {
            assert_eq!(seats.handle(&message, decode).await, Disposition::Complete);
        }
        queue.complete(&message.receipt).await.unwrap();
    }
    assert_eq!(seats.load("conf").await.unwrap().0.0, 4);
    for _ in 0..2 {
        let command = Message::new("3").header(AGGREGATE, "other").group("tenant").header(COMMAND_ID, "cmd");
        assert_eq!(handle(&seats, command).await, Disposition::Complete);
    }
    assert_eq!((seats.load("other").await.unwrap().0.0, seats.log().version("tenant").await.unwrap()), (3, 0));
}

// Guarantee: event_sourcing 16.
// Each queue numbers its messages from the same number on.
#[tokio::test(start_paused = true)]
async fn a_command_without_an_id_is_a_dead_letter_and_never_taken_for_that_of_another_queue() {
    let store: Arc<dyn Store> = Arc::new(InMemoryStore::new());
    let seats = seats(log(&store).await);
    for name in ["orders", "stock"] {
        let queue = InMemoryQueue::new(name);
        queue.send_one(Message::new("2").group("conf")).await.unwrap();
        let message = queue.receive_one(Duration::from_secs(60)).await.unwrap().unwrap();
        let handled = seats.handle(&message, decode).await;
        assert!(
            matches!(&handled, Disposition::DeadLetter { reason } if reason.contains(COMMAND_ID)),
            "{handled:?} in {name}"
        );
    }
    assert_eq!(seats.load("conf").await.unwrap().1, 0);
}

// Guarantee: event_sourcing 16.
#[tokio::test(start_paused = true)]
async fn commands_of_an_outbox_have_ids_of_their_own_and_keep_those_that_they_have() {
    let store: Arc<dyn Store> = Arc::new(InMemoryStore::new());
    let queues = ["orders", "stock"].map(|name| Arc::new(InMemoryQueue::new(name)));
    let built = EventStore::builder(store, "log", EventStoreConfig::default());
    let log =
        queues.iter().zip(["orders", "stock"]).fold(built, |log, (queue, name)| log.outbox(name, queue.capabilities()));
    let log = log.build().await.unwrap();
    let command = || Message::new("1").group("conf");
    let commit = Commit::new("sends").send("orders", command()).send("orders", command()).send("stock", command());
    log.commit(commit.send("stock", command().header(COMMAND_ID, "mine"))).await.unwrap();
    log.commit(Commit::new("sends more").send("orders", command())).await.unwrap();
    let seats = seats(log.clone());
    let mut ids = Vec::new();
    for (queue, name) in queues.iter().zip(["orders", "stock"]) {
        let outbox = Outbox::new(&log, name, queue.clone(), OutboxConfig::default()).unwrap();
        outbox.run(Clock::tokio().sleep(Duration::from_secs(1))).await.unwrap();
        while let Some(message) = queue.receive_one(Duration::from_secs(60)).await.unwrap() {
            let id = message.headers.get(COMMAND_ID).cloned().unwrap_or_default();
            ids.push(id.rsplit('/').next().unwrap_or_default().to_owned());
            assert_eq!(seats.handle(&message, decode).await, Disposition::Complete);
            queue.complete(&message.receipt).await.unwrap();
        }
    }
    // The number of the commit, and the place among all of its messages.
    assert_eq!(ids, ["1.1", "1.2", "2.1", "1.3", "mine"]);
    assert_eq!(seats.load("conf").await.unwrap().1, 5);
}

// Guarantee: event_sourcing 15.
#[tokio::test(start_paused = true)]
async fn a_message_that_its_queue_takes_has_room_for_its_command_id() {
    let store: Arc<dyn Store> = Arc::new(InMemoryStore::new());
    let can = Capabilities::of("small", &[]).largest_value(200);
    let log = EventStore::builder(store, "log", EventStoreConfig::default()).outbox("mails", can);
    let log = log.build().await.unwrap();
    let commit = |message: Message| Commit::unnamed().send("mails", message);
    let error = log.commit(commit(Message::new("x".repeat(180)))).await.unwrap_err();
    assert!(error.to_string().contains("`body`"), "{error}");
    log.commit(commit(Message::new("x".repeat(180)).header(COMMAND_ID, "1"))).await.unwrap();
}

// Guarantee: event_sourcing 16.
#[tokio::test(start_paused = true)]
async fn what_is_no_fault_of_a_command_costs_it_no_attempt() {
    let unsteady = Arc::new(Unsteady::default());
    let store: Arc<dyn Store> = unsteady.clone();
    let seats = seats(log(&store).await);
    for kind in [PortErrorKind::Denied, PortErrorKind::Unsupported, PortErrorKind::Other, PortErrorKind::Invalid] {
        *unsteady.refuses.lock().unwrap() = Some(kind);
        let refused = handle(&seats, Message::new("1").group("conf")).await;
        assert!(matches!(refused, Disposition::Refused { .. }), "{refused:?}");
    }
    *unsteady.refuses.lock().unwrap() = None;

    // A process that was built without the outbox: another one has it.
    let json = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    let codec = EventCodec::new(json, |_: &u32| "Booked");
    let sends = AggregateStore::<Seats>::builder(seats.log().clone(), codec, AggregateConfig::default())
        .messages(|_, _| vec![("mails".to_owned(), Message::new(""))])
        .build()
        .unwrap();
    let undeclared = handle(&sends, Message::new("1").group("conf")).await;
    assert!(matches!(&undeclared, Disposition::Refused { error, .. } if error.contains("`queue`")), "{undeclared:?}");

    // The message's own fault: its event cannot be read, or it is given up each time.
    let damaged = Commit::new("damaged").append("damaged", Any, [NewEvent::new("Booked", "{")]);
    seats.log().commit(damaged).await.unwrap();
    let corrupt = handle(&seats, Message::new("1").group("damaged")).await;
    assert!(matches!(corrupt, Disposition::Retry { .. }), "{corrupt:?}");
    unsteady.treat(std::iter::repeat_n(Treat::Keeps, 10_000));
    let given_up = handle(&seats, Message::new("1").group("conf")).await;
    assert!(
        matches!(&given_up, Disposition::Retry { error, .. } if error.contains("nothing was applied")),
        "{given_up:?}"
    );
}

// Guarantee: event_sourcing 16.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_done_is_a_dead_letter_and_a_rejection_completes_the_message() {
    let store: Arc<dyn Store> = Arc::new(InMemoryStore::new());
    let seats = seats(log(&store).await);
    let is_dead = |disposition: &Disposition, text: &str| match disposition {
        Disposition::DeadLetter { reason } => reason.contains(text),
        _ => false,
    };
    let nowhere = handle(&seats, Message::new("1")).await;
    assert!(is_dead(&nowhere, "no aggregate"), "{nowhere:?}");
    let senseless = handle(&seats, Message::new("one").group("conf")).await;
    assert!(is_dead(&senseless, "no number"), "{senseless:?}");
    seats.log().commit(append("used", "elsewhere", Any, "A")).await.unwrap();
    let reused = handle(&seats, Message::new("1").group("conf").header(COMMAND_ID, "used")).await;
    assert!(is_dead(&reused, "elsewhere"), "{reused:?}");
    let long = "x".repeat(100_000);
    let refused = handle(&seats, Message::new("1").header(AGGREGATE, long)).await;
    assert!(matches!(refused, Disposition::DeadLetter { .. }), "{refused:?}");
    // Also if the aggregate would reject it.
    let rejected = Message::new("11").group("conf").header(COMMAND_ID, "x".repeat(100_000));
    let rejected = handle(&seats, rejected).await;
    assert!(matches!(rejected, Disposition::DeadLetter { .. }), "{rejected:?}");
    assert_eq!(handle(&seats, Message::new("11").group("conf")).await, Disposition::Complete);
    assert_eq!(handle(&seats, Message::new("0").group("conf")).await, Disposition::Complete);
    let panicked = handle(&seats, Message::new("666").group("conf")).await;
    assert!(matches!(&panicked, Disposition::Retry { error, .. } if error.contains("no such seat")), "{panicked:?}");
}

// Guarantee: event_sourcing 16.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_refuses_a_command_and_conflicts_are_an_attempt() {
    let unsteady = Arc::new(Unsteady::default());
    let store: Arc<dyn Store> = unsteady.clone();
    let seats = seats(log(&store).await);
    *unsteady.is_away.lock().unwrap() = true;
    let away = handle(&seats, Message::new("1").group("conf")).await;
    assert!(matches!(away, Disposition::Refused { .. }), "{away:?}");
    *unsteady.is_away.lock().unwrap() = false;

    // Before each request another process appends.
    unsteady.competes(log(&(Arc::new(unsteady.store.clone()) as Arc<dyn Store>)).await, "conf", 2).await;
    let conflicts = handle(&seats, Message::new("1").group("conf")).await;
    assert!(matches!(&conflicts, Disposition::Retry { error, .. } if error.contains("2 conflicts")), "{conflicts:?}");

    // An event of a newer release: a process that knows it takes the message.
    let newer = NewEvent::new("Booked", "1").schema(9);
    let commit = Commit::new("newer").append("new", Any, [newer]);
    seats.log().commit(commit).await.unwrap();
    let newer = handle(&seats, Message::new("1").group("new")).await;
    assert!(matches!(newer, Disposition::Refused { .. }), "{newer:?}");
}

// Guarantee: event_sourcing 16.
// Groups only order: the queue of this test has none.
#[tokio::test(start_paused = true)]
async fn callers_get_the_token_or_the_rejection_also_from_a_queue_without_groups() {
    let store: Arc<dyn Store> = Arc::new(InMemoryStore::new());
    let [commands, replies] = ["commands", "replies"].map(|name| Arc::new(InMemoryQueue::new(name)));
    let found = replies.clone();
    let json = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    let codec = EventCodec::new(json, |_: &u32| "Booked");
    let seats = AggregateStore::<Seats>::builder(log(&store).await, codec, AggregateConfig::default())
        .replies(move |name| (name == "replies").then(|| found.clone() as Arc<dyn Queue>))
        .build()
        .unwrap();
    let clock = Clock::tokio();
    let listener = QueueListener::new(commands.clone(), QueueListenerConfig::default()).unwrap();
    let runs = listener.run(clock.sleep(Duration::from_secs(60)), async |work: Work| seats.handle(&work, decode).await);
    let requester = Requester::new(commands.clone(), replies.clone(), "replies");
    let ask = |n: usize| {
        let command = Message::new("1").header(AGGREGATE, "conf").header(COMMAND_ID, format!("caller {n}"));
        requester.request(command, Duration::from_secs(30))
    };
    let asked = async {
        let first = join_all((0..16).map(ask)).await;
        // Sent again under the same id.
        let again = join_all((0..16).map(ask)).await;
        (first, again)
    };
    let (ran, (first, again)) = futures::join!(runs, asked);
    ran.unwrap();
    let status = |reply: &Result<Delivery, _>| {
        let reply = reply.as_ref().unwrap();
        let body = String::from_utf8_lossy(&reply.body).into_owned();
        (reply.headers[COMMAND_STATUS].clone(), body)
    };
    let done: Vec<_> = first.iter().map(status).collect();
    assert_eq!(
        done.iter().filter(|(status, body)| status == "done" && body.starts_with("log@")).count(),
        10,
        "{done:?}"
    );
    assert_eq!(done.iter().filter(|reply| **reply == ("rejected".to_owned(), "sold out".to_owned())).count(), 6);
    for (first, again) in done.iter().zip(again.iter().map(status)) {
        assert_eq!(first.0, again.0);
    }
    assert_eq!(seats.load("conf").await.unwrap().0.0, 10);
    assert_eq!(commands.depth().await.unwrap().total(), 0);
}

// Guarantee: event_sourcing 16.
#[tokio::test(start_paused = true)]
async fn a_reply_that_cannot_be_sent_keeps_the_message_and_the_command_is_done_once() {
    let store: Arc<dyn Store> = Arc::new(InMemoryStore::new());
    let clock = Clock::tokio();
    let full = Arc::new(InMemoryQueue::builder("replies").bounded(1).clock(&clock).build());
    full.send_one(Message::new("")).await.unwrap();
    let found = full.clone();
    let json = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    let codec = EventCodec::new(json, |_: &u32| "Booked");
    let seats = AggregateStore::<Seats>::builder(log(&store).await, codec, AggregateConfig::default())
        .replies(move |_| Some(found.clone() as Arc<dyn Queue>))
        .build()
        .unwrap();
    let ask = || {
        let command = Message::new("2").group("conf").header(COMMAND_ID, "cmd");
        handle(&seats, command.header("reply-to", "replies").header("correlation-id", "7"))
    };
    let first = ask().await;
    assert!(matches!(first, Disposition::Refused { .. }), "{first:?}");
    let taken = full.receive_one(Duration::from_secs(60)).await.unwrap().unwrap();
    full.complete(&taken.receipt).await.unwrap();
    assert_eq!(ask().await, Disposition::Complete);
    let reply = full.receive_one(Duration::from_secs(60)).await.unwrap().unwrap();
    assert_eq!((&reply.body[..], reply.headers["correlation-id"].as_str()), (&b"log@1"[..], "7"));
    assert_eq!(seats.load("conf").await.unwrap().0.0, 2);
}

/// A queue that refuses each message.
#[derive(Debug)]
struct Refusing(InMemoryQueue, PortErrorKind);

impl Queue for Refusing {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn identity(&self) -> String {
        self.0.identity()
    }
    fn address(&self) -> Option<Address> {
        self.0.address()
    }
    fn send<'a>(&'a self, _: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        Box::pin(async { Err(PortError::new(self.1, "refused").into()) })
    }
    fn receive<'a>(&'a self, receive: Receive) -> QueueFuture<'a, Vec<Delivery>> {
        self.0.receive(receive)
    }
    fn settle<'a>(&'a self, settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>> {
        self.0.settle(settlements)
    }
    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> QueueFuture<'a, ()> {
        self.0.extend(receipt, visibility)
    }
    fn mark_begun<'a>(&'a self, receipt: &'a Receipt, visibility: Duration, begun: bool) -> QueueFuture<'a, ()> {
        self.0.mark_begun(receipt, visibility, begun)
    }
    fn depth(&self) -> QueueFuture<'_, Depth> {
        self.0.depth()
    }
    fn peek(&self, max: usize) -> QueueFuture<'_, Vec<Peeked>> {
        self.0.peek(max)
    }
    fn purge(&self) -> QueueFuture<'_, u64> {
        self.0.purge()
    }
    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        self.0.dead_letters()
    }
}

// Guarantee: event_sourcing 16.
#[tokio::test(start_paused = true)]
async fn a_reply_that_another_process_could_send_keeps_the_message_and_one_that_nobody_could_does_not() {
    for (kind, is_kept) in [
        (PortErrorKind::Closed, true),
        (PortErrorKind::Denied, true),
        (PortErrorKind::Other, true),
        (PortErrorKind::Invalid, false),
        (PortErrorKind::Unsupported, false),
    ] {
        let store: Arc<dyn Store> = Arc::new(InMemoryStore::new());
        let replies = Arc::new(Refusing(InMemoryQueue::new("replies"), kind));
        let json = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
        let codec = EventCodec::new(json, |_: &u32| "Booked");
        let seats = AggregateStore::<Seats>::builder(log(&store).await, codec, AggregateConfig::default())
            .replies(move |_| Some(replies.clone() as Arc<dyn Queue>))
            .build()
            .unwrap();
        let command = Message::new("2").group("conf").header("reply-to", "replies").header("correlation-id", "7");
        let handled = handle(&seats, command).await;
        assert_eq!(matches!(handled, Disposition::Refused { .. }), is_kept, "{kind:?}: {handled:?}");
        assert_eq!(handled == Disposition::Complete, !is_kept, "{kind:?}: {handled:?}");
    }
}
