//! Writes of the ports within a transaction of the user on the same file.
use rusqlite::{Connection, TransactionBehavior};
use steadfast::{
    backend::sqlite::{Sqlite, SqliteConfig},
    port::{FencingToken, PortErrorKind},
    queue::{Message, Queue, QueueError, Receive},
    store::{Key, Precondition, PutOptions, Sequence, Store, StoreError, StoreExt, Write},
};

const VISIBILITY: std::time::Duration = std::time::Duration::from_secs(30);
const ORDER: Key<'static> = Key::new("shop", "42");

struct Shop {
    sqlite: Sqlite,
    connection: Connection,
    path: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

/// Returns an open file with a table of the user.
fn shop() -> Shop {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let sqlite = Sqlite::open(SqliteConfig::at(&path)).unwrap();
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("CREATE TABLE orders (id INTEGER)").unwrap();
    Shop { sqlite, connection, path, _folder: folder }
}

impl Shop {
    fn orders(&self) -> i64 {
        self.connection.query_row("SELECT count(*) FROM orders", [], |row| row.get(0)).unwrap()
    }
}

/// Places an order: a row of the user, a record, an event of a sequence, and a message.
fn place(sqlite: &Sqlite, transaction: &rusqlite::Transaction<'_>) {
    transaction.execute_batch("INSERT INTO orders VALUES (42)").unwrap();
    let writes = vec![Write::put("42", "placed", Precondition::Absent), Write::append("events/", "placed 42")];
    let versions = sqlite.store().batch_within(transaction, "shop", writes).unwrap();
    assert!(versions[0].is_some() && versions[1].is_some_and(|number| number.as_u64() == 1));
    let messages = vec![Message::new("pay 42"), Message::new("ship 42")];
    assert_eq!(sqlite.queue("mails").unwrap().send_within(transaction, messages).unwrap().len(), 2);
}

#[tokio::test]
async fn what_is_written_within_a_transaction_appears_with_its_commit() {
    let mut shop = shop();
    let (store, queue) = (shop.sqlite.store(), shop.sqlite.queue("mails").unwrap());
    let transaction = shop.connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    place(&shop.sqlite, &transaction);
    assert_eq!(store.get(ORDER).await.unwrap(), None);
    assert_eq!(queue.receive(Receive::new(9, VISIBILITY)).await.unwrap().len(), 0);
    transaction.commit().unwrap();
    assert_eq!(shop.orders(), 1);
    assert_eq!(store.get(ORDER).await.unwrap().unwrap().value, "placed");
    assert!(store.get(Key::new("shop", &Sequence::new("events/").row(1))).await.unwrap().is_some());
    let bodies: Vec<_> =
        queue.receive(Receive::new(9, VISIBILITY)).await.unwrap().into_iter().map(|one| one.body).collect();
    assert_eq!(bodies, ["pay 42", "ship 42"]);
}

#[tokio::test]
async fn what_is_written_within_a_transaction_goes_with_its_rollback() {
    let mut shop = shop();
    let queue = shop.sqlite.queue("mails").unwrap();
    let transaction = shop.connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    place(&shop.sqlite, &transaction);
    transaction.rollback().unwrap();
    assert_eq!(shop.orders(), 0);
    assert_eq!(shop.sqlite.store().get(ORDER).await.unwrap(), None);
    assert_eq!(queue.depth().await.unwrap().visible, 0);
    let written = shop.sqlite.store().batch("shop", vec![Write::append_after("events/", "first", 0)]).await;
    assert_eq!(written.unwrap()[0].unwrap().as_u64(), 1, "no number was taken");
}

#[tokio::test]
async fn a_refused_batch_leaves_the_transaction_usable_and_nothing_in_it() {
    let mut shop = shop();
    let store = shop.sqlite.store();
    store.insert(ORDER, "placed").await.unwrap();
    let fenced = PutOptions::new().fence(FencingToken::new(5));
    store.put(Key::new("shop", "fenced"), "x".into(), fenced).await.unwrap();
    let transaction = shop.connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let other = || Write::put("other", "x", Precondition::Any);
    let refused = store.batch_within(&transaction, "shop", vec![other(), Write::put("42", "x", Precondition::Absent)]);
    assert!(matches!(refused, Err(StoreError::Conflict { write: 1, current: Some(_) })), "{refused:?}");
    let stale = PutOptions::new().fence(FencingToken::new(4));
    let refused = store.batch_within(&transaction, "shop", vec![other(), Write::put("fenced", "x", stale)]);
    assert!(matches!(refused, Err(StoreError::Fenced { write: 1, .. })), "{refused:?}");
    store.batch_within(&transaction, "shop", vec![Write::put("last", "x", Precondition::Absent)]).unwrap();
    transaction.commit().unwrap();
    assert_eq!(store.get(Key::new("shop", "other")).await.unwrap(), None);
    assert!(store.get(Key::new("shop", "last")).await.unwrap().is_some());
}

#[tokio::test]
async fn a_transaction_on_another_file_is_refused_by_name() {
    let (mut one, other) = (shop(), shop());
    assert_ne!(one.path, other.path);
    let transaction = one.connection.transaction().unwrap();
    let write = Write::put("42", "placed", Precondition::Absent);
    let Err(StoreError::Failed(error)) = other.sqlite.store().batch_within(&transaction, "shop", vec![write]) else {
        panic!("it is another file");
    };
    assert_eq!(error.kind(), PortErrorKind::Invalid);
    assert!(error.to_string().contains("transaction"), "{error}");
    let sent = other.sqlite.queue("mails").unwrap().send_within(&transaction, vec![Message::new("x")]);
    assert!(matches!(sent, Err(QueueError::Failed(error)) if error.kind() == PortErrorKind::Invalid));
}
