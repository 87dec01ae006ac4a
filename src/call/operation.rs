//! Operations: the calls that a user passes to a pipeline.
use std::future::Future;

use super::{AttemptInfo, CallContext, OperationName};
use crate::outcome::Priority;

/// An async call that can be made more than once.
///
/// Every `FnMut() -> Fut` is an operation, also one that borrows. Implement the trait if the
/// operation needs `&mut` state across attempts: the future may borrow from `self`.
pub trait Operation: Send {
    /// Type of its value.
    type Output: Send;
    /// Type of its error.
    type Error: Send;

    /// Runs the operation once.
    fn run(&mut self, cx: CallContext<'_>) -> impl Future<Output = Result<Self::Output, Self::Error>> + Send;

    /// Returns `Some(true)` if a second run changes nothing more than the first.
    ///
    /// `None`, the default, leaves the decision to the policy's own setting:
    /// [`RetryConfig::idempotent`](crate::retry::RetryConfig::idempotent), which is off by default,
    /// and [`HedgeConfig::idempotent`](crate::hedge::HedgeConfig::idempotent), which is on. A retry
    /// repeats an operation that is not idempotent only after a failure that proves that the
    /// request was not sent. A hedge runs it once.
    fn is_idempotent(&self) -> Option<bool> {
        None
    }

    /// Returns the priority under overload. `None`, the default, takes the priority of the outer
    /// call, or [`Priority::Normal`] without one.
    fn priority(&self) -> Option<Priority> {
        None
    }

    /// Returns the name, for policies and spans that distinguish operations. `None` by default.
    fn name(&self) -> Option<&'static OperationName> {
        None
    }

    /// Returns `true` if the operation cannot run again, because its input was moved into the last
    /// run. No retry waits for another attempt then. A closure can always run again.
    fn is_spent(&self) -> bool {
        false
    }

    /// Returns `true` if futures from [`start`](Self::start) can run at the same time. This holds
    /// for every closure; a type of your own must say so.
    fn can_overlap(&self) -> bool {
        false
    }

    /// Starts a run beside those that were started before; the future borrows nothing of the
    /// operation. A hedge uses it. Returns `None`, by default, if the operation cannot run
    /// concurrently.
    fn start(
        &mut self,
        _cx: CallContext<'_>,
    ) -> Option<impl Future<Output = Result<Self::Output, Self::Error>> + Send + use<Self>> {
        None::<std::future::Pending<_>>
    }
}

// No `#[diagnostic::do_not_recommend]`: a message of ours would replace the compiler's own, which
// names the type that is no future, no `Result` or not `Send`, and the line that holds it.
impl<T: Send, E: Send, F, Fut> Operation for F
where
    F: FnMut() -> Fut + Send,
    Fut: Future<Output = Result<T, E>> + Send,
{
    type Output = T;
    type Error = E;

    #[inline]
    fn run(&mut self, _: CallContext<'_>) -> impl Future<Output = Result<T, E>> + Send {
        self()
    }

    fn can_overlap(&self) -> bool {
        true
    }

    fn start(&mut self, _: CallContext<'_>) -> Option<impl Future<Output = Result<T, E>> + Send + use<T, E, F, Fut>> {
        Some(self())
    }
}

/// An operation that receives the context of its attempt:
/// [`Pipeline::call_with`](super::Pipeline::call_with) wraps a closure in it.
#[derive(Debug, Clone)]
pub struct WithAttempt<F>(pub F);

impl<T: Send, E: Send, F, Fut> Operation for WithAttempt<F>
where
    F: FnMut(AttemptInfo) -> Fut + Send,
    Fut: Future<Output = Result<T, E>> + Send,
{
    type Output = T;
    type Error = E;

    fn run(&mut self, cx: CallContext<'_>) -> impl Future<Output = Result<T, E>> + Send {
        (self.0)(cx.info())
    }

    fn can_overlap(&self) -> bool {
        true
    }

    fn start(&mut self, cx: CallContext<'_>) -> Option<impl Future<Output = Result<T, E>> + Send + use<T, E, F, Fut>> {
        Some((self.0)(cx.info()))
    }
}

/// Forwards the listed `Operation` methods to the wrapped operation. Methods that are not listed
/// are the wrapper's own.
macro_rules! as_inside {
    ($inner:tt: $($what:ident),*) => { $( $crate::call::as_inside!(@$what $inner); )* };
    (@is_idempotent $inner:tt) => {
        fn is_idempotent(&self) -> Option<bool> {
            self.$inner.is_idempotent()
        }
    };
    (@is_spent $inner:tt) => {
        fn is_spent(&self) -> bool {
            self.$inner.is_spent()
        }
    };
    (@priority $inner:tt) => {
        fn priority(&self) -> Option<$crate::outcome::Priority> {
            self.$inner.priority()
        }
    };
    (@name $inner:tt) => {
        fn name(&self) -> Option<&'static $crate::call::OperationName> {
            self.$inner.name()
        }
    };
    (@can_overlap $inner:tt) => {
        fn can_overlap(&self) -> bool {
            self.$inner.can_overlap()
        }
    };
    (@start $inner:tt) => {
        fn start(
            &mut self,
            cx: $crate::call::CallContext<'_>,
        ) -> Option<impl Future<Output = Result<O::Output, O::Error>> + Send + use<O>> {
            self.$inner.start(cx)
        }
    };
}
pub(crate) use as_inside;

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

    as_inside!(0: is_spent, priority, name, can_overlap, start);

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

    as_inside!(0: is_spent, priority, name, can_overlap, start);

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

    as_inside!(operation: is_idempotent, is_spent, name, can_overlap, start);

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

    as_inside!(operation: is_idempotent, is_spent, priority, can_overlap, start);

    #[inline]
    fn run(&mut self, cx: CallContext<'_>) -> impl Future<Output = Result<O::Output, O::Error>> + Send {
        self.operation.run(cx)
    }

    fn name(&self) -> Option<&'static OperationName> {
        Some(self.name)
    }
}
