//! Publishing releases: a type of its own, so that its process alone may write.
use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::ObjectStore;

use super::{
    Release, SiteConfig, SiteError, SitePublisherEvent as Event,
    bucket::{Bucket, Seen},
    manifest::{Content, Manifest},
    session::{Session, read},
    topic,
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents},
    config::{ConfigError, Name, require},
    entropy::Entropy,
    lease::Lease,
    notify::Notifier,
    observe::{Events, Subscription},
    port::{Capability, ask},
    revisions::Revisions,
    store::Store,
    time::{Clock, Timestamp},
};

/// Most releases that are kept. The head lists them, and each process reads it at each look.
const MOST: usize = 1_000;

/// Publishes the releases of one site. A clone is the same. The [module's page](super) states the
/// guarantees.
#[derive(Clone)]
pub struct SitePublisher(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) name: Name,
    pub(super) config: SiteConfig,
    pub(super) bucket: Bucket,
    pub(super) revisions: Revisions,
    leases: Arc<dyn Lease>,
    lease: String,
    notifier: Option<Arc<dyn Notifier>>,
    pub(super) clock: Clock,
    entropy: Entropy,
    events: Events<Event>,
}

/// A release that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReleaseInfo {
    /// Its number.
    pub number: u64,
    /// Time of its publication, by the publisher's clock.
    pub at: Timestamp,
    /// Number of the release that a rollback has published anew.
    pub source: Option<u64>,
    /// `true` for the release in effect.
    pub is_current: bool,
}

/// Result of [`SitePublisher::check`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SiteCheck {
    /// Number of the release in effect.
    pub number: u64,
    /// Names of its objects that are missing, or have another size.
    pub missing: Vec<String>,
}

impl SitePublisher {
    /// Creates a publisher of the site of this name: into this bucket, with the releases in this
    /// store, one publisher at a time by this lease.
    ///
    /// # Errors
    /// If a setting breaks its rule, or a backend lacks a capability.
    pub fn new(
        bucket: Arc<dyn ObjectStore>,
        store: Arc<dyn Store>,
        leases: Arc<dyn Lease>,
        name: impl Into<Name>,
        config: SiteConfig,
    ) -> Result<Self, ConfigError> {
        Self::builder(bucket, store, leases, name, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new).
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CSitePublisher%3E): `notifier`.
    pub fn builder(
        bucket: Arc<dyn ObjectStore>,
        store: Arc<dyn Store>,
        leases: Arc<dyn Lease>,
        name: impl Into<Name>,
        config: SiteConfig,
    ) -> Builder<Self> {
        Builder::new(SitePublisherSpec { bucket, store, leases, name: name.into(), config, notifier: None })
    }

    /// Uploads the files that the release in effect has not, looks at each file by HEAD, and then
    /// puts the release into effect. Returns its number.
    ///
    /// # Errors
    /// The release that was in effect stays, except that an error of the store, or a lost
    /// lease, may leave it open.
    ///
    /// # Cancel safety
    /// The release is in effect as a whole or not at all. The lease stays until its term is over.
    /// Files that were uploaded are deleted by [`prune`](Self::prune), or used by the next attempt.
    pub async fn publish(&self, release: Release) -> Result<u64, SiteError> {
        let (files, bytes) = release.planned()?;
        let session = self.begin().await?;
        let work = async {
            let (number, known) = self.next(&session).await?;
            let manifest = Manifest { number, at: self.now(known.as_ref()), source: None, files };
            // Before the first upload: the row tells `prune` which files a crash has left.
            let attempt = self.0.entropy.next_u64();
            session.revisions.write(number, attempt, manifest.encode()).await?;
            if session.head.stable() == 0 {
                self.probe().await?;
            }
            let objects: HashMap<_, _> = known.iter().flat_map(Manifest::objects).collect();
            let uploads = manifest.objects().map(|(key, content)| {
                let (known, bytes) = (objects.get(&key).copied(), &bytes[&key]);
                async move { self.upload(&key, content, bytes, known).await }
            });
            let uploaded: Vec<_> =
                stream::iter(uploads).buffer_unordered(self.0.config.parallelism).try_collect().await?;
            // The release before is in effect until now, however long that took.
            let manifest = Manifest { at: self.now(known.as_ref()), ..manifest };
            self.switch(&session, manifest, uploaded.iter().filter(|new| **new).count()).await?;
            session.revisions.discard(number, attempt).await;
            Ok(number)
        };
        session.during(work).await
    }

    /// Puts an earlier release into effect again, under a new number, which it returns. It uploads
    /// nothing, and looks at each file by HEAD before.
    ///
    /// # Errors
    /// [`SiteError::NotKept`], [`SiteError::Missing`], or those of [`publish`](Self::publish).
    ///
    /// # Cancel safety
    /// Same as [`publish`](Self::publish).
    pub async fn rollback(&self, number: u64) -> Result<u64, SiteError> {
        let session = self.begin().await?;
        let work = async {
            let found = session.manifest(number).await?.ok_or(SiteError::NotKept(number))?;
            let (next, known) = self.next(&session).await?;
            if let Some(missing) = self.missing(&found).await?.into_iter().next() {
                return Err(SiteError::Missing(missing));
            }
            let manifest = Manifest { number: next, at: self.now(known.as_ref()), source: Some(number), ..found };
            self.switch(&session, manifest, 0).await?;
            Ok(next)
        };
        session.during(work).await
    }

    /// Looks at each file of the release in effect by HEAD. It takes no lease.
    ///
    /// # Errors
    /// The store or the bucket failed, or nothing has been published.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn check(&self) -> Result<SiteCheck, SiteError> {
        let (head, _) = self.0.revisions.head().await?.ok_or(SiteError::NothingPublished)?;
        let number = Some(head.stable()).filter(|number| *number > 0).ok_or(SiteError::NothingPublished)?;
        let manifest = read(&self.0.revisions, &head, number).await?.ok_or(SiteError::Damaged(number))?;
        Ok(SiteCheck { number: manifest.number, missing: self.missing(&manifest).await? })
    }

    /// Returns the releases that are kept, with the newest first.
    ///
    /// # Errors
    /// The store failed, or a release is damaged.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn releases(&self) -> Result<Vec<ReleaseInfo>, SiteError> {
        let Some((head, _)) = self.0.revisions.head().await? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for (number, _) in head.rows().rev() {
            // One that is pruned meanwhile is none.
            if let Some(Manifest { at, source, .. }) = read(&self.0.revisions, &head, number).await? {
                found.push(ReleaseInfo { number, at, source, is_current: number == head.stable() });
            }
        }
        Ok(found)
    }

    /// Returns the name of the site.
    pub fn name(&self) -> &Name {
        &self.0.name
    }

    /// Subscribes to the events.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    /// Acquires the lease for one piece of work.
    pub(super) async fn begin(&self) -> Result<Session<'_>, SiteError> {
        let Inner { leases, lease, config, clock, entropy, revisions, .. } = &*self.0;
        Session::begin((leases, lease, entropy.id()), (config, clock), revisions).await
    }

    /// Returns the next number, and the latest release that can be read: one that cannot is no
    /// reason to refuse those that replace it.
    async fn next(&self, session: &Session<'_>) -> Result<(u64, Option<Manifest>), SiteError> {
        let head = &session.head;
        require(head.rows().count() < MOST, "release", "must not be the 1,001st that is kept: prune")?;
        for (number, _) in head.rows().rev() {
            match session.manifest(number).await {
                Ok(None) | Err(SiteError::Damaged(_)) => {}
                Ok(found) => return Ok((head.last() + 1, found)),
                Err(error) => return Err(error),
            }
        }
        Ok((head.last() + 1, None))
    }

    /// Returns the time of a release: not before that of the latest one that can be read.
    fn now(&self, known: Option<&Manifest>) -> Timestamp {
        let now = self.0.clock.wall();
        known.map_or(now, |known| now.max(known.at))
    }

    /// Puts a release into effect, which has the next number.
    async fn switch(&self, session: &Session<'_>, manifest: Manifest, uploaded: usize) -> Result<(), SiteError> {
        let Manifest { number, source, .. } = manifest;
        let owner = self.0.entropy.next_u64();
        session.revisions.write(number, owner, manifest.encode()).await?;
        // Only `prune` drops releases, together with their files.
        session.move_head(&session.head.publish(owner, None, usize::MAX)).await?;
        self.tell(Event::Published { number, source, uploaded });
        if let Some(notifier) = &self.0.notifier {
            let topic = topic(&self.0.name);
            // A lost notice is compensated by polling.
            let publish = notifier.publish(&topic, number.to_string().into());
            let _ = ask(&self.0.clock, self.0.config.call_timeout, publish).await;
        }
        Ok(())
    }

    /// Makes sure that the bucket has an object with this content. Returns `true` if it uploaded
    /// it.
    async fn upload(
        &self,
        key: &str,
        content: Content,
        bytes: &Bytes,
        known: Option<Content>,
    ) -> Result<bool, SiteError> {
        let bucket = &self.0.bucket;
        let other = || SiteError::OtherBytes(key.to_owned());
        match known {
            Some(known) if known != content => return Err(other()),
            Some(_) => match bucket.head(key).await? {
                Seen::OfSize(size) if size == content.size => return Ok(false),
                Seen::OfSize(_) => return Err(other()),
                Seen::Absent => {}
            },
            None => {}
        }
        let is_new = bucket.create(key, bytes).await?;
        if !is_new && bucket.holds(key, content).await? == Some(false) {
            return Err(other());
        }
        match bucket.head(key).await? {
            Seen::OfSize(size) if size == content.size => Ok(is_new),
            _ => Err(SiteError::Missing(key.to_owned())),
        }
    }

    /// Refuses a bucket that overwrites what must not exist, before the first release.
    async fn probe(&self) -> Result<(), SiteError> {
        let Inner { bucket, name, entropy, .. } = &*self.0;
        let (key, bytes) = (format!("{name}.probe.{}", entropy.id()), Bytes::from_static(b"probe"));
        bucket.create(&key, &bytes).await?;
        let is_refused = !bucket.create(&key, &bytes).await?;
        bucket.delete(&key).await?;
        if is_refused { Ok(()) } else { Err(SiteError::NoCreateOnly) }
    }

    /// Returns the names of the objects that are missing, or have another size.
    async fn missing(&self, manifest: &Manifest) -> Result<Vec<String>, SiteError> {
        let looks = manifest.objects().map(|(key, content)| async move {
            let is_there = self.0.bucket.head(&key).await? == Seen::OfSize(content.size);
            Ok::<_, SiteError>((!is_there).then_some(key))
        });
        let looks = stream::iter(looks).buffer_unordered(self.0.config.parallelism);
        let mut missing: Vec<_> = looks.try_filter_map(async |missing| Ok(missing)).try_collect().await?;
        missing.sort();
        Ok(missing)
    }

    pub(super) fn tell(&self, event: Event) {
        self.0.events.send(Some(&self.0.name), self.0.clock.now(), || event);
    }
}

/// Arguments of a publisher, beside clock and entropy.
pub struct SitePublisherSpec {
    bucket: Arc<dyn ObjectStore>,
    store: Arc<dyn Store>,
    leases: Arc<dyn Lease>,
    name: Name,
    config: SiteConfig,
    notifier: Option<Arc<dyn Notifier>>,
}

impl Builder<SitePublisher> {
    /// Sets the notifier that tells the services of a release earlier than they poll.
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>) -> Self {
        self.spec.notifier = Some(notifier);
        self
    }
}

impl Component for SitePublisher {
    type Built = Result<Self, ConfigError>;
    type Spec = SitePublisherSpec;

    fn assemble(spec: SitePublisherSpec, common: Common) -> Self::Built {
        let SitePublisherSpec { bucket, store, leases, name, config, notifier } = spec;
        let entropy = common.entropy();
        let Common { clock, hooks, .. } = common;
        let revisions = super::revisions(store.clone(), &clock, &name, &config)?;
        store.capabilities().require(Capability::Fencing).map_err(|lacks| lacks.refuse("store"))?;
        let can = leases.capabilities();
        can.require(Capability::Fencing).map_err(|lacks| lacks.refuse("leases"))?;
        let lease = format!("site {name}");
        require(lease.len() <= can.max_key(), "name", "must not be longer than the lease's keys")?;
        let bucket = Bucket::new(bucket, clock.clone(), config.call_timeout);
        let events = hooks.events();
        Ok(Self(Arc::new(Inner { name, config, bucket, revisions, leases, lease, notifier, clock, entropy, events })))
    }
}

impl HasEntropy for SitePublisher {}
impl HasEvents<Event> for SitePublisher {}

crate::build::debug_fields!(SitePublisher, |this| name: this.0.name);
