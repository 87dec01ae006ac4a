//! Fallback: around a call that succeeds at once, and in the place of one that fails at once.
//!
//! The substitute is a constant. Ours comes with the call; theirs stands in the layer.

use super::{Failed, Instance, Subject, Work, beside, failing, instance, leak, operation, ours, poll_loop, rival};
use std::future::{Future, ready};
use std::hint::black_box;
use steadfast::Pipeline;
use steadfast::fallback::{Fallback, FallbackConfig};
use tower::{Layer, Service, ServiceExt};
use tower_resilience::fallback::FallbackLayer;

pub const UNUSED: Work = Work {
    name: "fallback_unused",
    about: "a call that succeeds at once, with a fallback around it",
    subjects: || subjects(operation),
    light: true,
};

pub const USED: Work = Work {
    name: "fallback_used",
    about: "a call that fails at once, and a constant in its place",
    subjects: || subjects(failing),
    light: true,
};

fn subjects<F>(work: impl Fn() -> F + Copy + Send + Sync + 'static) -> Vec<Subject>
where
    F: Future<Output = Result<u32, Failed>> + Send + 'static,
{
    vec![
        ours("steadfast", move || {
            let fallback = Fallback::new(FallbackConfig::default()).expect("a valid configuration");
            let pipeline = leak(Pipeline::new().then(fallback));
            instance(move |_| {
                poll_loop(async move || black_box(pipeline).call_or(work, |_| ready(Ok(7))).await.is_ok())
            })
        }),
        rival("tower-resilience 0.13", move || layered(work)),
        beside("(floor) by hand", move || {
            instance(move |_| poll_loop(async move || black_box(&work)().await.unwrap_or(7)))
        }),
    ]
}

fn layered<F>(work: impl Fn() -> F + Copy + Send + Sync + 'static) -> Instance
where
    F: Future<Output = Result<u32, Failed>> + Send + 'static,
{
    let service = FallbackLayer::<(), u32, Failed>::value(7).layer(tower::service_fn(move |(): ()| work()));
    instance(move |_| {
        let mut service = service.clone();
        poll_loop(async move || black_box(&mut service).ready().await?.call(()).await)
    })
}
