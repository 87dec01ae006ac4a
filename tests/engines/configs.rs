//! Configurations over servers: a publisher, a process on trial and a driver of a roll-out end at each of their requests, and
//! another one goes on.
use std::{
    future::pending,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::future::{Either, select};
use steadfast::{
    backend::{self, Backend},
    config_store::{
        Change, ConfigPublisher, ConfigStore, ConfigStoreBuilder, ConfigStoreConfig, ConfigStoreEvent, Documents,
        PublisherConfig, RejectReason, Veto,
    },
    observe::Event,
    reconfiguration::{Rollout, RolloutConfig, RolloutError},
    store::Store,
    testing::{CrashingProcess, crash_at_every_write},
    time::Clock,
};
use tokio::runtime::Runtime;

use crate::server::{ends, look_again};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Waits for a fact.
async fn until(holds: impl AsyncFn() -> bool) {
    while !holds().await {
        look_again().await;
    }
}

/// Returns a name that no other test uses.
fn name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("config-{}", NUMBER.fetch_add(1, SeqCst))
}

fn both(number: u64) -> Change {
    Change::to("org", number.to_string()).and(Change::to("billing", number.to_string()))
}

fn publisher(backend: &Backend, store: Arc<dyn Store>, name: &str) -> ConfigPublisher {
    let built = ConfigPublisher::builder(store, name.to_owned(), PublisherConfig::default());
    built.notifier(backend.notifier()).build().unwrap()
}

/// Settings whose two layers have the same number.
fn settings(store: Arc<dyn Store>, name: &str, config: ConfigStoreConfig) -> ConfigStoreBuilder<u64> {
    let load = |documents: &Documents| {
        let [org, billing] = ["org", "billing"].map(|layer| documents.text(layer).unwrap().parse::<u64>().unwrap());
        assert_eq!(org, billing);
        Ok::<_, std::io::Error>(org)
    };
    ConfigStore::builder(store, name.to_owned(), load, config).layers(["org", "billing"])
}

/// The process crashes in requests of a publication and of a rollback.
async fn a_publisher_crashes(backend: &Backend, process: &CrashingProcess) {
    let (store, name) = (backend.store(), name());
    let good = publisher(backend, store.clone(), &name);
    good.publish(both(1)).await.unwrap();
    good.publish(both(2)).await.unwrap();
    let crashes = publisher(backend, process.store(store.clone()), &name);
    let work = async {
        crashes.publish(both(3)).await.unwrap();
        crashes.rollback(1, "ada", "no").await.unwrap();
    };
    let _ = process.run(work).await;
    let head = good.head().await.unwrap();
    let settings = settings(store, &name, ConfigStoreConfig::default()).build().await.unwrap();
    let now = settings.current();
    assert_eq!(now.number(), head);
    assert!(matches!((head, **now), (2, 2) | (3, 3) | (4, 1)), "{head} {}", **now);
    assert_eq!(good.publish(both(9)).await.unwrap(), head + 1);
    assert_eq!(settings.refresh().await.unwrap(), head + 1);
}

/// The process crashes in requests to the server and to its local file, while it passes a trial and takes the next revision.
async fn a_process_crashes_on_trial(backend: &Backend, folder: &Path, process: &CrashingProcess) {
    let (shared, name) = (backend.store(), name());
    let local = backend::open(&format!("sqlite:{}", folder.join(&name).display())).await.unwrap().store();
    let good = publisher(backend, shared.clone(), &name);
    good.publish(both(1)).await.unwrap();
    let (trial, has_passed) = (MS(30), Arc::new(AtomicBool::new(false)));
    let build = |store: Arc<dyn Store>, local: Arc<dyn Store>| {
        let passed = has_passed.clone();
        let built = settings(store, &name, ConfigStoreConfig::default().trial(trial)).local(local);
        let built = built.on_event(move |event: &Event<ConfigStoreEvent>| {
            passed.fetch_or(event.what == ConfigStoreEvent::TrialPassed { number: 1 }, SeqCst);
        });
        built.build()
    };
    let life = async {
        let settings = build(process.store(shared.clone()), process.store(local.clone())).await.unwrap();
        let script = async {
            until(async || settings.state().on_trial.is_none()).await;
            good.publish(both(2)).await.unwrap();
            settings.refresh().await.unwrap();
        };
        let run = settings.run(pending(), |_| async { Ok::<_, Veto>(()) });
        select(Box::pin(script), Box::pin(run)).await;
    };
    let _ = process.run(life).await;
    if good.head().await.unwrap() == 1 {
        good.publish(both(2)).await.unwrap();
    }
    // From now on it dies whenever it has parsed revision 2.
    let mut deaths = 0;
    let last = loop {
        let settings = build(shared.clone(), local.clone()).await.unwrap();
        let dies = settings.state().on_trial == Some(2);
        // A crash before the first revision had passed leaves no good one to start with.
        if !dies || deaths == 5 {
            break settings.state();
        }
        deaths += 1;
    };
    match (last.number, last.on_trial) {
        (1, None) => {
            assert_eq!(last.rejected, Some((2, RejectReason::Quarantined)));
            assert!((1..=2).contains(&deaths), "{deaths}");
        }
        (2, Some(2)) => assert!(!has_passed.load(SeqCst)),
        // It has passed its trial before the crash.
        (2, None) => assert_eq!(deaths, 0),
        other => panic!("{other:?}"),
    }
}

/// The driver of a roll-out crashes, and another one ends it.
async fn a_driver_crashes(backend: &Backend, process: &CrashingProcess) {
    let (store, name) = (backend.store(), name());
    let good = publisher(backend, store.clone(), &name);
    good.publish(both(1)).await.unwrap();
    let numbers = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let members = numbers.iter().enumerate().map(|(at, number)| {
        let config = ConfigStoreConfig::default().poll_interval(MS(1_000));
        let built = settings(store.clone(), &name, config).notifier(backend.notifier()).member(format!("member-{at}"));
        async move {
            let settings = built.build().await.unwrap();
            number.store(settings.current().number(), SeqCst);
            let accept = |next: Arc<steadfast::config_store::Revision<u64>>| {
                number.store(next.number(), SeqCst);
                async { Ok::<_, Veto>(()) }
            };
            settings.run(pending(), accept).await;
        }
    });
    // The driver looks when its stage is as it will be: then each run makes the same requests.
    let (clock, time) = Clock::manual();
    let config = RolloutConfig::default().bake(MS(5)).look_interval(MS(5));
    let looks = async {
        loop {
            until(async || {
                let (members, steps) = (good.members().await.unwrap(), good.steps(2).await.unwrap().len());
                let taken = members.iter().filter(|member| member.number == 2).count();
                time.next_timer().is_some() && taken >= steps.min(2)
            })
            .await;
            time.advance(MS(5));
        }
    };
    let script = async {
        until(async || good.members().await.is_ok_and(|members| members.len() == 2)).await;
        let crashes = publisher(backend, process.store(store.clone()), &name);
        let crashes = Rollout::builder(&crashes, config).clock(&clock).build().unwrap();
        let run = process.run(crashes.run(both(2).staged([0.5, 1.0])));
        let Either::Left((ended, _)) = select(Box::pin(run), Box::pin(looks)).await;
        assert!(matches!(ended, None | Some(Ok(2))), "{ended:?}");
        match Rollout::new(&good, config).unwrap().resume().await {
            Ok(number) => assert_eq!(number, 2),
            Err(RolloutError::NotUnderWay) => {}
            Err(error) => panic!("{error}"),
        }
        let head = good.head().await.unwrap();
        until(async || numbers.iter().all(|number| number.load(SeqCst) == head)).await;
    };
    match select(Box::pin(ends(script)), Box::pin(futures::future::join_all(members))).await {
        Either::Left(((), _)) => {}
        Either::Right(_) => panic!("a member has ended"),
    }
}

fn crashes(url: &str) {
    let (runtime, folder) = (runtime(), tempfile::tempdir().unwrap());
    let backend = runtime.block_on(ends(backend::open(url))).unwrap();
    let publishes = crash_at_every_write(|process| runtime.block_on(ends(a_publisher_crashes(&backend, process))));
    let trials = crash_at_every_write(|process| {
        runtime.block_on(ends(a_process_crashes_on_trial(&backend, folder.path(), process)));
    });
    let drives = crash_at_every_write(|process| runtime.block_on(a_driver_crashes(&backend, process)));
    println!("crashes before and after {publishes}, {trials} and {drives} requests");
    assert!(publishes >= 8 && trials >= 5 && drives >= 8, "{publishes} {trials} {drives}");
}

// Guarantee: config_store 1, 5.
// Guarantee: reconfiguration 7.
#[cfg(feature = "postgres")]
#[test]
fn what_crashes_at_any_request_to_postgres_leaves_a_configuration_whole() {
    crashes(&crate::server::Postgres::shared().url());
}

// Guarantee: config_store 1, 5.
// Guarantee: reconfiguration 7.
#[cfg(feature = "redis")]
#[test]
fn what_crashes_at_any_request_to_redis_leaves_a_configuration_whole() {
    crashes(&crate::server::Redis::shared().url());
}

// Guarantee: config_store 1, 5.
// Guarantee: reconfiguration 7.
#[cfg(feature = "nats")]
#[test]
fn what_crashes_at_any_request_to_nats_leaves_a_configuration_whole() {
    crashes(&crate::server::Nats::shared().url());
}
