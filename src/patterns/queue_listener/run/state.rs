//! What the tasks of one run share.
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use tokio::sync::{Notify, watch};

use crate::{
    port::PortError,
    queue_listener::{
        QueueListenerEvent as Event,
        counters::Count,
        lease::{Held, Lot, Parts, backlog::Backlog},
        listener::Inner,
        priority::Turns,
        run::{intake::Room, scaler::Staff},
        settle::{
            How, Settling,
            outage::{Outage, Returns},
        },
    },
    sync::Mutex,
    time::Instant,
};

/// What a run is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Works,
    Paused,
    /// It stops: handlers are told to end at `soft`, and dropped at `hard`.
    Stops {
        soft: Instant,
        hard: Instant,
    },
    /// Its future was dropped.
    Dropped,
}

/// What the tasks of one run share.
pub(crate) struct Shift {
    pub(crate) inner: Arc<Inner>,
    stage: watch::Sender<Stage>,
    /// The stage is another than `Works`: read for each message, without a lock.
    halts: AtomicBool,
    staff: Mutex<Staff>,
    /// Counts reasons to look: who knows of fewer must look again before it ends.
    calls: AtomicU64,
    /// There are tasks to begin.
    pub(crate) hires: Notify,
    /// Messages that wait for a task.
    backlog: Mutex<Backlog>,
    /// The backlog is not empty: read for each message, without its lock.
    waits: AtomicBool,
    pub(crate) room: Room,
    pub(crate) parts: Parts,
    pub(crate) outage: Mutex<Outage>,
    /// There is an outage to be ended: read for each message, without its lock.
    pub(crate) troubled: AtomicBool,
    pub(crate) returns: Mutex<Returns>,
    /// There are some, or there is a reason to look: one idle task looks.
    pub(crate) offered: Notify,
    /// There is a reason to look: all idle tasks do.
    pub(crate) called: Notify,
    /// The keeper has messages to look after; it was told, or looks by itself.
    pub(crate) to_keep: Notify,
    pub(crate) keeper_looks: AtomicBool,
    /// Tasks that wait for the next poll.
    pub(crate) idle: AtomicUsize,
    /// A task waits for the next poll.
    pub(crate) idles: Notify,
    /// What is settled beside the tasks, by source.
    outboxes: Vec<Outbox>,
    /// Tasks that wait for a pause to end.
    pub(crate) parked: Count,
    /// The queue is known to have work.
    busy: AtomicBool,
    pub(crate) to_scale: Notify,
    /// When the depth may be asked for again.
    rescale_at: AtomicU64,
    pub(crate) turns: Mutex<Turns>,
    /// There is nobody to hear hints, so that somebody has to poll.
    pub(crate) deaf: AtomicBool,
    failed: Mutex<Option<PortError>>,
}

#[derive(Default)]
struct Outbox {
    settlings: Mutex<VecDeque<Settling>>,
    came: Notify,
}

impl Shift {
    pub(crate) fn new(inner: Arc<Inner>, is_batched: bool) -> Self {
        let config = &inner.config;
        let staff = Mutex::new(Staff::new(config.min_tasks, config.max_tasks));
        let turns = Mutex::new(Turns::new(&inner.levels, inner.order, inner.clock.now()));
        Self {
            staff,
            turns,
            stage: watch::Sender::new(Stage::Works),
            halts: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            hires: Notify::new(),
            backlog: Mutex::default(),
            waits: AtomicBool::new(false),
            room: Room::new(is_batched),
            parts: Parts::of(config),
            outage: Mutex::default(),
            troubled: AtomicBool::new(false),
            returns: Mutex::default(),
            offered: Notify::new(),
            called: Notify::new(),
            to_keep: Notify::new(),
            keeper_looks: AtomicBool::new(false),
            idle: AtomicUsize::new(0),
            idles: Notify::new(),
            outboxes: inner.sources.iter().map(|_| Outbox::default()).collect(),
            parked: Count::default(),
            busy: AtomicBool::new(false),
            to_scale: Notify::new(),
            rescale_at: AtomicU64::new(0),
            deaf: AtomicBool::new(inner.hints.is_none()),
            failed: Mutex::default(),
            inner,
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.inner.clock.now()
    }

    pub(crate) fn event(&self, event: impl FnOnce() -> Event) {
        self.inner.event(event);
    }

    // The stage.

    #[inline]
    pub(crate) fn halts(&self) -> bool {
        self.halts.load(Ordering::Acquire)
    }

    pub(crate) fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    /// A run that stops does not pause or go on any more.
    pub(crate) fn enter(&self, stage: Stage) {
        self.stage.send_if_modified(|now| {
            let changes = match *now {
                Stage::Works | Stage::Paused => *now != stage,
                Stage::Stops { .. } => stage == Stage::Dropped,
                Stage::Dropped => false,
            };
            if changes {
                *now = stage;
            }
            changes
        });
        self.halts.store(self.stage() != Stage::Works, Ordering::Release);
        if !matches!(self.stage(), Stage::Works | Stage::Paused) {
            self.staff(Staff::close);
        }
    }

    /// What can never work ends the run.
    pub(crate) fn fail(&self, error: PortError) {
        self.failed.lock().get_or_insert(error);
        self.stop();
    }

    pub(crate) fn stop(&self) {
        let (now, config) = (self.now(), &self.inner.config);
        self.event(|| Event::Stopping);
        self.enter(Stage::Stops { soft: now + config.soft_limit, hard: now + config.hard_limit });
    }

    pub(crate) fn error(&self) -> Option<PortError> {
        self.failed.lock().take()
    }

    // The staff.

    pub(crate) fn staff<T>(&self, change: impl FnOnce(&mut Staff) -> T) -> T {
        let (result, staff) = {
            let mut staff = self.staff.lock();
            (change(&mut staff), *staff)
        };
        let counters = &self.inner.counters;
        counters.tasks.store(staff.tasks, Ordering::Relaxed);
        counters.most_tasks.fetch_max(staff.most, Ordering::Relaxed);
        result
    }

    /// Has tasks begin until there are so many.
    pub(crate) fn hire(&self, wanted: u32, depth: Option<crate::queue::Depth>) {
        let (more, tasks) = self.staff(|staff| (staff.grow_to(wanted), staff.tasks));
        self.hired(more, tasks, depth);
    }

    fn hired(&self, more: u32, tasks: u32, depth: Option<crate::queue::Depth>) {
        if more > 0 {
            self.event(|| Event::ScaledUp { tasks, depth });
            self.room.woke();
            self.hires.notify_one();
        }
    }

    /// There is a reason to look, for those who idle, and for somebody if nobody is there.
    pub(crate) fn call(&self) {
        // First, so that whoever may end before the next line has been told.
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.staff(Staff::call) > 0 {
            self.room.woke();
            self.hires.notify_one();
        }
        self.room.woke();
        self.called.notify_waiters();
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// As many stay: one where no hint can come, or where messages that were sent back return, or nobody would look ever again.
    pub(crate) fn least(&self) -> u32 {
        let looks = self.deaf.load(Ordering::Acquire) || self.returns.lock().are_expected(self.now());
        self.inner.config.min_tasks.max(u32::from(looks))
    }

    // Work comes and goes.

    /// A poll took messages.
    pub(crate) fn found(&self, messages: usize, now: Instant) {
        let counters = &self.inner.counters;
        counters.received.add(messages as u64);
        let config = &self.inner.config;
        if !self.busy.load(Ordering::Acquire) && !self.busy.swap(true, Ordering::AcqRel) {
            self.event(|| Event::WorkDetected { messages });
        } else if messages < config.batch || self.rescale_at.load(Ordering::Relaxed) > now.as_nanos() {
            return;
        }
        self.rescale_at.store((now + config.rescale).as_nanos(), Ordering::Relaxed);
        if self.staff(|staff| staff.tasks < staff.max) {
            self.room.woke();
            self.to_scale.notify_one();
        }
    }

    /// A poll took none.
    pub(crate) fn found_nothing(&self) {
        if self.busy.load(Ordering::Acquire) && self.busy.swap(false, Ordering::AcqRel) {
            self.event(|| Event::QueueEmpty);
        }
    }

    /// Puts messages where each task takes the next.
    pub(crate) fn keep_for_tasks(&self, lot: Lot) {
        if lot.deliveries.len() == 0 {
            return;
        }
        {
            let mut backlog = self.backlog.lock();
            backlog.push(lot);
            self.waits.store(true, Ordering::SeqCst);
        }
        // After they were put there: whoever halts either finds them, or is seen here.
        if self.halts() {
            return self.hand_back_waiting();
        }
        if !self.keeper_looks.load(Ordering::SeqCst) {
            self.room.woke();
            self.to_keep.notify_one();
        }
    }

    /// Has others take what waits, all but so many: this task is held up, or takes long for each.
    pub(crate) fn share(&self, but: usize) {
        if !self.waits.load(Ordering::Acquire) {
            return;
        }
        let n = self.backlog.lock().len().saturating_sub(but);
        if n == 0 {
            return;
        }
        // As many as the rule asks for, and no more than there is work for: those that are there are held up.
        let wanted = (self.inner.rule)(n as u64);
        let n_tasks = u32::try_from(n).unwrap_or(u32::MAX);
        let (more, tasks) =
            self.staff(|staff| (staff.grow_to(wanted.min(staff.tasks.saturating_add(n_tasks))), staff.tasks));
        self.hired(more, tasks, None);
        self.room.woke();
        for _ in 0..n_tasks.min(tasks) {
            self.offered.notify_one();
        }
    }

    /// A message that waits, if there is one.
    #[inline]
    pub(crate) fn next_waiting(&self) -> Option<Held> {
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

    /// Whether messages wait for a task.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waits.load(Ordering::SeqCst)
    }

    pub(crate) fn backlog<T>(&self, with: impl FnOnce(&mut Backlog) -> T) -> T {
        let mut backlog = self.backlog.lock();
        let result = with(&mut backlog);
        self.waits.store(!backlog.is_empty(), Ordering::Release);
        result
    }

    /// Puts back a message that was taken out to be renewed.
    pub(crate) fn put_back(&self, held: Held) {
        if self.halts() || self.room.is_closed() {
            return self.send_out([held.lease.settling(How::HandBack)]);
        }
        self.backlog(|backlog| backlog.put_back(held));
        self.offered.notify_one();
    }

    /// Hands back whatever no handler has begun with.
    pub(crate) fn hand_back_waiting(&self) {
        let waiting = self.backlog(|backlog| backlog.drain());
        self.send_out(waiting.into_iter().map(|held| held.lease.settling(How::HandBack)));
    }

    // What is settled beside the tasks.

    pub(crate) fn send_out(&self, settlings: impl IntoIterator<Item = Settling>) {
        for settling in settlings {
            self.room.sent_out(1);
            let outbox = &self.outboxes[settling.source];
            outbox.settlings.lock().push_back(settling);
            self.room.woke();
            outbox.came.notify_one();
        }
    }

    /// The next that may be settled in one request; waits for it.
    pub(crate) async fn outgoing(&self, source: usize) -> Vec<Settling> {
        let (outbox, most) = (&self.outboxes[source], self.inner.sources[source].most);
        loop {
            {
                let mut settlings = outbox.settlings.lock();
                if !settlings.is_empty() {
                    let n = settlings.len().min(most);
                    return settlings.drain(..n).collect();
                }
            }
            outbox.came.notified().await;
        }
    }

    /// So many that were sent out are settled, or given up.
    pub(crate) fn settled(&self, n: usize) {
        self.room.settled(n);
        self.rests();
    }

    /// This run has nothing in hand, and takes nothing; whoever drains is told.
    pub(crate) fn rests(&self) -> bool {
        let tasks = self.staff(|staff| staff.tasks);
        let rests = self.stage() != Stage::Works && self.parked.get() >= u64::from(tasks) && self.room.unsettled() == 0;
        if rests {
            self.inner.rests.notify_waiters();
        }
        rests
    }
}
