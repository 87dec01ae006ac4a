//! Operations that change a state which the caller lends to them.
use std::{fmt, future::Future, marker::PhantomData};

use super::{CallContext, Operation};

/// An operation with a borrowed state: see [`with_state`].
pub struct WithState<'a, S, F, T, E> {
    state: &'a mut S,
    run: F,
    results: PhantomData<fn() -> Result<T, E>>,
}

/// Makes an operation of an async closure that changes `state`, say a connection that needs `&mut`,
/// or a buffer. Each attempt borrows the state in turn, and the caller has it back after the call.
///
/// A closure alone cannot do this: it may run again while the future of an earlier run still
/// exists, so a future cannot borrow what the closure captured by `&mut`. Everything that the
/// operation changes belongs into the state, such as a tuple of references; the closure may borrow
/// everything else, and is not `move`.
///
/// An attempt that a time-out dropped leaves the state as it was at its last `.await`: a connection
/// in the middle of a message must be replaced before it is used again. A hedge starts no further
/// attempt beside such an operation.
///
/// ```
/// use std::io::{Error, Result};
/// use steadfast::{
///     Pipeline,
///     call::{idempotent, with_state},
///     retry::{Retry, RetryConfig},
///     time::Clock,
/// };
///
/// struct Connection { sent: u32 }
///
/// impl Connection {
///     async fn get(&mut self, key: &str) -> Result<usize> {
///         self.sent += 1;
///         if self.sent < 3 { Err(Error::other("busy")) } else { Ok(key.len()) }
///     }
/// }
///
/// let (clock, time) = Clock::manual();
/// let retry = Retry::builder(RetryConfig::default()).clock(&clock).build().unwrap();
/// let (pipeline, key) = (Pipeline::new().then(retry), String::from("price"));
/// let (mut connection, mut failed) = (Connection { sent: 0 }, 0);
///
/// let mut state = (&mut connection, &mut failed);
/// let get = with_state(&mut state, async |(connection, failed)| {
///     connection.get(&key).await.inspect_err(|_| **failed += 1)
/// });
/// assert_eq!(time.block_on(pipeline.call(idempotent(get))).unwrap(), 5);
/// assert_eq!((connection.sent, failed), (3, 2));
/// ```
#[expect(private_bounds, reason = "states that the closure's future is `Send`, which no public bound can")]
pub fn with_state<S, F, T, E>(state: &mut S, run: F) -> WithState<'_, S, F, T, E>
where
    F: AsyncFnMut(&mut S) -> Result<T, E> + for<'s> StateFn<'s, S, Value = T, Error = E>,
{
    WithState { state, run, results: PhantomData }
}

/// A closure whose future borrows its argument and is `Send`. Of an `AsyncFnMut` that cannot be
/// demanded, because its future has no name; this trait names it for one lifetime at a time.
///
/// `Lent` has its default everywhere. It limits `'s` to lifetimes that `S` outlives: without it,
/// `for<'s>` would demand a state that borrows nothing.
trait StateFn<'s, S, Lent = &'s mut S>: Send {
    type Value;
    type Error;
    type Future: Future<Output = Result<Self::Value, Self::Error>> + Send;

    fn run(&mut self, state: &'s mut S) -> Self::Future;
}

impl<'s, S, F, Fut, T, E> StateFn<'s, S> for F
where
    F: FnMut(&'s mut S) -> Fut + Send,
    Fut: Future<Output = Result<T, E>> + Send,
{
    type Value = T;
    type Error = E;
    type Future = Fut;

    fn run(&mut self, state: &'s mut S) -> Fut {
        self(state)
    }
}

impl<S: Send, F, T: Send, E: Send> Operation for WithState<'_, S, F, T, E>
where
    F: for<'s> StateFn<'s, S, Value = T, Error = E>,
{
    type Output = T;
    type Error = E;

    fn run(&mut self, _: CallContext<'_>) -> impl Future<Output = Result<T, E>> + Send {
        self.run.run(self.state)
    }
}

impl<S: fmt::Debug, F, T, E> fmt::Debug for WithState<'_, S, F, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithState").field("state", &self.state).finish_non_exhaustive()
    }
}
