//! A price list that becomes unavailable: its readers get marked substitutes.
//!
//! While the server is up, readers get its answers. While it is down, they get those of a replica, which may be
//! old; without the replica, the last known price; and without one, the first cause. The breaker saves the
//! server calls, and the readers the wait. The last line is the
//! result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
use std::{
    collections::HashMap,
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use serde_json::json;
use steadfast::{
    Cause, Pipeline,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, TripConfig},
    fallback::{Answer, Failed, Fallback, FallbackConfig},
    http::ByStatus,
    time::Clock,
    timeout::Timeout,
};

#[path = "common/mod.rs"]
mod common;
use common::{Http, answer, end, no_arguments, number, say, serve};

const PRODUCTS: u64 = 50;
/// Longer than a busy machine stalls.
const ATTEMPT: Duration = Duration::from_millis(750);

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments("A price list that becomes unavailable: its readers get marked substitutes.");
    end(show().await)
}

/// A server of prices that can be taken down: then it does not answer.
struct Shop {
    address: SocketAddr,
    is_away: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
}

impl Shop {
    async fn open(markup: u64) -> common::Result<Self> {
        let (is_away, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let address = serve({
            let (is_away, asked) = (is_away.clone(), asked.clone());
            move |request| {
                let (away, product) =
                    (is_away.load(SeqCst), request.uri().path().trim_start_matches('/').parse::<u64>());
                asked.fetch_add(1, SeqCst);
                async move {
                    if away {
                        Clock::tokio().sleep(ATTEMPT * 4).await;
                    }
                    match product {
                        Ok(product) => answer(200, 1000 + product + markup),
                        Err(error) => answer(400, error),
                    }
                }
            }
        });
        Ok(Self { address: address.await?, is_away, asked })
    }
}

#[derive(Default)]
struct Seen {
    own: u64,
    degraded: u64,
    failed: u64,
}

async fn show() -> common::Result<(serde_json::Value, bool)> {
    let (shop, replica, http, clock) = (Shop::open(0).await?, Shop::open(5).await?, Http::new(), Clock::tokio());
    let last_seen = Mutex::new(HashMap::<u64, u64>::new());
    let known = || last_seen.lock().unwrap_or_else(PoisonError::into_inner);

    let fallback = Fallback::builder(FallbackConfig::default().timeout(ATTEMPT * 2)).name("prices").build()?;
    let mut events = fallback.events();
    let breaker =
        CircuitBreaker::new(CircuitBreakerConfig::default().trip(TripConfig::default().consecutive_failures(3)))?;
    let pipeline = Pipeline::new().then(fallback).then(breaker).then(Timeout::new(ATTEMPT)).classify(ByStatus::new());
    // The replica has its own breaker, because all readers fall back on it.
    let breaker =
        CircuitBreaker::new(CircuitBreakerConfig::default().trip(TripConfig::default().consecutive_failures(3)))?;
    let to_replica = Pipeline::new().then(breaker).then(Timeout::new(ATTEMPT)).classify(ByStatus::new());

    // Another operation within the remaining time; if it fails, the last known value; without one, the error.
    let instead = |product: u64, failed: &Failed<'_, common::Answer, _>| {
        let (within, http, to_replica) = (failed.within(), http.clone(), &to_replica);
        async move {
            let path = format!("/{product}");
            match to_replica.call_within(within, || http.get(replica.address, &path)).await {
                Ok(price) => Ok(price),
                Err(error) => match known().get(&product) {
                    Some(price) => Ok(answer(200, price)),
                    None => Err(error.to_string().into()),
                },
            }
        }
    };

    say(format!("\n{PRODUCTS} prices requested in each round\n"));
    let mut rounds = Vec::new();
    for (title, shop_is_away, replica_is_away) in
        [("all is well", false, false), ("it is away", true, false), ("the replica, too", true, true)]
    {
        shop.is_away.store(shop_is_away, SeqCst);
        replica.is_away.store(replica_is_away, SeqCst);
        let (mut seen, start) = (Seen::default(), clock.now());
        for product in 0..PRODUCTS {
            let path = format!("/{product}");
            match pipeline.call_or_marked(|| http.get(shop.address, &path), |failed| instead(product, &failed)).await {
                Ok(Answer::Own(price)) => {
                    seen.own += 1;
                    let price = number(&price).ok_or("not a price")?;
                    if product % 2 == 0 {
                        known().insert(product, price); // no cache keeps everything
                    }
                }
                Ok(Answer::Degraded { instead_of, .. }) => {
                    let real_cause = instead_of.err().is_some_and(|e| e.is_timed_out() || e.is_rejected());
                    seen.degraded += u64::from(real_cause);
                }
                Err(error) => {
                    // The first cause, with the substitute's error beside it.
                    let first = error.is_timed_out() || error.is_rejected();
                    seen.failed += u64::from(first && matches!(error.fallback(), Some(Cause::Operation(_))));
                }
            }
        }
        let (asked, took) = (shop.asked.swap(0, SeqCst), clock.now() - start);
        let Seen { own, degraded, failed } = seen;
        say(format!(
            "  {title:<17} {own:>2} own, {degraded:>2} degraded, {failed:>2} failed; {asked:>2} requests to it, {:>4} ms",
            took.as_millis()
        ));
        rounds.push((seen, asked));
    }
    let mut told = 0;
    while events.try_recv()?.is_some() {
        told += 1;
    }

    let [(well, _), (away, asked), (both, _)] = &rounds[..] else { return Err("three rounds".into()) };
    let summary = json!({
        "products": PRODUCTS, "own": well.own, "degraded": away.degraded, "requests_while_away": asked,
        "degraded_without_replica": both.degraded, "failed_without_replica": both.failed, "events": told,
    });
    let holds = well.own == PRODUCTS
        && away.degraded == PRODUCTS
        && *asked < PRODUCTS / 5
        && (both.degraded, both.failed) == (PRODUCTS / 2, PRODUCTS / 2)
        && told == 2 * PRODUCTS;
    Ok((summary, holds))
}
