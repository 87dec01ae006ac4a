//! The chaos policy.
use std::{
    future::{Future, pending},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;

use super::{
    ChaosConfig, ChaosEvent, Injection, WithOutcomes,
    draw::{End, draw, draw_outcome},
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, HasName},
    call::{self, Attempt, CallContext, CallState, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name, Reconfigure, reconfigurable},
    entropy::Entropy,
    observe::{Events, Subscription},
    outcome::{CallError, Outcome, PolicyKind, Reason, Rejected, Verdict},
    sync::Mutex,
    time::{Clock, nanos},
};

/// Injects faults into attempts, by a seed, while it is enabled.
///
/// A clone is cheap and shares settings, randomness, counts and events.
#[derive(Clone)]
pub struct Chaos(Arc<Inner>);

type Filter = dyn Fn(CallContext<'_>) -> bool + Send + Sync;

/// Arguments of a chaos policy, beside name, clock and entropy.
pub struct ChaosSpec {
    config: ChaosConfig,
    filter: Option<Box<Filter>>,
}

struct Inner {
    /// Read first by every attempt. `Relaxed`: it publishes nothing, and an attempt may see a
    /// change late.
    enabled: AtomicBool,
    config: ArcSwap<ChaosConfig>,
    /// Held while the configuration changes, so that the flag and the configuration change
    /// together.
    changing: Mutex<()>,
    counts: Counts,
    events: Events<ChaosEvent>,
    name: Option<Name>,
    clock: Clock,
    entropy: Entropy,
    filter: Option<Box<Filter>>,
}

#[derive(Default)]
struct Counts {
    attempts: AtomicU64,
    delayed: AtomicU64,
    failed: AtomicU64,
    replaced: AtomicU64,
    hung: AtomicU64,
    panicked: AtomicU64,
}

/// Numbers of injections, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Injected {
    /// Attempts that began while chaos was enabled, and that the filter admits.
    pub attempts: u64,
    /// Attempts that started later.
    pub delayed: u64,
    /// Attempts that failed without being started.
    pub failed: u64,
    /// Operations whose result was replaced.
    pub replaced: u64,
    /// Attempts that hang.
    pub hung: u64,
    /// Attempts that panicked.
    pub panicked: u64,
}

reconfigurable!(Chaos, ChaosConfig, |_this, next| next.check());

impl Chaos {
    /// Returns a policy with this configuration. Disabled unless [`ChaosConfig::enabled`] is set.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn new(config: ChaosConfig) -> Result<Self, ConfigError> {
        Self::builder(config).build()
    }

    /// Creates a builder of a policy. With one seed of its [`entropy`](Builder::entropy), attempts
    /// that begin in the same order get the same faults.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CChaos%3E): `filter`.
    pub fn builder(config: ChaosConfig) -> Builder<Self> {
        Builder::new(ChaosSpec { config, filter: None })
    }

    /// Returns the current configuration.
    pub fn config(&self) -> ChaosConfig {
        (*self.0.config.load_full()).clone()
    }

    /// Returns whether faults are injected.
    pub fn is_enabled(&self) -> bool {
        self.0.enabled.load(Relaxed)
    }

    /// Enables or disables the injection, for all clones. Attempts that already have a fault keep
    /// it.
    pub fn set_enabled(&self, enabled: bool) {
        let changing = self.0.changing.lock();
        self.change(self.config().enabled(enabled));
        drop(changing);
        self.flush();
    }

    /// Replaces the configuration while it is in use, for all clones. It applies to attempts that
    /// begin later. Counts and randomness continue.
    ///
    /// # Errors
    /// If a setting is invalid; then nothing has changed.
    pub fn reconfigure(&self, config: ChaosConfig) -> Result<(), ConfigError> {
        self.validate(&config)?;
        let changing = self.0.changing.lock();
        self.change(config);
        drop(changing);
        self.flush();
        Ok(())
    }

    /// Changes the configuration, and stages the event: a hook may change it again, so none runs
    /// under the lock.
    fn change(&self, config: ChaosConfig) {
        let shared = &*self.0;
        let enabled = config.enabled;
        shared.config.store(Arc::new(config));
        if shared.enabled.swap(enabled, Relaxed) != enabled {
            let event = || if enabled { ChaosEvent::SwitchedOn } else { ChaosEvent::SwitchedOff };
            shared.events.stage(shared.clock.now(), event);
        }
    }

    fn flush(&self) {
        self.0.events.flush(self.0.name.as_ref());
    }

    /// Returns the numbers of injections.
    pub fn injected(&self) -> Injected {
        let Counts { attempts, delayed, failed, replaced, hung, panicked } = &self.0.counts;
        Injected {
            attempts: attempts.load(Relaxed),
            delayed: delayed.load(Relaxed),
            failed: failed.load(Relaxed),
            replaced: replaced.load(Relaxed),
            hung: hung.load(Relaxed),
            panicked: panicked.load(Relaxed),
        }
    }

    /// Subscribes to the events.
    pub fn events(&self) -> Subscription<ChaosEvent> {
        self.0.events.subscribe()
    }

    /// Runs `operation` with this policy alone around it; every `Err` is a failure.
    ///
    /// # Errors
    /// The operation's own error, or the injected one.
    ///
    /// # Panics
    /// If a panic is injected.
    ///
    /// # Cancel safety
    /// Dropping the call drops the operation, or the wait in its place.
    #[inline]
    pub fn call<T: Send, E: Send, O>(&self, operation: O) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        O: Operation<Output = T, Error = E>, // `|| async { .. }`; blocks: `call_blocking`; not `Send`: `Pipeline::call_local`; `&mut`: `with_state`
    {
        call::call_alone(self, operation)
    }

    /// Wraps `operation`: if a rule for [`Injection::Outcome`] applies, it returns a result of
    /// `make` without being run.
    pub fn outcomes<T: Send, E: Send, O, M>(&self, operation: O, make: M) -> WithOutcomes<O, M>
    where
        O: Operation<Output = T, Error = E>,
        M: FnMut() -> Result<T, E> + Send,
    {
        WithOutcomes { chaos: self.clone(), operation, make }
    }

    /// Returns whether the result of this attempt is to be replaced.
    pub(super) fn replaces(&self, cx: CallContext<'_>) -> bool {
        let this = &*self.0;
        if !this.enabled.load(Relaxed) {
            return false;
        }
        let config = this.config.load();
        let has_rule = config.rules.iter().any(|rule| rule.inject == Injection::Outcome);
        let replaces = has_rule
            && this.is_met_by(cx)
            && draw_outcome(&config, this.entropy.next_u64(), cx.operation(), cx.attempt());
        if replaces {
            this.counts.replaced.fetch_add(1, Relaxed);
            this.tell(|| ChaosEvent::Replaced);
        }
        replaces
    }
}

impl Builder<Chaos> {
    /// Restricts the policy to attempts for which `filter` returns `true`: by number, deadline,
    /// priority, name.
    pub fn filter(mut self, filter: impl Fn(CallContext<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.spec.filter = Some(Box::new(filter));
        self
    }
}

impl Inner {
    fn is_met_by(&self, cx: CallContext<'_>) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter(cx))
    }

    /// Injects the faults of an attempt. Returns an outcome if the attempt is not to be started.
    async fn inject(&self, state: &mut dyn CallState, cx: CallContext<'_>) -> Option<Outcome> {
        let Counts { attempts, delayed, failed, hung, panicked, .. } = &self.counts;
        if !self.is_met_by(cx) {
            return None;
        }
        attempts.fetch_add(1, Relaxed);
        // All draws at once, so that attempts draw in the order in which they begin.
        let drawn = draw(&self.config.load(), self.entropy.next_u64(), cx.operation(), cx.attempt());
        if !drawn.delay.is_zero() {
            delayed.fetch_add(1, Relaxed);
            self.tell(|| ChaosEvent::Delayed { by: drawn.delay });
            self.clock.sleep(drawn.delay).await;
        }
        match drawn.end? {
            End::Fault(fault) => {
                failed.fetch_add(1, Relaxed);
                self.tell(|| ChaosEvent::Failed { kind: fault.kind });
                let reason = Reason::Injected { kind: fault.kind };
                let made_by =
                    Rejected::by_policy(PolicyKind::Chaos, self.name.as_ref(), reason, fault.retry_after.map(nanos));
                let mut verdict = Verdict::failure(fault.kind);
                if let Some(wait) = fault.retry_after {
                    verdict = verdict.with_retry_after(wait);
                }
                state.fail(made_by, verdict);
                Some(Outcome::Judged(verdict.class()))
            }
            End::Hang => {
                hung.fetch_add(1, Relaxed);
                self.tell(|| ChaosEvent::Hung);
                pending().await
            }
            End::Panic => {
                panicked.fetch_add(1, Relaxed);
                self.tell(|| ChaosEvent::Panicked);
                panic!("panic injected by chaos");
            }
        }
    }

    fn tell(&self, event: impl FnOnce() -> ChaosEvent) {
        let events = &self.events;
        if events.wanted() {
            events.send(self.name.as_ref(), self.clock.now(), event);
        }
    }
}

impl Component for Chaos {
    type Built = Result<Self, ConfigError>;
    type Spec = ChaosSpec;

    fn assemble(spec: ChaosSpec, common: Common) -> Self::Built {
        let ChaosSpec { config, filter } = spec;
        config.check()?;
        let (entropy, Common { name, clock, hooks, .. }) = (common.entropy(), common);
        Ok(Self(Arc::new(Inner {
            enabled: AtomicBool::new(config.enabled),
            config: ArcSwap::from_pointee(config),
            changing: Mutex::new(()),
            counts: Counts::default(),
            events: hooks.events(),
            name,
            clock,
            entropy,
            filter,
        })))
    }
}

impl HasName for Chaos {}
impl HasEntropy for Chaos {}
impl HasEvents<ChaosEvent> for Chaos {}

call::blocking_door!(Chaos);

impl Policy for Chaos {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        if self.is_enabled()
            && let Some(injected) = call::boxed(self.0.inject(inner.call_state(), cx)).await
        {
            return injected;
        }
        inner.attempt(cx).await
    }

    fn describe(&self, explanation: &mut Explanation) {
        let config = self.config();
        let rules: Vec<_> = config.rules.iter().map(ToString::to_string).collect();
        let switch = if config.enabled { "enabled" } else { "disabled" };
        let settings =
            if rules.is_empty() { format!("{switch}, no rules") } else { format!("{switch}: {}", rules.join("; ")) };
        let hangs = config.rules.iter().any(|rule| rule.inject == Injection::Hang);
        let warning = if config.enabled {
            "is built in and enabled: it injects faults on purpose"
        } else {
            "is built in, and injects faults as soon as it is enabled"
        };
        let layer = Layer::new(PolicyKind::Chaos, self.0.name.clone(), settings).with_hangs(hangs);
        explanation.push(layer.with_warning(warning));
    }
}

crate::build::debug_fields!(Chaos, |this| name: this.0.name, config: this.config(), injected: this.injected());
