//! Futures that are dropped at each of their await points.
use std::{cell::RefCell, convert::Infallible};

use steadfast::testing::drop_at_every_await;

use super::*;

#[test]
fn a_future_that_is_dropped_anywhere_leaves_a_view_that_others_go_on_with() {
    let (clock, time) = Clock::manual();
    let facts = facts(20);
    let (store, log) = (memory(), EventStore::builder(memory(), "log", Default::default()).clock(&clock));
    let log = crate::crashes::runtime().block_on(async {
        let log = log.build().await.unwrap();
        commit(&log, &facts).await;
        log
    });
    // Each request waits once, so that there is an await point behind each.
    let port = ScriptedPort::new(&clock);
    port.by(|_| PortAnswer::pass().request_takes(Duration::from_millis(1)));
    let open = |name: &str, version| {
        let config = ViewConfig::default().version(version).page(7);
        let view = View::builder(port.store(store.clone()), name.to_owned(), Sales, json(), config);
        view.source(log.topic(), events()).clock(&clock).build().unwrap()
    };
    let is_right = |view: &View<Sales>| {
        time.block_on(async {
            view.rebuild().await.unwrap();
            for at in 0..5 {
                let key = format!("tv-{at}");
                assert_eq!(view.get(&key).await.unwrap().row, naive(&facts).get(&key).copied(), "{key}");
            }
        });
    };
    // Each future begins with a view of its own, and another one goes on.
    let last = RefCell::new(String::new());
    let new = || {
        last.replace(crate::crashes::new_name());
        open(&last.borrow(), 1)
    };
    let goes_on = |_| is_right(&open(&last.borrow(), 1));
    let stop = || async { clock.sleep(Duration::from_millis(200)).await };
    let runs = || {
        let (view, stop) = (new(), stop());
        async move { view.run(stop).await }
    };
    assert!(drop_at_every_await(&time, runs, goes_on) > 10);
    let rebuilds = || {
        let view = new();
        async move { view.rebuild().await }
    };
    assert!(drop_at_every_await(&time, rebuilds, goes_on) > 10);
    let loads = || {
        let view = new();
        let rows = |nth: u64| if nth < 2 { vec![(nth.to_string(), Total::default())] } else { vec![] };
        async move { view.regenerate(async |nth| Ok::<_, Infallible>(rows(nth))).await }
    };
    assert!(drop_at_every_await(&time, loads, goes_on) > 5);
    let retires = || {
        is_right(&new());
        let view = open(&last.borrow(), 2);
        async move { view.retire(1).await }
    };
    let retired = |_| assert!(time.block_on(open(&last.borrow(), 2).retire(1)).is_ok());
    assert!(drop_at_every_await(&time, retires, retired) >= 5);

    let (view, token) = (new(), "log@20".parse().unwrap());
    is_right(&view);
    assert!(drop_at_every_await(&time, || view.get("tv-1"), |_| {}) >= 1);
    assert!(drop_at_every_await(&time, || view.get_after("tv-1", &token, SECOND), |_| {}) >= 1);
    assert!(drop_at_every_await(&time, || view.ready(), |_| {}) >= 1);
    assert!(drop_at_every_await(&time, || view.state(), |_| {}) >= 1);
    assert!(drop_at_every_await(&time, || view.parked(), |_| {}) >= 1);
    is_right(&view);
}
