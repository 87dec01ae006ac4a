//! Work: what a handler says about the message or event that it handled, and the signal that asks
//! it to stop. Listener, filters, scheduler, journal and streams share these words.
//!
//! A handler returns a [`Disposition`], `()`, or a `Result<(), E>`. Each of its words is one of:
//!
//! | word | the work is | an attempt is counted |
//! |---|---|---|
//! | [`Complete`](Disposition::Complete) | done | |
//! | [`Forward`](Disposition::Forward) | done, and its results are sent in the same step; not in a stream | |
//! | [`Retry`](Disposition::Retry) | done again, until its attempts are used up | yes |
//! | [`Refused`](Disposition::Refused) | done again: a dependency refused the call, as an open circuit breaker does | no |
//! | [`Snooze`](Disposition::Snooze) | done again: it is too early | no |
//! | [`Release`](Disposition::Release) | done again, perhaps by another process | no |
//! | [`DeadLetter`](Disposition::DeadLetter) | given up | |
//!
//! ```
//! use std::time::Duration;
//! use steadfast::work::Disposition;
//!
//! fn handle(body: &[u8]) -> Disposition {
//!     match body {
//!         b"parcel 7" => Disposition::Complete,
//!         b"parcel 8" => Disposition::snooze(Duration::from_secs(600)), // it is on its way
//!         _ => Disposition::dead_letter("no parcel"),
//!     }
//! }
//! assert_eq!(handle(b"parcel 7"), Disposition::Complete);
//! ```
mod cancelled;
mod disposition;
mod idle;
mod send;

pub(crate) use crate::caught::{Caught, panic_text};
pub use cancelled::Cancelled;
pub use disposition::{Disposition, EventDisposition};
pub use idle::IdleConfig;
pub(crate) use {
    cancelled::Cancel,
    disposition::SHORTEST_DELAY,
    idle::Idle,
    send::{PatientSend, SendEnd},
};
