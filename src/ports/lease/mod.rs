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
//! # Guarantees
//!
//! Each backend upholds these. The public conformance suite (`testing::conformance`, feature
//! `testing`) checks a backend against them, with one named test for each case.
//!
//! 1. **One holder.** While a holder's term runs, no other holder is granted the name. For the
//!    holder the term counts from the moment at which it CALLED `acquire` or `renew`. For all
//!    others it ends no earlier than a term after the write was applied, by a monotonic clock or
//!    the clock of the server. Wall clocks of two machines are never compared, and no jump of a
//!    client's wall clock changes a term. A term of any length is kept, up to the longest duration,
//!    which does not end.
//! 2. **Tokens grow** with each grant of a name, also across releases, restarts and the deletion of
//!    its record. Renewing keeps the token.
//! 3. **A holder that asks again** is granted at once, with a new token. It does not wait for
//!    itself, and its old token is worth nothing from then on. A holder is identified by its id, so
//!    two processes must never share one.
//! 4. **Renewing sets the term, and never revives.** The new term begins at the call of `renew`: a
//!    longer one prolongs the grant, a shorter one ends it earlier. Once the term is over, or the
//!    name was granted anew, `renew` returns [`LeaseError::NotHeld`] and changes nothing. A handle
//!    renews the grants that it acquired itself; one that another handle acquired may be `NotHeld`.
//! 5. **Releasing** ends the term at once, so that the next `acquire` is granted. If the term is
//!    over, or the name was granted anew, `release` returns [`LeaseError::NotHeld`]: the work of
//!    the holder may have overlapped with another's. A later grant stays as it is.
//! 6. **A request to release** is reported to the holder of that token by each `renew` from then
//!    on. It forces nothing. A request for a grant that has ended, or for a name that is free, is
//!    accepted, and has no effect on a later grant or on a request for it.
//! 7. **Errors say whether the call may have been applied.** A grant whose reply was lost is taken
//!    up by asking again (rule 3).
//! 8. **Names and holders are any text** of up to [`max_key`](Capabilities::max_key) bytes, neither
//!    is empty, and no term is zero. Anything else is refused as `Invalid` before it is sent, by
//!    each method.
//! 9. **With [`Durable`](crate::port::Capability::Durable)**, a restart of the backend neither ends
//!    nor revives a grant. The holder asks again; another holder may have to wait for one more
//!    term.
mod error;
mod memory;
mod over_store;
mod record;

pub use error::{LeaseError, LeaseFuture};
pub use memory::InMemoryLease;
pub use over_store::StoreLease;

use std::{fmt, sync::Arc, time::Duration};

use crate::port::{Capabilities, FencingToken, PortError};

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
    /// `Invalid` for a name or holder that is empty or too long, or a term of zero. `Throttled` if
    /// other requests change the name at the same time: ask again.
    ///
    /// # Cancel safety
    /// If the future is dropped, the name was either granted or not, and the caller cannot tell.
    /// Ask again, or let the term pass.
    fn acquire<'a>(&'a self, name: &'a str, holder: &'a str, term: Duration) -> LeaseFuture<'a, Acquired>;

    /// Renews the grant: this term begins at this call and replaces the rest of the old one, which
    /// may have been longer.
    ///
    /// # Errors
    /// [`LeaseError::NotHeld`] if the term is over, the name was granted anew, or another handle
    /// acquired this grant and this one cannot tell its term; nothing was changed. `Invalid` as for
    /// [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// If the future is dropped, the grant was either renewed or not, and the caller cannot tell.
    /// Count with the term that ends first.
    fn renew<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
        term: Duration,
    ) -> LeaseFuture<'a, Renewed>;

    /// Releases the name, so that the next `acquire` is granted at once.
    ///
    /// # Errors
    /// [`LeaseError::NotHeld`] if the term is over or the name was granted anew. No later grant was
    /// changed. `Invalid` for a name or holder that is empty or too long.
    ///
    /// # Cancel safety
    /// If the future is dropped, the name was either released or not. If not, it is free when its
    /// term is over.
    fn release<'a>(&'a self, name: &'a str, holder: &'a str, token: FencingToken) -> LeaseFuture<'a, ()>;

    /// Returns the holder of the name, as far as this instance can tell. A grant whose term is over
    /// may still show.
    ///
    /// # Errors
    /// `Invalid` for a name that is empty or too long.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn read<'a>(&'a self, name: &'a str) -> LeaseFuture<'a, Option<Held>>;

    /// Asks the holder of this grant to release the name. Each `renew` of the grant reports the
    /// request from then on. Does nothing if the grant has ended.
    ///
    /// # Errors
    /// `Invalid` for a name that is empty or too long.
    ///
    /// # Cancel safety
    /// If the future is dropped, the request was either made or not.
    fn request_release<'a>(&'a self, name: &'a str, token: FencingToken) -> LeaseFuture<'a, ()>;
}

impl<L: Lease + ?Sized> Lease for Arc<L> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }
    fn acquire<'a>(&'a self, name: &'a str, holder: &'a str, term: Duration) -> LeaseFuture<'a, Acquired> {
        (**self).acquire(name, holder, term)
    }
    fn renew<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
        term: Duration,
    ) -> LeaseFuture<'a, Renewed> {
        (**self).renew(name, holder, token, term)
    }
    fn release<'a>(&'a self, name: &'a str, holder: &'a str, token: FencingToken) -> LeaseFuture<'a, ()> {
        (**self).release(name, holder, token)
    }
    fn read<'a>(&'a self, name: &'a str) -> LeaseFuture<'a, Option<Held>> {
        (**self).read(name)
    }
    fn request_release<'a>(&'a self, name: &'a str, token: FencingToken) -> LeaseFuture<'a, ()> {
        (**self).request_release(name, token)
    }
}

/// Rejects a name, a holder or a term that [`acquire`](Lease::acquire) and [`renew`](Lease::renew)
/// do not accept. For backends.
///
/// # Errors
/// `Invalid`, with the name of the field and the rule.
pub fn check_grant(name: &str, holder: &str, term: Duration, can: &Capabilities) -> Result<(), PortError> {
    check_holder(name, holder, can)?;
    if term.is_zero() { Err(PortError::invalid("term", "must be longer than zero")) } else { Ok(()) }
}

/// Rejects a name or a holder that [`release`](Lease::release) does not accept. For backends.
///
/// # Errors
/// `Invalid`, with the name of the field and the rule.
pub fn check_holder(name: &str, holder: &str, can: &Capabilities) -> Result<(), PortError> {
    can.check_key("name", name)?;
    can.check_key("holder", holder)
}
