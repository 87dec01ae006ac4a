//! Patterns whose processes share state on a server: limits, breakers, caches and checkpoints.
use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::future::join_all;
use steadfast::{
    backend::{self, Backend},
    cache_aside::{CacheAside, CacheAsideConfig, RemoteConfig},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, SharedCircuitBreaker, SharedCircuitBreakerConfig, State},
    codec::Codec,
    supervisor::{CheckpointError, Child, ChildContext, Restart, Supervisor, SupervisorConfig},
    throttling::{Quota, SharedRateLimitConfig, SharedRateLimiter, Sharing, WhenDown},
};

use tokio::sync::Notify;

use crate::server::{ends, look_again};

const HOUR: Duration = Duration::from_secs(3600);
/// Time limit of a request to a busy server.
const PATIENCE: Duration = Duration::from_secs(60);
const PROCESSES: usize = 4;

/// Returns a name that no other test uses.
fn name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("shared-{}", NUMBER.fetch_add(1, Relaxed))
}

/// Opens a handle for each process.
async fn processes(url: &str) -> Vec<Backend> {
    join_all((0..PROCESSES).map(|_| async { ends(backend::open(url)).await.unwrap() })).await
}

/// Four processes compete for the permits of an hour, each with forty calls at once.
async fn a_limit_is_kept(url: &str) {
    let backends = processes(url).await;
    for (sharing, permits) in [(Sharing::Exact, 50), (Sharing::Leased { every: Duration::from_millis(100) }, 50)] {
        let (name, is_exact) = (name(), sharing == Sharing::Exact);
        let config = SharedRateLimitConfig::from(Quota::new(permits, HOUR))
            .sharing(sharing)
            .when_down(WhenDown::FailClosed)
            .call_timeout(Duration::from_secs(30));
        let limiters: Vec<_> =
            backends.iter().map(|backend| SharedRateLimiter::new(backend.store(), &name, config).unwrap()).collect();
        let calls = limiters.iter().flat_map(|limiter| (0..40).map(|_| limiter.acquire()));
        let admitted = ends(join_all(calls)).await.iter().filter(|call| call.is_ok()).count();
        assert!(limiters.iter().all(|limiter| !limiter.is_store_down()));
        if is_exact {
            assert_eq!(admitted, permits as usize);
        } else {
            // Permits that a process has leased and not spent are lost.
            assert!((1..=permits as usize).contains(&admitted), "{admitted}");
        }
    }
}

/// A breaker that opens opens those of the other processes, and a process that ends takes its report away.
async fn an_opening_is_shared(url: &str) {
    let (backends, name) = (processes(url).await, name());
    let breakers: Vec<_> = backends
        .iter()
        .map(|backend| {
            let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).build().unwrap();
            // A busy server answers late, and a report is renewed late.
            let config = SharedCircuitBreakerConfig::default().poll(Duration::from_millis(200));
            let config = config.stale_after(HOUR).call_timeout(Duration::from_secs(30));
            SharedCircuitBreaker::builder(breaker, backend.store(), &name, config)
                .notifier(backend.notifier())
                .build()
                .unwrap()
        })
        .collect();
    let runs = join_all(breakers.iter().map(|breaker| breaker.run(pending())));
    let facts = async {
        breakers[0].breaker().force_open(HOUR);
        while breakers.iter().any(|breaker| breaker.breaker().state() != State::Open) {
            look_again().await;
        }
        assert!(
            breakers[1..].iter().all(|breaker| breaker.reports().len() == 1),
            "a breaker that follows reports nothing"
        );
        breakers[0].breaker().close();
        while breakers.iter().any(|breaker| !breaker.reports().is_empty()) {
            look_again().await;
        }
        assert!(breakers.iter().all(|breaker| !breaker.is_store_down()));
    };
    ends(async {
        tokio::select! { () = facts => {}, _ = runs => {} }
    })
    .await;
}

/// A value is loaded once by all processes, and after an update no process returns the old one for long.
async fn a_cache_is_shared(url: &str) {
    let (backends, name) = (processes(url).await, name());
    let codec = || {
        Codec::new(
            |value: &u32| Ok::<_, std::io::Error>(value.to_be_bytes().to_vec()),
            |bytes| bytes.try_into().map(u32::from_be_bytes),
        )
    };
    // A process whose request takes longer loads by itself.
    let patience = RemoteConfig::default().timeout(Duration::from_secs(30)).wait(Duration::from_secs(30));
    let config = CacheAsideConfig::default().remote(patience);
    let caches: Vec<CacheAside<u32, u32>> = backends
        .iter()
        .map(|backend| {
            let builder = CacheAside::builder(config).name(&*name);
            builder.remote(backend.store(), codec()).backplane(backend.notifier()).build().unwrap()
        })
        .collect();
    let (source, loads) = (Arc::new(AtomicU32::new(1)), Arc::new(AtomicU32::new(0)));
    let load = || {
        let (source, loads) = (source.clone(), loads.clone());
        async move {
            loads.fetch_add(1, Relaxed);
            Ok::<_, std::io::Error>(source.load(Relaxed))
        }
    };
    let runs = join_all(caches.iter().map(|cache| cache.run(pending())));
    let facts = async {
        let gets = caches.iter().flat_map(|cache| (0..20).map(|_| cache.get_or_load(&7, load)));
        assert!(join_all(gets).await.iter().all(|value| matches!(value, Ok(1))));
        assert!(loads.load(Relaxed) < 2, "{} loads by {PROCESSES} processes", loads.load(Relaxed));
        let write = async {
            source.store(2, Relaxed);
            Ok::<_, std::io::Error>(())
        };
        caches[0].update(&7, write).await.unwrap();
        for cache in &caches {
            while cache.get_or_load(&7, load).await.unwrap() != 2 {
                look_again().await;
            }
        }
    };
    ends(async {
        tokio::select! { () = facts => {}, _ = runs => {} }
    })
    .await;
}

/// The latest instance of a child owns its checkpoint, whichever process it is in.
async fn a_checkpoint_has_one_owner(url: &str) {
    let (backends, name) = (processes(url).await, name());
    let (saved, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let supervisor = |backend: &Backend, child: Child| {
        let built =
            Supervisor::builder(SupervisorConfig::default().max_restarts(0).call_timeout(PATIENCE)).name(&*name);
        built.checkpoints(backend.store()).child(child.restart(Restart::Transient)).build().unwrap()
    };
    let (tells, waits) = (saved.clone(), go.clone());
    let first = Child::new("steps", move |cx: ChildContext| {
        let (tells, waits) = (tells.clone(), waits.clone());
        async move {
            assert_eq!(cx.checkpoint().await?, None);
            cx.save_checkpoint("1").await?;
            tells.notify_one();
            waits.notified().await;
            let late = cx.save_checkpoint("3").await;
            assert!(matches!(late, Err(CheckpointError::Superseded)), "{late:?}");
            Ok::<_, CheckpointError>(())
        }
    });
    let second = Child::new("steps", async |cx: ChildContext| {
        assert_eq!(cx.checkpoint().await?.as_deref(), Some(&b"1"[..]));
        cx.save_checkpoint("2").await
    });
    let (first, second) = (supervisor(&backends[0], first), supervisor(&backends[1], second));
    let one = tokio::spawn(async move { first.run(pending()).await });
    ends(saved.notified()).await;
    ends(second.run(pending())).await.unwrap();
    go.notify_one();
    ends(one).await.unwrap().unwrap();
}

/// Of members that lose a dependency half leave, whichever process they are in, and all return.
#[cfg(any(feature = "postgres", feature = "redis"))]
async fn half_of_a_fleet_stays(url: &str) {
    use std::{pin::pin, sync::atomic::AtomicBool};

    use futures::future::select;
    use steadfast::{
        health::{Check, Group, GroupReason, Health, HealthConfig},
        store::{Scan, StoreExt},
    };

    const MEMBERS: usize = 6;
    let (backends, name) = (processes(url).await, name());
    let is_away = Arc::new(AtomicBool::new(false));
    let members: Vec<_> = (0..MEMBERS)
        .map(|i| {
            let database = is_away.clone();
            let ping = move || {
                let is_away = database.load(Relaxed);
                async move { if is_away { Err("connection refused") } else { Ok(()) } }
            };
            let config = HealthConfig::default().cache_ttl(Duration::from_millis(200)).failure_threshold(1);
            let built = Health::builder(config).name(&*name).check(Check::dependency("db", ping).required());
            built.fleet(backends[i % PROCESSES].store(), format!("member-{i}")).build().unwrap()
        })
        .collect();
    let count = || {
        let reports = members.iter().map(|health| health.last_report(&Group::Readiness));
        let of = |reason| reports.clone().filter(|report| report.reason == Some(reason)).count();
        let (left, stayed) = (of(GroupReason::Ejected), of(GroupReason::Stayed));
        assert!(left <= MEMBERS / 2, "{left} of {MEMBERS} members left");
        (left, stayed)
    };
    let runs = join_all(members.iter().map(|health| health.run(pending())));
    let store = backends[0].store();
    let partition = format!("health {name}");
    let facts = async {
        // Each has a row.
        while store.scan_all(Scan::partition(&partition)).await.unwrap().len() < MEMBERS {
            look_again().await;
        }
        is_away.store(true, Relaxed);
        while count() != (MEMBERS / 2, MEMBERS / 2) {
            look_again().await;
        }
        is_away.store(false, Relaxed);
        while count() != (0, 0) {
            look_again().await;
        }
    };
    ends(select(pin!(facts), pin!(runs))).await;
}

macro_rules! on {
    ($engine:ident, $feature:literal, $url:expr) => {
        #[cfg(feature = $feature)]
        mod $engine {
            #[tokio::test(flavor = "multi_thread")]
            async fn four_processes_keep_a_shared_limit() {
                super::a_limit_is_kept(&$url).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn an_opening_of_one_process_opens_the_breakers_of_the_others() {
                super::an_opening_is_shared(&$url).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn the_latest_process_owns_the_checkpoint_of_a_child() {
                super::a_checkpoint_has_one_owner(&$url).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn a_value_is_loaded_once_by_all_processes_and_an_update_reaches_them() {
                super::a_cache_is_shared(&$url).await;
            }
        }
    };
}

on!(postgres, "postgres", crate::server::Postgres::shared().url());
on!(redis, "redis", crate::server::Redis::shared().url());
on!(nats, "nats", crate::server::Nats::shared().url());

// Rows with times to live, which NATS has not.
// Guarantee: health 4.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn half_of_a_fleet_on_postgres_stays_when_a_dependency_is_lost() {
    half_of_a_fleet_stays(&crate::server::Postgres::shared().url()).await;
}

// Guarantee: health 4.
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn half_of_a_fleet_on_redis_stays_when_a_dependency_is_lost() {
    half_of_a_fleet_stays(&crate::server::Redis::shared().url()).await;
}
