//! Depth, peek, and the bounds of a receive.
use super::*;

/// The depth follows a message from state to state.
pub async fn the_depth_follows_each_message(fixture: &Fixture<dyn Queue>) {
    let (queue, can) = (fixture.port(), fixture.port().capabilities());
    let depth = async |state: &str, visible, delayed, in_flight| {
        let depth = ok(fixture.other().depth().await);
        assert_eq!(depth, Depth::new(visible, delayed, in_flight), "{state}");
    };
    send(queue, &["a"]).await;
    depth("sent", 1, 0, 0).await;
    one(queue, a_while()).await;
    depth("received", 0, 0, 1).await;
    fixture.pass(a_while() + a_while() / 10).await;
    depth("expired", 1, 0, 0).await;
    let second = one(queue, MINUTE).await;
    ok(queue.abandon(&second.receipt, a_while()).await);
    depth("abandoned, and hidden for a delay", 0, 0, 1).await;
    fixture.pass(a_while() + a_while() / 10).await;
    depth("back", 1, 0, 0).await;
    ok(queue.dead_letter(&one(queue, MINUTE).await.receipt, "no").await);
    depth("a dead letter", 0, 0, 0).await;
    if can.has(Capability::Delay) {
        ok(queue.send_one(Message::new("b").delay(a_while())).await);
        depth("delayed", 0, 1, 0).await;
        fixture.pass(a_while() + a_while() / 10).await;
        depth("due", 1, 0, 0).await;
        ok(queue.complete(&one(queue, MINUTE).await.receipt).await);
    }
    if can.has(Capability::Groups) {
        ok(queue.send(vec![Message::new("1").group("g"), Message::new("2").group("g")]).await);
        one(queue, MINUTE).await;
        depth("the second of a group counts as visible", 1, 0, 1).await;
    }
}

/// A peek returns the oldest messages with their state, at most as many as requested, and changes
/// none.
pub async fn a_peek_shows_the_oldest_messages_as_they_are(fixture: &Fixture<dyn Queue>) {
    let (queue, other, can) = (fixture.port(), fixture.other(), fixture.port().capabilities());
    send(queue, &["1", "2", "3"]).await;
    let mut expected = vec![("1", true), ("2", false), ("3", false)];
    if can.has(Capability::Delay) {
        ok(queue.send_one(Message::new("4").delay(MINUTE)).await);
        expected.push(("4", true));
    }
    let held: Vec<String> = bodies(&take(queue, 1, MINUTE).await);
    let shown = async |max: usize| -> Vec<(String, bool, u32)> {
        let peeked = ok(other.peek(max).await);
        peeked.iter().map(|it| (String::from_utf8_lossy(&it.body).into_owned(), it.hidden, it.deliveries)).collect()
    };
    for _ in 0..2 {
        let mut all = shown(10).await;
        if can.has(Capability::Ordered) {
            assert_eq!(shown(2).await, all[..2], "the oldest ones are first");
            assert_eq!(held, ["1"]);
        } else {
            all.sort_unstable();
            expected.iter_mut().for_each(|(body, hidden)| *hidden = *body == held[0] || *body == "4");
        }
        let expected: Vec<_> =
            expected.iter().map(|(body, hidden)| ((*body).to_owned(), *hidden, u32::from(*body == held[0]))).collect();
        assert_eq!(all, expected, "(body, hidden, deliveries)");
    }
    assert_eq!((shown(1).await.len(), shown(0).await.len()), (1, 0));
    assert!(shown(usize::MAX).await.len() >= 3, "a maximum above the largest batch is lowered");
    let taken = take(other, 10, MINUTE).await;
    assert_eq!((taken.len(), taken[0].deliveries), (2, 1), "a peek neither hides nor counts");
}

// Guarantee: queue 5.
/// A receive returns at most as many messages as requested, and never none while one is visible. A
/// maximum above the backend's own is lowered.
pub async fn a_receive_returns_between_one_and_its_maximum(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["1", "2", "3", "4", "5", "6"]).await;
    let mut all = Vec::new();
    for max in [1, 2, usize::MAX, usize::MAX, usize::MAX, usize::MAX] {
        let taken = ok(fixture.other().receive(Receive::new(max, MINUTE)).await);
        assert!(taken.len() <= max, "{} messages, at most {max} were requested", taken.len());
        assert!(!taken.is_empty() || all.len() == 6, "nothing was returned, and {} of 6 had come", all.len());
        all.extend(bodies(&taken));
    }
    all.sort_unstable();
    assert_eq!(all, ["1", "2", "3", "4", "5", "6"]);
}
