//! One call: the operation inside the policies, with or without spans.
//
// These functions are no `async fn`s. An `async fn` stores an argument that it borrows twice, as
// the argument and as the local variable, and one around another stores the result twice, too. An
// `async move` block borrows what it captured in place, so the operation is stored once.
use std::{future::Future, pin::Pin};

use tracing::Instrument;

use super::{
    Answered, CallContext, Failed, Frame, Operation, Pipeline, Policy,
    attempt::OperationAttempt,
    nested::Inside,
    state::TypedCallState,
    traced::{self, Traced},
    with_fallback::{marked, run_or, unmarked},
};
use crate::{
    config::Name,
    outcome::{CallError, Classify, ErrIsFailure, Outcome},
};

/// The parts of a pipeline that a call needs.
pub(super) trait Callee: Send + Sync {
    type Policy: Policy;
    type Classify: ?Sized;
    fn name(&self) -> Option<&Name>;
    fn policy(&self) -> &Self::Policy;
    fn classify(&self) -> &Self::Classify;
}

impl<P: Policy, C: Send + Sync> Callee for Pipeline<P, C> {
    type Policy = P;
    type Classify = C;

    #[inline]
    fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    #[inline]
    fn policy(&self) -> &P {
        &self.policy
    }

    #[inline]
    fn classify(&self) -> &C {
        &self.classify
    }
}

macro_rules! callee_behind {
    ($pointer:ty) => {
        impl<K: Callee> Callee for $pointer {
            type Policy = K::Policy;
            type Classify = K::Classify;

            #[inline]
            fn name(&self) -> Option<&Name> {
                (**self).name()
            }

            #[inline]
            fn policy(&self) -> &K::Policy {
                (**self).policy()
            }

            #[inline]
            fn classify(&self) -> &K::Classify {
                (**self).classify()
            }
        }
    };
}
callee_behind!(&K);
#[cfg(feature = "tower")]
callee_behind!(std::sync::Arc<K>);

/// A pipeline inside an attempt of another one.
pub(super) struct Within<'a, P, C> {
    pipeline: &'a Pipeline<P, C>,
    policy: Inside<'a, P>,
}

impl<'a, P, C> Within<'a, P, C> {
    pub(super) const fn new(pipeline: &'a Pipeline<P, C>) -> Self {
        Self { pipeline, policy: Inside(&pipeline.policy) }
    }
}

impl<'a, P: Policy, C: Send + Sync> Callee for Within<'a, P, C> {
    type Policy = Inside<'a, P>;
    type Classify = C;

    fn name(&self) -> Option<&Name> {
        self.pipeline.name.as_ref()
    }

    fn policy(&self) -> &Inside<'a, P> {
        &self.policy
    }

    fn classify(&self) -> &C {
        &self.pipeline.classify
    }
}

/// A single policy, with every `Err` as a failure.
pub(super) struct Alone<'a, P>(pub(super) &'a P);

impl<P: Policy> Callee for Alone<'_, P> {
    type Policy = P;
    type Classify = ErrIsFailure;

    #[inline]
    fn name(&self) -> Option<&Name> {
        None
    }

    #[inline]
    fn policy(&self) -> &P {
        self.0
    }

    #[inline]
    fn classify(&self) -> &ErrIsFailure {
        &ErrIsFailure
    }
}

/// The context with which a call begins.
pub(super) trait Entry: Send + Sync {
    fn context(&self) -> CallContext<'_>;
}

impl Entry for CallContext<'_> {
    #[inline]
    fn context(&self) -> CallContext<'_> {
        *self
    }
}

impl Entry for Frame<'static> {
    #[inline]
    fn context(&self) -> CallContext<'_> {
        Frame::context(self)
    }
}

/// The context of a call that may be inside an attempt of another pipeline.
#[cfg(feature = "tower")]
pub(super) enum Entered {
    Top(CallContext<'static>),
    Inside(Frame<'static>),
}

#[cfg(feature = "tower")]
impl Entry for Entered {
    #[inline]
    fn context(&self) -> CallContext<'_> {
        match self {
            Self::Top(cx) => *cx,
            Self::Inside(frame) => frame.context(),
        }
    }
}

/// Runs `operation` under the policies of `callee`. `finish` takes the result from the state of the
/// call: a result that passed through another function would be moved once more.
#[inline]
pub(super) fn run<K: Callee, O: Operation, T>(
    callee: K,
    entry: impl Entry,
    mut operation: O,
    finish: impl FnOnce(&mut TypedCallState<O::Output, O::Error>) -> T + Send,
) -> impl Future<Output = T>
where
    K::Classify: Classify<O::Output, O::Error>,
{
    async move {
        let (policy, classify, cx) = (callee.policy(), callee.classify(), entry.context());
        if traced::wanted() {
            let traced = run_traced((callee.name(), policy), classify, Traced(operation), cx, finish);
            // On the heap, so that calls without a subscriber reserve no space for it.
            let traced = Box::pin(traced.instrument(traced::call(callee.name())));
            return (traced as Pin<Box<dyn Future<Output = _> + Send + '_>>).await;
        }
        let mut attempt = OperationAttempt::new(&mut operation, classify);
        let outcome = policy.around(&mut attempt, cx).await;
        if has_failed(outcome) {
            traced::failed(callee.name(), cx, outcome, &attempt.state);
        }
        finish(&mut attempt.state)
    }
}

/// Returns `true` if a call with this outcome failed.
#[inline]
pub(super) fn has_failed(outcome: Outcome) -> bool {
    outcome.is_failure() || outcome == Outcome::Rejected
}

async fn run_traced<P: Policy, C: Classify<O::Output, O::Error> + ?Sized, O: Operation, T>(
    (name, policy): (Option<&Name>, &P),
    classify: &C,
    mut operation: Traced<O>,
    cx: CallContext<'_>,
    finish: impl FnOnce(&mut TypedCallState<O::Output, O::Error>) -> T + Send,
) -> T {
    let mut attempt = OperationAttempt::new(&mut operation, classify);
    let outcome = policy.around(&mut attempt, cx).await;
    if has_failed(outcome) {
        traced::failed(name, cx, outcome, &attempt.state);
    }
    traced::note(attempt.state.attempts, attempt.state.value.is_some());
    finish(&mut attempt.state)
}

/// Runs `operation` under a single policy; every `Err` is a failure.
#[inline]
pub(crate) fn call_alone<P: Policy, O: Operation>(
    policy: &P,
    operation: O,
) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send {
    let cx = CallContext::of(&operation);
    run(Alone(policy), cx, operation, TypedCallState::result)
}

/// Runs `operation` under a single policy, with a fallback.
#[inline]
pub(crate) fn call_alone_or<P: Policy, O: Operation, F, Fut>(
    policy: &P,
    operation: O,
    instead: F,
) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send
where
    F: FnOnce(Failed<'_, O::Output, O::Error>) -> Fut + Send,
    Fut: Future<Output = Result<O::Output, O::Error>> + Send,
{
    let cx = CallContext::of(&operation);
    run_or(Alone(policy), cx, operation, instead, unmarked)
}

/// As [`call_alone_or`], with a marked value.
#[inline]
pub(crate) fn call_alone_or_marked<P: Policy, O: Operation, F, Fut>(
    policy: &P,
    operation: O,
    instead: F,
) -> impl Future<Output = Answered<O::Output, O::Error>> + Send
where
    F: FnOnce(Failed<'_, O::Output, O::Error>) -> Fut + Send,
    Fut: Future<Output = Result<O::Output, O::Error>> + Send,
{
    let cx = CallContext::of(&operation);
    run_or(Alone(policy), cx, operation, instead, marked)
}
