//! The way of one call, and the loop that leases ahead of calls.
use std::{
    future::Future,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use super::{
    SharedRateLimiter, Sharing, WhenDown,
    account::{Account, Asked},
    limiter::{Inner, Setting},
};
use crate::{
    outcome::{Reason, Rejected},
    race::{First, race},
    time::{Instant, nanos},
};

impl SharedRateLimiter {
    /// Takes `n` permits, the turn of which comes by the deadline and within the configured wait.
    pub(super) async fn acquire_before(&self, n: u32, deadline: Option<Instant>) -> Result<(), Rejected> {
        let Self { inner, account, .. } = self;
        account.ask(n);
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

    /// Leases ahead of calls, until `shutdown` is ready. With leases run it beside your service; without it the calls that find nothing
    /// leased wait for the store themselves. Where the limit is shared exactly it has nothing to do.
    ///
    /// # Cancel safety
    /// Dropped, it leases no more. What was leased is spent or ends.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let inner = &self.inner;
        let _loop = Looping::begin(inner);
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

/// A loop at work, as long as it lives.
struct Looping<'a>(&'a Inner);

impl<'a> Looping<'a> {
    fn begin(inner: &'a Inner) -> Self {
        inner.loops.fetch_add(1, Relaxed);
        Self(inner)
    }
}

impl Drop for Looping<'_> {
    fn drop(&mut self) {
        if self.0.loops.fetch_sub(1, Relaxed) == 1 {
            // Nobody hears them; who asks again is told again.
            for account in self.0.wanted.lock().drain(..) {
                account.wanted.store(false, Relaxed);
            }
        }
    }
}

impl Inner {
    /// Tells the loop, once.
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
        let _heard = Heard(account);
        let set = self.set();
        let Sharing::Leased { .. } = set.config.sharing else { return };
        if self.down_for(self.clock.now()).is_some() {
            return;
        }
        // Who is at it already does it for all.
        let Ok(_turn) = account.turn.try_acquire() else { return };
        // None for itself: all that comes is laid by.
        account.take(self, &set, 0, 0).await;
    }

    /// The way of a call that found nothing leased.
    async fn acquire(&self, account: &Account, n: u32, deadline: Option<Instant>) -> Result<(), Rejected> {
        let set = self.set();
        if n > set.quota(account.tier).largest() {
            return Err(self.rejected(Reason::TooLarge, None));
        }
        let begun = self.clock.now();
        let patience = begun + set.config.max_wait;
        let latest = deadline.map_or(patience, |deadline| deadline.min(patience));
        loop {
            let now = self.clock.now();
            if self.down_for(now).is_some() {
                return self.by_itself(account, &set, n);
            }
            let wait = self.known_wait(account, &set, n, now);
            if wait > nanos(latest - now) {
                return Err(self.rejected(Reason::RateLimited, Some(wait)));
            }
            // Leases are never taken for later: they end.
            let reserves = matches!(set.config.sharing, Sharing::Exact);
            if wait > 0 && !reserves {
                self.wait_for_lease(account, now + Duration::from_nanos(wait)).await;
                if account.spend(n, self.clock.now()).is_some() {
                    return Ok(());
                }
                continue;
            }
            let Some(turn) = self.turn(account, &set, begun).await? else { return self.by_itself(account, &set, n) };
            // What came while it waited for its turn.
            if account.spend(n, self.clock.now()).is_some() {
                return Ok(());
            }
            if self.down_for(self.clock.now()).is_some() {
                return self.by_itself(account, &set, n);
            }
            let patience = if reserves { nanos(latest - self.clock.now()) } else { 0 };
            let asked = account.take(self, &set, n, patience).await;
            drop(turn);
            match asked {
                Asked::Granted(granted) => {
                    if granted.wait > 0 {
                        self.clock.sleep(Duration::from_nanos(granted.wait)).await;
                    }
                    return Ok(());
                }
                Asked::Down => return self.by_itself(account, &set, n),
                Asked::Wait(wait) if wait > nanos(latest - self.clock.now()) => {
                    return Err(self.rejected(Reason::RateLimited, Some(wait)));
                }
                Asked::Wait(_) => {}
            }
        }
    }

    /// How long it is known that nothing comes.
    fn known_wait(&self, account: &Account, set: &Setting, n: u32, now: Instant) -> u64 {
        let wait = account.known_wait(set.pace(account.tier), n, self.time.now(), now);
        match set.config.sharing {
            Sharing::Exact => wait,
            Sharing::Leased { .. } => wait.max(account.pause.load(Relaxed).saturating_sub(now.as_nanos())),
        }
    }

    async fn wait_for_lease(&self, account: &Account, until: Instant) {
        let came = account.came.notified();
        race(came, self.clock.sleep_until(until)).await;
    }

    /// Waits for the turn to ask the store. None where the store is down, and somebody else finds out whether it still is.
    async fn turn<'a>(
        &self,
        account: &'a Account,
        set: &Setting,
        begun: Instant,
    ) -> Result<Option<tokio::sync::SemaphorePermit<'a>>, Rejected> {
        if self.is_doubted() {
            return Ok(account.turn.try_acquire().ok());
        }
        let limit = set.config.max_wait.saturating_add(set.config.call_timeout);
        match race(account.turn.acquire(), self.clock.sleep_until(begun + limit)).await {
            // An error means that it was closed, which it never is.
            First::One(turn) => Ok(turn.ok()),
            First::Other(()) => Err(self.rejected(Reason::WaitedTooLong { limit }, None)),
        }
    }

    /// The store does not answer: as configured for that.
    fn by_itself(&self, account: &Account, set: &Setting, n: u32) -> Result<(), Rejected> {
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

/// The loop has heard of an account: it may be told of it again.
struct Heard<'a>(&'a Account);

impl Drop for Heard<'_> {
    fn drop(&mut self) {
        self.0.wanted.store(false, Relaxed);
    }
}
