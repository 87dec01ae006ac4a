//! Metrics of standard stacks: those of their parts, on or off.
use std::sync::Arc;

use super::super::registry::{Measured, Sample, Scope};
use crate::{
    call::Switch,
    standard::{Parts, Standard, StandardRegistry},
    sync::Mutex,
};

/// Measures a part, also while it is off, so that one that is switched on later is measured from
/// its first call on.
fn part<P: Measured + 'static>(
    stack: &Standard,
    scope: &Scope,
    name: &'static str,
    of: fn(&Parts) -> &Switch<P>,
) -> Sample {
    let sample = of(stack.parts()).policy().measure(&scope.part(name));
    with_switch(stack, scope, name, sample, move |parts| of(parts).is_on())
}

/// Returns the sample of a part together with the gauge that tells if the part is on.
fn with_switch(
    stack: &Standard,
    scope: &Scope,
    name: &'static str,
    sample: Sample,
    is_on: impl Fn(&Parts) -> bool + Send + Sync + 'static,
) -> Sample {
    let (stack, on) = (stack.clone(), scope.gauge("steadfast_standard_part_on", &[("part", name)]));
    Box::new(move || {
        sample();
        on.set(f64::from(u8::from(is_on(stack.parts()))));
    })
}

/// The parts of a stack, with what their names begin with, and further ones.
macro_rules! parts {
    ($before:literal $(, $more:expr)*) => {
        &[
            ("fallback", concat!($before, "fallback")),
            ("timeout", concat!($before, "timeout")),
            ("shedder", concat!($before, "shed")),
            ("rate_limit", concat!($before, "rate_limit")),
            ("concurrency_limit", concat!($before, "concurrency_limit")),
            ("adaptive_limit", concat!($before, "adaptive_limit")),
            ("retry", concat!($before, "retry")),
            ("retry_budget", concat!($before, "retry_budget")),
            ("hedge", concat!($before, "hedge")),
            ("client_throttle", concat!($before, "client_throttle")),
            ("circuit_breaker", concat!($before, "circuit_breaker")),
            ("timeout", concat!($before, "attempt_timeout")),
            $($more,)*
        ]
    };
}

impl Measured for Standard {
    const KIND: &'static str = "standard";

    const PARTS: &'static [(&'static str, &'static str)] = parts!("");

    /// Each part has the name of the stack, a dot, and its own, as in events and errors.
    fn measure(&self, scope: &Scope) -> Sample {
        let budget = self.parts().budget.measure(&scope.part("retry_budget"));
        let samples = [
            part(self, scope, "fallback", |parts| &parts.fallback),
            part(self, scope, "timeout", |parts| &parts.timeout),
            part(self, scope, "shed", |parts| &parts.admission.shed),
            part(self, scope, "rate_limit", |parts| &parts.admission.rate_limit),
            part(self, scope, "concurrency_limit", |parts| &parts.admission.concurrency_limit),
            part(self, scope, "adaptive_limit", |parts| &parts.admission.adaptive_limit),
            part(self, scope, "retry", |parts| &parts.retry),
            with_switch(self, scope, "retry_budget", budget, |parts| parts.budget.is_on()),
            part(self, scope, "hedge", |parts| &parts.hedge),
            part(self, scope, "client_throttle", |parts| &parts.guard.throttle),
            part(self, scope, "circuit_breaker", |parts| &parts.guard.breaker),
            part(self, scope, "attempt_timeout", |parts| &parts.attempt_timeout),
        ];
        Box::new(move || samples.iter().for_each(|sample| sample()))
    }
}

impl Measured for StandardRegistry {
    const KIND: &'static str = "standard_registry";

    const PARTS: &'static [(&'static str, &'static str)] = parts!("*.", ("standard", "*"));

    /// Each stack has the name of the registry, a dot, and its service's. A stack that is created
    /// later is measured from its first call on.
    fn measure(&self, scope: &Scope) -> Sample {
        let samples: Arc<Mutex<Vec<Sample>>> = Arc::default();
        let (scope, all) = (scope.clone(), samples.clone());
        self.watch_stacks(move |service, stack| {
            let sample = stack.measure(&scope.part(service));
            sample();
            all.lock().push(sample);
        });
        Box::new(move || samples.lock().iter().for_each(|sample| sample()))
    }
}
