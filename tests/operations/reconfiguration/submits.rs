//! Submitting: all parts or none, one after another, and never from within.
use std::{
    future::pending,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use futures::{FutureExt, future::join_all};
use steadfast::{
    ConfigError, Pipeline,
    config::{Effect, Reconfigure},
    health::{Check, Group, Health, HealthConfig, HealthStatus},
    reconfiguration::{InEffect, Reconfigurer, ReconfigurerConfig, ReconfigurerEvent as Event, SubmitError},
    retry::{Retry, RetryConfig},
    testing::drop_at_every_await,
    throttling::{RateLimitConfig, RateLimiter},
};

use super::{Failure, PARTS, Part, Settings, Told, builder, parts, runs};
use crate::world::{MS, S, World};

fn now<F: Future>(world: &World, future: F) -> F::Output {
    world.run(S(60), future).expect("it ends within a minute")
}

fn names(at: impl IntoIterator<Item = usize>) -> Vec<String> {
    at.into_iter().map(|at| format!("part-{at}")).collect()
}

// Guarantee: reconfiguration 1.
#[test]
fn after_one_veto_with_part_and_field_nothing_has_changed_and_equal_sections_are_not_touched() {
    let (world, parts, told) = (World::new(), parts(), Told::default());
    let changes = builder(&world, &parts, &told, ReconfigurerConfig::default()).build().unwrap();
    let mut next = Settings::default();
    (next.sections[1], next.sections[3]) = (7, 8);
    let applied = now(&world, changes.submit(next.clone())).unwrap();
    assert_eq!((applied.parts, applied.restarted), (names([1, 3]), Vec::new()));
    let calls: Vec<_> = parts.iter().map(Part::calls).collect();
    assert_eq!(calls, [(0, 0), (1, 1), (0, 0), (1, 1), (0, 0)]);
    for at in 0..PARTS {
        let before = runs(&parts);
        let mut bad = Settings::of(20);
        bad.sections[at] = 13;
        let error = now(&world, changes.submit(bad)).unwrap_err();
        let SubmitError::Vetoed { part, error } = error else { panic!("{error}") };
        assert_eq!((part, error.field()), (format!("part-{at}"), "luck"));
        assert_eq!(runs(&parts), before);
    }
    assert_eq!(*changes.settings(), next);
    let told = told.take();
    assert_eq!(told[0], Event::Applied { parts: names([1, 3]), restarted: Vec::new() });
    assert_eq!(told[1], Event::Refused { part: Some("part-0".to_owned()), field: Some("luck".to_owned()) });
}

// Guarantee: reconfiguration 2.
#[test]
fn a_change_that_no_part_takes_is_refused_with_the_names_of_the_parts() {
    let (world, parts, told) = (World::new(), parts(), Told::default());
    let changes = builder(&world, &parts, &told, ReconfigurerConfig::default()).build().unwrap();
    let mut next = Settings::of(7);
    next.title.push_str("store");
    let error = now(&world, changes.submit(next)).unwrap_err();
    assert!(matches!(&error, SubmitError::Undeclared { parts } if *parts == names(0..PARTS)), "{error}");
    assert!(error.to_string().contains("part-0, part-1"), "{error}");
    assert_eq!(runs(&parts), [0; PARTS]);
    assert_eq!(told.take(), [Event::Refused { part: None, field: None }]);
}

// Guarantee: reconfiguration 3.
#[test]
fn a_fault_at_each_position_leaves_all_parts_as_before_or_says_which_have_changed_and_is_unhealthy() {
    let (world, told) = (World::new(), Told::default());
    for failure in [Failure::Error, Failure::Panic] {
        for at in 0..PARTS {
            let parts = parts();
            let changes = builder(&world, &parts, &told, ReconfigurerConfig::default()).build().unwrap();
            parts[at].fails(&[failure]);
            let error = now(&world, changes.submit(Settings::of(7))).unwrap_err();
            assert!(matches!(&error, SubmitError::Failed { part, .. } if *part == format!("part-{at}")), "{error}");
            assert_eq!((runs(&parts), changes.is_whole()), (vec![0; PARTS], true));
            // The same change again is complete.
            now(&world, changes.submit(Settings::of(7))).unwrap();
            assert_eq!(runs(&parts), [7; PARTS]);
            // One of those before it cannot be undone.
            for stuck in 0..at {
                parts[at].fails(&[failure]);
                parts[stuck].fails(&[Failure::None, failure]);
                told.take();
                let error = now(&world, changes.submit(Settings::of(8))).unwrap_err();
                let SubmitError::PartiallyApplied { part, left } = &error else { panic!("{error}") };
                assert_eq!((part, left), (&format!("part-{at}"), &names([stuck])));
                assert!(!changes.is_whole());
                assert_eq!(told.take(), [Event::PartiallyApplied { parts: names([stuck]) }]);
                let mut expected = vec![7; PARTS];
                expected[stuck] = 8;
                assert_eq!(runs(&parts), expected);
                // What is in effect, submitted again, mends it: the part in doubt counts as changed.
                let applied = now(&world, changes.submit(Settings::of(7))).unwrap();
                assert_eq!((applied.parts, runs(&parts)), (names([stuck]), vec![7; PARTS]));
                assert!(changes.is_whole());
            }
        }
    }
}

// Guarantee: reconfiguration 3.
#[test]
fn a_process_with_a_change_in_part_is_unhealthy_until_one_succeeds() {
    let (world, parts) = (World::new(), parts());
    let in_effect = InEffect::new(Settings::default());
    let pool = world.pool.clone();
    let health = Health::builder(HealthConfig::default()).check(in_effect.check("settings")).clock(&world.clock);
    let health = health.spawner(move |task| pool.spawn(task)).build().unwrap();
    let status = || {
        world.time.advance(S(6));
        now(&world, health.report(&Group::Readiness)).status
    };
    let changes = Reconfigurer::builder(in_effect, ReconfigurerConfig::default());
    let changes = changes.part("a", |s: &mut Settings| &mut s.sections[0], parts[0].clone());
    let changes = changes.part("b", |s: &mut Settings| &mut s.sections[1], parts[1].clone()).build().unwrap();
    assert_eq!(status(), HealthStatus::Healthy);
    parts[1].fails(&[Failure::Error]);
    parts[0].fails(&[Failure::None, Failure::Error]);
    let mut next = Settings::default();
    (next.sections[0], next.sections[1]) = (7, 7);
    assert!(matches!(now(&world, changes.submit(next.clone())), Err(SubmitError::PartiallyApplied { .. })));
    let seen: Vec<_> = (0..3).map(|_| status()).collect();
    assert_eq!(seen.last(), Some(&HealthStatus::Unhealthy));
    now(&world, changes.submit(next)).unwrap();
    let seen: Vec<_> = (0..2).map(|_| status()).collect();
    assert_eq!(seen.last(), Some(&HealthStatus::Healthy));
}

// Guarantee: reconfiguration 4.
#[test]
fn of_those_that_wait_the_newest_goes_on_and_the_others_are_superseded() {
    let (world, parts, told) = (World::new(), parts(), Told::default());
    let is_well = Arc::new(AtomicBool::new(true));
    let health = healthy(&world, &is_well);
    let config = ReconfigurerConfig::default().bake(S(10));
    let changes = builder(&world, &parts, &told, config).health(&health).build().unwrap();
    let submits = async { join_all((1..=5).map(|number| changes.submit(Settings::of(number)))).await };
    let run = async { futures::future::select(Box::pin(submits), Box::pin(health.run(pending()))).await };
    let futures::future::Either::Left((results, _)) = world.run(S(60), run).unwrap() else { unreachable!() };
    // The first was in progress only after all were submitted, so it is superseded, too: the newest alone goes on.
    let ok: Vec<bool> = results.iter().map(Result::is_ok).collect();
    assert_eq!(ok.last(), Some(&true));
    assert!(results.iter().filter_map(|r| r.as_ref().err()).all(|e| matches!(e, SubmitError::Superseded)));
    assert_eq!(runs(&parts), [5; PARTS]);
    assert!(ok[1..4].iter().all(|ok| !ok), "{ok:?}");
}

/// Returns a health whose only check says this.
fn healthy(world: &World, is_well: &Arc<AtomicBool>) -> Health {
    let (pool, is_well) = (world.pool.clone(), is_well.clone());
    let check = Check::local("all", move || {
        let is_well = is_well.load(SeqCst);
        async move { if is_well { Ok(()) } else { Err("not well") } }
    });
    let config = HealthConfig::default().cache_ttl(S(1)).failure_threshold(1).success_threshold(1);
    let built = Health::builder(config).check(check).clock(&world.clock).spawner(move |task| pool.spawn(task));
    built.build().unwrap()
}

// Guarantee: reconfiguration 5.
#[test]
fn a_process_that_becomes_unhealthy_within_the_time_has_its_old_settings_again() {
    let (world, parts, told) = (World::new(), parts(), Told::default());
    let is_well = Arc::new(AtomicBool::new(true));
    let health = healthy(&world, &is_well);
    let config = ReconfigurerConfig::default().bake(S(30));
    let changes = builder(&world, &parts, &told, config).health(&health).build().unwrap();
    let script = async {
        world.clock.sleep(S(2)).await;
        let began = world.clock.now();
        changes.submit(Settings::of(1)).await.unwrap();
        assert!(world.clock.now() - began >= S(30));
        let breaks = async {
            world.clock.sleep(S(20)).await;
            assert_eq!(runs(&parts), [2; PARTS]);
            is_well.store(false, SeqCst);
        };
        let (result, ()) = futures::join!(changes.submit(Settings::of(2)), breaks);
        assert!(matches!(result, Err(SubmitError::Unhealthy)), "{result:?}");
        assert_eq!((runs(&parts), changes.settings().sections), (vec![1; PARTS], [1; PARTS]));
        assert_eq!(told.take().last(), Some(&Event::RolledBack { part: None }));
    };
    world
        .run(S(200), async { futures::future::select(Box::pin(script), Box::pin(health.run(pending()))).await })
        .unwrap();
    let error = builder(&world, &parts, &told, config).build().unwrap_err();
    assert_eq!(error.field(), "bake");
}

// Guarantee: reconfiguration 4.
#[test]
fn a_submit_dropped_at_every_await_is_applied_as_a_whole_or_not_at_all() {
    let (world, parts, told) = (World::new(), parts(), Told::default());
    let is_well = Arc::new(AtomicBool::new(true));
    let health = healthy(&world, &is_well);
    now(&world, health.report(&Group::Readiness));
    let config = ReconfigurerConfig::default().bake(S(3));
    let changes = builder(&world, &parts, &told, config).health(&health).build().unwrap();
    let number = std::cell::Cell::new(0);
    let polls = drop_at_every_await(
        &world.time,
        || {
            number.set(number.get() + 1);
            changes.submit(Settings::of(number.get()))
        },
        |_| {
            let runs = runs(&parts);
            assert!(runs.iter().all(|run| *run == runs[0]), "{runs:?}");
            assert_eq!(changes.settings().sections.to_vec(), runs);
            assert!(changes.is_whole());
        },
    );
    assert!(polls >= 4, "{polls}");
    assert_eq!(runs(&parts), [number.get(); PARTS]);
}

/// A part that submits a change while it is called.
struct Reentrant(Arc<OnceLock<Reconfigurer<u32>>>, Arc<Mutex<Option<SubmitError>>>);

impl Reconfigure<u32> for Reentrant {
    fn config(&self) -> u32 {
        0
    }
    fn validate(&self, _: &u32) -> Result<Effect, ConfigError> {
        Ok(Effect::InPlace)
    }
    fn apply(&self, next: u32) -> Result<(), ConfigError> {
        let within = self.0.get().unwrap().submit(next + 1).now_or_never().expect("it does not wait for itself");
        *self.1.lock().unwrap() = within.err();
        Ok(())
    }
}

// Guarantee: reconfiguration 4.
#[test]
fn a_change_that_a_part_submits_while_it_is_called_is_refused() {
    let (world, changes, refused) = (World::new(), Arc::new(OnceLock::new()), Arc::new(Mutex::new(None)));
    let part = Reentrant(changes.clone(), refused.clone());
    let built = Reconfigurer::builder(0, ReconfigurerConfig::default()).part("a", |n: &mut u32| n, part);
    changes.set(built.clock(&world.clock).build().unwrap()).unwrap();
    let submit = || now(&world, changes.get().unwrap().submit(5));
    submit().unwrap();
    assert!(matches!(*refused.lock().unwrap(), Some(SubmitError::FromWithin)));
    assert_eq!(*changes.get().unwrap().settings(), 5);
    submit().unwrap();
}

#[test]
fn a_part_that_needs_a_restart_and_has_no_child_is_refused_and_so_are_arguments_that_do_not_fit() {
    let (world, parts, told) = (World::new(), parts(), Told::default());
    let config = ReconfigurerConfig::default();
    let changes = builder(&world, &parts, &told, config).build().unwrap();
    let mut next = Settings::of(7);
    next.sections[2] = 99;
    let error = now(&world, changes.submit(next)).unwrap_err();
    assert!(matches!(&error, SubmitError::NeedsRestart { part, error } if part == "part-2" && error.field() == "size"));
    assert_eq!(runs(&parts), [0; PARTS]);
    let twice =
        builder(&world, &parts, &told, config).part("part-1", |s: &mut Settings| &mut s.sections[0], Part::default());
    assert_eq!(twice.build().unwrap_err().field(), "part");
    assert_eq!(builder(&world, &[], &told, config).build().unwrap_err().field(), "part");
    let config = config.bake(S(0));
    assert_eq!(builder(&world, &parts, &told, config).build().unwrap_err().field(), "bake");
}

// Guarantee: reconfiguration 4.
#[test]
fn ten_thousand_calls_go_on_across_a_hundred_changes_without_loss() {
    #[derive(Clone, PartialEq)]
    struct Policies {
        retry: RetryConfig,
        limit: RateLimitConfig,
    }
    let world = World::new();
    let first = Policies { retry: RetryConfig::default(), limit: RateLimitConfig::default() };
    let retry = Retry::builder(first.retry).clock(&world.clock).build().unwrap();
    let limit = RateLimiter::builder(first.limit).clock(&world.clock).build().unwrap();
    let changes = Reconfigurer::builder(first.clone(), ReconfigurerConfig::default())
        .part("retry", |p: &mut Policies| &mut p.retry, retry.clone())
        .part("limit", |p: &mut Policies| &mut p.limit, limit.clone())
        .build()
        .unwrap();
    let pipeline = Pipeline::new().then(limit).then(retry);
    let answered = AtomicU64::new(0);
    let calls = join_all((0..10_000u64).map(|n| {
        let (pipeline, clock, answered) = (&pipeline, &world.clock, &answered);
        async move {
            clock.sleep(MS(n / 10)).await;
            let call = async || {
                clock.sleep(MS(30)).await;
                Ok::<_, std::io::Error>(())
            };
            pipeline.call(call).await.unwrap();
            answered.fetch_add(1, SeqCst);
        }
    }));
    let submits = async {
        for n in 0..100u32 {
            let mut next = first.clone();
            next.retry = next.retry.max_attempts(2 + n % 7);
            next.limit = next.limit.permits(20_000 + n);
            changes.submit(next).await.unwrap();
            world.clock.sleep(MS(10)).await;
        }
    };
    world.run(S(600), async { futures::join!(calls, submits) }).unwrap();
    assert_eq!(answered.load(SeqCst), 10_000);
}
