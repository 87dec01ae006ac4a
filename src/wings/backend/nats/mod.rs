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
//! | [`store`](Nats::store) | batches, sequences, times to live, fences, versions that grow | times to live before release 2.11 of the server, batches and sequences before 2.12 |
//! | [`queue`](Nats::queue) | delays, de-duplication, error history; receivers are woken at once | groups, order, forwards: see [`NatsQueue`] |
//! | [`lease`](Nats::lease) | leases over the store: a challenger watches a whole term | |
//! | [`notifier`](Nats::notifier) | pushed, in order | notices are not stored |
//!
//! What needs a missing capability is refused by name when it is built. So sagas, topics, shared
//! limits and the remote tier of a cache run on a cluster of three, from release 2.12 on. Use a
//! topic if you need the order of a key.
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
//! Delays, visibility time-outs and lives of records are measured by the server's clock, which
//! stamps each message of a stream: keep the clocks of a cluster together, since after a fail-over
//! lives go on by that of another server. Terms of leases are measured by the monotonic clock of
//! each handle. No wall clock of a client is used.
//!
//! # Streams and subjects
//!
//! | stream | subjects | content |
//! |---|---|---|
//! | `PREFIX_store` | `PREFIX.s.PARTITION.v.ROW` | the record |
//! | | `PREFIX.s.PARTITION.b.ROW`, `PREFIX.s.PARTITION.v.=` | marks of confirmed reads and scans, without content |
//! | | `PREFIX.s.PARTITION.h.=.SEQUENCE` | the last number of a sequence |
//! | | `PREFIX.s.PARTITION.h.=.SEQUENCE.t`, `PREFIX.s.PARTITION.c` | requirements of batches, without content |
//! | | `PREFIX.s.=.PREFIX_queue_HASH` | the identity of a queue while its stream is being created |
//! | `PREFIX_queue_HASH` | `PREFIX.q.QUEUE` | the messages of a queue; its name is in the stream's metadata |
//! | | `PREFIX.q.QUEUE.DUE` | delayed ones; `DUE` is in milliseconds since 1970 |
//! | `PREFIX_dead_HASH` | `PREFIX.d.QUEUE`, `PREFIX.d.QUEUE.of-NUMBER-STORED` | its dead letters |
//! | `PREFIX_claims_HASH` | `PREFIX.c.QUEUE.q.NUMBER-STORED`, `PREFIX.c.QUEUE.d.NUMBER-STORED` | the claims of its deliveries, of messages and of dead letters |
//! | `PREFIX_ids` | `PREFIX.i.QUEUE.q.ID`, `PREFIX.i.QUEUE.d.ID` | de-duplication ids of messages that are gone, for two windows |
//! | | `PREFIX.n.TOPIC` | notices, in no stream |
//!
//! `NUMBER` is that of the message in its stream, and `STORED` the time at which it was stored, in
//! nanoseconds since 1970: a stream that was made anew, or restored, gives numbers again.
//!
//! Space, control characters, `.`, `*`, `>`, `%` and `=` of names are written as `%` and two
//! digits; names that become longer than 700 bytes are `=` and base 64.
//!
//! `ROW` is three tokens or more: the first character, the text up to the first `/`, and the rest;
//! `%` is none. Where the rest is a number of 16 hexadecimal or 20 decimal digits, it is `x` or
//! `d`, the number of digits without leading zeros, and these one by one: `h` is `h.%.h`, `i/abc`
//! is `i.i/.abc`, and `e/0000000000000a42` is `e.e/.x.3.a.4.2`. A stream of an earlier form is
//! refused.
//!
//! A record takes about 70 bytes beside its value and its key. The server removes marks and ended
//! records after a minute. These stay for ever: the last number of each sequence, and the fence of
//! each key that was deleted, or whose record ended, with a token. Before release 2.11 also one
//! mark of each record that was read in a cluster, one of each partition that was scanned, and the
//! mark of each deleted record whose handle ended before it could remove it (a minute, and a later
//! write).
//!
//! # Releases of the server
//!
//! | release | store |
//! |---|---|
//! | 2.10 | records, fences, leases |
//! | 2.11 | and times to live |
//! | 2.12 or later | and batches, sequences, pages of a partition that is written all the time |
//!
//! A stream that was made on an older server gets the settings `allow_msg_ttl`, `allow_atomic` and
//! `allow_direct` at the first [`connect`](Nats::connect) after the upgrade, if the server of the
//! handle and the leader of the stream are of the newer release. Handles that were connected before
//! go on without: connect them anew before you use sequences, because they do not keep their puts
//! from creating rows of one.
//!
//! **Upgrade all servers of a cluster before you connect handles anew.** A server of an older
//! release cannot hold a stream with these settings: nor can you go back.
//!
//! # Servers that were tried
//!
//! | server | run by |
//! |---|---|
//! | 2.15.1, one server | all tests |
//! | 2.15.1, a cluster of three | the suites, leaders that are killed and paused, examples |
//! | 2.10.27, one server | the suites of store and queue, faults of the server under a queue |
//! | 2.11 to 2.14, a cluster of 2.10 | not run |
//!
//! # Settings that matter
//!
//! | setting | advice |
//! |---|---|
//! | `jetstream { sync_interval: always }` | see "Durability" |
//! | `jetstream { max_file_store }` | set it: writes then fail as `Full` before the disk is full |
//! | `jetstream { limits { batch { .. } } }` | leave it: a store needs `max_msgs` of 1,000; a batch beside `max_inflight_per_stream` (50) others is sent again, and at last `Throttled` |
//! | `max_payload` | 1 MiB by default: the largest record, message or request, less 8 KiB |
//! | stream settings `max_msgs`, `max_age`, `discard`, `retention` | leave them: a handle refuses a stream that loses data |
//! | the consumer `work` of a queue | leave its settings: a handle that opens the queue restores them, as does one whose pulls they refuse, and one that finds none creates it; a `max_ack_pending` is used up by delayed messages, and those that a `max_deliver` has stopped come again when the consumer is deleted |
//! | `permissions` of the user | see "Rights" |
//!
//! # Identification and rights
//!
//! | server | setting |
//! |---|---|
//! | users with passwords, tokens | the [`url`](field@NatsConfig::url), which names them once or at each server |
//! | operator mode, hosted NATS | [`credentials`](field@NatsConfig::credentials): a file with a JWT and a seed |
//! | users by NKey | [`nkey`](field@NatsConfig::nkey) |
//!
//! A file is read at each connection, so that it can be replaced while programs run. If a server
//! refuses the identification of a handle that was connected, requests fail as
//! [`Denied`](crate::port::PortErrorKind::Denied) with the reason until it lets the handle in, and
//! [`NotRestored`](crate::backend::ConnectionEvent::NotRestored) tells once. The class of these
//! errors is transient: a listener of a queue goes on.
//!
//! [`Nats::permissions`] returns the rights that a user needs for one prefix with some queues. With
//! `S` for the stream `PREFIX_store` and for that of each queue they are:
//!
//! | right | subjects |
//! |---|---|
//! | publish | `PREFIX.>` |
//! | | `$JS.API.STREAM.*.S`, `$JS.API.STREAM.MSG.*.S`, `$JS.API.DIRECT.GET.S`, `$JS.API.DIRECT.GET.S.>` |
//! | | `$JS.API.CONSUMER.*.S`, `$JS.API.CONSUMER.*.S.>`, `$JS.API.CONSUMER.MSG.NEXT.S.*`, `$JS.API.CONSUMER.DURABLE.CREATE.S.*` |
//! | | `$JS.ACK.S.>`, `$JS.ACK.*.*.S.>`, `$JS.FC.S.>`, `$JS.FC.*.*.S.>` |
//! | subscribe | `PREFIX.n.>`, `_INBOX.PREFIX.>` |
//!
//! No stream of another prefix is reached by these, and no answer to another prefix is heard. (The
//! server lets a user who creates a stream choose its subjects, though: let an administrator create
//! the streams by connecting once, and take away `$JS.API.STREAM.CREATE.*`, if a user must not read
//! what other users of the account publish.) A right that is missing is the error `Denied`, which
//! names the subject.
//!
//! With [`domain`](field@NatsConfig::domain) the streams are those of another JetStream domain,
//! such as that of the hub behind a leaf node; the API's subjects then begin with `$JS.DOMAIN.API`.
//! Use a prefix in one domain of an account alone: the streams of two domains would both take what
//! is published to its subjects.
//!
//! # On the way
//!
//! A connection without TLS that leaves the machine is told by the event
//! [`Exposed`](crate::backend::ConnectionEvent::Exposed) when it is made, a warning of `tracing`,
//! and by [`Nats::explain`].
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
//! | a large partition that is written all the time cannot be scanned, too many batches are under way, the same rows are written all the time | `Throttled` | throttled |
//! | the server's or the account's storage is full | `Full` | throttled |
//! | a wrong password, token or key, a missing right, a certificate that is not trusted | `Denied` | permanent |
//! | a server before version 2.10, too few servers for the replicas, a changed stream | `Unsupported` | permanent |
//! | a stream was deleted, is another program's, or has lost entries | `Corrupt` | permanent |
//! | a newer release's data | `TooNew` | permanent |
//!
//! # Cancel safety
//!
//! A write whose future is dropped is applied as a whole or not at all.
//!
//! # Pitfalls
//!
//! - Connect within the runtime that uses the handle: its connection is a task of that runtime.
//! - Do not delete streams while handles use them, nor purge that of the store: versions, tokens
//!   and numbers would begin anew. The stream of a queue may be deleted while no program has
//!   receipts of it. The streams of a queue may be purged at any time, by
//!   `nats stream purge` as by [`purge`](crate::queue::Queue::purge).
//! - A message of another program whose headers are damaged, such as a value that is not UTF-8,
//!   ends the connection to which it is delivered, and comes again after 30 s. Messages that were
//!   pulled with it are late by that, several times if they are pulled with it again. Delete it by
//!   its number with `nats stream rmm`.
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
mod login;
mod names;
mod notifier;
mod queue;
mod reader;
mod rights;
mod rows;
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
