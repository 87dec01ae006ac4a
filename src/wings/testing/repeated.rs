//! Steps of a saga that run several times under one key.
use std::{fmt, sync::Arc};

use crate::{
    port::BoxFuture,
    saga::{Plan, Step, StepCode, StepOutcome, StepOutcomeKind},
};

/// Runs each attempt of each action and compensation of a plan `times` times, under the same key,
/// and checks that all runs have the same result.
///
/// A step that is not idempotent is found in this way: a seat that is booked twice, or a second
/// cancellation that is an error. If the results differ, the step is
/// [abandoned](StepOutcome::abandoned), and the saga ends with a reason that names it.
///
/// ```
/// use std::{collections::BTreeSet, sync::{Arc, Mutex}};
/// use steadfast::{
///     codec::Codec,
///     saga::{Action, Plan, Saga, SagaOutcome, Step, StepOutcome},
///     store::InMemoryStore,
///     testing::repeated,
///     time::block_on,
/// };
///
/// /// Takes the next number. With `keys` it remembers the keys that it has seen.
/// struct Next { taken: Mutex<(BTreeSet<String>, u32)>, keys: bool }
///
/// impl Action<u32> for Next {
///     async fn execute(&self, step: &Step<u32>) -> StepOutcome<u32> {
///         let (seen, number) = &mut *self.taken.lock().unwrap();
///         if seen.insert(step.key().to_owned()) || !self.keys {
///             *number += 1;
///         }
///         let number = *number;
///         StepOutcome::changed(move |state| *state = number)
///     }
/// }
///
/// let run = |keys| {
///     let plan = Plan::new().pivot("next", Next { taken: Mutex::default(), keys });
///     let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
///     let store = Arc::new(InMemoryStore::new());
///     let saga = Saga::new("order", store, codec, repeated(plan, 2), Default::default()).unwrap();
///     block_on(saga.run("42", 0)).unwrap()
/// };
/// assert_eq!(run(true), SagaOutcome::Completed(1));
/// let SagaOutcome::Stuck { step, reason } = run(false) else { panic!("it was not found") };
/// assert_eq!(step, "next");
/// assert!(reason.contains("run 1 of 2 changed the state to 1, run 2 to 2"), "{reason}");
/// ```
pub fn repeated<T, P>(plan: Plan<T, P>, times: u32) -> Plan<T, P>
where
    T: Clone + PartialEq + fmt::Debug + Send + Sync + 'static,
{
    plan.map_code(|code| Arc::new(Repeated { code, times }))
}

struct Repeated<T> {
    code: Arc<dyn StepCode<T>>,
    times: u32,
}

impl<T: Clone + PartialEq + fmt::Debug + Send + Sync + 'static> StepCode<T> for Repeated<T> {
    fn run<'a>(&'a self, step: &'a Step<T>) -> BoxFuture<'a, StepOutcome<T>> {
        Box::pin(async move {
            let mut outcomes = vec![self.code.run(step).await];
            for run in 2..=self.times {
                // Each run adds its writes again.
                step.forget_writes();
                let outcome = self.code.run(step).await;
                if outcome.kind() != outcomes[0].kind() {
                    let (first, last) = (outcomes[0].kind().as_str(), outcome.kind().as_str());
                    let (name, errors) = (step.name(), [outcomes[0].reason(), outcome.reason()].concat());
                    let reason = format!("not idempotent: `{name}`: run 1 is {first}, run {run} is {last}: {errors}");
                    return StepOutcome::abandoned(reason);
                }
                outcomes.push(outcome);
            }
            if outcomes[0].kind() != StepOutcomeKind::Completed {
                return outcomes.swap_remove(0);
            }
            let (name, times) = (step.name().to_owned(), self.times);
            StepOutcome::changed(move |state: &mut T| {
                let before = state.clone();
                for (run, outcome) in (1..).zip(outcomes) {
                    let mut after = before.clone();
                    outcome.apply(&mut after);
                    assert!(
                        run == 1 || after == *state,
                        "not idempotent: `{name}`: run 1 of {times} changed the state to {state:?}, run {run} to {after:?}"
                    );
                    *state = after;
                }
            })
        })
    }

    fn compensates(&self) -> bool {
        self.code.compensates()
    }
}
