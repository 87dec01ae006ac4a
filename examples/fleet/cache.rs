//! Prices: a cache in each process with a remote tier and a backplane; any process changes a price and invalidates it.
use std::{sync::Arc, time::Duration};

use steadfast::{
    backend::Backend,
    cache_aside::{CacheAside, CacheAsideConfig, Reached, RemoteConfig},
    codec::Codec,
    entropy::Entropy,
    time::Clock,
};

use crate::{MS, Plant, Result, common::number, log::Fact, node::Node, world::PRODUCTS};

/// Longest life of a price without an invalidation, and its jitter.
pub const TTL: Duration = Duration::from_secs(3);
pub const JITTER: Duration = Duration::from_millis(300);
/// Time for which a process keeps a price of the remote tier, and the jitter of that.
pub const LOCAL: Duration = Duration::from_millis(500);
pub const LOCAL_JITTER: Duration = Duration::from_millis(50);
/// Longest load of a price.
pub const LOAD: Duration = Duration::from_secs(2);

/// Part of the service that does without the remote tier, if the store cannot keep it.
pub const REMOTE: &str = "cache_aside: remote tier";

#[derive(Clone)]
pub struct Prices(CacheAside<u64, u64>);

pub fn open(node: &Node, backend: &Backend) -> Result<Prices> {
    let config = CacheAsideConfig::default().ttl(TTL).jitter(JITTER).hard_timeout(Some(LOAD));
    let config = config.remote(RemoteConfig::default().local_ttl(LOCAL).timeout(MS(300)));
    let builder = || CacheAside::builder(config).name(node.engine.name("prices")).backplane(backend.notifier());
    let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    match builder().remote(backend.store(), codec).build() {
        Ok(cache) => Ok(Prices(cache)),
        Err(refused) => {
            node.log.say(Fact::Without { part: REMOTE.to_owned(), why: refused.to_string() });
            Ok(Prices(builder().build()?))
        }
    }
}

impl Prices {
    pub fn watch(&self, node: &Node) {
        node.watch("prices", &self.0);
    }

    /// Returns the price of a product, in cents.
    pub async fn get(&self, node: &Node, product: u64) -> Result<u64> {
        let asked = node.log.now();
        let load = || {
            let (http, world) = (node.http.clone(), node.world);
            async move {
                let answer = http.get(world, &format!("/price/{product}")).await.map_err(|error| error.to_string())?;
                number(&answer).ok_or_else(|| "no price".to_owned())
            }
        };
        let price = self.0.get_or_load(&product, load).await.map_err(|error| error.to_string())?;
        node.log.say(Fact::Read { product, price, asked });
        Ok(price)
    }

    /// Raises the price of a product.
    async fn raise(&self, node: &Node, product: u64) {
        let raised = node.http.get(node.world, &format!("/raise/{product}")).await;
        // It may have been raised although there is no answer.
        let planted = node.has(Plant::Cache);
        let reached = if planted { Reached::Everywhere } else { self.0.invalidate(&product).await };
        if let Some(price) = raised.ok().and_then(|answer| number(&answer)) {
            node.log.say(Fact::Invalidated { product, price, everywhere: reached == Reached::Everywhere });
        }
    }
}

/// Receives the notices of the others, reads prices all the time, and raises one now and then.
pub async fn run(node: Arc<Node>, prices: Prices) {
    let (clock, entropy) = (Clock::tokio(), Entropy::from_os());
    let reads = async {
        loop {
            let _ = prices.get(&node, entropy.up_to(PRODUCTS - 1)).await;
            clock.sleep(MS(20 + entropy.up_to(60))).await;
        }
    };
    let raises = async {
        loop {
            clock.sleep(MS(500 + entropy.up_to(1_000))).await;
            prices.raise(&node, entropy.up_to(PRODUCTS - 1)).await;
        }
    };
    tokio::join!(prices.0.run(std::future::pending()), reads, raises).1
}
