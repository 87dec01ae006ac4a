//! Handles the orders of all processes: price, permit, payment, shard.
use std::{sync::Arc, time::Duration};

use steadfast::{
    backend::Backend,
    backoff::BackoffConfig,
    queue_listener::{Disposition, QueueListener, QueueListenerConfig, Work},
    store::{Key, PutOptions},
};

use crate::{
    MS, Plant, Result,
    cache::Prices,
    ingest::ORDERS,
    limits::Limits,
    log::{Fact, Limit},
    node::Node,
    router::Router,
    wire::Order,
    world::PRODUCTS,
};

/// Time after which the orders of a killed process are delivered again.
pub const VISIBILITY: Duration = Duration::from_secs(4);
pub const RECEIPTS: &str = "receipts";
const TENANTS: u32 = 64;

fn config() -> QueueListenerConfig {
    let retry = BackoffConfig::default().between(MS(50), MS(1_000));
    // A kill, or an engine that is down, is not the fault of an order.
    QueueListenerConfig::default()
        .max_expiries(1_000)
        .visibility(VISIBILITY)
        .max_attempts(1_000)
        .batch(8)
        .tasks(1, 4)
        .retry(retry)
}

pub async fn run(node: &Node, backend: &Backend, prices: &Prices, limits: &Arc<Limits>) -> Result<()> {
    let name = node.engine.name(ORDERS);
    let listener = QueueListener::builder(backend.queue(&name).await?, config());
    let listener = listener.notifier(backend.notifier(), name).build()?;
    node.watch(ORDERS, &listener);
    let handler = Handler { node, prices, limits, router: Router::open(&node.engine).await?, backend };
    listener.run(std::future::pending(), async |work: Work| handler.handle(&work).await).await?;
    Ok(())
}

struct Handler<'a> {
    node: &'a Node,
    prices: &'a Prices,
    limits: &'a Limits,
    router: Router,
    backend: &'a Backend,
}

impl Handler<'_> {
    async fn handle(&self, work: &Work) -> Disposition {
        let Some(order) = std::str::from_utf8(&work.body).ok().and_then(|text| text.parse().ok()) else {
            return Disposition::dead_letter("not the number of an order");
        };
        let delivery = work.deliveries;
        self.node.log.say(Fact::Began { order, delivery });
        if order % 20 == 6 && self.node.has(Plant::Listener) {
            return Disposition::Complete;
        }
        let cents = match self.prices.get(self.node, u64::from(order) % PRODUCTS).await {
            Ok(cents) => cents,
            Err(error) => return Disposition::retry(error),
        };
        if let Err(rejected) = self.limits.acquire(self.node, Limit::Payments).await {
            return Disposition::refused(rejected.retry_after(), &rejected);
        }
        if let Err(error) = self.limits.pay(self.node, order).await {
            return Disposition::of_call(Err::<(), _>(error));
        }
        let put = Order { cents, tenant: order % TENANTS, number: order };
        if let Err(error) = self.router.put(put).await {
            return Disposition::retry(error);
        }
        let (receipts, row) = (self.node.engine.name(RECEIPTS), format!("{order:010}"));
        let receipt = self.backend.store().put(Key::new(&receipts, &row), "".into(), PutOptions::new()).await;
        if let Err(error) = receipt {
            return Disposition::retry(error);
        }
        self.node.log.say(Fact::Done { order, delivery });
        if order % 20 == 7 && delivery == 1 && self.node.has(Plant::Twice) {
            return Disposition::retry_after(MS(50), "planted");
        }
        Disposition::Complete
    }
}
