//! Which releases and files are kept, and which are deleted.
use std::sync::{Arc, Mutex};

use object_store::local::LocalFileSystem;
use steadfast::{
    port::PortErrorKind,
    static_content::{Pruned, SiteError, SitePublisher},
    store::{Page, Scan, Store, StoreFuture},
    time::{ManualClock, Timestamp},
};

use super::{ONE, Shop, TWO, config, release};
use crate::{
    moody_store::{Mode, Moody},
    world::{S, Slowed},
};

const DAY: u64 = 24 * 3600;

/// Lets this much time pass, also on the wall.
fn pass(shop: &Shop, seconds: u64) {
    let wall = shop.world.clock.wall().as_millis();
    shop.world.time.advance(S(seconds));
    shop.world.time.set_wall(Timestamp::from_millis(wall + seconds * 1000));
}

fn numbers(shop: &Shop, publisher: &SitePublisher) -> Vec<u64> {
    shop.now(publisher.releases()).unwrap().iter().map(|one| one.number).collect()
}

const TEXTS: [&str; 9] = ["0", "1", "2", "3", "4", "5", "6", "7", "8"];

// Guarantee: static_content 2.
#[test]
fn the_latest_five_releases_and_those_of_seven_days_are_kept_with_their_files() {
    let shop = Shop::new();
    let publisher = shop.publisher();
    for text in TEXTS {
        shop.now(publisher.publish(release(&[("app.js", text), ("logo.svg", "logo")]))).unwrap();
    }
    // All of them were in effect today.
    assert_eq!(shop.now(publisher.prune()).unwrap(), Pruned::default());
    pass(&shop, 7 * DAY);
    assert_eq!(
        shop.now(publisher.prune()).unwrap(),
        Pruned::default(),
        "a page may be a minute younger than its release"
    );
    pass(&shop, 90);
    let site = shop.site();
    let oldest = shop.bucket.keys().into_iter().find(|key| shop.bucket.read(key).unwrap() == "0").unwrap();
    assert_eq!(site.snapshot().cache_control(&oldest).status(), 200);
    let pruned = shop.now(publisher.prune()).unwrap();
    assert_eq!((pruned.releases, pruned.files), (vec![1, 2, 3, 4], 4));
    assert_eq!(numbers(&shop, &publisher), [9, 8, 7, 6, 5]);
    assert_eq!(shop.bucket.keys().len(), 6, "five scripts, and the picture that all share");
    assert!(matches!(shop.now(publisher.rollback(4)), Err(SiteError::NotKept(4))));
    assert_eq!(shop.now(publisher.rollback(5)).unwrap(), 10);
    shop.now(site.refresh()).unwrap();
    assert_eq!(site.snapshot().cache_control(&oldest).status(), 404);
}

// Guarantee: static_content 2.
#[test]
fn a_page_finds_its_files_for_seven_days_after_its_release_was_replaced() {
    let shop = Shop::new();
    let publisher = shop.with(1, config().keep_releases(1));
    shop.now(publisher.publish(release(ONE))).unwrap();
    pass(&shop, 30 * DAY);
    shop.now(publisher.publish(release(TWO))).unwrap();
    let old = shop.bucket.keys().into_iter().find(|key| shop.bucket.read(key).unwrap() == "one").unwrap();
    for day in 0..=7 {
        shop.now(publisher.prune()).unwrap();
        assert!(shop.bucket.read(&old).is_some(), "day {day}");
        pass(&shop, DAY);
    }
    shop.now(publisher.prune()).unwrap();
    assert!(shop.bucket.read(&old).is_none());
    shop.assert_serves(TWO);
}

// Guarantee: static_content 3.
#[test]
fn pruning_deletes_what_an_attempt_has_left_and_nothing_that_no_release_has_listed() {
    let shop = Shop::new();
    let publisher = shop.publisher();
    shop.bucket.write("uploads/of-somebody.pdf", b"pdf");
    shop.now(publisher.publish(release(ONE))).unwrap();
    let before = shop.bucket.keys();
    // The attempt uploads one of its files, and then finds a name with other bytes.
    shop.bucket.write("assets/taken.js", b"theirs");
    let taken = release(&[("app.js", "new"), ("assets/taken.js", "ours")]).immutable("assets/**");
    let refused = shop.now(shop.with(3, config().parallelism(1)).publish(taken)).unwrap_err();
    assert!(matches!(refused, SiteError::OtherBytes(_)));
    assert_eq!(shop.bucket.keys().len(), before.len() + 2);
    assert_eq!(shop.now(publisher.prune()).unwrap().files, 1);
    let mut after = shop.bucket.keys();
    after.retain(|key| key != "assets/taken.js");
    assert_eq!(after, before);
    // The attempt is forgotten, too.
    assert_eq!(shop.now(publisher.prune()).unwrap(), Pruned::default());
}

// Guarantee: static_content 3.
#[test]
fn no_delete_begins_that_may_end_after_the_lease() {
    let shop = Shop::new();
    let publisher = shop.with(1, config().keep_releases(1));
    for text in TEXTS {
        shop.now(publisher.publish(release(&[("app.js", text)]))).unwrap();
    }
    pass(&shop, 8 * DAY);
    // The lease answers once, and no renewal comes through.
    let slow = Moody::new(&shop.world.clock);
    slow.is(Mode::Slow(S(4)));
    shop.bucket.counts();
    let bucket = shop.bucket.behind(|link| Arc::new(Slowed { by: slow, store: link }));
    let cut = Arc::new(super::crashes::Deaf(shop.leases.clone()));
    let config = config().keep_releases(1).parallelism(1);
    let late = SitePublisher::builder(bucket, shop.store.clone(), cut, "shop", config);
    let late = late.clock(&shop.world.clock).build().unwrap();
    let began = shop.world.clock.now();
    assert!(matches!(shop.now(late.prune()), Err(SiteError::LeaseLost)));
    let [_, _, deletes] = shop.bucket.counts();
    // Of 4 s each: the last one begins at 24 s of the term's 30, since it may take 5 s.
    assert_eq!(deletes, 7);
    assert!(shop.world.clock.now() - began <= S(30));
    // The rest is left to the next one, when the lease is free.
    pass(&shop, 30);
    let rest = shop.now(publisher.prune()).unwrap();
    assert_eq!(shop.bucket.keys().len(), 1, "{rest:?}");
}

// A pruner of a site without a release panicked.
#[test]
fn pruning_a_site_without_a_release_deletes_what_the_first_attempt_has_left() {
    let shop = Shop::new();
    let publisher = shop.publisher();
    assert_eq!(shop.now(publisher.prune()).unwrap(), Pruned::default());
    shop.bucket.write("assets/taken.js", b"theirs");
    let taken = release(&[("app.js", "new"), ("assets/taken.js", "ours")]).immutable("assets/**");
    assert!(shop.now(shop.with(3, config().parallelism(1)).publish(taken)).is_err());
    assert_eq!(shop.now(publisher.prune()).unwrap().files, 1);
    assert_eq!(shop.bucket.keys(), ["assets/taken.js"]);
}

// Guarantee: static_content 3.
// A delete that failed may still be on its way, with others beside it.
#[test]
fn after_a_delete_that_failed_the_lease_stays_until_its_term_is_over() {
    let shop = Shop::new();
    let publisher = shop.with(1, config().keep_releases(1));
    for files in [ONE, TWO] {
        shop.now(publisher.publish(release(files))).unwrap();
    }
    pass(&shop, 8 * DAY);
    let away = Moody::new(&shop.world.clock);
    away.is(Mode::Fails(PortErrorKind::Unavailable));
    let bucket = shop.bucket.behind(|link| Arc::new(Slowed { by: away, store: link }));
    let pruner =
        SitePublisher::builder(bucket, shop.store.clone(), shop.leases.clone(), "shop", config().keep_releases(1));
    let failed = shop.now(pruner.clock(&shop.world.clock).build().unwrap().prune()).unwrap_err();
    assert!(matches!(failed, SiteError::Bucket { .. }), "{failed}");
    assert!(matches!(shop.now(publisher.publish(release(ONE))), Err(SiteError::Busy { .. })));
    pass(&shop, 30);
    shop.now(publisher.publish(release(ONE))).unwrap();
    shop.assert_serves(ONE);
}

/// A store whose first scan is late: a term passes before it, and another publisher goes back to release 1.
#[derive(Debug)]
struct Suspended {
    store: Arc<dyn Store>,
    time: ManualClock,
    next: Mutex<Option<SitePublisher>>,
}

impl Store for Suspended {
    forward_store! { store: capabilities, get, put, delete, batch }

    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        Box::pin(async move {
            let next = self.next.lock().unwrap().take();
            if let Some(next) = next {
                self.time.advance(S(31));
                next.rollback(1).await.unwrap();
            }
            self.store.scan(scan).await
        })
    }
}

// Guarantee: static_content 3.
#[test]
fn a_pruner_that_stood_still_deletes_nothing_of_the_release_that_came_meanwhile() {
    let shop = Shop::new();
    let publisher = shop.publisher();
    for files in [ONE, TWO] {
        shop.now(publisher.publish(release(files))).unwrap();
    }
    let next = Mutex::new(Some(shop.with(2, config())));
    let store = Arc::new(Suspended { store: shop.store.clone(), time: shop.world.time.clone(), next });
    let bucket = Arc::new(shop.bucket.clone());
    let pruner = SitePublisher::builder(bucket, store, shop.leases.clone(), "shop", config());
    let pruned = shop.now(pruner.clock(&shop.world.clock).build().unwrap().prune());
    shop.assert_serves(ONE);
    assert!(matches!(pruned, Err(SiteError::LeaseLost)), "{pruned:?}");
    assert_eq!(shop.now(publisher.publish(release(TWO))).unwrap(), 4);
}

// Guarantee: static_content 2.
#[test]
fn a_release_that_cannot_be_read_may_have_any_file_until_it_is_kept_no_more() {
    let shop = Shop::new();
    let publisher = shop.with(1, config().keep_releases(1));
    for files in [ONE, TWO] {
        shop.now(publisher.publish(release(files))).unwrap();
    }
    shop.damage(1);
    pass(&shop, 8 * DAY);
    shop.now(publisher.publish(release(&[("app.js", "three")]))).unwrap();
    let before = shop.bucket.keys();
    shop.now(publisher.prune()).unwrap();
    assert_eq!(numbers(&shop, &publisher), [3, 2]);
    assert_eq!(shop.bucket.keys(), before);
    shop.damage(2);
    assert!(matches!(shop.now(publisher.prune()), Err(SiteError::Damaged(2))));
    assert_eq!(shop.bucket.keys(), before);
    pass(&shop, 9 * DAY);
    shop.now(publisher.prune()).unwrap();
    assert_eq!(numbers(&shop, &publisher), [3]);
    shop.assert_serves(&[("app.js", "three")]);
}

// One name that a bucket refuses stopped all pruning, for ever.
#[test]
fn an_object_that_the_bucket_cannot_look_at_stops_no_other_one() {
    let shop = Shop::new();
    let folder = tempfile::tempdir().unwrap();
    let bucket = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    let config = config().keep_releases(1).parallelism(1);
    let publisher = SitePublisher::builder(bucket, shop.store.clone(), shop.leases.clone(), "shop", config);
    let publisher = publisher.clock(&shop.world.clock).build().unwrap();
    shop.now(publisher.publish(release(&[("a", "file"), ("b.js", "one")]).immutable("a"))).unwrap();
    let below = release(&[("a/b", "in a file"), ("a.js", "new")]).immutable("a/*");
    assert!(matches!(shop.now(publisher.publish(below)), Err(SiteError::Bucket { .. })));
    for text in ["two", "three", "four"] {
        shop.now(publisher.publish(release(&[("a", "file"), ("b.js", text)]).immutable("a"))).unwrap();
    }
    pass(&shop, 8 * DAY);
    // It says so, and the next one looks at it again.
    for _ in 0..2 {
        assert!(matches!(shop.now(publisher.prune()), Err(SiteError::Bucket { key, .. }) if key == "a/b"));
        pass(&shop, 30);
    }
    assert_eq!(numbers(&shop, &publisher), [4]);
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 2, "the file, and the script of the release in effect");
}
