//! The parts of the simulation of roll-outs: stores without a guard, the head as it is written, and processes that die.
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

use bytes::Bytes;
use futures::FutureExt as _;
use steadfast::{
    config_store::ConfigStore,
    port::{Capabilities, Capability},
    store::{InMemoryStore, Key, Precondition, PutOptions, Record, Store, StoreFuture, Version},
    testing::faults::{FaultClient, FaultNetwork},
    time::{Clock, Instant},
};

pub(crate) const HEAD: Key<'static> = Key::new("config shop", "head");

/// The guard that is taken out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Without {
    Nothing,
    /// A member records a number after it has parsed it.
    Record,
    /// A driver replaces any head.
    Version,
}

/// The effect of a text on the process that parses it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Effect {
    Good,
    /// It dies at once.
    Deadly,
    /// It dies after so many seconds.
    Slow(u64),
}

impl Effect {
    pub(crate) fn of(text: &str) -> Self {
        match text.split(' ').collect::<Vec<_>>()[..] {
            ["deadly", ..] => Self::Deadly,
            ["slow", time, ..] => Self::Slow(time.parse().unwrap()),
            _ => Self::Good,
        }
    }
}

/// The store of all, which keeps what the head was.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) store: InMemoryStore,
    pub(crate) clock: Clock,
    pub(crate) heads: Mutex<Vec<(Instant, Bytes)>>,
}

impl Store for Observed {
    forward_store! { store: capabilities, get, delete, batch, scan }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            let version = self.store.put(key, value.clone(), options).await?;
            if key == HEAD {
                self.heads.lock().unwrap().push((self.clock.now(), value));
            }
            Ok(version)
        })
    }
}

/// The store as a driver uses it that does not require a version of the head.
#[derive(Debug)]
pub(crate) struct AnyHead(pub(crate) Arc<dyn Store>);

impl Store for AnyHead {
    forward_store! { 0: capabilities, get, delete, batch, scan }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, mut options: PutOptions) -> StoreFuture<'a, Version> {
        if key == HEAD && matches!(options.when, Precondition::Version(_)) {
            options.when = Precondition::Any;
        }
        self.0.put(key, value, options)
    }
}

/// The local store of a member. Without its guard a write waits until the member has parsed, and lived on.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) store: InMemoryStore,
    pub(crate) defers: bool,
    pub(crate) deferred: Mutex<Option<(String, String, Bytes)>>,
}

impl Local {
    /// Writes what was deferred, or loses it with the process.
    pub(crate) fn end_write(&self, has_lived_on: bool) {
        let deferred = self.deferred.lock().unwrap().take();
        if let Some((partition, row, value)) = deferred.filter(|_| has_lived_on) {
            let put = self.store.put(Key::new(&partition, &row), value, PutOptions::new());
            put.now_or_never().unwrap().unwrap();
        }
    }
}

impl Store for Local {
    forward_store! { store: delete, batch, scan }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities().with(Capability::Durable)
    }
    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        self.store.get(key)
    }
    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            match self.store.get(key).await? {
                Some(before) if self.defers => {
                    let deferred = (key.partition.to_owned(), key.row.to_owned(), value);
                    *self.deferred.lock().unwrap() = Some(deferred);
                    self.store.put(key, before.value, options).await
                }
                _ => self.store.put(key, value, options).await,
            }
        })
    }
}

/// A head as the drivers have written it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Head {
    pub(crate) stable: u64,
    pub(crate) stage: Option<Stage>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stage {
    pub(crate) number: u64,
    pub(crate) threshold: u64,
    pub(crate) step: u64,
}

impl Head {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut bytes = bytes.iter();
        let mut number = || {
            let mut number = 0;
            for shift in (0..64).step_by(7) {
                let byte = *bytes.next().expect("a head");
                number |= u64::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    break;
                }
            }
            number
        };
        let (form, _last, stable) = (number(), number(), number());
        assert_eq!(form, 1);
        let stage = (number() == 1).then(|| {
            let (staged, threshold) = (number(), number());
            for _ in 0..number() {
                number();
            }
            Stage { number: staged, threshold, step: number() }
        });
        Self { stable, stage }
    }
}

/// Returns the lot that a member draws for a number.
pub(crate) fn lot(member: &str, number: u64) -> u64 {
    twox_hash::XxHash3_64::oneshot(format!("{number} {member}").as_bytes())
}

pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Default)]
pub(crate) struct Woken(pub(crate) AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// A process, from one death to the next.
pub(crate) struct Node {
    pub(crate) client: FaultClient,
    /// `None` while it is down.
    pub(crate) task: Option<Task>,
    pub(crate) woken: Arc<Woken>,
    /// Time at which it starts again.
    pub(crate) starts_at: Instant,
    /// Time from which on it has reached the store.
    pub(crate) reaches_since: Instant,
    pub(crate) is_reaching: bool,
}

impl Node {
    pub(crate) fn new(network: &FaultNetwork, name: &str, now: Instant) -> Self {
        let (client, woken) = (network.client(name), Arc::default());
        Self { client, task: None, woken, starts_at: now, reaches_since: now, is_reaching: true }
    }

    pub(crate) fn run(&mut self, task: Task, now: Instant) {
        (self.task, self.reaches_since) = (Some(task), now);
        self.woken.0.store(true, SeqCst);
    }

    pub(crate) fn die(&mut self, until: Instant) {
        (self.task, self.starts_at) = (None, until);
    }

    /// Polls it if it was woken. Returns `false` if it has ended.
    pub(crate) fn poll(&mut self) -> bool {
        let Some(task) = &mut self.task else { return true };
        if !self.woken.0.swap(false, SeqCst) {
            return true;
        }
        let waker = Waker::from(self.woken.clone());
        task.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Pending
    }

    pub(crate) fn mend(&mut self, now: Instant) {
        self.client.heal();
        self.client.resume();
        (self.is_reaching, self.reaches_since) = (true, now);
    }
}

/// What a member's lives have in common.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) local: Arc<Local>,
    /// Texts that were parsed since the last look, with their numbers.
    pub(crate) parses: Mutex<Vec<(u64, String)>>,
    /// Number that was recorded last.
    pub(crate) number: AtomicU64,
    pub(crate) settings: Mutex<Option<ConfigStore<String>>>,
    pub(crate) is_dead: AtomicBool,
    pub(crate) dies: Mutex<Option<(Instant, String)>>,
}
