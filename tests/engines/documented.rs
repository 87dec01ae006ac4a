//! The columns of the servers in the documented table of capabilities.
use steadfast::backend;

use crate::capability_table::{column, is_documented};

fn compare(name: &str, url: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { is_documented(&[column(name, &backend::open(url).await.unwrap()).await]) });
}

#[cfg(feature = "postgres")]
#[test]
fn the_documented_capabilities_of_postgres_are_those_of_the_code() {
    let server = crate::server::Postgres::start();
    compare("PostgreSQL", &server.url_at(server.port()));
}

#[cfg(feature = "redis")]
#[test]
fn the_documented_capabilities_of_redis_are_those_of_the_code() {
    let server = crate::server::Redis::durable();
    compare("Redis", &server.url_at(server.port()));
}

#[cfg(feature = "nats")]
#[test]
fn the_documented_capabilities_of_nats_are_those_of_the_code() {
    compare("NATS", &crate::server::NatsCluster::shared().url());
}
