//! A name that one holder at a time may have, for a term that it has to renew.
//!
//! Each acquisition has a [`FencingToken`] above all before it, so that a resource can refuse the
//! late write of a holder that was paused. [`leader_election`](crate::leader_election) is built on
//! it; take that, unless you build something else.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{lease::{Acquired, Lease, LeaseError, StoreLease}, store::InMemoryStore, time::Clock};
//!
//! # let (clock, hand) = Clock::manual();
//! # hand.block_on(async {
//! let store = Arc::new(InMemoryStore::new());
//! // Two processes, each with its own door to the same store.
//! let [here, there] = [(); 2].map(|()| StoreLease::new(store.clone()).unwrap().with_clock(&clock));
//! let term = Duration::from_secs(15);
//!
//! let Acquired::Granted(token) = here.acquire("nightly", "node-1", term).await? else { panic!("it was free") };
//! assert!(matches!(there.acquire("nightly", "node-2", term).await?, Acquired::Held(_)));
//! here.release("nightly", "node-1", token).await?;
//! assert!(matches!(there.acquire("nightly", "node-2", term).await?, Acquired::Granted(next) if next > token));
//! # Ok::<_, LeaseError>(())
//! # }).unwrap();
//! ```
//!
//! # The contract, for those who write a backend
//!
//! The public conformance suite (`testing::conformance`, feature `testing`) holds a backend to each
//! of these by name.
//!
//! 1. **One holder.** While a holder's term runs nobody else is granted the name. The term counts,
//!    for the holder, from the moment at which it CALLED `acquire` or `renew`; for everybody else
//!    it ends no earlier than a term after the write was applied, by a clock that the backend
//!    names. Wall clocks of two machines are compared nowhere.
//! 2. **Tokens grow** with each grant of a name: also across releases, restarts, and after somebody
//!    deleted its record. Renewing keeps the token.
//! 3. **A holder that asks again** is granted at once, with a new token: it does not wait for
//!    itself, and its old token is worth nothing from then on. A holder is its id: two processes
//!    must never share one.
//! 4. **Renewing never revives.** Once the term is over, or the name was granted anew, `renew` is
//!    [`LeaseError::NotHeld`] and changes nothing.
//! 5. **Releasing** ends the term at once, so that the next `acquire` is granted; with an old token
//!    it is [`LeaseError::NotHeld`] and changes nothing.
//! 6. **A request to release** is told to the holder of that token by its next `renew`. It forces
//!    nothing, and does not touch a later grant.
//! 7. **Errors say whether it may have been applied.** A grant whose reply was lost is taken up by
//!    asking again (rule 3).
mod error;
mod memory;
mod over_store;
mod record;

pub use error::LeaseError;
pub use memory::InMemoryLease;
pub use over_store::StoreLease;

use std::{fmt, sync::Arc, time::Duration};

use crate::port::{BoxFuture, Capabilities, FencingToken, PortError, check_part};

/// What came of asking for a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// It is the caller's, until a term after the moment at which it asked.
    Granted(FencingToken),
    /// Another has it.
    Held(Held),
}

/// Who has a name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// The holder's id.
    pub holder: String,
    /// The token of its grant.
    pub token: FencingToken,
    /// The term that it was granted, or that it last renewed for.
    pub term: Duration,
    /// After how long it may be free, if it is not renewed; zero where nobody can tell. Asking
    /// earlier is allowed.
    pub free_in: Duration,
}

impl Held {
    /// Held by this one. For backends.
    pub const fn new(holder: String, token: FencingToken, term: Duration, free_in: Duration) -> Self {
        Self { holder, token, term, free_in }
    }
}

/// What came of renewing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewed {
    /// Somebody asked this holder to release ([`Lease::request_release`]).
    pub release_requested: bool,
}

impl Renewed {
    /// Renewed. For backends.
    pub const fn new(release_requested: bool) -> Self {
        Self { release_requested }
    }
}

/// Names that one holder at a time may have. The [module's page](self) has the contract.
///
/// Object-safe: patterns hold an `Arc<dyn Lease>`.
pub trait Lease: Send + Sync + fmt::Debug {
    /// What this backend can do.
    fn capabilities(&self) -> Capabilities;

    /// Asks for the name, for a term that counts from this call.
    ///
    /// # Errors
    /// `Invalid` for an empty name or holder, or a term of zero.
    ///
    /// # Cancel safety
    /// When the future is dropped the name is granted or not, and nobody is told which: ask again,
    /// or let the term pass.
    fn acquire<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        term: Duration,
    ) -> BoxFuture<'a, Result<Acquired, LeaseError>>;

    /// Has the term begin anew, at this call.
    ///
    /// # Errors
    /// [`LeaseError::NotHeld`] where the term is over or the name was granted anew.
    ///
    /// # Cancel safety
    /// When the future is dropped it is renewed or not, and nobody is told which: count with the
    /// old term.
    fn renew<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
        term: Duration,
    ) -> BoxFuture<'a, Result<Renewed, LeaseError>>;

    /// Gives the name up, so that the next is granted it at once.
    ///
    /// # Errors
    /// [`LeaseError::NotHeld`] where the name was granted anew; nothing was changed.
    ///
    /// # Cancel safety
    /// When the future is dropped it is released or not; if not, it is free when its term is over.
    fn release<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<(), LeaseError>>;

    /// Who has the name, as far as this door can tell: a term may be over that still shows.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn read<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Held>, LeaseError>>;

    /// Asks the holder of this grant to release. It is told at its next `renew`.
    ///
    /// # Cancel safety
    /// When the future is dropped the request is made or not.
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

/// Refuses what breaks a rule that every backend has.
fn check(name: &str, holder: &str, term: Duration, can: &Capabilities) -> Result<(), PortError> {
    check_part("name", name, can)?;
    check_part("holder", holder, can)?;
    if term.is_zero() { Err(PortError::invalid("term", "must be longer than zero")) } else { Ok(()) }
}
