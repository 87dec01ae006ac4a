//! Event sourcing: changes are stored as events, in one order that every reader sees.
//!
//! A [`Commit`] appends events to one stream or to several, and takes effect as a whole or not at
//! all. Each commit has a number in its log, an [`EventStore`]. The state of an [`Aggregate`] is
//! the fold of its stream, and a command is decided on that state.
//!
//! # When, and when not
//!
//! Use it where the reason of each change matters later: bookings, accounts, claims, anything that
//! is audited or undone by another change; and where several writers change one thing and a lost
//! update would be a loss. Do not use it
//!
//! - for a small domain in which only the current state matters: a row with a version, as in the
//!   [`store`](crate::store), does,
//! - where views must be exact at once: what follows a log is behind it by a moment,
//! - to find things by their contents: a stream is read by its name.
//!
//! | | event sourcing | [`stream`](crate::stream) |
//! |---|---|---|
//! | unit | a commit: events of some streams, with checks | an event |
//! | order | one for the whole log | one for each partition |
//! | a writer can require | versions of streams, claims, rows | nothing |
//! | reads | a stream by its name; the log from a number on | a partition from a position on |
//! | use | truth, from which the state is computed | transport to those who process it |
//!
//! # Defaults
//!
//! Of a log:
//!
//! | setting | default | |
//! |---|---|---|
//! | `remember` | 24 h | time for which the id of a command is remembered, at least a minute |
//! | `max_batch` | 64 | commits that share a request, at most |
//! | `max_pending` | 10,000 | commits under way, above which `commit` is `Full` at once |
//!
//! Of aggregates:
//!
//! | setting | default | |
//! |---|---|---|
//! | `max_attempts` | 8 | decisions of a command, because other processes were faster |
//! | `retry` | 1 to 50 ms, full jitter | delays between them |
//! | `cached_states` | 1,000 | aggregates whose states are kept in memory |
//! | `max_group` | 64 | commands of an aggregate that are committed together, at most |
//! | `snapshot_every` | 100 | events between two snapshots, if there is a codec for them |
//!
//! Of an outbox:
//!
//! | setting | default | |
//! |---|---|---|
//! | `page` | 100 | commits between two checkpoints, at most |
//! | `retry` | 100 ms to 10 s, full jitter | delays between requests to a queue that fails |
//! | `standby` | 5 s | time for which an outbox waits after another one has moved the checkpoint |
//! | `call_timeout` | 5 s | time limit of one request to the queue |
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use serde::{Deserialize, Serialize};
//! use steadfast::{
//!     codec::Codec,
//!     event_sourcing::{
//!         Aggregate, AggregateConfig, AggregateStore, EventCodec, EventStore, ExecuteError,
//!     },
//!     store::InMemoryStore,
//! };
//!
//! #[derive(Default, Clone)]
//! struct Seats { booked: u32 }
//!
//! #[derive(Serialize, Deserialize)]
//! struct Booked { seats: u32 }
//!
//! #[derive(Debug)]
//! struct SoldOut;
//!
//! impl Aggregate for Seats {
//!     type Command = u32;
//!     type Event = Booked;
//!     type Error = SoldOut;
//!
//!     fn decide(&self, seats: &u32) -> Result<Vec<Booked>, SoldOut> {
//!         if self.booked + seats > 100 { return Err(SoldOut) }
//!         Ok(vec![Booked { seats: *seats }])
//!     }
//!
//!     fn evolve(&mut self, event: &Booked) {
//!         self.booked += event.seats;
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // In a service, a durable store, such as a SQLite file or a PostgreSQL server.
//! let log = EventStore::open(Arc::new(InMemoryStore::new()), "conference").await?;
//! let json = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
//! let codec = EventCodec::new(json, |_: &Booked| "SeatsBooked");
//! let seats = AggregateStore::<Seats>::new(log, codec, AggregateConfig::default())?;
//!
//! // A command has an id: a caller without an answer repeats it.
//! let done = seats.execute("conf-7", "cmd-7f3a", 60).await?;
//! assert_eq!(done.token.unwrap().to_string(), "conference@1");
//! assert!(seats.execute("conf-7", "cmd-7f3a", 60).await?.is_repeated);
//!
//! let sold_out = seats.execute("conf-7", "cmd-81c0", 60).await.unwrap_err();
//! assert!(matches!(sold_out, ExecuteError::Rejected(SoldOut)));
//! assert_eq!(seats.load("conf-7").await?.0.booked, 60);
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{
//!     backend,
//!     event_sourcing::{Commit, CommitError, EventStore, Expected, NewEvent, StoredCommit},
//!     store::{Precondition, Write},
//!     stream::{Read, Topic},
//! };
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let backend = backend::open("memory:").await?;
//! let log = EventStore::open(backend.store(), "conference").await?;
//! // 1. Append an event to a stream of which the version is known, and a row of yours with it.
//! let booked = || NewEvent::new("SeatsBooked", r#"{"seats":2}"#);
//! let stock = Write::put("u/stock/conf-7", "98", Precondition::Absent);
//! let commit = Commit::new("cmd-1").append("conf-7", Expected::Version(0), [booked()]);
//! let done = log.commit(commit.write(stock)).await?;
//! assert_eq!(done.versions["conf-7"], 1);
//!
//! // 2. Learn that another process was faster.
//! let late = Commit::new("cmd-2").append("conf-7", Expected::Version(0), [booked()]);
//! let conflict = log.commit(late).await.unwrap_err();
//! assert!(matches!(conflict, CommitError::Conflict { actual: 1, .. }));
//!
//! // 3. Keep a name unique: each badge number belongs to one attendee.
//! let badge = |id: &str, attendee: &str| {
//!     let named = NewEvent::new("BadgeIssued", "117");
//!     Commit::new(id).append(attendee, Expected::Any, [named]).claim("badge/117")
//! };
//! log.commit(badge("cmd-3", "attendee-9")).await?;
//! let taken = log.commit(badge("cmd-4", "attendee-10")).await.unwrap_err();
//! assert!(matches!(taken, CommitError::Taken { by, .. } if by == "attendee-9"));
//!
//! // 4. Read the events of a stream behind a version.
//! let events = log.read("conf-7", 0, 100).await?;
//! assert_eq!((events[0].version, events[0].command.as_str()), (1, "cmd-1"));
//!
//! // 5. Follow the log, as any topic: here by hand, in a service by a `StreamProcessor`.
//! let read = Read::from(1).wait(Duration::from_secs(30));
//! for recorded in log.topic().read(0, read).await? {
//!     let commit = StoredCommit::open(&recorded)?;
//!     println!("{} {}", commit.number, commit.events[0].event.kind);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # The log in a store
//!
//! A log is one partition of a store. A commit is one batch: the row of its command's id, its
//! checks and claims and your rows, its events, and a row with the whole commit. Events are
//! appended to the [sequence](crate::store#sequences) of their stream, and the commit to that of
//! the log. So the store numbers both: no commit reads before it writes, and none conflicts without
//! a cause. The price is that an event is stored twice, and that the store keeps the last number of
//! each stream for ever.
//!
//! Commits that meet in a process share a request. One of them whose outcome depends on an earlier
//! one goes into the next request. If a request is refused, its commits are sent one by one.
//!
//! If a reply is lost, the log puts a mark into the row of the command's id, which the request
//! requires to be absent. If the mark is accepted, the request was not applied and never will be,
//! also if it is still on its way; it is sent again, and requires the mark. If it is refused, the
//! row tells which request wrote it.
//!
//! # Commands
//!
//! The commands of one aggregate that meet in a process are decided one after the other, each on
//! the state behind the one before, and committed together. A state in memory needs no check: the
//! commit requires its version. After a conflict only the events since are read, and all are
//! decided anew. A rejection is given on a state that was read, or committed to, during the call. A
//! command that was accepted before is repeated, also if the aggregate would reject it by now.
//!
//! # Messages
//!
//! A commit [sends](Commit::send) messages to queues that the log was [built](EventStore::builder)
//! with, and an aggregate sends them [with its events](AggregateStore::builder). They are parts of
//! the commit. An [`Outbox`] for each queue reads the log from its checkpoint on, sends them, and
//! moves the checkpoint. A process may die between the two, and then a message is sent again, under
//! the same de-duplication id: the identity of the log, the number of the commit, and the place in
//! it. Any number of processes may run the outbox of a queue. All but one stand by.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{
//!     event_sourcing::{
//!         Commit, EventStore, EventStoreConfig, Expected, NewEvent, Outbox, OutboxConfig,
//!     },
//!     queue::{InMemoryQueue, Message, Queue},
//!     store::InMemoryStore,
//! };
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mails = Arc::new(InMemoryQueue::new("mails"));
//! let store = Arc::new(InMemoryStore::new());
//! let log = EventStore::builder(store, "conference", EventStoreConfig::default())
//!     .outbox("mails", mails.capabilities())
//!     .build().await?;
//!
//! let booked = NewEvent::new("SeatsBooked", r#"{"seats":2}"#);
//! let commit = Commit::new("cmd-7f3a").append("conf-7", Expected::Any, [booked]);
//! log.commit(commit.send("mails", Message::new("Your seats are booked."))).await?;
//!
//! let outbox = Outbox::new(&log, "mails", mails.clone(), OutboxConfig::default())?;
//! outbox.run(tokio::time::sleep(Duration::from_secs(1))).await?;
//! assert_eq!(mails.depth().await?.total(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Schemas
//!
//! Each event has a type and the number of its schema. An [`EventCodec`] changes a body with an
//! older schema step by step. An unknown type and a schema above ours are errors: an old process in
//! a rolling deployment stops, and skips nothing. Roll out code that reads a schema before code
//! that writes it.
//!
//! # Composing
//!
//! - **Views**: a [`StreamProcessor`](crate::stream::StreamProcessor) over
//!   [`topic`](EventStore::topic) runs in any number of processes. The number of the commit
//!   identifies it. Its [`Token`] travels with an answer, and a reader waits for it.
//! - **Commands from a queue**: a [`queue_listener`](crate::queue_listener) calls
//!   [`execute`](AggregateStore::execute), with the message's id as the command's id. `remember`
//!   must be longer than a message may be delivered again.
//! - **Calls**: `decide` is pure. Call other services before, and pass what they said in the
//!   command.
//! - **Several contexts**: [`expect`](Commit::expect) and [`write`](Commit::write) within one log;
//!   a [saga](crate::saga) beyond it.
//! - **Idempotency** ([all ways](crate::_docs::once)): the command's id.
//!
//! # Guarantees
//!
//! 1. All readers see one order of commits. Commits are numbered without a hole, and so are the
//!    events of each stream. A commit is seen as a whole or not at all.
//! 2. A commit is refused with its reason, and nothing is written: a stream with another version
//!    than expected, appended to or not; a claim that is held; a row with another version. Of two
//!    commits that each require what the other changes, one fails. `Expected::Any` never conflicts.
//! 3. A command's id is accepted once within `remember`, whatever the versions are by then. For
//!    another stream it is refused.
//! 4. A commit takes effect once, also if its reply is lost, its request arrives late or its
//!    process dies. If the store stays away for 15 s, the error says that it may have been applied.
//! 5. Commits that meet share a request, and none fails for the cause of another. A dropped caller
//!    disturbs nobody.
//! 6. A missing row, one that cannot be decoded and one of a newer release are errors. None is
//!    skipped.
//! 7. The log is a topic, with the commits as events. A trim deletes commits, never the last one,
//!    and no event of a stream.
//! 8. A commit that breaks a rule is refused before anything is sent, with the name of the field; a
//!    store without a needed capability by the name of that; a commit above `max_pending` at once.
//! 9. A command is decided on the state of the version to which its events are appended, in any
//!    number of processes.
//! 10. Commands of one aggregate in one process never conflict with each other, and are committed
//!     together. Each is answered by itself, also if another one panics, and other aggregates are
//!     not held up.
//! 11. A state in memory is not read again. After a conflict only its tail is, and the last
//!     conflict says how many attempts were made. No rejection is of an old state.
//! 12. A snapshot and the tail are the fold of all events. A snapshot of another schema, or one
//!     that cannot be read, is ignored with an event. [`verify`](AggregateStore::verify) finds a
//!     wrong one.
//! 13. Upcasts run one step at a time. An unknown type, and a schema above ours, are errors with
//!     both names; only what is ignored is passed over. A load of more than 1,000 events is an
//!     event.
//!
//! 14. A message is sent if and only if its commit took effect: at least once, in the order of the
//!     log, under one de-duplication id. Each queue has its own checkpoint, moved behind the send,
//!     so a queue that is down holds up itself alone. Messages that were trimmed are an error.
//! 15. A queue that was not declared, and a message that its queue would refuse, are refused by the
//!     commit.
//!
//! # Cancel safety
//!
//! A dropped [`commit`](EventStore::commit) or [`execute`](AggregateStore::execute) took effect,
//! takes effect later, or never. Repeat it with the same id. A dropped [`run`](Outbox::run) of an
//! outbox sends the messages behind its last checkpoint again.
//!
//! # Events
//!
//! [`AggregateEvent`]: conflicted, snapshot ignored, long stream. Alert on a long stream, and on
//! conflicts of most commands: then an aggregate is too large. [`OutboxEvent`]: send failed, store
//! failed, stands by. Alert on a failed send that repeats.
//!
//! # Pitfalls
//!
//! - An event is never changed. Correct it by another event, and write an upcast for another form.
//! - An event appended to `Expected::Any` has no version in its [`StoredCommit`], because the store
//!   numbers it later; it has one in its stream.
//! - All commits of a log are in one order, so one log has the rate of one sequence of its store.
//!   Open several logs for what needs no common order.
//! - A snapshot of a fold that has changed is wrong, and is read: raise its schema with the fold.
//! - A claim that is released is free for everyone. Release it in the commit that ends its use.
//! - A trim does not know the outboxes and the processors: trim behind the slowest of them.
//! - A message's delay begins when the outbox sends it, not with the commit.
//! - Personal data stays in the events. Encrypt it with a key for each person, and delete the key.
//! - Times in events are those of the processes' wall clocks. No decision compares them.
//! - A command that was decided without events is not remembered: repeated later, it is decided
//!   anew.
//! - A trim, a claim's release and a snapshot know no owner: whoever may commit may do them. Two
//!   types of aggregates over one stream need different schemas of snapshots.
//! - A processor orders commits by their first stream. A commit to several streams may run beside
//!   another one of its second stream: read the log by hand, or set `max_in_flight` to 1, where all
//!   of them must be in order.
//! - A log is one partition, and grows. On NATS, from release 2.12, each page of a partition costs
//!   the whole of it, and its store wants no more than a thousand rows there: it is refused by
//!   older releases, and good for a small log only.
//!
//! # Source
//!
//! "Event Sourcing", in: "Cloud Design Patterns" of Microsoft patterns & practices, 2014.
//! Optimistic checks of versions: the source's sample "Conference Management System" of "Exploring
//! CQRS and Event Sourcing", 2012. Commits over several streams, and command ids: Marten and
//! KurrentDB.
mod aggregate;
mod aggregates; // the component
mod announce; // notices of commits
mod codec;
mod commit;
mod config;
mod decide; // the commands of one aggregate in one process
mod error;
mod event;
mod outbox; // messages of commits
mod send; // requests, and what follows a refusal or a lost reply
mod state; // the decision which commits share a request
mod store;
mod stored;
#[cfg(all(test, not(steadfast_loom)))]
mod tests;
mod token;
mod topic;

pub use aggregate::{Aggregate, ExecuteError, Executed};
pub use aggregates::AggregateStore;
pub use codec::EventCodec;
pub use commit::{Commit, Committed, Expected, NewEvent};
pub use config::{AggregateConfig, EventStoreConfig};
pub use error::CommitError;
pub use event::{AggregateEvent, OutboxEvent};
pub use outbox::{Outbox, OutboxConfig};
pub use store::EventStore;
pub use stored::{CommittedEvent, StoredCommit, StoredEvent};
pub use token::Token;
pub use topic::LogTopic;
