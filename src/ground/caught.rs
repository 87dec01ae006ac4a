//! A handler's future that turns a panic into a failure of its message.
use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

pin_project_lite::pin_project! {
    /// A handler's future that turns a panic into an error. It is created in place, because it may
    /// be large.
    pub(crate) struct Caught<F> {
        #[pin]
        future: Option<F>,
    }
}

impl<F: Future> Caught<F> {
    pub(crate) const fn new() -> Self {
        Self { future: None }
    }

    /// Creates the future and polls it once. Returns the output if it is ready.
    #[inline]
    pub(crate) fn begin(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        make: impl FnOnce() -> F,
    ) -> Option<Result<F::Output, String>> {
        let polled = catch_unwind(AssertUnwindSafe(|| {
            self.as_mut().project().future.set(Some(make()));
            self.as_mut().project().future.as_pin_mut().map(|future| future.poll(cx))
        }));
        let output = match polled {
            Ok(Some(Poll::Ready(output))) => Ok(output),
            Ok(_) => return None,
            Err(panic) => Err(words(&*panic)),
        };
        self.end();
        Some(output)
    }

    /// Drops the completed future. A panic in its destructor is ignored.
    #[inline]
    pub(crate) fn end(mut self: Pin<&mut Self>) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.as_mut().project().future.set(None)));
    }
}

impl<F: Future> Future for Caught<F> {
    type Output = Result<F::Output, String>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = self.project().future.as_pin_mut() else { return Poll::Pending };
        match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(panic) => Poll::Ready(Err(words(&*panic))),
        }
    }
}

#[cold]
fn words(panic: &(dyn Any + Send)) -> String {
    format!("the handler panicked: {}", panic_text(panic))
}

/// Returns the text of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
