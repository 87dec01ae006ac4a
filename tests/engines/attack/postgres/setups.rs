//! Set-ups that people really write, and servers that are none.
use std::time::Duration;

use steadfast::{
    backend::{
        TlsConfig,
        postgres::{Postgres, PostgresConfig},
    },
    port::PortErrorKind,
    store::{Key, Store, StoreExt},
};

use super::{super::*, *};
use crate::server::Certificates;

async fn refused(config: PostgresConfig) -> steadfast::port::PortError {
    let debug = format!("{config:?}");
    assert!(!debug.contains("hunter2"), "{debug}");
    let Err(error) = ends("connecting", Postgres::connect(config)).await else { panic!("{debug} was accepted") };
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    error
}

/// A machine that is gone answers nothing: no refusal, and no end of the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_silent_does_not_keep_a_handle_from_the_next_one() {
    let (server, (_listener, silent)) = (server::Postgres::shared(), silent());
    for parameters in ["", "?target_session_attrs=read-write"] {
        let hosts = format!("127.0.0.1:{silent},127.0.0.1:{}", server.port());
        let url = format!("postgres://postgres@{hosts}/postgres{parameters}");
        let config = PostgresConfig::at(url).schema(new_schema()).connect_timeout(Duration::from_millis(500));
        // A busy machine may need longer for the host that answers, but not each time.
        let mut tries = 0;
        let postgres = loop {
            match ends("connecting", Postgres::connect(config.clone())).await {
                Ok(postgres) => break postgres,
                Err(error) => assert!(error.kind() != PortErrorKind::Invalid && tries < 5, "{error}"),
            }
            tries += 1;
        };
        postgres.store().insert(Key::new("p", "r"), "x").await.unwrap();
    }
}

/// The second of the hosts is the primary, and the first one a standby.
#[tokio::test(flavor = "multi_thread")]
async fn of_several_hosts_the_one_that_takes_writes_is_used() {
    let primary = server::Postgres::start();
    let standby = primary.standby("standby", false);
    let hosts = format!("127.0.0.1:1,127.0.0.1:{},127.0.0.1:{}", standby.port(), primary.port());
    let url = format!("postgres://postgres@{hosts}/postgres?target_session_attrs=read-write");
    let postgres = Postgres::connect(PostgresConfig::at(url)).await.unwrap_or_else(|error| panic!("{error}"));
    postgres.store().insert(Key::new("p", "r"), "x").await.unwrap();
    primary.kill();
    standby.promote();
    let store = postgres.store();
    ends("the change of the server", async {
        while store.put(Key::new("p", "s"), "y".into(), Default::default()).await.is_err() {
            server::look_again().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_of_another_protocol_is_named_with_a_question() {
    let url = format!("postgres://app:hunter2@127.0.0.1:{}/db", web_server());
    let error = refused(PostgresConfig::at(url)).await;
    says(&error, PortErrorKind::Unavailable, &["127.0.0.1", "PostgreSQL"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_host_or_one_that_has_ended_is_denied() {
    let certificates = Certificates::new();
    let server = server::Postgres::with_tls(&certificates, &[]);
    let roots = || TlsConfig::default().roots(certificates.roots().to_str().unwrap().to_owned());
    // 127.0.0.2 is this machine, too, but not in the certificate.
    let url = server.url().replace("127.0.0.1", "localhost");
    Postgres::connect(PostgresConfig::at(&url).tls(roots())).await.unwrap_or_else(|error| panic!("{error}"));
    let by_parameter = format!("{url}?sslmode=verify-full");
    let error = refused(PostgresConfig::at(by_parameter)).await;
    says(&error, PortErrorKind::Denied, &["TLS", "certificate"]);
}

/// The parameters of libpq that people add, each with an answer that says what is meant.
#[tokio::test(flavor = "multi_thread")]
async fn parameters_of_libpq_that_are_not_known_are_named() {
    let server = server::Postgres::shared();
    for parameter in ["sslrootcert=/etc/root.pem", "sslcert=x", "sslmode=allow", "pool_size=3", "search_path=x"] {
        let url = format!("{}?{parameter}", server.url().replace("postgres@", "postgres:hunter2@"));
        let error = refused(PostgresConfig::at(url)).await;
        let name = parameter.split('=').next().unwrap();
        says(&error, PortErrorKind::Invalid, &["url", name]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_of_any_text_is_percent_encoded() {
    let server = server::Postgres::start();
    let password = "a/b:c@d?e#f%g&h=i ü";
    server.psql(&format!("create role app login superuser password '{password}'"));
    server.set_hba("host all postgres all trust\nhost all all all scram-sha-256\n");
    server::wait_until("the rules are read", || {
        server.psql("select count(*) from pg_hba_file_rules where auth_method = 'scram-sha-256'") != "0"
    });
    let encoded: String = password.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let url = server.url().replace("postgres@", &format!("app:{encoded}@"));
    let config = PostgresConfig::at(url);
    assert!(!format!("{config:?}").contains(&encoded));
    let postgres = connect(&config).await;
    assert!(!format!("{postgres:?} {:?}", postgres.store()).contains(&encoded));
    // As it is, without the escapes: refused, and not shown.
    let raw = server.url().replace("postgres@", &format!("app:{password}@"));
    let debug = format!("{:?}", PostgresConfig::at(&raw));
    assert!(!debug.contains("c@d") && !debug.contains("e#f"), "{debug}");
    if let Err(error) = Postgres::connect(PostgresConfig::at(&raw)).await {
        assert!(!format!("{error} {error:?}").contains("e#f"), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_without_a_database_or_with_a_socket_is_taken() {
    let server = server::Postgres::shared();
    let url = format!("postgres://postgres@127.0.0.1:{}", server.port());
    connect(&PostgresConfig::at(url).schema(new_schema())).await;
    let missing = refused(PostgresConfig::at("postgres://app:hunter2@%2Fnowhere%2Fsockets/db")).await;
    says(&missing, PortErrorKind::Unavailable, &["/nowhere/sockets"]);
    let missing = refused(PostgresConfig::at("postgres:///db?host=/nowhere/sockets")).await;
    says(&missing, PortErrorKind::Unavailable, &["/nowhere/sockets"]);
    let words = "host=127.0.0.1 user=postgres dbname=postgres password=hunter2";
    connect(&PostgresConfig::at(format!("{words} port={}", server.port())).schema(new_schema())).await;
}

/// Schemas with names that are no identifiers are apart.
#[tokio::test(flavor = "multi_thread")]
async fn schemas_of_odd_names_are_apart() {
    let server = server::Postgres::shared();
    for name in ["Ünïcode", "a.b", "a;b", "100%", "%s", "select", " ", "a--b", "A", "a", "x".repeat(63).as_str()] {
        let config = PostgresConfig::at(server.url()).schema(name);
        let postgres = Postgres::connect(config).await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        postgres.store().insert(Key::new("p", "r"), name.to_owned()).await.unwrap();
        let queue = postgres.queue(name).await.unwrap();
        send(&queue, ["x"]).await;
        assert_eq!(take(&queue, 1).await.len(), 1);
        postgres.lease().capabilities_of_any_kind(name).await;
    }
}

trait AnyLease {
    async fn capabilities_of_any_kind(&self, name: &str);
}

impl<L: steadfast::lease::Lease> AnyLease for L {
    async fn capabilities_of_any_kind(&self, name: &str) {
        self.acquire(name, name, Duration::MAX).await.unwrap();
        assert_eq!(self.read(name).await.unwrap().unwrap().term, Duration::MAX);
    }
}
