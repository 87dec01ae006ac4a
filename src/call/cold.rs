//! Helpers that keep slow paths out of the code and the size of fast ones.
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

pin_project_lite::pin_project! {
    /// The slow path of an `async fn`, polled by a function call.
    ///
    /// The poll of an `async fn` is one function. With the state machine of a slow path inlined
    /// into it, that function is too large to be inlined itself, and every result on the fast path
    /// goes through memory. This wrapper keeps the fast path small.
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

/// Boxes the future that `make` returns, in its place on the heap.
///
/// `Box::pin(future)` copies the whole future, with the room for all that it will hold, because the
/// allocation may panic while the future is on the stack. Here the room comes first, and the
/// compiler writes to it the few values with which the future begins.
#[inline]
pub(crate) fn boxed_in_place<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let room = Box::new_uninit();
    Box::into_pin(Box::write(room, make()))
}

/// Boxes a rarely taken branch, so that it adds nothing to the size or the type depth of the common
/// path.
pub(crate) fn boxed<'a, T>(
    future: impl Future<Output = T> + Send + 'a,
) -> Pin<Box<dyn Future<Output = T> + Send + 'a>> {
    Box::pin(future)
}
