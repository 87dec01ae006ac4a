//! The works: what is measured. One file a work family; a work is a list of subjects that do the same thing.

#![allow(
    clippy::redundant_closure,
    reason = "a closure has a type of its own at each call site, as in a caller's code"
)]

mod breaker;
mod cache;
mod fallback;
mod keyed;
mod overload;
mod permit;
mod rate_limit;
mod retry;
mod sharding;
mod shared;
mod stack;
mod timeout;
mod tower;

use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// One thing to do, and everybody who can do it.
pub struct Work {
    pub name: &'static str,
    pub about: &'static str,
    pub subjects: fn() -> Vec<Subject>,
    /// Whether it is worth building the subjects under an instruction counter that runs 50 times slower.
    pub light: bool,
}

/// Who does it, and what it counts for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Ours: the numerator of `ratio`.
    Ours,
    /// A rival: the fastest of them is the denominator of `ratio`.
    Rival,
    /// Measured and printed, but no part of `ratio`: a floor, another clock, less work than the others do.
    Beside,
}

pub struct Subject {
    pub name: &'static str,
    pub role: Role,
    pub build: Box<dyn Fn() -> Instance>,
    /// Not measured with two threads: it puts them to sleep, which under a poll loop is no figure, or no end.
    pub parks: bool,
}

impl Subject {
    pub fn parks(self) -> Self {
        Subject { parks: true, ..self }
    }
}

/// One shared instance; each thread asks it for a worker of its own.
pub struct Instance {
    pub worker: Box<dyn Fn(usize) -> Worker + Sync>,
    pub bytes_per_key: Option<f64>,
}

/// Does the work `n` times.
pub type Worker = Box<dyn FnMut(u64)>;

pub fn ours(name: &'static str, build: impl Fn() -> Instance + 'static) -> Subject {
    Subject { name, role: Role::Ours, build: Box::new(build), parks: false }
}

pub fn rival(name: &'static str, build: impl Fn() -> Instance + 'static) -> Subject {
    Subject { name, role: Role::Rival, build: Box::new(build), parks: false }
}

pub fn beside(name: &'static str, build: impl Fn() -> Instance + 'static) -> Subject {
    Subject { name, role: Role::Beside, build: Box::new(build), parks: false }
}

pub fn instance(worker: impl Fn(usize) -> Worker + Sync + 'static) -> Instance {
    Instance { worker: Box::new(worker), bytes_per_key: None }
}

/// The one executor of all async subjects: poll again until ready, with a waker that does nothing.
/// It adds a nanosecond; a runtime around it would add the same tens to everyone and flatten every ratio.
pub fn poll_loop<R>(mut operation: impl AsyncFnMut() -> R + 'static) -> Worker {
    Box::new(move |n| {
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..n {
            let mut future = pin!(operation());
            loop {
                let polled = future.as_mut().poll(&mut context);
                if polled.is_ready() {
                    black_box(&polled);
                    break;
                }
            }
        }
    })
}

pub fn call_loop<R>(mut operation: impl FnMut() -> R + 'static) -> Worker {
    Box::new(move |n| {
        for _ in 0..n {
            black_box(&operation());
        }
    })
}

/// Subjects live as long as the run, so that workers on any thread can borrow them.
pub fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// The operation's own error.
#[derive(Clone, Copy, Debug)]
pub struct Failed;

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("failed")
    }
}

impl std::error::Error for Failed {}

/// The protected call: ready at once.
pub async fn operation() -> Result<u32, Failed> {
    black_box(Ok(7))
}

/// The operation, ready at its second poll.
pub async fn pending_once() -> Result<u32, Failed> {
    let mut polled = false;
    poll_fn(|context| {
        if std::mem::replace(&mut polled, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
    operation().await
}

/// The same without a future.
pub fn operation_sync() -> Result<u32, Failed> {
    black_box(Ok(7))
}

/// A call that always fails, to open breakers with.
pub async fn failing() -> Result<u32, Failed> {
    black_box(Err(Failed))
}

const CALLS: &[Work] = &[
    breaker::CLOSED,
    breaker::CLOSED_SYNC,
    breaker::ONE_PERCENT,
    breaker::OPEN,
    breaker::OPEN_SYNC,
    retry::RETRY,
    rate_limit::ALLOWED,
    rate_limit::DENIED,
    keyed::TEN_THOUSAND,
    keyed::MILLION,
    permit::ACQUIRE,
    permit::TRY_ACQUIRE,
    timeout::READY,
    timeout::PENDING,
    stack::READY,
    stack::PENDING,
    overload::ADAPTIVE,
    overload::CLIENT_THROTTLE,
    overload::SHEDDER,
    overload::DEGRADATION,
    shared::COALESCE,
    shared::KEYED_BREAKER,
    shared::SHARED_LIMIT,
    shared::SHARED_BREAKER,
    fallback::UNUSED,
    fallback::USED,
    tower::BREAKER,
    tower::OPEN,
    tower::RETRY,
    tower::RATE_LIMIT,
    tower::LIMITED,
    tower::PERMIT,
    tower::TIMEOUT,
    tower::HEDGE,
    tower::STACK,
    cache::HIT,
    cache::MISS,
];

pub fn all() -> impl Iterator<Item = &'static Work> {
    CALLS.iter().chain(sharding::WORKS)
}
