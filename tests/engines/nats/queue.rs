//! The queue as an operator sees it, and what operators, other programs and full stores do to it.
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use steadfast::{
    backend::{
        ConnectionEvent,
        nats::{Nats, NatsConfig},
    },
    port::{Capability, Failure, PortErrorKind},
    queue::{AttemptError, AttemptErrorKind, Depth, Message, Queue, QueueError, QueueExt, Receipt, Receive, Settle},
    time::Timestamp,
};

use super::{connect, prefix, run, server_facts::next};
use crate::server::{self, Proxy, Watch};

const MS: fn(u64) -> Duration = Duration::from_millis;
const MINUTE: Duration = Duration::from_secs(60);
/// For what must not end: a slow machine needs minutes for a test.
const HOUR: Duration = Duration::from_secs(3600);

/// Returns the number of messages that a stream has ever stored.
fn stored(server: &server::Nats, stream: &str) -> u64 {
    server.api(&format!("STREAM.INFO.{stream}"), "")["state"]["last_seq"].as_u64().unwrap()
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

/// A release 2.10 never answers a pull without a time whose messages an earlier one took.
#[test]
fn a_receive_without_a_wait_is_answered_although_others_take_its_messages() {
    run(async {
        let server = server::Nats::old();
        let queue = connect(server.url(), "rivals").await.queue("orders").await.unwrap();
        for _ in 0..50 {
            queue.send_one(Message::new("1")).await.unwrap();
            // By one connection, so that the server has all pulls before it serves the first one.
            let receives = (0..8).map(|_| queue.receive(Receive::new(1, MINUTE)));
            let taken = futures::future::try_join_all(receives).await.unwrap();
            let all: Vec<_> = taken.into_iter().flatten().map(|taken| (taken.receipt, Settle::Complete)).collect();
            assert_eq!(all.len(), 1);
            assert!(queue.settle(all).await.unwrap().iter().all(Result::is_ok));
        }
    });
}

#[test]
fn a_message_is_stored_as_the_user_gave_it() {
    run(async {
        let server = server::Nats::start();
        let queue = connect(server.url(), "plain").await.queue("orders").await.unwrap();
        let message = Message::new("{\"id\":42}").header("Content-Type", "application/json").deduplicate("order 42");
        queue.send_one(message).await.unwrap();
        let stream = server.stream("_queue_");
        let got = server.api(&format!("STREAM.MSG.GET.{stream}"), r#"{"seq":1}"#);
        assert_eq!(
            (got["message"]["subject"].as_str(), got["message"]["data"].as_str()),
            (Some("plain.q.orders"), Some("eyJpZCI6NDJ9"))
        );
        // NATS/1.0, Content-Type: application/json, Nats-Msg-Id: order 42
        let headers = "TkFUUy8xLjANCkNvbnRlbnQtVHlwZTogYXBwbGljYXRpb24vanNvbg0KTmF0cy1Nc2ctSWQ6IG9yZGVyIDQyDQoNCg==";
        let other = "TkFUUy8xLjANCk5hdHMtTXNnLUlkOiBvcmRlciA0Mg0KQ29udGVudC1UeXBlOiBhcHBsaWNhdGlvbi9qc29uDQoNCg==";
        let found = got["message"]["hdrs"].as_str().unwrap();
        assert!(found == headers || found == other, "{found}");
        assert_eq!(server.api(&format!("STREAM.INFO.{stream}"), "")["state"]["messages"], 1);
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
fn another_program_receives_and_acknowledges_by_the_shared_consumer() {
    run(async {
        let server = server::Nats::start();
        let queue = connect(server.url(), "foreign").await.queue("jobs").await.unwrap();
        queue.send_one(Message::new("a")).await.unwrap();
        queue.send_one(Message::new("b")).await.unwrap();
        let ours = queue.receive_one(MINUTE).await.unwrap().unwrap();
        // What is delivered to the other is delivered to nobody else.
        let reply = next(&server, &format!("{}.work", server.stream("_queue_")));
        assert!(queue.receive_one(MINUTE).await.unwrap().is_none());
        assert_eq!(server.request(&reply, "+ACK").unwrap(), "");
        assert_eq!((&*ours.body, queue.depth().await.unwrap()), (&b"a"[..], Depth::new(0, 0, 1)));
        queue.complete(&ours.receipt).await.unwrap();
        assert_eq!(queue.depth().await.unwrap().total(), 0);
    });
}

#[test]
fn a_purge_by_an_operator_loses_nothing_that_is_accepted_after_it() {
    run(async {
        let server = server::Nats::start();
        let (one, other) = (connect(server.url(), "purged").await, connect(server.url(), "purged").await);
        let (one, other) = (one.queue("jobs").await.unwrap(), other.queue("jobs").await.unwrap());
        let stream = server.stream("_queue_");
        for round in 0..20 {
            one.send((0..5).map(|i| Message::new(format!("old {round} {i}"))).collect()).await.unwrap();
            let held = other.receive_one(MINUTE).await.unwrap().unwrap();
            server.api(&format!("STREAM.PURGE.{stream}"), "");
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
                let waiting = tokio::spawn(async move { waits.receive(Receive::new(1, HOUR).wait(HOUR)).await });
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
                    let waiting = tokio::spawn(async move { waits.receive(Receive::new(1, HOUR).wait(HOUR)).await });
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
        let mut visibility = MS(200);
        let first = loop {
            let began = Watch::start();
            let taken = queue.receive(Receive::new(MESSAGES, visibility)).await.unwrap();
            let took = began.passed();
            server::pass(visibility + MS(100)).await;
            if taken.len() == MESSAGES {
                break taken;
            }
            // A slow machine takes as long, so that the first ones expired before the last ones were claimed.
            assert!(took >= visibility, "{} of {MESSAGES} were received after {took:?}", taken.len());
            visibility *= 4;
        };
        let mut second = Vec::new();
        server::ends(async {
            while second.len() < MESSAGES {
                let rest = Receive::new(MESSAGES - second.len(), HOUR).wait(MS(500));
                second.extend(other.receive(rest).await.unwrap());
            }
        })
        .await;
        let all = |taken: &[steadfast::queue::Delivery]| {
            taken.iter().map(|taken| (taken.receipt.clone(), Settle::Complete)).collect::<Vec<_>>()
        };
        let stale = queue.settle(all(&first)).await.unwrap();
        let is_stale = stale.iter().all(|settled| matches!(settled, Err(QueueError::LeaseLost)));
        assert!(is_stale, "{stale:?}: an earlier delivery settled");
        assert_eq!(other.depth().await.unwrap().total(), MESSAGES as u64);
        let valid = other.settle(all(&second)).await.unwrap();
        assert!(valid.iter().all(Result::is_ok), "{valid:?}: a later delivery did not settle");
        assert_eq!(other.depth().await.unwrap().total(), 0);
    });
}

/// Receives a message, abandons it, receives it again and completes it; returns both receipts.
async fn stale_receipts(queue: &impl Queue, sends: usize, messages: usize) -> Vec<Receipt> {
    queue.send((0..sends).map(|i| Message::new(i.to_string())).collect()).await.unwrap();
    let mut receipts = Vec::new();
    for how in [Settle::Abandon { after: Duration::ZERO, error: None }, Settle::Complete] {
        let mut taken = Vec::new();
        while taken.len() < messages {
            taken.extend(queue.receive(Receive::new(messages - taken.len(), MINUTE)).await.unwrap());
        }
        receipts.extend(taken.iter().map(|taken| taken.receipt.clone()));
        let all = taken.into_iter().map(|taken| (taken.receipt, how.clone())).collect();
        assert!(queue.settle(all).await.unwrap().iter().all(Result::is_ok));
    }
    receipts
}

/// Uses a queue until claims are removed, kills its server at once, and asks what the server still knows.
async fn claims_are_removed_and_a_kill_brings_back_none(server: server::Nats) {
    const ROUNDS: usize = 60;
    const OF_A_ROUND: usize = 50;
    let queue = connect(server.url(), "claims").await.queue("jobs").await.unwrap();
    let one_by_one = queue.capabilities().max_batch() == 1;
    let send = async |bodies: Vec<String>| {
        for body in bodies {
            queue.send_one(Message::new(body)).await.unwrap();
        }
    };
    // These are there all the time: they are held, were abandoned, and have become dead letters.
    send((0..10).map(|i| format!("held {i}")).collect()).await;
    let held = queue.receive(Receive::new(10, HOUR)).await.unwrap();
    send(vec!["abandoned".to_owned(), "dead".to_owned()]).await;
    let other = queue.receive(Receive::new(2, MINUTE)).await.unwrap();
    let (delay, error) =
        (HOUR, Some(Box::new(AttemptError::new(1, Timestamp::from_millis(1), AttemptErrorKind::Failed, "no"))));
    let how = [Settle::Abandon { after: delay, error }, Settle::dead_letter("no")];
    let all = other.iter().zip(how).map(|(other, how)| (other.receipt.clone(), how)).collect();
    assert!(queue.settle(all).await.unwrap().iter().all(Result::is_ok));
    let dead = queue.dead_letters().unwrap();
    let letter = dead.receive_one(HOUR).await.unwrap().unwrap();

    let mut stale = Vec::new();
    for _ in 0..ROUNDS {
        if one_by_one {
            send((0..OF_A_ROUND).map(|i| i.to_string()).collect()).await;
        }
        let sends = if one_by_one { 0 } else { OF_A_ROUND };
        stale.extend(stale_receipts(&queue, sends, OF_A_ROUND).await);
    }
    let stream = server.stream("_claims_");
    let (mut first, mut kept) = (0, 0);
    server::wait_until("claims are removed", || {
        let info = server.api(&format!("STREAM.INFO.{stream}"), "");
        (first, kept) = (info["state"]["first_seq"].as_u64().unwrap(), info["state"]["messages"].as_u64().unwrap());
        first > 5_000 && kept < 2_500
    });
    println!("{kept} claims are kept, from number {first} on");
    server.restart();

    // One request settles thousands.
    let config = NatsConfig::at(server.url()).prefix("claims").request_timeout(MINUTE);
    let queue = Nats::connect(config).await.unwrap().queue("jobs").await.unwrap();
    let all = stale.iter().map(|receipt| (receipt.clone(), Settle::Complete)).collect();
    let settled = queue.settle(all).await.unwrap();
    let accepted = settled.iter().filter(|settled| settled.is_ok()).count();
    assert_eq!((accepted, settled.len()), (0, 2 * ROUNDS * OF_A_ROUND), "stale receipts were accepted");
    assert!(settled.iter().all(|settled| settled.as_ref().is_err_and(QueueError::is_lease_lost)));
    // Of those that are there, nothing is forgotten.
    let there = queue.peek(100).await.unwrap();
    let known = |body: &str| {
        let found = there.iter().filter(|found| found.body == body);
        found.map(|found| (found.deliveries, found.attempts, found.errors.len(), found.hidden)).collect::<Vec<_>>()
    };
    assert_eq!((there.len(), known("held 0"), known("abandoned")), (11, vec![(1, 0, 0, true)], vec![(1, 1, 1, true)]));
    for held in &held {
        queue.complete(&held.receipt).await.unwrap();
        let again = queue.complete(&held.receipt).await;
        assert!(again.as_ref().is_err_and(QueueError::is_lease_lost), "{again:?}");
    }
    queue.dead_letters().unwrap().complete(&letter.receipt).await.unwrap();
    assert_eq!(queue.depth().await.unwrap(), Depth::new(0, 0, 1));
}

#[test]
fn claims_are_removed_together_and_a_kill_of_the_server_brings_back_none() {
    run(claims_are_removed_and_a_kill_brings_back_none(server::Nats::start()));
}

#[test]
fn claims_are_removed_together_and_a_kill_of_an_old_server_brings_back_none() {
    run(claims_are_removed_and_a_kill_brings_back_none(server::Nats::old()));
}

#[test]
fn a_message_that_is_given_back_while_a_new_handle_reminds_the_server_is_visible() {
    run(async {
        let server = server::Nats::start();
        let queue = connect(server.url(), "reminds").await.queue("jobs").await.unwrap();
        let proxy = Proxy::start(server.port());
        let url = server.url_at(proxy.port());
        // Given back before, amid and after the requests of the reminder, of which each takes 40 ms.
        for nth in 0..16 {
            queue.send_one(Message::new("a")).await.unwrap();
            let held = queue.receive_one(HOUR).await.unwrap().unwrap();
            proxy.delay(Duration::ZERO);
            let other = connect(url.clone(), "reminds").await.queue("jobs").await.unwrap();
            proxy.delay(MS(20));
            let waits = tokio::spawn(async move { other.receive(Receive::new(1, HOUR).wait(HOUR)).await.unwrap() });
            server::pass(MS(20) * nth).await;
            queue.abandon(&held.receipt, Duration::ZERO).await.unwrap();
            let taken = server::ends(waits).await.unwrap();
            queue.complete(&taken[0].receipt).await.unwrap();
        }
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
        let nats = connect(server.url(), "dies").await;
        let mut tries = 0;
        let queue = loop {
            let (queue, began) = (nats.queue(&format!("jobs {tries}")).await.unwrap(), Watch::start());
            queue.send_one(Message::new("delayed").delay(MS(1_500))).await.unwrap();
            queue.send_one(Message::new("held")).await.unwrap();
            // The delayed one is delivered to nobody, and hidden by the consumer.
            let taken = queue.receive_one(MS(1_500)).await.unwrap().unwrap();
            if taken.body == "held" {
                break queue;
            }
            // On a busy machine its delay may be over by now, but not each time.
            tries += 1;
            assert!(began.passed() >= MS(1_500) && tries < 5, "{taken:?} was delivered too early");
        };
        server.restart();
        let mut back = BTreeMap::new();
        server::ends(async {
            while back.len() < 2 {
                if let Ok(Some(taken)) = queue.receive_one(HOUR).await {
                    back.insert(String::from_utf8_lossy(&taken.body).into_owned(), taken.age);
                }
                server::look_again().await;
            }
        })
        .await;
        assert!(back.values().all(|age| *age >= MS(1_450)), "{back:?}");
    });
}

#[test]
fn a_damaged_record_stops_no_message() {
    run(async {
        let server = server::Nats::start();
        let nats = connect(server.url(), "damaged").await;
        let (queue, mut events) = (nats.queue("jobs").await.unwrap(), nats.events());
        queue.send(["a", "b", "c"].map(Message::new).into()).await.unwrap();
        let stream = server.stream("_queue_");
        let mut subjects = Vec::new();
        for (number, record) in [(1, "{"), (2, r#"{"form":99}"#)] {
            let message = server.api(&format!("STREAM.MSG.GET.{stream}"), &format!("{{\"seq\":{number}}}"));
            let stored = humantime::parse_rfc3339(message["message"]["time"].as_str().unwrap()).unwrap();
            let stored = stored.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
            subjects.push(format!("damaged.c.jobs.q.{number}-{stored}"));
            server.request(&subjects[number - 1], record).unwrap();
        }
        let dead = queue.dead_letters().unwrap();
        assert_eq!(queue.depth().await.unwrap().total(), 3);
        assert_eq!(queue.peek(10).await.unwrap().len(), 3);
        let taken = queue.receive(Receive::new(10, MINUTE)).await.unwrap();
        assert_eq!(taken.len(), 3, "{taken:?}");
        let mut told = Vec::new();
        while let Some(event) = events.try_recv().unwrap() {
            if let ConnectionEvent::SetAside { message, .. } = &event.what {
                told.push(message.clone());
            }
        }
        told.sort();
        assert_eq!(told, subjects);
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
        server.api(&format!("CONSUMER.DELETE.{}.work", server.stream("_queue_")), "");
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
        let stream = server.stream("_queue_");
        server.api(&format!("STREAM.DELETE.{stream}"), "");
        let log = serde_json::json!({
            "name": stream, "subjects": [format!("log.q.{stream}")], "storage": "file", "retention": "limits",
            "discard": "new", "metadata": { "steadfast.form": "1", "steadfast.identity": "x", "steadfast.queue": "jobs" },
        });
        server.api(&format!("STREAM.CREATE.{stream}"), &log.to_string());
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
            let waiting = tokio::spawn(async move { waits.receive(Receive::new(1, HOUR).wait(HOUR)).await });
            server::pass(MS(20)).await;
            queue.send_one(Message::new(round.to_string())).await.unwrap();
            waiting.abort();
            // Long before the visibility is over.
            let taken = match waiting.await {
                Ok(taken) => taken.unwrap(),
                Err(_) => queue.receive(Receive::new(1, HOUR).wait(MINUTE)).await.unwrap(),
            };
            assert_eq!(taken[0].body, round.to_string());
            queue.complete(&taken[0].receipt).await.unwrap();
        }
        assert_eq!(queue.depth().await.unwrap().total(), 0);
    });
}
