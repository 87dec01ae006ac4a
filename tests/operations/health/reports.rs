//! Executions, results, groups and answers.
use std::{future::pending, sync::Arc, time::Duration};

use http::{HeaderMap, Response};
use steadfast::{
    ConfigError,
    config::{Effect, Reconfigure, Secret},
    health::{Check, CheckFailure, Group, GroupReason, Health, HealthConfig, HealthEvent as Event, HealthStatus as Is},
    port::Capability,
    store::InMemoryStore,
    testing::{ScriptedPort, drop_at_every_await},
    time::Clock,
};

use super::{Thing, Told, builder};
use crate::world::{MS, S, World};

fn status(world: &World, health: &Health, group: Group) -> Is {
    world.run(S(1), health.report(&group)).unwrap().status
}

/// Returns a health with one check that takes this time, and what the check looks at.
fn with_slow_check(world: &World, takes: Duration) -> (Health, Thing) {
    let (clock, looks) = (world.clock.clone(), Thing::default());
    let counted = looks.clone();
    let slow = Check::local("slow", move || {
        let (clock, counted) = (clock.clone(), counted.clone());
        async move {
            clock.sleep(takes).await;
            counted.look()
        }
    });
    (builder(world, HealthConfig::default()).check(slow).build().unwrap(), looks)
}

// Guarantee: health 1.
#[test]
fn at_a_thousand_reports_a_second_each_check_runs_once_in_its_time() {
    let (world, one, other) = (World::new(), Thing::default(), Thing::default());
    let built = builder(&world, HealthConfig::default()).check(one.dependency("one")).check(other.local("other"));
    let health = built.build().unwrap();
    let reports = async {
        for _ in 0..60_000 {
            world.clock.sleep(MS(1)).await;
            // Ten at once.
            futures::future::join_all((0..10).map(|_| health.report(&Group::Readiness))).await;
        }
    };
    world.run(S(100), reports).unwrap();
    assert_eq!((one.looks(), other.looks()), (12, 12));
    assert_eq!(health.executions("one"), Some(12));
}

// Guarantee: health 1.
#[test]
fn a_check_that_hangs_delays_a_report_for_its_time_alone_is_dropped_and_does_not_pile_up() {
    struct Alive(Arc<()>);
    let (world, alive) = (World::new(), Arc::new(()));
    let kept = alive.clone();
    let hangs = Check::local("hangs", move || {
        let alive = Alive(kept.clone());
        async move {
            pending::<()>().await;
            drop(alive.0);
            Ok::<_, String>(())
        }
    });
    let health = builder(&world, HealthConfig::default()).check(hangs).build().unwrap();
    for _ in 0..20 {
        let began = world.clock.now();
        let report = world.run(S(1), health.report(&Group::Readiness)).unwrap();
        assert!(world.clock.now() - began <= MS(500));
        assert_eq!(report.status, Is::Unhealthy);
        assert!(Arc::strong_count(&alive) <= 3, "one execution at most");
    }
    // Its last execution goes on without a report, and is dropped at its time limit.
    world.run(S(1), pending::<()>());
    assert_eq!(Arc::strong_count(&alive), 2);
    let report = health.last_report(&Group::Readiness);
    assert_eq!(report.checks[0].reason, Some(CheckFailure::TimedOut));
    assert_eq!(report.checks[0].latency, MS(800));
}

// Guarantee: health 1.
#[test]
fn a_check_that_panics_has_failed_and_its_text_is_in_the_event_alone() {
    let (world, told) = (World::new(), Told::default());
    let panics = Check::local("panics", || async { if true { panic!("a bug") } else { Ok::<_, String>(()) } });
    let in_call = Check::local("in the call", || if true { panic!("another") } else { async { Ok::<_, String>(()) } });
    let built = told.by(builder(&world, HealthConfig::default()));
    let health = built.check(panics).check(in_call).build().unwrap();
    let report = world.run(S(1), health.report(&Group::Readiness)).unwrap();
    let reasons: Vec<_> = report.checks.iter().map(|check| check.reason).collect();
    assert_eq!(reasons, [Some(CheckFailure::Panicked); 2]);
    let texts = told.all().into_iter().filter_map(|event| match event {
        Event::CheckFailed { error, .. } => Some(error),
        _ => None,
    });
    assert_eq!(texts.collect::<Vec<_>>(), ["the check panicked: a bug", "the check panicked: another"]);
}

// Guarantee: health 1.
#[test]
fn a_report_that_is_not_polled_any_more_stops_no_check() {
    let world = World::new();
    let (health, looks) = with_slow_check(&world, MS(100));
    let group = Group::Readiness;
    let mut report = Box::pin(health.report(&group));
    assert!(futures::FutureExt::now_or_never(report.as_mut()).is_none());
    world.run(S(60), health.run(world.clock.sleep(S(31))));
    assert!(looks.looks() >= 5, "{}", looks.looks());
    assert!(health.is_fit());
    drop(report);
}

// Guarantee: health 3.
#[test]
fn a_check_that_takes_its_time_is_healthy_for_reports_that_come_seldom_and_for_the_watch() {
    let world = World::new();
    let (health, looks) = with_slow_check(&world, MS(600));
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(status(&world, &health, Group::Readiness));
        world.run(S(30), pending::<()>());
    }
    assert_eq!(seen[1..], [Is::Healthy; 3]);
    let before = looks.looks();
    world.run(S(700), health.run(world.clock.sleep(S(600))));
    assert!(looks.looks() - before >= 600 / 7, "{}", looks.looks() - before);
}

// Guarantee: health 2.
#[test]
fn liveness_refuses_a_dependency_and_an_outage_of_one_leaves_it_healthy() {
    let (world, db) = (World::new(), Thing::default());
    let built = builder(&world, HealthConfig::default()).check(db.dependency("db").in_group(Group::Liveness)).build();
    assert_eq!(built.unwrap_err().field(), "db.check");
    let built = builder(&world, HealthConfig::default()).check(db.dependency("db").in_group(Group::Startup)).build();
    assert!(built.unwrap_err().to_string().contains("no process would start in its outage"));
    let (disk, cache) = (Thing::default(), Thing::default());
    let tag = Group::Tag("nightly".into());
    let health = builder(&world, HealthConfig::default())
        .check(db.dependency("db").required())
        .check(cache.dependency("cache"))
        .check(disk.local("disk").in_group(Group::Liveness).in_group(Group::Startup))
        .check(Thing::default().local("report").in_group(tag.clone()))
        .build()
        .unwrap();
    cache.breaks();
    assert_eq!(status(&world, &health, Group::Readiness), Is::Degraded);
    db.breaks();
    for _ in 0..3 {
        world.time.advance(S(5));
        let _ = status(&world, &health, Group::Readiness);
    }
    assert_eq!(status(&world, &health, Group::Readiness), Is::Unhealthy);
    for group in [Group::Liveness, Group::Startup, tag] {
        let report = world.run(S(1), health.report(&group)).unwrap();
        assert_eq!((report.status, report.checks.len()), (Is::Healthy, 1), "{group:?}");
    }
    disk.breaks();
    for _ in 0..4 {
        world.time.advance(S(5));
        let _ = status(&world, &health, Group::Liveness);
    }
    assert_eq!(status(&world, &health, Group::Liveness), Is::Unhealthy);
}

// Guarantee: health 3.
#[test]
fn thresholds_decide_and_a_result_that_is_too_old_is_unhealthy() {
    let (world, disk, told) = (World::new(), Thing::default(), Told::default());
    let health = told.by(builder(&world, HealthConfig::default())).check(disk.local("disk")).build().unwrap();
    let mut seen = Vec::new();
    for turn in 0..8 {
        match turn {
            1 => disk.breaks(),
            5 => disk.heals(),
            _ => {}
        }
        seen.push(status(&world, &health, Group::Readiness) == Is::Healthy);
        world.time.advance(S(5));
    }
    assert_eq!(seen, [true, true, true, false, false, false, true, true]);
    let changes = told.all().iter().filter(|event| matches!(event, Event::Changed { .. })).count();
    assert_eq!(changes, 3);
    // Nobody asks for a while.
    world.time.advance(S(15));
    assert_eq!(health.last_report(&Group::Readiness).checks[0].reason, Some(CheckFailure::Stale));
    assert!(!health.is_fit());
    assert_eq!(status(&world, &health, Group::Readiness), Is::Healthy);
    assert!(health.is_fit());
}

// Guarantee: health 3.
#[test]
fn a_service_that_stops_is_not_ready_for_a_while_before_and_stays_alive() {
    let (world, told) = (World::new(), Told::default());
    let health =
        told.by(builder(&world, HealthConfig::default())).check(Thing::default().local("disk")).build().unwrap();
    assert_eq!(status(&world, &health, Group::Readiness), Is::Healthy);
    let began = world.clock.now();
    world.run(S(60), health.stopping()).unwrap();
    assert_eq!(world.clock.now() - began, S(5));
    let report = world.run(S(1), health.report(&Group::Readiness)).unwrap();
    assert_eq!((report.status, report.reason), (Is::Unhealthy, Some(GroupReason::Stopping)));
    assert_eq!(status(&world, &health, Group::Liveness), Is::Healthy);
    assert!(told.all().contains(&Event::Stopping));
}

// Guarantee: health 5.
#[test]
fn an_anonymous_request_hears_a_word_and_one_with_the_secret_details_without_texts_of_errors() {
    let (world, db) = (World::new(), Thing::default());
    db.breaks();
    let config = HealthConfig::default();
    let built = builder(&world, config).check(db.dependency("orders-db").required()).secret(Secret::new("sesame"));
    let health = built.build().unwrap();
    let ask = |secret: Option<&str>, nonce: Option<&str>| -> Response<String> {
        let mut headers = HeaderMap::new();
        if let Some(secret) = secret {
            headers.insert("x-health-secret", secret.parse().unwrap());
        }
        if let Some(nonce) = nonce {
            headers.insert("x-health-nonce", nonce.parse().unwrap());
        }
        world.run(S(1), health.answer(&Group::Readiness, &headers)).unwrap()
    };
    let anonymous = ask(None, Some("7f3a"));
    assert_eq!((anonymous.status().as_u16(), anonymous.body().as_str()), (503, "unhealthy"));
    assert_eq!(anonymous.headers()["cache-control"], "no-store");
    let details = ask(Some("sesame"), Some("7f3a"));
    assert_eq!(details.status().as_u16(), 503);
    assert!(
        details.body().starts_with("unhealthy\norders-db dependency unhealthy error latency"),
        "{}",
        details.body()
    );
    assert!(details.body().ends_with("nonce 7f3a\n"));
    assert!(!details.body().contains("10.0.0.7"));
    assert!(!ask(Some("sesame"), Some(&"n".repeat(65))).body().contains("nonce"));
    let unknown = ask(Some("barley"), None);
    assert_eq!((unknown.status().as_u16(), unknown.body().as_str()), (404, ""));
    // No header tells that the path is known, after all.
    assert!(unknown.headers().is_empty(), "{:?}", unknown.headers());
    assert!(!ask(Some("sesame"), Some("a b")).body().contains("nonce"), "visible characters alone");
    let by_path = world.run(S(1), health.details::<String>(&Group::Liveness, "sesame", &HeaderMap::new())).unwrap();
    assert_eq!((by_path.status().as_u16(), by_path.body().as_str()), (200, "healthy\n"));
    let report = world.run(S(1), health.report(&Group::Readiness)).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["status"], "fail");
    assert_eq!(json["checks"]["orders-db"][0]["componentType"], "dependency");
    assert!(!json.to_string().contains("10.0.0.7"));
}

// Guarantee: health 5.
#[test]
fn the_secret_is_replaced_in_use_and_shown_nowhere() {
    let (world, told) = (World::new(), Told::default());
    let health = told.by(builder(&world, HealthConfig::default())).secret(Secret::new("sesame")).build().unwrap();
    let next = HealthConfig::default().secret(Secret::new("barley"));
    assert_eq!(health.validate(&next).unwrap(), Effect::InPlace);
    health.apply(next.clone()).unwrap();
    assert!(health.is_secret("barley") && !health.is_secret("sesame"));
    assert!(told.all().contains(&Event::ConfigChanged));
    assert!(!format!("{health:?} {next:?}").contains("barley"));
    assert!(!toml::to_string(&next).unwrap().contains("barley"));
    let read: HealthConfig = toml::from_str("secret = \"barley\"").unwrap();
    assert_eq!(read.secret, next.secret);
    // What was written shows no secret, so that it cannot be read back as one.
    assert!(toml::from_str::<HealthConfig>(&toml::to_string(&next).unwrap()).is_err());
    let refused = health.reconfigure(HealthConfig::default().failure_threshold(0)).unwrap_err();
    assert_eq!(refused.field(), "failure_threshold");
    assert!(health.is_secret("barley"));
    // Monitors change one after another: the one before is accepted meanwhile.
    let next = HealthConfig::default().secret(Secret::new("poppy")).previous_secret(Secret::new("barley"));
    health.apply(next.clone()).unwrap();
    assert_eq!(["poppy", "barley", "sesame"].map(|secret| health.is_secret(secret)), [true, true, false]);
    assert!(health.explain().warnings().iter().any(|warning| warning.contains("the secret before")));
    assert!(!format!("{next:?} {}", toml::to_string(&next).unwrap()).contains("barley"));
    health.apply(next.previous_secret(None)).unwrap();
    assert_eq!(["poppy", "barley"].map(|secret| health.is_secret(secret)), [true, false]);
    let refused = health.reconfigure(HealthConfig::default().previous_secret(Secret::new("a b"))).unwrap_err();
    assert_eq!(refused.field(), "previous_secret");
}

#[test]
fn settings_that_cannot_work_are_refused_with_their_field() {
    let world = World::new();
    let config = HealthConfig::default();
    let field = |built: Result<Health, ConfigError>| built.unwrap_err().field().to_owned();
    let of = |config| builder(&world, config).build();
    assert_eq!(field(of(config.clone().timeout(S(16)))), "timeout");
    for share in [-0.1, 1.1, f64::NAN] {
        assert_eq!(field(of(config.clone().max_ejected(share))), "max_ejected");
    }
    assert_eq!(field(of(config.clone().cache_ttl(S(15)))), "cache_ttl");
    for secret in ["", "sesame\n", "open sesame"] {
        assert_eq!(field(of(config.clone().secret(Secret::new(secret)))), "secret");
    }
    let disk = Thing::default();
    let twice = builder(&world, config.clone()).check(disk.local("disk")).check(disk.dependency("disk"));
    assert_eq!(field(twice.build()), "check");
    let weak = ScriptedPort::changing(&Clock::tokio(), |can| can.without(Capability::TimeToLive));
    let weak = weak.store(Arc::new(InMemoryStore::new()));
    assert_eq!(field(builder(&world, config.clone()).fleet(weak, "eu-1").build()), "fleet");
    let store = Arc::new(InMemoryStore::new());
    assert_eq!(field(Health::builder(config).fleet(store, "eu-1").build()), "name");
}

#[test]
fn a_report_dropped_at_every_await_leaves_its_execution_to_the_next_one() {
    let world = World::new();
    let (health, looks) = with_slow_check(&world, MS(100));
    let polls = drop_at_every_await(
        &world.time,
        || world.with_tasks(health.report(&Group::Readiness)),
        |_| {
            let report = world.run(S(1), health.report(&Group::Readiness)).unwrap();
            assert_eq!(report.status, Is::Healthy);
            world.time.advance(S(5));
        },
    );
    assert!(polls >= 2, "{polls}");
    assert_eq!(health.executions("slow").unwrap(), looks.looks(), "each execution ended");
}

// Guarantee: health 6.
#[test]
fn a_leader_that_is_not_fit_is_told_by_the_results_of_the_watch() {
    let (world, disk) = (World::new(), Thing::default());
    let health = builder(&world, HealthConfig::default()).check(disk.local("disk")).build().unwrap();
    assert!(!health.is_fit(), "without a result");
    let fit = async {
        world.clock.sleep(MS(10)).await;
        assert!(health.is_fit());
        disk.breaks();
        world.clock.sleep(S(20)).await;
        assert!(!health.is_fit());
    };
    world.run(S(60), async { futures::join!(fit, health.run(world.clock.sleep(S(30)))) }).unwrap();
    assert!((5..=8).contains(&disk.looks()), "{}", disk.looks());
}

// Guarantee: health 1.
#[test]
fn a_shorter_time_of_results_works_at_once() {
    let (world, disk) = (World::new(), Thing::default());
    let slow = HealthConfig::default().cache_ttl(S(60)).stale_after(S(100));
    let health = builder(&world, slow).check(disk.local("disk")).build().unwrap();
    let script = async {
        world.clock.sleep(S(1)).await;
        health.reconfigure(HealthConfig::default()).unwrap();
        world.clock.sleep(S(30)).await;
        disk.looks()
    };
    let both = futures::future::select(Box::pin(script), Box::pin(health.run(pending())));
    let Some(futures::future::Either::Left((looks, _))) = world.run(S(60), both) else { panic!("it ended") };
    assert!(looks >= 5, "{looks}");
}

// Guarantee: health 1.
#[test]
fn without_a_runtime_a_report_executes_its_checks_to_their_end() {
    let world = World::new();
    let clock = world.clock.clone();
    let slow = Check::local("slow", move || {
        let clock = clock.clone();
        async move {
            clock.sleep(MS(700)).await;
            Ok::<_, String>(())
        }
    });
    let health = Health::builder(HealthConfig::default()).clock(&world.clock).check(slow).build().unwrap();
    for _ in 0..3 {
        let report = world.time.block_on(health.report(&Group::Readiness));
        assert_eq!(report.status, Is::Healthy);
    }
    assert_eq!(health.executions("slow"), Some(1));
}

// Guarantee: health 5.
#[test]
fn what_should_be_known_of_the_settings_is_explained() {
    let world = World::new();
    let warnings = |health: &Health| health.explain().warnings().join("; ");
    let none = builder(&world, HealthConfig::default().report_timeout(S(1))).build().unwrap();
    let told = warnings(&none);
    assert!(told.contains("has no check") && told.contains("a platform's probe gives up after 1s"), "{told}");
    let store = Arc::new(InMemoryStore::builder().clock(&world.clock).build());
    let built = builder(&world, HealthConfig::default().max_ejected(1.0)).check(Thing::default().dependency("db"));
    let member = built.fleet(store, "eu-1").build().unwrap();
    let told = warnings(&member);
    assert!(told.contains("`run` does not run") && told.contains("all members of the fleet may leave"), "{told}");
    let runs = async {
        world.clock.sleep(S(1)).await;
        warnings(&member)
    };
    let both = futures::future::select(Box::pin(runs), Box::pin(member.run(pending())));
    let Some(futures::future::Either::Left((told, _))) = world.run(S(60), both) else { panic!("it ended") };
    assert!(!told.contains("does not run"), "{told}");
    assert!(warnings(&member).contains("does not run"), "the run was dropped");
    let plain = builder(&world, HealthConfig::default()).check(Thing::default().dependency("db")).build().unwrap();
    assert!(plain.explain().warnings().is_empty());
    assert!(plain.explain().to_string().contains("db (dependency, optional)"), "{}", plain.explain());
}
