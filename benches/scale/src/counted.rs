//! Ports behind a link that takes a while and counts: requests, and the bytes of keys, names and values in requests and
//! answers. An engine adds the frames of its protocol.
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    notify::{Notice, NoticeSource, Notices, Notifier},
    port::{BoxFuture, Capabilities, PortFuture},
    queue::{
        Address, Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, QueueFuture, Receipt, Receive, Settle,
    },
    store::{DeleteOptions, Key, Page, PutOptions, Record, Rows, Scan, Store, StoreFuture, Version, Write},
    time::Clock,
};

/// Bytes of a version, a number or a duration.
const NUMBER: usize = 8;

/// What passed the links so far.
#[derive(Debug, Default)]
pub struct Counts {
    requests: AtomicU64,
    bytes: AtomicU64,
    notices: AtomicU64,
}

/// The values of [`Counts`] at one moment, or of a span of time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tally {
    /// Requests to stores, queues and notifiers.
    pub requests: u64,
    /// Bytes of requests, answers and notices.
    pub bytes: u64,
    /// Notices that arrived at subscribers.
    pub notices: u64,
}

impl Counts {
    pub fn now(&self) -> Tally {
        Tally {
            requests: self.requests.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            notices: self.notices.load(Relaxed),
        }
    }

    fn request(&self, bytes: usize) {
        self.requests.fetch_add(1, Relaxed);
        self.answer(bytes);
    }

    fn answer(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }
}

impl Tally {
    pub fn since(self, before: Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            bytes: self.bytes - before.bytes,
            notices: self.notices - before.notices,
        }
    }
}

/// The way of one process to the ports.
#[derive(Debug, Clone)]
pub struct Link {
    clock: Clock,
    /// Time of a request, and that of its answer.
    way: Duration,
    counts: Arc<Counts>,
}

impl Link {
    pub fn new(clock: &Clock, way: Duration, counts: &Arc<Counts>) -> Self {
        Self { clock: clock.clone(), way, counts: counts.clone() }
    }

    pub fn store(&self, port: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Counted { link: self.clone(), port })
    }

    pub fn queue(&self, port: Arc<dyn Queue>) -> Arc<dyn Queue> {
        Arc::new(Counted { link: self.clone(), port })
    }

    pub fn notifier(&self, port: Arc<dyn Notifier>) -> Arc<dyn Notifier> {
        Arc::new(Counted { link: self.clone(), port })
    }

    async fn travel(&self) {
        if !self.way.is_zero() {
            self.clock.sleep(self.way).await;
        }
    }

    async fn ask<T, E>(
        &self,
        bytes: usize,
        request: impl Future<Output = Result<T, E>> + Send,
        size: impl Fn(&T) -> usize + Send,
    ) -> Result<T, E> {
        self.counts.request(bytes);
        self.travel().await;
        let answer = request.await;
        if let Ok(answer) = &answer {
            self.counts.answer(size(answer));
        }
        self.travel().await;
        answer
    }
}

#[derive(Debug)]
struct Counted<P: ?Sized> {
    link: Link,
    port: Arc<P>,
}

fn of_key(key: Key<'_>) -> usize {
    key.partition.len() + key.row.len()
}

fn of_write(write: &Write) -> usize {
    match write {
        Write::Put { row, value, .. } => row.len() + value.len() + NUMBER,
        Write::Append { sequence, value, .. } => sequence.len() + value.len() + NUMBER,
        other => other.row().unwrap_or_default().len() + NUMBER,
    }
}

fn of_scan(scan: &Scan) -> usize {
    let rows = match &scan.rows {
        Rows::Prefix(prefix) => prefix.len(),
        Rows::Named(names) => names.iter().map(String::len).sum(),
        _ => 2 * NUMBER,
    };
    scan.partition.len() + rows + scan.after.as_ref().map_or(0, |after| after.as_str().len())
}

fn of_delivery(delivery: &Delivery) -> usize {
    let headers: usize = delivery.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    delivery.body.len() + headers + delivery.group.as_ref().map_or(0, String::len) + 6 * NUMBER
}

fn of_message(message: &Message) -> usize {
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    message.size() + text(&message.group) + text(&message.deduplication_id) + NUMBER
}

fn of_settlement((_, settle): &(Receipt, Settle)) -> usize {
    2 * NUMBER
        + match settle {
            Settle::Forward { messages } => messages.iter().map(|(_, message)| of_message(message)).sum(),
            Settle::DeadLetter { reason, .. } => reason.len(),
            _ => NUMBER,
        }
}

impl Store for Counted<dyn Store> {
    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }
    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        let size = |record: &Option<Record>| record.as_ref().map_or(0, |record| record.value.len() + NUMBER);
        Box::pin(async move { self.link.ask(of_key(key), self.port.get(key), size).await })
    }
    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        let bytes = of_key(key) + value.len() + NUMBER;
        Box::pin(async move { self.link.ask(bytes, self.port.put(key, value, options), |_| NUMBER).await })
    }
    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool> {
        Box::pin(async move { self.link.ask(of_key(key) + NUMBER, self.port.delete(key, options), |_| 1).await })
    }
    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        let size = |page: &Page| page.rows.iter().map(|row| row.row.len() + row.value.len() + NUMBER).sum();
        Box::pin(async move { self.link.ask(of_scan(scan), self.port.scan(scan), size).await })
    }
    fn batch<'a>(&'a self, partition: &'a str, writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        let bytes = partition.len() + writes.iter().map(of_write).sum::<usize>();
        let size = |versions: &Vec<Option<Version>>| versions.len() * NUMBER;
        Box::pin(async move { self.link.ask(bytes, self.port.batch(partition, writes), size).await })
    }
}

impl Queue for Counted<dyn Queue> {
    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }
    fn identity(&self) -> String {
        self.port.identity()
    }
    fn address(&self) -> Option<Address> {
        self.port.address()
    }
    fn send<'a>(&'a self, messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        let bytes = messages.iter().map(of_message).sum();
        Box::pin(async move { self.link.ask(bytes, self.port.send(messages), |ids| ids.len() * 2 * NUMBER).await })
    }
    fn receive<'a>(&'a self, receive: Receive) -> QueueFuture<'a, Vec<Delivery>> {
        let size = |messages: &Vec<Delivery>| messages.iter().map(of_delivery).sum();
        Box::pin(async move { self.link.ask(3 * NUMBER, self.port.receive(receive), size).await })
    }
    fn settle<'a>(&'a self, settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>> {
        let bytes = settlements.iter().map(of_settlement).sum();
        Box::pin(async move { self.link.ask(bytes, self.port.settle(settlements), Vec::len).await })
    }
    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> QueueFuture<'a, ()> {
        Box::pin(async move { self.link.ask(3 * NUMBER, self.port.extend(receipt, visibility), |()| 0).await })
    }
    fn mark_begun<'a>(&'a self, receipt: &'a Receipt, visibility: Duration, begun: bool) -> QueueFuture<'a, ()> {
        Box::pin(
            async move { self.link.ask(3 * NUMBER, self.port.mark_begun(receipt, visibility, begun), |()| 0).await },
        )
    }
    fn depth(&self) -> QueueFuture<'_, Depth> {
        Box::pin(async move { self.link.ask(0, self.port.depth(), |_| 3 * NUMBER).await })
    }
    fn peek(&self, max: usize) -> QueueFuture<'_, Vec<Peeked>> {
        let size = |all: &Vec<Peeked>| all.iter().map(|message| message.body.len() + 6 * NUMBER).sum();
        Box::pin(async move { self.link.ask(NUMBER, self.port.peek(max), size).await })
    }
    fn purge(&self) -> QueueFuture<'_, u64> {
        Box::pin(async move { self.link.ask(0, self.port.purge(), |_| NUMBER).await })
    }
    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        Some(self.link.queue(self.port.dead_letters()?))
    }
}

impl Notifier for Counted<dyn Notifier> {
    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }
    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> PortFuture<'a, ()> {
        let bytes = topic.len() + notice.len();
        Box::pin(async move { self.link.ask(bytes, self.port.publish(topic, notice), |()| 0).await })
    }
    fn subscribe<'a>(&'a self, topic: &'a str) -> PortFuture<'a, Notices> {
        Box::pin(async move {
            let notices = self.link.ask(topic.len(), self.port.subscribe(topic), |_| 0).await?;
            Ok(Notices::new(CountedNotices { counts: self.link.counts.clone(), topic: topic.len(), notices }))
        })
    }
}

struct CountedNotices {
    counts: Arc<Counts>,
    topic: usize,
    notices: Notices,
}

impl NoticeSource for CountedNotices {
    fn recv(&mut self) -> BoxFuture<'_, Notice> {
        Box::pin(async {
            let notice = self.notices.recv().await;
            if let Notice::Message(body) = &notice {
                self.counts.notices.fetch_add(1, Relaxed);
                self.counts.answer(self.topic + body.len());
            }
            notice
        })
    }
}
