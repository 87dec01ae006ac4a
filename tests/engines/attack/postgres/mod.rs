//! PostgreSQL.
mod changes;
mod connections;
mod disk;
mod queue;
mod setups;
mod transactions;

use steadfast::queue::{Delivery, Message, Queue, Receive};
use tokio_postgres::{Client, NoTls};

use crate::{
    postgres::{connect, connect_in_haste, new_schema, patient, shared},
    server,
};

/// Returns the user's own connection.
async fn client(server: &server::Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn send(queue: &dyn Queue, bodies: impl IntoIterator<Item = impl Into<String>>) {
    let messages = bodies.into_iter().map(|body| Message::new(body.into())).collect();
    queue.send(messages).await.unwrap();
}

async fn take(queue: &dyn Queue, max: usize) -> Vec<Delivery> {
    queue.receive(Receive::new(max, std::time::Duration::from_secs(600))).await.unwrap()
}
