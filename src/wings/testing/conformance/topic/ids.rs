//! Events with ids, and restarts.
use super::*;

/// Returns `true` if the topic lacks ids, so that the case holds nothing.
fn has_none(fixture: &Fixture<dyn Topic>) -> bool {
    !fixture.port().capabilities().has(Capability::Deduplication)
}

fn with_id(body: &str, id: &str) -> Event {
    Event::new(body.to_owned()).id(id)
}

// Guarantee: topic 5.
/// A second event with the id of an earlier one has its position, through each handle, also beside
/// new events.
pub async fn an_id_is_accepted_once(fixture: &Fixture<dyn Topic>) {
    if has_none(fixture) {
        return;
    }
    append(fixture.port(), 0, events(["first"])).await;
    assert_eq!(offsets(&append(fixture.port(), 0, vec![with_id("a", "1"), with_id("b", "2")]).await), [2, 3]);
    let again = append(fixture.other(), 0, vec![with_id("a", "1")]).await;
    assert_eq!(again, [Appended::duplicate_of(Position::new(0, 2))]);
    let mixed = vec![Event::new("c"), with_id("b", "2"), with_id("d", "3"), with_id("a", "1"), Event::new("e")];
    let mixed = append(fixture.port(), 0, mixed).await;
    assert_eq!(offsets(&mixed), [4, 3, 5, 2, 6]);
    let duplicates: Vec<_> = mixed.iter().map(|appended| appended.is_duplicate).collect();
    assert_eq!(duplicates, [false, true, false, true, false]);
    assert_eq!(bodies(&read_all(fixture.port(), 0, 1).await), ["first", "a", "b", "c", "d", "e"]);
}

// Guarantee: topic 5.
/// Events of one request with the same id are one event, the first.
pub async fn an_id_that_comes_twice_in_a_request_is_appended_once(fixture: &Fixture<dyn Topic>) {
    if has_none(fixture) {
        return;
    }
    let twice = vec![with_id("a", "1"), Event::new("b"), with_id("c", "1"), with_id("d", "2"), with_id("e", "1")];
    let appended = append(fixture.port(), 0, twice.clone()).await;
    assert_eq!(offsets(&appended), [1, 2, 1, 3, 1]);
    assert_eq!(appended.iter().filter(|appended| appended.is_duplicate).count(), 2);
    let appended = append(fixture.port(), 0, twice).await;
    assert_eq!(offsets(&appended), [1, 4, 1, 3, 1]);
    assert_eq!(bodies(&read_all(fixture.port(), 0, 1).await), ["a", "b", "d", "b"]);
}

// Guarantee: topic 5.
/// Of events with one id that several tasks append at the same time, one is appended, and each
/// answer has its position.
pub async fn concurrent_events_with_one_id_are_appended_once(fixture: &Fixture<dyn Topic>) {
    if has_none(fixture) {
        return;
    }
    for round in 0..4 {
        let tasks: Vec<_> = (0..6)
            .map(|task| {
                let topic = if task % 2 == 0 { fixture.shared() } else { fixture.shared_other() };
                let request = vec![Event::new("beside"), with_id("once", &format!("round {round}"))];
                tokio::spawn(async move { append(&*topic, 0, request).await })
            })
            .collect();
        let all = async {
            let mut answers = Vec::new();
            for task in tasks {
                answers.push(task.await.unwrap_or_else(|error| panic!("an appending task: {error}"))[1]);
            }
            answers
        };
        let answers = fixture.within_patience("the appends of several tasks", all).await;
        let accepted: Vec<_> = answers.iter().filter(|appended| !appended.is_duplicate).collect();
        assert_eq!(accepted.len(), 1, "{answers:?}");
        assert!(answers.iter().all(|appended| appended.position == accepted[0].position), "{answers:?}");
        let there = read(fixture.port(), 0, Read::from(accepted[0].position.offset).max(1)).await;
        assert_eq!(bodies(&there), ["once"]);
    }
    let once = bodies(&read_all(fixture.port(), 0, 1).await);
    assert_eq!(once.iter().filter(|body| *body == "once").count(), 4, "{once:?}");
}

// Guarantee: topic 5.
/// An id is known in its partition alone.
pub async fn ids_of_partitions_are_apart(fixture: &Fixture<dyn Topic>) {
    if has_none(fixture) {
        return;
    }
    append(fixture.port(), 0, vec![with_id("a", "1")]).await;
    assert_eq!(append(fixture.port(), 1, vec![with_id("a", "1")]).await, [Appended::new(Position::new(1, 1))]);
}

// Guarantee: topic 5.
/// An id is known until the end of the window that the topic states.
pub async fn an_id_is_remembered_for_the_window(fixture: &Fixture<dyn Topic>) {
    let Some(window) = fixture.port().capabilities().deduplicates_for() else { return };
    append(fixture.port(), 0, vec![with_id("a", "1")]).await;
    if fixture.is_on_manual_time() {
        fixture.pass(window - a_while()).await;
    }
    assert!(append(fixture.other(), 0, vec![with_id("a", "1")]).await[0].is_duplicate);
    // A request that meets an id at the end of its life is accepted, whatever becomes of the id.
    if fixture.is_on_manual_time() {
        fixture.pass(a_while()).await;
        append(fixture.port(), 0, vec![with_id("a", "1"), Event::new("b")]).await;
    }
}

// Guarantee: topic 4.
/// Events, positions, ids and trims are after a restart as they were before.
pub async fn what_was_accepted_outlives_a_restart(fixture: &mut Fixture<dyn Topic>) {
    fixture.assert_can_restart(fixture.port().capabilities());
    if !fixture.can_restart() {
        return;
    }
    append(fixture.port(), 0, events(0..10)).await;
    append(fixture.other(), 1, events(["a"])).await;
    if !has_none(fixture) {
        append(fixture.port(), 0, vec![with_id("id", "1")]).await;
    }
    assert_eq!(ok(fixture.port().trim(0, 4).await), 3);
    ok(fixture.port().trim(1, 2).await);
    let (before, end) = (read_all(fixture.port(), 0, 1).await, bounds(fixture.port(), 0).await);
    fixture.restart().await;
    for topic in [fixture.port(), fixture.other()] {
        assert_eq!(bounds(topic, 0).await, end);
        assert_eq!(bounds(topic, 1).await, Bounds::new(2, 2));
        assert_eq!(read_all(topic, 0, 1).await, before);
    }
    if !has_none(fixture) {
        assert!(append(fixture.other(), 0, vec![with_id("id", "1")]).await[0].is_duplicate);
    }
    assert_eq!(offsets(&append(fixture.port(), 0, events(["b"])).await), [end.next]);
    assert_eq!(offsets(&append(fixture.port(), 1, events(["b"])).await), [2]);
}
