//! The sending side of events: numbers, order, and the limits in a flood.
use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, OnceLock},
};

use tokio::sync::broadcast;

use super::{
    Event, Subscription,
    hooks::{Hook, Listener, Listeners},
};
use crate::{
    config::Name,
    sync::{Mutex, MutexGuard},
    time::Instant,
};

/// Capacity of the ring: a subscription that is further behind misses events.
const RING: usize = 1024;

/// The sending side, shared by all clones of a policy.
pub(crate) struct Events<E>(Arc<EventSource<E>>);

pub(super) struct EventSource<E> {
    outbox: Mutex<Outbox<E>>,
    /// Set by the first subscription or hook, so that a source without any costs one load.
    demand: OnceLock<Box<Demand<E>>>,
}

/// The parties that want events, beside `tracing`.
pub(super) struct Demand<E> {
    ring: OnceLock<broadcast::Sender<Event<E>>>,
    pub(super) listeners: Listeners<E>,
}

impl<E> EventSource<E> {
    pub(super) fn demand(&self) -> &Demand<E> {
        self.demand.get_or_init(|| Box::new(Demand { ring: OnceLock::new(), listeners: Listeners::new() }))
    }
}

impl<E> Demand<E> {
    /// Returns the ring, if a subscription reads it.
    fn ring(&self) -> Option<&broadcast::Sender<Event<E>>> {
        self.ring.get().filter(|ring| ring.receiver_count() > 0)
    }
}

/// Maximum number of other calls' events that one call sends, and of events that wait.
const BATCH: usize = RING;
/// The same maximum while a hook or a `tracing` subscriber wants events: they run inside the call,
/// and may be slow.
const SLOW_BATCH: usize = 128;

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
    fn push(&mut self, most: usize, at: Instant, source: Option<Name>, what: E) -> Result<(), E> {
        if self.closing || self.staged.len() >= most {
            self.dropped += 1;
            self.unreported += 1;
            return Err(what);
        }
        let skips = std::mem::take(&mut self.dropped);
        self.staged.push_back(Staged { at, source, what, skips });
        Ok(())
    }
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
        Self(Arc::new(EventSource { outbox: Mutex::new(Outbox::EMPTY), demand: OnceLock::new() }))
    }

    pub(crate) fn subscribe(&self) -> Subscription<E> {
        Subscription {
            receiver: self.0.demand().ring.get_or_init(|| broadcast::Sender::new(RING)).subscribe(),
            expected: 0,
            held: None,
            #[cfg(any(feature = "metrics", feature = "console"))]
            source: Arc::downgrade(&self.0),
        }
    }

    /// Adds a hook for the events from now on.
    pub(super) fn hook(&self, hook: Hook<E>) {
        self.0.demand().listeners.add(Listener::Hook(hook));
    }

    /// Returns `true` if a subscriber, a hook or `tracing` wants events. Check it before building
    /// an event.
    pub(crate) fn wanted(&self) -> bool {
        self.0.demand.get().is_some_and(|demand| demand.listeners.is_any() || demand.ring().is_some()) || E::wanted()
    }

    fn listeners(&self) -> Option<&Listeners<E>> {
        self.0.demand.get().map(|demand| &demand.listeners)
    }

    fn batch(&self) -> usize {
        if E::wanted() || self.listeners().is_some_and(Listeners::has_hook) { SLOW_BATCH } else { BATCH }
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
            self.keep(source, at, event());
        }
    }

    /// Puts an event into the outbox. A function of its own, so that it is compiled once for each
    /// type of event, and not for each closure.
    fn keep(&self, source: Option<&Name>, at: Instant, event: E) {
        let most = self.batch();
        let dropped = self.outbox().push(most, at, source.cloned(), event).err();
        // No hook runs here, where the policy may hold its lock.
        #[cfg(any(feature = "metrics", feature = "console"))]
        if let (Some(event), Some(listeners)) = (&dropped, self.listeners()) {
            listeners.count(event);
        }
        drop(dropped);
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
        let mut sender = Sender { events: self, ended: false, left: self.batch(), unreported: 0 };
        while let Some((number, at, own, what)) = sender.next() {
            let source = own.as_ref().or(source);
            let event = Event { number, at, source: source.cloned(), what };
            if let Some(ring) = self.0.demand.get().and_then(|demand| demand.ring()) {
                // An error means that there is no subscription any more.
                let _ = ring.send(event.clone());
            }
            event.what.trace(source.map_or("", Name::as_str));
            if let Some(listeners) = self.listeners() {
                listeners.tell(&event);
            }
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
