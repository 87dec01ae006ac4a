//! The shared limiter: what it is made of, and the ways in.
use std::{
    collections::HashMap,
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::Notify;

use super::{
    SharedRateLimitConfig, SharedRateLimitEvent as Event, Sharing, WhenDown, account::Account, row::SharedTime,
};
use crate::{
    call::{self, Attempt, CallContext, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name, require},
    observe::{Events, Subscription},
    outcome::{CallError, Outcome, PolicyKind, Reason, Rejected},
    port::{Capability, PortError, PortErrorKind, check_part},
    store::Store,
    sync::Mutex,
    throttling::{Quota, gcra::Pace},
    time::{Clock, Instant, Timestamp},
};

/// Lets so many calls pass in so much time, counted over all processes that share a store.
///
/// A clone is the same limiter. Its name is the limit: processes with the same store and the same name share it.
/// [`tenant`](Self::tenant) gives the limit of one tenant under it.
#[derive(Clone)]
pub struct SharedRateLimiter {
    pub(super) inner: Arc<Inner>,
    pub(super) account: Arc<Account>,
    tenant: Option<Name>,
}

/// Which of the tiers a tenant belongs to.
type TierOf = Arc<dyn Fn(&str) -> Option<usize> + Send + Sync>;

pub(super) struct Inner {
    pub(super) store: Arc<dyn Store>,
    pub(super) partition: String,
    pub(super) name: Name,
    pub(super) clock: Clock,
    pub(super) time: SharedTime,
    wall: Option<Timestamp>,
    set: Mutex<Arc<Setting>>,
    tier_of: Option<TierOf>,
    /// The limit of all, and those of tenants.
    all: Arc<Account>,
    tenants: Mutex<HashMap<String, Arc<Account>>>,
    /// Until when the store is not asked; zero while it is up.
    down_until: AtomicU64,
    /// Who wants more, for the loops; and how many loops there are.
    pub(super) wanted: Mutex<Vec<Arc<Account>>>,
    pub(super) want: Notify,
    pub(super) loops: AtomicU32,
    events: Events<Event>,
}

/// Settings, with what follows from them.
pub(super) struct Setting {
    pub(super) config: SharedRateLimitConfig,
    tiers: Vec<Quota>,
}

impl Setting {
    pub(super) fn quota(&self, tier: Option<usize>) -> Quota {
        tier.and_then(|tier| self.tiers.get(tier).copied()).unwrap_or(self.config.quota())
    }

    pub(super) fn pace(&self, tier: Option<usize>) -> Pace {
        Pace::new(&self.quota(tier))
    }

    pub(super) fn share(&self) -> Option<f64> {
        if let WhenDown::LocalShare(share) = self.config.when_down { Some(share) } else { None }
    }
}

impl SharedRateLimiter {
    /// The limit of this name in this store, by these settings (or a [`Quota`] alone).
    ///
    /// # Errors
    /// Where a setting breaks its rule, or the store lacks [`Linearizable`](Capability::Linearizable) or
    /// [`TimeToLive`](Capability::TimeToLive).
    pub fn new(
        store: Arc<dyn Store>,
        name: impl Into<Name>,
        config: impl Into<SharedRateLimitConfig>,
    ) -> Result<Self, ConfigError> {
        let (name, config) = (name.into(), config.into());
        config.check()?;
        let can = store.capabilities();
        can.require(Capability::Linearizable).map_err(|lacks| lacks.refuse("store"))?;
        can.require(Capability::TimeToLive).map_err(|lacks| lacks.refuse("store"))?;
        let partition = format!("rate limit {name}");
        require(!name.as_str().is_empty(), "name", "must not be empty")?;
        require(partition.len() <= can.max_key(), "name", "must not be longer than the store's keys")?;
        let set = Setting { config, tiers: Vec::new() };
        Ok(Self::make(Parts { store, name, clock: Clock::default(), wall: None, set, tier_of: None }))
    }

    fn make(parts: Parts) -> Self {
        let Parts { store, name, clock, wall, set, tier_of } = parts;
        let inner = Inner {
            store,
            partition: format!("rate limit {name}"),
            name,
            time: SharedTime::new(clock.clone(), wall.unwrap_or_else(|| clock.wall())),
            clock,
            wall,
            set: Mutex::new(Arc::new(set)),
            tier_of,
            all: Arc::new(Account::new("all".to_owned(), None)),
            tenants: Mutex::default(),
            down_until: AtomicU64::new(0),
            wanted: Mutex::default(),
            want: Notify::new(),
            loops: AtomicU32::new(0),
            events: Events::new(),
        };
        Self { account: inner.all.clone(), inner: Arc::new(inner), tenant: None }
    }

    fn parts(&self) -> Parts {
        let Inner { store, name, clock, wall, tier_of, .. } = &*self.inner;
        let set = self.inner.set();
        Parts {
            store: store.clone(),
            name: name.clone(),
            clock: clock.clone(),
            wall: *wall,
            set: Setting { config: set.config, tiers: set.tiers.clone() },
            tier_of: tier_of.clone(),
        }
    }

    /// A new limiter of the same settings on another clock.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self {
        Self::make(Parts { clock: clock.clone(), ..self.parts() })
    }

    /// A new limiter of the same settings that takes this for the wall clock's time at its beginning: for tests. The system's by default.
    #[must_use]
    pub fn with_wall_time(self, wall: Timestamp) -> Self {
        Self::make(Parts { wall: Some(wall), ..self.parts() })
    }

    /// A new limiter that gives some tenants other quotas: `tier_of` says which of `tiers` a tenant belongs to; `None`, or a number that is
    /// not there, is the quota of everybody else. All processes must agree on that.
    ///
    /// # Errors
    /// Where a quota breaks a rule.
    pub fn with_tiers(
        self,
        tiers: &[Quota],
        tier_of: impl Fn(&str) -> Option<usize> + Send + Sync + 'static,
    ) -> Result<Self, ConfigError> {
        for (i, quota) in tiers.iter().enumerate() {
            quota.check().map_err(|e| e.within(&format!("tiers[{i}]")))?;
        }
        let mut parts = self.parts();
        parts.set.tiers = tiers.to_vec();
        Ok(Self::make(Parts { tier_of: Some(Arc::new(tier_of)), ..parts }))
    }

    /// The limit of this tenant: one of its own, with a row of its own, under the same settings. Keep what it gives for the tenant's calls:
    /// it is found again under a lock.
    ///
    /// # Errors
    /// `Invalid` where the tenant's name is longer than the store's keys.
    pub fn tenant(&self, tenant: &str) -> Result<Self, PortError> {
        let inner = &self.inner;
        let row = format!("of {tenant}");
        check_part("tenant", &row, &inner.store.capabilities())?;
        let tier = inner.tier_of.as_ref().and_then(|tier_of| tier_of(tenant));
        let account = {
            let mut tenants = inner.tenants.lock();
            if tenants.len() == tenants.capacity() {
                // Before it grows: what nobody holds, and says no more than one that was never seen.
                let (shared_now, now) = (inner.time.now(), inner.clock.now());
                tenants.retain(|_, account| Arc::strong_count(account) > 1 || !account.is_idle(shared_now, now));
            }
            tenants.entry(tenant.to_owned()).or_insert_with(|| Arc::new(Account::new(row, tier))).clone()
        };
        Ok(Self { inner: inner.clone(), account, tenant: Some(tenant.into()) })
    }

    /// Changes the settings while they are in use; of all tenants too. What was leased stays leased, and what was taken stays taken: the
    /// row counts in time, so that a limit that is used up is free again when it would have been, whatever its new pace. Change it in all
    /// processes: until then each keeps its own.
    ///
    /// # Errors
    /// Where a setting breaks a rule; then nothing has changed.
    pub fn reconfigure(&self, config: impl Into<SharedRateLimitConfig>) -> Result<(), ConfigError> {
        let config = config.into();
        config.check()?;
        let inner = &self.inner;
        {
            let mut set = inner.set.lock();
            *set = Arc::new(Setting { config, tiers: set.tiers.clone() });
        }
        for account in inner.tenants.lock().values() {
            account.look_anew();
        }
        inner.all.look_anew();
        inner.tell(|| Event::LimitChanged);
        Ok(())
    }

    /// Its settings, as they are now.
    pub fn config(&self) -> SharedRateLimitConfig {
        self.inner.set().config
    }

    /// The limit's name.
    pub fn name(&self) -> &str {
        self.inner.name.as_str()
    }

    /// Its events from now on, of all tenants.
    pub fn events(&self) -> Subscription<Event> {
        self.inner.events.subscribe()
    }

    /// Whether the store did not answer when it was asked last.
    pub fn is_store_down(&self) -> bool {
        self.inner.is_doubted()
    }

    /// How many tenants it remembers. Counts those that say nothing any more as long as nobody needed their room.
    pub fn tenants(&self) -> usize {
        self.inner.tenants.lock().len()
    }

    /// How many leased permits this process has now.
    pub fn leased(&self) -> u64 {
        self.account.leases.left(super::account::millis(self.inner.clock.now()))
    }

    /// Takes a permit; waits for the store, and for its turn for at most the configured `max_wait`.
    ///
    /// # Errors
    /// The rejection, at once where its turn would come later. [`Reason::StoreDown`] where the store is down and that is to reject.
    ///
    /// # Cancel safety
    /// Dropped, the permit may have been taken, and is lost then.
    pub async fn acquire(&self) -> Result<(), Rejected> {
        self.acquire_n(1).await
    }

    /// Takes `n` permits, all or none.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); [`Reason::TooLarge`] if the limit can never give so many at once.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_n(&self, n: u32) -> Result<(), Rejected> {
        self.acquire_before(n, None).await
    }

    /// Runs `operation` with nothing but this limiter around it.
    ///
    /// # Errors
    /// The operation's own, or the rejection.
    ///
    /// # Cancel safety
    /// Dropped, it drops the operation; the permit may have been taken.
    pub fn call<O: Operation>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send {
        call::call_alone(self, operation)
    }
}

/// What a limiter is made from.
struct Parts {
    store: Arc<dyn Store>,
    name: Name,
    clock: Clock,
    wall: Option<Timestamp>,
    set: Setting,
    tier_of: Option<TierOf>,
}

impl Inner {
    pub(super) fn set(&self) -> Arc<Setting> {
        self.set.lock().clone()
    }

    /// How long the store is not asked yet.
    pub(super) fn down_for(&self, now: Instant) -> Option<Duration> {
        let left = Instant::from_nanos(self.down_until.load(Relaxed)) - now;
        (!left.is_zero()).then_some(left)
    }

    /// Whether the store was down when it was asked last, and may be up by now.
    pub(super) fn is_doubted(&self) -> bool {
        self.down_until.load(Relaxed) != 0
    }

    pub(super) fn store_failed(&self, rest: Duration, kind: Option<PortErrorKind>) {
        // Never zero, which is up.
        let until = (self.clock.now() + rest).as_nanos().max(1);
        self.down_until.store(until, Relaxed);
        self.tell(|| Event::StoreFailed { kind });
    }

    pub(super) fn store_answered(&self) {
        if self.down_until.load(Relaxed) != 0 && self.down_until.swap(0, Relaxed) != 0 {
            self.tell(|| Event::StoreBack);
        }
    }

    pub(super) fn leased(&self, permits: u32) {
        self.tell(|| Event::Leased { permits });
    }

    pub(super) fn tell(&self, event: impl FnOnce() -> Event) {
        if self.events.wanted() {
            self.events.send(Some(&self.name), self.clock.now(), event);
        }
    }

    #[cold]
    pub(super) fn rejected(&self, reason: Reason, wait: Option<u64>) -> Rejected {
        self.tell(|| Event::Rejected { reason, retry_after: wait.map(Duration::from_nanos) });
        Rejected::by_policy(PolicyKind::RateLimit, Some(&self.name), reason, wait)
    }
}

impl Policy for SharedRateLimiter {
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        match self.acquire_before(1, cx.deadline()).await {
            Ok(()) => inner.attempt(cx).await,
            Err(rejected) => inner.refuse(rejected),
        }
    }

    fn describe(&self, explanation: &mut Explanation) {
        let set = self.inner.set();
        let (config, quota) = (&set.config, set.quota(self.account.tier));
        let mut settings =
            format!("{} calls every {:?}, at most {} at once, ", quota.permits, quota.per, quota.largest());
        match config.sharing {
            Sharing::Exact => settings += "shared exactly",
            Sharing::Leased { every } => settings += &format!("shared by leases of {every:?}"),
        }
        match config.when_down {
            WhenDown::FailOpen => settings += "; with its store down all pass",
            WhenDown::FailClosed => settings += "; with its store down none pass",
            WhenDown::LocalShare(share) => settings += &format!("; with its store down {share} of it here"),
        }
        if !config.max_wait.is_zero() {
            settings += &format!("; waits up to {:?}", config.max_wait);
        }
        explanation.push(Layer::new(PolicyKind::RateLimit, Some(self.inner.name.clone()), settings));
    }
}

impl fmt::Debug for SharedRateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRateLimiter")
            .field("name", &self.inner.name)
            .field("tenant", &self.tenant)
            .field("config", &self.config())
            .finish_non_exhaustive()
    }
}
