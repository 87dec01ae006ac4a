//! Index tables: rows that are found by other keys than their own.
//!
//! An [`IndexTable`] writes the rows of a store, and beside them entries in other stores, by the
//! keys that functions read from a row. The rows stay as they are, so existing data can be indexed.
//!
//! # When, and when not
//!
//! Use it where rows are often asked for by something else than their key: films by actor, users by
//! mail address. With `unique` it also keeps two rows from having one value. Do not use it
//!
//! - for values that change all the time: each change costs three requests more,
//! - for keys that tell little apart, such as a flag: a scan is as good,
//! - where most rows have the same value, unless the rare ones are asked for,
//! - where the store has indexes of its own, as SQL has, and all rows lie in one of them.
//!
//! An index lies in a store of its own, or [beside the rows](#beside-the-rows). Take the second
//! where rows are asked for within one partition, such as the orders of a tenant by their state.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `patience` | 1 s | time after which a unique key whose row lacks it is taken over |
//! | `grace` | 1 h | life of the tombstone in the place of a deleted row |
//! | `page` | 100 | rows, or entries, that a repair reads at a time |
//!
//! An index has 16 partitions, by the hash of the first part of a key; one beside its rows is in
//! theirs.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use serde::{Deserialize, Serialize};
//! use steadfast::{
//!     codec::Codec,
//!     index_table::{IndexKey, IndexTable, IndexTableConfig, IndexTableError},
//!     store::{InMemoryStore, Key, Precondition},
//! };
//!
//! #[derive(Serialize, Deserialize)]
//! struct Movie { title: String, cast: Vec<String>, isan: String }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // In a service, durable stores, such as a PostgreSQL server.
//! let (base, actors, isans) =
//!     (InMemoryStore::new(), InMemoryStore::new(), InMemoryStore::new());
//! let json = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
//! let movies = IndexTable::builder(Arc::new(base), json, IndexTableConfig::default())
//!     .index("by-actor", Arc::new(actors), |m: &Movie| {
//!         m.cast.iter().map(|actor| IndexKey::new(actor, &m.title)).collect()
//!     })
//!     .copying("by-actor", |m: &Movie| format!("{} ({})", m.title, m.cast.len()))
//!     .unique("by-isan", Arc::new(isans), |m: &Movie| Some(m.isan.clone()))
//!     .build()?;
//!
//! // Once, with the partitions of the rows that are there already.
//! movies.build_indexes(["action"]).await?;
//!
//! let alien = Movie {
//!     title: "Alien".into(),
//!     cast: vec!["Weaver".into(), "Hurt".into()],
//!     isan: "0001".into(),
//! };
//! movies.put(Key::new("action", "Alien"), &alien, Precondition::Any).await?;
//!
//! let page = movies.lookup("by-actor", "Weaver").prefix("A").limit(50).rows().await?;
//! assert_eq!(page.rows[0].value.title, "Alien");
//!
//! // What the index has beside the place of each row: one request, and no row is read.
//! let page = movies.lookup("by-actor", "Weaver").copies().await?;
//! assert_eq!(page.rows[0].copy, "Alien (2)");
//!
//! // Another row with the same number is refused.
//! let again = movies.put(Key::new("action", "Alien 2"), &alien, Precondition::Any).await;
//! assert!(matches!(again, Err(IndexTableError::Duplicate { .. })));
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::sync::Arc;
//! use steadfast::{
//!     backend,
//!     codec::Codec,
//!     index_table::{IndexKey, IndexTable, IndexTableConfig},
//!     store::{Key, Precondition},
//! };
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let backend = backend::open("memory:").await?;
//! // A row is a mail address here; it is found by the domain, and by the name before it.
//! let text = Codec::new(
//!     |mail: &String| Ok::<_, std::fmt::Error>(mail.clone().into_bytes()),
//!     |bytes| String::from_utf8(bytes.to_vec()),
//! );
//! let users = IndexTable::builder(backend.store(), text, IndexTableConfig::default())
//!     .index("by-domain", backend.store(), |mail: &String| {
//!         mail.split_once('@').map(|(name, at)| IndexKey::new(at, name)).into_iter().collect()
//!     })
//!     .unique("by-mail", backend.store(), |mail: &String| Some(mail.clone()))
//!     .build()?;
//!
//! // 1. Index what is there, while others write; from then on the indexes are served.
//! users.build_indexes(["users"]).await?;
//!
//! // 2. Write and delete rows through the table.
//! let (ada, bob) = (Key::new("users", "ada"), Key::new("users", "bob"));
//! users.put(ada, &"ada@example.org".into(), Precondition::Any).await?;
//! let version = users.put(bob, &"bob@example.org".into(), Precondition::Absent).await?;
//! users.delete(bob, Precondition::Version(version)).await?;
//!
//! // 3. Look rows up, page by page, in the order of the second part of the key.
//! let page = users.lookup("by-domain", "example.org").rows().await?;
//! assert_eq!(page.rows[0].value, "ada@example.org");
//! assert!(page.next.is_none());
//!
//! // 4. Find where a row lies, in one request: its partition may name a shard.
//! let found = users.lookup("by-mail", "ada@example.org").keys().await?;
//! assert_eq!(found.rows[0].row, "ada");
//!
//! // 5. Repair, say each night: entries that crashes have left, rows that were written elsewhere.
//! let report = users.repair("users").await?;
//! assert_eq!((report.rows, report.added, report.removed), (1, 0, 0));
//! # Ok(())
//! # }
//! ```
//!
//! # A put, step by step
//!
//! 1. It reads the row.
//! 2. It writes the entries of new keys. Unique ones come first, and may be refused.
//! 3. It reads the entries of the keys that the row loses.
//! 4. It writes the row, and the entries [beside](#beside-the-rows) it, if that is still the one
//!    that it has read; else it begins anew.
//! 5. It deletes the lost entries, at the versions that it has read, and fills in copies.
//!
//! So no row is without its entries. An entry whose row lacks the key is *stale*: the process died
//! between two steps, or the put was refused. A look-up reads the row, computes its keys, and drops
//! such entries.
//!
//! # Copies of rows
//!
//! An entry has the place of its row, and a look-up reads the row behind it. An index that is
//! [`copying`](IndexTable::builder) has a part of the row in each entry, too, such as what a
//! list shows, and [`copies`](Lookup::copies) asks the index alone. Before a put or a delete writes
//! the row, it takes the copy out of each entry whose copy changes or whose key is lost. It fills
//! in the new one behind the row, unless another put has written the entry meanwhile. So no copy is
//! older or newer than its row. A look-up reads the rows of entries without a copy. A process that
//! has died leaves some, and so may a put that has failed, or was refused for its precondition
//! while another one was under way. A later put with another copy fills them in, or a repair.
//!
//! # Beside the rows
//!
//! The entries of an index that lies [`beside`](IndexTable::builder) its rows are in the partition
//! of their row. A put or a delete writes them in one batch with the row, at the version that it
//! has read. So no entry of a row that is written through the table is stale or missing, and no
//! copy is another one, also after a process has died. Such an index is looked up in one partition
//! of rows, which [`within`](Lookup::within) names.
//!
//! ```
//! use std::sync::Arc;
//! use steadfast::{
//!     codec::Codec,
//!     index_table::{IndexTable, IndexTableConfig},
//!     store::{InMemoryStore, Key, Precondition},
//! };
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A row is the state of an order, and a partition has the orders of a tenant.
//! let text = Codec::new(
//!     |state: &String| Ok::<_, std::fmt::Error>(state.clone().into_bytes()),
//!     |bytes| String::from_utf8(bytes.to_vec()),
//! );
//! let base = Arc::new(InMemoryStore::new());
//! let orders = IndexTable::builder(base, text, IndexTableConfig::default())
//!     .beside("by-state", |state: &String| vec![state.as_str().into()])
//!     .build()?;
//! orders.build_indexes(["tenant 7"]).await?;
//!
//! let order = Key::new("tenant 7", "order 42");
//! orders.put(order, &"open".into(), Precondition::Any).await?;
//! orders.put(order, &"paid".into(), Precondition::Any).await?;
//! let paid = orders.lookup("by-state", "paid").within("tenant 7").keys().await?;
//! assert_eq!(paid.rows[0].row, "order 42");
//! # Ok(())
//! # }
//! ```
//!
//! # Touching a row
//!
//! A put that has written its entries may be on its way to the row, so nobody else may delete an
//! entry because the row lacks the key now, or fill in a copy of the row. A repair, or the takeover
//! of a unique key, first *touches* the row: it replaces the row by itself. From then on that put
//! is refused; it begins anew, and writes its entries anew. Where there is no row, a tombstone is
//! written, and a delete leaves one, too. It stays for `grace`. For entries beside a row nobody
//! touches it: a repair writes them in a batch that checks the row.
//!
//! # Composing
//!
//! - **Shards**: [`keys`](Lookup::keys) returns the place of a row, which a
//!   [`sharding`](crate::sharding) map routes. The rows of several shards have a table each,
//!   with index names of its own, and `unique` holds within one table. A store that routes by the
//!   partition may be the table's store.
//! - **Reads**: a [`cache_aside`](crate::cache_aside) of pages of look-ups saves the requests of
//!   those that are asked all the time.
//! - **Computed rows**: a [`materialized_view`](crate::materialized_view) answers the same question
//!   from events: rows by another key, computed later.
//! - **Repairs**: one process runs [`repair`](IndexTable::repair) now and then, say each night.
//!   Several at once are safe, and cost more.
//! - **Idempotency** ([all ways](crate::_docs::once)): a put of the same value again changes the
//!   version alone.
//!
//! # Guarantees
//!
//! 1. A row is found by each of its keys from the return of its `put` until the next one. No
//!    look-up returns a row that lacks the key. A deleted row is not found.
//! 2. At most one row has a unique key at any moment. A key that was claimed for a row that does
//!    not have it is taken over once it was unchanged for `patience`, and up to as much again. Of
//!    puts of rows with the same unique keys one is written, and the others are refused.
//! 3. A process that dies at any request leaves stale entries at most. Look-ups count and drop
//!    them, and a repair removes them while all go on. A row that was written past the table is
//!    found again after a repair that begins once no put of the row, or of a key of it, is under
//!    way. A put does not cure it: it writes entries of the keys that the row gains.
//! 4. An index says that it is being built until [`build_indexes`](IndexTable::build_indexes) has
//!    been through the rows. Puts keep it meanwhile. Two rows with one unique key are reported, and
//!    the index is not served until one of them changes.
//! 5. A put that changes no key costs 2 requests, and each changed key 3 more. A look-up costs 1,
//!    and 1 for each partition of the rows on its page; one for copies costs 1, and 1 for each
//!    partition of rows of which an entry has no copy. The first look-up of an index by a process
//!    costs at most 2 more. With copies, a changed key costs 1 more, or 2 of a unique index, and an
//!    entry whose copy changes 2, or 3. Of two puts of a row at once one begins anew, and costs
//!    more.
//! 6. A repair reports what it has added and removed, an index that was never looked up, and each
//!    key with more than a tenth of all entries. A row that does not decode is counted, and an
//!    entry that names it stays. So is an entry that does not decode: a look-up of its key, and a
//!    put that wants it, fail until it is deleted from its store, and a repair has been run.
//! 7. A setting, a store or an index that breaks a rule is refused by its name; so is a row that an
//!    index has under one key twice, or whose key or copy is too long for the index's store, and a
//!    row, or a repair, of a partition of the table's own indexes. With an index beside the rows a
//!    row key that begins with `index/` is refused, too.
//! 8. A copy is that of the row as it is, and of a row that has the key, while puts are under way,
//!    and after a process has died at any request. Copies of a row that was written, deleted or
//!    expired past the table are those of the former row until a repair. So are those of a row
//!    that did not decode when it was replaced or deleted.
//! 9. The entries beside a row are those of the row at any moment, with its copies, also after a
//!    process has died at any request. Those of a row that was written, deleted or expired past the
//!    table, or did not decode when it was replaced, are so after a repair. They cost a put no
//!    request more: with a change among them its write is a batch. A look-up of them costs 2
//!    requests, and 1 for keys or copies. A batch has the row, and each of its keys twice: a row
//!    has at most 249 keys beside it on NATS, and 499 on the other engines. A put with more is
//!    refused. Of a row with more that was written past the table a repair keeps the first ones.
//!
//! # Cancel safety
//!
//! A dropped [`put`](IndexTable::put) or [`delete`](IndexTable::delete) has written the row as a
//! whole or not at all, and leaves stale entries at most. A dropped
//! [`repair`](IndexTable::repair) or [`build_indexes`](IndexTable::build_indexes) begins anew.
//! Dropped reads lose nothing.
//!
//! # Events
//!
//! [`IndexTableEvent`]: stale entries, took over, repaired, never looked up, coarse key. Alert on
//! stale entries that grow: let a repair run more often.
//!
//! # Pitfalls
//!
//! - The keys are those of the stored value, decoded: a field that the codec leaves out has none. A
//!   value that does not decode again is refused.
//! - A row that does not decode, as one of a newer release, is in
//!   [`unreadable`](IndexPage::unreadable), and not among the rows of a page.
//! - Functions of keys are pure. A changed function is another index, with another name; so is an
//!   index whose store was lost.
//! - Processes of a release without an index write rows that it lacks. Call
//!   [`build_indexes`](IndexTable::build_indexes) once the last of them has ended.
//! - Processes of a release without copies, or with another function for them, leave copies of
//!   former rows. Ask for copies once the last of them has ended, and all partitions were repaired.
//! - A row that does not decode, and was written past the table, has the copies of its former value
//!   until a repair that can decode it. Where such a row is replaced or deleted by its version, the
//!   former copies stay until a repair, and look-ups return them, also those of the deleted row.
//! - Copies cost storage and writes: copy what lists show, and nothing that changes all the time. A
//!   repair that fills in the copies of an index for the first time changes the versions of rows.
//! - A row is written through the table. One that is written past it is not found by new keys, and
//!   keeps stale entries, until a repair. One that is deleted past it while a put is on its way may
//!   also lose an entry until then.
//! - A time to live of a row, which only a write past the table gives it, ends at a touch: a repair
//!   that removes an entry of it, or fills in its copy, writes it without one. The row then stays.
//! - A program that uses the store past the table sees tombstones: [`is_deleted`] tells. Its insert
//!   of a row that requires absence is refused while there is one.
//! - A touch changes the version of a row, and not its value: a put with
//!   [`Precondition::Version`](crate::store::Precondition::Version) may be refused for that.
//! - No request may be under way for more than half of `grace`, and no process may pause so long
//!   between two of them.
//! - A put that is refused may have claimed a unique key: another row that wants it waits for
//!   `patience`, and up to as much again; for ten times `patience` at most if refused puts renew
//!   the claim all the time.
//! - A key with very many rows is one partition of the index: leave the common value out.
//! - The entries of rows in different partitions are read at different moments.
//! - A repair reads all entries of all indexes, for any partition of rows. Of those beside their
//!   rows it reads the entries of the partition alone, twice.
//! - Entries beside rows are rows of the partition, too, whose keys begin with `index/`. A program
//!   that scans the partition past the table sees them. An index that is gone leaves them: delete
//!   the rows that begin with `index/`, its name, and two characters U+0001. Do so before a release
//!   without any such index, for which they are rows that do not decode.
//!
//! # Source
//!
//! "Index Table", in: "Cloud Design Patterns" of Microsoft patterns & practices, 2014.
mod beside;
mod claim;
mod config;
mod error;
mod event;
mod key;
mod lookup;
mod repair;
mod stored;
mod table;
#[cfg(all(test, not(steadfast_loom)))]
mod tests;

pub use config::IndexTableConfig;
pub use error::IndexTableError;
pub use event::IndexTableEvent;
pub use key::{IndexKey, RowKey};
pub use lookup::{IndexPage, IndexedCopy, Lookup};
pub use repair::{DuplicateKey, IndexReport, RepairReport};
pub use stored::is_deleted;
pub use table::{IndexTable, IndexedRow};
