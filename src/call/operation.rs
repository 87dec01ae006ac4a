//! Operations: the calls that a user passes to a pipeline.
use std::future::Future;

use super::{AttemptInfo, CallContext, OperationName};
use crate::outcome::{LastFailure, Priority, Retrying};

/// An async call that can be made more than once.
///
/// Every `FnMut() -> Fut` is an operation, also one that borrows. An operation that changes a state
/// across attempts is made by [`with_state`](super::with_state), as its closure cannot borrow what
/// it captured by `&mut`; [the page](super) lists the other ways. A type of your own can do the
/// same, with methods of its own choice: the future that `run` returns may borrow from `self`.
///
/// ```
/// use std::io::{Error, Result};
/// use steadfast::{
///     Pipeline,
///     call::{CallContext, Operation},
///     retry::{Retry, RetryConfig},
///     time::Clock,
/// };
///
/// /// Reads blocks into one buffer, which keeps what failed attempts have read.
/// struct Read<'a> { buffer: &'a mut Vec<u8>, runs: u8 }
///
/// impl Operation for Read<'_> {
///     type Output = usize;
///     type Error = Error;
///
///     async fn run(&mut self, _: CallContext<'_>) -> Result<usize> {
///         self.runs += 1;
///         self.buffer.push(self.runs);
///         if self.runs < 3 { Err(Error::other("reset")) } else { Ok(self.buffer.len()) }
///     }
///
///     fn is_idempotent(&self) -> Option<bool> {
///         Some(true) // a retry may run it again
///     }
/// }
///
/// let (clock, time) = Clock::manual();
/// let retry = Retry::builder(RetryConfig::default()).clock(&clock).build().unwrap();
/// let mut buffer = Vec::new();
/// let read = Read { buffer: &mut buffer, runs: 0 };
/// assert_eq!(time.block_on(Pipeline::new().then(retry).call(read)).unwrap(), 3);
/// assert_eq!(buffer, [1, 2, 3]);
/// ```
///
/// A function of your own that takes an operation names the types of its result by parameters:
/// `async fn call<T, E, O: Operation<Output = T, Error = E>>(..) -> Result<T, CallError<E>>`. If it
/// returns `Result<O::Output, ..>`, the compiler may panic in an incremental build after an edit of
/// its caller, for an async closure in a mark such as [`idempotent`](super::idempotent)
/// ([rust-lang/rust 154857](https://github.com/rust-lang/rust/issues/154857)).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an operation",
    label = "expected a closure that returns a future",
    note = "write a closure without arguments that returns the future of a `Result`: `|| async {{ .. }}` or `|| client.get(key)`",
    note = "a closure or a future that is not `Send` goes through `call_local`, and code that blocks through `call_blocking`",
    note = "a state that the closure changes is lent to it: `with_state(&mut state, async |state| ..)`"
)]
pub trait Operation: Send {
    /// Type of its value.
    type Output: Send;
    /// Type of its error.
    type Error: Send;

    /// Runs the operation once.
    // The compiler quotes the comment below where a program says `dyn Operation`.
    fn run(&mut self, cx: CallContext<'_>) -> impl Future<Output = Result<Self::Output, Self::Error>> + Send; // instead of `dyn Operation`: `Box<dyn FnMut() -> Pin<Box<dyn Future<Output = Result<T, E>> + Send>> + Send>`

    /// Returns `Some(true)` if a second run changes nothing more than the first.
    ///
    /// `None`, the default, leaves the decision to the policy's own setting:
    /// [`RetryConfig::idempotent`](crate::retry::RetryConfig::idempotent) and
    /// [`HedgeConfig::idempotent`](crate::hedge::HedgeConfig::idempotent), both off by default. A
    /// retry repeats an operation that is not idempotent only after a failure that proves that the
    /// request was not sent. A hedge runs it once.
    fn is_idempotent(&self) -> Option<bool> {
        None
    }

    /// Returns the priority under overload. `None`, the default, takes the priority of the outer
    /// call, or [`Priority::Normal`] without one.
    fn priority(&self) -> Option<Priority> {
        None
    }

    /// Returns the name, for policies and spans that distinguish operations. `None` by default.
    fn name(&self) -> Option<&'static OperationName> {
        None
    }

    /// Returns `true` if the operation cannot run again, because its input was moved into the last
    /// run. No retry waits for another attempt then. A closure can always run again.
    fn is_spent(&self) -> bool {
        false
    }

    /// Returns `true` if futures from [`start`](Self::start) can run at the same time. This holds
    /// for every closure; a type of your own must say so.
    fn can_overlap(&self) -> bool {
        false
    }

    /// Starts a run beside those that were started before; the future borrows nothing of the
    /// operation. A hedge uses it. Returns `None`, by default, if the operation cannot run
    /// concurrently.
    fn start(
        &mut self,
        _cx: CallContext<'_>,
    ) -> Option<impl Future<Output = Result<Self::Output, Self::Error>> + Send + use<Self>> {
        None::<std::future::Pending<_>>
    }

    /// Sees each failure that a retry repeats, before the wait. Does nothing by default;
    /// [`on_retry`](super::on_retry) adds a hook to any operation.
    ///
    /// It runs inside the call: it must be quick, and its panic is the call's.
    fn on_retry(&mut self, _retrying: &Retrying<'_, Self::Output, Self::Error>) {}

    /// As [`run`](Self::run), with the failure that a retry repeats; `None` on the first attempt.
    /// Calls `run` by default. [`with_last_failure`](super::with_last_failure) passes the failure
    /// to a closure.
    #[inline]
    fn run_after(
        &mut self,
        cx: CallContext<'_>,
        _last: Option<LastFailure<'_, Self::Error>>,
    ) -> impl Future<Output = Result<Self::Output, Self::Error>> + Send {
        self.run(cx)
    }

    /// As [`start`](Self::start), with the failure that a retry inside or around a hedge repeats.
    /// Calls `start` by default.
    #[inline]
    fn start_after(
        &mut self,
        cx: CallContext<'_>,
        _last: Option<LastFailure<'_, Self::Error>>,
    ) -> Option<impl Future<Output = Result<Self::Output, Self::Error>> + Send + use<Self>> {
        self.start(cx)
    }
}

// No `#[diagnostic::do_not_recommend]`: a message of ours would replace the compiler's own, which
// names the type that is no future, no `Result` or not `Send`, and the line that holds it.
impl<T: Send, E: Send, F, Fut> Operation for F
where
    F: FnMut() -> Fut + Send,
    Fut: Future<Output = Result<T, E>> + Send,
{
    type Output = T;
    type Error = E;

    #[inline]
    fn run(&mut self, _: CallContext<'_>) -> impl Future<Output = Result<T, E>> + Send {
        self()
    }

    fn can_overlap(&self) -> bool {
        true
    }

    fn start(&mut self, _: CallContext<'_>) -> Option<impl Future<Output = Result<T, E>> + Send + use<T, E, F, Fut>> {
        Some(self())
    }
}

/// An operation that receives the context of its attempt:
/// [`Pipeline::call_with`](super::Pipeline::call_with) wraps a closure in it.
#[derive(Debug, Clone)]
pub struct WithAttempt<F>(pub F);

impl<T: Send, E: Send, F, Fut> Operation for WithAttempt<F>
where
    F: FnMut(AttemptInfo) -> Fut + Send,
    Fut: Future<Output = Result<T, E>> + Send,
{
    type Output = T;
    type Error = E;

    fn run(&mut self, cx: CallContext<'_>) -> impl Future<Output = Result<T, E>> + Send {
        (self.0)(cx.info())
    }

    fn can_overlap(&self) -> bool {
        true
    }

    fn start(&mut self, cx: CallContext<'_>) -> Option<impl Future<Output = Result<T, E>> + Send + use<T, E, F, Fut>> {
        Some((self.0)(cx.info()))
    }
}

/// Forwards the listed `Operation` methods to the wrapped operation. Methods that are not listed
/// are the wrapper's own.
macro_rules! as_inside {
    ($inner:tt: $($what:ident),*) => { $( $crate::call::as_inside!(@$what $inner); )* };
    (@is_idempotent $inner:tt) => {
        fn is_idempotent(&self) -> Option<bool> {
            self.$inner.is_idempotent()
        }
    };
    (@is_spent $inner:tt) => {
        fn is_spent(&self) -> bool {
            self.$inner.is_spent()
        }
    };
    (@priority $inner:tt) => {
        fn priority(&self) -> Option<$crate::outcome::Priority> {
            self.$inner.priority()
        }
    };
    (@name $inner:tt) => {
        fn name(&self) -> Option<&'static $crate::call::OperationName> {
            self.$inner.name()
        }
    };
    (@can_overlap $inner:tt) => {
        fn can_overlap(&self) -> bool {
            self.$inner.can_overlap()
        }
    };
    (@start $inner:tt) => {
        fn start(
            &mut self,
            cx: $crate::call::CallContext<'_>,
        ) -> Option<impl Future<Output = Result<O::Output, O::Error>> + Send + use<O>> {
            self.$inner.start(cx)
        }
    };
    (@on_retry $inner:tt) => {
        fn on_retry(&mut self, retrying: &$crate::outcome::Retrying<'_, O::Output, O::Error>) {
            self.$inner.on_retry(retrying);
        }
    };
    (@run_after $inner:tt) => {
        #[inline]
        fn run_after(
            &mut self,
            cx: $crate::call::CallContext<'_>,
            last: Option<$crate::outcome::LastFailure<'_, O::Error>>,
        ) -> impl Future<Output = Result<O::Output, O::Error>> + Send {
            self.$inner.run_after(cx, last)
        }
    };
    (@start_after $inner:tt) => {
        #[inline]
        fn start_after(
            &mut self,
            cx: $crate::call::CallContext<'_>,
            last: Option<$crate::outcome::LastFailure<'_, O::Error>>,
        ) -> Option<impl Future<Output = Result<O::Output, O::Error>> + Send + use<O>> {
            self.$inner.start_after(cx, last)
        }
    };
}
pub(crate) use as_inside;
