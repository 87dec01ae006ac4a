//! Static content hosting: releases of a site's files in a bucket, which is served by a CDN or a
//! file server. Enabled by feature `object_store`.
//!
//! A deploy job uploads the files of a release under names that never change their bytes, and then
//! switches. The services render their pages from one snapshot of the release in effect. Old files
//! stay until no page can ask for them.
//!
//! # When, and when not
//!
//! Use it where scripts, styles and images need no server of yours: less load, and cost by use. It
//! fits where a new release must not break the pages that are open. It does not fit content that
//! changes before it is delivered, very few files (serve them from the service), or private files
//! (give out a key for each of them).
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `base` | required | address of the bucket or its CDN, with TLS except on loopback |
//! | `keep_releases` | 5 | latest releases that pruning keeps |
//! | `keep_for` | 7 d | time for which pruning keeps a release after it was replaced |
//! | `poll_interval` | 30 s ± 20 % | without a notice a release is looked for after 36 s at most |
//! | `parallelism` | 8 | requests at a time |
//! | `call_timeout` | 5 s | of one request; uploads and downloads have 60 times as long |
//! | `lease_term` | 30 s | wait of the next publisher after the death of one |
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use object_store::{ObjectStoreExt as _, memory::InMemory};
//! use steadfast::{
//!     lease::InMemoryLease,
//!     static_content::{Release, SiteConfig, SitePublisher, StaticSite},
//!     store::InMemoryStore,
//! };
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // In a service: a bucket of a cloud, and a store and a lease that all processes share.
//! let bucket = Arc::new(InMemory::new());
//! let (store, leases) = (Arc::new(InMemoryStore::new()), Arc::new(InMemoryLease::new()));
//! let config = SiteConfig::at("https://cdn.example/");
//!
//! // In the deploy job. `Release::from_dir("dist")` reads the files of a bundler.
//! let publisher =
//!     SitePublisher::new(bucket.clone(), store.clone(), leases, "shop", config.clone())?;
//! let release = |text: &str| {
//!     Release::new()
//!         .file("index.html", format!("<h1>{text}</h1>"))
//!         .file("app.js", format!("say('{text}')"))
//!         .entry_points(["index.html"])
//! };
//! let first = publisher.publish(release("one")).await?;
//!
//! // In the service: one snapshot for one page.
//! let site = StaticSite::open(store, "shop", config).await?;
//! let page = site.snapshot();
//! let script = page.url("app.js").unwrap();
//! assert!(script.starts_with("https://cdn.example/app.") && script.ends_with(".js"));
//! assert!(page.integrity("app.js").unwrap().starts_with("sha256-"));
//!
//! // A new release: the old file stays, for pages that are open.
//! publisher.publish(release("two")).await?;
//! site.refresh().await?; // `run` does it at each notice and poll
//! assert_ne!(site.snapshot().url("app.js"), Some(script));
//! let old = script.strip_prefix("https://cdn.example/").unwrap();
//! assert_eq!(site.snapshot().cache_control(old).status(), 200);
//! assert!(bucket.head(&old.into()).await.is_ok());
//!
//! // Back to the first one: nothing is uploaded.
//! publisher.rollback(first).await?;
//! site.refresh().await?;
//! assert_eq!(site.snapshot().url("app.js"), Some(script));
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use object_store::memory::InMemory;
//! use steadfast::{
//!     lease::InMemoryLease,
//!     notify::InMemoryNotifier,
//!     static_content::{CacheControl, Release, SiteConfig, SitePublisher, StaticSite},
//!     store::InMemoryStore,
//! };
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (bucket, leases) = (Arc::new(InMemory::new()), Arc::new(InMemoryLease::new()));
//! # let (store, notifier) = (Arc::new(InMemoryStore::new()), Arc::new(InMemoryNotifier::new()));
//! # let dist = tempfile::tempdir()?;
//! # std::fs::create_dir(dist.path().join("assets"))?;
//! # for path in ["index.html", "logo.svg", "assets/app.3f2a.js"] {
//! #     std::fs::write(dist.path().join(path), path)?;
//! # }
//! let config = SiteConfig::at("https://cdn.example/").keep_for(Duration::from_secs(14 * 86_400));
//! let publisher = SitePublisher::builder(bucket, store.clone(), leases, "shop", config.clone())
//!     .notifier(notifier.clone())
//!     .build()?;
//!
//! // 1. The output of a bundler: its own names are kept, since files refer to each other by them.
//! let release = Release::from_dir(dist.path())?.entry_points(["*.html"]).immutable("assets/**");
//! publisher.publish(release).await?;
//!
//! // 2. A service follows the releases, each of them at its notice.
//! let site = StaticSite::builder(store, "shop", config).notifier(notifier).build().await?;
//! let following = site.clone();
//! let follow = async move { following.run(tokio::time::sleep(Duration::from_secs(60))).await };
//! # follow.await;
//!
//! // 3. A page of a template: all links of one snapshot.
//! let page = site.snapshot();
//! let html = format!(r#"<img src="{}">"#, page.url("logo.svg").unwrap());
//! # assert!(html.contains("https://cdn.example/logo."));
//!
//! // 4. The headers of a file, where the service or a proxy of yours serves the bucket.
//! let caching = site.snapshot().cache_control("index.html");
//! assert_eq!(caching.header(), "no-cache");
//! assert!(caching.etag().is_some());
//! assert_eq!(site.snapshot().cache_control("nothing.js"), CacheControl::Unknown);
//!
//! // 5. Each night: delete what no page asks for, and look if anything is missing.
//! publisher.prune().await?;
//! assert_eq!(publisher.check().await?.missing, Vec::<String>::new());
//! # Ok(())
//! # }
//! ```
//!
//! # Names
//!
//! | file | object | may change with the next release |
//! |---|---|---|
//! | `logo.svg` | `logo.<16 digits of SHA-256>.svg` | yes: pages link it by [`url`](Snapshot::url) |
//! | `assets/app.3f2a.js`, [immutable](Release::immutable) | the same | no: other bytes need another name |
//! | `index.html`, an [entry point](Release::entry_points) | `index.<16 digits>.html` | yes: the service reads it by [`entry_point`](Snapshot::entry_point) |
//! | `app.js.br`, `app.js.gz` beside `app.js` | `app.<16 digits>.js.br` | goes with `app.js` |
//!
//! No file is rewritten. A script or a style that names another file must name an immutable one;
//! bundlers give such names.
//!
//! # Composing
//!
//! A CDN or a file server serves the bucket: a name has one content for ever, so that no cache has
//! to be purged. Objects carry `Cache-Control` and `Content-Type` where the bucket keeps them. A
//! server of your own asks [`cache_control`](Snapshot::cache_control). `state().age` is a check of
//! `health`.
//!
//! # Guarantees
//!
//! 1. A release is in effect when each of its files was uploaded and seen by HEAD, and not before.
//!    Objects are created, and never overwritten: a name that exists with other bytes is refused. A
//!    crash leaves the release before, complete.
//! 2. No page of a snapshot links a missing file, from its first second until `keep_for` after the
//!    release was replaced. One snapshot has the links of one release.
//! 3. One publisher is at work, by the lease. The head moves under the token of the lease, so one
//!    that was paused cannot move it after the next one has begun. A file is deleted only within
//!    the term of the lease, and only if no release that is kept has it.
//! 4. [`rollback`](SitePublisher::rollback) uploads nothing. It looks at each file, takes a new
//!    number, and sends the notice of a release.
//! 5. [`cache_control`](Snapshot::cache_control) of a file is a year, of an entry point `no-cache`
//!    with its digest as `ETag`, and of an unknown path `no-store` with 404, also if an entry point
//!    could answer.
//!
//! Refused: a base without TLS except on loopback, a bucket that overwrites what must not exist, a
//! file that is both entry point and immutable, a pattern without a file, a link out of the
//! directory.
//!
//! # Cancel safety
//!
//! A dropped [`publish`](SitePublisher::publish) or [`rollback`](SitePublisher::rollback) is made
//! as a whole or not at all. A dropped [`prune`](SitePublisher::prune) is continued by the next
//! one. Each leaves the lease until its term is over. A dropped [`refresh`](StaticSite::refresh) or
//! [`run`](StaticSite::run) leaves the snapshot.
//!
//! # Events
//!
//! The variants of [`SitePublisherEvent`]: published, pruned. Those of [`StaticSiteEvent`]:
//! switched, refresh failed.
//!
//! # Pitfalls
//!
//! - A delete that a network delivers after `call_timeout` may hit a file that the next release
//!   counts on. Then [`check`](SitePublisher::check) names it, and publishing again uploads it.
//! - A process that cannot reach the store renders its last snapshot. After `keep_for` its files
//!   may be gone: let a health check look at [`age`](SiteState::age).
//! - A replica that has not seen the newest release yet calls its files unknown, while another one
//!   links them. If your service serves the files itself, [`refresh`](StaticSite::refresh) before a
//!   404, though not for each of a flood of unknown paths.
//! - A release is in memory while it is published, all of it.
//! - A bundler that writes other bytes under the same name is refused: let names have a digest of
//!   the content.
//! - One bucket, or one `PrefixStore` of `object_store`, for one site: two sites that share one
//!   delete each other's files.
//! - Times of releases are those of the deploy jobs' clocks. A job whose clock is days ahead prunes
//!   too early, and a release of it keeps all others until that time comes. One that is behind lets
//!   the release before look replaced for long.
//! - A machine that is suspended between a look at its clock and a delete, and whose clock does not
//!   count that time, deletes after its lease.
//! - The lists of the files are rows of the store: NATS limits one to 1 MiB, about 10,000 files.
//! - Another lease begins its tokens anew, and the head refuses tokens below those of the one
//!   before. Move to another lease with another name of the site.
//! - Size and name are compared by HEAD, not the bytes: let nobody else write to the bucket.
//! - A cloud may count a request of HEAD for each file and release.
//! - An upload that arrives after its publisher has failed or lost the lease may stay as an object
//!   that no release lists.
//! - All files of the directory are published, also those whose names begin with a dot.
//!
//! # Source
//!
//! "Static Content Hosting", Cloud Design Patterns. Digests in names, and old files that stay for
//! old pages, are known from deployments of Rails' asset pipeline and of Vercel ("skew
//! protection"). `immutable` is RFC 8246, `integrity` is Subresource Integrity (W3C).
mod bucket;
mod cache;
mod config;
mod error;
mod event;
mod manifest;
mod pattern;
mod prune;
mod publisher;
mod release;
mod session;
mod site;
mod snapshot;

pub use cache::CacheControl;
pub use config::SiteConfig;
pub use error::SiteError;
pub use event::{SitePublisherEvent, StaticSiteEvent};
pub use prune::Pruned;
pub use publisher::{ReleaseInfo, SiteCheck, SitePublisher};
pub use release::Release;
pub use site::{SiteState, StaticSite};
pub use snapshot::{EntryPoint, Snapshot};

use std::sync::Arc;

use self::manifest::Manifest;
use crate::{
    config::{ConfigError, Name, require},
    port::Capability,
    revisions::Revisions,
    store::Store,
    time::Clock,
};

/// Returns the releases of a site.
fn revisions(store: Arc<dyn Store>, clock: &Clock, name: &Name, config: &SiteConfig) -> Result<Revisions, ConfigError> {
    config.check()?;
    let can = store.capabilities();
    can.require(Capability::Linearizable).map_err(|lacks| lacks.refuse("store"))?;
    let is_plain = |next: char| next.is_ascii_alphanumeric() || "-_.".contains(next);
    let has_only = !name.as_str().is_empty() && name.as_str().chars().all(is_plain);
    require(has_only, "name", "must have letters, digits, `-`, `_` and `.` alone")?;
    let revisions = Revisions::new(store, clock.clone(), config.call_timeout, format!("site {name}"));
    require(revisions.longest_key() <= can.max_key(), "name", "must not be longer than the store's keys")?;
    Ok(revisions)
}

/// Returns the topic of the notices of a site.
fn topic(name: &Name) -> String {
    format!("steadfast/site/{name}")
}
