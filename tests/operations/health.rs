//! Health checks through their public API.
mod fleet;
#[cfg(feature = "prober")]
mod prober;
mod reports;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

use steadfast::{
    Builder,
    entropy::Entropy,
    health::{Check, Health, HealthConfig, HealthEvent},
    observe::Event,
};

use crate::world::World;

/// Returns a builder on the world's clock and pool.
pub(super) fn builder(world: &World, config: HealthConfig) -> Builder<Health> {
    let pool = world.pool.clone();
    let builder = Health::builder(config).name("shop").clock(&world.clock).entropy(&Entropy::from_seed(1));
    builder.spawner(move |task| pool.spawn(task))
}

/// Something that a check looks at.
#[derive(Clone, Default)]
pub(super) struct Thing {
    is_broken: Arc<AtomicBool>,
    looks: Arc<AtomicU64>,
}

impl Thing {
    pub(super) fn breaks(&self) {
        self.is_broken.store(true, SeqCst);
    }

    pub(super) fn heals(&self) {
        self.is_broken.store(false, SeqCst);
    }

    pub(super) fn looks(&self) -> u64 {
        self.looks.load(SeqCst)
    }

    fn look(&self) -> Result<(), &'static str> {
        self.looks.fetch_add(1, SeqCst);
        if self.is_broken.load(SeqCst) { Err("password of role app refused by 10.0.0.7") } else { Ok(()) }
    }

    /// Returns a check of it as a dependency.
    pub(super) fn dependency(&self, name: &str) -> Check {
        let thing = self.clone();
        Check::dependency(name, move || {
            let thing = thing.clone();
            async move { thing.look() }
        })
    }

    /// Returns a check of it as a part of the process.
    pub(super) fn local(&self, name: &str) -> Check {
        let thing = self.clone();
        Check::local(name, move || {
            let thing = thing.clone();
            async move { thing.look() }
        })
    }
}

#[derive(Clone, Default)]
pub(super) struct Told(Arc<Mutex<Vec<HealthEvent>>>);

impl Told {
    pub(super) fn by(&self, builder: Builder<Health>) -> Builder<Health> {
        let events = self.clone();
        builder.on_event(move |event: &Event<HealthEvent>| events.0.lock().unwrap().push(event.what.clone()))
    }

    pub(super) fn all(&self) -> Vec<HealthEvent> {
        self.0.lock().unwrap().clone()
    }
}
