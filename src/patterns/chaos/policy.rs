//! The policy.
use std::{
    fmt,
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
    call::{self, Attempt, CallContext, CallState, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name},
    entropy::Entropy,
    observe::{Events, Subscription},
    outcome::{CallError, Outcome, PolicyKind, Reason, Rejected, Verdict},
    sync::Mutex,
    time::{Clock, nanos},
};

/// Injects faults into attempts, by a seed, while it is switched on.
///
/// A clone is cheap and shares settings, randomness, counts and events.
#[derive(Clone)]
pub struct Chaos(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    shared: Arc<Shared>,
    name: Option<Name>,
    clock: Clock,
    entropy: Entropy,
    filter: Option<Arc<Filter>>,
}

type Filter = dyn Fn(CallContext<'_>) -> bool + Send + Sync;

struct Shared {
    /// What attempts ask first.
    enabled: AtomicBool,
    config: ArcSwap<ChaosConfig>,
    /// Held by who changes the settings.
    changing: Mutex<()>,
    counts: Counts,
    events: Events<ChaosEvent>,
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

/// What was injected so far, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Injected {
    /// The attempts that came by while it was switched on.
    pub attempts: u64,
    /// Those that started later.
    pub delayed: u64,
    /// Those that failed without being made.
    pub failed: u64,
    /// Operations that came back with a result that was made up.
    pub replaced: u64,
    /// Those that never end.
    pub hung: u64,
    /// Those that panicked.
    pub panicked: u64,
}

impl Chaos {
    /// Chaos by these settings. Switched off unless [`ChaosConfig::enabled`] says otherwise.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn new(config: ChaosConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let shared = Shared {
            enabled: AtomicBool::new(config.enabled),
            config: ArcSwap::from_pointee(config),
            changing: Mutex::new(()),
            counts: Counts::default(),
            events: Events::new(),
        };
        let (clock, entropy) = (Clock::tokio(), Entropy::from_os());
        Ok(Self(Arc::new(Inner { shared: Arc::new(shared), name: None, clock, entropy, filter: None })))
    }

    /// The same with a name, for errors and events.
    #[must_use]
    pub fn named(mut self, name: impl Into<Name>) -> Self {
        Arc::make_mut(&mut self.0).name = Some(name.into());
        self
    }

    /// The same on another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: &Clock) -> Self {
        Arc::make_mut(&mut self.0).clock = clock.clone();
        self
    }

    /// The same with other randomness: from one seed, attempts that begin in the same order meet the same.
    #[must_use]
    pub fn with_entropy(mut self, entropy: &Entropy) -> Self {
        Arc::make_mut(&mut self.0).entropy = entropy.clone();
        self
    }

    /// The same for those attempts alone that `filter` says yes to: by number, deadline, priority, name.
    #[must_use]
    pub fn with_filter(mut self, filter: impl Fn(CallContext<'_>) -> bool + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.0).filter = Some(Arc::new(filter));
        self
    }

    /// Its settings, as they are now.
    pub fn config(&self) -> ChaosConfig {
        (*self.0.shared.config.load_full()).clone()
    }

    /// Whether it is switched on.
    pub fn is_enabled(&self) -> bool {
        self.0.shared.enabled.load(Relaxed)
    }

    /// Switches it on or off, for all clones. What was injected already takes its course.
    pub fn set_enabled(&self, enabled: bool) {
        let _changing = self.0.shared.changing.lock();
        self.change(self.config().enabled(enabled));
    }

    /// Changes the settings while it is in use, for all clones; counts and randomness go on. Attempts that begin later go by them.
    ///
    /// # Errors
    /// Where a setting breaks its rule; then nothing has changed.
    pub fn reconfigure(&self, config: ChaosConfig) -> Result<(), ConfigError> {
        config.check()?;
        let _changing = self.0.shared.changing.lock();
        self.change(config);
        Ok(())
    }

    fn change(&self, config: ChaosConfig) {
        let shared = &self.0.shared;
        let enabled = config.enabled;
        shared.config.store(Arc::new(config));
        if shared.enabled.swap(enabled, Relaxed) != enabled {
            self.0.tell(|| if enabled { ChaosEvent::SwitchedOn } else { ChaosEvent::SwitchedOff });
        }
    }

    /// What it injected so far.
    pub fn injected(&self) -> Injected {
        let Counts { attempts, delayed, failed, replaced, hung, panicked } = &self.0.shared.counts;
        Injected {
            attempts: attempts.load(Relaxed),
            delayed: delayed.load(Relaxed),
            failed: failed.load(Relaxed),
            replaced: replaced.load(Relaxed),
            hung: hung.load(Relaxed),
            panicked: panicked.load(Relaxed),
        }
    }

    /// Its events from now on.
    pub fn events(&self) -> Subscription<ChaosEvent> {
        self.0.shared.events.subscribe()
    }

    /// Runs `operation` with nothing but this chaos around it; every `Err` is a failure.
    ///
    /// # Errors
    /// The operation's own, or what was injected.
    ///
    /// # Panics
    /// Where that is injected.
    ///
    /// # Cancel safety
    /// Dropped, it drops the operation, or what it does in its place.
    #[inline]
    pub fn call<O: Operation>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send {
        call::call_alone(self, operation)
    }

    /// `operation`, which comes back with a result of `make` instead, without being run, where a rule for [`Injection::Outcome`] hits.
    pub fn outcomes<O, M>(&self, operation: O, make: M) -> WithOutcomes<O, M>
    where
        O: Operation,
        M: FnMut() -> Result<O::Output, O::Error> + Send,
    {
        WithOutcomes { chaos: self.clone(), operation, make }
    }

    /// Whether the result of this attempt is to be made up.
    pub(super) fn replaces(&self, cx: CallContext<'_>) -> bool {
        let this = &*self.0;
        if !this.shared.enabled.load(Relaxed) {
            return false;
        }
        let config = this.shared.config.load();
        let has_rule = config.rules.iter().any(|rule| rule.inject == Injection::Outcome);
        let replaces = has_rule
            && this.is_met_by(cx)
            && draw_outcome(&config, this.entropy.next_u64(), cx.operation(), cx.attempt());
        if replaces {
            this.shared.counts.replaced.fetch_add(1, Relaxed);
            this.tell(|| ChaosEvent::Replaced);
        }
        replaces
    }
}

impl Inner {
    fn is_met_by(&self, cx: CallContext<'_>) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter(cx))
    }

    /// What an attempt meets before it is made, or in its place.
    async fn inject(&self, state: &mut dyn CallState, cx: CallContext<'_>) -> Option<Outcome> {
        let Counts { attempts, delayed, failed, hung, panicked, .. } = &self.shared.counts;
        if !self.is_met_by(cx) {
            return None;
        }
        attempts.fetch_add(1, Relaxed);
        // All at once, so that attempts draw in the order in which they begin.
        let drawn = draw(&self.shared.config.load(), self.entropy.next_u64(), cx.operation(), cx.attempt());
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
                panic!("a panic that was injected on purpose");
            }
        }
    }

    fn tell(&self, event: impl FnOnce() -> ChaosEvent) {
        let events = &self.shared.events;
        if events.wanted() {
            events.send(self.name.as_ref(), self.clock.now(), event);
        }
    }
}

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
        let switch = if config.enabled { "on" } else { "off" };
        let settings =
            if rules.is_empty() { format!("{switch}, no rules") } else { format!("{switch}: {}", rules.join("; ")) };
        let hangs = config.rules.iter().any(|rule| rule.inject == Injection::Hang);
        let warning = if config.enabled {
            "is built in and switched on: it injects faults on purpose"
        } else {
            "is built in, and injects faults as soon as somebody switches it on"
        };
        let layer = Layer::new(PolicyKind::Chaos, self.0.name.clone(), settings).with_hangs(hangs);
        explanation.push(layer.with_warning(warning));
    }
}

impl fmt::Debug for Chaos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chaos")
            .field("name", &self.0.name)
            .field("config", &self.config())
            .field("injected", &self.injected())
            .finish_non_exhaustive()
    }
}
