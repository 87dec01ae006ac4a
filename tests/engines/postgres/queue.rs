//! The contract of the queue: two handles of a new schema, as two processes have them.
use std::sync::Arc;

use steadfast::{
    backend::postgres::{Postgres, PostgresConfig},
    queue::Queue,
    testing::{
        conformance::{self, Fixture},
        faults::{FaultConfig, FaultNetwork},
    },
    time::Clock,
};

use super::{connect, new_schema, patient, shared};
use crate::server::{self, Pgbouncer, Proxy};

pub(super) async fn open(postgres: &Postgres, name: &str) -> Arc<dyn Queue> {
    Arc::new(postgres.queue(name).await.unwrap_or_else(|error| panic!("{error}")))
}

/// Returns a fixture of two handles of a schema; the first one's connections can be cut. A restart closes all connections, and
/// does what `restart` does.
async fn fixture(config: PostgresConfig, server_port: u16, restart: impl Fn() + Clone + 'static) -> Fixture<dyn Queue> {
    let proxy = Arc::new(Proxy::start(server_port));
    let by_proxy = config.clone().url(config.url.replace(&server_port.to_string(), &proxy.port().to_string()));
    let kept = proxy.clone();
    let handles = async move || {
        let (first, second) = (connect(&by_proxy).await, connect(&config).await);
        let (queue, other) = (open(&first, "jobs").await, open(&second, "jobs").await);
        let neighbour = open(&first, "others").await;
        Fixture::new(queue).with_second_handle(other).with_neighbour(neighbour).keeping(kept.clone())
    };
    let made = handles().await.with_cut(async move || proxy.cut());
    made.with_restart(async move || {
        restart();
        handles().await
    })
}

mod contract {
    use super::*;

    steadfast::queue_conformance!(async || { fixture(shared(), server::Postgres::shared().port(), || {}).await });
}

#[test]
fn what_was_accepted_outlives_a_killed_server() {
    let cases = conformance::queue::cases().into_iter().filter(|case| case.name().contains("restart"));
    super::suites::run_all(cases, async || {
        let server = Arc::new(server::Postgres::start());
        let config = patient(server.url()).schema(new_schema());
        let kill = server.clone();
        fixture(config, server.port(), move || kill.restart()).await.keeping(server)
    });
}

#[test]
fn the_queue_holds_behind_a_pooler_in_transaction_mode() {
    // Most cases wait for real time.
    let cases = conformance::queue::cases();
    std::thread::scope(|scope| {
        for some in cases.chunks(40) {
            scope.spawn(move || super::suites::run_all(some.iter().copied(), async || behind_a_pooler().await));
        }
    });
}

async fn behind_a_pooler() -> Fixture<dyn Queue> {
    let server = server::Postgres::shared();
    let pooler = Pgbouncer::start(server, 4);
    let config = patient(pooler.url()).notices_url(server.url()).schema(new_schema());
    let handles = async move || {
        let (first, second) = (connect(&config).await, connect(&config).await);
        let made = Fixture::new(open(&first, "jobs").await).with_second_handle(open(&second, "jobs").await);
        made.with_neighbour(open(&first, "others").await)
    };
    handles().await.keeping(pooler).with_restart(handles)
}

mod safety {
    use super::*;

    steadfast::queue_safety!(async || {
        let postgres = connect(&shared()).await;
        let queue = open(&postgres, "jobs").await;
        let faults = FaultConfig::default().errors(0.1).lost_replies(0.1).doubled(0.1).late(0.1);
        let network = FaultNetwork::new(faults, 7, &Clock::tokio()).unwrap();
        let neighbour = open(&postgres, "others").await;
        Fixture::new(network.client("client").queue(queue.clone())).with_second_handle(queue).with_neighbour(neighbour)
    });
}
