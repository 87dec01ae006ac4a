//! Crashes at each request, to the store, the lease and the bucket, and futures that are dropped.
use std::{sync::Arc, time::Duration};

use futures::future::pending;
use steadfast::{
    entropy::Entropy,
    lease::{Acquired, Held, Lease, LeaseFuture, Renewed},
    port::{Capabilities, FencingToken},
    static_content::{SiteConfig, SiteError, SitePublisher},
    testing::{CrashingProcess, crash_at_every_write, drop_at_every_await, fail_at_every_write},
};

use super::{ONE, Shop, TWO, config, release};
use crate::{
    moody_store::{Mode, Moody},
    world::{MS, S, Slowed},
};

/// A lease whose renewals are never answered.
#[derive(Debug)]
pub(super) struct Deaf(pub(super) Arc<dyn Lease>);

impl Lease for Deaf {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn acquire<'a>(&'a self, name: &'a str, holder: &'a str, term: Duration) -> LeaseFuture<'a, Acquired> {
        self.0.acquire(name, holder, term)
    }
    fn renew<'a>(&'a self, _: &'a str, _: &'a str, _: FencingToken, _: Duration) -> LeaseFuture<'a, Renewed> {
        Box::pin(pending())
    }
    fn release<'a>(&'a self, _: &'a str, _: &'a str, _: FencingToken) -> LeaseFuture<'a, ()> {
        Box::pin(pending())
    }
    fn read<'a>(&'a self, name: &'a str) -> LeaseFuture<'a, Option<Held>> {
        self.0.read(name)
    }
    fn request_release<'a>(&'a self, name: &'a str, token: FencingToken) -> LeaseFuture<'a, ()> {
        self.0.request_release(name, token)
    }
}

/// Returns a publisher that reaches everything through a process.
fn within(shop: &Shop, process: &CrashingProcess, config: SiteConfig) -> SitePublisher {
    let bucket = shop.bucket.behind(|link| process.store(link));
    SitePublisher::builder(
        bucket,
        process.store(shop.store.clone()),
        process.lease(shop.leases.clone()),
        "shop",
        config,
    )
    .clock(&shop.world.clock)
    .entropy(&Entropy::from_seed(7))
    .build()
    .unwrap()
}

/// Asserts that the site is complete, and that another publisher goes on and leaves nothing behind.
fn recovers(shop: &Shop, next: &SitePublisher) {
    assert_eq!(shop.now(next.check()).unwrap().missing, [""; 0]);
    shop.world.time.advance(S(30));
    shop.now(next.publish(release(TWO))).unwrap();
    shop.assert_serves(TWO);
    shop.world.time.advance(S(9 * 24 * 3600));
    shop.now(next.prune()).unwrap();
    // One release is kept, and nothing else is there.
    assert_eq!(shop.bucket.keys().len(), TWO.len(), "{:?}", shop.bucket.keys());
}

// Guarantee: static_content 1.
#[test]
fn a_publisher_that_crashes_at_any_request_leaves_a_complete_release_and_nothing_that_stays() {
    let requests = crash_at_every_write(|process| {
        let shop = Shop::new();
        let config = config().keep_releases(1).parallelism(2);
        let good = shop.with(1, config.clone());
        shop.now(good.publish(release(ONE))).unwrap();
        let crashes = within(&shop, process, config);
        let work = async {
            crashes.publish(release(TWO)).await.unwrap();
            crashes.rollback(1).await.unwrap();
        };
        let _ = shop.world.run(S(60), process.run(work));
        let number = shop.now(good.check()).unwrap().number;
        shop.assert_serves(if number == 2 { TWO } else { ONE });
        recovers(&shop, &good);
    });
    assert!(requests >= 20, "{requests}");
}

// Guarantee: static_content 1.
#[test]
fn the_first_release_of_a_site_is_in_effect_as_a_whole_or_not_at_all() {
    let requests = crash_at_every_write(|process| {
        let shop = Shop::new();
        let config = config().keep_releases(1).parallelism(2);
        let crashes = within(&shop, process, config.clone());
        let _ = shop.world.run(S(60), process.run(async { crashes.publish(release(ONE)).await.unwrap() }));
        match shop.now(shop.open()) {
            Ok(_) => shop.assert_serves(ONE),
            Err(error) => assert!(matches!(error, SiteError::NothingPublished), "{error}"),
        }
        shop.world.time.advance(S(30));
        let good = shop.with(1, config);
        shop.now(good.publish(release(ONE))).unwrap();
        shop.assert_serves(ONE);
    });
    assert!(requests >= 12, "{requests}");
}

// Guarantee: static_content 2, 3.
#[test]
fn a_pruner_that_crashes_at_any_request_has_deleted_no_file_that_a_kept_release_has() {
    let requests = crash_at_every_write(|process| {
        let shop = Shop::new();
        let config = config().keep_releases(1).parallelism(2);
        let good = shop.with(1, config.clone());
        for files in [ONE, TWO, &[("app.js", "three"), ("logo.svg", "logo"), ("index.html", "<two>")]] {
            shop.now(good.publish(release(files))).unwrap();
        }
        shop.world.time.advance(S(9 * 24 * 3600));
        let crashes = within(&shop, process, config);
        let _ = shop.world.run(S(60), process.run(async { crashes.prune().await.unwrap() }));
        // Each release that is still kept can be returned to.
        shop.world.time.advance(S(30));
        for one in shop.now(good.releases()).unwrap() {
            shop.now(good.rollback(one.number)).unwrap();
        }
        recovers(&shop, &good);
    });
    assert!(requests >= 12, "{requests}");
}

// Guarantee: static_content 1.
#[test]
fn a_publisher_that_repeats_what_failed_has_its_release_in_the_end() {
    let requests = fail_at_every_write(|process| {
        let shop = Shop::new();
        let config = config().keep_releases(1).parallelism(2);
        let good = shop.with(1, config.clone());
        shop.now(good.publish(release(ONE))).unwrap();
        let fails = within(&shop, process, config);
        let work = async {
            while fails.publish(release(TWO)).await.is_err() {
                // At most a lease that was granted without an answer.
                shop.world.clock.sleep(S(31)).await;
            }
            while fails.prune().await.is_err() {
                shop.world.clock.sleep(S(31)).await;
            }
        };
        shop.world.run(S(600), process.run(work)).unwrap();
        shop.assert_serves(TWO);
        recovers(&shop, &good);
    });
    assert!(requests >= 15, "{requests}");
}

// Guarantee: static_content 1, 3.
#[test]
fn a_publisher_dropped_at_every_await_leaves_a_complete_release() {
    let mut shop = Shop::new();
    let moody = Arc::new(Moody::new(&shop.world.clock));
    shop.store = moody.clone();
    let slow = shop.bucket.behind(|link| {
        let slow = Moody::new(&shop.world.clock);
        slow.is(Mode::Slow(MS(10)));
        Arc::new(Slowed { by: slow, store: link })
    });
    let good = shop.with(1, config().keep_releases(1));
    shop.now(good.publish(release(ONE))).unwrap();
    moody.is(Mode::Slow(MS(10)));
    let dropped =
        SitePublisher::builder(slow, shop.store.clone(), shop.leases.clone(), "shop", config().keep_releases(1));
    let dropped = dropped.clock(&shop.world.clock).build().unwrap();
    let mut check = |_| {
        // Until the lease of the dropped one is over.
        shop.world.time.advance(S(30));
        assert_eq!(shop.now(good.check()).unwrap().missing, [""; 0]);
    };
    let polls = drop_at_every_await(&shop.world.time, || dropped.publish(release(TWO)), &mut check);
    assert!(polls >= 8, "{polls}");
    let polls = drop_at_every_await(&shop.world.time, || dropped.rollback(1), &mut check);
    assert!(polls >= 6, "{polls}");
    let polls = drop_at_every_await(
        &shop.world.time,
        || {
            shop.world.time.advance(S(9 * 24 * 3600));
            dropped.prune()
        },
        &mut check,
    );
    assert!(polls >= 4, "{polls}");
    let site = shop.site();
    for polls in [
        drop_at_every_await(&shop.world.time, || good.check(), |_| {}),
        drop_at_every_await(&shop.world.time, || site.refresh(), |_| {}),
        drop_at_every_await(&shop.world.time, || shop.open(), |_| {}),
    ] {
        assert!(polls >= 2, "{polls}");
    }
}
