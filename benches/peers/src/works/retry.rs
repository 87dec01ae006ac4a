//! Retry: a call that succeeds at its first attempt.
//!
//! Everyone: 3 attempts, exponential from 100 ms with jitter where it has them. tower's policy is the one of its
//! documentation, which counts attempts and never waits: the least that a retry can be.

use super::{Failed, Subject, Work, beside, instance, leak, operation, ours, poll_loop, rival};
use backon::Retryable;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::time::Duration;
use steadfast::retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig};
use tokio_retry2::strategy::{ExponentialBackoff, jitter};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_resilience::retry::{RetryBudgetBuilder, RetryLayer};

pub const RETRY: Work =
    Work { name: "retry", about: "a call that succeeds at its first attempt, through a retry", subjects, light: true };

/// tower's own example of a policy.
#[derive(Clone)]
pub struct Attempts(pub usize);

impl<Req: Clone, Res, E> tower::retry::Policy<Req, Res, E> for Attempts {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Req, result: &mut Result<Res, E>) -> Option<Self::Future> {
        if result.is_ok() || self.0 == 0 {
            return None;
        }
        self.0 -= 1;
        Some(ready(()))
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        Some(request.clone())
    }
}

/// backon's builder with the settings that all stacks share: two retries, 100 ms, jitter.
pub fn backon_exponential() -> backon::ExponentialBuilder {
    backon::ExponentialBuilder::default().with_min_delay(Duration::from_millis(100)).with_max_times(2).with_jitter()
}

fn subjects() -> Vec<Subject> {
    vec![
        ours("steadfast", || {
            let retry = leak(Retry::new(RetryConfig::default()).expect("a valid configuration"));
            instance(move |_| poll_loop(async move || black_box(retry).call(|| operation()).await))
        }),
        beside("steadfast, with a budget", || {
            let budget = RetryBudget::new(RetryBudgetConfig::default()).expect("a valid configuration");
            let retry = Retry::builder(RetryConfig::default()).budget(&budget).build().expect("a valid configuration");
            let retry = leak(retry);
            instance(move |_| poll_loop(async move || black_box(retry).call(|| operation()).await))
        }),
        rival("tower 0.5, attempts only", || {
            let service = ServiceBuilder::new().retry(Attempts(2)).service_fn(|(): ()| operation());
            instance(move |_| {
                let mut service = service.clone();
                poll_loop(async move || black_box(&mut service).ready().await?.call(()).await)
            })
        }),
        rival("tokio-retry2 0.9", || {
            instance(|_| {
                poll_loop(async move || {
                    let strategy = ExponentialBackoff::from_millis(black_box(100)).map(jitter).take(2);
                    tokio_retry2::Retry::spawn(strategy, async || {
                        operation().await.map_err(tokio_retry2::RetryError::transient)
                    })
                    .await
                })
            })
        }),
        rival("backon 1.6", || {
            let builder = backon_exponential();
            instance(move |_| poll_loop(async move || (|| operation()).retry(*black_box(&builder)).await))
        }),
        rival("tower-resilience 0.13", || tower_resilience(false)),
        rival("tower-resilience 0.13, with a budget", || tower_resilience(true)),
        beside("(floor) await the operation", || instance(|_| poll_loop(operation))),
    ]
}

fn tower_resilience(budget: bool) -> super::Instance {
    let mut builder =
        RetryLayer::<(), u32, Failed>::builder().max_attempts(3).exponential_backoff(Duration::from_millis(100));
    if budget {
        let budget = RetryBudgetBuilder::new().token_bucket().tokens_per_second(10.0).max_tokens(100);
        builder = builder.budget(budget.build().expect("a valid budget"));
    }
    let service = builder.build().layer(tower::service_fn(|(): ()| operation()));
    instance(move |_| {
        let mut service = service.clone();
        poll_loop(async move || black_box(&mut service).ready().await?.call(()).await)
    })
}
