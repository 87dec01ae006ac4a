//! A future kept out of line.
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

pin_project_lite::pin_project! {
    /// The slow path of an `async fn`, polled by a call.
    ///
    /// The poll of an `async fn` is one function. With the state machine of a slow path inlined into it, it is too large to be
    /// inlined itself, and every result on the fast path goes through memory. Behind this it is straight code.
    pub(crate) struct Cold<F> {
        #[pin]
        inner: F,
    }
}

impl<F> Cold<F> {
    pub(crate) const fn new(inner: F) -> Self {
        Self { inner }
    }
}

impl<F: Future> Future for Cold<F> {
    type Output = F::Output;

    #[cold]
    #[inline(never)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().inner.poll(cx)
    }
}

/// What follows only sometimes, on the heap: a call that does without it does not carry the room for it, nor does its type hold what is inside
/// twice.
pub(crate) fn boxed<'a, T>(
    future: impl Future<Output = T> + Send + 'a,
) -> Pin<Box<dyn Future<Output = T> + Send + 'a>> {
    Box::pin(future)
}
