//! The plan of a saga: its steps in their order, and the code that runs them.
use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use bytes::Bytes;

use super::{
    Action, Compensation, Step, StepOutcome, StepOutcomeKind,
    action::Attempt,
    state::{Direction, Kind, PlannedStep},
};
use crate::{
    codec::{Codec, CodecError},
    config::{ConfigError, require},
    port::BoxFuture,
    store::Write,
    work::panic_text,
};

/// The steps of a saga, in their order. Steps that are added one after the other run one after the
/// other; those of one [`parallel`](Self::parallel) group run together.
///
/// A step has to be compensated if a later one fails. So it implements [`Compensation`], or is
/// added by [`step_without_compensation`](Self::step_without_compensation). From the
/// [pivot](Self::pivot) on the saga only goes forward, and steps need none. This does not compile:
///
/// ```compile_fail
/// # use steadfast::saga::{Action, Plan, Step, StepOutcome};
/// struct Charge;
/// impl Action<u32> for Charge {
///     async fn execute(&self, _: &Step<u32>) -> StepOutcome<u32> { StepOutcome::completed() }
/// }
/// let plan = Plan::new().step("charge", Charge); // it has no compensation
/// ```
///
/// Steps may also be closures, which make a short saga short:
///
/// ```
/// # use steadfast::{codec::Codec, store::InMemoryStore};
/// # use steadfast::saga::{Plan, Saga, SagaConfig, SagaOutcome, Step, StepOutcome};
/// # async fn book(_: &str, _: &str) -> std::io::Result<()> { Ok(()) }
/// # async fn cancel(_: &str) -> std::io::Result<()> { Ok(()) }
/// # async fn charge(_: &str) -> Result<(), &'static str> { Err("no money") }
/// fn outcome(answer: std::io::Result<()>) -> StepOutcome<String> {
///     answer.map_or_else(StepOutcome::unknown, |()| StepOutcome::completed())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let plan = Plan::<String>::new()
///     .step_fn(
///         "seat",
///         |step| async move { outcome(book(step.key(), &step).await) },
///         |step| async move { outcome(cancel(step.action_key()).await) },
///     )
///     .pivot("charge", |step: Step<String>| async move {
///         charge(step.key()).await.map_or_else(StepOutcome::failed, |()| StepOutcome::completed())
///     });
/// # let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
/// # let store = std::sync::Arc::new(InMemoryStore::new());
/// # let trips = Saga::new("trip", store, codec, plan, SagaConfig::default())?;
/// # let ended = trips.run("trip-42", "LHR".to_owned()).await?;
/// # assert!(matches!(ended, SagaOutcome::Compensated { reason, .. } if reason == "no money"));
/// # Ok(())
/// # }
/// ```
pub struct Plan<T, P = BeforePivot> {
    pub(super) steps: Vec<PlannedStep>,
    pub(super) code: BTreeMap<String, Arc<dyn StepCode<T>>>,
    /// Names of steps that only sagas of earlier plans have.
    retired: Vec<String>,
    duplicate: Option<String>,
    /// Number of the next group.
    group: u8,
    has_parallel: bool,
    phase: PhantomData<P>,
}

/// Marks a [`Plan`] without a pivot: each further step needs a compensation.
#[derive(Debug)]
#[non_exhaustive]
pub struct BeforePivot;

/// Marks a [`Plan`] with a pivot: further steps need no compensation.
#[derive(Debug)]
#[non_exhaustive]
pub struct AfterPivot;

impl<T: Send + Sync + 'static> Plan<T> {
    /// Creates a plan without steps.
    #[must_use]
    pub fn new() -> Self {
        Self {
            steps: Vec::new(),
            code: BTreeMap::new(),
            retired: Vec::new(),
            duplicate: None,
            group: 0,
            has_parallel: false,
            phase: PhantomData,
        }
    }

    /// Adds a step with its compensation.
    #[must_use]
    pub fn step(self, name: impl Into<String>, step: impl Compensation<T>) -> Self {
        self.add(name.into(), Kind { compensates: true, ..Kind::default() }, Arc::new(WithCompensation(step)))
    }

    /// Adds a step of two closures: its action, and the compensation.
    ///
    /// Each gets the [`Step`] by value, and returns a future that borrows nothing: clone a client
    /// before the `async move` block. A closure alone is an [`Action`], for steps that need no
    /// compensation.
    #[must_use]
    pub fn step_fn<A, U, AF, UF>(self, name: impl Into<String>, act: A, undo: U) -> Self
    where
        A: Fn(Step<T>) -> AF + Send + Sync + 'static,
        U: Fn(Step<T>) -> UF + Send + Sync + 'static,
        AF: Future<Output = StepOutcome<T>> + Send + 'static,
        UF: Future<Output = StepOutcome<T>> + Send + 'static,
    {
        self.add(name.into(), Kind { compensates: true, ..Kind::default() }, Arc::new(Closures { act, undo }))
    }

    /// Adds a step that leaves nothing to undo, such as a query.
    #[must_use]
    pub fn step_without_compensation(self, name: impl Into<String>, step: impl Action<T>) -> Self {
        self.add(name.into(), Kind::default(), Arc::new(ActionOnly(step)))
    }

    /// Adds the pivot: the step whose completion decides that the saga goes forward. From then on
    /// it is not compensated: a step that fails for good makes it stuck.
    #[must_use]
    pub fn pivot(self, name: impl Into<String>, step: impl Action<T>) -> Plan<T, AfterPivot> {
        let Plan { steps, code, retired, duplicate, group, has_parallel, .. } =
            self.add(name.into(), Kind { is_pivot: true, ..Kind::default() }, Arc::new(ActionOnly(step)));
        Plan { steps, code, retired, duplicate, group, has_parallel, phase: PhantomData }
    }

    /// Compensates the step that was added last before all others, whatever the order of the steps
    /// is.
    #[must_use]
    pub fn compensate_first(mut self) -> Self {
        if let Some(last) = self.steps.last_mut() {
            last.kind.first = true;
        }
        self
    }

    /// Keeps a step with its compensation for sagas that began with an earlier plan. New sagas do
    /// not have it.
    #[must_use]
    pub fn retired(mut self, name: impl Into<String>, step: impl Compensation<T>) -> Self {
        self.retire(name.into(), Arc::new(WithCompensation(step)));
        self
    }
}

impl<T: Send + Sync + 'static> Plan<T, AfterPivot> {
    /// Adds a step.
    #[must_use]
    pub fn step(self, name: impl Into<String>, step: impl Action<T>) -> Self {
        self.add(name.into(), Kind::default(), Arc::new(ActionOnly(step)))
    }

    /// Keeps a step with its compensation for sagas that began with an earlier plan. New sagas do
    /// not have it.
    #[must_use]
    pub fn retired(mut self, name: impl Into<String>, step: impl Compensation<T>) -> Self {
        self.retire(name.into(), Arc::new(WithCompensation(step)));
        self
    }
}

impl<T: Send + Sync + 'static, P> Plan<T, P> {
    /// Adds steps that run together. The saga goes on when all have completed; they are compensated
    /// together, too.
    #[must_use]
    pub fn parallel(mut self, steps: impl FnOnce(Self) -> Self) -> Self {
        // A group inside a group is part of the outer one.
        let is_outer = !std::mem::replace(&mut self.has_parallel, true);
        let before = self.steps.len();
        let mut plan = steps(self);
        if is_outer {
            plan.has_parallel = false;
            if plan.steps.len() > before {
                plan.group = plan.group.saturating_add(1);
            }
        }
        plan
    }

    /// Keeps a step without compensation for sagas that began with an earlier plan. New sagas do
    /// not have it.
    #[must_use]
    pub fn retired_without_compensation(mut self, name: impl Into<String>, step: impl Action<T>) -> Self {
        self.retire(name.into(), Arc::new(ActionOnly(step)));
        self
    }

    fn add(mut self, name: String, kind: Kind, code: Arc<dyn StepCode<T>>) -> Self {
        self.steps.push(PlannedStep { name: name.as_str().into(), kind, group: self.group });
        self.insert(name, code);
        if !self.has_parallel {
            self.group = self.group.saturating_add(1);
        }
        self
    }

    fn retire(&mut self, name: String, code: Arc<dyn StepCode<T>>) {
        self.retired.push(name.clone());
        self.insert(name, code);
    }

    fn insert(&mut self, name: String, code: Arc<dyn StepCode<T>>) {
        if self.code.insert(name.clone(), code).is_some() {
            self.duplicate = Some(name);
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if let Some(name) = &self.duplicate {
            return Err(ConfigError::new("plan", format!("must not have two steps of the name `{name}`")));
        }
        require(!self.steps.is_empty(), "plan", "must have a step")?;
        require(self.code.len() <= MAX_STEPS, "plan", "must have at most 255 steps, retired ones included")?;
        self.code.keys().try_for_each(|name| check_name("plan", "the name of a step", name))
    }

    /// Replaces the code of each step, for tests.
    #[cfg(feature = "testing")]
    pub(crate) fn map_code(mut self, map: impl Fn(Arc<dyn StepCode<T>>) -> Arc<dyn StepCode<T>>) -> Self {
        for code in self.code.values_mut() {
            *code = map(code.clone());
        }
        self
    }

    pub(super) fn forget_phase(self) -> Plan<T, AfterPivot> {
        let Self { steps, code, retired, duplicate, group, has_parallel, .. } = self;
        Plan { steps, code, retired, duplicate, group, has_parallel, phase: PhantomData }
    }
}

/// Maximum number of steps: a saga's record contains them all.
const MAX_STEPS: usize = 255;

/// Maximum length of the name of a saga or step, in bytes.
pub(super) const MAX_NAME: usize = 64;

/// Rejects a name that cannot be part of a key or of a line of the record.
pub(super) fn check_name(field: &'static str, what: &str, name: &str) -> Result<(), ConfigError> {
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && c != '/' && c != ':';
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_plain) {
        let rule = format!("{what} must have 1 to {MAX_NAME} bytes, and no space, `/` or `:`, is {name:?}");
        return Err(ConfigError::new(field, rule));
    }
    Ok(())
}

impl<T: Send + Sync + 'static> Default for Plan<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, P> fmt::Debug for Plan<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<_> = self.steps.iter().map(|step| &step.name).collect();
        f.debug_struct("Plan").field("steps", &steps).field("retired", &self.retired).finish_non_exhaustive()
    }
}

/// The code of one step, whatever its type.
pub(crate) trait StepCode<T>: Send + Sync {
    /// Makes one attempt of the action, or of the compensation if the attempt is one.
    fn run<'a>(&'a self, step: &'a Step<T>) -> BoxFuture<'a, StepOutcome<T>>;

    /// Returns `true` if there is a compensation.
    fn compensates(&self) -> bool;
}

struct ActionOnly<A>(A);
struct WithCompensation<A>(A);

/// A step of two closures.
struct Closures<A, U> {
    act: A,
    undo: U,
}

impl<T: Send + Sync + 'static, A: Action<T>> StepCode<T> for ActionOnly<A> {
    fn run<'a>(&'a self, step: &'a Step<T>) -> BoxFuture<'a, StepOutcome<T>> {
        match step.attempt.direction {
            Direction::Do => Box::pin(self.0.execute(step)),
            Direction::Undo => Box::pin(async { StepOutcome::failed("the step has no compensation") }),
        }
    }

    fn compensates(&self) -> bool {
        false
    }
}

impl<T: Send + Sync + 'static, A: Compensation<T>> StepCode<T> for WithCompensation<A> {
    fn run<'a>(&'a self, step: &'a Step<T>) -> BoxFuture<'a, StepOutcome<T>> {
        match step.attempt.direction {
            Direction::Do => Box::pin(self.0.execute(step)),
            Direction::Undo => Box::pin(self.0.compensate(step)),
        }
    }

    fn compensates(&self) -> bool {
        true
    }
}

impl<T: Send + Sync + 'static, A: Action<T>, U: Action<T>> StepCode<T> for Closures<A, U> {
    fn run<'a>(&'a self, step: &'a Step<T>) -> BoxFuture<'a, StepOutcome<T>> {
        match step.attempt.direction {
            Direction::Do => Box::pin(self.act.execute(step)),
            Direction::Undo => Box::pin(self.undo.execute(step)),
        }
    }

    fn compensates(&self) -> bool {
        true
    }
}

/// The code of all steps, without the type of the state: the executor is compiled once.
pub(super) trait Code: Send + Sync {
    /// Makes one attempt of a step with this state.
    fn run(self: Arc<Self>, attempt: Attempt, state: Bytes) -> BoxFuture<'static, Attempted>;

    /// Returns the reason for which this process cannot run a saga with these steps and this state.
    fn refuses(&self, steps: &[(&str, bool)], state: &Bytes) -> Option<String>;
}

/// The outcome of an attempt, without the type of the state.
pub(super) struct Attempted {
    pub(super) kind: StepOutcomeKind,
    pub(super) reason: String,
    pub(super) after: Option<std::time::Duration>,
    /// Computes the new state from the current one.
    pub(super) change: Option<ChangeBytes>,
    pub(super) writes: Vec<Write>,
}

type ChangeBytes = Box<dyn FnOnce(&Bytes) -> Result<Bytes, String> + Send>;

impl Attempted {
    pub(super) fn unknown(reason: impl fmt::Display) -> Self {
        let (kind, reason) = (StepOutcomeKind::Unknown, reason.to_string());
        Self { kind, reason, after: None, change: None, writes: Vec::new() }
    }
}

/// The code of the steps, and the codec of their state.
pub(super) struct TypedCode<T> {
    pub(super) steps: BTreeMap<String, Arc<dyn StepCode<T>>>,
    pub(super) codec: Codec<T>,
}

impl<T: Send + Sync + 'static> Code for TypedCode<T> {
    fn run(self: Arc<Self>, attempt: Attempt, state: Bytes) -> BoxFuture<'static, Attempted> {
        Box::pin(async move {
            let Some(code) = self.steps.get(&*attempt.name) else {
                return Attempted::unknown("this process does not know the step");
            };
            let value = match self.codec.decode(&state) {
                Ok(value) => Arc::new(value),
                Err(error) => return Attempted::unknown(error),
            };
            let step = Step { state: value, attempt, writes: Arc::default() };
            let StepOutcome { kind, reason, after, change } = code.run(&step).await;
            let Step { state: value, writes, .. } = step;
            let codec = self.codec.clone();
            let change = change.map(|change| {
                let change = move |current: &Bytes| {
                    let value = if *current == state { Arc::into_inner(value) } else { None };
                    apply(&codec, current, value, change)
                };
                Box::new(change) as ChangeBytes
            });
            Attempted { kind, reason, after, change, writes: std::mem::take(&mut *writes.lock()) }
        })
    }

    fn refuses(&self, steps: &[(&str, bool)], state: &Bytes) -> Option<String> {
        for (name, compensates) in steps {
            match self.steps.get(*name) {
                None => return Some(format!("this process does not know the step `{name}`")),
                Some(code) if *compensates && !code.compensates() => {
                    return Some(format!("the step `{name}` has no compensation in this process"));
                }
                Some(_) => {}
            }
        }
        self.codec.decode(state).err().map(|error| format!("the state of the saga: {error}"))
    }
}

/// Applies a change to a state, of which `value` is the decoded form if it is known.
fn apply<T>(
    codec: &Codec<T>,
    current: &Bytes,
    value: Option<T>,
    change: Box<dyn FnOnce(&mut T) + Send>,
) -> Result<Bytes, String> {
    let changed = catch_unwind(AssertUnwindSafe(|| {
        let mut value = match value {
            Some(value) => value,
            None => codec.decode(current)?,
        };
        change(&mut value);
        codec.encode(&value)
    }));
    match changed {
        Ok(Ok(bytes)) => Ok(bytes.into()),
        Ok(Err(error @ (CodecError::Encode(_) | CodecError::Decode(_)))) => {
            Err(format!("the state of the saga: {error}"))
        }
        Err(panic) => Err(format!("the change of the state panicked: {}", panic_text(&*panic))),
    }
}
