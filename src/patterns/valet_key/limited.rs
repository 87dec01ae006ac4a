//! A body that ends at the limit of its key.
use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::Stream;
use pin_project_lite::pin_project;

use super::keys::Transfer;

pin_project! {
    /// A body whose bytes are counted: see [`Pass::limit`](super::Pass::limit).
    pub struct Limited<S> {
        #[pin]
        body: S,
        left: u64,
        has_ended: bool,
        transfer: Transfer,
    }
}

/// The error of a body with a limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitedError<E> {
    /// The body is larger than its key allows. Over HTTP this is a 413.
    #[error("body larger than its key allows")]
    TooLarge,
    /// The body failed by itself.
    #[error(transparent)]
    Body(E),
}

impl<S> Limited<S> {
    pub(super) const fn new(body: S, max: Option<u64>, transfer: Transfer) -> Self {
        let left = match max {
            Some(max) => max,
            None => u64::MAX,
        };
        Self { body, left, has_ended: false, transfer }
    }
}

impl<S, B, E> Stream for Limited<S>
where
    S: Stream<Item = Result<B, E>>,
    B: AsRef<[u8]>,
{
    type Item = Result<B, LimitedError<E>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        if *this.has_ended {
            return Poll::Ready(None);
        }
        let next = match std::task::ready!(this.body.poll_next(cx)) {
            Some(Ok(chunk)) => {
                let bytes = chunk.as_ref().len() as u64;
                match this.left.checked_sub(bytes) {
                    Some(left) => {
                        *this.left = left;
                        this.transfer.bytes += bytes;
                        return Poll::Ready(Some(Ok(chunk)));
                    }
                    None => Some(Err(LimitedError::TooLarge)),
                }
            }
            Some(Err(error)) => Some(Err(LimitedError::Body(error))),
            None => {
                this.transfer.is_whole = true;
                None
            }
        };
        *this.has_ended = true;
        Poll::Ready(next)
    }
}

impl<S> std::fmt::Debug for Limited<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limited").field("left", &self.left).finish_non_exhaustive()
    }
}
