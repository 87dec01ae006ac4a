//! The configuration store and its publisher through their public API.
mod crashes;
mod files;
mod killed;
mod publishing;
mod taking;
mod trials;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::future::pending;
use steadfast::{
    ConfigError,
    config_store::{
        Change, ConfigPublisher, ConfigStore, ConfigStoreBuilder, ConfigStoreConfig, ConfigStoreEvent, Documents,
        PublisherConfig, Veto,
    },
    entropy::Entropy,
    observe::Event,
    port::{Capabilities, Capability},
    store::Store,
};

use crate::world::World;

/// Settings of two layers: a moment in each, which must be the same one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) org: u64,
    pub(super) billing: u64,
}

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Reads two numbers. Thirteen is refused by name, and 666 panics.
pub(super) fn load(documents: &Documents) -> Result<Settings, BoxError> {
    let number = |name: &str| -> Result<u64, BoxError> {
        let number: u64 = documents.text(name)?.parse()?;
        match number {
            13 => Err(ConfigError::new("luck", format!("must not be {number}")).into()),
            666 => panic!("the loader has seen {number}"),
            number => Ok(number),
        }
    };
    Ok(Settings { org: number("org")?, billing: number("billing")? })
}

/// A loader that counts its calls.
#[derive(Clone, Default)]
pub(super) struct Parses(Arc<AtomicU64>);

impl Parses {
    pub(super) fn count(&self) -> u64 {
        self.0.load(SeqCst)
    }

    pub(super) fn load(&self) -> impl Fn(&Documents) -> Result<Settings, BoxError> + Send + Sync + 'static {
        let parses = self.0.clone();
        move |documents| {
            parses.fetch_add(1, SeqCst);
            load(documents)
        }
    }
}

/// Returns a publisher whose readers accept everything.
pub(super) fn publisher(world: &World, store: &Arc<dyn Store>, seed: u64) -> ConfigPublisher {
    let built = ConfigPublisher::builder(store.clone(), "shop", PublisherConfig::default());
    built.clock(&world.clock).entropy(&Entropy::from_seed(seed)).build().unwrap()
}

pub(super) fn both(number: u64) -> Change {
    Change::to("org", number.to_string()).and(Change::to("billing", number.to_string())).by("ada").because("because")
}

pub(super) fn builder(world: &World, store: &Arc<dyn Store>, parses: &Parses) -> ConfigStoreBuilder<Settings> {
    let built = ConfigStore::builder(store.clone(), "shop", parses.load(), ConfigStoreConfig::default());
    built.layers(["org", "billing"]).clock(&world.clock).entropy(&Entropy::from_seed(3))
}

/// Follows the store for a time, as a process that is then killed.
pub(super) fn follow(world: &World, settings: &ConfigStore<Settings>, time: Duration) {
    world.run(time, settings.run(pending(), |_| async { Ok::<_, Veto>(()) }));
}

/// Runs a future that needs no time.
pub(super) fn now<F: Future>(world: &World, future: F) -> F::Output {
    world.run(Duration::from_secs(60), future).expect("it ends within a minute")
}

#[derive(Clone, Default)]
pub(super) struct Told(Arc<Mutex<Vec<ConfigStoreEvent>>>);

impl Told {
    pub(super) fn by(&self, builder: ConfigStoreBuilder<Settings>) -> ConfigStoreBuilder<Settings> {
        let events = self.clone();
        builder.on_event(move |event: &Event<ConfigStoreEvent>| events.0.lock().unwrap().push(event.what.clone()))
    }

    pub(super) fn take(&self) -> Vec<ConfigStoreEvent> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// A store that says that it outlives its process, as it does in these tests.
#[derive(Debug)]
pub(crate) struct Disk(pub(crate) Arc<dyn Store>);

impl Store for Disk {
    forward_store! { 0: get, put, delete, scan, batch }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities().with(Capability::Durable)
    }
}
