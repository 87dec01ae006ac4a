//! Received messages: their leases, as this process counts them, and the backlog of those that wait
//! for a handler. They belong to no task: the next free task takes the next message, so that none
//! waits behind a blocked task.
//
// Concurrency. With `run_on` the tasks of a run are on several threads. `waits` mirrors the backlog
// and is written under its lock. `push` writes it and then reads `keeper_looks`; `renew_waiting`
// writes `keeper_looks` and then reads `waits`. All four are `SeqCst`, so that the renewing task is
// notified or sees the messages.
pub(crate) mod renewal;

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
    vec,
};

use tokio::sync::Notify;

use crate::{
    queue::{Delivery, MessageId, Receipt, untried},
    queue_listener::{
        QueueListenerConfig,
        run::{intake::Reserved, state::RunState},
        settle::{Decision, PendingSettlement},
    },
    sync::Mutex,
    time::{Instant, nanos},
};

/// The lease of one message, counted from the moment at which its request was sent.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    pub(crate) source: usize,
    pub(crate) id: MessageId,
    pub(crate) receipt: Receipt,
    pub(crate) deliveries: u32,
    /// Number of the attempt that this delivery is or would be, starting at 1, without those of
    /// which nothing tells that their handlers began.
    pub(crate) attempt: u32,
    /// Consecutive earlier deliveries that ended without a settlement, except those that this
    /// process explains.
    pub(crate) expiries: u32,
    /// Those of them whose handler had begun.
    pub(crate) crashes: u32,
    /// Number of earlier deliveries that ended without a settlement and were no attempts.
    pub(crate) untried: u32,
    /// `true` if a suspect message has begun, so that its probation ends with this lease.
    pub(crate) begun: bool,
    /// Time from which on a suspect message kept others from beginning.
    pub(crate) alone_since: Instant,
    /// End of the lease.
    pub(crate) until: Instant,
    /// Time of the next renewal.
    pub(crate) renew_at: Instant,
    /// Time of the request that received the message, to which its age refers.
    pub(crate) received: Instant,
    /// `true` if another process has the message or may have it.
    pub(crate) lost: bool,
}

/// Durations derived from the visibility time-out, divided once.
pub(crate) struct Parts {
    whole: Duration,
    pub(crate) third: Duration,
    /// Time that must be left of a lease for its handler to begin, besides the time that the
    /// handler takes.
    pub(crate) margin: Duration,
    pub(crate) half: Duration,
    /// Nanoseconds of work that a run prefetches.
    pub(crate) ahead: u64,
}

impl Parts {
    pub(crate) fn of(config: &QueueListenerConfig) -> Self {
        let whole = config.visibility;
        let ahead = nanos(AHEAD.min(whole / 16));
        Self { whole, third: whole / 3, margin: config.lease_margin(), half: whole / 2, ahead }
    }
}

/// Maximum time of work that a run prefetches; a sixteenth of the visibility time-out is the other
/// bound.
const AHEAD: Duration = Duration::from_secs(1);

/// The end and the renewal time that all leases of one poll share.
#[derive(Clone, Copy)]
pub(crate) struct Term {
    source: usize,
    until: Instant,
    pub(crate) renew_at: Instant,
    received: Instant,
}

impl Term {
    /// Returns the term of leases of this source whose request was sent at this time.
    #[inline]
    pub(crate) fn since(since: Instant, source: usize, parts: &Parts) -> Self {
        Self { source, until: since + parts.whole, renew_at: since + parts.third, received: since }
    }
}

impl Lease {
    #[inline]
    pub(crate) fn of(delivery: &Delivery, term: Term) -> Self {
        let untried = untried(delivery.expiries, delivery.crashes);
        Self {
            source: term.source,
            id: delivery.id.clone(),
            receipt: delivery.receipt.clone(),
            deliveries: delivery.deliveries,
            attempt: delivery.attempts.saturating_sub(untried).saturating_add(1),
            expiries: delivery.expiries,
            crashes: delivery.crashes,
            untried,
            begun: false,
            alone_since: term.received,
            until: term.until,
            renew_at: term.renew_at,
            received: term.received,
            lost: false,
        }
    }

    /// Returns the age of the message now, which has waited here since it was received.
    #[inline]
    pub(crate) fn age_of(&self, delivery: &Delivery, now: Instant) -> Duration {
        delivery.age.saturating_add(now - self.received)
    }

    /// Records a renewal whose request was sent at this time.
    pub(crate) fn renewed(&mut self, since: Instant, visibility: Duration) {
        (self.until, self.renew_at) = (since + visibility, since + visibility / 3);
    }

    /// Returns `true` if the end of an earlier delivery is unexplained: its handler may have ended
    /// its process.
    #[inline]
    pub(crate) const fn is_suspect(&self) -> bool {
        self.expiries > 0
    }

    /// Returns `true` if the attempts before this one are used up.
    #[inline]
    pub(crate) const fn exceeds(&self, max_attempts: u32) -> bool {
        self.attempt > max_attempts
    }

    /// Subtracts expired deliveries that this process explains: they were neither deaths nor
    /// attempts.
    pub(crate) fn explains(&mut self, explained: u32) {
        let tried = self.expiries - untried(self.expiries, self.crashes);
        self.expiries = self.expiries.saturating_sub(explained);
        self.crashes = self.crashes.saturating_sub(explained);
        let no_attempts = tried.saturating_sub(self.expiries - untried(self.expiries, self.crashes));
        self.attempt = self.attempt.saturating_sub(no_attempts).max(1);
        self.untried += no_attempts;
    }

    #[inline]
    pub(crate) fn settlement(mut self, decision: Decision) -> PendingSettlement {
        // A suspect message whose results are held ends no process any more.
        self.begun = false;
        // A lost lease was already subtracted from the outstanding messages.
        let is_overdue = matches!(decision, Decision::LeaseLost);
        PendingSettlement { lease: self, decision, may_be_settled: false, is_overdue, found_full: false, held: None }
    }
}

/// The messages of one poll that no task has taken yet.
pub(crate) struct Batch {
    pub(crate) deliveries: vec::IntoIter<Delivery>,
    pub(crate) term: Term,
}

/// A received message with its lease.
pub(crate) struct LeasedDelivery {
    pub(crate) delivery: Delivery,
    pub(crate) lease: Lease,
}

/// Maximum number of suspect messages that wait in one run. Others are released for a while.
const SUSPECTS: usize = 64;

/// Messages that wait for a handler. A state machine that takes `now` as an argument.
#[derive(Default)]
pub(crate) struct Backlog {
    /// Batches as received. All leases of a batch have the same age, and a `Lease` is made only
    /// when its message is taken.
    batches: VecDeque<Batch>,
    /// Messages whose leases were renewed.
    leased: VecDeque<LeasedDelivery>,
    /// Suspect messages. They begin one at a time.
    suspects: VecDeque<LeasedDelivery>,
    /// The suspect message that is handled and whose beginning is recorded.
    probation: Option<(usize, Receipt)>,
    /// Time before which no suspect message begins, because an earlier one was alone for long.
    rests_until: Option<Instant>,
    /// Number of messages taken out. If it does not change between two checks, all tasks are
    /// blocked.
    taken: u64,
}

impl Backlog {
    /// Returns the number of messages that tasks may take now.
    pub(crate) fn len(&self) -> usize {
        let others = self.batches.iter().map(|batch| batch.deliveries.len()).sum::<usize>() + self.leased.len();
        others + usize::from(self.has_suspect())
    }

    /// Returns `true` if tasks may take no message now.
    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty() && self.leased.is_empty() && !self.has_suspect()
    }

    /// Returns `true` if no lease is to be kept here.
    pub(crate) fn holds_none(&self) -> bool {
        self.is_empty() && self.suspects.is_empty()
    }

    /// Returns `true` if a suspect message may begin.
    fn has_suspect(&self) -> bool {
        self.probation.is_none() && self.rests_until.is_none() && !self.suspects.is_empty()
    }

    /// Lets no suspect message begin before this time, or a later one that was set before.
    pub(crate) fn rest_until(&mut self, until: Instant) {
        self.rests_until = self.rests_until.max(Some(until));
    }

    /// Adds a suspect message. Returns it if too many wait.
    pub(crate) fn push_suspect(&mut self, leased: LeasedDelivery) -> Option<LeasedDelivery> {
        if self.suspects.len() >= SUSPECTS {
            return Some(leased);
        }
        self.suspects.push_back(leased);
        None
    }

    /// Returns `true` if suspect messages wait for the end of another's probation.
    pub(crate) fn has_waiting_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Returns `true` if this message is on probation.
    pub(crate) fn is_on_probation(&self, lease: &Lease) -> bool {
        self.probation.as_ref().is_some_and(|(source, receipt)| *source == lease.source && *receipt == lease.receipt)
    }

    /// Puts a suspect message on probation if no other is, and none waits for that.
    pub(crate) fn try_probation(&mut self, lease: &Lease, now: Instant) -> bool {
        self.rests_until = self.rests_until.filter(|until| *until > now);
        let may = self.probation.is_none() && self.rests_until.is_none() && self.suspects.is_empty();
        if may {
            self.probation = Some((lease.source, lease.receipt.clone()));
        }
        may
    }

    /// Ends the probation of this message, if it is on probation.
    pub(crate) fn end_probation(&mut self, lease: &Lease) {
        if self.is_on_probation(lease) {
            self.probation = None;
        }
    }

    pub(crate) const fn taken(&self) -> u64 {
        self.taken
    }

    pub(crate) fn push(&mut self, batch: Batch) {
        if batch.deliveries.len() > 0 {
            self.batches.push_back(batch);
        }
    }

    /// Puts back a message whose lease was renewed; it goes before all batches.
    pub(crate) fn put_back(&mut self, leased: LeasedDelivery) {
        self.leased.push_back(leased);
    }

    /// Takes the next message: a suspect one first, if none is on probation.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<LeasedDelivery> {
        if self.has_suspect()
            && let Some(leased) = self.suspects.pop_front()
        {
            self.taken = self.taken.wrapping_add(1);
            self.probation = Some((leased.lease.source, leased.lease.receipt.clone()));
            return Some(leased);
        }
        self.next_trusted()
    }

    /// Takes the next message that is not suspect.
    #[inline]
    pub(crate) fn next_trusted(&mut self) -> Option<LeasedDelivery> {
        self.taken = self.taken.wrapping_add(1);
        if let Some(leased) = self.leased.pop_front() {
            return Some(leased);
        }
        let batch = self.batches.front_mut()?;
        let lease = Lease::of(batch.deliveries.as_slice().first()?, batch.term);
        let delivery = batch.deliveries.next()?;
        if batch.deliveries.len() == 0 {
            self.batches.pop_front();
        }
        Some(LeasedDelivery { delivery, lease })
    }

    /// Takes out the messages whose leases are due for renewal.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<LeasedDelivery> {
        self.rests_until = self.rests_until.filter(|until| *until > now);
        let mut due = Vec::new();
        self.batches.retain_mut(|batch| {
            let is_due = batch.term.renew_at <= now;
            if is_due {
                let leased = |delivery| LeasedDelivery { lease: Lease::of(&delivery, batch.term), delivery };
                due.extend(batch.deliveries.by_ref().map(leased));
            }
            !is_due
        });
        for renewed in [&mut self.leased, &mut self.suspects] {
            for _ in 0..renewed.len() {
                if let Some(leased) = renewed.pop_front() {
                    if leased.lease.renew_at <= now {
                        due.push(leased);
                    } else {
                        renewed.push_back(leased);
                    }
                }
            }
        }
        due
    }

    /// Takes out all messages.
    pub(crate) fn drain(&mut self) -> Vec<LeasedDelivery> {
        let suspects = std::mem::take(&mut self.suspects);
        std::iter::from_fn(|| self.next_trusted()).chain(suspects).collect()
    }
}

/// The backlog of one run.
#[derive(Default)]
pub(crate) struct SharedBacklog {
    backlog: Mutex<Backlog>,
    /// `true` if the backlog is not empty. Read for each message, without its lock.
    waits: AtomicBool,
    /// Notifies the task that renews waiting messages; `keeper_looks` is `true` while it checks by
    /// itself.
    to_keep: Notify,
    keeper_looks: AtomicBool,
}

impl SharedBacklog {
    pub(crate) fn with<T>(&self, with: impl FnOnce(&mut Backlog) -> T) -> T {
        let mut backlog = self.backlog.lock();
        let result = with(&mut backlog);
        self.waits.store(!backlog.is_empty(), Ordering::SeqCst);
        result
    }

    /// Returns the number of messages that tasks may take now.
    pub(crate) fn len(&self) -> usize {
        self.backlog.lock().len()
    }

    /// Returns `true` if messages wait for a task.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.waits.load(Ordering::SeqCst)
    }

    /// Takes the next message.
    #[inline]
    fn next(&self) -> Option<LeasedDelivery> {
        if !self.waits.load(Ordering::Acquire) {
            return None;
        }
        let mut backlog = self.backlog.lock();
        let next = backlog.next();
        if backlog.is_empty() {
            self.waits.store(false, Ordering::Release);
        }
        next
    }

    /// Notifies the task that renews waiting messages, unless it checks by itself.
    fn wake_keeper(&self) -> bool {
        let wakes = !self.keeper_looks.load(Ordering::SeqCst);
        if wakes {
            self.to_keep.notify_one();
        }
        wakes
    }
}

impl RunState {
    /// Takes the messages of a poll into reserved capacity.
    pub(crate) fn took(&self, source: usize, since: Instant, deliveries: Vec<Delivery>, reserved: &mut Reserved<'_>) {
        self.intake.arrived(deliveries.len(), reserved.used());
        let term = Term::since(since, source, &self.parts);
        if self.inner.is_source_paused(source) {
            // It was paused meanwhile.
            let lease = |delivery| LeasedDelivery { lease: Lease::of(&delivery, term), delivery };
            self.release(deliveries.into_iter().map(lease));
        } else if deliveries.iter().any(|delivery| delivery.expiries > 0) {
            self.admit_suspects(term, deliveries);
        } else {
            self.enqueue(Batch { deliveries: deliveries.into_iter(), term });
        }
    }

    /// Takes the only message of a poll for the task that polled, unless it needs more care.
    #[inline]
    pub(crate) fn admit_one(
        &self,
        source: usize,
        since: Instant,
        deliveries: &mut Vec<Delivery>,
        reserved: &mut Reserved<'_>,
    ) -> Option<LeasedDelivery> {
        let [delivery] = &deliveries[..] else { return None };
        let waits = self.intake.is_closed() || self.lifecycle.is_halted() || self.inner.is_source_paused(source);
        if delivery.expiries > 0 || waits {
            return None;
        }
        let delivery = deliveries.pop()?;
        self.intake.ended(reserved.used() - 1);
        Some(LeasedDelivery { lease: Lease::of(&delivery, Term::since(since, source, &self.parts)), delivery })
    }

    /// Takes messages of which some are suspect. Those that ended their processes too often become
    /// dead letters without a handler.
    #[cold]
    fn admit_suspects(&self, term: Term, deliveries: Vec<Delivery>) {
        // The first death is not recorded: until then nothing made the message suspect.
        let max = self.inner.config.load().max_expiries.saturating_sub(1).max(1);
        let lease = |delivery| LeasedDelivery { lease: Lease::of(&delivery, term), delivery };
        let mut leased: Vec<_> = deliveries.into_iter().map(lease).collect();
        let mut out = self.inner.unsettled.lock().recall_all(&mut leased);
        let (over, rest) = leased.into_iter().partition::<Vec<_>, _>(|leased| leased.lease.crashes >= max);
        for leased in over {
            let why = "exceeded max expiries: its handler began, and its deliveries ended without a settlement";
            let decision = self.dead_letter(&leased.lease, why, None);
            out.push(leased.lease.settlement(decision));
        }
        self.send_out(out);
        self.hold(rest);
    }

    /// Lets messages wait for a task. Suspect ones that find no place are released for a while.
    pub(crate) fn hold(&self, leased: Vec<LeasedDelivery>) {
        let (mut suspects, mut crowded) = (0, Vec::new());
        self.backlog.with(|backlog| {
            for leased in leased {
                if !leased.lease.is_suspect() {
                    backlog.put_back(leased);
                } else if let Some(leased) = backlog.push_suspect(leased) {
                    crowded.push(leased);
                } else {
                    suspects += 1;
                }
            }
        });
        // They take no capacity from others.
        self.intake.ended(suspects);
        let put_off = |leased: LeasedDelivery| leased.lease.settlement(self.put_off());
        self.send_out(crowded.into_iter().map(put_off));
        self.came_to_wait();
    }

    /// Counts messages that are taken out of the backlog, of which suspect ones were not counted.
    #[inline]
    pub(crate) fn taken_out(&self, leased: &[LeasedDelivery]) {
        let suspects = leased.iter().filter(|leased| leased.lease.is_suspect()).count();
        if suspects > 0 {
            self.intake.more(suspects);
        }
    }

    fn release(&self, leased: impl IntoIterator<Item = LeasedDelivery>) {
        self.send_out(leased.into_iter().map(|leased| leased.lease.settlement(Decision::RELEASE)));
    }

    /// Adds messages to the backlog, from which each task takes the next.
    fn enqueue(&self, batch: Batch) {
        if batch.deliveries.len() == 0 {
            return;
        }
        self.backlog.with(|backlog| backlog.push(batch));
        self.came_to_wait();
    }

    /// Lets messages that were just added be renewed, or releases them if none begins now.
    fn came_to_wait(&self) {
        // Checked after the push: a task that halts the run either finds the messages, or its halt
        // is seen here. The lock of the backlog orders the two.
        if self.lifecycle.is_halted() {
            return self.release_waiting();
        }
        if self.intake.is_closed() {
            self.release_trusted();
        }
        if self.backlog.wake_keeper() {
            self.intake.woke();
        }
    }

    /// Takes a waiting message.
    #[inline]
    pub(crate) fn take_waiting(&self) -> Option<LeasedDelivery> {
        let next = self.backlog.next();
        self.taken_out(next.as_slice());
        next
    }

    /// Takes waiting messages for a handler of batches: a suspect one alone, or others.
    pub(crate) fn take_batch(&self) -> Vec<LeasedDelivery> {
        let Some(first) = self.take_waiting() else { return Vec::new() };
        let is_suspect = first.lease.is_suspect();
        let mut batch = vec![first];
        if !is_suspect {
            let more = self.inner.config.load().batch.saturating_sub(1);
            batch.extend(
                self.backlog.with(|backlog| (0..more).map_while(|_| backlog.next_trusted()).collect::<Vec<_>>()),
            );
        }
        batch
    }

    /// Releases the waiting messages that are not suspect.
    pub(crate) fn release_trusted(&self) {
        let waiting = self.backlog.with(|backlog| std::iter::from_fn(|| backlog.next_trusted()).collect::<Vec<_>>());
        self.release(waiting);
    }

    /// Puts back a message that was taken out to be renewed.
    pub(crate) fn put_back(&self, leased: LeasedDelivery) {
        let is_paused = self.inner.is_source_paused(leased.lease.source);
        if is_paused || self.lifecycle.is_halted() || self.intake.is_closed() && !leased.lease.is_suspect() {
            return self.release([leased]);
        }
        self.hold(vec![leased]);
        self.tasks.offered.notify_one();
    }

    /// Releases all messages that no handler has begun.
    pub(crate) fn release_waiting(&self) {
        let waiting = self.backlog.with(|backlog| backlog.drain());
        self.taken_out(&waiting);
        self.release(waiting);
    }

    /// Releases the messages of one queue that no handler has begun.
    pub(crate) fn release_waiting_of(&self, source: usize) {
        let all = self.backlog.with(|backlog| backlog.drain());
        self.taken_out(&all);
        let (out, stay): (Vec<_>, Vec<_>) = all.into_iter().partition(|leased| leased.lease.source == source);
        stay.into_iter().for_each(|leased| self.put_back(leased));
        self.release(out);
    }
}
