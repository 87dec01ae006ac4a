//! A task: finds a message, has it handled, ends its delivery.
//!
//! There are two paths. A handler that is ready at its first poll was held up by nothing: its message costs no timer and no entry anywhere, and
//! is settled with others. For one that waits, what else this task has to do is left to others, and its lease is kept while it runs.
//! Messages that wait belong to no task, so that none waits behind another's handler, filter or settlement.
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use crate::{
    queue_listener::{
        Handled, Work,
        lease::{Held, Lease, renewal::Dropped},
        poll::{Next, Poller},
        run::{caught::Caught, state::Shift},
        settle::{How, Settling},
        work::Cancel,
    },
    race::yield_now,
    time::Instant,
};

/// After so many messages in a row that were held up by nothing, others have their turn.
const FAIR: u32 = 64;

/// Where so many messages do not take long, each is settled with others; else as soon as it is done.
const SOON: usize = 32;

/// So many messages that do not take long are begun after one look at the time.
const LOOK: usize = 8;

/// One task of a run.
pub(crate) struct Worker {
    pub(crate) shift: Arc<Shift>,
    pub(crate) done: Vec<Settling>,
    /// Messages that it has in hand and that are not done.
    pub(crate) begun: usize,
    pub(crate) cancel: Cancel,
    pub(crate) poller: Poller,
    pub(crate) in_a_row: u32,
    /// How often others had been woken when this task last yielded; and whether it has begun nothing since.
    woken: u64,
    has_yielded: bool,
    pub(crate) looks: Looks,
}

/// The last look at the time. It is most of what a quick message costs here, so not each needs one.
pub(crate) struct Looks {
    at: Option<Instant>,
    /// Messages that were handled at once since.
    messages: usize,
    /// A lease that ends after this has time enough for a handler.
    enough: Instant,
    /// The handlers hold no other task's thread.
    is_spawned: bool,
}

impl Looks {
    /// Notes the time, and how long the messages since the last look took.
    #[inline]
    pub(crate) fn look(&mut self, shift: &Shift, now: Instant) {
        if let Some(before) = self.at.replace(now) {
            shift.room.took(now - before, self.messages, self.is_spawned);
        }
        self.messages = 0;
        self.enough = now + shift.takes();
    }

    /// The time that passes from here on is no handler's.
    pub(crate) fn forget(&mut self) {
        (self.at, self.messages) = (None, 0);
    }

    /// Whether the next message may begin without another look.
    #[inline]
    fn is_recent(&self, shift: &Shift) -> bool {
        self.messages < LOOK && self.at.is_some() && shift.room.is_quick(SOON)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It was aborted, or its run is over: what it had in hand is so no more.
        self.shift.room.ended(self.done.len() + self.begun);
    }
}

impl Worker {
    pub(crate) fn new(shift: Arc<Shift>, is_spawned: bool) -> Self {
        let poller = Poller::new(&shift);
        Self {
            shift,
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

    /// Handles messages, one after another, until it ends.
    ///
    /// Requests that are answered at once are in this one function on purpose: a future within a
    /// future is moved into its place, and that of a poll or of a handler that waits is large.
    pub(crate) async fn work<F, H>(mut self, handler: F)
    where
        F: Fn(Work) -> H,
        H: Future<Output: Into<Handled>>,
    {
        let shift = self.shift.clone();
        let mut call = pin!(Caught::new());
        let mut next = None;
        let mut alone: Option<Box<Held>> = None;
        loop {
            if shift.halts() {
                self.done.extend(next.take().map(|held: Held| held.lease.settling(How::HandBack)));
                self.hand_back();
            }
            if let Some(held) = alone.take() {
                if let Some((guard, held)) = self.alone(&shift, held).await {
                    self.handle(call.as_mut(), &handler, held).await;
                    self.settle().await;
                    drop(guard);
                }
                continue;
            }
            match poll_fn(|cx| Poll::Ready(self.rush(cx, &shift, &mut next, call.as_mut(), &handler))).await {
                Rush::Empty => {}
                Rush::Woke => {
                    self.begun = usize::from(next.is_some());
                    self.let_others(&shift).await;
                    (self.begun, self.has_yielded) = (0, true);
                    continue;
                }
                Rush::Fair => {
                    self.give_way(&shift).await;
                    continue;
                }
                Rush::Waits(lease) => {
                    self.finish(call.as_mut(), [lease], None).await;
                    self.give_way(&shift).await;
                    continue;
                }
                Rush::Asks(held) => {
                    self.handle(call.as_mut(), &handler, held).await;
                    self.give_way(&shift).await;
                    continue;
                }
            }
            if !self.done.is_empty() {
                if self.is_one_request() {
                    let mut request = shift.settling(&self.done);
                    match once(request.as_mut()).await {
                        Some(answer) => shift.answered_all(&mut self.done, answer),
                        None => self.settle_rest(&shift, request).await,
                    }
                    // What is to be tried again.
                    if !self.done.is_empty() {
                        shift.send_out(self.done.drain(..));
                    }
                } else {
                    self.settle().await;
                }
                continue;
            }
            let mut asked = self.poller.ask(&shift);
            if let Some(request) = &mut asked
                && let Some(answer) = once(request.receive.as_mut()).await
            {
                match (answer, asked.take()) {
                    (Ok(deliveries), Some(asked)) if !deliveries.is_empty() => {
                        let n = deliveries.len();
                        let at;
                        (at, alone) = self.poller.took(&shift, deliveries, asked, &mut next);
                        self.looks.look(&shift, at);
                        self.share(&shift, n);
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
            match self.poller.find(&shift, asked).await {
                Next::Look => self.share(&shift, 0),
                Next::Alone(held) => alone = Some(held),
                Next::End => return,
            }
        }
    }

    /// Handles messages of which nothing has to be asked, for as long as their handlers are ready at
    /// once. Not a future: a message is moved as seldom as can be.
    fn rush<F, H>(
        &mut self,
        cx: &mut Context<'_>,
        shift: &Shift,
        next: &mut Option<Held>,
        mut call: Pin<&mut Caught<H>>,
        handler: &F,
    ) -> Rush
    where
        F: Fn(Work) -> H,
        H: Future<Output: Into<Handled>>,
    {
        let config = &shift.inner.config;
        // As many as one poll gives are settled together, whosoever poll it was.
        while self.done.len() < config.batch {
            if self.looks.is_spawned && !self.has_yielded && self.woken != shift.room.wakes() {
                return Rush::Woke;
            }
            let Some(held) = next.take().or_else(|| shift.next_waiting()) else { break };
            if !self.looks.is_recent(shift) {
                self.looks.look(shift, shift.now());
            }
            let lease = &held.lease;
            let is_fresh = lease.until > self.looks.enough;
            if !is_fresh || lease.attempt > config.max_attempts || shift.inner.filter.is_some() {
                return Rush::Asks(Box::new(held));
            }
            let Held { delivery, lease } = held;
            (self.begun, self.has_yielded) = (1, false);
            let cancelled = self.cancel.next();
            let Some(output) = call.as_mut().begin(cx, || handler(Work::new(delivery, cancelled))) else {
                return Rush::Waits(lease);
            };
            self.begun = 0;
            self.in_a_row += 1;
            self.looks.messages += 1;
            match output.map_or_else(Handled::retry, Into::into) {
                Handled::Complete => {
                    shift.completes(&lease);
                    self.done.push(lease.settling(How::Complete));
                }
                handled => self.done.push(shift.judge(lease, handled)),
            }
            if self.in_a_row >= FAIR || !shift.room.is_quick(SOON) || shift.halts() {
                return Rush::Fair;
            }
        }
        self.has_yielded = false;
        Rush::Empty
    }

    /// Gives others their turn where it is due, and has settled what would wait for the next message.
    async fn give_way(&mut self, shift: &Shift) {
        let is_quick = shift.room.is_quick(SOON);
        if !is_quick {
            shift.send_out(self.done.drain(..));
        }
        if self.in_a_row >= FAIR || !is_quick {
            self.let_others(shift).await;
        }
    }

    /// Lets those run that were woken.
    async fn let_others(&mut self, shift: &Shift) {
        // Their turns are no handler's time.
        self.looks.look(shift, shift.now());
        self.looks.forget();
        self.in_a_row = 0;
        yield_now().await;
        self.woken = shift.room.wakes();
    }

    /// Handles one message, about which something has to be asked first.
    async fn handle<F, H>(&mut self, mut call: Pin<&mut Caught<H>>, handler: &F, held: Box<Held>)
    where
        F: Fn(Work) -> H,
        H: Future<Output: Into<Handled>>,
    {
        let shift = self.shift.clone();
        let Held { delivery, mut lease } = *held;
        self.begun = 1;
        if !self.admit(&delivery, &mut lease).await {
            self.begun = 0;
            return;
        }
        let key = shift.filter_key(&delivery);
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

    /// Waits for a handler that was not ready at once.
    async fn finish<H>(&mut self, mut call: Pin<&mut Caught<H>>, mut leases: [Lease; 1], key: Option<String>)
    where
        H: Future<Output: Into<Handled>>,
    {
        let output = self.wait(call.as_mut(), &mut leases).await;
        call.end();
        self.ended(leases, key, output).await;
    }

    /// Notes what came of a handler.
    async fn ended<T: Into<Handled>>(
        &mut self,
        mut leases: [Lease; 1],
        key: Option<String>,
        output: Result<Result<T, String>, Dropped>,
    ) {
        let handled = output.map(|output| output.map_or_else(Handled::retry, Into::into));
        if let (Ok(Handled::Complete), Some(key)) = (&handled, key) {
            self.remember(&mut leases, vec![key]).await;
        }
        let [lease] = leases;
        self.begun = 0;
        match handled {
            _ if lease.lost => {}
            Ok(handled) => self.done.push(self.shift.judge(lease, handled)),
            Err(why) => self.done.push(self.dropped(lease, why)),
        }
    }

    /// Looks at the time before a message begins.
    pub(crate) fn look(&mut self) {
        self.looks.look(&self.shift, self.shift.now());
    }

    /// Has others take what this task does not begin soon, of so many messages that it took, the first of which it takes itself.
    #[inline]
    fn share(&self, shift: &Shift, n: usize) {
        if (n > 1 || n == 0) && (!shift.room.is_quick(n.max(SOON)) || shift.inner.filter.is_some()) {
            shift.share(1);
        }
    }

    /// Hands back what no handler has begun with.
    #[cold]
    pub(crate) fn hand_back(&mut self) {
        self.shift.hand_back_waiting();
        self.shift.send_out(self.done.drain(..));
    }
}

/// What came of a rush.
enum Rush {
    /// No message waits, or as many are done as are settled together.
    Empty,
    /// Others were woken, who may have to wait for this task's thread.
    Woke,
    /// Others may have to have their turn.
    Fair,
    /// The handler of this one waits.
    Waits(Lease),
    /// Something has to be asked about this one.
    Asks(Box<Held>),
}

/// What one poll gives.
pub(crate) async fn once<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
