//! Restarts, lost connections and jumps of the wall clock, by the fixture's hooks.
use super::*;
use crate::race::both;

// Guarantee: queue 1.
/// With `Durable`, messages, their order, their counts and the dead letters are after a restart as
/// they were before it. A hidden message stays hidden, and its receipt stays valid.
pub async fn what_was_accepted_outlives_a_restart(fixture: &mut Fixture<dyn Queue>) {
    fixture.assert_can_restart(fixture.port().capabilities());
    if !fixture.can_restart() {
        return;
    }
    let queue = fixture.port();
    send(queue, &["completed", "dead", "abandoned", "held"]).await;
    let mut taken = take(queue, 4, MINUTE).await;
    taken.sort_by(|one, other| one.body.cmp(&other.body));
    let [abandoned, completed, dead_letter, held] = &taken[..] else { panic!("four were sent: {taken:?}") };
    ok(queue.abandon(&abandoned.receipt, Duration::ZERO).await);
    ok(queue.complete(&completed.receipt).await);
    ok(queue.dead_letter(&dead_letter.receipt, "no").await);
    ok(queue.send_one(Message::new("headed").header("kind", "test")).await);
    let delays = queue.capabilities().has(Capability::Delay);
    if delays {
        ok(queue.send_one(Message::new("late").delay(MINUTE)).await);
    }
    let (before, identity) = (ok(queue.depth().await), queue.identity());
    fixture.restart().await;
    let queue = fixture.port();
    assert_eq!((ok(queue.depth().await), queue.identity()), (before, identity));
    let taken = take(queue, 10, MINUTE).await;
    assert_eq!(bodies(&taken), ["abandoned", "headed"]);
    assert_eq!((taken[0].deliveries, taken[0].attempts, &taken[0].id), (2, 1, &abandoned.id));
    assert_eq!(taken[1].headers.get("kind").map(String::as_str), Some("test"));
    let letter = one(&*dead(fixture.other()), MINUTE).await;
    assert_eq!((&letter.id, letter.reason.as_deref()), (&dead_letter.id, Some("no")));
    let again = queue.complete(&completed.receipt).await;
    assert!(again.as_ref().is_err_and(QueueError::is_lease_lost), "{again:?}");
    ok(fixture.other().complete(&held.receipt).await);
    let depth = ok(queue.depth().await);
    assert_eq!((depth.visible, depth.delayed, depth.in_flight), (0, u64::from(delays), 2));
}

// Guarantee: queue 2.
/// A visibility time-out and a delay go on over a restart, and end in time.
pub async fn hidden_messages_return_after_a_restart(fixture: &mut Fixture<dyn Queue>) {
    if !fixture.can_restart() {
        return;
    }
    send(fixture.port(), &["held"]).await;
    let old = one(fixture.port(), a_while() * 2).await;
    if fixture.port().capabilities().has(Capability::Delay) {
        ok(fixture.port().send_one(Message::new("late").delay(a_while() * 2)).await);
    }
    fixture.pass(a_while()).await;
    fixture.restart().await;
    fixture.pass(a_while() + a_while() / 5).await;
    let taken = take(fixture.port(), 10, MINUTE).await;
    let held = taken.iter().find(|delivery| delivery.id == old.id);
    assert_eq!(held.map(|held| (held.deliveries, held.attempts)), Some((2, 1)), "{taken:?}");
    assert_eq!(taken.len(), 1 + usize::from(fixture.port().capabilities().has(Capability::Delay)));
    assert!(fixture.port().complete(&old.receipt).await.is_err_and(|error| error.is_lease_lost()));
}

// Guarantee: queue 7.
/// A de-duplication id is known after a restart, also that of a completed message.
pub async fn duplicates_are_known_after_a_restart(fixture: &mut Fixture<dyn Queue>) {
    if !fixture.can_restart() || !fixture.port().capabilities().has(Capability::Deduplication) {
        return;
    }
    let message = |id: &str| Message::new(id.to_owned()).deduplicate(id);
    let done = ok(fixture.port().send_one(message("done")).await);
    ok(fixture.port().complete(&one(fixture.port(), MINUTE).await.receipt).await);
    let waits = ok(fixture.port().send_one(message("waits")).await);
    fixture.restart().await;
    assert_eq!(ok(fixture.port().send_one(message("done")).await), done);
    assert_eq!(ok(fixture.other().send_one(message("waits")).await), waits);
    assert_eq!(ok(fixture.port().depth().await).total(), 1);
}

// Guarantee: queue 4.
/// A group keeps its order over a restart, and stays blocked by a hidden message.
pub async fn groups_keep_their_order_over_a_restart(fixture: &mut Fixture<dyn Queue>) {
    if !fixture.can_restart() || !fixture.port().capabilities().has(Capability::Groups) {
        return;
    }
    for body in ["1", "2", "3"] {
        ok(fixture.port().send_one(Message::new(body).group("g")).await);
    }
    let first = one(fixture.port(), MINUTE).await;
    fixture.restart().await;
    assert_eq!(take(fixture.port(), 10, MINUTE).await, [], "the first of the group is hidden");
    ok(fixture.port().complete(&first.receipt).await);
    for body in ["2", "3"] {
        let next = one(fixture.other(), MINUTE).await;
        assert_eq!((&next.body[..], next.group.as_deref()), (body.as_bytes(), Some("g")));
        ok(fixture.other().complete(&next.receipt).await);
    }
}

// Guarantee: queue 6.
/// A receive whose connection is lost goes on or returns an error; no message is lost, and later
/// receives work.
pub async fn a_lost_connection_loses_no_message(fixture: &Fixture<dyn Queue>) {
    if !fixture.can_cut() {
        return;
    }
    for round in 0..3 {
        let receiver = fixture.shared();
        let waits = receiver.receive(Receive::new(5, a_while()).wait(MINUTE));
        let cuts = async {
            fixture.pass(a_while() / 10).await;
            fixture.cut().await;
            // The receiver may learn of the cut before the message is there.
            fixture.pass(a_while() / 10).await;
            // Connections of the second handle may be lost as well.
            for _ in 0..100 {
                if fixture.other().send_one(Message::new(round.to_string())).await.is_ok() {
                    break;
                }
                fixture.pass(a_while() / 4).await;
            }
        };
        let (taken, ()) = fixture.within(MINUTE * 2, "the receive whose connection was cut", both(waits, cuts)).await;
        match taken {
            Ok(taken) if !taken.is_empty() => assert_eq!(&taken[0].body[..], round.to_string().as_bytes()),
            // An error, or an early end: the message may have been taken, and returns then.
            _ => fixture.pass(a_while() + a_while() / 5).await,
        }
        let mut done = false;
        for _ in 0..100 {
            // An expired delivery, or the first one.
            if let Ok(taken) = receiver.receive(Receive::new(1, a_while())).await
                && let Some(delivery) = taken.first()
                && receiver.complete(&delivery.receipt).await.is_ok()
            {
                assert_eq!(&delivery.body[..], round.to_string().as_bytes());
                done = true;
                break;
            }
            fixture.pass(a_while() / 4).await;
        }
        assert!(done, "the message was lost with the connection");
        // Copies of a send that was repeated.
        while let Ok(copies) = fixture.other().receive(Receive::new(10, MINUTE)).await
            && !copies.is_empty()
        {
            for copy in copies {
                ok(fixture.other().complete(&copy.receipt).await);
            }
        }
    }
}

// Guarantee: queue 2.
/// A jump of the client's wall clock neither shortens nor prolongs a visibility time-out or a
/// delay.
pub async fn hidden_messages_follow_no_wall_clock(fixture: &Fixture<dyn Queue>) {
    const HOURS: Duration = Duration::from_secs(7200);
    if !fixture.set_wall(NOON) {
        return;
    }
    let queue = fixture.port();
    let delays = queue.capabilities().has(Capability::Delay);
    send(queue, &["long", "short"]).await;
    let mut taken = take(queue, 2, a_while()).await;
    taken.sort_by(|one, other| one.body.cmp(&other.body));
    ok(queue.extend(&taken[0].receipt, HOUR).await);
    if delays {
        ok(queue.send_one(Message::new("late").delay(HOUR)).await);
        ok(queue.send_one(Message::new("soon").delay(a_while())).await);
    }
    fixture.set_wall(later(NOON, HOURS));
    let expected = |queue: &[&str]| queue.iter().map(|body| (*body).to_owned()).collect::<Vec<_>>();
    let early = bodies(&take(fixture.other(), 10, a_while()).await);
    assert_eq!(early, expected(&[]), "the wall clock jumped forward");
    fixture.set_wall(NOON);
    fixture.pass(a_while() + a_while() / 10).await;
    let mut back = bodies(&take(fixture.other(), 10, MINUTE).await);
    back.sort_unstable();
    assert_eq!(back, expected(if delays { &["short", "soon"] } else { &["short"] }), "the wall clock jumped back");
}
