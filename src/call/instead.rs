//! A call with something to fall back on: the substitute, the mark on its answer, and what is kept of the failure.
use std::future::Future;

use tracing::Instrument;

use super::{
    AttemptInfo, CallContext, Forks, Ledger, Operation, Policy,
    ledger::Kept,
    policy::{Attempt, ByMut, Judged},
    traced::{self, Traced},
};
use crate::{
    config::Name,
    outcome::{CallError, Cause, Classify, FailureKind, KindSet, Outcome, Rejected, Verdict},
};

/// What a call with a substitute came to: the operation's own value, or the substitute's, which is marked.
#[derive(Debug)]
pub enum Answer<T, E> {
    /// The operation's own.
    Own(T),
    /// The substitute's.
    Degraded {
        /// What the substitute gave.
        value: T,
        /// What the call would have come to without it: an error, or a value that was judged a failure.
        instead_of: Result<T, CallError<E>>,
    },
}

impl<T, E> Answer<T, E> {
    /// Whether it is the substitute's.
    pub const fn is_degraded(&self) -> bool {
        matches!(self, Self::Degraded { .. })
    }

    /// The value, whosever it is.
    pub const fn value(&self) -> &T {
        match self {
            Self::Own(value) | Self::Degraded { value, .. } => value,
        }
    }

    /// The value, whosever it is, without the mark.
    pub fn into_value(self) -> T {
        match self {
            Self::Own(value) | Self::Degraded { value, .. } => value,
        }
    }

    /// The error in whose place the substitute's value is; nothing where it is the operation's own, or stands in the place of a value that
    /// was judged a failure.
    pub fn error(&self) -> Option<&CallError<E>> {
        match self {
            Self::Own(_) => None,
            Self::Degraded { instead_of, .. } => instead_of.as_ref().err(),
        }
    }
}

/// What a call of `O` with a substitute comes to.
pub type Answered<O> =
    Result<Answer<<O as Operation>::Output, <O as Operation>::Error>, CallError<<O as Operation>::Error>>;

/// What a substitute is told of the call that failed.
#[derive(Debug)]
pub struct Failed<'a, T, E> {
    value: Option<&'a T>,
    cause: Option<&'a Cause<E>>,
    verdict: Verdict,
    attempts: u32,
    within: CallContext<'a>,
}

impl<'a, T, E> Failed<'a, T, E> {
    pub(super) const fn new(kept: &'a Kept<T, E>, within: CallContext<'a>) -> Self {
        Self {
            value: kept.value.as_ref(),
            cause: kept.cause(),
            verdict: kept.verdict(),
            attempts: kept.attempts,
            within,
        }
    }

    /// The value that was judged a failure, if it is one.
    pub const fn value(&self) -> Option<&'a T> {
        self.value
    }

    /// What ended the call; nothing where it is a value that was judged a failure.
    pub const fn cause(&self) -> Option<&'a Cause<E>> {
        self.cause
    }

    /// The operation's own error, if that is what ended the call.
    pub const fn error(&self) -> Option<&'a E> {
        match self.cause {
            Some(Cause::Operation(error)) => Some(error),
            _ => None,
        }
    }

    /// The refusal, if that is what ended the call.
    pub const fn rejection(&self) -> Option<&'a Rejected> {
        match self.cause {
            Some(Cause::Rejected(rejected)) => Some(rejected),
            _ => None,
        }
    }

    /// The verdict on the last attempt; [`Class::Ignore`](crate::Class::Ignore) for a refusal.
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// The kind of failure; nothing for a refusal.
    pub const fn kind(&self) -> Option<FailureKind> {
        self.verdict.kind()
    }

    /// How often the operation was started.
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// For a substitute that is a call itself: hand it to [`Pipeline::call_within`](super::Pipeline::call_within), and what is left of the
    /// time holds there too. Its time counts from the moment when it is first asked for this, or first waits.
    pub fn within(&self) -> AttemptInfo {
        self.within.info()
    }
}

/// What came of asking for a call's substitute: see [`Attempt::fall_back`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FellBack {
    /// The call has none, or it was asked before.
    Nowhere,
    /// Its value is the call's.
    Done,
    /// It failed: what was there before still is.
    Failed {
        /// How; nothing where its error was not judged a failure.
        kind: Option<FailureKind>,
    },
}

/// After which kinds of failure a call falls back where nobody says otherwise: as a retry, not after those that would come again.
pub(crate) const FALL_BACK_ON: KindSet =
    KindSet::ALL.without(FailureKind::Client).without(FailureKind::Cancelled).without(FailureKind::Panic);

type InsteadOf<O> = Result<<O as Operation>::Output, CallError<<O as Operation>::Error>>;

/// The innermost attempt of a call that has a substitute.
struct Substituted<'c, O: Operation, C: ?Sized, F> {
    judged: Judged<'c, O, C>,
    instead: Option<F>,
    /// What the substitute's value stands in the place of.
    instead_of: Option<InsteadOf<O>>,
}

impl<O, C, F, Fut> Substituted<'_, O, C, F>
where
    O: Operation,
    C: Classify<O::Output, O::Error> + ?Sized,
    F: FnOnce(Failed<'_, O::Output, O::Error>) -> Fut + Send,
    Fut: Future<Output = Result<O::Output, O::Error>> + Send,
{
    fn answer(&mut self) -> Answered<O> {
        let value = self.judged.result()?;
        Ok(match self.instead_of.take() {
            None => Answer::Own(value),
            Some(instead_of) => Answer::Degraded { value, instead_of },
        })
    }
}

impl<O, C, F, Fut> Attempt for Substituted<'_, O, C, F>
where
    O: Operation,
    C: Classify<O::Output, O::Error> + ?Sized,
    F: FnOnce(Failed<'_, O::Output, O::Error>) -> Fut + Send,
    Fut: Future<Output = Result<O::Output, O::Error>> + Send,
{
    #[inline]
    fn attempt(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        // What a policy of the user's own repeats after all is not degraded any more.
        self.instead_of = None;
        self.judged.attempt(cx)
    }

    fn ledger(&mut self) -> &mut dyn Ledger {
        self.judged.ledger()
    }

    #[inline]
    fn fork(&mut self) -> Option<impl Forks> {
        self.judged.fork()
    }

    async fn fall_back(&mut self, cx: CallContext<'_>) -> FellBack {
        let Some(instead) = self.instead.take() else { return FellBack::Nowhere };
        // Only shown: dropped while it waits, or failing itself, the substitute leaves the failure where it is.
        let work = instead(Failed::new(&self.judged.kept, cx));
        let result = work.await;
        let verdict = self.judged.judge(&result);
        match result {
            Ok(value) if !verdict.is_failure() => {
                self.instead_of = Some(self.judged.result());
                self.judged.kept.take_over(value);
                FellBack::Done
            }
            result => {
                self.judged.kept.fallback_failed(result.err().map(Cause::Operation));
                FellBack::Failed { kind: verdict.kind() }
            }
        }
    }
}

/// Runs `operation` under `policy`, with `instead` to fall back on.
#[inline]
pub(super) async fn run_or<P, C, O, F, Fut>(
    name: Option<&Name>,
    policy: &P,
    classify: &C,
    operation: O,
    instead: F,
    cx: CallContext<'_>,
) -> Answered<O>
where
    P: Policy,
    C: Classify<O::Output, O::Error> + ?Sized,
    O: Operation,
    F: FnOnce(Failed<'_, O::Output, O::Error>) -> Fut + Send,
    Fut: Future<Output = Result<O::Output, O::Error>> + Send,
{
    if traced::wanted() {
        let traced = async {
            let mut attempt = Substituted {
                judged: Judged::new(Traced(operation), classify),
                instead: Some(instead),
                instead_of: None,
            };
            go(policy, &mut attempt, cx).await;
            let (attempts, answer) = (attempt.judged.kept.attempts, attempt.answer());
            traced::note(attempts, answer.is_ok());
            answer
        };
        return Box::pin(traced.instrument(traced::call(name))).await;
    }
    let mut attempt =
        Substituted { judged: Judged::new(operation, classify), instead: Some(instead), instead_of: None };
    go(policy, &mut attempt, cx).await;
    attempt.answer()
}

#[inline]
async fn go<P: Policy>(policy: &P, attempt: &mut impl Attempt, cx: CallContext<'_>) {
    let outcome = policy.around(ByMut(&mut *attempt), cx).await;
    // A policy that falls back has decided by its own rules.
    if !policy.has_fallback() && falls_back(outcome, FALL_BACK_ON, true) {
        attempt.fall_back(cx).await;
    }
}

/// Whether such an outcome is one to fall back after.
#[inline]
fn falls_back(outcome: Outcome, kinds: KindSet, rejections: bool) -> bool {
    match outcome {
        Outcome::Rejected => rejections,
        judged => judged.kind().is_some_and(|kind| kinds.contains(kind)),
    }
}
