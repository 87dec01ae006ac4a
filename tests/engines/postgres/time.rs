//! The server's clock, when it is stepped; what has expired; errors that the server reports.
use std::time::Duration;

use steadfast::{
    backend::postgres::PostgresConfig,
    lease::{Acquired, Lease, LeaseError},
    port::{Failure, FencingToken, PortErrorKind},
    store::{Key, PutOptions, Store, StoreExt},
};

use super::{connect, shared};
use crate::server::{self, wait_until};

const HOUR: Duration = Duration::from_secs(3600);
const KEY: Key<'static> = Key::new("p", "r");

/// Sets the clock that the schema's functions read to this many seconds off the server's.
fn step(config: &PostgresConfig, seconds: i64) {
    server::Postgres::shared().psql(&format!(
        "create or replace function \"{}\".now_us() returns bigint language sql volatile as \
         'select ((extract(epoch from clock_timestamp()) + {seconds}) * 1000000)::bigint'",
        config.schema
    ));
}

fn granted(acquired: Result<Acquired, LeaseError>) -> FencingToken {
    match acquired {
        Ok(Acquired::Granted(token)) => token,
        other => panic!("not granted: {other:?}"),
    }
}

// What the page states in "Time".
#[tokio::test]
async fn a_clock_that_is_set_forward_ends_terms_and_lives_earlier_and_tokens_still_protect() {
    let config = shared();
    let postgres = connect(&config).await;
    let (store, lease) = (postgres.store(), postgres.lease());
    let old = granted(lease.acquire("n", "one", HOUR).await);
    store.put(KEY, "x".into(), PutOptions::new().ttl(HOUR).fence(old)).await.unwrap();
    step(&config, 3601);
    assert!(matches!(lease.renew("n", "one", old, HOUR).await, Err(LeaseError::NotHeld)));
    let new = granted(lease.acquire("n", "two", HOUR).await);
    assert!(new > old);
    assert_eq!(store.get(KEY).await.unwrap(), None);
    store.put_fenced(KEY, "y", new).await.unwrap();
    assert!(store.put_fenced(KEY, "late", old).await.unwrap_err().is_fenced());
}

#[tokio::test]
async fn a_clock_that_is_set_back_makes_terms_and_lives_longer_by_the_step() {
    let config = shared();
    let postgres = connect(&config).await;
    let (store, lease) = (postgres.store(), postgres.lease());
    let token = granted(lease.acquire("n", "one", HOUR).await);
    store.put(KEY, "x".into(), PutOptions::new().ttl(Duration::from_millis(1))).await.unwrap();
    step(&config, -3600);
    assert!(store.get(KEY).await.unwrap().is_some());
    match lease.acquire("n", "two", HOUR).await.unwrap() {
        Acquired::Held(held) => assert_eq!(held.token, token),
        Acquired::Granted(token) => panic!("its term is longer, and it was granted: {token}"),
    }
    // A renewal is by the clock as it is.
    lease.renew("n", "one", token, Duration::from_millis(1)).await.unwrap();
    step(&config, -3599);
    assert!(granted(lease.acquire("n", "two", HOUR).await) > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn handles_that_write_delete_what_has_expired() {
    let (server, config) = (server::Postgres::shared(), shared());
    let postgres = connect(&config).await;
    let store = postgres.store();
    for i in 0..1000 {
        let options = PutOptions::new().ttl(HOUR);
        store.put(Key::new("ends", &i.to_string()), "x".into(), options).await.unwrap();
    }
    let count = || server.psql(&format!("select count(*) from \"{}\".records where part = 'ends'", config.schema));
    assert_eq!(count(), "1000");
    step(&config, 3601);
    for i in 0..64 {
        store.put(Key::new("stays", &i.to_string()), "x".into(), PutOptions::new()).await.unwrap();
    }
    wait_until("the sweep", || count() == "0");
    assert_eq!(store.scan_all(steadfast::store::Scan::partition("stays")).await.unwrap().len(), 64);
}

#[tokio::test]
async fn errors_of_the_server_have_the_kind_that_says_what_to_do() {
    let (server, config) = (server::Postgres::shared(), shared());
    let postgres = connect(&config).await;
    let store = postgres.store();
    let records = format!("\"{}\".records", config.schema);
    for (code, kind, word) in [
        ("53100", PortErrorKind::Full, "disk"),
        ("53200", PortErrorKind::Throttled, "max_locks_per_transaction"),
        ("40P01", PortErrorKind::Throttled, ""),
        ("57014", PortErrorKind::TimedOut, ""),
        ("25006", PortErrorKind::Unavailable, "read-only"),
        ("42501", PortErrorKind::Denied, "rights"),
        ("XX001", PortErrorKind::Corrupt, ""),
        ("22000", PortErrorKind::Other, ""),
    ] {
        server.psql(&format!(
            "create or replace function fails_{code}() returns trigger language plpgsql as \
             $$begin raise exception 'as told' using errcode = '{code}'; end$$"
        ));
        server.psql(&format!(
            "create trigger fails before insert or update on {records} execute function fails_{code}()"
        ));
        let error = store.put(KEY, "x".into(), PutOptions::new()).await.unwrap_err();
        let error = error.backend().unwrap();
        assert_eq!(error.kind(), kind, "{code}: {error}");
        assert!(error.to_string().contains(word) && error.to_string().contains(code), "{error}");
        assert!(!error.may_have_been_applied(), "{code}: {error}");
        server.psql(&format!("drop trigger fails on {records}"));
        store.put(KEY, "x".into(), PutOptions::new()).await.unwrap();
    }
    server.psql(&format!("drop schema \"{}\" cascade", config.schema));
    let error = store.get(KEY).await.unwrap_err();
    assert_eq!(error.backend().unwrap().kind(), PortErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("schema was dropped"), "{error}");
}
