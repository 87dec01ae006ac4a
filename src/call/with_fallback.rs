//! Calls with a fallback: the fallback's answer, its mark, and the failure that it replaces.
use std::future::Future;

use tracing::Instrument;

use super::{
    AttemptInfo, CallContext, CallState, Forks, Operation, Policy,
    attempt::{Attempt, AttemptInternals, OperationAttempt},
    cold::Cold,
    run::{Callee, Entry, has_failed},
    state::TypedCallState,
    traced::{self, Traced},
};
use crate::{
    config::Name,
    outcome::{CallError, Cause, Classify, FailureKind, KindSet, LastFailure, NextAttempt, Outcome, Rejected, Verdict},
};

/// The marked value of a call with a fallback: the operation's own, or the fallback's. Returned by
/// [`Pipeline::call_or_marked`](super::Pipeline::call_or_marked).
#[derive(Debug)]
pub enum Answer<T, E> {
    /// The operation's own value.
    Own(T),
    /// The fallback's value.
    Degraded {
        /// The value that the fallback returned.
        value: T,
        /// The result that the call would have had without it: an error, or a value that was judged
        /// a failure.
        instead_of: Result<T, CallError<E>>,
    },
}

impl<T, E> Answer<T, E> {
    /// Returns `true` if the value is the fallback's.
    pub const fn is_degraded(&self) -> bool {
        matches!(self, Self::Degraded { .. })
    }

    /// Returns the value, from the operation or from the fallback.
    pub const fn value(&self) -> &T {
        match self {
            Self::Own(value) | Self::Degraded { value, .. } => value,
        }
    }

    /// Returns the value, from the operation or from the fallback, without the mark.
    pub fn into_value(self) -> T {
        match self {
            Self::Own(value) | Self::Degraded { value, .. } => value,
        }
    }

    /// Returns the error that the fallback's value replaces. `None` for the operation's own value,
    /// and if the fallback replaces a value that was judged a failure.
    pub fn error(&self) -> Option<&CallError<E>> {
        match self {
            Self::Own(_) => None,
            Self::Degraded { instead_of, .. } => instead_of.as_ref().err(),
        }
    }
}

/// The marked result of a call with a fallback.
pub type Answered<T, E> = Result<Answer<T, E>, CallError<E>>;

/// The failed call, as a fallback sees it.
#[derive(Debug)]
pub struct Failed<'a, T, E> {
    value: Option<&'a T>,
    last: LastFailure<'a, E>,
    attempts: u32,
    within: CallContext<'a>,
}

impl<'a, T, E> Failed<'a, T, E> {
    pub(super) const fn new(state: &'a TypedCallState<T, E>, within: CallContext<'a>) -> Self {
        Self {
            value: state.value.as_ref(),
            last: LastFailure::new(state.cause(), state.verdict()),
            attempts: state.attempts,
            within,
        }
    }

    /// Returns the value that was judged a failure, if there is one.
    pub const fn value(&self) -> Option<&'a T> {
        self.value
    }

    /// Returns the cause that ended the call; `None` if a value was judged a failure.
    pub const fn cause(&self) -> Option<&'a Cause<E>> {
        self.last.cause()
    }

    /// Returns the operation's own error, if that ended the call.
    pub const fn error(&self) -> Option<&'a E> {
        self.last.error()
    }

    /// Returns the rejection, if that ended the call.
    pub const fn rejection(&self) -> Option<&'a Rejected> {
        self.last.rejection()
    }

    /// Returns the verdict on the last attempt; [`Class::Ignore`](crate::Class::Ignore) for a
    /// rejection.
    pub const fn verdict(&self) -> Verdict {
        self.last.verdict()
    }

    /// Returns the kind of failure; `None` for a rejection.
    pub const fn kind(&self) -> Option<FailureKind> {
        self.last.kind()
    }

    /// Returns the number of times that the operation was started.
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns the context for a fallback that calls another pipeline: pass it to
    /// [`Pipeline::call_within`](super::Pipeline::call_within), and the remaining time holds there,
    /// too. The fallback's time counts from this call, or from its first wait.
    pub fn within(&self) -> AttemptInfo {
        self.within.info()
    }
}

/// The result of [`AttemptInternals::fall_back`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FellBack {
    /// The call has no fallback, or it ran before.
    Nowhere,
    /// The fallback's value is now the call's.
    Done,
    /// The fallback failed: the call keeps its failure.
    Failed {
        /// Kind of the fallback's failure; `None` if its error was not judged a failure.
        kind: Option<FailureKind>,
    },
}

/// The kinds of failure after which a call falls back by default: as for a retry, all that may be
/// transient.
pub(crate) const FALL_BACK_ON: KindSet =
    KindSet::ALL.without(FailureKind::Client).without(FailureKind::Cancelled).without(FailureKind::Panic);

/// Takes the result of a call with a fallback from its state, and from the result that the
/// fallback's value replaced.
pub(super) trait Finish<T, E, R>:
    FnOnce(&mut TypedCallState<T, E>, Option<Result<T, CallError<E>>>) -> R + Send
{
}

impl<T, E, R, F> Finish<T, E, R> for F where
    F: FnOnce(&mut TypedCallState<T, E>, Option<Result<T, CallError<E>>>) -> R + Send
{
}

/// Returns the value alone.
#[inline]
pub(super) fn unmarked<T, E>(
    state: &mut TypedCallState<T, E>,
    _: Option<Result<T, CallError<E>>>,
) -> Result<T, CallError<E>> {
    state.result()
}

/// Returns the value with its mark.
#[inline]
pub(super) fn marked<T, E>(
    state: &mut TypedCallState<T, E>,
    instead_of: Option<Result<T, CallError<E>>>,
) -> Result<Answer<T, E>, CallError<E>> {
    let value = state.result()?;
    Ok(match instead_of {
        None => Answer::Own(value),
        Some(instead_of) => Answer::Degraded { value, instead_of },
    })
}

/// The innermost attempt of a call with a fallback.
struct AttemptWithFallback<'c, O: Operation, C: ?Sized, F> {
    inner: OperationAttempt<'c, O, C>,
    instead: &'c mut Option<F>,
    /// The result that the fallback's value replaced.
    instead_of: Option<Result<O::Output, CallError<O::Error>>>,
}

impl<'c, O, C, F, Fut> AttemptWithFallback<'c, O, C, F>
where
    O: Operation,
    C: Classify<O::Output, O::Error> + ?Sized,
    F: FnOnce(Failed<'_, O::Output, O::Error>) -> Fut + Send,
    Fut: Future<Output = Result<O::Output, O::Error>> + Send,
{
    fn new(operation: &'c mut O, instead: &'c mut Option<F>, classify: &'c C) -> Self {
        Self { inner: OperationAttempt::new(operation, classify), instead, instead_of: None }
    }

    fn finish<R>(&mut self, finish: impl Finish<O::Output, O::Error, R>) -> R {
        finish(&mut self.inner.state, self.instead_of.take())
    }
}

impl<O, C, F, Fut> Attempt for AttemptWithFallback<'_, O, C, F>
where
    O: Operation,
    C: Classify<O::Output, O::Error> + ?Sized,
    F: FnOnce(Failed<'_, O::Output, O::Error>) -> Fut + Send,
    Fut: Future<Output = Result<O::Output, O::Error>> + Send,
{
    #[inline]
    fn attempt(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        // If a user's own policy repeats the call after its fallback, a new success is not
        // degraded.
        self.instead_of = None;
        self.inner.attempt(cx)
    }
}

impl<O, C, F, Fut> AttemptInternals for AttemptWithFallback<'_, O, C, F>
where
    O: Operation,
    C: Classify<O::Output, O::Error> + ?Sized,
    F: FnOnce(Failed<'_, O::Output, O::Error>) -> Fut + Send,
    Fut: Future<Output = Result<O::Output, O::Error>> + Send,
{
    #[inline]
    fn attempt_nested(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        self.attempt(cx)
    }

    fn call_state(&mut self) -> &mut dyn CallState {
        self.inner.call_state()
    }

    fn again(&mut self, next: NextAttempt<'_>) {
        self.inner.again(next);
    }

    #[inline]
    fn claim_fallback(&mut self) {
        self.inner.claim_fallback();
    }

    #[inline]
    fn fork(&mut self) -> Option<impl Forks> {
        self.inner.fork()
    }

    async fn fall_back(&mut self, cx: CallContext<'_>) -> FellBack {
        let Some(instead) = self.instead.take() else { return FellBack::Nowhere };
        // The fallback only borrows the failure: if it is dropped or fails, the failure stands.
        let work = instead(Failed::new(&self.inner.state, cx));
        let result = work.await;
        let (result, verdict) = self.inner.judge(result);
        match result {
            Ok(value) if !verdict.is_failure() => {
                self.instead_of = Some(self.inner.result());
                self.inner.state.take_over(value);
                FellBack::Done
            }
            result => {
                self.inner.state.fallback_failed(result.err().map(Cause::Operation));
                FellBack::Failed { kind: verdict.kind() }
            }
        }
    }
}

/// Runs `operation` under the policies of `callee`, with the fallback `instead`. `finish` takes the
/// result from the state of the call: [`unmarked`] or [`marked`].
#[inline]
pub(super) fn run_or<K, O, F, Fut, R: Send>(
    callee: K,
    entry: impl Entry,
    mut operation: O,
    instead: F,
    finish: impl Finish<O::Output, O::Error, R>,
) -> impl Future<Output = R> + Send
where
    K: Callee,
    K::Classify: Classify<O::Output, O::Error>,
    O: Operation,
    F: FnOnce(Failed<'_, O::Output, O::Error>) -> Fut + Send,
    Fut: Future<Output = Result<O::Output, O::Error>> + Send,
{
    let mut instead = Some(instead);
    async move {
        let (name, policy, classify, cx) = (callee.name(), callee.policy(), callee.classify(), entry.context());
        if traced::wanted() {
            let mut operation = Traced(operation);
            let traced = async move {
                let mut attempt = AttemptWithFallback::new(&mut operation, &mut instead, classify);
                go((name, policy), &mut attempt, cx).await;
                traced::note(attempt.inner.state.attempts, attempt.inner.state.value.is_some());
                attempt.finish(finish)
            };
            return Box::pin(traced.instrument(traced::call(name))).await;
        }
        let mut attempt = AttemptWithFallback::new(&mut operation, &mut instead, classify);
        go((name, policy), &mut attempt, cx).await;
        attempt.finish(finish)
    }
}

#[inline]
async fn go<P, O, C, F, Fut>(
    (name, policy): (Option<&Name>, &P),
    attempt: &mut AttemptWithFallback<'_, O, C, F>,
    cx: CallContext<'_>,
) where
    P: Policy,
    O: Operation,
    C: Classify<O::Output, O::Error> + ?Sized,
    F: FnOnce(Failed<'_, O::Output, O::Error>) -> Fut + Send,
    Fut: Future<Output = Result<O::Output, O::Error>> + Send,
{
    // Asked before and after, as a policy may be switched on or off during the call. One that the
    // call reached has claimed it.
    let had_fallback = policy.has_fallback();
    let outcome = policy.around(&mut *attempt, cx).await;
    if has_failed(outcome) {
        let had_fallback = had_fallback && policy.has_fallback();
        Cold::new(end_failed(name, had_fallback, outcome, attempt, cx)).await;
    }
}

/// Falls back after a failure, unless a policy with a fallback has decided by its own rules, and
/// reports what stays a failure.
///
/// A failure without a kind is a rejection.
async fn end_failed<O, C, F, Fut>(
    name: Option<&Name>,
    had_fallback: bool,
    outcome: Outcome,
    attempt: &mut AttemptWithFallback<'_, O, C, F>,
    cx: CallContext<'_>,
) where
    O: Operation,
    C: Classify<O::Output, O::Error> + ?Sized,
    F: FnOnce(Failed<'_, O::Output, O::Error>) -> Fut + Send,
    Fut: Future<Output = Result<O::Output, O::Error>> + Send,
{
    let decided = attempt.inner.state.fallback_claimed || had_fallback;
    let falls_back = !decided && outcome.kind().is_none_or(|kind| FALL_BACK_ON.contains(kind));
    let fell_back = falls_back && matches!(attempt.fall_back(cx).await, FellBack::Done);
    if !fell_back {
        traced::failed(name, cx, outcome, &attempt.inner.state);
    }
}
