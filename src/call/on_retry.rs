//! Hooks that see each retry, and operations that see the failure before their attempt.
use std::{fmt, future::Future, marker::PhantomData};

use super::{AttemptInfo, CallContext, Operation, as_inside};
use crate::outcome::{Classify, LastFailure, Retrying, Verdict};

/// An operation or a classifier with a hook that sees each retry: see [`on_retry`] and
/// [`Pipeline::on_retry`](super::Pipeline::on_retry).
#[derive(Clone)]
pub struct OnRetry<X, H> {
    pub(super) inner: X,
    pub(super) hook: H,
}

/// Calls `hook` with each failure of `operation` that a retry repeats, before the wait: the error,
/// the delay, the number of the attempt.
///
/// Failures that no attempt follows cause no call of the hook: the caller gets their error. Without
/// a retry around the operation, the hook is never called. The hook runs inside the call, after the
/// [event](crate::retry::RetryEvent::Retrying): it must be quick, and its panic is the call's. It
/// may borrow, and change what it borrows.
///
/// ```
/// use std::io;
/// use steadfast::{call::{idempotent, on_retry}, retry::{Retry, RetryConfig}, time::Clock};
///
/// let (clock, time) = Clock::manual();
/// let retry = Retry::builder(RetryConfig::default()).clock(&clock).build().unwrap();
/// let mut answers = vec![Ok(7), Err(io::Error::other("refused")), Err(io::Error::other("reset"))];
/// let read = || std::future::ready(answers.pop().unwrap());
///
/// let mut log = Vec::new();
/// let read = on_retry(idempotent(read), |retrying| {
///     log.push(format!("{}: {:?}", retrying.attempt(), retrying.error().unwrap()));
///     assert!(retrying.delay() <= std::time::Duration::from_millis(200));
/// });
/// assert_eq!(time.block_on(retry.call(read)).unwrap(), 7);
/// assert_eq!(log.len(), 2);
/// assert!(log[0].starts_with("1: ") && log[0].contains("reset"));
/// ```
pub fn on_retry<T: Send, E: Send, O, H>(operation: O, hook: H) -> OnRetry<O, H>
where
    O: Operation<Output = T, Error = E>, // blocks: `on_retry_blocking`; not `Send`: `on_retry_local`
    H: FnMut(&Retrying<'_, T, E>) + Send,
{
    OnRetry { inner: operation, hook }
}

impl<O, H> Operation for OnRetry<O, H>
where
    O: Operation,
    H: FnMut(&Retrying<'_, O::Output, O::Error>) + Send,
{
    type Output = O::Output;
    type Error = O::Error;

    as_inside!(inner: is_idempotent, is_spent, priority, name, can_overlap, run_after);

    #[inline]
    fn run(&mut self, cx: CallContext<'_>) -> impl Future<Output = Result<O::Output, O::Error>> + Send {
        self.inner.run(cx)
    }

    fn start(
        &mut self,
        cx: CallContext<'_>,
    ) -> Option<impl Future<Output = Result<O::Output, O::Error>> + Send + use<O, H>> {
        self.inner.start(cx)
    }

    fn start_after(
        &mut self,
        cx: CallContext<'_>,
        last: Option<LastFailure<'_, O::Error>>,
    ) -> Option<impl Future<Output = Result<O::Output, O::Error>> + Send + use<O, H>> {
        self.inner.start_after(cx, last)
    }

    fn on_retry(&mut self, retrying: &Retrying<'_, O::Output, O::Error>) {
        self.inner.on_retry(retrying);
        (self.hook)(retrying);
    }
}

impl<T, E, C, H> Classify<T, E> for OnRetry<C, H>
where
    C: Classify<T, E>,
    H: Fn(&Retrying<'_, T, E>) + Send + Sync,
{
    #[inline]
    fn classify(&self, result: &Result<T, E>) -> Verdict {
        self.inner.classify(result)
    }

    fn error_for(&self, value: T, verdict: Verdict) -> Result<T, E> {
        self.inner.error_for(value, verdict)
    }

    fn on_retry(&self, retrying: &Retrying<'_, T, E>) {
        self.inner.on_retry(retrying);
        (self.hook)(retrying);
    }
}

impl<X, H> fmt::Debug for OnRetry<X, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnRetry")
    }
}

/// An operation that sees the failure before its attempt: see [`with_last_failure`].
pub struct WithLastFailure<F, E> {
    operation: F,
    error: PhantomData<fn() -> E>,
}

/// Creates an operation that receives, with the context of its attempt, the failure that a retry
/// repeats; `None` on the first attempt. A redirect, a lost version, or a full server that the next
/// attempt avoids are uses.
///
/// The failure is the operation's own error, a rejection or a time-out
/// ([`LastFailure::cause`]). After a value that was judged a failure, `cause` is `None` and the
/// verdict remains: the value is dropped before the wait. The future cannot borrow the failure: it
/// copies what the attempt needs. A retry keeps the failure, with all it holds, until the
/// attempt after the next one is due; this holds for every operation.
///
/// ```
/// use steadfast::{call::{idempotent, with_last_failure}, outcome::LastFailure};
/// use steadfast::{retry::{Retry, RetryConfig}, time::Clock};
///
/// #[derive(Debug)]
/// enum Failure { Moved { to: &'static str } }
///
/// let ask = with_last_failure(|_attempt, last: Option<LastFailure<'_, Failure>>| {
///     let server = match last.and_then(|last| last.error()) {
///         Some(Failure::Moved { to }) => *to,
///         None => "a",
///     };
///     async move {
///         if server == "a" { Err(Failure::Moved { to: "b" }) } else { Ok(server) }
///     }
/// });
/// let (clock, time) = Clock::manual();
/// let retry = Retry::builder(RetryConfig::default()).clock(&clock).build().unwrap();
/// assert_eq!(time.block_on(retry.call(idempotent(ask))).unwrap(), "b");
/// ```
pub fn with_last_failure<T, E, F, Fut>(operation: F) -> WithLastFailure<F, E>
where
    F: FnMut(AttemptInfo, Option<LastFailure<'_, E>>) -> Fut + Send,
    Fut: Future<Output = Result<T, E>> + Send,
{
    WithLastFailure { operation, error: PhantomData }
}

impl<T: Send, E: Send, F, Fut> Operation for WithLastFailure<F, E>
where
    F: FnMut(AttemptInfo, Option<LastFailure<'_, E>>) -> Fut + Send,
    Fut: Future<Output = Result<T, E>> + Send,
{
    type Output = T;
    type Error = E;

    fn run(&mut self, cx: CallContext<'_>) -> impl Future<Output = Result<T, E>> + Send {
        (self.operation)(cx.info(), None)
    }

    fn can_overlap(&self) -> bool {
        true
    }

    fn start(&mut self, cx: CallContext<'_>) -> Option<impl Future<Output = Result<T, E>> + Send + use<T, E, F, Fut>> {
        self.start_after(cx, None)
    }

    fn run_after(
        &mut self,
        cx: CallContext<'_>,
        last: Option<LastFailure<'_, E>>,
    ) -> impl Future<Output = Result<T, E>> + Send {
        (self.operation)(cx.info(), last)
    }

    fn start_after(
        &mut self,
        cx: CallContext<'_>,
        last: Option<LastFailure<'_, E>>,
    ) -> Option<impl Future<Output = Result<T, E>> + Send + use<T, E, F, Fut>> {
        Some((self.operation)(cx.info(), last))
    }
}

impl<F: Clone, E> Clone for WithLastFailure<F, E> {
    fn clone(&self) -> Self {
        Self { operation: self.operation.clone(), error: PhantomData }
    }
}

impl<F, E> fmt::Debug for WithLastFailure<F, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WithLastFailure")
    }
}
