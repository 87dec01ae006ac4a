//! Load shedding by priority, and degradation by feature: both follow gauges.
mod degradation;
mod degradation_config;
mod feature_level;
pub(crate) mod gauge;
mod shed_level;
mod shedder;
mod shedder_config;

pub use degradation::{Degradation, Feature};
pub use degradation_config::DegradationConfig;
pub(crate) use gauge::Gauges;
pub use gauge::{Gauge, Limits, Reading};
pub use shedder::Shedder;
pub use shedder_config::ShedderConfig;
