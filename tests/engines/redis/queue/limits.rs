//! Many, large and oddly named messages, and a server without memory.
use std::collections::BTreeSet;

use steadfast::{
    port::{Failure, PortErrorKind},
    queue::{QueueExt, Settle, redrive},
};

use super::*;

const MANY: usize = 9_000;

fn numbered(range: std::ops::Range<usize>) -> impl Iterator<Item = Message> {
    range.map(|i| Message::new(i.to_string()))
}

/// More than Lua's stack holds are due at once: each receive returns some of them.
// Guarantee: queue 5.
#[test]
fn of_thousands_that_are_due_at_once_each_receive_returns_some() {
    block_on(async {
        let redis = connect(server::Redis::shared()).await;
        let (expired, delayed) = (queue(&redis, "expired"), queue(&redis, "delayed"));
        for from in (0..MANY).step_by(1000) {
            send(&*expired, numbered(from..from + 1000)).await;
            send(&*delayed, numbered(from..from + 1000).map(|message| message.delay(MS(1)))).await;
        }
        let mut hidden = 0;
        while hidden < MANY {
            hidden += take(&*expired, 1000, MS(1)).await.len();
        }
        server::pass(MS(50)).await;
        for (queue, max) in [(expired, 1000), (delayed, 300)] {
            let mut all = BTreeSet::new();
            while all.len() < MANY {
                let taken = take(&*queue, max, MINUTE).await;
                assert!(!taken.is_empty(), "{} of {MANY} came", all.len());
                all.extend(bodies(&taken));
                let settled = taken.into_iter().map(|taken| (taken.receipt, Settle::Complete)).collect();
                assert!(queue.settle(settled).await.unwrap().iter().all(Result::is_ok));
            }
            assert_eq!(queue.depth().await.unwrap().total(), 0);
        }
    });
}

/// Settlements of more deliveries than one call of the script takes are each answered.
// Guarantee: queue 3.
#[test]
fn thousands_of_settlements_of_each_kind_are_answered_in_one_request() {
    block_on(async {
        let redis = connect(server::Redis::shared()).await;
        let (jobs, others) = (queue(&redis, "jobs"), queue(&redis, "others"));
        let mut taken = Vec::new();
        for from in (0..3000).step_by(1000) {
            send(&*jobs, numbered(from..from + 1000).map(|message| message.header("kind", "test"))).await;
            taken.extend(take(&*jobs, 1000, HOUR).await);
        }
        let address = others.address().unwrap();
        let hows = taken.iter().enumerate().map(|(i, taken)| {
            let how = match i % 5 {
                0 => Settle::Complete,
                1 => Settle::abandon(Duration::ZERO),
                2 => Settle::release(HOUR),
                3 => Settle::dead_letter("no"),
                _ => Settle::forward([Message::new("f"), Message::new("g")].map(|message| (address.clone(), message))),
            };
            (taken.receipt.clone(), how)
        });
        let hows: Vec<_> = hows.collect();
        assert!(jobs.settle(hows.clone()).await.unwrap().iter().all(Result::is_ok));
        let depth = jobs.depth().await.unwrap();
        assert_eq!((depth.visible, depth.in_flight), (600, 600));
        assert_eq!(jobs.dead_letters().unwrap().depth().await.unwrap().visible, 600);
        assert_eq!(others.depth().await.unwrap().visible, 1200);
        let again = jobs.settle(hows).await.unwrap();
        assert_eq!((again.len(), again.iter().filter(|again| again.is_ok()).count()), (3000, 0));
    });
}

// Guarantee: queue 5.
#[test]
fn a_receive_of_large_messages_ends_at_sixteen_mebibytes() {
    block_on(async {
        let jobs = queue(&connect(server::Redis::shared()).await, "jobs");
        let body = bytes::Bytes::from(vec![7; 1 << 20]);
        for _ in 0..5 {
            send(&*jobs, (0..4).map(|i| Message::new(body.clone()).header("i", i.to_string()))).await;
        }
        assert_eq!(jobs.peek(100).await.unwrap().len(), 15);
        let first = take(&*jobs, 100, MINUTE).await;
        let second = take(&*jobs, 100, MINUTE).await;
        assert_eq!((first.len(), second.len()), (15, 5));
        assert!(first.iter().chain(&second).all(|taken| taken.body == body));
    });
}

/// Receives that share a request share its room.
// Guarantee: queue 5.
#[test]
fn receives_of_large_messages_that_meet_each_have_theirs() {
    block_on(async {
        let server = server::Redis::start();
        let proxy = crate::server::Proxy::start(server.port());
        let jobs = queue(&Redis::connect(config(proxy.port())).await.unwrap(), "jobs");
        let body = bytes::Bytes::from(vec![7; 1 << 20]);
        for i in 0..8 {
            send(&*jobs, (0..4).map(|j| Message::new(body.clone()).header("i", (4 * i + j).to_string()))).await;
        }
        proxy.delay(MS(20));
        let receivers: Vec<_> = (0..32)
            .map(|_| {
                let jobs = jobs.clone();
                tokio::spawn(async move { jobs.receive(Receive::new(1, MINUTE)).await.unwrap() })
            })
            .collect();
        let mut taken = Vec::new();
        for receiver in receivers {
            taken.extend(receiver.await.unwrap());
        }
        let numbers: BTreeSet<_> = taken.iter().map(|taken| taken.headers["i"].clone()).collect();
        assert_eq!((taken.len(), numbers.len()), (32, 32));
    });
}

/// Requests of many callers go together, as if each were made alone.
// Guarantee: queue 1.
#[test]
fn requests_that_meet_share_a_call_and_each_has_its_own_messages() {
    const CALLERS: usize = 64;
    block_on(async {
        let server = server::Redis::start();
        let proxy = crate::server::Proxy::start(server.port());
        let jobs = queue(&Redis::connect(config(proxy.port())).await.unwrap(), "jobs");
        let calls = || {
            let stats = server.command(&["INFO", "commandstats"]);
            let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
            line.split(',').next().unwrap().parse::<u64>().unwrap()
        };
        // Each script is known to the server.
        send(&*jobs, [Message::new("first")]).await;
        jobs.complete(&take(&*jobs, 1, MINUTE).await[0].receipt).await.unwrap();
        proxy.delay(MS(20));
        let before = calls();
        let sends = (0..CALLERS).map(|i| {
            let jobs = jobs.clone();
            async move { jobs.send((0..3).map(|j| Message::new(format!("{i}-{j}"))).collect()).await.unwrap() }
        });
        let mut sent = BTreeSet::new();
        for ids in proxy.meet(sends).await {
            assert!(ids.len() == 3 && ids.is_sorted(), "{ids:?}");
            sent.extend(ids);
        }
        let receives = (0..CALLERS).map(|_| {
            let jobs = jobs.clone();
            async move { jobs.receive(Receive::new(3, HOUR)).await.unwrap() }
        });
        let taken = proxy.meet(receives).await;
        let settles = taken.clone().into_iter().map(|taken| {
            let jobs = jobs.clone();
            async move {
                let mut settled =
                    taken.iter().map(|taken| (taken.receipt.clone(), Settle::Complete)).collect::<Vec<_>>();
                settled.extend(settled.last().cloned());
                let answers = jobs.settle(settled).await.unwrap();
                // The last is settled twice.
                let made = answers.iter().filter(|answer| answer.is_ok()).count();
                assert_eq!((answers.len(), made), (if taken.is_empty() { 0 } else { taken.len() + 1 }, taken.len()));
            }
        });
        proxy.meet(settles).await;
        let mut received = taken.concat();
        received.extend(take(&*jobs, 200, HOUR).await);
        assert_eq!(sent.len(), 3 * CALLERS, "an id was given twice");
        let ids: BTreeSet<_> = received.iter().map(|taken| taken.id.clone()).collect();
        let all: BTreeSet<_> = received.iter().map(|taken| taken.body.clone()).collect();
        assert_eq!((received.len(), ids == sent, all.len()), (3 * CALLERS, true, 3 * CALLERS));
        let calls = calls() - before;
        println!("{} requests: {calls} calls", 3 * CALLERS);
        assert!(calls <= CALLERS as u64, "{calls}");
    });
}

/// Hidden messages are ordered by their time; a peek finds the oldest among thousands of them.
// Guarantee: queue 4.
#[test]
fn a_peek_finds_the_oldest_of_thousands_of_hidden_messages() {
    block_on(async {
        let jobs = queue(&connect(server::Redis::shared()).await, "jobs");
        for from in (0..5000).step_by(1000) {
            let message = |i: usize| match i % 10 {
                0 => Message::new(i.to_string()).group("g"),
                1 => Message::new(i.to_string()).delay(S(9_000 - i as u64)),
                _ => Message::new(i.to_string()),
            };
            send(&*jobs, (from..from + 1000).map(message)).await;
        }
        // The later it was sent, the earlier it returns.
        for i in 0..4 {
            assert_eq!(take(&*jobs, 1000, S(10_000 - i * 1000)).await.len(), 1000);
        }
        let peeked = jobs.peek(500).await.unwrap();
        let found: Vec<usize> =
            peeked.iter().map(|peeked| String::from_utf8_lossy(&peeked.body).parse().unwrap()).collect();
        assert_eq!(found, (0..500).collect::<Vec<_>>());
        let hidden: Vec<_> = peeked.iter().map(|peeked| peeked.hidden).collect();
        let expected: Vec<_> = (0..500).map(|i| i == 0 || i % 10 != 0).collect();
        assert_eq!(hidden, expected, "all but those behind the first of the group");
    });
}

// Guarantee: queue 10.
#[test]
fn queues_with_hostile_names_are_apart() {
    block_on(async {
        let redis = connect(server::Redis::shared()).await;
        let names = ["a", "a}", "}", "{}", "a%7D", "a}:d", "a}:q:m", "a:q:", "a\u{0}", "\r\n", &"x".repeat(1024)];
        for name in names {
            let queue = queue(&redis, name);
            send(&*queue, [Message::new(name.to_owned()).deduplicate("}:q:m").group("}:q:m")]).await;
            let delivery = take(&*queue, 1, MINUTE).await.remove(0);
            queue.dead_letter(&delivery.receipt, name).await.unwrap();
        }
        let mut identities = BTreeSet::new();
        for name in names {
            let queue = queue(&redis, name);
            let letters = queue.dead_letters().unwrap();
            let taken = take(&*letters, 10, MINUTE).await;
            assert_eq!((bodies(&taken), queue.depth().await.unwrap().total()), (vec![name.to_owned()], 0));
            identities.extend([queue.identity(), letters.identity()]);
            // An address keeps the whole name.
            let address = letters.address().unwrap();
            letters.forward(&taken[0].receipt, [(address, Message::new("again"))]).await.unwrap();
            assert_eq!(bodies(&take(&*letters, 10, MINUTE).await), ["again"]);
        }
        assert_eq!(identities.len(), names.len() * 2);
        assert!(identities.iter().all(|identity| identity.len() <= 128));
        for name in ["", &"x".repeat(1025)] {
            let error = redis.queue(name).unwrap_err();
            assert_eq!(error.kind(), PortErrorKind::Invalid, "{error}");
        }
    });
}

// Guarantee: queue 3, 13.
#[test]
fn the_queue_of_this_name_on_another_server_is_another_queue() {
    let other = server::Redis::start();
    block_on(async {
        let config = config(server::Redis::shared().port());
        let here = queue(&Redis::connect(config.clone()).await.unwrap(), "jobs");
        let there = queue(&Redis::connect(config.url(other.url())).await.unwrap(), "jobs");
        send(&*here, [Message::new("a")]).await;
        let delivery = take(&*here, 1, MINUTE).await.remove(0);
        assert!(is_lost(there.complete(&delivery.receipt).await));
        assert_ne!(here.identity(), there.identity());
        let message = (there.address().unwrap(), Message::new("b"));
        let error = here.forward(&delivery.receipt, [message]).await.unwrap_err();
        assert_eq!(error.backend().unwrap().kind(), PortErrorKind::Unsupported, "{error}");
        here.complete(&delivery.receipt).await.unwrap();
    });
}

/// Without memory, sends are refused, and whatever ends or hides a delivery is done.
// Guarantee: queue 9.
#[test]
fn a_server_without_memory_refuses_messages_and_settles_those_that_it_has() {
    let server = server::Redis::start();
    block_on(async {
        let jobs = queue(&connect(&server).await, "jobs");
        let group = |body: &'static str| Message::new(body).group("g");
        let plain = ["1", "2", "3", "4", "5", "6"].map(Message::new);
        send(&*jobs, plain.into_iter().chain([group("7"), group("8")])).await;
        let first = take(&*jobs, 1, MINUTE).await.remove(0);
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        let error = jobs.send(vec![Message::new("late").deduplicate("late")]).await.unwrap_err();
        assert_eq!(error.backend().unwrap().kind(), PortErrorKind::Full, "{error}");
        assert!(!error.may_have_been_applied() && error.to_string().contains("maxmemory"), "{error}");
        jobs.extend(&first.receipt, S(90)).await.unwrap();
        let taken = take(&*jobs, 10, MS(200)).await;
        assert_eq!(bodies(&taken), ["2", "3", "4", "5", "6", "7"]);
        jobs.abandon(&taken[0].receipt, Duration::ZERO).await.unwrap();
        jobs.release(&taken[1].receipt, HOUR).await.unwrap();
        jobs.dead_letter(&taken[2].receipt, "no").await.unwrap();
        jobs.forward(&taken[3].receipt, [(jobs.address().unwrap(), Message::new("new"))]).await.unwrap();
        jobs.complete(&taken[5].receipt).await.unwrap();
        server::pass(MS(300)).await;
        assert_eq!(bodies(&take(&*jobs, 10, MINUTE).await), ["2", "6", "8", "new"], "6 expired, 8 is behind 7");
        jobs.complete(&first.receipt).await.unwrap();
        assert_eq!(jobs.dead_letters().unwrap().depth().await.unwrap().visible, 1);
        server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        let again = jobs.send(vec![Message::new("late").deduplicate("late")]).await.unwrap();
        assert_eq!((again.len(), bodies(&take(&*jobs, 10, MINUTE).await)), (1, vec!["late".to_owned()]));
    });
}

// Guarantee: queue 8.
#[test]
fn dead_letters_are_sent_again_in_one_step_each() {
    block_on(async {
        let jobs = queue(&connect(server::Redis::shared()).await, "jobs");
        send(&*jobs, numbered(0..100)).await;
        let dead = take(&*jobs, 100, MINUTE).await.into_iter();
        let dead = dead.map(|taken| (taken.receipt, Settle::dead_letter("no"))).collect();
        assert!(jobs.settle(dead).await.unwrap().iter().all(Result::is_ok));
        let even = |letter: &Delivery| letter.body.last().is_some_and(|digit| digit % 2 == 0);
        assert_eq!(redrive(&*jobs, 1000, even).await.unwrap(), 50);
        assert_eq!(jobs.dead_letters().unwrap().depth().await.unwrap().visible, 50);
        let taken = take(&*jobs, 100, MINUTE).await;
        assert!(taken.len() == 50 && taken.iter().all(|taken| even(taken) && taken.deliveries == 1));
    });
}

/// The server forgets its scripts, as after a restart or `SCRIPT FLUSH`.
#[test]
fn a_server_without_the_scripts_gets_them_again() {
    let server = server::Redis::start();
    block_on(async {
        let jobs = queue(&connect(&server).await, "jobs");
        server.command(&["SCRIPT", "FLUSH"]);
        send(&*jobs, [Message::new("a")]).await;
        server.command(&["SCRIPT", "FLUSH"]);
        let delivery = take(&*jobs, 1, MINUTE).await.remove(0);
        server.command(&["SCRIPT", "FLUSH"]);
        jobs.complete(&delivery.receipt).await.unwrap();
        server.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(jobs.depth().await.unwrap().total(), 0);
    });
}
