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
//! suite then waits for fractions of a second, and each suite takes seconds.
//!
//! # Hooks
//!
//! A backend that keeps its state elsewhere is held to more if its fixture can disturb it:
//!
//! | hook | what the cases hold |
//! |---|---|
//! | [`with_restart`](Fixture::with_restart) | what was accepted is there after a restart, as it was |
//! | [`with_cut`](Fixture::with_cut) | a lost connection is a gap, and loses no message |
//! | [`with_wall_clock`](Fixture::with_wall_clock) | no term, life or delay follows the client's wall clock; manual time has this hook |
//!
//! Without its hook a case passes and holds nothing. One exception has a purpose: a backend that
//! states [`Durable`](crate::port::Capability::Durable) without `with_restart` fails the case
//! `what_was_accepted_outlives_a_restart`.
//!
//! ```
//! use std::{path::Path, sync::Arc};
//! use steadfast::{
//!     backend::sqlite::{Sqlite, SqliteConfig},
//!     store::Store,
//!     testing::conformance::Fixture,
//! };
//!
//! fn open(path: &Path) -> Arc<dyn Store> {
//!     Arc::new(Sqlite::open(SqliteConfig::at(path)).unwrap().store())
//! }
//!
//! mod my_durable_store {
//!     # use super::*;
//!     steadfast::store_conformance!(async || {
//!         let folder = tempfile::tempdir().unwrap();
//!         let path = folder.path().join("state.db");
//!         let handles = move || Fixture::new(open(&path)).with_second_handle(open(&path));
//!         handles().with_restart(async move || handles()).keeping(folder)
//!     });
//! }
//! ```
//!
//! # Time limits
//!
//! Each case ends. A wait in vain fails with the name of what it waited for. A case that blocks its
//! thread is given up after two minutes, by name.
//!
//! # Cases in a program
//!
//! A table gives the same cases to a program: [`store::cases`], [`queue::cases`], [`lease::cases`],
//! [`notify::cases`] and [`topic::cases`]; [`Case::run`] runs one, with a limit of its own.
#![allow(clippy::expect_used, reason = "a suite is made of tests")]
mod case;
mod fixture;
pub mod lease;
pub mod notify;
pub mod queue;
pub mod safety;
mod safety_appends;
pub mod store;
#[cfg(feature = "stream")]
pub mod topic;

pub use case::{Case, CaseError};
pub use fixture::Fixture;
#[doc(hidden)]
pub use fixture::run;

use std::time::Duration;

use crate::{entropy::Entropy, time::Timestamp};

/// A wall time to which cases set the wall clock, and a long time beside that of a case.
const NOON: Timestamp = Timestamp::from_millis(2_000_000_000_000);
const HOUR: Duration = Duration::from_secs(3600);

fn later(wall: Timestamp, by: Duration) -> Timestamp {
    Timestamp::from_millis(wall.as_millis() + by.as_millis() as u64)
}

/// Returns a text of this many bytes without digits. No engine can compress it much: those that
/// limit the size of an index entry do so after compression.
fn noise(bytes: usize) -> String {
    let entropy = Entropy::from_seed(1);
    (0..bytes).map(|_| char::from(b':' + entropy.up_to(u64::from(b'~' - b':')) as u8)).collect()
}

/// Defines one named test for each case of a suite.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($suite:ident, $make:expr; $($case:ident),+ $(,)?) => {
        $(
            #[test]
            fn $case() {
                let case = $crate::testing::conformance::Case::new(stringify!($case), |fixture| {
                    Box::pin($crate::testing::conformance::$suite::$case(fixture))
                });
                case.test($make);
            }
        )+
    };
}
