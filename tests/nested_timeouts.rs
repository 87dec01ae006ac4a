//! The time to compile a call grows linearly with its policies. With each time-out it was a multiple before: this file, with
//! 24 of them, would not have been compiled within hours.
#![recursion_limit = "256"]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]
use std::time::Duration;

use steadfast::{Pipeline, timeout::Timeout};

macro_rules! pipeline {
    ($($layer:tt)*) => {
        Pipeline::new()$(.then(Timeout::new(Duration::from_secs($layer))))*
    };
}

#[tokio::test]
async fn a_call_through_many_time_outs_is_compiled_in_linear_time() {
    let calls = pipeline!(24 23 22 21 20 19 18 17 16 15 14 13 12 11 10 9 8 7 6 5 4 3 2 1);
    let call = async move { calls.call(|| async { Ok::<_, std::io::Error>(7) }).await.unwrap() };
    // A spawned call must be `Send`, which the compiler proves for the whole type.
    assert_eq!(tokio::spawn(call).await.unwrap(), 7);
}
