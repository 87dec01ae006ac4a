//! The policy: the async part around the pure decision. The budget, the end of the delays and
//! nesting are checked here.
use std::{
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use super::{
    RetryBudget, RetryConfig, RetryEvent,
    builder::{DelaySource, Delays, RetrySpec},
    decision::FailedAttempt,
    live::{Live, RetrySettings},
};
use crate::{
    backoff::{Backoff, Curve, Jitter},
    build::{Builder, Common},
    call::{
        self, Attempt, AttemptInternals, CallContext, CallState, Cold, Explanation, Frame, Layer, Operation, Policy,
    },
    config::{ConfigError, Name, Reconfigure, reconfigurable},
    entropy::Entropy,
    observe::{Events, Subscription},
    outcome::{CallError, FailureKind, NextAttempt, Outcome, PolicyKind, Rejected, StopReason, Verdict},
    race::yield_now,
    time::{Clock, Instant, is_blocking},
};

/// Repeats an operation while it fails with transient failures.
///
/// A clone is cheap and shares settings, budget, randomness and events.
#[derive(Clone, Debug)]
pub struct Retry(Arc<RetryInner>);

struct RetryInner {
    settings: RetrySettings,
    name: Option<Name>,
    clock: Clock,
    entropy: Entropy,
    budget: Option<RetryBudget>,
    delays: Option<DelaySource>,
    events: Events<RetryEvent>,
}

reconfigurable!(Retry, RetryConfig, |_this, next| next.check());

impl Retry {
    /// Creates a retry without a budget.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a setting is out of range.
    pub fn new(config: RetryConfig) -> Result<Self, ConfigError> {
        Self::builder(config).build()
    }

    /// Creates a builder of a retry.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CRetry%3E): `budget`, `delays`.
    pub fn builder(config: RetryConfig) -> Builder<Self> {
        Builder::new(RetrySpec { config, budget: None, delays: None })
    }

    /// Creates a retry from settings that were checked before.
    pub(crate) fn make(spec: RetrySpec, common: Common) -> Self {
        let RetrySpec { config, budget, delays } = spec;
        let (entropy, Common { name, clock, hooks, .. }) = (common.entropy(), common);
        let (settings, events) = (RetrySettings::new(config), hooks.events());
        Self(Arc::new(RetryInner { settings, name, clock, entropy, budget, delays, events }))
    }

    /// Returns the current settings.
    pub fn config(&self) -> RetryConfig {
        self.0.settings.get()
    }

    /// Replaces the settings while in use, for all clones. A call in flight uses them from its next
    /// failure on; the delays between its attempts stay those with which it began.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a setting is out of range. Nothing has changed then.
    pub fn reconfigure(&self, config: RetryConfig) -> Result<(), ConfigError> {
        self.validate(&config)?;
        self.0.settings.set(config);
        Ok(())
    }

    /// Returns the budget, if one is set.
    pub fn budget(&self) -> Option<&RetryBudget> {
        self.0.budget.as_ref()
    }

    /// Subscribes to events, from now on.
    pub fn events(&self) -> Subscription<RetryEvent> {
        self.0.events.subscribe()
    }

    /// Runs `operation` under this retry alone; every `Err` is a failure. A pipeline can judge
    /// otherwise: `Pipeline::new().then(&retry)` with [`retry_if`](crate::Pipeline::retry_if).
    ///
    /// # Errors
    /// Returns the error of the last attempt, with the [history](CallError::history) of the others.
    ///
    /// # Cancel safety
    /// If the future is dropped, the running attempt is dropped, and no other starts. Withdrawals
    /// from the budget are not refunded.
    #[inline]
    pub fn call<T: Send, E: Send, O>(&self, mut operation: O) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        O: Operation<Output = T, Error = E>, // `|| async { .. }`; blocks: `call_blocking`; not `Send`: `Pipeline::call_local`; `&mut`: `with_state`
    {
        // Not an `async fn`, which would store the operation twice.
        async move {
            if call::alone::is_traced() {
                return Cold::new(Box::pin(call::call_alone(self, operation))).await;
            }
            let this = &*self.0;
            let cx = CallContext::of(&operation);
            this.deposit(cx);
            let live = this.settings.live();
            let mut started = this.start(live);
            let first = {
                let frame = this.frame(cx, 1, live);
                let work = pin!(operation.run(frame.context()));
                this.first(work, &mut started).await
            };
            match first {
                Ok(value) => Ok(value),
                Err(error) => call::boxed(this.go_on_alone(operation, error, started, cx)).await,
            }
        }
    }
}

call::blocking_door!(Retry);

impl RetryInner {
    async fn go_on_alone<O: Operation>(
        &self,
        mut operation: O,
        error: O::Error,
        started: Option<Instant>,
        cx: CallContext<'_>,
    ) -> Result<O::Output, CallError<O::Error>> {
        let mut attempt = call::alone::after_failure(&mut operation, error);
        let mut outcome = Outcome::Judged(Verdict::failure(FailureKind::Other).class());
        let mut call = self.began(started);
        if let Some(next) = call.failed(outcome, attempt.call_state(), cx) {
            outcome = call.go_on(&mut attempt, next, cx).await;
        }
        call::alone::result(&mut attempt, (self.name.as_ref(), outcome), cx)
    }

    /// Returns the start of the total time of a call that blocks. Another one starts with its first
    /// wait, and reads no clock if it has none; a call that blocks may take long without one.
    #[inline]
    fn start(&self, live: Live) -> Option<Instant> {
        (live.timed && is_blocking()).then(|| self.clock.now())
    }

    /// Runs the first attempt. Its first wait is the start of the total time.
    #[inline]
    fn first<F: Future>(
        &self,
        mut work: Pin<&mut F>,
        started: &mut Option<Instant>,
    ) -> impl Future<Output = F::Output> {
        poll_fn(move |task| {
            let polled = work.as_mut().poll(task);
            if polled.is_pending() && started.is_none() {
                *started = Some(self.clock.now());
            }
            polled
        })
    }

    /// Counts the call in the budget, unless an outer policy has. Returns `true` if it did.
    #[inline]
    fn deposit(&self, cx: CallContext<'_>) -> bool {
        let Some(budget) = self.budget.as_ref().filter(|budget| !cx.has_paid_into(budget)) else { return false };
        budget.deposit(self.clock.now());
        true
    }

    #[inline]
    fn frame<'a>(&'a self, cx: CallContext<'a>, n: u32, live: Live) -> Frame<'a> {
        let Live { repeats, assumes, .. } = live;
        cx.retrying_on(n, self.budget.as_ref(), repeats, assumes)
    }

    /// Returns `true` if an outer retry repeats all that this one would.
    #[inline]
    fn leaves_all(cx: CallContext<'_>, own: Live) -> bool {
        let outer = cx.repeats();
        !outer.is_nothing() && !own.nested && outer.covers(cx.allowed(own.repeats, own.assumes))
    }

    fn began(&self, started: Option<Instant>) -> RetryCall<'_> {
        RetryCall { retry: self, attempt: 1, started, delays: None }
    }
}

impl Policy for Retry {
    #[inline]
    fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        async move {
            let this = &*self.0;
            let live = this.settings.live();
            let leaves_all = RetryInner::leaves_all(cx, live);
            let deposited = !leaves_all && this.deposit(cx);
            let mut started = this.start(live);
            let outcome = {
                let frame = this.frame(cx, 1, live);
                let work = pin!(inner.attempt(if leaves_all { cx } else { frame.context() }));
                this.first(work, &mut started).await
            };
            if !(outcome.is_failure() || outcome == Outcome::Rejected) {
                return outcome;
            }
            // A rejection inside was no load on the target, so it earns no retries.
            if let (Outcome::Rejected, true, Some(budget)) = (outcome, deposited, &this.budget) {
                budget.refund(this.clock.now());
            }
            let mut call = this.began(started);
            match call.failed(outcome, inner.call_state(), cx) {
                Some(next) => call::boxed(call.go_on(inner, next, cx)).await,
                None => outcome,
            }
        }
    }

    fn describe(&self, explanation: &mut Explanation) {
        let RetryInner { name, budget, delays, .. } = &*self.0;
        let config = self.config();
        let backoff = match delays {
            Some(_) => "custom delays".to_owned(),
            None => format!(
                "{:?} back-off from {:?} to {:?}, jitter {:?}",
                config.backoff.curve, config.backoff.base, config.backoff.cap, config.backoff.jitter
            )
            .to_lowercase(),
        };
        let assumption = match config.idempotent {
            true => "assumes that unmarked operations are idempotent",
            false => "repeats unmarked operations only after failures that prove that nothing was sent",
        };
        let settings = format!("at most {} attempts, {backoff}; {assumption}", config.max_attempts);
        let mut layer = Layer::new(PolicyKind::Retry, name.clone(), settings)
            .with_budget(budget.as_ref().is_some_and(RetryBudget::is_on))
            .with_component(self);
        layer = layer.with_idempotent(config.idempotent);
        if config.max_attempts > 1 && delays.is_none() && config.backoff.jitter == Jitter::None {
            layer = layer.with_warning("without jitter, clients that failed together retry together");
        }
        let is_flat = config.backoff.base >= config.backoff.cap
            || (config.backoff.curve == Curve::Constant && config.backoff.jitter != Jitter::Decorrelated);
        if config.max_attempts > 2 && delays.is_none() && is_flat {
            layer = layer.with_warning("without growing delays, a struggling service gets no relief");
        }
        if config.max_attempts > 1 && !config.idempotent && !config.retry_on.contains(FailureKind::Connect) {
            layer = layer.with_warning(
                "it never repeats an unmarked operation: those may not run twice, and `retry_on` lacks `connect`, the one kind \
                 of failure that proves that nothing was sent",
            );
        }
        explanation.push(layer);
    }
}

/// One call between its attempts.
struct RetryCall<'a> {
    retry: &'a RetryInner,
    attempt: u32,
    started: Option<Instant>,
    delays: Option<Delays>,
}

/// The next attempt: the wait, from the time at which it was decided.
struct Next {
    decided: Instant,
    delay: Duration,
}

impl RetryCall<'_> {
    /// Continues after the first attempt has failed.
    async fn go_on<A: Attempt>(mut self, mut inner: A, mut next: Next, cx: CallContext<'_>) -> Outcome {
        loop {
            inner.again(self.announce(&next, cx));
            self.attempt += 1;
            if next.delay.is_zero() {
                // An operation that is ready at once must not keep the thread from other tasks.
                yield_now().await;
            } else {
                self.retry.clock.sleep_until(next.decided + next.delay).await;
            }
            let outcome = inner.attempt(self.retry.frame(cx, self.attempt, self.retry.settings.live()).context()).await;
            if !outcome.is_failure() && outcome != Outcome::Rejected {
                self.recovered();
                return outcome;
            }
            match self.failed(outcome, inner.call_state(), cx) {
                Some(another) => next = another,
                None => return outcome,
            }
        }
    }

    /// Describes the next attempt, for hooks.
    fn announce<'n>(&'n self, next: &Next, cx: CallContext<'_>) -> NextAttempt<'n> {
        NextAttempt {
            failed: self.attempt,
            delay: next.delay,
            retry: self.retry.name.as_ref().map(Name::as_str),
            operation: cx.operation(),
            hedge: cx.hedge(),
        }
    }

    /// Handles a failed attempt: returns the next one, if another follows.
    #[cold]
    #[inline(never)]
    fn failed(&mut self, outcome: Outcome, state: &mut dyn CallState, cx: CallContext<'_>) -> Option<Next> {
        let RetryInner { clock, events, name, settings, .. } = self.retry;
        let attempt = self.attempt;
        match self.next(outcome, state, cx) {
            Ok(next) => {
                let Next { decided, delay } = next;
                events.send(name.as_ref(), decided, || {
                    let cause = state.cause_of(outcome);
                    RetryEvent::Retrying { attempt, cause, delay }
                });
                Some(next)
            }
            Err(stop) => {
                let now = clock.now();
                events.send(name.as_ref(), now, || {
                    let cause = state.cause_of(outcome);
                    RetryEvent::GaveUp { attempts: attempt, cause, stop }
                });
                // A first attempt that is never repeated needs no history, which would be boxed.
                if attempt > 1 || (stop != StopReason::NotRetryable && settings.get().max_attempts > 1) {
                    state.gave_up(stop, self.started.map_or(Duration::ZERO, |started| now - started));
                }
                None
            }
        }
    }

    /// Computes the wait before the next attempt, from now, or the reason why there is none.
    fn next(&mut self, outcome: Outcome, state: &dyn CallState, cx: CallContext<'_>) -> Result<Next, StopReason> {
        let RetryInner { settings, clock, entropy, budget, .. } = self.retry;
        let config = settings.get();
        let asked = config.may_follow(&FailedAttempt {
            attempt: self.attempt,
            kind: outcome.kind(),
            hint: state.hint(),
            refused: (outcome == Outcome::Rejected)
                .then(|| state.rejection().map_or(state.hint().retry_after(), Rejected::retry_after)),
            spent: state.is_spent(),
            idempotent: cx.is_idempotent().unwrap_or(config.idempotent),
        })?;
        if !config.retry_nested && cx.repeats().has(outcome.kind()) {
            return Err(StopReason::Nested);
        }
        let now = clock.now();
        let started = *self.started.get_or_insert(now);
        let delays = self.delays.get_or_insert_with(|| match &self.retry.delays {
            Some(own) => own(),
            None => Box::new(Backoff::checked(config.backoff, entropy)),
        });
        // A user's own delays get no jitter.
        let spread = if self.retry.delays.is_some() || asked.is_none() { 0.0 } else { entropy.unit() };
        let delay = config.delay(delays.next().ok_or(StopReason::BackoffEnded)?, asked, spread);
        config.fits(started, now + delay, cx.deadline())?;
        match budget {
            Some(budget) if !budget.withdraw(now, outcome.kind()) => Err(StopReason::Budget),
            _ => Ok(Next { decided: now, delay }),
        }
    }

    fn recovered(&self) {
        let RetryInner { clock, events, name, .. } = self.retry;
        events.send(name.as_ref(), clock.now(), || RetryEvent::Recovered { attempts: self.attempt });
    }
}

impl fmt::Debug for RetryInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry")
            .field("name", &self.name)
            .field("config", &self.settings.get())
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}
