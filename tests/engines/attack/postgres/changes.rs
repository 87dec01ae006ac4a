//! Operators who change a server that is in use, and migrations.
use std::time::Duration;

use steadfast::{
    backend::postgres::{Postgres, PostgresConfig},
    port::PortErrorKind,
    queue::{Message, Queue, QueueExt},
    store::{Key, Precondition, Store, StoreExt},
};

use super::{super::*, *};

const KEY: Key<'static> = Key::new("p", "r");

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_is_dropped_is_named_and_a_new_handle_makes_it_again() {
    let (server, config) = (server::Postgres::shared(), shared());
    let postgres = connect(&config).await;
    let (store, queue) = (postgres.store(), postgres.queue("q").await.unwrap());
    store.insert(KEY, "x").await.unwrap();
    send(&queue, ["x"]).await;
    server.psql(&format!("drop schema \"{}\" cascade", config.schema));
    let put = store.put(KEY, "y".into(), Precondition::Any.into()).await.unwrap_err();
    says(&put, PortErrorKind::Corrupt, &["schema", "connect again"]);
    says(&queue.send_one(Message::new("x")).await.unwrap_err(), PortErrorKind::Corrupt, &["connect again"]);
    says(&store.get(KEY).await.unwrap_err(), PortErrorKind::Corrupt, &["connect again"]);
    let again = connect(&config).await;
    again.store().insert(KEY, "z").await.unwrap();
    assert_eq!(store.get(KEY).await.unwrap().unwrap().value, "z");
}

/// The numbers of queues do not begin anew with a schema that is made again: an old handle would send to another queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_a_schema_that_was_made_again_is_not_another_queue() {
    let (server, config) = (server::Postgres::shared(), shared());
    let postgres = connect(&config).await;
    let old = postgres.queue("payments").await.unwrap();
    send(&old, ["old"]).await;
    server.psql(&format!("drop schema \"{}\" cascade", config.schema));
    let again = connect(&config).await;
    let mails = again.queue("mails").await.unwrap();
    let sent = old.send_one(Message::new("pay 42")).await;
    assert_eq!(mails.depth().await.unwrap().total(), 0, "a payment is among the mails, after {sent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_database_without_migration_and_a_user_without_rights_are_told_what_to_do() {
    let (server, config) = (server::Postgres::shared(), shared());
    let error = Postgres::connect(config.clone().migrate(false)).await.unwrap_err();
    says(&error, PortErrorKind::Invalid, &["migrate", "Postgres::statements"]);
    server.psql(&Postgres::statements(&config).unwrap());
    connect(&config.clone().migrate(false)).await.store().insert(KEY, "x").await.unwrap();
}

/// Another program's tables have the names of ours.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_another_program_is_refused_by_name_and_left_as_it_is() {
    let server = server::Postgres::shared();
    for table in
        ["meta (id int primary key)", "records (id int primary key, note text)", "leases (name text)", "sent (at int)"]
    {
        let config = shared();
        let schema = &config.schema;
        server.psql(&format!("create schema \"{schema}\"; create table \"{schema}\".{table}"));
        let tables = format!(
            "select string_agg(table_name || '.' || column_name, ' ' order by 1) from \
             information_schema.columns where table_schema = '{schema}'"
        );
        let before = server.psql(&tables);
        let error = Postgres::connect(config.clone()).await.expect_err(table);
        says(&error, PortErrorKind::Invalid, &[schema.as_str(), "another program", "`schema`"]);
        assert_eq!(server.psql(&tables), before, "{table}");
    }
}

/// An old release waits for the migration of a newer one.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_release_that_waits_for_a_newer_ones_migration_is_too_old() {
    let (server, config) = (server::Postgres::shared(), shared());
    let mut client = client(server).await;
    let newer = Postgres::statements(&config).unwrap();
    let newer = newer.trim().strip_prefix("BEGIN;").unwrap().strip_suffix("COMMIT;").unwrap();
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute(newer).await.unwrap();
    transaction.batch_execute(&format!("update \"{}\".meta set value = value + 1", config.schema)).await.unwrap();
    let old = tokio::spawn(Postgres::connect(config.clone()));
    server::wait_until("the old release waits", || {
        server.psql("select count(*) from pg_locks where locktype = 'advisory' and not granted") != "0"
    });
    transaction.commit().await.unwrap();
    let error = ends("connecting", old).await.unwrap().unwrap_err();
    says(&error, PortErrorKind::TooNew, &["newer release", "upgrade"]);
}

/// A schema of an older release is full, and in use, when a new release comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_filled_schema_of_an_older_release_is_migrated_and_keeps_everything() {
    let (server, config) = (server::Postgres::shared(), shared());
    let old = connect(&config).await;
    let (store, queue) = (old.store(), old.queue("q").await.unwrap());
    for i in 0..50 {
        store.insert(Key::new("p", &i.to_string()), i.to_string()).await.unwrap();
        queue.send_one(Message::new(i.to_string()).group(format!("g{}", i % 3))).await.unwrap();
    }
    let version = || server.psql(&format!("select value from \"{}\".meta", config.schema));
    let newest = version();
    server.psql(&format!("update \"{}\".meta set value = 0", config.schema));
    let refused = Postgres::connect(config.clone().migrate(false)).await.unwrap_err();
    says(&refused, PortErrorKind::Invalid, &["older release", "Postgres::statements"]);
    // It migrates while the old release writes and receives.
    let works = tokio::spawn({
        let (store, queue) = (store.clone(), queue.clone());
        async move {
            for i in 50..150 {
                store.insert(Key::new("p", &i.to_string()), i.to_string()).await.unwrap();
                queue.send_one(Message::new(i.to_string())).await.unwrap();
            }
        }
    });
    let new = connect(&config).await;
    ends("the old release", works).await.unwrap();
    assert_eq!(version(), newest);
    assert_eq!(new.store().scan_all(steadfast::store::Scan::partition("p")).await.unwrap().len(), 150);
    assert_eq!(new.queue("q").await.unwrap().depth().await.unwrap().total(), 150);
}

/// A process is killed at each step of its first connection: nothing, or everything is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_is_cut_anywhere_leaves_nothing_and_the_next_one_makes_it() {
    let server = server::Postgres::shared();
    let schema_of = |config: &PostgresConfig| {
        let sql = format!(
            "select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace where nspname = '{}'",
            config.schema
        );
        server.psql(&sql)
    };
    let full = shared();
    connect(&full).await;
    let all = schema_of(&full);
    let mut outcomes = std::collections::BTreeSet::new();
    for step in 0..40_u64 {
        let proxy = crate::server::Proxy::start(server.port());
        proxy.delay(Duration::from_millis(1));
        let config = shared();
        let behind = config.clone().url(server.url_at(proxy.port()));
        let (one, two) = (tokio::spawn(Postgres::connect(behind)), tokio::spawn(Postgres::connect(config.clone())));
        server::pass(Duration::from_millis(step)).await;
        proxy.cut();
        let one = ends("the one that is cut", one).await.unwrap();
        outcomes.insert(one.is_ok());
        ends("the other one", two).await.unwrap().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(schema_of(&config), all);
    }
    assert!(outcomes.contains(&false), "none was cut");
}

/// Connections that are ended in any phase, the script cache of the server's functions, and the user's rights.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_terminated_under_load_lose_nothing_that_was_accepted() {
    let server = server::Postgres::start();
    let postgres = connect(&patient(server.url())).await;
    let queue = postgres.queue("q").await.unwrap();
    let sender = tokio::spawn(async move {
        let mut accepted = Vec::new();
        for i in 0..600 {
            if queue.send_one(Message::new(i.to_string())).await.is_ok() {
                accepted.push(i.to_string());
            } else {
                server::pass(Duration::from_millis(5)).await;
            }
        }
        (queue, accepted)
    });
    while !sender.is_finished() {
        server.cut();
        server::pass(Duration::from_millis(30)).await;
    }
    let (queue, accepted) = sender.await.unwrap();
    let mut found = std::collections::HashSet::new();
    ends("receiving", async {
        loop {
            let taken = queue.receive(steadfast::queue::Receive::new(1000, Duration::from_secs(600))).await;
            match taken {
                Ok(taken) if taken.is_empty() => break,
                Ok(taken) => found.extend(taken.iter().map(|taken| String::from_utf8(taken.body.to_vec()).unwrap())),
                Err(_) => server::look_again().await,
            }
        }
    })
    .await;
    let lost: Vec<_> = accepted.iter().filter(|body| !found.contains(*body)).collect();
    assert!(lost.is_empty(), "{lost:?} of {} are lost", accepted.len());
    assert!(accepted.len() > 10, "only {} were accepted", accepted.len());
}
