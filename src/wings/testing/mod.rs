//! Tools for tests of services that use this crate, and of the crate itself: a manual clock, a
//! service that follows a script, and a harness that drops a future at every await point.
//!
//! ```
//! use steadfast::{
//!     Pipeline,
//!     call::idempotent,
//!     retry::{Retry, RetryConfig},
//!     testing::ScriptedService,
//!     time::Clock,
//! };
//!
//! let (clock, time) = Clock::manual();
//! let service = ScriptedService::new("503 x2, ok", &clock).unwrap();
//! let pipeline = Pipeline::new()
//!     .then(Retry::builder(RetryConfig::default()).clock(&clock).build().unwrap())
//!     .classify(ScriptedService::classify);
//!
//! assert_eq!(time.block_on(pipeline.call(idempotent(|| service.call()))).unwrap(), 200);
//! assert_eq!(service.calls(), 3);
//! ```
//!
//! # Guarantees
//!
//! 1. A script is followed step by step, and its last step repeats forever. An invalid script is
//!    rejected with the step and the rule. The service counts calls that run, end and are dropped.
//! 2. The harness drops a future once at each await point, then lets one run to its end.
pub mod conformance;
mod drops;
pub mod faults;
mod scripted;

pub use crate::time::ManualClock;
pub use drops::drop_at_every_await;
pub use scripted::{ScriptError, ScriptedError, ScriptedService};
