//! The methods of pipelines for operations that block.
use super::{BlockingOperation, call_blocking, call_blocking_or};
use crate::{
    call::{AttemptInfo, BoxedPipeline, CallContext, Failed, Pipeline, Policy, WithAttempt, run::Within},
    outcome::{CallError, Classify},
};

impl<P: Policy, C> Pipeline<P, C> {
    /// As [`call`](Self::call), for an operation that is not async: runs it on this thread, which
    /// waits between attempts and for permits. It needs no runtime, and neither the operation nor
    /// its value and its error need be [`Send`].
    ///
    /// ```
    /// use std::{cell::Cell, time::Duration};
    /// use steadfast::{Pipeline, call::idempotent, retry::{Retry, RetryConfig}, timeout::Timeout};
    ///
    /// # #[derive(Debug)] enum Failure { Busy }
    /// # struct Connection(Cell<u32>);
    /// # impl Connection {
    /// #     fn query_row(&self, _: &str) -> Result<u32, Failure> {
    /// #         self.0.set(self.0.get() + 1);
    /// #         if self.0.get() > 1 { Ok(42) } else { Err(Failure::Busy) }
    /// #     }
    /// # }
    /// // Like many a database's, the connection is not `Sync`, so a borrow of it is not `Send`.
    /// let connection = Connection(Cell::new(0));
    /// let backoff = steadfast::backoff::BackoffConfig::default()
    ///     .between(Duration::from_millis(1), Duration::from_millis(10));
    /// let database = Pipeline::new()
    ///     .then(Timeout::new(Duration::from_secs(5)))
    ///     .then(Retry::new(RetryConfig::default().backoff(backoff)).unwrap());
    ///
    /// let read = || connection.query_row("SELECT count(*) FROM orders");
    /// // The first attempt finds the database busy.
    /// assert_eq!(database.call_blocking(idempotent(read)).unwrap(), 42);
    /// ```
    ///
    /// Policies behave as for other calls, with these limits of code that cannot be interrupted:
    ///
    /// - A [`Timeout`](crate::timeout::Timeout) bounds the waits: delays between attempts, queues
    ///   for permits. It never ends a running attempt. Its deadline reaches the operation through
    ///   [`call_blocking_with`](Self::call_blocking_with), for the time-out of a socket or a
    ///   statement. A result that comes after the deadline is the call's result; no further attempt
    ///   starts.
    /// - A [`Hedge`](crate::hedge::Hedge) makes no second attempt at the same time.
    ///
    /// In a task of a runtime it blocks the task's thread, as all blocking code does: use
    /// `tokio::task::spawn_blocking` around it ([more](crate::time::block_on)).
    /// [`ManualClock::run_blocking`](crate::time::ManualClock::run_blocking) shows a test.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_blocking<O: BlockingOperation>(&self, operation: O) -> Result<O::Output, CallError<O::Error>>
    where
        C: Classify<O::Output, O::Error>,
    {
        call_blocking(self, &self.classify, CallContext::of, operation)
    }

    /// As [`call_blocking`](Self::call_blocking), for a closure that receives the attempt's number
    /// and deadline. A marked one is `idempotent(WithAttempt(|attempt| ..))`.
    ///
    /// ```
    /// use std::{io, net::{TcpListener, TcpStream}, time::Duration};
    /// use steadfast::{
    ///     Pipeline,
    ///     circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    ///     retry::{Retry, RetryConfig},
    ///     time::Clock,
    ///     timeout::Timeout,
    /// };
    ///
    /// let service = Pipeline::new()
    ///     .then(Timeout::new(Duration::from_secs(5)))
    ///     .then(Retry::new(RetryConfig::default()).unwrap())
    ///     .then(CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap());
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    /// let address = listener.local_addr().unwrap();
    /// let stream = service.call_blocking_with(|attempt| {
    ///     let left = attempt.remaining(Clock::tokio().now()).unwrap_or(Duration::MAX);
    ///     // A socket does not accept a time-out of zero.
    ///     let stream = TcpStream::connect_timeout(&address, left.max(Duration::from_millis(1)))?;
    ///     stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
    ///     Ok::<_, io::Error>(stream)
    /// });
    /// let limit = stream.unwrap().read_timeout().unwrap().unwrap();
    /// assert!(limit <= Duration::from_secs(5));
    /// ```
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_blocking_with<T, E>(
        &self,
        operation: impl FnMut(AttemptInfo) -> Result<T, E>,
    ) -> Result<T, CallError<E>>
    where
        C: Classify<T, E>,
    {
        self.call_blocking(WithAttempt(operation))
    }

    /// As [`call_blocking`](Self::call_blocking), inside an attempt of another pipeline, as
    /// [`call_within`](Self::call_within).
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_blocking_within<O: BlockingOperation>(
        &self,
        outer: AttemptInfo,
        operation: O,
    ) -> Result<O::Output, CallError<O::Error>>
    where
        C: Classify<O::Output, O::Error>,
    {
        call_blocking(Within::new(self), &self.classify, |operation| outer.frame(operation), operation)
    }

    /// As [`call_blocking`](Self::call_blocking), with a fallback that blocks, as
    /// [`call_or`](Self::call_or). Value and error must be [`Send`].
    ///
    /// ```
    /// use std::io;
    /// use steadfast::Pipeline;
    ///
    /// let ask = || Err(io::Error::other("away"));
    /// let price = Pipeline::new().call_blocking_or(ask, |_| Ok(100)).unwrap();
    /// assert_eq!(price, 100);
    /// ```
    ///
    /// # Errors
    /// As [`call_or`](Self::call_or).
    pub fn call_blocking_or<T: Send, E: Send>(
        &self,
        operation: impl BlockingOperation<Output = T, Error = E>,
        instead: impl FnOnce(Failed<'_, T, E>) -> Result<T, E>,
    ) -> Result<T, CallError<E>>
    where
        C: Classify<T, E>,
    {
        call_blocking_or(self, operation, instead)
    }
}

impl<T, E> BoxedPipeline<T, E> {
    /// As [`Pipeline::call_blocking`].
    ///
    /// # Errors
    /// As [`Pipeline::call`].
    pub fn call_blocking(&self, operation: impl BlockingOperation<Output = T, Error = E>) -> Result<T, CallError<E>> {
        let callee = self.callee();
        let classify = callee.classify;
        call_blocking(callee, classify, CallContext::of, operation)
    }

    /// As [`Pipeline::call_blocking_with`].
    ///
    /// # Errors
    /// As [`Pipeline::call`].
    pub fn call_blocking_with(&self, operation: impl FnMut(AttemptInfo) -> Result<T, E>) -> Result<T, CallError<E>> {
        self.call_blocking(WithAttempt(operation))
    }

    /// As [`Pipeline::call_blocking_within`].
    ///
    /// # Errors
    /// As [`Pipeline::call`].
    pub fn call_blocking_within(
        &self,
        outer: AttemptInfo,
        operation: impl BlockingOperation<Output = T, Error = E>,
    ) -> Result<T, CallError<E>> {
        let callee = self.callee();
        let classify = callee.classify;
        call_blocking(callee, classify, |operation| outer.frame(operation), operation)
    }

    /// As [`Pipeline::call_blocking_or`].
    ///
    /// # Errors
    /// As [`Pipeline::call_or`].
    pub fn call_blocking_or(
        &self,
        operation: impl BlockingOperation<Output = T, Error = E>,
        instead: impl FnOnce(Failed<'_, T, E>) -> Result<T, E>,
    ) -> Result<T, CallError<E>>
    where
        T: Send,
        E: Send,
    {
        call_blocking_or(self.callee(), operation, instead)
    }
}
