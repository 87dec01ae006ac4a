//! Statements that are prepared, and connections that must not do so.
use steadfast::{
    backend::{TlsConfig, postgres::PostgresConfig},
    store::{Key, Store, StoreExt},
};

use super::{connect, new_schema, shared};
use crate::server::{self, Certificates, Lane, Pgbouncer, Proxy};

const KEY: Key<'static> = Key::new("p", "r");

/// Returns the bytes of a request on the way to this port, once its statement may be prepared.
async fn request(port: u16, config: PostgresConfig) -> u64 {
    let proxy = Proxy::start(port);
    let config = config.url(server::Postgres::shared().url_at(proxy.port())).schema(new_schema());
    let store = connect(&config).await.store();
    store.insert(KEY, "x").await.unwrap();
    store.get(KEY).await.unwrap();
    let before = proxy.bytes(Lane::Requests);
    assert_eq!(store.get(KEY).await.unwrap().unwrap().value, "x");
    proxy.bytes(Lane::Requests) - before
}

/// The statement's text is longer than its name and parameters.
const PREPARED: std::ops::Range<u64> = 1..150;

#[tokio::test]
async fn statements_are_prepared_unless_a_pooler_is_between() {
    let server = server::Postgres::shared();
    let direct = request(server.port(), shared()).await;
    assert!(PREPARED.contains(&direct), "{direct} bytes");
    let certificates = Certificates::new();
    let secure = server::Postgres::with_tls(&certificates, &[]);
    let roots = certificates.roots().to_str().unwrap().to_owned();
    let encrypted = request(secure.port(), shared().tls(TlsConfig::default().roots(roots))).await;
    assert!(PREPARED.contains(&encrypted), "{encrypted} bytes with TLS");
    let off = request(server.port(), shared().prepare(false)).await;
    assert!(!PREPARED.contains(&off), "{off} bytes");
    let pooler = Pgbouncer::start(server, 1);
    let pooled = request(pooler.port(), shared()).await;
    assert!(!PREPARED.contains(&pooled), "{pooled} bytes behind a pooler");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_a_session_does_not_know_is_sent_in_full() {
    let pooler = Pgbouncer::start(server::Postgres::shared(), 2);
    let store = connect(&shared().url(pooler.url()).prepare(true)).await.store();
    for i in 0..20_u32 {
        // Other sessions of the server come to answer.
        let rows: Vec<String> = (0..8).map(|row| format!("{i} {row}")).collect();
        let puts = rows.iter().map(|row| store.insert(Key::new("p", row), "x"));
        for put in futures::future::join_all(puts).await {
            put.unwrap();
        }
        assert!(store.get(Key::new("p", &rows[0])).await.unwrap().is_some());
    }
}
