//! Standard stacks inside standard stacks: the inner one is boxed.
//!
//! The type of a call through a standard stack names the attempt inside it many times, and nests
//! deeply. A second stack inside the first multiplied the former and doubled the latter: compilers
//! gave up. So a stack wraps the attempt inside it as [`Nested`]. The mark is a type that travels
//! inwards through all policies, also through those of a user's own, and a stack that receives a
//! marked attempt puts its future into a box. A single stack boxes nothing.
use std::future::Future;

use super::{Attempt, AttemptInternals, CallContext, CallState, FellBack, Fork, Forks, Policy, boxed};
use crate::outcome::{NextAttempt, Outcome};

/// An attempt inside a standard stack, or inside an attempt of another pipeline.
pub(crate) struct Nested<A>(pub(crate) A);

impl<A: Attempt> Attempt for Nested<A> {
    #[inline]
    fn attempt(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        self.0.attempt_nested(cx)
    }
}

impl<A: Attempt> AttemptInternals for Nested<A> {
    #[inline]
    fn attempt_nested(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        self.0.attempt_nested(cx)
    }

    async fn under_stack<S: Policy, B: Attempt>(stack: &S, inner: B, cx: CallContext<'_>) -> Outcome {
        boxed(stack.around(inner, cx)).await
    }

    fn call_state(&mut self) -> &mut dyn CallState {
        self.0.call_state()
    }

    fn again(&mut self, next: NextAttempt<'_>) {
        self.0.again(next);
    }

    #[inline]
    fn claim_fallback(&mut self) {
        self.0.claim_fallback();
    }

    #[inline]
    fn fork(&mut self) -> Option<impl Forks> {
        self.0.fork().map(Nested)
    }

    #[inline]
    fn fall_back(&mut self, cx: CallContext<'_>) -> impl Future<Output = FellBack> + Send {
        self.0.fall_back(cx)
    }
}

impl<F: Forks> Forks for Nested<F> {
    #[inline]
    fn next(&self) -> impl Fork {
        Nested(self.0.next())
    }
}

impl<F: Fork> Fork for Nested<F> {
    #[inline]
    fn keep(self) {
        self.0.keep();
    }
}

/// A policy whose calls run inside an attempt of another pipeline.
pub(super) struct Inside<'a, P>(pub(super) &'a P);

impl<P: Policy> Policy for Inside<'_, P> {
    #[inline]
    fn around<A: Attempt>(&self, inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        self.0.around(Nested(inner), cx)
    }

    fn has_fallback(&self) -> bool {
        self.0.has_fallback()
    }
}
