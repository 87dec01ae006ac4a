//! Operations that are not `Send`: calls that stay on their thread.
//
// Policies demand `Send` of an operation, because most calls are spawned. `SendWrapper` is `Send`
// whatever it holds, and panics when another thread uses or drops the content. That cannot happen
// here: everything wrapped lives in the future of the call, and `LocalCall` is not `Send`. The
// wrappers that leave it, around the value and the errors, are opened within its `poll`.
use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use send_wrapper::SendWrapper;

use super::{
    BoxedPipeline, CallContext, OnRetry, Operation, OperationName, Pipeline, Policy,
    marks::marked,
    run::{Callee, run},
    state::{TypedCallState, as_error},
};
use crate::{
    config::Name,
    outcome::{CallError, Cause, Classify, LastFailure, Priority, Retrying, Verdict},
};

/// An operation that need not be [`Send`], for [`Pipeline::call_local`]: every `FnMut() -> Fut`,
/// and one that is marked, such as by [`idempotent`](super::idempotent).
pub trait LocalOperation {
    /// Type of its value.
    type Output;
    /// Type of its error.
    type Error;
    /// The future of one run, which borrows nothing of the operation.
    type Future: Future<Output = Result<Self::Output, Self::Error>>;

    /// Runs the operation once.
    fn run(&mut self) -> Self::Future;

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

    /// As [`Operation::on_retry`]. [`on_retry_local`] adds a hook to any operation.
    fn on_retry(&mut self, _retrying: &Retrying<'_, Self::Output, Self::Error>) {}
}

impl<T, E, F, Fut> LocalOperation for F
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    type Output = T;
    type Error = E;
    type Future = Fut;

    fn run(&mut self) -> Fut {
        self()
    }
}

marked!(LocalOperation { [type Future = O::Future;] () -> O::Future });

/// As [`on_retry`](super::on_retry), for a local operation, with a hook that need not be [`Send`]
/// either. Other marks go around it: `idempotent(on_retry_local(operation, hook))`.
pub fn on_retry_local<T, E, O, H>(operation: O, hook: H) -> OnRetry<O, H>
where
    O: LocalOperation<Output = T, Error = E>,
    H: FnMut(&Retrying<'_, T, E>),
{
    OnRetry { inner: operation, hook }
}

/// A value, or the cause of an error, with its verdict, given where it was not wrapped yet. An
/// error is wrapped as a [`Cause`], so that a hook can borrow it as one.
pub(super) struct Judged<T> {
    verdict: Verdict,
    inside: SendWrapper<T>,
}

impl<T> Judged<T> {
    /// Judges a result, and wraps it.
    #[inline]
    pub(super) fn of<E, C>(result: Result<T, E>, classify: &C) -> Result<Self, Judged<Cause<E>>>
    where
        C: Classify<T, E> + ?Sized,
    {
        let verdict = classify.classify(&result);
        match as_error(result, verdict, classify) {
            Ok(value) => Ok(Self { verdict, inside: SendWrapper::new(value) }),
            Err(error) => Err(Judged { verdict, inside: SendWrapper::new(Cause::Operation(error)) }),
        }
    }

    /// Unwraps the value or the cause.
    #[inline]
    pub(super) fn take(self) -> T {
        self.inside.take()
    }
}

/// Passes the failure that a retry repeats to `hook`, unwrapped.
pub(super) fn unwrapped<T, E>(
    retrying: &Retrying<'_, Judged<T>, Judged<Cause<E>>>,
    hook: impl FnOnce(&Retrying<'_, T, E>),
) {
    let by_policy;
    let cause = match retrying.cause() {
        None => None,
        Some(Cause::Operation(judged)) => Some(&*judged.inside),
        Some(Cause::Rejected(rejected)) => {
            by_policy = Cause::Rejected(rejected.clone());
            Some(&by_policy)
        }
        Some(Cause::TimedOut(timed_out)) => {
            by_policy = Cause::TimedOut(timed_out.clone());
            Some(&by_policy)
        }
    };
    let value = retrying.value().map(|judged| &*judged.inside);
    hook(&Retrying::new(value, LastFailure::new(cause, retrying.verdict()), retrying.next()));
}

/// Reads the verdicts of [`Judged`] results.
pub(super) struct AsJudged;

impl<T, E> Classify<Judged<T>, Judged<E>> for AsJudged {
    fn classify(&self, result: &Result<Judged<T>, Judged<E>>) -> Verdict {
        match result {
            Ok(judged) => judged.verdict,
            Err(judged) => judged.verdict,
        }
    }
}

/// A local operation as an [`Operation`].
struct Wrapped<'c, O, C: ?Sized> {
    operation: SendWrapper<O>,
    classify: &'c C,
}

impl<'c, O: LocalOperation, C: Classify<O::Output, O::Error> + ?Sized> Wrapped<'c, O, C> {
    fn begin(
        &mut self,
    ) -> impl Future<Output = Result<Judged<O::Output>, Judged<Cause<O::Error>>>> + Send + use<'c, O, C> {
        let work = SendWrapper::new(self.operation.run());
        let classify = self.classify;
        async move { Judged::of(work.await, classify) }
    }
}

impl<'c, O: LocalOperation, C: Classify<O::Output, O::Error> + ?Sized> Operation for Wrapped<'c, O, C> {
    type Output = Judged<O::Output>;
    type Error = Judged<Cause<O::Error>>;

    fn run(&mut self, _: CallContext<'_>) -> impl Future<Output = Result<Self::Output, Self::Error>> + Send {
        self.begin()
    }

    fn can_overlap(&self) -> bool {
        true
    }

    fn start(
        &mut self,
        _: CallContext<'_>,
    ) -> Option<impl Future<Output = Result<Self::Output, Self::Error>> + Send + use<'c, O, C>> {
        Some(self.begin())
    }

    fn is_idempotent(&self) -> Option<bool> {
        self.operation.is_idempotent()
    }

    fn priority(&self) -> Option<Priority> {
        self.operation.priority()
    }

    fn name(&self) -> Option<&'static OperationName> {
        self.operation.name()
    }

    fn on_retry(&mut self, retrying: &Retrying<'_, Self::Output, Self::Error>) {
        unwrapped(retrying, |retrying| {
            self.operation.on_retry(retrying);
            self.classify.on_retry(retrying);
        });
    }
}

/// A pipeline whose operation is judged before its result is wrapped.
pub(super) struct LocalCallee<K>(pub(super) K);

impl<K: Callee> Callee for LocalCallee<K> {
    type Policy = K::Policy;
    type Classify = AsJudged;

    fn name(&self) -> Option<&Name> {
        self.0.name()
    }

    fn policy(&self) -> &K::Policy {
        self.0.policy()
    }

    fn classify(&self) -> &AsJudged {
        &AsJudged
    }
}

pin_project_lite::pin_project! {
    /// The future of a local call. It is not `Send`.
    struct LocalCall<F> {
        #[pin]
        call: F,
        stays: PhantomData<Rc<()>>,
    }
}

impl<F: Future> Future for LocalCall<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<F::Output> {
        self.project().call.poll(task)
    }
}

fn call_local<O: LocalOperation, C: Classify<O::Output, O::Error> + ?Sized>(
    callee: impl Callee,
    classify: &C,
    operation: O,
) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> {
    let operation = Wrapped { operation: SendWrapper::new(operation), classify };
    let cx = CallContext::of(&operation);
    let call = run(LocalCallee(callee), cx, operation, |state: &mut TypedCallState<Judged<_>, Judged<Cause<_>>>| {
        let result = state.result();
        result.map(Judged::take).map_err(|error| error.map_own(Judged::take))
    });
    LocalCall { call, stays: PhantomData }
}

impl<P: Policy, C> Pipeline<P, C> {
    /// As [`call`](Self::call), for an operation that need not be [`Send`], nor its future, its
    /// value or its error: one that holds an [`Rc`], on a current-thread runtime or a
    /// [`LocalSet`](tokio::task::LocalSet). The future of the call is not `Send` either.
    ///
    /// Policies behave as for other calls, with marks such as
    /// [`idempotent`](super::idempotent) and with hedges. Each start and each poll of the operation
    /// costs a comparison of thread numbers more. A policy of your own that makes its attempt on
    /// another thread panics.
    ///
    /// ```
    /// use std::{cell::Cell, rc::Rc};
    /// use steadfast::{Pipeline, call::idempotent, retry::{Retry, RetryConfig}};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    /// # runtime.unwrap().block_on(async {
    /// let pipeline = Pipeline::new().then(Retry::new(RetryConfig::default()).unwrap());
    /// let count = Rc::new(Cell::new(0));
    /// let next = || async {
    ///     count.set(count.get() + 1);
    ///     Ok::<_, Rc<str>>(count.clone())
    /// };
    /// assert_eq!(pipeline.call_local(idempotent(next)).await.unwrap().get(), 1);
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    /// As [`call`](Self::call).
    pub fn call_local<T, E, O: LocalOperation<Output = T, Error = E>>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<T, CallError<E>>>
    where
        C: Classify<T, E>,
    {
        call_local(self, &self.classify, operation)
    }
}

impl<T, E> BoxedPipeline<T, E> {
    /// As [`Pipeline::call_local`].
    ///
    /// # Errors
    /// As [`Pipeline::call`].
    ///
    /// # Cancel safety
    /// As [`Pipeline::call`].
    pub fn call_local<O: LocalOperation<Output = T, Error = E>>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<T, CallError<E>>> {
        let callee = self.callee();
        let classify = callee.classify;
        call_local(callee, classify, operation)
    }
}
