//~ is not a policy
//~ a constructor that checks its settings returns a `Result`: add `?` to use the policy in it
use steadfast::{Pipeline, retry::{Retry, RetryConfig}};

fn main() {
    let _ = Pipeline::new().then(Retry::new(RetryConfig::default()));
}
