//! Notices behind a pooler: in transaction mode its connections hear none.
use std::{sync::Mutex, time::Duration};

use steadfast::{
    backend::postgres::PostgresConfig,
    notify::{Notice, Notifier},
    port::{Capability, PortErrorKind},
    queue::{Message, Queue, QueueExt, Receive},
};
use tracing_subscriber::layer::SubscriberExt as _;

use super::{connect, new_schema, patient, pool::scans};
use crate::server::{self, Pgbouncer, Proxy, Watch};

const MINUTE: Duration = Duration::from_secs(60);

/// Keeps the texts of the warnings of backends.
struct Told;

static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Told {
    fn enabled(&self, of: &tracing::Metadata<'_>, _: tracing_subscriber::layer::Context<'_, S>) -> bool {
        of.target() == "steadfast::backend" && *of.level() <= tracing::Level::INFO
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let mut line = event.metadata().level().to_string();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            line += &format!(" {field}={value:?}");
        });
        TOLD.lock().unwrap().push(line);
    }
}

/// Returns the warnings that name this port. Only a subscriber of the whole process gets the events of all threads.
fn warnings(port: u16) -> Vec<String> {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Told)).unwrap());
    let told = TOLD.lock().unwrap();
    told.iter().filter(|line| line.starts_with("WARN") && line.contains(&format!(":{port}/"))).cloned().collect()
}

fn at(pooler: &Pgbouncer) -> PostgresConfig {
    patient(pooler.url()).schema(new_schema())
}

#[tokio::test]
async fn behind_a_pooler_a_subscription_is_refused_by_name_and_told_at_connect() {
    let pooler = Pgbouncer::start(server::Postgres::shared(), 2);
    // Without a URL for notices, and with one that leads to the pooler as well.
    for config in [at(&pooler), at(&pooler).notices_url(pooler.url())] {
        let before = warnings(pooler.port()).len();
        let postgres = connect(&config).await;
        let told = warnings(pooler.port()).split_off(before);
        assert!(matches!(&told[..], [one] if one.contains("notices_url")), "{told:?}");
        let notifier = postgres.notifier();
        let Err(error) = notifier.subscribe("t").await else { panic!("it hears nothing, and says nothing") };
        assert_eq!(error.kind(), PortErrorKind::Unsupported, "{error}");
        for word in ["pooler", "notices_url"] {
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(!notifier.capabilities().has(Capability::Push));
        assert!(!postgres.queue("q").await.unwrap().capabilities().has(Capability::Push));
        // Others may hear it.
        notifier.publish("t", "x".into()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_a_receiver_that_waits_looks_at_intervals_of_seconds() {
    let pooler = Pgbouncer::start(server::Postgres::shared(), 4);
    let config = at(&pooler).poll(MINUTE * 5);
    let (postgres, other) = (connect(&config).await, connect(&config).await);
    let (queue, sender) = (postgres.queue("q").await.unwrap(), other.queue("q").await.unwrap());
    let waits = tokio::spawn(async move { queue.receive(Receive::new(1, MINUTE).wait(MINUTE * 10)).await });
    server::pass(Duration::from_millis(500)).await;
    sender.send_one(Message::new("a")).await.unwrap();
    assert_eq!(server::ends(waits).await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn behind_a_pooler_in_session_mode_notices_arrive() {
    let pooler = Pgbouncer::start_in("session", server::Postgres::shared(), 8);
    // A busy pooler may pass no notice on within the second in which a handle finds out, but not each time.
    let mut tries = 1;
    let postgres = loop {
        let postgres = connect(&at(&pooler)).await;
        if postgres.queue("q").await.unwrap().capabilities().has(Capability::Push) {
            break postgres;
        }
        assert!(tries < 5, "no notice arrives");
        tries += 1;
    };
    let mut notices = postgres.notifier().subscribe("t").await.unwrap();
    postgres.notifier().publish("t", "x".into()).await.unwrap();
    assert_eq!(server::ends(notices.recv()).await, Notice::Message("x".into()));
}

#[tokio::test]
async fn behind_a_pooler_notices_arrive_on_a_direct_connection_of_their_own() {
    let server = server::Postgres::shared();
    let pooler = Pgbouncer::start(server, 2);
    let postgres = connect(&at(&pooler).notices_url(server.url())).await;
    assert!(postgres.queue("q").await.unwrap().capabilities().has(Capability::Push));
    let mut notices = postgres.notifier().subscribe("t").await.unwrap();
    postgres.notifier().publish("t", "x".into()).await.unwrap();
    assert_eq!(server::ends(notices.recv()).await, Notice::Message("x".into()));
}

/// Notices of another database are not those of this one.
#[tokio::test]
async fn a_url_for_notices_of_another_database_is_refused_as_one_that_hears_nothing() {
    let server = server::Postgres::start();
    server.psql("create database other");
    let config =
        PostgresConfig::at(server.url()).notices_url(format!("postgres://postgres@127.0.0.1:{}/other", server.port()));
    let postgres = connect(&config).await;
    let Err(error) = postgres.notifier().subscribe("t").await else { panic!("it hears nothing, and says nothing") };
    assert_eq!(error.kind(), PortErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("notices_url"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_that_accepts_no_further_client_requests_wait_for_the_connections_that_are_open() {
    let pooler = Pgbouncer::start_for(3, "transaction", server::Postgres::shared(), 3);
    let proxy = Proxy::start(pooler.port());
    let url = pooler.url().replace(&pooler.port().to_string(), &proxy.port().to_string());
    let config = patient(url).schema(new_schema()).connections(8);
    let postgres = connect(&config).await;
    let (store, mut events) = (postgres.store(), postgres.events());
    proxy.delay(Duration::from_millis(5));
    let (mut failed, before, began) = (Vec::new(), proxy.accepted(), Watch::start());
    for _ in 0..20 {
        failed.extend(scans(&store, 40).await);
    }
    // The pauses between attempts grow to seconds.
    let (attempts, most) = (proxy.accepted() - before, 30 + began.passed().as_secs());
    assert!(failed.is_empty(), "{} of 800 failed: {}", failed.len(), failed[0]);
    assert!(attempts <= most, "{attempts} attempts to open a connection for 800 requests");
    assert!(events.try_recv().unwrap().is_none(), "the connections that are open serve");
}
