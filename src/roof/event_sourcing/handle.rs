//! Commands from a queue: the handler of a listener.
use std::{fmt, sync::Arc};

use super::{
    aggregate::{Aggregate, ExecuteError},
    aggregates::AggregateStore,
    error::Cause,
    event::AggregateEvent,
    send::ATTEMPT,
};
use crate::{
    build::Builder,
    port::{Failure, PortError, PortErrorKind, ask},
    queue::{Delivery, Queue, QueueExt, ReplyTo},
    work::Disposition,
};

/// Header with the id of a command, in its message. An [`Outbox`](super::Outbox) sets it where it
/// is absent.
pub const COMMAND_ID: &str = "command-id";

/// Header with the stream of a command's aggregate, in its message. Without it the group key is
/// used.
pub const AGGREGATE: &str = "aggregate";

/// Header with the status, in replies: `done`, with the token as the body, or `rejected`, with the
/// reason.
pub const COMMAND_STATUS: &str = "command-status";

/// Finds a reply queue by its name.
pub(super) type Replies = Arc<dyn Fn(&str) -> Option<Arc<dyn Queue>> + Send + Sync>;

impl<A: Aggregate> Builder<AggregateStore<A>> {
    /// Sends the replies of [`handle`](AggregateStore::handle) to the queue that `find` returns for
    /// the name in the message. A message that names another queue is handled without a reply.
    pub fn replies(mut self, find: impl Fn(&str) -> Option<Arc<dyn Queue>> + Send + Sync + 'static) -> Self {
        self.spec.replies = Some(Arc::new(find));
        self
    }
}

impl<A: Aggregate> AggregateStore<A> {
    /// Executes the command of a message: the handler of a
    /// [queue listener](crate::queue_listener). `decode` returns the command.
    ///
    /// The aggregate is the message's header [`AGGREGATE`], or else its group key. The command's id
    /// is its header [`COMMAND_ID`]. The id of the message is none: another queue may have the
    /// same. Groups keep the commands of an aggregate in order; without them each is executed once,
    /// too.
    ///
    /// | the command | the message is |
    /// |---|---|
    /// | is done, was done before, or is rejected | completed, after a [reply](crate::queue::Requester) if it asks for one and the store has [`replies`](Self::builder) |
    /// | met conflicts in each attempt, or was given up, or code of the aggregate panicked, or an event cannot be decoded | tried again, which counts an attempt |
    /// | was not tried, because the store is away, full or refuses us; or its outcome is unknown, or the reply was not sent, or an event is of a newer release, or the log was built without a queue of its messages | delivered again later, which counts none |
    /// | does not decode, has no aggregate or no id, or its commit breaks a rule | a dead letter |
    ///
    /// The reply is sent before the message is completed. A rejected command whose completion is
    /// lost is decided anew, and may be accepted then: its caller gets a second reply. A reply that
    /// its queue refuses for good, or whose queue `replies` does not know, is dropped with an
    /// [event](super::AggregateEvent::ReplyNotSent).
    ///
    /// ```
    /// use std::{str, sync::Arc, time::Duration};
    /// # use serde::{Deserialize, Serialize};
    /// use steadfast::{
    ///     codec::Codec,
    ///     event_sourcing::{
    ///         Aggregate, AggregateConfig, AggregateStore, COMMAND_ID, EventCodec, EventStore,
    ///     },
    ///     queue::{InMemoryQueue, Message, QueueExt},
    ///     queue_listener::{QueueListener, QueueListenerConfig, Work},
    ///     store::InMemoryStore,
    /// };
    ///
    /// # #[derive(Default, Clone)]
    /// # struct Seats { booked: u32 }
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Booked { seats: u32 }
    /// # impl Aggregate for Seats {
    /// #     type Command = u32;
    /// #     type Event = Booked;
    /// #     type Error = &'static str;
    /// #     fn decide(&self, seats: &u32) -> Result<Vec<Booked>, &'static str> {
    /// #         Ok(vec![Booked { seats: *seats }])
    /// #     }
    /// #     fn evolve(&mut self, event: &Booked) { self.booked += event.seats; }
    /// # }
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let log = EventStore::open(Arc::new(InMemoryStore::new()), "conference").await?;
    /// # let json = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    /// # let codec = EventCodec::new(json, |_: &Booked| "SeatsBooked");
    /// let seats = AggregateStore::<Seats>::new(log, codec, AggregateConfig::default())?;
    /// let bookings = Arc::new(InMemoryQueue::new("bookings"));
    /// let command = Message::new("2").group("conf-7").header(COMMAND_ID, "cmd-7f3a");
    /// bookings.send_one(command).await?;
    ///
    /// let listener = QueueListener::new(bookings, QueueListenerConfig::default())?;
    /// let shutdown = tokio::time::sleep(Duration::from_secs(1));
    /// let number = |body: &[u8]| str::from_utf8(body).map_err(|error| error.to_string())?
    ///     .parse::<u32>().map_err(|error| error.to_string());
    /// listener.run(shutdown, async |work: Work| {
    ///     seats.handle(&work, |message| number(&message.body)).await
    /// }).await?;
    /// assert_eq!(seats.load("conf-7").await?.0.booked, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// If the future is dropped, the command was executed, is executed later, or never. The message
    /// is delivered again, under the same id.
    pub async fn handle<E: fmt::Display>(
        &self,
        message: &Delivery,
        decode: impl FnOnce(&Delivery) -> Result<A::Command, E>,
    ) -> Disposition
    where
        A::Error: fmt::Display,
    {
        let header = |name: &str| message.headers.get(name).map(String::as_str);
        let Some(stream) = header(AGGREGATE).or(message.group.as_deref()) else {
            return Disposition::dead_letter("events: the command names no aggregate");
        };
        let Some(id) = header(COMMAND_ID).map(str::to_owned) else {
            return Disposition::dead_letter(format!("events: the command has no id, in the header `{COMMAND_ID}`"));
        };
        let command = match decode(message) {
            Ok(command) => command,
            Err(error) => return Disposition::dead_letter(format!("events: the command does not decode: {error}")),
        };
        let (status, body) = match self.execute(stream, id.clone(), command).await {
            Ok(done) => ("done", done.token.map(|token| token.to_string()).unwrap_or_default()),
            Err(ExecuteError::Rejected(reason)) => ("rejected", reason.to_string()),
            Err(ExecuteError::Refused(error)) => {
                return match error.backend().and_then(Cause::of) {
                    Some(Cause::Undeclared) => Disposition::refused(None, error),
                    _ => Disposition::dead_letter(error),
                };
            }
            Err(ExecuteError::Store(error)) => {
                // Another attempt of any other command would fail in the same way, or it may pass by itself.
                let is_its_fault = error.kind() == PortErrorKind::Corrupt || Cause::of(&error).is_some();
                return match is_its_fault && !error.may_have_been_applied() {
                    true => Disposition::retry(error),
                    false => Disposition::refused(error.retry_after(), error),
                };
            }
            Err(ExecuteError::Conflict { stream, attempts, .. }) => {
                let error = format!("events: {attempts} conflicts with other processes on {stream:?}");
                return Disposition::retry(error);
            }
        };
        let Some(to) = ReplyTo::of(&message.headers) else { return Disposition::Complete };
        let Some(find) = &self.inner.replies else { return Disposition::Complete };
        let dropped = |reason: String| {
            let (stream, command) = (stream.to_owned(), id.clone());
            self.inner.send(AggregateEvent::ReplyNotSent { stream, command, reason });
            Disposition::Complete
        };
        let Some(queue) = find(to.queue) else { return dropped(format!("no queue has the name {:?}", to.queue)) };
        let reply = to.reply(body).header(COMMAND_STATUS, status).header(COMMAND_ID, id.clone());
        match ask(&self.inner.clock, ATTEMPT, queue.send_one(reply)).await {
            Ok(_) => Disposition::Complete,
            Err(error) => {
                let error = error.or_timed_out("the queue of replies did not answer in time");
                // No process could send it, such as one that is too large. The command is done.
                match error.backend().map(PortError::kind) {
                    Some(PortErrorKind::Invalid | PortErrorKind::Unsupported) => dropped(error.to_string()),
                    _ => Disposition::refused(None, error),
                }
            }
        }
    }
}
