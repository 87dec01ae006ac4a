//! The harness that ends a process at each of its requests.
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    process::Command,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use steadfast::{
    lease::{InMemoryLease, Lease},
    notify::{InMemoryNotifier, Notifier},
    port::{Failure, PortErrorKind},
    queue::{InMemoryQueue, Message, Queue, QueueExt},
    store::{InMemoryStore, Key, Precondition, Scan, Store, StoreExt, Write},
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
    time::{Clock, block_on},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;

fn memory() -> Arc<dyn Store> {
    Arc::new(InMemoryStore::new())
}

fn rows(store: &dyn Store) -> Vec<String> {
    block_on(store.scan_all(Scan::partition("p"))).unwrap().into_iter().map(|row| row.row).collect()
}

/// Returns the message of the panic of a test.
fn panic_of<T: std::fmt::Debug>(test: impl FnOnce() -> T) -> String {
    let panic = catch_unwind(AssertUnwindSafe(test)).unwrap_err();
    panic.downcast::<String>().map_or_else(|panic| (*panic.downcast::<&str>().unwrap()).to_owned(), |text| *text)
}

/// Writes the rows in turn, and ends at an error.
async fn writes(store: &dyn Store, names: &[&str]) {
    for row in names {
        if store.insert(Key::new("p", row), "").await.is_err() {
            return;
        }
    }
}

// Guarantee: testing 3.
#[test]
fn a_process_ends_once_before_each_request_and_once_after_each_write() {
    let mut runs = Vec::new();
    let requests = crash_at_every_write(|process| {
        let (store, queue) = (memory(), Arc::new(InMemoryQueue::new("jobs")));
        let (lease, notifier) = (Arc::new(InMemoryLease::new()), Arc::new(InMemoryNotifier::new()));
        let (jobs, dead) = (queue.identity(), queue.dead_letters().unwrap().identity());
        let ended = block_on(process.run(async {
            let (store, queue) = (process.store(store), process.queue(queue));
            let (lease, notifier) = (process.lease(lease), process.notifier(notifier));
            store.get(Key::new("p", "a")).await.unwrap();
            store.batch("p", ["a", "b"].map(|row| Write::put(row, "", Precondition::Any)).into()).await.unwrap();
            queue.send_one(Message::new("m")).await.unwrap();
            let taken = queue.receive_one(S(1)).await.unwrap().unwrap();
            queue.complete(&taken.receipt).await.unwrap();
            queue.dead_letters().unwrap().depth().await.unwrap();
            lease.acquire("leader", "node", S(9)).await.unwrap();
            notifier.publish("topic", "n".into()).await.unwrap();
        }));
        assert_eq!(ended.is_none(), process.has_crashed());
        // A queue in memory has a random identity.
        runs.push(process.to_string().replace(&dead, "dead").replace(&jobs, "jobs"));
    });
    assert_eq!(requests, 8);
    assert_eq!(
        runs,
        [
            "no crash",
            r#"crash before request 1, `get` of "p"/"a""#,
            r#"crash before request 2, `batch` of "p" (2 writes)"#,
            r#"crash after request 2, `batch` of "p" (2 writes)"#,
            "crash before request 3, `send` of jobs",
            "crash after request 3, `send` of jobs",
            "crash before request 4, `receive` of jobs",
            "crash after request 4, `receive` of jobs",
            "crash before request 5, `settle` of jobs (complete)",
            "crash after request 5, `settle` of jobs (complete)",
            "crash before request 6, `depth` of dead",
            r#"crash before request 7, `acquire` of "leader""#,
            r#"crash after request 7, `acquire` of "leader""#,
            r#"crash before request 8, `publish` of "topic""#,
            r#"crash after request 8, `publish` of "topic""#,
        ]
    );
}

// Guarantee: testing 3.
#[test]
fn exactly_the_requests_before_the_crash_are_applied_and_nothing_runs_on() {
    let mut seen = Vec::new();
    crash_at_every_write(|process| {
        struct Ends<'a>(&'a Cell<u32>);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let (backend, replies, ended) = (memory(), Cell::new(0), Cell::new(0));
        let store = process.store(backend.clone());
        let output = block_on(process.run(async {
            let _ends = Ends(&ended);
            for row in ["a", "b", "c"] {
                store.insert(Key::new("p", row), "").await.unwrap();
                replies.set(replies.get() + 1);
            }
            replies.get()
        }));
        assert_eq!(ended.get(), 1, "the scenario was dropped");
        if output.is_none() {
            assert_eq!(block_on(process.run(async { unreachable!("it is dead") })), None::<()>);
        }
        seen.push((rows(&*backend).len(), replies.get(), output));
    });
    let crashed = |rows, replies| (rows, replies, None);
    let before_and_after = [crashed(0, 0), crashed(1, 0), crashed(1, 1), crashed(2, 1), crashed(2, 2), crashed(3, 2)];
    assert_eq!((seen[0], &seen[1..]), ((3, 3, Some(3)), &before_and_after[..]));
}

// Guarantee: testing 5.
#[test]
fn a_hole_behind_a_request_is_reported_at_exactly_that_request() {
    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    for hole in 1..NAMES.len() {
        let missed = panic_of(|| {
            crash_at_every_write(|process| {
                let backend = memory();
                let store = process.store(backend.clone());
                block_on(process.run(writes(&*store, &NAMES)));
                // The recovery expects that this row is followed by the next one.
                assert_ne!(rows(&*backend).len(), hole, "row {hole} is alone");
            })
        });
        let row = NAMES[hole - 1];
        let message = format!("crash after request {hole}, `put` of \"p\"/\"{row}\": assertion");
        assert!(missed.starts_with(&message) && missed.contains("is alone"), "{missed}");
    }
    // A scenario without a hole passes.
    let passes = crash_at_every_write(|process| {
        let backend = memory();
        block_on(process.run(writes(&*process.store(backend.clone()), &NAMES)));
        block_on(writes(&*backend, &NAMES[rows(&*backend).len()..]));
        assert_eq!(rows(&*backend), NAMES);
    });
    assert_eq!(passes, NAMES.len());
}

// Guarantee: testing 3.
#[test]
fn of_concurrent_requests_each_is_also_lost_alone() {
    let applied = |names: &'static [&'static str]| {
        let mut seen = BTreeSet::new();
        let requests = crash_at_every_write(|process| {
            let backend = memory();
            let store = process.store(backend.clone());
            let write = |row| store.insert(Key::new("p", row), "").map(|written| written.unwrap());
            block_on(process.run(futures::future::join_all(names.iter().map(|row| write(*row)))));
            seen.insert(rows(&*backend).concat());
        });
        assert_eq!(requests, names.len());
        seen.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(applied(&["a", "b"]), ["", "a", "ab", "b"]);
    assert_eq!(applied(&["a", "b", "c"]), ["", "a", "ab", "abc", "ac", "bc"]);
}

#[test]
fn an_output_of_the_poll_of_the_crash_is_no_output() {
    let outputs = RefCell::new(Vec::new());
    crash_at_every_write(|process| {
        let store = process.store(memory());
        let write = async { drop(store.insert(Key::new("p", "a"), "").await) };
        let gives_up = async {
            tokio::select! { biased; () = write => 1, () = std::future::ready(()) => 2 }
        };
        outputs.borrow_mut().push(block_on(process.run(gives_up)));
    });
    assert_eq!(outputs.into_inner(), [Some(1), None, None]);
}

#[test]
fn requests_in_flight_at_the_crash_are_dropped_on_a_slow_backend() {
    let mut seen = BTreeMap::new();
    crash_at_every_write(|process| {
        let (clock, time) = Clock::manual();
        let queue: Arc<dyn Queue> = Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
        let store = process.store(memory());
        let waits = process.queue(queue.clone());
        time.block_on(process.run(async {
            let receive = waits.receive(steadfast::queue::Receive::new(1, S(30)).wait(S(20)));
            let write = async {
                clock.sleep(MS(5)).await;
                store.insert(Key::new("p", "a"), "").await.unwrap();
            };
            futures::join!(receive, write).0.unwrap()
        }));
        time.block_on(queue.send_one(Message::new("m"))).unwrap();
        seen.insert(
            process.to_string().replace(&queue.identity(), "jobs"),
            time.block_on(queue.depth()).unwrap().visible,
        );
    });
    assert_eq!(
        seen.into_iter().collect::<Vec<_>>(),
        [
            (r#"crash after request 1, `receive` of jobs"#.to_owned(), 1),
            (r#"crash after request 2, `put` of "p"/"a""#.to_owned(), 1),
            (r#"crash before request 1, `receive` of jobs"#.to_owned(), 1),
            (r#"crash before request 2, `put` of "p"/"a""#.to_owned(), 1),
            ("no crash".to_owned(), 1),
        ]
    );
}

// Guarantee: testing 3.
#[test]
fn a_task_that_the_scenario_spawned_makes_no_request_after_the_crash() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    crash_at_every_write(|process| {
        let (backend, process) = (memory(), process.clone());
        let store = process.store(backend.clone());
        runtime.block_on(async {
            let (first, second) = (store.clone(), store);
            let crashed = process.run(async move {
                let task = tokio::spawn(async move { writes(&*first, &["a", "b"]).await });
                writes(&*second, &["c"]).await;
                task.await.unwrap();
            });
            let crashed = crashed.await.is_none();
            let before = backend.scan_all(Scan::partition("p")).await.unwrap().len();
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert_eq!(backend.scan_all(Scan::partition("p")).await.unwrap().len(), before);
            assert_eq!(crashed, process.to_string() != "no crash");
        });
    });
}

// Guarantee: testing 4.
#[test]
fn each_request_fails_once_before_it_is_applied_and_each_write_once_after() {
    let mut seen = Vec::new();
    let requests = fail_at_every_write(|process| {
        let backend = memory();
        let store = process.store(backend.clone());
        let failed = block_on(process.run(async {
            let key = Key::new("p", "a");
            let read = store.get(key).await.err();
            let written = store.insert(key, "").await.err();
            read.or(written)
        }));
        let failed = failed.expect("the process goes on").map(|error| {
            assert_eq!(error.backend().unwrap().kind(), PortErrorKind::Unavailable);
            error.may_have_been_applied()
        });
        seen.push((process.to_string(), failed, rows(&*backend).len()));
    });
    assert_eq!(requests, 2);
    let named = |name: &str, failed, rows| (name.to_owned(), failed, rows);
    assert_eq!(
        seen,
        [
            named("no crash", None, 1),
            named(r#"failure before request 1, `get` of "p"/"a""#, Some(false), 1),
            named(r#"failure before request 2, `put` of "p"/"a""#, Some(false), 0),
            named(r#"failure after request 2, `put` of "p"/"a""#, Some(true), 1),
        ]
    );
}

// Guarantee: testing 5.
#[test]
fn a_scenario_without_end_is_refused_with_its_last_request() {
    let tries = Cell::new(0);
    let endless = panic_of(|| {
        fail_at_every_write(|process| {
            let store = process.store(memory());
            tries.set(0);
            // Repeats the write although it was applied.
            block_on(process.run(async {
                while store.insert(Key::new("p", "a"), "").await.is_err() {
                    tries.set(tries.get() + 1);
                }
            }));
        })
    });
    assert_eq!(tries.get(), 1_000);
    let expected =
        r#"failure after request 1, `put` of "p"/"a": the process made more than 1000 requests, then `put` of"#;
    assert!(endless.starts_with(expected), "{endless}");
}

// Guarantee: testing 5.
#[test]
fn a_scenario_that_cannot_be_covered_is_refused_with_the_reason() {
    let unused = panic_of(|| crash_at_every_write(|process| assert!(block_on(process.run(async {})).is_some())));
    assert_eq!(unused, "the process made no request: give its ports to the scenario");

    let mut runs = 0;
    let differs = panic_of(|| {
        crash_at_every_write(|process| {
            runs += 1;
            let store = process.store(memory());
            block_on(process.run(writes(&*store, if runs < 3 { &["a", "b"] } else { &[] })));
        })
    });
    let expected = "crash after request 1: the process made only 0 requests, and 2 in the run without a fault";
    assert!(differs.starts_with(expected), "{differs}");

    let outside = panic_of(|| crash_at_every_write(|process| block_on(writes(&*process.store(memory()), &["a"]))));
    let expected = r#"no crash: `put` of "p"/"a" was made outside of `CrashingProcess::run`"#;
    assert!(outside.starts_with(expected), "{outside}");
}

// Guarantee: testing 5.
#[test]
fn a_panic_of_the_scenario_names_the_point_and_keeps_its_payload() {
    let panics = panic_of(|| {
        fail_at_every_write(|process| {
            let store = process.store(memory());
            block_on(process.run(async { store.insert(Key::new("p", "a"), "").await.expect("it is written") }));
        })
    });
    assert!(panics.starts_with(r#"failure before request 1, `put` of "p"/"a": it is written"#), "{panics}");
    let payload = catch_unwind(|| crash_at_every_write(|_| std::panic::panic_any(7_u8))).unwrap_err();
    assert_eq!(*payload.downcast::<u8>().unwrap(), 7);
}

/// Is run with the variable by the next test.
#[test]
fn a_crash_test_of_three_writes() {
    let runs = RefCell::new(Vec::new());
    let test = |process: &CrashingProcess| {
        let store = process.store(memory());
        block_on(process.run(writes(&*store, &["a", "b", "c"])));
        runs.borrow_mut().push(process.to_string());
    };
    assert_eq!(crash_at_every_write(test), 3);
    println!("{}", runs.borrow().join("; "));
}

// Guarantee: testing 5.
#[test]
fn the_variable_runs_one_point_alone() {
    let run = |point: &str| {
        let name = std::any::type_name_of_val(&a_crash_test_of_three_writes);
        let name = name.split_once("::").unwrap().1;
        let mut test = Command::new(std::env::current_exe().unwrap());
        let output = test.args(["--exact", name, "--nocapture"]).env("STEADFAST_CRASH", point).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let (passed, out, _) = run("after:2");
    assert!(passed && out.contains("no crash; crash after request 2, `put` of \"p\"/\"b\"\n"), "{out}");
    let (passed, _, errors) = run("before:4");
    assert!(
        !passed && errors.contains("crash before request 4 failed; STEADFAST_CRASH=before:4 runs it alone"),
        "{errors}"
    );
    for point in ["sometimes", "before:0"] {
        let (passed, _, errors) = run(point);
        let rule =
            format!("STEADFAST_CRASH={point}: must be `before`, `after` or `beside`, a colon and a number from 1");
        assert!(!passed && errors.contains(&rule), "{errors}");
    }
}
