//! Events: what a policy did, typed, in order, numbered without gaps, and never in the way of a call.
//!
//! A listener here is a [`Subscription`] that takes events from a ring, not a function that runs inside the call: it may be
//! slow or panic, and no call notices. One that falls behind by more than the ring holds misses the oldest, and is told how
//! many. Without a subscription (and without a `tracing` subscriber that wants them) no event is built at all.
//!
//! # Floods
//!
//! A call that has something to tell sends it, and what other calls laid down meanwhile: at most a thousand events of theirs, or a hundred
//! where a `tracing` subscriber, which runs in the call, wants them. As many may wait. In a flood that no sender keeps up with, later
//! events are dropped until the sender has caught up. Each dropped event uses up its number, subscriptions are told of the gap
//! ([`Missed::Events`]), `tracing` is told how many there were, and metrics count them all.
//!
//! # tracing
//!
//! Every event of every policy goes to `tracing` as well, where a subscriber wants it: target `steadfast::` and the room
//! (`steadfast::circuit_breaker`), the policy's name as a field. Nothing is to be switched on here: a filter such as
//! `steadfast=info` does it. What needs a look is a `WARN` (a breaker that opened, a retry that gave up, a call that timed out), what is as
//! it should be an `INFO`, what comes with every call of a bad hour a `DEBUG`. Calls and attempts are spans of `steadfast::call`, at `DEBUG`.
//!
//! # Numbers
//!
//! Feature `metrics` counts events where they are sent, so that none is missed, and reads the gauges: room `metrics`.
//!
//! ```
//! use steadfast::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, CircuitBreakerEvent};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
//! let mut events = breaker.events();
//! breaker.isolate();
//! let event = events.recv().await.unwrap();
//! assert_eq!(event.number, 1);
//! assert!(matches!(event.what, CircuitBreakerEvent::Isolated));
//! # });
//! ```
use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

#[cfg(feature = "metrics")]
use std::sync::{
    RwLock,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use tokio::sync::broadcast;

use crate::{config::Name, time::Instant};

/// What a subscription gives: one thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event<E> {
    /// Counts this source's events from 1. A gap stands for events that were dropped, or missed.
    pub number: u64,
    /// When it happened, by the policy's clock.
    pub at: Instant,
    /// The policy's name, if it has one.
    pub source: Option<Name>,
    /// What happened.
    pub what: E,
}

/// Why a subscription gave no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Missed {
    /// It fell behind, or the source had more to tell than could be sent, and this many events are gone. The next `recv` goes on with the
    /// oldest that is left.
    #[error("missed {0} events")]
    Events(u64),
    /// The policy is gone, and with it all that would send.
    #[error("the source of the events is gone")]
    Closed,
}

/// How many events a slow subscription may be behind before it misses any.
const RING: usize = 1024;

/// The sending end, shared by all clones of a policy.
pub(crate) struct Events<E>(Arc<Shared<E>>);

struct Shared<E> {
    outbox: Mutex<Outbox<E>>,
    ring: OnceLock<broadcast::Sender<Event<E>>>,
    #[cfg(feature = "metrics")]
    taps: Taps<E>,
}

/// Those who count events where they are sent, so that none is missed.
#[cfg(feature = "metrics")]
struct Taps<E> {
    any: AtomicBool,
    each: RwLock<Vec<Tap<E>>>,
}

#[cfg(feature = "metrics")]
type Tap<E> = Box<dyn Fn(&E) + Send + Sync>;

#[cfg(feature = "metrics")]
impl<E> Taps<E> {
    fn each(&self) -> std::sync::RwLockReadGuard<'_, Vec<Tap<E>>> {
        self.each.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many events of others one call sends before it takes no more; as many may wait.
const BATCH: usize = RING;
/// The same where `tracing` is told, which takes as long as its subscriber likes, in the call.
const TRACED_BATCH: usize = 128;

struct Outbox<E> {
    /// The number of the last event that was sent, dropped ones counted.
    sent: u64,
    /// The sender has sent its batch: it ends what waits, and what comes meanwhile is dropped.
    closing: bool,
    /// How many were dropped since the last that was laid down, and since `tracing` was told.
    dropped: u64,
    untold: u64,
    /// Whether somebody is at work sending. Who lays down an event meanwhile leaves it to them.
    sending: bool,
    /// What is to be sent, with the name of its source where that is not the sender's.
    staged: VecDeque<Staged<E>>,
}

struct Staged<E> {
    at: Instant,
    source: Option<Name>,
    what: E,
    /// How many events were dropped just before it.
    skips: u64,
}

impl<E: Traced> Outbox<E> {
    const EMPTY: Self =
        Self { sent: 0, closing: false, dropped: 0, untold: 0, sending: false, staged: VecDeque::new() };

    /// Lays an event down, or gives it back where there is no room.
    fn lay_down(&mut self, at: Instant, source: Option<Name>, what: E) -> Result<(), E> {
        if self.closing || self.staged.len() >= batch::<E>() {
            self.dropped += 1;
            self.untold += 1;
            return Err(what);
        }
        let skips = std::mem::take(&mut self.dropped);
        self.staged.push_back(Staged { at, source, what, skips });
        Ok(())
    }
}

fn batch<E: Traced>() -> usize {
    if E::wanted() { TRACED_BATCH } else { BATCH }
}

/// An event that `tracing` can be told.
pub(crate) trait Traced: Clone {
    /// Whether `tracing` wants any event of this type now. Reads one static: cheap enough for every refusal.
    fn wanted() -> bool;
    /// Tells `tracing`.
    fn trace(&self, source: &str);
}

impl<E: Traced> Events<E> {
    pub(crate) fn new() -> Self {
        let outbox = Mutex::new(Outbox::EMPTY);
        Self(Arc::new(Shared {
            outbox,
            ring: OnceLock::new(),
            #[cfg(feature = "metrics")]
            taps: Taps { any: AtomicBool::new(false), each: RwLock::default() },
        }))
    }

    pub(crate) fn subscribe(&self) -> Subscription<E> {
        Subscription {
            receiver: self.0.ring.get_or_init(|| broadcast::Sender::new(RING)).subscribe(),
            expected: 0,
            held: None,
            #[cfg(feature = "metrics")]
            source: Arc::downgrade(&self.0),
        }
    }

    /// Whether anybody listens. Ask before building an event.
    pub(crate) fn wanted(&self) -> bool {
        #[cfg(feature = "metrics")]
        if self.0.taps.any.load(Relaxed) {
            return true;
        }
        self.0.ring.get().is_some_and(|ring| ring.receiver_count() > 0) || E::wanted()
    }

    /// Lays an event down in order. May be called under a policy's lock; nothing is sent before [`flush`](Self::flush).
    pub(crate) fn stage(&self, at: Instant, event: impl FnOnce() -> E) {
        self.stage_as(None, at, event);
    }

    /// The same for an event of another source than the one that will flush it: of a family, all members share one outbox.
    pub(crate) fn stage_as(&self, source: Option<&Name>, at: Instant, event: impl FnOnce() -> E) {
        if self.wanted() {
            let dropped = self.outbox().lay_down(at, source.cloned(), event());
            if let Err(_what) = dropped {
                #[cfg(feature = "metrics")]
                self.0.taps.each().iter().for_each(|tap| tap(&_what));
            }
        }
    }

    /// Sends what was laid down. Call it outside the policy's locks.
    pub(crate) fn flush(&self, source: Option<&Name>) {
        if !self.wanted() {
            return;
        }
        // One sender at a time, so that the order of staging is the order of sending; and no lock while it sends, for a listener
        // may come back here, and a slow one shall delay nobody else.
        if std::mem::replace(&mut self.outbox().sending, true) {
            return;
        }
        let mut sender = Sender { events: self, ended: false, left: batch::<E>(), untold: 0 };
        while let Some((number, at, own, what)) = sender.next() {
            let source = own.as_ref().or(source);
            if let Some(ring) = self.0.ring.get() {
                // An error means that nobody listens, which is nobody's loss.
                let _ = ring.send(Event { number, at, source: source.cloned(), what: what.clone() });
            }
            what.trace(source.map_or("", Name::as_str));
            #[cfg(feature = "metrics")]
            self.0.taps.each().iter().for_each(|tap| tap(&what));
        }
        if sender.untold > 0 {
            let source = source.map_or("", Name::as_str);
            tracing::warn!(target: "steadfast::observe", source, dropped = sender.untold, "dropped events in a flood");
        }
    }

    /// Stages and sends one event.
    pub(crate) fn send(&self, source: Option<&Name>, at: Instant, event: impl FnOnce() -> E) {
        if self.wanted() {
            self.stage(at, event);
            self.flush(source);
        }
    }

    fn outbox(&self) -> std::sync::MutexGuard<'_, Outbox<E>> {
        self.0.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one at work sending; gives the work up when it ends, also by a panic of a `tracing` subscriber.
struct Sender<'a, E: Traced> {
    events: &'a Events<E>,
    ended: bool,
    /// How many more it sends before it takes no more.
    left: usize,
    /// How many were dropped since `tracing` was told last.
    untold: u64,
}

impl<E: Traced> Sender<'_, E> {
    /// The next event with its number. With none left the work is given up, under the same lock: no event falls between.
    fn next(&mut self) -> Option<(u64, Instant, Option<Name>, E)> {
        let mut outbox = self.events.outbox();
        let Some(Staged { at, source, what, skips }) = outbox.staged.pop_front() else {
            (outbox.sending, outbox.closing, self.ended) = (false, false, true);
            self.untold = std::mem::take(&mut outbox.untold);
            return None;
        };
        outbox.sent += skips + 1;
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => outbox.closing = true,
        }
        Some((outbox.sent, at, source, what))
    }
}

impl<E: Traced> Drop for Sender<'_, E> {
    fn drop(&mut self) {
        if !self.ended {
            let mut outbox = self.events.outbox();
            (outbox.sending, outbox.closing) = (false, false);
        }
    }
}

impl<E> Clone for Events<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<E> fmt::Debug for Events<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}

/// The receiving end of a policy's events, from the moment it was made.
pub struct Subscription<E> {
    receiver: broadcast::Receiver<Event<E>>,
    /// The number of the next event, if none is dropped; 0 before the first.
    expected: u64,
    /// An event before which others were dropped: that is told first.
    held: Option<Event<E>>,
    #[cfg(feature = "metrics")]
    source: std::sync::Weak<Shared<E>>,
}

#[cfg(feature = "metrics")]
impl<E> Subscription<E> {
    /// Has each event from now on counted where it is sent, in place of going through the ring. What counts must be quick.
    pub(crate) fn tap(self, count: impl Fn(&E) + Send + Sync + 'static) {
        if let Some(source) = self.source.upgrade() {
            source.taps.each.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(count));
            source.taps.any.store(true, Relaxed);
        }
    }
}

impl<E: Clone> Subscription<E> {
    /// The next event; waits for it.
    ///
    /// # Errors
    /// [`Missed::Events`] where this subscription fell behind (the next call goes on), [`Missed::Closed`] where no more
    /// will come.
    ///
    /// # Cancel safety
    /// Dropped while it waits, it loses nothing: the next call gives the same event.
    pub async fn recv(&mut self) -> Result<Event<E>, Missed> {
        if let Some(event) = self.held.take() {
            return Ok(event);
        }
        match self.receiver.recv().await {
            Ok(event) => self.took(event),
            Err(broadcast::error::RecvError::Lagged(n)) => Err(self.fell_behind(n)),
            Err(broadcast::error::RecvError::Closed) => Err(Missed::Closed),
        }
    }

    /// The next event if it is there already.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn try_recv(&mut self) -> Result<Option<Event<E>>, Missed> {
        if let Some(event) = self.held.take() {
            return Ok(Some(event));
        }
        match self.receiver.try_recv() {
            Ok(event) => self.took(event).map(Some),
            Err(broadcast::error::TryRecvError::Empty) => Ok(None),
            Err(broadcast::error::TryRecvError::Lagged(n)) => Err(self.fell_behind(n)),
            Err(broadcast::error::TryRecvError::Closed) => Err(Missed::Closed),
        }
    }

    /// Gives an event, or first tells how many were dropped before it.
    fn took(&mut self, event: Event<E>) -> Result<Event<E>, Missed> {
        let expected = std::mem::replace(&mut self.expected, event.number + 1);
        match event.number.saturating_sub(expected) {
            gap if gap > 0 && expected > 0 => {
                self.held = Some(event);
                Err(Missed::Events(gap))
            }
            _ => Ok(event),
        }
    }

    fn fell_behind(&mut self, n: u64) -> Missed {
        if self.expected > 0 {
            self.expected += n;
        }
        Missed::Events(n)
    }
}

impl<E> fmt::Debug for Subscription<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("waiting", &self.receiver.len()).finish()
    }
}
