//! What travels with a message, and its time of acceptance.
use super::*;

/// Asserts that a delivery has the parts of the message that was sent.
fn assert_same(sent: &Delivery, now: &Delivery, when: &str) {
    let parts = |it: &Delivery| (it.id.clone(), it.headers.clone(), it.group.clone(), it.sent_at);
    assert_eq!(parts(now), parts(sent), "{when}");
    assert!(now.body == sent.body, "{when}: the body has {} bytes, had {}", now.body.len(), sent.body.len());
}

async fn assert_peeked(queue: &dyn Queue, sent: &Delivery, when: &str) {
    let peeked = ok(queue.peek(10).await);
    let peeked = peeked.into_iter().find(|peeked| peeked.id == sent.id);
    let Some(peeked) = peeked else { panic!("{when}: it is not peeked") };
    let parts = (peeked.headers, peeked.group, peeked.sent_at, peeked.hidden);
    assert_eq!(parts, (sent.headers.clone(), sent.group.clone(), sent.sent_at, true), "{when}");
    assert!(peeked.body == sent.body, "{when}: the body has {} bytes, had {}", peeked.body.len(), sent.body.len());
}

async fn assert_kept(fixture: &Fixture<dyn Queue>, message: Message) {
    let queue = fixture.port();
    let id = ok(queue.send_one(message.clone()).await);
    let first = one(queue, MINUTE).await;
    assert_eq!((&first.id, &first.headers, &first.group), (&id, &message.headers, &message.group));
    assert!(first.body == message.body, "the body has {} bytes, had {}", first.body.len(), message.body.len());
    assert_peeked(fixture.other(), &first, "peeked").await;
    ok(queue.abandon(&first.receipt, Duration::ZERO).await);
    let second = one(fixture.other(), MINUTE).await;
    assert_same(&first, &second, "after an abandon");
    ok(queue.release(&second.receipt, Duration::ZERO).await);
    let third = one(queue, a_while()).await;
    assert_same(&first, &third, "after a release");
    fixture.pass(a_while() + a_while() / 10).await;
    let fourth = one(fixture.other(), MINUTE).await;
    assert_same(&first, &fourth, "after an expiry");
    assert_peeked(queue, &first, "peeked after an expiry").await;
    ok(queue.dead_letter(&fourth.receipt, "no").await);
    let letters = dead(fixture.other());
    let letter = one(&*letters, MINUTE).await;
    assert_same(&first, &letter, "as a dead letter");
    assert_eq!((letter.deliveries, letter.reason.as_deref()), (5, Some("no")));
    assert_peeked(&*letters, &first, "peeked as a dead letter").await;
    let peeked = ok(letters.peek(1).await);
    assert_eq!(peeked[0].reason.as_deref(), Some("no"));
    ok(letters.abandon(&letter.receipt, Duration::ZERO).await);
    let letter = one(&*letters, MINUTE).await;
    assert_same(&first, &letter, "as a dead letter that came back");
    assert_eq!((letter.deliveries, letter.reason.as_deref()), (6, Some("no")));
    ok(letters.complete(&letter.receipt).await);
}

// Guarantee: queue 2.
/// The id, the body, the headers, the group key and the time of acceptance are the same in each
/// delivery, in a peek and as a dead letter.
pub async fn a_message_keeps_its_parts(fixture: &Fixture<dyn Queue>) {
    let message = Message::new("body").header("name", "value").header("Name", "other").header("empty", "");
    let groups = fixture.port().capabilities().has(Capability::Groups);
    assert_kept(fixture, if groups { message.group("g") } else { message }).await;
}

/// A body of the stated maximum comes through whole; where that is large, one of some mebibytes.
pub async fn a_large_body_comes_through_whole(fixture: &Fixture<dyn Queue>) {
    let size = fixture.port().capabilities().max_value().min(4 << 20);
    // A pattern of 251 bytes, so that no two blocks of the body are equal.
    let pattern: Vec<u8> = (0..=250).collect();
    let mut body = pattern.repeat(size / pattern.len() + 1);
    body.truncate(size);
    assert_kept(fixture, Message::new(body)).await;
}

/// The time of acceptance is a wall-clock time in milliseconds, of the sending and not of a
/// delivery.
pub async fn a_message_has_the_time_of_its_acceptance(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["first"]).await;
    fixture.pass(a_while() * 4).await;
    send(queue, &["second"]).await;
    // Of a delivery, both would be equal.
    fixture.pass(a_while()).await;
    let taken = take(fixture.other(), 2, MINUTE).await;
    let at = |at: usize| taken[at].sent_at.as_millis();
    assert!(at(0) > 0, "the time is missing");
    let apart = at(1).saturating_sub(at(0));
    assert!(apart >= a_while().as_millis() as u64 * 3, "sent {:?} apart, and told as {apart} ms", a_while() * 4);
    assert!(apart < MINUTE.as_millis() as u64 * 10, "sent {:?} apart, and told as {apart} ms", a_while() * 4);
    if !fixture.is_on_manual_time() {
        let (now, day) = (Clock::tokio().wall().as_millis(), MINUTE.as_millis() as u64 * 60 * 24);
        assert!(at(0).abs_diff(now) < day, "{} ms is a day from the time of this machine, {now} ms", at(0));
    }
    fixture.pass(a_while() * 4).await;
    ok(queue.dead_letter(&taken[0].receipt, "no").await);
    assert_eq!(one(&*dead(queue), MINUTE).await.sent_at.as_millis(), at(0));
}
