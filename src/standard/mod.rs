//! The ready-made stack: one documented order, every part optional, from one document.
//!
//! Outermost first: time-out of the whole call, rate limit, concurrency limit, retry (with its budget), circuit breaker,
//! time-out of each attempt. The order is the argument: the total time bounds waiting and retries; a call that is not going to be
//! let through costs the other side nothing; each attempt, not each call, is what the breaker counts; and a hanging attempt
//! becomes a failure that the breaker sees and the retry mends.
//!
//! ```
//! use steadfast::standard::{Standard, StandardConfig};
//!
//! let config: StandardConfig = toml::from_str(r#"
//!     timeout = "5s"
//!     attempt_timeout = "1s"
//!
//!     [rate_limit]
//!     permits = 200
//!     per = "1s"
//!
//!     [retry]
//!     max_attempts = 4
//!
//!     [circuit_breaker]
//!     trip = { failure_rate = 0.5, consecutive_failures = 10 }
//! "#).unwrap();
//! let pipeline = Standard::new(config).unwrap().named("billing").into_pipeline();
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! assert_eq!(pipeline.call(|| async { Ok::<_, std::io::Error>(42) }).await.unwrap(), 42);
//! # });
//! ```
//!
//! The type of a call through six policies is deep, and the compiler bounds that depth; should it ever say "queries overflow the depth
//! limit", [`boxed`](crate::Pipeline::boxed) cuts it.
mod config;
mod stack;

pub use config::StandardConfig;
pub use stack::Standard;
