//! Ingestion: orders arrive, and are accepted once the queue has them.
use steadfast::{
    backend::Backend,
    port::{ErrorClass, Failure},
    queue::{AnnouncingQueue, Message, QueueExt},
    time::Clock,
};

use crate::{MS, Result, log::Fact, node::Node};

pub const ORDERS: &str = "orders-to-handle";

/// Number of orders that one process can give numbers to.
const ORDERS_EACH: u32 = 1 << 18;

/// Accepts orders at a steady rate, until the service closes.
pub async fn run(node: &Node, backend: &Backend) -> Result<()> {
    let (clock, name) = (Clock::tokio(), node.engine.name(ORDERS));
    let queue = AnnouncingQueue::new(backend.queue(&name).await?, backend.notifier(), name);
    let every = MS(1_000 * u64::from(node.args.processes) / u64::from(node.args.rate)).max(MS(1));
    let first = (node.number as u32 * 128 + node.life % 128) * ORDERS_EACH;
    let mut next = clock.now();
    while !node.is_closed() {
        let order = first + node.next_order();
        // Sent again after a failure, it is enqueued once.
        let message = || Message::new(order.to_string()).deduplicate(format!("order {order}"));
        loop {
            match queue.send_one(message()).await {
                Ok(_) => break,
                Err(error) if error.class() == ErrorClass::Permanent => return Err(error.into()),
                Err(_) => clock.sleep(MS(50)).await,
            }
        }
        node.log.say(Fact::Accepted { order });
        // No burst makes up for the time of a failure.
        next = (next + every).max(clock.now());
        clock.sleep_until(next).await;
    }
    Ok(())
}
