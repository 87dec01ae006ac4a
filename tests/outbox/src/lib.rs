//! Messages that are sent within transactions of sqlx, diesel and deadpool-postgres, by the function `send_message` of
//! the schema: they reach a listener with the commit, together with the rows of the transaction, or not at all.
//!
//! `cargo test --locked --manifest-path tests/outbox/Cargo.toml` starts a private server.
#![cfg(test)]
#[path = "../../engines/server/mod.rs"]
mod server;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use steadfast::{
    backend::postgres::{Postgres, PostgresConfig},
    queue_listener::{Disposition, QueueListener, QueueListenerConfig, Work},
};
use tokio::{sync::mpsc, task::JoinHandle};

/// A message as a handler saw it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    body: String,
    headers: BTreeMap<String, String>,
    group: Option<String>,
    id: String,
}

/// A database with a table of orders, and a listener of the queue `invoices`.
struct Shop {
    server: server::Postgres,
    seen: mpsc::UnboundedReceiver<Seen>,
    _listens: Listens,
}

struct Listens(JoinHandle<()>);

impl Drop for Listens {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Shop {
    async fn open() -> Self {
        let server = server::Postgres::start();
        let postgres = Postgres::connect(PostgresConfig::at(server.url())).await.unwrap();
        server.psql("create table orders (id bigint primary key)");
        let listener =
            QueueListener::new(Arc::new(postgres.queue("invoices").await.unwrap()), QueueListenerConfig::default());
        let (tell, seen) = mpsc::unbounded_channel();
        let listens = tokio::spawn(async move {
            let handler = async |work: Work| {
                let (body, headers) = (String::from_utf8(work.body.to_vec()).unwrap(), work.headers.clone());
                tell.send(Seen { body, headers, group: work.group.clone(), id: work.id.to_string() }).unwrap();
                Disposition::Complete
            };
            listener.unwrap().run(std::future::pending(), handler).await.unwrap();
        });
        Self { server, seen, _listens: Listens(listens) }
    }

    /// Returns the next message that was handled.
    async fn next(&mut self) -> Seen {
        let next = tokio::time::timeout(Duration::from_secs(60), self.seen.recv()).await;
        next.expect("no message within a minute").unwrap()
    }

    /// Waits for the message of order 2 and the last one, and checks that there were no others.
    async fn ends(mut self, id: String) {
        let headers = BTreeMap::from([("tenant".to_owned(), "7".to_owned())]);
        let sent = Seen { body: "order 2".to_owned(), headers, group: Some("customer-9".to_owned()), id };
        assert_eq!(self.next().await, sent);
        self.server.psql("select steadfast.send_message('invoices', 'last')");
        assert_eq!(self.next().await.body, "last");
        assert_eq!(self.server.psql("select string_agg(id::text, ' ') from orders"), "2");
    }
}

const EMPTY: &str = "send_message: group_key must not be empty";

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_sqlx_sends_with_its_commit() {
    use sqlx::{Connection as _, PgConnection, postgres::types::PgInterval};
    let shop = Shop::open().await;
    let mut connection = PgConnection::connect(&shop.server.url()).await.unwrap();
    let mut id = String::new();
    for order in [1_i64, 2] {
        let mut transaction = connection.begin().await.unwrap();
        sqlx::query("INSERT INTO orders VALUES ($1)").bind(order).execute(&mut *transaction).await.unwrap();
        let send = "SELECT steadfast.send_message($1, $2, $3::jsonb, $4, $5, $6)";
        let send = sqlx::query_scalar(send)
            .bind("invoices")
            .bind(format!("order {order}").into_bytes())
            .bind(r#"{"tenant":"7"}"#)
            .bind(format!("order-{order}"))
            .bind("customer-9")
            .bind(PgInterval { months: 0, days: 0, microseconds: 1000 });
        id = send.fetch_one(&mut *transaction).await.unwrap();
        match order {
            1 => transaction.rollback().await.unwrap(),
            _ => transaction.commit().await.unwrap(),
        }
    }
    let wrong = sqlx::query("SELECT steadfast.send_message($1, $2, group_key => $3)").bind("invoices").bind(&b""[..]);
    let error = wrong.bind("").execute(&mut connection).await.unwrap_err();
    let error = error.as_database_error().unwrap();
    assert_eq!((error.message(), error.code().as_deref()), (EMPTY, Some("22023")));
    shop.ends(id).await;
}

mod by_diesel {
    diesel::define_sql_function! {
        /// The function, as diesel declares one.
        #[sql_name = "steadfast.send_message"]
        fn send_message(
            queue: diesel::sql_types::Text,
            body: diesel::sql_types::Binary,
            headers: diesel::sql_types::Nullable<diesel::sql_types::Jsonb>,
            deduplication_id: diesel::sql_types::Nullable<diesel::sql_types::Text>,
            group_key: diesel::sql_types::Nullable<diesel::sql_types::Text>,
        ) -> diesel::sql_types::Text;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_diesel_sends_with_its_commit() {
    use by_diesel::send_message;
    use diesel::{
        dsl::sql,
        result::Error,
        sql_types::{BigInt, Jsonb, Nullable},
    };
    use diesel_async::{AsyncConnection as _, AsyncPgConnection, RunQueryDsl as _};
    let shop = Shop::open().await;
    let mut connection = AsyncPgConnection::establish(&shop.server.url()).await.unwrap();
    let mut id = String::new();
    for order in [1_i64, 2] {
        let sent = connection
            .transaction(async |connection: &mut AsyncPgConnection| {
                let insert = diesel::sql_query("INSERT INTO orders VALUES ($1)").bind::<BigInt, _>(order);
                insert.execute(connection).await?;
                let (body, key) = (format!("order {order}").into_bytes(), format!("order-{order}"));
                let headers = sql::<Nullable<Jsonb>>(r#"'{"tenant":"7"}'"#);
                let send = send_message("invoices", body, headers, Some(key), Some("customer-9"));
                let id: String = diesel::select(send).get_result(connection).await?;
                if order == 1 { Err(Error::RollbackTransaction) } else { Ok(id) }
            })
            .await;
        match order {
            1 => assert_eq!(sent, Err(Error::RollbackTransaction)),
            _ => id = sent.unwrap(),
        }
    }
    let none = sql::<Nullable<Jsonb>>("NULL");
    let wrong = send_message("invoices", Vec::<u8>::new(), none, None::<String>, Some(""));
    let error = diesel::select(wrong).get_result::<String>(&mut connection).await.unwrap_err();
    let Error::DatabaseError(_, told) = error else { panic!("{error:?}") };
    assert_eq!(told.message(), EMPTY);
    shop.ends(id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_deadpool_postgres_sends_with_its_commit() {
    use deadpool_postgres::{Manager, Pool};
    let shop = Shop::open().await;
    let manager = Manager::new(shop.server.url().parse().unwrap(), tokio_postgres::NoTls);
    let pool = Pool::builder(manager).build().unwrap();
    let mut id = String::new();
    for order in [1_i64, 2] {
        let mut client = pool.get().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        transaction.execute("INSERT INTO orders VALUES ($1)", &[&order]).await.unwrap();
        let send = "SELECT steadfast.send_message($1, $2, $3::text::jsonb, $4, $5, make_interval(secs => $6))";
        let (body, key) = (format!("order {order}").into_bytes(), format!("order-{order}"));
        let row = transaction
            .query_one(send, &[&"invoices", &body, &r#"{"tenant":"7"}"#, &key, &"customer-9", &0.001_f64])
            .await;
        id = row.unwrap().get(0);
        match order {
            1 => transaction.rollback().await.unwrap(),
            _ => transaction.commit().await.unwrap(),
        }
    }
    let wrong = "SELECT steadfast.send_message($1, $2, group_key => $3)";
    let error = pool.get().await.unwrap().query(wrong, &[&"invoices", &&b""[..], &""]).await.unwrap_err();
    assert_eq!(error.as_db_error().unwrap().message(), EMPTY);
    shop.ends(id).await;
}
