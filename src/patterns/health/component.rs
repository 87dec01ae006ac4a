//! Building health checks, executing them, and reporting on them.
use std::{
    any::TypeId,
    collections::HashSet,
    future::{Future, pending},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt as _, future::join_all};
use tokio::sync::Notify;

use super::{
    Check, CheckFailure, CheckKind, CheckReport, Group, GroupReason, HealthConfig, HealthEvent as Event, HealthStatus,
    Report,
    config::LONGEST_PAUSE,
    fleet::{FleetGuard, LONGEST_TURN, Part},
    state::{Around, CheckState, status},
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, HasName},
    call::{Explanation, Layer},
    caught::panic_text,
    config::{ConfigError, Name, Reconfigure, Secret, reconfigurable, require},
    entropy::Entropy,
    flight::{Flights, JoinOrLead},
    in_progress::InProgress,
    observe::{Events, Subscription},
    outcome::PolicyKind,
    port::{BoxFuture, Capability, within},
    race::{both, race},
    spawn::Spawner,
    store::Store,
    sync::Mutex,
    time::{Clock, Instant, scaled},
};

/// Time after which the probe of a platform usually gives up.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The health of a process, for load balancers, platforms and monitors. The
/// [module's page](super) states the guarantees.
///
/// A clone is the same, and shares all results.
#[derive(Clone)]
pub struct Health(Arc<Inner>);

struct Inner {
    name: Option<Name>,
    config: Mutex<Arc<HealthConfig>>,
    checks: Vec<Checked>,
    flights: Flights<usize, ()>,
    fleet: Option<FleetGuard>,
    is_stopping: Mutex<bool>,
    /// Number of runs.
    running: InProgress,
    /// Told when the configuration changes.
    reconfigured: Notify,
    clock: Clock,
    entropy: Entropy,
    spawner: Spawner,
    events: Events<Event>,
}

/// A check with its results.
struct Checked {
    check: Check,
    state: Mutex<CheckState>,
    executions: Mutex<u64>,
}

reconfigurable!(Health, HealthConfig, |_this, next| next.check());

impl Health {
    /// Creates a builder. Without checks each group is healthy.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CHealth%3E): `check`, `fleet`,
    /// `secret`, `spawner`.
    pub fn builder(config: HealthConfig) -> Builder<Self> {
        Builder::new(HealthSpec { config, checks: Vec::new(), fleet: None, spawner: Spawner::default() })
    }

    /// Returns the report on a group. A check whose result is older than `cache_ttl` is executed,
    /// at most once for all reports together; a report waits for it for `report_timeout` at most,
    /// and then uses the last result. Without a tokio runtime and without a spawner the report
    /// executes the check itself, and waits for `timeout`.
    ///
    /// # Cancel safety
    /// A dropped report leaves the executions to other reports, or to the spawner.
    pub async fn report(&self, group: &Group) -> Report {
        let config = self.settings();
        let now = self.0.clock.now();
        let due = self.due(group, &config, now);
        if !due.is_empty() {
            let executed = join_all(due.into_iter().map(|check| self.executed(check)));
            let limit = match self.0.spawner.is_there() {
                true => config.report_timeout,
                // Nobody else goes on with what this report leaves.
                false => config.report_timeout.max(config.timeout),
            };
            let _ = within(&self.0.clock, limit, executed).await;
        }
        self.last_report(group)
    }

    /// Returns the report on a group by the last results, without executing a check.
    pub fn last_report(&self, group: &Group) -> Report {
        let config = self.settings();
        let now = self.0.clock.now();
        let mut checks = Vec::new();
        for checked in self.0.checks.iter().filter(|checked| checked.check.belongs_to(group)) {
            let state = checked.state.lock();
            let reason = state.failure(&config, now);
            let (latency, age) = (state.latency(), state.age(now));
            drop(state);
            let Check { name, kind, is_required, .. } = &checked.check;
            let status = match (reason, is_required) {
                (None, _) => HealthStatus::Healthy,
                (Some(_), true) => HealthStatus::Unhealthy,
                (Some(_), false) => HealthStatus::Degraded,
            };
            checks.push(CheckReport { name: name.clone(), kind: *kind, status, reason, latency, age });
        }
        let (status, reason) = self.verdict(group, &config, now);
        Report { status, reason, checks }
    }

    /// Returns the status of a group as a report has it, without the report on each check.
    #[cfg(feature = "http")]
    pub(crate) async fn status(&self, group: &Group) -> HealthStatus {
        match self.fresh_status(group) {
            Some(status) => status,
            // Boxed: it is seldom, and would make the future of each answer large.
            None => Box::pin(self.report(group)).await.status,
        }
    }

    /// Returns the status of a group if no check of it is due.
    #[cfg(feature = "http")]
    fn fresh_status(&self, group: &Group) -> Option<HealthStatus> {
        let (config, now) = (self.settings(), self.0.clock.now());
        let mut of_it = self.0.checks.iter().filter(|checked| checked.check.belongs_to(group));
        let is_fresh = of_it.all(|checked| checked.state.lock().is_fresh(&config, now));
        is_fresh.then(|| self.verdict(group, &config, now).0)
    }

    /// Returns the status of a group by the last results, and a further reason.
    fn verdict(&self, group: &Group, config: &HealthConfig, now: Instant) -> (HealthStatus, Option<GroupReason>) {
        let guards = *group == Group::Readiness;
        let around = Around {
            is_stopping: guards && *self.0.is_stopping.lock(),
            is_ejected: self.0.fleet.as_ref().filter(|_| guards).map(|fleet| fleet.is_ejected(now)),
        };
        status(self.failed(group, config, now), around)
    }

    /// Returns the failed checks of a group: the kind that counts, and `true` for a required one.
    fn failed(&self, group: &Group, config: &HealthConfig, now: Instant) -> impl Iterator<Item = (CheckKind, bool)> {
        let of_it = self.0.checks.iter().filter(|checked| checked.check.belongs_to(group));
        of_it.filter_map(move |Checked { check, state, .. }| {
            let state = state.lock();
            state.failure(config, now)?;
            // A fleet keeps members that were ready. One that never was is not, as if it failed by itself.
            let kind = if state.was_healthy() { check.kind } else { CheckKind::Local };
            Some((kind, check.is_required))
        })
    }

    /// Returns `true` unless readiness is unhealthy by the last results: the health check of a
    /// leader election, say. It executes no check: [`run`](Self::run) does.
    pub fn is_fit(&self) -> bool {
        self.last_report(&Group::Readiness).status != HealthStatus::Unhealthy
    }

    /// Ends readiness, and waits for `drain_delay`, in which load balancers notice. Call it before
    /// the service stops; liveness stays as it is.
    ///
    /// # Cancel safety
    /// If the future is dropped, readiness has ended all the same.
    pub async fn stopping(&self) {
        if !std::mem::replace(&mut *self.0.is_stopping.lock(), true) {
            self.0.tell(Event::Stopping);
        }
        self.0.clock.sleep(self.settings().drain_delay).await;
    }

    /// Executes the checks every `cache_ttl`, also without reports, and takes part in the fleet,
    /// until `shutdown` is ready.
    ///
    /// # Cancel safety
    /// If the future is dropped, results become stale, and the member's rows expire.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let _running = self.0.running.enter(1);
        race(shutdown, both(self.keep_watch(), self.keep_membership())).await;
        if let Some(fleet) = &self.0.fleet {
            fleet.leave(self.0.clock.now()).await;
        }
    }

    /// Executes the checks when their results are due.
    async fn keep_watch(&self) {
        loop {
            let config = self.settings();
            let now = self.0.clock.now();
            let due = (0..self.0.checks.len()).filter(|check| !self.is_fresh(*check, &config, now));
            let executed = join_all(due.map(|check| self.executed(check)));
            // A check that blocks its thread holds up no other one.
            let _ = within(&self.0.clock, config.timeout, executed).await;
            // Members that started together do not stay together.
            let jitter = scaled(config.cache_ttl, (LONGEST_PAUSE - 1.0) * self.0.entropy.unit());
            let now = self.0.clock.now();
            let due = self.0.checks.iter().map(|checked| checked.state.lock().due(&config)).min();
            // Not at once for one that has no result.
            let next = due.unwrap_or(now + config.cache_ttl).max(now + config.timeout);
            race(self.0.reconfigured.notified(), self.0.clock.sleep_until(next + jitter)).await;
        }
    }

    /// Takes part in the fleet: apart from the checks, so that a slow store delays none.
    async fn keep_membership(&self) {
        let Some(fleet) = &self.0.fleet else { return pending().await };
        loop {
            let config = self.settings();
            let part = self.part(&config);
            fleet.turn(&config, part, &|event| self.0.tell(event)).await;
            let pause = config.cache_ttl.min(LONGEST_TURN);
            // One that is away makes no request, and comes back soon after its checks.
            let pause = if part == Part::Away { pause.min(config.timeout) } else { pause };
            self.0.clock.sleep(scaled(pause, 1.0 + 0.2 * self.0.entropy.unit())).await;
        }
    }

    /// Returns the part of this member in its fleet.
    fn part(&self, config: &HealthConfig) -> Part {
        let failed: Vec<_> = self.failed(&Group::Readiness, config, self.0.clock.now()).collect();
        if *self.0.is_stopping.lock() || failed.contains(&(CheckKind::Local, true)) {
            return Part::Away;
        }
        match failed.contains(&(CheckKind::Dependency, true)) {
            true => Part::WantsToLeave,
            false => Part::Serves,
        }
    }

    fn due(&self, group: &Group, config: &HealthConfig, now: Instant) -> Vec<usize> {
        let is_due =
            |check: &usize| self.0.checks[*check].check.belongs_to(group) && !self.is_fresh(*check, config, now);
        (0..self.0.checks.len()).filter(is_due).collect()
    }

    fn is_fresh(&self, check: usize, config: &HealthConfig, now: Instant) -> bool {
        self.0.checks[check].state.lock().is_fresh(config, now)
    }

    /// Waits for an execution of the check, which all waiting callers share. It has a task of its
    /// own, so that no caller that is not polled delays the others.
    async fn executed(&self, check: usize) {
        let config = self.settings();
        let fresh = || self.is_fresh(check, &config, self.0.clock.now()).then_some(());
        for may_spawn in [self.0.spawner.is_there(), false] {
            // Under the lock of the flights: an execution that ended in between serves this caller, too.
            let lead = match self.0.flights.join_or_lead_unless(&check, TypeId::of::<()>(), fresh) {
                Err(()) => return,
                Ok(JoinOrLead::Joined(seat)) => {
                    let _ = seat.await;
                    return;
                }
                Ok(JoinOrLead::Leads(lead)) => lead,
            };
            let health = self.clone();
            let seat = lead.start(Box::pin(async move { health.execute(check).await }));
            if !may_spawn {
                let _ = seat.await;
                return;
            }
            // A spawner that drops its work leaves the execution to this caller.
            let seat = seat.in_background();
            self.0.spawner.spawn(async move { drop(seat.await) });
        }
    }

    async fn execute(&self, index: usize) {
        let config = self.settings();
        let Checked { check, state, executions } = &self.0.checks[index];
        *executions.lock() += 1;
        let began = self.0.clock.now();
        state.lock().begin(began);
        let execution = AssertUnwindSafe(within(&self.0.clock, config.timeout, async { check.execute().await }));
        let failed = match execution.catch_unwind().await {
            Ok(Some(Ok(()))) => None,
            Ok(Some(Err(error))) => Some((CheckFailure::Error, error)),
            Ok(None) => Some((CheckFailure::TimedOut, format!("no result within {:?}", config.timeout))),
            Err(panic) => Some((CheckFailure::Panicked, format!("the check panicked: {}", panic_text(&*panic)))),
        };
        let now = self.0.clock.now();
        let took = now - began;
        let failure = failed.as_ref().map(|(failure, _)| *failure);
        let changed = state.lock().record(&config, (now, took), failure);
        if let Some((failure, error)) = failed {
            self.0.tell(Event::CheckFailed { check: check.name.clone(), failure, error, took });
        }
        if let Some(healthy) = changed {
            self.0.tell(Event::Changed { check: check.name.clone(), healthy });
        }
    }

    /// Replaces the configuration while it is in use, the secret included.
    ///
    /// # Errors
    /// If a setting is invalid; then nothing has changed.
    pub fn reconfigure(&self, config: HealthConfig) -> Result<(), ConfigError> {
        self.validate(&config)?;
        *self.0.config.lock() = Arc::new(config);
        self.0.reconfigured.notify_waiters();
        self.0.tell(Event::ConfigChanged);
        Ok(())
    }

    /// Returns the current configuration.
    pub fn config(&self) -> HealthConfig {
        HealthConfig::clone(&self.settings())
    }

    fn settings(&self) -> Arc<HealthConfig> {
        self.0.config.lock().clone()
    }

    /// Returns `true` if the text is the secret of this service, or the one before.
    pub fn is_secret(&self, text: &str) -> bool {
        let config = self.settings();
        // Each is compared, so that the time does not tell which one it is.
        let secrets = [&config.secret, &config.previous_secret].into_iter().flatten();
        secrets.fold(false, |is_one, secret| is_one | secret.is(text))
    }

    /// Describes the health and its settings, with warnings.
    ///
    /// ```
    /// use steadfast::health::{Health, HealthConfig};
    ///
    /// # fn main() -> Result<(), steadfast::ConfigError> {
    /// let health = Health::builder(HealthConfig::default()).build()?;
    /// assert!(health.explain().warnings()[0].contains("has no check"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn explain(&self) -> Explanation {
        let config = self.settings();
        let checks = self.0.checks.iter().map(|Checked { check, .. }| {
            let need = if check.is_required { "required" } else { "optional" };
            format!("{} ({}, {need})", check.name(), check.kind.as_str())
        });
        let settings = format!(
            "{}; each once in {:?}, within {:?}; unhealthy after {} failures, or {:?} without a result",
            checks.collect::<Vec<_>>().join(", "),
            config.cache_ttl,
            config.timeout,
            config.failure_threshold,
            config.stale_after,
        );
        let mut layer = Layer::new(PolicyKind::Custom("health"), self.0.name.clone(), settings);
        let is_in_fleet = self.0.fleet.is_some();
        let warnings = [
            (self.0.checks.is_empty(), "has no check: each group is healthy".to_owned()),
            (
                is_in_fleet && self.0.running.get() == 0,
                "takes no part in its fleet, because `run` does not run: no dependency ejects it".to_owned(),
            ),
            (
                is_in_fleet && config.max_ejected >= 1.0,
                "all members of the fleet may leave at once, and nobody answers then".to_owned(),
            ),
            (
                config.report_timeout >= PROBE_TIMEOUT,
                format!(
                    "a platform's probe gives up after {PROBE_TIMEOUT:?}, a report after {:?}",
                    config.report_timeout
                ),
            ),
            (config.previous_secret.is_some(), "accepts the secret before the present one, too".to_owned()),
        ];
        for (_, warning) in warnings.into_iter().filter(|(is_true, _)| *is_true) {
            layer = layer.with_warning(warning);
        }
        let mut explanation = Explanation::default();
        explanation.push(layer);
        explanation
    }

    /// Returns the name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_ref().map(Name::as_str)
    }

    /// Returns the number of executions of a check so far, or `None` if there is no such check.
    pub fn executions(&self, check: &str) -> Option<u64> {
        self.0.checks.iter().find(|checked| checked.check.name() == check).map(|checked| *checked.executions.lock())
    }

    /// Returns the names of the checks, in their order.
    pub fn checks(&self) -> impl Iterator<Item = &str> {
        self.0.checks.iter().map(|checked| checked.check.name())
    }

    /// Subscribes to the events.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }
}

impl Inner {
    fn tell(&self, event: Event) {
        self.events.send(self.name.as_ref(), self.clock.now(), || event);
    }
}

/// Arguments of health checks, beside name, clock and entropy.
pub struct HealthSpec {
    config: HealthConfig,
    checks: Vec<Check>,
    fleet: Option<(Arc<dyn Store>, String)>,
    spawner: Spawner,
}

impl Builder<Health> {
    /// Adds a check.
    pub fn check(mut self, check: Check) -> Self {
        self.spec.checks.push(check);
        self
    }

    /// Makes the process a member of the fleet of its name: so many at most leave readiness because
    /// of a dependency. [`Health::run`] must run. Two members must not have the same name.
    pub fn fleet(mut self, store: Arc<dyn Store>, member: impl Into<String>) -> Self {
        self.spec.fleet = Some((store, member.into()));
        self
    }

    /// Sets the secret of requests that see details, as the setting of the same name.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.spec.config.secret = Some(secret);
        self
    }

    /// Sets the function that spawns the rest of an execution for which no report waits any more.
    /// The current tokio runtime by default.
    pub fn spawner(mut self, spawn: impl Fn(BoxFuture<'static, ()>) + Send + Sync + 'static) -> Self {
        self.spec.spawner = Spawner::own(spawn);
        self
    }
}

impl Component for Health {
    type Built = Result<Self, ConfigError>;
    type Spec = HealthSpec;

    fn assemble(spec: HealthSpec, common: Common) -> Self::Built {
        let HealthSpec { config, checks, fleet, spawner } = spec;
        config.check()?;
        let mut names = HashSet::new();
        for check in &checks {
            require(!check.name().is_empty(), "check", "must have a name")?;
            if !names.insert(check.name()) {
                return Err(ConfigError::new("check", format!("must not have the name `{}` twice", check.name())));
            }
            let rules = [
                (
                    Group::Liveness,
                    "must not be a dependency in the group of liveness: its outage would restart the fleet",
                ),
                (
                    Group::Startup,
                    "must not be a dependency in the group of startup: no process would start in its outage",
                ),
            ];
            let of_it = |(group, _): &&(Group, _)| check.kind == CheckKind::Dependency && check.belongs_to(group);
            if let Some((_, rule)) = rules.iter().find(of_it) {
                return Err(ConfigError::new("check", *rule).within(check.name()));
            }
        }
        let entropy = common.entropy();
        let Common { name, clock, hooks, .. } = common;
        let fleet = match fleet {
            None => None,
            Some((store, member)) => {
                let can = store.capabilities();
                can.require(Capability::TimeToLive).map_err(|lacks| lacks.refuse("fleet"))?;
                let fleet = name.as_ref().map_or("", Name::as_str);
                require(!fleet.is_empty(), "name", "must be set for a fleet")?;
                require(!member.is_empty(), "fleet", "must have a name for this member")?;
                let presence = FleetGuard::presence(store, &clock, (fleet, &member));
                require(presence.longest_key() <= can.max_key(), "fleet", "must not be longer than the store's keys")?;
                Some(FleetGuard::new(presence, clock.clone(), entropy.clone(), &member))
            }
        };
        let checked = |check| Checked { check, state: Mutex::default(), executions: Mutex::default() };
        Ok(Self(Arc::new(Inner {
            name,
            config: Mutex::new(Arc::new(config)),
            checks: checks.into_iter().map(checked).collect(),
            flights: Flights::finishing(spawner.clone()),
            spawner,
            fleet,
            is_stopping: Mutex::default(),
            running: InProgress::default(),
            reconfigured: Notify::new(),
            clock,
            entropy,
            events: hooks.events(),
        })))
    }
}

impl HasName for Health {}
impl HasEntropy for Health {}
impl HasEvents<Event> for Health {}

crate::build::debug_fields!(Health, |this|
    name: this.0.name, checks: this.0.checks.iter().map(|checked| checked.check.name()).collect::<Vec<_>>()
);
