//! How many messages a run takes: what it can begin soon, by the tasks that it has and by the time that a message took lately; and one at a
//! time where a message may end the process.
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    queue::Delivery,
    queue_listener::{
        lease::{Held, Lease, Lot, Term},
        run::state::Shift,
        settle::How,
    },
    time::{Instant, nanos},
};

/// Messages that are begun within this are left to the task that took them: waking another costs as much.
const ALONE: u64 = 200_000;

/// Batches that may be unsettled, beyond what is handled: with more, nothing is taken.
const UNSETTLED: u64 = 4;

/// What a run has in hand, and what it may take.
pub(crate) struct Room {
    /// Messages that were asked for or taken, and that are neither settled nor lost.
    in_hand: AtomicU64,
    /// Messages whose settlement is sent out, and has come to no end.
    unsettled: AtomicU64,
    /// Nanoseconds that a message took lately; the maximum where that is not known.
    pace: AtomicU64,
    /// The messages of that pace were handled beside others, and not one after another by handlers that hold the thread of the run.
    is_parallel: AtomicBool,
    /// Messages are handed to handlers by the batch.
    is_batched: bool,
    /// A message is handled, or is to be, beside which there must be no other.
    closed: AtomicBool,
    /// Messages that may end the process come: nothing is taken beside another.
    one_by_one: AtomicBool,
    /// There is less in hand, and somebody waits for that.
    pub(crate) fewer: Notify,
    watched: AtomicU64,
    /// Times that others of the run were woken.
    wakes: AtomicU64,
    /// When the next poll may be made, where one message after another is refused.
    paced_to: AtomicU64,
}

impl Room {
    pub(crate) fn new(is_batched: bool) -> Self {
        Self {
            in_hand: AtomicU64::new(0),
            unsettled: AtomicU64::new(0),
            pace: AtomicU64::new(u64::MAX),
            is_parallel: AtomicBool::new(true),
            is_batched,
            closed: AtomicBool::new(false),
            one_by_one: AtomicBool::new(false),
            fewer: Notify::new(),
            watched: AtomicU64::new(0),
            wakes: AtomicU64::new(0),
            paced_to: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn is_one_by_one(&self) -> bool {
        self.one_by_one.load(Ordering::Acquire)
    }

    /// So many messages are no more in hand.
    #[inline]
    pub(crate) fn ended(&self, n: usize) {
        if n > 0 {
            self.in_hand.fetch_sub(n as u64, Ordering::SeqCst);
            self.tell_fewer();
        }
    }

    /// So many are settled beside the tasks from here on.
    pub(crate) fn sent_out(&self, n: usize) {
        self.unsettled.fetch_add(n as u64, Ordering::SeqCst);
    }

    /// So many that were sent out are settled, or given up.
    pub(crate) fn settled(&self, n: usize) {
        self.unsettled.fetch_sub(n as u64, Ordering::SeqCst);
        self.tell_fewer();
    }

    pub(crate) fn unsettled(&self) -> u64 {
        self.unsettled.load(Ordering::SeqCst)
    }

    /// Wakes those who wait for room: both counts bound it, so each is told when it falls.
    #[inline]
    fn tell_fewer(&self) {
        if self.watched.load(Ordering::SeqCst) > 0 {
            self.woke();
            self.fewer.notify_waiters();
        }
    }

    /// Others of the run are woken. A runtime may keep one of them for the thread that woke it, so
    /// a task that has a thread of its own yields before it begins a handler that may hold it.
    pub(crate) fn woke(&self) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::Relaxed)
    }

    /// So many messages took so long, one after another; beside others, or alone on the thread of the run.
    #[inline]
    pub(crate) fn took(&self, time: Duration, messages: usize, is_parallel: bool) {
        if messages == 0 {
            return;
        }
        self.is_parallel.store(is_parallel, Ordering::Relaxed);
        let each = nanos(time) / messages as u64;
        let pace = self.pace.load(Ordering::Relaxed);
        // Not exact where two tell at once: it is an estimate.
        let now = if pace == u64::MAX {
            each
        } else if each > pace {
            pace / 2 + each / 2
        } else {
            pace - (pace - each) / 4
        };
        self.pace.store(now, Ordering::Relaxed);
    }

    /// How long a message took lately; zero where that is not known.
    pub(crate) fn each(&self) -> Duration {
        match self.pace.load(Ordering::Relaxed) {
            u64::MAX => Duration::ZERO,
            pace => Duration::from_nanos(pace),
        }
    }

    /// Whether one task alone soon begins so many messages.
    #[inline]
    pub(crate) fn is_quick(&self, messages: usize) -> bool {
        self.pace.load(Ordering::Relaxed).saturating_mul(messages as u64) <= ALONE
    }
}

impl Shift {
    /// Reserves room for the messages of a poll; 0 where none are to be taken.
    #[inline]
    pub(crate) fn reserve(&self) -> usize {
        let config = &self.inner.config;
        let batch = config.batch as u64;
        let tasks = self.inner.counters.tasks.load(Ordering::Relaxed);
        let slots = (self.inner.rule)(batch).max(tasks).clamp(config.min_tasks.max(1), config.max_tasks);
        let slots = u64::from(slots);
        let room = &self.room;
        let (limit, least) = if room.is_batched {
            (slots * batch, batch)
        } else {
            let pace = room.pace.load(Ordering::Relaxed).max(1);
            let is_parallel = room.is_parallel.load(Ordering::Relaxed);
            let slots = if is_parallel { slots } else { 1 };
            let ahead = slots.saturating_mul(self.parts.ahead / pace).min(u64::from(config.max_tasks) * batch);
            (slots + ahead, u64::from(is_parallel))
        };
        let most = limit + (UNSETTLED + slots) * batch;
        let one_by_one = room.one_by_one.load(Ordering::Acquire);
        let mut in_hand = room.in_hand.load(Ordering::SeqCst);
        loop {
            let n = if room.is_closed() || in_hand >= most || room.unsettled() >= most {
                0
            } else if one_by_one {
                u64::from(in_hand == 0)
            } else {
                limit.saturating_sub(in_hand).min(batch).max(least)
            };
            if n == 0 {
                return 0;
            }
            match room.in_hand.compare_exchange_weak(in_hand, in_hand + n, Ordering::SeqCst, Ordering::SeqCst) {
                // Closed in between: whoever closed it waits for what is in hand.
                Ok(_) if room.is_closed() => room.ended(n as usize),
                Ok(_) => return n as usize,
                Err(now) => in_hand = now,
            }
        }
    }

    /// A poll took these, for which there was room; gives one that is to be handled alone, if it is among them.
    pub(crate) fn took(
        &self,
        source: usize,
        since: Instant,
        deliveries: Vec<Delivery>,
        reserved: usize,
    ) -> Option<Box<Held>> {
        let n = deliveries.len();
        // A backend may give more than it was asked for.
        match n.checked_sub(reserved) {
            Some(0) => {}
            Some(more) => drop(self.room.in_hand.fetch_add(more as u64, Ordering::SeqCst)),
            None => self.room.ended(reserved - n),
        }
        let room = &self.room;
        let is_suspect = |delivery: &Delivery| delivery.expiries > 0;
        if n > 0 && !room.is_closed() && !deliveries.iter().any(is_suspect) {
            if room.one_by_one.load(Ordering::Relaxed) {
                room.one_by_one.store(false, Ordering::Release);
                room.fewer.notify_waiters();
            }
            let term = Term::since(since, source, &self.parts);
            self.keep_for_tasks(Lot { deliveries: deliveries.into_iter(), term });
            return None;
        }
        self.took_suspects(source, since, deliveries)
    }

    /// Takes the one message of a poll for the task that polled; nothing where it needs more care.
    #[inline]
    pub(crate) fn took_one(
        &self,
        source: usize,
        since: Instant,
        deliveries: &mut Vec<Delivery>,
        reserved: usize,
    ) -> Option<Held> {
        let room = &self.room;
        let [delivery] = &deliveries[..] else { return None };
        if delivery.expiries > 0 || room.is_closed() || room.is_one_by_one() || self.halts() {
            return None;
        }
        let delivery = deliveries.pop()?;
        room.ended(reserved - 1);
        Some(Held { lease: Lease::of(&delivery, Term::since(since, source, &self.parts)), delivery })
    }

    /// Closes the run to all but the first message that may end the process, and hands the others back.
    #[cold]
    fn took_suspects(&self, source: usize, since: Instant, deliveries: Vec<Delivery>) -> Option<Box<Held>> {
        let room = &self.room;
        let max = self.inner.config.max_expiries;
        let term = Term::since(since, source, &self.parts);
        let mut held: Vec<Held> =
            deliveries.into_iter().map(|delivery| Held { lease: Lease::of(&delivery, term), delivery }).collect();
        let mut out = self.recall(&mut held);
        // Those are set aside, and not begun with.
        let (over, mut rest) = held.into_iter().partition::<Vec<_>, _>(|held| held.lease.expiries >= max);
        for held in over {
            let how = self.set_aside(&held.lease, "exceeded max expiries: its deliveries ended without being settled");
            out.push(held.lease.settling(how));
        }
        let suspect = rest.iter().position(|held| held.lease.expiries > 0);
        let alone = match suspect {
            Some(at) => {
                room.one_by_one.store(true, Ordering::Release);
                let wins = room.closed.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst).is_ok();
                wins.then(|| rest.remove(at))
            }
            None => None,
        };
        if suspect.is_none() && !room.is_closed() {
            self.backlog(|backlog| rest.into_iter().for_each(|held| backlog.put_back(held)));
        } else {
            out.extend(rest.into_iter().map(|held| held.lease.settling(How::HandBack)));
        }
        self.send_out(out);
        if alone.is_some() {
            self.hand_back_waiting();
        }
        alone.map(Box::new)
    }

    /// A poll that found nothing, or failed: its room is free.
    pub(crate) fn took_nothing(&self, reserved: usize) {
        if self.room.one_by_one.swap(false, Ordering::AcqRel) {
            self.room.fewer.notify_waiters();
        }
        self.room.ended(reserved);
    }

    /// Has those who wait be told of less in hand, for as long as this lives.
    pub(crate) fn watches(&self) -> Watched<'_> {
        Watched::of(&self.room.watched)
    }

    /// Waits until less than this is in hand.
    pub(crate) async fn fewer_than(&self, n: u64) {
        let _watched = self.watches();
        loop {
            let fewer = self.room.fewer.notified();
            if self.room.in_hand.load(Ordering::SeqCst) < n {
                return;
            }
            fewer.await;
        }
    }

    /// A message that is to be handled alone was taken where no task can handle it: it goes back, and a task takes it by itself.
    pub(crate) fn leave_alone(&self, held: Held) {
        self.send_out([held.lease.settling(How::HandBack)]);
        self.reopen();
    }

    /// Messages may be taken again.
    pub(crate) fn reopen(&self) {
        self.room.closed.store(false, Ordering::SeqCst);
        self.room.fewer.notify_waiters();
        self.call();
    }

    /// Where one message after another is refused: when the next poll may be made, if that is not now.
    pub(crate) fn pace(&self, now: Instant) -> Option<Instant> {
        if !self.troubled.load(Ordering::Acquire) || !self.outage.lock().refuses_all() {
            return None;
        }
        let to = self.room.paced_to.load(Ordering::Relaxed);
        if to > now.as_nanos() {
            return Some(Instant::from_nanos(to));
        }
        let next = (now + self.inner.config.idle.min).as_nanos();
        let turn = self.room.paced_to.compare_exchange(to, next, Ordering::Relaxed, Ordering::Relaxed);
        turn.err().map(Instant::from_nanos)
    }
}

/// Room that a poll has reserved; given back where the poll is dropped.
pub(crate) struct Reserved<'a>(&'a Shift, pub(crate) usize);

impl<'a> Reserved<'a> {
    pub(crate) fn of(shift: &'a Shift) -> Option<Self> {
        let n = shift.reserve();
        (n > 0).then_some(Self(shift, n))
    }

    /// The messages are there, in so much of the room.
    pub(crate) fn used(&mut self) -> usize {
        std::mem::take(&mut self.1)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.1 > 0 {
            self.0.took_nothing(self.1);
        }
    }
}

/// While this lives a message is handled beside which there is no other.
pub(crate) struct Alone<'a>(pub(crate) &'a Shift);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.reopen();
    }
}

/// Somebody waits for less to be in hand.
pub(crate) struct Watched<'a>(&'a AtomicU64);

impl<'a> Watched<'a> {
    fn of(watched: &'a AtomicU64) -> Self {
        watched.fetch_add(1, Ordering::SeqCst);
        Self(watched)
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
