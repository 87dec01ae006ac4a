//! Time as a value: what the patterns ask for the hour, and what a test sets by hand.
//!
//! Unlike `std::time`, a [`Clock`] is handed to each policy, so one line turns a service that waits for minutes into a
//! test that waits for nothing. Only this module names tokio's or std's clocks.
//!
//! ```
//! use std::time::Duration;
//! use steadfast::time::Clock;
//!
//! let (clock, hand) = Clock::manual();
//! let before = clock.now();
//! hand.advance(Duration::from_secs(3600));
//! assert_eq!(clock.now() - before, Duration::from_secs(3600));
//! ```
mod clock;
mod instant;
#[cfg(feature = "sqlite")]
pub(crate) mod machine;
mod manual;
mod sleep;
mod timestamp;

pub use clock::{Clock, TimeSource};
pub use instant::Instant;
pub(crate) use instant::{nanos, scaled};
pub use manual::ManualClock;
pub use sleep::Sleep;
pub use timestamp::Timestamp;
