//! The side of the service, which reads releases.
use std::{collections::HashMap, future::Future, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{Manifest, SiteConfig, SiteError, Snapshot, StaticSiteEvent as Event, session::read, topic};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents},
    config::{ConfigError, Name},
    entropy::Entropy,
    notify::Notifier,
    observe::{Events, Subscription},
    port::{BoxFuture, Failure as _, PortError},
    race::race,
    revisions::{Head, Looks, Revisions},
    store::Store,
    sync::Mutex,
    time::{Clock, Instant},
};

/// A site, as a service reads it. It needs no right to write. A clone is the same. The
/// [module's page](super) states the guarantees.
#[derive(Clone)]
pub struct StaticSite(Arc<Inner>);

struct Inner {
    name: Name,
    config: SiteConfig,
    revisions: Revisions,
    notifier: Option<Arc<dyn Notifier>>,
    clock: Clock,
    entropy: Entropy,
    events: Events<Event>,
    snapshot: ArcSwap<Snapshot>,
    /// Held while the store is read.
    turn: tokio::sync::Mutex<Known>,
    looked: Mutex<Instant>,
}

/// The head as it was read last, and the releases that it lists, by number and owner.
#[derive(Default)]
struct Known {
    head: Head,
    kept: HashMap<(u64, u64), Arc<Manifest>>,
}

/// State of a [`StaticSite`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SiteState {
    /// Number of the release in effect in this process.
    pub number: u64,
    /// Time since the last look at the store that succeeded.
    pub age: Duration,
}

impl StaticSite {
    /// Reads the release in effect of the site of this name.
    ///
    /// # Errors
    /// A setting breaks its rule, the store failed, or nothing has been published.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn open(store: Arc<dyn Store>, name: impl Into<Name>, config: SiteConfig) -> Result<Self, SiteError> {
        Self::builder(store, name, config).build().await
    }

    /// Creates a builder with the arguments of [`open`](Self::open). Its `build` returns a future,
    /// which reads.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CStaticSite%3E): `notifier`.
    pub fn builder(store: Arc<dyn Store>, name: impl Into<Name>, config: SiteConfig) -> Builder<Self> {
        Builder::new(StaticSiteSpec { store, name: name.into(), config, notifier: None })
    }

    /// Returns the release in effect in this process: an atomic load. Take one for each page.
    #[inline]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.0.snapshot.load_full()
    }

    /// Looks at the store now, and returns the number of the release that is in effect then.
    ///
    /// # Errors
    /// The store failed, or the release is missing or damaged: the snapshot stays.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn refresh(&self) -> Result<u64, SiteError> {
        let inner = &*self.0;
        let looked = inner.look().await;
        match &looked {
            Ok(_) => {}
            Err(SiteError::Store(error)) => {
                inner.tell(Event::RefreshFailed { kind: error.backend().map(PortError::kind) });
            }
            Err(_) => inner.tell(Event::RefreshFailed { kind: None }),
        }
        looked
    }

    /// Follows the releases until `shutdown` is ready: at each notice, or at the next poll.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let inner = &*self.0;
        let topic = topic(&inner.name);
        let follow = async {
            let mut looks = Looks::new(&inner.clock, &inner.entropy, (inner.notifier.as_ref(), &topic));
            loop {
                looks.is_due().await;
                // A failure is an event; the snapshot stays until the next look.
                let _ = self.refresh().await;
                looks.looked(inner.config.poll_interval);
            }
        };
        race(shutdown, follow).await;
    }

    /// Returns the state, such as for a health check.
    pub fn state(&self) -> SiteState {
        SiteState { number: self.snapshot().number(), age: self.0.clock.now() - *self.0.looked.lock() }
    }

    /// Returns the name of the site.
    pub fn name(&self) -> &Name {
        &self.0.name
    }

    /// Subscribes to the events.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }
}

impl Inner {
    /// Reads the head, and the releases that are new in it, and takes the one in effect. Returns
    /// its number.
    async fn look(&self) -> Result<u64, SiteError> {
        let mut known = self.turn.lock().await;
        let looked = self.clock.now();
        let head = self.revisions.head().await?.map_or_else(Head::default, |(head, _)| head);
        if head.stable() == 0 {
            return Err(SiteError::NothingPublished);
        }
        let number = head.stable();
        if head != known.head {
            let next = self.take(&mut known, head).await?;
            // Before the turn ends: another look may have read a later one by then.
            let from = self.snapshot.swap(next).number();
            if ![0, number].contains(&from) {
                self.tell(Event::Switched { from, number });
            }
        }
        *self.looked.lock() = looked;
        Ok(number)
    }

    async fn take(&self, known: &mut Known, head: Head) -> Result<Arc<Snapshot>, SiteError> {
        let reads = head.rows().map(|row| {
            let (head, held) = (&head, known.kept.get(&row).cloned());
            async move {
                let manifest = match held {
                    Some(held) => Some(held),
                    None if row.0 == head.stable() => read(&self.revisions, head, row.0).await?.map(Arc::new),
                    // One that is pruned meanwhile, or damaged, links no page of this one.
                    None => match read(&self.revisions, head, row.0).await {
                        Ok(found) => found.map(Arc::new),
                        Err(SiteError::Damaged(_)) => None,
                        Err(error) => return Err(error),
                    },
                };
                Ok(manifest.map(|manifest| (row, manifest)))
            }
        });
        let reads = stream::iter(reads).buffer_unordered(self.config.parallelism);
        let kept: HashMap<_, _> = reads.try_filter_map(async |found| Ok(found)).try_collect().await?;
        let current = head.owner(head.stable()).and_then(|owner| kept.get(&(head.stable(), owner)));
        let current = current.ok_or(SiteError::Damaged(head.stable()))?;
        let snapshot = Arc::new(Snapshot::new(current, kept.values(), &self.config));
        *known = Known { head, kept };
        Ok(snapshot)
    }

    fn tell(&self, event: Event) {
        self.events.send(Some(&self.name), self.clock.now(), || event);
    }
}

/// Arguments of a site, beside clock and entropy.
pub struct StaticSiteSpec {
    store: Arc<dyn Store>,
    name: Name,
    config: SiteConfig,
    notifier: Option<Arc<dyn Notifier>>,
}

impl Builder<StaticSite> {
    /// Sets the notifier by which releases arrive earlier than by polling.
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>) -> Self {
        self.spec.notifier = Some(notifier);
        self
    }
}

impl Component for StaticSite {
    type Built = BoxFuture<'static, Result<Self, SiteError>>;
    type Spec = StaticSiteSpec;

    fn assemble(spec: StaticSiteSpec, common: Common) -> Self::Built {
        Box::pin(async move {
            let inner = Inner::new(spec, common)?;
            inner.look().await?;
            Ok(Self(Arc::new(inner)))
        })
    }
}

impl Inner {
    fn new(spec: StaticSiteSpec, common: Common) -> Result<Self, ConfigError> {
        let StaticSiteSpec { store, name, config, notifier } = spec;
        let entropy = common.entropy();
        let Common { clock, hooks, .. } = common;
        let revisions = super::revisions(store, &clock, &name, &config)?;
        let nothing = Manifest { number: 0, at: clock.wall(), source: None, files: Vec::new() };
        let snapshot = ArcSwap::from_pointee(Snapshot::new(&nothing, [], &config));
        let (events, looked) = (hooks.events(), Mutex::new(clock.now()));
        let turn = tokio::sync::Mutex::default();
        Ok(Self { name, config, revisions, notifier, clock, entropy, events, snapshot, turn, looked })
    }
}

impl HasEntropy for StaticSite {}
impl HasEvents<Event> for StaticSite {}

crate::build::debug_fields!(StaticSite, |this| name: this.0.name, number: this.snapshot().number());
