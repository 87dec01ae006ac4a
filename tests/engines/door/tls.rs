//! PostgreSQL: `sslmode` as libpq reads it, channel binding, and servers that demand TLS.
use std::path::Path;

use steadfast::{
    backend::{
        TlsConfig,
        postgres::{Postgres, PostgresConfig},
    },
    port::{PortError, PortErrorKind},
    store::{Key, Store},
};

use crate::{
    says,
    server::{self, Certificates, ends, wait_until},
};

const ENCRYPTED: &str =
    "select count(*) from pg_stat_ssl join pg_stat_activity using (pid) where ssl and application_name = 'steadfast'";

fn roots(certificates: &Certificates) -> TlsConfig {
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    TlsConfig::default().roots(path(&certificates.roots()))
}

/// Sets the rules, and waits until one of this kind is read.
fn set_hba(server: &server::Postgres, lines: &str, kind: &str) {
    server.set_hba(lines);
    wait_until("the rules are read", || {
        server.psql(&format!("select count(*) from pg_hba_file_rules where type = '{kind}'")) != "0"
    });
}

async fn refused(config: PostgresConfig) -> PortError {
    let Err(error) = ends(Postgres::connect(config.clone())).await else { panic!("{config:?} was accepted") };
    error
}

/// Connects, and returns `true` if the connection is encrypted.
async fn encrypts(server: &server::Postgres, config: PostgresConfig) -> bool {
    let postgres = ends(Postgres::connect(config)).await.unwrap_or_else(|error| panic!("{error}"));
    let _ = postgres.store().get(Key::new("p", "r")).await.unwrap();
    let is_encrypted = server.psql(ENCRYPTED) != "0";
    drop(postgres);
    wait_until("the connection is closed", || {
        server.psql("select count(*) from pg_stat_activity where application_name = 'steadfast'") == "0"
    });
    is_encrypted
}

#[tokio::test(flavor = "multi_thread")]
async fn channel_binding_is_kept_where_it_is_required() {
    let certificates = Certificates::new();
    let server = server::Postgres::with_tls(&certificates, &[]);
    server.psql("create role app superuser login password 'right'");
    set_hba(&server, "host all postgres all trust\nhostssl all all all scram-sha-256\n", "hostssl");
    let url = server.url().replace("postgres@", "app:right@");
    let bound = PostgresConfig::at(format!("{url}?channel_binding=require")).tls(roots(&certificates));
    assert!(encrypts(&server, bound.clone()).await);
    let wrong = PostgresConfig::at(format!("{}?channel_binding=require", url.replace("right", "hunter2")));
    says(&refused(wrong.tls(roots(&certificates))).await, PortErrorKind::Denied, &["password authentication failed"]);
    // A method without a password binds nothing, and the password is not the reason.
    set_hba(&server, "host all postgres all trust\nhostssl all all all trust\nlocal all all trust\n", "local");
    let error = refused(bound).await;
    says(&error, PortErrorKind::Denied, &["channel_binding", "scram-sha-256"]);
    assert!(!error.to_string().contains("check the user and the password"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_demands_tls_says_what_is_missing() {
    let certificates = Certificates::new();
    let server = server::Postgres::with_tls(&certificates, &[]);
    set_hba(&server, "hostssl all all all trust\n", "hostssl");
    let plain = PostgresConfig::at(format!("{}?sslmode=disable", server.url()));
    let error = refused(plain).await;
    says(&error, PortErrorKind::Denied, &["pg_hba.conf", "TLS", "sslmode"]);
    assert!(!error.to_string().contains("check the user and the password"), "{error}");
    assert!(encrypts(&server, PostgresConfig::at(server.url()).tls(roots(&certificates))).await);
    // No rule for this user at all: TLS would not help.
    server.psql("create role app login");
    set_hba(&server, "host all postgres all trust\nhostnossl all all ::2/128 trust\n", "hostnossl");
    let error = refused(PostgresConfig::at(server.url().replace("postgres@", "app@")).tls(roots(&certificates))).await;
    says(&error, PortErrorKind::Denied, &["pg_hba.conf"]);
    assert!(!error.to_string().contains("sslmode"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_sslmode_means_what_libpq_means_by_it() {
    let (certificates, strangers) = (Certificates::new(), Certificates::new());
    let (encrypted, plain) = (server::Postgres::with_tls(&certificates, &[]), server::Postgres::start());
    let mode = |server: &server::Postgres, mode: &str| PostgresConfig::at(format!("{}?sslmode={mode}", server.url()));
    assert!(!encrypts(&encrypted, mode(&encrypted, "disable")).await);
    // By default as libpq does: TLS where the server has it.
    assert!(encrypts(&encrypted, PostgresConfig::at(encrypted.url())).await);
    assert!(!encrypts(&plain, PostgresConfig::at(plain.url())).await);
    assert!(encrypts(&encrypted, mode(&encrypted, "prefer")).await);
    assert!(!encrypts(&plain, mode(&plain, "prefer")).await);
    assert!(encrypts(&encrypted, mode(&encrypted, "require")).await);
    says(&refused(mode(&plain, "require")).await, PortErrorKind::Denied, &["TLS"]);
    for strict in ["verify-ca", "verify-full"] {
        assert!(encrypts(&encrypted, mode(&encrypted, strict).tls(roots(&certificates))).await);
        let error = refused(mode(&encrypted, strict).tls(roots(&strangers))).await;
        says(&error, PortErrorKind::Denied, &["tls.roots"]);
    }
    says(&refused(mode(&encrypted, "verify-full")).await, PortErrorKind::Denied, &["tls.roots"]);
    // Another host name than the certificate's.
    let elsewhere = |mode: &str| {
        let url = encrypted.url().replace("127.0.0.1", "other.internal");
        PostgresConfig::at(format!("{url}?hostaddr=127.0.0.1&sslmode={mode}")).tls(roots(&certificates))
    };
    assert!(encrypts(&encrypted, elsewhere("verify-ca")).await);
    for strict in ["verify-full", "require", "prefer"] {
        says(&refused(elsewhere(strict)).await, PortErrorKind::Denied, &["host name"]);
    }
    // These say something that cannot be meant.
    says(&refused(mode(&encrypted, "verify-ca")).await, PortErrorKind::Invalid, &["verify-ca", "tls.roots"]);
    says(&refused(mode(&encrypted, "allow")).await, PortErrorKind::Invalid, &["allow", "`prefer`"]);
    let both = mode(&encrypted, "disable").tls(roots(&certificates));
    says(&refused(both).await, PortErrorKind::Invalid, &["disable", "`tls`"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_no_tls_for_this_user_is_reached_without_it_as_by_libpq() {
    let server = server::Postgres::with_tls(&Certificates::new(), &[]);
    set_hba(&server, "hostnossl all all all trust\n", "hostnossl");
    assert!(!encrypts(&server, PostgresConfig::at(server.url())).await);
    says(
        &refused(PostgresConfig::at(format!("{}?sslmode=require", server.url()))).await,
        PortErrorKind::Denied,
        &["pg_hba.conf"],
    );
}
