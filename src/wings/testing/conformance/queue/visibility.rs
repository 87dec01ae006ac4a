//! The time for which a message is hidden: its begin, its length, and its end.
use super::*;

const DAY: Duration = Duration::from_secs(86_400);

// Guarantee: queue 2.
/// The time begins with the delivery, not with the sending, nor with an earlier delivery.
pub async fn the_visibility_begins_with_each_delivery(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    fixture.pass(a_while() * 2).await;
    for deliveries in 1..=2 {
        assert_eq!(one(queue, a_while() * 4).await.deliveries, deliveries);
        fixture.pass(a_while() * 5 / 2).await;
        assert_eq!(take(fixture.other(), 1, a_while()).await, [], "delivery {deliveries} is hidden still");
        fixture.pass(a_while() * 2).await;
    }
    assert_eq!(one(fixture.other(), MINUTE).await.deliveries, 3);
}

// Guarantee: queue 2.
/// Messages that were received with different visibility time-outs come back at different times.
pub async fn each_receive_has_a_visibility_of_its_own(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a", "b"]).await;
    let (short, long) = (one(queue, a_while()).await, one(queue, MINUTE).await);
    assert_ne!(short.id, long.id);
    fixture.pass(a_while() + a_while() / 10).await;
    let back: Vec<_> = take(fixture.other(), 10, MINUTE).await.into_iter().map(|delivery| delivery.id).collect();
    assert_eq!(back, [short.id]);
}

// Guarantee: queue 2.
/// An extension hides the message for the given time from now, also if that is shorter than the
/// time that is left.
pub async fn an_extension_sets_the_time_that_is_left(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let first = one(queue, MINUTE).await;
    ok(queue.extend(&first.receipt, a_while()).await);
    assert_eq!(take(fixture.other(), 1, MINUTE).await, [], "it is hidden still");
    fixture.pass(a_while() + a_while() / 10).await;
    let second = one(fixture.other(), a_while()).await;
    assert_eq!((second.id, second.deliveries), (first.id, 2));
    // Not as long as for the first time, and not one after the other.
    ok(fixture.other().extend(&second.receipt, a_while() * 4).await);
    ok(fixture.other().extend(&second.receipt, a_while() * 4).await);
    fixture.pass(a_while() * 2).await;
    assert_eq!(take(queue, 1, MINUTE).await, [], "it is hidden still");
    fixture.pass(a_while() * 3).await;
    assert_eq!(one(queue, MINUTE).await.deliveries, 3);
}

// Guarantee: queue 2.
/// Extensions change neither the counts nor the receipt.
pub async fn an_extension_is_no_delivery(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let first = one(queue, MINUTE).await;
    for _ in 0..3 {
        ok(queue.extend(&first.receipt, MINUTE).await);
    }
    let peeked = ok(fixture.other().peek(1).await);
    assert_eq!((peeked[0].deliveries, peeked[0].attempts, peeked[0].hidden), (1, 0, true));
    ok(queue.abandon(&first.receipt, Duration::ZERO).await);
    let second = one(queue, MINUTE).await;
    assert_eq!((second.deliveries, second.attempts, second.expiries), (2, 1, 0));
    ok(queue.complete(&second.receipt).await);
}

// Guarantee: queue 2.
/// Of the messages of one request, only the extended one is hidden for longer.
pub async fn an_extension_is_of_one_message(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a", "b"]).await;
    let taken = take(queue, 2, a_while()).await;
    ok(queue.extend(&taken[0].receipt, MINUTE).await);
    fixture.pass(a_while() + a_while() / 10).await;
    assert_eq!(bodies(&take(fixture.other(), 10, MINUTE).await), ["b"]);
    ok(queue.complete(&taken[0].receipt).await);
}

// Guarantee: queue 2.
/// An abandoned or released message may return later than its delivery would have expired.
pub async fn a_message_may_return_later_than_it_would_have_expired(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a", "b"]).await;
    let taken = take(queue, 2, a_while()).await;
    ok(queue.abandon(&taken[0].receipt, a_while() * 4).await);
    ok(queue.release(&taken[1].receipt, a_while() * 4).await);
    fixture.pass(a_while() * 2).await;
    assert_eq!(take(fixture.other(), 10, MINUTE).await, [], "both wait for their return");
    fixture.pass(a_while() * 5 / 2).await;
    assert_eq!(sorted(&take(fixture.other(), 10, MINUTE).await), ["a", "b"]);
}

// Guarantee: queue 2.
/// No duration is capped: not at 30 seconds, 15 minutes, 12 hours, nor at a day. On manual time.
pub async fn long_durations_are_not_capped(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    if !fixture.is_on_manual_time() {
        return;
    }
    let delays = queue.capabilities().has(Capability::Delay);
    send(queue, &["abandoned", "extended", "received", "released"]).await;
    let mut expected = vec!["abandoned", "extended", "received", "released"];
    if delays {
        ok(queue.send_one(Message::new("sent").delay(DAY * 3)).await);
        expected.push("sent");
    }
    let mut taken = take(queue, 4, DAY * 3).await;
    taken.sort_by(|one, other| one.body.cmp(&other.body));
    ok(queue.abandon(&taken[0].receipt, DAY * 3).await);
    ok(queue.extend(&taken[1].receipt, DAY * 3).await);
    ok(queue.release(&taken[3].receipt, DAY * 3).await);
    for hidden in [MINUTE, MINUTE * 60, DAY / 2, DAY, DAY] {
        fixture.pass(hidden).await;
        assert_eq!(take(fixture.other(), 10, MINUTE).await, [], "a duration was capped");
    }
    fixture.pass(DAY).await;
    assert_eq!(sorted(&take(fixture.other(), 10, MINUTE).await), expected);
}

// Guarantee: queue 3.
/// After the visibility time-out and before the next delivery, a settlement or an extension takes
/// full effect, or is refused and has none.
pub async fn a_late_settlement_takes_effect_or_is_refused(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["abandoned", "completed", "extended"]).await;
    let mut taken = take(queue, 3, a_while()).await;
    taken.sort_by(|one, other| one.body.cmp(&other.body));
    fixture.pass(a_while() + a_while() / 10).await;
    let accepted = |result: Result<(), QueueError>| match result {
        Ok(()) => true,
        Err(error) if error.is_lease_lost() => false,
        Err(error) => panic!("neither accepted nor refused as stale: {error}"),
    };
    let abandoned = accepted(queue.abandon(&taken[0].receipt, Duration::ZERO).await);
    let completed = accepted(queue.complete(&taken[1].receipt).await);
    let extended = accepted(queue.extend(&taken[2].receipt, MINUTE).await);
    let mut again = take(fixture.other(), 10, MINUTE).await;
    again.sort_by(|one, other| one.body.cmp(&other.body));
    let mut expected = vec![("abandoned".to_owned(), 2, 1, u32::from(!abandoned))];
    if !completed {
        expected.push(("completed".to_owned(), 2, 1, 1));
    }
    if !extended {
        expected.push(("extended".to_owned(), 2, 1, 1));
    }
    let again: Vec<_> = bodies(&again)
        .into_iter()
        .zip(&again)
        .map(|(body, delivery)| (body, delivery.deliveries, delivery.attempts, delivery.expiries))
        .collect();
    assert_eq!(again, expected, "(body, deliveries, attempts, expiries)");
    assert_eq!(ok(queue.depth().await).total(), if completed { 2 } else { 3 });
    assert_eq!(accepted(queue.complete(&taken[2].receipt).await), extended);
}
