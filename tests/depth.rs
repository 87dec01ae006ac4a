//! The type of a call is shallow enough for its users. The compiler bounds how deep types nest, 128 levels in a crate that does not
//! say otherwise, and each `async fn` of the user's own adds some: this file does with fewer, and calls through three of them.
#![recursion_limit = "116"]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]
use steadfast::{
    Pipeline,
    call::Policy,
    standard::{Standard, StandardConfig},
};

async fn repository(calls: &Pipeline<impl Policy>, id: &str) -> usize {
    calls.call(|| async { Ok::<_, std::io::Error>(id.len()) }).await.unwrap()
}

async fn service(calls: &Pipeline<impl Policy>) -> usize {
    repository(calls, "an id").await
}

async fn handler(calls: &Pipeline<impl Policy>) -> usize {
    service(calls).await
}

// Guarantee: pipeline 2.
/// It took 142 levels: no crate could call the standard stack without a `recursion_limit` of its own.
#[tokio::test]
async fn the_standard_stack_leaves_room_for_its_callers() {
    let calls = Pipeline::new().then(Standard::new(StandardConfig::default()).unwrap());
    assert_eq!(tokio::spawn(async move { handler(&calls).await }).await.unwrap(), 5);
}
