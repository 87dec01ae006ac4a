//! Renewal of leases, and the signal to handlers if it fails.
use std::{future::Future, sync::atomic::Ordering, time::Duration};

use futures_util::{
    future::join_all,
    stream::{FuturesUnordered, StreamExt},
};
use tokio::sync::watch;

use crate::{
    queue::Delivery,
    queue_listener::{
        QueueCall, QueueListenerEvent as Event,
        lease::{Lease, LeasedDelivery, Term},
        run::{lifecycle::Stage, state::RunState},
        settle::{Decision, PendingSettlement},
    },
    race::{First, race},
    time::{Instant, scaled},
    work::Cancel,
};

/// Maximum number of times that recorded deaths double the time for which a suspect message is
/// alone.
const DOUBLINGS: u32 = 4;

/// Reason for which a handler was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// The lease is lost.
    Lost,
    /// The handler exceeded its time limit.
    TooLong,
    /// The listener stops.
    Stopping,
}

/// Result of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Renewal {
    /// The lease was renewed by a request that was sent at this time.
    Renewed(Instant),
    Failed,
    Lost,
}

impl RunState {
    /// Renews a lease once, in a time that ends at `by`. The future owns what it needs, so that
    /// many renewals can run concurrently.
    fn renewal(&self, lease: &Lease, by: Instant) -> impl Future<Output = Renewal> + '_ {
        let visibility = self.inner.visibility();
        let sent = self.now();
        let within = self.requests.limit().min(by - sent);
        let (queue, receipt) = (&self.inner.sources[lease.source].queue, lease.receipt.clone());
        let mark = if lease.begun { self.new_mark(lease) } else { None };
        let suspect = mark.map(|_| lease.clone());
        async move {
            let extended = match mark {
                None => queue.extend(&receipt, visibility),
                Some(begun) => queue.mark_begun(&receipt, visibility, begun),
            };
            match self.requests.make(QueueCall::Extend, within, extended).await {
                Some(Ok(())) => {
                    if let (Some(false), Some(suspect)) = (mark, &suspect) {
                        self.end_probation(suspect);
                    }
                    Renewal::Renewed(sent)
                }
                Some(Err(error)) if error.is_lease_lost() => Renewal::Lost,
                _ => Renewal::Failed,
            }
        }
    }

    /// Returns the record that the renewal of a suspect message changes.
    ///
    /// After a third of the visibility time-out other messages flow beside it. After the whole it
    /// leaves the probation to a suspect message that waits: the handler that begins now is the
    /// more likely one to end the process. It returns to the probation when none waits. Each
    /// recorded death doubles both times, so that a handler that ends its process late is found,
    /// too. A death after it left is not recorded, so each earlier delivery that ended without a
    /// settlement, of whatever cause, doubles the time after which it leaves.
    #[cold]
    fn new_mark(&self, lease: &Lease) -> Option<bool> {
        if !self.backlog.with(|backlog| backlog.is_on_probation(lease)) {
            return self.backlog.with(|backlog| backlog.try_probation(lease)).then_some(true);
        }
        let doubled = |time: Duration, times: u32| time.saturating_mul(1 << times.min(DOUBLINGS));
        let lasts = self.now() - lease.alone_since;
        if lasts >= doubled(self.parts.third, lease.crashes) {
            self.reopen();
        }
        let leaves = lasts >= doubled(self.inner.visibility(), lease.expiries.saturating_sub(1).max(lease.crashes));
        self.backlog.with(|backlog| leaves && backlog.has_waiting_suspects()).then_some(false)
    }

    /// Records that the handler of a suspect message begins, or has ended. Returns the time of the
    /// request, or `None` if the record was not confirmed.
    pub(crate) async fn mark_begun(&self, lease: &Lease, begun: bool) -> Option<Instant> {
        let (sent, visibility) = (self.now(), self.inner.visibility());
        let within = (lease.until - sent).saturating_sub(self.parts.margin);
        let queue = &self.inner.sources[lease.source].queue;
        let marked = queue.mark_begun(&lease.receipt, visibility, begun);
        match self.requests.make(QueueCall::Extend, within, marked).await {
            Some(Ok(())) => Some(sent),
            _ => None,
        }
    }

    /// Applies the result of a renewal.
    fn renewed(&self, lease: &mut Lease, renewal: Renewal) {
        let visibility = self.inner.visibility();
        match renewal {
            Renewal::Renewed(sent) => lease.renewed(sent, visibility),
            Renewal::Lost => self.mark_lost(lease),
            // Retries soon: at least a third of the lease is left for retries. The delay is random,
            // so that many renewals do not retry together.
            Renewal::Failed => {
                let pause = scaled(visibility / 24, 0.5 + self.inner.entropy.unit());
                lease.renew_at = self.now() + pause;
            }
        }
    }

    /// Gives up a lease that could not be kept. The message is released in case the queue still
    /// accepts that.
    pub(crate) fn lose(&self, lease: &mut Lease) {
        self.send_out([lease.clone().settlement(Decision::LeaseLost)]);
        self.mark_lost(lease);
    }

    /// Marks a lease as lost; its message is no longer outstanding.
    fn mark_lost(&self, lease: &mut Lease) {
        lease.lost = true;
        self.intake.ended(1);
        self.report_lost(lease);
    }

    fn report_lost(&self, lease: &Lease) {
        self.inner.counters.ends.leases_lost.add(1);
        let (id, deliveries) = (lease.id.clone(), lease.deliveries);
        self.event(|| Event::LeaseLost { id, deliveries, may_be_settled: false });
    }

    /// Returns the lease time that a message needs to begin: the margin, and twice the recent time
    /// per message. A CPU-bound handler keeps its own lease from being renewed, hence the second
    /// part.
    #[inline]
    pub(crate) fn takes(&self) -> Duration {
        self.parts.margin + (self.intake.each() * 2).min(self.parts.half)
    }

    /// Returns `true` if enough of the lease is left for a handler to begin.
    #[inline]
    pub(crate) fn has_time(&self, lease: &Lease, now: Instant) -> bool {
        lease.until > now + self.takes()
    }

    /// Ensures that enough of the lease is left for a handler to begin, by a renewal if need be.
    /// Otherwise gives the lease up and returns `false`.
    pub(crate) async fn is_fresh(&self, lease: &mut Lease) -> bool {
        if lease.lost || self.has_time(lease, self.now()) {
            return !lease.lost;
        }
        if lease.until > self.now() {
            let renewal = self.renewal(lease, lease.until).await;
            self.renewed(lease, renewal);
        }
        if !lease.lost && lease.until - self.now() <= self.inner.config.load().lease_margin() {
            self.lose(lease);
        }
        !lease.lost
    }

    /// Renews these leases concurrently while it is polled, and signals the handler when it has to
    /// stop. Completes when the handler is to be dropped.
    pub(crate) async fn keep(
        &self,
        leases: &mut [Lease],
        cancel: &Cancel,
        handler_began: Option<Instant>,
        stage: &mut watch::Receiver<Stage>,
    ) -> Dropped {
        let margin = self.parts.margin;
        // The handler keeps the limit with which it began.
        let handler_timeout = self.inner.config.load().handler_timeout;
        let mut renewals = FuturesUnordered::new();
        loop {
            let times_out = match (handler_timeout, handler_began) {
                (Some(timeout), Some(began)) if !cancel.is_unlimited() => began + timeout,
                _ => Instant::FAR_FUTURE,
            };
            let too_long = times_out + margin;
            let (cancel_at, kill_at) = match *stage.borrow_and_update() {
                Stage::Stopping { cancel_at, kill_at } => (cancel_at, kill_at),
                Stage::Dropped => return Dropped::Stopping,
                Stage::Running | Stage::Paused => (Instant::FAR_FUTURE, Instant::FAR_FUTURE),
            };
            let now = self.now();
            // Gives up the leases that have ended. If none is left, the handler's result will be refused.
            for lease in leases.iter_mut().filter(|lease| !lease.lost && lease.until <= now) {
                self.lose(lease);
            }
            if leases.iter().all(|lease| lease.lost) {
                return Dropped::Lost;
            }
            if kill_at <= now {
                return Dropped::Stopping;
            }
            if too_long <= now {
                return Dropped::TooLong;
            }
            // A batch shares one signal, so that one of its messages cannot stop the others.
            if handler_began.is_some() && leases.len() == 1 && leases.iter().any(|lease| self.inner.is_cancelled(lease))
            {
                cancel.signal();
            }
            let leased = || leases.iter().filter(|lease| !lease.lost);
            let ends = leased().map(|lease| lease.until).min().unwrap_or(Instant::FAR_FUTURE);
            let stop = ends.saturating_sub(margin).min(cancel_at);
            if stop <= now || leases.iter().any(|lease| lease.lost) {
                cancel.signal();
            } else if times_out <= now {
                cancel.signal_limit();
            }
            let warn = stop.min(times_out);
            for (at, lease) in leases.iter_mut().enumerate() {
                if !lease.lost && lease.renew_at <= now {
                    let renewal = self.renewal(lease, lease.until);
                    renewals.push(async move { (at, renewal.await) });
                    self.inner.ride();
                    // Not due again before the answer.
                    lease.renew_at = Instant::FAR_FUTURE;
                }
            }
            let renew = leases.iter().filter(|lease| !lease.lost).map(|lease| lease.renew_at).min();
            let next = [ends, too_long, kill_at, if warn > now { warn } else { Instant::FAR_FUTURE }];
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

    /// Renews the leases of messages that arrived late after their request was sent. Keeps those
    /// whose leases were renewed, and returns the time from which these count.
    pub(crate) async fn renew_arrived(&self, source: usize, at: Instant, deliveries: &mut Vec<Delivery>) -> Instant {
        let sent = self.now();
        let arrived = std::mem::take(deliveries).into_iter().map(async |delivery| {
            let lease = Lease::of(&delivery, Term::since(at, source, &self.parts));
            let renewal = self.renewal(&lease, sent + self.requests.limit()).await;
            (delivery, lease, renewal)
        });
        for (delivery, lease, renewal) in join_all(arrived).await {
            match renewal {
                Renewal::Renewed(_) => {
                    deliveries.push(delivery);
                    continue;
                }
                Renewal::Failed => self.send_out([lease.clone().settlement(Decision::LeaseLost)]),
                Renewal::Lost => {}
            }
            self.report_lost(&lease);
        }
        sent
    }

    /// Renews the leases of waiting messages until the run ends. Starts tasks if no task takes any
    /// message.
    pub(crate) async fn renew_waiting(&self) {
        let visibility = self.inner.visibility();
        let look = LOOK.min(visibility / 8).max(Duration::from_nanos(1));
        let mut renewals = FuturesUnordered::new();
        let (mut seen, mut look_at) = (None, self.now());
        loop {
            let now = self.now();
            // Not after each of many renewals: it looks at all waiting messages.
            let looks_now = now >= look_at;
            look_at = if looks_now { now + look } else { look_at };
            let (due, taken, is_empty, holds_none) = self.backlog.with(|backlog| {
                let due = if looks_now { backlog.due(now) } else { Vec::new() };
                (due, backlog.taken(), backlog.is_empty(), backlog.holds_none())
            });
            self.taken_out(&due);
            renewals.extend(due.into_iter().map(|leased| async move {
                let renewal = self.renewal(&leased.lease, leased.lease.until).await;
                (leased, renewal)
            }));
            // No message was taken since the last check, so the task that queued them is blocked.
            if !is_empty && seen.replace(taken) == Some(taken) {
                self.share(0);
            }
            self.backlog.keeper_looks.store(!holds_none, Ordering::SeqCst);
            let looks = async {
                // `push` sets `waits` before it reads `keeper_looks`; this task writes them in
                // the other order. All four accesses are `SeqCst`, so that one of both sees the
                // other.
                if holds_none && !self.backlog.has_waiting() {
                    self.backlog.to_keep.notified().await;
                } else {
                    self.inner.clock.sleep_until(look_at).await;
                }
            };
            let answer =
                async { if renewals.is_empty() { std::future::pending().await } else { renewals.next().await } };
            if let First::One(Some((leased, renewal))) = race(answer, looks).await {
                self.was_renewed(leased, renewal);
            }
        }
    }

    /// Renews the leases of held results, from a third of their length on. Gives up those whose
    /// leases are lost.
    pub(crate) async fn renew_held(&self, settlements: &mut Vec<PendingSettlement>) {
        let (now, visibility) = (self.now(), self.inner.visibility());
        let is_due = |held: &PendingSettlement| held.held.is_some() && held.lease.until < now + visibility / 3 * 2;
        if !settlements.iter().any(is_due) {
            return;
        }
        let renewals = settlements.iter().map(async |held| match is_due(held) {
            true => self.renewal(&held.lease, held.lease.until.max(now)).await,
            false => Renewal::Failed,
        });
        let mut renewals = join_all(renewals).await.into_iter();
        let before = settlements.len();
        settlements.retain_mut(|held| {
            let renewal = renewals.next().unwrap_or(Renewal::Failed);
            if let Renewal::Renewed(sent) = renewal {
                held.lease.until = sent + visibility;
            }
            if renewal == Renewal::Lost {
                self.forget_results(held);
                self.settling_lost(held);
            }
            renewal != Renewal::Lost
        });
        self.settled(before - settlements.len());
    }

    fn was_renewed(&self, leased: LeasedDelivery, renewal: Renewal) {
        let LeasedDelivery { delivery, mut lease } = leased;
        self.renewed(&mut lease, renewal);
        if lease.until <= self.now() {
            self.lose(&mut lease);
        }
        if !lease.lost {
            self.put_back(LeasedDelivery { delivery, lease });
        }
    }
}

/// Interval between two checks whether waiting messages are taken.
const LOOK: Duration = Duration::from_millis(50);
