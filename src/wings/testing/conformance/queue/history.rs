//! The errors of the attempts at a message.
use super::*;

fn error(attempt: u32) -> AttemptError {
    let kind = if attempt.is_multiple_of(2) { AttemptErrorKind::Panicked } else { AttemptErrorKind::Failed };
    AttemptError::new(attempt, Timestamp::from_millis(1_700_000_000_123), kind, format!("no {attempt}: \u{20AC}\n\""))
}

async fn settle(queue: &dyn Queue, delivery: &Delivery, how: Settle) -> Result<(), QueueError> {
    ok(queue.settle(vec![(delivery.receipt.clone(), how)]).await).remove(0)
}

/// Returns the errors that this queue keeps of these.
fn kept(queue: &dyn Queue, errors: &[AttemptError]) -> ErrorHistory {
    let mut kept = ErrorHistory::default();
    if queue.capabilities().has(Capability::ErrorHistory) {
        errors.iter().for_each(|error| kept.push(error.clone()));
    }
    kept
}

// Guarantee: queue 11.
/// The errors of failed attempts come with each later delivery. A release, an expiry and an abandon
/// without an error keep them.
pub async fn errors_of_attempts_come_with_later_deliveries(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a", "other"]).await;
    let mut taken = take(queue, 2, MINUTE).await;
    let other = taken.pop().unwrap_or_else(|| panic!("two were sent"));
    let first = taken.remove(0);
    assert_eq!(first.errors.len(), 0);
    ok(settle(queue, &first, Settle::abandon(Duration::ZERO).because(error(1))).await);
    let second = one(fixture.other(), MINUTE).await;
    assert_eq!(second.errors, kept(queue, &[error(1)]));
    ok(settle(queue, &second, Settle::abandon(Duration::ZERO).because(error(2))).await);
    let both = kept(queue, &[error(1), error(2)]);
    let third = one(queue, MINUTE).await;
    assert_eq!(third.errors, both);
    ok(settle(queue, &third, Settle::release(Duration::ZERO)).await);
    let fourth = one(queue, a_while()).await;
    assert_eq!(fourth.errors, both, "a release keeps them");
    fixture.pass(a_while() + a_while() / 10).await;
    let fifth = one(queue, MINUTE).await;
    assert_eq!(fifth.errors, both, "an expiry adds none");
    ok(settle(queue, &fifth, Settle::abandon(Duration::ZERO)).await);
    assert_eq!(one(queue, MINUTE).await.errors, both, "an abandon without an error adds none");
    let peeked = ok(fixture.other().peek(2).await);
    let of = |body: &[u8]| peeked.iter().find(|peeked| peeked.body == body).map(|peeked| peeked.errors.clone());
    assert_eq!((of(b"a"), of(b"other")), (Some(both), Some(ErrorHistory::default())));
    ok(queue.complete(&other.receipt).await);
}

// Guarantee: queue 11.
/// A dead letter has the errors of its attempts, the last one included.
pub async fn a_dead_letter_has_the_errors_of_its_attempts(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    for attempt in 1..3 {
        let delivery = one(queue, MINUTE).await;
        ok(settle(queue, &delivery, Settle::abandon(Duration::ZERO).because(error(attempt))).await);
    }
    let delivery = one(queue, MINUTE).await;
    ok(settle(queue, &delivery, Settle::dead_letter("never").because(error(3))).await);
    let all = kept(queue, &[error(1), error(2), error(3)]);
    let letters = dead(fixture.other());
    assert_eq!(ok(letters.peek(1).await)[0].errors, all);
    assert_eq!(one(&*letters, MINUTE).await.errors, all);
}

// Guarantee: queue 11.
/// Of many errors the first and the latest ten are kept, and long texts are cut.
pub async fn of_many_errors_the_first_and_the_latest_are_kept(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let error = |attempt| AttemptError { text: "x".repeat(AttemptError::MAX_TEXT), ..error(attempt) };
    let errors: Vec<_> = (1..=14).map(error).collect();
    for error in &errors {
        let delivery = one(queue, MINUTE).await;
        ok(settle(queue, &delivery, Settle::abandon(Duration::ZERO).because(error.clone())).await);
    }
    assert_eq!(one(fixture.other(), MINUTE).await.errors, kept(queue, &errors));
}

// Guarantee: queue 11.
/// A settlement with the receipt of an earlier delivery adds no error.
pub async fn an_old_receipt_adds_no_error(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let old = one(queue, a_while()).await;
    fixture.pass(a_while() + a_while() / 10).await;
    let current = one(fixture.other(), MINUTE).await;
    for how in [Settle::abandon(Duration::ZERO), Settle::dead_letter("never")] {
        assert!(
            settle(queue, &old, how.because(error(1))).await.is_err_and(|e| e.is_lease_lost()),
            "the receipt is old"
        );
    }
    ok(queue.release(&current.receipt, Duration::ZERO).await);
    assert_eq!(one(queue, MINUTE).await.errors.len(), 0);
}
