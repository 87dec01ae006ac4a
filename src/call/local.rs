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
    BoxedPipeline, CallContext, Idempotent, Named, NotIdempotent, Operation, OperationName, Pipeline, Policy,
    Prioritized,
    run::{Callee, run},
    state::TypedCallState,
};
use crate::{
    config::Name,
    outcome::{CallError, Classify, Priority, Verdict},
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

macro_rules! marked {
    ($($mark:ident $field:tt: $is_idempotent:expr, $priority:expr, $name:expr;)*) => { $(
        impl<O: LocalOperation> LocalOperation for $mark<O> {
            type Output = O::Output;
            type Error = O::Error;
            type Future = O::Future;

            fn run(&mut self) -> O::Future {
                self.$field.run()
            }

            fn is_idempotent(&self) -> Option<bool> {
                $is_idempotent(self)
            }

            fn priority(&self) -> Option<Priority> {
                $priority(self)
            }

            fn name(&self) -> Option<&'static OperationName> {
                $name(self)
            }
        }
    )* };
}
marked! {
    Idempotent 0: |_: &Self| Some(true), |it: &Self| it.0.priority(), |it: &Self| it.0.name();
    NotIdempotent 0: |_: &Self| Some(false), |it: &Self| it.0.priority(), |it: &Self| it.0.name();
    Prioritized operation: |it: &Self| it.operation.is_idempotent(), |it: &Self| Some(it.priority), |it: &Self| it.operation.name();
    Named operation: |it: &Self| it.operation.is_idempotent(), |it: &Self| it.operation.priority(), |it: &Self| Some(it.name);
}

/// A value or an error with its verdict, given where the value was not wrapped yet.
struct Judged<T> {
    verdict: Verdict,
    value: SendWrapper<T>,
}

/// Reads the verdicts of [`Judged`] results.
struct AsJudged;

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
    fn begin(&mut self) -> impl Future<Output = Result<Judged<O::Output>, Judged<O::Error>>> + Send + use<'c, O, C> {
        let work = SendWrapper::new(self.operation.run());
        let classify = self.classify;
        async move {
            let result = work.await;
            let verdict = classify.classify(&result);
            match result {
                Ok(value) => Ok(Judged { verdict, value: SendWrapper::new(value) }),
                Err(error) => Err(Judged { verdict, value: SendWrapper::new(error) }),
            }
        }
    }
}

impl<'c, O: LocalOperation, C: Classify<O::Output, O::Error> + ?Sized> Operation for Wrapped<'c, O, C> {
    type Output = Judged<O::Output>;
    type Error = Judged<O::Error>;

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
}

/// A pipeline whose operation is judged before its result is wrapped.
struct LocalCallee<K>(K);

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
    let call =
        run(LocalCallee(callee), cx, operation, |state: &mut TypedCallState<Judged<O::Output>, Judged<O::Error>>| {
            let result = state.result();
            result.map(|own| own.value.take()).map_err(|error| error.map_operation(|own| own.value.take()))
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
    pub fn call_local<O: LocalOperation>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<O::Output, CallError<O::Error>>>
    where
        C: Classify<O::Output, O::Error>,
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
