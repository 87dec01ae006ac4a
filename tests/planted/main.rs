//! Faults planted in backends, one at a time: each is found by a named case of the conformance suites, and no case hangs.
//!
//! Each port has a table of faults with the cases that find them. A debug build runs those; `cargo test --release --test
//! planted -- --nocapture` runs each case with each fault, and prints all that find it.
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
    let found: Mutex<BTreeMap<usize, Vec<(&str, CaseError)>>> = Mutex::default();
    // Each pair is a fault, or none at 0, and a case.
    let run_all = |pairs: Vec<(usize, Case<P>)>| {
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while let Some((at, case)) = pairs.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
                        let fault = at.checked_sub(1).map(|at| table[at].0);
                        if let Err(error) = case.run(LIMIT, async move || make(fault).await) {
                            found.lock().unwrap().entry(at).or_default().push((case.name(), error));
                        }
                    }
                });
            }
        });
    };
    let is_named = |at: usize, case: &Case<P>| at == 0 || table[at - 1].1 == case.name();
    let pairs = (0..=table.len()).flat_map(|at| cases.iter().map(move |case| (at, *case)));
    let (named, others): (Vec<_>, Vec<_>) = pairs.partition(|(at, case)| is_named(*at, case));
    run_all(named);
    let is_found = |at: usize| found.lock().unwrap().contains_key(&at);
    run_all(others.into_iter().filter(|(at, _)| !cfg!(debug_assertions) || !is_found(*at)).collect());
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
