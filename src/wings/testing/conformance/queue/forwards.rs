//! Forwards: the end of a delivery and the sending of other messages in one step.
use super::*;

/// Returns a queue that the backend can forward to, and its address; `None` if it cannot forward.
fn target(fixture: &Fixture<dyn Queue>) -> Option<(Arc<dyn Queue>, Address)> {
    if !fixture.port().capabilities().has(Capability::Forward) {
        return None;
    }
    let queue = fixture.neighbour().unwrap_or_else(|| dead(fixture.port()));
    let address = queue.address();
    Some((queue, address.unwrap_or_else(|| panic!("the fixture needs a neighbour with an address"))))
}

/// Asserts that the forward of this delivery is refused as `kind`, and that it continues.
async fn assert_refused(
    queue: &dyn Queue,
    delivery: &Delivery,
    messages: Vec<(Address, Message)>,
    kind: PortErrorKind,
) {
    let before = ok(queue.depth().await);
    let error = queue.forward(&delivery.receipt, messages).await.expect_err("the forward is invalid");
    assert_eq!(error.backend().map(crate::port::PortError::kind), Some(kind), "{error}");
    assert_eq!(ok(queue.depth().await), before, "the delivery continues");
    ok(queue.extend(&delivery.receipt, MINUTE).await);
}

// Guarantee: queue 13.
/// A queue without the capability refuses a forward, also one without messages, and the delivery
/// continues. Other settlements of the request are made.
pub async fn a_queue_that_cannot_forward_refuses_it(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    if queue.capabilities().has(Capability::Forward) {
        return;
    }
    send(queue, &["a", "b"]).await;
    let taken = take(queue, 2, MINUTE).await;
    let address = queue.address().unwrap_or_else(|| Address::new("another backend"));
    let message = (address, Message::new("c"));
    assert_refused(queue, &taken[0], vec![message.clone()], PortErrorKind::Unsupported).await;
    assert_refused(queue, &taken[0], Vec::new(), PortErrorKind::Unsupported).await;
    let both =
        vec![(taken[0].receipt.clone(), Settle::forward([message])), (taken[1].receipt.clone(), Settle::Complete)];
    let settled = ok(queue.settle(both).await);
    assert!(settled.len() == 2 && settled[0].is_err() && settled[1].is_ok(), "{settled:?}");
    ok(queue.complete(&taken[0].receipt).await);
    assert_eq!(ok(queue.depth().await).total(), 0);
}

// Guarantee: queue 12.
/// A forwarded delivery is gone, and its messages are in the other queue, in order, with their
/// headers and as new messages.
pub async fn a_forward_ends_the_delivery_and_sends_its_messages(fixture: &Fixture<dyn Queue>) {
    let Some((target, address)) = target(fixture) else { return };
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let _earlier = one(queue, a_while()).await;
    fixture.pass(a_while() * 2).await;
    let delivery = one(fixture.other(), MINUTE).await;
    let messages = [Message::new("b").header("step", "1"), Message::new("c")];
    ok(fixture.other().forward(&delivery.receipt, messages.map(|message| (address.clone(), message))).await);
    assert_eq!(ok(queue.depth().await).total(), 0);
    assert!(queue.complete(&delivery.receipt).await.is_err_and(|e| e.is_lease_lost()), "the receipt is old");
    let taken = take(&*target, 10, MINUTE).await;
    assert_eq!(bodies(&taken), ["b", "c"]);
    assert_eq!(taken[0].headers.get("step").map(String::as_str), Some("1"));
    assert!(taken.iter().all(|taken| (taken.deliveries, taken.attempts) == (1, 0) && taken.reason.is_none()));
    assert!(taken.iter().all(|taken| taken.age < MINUTE / 2));
    if fixture.is_on_manual_time() {
        fixture.pass(MINUTE * 2).await;
    }
    assert_eq!(take(queue, 10, MINUTE).await, [], "it does not come back");
}

// Guarantee: queue 12.
/// A forward of no messages ends the delivery.
pub async fn a_forward_without_messages_completes(fixture: &Fixture<dyn Queue>) {
    let Some((target, _)) = target(fixture) else { return };
    let queue = fixture.port();
    send(queue, &["a"]).await;
    ok(queue.forward(&one(queue, MINUTE).await.receipt, []).await);
    assert_eq!((ok(queue.depth().await).total(), ok(target.depth().await).total()), (0, 0));
}

// Guarantee: queue 13.
/// The receipt of an earlier delivery, or of a message that ended, sends nothing.
pub async fn an_old_receipt_forwards_nothing(fixture: &Fixture<dyn Queue>) {
    let Some((target, address)) = target(fixture) else { return };
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let old = one(queue, a_while()).await.receipt;
    fixture.pass(a_while() + a_while() / 10).await;
    let current = one(fixture.other(), MINUTE).await.receipt;
    let messages = || [(address.clone(), Message::new("b"))];
    assert!(queue.forward(&old, messages()).await.is_err_and(|e| e.is_lease_lost()), "the receipt is old");
    assert_eq!(ok(target.depth().await).total(), 0);
    assert_eq!(ok(queue.depth().await).in_flight, 1);
    ok(queue.forward(&current, messages()).await);
    assert!(queue.forward(&current, messages()).await.is_err_and(|e| e.is_lease_lost()), "the message ended");
    assert_eq!(ok(target.depth().await).total(), 1);
}

// Guarantee: queue 13.
/// One address of another backend among others is refused before anything is sent.
pub async fn a_forward_to_another_backend_changes_nothing(fixture: &Fixture<dyn Queue>) {
    let Some((target, address)) = target(fixture) else { return };
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let delivery = one(queue, MINUTE).await;
    // The address of a queue in a file or on a server has a text; no other has it with this end.
    let foreign = address.as_text().map_or_else(|| "another backend".to_owned(), |text| format!("another {text}"));
    let messages = vec![(address, Message::new("b")), (Address::new(foreign), Message::new("c"))];
    assert_refused(queue, &delivery, messages, PortErrorKind::Unsupported).await;
    assert_eq!(ok(target.depth().await).total(), 0);
    ok(queue.complete(&delivery.receipt).await);
}

// Guarantee: queue 13.
/// A message that `send` would refuse, or too many of them, are refused before any is sent.
pub async fn a_forward_of_an_invalid_message_changes_nothing(fixture: &Fixture<dyn Queue>) {
    let Some((target, address)) = target(fixture) else { return };
    let (queue, can) = (fixture.port(), fixture.port().capabilities());
    send(queue, &["a"]).await;
    let delivery = one(queue, MINUTE).await;
    let to = |message| (address.clone(), message);
    if can.max_value() < 1 << 30 {
        let large = Message::new(vec![0; can.max_value() + 1]);
        let messages = vec![to(Message::new("small")), to(large)];
        assert_refused(queue, &delivery, messages, PortErrorKind::Invalid).await;
    }
    if can.max_batch() < 1 << 20 {
        let messages = vec![to(Message::new("one of many")); can.max_batch() + 1];
        assert_refused(queue, &delivery, messages, PortErrorKind::Invalid).await;
    }
    if can.has(Capability::Groups) {
        let messages = vec![to(Message::new("small")), to(Message::new("b").group(""))];
        assert_refused(queue, &delivery, messages, PortErrorKind::Invalid).await;
    }
    assert_eq!(ok(target.depth().await).total(), 0);
    ok(queue.complete(&delivery.receipt).await);
}

// Guarantee: queue 12.
/// A message that is forwarded to its own queue and group is delivered after the others of the
/// group.
pub async fn a_queue_forwards_to_itself_behind_its_group(fixture: &Fixture<dyn Queue>) {
    let (queue, can) = (fixture.port(), fixture.port().capabilities());
    let Some(own) = queue.address().filter(|_| can.has(Capability::Forward)) else { return };
    assert_eq!(fixture.other().address().as_ref(), Some(&own), "all handles have one address");
    let of = |body: &'static str| match can.has(Capability::Groups) {
        true => Message::new(body).group("g"),
        false => Message::new(body),
    };
    ok(queue.send(vec![of("a1"), of("b")]).await);
    let first = ok(queue.receive(Receive::new(1, MINUTE)).await).remove(0);
    let expected = if &first.body[..] == b"a1" { ["b", "c"] } else { ["a1", "c"] };
    ok(queue.forward(&first.receipt, [(own, of("c"))]).await);
    let mut order = Vec::new();
    while let Some(taken) = take(fixture.other(), 1, MINUTE).await.pop() {
        order.extend(bodies(std::slice::from_ref(&taken)));
        ok(queue.complete(&taken.receipt).await);
    }
    assert_eq!(order, expected);
}

// Guarantee: queue 12.
/// A message can be forwarded to the dead letters, where it has no reason, and from there to the
/// queue.
pub async fn a_queue_forwards_to_its_dead_letters_and_back(fixture: &Fixture<dyn Queue>) {
    let (queue, letters) = (fixture.port(), dead(fixture.port()));
    let forwards = queue.capabilities().has(Capability::Forward);
    let Some(own) = queue.address().filter(|_| forwards) else { return };
    let address = letters.address().unwrap_or_else(|| panic!("the dead letters have no address"));
    assert_ne!(address, own);
    assert!(letters.capabilities().has(Capability::Forward), "the dead letters cannot forward");
    send(queue, &["a"]).await;
    ok(queue.forward(&one(queue, MINUTE).await.receipt, [(address, Message::new("b"))]).await);
    let letter = one(&*dead(fixture.other()), MINUTE).await;
    assert_eq!((&letter.body[..], letter.reason), (&b"b"[..], None));
    ok(letters.forward(&letter.receipt, [(own, Message::new("c"))]).await);
    assert_eq!(ok(letters.depth().await).total(), 0);
    assert_eq!(bodies(&take(queue, 10, MINUTE).await), ["c"]);
}

// Guarantee: queue 12.
/// A duplicate of an earlier message, or of one before it in the forward, is not enqueued; the
/// delivery ends.
pub async fn a_duplicate_counts_as_forwarded(fixture: &Fixture<dyn Queue>) {
    let Some((target, address)) = target(fixture) else { return };
    let queue = fixture.port();
    if !target.capabilities().has(Capability::Deduplication) {
        return;
    }
    let message = |body: &'static str, id: &str| Message::new(body).deduplicate(id);
    ok(target.send_one(message("1", "first")).await);
    send(queue, &["a", "b"]).await;
    let taken = take(queue, 2, MINUTE).await;
    ok(queue.forward(&taken[0].receipt, [(address.clone(), message("2", "first"))]).await);
    let messages = [message("3", "second"), message("4", "second"), message("5", "first")];
    ok(queue.forward(&taken[1].receipt, messages.map(|message| (address.clone(), message))).await);
    assert_eq!(ok(queue.depth().await).total(), 0);
    // Those that were forwarded are known to later sends.
    ok(target.send_one(message("6", "second")).await);
    assert_eq!(bodies(&take(&*target, 10, MINUTE).await), ["1", "3"]);
}

// Guarantee: queue 12.
/// Forwarded messages of one group are delivered one at a time in order, and a delayed one after
/// its delay.
pub async fn forwarded_messages_have_their_groups_and_delays(fixture: &Fixture<dyn Queue>) {
    let Some((target, address)) = target(fixture) else { return };
    let (queue, can) = (fixture.port(), target.capabilities());
    let to = |message| (address.clone(), message);
    send(queue, &["a", "b"]).await;
    let taken = take(queue, 2, MINUTE).await;
    if can.has(Capability::Groups) {
        let messages = ["1", "2"].map(|body| to(Message::new(body).group("g")));
        ok(queue.forward(&taken[0].receipt, messages).await);
        let first = take(&*target, 10, MINUTE).await;
        assert_eq!((bodies(&first), first[0].group.as_deref()), (vec!["1".to_owned()], Some("g")));
        ok(target.complete(&first[0].receipt).await);
        ok(target.complete(&one(&*target, MINUTE).await.receipt).await);
    }
    if can.has(Capability::Delay) {
        ok(queue.forward(&taken[1].receipt, [to(Message::new("late").delay(a_while()))]).await);
        assert_eq!(take(&*target, 10, MINUTE).await, []);
        fixture.pass(a_while() + a_while() / 10).await;
        assert_eq!(bodies(&take(&*target, 10, MINUTE).await), ["late"]);
    }
}

// Guarantee: queue 12.
/// The messages of one forward may go to different queues: each has its own.
pub async fn one_forward_reaches_several_queues(fixture: &Fixture<dyn Queue>) {
    let Some((target, address)) = target(fixture) else { return };
    let queue = fixture.port();
    let Some(own) = queue.address() else { return };
    send(queue, &["a"]).await;
    let delivery = one(queue, MINUTE).await;
    let to = |address: &Address, body: &'static str| (address.clone(), Message::new(body));
    let messages = [to(&address, "1"), to(&own, "2"), to(&address, "3"), to(&own, "4")];
    ok(queue.forward(&delivery.receipt, messages).await);
    assert_eq!(bodies(&take(&*target, 10, MINUTE).await), ["1", "3"]);
    assert_eq!(bodies(&take(queue, 10, MINUTE).await), ["2", "4"]);
}

// Guarantee: queue 13.
/// Valid, invalid and old forwards in one request each have their own result, beside other
/// settlements.
pub async fn forwards_are_answered_one_by_one(fixture: &Fixture<dyn Queue>) {
    let Some((target, address)) = target(fixture) else { return };
    let queue = fixture.port();
    send(queue, &["a", "b", "c", "d"]).await;
    let mut taken = take(queue, 4, MINUTE).await;
    taken.sort_by(|one, other| one.body.cmp(&other.body));
    let receipts: Vec<_> = taken.into_iter().map(|taken| taken.receipt).collect();
    ok(queue.complete(&receipts[0]).await);
    let forward = |address: &Address, body: &'static str| Settle::forward([(address.clone(), Message::new(body))]);
    let hows = [
        forward(&address, "1"),
        forward(&Address::new("another backend"), "2"),
        forward(&address, "3"),
        Settle::Complete,
    ];
    let settled = ok(queue.settle(receipts.iter().cloned().zip(hows).collect()).await);
    let ended: Vec<_> = settled.iter().map(Result::is_ok).collect();
    assert_eq!(ended, [false, false, true, true]);
    assert!(settled[0].as_ref().is_err_and(QueueError::is_lease_lost), "{settled:?}");
    assert_eq!(bodies(&take(&*target, 10, MINUTE).await), ["3"]);
    ok(queue.abandon(&receipts[1], Duration::ZERO).await);
    assert_eq!(bodies(&take(queue, 10, MINUTE).await), ["b"]);
}

// Guarantee: queue 9, 13.
/// A forward of more messages than a full queue has room for sends none, and its delivery
/// continues. Other settlements of the request are made.
pub async fn a_full_target_refuses_a_forward_alone(fixture: &Fixture<dyn Queue>) {
    let (queue, can) = (fixture.port(), fixture.port().capabilities());
    let (Some(bound), Some(own)) = (fixture.bound(), queue.address()) else { return };
    if !can.has(Capability::Forward) {
        return;
    }
    send(queue, &["a", "b"]).await;
    for taken in take(queue, 2, MINUTE).await {
        ok(queue.dead_letter(&taken.receipt, "no").await);
    }
    let mut sent = 0;
    while sent < bound - 1 {
        let messages = (bound - 1 - sent).min(can.max_batch()).min(1_000);
        ok(queue.send(vec![Message::new("earlier"); messages]).await);
        sent += messages;
    }
    let letters = dead(queue);
    let taken = take(&*letters, 2, MINUTE).await;
    let to_itself = |body: &'static str| (own.clone(), Message::new(body));
    let two = Settle::forward([to_itself("c"), to_itself("d")]);
    let both = vec![(taken[0].receipt.clone(), two), (taken[1].receipt.clone(), Settle::Complete)];
    let settled = ok(letters.settle(both).await);
    assert!(settled.len() == 2 && settled[1].is_ok(), "{settled:?}");
    let Err(error) = &settled[0] else { panic!("more messages were accepted than the queue has room for") };
    let kind = error.backend().map(crate::port::PortError::kind);
    assert_eq!((error.class(), kind), (ErrorClass::Throttled, Some(PortErrorKind::Full)), "{error}");
    assert_eq!(ok(queue.depth().await).total(), bound as u64 - 1, "a part was sent");
    ok(letters.extend(&taken[0].receipt, MINUTE).await);
    ok(letters.forward(&taken[0].receipt, [to_itself("e")]).await);
    assert_eq!((ok(letters.depth().await).total(), ok(queue.depth().await).total()), (0, bound as u64));
    // The message that ends makes room for one.
    let held = one(queue, MINUTE).await;
    let messages = vec![to_itself("f"), to_itself("g")];
    assert_refused(queue, &held, messages, PortErrorKind::Full).await;
    ok(queue.forward(&held.receipt, [to_itself("h")]).await);
    assert_eq!(ok(queue.depth().await).total(), bound as u64);
}

// Guarantee: queue 5, 12.
/// A receiver that waits at the target gets a forwarded message; with `Push`, long before its wait
/// is over.
pub async fn a_waiting_receiver_gets_what_is_forwarded(fixture: &Fixture<dyn Queue>) {
    let Some((target, address)) = target(fixture) else { return };
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let delivery = one(queue, MINUTE).await;
    let waits = async { ok(target.receive(Receive::new(5, MINUTE).wait(MINUTE)).await) };
    let forwards = async {
        fixture.pass(a_while() / 10).await;
        ok(queue.forward(&delivery.receipt, [(address, Message::new("b"))]).await);
        let told = target.capabilities().has(Capability::Push);
        for passes in 0u32.. {
            assert!(
                !told || a_while() * passes < MINUTE / 2,
                "the backend states `Push`, but did not wake the receiver"
            );
            fixture.pass(a_while()).await;
        }
    };
    match race(waits, forwards).await {
        crate::race::First::One(taken) => assert_eq!(bodies(&taken), ["b"]),
        crate::race::First::Other(()) => {}
    }
}

// Guarantee: queue 12.
/// Eight workers forward messages between two queues, some of them one message twice: at the end
/// each message is in one of the two, once.
pub async fn of_many_forwarders_none_loses_or_doubles_a_message(fixture: &Fixture<dyn Queue>) {
    const MESSAGES: usize = 40;
    let Some((target, address)) = target(fixture) else { return };
    let back = fixture.port().address().filter(|_| target.capabilities().has(Capability::Forward));
    let all: Vec<_> = (0..MESSAGES).map(|i| Message::new(i.to_string())).collect();
    for some in all.chunks(fixture.port().capabilities().max_batch().clamp(1, MESSAGES)) {
        ok(fixture.port().send(some.to_vec()).await);
    }
    let workers: Vec<_> = (0..8)
        .map(|i| {
            let queue = if i % 2 == 0 { fixture.shared() } else { fixture.shared_other() };
            let (from, to) = match (&back, i >= 5) {
                (Some(back), true) => (target.clone(), back.clone()),
                _ => (queue, address.clone()),
            };
            tokio::task::spawn(async move {
                for _ in 0..30 {
                    let taken = ok(from.receive(Receive::new(3, MINUTE)).await);
                    let hows = taken.iter().map(|taken| {
                        let message = (to.clone(), Message::new(taken.body.clone()));
                        (taken.receipt.clone(), Settle::forward([message]))
                    });
                    // Two settlements of one receipt: either may be the one that takes effect.
                    let hows: Vec<_> = hows.flat_map(|how| [how.clone(), how]).collect();
                    let settled = ok(from.settle(hows).await);
                    let ended: Vec<_> = settled.iter().map(Result::is_ok).collect();
                    assert!(ended.chunks(2).all(|pair| pair.len() == 2 && pair[0] != pair[1]), "{settled:?}");
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap_or_else(|e| panic!("a worker: {e}"));
    }
    let mut all = take(fixture.port(), MESSAGES + 1, MINUTE).await;
    all.extend(take(&*target, MESSAGES + 1, MINUTE).await);
    let mut numbers: Vec<usize> = bodies(&all).iter().filter_map(|body| body.parse().ok()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..MESSAGES).collect::<Vec<_>>());
}
