//! Calls of code that is not async: they block their thread.
//
// An operation that blocks is an `Operation` whose future is ready in its first poll, and the call is
// driven by `block_on` on the calling thread. It need not be `Send`, for the same reason as that of
// `call_local`: everything that is wrapped lives and dies on this thread.
mod doors;

use std::future::{Future, ready};

use send_wrapper::SendWrapper;

use super::{
    AttemptInfo, CallContext, Failed, OnRetry, Operation, OperationName, Policy, WithAttempt,
    local::{Judged, LocalCallee, unwrapped},
    marks::marked,
    run::{Alone, Callee, Entry, run},
    state::TypedCallState,
    with_fallback::{run_or, unmarked},
};
use crate::{
    outcome::{CallError, Cause, Classify, ErrIsFailure, Priority, Retrying},
    time::{block_on, outside},
};

/// An operation that blocks its thread, for
/// [`Pipeline::call_blocking`](super::Pipeline::call_blocking).
///
/// Every `FnMut() -> Result<T, E>` is one, also one that is marked, such as by
/// [`idempotent`](super::idempotent), and [`WithAttempt`] of a closure that receives the attempt.
/// Neither the operation nor its value and its error need be [`Send`].
pub trait BlockingOperation {
    /// Type of its value.
    type Output;
    /// Type of its error.
    type Error;

    /// Runs the operation once.
    ///
    /// # Errors
    /// Returns the operation's own error.
    fn run(&mut self, cx: CallContext<'_>) -> Result<Self::Output, Self::Error>;

    /// As [`Operation::is_idempotent`].
    fn is_idempotent(&self) -> Option<bool> {
        None
    }

    /// As [`Operation::priority`].
    fn priority(&self) -> Option<Priority> {
        None
    }

    /// As [`Operation::name`].
    fn name(&self) -> Option<&'static OperationName> {
        None
    }

    /// As [`Operation::on_retry`]. [`on_retry_blocking`] adds a hook to any operation.
    fn on_retry(&mut self, _retrying: &Retrying<'_, Self::Output, Self::Error>) {}
}

impl<T, E, F: FnMut() -> Result<T, E>> BlockingOperation for F {
    type Output = T;
    type Error = E;

    #[inline]
    fn run(&mut self, _: CallContext<'_>) -> Result<T, E> {
        self()
    }
}

impl<T, E, F: FnMut(AttemptInfo) -> Result<T, E>> BlockingOperation for WithAttempt<F> {
    type Output = T;
    type Error = E;

    fn run(&mut self, cx: CallContext<'_>) -> Result<T, E> {
        (self.0)(cx.info())
    }
}

marked!(BlockingOperation { [] (cx: CallContext<'_>) -> Result<O::Output, O::Error> });

/// As [`on_retry`](super::on_retry), for an operation that blocks, with a hook that need not be
/// [`Send`] either. Other marks go around it: `idempotent(on_retry_blocking(operation, hook))`.
pub fn on_retry_blocking<O, H>(operation: O, hook: H) -> OnRetry<O, H>
where
    O: BlockingOperation,
    H: FnMut(&Retrying<'_, O::Output, O::Error>),
{
    OnRetry { inner: operation, hook }
}

/// Runs a blocking operation. Starts the time of all time-outs around it first: no wait would, as
/// the operation is ready in its first poll.
#[inline]
fn run_now<O: BlockingOperation>(operation: &mut SendWrapper<O>, cx: CallContext<'_>) -> Result<O::Output, O::Error> {
    cx.deadline();
    outside(|| operation.run(cx))
}

/// Forwards the marks of the wrapped operation. It cannot overlap: a second run would have to wait
/// for the first anyway.
macro_rules! marks {
    () => {
        fn is_idempotent(&self) -> Option<bool> {
            self.operation.is_idempotent()
        }

        fn priority(&self) -> Option<Priority> {
            self.operation.priority()
        }

        fn name(&self) -> Option<&'static OperationName> {
            self.operation.name()
        }
    };
}

/// A blocking operation as an [`Operation`], judged before its result is wrapped.
struct Wrapped<'c, O, C: ?Sized> {
    operation: SendWrapper<O>,
    classify: &'c C,
}

impl<O: BlockingOperation, C: Classify<O::Output, O::Error> + ?Sized> Operation for Wrapped<'_, O, C> {
    type Output = Judged<O::Output>;
    type Error = Judged<Cause<O::Error>>;

    // The operation runs in a poll, not here: inside the span of its attempt.
    #[inline]
    fn run(&mut self, cx: CallContext<'_>) -> impl Future<Output = Result<Self::Output, Self::Error>> + Send {
        async move { Judged::of(run_now(&mut self.operation, cx), self.classify) }
    }

    fn on_retry(&mut self, retrying: &Retrying<'_, Self::Output, Self::Error>) {
        unwrapped(retrying, |retrying| {
            self.operation.on_retry(retrying);
            self.classify.on_retry(retrying);
        });
    }

    marks!();
}

/// A blocking operation with a value and an error that are [`Send`], as an [`Operation`].
struct WithSend<O> {
    operation: SendWrapper<O>,
}

impl<O: BlockingOperation<Output: Send, Error: Send>> Operation for WithSend<O> {
    type Output = O::Output;
    type Error = O::Error;

    fn run(&mut self, cx: CallContext<'_>) -> impl Future<Output = Result<O::Output, O::Error>> + Send {
        async move { run_now(&mut self.operation, cx) }
    }

    fn on_retry(&mut self, retrying: &Retrying<'_, O::Output, O::Error>) {
        self.operation.on_retry(retrying);
    }

    marks!();
}

#[inline]
fn call_blocking<'c, O: BlockingOperation, C: Classify<O::Output, O::Error> + ?Sized, E: Entry>(
    callee: impl Callee,
    classify: &'c C,
    entry: impl FnOnce(&Wrapped<'c, O, C>) -> E,
    operation: O,
) -> Result<O::Output, CallError<O::Error>> {
    let operation = Wrapped { operation: SendWrapper::new(operation), classify };
    let entry = entry(&operation);
    block_on(run(LocalCallee(callee), entry, operation, |state: &mut TypedCallState<Judged<_>, Judged<Cause<_>>>| {
        let result = state.result();
        result.map(Judged::take).map_err(|error| error.map_own(Judged::take))
    }))
}

fn call_blocking_or<T: Send, E: Send, K: Callee>(
    callee: K,
    operation: impl BlockingOperation<Output = T, Error = E>,
    instead: impl FnOnce(Failed<'_, T, E>) -> Result<T, E>,
) -> Result<T, CallError<E>>
where
    K::Classify: Classify<T, E>,
{
    let operation = WithSend { operation: SendWrapper::new(operation) };
    let cx = CallContext::of(&operation);
    let instead = SendWrapper::new(instead);
    block_on(run_or(callee, cx, operation, move |failed| ready(outside(|| instead.take()(failed))), unmarked))
}

/// Runs a blocking operation under a single policy; every `Err` is a failure.
pub(crate) fn call_alone_blocking<P: Policy, O: BlockingOperation>(
    policy: &P,
    operation: O,
) -> Result<O::Output, CallError<O::Error>> {
    call_blocking(Alone(policy), &ErrIsFailure, CallContext::of, operation)
}

/// Runs a blocking operation under a single policy, with a fallback.
pub(crate) fn call_alone_blocking_or<P: Policy, T: Send, E: Send>(
    policy: &P,
    operation: impl BlockingOperation<Output = T, Error = E>,
    instead: impl FnOnce(Failed<'_, T, E>) -> Result<T, E>,
) -> Result<T, CallError<E>> {
    call_blocking_or(Alone(policy), operation, instead)
}

/// Adds `call_blocking` to a policy that has `call`.
macro_rules! blocking_door {
    ($policy:ident) => {
        $crate::call::blocking_door!([] $policy);
    };
    ([$($generics:tt)*] $policy:ty) => {
        impl<$($generics)*> $policy {
            /// As `call`, for an operation that is not async: blocks this thread. See
            /// [`Pipeline::call_blocking`](crate::Pipeline::call_blocking).
            ///
            /// # Errors
            /// As `call`.
            pub fn call_blocking<O: $crate::call::BlockingOperation>(
                &self,
                operation: O,
            ) -> Result<O::Output, $crate::outcome::CallError<O::Error>> {
                $crate::call::call_alone_blocking(self, operation)
            }
        }
    };
}
pub(crate) use blocking_door;
