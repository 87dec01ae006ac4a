//! Trims.
use super::*;

async fn trim(topic: &dyn Topic, before: u64) -> u64 {
    ok(in_time("a trim", topic.trim(0, before)).await)
}

// Guarantee: topic 6.
/// The events below a position are deleted, and counted once; those from it on stay.
pub async fn a_trim_deletes_a_prefix(fixture: &Fixture<dyn Topic>) {
    for n in 0..10 {
        append(fixture.port(), 0, events([n])).await;
    }
    assert_eq!(trim(fixture.port(), 1).await, 0);
    assert_eq!(trim(fixture.port(), 0).await, 0);
    assert_eq!(trim(fixture.port(), 5).await, 4);
    assert_eq!(trim(fixture.port(), 5).await, 0);
    assert_eq!(trim(fixture.port(), 3).await, 0);
    assert_eq!(bounds(fixture.port(), 0).await, Bounds::new(5, 11));
    for from in 1..=5 {
        let found = read_all(fixture.port(), 0, from).await;
        assert_eq!(found[0].position, Position::new(0, 5), "a read from {from}");
        assert_eq!(bodies(&found), ["4", "5", "6", "7", "8", "9"]);
    }
    assert_eq!(trim(fixture.port(), 6).await, 1);
    assert_eq!(read_all(fixture.port(), 0, 1).await.len(), 5);
}

// Guarantee: topic 6.
/// A trim may end between two events of one request.
pub async fn a_trim_ends_within_a_request(fixture: &Fixture<dyn Topic>) {
    append(fixture.port(), 0, events(0..10)).await;
    append(fixture.port(), 0, events(10..50)).await;
    let mut first = 1;
    for before in [4, 5, 10, 11, 12, 30, 50] {
        assert_eq!(trim(fixture.port(), before).await, before - first);
        first = before;
        assert_eq!(bounds(fixture.other(), 0).await, Bounds::new(before, 51));
        let found = read_all(fixture.port(), 0, 1).await;
        assert_eq!(found[0].position.offset, before);
        assert_eq!(bodies(&found), (before - 1..50).map(|n| n.to_string()).collect::<Vec<_>>());
    }
}

// Guarantee: topic 6.
// Guarantee: topic 1.
/// A trim of everything leaves an empty partition, whose next event gets the next position.
pub async fn a_trim_beyond_the_end_deletes_all_and_positions_go_on(fixture: &Fixture<dyn Topic>) {
    assert_eq!(trim(fixture.port(), 100).await, 0);
    assert_eq!(bounds(fixture.port(), 0).await, Bounds::new(1, 1));
    for round in 0..3 {
        let end = 1 + round * 7;
        append(fixture.port(), 0, events(0..7)).await;
        assert_eq!(trim(fixture.other(), if round == 1 { u64::MAX } else { end + 7 }).await, 7);
        assert_eq!(bounds(fixture.port(), 0).await, Bounds::new(end + 7, end + 7));
        assert_eq!(read(fixture.port(), 0, Read::from(1)).await, []);
    }
    assert_eq!(offsets(&append(fixture.other(), 0, events(["on"])).await), [22]);
    assert_eq!(read(fixture.port(), 0, Read::from(1)).await[0].position, Position::new(0, 22));
}

// Guarantee: topic 6.
/// While one handle appends, another one trims: all that is not trimmed is there.
pub async fn a_trim_beside_appends_loses_nothing(fixture: &Fixture<dyn Topic>) {
    const EVENTS: u64 = 60;
    let (appending, trimming) = (fixture.shared(), fixture.shared_other());
    let appends = tokio::spawn(async move {
        for n in 0..EVENTS / 3 {
            assert_eq!(offsets(&append(&*appending, 0, events(0..3)).await)[0], n * 3 + 1);
        }
    });
    let trims = tokio::spawn(async move {
        let mut deleted = 0;
        while deleted < EVENTS / 2 {
            let before = bounds(&*trimming, 0).await.next.min(EVENTS / 2 + 1);
            deleted += trim(&*trimming, before).await;
            let left = read(&*trimming, 0, Read::from(1).max(1)).await;
            assert!(left.is_empty() || left[0].position.offset >= before, "{left:?} below {before}");
            tokio::task::yield_now().await;
        }
        deleted
    });
    let both = async {
        appends.await.unwrap_or_else(|error| panic!("the appends: {error}"));
        trims.await.unwrap_or_else(|error| panic!("the trims: {error}"))
    };
    assert_eq!(fixture.within_patience("appends and trims", both).await, EVENTS / 2);
    assert_eq!(bounds(fixture.port(), 0).await, Bounds::new(EVENTS / 2 + 1, EVENTS + 1));
    assert_eq!(read_all(fixture.port(), 0, 1).await.len() as u64, EVENTS / 2);
}

// Guarantee: topic 6.
/// Both handles see the bounds of a trim, and the one that trimmed serves no deleted event.
pub async fn a_trim_is_seen_through_each_handle(fixture: &Fixture<dyn Topic>) {
    append(fixture.port(), 0, events(0..10)).await;
    assert_eq!(read_all(fixture.port(), 0, 1).await.len(), 10);
    assert_eq!(trim(fixture.port(), 8).await, 7);
    assert_eq!(bodies(&read_all(fixture.port(), 0, 1).await), ["7", "8", "9"]);
    assert_eq!(bodies(&read_all(fixture.other(), 0, 1).await), ["7", "8", "9"]);
    for topic in [fixture.port(), fixture.other()] {
        assert_eq!(bounds(topic, 0).await, Bounds::new(8, 11));
    }
}

// Guarantee: topic 5.
/// The id of an event that was trimmed is still known.
pub async fn a_trim_does_not_forget_ids(fixture: &Fixture<dyn Topic>) {
    if !fixture.port().capabilities().has(Capability::Deduplication) {
        return;
    }
    append(fixture.port(), 0, vec![Event::new("a").id("1")]).await;
    assert_eq!(trim(fixture.port(), 2).await, 1);
    let again = append(fixture.other(), 0, vec![Event::new("a").id("1")]).await;
    assert_eq!(again, [Appended::duplicate_of(Position::new(0, 1))]);
}
