//! Dead letters as a queue of their own.
use super::*;

// Guarantee: queue 8.
/// Dead letters are hidden, extended, given back, redelivered and counted as messages are, and may
/// also be sent.
pub async fn dead_letters_are_received_as_messages_are(fixture: &Fixture<dyn Queue>) {
    let (queue, letters) = (fixture.port(), dead(fixture.other()));
    send(queue, &["a"]).await;
    ok(queue.dead_letter(&one(queue, MINUTE).await.receipt, "no").await);
    let first = one(&*letters, a_while()).await;
    assert_eq!(take(&*letters, 1, MINUTE).await, [], "it is hidden");
    fixture.pass(a_while() + a_while() / 10).await;
    let second = one(&*dead(queue), a_while()).await;
    assert_eq!((&second.id, second.deliveries, second.expiries), (&first.id, 3, 1));
    assert!(letters.complete(&first.receipt).await.is_err_and(|e| e.is_lease_lost()), "the receipt is old");
    ok(letters.extend(&second.receipt, MINUTE).await);
    fixture.pass(a_while() + a_while() / 10).await;
    assert_eq!(take(&*letters, 1, MINUTE).await, [], "it is hidden still");
    ok(letters.abandon(&second.receipt, a_while()).await);
    assert_eq!(ok(letters.depth().await), Depth::new(0, 0, 1));
    fixture.pass(a_while() + a_while() / 10).await;
    let third = one(&*letters, MINUTE).await;
    assert_eq!((third.deliveries, third.attempts, third.expiries), (4, 1, 0));
    ok(letters.release(&third.receipt, Duration::ZERO).await);
    assert_eq!(ok(letters.depth().await), Depth::new(1, 0, 0));
    assert_eq!(one(&*letters, MINUTE).await.reason.as_deref(), Some("no"));
    ok(letters.send_one(Message::new("sent")).await);
    let sent = one(&*letters, MINUTE).await;
    assert_eq!((&sent.body[..], sent.deliveries, sent.reason), (&b"sent"[..], 1, None));
    assert_eq!((ok(queue.depth().await).total(), ok(letters.depth().await).total()), (0, 2));
}

// Guarantee: queue 8.
/// A dead letter is visible at once, however long its message was hidden.
pub async fn a_dead_letter_is_visible_at_once(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let delivery = one(queue, MINUTE).await;
    ok(queue.extend(&delivery.receipt, MINUTE * 5).await);
    ok(queue.dead_letter(&delivery.receipt, "no").await);
    assert_eq!(ok(dead(queue).depth().await), Depth::new(1, 0, 0));
    assert_eq!(bodies(&take(&*dead(fixture.other()), 10, MINUTE).await), ["a"]);
}

// Guarantee: queue 8.
/// A dead letter that would become one again stays in flight, with its receipt valid. There is no
/// third queue.
pub async fn a_dead_letter_does_not_become_one_again(fixture: &Fixture<dyn Queue>) {
    let (queue, letters) = (fixture.port(), dead(fixture.port()));
    assert!(letters.dead_letters().is_none());
    send(queue, &["a"]).await;
    ok(queue.dead_letter(&one(queue, MINUTE).await.receipt, "no").await);
    let letter = one(&*letters, MINUTE).await;
    let settled = ok(letters.settle(vec![(letter.receipt.clone(), Settle::dead_letter("again"))]).await);
    let [Err(error)] = &settled[..] else { panic!("it was settled: {settled:?}") };
    let kind = error.backend().map(crate::port::PortError::kind);
    assert_eq!(kind, Some(PortErrorKind::Unsupported), "{error}");
    assert_eq!(ok(letters.depth().await), Depth::new(0, 0, 1));
    ok(letters.complete(&letter.receipt).await);
    assert_eq!(ok(letters.depth().await).total(), 0);
}

// Guarantee: queue 8.
/// A message with a de-duplication id becomes a dead letter, and no duplicate of itself.
pub async fn a_message_with_a_known_id_becomes_a_dead_letter(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    if !queue.capabilities().has(Capability::Deduplication) {
        return;
    }
    let message = || Message::new("a").deduplicate("1");
    let id = ok(queue.send_one(message()).await);
    let delivery = one(queue, MINUTE).await;
    ok(queue.abandon(&delivery.receipt, Duration::ZERO).await);
    ok(queue.dead_letter(&one(queue, MINUTE).await.receipt, "no").await);
    assert_eq!(ok(fixture.other().send_one(message()).await), id);
    let letter = one(&*dead(fixture.other()), MINUTE).await;
    assert_eq!((letter.id, ok(queue.depth().await).total()), (id, 0));
}

/// A purge of the dead letters leaves the queue as it is.
pub async fn a_purge_of_dead_letters_leaves_the_queue(fixture: &Fixture<dyn Queue>) {
    let (queue, letters) = (fixture.port(), dead(fixture.port()));
    send(queue, &["a", "b", "c"]).await;
    let taken = take(queue, 3, MINUTE).await;
    for delivery in &taken[..2] {
        ok(queue.dead_letter(&delivery.receipt, "no").await);
    }
    let held = one(&*letters, MINUTE).await;
    assert_eq!(ok(dead(fixture.other()).purge().await), 2);
    assert_eq!(ok(letters.depth().await).total(), 0);
    assert!(letters.complete(&held.receipt).await.is_err_and(|e| e.is_lease_lost()));
    ok(queue.complete(&taken[2].receipt).await);
}
