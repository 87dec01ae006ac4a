//! The standard stack: one documented order of policies, every part optional, from one document.
//!
//! Outermost first:
//!
//! | part of the document | default | what it does | why here |
//! |---|---|---|---|
//! | `fallback` | off | a fallback, [given with the call](crate::Pipeline::call_or), after some failures | it sees every failure |
//! | `timeout` | 30 s | bounds the whole call | waits and retries included |
//! | `shed` | off | sheds less important calls, by [gauges](Standard::builder) | costs the other side nothing |
//! | `rate_limit` | off | bounds calls per time | the same |
//! | `concurrency_limit`, or `adaptive_limit` | off | bounds concurrent calls | a call that waits for the rate limit holds no permit |
//! | `retry`, with `retry_budget` | three attempts, 20 % | repeats operations that are [marked as idempotent](crate::call::idempotent), or were certainly not sent | around the breaker: a rejection is not repeated |
//! | `hedge` | off | a second attempt beside a slow one | each attempt of a retry is hedged, from the same budget |
//! | `client_throttle` | off | rejects in proportion to rejected attempts | counts attempts, as the other side does |
//! | `circuit_breaker` | failure rate of one half | rejects while too many attempts fail | counts each attempt, not each call |
//! | `attempt_timeout` | 10 s | bounds each attempt | an attempt that hangs becomes a failure for the breaker and the retry |
//!
//! Injected faults (feature `chaos`) are not in the document of a stack: put that policy inside,
//! `pipeline.then(chaos)`.
//!
//! [`Standard::reconfigure`] replaces the whole document while calls run, and switches parts on and
//! off. Parts keep their state.
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
//! let stack = Standard::builder(config).name("billing").build().unwrap();
//! let pipeline = stack.into_pipeline().boxed();
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! assert_eq!(pipeline.call(|| async { Ok::<_, std::io::Error>(42) }).await.unwrap(), 42);
//! # });
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::io;
//! use steadfast::{BoxedPipeline, ConfigError, call::idempotent, standard::*};
//!
//! # async fn get() -> io::Result<u32> { Ok(7) }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let document = "timeout = '5s'";
//! // 1. The defaults: time-outs, three attempts within a budget, a circuit breaker.
//! let billing = Standard::builder(Default::default()).name("billing").build()?;
//! let calls = billing.clone().into_pipeline();
//! calls.call(idempotent(|| get())).await?;
//!
//! // 2. In a struct.
//! struct Service { billing: BoxedPipeline<u32, io::Error> }
//! let service = Service { billing: calls.boxed() };
//!
//! // 3. Settings from a document; a mistake is named with its path.
//! let billing = Standard::builder(toml::from_str(document)?).name("billing").build()?;
//!
//! // 4. What it does, in order, and what it warns of.
//! println!("{}", billing.explain());
//!
//! // 5. A new document while calls run, after a signal or a request of an operator.
//! billing.reconfigure(toml::from_str(document)?)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Several services
//!
//! A process that calls several services has a stack for each: limits, breakers and budgets are
//! theirs alone. A [`StandardRegistry`] holds them over shared base settings, in one document that
//! is replaced as a whole.
//!
//! ```toml
//! [base]
//! attempt_timeout = "2s"
//!
//! [services.search]
//! attempt_timeout = "200ms"
//! retry = false
//! ```
//!
//! # Metrics
//!
//! Feature `metrics` watches a whole stack, or a whole registry, by one call of `Metrics::watch`:
//! all parts under `name.retry` and so on, also those that a document switches on later, and all
//! stacks that a registry creates later.
//!
//! # Boxed or not
//!
//! [`boxed`](crate::Pipeline::boxed) makes a [`BoxedPipeline`](crate::BoxedPipeline), for results
//! of one type: a call makes two allocations. [`StandardPipeline`] serves results of any type
//! without an allocation, but the compiler builds the whole stack anew at each place that calls it.
//! Take it where few places call. Measured with rustc 1.95 in a debug build:
//!
//! | | for each place that calls | a program with 20 such places |
//! |---|---|---|
//! | `StandardPipeline` | 0.6 s of processor time, 0.7 MB in the program | 13.0 s |
//! | `BoxedPipeline` | 0.08 s, 0.1 MB | 2.6 s |
//!
//! # Depth of types
//!
//! The type of a call through so many policies is deep, and the compiler bounds that depth. If it
//! reports "queries overflow the depth limit", [`boxed`](crate::Pipeline::boxed) shortens the type.
//! A stack inside another one, in one pipeline or by
//! [`call_within`](crate::Pipeline::call_within), is boxed by itself.
//!
//! # Guarantees
//!
//! 1. The order is that of the table, outermost first, and each part is optional.
//! 2. All settings come from one document with defaults. An unknown field or an invalid value is
//!    rejected with its path, and nothing changes.
//! 3. A new document changes the stack while calls run: parts keep their state, and no call is
//!    lost.
//! 4. [`explain`](Standard::explain) lists the parts in order, with warnings about their settings.
//! 5. The type of a call is shallow enough to be called through several `async fn`s of the user. A
//!    call that succeeds allocates nothing.
//! 6. A stack works inside another stack. The inner one makes one allocation a call, as does one
//!    that is entered by [`call_within`](crate::Pipeline::call_within).
//! 7. In a registry, the settings of a service are laid over the base's, setting by setting. A new
//!    document holds for all services, or for none if one of its settings is invalid.
mod config;
mod parts;
mod registry;
mod stack;

pub use config::StandardConfig;
#[cfg_attr(not(feature = "metrics"), allow(unused_imports, reason = "read by metrics alone"))]
pub(crate) use parts::Parts;
pub use registry::{StandardRegistry, StandardRegistryConfig};
pub use stack::{Standard, StandardPipeline};
