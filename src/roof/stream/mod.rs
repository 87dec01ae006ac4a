//! Event stream: a partitioned log, its producers, and processors that share its partitions.
//!
//! An event is appended to one partition of a [`Topic`], and gets the next [`Position`] there. The
//! members of a group, each a [`StreamProcessor`], divide the partitions among themselves. Each
//! partition has one owner, which runs a handler for each event and records how far it is.
//!
//! # When, and when not
//!
//! Use it to take in many events, faster than they are processed at peaks, and to process those of
//! one key in their order: readings of devices, changes of accounts, steps of deliveries. Do not
//! use it
//!
//! - for work that any consumer may take in any order, with a lease for each message: a queue and a
//!   [`queue_listener`](crate::queue_listener) scale to any number of consumers,
//! - if a late event must not hold up those behind it in its key,
//! - if events must be found by their contents: a topic is read from a position on.
//!
//! | | queue | stream |
//! |---|---|---|
//! | unit of ownership | a message, by its lease | a partition, by an election |
//! | after processing | the message is removed | the event stays until it is trimmed; the group has a checkpoint |
//! | several groups | a queue for each | each group reads all events |
//! | order | by group key, where the engine has it | by key, always |
//! | requests for each message | receive and settle, in batches | read in batches; a checkpoint a second |
//!
//! # Defaults
//!
//! Of a topic over a store and of its producers:
//!
//! | setting | default | |
//! |---|---|---|
//! | [`window`](StoreTopic::builder) | 5 min | time for which the id of an event is remembered |
//! | `max_batch` | 500 | events that share a request, at most |
//! | `max_pending` | 10,000 | appends under way, above which `append` is `Full` at once |
//!
//! Of a processor:
//!
//! | setting | default | |
//! |---|---|---|
//! | `start` | `earliest` | position at which a new group begins |
//! | `on_out_of_range` | `halt` | reaction to positions that the topic does not have |
//! | `max_in_flight` | 64 | events of a partition that run at once |
//! | `max_ahead` | 1,000 | events above the lowest unfinished one at which reading pauses |
//! | `checkpoint_every` | 1,000 | finished events after which a checkpoint is written |
//! | `checkpoint_interval` | 1 s | time after which it is written |
//! | `max_deliveries` | 5 | attempts of an event, before it becomes a dead letter |
//! | `retry` | 100 ms to 30 s, full jitter | delays between them |
//! | `max_crashes` | 3 | recorded deaths of a process while it ran an event, before it becomes a dead letter |
//! | `rebalance_interval` | 10 s | time within which a change of the members is answered |
//! | `drain_timeout` | 5 s | time that running handlers have on a hand-over and a shutdown |
//! | `idle` | 100 ms to 5 s | delays between reads that find nothing |
//! | `election` | a term of 15 s | settings of the election of each owner |
//!
//! A checkpoint bounds the events that run again after a crash, and costs one write:
//!
//! | `checkpoint_interval`, at 1,000 events/s in a partition | writes an hour | events that run again, about |
//! |---|---|---|
//! | 100 ms | 36,000 | 100 and those in flight |
//! | 1 s | 3,600 | 1,000 and those in flight |
//! | 10 s, with `checkpoint_every` of 10,000 | 360 | 10,000 and those in flight |
//!
//! Requests of an idle member an hour, over leases in a store:
//!
//! | for | requests |
//! |---|---|
//! | the member: announcements and looks at the others | 2,300 |
//! | each partition that it owns: renewals (half of it with leases of a server) | 1,440 |
//! | each partition that it owns: reads, with `idle` up to 5 s | 720 |
//!
//! With a [notifier](StreamProcessor::builder) of its own and of the producers, a member reads at
//! once when events come, and `idle` can be a minute. A group of 1,024 partitions needs a longer
//! term, too: 60 s makes 360 renewals an hour of each, and the replacement of a dead owner takes
//! 72 s.
//!
//! # Example
//!
//! ```
//! use std::{sync::{Arc, Mutex}, time::Duration};
//! use steadfast::{
//!     lease::StoreLease,
//!     queue::InMemoryQueue,
//!     store::InMemoryStore,
//!     stream::{
//!         Delivered, Event, Producer, ProducerConfig, StoreTopic, StreamProcessor,
//!         StreamProcessorConfig,
//!     },
//!     work::EventDisposition,
//! };
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // In a service, a durable store, such as a SQLite file or a PostgreSQL server.
//! let store = Arc::new(InMemoryStore::new());
//! let topic = StoreTopic::open(store.clone(), "deliveries", 8).await?;
//!
//! let producer = Producer::new(topic.clone(), ProducerConfig::default())?;
//! for state in ["ordered", "packed", "delivered"] {
//!     producer.append(Event::new(state).key("delivery-42")).await?;
//! }
//!
//! // Each process runs a member of the group.
//! let leases = Arc::new(StoreLease::builder(store.clone()).build()?);
//! let dead = Arc::new(InMemoryQueue::new("dead"));
//! let config = StreamProcessorConfig::default();
//! let processor = StreamProcessor::builder(topic, "dispatch", leases, store, config)
//!     .dead_letters(dead)
//!     .build()?;
//!
//! let states = Mutex::new(Vec::new());
//! let shutdown = tokio::time::sleep(Duration::from_secs(10));
//! processor.run(shutdown, async |event: Delivered| {
//!     // `event.position` identifies the event; `event.token()` fences the writes of this owner.
//!     states.lock().unwrap().push(event.event.body.clone());
//!     EventDisposition::Complete
//! }).await?;
//! assert_eq!(states.into_inner().unwrap(), ["ordered", "packed", "delivered"]);
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{backend, standard::Standard, work::EventDisposition};
//! use steadfast::stream::{
//!     Delivered, Event, Producer, ProducerConfig, StoreTopic, StreamProcessor, Topic,
//! };
//!
//! # async fn show(_state: &[u8]) -> std::io::Result<()> { Ok(()) }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let backend = backend::open("memory:").await?;
//! # let stop = || tokio::time::sleep(Duration::from_secs(10));
//! let topic = StoreTopic::open(backend.store(), "deliveries", 8).await?;
//! let producer = Producer::new(topic.clone(), ProducerConfig::default())?;
//! // 1. Append an event; those of one key keep their order.
//! producer.append(Event::new("packed").key("delivery-42")).await?;
//!
//! // 2. Append it again after an error, without a second one: by an id.
//! producer.append(Event::new("packed").key("delivery-42").id("scan-7")).await?;
//!
//! // 3. Process the events, in any number of processes, with calls through a pipeline.
//! let (leases, store) = (backend.lease(), backend.store());
//! let config = Default::default();
//! let processor = StreamProcessor::builder(topic.clone(), "board", leases, store, config)
//!     .dead_letters(backend.queue("board-dead").await?)
//!     .build()?;
//! let board = Standard::builder(Default::default()).name("board").build()?.into_pipeline();
//! processor.run(stop(), async |event: Delivered| {
//!     EventDisposition::of_call(board.call(|| show(&event.event.body)).await)
//! }).await?;
//!
//! // 4. Watch the lag of each partition.
//! let states = processor.read_state().await?;
//! let lag: u64 = states.iter().map(|state| state.lag).sum();
//!
//! // 5. Remove what all groups have processed.
//! for state in &states {
//!     topic.trim(state.partition, state.watermark).await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # The topic in a store
//!
//! A [`StoreTopic`] has one partition of the store for each of its own. A request appends one row
//! with all its events, and replaces the *head*: a row with the next position, whose version it
//! requires. So an append costs one request whatever the number of events, positions have no hole,
//! and no event appears behind a reader. An append that was overtaken by another process reads the
//! head and tries again, or waits for its turn (see below). One whose reply is lost sends the same
//! batch again, and finds its own number if it had been applied: it neither appends twice nor
//! leaves the outcome open, as long as the store answers again within 15 s.
//!
//! Other forms were measured on 2 cores, at 50,000 events of 110 bytes a second in 32 partitions.
//! One row for each event, by [`Write::append`](crate::store::Write::append), took PostgreSQL 157
//! ms at the 99th percentile instead of 13, and carried 52,000 events a second instead of more than
//! 500,000. A sequence of rows with several events each numbers the rows, not the events.
//!
//! An event with an [`id`](Event::id) also writes a row for the id, which the store deletes after
//! the window. Therefore ids need [`TimeToLive`](crate::port::Capability::TimeToLive), and cost a
//! row each. A second event with the id has the position of the first one. The id is known in its
//! partition: give events with one id the same key, or none.
//!
//! A read receives whole rows, and keeps those that it did not return for the next one. With a
//! [notifier](StoreTopic::builder) an append wakes the readers of other processes; without it,
//! a waiting read polls, at first after 50 ms and then up to each second.
//!
//! # Competing writers
//!
//! A writer that is alone needs one request for an append, and a second writer two, a read and a
//! write: it would lose to the first one for ever. Therefore writers that compete take turns. One
//! that lost twice in a row, or once if its requests take longer than 10 ms, puts a *ticket* and a
//! *flag* beside the head, by a write that requires nothing. Each append requires, within its one
//! request, that there is no flag; so the others find out, and put tickets, too. The ticket with
//! the lowest offset is the first. Its writer appends 32 times divided by the number of writers,
//! for 100 ms at most, and puts its ticket behind the others. A writer that does not append again
//! at once takes its ticket away, and the last one takes the flag away.
//!
//! A process may die with a ticket. If the first ticket has been there for four times the time that
//! the requests of its writer take, 100 to 400 ms (25 to 400 ms once it has appended in its turn),
//! and nothing was appended meanwhile, the others delete it. Tickets only order writers: positions
//! and the fate of an append depend on the version of the head alone. A release of this crate
//! before turns appends beside them, as it did; a ticket of a newer release that cannot be read is
//! ignored, and so is a damaged one.
//!
//! # Producers
//!
//! One request of a partition is under way at a time. Events that come meanwhile share the next
//! one, in the order of their calls. The faster events come, the more share a request, so a peak
//! costs few additional requests. Requests run in tasks of their own: a caller whose future is
//! dropped, or not polled, disturbs no other one. Events of one key go to one partition
//! ([`partition_of`]), also from other processes. Those without a key are spread evenly.
//!
//! # Owners
//!
//! Each partition is an [election](crate::leader_election). Its term has a fencing token, and a new
//! owner first rewrites the checkpoint under it: only if its version has not changed, and only if
//! the store has seen no higher token. From then on no checkpoint of an earlier owner is accepted,
//! whatever is still on its way.
//!
//! Members announce themselves in rows of the store, with the partitions that they own. Each looks
//! at all rows, and computes the same division: every member gets the floor or the ceiling of an
//! equal share, and as few partitions move as possible. It then applies its share: it takes the
//! free partitions that fall to it, and asks the fullest members to resign from the rest. An owner
//! that is asked stops reading, lets its handlers end, writes a last checkpoint and releases the
//! partition. No partition is taken from a live owner. A member whose row stops changing, on the
//! observer's own clock, is not counted, and its partitions fall to others. They get a partition
//! when its lease ends, so that a member that was only slow loses nothing.
//!
//! The partitions of a dead member, and those that were free for an interval, fall to no newcomer,
//! which is a member that began less than a term and two intervals ago, unless all are new. It asks
//! for its share once they have owners. Otherwise a process that dies and is restarted again and
//! again would keep them free: each restart begins the wait for their leases again.
//!
//! # Checkpoints
//!
//! A checkpoint has the low watermark, which is the position up to which all events are finished,
//! and a bit for each finished event above it. So a slow event holds up neither the checkpoint of
//! the others nor, after a crash, repeats them. An event is finished when its handler returned
//! [`Complete`](crate::work::Disposition::Complete), or when it is a dead letter.
//!
//! # Poison
//!
//! An attempt that fails is repeated after a delay, and only events of the same key wait. After
//! `max_deliveries` attempts the event becomes a dead letter: a message with its body and headers,
//! and the headers `event-topic`, `event-group`, `event-position`, `event-key`, `event-id` and
//! `event-reason`, which has at most 2,000 characters. Without
//! [`dead_letters`](StreamProcessor::builder) its partition halts. Attempts are counted in
//! memory: after a change of owner they begin anew.
//!
//! An event may also kill its process. If two owners in a row finished nothing, the next one is
//! careful: up to `max_ahead` above the watermark it runs one event at a time, and records each
//! before. When a later owner finds that record, the process died while the event ran, or it lost
//! its term, which cannot be told apart. After `max_crashes` such deaths the event becomes a dead
//! letter. An orderly hand-over is no death.
//!
//! # Composing
//!
//! - **Calls** of a handler go through a [pipeline](crate::Pipeline), and their result through
//!   [`EventDisposition::of_call`](crate::work::Disposition::of_call): a call that an open
//!   breaker rejected is no attempt.
//! - **Idempotency** ([all ways](crate::_docs::once)): the position identifies an event within its
//!   topic; write it with the effect, in one [`batch`](crate::store::Store::batch) of the store,
//!   under the token.
//! - **Workflows**: a handler starts a [saga](crate::saga) whose id comes from the event.
//! - **Retention**: [`Topic::trim`] up to the lowest watermark of all groups
//!   ([`read_state`](StreamProcessor::read_state)).
//!
//! # Guarantees
//!
//! 1. Of all owners of a partition, one is effective: once a later one has claimed it, no
//!    checkpoint of an earlier one is accepted.
//! 2. A handler has the token of its owner's term, which is above those of all earlier owners. It
//!    is asked to stop before the term ends, and dropped at its end.
//! 3. No event is lost: each is finished by a handler, is a dead letter, or is counted as lost by
//!    an event of the processor.
//! 4. A checkpoint never passes an event that is not finished, and never moves back. Reading
//!    pauses `max_ahead` above it.
//! 5. Checkpoints are written after `checkpoint_every` events or `checkpoint_interval`, on a
//!    hand-over and on shutdown, without holding up handlers. After a crash only the events
//!    finished since, and those in flight, run again.
//! 6. At rest no partition moves.
//! 7. Live members own the floor or the ceiling of an equal share, and no partition is taken from a
//!    live owner. Notices only shorten waits.
//! 8. The partitions of a dead owner are owned again within its term, `rebalance_interval` and a
//!    poll (27 s), and half an interval later if members come and go meanwhile. If the member to
//!    which they fall dies, the time begins anew. A new member has its share within two intervals.
//!    No clocks are compared.
//! 9. Events of one key run one at a time, in order; at most `max_in_flight` events of a partition
//!    run at once.
//! 10. An event whose attempts are used up becomes a dead letter, or halts its partition. A handler
//!     that was refused by a policy has used up none.
//! 11. An event that kills its process repeatedly becomes a dead letter, and no other event does.
//! 12. A checkpoint that cannot be read, a gap before the next event, and a position beyond the end
//!     halt the partition, or are skipped and counted if so configured. None is reset silently.
//! 13. The number of partitions of a topic never changes: it cannot be opened with another one.
//! 14. An event with an id is accepted once within the window, and forgotten behind it.
//! 15. Notices only shorten the waits of readers: without any, polling finds the events.
//! 16. A request is appended as a whole, once, also if its reply is lost or its process dies. What
//!     was accepted is there, at the position that was returned.
//! 17. An append is one request to the store, and two more for a first conflict. Behind it, a
//!     writer takes turns with others: one request for its ticket, and one for each look at theirs.
//!     A reader makes one request for each page of rows.
//! 18. The partition of a key is its XXH3 hash modulo the number of partitions, in each release.
//! 19. Concurrent appends share a request of at most `max_batch` events, in the order of the calls.
//!     A dropped one disturbs no other one.
//! 20. Above `max_pending` appends under way, an append is `Full` at once.
//! 21. Of up to 16 processes that append to one partition all the time, the slowest makes at least
//!     half as many appends as the fastest, and none waits longer than a second, as long as
//!     requests take less than 20 ms; also beside one that dies.
//!
//! # Cancel safety
//!
//! A dropped [`run`](StreamProcessor::run) is a crash: its partitions are free when their terms
//! have passed, and events since the last checkpoints run again. Prefer `shutdown`. A dropped
//! [`append`](Producer::append) has appended the event, appends it later, or never: an id makes it
//! safe to append it again.
//!
//! # Events
//!
//! [`StreamProcessorEvent`]: members changed, claimed, careful, released, attempt failed,
//! dead-lettered, halted, skipped, call failed. Alert on halted, skipped and dead-lettered.
//!
//! # Pitfalls
//!
//! - The number of partitions bounds the number of members, and is fixed. Choose several times the
//!   number of processes.
//! - A handler that blocks its thread holds up all partitions of its member, and their renewals.
//!   Use `spawn_blocking`, or several members in one process.
//! - A key with a failing event waits for all its attempts, and an event that is snoozed without
//!   end holds up its key for ever.
//! - Tokens must grow: leases that are moved to another backend, where tokens begin anew, are
//!   refused by the checkpoints that they have fenced.
//! - A deleted checkpoint is a new group.
//! - Each member reads the rows of all members twice in a `rebalance_interval`: 46 kB an hour for
//!   each pair of members. Keep a group to some hundred members, or lengthen the interval.
//! - A halted partition goes on when it is claimed again: call
//!   [`resume`](StreamProcessor::resume) in its owner after the repair, or restart that.
//! - `max_ahead` counts events, not bytes: a member may have so many in memory for each partition.
//!   Lower it for large bodies.
//! - Writers of several processes that compete for a partition take turns, and each looks at the
//!   tickets meanwhile. Together they append less than one writer alone, and each looks at the
//!   store some hundred times a second: give a partition to many writers only if each sends little.
//! - An event without an id that is appended again after an error may be there twice, if the error
//!   says that it [may have been applied](crate::port::PortError::may_have_been_applied).
//! - Bodies are parts of their row in memory: an event that is kept for long keeps the row, of up
//!   to 128 KiB. Copy its body.
//! - A handle that has read events may return them once more after another process trimmed them.
//! - Trimming does not know the groups: an event that is trimmed before it was processed is lost to
//!   its group, which halts.
//!
//! # Source
//!
//! "Event Ingestion and Processing", in: "Cloud Design Patterns" and the reference implementation
//! "Data Pipeline" of Microsoft patterns & practices, 2015. Checkpoints by a low watermark: Tyler
//! Akidau et al., "MillWheel", 2013. Leases for partitions: Amazon Kinesis Client Library, Azure
//! Event Processor Host; neither fences its checkpoints.
mod append;
mod append_request;
mod event; // events, and their positions
pub(crate) mod notices;
mod processor; // members of a group
mod producer;
mod reader;
mod store_topic;
mod stored;
#[cfg(all(test, not(steadfast_loom)))]
mod tests;
mod topic;
mod turns; // the order of writers that compete for a partition

pub use event::{Appended, Event, Position, Recorded};
pub use processor::{
    Delivered, OutOfRange, PartitionState, StreamCall, StreamProcessor, StreamProcessorConfig, StreamProcessorEvent,
    StreamStart,
};
pub use producer::{Producer, ProducerConfig, partition_of};
pub use store_topic::StoreTopic;
pub use topic::{Bounds, Read, Topic};
