//! steadfast
#![forbid(unsafe_code)]

pub mod backoff;
pub mod call;
pub mod circuit_breaker;
pub mod config;
pub mod entropy;
pub mod observe;
pub mod outcome;
mod sync;
pub mod timeout;
mod window;
pub mod retry;
pub mod throttling;
pub mod time;

pub use call::{BoxedPipeline, Pipeline};
pub use config::{ConfigError, Name};
pub use outcome::{CallError, Cause, Class, Classify, FailureKind, Hint, Outcome, PolicyKind, Reason, Rejected, Verdict};
