//~ RetryConfig` is not a policy
//~ settings are not a policy: pass them to the policy's constructor
fn main() {
    let _ = steadfast::Pipeline::new().then(steadfast::retry::RetryConfig::default());
}
