//! Waiting, refusals, figures, and many receivers at once.
use super::*;

/// Good and old receipts in one request: each has its own answer, in order.
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

// Guarantee: queue 5.
/// Who waits gets what is sent meanwhile, by another door; where `Push` is stated, long before its wait is over.
pub async fn a_waiting_receiver_is_told(fixture: &Fixture<dyn Queue>) {
    let receiver = fixture.shared();
    let waits = async { ok(receiver.receive(Receive::new(5, MINUTE).wait(MINUTE)).await) };
    let sends = async {
        fixture.pass(SHORT / 10).await;
        send(fixture.other(), &["a"]).await;
        let told = receiver.capabilities().has(Capability::Push);
        // Where the doors cannot call each other, the receiver looks now and then.
        for passes in 0u32.. {
            assert!(!told || SHORT * passes < MINUTE / 2, "it states push, and did not tell who waits");
            fixture.pass(SHORT).await;
        }
    };
    match race(waits, sends).await {
        crate::race::First::One(taken) => assert_eq!(bodies(&taken), ["a"]),
        crate::race::First::Other(()) => {}
    }
}

// Guarantee: queue 5.
/// Who waits gets a message whose time is over, too.
pub async fn a_waiting_receiver_sees_what_comes_back(fixture: &Fixture<dyn Queue>) {
    send(fixture.port(), &["a"]).await;
    let _held = one(fixture.other(), SHORT).await;
    let receiver = fixture.shared();
    let waits = async { ok(receiver.receive(Receive::new(5, MINUTE).wait(MINUTE)).await) };
    let passes = async {
        loop {
            fixture.pass(SHORT / 4).await;
        }
    };
    match race(waits, passes).await {
        crate::race::First::One(taken) => assert_eq!(taken[0].deliveries, 2),
        crate::race::First::Other(()) => {}
    }
}

// Guarantee: queue 5.
/// A wait in which nothing comes ends with nothing.
pub async fn a_wait_that_is_over_gives_nothing(fixture: &Fixture<dyn Queue>) {
    let waits = async { ok(fixture.port().receive(Receive::new(1, MINUTE).wait(SHORT)).await) };
    let passes = async {
        loop {
            fixture.pass(SHORT / 4).await;
        }
    };
    match race(waits, passes).await {
        crate::race::First::One(taken) => assert_eq!(taken, []),
        crate::race::First::Other(()) => {}
    }
}

// Guarantee: queue 6.
/// A receive that is dropped while it waits takes nothing with it.
pub async fn a_dropped_receive_loses_nothing(fixture: &Fixture<dyn Queue>) {
    for _ in 0..5 {
        let waits = fixture.port().receive(Receive::new(1, SHORT).wait(MINUTE));
        race(fixture.pass(SHORT / 20), waits).await;
    }
    let waits = fixture.port().receive(Receive::new(1, SHORT).wait(MINUTE));
    race(send(fixture.other(), &["a"]), waits).await;
    // If it had been taken, it is back by now.
    fixture.pass(SHORT * 2).await;
    assert_eq!(bodies(&take(fixture.port(), 5, MINUTE).await), ["a"]);
}

/// Bodies are any bytes; headers, groups and ids any text.
pub async fn any_bytes_and_texts_come_through(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    let all: Vec<u8> = (0..=255).collect();
    ok(queue.send_one(Message::new(all.clone())).await);
    ok(queue.send_one(Message::new("")).await);
    let odd = ["a/b", "%", "'; DROP TABLE messages; --", "\u{0}", "日本 \u{10ffff}", "\"\n\t"];
    let message = odd.iter().fold(Message::new("odd"), |message, text| message.header(*text, *text));
    ok(queue.send_one(message).await);
    let mut taken = take(fixture.other(), 10, MINUTE).await;
    if !queue.capabilities().has(Capability::Ordered) {
        // The empty body was sorted before the other two.
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
/// A body above the stated maximum, or more messages than one request takes, are refused before any is accepted.
pub async fn what_is_too_large_is_refused_whole(fixture: &Fixture<dyn Queue>) {
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

/// No message at all, hidden for no time: refused by name.
pub async fn what_makes_no_sense_is_refused(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let refused = |result: Result<(), QueueError>, field: &str| {
        let error = result.expect_err("it makes no sense").to_string();
        assert!(error.contains(field), "{error}");
    };
    refused(queue.receive(Receive::new(0, MINUTE)).await.map(drop), "max");
    refused(queue.receive(Receive::new(1, Duration::ZERO)).await.map(drop), "visibility");
    let delivery = one(queue, MINUTE).await;
    refused(queue.extend(&delivery.receipt, Duration::ZERO).await, "visibility");
    ok(queue.complete(&delivery.receipt).await);
    assert_eq!(ok(queue.send(Vec::new()).await), []);
}

/// Visible, delayed, in flight.
pub async fn depth_counts_by_what_is_waited_for(fixture: &Fixture<dyn Queue>) {
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

/// The longest delay is a delay, and the longest visibility hides: neither makes a message visible,
/// or settled for good.
pub async fn durations_without_end_hide_for_ever(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    let delays = queue.capabilities().has(Capability::Delay);
    if delays {
        ok(queue.send_one(Message::new("delayed").delay(Duration::MAX)).await);
    }
    send(queue, &["a", "b", "c"]).await;
    let taken = take(queue, 3, Duration::MAX).await;
    assert_eq!(bodies(&taken), ["a", "b", "c"]);
    ok(queue.extend(&taken[0].receipt, Duration::MAX).await);
    fixture.pass(SHORT * 2).await;
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
/// A backend may give fewer messages than were asked for, so that a response has a bound in bytes;
/// never none where there are some.
pub async fn messages_that_are_large_together_all_come(fixture: &Fixture<dyn Queue>) {
    const MESSAGES: usize = 12;
    let (queue, size) = (fixture.port(), fixture.port().capabilities().max_value().min(3 << 20));
    for i in 0..MESSAGES {
        ok(queue.send_one(Message::new(vec![b'a' + i as u8; size])).await);
    }
    let mut firsts = Vec::new();
    while firsts.len() < MESSAGES {
        let taken = take(fixture.other(), MESSAGES, MINUTE).await;
        assert!(!taken.is_empty(), "{} of {MESSAGES} came", firsts.len());
        assert!(taken.iter().all(|delivery| delivery.body.len() == size));
        firsts.extend(taken.iter().map(|delivery| delivery.body[0]));
    }
    assert_eq!(firsts, (b'a'..b'a' + MESSAGES as u8).collect::<Vec<_>>());
}

/// A peek shows the first, hidden ones too, and takes none.
pub async fn a_peek_takes_nothing(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a", "b", "c"]).await;
    let held = one(queue, MINUTE).await;
    assert_eq!(ok(fixture.other().peek(2).await).len(), 2);
    let mut peeked = ok(fixture.other().peek(3).await);
    if !queue.capabilities().has(Capability::Ordered) {
        peeked.sort_by(|one, other| one.body.cmp(&other.body));
    }
    assert_eq!((&peeked[0].id, peeked[0].hidden, peeked[0].deliveries), (&held.id, true, 1));
    assert_eq!((&peeked[1].body[..], peeked[1].hidden, peeked[1].deliveries), (&b"b"[..], false, 0));
    assert_eq!(bodies(&take(queue, 10, MINUTE).await), ["b", "c"]);
}

/// A purge deletes hidden and delayed ones too, and leaves dead letters.
pub async fn a_purge_leaves_nothing_but_dead_letters(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a", "b", "c"]).await;
    let taken = take(queue, 2, MINUTE).await;
    ok(queue.dead_letter(&taken[0].receipt, "x").await);
    assert_eq!(ok(fixture.other().purge().await), 2);
    assert_eq!(ok(queue.depth().await).total(), 0);
    assert!(queue.complete(&taken[1].receipt).await.is_err_and(|e| e.is_lease_lost()));
    assert_eq!(ok(dead(queue).depth().await).total(), 1);
    send(queue, &["d"]).await;
    assert_eq!(bodies(&take(queue, 10, MINUTE).await), ["d"]);
}

// Guarantee: queue 2.
/// Receivers at two doors: no message is with two of them, and each is completed once.
pub async fn of_many_receivers_each_message_has_one(fixture: &Fixture<dyn Queue>) {
    const MESSAGES: usize = 200;
    for chunk in (0..MESSAGES).collect::<Vec<_>>().chunks(50) {
        let messages = chunk.iter().map(|i| Message::new(i.to_string())).collect();
        ok(fixture.port().send(messages).await);
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
/// Every handle on one queue has its identity, and no handle on another one has.
pub async fn a_queue_is_told_from_its_dead_letters_by_its_identity(fixture: &Fixture<dyn Queue>) {
    let identity = fixture.port().identity();
    assert!((1..=128).contains(&identity.len()), "{identity:?}");
    assert_eq!(fixture.port().identity(), identity, "it is another at the second look");
    assert_eq!(fixture.other().identity(), identity, "it is another by the other door");
    let letters = dead(fixture.port()).identity();
    assert_ne!(letters, identity);
    assert_eq!(dead(fixture.other()).identity(), letters);
}
