//! Operators who change a server that is in use.
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use steadfast::{
    backend::ConnectionEvent,
    lease::{Acquired, Lease},
    queue::QueueExt,
    store::{Key, Precondition, Store, StoreExt},
};

use super::*;

const KEY: Key<'static> = Key::new("p", "r");

#[test]
fn a_server_that_is_emptied_takes_new_grants_with_higher_tokens_and_new_versions() {
    run(async {
        let server = server::Redis::start();
        let redis = connect(config(server.url())).await;
        let (store, lease, queue) = (redis.store(), redis.lease(), redis.queue("q").unwrap());
        let minute = Duration::from_secs(60);
        let Acquired::Granted(first) = lease.acquire("n", "a", minute).await.unwrap() else { panic!("it is free") };
        let version = store.insert(KEY, "x").await.unwrap();
        let id = queue.send_one(Message::new("x")).await.unwrap();
        server.command(&["FLUSHALL"]);
        server.command(&["SCRIPT", "FLUSH"]);
        assert!(lease.renew("n", "a", first, minute).await.is_err());
        let Acquired::Granted(second) = lease.acquire("n", "b", minute).await.unwrap() else { panic!("it is free") };
        assert!(second > first);
        assert!(store.insert(KEY, "y").await.unwrap() > version);
        assert_ne!(queue.send_one(Message::new("y")).await.unwrap(), id);
    });
}

#[test]
fn connections_that_are_killed_under_load_lose_nothing_that_was_accepted() {
    run(async {
        let server = server::Redis::start();
        let redis = connect(config(server.url()).request_timeout(PATIENCE)).await;
        let queue = redis.queue("q").unwrap();
        let sender = tokio::spawn(async move {
            let mut accepted = Vec::new();
            for i in 0..2000 {
                if queue.send_one(Message::new(i.to_string())).await.is_ok() {
                    accepted.push(i.to_string());
                } else {
                    crate::server::pass(Duration::from_millis(1)).await;
                }
            }
            (queue, accepted)
        });
        while !sender.is_finished() {
            server.cut();
            server.command(&["SCRIPT", "FLUSH"]);
            crate::server::pass(Duration::from_millis(10)).await;
        }
        let (queue, accepted) = sender.await.unwrap();
        let mut found = std::collections::HashSet::new();
        while found.len() < accepted.len() {
            match queue.receive(Receive::new(1000, Duration::from_secs(600))).await {
                Ok(taken) if taken.is_empty() => break,
                Ok(taken) => found.extend(taken.iter().map(|taken| String::from_utf8(taken.body.to_vec()).unwrap())),
                Err(_) => crate::server::pass(Duration::from_millis(5)).await,
            }
        }
        let lost: Vec<_> = accepted.iter().filter(|body| !found.contains(*body)).collect();
        assert!(lost.is_empty(), "{lost:?} of {} are lost", accepted.len());
        assert!(accepted.len() > 100, "only {} were accepted", accepted.len());
    });
}

/// A server whose settings are changed while it is used: the next connection tells.
#[test]
fn an_eviction_policy_that_is_set_later_is_refused_with_the_next_connection() {
    run(async {
        let server = server::Redis::start();
        let redis = connect(config(server.url())).await;
        let (store, mut events) = (redis.store(), redis.events());
        store.insert(KEY, "x").await.unwrap();
        server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
        server.cut();
        ends("the refusal", async {
            while !store.get(KEY).await.is_err_and(|error| error.to_string().contains("noeviction")) {
                crate::server::pass(Duration::from_millis(10)).await;
            }
        })
        .await;
        assert!(matches!(events.recv().await.unwrap().what, ConnectionEvent::Lost { .. }));
        server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        ends("the handle's return", async {
            while store.put(KEY, "y".into(), Precondition::Any.into()).await.is_err() {
                crate::server::pass(Duration::from_millis(10)).await;
            }
        })
        .await;
    });
}

/// An operator who damages messages, and adds and removes what no program does, while others send and receive.
#[test]
fn an_operator_who_damages_messages_under_load_costs_those_alone() {
    run(async {
        const MESSAGES: u32 = 3000;
        let server = server::Redis::start();
        let config = config(server.url());
        let root = format!("{}:q:{{q}}:q:", config.prefix);
        let redis = connect(config).await;
        let queue = redis.queue("q").unwrap();
        let sends = queue.clone();
        let sender = tokio::spawn(async move {
            for i in 0..MESSAGES {
                let message = || {
                    let message = Message::new(i.to_string()).deduplicate(i.to_string());
                    if i % 3 == 0 { message.group(format!("g{}", i % 21)) } else { message }
                };
                while sends.send(vec![message()]).await.is_err() {
                    crate::server::pass(Duration::from_millis(1)).await;
                }
            }
        });
        let receives = queue.clone();
        let (begin, has_begun) = tokio::sync::oneshot::channel();
        let mut begin = Some(begin);
        let is_over = Arc::new(AtomicBool::new(false));
        let ends_when_over = is_over.clone();
        let receiver = tokio::spawn(async move {
            has_begun.await.unwrap();
            let mut found = std::collections::BTreeSet::new();
            let mut quiet = 0;
            while quiet < 100 {
                let receive = Receive::new(20, Duration::from_millis(500));
                let Ok(taken) = receives.receive(receive).await else {
                    crate::server::pass(Duration::from_millis(20)).await;
                    continue;
                };
                if taken.is_empty() {
                    quiet += u32::from(ends_when_over.load(SeqCst));
                    crate::server::pass(Duration::from_millis(20)).await;
                    continue;
                }
                quiet = 0;
                for taken in taken {
                    found.insert(String::from_utf8(taken.body.to_vec()).unwrap().parse::<u32>().unwrap());
                    // An unknown outcome shows when it returns.
                    let _ = receives.complete(&taken.receipt).await;
                }
            }
            found
        });
        let key = |name: &str| format!("{root}{name}");
        let mut damaged = 0_u32;
        for round in 0.. {
            if sender.is_finished() && round > 100 && damaged > 10 {
                break;
            }
            let id = server.command(&["HRANDFIELD", &key("m")]);
            match round % 8 {
                0 | 1 if !id.is_empty() => {
                    let transaction = format!(
                        "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end \
                         redis.call('HSET', KEYS[1], ARGV[1], string.sub(redis.call('HGET', KEYS[1], ARGV[1]), 1, {})) \
                         return 1",
                        round % 3
                    );
                    damaged += u32::from(server.command(&["EVAL", &transaction, "1", &key("m"), &id]) == "1");
                    // The receiver leaves few to damage.
                    if let Some(begin) = (damaged > 10).then(|| begin.take()).flatten() {
                        begin.send(()).unwrap();
                    }
                }
                2 => drop(server.command(&["LPUSH", &key("f"), "junk"])),
                3 => drop(server.command(&["ZADD", &key("b"), "0", "nan"])),
                4 => drop(server.command(&["SCRIPT", "FLUSH"])),
                5 => drop(server.command(&["SET", &key("w"), "junk"])),
                6 => drop(server.command(&["CLIENT", "KILL", "TYPE", "normal"])),
                _ => drop(server.command(&["PUBLISH", &key("w"), "junk"])),
            }
            crate::server::pass(Duration::from_millis(3)).await;
        }
        sender.await.unwrap();
        is_over.store(true, SeqCst);
        let found = ends("the receiver", receiver).await.unwrap();
        let lost: Vec<_> = (0..MESSAGES).filter(|i| !found.contains(i)).collect();
        println!("{damaged} messages were damaged, {} of {MESSAGES} did not come", lost.len());
        assert!(lost.len() <= damaged as usize, "{lost:?} did not come: {}, and {damaged} were damaged", lost.len());
        assert_eq!(queue.depth().await.unwrap().total(), 0);
        let kept: usize = server.command(&["HLEN", &key("a")]).parse().unwrap();
        assert!(kept >= lost.len(), "{kept} were set aside");
    });
}
