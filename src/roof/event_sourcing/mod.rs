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
//! | `snapshot_every` | 100 | events between two snapshots, if there is a codec for them; the command that crosses a multiple of it writes one, and a commit of your own none |
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
//! // In a service, a durable store: `backend::open("sqlite:shop.db").await?.store()`, with the
//! // feature `sqlite`.
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
//! // 3. Keep a name unique: each badge number belongs to one attendee. The command of an aggregate
//! // claims by `AggregateStore::add`.
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
//! with, and an aggregate sends them [with its events](AggregateStore::builder), but not with those
//! that you append yourself. They are parts of the commit. An [`Outbox`] for each queue reads the
//! log from its checkpoint on, sends them, and moves the checkpoint. A process may die between the
//! two, and then a message is sent again, under the same de-duplication id: the identity of the
//! log, the number of the commit, and the place in it. The header [`COMMAND_ID`] has the same id,
//! if the message has none. Any number of processes may run the outbox of a queue. All but one
//! stand by.
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
//! # Two aggregates
//!
//! Aggregates of several types share a log: a store for each type, and streams whose names begin
//! with the type. Here an order that was placed sends the command that reserves its items, in its
//! commit. The outbox gives each command an id, so that it is executed once. A reservation that the
//! stock refuses ends here, and the order does not learn of it: in a service let `Refused` be an
//! event of the stock, with a message to the order.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use serde::{Deserialize, Serialize};
//! use steadfast::{
//!     codec::Codec,
//!     event_sourcing::{
//!         Aggregate, AggregateConfig, AggregateStore, EventCodec, EventStore, EventStoreConfig,
//!         Outbox, OutboxConfig,
//!     },
//!     queue::{InMemoryQueue, Message, Queue},
//!     queue_listener::{QueueListener, QueueListenerConfig, Work},
//!     store::InMemoryStore,
//! };
//!
//! #[derive(Default, Clone)]
//! struct Order { is_placed: bool }
//!
//! #[derive(Clone, Serialize, Deserialize)]
//! struct Placed { item: String, count: u32 }
//!
//! impl Aggregate for Order {
//!     type Command = Placed;
//!     type Event = Placed;
//!     type Error = &'static str;
//!
//!     fn decide(&self, order: &Placed) -> Result<Vec<Placed>, &'static str> {
//!         if self.is_placed { Err("placed before") } else { Ok(vec![order.clone()]) }
//!     }
//!
//!     fn evolve(&mut self, _: &Placed) {
//!         self.is_placed = true;
//!     }
//! }
//!
//! #[derive(Default, Clone)]
//! struct Stock { left: u32 }
//!
//! #[derive(Clone, Serialize, Deserialize)]
//! enum Moved { Delivered(u32), Reserved(u32) }
//!
//! impl Aggregate for Stock {
//!     type Command = Moved;
//!     type Event = Moved;
//!     type Error = &'static str;
//!
//!     fn decide(&self, wanted: &Moved) -> Result<Vec<Moved>, &'static str> {
//!         match wanted {
//!             Moved::Reserved(count) if *count > self.left => Err("sold out"),
//!             _ => Ok(vec![wanted.clone()]),
//!         }
//!     }
//!
//!     fn evolve(&mut self, moved: &Moved) {
//!         match moved {
//!             Moved::Delivered(count) => self.left += count,
//!             Moved::Reserved(count) => self.left -= count,
//!         }
//!     }
//! }
//!
//! fn json<T: Serialize + for<'a> Deserialize<'a> + 'static>() -> Codec<T> {
//!     Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes))
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let wanted = Arc::new(InMemoryQueue::new("reservations"));
//! let store = Arc::new(InMemoryStore::new());
//! let log = EventStore::builder(store, "shop", EventStoreConfig::default())
//!     .outbox("reservations", wanted.capabilities())
//!     .build().await?;
//!
//! let codec = EventCodec::new(json(), |_: &Placed| "Placed");
//! let orders = AggregateStore::<Order>::builder(log.clone(), codec, AggregateConfig::default())
//!     .messages(|_, placed| {
//!         let command = format!(r#"{{"Reserved":{}}}"#, placed.count);
//!         let message = Message::new(command).group(format!("stock/{}", placed.item));
//!         vec![("reservations".to_owned(), message)]
//!     })
//!     .build()?;
//! let codec = EventCodec::new(json(), |moved: &Moved| match moved {
//!     Moved::Delivered(_) => "Delivered",
//!     Moved::Reserved(_) => "Reserved",
//! });
//! let stock = AggregateStore::<Stock>::new(log.clone(), codec, AggregateConfig::default())?;
//!
//! stock.execute("stock/tea", "delivery-1", Moved::Delivered(10)).await?;
//! let order = Placed { item: "tea".to_owned(), count: 3 };
//! orders.execute("order/7", "order/7/place", order).await?;
//!
//! // In a service both run until it stops, each in a task, in any number of processes:
//! // `tokio::spawn(async move { listener.run(stop, async |work: Work| ..).await })`.
//! let outbox = Outbox::new(&log, "reservations", wanted.clone(), OutboxConfig::default())?;
//! let listener = QueueListener::new(wanted, QueueListenerConfig::default())?;
//! let stop = || tokio::time::sleep(Duration::from_secs(1));
//! let handler = async |work: Work| {
//!     stock.handle(&work, |message| serde_json::from_slice(&message.body)).await
//! };
//! let (sent, handled) = tokio::join!(outbox.run(stop()), listener.run(stop(), handler));
//! sent?;
//! handled?;
//! assert_eq!(stock.load("stock/tea").await?.0.left, 7);
//! # Ok(())
//! # }
//! ```
//!
//! # Two aggregates in one commit
//!
//! Where neither may change without the other, [`add`](AggregateStore::add) puts a command of each
//! into one commit, which requires the versions on which both were decided. After a conflict all of
//! it is begun anew.
//!
//! ```
//! # use std::sync::Arc;
//! # use serde::{Deserialize, Serialize};
//! # use steadfast::{codec::Codec, event_sourcing::EventCodec, store::InMemoryStore};
//! use steadfast::event_sourcing::{
//!     Aggregate, AggregateConfig, AggregateStore, Commit, CommitError, Committed, EventStore,
//! };
//!
//! #[derive(Default, Clone)]
//! struct Account { cents: i64 }
//!
//! # #[derive(Clone, Serialize, Deserialize)]
//! # struct Moved(i64);
//! impl Aggregate for Account {
//!     type Command = Moved;
//!     type Event = Moved;
//!     type Error = &'static str;
//!
//!     fn decide(&self, Moved(cents): &Moved) -> Result<Vec<Moved>, &'static str> {
//!         if self.cents + cents < 0 { Err("overdrawn") } else { Ok(vec![Moved(*cents)]) }
//!     }
//!
//!     fn evolve(&mut self, Moved(cents): &Moved) {
//!         self.cents += cents;
//!     }
//! }
//!
//! type Failed = Box<dyn std::error::Error>;
//!
//! async fn transfer(
//!     accounts: &AggregateStore<Account>, id: &str, (from, to): (&str, &str), cents: i64,
//! ) -> Result<Committed, Failed> {
//!     for _ in 0..8 {
//!         let commit = accounts.add(Commit::new(id), from, &Moved(-cents)).await?;
//!         let commit = accounts.add(commit, to, &Moved(cents)).await?;
//!         match accounts.log().commit(commit).await {
//!             Err(CommitError::Conflict { .. }) => {}
//!             done => return Ok(done?),
//!         }
//!     }
//!     Err("too many others change these accounts".into())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Failed> {
//! # let log = EventStore::open(Arc::new(InMemoryStore::new()), "bank").await?;
//! # let json = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
//! # let codec = EventCodec::new(json, |_: &Moved| "Moved");
//! # let accounts = AggregateStore::<Account>::new(log, codec, AggregateConfig::default())?;
//! accounts.execute("ada", "salary-7", Moved(70)).await?;
//! let move_all = || transfer(&accounts, "transfer-1", ("ada", "ben"), 70);
//! assert!(!move_all().await?.is_repeated);
//! // Ada has nothing left, and yet the second call is no rejection: its id was accepted.
//! assert!(move_all().await?.is_repeated);
//! assert_eq!(accounts.load("ben").await?.0.cents, 70);
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
//! - **Views**: a [`View`](crate::materialized_view::View) follows [`topic`](EventStore::topic), in
//!   any number of processes. The [`Token`] of a commit travels with an answer, and a reader waits
//!   for it. A view over several types of aggregates has one codec for all events, or passes over
//!   those of the other types by name: `codec.clone().ignore("Reserved")`.
//! - **Commands from a queue**: [`handle`](AggregateStore::handle) is the handler of a queue
//!   listener. It takes the aggregate and the command's id from headers, and sends replies.
//!   `remember` must be longer than a message may be delivered again.
//! - **Calls**: `decide` is pure. Call other services before, and pass what they said in the
//!   command.
//! - **Several aggregates at once**: [`add`](AggregateStore::add) puts a command of each into one
//!   commit. Where one may follow the other: a message, as above.
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
//!    Commits that came together have one such limit; the rest of them was not applied then.
//! 5. Commits that meet share a request, and none fails for the cause of another. A dropped caller
//!    disturbs nobody.
//! 6. A missing row, one that cannot be decoded and one of a newer release are errors. None is
//!    skipped.
//! 7. The log is a topic, with the commits as events. A trim deletes commits, never the last one,
//!    and no event of a stream.
//! 8. A commit that breaks a rule is refused before anything is sent, with the name of the field; a
//!    store without a needed capability by the name of that; a commit above `max_pending` at once.
//! 9. A command is decided on the state of the version to which its events are appended, in any
//!    number of processes. Those that are added to one commit take effect together, or none does;
//!    one that was accepted before is repeated, also if an aggregate would reject it by now.
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
//! 14. A message is sent if and only if its commit took effect: at least once, in the order of the
//!     log, under one de-duplication id and one command id. Each queue has its own checkpoint,
//!     moved behind the send, so a queue that is down holds up itself alone. Messages that were
//!     trimmed are an error.
//! 15. A queue that was not declared, and a message that its queue would refuse, are refused by the
//!     commit.
//! 16. A command from a queue is executed once within `remember`, however often its message is
//!     delivered. A rejection completes the message. A store that is away or refuses us costs no
//!     attempt, and neither does a missing outbox. What does not decode or has no command id is a
//!     dead letter.
//!
//! # Cancel safety
//!
//! A dropped [`commit`](EventStore::commit) or [`execute`](AggregateStore::execute) took effect,
//! takes effect later, or never. Repeat it with the same id. A dropped [`run`](Outbox::run) of an
//! outbox sends the messages behind its last checkpoint again. The message of a dropped
//! [`handle`](AggregateStore::handle) is delivered again, and its command is executed once. A
//! dropped read or load loses nothing; a dropped [`trim`](EventStore::trim) may have deleted some
//! of the oldest commits.
//!
//! # Events
//!
//! [`AggregateEvent`]: conflicted, snapshot ignored, long stream, reply not sent. Alert on a long
//! stream, and on conflicts of most commands: then an aggregate is too large, or is often changed
//! by commits of your own. [`OutboxEvent`]: send failed, store failed, stands by. Alert on a failed
//! send that repeats. [`state`](EventStore::state) has the totals of a log. With feature `metrics`
//! all of them are watched.
//!
//! # Pitfalls
//!
//! - An event is never changed. Correct it by another event, and write an upcast for another form.
//! - An event appended to `Expected::Any` has no version in its [`StoredCommit`], because the store
//!   numbers it later; it has one in its stream.
//! - A commit that you build from events, not by [`add`](AggregateStore::add), has none of the
//!   messages of an aggregate, and its id is asked for by the log alone: a rejection before it may
//!   mean that it was accepted.
//! - Names of streams, commands and claims are limited by the store's
//!   [`max_key`](crate::port::Capabilities::max_key): 990 bytes on SQLite.
//! - All commits of a log are in one order, so one log has the rate of one sequence of its store.
//!   Open several logs for what needs no common order.
//! - A snapshot of a fold that has changed is wrong, and is read: raise its schema with the fold.
//! - A claim that is released is free for everyone, whoever held it. Release it in a commit that
//!   appends to its holder's stream with the expected version: repeated when its id is forgotten,
//!   such a commit conflicts, and does not free the claim of the next holder.
//! - A trim does not know the outboxes and the processors: trim behind the slowest of them.
//! - A message's delay begins when the outbox sends it, not with the commit.
//! - Personal data stays in the events. Encrypt it with a key for each person, and delete the key.
//! - Times in events are those of the processes' wall clocks. No decision compares them.
//! - A command that was decided without events, or rejected, is not remembered: repeated later, it
//!   is decided anew. So is one from a queue whose completion was lost: it may be accepted after
//!   its caller was told that it is rejected. Where that matters, let the rejection be an event.
//! - What another aggregate must learn is an event, such as `Refused`, with a message. An `Err` of
//!   `decide` sends none.
//! - A command from a queue is executed again if its message is delivered again behind `remember`,
//!   such as after an outage of the queue. Set it above the longest outage.
//! - A command with an event of a newer release is delivered again for ever after a roll-back, and
//!   its group waits behind it.
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
mod counts; // totals of a log
mod decide; // the commands of one aggregate in one process
mod error;
mod event;
mod handle; // commands from a queue
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
pub use counts::EventStoreState;
pub use error::CommitError;
pub use event::{AggregateEvent, OutboxEvent};
pub use handle::{AGGREGATE, COMMAND_ID, COMMAND_STATUS};
pub use outbox::{Outbox, OutboxConfig};
pub use store::EventStore;
pub use stored::{CommittedEvent, StoredCommit, StoredEvent};
pub use token::Token;
pub use topic::LogTopic;
