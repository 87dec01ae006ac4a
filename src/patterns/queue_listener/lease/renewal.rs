//! Keeping leases: renewing them in time, and telling handlers when that fails.
use std::{future::Future, sync::atomic::Ordering, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch;

use crate::{
    queue_listener::{
        QueueCall, QueueListenerEvent as Event,
        lease::{Held, Lease},
        run::state::{Shift, Stage},
        settle::How,
        work::Cancel,
    },
    race::{First, race},
    time::{Instant, scaled},
};

/// Why a handler was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
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
    /// By a request that was sent then.
    Renewed(Instant),
    Failed,
    Lost,
}

impl Shift {
    /// Renews a lease once, in a time that ends by `by`. Owns what it needs, so that many go side by side.
    fn renewal(&self, lease: &Lease, by: Instant) -> impl Future<Output = Renewal> + '_ {
        let config = &self.inner.config;
        let sent = self.now();
        let within = config.call_limit().min(by - sent);
        let (source, receipt) = (lease.source, lease.receipt.clone());
        async move {
            let extended = self.inner.sources[source].queue.extend(&receipt, config.visibility);
            match self.request(QueueCall::Extend, within, extended).await {
                Some(Ok(())) => Renewal::Renewed(sent),
                Some(Err(error)) if error.is_lease_lost() => Renewal::Lost,
                _ => Renewal::Failed,
            }
        }
    }

    /// Notes what a renewal came to.
    fn renewed(&self, lease: &mut Lease, renewal: Renewal) {
        let visibility = self.inner.config.visibility;
        match renewal {
            Renewal::Renewed(sent) => lease.renewed(sent, visibility),
            Renewal::Lost => self.tell_lost(lease),
            // Soon again: a third of the time is left for that. At random, so that many do not come back together.
            Renewal::Failed => {
                let pause = scaled(visibility / 24, 0.5 + self.inner.entropy.unit());
                lease.renew_at = self.now() + pause;
            }
        }
    }

    /// A lease was not kept: the message is released, in case that the queue honours that still.
    pub(crate) fn lose(&self, lease: &mut Lease) {
        self.send_out([lease.clone().settling(How::GiveUp)]);
        self.tell_lost(lease);
    }

    /// A lease is lost: its message is not in hand any more.
    fn tell_lost(&self, lease: &mut Lease) {
        lease.lost = true;
        self.room.ended(1);
        self.inner.counters.leases_lost.add(1);
        let (id, deliveries) = (lease.id.clone(), lease.deliveries);
        self.event(|| Event::LeaseLost { id, deliveries, may_be_settled: false });
    }

    /// How much of its lease a message needs to begin: the margin, and what a message took lately, as
    /// a handler that computes keeps its own lease from being renewed.
    #[inline]
    pub(crate) fn takes(&self) -> Duration {
        self.parts.margin + (self.room.each() * 2).min(self.parts.half)
    }

    /// Whether so much is left of a lease that a handler may begin.
    #[inline]
    pub(crate) fn has_time(&self, lease: &Lease, now: Instant) -> bool {
        lease.until > now + self.takes()
    }

    /// Makes sure that a message has enough of its lease left to begin with; false where it has not, and cannot be: it is given up.
    pub(crate) async fn is_fresh(&self, lease: &mut Lease) -> bool {
        if lease.lost || self.has_time(lease, self.now()) {
            return !lease.lost;
        }
        if lease.until > self.now() {
            let renewal = self.renewal(lease, lease.until).await;
            self.renewed(lease, renewal);
        }
        if !lease.lost && lease.until - self.now() <= self.inner.config.lease_margin() {
            self.lose(lease);
        }
        !lease.lost
    }

    /// Keeps these leases for as long as it is polled, and tells the handler when it is to end; ready when it is to be dropped.
    /// Renewals go side by side.
    pub(crate) async fn keep(
        &self,
        leases: &mut [Lease],
        cancel: &Cancel,
        handler_began: Option<Instant>,
        stage: &mut watch::Receiver<Stage>,
    ) -> Dropped {
        let config = &self.inner.config;
        let margin = config.lease_margin();
        let times_out = match (config.handler_timeout, handler_began) {
            (Some(timeout), Some(began)) => began + timeout,
            _ => Instant::FAR_FUTURE,
        };
        let too_long = times_out + margin;
        let mut renewals = FuturesUnordered::new();
        loop {
            let (soft, hard) = match *stage.borrow_and_update() {
                Stage::Stops { soft, hard } => (soft, hard),
                Stage::Dropped => return Dropped::Stops,
                Stage::Works | Stage::Paused => (Instant::FAR_FUTURE, Instant::FAR_FUTURE),
            };
            let now = self.now();
            // The first that ends among those that are held; if none is, there is nothing left to work for.
            for lease in leases.iter_mut().filter(|lease| !lease.lost && lease.until <= now) {
                self.lose(lease);
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
            let warn = ends.saturating_sub(margin).min(times_out).min(soft);
            if warn <= now || leases.iter().any(|lease| lease.lost) {
                cancel.tell();
            }
            for (at, lease) in leases.iter_mut().enumerate() {
                if !lease.lost && lease.renew_at <= now {
                    let renewal = self.renewal(lease, lease.until);
                    renewals.push(async move { (at, renewal.await) });
                    // Until its answer.
                    lease.renew_at = Instant::FAR_FUTURE;
                }
            }
            let renew = leases.iter().filter(|lease| !lease.lost).map(|lease| lease.renew_at).min();
            let next = [ends, too_long, hard, if warn > now { warn } else { Instant::FAR_FUTURE }];
            let next = next.into_iter().chain(renew).min().unwrap_or(ends);
            let answer =
                async { if renewals.is_empty() { std::future::pending().await } else { renewals.next().await } };
            let wait = race(async { drop(stage.changed().await) }, self.inner.clock.sleep_until(next));
            if let First::One(Some((at, renewal))) = race(answer, wait).await
                && !leases[at].lost
            {
                self.renewed(&mut leases[at], renewal);
            }
        }
    }

    /// Keeps the leases of messages that wait for a handler, for ever; and has them shared where no task takes any.
    pub(crate) async fn keep_waiting(&self) {
        let visibility = self.inner.config.visibility;
        let look = LOOK.min(visibility / 8).max(Duration::from_nanos(1));
        let mut renewals = FuturesUnordered::new();
        let mut seen = None;
        loop {
            let now = self.now();
            let (due, taken, is_empty) =
                self.backlog(|backlog| (backlog.due(now), backlog.taken(), backlog.is_empty()));
            renewals.extend(due.into_iter().map(|held| async move {
                let renewal = self.renewal(&held.lease, held.lease.until).await;
                (held, renewal)
            }));
            // Between two looks nobody took any: who put them there is held up.
            if !is_empty && seen.replace(taken) == Some(taken) {
                self.share(0);
            }
            self.keeper_looks.store(!is_empty, Ordering::SeqCst);
            let looks = async {
                // It was put there before that was told.
                if is_empty && !self.has_waiting() {
                    self.to_keep.notified().await;
                } else {
                    self.inner.clock.sleep(look).await;
                }
            };
            let answer =
                async { if renewals.is_empty() { std::future::pending().await } else { renewals.next().await } };
            if let First::One(Some((held, renewal))) = race(answer, looks).await {
                self.was_renewed(held, renewal);
            }
        }
    }

    fn was_renewed(&self, held: Held, renewal: Renewal) {
        let Held { delivery, mut lease } = held;
        self.renewed(&mut lease, renewal);
        if lease.until <= self.now() {
            self.lose(&mut lease);
        }
        if !lease.lost {
            self.put_back(Held { delivery, lease });
        }
    }
}

/// How often it is looked whether messages that wait for a task are taken.
const LOOK: Duration = Duration::from_millis(50);
