//! What every [`Queue`](crate::queue::Queue) must hold.
use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::Fixture;
use crate::{
    port::{Capability, Failure, PortErrorKind},
    queue::{Delivery, Message, Queue, QueueError, QueueExt, Receive, Settle},
    race::race,
};

/// Makes one named test of each case of the queue's contract.
#[macro_export]
macro_rules! queue_conformance {
    ($make:expr) => {
        $crate::conformance_cases!(queue, $make;
            an_empty_queue_gives_nothing_at_once,
            what_was_sent_is_received_by_the_other_door_and_completed,
            messages_come_in_the_order_of_sending,
            a_received_message_is_hidden_until_its_time_is_over,
            an_old_receipt_can_do_nothing,
            an_extended_message_stays_hidden,
            an_abandoned_message_comes_back_when_it_is_to,
            a_delayed_message_is_hidden_at_first,
            a_group_is_handed_out_one_at_a_time_in_order,
            a_duplicate_is_accepted_once,
            a_dead_letter_is_in_one_queue_with_its_reason,
            a_dead_letter_can_be_sent_again,
            settlements_are_answered_one_by_one,
            a_waiting_receiver_is_told,
            a_waiting_receiver_sees_what_comes_back,
            a_wait_that_is_over_gives_nothing,
            a_dropped_receive_loses_nothing,
            any_bytes_and_texts_come_through,
            what_is_too_large_is_refused_whole,
            what_makes_no_sense_is_refused,
            depth_counts_by_what_is_waited_for,
            a_peek_takes_nothing,
            a_purge_leaves_nothing_but_dead_letters,
            of_many_receivers_each_message_has_one,
        );
    };
}

const MINUTE: Duration = Duration::from_secs(60);
/// Short, for backends that live in real time.
const SHORT: Duration = Duration::from_millis(200);

fn ok<T>(result: Result<T, QueueError>) -> T {
    result.unwrap_or_else(|error| panic!("the backend failed: {error}"))
}

async fn send(queue: &dyn Queue, bodies: &[&str]) {
    ok(queue.send(bodies.iter().map(|body| Message::new(body.to_string())).collect()).await);
}

async fn take(queue: &dyn Queue, max: usize, visibility: Duration) -> Vec<Delivery> {
    ok(queue.receive(Receive::new(max, visibility)).await)
}

async fn one(queue: &dyn Queue, visibility: Duration) -> Delivery {
    take(queue, 1, visibility).await.pop().unwrap_or_else(|| panic!("there is a message"))
}

fn bodies(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|d| String::from_utf8_lossy(&d.body).into_owned()).collect()
}

fn dead(queue: &dyn Queue) -> Arc<dyn Queue> {
    queue.dead_letters().unwrap_or_else(|| panic!("a queue has dead letters"))
}

/// What cannot be done is refused as such.
fn assert_unsupported<T: std::fmt::Debug>(result: Result<T, QueueError>) {
    let error = result.expect_err("the capability is not stated");
    assert_eq!(error.backend().map(crate::port::PortError::kind), Some(PortErrorKind::Unsupported), "{error}");
}

/// An empty queue gives nothing, and does not wait.
pub async fn an_empty_queue_gives_nothing_at_once(fixture: &Fixture<dyn Queue>) {
    assert_eq!(take(fixture.port(), 10, MINUTE).await, []);
    assert_eq!(ok(fixture.port().depth().await).total(), 0);
}

/// Sent by one, received and completed by another, and then gone.
pub async fn what_was_sent_is_received_by_the_other_door_and_completed(fixture: &Fixture<dyn Queue>) {
    let message = Message::new("body").header("kind", "test").header("empty", "");
    let id = ok(fixture.port().send_one(message).await);
    let delivery = one(fixture.other(), MINUTE).await;
    assert_eq!((&delivery.id, &delivery.body[..], delivery.deliveries), (&id, &b"body"[..], 1));
    assert_eq!(delivery.headers.get("kind").map(String::as_str), Some("test"));
    assert_eq!((delivery.headers.len(), delivery.group, delivery.reason), (2, None, None));
    ok(fixture.other().complete(&delivery.receipt).await);
    assert_eq!(ok(fixture.port().depth().await).total(), 0);
    fixture.pass(MINUTE * 2).await;
    assert_eq!(take(fixture.port(), 10, MINUTE).await, []);
}

/// First in, first out, within a request and between them.
pub async fn messages_come_in_the_order_of_sending(fixture: &Fixture<dyn Queue>) {
    send(fixture.port(), &["1", "2", "3"]).await;
    send(fixture.other(), &["4", "5"]).await;
    assert_eq!(bodies(&take(fixture.port(), 2, MINUTE).await), ["1", "2"]);
    assert_eq!(bodies(&take(fixture.other(), 10, MINUTE).await), ["3", "4", "5"]);
}

/// Hidden for the visibility time-out, then back with its count raised and a new receipt.
pub async fn a_received_message_is_hidden_until_its_time_is_over(fixture: &Fixture<dyn Queue>) {
    send(fixture.port(), &["a"]).await;
    let first = one(fixture.port(), SHORT).await;
    assert_eq!(take(fixture.other(), 1, SHORT).await, []);
    fixture.pass(SHORT + SHORT / 10).await;
    let second = one(fixture.other(), SHORT).await;
    assert_eq!((second.id, second.deliveries), (first.id, 2));
    assert_ne!(second.receipt, first.receipt);
}

/// A receipt of an earlier delivery, or of a message that is settled, is refused, and nothing is changed.
pub async fn an_old_receipt_can_do_nothing(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let old = one(queue, SHORT).await.receipt;
    fixture.pass(SHORT + SHORT / 10).await;
    let current = one(queue, MINUTE).await;
    let lost = |result: Result<(), QueueError>| assert!(result.is_err_and(|e| e.is_lease_lost()), "the receipt is old");
    lost(queue.complete(&old).await);
    lost(queue.abandon(&old, Duration::ZERO).await);
    lost(queue.extend(&old, MINUTE).await);
    lost(queue.dead_letter(&old, "too late").await);
    assert_eq!(take(queue, 1, MINUTE).await, [], "it is hidden still");
    ok(queue.complete(&current.receipt).await);
    lost(queue.complete(&current.receipt).await);
    lost(queue.extend(&current.receipt, MINUTE).await);
    assert_eq!(ok(dead(queue).depth().await).total(), 0);
}

/// Extended, it is hidden for so long from then, and its receipt is good.
pub async fn an_extended_message_stays_hidden(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let delivery = one(queue, SHORT).await;
    ok(queue.extend(&delivery.receipt, MINUTE).await);
    fixture.pass(SHORT * 2).await;
    assert_eq!(take(fixture.other(), 1, SHORT).await, []);
    ok(queue.complete(&delivery.receipt).await);
}

/// Abandoned, it comes back at once, or after the time that was asked for; its receipt is worth nothing.
pub async fn an_abandoned_message_comes_back_when_it_is_to(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let first = one(queue, MINUTE).await;
    ok(queue.abandon(&first.receipt, Duration::ZERO).await);
    assert!(queue.complete(&first.receipt).await.is_err_and(|e| e.is_lease_lost()));
    let second = one(fixture.other(), MINUTE).await;
    assert_eq!(second.deliveries, 2);
    ok(fixture.other().abandon(&second.receipt, SHORT).await);
    assert_eq!(take(queue, 1, MINUTE).await, []);
    fixture.pass(SHORT + SHORT / 10).await;
    assert_eq!(one(queue, MINUTE).await.deliveries, 3);
}

/// A delayed message is hidden until its delay is over, and others pass it.
pub async fn a_delayed_message_is_hidden_at_first(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    let sent = queue.send_one(Message::new("late").delay(SHORT)).await;
    if !queue.capabilities().has(Capability::Delay) {
        return assert_unsupported(sent);
    }
    ok(sent);
    send(queue, &["now"]).await;
    assert_eq!(bodies(&take(queue, 10, MINUTE).await), ["now"]);
    fixture.pass(SHORT + SHORT / 10).await;
    assert_eq!(bodies(&take(fixture.other(), 10, MINUTE).await), ["late"]);
}

/// Of one group key none is visible behind one that is hidden, or that waits for its return; other keys are not held up.
pub async fn a_group_is_handed_out_one_at_a_time_in_order(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    let of = |group: &str, body: &str| Message::new(body.to_owned()).group(group);
    let sent = queue.send(vec![of("a", "a1"), of("a", "a2"), of("b", "b1"), Message::new("c")]).await;
    if !queue.capabilities().has(Capability::Groups) {
        return assert_unsupported(sent);
    }
    ok(sent);
    ok(queue.send_one(of("a", "a3").delay(SHORT * 4)).await);
    let first = take(queue, 10, SHORT).await;
    assert_eq!(bodies(&first), ["a1", "b1", "c"]);
    assert_eq!(first[0].group.as_deref(), Some("a"));
    ok(queue.abandon(&first[0].receipt, SHORT).await);
    assert_eq!(take(fixture.other(), 10, SHORT).await, [], "a1 waits for its return, and a2 for a1");
    fixture.pass(SHORT + SHORT / 10).await;
    let again = take(fixture.other(), 10, MINUTE).await;
    let a1 = again.iter().find(|d| &d.body[..] == b"a1").unwrap_or_else(|| panic!("a1 is back"));
    assert!(!bodies(&again).contains(&"a2".to_owned()));
    ok(queue.complete(&a1.receipt).await);
    let a2 = one(queue, MINUTE).await;
    assert_eq!(&a2.body[..], b"a2");
    ok(queue.dead_letter(&a2.receipt, "cannot").await);
    assert_eq!(take(queue, 10, MINUTE).await, [], "a3 has a delay of its own");
    fixture.pass(SHORT * 4).await;
    assert_eq!(bodies(&take(queue, 10, MINUTE).await), ["a3"]);
}

/// The same de-duplication id within the window: accepted with the first one's id, and not enqueued.
pub async fn a_duplicate_is_accepted_once(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    let message = |body: &'static str| Message::new(body).deduplicate("order-1");
    let first = queue.send_one(message("a")).await;
    if !queue.capabilities().has(Capability::Deduplication) {
        return assert_unsupported(first);
    }
    let first = ok(first);
    assert_eq!(ok(fixture.other().send_one(message("b")).await), first);
    let twice = ok(queue.send(vec![message("c"), Message::new("d").deduplicate("order-2")]).await);
    assert_eq!(twice[0], first);
    let taken = take(queue, 10, MINUTE).await;
    assert_eq!(bodies(&taken), ["a", "d"]);
    ok(queue.complete(&taken[0].receipt).await);
    assert_eq!(ok(queue.send_one(message("e")).await), first, "also when it was handled meanwhile");
    assert_eq!(take(queue, 10, MINUTE).await, []);
}

/// A dead letter leaves the queue, with its id, its reason, its count.
pub async fn a_dead_letter_is_in_one_queue_with_its_reason(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    ok(queue.send_one(Message::new("bad").header("h", "v")).await);
    let delivery = one(queue, MINUTE).await;
    ok(queue.dead_letter(&delivery.receipt, "not JSON: \"é\"").await);
    assert_eq!(ok(queue.depth().await).total(), 0);
    let letters = dead(fixture.other());
    let peeked = ok(letters.peek(10).await);
    assert_eq!(peeked.len(), 1);
    assert_eq!((&peeked[0].id, peeked[0].deliveries), (&delivery.id, 1));
    let letter = one(&*letters, MINUTE).await;
    assert_eq!((&letter.id, &letter.body[..]), (&delivery.id, &b"bad"[..]));
    assert_eq!(letter.reason.as_deref(), Some("not JSON: \"é\""));
    assert_eq!(letter.headers.get("h").map(String::as_str), Some("v"));
    assert!(letters.dead_letters().is_none(), "dead letters have none of their own");
    assert!(letters.dead_letter(&letter.receipt, "again").await.is_err());
    ok(letters.complete(&letter.receipt).await);
    assert_eq!(ok(dead(queue).depth().await).total(), 0);
}

/// From the dead letters back into the queue: sent anew, then completed there.
pub async fn a_dead_letter_can_be_sent_again(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["poison"]).await;
    let delivery = one(queue, MINUTE).await;
    ok(queue.dead_letter(&delivery.receipt, "the service was away").await);
    let letters = dead(queue);
    let letter = one(&*letters, MINUTE).await;
    ok(queue.send_one(Message::new(letter.body.clone())).await);
    ok(letters.complete(&letter.receipt).await);
    let again = one(fixture.other(), MINUTE).await;
    assert_eq!((&again.body[..], again.deliveries, again.reason), (&b"poison"[..], 1, None));
    ok(queue.complete(&again.receipt).await);
}

/// Good and old receipts in one request: each has its own answer, in order.
pub async fn settlements_are_answered_one_by_one(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a", "b", "c"]).await;
    let taken = take(queue, 3, MINUTE).await;
    let old = taken[0].receipt.clone();
    ok(queue.complete(&old).await);
    let settled = ok(queue
        .settle(vec![
            (taken[1].receipt.clone(), Settle::abandon(Duration::ZERO)),
            (old, Settle::Complete),
            (taken[2].receipt.clone(), Settle::dead_letter("c")),
        ])
        .await);
    assert!(settled[0].is_ok() && settled[2].is_ok());
    assert!(matches!(settled[1], Err(QueueError::LeaseLost)));
    assert_eq!(bodies(&take(queue, 10, MINUTE).await), ["b"]);
    assert_eq!(ok(dead(queue).depth().await).total(), 1);
    assert_eq!(ok(queue.settle(Vec::new()).await).len(), 0);
}

/// Who waits gets what is sent meanwhile, by another door.
pub async fn a_waiting_receiver_is_told(fixture: &Fixture<dyn Queue>) {
    let receiver = fixture.shared();
    let waits = async { ok(receiver.receive(Receive::new(5, MINUTE).wait(MINUTE)).await) };
    let sends = async {
        fixture.pass(SHORT / 10).await;
        send(fixture.other(), &["a"]).await;
        // Where the doors cannot call each other, the receiver looks now and then.
        loop {
            fixture.pass(SHORT).await;
        }
    };
    match race(waits, sends).await {
        crate::race::First::One(taken) => assert_eq!(bodies(&taken), ["a"]),
        crate::race::First::Other(()) => {}
    }
}

/// Who waits gets a message whose time is over, too.
pub async fn a_waiting_receiver_sees_what_comes_back(fixture: &Fixture<dyn Queue>) {
    send(fixture.port(), &["a"]).await;
    let _held = one(fixture.other(), SHORT).await;
    let receiver = fixture.shared();
    let waits = async { ok(receiver.receive(Receive::new(5, MINUTE).wait(MINUTE)).await) };
    let passes = async {
        loop {
            fixture.pass(SHORT / 4).await;
        }
    };
    match race(waits, passes).await {
        crate::race::First::One(taken) => assert_eq!(taken[0].deliveries, 2),
        crate::race::First::Other(()) => {}
    }
}

/// A wait in which nothing comes ends with nothing.
pub async fn a_wait_that_is_over_gives_nothing(fixture: &Fixture<dyn Queue>) {
    let waits = async { ok(fixture.port().receive(Receive::new(1, MINUTE).wait(SHORT)).await) };
    let passes = async {
        loop {
            fixture.pass(SHORT / 4).await;
        }
    };
    match race(waits, passes).await {
        crate::race::First::One(taken) => assert_eq!(taken, []),
        crate::race::First::Other(()) => {}
    }
}

/// A receive that is dropped while it waits takes nothing with it.
pub async fn a_dropped_receive_loses_nothing(fixture: &Fixture<dyn Queue>) {
    for _ in 0..5 {
        let waits = fixture.port().receive(Receive::new(1, SHORT).wait(MINUTE));
        race(fixture.pass(SHORT / 20), waits).await;
    }
    let waits = fixture.port().receive(Receive::new(1, SHORT).wait(MINUTE));
    race(send(fixture.other(), &["a"]), waits).await;
    // If it had been taken, it is back by now.
    fixture.pass(SHORT * 2).await;
    assert_eq!(bodies(&take(fixture.port(), 5, MINUTE).await), ["a"]);
}

/// Bodies are any bytes; headers, groups and ids any text.
pub async fn any_bytes_and_texts_come_through(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    let all: Vec<u8> = (0..=255).collect();
    ok(queue.send_one(Message::new(all.clone())).await);
    ok(queue.send_one(Message::new("")).await);
    let odd = ["a/b", "%", "'; DROP TABLE messages; --", "\u{0}", "日本 \u{10ffff}", "\"\n\t"];
    let message = odd.iter().fold(Message::new("odd"), |message, text| message.header(*text, *text));
    ok(queue.send_one(message).await);
    let taken = take(fixture.other(), 10, MINUTE).await;
    assert_eq!((&taken[0].body[..], taken[1].body.len()), (&all[..], 0));
    assert!(odd.iter().all(|text| taken[2].headers.get(*text).is_some_and(|value| value == text)));
    if queue.capabilities().has(Capability::Groups) {
        for text in odd {
            ok(queue.send_one(Message::new("g").group(text)).await);
        }
        let groups: BTreeSet<_> = take(queue, 10, MINUTE).await.into_iter().filter_map(|d| d.group).collect();
        assert_eq!(groups, odd.iter().map(|text| (*text).to_owned()).collect());
    }
}

/// A body above the stated maximum, or more messages than one request takes, are refused before any is accepted.
pub async fn what_is_too_large_is_refused_whole(fixture: &Fixture<dyn Queue>) {
    let (queue, can) = (fixture.port(), fixture.port().capabilities());
    let refused = |result: Result<_, QueueError>| {
        let error = result.expect_err("it is too large");
        assert_eq!(error.backend().map(crate::port::PortError::kind), Some(PortErrorKind::Invalid), "{error}");
    };
    if can.max_value() < 1 << 30 {
        let large = Message::new(vec![0; can.max_value() + 1]);
        refused(queue.send(vec![Message::new("small"), large]).await);
    }
    if can.max_batch() < 1 << 20 {
        refused(queue.send(vec![Message::new("one of many"); can.max_batch() + 1]).await);
    }
    assert_eq!(ok(queue.depth().await).total(), 0);
}

/// No message at all, hidden for no time: refused by name.
pub async fn what_makes_no_sense_is_refused(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a"]).await;
    let refused = |result: Result<(), QueueError>, field: &str| {
        let error = result.expect_err("it makes no sense").to_string();
        assert!(error.contains(field), "{error}");
    };
    refused(queue.receive(Receive::new(0, MINUTE)).await.map(drop), "max");
    refused(queue.receive(Receive::new(1, Duration::ZERO)).await.map(drop), "visibility");
    let delivery = one(queue, MINUTE).await;
    refused(queue.extend(&delivery.receipt, Duration::ZERO).await, "visibility");
    ok(queue.complete(&delivery.receipt).await);
    assert_eq!(ok(queue.send(Vec::new()).await), []);
}

/// Visible, delayed, in flight.
pub async fn depth_counts_by_what_is_waited_for(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a", "b", "c"]).await;
    let delays = queue.capabilities().has(Capability::Delay);
    if delays {
        ok(queue.send_one(Message::new("d").delay(MINUTE)).await);
    }
    let _held = one(queue, MINUTE).await;
    let depth = ok(fixture.other().depth().await);
    assert_eq!((depth.visible, depth.delayed, depth.in_flight), (2, u64::from(delays), 1));
}

/// A peek shows the first, hidden ones too, and takes none.
pub async fn a_peek_takes_nothing(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a", "b", "c"]).await;
    let held = one(queue, MINUTE).await;
    let peeked = ok(fixture.other().peek(2).await);
    assert_eq!(peeked.len(), 2);
    assert_eq!((&peeked[0].id, peeked[0].hidden, peeked[0].deliveries), (&held.id, true, 1));
    assert_eq!((&peeked[1].body[..], peeked[1].hidden, peeked[1].deliveries), (&b"b"[..], false, 0));
    assert_eq!(bodies(&take(queue, 10, MINUTE).await), ["b", "c"]);
}

/// A purge deletes hidden and delayed ones too, and leaves dead letters.
pub async fn a_purge_leaves_nothing_but_dead_letters(fixture: &Fixture<dyn Queue>) {
    let queue = fixture.port();
    send(queue, &["a", "b", "c"]).await;
    let taken = take(queue, 2, MINUTE).await;
    ok(queue.dead_letter(&taken[0].receipt, "x").await);
    assert_eq!(ok(fixture.other().purge().await), 2);
    assert_eq!(ok(queue.depth().await).total(), 0);
    assert!(queue.complete(&taken[1].receipt).await.is_err_and(|e| e.is_lease_lost()));
    assert_eq!(ok(dead(queue).depth().await).total(), 1);
    send(queue, &["d"]).await;
    assert_eq!(bodies(&take(queue, 10, MINUTE).await), ["d"]);
}

/// Receivers at two doors: no message is with two of them, and each is completed once.
pub async fn of_many_receivers_each_message_has_one(fixture: &Fixture<dyn Queue>) {
    const MESSAGES: usize = 200;
    for chunk in (0..MESSAGES).collect::<Vec<_>>().chunks(50) {
        let messages = chunk.iter().map(|i| Message::new(i.to_string())).collect();
        ok(fixture.port().send(messages).await);
    }
    let receivers: Vec<_> = (0..8)
        .map(|i| {
            let queue = if i % 2 == 0 { fixture.shared() } else { fixture.shared_other() };
            tokio::task::spawn(async move {
                let mut done = Vec::new();
                loop {
                    let taken = take(&*queue, 1 + i, MINUTE).await;
                    if taken.is_empty() {
                        return done;
                    }
                    done.extend(bodies(&taken));
                    let all = taken.into_iter().map(|d| (d.receipt, Settle::Complete)).collect();
                    assert!(ok(queue.settle(all).await).into_iter().all(|settled| settled.is_ok()));
                }
            })
        })
        .collect();
    let mut done = Vec::new();
    for receiver in receivers {
        done.extend(receiver.await.unwrap_or_else(|e| panic!("a receiver: {e}")));
    }
    done.sort_unstable();
    let mut all: Vec<String> = (0..MESSAGES).map(|i| i.to_string()).collect();
    all.sort_unstable();
    assert_eq!(done, all);
    assert_eq!(ok(fixture.port().depth().await).total(), 0);
}
