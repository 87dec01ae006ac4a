//! Test suites for the contracts of the ports, for your backends and this crate's: one named test
//! for each case.
//!
//! ```
//! mod my_store {
//!     # use std::sync::Arc;
//!     use steadfast::{store::{InMemoryStore, Store}, testing::conformance::Fixture, time::Clock};
//!
//!     steadfast::store_conformance!(async || {
//!         let (clock, time) = Clock::manual();
//!         let store: Arc<dyn Store> = Arc::new(InMemoryStore::builder().clock(&clock).build());
//!         Fixture::new(store).on_manual_time(&time)
//!     });
//! }
//! ```
//!
//! The expression runs once for each case, and returns a [`Fixture`] over an empty backend. If the
//! backend's clock cannot be set (a server), omit [`on_manual_time`](Fixture::on_manual_time): the
//! suite then waits for fractions of a second.
#![allow(clippy::expect_used, reason = "a suite is made of tests")]
mod fixture;
#[doc(hidden)]
pub mod lease;
#[doc(hidden)]
pub mod notify;
#[doc(hidden)]
pub mod queue;
pub mod safety;
#[doc(hidden)]
pub mod store;

pub use fixture::Fixture;
#[doc(hidden)]
pub use fixture::run;

/// Defines one named test for each case of a suite.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($suite:ident, $make:expr; $($case:ident),+ $(,)?) => {
        $(
            #[test]
            fn $case() {
                $crate::testing::conformance::run(async {
                    let fixture = ($make)().await;
                    $crate::testing::conformance::$suite::$case(&fixture).await;
                });
            }
        )+
    };
}
