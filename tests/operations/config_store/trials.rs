//! Trials and quarantine. A process that dies is dropped, with its run, and another one is built.
use std::{
    future::{pending, ready},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    config_store::{
        ConfigStore, ConfigStoreError, ConfigStoreEvent as Event, OnStartFailure, RejectReason, Revision, Veto,
    },
    port::{PortError, PortErrorKind},
    store::{InMemoryStore, Key, PutOptions, Store, StoreFuture, Version},
};

use super::{BoxError, Disk, Parses, Settings, Told, both, builder, follow, now, publisher};
use crate::{
    moody_store::{Mode, Moody},
    world::{S, World},
};

/// Trial by default.
const TRIAL: Duration = Duration::from_secs(60);

struct Process {
    world: World,
    store: Arc<dyn Store>,
    shared: Arc<Moody>,
    local: Arc<dyn Store>,
    parses: Parses,
    told: Told,
}

impl Process {
    fn new() -> Self {
        let world = World::new();
        let shared = Arc::new(Moody::new(&world.clock));
        let memory = Arc::new(InMemoryStore::builder().clock(&world.clock).build());
        let local: Arc<dyn Store> = Arc::new(Disk(memory));
        Self { store: shared.clone(), shared, local, parses: Parses::default(), told: Told::default(), world }
    }

    fn publish(&self, number: u64) -> u64 {
        now(&self.world, publisher(&self.world, &self.store, number).publish(both(number).force())).unwrap()
    }

    fn try_start(&self) -> Result<ConfigStore<Settings>, ConfigStoreError> {
        let built = self.told.by(builder(&self.world, &self.store, &self.parses)).local(self.local.clone());
        now(&self.world, built.build())
    }

    fn start(&self) -> ConfigStore<Settings> {
        self.try_start().unwrap()
    }
}

// Guarantee: config_store 5.
#[test]
fn a_revision_that_ends_two_lives_is_quarantined_until_a_higher_number_comes() {
    let p = Process::new();
    p.publish(1);
    let settings = p.start();
    follow(&p.world, &settings, TRIAL + S(5)); // and is killed
    p.publish(2);
    let settings = p.start();
    assert_eq!((settings.current().number(), settings.state().on_trial), (2, Some(2)));
    follow(&p.world, &settings, S(59)); // and is killed
    assert_eq!(p.start().current().number(), 2); // and is killed while it starts
    p.told.take();
    let parsed = p.parses.count();
    let settings = p.start();
    assert_eq!((settings.current().number(), settings.current().org), (1, 1));
    assert_eq!(settings.state().rejected, Some((2, RejectReason::Quarantined)));
    assert_eq!(p.parses.count(), parsed + 1, "the good one alone is parsed");
    let quarantined = Event::Rejected { number: 2, reason: RejectReason::Quarantined, field: None };
    assert_eq!(p.told.take(), [quarantined, Event::StartedFromLocal { number: 1 }]);
    follow(&p.world, &settings, S(500));
    assert_eq!(settings.current().number(), 1);
    assert_eq!(p.parses.count(), parsed + 1);
    // The same text again, under a higher number.
    assert_eq!(p.publish(2), 3);
    follow(&p.world, &settings, S(36) + TRIAL + S(5));
    assert_eq!((settings.current().number(), settings.current().org), (3, 2));
    assert_eq!(settings.state().on_trial, None);
}

// Guarantee: config_store 5.
#[test]
fn a_running_process_records_a_number_before_it_parses_and_a_loop_of_crashes_is_no_trial() {
    let p = Process::new();
    p.publish(1);
    let settings = p.start();
    follow(&p.world, &settings, TRIAL + S(5));
    p.publish(2);
    let mut lives = 0;
    // Each life is shorter than the trial; the wall clock runs on.
    while p.start().current().number() == 2 {
        lives += 1;
        let settings = p.start();
        follow(&p.world, &settings, S(40));
        p.world.time.advance(S(1_000));
        assert!(lives < 3);
    }
    let numbers: Vec<_> = p
        .told
        .take()
        .into_iter()
        .filter_map(|event| match event {
            Event::TrialPassed { number } => Some(number),
            _ => None,
        })
        .collect();
    assert_eq!(numbers, [1]);
}

// Guarantee: config_store 5.
#[test]
fn an_orderly_stop_is_no_death_and_a_trial_goes_on_until_it_has_passed() {
    let p = Process::new();
    p.publish(1);
    for _ in 0..6 {
        let settings = p.start();
        let stop = p.world.clock.sleep(S(20));
        p.world.run(S(30), settings.run(stop, |_| async { Ok::<_, Veto>(()) })).unwrap();
        assert_eq!(settings.state().on_trial, Some(1));
    }
    follow(&p.world, &p.start(), TRIAL + S(5));
    assert_eq!(p.start().state().on_trial, None);
}

// Guarantee: config_store 5.
#[test]
fn a_trial_passes_only_after_a_time_in_which_the_process_was_always_well() {
    let p = Process::new();
    p.publish(1);
    let is_fit = Arc::new(AtomicBool::new(true));
    let fit = is_fit.clone();
    let built = builder(&p.world, &p.store, &p.parses).local(p.local.clone());
    let settings = now(&p.world, built.health_check(move || fit.load(SeqCst)).build()).unwrap();
    let script = async {
        for _ in 0..5 {
            is_fit.store(true, SeqCst);
            p.world.clock.sleep(S(50)).await;
            is_fit.store(false, SeqCst);
            p.world.clock.sleep(S(5)).await;
            assert_eq!(settings.state().on_trial, Some(1));
        }
        is_fit.store(true, SeqCst);
        p.world.clock.sleep(S(63)).await;
        assert_eq!(settings.state().on_trial, None);
    };
    let run = settings.run(pending(), |_| async { Ok::<_, Veto>(()) });
    let both = async { futures::future::select(Box::pin(script), Box::pin(run)).await };
    p.world.run(S(600), both).unwrap();
}

// Guarantee: config_store 4.
#[test]
fn a_start_without_the_store_takes_the_last_known_good_revision() {
    let p = Process::new();
    p.publish(1);
    let settings = p.start();
    follow(&p.world, &settings, TRIAL + S(5));
    p.publish(2);
    follow(&p.world, &settings, S(40)); // 2 is taken, and the process is killed in its trial
    assert_eq!(settings.current().number(), 2);
    p.shared.is(Mode::Fails(PortErrorKind::Unavailable));
    let settings = p.start();
    assert_eq!((settings.current().number(), settings.current().org), (1, 1));
    // The trial of 2 is still recorded, and is not that of the revision that runs.
    assert_eq!((settings.state().age, settings.state().on_trial), (None, None));
    // The store is back: this life counts, too.
    p.shared.is(Mode::Well);
    follow(&p.world, &settings, S(40));
    assert_eq!(settings.current().number(), 2);
    let settings = p.start();
    assert_eq!(settings.state().rejected, Some((2, RejectReason::Quarantined)));
    // By choice the start fails.
    p.shared.is(Mode::Fails(PortErrorKind::Unavailable));
    let config = steadfast::config_store::ConfigStoreConfig::default().on_start_failure(OnStartFailure::Fail);
    let built = ConfigStore::builder(p.store.clone(), "shop", p.parses.load(), config).layers(["org", "billing"]);
    let built = built.local(p.local.clone()).clock(&p.world.clock);
    assert!(matches!(now(&p.world, built.build()), Err(ConfigStoreError::Store(_))));
}

// Guarantee: config_store 5.
#[test]
fn a_document_that_the_loader_refuses_ends_no_life_and_the_start_takes_the_good_one() {
    let p = Process::new();
    p.publish(1);
    follow(&p.world, &p.start(), TRIAL + S(5));
    p.publish(13);
    for _ in 0..5 {
        let settings = p.start();
        assert_eq!(settings.current().number(), 1);
        assert_eq!(settings.state().rejected, Some((2, RejectReason::Refused)));
        assert_eq!(settings.state().on_trial, None);
    }
}

// Guarantee: config_store 5.
#[test]
fn without_a_record_nothing_new_is_parsed() {
    let p = Process::new();
    let local = Arc::new(Moody::new(&p.world.clock));
    let start = || {
        let built = p.told.by(builder(&p.world, &p.store, &p.parses)).local(Arc::new(Disk(local.clone())));
        now(&p.world, built.build())
    };
    p.publish(1);
    let settings = start().unwrap();
    follow(&p.world, &settings, TRIAL + S(5));
    let parsed = p.parses.count();
    local.is(Mode::Fails(PortErrorKind::Full));
    p.publish(2);
    p.told.take();
    follow(&p.world, &settings, S(100));
    assert_eq!((settings.current().number(), p.parses.count()), (1, parsed));
    assert!(p.told.take().contains(&Event::LocalFailed { kind: Some(PortErrorKind::Full) }));
    // Whether it was quarantined cannot be read: no start.
    p.told.take();
    assert!(matches!(start(), Err(ConfigStoreError::Local(_))));
    assert_eq!(p.told.take(), [Event::LocalFailed { kind: Some(PortErrorKind::Full) }]);
    local.is(Mode::Well);
    follow(&p.world, &settings, S(36));
    assert_eq!(settings.current().number(), 2);
}

// Guarantee: config_store 5.
#[test]
fn without_a_good_revision_nothing_is_quarantined() {
    let fresh = Process::new();
    fresh.publish(1);
    for _ in 0..5 {
        assert_eq!(fresh.start().current().number(), 1); // and is killed
    }
    follow(&fresh.world, &fresh.start(), TRIAL + S(5));
    assert_eq!(fresh.start().state().on_trial, None);
}

// Guarantee: config_store 5.
#[test]
fn a_program_without_a_run_ends_in_order_by_one_that_is_over_at_once() {
    let p = Process::new();
    p.publish(1);
    follow(&p.world, &p.start(), TRIAL + S(5));
    p.publish(2);
    for _ in 0..5 {
        let settings = p.start();
        assert_eq!(settings.current().number(), 2);
        now(&p.world, settings.run(ready(()), |_| async { Ok::<_, Veto>(()) }));
    }
}

// Guarantee: config_store 5.
#[test]
fn a_rollback_that_meets_a_start_without_the_store_never_proves_the_text_that_killed() {
    let p = Process::new();
    p.publish(1);
    follow(&p.world, &p.start(), TRIAL + S(5));
    p.publish(2);
    drop(p.start()); // killed by 2
    let rollback = publisher(&p.world, &p.store, 9);
    assert_eq!(now(&p.world, rollback.rollback(1, "ada", "it kills")).unwrap(), 3);
    p.shared.is(Mode::Fails(PortErrorKind::Unavailable));
    let settings = p.start();
    p.shared.is(Mode::Well);
    follow(&p.world, &settings, S(36) + TRIAL + S(5));
    assert_eq!((settings.current().number(), settings.current().org), (3, 1));
    assert_eq!(p.publish(2), 4);
    assert_eq!(p.start().state().on_trial, Some(4));
    assert_eq!(p.start().state().on_trial, Some(4));
    let settings = p.start();
    assert_eq!((settings.current().number(), settings.current().org), (3, 1));
    assert_eq!(settings.state().rejected, Some((4, RejectReason::Quarantined)));
}

// Guarantee: config_store 4.
#[test]
fn a_start_whose_record_cannot_be_written_takes_the_last_known_good_revision() {
    let p = Process::new();
    let full = Arc::new(Full { store: p.local.clone(), is_full: AtomicBool::new(false) });
    let start = || {
        let built = p.told.by(builder(&p.world, &p.store, &p.parses)).local(full.clone());
        now(&p.world, built.build())
    };
    p.publish(1);
    follow(&p.world, &start().unwrap(), TRIAL + S(5));
    p.publish(2);
    full.is_full.store(true, SeqCst);
    p.told.take();
    let settings = start().unwrap();
    assert_eq!((settings.current().number(), settings.current().org), (1, 1));
    let failed = Event::LocalFailed { kind: Some(PortErrorKind::Full) };
    assert_eq!(p.told.take(), [failed, Event::StartedFromLocal { number: 1 }]);
    full.is_full.store(false, SeqCst);
    follow(&p.world, &settings, S(36));
    assert_eq!(settings.current().number(), 2);
    // Without a good one there is nothing better.
    full.is_full.store(true, SeqCst);
    let other = p.told.by(builder(&p.world, &p.store, &p.parses)).member("other").local(full.clone());
    assert!(matches!(now(&p.world, other.build()), Err(ConfigStoreError::Local(_))));
}

#[test]
fn a_local_store_that_fails_at_the_end_of_a_trial_is_asked_once_a_poll() {
    let p = Process::new();
    let full = Arc::new(Full { store: p.local.clone(), is_full: AtomicBool::new(false) });
    p.publish(1);
    let built = p.told.by(builder(&p.world, &p.store, &p.parses)).local(full.clone());
    let settings = now(&p.world, built.build()).unwrap();
    full.is_full.store(true, SeqCst);
    p.told.take();
    follow(&p.world, &settings, TRIAL + S(150));
    let failures = p.told.take();
    assert!((4..=6).contains(&failures.len()), "{failures:?}");
    full.is_full.store(false, SeqCst);
    follow(&p.world, &settings, TRIAL + S(5));
    assert_eq!(p.told.take(), [Event::TrialPassed { number: 1 }]);
}

// Guarantee: config_store 3.
#[test]
fn a_veto_holds_at_a_start_and_is_asked_for_again_by_the_run() {
    let p = Process::new();
    p.publish(1);
    let settings = p.start();
    follow(&p.world, &settings, TRIAL + S(5));
    p.publish(2);
    let run = |settings: &ConfigStore<Settings>, vetoed: u64| {
        let accept = |next: Arc<Revision<Settings>>| async move {
            if next.number() == vetoed { Err(Veto::new("no")) } else { Ok(()) }
        };
        p.world.run(S(40), settings.run(p.world.clock.sleep(S(38)), accept)).unwrap();
    };
    run(&settings, 2);
    assert_eq!((settings.current().number(), settings.state().rejected), (1, Some((2, RejectReason::Vetoed))));
    let settings = p.start();
    assert_eq!(settings.current().number(), 1);
    run(&settings, 2);
    assert_eq!((settings.current().number(), settings.state().rejected), (1, Some((2, RejectReason::Vetoed))));
    // Another release takes it.
    let settings = p.start();
    run(&settings, 0);
    assert_eq!(settings.current().number(), 2);
    assert_eq!(p.start().current().number(), 2);
}

// Guarantee: config_store 5.
#[test]
fn two_configurations_of_one_name_keep_their_trials_apart() {
    let p = Process::new();
    p.publish(1);
    follow(&p.world, &p.start(), TRIAL + S(5));
    // Of another program, with other layers, in the same process.
    let other = ConfigStore::builder(p.store.clone(), "shop", |_| Ok::<_, BoxError>(()), Default::default());
    let other = other.layers(["org"]).local(p.local.clone()).clock(&p.world.clock);
    let other = now(&p.world, other.build()).unwrap();
    p.world.run(TRIAL + S(5), other.run(pending(), |_| async { Ok::<_, Veto>(()) }));
    p.shared.is(Mode::Fails(PortErrorKind::Unavailable));
    assert_eq!(p.start().current().billing, 1);
}

/// A store that can be read while it is full.
#[derive(Debug)]
struct Full {
    store: Arc<dyn Store>,
    is_full: AtomicBool,
}

impl Store for Full {
    forward_store! { store: capabilities, get, delete, scan, batch }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        if self.is_full.load(SeqCst) {
            return Box::pin(async { Err(PortError::new(PortErrorKind::Full, "no space is left").into()) });
        }
        self.store.put(key, value, options)
    }
}
