//! The contract of every [`Topic`]. The fixture's topic is empty, and has at least two partitions.
use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;

use super::{
    Fixture,
    case::suite,
    fixture::{in_time, stretched},
    noise,
};
use crate::{
    port::{Capability, PortError, PortErrorKind},
    race::{First, race},
    stream::{Appended, Bounds, Event, Position, Read, Recorded, Topic},
};

mod ids;
mod reads;
mod trims;

pub use ids::*;
pub use reads::*;
pub use trims::*;

suite! {
    $
    /// Defines one named test for each case of the topic's contract.
    topic_conformance;
    /// Returns the cases of the topic's contract.
    topic::cases -> dyn Topic;
    positions_begin_at_one_and_have_no_hole,
    a_request_has_consecutive_positions_in_its_order,
    partitions_are_apart,
    an_empty_request_appends_nothing,
    concurrent_requests_leave_no_hole_and_are_not_mixed,
    an_accepted_event_is_seen_through_each_handle,
    events_come_back_as_they_were,
    the_largest_event_is_accepted_and_a_larger_one_is_not,
    the_largest_request_is_accepted_and_a_larger_one_is_not,
    invalid_arguments_are_refused_and_append_nothing,
    a_dropped_append_is_all_or_none,
    the_identity_is_short_and_that_of_each_handle,
    an_id_is_accepted_once,
    an_id_that_comes_twice_in_a_request_is_appended_once,
    concurrent_events_with_one_id_are_appended_once,
    ids_of_partitions_are_apart,
    an_id_is_remembered_for_the_window,
    a_read_begins_anywhere_and_returns_at_most_the_maximum,
    a_read_beyond_the_end_is_empty,
    a_reader_misses_no_event_while_others_append,
    several_readers_do_not_disturb_each_other,
    a_waiting_read_is_woken_by_an_append,
    a_waiting_read_ends_with_its_time,
    a_trim_deletes_a_prefix,
    a_trim_ends_within_a_request,
    a_trim_beyond_the_end_deletes_all_and_positions_go_on,
    a_trim_beside_appends_loses_nothing,
    a_trim_is_seen_through_each_handle,
    a_trim_does_not_forget_ids,
    what_was_accepted_outlives_a_restart,
}

fn a_while() -> Duration {
    stretched(Duration::from_millis(100))
}

fn ok<T>(result: Result<T, PortError>) -> T {
    result.unwrap_or_else(|error| panic!("the topic failed: {error}"))
}

/// Returns events with these bodies.
fn events<T: ToString>(bodies: impl IntoIterator<Item = T>) -> Vec<Event> {
    bodies.into_iter().map(|body| Event::new(body.to_string())).collect()
}

async fn append(topic: &dyn Topic, partition: u16, events: Vec<Event>) -> Vec<Appended> {
    ok(in_time("an append", topic.append(partition, events)).await)
}

async fn read(topic: &dyn Topic, partition: u16, read: Read) -> Vec<Recorded> {
    ok(in_time("a read without a wait", topic.read(partition, read)).await)
}

async fn bounds(topic: &dyn Topic, partition: u16) -> Bounds {
    ok(in_time("the bounds", topic.bounds(partition)).await)
}

/// Reads all events from this position on, and asserts that there is no hole behind the first.
async fn read_all(topic: &dyn Topic, partition: u16, from: u64) -> Vec<Recorded> {
    let mut all: Vec<Recorded> = Vec::new();
    loop {
        let next = all.last().map_or(from, |last| last.position.offset + 1);
        let page = read(topic, partition, Read::from(next).max(64)).await;
        if page.is_empty() {
            return all;
        }
        assert!(page.len() <= 64, "a read returned {} events, and 64 were the maximum", page.len());
        for event in page {
            let expected = all.last().map(|last| last.position.offset + 1);
            let offset = event.position.offset;
            assert!(expected.is_none_or(|expected| expected == offset), "{offset} came where {expected:?} was next");
            assert_eq!(event.position.partition, partition);
            all.push(event);
        }
    }
}

fn bodies(events: &[Recorded]) -> Vec<String> {
    events.iter().map(|recorded| String::from_utf8_lossy(&recorded.event.body).into_owned()).collect()
}

fn offsets(appended: &[Appended]) -> Vec<u64> {
    appended.iter().map(|appended| appended.position.offset).collect()
}

fn assert_invalid<T: std::fmt::Debug>(result: Result<T, PortError>, field: &str) {
    match result {
        Err(error) => {
            assert_eq!(error.kind(), PortErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains(&format!("`{field}`")), "the error names no field `{field}`: {error}");
        }
        Ok(done) => panic!("`{field}` was accepted: {done:?}"),
    }
}

// Guarantee: topic 1.
/// Positions begin at 1 and grow by 1, whichever handle appends.
pub async fn positions_begin_at_one_and_have_no_hole(fixture: &Fixture<dyn Topic>) {
    assert_eq!(bounds(fixture.port(), 0).await, Bounds::new(1, 1));
    for n in 1..=9 {
        let topic = if n % 3 == 0 { fixture.other() } else { fixture.port() };
        let appended = append(topic, 0, events([n])).await;
        assert_eq!(appended, [Appended::new(Position::new(0, n))]);
        assert_eq!(bounds(fixture.port(), 0).await, Bounds::new(1, n + 1));
    }
    let all = read_all(fixture.other(), 0, 1).await;
    assert_eq!(bodies(&all), (1..=9).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(all[0].position, Position::new(0, 1));
}

// Guarantee: topic 2.
/// The events of a request lie next to each other, in their order.
pub async fn a_request_has_consecutive_positions_in_its_order(fixture: &Fixture<dyn Topic>) {
    append(fixture.port(), 1, events(["before"])).await;
    let appended = append(fixture.port(), 1, events(0..60)).await;
    assert_eq!(offsets(&appended), (2..62).collect::<Vec<_>>());
    let all = read_all(fixture.port(), 1, 2).await;
    assert_eq!(bodies(&all), (0..60).map(|n| n.to_string()).collect::<Vec<_>>());
}

// Guarantee: topic 1.
/// Each partition has its own positions and events, the last one, too.
pub async fn partitions_are_apart(fixture: &Fixture<dyn Topic>) {
    let last = fixture.port().partitions() - 1;
    assert!((1..1024).contains(&last), "the suite needs a topic of 2 to 1024 partitions");
    assert_eq!(fixture.other().partitions() - 1, last);
    append(fixture.port(), 0, events(["a", "b"])).await;
    assert_eq!(offsets(&append(fixture.port(), last, events(["c"])).await), [1]);
    assert_eq!(bodies(&read_all(fixture.other(), 0, 1).await), ["a", "b"]);
    assert_eq!(bodies(&read_all(fixture.other(), last, 1).await), ["c"]);
}

// Guarantee: topic 2.
/// A request without events has no effect.
pub async fn an_empty_request_appends_nothing(fixture: &Fixture<dyn Topic>) {
    assert_eq!(append(fixture.port(), 0, Vec::new()).await, []);
    assert_eq!(bounds(fixture.port(), 0).await, Bounds::new(1, 1));
    append(fixture.port(), 0, events(["a"])).await;
    assert_eq!(append(fixture.port(), 0, Vec::new()).await, []);
    assert_eq!(offsets(&append(fixture.port(), 0, events(["b"])).await), [2]);
}

// Guarantee: topic 1.
// Guarantee: topic 2.
/// Tasks of two handles append at the same time: each answer is the place at which the events lie,
/// and no other event lies between them.
pub async fn concurrent_requests_leave_no_hole_and_are_not_mixed(fixture: &Fixture<dyn Topic>) {
    const TASKS: usize = 6;
    const REQUESTS: usize = 8;
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let topic = if task % 2 == 0 { fixture.shared() } else { fixture.shared_other() };
            tokio::spawn(async move {
                let mut placed = Vec::new();
                for request in 0..REQUESTS {
                    let names: Vec<String> = (0..3).map(|n| format!("{task}.{request}.{n}")).collect();
                    let appended = append(&*topic, 0, events(&names)).await;
                    let offsets = offsets(&appended);
                    assert!(offsets.windows(2).all(|pair| pair[1] == pair[0] + 1), "others lie between: {offsets:?}");
                    placed.extend(offsets.into_iter().zip(names));
                }
                placed
            })
        })
        .collect();
    let all = async {
        let mut placed = BTreeMap::new();
        for task in tasks {
            for (offset, body) in task.await.unwrap_or_else(|error| panic!("an appending task: {error}")) {
                assert_eq!(placed.insert(offset, body), None, "the position {offset} was given twice");
            }
        }
        placed
    };
    let placed = fixture.within_patience("the appends of several tasks", all).await;
    let read = read_all(fixture.port(), 0, 1).await;
    let read: BTreeMap<_, _> = read.iter().map(|event| event.position.offset).zip(bodies(&read)).collect();
    assert_eq!(placed, read);
    assert_eq!(placed.len(), TASKS * REQUESTS * 3);
    for task in 0..TASKS {
        let of_task = placed.values().filter(|body| body.starts_with(&format!("{task}."))).collect::<Vec<_>>();
        let expected = (0..REQUESTS).flat_map(|request| (0..3).map(move |n| format!("{task}.{request}.{n}")));
        assert!(of_task.into_iter().eq(&expected.collect::<Vec<_>>()), "the order of the task {task}: {placed:?}");
    }
}

// Guarantee: topic 4.
/// Once an append has returned, the other handle sees its event, also behind a read at the end.
pub async fn an_accepted_event_is_seen_through_each_handle(fixture: &Fixture<dyn Topic>) {
    for n in 1..=20 {
        assert_eq!(read(fixture.other(), 0, Read::from(n)).await, []);
        append(fixture.port(), 0, events([n])).await;
        assert_eq!(bounds(fixture.other(), 0).await, Bounds::new(1, n + 1));
        assert_eq!(bodies(&read(fixture.other(), 0, Read::from(n)).await), [n.to_string()]);
    }
}

// Guarantee: topic 3.
/// Bodies are any bytes; keys, ids and headers any text.
pub async fn events_come_back_as_they_were(fixture: &Fixture<dyn Topic>) {
    let mut all = vec![
        Event::new(Bytes::new()),
        Event::new(Bytes::from_static(&[0, 255, 10, 0])),
        Event::new("日本").key("k").header("trace", "1").header("", "").header("空", "\0\n"),
        Event::new("a").key("0"),
        Event::new(noise(3000)).key("a b/c*"),
    ];
    if fixture.port().capabilities().has(Capability::Deduplication) {
        all.push(Event::new("id").id("日/本").key("日本"));
    }
    append(fixture.port(), 0, all.clone()).await;
    for topic in [fixture.port(), fixture.other()] {
        let read = read_all(topic, 0, 1).await;
        assert_eq!(read.into_iter().map(|recorded| recorded.event).collect::<Vec<_>>(), all);
    }
}

/// The size behind which the suite does not test whether a limit holds.
const LARGEST_TESTED: usize = 1 << 20;

// Guarantee: topic 2.
/// An event of the largest size is accepted. A larger one is refused with its whole request.
pub async fn the_largest_event_is_accepted_and_a_larger_one_is_not(fixture: &Fixture<dyn Topic>) {
    let can = fixture.port().capabilities();
    let size = can.max_value().min(LARGEST_TESTED);
    append(fixture.port(), 0, vec![Event::new(vec![7; size])]).await;
    append(fixture.port(), 0, vec![Event::new("a").key(noise(can.max_key().min(size - 1)))]).await;
    if can.max_value() < 1 << 30 {
        let larger = vec![Event::new("small"), Event::new(vec![7; can.max_value() + 1])];
        assert_invalid(fixture.port().append(0, larger).await, "body");
    }
    if can.max_key() < LARGEST_TESTED {
        assert_invalid(fixture.port().append(0, vec![Event::new("a").key(noise(can.max_key() + 1))]).await, "key");
    }
    let read = read_all(fixture.other(), 0, 1).await;
    assert_eq!(read.iter().map(|recorded| recorded.event.body.len()).collect::<Vec<_>>(), [size, 1]);
}

// Guarantee: topic 2.
/// A request with the largest number of events is accepted as a whole, with ids, too.
pub async fn the_largest_request_is_accepted_and_a_larger_one_is_not(fixture: &Fixture<dyn Topic>) {
    let can = fixture.port().capabilities();
    let most = can.max_batch().min(1000);
    let mut all = events(0..most);
    if can.has(Capability::Deduplication) {
        all = all.into_iter().enumerate().map(|(n, event)| event.id(format!("id {n}"))).collect();
    }
    let appended = append(fixture.port(), 0, all).await;
    assert_eq!(offsets(&appended), (1..=most as u64).collect::<Vec<_>>());
    if can.max_batch() < 100_000 {
        assert_invalid(fixture.port().append(0, events(0..=can.max_batch())).await, "events");
    }
    assert_eq!(read_all(fixture.other(), 0, 1).await.len(), most);
}

// Guarantee: topic 2.
/// Arguments that break a rule are refused with the name of the field; the partition stays empty.
pub async fn invalid_arguments_are_refused_and_append_nothing(fixture: &Fixture<dyn Topic>) {
    let topic = fixture.port();
    let beyond = topic.partitions();
    assert_invalid(topic.append(beyond, events(["a"])).await, "partition");
    assert_invalid(topic.read(beyond, Read::from(1)).await, "partition");
    assert_invalid(topic.bounds(beyond).await, "partition");
    assert_invalid(topic.trim(u16::MAX, 1).await, "partition");
    assert_invalid(topic.read(0, Read::from(0)).await, "from");
    assert_invalid(topic.read(0, Read::from(1).max(0)).await, "max");
    assert_invalid(topic.append(0, vec![Event::new("a"), Event::new("b").key("")]).await, "key");
    if topic.capabilities().has(Capability::Deduplication) {
        assert_invalid(topic.append(0, vec![Event::new("a"), Event::new("b").id("")]).await, "id");
    } else {
        let refused = topic.append(0, vec![Event::new("a"), Event::new("b").id("b")]).await;
        assert!(matches!(&refused, Err(error) if error.kind() == PortErrorKind::Unsupported), "{refused:?}");
    }
    assert_eq!(bounds(topic, 0).await, Bounds::new(1, 1));
}

// Guarantee: topic 7.
/// An append whose future is dropped, at each of its polls, appended all events or none.
pub async fn a_dropped_append_is_all_or_none(fixture: &Fixture<dyn Topic>) {
    for polls in 0..12 {
        let few_polls = async {
            for _ in 0..polls {
                crate::race::yield_now().await;
            }
        };
        let request = fixture.port().append(0, events((0..5).map(|n| format!("{polls}.{n}"))));
        if let First::One(done) = race(request, few_polls).await {
            ok(done);
        }
    }
    // Behind this append no earlier one is under way: each was applied before, or never will be.
    append(fixture.port(), 0, events(["last"])).await;
    let all = bodies(&read_all(fixture.other(), 0, 1).await);
    let (last, rest) = all.split_last().unwrap_or_else(|| panic!("an accepted event is missing"));
    assert_eq!((last.as_str(), rest.len() % 5), ("last", 0), "{all:?}");
    for request in rest.chunks(5) {
        let (name, _) = request[0].split_once('.').unwrap_or_default();
        assert_eq!(request, (0..5).map(|n| format!("{name}.{n}")).collect::<Vec<_>>());
    }
}

/// The identity has 1 to 128 bytes, and is the same through both handles.
pub async fn the_identity_is_short_and_that_of_each_handle(fixture: &mut Fixture<dyn Topic>) {
    let identity = fixture.port().identity();
    assert!((1..=128).contains(&identity.len()), "{identity:?}");
    assert_eq!(fixture.other().identity(), identity);
    assert_eq!(fixture.other().name(), fixture.port().name());
    if let Some(neighbour) = fixture.neighbour() {
        assert_ne!(neighbour.identity(), identity);
    }
    if fixture.restart().await {
        assert_eq!(fixture.port().identity(), identity);
    }
}
