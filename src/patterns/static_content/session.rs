//! The work of one publisher under the lease.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{Manifest, SiteConfig, SiteError};
use crate::{
    lease::{Acquired, Lease, LeaseError},
    port::{AskError, FencingToken, ask},
    race::{First, race},
    revisions::{Head, Revisions},
    store::Version,
    sync::Mutex,
    time::{Clock, Instant},
};

/// The lease of a site, while this publisher holds it.
pub(super) struct Session<'a> {
    leases: &'a Arc<dyn Lease>,
    config: &'a SiteConfig,
    clock: &'a Clock,
    name: &'a str,
    holder: String,
    token: FencingToken,
    /// End of the term, from the start of the request that set it.
    ends: Mutex<Instant>,
    has_deleted: AtomicBool,
    /// The releases, whose head is written under the token of this lease.
    pub(super) revisions: Revisions,
    /// The head, and its version, as of the start.
    pub(super) head: Head,
    version: Version,
}

impl<'a> Session<'a> {
    /// Acquires the lease, and writes the head under its token: from then on no holder before can
    /// move it.
    pub(super) async fn begin(
        (leases, name, holder): (&'a Arc<dyn Lease>, &'a str, String),
        (config, clock): (&'a SiteConfig, &'a Clock),
        revisions: &Revisions,
    ) -> Result<Self, SiteError> {
        let start = clock.now();
        let acquired = ask(clock, config.call_timeout, leases.acquire(name, &holder, config.lease_term)).await;
        let token = match acquired.map_err(failed)? {
            Acquired::Granted(token) => token,
            Acquired::Held(held) => return Err(SiteError::Busy { free_in: held.free_in }),
        };
        let (revisions, ends) = (revisions.fenced(token), start + config.lease_term);
        match claimed(&revisions, clock, ends).await {
            Ok((head, version)) => {
                let (ends, has_deleted) = (Mutex::new(ends), AtomicBool::new(false));
                Ok(Self { leases, config, clock, name, holder, token, ends, has_deleted, revisions, head, version })
            }
            Err(error) => {
                // Nothing was begun: the next one need not wait.
                let _ = ask(clock, config.call_timeout, leases.release(name, &holder, token)).await;
                Err(error)
            }
        }
    }

    /// Does the work while the lease is renewed beside it, and releases the lease. It does not
    /// after an error of a work that deletes: a delete may be on its way still, and hit a file that
    /// the next publisher counts on.
    pub(super) async fn during<T>(&self, work: impl Future<Output = Result<T, SiteError>>) -> Result<T, SiteError> {
        let done = match race(work, self.renew()).await {
            First::One(done) => done,
            First::Other(()) => return Err(SiteError::LeaseLost),
        };
        if done.is_err() && self.has_deleted.load(Relaxed) {
            return done;
        }
        let released = self.leases.release(self.name, &self.holder, self.token);
        let _ = ask(self.clock, self.config.call_timeout, released).await;
        done
    }

    /// Renews the lease until it is lost.
    async fn renew(&self) {
        let term = self.config.lease_term;
        let mut pause = term / 3;
        loop {
            self.clock.sleep(pause).await;
            let start = self.clock.now();
            let renewed = self.leases.renew(self.name, &self.holder, self.token, term);
            match ask(self.clock, self.config.call_timeout, renewed).await {
                Ok(_) => {
                    *self.ends.lock() = start + term;
                    pause = term / 3;
                }
                Err(AskError::Failed(LeaseError::NotHeld)) => return,
                Err(_) if !self.may_delete() => return,
                Err(_) => pause = term / 20,
            }
        }
    }

    /// Returns `true` if a request that starts now, and is given up after `call_timeout`, ends
    /// before the lease does.
    fn may_delete(&self) -> bool {
        self.clock.now() + self.config.call_timeout < *self.ends.lock()
    }

    /// Begins a delete, if it ends before the lease does.
    pub(super) fn begin_delete(&self) -> Result<(), SiteError> {
        if !self.may_delete() {
            return Err(SiteError::LeaseLost);
        }
        self.has_deleted.store(true, Relaxed);
        Ok(())
    }

    /// Replaces the head of the start.
    pub(super) async fn move_head(&self, next: &Head) -> Result<(), SiteError> {
        match self.revisions.move_head(next, (&self.head, Some(self.version))).await? {
            true => Ok(()),
            false => Err(SiteError::LeaseLost),
        }
    }

    /// Reads a release that the head lists. `None` if it does not, or has been pruned since.
    pub(super) async fn manifest(&self, number: u64) -> Result<Option<Manifest>, SiteError> {
        read(&self.revisions, &self.head, number).await
    }
}

/// Writes the head as it is, under the token of the lease that ends then, and returns it.
async fn claimed(revisions: &Revisions, clock: &Clock, ends: Instant) -> Result<(Head, Version), SiteError> {
    loop {
        let found = revisions.head().await?;
        let (head, version) = found.map_or_else(Default::default, |(head, version)| (head, Some(version)));
        if let Some(version) = revisions.claim(&head, version).await? {
            return Ok((head, version));
        }
        // A holder before moved it in between.
        if clock.now() >= ends {
            return Err(SiteError::LeaseLost);
        }
    }
}

/// Reads a release that the head lists.
pub(super) async fn read(revisions: &Revisions, head: &Head, number: u64) -> Result<Option<Manifest>, SiteError> {
    let Some(bytes) = revisions.document(head, number).await? else { return Ok(None) };
    Manifest::decode(number, bytes).map(Some).map_err(|_| SiteError::Damaged(number))
}

/// Returns the error of a request to the lease.
fn failed(error: AskError<LeaseError>) -> SiteError {
    SiteError::Lease(error.or_timed_out("the lease did not answer in time"))
}

/// Returns the time after which a release may be pruned, from the time of the next one on. The
/// switch to that one takes as long as the lease at most, and a process may render pages of the one
/// before until its next look at the store.
pub(super) fn kept_for(config: &SiteConfig) -> Duration {
    let SiteConfig { keep_for, lease_term, poll_interval, .. } = *config;
    keep_for.saturating_add(lease_term).saturating_add(poll_interval.saturating_mul(2))
}
