//! Events: typed records of what a policy did, in order, numbered, and delivered without delaying a
//! call.
//!
//! Without a subscription, a hook, and a `tracing` subscriber that wants them, no event is built.
//!
//! # Subscribe, or hook?
//!
//! | | [`Subscription`] | hook |
//! |---|---|---|
//! | from | `events()` of a component | [`on_event`](crate::Builder::on_event) of its builder |
//! | runs | in a task of its own, later | inside the call that sends the event, before the call goes on |
//! | may be slow, may wait | yes | no: every call waits for it |
//! | a panic | ends its own task | is caught and reported to `tracing` |
//! | misses events | if it is behind by more than 1,024, and in a flood | in a flood |
//! | ends | when it is dropped | with the component |
//!
//! Subscribe to store events, to send them, or to act on them. Hook to count, to log by a quick
//! logger, or to wake a task. A hook that sees the typed error of each retry belongs to a call or
//! to a pipeline, not to the retry: [`call::on_retry`](crate::call::on_retry).
//!
//! A hook gets events in order, one at a time. No lock is held meanwhile, so it may call its
//! component; an event that this causes is sent after the hook has returned. If several calls have
//! events at once, one of them sends all, so a hook may run in another call than the one that the
//! event is about. A hook that holds a clone of its component keeps it alive for ever.
//!
//! ```
//! use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
//! use steadfast::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, Transition};
//! use steadfast::observe::Event;
//!
//! static OPENINGS: AtomicU32 = AtomicU32::new(0);
//!
//! let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default())
//!     .name("db")
//!     .on_event(|event: &Event<Transition>| {
//!         OPENINGS.fetch_add(u32::from(event.what.open_for.is_some()), Relaxed);
//!     })
//!     .build()
//!     .unwrap();
//! breaker.force_open(std::time::Duration::from_secs(1));
//! assert_eq!(OPENINGS.load(Relaxed), 1);
//! ```
//!
//! # Floods
//!
//! A call that has an event sends it together with the events that other calls staged in the
//! meantime: at most 1,024 of theirs, or 128 if a hook or a `tracing` subscriber, which run inside
//! the call, wants them. As many may wait. If no sender keeps up, later events are dropped until
//! the sender has caught up. A dropped event uses up its number: subscriptions report the gap
//! ([`Missed::Events`]), a hook sees it in [`Event::number`], `tracing` gets the number of dropped
//! events, and metrics count all events.
//!
//! # tracing
//!
//! Each event also goes to `tracing`, if a subscriber wants it. The target is `steadfast::` and the
//! module (`steadfast::circuit_breaker`); the policy's name is a field. A filter such as
//! `steadfast=info` enables them. State changes that need attention are `WARN` (a breaker opened),
//! other state changes `INFO`. The parts of a call are `DEBUG`, as they come with each call during
//! an outage: an attempt that failed or timed out, a retry, a hedge, a fallback, a rejection.
//!
//! A call that failed in the end sends one line of target `steadfast::call` at `WARN`, if a
//! time-out ended it, a retry gave it up, or its fallback failed, too: with the pipeline, the
//! operation, the cause, the number of attempts, and the reason for no further one. A call inside
//! an attempt of another pipeline ([`call_within`](crate::Pipeline::call_within)) sends none, as it
//! is a part of that one's call: if that one has neither a retry nor a time-out that ended it, the
//! failure is told by its events at `DEBUG` alone. Calls and attempts are spans of
//! `steadfast::call`, at `DEBUG`.
//!
//! # One trace over processes
//!
//! The context of a trace travels in headers, such as `traceparent` of W3C "Trace Context". A
//! [message](crate::queue::Message), an [event](crate::stream::Event) of a stream, a
//! [submission](crate::scheduler::Submission) of a saga, a request to an
//! [agent](crate::scheduler::AgentCall) and an [entry](crate::journal::Entry) of a journal carry
//! them to their handlers, as they were sent: also after a crash, a redrive, and as a dead letter.
//! With `tracing-opentelemetry` these lines make what a handler does a part of the trace:
//!
//! ```ignore
//! // Where work is sent:
//! let mut context = HashMap::new();
//! propagator.inject_context(&Span::current().context(), &mut context);
//! message.headers.extend(context);
//!
//! // In its handler, before its span is entered; in the step of a saga by `step.headers()`:
//! span.set_parent(propagator.extract(&HashMap::from_iter(work.headers.clone())));
//! ```
//!
//! The first three lines belong inside the operation of a call: then the work is a part of the
//! attempt that sent it. Results of a [filter](crate::pipes_and_filters) inherit the headers of
//! their message; each event in a [log of commits](crate::event_sourcing) has its own. A saga that
//! was started by [`run`](crate::saga::Saga::run) has the context of its caller, and after a crash
//! none, unless its state has it. The folder `examples/telemetry` of a checkout is a program whose
//! one trace leads from a request through a call, a queue, a saga and a stream to a collector,
//! with metrics.
//!
//! # Metrics
//!
//! Feature `metrics` counts events where they are sent, so that none is missed, and reads gauges:
//! module `metrics`.
//!
//! ```
//! use steadfast::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, CircuitBreakerEvent};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
//! let mut events = breaker.events();
//! breaker.isolate();
//! let event = events.recv().await.unwrap();
//! assert_eq!(event.number, 1);
//! assert!(matches!(event.what, CircuitBreakerEvent::Isolated));
//! # });
//! ```
mod hooks; // functions that run where an event is sent
mod source; // the sending side
mod subscription; // the receiving side

pub(crate) use hooks::Hooks;
pub(crate) use source::{Events, Traced};
pub use subscription::{Missed, Subscription};

use crate::{config::Name, time::Instant};

/// One event, as a subscription returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event<E> {
    /// Number of the event, from 1 for each source. A gap stands for lost events.
    pub number: u64,
    /// Time of the event, by the policy's clock.
    pub at: Instant,
    /// Name of the policy, if it has one.
    pub source: Option<Name>,
    /// The event itself.
    pub what: E,
}
