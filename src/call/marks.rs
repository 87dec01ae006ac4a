//! Marks: facts about an operation that policies read.
use std::future::Future;

use super::{CallContext, Operation, OperationName, as_inside};
use crate::outcome::Priority;

/// An operation whose effect must not happen twice: see [`not_idempotent`].
#[derive(Debug, Clone)]
pub struct NotIdempotent<O>(pub(super) O);

/// Marks `operation` as one whose effect must not happen twice. A retry repeats it only after a
/// failure that proves that the request was not sent: kind `connect`, or a rejection by a policy of
/// this crate.
///
/// ```
/// use steadfast::{
///     FailureKind, Pipeline, Verdict,
///     call::not_idempotent,
///     retry::{Retry, RetryConfig},
/// };
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let pipeline = Pipeline::new()
///     .then(Retry::new(RetryConfig::default()).unwrap())
///     .classify(|_: &Result<(), &str>| Verdict::failure(FailureKind::Timeout));
/// let charge = not_idempotent(|| async { Err("no answer: was the card charged?") });
/// let error = pipeline.call(charge).await.unwrap_err();
/// assert_eq!(error.attempts(), 1);
/// # });
/// ```
pub fn not_idempotent<O>(operation: O) -> NotIdempotent<O> {
    NotIdempotent(operation)
}

impl<O: Operation> Operation for NotIdempotent<O> {
    type Output = O::Output;
    type Error = O::Error;

    as_inside!(0: is_spent, priority, name, can_overlap, start, on_retry, run_after, start_after);

    fn run(&mut self, cx: CallContext<'_>) -> impl Future<Output = Result<O::Output, O::Error>> + Send {
        self.0.run(cx)
    }

    fn is_idempotent(&self) -> Option<bool> {
        Some(false)
    }
}

/// An operation that may run twice: see [`idempotent`].
#[derive(Debug, Clone)]
pub struct Idempotent<O>(pub(super) O);

/// Marks `operation` as one whose second run changes nothing more than its first: a read, a write
/// of a whole value, or a request with an idempotency key that the other side checks. A retry
/// repeats it after every transient failure, whatever its setting for unmarked operations.
///
/// ```
/// use steadfast::{
///     FailureKind, Pipeline, Verdict,
///     call::idempotent,
///     retry::{Retry, RetryConfig},
///     time::Clock,
/// };
///
/// let (clock, time) = Clock::manual();
/// let pipeline = Pipeline::new()
///     .then(Retry::builder(RetryConfig::default()).clock(&clock).build().unwrap())
///     .classify(|_: &Result<(), &str>| Verdict::failure(FailureKind::Timeout));
/// let read = idempotent(|| async { Err("no answer") });
/// let error = time.block_on(pipeline.call(read)).unwrap_err();
/// assert_eq!(error.attempts(), 3);
/// // Without a mark the card might be charged a second time, so the retry gives up and says why.
/// let error = time.block_on(pipeline.call(|| async { Err("no answer") })).unwrap_err();
/// assert_eq!(error.attempts(), 1);
/// ```
pub fn idempotent<O>(operation: O) -> Idempotent<O> {
    Idempotent(operation)
}

impl<O: Operation> Operation for Idempotent<O> {
    type Output = O::Output;
    type Error = O::Error;

    as_inside!(0: is_spent, priority, name, can_overlap, start, on_retry, run_after, start_after);

    #[inline]
    fn run(&mut self, cx: CallContext<'_>) -> impl Future<Output = Result<O::Output, O::Error>> + Send {
        self.0.run(cx)
    }

    fn is_idempotent(&self) -> Option<bool> {
        Some(true)
    }
}

/// An operation with a priority: see [`with_priority`].
#[derive(Debug, Clone)]
pub struct Prioritized<O> {
    pub(super) priority: Priority,
    pub(super) operation: O,
}

/// Sets the priority of `operation`: under overload the lowest priorities are shed first, by a
/// [`Shedder`](crate::throttling::Shedder) or by an
/// [`AdaptiveLimiter`](crate::throttling::AdaptiveLimiter) with shares. The mark travels inwards
/// with the call, also into pipelines that are entered by
/// [`Pipeline::call_within`](super::Pipeline::call_within).
///
/// ```
/// use steadfast::{
///     Pipeline, Priority,
///     call::with_priority,
///     throttling::{AdaptiveLimitConfig, AdaptiveLimiter, PriorityShares},
/// };
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let config = AdaptiveLimitConfig::default().shares(PriorityShares::default());
/// let pipeline = Pipeline::new().then(AdaptiveLimiter::new(config).unwrap());
/// let pay = with_priority(Priority::High, || async { Ok::<_, ()>("paid") });
/// let answer = pipeline.call(pay).await;
/// assert_eq!(answer.unwrap(), "paid");
/// # });
/// ```
pub fn with_priority<O>(priority: Priority, operation: O) -> Prioritized<O> {
    Prioritized { priority, operation }
}

impl<O: Operation> Operation for Prioritized<O> {
    type Output = O::Output;
    type Error = O::Error;

    as_inside!(operation: is_idempotent, is_spent, name, can_overlap, start, on_retry, run_after, start_after);

    #[inline]
    fn run(&mut self, cx: CallContext<'_>) -> impl Future<Output = Result<O::Output, O::Error>> + Send {
        self.operation.run(cx)
    }

    fn priority(&self) -> Option<Priority> {
        Some(self.priority)
    }
}

/// An operation that has a name: see [`named`].
#[derive(Debug, Clone)]
pub struct Named<O> {
    pub(super) name: &'static OperationName,
    pub(super) operation: O,
}

/// Names `operation`, for a pipeline that serves several. Spans of its attempts carry the name, and
/// policies can treat operations differently by it ([`CallContext::operation`]). The name is a
/// static, so a call only copies a pointer to it.
///
/// ```
/// use steadfast::{Pipeline, call::{OperationName, named}};
///
/// static PRICE: OperationName = OperationName::new("price");
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let price = Pipeline::new().call(named(&PRICE, || async { Ok::<_, ()>(117) })).await;
/// assert_eq!(price.unwrap(), 117);
/// # });
/// ```
pub fn named<O>(name: &'static OperationName, operation: O) -> Named<O> {
    Named { name, operation }
}

impl<O: Operation> Operation for Named<O> {
    type Output = O::Output;
    type Error = O::Error;

    as_inside!(operation: is_idempotent, is_spent, priority, can_overlap, start, on_retry, run_after, start_after);

    #[inline]
    fn run(&mut self, cx: CallContext<'_>) -> impl Future<Output = Result<O::Output, O::Error>> + Send {
        self.operation.run(cx)
    }

    fn name(&self) -> Option<&'static OperationName> {
        Some(self.name)
    }
}

/// Implements `LocalOperation` or `BlockingOperation` for marked operations and for
/// [`OnRetry`](super::OnRetry). Receives the types beside value and error, and the signature of
/// `run`.
macro_rules! marked {
    ($operation:ident $run:tt) => {
        $crate::call::marks::marked!(@ $operation $run [O: $operation] $crate::call::Idempotent<O> {
            |it| it.0, Some(true), it.0.priority(), it.0.name(), |_retrying| ()
        });
        $crate::call::marks::marked!(@ $operation $run [O: $operation] $crate::call::NotIdempotent<O> {
            |it| it.0, Some(false), it.0.priority(), it.0.name(), |_retrying| ()
        });
        $crate::call::marks::marked!(@ $operation $run [O: $operation] $crate::call::Prioritized<O> {
            |it| it.operation, it.operation.is_idempotent(), Some(it.priority), it.operation.name(), |_retrying| ()
        });
        $crate::call::marks::marked!(@ $operation $run [O: $operation] $crate::call::Named<O> {
            |it| it.operation, it.operation.is_idempotent(), it.operation.priority(), Some(it.name), |_retrying| ()
        });
        $crate::call::marks::marked!(
            @ $operation $run [O: $operation, H: FnMut(&Retrying<'_, O::Output, O::Error>)] $crate::call::OnRetry<O, H> {
                |it| it.inner, it.inner.is_idempotent(), it.inner.priority(), it.inner.name(),
                |retrying| (it.hook)(retrying)
            }
        );
    };
    (
        @ $operation:ident { [$($types:tt)*] ($($cx:ident: $context:ty)?) -> $result:ty }
        [$($generics:tt)*] $marked:ty {
            |$it:ident| $inner:expr, $is_idempotent:expr, $priority:expr, $name:expr, |$retrying:ident| $hook:expr
        }
    ) => {
        #[allow(unused_variables, reason = "some marks answer without the operation")]
        impl<$($generics)*> $operation for $marked {
            type Output = O::Output;
            type Error = O::Error;
            $($types)*

            #[inline]
            fn run(&mut self $(, $cx: $context)?) -> $result {
                let $it = self;
                $inner.run($($cx)?)
            }

            fn is_idempotent(&self) -> Option<bool> {
                let $it = self;
                $is_idempotent
            }

            fn priority(&self) -> Option<Priority> {
                let $it = self;
                $priority
            }

            fn name(&self) -> Option<&'static OperationName> {
                let $it = self;
                $name
            }

            fn on_retry(&mut self, $retrying: &Retrying<'_, O::Output, O::Error>) {
                let $it = self;
                $inner.on_retry($retrying);
                $hook;
            }
        }
    };
}
pub(super) use marked;
