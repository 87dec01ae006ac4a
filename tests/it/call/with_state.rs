//! Operations that change a state which their caller lends to them.
use std::{future::Future, io, time::Duration};

use steadfast::{
    CallError, Pipeline,
    call::{idempotent, not_idempotent, with_state},
    hedge::{Hedge, HedgeConfig},
    standard::{Standard, StandardConfig, StandardPipeline},
    testing::ManualClock,
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A connection whose first two requests fail.
struct Connection {
    sent: u32,
}

impl Connection {
    async fn get(&mut self, key: &str) -> io::Result<usize> {
        self.sent += 1;
        tokio::task::yield_now().await;
        if self.sent < 3 { Err(io::Error::other("busy")) } else { Ok(key.len()) }
    }
}

/// A transaction, which borrows its connection.
struct Transaction<'a>(&'a mut Connection);

fn stack() -> (StandardPipeline, ManualClock) {
    let (clock, time) = Clock::manual();
    (Standard::builder(StandardConfig::default()).clock(&clock).build().unwrap().into_pipeline(), time)
}

/// As a spawn demands it.
fn spawned<F: Future + Send + 'static>(task: F) -> F {
    task
}

#[test]
fn each_attempt_borrows_the_state_and_the_caller_has_it_back() {
    let (calls, time) = stack();
    let task = spawned(async move {
        let (mut connection, key) = (Connection { sent: 0 }, String::from("key"));
        let get = with_state(&mut connection, async |connection| connection.get(&key).await);
        assert_eq!(calls.call(idempotent(get)).await.unwrap(), 3);
        assert_eq!(connection.sent, 3);
        // As for any operation, an unmarked one is not repeated.
        connection.sent = 0;
        let get = with_state(&mut connection, async |connection| connection.get(&key).await);
        assert!(calls.call(get).await.is_err());
        assert_eq!(connection.sent, 1);
    });
    time.block_on(task);
}

#[test]
fn the_state_may_borrow_and_consist_of_several_parts() {
    let (calls, time) = stack();
    let boxed = calls.boxed::<usize, io::Error>();
    let task = spawned(async move {
        let (mut connection, mut failed, key) = (Connection { sent: 0 }, 0, String::from("key"));
        let mut transaction = Transaction(&mut connection);
        let mut state = (&mut transaction, &mut failed);
        let get = with_state(&mut state, async |(transaction, failed)| {
            transaction.0.get(&key).await.inspect_err(|_| **failed += 1)
        });
        assert_eq!(boxed.call(idempotent(get)).await.unwrap(), 3);
        assert_eq!((connection.sent, failed), (3, 2));
    });
    time.block_on(task);
}

#[test]
fn an_attempt_that_a_time_out_drops_leaves_the_state_to_its_caller() {
    let (clock, time) = Clock::manual();
    let timeout = Timeout::builder(MS(100)).clock(&clock).build();
    let mut steps = Vec::new();
    let operation = with_state(&mut steps, async |steps| {
        steps.push("begun");
        clock.sleep(MS(200)).await;
        steps.push("done");
        Ok::<_, ()>(())
    });
    let error: CallError<()> = time.block_on(Pipeline::new().then(timeout).call(operation)).unwrap_err();
    assert!(error.is_timed_out());
    assert_eq!(steps, ["begun"]);
}

#[test]
fn a_hedge_starts_no_attempt_beside_one_that_has_the_state() {
    let (clock, time) = Clock::manual();
    let hedge = Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true)).clock(&clock).build().unwrap();
    let mut runs = 0;
    let operation = with_state(&mut runs, async |runs| {
        *runs += 1;
        clock.sleep(MS(200)).await;
        Ok::<_, ()>(())
    });
    time.block_on(Pipeline::new().then(hedge).call(operation)).unwrap();
    assert_eq!(runs, 1);
    let shown = format!("{:?}", not_idempotent(with_state(&mut runs, async |_| Ok::<_, ()>(()))));
    assert_eq!(shown, "NotIdempotent(WithState { state: 1, .. })");
}
