//! Time as a value: clocks that policies read and wait on, and that tests move.
//!
//! Unlike `std::time`, a [`Clock`] is passed to each policy: one line turns a service that waits
//! for minutes into a test that does not wait. Only this module names tokio's or std's clocks.
//!
//! ```
//! use std::time::Duration;
//! use steadfast::time::Clock;
//!
//! let (clock, time) = Clock::manual();
//! let before = clock.now();
//! time.advance(Duration::from_secs(3600));
//! assert_eq!(clock.now() - before, Duration::from_secs(3600));
//! ```
mod block_on;
mod clock;
mod instant;
mod manual;
mod sleep;
mod thread;
mod timestamp;

pub use block_on::block_on;
#[allow(unused_imports, reason = "used by a backend")]
pub(crate) use block_on::from_thread;
pub(crate) use block_on::{is_blocking, outside};
pub use clock::{Clock, TimeSource};
pub use instant::Instant;
pub(crate) use instant::{nanos, scaled};
pub use manual::ManualClock;
pub use sleep::Sleep;
pub use timestamp::Timestamp;
