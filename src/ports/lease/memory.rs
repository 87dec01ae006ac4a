//! Leases in this process's memory.
use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use super::{Acquired, Held, Lease, LeaseError, LeaseFuture, Renewed, check_grant, check_holder};
use crate::{
    build::{Builder, Common, Component},
    port::{Capabilities, Capability, FencingToken},
    sync::{Mutex, MutexGuard},
    time::{Clock, Instant},
};

/// Leases in this process's memory, for tests and for leaders among the tasks of one process.
///
/// A clone shares the names. By this clock, a grant ends exactly a term after it was granted or
/// renewed.
#[derive(Clone, Default)]
pub struct InMemoryLease {
    shared: Arc<Mutex<Grants>>,
    clock: Clock,
}

#[derive(Default)]
struct Grants {
    grants: HashMap<String, Grant>,
    /// The last token that was granted, over all names.
    last: u64,
}

struct Grant {
    holder: String,
    token: FencingToken,
    term: Duration,
    ends: Instant,
    release_requested: bool,
}

const CAN: Capabilities =
    Capabilities::of("memory", &[Capability::Linearizable, Capability::Fencing]).largest_key(1024);

impl Component for InMemoryLease {
    type Built = Self;
    type Spec = ();

    fn assemble((): (), Common { clock, .. }: Common) -> Self {
        Self { clock, ..Self::default() }
    }
}

impl InMemoryLease {
    /// Creates a backend in which no name is held.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a builder of a backend in which no name is held.
    pub fn builder() -> Builder<Self> {
        Builder::new(())
    }

    fn state(&self) -> MutexGuard<'_, Grants> {
        self.shared.lock()
    }
}

impl Grants {
    /// Returns the grant of this holder and token, if its term is not over.
    fn grant(&mut self, name: &str, holder: &str, token: FencingToken, now: Instant) -> Result<&mut Grant, LeaseError> {
        let grant = self.grants.get_mut(name);
        grant.filter(|g| g.holder == holder && g.token == token && now < g.ends).ok_or(LeaseError::NotHeld)
    }
}

impl Grant {
    fn held(&self, now: Instant) -> Held {
        Held::new(self.holder.clone(), self.token, self.term, self.ends - now)
    }
}

impl Lease for InMemoryLease {
    fn capabilities(&self) -> Capabilities {
        CAN
    }

    fn acquire<'a>(&'a self, name: &'a str, holder: &'a str, term: Duration) -> LeaseFuture<'a, Acquired> {
        Box::pin(async move {
            check_grant(name, holder, term, &CAN)?;
            let now = self.clock.now();
            let mut state = self.state();
            if let Some(grant) = state.grants.get(name)
                && grant.holder != holder
                && now < grant.ends
            {
                return Ok(Acquired::Held(grant.held(now)));
            }
            state.last += 1;
            let token = FencingToken::new(state.last);
            let grant = Grant { holder: holder.to_owned(), token, term, ends: now + term, release_requested: false };
            state.grants.insert(name.to_owned(), grant);
            Ok(Acquired::Granted(token))
        })
    }

    fn renew<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
        term: Duration,
    ) -> LeaseFuture<'a, Renewed> {
        Box::pin(async move {
            check_grant(name, holder, term, &CAN)?;
            let now = self.clock.now();
            let mut state = self.state();
            let grant = state.grant(name, holder, token, now)?;
            (grant.ends, grant.term) = (now + term, term);
            Ok(Renewed::new(grant.release_requested))
        })
    }

    fn release<'a>(&'a self, name: &'a str, holder: &'a str, token: FencingToken) -> LeaseFuture<'a, ()> {
        Box::pin(async move {
            check_holder(name, holder, &CAN)?;
            let now = self.clock.now();
            let mut state = self.state();
            state.grant(name, holder, token, now)?;
            state.grants.remove(name);
            Ok(())
        })
    }

    fn read<'a>(&'a self, name: &'a str) -> LeaseFuture<'a, Option<Held>> {
        Box::pin(async move {
            CAN.check_key("name", name)?;
            let now = self.clock.now();
            Ok(self.state().grants.get(name).filter(|grant| now < grant.ends).map(|grant| grant.held(now)))
        })
    }

    fn request_release<'a>(&'a self, name: &'a str, token: FencingToken) -> LeaseFuture<'a, ()> {
        Box::pin(async move {
            CAN.check_key("name", name)?;
            if let Some(grant) = self.state().grants.get_mut(name).filter(|grant| grant.token == token) {
                grant.release_requested = true;
            }
            Ok(())
        })
    }
}

impl fmt::Debug for InMemoryLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemoryLease").field("names", &self.state().grants.len()).finish()
    }
}
