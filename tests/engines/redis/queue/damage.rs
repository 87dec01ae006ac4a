//! Stored messages that an operator's hand has damaged, and scripts that fail half-way.
use steadfast::{
    backend::ConnectionEvent,
    port::Failure,
    queue::{AttemptError, AttemptErrorKind, QueueExt, Settle},
    time::Timestamp,
};

use super::*;

/// A queue whose keys a test changes by hand.
struct Opened {
    redis: Redis,
    jobs: Arc<dyn Queue>,
    root: String,
}

async fn open(server: &server::Redis) -> Opened {
    let config = config(server.port());
    let root = format!("{}:q:{{jobs}}:", config.prefix);
    let redis = Redis::connect(config).await.unwrap();
    let jobs = queue(&redis, "jobs");
    Opened { redis, jobs, root }
}

impl Opened {
    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.root)
    }
}

async fn ids(queue: &dyn Queue, messages: Vec<Message>) -> Vec<String> {
    let ids = queue.send(messages).await.unwrap();
    ids.iter().map(|id| id.as_numbers().unwrap().0.to_string()).collect()
}

fn ten(group: Option<&str>) -> Vec<Message> {
    let message = |i: u32| Message::new(i.to_string());
    (0..10).map(|i| group.map_or_else(|| message(i), |group| message(i).group(group))).collect()
}

fn error() -> AttemptError {
    AttemptError::new(1, Timestamp::from_millis(1), AttemptErrorKind::Failed, "e")
}

/// Takes messages until none comes, and completes them.
async fn drain(queue: &dyn Queue) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let taken = take(queue, 10, MINUTE).await;
        if taken.is_empty() {
            return all;
        }
        all.extend(bodies(&taken));
        for taken in taken {
            queue.complete(&taken.receipt).await.unwrap();
        }
    }
}

/// Each way to damage the fourth of ten messages costs that message alone, and it is kept.
// Guarantee: queue 1.
#[test]
fn a_damaged_message_is_set_aside_and_told_and_its_neighbours_are_delivered() {
    let server = server::Redis::shared();
    block_on(async {
        let damages: [(&str, &[u8]); 7] = [
            ("empty", b""),
            ("of one byte", b"\0"),
            ("cut behind the length of its group", b"\0\x05gr"),
            ("cut before its headers", b"\0\0"),
            ("cut within its headers", b"\0\0\0\0\0\x09\0\0\0\x02ab"),
            ("with a group that is no text", b"\0\x01\xFF\0\0\0\0body"),
            ("gone", b"-"),
        ];
        for group in [None, Some("g")] {
            for (what, damage) in damages {
                let opened = open(server).await;
                let mut events = opened.redis.events();
                let sent = ids(&*opened.jobs, ten(group)).await;
                let id = &sent[3];
                if what == "gone" {
                    server.command(&["HDEL", &opened.key("q:m"), id]);
                } else {
                    server.command_of_bytes(&[b"HSET", opened.key("q:m").as_bytes(), id.as_bytes(), damage]);
                }
                let rest: Vec<_> = (0..10).filter(|i| *i != 3).map(|i: u32| i.to_string()).collect();
                assert_eq!(drain(&*opened.jobs).await, rest, "{what}, {group:?}");
                let told = events.recv().await.unwrap().what;
                let ConnectionEvent::SetAside { message, place } = told else { panic!("{told:?}") };
                assert_eq!((&message, &place), (id, &opened.key("q:a")), "{what}");
                let kept = server.command(&["HKEYS", &place]);
                assert_eq!(&kept, id, "{what}, {group:?}");
                assert_eq!(opened.jobs.depth().await.unwrap().total(), 0, "{what}, {group:?}");
                // The group goes on.
                send(&*opened.jobs, ten(group)).await;
                assert_eq!(drain(&*opened.jobs).await.len(), 10, "{what}, {group:?}");
            }
        }
    });
}

/// Whatever else is damaged beside a message, no other message is lost.
// Guarantee: queue 1.
#[test]
fn damaged_states_ids_times_and_links_cost_no_neighbour() {
    let server = server::Redis::shared();
    block_on(async {
        for what in ["state", "id", "returned id", "delayed id", "hidden id", "link", "no link", "number", "mark"] {
            let opened = open(server).await;
            let (key, jobs) = (|name: &str| opened.key(name), &*opened.jobs);
            let group = what.ends_with("link").then_some("g");
            let sent = ids(jobs, ten(group)).await;
            let mut expected: Vec<_> = (0..10).map(|i: u32| i.to_string()).collect();
            match what {
                "state" => {
                    // Returned messages have states.
                    for taken in take(jobs, 10, MINUTE).await {
                        jobs.abandon(&taken.receipt, Duration::ZERO).await.unwrap();
                    }
                    server.command(&["HSET", &key("q:s"), &sent[3], "damaged"]);
                    expected.remove(3);
                }
                "id" => drop(server.command(&["LPUSH", &key("q:f"), "x y"])),
                "returned id" => drop(server.command(&["ZADD", &key("q:b"), "0", "nan"])),
                "delayed id" => drop(server.command(&["ZADD", &key("q:l"), "1", "nan"])),
                "hidden id" => {
                    take(jobs, 10, MS(1)).await;
                    crate::server::pass(MS(20)).await;
                    server.command(&["ZADD", &key("q:h"), "0", "nan"]);
                }
                "link" => drop(server.command(&["HSET", &key("q:n"), &sent[3], "damaged"])),
                "no link" => drop(server.command(&["HDEL", &key("q:n"), &sent[3]])),
                "number" => drop(server.command(&["SET", &format!("{}n", opened.root), "damaged"])),
                _ => drop(server.command(&["SET", &key("q:w"), "damaged"])),
            }
            if let "number" | "mark" = what {
                send(jobs, [Message::new("10")]).await;
                expected.push("10".to_owned());
            }
            let mut found = drain(jobs).await;
            found.sort_by_key(|body| body.parse::<u32>().unwrap());
            assert_eq!(found, expected, "{what}");
            assert_eq!(jobs.depth().await.unwrap().total(), 0, "{what}");
        }
    });
}

/// A receiver that was held up sets aside what another one has set aside since.
// Guarantee: queue 1.
#[test]
fn a_late_setting_aside_changes_nothing_that_was_kept() {
    let server = server::Redis::shared();
    block_on(async {
        let opened = open(server).await;
        let sent = ids(&*opened.jobs, ten(None)).await;
        server.command(&["HSET", &opened.key("q:m"), &sent[3], "left"]);
        let mut events = opened.redis.events();
        assert_eq!(drain(&*opened.jobs).await.len(), 9);
        assert!(matches!(events.recv().await.unwrap().what, ConnectionEvent::SetAside { .. }));
        let kept = server.command(&["HGETALL", &opened.key("q:a")]);
        // The id is found again, with nothing behind it, as by a receiver whose call was on its way.
        server.command(&["LPUSH", &opened.key("q:f"), &sent[3]]);
        assert!(take(&*opened.jobs, 10, MINUTE).await.is_empty());
        assert_eq!(server.command(&["HGETALL", &opened.key("q:a")]), kept);
        assert_eq!(kept, format!("{}\nleft", sent[3]));
        // A receiver whose answer was held up beyond the delivery.
        let proxy = crate::server::Proxy::start(server.port());
        let prefix = opened.root.split(':').next().unwrap().to_owned();
        let held = Redis::connect(config(proxy.port()).prefix(prefix)).await.unwrap();
        let (late, mut told) = (queue(&held, "jobs"), held.events());
        assert!(take(&*late, 1, MINUTE).await.is_empty());
        for is_purged in [false, true] {
            let id = ids(&*opened.jobs, vec![Message::new("x")]).await.remove(0);
            server.command(&["HSET", &opened.key("q:m"), &id, "left"]);
            server.command(&["DEL", &opened.key("q:a")]);
            proxy.hold_lane(crate::server::Lane::Replies);
            let receiver = late.clone();
            let receives = tokio::spawn(async move { take(&*receiver, 1, MS(1)).await });
            crate::server::wait_until("it is delivered", || server.command(&["ZCARD", &opened.key("q:h")]) != "0");
            crate::server::pass(MS(5)).await;
            if is_purged {
                opened.jobs.purge().await.unwrap();
            } else {
                assert!(drain(&*opened.jobs).await.is_empty());
            }
            proxy.pass();
            assert!(receives.await.unwrap().is_empty());
            let kept = if is_purged { String::new() } else { format!("{id}\nleft") };
            assert_eq!(server.command(&["HGETALL", &opened.key("q:a")]), kept);
            let told = tokio::time::timeout(MS(1), told.recv()).await;
            assert!(told.is_err(), "{told:?}");
        }
    });
}

/// What cannot be kept is not removed, and the receive tells.
#[test]
fn a_receive_that_cannot_set_aside_fails_and_ends() {
    let server = server::Redis::shared();
    block_on(async {
        let opened = open(server).await;
        let sent = ids(&*opened.jobs, vec![Message::new("1")]).await;
        server.command(&["HSET", &opened.key("q:m"), &sent[0], ""]);
        server.command(&["SET", &opened.key("q:a"), "of another type"]);
        let receive = opened.jobs.receive(Receive::new(1, MINUTE));
        let error = crate::server::ends(receive).await.unwrap_err();
        assert_eq!(error.backend().unwrap().kind(), steadfast::port::PortErrorKind::Corrupt, "{error}");
        server.command(&["DEL", &opened.key("q:a")]);
        assert_eq!(server.command(&["HLEN", &opened.key("q:m")]), "1", "it returns");
    });
}

/// The tail of a group was deleted by hand, so the next message begins the group anew.
#[test]
fn the_next_of_a_group_is_shown_once_when_its_last_one_was_deleted() {
    let server = server::Redis::shared();
    block_on(async {
        let grouped = |body: &str| Message::new(body.to_owned()).group("g");
        for is_held in [false, true] {
            let opened = open(server).await;
            let jobs = &*opened.jobs;
            let sent = ids(jobs, vec![grouped("1")]).await;
            let held = if is_held { take(jobs, 1, MINUTE).await } else { Vec::new() };
            server.command(&["HDEL", &opened.key("q:m"), &sent[0]]);
            send(jobs, [grouped("2"), grouped("3")]).await;
            let mut found = take(jobs, 10, MINUTE).await;
            for held in held {
                jobs.complete(&held.receipt).await.unwrap();
            }
            found.extend(take(jobs, 10, MINUTE).await);
            assert_eq!(bodies(&found), ["2"], "{is_held}");
            jobs.complete(&found[0].receipt).await.unwrap();
            assert_eq!(drain(jobs).await, ["3"], "{is_held}");
            assert_eq!(jobs.depth().await.unwrap().total(), 0, "{is_held}");
        }
    });
}

/// A forward to the dead letters and a dead letter of the same group, in one call.
// Guarantee: queue 1.
#[test]
fn a_forward_to_the_dead_letters_and_a_dead_letter_in_one_call_are_both_found() {
    let server = server::Redis::shared();
    block_on(async {
        let opened = open(server).await;
        let (jobs, dead) = (&*opened.jobs, opened.jobs.dead_letters().unwrap());
        for has_tail in [false, true] {
            for forwards_first in [true, false] {
                let mut expected = vec!["forwarded", "x"];
                if has_tail {
                    send(jobs, [Message::new("tail").group("g")]).await;
                    let tail = take(jobs, 1, MINUTE).await.remove(0);
                    jobs.settle(vec![(tail.receipt, Settle::dead_letter("no"))]).await.unwrap();
                    expected.insert(1, "tail");
                }
                send(jobs, [Message::new("y"), Message::new("x").group("g")]).await;
                let mut taken = take(jobs, 2, MINUTE).await.into_iter();
                let (y, x) = (taken.next().unwrap().receipt, taken.next().unwrap().receipt);
                let forward = Settle::forward([(dead.address().unwrap(), Message::new("forwarded").group("g"))]);
                let mut both = vec![(y, forward), (x, Settle::dead_letter("no"))];
                if !forwards_first {
                    both.reverse();
                }
                assert!(jobs.settle(both).await.unwrap().iter().all(Result::is_ok));
                let mut found = drain(&*dead).await;
                found.sort();
                assert_eq!(found, expected, "{has_tail} {forwards_first}");
                assert_eq!(dead.depth().await.unwrap().total(), 0);
            }
        }
    });
}

/// Behind a dead letter that was deleted by hand nothing would ever be shown.
#[test]
fn a_dead_letter_is_found_when_the_last_of_its_group_was_deleted() {
    let server = server::Redis::shared();
    block_on(async {
        let opened = open(server).await;
        let (jobs, dead) = (&*opened.jobs, opened.jobs.dead_letters().unwrap());
        for body in ["1", "2"] {
            let sent = ids(jobs, vec![Message::new(body).group("g")]).await;
            let taken = take(jobs, 1, MINUTE).await.remove(0);
            jobs.settle(vec![(taken.receipt, Settle::dead_letter("no"))]).await.unwrap();
            if body == "1" {
                server.command(&["HDEL", &opened.key("d:m"), &sent[0]]);
                server.command(&["ZREM", &opened.key("d:b"), &sent[0]]);
            }
        }
        assert_eq!(drain(&*dead).await, ["2"]);
    });
}

#[test]
fn a_peek_shows_the_neighbours_of_a_damaged_message() {
    let server = server::Redis::shared();
    block_on(async {
        let opened = open(server).await;
        let sent = ids(&*opened.jobs, ten(None)).await;
        server.command(&["HSET", &opened.key("q:m"), &sent[3], ""]);
        let peeked = opened.jobs.peek(10).await.unwrap();
        assert_eq!(peeked.len(), 9);
    });
}

/// A key of another type makes a script fail at each of its commands in turn: no message is lost.
// Guarantee: queue 1.
#[test]
fn a_request_that_fails_half_way_is_unknown_and_loses_no_message() {
    let server = server::Redis::shared();
    block_on(async {
        let hows: [fn(&Opened) -> Option<Settle>; 8] = [
            |_| None,
            |_| Some(Settle::Complete),
            |_| Some(Settle::abandon(Duration::ZERO)),
            |_| Some(Settle::abandon(S(60)).because(error())),
            |_| Some(Settle::release(S(60))),
            |_| Some(Settle::dead_letter("no")),
            |opened| Some(Settle::forward([(opened.jobs.address().unwrap(), Message::new("forwarded").group("h"))])),
            |opened| {
                let others = queue(&opened.redis, "others");
                Some(Settle::forward([(others.address().unwrap(), Message::new("forwarded").group("h"))]))
            },
        ];
        let names = ["m", "f", "b", "h", "l", "s", "e", "r", "t", "n", "z", "w"];
        let keys = names.iter().flat_map(|name| [format!("q:{name}"), format!("d:{name}")]).chain(["n".to_owned()]);
        // Those of the queue to which a message is forwarded.
        let others = names.iter().map(|name| format!("q:{name}")).chain(["n".to_owned()]);
        let keys = keys.map(|key| (key, "jobs")).chain(others.map(|key| (key, "others")));
        let mut failures = 0;
        for (name, of) in keys {
            for how in hows {
                let opened = open(server).await;
                let at = |name: &str| opened.key(name).replace("{jobs}", &format!("{{{of}}}"));
                let (jobs, key, saved) = (&*opened.jobs, at(&name), at("saved"));
                let others = queue(&opened.redis, "others");
                send(&*others, [Message::new("other").group("h")]).await;
                let grouped = |body: &'static str| Message::new(body).group("g").deduplicate(body);
                send(jobs, [grouped("1"), grouped("2"), Message::new("3")]).await;
                let taken = take(jobs, 1, MINUTE).await.remove(0);
                let existed = server.command(&["EXISTS", &key]) == "1";
                if existed {
                    server.command(&["RENAME", &key, &saved]);
                }
                // No script uses a stream.
                server.command(&["XADD", &key, "*", "a", "b"]);
                let failed = match how(&opened) {
                    Some(how) => jobs.settle(vec![(taken.receipt, how)]).await.err(),
                    None => match jobs.send(vec![grouped("late")]).await {
                        Err(error) => Some(error),
                        Ok(_) => jobs.receive(Receive::new(10, MS(1))).await.err(),
                    },
                };
                server.command(&["DEL", &key]);
                if existed {
                    server.command(&["RENAME", &saved, &key]);
                }
                let Some(error) = failed else { continue };
                failures += 1;
                assert!(error.may_have_been_applied(), "{name}: {error}");
                if how(&opened).is_none() {
                    send(jobs, [grouped("late")]).await;
                }
                // All that was hidden returns.
                for id in server.command(&["ZRANGE", &opened.key("q:h"), "0", "-1"]).lines() {
                    server.command(&["ZADD", &opened.key("q:h"), "1", id]);
                }
                let mut found = drain(jobs).await;
                found.extend(drain(&*jobs.dead_letters().unwrap()).await);
                found.extend(drain(&*others).await);
                found.sort();
                found.dedup();
                let mut expected = vec!["1", "2", "3", "other"];
                match how(&opened) {
                    None => expected.insert(3, "late"),
                    // What was completed may have left, or return.
                    Some(Settle::Complete) => {
                        found.retain(|body| body != "1");
                        expected.remove(0);
                    }
                    // It has left only if the forwarded one is there.
                    Some(Settle::Forward { .. }) => {
                        assert!(found.iter().any(|body| body == "1" || body == "forwarded"), "{of} {name}: {found:?}");
                        found.retain(|body| body != "1" && body != "forwarded");
                        expected.remove(0);
                    }
                    Some(_) => {}
                }
                assert_eq!(found, expected, "{of} {name}");
            }
        }
        assert!(failures > 30, "{failures}");
    });
}
