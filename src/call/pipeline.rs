//! Policies composed, outermost first.
use super::{
    AttemptInfo, CallContext, Explanation, Identity, Operation, Policy, Stack, WithAttempt,
    policy::{ByMut, Judged},
};
use crate::{
    config::Name,
    outcome::{CallError, Classify, ErrIsFailure, Outcome},
};

/// Any policies in any order, outermost first, with one classifier.
///
/// A clone is cheap and shares the policies' state; so does a policy that is put into two pipelines. One pipeline serves
/// operations of any type that its classifier can judge.
#[derive(Clone, Debug)]
pub struct Pipeline<P = Identity, C = ErrIsFailure> {
    pub(super) policy: P,
    pub(super) classify: C,
    pub(super) name: Option<Name>,
}

impl Pipeline {
    /// No policy yet; every `Err` is a failure.
    pub const fn new() -> Self {
        Self { policy: Identity, classify: ErrIsFailure, name: None }
    }
}

impl Default for Pipeline {
    fn default() -> Self {
        Self::new()
    }
}

impl<P, C> Pipeline<P, C> {
    /// The same with `inner` inside all policies so far.
    pub fn then<Q: Policy>(self, inner: Q) -> Pipeline<Stack<P, Q>, C> {
        let Self { policy: outer, classify, name } = self;
        Pipeline { policy: Stack { outer, inner }, classify, name }
    }

    /// The same with another judge of results: a `Fn(&Result<T, E>) -> Verdict`, or any [`Classify`].
    pub fn classify<D>(self, classify: D) -> Pipeline<P, D> {
        Pipeline { policy: self.policy, classify, name: self.name }
    }

    /// The same with a name, for its spans and its explanation.
    #[must_use]
    pub fn named(mut self, name: impl Into<Name>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Its name.
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref().map(Name::as_str)
    }

    /// Its policies, as one.
    pub fn policy(&self) -> &P {
        &self.policy
    }
}

impl<P: Policy, C> Pipeline<P, C> {
    /// Runs `operation` under the policies.
    ///
    /// # Errors
    /// The operation's own error, a policy's refusal, or a time-out: [`CallError`].
    ///
    /// # Cancel safety
    /// Dropped, it drops the running attempt, gives back every permit, and counts nothing for or against the other side.
    /// Whether the operation had its effect is unknown, as with any dropped call.
    #[inline]
    pub async fn call<O: Operation>(&self, operation: O) -> Result<O::Output, CallError<O::Error>>
    where
        C: Classify<O::Output, O::Error>,
    {
        self.run(operation, CallContext::root()).await
    }

    /// As [`call`](Self::call), for a closure that is told the attempt's number and deadline.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    /// As [`call`](Self::call).
    pub async fn call_with<T: Send, E: Send, F, Fut>(&self, operation: F) -> Result<T, CallError<E>>
    where
        F: FnMut(AttemptInfo) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
        C: Classify<T, E>,
    {
        self.run(WithAttempt(operation), CallContext::root()).await
    }

    /// As [`call`](Self::call), inside an attempt of another pipeline: its deadline holds here too, and a retry here leaves
    /// the attempts to a retry there. Also the door for a deadline that came in a header
    /// ([`AttemptInfo::with_deadline`]).
    ///
    /// # Errors
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    /// As [`call`](Self::call).
    pub async fn call_within<O: Operation>(
        &self,
        outer: AttemptInfo,
        operation: O,
    ) -> Result<O::Output, CallError<O::Error>>
    where
        C: Classify<O::Output, O::Error>,
    {
        self.run(operation, outer.context()).await
    }

    #[inline]
    async fn run<O: Operation>(
        &self,
        operation: O,
        cx: CallContext<'_>,
    ) -> Result<O::Output, CallError<O::Error>>
    where
        C: Classify<O::Output, O::Error>,
    {
        run(&self.policy, &self.classify, operation, cx).await
    }

    /// What stands around a call, in order, with warnings where the order or the settings will hurt.
    pub fn explain(&self) -> Explanation {
        let mut explanation = Explanation::new(self.name.clone());
        self.policy.describe(&mut explanation);
        explanation
    }
}

#[inline]
async fn run<P: Policy, C, O: Operation>(
    policy: &P,
    classify: &C,
    operation: O,
    cx: CallContext<'_>,
) -> Result<O::Output, CallError<O::Error>>
where
    C: Classify<O::Output, O::Error>,
{
    let cx = cx.idempotent(operation.is_idempotent());
    let mut judged = Judged { operation, classify, attempts: 0 };
    let outcome = policy.around(ByMut(&mut judged), cx).await;
    finish(outcome, judged.attempts)
}

/// The door of a single policy: a call with nothing else around it, where every `Err` is a failure.
#[inline]
pub(crate) async fn call_alone<P: Policy, O: Operation>(
    policy: &P,
    operation: O,
) -> Result<O::Output, CallError<O::Error>> {
    run(policy, &ErrIsFailure, operation, CallContext::root()).await
}

#[inline]
pub(super) fn finish<T, E>(outcome: Outcome<T, E>, attempts: u32) -> Result<T, CallError<E>> {
    match outcome.result {
        Ok(value) => Ok(value),
        Err(cause) => Err(CallError::new(cause, outcome.verdict, attempts, outcome.history)),
    }
}
