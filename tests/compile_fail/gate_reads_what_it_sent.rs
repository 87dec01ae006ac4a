//! The process that sends must not read: `SendOnly` has no method to receive.
//~ no method named `receive` found for struct `SendOnly` in the current scope
//~ no method named `depth` found for struct `SendOnly` in the current scope
use std::{sync::Arc, time::Duration};

use steadfast::queue::{InMemoryQueue, Receive, SendOnly};

async fn gate() {
    let queue = SendOnly::new(Arc::new(InMemoryQueue::new("orders")));
    let _ = queue.receive(Receive::new(1, Duration::from_secs(30))).await;
    let _ = queue.depth().await;
}

fn main() {}
