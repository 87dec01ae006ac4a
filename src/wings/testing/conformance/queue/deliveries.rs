//! Sending, receiving, settling and redelivery.
use super::*;

// Guarantee: queue 5.
/// A receive on an empty queue returns nothing, without a wait.
pub async fn an_empty_queue_gives_nothing_at_once(fixture: &Fixture<dyn Queue>) {
    assert_eq!(take(fixture.port(), 10, MINUTE).await, []);
    assert_eq!(ok(fixture.port().depth().await).total(), 0);
}

/// A message that one handle sends is received and completed by the other, and is then gone.
pub async fn a_sent_message_is_received_through_a_second_handle_and_completed(fixture: &Fixture<dyn Queue>) {
    let message = Message::new("body").header("kind", "test").header("empty", "");
    let id = ok(fixture.port().send_one(message).await);
    let delivery = one(fixture.other(), a_while()).await;
    assert_eq!((&delivery.id, &delivery.body[..], delivery.deliveries), (&id, &b"body"[..], 1));
    assert_eq!(delivery.headers.get("kind").map(String::as_str), Some("test"));
    assert_eq!((delivery.headers.len(), delivery.group, delivery.reason), (2, None, None));
    ok(fixture.other().complete(&delivery.receipt).await);
    assert_eq!(ok(fixture.port().depth().await).total(), 0);
    fixture.pass(a_while() * 2).await;
    assert_eq!(take(fixture.port(), 10, MINUTE).await, []);
}

// Guarantee: queue 4.
/// Messages are delivered first in, first out, within a request and between requests.
pub async fn messages_come_in_the_order_of_sending(fixture: &Fixture<dyn Queue>) {
    send(fixture.port(), &["1", "2", "3"]).await;
    send(fixture.other(), &["4", "5"]).await;
    let first = bodies(&take(fixture.port(), 2, MINUTE).await);
    let rest = bodies(&take(fixture.other(), 10, MINUTE).await);
    assert_eq!((first.len(), rest.len()), (2, 3));
    let mut all = [first, rest].concat();
    if !fixture.port().capabilities().has(Capability::Ordered) {
        all.sort_unstable();
    }
    assert_eq!(all, ["1", "2", "3", "4", "5"]);
}

// Guarantee: queue 2.
/// A message is hidden for the visibility time-out, then delivered with a higher count and a new
/// receipt.
pub async fn a_received_message_is_hidden_until_its_time_is_over(fixture: &Fixture<dyn Queue>) {
    send(fixture.port(), &["a"]).await;
    let first = one(fixture.port(), a_while()).await;
    assert_eq!(take(fixture.other(), 1, a_while()).await, []);
    fixture.pass(a_while() + a_while() / 10).await;
    let second = one(fixture.other(), a_while()).await;
    assert_eq!((second.id, second.deliveries), (first.id, 2));
    assert_ne!(second.receipt, first.receipt);
}

// Guarantee: queue 3.
/// A receipt of an earlier delivery, or of a settled message, is refused, and nothing is changed.
pub async fn an_old_receipt_can_do_nothing(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let old = one(queue, a_while()).await.receipt;
    fixture.pass(a_while() + a_while() / 10).await;
    let current = one(queue, MINUTE).await;
    let lost = |result: Result<(), QueueError>| assert!(result.is_err_and(|e| e.is_lease_lost()), "the receipt is old");
    lost(queue.complete(&old).await);
    lost(queue.abandon(&old, Duration::ZERO).await);
    lost(queue.extend(&old, MINUTE).await);
    lost(queue.dead_letter(&old, "too late").await);
    assert_eq!(take(queue, 1, MINUTE).await, [], "it is hidden still");
    ok(queue.complete(&current.receipt).await);
    lost(queue.complete(&current.receipt).await);
    lost(queue.extend(&current.receipt, MINUTE).await);
    assert_eq!(ok(dead(queue).depth().await).total(), 0);
}

// Guarantee: queue 2.
/// An extended message is hidden for the new duration, and its receipt stays valid.
pub async fn an_extended_message_stays_hidden(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let delivery = one(queue, a_while()).await;
    ok(queue.extend(&delivery.receipt, MINUTE).await);
    fixture.pass(a_while() * 2).await;
    assert_eq!(take(fixture.other(), 1, a_while()).await, []);
    ok(queue.complete(&delivery.receipt).await);
}

// Guarantee: queue 2.
/// An abandoned message returns at once, or after the requested delay; its receipt is invalid.
pub async fn an_abandoned_message_returns_after_its_delay(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let first = one(queue, MINUTE).await;
    ok(queue.abandon(&first.receipt, Duration::ZERO).await);
    assert!(queue.complete(&first.receipt).await.is_err_and(|e| e.is_lease_lost()));
    let second = one(fixture.other(), MINUTE).await;
    assert_eq!(second.deliveries, 2);
    ok(fixture.other().abandon(&second.receipt, a_while()).await);
    assert_eq!(take(queue, 1, MINUTE).await, []);
    fixture.pass(a_while() + a_while() / 10).await;
    assert_eq!(one(queue, MINUTE).await.deliveries, 3);
}

/// A delayed message is hidden until its delay is over; later messages overtake it.
pub async fn a_delayed_message_is_hidden_at_first(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    let sent = queue.send_one(Message::new("late").delay(a_while())).await;
    if !queue.capabilities().has(Capability::Delay) {
        return assert_unsupported(sent);
    }
    ok(sent);
    send(queue, &["now"]).await;
    assert_eq!(bodies(&take(queue, 10, MINUTE).await), ["now"]);
    fixture.pass(a_while() + a_while() / 10).await;
    assert_eq!(bodies(&take(fixture.other(), 10, MINUTE).await), ["late"]);
}

// Guarantee: queue 4.
/// No message of a group is visible behind a hidden one, or behind one that waits for its return.
/// Other groups are not blocked.
pub async fn a_group_is_handed_out_one_at_a_time_in_order(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    let of = |group: &str, body: &str| Message::new(body.to_owned()).group(group);
    if !queue.capabilities().has(Capability::Groups) {
        return assert_unsupported(queue.send_one(of("a", "a1")).await);
    }
    send_many(queue, vec![of("a", "a1"), of("a", "a2"), of("b", "b1"), Message::new("c")]).await;
    ok(queue.send_one(of("a", "a3").delay(a_while() * 4)).await);
    let first = take(queue, 10, a_while()).await;
    assert_eq!(bodies(&first), ["a1", "b1", "c"]);
    assert_eq!(first[0].group.as_deref(), Some("a"));
    ok(queue.abandon(&first[0].receipt, a_while()).await);
    assert_eq!(take(fixture.other(), 10, a_while()).await, [], "a1 waits for its return, and a2 for a1");
    fixture.pass(a_while() + a_while() / 10).await;
    let again = take(fixture.other(), 10, MINUTE).await;
    let a1 = again.iter().find(|d| &d.body[..] == b"a1").unwrap_or_else(|| panic!("a1 is back"));
    assert!(!bodies(&again).contains(&"a2".to_owned()));
    ok(queue.complete(&a1.receipt).await);
    let a2 = one(queue, MINUTE).await;
    assert_eq!(&a2.body[..], b"a2");
    ok(queue.dead_letter(&a2.receipt, "cannot").await);
    assert_eq!(take(queue, 10, MINUTE).await, [], "a3 has a delay of its own");
    fixture.pass(a_while() * 4).await;
    assert_eq!(bodies(&take(queue, 10, MINUTE).await), ["a3"]);
}

// Guarantee: queue 7.
/// A message with a known de-duplication id is accepted with the first one's id, and not enqueued.
pub async fn a_duplicate_is_accepted_once(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    let message = |body: &'static str| Message::new(body).deduplicate("order-1");
    let first = queue.send_one(message("a")).await;
    if !queue.capabilities().has(Capability::Deduplication) {
        return assert_unsupported(first);
    }
    let first = ok(first);
    assert_eq!(ok(fixture.other().send_one(message("b")).await), first);
    let twice = send_many(queue, vec![message("c"), Message::new("d").deduplicate("order-2")]).await;
    assert_eq!(twice[0], first);
    let taken = take(queue, 10, MINUTE).await;
    assert_eq!(bodies(&taken), ["a", "d"]);
    ok(queue.complete(&taken[0].receipt).await);
    assert_eq!(ok(queue.send_one(message("e")).await), first, "also when it was handled meanwhile");
    assert_eq!(take(queue, 10, MINUTE).await, []);
}

// Guarantee: queue 7.
/// A message with a known de-duplication id and the same group is accepted once; the group keeps
/// its order.
pub async fn a_duplicate_of_one_group_is_accepted_once(fixture: &Fixture<dyn Queue>) {
    let (queue, can) = (fixture.port(), fixture.port().capabilities());
    if !can.has(Capability::Deduplication) || !can.has(Capability::Groups) {
        return;
    }
    let of = |group: u32, body: &str| Message::new(body.to_owned()).group(group.to_string()).deduplicate(body);
    for group in 0..8 {
        let one = of(group, &format!("{group}-1"));
        let first = ok(queue.send_one(one.clone()).await);
        ok(queue.send_one(of(group, &format!("{group}-2"))).await);
        assert_eq!(ok(fixture.other().send_one(one).await), first);
    }
    assert_eq!(ok(queue.depth().await).total(), 16);
    for turn in 1..=2 {
        let taken = take(queue, 20, MINUTE).await;
        let expected: Vec<_> = (0..8).map(|group| format!("{group}-{turn}")).collect();
        assert_eq!(bodies(&taken), expected);
        for delivery in taken {
            ok(queue.complete(&delivery.receipt).await);
        }
    }
}

// Guarantee: queue 8.
/// A dead letter leaves the queue, and keeps its id, its reason and its count.
pub async fn a_dead_letter_is_in_one_queue_with_its_reason(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    ok(queue.send_one(Message::new("bad").header("h", "v")).await);
    let delivery = one(queue, MINUTE).await;
    ok(queue.dead_letter(&delivery.receipt, "not JSON: \"é\"").await);
    assert_eq!(ok(queue.depth().await).total(), 0);
    let letters = dead(fixture.other());
    let peeked = ok(letters.peek(10).await);
    assert_eq!(peeked.len(), 1);
    assert_eq!((&peeked[0].id, peeked[0].deliveries), (&delivery.id, 1));
    let letter = one(&*letters, MINUTE).await;
    assert_eq!((&letter.id, &letter.body[..]), (&delivery.id, &b"bad"[..]));
    assert_eq!(letter.reason.as_deref(), Some("not JSON: \"é\""));
    assert_eq!(letter.headers.get("h").map(String::as_str), Some("v"));
    assert!(letters.dead_letters().is_none(), "dead letters have none of their own");
    assert!(letters.dead_letter(&letter.receipt, "again").await.is_err());
    ok(letters.complete(&letter.receipt).await);
    assert_eq!(ok(dead(queue).depth().await).total(), 0);
}

/// A dead letter is sent to the queue again, and then completed among the dead letters.
pub async fn a_dead_letter_can_be_sent_again(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["poison"]).await;
    let delivery = one(queue, MINUTE).await;
    ok(queue.dead_letter(&delivery.receipt, "the service was away").await);
    let letters = dead(queue);
    let letter = one(&*letters, MINUTE).await;
    ok(queue.send_one(Message::new(letter.body.clone())).await);
    ok(letters.complete(&letter.receipt).await);
    let again = one(fixture.other(), MINUTE).await;
    assert_eq!((&again.body[..], again.deliveries, again.reason), (&b"poison"[..], 1, None));
    ok(queue.complete(&again.receipt).await);
}
