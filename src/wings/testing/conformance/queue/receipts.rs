//! Receipts: each is of one delivery, and settles it once.
use super::*;

/// Asserts that the receipt has no effect at this queue, whichever way it is used.
async fn assert_stale(queue: &dyn Queue, receipt: &Receipt, why: &str) {
    let all = [
        Settle::Complete,
        Settle::abandon(Duration::ZERO),
        Settle::release(Duration::ZERO),
        // Dead letters refuse these whatever the receipt.
        Settle::dead_letter("stale"),
    ];
    let ways = if queue.dead_letters().is_some() { &all[..] } else { &all[..3] };
    for how in ways {
        let settled = ok(queue.settle(vec![(receipt.clone(), how.clone())]).await);
        assert!(matches!(settled[..], [Err(QueueError::LeaseLost)]), "{why}: {how:?}: {settled:?}");
    }
    let extended = queue.extend(receipt, MINUTE).await;
    assert!(matches!(extended, Err(QueueError::LeaseLost)), "{why}: extended: {extended:?}");
}

// Guarantee: queue 3.
/// Receipts and ids of messages do not repeat after a message is gone, so an old receipt never
/// settles another message.
pub async fn no_receipt_and_no_id_is_given_twice(fixture: &Fixture<dyn Queue>) {
    let (queue, letters) = (fixture.port(), dead(fixture.port()));
    let (mut ids, mut receipts) = (Vec::new(), Vec::<Receipt>::new());
    for round in 0..8 {
        ids.push(ok(queue.send_one(Message::new("a")).await));
        let delivery = one(queue, MINUTE).await;
        receipts.push(delivery.receipt.clone());
        match round % 4 {
            0 => ok(queue.complete(&delivery.receipt).await),
            1 => assert_eq!(ok(fixture.other().purge().await), 1),
            2 => {
                ok(queue.release(&delivery.receipt, Duration::ZERO).await);
                let again = one(fixture.other(), MINUTE).await;
                receipts.push(again.receipt.clone());
                ok(queue.complete(&again.receipt).await);
            }
            _ => {
                ok(queue.dead_letter(&delivery.receipt, "no").await);
                let letter = one(&*letters, MINUTE).await;
                receipts.push(letter.receipt.clone());
                ok(letters.complete(&letter.receipt).await);
            }
        }
    }
    ids.push(ok(queue.send_one(Message::new("last")).await));
    let last = one(queue, MINUTE).await;
    let of_messages: BTreeSet<_> = ids.iter().collect();
    assert_eq!(of_messages.len(), ids.len(), "an id was given twice: {ids:?}");
    for (at, receipt) in receipts.iter().enumerate() {
        assert!(*receipt != last.receipt && !receipts[..at].contains(receipt), "{receipt} was given twice");
        assert_stale(queue, receipt, "of a message that is gone").await;
    }
    ok(queue.complete(&last.receipt).await);
}

// Guarantee: queue 3.
/// The receipt of a message has no effect at the queue of the dead letters, nor that of a dead
/// letter at the queue, nor that of the delivery before it became one.
pub async fn a_receipt_of_another_queue_is_stale(fixture: &Fixture<dyn Queue>) {
    let (queue, letters) = (fixture.port(), dead(fixture.port()));
    send(queue, &["1", "2", "3", "4", "5", "6"]).await;
    let mut kept = take(queue, 6, MINUTE).await;
    let moved = kept.split_off(3);
    for delivery in &moved {
        ok(queue.dead_letter(&delivery.receipt, "no").await);
    }
    let taken = take(&*letters, 3, MINUTE).await;
    assert_eq!(taken.len(), 3);
    for delivery in kept.iter().chain(&moved) {
        assert_stale(&*letters, &delivery.receipt, "of the queue, at the dead letters").await;
    }
    for letter in &taken {
        assert_stale(queue, &letter.receipt, "of a dead letter, at the queue").await;
    }
    for (delivery, letter) in kept.iter().zip(&taken) {
        ok(fixture.other().complete(&delivery.receipt).await);
        ok(letters.complete(&letter.receipt).await);
    }
    assert_eq!((ok(queue.depth().await).total(), ok(letters.depth().await).total()), (0, 0));
}

// Guarantee: queue 3.
/// A text or a number that is no receipt is answered as a stale one.
pub async fn nonsense_is_a_stale_receipt(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let delivery = one(queue, MINUTE).await;
    let texts = ["", "nonsense", "0", "0:1", "1-1", "-1", "'", "\u{0}", "{}", "99999999999999999999999:0:#1#1"];
    let mut receipts: Vec<_> = texts.into_iter().map(Receipt::new).collect();
    receipts.push(Receipt::new("x".repeat(5_000)));
    for (one, other) in [(0, 0), (1, 0), (0, u64::MAX), (u64::MAX, 1), (u64::MAX, u64::MAX)] {
        receipts.push(Receipt::from_numbers(one, other));
    }
    for receipt in receipts.iter().filter(|receipt| **receipt != delivery.receipt) {
        assert_stale(queue, receipt, "no receipt").await;
    }
    ok(queue.complete(&delivery.receipt).await);
}

// Guarantee: queue 3.
/// A delivery is extended and settled through another handle than the one that received it.
pub async fn a_receipt_is_valid_at_each_handle(fixture: &Fixture<dyn Queue>) {
    let (queue, other) = (fixture.port(), fixture.other());
    send(queue, &["a", "b", "c", "d"]).await;
    let taken = take(queue, 4, MINUTE).await;
    ok(other.extend(&taken[0].receipt, MINUTE).await);
    ok(other.complete(&taken[0].receipt).await);
    ok(other.abandon(&taken[1].receipt, Duration::ZERO).await);
    ok(other.release(&taken[2].receipt, Duration::ZERO).await);
    ok(other.dead_letter(&taken[3].receipt, "no").await);
    let letter = one(&*dead(queue), MINUTE).await;
    ok(dead(other).complete(&letter.receipt).await);
    let mut again = take(other, 10, MINUTE).await;
    again.sort_by(|one, other| one.body.cmp(&other.body));
    assert_eq!(bodies(&again), ["b", "c"]);
    assert_eq!(again.iter().map(|delivery| delivery.attempts).collect::<Vec<_>>(), [1, 0]);
}

// Guarantee: queue 3.
/// Of several settlements with one receipt, the first one takes effect, within a request and of two
/// requests at once.
pub async fn a_receipt_settles_once(fixture: &Fixture<dyn Queue>) {
    const MESSAGES: usize = 10;
    let (queue, other) = (fixture.port(), fixture.other());
    send(queue, &["a"]).await;
    let receipt = one(queue, MINUTE).await.receipt;
    let twice = [Settle::Complete, Settle::dead_letter("again"), Settle::Complete];
    let settled = ok(queue.settle(twice.map(|how| (receipt.clone(), how)).into()).await);
    assert!(matches!(settled[..], [Ok(()), Err(QueueError::LeaseLost), Err(QueueError::LeaseLost)]), "{settled:?}");
    send_many(queue, (0..MESSAGES).map(|i| Message::new(format!("{i}"))).collect()).await;
    let taken = take(queue, MESSAGES, MINUTE).await;
    let all = |how: Settle| -> Vec<_> { taken.iter().map(|it| (it.receipt.clone(), how.clone())).collect() };
    let (completes, letters) = (all(Settle::Complete), all(Settle::dead_letter("no")));
    let (completed, moved) = both(queue.settle(completes), other.settle(letters)).await;
    let (completed, moved) = (ok(completed), ok(moved));
    for (completed, moved) in completed.iter().zip(&moved) {
        assert!(completed.is_ok() != moved.is_ok(), "one succeeds: {completed:?}, {moved:?}");
    }
    let moved = moved.iter().filter(|moved| moved.is_ok()).count() as u64;
    assert_eq!((ok(queue.depth().await).total(), ok(dead(queue).depth().await).total()), (0, moved));
}

/// A request has any number of settlements, and an answer for each.
pub async fn many_settlements_are_answered_in_one_request(fixture: &Fixture<dyn Queue>) {
    let (queue, batch) = (fixture.port(), fixture.port().capabilities().max_batch().min(1_000));
    for messages in [batch, 1] {
        ok(queue.send((0..messages).map(|i| Message::new(format!("{i}"))).collect()).await);
    }
    let taken = take(queue, batch + 1, MINUTE).await;
    assert_eq!(taken.len(), batch + 1);
    let all = taken.into_iter().map(|delivery| (delivery.receipt, Settle::Complete)).collect();
    let settled = ok(fixture.other().settle(all).await);
    assert_eq!(settled.iter().filter(|settled| settled.is_ok()).count(), batch + 1);
    assert_eq!(ok(queue.depth().await).total(), 0);
}
