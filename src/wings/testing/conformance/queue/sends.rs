//! Sending: all messages of a request or none, and their ids.
use super::*;

// Guarantee: queue 1.
/// A send returns the id of each message, in the order of the request.
pub async fn ids_are_those_of_the_messages_in_their_order(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    // More than ten, so that an order of ids as texts differs from that of sending.
    let expected: Vec<String> = (10..34).map(|i| format!("{i}")).collect();
    let mut ids = Vec::new();
    for (at, some) in expected.chunks(8).enumerate() {
        let handle = if at == 1 { fixture.other() } else { queue };
        ids.extend(send_many(handle, some.iter().map(|body| Message::new(body.clone())).collect()).await);
    }
    let taken = take(fixture.other(), expected.len(), MINUTE).await;
    assert_eq!(bodies(&taken), expected);
    assert_eq!(taken.into_iter().map(|delivery| delivery.id).collect::<Vec<_>>(), ids);
}

// Guarantee: queue 1.
/// One invalid message refuses the whole request, wherever it stands. The others can be sent again:
/// their de-duplication ids were not remembered.
pub async fn a_send_with_an_invalid_message_accepts_none(fixture: &Fixture<dyn Queue>) {
    let (queue, can) = (fixture.port(), fixture.port().capabilities());
    let (groups, deduplicates) = (can.has(Capability::Groups), can.has(Capability::Deduplication));
    let long = (can.max_key() < 1 << 20).then(|| "x".repeat(can.max_key() + 1));
    let mut invalid = Vec::new();
    for key in ["".to_owned()].into_iter().chain(long) {
        if groups {
            invalid.push((Message::new("").group(key.clone()), "group"));
        }
        if deduplicates {
            invalid.push((Message::new("").deduplicate(key), "deduplication_id"));
        }
    }
    let valid = |body: &'static str| {
        let message = Message::new(body);
        if deduplicates { message.deduplicate(body) } else { message }
    };
    for (invalid, field) in invalid {
        // A queue that takes one message in a request is asked for the invalid one alone.
        let others = can.max_batch().min(3) - 1;
        for at in 0..=others {
            let mut messages = [valid("a"), valid("b")][..others].to_vec();
            messages.insert(at, invalid.clone());
            let error = queue.send(messages).await.expect_err("a message is invalid");
            assert_eq!(error.backend().map(crate::port::PortError::kind), Some(PortErrorKind::Invalid), "{error}");
            assert!(error.to_string().contains(field), "{error}");
        }
    }
    assert_eq!(ok(fixture.other().depth().await).total(), 0);
    send_many(queue, vec![valid("a"), valid("b")]).await;
    assert_eq!(bodies(&take(fixture.other(), 10, MINUTE).await), ["a", "b"]);
}

// Guarantee: queue 1.
/// A send that is dropped at any point accepts all of its messages, or none.
pub async fn a_dropped_send_accepts_all_messages_or_none(fixture: &Fixture<dyn Queue>) {
    let sent = fixture.port().capabilities().max_batch().min(4);
    for polls in 0..8 {
        let messages = (0..sent).map(|_| Message::new(format!("{polls}"))).collect();
        poll_times(polls, fixture.port().send(messages)).await;
    }
    // A request that was under way takes effect in the meantime.
    fixture.pass(a_while()).await;
    let taken = bodies(&take(fixture.other(), 8 * sent, MINUTE).await);
    for polls in 0..8 {
        let accepted = taken.iter().filter(|body| **body == format!("{polls}")).count();
        assert!([0, sent].contains(&accepted), "{accepted} of {sent} messages were accepted");
    }
}

// Guarantee: queue 9.
/// A full queue refuses a send as a whole, and accepts duplicates of known messages. Hidden
/// messages take places, settled ones none.
pub async fn a_full_queue_refuses_all_messages_of_a_send(fixture: &Fixture<dyn Queue>) {
    let Some(bound) = fixture.bound() else { return };
    let (queue, can) = (fixture.port(), fixture.port().capabilities());
    let full = |result: Result<Vec<MessageId>, QueueError>| {
        let error = result.expect_err("the queue is full");
        let kind = error.backend().map(crate::port::PortError::kind);
        assert_eq!((error.class(), kind), (ErrorClass::Throttled, Some(PortErrorKind::Full)), "{error}");
        assert!(!error.may_have_been_applied(), "{error}");
    };
    let some = |messages: usize| vec![Message::new("a"); messages];
    let mut sent = 0;
    while sent < bound - 2 {
        let messages = (bound - 2 - sent).min(can.max_batch()).min(1_000);
        ok(queue.send(some(messages)).await);
        sent += messages;
    }
    full(queue.send(some(3)).await);
    assert_eq!(ok(queue.depth().await).total(), bound as u64 - 2, "a part was accepted");
    ok(queue.send(some(1)).await);
    if can.has(Capability::Deduplication) {
        let twice = |id: &str| vec![Message::new("a").deduplicate(id), Message::new("a").deduplicate(id)];
        let ids = ok(queue.send(twice("known")).await);
        assert_eq!(ids[0], ids[1], "both take one place");
        assert_eq!(ok(fixture.other().send(twice("known")).await), ids, "duplicates take no place");
        full(queue.send(vec![Message::new("a").deduplicate("known"), Message::new("a").deduplicate("new")]).await);
    } else {
        ok(queue.send(some(1)).await);
    }
    full(fixture.other().send(some(1)).await);
    let held = one(queue, MINUTE).await;
    full(queue.send(some(1)).await);
    ok(queue.complete(&held.receipt).await);
    ok(queue.send(some(1)).await);
    assert_eq!(ok(queue.depth().await).total(), bound as u64);
}

// Guarantee: queue 7.
/// Of several messages with one de-duplication id in one request, the first one is enqueued.
pub async fn duplicates_within_a_request_are_accepted_once(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    if !queue.capabilities().has(Capability::Deduplication) {
        return;
    }
    let of = |body: &'static str, id: &str| Message::new(body).deduplicate(id);
    let ids = send_many(queue, vec![of("a", "1"), of("b", "1"), of("c", "2"), of("d", "1")]).await;
    assert!(ids[0] == ids[1] && ids[0] == ids[3] && ids[0] != ids[2], "{ids:?}");
    assert_eq!(bodies(&take(fixture.other(), 10, MINUTE).await), ["a", "c"]);
}

// Guarantee: queue 7.
/// Each of many ids is remembered, also while its message is in flight, and when it is completed or
/// a dead letter.
pub async fn each_of_many_ids_is_remembered(fixture: &Fixture<dyn Queue>) {
    const MESSAGES: usize = 60;
    let queue = fixture.port();
    if !queue.capabilities().has(Capability::Deduplication) {
        return;
    }
    let all = || (10..10 + MESSAGES).map(|i| Message::new(format!("{i}")).deduplicate(format!("{i}"))).collect();
    let ids = send_many(queue, all()).await;
    let again = async |state: &str| assert_eq!(send_many(fixture.other(), all()).await, ids, "messages are {state}");
    again("visible").await;
    let taken = take(queue, MESSAGES + 1, MINUTE).await;
    assert_eq!(taken.len(), MESSAGES);
    again("in flight").await;
    for (at, delivery) in taken.iter().enumerate() {
        match at % 3 {
            0 => ok(queue.complete(&delivery.receipt).await),
            1 => ok(queue.dead_letter(&delivery.receipt, "no").await),
            _ => ok(queue.abandon(&delivery.receipt, Duration::ZERO).await),
        }
    }
    again("settled").await;
    assert_eq!(take(queue, MESSAGES, MINUTE).await.len(), MESSAGES / 3);
    assert_eq!(take(&*dead(queue), MESSAGES, MINUTE).await.len(), MESSAGES / 3);
}

// Guarantee: queue 7.
/// Texts that differ in one byte are different ids, and different group keys, also if they are of
/// the largest stated size.
pub async fn keys_that_look_alike_are_different(fixture: &Fixture<dyn Queue>) {
    const KEYS: [&str; 14] =
        ["a", "A", "a ", " a", "á", "a\u{301}", "1", "01", "1.0", "a/b", "a%2Fb", "a:b", "a.b", "*"];
    let (queue, can) = (fixture.port(), fixture.port().capabilities());
    let mut keys = KEYS.map(str::to_owned).to_vec();
    if can.max_key() < 1 << 20 {
        let long = noise(can.max_key() - 1);
        keys.extend(["a", "b"].map(|end| format!("{long}{end}")));
    }
    let all = |message: fn(Message, String) -> Message| {
        keys.iter().map(|key| message(Message::new(key.clone()), key.clone())).collect()
    };
    if can.has(Capability::Deduplication) {
        let ids = send_many(queue, all(Message::deduplicate)).await;
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), keys.len());
        assert_eq!(ok(queue.purge().await), keys.len() as u64);
    }
    if can.has(Capability::Groups) {
        ok(queue.send(all(Message::group)).await);
        let taken = take(queue, keys.len(), MINUTE).await;
        assert!(taken.iter().all(|delivery| delivery.group.as_ref().is_some_and(|key| *key == delivery.body)));
        assert_eq!(taken.len(), keys.len(), "one group blocks another: {:?}", bodies(&taken));
    }
}
