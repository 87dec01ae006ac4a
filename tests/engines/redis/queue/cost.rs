//! Round trips, bytes and memory.
use std::time::Instant;

use steadfast::queue::{QueueExt, Settle};

use super::*;
use crate::server::{Lane, Proxy};

/// Each operation is one round trip, whatever the number of its messages.
#[test]
fn each_request_is_one_round_trip() {
    let server = server::Redis::shared();
    let proxy = Proxy::start(server.port());
    block_on(async {
        let redis = Redis::connect(config(proxy.port())).await.unwrap();
        let jobs = queue(&redis, "jobs");
        // The first time gives the scripts to the server. On a busy machine a request may arrive in parts, and answers between
        // them: then it is made again, some times.
        let mut times = 0;
        let mut sizes = [1_usize, 1, 100, 1000].into_iter().peekable();
        while let Some(&messages) = sizes.peek() {
            times += 1;
            let mut costs = Vec::new();
            let mut at = (proxy.round_trips(), proxy.bytes(Lane::Requests), proxy.bytes(Lane::Replies));
            let mut cost = |name: &'static str| {
                let now = (proxy.round_trips(), proxy.bytes(Lane::Requests), proxy.bytes(Lane::Replies));
                let by = |one: u64, other: u64| (other - one) / messages as u64;
                costs.push((name, now.0 - at.0, by(at.1, now.1), by(at.2, now.2)));
                at = now;
            };
            send(&*jobs, vec![Message::new(vec![7; 100]); messages]).await;
            cost("send");
            let taken = take(&*jobs, messages, HOUR).await;
            cost("receive");
            jobs.extend(&taken[0].receipt, MINUTE).await.unwrap();
            cost("extend");
            jobs.depth().await.unwrap();
            cost("depth");
            let settled = taken.into_iter().map(|taken| (taken.receipt, Settle::Complete)).collect();
            assert!(jobs.settle(settled).await.unwrap().iter().all(Result::is_ok));
            cost("settle");
            let is_cheap = costs.iter().all(|cost| cost.1 == 1);
            if times > 1 && (is_cheap || times > 20) {
                println!("{messages} messages of 100 bytes: (round trips, bytes sent, bytes received a message)");
                costs.iter().for_each(|cost| println!("  {cost:?}"));
                assert!(is_cheap, "{costs:?}");
            }
            if times == 1 || is_cheap {
                sizes.next();
            }
        }
    });
}

/// However many messages wait in groups, a peek reads those that it returns.
#[test]
fn a_peek_reads_no_more_of_thousands_in_groups_than_it_returns() {
    const MESSAGES: usize = 20_000;
    let server = server::Redis::start();
    let proxy = Proxy::start(server.port());
    block_on(async {
        let jobs = queue(&Redis::connect(config(proxy.port())).await.unwrap(), "jobs");
        for from in (0..MESSAGES).step_by(1000) {
            let message = |i: usize| Message::new(i.to_string()).group(format!("g{}", i % 7));
            send(&*jobs, (from..from + 1000).map(message)).await;
        }
        jobs.peek(1).await.unwrap();
        // A request that arrives in parts on a busy machine has more round trips.
        for time in 1..=6 {
            let (before, reads) = (proxy.round_trips(), calls(&server, "hget"));
            let peeked = jobs.peek(500).await.unwrap();
            let found: Vec<usize> =
                peeked.iter().map(|peeked| String::from_utf8_lossy(&peeked.body).parse().unwrap()).collect();
            assert_eq!(found, (0..500).collect::<Vec<_>>());
            let (round_trips, reads) = (proxy.round_trips() - before, calls(&server, "hget") - reads);
            println!("a peek of 500 of {MESSAGES} in groups: {round_trips} round trips, {reads} reads");
            assert!((round_trips == 2 || time < 6) && reads <= 1500, "{round_trips}, {reads}");
            if round_trips == 2 {
                break;
            }
        }
    });
}

/// The memory of a message beyond its body, and what remains of those that ended.
#[test]
fn a_message_costs_some_hundred_bytes_and_leaves_nothing() {
    const MESSAGES: u64 = 20_000;
    let server = server::Redis::start();
    let used = || {
        let memory = server.command(&["INFO", "memory"]);
        let line = memory.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    block_on(async {
        let jobs = queue(&connect(&server).await, "jobs");
        send(&*jobs, [Message::new("warm")]).await;
        let keys = || server.command(&["DBSIZE"]).parse::<u64>().unwrap();
        jobs.purge().await.unwrap();
        let (before, keys_before) = (used(), keys());
        let each = |now: u64| now.saturating_sub(before) / MESSAGES;
        for _ in 0..MESSAGES / 1000 {
            send(&*jobs, vec![Message::new(vec![7; 100]); 1000]).await;
        }
        let waiting = each(used());
        let mut taken = Vec::new();
        for _ in 0..MESSAGES / 1000 {
            taken.extend(take(&*jobs, 1000, HOUR).await);
        }
        let in_flight = each(used());
        println!("bytes of a message of 100 bytes: {waiting} visible, {in_flight} in flight");
        assert!(waiting < 100 + 150 && in_flight < 100 + 400, "{waiting}, {in_flight}");
        let settled = taken.into_iter().map(|taken| (taken.receipt, Settle::Complete)).collect();
        assert!(jobs.settle(settled).await.unwrap().iter().all(Result::is_ok));
        assert_eq!(keys(), keys_before, "a key remains");
        // The server's own buffers grew, too.
        assert!(each(used()) < 50, "{} bytes a message remain", each(used()));
    });
}

/// The time from a send of one handle until another one has the message for which it waits.
#[test]
fn a_message_reaches_a_waiting_receiver_of_another_handle_within_milliseconds() {
    let config = config(server::Redis::shared().port());
    block_on(async {
        let (one, two) = (Redis::connect(config.clone()).await.unwrap(), Redis::connect(config).await.unwrap());
        let (sends, receives) = (queue(&one, "jobs"), queue(&two, "jobs"));
        let mut times = Vec::new();
        for _ in 0..40 {
            let receives = receives.clone();
            let waits = tokio::spawn(async move {
                let taken = receives.receive(Receive::new(1, HOUR).wait(HOUR)).await.unwrap().remove(0);
                (Instant::now(), taken.receipt)
            });
            crate::server::pass(MS(30)).await;
            let sent = Instant::now();
            sends.send_one(Message::new("a")).await.unwrap();
            let (received, receipt) = waits.await.unwrap();
            times.push(received - sent);
            sends.complete(&receipt).await.unwrap();
        }
        times.sort_unstable();
        println!("from the send to the receiver: median {:?}, longest {:?}", times[20], times[39]);
        assert!(times[20] < MS(500), "{times:?}");
        // Of 40 times the longest is the 99th percentile: no message waited for a poll.
        assert!(times[39] < HOUR / 4, "{times:?}");
    });
}
