//! The contracts of the ports: two handles of a new schema, as two processes have them.
use std::sync::Arc;

use steadfast::{
    backend::postgres::{Postgres, PostgresConfig},
    lease::Lease,
    notify::Notifier,
    store::Store,
    stream::Topic,
    testing::conformance::{self, Case, Fixture},
};

use super::{connect, new_schema, patient, shared};
use crate::server::{self, Pgbouncer, Proxy};

/// Returns a fixture of two handles of a schema; the first one's connections can be cut. A restart closes all connections, and
/// does what `restart` does.
async fn fixture<P: ?Sized + 'static>(
    config: PostgresConfig,
    server_port: u16,
    restart: impl Fn() + Clone + 'static,
    port: fn(&Postgres) -> Arc<P>,
) -> Fixture<P> {
    let proxy = Arc::new(Proxy::start(server_port));
    let by_proxy = config.clone().url(config.url.replace(&server_port.to_string(), &proxy.port().to_string()));
    let (first, second) = (connect(&by_proxy).await, connect(&config).await);
    let made = Fixture::new(port(&first)).with_second_handle(port(&second)).keeping(proxy.clone());
    let cut = proxy.clone();
    let made = made.with_cut(async move || cut.cut());
    made.with_restart(async move || {
        restart();
        let (first, second) = (connect(&by_proxy).await, connect(&config).await);
        Fixture::new(port(&first)).with_second_handle(port(&second)).keeping(proxy.clone())
    })
}

async fn on_shared<P: ?Sized + 'static>(port: fn(&Postgres) -> Arc<P>) -> Fixture<P> {
    fixture(shared(), server::Postgres::shared().port(), || {}, port).await
}

fn store(postgres: &Postgres) -> Arc<dyn Store> {
    Arc::new(postgres.store())
}

fn lease(postgres: &Postgres) -> Arc<dyn Lease> {
    Arc::new(postgres.lease())
}

fn notifier(postgres: &Postgres) -> Arc<dyn Notifier> {
    Arc::new(postgres.notifier())
}

mod of_store {
    use super::*;

    steadfast::store_conformance!(async || on_shared(store).await);
}

/// Returns a topic of three partitions in the store.
fn topic(postgres: &Postgres) -> Arc<dyn Topic> {
    crate::topics::open(Arc::new(postgres.store()))
}

mod of_topic {
    use super::*;

    steadfast::topic_conformance!(async || on_shared(topic).await);
}

mod of_lease {
    use super::*;

    steadfast::lease_conformance!(async || on_shared(lease).await);
}

mod of_notifier {
    use super::*;

    steadfast::notifier_conformance!(async || on_shared(notifier).await);
}

/// Runs cases, as the tests of a suite do.
pub(super) fn run_all<P: ?Sized + 'static>(
    cases: impl IntoIterator<Item = Case<P>>,
    make: impl AsyncFn() -> Fixture<P> + Copy + Send + 'static,
) {
    cases.into_iter().for_each(|case| case.test(async move || make().await));
}

/// Cases whose names say that the backend restarts.
fn restarts<P: ?Sized + 'static>(cases: Vec<Case<P>>) -> Vec<Case<P>> {
    let cases: Vec<_> = cases.into_iter().filter(|case| case.name().contains("restart")).collect();
    assert!(!cases.is_empty(), "no case is about a restart");
    cases
}

/// Returns a fixture over a server of its own, which is killed with `kill -9` at each restart.
async fn on_killed<P: ?Sized + 'static>(port: fn(&Postgres) -> Arc<P>) -> Fixture<P> {
    let server = Arc::new(server::Postgres::start());
    let config = patient(server.url()).schema(new_schema());
    let kill = server.clone();
    fixture(config, server.port(), move || kill.restart(), port).await.keeping(server)
}

#[test]
fn what_was_accepted_outlives_a_killed_server() {
    run_all(restarts(conformance::store::cases()), async || on_killed(store).await);
    run_all(restarts(conformance::lease::cases()), async || on_killed(lease).await);
}

/// Returns a fixture behind a pooler in transaction mode; notices take the direct way.
async fn on_pooled<P: ?Sized + 'static>(port: fn(&Postgres) -> Arc<P>) -> Fixture<P> {
    let server = server::Postgres::shared();
    let pooler = Pgbouncer::start(server, 4);
    let config = patient(pooler.url()).notices_url(server.url()).schema(new_schema());
    let (first, second) = (connect(&config).await, connect(&config).await);
    let made = Fixture::new(port(&first)).with_second_handle(port(&second)).keeping(pooler);
    made.with_restart(async move || {
        Fixture::new(port(&connect(&config).await)).with_second_handle(port(&connect(&config).await))
    })
}

#[test]
fn the_ports_hold_behind_a_pooler_in_transaction_mode() {
    run_all(conformance::store::cases(), async || on_pooled(store).await);
    run_all(conformance::lease::cases(), async || on_pooled(lease).await);
    run_all(conformance::notify::cases(), async || on_pooled(notifier).await);
}

/// Returns a fixture whose connections prepare their statements.
async fn on_prepared<P: ?Sized + 'static>(port: fn(&Postgres) -> Arc<P>) -> Fixture<P> {
    let config = shared().prepare(true);
    let (first, second) = (connect(&config).await, connect(&config).await);
    Fixture::new(port(&first)).with_second_handle(port(&second)).with_restart(async move || {
        Fixture::new(port(&connect(&config).await)).with_second_handle(port(&connect(&config).await))
    })
}

#[test]
fn the_ports_hold_with_prepared_statements() {
    run_all(conformance::store::cases(), async || on_prepared(store).await);
    run_all(conformance::lease::cases(), async || on_prepared(lease).await);
}
