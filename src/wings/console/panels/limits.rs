//! Limits: their use and their room.
use super::super::{
    panel::{Look, Order, Panel, Source, View, ready, unknown},
    readout::{ReadOut, Trouble, count},
    settings::{self, Settings},
};
use crate::{
    budget::{RetryBudget, RetryBudgetConfig},
    outcome::Priority,
    port::BoxFuture,
    throttling::{
        AdaptiveLimitConfig, AdaptiveLimiter, ConcurrencyLimitConfig, ConcurrencyLimiter, Shedder, ShedderConfig,
    },
};

/// Implements a component whose read-out is made at once, and that has no action but for its
/// settings.
macro_rules! read_alone {
    ($component:ty, $config:ty, $kind:literal, |$this:ident, $look:ident| $read:expr) => {
        impl Panel for $component {
            fn view(&self) -> View {
                View(Box::new(self.clone()))
            }
        }

        impl Source for $component {
            fn kind(&self) -> &'static str {
                $kind
            }

            fn settings(&self, _: Option<&str>) -> Option<Box<dyn Settings + '_>> {
                settings::of::<$config, _>(self)
            }

            fn read<'a>(&'a self, $look: &'a Look) -> BoxFuture<'a, Result<ReadOut, String>> {
                let $this = self;
                ready(Ok($read))
            }

            fn act<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<String, String>> {
                ready(unknown(order))
            }
        }
    };
}

/// Returns the read-out of a limit on concurrent calls.
fn limit(used: u32, capacity: u32, waiting: usize) -> ReadOut {
    let out = match used >= capacity {
        true => {
            let why = format!("all {} in use, {} waiting", count(capacity.into(), "permit"), waiting);
            ReadOut::new("full").trouble(Trouble::Full, why)
        }
        false => ReadOut::new("has room"),
    };
    out.level("in use", f64::from(used)).fact("limit", capacity).level("waiting", waiting as f64)
}

read_alone!(ConcurrencyLimiter, ConcurrencyLimitConfig, "concurrency limit", |this, _look| {
    let capacity = this.capacity();
    // Below zero after the capacity was reduced.
    let used = (i64::from(capacity) - this.available()).clamp(0, u32::MAX.into()) as u32;
    limit(used, capacity, this.waiting())
});

read_alone!(AdaptiveLimiter, AdaptiveLimitConfig, "adaptive limit", |this, _look| {
    let out = limit(this.in_flight(), this.limit(), this.waiting());
    match this.base_latency() {
        Some(latency) => out.fact("latency without queueing", format!("{latency:?}")),
        None => out,
    }
});

read_alone!(Shedder, ShedderConfig, "shedder", |this, _look| {
    let [low, normal, high] =
        [Priority::Low, Priority::Normal, Priority::High].map(|priority| this.shed_share(priority));
    let out = match low > 0.0 {
        true => {
            let why = format!(
                "sheds {:.0} % of the calls of low priority, {:.0} % of normal ones",
                low * 100.0,
                normal * 100.0
            );
            ReadOut::new("shedding").trouble(Trouble::Full, why)
        }
        false => ReadOut::new("passes all"),
    };
    let share = |share: f64| (share * 1000.0).round() / 10.0;
    out.level("shed of low priority, %", share(low))
        .fact("shed of normal priority, %", share(normal))
        .fact("shed of high priority, %", share(high))
});

read_alone!(RetryBudget, RetryBudgetConfig, "retry budget", |this, look| {
    let (permits, config) = (this.balance(look.clock.now()), this.config());
    let out = match permits {
        0 => {
            let why = "no retry and no hedged attempt is permitted until calls have earned one";
            ReadOut::new("spent").trouble(Trouble::Full, why)
        }
        _ => ReadOut::new("permits retries"),
    };
    out.level("permits now", permits as f64)
        .fact("share of calls, %", config.ratio * 100.0)
        .fact("at least, per second", config.min_per_second)
});
