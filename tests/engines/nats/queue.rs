//! The queue as an operator sees it, and what operators, other programs and full stores do to it.
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use steadfast::{
    backend::nats::{Nats, NatsConfig},
    port::{Capability, Failure, PortErrorKind},
    queue::{Depth, Message, Queue, QueueError, QueueExt, Receive, Settle},
};

use super::{connect, prefix, run};
use crate::server;

const MS: fn(u64) -> Duration = Duration::from_millis;
const MINUTE: Duration = Duration::from_secs(60);

/// Asks the server's API over a connection of its own, and returns its answer without an error.
fn api(server: &server::Nats, call: &str, body: &str) -> serde_json::Value {
    let answer = server.request(&format!("$JS.API.{call}"), body).unwrap();
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert!(answer["error"].is_null(), "{call}: {answer}");
    answer
}

/// Returns the name of the stream of the only queue's messages.
fn messages(server: &server::Nats) -> String {
    server.streams().into_iter().find(|name| name.contains("_queue_")).unwrap()
}

/// Returns the number of messages that a stream has ever stored.
fn stored(server: &server::Nats, stream: &str) -> u64 {
    api(server, &format!("STREAM.INFO.{stream}"), "")["state"]["last_seq"].as_u64().unwrap()
}

fn kind(error: &QueueError) -> Option<PortErrorKind> {
    error.backend().map(|error| error.kind())
}

/// Receives and completes messages until there are none, and returns their bodies.
async fn drained(queue: &impl Queue) -> BTreeSet<String> {
    let mut bodies = BTreeSet::new();
    loop {
        let taken = queue.receive(Receive::new(100, MINUTE)).await.unwrap();
        if taken.is_empty() {
            return bodies;
        }
        bodies.extend(taken.iter().map(|taken| String::from_utf8_lossy(&taken.body).into_owned()));
        let all = taken.into_iter().map(|taken| (taken.receipt, Settle::Complete)).collect();
        assert!(queue.settle(all).await.unwrap().iter().all(Result::is_ok));
    }
}

#[test]
fn a_message_is_stored_as_the_user_gave_it() {
    run(async {
        let server = server::Nats::start();
        let queue = connect(server.url(), "plain").await.queue("orders").await.unwrap();
        let message = Message::new("{\"id\":42}").header("Content-Type", "application/json").deduplicate("order 42");
        queue.send_one(message).await.unwrap();
        let stream = messages(&server);
        let got = api(&server, &format!("STREAM.MSG.GET.{stream}"), r#"{"seq":1}"#);
        assert_eq!(
            (got["message"]["subject"].as_str(), got["message"]["data"].as_str()),
            (Some("plain.q.orders"), Some("eyJpZCI6NDJ9"))
        );
        // NATS/1.0, Content-Type: application/json, Nats-Msg-Id: order 42
        let headers = "TkFUUy8xLjANCkNvbnRlbnQtVHlwZTogYXBwbGljYXRpb24vanNvbg0KTmF0cy1Nc2ctSWQ6IG9yZGVyIDQyDQoNCg==";
        let other = "TkFUUy8xLjANCk5hdHMtTXNnLUlkOiBvcmRlciA0Mg0KQ29udGVudC1UeXBlOiBhcHBsaWNhdGlvbi9qc29uDQoNCg==";
        let found = got["message"]["hdrs"].as_str().unwrap();
        assert!(found == headers || found == other, "{found}");
        assert_eq!(api(&server, &format!("STREAM.INFO.{stream}"), "")["state"]["messages"], 1);
    });
}

#[test]
fn a_message_of_another_program_is_received() {
    run(async {
        let server = server::Nats::start();
        let queue = connect(server.url(), "foreign").await.queue("jobs").await.unwrap();
        for body in ["hello", "", "\u{1}\u{0}", "100%41"] {
            server.request("foreign.q.jobs", body).unwrap();
        }
        let taken = queue.receive(Receive::new(10, MINUTE)).await.unwrap();
        let bodies: Vec<_> = taken.iter().map(|taken| String::from_utf8_lossy(&taken.body).into_owned()).collect();
        assert_eq!(bodies, ["hello", "", "\u{1}\u{0}", "100%41"]);
        assert!(taken.iter().all(|taken| taken.headers.is_empty() && taken.deliveries == 1));
        assert_eq!(drained(&queue).await.len(), 0);
    });
}

#[test]
fn a_purge_by_an_operator_loses_nothing_that_is_accepted_after_it() {
    run(async {
        let server = server::Nats::start();
        let (one, other) = (connect(server.url(), "purged").await, connect(server.url(), "purged").await);
        let (one, other) = (one.queue("jobs").await.unwrap(), other.queue("jobs").await.unwrap());
        let stream = messages(&server);
        for round in 0..20 {
            one.send((0..5).map(|i| Message::new(format!("old {round} {i}"))).collect()).await.unwrap();
            let held = other.receive_one(MINUTE).await.unwrap().unwrap();
            api(&server, &format!("STREAM.PURGE.{stream}"), "");
            let sent: BTreeSet<_> = (0..5).map(|i| format!("new {round} {i}")).collect();
            one.send(sent.iter().map(|body| Message::new(body.clone())).collect()).await.unwrap();
            assert_eq!(one.depth().await.unwrap(), Depth::new(5, 0, 0), "round {round}");
            assert_eq!(drained(&other).await, sent, "round {round}");
            // Its message is gone: it is settled, or refused.
            let late = other.complete(&held.receipt).await;
            assert!(late.as_ref().map_or_else(QueueError::is_lease_lost, |()| true), "{late:?}");
        }
    });
}

#[test]
fn a_message_costs_the_same_stored_entries_beside_any_number_of_idle_handles() {
    run(async {
        let server = server::Nats::start();
        let (mut handles, mut costs) = (Vec::new(), Vec::new());
        for idle in [1, 10, 50] {
            while handles.len() < idle {
                let queue = connect(server.url(), "idle").await.queue("jobs").await.unwrap();
                let waits = queue.clone();
                let waiting =
                    tokio::spawn(async move { waits.receive(Receive::new(1, MINUTE).wait(MINUTE * 9)).await });
                handles.push((queue, waiting));
            }
            // All of them wait.
            server::pass(MS(300)).await;
            let streams = server.streams();
            let count = || streams.iter().map(|stream| stored(&server, stream)).sum::<u64>();
            let before = count();
            const MESSAGES: u64 = 20;
            for _ in 0..MESSAGES {
                handles[0].0.send_one(Message::new("a")).await.unwrap();
                let (taken, queue) = loop {
                    // The one that got it waits again.
                    let at = handles.iter().position(|(_, waiting)| waiting.is_finished());
                    let Some(at) = at else {
                        server::look_again().await;
                        continue;
                    };
                    let queue = handles[at].0.clone();
                    let waits = queue.clone();
                    let waiting =
                        tokio::spawn(async move { waits.receive(Receive::new(1, MINUTE).wait(MINUTE * 9)).await });
                    let done = std::mem::replace(&mut handles[at].1, waiting);
                    break (done.await.unwrap().unwrap(), queue);
                };
                queue.complete(&taken[0].receipt).await.unwrap();
            }
            costs.push((count() - before) as f64 / MESSAGES as f64);
        }
        println!("stored entries a message beside 1, 10 and 50 idle handles: {costs:?}");
        // The message, its claim, and the note of its end.
        assert!(costs.iter().all(|cost| *cost == 3.0), "{costs:?}");
        handles.iter().for_each(|(_, waiting)| waiting.abort());
    });
}

#[test]
fn of_two_deliveries_the_earlier_settles_nothing() {
    run(async {
        const MESSAGES: usize = 100;
        let server = server::Nats::start();
        let queue = connect(server.url(), "stale").await.queue("jobs").await.unwrap();
        let other = connect(server.url(), "stale").await.queue("jobs").await.unwrap();
        queue.send((0..MESSAGES).map(|i| Message::new(i.to_string())).collect()).await.unwrap();
        let first = queue.receive(Receive::new(MESSAGES, MS(200))).await.unwrap();
        server::pass(MS(300)).await;
        let second = other.receive(Receive::new(MESSAGES, MINUTE)).await.unwrap();
        assert_eq!((first.len(), second.len()), (MESSAGES, MESSAGES));
        let all = |taken: &[steadfast::queue::Delivery]| {
            taken.iter().map(|taken| (taken.receipt.clone(), Settle::Complete)).collect::<Vec<_>>()
        };
        let stale = queue.settle(all(&first)).await.unwrap();
        assert!(stale.iter().all(|settled| matches!(settled, Err(QueueError::LeaseLost))), "{stale:?}");
        assert_eq!(other.depth().await.unwrap().total(), MESSAGES as u64);
        let valid = other.settle(all(&second)).await.unwrap();
        assert!(valid.iter().all(Result::is_ok), "{valid:?}");
        assert_eq!(other.depth().await.unwrap().total(), 0);
    });
}

#[test]
fn a_full_store_drains() {
    run(async {
        let server = server::Nats::with_jetstream("max_file_store: 8MB");
        let queue = connect(server.url(), "full").await.queue("jobs").await.unwrap();
        let mut sent = BTreeSet::new();
        let error = loop {
            let body = format!("{:0>20000}", sent.len());
            match queue.send_one(Message::new(body.clone())).await {
                Ok(_) => sent.insert(body),
                Err(error) => break error,
            };
            assert!(sent.len() < 1_000, "8 MB are never full");
        };
        assert_eq!(kind(&error), Some(PortErrorKind::Full), "{error}");
        // Up to the last byte.
        while queue.send_one(Message::new("x")).await.is_ok() {
            sent.insert("x".to_owned());
        }
        assert!(queue.depth().await.unwrap().total() >= sent.len() as u64 - 1);
        let one = queue.receive_one(MINUTE).await.unwrap().unwrap();
        queue.extend(&one.receipt, MINUTE).await.unwrap();
        queue.abandon(&one.receipt, Duration::ZERO).await.unwrap();
        assert_eq!(drained(&queue).await, sent);
        assert_eq!(queue.depth().await.unwrap().total(), 0);
    });
}

#[test]
fn a_full_store_can_be_purged() {
    run(async {
        let server = server::Nats::with_jetstream("max_file_store: 4MB");
        let queue = connect(server.url(), "full").await.queue("jobs").await.unwrap();
        let mut sent = 0;
        while queue.send_one(Message::new(vec![7; 20_000])).await.is_ok() {
            sent += 1;
        }
        assert_eq!(queue.purge().await.unwrap(), sent);
        queue.send_one(Message::new("a")).await.unwrap();
        assert_eq!(drained(&queue).await.len(), 1);
    });
}

#[test]
fn a_delay_goes_on_over_the_death_of_the_server() {
    run(async {
        let server = server::Nats::start();
        let queue = connect(server.url(), "dies").await.queue("jobs").await.unwrap();
        let began = std::time::Instant::now();
        queue.send_one(Message::new("delayed").delay(MS(1_500))).await.unwrap();
        queue.send_one(Message::new("held")).await.unwrap();
        // The delayed one is delivered to nobody, and hidden by the consumer.
        assert_eq!(queue.receive_one(MS(1_500)).await.unwrap().unwrap().body, "held");
        server.restart();
        let mut back = BTreeMap::new();
        while back.len() < 2 {
            if let Ok(Some(taken)) = queue.receive_one(MINUTE).await {
                back.insert(String::from_utf8_lossy(&taken.body).into_owned(), began.elapsed());
            }
            server::look_again().await;
        }
        assert!(back.values().all(|after| *after >= MS(1_490)), "{back:?}");
    });
}

#[test]
fn a_damaged_record_stops_no_message() {
    run(async {
        let server = server::Nats::start();
        let queue = connect(server.url(), "damaged").await.queue("jobs").await.unwrap();
        queue.send(["a", "b", "c"].map(Message::new).into()).await.unwrap();
        for (number, record) in [(1, "{"), (2, r#"{"form":99}"#)] {
            server.request(&format!("damaged.c.jobs.q.{number}"), record).unwrap();
        }
        let dead = queue.dead_letters().unwrap();
        assert_eq!(queue.depth().await.unwrap().total(), 3);
        assert_eq!(queue.peek(10).await.unwrap().len(), 3);
        let taken = queue.receive(Receive::new(10, MINUTE)).await.unwrap();
        assert_eq!(taken.len(), 3, "{taken:?}");
        queue.dead_letter(&taken[0].receipt, "no").await.unwrap();
        queue.complete(&taken[1].receipt).await.unwrap();
        queue.complete(&taken[2].receipt).await.unwrap();
        assert_eq!((queue.depth().await.unwrap().total(), dead.depth().await.unwrap().total()), (0, 1));
    });
}

#[test]
fn a_consumer_that_an_operator_has_deleted_is_made_again() {
    run(async {
        let server = server::Nats::start();
        let queue = connect(server.url(), "consumer").await.queue("jobs").await.unwrap();
        queue.send_one(Message::new("a")).await.unwrap();
        api(&server, &format!("CONSUMER.DELETE.{}.work", messages(&server)), "");
        let error = queue.receive_one(MINUTE).await.unwrap_err();
        assert_eq!(kind(&error), Some(PortErrorKind::Unavailable), "{error}");
        assert_eq!(drained(&queue).await.len(), 1);
    });
}

#[test]
fn the_log_of_an_earlier_release_is_refused_with_what_to_do() {
    run(async {
        let server = server::Nats::start();
        let nats = connect(server.url(), "log").await;
        nats.queue("jobs").await.unwrap();
        let stream = messages(&server);
        api(&server, &format!("STREAM.DELETE.{stream}"), "");
        let log = serde_json::json!({
            "name": stream, "subjects": [format!("log.q.{stream}")], "storage": "file", "retention": "limits",
            "discard": "new", "metadata": { "steadfast.form": "1", "steadfast.identity": "x", "steadfast.queue": "jobs" },
        });
        api(&server, &format!("STREAM.CREATE.{stream}"), &log.to_string());
        let error = connect(server.url(), "log").await.queue("jobs").await.unwrap_err();
        assert_eq!(error.kind(), PortErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(&stream) && error.to_string().contains("delete the stream"), "{error}");
    });
}

#[test]
fn an_old_server_takes_one_message_in_a_send_and_says_so() {
    run(async {
        let server = server::Nats::shared_old();
        let queue = connect(server.url(), &prefix()).await.queue("jobs").await.unwrap();
        assert_eq!(queue.capabilities().max_batch(), 1);
        let error = queue.send(["a", "b"].map(Message::new).into()).await.unwrap_err();
        assert_eq!(kind(&error), Some(PortErrorKind::Invalid), "{error}");
        for body in ["a", "b", "c"] {
            queue.send_one(Message::new(body)).await.unwrap();
        }
        assert_eq!(queue.receive(Receive::new(10, MINUTE)).await.unwrap().len(), 3, "a receive takes several");
    });
}

#[test]
fn groups_order_and_forwards_are_refused_by_name() {
    run(async {
        let queue = connect(server::Nats::shared().url(), &prefix()).await.queue("jobs").await.unwrap();
        for lacks in [Capability::Groups, Capability::Ordered, Capability::Forward] {
            assert!(!queue.capabilities().has(lacks), "{lacks}");
        }
        let error = queue.send_one(Message::new("a").group("g")).await.unwrap_err();
        assert!(kind(&error) == Some(PortErrorKind::Unsupported) && error.to_string().contains("groups"), "{error}");
    });
}

#[test]
fn a_receive_that_is_dropped_gives_back_what_it_was_handed() {
    run(async {
        let config = NatsConfig::at(server::Nats::shared().url()).prefix(prefix());
        let nats = Nats::connect(config).await.unwrap();
        let queue = nats.queue("jobs").await.unwrap();
        for round in 0..20 {
            let waits = queue.clone();
            let waiting = tokio::spawn(async move { waits.receive(Receive::new(1, MINUTE).wait(MINUTE)).await });
            server::pass(MS(20)).await;
            queue.send_one(Message::new(round.to_string())).await.unwrap();
            waiting.abort();
            // Long before the visibility is over.
            let taken = match waiting.await {
                Ok(taken) => taken.unwrap(),
                Err(_) => queue.receive(Receive::new(1, MINUTE).wait(MS(2_000))).await.unwrap(),
            };
            assert_eq!(taken[0].body, round.to_string());
            queue.complete(&taken[0].receipt).await.unwrap();
        }
        assert_eq!(queue.depth().await.unwrap().total(), 0);
    });
}
