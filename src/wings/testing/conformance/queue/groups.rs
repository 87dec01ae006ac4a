//! The order of messages with one group key, and what a group does not block.
use super::*;

fn of(group: &str, body: &str) -> Message {
    Message::new(body.to_owned()).group(group)
}

fn has_groups(fixture: &Fixture<dyn Queue>) -> bool {
    fixture.port().capabilities().has(Capability::Groups)
}

// Guarantee: queue 4.
/// A message that returns stays the first of its group, in whichever way its delivery ended.
pub async fn a_message_that_returns_stays_the_first_of_its_group(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    if !has_groups(fixture) {
        return;
    }
    ok(queue.send(vec![of("g", "1"), of("g", "2"), of("g", "3")]).await);
    for way in 0..4 {
        let first = take(fixture.other(), 10, a_while()).await;
        assert_eq!(bodies(&first), ["1"], "after {way} deliveries");
        assert_eq!(first[0].group.as_deref(), Some("g"));
        assert_eq!(take(queue, 10, MINUTE).await, [], "the rest of the group waits");
        match way {
            0 => ok(queue.abandon(&first[0].receipt, Duration::ZERO).await),
            1 => ok(queue.release(&first[0].receipt, Duration::ZERO).await),
            2 => fixture.pass(a_while() + a_while() / 10).await,
            _ => ok(queue.complete(&first[0].receipt).await),
        }
    }
    for body in ["2", "3"] {
        let next = take(queue, 10, MINUTE).await;
        assert_eq!(bodies(&next), [body]);
        ok(queue.complete(&next[0].receipt).await);
    }
}

// Guarantee: queue 4.
/// A delayed message holds back those behind it in its group, and no other.
pub async fn a_delayed_message_holds_its_group(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    if !has_groups(fixture) || !queue.capabilities().has(Capability::Delay) {
        return;
    }
    ok(queue.send(vec![of("g", "1").delay(a_while() * 2), of("g", "2"), of("h", "3")]).await);
    assert_eq!(bodies(&take(fixture.other(), 10, MINUTE).await), ["3"]);
    fixture.pass(a_while() * 2 + a_while() / 10).await;
    let first = take(fixture.other(), 10, MINUTE).await;
    assert_eq!(bodies(&first), ["1"]);
    ok(queue.complete(&first[0].receipt).await);
    assert_eq!(bodies(&take(queue, 10, MINUTE).await), ["2"]);
}

// Guarantee: queue 5.
/// Messages that cannot be received, however many, hide none behind them: neither hidden ones nor
/// the rest of a group.
pub async fn messages_that_wait_hide_no_other_message(fixture: &Fixture<dyn Queue>) {
    let (queue, batch) = (fixture.port(), fixture.port().capabilities().max_batch().min(150));
    let many = |message: Message| vec![message; batch];
    ok(queue.send(many(Message::new("hidden"))).await);
    assert_eq!(take(queue, batch, MINUTE).await.len(), batch);
    if has_groups(fixture) {
        ok(queue.send(many(of("g", "blocked"))).await);
        assert_eq!(take(queue, 10, MINUTE).await.len(), 1);
        ok(queue.send_one(of("h", "other group")).await);
    }
    send(queue, &["visible"]).await;
    let some = ok(fixture.other().receive(Receive::new(10, MINUTE)).await);
    assert!(!some.is_empty(), "a receive returned nothing while messages are visible");
    let mut found = [bodies(&some), bodies(&take(fixture.other(), 10, MINUTE).await)].concat();
    found.sort_unstable();
    assert_eq!(found, if has_groups(fixture) { vec!["other group", "visible"] } else { vec!["visible"] });
}

// Guarantee: queue 8.
/// The dead letters of a group keep its key, and come one at a time in the order of the group.
pub async fn dead_letters_of_a_group_come_in_its_order(fixture: &Fixture<dyn Queue>) {
    let (queue, letters) = (fixture.port(), dead(fixture.other()));
    if !has_groups(fixture) {
        return;
    }
    ok(queue.send(vec![of("g", "1"), of("g", "2"), of("g", "3"), of("h", "4")]).await);
    for _ in 0..3 {
        for delivery in take(queue, 10, MINUTE).await {
            ok(queue.dead_letter(&delivery.receipt, "no").await);
        }
    }
    let first = take(&*letters, 10, MINUTE).await;
    assert_eq!(sorted(&first), ["1", "4"]);
    let first = first.into_iter().find(|letter| &letter.body[..] == b"1").unwrap_or_else(|| panic!("it was found"));
    assert_eq!(first.group.as_deref(), Some("g"));
    ok(letters.abandon(&first.receipt, a_while()).await);
    assert_eq!(take(&*letters, 10, MINUTE).await, [], "the first one waits for its return");
    fixture.pass(a_while() + a_while() / 10).await;
    for body in ["1", "2", "3"] {
        let next = take(&*letters, 10, MINUTE).await;
        assert_eq!(bodies(&next), [body]);
        ok(letters.complete(&next[0].receipt).await);
    }
}

// Guarantee: queue 4.
/// After a purge a group begins anew: the receipt of its purged message frees nothing.
pub async fn a_purged_group_begins_anew(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    if !has_groups(fixture) {
        return;
    }
    ok(queue.send(vec![of("g", "1"), of("g", "2")]).await);
    let purged = one(queue, MINUTE).await;
    assert_eq!(ok(fixture.other().purge().await), 2);
    ok(queue.send(vec![of("g", "3"), of("g", "4")]).await);
    let first = take(queue, 10, MINUTE).await;
    assert_eq!(bodies(&first), ["3"]);
    assert!(queue.complete(&purged.receipt).await.is_err_and(|e| e.is_lease_lost()));
    assert_eq!(take(queue, 10, MINUTE).await, []);
    ok(queue.complete(&first[0].receipt).await);
    assert_eq!(bodies(&take(queue, 10, MINUTE).await), ["4"]);
}

// Guarantee: queue 4.
/// Receives at once, on two handles, never deliver two messages of one group, nor one message
/// twice, and keep the order of each group.
pub async fn receives_at_once_keep_groups_and_messages_apart(fixture: &Fixture<dyn Queue>) {
    const MESSAGES: usize = 36;
    let (queue, other) = (fixture.port(), fixture.other());
    // Two of three messages are of one of three groups.
    let message = |i: usize| {
        let message = Message::new(format!("{}", 10 + i));
        if has_groups(fixture) && !i.is_multiple_of(3) { message.group(format!("{}", i % 4)) } else { message }
    };
    send_many(queue, (0..MESSAGES).map(message).collect()).await;
    let mut done: Vec<String> = Vec::new();
    for _ in 0..MESSAGES * 2 {
        let one = both(queue.receive(Receive::new(3, MINUTE)), other.receive(Receive::new(3, MINUTE)));
        let more = both(other.receive(Receive::new(3, MINUTE)), queue.receive(Receive::new(3, MINUTE)));
        let ((a, b), (c, d)) = both(one, more).await;
        let taken = [ok(a), ok(b), ok(c), ok(d)].concat();
        let groups: Vec<_> = taken.iter().filter_map(|delivery| delivery.group.clone()).collect();
        assert_eq!(groups.iter().collect::<BTreeSet<_>>().len(), groups.len(), "a group has two receivers: {groups:?}");
        assert!(!taken.is_empty(), "nothing was delivered while messages are visible");
        done.extend(bodies(&taken));
        let all = taken.into_iter().map(|delivery| (delivery.receipt, Settle::Complete)).collect();
        assert!(ok(queue.settle(all).await).iter().all(Result::is_ok));
        if done.len() >= MESSAGES {
            break;
        }
    }
    let mut all = done.clone();
    all.sort_unstable();
    assert_eq!(all, (10..10 + MESSAGES).map(|i| format!("{i}")).collect::<Vec<_>>());
    let number = |body: &String| body.parse::<usize>().unwrap_or_default() - 10;
    if has_groups(fixture) {
        for group in 0..4 {
            let of_group: Vec<_> = done.iter().map(number).filter(|i| !i.is_multiple_of(3) && i % 4 == group).collect();
            assert!(of_group.is_sorted(), "{of_group:?}");
        }
    }
}
