//! Set-ups that cannot work: each is refused by name, in time, and without a password in the message.
use std::{sync::Mutex, time::Duration};

use steadfast::{
    backend::{
        self, TlsConfig,
        postgres::{Postgres, PostgresConfig},
    },
    lease::Lease,
    port::{Capability, Failure, PortError, PortErrorKind},
    store::{Key, Store, StoreExt},
};

use super::{connect, new_schema, shared};
use crate::{
    says,
    server::{self, Certificates, wait_until},
};

/// Connects in vain; returns the error.
async fn refused(config: &PostgresConfig) -> PortError {
    let Err(error) = server::ends(Postgres::connect(config.clone())).await else { panic!("{config:?} was accepted") };
    assert!(error.to_string().starts_with("postgres: ") || error.kind() == PortErrorKind::Invalid, "{error}");
    error
}

/// Returns settings for a role of the shared server that was made with these statements; `{r}` is its name.
fn role(statements: &str) -> PostgresConfig {
    let (server, config) = (server::Postgres::shared(), shared());
    let name = config.schema.replace(' ', "_");
    // Of two grants on a database at once, the server refuses one.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for statement in format!("create role {{r}} login;{statements}").replace("{r}", &name).split(';') {
        server.psql(statement);
    }
    config.url(server.url().replace("postgres@", &format!("{name}@")))
}

#[tokio::test]
async fn a_wrong_password_is_denied_and_not_shown() {
    let server = server::Postgres::start();
    server.psql("create role app login password 'right'");
    server.psql("grant create on database postgres to app");
    server.set_hba("host all postgres all trust\nhost all all all scram-sha-256\n");
    let url = |password: &str| server.url().replace("postgres@", &format!("app:{password}@"));
    wait_until("the rules are read", || {
        server.psql("select count(*) from pg_hba_file_rules where auth_method = 'scram-sha-256'") != "0"
    });
    let error = refused(&PostgresConfig::at(url("hunter2"))).await;
    says(&error, PortErrorKind::Denied, &["password", "url"]);
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    let none = refused(&PostgresConfig::at(server.url().replace("postgres@", "app@"))).await;
    says(&none, PortErrorKind::Denied, &["password"]);
    let right = PostgresConfig::at(url("right"));
    assert!(!format!("{right:?}").contains("right"), "{right:?}");
    connect(&right).await.store().insert(Key::new("p", "r"), "x").await.unwrap();
}

#[tokio::test]
async fn a_malformed_url_is_invalid_and_not_shown() {
    for url in ["postgres://app:hunter2@host:port/db", "postgres://app:hunter2@host/db?nonsense=1", "host"] {
        let error = refused(&PostgresConfig::at(url)).await;
        says(&error, PortErrorKind::Invalid, &["url"]);
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        assert!(!format!("{:?}", PostgresConfig::at(url)).contains("hunter2"));
    }
}

#[tokio::test]
async fn an_unknown_host_and_a_closed_port_are_transient_and_named() {
    for (host, port) in [("no-such-host.invalid", 5432), ("127.0.0.1", 1)] {
        let config = PostgresConfig::at(format!("postgres://postgres@{host}:{port}/postgres"));
        let error = refused(&config).await;
        assert!(matches!(error.kind(), PortErrorKind::Unavailable | PortErrorKind::TimedOut), "{error}");
        assert!(error.to_string().contains(host), "{error}");
        assert!(!error.may_have_been_applied());
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up_in_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://postgres@{}/postgres", silent.local_addr().unwrap());
    let error = refused(&PostgresConfig::at(url).connect_timeout(Duration::from_millis(200))).await;
    assert!(matches!(error.kind(), PortErrorKind::Unavailable | PortErrorKind::TimedOut), "{error}");
}

const ENCRYPTED: &str =
    "select count(*) from pg_stat_ssl join pg_stat_activity using (pid) where ssl and application_name = 'steadfast'";

#[tokio::test]
async fn a_certificate_that_is_not_trusted_is_refused_and_a_trusted_one_accepted() {
    let (certificates, strangers) = (Certificates::new(), Certificates::new());
    let server = server::Postgres::with_tls(&certificates, &[]);
    let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let config = || PostgresConfig::at(server.url());
    let error = refused(&config().tls(TlsConfig::default().roots(path(&strangers.roots())))).await;
    says(&error, PortErrorKind::Denied, &["TLS", "tls.roots"]);
    let trusted = || TlsConfig::default().roots(path(&certificates.roots()));
    connect(&config().tls(trusted())).await.store().insert(Key::new("p", "r"), "x").await.unwrap();
    assert_eq!(server.psql(ENCRYPTED), "1", "it is encrypted");
    // By its certificate alone.
    server.set_hba("hostssl all postgres all cert\nhostnossl all postgres all trust\n");
    wait_until("the rules are read", || {
        server.psql("select count(*) from pg_hba_file_rules where auth_method = 'cert'") != "0"
    });
    says(&refused(&config().tls(trusted())).await, PortErrorKind::Denied, &["certificate"]);
    let known = trusted().certificate(path(&certificates.client())).key(path(&certificates.client_key()));
    connect(&config().tls(known)).await;
    let missing = refused(&config().tls(trusted().certificate(path(&certificates.client())))).await;
    says(&missing, PortErrorKind::Invalid, &["tls.key"]);
    let nowhere = refused(&config().tls(TlsConfig::default().roots("/nowhere/roots.pem".to_owned()))).await;
    says(&nowhere, PortErrorKind::Invalid, &["tls.roots", "/nowhere/roots.pem"]);
}

#[tokio::test]
async fn a_server_without_tls_is_refused_if_tls_is_required() {
    let certificates = Certificates::new();
    let roots = certificates.roots().to_str().unwrap().to_owned();
    let error = refused(&shared().tls(TlsConfig::default().roots(roots))).await;
    says(&error, PortErrorKind::Denied, &["TLS", "switch"]);
}

#[tokio::test]
async fn a_standby_is_refused_until_it_is_promoted() {
    let server = server::Postgres::start();
    let standby = server.standby("standby", false);
    let config = PostgresConfig::at(standby.url());
    says(&refused(&config).await, PortErrorKind::Unavailable, &["standby", "primary"]);
    server.kill();
    standby.promote();
    connect(&config).await;
}

#[tokio::test]
async fn settings_that_break_a_promise_are_refused_by_name() {
    let read_only =
        role("grant create on database postgres to {r};alter role {r} set default_transaction_read_only = on");
    says(&refused(&read_only).await, PortErrorKind::Denied, &["default_transaction_read_only"]);
    let strict = role("alter role {r} set default_transaction_isolation = 'repeatable read'");
    says(&refused(&strict).await, PortErrorKind::Unsupported, &["default_transaction_isolation", "read committed"]);
}

#[tokio::test]
async fn without_synchronous_commit_nothing_claims_to_be_durable() {
    let weak =
        connect(&role("grant create on database postgres to {r};alter role {r} set synchronous_commit = off")).await;
    let strong = connect(&shared()).await;
    for (postgres, durable) in [(weak, false), (strong, true)] {
        assert_eq!(postgres.store().capabilities().has(Capability::Durable), durable);
        assert_eq!(postgres.lease().capabilities().has(Capability::Durable), durable);
    }
}

#[tokio::test]
async fn an_old_server_is_refused_with_its_version() {
    // A function that hides the server's own.
    let old = role(
        "create schema {r} authorization {r};create function {r}.current_setting(text) returns text language sql as \
         $$select case $1 when 'server_version_num' then '120005' when 'server_version' then '12.5' \
         else pg_catalog.current_setting($1) end$$;alter role {r} set search_path = {r}, pg_catalog",
    );
    says(&refused(&old).await, PortErrorKind::Unsupported, &["12.5", "13"]);
}

#[tokio::test]
async fn missing_rights_are_named_with_what_to_do() {
    let server = server::Postgres::shared();
    let config = role("");
    let (name, schema) = (config.schema.replace(' ', "_"), format!("\"{}\"", config.schema));
    says(&refused(&config).await, PortErrorKind::Denied, &["migrate"]);
    let config = config.migrate(false);
    says(&refused(&config).await, PortErrorKind::Invalid, &["does not exist", "Postgres::statements"]);
    server.psql(&Postgres::statements(&config).unwrap());
    says(&refused(&config).await, PortErrorKind::Denied, &["rights"]);
    server.psql(&format!("grant usage on schema {schema} to {name}"));
    server.psql(&format!("grant select on all tables in schema {schema} to {name}"));
    says(&refused(&config).await, PortErrorKind::Denied, &["DELETE on", "grant"]);
    server.psql(&format!("grant insert, update, delete on all tables in schema {schema} to {name}"));
    says(&refused(&config).await, PortErrorKind::Denied, &["SELECT on", "grant"]);
    server.psql(&format!("grant usage, select, update on all sequences in schema {schema} to {name}"));
    let postgres = connect(&config).await;
    postgres.store().insert(Key::new("p", "r"), "x").await.unwrap();
    // Taken away while it works.
    server.psql(&format!("revoke insert on all tables in schema {schema} from {name}"));
    let error = postgres.store().insert(Key::new("p", "s"), "x").await.unwrap_err();
    says(error.backend().unwrap(), PortErrorKind::Denied, &["rights"]);
    assert!(!error.may_have_been_applied());
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_left_as_it_is() {
    let (server, config) = (server::Postgres::shared(), shared());
    connect(&config).await;
    let meta = format!("\"{}\".meta", config.schema);
    server.psql(&format!("update {meta} set value = 99"));
    says(&refused(&config).await, PortErrorKind::TooNew, &["newer release", "upgrade"]);
    assert_eq!(server.psql(&format!("select value from {meta}")), "99");
}

#[tokio::test]
async fn a_missing_database_is_named() {
    let config = PostgresConfig::at(format!("{}_of_nowhere", server::Postgres::shared().url()));
    says(&refused(&config).await, PortErrorKind::Invalid, &["of_nowhere", "create the database"]);
}

#[tokio::test]
async fn many_processes_that_start_at_once_migrate_once() {
    let config = shared();
    let starts: Vec<_> = (0..8).map(|_| tokio::spawn(Postgres::connect(config.clone()))).collect();
    for start in starts {
        start.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn settings_are_checked_by_name() {
    let config = || PostgresConfig::at("postgres://host/db");
    for (config, field) in [
        (config().schema(""), "schema"),
        (config().schema("x\"; drop"), "schema"),
        (config().schema("pg_x"), "schema"),
        (config().schema("x".repeat(64)), "schema"),
        (config().connections(0), "connections"),
        (config().connect_timeout(Duration::ZERO), "connect_timeout"),
        (config().request_timeout(Duration::ZERO), "request_timeout"),
        (config().poll(Duration::ZERO), "poll"),
        (config().notices_url("nowhere".to_owned()), "notices_url"),
    ] {
        says(&refused(&config).await, PortErrorKind::Invalid, &[field]);
    }
    let read: PostgresConfig = toml::from_str(
        "url = 'postgres://host/db'\nconnections = 3\nrequest_timeout = '1s'\n[tls]\nroots = '/etc/roots.pem'",
    )
    .unwrap();
    let set = config().connections(3).request_timeout(Duration::from_secs(1));
    assert_eq!(read, set.tls(TlsConfig::default().roots("/etc/roots.pem".to_owned())));
    assert!(toml::from_str::<PostgresConfig>("url = 'postgres://host/db'\nschemata = 'x'").is_err());
}

#[tokio::test]
async fn a_url_opens_all_ports() {
    let server = server::Postgres::start();
    let opened = backend::open(&server.url()).await.unwrap();
    assert_eq!(opened.scheme(), "postgres");
    opened.store().insert(Key::new("p", "r"), "x").await.unwrap();
    opened.lease().acquire("n", "h", Duration::from_secs(1)).await.unwrap();
    opened.notifier().publish("t", "x".into()).await.unwrap();
    assert_eq!(server.psql("select count(*) from steadfast.records"), "1");
    let _ = new_schema();
}
