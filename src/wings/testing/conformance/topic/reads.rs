//! Reads, with and without a wait.
use super::*;

// Guarantee: topic 3.
/// From each position, and with each maximum, a read returns the next events: some, in order.
pub async fn a_read_begins_anywhere_and_returns_at_most_the_maximum(fixture: &Fixture<dyn Topic>) {
    for size in [1, 7, 1, 2, 9] {
        append(fixture.port(), 0, events(0..size)).await;
    }
    for topic in [fixture.port(), fixture.other()] {
        for from in (1..=20).rev().chain(1..=20) {
            for max in [1, 2, 3, 8, 100] {
                let found = read(topic, 0, Read::from(from).max(max)).await;
                let expected: Vec<_> = (from..21).take(found.len()).collect();
                let offsets: Vec<_> = found.iter().map(|recorded| recorded.position.offset).collect();
                assert_eq!(offsets, expected, "from {from}, at most {max}");
                assert!((1..=max).contains(&found.len()), "{} events from {from}, at most {max}", found.len());
            }
        }
    }
}

// Guarantee: topic 3.
/// There is nothing beyond the end, also in an empty partition, and later appends are found.
pub async fn a_read_beyond_the_end_is_empty(fixture: &Fixture<dyn Topic>) {
    let topic = fixture.port();
    for from in [1, 2, 1000, u64::MAX] {
        assert_eq!(read(topic, 0, Read::from(from)).await, []);
    }
    append(topic, 0, events(0..3)).await;
    for from in [4, 5, 1000, u64::MAX] {
        assert_eq!(read(topic, 0, Read::from(from)).await, []);
    }
    append(fixture.other(), 0, events(3..10)).await;
    assert_eq!(bodies(&read(topic, 0, Read::from(5)).await)[0], "4");
}

// Guarantee: topic 3.
/// Readers follow a partition while two handles append to it: each sees each event once, in order.
pub async fn a_reader_misses_no_event_while_others_append(fixture: &Fixture<dyn Topic>) {
    const EVENTS: u64 = 120;
    let appends = (0..2).map(|task| {
        let topic = if task == 0 { fixture.shared() } else { fixture.shared_other() };
        tokio::spawn(async move {
            let mut left = EVENTS / 2;
            while left > 0 {
                let size = (left % 5 + 1).min(left);
                append(&*topic, 0, events(0..size)).await;
                left -= size;
            }
        })
    });
    let reads = (1..=3).map(|max| {
        let topic = if max == 2 { fixture.shared_other() } else { fixture.shared() };
        tokio::spawn(async move {
            let mut seen = 0;
            while seen < EVENTS {
                for event in read(&*topic, 0, Read::from(seen + 1).max(max)).await {
                    seen += 1;
                    assert_eq!(event.position.offset, seen, "a reader passed an event");
                }
                tokio::task::yield_now().await;
            }
        })
    });
    let tasks: Vec<_> = appends.chain(reads).collect();
    let all = async {
        for task in tasks {
            task.await.unwrap_or_else(|error| panic!("a task: {error}"));
        }
    };
    fixture.within_patience("readers and writers", all).await;
    assert_eq!(bounds(fixture.port(), 0).await, Bounds::new(1, EVENTS + 1));
}

// Guarantee: topic 3.
/// Readers at different places of a partition, through one handle, each see their own events.
pub async fn several_readers_do_not_disturb_each_other(fixture: &Fixture<dyn Topic>) {
    for n in 0..10 {
        append(fixture.port(), 0, events((0..6).map(|i| n * 6 + i))).await;
    }
    let mut at = [1_u64, 1, 30, 55, 7];
    while at.iter().any(|at| *at <= 60) {
        for (reader, at) in at.iter_mut().enumerate() {
            let found = read(fixture.port(), 0, Read::from(*at).max(reader + 1)).await;
            assert!(!found.is_empty() || *at > 60, "the reader {reader} finds nothing at {at}");
            for event in found {
                assert_eq!(event.position.offset, *at, "the reader {reader}");
                assert_eq!(event.event.body, (*at - 1).to_string());
                *at += 1;
            }
        }
    }
}

// Guarantee: topic 4.
/// A read that waits returns the event that is appended meanwhile, by either handle.
pub async fn a_waiting_read_is_woken_by_an_append(fixture: &Fixture<dyn Topic>) {
    for (n, by_other) in [(1, false), (2, true), (3, false)] {
        let topic = fixture.shared();
        let reads = async { ok(topic.read(0, Read::from(n).wait(a_while() * 1000)).await) };
        let appends = async {
            fixture.pass(a_while()).await;
            let topic = if by_other { fixture.other() } else { fixture.port() };
            append(topic, 0, events([n])).await;
        };
        let both = async { crate::race::both(reads, appends).await.0 };
        let found = fixture.within(a_while() * 100, "a waiting read", both).await;
        assert_eq!(bodies(&found), [n.to_string()]);
    }
}

// Guarantee: topic 4.
/// A read that waits in vain ends with an empty answer, also if other partitions have new events.
pub async fn a_waiting_read_ends_with_its_time(fixture: &Fixture<dyn Topic>) {
    let topic = fixture.shared();
    let reads = async { ok(topic.read(0, Read::from(1).wait(a_while() * 3)).await) };
    let appends = append(fixture.other(), 1, events(["elsewhere"]));
    let both = async { crate::race::both(reads, appends).await.0 };
    assert_eq!(fixture.within(a_while() * 100, "a read that waits in vain", both).await, []);
}
