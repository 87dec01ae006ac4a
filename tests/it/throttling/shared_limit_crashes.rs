//! A process that crashes at each of its requests for a shared limit, or fails in each.
use std::{cell::Cell, future::pending, sync::Arc, time::Duration};

use futures::future::{Either, select};
use steadfast::{
    store::{InMemoryStore, Store},
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
    throttling::{Quota, SharedRateLimitConfig, SharedRateLimiter, WhenDown},
    time::{Clock, Timestamp},
};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Ten permits at once, ten a second.
fn config(leases: bool) -> SharedRateLimitConfig {
    let config = SharedRateLimitConfig::from(Quota::per_second(10).burst(10)).when_down(WhenDown::FailClosed);
    if leases { config.leased(MS(500)) } else { config }
}

/// Takes permits in one process, and then in another all that there are.
fn takes_permits(leases: bool, process: &CrashingProcess) {
    let (clock, time) = Clock::manual();
    let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
    let limiter = |store: Arc<dyn Store>| {
        let builder = SharedRateLimiter::builder(store, "payments", config(leases)).clock(&clock);
        builder.wall_time(Timestamp::from_millis(1_800_000_000_000)).build().unwrap()
    };
    let (own, beside) = (limiter(process.store(store.clone())), limiter(store));
    let admitted = Cell::new(0);
    let take = |limiter: &SharedRateLimiter, most: u32| {
        let limiter = limiter.clone();
        let admitted = &admitted;
        async move {
            for _ in 0..most {
                if limiter.acquire().await.is_ok() {
                    admitted.set(admitted.get() + 1);
                }
            }
        }
    };
    let start = time.now();
    let scenario = async {
        take(&own, 4).await;
        clock.sleep(MS(100)).await;
        own.tenant("acme").unwrap().acquire().await.ok();
        take(&own, 3).await;
    };
    let lives = async {
        match select(Box::pin(scenario), Box::pin(own.run(pending()))).await {
            Either::Left(((), _)) => {}
            Either::Right(_) => unreachable!("the loop ends only with the process"),
        }
    };
    let ended = time.block_on(process.run(lives));
    assert_eq!(ended.is_none(), process.has_crashed());

    time.block_on(take(&beside, 30));
    let passed = time.now() - start;
    let most = 10 + (passed.as_millis() / 100) as u32;
    let slack = config(leases).slack(Duration::ZERO);
    assert!(admitted.get() <= most + slack, "{} admitted after {passed:?}", admitted.get());
    // Whatever the other process took or lost comes back with the time, as if it had been used.
    time.advance(MS(2000));
    admitted.set(0);
    time.block_on(take(&beside, 30));
    assert!((10..=10 + slack).contains(&admitted.get()), "{} admitted after a rest", admitted.get());
    assert!(time.block_on(beside.tenant("acme").unwrap().acquire()).is_ok());
}

// Guarantee: throttling 9.
#[test]
fn a_process_that_crashes_at_any_request_neither_exceeds_a_shared_limit_nor_blocks_it() {
    for (leases, least) in [(false, 14), (true, 4)] {
        let requests = crash_at_every_write(|process| takes_permits(leases, process));
        assert!((least..=60).contains(&requests), "{requests}");
    }
}

// Guarantee: throttling 9.
#[test]
fn a_failure_of_any_request_neither_exceeds_a_shared_limit_nor_blocks_it() {
    for leases in [false, true] {
        fail_at_every_write(|process| takes_permits(leases, process));
    }
}
