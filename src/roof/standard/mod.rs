//! The ready-made stack: one documented order, every part optional, from one document.
//!
//! Outermost first:
//!
//! | part of the document | default | what it does | why here |
//! |---|---|---|---|
//! | `fallback` | off | a substitute, [given with the call](crate::Pipeline::call_or), after some failures | it can mend whatever comes |
//! | `timeout` | 30 s | bounds the whole call | waiting and retries, too |
//! | `shed` | off | gives up what matters less, by [gauges](Standard::with_gauge) | costs the other side nothing |
//! | `rate_limit` | off | so many in a time | the same |
//! | `concurrency_limit`, or `adaptive_limit` | off | so many at once | a call that waits for its turn holds no place |
//! | `retry`, with `retry_budget` | three attempts, 20 % | repeats what is [marked as idempotent](crate::call::idempotent), or surely was not sent | around the breaker: a rejection is not repeated |
//! | `hedge` | off | a second attempt beside a slow one | each attempt of a retry is hedged, from the same budget |
//! | `client_throttle` | off | sends what is accepted | counts attempts, as the other side does |
//! | `circuit_breaker` | at one half | rejects while too much fails | each attempt, not each call, is what it counts |
//! | `attempt_timeout` | 10 s | bounds each attempt | one that hangs becomes a failure that the breaker sees and the retry mends |
//!
//! Faults on purpose (feature `chaos`) are not in the document of a stack: put the policy inside, `pipeline.then(chaos)`.
//!
//! The whole document can be [replaced](Standard::reconfigure) while calls run, parts switched on and off: what they know is kept.
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
//! The type of a call through so many policies is deep, and the compiler bounds that depth; should it ever say "queries overflow the depth
//! limit", [`boxed`](crate::Pipeline::boxed) cuts it.
mod config;
mod parts;
mod stack;

pub use config::StandardConfig;
pub use stack::Standard;
