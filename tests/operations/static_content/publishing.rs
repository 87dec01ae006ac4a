//! Upload, then switch: names, refusals, rollbacks, one publisher at a time.
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use bytes::Bytes;
use steadfast::{
    lease::{Acquired, Lease},
    notify::Notifier,
    static_content::{Release, SiteConfig, SiteError, SitePublisher},
    store::{InMemoryStore, Key, PutOptions, Store, StoreFuture, Version},
    time::Clock,
};

use super::{ONE, Shop, TWO, config, release};
use crate::world::{MS, S};

// Guarantee: static_content 1.
#[test]
fn a_second_release_uploads_the_files_that_changed_and_looks_at_each() {
    let shop = Shop::new();
    let publisher = shop.publisher();
    let files = |changed: usize| {
        (0..1_000).fold(Release::new(), |release, i| {
            release.file(format!("files/{i}.js"), format!("{i} {}", if i < changed { "new" } else { "old" }))
        })
    };
    assert_eq!(shop.now(publisher.publish(files(0))).unwrap(), 1);
    shop.bucket.counts();
    assert_eq!(shop.now(publisher.publish(files(10))).unwrap(), 2);
    assert_eq!(shop.bucket.counts(), [10, 1_000, 0]);
    assert_eq!(shop.bucket.keys().len(), 1_010);
}

// Guarantee: static_content 1.
#[test]
fn objects_have_names_by_content_and_those_of_the_bundler_are_kept() {
    let shop = Shop::new();
    let files = [("a/app.js", "x"), ("a/app.js.br", "b"), ("assets/lib.3f2a.js", "x"), ("index.html", "x")];
    let release = release(&files).immutable("assets/**").entry_points(["*.html"]);
    shop.now(shop.publisher().publish(release)).unwrap();
    let keys = shop.bucket.keys();
    // SHA-256 of `x` begins with 2d711642b726b044; a file with a compressed form is named by both.
    assert!(keys.contains(&"assets/lib.3f2a.js".to_owned()), "{keys:?}");
    assert!(keys.contains(&"index.2d711642b726b044.html".to_owned()), "{keys:?}");
    let app = keys.iter().find(|key| key.starts_with("a/app.") && key.ends_with(".js")).unwrap();
    assert!(keys.contains(&format!("{app}.br")) && keys.len() == 4, "{keys:?}");
}

// Guarantee: static_content 1.
#[test]
fn a_name_that_exists_with_other_bytes_is_refused_and_the_release_before_stays() {
    let shop = Shop::new();
    let publisher = shop.publisher();
    let of = |text: &'static str| release(&[("assets/app.js", text), ("page.html", "p")]).immutable("assets/**");
    shop.now(publisher.publish(of("one"))).unwrap();
    // Of the release in effect.
    let refused = shop.now(publisher.publish(of("two"))).unwrap_err();
    assert!(matches!(&refused, SiteError::OtherBytes(key) if key == "assets/app.js"), "{refused}");
    // Of an earlier one, and of somebody else; also with the same size.
    shop.now(publisher.publish(release(&[("page.html", "p")]))).unwrap();
    let refused = shop.now(publisher.publish(of("two"))).unwrap_err();
    assert!(matches!(refused, SiteError::OtherBytes(_)), "{refused}");
    shop.bucket.write("assets/foreign.js", b"theirs");
    let ours = release(&[("assets/foreign.js", "ours!!")]).immutable("assets/**");
    let refused = shop.now(publisher.publish(ours)).unwrap_err();
    assert!(matches!(refused, SiteError::OtherBytes(_)), "{refused}");
    shop.assert_serves(&[("page.html", "p")]);
    // Pruning after the refusals deletes nothing of them.
    shop.now(publisher.prune()).unwrap();
    assert_eq!(shop.bucket.read("assets/foreign.js").as_deref(), Some(&b"theirs"[..]));
    assert_eq!(shop.bucket.read("assets/app.js").as_deref(), Some(&b"one"[..]));
}

// Guarantee: static_content 1.
#[test]
fn a_file_that_the_bucket_has_not_stored_is_found_before_the_switch() {
    let shop = Shop::new();
    let publisher = shop.publisher();
    shop.now(publisher.publish(release(ONE))).unwrap();
    shop.bucket.habits.forgets.store(true, SeqCst);
    let missing = shop.now(publisher.publish(release(TWO))).unwrap_err();
    assert!(matches!(missing, SiteError::Missing(_)), "{missing}");
    shop.assert_serves(ONE);
    // One of the release in effect that somebody has deleted comes back.
    shop.bucket.habits.forgets.store(false, SeqCst);
    let logo = shop.bucket.keys().into_iter().find(|key| key.starts_with("logo.")).unwrap();
    shop.bucket.lose(&logo);
    assert_eq!(shop.now(publisher.check()).unwrap().missing, std::slice::from_ref(&logo));
    shop.now(publisher.publish(release(TWO))).unwrap();
    assert!(shop.bucket.read(&logo).is_some());
    assert_eq!(shop.now(publisher.check()).unwrap().missing, [""; 0]);
}

#[test]
fn a_bucket_without_create_only_writes_is_refused() {
    for lies in [true, false] {
        let shop = Shop::new();
        let habits = &shop.bucket.habits;
        if lies { &habits.overwrites } else { &habits.has_no_create }.store(true, SeqCst);
        let refused = shop.now(shop.publisher().publish(release(ONE))).unwrap_err();
        assert!(matches!(refused, SiteError::NoCreateOnly), "{lies} {refused}");
        assert!(matches!(shop.now(shop.open()), Err(SiteError::NothingPublished)));
    }
    // A folder keeps no headers, which is no reason.
    let shop = Shop::new();
    shop.bucket.habits.has_no_attributes.store(true, SeqCst);
    shop.now(shop.publisher().publish(release(ONE))).unwrap();
    shop.assert_serves(ONE);
}

// Guarantee: static_content 4.
#[test]
fn a_rollback_uploads_nothing_takes_a_new_number_and_sends_a_notice() {
    let shop = Shop::new();
    let publisher = shop.publisher();
    shop.now(publisher.publish(release(ONE))).unwrap();
    shop.now(publisher.publish(release(TWO))).unwrap();
    shop.bucket.counts();
    let notice = shop.now(async {
        let mut notices = shop.notifier.subscribe("steadfast/site/shop").await.unwrap();
        assert_eq!(publisher.rollback(1).await.unwrap(), 3);
        format!("{:?}", notices.recv().await)
    });
    assert!(notice.contains("\"3\""), "{notice}");
    let [puts, heads, deletes] = shop.bucket.counts();
    assert_eq!((puts, heads, deletes), (0, 3, 0));
    shop.assert_serves(ONE);
    let releases = shop.now(publisher.releases()).unwrap();
    let told: Vec<_> = releases.iter().map(|one| (one.number, one.source, one.is_current)).collect();
    assert_eq!(told, [(3, Some(1), true), (2, None, false), (1, None, false)]);
    // To one that is not there, and to one with a missing file.
    assert!(matches!(shop.now(publisher.rollback(9)), Err(SiteError::NotKept(9))));
    let two = shop.bucket.keys().into_iter().find(|key| shop.bucket.read(key).unwrap() == "two").unwrap();
    shop.bucket.lose(&two);
    let missing = shop.now(publisher.rollback(2)).unwrap_err();
    assert!(matches!(&missing, SiteError::Missing(key) if *key == two), "{missing}");
    shop.assert_serves(ONE);
}

// Guarantee: static_content 3.
#[test]
fn of_two_publishers_one_is_at_work() {
    let shop = Shop::new();
    let publisher = shop.publisher();
    let Acquired::Granted(token) = shop.now(shop.leases.acquire("site shop", "another", S(30))).unwrap() else {
        panic!()
    };
    let busy = shop.now(publisher.publish(release(ONE))).unwrap_err();
    assert!(matches!(busy, SiteError::Busy { free_in } if free_in == S(30)), "{busy}");
    assert!(matches!(shop.now(publisher.prune()), Err(SiteError::Busy { .. })));
    shop.now(shop.leases.release("site shop", "another", token)).unwrap();
    shop.now(publisher.publish(release(ONE))).unwrap();
    // It has released the lease.
    shop.now(shop.with(2, config()).publish(release(TWO))).unwrap();
}

// Guarantee: static_content 3.
#[test]
fn a_publisher_whose_clock_stood_still_does_not_move_the_head_after_the_next_has_begun() {
    let shop = Shop::new();
    // Its machine is suspended in the middle of its uploads: its clock does not count the time.
    let (frozen, _time) = Clock::manual();
    let slow = shop.bucket.behind(|link| {
        let moody = crate::moody_store::Moody::new(&shop.world.clock);
        moody.is(crate::moody_store::Mode::Slow(S(20)));
        Arc::new(crate::world::Slowed { by: moody, store: link })
    });
    let suspended = SitePublisher::builder(slow, shop.store.clone(), shop.leases.clone(), "shop", config());
    let suspended = suspended.clock(&frozen).build().unwrap();
    let next = shop.with(2, config());
    let (old, new) = shop.now(async {
        let old = suspended.publish(release(ONE));
        let new = async {
            shop.world.clock.sleep(S(31)).await;
            next.publish(release(TWO)).await
        };
        futures::join!(old, new)
    });
    assert_eq!(new.unwrap(), 1);
    assert!(matches!(old, Err(SiteError::LeaseLost)), "{old:?}");
    shop.assert_serves(TWO);
}

// Guarantee: static_content 3.
#[test]
fn a_publisher_holds_the_lease_for_as_long_as_its_uploads_take() {
    let shop = Shop::new();
    let slow = shop.bucket.behind(|link| {
        let moody = crate::moody_store::Moody::new(&shop.world.clock);
        moody.is(crate::moody_store::Mode::Slow(S(4)));
        Arc::new(crate::world::Slowed { by: moody, store: link })
    });
    let config = config().parallelism(1);
    let slow = SitePublisher::builder(slow, shop.store.clone(), shop.leases.clone(), "shop", config);
    let slow = slow.clock(&shop.world.clock).build().unwrap();
    let files = (0..20).fold(Release::new(), |release, i| release.file(format!("{i}.js"), format!("{i}")));
    let (began, wall) = (shop.world.clock.now(), shop.world.clock.wall());
    shop.now(slow.publish(files)).unwrap();
    assert!(shop.world.clock.now() - began > S(120), "longer than four terms");
    // The release before counts as replaced when this one is in effect, and not when its upload began.
    assert!(shop.now(slow.releases()).unwrap()[0].at.as_millis() > wall.as_millis() + 120_000);
}

#[test]
fn settings_that_break_their_rules_are_refused_by_name() {
    let shop = Shop::new();
    for (config, field) in [
        (SiteConfig::default(), "base"),
        (SiteConfig::at("http://cdn.example/"), "base"),
        (SiteConfig::at("ftp://cdn.example/"), "base"),
        (SiteConfig::at("https://cdn.example/?x"), "base"),
        (config().keep_releases(0), "keep_releases"),
        (config().poll_interval(MS(999)), "poll_interval"),
        (config().parallelism(0), "parallelism"),
        (config().call_timeout(S(0)), "call_timeout"),
        (config().lease_term(S(19)), "lease_term"),
    ] {
        let bucket = Arc::new(shop.bucket.clone());
        let built = SitePublisher::new(bucket, shop.store.clone(), shop.leases.clone(), "shop", config.clone());
        assert_eq!(built.unwrap_err().field(), field, "{config:?}");
    }
    for name in ["", "a/b", "a b"] {
        let built = SitePublisher::new(
            Arc::new(shop.bucket.clone()),
            Arc::new(InMemoryStore::new()),
            shop.leases.clone(),
            name,
            SiteConfig::at("http://127.0.0.1:8080/"),
        );
        assert_eq!(built.unwrap_err().field(), "name");
    }
    let read: SiteConfig = toml::from_str("base = 'https://cdn.example/site/'\nkeep_for = '7d'").unwrap();
    assert_eq!(read, config());
}

#[test]
fn a_release_that_cannot_be_served_is_refused_before_anything_is_uploaded() {
    let shop = Shop::new();
    let publisher = shop.publisher();
    for (release, field) in [
        (Release::new(), "release"),
        (release(ONE).entry_points(["home.html"]), "entry_points"),
        (release(ONE).immutable("assets/**"), "immutable"),
        (release(ONE).entry_points(["*.html"]).immutable("index.*"), "entry_points"),
        (release(&[("../app.js", "x")]), "release"),
        (release(&[("a//b.js", "x")]), "release"),
        (release(&[("a/./b.js", "x")]), "release"),
        (release(&[("/app.js", "x")]), "release"),
        (release(&[("a\\b.js", "x")]), "release"),
        (release(&[("a?b.js", "x")]), "release"),
        (release(&[("a%2fb.js", "x")]), "release"),
        (release(&[("a\0b.js", "x")]), "release"),
        // What a folder or a cloud refuses as a name, beside what is added to it.
        (Release::new().file("x".repeat(240) + ".js", "x"), "release"),
        (Release::new().file("directory/".repeat(101) + "x.js", "x"), "release"),
        (release(&[("a", "x"), ("a/b.js", "x")]).immutable("a"), "release"),
        // Two files with one name in the bucket.
        (release(&[("app.2d711642b726b044.js", "y"), ("app.js", "x")]).immutable("app.*.js"), "release"),
    ] {
        match shop.now(publisher.publish(release.clone())) {
            Err(SiteError::Config(error)) => assert_eq!(error.field(), field, "{error}"),
            other => panic!("{release:?} {other:?}"),
        }
    }
    assert_eq!(shop.bucket.counts(), [0, 0, 0]);
}

// A release in effect that could not be read refused the releases that would have replaced it.
#[test]
fn a_release_that_cannot_be_read_is_replaced_by_the_next_one() {
    let shop = Shop::new();
    let publisher = shop.publisher();
    for files in [ONE, TWO] {
        shop.now(publisher.publish(release(files))).unwrap();
    }
    shop.damage(2);
    assert!(matches!(shop.now(shop.open()), Err(SiteError::Damaged(2))));
    assert_eq!(shop.now(publisher.rollback(1)).unwrap(), 3);
    shop.assert_serves(ONE);
    shop.damage(3);
    assert_eq!(shop.now(publisher.publish(release(TWO))).unwrap(), 4);
    shop.assert_serves(TWO);
}

/// A store whose client repeats a write of the head after a lost reply, and reports the answer to the second one.
#[derive(Debug)]
struct Repeats(Arc<dyn Store>, AtomicUsize);

impl Store for Repeats {
    forward_store! { 0: capabilities, get, delete, scan, batch }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            let first = self.0.put(key, value.clone(), options).await;
            // The first write claims the head.
            match key.row == "head" && self.1.fetch_add(1, SeqCst) > 0 {
                true => self.0.put(key, value, options).await,
                false => first,
            }
        })
    }
}

// Guarantee: static_content 1.
#[test]
fn a_switch_that_was_made_and_answered_with_a_conflict_is_known_as_made() {
    let mut shop = Shop::new();
    shop.store = Arc::new(Repeats(shop.store.clone(), AtomicUsize::new(0)));
    assert_eq!(shop.now(shop.publisher().publish(release(ONE))).unwrap(), 1);
    shop.assert_serves(ONE);
}

#[test]
fn of_an_object_that_has_another_size_no_byte_is_read() {
    let shop = Shop::new();
    shop.bucket.write("assets/video.mp4", &[7; 100_000]);
    let ours = release(&[("assets/video.mp4", "ours")]).immutable("assets/**");
    let refused = shop.now(shop.publisher().publish(ours)).unwrap_err();
    assert!(matches!(refused, SiteError::OtherBytes(_)), "{refused}");
    assert_eq!(shop.bucket.habits.read.load(SeqCst), 0);
}
