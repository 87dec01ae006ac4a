//! Policies that tell by their events what they do: counts of the last 15 minutes.
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::{
    panel::{Look, Order, Panel, Source, View, ready, unknown},
    readout::{ReadOut, count, spoken},
    recent::{Happening, Recent},
    settings::{self, Settings},
};
use crate::{
    circuit_breaker::CircuitBreaker,
    config::{Reconfigure, human},
    fallback::{Fallback, FallbackConfig, FallbackEvent},
    hedge::{Hedge, HedgeCause, HedgeConfig, HedgeEvent},
    outcome::FailureKind,
    port::BoxFuture,
    retry::{Retry, RetryBudget, RetryConfig, RetryEvent},
    throttling::{ClientThrottle, ClientThrottleConfig, RateLimitConfig, RateLimiter, ThrottlingEvent},
    time::Clock,
    timeout::{Timeout, TimeoutEvent},
};

/// A policy whose events are counted.
trait Counted: Clone + Send + Sync + 'static {
    const KIND: &'static str;

    /// Counts from now on.
    fn tap(&self, count: impl Fn(Happening) + Send + Sync + 'static);

    /// Returns the read-out. `sum` is how often something happened.
    fn out(&self, look: &Look, sum: &dyn Fn(&str) -> String) -> ReadOut;

    fn settings(&self) -> Option<Box<dyn Settings + '_>>;
}

/// A policy with its counts, which begin with the console.
struct Tapped<P> {
    policy: P,
    recent: Option<Recent>,
}

fn tapped<P: Counted>(policy: &P) -> View {
    View(Box::new(Tapped { policy: policy.clone(), recent: None }))
}

impl<P: Counted> Source for Tapped<P> {
    fn kind(&self) -> &'static str {
        P::KIND
    }

    fn start(&mut self, clock: &Clock, _: &[CircuitBreaker]) {
        let recent = Recent::new(clock);
        let counts = recent.clone();
        self.policy.tap(move |happening| counts.add(happening));
        self.recent = Some(recent);
    }

    fn settings(&self, _: Option<&str>) -> Option<Box<dyn Settings + '_>> {
        self.policy.settings()
    }

    fn read<'a>(&'a self, look: &'a Look) -> BoxFuture<'a, Result<ReadOut, String>> {
        let sum = |what: &str| match &self.recent {
            Some(recent) => recent.sum(what).to_string(),
            None => "not counted".to_owned(),
        };
        let out = self.policy.out(look, &sum);
        ready(Ok(match &self.recent {
            Some(recent) => out.table(recent.table()),
            None => out,
        }))
    }

    fn act<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<String, String>> {
        ready(unknown(order))
    }
}

/// Adds what a budget permits now.
fn with_budget(out: ReadOut, budget: Option<&RetryBudget>, look: &Look) -> ReadOut {
    match budget {
        Some(budget) => out.fact("budget permits now", budget.balance(look.clock.now())),
        None => out.fact("budget", "none"),
    }
}

impl Panel for Retry {
    fn view(&self) -> View {
        tapped(self)
    }
}

impl Counted for Retry {
    const KIND: &'static str = "retry";

    fn tap(&self, count: impl Fn(Happening) + Send + Sync + 'static) {
        self.events().tap(move |event| match event {
            RetryEvent::Retrying { cause, .. } => {
                count(("retried after", cause.kind().map_or("a rejection", FailureKind::as_str)));
            }
            RetryEvent::Recovered { .. } => count(("recovered", "")),
            RetryEvent::GaveUp { stop, .. } => count(("gave up", stop.as_str())),
        });
    }

    fn out(&self, look: &Look, sum: &dyn Fn(&str) -> String) -> ReadOut {
        let out = ReadOut::new("in use")
            .fact("retries, 15 min", sum("retried after"))
            .fact("recovered, 15 min", sum("recovered"))
            .fact("gave up, 15 min", sum("gave up"));
        with_budget(out, self.budget(), look)
    }

    fn settings(&self) -> Option<Box<dyn Settings + '_>> {
        settings::of::<RetryConfig, _>(self)
    }
}

impl Panel for Hedge {
    fn view(&self) -> View {
        tapped(self)
    }
}

impl Counted for Hedge {
    const KIND: &'static str = "hedge";

    fn tap(&self, count: impl Fn(Happening) + Send + Sync + 'static) {
        self.events().tap(move |event| match event {
            HedgeEvent::Hedged { cause: HedgeCause::Late { .. }, .. } => count(("hedged", "late")),
            HedgeEvent::Hedged { cause: HedgeCause::Failed { .. }, .. } => count(("hedged", "failed")),
            HedgeEvent::Suppressed { reason, .. } => count(("suppressed", reason.as_str())),
            HedgeEvent::Won { .. } => count(("won", "")),
            HedgeEvent::AllFailed { .. } => count(("all attempts failed", "")),
        });
    }

    fn out(&self, look: &Look, sum: &dyn Fn(&str) -> String) -> ReadOut {
        let out = ReadOut::new("in use")
            .fact("hedged attempts, 15 min", sum("hedged"))
            .fact("won, 15 min", sum("won"))
            .fact("suppressed, 15 min", sum("suppressed"))
            .fact("delay now", format!("{:?}", self.delay()));
        with_budget(out, self.budget(), look)
    }

    fn settings(&self) -> Option<Box<dyn Settings + '_>> {
        settings::of::<HedgeConfig, _>(self)
    }
}

impl Panel for Fallback {
    fn view(&self) -> View {
        tapped(self)
    }
}

impl Counted for Fallback {
    const KIND: &'static str = "fallback";

    fn tap(&self, count: impl Fn(Happening) + Send + Sync + 'static) {
        self.events().tap(move |event| match event {
            FallbackEvent::FellBack { .. } => count(("fell back", "")),
            FallbackEvent::Failed { .. } => count(("the fallback failed", "")),
            FallbackEvent::TimedOut { .. } => count(("the fallback timed out", "")),
        });
    }

    fn out(&self, _: &Look, sum: &dyn Fn(&str) -> String) -> ReadOut {
        ReadOut::new("in use")
            .fact("fell back, 15 min", sum("fell back"))
            .fact("failed, 15 min", sum("the fallback failed"))
            .fact("timed out, 15 min", sum("the fallback timed out"))
    }

    fn settings(&self) -> Option<Box<dyn Settings + '_>> {
        settings::of::<FallbackConfig, _>(self)
    }
}

/// The setting of a time-out, as a document has it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TimeoutLimit {
    #[serde(with = "human")]
    limit: Duration,
}

/// The settings of a time-out, which has one.
struct LimitOf<'a>(&'a Timeout);

impl Settings for LimitOf<'_> {
    fn now(&self) -> Value {
        serde_json::to_value(TimeoutLimit { limit: self.0.limit() }).unwrap_or_default()
    }

    fn check(&self, next: Value) -> Result<Value, String> {
        let next: TimeoutLimit = serde_json::from_value(next).map_err(|error| error.to_string())?;
        self.0.validate(&next.limit).map_err(|error| error.to_string())?;
        serde_json::to_value(next).map_err(|error| error.to_string())
    }

    fn apply(&self, next: Value) -> Result<(), String> {
        let next: TimeoutLimit = serde_json::from_value(next).map_err(|error| error.to_string())?;
        self.0.reconfigure(next.limit).map_err(|error| error.to_string())
    }
}

impl Panel for Timeout {
    fn view(&self) -> View {
        tapped(self)
    }
}

impl Counted for Timeout {
    const KIND: &'static str = "time-out";

    fn tap(&self, count: impl Fn(Happening) + Send + Sync + 'static) {
        self.events().tap(move |TimeoutEvent::TimedOut { .. }| count(("timed out", "")));
    }

    fn out(&self, _: &Look, sum: &dyn Fn(&str) -> String) -> ReadOut {
        ReadOut::new("in use").fact("timed out, 15 min", sum("timed out")).fact("limit", format!("{:?}", self.limit()))
    }

    fn settings(&self) -> Option<Box<dyn Settings + '_>> {
        Some(Box::new(LimitOf(self)))
    }
}

/// Counts what limiters tell.
fn count_throttling(event: &ThrottlingEvent, count: &impl Fn(Happening)) {
    match event {
        ThrottlingEvent::Rejected { reason, .. } => count(("refused", reason.as_str())),
        ThrottlingEvent::Queued { .. } => count(("queued", "")),
        ThrottlingEvent::Paused { .. } => count(("paused", "")),
        _ => {}
    }
}

impl Panel for RateLimiter {
    fn view(&self) -> View {
        tapped(self)
    }
}

impl Counted for RateLimiter {
    const KIND: &'static str = "rate limit";

    fn tap(&self, count: impl Fn(Happening) + Send + Sync + 'static) {
        self.events().tap(move |event| count_throttling(event, &count));
    }

    fn out(&self, _: &Look, sum: &dyn Fn(&str) -> String) -> ReadOut {
        let quota = self.config().quota();
        let (used, most) = (self.used(), u64::from(quota.largest()));
        ReadOut::new(if used < most { "has room" } else { "used up" })
            .level("in use", used.min(most) as f64)
            .fact("limit", format!("{} in {}", count(quota.permits.into(), "permit"), spoken(quota.per)))
            .fact("refused, 15 min", sum("refused"))
            .fact("queued, 15 min", sum("queued"))
    }

    fn settings(&self) -> Option<Box<dyn Settings + '_>> {
        settings::of::<RateLimitConfig, _>(self)
    }
}

impl Panel for ClientThrottle {
    fn view(&self) -> View {
        tapped(self)
    }
}

impl Counted for ClientThrottle {
    const KIND: &'static str = "client throttle";

    fn tap(&self, count: impl Fn(Happening) + Send + Sync + 'static) {
        self.events().tap(move |event| count_throttling(event, &count));
    }

    fn out(&self, _: &Look, sum: &dyn Fn(&str) -> String) -> ReadOut {
        let now = self.snapshot();
        let share = (now.rejection * 1000.0).round() / 10.0;
        ReadOut::new(if share > 0.0 { "refuses a share" } else { "passes all" })
            .level("refused share, %", share)
            .fact("refused, 15 min", sum("refused"))
            .fact("calls in the window", now.requests)
            .fact("accepted in the window", now.accepts)
    }

    fn settings(&self) -> Option<Box<dyn Settings + '_>> {
        settings::of::<ClientThrottleConfig, _>(self)
    }
}
