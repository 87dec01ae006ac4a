//! A harness that ends a process at each of its requests.
mod process;

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

pub use self::process::CrashingProcess;
use self::process::{Course, Effect, Place, Point};
use super::report;

/// Environment variable with the one point to run, such as `before:3`.
const VARIABLE: &str = "STEADFAST_CRASH";

/// Ends a process before each of its requests, and after each write whose reply is then lost, one
/// point in each run of `test`. Returns the number of requests that the process makes without a
/// crash.
///
/// In each run `test` creates a fresh backend, runs the scenario by [`CrashingProcess::run`], lets
/// another process recover, and checks the result. The first run has no crash.
///
/// In this example, a transfer between two accounts is in a journal until it is complete. The
/// recovery completes each transfer that it finds there. Without the journal, the crash after the
/// first account's update is not recovered from:
///
/// ```
/// use std::{panic::catch_unwind, sync::Arc};
/// use steadfast::{
///     store::{InMemoryStore, Key, Scan, Store, StoreError, StoreExt},
///     testing::{CrashingProcess, crash_at_every_write},
///     time::block_on,
/// };
///
/// const ENTRY: Key = Key::new("journal", "t-1");
///
/// /// Changes a balance, and notes the transfer beside it: a repetition changes nothing.
/// async fn add(store: &dyn Store, account: &str, amount: i64) -> Result<(), StoreError> {
///     let key = Key::new("accounts", account);
///     let row = store.get(key).await?.unwrap();
///     let (balance, last) = std::str::from_utf8(&row.value).unwrap().split_once(' ').unwrap();
///     if last == ENTRY.row {
///         return Ok(());
///     }
///     let balance = balance.parse::<i64>().unwrap() + amount;
///     store.replace(key, format!("{balance} {}", ENTRY.row), row.version).await?;
///     Ok(())
/// }
///
/// async fn transfer(store: &dyn Store, has_journal: bool) -> Result<(), StoreError> {
///     if has_journal {
///         store.put(ENTRY, "alice to bob: 10".into(), Default::default()).await?;
///     }
///     add(store, "alice", -10).await?;
///     add(store, "bob", 10).await?;
///     store.delete(ENTRY, Default::default()).await?;
///     Ok(())
/// }
///
/// fn test(process: &CrashingProcess, has_journal: bool) {
///     // A fresh backend.
///     let backend: Arc<dyn Store> = Arc::new(InMemoryStore::new());
///     for account in ["alice", "bob"] {
///         block_on(backend.insert(Key::new("accounts", account), "50 none")).unwrap();
///     }
///     // The scenario, through a store that is counted.
///     let store = process.store(backend.clone());
///     block_on(process.run(transfer(&*store, has_journal)));
///     // The recovery, by another process.
///     if block_on(backend.get(ENTRY)).unwrap().is_some() {
///         block_on(transfer(&*backend, has_journal)).unwrap();
///     }
///     // The check.
///     let accounts = Scan::partition("accounts");
///     let accounts = block_on(backend.scan_all(accounts)).unwrap().into_iter();
///     let balances: Vec<_> = accounts.map(|row| row.value).collect();
///     let transferred = ["40 t-1", "60 t-1"];
///     assert!(balances == ["50 none", "50 none"] || balances == transferred, "{balances:?}");
/// }
///
/// assert_eq!(crash_at_every_write(|process| test(process, true)), 6);
///
/// let failed = catch_unwind(|| crash_at_every_write(|process| test(process, false))).unwrap_err();
/// let message = failed.downcast_ref::<String>().unwrap();
/// // The money has left one account, and was not added to the other.
/// assert!(message.starts_with(r#"crash after request 2, `put` of "accounts"/"alice":"#));
/// ```
///
/// # Coverage
///
/// - **Before each request**: the requests before it were applied, it was not.
/// - **After each write**: it was applied, and its reply is lost. To receive a message, and to
///   acquire or renew a lease, are writes. A crash after a read has no other effect than one before
///   the next request.
/// - **Beside a request**: if the process made other requests before it waited for this one, in a
///   further run those are applied, and this one is not. Sets of lost requests other than these
///   are not tried, such as two of three concurrent writes.
/// - A second crash, during the recovery, is the crash of another scenario: one whose world is
///   prepared as the first crash leaves it.
///
/// The points of concurrent requests depend on a backend that answers at once, as those in memory
/// do. With a backend that answers later, a request in flight at the crash is applied or not, as
/// with each dropped future.
///
/// # Replaying a failure
///
/// A panic of `test` is resumed with the point in front of its message, which is also printed to
/// standard error: the number of the request, its method and target, and the variable that runs
/// this point alone, such as `STEADFAST_CRASH=after:3`. It applies to each test with a crash:
/// choose one by its name.
///
/// # Panics
/// If `test` panics; if the process makes no request, or more than 1,000, in a run; if it makes
/// fewer requests than in the first run. A scenario must be deterministic: a manual clock, seeded
/// entropy, no threads.
pub fn crash_at_every_write(mut test: impl FnMut(&CrashingProcess)) -> usize {
    at_every_request(Effect::Crash, &mut test)
}

/// Fails each request of a process in turn before it is applied, and each write after it was
/// applied, one in each run of `test`. The process goes on with the error. Returns the number of
/// requests that it makes without a failure.
///
/// The error is `Unavailable`. After a write that was applied it has
/// [`may_have_been_applied`](crate::port::Failure::may_have_been_applied). `test` is the same as
/// for [`crash_at_every_write`], and so is the replay of a failure.
///
/// ```
/// use std::sync::Arc;
/// use steadfast::{
///     queue::{InMemoryQueue, Message, Queue, QueueExt},
///     testing::fail_at_every_write,
///     time::block_on,
/// };
///
/// let requests = fail_at_every_write(|process| {
///     let backend: Arc<dyn Queue> = Arc::new(InMemoryQueue::new("orders"));
///     let queue = process.queue(backend.clone());
///     // Sends again after each error, under one id.
///     block_on(process.run(async {
///         while queue.send_one(Message::new("order 42").deduplicate("42")).await.is_err() {}
///     }));
///     assert_eq!(block_on(backend.depth()).unwrap().total(), 1);
/// });
/// assert_eq!(requests, 1);
/// ```
///
/// # Panics
/// Same as [`crash_at_every_write`].
pub fn fail_at_every_write(mut test: impl FnMut(&CrashingProcess)) -> usize {
    at_every_request(Effect::Failure, &mut test)
}

/// Runs the test without a fault, then at each point, or at the one that the environment names.
fn at_every_request(effect: Effect, test: &mut dyn FnMut(&CrashingProcess)) -> usize {
    let requests = run_at(None, None, test).requests;
    assert!(!requests.is_empty(), "the process made no request: give its ports to the scenario");
    let all = requests.len();
    let mut run = |place, number| run_at(Some(Point { effect, place, number }), Some(all), test);
    if let Ok(point) = std::env::var(VARIABLE) {
        match parse(&point) {
            Some((place, number)) => drop(run(place, number)),
            None => panic!("{VARIABLE}={point}: must be `before`, `after` or `beside`, a colon and a number from 1"),
        }
        return all;
    }
    for (number, request) in (1..).zip(&requests) {
        if run(Place::Before, number).has_neighbours {
            run(Place::Beside, number);
        }
        if request.writes {
            run(Place::After, number);
        }
    }
    all
}

fn parse(point: &str) -> Option<(Place, usize)> {
    let (place, number) = point.split_once(':')?;
    let number = number.parse().ok().filter(|number| *number > 0)?;
    Some((Place::ALL.into_iter().find(|known| known.as_str() == place)?, number))
}

/// Runs the test once. `all` is the number of requests of the run without a fault.
fn run_at(point: Option<Point>, all: Option<usize>, test: &mut dyn FnMut(&CrashingProcess)) -> Course {
    let process = CrashingProcess::new(point);
    let tested = catch_unwind(AssertUnwindSafe(|| {
        test(&process);
        let Course { requests, was_reached, .. } = process.course();
        let (made, all) = (requests.len(), all.unwrap_or_default());
        assert!(
            was_reached || point.is_none(),
            "the process made only {made} requests, and {all} in the run without a fault: \
             use a manual clock and seeded entropy, and no threads"
        );
    }));
    if let Err(panic) = tested {
        resume_unwind(explain(&process, point, panic));
    }
    process.course()
}

/// Reports the point of a panic, and puts it in front of the message.
fn explain(process: &CrashingProcess, point: Option<Point>, panic: Box<dyn Any + Send>) -> Box<dyn Any + Send> {
    if let Some(Point { place, number, .. }) = point {
        report(format_args!("{process} failed; {VARIABLE}={}:{number} runs it alone", place.as_str()));
    }
    let text = panic.downcast_ref::<String>().map(String::as_str);
    match text.or_else(|| panic.downcast_ref::<&str>().copied()) {
        Some(message) => Box::new(format!("{process}: {message}")),
        None => panic,
    }
}
