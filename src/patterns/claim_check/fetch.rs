//! Fetching the bodies of one receive: concurrently, within a time limit, and without messages left
//! to expire.
use std::{
    future::{Future, pending},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{
    body::{CLAIM, Claim, Unreadable},
    queue::{ClaimCheck, checked},
};
use crate::{
    port::{ErrorClass, PortError, PortErrorKind},
    queue::{Delivery, Queue, QueueError, Receipt, Receive, Settle},
    race::{First, race},
};

/// Maximum number of bodies that one call fetches at once. It is halved while the store does not
/// keep up, down to 1.
pub(super) const WIDTH: usize = 32;

/// Maximum number of settlements kept for the next receive after one was dropped. Messages beyond
/// it expire.
const UNSETTLED: usize = 10_000;

/// Result of fetching one body.
pub(super) enum Fetched {
    Body(Bytes),
    /// The body does not exist and never will, for this reason.
    Never(String),
    /// The store failed.
    Failed(PortError),
    /// The store did not answer in time.
    TimedOut,
    /// The time was over before the fetch began.
    NotBegun,
}

/// Time limits of one receive: for the bodies, for the settlement of messages without one, and the
/// delay of their release.
struct Bounds {
    fetch: Duration,
    settle: Duration,
    pause: Duration,
}

impl Bounds {
    /// Together at most an eighth of the visibility time-out, as a request of a listener may take a
    /// sixth. A wait for messages comes before.
    fn of(receive: &Receive) -> Self {
        let rest = receive.visibility.saturating_sub(receive.wait);
        let visibility = if rest.is_zero() { receive.visibility } else { rest };
        Self { fetch: visibility / 12, settle: visibility / 24, pause: visibility / 10 }
    }
}

/// Received messages that are not returned yet. If this is dropped, the next receive settles them.
struct Taken<'a> {
    check: &'a ClaimCheck,
    settlements: Vec<(Receipt, Settle)>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut unsettled = self.check.0.unsettled.lock();
        let room = UNSETTLED.saturating_sub(unsettled.len());
        unsettled.extend(self.settlements.drain(..).take(room));
    }
}

impl Taken<'_> {
    /// Settles the remaining messages. Those whose settlement fails stay, unless a retry could not
    /// help.
    async fn settle(&mut self, within: Duration) {
        if self.settlements.is_empty() {
            return;
        }
        let request = self.check.0.queue.settle(self.settlements.clone());
        let answers = match self.check.within(within, request).await {
            Some(Ok(answers)) => answers,
            Some(Err(QueueError::Failed(error))) if error.class() != ErrorClass::Permanent => return,
            // The request may have been applied: an old receipt does no harm.
            None => return,
            Some(Err(_)) => return self.settlements.clear(),
        };
        let mut answers = answers.into_iter();
        self.settlements.retain(|_| match answers.next() {
            Some(Err(QueueError::Failed(error))) => error.class() != ErrorClass::Permanent,
            _ => false,
        });
    }
}

impl ClaimCheck {
    /// Receives messages and fetches their bodies. Returns those with a body, and settles the
    /// others.
    pub(super) async fn receive_bodies(&self, receive: Receive) -> Result<Vec<Delivery>, QueueError> {
        let bounds = Bounds::of(&receive);
        let left = std::mem::take(&mut *self.0.unsettled.lock());
        if !left.is_empty() {
            Taken { check: self, settlements: left }.settle(bounds.settle).await;
        }
        let mut deliveries = self.0.queue.receive(receive).await?;
        if !deliveries.iter().any(|delivery| delivery.headers.contains_key(CLAIM)) {
            return Ok(deliveries);
        }
        let release = |delivery: &Delivery| (delivery.receipt.clone(), Settle::release(Duration::ZERO));
        // If this future is dropped while bodies are fetched, all messages are released.
        let mut taken = Taken { check: self, settlements: deliveries.iter().map(release).collect() };
        let claims: Vec<_> = deliveries.iter().map(|delivery| delivery.headers.get(CLAIM)).collect();
        let claims: Vec<_> = claims.into_iter().map(|header| header.map(|header| Claim::read(header))).collect();
        let keys: Vec<&Claim> = claims.iter().flatten().flatten().collect(); // those that can be read
        let mut fetched = self.fetch(&keys, bounds.fetch).await.into_iter();

        let (mut with_body, mut rest, mut why) = (Vec::with_capacity(deliveries.len()), Vec::new(), None);
        for (mut delivery, claim) in deliveries.drain(..).zip(&claims) {
            let settle = match claim {
                None => {
                    with_body.push(delivery);
                    continue;
                }
                // A process of the newer release handles it.
                Some(Err(Unreadable::TooNew(form))) => {
                    let what = format!("a claim has form {form}: use the newer release");
                    why.get_or_insert_with(|| PortError::new(PortErrorKind::TooNew, what));
                    Settle::release(bounds.pause)
                }
                Some(Err(Unreadable::Damaged)) => {
                    let header = delivery.headers.get(CLAIM).map_or("", String::as_str);
                    Settle::dead_letter(format!("the claim cannot be read: {header}"))
                }
                Some(Ok(claim)) => match fetched.next().unwrap_or(Fetched::NotBegun) {
                    Fetched::Body(body) => {
                        delivery.headers.remove(CLAIM);
                        delivery.body = body;
                        delivery.receipt = checked(&delivery.receipt, &claim.row);
                        with_body.push(delivery);
                        continue;
                    }
                    // A dead letter stays one, for inspection.
                    Fetched::Never(_) if self.0.queue.dead_letters().is_none() => {
                        delivery.receipt = checked(&delivery.receipt, &claim.row);
                        with_body.push(delivery);
                        continue;
                    }
                    Fetched::Never(reason) => Settle::dead_letter(reason),
                    Fetched::Failed(error) => {
                        why = Some(error);
                        Settle::release(bounds.pause)
                    }
                    Fetched::TimedOut => {
                        let slow = || PortError::new(PortErrorKind::TimedOut, "the store did not answer in time");
                        why.get_or_insert_with(slow);
                        Settle::release(bounds.pause)
                    }
                    Fetched::NotBegun => Settle::release(Duration::ZERO),
                },
            };
            rest.push((delivery.receipt, settle));
        }
        taken.settlements = rest;
        let without = taken.settlements.len();
        taken.settle(bounds.settle).await;
        match why {
            Some(error) if with_body.is_empty() => Err(no_bodies(without, &error).into()),
            _ => Ok(with_body),
        }
    }

    /// Fetches the bodies of these claims, several at once, until the time is over.
    pub(super) async fn fetch(&self, claims: &[&Claim], within: Duration) -> Vec<Fetched> {
        let mut fetched: Vec<_> = claims.iter().map(|_| Fetched::NotBegun).collect();
        let width = self.0.width();
        let (results, mut next) = (&mut fetched, 0);
        let all = async move {
            let mut running = FuturesUnordered::new();
            loop {
                while next < claims.len() && running.len() < width {
                    results[next] = Fetched::TimedOut;
                    running.push(self.fetch_one(next, claims[next]));
                    next += 1;
                }
                let Some((at, result)) = running.next().await else { return };
                results[at] = result;
            }
        };
        let in_time = self.within(within, all).await.is_some();
        self.0.widen(in_time);
        fetched
    }

    async fn fetch_one(&self, at: usize, claim: &Claim) -> (usize, Fetched) {
        (at, self.body(claim).await)
    }

    /// Waits for the future within this time, if the clock can wait.
    pub(super) async fn within<F: Future>(&self, time: Duration, future: F) -> Option<F::Output> {
        let clock = &self.0.clock;
        let over = async { if clock.can_wait() { clock.sleep(time).await } else { pending().await } };
        match race(future, over).await {
            First::One(output) => Some(output),
            First::Other(()) => None,
        }
    }
}

/// Returns the error of a receive that could return no message. It is never permanent, because the
/// queue itself works.
fn no_bodies(messages: usize, why: &PortError) -> PortError {
    let kind = if why.class() == ErrorClass::Permanent { PortErrorKind::Unavailable } else { why.kind() };
    let error = PortError::new(kind, format!("the claimed bodies of {messages} messages cannot be fetched: {why}"));
    why.retry_after().map_or(error.clone(), |wait| error.with_retry_after(wait))
}
