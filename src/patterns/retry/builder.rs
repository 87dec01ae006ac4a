//! Building a retry.
use std::time::Duration;

use super::{Retry, RetryBudget, RetryConfig, RetryEvent};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, HasName},
    config::ConfigError,
};

pub(super) type Delays = Box<dyn Iterator<Item = Duration> + Send>;

pub(super) type DelaySource = Box<dyn Fn() -> Delays + Send + Sync>;

/// Arguments of a retry, beside name, clock and entropy.
pub struct RetrySpec {
    pub(super) config: RetryConfig,
    pub(super) budget: Option<RetryBudget>,
    pub(super) delays: Option<DelaySource>,
}

impl Builder<Retry> {
    /// Sets the budget, which is shared with every policy that holds a clone of it.
    pub fn budget(mut self, budget: &RetryBudget) -> Self {
        self.spec.budget = Some(budget.clone());
        self
    }

    /// Sets custom delays in place of the back-off. `delays` is called once per failed call, and
    /// the retry gives up when the iterator ends. No jitter is added, and no maximum applies.
    pub fn delays<I>(mut self, delays: impl Fn() -> I + Send + Sync + 'static) -> Self
    where
        I: Iterator<Item = Duration> + Send + 'static,
    {
        self.spec.delays = Some(Box::new(move || Box::new(delays())));
        self
    }
}

impl Component for Retry {
    type Built = Result<Self, ConfigError>;
    type Spec = RetrySpec;

    fn assemble(spec: RetrySpec, common: Common) -> Self::Built {
        spec.config.check()?;
        Ok(Self::make(spec, common))
    }
}

impl HasName for Retry {}
impl HasEntropy for Retry {}
impl HasEvents<RetryEvent> for Retry {}
