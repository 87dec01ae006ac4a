//! The steps of a saga as a user implements them: an action, its compensation, and the outcome of
//! an attempt.
use std::{collections::BTreeMap, fmt, future::Future, ops::Deref, sync::Arc, time::Duration};

use super::state::Direction;
use crate::{
    outcome::{CallError, Cause, FailureKind},
    port::FencingToken,
    store::Write,
    sync::Mutex,
};

/// The action of a step, which changes another system.
///
/// An action runs again after an attempt whose outcome is unknown, also in another process: pass
/// [`key`](Step::key) to the system, which then applies it once.
///
/// ```
/// use steadfast::saga::{Action, Step, StepOutcome};
/// # struct Mailer;
/// # impl Mailer {
/// #     async fn send(&self, _: &str, _: &str) -> Result<(), std::io::Error> { Ok(()) }
/// # }
///
/// struct SendMail { mailer: Mailer }
///
/// impl Action<String> for SendMail {
///     async fn execute(&self, step: &Step<String>) -> StepOutcome<String> {
///         match self.mailer.send(step.key(), step).await {
///             Ok(()) => StepOutcome::completed(),
///             Err(error) => StepOutcome::unknown(error),
///         }
///     }
/// }
/// ```
pub trait Action<T>: Send + Sync + 'static {
    /// Makes one attempt.
    ///
    /// The future is dropped after [`step_timeout`](super::SagaConfig::step_timeout); the outcome
    /// of the attempt is then unknown, and also after a panic.
    fn execute(&self, step: &Step<T>) -> impl Future<Output = StepOutcome<T>> + Send;
}

/// A closure is an action. It gets the step itself, so that its future may be sent to any thread.
impl<T, A, F> Action<T> for A
where
    T: Send + Sync + 'static,
    A: Fn(Step<T>) -> F + Send + Sync + 'static,
    F: Future<Output = StepOutcome<T>> + Send,
{
    fn execute(&self, step: &Step<T>) -> impl Future<Output = StepOutcome<T>> + Send {
        self(step.share())
    }
}

/// The compensation of a step: it undoes the effect of the action, as far as there is one.
///
/// It runs if the action completed, and also if the outcome of any attempt is unknown. So it must
/// accept that there is nothing to undo, and keep a late attempt of the action from taking effect:
/// [`Participant`](super::Participant) does both in the service that is called. It need not restore
/// the former state.
pub trait Compensation<T>: Action<T> {
    /// Makes one attempt. The same rules hold as for [`execute`](Action::execute).
    ///
    /// [`action_key`](Step::action_key) is the key of the action to undo.
    fn compensate(&self, step: &Step<T>) -> impl Future<Output = StepOutcome<T>> + Send;
}

/// One attempt of a step: the state of the saga, to which it dereferences, and the keys for the
/// service that is called.
pub struct Step<T> {
    pub(super) state: Arc<T>,
    pub(super) attempt: Attempt,
    pub(super) writes: Arc<Mutex<Vec<Write>>>,
}

/// End of the key of a compensation.
pub(super) const UNDO: &str = ":undo";

/// The parts of an attempt that do not depend on the type of the state.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    pub(super) id: Arc<str>,
    /// Name of the step.
    pub(super) name: Arc<str>,
    pub(super) key: String,
    pub(super) token: FencingToken,
    pub(super) number: u32,
    pub(super) direction: Direction,
    pub(super) headers: Arc<BTreeMap<String, String>>,
}

impl<T> Step<T> {
    /// Returns the same step, for a closure.
    pub(super) fn share(&self) -> Self {
        Self { state: self.state.clone(), attempt: self.attempt.clone(), writes: self.writes.clone() }
    }

    /// Returns the idempotency key of this step: `SAGA/ID/STEP` for an action, and
    /// `SAGA/ID/STEP:undo` for a compensation. All attempts have the same key.
    pub fn key(&self) -> &str {
        &self.attempt.key
    }

    /// Returns the key of this step's action, also in its compensation.
    pub fn action_key(&self) -> &str {
        let Attempt { key, direction, .. } = &self.attempt;
        if direction.undoes() { key.strip_suffix(UNDO).unwrap_or(key) } else { key }
    }

    /// Returns the id of the saga.
    pub fn id(&self) -> &str {
        &self.attempt.id
    }

    /// Returns the name of the step.
    pub fn name(&self) -> &str {
        &self.attempt.name
    }

    /// Returns the headers of the [submission](crate::scheduler::Submission) that started the saga,
    /// such as `traceparent`; empty if [`run`](super::Saga::run) started it.
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.attempt.headers
    }

    /// Returns the number of this attempt, from 1. Attempts whose process died are counted.
    pub fn attempt(&self) -> u32 {
        self.attempt.number
    }

    /// Returns the epoch of the executor as a fencing token. It grows whenever another executor
    /// takes the saga over: a resource that remembers the highest token can refuse a late attempt.
    pub fn token(&self) -> FencingToken {
        self.attempt.token
    }

    /// Adds a write that takes effect together with the completion of this step, exactly once. The
    /// row lies in the partition of the saga, and its name must begin with `u/`.
    ///
    /// Writes of an attempt that does not complete are discarded. If the store refuses a write,
    /// the step has failed, and it is compensated with the others.
    pub fn write(&self, write: Write) {
        self.writes.lock().push(write);
    }

    /// Discards the writes so far.
    #[cfg(feature = "testing")]
    pub(crate) fn forget_writes(&self) {
        self.writes.lock().clear();
    }

    /// Converts the result of a call through a pipeline. If it succeeded, `change` is applied to
    /// the state.
    ///
    /// | result | outcome |
    /// |---|---|
    /// | a value | [completed](StepOutcome::changed) |
    /// | rejected by a policy, nothing was sent | [refused](StepOutcome::refused) for the delay of the rejection |
    /// | failure of kind `connect` or `throttled` | [not sent](StepOutcome::not_sent) |
    /// | failure of kind `client` | [failed](StepOutcome::failed) |
    /// | any other failure, and a time-out | [unknown](StepOutcome::unknown) |
    ///
    /// If the pipeline itself retried, an earlier attempt may have had an effect: then "failed"
    /// becomes [abandoned](StepOutcome::abandoned), and the other two become "unknown".
    pub fn of_call<V, E>(
        &self,
        result: Result<V, CallError<E>>,
        change: impl FnOnce(&mut T, V) + Send + 'static,
    ) -> StepOutcome<T>
    where
        V: Send + 'static,
        E: fmt::Display,
    {
        match result {
            Ok(value) => StepOutcome::changed(move |state| change(state, value)),
            Err(error) => of_error(error),
        }
    }
}

fn of_error<T, E: fmt::Display>(error: CallError<E>) -> StepOutcome<T> {
    let (after, kind) = (error.retry_after(), error.verdict().kind());
    // The operation ran before: the last attempt says nothing about the others.
    let is_rejected = error.is_rejected();
    let sent_before = match error.cause() {
        Cause::Rejected(_) => error.attempts() > 0,
        _ => error.attempts() > 1,
    };
    let outcome = match kind {
        _ if is_rejected && !sent_before => StepOutcome::refused(error),
        Some(FailureKind::Connect | FailureKind::Throttled) if !sent_before => StepOutcome::not_sent(error),
        Some(FailureKind::Client) if sent_before => StepOutcome::abandoned(error),
        Some(FailureKind::Client) => StepOutcome::failed(error),
        _ => StepOutcome::unknown(error),
    };
    StepOutcome { after, ..outcome }
}

impl<T> Deref for Step<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.state
    }
}

crate::build::debug_fields!([T] Step<T>, |this| attempt: this.attempt);

/// A change of the state, applied when the step is recorded as completed.
type Change<T> = Box<dyn FnOnce(&mut T) + Send>;

/// The outcome of one attempt of a step.
///
/// A service that knows whether its action had an effect says so. *Unknown* is the safe answer: the
/// action is repeated under the same key, and it is compensated if the saga fails.
#[must_use]
pub struct StepOutcome<T> {
    pub(super) kind: StepOutcomeKind,
    pub(super) reason: String,
    pub(super) after: Option<Duration>,
    pub(super) change: Option<Change<T>>,
}

/// The kind of a [`StepOutcome`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StepOutcomeKind {
    /// The action took effect.
    Completed,
    /// The action had no effect, and is not repeated: the saga is compensated.
    Failed,
    /// The action may have had an effect, and is not repeated: the saga is compensated, this step
    /// included.
    Abandoned,
    /// The action may have had an effect, and is repeated.
    Unknown,
    /// The action had no effect, and is repeated.
    NotSent,
    /// The action was not tried, and is repeated. The attempt does not count.
    Refused,
    /// The action was accepted and is not finished: the service is asked again. The attempt does
    /// not count.
    Pending,
}

impl StepOutcomeKind {
    /// Returns the kind as a word, for logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Abandoned => "abandoned",
            Self::Unknown => "unknown",
            Self::NotSent => "not_sent",
            Self::Refused => "refused",
            Self::Pending => "pending",
        }
    }
}

impl<T> StepOutcome<T> {
    fn new(kind: StepOutcomeKind, reason: impl fmt::Display) -> Self {
        Self { kind, reason: reason.to_string(), after: None, change: None }
    }

    /// Returns the outcome of a step that took effect and leaves the state as it is.
    pub fn completed() -> Self {
        Self::new(StepOutcomeKind::Completed, "")
    }

    /// Returns the outcome of a step that took effect and changes the state.
    ///
    /// The change is applied to the current state, which another step of the same parallel group
    /// may have changed meanwhile.
    pub fn changed(change: impl FnOnce(&mut T) + Send + 'static) -> Self {
        Self { change: Some(Box::new(change)), ..Self::completed() }
    }

    /// Returns the outcome of an action that had no effect and must not be repeated: the saga is
    /// compensated. In a compensation it needs an operator: the saga is stuck.
    pub fn failed(reason: impl fmt::Display) -> Self {
        Self::new(StepOutcomeKind::Failed, reason)
    }

    /// Returns the outcome of an action that may have had an effect and must not be repeated: the
    /// saga is compensated, this step included.
    pub fn abandoned(reason: impl fmt::Display) -> Self {
        Self::new(StepOutcomeKind::Abandoned, reason)
    }

    /// Returns the outcome of an action that may have had an effect. It is repeated.
    pub fn unknown(reason: impl fmt::Display) -> Self {
        Self::new(StepOutcomeKind::Unknown, reason)
    }

    /// Returns the outcome of an action that had no effect. It is repeated.
    pub fn not_sent(reason: impl fmt::Display) -> Self {
        Self::new(StepOutcomeKind::NotSent, reason)
    }

    /// Returns the outcome of an action that was not tried, as a circuit breaker was open. It is
    /// repeated, and the attempt does not count.
    pub fn refused(reason: impl fmt::Display) -> Self {
        Self::new(StepOutcomeKind::Refused, reason)
    }

    /// Returns the outcome of an action that is in progress: the service is asked again after
    /// `after`. The attempt does not count.
    ///
    /// If the saga is cancelled meanwhile, the step is compensated.
    pub fn pending(after: Duration) -> Self {
        Self::new(StepOutcomeKind::Pending, "pending").after(after)
    }

    /// Sets the delay before the next attempt. By default that of
    /// [`retry`](super::SagaConfig::retry), or of
    /// [`compensation_retry`](super::SagaConfig::compensation_retry).
    pub fn after(mut self, delay: Duration) -> Self {
        self.after = Some(delay);
        self
    }

    /// Returns the kind of the outcome.
    pub fn kind(&self) -> StepOutcomeKind {
        self.kind
    }

    /// Returns the reason; empty for a step that completed.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Applies the change of a completed step to a state. For tests of an action.
    pub fn apply(self, state: &mut T) {
        if let Some(change) = self.change {
            change(state);
        }
    }
}

impl<T> fmt::Debug for StepOutcome<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("StepOutcome");
        shown.field("kind", &self.kind).field("reason", &self.reason).field("after", &self.after);
        shown.field("changes", &self.change.is_some()).finish()
    }
}
