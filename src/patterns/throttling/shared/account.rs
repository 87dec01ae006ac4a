//! One limit of a shared limiter, for all calls or for one tenant: this process's knowledge of the
//! row, and its requests to it.

// Concurrency. Calls use an account in parallel; requests to the store are serialized by `turn`. So
// `low`, `renew_at`, `last`, `tat` and `believed` have one writer at a time, apart from
// `forget_row`.
//
// All atomics are `Relaxed`, since none of them publishes other memory:
// - `tat` and `believed` cache the row. A reader may see one of them new and the other one old. An
//   older `tat` is usually smaller, and then the call asks the store in vain. After a row has
//   expired it may be larger, and then the call is rejected as it would have been a moment earlier.
//   Only the store admits calls, so the limit holds in either case.
// - `local` holds the process's own share. Each admission is one compare-and-set of it.
// - `demand` and `last` determine the size of a lease; `low`, `renew_at` and `pause` the time of a
//   request. Outdated values cost a request, or a wait.
// - `wanted` elects the task that puts the account on the loop's list: `swap` returns `false` to
//   one task. The list is under a mutex, which publishes the account.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tokio::sync::{Notify, Semaphore};

use super::{
    Sharing,
    leases::Leases,
    limiter::{SharedCore, SharedSettings},
    row::{Grant, Row, grant, share_of},
};
use crate::{
    port::{PortError, PortErrorKind, ask_on_time},
    race::yield_now,
    store::{Key, Precondition, PutOptions, StoreError},
    throttling::rate::gcra::Pace,
    time::{Instant, nanos},
};

/// One row of the store, as this process knows it.
pub(super) struct Account {
    pub(super) row: String,
    /// Index of its quota among the tiers.
    pub(super) tier: Option<usize>,
    pub(super) leases: Leases,
    /// Time at which to renew the lease, and number of remaining permits at which to renew it
    /// earlier.
    renew_at: AtomicU64,
    low: AtomicU32,
    /// `true` while the account is in the loop's list or is being renewed.
    pub(super) wanted: AtomicBool,
    /// Time of the last lease, since which the demand is counted.
    last: AtomicU64,
    /// Time before which no lease is requested.
    pub(super) pause: AtomicU64,
    /// The row's arrival time when it was last seen, in shared time. Other processes only add to
    /// it.
    tat: AtomicU64,
    /// Time until which `tat` is believed without a request, by the clock.
    believed: AtomicU64,
    /// The arrival time of this process's own share, by the clock.
    local: AtomicU64,
    /// Serializes this process's requests in order of arrival: a process does not race with itself.
    pub(super) turn: Semaphore,
    /// Notified when permits were leased.
    pub(super) lease_came: Notify,
}

/// The result of a request to the store.
pub(super) enum StoreAnswer {
    Granted(Grant),
    /// No permits for this number of nanoseconds.
    Wait(u64),
    Down,
}

impl Account {
    pub(super) fn new(row: String, tier: Option<usize>) -> Self {
        Self {
            row,
            tier,
            leases: Leases::new(),
            renew_at: AtomicU64::new(0),
            low: AtomicU32::new(0),
            wanted: AtomicBool::new(false),
            last: AtomicU64::new(0),
            pause: AtomicU64::new(0),
            tat: AtomicU64::new(0),
            believed: AtomicU64::new(0),
            local: AtomicU64::new(0),
            turn: Semaphore::new(1),
            lease_came: Notify::new(),
        }
    }

    /// Spends `n` leased permits. Returns `Some(true)` if it is time to lease more.
    #[inline]
    pub(super) fn spend(&self, n: u32, now: Instant) -> Option<bool> {
        let left = self.leases.spend(n, millis(now))?;
        Some(left <= u64::from(self.low.load(Relaxed)) || now.as_nanos() >= self.renew_at.load(Relaxed))
    }

    /// Returns the time that `n` permits must wait according to the row's last known state; zero if
    /// unknown. The clock reads `now`.
    pub(super) fn known_wait(&self, pace: Pace, n: u32, shared_now: u64, now: Instant) -> u64 {
        if now.as_nanos() >= self.believed.load(Relaxed) {
            return 0;
        }
        grant(pace, self.tat.load(Relaxed), shared_now, n, n, 0).err().unwrap_or(0)
    }

    /// Records the row's arrival time.
    fn record_row(&self, tat: u64, now: Instant) {
        self.tat.store(tat, Relaxed);
        self.believed.store((now + BELIEVED).as_nanos(), Relaxed);
    }

    /// Returns `true` if the account equals a new one.
    pub(super) fn is_idle(&self, shared_now: u64, now: Instant) -> bool {
        self.tat.load(Relaxed) <= shared_now && self.local.load(Relaxed) <= now.as_nanos()
    }

    /// Forgets the row's state, which may differ under other settings.
    pub(super) fn forget_row(&self) {
        self.tat.store(0, Relaxed);
        self.believed.store(0, Relaxed);
        self.pause.store(0, Relaxed);
    }

    /// Takes `n` permits of this process's own share.
    pub(super) fn take_share(&self, pace: Pace, share: f64, n: u32, now: Instant) -> Result<(), u64> {
        let mut pace = share_of(pace, share);
        pace.span = pace.span.max(pace.interval.saturating_mul(n.into()));
        let take = |tat| grant(pace, tat, now.as_nanos(), n, n, 0);
        let mut tat = self.local.load(Relaxed);
        loop {
            match self.local.compare_exchange_weak(tat, take(tat)?.tat, Relaxed, Relaxed) {
                Ok(_) => return Ok(()),
                Err(changed) => tat = changed,
            }
        }
    }

    /// Charges permits that were taken through the store to the share, as far as it has any.
    fn charge_share(&self, pace: Pace, share: f64, n: u32, now: Instant) {
        let pace = share_of(pace, share);
        let now = now.as_nanos();
        let charged = |tat: u64| {
            let more = pace.interval.saturating_mul(n.into());
            Some(tat.max(now).saturating_add(more).min(now.saturating_add(pace.span)).max(tat))
        };
        // The closure always returns a value.
        let _ = self.local.fetch_update(Relaxed, Relaxed, charged);
    }

    /// Takes `n` permits from the row now, or reserves them within `patience`. With leases, also
    /// takes permits to be spent later, at least one in all. The caller holds `turn`.
    pub(super) async fn take(&self, inner: &SharedCore, set: &SharedSettings, n: u32, patience: u64) -> StoreAnswer {
        let start = inner.clock.now();
        let pace = set.pace(self.tier);
        let want = match set.config.sharing {
            Sharing::Exact => n,
            Sharing::Leased { every } => self.size(set, every, n, start),
        };
        let granted = match self.within(inner, set, pace, n.max(1), want, patience).await {
            StoreAnswer::Granted(granted) => granted,
            StoreAnswer::Wait(wait) => {
                self.pause_requests(set, pace, want, inner.clock.now());
                return StoreAnswer::Wait(wait);
            }
            StoreAnswer::Down => return StoreAnswer::Down,
        };
        if let Some(share) = set.share() {
            self.charge_share(pace, share, granted.permits, start);
        }
        if let Sharing::Leased { every } = set.config.sharing {
            self.lease(inner, granted.permits - n, start, every);
            if granted.permits < want {
                self.pause_requests(set, pace, want, inner.clock.now());
            }
        }
        StoreAnswer::Granted(granted)
    }

    /// Returns the number of permits to lease: half more than the recent demand in `every`, at most
    /// what the limit gives in that time.
    fn size(&self, set: &SharedSettings, every: Duration, n: u32, now: Instant) -> u32 {
        let demand = self.leases.take_demand();
        let last = Instant::from_nanos(self.last.swap(now.as_nanos(), Relaxed));
        let since = (now - last).max(Duration::from_millis(1));
        let pace = set.pace(self.tier);
        let most = (nanos(every) / pace.interval.max(1)).clamp(1, u64::from(set.quota(self.tier).largest()));
        let demand = (demand as f64 * 1.5 * every.as_secs_f64() / since.as_secs_f64()).ceil();
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        (demand.min(f64::from(most)) as u32).max(n).max(1)
    }

    fn lease(&self, inner: &SharedCore, permits: u32, start: Instant, every: Duration) {
        let now = inner.clock.now();
        self.low.store(permits / 2, Relaxed);
        self.renew_at.store((start + every / 2).as_nanos(), Relaxed);
        self.wanted.store(false, Relaxed);
        if permits > 0 {
            // Counted from before the request, so that no permit is spent later than `every` after
            // it was taken.
            self.leases.add(permits, millis(start + every), millis(now));
            inner.leased(permits);
        }
        self.lease_came.notify_waiters();
    }

    /// The row gave less than wanted. Pauses until the wanted number may be available together, so
    /// that an exhausted limit is not asked for each permit.
    fn pause_requests(&self, set: &SharedSettings, pace: Pace, want: u32, now: Instant) {
        if let Sharing::Leased { every } = set.config.sharing {
            let full = pace.interval.saturating_mul(want.into()).min(pace.span).min(nanos(every / 2));
            self.pause.store(now.as_nanos().saturating_add(full), Relaxed);
        }
    }

    /// Asks the store within `call_timeout`.
    async fn within(
        &self,
        inner: &SharedCore,
        set: &SharedSettings,
        pace: Pace,
        least: u32,
        want: u32,
        patience: u64,
    ) -> StoreAnswer {
        let request = self.ask_store(inner, pace, least, want, patience);
        match ask_on_time(&inner.clock, set.config.call_timeout, request).await {
            Ok(answer) => {
                inner.store_answered();
                answer.map_or_else(StoreAnswer::Wait, StoreAnswer::Granted)
            }
            Err(error) => {
                inner.store_failed(set.config.rest, error.kind());
                StoreAnswer::Down
            }
        }
    }

    /// Repeats compare-and-set until it succeeds, the row lacks permits, or the retries are used
    /// up.
    async fn ask_store(
        &self,
        inner: &SharedCore,
        pace: Pace,
        least: u32,
        want: u32,
        patience: u64,
    ) -> Result<Result<Grant, u64>, StoreError> {
        let key = Key::new(&inner.partition, &self.row);
        for tries in 0..MAX_TRIES {
            if tries > 0 {
                // Other processes won. The task yields whatever the store does, and after some
                // tries it sleeps.
                yield_now().await;
                if tries > TRIES_AT_ONCE {
                    inner.clock.sleep(Duration::from_millis(1)).await;
                }
            }
            let record = inner.store.get(key).await?;
            let row = record.as_ref().map(|record| Row::decode(&record.value)).transpose()?.unwrap_or_default();
            if !row.is_plausible(pace, inner.time.now(), patience) {
                return Err(PortError::new(
                    PortErrorKind::Corrupt,
                    "the row of a shared rate limit is too far in the future",
                )
                .into());
            }
            inner.time.seen(row.written);
            let now = inner.time.now();
            self.record_row(row.tat, inner.clock.now());
            let granted = match grant(pace, row.tat, now, least, want, patience) {
                Ok(granted) => granted,
                Err(wait) => return Ok(Err(wait)),
            };
            // Once the row's arrival time is past, an absent row means the same.
            let lasts = Duration::from_nanos(granted.tat.saturating_sub(now)) + LINGERS;
            let when = record.map_or(Precondition::Absent, |record| Precondition::Version(record.version));
            let value = Row { tat: granted.tat, written: now }.encode();
            match inner.store.put(key, value, PutOptions::new().when(when).ttl(lasts)).await {
                Ok(_) => {
                    self.record_row(granted.tat, inner.clock.now());
                    return Ok(Ok(granted));
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(PortError::new(PortErrorKind::Unavailable, "compare-and-set lost to other processes too often").into())
    }
}

/// Time for which a refusal by the row is believed without a new request: the row may have been
/// misread, or repaired.
const BELIEVED: Duration = Duration::from_secs(10);

/// Time for which a row stays when it means the same as an absent one: longer than the time from a
/// read to the write that requires its version, which would be a conflict with nobody otherwise.
const LINGERS: Duration = Duration::from_millis(50);

/// Number of tries that follow each other at once, and number of tries in all.
const TRIES_AT_ONCE: u32 = 16;
const MAX_TRIES: u32 = 1_000;

/// Returns the millisecond of an instant, rounded down.
pub(super) fn millis(at: Instant) -> u64 {
    at.as_nanos() / 1_000_000
}
