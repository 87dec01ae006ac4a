//! One limit of a shared limiter, for all or for one tenant: what this process knows of its row, and how it takes from it.
use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tokio::sync::{Notify, Semaphore};

use super::{
    Sharing,
    leases::Leases,
    limiter::{Inner, Setting},
    row::{Grant, Row, grant, share_of},
};
use crate::{
    port::{Failure, PortError, PortErrorKind},
    race::{First, race, yield_now},
    store::{Key, Precondition, PutOptions, StoreError},
    throttling::rate::gcra::Pace,
    time::{Instant, nanos},
};

/// One row, as this process sees it.
pub(super) struct Account {
    pub(super) row: String,
    /// Which of the tiers it belongs to.
    pub(super) tier: Option<usize>,
    pub(super) leases: Leases,
    /// When to lease again although some are left, and with how few left.
    renew_at: AtomicU64,
    low: AtomicU32,
    /// Whether the loop was told.
    pub(super) wanted: AtomicBool,
    /// Permits that were asked for since the last lease, and when that was.
    asked: AtomicU64,
    last: AtomicU64,
    /// No lease is asked for before.
    pub(super) pause: AtomicU64,
    /// The row's arrival time as it was last seen: others only add to it. In shared time.
    tat: AtomicU64,
    /// Until when that is believed without asking. By the clock.
    believed: AtomicU64,
    /// The arrival time of this process's own share. By the clock.
    local: AtomicU64,
    /// One request at a time, in order of arrival: a process does not race with itself.
    pub(super) turn: Semaphore,
    /// Permits were leased.
    pub(super) came: Notify,
}

/// What came of asking the store.
pub(super) enum Asked {
    Granted(Grant),
    /// There is nothing for so long.
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
            asked: AtomicU64::new(0),
            last: AtomicU64::new(0),
            pause: AtomicU64::new(0),
            tat: AtomicU64::new(0),
            believed: AtomicU64::new(0),
            local: AtomicU64::new(0),
            turn: Semaphore::new(1),
            came: Notify::new(),
        }
    }

    /// Spends `n` leased permits; says whether it is time to lease more.
    #[inline]
    pub(super) fn spend(&self, n: u32, now: Instant) -> Option<bool> {
        let left = self.leases.spend(n, millis(now))?;
        Some(left <= u64::from(self.low.load(Relaxed)) || now.as_nanos() >= self.renew_at.load(Relaxed))
    }

    #[inline]
    pub(super) fn ask(&self, n: u32) {
        self.asked.fetch_add(n.into(), Relaxed);
    }

    /// How long `n` permits are not there, as far as is known here: by the clock it is `now`.
    pub(super) fn known_wait(&self, pace: Pace, n: u32, shared_now: u64, now: Instant) -> u64 {
        if now.as_nanos() >= self.believed.load(Relaxed) {
            return 0;
        }
        grant(pace, self.tat.load(Relaxed), shared_now, n, n, 0).err().unwrap_or(0)
    }

    /// The row has this arrival time now.
    fn saw(&self, tat: u64, now: Instant) {
        self.tat.store(tat, Relaxed);
        self.believed.store((now + BELIEVED).as_nanos(), Relaxed);
    }

    /// Whether it says no more than one that was never seen.
    pub(super) fn is_idle(&self, shared_now: u64, now: Instant) -> bool {
        self.tat.load(Relaxed) <= shared_now && self.local.load(Relaxed) <= now.as_nanos()
    }

    /// Forgets what it knows of the row, which may be otherwise by other settings.
    pub(super) fn look_anew(&self) {
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

    /// What was taken through the store counts against the share, as far as that is there.
    fn charge_share(&self, pace: Pace, share: f64, n: u32, now: Instant) {
        let pace = share_of(pace, share);
        let now = now.as_nanos();
        let charged = |tat: u64| {
            let more = pace.interval.saturating_mul(n.into());
            Some(tat.max(now).saturating_add(more).min(now.saturating_add(pace.span)).max(tat))
        };
        // It always gives a number.
        let _ = self.local.fetch_update(Relaxed, Relaxed, charged);
    }

    /// Takes `n` permits from the row now, or for within `patience`; with leases more than that, one at least, to be spent later. Called in
    /// turn.
    pub(super) async fn take(&self, inner: &Inner, set: &Setting, n: u32, patience: u64) -> Asked {
        let start = inner.clock.now();
        let pace = set.pace(self.tier);
        let want = match set.config.sharing {
            Sharing::Exact => n,
            Sharing::Leased { every } => self.size(set, every, n, start),
        };
        let granted = match self.within(inner, set, pace, n.max(1), want, patience).await {
            Asked::Granted(granted) => granted,
            Asked::Wait(wait) => {
                self.hold_back(set, pace, want, inner.clock.now());
                return Asked::Wait(wait);
            }
            Asked::Down => return Asked::Down,
        };
        if let Some(share) = set.share() {
            self.charge_share(pace, share, granted.permits, start);
        }
        if let Sharing::Leased { every } = set.config.sharing {
            self.lease(inner, granted.permits - n, start, every);
            if granted.permits < want {
                self.hold_back(set, pace, want, inner.clock.now());
            }
        }
        Asked::Granted(granted)
    }

    /// How many permits to lease: by half more than were asked for in such a time, at most what the limit gives in it.
    fn size(&self, set: &Setting, every: Duration, n: u32, now: Instant) -> u32 {
        let asked = self.asked.swap(0, Relaxed);
        let last = Instant::from_nanos(self.last.swap(now.as_nanos(), Relaxed));
        let since = (now - last).max(Duration::from_millis(1));
        let pace = set.pace(self.tier);
        let most = (nanos(every) / pace.interval.max(1)).clamp(1, u64::from(set.quota(self.tier).largest()));
        let demand = (asked as f64 * 1.5 * every.as_secs_f64() / since.as_secs_f64()).ceil();
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        (demand.min(f64::from(most)) as u32).max(n).max(1)
    }

    fn lease(&self, inner: &Inner, permits: u32, start: Instant, every: Duration) {
        let now = inner.clock.now();
        self.low.store(permits / 2, Relaxed);
        self.renew_at.store((start + every / 2).as_nanos(), Relaxed);
        self.wanted.store(false, Relaxed);
        if permits > 0 {
            // From before it was asked for: nothing of it is spent later than that.
            self.leases.add(permits, millis(start + every), millis(now));
            inner.leased(permits);
        }
        self.came.notify_waiters();
    }

    /// There was less than wanted: waits until it may have come together, so that a limit that is used up is not asked for each permit.
    fn hold_back(&self, set: &Setting, pace: Pace, want: u32, now: Instant) {
        if let Sharing::Leased { every } = set.config.sharing {
            let full = pace.interval.saturating_mul(want.into()).min(pace.span).min(nanos(every / 2));
            self.pause.store(now.as_nanos().saturating_add(full), Relaxed);
        }
    }

    /// The same within the time that the store has for it.
    async fn within(&self, inner: &Inner, set: &Setting, pace: Pace, least: u32, want: u32, patience: u64) -> Asked {
        let latest = inner.clock.now() + set.config.call_timeout;
        let ask = self.ask_store(inner, pace, least, want, patience);
        match race(ask, inner.clock.sleep_until(latest)).await {
            // It may have come in time, and be seen late.
            First::One(Ok(_)) if inner.clock.now() > latest => self.down(inner, set, None),
            First::One(Ok(Ok(granted))) => {
                inner.store_answered();
                Asked::Granted(granted)
            }
            First::One(Ok(Err(wait))) => {
                inner.store_answered();
                Asked::Wait(wait)
            }
            First::One(Err(error)) => self.down(inner, set, error.backend().map(|failed| failed.kind())),
            First::Other(()) => self.down(inner, set, None),
        }
    }

    fn down(&self, inner: &Inner, set: &Setting, kind: Option<PortErrorKind>) -> Asked {
        inner.store_failed(set.config.rest, kind);
        Asked::Down
    }

    /// Compare and set, until it is done, or there is not enough, or others were faster too often.
    async fn ask_store(
        &self,
        inner: &Inner,
        pace: Pace,
        least: u32,
        want: u32,
        patience: u64,
    ) -> Result<Result<Grant, u64>, StoreError> {
        let key = Key::new(&inner.partition, &self.row);
        for tries in 0..MAX_TRIES {
            if tries > 0 {
                // Others are faster. Whatever the store does, the thread is given up, and after some tries time passes.
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
                    "the row of a shared rate limit lies too far ahead",
                )
                .into());
            }
            inner.time.seen(row.written);
            let now = inner.time.now();
            self.saw(row.tat, inner.clock.now());
            let granted = match grant(pace, row.tat, now, least, want, patience) {
                Ok(granted) => granted,
                Err(wait) => return Ok(Err(wait)),
            };
            // Once the row's arrival time is past, a row that is not there says the same.
            let lasts = Duration::from_nanos(granted.tat.saturating_sub(now)) + Duration::from_millis(1);
            let when = record.map_or(Precondition::Absent, |record| Precondition::Version(record.version));
            let value = Row { tat: granted.tat, written: now }.encode();
            match inner.store.put(key, value, PutOptions::new().when(when).ttl(lasts)).await {
                Ok(_) => {
                    self.saw(granted.tat, inner.clock.now());
                    return Ok(Ok(granted));
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(PortError::new(PortErrorKind::Unavailable, "others were faster, again and again").into())
    }
}

/// For so long a refusal by the row is believed without asking it again: what it says may have been misread, or mended.
const BELIEVED: Duration = Duration::from_secs(10);

/// So many tries follow each other at once, and so many are made in all.
const TRIES_AT_ONCE: u32 = 16;
const MAX_TRIES: u32 = 1_000;

/// The millisecond of an instant, rounded down.
pub(super) fn millis(at: Instant) -> u64 {
    at.as_nanos() / 1_000_000
}
