//! Policies and attempts behind pointers, for the boxed pipeline.
use std::{future::Future, pin::Pin};

use super::{
    Attempt, CallContext, CallState, Explanation, FellBack, Fork, Forks, Pipeline, Policy, attempt::AttemptInternals,
};
use crate::{
    config::Name,
    outcome::{NextAttempt, Outcome},
};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub(super) trait DynAttempt: Send {
    fn attempt_dyn<'a>(&'a mut self, cx: CallContext<'a>) -> BoxFuture<'a, Outcome>;
    fn call_state_dyn(&mut self) -> &mut dyn CallState;
    fn again_dyn(&mut self, next: NextAttempt<'_>);
    fn claim_fallback_dyn(&mut self);
    fn fork_dyn(&mut self) -> Option<Box<dyn DynForks + '_>>;
    fn fall_back_dyn<'a>(&'a mut self, cx: CallContext<'a>) -> BoxFuture<'a, FellBack>;
}

pub(super) trait DynForks: Send + Sync {
    fn next_dyn(&self) -> Box<dyn DynFork + '_>;
}

pub(super) trait DynFork: DynAttempt {
    fn keep_dyn(self: Box<Self>);
}

impl<A: Attempt> DynAttempt for A {
    fn attempt_dyn<'a>(&'a mut self, cx: CallContext<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(self.attempt(cx))
    }

    fn call_state_dyn(&mut self) -> &mut dyn CallState {
        self.call_state()
    }

    fn again_dyn(&mut self, next: NextAttempt<'_>) {
        self.again(next);
    }

    fn claim_fallback_dyn(&mut self) {
        self.claim_fallback();
    }

    fn fork_dyn(&mut self) -> Option<Box<dyn DynForks + '_>> {
        self.fork().map(|forks| Box::new(forks) as Box<dyn DynForks + '_>)
    }

    fn fall_back_dyn<'a>(&'a mut self, cx: CallContext<'a>) -> BoxFuture<'a, FellBack> {
        Box::pin(self.fall_back(cx))
    }
}

impl<F: Forks> DynForks for F {
    fn next_dyn(&self) -> Box<dyn DynFork + '_> {
        Box::new(self.next())
    }
}

impl<F: Fork> DynFork for F {
    fn keep_dyn(self: Box<Self>) {
        self.keep();
    }
}

struct Erased<'a>(&'a mut dyn DynAttempt);

impl Attempt for Erased<'_> {
    async fn attempt(&mut self, cx: CallContext<'_>) -> Outcome {
        self.0.attempt_dyn(cx).await
    }
}

impl AttemptInternals for Erased<'_> {
    fn attempt_nested(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        self.attempt(cx)
    }

    fn call_state(&mut self) -> &mut dyn CallState {
        self.0.call_state_dyn()
    }

    fn again(&mut self, next: NextAttempt<'_>) {
        self.0.again_dyn(next);
    }

    fn claim_fallback(&mut self) {
        self.0.claim_fallback_dyn();
    }

    fn fork(&mut self) -> Option<impl Forks> {
        self.0.fork_dyn().map(ErasedForks)
    }

    async fn fall_back(&mut self, cx: CallContext<'_>) -> FellBack {
        self.0.fall_back_dyn(cx).await
    }
}

struct ErasedForks<'a>(Box<dyn DynForks + 'a>);

impl Forks for ErasedForks<'_> {
    fn next(&self) -> impl Fork {
        ErasedFork(self.0.next_dyn())
    }
}

struct ErasedFork<'a>(Box<dyn DynFork + 'a>);

impl Attempt for ErasedFork<'_> {
    async fn attempt(&mut self, cx: CallContext<'_>) -> Outcome {
        self.0.attempt_dyn(cx).await
    }
}

impl AttemptInternals for ErasedFork<'_> {
    fn attempt_nested(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        self.attempt(cx)
    }

    fn call_state(&mut self) -> &mut dyn CallState {
        self.0.call_state_dyn()
    }

    fn again(&mut self, next: NextAttempt<'_>) {
        self.0.again_dyn(next);
    }

    fn claim_fallback(&mut self) {
        self.0.claim_fallback_dyn();
    }
}

impl Fork for ErasedFork<'_> {
    fn keep(self) {
        self.0.keep_dyn();
    }
}

/// The erased policies as one policy.
pub(super) struct Boxed<'a>(pub(super) &'a dyn DynPolicy);

impl Policy for Boxed<'_> {
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        self.0.around_dyn(&mut inner, cx).await
    }

    fn has_fallback(&self) -> bool {
        self.0.has_fallback_dyn()
    }
}

pub(super) trait DynPolicy: Send + Sync {
    fn name_dyn(&self) -> Option<&Name>;
    fn around_dyn<'a>(&'a self, inner: &'a mut dyn DynAttempt, cx: CallContext<'a>) -> BoxFuture<'a, Outcome>;
    fn explain_dyn(&self) -> Explanation;
    fn has_fallback_dyn(&self) -> bool;
}

impl<P: Policy, C: Send + Sync> DynPolicy for Pipeline<P, C> {
    fn name_dyn(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    fn around_dyn<'a>(&'a self, inner: &'a mut dyn DynAttempt, cx: CallContext<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(self.policy.around(Erased(inner), cx))
    }

    fn explain_dyn(&self) -> Explanation {
        self.explain()
    }

    fn has_fallback_dyn(&self) -> bool {
        self.policy.has_fallback()
    }
}
