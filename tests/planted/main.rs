//! Faults planted in backends, one at a time: each is found by a named case of the conformance suites, and no case hangs.
//!
//! Each port has a table of faults with the cases that find them. `cargo test --test planted -- --nocapture` prints the
//! other cases that find each.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "tests")]
#[macro_use]
#[path = "../it/forward.rs"]
mod forward;

mod harness;
mod lease;
mod notify;
mod queue;
mod queue_faults;
mod queue_forwards;
mod queue_hooks;
mod store;
mod topic;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    panic,
    sync::{
        Mutex, Once,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use steadfast::testing::conformance::{Case, CaseError, Fixture};

/// Time limit of a case, in real time: far above what any takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Threads that run cases at the same time: a case that waits in vain only waits.
const THREADS: usize = 16;

/// Prints no panic of a case: most are wanted. Threads of tests have a path as their name.
fn quiet_cases() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if thread::current().name().is_none_or(|name| name.contains("::")) {
                usual(info);
            }
        }));
    });
}

/// Asserts that the suite passes over the backend without a fault, and that it finds each fault by the case that the
/// table names. `make` returns an empty backend with exactly this fault.
fn assert_each_fault_is_found<P: ?Sized + 'static, F: Copy + Debug + Send + Sync + 'static>(
    cases: &[Case<P>],
    table: &[(F, &str)],
    make: impl AsyncFn(Option<F>) -> Fixture<P> + Copy + Send + Sync + 'static,
) {
    quiet_cases();
    let names: BTreeSet<_> = cases.iter().map(Case::name).collect();
    for (fault, case) in table {
        assert!(names.contains(case), "{fault:?}: the suite has no case `{case}`");
    }
    // The pairs of a fault, or none, and a case that has not run.
    let faults: Vec<_> = [None].into_iter().chain(table.iter().map(|(fault, _)| Some(*fault))).collect();
    let next = AtomicUsize::new(0);
    let found: Mutex<BTreeMap<usize, Vec<(&str, CaseError)>>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let (at, case) = (at / cases.len(), cases[at % cases.len()]);
                    let Some(fault) = faults.get(at).copied() else { return };
                    if let Err(error) = case.run(LIMIT, async move || make(fault).await) {
                        found.lock().unwrap().entry(at).or_default().push((case.name(), error));
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap();
    assert_eq!(found.remove(&0), None, "cases fail although there is no fault");
    let mut wrong = Vec::new();
    for (at, (fault, case)) in (1..).zip(table) {
        let found = found.remove(&at).unwrap_or_default();
        println!("{fault:?}: {:?}", found.iter().map(|(name, _)| name).collect::<Vec<_>>());
        let hung = found.iter().filter(|(_, error)| matches!(error, CaseError::TimedOut { .. }));
        wrong.extend(hung.map(|(name, error)| format!("{fault:?}: `{name}`: {error}")));
        if found.is_empty() {
            wrong.push(format!("{fault:?} survives"));
        } else if found.iter().all(|(name, _)| name != case) {
            wrong.push(format!("{fault:?} is not found by `{case}`, but by {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} faults:\n{}", wrong.len(), table.len(), wrong.join("\n"));
}
