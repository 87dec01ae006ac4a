//! The queue in a SQLite file.
use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use rusqlite::Connection;
use tokio::sync::Notify;

use super::{
    clock::micros,
    handle::SqliteCore,
    queue_sql,
    send_sql::{self, SendOptions},
};
use crate::{
    port::{Capabilities, Capability},
    queue::{
        Address, Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, QueueFuture, Receipt, Receive, Settle,
        check_visibility,
    },
    race::race,
};

/// A queue in a SQLite file, from [`Sqlite::queue`](super::Sqlite::queue). A clone is the same
/// queue.
///
/// A `receive` or a `peek` returns at most 16 MiB of bodies and headers, but at least one message.
#[derive(Clone)]
pub struct SqliteQueue {
    pub(super) shared: Arc<SqliteCore>,
    name: Arc<str>,
    pub(super) id: i64,
    /// Notified when a waiting receiver of this process may find a message.
    available: Arc<Notify>,
}

pub(super) const CAN: Capabilities = Capabilities::of(
    "sqlite",
    &[
        Capability::Durable,
        Capability::Shared,
        Capability::Linearizable,
        Capability::Groups,
        Capability::Ordered,
        Capability::Deduplication,
        Capability::Delay,
        Capability::ErrorHistory,
        Capability::Forward,
    ],
)
.largest_value(64 << 20)
.largest_batch(1000)
.largest_key(1024);

impl SqliteQueue {
    pub(super) fn new(shared: Arc<SqliteCore>, name: &str, id: i64) -> Self {
        let available = shared.waiters(id);
        Self { shared, name: name.into(), id, available }
    }

    pub(super) fn send_options(&self) -> SendOptions {
        // A request has one time, after which the shortest window ends.
        let window = micros(self.shared.config.deduplication_window).max(1);
        SendOptions { window, sent_at: self.shared.time.wall() }
    }

    /// Returns the other queues that these settlements add messages to.
    fn other_receivers(&self, settlements: &[(Receipt, Settle)]) -> BTreeSet<i64> {
        let mut others = BTreeSet::new();
        for (_, how) in settlements {
            match how {
                Settle::DeadLetter { .. } => drop(others.insert(queue_sql::dead(self.id))),
                Settle::Forward { messages } => {
                    let targets = messages.iter().map(|(address, _)| address);
                    others.extend(targets.filter_map(|address| send_sql::queue_of(address, &self.shared.identity)));
                }
                _ => {}
            }
        }
        others
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&Connection, i64) -> rusqlite::Result<Result<T, QueueError>> + Send + 'static,
    ) -> Result<T, QueueError> {
        let written = self.shared.writer.write(work).await;
        self.available.notify_one();
        written
    }

    async fn wait_for(&self, max: usize, receive: Receive) -> Result<Vec<Delivery>, QueueError> {
        let (id, visibility, clock) = (self.id, receive.visibility, &self.shared.clock);
        let end = clock.now() + receive.wait;
        let _notifies_next = NotifiesNextReceiver(&self.available);
        loop {
            // Polling costs a read; only a visible message costs a write.
            let next = self.shared.readers.read(move |c| queue_sql::next_visible(c, id)).await?;
            let now = self.shared.time.now();
            if next.is_some_and(|at| at <= now) {
                let taken = self
                    .shared
                    .writer
                    .write_if_awaited(move |c, now| queue_sql::receive(c, now, id, max, visibility))
                    .await?;
                if !taken.is_empty() {
                    return Ok(taken);
                }
            }
            let instant = clock.now();
            if instant >= end {
                return Ok(Vec::new());
            }
            // Another process may send or settle at any time.
            let until_next =
                next.map_or(Duration::MAX, |at| Duration::from_micros(at.saturating_sub(now).max(0).unsigned_abs()));
            let wait = until_next.min(self.shared.config.poll).max(Duration::from_micros(1));
            race(self.available.notified(), clock.sleep_until(end.min(instant + wait))).await;
        }
    }
}

/// Wakes the next waiting receiver on drop.
struct NotifiesNextReceiver<'a>(&'a Notify);

impl Drop for NotifiesNextReceiver<'_> {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Queue for SqliteQueue {
    fn capabilities(&self) -> Capabilities {
        CAN.deduplicating_for(self.shared.config.deduplication_window)
    }

    fn identity(&self) -> String {
        send_sql::identity(&self.shared.identity, self.id)
    }

    fn address(&self) -> Option<Address> {
        Some(Address::new(self.identity()).of_engine(format!("sqlite-{}", self.shared.identity)))
    }

    fn send<'a>(&'a self, messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        Box::pin(async move {
            Message::check(&messages, &CAN)?;
            let (id, options) = (self.id, self.send_options());
            self.write(move |c, now| send_sql::send(c, now, id, &messages, options)).await
        })
    }

    fn receive<'a>(&'a self, receive: Receive) -> QueueFuture<'a, Vec<Delivery>> {
        Box::pin(async move {
            let max = receive.check(&CAN)?;
            self.wait_for(max, receive).await
        })
    }

    fn settle<'a>(&'a self, settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>> {
        Box::pin(async move {
            let (id, options) = (self.id, self.send_options());
            let others = self.other_receivers(&settlements);
            // A copy: with a reference to the file, its thread might be the last to drop it, and join itself.
            let forwards = settlements.iter().any(|(_, how)| matches!(how, Settle::Forward { .. }));
            let file = if forwards { self.shared.identity.clone() } else { String::new() };
            let settle = move |c: &Connection, now| queue_sql::settle(c, now, id, &settlements, &file, options);
            let settled = self.write(settle).await;
            others.into_iter().for_each(|queue| self.shared.waiters(queue).notify_one());
            settled
        })
    }

    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> QueueFuture<'a, ()> {
        Box::pin(async move {
            check_visibility(visibility)?;
            let (id, receipt) = (self.id, receipt.clone());
            self.write(move |c, now| queue_sql::extend(c, now, id, &receipt, visibility, None)).await
        })
    }

    fn mark_begun<'a>(&'a self, receipt: &'a Receipt, visibility: Duration, begun: bool) -> QueueFuture<'a, ()> {
        Box::pin(async move {
            check_visibility(visibility)?;
            let (id, receipt) = (self.id, receipt.clone());
            self.write(move |c, now| queue_sql::extend(c, now, id, &receipt, visibility, Some(begun))).await
        })
    }

    fn depth(&self) -> QueueFuture<'_, Depth> {
        Box::pin(async move {
            let (id, time) = (self.id, self.shared.time.clone());
            Ok(self.shared.readers.read_on_thread(move |c| queue_sql::depth(c, id, time.now())).await?)
        })
    }

    fn peek(&self, max: usize) -> QueueFuture<'_, Vec<Peeked>> {
        Box::pin(async move {
            let (id, time, max) = (self.id, self.shared.time.clone(), max.min(CAN.max_batch()));
            Ok(self.shared.readers.read_on_thread(move |c| queue_sql::peek(c, id, max, time.now())).await?)
        })
    }

    fn purge(&self) -> QueueFuture<'_, u64> {
        Box::pin(async move {
            let id = self.id;
            self.shared.writer.write_on_thread(move |c, _| queue_sql::purge(c, id)).await
        })
    }

    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        (self.id > 0).then(|| {
            let name = format!("{}/dead", self.name);
            Arc::new(Self::new(self.shared.clone(), &name, queue_sql::dead(self.id))) as Arc<dyn Queue>
        })
    }
}

impl fmt::Debug for SqliteQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteQueue")
            .field("path", &self.shared.config.path)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
