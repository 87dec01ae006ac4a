//! The scripted service, the drop harness and the crash harness.
mod crash;

use std::{
    cell::Cell,
    future::{pending, ready},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use steadfast::{
    FailureKind, Verdict,
    port::{Capability, Failure, PortErrorKind},
    queue::{InMemoryQueue, Queue},
    store::{InMemoryStore, Key, Scan, Store, StoreExt},
    testing::{
        PortAnswer, ScriptedError, ScriptedPort, ScriptedService, drop_at_every_await,
        faults::{FaultConfig, FaultNetwork},
    },
    time::Clock,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

// Guarantee: testing 7.
#[test]
fn a_scripted_port_answers_by_its_rule_and_records_each_call() {
    let (clock, time) = Clock::manual();
    let script = ScriptedPort::new(&clock);
    let store = script.store(Arc::new(InMemoryStore::builder().clock(&clock).build()));
    let start = clock.now();
    script.by(|call| match (call.method, call.number) {
        ("put", 1) => PortAnswer::fail(PortErrorKind::Throttled),
        ("put", 2) => PortAnswer::lose(PortErrorKind::TimedOut).request_takes(MS(5)).answer_takes(MS(7)),
        ("put", 3) => PortAnswer::silent(),
        ("put", 4) => PortAnswer::hang(),
        ("put", _) => PortAnswer::pass().held(),
        _ => PortAnswer::pass(),
    });
    let put = |row: &'static str| {
        let store = store.clone();
        async move { store.put(Key::new("p", row), "x".into(), Default::default()).await }
    };
    let exists = |row| time.block_on(store.get(Key::new("p", row))).unwrap().is_some();
    let failed = time.block_on(put("a")).unwrap_err();
    assert!(!failed.may_have_been_applied() && !exists("a"), "{failed}");
    let lost = time.block_on(put("b")).unwrap_err();
    assert!(lost.may_have_been_applied() && exists("b"), "{lost}");
    assert!(put("c").now_or_never().is_none() && exists("c"));
    assert!(put("d").now_or_never().is_none() && !exists("d"));
    let mut held = Box::pin(put("e"));
    assert!((&mut held).now_or_never().is_none() && !exists("e"));
    assert!(script.calls("put")[4].ended.is_none());
    script.release();
    held.now_or_never().unwrap().unwrap();
    assert!(exists("e"));

    let calls = script.calls("put");
    assert_eq!(calls.iter().map(|call| call.target.as_str()).collect::<String>(), "abcde");
    assert_eq!(calls.iter().map(|call| call.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!((calls[1].began, calls[1].ended), (start, Some(start + MS(12))));
    assert!(calls.iter().all(|call| call.ended.is_some()));
    script.forget();
    assert!(script.calls("").is_empty());
    let poor = ScriptedPort::changing(&clock, |can| can.without(Capability::Fencing));
    assert!(!poor.store(store.clone()).capabilities().has(Capability::Fencing));
    let queue = Arc::new(InMemoryQueue::new("jobs"));
    assert!(ScriptedPort::elsewhere(&clock).queue(queue.clone()).address().is_none() && queue.address().is_some());
}

// Guarantee: testing 5.
#[test]
fn requests_that_were_dropped_on_their_way_have_all_arrived_once_they_are_delivered() {
    let (clock, time) = Clock::manual();
    let faults = FaultConfig::default().late(1.0).latency(MS(1), MS(1));
    let network = FaultNetwork::new(faults, 1, &clock).unwrap();
    let backend = Arc::new(InMemoryStore::builder().clock(&clock).build());
    let store = network.client("a").store(backend.clone());
    let names: Vec<String> = (0..20).map(|nth| nth.to_string()).collect();
    let put = |row| store.put(Key::new("p", row), "x".into(), Default::default());
    let mut puts: Vec<_> = names.iter().map(|row| put(row)).collect();
    assert!(puts.iter_mut().all(|put| put.now_or_never().is_none()));
    drop(puts);
    let rows = || time.block_on(backend.scan_all(Scan::partition("p"))).unwrap().len();
    assert_eq!((rows(), network.counts().late), (0, 0));
    time.block_on(network.deliver_late());
    assert_eq!((rows(), network.counts().late), (20, 20));
    time.block_on(network.deliver_late());
    assert_eq!(network.counts().late, 20);
}

// Guarantee: testing 1.
#[test]
fn a_script_is_followed_step_by_step_and_its_last_step_repeats() {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new("ok x3, 503 in 100ms, reset, 204", &clock).unwrap();
    let start = time.now();
    for _ in 0..3 {
        assert_eq!(time.block_on(service.call()), Ok(200));
    }
    assert_eq!(time.now(), start);
    assert_eq!(time.block_on(service.call()), Err(ScriptedError::Status { status: 503, retry_after: None }));
    assert_eq!(time.now() - start, MS(100));
    assert_eq!(time.block_on(service.call()), Err(ScriptedError::Reset));
    for _ in 0..5 {
        assert_eq!(time.block_on(service.call()), Ok(204));
    }
    assert_eq!(service.called_at(), [[start; 4].as_slice(), &[start + MS(100); 6]].concat());
    assert_eq!(service.gaps(), [MS(0), MS(0), MS(0), MS(100), MS(0), MS(0), MS(0), MS(0), MS(0)]);
}

// Guarantee: testing 1.
#[test]
fn the_words_of_a_step_come_in_any_order() {
    let (clock, time) = Clock::manual();
    for script in
        ["503 in 1s retry-after 2s x2, ok", "503 x2 retry-after 2s in 1s, ok", " 503  retry-after 2s x2 in 1s ,ok"]
    {
        let service = ScriptedService::new(script, &clock).unwrap();
        let start = time.now();
        for _ in 0..2 {
            let error = time.block_on(service.call());
            assert_eq!(error, Err(ScriptedError::Status { status: 503, retry_after: Some(MS(2000)) }));
        }
        assert_eq!((time.block_on(service.call()), time.now() - start), (Ok(200), MS(2000)));
    }
}

// Guarantee: testing 1.
#[test]
fn a_bad_script_is_refused_with_the_step_and_the_rule() {
    let (clock, _time) = Clock::manual();
    let refused = [
        ("", "step 1, ``: is empty"),
        ("ok,", "step 2, ``: is empty"),
        ("ok, okay", "step 2, `okay`: `okay` is not ok, reset, hang, panic or a status from 100 to 599"),
        ("99", "step 1, `99`: `99` is not ok, reset, hang, panic or a status from 100 to 599"),
        ("600", "step 1, `600`: `600` is not ok, reset, hang, panic or a status from 100 to 599"),
        ("ok x0", "step 1, `ok x0`: `x0` is not `in`, `retry-after` or `xN`"),
        ("ok in", "step 1, `ok in`: a duration is missing"),
        ("ok, 503 retry-after", "step 2, `503 retry-after`: a duration is missing"),
    ];
    for (script, error) in refused {
        assert_eq!(ScriptedService::new(script, &clock).unwrap_err().to_string(), error);
    }
    let error = ScriptedService::new("ok in soon", &clock).unwrap_err().to_string();
    assert!(error.starts_with("step 1, `ok in soon`: `soon` is not a duration: "), "{error}");
}

// Guarantee: testing 1.
#[test]
fn calls_are_counted_as_they_run_end_and_are_dropped() {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new("ok in 1s x2, hang, panic", &clock).unwrap();
    let both = time.block_on(async { futures::join!(service.call(), service.call()) });
    assert_eq!(both, (Ok(200), Ok(200)));
    assert_eq!((service.calls(), service.most_running(), service.running(), service.dropped()), (2, 2, 0, 0));
    let mut hangs = Box::pin(service.call());
    assert!(hangs.as_mut().now_or_never().is_none());
    assert_eq!((service.running(), service.clone().dropped()), (1, 0));
    drop(hangs);
    assert_eq!((service.running(), service.dropped()), (0, 1));
    // A call that panics is not counted as dropped.
    assert!(catch_unwind(AssertUnwindSafe(|| time.block_on(service.call()))).is_err());
    assert_eq!((service.calls(), service.running(), service.dropped()), (4, 0, 1));
}

// Guarantee: testing 1.
#[test]
fn the_service_s_results_are_classified_by_status() {
    let judged = |status| ScriptedService::classify(&Err(ScriptedError::Status { status, retry_after: None })).kind();
    let usual = [
        (429, FailureKind::Throttled),
        (503, FailureKind::Overloaded),
        (500, FailureKind::Server),
        (599, FailureKind::Server),
        (400, FailureKind::Client),
        (499, FailureKind::Client),
    ];
    for (status, kind) in usual {
        assert_eq!(judged(status), Some(kind), "{status}");
    }
    assert_eq!(ScriptedService::classify(&Ok(204)), Verdict::success());
    // The request may have been sent, so the kind is not `connect`, which proves that it was not.
    assert_eq!(ScriptedService::classify(&Err(ScriptedError::Reset)).kind(), Some(FailureKind::Other));
    let hinted = Err(ScriptedError::Status { status: 503, retry_after: Some(MS(7)) });
    assert_eq!(ScriptedService::classify(&hinted).hint().retry_after(), Some(MS(7)));
}

// Guarantee: testing 2.
#[test]
fn the_harness_drops_once_at_each_await_and_then_lets_a_future_complete() {
    let (clock, time) = Clock::manual();
    let (made, dropped, ended) = (Cell::new(0), Cell::new(0), Cell::new(0));
    struct OnDrop<'a>(&'a Cell<u32>);
    impl Drop for OnDrop<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let mut checked = Vec::new();
    let polls = drop_at_every_await(
        &time,
        || {
            made.set(made.get() + 1);
            let held = OnDrop(&dropped);
            let (clock, ended) = (&clock, &ended);
            async move {
                let _held = held;
                clock.sleep(MS(5)).await;
                ready(()).await; // no await point: it never waits
                tokio::task::yield_now().await;
                clock.sleep(MS(5)).await;
                ended.set(ended.get() + 1);
            }
        },
        |polls| {
            checked.push(polls);
            assert_eq!(dropped.get() as usize, polls + 1, "dropped before the check");
        },
    );
    // Dropped at the start, at the first sleep, at the yield and at the second sleep; then completed.
    assert_eq!((polls, checked, made.get(), ended.get()), (4, vec![0, 1, 2, 3, 4], 5, 1));
}

// Guarantee: testing 2.
#[test]
#[should_panic(expected = "no timer is left to wake it")]
fn the_harness_panics_if_a_future_never_completes() {
    let (_clock, time) = Clock::manual();
    drop_at_every_await(&time, pending::<()>, |_| {});
}
