//! The shared limiter: its parts and its public methods.
use std::{
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
    tenants::Tenants,
};
use crate::{
    build::{Builder, Common, Component, HasEvents},
    call::{self, Attempt, CallContext, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name, Reconfigure, reconfigurable, require},
    observe::{Events, Subscription},
    outcome::{CallError, Outcome, PolicyKind, Reason, Rejected},
    port::{Capability, PortError, PortErrorKind},
    store::Store,
    sync::Mutex,
    throttling::{Quota, rate::gcra::Pace},
    time::{Clock, Instant, Timestamp},
};

/// Admits a number of calls per period, counted over all processes that share a store.
///
/// A clone is the same limiter. Processes with the same store and the same name share one limit.
/// [`tenant`](Self::tenant) returns the limit of one tenant.
#[derive(Clone)]
pub struct SharedRateLimiter {
    pub(super) inner: Arc<SharedCore>,
    pub(super) account: Arc<Account>,
    tenant: Option<Name>,
}

/// The function that returns the tier of a tenant.
type TierOf = Box<dyn Fn(&str) -> Option<usize> + Send + Sync>;

pub(super) struct SharedCore {
    pub(super) store: Arc<dyn Store>,
    pub(super) partition: String,
    pub(super) name: Name,
    pub(super) clock: Clock,
    pub(super) time: SharedTime,
    settings: Mutex<Arc<SharedSettings>>,
    tier_of: Option<TierOf>,
    /// The limit of all calls, and those of tenants.
    all: Arc<Account>,
    tenants: Mutex<Tenants>,
    /// Time until which the store is not asked; zero while the store is up. A word of its own that
    /// publishes no other memory, so `Relaxed` suffices.
    down_until: AtomicU64,
    /// Accounts that need a lease, the notification of the loops, and the number of loops.
    pub(super) wanted: Mutex<Vec<Arc<Account>>>,
    pub(super) want: Notify,
    pub(super) loops: AtomicU32,
    events: Events<Event>,
}

/// Settings, with the quotas of the tiers.
pub(super) struct SharedSettings {
    pub(super) config: SharedRateLimitConfig,
    tiers: Vec<Quota>,
}

impl SharedSettings {
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

reconfigurable!(SharedRateLimiter, SharedRateLimitConfig, |_this, next| next.check());

impl SharedRateLimiter {
    /// Creates the limit of this name in this store, by these settings (or a [`Quota`] alone).
    ///
    /// # Errors
    /// If a setting is invalid, or the store lacks [`Linearizable`](Capability::Linearizable) or
    /// [`TimeToLive`](Capability::TimeToLive).
    pub fn new(
        store: Arc<dyn Store>,
        name: impl Into<Name>,
        config: impl Into<SharedRateLimitConfig>,
    ) -> Result<Self, ConfigError> {
        Self::builder(store, name, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new).
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CSharedRateLimiter%3E):
    /// `wall_time`, `tiers`.
    pub fn builder(
        store: Arc<dyn Store>,
        name: impl Into<Name>,
        config: impl Into<SharedRateLimitConfig>,
    ) -> Builder<Self> {
        let (name, config) = (name.into(), config.into());
        Builder::new(SharedSpec { store, name, config, tiers: Vec::new(), tier_of: None, wall: None })
    }

    /// Returns the limit of this tenant, which has a row of its own under the same settings. Keep
    /// the returned limiter for the tenant's calls: looking it up takes a lock.
    ///
    /// # Errors
    /// `Invalid` if the tenant's name is longer than the store's keys.
    pub fn tenant(&self, tenant: &str) -> Result<Self, PortError> {
        let inner = &self.inner;
        let row = format!("of {tenant}");
        inner.store.capabilities().check_key("tenant", &row)?;
        let tier = inner.tier_of.as_ref().and_then(|tier_of| tier_of(tenant));
        let (shared_now, now) = (inner.time.now(), inner.clock.now());
        let is_unused = |account: &Arc<Account>| Arc::strong_count(account) == 1 && account.is_idle(shared_now, now);
        let account = inner.tenants.lock().account(tenant, || Account::new(row, tier), is_unused);
        Ok(Self { inner: inner.clone(), account, tenant: Some(tenant.into()) })
    }

    /// Changes the settings while they are in use, also for all tenants. Leased and taken permits
    /// stay. The row counts in time, so an exhausted limit is free again at the same time as
    /// before, whatever its new pace. Change the settings in all processes: until then each keeps
    /// its own.
    ///
    /// # Errors
    /// If a setting is invalid; then nothing has changed.
    pub fn reconfigure(&self, config: impl Into<SharedRateLimitConfig>) -> Result<(), ConfigError> {
        let config = config.into();
        self.validate(&config)?;
        let inner = &self.inner;
        {
            let mut set = inner.settings.lock();
            *set = Arc::new(SharedSettings { config, tiers: set.tiers.clone() });
        }
        inner.tenants.lock().accounts().for_each(Account::forget_row);
        inner.all.forget_row();
        inner.emit(|| Event::LimitChanged);
        Ok(())
    }

    /// Returns the current settings.
    pub fn config(&self) -> SharedRateLimitConfig {
        self.inner.settings().config
    }

    /// Returns the limit's name.
    pub fn name(&self) -> &str {
        self.inner.name.as_str()
    }

    /// Subscribes to the events of all tenants from now on.
    pub fn events(&self) -> Subscription<Event> {
        self.inner.events.subscribe()
    }

    /// Returns `true` if the store did not answer when it was asked last.
    pub fn is_store_down(&self) -> bool {
        self.inner.is_doubted()
    }

    /// Returns the number of remembered tenants. Includes idle ones whose memory was not needed
    /// yet.
    pub fn tenants(&self) -> usize {
        self.inner.tenants.lock().len()
    }

    /// Returns the number of leased permits that this process has now.
    pub fn leased(&self) -> u64 {
        self.account.leases.left(super::account::millis(self.inner.clock.now()))
    }

    /// Takes a permit; waits for the store, and for at most the configured `max_wait` for its turn.
    ///
    /// # Errors
    /// The rejection, at once if the turn would come later. [`Reason::StoreDown`] if the store is
    /// down and `when_down` is to fail closed.
    ///
    /// # Cancel safety
    /// A future that is dropped may have taken its permit, which is lost then.
    pub async fn acquire(&self) -> Result<(), Rejected> {
        self.acquire_n(1).await
    }

    /// Takes `n` permits, all or none.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); [`Reason::TooLarge`] if the limit can never give so many at
    /// once.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_n(&self, n: u32) -> Result<(), Rejected> {
        self.acquire_before(n, None).await
    }

    /// Runs `operation` under this limiter alone.
    ///
    /// # Errors
    /// The operation's own error, or the rejection.
    ///
    /// # Cancel safety
    /// A future that is dropped drops the operation; the permit may have been taken.
    pub fn call<T: Send, E: Send, O>(&self, operation: O) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        O: Operation<Output = T, Error = E>, // `|| async { .. }`; blocks: `call_blocking`; not `Send`: `Pipeline::call_local`; `&mut`: `with_state`
    {
        call::call_alone(self, operation)
    }
}

/// Arguments of a shared limiter, beside name, clock and entropy.
pub struct SharedSpec {
    store: Arc<dyn Store>,
    name: Name,
    config: SharedRateLimitConfig,
    tiers: Vec<Quota>,
    tier_of: Option<TierOf>,
    wall: Option<Timestamp>,
}

impl Builder<SharedRateLimiter> {
    /// Sets the wall clock's time at the limiter's beginning, for tests. By default the clock's
    /// [wall time](Clock::wall).
    pub fn wall_time(mut self, wall: Timestamp) -> Self {
        self.spec.wall = Some(wall);
        self
    }

    /// Gives some tenants other quotas. `tier_of` returns the index of a tenant's quota in `tiers`;
    /// `None`, or an index out of range, selects the default quota. All processes must agree on it.
    pub fn tiers(mut self, tiers: &[Quota], tier_of: impl Fn(&str) -> Option<usize> + Send + Sync + 'static) -> Self {
        self.spec.tiers = tiers.to_vec();
        self.spec.tier_of = Some(Box::new(tier_of));
        self
    }
}

impl Component for SharedRateLimiter {
    type Built = Result<Self, ConfigError>;
    type Spec = SharedSpec;

    fn assemble(spec: SharedSpec, Common { clock, hooks, .. }: Common) -> Self::Built {
        let SharedSpec { store, name, config, tiers, tier_of, wall } = spec;
        config.check()?;
        for (i, quota) in tiers.iter().enumerate() {
            quota.check().map_err(|e| e.within(&format!("tiers[{i}]")))?;
        }
        let can = store.capabilities();
        can.require(Capability::Linearizable).map_err(|lacks| lacks.refuse("store"))?;
        can.require(Capability::TimeToLive).map_err(|lacks| lacks.refuse("store"))?;
        let partition = format!("rate limit {name}");
        require(!name.as_str().is_empty(), "name", "must not be empty")?;
        require(partition.len() <= can.max_key(), "name", "must not be longer than the store's keys")?;
        let inner = SharedCore {
            store,
            partition,
            name,
            time: SharedTime::new(clock.clone(), wall.unwrap_or_else(|| clock.wall())),
            clock,
            settings: Mutex::new(Arc::new(SharedSettings { config, tiers })),
            tier_of,
            all: Arc::new(Account::new("all".to_owned(), None)),
            tenants: Mutex::default(),
            down_until: AtomicU64::new(0),
            wanted: Mutex::default(),
            want: Notify::new(),
            loops: AtomicU32::new(0),
            events: hooks.events(),
        };
        Ok(Self { account: inner.all.clone(), inner: Arc::new(inner), tenant: None })
    }
}

impl HasEvents<Event> for SharedRateLimiter {}

impl SharedCore {
    pub(super) fn settings(&self) -> Arc<SharedSettings> {
        self.settings.lock().clone()
    }

    /// Returns the time for which the store is not asked yet.
    pub(super) fn down_for(&self, now: Instant) -> Option<Duration> {
        let left = Instant::from_nanos(self.down_until.load(Relaxed)) - now;
        (!left.is_zero()).then_some(left)
    }

    /// Returns `true` if the store was down when it was asked last; it may be up by now.
    pub(super) fn is_doubted(&self) -> bool {
        self.down_until.load(Relaxed) != 0
    }

    pub(super) fn store_failed(&self, rest: Duration, kind: Option<PortErrorKind>) {
        // Never zero, which means that the store is up.
        let until = (self.clock.now() + rest).as_nanos().max(1);
        self.down_until.store(until, Relaxed);
        self.emit(|| Event::StoreFailed { kind });
    }

    pub(super) fn store_answered(&self) {
        if self.down_until.load(Relaxed) != 0 && self.down_until.swap(0, Relaxed) != 0 {
            self.emit(|| Event::StoreBack);
        }
    }

    pub(super) fn leased(&self, permits: u32) {
        self.emit(|| Event::Leased { permits });
    }

    pub(super) fn emit(&self, event: impl FnOnce() -> Event) {
        if self.events.wanted() {
            self.events.send(Some(&self.name), self.clock.now(), event);
        }
    }

    #[cold]
    pub(super) fn rejected(&self, reason: Reason, wait: Option<u64>) -> Rejected {
        self.emit(|| Event::Rejected { reason, retry_after: wait.map(Duration::from_nanos) });
        Rejected::by_policy(PolicyKind::RateLimit, Some(&self.name), reason, wait)
    }
}

call::blocking_door!(SharedRateLimiter);

impl Policy for SharedRateLimiter {
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        match self.acquire_before(1, cx.deadline()).await {
            Ok(()) => inner.attempt(cx).await,
            Err(rejected) => inner.refuse(rejected),
        }
    }

    fn describe(&self, explanation: &mut Explanation) {
        let set = self.inner.settings();
        let (config, quota) = (&set.config, set.quota(self.account.tier));
        let mut settings =
            format!("{} calls every {:?}, at most {} at once, ", quota.permits, quota.per, quota.largest());
        match config.sharing {
            Sharing::Exact => settings += "shared exactly",
            Sharing::Leased { every } => settings += &format!("shared by leases of {every:?}"),
        }
        match config.when_down {
            WhenDown::FailOpen => settings += "; while the store is down, all calls pass",
            WhenDown::FailClosed => settings += "; while the store is down, no call passes",
            WhenDown::LocalShare(share) => {
                settings += &format!("; while the store is down, {share} of the limit per process")
            }
        }
        if !config.max_wait.is_zero() {
            settings += &format!("; waits up to {:?}", config.max_wait);
        }
        explanation.push(Layer::new(PolicyKind::RateLimit, Some(self.inner.name.clone()), settings));
    }
}

crate::build::debug_fields!(SharedRateLimiter, |this|
    name: this.inner.name, tenant: this.tenant, config: this.config()
);
