//! Services that follow the releases, and the headers of files.
use std::{
    future::pending,
    sync::{Arc, Mutex},
    task::{Context, Wake, Waker},
};

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use metrics_exporter_prometheus::PrometheusBuilder;
use steadfast::{
    entropy::Entropy,
    metrics::{Metrics, series},
    observe::Event,
    port::PortErrorKind,
    static_content::{CacheControl, SiteError, SitePublisher, StaticSite, StaticSiteEvent},
    store::{DeleteOptions, Key, PutOptions, Store, StoreFuture, Version, Write},
};

use super::{BASE, ONE, Shop, TWO, config, release};
use crate::{
    moody_store::{Mode, Moody},
    world::S,
};

// Guarantee: static_content 2.
#[test]
fn one_snapshot_has_the_links_of_one_release() {
    let shop = Shop::new();
    let publisher = shop.publisher();
    assert!(matches!(shop.now(shop.open()), Err(SiteError::NothingPublished)));
    shop.now(publisher.publish(release(ONE))).unwrap();
    let site = shop.site();
    let page = site.snapshot();
    let before: Vec<_> = ONE.iter().map(|(path, _)| page.url(path).unwrap().to_owned()).collect();
    shop.now(publisher.publish(release(TWO))).unwrap();
    assert_eq!(shop.now(site.refresh()).unwrap(), 2);
    let after: Vec<_> = ONE.iter().map(|(path, _)| page.url(path).unwrap().to_owned()).collect();
    assert_eq!((page.number(), after), (1, before.clone()));
    // What has not changed keeps its address.
    let next = site.snapshot();
    assert_eq!((next.number(), next.url("logo.svg")), (2, Some(&*before[1])));
    assert_ne!(next.url("app.js"), Some(&*before[0]));
    assert_eq!((next.url("nothing.js"), next.integrity("nothing.js")), (None, None));
    let integrity = "sha256-P8TM/nRYcOLA2Z9x8w/wZWyN7dQcwdfT03aw2+aF4vM="; // by `openssl dgst -sha256 -binary | base64`
    assert_eq!(next.integrity("app.js"), Some(integrity));
}

#[test]
fn an_address_is_escaped_below_the_base() {
    let shop = Shop::new();
    shop.now(shop.publisher().publish(release(&[("a b/ü+.js", "x")]).immutable("**"))).unwrap();
    let page = shop.site().snapshot();
    assert_eq!(page.url("a b/ü+.js"), Some(&*format!("{BASE}a%20b/%C3%BC%2B.js")));
}

// Guarantee: static_content 5.
#[test]
fn files_are_kept_for_a_year_pages_are_asked_for_each_time_and_the_rest_is_not_found() {
    let shop = Shop::new();
    let publisher = shop.publisher();
    let files =
        [("index.html", "<one>"), ("index.html.gz", "z"), ("app.js", "one"), ("app.js.br", "b"), ("logo.svg", "l")];
    let of = |files: &[(&str, &'static str)]| release(files).entry_points(["*.html"]);
    shop.now(publisher.publish(of(&files))).unwrap();
    let site = shop.site();
    let page = site.snapshot();
    let key = |path: &str| page.url(path).unwrap().strip_prefix(BASE).unwrap().to_owned();
    let of_file = |path: &str, varies| {
        let caching = page.cache_control(path);
        assert_eq!(caching, CacheControl::Immutable { varies }, "{path}");
        assert_eq!((caching.status(), caching.header()), (200, "public, max-age=31536000, immutable"));
        assert_eq!((caching.etag(), caching.vary()), (None, varies.then_some("Accept-Encoding")));
    };
    of_file(&key("app.js"), true);
    of_file(&format!("{}.br", key("app.js")), true);
    of_file(&key("logo.svg"), false);
    of_file(&page.entry_point("index.html").unwrap().key, true);
    let caching = page.cache_control("index.html");
    assert_eq!((caching.status(), caching.header(), caching.vary()), (200, "no-cache", Some("Accept-Encoding")));
    let etag = caching.etag().unwrap().to_owned();
    assert_eq!(page.entry_point("index.html").unwrap().etag, etag);
    assert_ne!(page.cache_control("index.html.gz").etag(), Some(&*etag), "another representation");
    // Never the page in place of a file that is not there.
    for path in ["app.js", "nothing.js", "index", "", "/", "../index.html", "assets/"] {
        let caching = page.cache_control(path);
        assert_eq!((caching.status(), caching.header()), (404, "no-store"), "{path}");
    }
    assert_eq!(page.entry_point("app.js"), None);

    // The digest is the same after a rollback, and another one for another page.
    let other = [("index.html", "<two>"), ("app.js", "one")];
    shop.now(publisher.publish(of(&other))).unwrap();
    shop.now(site.refresh()).unwrap();
    assert_ne!(site.snapshot().cache_control("index.html").etag(), Some(&*etag));
    // A page of the release before asks for its file late.
    assert_eq!(site.snapshot().cache_control(&key("logo.svg")), CacheControl::Immutable { varies: false });
    shop.now(publisher.rollback(1)).unwrap();
    shop.now(site.refresh()).unwrap();
    assert_eq!(site.snapshot().cache_control("index.html").etag(), Some(&*etag));
}

// Guarantee: static_content 2.
#[test]
fn a_release_arrives_with_its_notice_or_within_a_poll() {
    for has_notices in [true, false] {
        let shop = Shop::new();
        let publisher = shop.publisher();
        shop.now(publisher.publish(release(ONE))).unwrap();
        let mut site = StaticSite::builder(shop.store.clone(), "shop", config()).clock(&shop.world.clock);
        if has_notices {
            site = site.notifier(shop.notifier.clone());
        }
        let site = shop.now(site.entropy(&Entropy::from_seed(5)).build()).unwrap();
        let script = async {
            shop.world.clock.sleep(S(60)).await;
            publisher.publish(release(TWO)).await.unwrap();
            let at = shop.world.clock.now();
            while site.snapshot().number() == 1 {
                shop.world.clock.sleep(crate::world::MS(50)).await;
            }
            shop.world.clock.now() - at
        };
        let took = shop.now(async {
            let run = site.run(pending());
            match futures::future::select(Box::pin(script), Box::pin(run)).await {
                futures::future::Either::Left((took, _)) => took,
                futures::future::Either::Right(_) => panic!("it ended"),
            }
        });
        assert!(took <= if has_notices { crate::world::MS(200) } else { S(36) }, "{has_notices} {took:?}");
    }
}

/// A store that a service may only read.
#[derive(Debug)]
struct ReadOnly(Arc<dyn Store>);

impl Store for ReadOnly {
    forward_store! { 0: capabilities, get, scan }

    fn put<'a>(&'a self, _: Key<'a>, _: Bytes, _: PutOptions) -> StoreFuture<'a, Version> {
        panic!("a write")
    }
    fn delete<'a>(&'a self, _: Key<'a>, _: DeleteOptions) -> StoreFuture<'a, bool> {
        panic!("a write")
    }
    fn batch<'a>(&'a self, _: &'a str, _: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        panic!("a write")
    }
}

#[test]
fn a_service_needs_no_right_to_write() {
    let mut shop = Shop::new();
    let publisher = shop.publisher();
    shop.now(publisher.publish(release(ONE))).unwrap();
    shop.store = Arc::new(ReadOnly(shop.store.clone()));
    let site = shop.site();
    shop.now(publisher.publish(release(TWO))).unwrap();
    assert_eq!(shop.now(site.refresh()).unwrap(), 2);
}

#[test]
fn while_the_store_is_away_the_snapshot_stays_and_grows_old() {
    let mut shop = Shop::new();
    let moody = Arc::new(Moody::new(&shop.world.clock));
    shop.store = moody.clone();
    let publisher = shop.publisher();
    shop.now(publisher.publish(release(ONE))).unwrap();
    let told: Arc<Mutex<Vec<StaticSiteEvent>>> = Arc::default();
    let hook = told.clone();
    let site = StaticSite::builder(shop.store.clone(), "shop", config())
        .clock(&shop.world.clock)
        .on_event(move |event: &Event<StaticSiteEvent>| hook.lock().unwrap().push(event.what.clone()));
    let site = shop.now(site.build()).unwrap();
    moody.is(Mode::Fails(PortErrorKind::Unavailable));
    shop.world.run(S(100), site.run(pending()));
    assert!(site.state().age >= S(100) && site.state().number == 1);
    let failed = StaticSiteEvent::RefreshFailed { kind: Some(PortErrorKind::Unavailable) };
    assert!(told.lock().unwrap().len() >= 2 && told.lock().unwrap().iter().all(|event| *event == failed));
    moody.is(Mode::Well);
    shop.now(publisher.publish(release(TWO))).unwrap();
    shop.world.run(S(40), site.run(pending()));
    assert_eq!(
        (site.state().number, told.lock().unwrap().last()),
        (2, Some(&StaticSiteEvent::Switched { from: 1, number: 2 }))
    );
}

#[test]
fn a_site_tells_its_release_its_age_and_the_failures_of_its_looks() {
    let mut shop = Shop::new();
    let moody = Arc::new(Moody::new(&shop.world.clock));
    shop.store = moody.clone();
    shop.now(shop.publisher().publish(release(ONE))).unwrap();
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let metrics = Metrics::builder().recorder(recorder).clock(&shop.world.clock).build();
    let site = shop.site();
    metrics.watch("s", &site).unwrap();
    shop.world.time.advance(S(7));
    moody.is(Mode::Fails(PortErrorKind::Unavailable));
    assert!(shop.now(site.refresh()).is_err());
    let text = metrics.scrape(|| page.render());
    let mut table: Vec<_> = series().map(|series| series.name).filter(|name| name.contains("_static_site_")).collect();
    table.sort_unstable();
    let values = [("age_seconds", "7"), ("refresh_failures_total", "1"), ("release", "1")];
    assert_eq!(table, values.map(|(name, _)| format!("steadfast_static_site_{name}")));
    for (name, value) in values {
        let line = format!("steadfast_static_site_{name}{{name=\"s\"}} {value}");
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

/// Publishes a release, and lets a future go on, as soon as it is woken.
struct AtOnce(SitePublisher, Mutex<Option<BoxFuture<'static, u64>>>);

impl Wake for AtOnce {
    fn wake(self: Arc<Self>) {
        let Some(waits) = self.1.lock().unwrap().take() else { return };
        self.0.publish(release(ONE)).now_or_never().unwrap().unwrap();
        assert_eq!(waits.now_or_never(), Some(3));
    }
}

// Guarantee: static_content 2.
#[test]
fn of_two_looks_at_once_the_later_one_is_in_effect() {
    let mut shop = Shop::new();
    let moody = Arc::new(Moody::new(&shop.world.clock));
    shop.store = moody.clone();
    let publisher = shop.publisher();
    shop.now(publisher.publish(release(ONE))).unwrap();
    let site = shop.site();
    shop.now(publisher.publish(release(TWO))).unwrap();
    moody.is(Mode::Slow(S(1)));
    let mut first = Box::pin(site.refresh());
    assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // The second one waits for its turn, and has done its look before the first one goes on.
    let other = site.clone();
    let mut second = async move { other.refresh().await.unwrap() }.boxed();
    let wakes = Arc::new(AtOnce(publisher, Mutex::default()));
    assert!(second.as_mut().poll(&mut Context::from_waker(&wakes.clone().into())).is_pending());
    *wakes.1.lock().unwrap() = Some(second);
    moody.is(Mode::Well);
    shop.world.time.advance(S(1));
    assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    assert!(wakes.1.lock().unwrap().is_none());
    assert_eq!((site.snapshot().number(), shop.now(site.refresh()).unwrap()), (3, 3));
}

// A name of the bundler has one content, and compressed forms may come with a later release.
#[test]
fn a_file_that_one_kept_release_has_compressed_varies_in_each_process() {
    let shop = Shop::new();
    let publisher = shop.publisher();
    let of = |files: &[(&str, &'static str)]| release(files).immutable("assets/**");
    let files = [("assets/app.js", "x"), ("assets/app.js.br", "b")];
    for files in [&files[..], &files[..1], &files[..], &files[..1]] {
        shop.now(publisher.publish(of(files))).unwrap();
    }
    for _ in 0..20 {
        assert!(shop.site().snapshot().cache_control("assets/app.js").vary().is_some());
    }
}
