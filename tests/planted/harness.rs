//! The harness itself: it reports survivors, cases that hang, and tables that name the wrong case.
use std::{panic, sync::Arc, time::Duration};

use steadfast::testing::conformance::{Case, CaseError, Fixture};

use super::assert_each_fault_is_found;

/// The port of these cases: the fault of the backend is its text.
type Port = str;

fn passes() -> Case<Port> {
    Case::new("passes", |_| Box::pin(async {}))
}

fn finds_it() -> Case<Port> {
    Case::new("finds_it", |fixture| Box::pin(async { assert_eq!(fixture.port(), "sound") }))
}

fn blocks() -> Case<Port> {
    Case::new("blocks", |_| {
        Box::pin(async {
            let (_sender, receiver) = std::sync::mpsc::channel::<()>();
            // The sender lives as long as the wait.
            let _ = receiver.recv();
        })
    })
}

fn fixture(fault: &str) -> Fixture<Port> {
    Fixture::new(Arc::from(fault))
}

/// Returns the message with which the harness fails.
fn report(cases: &[Case<Port>], table: &[(&'static str, &str)]) -> Option<String> {
    let run = || assert_each_fault_is_found(cases, table, async |fault| fixture(fault.unwrap_or("sound")));
    let panic = panic::catch_unwind(panic::AssertUnwindSafe(run)).err()?;
    Some(panic.downcast_ref::<String>().expect("a message").clone())
}

#[test]
fn a_fault_that_no_case_finds_survives() {
    let report = report(&[passes(), finds_it()], &[("wrong", "finds_it"), ("sound", "finds_it")]).unwrap();
    assert!(report.contains("1 of 2 faults") && report.contains("\"sound\" survives"), "{report}");
}

#[test]
fn a_fault_must_be_found_by_the_case_that_the_table_names() {
    assert_eq!(report(&[passes(), finds_it()], &[("wrong", "finds_it")]), None);
    let report = report(&[passes(), finds_it()], &[("wrong", "passes")]).unwrap();
    assert!(report.contains("not found by `passes`, but by [(\"finds_it\""), "{report}");
}

#[test]
fn a_suite_that_fails_without_a_fault_fails_the_table() {
    let fails: Case<Port> = Case::new("fails", |_| Box::pin(async { panic!("always") }));
    let report = report(&[fails], &[("wrong", "fails")]).unwrap();
    assert!(report.contains("although there is no fault") && report.contains("always"), "{report}");
}

#[test]
fn a_case_that_blocks_its_thread_is_given_up() {
    let limit = Duration::from_millis(20);
    assert_eq!(blocks().run(limit, async || fixture("sound")), Err(CaseError::TimedOut { limit }));
    let error = blocks().run(limit, async || fixture("sound")).unwrap_err().to_string();
    assert!(error.contains("within 20ms") && error.contains("blocks its thread or never returns"), "{error}");
}

#[test]
fn a_failed_case_tells_its_assertion() {
    let failed = finds_it().run(Duration::from_secs(60), async || fixture("wrong"));
    let Err(CaseError::Failed { message }) = failed else { panic!("{failed:?}") };
    assert!(message.contains("left: \"wrong\""), "{message}");
}
