//! The handlers of a partition that run, and the dead letters on their way.
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{Delivered, delivered::OfRead};
use crate::{
    port::{BoxFuture, FencingToken},
    work::{Cancel, Cancelled, Caught},
};

/// Handlers and dead letters, each with the position of its event.
pub(super) struct Handlers<'a, F, H> {
    handler: &'a F,
    token: FencingToken,
    cancel: Cancel,
    cancelled: Cancelled,
    running: FuturesUnordered<Running<H>>,
    /// Boxes of handlers that have ended, for those to come.
    spare: Vec<Pin<Box<Caught<H>>>>,
    burying: FuturesUnordered<BoxFuture<'a, Buried>>,
}

/// The position of an event that is a dead letter now, or the reason for which it is none.
pub(super) type Buried = (u64, Result<(), String>);

/// A handler that runs.
struct Running<H> {
    position: u64,
    future: Option<Pin<Box<Caught<H>>>>,
}

impl<H: Future> Future for Running<H> {
    type Output = (u64, Result<H::Output, String>, Option<Pin<Box<Caught<H>>>>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.future else { return Poll::Pending };
        let Poll::Ready(output) = future.as_mut().poll(cx) else { return Poll::Pending };
        future.as_mut().end();
        Poll::Ready((self.position, output, self.future.take()))
    }
}

impl<'a, F, H> Handlers<'a, F, H>
where
    F: Fn(Delivered) -> H,
    H: Future,
{
    pub(super) fn new(handler: &'a F, token: FencingToken) -> Self {
        let mut cancel = Cancel::new();
        let (running, burying) = (FuturesUnordered::new(), FuturesUnordered::new());
        Self { handler, token, cancelled: cancel.next(), cancel, running, spare: Vec::new(), burying }
    }

    /// Starts the handler of an event. Returns its output if it is ready at once.
    pub(super) fn start(
        &mut self,
        cx: &mut Context<'_>,
        position: u64,
        recorded: OfRead,
        attempt: u32,
    ) -> Option<Result<H::Output, String>> {
        let delivered = Delivered { recorded, attempt, token: self.token, cancel: self.cancelled.clone() };
        let mut future = self.spare.pop().unwrap_or_else(|| Box::pin(Caught::new()));
        let handler = self.handler;
        let output = future.as_mut().begin(cx, || handler(delivered));
        match output.is_some() {
            true => self.spare.push(future),
            false => self.running.push(Running { position, future: Some(future) }),
        }
        output
    }

    /// Returns the output of the next handler that has ended.
    pub(super) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Option<(u64, Result<H::Output, String>)> {
        let Poll::Ready(Some((position, output, spare))) = self.running.poll_next_unpin(cx) else { return None };
        self.spare.extend(spare);
        Some((position, output))
    }

    /// Adds a dead letter that is to be sent.
    pub(super) fn bury(&mut self, letter: BoxFuture<'a, Buried>) {
        self.burying.push(letter);
    }

    /// Returns the next dead letter that was sent, or was refused.
    pub(super) fn poll_buried(&mut self, cx: &mut Context<'_>) -> Option<Buried> {
        match self.burying.poll_next_unpin(cx) {
            Poll::Ready(buried) => buried,
            Poll::Pending => None,
        }
    }

    /// Returns the number of handlers that run.
    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.burying.is_empty()
    }

    /// Asks the handlers to stop.
    pub(super) fn cancel(&self) {
        self.cancel.signal();
    }

    /// Drops the handlers and dead letters that have not ended, and returns their number.
    pub(super) fn abandon(&mut self) -> usize {
        let dropped = self.running.len() + self.burying.len();
        self.running.clear();
        self.burying.clear();
        dropped
    }
}
