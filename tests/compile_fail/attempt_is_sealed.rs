//~ `Mine` cannot implement `Attempt`: only steadfast does
//~ a policy of your own implements `Policy`, and passes on the attempt that it receives
use steadfast::{Outcome, call::{Attempt, CallContext}};

struct Mine;

impl Attempt for Mine {
    async fn attempt(&mut self, _: CallContext<'_>) -> Outcome {
        Outcome::Rejected
    }
}

fn main() {}
