//! PostgreSQL.
mod connections;
mod setups;

use steadfast::queue::{Delivery, Message, Queue, Receive};

use crate::{
    postgres::{connect, new_schema, shared},
    server,
};

async fn send(queue: &dyn Queue, bodies: impl IntoIterator<Item = impl Into<String>>) {
    let messages = bodies.into_iter().map(|body| Message::new(body.into())).collect();
    queue.send(messages).await.unwrap();
}

async fn take(queue: &dyn Queue, max: usize) -> Vec<Delivery> {
    queue.receive(Receive::new(max, std::time::Duration::from_secs(600))).await.unwrap()
}
