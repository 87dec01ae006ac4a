//! The function of the schema for programs that have a client of their own.
use std::{collections::BTreeMap, time::Duration};

use steadfast::{
    backend::postgres::{PostgresConfig, PostgresQueue},
    queue::{Message, Queue, QueueExt, Receive},
};
use tokio_postgres::{Client, NoTls, error::SqlState};

use super::{connect, shared};
use crate::server;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Returns a queue, and a client that finds the function in its search path.
async fn queue_and_client() -> (PostgresConfig, PostgresQueue, Client) {
    let config = shared();
    let queue = connect(&config).await.queue("jobs").await.unwrap();
    let client = client(&config).await;
    (config, queue, client)
}

async fn client(config: &PostgresConfig) -> Client {
    let (client, connection) = tokio_postgres::connect(&config.url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("set search_path to \"{}\"", config.schema)).await.unwrap();
    client
}

/// Runs a statement that returns one text.
async fn text(client: &Client, sql: &str) -> String {
    client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_plain_statement_arrives_with_all_its_parts() {
    let (_, queue, client) = queue_and_client().await;
    let plain = text(&client, r"select send_message('jobs', '\x00ff')").await;
    let full = r#"select send_message('jobs', 'ä', '{"tenant":"7","ä:3":"","":"1:x"}', 'order-42', 'g')"#;
    let full = text(&client, full).await;
    let named = "select send_message(body => 'later', queue => 'jobs', delay => interval '1 hour')";
    text(&client, named).await;
    let taken = queue.receive(Receive::new(10, MINUTE)).await.unwrap();
    assert_eq!(taken.iter().map(|one| one.id.to_string()).collect::<Vec<_>>(), [plain, full.clone()]);
    assert_eq!((&taken[0].body[..], taken[0].headers.len(), &taken[0].group), (&[0, 255][..], 0, &None));
    let headers = [("tenant", "7"), ("ä:3", ""), ("", "1:x")];
    let headers: BTreeMap<String, String> = headers.map(|(name, value)| (name.into(), value.into())).into();
    assert_eq!((&taken[1].headers, taken[1].group.as_deref()), (&headers, Some("g")));
    assert_eq!(taken[1].body, "ä".as_bytes());
    let depth = queue.depth().await.unwrap();
    assert_eq!((depth.visible, depth.delayed, depth.in_flight), (0, 1, 2));
    // A handle and a statement recognize each other's ids and groups.
    let again = Message::new("again").deduplicate("order-42").group("g");
    assert_eq!(queue.send_one(again).await.unwrap().to_string(), full);
    queue.send_one(Message::new("next").group("g")).await.unwrap();
    assert!(queue.receive_one(MINUTE).await.unwrap().is_none(), "the first of the group is not settled");
    queue.complete(&taken[1].receipt).await.unwrap();
    assert_eq!(&queue.receive_one(MINUTE).await.unwrap().unwrap().body[..], b"next");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_wakes_a_waiting_receiver_with_its_commit_and_sends_nothing_if_it_rolls_back() {
    let server = server::Postgres::start();
    // Nothing but the notice ends the wait.
    let config = PostgresConfig::at(server.url()).poll(HOUR);
    let queue = connect(&config).await.queue("jobs").await.unwrap();
    let mut client = client(&config).await;
    let waits = tokio::spawn({
        let queue = queue.clone();
        async move { queue.receive(Receive::new(1, MINUTE).wait(HOUR)).await.unwrap() }
    });
    let listens = "select count(*) from pg_locks where locktype = 'advisory' and mode = 'ShareLock'";
    server::wait_until("the receiver listens", || server.psql(listens) == "1");
    let rolled_back = client.transaction().await.unwrap();
    rolled_back.query("select send_message('jobs', 'no', null, '1')", &[]).await.unwrap();
    rolled_back.rollback().await.unwrap();
    assert_eq!(queue.depth().await.unwrap().total(), 0);
    let committed = client.transaction().await.unwrap();
    committed.query("select send_message('jobs', 'yes', null, '1')", &[]).await.unwrap();
    assert_eq!(connect(&config).await.queue("jobs").await.unwrap().depth().await.unwrap().total(), 0);
    committed.commit().await.unwrap();
    let taken = server::ends(waits).await.unwrap();
    assert_eq!(&taken[0].body[..], b"yes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_argument_is_named_with_its_rule_and_sends_nothing() {
    let (_, queue, client) = queue_and_client().await;
    let long = format!("'{}'", "ä".repeat(513));
    let cases = [
        ("null, ''".to_owned(), "send_message: queue must not be null"),
        ("'', ''".to_owned(), "send_message: queue must not be empty"),
        (format!("{long}, ''"), "send_message: queue must be at most 1024 bytes, is 1026"),
        ("'jobs', null".to_owned(), "send_message: body must not be null"),
        (
            r#"'jobs', '', '["a"]'"#.to_owned(),
            "send_message: headers must be an object whose values are strings, is of type array",
        ),
        (
            "'jobs', '', 'null'".to_owned(),
            "send_message: headers must be an object whose values are strings, is of type null",
        ),
        (
            r#"'jobs', '', '{"a":"b","n":1}'"#.to_owned(),
            r#"send_message: headers must be an object whose values are strings, but "n" is of type number"#,
        ),
        ("'jobs', '', null, ''".to_owned(), "send_message: deduplication_id must not be empty"),
        (format!("'jobs', '', null, {long}"), "send_message: deduplication_id must be at most 1024 bytes, is 1026"),
        ("'jobs', '', null, null, ''".to_owned(), "send_message: group_key must not be empty"),
        ("'jobs', '', null, null, null, '-1 s'".to_owned(), "send_message: delay must not be negative, is -00:00:01"),
        (
            "'jobs', '', null, null, null, null, '-1 s'".to_owned(),
            "send_message: deduplication_window must not be negative, is -00:00:01",
        ),
        (
            r#"'jobs', convert_to(repeat('a', 67108860), 'UTF8'), '{"ab":"cde"}'"#.to_owned(),
            "send_message: body must be at most 67108864 bytes including its headers, is 67108865",
        ),
    ];
    for (arguments, message) in cases {
        let error = client.query(&format!("select send_message({arguments})"), &[]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!((error.message(), error.code()), (message, &SqlState::INVALID_PARAMETER_VALUE));
    }
    for level in ["repeatable read", "serializable"] {
        client.batch_execute(&format!("begin isolation level {level}")).await.unwrap();
        let error = client.query("select send_message('jobs', '')", &[]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        let message = "send_message: the transaction must have the isolation level READ COMMITTED, has ";
        assert_eq!(error.message(), format!("{message}{}", level.to_uppercase()));
        assert_eq!(error.code(), &SqlState::FEATURE_NOT_SUPPORTED);
        client.batch_execute("rollback").await.unwrap();
    }
    assert_eq!(queue.depth().await.unwrap().total(), 0);
    let longest = "select send_message('jobs', '', '{}', null, null, interval '170000000 years')";
    text(&client, longest).await;
    assert_eq!(queue.depth().await.unwrap().delayed, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_creates_its_queue_and_works_beside_other_settings() {
    let config = shared();
    let postgres = connect(&config).await;
    // Another search path, no privilege beyond those that the page names, and quoting as an old program has it.
    let server = server::Postgres::shared();
    let (schema, role) = (&config.schema, config.schema.replace(' ', "_"));
    for statement in [
        format!("create role {role} login"),
        format!("grant usage on schema \"{schema}\" to {role}"),
        format!("grant usage, select, update on all sequences in schema \"{schema}\" to {role}"),
        format!("grant select, insert, update, delete on all tables in schema \"{schema}\" to {role}"),
    ] {
        server.psql(&statement);
    }
    let url = server.url().replace("postgres@", &format!("{role}@"));
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
        .batch_execute("set search_path to ''; set timezone to 'Asia/Tokyo'; set intervalstyle to 'iso_8601'")
        .await
        .unwrap();
    text(&client, &format!("select \"{schema}\".send_message('new', 'a')")).await;
    let queue = postgres.queue("new").await.unwrap();
    assert_eq!(&queue.receive_one(MINUTE).await.unwrap().unwrap().body[..], b"a");
}

#[tokio::test(flavor = "multi_thread")]
async fn receivers_delete_ended_ids_of_senders_that_only_run_statements() {
    let (_, queue, client) = queue_and_client().await;
    let send = "select count(send_message('jobs', '', null, gen_random_uuid()::text, deduplication_window => '1 us'))::text \
                from generate_series(1, 300)";
    let mut sent = 0;
    loop {
        text(&client, send).await;
        sent += 300;
        while let taken = queue.receive(Receive::new(1000, MINUTE)).await.unwrap()
            && !taken.is_empty()
        {
            let done = taken.into_iter().map(|one| (one.receipt, steadfast::queue::Settle::Complete));
            queue.settle(done.collect()).await.unwrap();
        }
        let left: i64 = client.query_one("select count(*) from sent", &[]).await.unwrap().get(0);
        if left < sent {
            break;
        }
        assert!(sent < 60_000, "{left} ids stay");
    }
}

/// The statements of a release before the function: a handle of it stays connected while a newer one migrates.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_version_1_gets_the_function_and_serves_handles_of_version_1() {
    let (config, queue, client) = queue_and_client().await;
    client
        .batch_execute(
            "drop function send_message; drop function queue_deliver; drop function queue_deliver_pooled; \
             update meta set value = 1",
        )
        .await
        .unwrap();
    let newer = connect(&config).await.queue("jobs").await.unwrap();
    text(&client, "select send_message('jobs', 'a')").await;
    // The handling began, and the delivery expired.
    let first = newer.receive_one(Duration::from_millis(1)).await.unwrap().unwrap();
    newer.mark_begun(&first.receipt, Duration::from_millis(1), true).await.unwrap();
    let second = newer.receive(Receive::new(1, Duration::from_millis(1)).wait(MINUTE)).await.unwrap().remove(0);
    assert_eq!((second.expiries, second.crashes), (1, 1));
    // The statement of a handle of version 1, for which each expiry counts one.
    for function in ["queue_take", "queue_receive"] {
        let sql = format!("select expiries::text from {function}($1, 1, 1000, 1000, 0, 0, 0) where id is not null");
        let id: i64 = client.query_one("select id from queues where name = 'jobs'", &[]).await.unwrap().get(0);
        let expiries = loop {
            if let Some(row) = client.query_opt(&sql, &[&id]).await.unwrap() {
                break row.get::<_, String>(0);
            }
        };
        assert_eq!(expiries, if function == "queue_take" { "2" } else { "3" });
    }
    drop(queue);
}
