//! Attacks on the guarantees of a view: sources that answer in their own way, and processes that die at bad moments.
use std::{
    convert::Infallible,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use steadfast::{
    materialized_view::{Undecodable, View, ViewConfig, ViewError, ViewEvent},
    port::PortErrorKind,
    store::{Key, Precondition, Row, Scan, StoreExt},
    stream::{Event, Position, Read, StoreTopic, Topic},
};

use super::{changed::Changed, *};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn of_topic(store: &Arc<dyn Store>, topic: &Changed, config: ViewConfig) -> View<Sales> {
    View::builder(store.clone(), "sales", Sales, json(), config).source(topic.clone(), events()).build().unwrap()
}

async fn click(clicks: &StoreTopic, partition: u16, fact: &Fact) {
    let event = Event::new(serde_json::to_vec(fact).unwrap());
    clicks.append(partition, vec![event]).await.unwrap();
}

// Guarantee: materialized_view 2.
#[tokio::test(start_paused = true)]
async fn a_topic_of_the_store_is_followed_to_its_end_and_behind_it() {
    let store = memory();
    let clicks = StoreTopic::open(store.clone(), "clicks", 2).await.unwrap();
    let view = View::builder(store.clone(), "clicks", Sales, json(), ViewConfig::default().page(40));
    let view = view.source(clicks.clone(), json()).build().unwrap();
    let mut wanted = 0;
    for round in [300, 1, 150, 2] {
        for at in 0..round {
            click(&clicks, at % 2, &sold("tv-1", 1)).await;
        }
        wanted += u64::from(round);
        run_for(&view, SECOND * 10).await.unwrap();
        assert_eq!(view.get("tv-1").await.unwrap().row, Some(Total { n: wanted, cents: wanted }), "{wanted}");
    }
}

// Guarantee: materialized_view 2, 5.
#[tokio::test(start_paused = true)]
async fn a_topic_that_returns_one_event_at_a_time_is_followed_to_its_end() {
    let (store, facts) = (memory(), facts(40));
    let log = crate::log(&store).await;
    commit(&log, &facts).await;
    let view = of_topic(&store, &Changed::new(&log, 1), ViewConfig::default());
    view.rebuild().await.unwrap();
    assert_rows(&view, &facts).await;
    assert_eq!(view.get("tv-1").await.unwrap().as_of.offset("log", 0), Some(40));
}

// Guarantee: materialized_view 5.
#[tokio::test(start_paused = true)]
async fn a_view_whose_source_never_rests_is_served_once_it_has_what_was_there() {
    let store = memory();
    let log = crate::log(&store).await;
    commit(&log, &facts(600)).await;
    let port = ScriptedPort::new(&Clock::tokio());
    port.by(|_| PortAnswer::pass().request_takes(MS(20)));
    let view = builder(&port.store(store.clone()), &log, ViewConfig::default().page(50)).build().unwrap();
    let writes = async {
        loop {
            commit(&log, &[sold("tv-1", 1)]).await;
            Clock::tokio().sleep(MS(5)).await;
        }
    };
    tokio::select! {
        ran = run_for(&view, SECOND * 60) => panic!("not served: {ran:?}"),
        () = writes => {}
        ready = view.ready() => ready.unwrap(),
    }
    // It is no further behind than pages of those that came meanwhile.
    let state = view.state().await.unwrap();
    assert!(state.as_of.offset("log", 0).unwrap() >= 600 && state.as_of.events_to(&state.head) < 120, "{state:?}");
}

// Guarantee: materialized_view 8, 9.
#[tokio::test(start_paused = true)]
async fn a_rebuild_or_a_load_of_a_source_that_was_restored_ends_though_no_projector_has_noticed_it() {
    let facts = facts(40);
    for is_load in [false, true] {
        let rows = memory();
        let (topic, after) = Changed::of(&facts[..20], &facts[..6]).await;
        let view = of_topic(&rows, &topic, ViewConfig::default());
        run_for(&view, SECOND).await.unwrap();
        topic.becomes(&after);
        if is_load {
            let load = async |nth| {
                Ok::<_, Infallible>(if nth == 0 { vec![("tv-9".to_owned(), Total::default())] } else { vec![] })
            };
            within(SECOND * 60, view.regenerate(load)).await.expect("it ends").unwrap();
            assert_eq!(view.get("tv-9").await.unwrap().row, Some(Total::default()));
        } else {
            within(SECOND * 60, view.rebuild()).await.expect("it ends").unwrap();
            assert_rows(&view, &facts[..6]).await;
        }
        assert_eq!(view.get("tv-1").await.unwrap().as_of.offset("log", 0), Some(6));
    }
}

// Guarantee: materialized_view 4, 8.
#[tokio::test(start_paused = true)]
async fn a_rebuild_of_a_diverged_view_whose_process_died_is_resumed() {
    let (facts, rows) = (facts(40), memory());
    let (topic, after) = Changed::of(&facts[..20], &facts[..6]).await;
    let view = of_topic(&rows, &topic, ViewConfig::default());
    run_for(&view, SECOND).await.unwrap();
    topic.becomes(&after);
    assert!(matches!(run_for(&view, SECOND * 20).await, Err(ViewError::Diverged { .. })));
    let port = ScriptedPort::new(&Clock::tokio());
    port.by(|_| PortAnswer::pass().request_takes(MS(1)));
    let killed = of_topic(&port.store(rows.clone()), &topic, ViewConfig::default());
    assert!(within(MS(4), killed.rebuild()).await.is_none());
    assert!(view.state().await.unwrap().next.is_some());
    run_for(&view, SECOND * 20).await.unwrap();
    assert_rows(&view, &facts[..6]).await;
}

// Guarantee: materialized_view 6.
#[tokio::test(start_paused = true)]
async fn a_reason_to_park_a_stream_is_short_however_long_the_event_is() {
    let small = ScriptedPort::changing(&Clock::tokio(), |can| can.largest_value(50_000));
    let (rows, log) = (small.store(memory()), crate::log(&memory()).await);
    let unknown = format!("{{\"{}日\":1}}", "x".repeat(30_000));
    for stream in ["a", "b", "c"] {
        let event = NewEvent::new("Sold", unknown.clone());
        log.commit(Commit::unnamed().append(stream, Expected::Any, [event])).await.unwrap();
    }
    commit(&log, &[sold("tv-1", 1)]).await;
    let view = builder(&rows, &log, ViewConfig::default().undecodable(Undecodable::Park)).build().unwrap();
    run_for(&view, SECOND).await.unwrap();
    let parked = view.parked().await.unwrap();
    assert_eq!(parked.len(), 3);
    assert!(parked.iter().all(|parked| parked.reason.len() < 1_000 && parked.reason.contains("unknown variant")));
    assert_eq!(view.get("tv-1").await.unwrap().row, Some(Total { n: 1, cents: 1 }));
}

// Guarantee: materialized_view 6.
#[tokio::test(start_paused = true)]
async fn more_parked_streams_than_are_kept_stop_the_projector_by_the_place() {
    let store = memory();
    let log = crate::log(&store).await;
    for stream in 0..1_001 {
        let event = NewEvent::new("Unknown", "{}");
        log.commit(Commit::unnamed().append(stream.to_string(), Expected::Any, [event])).await.unwrap();
    }
    let config = ViewConfig::default().undecodable(Undecodable::Park);
    let stopped = run_for(&builder(&store, &log, config).build().unwrap(), SECOND).await.unwrap_err();
    let ViewError::Undecodable { position, reason, .. } = &stopped else { panic!("{stopped:?}") };
    assert_eq!(position.offset, 1_001);
    assert!(reason.to_string().contains("1000"), "{reason}");
}

// Guarantee: materialized_view 10.
#[tokio::test(start_paused = true)]
async fn a_read_of_a_key_that_no_row_can_have_is_refused_as_an_argument() {
    let store = memory();
    let log = crate::log(&store).await;
    let view = view(&store, &log);
    let token = commit(&log, &[sold("tv-1", 1), sold("", 2), sold("tv-1/\u{7f}\n日", 3)]).await;
    run_for(&view, SECOND).await.unwrap();
    for key in ["x".repeat(1_100), "x\0".to_owned()] {
        let refused = [view.get(&key).await, view.get_after(&key, &token, SECOND).await];
        for refused in refused {
            let Err(ViewError::Invalid(error)) = &refused else { panic!("{key:?}: {refused:?}") };
            assert!(error.to_string().contains("key"), "{error}");
        }
    }
    assert_eq!(view.get("").await.unwrap().row, Some(Total { n: 1, cents: 2 }));
    assert_eq!(view.get("tv-1/\u{7f}\n日").await.unwrap().row, Some(Total { n: 1, cents: 3 }));
}

// Guarantee: materialized_view 3.
#[tokio::test(start_paused = true)]
async fn a_token_of_the_future_and_one_with_an_endless_wait_are_not_answered_early() {
    let store = memory();
    let log = crate::log(&store).await;
    let view = view(&store, &log);
    commit(&log, &[sold("tv-1", 1)]).await;
    run_for(&view, SECOND).await.unwrap();
    for future in ["log@2", "log@18446744073709551615"] {
        let early = view.get_after("tv-1", &future.parse().unwrap(), SECOND).await;
        assert!(matches!(early, Err(ViewError::Behind { .. })), "{early:?}");
    }
    let (token, never) = ("log@2".parse().unwrap(), Duration::MAX);
    let (read, _) = tokio::join!(within(SECOND * 60, view.get_after("tv-1", &token, never)), async {
        Clock::tokio().sleep(SECOND * 10).await;
        commit(&log, &[sold("tv-1", 1)]).await;
        run_for(&view, SECOND * 10).await.unwrap();
    });
    assert_eq!(read.unwrap().unwrap().row, Some(Total { n: 2, cents: 2 }));
}

// Guarantee: materialized_view 2.
#[tokio::test(start_paused = true)]
async fn a_page_has_at_most_the_set_number_of_records_of_all_partitions() {
    let store = memory();
    let clicks = StoreTopic::open(store.clone(), "clicks", 3).await.unwrap();
    for at in 0..30 {
        click(&clicks, at % 3, &sold("tv-1", 1)).await;
    }
    for page in [1, 2, 4] {
        let config = ViewConfig::default().version(page).page(page);
        let view = View::builder(store.clone(), "clicks", Sales, json(), config);
        let view = view.source(clicks.clone(), json()).build().unwrap();
        let mut events = view.events();
        run_for(&view, SECOND * 10).await.unwrap();
        assert_eq!(view.get("tv-1").await.unwrap().row, Some(Total { n: 30, cents: 30 }));
        for event in told(&mut events).await {
            if let ViewEvent::Projected { records, .. } = event {
                assert!(records <= u64::from(page), "{records} records in a page of {page}");
            }
        }
    }
}

struct Panics(Sales, AtomicU64);

impl Projection for Panics {
    type Event = Fact;
    type Row = Total;

    fn keys(&self, event: &Sourced<Fact>) -> Vec<String> {
        self.0.keys(event)
    }

    fn fold(&self, key: &str, row: Option<Total>, event: &Sourced<Fact>) -> Option<Total> {
        assert!(self.1.fetch_add(1, Relaxed) < 7, "the fold panics");
        self.0.fold(key, row, event)
    }
}

// Guarantee: materialized_view 1, 2.
#[tokio::test(start_paused = true)]
async fn a_fold_that_panics_leaves_the_rows_of_the_page_before() {
    let (store, facts) = (memory(), facts(20));
    let log = crate::log(&store).await;
    commit(&log, &facts).await;
    let panics =
        View::builder(store.clone(), "sales", Panics(Sales, AtomicU64::new(0)), json(), ViewConfig::default().page(3));
    let panics = panics.source(log.topic(), events()).build().unwrap();
    let ran = tokio::spawn(async move { panics.run(std::future::pending()).await }).await;
    assert!(ran.unwrap_err().is_panic());
    let view = view(&store, &log);
    assert!(view.state().await.unwrap().as_of.offset("log", 0).unwrap() > 0);
    run_for(&view, SECOND * 20).await.unwrap();
    assert_rows(&view, &facts).await;
}

// Guarantee: materialized_view 4.
#[tokio::test(start_paused = true)]
async fn rebuilds_of_two_processes_at_once_both_end_with_the_rows_of_all_events() {
    let (store, facts) = (memory(), facts(60));
    let log = crate::log(&store).await;
    commit(&log, &facts).await;
    let [one, two, three] = [(); 3].map(|()| slow_view(&store, &log, ViewConfig::default().page(7)));
    run_for(&one, SECOND).await.unwrap();
    let (ran, one, other) = tokio::join!(run_for(&one, SECOND * 60), two.rebuild(), three.rebuild());
    assert!(ran.is_ok() && one.is_ok() && other.is_ok(), "{one:?} {other:?}");
    assert_rows(&two, &facts).await;
    assert_eq!(two.state().await.unwrap().next, None);
}

// Guarantee: materialized_view 5.
#[tokio::test(start_paused = true)]
async fn a_process_that_loads_rows_of_a_version_is_told_that_it_was_retired() {
    let store = memory();
    let log = crate::log(&store).await;
    commit(&log, &[sold("tv-1", 5)]).await;
    let one = view(&store, &log);
    let two = builder(&store, &log, ViewConfig::default().version(2)).build().unwrap();
    run_for(&one, SECOND).await.unwrap();
    for retired_at in [0, 1, 2] {
        let load = async |nth: u64| {
            if nth == retired_at {
                two.retire(1).await.unwrap();
            }
            Ok::<_, Infallible>(if nth < 2 { vec![(nth.to_string(), Total::default())] } else { vec![] })
        };
        let told = one.regenerate(load).await;
        assert!(matches!(told, Err(ViewError::Retired)), "{told:?}");
        for told in [one.state().await.map(drop), one.ready().await, one.parked().await.map(drop)] {
            assert!(matches!(told, Err(ViewError::Retired)), "{told:?}");
        }
        store.delete(Key::new("view/sales", "v/1"), Default::default()).await.unwrap();
    }
}

// Guarantee: materialized_view 3, 10.
#[tokio::test(start_paused = true)]
async fn processes_that_name_the_same_sources_in_another_order_fold_one_view() {
    let (store, facts) = (memory(), facts(30));
    let log = crate::log(&store).await;
    let clicks = StoreTopic::open(store.clone(), "clicks", 3).await.unwrap();
    let config = ViewConfig::default().page(4).undecodable(Undecodable::Park);
    let one = builder(&store, &log, config).source(clicks.clone(), json()).build().unwrap();
    let two = View::builder(store.clone(), "sales", Sales, json(), config)
        .source(clicks.clone(), json())
        .source(log.topic(), events())
        .build()
        .unwrap();
    commit(&log, &facts[..10]).await;
    for at in 0..9 {
        click(&clicks, at % 3, &sold("tv-1", 1)).await;
    }
    run_for(&one, SECOND).await.unwrap();
    commit(&log, &facts[10..]).await;
    clicks.append(1, vec![Event::new("damaged").key("k")]).await.unwrap();
    clicks.append(2, vec![Event::new(serde_json::to_vec(&sold("tv-2", 1)).unwrap())]).await.unwrap();
    run_for(&two, SECOND * 20).await.unwrap();
    let all: Vec<_> = facts.iter().cloned().chain((0..9).map(|_| sold("tv-1", 1))).chain([sold("tv-2", 1)]).collect();
    for view in [&one, &two] {
        assert_rows(view, &all).await;
        assert_eq!(view.get("tv-1").await.unwrap().as_of.to_string(), "log@30, clicks@3.4.4");
        assert_eq!(view.parked().await.unwrap()[0].topic, "clicks");
        assert_eq!(view.parked().await.unwrap()[0].position, Position::new(1, 4));
    }
}

// Guarantee: materialized_view 2.
#[tokio::test(start_paused = true)]
async fn a_page_whose_answer_comes_late_or_twice_is_folded_once() {
    let (store, facts) = (memory(), facts(60));
    let log = crate::log(&store).await;
    let port = ScriptedPort::new(&Clock::tokio());
    port.by(|call| match (call.method, call.number % 5) {
        ("batch", 2) => PortAnswer::pass().answer_takes(SECOND * 6),
        ("batch", 3) => PortAnswer::pass().request_takes(SECOND * 7),
        ("batch", 4) => PortAnswer::lose(PortErrorKind::Unavailable),
        _ => PortAnswer::pass(),
    });
    let view = builder(&port.store(store.clone()), &log, ViewConfig::default().page(5)).build().unwrap();
    for part in facts.chunks(20) {
        commit(&log, part).await;
        run_for(&view, SECOND * 300).await.unwrap();
    }
    assert_rows(&view, &facts).await;
}

// Guarantee: materialized_view 10.
#[tokio::test(start_paused = true)]
async fn rows_of_a_newer_release_are_refused_and_not_written() {
    let store = memory();
    let log = crate::log(&store).await;
    let view = view(&store, &log);
    commit(&log, &[sold("tv-1", 1)]).await;
    run_for(&view, SECOND).await.unwrap();
    let newer = bytes::Bytes::from_static(&[2, 1, 1]);
    for row in ["c/1/1", "v/1"] {
        store.put(Key::new("view/sales", row), newer.clone(), Precondition::Any.into()).await.unwrap();
        let load = async |_| Ok::<_, Infallible>(Vec::new());
        for told in [
            run_for(&view, SECOND).await,
            view.get("tv-1").await.map(drop),
            view.rebuild().await,
            view.regenerate(load).await,
        ] {
            let told = told.unwrap_err().to_string();
            assert!(told.contains("newer release"), "{row}: {told}");
        }
        assert_eq!(store.get(Key::new("view/sales", row)).await.unwrap().unwrap().value, newer);
    }
}

/// Returns a copy of a topic.
async fn backup(store: &Arc<dyn Store>) -> Vec<Row> {
    store.scan_all(Scan::partition("stream/00000/clicks")).await.unwrap()
}

async fn restore(store: &Arc<dyn Store>, backup: &[Row]) {
    store.delete_scanned(Scan::partition("stream/00000/clicks")).await.unwrap();
    for row in backup {
        let key = Key::new("stream/00000/clicks", &row.row);
        store.put(key, row.value.clone(), Precondition::Any.into()).await.unwrap();
    }
}

// Guarantee: materialized_view 4, 8.
#[tokio::test(start_paused = true)]
async fn a_rebuild_of_events_that_a_restore_has_lost_does_not_take_the_place_of_rows_without_them() {
    let (store, rows) = (memory(), memory());
    let open = async || StoreTopic::open(store.clone(), "clicks", 1).await.unwrap();
    let view = |rows: &Arc<dyn Store>, clicks: &StoreTopic| {
        let view = View::builder(rows.clone(), "clicks", Sales, json(), ViewConfig::default());
        view.source(clicks.clone(), json()).build().unwrap()
    };
    let clicks = open().await;
    let appends = async |range: std::ops::Range<u64>| {
        for at in range {
            click(&clicks, 0, &sold("tv-1", at)).await;
        }
    };
    appends(0..4).await;
    run_for(&view(&rows, &clicks), SECOND).await.unwrap();
    appends(4..6).await;
    let backup = backup(&store).await;
    appends(6..10).await;
    // It has folded all events, and is killed before it can serve them.
    let port = ScriptedPort::new(&Clock::tokio());
    port.by(|call| match call.method {
        "batch" if call.target.contains("(3 writes)") => PortAnswer::pass().request_takes(SECOND * 60),
        _ => PortAnswer::pass(),
    });
    assert!(within(SECOND, view(&port.store(rows.clone()), &clicks).rebuild()).await.is_none());
    assert!(port.calls("batch").iter().any(|call| call.target.contains("(3 writes)")), "no switch was on its way");
    restore(&store, &backup).await;
    let view = view(&rows, &open().await);
    let (mut events, wanted) = (view.events(), Some(Total { n: 6, cents: 15 }));
    run_for(&view, SECOND * 20).await.unwrap();
    assert_eq!(view.get("tv-1").await.unwrap().row, wanted);
    let told = told(&mut events).await;
    assert!(told.iter().any(|event| matches!(event, ViewEvent::RebuildStopped { .. })), "{told:?}");
    view.rebuild().await.unwrap();
    assert_eq!(view.get("tv-1").await.unwrap().row, wanted);
    assert_eq!(view.state().await.unwrap().next, None);
}

/// The process that follows a topic which was restored.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Follower {
    /// It begins after that.
    Begins,
    /// It has the topic from before, with the rows that it has read, and runs again.
    RunsAgain,
    /// It runs while that happens.
    Runs,
    /// The same, and another reader of the process has read the new events.
    RunsBesideAReader,
}

// Guarantee: materialized_view 8.
#[tokio::test(start_paused = true)]
async fn a_topic_of_the_store_that_was_restored_is_noticed_by_any_process() {
    // The sizes of later appends: shorter than before, as long, longer; and an append over the place.
    let appends: [&[u64]; 5] = [&[], &[1; 4], &[1; 9], &[9], &[4, 5]];
    let followers = [Follower::Begins, Follower::RunsAgain, Follower::Runs, Follower::RunsBesideAReader];
    let courses = appends.iter().flat_map(|appends| followers.map(|follower| (appends, follower)));
    // A large row is not read with each look.
    for ((appends, follower), padding) in courses.flat_map(|course| [0, 5_000].map(|padding| (course, padding))) {
        let (store, rows) = (memory(), memory());
        let event = |name: &str, at| {
            Event::new(serde_json::to_vec(&sold(name, at)).unwrap()).header("padding", "x".repeat(padding))
        };
        let open = async || StoreTopic::open(store.clone(), "clicks", 1).await.unwrap();
        let view = |clicks: &StoreTopic| {
            let view = View::builder(rows.clone(), "clicks", Sales, json(), ViewConfig::default());
            view.source(clicks.clone(), json()).build().unwrap()
        };
        let clicks = open().await;
        for at in 0..6 {
            clicks.append(0, vec![event("tv-1", at)]).await.unwrap();
        }
        let backup = backup(&store).await;
        for at in 6..10 {
            clicks.append(0, vec![event("tv-1", at)]).await.unwrap();
        }
        let followed = open().await;
        let restores = async || {
            restore(&store, &backup).await;
            let clicks = open().await;
            for size in *appends {
                clicks.append(0, (0..*size).map(|at| event("tv-2", at)).collect()).await.unwrap();
            }
            if follower == Follower::RunsBesideAReader {
                followed.read(0, Read::from(11)).await.unwrap();
            }
        };
        let ran = if matches!(follower, Follower::Begins | Follower::RunsAgain) {
            run_for(&view(&followed), SECOND).await.unwrap();
            restores().await;
            let topic = if follower == Follower::Begins { open().await } else { followed.clone() };
            run_for(&view(&topic), SECOND * 90).await
        } else {
            let restores = async {
                Clock::tokio().sleep(SECOND).await;
                restores().await;
            };
            let view = view(&followed);
            tokio::join!(run_for(&view, SECOND * 90), restores).0
        };
        let is_told = matches!(&ran, Err(ViewError::Diverged { position, .. }) if position.offset == 10);
        assert!(is_told, "{follower:?} {appends:?} {padding}: {ran:?}");
        // All that it has read is read anew.
        view(&followed).rebuild().await.unwrap();
        let wanted = appends.iter().sum::<u64>();
        assert_eq!(view(&followed).get("tv-1").await.unwrap().row, Some(Total { n: 6, cents: 15 }));
        assert_eq!(view(&followed).get("tv-2").await.unwrap().row.map_or(0, |row| row.n), wanted);
    }
}

// Guarantee: materialized_view 6.
#[tokio::test(start_paused = true)]
async fn an_event_without_a_stream_that_does_not_decode_stops_a_projector_that_parks() {
    let store = memory();
    let clicks = StoreTopic::open(store.clone(), "clicks", 1).await.unwrap();
    click(&clicks, 0, &sold("tv-1", 1)).await;
    clicks.append(0, vec![Event::new("damaged")]).await.unwrap();
    let config = ViewConfig::default().undecodable(Undecodable::Park);
    let view = View::builder(store.clone(), "clicks", Sales, json(), config);
    let view = view.source(clicks.clone(), json()).build().unwrap();
    let stopped = run_for(&view, SECOND).await;
    assert!(matches!(&stopped, Err(ViewError::Undecodable { position, .. }) if position.offset == 2), "{stopped:?}");
    // What came before it is folded, and a view is served only once it has all.
    assert_eq!(view.state().await.unwrap().as_of.offset("clicks", 0), Some(1));
}

// Guarantee: materialized_view 4.
#[tokio::test(start_paused = true)]
async fn a_switch_that_comes_late_is_no_step_back_behind_a_page_of_the_served_rows() {
    let (store, facts) = (memory(), facts(20));
    let log = crate::log(&store).await;
    commit(&log, &facts[..15]).await;
    run_for(&view(&store, &log), SECOND).await.unwrap();
    let port = ScriptedPort::new(&Clock::tokio());
    let mut is_first = true;
    port.by(move |call| match call.method {
        "batch" if call.target.contains("(3 writes)") && std::mem::take(&mut is_first) => {
            PortAnswer::pass().request_takes(SECOND * 2)
        }
        _ => PortAnswer::pass(),
    });
    let rebuilds = builder(&port.store(store.clone()), &log, ViewConfig::default()).build().unwrap();
    // Another projector folds a page of the served rows meanwhile: its page, as it is in another store.
    let folds = async {
        Clock::tokio().sleep(SECOND).await;
        assert!(port.calls("batch").iter().any(|call| call.target.contains("(3 writes)")), "no switch is on its way");
        commit(&log, &facts[15..]).await;
        let other = memory();
        run_for(&view(&other, &log), SECOND / 10).await.unwrap();
        for row in other.scan_all(Scan::partition("view/sales")).await.unwrap() {
            if row.row != "v/1" {
                store.put(Key::new("view/sales", &row.row), row.value, Precondition::Any.into()).await.unwrap();
            }
        }
    };
    let reader = async {
        let (view, mut last) = (view(&store, &log), 0);
        for _ in 0..400 {
            let at = view.get("tv-1").await.unwrap().as_of.offset("log", 0).unwrap();
            assert!(at >= last, "the place went back from {last} to {at}");
            last = at;
            Clock::tokio().sleep(MS(10)).await;
        }
    };
    let (rebuilt, ..) = tokio::join!(rebuilds.rebuild(), folds, reader);
    rebuilt.unwrap();
    assert_rows(&view(&store, &log), &facts).await;
}

// Guarantee: materialized_view 4.
#[tokio::test(start_paused = true)]
async fn a_rebuild_that_begins_late_takes_no_generation_of_later_ones() {
    let (store, facts) = (memory(), facts(20));
    let log = crate::log(&store).await;
    commit(&log, &facts).await;
    let view = view(&store, &log);
    run_for(&view, SECOND).await.unwrap();
    let port = ScriptedPort::new(&Clock::tokio());
    port.by(|call| match (call.method, call.number) {
        ("batch", 1) => PortAnswer::pass().request_takes(SECOND * 4),
        _ => PortAnswer::pass(),
    });
    let late = builder(&port.store(store.clone()), &log, ViewConfig::default()).build().unwrap();
    let others = async {
        Clock::tokio().sleep(SECOND).await;
        for _ in 0..2 {
            view.rebuild().await.unwrap();
        }
        for _ in 0..400 {
            assert_rows(&view, &facts).await;
            Clock::tokio().sleep(MS(10)).await;
        }
    };
    let (rebuilt, ()) = tokio::join!(late.rebuild(), others);
    rebuilt.unwrap();
    assert_rows(&view, &facts).await;
}

// Guarantee: materialized_view 2.
#[tokio::test(start_paused = true)]
async fn a_projector_that_has_lost_a_page_leaves_the_next_ones_to_the_other() {
    let store = memory();
    let log = crate::log(&store).await;
    let views = [(); 2].map(|()| slow_view(&store, &log, ViewConfig::default()));
    let mut events = views.each_ref().map(View::events);
    let writes = async {
        for _ in 0..2_000 {
            commit(&log, &[sold("tv-1", 1)]).await;
            Clock::tokio().sleep(MS(10)).await;
        }
    };
    let (one, other, ()) = tokio::join!(run_for(&views[0], SECOND * 30), run_for(&views[1], SECOND * 30), writes);
    assert!(one.is_ok() && other.is_ok());
    assert_eq!(views[0].get("tv-1").await.unwrap().row, Some(Total { n: 2_000, cents: 2_000 }));
    let told = [told(&mut events[0]).await, told(&mut events[1]).await];
    let lost = told.iter().flatten().filter(|event| matches!(event, ViewEvent::StandsBy { .. })).count();
    assert!((1..3).contains(&lost), "{lost} pages were folded for nothing");
}

// Guarantee: materialized_view 3.
#[tokio::test(start_paused = true)]
async fn a_partition_does_not_wait_behind_another_one_that_always_has_more() {
    let store = memory();
    let clicks = StoreTopic::open(store.clone(), "clicks", 2).await.unwrap();
    for _ in 0..200 {
        click(&clicks, 0, &sold("tv-1", 1)).await;
    }
    click(&clicks, 1, &sold("tv-2", 1)).await;
    let port = ScriptedPort::new(&Clock::tokio());
    port.by(|_| PortAnswer::pass().request_takes(MS(50)));
    let view = View::builder(port.store(store.clone()), "clicks", Sales, json(), ViewConfig::default().page(1));
    let view = view.source(clicks.clone(), json()).build().unwrap();
    run_for(&view, SECOND * 2).await.unwrap();
    let state = view.state().await.unwrap();
    assert_eq!(state.as_of.offset("clicks", 1), Some(1), "{}", state.as_of);
    assert!(state.as_of.offset("clicks", 0).unwrap() < 200);
}

// Guarantee: materialized_view 7.
#[tokio::test(start_paused = true)]
async fn a_source_of_which_all_events_were_trimmed_stops_the_projector() {
    let store = memory();
    let clicks = StoreTopic::open(store.clone(), "clicks", 1).await.unwrap();
    let view = View::builder(store.clone(), "clicks", Sales, json(), ViewConfig::default());
    let view = view.source(clicks.clone(), json()).build().unwrap();
    for round in 1..3 {
        for _ in 0..5 {
            click(&clicks, 0, &sold("tv-1", 1)).await;
        }
        clicks.trim(0, if round == 1 { 1 } else { 100 }).await.unwrap();
        let ran = run_for(&view, SECOND).await;
        let is_trimmed = matches!(&ran, Err(ViewError::Trimmed { first, .. }) if first.offset == 11);
        assert_eq!(is_trimmed, round == 2, "{ran:?}");
    }
    assert_eq!(view.get("tv-1").await.unwrap().row, Some(Total { n: 5, cents: 5 }));
}

// Guarantee: materialized_view 4, 7.
#[tokio::test(start_paused = true)]
async fn a_rebuild_of_a_source_whose_first_events_are_gone_writes_nothing() {
    let (store, facts) = (memory(), facts(20));
    let log = crate::log(&store).await;
    commit(&log, &facts).await;
    run_for(&view(&store, &log), SECOND).await.unwrap();
    log.trim(10).await.unwrap();
    let port = ScriptedPort::new(&Clock::tokio());
    let rebuilds = builder(&port.store(store.clone()), &log, ViewConfig::default()).build().unwrap();
    let trimmed = rebuilds.rebuild().await;
    assert!(matches!(&trimmed, Err(ViewError::Trimmed { first, .. }) if first.offset == 10), "{trimmed:?}");
    assert_eq!(port.calls("batch"), []);
}

// Guarantee: materialized_view 4, 5.
#[tokio::test(start_paused = true)]
async fn all_rows_of_an_old_generation_and_of_a_retired_version_are_deleted_however_many_there_are() {
    let store = memory();
    let log = crate::log(&store).await;
    commit(&log, &[Fact::Sold((0..350).map(|at| (format!("tv-{at}"), 1)).collect())]).await;
    let view = view(&store, &log);
    run_for(&view, SECOND).await.unwrap();
    view.rebuild().await.unwrap();
    let rows = async || store.scan_all(Scan::partition("view/sales")).await.unwrap().len();
    assert_eq!(rows().await, 352);
    assert!(builder(&store, &log, ViewConfig::default().version(2)).build().unwrap().retire(1).await.unwrap());
    assert_eq!(rows().await, 1);
}

// Guarantee: materialized_view 4, 8.
#[tokio::test(start_paused = true)]
async fn a_rebuild_takes_the_place_of_one_that_has_events_of_before_a_restore() {
    let (facts, rows) = (facts(60), memory());
    let now: Vec<_> = facts[..3].iter().chain(&facts[30..]).cloned().collect();
    let (topic, after) = Changed::of(&facts[..20], &now).await;
    let view = of_topic(&rows, &topic, ViewConfig::default().page(5));
    run_for(&view, SECOND).await.unwrap();
    let port = ScriptedPort::new(&Clock::tokio());
    port.by(|call| match (call.method, call.number) {
        ("batch", 3..) => PortAnswer::hang(),
        _ => PortAnswer::pass(),
    });
    let killed = of_topic(&port.store(rows.clone()), &topic, ViewConfig::default().page(5));
    assert!(within(SECOND, killed.rebuild()).await.is_none());
    assert_eq!(view.state().await.unwrap().next.unwrap().offset("log", 0), Some(5));
    topic.becomes(&after);
    let mut events = view.events();
    let ran = run_for(&view, SECOND * 20).await;
    assert!(matches!(&ran, Err(ViewError::Diverged { .. })), "{ran:?}");
    let told = told(&mut events).await;
    assert!(told.iter().any(|event| matches!(event, ViewEvent::RebuildStopped { generation: 2, .. })), "{told:?}");
    view.rebuild().await.unwrap();
    assert_rows(&view, &now).await;
    assert_eq!(view.state().await.unwrap().generation, Some(3));
}

// Guarantee: materialized_view 8, 9.
#[tokio::test(start_paused = true)]
async fn a_source_that_was_restored_behind_a_load_is_noticed() {
    let (facts, rows) = (facts(60), memory());
    let (topic, after) = Changed::of(&facts[..10], &facts[..6]).await;
    commit(&after, &facts[20..30]).await;
    let view = of_topic(&rows, &topic, ViewConfig::default());
    view.regenerate(async |_| Ok::<_, Infallible>(Vec::new())).await.unwrap();
    topic.becomes(&after);
    let ran = run_for(&view, SECOND).await;
    assert!(matches!(&ran, Err(ViewError::Diverged { position, .. }) if position.offset == 10), "{ran:?}");
}
