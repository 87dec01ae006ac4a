//! The suites that hold a backend to its port's contract, yours as well as ours: one named test for each case.
//!
//! ```
//! mod my_store {
//!     # use std::sync::Arc;
//!     use steadfast::{store::{InMemoryStore, Store}, testing::conformance::Fixture, time::Clock};
//!
//!     steadfast::store_conformance!(async || {
//!         let (clock, hand) = Clock::manual();
//!         let store: Arc<dyn Store> = Arc::new(InMemoryStore::new().with_clock(&clock));
//!         Fixture::new(store).on_manual_time(&hand)
//!     });
//! }
//! ```
//!
//! The expression is run anew for each case, and gives a [`Fixture`] over an empty backend. Where the backend's own clock cannot be set
//! by hand (a server), leave [`on_manual_time`](Fixture::on_manual_time) out: the suite then waits, for fractions of a second.
#![allow(clippy::expect_used, reason = "a suite is made of tests")]
mod fixture;
pub mod lease;
pub mod notify;
pub mod queue;
pub mod safety;
pub mod store;

pub use fixture::{Fixture, run};

/// Makes one named test of each case of a suite.
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
