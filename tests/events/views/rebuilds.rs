//! Generations: rebuilds, versions, loads, and the end of a version.
use std::{
    convert::Infallible,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use steadfast::{
    materialized_view::{View, ViewConfig, ViewError, ViewEvent},
    port::PortErrorKind,
    store::{Key, Scan, StoreExt},
};

use super::*;

fn of_version(store: &Arc<dyn Store>, log: &EventStore, version: u32) -> View<Sales> {
    builder(store, log, ViewConfig::default().version(version).page(5)).build().unwrap()
}

/// The names of the view's rows.
async fn names(store: &Arc<dyn Store>) -> Vec<String> {
    store.scan_all(Scan::partition("view/sales")).await.unwrap().into_iter().map(|row| row.row).collect()
}

// Guarantee: materialized_view 4.
#[tokio::test(start_paused = true)]
async fn a_rebuild_serves_the_old_rows_until_the_new_ones_have_their_place() {
    let (store, facts) = (memory(), facts(120));
    let log = crate::log(&store).await;
    let view = of_version(&store, &log, 1);
    commit(&log, &facts[..40]).await;
    let is_over = AtomicBool::new(false);
    let reader = async {
        view.ready().await.unwrap();
        let mut last = 0;
        while !is_over.load(Relaxed) {
            let read = view.get("tv-2").await.unwrap();
            let at = read.as_of.offset("log", 0).unwrap();
            assert!(at >= last, "the place went back");
            assert_eq!(read.row, naive(&facts[..at as usize]).get("tv-2").copied(), "as of {at}");
            last = at;
            Clock::tokio().sleep(Duration::from_millis(1)).await;
        }
    };
    let rebuilds = async {
        view.ready().await.unwrap();
        for part in facts[40..].chunks(40) {
            let ((), rebuilt) = tokio::join!(
                async {
                    for fact in part {
                        commit(&log, std::slice::from_ref(fact)).await;
                        Clock::tokio().sleep(Duration::from_millis(2)).await;
                    }
                },
                view.rebuild()
            );
            rebuilt.unwrap();
        }
        view.get_after("tv-2", &log.token().await.unwrap(), SECOND * 20).await.unwrap();
        is_over.store(true, Relaxed);
    };
    let (ran, ..) = tokio::join!(run_for(&view, SECOND * 90), reader, rebuilds);
    ran.unwrap();
    assert_rows(&view, &facts).await;
    assert_eq!(view.state().await.unwrap().generation, Some(3));
    // The rows of the old generations are gone.
    assert!(names(&store).await.iter().all(|name| name == "v/1" || name.contains("/1/3")), "{:?}", names(&store).await);
}

// Guarantee: materialized_view 4.
#[tokio::test(start_paused = true)]
async fn a_rebuild_whose_process_died_is_resumed() {
    let (store, facts) = (memory(), facts(60));
    let log = crate::log(&store).await;
    let view = of_version(&store, &log, 1);
    commit(&log, &facts).await;
    run_for(&view, SECOND).await.unwrap();
    let killed = slow_view(&store, &log, ViewConfig::default().page(5));
    let mut events = view.events();
    for millis in [7, 12] {
        assert!(within(Duration::from_millis(millis), killed.rebuild()).await.is_none());
    }
    let state = view.state().await.unwrap();
    assert_eq!(state.generation, Some(1));
    assert!(state.next.unwrap().offset("log", 0).unwrap() > 0, "nothing was built");
    run_for(&view, SECOND * 20).await.unwrap();
    assert_eq!(view.state().await.unwrap().generation, Some(2));
    assert_rows(&view, &facts).await;
    assert!(told(&mut events).await.contains(&ViewEvent::Switched { generation: 2 }));
}

// Guarantee: materialized_view 4, 7.
#[tokio::test(start_paused = true)]
async fn a_rebuild_that_cannot_succeed_is_given_up_while_the_served_rows_go_on() {
    let (store, facts) = (memory(), facts(40));
    let log = crate::log(&store).await;
    let view = of_version(&store, &log, 1);
    commit(&log, &facts[..10]).await;
    run_for(&view, SECOND).await.unwrap();
    // Its process dies, and then the events that it needs are trimmed.
    let killed = slow_view(&store, &log, ViewConfig::default().page(5));
    assert!(within(Duration::from_millis(7), killed.rebuild()).await.is_none());
    assert!(view.state().await.unwrap().next.is_some());
    log.trim(10).await.unwrap();
    commit(&log, &facts[10..30]).await;
    let mut events = view.events();
    run_for(&view, SECOND * 20).await.unwrap();
    assert_rows(&view, &facts[..30]).await;
    let told = told(&mut events).await;
    let stopped = told.iter().filter(|event| matches!(event, ViewEvent::RebuildStopped { generation: 2, .. }));
    assert_eq!(stopped.count(), 1, "{told:?}");

    // Whoever calls for it is told, and gives it up. The next call begins none.
    assert!(view.state().await.unwrap().next.is_some());
    for _ in 0..2 {
        let trimmed = view.rebuild().await.unwrap_err();
        assert!(matches!(&trimmed, ViewError::Trimmed { first, .. } if first.offset == 10), "{trimmed:?}");
        assert_eq!(view.state().await.unwrap().next, None);
    }
    commit(&log, &facts[30..]).await;
    run_for(&view, SECOND * 20).await.unwrap();
    assert_rows(&view, &facts).await;
    assert_eq!(names(&store).await.iter().filter(|name| !name.contains("/1/1")).count(), 1);
}

// Guarantee: materialized_view 4.
#[tokio::test(start_paused = true)]
async fn a_rebuild_by_a_process_that_cannot_decode_an_event_is_given_up() {
    let store = memory();
    let log = crate::log(&store).await;
    let reads_more = View::builder(store.clone(), "sales", Sales, json(), ViewConfig::default())
        .source(log.topic(), events().ignore("Unknown"))
        .build()
        .unwrap();
    commit(&log, &[sold("tv-1", 1)]).await;
    let unknown = NewEvent::new("Unknown", "{}");
    log.commit(Commit::unnamed().append("sales", Expected::Any, [unknown])).await.unwrap();
    run_for(&reads_more, SECOND).await.unwrap();
    let refused = view(&store, &log).rebuild().await.unwrap_err();
    assert!(matches!(refused, ViewError::Undecodable { .. }), "{refused:?}");
    assert_eq!(reads_more.state().await.unwrap().next, None);
    commit(&log, &[sold("tv-1", 2)]).await;
    run_for(&reads_more, SECOND * 20).await.unwrap();
    assert_rows(&reads_more, &[sold("tv-1", 1), sold("tv-1", 2)]).await;
    assert_eq!(reads_more.state().await.unwrap().generation, Some(1));
}

/// A view of 20 events, each with 300 rows of its own, and of a store with this rule.
async fn wide_view(
    store: &Arc<dyn Store>,
    log: &EventStore,
    rule: impl FnMut(&PortCall) -> PortAnswer + Send + 'static,
) -> View<Sales> {
    let wide = |of: u64| Fact::Sold((0..300).map(|at| (format!("tv-{of}-{at}"), 1)).collect());
    commit(log, &(0..20).map(wide).collect::<Vec<_>>()).await;
    let port = ScriptedPort::new(&Clock::tokio());
    port.by(rule);
    builder(&port.store(store.clone()), log, ViewConfig::default()).build().unwrap()
}

// Guarantee: materialized_view 4.
#[tokio::test(start_paused = true)]
async fn events_are_folded_while_the_rows_of_an_old_generation_are_deleted() {
    let store = memory();
    let log = crate::log(&store).await;
    let slow = wide_view(&store, &log, |_| PortAnswer::pass().request_takes(Duration::from_millis(20))).await;
    let reader = view(&store, &log);
    let rest = async {
        slow.ready().await.unwrap();
        let read = async {
            while reader.state().await.unwrap().generation == Some(1) {
                Clock::tokio().sleep(Duration::from_millis(1)).await;
            }
            Clock::tokio().sleep(Duration::from_millis(100)).await;
            let token = commit(&log, &[sold("tv-1", 1)]).await;
            reader.get_after("tv-1", &token, SECOND).await.unwrap();
        };
        tokio::join!(slow.rebuild(), read).0.unwrap();
    };
    tokio::select! {
        ran = run_for(&slow, SECOND * 60) => panic!("{ran:?}"),
        () = rest => {}
    }
}

// Guarantee: materialized_view 4.
#[tokio::test(start_paused = true)]
async fn events_are_folded_though_a_request_to_delete_old_rows_is_never_answered() {
    let store = memory();
    let log = crate::log(&store).await;
    let hangs = |call: &PortCall| match call.method {
        // Pages of rows have more than 300, or fewer than 10.
        "batch" if call.target.contains("(100 writes)") => PortAnswer::hang(),
        _ => PortAnswer::pass(),
    };
    let view = wide_view(&store, &log, hangs).await;
    let rest = async {
        view.ready().await.unwrap();
        let read = async {
            while view.state().await.unwrap().generation == Some(1) {
                Clock::tokio().sleep(Duration::from_millis(1)).await;
            }
            let token = commit(&log, &[sold("tv-1", 1)]).await;
            view.get_after("tv-1", &token, SECOND * 10).await.unwrap();
        };
        tokio::join!(view.rebuild(), read).0.unwrap();
    };
    tokio::select! {
        ran = run_for(&view, SECOND * 60) => panic!("{ran:?}"),
        () = rest => {}
    }
}

// Guarantee: materialized_view 5.
#[tokio::test(start_paused = true)]
async fn a_new_version_is_built_beside_the_old_one_which_is_retired_later() {
    let (store, facts) = (memory(), facts(50));
    let log = crate::log(&store).await;
    let (one, two) = (of_version(&store, &log, 1), of_version(&store, &log, 2));
    commit(&log, &facts).await;
    run_for(&one, SECOND).await.unwrap();
    assert!(matches!(two.get("tv-1").await, Err(ViewError::Building { .. })));
    assert_rows(&one, &facts).await;
    run_for(&two, SECOND).await.unwrap();
    assert_rows(&two, &facts).await;
    assert_rows(&one, &facts).await;

    assert!(matches!(two.retire(2).await, Err(ViewError::Invalid(_))));
    assert!(!two.retire(3).await.unwrap());
    assert!(two.retire(1).await.unwrap());
    assert!(!two.retire(1).await.unwrap());
    assert!(names(&store).await.iter().all(|name| name == "v/1" || name.contains("/2")), "{:?}", names(&store).await);
    assert!(matches!(one.get("tv-1").await, Err(ViewError::Retired)));
    assert!(matches!(one.run(std::future::pending()).await, Err(ViewError::Retired)));
    assert!(matches!(one.rebuild().await, Err(ViewError::Retired)));
    assert_rows(&two, &facts).await;
}

// Guarantee: materialized_view 9.
#[tokio::test(start_paused = true)]
async fn rows_of_a_loader_are_served_once_all_are_there_and_later_events_are_folded_into_them() {
    let (store, facts) = (memory(), facts(30));
    let log = crate::log(&store).await;
    let view = of_version(&store, &log, 1);
    commit(&log, &facts).await;
    run_for(&view, SECOND).await.unwrap();
    let total = |cents| Total { n: 1, cents };
    let load = async |nth: u64| {
        // Readers are served the old rows meanwhile.
        assert_eq!(view.get("tv-1").await.unwrap().row, naive(&facts).get("tv-1").copied());
        let pages =
            [vec![("tv-1".to_owned(), total(1)), ("tv-7".to_owned(), total(7))], vec![("a".to_owned(), total(2))]];
        Ok::<_, Infallible>(pages.get(nth as usize).cloned().unwrap_or_default())
    };
    view.regenerate(load).await.unwrap();
    assert_eq!(view.get("tv-7").await.unwrap().row, Some(total(7)));
    assert_eq!(view.get("tv-2").await.unwrap().row, None);
    assert_eq!(view.state().await.unwrap().rows, 3);
    commit(&log, &[sold("tv-7", 10)]).await;
    run_for(&view, SECOND * 10).await.unwrap();
    assert_eq!(view.get("tv-7").await.unwrap().row, Some(Total { n: 2, cents: 17 }));

    // A view without a source has loads alone.
    let scheduled = View::builder(store.clone(), "scheduled", Sales, json(), ViewConfig::default()).build().unwrap();
    for round in 1..4 {
        let load =
            async |nth| Ok::<_, Infallible>(if nth == 0 { vec![("x".to_owned(), total(round))] } else { vec![] });
        scheduled.regenerate(load).await.unwrap();
        assert_eq!(scheduled.get("x").await.unwrap().row, Some(total(round)));
        let rows = store.scan_all(Scan::partition("view/scheduled")).await.unwrap();
        assert_eq!(rows.len(), 3, "the rows of an earlier load are left: {rows:?}");
    }
}

// Guarantee: materialized_view 9.
#[tokio::test(start_paused = true)]
async fn a_load_that_fails_or_repeats_a_key_leaves_the_old_rows() {
    let store = memory();
    let log = crate::log(&store).await;
    let view = of_version(&store, &log, 1);
    commit(&log, &[sold("tv-1", 5)]).await;
    run_for(&view, SECOND).await.unwrap();
    let row = || ("x".to_owned(), Total::default());
    let twice = view.regenerate(async |_| Ok::<_, Infallible>(vec![row()])).await.unwrap_err();
    assert!(matches!(&twice, ViewError::Invalid(error) if error.to_string().contains("\"x\"")), "{twice}");
    let failed = view.regenerate(async |_| Err("the file is gone")).await.unwrap_err();
    assert!(failed.to_string().contains("the file is gone"), "{failed}");
    // A key that no event may have.
    for key in ["x".repeat(1_100), "x\0".to_owned()] {
        let load =
            async |nth| Ok::<_, Infallible>(if nth == 0 { vec![(key.clone(), Total::default())] } else { vec![] });
        let refused = view.regenerate(load).await.unwrap_err();
        assert!(matches!(&refused, ViewError::Invalid(error) if error.to_string().contains("`keys`")), "{refused}");
    }
    // Another rebuild takes its place.
    let replaced = view
        .regenerate(async |nth| {
            if nth == 1 {
                view.rebuild().await.unwrap();
            }
            Ok::<_, Infallible>(if nth < 3 { vec![(nth.to_string(), Total::default())] } else { Vec::new() })
        })
        .await;
    assert!(matches!(replaced, Err(ViewError::Replaced)), "{replaced:?}");
    run_for(&view, SECOND * 20).await.unwrap();
    assert_eq!(view.get("tv-1").await.unwrap().row, Some(Total { n: 1, cents: 5 }));
    assert_eq!(names(&store).await.len(), 3, "{:?}", names(&store).await);
}

// Guarantee: materialized_view 9.
#[tokio::test(start_paused = true)]
async fn a_first_load_that_fails_or_dies_leaves_the_view_to_its_events() {
    let store = memory();
    let log = crate::log(&store).await;
    commit(&log, &[sold("tv-1", 5)]).await;
    let (one, two) = (of_version(&store, &log, 1), of_version(&store, &log, 2));
    let failed = one.regenerate(async |_| Err("the file is gone")).await;
    assert!(failed.is_err());
    run_for(&one, SECOND * 10).await.unwrap();
    assert_rows(&one, &[sold("tv-1", 5)]).await;

    let never = async |_| std::future::pending::<Result<_, Infallible>>().await;
    assert!(within(SECOND, two.regenerate(never)).await.is_none());
    run_for(&two, SECOND * 50).await.unwrap();
    assert!(matches!(two.get("tv-1").await, Err(ViewError::Building { .. })));
    run_for(&two, SECOND * 90).await.unwrap();
    assert_rows(&two, &[sold("tv-1", 5)]).await;
}

// Guarantee: materialized_view 9.
#[tokio::test(start_paused = true)]
async fn a_first_load_that_takes_long_is_not_taken_for_one_that_died() {
    let (store, port) = (memory(), ScriptedPort::new(&Clock::tokio()));
    let log = crate::log(&store).await;
    commit(&log, &[sold("tv-1", 5)]).await;
    let (view, loads) = (view(&store, &log), builder(&port.store(store.clone()), &log, ViewConfig::default()));
    // Of its signs, some are not stored, and some replies are lost.
    let of_signs = Clock::tokio().now() + SECOND * 200;
    port.by(move |call| match (call.method, call.number) {
        _ if call.began > of_signs => PortAnswer::pass(),
        ("batch", 3) => PortAnswer::lose(PortErrorKind::TimedOut),
        ("batch", 4) => PortAnswer::fail(PortErrorKind::Unavailable),
        ("batch", 5) => PortAnswer::silent(),
        _ => PortAnswer::pass(),
    });
    let load = async |nth| {
        Clock::tokio().sleep(SECOND * 295).await;
        Ok::<_, Infallible>(if nth == 0 { vec![("x".to_owned(), Total::default())] } else { Vec::new() })
    };
    let loads = loads.build().unwrap();
    let (loaded, ran) = tokio::join!(loads.regenerate(load), run_for(&view, SECOND * 700));
    ran.unwrap();
    loaded.unwrap();
    assert_eq!(view.get("x").await.unwrap().row, Some(Total::default()));
    assert_eq!(view.state().await.unwrap().generation, Some(1));
}

// Guarantee: materialized_view 2.
#[tokio::test(start_paused = true)]
async fn a_projector_that_cannot_begin_a_generation_pauses_between_its_tries() {
    let store = memory();
    let log = crate::log(&store).await;
    run_for(&view(&store, &log), SECOND).await.unwrap();
    // Another program deletes it.
    store.delete(Key::new("view/sales", "v/1"), Default::default()).await.unwrap();
    let port = ScriptedPort::new(&Clock::tokio());
    port.by(|_| PortAnswer::pass().request_takes(Duration::from_millis(1)));
    let again = builder(&port.store(store.clone()), &log, ViewConfig::default()).build().unwrap();
    run_for(&again, SECOND * 10).await.unwrap();
    assert!(within(SECOND * 10, again.rebuild()).await.is_none());
    let requests = port.calls("").len();
    assert!(requests < 500, "{requests} requests");
}

// Guarantee: materialized_view 11.
#[tokio::test(start_paused = true)]
async fn lost_rows_and_a_lost_store_are_built_again() {
    let (store, facts) = (memory(), facts(30));
    let log = crate::log(&store).await;
    let rows = memory();
    let view = of_version(&rows, &log, 1);
    commit(&log, &facts).await;
    run_for(&view, SECOND).await.unwrap();
    rows.delete(Key::new("view/sales", "c/1/1"), Default::default()).await.unwrap();
    assert!(matches!(view.get("tv-1").await, Err(ViewError::Building { .. })));
    run_for(&view, SECOND).await.unwrap();
    assert_rows(&view, &facts).await;
    assert_eq!(view.state().await.unwrap().generation, Some(2));
    rows.delete_scanned(Scan::partition("view/sales")).await.unwrap();
    assert!(matches!(view.get("tv-1").await, Err(ViewError::Building { .. })));
    run_for(&view, SECOND).await.unwrap();
    assert_rows(&view, &facts).await;
}
