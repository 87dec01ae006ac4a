//! Combinators of two futures.
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll},
};

/// The output of the future that was ready first.
pub(crate) enum First<A, B> {
    One(A),
    Other(B),
}

/// Returns to the executor once, so that other tasks of the thread run.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Polls both futures until one is ready, and drops the other; `one` wins if both are ready.
pub(crate) async fn race<A: Future, B: Future>(one: A, other: B) -> First<A::Output, B::Output> {
    race_pinned(pin!(one), pin!(other)).await
}

/// As [`race`], of futures that are pinned where they are, and are not moved.
pub(crate) fn race_pinned<A: Future, B: Future>(
    mut one: Pin<&mut A>,
    mut other: Pin<&mut B>,
) -> impl Future<Output = First<A::Output, B::Output>> {
    poll_fn(move |cx| match one.as_mut().poll(cx) {
        Poll::Ready(one) => Poll::Ready(First::One(one)),
        Poll::Pending => other.as_mut().poll(cx).map(First::Other),
    })
}

/// Continues a future that the caller may have polled already, with the waker of the coming poll: a
/// wait that begins beside it does not poll it twice.
pub(crate) struct Continued<F> {
    future: F,
    is_polled: bool,
}

impl<F> Continued<F> {
    pub(crate) const fn new(future: F, is_polled: bool) -> Self {
        Self { future, is_polled }
    }
}

impl<F: Future + Unpin> Future for Continued<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if std::mem::take(&mut self.is_polled) { Poll::Pending } else { Pin::new(&mut self.future).poll(cx) }
    }
}

/// Polls both futures until both are ready.
pub(crate) async fn both<A: Future, B: Future>(one: A, other: B) -> (A::Output, B::Output) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    poll_fn(|cx| {
        if first.is_none()
            && let Poll::Ready(ready) = one.as_mut().poll(cx)
        {
            first = Some(ready);
        }
        if second.is_none()
            && let Poll::Ready(ready) = other.as_mut().poll(cx)
        {
            second = Some(ready);
        }
        match (first.take(), second.take()) {
            (Some(one), Some(other)) => Poll::Ready((one, other)),
            (one, other) => {
                (first, second) = (one, other);
                Poll::Pending
            }
        }
    })
    .await
}
