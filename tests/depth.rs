//! The type of a call is shallow enough for users of the crate.
//! The compiler limits how deep types nest: 128 levels in a crate without a limit of its own. Each
//! `async fn` of the user adds some levels. This file sets a lower limit, and calls through three
//! such functions.
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

// Guarantee: standard 5.
/// Regression: 142 levels, so no crate could call the standard stack without a `recursion_limit` of
/// its own.
#[tokio::test]
async fn the_type_of_the_standard_stack_leaves_room_for_its_callers() {
    let calls = Pipeline::new().then(Standard::new(StandardConfig::default()).unwrap());
    assert_eq!(tokio::spawn(async move { handler(&calls).await }).await.unwrap(), 5);
}
