//! Tools for tests of services that use this crate, and of the crate itself: a manual clock, a
//! service and ports that follow a script, and harnesses that drop a future at every await point
//! and end a process at every request to its backends.
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
//! 3. [`crash_at_every_write`] ends a process once before each request, and once after each write.
//!    From then on no request of the process is applied, and its scenario is dropped.
//! 4. [`fail_at_every_write`] fails each request once before it is applied, and each write once
//!    after it.
//! 5. A failure of either names the request, the side, and the variable that runs this point alone.
//!    A scenario without end, without requests, or with fewer of them than before is an error that
//!    says so.
//! 6. [`repeated`] runs each step of a saga several times under one key. If the results differ, the
//!    saga ends with a reason that names the step.
//! 7. A [`ScriptedPort`] gives each call the answer of its rule, after the times that the answer
//!    states, and records it with its begin and its end.
pub mod conformance;
mod crash;
mod drops;
pub mod faults;
#[cfg(feature = "jwt")]
mod identity_provider; // an issuer of tokens that rotates, lies and hangs
mod link; // ports behind a link that loses requests
#[cfg(feature = "workflow")]
mod repeated; // steps of a saga, several times under one key
mod scripted_port; // ports that follow a script
mod scripted_service;

pub use crate::time::ManualClock;
pub use crash::{CrashingProcess, crash_at_every_write, fail_at_every_write};
pub use drops::drop_at_every_await;
#[cfg(feature = "jwt")]
pub use identity_provider::{IdentityProvider, ProviderMood};
#[cfg(feature = "workflow")]
pub use repeated::repeated;
pub use scripted_port::{PortAnswer, PortCall, ScriptedPort};
pub use scripted_service::{ScriptError, ScriptedError, ScriptedService};

/// Prints to standard error, where messages of failed tests appear.
fn report(line: std::fmt::Arguments<'_>) {
    use std::io::Write;
    // One write, so that lines of concurrent tests stay whole. A closed stream must not hide the
    // panic.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
