//! One task of a run: takes a message, runs its handler, and settles the delivery.
//!
//! There are two paths. If a handler completes on its first poll, its message needs no timer and no
//! entry in a collection, and is settled together with others. If it is pending, the task's other
//! messages are left to other tasks, and its lease is renewed while it runs. Waiting messages
//! belong to no task, so that none waits behind another's handler, filter or settlement.
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use crate::{
    queue::AttemptErrorKind,
    queue_listener::{
        Disposition, Work,
        lease::{Lease, LeasedDelivery, renewal::Dropped},
        poll::{Next, Poller},
        run::state::{Probation, RunState},
        settle::{Decision, PendingSettlement},
    },
    race::yield_now,
    time::Instant,
    work::{Cancel, Caught},
};

/// Number of consecutive messages on the fast path after which the task yields.
const FAIR: u32 = 64;

/// Number of messages that must fit into the quick time for settlements to be collected; otherwise
/// each message is settled when it is finished.
const SOON: usize = 32;

/// Maximum number of quick messages begun per reading of the clock.
const LOOK: usize = 8;

/// One task of a run.
pub(crate) struct Worker {
    pub(crate) run: Arc<RunState>,
    pub(crate) done: Vec<PendingSettlement>,
    /// Number of messages that the task took and has not finished.
    pub(crate) begun: usize,
    pub(crate) cancel: Cancel,
    pub(crate) poller: Poller,
    pub(crate) in_a_row: u32,
    /// Value of `Intake::wakes` when this task last yielded; and `true` in `has_yielded` if it has
    /// begun no handler since.
    woken: u64,
    has_yielded: bool,
    pub(crate) looks: Looks,
}

/// The last reading of the clock. It is most of the cost of a quick message, so it is shared by
/// several.
pub(crate) struct Looks {
    at: Option<Instant>,
    /// Number of messages handled since, each on the first poll.
    messages: usize,
    /// A lease that ends later than this has enough time for a handler.
    enough: Instant,
    /// `true` if each task has a thread of its own to block.
    is_spawned: bool,
}

impl Looks {
    /// Records the time, and the time per message since the last reading.
    #[inline]
    pub(crate) fn look(&mut self, run: &RunState, now: Instant) {
        if let Some(before) = self.at.replace(now) {
            run.intake.took(now - before, self.messages, self.is_spawned);
        }
        self.messages = 0;
        // While messages are cancelled, each is compared before its handler begins.
        self.enough = if run.inner.has_cancelled() { Instant::FAR_FUTURE } else { now + run.takes() };
    }

    /// Discards the reading: the time that follows is not that of a handler.
    pub(crate) fn forget(&mut self) {
        (self.at, self.messages) = (None, 0);
    }

    /// Returns `true` if the next message may begin without another reading.
    #[inline]
    fn is_recent(&self, run: &RunState) -> bool {
        self.messages < LOOK && self.at.is_some() && run.intake.is_quick(SOON)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The task was aborted or its run is over, so its messages are no longer outstanding.
        self.run.intake.ended(self.done.len() + self.begun);
    }
}

impl Worker {
    pub(crate) fn new(run: Arc<RunState>, is_spawned: bool) -> Self {
        let poller = Poller::new(&run);
        Self {
            run,
            done: Vec::new(),
            begun: 0,
            cancel: Cancel::new(),
            poller,
            in_a_row: 0,
            woken: 0,
            has_yielded: false,
            looks: Looks { at: None, messages: 0, enough: Instant::FAR_FUTURE, is_spawned },
        }
    }

    /// Handles messages until the task ends.
    ///
    /// Requests that complete at once are awaited in this one function on purpose: a nested future
    /// is moved into its place, and those of polls and pending handlers are large.
    pub(crate) async fn work<F, H>(mut self, handler: F)
    where
        F: Fn(Work) -> H,
        H: Future<Output: Into<Disposition>>,
    {
        let run = self.run.clone();
        let mut call = pin!(Caught::new());
        let mut next = None;
        loop {
            if run.lifecycle.is_halted() {
                self.done.extend(next.take().map(|leased: LeasedDelivery| leased.lease.settlement(Decision::RELEASE)));
                self.release_all();
            }
            if next.is_none() && self.done.is_empty() && run.tasks.ends_surplus() {
                return;
            }
            match poll_fn(|cx| Poll::Ready(self.fast_path(cx, &run, &mut next, call.as_mut(), &handler))).await {
                FastPath::Empty => {}
                FastPath::Woke => {
                    self.begun = usize::from(next.is_some());
                    self.let_others(&run).await;
                    (self.begun, self.has_yielded) = (0, true);
                    continue;
                }
                FastPath::Fair => {
                    self.give_way(&run).await;
                    continue;
                }
                FastPath::Waits(lease) => {
                    self.finish(call.as_mut(), [lease], None).await;
                    self.give_way(&run).await;
                    continue;
                }
                FastPath::Asks(leased) => {
                    let probation = leased.lease.is_suspect().then(|| Probation(&run, leased.lease.clone()));
                    self.handle(call.as_mut(), &handler, leased).await;
                    if let Some(probation) = probation {
                        self.end_suspect(probation).await;
                    }
                    self.give_way(&run).await;
                    continue;
                }
            }
            if !self.done.is_empty() {
                if self.is_one_request() {
                    let mut request = run.settle_request(&self.done);
                    match once(request.as_mut()).await {
                        Some(answer) => run.answered_all(&mut self.done, answer),
                        None => self.settle_rest(&run, request).await,
                    }
                    // Settlements to be tried again.
                    if !self.done.is_empty() {
                        run.send_out(self.done.drain(..));
                    }
                } else {
                    self.settle().await;
                }
                continue;
            }
            let mut asked = self.poller.ask(&run);
            if let Some(request) = &mut asked
                && let Some(answer) = once(request.receive.as_mut()).await
            {
                match (answer, asked.take()) {
                    (Ok(deliveries), Some(asked)) if !deliveries.is_empty() => {
                        let n = deliveries.len();
                        let at = self.poller.took(&run, deliveries, asked, &mut next);
                        self.looks.look(&run, at);
                        self.share(&run, n);
                        continue;
                    }
                    (answer, Some(mut request)) => {
                        request.receive = Box::pin(std::future::ready(answer));
                        asked = Some(request);
                    }
                    (_, None) => {}
                }
            }
            self.looks.forget();
            match self.poller.find(&run, asked).await {
                Next::Look => self.share(&run, 0),
                Next::End => return,
            }
        }
    }

    /// Handles messages that need no request first, as long as their handlers complete at once. It
    /// is not a future, so that messages are moved as seldom as possible.
    fn fast_path<F, H>(
        &mut self,
        cx: &mut Context<'_>,
        run: &RunState,
        next: &mut Option<LeasedDelivery>,
        mut call: Pin<&mut Caught<H>>,
        handler: &F,
    ) -> FastPath
    where
        F: Fn(Work) -> H,
        H: Future<Output: Into<Disposition>>,
    {
        let config = run.inner.config.load();
        // Up to one batch is settled together, whichever poll its messages came from.
        while self.done.len() < config.batch {
            if self.looks.is_spawned && !self.has_yielded && self.woken != run.intake.wakes() {
                return FastPath::Woke;
            }
            let Some(leased) = next.take().or_else(|| run.take_waiting()) else { break };
            if !self.looks.is_recent(run) {
                self.looks.look(run, run.now());
            }
            let lease = &leased.lease;
            let is_fresh = lease.until > self.looks.enough;
            if !is_fresh || lease.is_suspect() || lease.exceeds(config.max_attempts) || run.inner.filter.is_some() {
                return FastPath::Asks(Box::new(leased));
            }
            let LeasedDelivery { mut delivery, lease } = leased;
            delivery.age = lease.age_of(&delivery, self.looks.at.unwrap_or_default());
            (self.begun, self.has_yielded) = (1, false);
            let cancelled = self.cancel.next();
            let Some(output) = call.as_mut().begin(cx, || handler(Work::new(delivery, cancelled))) else {
                return FastPath::Waits(lease);
            };
            self.begun = 0;
            self.in_a_row += 1;
            self.looks.messages += 1;
            match output.map(Into::into) {
                Ok(Disposition::Complete) => {
                    run.completes(&lease);
                    self.done.push(lease.settlement(Decision::Complete));
                }
                Ok(handled) => self.done.push(run.decide(lease, handled, AttemptErrorKind::Failed)),
                Err(panic) => self.done.push(run.panicked(lease, &panic)),
            }
            if self.in_a_row >= FAIR || !run.intake.is_quick(SOON) || run.lifecycle.is_halted() {
                return FastPath::Fair;
            }
        }
        self.has_yielded = false;
        FastPath::Empty
    }

    /// Yields if it is due, and sends out settlements that would otherwise wait for the next
    /// message.
    async fn give_way(&mut self, run: &RunState) {
        let is_quick = run.intake.is_quick(SOON);
        if !is_quick {
            run.send_out(self.done.drain(..));
        }
        if self.in_a_row >= FAIR || !is_quick {
            self.let_others(run).await;
        }
    }

    /// Yields to tasks that were woken.
    async fn let_others(&mut self, run: &RunState) {
        // Their time is not that of a handler.
        self.looks.look(run, run.now());
        self.looks.forget();
        self.in_a_row = 0;
        yield_now().await;
        self.woken = run.intake.wakes();
    }

    /// Handles one message that needs a request first.
    async fn handle<F, H>(&mut self, mut call: Pin<&mut Caught<H>>, handler: &F, leased: Box<LeasedDelivery>)
    where
        F: Fn(Work) -> H,
        H: Future<Output: Into<Disposition>>,
    {
        let run = self.run.clone();
        let LeasedDelivery { mut delivery, mut lease } = *leased;
        self.begun = 1;
        if !self.admit(&delivery, &mut lease).await || !self.begins(&mut lease).await {
            self.begun = 0;
            return;
        }
        delivery.age = lease.age_of(&delivery, run.now());
        let key = run.requests.filter_key(&delivery);
        let mut work = Some(Work::new(delivery, self.cancel.next()));
        let began = poll_fn(|cx| Poll::Ready(work.take().and_then(|work| call.as_mut().begin(cx, || handler(work)))));
        match began.await {
            Some(output) => {
                self.in_a_row += 1;
                self.looks.messages += 1;
                self.ended([lease], key, Ok(output)).await;
            }
            None => self.finish(call, [lease], key).await,
        }
    }

    /// Waits for a handler that was pending on its first poll.
    async fn finish<H>(&mut self, mut call: Pin<&mut Caught<H>>, mut leases: [Lease; 1], key: Option<String>)
    where
        H: Future<Output: Into<Disposition>>,
    {
        let output = self.wait(call.as_mut(), &mut leases).await;
        call.end();
        self.ended(leases, key, output).await;
    }

    /// Applies the result of a handler.
    async fn ended<T: Into<Disposition>>(
        &mut self,
        mut leases: [Lease; 1],
        key: Option<String>,
        output: Result<Result<T, String>, Dropped>,
    ) {
        let handled = output.map(|output| output.map(Into::into));
        if let (Ok(Ok(Disposition::Complete)), Some(key)) = (&handled, key) {
            self.remember(&mut leases, vec![key]).await;
        }
        let [lease] = leases;
        self.begun = 0;
        match handled {
            _ if lease.lost => {}
            Ok(Ok(handled)) => self.done.push(self.run.decide(lease, handled, AttemptErrorKind::Failed)),
            Ok(Err(panic)) => self.done.push(self.run.panicked(lease, &panic)),
            Err(why) => self.done.push(self.dropped(lease, why)),
        }
    }

    /// Reads the clock before a message begins.
    pub(crate) fn look(&mut self) {
        self.looks.look(&self.run, self.run.now());
    }

    /// Lets other tasks take the messages of a poll of `n` that this task does not begin soon. It
    /// takes the first itself.
    #[inline]
    fn share(&self, run: &RunState, n: usize) {
        if (n > 1 || n == 0) && (!run.intake.is_quick(n.max(SOON)) || run.inner.filter.is_some()) {
            run.share(1);
        }
    }

    /// Releases all messages that no handler has begun, and sends out settlements.
    #[cold]
    pub(crate) fn release_all(&mut self) {
        self.run.release_waiting();
        self.run.send_out(self.done.drain(..));
    }
}

/// Reason for which the fast path ended.
enum FastPath {
    /// No message waits, or one batch is finished.
    Empty,
    /// Other tasks were woken that may need this thread.
    Woke,
    /// The task should yield to others.
    Fair,
    /// The handler of this message is pending.
    Waits(Lease),
    /// This message needs a request first.
    Asks(Box<LeasedDelivery>),
}

/// Polls a future once.
pub(crate) async fn once<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
