//! Pipes and filters: a chain of steps with a queue between each two, in any number of processes,
//! through which each message comes once.
//!
//! # When, and when not
//!
//! Use it where work is a line of steps that differ in their speed, their hardware or their owners:
//! each step scales, fails and is deployed by itself, and the queues between them absorb peaks.
//! Begin with all filters in one process, and separate those that must scale alone. Do not use it
//!
//! - if the steps are quick and of one kind: call one function after the other in the handler of a
//!   [`queue_listener`](crate::queue_listener), which costs one queue instead of several,
//! - if the steps must all take effect or be undone: that is a [`saga`](crate::saga),
//! - if the caller waits for the result: call the steps through a [pipeline](crate::Pipeline),
//! - if each step needs much context: it travels with each message.
//!
//! # Defaults
//!
//! The settings of a filter are those of its [listener](crate::queue_listener#defaults). For an
//! output of another engine they must end redeliveries within the window in which its queue
//! recognizes repeated messages, five minutes by default, so that `max_attempts`, `retry` and
//! `handler_timeout` are set ([`longest_redelivery`]):
//!
//! | output | settings | a message that was sent before a crash |
//! |---|---|---|
//! | a queue of the input's engine: one file, one server, memory | any | was not sent: both are one step |
//! | another queue, with a window above the longest redelivery | `handler_timeout`, few attempts | is recognized and not sent again |
//! | another queue, and [`allow_duplicates`](Filter::builder) | any | may come again, with one lineage id |
//!
//! # Example
//!
//! Lines are split into words in one process, and words are counted in another:
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{backend, queue::{Message, QueueExt}, pipes_and_filters::{Emit, Filter}};
//! use steadfast::queue_listener::{QueueListenerConfig, Work};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let shutdown = tokio::time::sleep(Duration::from_secs(60));
//! // In a service, a URL such as `sqlite:state.db` or `postgres://..`.
//! let backend = backend::open("memory:").await?;
//! let lines = backend.queue("lines").await?;
//! let words = backend.queue("words").await?;
//! lines.send_one(Message::new("to be or not to be")).await?;
//!
//! let split = Filter::builder("split", lines, QueueListenerConfig::default())
//!     .output(words.clone())
//!     .build()?;
//! // In any number of processes. The words are sent in the step that ends their line.
//! split.run(shutdown, async |line: Work| {
//!     let text = String::from_utf8(line.body.to_vec())?; // an error is a failed attempt
//!     let words = text.split(' ').map(|word| Message::new(word.to_owned()));
//!     Ok::<_, std::string::FromUtf8Error>(Emit::many(words))
//! }).await?;
//! assert_eq!(words.depth().await?.visible, 6);
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! Each is a result of a handler, or a setting of the builder:
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{backend, queue::{Message, redrive}, queue_listener::QueueListenerConfig};
//! use steadfast::{queue_listener::Work, pipes_and_filters::{Emit, Filter}, standard::Standard};
//!
//! # async fn resize(_image: &[u8]) -> std::io::Result<Vec<u8>> { Ok(vec![]) }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let backend = backend::open("memory:").await?;
//! # let queue = async |name| backend.queue(name).await;
//! # let stop = || tokio::time::sleep(Duration::from_secs(60));
//! # let config = QueueListenerConfig::default();
//! # let (images, small) = (queue("images").await?, queue("small").await?);
//! // 1. A second output, for what is not for the next filter.
//! let filter = Filter::builder("resize", images.clone(), config)
//!     .output(small)
//!     .named_output("broken", queue("broken").await?)
//!     .build()?;
//! filter.run(stop(), async |image: Work| match image.body.is_empty() {
//!     true => Emit::to("broken", Message::new(image.body.clone())),
//!     false => Emit::one(Message::new(image.body.clone())),
//! }).await?;
//!
//! // 2. A message that ends here.
//! filter.run(stop(), async |_: Work| Emit::none()).await?;
//!
//! // 3. A fragile service in a step: what an open breaker refuses costs no attempt.
//! let service = Standard::builder(Default::default()).name("resize").build()?.into_pipeline();
//! filter.run(stop(), async |image: Work| {
//!     let call = async || resize(&image.body).await.map(|small| Emit::one(Message::new(small)));
//!     Emit::of_call(service.call(call).await)
//! }).await?;
//!
//! // 4. Find the slowest filter: its description warns.
//! eprintln!("{}", filter.explain());
//!
//! // 5. Continue the chain where it broke, after the repair.
//! redrive(&*images, 1_000, |_| true).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # In a test
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{
//!     pipes_and_filters::{Emit, Filter, LINEAGE},
//!     queue::{InMemoryQueue, Message, QueueExt},
//!     queue_listener::{QueueListenerConfig, Work},
//!     time::Clock,
//! };
//!
//! # let (clock, driver) = Clock::manual();
//! # driver.block_on(async {
//! let queue = |name| Arc::new(InMemoryQueue::builder(name).clock(&clock).build());
//! let [lines, words, odd, loud] = ["lines", "words", "odd", "loud"].map(queue);
//!
//! let config = QueueListenerConfig::default();
//! let split = Filter::builder("split", lines.clone(), config)
//!     .clock(&clock)
//!     .output(words.clone())
//!     .named_output("odd", odd.clone())
//!     .build()?;
//! let shout = Filter::builder("shout", words, config).clock(&clock).output(loud.clone()).build()?;
//!
//! lines.send_one(Message::new("to be").group("page 1").header("tenant", "7")).await?;
//! lines.send_one(Message::new(&b"\xff"[..])).await?;
//!
//! let stop = || clock.sleep(Duration::from_secs(10));
//! let splits = async |work: Work| match std::str::from_utf8(&work.body) {
//!     Ok(line) => Emit::many(line.split(' ').map(|word| Message::new(word.to_owned()))),
//!     Err(_) => Emit::to("odd", Message::new(work.body.clone())),
//! };
//! let shouts = async |work: Work| {
//!     let word = String::from_utf8(work.body.to_vec())?;
//!     Ok::<_, std::string::FromUtf8Error>(Emit::one(Message::new(word.to_uppercase())))
//! };
//! tokio::try_join!(split.run(stop(), splits), shout.run(stop(), shouts))?;
//!
//! let first = loud.receive_one(Duration::from_secs(30)).await?.expect("two words");
//! assert_eq!((&first.body[..], &*first.headers["tenant"]), (&b"TO"[..], "7"));
//! assert!(first.headers[LINEAGE].ends_with("/split.0/shout.0"));
//! assert!(odd.receive_one(Duration::from_secs(30)).await?.is_some());
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # The way of a message
//!
//! **One step.** Where an output is a queue of the input's engine
//! ([`Address::shares_engine`](crate::queue::Address::shares_engine), and
//! [`Forward`](crate::port::Capability::Forward)), the results are sent in the step that ends their
//! message: both happen or neither. Up to one batch of messages is one transaction. After any
//! crash the handler may run again, and its results come out once.
//!
//! **Two steps.** Otherwise the results are sent, and then their message ends. A crash between the
//! two sends them again, under the same de-duplication ids, by which their queue recognizes them.
//! `build` refuses settings by which a message may be delivered again after the queue has forgotten
//! its id. Some waits have no bound, and no settings end them: no process runs, a handler's
//! dependency refuses it, other messages come before, or an output is away since its last reply was
//! lost. A message that is sent after such a wait may come twice, and is reported as
//! [`MayRepeat`](FilterEvent::MayRepeat).
//!
//! A filter may have outputs of both kinds. Those of other engines are sent first.
//!
//! **Lineage.** Each message carries a [lineage id](LINEAGE): output `k` of filter `f` has that of
//! the handled message with `/f.k`, or its hash if it is longer than 128 bytes. It is the same in
//! each attempt and process, if the handler emits the same messages in the same order. It is the
//! de-duplication id of a message that is sent in two steps. A forwarded one has none: it comes
//! once without, and an id that a careless producer gave to many messages cannot make one of them
//! disappear.
//!
//! **What travels.** Results inherit the headers, the group key and the
//! [remaining time](crate::queue::Message::expires_after) of the handled message, except those that
//! they set themselves. The time of the queues and the handler is subtracted, and that for which
//! results are held. A reply address is two headers: the last filter, or an agent behind it,
//! replies to the first sender.
//!
//! # Full outputs
//!
//! While an output is full or away, results are held: the handler does not run again, leases are
//! renewed, and no attempt is counted. When [`max_tasks`] messages are held (one batch more, if the
//! handler is quick), the filter receives no more. Its input fills in turn, up to the producers,
//! for which it is an error. A queue without a bound does not slow its senders down: watch its
//! depth. One full output among several holds up the others in the same way.
//!
//! Held results are offered again after 100 ms, and then less often, at least eight times in a
//! lease. A filter that stops releases what it holds. A message whose process died is handled when
//! nothing is held, so that its next death does not count against the others.
//!
//! # Composing
//!
//! - **A slow or fragile service in a step**: put a [pipeline](crate::Pipeline) into the handler,
//!   and pass its result to [`Emit::of_call`]. What an open breaker refuses costs no attempt.
//! - **Much data**: send it through a [claim check](crate::claim_check), and pass the claim on. A
//!   queue of claims is no target of forwards.
//! - **Steps that must be undone**: a filter whose handler runs a [`saga`](crate::saga), under the
//!   lineage id.
//! - **Dead letters** are those of the filter's input: [`redrive`](crate::queue::redrive) continues
//!   the chain where it broke.
//! - **Pause, scaling, notices** are those of the listener.
//!
//! # Guarantees
//!
//! 1. Each message of a chain has a lineage id of its own, of at most 128 bytes, which is the same
//!    in each attempt and process.
//! 2. Between queues of one engine, the results of a message are sent in the step that ends it:
//!    once, whichever process dies. All of its results are sent, or none.
//! 3. To a queue of another engine, the results of a message are sent before it ends, and come once
//!    if it is delivered again within the window of that queue. `build` refuses settings that
//!    deliver it later.
//! 4. While an output is full, results are held, their leases are renewed, and no attempt is
//!    counted. The filter receives no more than it can hold. None is lost.
//! 5. Results inherit headers, group key and remaining time. Messages of one group come out in
//!    order. A message that cannot be handled becomes a dead letter of the filter that failed.
//! 6. `build` refuses the input as an output, a filter without outputs, and two outputs of one
//!    name.
//!
//! # Cancel safety
//!
//! A dropped [`run`](Filter::run) is a crash of its handlers: their messages are delivered again
//! after their visibility time-out. No result is lost.
//!
//! # Events
//!
//! [`FilterEvent`]: send failed, may repeat. All others are those of the
//! [listener](crate::queue_listener::QueueListenerEvent), whose
//! [`held`](crate::queue_listener::ListenerState::held) shows that an output of the input's engine
//! is full; what waits for another engine is [in
//! flight](crate::queue_listener::ListenerState::in_flight).
//!
//! # Pitfalls
//!
//! - A handler whose results differ from attempt to attempt sends some of each attempt in two
//!   steps. Make it depend on its message alone, or keep to one engine.
//! - The producer's lineage id is trusted: two messages of one id are one for a queue that
//!   recognizes repeated messages.
//! - The name of a filter is a part of the ids. If it is changed while messages are in flight,
//!   those that were sent before are not recognized.
//! - A chain that leads back to its beginning and whose queues are bounded can fill up, and then
//!   stands still. Leave one queue of a cycle without a bound.
//! - A message has at most as many results in one step as its queue takes in a
//!   [request](crate::port::Capabilities::max_batch). More are refused for good: split the message.
//! - A redriven message has a new id, and begins a new lineage unless it carries one. Results
//!   that it sent before it became a dead letter may come twice, without an event.
//! - Two handles on one PostgreSQL schema by different URLs count as two engines.
//!
//! # Source
//!
//! "Pipes and Filters", Cloud Design Patterns; Gregor Hohpe and Bobby Woolf, "Enterprise
//! Integration Patterns", 2003. The end of a message and the sending of its results as one step:
//! the "Idempotent Receiver" and "Transactional Client" there.
//!
//! [`longest_redelivery`]: crate::queue_listener::QueueListenerConfig::longest_redelivery
//! [`max_tasks`]: crate::queue_listener::QueueListenerConfig::max_tasks
mod emit;
mod event;
mod filter;
mod lineage;
mod run; // handlers, and the way of their results
#[cfg(all(test, not(steadfast_loom)))]
mod tests;

pub use emit::Emit;
pub use event::FilterEvent;
pub use filter::Filter;
pub use lineage::LINEAGE;
