//! Types that all ports share: the error with its reaction, the capabilities of a backend, the
//! fencing token.
//!
//! A port is a small object-safe trait behind which a pattern keeps its state:
//! [`Store`](crate::store::Store), [`Queue`](crate::queue::Queue), [`Lease`](crate::lease::Lease),
//! [`Notifier`](crate::notify::Notifier). A pattern holds an `Arc<dyn ...>`. It is therefore a
//! concrete type, and the program chooses the backend at run time.
//!
//! ```
//! use steadfast::port::{ErrorClass, PortError, PortErrorKind};
//!
//! let error = PortError::new(PortErrorKind::Unavailable, "redis: connection refused");
//! assert_eq!(error.class(), ErrorClass::Transient);
//! assert!(!error.may_have_been_applied());
//! ```
//!
//! # Backends of other crates
//!
//! A backend states its [`Capabilities`] with the largest sizes that it accepts, and rejects other
//! requests before it sends anything. The checks of arguments are public, so that each backend
//! refuses the same requests with the same words:
//!
//! | request | check |
//! |---|---|
//! | `get`, `put`, `delete` of a store | [`Key::check`](crate::store::Key::check), [`Write::check`](crate::store::Write::check) |
//! | `batch` | [`Write::check_batch`](crate::store::Write::check_batch) |
//! | `scan` | [`Scan::check`](crate::store::Scan::check) |
//! | a precondition | [`Precondition::check`](crate::store::Precondition::check) |
//! | `send` of a queue | [`Message::check`](crate::queue::Message::check) |
//! | `receive`, `extend` | [`Receive::check`](crate::queue::Receive::check), [`check_visibility`](crate::queue::check_visibility) |
//! | `acquire`, `renew` of a lease | [`check_grant`](crate::lease::check_grant) |
//! | `release` of a lease | [`check_holder`](crate::lease::check_holder) |
//! | `publish` of a notifier | [`check_notice`](crate::notify::check_notice) |
//! | `subscribe`, and names of the backend's own | [`Capabilities::check_key`] |
//!
//! [`ErrorHistory`](crate::queue::ErrorHistory) keeps the errors of attempts in one text, and
//! [`Scan::bounds`](crate::store::Scan::bounds) has the range of a page. The public conformance
//! suites (`testing::conformance`, feature `testing`) check the rest.
mod ask;
mod capability;
mod error;
mod token;

pub(crate) use ask::{AskError, ask, ask_on_time, ask_until, within};
pub use capability::{Capabilities, Capability, Unsupported};
pub use error::{ByFailure, ErrorClass, Failure, PortError, PortErrorKind, verdict};
pub use token::FencingToken;

use std::{future::Future, pin::Pin};

/// Return type of the methods of a port. It is the same type as that of this name in the `futures`
/// crates.
///
/// The box makes the traits object-safe. It costs some 20 ns, which is little beside a round trip.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A future of a port without errors of its own.
pub type PortFuture<'a, T> = BoxFuture<'a, Result<T, PortError>>;
