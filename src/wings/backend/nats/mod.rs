//! NATS JetStream 2.10 or later: one server, or a cluster.
//!
//! ```no_run
//! use steadfast::{
//!     backend::nats::{Nats, NatsConfig},
//!     store::{Key, StoreExt},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let servers = "nats://app:password@one.internal,two.internal,three.internal";
//! let nats = Nats::connect(NatsConfig::at(servers)).await?;
//! nats.store().insert(Key::new("orders", "42"), "placed").await?;
//! # Ok(())
//! # }
//! ```
//!
//! All streams and subjects begin with [`prefix`](field@NatsConfig::prefix).
//!
//! # Promises
//!
//! | port | promises | not |
//! |---|---|---|
//! | [`store`](Nats::store) | fences, versions that grow | batches, sequences, times to live: the server has none before 2.11 and 2.12 |
//! | [`queue`](Nats::queue) | delays, de-duplication, error history; receivers are woken at once | groups, order, forwards: see [`NatsQueue`] |
//! | [`lease`](Nats::lease) | leases over the store: a challenger watches a whole term | |
//! | [`notifier`](Nats::notifier) | pushed, in order | notices are not stored |
//!
//! What needs a missing capability is refused by name when it is built. Who needs the order of a key
//! takes another engine, or a topic.
//! [`Linearizable`](crate::port::Capability::Linearizable) of a replicated store depends on
//! [`confirmed_reads`](field@NatsConfig::confirmed_reads).
//!
//! # Durability
//!
//! A server writes a message to its file before it answers, and syncs the file every two minutes by
//! default. [`Durable`](crate::port::Capability::Durable) is stated for the end of the process.
//!
//! | streams | the end of a server's process loses | the end of a machine loses |
//! |---|---|---|
//! | one server | nothing | the writes of the last `sync_interval`, two minutes by default |
//! | one server, `sync_interval: always` | nothing | nothing |
//! | a cluster of three | nothing | nothing, if the other two machines go on |
//! | a cluster of three that loses power as a whole | | the writes of the last `sync_interval` |
//!
//! Set `sync_interval: always` where one machine holds everything, or where all machines share
//! their power. A write is then as slow as a sync of the disk.
//!
//! In a cluster a write is accepted when a majority has it. While a stream elects a leader (seen: 4
//! to 12 s after its machine was lost), its requests fail as
//! [`Unavailable`](crate::port::PortErrorKind::Unavailable) or time out. A term of a lease that is
//! shorter than that ends with the leader.
//!
//! New streams have three replicas in a cluster, one on a single server, or
//! [`replicas`](field@NatsConfig::replicas). To change a stream, use `nats stream edit --replicas`,
//! and connect all handles anew: they confirm reads by the number of replicas that they found.
//!
//! # Connections
//!
//! A handle has one connection. Concurrent requests are batched, and none waits for
//! another's answer. The servers of a cluster tell the client of each other, and it goes on with
//! another one when it loses its own.
//!
//! While no server can be reached, requests fail at once as
//! [`Unavailable`](crate::port::PortErrorKind::Unavailable), and the client connects again by
//! [`reconnect`](field@NatsConfig::reconnect). [`Nats::events`] reports both. No request is
//! repeated. A write that was sent and not answered has an error that states that it may have been
//! applied. A server that has vanished is noticed by unanswered pings, after about
//! [`request_timeout`](field@NatsConfig::request_timeout).
//!
//! # Time
//!
//! Delays and visibility time-outs are measured by the server's clock. Terms of leases are measured by the monotonic clock of each handle. No wall clock of a
//! client is used.
//!
//! # Streams and subjects
//!
//! | stream | subjects | content |
//! |---|---|---|
//! | `PREFIX_store` | `PREFIX.s.PARTITION.ROW.v` | the record |
//! | | `PREFIX.s.PARTITION.ROW.b`, `PREFIX.s.PARTITION.=.v` | marks of confirmed reads and scans, without content |
//! | | `PREFIX.s.=.PREFIX_queue_HASH.i` | the identity of a queue while its stream is being created |
//! | `PREFIX_queue_HASH` | `PREFIX.q.QUEUE` | the messages of a queue; its name is in the stream's metadata |
//! | | `PREFIX.q.QUEUE.DUE` | delayed ones; `DUE` is in milliseconds since 1970 |
//! | `PREFIX_dead_HASH` | `PREFIX.d.QUEUE`, `PREFIX.d.QUEUE.of-NUMBER` | its dead letters |
//! | `PREFIX_claims` | `PREFIX.c.QUEUE.q.NUMBER`, `PREFIX.c.QUEUE.d.NUMBER` | what the queues know of their messages and dead letters in flight |
//! | `PREFIX_ids` | `PREFIX.i.QUEUE.q.ID`, `PREFIX.i.QUEUE.d.ID` | de-duplication ids of messages that are gone, for two windows |
//! | | `PREFIX.n.TOPIC` | notices, in no stream |
//!
//! Space, control characters, `.`, `*`, `>`, `%` and `=` of names are written as `%` and two
//! digits; names that become longer than 1,400 bytes are `=` and base 64.
//!
//! A record takes about 70 bytes beside its value and its key. These stay for ever: one mark of
//! each record that was read in a cluster, one of each partition that was scanned, the fence of
//! each deleted key that was written with a token, and the mark of each deleted record whose handle
//! ended before it could remove it (a minute, and a later write).
//!
//! # Settings that matter
//!
//! | setting | advice |
//! |---|---|
//! | `jetstream { sync_interval: always }` | see "Durability" |
//! | `jetstream { max_file_store }` | set it: writes then fail as `Full` before the disk is full |
//! | `max_payload` | 1 MiB by default: the largest record, message or request, less 8 KiB |
//! | stream settings `max_msgs`, `max_age`, `discard`, `retention` | leave them: a handle refuses a stream that loses data |
//! | the consumer `work` of a queue | leave its settings: a handle that opens the queue restores them, and one that finds none creates it |
//! | `permissions` of the user | publish `PREFIX.>`, `$JS.API.STREAM.>`, `$JS.API.CONSUMER.>`, `$JS.ACK.>`, `$JS.FC.>`; subscribe `PREFIX.n.>`, `_INBOX.>` |
//!
//! # What to watch
//!
//! - `nats stream report`: the size of each stream, and replicas that are behind.
//! - `nats server report jetstream`: pending requests of the API.
//! - [`ConnectionEvent`](crate::backend::ConnectionEvent), and the rate of `TimedOut` errors.
//!
//! # Errors
//!
//! | cause | kind | class |
//! |---|---|---|
//! | no connection, no leader, JetStream is switched off, a write to a deleted stream | `Unavailable` | transient |
//! | no answer within [`request_timeout`](field@NatsConfig::request_timeout) | `TimedOut` | transient |
//! | a partition that is written all the time cannot be scanned | `Throttled` | throttled |
//! | the server's or the account's storage is full | `Full` | throttled |
//! | a wrong password or token, a certificate that is not trusted | `Denied` | permanent |
//! | a server before version 2.10, too few servers for the replicas, a changed stream | `Unsupported` | permanent |
//! | a stream was deleted, is another program's, or has lost entries | `Corrupt` | permanent |
//! | a newer release's data | `TooNew` | permanent |
//!
//! A right that is missing shows as `TimedOut`: the server does not answer what it refuses.
//!
//! # Cancel safety
//!
//! A write whose future is dropped is applied as a whole or not at all.
//!
//! # Pitfalls
//!
//! - Connect within the runtime that uses the handle: its connection is a task of that runtime.
//! - Do not delete streams while handles use them, nor purge that of the store: versions, tokens and
//!   numbers would begin anew. The streams of a queue may be purged at any time, by
//!   `nats stream purge` as by [`purge`](crate::queue::Queue::purge).
//! - Credential files and NKeys are not supported.
//!
//! # Source
//!
//! "JetStream", docs.nats.io; Diego Ongaro and John Ousterhout, "In Search of an Understandable
//! Consensus Algorithm", 2014.
mod api;
mod batch;
mod config;
mod failure;
mod features;
mod handle;
mod link;
mod names;
mod notifier;
mod queue;
mod reader;
mod scan;
mod setup;
mod snapshot;
mod store;
mod sweep;
mod write;

pub use config::NatsConfig;
pub use handle::Nats;
pub use notifier::NatsNotifier;
pub use queue::NatsQueue;
pub use store::NatsStore;
