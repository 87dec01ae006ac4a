//! Reconfiguration of several parts through its public API.
mod components;
mod restarts;
mod rollouts;
mod submits;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use steadfast::{
    ConfigError,
    config::{Effect, Reconfigure},
    observe::Event,
    reconfiguration::{Reconfigurer, ReconfigurerConfig, ReconfigurerEvent},
};

use crate::world::World;

pub(super) const PARTS: usize = 5;

/// Settings of five parts, and a field that no part takes.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Settings {
    pub(super) sections: [u32; PARTS],
    pub(super) title: String,
}

impl Settings {
    pub(super) fn of(number: u32) -> Self {
        Self { sections: [number; PARTS], title: String::new() }
    }
}

/// A part that notes its calls, refuses 13, and fails on demand.
#[derive(Clone, Default)]
pub(super) struct Part(Arc<State>);

#[derive(Default)]
struct State {
    runs: Mutex<u32>,
    validated: AtomicUsize,
    applied: AtomicUsize,
    /// For each of the next calls of `apply`: whether it fails. With `true` a panic.
    fails: Mutex<Vec<Failure>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Failure {
    None,
    Error,
    Panic,
}

impl Part {
    pub(super) fn runs(&self) -> u32 {
        *self.0.runs.lock().unwrap()
    }

    pub(super) fn calls(&self) -> (usize, usize) {
        (self.0.validated.load(SeqCst), self.0.applied.load(SeqCst))
    }

    /// Sets the ends of the next calls of `apply`.
    pub(super) fn fails(&self, fails: &[Failure]) {
        *self.0.fails.lock().unwrap() = fails.iter().rev().copied().collect();
    }
}

impl Reconfigure<u32> for Part {
    fn config(&self) -> u32 {
        self.runs()
    }

    fn validate(&self, next: &u32) -> Result<Effect, ConfigError> {
        self.0.validated.fetch_add(1, SeqCst);
        match next {
            13 => Err(ConfigError::new("luck", "must not be 13")),
            99 => Ok(Effect::Restart(ConfigError::new("size", "must stay as it is"))),
            _ => Ok(Effect::InPlace),
        }
    }

    fn apply(&self, next: u32) -> Result<(), ConfigError> {
        self.0.applied.fetch_add(1, SeqCst);
        let fails = self.0.fails.lock().unwrap().pop();
        match fails {
            Some(Failure::Error) => return Err(ConfigError::new("disk", "is full")),
            Some(Failure::Panic) => panic!("a part panics"),
            _ => {}
        }
        *self.0.runs.lock().unwrap() = next;
        Ok(())
    }
}

#[derive(Clone, Default)]
pub(super) struct Told(Arc<Mutex<Vec<ReconfigurerEvent>>>);

impl Told {
    pub(super) fn take(&self) -> Vec<ReconfigurerEvent> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// Returns a builder with five parts, `part-0` and so on.
pub(super) fn builder(
    world: &World,
    parts: &[Part],
    told: &Told,
    config: ReconfigurerConfig,
) -> steadfast::Builder<Reconfigurer<Settings>> {
    let events = told.clone();
    let hook = move |event: &Event<ReconfigurerEvent>| events.0.lock().unwrap().push(event.what.clone());
    let mut built = Reconfigurer::builder(Settings::default(), config).clock(&world.clock).name("shop").on_event(hook);
    for (at, part) in parts.iter().enumerate() {
        built = built.part(format!("part-{at}"), move |s: &mut Settings| &mut s.sections[at], part.clone());
    }
    built
}

pub(super) fn parts() -> Vec<Part> {
    (0..PARTS).map(|_| Part::default()).collect()
}

pub(super) fn runs(parts: &[Part]) -> Vec<u32> {
    parts.iter().map(Part::runs).collect()
}
