//~ `Charge: Compensation<
use steadfast::saga::{Action, Plan, Step, StepOutcome};

struct Charge;

impl Action<u32> for Charge {
    async fn execute(&self, _: &Step<u32>) -> StepOutcome<u32> {
        StepOutcome::completed()
    }
}

fn main() {
    // Before the pivot the saga may go back.
    let _: Plan<u32> = Plan::new().step("charge", Charge);
}
