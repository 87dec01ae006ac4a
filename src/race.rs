//! The first of two futures to be ready.
use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

/// Which of two it was.
pub(crate) enum First<A, B> {
    One(A),
    Other(B),
}

/// Polls both until one is ready, and drops the other; `one` wins where both are.
pub(crate) async fn race<A: Future, B: Future>(one: A, other: B) -> First<A::Output, B::Output> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Ready(one) => Poll::Ready(First::One(one)),
        Poll::Pending => other.as_mut().poll(cx).map(First::Other),
    })
    .await
}
