//! The ages of deliveries, and the window of de-duplication.
use super::*;

/// Asserts that an age is the time that passed, and what requests may take beside it.
fn assert_age(delivery: &Delivery, passed: Duration) {
    let age = delivery.age;
    assert!(age >= passed && age < passed + MINUTE / 2, "the age is {age:?}, after {passed:?}");
}

// Guarantee: queue 14.
/// Each delivery has the time since the acceptance of its message, its delay included. A release
/// and an expiry do not reset it.
pub async fn the_age_of_a_delivery_counts_from_its_acceptance(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    fixture.pass(a_while()).await;
    assert_age(&one(fixture.other(), a_while()).await, a_while());
    fixture.pass(a_while() * 2).await;
    let second = one(queue, MINUTE).await;
    assert_age(&second, a_while() * 3);
    ok(queue.release(&second.receipt, Duration::ZERO).await);
    fixture.pass(a_while()).await;
    let third = one(fixture.other(), MINUTE).await;
    assert_age(&third, a_while() * 4);
    ok(queue.complete(&third.receipt).await);
    if queue.capabilities().has(Capability::Delay) {
        ok(queue.send_one(Message::new("b").delay(a_while())).await);
        fixture.pass(a_while() * 2).await;
        assert_age(&one(queue, MINUTE).await, a_while() * 2);
    }
}

// Guarantee: queue 14.
/// The age of a dead letter counts from the acceptance of its message. Sent again, it begins at
/// zero.
pub async fn a_dead_letter_keeps_its_age(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    fixture.pass(a_while() * 2).await;
    ok(queue.dead_letter(&one(queue, MINUTE).await.receipt, "no").await);
    fixture.pass(a_while() * 2).await;
    let letter = one(&*dead(fixture.other()), MINUTE).await;
    assert_age(&letter, a_while() * 4);
    send(queue, &["a"]).await;
    let again = one(queue, MINUTE).await;
    assert_age(&again, Duration::ZERO);
    if fixture.is_on_manual_time() {
        assert_eq!(again.age, Duration::ZERO);
    }
}

// Guarantee: queue 14.
/// The wall clock is set forward by a day, and back before the message was sent: its age is the
/// time that passed.
pub async fn no_step_of_the_wall_clock_changes_an_age(fixture: &Fixture<dyn Queue>) {
    const DAY: u64 = 24 * 3600 * 1000;
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let first = one(queue, a_while()).await;
    if !fixture.set_wall(Timestamp::from_millis(first.sent_at.as_millis() + DAY)) {
        return;
    }
    fixture.pass(a_while() * 2).await;
    assert_age(&one(queue, a_while()).await, a_while() * 2);
    fixture.set_wall(Timestamp::from_millis(first.sent_at.as_millis().saturating_sub(DAY)));
    fixture.pass(a_while() * 2).await;
    assert_age(&one(queue, MINUTE).await, a_while() * 4);
    fixture.set_wall(first.sent_at);
}

/// Returns the time for which an id is remembered, unless a case cannot pass it: it is long in real
/// time, or endless, or shorter than requests may take.
fn window(fixture: &Fixture<dyn Queue>) -> Option<Duration> {
    let passable = if fixture.is_on_manual_time() { a_while()..=HOUR * 10_000 } else { a_while() * 5..=a_while() * 10 };
    fixture.port().capabilities().deduplicates_for().filter(|window| passable.contains(window))
}

// Guarantee: queue 15.
/// A queue that recognizes duplicates states its window, and recognizes one just before its end.
pub async fn a_deduplication_id_is_remembered_for_the_stated_window(fixture: &Fixture<dyn Queue>) {
    let (queue, can) = (fixture.port(), fixture.port().capabilities());
    let is_stated = can.deduplicates_for().is_some();
    assert_eq!(is_stated, can.has(Capability::Deduplication), "the window is stated with the capability");
    let Some(window) = window(fixture) else { return };
    let message = || Message::new("a").deduplicate("order-1");
    let first = ok(queue.send_one(message()).await);
    ok(queue.complete(&one(queue, MINUTE).await.receipt).await);
    fixture.pass(window - window / 10).await;
    assert_eq!(ok(fixture.other().send_one(message()).await), first);
    assert_eq!(take(queue, 1, MINUTE).await, []);
}

// Guarantee: queue 7, 15.
/// The window begins with the first message, and a duplicate does not renew it: an id is forgotten
/// when one and a half windows have passed.
pub async fn an_id_is_remembered_for_the_stated_window(fixture: &Fixture<dyn Queue>) {
    let (queue, Some(window)) = (fixture.port(), window(fixture)) else { return };
    let message = |body: &'static str| Message::new(body).deduplicate("order-1");
    let first = ok(queue.send_one(message("first")).await);
    fixture.pass(window * 9 / 10).await;
    assert_eq!(ok(fixture.other().send_one(message("duplicate")).await), first);
    fixture.pass(window * 8 / 10).await;
    assert_ne!(ok(fixture.other().send_one(message("second")).await), first);
    assert_eq!(bodies(&take(queue, 10, MINUTE).await), ["first", "second"]);
}
