//! The policy.
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use super::TimeoutEvent;
use crate::{
    call::{self, Attempt, CallContext, Cold, Deadline, Explanation, Layer, Ledger, Operation, Policy},
    config::Name,
    observe::{Events, Subscription},
    outcome::{CallError, FailureKind, Outcome, PolicyKind, TimedOut, Verdict},
    time::{Clock, Instant},
};

/// Gives what is inside it a bounded time.
///
/// The time counts from the moment when the work first waits: work that is ready at once reads no clock and arms no timer.
/// The deadline travels inwards, so an inner time-out is clipped to what is left of an outer one. Clones share events.
#[derive(Clone, Debug)]
pub struct Timeout {
    limit: Duration,
    name: Option<Name>,
    clock: Clock,
    events: Events<TimeoutEvent>,
}

impl Timeout {
    /// At most `limit`. Zero lets the work be polled once; [`Duration::MAX`] never fires.
    pub fn new(limit: Duration) -> Self {
        Self { limit, name: None, clock: Clock::tokio(), events: Events::new() }
    }

    /// The same with a name, for errors and events.
    #[must_use]
    pub fn named(mut self, name: impl Into<Name>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The same on another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// The limit.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Its events from now on.
    pub fn events(&self) -> Subscription<TimeoutEvent> {
        self.events.subscribe()
    }

    /// Runs `operation` with nothing but this time-out around it.
    ///
    /// # Errors
    /// The operation's own, or the time-out.
    ///
    /// # Cancel safety
    /// Dropped, it drops the operation.
    #[inline]
    pub fn call<O: Operation>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send {
        call::call_alone(self, operation)
    }
}

impl Timeout {
    /// Goes on with work that has been polled once and waits; `None` when its time is over.
    async fn timed(
        &self,
        mut work: Pin<&mut impl Future<Output = Outcome>>,
        deadline: &Deadline<'_>,
    ) -> Option<Outcome> {
        let at = deadline.at();
        if at == Instant::FAR_FUTURE {
            return Some(work.await);
        }
        let mut timer = pin!(self.clock.sleep_until(at));
        let mut polled = true;
        poll_fn(|cx| {
            if !std::mem::take(&mut polled)
                && let Poll::Ready(outcome) = work.as_mut().poll(cx)
            {
                return Poll::Ready(Some(outcome));
            }
            timer.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    #[cold]
    fn timed_out(&self, ledger: &mut dyn Ledger, deadline: &Deadline<'_>) -> Outcome {
        let after = deadline.given();
        self.events.send(self.name.as_ref(), deadline.at(), || TimeoutEvent::TimedOut { after });
        ledger.time_out(TimedOut { name: self.name.clone(), after });
        Outcome::Judged(Verdict::failure(FailureKind::Timeout).class())
    }
}

impl Policy for Timeout {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        let deadline = Deadline::new(&self.clock, &self.limit, cx);
        let frame = cx.until(&deadline);
        {
            let mut work = pin!(inner.attempt(frame.context()));
            match poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await {
                Poll::Ready(outcome) => return outcome,
                Poll::Pending => {
                    if let Some(outcome) = Cold::new(self.timed(work, &deadline)).await {
                        return outcome;
                    }
                }
            }
        } // the work is dropped here, before anybody hears of the time-out
        self.timed_out(inner.ledger(), &deadline)
    }

    fn describe(&self, explanation: &mut Explanation) {
        let settings = format!("at most {:?}", self.limit);
        explanation.push(Layer::new(PolicyKind::Timeout, self.name.clone(), settings).with_timeout(self.limit));
    }
}
