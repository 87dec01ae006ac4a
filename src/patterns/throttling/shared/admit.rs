//! The path of one call, and the loop that leases ahead of calls.
use std::{
    future::Future,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use super::{
    SharedRateLimiter, Sharing, WhenDown,
    account::{Account, StoreAnswer},
    limiter::{SharedCore, SharedSettings},
};
use crate::{
    outcome::{Reason, Rejected},
    race::{First, race},
    time::{Instant, nanos},
};

impl SharedRateLimiter {
    /// Takes `n` permits whose turn comes by the deadline and within `max_wait`.
    pub(super) async fn acquire_before(&self, n: u32, deadline: Option<Instant>) -> Result<(), Rejected> {
        let Self { inner, account, .. } = self;
        account.leases.count_demand(n);
        match account.spend(n, inner.clock.now()) {
            Some(more) => {
                if more {
                    inner.wants_more(account);
                }
                Ok(())
            }
            None => inner.acquire(account, n, deadline).await,
        }
    }

    /// Leases permits ahead of calls until `shutdown` is ready. Run it beside your service if the
    /// limit is shared by leases. Without it, calls that find no leased permit wait for the store
    /// themselves. If the limit is shared exactly, the loop has no work.
    ///
    /// # Cancel safety
    /// A future that is dropped leases no more. Leased permits are spent or expire.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let inner = &self.inner;
        let _loop = LoopGuard::begin(inner);
        let mut shutdown = pin!(shutdown);
        loop {
            let wanted = inner.want.notified();
            let next = inner.wanted.lock().pop();
            let step = async {
                match next {
                    Some(account) => inner.lease_ahead(&account).await,
                    None => wanted.await,
                }
            };
            if let First::One(()) = race(shutdown.as_mut(), step).await {
                return;
            }
        }
    }
}

/// A running loop, counted until drop.
struct LoopGuard<'a>(&'a SharedCore);

impl<'a> LoopGuard<'a> {
    fn begin(inner: &'a SharedCore) -> Self {
        inner.loops.fetch_add(1, Relaxed);
        Self(inner)
    }
}

impl Drop for LoopGuard<'_> {
    fn drop(&mut self) {
        if self.0.loops.fetch_sub(1, Relaxed) == 1 {
            // No loop is left for these accounts. Cleared, so that a later request notifies again.
            for account in self.0.wanted.lock().drain(..) {
                account.wanted.store(false, Relaxed);
            }
        }
    }
}

impl SharedCore {
    /// Puts the account on the loop's list, once.
    #[cold]
    fn wants_more(&self, account: &Arc<Account>) {
        let paused = self.clock.now().as_nanos() < account.pause.load(Relaxed);
        if paused || self.loops.load(Relaxed) == 0 || account.wanted.swap(true, Relaxed) {
            return;
        }
        self.wanted.lock().push(account.clone());
        self.want.notify_one();
    }

    async fn lease_ahead(&self, account: &Account) {
        let _guard = RenewalGuard(account);
        let set = self.settings();
        let Sharing::Leased { .. } = set.config.sharing else { return };
        if self.down_for(self.clock.now()).is_some() {
            return;
        }
        // Another task is already asking the store; its result serves all.
        let Ok(_turn) = account.turn.try_acquire() else { return };
        // Zero permits for itself: everything that comes is kept as a lease.
        account.take(self, &set, 0, 0).await;
    }

    /// Admits a call that found no leased permit.
    async fn acquire(&self, account: &Account, n: u32, deadline: Option<Instant>) -> Result<(), Rejected> {
        let set = self.settings();
        if n > set.quota(account.tier).largest() {
            return Err(self.rejected(Reason::TooLarge, None));
        }
        let begun = self.clock.now();
        let patience = begun + set.config.max_wait;
        let latest = deadline.map_or(patience, |deadline| deadline.min(patience));
        loop {
            let now = self.clock.now();
            if self.down_for(now).is_some() {
                return self.decide_locally(account, &set, n);
            }
            let wait = self.known_wait(account, &set, n, now);
            if wait > nanos(latest - now) {
                return Err(self.rejected(Reason::RateLimited, Some(wait)));
            }
            // Leases are never taken for later, since they expire.
            let reserves = matches!(set.config.sharing, Sharing::Exact);
            if wait > 0 && !reserves {
                self.wait_for_lease(account, now + Duration::from_nanos(wait)).await;
                if account.spend(n, self.clock.now()).is_some() {
                    return Ok(());
                }
                continue;
            }
            let Some(turn) = self.turn(account, &set, begun).await? else {
                return self.decide_locally(account, &set, n);
            };
            // Permits that were leased while the call waited for its turn.
            if account.spend(n, self.clock.now()).is_some() {
                return Ok(());
            }
            if self.down_for(self.clock.now()).is_some() {
                return self.decide_locally(account, &set, n);
            }
            let patience = if reserves { nanos(latest - self.clock.now()) } else { 0 };
            let answer = account.take(self, &set, n, patience).await;
            drop(turn);
            match answer {
                StoreAnswer::Granted(granted) => {
                    if granted.wait > 0 {
                        self.clock.sleep(Duration::from_nanos(granted.wait)).await;
                    }
                    return Ok(());
                }
                StoreAnswer::Down => return self.decide_locally(account, &set, n),
                StoreAnswer::Wait(wait) if wait > nanos(latest - self.clock.now()) => {
                    return Err(self.rejected(Reason::RateLimited, Some(wait)));
                }
                StoreAnswer::Wait(_) => {}
            }
        }
    }

    /// Returns the time for which no permit is known to come.
    fn known_wait(&self, account: &Account, set: &SharedSettings, n: u32, now: Instant) -> u64 {
        let wait = account.known_wait(set.pace(account.tier), n, self.time.now(), now);
        match set.config.sharing {
            Sharing::Exact => wait,
            Sharing::Leased { .. } => wait.max(account.pause.load(Relaxed).saturating_sub(now.as_nanos())),
        }
    }

    async fn wait_for_lease(&self, account: &Account, until: Instant) {
        let lease_came = account.lease_came.notified();
        race(lease_came, self.clock.sleep_until(until)).await;
    }

    /// Waits for the turn to ask the store. Returns `None` if the store was down and another call
    /// already asks it again.
    async fn turn<'a>(
        &self,
        account: &'a Account,
        set: &SharedSettings,
        begun: Instant,
    ) -> Result<Option<tokio::sync::SemaphorePermit<'a>>, Rejected> {
        if self.is_doubted() {
            return Ok(account.turn.try_acquire().ok());
        }
        let limit = set.config.max_wait.saturating_add(set.config.call_timeout);
        match race(account.turn.acquire(), self.clock.sleep_until(begun + limit)).await {
            // An error means that the semaphore was closed, which it never is.
            First::One(turn) => Ok(turn.ok()),
            First::Other(()) => Err(self.rejected(Reason::WaitedTooLong { limit }, None)),
        }
    }

    /// Decides without the store, as `when_down` says.
    fn decide_locally(&self, account: &Account, set: &SharedSettings, n: u32) -> Result<(), Rejected> {
        let now = self.clock.now();
        match set.config.when_down {
            WhenDown::FailOpen => Ok(()),
            WhenDown::FailClosed => {
                Err(self.rejected(Reason::StoreDown, Some(nanos(self.down_for(now).unwrap_or_default()))))
            }
            WhenDown::LocalShare(share) => account
                .take_share(set.pace(account.tier), share, n, now)
                .map_err(|wait| self.rejected(Reason::RateLimited, Some(wait))),
        }
    }
}

/// Allows the account on the loop's list again, on drop.
struct RenewalGuard<'a>(&'a Account);

impl Drop for RenewalGuard<'_> {
    fn drop(&mut self) {
        self.0.wanted.store(false, Relaxed);
    }
}
