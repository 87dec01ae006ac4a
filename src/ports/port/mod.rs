//! What all ports share: the error that says what to do about it, what a backend can do, the fencing token.
//!
//! A port is a small object-safe trait behind which a pattern keeps its state: [`Store`](crate::store::Store),
//! [`Queue`](crate::queue::Queue), [`Lease`](crate::lease::Lease), [`Notifier`](crate::notify::Notifier). A pattern holds an
//! `Arc<dyn ...>`, so it is a concrete type, and the program picks the backend at run time.
//!
//! ```
//! use steadfast::port::{ErrorClass, PortError, PortErrorKind};
//!
//! let error = PortError::new(PortErrorKind::Unavailable, "redis: connection refused");
//! assert_eq!(error.class(), ErrorClass::Transient);
//! assert!(!error.may_have_been_applied());
//! ```
mod capability;
mod error;
mod token;

pub(crate) use capability::check_part;
pub use capability::{Capabilities, Capability, Unsupported};
pub use error::{ByFailure, ErrorClass, Failure, PortError, PortErrorKind, verdict};
pub use token::FencingToken;

use std::{future::Future, pin::Pin};

/// What the methods of a port return: the same type as that of this name in the `futures` crates.
///
/// The box costs some 20 ns beside a round trip, and buys traits that are object-safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
