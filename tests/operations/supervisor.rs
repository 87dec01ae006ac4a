//! The supervisor through its public API.
mod checkpoints;
mod handles;
mod polls;
mod restarts;
mod settings;
mod stops;

use std::{
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use steadfast::{
    Builder,
    entropy::Entropy,
    supervisor::{Child, ChildContext, Supervisor, SupervisorConfig, SupervisorEvent},
    time::Instant,
};

use crate::world::World;

/// The events of children, in order: `start a`, `stop a`, and so on.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(super) fn add(&self, entry: impl Into<String>) {
        self.0.lock().unwrap().push(entry.into());
    }

    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Returns a builder on the world's clock and pool.
pub(super) fn builder(world: &World, config: SupervisorConfig) -> Builder<Supervisor> {
    let pool = world.pool.clone();
    let builder = Supervisor::builder(config).name("worker").clock(&world.clock).entropy(&Entropy::from_seed(1));
    builder.spawner(move |task| pool.spawn(task))
}

/// Returns a child that is ready at once, runs until it is asked to stop, and logs both.
pub(super) fn obedient(name: &'static str, log: &Log) -> Child {
    let log = log.clone();
    Child::new(name, move |cx: ChildContext| {
        let log = log.clone();
        async move {
            log.add(format!("start {name}"));
            cx.ready();
            cx.stopping().await;
            log.add(format!("stop {name}"));
            Ok::<_, String>(())
        }
    })
}

/// Returns a child whose instance `n` does as `act` says, and the instances after the last one run until they are stopped.
pub(super) fn acting(name: &'static str, log: &Log, acts: Vec<Act>) -> Child {
    let (log, acts) = (log.clone(), Arc::new(acts));
    Child::new(name, move |cx: ChildContext| {
        let (log, act) = (log.clone(), acts.get(cx.instance() as usize - 1).copied());
        log.add(format!("start {name}"));
        if matches!(act, Some(Act::PanicInConstruction)) {
            panic!("cannot be built");
        }
        async move {
            let _breaks = matches!(act, Some(Act::PanicInDrop | Act::HangAndPanicInDrop)).then(|| Breaks);
            match act {
                Some(Act::Fail) => Err("broken".to_owned()),
                Some(Act::PanicInPoll) => panic!("cannot go on"),
                Some(Act::End | Act::PanicInDrop) => Ok(()),
                Some(Act::Hang | Act::HangAndPanicInDrop) => pending().await,
                _ => {
                    cx.ready();
                    cx.stopping().await;
                    log.add(format!("stop {name}"));
                    Ok(())
                }
            }
        }
    })
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Act {
    Fail,
    End,
    Hang,
    PanicInConstruction,
    PanicInPoll,
    PanicInDrop,
    HangAndPanicInDrop,
}

struct Breaks;

impl Drop for Breaks {
    fn drop(&mut self) {
        panic!("cannot be dropped");
    }
}

/// Collects the events of a supervisor with their times.
pub(super) fn told(builder: Builder<Supervisor>) -> (Builder<Supervisor>, Events) {
    let events = Events::default();
    let kept = events.clone();
    let builder = builder.on_event(move |event: &steadfast::observe::Event<SupervisorEvent>| {
        kept.0.lock().unwrap().push((event.at, event.what.clone()));
    });
    (builder, events)
}

#[derive(Clone, Default)]
pub(super) struct Events(Arc<Mutex<Vec<(Instant, SupervisorEvent)>>>);

impl Events {
    pub(super) fn all(&self) -> Vec<SupervisorEvent> {
        self.0.lock().unwrap().iter().map(|(_, event)| event.clone()).collect()
    }

    /// Returns the times of the starts of a child.
    pub(super) fn starts(&self, name: &str) -> Vec<Instant> {
        let is_start =
            |event: &SupervisorEvent| matches!(event, SupervisorEvent::Started { child, .. } if child.as_str() == name);
        self.0.lock().unwrap().iter().filter(|(_, event)| is_start(event)).map(|(at, _)| *at).collect()
    }
}

/// Settings without random delays: the first restart after `base`.
pub(super) fn steady(base: Duration) -> SupervisorConfig {
    use steadfast::backoff::{BackoffConfig, Jitter};
    let delays = BackoffConfig::default().between(base, base * 64).jitter(Jitter::None);
    SupervisorConfig::default().backoff(delays)
}
