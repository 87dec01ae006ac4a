//! Calls: an operation, the policies around it, and the pipeline that composes them.
//!
//! An [`Operation`] is any `FnMut() -> Future<Output = Result<T, E>>`, which may borrow, or a type
//! of your own. A [`Policy`] stands around it. It sees an [`Attempt`] and its verdict, never `T` or
//! `E`, so one pipeline serves operations of any type. Neither boxes nor allocates.
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{Pipeline, call::idempotent, retry::{Retry, RetryConfig}, timeout::Timeout};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let pipeline = Pipeline::new()
//!     .then(Timeout::new(Duration::from_secs(2)))
//!     .then(Retry::new(RetryConfig::default()).unwrap());
//! let name = String::from("steadfast");
//! // A retry repeats what is marked, and anything else only if it surely was not sent.
//! let length = pipeline.call(idempotent(|| async { Ok::<_, std::io::Error>(name.len()) })).await;
//! assert_eq!(length.unwrap(), 9);
//! # });
//! ```
//!
//! # Guarantees
//!
//! 1. Policies run in the order in which they were added, the first one outermost. One pipeline
//!    serves operations of any value and error type, which may borrow. The future of a call is
//!    `Send` if the operation's is.
//! 2. Clones of a pipeline, and pipelines that use the same policy, share its state. A boxed or
//!    traced pipeline behaves as the plain one.
//! 3. [`explain`](Pipeline::explain) lists the policies in order, with warnings about their
//!    settings.
//! 4. A call that succeeds allocates nothing; through a [`BoxedPipeline`] it makes two allocations,
//!    and through a [standard stack](crate::standard) inside another one it makes one.
//! 5. If a call is dropped at any `.await`, or panics, all permits are returned. A dropped call
//!    counts as neither success nor failure.
//! 6. The error is flat: its shape does not depend on the policies or on their order. All policies
//!    read the same verdict.
//! 7. Rejections, idempotence marks, deadlines and budgets stay in force in pipelines that are
//!    entered by [`call_within`](Pipeline::call_within).
pub(crate) mod alone;
mod attempt;
mod boxed;
mod cold;
mod context;
mod deadline;
mod explain;
mod fork;
mod instead;
#[cfg(feature = "local")]
mod local;
mod nested;
mod operation;
mod pipeline;
mod policy;
mod repeats;
mod run;
mod state;
mod switch;
mod traced;

pub use attempt::Attempt;
pub(crate) use attempt::AttemptInternals;
pub use boxed::BoxedPipeline;
pub(crate) use cold::{Cold, boxed};
pub(crate) use context::Frame;
pub use context::{AttemptInfo, CallContext, OperationName};
pub(crate) use deadline::{Deadline, Timed};
pub use explain::{Explanation, Layer};
pub(crate) use fork::{Fork, Forks};
pub use instead::{Answer, Answered, Failed};
pub(crate) use instead::{FALL_BACK_ON, FellBack};
#[cfg(feature = "local")]
pub use local::LocalOperation;
pub(crate) use nested::Nested;
pub(crate) use operation::as_inside;
pub use operation::{
    Idempotent, Named, NotIdempotent, Operation, Prioritized, WithAttempt, idempotent, named, not_idempotent,
    with_priority,
};
pub use pipeline::Pipeline;
pub(crate) use policy::Either;
pub use policy::{Identity, Policy};
pub(crate) use repeats::Repeats;
pub(crate) use run::{call_alone, call_alone_or};
pub(crate) use state::CallState;
pub use switch::Switch;
