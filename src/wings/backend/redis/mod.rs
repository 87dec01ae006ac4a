//! Redis 6.2 or later, and Valkey: one server, or a primary with replicas, named by sentinels.
//!
//! ```no_run
//! use steadfast::{
//!     backend::redis::{Redis, RedisConfig},
//!     store::{Key, StoreExt},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let redis = Redis::connect(RedisConfig::at("redis://app:password@cache.internal")).await?;
//! redis.store().insert(Key::new("orders", "42"), "placed").await?;
//! # Ok(())
//! # }
//! ```
//!
//! All keys begin with [`prefix`](field@RedisConfig::prefix). Each operation is one script, or one
//! read of a hash, and one round trip.
//!
//! # Promises
//!
//! | port | promises | not |
//! |---|---|---|
//! | [`store`](Redis::store) | batches, fences, sequences, TTLs, versions that grow | `Push` |
//! | [`queue`](Redis::queue) | groups, order, delays, de-duplication, forwards, error history; receivers are woken at once | |
//! | [`lease`](Redis::lease) | terms by the server's clock: a challenger need not watch a whole term | |
//! | [`notifier`](Redis::notifier) | pushed, in order, up to 1 MiB | notices are not stored |
//!
//! Two more capabilities depend on the server's settings when a handle connects:
//!
//! | capability | needs |
//! |---|---|
//! | [`Durable`](crate::port::Capability::Durable) | `appendonly yes`, `appendfsync always`, `no-appendfsync-on-rewrite no`, `aof-load-truncated no` |
//! | [`Linearizable`](crate::port::Capability::Linearizable) | no replica is connected |
//!
//! If a later server lacks one of them that the ports state, the event
//! [`Weakened`](crate::backend::ConnectionEvent::Weakened) tells. A server that tells no settings,
//! such as a managed one that forbids `CONFIG`, is used without `Durable`, and the event
//! [`Unverified`](crate::backend::ConnectionEvent::Unverified) tells if it may be.
//!
//! # Durability
//!
//! | `appendfsync` | a crash of the server loses | a fail-over loses |
//! |---|---|---|
//! | `always` | nothing | the writes that the new primary had not received |
//! | `everysec` | the writes of the last second or two | the same |
//! | no `appendonly` | everything since the last snapshot | the same |
//!
//! Replication does not wait: a primary accepts a write before a replica has it. With
//! [`replicas`](field@RedisConfig::replicas) each write is followed by `WAIT` in the same round
//! trip, and is accepted once so many replicas have received it. If too few confirm it within three
//! quarters of [`request_timeout`](field@RedisConfig::request_timeout), the error states that the
//! write [may have been applied](crate::port::Failure::may_have_been_applied); so does that of a
//! `WAIT` that the server refuses. A user without the right to it is refused when a handle
//! connects. A fail-over then
//! loses an accepted write only if a replica without it is promoted: name all replicas that may be.
//! Requests of the handle wait behind `WAIT`, and others may read a write before it is confirmed,
//! so the ports do not state more than without it.
//!
//! A version, and so a fencing token, is the larger of the last one plus one and the server's time
//! in microseconds. After a fail-over that lost the last one, it is therefore above it, unless the
//! new primary's clock is behind by more than the fail-over took. Numbers of sequences have no such
//! floor: a number that a fail-over lost is given again.
//!
//! A lease may be lost as well. [Leader election](crate::leader_election) over a server that is not
//! durable, or has replicas, begins each campaign with the event
//! [`GrantsMayBeForgotten`](crate::leader_election::LeaderElectionEvent::GrantsMayBeForgotten).
//! Shared limits, shard directories and store leases need `Linearizable`, and refuse a primary with
//! replicas.
//!
//! # Sentinels
//!
//! `redis+sentinel://app:password@s1,s2,s3/jobs` leads to the primary that most of these sentinels
//! name as the service `jobs`. All are asked at once at each connection, so one that is down,
//! silent or cut off from the others does no harm. If fewer than half of them answer within half of
//! [`connect_timeout`](field@RedisConfig::connect_timeout), the server that most of these name is
//! taken, and none if they disagree by halves. A primary that has become a replica is refused.
//! One connection hears the sentinels' `+switch-master`: when more than half of all name another
//! server, the handle leaves the old one, which would accept writes for seconds and then discard
//! them. The sentinels have credentials of their own:
//! [`sentinel_user`](field@RedisConfig::sentinel_user),
//! [`sentinel_password`](field@RedisConfig::sentinel_password).
//!
//! A promotion loses accepted writes as in the table above: those that had not reached the replica,
//! and those that the old primary accepted until the sentinels named the new one. After a crash
//! these are few; after `SENTINEL FAILOVER`, which leaves the old primary alive, those of one to
//! three seconds. With [`replicas`](field@RedisConfig::replicas) set to the number of all replicas
//! a promotion loses none. The ports never state `Linearizable` with sentinels.
//!
//! | ten promotions under load, five crashes and five orders | accepted messages | lost |
//! |---|---|---|
//! | `replicas` 0 | 283,749 | 40,759 |
//! | `replicas` 2, of two | 8,627 | 0 |
//!
//! Three further crashes alone lost none of 10,076.
//!
//! # No cluster
//!
//! A node of a cluster is refused. Keys of one partition, lease or queue have one hash tag, but a
//! forward, and with it each step of a saga, reaches several queues in one step, which a cluster
//! refuses (`CROSSSLOT`); and a handle has one connection. Use one primary for each application, by
//! its own URL, or several handles.
//!
//! # Damaged messages
//!
//! A message that cannot be read, since an operator or another program has changed a value, is set
//! aside by the receive that finds it: what is left of it goes into the hash `a` of its queue, by
//! its id, and the event [`SetAside`](crate::backend::ConnectionEvent::SetAside) names both. Its
//! neighbours are delivered, and its group goes on with the next message. Read the hash with
//! `HGETALL`, and delete it. A receive that finds nothing else ends within
//! [`request_timeout`](field@RedisConfig::request_timeout), and fails if it cannot set aside.
//!
//! # Connections
//!
//! A handle has one connection for requests, and one for subscriptions, which is opened by the
//! first subscriber or waiting receiver. Concurrent requests share the writes and reads of the
//! connection. While one is under way, reads and writes of one
//! partition, and requests of one queue, go together in one call of a script, as if they were made
//! one after another: each is refused or made alone, and has its own answer. If the server then
//! refuses the call, because its memory or disk is full, each is made again alone. A lone request
//! does not wait; with three requests under way, further ones wait for the end of one.
//!
//! While the server cannot be reached, requests fail at once as
//! [`Unavailable`](crate::port::PortErrorKind::Unavailable), and one task tries to connect again by
//! [`reconnect`](field@RedisConfig::reconnect). [`Redis::events`] reports both. No request is
//! repeated. A write that was sent and not answered has an error that states that it may have been
//! applied. Answers come in order, so a request that times out ends the connection, and with it the
//! requests behind it. Each new connection is checked like the first one: a fail-over by host name
//! or proxy never leads to a replica, and a durable handle never goes on with another data set. A
//! handle that is not durable goes on with a server that lost its data.
//!
//! A subscriber is told of a gap after each reconnection. The connection for subscriptions is
//! tested every 15 s without other requests, so that a vanished server is noticed.
//!
//! # Time
//!
//! Lives, terms and delays are measured by the server's clock, read in the script that uses it. No
//! clock of a client is used. If the server's clock is set forward, TTLs and terms end earlier by
//! that step, and if it is set back, later: let the server's clock be slewed, not stepped. A
//! fail-over is such a step by the difference of two servers' clocks.
//!
//! # Keys
//!
//! | key | content |
//! |---|---|
//! | `PREFIX:meta` | form of the data, and its generated name |
//! | `PREFIX:s:{PARTITION}:` `rows`, `index`, `ends`, `meta` | records of a partition and its last version; fences and sequences |
//! | `PREFIX:l:{NAME}:` | a lease |
//! | `PREFIX:q:{NAME}:...` | a queue; its messages begin with `q:`, its dead letters with `d:` |
//! | `PREFIX:DATABASE:n:TOPIC`, `PREFIX:q:{NAME}:...:w` | channels; databases share those of queues |
//!
//! `}` and `%` of names are escaped.
//!
//! A record takes about 250 bytes beside its value and three times its row key. Each write deletes
//! up to two expired records of its partition, and the server deletes a partition whose records all
//! end. These stay for ever: the fence of each key that was ever written with a token (the row key
//! and about 40 bytes), the last number of each sequence, the last version of each partition and
//! the last token of each lease (about 150 bytes).
//!
//! # Settings that matter
//!
//! | setting | advice |
//! |---|---|
//! | `maxmemory-policy` | `noeviction`; anything else is refused |
//! | `maxmemory` | set it: writes then fail as `Full` before the machine has no memory |
//! | `appendonly`, `appendfsync` | `yes`, `always` for everything that others rely on |
//! | `timeout` | 0: an idle connection that the server closes is connected again at once |
//! | `client-output-buffer-limit pubsub` | a subscriber that is too slow loses its connection, and receives a gap |
//! | `ACL SETUSER` | `resetchannels ~PREFIX:* &PREFIX:* +@read +@write +@scripting +@pubsub +@connection +info +time`, and `+config|get` for `Durable`, `+wait` for `replicas`. The default of Redis 7 for a new user is no channel: it is refused when a handle connects. If the right is taken later, writes go on, also after a reconnection, and waiting receivers find messages by [`poll`](field@RedisConfig::poll) |
//!
//! # Identification
//!
//! The [`url`](field@RedisConfig::url) names a user of the server's access list, or a password
//! alone; `rediss:` adds TLS. If the server refuses the password of a handle that was connected,
//! requests fail as [`Denied`](crate::port::PortErrorKind::Denied) with the reason until it lets
//! the handle in again, and [`NotRestored`](crate::backend::ConnectionEvent::NotRestored) tells
//! once. The class of these errors is transient: a listener of a queue goes on.
//!
//! A connection without TLS that leaves the machine is told by the event
//! [`Exposed`](crate::backend::ConnectionEvent::Exposed) when it is made, a warning of `tracing`,
//! and by [`Redis::explain`]. With sentinels the server that they name counts, too.
//!
//! # What to watch
//!
//! - `INFO memory`: `used_memory` against `maxmemory`.
//! - `INFO replication`: the lag of each replica is what a fail-over loses.
//! - `SLOWLOG`: a script blocks the server while it runs. A batch of 1,000 writes takes
//!   milliseconds.
//! - [`ConnectionEvent`](crate::backend::ConnectionEvent), and the rate of `TimedOut` errors.
//!
//! # Errors
//!
//! | cause | kind | class |
//! |---|---|---|
//! | no connection, a restart, a server that became a replica or is loading | `Unavailable` | transient |
//! | no answer within [`request_timeout`](field@RedisConfig::request_timeout), too few replicas | `TimedOut` | transient |
//! | another script runs for long | `Throttled` | throttled |
//! | `maxmemory` is reached, or the disk is full (with `appendfsync always` the server then ends) | `Full` | throttled |
//! | a wrong password, a missing right, a certificate that is not trusted | `Denied` | permanent |
//! | a server before version 6.2, a cluster, a sentinel at `redis://`, an eviction policy | `Unsupported` | permanent |
//! | a key holds another program's data, or a record is damaged | `Corrupt` | permanent |
//! | a newer release's data | `TooNew` | permanent |
//!
//! A refusal that comes before the first change, such as that of a full memory or of a replica, is
//! certain. After any other error of a script the write
//! [may have been applied](crate::port::Failure::may_have_been_applied), in part only if a key of
//! the prefix is damaged or the user lacks a right to a command; no message is lost then.
//!
//! # Servers that were tried
//!
//! | server | the tests of this backend |
//! |---|---|
//! | Redis 7.0 | all |
//! | Redis 8.0 | all, but a record takes up to 485 bytes beside its value and three times its key |
//! | Valkey 9.1 | all but two that move the server's clock, which had no effect on it |
//! | Redis 6.2, Valkey 8.1 | all; that of a full disk knows the files of Redis 7 alone, and was not run on 6.2 |
//! | Valkey 7 | not run |
//!
//! # Cancel safety
//!
//! A write whose future is dropped is applied as a whole or not at all.
//!
//! # Pitfalls
//!
//! - Connect within the runtime that uses the handle: its connections are tasks of that runtime.
//! - A server that is made a replica (`REPLICAOF`) keeps its connections, and a handle that only
//!   reads goes on with data that grows old. End them, as Sentinel does: `CLIENT KILL TYPE normal`.
//! - The settings of a server are checked when a connection is made. After a change of
//!   `maxmemory-policy`, end the connections in the same way.
//! - After `FLUSHALL` the data has another name, which connected handles do not know: receipts and
//!   addresses of forwards do not pass between them and later ones. Restart the programs.
//! - Do not delete single keys of the prefix. Delete all keys of a partition, lease or queue, and
//!   expect tokens and numbers to begin anew.
//! - Redis executes one script at a time: large values and large batches delay every client. Keep
//!   large values in a blob store, with a [claim check](crate::claim_check).
//!
//! # Source
//!
//! "Redis persistence", "Redis replication" and "Scripting with Lua", redis.io/docs; Martin
//! Kleppmann, "How to do distributed locking", 2016.
mod check;
mod config;
mod connection;
mod failure;
mod handle;
mod keys;
mod lease;
mod link;
mod notifier;
mod pubsub;
mod queue;
mod script;
mod sentinel;
mod share;
mod store;
mod store_calls;

pub use config::RedisConfig;
pub use handle::Redis;
pub use lease::RedisLease;
pub use notifier::RedisNotifier;
pub use queue::RedisQueue;
pub use store::RedisStore;
