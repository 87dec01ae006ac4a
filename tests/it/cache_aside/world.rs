//! Shared by the tests of cache-aside: a source of values, manually polled background tasks, and
//! caches on one clock.
use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use steadfast::{
    Builder,
    cache_aside::{CacheAside, CacheAsideConfig, LoadError, Loaded},
    codec::Codec,
    entropy::Entropy,
    notify::InMemoryNotifier,
    store::{InMemoryStore, Store},
    time::{Clock, ManualClock},
};

pub(crate) type Cache = CacheAside<u32, u64>;
pub(crate) type Error = &'static str;
pub(crate) const S: fn(u64) -> Duration = Duration::from_secs;
pub(crate) const MS: fn(u64) -> Duration = Duration::from_millis;
pub(crate) const MIN: fn(u64) -> Duration = |n| Duration::from_secs(60 * n);

/// A source whose value is read when a load begins and returned when it ends.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) value: Arc<AtomicU64>,
    pub(crate) loads: Arc<AtomicU64>,
    pub(crate) fails: Arc<AtomicBool>,
    takes: Arc<Mutex<Duration>>,
    pub(crate) clock: Clock,
}

impl Source {
    pub(crate) fn takes(&self, time: Duration) {
        *self.takes.lock().unwrap() = time;
    }

    pub(crate) fn set(&self, value: u64) {
        self.value.store(value, SeqCst);
    }

    pub(crate) fn loads(&self) -> u64 {
        self.loads.load(SeqCst)
    }

    pub(crate) fn load(&self) -> impl Future<Output = Result<u64, Error>> + Send + 'static + use<> {
        let source = self.clone();
        async move {
            source.loads.fetch_add(1, SeqCst);
            let value = source.value.load(SeqCst);
            let takes = *source.takes.lock().unwrap();
            if !takes.is_zero() {
                source.clock.sleep(takes).await;
            }
            if source.fails.load(SeqCst) { Err("down") } else { Ok(value) }
        }
    }

    pub(crate) fn tagged(
        &self,
        tag: &'static str,
    ) -> impl Future<Output = Result<Loaded<u64>, Error>> + Send + 'static + use<> {
        let load = self.load();
        async move { Ok(Loaded::new(load.await?).tag(tag)) }
    }
}

/// Background tasks: work that caches spawn, and the caches' `run` loops.
#[derive(Clone, Default)]
pub(crate) struct Background(Arc<Mutex<Vec<Task>>>);

pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Background {
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.lock().unwrap().push(Box::pin(task));
    }

    fn poll(&self) {
        let mut tasks = std::mem::take(&mut *self.0.lock().unwrap());
        tasks.retain_mut(|task| task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        self.0.lock().unwrap().extend(tasks);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// One clock, one source, and the store and notifier that the processes share.
pub(crate) struct World {
    pub(crate) time: ManualClock,
    pub(crate) clock: Clock,
    pub(crate) source: Source,
    pub(crate) background: Background,
    pub(crate) store: Arc<InMemoryStore>,
    pub(crate) notifier: Arc<InMemoryNotifier>,
}

impl World {
    pub(crate) fn new() -> Self {
        let (clock, time) = Clock::manual();
        let source = Source {
            value: Arc::new(AtomicU64::new(1)),
            loads: Arc::default(),
            fails: Arc::default(),
            takes: Arc::default(),
            clock: clock.clone(),
        };
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        let notifier = Arc::new(InMemoryNotifier::new());
        Self { time, clock, source, background: Background::default(), store, notifier }
    }

    pub(crate) fn builder(&self, config: CacheAsideConfig) -> Builder<CacheAside<u32, u64>> {
        let background = self.background.clone();
        CacheAside::builder(config)
            .clock(&self.clock)
            .entropy(&Entropy::from_seed(7))
            .spawner(move |task| background.spawn(task))
    }

    /// Creates a cache of one tier.
    pub(crate) fn cache(&self, config: CacheAsideConfig) -> Cache {
        self.builder(config).build().unwrap()
    }

    /// Creates a process: a cache of two tiers with a backplane, and its running loop.
    pub(crate) fn process(&self, config: CacheAsideConfig, number: u64) -> Cache {
        self.process_on(self.store.clone(), config, number)
    }

    pub(crate) fn process_on(&self, store: Arc<dyn Store>, config: CacheAsideConfig, number: u64) -> Cache {
        let cache = self
            .builder(config)
            .name("numbers")
            .entropy(&Entropy::from_seed(number))
            .remote(store, codec())
            .backplane(self.notifier.clone())
            .build()
            .unwrap();
        let loops = cache.clone();
        self.background.spawn(async move {
            loops.run(std::future::pending()).await;
        });
        self.turn();
        cache
    }

    /// Polls the background tasks until none makes progress at this instant.
    pub(crate) fn turn(&self) {
        for _ in 0..12 {
            self.background.poll();
        }
    }

    /// Advances the clock by this time, from timer to timer.
    pub(crate) fn pass(&self, time: Duration) {
        let end = self.time.now() + time;
        self.turn();
        while let Some(next) = self.time.next_timer().filter(|next| *next <= end) {
            self.time.advance_to(next);
            self.turn();
        }
        self.time.advance_to(end);
        self.turn();
    }

    /// Runs the future to its end beside the background tasks, and advances the clock as needed.
    pub(crate) fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            for _ in 0..12 {
                if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    return output;
                }
                self.background.poll();
            }
            let next = self.time.next_timer().expect("the future waits, and no timer is left to wake it");
            self.time.advance_to(next);
        }
    }

    /// Polls the future as far as it gets without the clock advancing.
    pub(crate) fn begin<F: Future + ?Sized>(&self, future: &mut Pin<Box<F>>) -> Poll<F::Output> {
        for _ in 0..12 {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return Poll::Ready(output);
            }
            self.background.poll();
        }
        Poll::Pending
    }

    pub(crate) fn get(&self, cache: &Cache, key: u32) -> Result<u64, LoadError<Error>> {
        self.run(cache.get_or_load(&key, || self.source.load()))
    }
}

pub(crate) fn codec() -> Codec<u64> {
    Codec::new(
        |n: &u64| Ok::<_, Error>(format!("number {n}").into_bytes()),
        |bytes| std::str::from_utf8(bytes).ok().and_then(|text| text.strip_prefix("number ")?.parse().ok()).ok_or("?"),
    )
}

/// Returns a configuration with a time to live of an hour and no jitter.
pub(crate) fn plain() -> CacheAsideConfig {
    CacheAsideConfig::default().ttl(MIN(60)).jitter(Duration::ZERO)
}
