//! What every [`Notifier`] must hold.
use std::time::Duration;

use bytes::Bytes;

use super::Fixture;
use crate::{
    notify::{Notice, Notices, Notifier},
    port::{PortError, PortErrorKind},
    race::{First, race},
};

/// Makes one named test of each case of the notifier's contract.
#[macro_export]
macro_rules! notifier_conformance {
    ($make:expr) => {
        $crate::conformance_cases!(notify, $make;
            what_is_published_is_heard_by_all_subscribers,
            what_was_published_before_is_not_heard,
            notices_come_in_the_publishers_order,
            topics_are_apart,
            a_dropped_recv_loses_nothing,
            a_slow_subscriber_holds_nobody_up_and_is_told_of_a_gap,
            a_busy_topic_makes_no_gap_in_another,
            what_makes_no_sense_is_refused,
        );
    };
}

const SHORT: Duration = Duration::from_millis(100);

fn ok<T>(result: Result<T, PortError>) -> T {
    result.unwrap_or_else(|error| panic!("the backend failed: {error}"))
}

async fn publish(notifier: &dyn Notifier, topic: &str, text: &str) {
    ok(notifier.publish(topic, Bytes::from(text.to_owned())).await);
}

/// The next notice; time passes until it is there.
async fn heard(fixture: &Fixture<dyn Notifier>, notices: &mut Notices) -> Notice {
    let passes = async {
        loop {
            fixture.pass(SHORT).await;
        }
    };
    match race(notices.recv(), passes).await {
        First::One(notice) => notice,
        First::Other(()) => Notice::Gap,
    }
}

fn message(text: &str) -> Notice {
    Notice::Message(Bytes::from(text.to_owned()))
}

// Guarantee: notify 1.
/// Each subscriber hears it, at either door.
pub async fn what_is_published_is_heard_by_all_subscribers(fixture: &Fixture<dyn Notifier>) {
    let mut here = ok(fixture.port().subscribe("t").await);
    let mut there = ok(fixture.other().subscribe("t").await);
    publish(fixture.port(), "t", "a").await;
    assert_eq!(heard(fixture, &mut here).await, message("a"));
    assert_eq!(heard(fixture, &mut there).await, message("a"));
    publish(fixture.other(), "t", "").await;
    assert_eq!(heard(fixture, &mut here).await, message(""));
    publish(fixture.port(), "nobody", "hears this").await;
}

// Guarantee: notify 1.
/// From the subscription on, and not before.
pub async fn what_was_published_before_is_not_heard(fixture: &Fixture<dyn Notifier>) {
    publish(fixture.port(), "t", "before").await;
    let mut notices = ok(fixture.port().subscribe("t").await);
    publish(fixture.other(), "t", "after").await;
    assert_eq!(heard(fixture, &mut notices).await, message("after"));
}

// Guarantee: notify 2.
/// One publisher's notices in its order.
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
/// A topic's notices are its own, whatever it is called.
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
/// A `recv` that is dropped while it waits takes no notice with it.
pub async fn a_dropped_recv_loses_nothing(fixture: &Fixture<dyn Notifier>) {
    let mut notices = ok(fixture.port().subscribe("t").await);
    let mut all = Vec::new();
    for i in 0..5 {
        if let First::Other(notice) = race(fixture.pass(SHORT / 10), notices.recv()).await {
            all.push(notice);
        }
        publish(fixture.port(), "t", &i.to_string()).await;
    }
    while all.len() < 5 {
        all.push(heard(fixture, &mut notices).await);
    }
    assert_eq!(all, [0, 1, 2, 3, 4].map(|i| message(&i.to_string())));
}

/// Publishes so many notices to this topic, and waits until all are.
async fn publish_many(fixture: &Fixture<dyn Notifier>, topic: &'static str, many: usize) {
    let publishers: Vec<_> = (0..8)
        .map(|_| {
            let door = fixture.shared();
            tokio::spawn(async move {
                for i in 0..many / 8 {
                    publish(&*door, topic, &i.to_string()).await;
                }
            })
        })
        .collect();
    for publisher in publishers {
        publisher.await.unwrap_or_else(|e| panic!("a publisher: {e}"));
    }
}

// Guarantee: notify 3.
/// A subscriber of a quiet topic hears each of its notices, however many there are of another topic
/// meanwhile.
pub async fn a_busy_topic_makes_no_gap_in_another(fixture: &Fixture<dyn Notifier>) {
    let mut notices = ok(fixture.other().subscribe("quiet").await);
    for i in 0..4 {
        publish(fixture.port(), "quiet", &i.to_string()).await;
        publish_many(fixture, "busy", 2800).await;
        fixture.pass(SHORT).await;
    }
    for i in 0..4 {
        assert_eq!(heard(fixture, &mut notices).await, message(&i.to_string()));
    }
}

// Guarantee: notify 3, 4.
/// Twelve thousand notices that nobody reads: the publisher goes on; the reader hears all of them,
/// or of a gap, and the last.
pub async fn a_slow_subscriber_holds_nobody_up_and_is_told_of_a_gap(fixture: &Fixture<dyn Notifier>) {
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
    }
    assert!(count == MANY || gaps > 0, "{count} of {MANY} heard, and no gap");
}

/// An empty topic, a notice that is too large.
pub async fn what_makes_no_sense_is_refused(fixture: &Fixture<dyn Notifier>) {
    let can = fixture.port().capabilities();
    let refused = |result: Result<(), PortError>| assert!(result.is_err_and(|e| e.kind() == PortErrorKind::Invalid));
    refused(fixture.port().publish("", Bytes::new()).await);
    refused(fixture.port().subscribe("").await.map(drop));
    if can.max_value() < 1 << 30 {
        refused(fixture.port().publish("t", vec![0; can.max_value() + 1].into()).await);
    }
    if can.max_key() < 1 << 20 {
        refused(fixture.port().publish(&"t".repeat(can.max_key() + 1), Bytes::new()).await);
    }
}
