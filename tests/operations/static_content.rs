//! Releases of a site through the public API, into a bucket in memory.
mod crashes;
mod directories;
mod pruning;
mod publishing;
mod serving;

use std::sync::Arc;

use steadfast::{
    entropy::Entropy,
    lease::{InMemoryLease, Lease},
    notify::InMemoryNotifier,
    static_content::{Release, SiteConfig, SiteError, SitePublisher, StaticSite},
    store::{InMemoryStore, Key, Scan, Store},
};

use crate::{
    bucket::Bucket,
    world::{S, World},
};

/// A bucket, and what all processes of a site share.
pub(super) struct Shop {
    pub(super) world: World,
    pub(super) bucket: Bucket,
    pub(super) store: Arc<dyn Store>,
    pub(super) leases: Arc<dyn Lease>,
    pub(super) notifier: Arc<InMemoryNotifier>,
}

pub(super) const BASE: &str = "https://cdn.example/site/";

pub(super) fn config() -> SiteConfig {
    SiteConfig::at(BASE)
}

impl Shop {
    pub(super) fn new() -> Self {
        let world = World::new();
        let store = Arc::new(InMemoryStore::builder().clock(&world.clock).build());
        let leases = Arc::new(InMemoryLease::builder().clock(&world.clock).build());
        Self { world, bucket: Bucket::new(), store, leases, notifier: Arc::default() }
    }

    /// Returns a publisher with these settings.
    pub(super) fn with(&self, seed: u64, config: SiteConfig) -> SitePublisher {
        let bucket = Arc::new(self.bucket.clone());
        SitePublisher::builder(bucket, self.store.clone(), self.leases.clone(), "shop", config)
            .clock(&self.world.clock)
            .entropy(&Entropy::from_seed(seed))
            .notifier(self.notifier.clone())
            .build()
            .unwrap()
    }

    pub(super) fn publisher(&self) -> SitePublisher {
        self.with(1, config())
    }

    pub(super) async fn open(&self) -> Result<StaticSite, SiteError> {
        let site = StaticSite::builder(self.store.clone(), "shop", config());
        site.clock(&self.world.clock).entropy(&Entropy::from_seed(9)).notifier(self.notifier.clone()).build().await
    }

    /// Replaces a release in the store with bytes that are none.
    pub(super) fn damage(&self, number: u64) {
        let scan = Scan::partition("site shop");
        let rows = self.now(self.store.scan(&scan)).unwrap().rows;
        let row = rows.iter().find(|row| row.row.starts_with(&format!("rev {number:020} "))).unwrap();
        let put = self.store.put(Key::new("site shop", &row.row), "no release".into(), Default::default());
        self.now(put).unwrap();
    }

    /// Runs a future that ends within an hour.
    pub(super) fn now<F: Future>(&self, future: F) -> F::Output {
        self.world.run(S(3600), future).expect("it ends within an hour")
    }

    pub(super) fn site(&self) -> StaticSite {
        self.now(self.open()).unwrap()
    }

    /// Asserts that each link of the release in effect leads to an object with the bytes of this release.
    pub(super) fn assert_serves(&self, release: &[(&str, &'static str)]) {
        let page = self.site().snapshot();
        assert_eq!(page.paths().count(), release.len());
        for (path, text) in release {
            let key = page.url(path).unwrap().strip_prefix(BASE).unwrap().to_owned();
            assert_eq!(self.bucket.read(&key).as_deref(), Some(text.as_bytes()), "{path} at {key}");
        }
    }
}

/// Returns a release of these files.
pub(super) fn release(files: &[(&str, &'static str)]) -> Release {
    files.iter().fold(Release::new(), |release, (path, text)| release.file(*path, *text))
}

pub(super) const ONE: &[(&str, &str)] = &[("app.js", "one"), ("logo.svg", "logo"), ("index.html", "<one>")];
pub(super) const TWO: &[(&str, &str)] = &[("app.js", "two"), ("logo.svg", "logo"), ("index.html", "<two>")];
