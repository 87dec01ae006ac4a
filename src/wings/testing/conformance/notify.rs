//! The contract of every [`Notifier`].
use std::time::Duration;

use bytes::Bytes;

use super::{
    Fixture,
    case::suite,
    fixture::{in_time, stretched},
    noise,
};
use crate::{
    notify::{Notice, Notices, Notifier},
    port::{Capability, PortError, PortErrorKind},
    race::{First, race, yield_now},
};

suite! {
    $
    /// Defines one named test for each case of the notifier's contract.
    notifier_conformance;
    /// Returns the cases of the notifier's contract.
    notify::cases -> dyn Notifier;
    a_notice_reaches_all_subscribers,
    a_notice_from_before_the_subscription_is_not_received,
    notices_come_in_the_publishers_order,
    topics_are_apart,
    a_dropped_recv_loses_nothing,
    a_slow_subscriber_delays_no_publisher_and_receives_a_gap,
    a_busy_topic_makes_no_gap_in_another,
    invalid_arguments_are_refused,
    notices_are_any_bytes_up_to_the_largest,
    equal_notices_all_arrive,
    each_subscription_of_a_handle_receives_each_notice,
    a_dropped_subscription_ends_no_other,
    a_waiting_subscriber_is_told_at_once,
    a_lost_connection_is_a_gap,
}

fn a_while() -> Duration {
    stretched(Duration::from_millis(100))
}

fn ok<T>(result: Result<T, PortError>) -> T {
    result.unwrap_or_else(|error| panic!("the backend failed: {error}"))
}

async fn publish(notifier: &dyn Notifier, topic: &str, text: &str) {
    let published = notifier.publish(topic, Bytes::from(text.to_owned()));
    ok(in_time("a publish", published).await);
}

/// Returns the next notice; lets time pass until it arrives.
async fn heard(fixture: &Fixture<dyn Notifier>, notices: &mut Notices) -> Notice {
    fixture.within(a_while() * 100, "the wait for a notice", notices.recv()).await
}

fn message(text: &str) -> Notice {
    Notice::Message(Bytes::from(text.to_owned()))
}

// Guarantee: notify 1.
/// Each subscriber receives a notice, through either handle.
pub async fn a_notice_reaches_all_subscribers(fixture: &Fixture<dyn Notifier>) {
    let mut here = ok(fixture.port().subscribe("t").await);
    let mut there = ok(fixture.other().subscribe("t").await);
    publish(fixture.port(), "t", "a").await;
    assert_eq!(heard(fixture, &mut here).await, message("a"));
    assert_eq!(heard(fixture, &mut there).await, message("a"));
    publish(fixture.other(), "t", "").await;
    assert_eq!(heard(fixture, &mut here).await, message(""));
    publish(fixture.port(), "no subscriber", "lost").await;
}

// Guarantee: notify 1.
/// A subscription starts with the notices after it.
pub async fn a_notice_from_before_the_subscription_is_not_received(fixture: &Fixture<dyn Notifier>) {
    publish(fixture.port(), "t", "before").await;
    let mut notices = ok(fixture.port().subscribe("t").await);
    publish(fixture.other(), "t", "after").await;
    assert_eq!(heard(fixture, &mut notices).await, message("after"));
}

// Guarantee: notify 2.
/// Notices of one publisher arrive in its order.
pub async fn notices_come_in_the_publishers_order(fixture: &Fixture<dyn Notifier>) {
    let mut notices = ok(fixture.other().subscribe("t").await);
    for i in 0..250 {
        publish(fixture.port(), "t", &i.to_string()).await;
    }
    for i in 0..250 {
        assert_eq!(heard(fixture, &mut notices).await, message(&i.to_string()));
    }
}

// Guarantee: notify 3.
/// Topics are independent, also those with unusual names.
pub async fn topics_are_apart(fixture: &Fixture<dyn Notifier>) {
    let topics = ["t", "T", "t.x", "t/*", "*", ">", "日本", "a b"];
    let mut all = Vec::new();
    for topic in topics {
        all.push((topic, ok(fixture.port().subscribe(topic).await)));
    }
    for topic in topics {
        publish(fixture.other(), topic, topic).await;
    }
    for (topic, notices) in &mut all {
        assert_eq!(heard(fixture, notices).await, message(topic));
    }
}

// Guarantee: notify 4.
/// A `recv` that is dropped loses no notice, neither while it waits nor while it takes one.
pub async fn a_dropped_recv_loses_nothing(fixture: &Fixture<dyn Notifier>) {
    const NOTICES: u32 = 12;
    let mut notices = ok(fixture.port().subscribe("t").await);
    let mut all = Vec::new();
    for i in 0..NOTICES {
        if let First::Other(notice) = race(fixture.pass(a_while() / 20), notices.recv()).await {
            all.push(notice);
        }
        publish(fixture.port(), "t", &i.to_string()).await;
        let after_some_polls = async {
            for _ in 0..i {
                yield_now().await;
            }
        };
        if let First::Other(notice) = race(after_some_polls, notices.recv()).await {
            all.push(notice);
        }
    }
    while all.len() < NOTICES as usize {
        all.push(heard(fixture, &mut notices).await);
    }
    assert_eq!(all, (0..NOTICES).map(|i| message(&i.to_string())).collect::<Vec<_>>());
}

/// Publishes `many` notices to this topic, and waits until all are published.
async fn publish_many(fixture: &Fixture<dyn Notifier>, topic: &'static str, many: usize) {
    let publishers: Vec<_> = (0..8)
        .map(|_| {
            let handle = fixture.shared();
            tokio::spawn(async move {
                for i in 0..many / 8 {
                    publish(&*handle, topic, &i.to_string()).await;
                }
            })
        })
        .collect();
    for publisher in publishers {
        publisher.await.unwrap_or_else(|e| panic!("a publisher: {e}"));
    }
}

// Guarantee: notify 3.
/// A subscriber of a quiet topic receives each of its notices during a flood of notices of another
/// topic.
pub async fn a_busy_topic_makes_no_gap_in_another(fixture: &Fixture<dyn Notifier>) {
    let mut notices = ok(fixture.other().subscribe("quiet").await);
    for i in 0..4 {
        publish(fixture.port(), "quiet", &i.to_string()).await;
        publish_many(fixture, "busy", 2800).await;
        fixture.pass(a_while()).await;
    }
    for i in 0..4 {
        assert_eq!(heard(fixture, &mut notices).await, message(&i.to_string()));
    }
}

// Guarantee: notify 3, 4.
/// Twelve thousand unread notices do not block the publisher; the subscriber receives all of them,
/// or a gap, and the last one.
pub async fn a_slow_subscriber_delays_no_publisher_and_receives_a_gap(fixture: &Fixture<dyn Notifier>) {
    const MANY: usize = 12_000;
    let mut notices = ok(fixture.port().subscribe("t").await);
    publish_many(fixture, "t", MANY).await;
    publish(fixture.port(), "t", "last").await;
    let (mut count, mut gaps) = (0, 0);
    loop {
        match heard(fixture, &mut notices).await {
            Notice::Gap => gaps += 1,
            Notice::Message(last) if last == "last" => break,
            Notice::Message(_) => count += 1,
        }
        assert!(count + gaps <= MANY, "{count} notices and {gaps} gaps came for {MANY} notices, without an end");
    }
    assert!(count == MANY || gaps > 0, "{count} of {MANY} received, and no gap");
}

// Guarantee: notify 5.
/// An empty topic, a topic that is too long and a notice that is too large are refused, with the
/// name of the argument, and reach no subscriber.
pub async fn invalid_arguments_are_refused(fixture: &Fixture<dyn Notifier>) {
    fn refused(result: Result<(), PortError>, field: &str) {
        let Err(error) = result else { panic!("an invalid `{field}` was accepted") };
        assert_eq!(error.kind(), PortErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(field), "names `{field}`: {error}");
    }
    let (notifier, can) = (fixture.port(), fixture.port().capabilities());
    let mut notices = ok(fixture.other().subscribe("t").await);
    refused(notifier.publish("", Bytes::new()).await, "topic");
    refused(notifier.subscribe("").await.map(drop), "topic");
    if can.max_value() < 1 << 30 {
        refused(notifier.publish("t", vec![0; can.max_value() + 1].into()).await, "notice");
    }
    if can.max_key() < 1 << 20 {
        let longest = noise(can.max_key());
        let mut notices = ok(notifier.subscribe(&longest).await);
        publish(fixture.other(), &longest, "a").await;
        assert_eq!(heard(fixture, &mut notices).await, message("a"));
        for long in [format!("{longest}t"), "é".repeat(can.max_key() / 2 + 1)] {
            refused(notifier.publish(&long, Bytes::new()).await, "topic");
            refused(notifier.subscribe(&long).await.map(drop), "topic");
        }
    }
    publish(notifier, "t", "valid").await;
    assert_eq!(heard(fixture, &mut notices).await, message("valid"));
}

// Guarantee: notify 5.
/// Notices arrive unchanged: empty, of bytes that are no text, and of the largest size.
pub async fn notices_are_any_bytes_up_to_the_largest(fixture: &Fixture<dyn Notifier>) {
    let mut notices = ok(fixture.other().subscribe("t").await);
    let largest = (1 << 20).min(fixture.port().capabilities().max_value());
    let bytes = |length: usize| Bytes::from_iter((0..length).map(|i| (i % 251) as u8));
    let all =
        [Bytes::new(), Bytes::from_iter(0..=255), Bytes::from_static(b"\0"), bytes(5000.min(largest)), bytes(largest)];
    for notice in &all {
        ok(fixture.port().publish("t", notice.clone()).await);
        let heard = heard(fixture, &mut notices).await;
        // Not printed: it is large.
        assert!(heard == Notice::Message(notice.clone()), "a notice of {} bytes was changed or lost", notice.len());
    }
}

// Guarantee: notify 2.
/// Equal notices are as many as were published.
pub async fn equal_notices_all_arrive(fixture: &Fixture<dyn Notifier>) {
    let mut notices = ok(fixture.other().subscribe("t").await);
    for text in ["same", "same", "same", "other", "same"] {
        publish(fixture.port(), "t", text).await;
    }
    for text in ["same", "same", "same", "other", "same"] {
        assert_eq!(heard(fixture, &mut notices).await, message(text));
    }
}

// Guarantee: notify 3.
/// Subscriptions do not share notices, neither those of one handle nor of one topic.
pub async fn each_subscription_of_a_handle_receives_each_notice(fixture: &Fixture<dyn Notifier>) {
    let mut all = Vec::new();
    for topic in ["t", "t", "t", "u"] {
        all.push(ok(fixture.port().subscribe(topic).await));
    }
    for text in ["1", "2", "3"] {
        publish(fixture.other(), "t", text).await;
        publish(fixture.port(), "u", text).await;
    }
    for notices in &mut all {
        for text in ["1", "2", "3"] {
            assert_eq!(heard(fixture, notices).await, message(text));
        }
    }
}

// Guarantee: notify 3.
/// Dropping a subscription ends no other one, of its topic or of another, and the topic can be
/// subscribed to again.
pub async fn a_dropped_subscription_ends_no_other(fixture: &Fixture<dyn Notifier>) {
    let dropped = ok(fixture.port().subscribe("t").await);
    let mut same = ok(fixture.port().subscribe("t").await);
    let mut another = ok(fixture.port().subscribe("u").await);
    drop(dropped);
    for round in ["1", "2"] {
        // Lets the backend end the subscription.
        fixture.pass(a_while()).await;
        for topic in ["t", "u"] {
            publish(fixture.other(), topic, round).await;
        }
        assert_eq!(heard(fixture, &mut same).await, message(round));
        assert_eq!(heard(fixture, &mut another).await, message(round));
    }
    drop(same);
    fixture.pass(a_while()).await;
    publish(fixture.port(), "t", "no subscriber").await;
    let mut again = ok(fixture.port().subscribe("t").await);
    publish(fixture.other(), "t", "again").await;
    assert_eq!(heard(fixture, &mut again).await, message("again"));
}

/// A subscriber that waits receives a notice of the same handle without polling, if the backend
/// states `Push`.
pub async fn a_waiting_subscriber_is_told_at_once(fixture: &Fixture<dyn Notifier>) {
    if !fixture.port().capabilities().has(Capability::Push) {
        return;
    }
    let mut notices = ok(fixture.other().subscribe("t").await);
    for i in 0..5 {
        let publishes = async {
            // The subscriber waits by then.
            fixture.pass(a_while() / 10).await;
            publish(fixture.port(), "t", &i.to_string()).await;
            std::future::pending().await
        };
        let told = async {
            match race(notices.recv(), publishes).await {
                First::One(notice) => notice,
                First::Other(never) => never,
            }
        };
        assert_eq!(in_time("the wait for a notice, while no time passes,", told).await, message(&i.to_string()));
    }
}

/// Publishes until a publish succeeds: connections may be lost.
async fn publish_after_a_cut(fixture: &Fixture<dyn Notifier>, text: &str) {
    for _ in 0..100 {
        if fixture.other().publish("t", Bytes::from(text.to_owned())).await.is_ok() {
            return;
        }
        fixture.pass(a_while()).await;
    }
    panic!("publishing fails after the connection was cut, and does not recover");
}

// Guarantee: notify 1, 4.
/// A notice that is published while the connection is lost arrives, or a gap does; later ones
/// arrive.
pub async fn a_lost_connection_is_a_gap(fixture: &Fixture<dyn Notifier>) {
    let mut notices = ok(fixture.port().subscribe("t").await);
    for round in 0..3 {
        let [before, missed] = ["before", "missed"].map(|text| format!("{text} {round}"));
        publish_after_a_cut(fixture, &before).await;
        // A gap of the former round may come late.
        for gaps in 0.. {
            if heard(fixture, &mut notices).await == message(&before) {
                break;
            }
            assert!(gaps < 20, "the subscription tells gaps, and no notices");
        }
        if !fixture.cut().await {
            return;
        }
        publish_after_a_cut(fixture, &missed).await;
        let told = heard(fixture, &mut notices).await;
        assert!(told == Notice::Gap || told == message(&missed), "{told:?} hides that a notice was missed");
        let mut is_restored = false;
        for i in 0..20 {
            let after = format!("after {round} {i}");
            publish_after_a_cut(fixture, &after).await;
            // Another gap: the notice may be missed again.
            loop {
                let told = heard(fixture, &mut notices).await;
                is_restored = told == message(&after);
                let Notice::Message(text) = told else { break };
                let is_earlier = !text.starts_with(format!("after {round}").as_bytes()) && text != missed;
                assert!(!is_earlier, "an earlier notice came again: {text:?}");
                if is_restored {
                    break;
                }
            }
            if is_restored {
                break;
            }
        }
        assert!(is_restored, "the subscription tells gaps, and no notices");
    }
}
