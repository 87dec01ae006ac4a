//! What an operator does to the streams and the consumer of a queue, and large messages of other programs.
use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    time::Duration,
};

use steadfast::{
    backend::nats::{Nats, NatsConfig},
    port::{Failure, PortErrorKind},
    queue::{AttemptError, AttemptErrorKind, Depth, Message, Queue, QueueExt, Receive, Settle},
    time::Timestamp,
};

use super::{connect, run};
use crate::server;

const MS: fn(u64) -> Duration = Duration::from_millis;
const PATIENCE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Publishes these headers and this body, and returns once the message is stored.
fn publish_raw(server: &server::Nats, subject: &str, headers: &[u8], body: &[u8]) {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    write!(stream, "CONNECT {{\"verbose\":false,\"headers\":true}}\r\nSUB reply 1\r\n").unwrap();
    if headers.is_empty() {
        write!(stream, "PUB {subject} reply {}\r\n", body.len()).unwrap();
    } else {
        write!(stream, "HPUB {subject} reply {} {}\r\n", headers.len(), headers.len() + body.len()).unwrap();
    }
    stream.write_all(headers).unwrap();
    stream.write_all(body).unwrap();
    stream.write_all(b"\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    let line = lines.by_ref().map(Result::unwrap).find(|line| line.starts_with("MSG ") || line.starts_with("-ERR"));
    let ack = lines.next().unwrap().unwrap();
    assert!(ack.contains("\"seq\""), "{line:?} {ack}: it was not stored");
}

/// Receives and completes until as many different messages are there.
#[track_caller]
fn gets(queue: &impl Queue, max: usize, wanted: usize) -> impl Future<Output = BTreeSet<String>> {
    server::ends(async move {
        let mut got = BTreeSet::new();
        while got.len() < wanted {
            let Ok(taken) = queue.receive(Receive::new(max, PATIENCE).wait(MS(500))).await else {
                server::look_again().await;
                continue;
            };
            for taken in taken {
                queue.complete(&taken.receipt).await.unwrap();
                got.insert(String::from_utf8_lossy(&taken.body).into_owned());
            }
        }
        got
    })
}

#[test]
fn a_dead_letter_of_a_stream_that_was_made_anew_is_not_taken_for_an_old_one() {
    run(async {
        let server = server::Nats::start();
        let queue = connect(server.url(), "anew").await.queue("jobs").await.unwrap();
        queue.send_one(Message::new("old")).await.unwrap();
        let taken = queue.receive_one(PATIENCE).await.unwrap().unwrap();
        queue.dead_letter(&taken.receipt, "no").await.unwrap();
        drop(queue);
        for of in ["_queue_", "_claims_"] {
            server.api(&format!("STREAM.DELETE.{}", server.stream(of)), "");
        }
        let queue = connect(server.url(), "anew").await.queue("jobs").await.unwrap();
        queue.send_one(Message::new("new")).await.unwrap();
        let taken = queue.receive_one(PATIENCE).await.unwrap().unwrap();
        queue.dead_letter(&taken.receipt, "no").await.unwrap();
        let letters = queue.dead_letters().unwrap().peek(10).await.unwrap();
        let bodies: Vec<_> = letters.iter().map(|letter| String::from_utf8_lossy(&letter.body).into_owned()).collect();
        assert_eq!((queue.depth().await.unwrap().total(), bodies), (0, vec!["old".to_owned(), "new".to_owned()]));
    });
}

#[test]
fn a_stream_that_is_made_anew_loses_nothing_that_it_accepts() {
    for server in [server::Nats::old(), server::Nats::start()] {
        run(async move {
            let queue = connect(server.url(), "anew").await.queue("jobs").await.unwrap();
            for i in 0..5 {
                queue.send_one(Message::new(format!("old {i}"))).await.unwrap();
            }
            assert_eq!(gets(&queue, 10, 5).await.len(), 5);
            drop(queue);
            // While no program runs.
            server.api(&format!("STREAM.DELETE.{}", server.stream("_queue_")), "");
            let queue = connect(server.url(), "anew").await.queue("jobs").await.unwrap();
            for i in 0..5 {
                queue.send_one(Message::new(format!("new {i}"))).await.unwrap();
            }
            assert_eq!(queue.depth().await.unwrap(), Depth::new(5, 0, 0));
            assert_eq!(gets(&queue, 10, 5).await, (0..5).map(|i| format!("new {i}")).collect());
        });
    }
}

#[test]
fn limits_of_the_consumer_that_were_set_by_hand_stop_no_handle() {
    run(async {
        for (setting, value) in [("max_bytes", 1_000_000), ("max_batch", 10)] {
            let server = server::Nats::start();
            let config = NatsConfig::at(server.url()).prefix("edited").request_timeout(MS(1_000));
            let queue = Nats::connect(config).await.unwrap().queue("jobs").await.unwrap();
            let stream = server.stream("_queue_");
            let mut config = server.api(&format!("CONSUMER.INFO.{stream}.work"), "")["config"].take();
            config[setting] = value.into();
            let body = serde_json::json!({ "stream_name": stream, "config": config });
            server.api(&format!("CONSUMER.CREATE.{stream}.work"), &body.to_string());
            queue.send_one(Message::new("later").delay(HOUR)).await.unwrap();
            for i in 0..20 {
                queue.send_one(Message::new(i.to_string())).await.unwrap();
            }
            assert_eq!(gets(&queue, 100, 20).await.len(), 20, "{setting}");
        }
    });
}

#[test]
fn a_message_that_is_too_large_for_a_dead_letter_stays_in_flight() {
    run(async {
        let server = server::Nats::start();
        let queue = connect(server.url(), "large").await.queue("jobs").await.unwrap();
        publish_raw(&server, "large.q.jobs", b"", &vec![b'x'; 1 << 20]);
        publish_raw(&server, "large.q.jobs", b"", &vec![b'y'; (1 << 20) - 1_000]);
        let taken = queue.receive(Receive::new(2, PATIENCE)).await.unwrap();
        let refused = queue.dead_letter(&taken[0].receipt, "no").await.unwrap_err();
        let kind = refused.backend().map(|error| error.kind());
        assert!(kind == Some(PortErrorKind::Invalid) && refused.to_string().contains("max_payload"), "{refused}");
        assert!(!refused.may_have_been_applied());
        queue.complete(&taken[0].receipt).await.unwrap();
        // Of the other the errors are left out.
        let error = AttemptError::new(1, Timestamp::from_millis(1), AttemptErrorKind::Failed, "x".repeat(900));
        let how = Settle::DeadLetter { reason: "no".to_owned(), error: Some(Box::new(error)) };
        queue.settle(vec![(taken[1].receipt.clone(), how)]).await.unwrap().remove(0).unwrap();
        let letter = queue.dead_letters().unwrap().peek(1).await.unwrap().remove(0);
        assert_eq!((letter.body.len(), letter.reason.as_deref()), ((1 << 20) - 1_000, Some("no")));
    });
}

#[test]
fn an_abandoned_message_is_visible_at_once_although_the_consumer_was_made_anew() {
    run(async {
        let server = server::Nats::start();
        let queue = connect(server.url(), "anew").await.queue("jobs").await.unwrap();
        for i in 0..20 {
            queue.send_one(Message::new(i.to_string())).await.unwrap();
        }
        assert_eq!(gets(&queue, 20, 20).await.len(), 20);
        queue.send_one(Message::new("last")).await.unwrap();
        let taken = queue.receive_one(HOUR).await.unwrap().unwrap();
        server.api(&format!("CONSUMER.DELETE.{}.work", server.stream("_queue_")), "");
        let other = connect(server.url(), "anew").await.queue("jobs").await.unwrap();
        assert!(other.receive_one(PATIENCE).await.unwrap().is_none());
        queue.abandon(&taken.receipt, Duration::ZERO).await.unwrap();
        let again = other.receive(Receive::new(1, PATIENCE).wait(PATIENCE / 3)).await.unwrap();
        assert_eq!(again.len(), 1, "it is hidden for an hour");
    });
}

#[test]
fn an_abandon_without_a_consumer_says_that_it_may_have_been_made() {
    run(async {
        let server = server::Nats::start();
        let queue = connect(server.url(), "anew").await.queue("jobs").await.unwrap();
        queue.send_one(Message::new("a")).await.unwrap();
        let taken = queue.receive_one(PATIENCE).await.unwrap().unwrap();
        server.api(&format!("CONSUMER.DELETE.{}.work", server.stream("_queue_")), "");
        let error = queue.abandon(&taken.receipt, Duration::ZERO).await.unwrap_err();
        assert!(error.may_have_been_applied(), "{error}");
        assert_eq!(gets(&queue, 1, 1).await.len(), 1);
    });
}

#[test]
fn another_consumer_in_the_place_of_the_shared_one_is_told() {
    run(async {
        let server = server::Nats::start();
        let queue = connect(server.url(), "other").await.queue("jobs").await.unwrap();
        let stream = server.stream("_queue_");
        queue.send_one(Message::new("a")).await.unwrap();
        server.api(&format!("CONSUMER.DELETE.{stream}.work"), "");
        let config = serde_json::json!({ "durable_name": "mine", "ack_policy": "explicit" });
        let other = serde_json::json!({ "stream_name": stream, "config": config });
        server.api(&format!("CONSUMER.CREATE.{stream}.mine"), &other.to_string());
        let error = queue.receive_one(PATIENCE).await.unwrap_err();
        let kind = error.backend().map(|error| error.kind());
        assert!(kind == Some(PortErrorKind::Unavailable) && error.to_string().contains("delete it"), "{error}");
        server.api(&format!("CONSUMER.DELETE.{stream}.mine"), "");
        assert_eq!(gets(&queue, 1, 1).await.len(), 1);
    });
}

#[test]
fn messages_that_a_limit_of_deliveries_has_stopped_come_when_the_consumer_is_deleted() {
    run(async {
        let server = server::Nats::start();
        let queue = connect(server.url(), "stopped").await.queue("jobs").await.unwrap();
        let stream = server.stream("_queue_");
        let mut config = server.api(&format!("CONSUMER.INFO.{stream}.work"), "")["config"].take();
        config["max_deliver"] = 1.into();
        let body = serde_json::json!({ "stream_name": stream, "config": config });
        server.api(&format!("CONSUMER.CREATE.{stream}.work"), &body.to_string());
        queue.send_one(Message::new("a")).await.unwrap();
        let taken = queue.receive_one(PATIENCE).await.unwrap().unwrap();
        queue.abandon(&taken.receipt, Duration::ZERO).await.unwrap();
        let again = queue.receive(Receive::new(1, PATIENCE).wait(MS(500))).await.unwrap();
        assert!(again.is_empty(), "the page is wrong: a limit stops no message");
        server.api(&format!("CONSUMER.DELETE.{stream}.work"), "");
        assert_eq!(gets(&queue, 1, 1).await.len(), 1);
    });
}

#[test]
fn a_clock_that_was_set_back_hides_no_message_for_longer_than_was_asked() {
    run(async {
        let server = server::Nats::start();
        let proxy = server::Proxy::start(server.port());
        let queue = connect(server.url_at(proxy.port()), "back").await.queue("jobs").await.unwrap();
        queue.send_one(Message::new("a")).await.unwrap();
        queue.receive_one(MS(500)).await.unwrap().unwrap();
        // As if it was claimed an hour ahead.
        let name = server.stream("_claims_");
        let claim = server.api(&format!("STREAM.MSG.GET.{name}"), r#"{"next_by_subj":">","seq":1}"#);
        let subject = claim["message"]["subject"].as_str().unwrap();
        let (until, span) = (u64::MAX / 2, 500_000_000);
        let record = serde_json::json!({
            "form": 1, "claim": 0, "held": true, "until": until, "span": span, "deliveries": 1, "attempts": 0, "unexplained": 0,
        });
        let headers = format!("NATS/1.0\r\nSteadfast-Until: {until} {span}\r\n\r\n");
        publish_raw(&server, subject, headers.as_bytes(), record.to_string().as_bytes());
        assert_eq!(queue.depth().await.unwrap().total(), 1);
        proxy.cut();
        assert_eq!(gets(&queue, 1, 1).await.len(), 1);
    });
}
