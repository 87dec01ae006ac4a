//! Leases: names that one holder at a time may have, for a term that it has to renew.
//!
//! Each grant has a [`FencingToken`] above all earlier ones, so that a resource can refuse the late
//! write of a holder that was paused. [`leader_election`](crate::leader_election) is built on
//! leases; use it unless you build something else.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::lease::{Acquired, Lease, LeaseError, StoreLease};
//! use steadfast::{store::InMemoryStore, time::Clock};
//!
//! # let (clock, time) = Clock::manual();
//! # time.block_on(async {
//! let store = Arc::new(InMemoryStore::new());
//! // Two processes, each with its own instance over the same store.
//! let lease = || StoreLease::builder(store.clone()).clock(&clock).build().unwrap();
//! let (here, there) = (lease(), lease());
//! let term = Duration::from_secs(15);
//!
//! let granted = here.acquire("nightly", "node-1", term).await?;
//! let Acquired::Granted(token) = granted else { panic!("the name was free") };
//! assert!(matches!(there.acquire("nightly", "node-2", term).await?, Acquired::Held(_)));
//! here.release("nightly", "node-1", token).await?;
//! let next = there.acquire("nightly", "node-2", term).await?;
//! assert!(matches!(next, Acquired::Granted(next) if next > token));
//! # Ok::<_, LeaseError>(())
//! # }).unwrap();
//! ```
//!
//! # The contract of a backend
//!
//! The public conformance suite (`testing::conformance`, feature `testing`) checks each of these by
//! name.
//!
//! 1. **One holder.** While a holder's term runs, no other holder is granted the name. For the
//!    holder the term counts from the moment at which it CALLED `acquire` or `renew`. For all
//!    others it ends no earlier than a term after the write was applied, by a clock that the
//!    backend names. Wall clocks of two machines are never compared.
//! 2. **Tokens grow** with each grant of a name, also across releases, restarts and the deletion of
//!    its record. Renewing keeps the token.
//! 3. **A holder that asks again** is granted at once, with a new token. It does not wait for
//!    itself, and its old token is worth nothing from then on. A holder is identified by its id, so
//!    two processes must never share one.
//! 4. **Renewing never revives.** Once the term is over, or the name was granted anew, `renew`
//!    returns [`LeaseError::NotHeld`] and changes nothing.
//! 5. **Releasing** ends the term at once, so that the next `acquire` is granted. With an old token
//!    it returns [`LeaseError::NotHeld`] and changes nothing.
//! 6. **A request to release** is reported to the holder of that token by its next `renew`. It
//!    forces nothing, and does not affect a later grant.
//! 7. **Errors say whether the call may have been applied.** A grant whose reply was lost is taken
//!    up by asking again (rule 3).
mod error;
mod memory;
mod over_store;
mod record;

pub use error::LeaseError;
pub use memory::InMemoryLease;
pub use over_store::StoreLease;

use std::{fmt, sync::Arc, time::Duration};

use crate::port::{BoxFuture, Capabilities, FencingToken, PortError, check_part};

/// Result of [`Lease::acquire`].
#[derive(Debug, Clone, PartialEq, Eq)]
// Exhaustive: a lease is granted, or another holder has it. Everything else is an error.
pub enum Acquired {
    /// The name was granted to the caller, for a term that began when the caller asked.
    Granted(FencingToken),
    /// Another holder has the name.
    Held(Held),
}

/// A name's holder and its grant.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// Id of the holder.
    pub holder: String,
    /// Fencing token of its grant.
    pub token: FencingToken,
    /// Term of its grant or last renewal.
    pub term: Duration,
    /// Time after which the name may be free, if it is not renewed. Zero if the backend cannot
    /// tell. Asking earlier is allowed.
    pub free_in: Duration,
}

impl Held {
    /// Creates a value. For backends.
    pub const fn new(holder: String, token: FencingToken, term: Duration, free_in: Duration) -> Self {
        Self { holder, token, term, free_in }
    }
}

/// Result of [`Lease::renew`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewed {
    /// `true` if this holder was asked to release ([`Lease::request_release`]).
    pub release_requested: bool,
}

impl Renewed {
    /// Creates a value. For backends.
    pub const fn new(release_requested: bool) -> Self {
        Self { release_requested }
    }
}

/// A backend of names that one holder at a time may have. The [module's page](self) has the
/// contract.
///
/// The trait is object-safe: patterns hold an `Arc<dyn Lease>`.
pub trait Lease: Send + Sync + fmt::Debug {
    /// Returns the capabilities of this backend.
    fn capabilities(&self) -> Capabilities;

    /// Asks for the name, for a term that counts from this call.
    ///
    /// # Errors
    /// `Invalid` for an empty name or holder, or a term of zero.
    ///
    /// # Cancel safety
    /// If the future is dropped, the name was either granted or not, and the caller cannot tell.
    /// Ask again, or let the term pass.
    fn acquire<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        term: Duration,
    ) -> BoxFuture<'a, Result<Acquired, LeaseError>>;

    /// Renews the grant: its term begins anew at this call.
    ///
    /// # Errors
    /// [`LeaseError::NotHeld`] if the term is over or the name was granted anew.
    ///
    /// # Cancel safety
    /// If the future is dropped, the grant was either renewed or not, and the caller cannot tell.
    /// Count with the old term.
    fn renew<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
        term: Duration,
    ) -> BoxFuture<'a, Result<Renewed, LeaseError>>;

    /// Releases the name, so that the next `acquire` is granted at once.
    ///
    /// # Errors
    /// [`LeaseError::NotHeld`] if the name was granted anew; nothing was changed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the name was either released or not. If not, it is free when its
    /// term is over.
    fn release<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<(), LeaseError>>;

    /// Returns the holder of the name, as far as this instance can tell. A grant whose term is over
    /// may still show.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn read<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Held>, LeaseError>>;

    /// Asks the holder of this grant to release the name. Its next `renew` reports the request.
    ///
    /// # Cancel safety
    /// If the future is dropped, the request was either made or not.
    fn request_release<'a>(&'a self, name: &'a str, token: FencingToken) -> BoxFuture<'a, Result<(), LeaseError>>;
}

impl<L: Lease + ?Sized> Lease for Arc<L> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }
    fn acquire<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        term: Duration,
    ) -> BoxFuture<'a, Result<Acquired, LeaseError>> {
        (**self).acquire(name, holder, term)
    }
    fn renew<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
        term: Duration,
    ) -> BoxFuture<'a, Result<Renewed, LeaseError>> {
        (**self).renew(name, holder, token, term)
    }
    fn release<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<(), LeaseError>> {
        (**self).release(name, holder, token)
    }
    fn read<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Held>, LeaseError>> {
        (**self).read(name)
    }
    fn request_release<'a>(&'a self, name: &'a str, token: FencingToken) -> BoxFuture<'a, Result<(), LeaseError>> {
        (**self).request_release(name, token)
    }
}

/// Refuses arguments that no backend accepts.
fn check(name: &str, holder: &str, term: Duration, can: &Capabilities) -> Result<(), PortError> {
    check_part("name", name, can)?;
    check_part("holder", holder, can)?;
    if term.is_zero() { Err(PortError::invalid("term", "must be longer than zero")) } else { Ok(()) }
}
