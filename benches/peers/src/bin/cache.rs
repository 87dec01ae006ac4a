//! What no loop over one call can show of a cache: a stampede, and the hit ratio on a Zipf trace. See README.md.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use steadfast::cache_aside::{CacheAside, CacheAsideConfig};

const TASKS: usize = 10_000;
const LOADER: Duration = Duration::from_millis(1);

fn main() {
    let quick = std::env::args().any(|word| word == "--quick");
    stampede(if quick { 1 } else { 25 });
    zipf(if quick { 200_000 } else { 5_000_000 });
}

/// 10,000 tasks on two workers ask for one missing key, whose loader takes 1 ms.
fn stampede(rounds: usize) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().expect("a runtime");
    let mut times: [Vec<Duration>; 5] = Default::default();
    let mut most = [0; 5];
    for round in 0..rounds {
        for turn in 0..5 {
            let who = (round + turn) % 5;
            let loads = Arc::new(AtomicU64::new(0));
            let counted = loads.clone();
            let load = move || {
                let loads = counted.clone();
                async move {
                    loads.fetch_add(1, Relaxed);
                    tokio::time::sleep(LOADER).await;
                    Ok::<u64, Infallible>(7)
                }
            };
            let took = runtime.block_on(async move {
                match who {
                    0 => {
                        let cache: CacheAside<u64, u64> = CacheAside::new(CacheAsideConfig::default()).expect("valid");
                        ask(move || {
                            let (cache, load) = (cache.clone(), load.clone());
                            async move { cache.get_or_load(&1, load).await.expect("a value") }
                        })
                        .await
                    }
                    1 => {
                        let cache = Arc::new(quick_cache::sync::Cache::<u64, u64>::new(100));
                        ask(move || {
                            let (cache, load) = (cache.clone(), load.clone());
                            async move { cache.get_or_insert_async(&1, load()).await.expect("a value") }
                        })
                        .await
                    }
                    2 => {
                        let cache = moka::future::Cache::<u64, u64>::new(100);
                        ask(move || {
                            let (cache, load) = (cache.clone(), load.clone());
                            async move { cache.try_get_with(1, load()).await.expect("a value") }
                        })
                        .await
                    }
                    3 => {
                        let cache: foyer::Cache<u64, u64> = foyer::CacheBuilder::new(100).build();
                        ask(move || {
                            let (cache, load) = (cache.clone(), load.clone());
                            async move {
                                let load = move || async move {
                                    load().await.map_err(|never| -> std::io::Error { match never {} })
                                };
                                *cache.get_or_fetch(&1, load).await.expect("a value").value()
                            }
                        })
                        .await
                    }
                    _ => {
                        ask(|| async {
                            tokio::time::sleep(LOADER).await;
                            7
                        })
                        .await
                    }
                }
            });
            times[who].push(took);
            most[who] = most[who].max(loads.load(Relaxed));
        }
    }
    println!("stampede of {TASKS} tasks on a missing key, loader {LOADER:?}, two workers, {rounds} rounds");
    let names =
        ["steadfast", "quick_cache 0.7", "moka 0.12 future", "foyer 0.22", "(floor) no cache, each waits by itself"];
    for ((name, times), loads) in names.iter().zip(&mut times).zip(most) {
        times.sort();
        let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
        println!("  {name:<40} median {median:>10.2?}   most {worst:>10.2?}   loads {loads}");
    }
}

async fn ask<F: Future<Output = u64> + Send + 'static>(one: impl Fn() -> F) -> Duration {
    let start = Instant::now();
    let tasks: Vec<_> = (0..TASKS).map(|_| tokio::spawn(one())).collect();
    for task in tasks {
        assert_eq!(task.await.expect("no panic"), 7);
    }
    start.elapsed()
}

/// Zipf with s = 1 over a million keys, capacity 10,000: hit ratio.
fn zipf(accesses: u64) {
    const KEYS: usize = 1_000_000;
    let mut sums = Vec::with_capacity(KEYS);
    let mut sum = 0.0;
    for rank in 1..=KEYS {
        sum += 1.0 / rank as f64;
        sums.push(sum);
    }
    let mut state = 42_u64;
    let mut trace = || {
        // SplitMix64: the same trace on every machine.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let unit = ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
        sums.partition_point(|at| *at < unit * sum) as u64
    };
    let trace: Vec<u64> = (0..accesses).map(|_| trace()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let ours: CacheAside<u64, u64> = CacheAside::new(CacheAsideConfig::default().capacity(10_000)).expect("valid");
    let quick = quick_cache::sync::Cache::<u64, u64>::new(10_000);
    let (start, mut loads) = (Instant::now(), 0_u64);
    runtime.block_on(async {
        for key in &trace {
            let key = *key;
            let load = || {
                loads += 1;
                async move { Ok::<u64, Infallible>(key) }
            };
            assert!(ours.get_or_load(&key, load).await.is_ok());
        }
    });
    let took = start.elapsed();
    let (start, mut misses) = (Instant::now(), 0_u64);
    for key in &trace {
        if quick.get(key).is_none() {
            misses += 1;
            quick.insert(*key, *key);
        }
    }
    let quick_took = start.elapsed();
    let line = |name: &str, misses: u64, took: Duration| {
        let (ratio, ns) = (1.0 - misses as f64 / accesses as f64, took.as_nanos() as f64 / accesses as f64);
        println!("  {name:<40} hits {:>6.2} %   {ns:>6.1} ns an access, with its inserts", ratio * 100.0);
    };
    println!("Zipf s=1, {KEYS} keys, capacity 10,000, {accesses} accesses");
    line("steadfast", loads, took);
    line("quick_cache 0.7", misses, quick_took);
}
