//~ Timeout` is not an attempt
//~ a policy passes on the attempt that it receives, or `&mut` of it
use steadfast::{Outcome, call::{Attempt, CallContext, Policy}, timeout::Timeout};

struct Mine(Timeout);

impl Policy for Mine {
    async fn around<A: Attempt>(&self, _: A, cx: CallContext<'_>) -> Outcome {
        self.0.around(&self.0, cx).await
    }
}

fn main() {}
