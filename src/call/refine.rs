//! Refinements of a pipeline's classifier by a closure, and its hook for retries.
use super::{OnRetry, Pipeline};
use crate::outcome::{Classify, ErrorForValue, FailWhen, RetryIf, Retrying};

impl<P, C> Pipeline<P, C> {
    /// Retries only errors for which `retries` returns `true`. Other errors are failures of kind
    /// [`client`](crate::FailureKind::Client): the request itself is wrong, and the other side is
    /// healthy.
    ///
    /// All policies read that one verdict. By default an error of kind `client` is not retried, no
    /// hedge starts after it, no breaker counts it as a failure, and no fallback replaces it. An
    /// error for which `retries` returns `true` keeps the verdict of the classifier, kind
    /// [`other`](crate::FailureKind::Other) without one, as does every value.
    ///
    /// The operation must also be marked as [`idempotent`](super::idempotent): a retry repeats an
    /// operation without the mark only after a failure that proves that nothing was sent.
    ///
    /// ```
    /// use std::io::{Error, ErrorKind};
    /// use steadfast::{Pipeline, call::idempotent, retry::{Retry, RetryConfig}, time::Clock};
    ///
    /// let (clock, time) = Clock::manual();
    /// let files = Pipeline::new()
    ///     .then(Retry::builder(RetryConfig::default()).clock(&clock).build().unwrap())
    ///     .retry_if(|error: &Error| error.kind() != ErrorKind::NotFound);
    ///
    /// let broken = idempotent(|| async { Err::<(), _>(Error::from(ErrorKind::BrokenPipe)) });
    /// assert_eq!(time.block_on(files.call(broken)).unwrap_err().attempts(), 3);
    /// let absent = idempotent(|| async { Err::<(), _>(Error::from(ErrorKind::NotFound)) });
    /// assert_eq!(time.block_on(files.call(absent)).unwrap_err().attempts(), 1);
    /// ```
    pub fn retry_if<E, F>(self, retries: F) -> Pipeline<P, RetryIf<C, F>>
    where
        F: Fn(&E) -> bool + Send + Sync,
    {
        self.refine(|classify| RetryIf::new(classify, retries))
    }

    /// Judges a result a failure if `fails` returns `true`, and a success otherwise.
    ///
    /// A failure keeps the kind and the hint that the classifier gave it, and is of kind
    /// [`other`](crate::FailureKind::Other) without one. By default policies retry it, count it,
    /// and fall back after it. A result for which `fails` returns `false` is returned as it is,
    /// also an error, and policies count a success, unless the classifier
    /// [ignores](crate::Verdict::ignore) or [rejects](crate::Verdict::refused) it.
    ///
    /// The operation must also be marked as [`idempotent`](super::idempotent): a retry repeats an
    /// operation without the mark only after a failure that proves that nothing was sent.
    ///
    /// ```
    /// use steadfast::{Pipeline, call::idempotent, retry::{Retry, RetryConfig}, time::Clock};
    ///
    /// let (clock, time) = Clock::manual();
    /// let jobs = Pipeline::new()
    ///     .then(Retry::builder(RetryConfig::default()).clock(&clock).build().unwrap())
    ///     .fail_when(|result: &Result<&str, &str>| matches!(result, Ok("pending") | Err("busy")));
    ///
    /// let mut answers = [Ok("pending"), Err("busy"), Ok("done")].into_iter();
    /// let poll = idempotent(|| std::future::ready(answers.next().unwrap()));
    /// assert_eq!(time.block_on(jobs.call(poll)).unwrap(), "done");
    /// let absent = idempotent(|| async { Err("no such job") });
    /// assert_eq!(time.block_on(jobs.call(absent)).unwrap_err().attempts(), 1);
    /// ```
    pub fn fail_when<T, E, F>(self, fails: F) -> Pipeline<P, FailWhen<C, F>>
    where
        F: Fn(&Result<T, E>) -> bool + Send + Sync,
        C: Classify<T, E>,
    {
        self.refine(|classify| FailWhen::new(classify, fails))
    }

    /// Converts a value that was judged a failure, such as a response of status 503, to an error of
    /// the operation.
    ///
    /// Without it a call returns such a value as `Ok` after its last attempt, and the caller must
    /// look for it. With it the call fails with the error that `error` returns, as
    /// [`Cause::Operation`](crate::Cause::Operation); an `Ok` from `error` stays the call's value.
    /// Kind, hint and attempts are those of the value, so policies act as before, and
    /// [`CallError::retry_after`](crate::CallError::retry_after) returns what the server asked for.
    /// `error` runs after each attempt that ended with such a value. It also runs for values that
    /// the classifier [rejects](crate::Verdict::refused), and for those of a fallback.
    ///
    /// The classifier must judge values: by default every `Ok` is a success.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{Response, StatusCode};
    /// # #[cfg(feature = "http")] {
    /// use steadfast::{Pipeline, http::ByStatus, time::Clock};
    ///
    /// #[derive(Debug, PartialEq)]
    /// enum ApiError { Status(StatusCode) }
    ///
    /// let api = Pipeline::new()
    ///     .classify(ByStatus::new())
    ///     .error_for_value(|answer: Response<()>| Err(ApiError::Status(answer.status())));
    ///
    /// let response = Response::builder().status(503).header("retry-after", 7);
    /// let response = response.body(()).unwrap();
    /// let busy = || async { Ok(response.clone()) };
    /// let (_, time) = Clock::manual();
    /// let error = time.block_on(api.call(busy)).unwrap_err();
    /// assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
    /// assert_eq!(error.into_operation(), Ok(ApiError::Status(StatusCode::SERVICE_UNAVAILABLE)));
    /// # }
    /// ```
    pub fn error_for_value<T, E, F>(self, error: F) -> Pipeline<P, ErrorForValue<C, F>>
    where
        F: Fn(T) -> Result<T, E> + Send + Sync,
        C: Classify<T, E>,
    {
        self.refine(|classify| ErrorForValue::new(classify, error))
    }

    /// Calls `hook` with each failure that a retry of this pipeline repeats, before the wait, for
    /// all calls: the error, the delay, the number of the attempt.
    ///
    /// The pipeline then serves results of this one type. A classifier is set before, by
    /// [`classify`](Self::classify). The hook runs inside the call: it must be quick, and its panic
    /// is the call's. See [`on_retry`](super::on_retry) for a hook of one call, which runs before
    /// this one, and [`Retrying`] for what the hook sees. A retry also reports to `tracing`, at
    /// `INFO` of `steadfast::retry`: a hook that logs is for the error's text, which `tracing` does
    /// not get.
    ///
    /// ```
    /// use std::io;
    /// use steadfast::{BoxedPipeline, Pipeline, outcome::Retrying, retry::{Retry, RetryConfig}};
    ///
    /// let calls: BoxedPipeline<String, io::Error> = Pipeline::new()
    ///     .then(Retry::new(RetryConfig::default()).unwrap())
    ///     .on_retry(|retrying: &Retrying<'_, String, io::Error>| eprintln!("{retrying}"))
    ///     .boxed();
    /// ```
    pub fn on_retry<T, E, H>(self, hook: H) -> Pipeline<P, OnRetry<C, H>>
    where
        H: Fn(&Retrying<'_, T, E>) + Send + Sync,
    {
        self.refine(|inner| OnRetry { inner, hook })
    }

    fn refine<D>(self, refine: impl FnOnce(C) -> D) -> Pipeline<P, D> {
        let Self { policy, classify, name } = self;
        Pipeline { policy, classify: refine(classify), name }
    }
}
