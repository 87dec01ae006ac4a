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
mod ask;
mod capability;
mod error;
mod token;

pub(crate) use ask::{AskError, ask, ask_on_time, ask_until, within};
pub(crate) use capability::check_part;
pub use capability::{Capabilities, Capability, Unsupported};
pub use error::{ByFailure, ErrorClass, Failure, PortError, PortErrorKind, verdict};
pub use token::FencingToken;

use std::{future::Future, pin::Pin};

/// Return type of the methods of a port. It is the same type as that of this name in the `futures`
/// crates.
///
/// The box makes the traits object-safe. It costs some 20 ns, which is little beside a round trip.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
