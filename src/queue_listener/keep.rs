//! Keeping leases: renewing them in time, and telling handlers when that fails.
use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::sync::watch;

use super::{
    QueueCall, QueueListenerEvent as Event,
    lot::{Held, How, Lease},
    shift::{Shift, Stage},
    work::Cancel,
};
use crate::{
    race::race,
    time::{Instant, scaled},
};

/// Why a handler was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dropped {
    /// Its lease is lost.
    Lost,
    /// It took too long.
    TooLong,
    /// The listener stops.
    Stops,
}

/// What a renewal came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Renewal {
    Renewed,
    Failed,
    Lost,
}

impl Shift {
    /// Renews a lease once, in a time that ends by `by`.
    async fn renew(&self, lease: &mut Lease, by: Instant) -> Renewal {
        let config = &self.inner.config;
        let sent = self.now();
        let within = config.call_timeout.min(by - sent);
        let queue = &self.inner.sources[lease.source].queue;
        let extended = queue.extend(&lease.receipt, config.visibility);
        match self.request(QueueCall::Extend, within, extended).await {
            Some(Ok(())) => {
                lease.renewed(sent, config.visibility);
                Renewal::Renewed
            }
            Some(Err(error)) if error.is_lease_lost() => {
                lease.lost = true;
                self.lost(lease, false);
                Renewal::Lost
            }
            // Soon again: a third of the time is left for that. At random, so that many do not come back together.
            _ => {
                let pause = scaled(config.visibility / 24, 0.5 + self.inner.entropy.unit());
                lease.renew_at = self.now() + pause;
                Renewal::Failed
            }
        }
    }

    /// Says that a lease is lost.
    pub(super) fn lost(&self, lease: &Lease, may_be_settled: bool) {
        self.inner.counters.leases_lost.add(1);
        self.event(|| Event::LeaseLost { id: lease.id.clone(), deliveries: lease.deliveries, may_be_settled });
    }

    /// Makes sure that a message has enough of its lease left to begin with; false where it has not, and cannot be.
    pub(super) async fn is_fresh(&self, lease: &mut Lease) -> bool {
        let (now, margin) = (self.now(), self.inner.config.margin);
        if lease.until - now > margin {
            return true;
        }
        if lease.until > now {
            self.renew(lease, lease.until).await;
        }
        if lease.lost {
            return false;
        }
        let fresh = lease.until - self.now() > margin;
        if !fresh {
            lease.lost = true;
            self.lost(lease, false);
        }
        fresh
    }

    /// Keeps these leases for as long as it is polled, and tells the handler when it is to end; ready when it is to be dropped.
    pub(super) async fn keep(
        &self,
        leases: &mut [Lease],
        cancel: &Cancel,
        began: Instant,
        stage: &mut watch::Receiver<Stage>,
    ) -> Dropped {
        let config = &self.inner.config;
        let times_out = config.handler_timeout.map_or(Instant::FAR_FUTURE, |timeout| began + timeout);
        let too_long = times_out + config.margin;
        loop {
            let (soft, hard) = match *stage.borrow_and_update() {
                Stage::Stops { soft, hard } => (soft, hard),
                Stage::Dropped => return Dropped::Stops,
                Stage::Works | Stage::Paused => (Instant::FAR_FUTURE, Instant::FAR_FUTURE),
            };
            let now = self.now();
            // The first that ends among those that are held; if none is, there is nothing left to work for.
            let held = leases.iter_mut().filter(|lease| !lease.lost);
            for lease in held.filter(|lease| lease.until <= now) {
                lease.lost = true;
                self.lost(lease, false);
            }
            if leases.iter().all(|lease| lease.lost) {
                return Dropped::Lost;
            }
            if hard <= now {
                return Dropped::Stops;
            }
            if too_long <= now {
                return Dropped::TooLong;
            }
            let held = || leases.iter().filter(|lease| !lease.lost);
            let ends = held().map(|lease| lease.until).min().unwrap_or(Instant::FAR_FUTURE);
            let warn = ends.saturating_sub(config.margin).min(times_out).min(soft);
            if warn <= now || leases.iter().any(|lease| lease.lost) {
                cancel.tell();
            }
            let next = [ends, too_long, hard, if warn > now { warn } else { Instant::FAR_FUTURE }];
            let next = next.into_iter().min().unwrap_or(ends);
            let due = leases.iter_mut().filter(|lease| !lease.lost).min_by_key(|lease| lease.renew_at);
            match due {
                Some(lease) if lease.renew_at <= now => drop(self.renew(lease, next).await),
                Some(lease) => {
                    let wait = self.inner.clock.sleep_until(next.min(lease.renew_at));
                    race(async { drop(stage.changed().await) }, wait).await;
                }
                None => {}
            }
        }
    }

    /// Keeps the leases of messages that wait for a handler, for ever.
    pub(super) async fn keep_waiting(&self) {
        loop {
            match self.due(self.now()) {
                Ok(held) => self.keep_one(held).await,
                Err(next) => {
                    race(self.to_keep.notified(), async { self.inner.clock.sleep_until(next).await }).await;
                }
            }
        }
    }

    async fn keep_one(&self, held: Held) {
        let Held { delivery, mut lease } = held;
        let (until, now) = (lease.until, self.now());
        let renewal = if until <= now { Renewal::Failed } else { self.renew(&mut lease, until).await };
        if renewal == Renewal::Lost {
            return;
        }
        if lease.until <= self.now() {
            return self.lost(&lease, false);
        }
        if self.halts() {
            return self.send_out([lease.settling(How::HandBack)]);
        }
        self.put_back(Held { delivery, lease });
    }
}

pin_project_lite::pin_project! {
    /// A handler whose panic is a failure. Its future is made where it stays: it may be large.
    pub(super) struct Caught<F> {
        #[pin]
        future: Option<F>,
    }
}

impl<F: Future> Caught<F> {
    pub(super) const fn new() -> Self {
        Self { future: None }
    }

    /// Makes the future, and polls it once; what it gave, if it was ready.
    #[inline]
    pub(super) fn begin<W>(
        mut self: Pin<&mut Self>,
        handler: &impl Fn(W) -> F,
        work: W,
    ) -> impl Future<Output = Option<Result<F::Output, String>>> {
        let mut work = Some(work);
        poll_fn(move |cx| {
            let mut call = self.as_mut();
            let polled = catch_unwind(AssertUnwindSafe(|| {
                if let Some(work) = work.take() {
                    call.as_mut().project().future.set(Some(handler(work)));
                }
                call.as_mut().project().future.as_pin_mut().map(|future| future.poll(cx))
            }));
            Poll::Ready(match polled {
                Ok(Some(Poll::Ready(output))) => Some(Ok(output)),
                Ok(_) => None,
                Err(panic) => Some(Err(words(&*panic))),
            })
        })
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

/// What a panic said.
#[cold]
fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the handler panicked: {}", said.unwrap_or("no words"))
}
