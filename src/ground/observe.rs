//! Events: typed records of what a policy did, in order, numbered, and delivered without delaying a
//! call.
//!
//! A [`Subscription`] takes events from a ring; no callback runs inside the call. A subscriber may
//! therefore be slow or panic without an effect on calls. A subscriber that falls behind by more
//! than the ring holds misses the oldest events and learns their number. Without a subscription,
//! and without a `tracing` subscriber that wants them, no event is built.
//!
//! # Floods
//!
//! A call that has an event sends it together with the events that other calls staged in the
//! meantime: at most 1,024 of theirs, or 128 if a `tracing` subscriber, which runs inside the call,
//! wants them. As many may wait. If no sender keeps up, later events are dropped until the sender
//! has caught up. A dropped event uses up its number: subscriptions report the gap
//! ([`Missed::Events`]), `tracing` gets the number of dropped events, and metrics count all events.
//!
//! # tracing
//!
//! Each event also goes to `tracing`, if a subscriber wants it. The target is `steadfast::` and the
//! module (`steadfast::circuit_breaker`); the policy's name is a field. A filter such as
//! `steadfast=info` enables them. Events that need attention are `WARN` (a breaker opened, a retry
//! gave up, a call timed out), other state changes `INFO`, and events that come with each call
//! during an outage `DEBUG`. Calls and attempts are spans of `steadfast::call`, at `DEBUG`.
//!
//! # Metrics
//!
//! Feature `metrics` counts events where they are sent, so that none is missed, and reads gauges:
//! module `metrics`.
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
    sync::{Arc, OnceLock},
};

#[cfg(feature = "metrics")]
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::sync::broadcast;

use crate::{
    config::Name,
    sync::{Mutex, MutexGuard},
    time::Instant,
};

/// One event, as a subscription returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event<E> {
    /// Number of the event, from 1 for each source. A gap stands for lost events.
    pub number: u64,
    /// Time of the event, by the policy's clock.
    pub at: Instant,
    /// Name of the policy, if it has one.
    pub source: Option<Name>,
    /// The event itself.
    pub what: E,
}

/// The reason for which a subscription returned no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Missed {
    /// The subscription fell behind, or the source dropped events in a flood; this many are lost.
    /// The next `recv` continues with the oldest remaining event.
    #[error("missed {0} events")]
    Events(u64),
    /// The policy and all its clones were dropped.
    #[error("the source of the events was dropped")]
    Closed,
}

/// Capacity of the ring: a subscription that is further behind misses events.
const RING: usize = 1024;

/// The sending side, shared by all clones of a policy.
pub(crate) struct Events<E>(Arc<EventSource<E>>);

struct EventSource<E> {
    outbox: Mutex<Outbox<E>>,
    ring: OnceLock<broadcast::Sender<Event<E>>>,
    #[cfg(feature = "metrics")]
    taps: Taps<E>,
}

/// Functions that count events where they are sent, so that none is missed.
#[cfg(feature = "metrics")]
struct Taps<E> {
    /// `true` once `each` has an element. `Relaxed`: the lock of `each` publishes the elements; an
    /// event that is concurrent with the first tap may go uncounted.
    any: AtomicBool,
    each: Mutex<Vec<Tap<E>>>,
}

#[cfg(feature = "metrics")]
type Tap<E> = Box<dyn Fn(&E) + Send + Sync>;

/// Maximum number of other calls' events that one call sends, and of events that wait.
const BATCH: usize = RING;
/// The same maximum while a `tracing` subscriber wants events: it runs inside the call, and may be
/// slow.
const TRACED_BATCH: usize = 128;

struct Outbox<E> {
    /// Number of the last event that was sent, dropped events included.
    sent: u64,
    /// `true` once the sender has sent its batch: it sends the waiting events, and new ones are
    /// dropped.
    closing: bool,
    /// Events dropped since the last one was staged.
    dropped: u64,
    /// Events dropped since the last report to `tracing`.
    unreported: u64,
    /// `true` while a task sends; other tasks leave their events to it.
    sending: bool,
    /// Events to be sent, with the name of their source if it differs from the sender's.
    staged: VecDeque<Staged<E>>,
}

struct Staged<E> {
    at: Instant,
    source: Option<Name>,
    what: E,
    /// Number of events dropped just before this one.
    skips: u64,
}

impl<E: Traced> Outbox<E> {
    const EMPTY: Self =
        Self { sent: 0, closing: false, dropped: 0, unreported: 0, sending: false, staged: VecDeque::new() };

    /// Adds an event, or returns it if there is no room.
    fn push(&mut self, at: Instant, source: Option<Name>, what: E) -> Result<(), E> {
        if self.closing || self.staged.len() >= batch::<E>() {
            self.dropped += 1;
            self.unreported += 1;
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

/// An event that can be sent to `tracing`.
pub(crate) trait Traced: Clone {
    /// Returns `true` if a `tracing` subscriber wants events of this type. It reads one static,
    /// which is cheap enough for every rejection.
    fn wanted() -> bool;
    /// Sends the event to `tracing`.
    fn trace(&self, source: &str);
}

impl<E: Traced> Events<E> {
    pub(crate) fn new() -> Self {
        let outbox = Mutex::new(Outbox::EMPTY);
        Self(Arc::new(EventSource {
            outbox,
            ring: OnceLock::new(),
            #[cfg(feature = "metrics")]
            taps: Taps { any: AtomicBool::new(false), each: Mutex::default() },
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

    /// Returns `true` if a subscriber, a tap or `tracing` wants events. Check it before building an
    /// event.
    pub(crate) fn wanted(&self) -> bool {
        #[cfg(feature = "metrics")]
        if self.0.taps.any.load(Relaxed) {
            return true;
        }
        self.0.ring.get().is_some_and(|ring| ring.receiver_count() > 0) || E::wanted()
    }

    /// Stages an event in order. It may be called under a policy's lock: nothing is sent before
    /// [`flush`](Self::flush).
    pub(crate) fn stage(&self, at: Instant, event: impl FnOnce() -> E) {
        self.stage_as(None, at, event);
    }

    /// Stages an event of another source than the one that will flush it: the members of a registry
    /// share one outbox.
    pub(crate) fn stage_as(&self, source: Option<&Name>, at: Instant, event: impl FnOnce() -> E) {
        if self.wanted() {
            let dropped = self.outbox().push(at, source.cloned(), event());
            if let Err(_what) = dropped {
                #[cfg(feature = "metrics")]
                self.0.taps.each.lock().iter().for_each(|tap| tap(&_what));
            }
        }
    }

    /// Sends the staged events. Call it outside the policy's locks.
    pub(crate) fn flush(&self, source: Option<&Name>) {
        if !self.wanted() {
            return;
        }
        // One sender at a time, so that events are sent in the order of staging. It holds no lock while it sends: a `tracing`
        // subscriber may call this policy again, and a slow subscriber must not delay other calls.
        if std::mem::replace(&mut self.outbox().sending, true) {
            return;
        }
        let mut sender = Sender { events: self, ended: false, left: batch::<E>(), unreported: 0 };
        while let Some((number, at, own, what)) = sender.next() {
            let source = own.as_ref().or(source);
            if let Some(ring) = self.0.ring.get() {
                // An error means that there is no subscription.
                let _ = ring.send(Event { number, at, source: source.cloned(), what: what.clone() });
            }
            what.trace(source.map_or("", Name::as_str));
            #[cfg(feature = "metrics")]
            self.0.taps.each.lock().iter().for_each(|tap| tap(&what));
        }
        if sender.unreported > 0 {
            let source = source.map_or("", Name::as_str);
            tracing::warn!(target: "steadfast::observe", source, dropped = sender.unreported, "events dropped in a flood");
        }
    }

    /// Stages and sends one event.
    pub(crate) fn send(&self, source: Option<&Name>, at: Instant, event: impl FnOnce() -> E) {
        if self.wanted() {
            self.stage(at, event);
            self.flush(source);
        }
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox<E>> {
        self.0.outbox.lock()
    }
}

/// The right to send, held by one call at a time. Dropping it releases the right, also after a
/// panic of a `tracing` subscriber.
struct Sender<'a, E: Traced> {
    events: &'a Events<E>,
    ended: bool,
    /// Number of events to send before `closing` is set.
    left: usize,
    /// Number of dropped events to report to `tracing`.
    unreported: u64,
}

impl<E: Traced> Sender<'_, E> {
    /// Returns the next event with its number. Without one it releases the right to send under the
    /// same lock, so that no event staged by another call is left behind.
    fn next(&mut self) -> Option<(u64, Instant, Option<Name>, E)> {
        let mut outbox = self.events.outbox();
        let Some(Staged { at, source, what, skips }) = outbox.staged.pop_front() else {
            (outbox.sending, outbox.closing, self.ended) = (false, false, true);
            self.unreported = std::mem::take(&mut outbox.unreported);
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

/// A subscription to a policy's events, from its creation on.
pub struct Subscription<E> {
    receiver: broadcast::Receiver<Event<E>>,
    /// Number of the next event, if none is dropped; 0 before the first.
    expected: u64,
    /// An event to return after the gap before it was reported.
    held: Option<Event<E>>,
    #[cfg(feature = "metrics")]
    source: std::sync::Weak<EventSource<E>>,
}

#[cfg(feature = "metrics")]
impl<E> Subscription<E> {
    /// Calls `count` with each event from now on, where it is sent, instead of through the ring.
    /// `count` must be quick.
    pub(crate) fn tap(self, count: impl Fn(&E) + Send + Sync + 'static) {
        if let Some(source) = self.source.upgrade() {
            source.taps.each.lock().push(Box::new(count));
            source.taps.any.store(true, Relaxed);
        }
    }
}

impl<E: Clone> Subscription<E> {
    /// Waits for the next event and returns it.
    ///
    /// # Errors
    /// [`Missed::Events`] if events were lost (the next call continues), [`Missed::Closed`] if no
    /// more events will come.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the next call returns the same event.
    pub async fn recv(&mut self) -> Result<Event<E>, Missed> {
        if let Some(event) = self.held.take() {
            return Ok(event);
        }
        match self.receiver.recv().await {
            Ok(event) => self.accept(event),
            Err(broadcast::error::RecvError::Lagged(n)) => Err(self.fell_behind(n)),
            Err(broadcast::error::RecvError::Closed) => Err(Missed::Closed),
        }
    }

    /// Returns the next event if there is one, without waiting.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn try_recv(&mut self) -> Result<Option<Event<E>>, Missed> {
        if let Some(event) = self.held.take() {
            return Ok(Some(event));
        }
        match self.receiver.try_recv() {
            Ok(event) => self.accept(event).map(Some),
            Err(broadcast::error::TryRecvError::Empty) => Ok(None),
            Err(broadcast::error::TryRecvError::Lagged(n)) => Err(self.fell_behind(n)),
            Err(broadcast::error::TryRecvError::Closed) => Err(Missed::Closed),
        }
    }

    /// Returns an event, or first the number of events dropped before it.
    fn accept(&mut self, event: Event<E>) -> Result<Event<E>, Missed> {
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
