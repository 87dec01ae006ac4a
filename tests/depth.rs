//! The type of a call is shallow enough for users of the crate.
//! The compiler limits how deep types nest: 128 levels in a crate without a limit of its own. Each
//! `async fn` around a call adds four: sixteen functions are 64 levels of the user's own. This file has no limit of its own, as most crates.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]
use steadfast::{
    Pipeline,
    call::Policy,
    standard::{Standard, StandardConfig},
};

/// Defines functions that call each other in this order.
macro_rules! handlers {
    ($outer:ident $inner:ident $($rest:ident)*) => {
        async fn $outer(calls: &Pipeline<impl Policy>, id: &str) -> usize {
            $inner(calls, id).await
        }
        handlers!($inner $($rest)*);
    };
    ($innermost:ident) => {};
}

handlers! {
    f01 f02 f03 f04 f05 f06 f07 f08 f09 f10 f11 f12 f13 f14 f15 f16
}

async fn f16(calls: &Pipeline<impl Policy>, id: &str) -> usize {
    calls.call(|| async { Ok::<_, std::io::Error>(id.len()) }).await.unwrap()
}

// Guarantee: standard 5.
/// Regression: the stack took 142 levels, so that no crate could call it without a
/// `recursion_limit` of its own, and then 116, which left room for six such functions.
#[tokio::test]
async fn the_standard_stack_can_be_called_through_sixteen_async_functions() {
    let calls = Pipeline::new().then(Standard::new(StandardConfig::default()).unwrap());
    assert_eq!(tokio::spawn(async move { f01(&calls, "an id").await }).await.unwrap(), 5);
}
