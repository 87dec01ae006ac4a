//! What a projector does not pass over: events that do not decode, wide commits, trims, restored logs.
use std::convert::Infallible;

use steadfast::materialized_view::{Undecodable, ViewConfig, ViewError, ViewEvent};

use super::{changed::Changed, *};

fn event(kind: &str, body: &str) -> NewEvent {
    NewEvent::new(kind, body.to_owned())
}

async fn append(log: &EventStore, stream: &str, event: NewEvent) {
    log.commit(Commit::unnamed().append(stream, Expected::Any, [event])).await.unwrap();
}

fn tv(cents: u64) -> NewEvent {
    events().encode(&sold("tv-1", cents)).unwrap()
}

// Guarantee: materialized_view 6.
#[tokio::test(start_paused = true)]
async fn an_event_that_does_not_decode_stops_the_projector_behind_what_came_before() {
    let store = memory();
    let log = crate::log(&store).await;
    let view = view(&store, &log);
    run_for(&view, SECOND).await.unwrap();
    let mut events = view.events();
    append(&log, "a", tv(1)).await;
    append(&log, "b", event("Unknown", "{}")).await;
    append(&log, "a", tv(2)).await;
    let stopped = run_for(&view, SECOND).await.unwrap_err();
    let ViewError::Undecodable { topic, position, reason } = &stopped else { panic!("{stopped:?}") };
    assert_eq!((topic.as_str(), position.offset), ("log", 2));
    assert!(reason.to_string().contains("Unknown"), "{reason}");
    assert_eq!(view.get("tv-1").await.unwrap().row, Some(Total { n: 1, cents: 1 }));
    let last = told(&mut events).await.pop();
    assert_eq!(last, Some(ViewEvent::Stopped { reason: stopped.to_string() }));
}

// Guarantee: materialized_view 6.
#[tokio::test(start_paused = true)]
async fn the_stream_of_an_event_that_does_not_decode_is_parked_until_a_rebuild() {
    let store = memory();
    let log = crate::log(&store).await;
    let parks = |codec: EventCodec<Fact>| {
        let config = ViewConfig::default().undecodable(Undecodable::Park);
        View::builder(store.clone(), "sales", Sales, json(), config).source(log.topic(), codec).build().unwrap()
    };
    let view = parks(events());
    for (stream, event) in [("a", tv(1)), ("b", tv(10)), ("b", event("Unknown", "{}")), ("a", tv(2)), ("b", tv(100))] {
        append(&log, stream, event).await;
    }
    run_for(&view, SECOND).await.unwrap();
    append(&log, "b", tv(1_000)).await;
    run_for(&view, SECOND).await.unwrap();
    assert_eq!(view.get("tv-1").await.unwrap().row, Some(Total { n: 3, cents: 13 }));
    let parked = view.parked().await.unwrap();
    assert_eq!(parked.len(), 1);
    assert_eq!((parked[0].topic.as_str(), parked[0].stream.as_str(), parked[0].position.offset), ("log", "b", 3));
    assert!(parked[0].reason.contains("Unknown"), "{parked:?}");
    assert_eq!(view.state().await.unwrap().parked, 1);

    let mended = parks(events().ignore("Unknown"));
    mended.rebuild().await.unwrap();
    assert_eq!(mended.get("tv-1").await.unwrap().row, Some(Total { n: 5, cents: 1_113 }));
    assert_eq!(mended.parked().await.unwrap(), []);

    // An event of a newer release is no damage: a process of that release folds it.
    append(&log, "c", event("Viewed", "\"Viewed\"").schema(2)).await;
    let stopped = run_for(&mended, SECOND * 20).await.unwrap_err();
    assert!(matches!(stopped, ViewError::Undecodable { .. }), "{stopped:?}");
}

// Guarantee: materialized_view 7.
#[tokio::test(start_paused = true)]
async fn a_commit_that_changes_more_rows_than_a_batch_holds_stops_the_projector_by_its_place() {
    let (store, most) = (memory(), memory().capabilities().max_batch() - 1);
    let log = crate::log(&store).await;
    let view = view(&store, &log);
    let wide = |n: usize| Fact::Sold((0..n).map(|at| (format!("tv-{at}"), 1)).collect());
    commit(&log, &[wide(most), wide(most), sold("tv-1", 1)]).await;
    run_for(&view, SECOND).await.unwrap();
    assert_eq!(view.get("tv-1").await.unwrap().row, Some(Total { n: 3, cents: 3 }));
    commit(&log, &[sold("tv-1", 1), wide(most + 1)]).await;
    let stopped = run_for(&view, SECOND).await.unwrap_err();
    let ViewError::TooWide { position, rows, most: allowed, .. } = stopped else { panic!("{stopped:?}") };
    assert_eq!((position.offset, rows, allowed), (5, most + 1, most));
    assert_eq!(view.get("tv-1").await.unwrap().row, Some(Total { n: 4, cents: 4 }));
}

// Guarantee: materialized_view 7.
#[tokio::test(start_paused = true)]
async fn a_source_that_was_trimmed_before_it_was_folded_stops_the_projector() {
    let (store, facts) = (memory(), facts(20));
    let log = crate::log(&store).await;
    commit(&log, &facts[..10]).await;
    let one = view(&store, &log);
    run_for(&one, SECOND).await.unwrap();
    log.trim(8).await.unwrap();
    // What the view has already may go.
    commit(&log, &facts[10..15]).await;
    run_for(&one, SECOND).await.unwrap();
    assert_rows(&one, &facts[..15]).await;
    let two = builder(&store, &log, ViewConfig::default().version(2)).build().unwrap();
    let stopped = run_for(&two, SECOND).await.unwrap_err();
    assert!(matches!(&stopped, ViewError::Trimmed { first, .. } if first.offset == 8), "{stopped:?}");
    commit(&log, &facts[15..]).await;
    log.trim(18).await.unwrap();
    let stopped = run_for(&one, SECOND).await.unwrap_err();
    assert!(matches!(&stopped, ViewError::Trimmed { first, .. } if first.offset == 18), "{stopped:?}");
    assert_rows(&one, &facts[..15]).await;
}

// Guarantee: materialized_view 8.
#[tokio::test(start_paused = true)]
async fn a_view_of_a_log_that_was_restored_from_a_backup_says_so_until_a_rebuild() {
    // A shorter log; one that has grown since; one that is followed while it is restored.
    for (kept, grown, is_followed) in [(6, 0, false), (6, 10, false), (6, 10, true), (6, 0, true), (0, 0, true)] {
        let (facts, rows) = (facts(40), memory());
        let (topic, after) = Changed::of(&facts[..10], &facts[..kept]).await;
        commit(&after, &facts[20..20 + grown]).await;
        let open = || {
            let view = View::builder(rows.clone(), "sales", Sales, json(), ViewConfig::default());
            view.source(topic.clone(), events()).build().unwrap()
        };
        let view = open();
        let ran = if is_followed {
            let restore = async {
                Clock::tokio().sleep(SECOND).await;
                topic.becomes(&after);
            };
            tokio::join!(run_for(&view, SECOND * 60), restore).0
        } else {
            run_for(&view, SECOND).await.unwrap();
            topic.becomes(&after);
            run_for(&open(), SECOND).await
        };
        let case = format!("{kept} {grown} {is_followed}");
        assert!(matches!(&ran, Err(ViewError::Diverged { position, .. }) if position.offset == 10), "{case}: {ran:?}");
        assert!(matches!(view.get("tv-1").await, Err(ViewError::Diverged { .. })), "{case}");
        assert!(view.state().await.unwrap().has_diverged);
        view.rebuild().await.unwrap();
        let now: Vec<_> = facts[..kept].iter().chain(&facts[20..20 + grown]).cloned().collect();
        assert_rows(&view, &now).await;
        run_for(&view, SECOND * 20).await.unwrap();
    }
}

// Guarantee: materialized_view 8.
#[tokio::test(start_paused = true)]
async fn a_source_that_was_restored_is_noticed_while_another_one_is_busy() {
    let (facts, rows) = (facts(40), memory());
    let (before, after, busy) = (crate::log(&memory()).await, crate::log(&memory()).await, memory());
    let busy = EventStore::open(busy, "busy").await.unwrap();
    commit(&before, &facts[..10]).await;
    commit(&after, &facts[..6]).await;
    let topic = Changed::new(&before, 1_000);
    // Each page takes so long that the next one has an event of the busy log.
    let port = ScriptedPort::new(&Clock::tokio());
    port.by(|_| PortAnswer::pass().request_takes(Duration::from_millis(5)));
    let view = View::builder(port.store(rows), "sales", Sales, json(), ViewConfig::default())
        .source(topic.clone(), events())
        .source(busy.topic(), events())
        .build()
        .unwrap();
    let writes = async {
        for nth in 0..2_000 {
            commit(&busy, &[sold("tv-9", 1)]).await;
            Clock::tokio().sleep(Duration::from_millis(5)).await;
            if nth == 200 {
                topic.becomes(&after);
            }
            if nth > 1_000 && nth % 10 == 0 {
                commit(&after, &facts[20..21]).await;
            }
        }
    };
    let ran = tokio::select! {
        ran = run_for(&view, SECOND * 60) => ran,
        () = writes => Ok(()),
    };
    assert!(matches!(&ran, Err(ViewError::Diverged { position, .. }) if position.offset == 10), "{ran:?}");
}

// Guarantee: materialized_view 6.
#[tokio::test(start_paused = true)]
async fn an_event_with_a_key_that_no_row_can_have_stops_the_projector_by_its_place_or_parks_its_stream() {
    for key in ["x".repeat(1_100), "x\0".to_owned()] {
        let store = memory();
        let log = crate::log(&store).await;
        append(&log, "a", tv(1)).await;
        append(&log, "b", events().encode(&sold(&key, 1)).unwrap()).await;
        append(&log, "a", tv(2)).await;
        let stopped = run_for(&view(&store, &log), SECOND).await.unwrap_err();
        let ViewError::Undecodable { topic, position, reason } = &stopped else { panic!("{stopped:?}") };
        assert_eq!((topic.as_str(), position.offset), ("log", 2));
        assert!(reason.to_string().contains("`keys`"), "{reason}");
        let config = ViewConfig::default().undecodable(Undecodable::Park).version(2);
        let parks = builder(&store, &log, config).build().unwrap();
        run_for(&parks, SECOND).await.unwrap();
        assert_eq!(parks.get("tv-1").await.unwrap().row, Some(Total { n: 2, cents: 3 }));
        assert_eq!(parks.parked().await.unwrap().len(), 1);
    }
}

// Guarantee: materialized_view 7, 9.
#[tokio::test(start_paused = true)]
async fn a_row_that_is_too_large_for_its_store_is_named_by_its_key() {
    let small = ScriptedPort::changing(&Clock::tokio(), |can| can.largest_value(200));
    let (rows, log) = (memory(), crate::log(&memory()).await);
    append(&log, "a", tv(1)).await;
    // A row of more than 200 bytes.
    let wide = Codec::new(
        |_: &Total| Ok::<_, std::fmt::Error>(vec![b'x'; 201]),
        |_| Ok::<_, std::fmt::Error>(Total::default()),
    );
    let view = View::builder(small.store(rows), "sales", Sales, wide, ViewConfig::default());
    let view = view.source(log.topic(), events()).build().unwrap();
    let load = async |_| Ok::<_, std::fmt::Error>(vec![("tv-1".to_owned(), Total::default())]);
    for told in [run_for(&view, SECOND).await.unwrap_err(), view.regenerate(load).await.unwrap_err()] {
        let told = told.to_string();
        assert!(told.contains("\"tv-1\"") && told.contains("`row`") && told.contains("200 bytes"), "{told}");
    }
}

// Guarantee: materialized_view 10.
#[tokio::test(start_paused = true)]
async fn another_set_of_sources_needs_another_version() {
    let store = memory();
    let log = crate::log(&store).await;
    run_for(&view(&store, &log), SECOND).await.unwrap();
    let other = EventStore::open(store.clone(), "other").await.unwrap();
    let both = |version| {
        let view = builder(&store, &log, ViewConfig::default().version(version)).source(other.topic(), events());
        view.build().unwrap()
    };
    let refused = run_for(&both(1), SECOND).await.unwrap_err();
    assert!(matches!(&refused, ViewError::Invalid(error) if error.to_string().contains("`source`")), "{refused:?}");
    // So is one that would be built beside it: it would stop the projectors of the others, or never be served.
    let is_refused = |ended: Option<Result<(), ViewError>>| {
        let is_named = matches!(&ended, Some(Err(ViewError::Invalid(error))) if error.to_string().contains("`source`"));
        assert!(is_named, "{ended:?}");
    };
    let without = || View::builder(store.clone(), "sales", Sales, json(), ViewConfig::default());
    let another = without().source(other.topic(), events()).build().unwrap();
    for view in [both(1), another.clone(), without().build().unwrap()] {
        let load = async |_| Ok::<_, Infallible>(Vec::new());
        is_refused(within(SECOND * 60, view.regenerate(load)).await);
    }
    for view in [both(1), another] {
        is_refused(within(SECOND * 60, view.rebuild()).await);
    }
    run_for(&view(&store, &log), SECOND * 20).await.unwrap();
    run_for(&both(2), SECOND).await.unwrap();
    assert_eq!(both(2).get("tv-1").await.unwrap().as_of.to_string(), "log@0, other@0");
}
