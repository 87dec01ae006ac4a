//! Functions that run where an event is sent: hooks of users, and the counters of `metrics`.
//
// The list only grows, and each node is published by its `OnceLock`, so that a sender walks it
// without a lock: a hook may send events itself, and may add no hook to a component that is built.
use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock},
};

use super::{Event, Events, Traced};
use crate::config::Name;

/// A user's hook.
pub(super) type Hook<E> = Arc<dyn Fn(&Event<E>) + Send + Sync>;

/// A function that runs where an event is sent.
pub(super) enum Listener<E> {
    /// Sees the events that are sent, in order, without locks.
    Hook(Hook<E>),
    /// Counts all events, also those that are dropped in a flood. It may run under a policy's lock.
    #[cfg(any(feature = "metrics", feature = "console"))]
    Counter(Box<dyn Fn(&E) + Send + Sync>),
}

/// All listeners of a source, in the order in which they were added.
pub(super) struct Listeners<E>(Link<E>);

type Link<E> = OnceLock<Box<Node<E>>>;

struct Node<E> {
    listener: Listener<E>,
    next: Link<E>,
}

impl<E> Listeners<E> {
    pub(super) const fn new() -> Self {
        Self(OnceLock::new())
    }

    pub(super) fn add(&self, listener: Listener<E>) {
        let mut node = Box::new(Node { listener, next: OnceLock::new() });
        let mut link = &self.0;
        while let Err(back) = link.set(node) {
            node = back;
            match link.get() {
                Some(taken) => link = &taken.next,
                None => return, // unreachable: `set` fails only if a node is there
            }
        }
    }

    pub(super) fn is_any(&self) -> bool {
        self.0.get().is_some()
    }

    pub(super) fn has_hook(&self) -> bool {
        self.iter().any(|listener| matches!(listener, Listener::Hook(_)))
    }

    fn iter(&self) -> impl Iterator<Item = &Listener<E>> {
        let nodes = std::iter::successors(self.0.get(), |node| node.next.get());
        nodes.map(|node| &node.listener)
    }

    /// Passes a sent event to all.
    pub(super) fn tell(&self, event: &Event<E>) {
        for listener in self.iter() {
            match listener {
                // Caught, as the call that sends may be another than the one that the event is
                // about, and may be unwinding already.
                Listener::Hook(hook) => {
                    if catch_unwind(AssertUnwindSafe(|| hook(event))).is_err() {
                        let source = event.source.as_ref().map_or("", Name::as_str);
                        tracing::error!(target: "steadfast::observe", source, "a hook of events panicked");
                    }
                }
                #[cfg(any(feature = "metrics", feature = "console"))]
                Listener::Counter(count) => count(&event.what),
            }
        }
    }

    /// Counts an event that was dropped.
    #[cfg(any(feature = "metrics", feature = "console"))]
    pub(super) fn count(&self, dropped: &E) {
        for listener in self.iter() {
            if let Listener::Counter(count) = listener {
                count(dropped);
            }
        }
    }
}

/// The hooks of a component that is being built, for events of any type. A component that is made
/// of others passes them on.
#[derive(Clone, Default)]
pub(crate) struct Hooks(Vec<Arc<dyn Any + Send + Sync>>);

/// Makes the type of a hook [`Any`].
struct HookFor<E>(Hook<E>);

impl Hooks {
    pub(crate) fn add<E: 'static>(&mut self, hook: impl Fn(&Event<E>) + Send + Sync + 'static) {
        self.0.push(Arc::new(HookFor::<E>(Arc::new(hook))));
    }

    /// Creates a source of events with the hooks for them.
    pub(crate) fn events<E: Traced + 'static>(&self) -> Events<E> {
        let events = Events::new();
        self.0.iter().filter_map(|hook| hook.downcast_ref()).for_each(|HookFor(hook)| events.hook(hook.clone()));
        events
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} hooks", self.0.len())
    }
}
