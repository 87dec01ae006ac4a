//~ method `fork` is private
//~ method `fall_back` is private
//~ method `call_state` is private
//~ method `claim_fallback` is private
use steadfast::{Outcome, call::{Attempt, CallContext, Policy}};

struct Mine;

impl Policy for Mine {
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        inner.fork();
        inner.fall_back(cx).await;
        inner.call_state();
        inner.claim_fallback();
        inner.attempt(cx).await
    }
}

fn main() {}
