//! Counts of a message's earlier deliveries.
use super::*;

/// Returns the earlier deliveries, the attempts among them, and those that expired since one was
/// abandoned.
fn counts(delivery: &Delivery) -> (u32, u32, u32) {
    (delivery.deliveries, delivery.attempts, delivery.expiries)
}

// Guarantee: queue 2.
/// A released message returns at once or after the requested delay, and no attempt is counted.
pub async fn a_released_delivery_is_no_attempt(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let first = one(queue, MINUTE).await;
    assert_eq!(counts(&first), (1, 0, 0));
    ok(queue.release(&first.receipt, Duration::ZERO).await);
    assert!(queue.complete(&first.receipt).await.is_err_and(|e| e.is_lease_lost()), "the receipt is old");
    let second = one(fixture.other(), MINUTE).await;
    assert_eq!(counts(&second), (2, 0, 0));
    ok(fixture.other().release(&second.receipt, a_while()).await);
    assert_eq!(take(queue, 1, MINUTE).await, [], "it is hidden for the delay");
    fixture.pass(a_while() + a_while() / 10).await;
    assert_eq!(counts(&one(queue, MINUTE).await), (3, 0, 0));
}

// Guarantee: queue 2.
/// An abandoned delivery counts as an attempt, and its end is explained.
pub async fn an_abandoned_delivery_is_an_attempt(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    for attempts in 0..3 {
        let delivery = one(queue, MINUTE).await;
        assert_eq!(counts(&delivery), (attempts + 1, attempts, 0));
        ok(queue.abandon(&delivery.receipt, Duration::ZERO).await);
    }
    let peeked = ok(fixture.other().peek(1).await);
    assert_eq!((peeked[0].deliveries, peeked[0].attempts, peeked[0].expiries), (3, 3, 0));
}

// Guarantee: queue 2.
/// A delivery that ends without being settled counts as an attempt, and as expired, until one is
/// abandoned.
pub async fn an_expired_delivery_is_an_attempt_without_an_explanation(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    for expired in 0..3 {
        let delivery = one(queue, a_while()).await;
        assert_eq!(counts(&delivery), (expired + 1, expired, expired));
        ok(queue.extend(&delivery.receipt, a_while()).await);
        fixture.pass(a_while() + a_while() / 10).await;
    }
    let delivery = one(fixture.other(), MINUTE).await;
    assert_eq!(counts(&delivery), (4, 3, 3));
    ok(fixture.other().abandon(&delivery.receipt, Duration::ZERO).await);
    let delivery = one(queue, MINUTE).await;
    assert_eq!(counts(&delivery), (5, 1, 0), "nothing tells that an earlier one was tried");
}

/// Receives the only message, by either handle, and returns its expiries and crashes.
async fn ended(queue: &dyn Queue, visibility: Duration) -> (Receipt, (u32, u32)) {
    let delivery = one(queue, visibility).await;
    (delivery.receipt, (delivery.expiries, delivery.crashes))
}

/// Lets a delivery of `a_while()` expire.
async fn expires(fixture: &Fixture<dyn Queue>) {
    fixture.pass(a_while() + a_while() / 10).await;
}

// Guarantee: queue 2.
/// A delivery that expires is a crash only if its handling was recorded as begun. The record also
/// extends the delivery.
pub async fn only_a_delivery_whose_handling_had_begun_is_a_crash(fixture: &Fixture<dyn Queue>) {
    let (queue, other) = (fixture.port(), fixture.other());
    send(queue, &["a"]).await;
    one(queue, a_while()).await;
    expires(fixture).await;
    let (receipt, counts) = ended(other, MINUTE).await;
    assert_eq!(counts, (1, 0), "nothing tells that its handling began");
    ok(other.mark_begun(&receipt, a_while(), true).await);
    expires(fixture).await;
    let (receipt, counts) = ended(queue, MINUTE).await;
    assert_eq!(counts, (2, 1));
    ok(queue.extend(&receipt, a_while()).await);
    expires(fixture).await;
    let (receipt, counts) = ended(queue, a_while()).await;
    assert_eq!(counts, (3, 1), "an extension is no record, and the record was of the delivery before");
    ok(queue.mark_begun(&receipt, a_while(), true).await);
    ok(queue.extend(&receipt, a_while()).await);
    expires(fixture).await;
    let (receipt, counted) = ended(other, MINUTE).await;
    assert_eq!(counted, (4, 2));
    let peeked = ok(queue.peek(1).await);
    assert_eq!((peeked[0].attempts, peeked[0].expiries, peeked[0].crashes), (4, 4, 2));
    ok(queue.abandon(&receipt, Duration::ZERO).await);
    let Delivery { deliveries, attempts, expiries, .. } = one(other, MINUTE).await;
    assert_eq!(
        (deliveries, attempts, expiries),
        (6, 4, 0),
        "two crashes, the expiry before them, and the abandoned one"
    );
}

// Guarantee: queue 2.
/// The record ends with each settlement, and can be taken back.
pub async fn a_mark_ends_with_its_delivery_or_is_taken_back(fixture: &Fixture<dyn Queue>) {
    let (queue, other) = (fixture.port(), fixture.other());
    send(queue, &["a"]).await;
    let (receipt, _) = ended(queue, MINUTE).await;
    ok(queue.mark_begun(&receipt, a_while(), true).await);
    ok(other.mark_begun(&receipt, a_while(), false).await);
    expires(fixture).await;
    let (receipt, counts) = ended(queue, MINUTE).await;
    assert_eq!(counts, (1, 0), "it was taken back");
    ok(queue.mark_begun(&receipt, MINUTE, true).await);
    ok(queue.release(&receipt, Duration::ZERO).await);
    one(queue, a_while()).await;
    expires(fixture).await;
    let (receipt, counts) = ended(other, MINUTE).await;
    assert_eq!(counts, (2, 0), "a released delivery ended without a crash");
    ok(other.mark_begun(&receipt, a_while(), true).await);
    expires(fixture).await;
    let (receipt, counts) = ended(queue, MINUTE).await;
    assert_eq!(counts, (3, 1));
    ok(queue.release(&receipt, Duration::ZERO).await);
    let (receipt, counts) = ended(queue, MINUTE).await;
    assert_eq!(counts, (3, 1), "a release keeps the count");
    ok(queue.mark_begun(&receipt, MINUTE, true).await);
    ok(queue.abandon(&receipt, Duration::ZERO).await);
    assert_eq!(ended(queue, MINUTE).await.1, (0, 0), "an attempt that was told resets it");
}

// Guarantee: queue 2.
/// A dead letter keeps the count, and begins without a record.
pub async fn dead_letters_keep_crashes_and_no_mark(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let (receipt, _) = ended(queue, MINUTE).await;
    ok(queue.mark_begun(&receipt, a_while(), true).await);
    expires(fixture).await;
    let (receipt, _) = ended(queue, MINUTE).await;
    ok(queue.mark_begun(&receipt, MINUTE, true).await);
    ok(queue.dead_letter(&receipt, "bad").await);
    let dead = queue.dead_letters().expect("the queue has dead letters");
    assert_eq!(ended(&*dead, a_while()).await.1, (1, 1));
    expires(fixture).await;
    assert_eq!(ended(&*dead, MINUTE).await.1, (2, 1), "no receiver recorded a beginning");
}

// Guarantee: queue 3.
/// A record with a stale receipt is refused and changes nothing; so is one for no time.
pub async fn a_stale_receipt_marks_nothing(fixture: &Fixture<dyn Queue>) {
    let (queue, other) = (fixture.port(), fixture.other());
    send(queue, &["a"]).await;
    let (first, _) = ended(queue, a_while()).await;
    assert!(queue.mark_begun(&first, Duration::ZERO, true).await.is_err(), "a visibility of zero");
    expires(fixture).await;
    let (second, counts) = ended(other, a_while()).await;
    assert_eq!(counts, (1, 0));
    let stale = queue.mark_begun(&first, MINUTE, true).await;
    assert!(stale.is_err_and(|error| error.is_lease_lost()), "another delivery has the message");
    expires(fixture).await;
    let (third, counts) = ended(queue, MINUTE).await;
    assert_eq!(counts, (2, 0));
    ok(queue.complete(&third).await);
    for stale in [second, third] {
        let marked = other.mark_begun(&stale, MINUTE, true).await;
        assert!(marked.is_err_and(|error| error.is_lease_lost()), "the message is settled");
    }
}

// Guarantee: queue 2.
/// A release neither adds to the counts nor resets them.
pub async fn a_release_keeps_the_counts_as_they_were(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let delivery = one(queue, MINUTE).await;
    ok(queue.abandon(&delivery.receipt, Duration::ZERO).await);
    one(queue, a_while()).await;
    fixture.pass(a_while() + a_while() / 10).await;
    for deliveries in 3..6 {
        let delivery = one(fixture.other(), MINUTE).await;
        assert_eq!(counts(&delivery), (deliveries, 2, 1));
        ok(queue.release(&delivery.receipt, Duration::ZERO).await);
    }
    one(queue, a_while()).await;
    fixture.pass(a_while() + a_while() / 10).await;
    assert_eq!(counts(&one(queue, MINUTE).await), (7, 3, 2), "released ones do not end the row");
}

// Guarantee: queue 2.
/// Each message of a batch has counts of its own.
pub async fn attempts_are_counted_message_by_message(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["abandoned", "released", "expired"]).await;
    let mut taken = take(queue, 3, a_while()).await;
    taken.sort_by(|one, other| one.body.cmp(&other.body));
    let settled = ok(queue
        .settle(vec![
            (taken[0].receipt.clone(), Settle::abandon(Duration::ZERO)),
            (taken[2].receipt.clone(), Settle::release(Duration::ZERO)),
        ])
        .await);
    assert!(settled.iter().all(Result::is_ok));
    fixture.pass(a_while() + a_while() / 10).await;
    let mut again = take(fixture.other(), 3, MINUTE).await;
    again.sort_by(|one, other| one.body.cmp(&other.body));
    assert_eq!(bodies(&again), ["abandoned", "expired", "released"]);
    assert_eq!(again.iter().map(counts).collect::<Vec<_>>(), [(2, 1, 0), (2, 1, 1), (2, 0, 0)]);
}

// Guarantee: queue 3.
/// The receipt of an earlier delivery cannot release the message.
pub async fn an_old_receipt_cannot_release(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let old = one(queue, a_while()).await.receipt;
    fixture.pass(a_while() + a_while() / 10).await;
    let current = one(fixture.other(), MINUTE).await;
    assert!(queue.release(&old, Duration::ZERO).await.is_err_and(|e| e.is_lease_lost()), "the receipt is old");
    assert_eq!(take(queue, 1, MINUTE).await, [], "the message stays hidden");
    ok(queue.complete(&current.receipt).await);
    assert!(queue.release(&current.receipt, Duration::ZERO).await.is_err_and(|e| e.is_lease_lost()));
    assert_eq!(ok(queue.depth().await).total(), 0);
}

// Guarantee: queue 8.
/// A dead letter keeps its counts.
pub async fn a_dead_letter_keeps_its_counts(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let delivery = one(queue, MINUTE).await;
    ok(queue.abandon(&delivery.receipt, Duration::ZERO).await);
    let delivery = one(queue, MINUTE).await;
    ok(queue.release(&delivery.receipt, Duration::ZERO).await);
    one(queue, a_while()).await;
    fixture.pass(a_while() + a_while() / 10).await;
    let delivery = one(queue, MINUTE).await;
    assert_eq!(counts(&delivery), (4, 2, 1));
    ok(queue.dead_letter(&delivery.receipt, "no").await);
    let letters = dead(fixture.other());
    let peeked = ok(letters.peek(1).await);
    assert_eq!((peeked[0].deliveries, peeked[0].attempts, peeked[0].expiries), (4, 2, 1));
    assert_eq!(counts(&one(&*letters, MINUTE).await), (5, 2, 1));
}
