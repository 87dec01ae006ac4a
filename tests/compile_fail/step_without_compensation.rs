//! Before its pivot a saga may go back: a step has a compensation, or says that it needs none.
use steadfast::saga::{Action, Plan, Step, StepOutcome};

struct Charge;

impl Action<u32> for Charge {
    async fn execute(&self, _: &Step<u32>) -> StepOutcome<u32> {
        StepOutcome::completed()
    }
}

fn main() {
    let _ = Plan::new().step("charge", Charge);
    //~ the trait bound `Charge: Compensation<_>` is not satisfied
}
