//! The parts of the stack, each of which is on or off.
use std::{
    future::{Future, ready},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use super::{StandardConfig, stack::Surroundings};
use crate::{
    build::{Common, Component},
    call::{Attempt, CallContext, Either, Explanation, Policy, Switch},
    circuit_breaker::CircuitBreaker,
    config::ConfigError,
    fallback::Fallback,
    hedge::Hedge,
    outcome::{Outcome, Rejected},
    retry::{Retry, RetryBudget},
    throttling::{
        AdaptiveLimiter, AdaptivePermit, ClientThrottle, ClientThrottlePermit, ConcurrencyLimiter, ConcurrencyPermit,
        RateLimiter, Shedder,
    },
    timeout::Timeout,
};

#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) fallback: Switch<Fallback>,
    pub(crate) timeout: Switch<Timeout>,
    pub(crate) admission: Admission,
    pub(crate) retry: Switch<Retry>,
    pub(crate) budget: RetryBudget,
    pub(crate) hedge: Switch<Hedge>,
    pub(crate) guard: Guard,
    pub(crate) attempt_timeout: Switch<Timeout>,
}

/// The policies that admit a call. One layer, not four: the compiler bounds how deep they nest.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) shed: Switch<Shedder>,
    pub(crate) rate_limit: Switch<RateLimiter>,
    /// At most one of the two is on.
    pub(crate) concurrency_limit: Switch<ConcurrencyLimiter>,
    pub(crate) adaptive_limit: Switch<AdaptiveLimiter>,
}

/// The throttle around the breaker, also in one layer.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) throttle: Switch<ClientThrottle>,
    pub(crate) breaker: Switch<CircuitBreaker>,
}

/// Creates a part from its settings, or from the defaults and switched off.
fn part<C: Clone + Default, P>(config: Option<&C>, make: impl FnOnce(C) -> P) -> Switch<P> {
    let part = Switch::new(make(config.cloned().unwrap_or_default()));
    part.set(config.is_some());
    part
}

/// Changes the settings of a part, and switches it.
fn change<C: Clone, P>(
    part: &Switch<P>,
    config: Option<&C>,
    reconfigure: impl FnOnce(&P, C) -> Result<(), ConfigError>,
) -> Result<(), ConfigError> {
    if let Some(config) = config {
        reconfigure(part.policy(), config.clone())?;
    }
    part.set(config.is_some());
    Ok(())
}

impl Parts {
    pub(super) fn new(config: &StandardConfig, with: &Surroundings) -> Self {
        // Each part is named after the stack and itself.
        let common = |part: &str| {
            let name = with.common.name.as_ref();
            let name = name.map_or_else(|| part.to_owned(), |name| format!("{name}.{part}"));
            Common { name: Some(name.into()), ..with.common.clone() }
        };
        let timeout =
            |limit: Option<&Duration>, name: &str| part(limit, |limit| Timeout::assemble(limit, common(name)));
        let budget = RetryBudget::make(config.retry_budget.unwrap_or_default());
        budget.switch(config.retry_budget.is_some());
        Self {
            fallback: part(config.fallback.as_ref(), |c| Fallback::make(c, common("fallback"))),
            timeout: timeout(config.timeout.as_ref(), "timeout"),
            admission: Admission {
                shed: part(config.shed.as_ref(), |c| Shedder::make(c, with.gauges.clone(), common("shed"))),
                rate_limit: part(config.rate_limit.as_ref(), |c| RateLimiter::make(&c, common("rate_limit"))),
                concurrency_limit: part(config.concurrency_limit.as_ref(), |c| {
                    ConcurrencyLimiter::make(c, common("concurrency_limit"))
                }),
                adaptive_limit: part(config.adaptive_limit.as_ref(), |c| {
                    AdaptiveLimiter::make(c, common("adaptive_limit"))
                }),
            },
            retry: part(config.retry.as_ref(), |c| {
                Retry::make(Retry::builder(c).budget(&budget).spec, common("retry"))
            }),
            hedge: part(config.hedge.as_ref(), |c| {
                Hedge::make(Hedge::builder(c).budget(&budget).spec, common("hedge"))
            }),
            guard: Guard {
                throttle: part(config.client_throttle.as_ref(), |c| ClientThrottle::make(c, common("client_throttle"))),
                breaker: part(config.circuit_breaker.as_ref(), |c| CircuitBreaker::make(c, common("circuit_breaker"))),
            },
            attempt_timeout: timeout(config.attempt_timeout.as_ref(), "attempt_timeout"),
            budget,
        }
    }

    /// Applies settings that were checked before. The one step that may fail comes first, so that
    /// nothing has changed then.
    pub(super) fn reconfigure(&self, config: &StandardConfig) -> Result<(), ConfigError> {
        let Self { admission, guard, .. } = self;
        change(&admission.shed, config.shed.as_ref(), Shedder::reconfigure).map_err(|e| e.within("shed"))?;
        change(&self.fallback, config.fallback.as_ref(), Fallback::reconfigure)?;
        change(&self.timeout, config.timeout.as_ref(), Timeout::reconfigure)?;
        change(&admission.rate_limit, config.rate_limit.as_ref(), RateLimiter::reconfigure)?;
        change(&admission.concurrency_limit, config.concurrency_limit.as_ref(), ConcurrencyLimiter::reconfigure)?;
        change(&admission.adaptive_limit, config.adaptive_limit.as_ref(), AdaptiveLimiter::reconfigure)?;
        change(&self.retry, config.retry.as_ref(), Retry::reconfigure)?;
        if let Some(budget) = config.retry_budget {
            self.budget.reconfigure(budget)?;
        }
        self.budget.switch(config.retry_budget.is_some());
        change(&self.hedge, config.hedge.as_ref(), Hedge::reconfigure)?;
        change(&guard.throttle, config.client_throttle.as_ref(), ClientThrottle::reconfigure)?;
        change(&guard.breaker, config.circuit_breaker.as_ref(), CircuitBreaker::reconfigure)?;
        change(&self.attempt_timeout, config.attempt_timeout.as_ref(), Timeout::reconfigure)
    }
}

/// The permits of an admitted call.
struct Admitted<'a> {
    place: Option<ConcurrencyPermit<'a>>,
    adaptive: Option<AdaptivePermit<'a>>,
}

impl Admission {
    #[inline]
    async fn admit(&self, cx: CallContext<'_>) -> Result<Admitted<'_>, Rejected> {
        if let Some(shed) = self.shed.get() {
            shed.try_acquire(cx.priority())?;
        }
        if let Some(limit) = self.rate_limit.get() {
            limit.acquire_for(cx).await?;
        }
        let mut admitted = Admitted { place: None, adaptive: None };
        if let Some(limit) = self.adaptive_limit.get() {
            admitted.adaptive = Some(limit.acquire_for(cx).await?);
        } else if let Some(limit) = self.concurrency_limit.get() {
            admitted.place = Some(limit.acquire_within(|| cx.deadline()).await?);
        }
        Ok(admitted)
    }
}

impl Policy for Admission {
    #[inline]
    fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        async move {
            let Admitted { place, adaptive } = match self.admit(cx).await {
                Ok(admitted) => admitted,
                Err(rejected) => return inner.refuse(rejected),
            };
            let outcome = inner.attempt(cx).await;
            drop(place);
            if let Some(permit) = adaptive {
                permit.settle(outcome);
            }
            outcome
        }
    }

    fn describe(&self, explanation: &mut Explanation) {
        self.shed.describe(explanation);
        self.rate_limit.describe(explanation);
        self.concurrency_limit.describe(explanation);
        self.adaptive_limit.describe(explanation);
    }
}

impl Policy for Guard {
    #[inline]
    fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        match self.throttle.get().map(ClientThrottle::try_acquire).transpose() {
            Ok(permit) => Either::Left { future: Throttled { work: self.breaker.around(inner, cx), permit } },
            Err(rejected) => Either::Right { future: ready(inner.refuse(rejected)) },
        }
    }

    fn describe(&self, explanation: &mut Explanation) {
        self.throttle.describe(explanation);
        self.breaker.describe(explanation);
    }
}

pin_project_lite::pin_project! {
    /// A call that the throttle has admitted. Not an `async fn`, which would nest the type of the
    /// call deeper.
    struct Throttled<'t, W> {
        #[pin]
        work: W,
        permit: Option<ClientThrottlePermit<'t>>,
    }
}

impl<W: Future<Output = Outcome>> Future for Throttled<'_, W> {
    type Output = Outcome;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let this = self.project();
        let polled = this.work.poll(cx);
        if let Poll::Ready(outcome) = polled
            && let Some(permit) = this.permit.take()
        {
            permit.settle(outcome.class());
        }
        polled
    }
}
