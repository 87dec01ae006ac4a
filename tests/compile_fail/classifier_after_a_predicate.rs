//~ the classifier of this pipeline is already set
//~ `classify` comes once, before `retry_if`, `fail_when`, `error_for_value` and `on_retry`
use steadfast::{Pipeline, Verdict};

fn main() {
    let calls = Pipeline::new().retry_if(|error: &u8| *error == 1);
    let _ = calls.classify(|_: &Result<(), u8>| Verdict::success());
}
