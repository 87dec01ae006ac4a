//! The policy: the async shell around the decision.
use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use super::{RetryBudget, RetryConfig, RetryEvent, state::Failed};
use crate::{
    backoff::{Backoff, Jitter},
    call::{self, Attempt, CallContext, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name},
    entropy::Entropy,
    observe::{Events, Subscription},
    outcome::{CallError, Cause, FailureKind, History, Outcome, PolicyKind, Stop},
    time::{Clock, Instant},
};

type Delays = Box<dyn Iterator<Item = Duration> + Send>;

/// Repeats what is inside it while it fails in ways that pass.
///
/// A clone is cheap and shares budget, randomness and events.
#[derive(Clone, Debug)]
pub struct Retry(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    config: RetryConfig,
    name: Option<Name>,
    clock: Clock,
    entropy: Entropy,
    budget: Option<RetryBudget>,
    delays: Option<Arc<dyn Fn() -> Delays + Send + Sync>>,
    events: Events<RetryEvent>,
}

impl Retry {
    /// A retry by these settings, without a budget.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn new(config: RetryConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::make(config, Clock::tokio(), Entropy::from_os(), None))
    }

    /// For settings that were checked before.
    pub(crate) fn make(config: RetryConfig, clock: Clock, entropy: Entropy, name: Option<Name>) -> Self {
        let events = Events::new();
        Self(Arc::new(Inner { config, name, clock, entropy, budget: None, delays: None, events }))
    }

    /// The same with a name, for events.
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

    /// The same with other randomness for its jitter.
    #[must_use]
    pub fn with_entropy(mut self, entropy: &Entropy) -> Self {
        Arc::make_mut(&mut self.0).entropy = entropy.clone();
        self
    }

    /// The same with a budget, which it shares with every policy that holds a clone of it.
    #[must_use]
    pub fn with_budget(mut self, budget: &RetryBudget) -> Self {
        Arc::make_mut(&mut self.0).budget = Some(budget.clone());
        self
    }

    /// The same with delays of your own in place of the configured back-off: `delays` is asked once for each call that fails,
    /// and the retry gives up where the iterator ends. No jitter is added and no cap applied.
    #[must_use]
    pub fn with_delays<I>(mut self, delays: impl Fn() -> I + Send + Sync + 'static) -> Self
    where
        I: Iterator<Item = Duration> + Send + 'static,
    {
        Arc::make_mut(&mut self.0).delays = Some(Arc::new(move || Box::new(delays())));
        self
    }

    /// Its settings.
    pub fn config(&self) -> &RetryConfig {
        &self.0.config
    }

    /// Its budget.
    pub fn budget(&self) -> Option<&RetryBudget> {
        self.0.budget.as_ref()
    }

    /// Its events from now on.
    pub fn events(&self) -> Subscription<RetryEvent> {
        self.0.events.subscribe()
    }

    /// Runs `operation` with nothing but this retry around it; every `Err` is a failure.
    ///
    /// # Errors
    /// The operation's own, of the last attempt, with the [history](CallError::history) of the others.
    ///
    /// # Cancel safety
    /// Dropped, it drops the running attempt, and makes no other. What it took from the budget stays taken.
    #[inline]
    pub async fn call<O: Operation>(&self, operation: O) -> Result<O::Output, CallError<O::Error>> {
        call::call_alone(self, operation).await
    }
}

impl Policy for Retry {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome<A::Output, A::Error> {
        let this = &*self.0;
        if cx.is_retried() && !this.config.retry_nested {
            return inner.attempt(cx).await;
        }
        if let Some(budget) = &this.budget {
            budget.deposit(this.clock.now());
        }
        let mut call = Call { retry: this, attempt: 1, started: None, delays: None, first: None };
        loop {
            let outcome = {
                let mut work = pin!(inner.attempt(cx.retrying(call.attempt)));
                poll_fn(|task| {
                    let polled = work.as_mut().poll(task);
                    if polled.is_pending() && call.started.is_none() {
                        call.started = Some(this.clock.now());
                    }
                    polled
                })
                .await
            };
            if !outcome.verdict.is_failure() && outcome.rejection().is_none() {
                if call.attempt > 1 {
                    call.recovered();
                }
                return outcome;
            }
            match call.failed(&outcome, cx) {
                Ok(at) => {
                    call.another(outcome);
                    if let Some(at) = at {
                        this.clock.sleep_until(at).await;
                    }
                }
                Err(stop) => return call.give_up(outcome, stop),
            }
        }
    }

    fn describe(&self, explanation: &mut Explanation) {
        let Inner { config, name, budget, delays, .. } = &*self.0;
        let backoff = match delays {
            Some(_) => "delays of its own".to_owned(),
            None => format!(
                "{:?} back-off from {:?} to {:?}, jitter {:?}",
                config.backoff.curve, config.backoff.base, config.backoff.cap, config.backoff.jitter
            )
            .to_lowercase(),
        };
        let settings = format!("at most {} attempts, {backoff}", config.max_attempts);
        let mut layer = Layer::new(PolicyKind::Retry, name.clone(), settings).with_budget(budget.is_some());
        if config.max_attempts > 1 && delays.is_none() && config.backoff.jitter == Jitter::None {
            layer = layer.with_warning("without jitter, clients that failed together come back together");
        }
        explanation.push(layer);
    }
}

/// One call in the course of its attempts.
struct Call<'a, E> {
    retry: &'a Inner,
    attempt: u32,
    started: Option<Instant>,
    delays: Option<Delays>,
    first: Option<First<E>>,
}

struct First<E> {
    cause: Option<Cause<E>>,
    kind: Option<FailureKind>,
}

impl<E> Call<'_, E> {
    /// When to make the next attempt (`None`: at once), if there is to be one.
    #[cold]
    fn failed<T>(&mut self, outcome: &Outcome<T, E>, cx: CallContext<'_>) -> Result<Option<Instant>, Stop> {
        let Inner { config, clock, entropy, budget, events, name, .. } = self.retry;
        let asked = config.may_follow(&Failed {
            attempt: self.attempt,
            verdict: outcome.verdict,
            rejection: outcome.rejection(),
            idempotent: cx.is_idempotent(),
        })?;
        let now = clock.now();
        let started = *self.started.get_or_insert(now);
        let delays = self.delays.get_or_insert_with(|| match &self.retry.delays {
            Some(own) => own(),
            None => Box::new(Backoff::checked(config.backoff, entropy)),
        });
        let delay = config.delay(delays.next().ok_or(Stop::BackoffEnded)?, asked);
        let at = now + delay;
        config.fits(started, at, cx.deadline())?;
        let kind = outcome.verdict.kind();
        if budget.as_ref().is_some_and(|budget| !budget.withdraw(now, kind)) {
            return Err(Stop::Budget);
        }
        let attempt = self.attempt;
        events.send(name.as_ref(), now, || RetryEvent::Retrying { attempt, kind, delay });
        Ok((!delay.is_zero()).then_some(at))
    }

    fn another<T>(&mut self, outcome: Outcome<T, E>) {
        if self.first.is_none() {
            self.first = Some(First { kind: outcome.verdict.kind(), cause: outcome.result.err() });
        }
        self.attempt += 1;
    }

    #[cold]
    fn recovered(&self) {
        let Inner { clock, events, name, .. } = self.retry;
        events.send(name.as_ref(), clock.now(), || RetryEvent::Recovered { attempts: self.attempt });
    }

    #[cold]
    fn give_up<T>(mut self, mut outcome: Outcome<T, E>, stop: Stop) -> Outcome<T, E> {
        let Inner { clock, events, name, config, .. } = self.retry;
        let now = clock.now();
        let kind = outcome.verdict.kind();
        events.send(name.as_ref(), now, || RetryEvent::GaveUp { attempts: self.attempt, kind, stop });
        // A first attempt that was never going to be repeated has no history worth a box.
        let plain = self.attempt == 1 && (stop == Stop::NotRetryable || config.max_attempts == 1);
        if !plain && outcome.result.is_err() {
            let first = self.first.take();
            outcome.history = Some(Box::new(History {
                first_kind: first.as_ref().map_or(kind, |f| f.kind),
                first: first.and_then(|f| f.cause),
                last_kind: kind,
                elapsed: self.started.map_or(Duration::ZERO, |started| now - started),
                stop,
            }));
        }
        outcome
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry")
            .field("name", &self.name)
            .field("config", &self.config)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}
