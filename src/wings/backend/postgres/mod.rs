//! PostgreSQL 13 or later: state that outlives a machine, shared by many processes.
//!
//! ```no_run
//! use steadfast::{
//!     backend::postgres::{Postgres, PostgresConfig},
//!     store::{Key, StoreExt},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let postgres = Postgres::connect(PostgresConfig::at("postgres://app@db.internal/shop")).await?;
//! postgres.store().insert(Key::new("orders", "42"), "placed").await?;
//! # Ok(())
//! # }
//! ```
//!
//! Everything is in one schema, `steadfast` unless [`schema`](field@PostgresConfig::schema) names
//! another one. Each operation is one statement and one round trip.
//!
//! # Promises
//!
//! | port | promises | not |
//! |---|---|---|
//! | [`store`](Postgres::store) | all capabilities; [`Durable`](crate::port::Capability::Durable) unless `synchronous_commit` or `fsync` is off for this user | `Push` |
//! | [`queue`](Postgres::queue) | all capabilities; receivers are woken by `NOTIFY` | `Push` where [notices do not arrive](#connections) |
//! | [`lease`](Postgres::lease) | terms by the server's clock: a challenger need not watch a whole term | |
//! | [`notifier`](Postgres::notifier) | `LISTEN` and `NOTIFY`: pushed, in order, up to 1 MiB | notices are not stored; no subscription where they do not arrive |
//!
//! With [`PostgresStore::batch_within`] and [`PostgresQueue::send_within`] the writes of the ports
//! and your own statements are one transaction of tokio-postgres. Other clients [send by a
//! statement](#outbox).
//!
//! # Outbox
//!
//! Any client of the server (sqlx, diesel, psql, another language) sends a message within its own
//! transaction by one function of the schema, and needs nothing else of this crate:
//!
//! ```sql
//! BEGIN;
//! INSERT INTO orders VALUES (42);
//! SELECT steadfast.send_message('invoices', convert_to('order 42', 'UTF8'), '{"tenant":"7"}',
//!     deduplication_id => 'order-42', group_key => 'customer-9', delay => interval '5 seconds');
//! COMMIT;
//! ```
//!
//! | argument | type | default | rule |
//! |---|---|---|---|
//! | `queue` | `text` | | name of the queue, 1 to 1,024 bytes; it is created if it does not exist |
//! | `body` | `bytea` | | at most 64 MiB together with the headers |
//! | `headers` | `jsonb` | none | an object whose values are strings |
//! | `deduplication_id` | `text` | none | 1 to 1,024 bytes |
//! | `group_key` | `text` | none | 1 to 1,024 bytes |
//! | `delay` | `interval` | none | not negative |
//! | `deduplication_window` | `interval` | 5 minutes | not negative; give the same as [`deduplication_window`](field@PostgresConfig::deduplication_window) of the handles |
//!
//! An optional argument that is null is left out. The result is the message's id, a `text`, as
//! [`MessageId`](crate::queue::MessageId) shows it; that of a duplicate is the id of the first
//! message. The message is there, and waiting receivers are woken, when the transaction commits; if
//! it rolls back, nothing was sent. A wrong argument is the error `22023`
//! (`invalid_parameter_value`), whose message names it and its rule: `send_message: group_key must
//! not be empty`. A transaction with another isolation level than `READ COMMITTED` is the error
//! `0A000` (`feature_not_supported`). As with [`PostgresQueue::send_within`], such a transaction
//! cannot be prepared for a commit in two phases, the messages of one group wait for each other's
//! transactions, and a long one keeps dead rows: keep it short, and send to groups, de-duplication
//! ids and new queues in one order, because two transactions that do so in opposite orders
//! deadlock. Nobody else can open or send to a queue that a transaction creates until it commits:
//! open the queue once before.
//!
//! The user needs `USAGE` on the schema and the [rights of a handle](#upgrades) on its tables and
//! sequences. [Stability](crate::_docs::stability) says what stays, and
//! [coming from an outbox table](crate::_docs::coming_from::outbox_table) shows the clients.
//!
//! # Durability
//!
//! A write is acknowledged when the server has committed it. What that survives is the server's
//! setting, which is read when a handle connects:
//!
//! | `synchronous_commit` | a crash of the server loses | a fail-over loses |
//! |---|---|---|
//! | `on`, with a synchronous standby | nothing | nothing |
//! | `on`, `local` without one | nothing | the writes that the standby did not have yet |
//! | `off` | the last writes: no port states `Durable` | the same |
//!
//! After a fail-over to an asynchronous standby, or a crash with `off`, versions, numbers and
//! tokens of lost writes may be given again. Use a synchronous standby where tokens guard something
//! outside the database.
//!
//! # Connections
//!
//! A handle opens up to [`connections`](field@PostgresConfig::connections) connections as requests
//! need them, and one more that waits for notices as soon as there is a subscriber. Writes that
//! meet share a statement: while one is under way, those that come gather, and go together with one
//! commit, each with its own answer. So do reads of single records. A lone request waits for
//! nobody. Two to six connections therefore serve most processes. A connection that is idle for
//! [`idle_timeout`](field@PostgresConfig::idle_timeout) is closed, except for the one that was used
//! last, and each one at the age of [`max_lifetime`](field@PostgresConfig::max_lifetime). The one
//! for notices stays.
//!
//! **A server without a free connection** (`53300`) is still used: requests wait for the
//! connections that the handle has, for as long as
//! [`request_timeout`](field@PostgresConfig::request_timeout), and one request at a time tries to
//! open another one, after 100 ms to 5 s. By default a handle has up to 7 connections, so that 13
//! handles fit into the 97 that a server with its default settings leaves to programs.
//!
//! **A connection that falls silent**, because a machine or a network vanished, ends with the first
//! request that times out, and so do all idle connections that were as silent: the next request
//! opens a new one.
//!
//! While the server cannot be reached, requests fail at once as
//! [`Unavailable`](crate::port::PortErrorKind::Unavailable), and one task tries to connect again,
//! after 50 ms to 2 s with jitter. If the server only refuses new connections, such as after a
//! change of the password, those that are open are used on. [`Postgres::events`] reports both. A
//! read whose connection was lost is repeated once. A write is never repeated: if it was sent and
//! not answered, its error states that it [may have been
//! applied](crate::port::Failure::may_have_been_applied). Each new connection is checked like the
//! first one, so that a fail-over never leads to a standby.
//!
//! **A pooler in transaction mode** (pgbouncer, 1.18 tried) works. A new connection finds out if
//! one is between it and the server: the process that it was told at the login is then not that of
//! its session. Without a pooler it prepares its statements, and sets `plan_cache_mode` and what
//! the planner may use; behind one it keeps no session state, which costs the server some 50 to
//! 100 µs more for each request. [`prepare`](field@PostgresConfig::prepare) decides otherwise.
//! Notices need a direct connection: set [`notices_url`](field@PostgresConfig::notices_url).
//!
//! Whether notices arrive is tried when a handle connects, if there is a pooler or a `notices_url`.
//! If one does not arrive within a second, neither the notifier nor a queue states
//! [`Push`](crate::port::Capability::Push), a subscription is refused as
//! [`Unsupported`](crate::port::PortErrorKind::Unsupported), and a receiver that waits looks each
//! second, as it does until its connection for notices is open.
//! [`NoNotices`](crate::backend::ConnectionEvent::NoNotices) tells it, to `tracing` alone, because
//! no subscriber of the handle is there yet. A pooler in session mode passes notices on.
//!
//! If the server refuses the password of a handle that was connected, and the handle has no open
//! connection left, requests fail as [`Denied`](crate::port::PortErrorKind::Denied) with the
//! server's words until it lets the handle in again, and
//! [`NotRestored`](crate::backend::ConnectionEvent::NotRestored) tells once. The class of these
//! errors is transient: a listener of a queue goes on.
//!
//! # TLS
//!
//! `sslmode` of a URL has libpq's meaning where nothing else is set.
//! [`tls`](field@PostgresConfig::tls) demands TLS and a verified server, unless `sslmode`
//! contradicts.
//!
//! | `sslmode` | without `tls` | with `tls` |
//! |---|---|---|
//! | none, `prefer` | TLS if the server has it, whoever it is; otherwise plain text | as `verify-full` |
//! | `disable` | plain text | `Invalid` |
//! | `allow` | `Invalid`: write `prefer` | `Invalid` |
//! | `require` | TLS with whoever answers | as `verify-full`, which is stricter than libpq |
//! | `verify-ca` | `Invalid`: write `verify-full` | an authority of `tls.roots` signed the certificate; the host name may differ |
//! | `verify-full` | certificate and host name are verified with the operating system's authorities | with those of `tls.roots`, if it is set |
//!
//! A socket in a folder has no TLS, whatever `sslmode` says. `channel_binding=require` demands that
//! the password is bound to the server's certificate (`SCRAM-SHA-256-PLUS`), which no third party
//! can relay; by default a server that offers this is used so. Certificates with Ed25519
//! signatures cannot be bound.
//!
//! A connection in plain text, or with a server that is not verified, is told by the event
//! [`Exposed`](crate::backend::ConnectionEvent::Exposed) when it is made, a warning of `tracing`,
//! and by [`Postgres::explain`], unless it stays on this machine: loopback, or a socket.
//!
//! # Time
//!
//! Lives, terms and delays are measured by the server's clock, read by each statement after it has
//! its locks. No clock of a client is used. If the server's clock is set forward, TTLs and terms
//! end earlier by that step, and if it is set back, later: let the server's clock be slewed, not
//! stepped. A fail-over is such a step by the difference of two servers' clocks. Fencing tokens do
//! not depend on time, and protect also then.
//!
//! # Locks
//!
//! A write takes an advisory lock on its key, which falls onto one of 16,384 locks, until the
//! commit. A job whose lock is held by another transaction is sent again alone, so that it makes no
//! other job wait. Half of the connections at most wait for locks. A batch takes up to one lock for
//! each write: many batches of 1,000 writes at once may need a higher `max_locks_per_transaction`.
//!
//! # Settings that matter
//!
//! | setting | advice |
//! |---|---|
//! | `default_transaction_isolation` | `read committed`; anything else is refused |
//! | `default_transaction_read_only` | `off`; anything else is refused |
//! | `synchronous_commit` | `on` for everything that others rely on |
//! | `idle_in_transaction_session_timeout` | set it: a forgotten transaction keeps dead rows visible, and holds locks |
//! | `max_connections` | at least the sum of all handles' `connections`, one for each handle, and the reserved ones |
//!
//! # What stays
//!
//! Handles that write delete expired records, a few hundred at a time. These stay for ever: the
//! fence of each key that was ever written with a token (the key and 8 bytes), the last number of
//! each sequence, and one row for each name of a lease.
//!
//! # What to watch
//!
//! - `pg_stat_activity`: transactions that are open for minutes.
//! - `pg_stat_user_tables` of the schema: `n_dead_tup` should fall after each autovacuum.
//! - [`ConnectionEvent`](crate::backend::ConnectionEvent), and the rate of `Throttled` errors.
//! - Messages that were set aside: `SELECT id FROM steadfast.messages WHERE visible_at = -1`. The
//!   event of one is lost if the connection is lost before the answer.
//!
//! # Damaged rows
//!
//! A row that was changed by hand, such that no release could have written it (`NULL`, a negative
//! count, a number at the end of its range), harms no other one:
//!
//! | table | effect | mended by |
//! |---|---|---|
//! | `messages` | the delivery that finds it sets it aside (`visible_at` is -1), and its group goes on; [`SetAside`](crate::backend::ConnectionEvent::SetAside) names its id, at `ERROR` | correcting its columns and `visible_at = steadfast.now_us()`, or deleting it; a purge deletes it, too |
//! | `records` | a `get` of it, and a page of a `scan` that would contain it, are `Corrupt` | a put or a delete without a precondition |
//! | others | a request that needs it is `Corrupt` | correcting it |
//!
//! A message that is set aside is not received, counted or shown. One whose `visible_at` is set by
//! hand to another negative number or to null is not found, and not told.
//!
//! # Upgrades
//!
//! The first handle of a release creates or updates the schema, in one transaction under a lock. A
//! program whose user may not do that sets [`migrate`](field@PostgresConfig::migrate) to `false`;
//! an administrator runs the statements of [`Postgres::statements`], and grants the user `USAGE` on
//! the schema, `USAGE`, `SELECT` and `UPDATE` on its sequences, and `SELECT`, `INSERT`, `UPDATE`
//! and `DELETE` on its tables.
//!
//! A release that meets a newer schema is refused as
//! [`TooNew`](crate::port::PortErrorKind::TooNew): when it connects, and at each later request once
//! a newer release has changed the schema under it. Such a request does nothing. Replace the
//! processes of the older release soon then. Each statement asks for the version, which costs the
//! server some 5 µs, and those of a queue whether it is there, which costs as much again.
//!
//! A schema whose tables are not all there is refused as `Corrupt`, also with `migrate`: an empty
//! table in the place of a lost one would look like data.
//!
//! # Versions
//!
//! | PostgreSQL | pgbouncer | run by |
//! |---|---|---|
//! | 15.18 | 1.18, in transaction and session mode | all tests |
//! | 17.12 | the same | all tests |
//! | 18.6 | the same | all tests |
//!
//! The statements use what release 13 has.
//!
//! # Errors
//!
//! | cause | kind | class |
//! |---|---|---|
//! | no connection, a restart, a read-only server | `Unavailable` | transient |
//! | no answer within [`request_timeout`](field@PostgresConfig::request_timeout) | `TimedOut` | transient |
//! | a deadlock, no connection, lock or place to wait in time | `Throttled` | throttled |
//! | the server's disk is full | `Full` | throttled |
//! | a wrong password, a missing right, a certificate that is not trusted | `Denied` | permanent |
//! | a server before version 13, another isolation level, a subscription behind a pooler | `Unsupported` | permanent |
//! | a request of more than 512 MiB, a schema with tables of another program | `Invalid` | permanent |
//! | the schema or a table was dropped, a queue is not there any more, data is damaged | `Corrupt` | permanent |
//! | a newer release changed the schema | `TooNew` | permanent |
//!
//! # Cancel safety
//!
//! A write whose future is dropped is applied as a whole or not at all. Its connection waits for
//! the answer, and returns to the pool.
//!
//! # Pitfalls
//!
//! - Connect within the runtime that uses the handle: its connections are tasks of that runtime.
//! - Keep a transaction with [`batch_within`](PostgresStore::batch_within) short: writers of its
//!   keys wait for its end, up to their time limit.
//! - After a schema was dropped and made anew, a queue that was opened before is `Corrupt`: open it
//!   again. Records and leases begin anew under the same names, with versions and tokens that were
//!   given before: restart the programs, also after a schema was restored from a copy.
//! - Values are in the write-ahead log as well: keep large ones in a blob store, with a
//!   [claim check](crate::claim_check).
//!
//! # Source
//!
//! "Explicit Locking" and "NOTIFY", postgresql.org/docs; group commit: DeWitt et al.,
//! "Implementation techniques for main memory database systems", 1984.
mod config;
mod handle;
mod lease;
mod link;
mod notices;
mod queue;
mod schema;
mod store;
mod sweep;

pub use config::PostgresConfig;
pub use handle::Postgres;
pub use lease::PostgresLease;
pub use notices::PostgresNotifier;
pub use queue::PostgresQueue;
pub use store::PostgresStore;
