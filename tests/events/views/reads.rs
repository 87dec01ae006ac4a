//! Reads of a view, tokens, and projectors beside each other.
use std::{sync::Arc, time::Duration};

use steadfast::{
    materialized_view::{View, ViewConfig, ViewError, ViewEvent},
    notify::InMemoryNotifier,
    observe::Event,
    port::{Failure, PortErrorKind},
    stream::{self, StoreTopic, Topic},
};

use super::*;

// Guarantee: materialized_view 1.
#[tokio::test(start_paused = true)]
async fn a_row_is_the_fold_of_the_events_up_to_its_place() {
    let (store, facts) = (memory(), facts(60));
    let log = crate::log(&store).await;
    let view = builder(&store, &log, ViewConfig::default().page(4)).build().unwrap();
    commit(&log, &facts[..10]).await;
    let reader = async {
        view.ready().await.unwrap();
        let mut last = 0;
        while last < 60 {
            let read = view.get("tv-1").await.unwrap();
            let at = read.as_of.offset("log", 0).unwrap();
            assert!(at >= last, "the place went back");
            assert_eq!(read.row, naive(&facts[..at as usize]).get("tv-1").copied(), "as of {at}");
            last = at;
            Clock::tokio().sleep(Duration::from_millis(1)).await;
        }
    };
    let writer = async {
        for fact in &facts[10..] {
            commit(&log, std::slice::from_ref(fact)).await;
            Clock::tokio().sleep(Duration::from_millis(3)).await;
        }
    };
    let (ran, ..) = tokio::join!(run_for(&view, SECOND * 60), reader, writer);
    ran.unwrap();
    assert_rows(&view, &facts).await;
}

// Guarantee: materialized_view 2.
#[tokio::test(start_paused = true)]
async fn of_several_projectors_one_folds_and_another_takes_over_once_it_is_gone() {
    let (store, facts) = (memory(), facts(80));
    let log = crate::log(&store).await;
    let views: Vec<_> = (0..3).map(|_| slow_view(&store, &log, ViewConfig::default().page(8))).collect();
    let mut events: Vec<_> = views.iter().map(View::events).collect();
    let rest = async {
        commit(&log, &facts[..20]).await;
        Clock::tokio().sleep(SECOND).await;
        commit(&log, &facts[20..40]).await;
        views[2].get_after("tv-1", &log.token().await.unwrap(), SECOND * 30).await.unwrap();
    };
    let (one, two, ()) = tokio::join!(run_for(&views[0], SECOND * 40), run_for(&views[1], SECOND * 40), rest);
    assert!(one.is_ok() && two.is_ok());
    assert_rows(&views[2], &facts[..40]).await;
    let told = [told(&mut events[0]).await, told(&mut events[1]).await];
    let stood_by = told.iter().flatten().filter(|event| matches!(event, ViewEvent::StandsBy { .. })).count();
    assert!(stood_by >= 1, "{told:?}");

    // The one that folds is dropped, as by a kill; the other takes over.
    let (first, second) = (views[0].clone(), views[1].clone());
    let killed = tokio::spawn(async move { first.run(std::future::pending()).await });
    let goes_on = tokio::spawn(async move { second.run(std::future::pending()).await });
    let token = commit(&log, &facts[40..60]).await;
    views[2].get_after("tv-1", &token, SECOND * 30).await.unwrap();
    killed.abort();
    let token = commit(&log, &facts[60..]).await;
    views[2].get_after("tv-1", &token, SECOND * 30).await.unwrap();
    goes_on.abort();
    assert_rows(&views[2], &facts).await;
}

// Guarantee: materialized_view 3.
#[tokio::test(start_paused = true)]
async fn a_token_is_answered_when_the_view_has_it_and_never_before() {
    let store = memory();
    let log = crate::log(&store).await;
    let view = view(&store, &log);
    let token = commit(&log, &[sold("tv-1", 5)]).await;
    let late = view.get_after("tv-1", &token, SECOND).await;
    assert!(matches!(late, Err(ViewError::Building { .. })), "{late:?}");
    run_for(&view, SECOND).await.unwrap();
    assert_eq!(view.get_after("tv-1", &token, SECOND).await.unwrap().row.unwrap().n, 1);

    // A commit without rows counts, too.
    let token = commit(&log, &[Fact::Viewed]).await;
    let behind = view.get_after("tv-1", &token, SECOND).await.unwrap_err();
    assert!(matches!(&behind, ViewError::Behind { as_of } if as_of.to_string() == "log@1"), "{behind:?}");
    assert_eq!(behind.class(), steadfast::port::ErrorClass::Transient);
    run_for(&view, SECOND).await.unwrap();
    assert_eq!(view.get_after("tv-1", &token, Duration::ZERO).await.unwrap().as_of.to_string(), "log@2");

    let foreign = view.get_after("tv-1", &"other@1".parse().unwrap(), SECOND).await.unwrap_err();
    assert!(matches!(&foreign, ViewError::Invalid(error) if error.kind() == PortErrorKind::Invalid), "{foreign:?}");
}

// Guarantee: materialized_view 3.
#[tokio::test(start_paused = true)]
async fn a_reader_of_another_process_is_woken_by_the_notifier() {
    let (store, notifier) = (memory(), Arc::new(InMemoryNotifier::new()));
    let log = crate::log(&store).await;
    let open = || builder(&store, &log, ViewConfig::default()).notifier(notifier.clone()).build().unwrap();
    let (projector, reader) = (open(), open());
    run_for(&projector, SECOND).await.unwrap();
    let token = commit(&log, &[sold("tv-1", 5)]).await;
    let began = Clock::tokio().now();
    let fold = async {
        // By now the reader polls each half second alone.
        Clock::tokio().sleep(SECOND * 10 + Duration::from_millis(7)).await;
        run_for(&projector, SECOND).await.unwrap();
    };
    let waits = async {
        reader.get_after("tv-1", &token, SECOND * 60).await.unwrap();
        Clock::tokio().now() - began
    };
    let ((), waited) = tokio::join!(fold, waits);
    assert!(waited < SECOND * 10 + Duration::from_millis(40), "{waited:?}");
}

// Guarantee: materialized_view 3.
#[tokio::test(start_paused = true)]
async fn several_topics_and_partitions_are_folded_each_to_its_own_place() {
    let (store, facts) = (memory(), facts(40));
    let log = crate::log(&store).await;
    let clicks = StoreTopic::open(store.clone(), "clicks", 2).await.unwrap();
    let view = builder(&store, &log, ViewConfig::default().page(3)).source(clicks.clone(), json()).build().unwrap();
    let token = commit(&log, &facts).await;
    for (partition, fact) in [(0, sold("tv-0", 7)), (1, sold("tv-1", 9)), (1, sold("tv-9", 1))] {
        clicks.append(partition, vec![stream::Event::new(serde_json::to_vec(&fact).unwrap())]).await.unwrap();
    }
    run_for(&view, SECOND).await.unwrap();
    let all: Vec<_> = facts.iter().cloned().chain([sold("tv-0", 7), sold("tv-1", 9), sold("tv-9", 1)]).collect();
    let read = view.get_after("tv-9", &token, Duration::ZERO).await.unwrap();
    assert_eq!(read.row, naive(&all).get("tv-9").copied());
    assert_eq!(read.as_of.to_string(), "log@40, clicks@1.2");
    assert_eq!((read.as_of.offset("clicks", 1), read.as_of.offset("else", 0)), (Some(2), None));
    let of_partitions = view.get_after("tv-9", &"clicks@1".parse().unwrap(), SECOND).await;
    assert!(matches!(of_partitions, Err(ViewError::Invalid(_))), "{of_partitions:?}");
}

// Guarantee: materialized_view 5.
#[tokio::test(start_paused = true)]
async fn a_view_is_being_built_until_it_has_caught_up_once() {
    let (store, facts) = (memory(), facts(30));
    let log = crate::log(&store).await;
    commit(&log, &facts).await;
    let view = builder(&store, &log, ViewConfig::default().page(5)).build().unwrap();
    let error = view.get("tv-1").await.unwrap_err();
    let ViewError::Building { as_of, head } = &error else { panic!("{error:?}") };
    assert_eq!((as_of.to_string(), head.to_string(), as_of.events_to(head)), ("log@0".into(), "log@30".into(), 30));
    assert!(within(SECOND, view.ready()).await.is_none());
    let (ran, ready) = tokio::join!(run_for(&view, SECOND), view.ready());
    assert!(ran.is_ok() && ready.is_ok());
    assert_rows(&view, &facts).await;
    let state = view.state().await.unwrap();
    assert_eq!((state.generation, state.next, state.has_diverged, state.parked), (Some(1), None, false, 0));
    assert_eq!((state.as_of.clone(), state.as_of.to_string()), (state.head, "log@30".to_owned()));
}

// Guarantee: materialized_view 2.
#[tokio::test(start_paused = true)]
async fn an_event_of_a_page_says_how_much_changed() {
    let store = memory();
    let log = crate::log(&store).await;
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let sees = seen.clone();
    let hook = move |event: &Event<ViewEvent>| sees.lock().unwrap().push(event.what.clone());
    let view = builder(&store, &log, ViewConfig::default()).on_event(hook).build().unwrap();
    commit(&log, &[sold("tv-1", 1), sold("tv-1", 2), Fact::Viewed]).await;
    run_for(&view, SECOND).await.unwrap();
    let seen = seen.lock().unwrap().clone();
    let page = ViewEvent::Projected { generation: 1, records: 3, rows: 1 };
    assert_eq!(seen, [page, ViewEvent::Switched { generation: 1 }]);
}

// Guarantee: materialized_view 10.
#[tokio::test]
async fn settings_and_sources_that_break_a_rule_are_refused_by_name() {
    let store = memory();
    let log = crate::log(&store).await;
    let refused = |config: ViewConfig| builder(&store, &log, config).build().map(drop).unwrap_err().to_string();
    let ok = ViewConfig::default();
    for (config, field) in [
        (ok.version(0), "version"),
        (ok.page(0), "page"),
        (ok.page(10_001), "page"),
        (ok.standby(Duration::from_millis(99)), "standby"),
        (ok.idle(steadfast::work::IdleConfig::between(Duration::ZERO, SECOND)), "idle.min"),
    ] {
        assert!(refused(config).contains(&format!("`{field}`")), "{field}: {}", refused(config));
    }
    let twice = builder(&store, &log, ok).source(log.topic(), events()).build().map(drop).unwrap_err();
    assert!(twice.to_string().contains("`source`"), "{twice}");
    let unnamed = View::builder(store.clone(), "", Sales, json(), ok).build().map(drop).unwrap_err();
    assert!(unnamed.to_string().contains("`name`"), "{unnamed}");
    let without = View::builder(store.clone(), "sales", Sales, json(), ok).build().unwrap();
    for error in [without.run(std::future::ready(())).await, without.rebuild().await] {
        assert!(matches!(&error, Err(ViewError::Invalid(error)) if error.to_string().contains("`source`")));
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_page_is_read_while_a_full_one_is_written() {
    let (source, target) = (ScriptedPort::new(&Clock::tokio()), ScriptedPort::new(&Clock::tokio()));
    let log = crate::log(&source.store(memory())).await;
    let facts = facts(20);
    commit(&log, &facts).await;
    for port in [&source, &target] {
        port.by(|_| PortAnswer::pass().request_takes(Duration::from_millis(10)));
    }
    let view = builder(&target.store(memory()), &log, ViewConfig::default().page(5)).build().unwrap();
    let read_beside = || {
        let reads = source.calls("scan");
        let is_beside =
            |batch: &PortCall| reads.iter().any(|read| read.began >= batch.began && Some(read.began) < batch.ended);
        target.calls("batch").iter().filter(|batch| is_beside(batch)).count()
    };
    run_for(&view, SECOND * 10).await.unwrap();
    assert_eq!(read_beside(), 4, "one for each page");
    assert_rows(&view, &facts).await;
    // Nothing follows the last one.
    for port in [&source, &target] {
        port.forget();
    }
    commit(&log, &[sold("tv-1", 1)]).await;
    run_for(&view, SECOND * 10).await.unwrap();
    assert_eq!(read_beside(), 0);
}

// Guarantee: materialized_view 2.
#[tokio::test(start_paused = true)]
async fn a_page_that_was_read_ahead_is_dropped_if_another_projector_has_folded_it() {
    let (store, facts) = (memory(), facts(30));
    let log = crate::log(&store).await;
    run_for(&view(&store, &log), SECOND).await.unwrap();
    commit(&log, &facts[..20]).await;
    let port = ScriptedPort::new(&Clock::tokio());
    // Behind its first page it cannot reach the store for half a minute, and does not know that another one works.
    let (mut folded, until) = (false, Clock::tokio().now() + SECOND * 30);
    port.by(move |call| {
        folded |= call.method == "batch" && call.number == 1;
        let is_away = folded && call.method == "scan" && call.began < until;
        if is_away { PortAnswer::fail(PortErrorKind::Unavailable) } else { PortAnswer::pass() }
    });
    let open = |store: &Arc<dyn Store>| builder(store, &log, ViewConfig::default().page(5)).build().unwrap();
    let (slow, quick) = (open(&port.store(store.clone())), open(&store));
    let folds = slow.clone();
    let slow_one = tokio::spawn(async move { run_for(&folds, SECOND * 120).await });
    Clock::tokio().sleep(SECOND).await;
    assert_eq!(port.calls("batch").len(), 1, "one page");
    run_for(&quick, SECOND * 20).await.unwrap();
    assert_rows(&quick, &facts[..20]).await;
    let token = commit(&log, &facts[20..]).await;
    quick.get_after("tv-1", &token, SECOND * 90).await.unwrap();
    slow_one.abort();
    assert_rows(&quick, &facts).await;
}
