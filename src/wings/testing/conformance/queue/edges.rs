//! Waiting, refusals, counts, and concurrent receivers.
use bytes::Bytes;

use super::*;

/// Valid and old receipts in one request each have their own result, in order.
pub async fn settlements_are_answered_one_by_one(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a", "b", "c"]).await;
    let taken = take(queue, 3, MINUTE).await;
    let old = taken[0].receipt.clone();
    ok(queue.complete(&old).await);
    let settled = ok(queue
        .settle(vec![
            (taken[1].receipt.clone(), Settle::abandon(Duration::ZERO)),
            (old, Settle::Complete),
            (taken[2].receipt.clone(), Settle::dead_letter("c")),
        ])
        .await);
    assert!(settled[0].is_ok() && settled[2].is_ok());
    assert!(matches!(settled[1], Err(QueueError::LeaseLost)));
    assert_eq!(bodies(&take(queue, 10, MINUTE).await), ["b"]);
    assert_eq!(ok(dead(queue).depth().await).total(), 1);
    assert_eq!(ok(queue.settle(Vec::new()).await).len(), 0);
}

/// Bodies are any bytes; headers, groups and ids any text.
pub async fn any_bytes_and_texts_come_through(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    let all: Vec<u8> = (0..=255).collect();
    ok(queue.send_one(Message::new(all.clone())).await);
    ok(queue.send_one(Message::new("")).await);
    let odd = ["a/b", "%", "'; DROP TABLE messages; --", "\u{0}", "日本 \u{10ffff}", "\"\n\t", "Kind", "kind", " x "];
    let message = odd.iter().fold(Message::new("odd"), |message, text| message.header(*text, *text));
    ok(queue.send_one(message).await);
    let mut taken = take(fixture.other(), 10, MINUTE).await;
    if !queue.capabilities().has(Capability::Ordered) {
        // `take` sorted the empty body before the other two.
        taken.swap(0, 1);
    }
    assert_eq!((&taken[0].body[..], taken[1].body.len()), (&all[..], 0));
    assert!(odd.iter().all(|text| taken[2].headers.get(*text).is_some_and(|value| value == text)));
    if queue.capabilities().has(Capability::Groups) {
        for text in odd {
            ok(queue.send_one(Message::new("g").group(text)).await);
        }
        let groups: BTreeSet<_> = take(queue, 10, MINUTE).await.into_iter().filter_map(|d| d.group).collect();
        assert_eq!(groups, odd.iter().map(|text| (*text).to_owned()).collect());
    }
}

// Guarantee: queue 1.
/// A body above the stated maximum, or more messages than one request takes, are refused before any
/// is accepted.
pub async fn oversized_requests_are_refused_whole(fixture: &Fixture<dyn Queue>) {
    let (queue, can) = (fixture.port(), fixture.port().capabilities());
    let refused = |result: Result<_, QueueError>| {
        let error = result.expect_err("it is too large");
        assert_eq!(error.backend().map(crate::port::PortError::kind), Some(PortErrorKind::Invalid), "{error}");
    };
    if can.max_value() < 1 << 30 {
        let large = Message::new(vec![0; can.max_value() + 1]);
        refused(queue.send(vec![Message::new("small"), large]).await);
    }
    if can.max_batch() < 1 << 20 {
        refused(queue.send(vec![Message::new("one of many"); can.max_batch() + 1]).await);
    }
    assert_eq!(ok(queue.depth().await).total(), 0);
}

/// A receive of no messages and a zero visibility are refused, with the name of the argument.
pub async fn invalid_arguments_are_refused(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let refused = |result: Result<(), QueueError>, field: &str| {
        let error = result.expect_err("an invalid argument").to_string();
        assert!(error.contains(field), "{error}");
    };
    refused(queue.receive(Receive::new(0, MINUTE)).await.map(drop), "max");
    refused(queue.receive(Receive::new(1, Duration::ZERO)).await.map(drop), "visibility");
    let delivery = one(queue, MINUTE).await;
    refused(queue.extend(&delivery.receipt, Duration::ZERO).await, "visibility");
    ok(queue.complete(&delivery.receipt).await);
    assert_eq!(ok(queue.send(Vec::new()).await), []);
}

/// The depth counts visible, delayed and in-flight messages apart.
pub async fn depth_counts_visible_delayed_and_in_flight_messages(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a", "b", "c"]).await;
    let delays = queue.capabilities().has(Capability::Delay);
    if delays {
        ok(queue.send_one(Message::new("d").delay(MINUTE)).await);
    }
    let _held = one(queue, MINUTE).await;
    let depth = ok(fixture.other().depth().await);
    assert_eq!((depth.visible, depth.delayed, depth.in_flight), (2, u64::from(delays), 1));
}

/// The longest delay and the longest visibility hide a message; neither makes it visible, nor
/// settles it.
pub async fn infinite_durations_hide_messages_forever(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    let delays = queue.capabilities().has(Capability::Delay);
    if delays {
        ok(queue.send_one(Message::new("delayed").delay(Duration::MAX)).await);
    }
    send(queue, &["a", "b", "c"]).await;
    let taken = take(queue, 3, Duration::MAX).await;
    assert_eq!(bodies(&taken), ["a", "b", "c"]);
    ok(queue.extend(&taken[0].receipt, Duration::MAX).await);
    fixture.pass(a_while() * 2).await;
    assert_eq!(take(fixture.other(), 10, MINUTE).await, []);
    let depth = ok(fixture.other().depth().await);
    assert_eq!((depth.visible, depth.delayed, depth.in_flight), (0, u64::from(delays), 3));
    ok(queue.complete(&taken[0].receipt).await);
    ok(queue.abandon(&taken[1].receipt, Duration::MAX).await);
    assert_eq!(ok(queue.depth().await).visible, 0);
    ok(queue.abandon(&taken[2].receipt, Duration::ZERO).await);
    assert_eq!(bodies(&take(fixture.other(), 10, MINUTE).await), ["c"]);
}

// Guarantee: queue 5.
/// A backend may return fewer messages than requested, to bound a response in bytes, but never none
/// while some are visible.
pub async fn messages_that_are_large_together_all_come(fixture: &Fixture<dyn Queue>) {
    const MESSAGES: usize = 12;
    let (queue, size) = (fixture.port(), fixture.port().capabilities().max_value().min(3 << 20) - 10);
    let body = Bytes::from(vec![b'x'; size]);
    for i in 10..10 + MESSAGES {
        ok(queue.send_one(Message::new(body.clone()).header("number", i.to_string())).await);
    }
    let mut numbers: Vec<usize> = Vec::new();
    while numbers.len() < MESSAGES {
        let taken = take(fixture.other(), MESSAGES, MINUTE).await;
        assert!(!taken.is_empty(), "{} of {MESSAGES} came", numbers.len());
        assert!(taken.iter().all(|delivery| delivery.body == body));
        numbers.extend(taken.iter().filter_map(|delivery| delivery.headers.get("number")?.parse::<usize>().ok()));
    }
    if !queue.capabilities().has(Capability::Ordered) {
        numbers.sort_unstable();
    }
    assert_eq!(numbers, (10..10 + MESSAGES).collect::<Vec<_>>());
}

/// A peek returns the first messages, also hidden ones, and takes none.
pub async fn a_peek_takes_nothing(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a", "b", "c"]).await;
    let held = one(queue, MINUTE).await;
    assert_eq!(ok(fixture.other().peek(2).await).len(), 2);
    let peeked = ok(fixture.other().peek(3).await);
    assert_eq!(peeked.len(), 3);
    for peeked in peeked {
        let is_held = peeked.id == held.id;
        assert_eq!((peeked.hidden, peeked.deliveries), (is_held, u32::from(is_held)));
    }
    let mut all = bodies(&take(queue, 10, MINUTE).await);
    all.extend(bodies(&[held]));
    all.sort_unstable();
    assert_eq!(all, ["a", "b", "c"]);
}

/// A purge deletes hidden and delayed messages, too, and keeps dead letters.
pub async fn a_purge_leaves_nothing_but_dead_letters(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a", "b", "c"]).await;
    let taken = take(queue, 2, MINUTE).await;
    ok(queue.dead_letter(&taken[0].receipt, "x").await);
    let delays = queue.capabilities().has(Capability::Delay);
    if delays {
        ok(queue.send_one(Message::new("delayed").delay(MINUTE)).await);
    }
    assert_eq!(ok(fixture.other().purge().await), 2 + u64::from(delays));
    assert_eq!(ok(queue.depth().await).total(), 0);
    assert!(queue.complete(&taken[1].receipt).await.is_err_and(|e| e.is_lease_lost()));
    assert_eq!(ok(dead(queue).depth().await).total(), 1);
    send(queue, &["d"]).await;
    assert_eq!(bodies(&take(queue, 10, MINUTE).await), ["d"]);
}

// Guarantee: queue 2.
/// With receivers on two handles, each message has one receiver, and is completed once.
pub async fn of_many_receivers_each_message_has_one(fixture: &Fixture<dyn Queue>) {
    const MESSAGES: usize = 200;
    for chunk in (0..MESSAGES).collect::<Vec<_>>().chunks(50) {
        let messages = chunk.iter().map(|i| Message::new(i.to_string())).collect();
        send_many(fixture.port(), messages).await;
    }
    let receivers: Vec<_> = (0..8)
        .map(|i| {
            let queue = if i % 2 == 0 { fixture.shared() } else { fixture.shared_other() };
            tokio::task::spawn(async move {
                let mut done = Vec::new();
                loop {
                    let taken = take(&*queue, 1 + i, MINUTE).await;
                    if taken.is_empty() {
                        return done;
                    }
                    done.extend(bodies(&taken));
                    let all = taken.into_iter().map(|d| (d.receipt, Settle::Complete)).collect();
                    assert!(ok(queue.settle(all).await).into_iter().all(|settled| settled.is_ok()));
                }
            })
        })
        .collect();
    let mut done = Vec::new();
    for receiver in receivers {
        done.extend(receiver.await.unwrap_or_else(|e| panic!("a receiver: {e}")));
    }
    done.sort_unstable();
    let mut all: Vec<String> = (0..MESSAGES).map(|i| i.to_string()).collect();
    all.sort_unstable();
    assert_eq!(done, all);
    assert_eq!(ok(fixture.port().depth().await).total(), 0);
}

// Guarantee: queue 10.
/// All handles of one queue have the same identity, and handles of another queue have another.
pub async fn a_queue_is_told_from_its_dead_letters_by_its_identity(fixture: &Fixture<dyn Queue>) {
    let identity = fixture.port().identity();
    assert!((1..=128).contains(&identity.len()), "{identity:?}");
    assert_eq!(fixture.port().identity(), identity, "the identity changed between two reads");
    assert_eq!(fixture.other().identity(), identity, "the second handle has another identity");
    let letters = dead(fixture.port()).identity();
    assert_ne!(letters, identity);
    assert_eq!(dead(fixture.other()).identity(), letters);
    if let Some(neighbour) = fixture.neighbour() {
        assert!(![identity, letters].contains(&neighbour.identity()), "another queue has the same identity");
    }
}
