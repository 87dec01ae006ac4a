//! Ours: the ports, as a pattern sees them.
use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use steadfast::{
    backend::{
        self,
        sqlite::{Durability, Sqlite, SqliteConfig},
    },
    queue::{Address, InMemoryQueue, Message, Queue, Receipt, Receive, Settle},
    store::{InMemoryStore, Key, Precondition, PutOptions, Store, Version, Write},
    stream::{Event, StoreTopic, Topic as _},
};

use crate::{BODY, Mode, RECORDS, Work, measure::Subject};

struct Ours {
    work: Work,
    store: Arc<dyn Store>,
    /// The topic of the work with events.
    topic: Option<StoreTopic>,
    queue: Arc<dyn Queue>,
    /// The target of forwards.
    other: Arc<dyn Queue>,
    /// `None` where the backend has no forwards.
    address: Option<Address>,
    /// Whether a forward is a `send` and then a completion.
    in_two_steps: bool,
    /// Messages that were received and not ended.
    received: Mutex<Vec<Receipt>>,
    /// The version that each caller wrote last.
    versions: Mutex<Vec<Option<Version>>>,
    rows: Vec<String>,
}

/// The queues of the subject that forwards in two steps are its own.
const fn names(in_two_steps: bool) -> [&'static str; 2] {
    if in_two_steps { ["steps", "steps of others"] } else { ["jobs", "others"] }
}

pub async fn local(work: Work, mode: Mode, path: &Path, in_two_steps: bool) -> Arc<dyn Subject> {
    let names = names(in_two_steps);
    if mode == Mode::Memory {
        let queues = names.map(|name| Arc::new(InMemoryQueue::new(name)) as Arc<dyn Queue>);
        return subject(work, Arc::new(InMemoryStore::new()), queues, in_two_steps).await;
    }
    let durability = if mode == Mode::Durable { Durability::Full } else { Durability::Relaxed };
    let sqlite = Sqlite::open(SqliteConfig::at(path).durability(durability)).expect("it opens");
    let queues = names.map(|name| Arc::new(sqlite.queue(name).expect("a queue")) as Arc<dyn Queue>);
    subject(work, Arc::new(sqlite.store()), queues, in_two_steps).await
}

pub async fn at(work: Work, url: &str, in_two_steps: bool) -> Arc<dyn Subject> {
    let backend = backend::open(url).await.expect("it connects");
    let [jobs, others] = names(in_two_steps);
    let queues = [backend.queue(jobs).await.expect("a queue"), backend.queue(others).await.expect("a queue")];
    subject(work, backend.store(), queues, in_two_steps).await
}

async fn subject(
    work: Work,
    store: Arc<dyn Store>,
    [queue, other]: [Arc<dyn Queue>; 2],
    in_two_steps: bool,
) -> Arc<dyn Subject> {
    let rows: Vec<String> = (0..RECORDS).map(|i| format!("row-{i:04}")).collect();
    if !work.is_queue() {
        for row in &rows {
            store.put(Key::new("bench", row), Bytes::from_static(&BODY), PutOptions::new()).await.expect("a put");
        }
    }
    let topic = match work {
        Work::Events(_) => Some(StoreTopic::open(store.clone(), "bench", 32).await.expect("a topic")),
        _ => None,
    };
    let (address, versions) = (other.address(), Mutex::new(vec![None; 64]));
    Arc::new(Ours {
        work,
        store,
        topic,
        queue,
        other,
        address,
        in_two_steps,
        received: Mutex::default(),
        versions,
        rows,
    })
}

impl Ours {
    async fn once(&self, caller: usize, i: usize) {
        let key = Key::new("bench", &self.rows[(caller * 61 + i) % RECORDS]);
        let body = Bytes::from_static(&BODY);
        match self.work {
            Work::Get => assert!(self.store.get(key).await.expect("a get").is_some()),
            Work::Put => drop(self.store.put(key, body, PutOptions::new()).await.expect("a put")),
            Work::Cas => {
                let key = Key::new("bench", &self.rows[caller]);
                let known = self.versions.lock().expect("no panic")[caller];
                let when = match known {
                    Some(version) => Precondition::Version(version),
                    None => Precondition::Any,
                };
                let version = self.store.put(key, body, when.into()).await.expect("nobody else writes it");
                self.versions.lock().expect("no panic")[caller] = Some(version);
            }
            Work::Append => {
                let done = self.store.batch("bench", vec![Write::append("log/", body)]).await.expect("an append");
                assert!(done[0].is_some());
            }
            Work::Events(n) => {
                let topic = self.topic.as_ref().expect("a topic");
                // As many as one request takes.
                let most = topic.capabilities().max_batch();
                let mut left = n;
                while left > 0 {
                    let events: Vec<_> = (0..left.min(most)).map(|_| Event::new(body.clone())).collect();
                    left -= events.len();
                    topic.append(caller as u16 % 32, events).await.expect("an append");
                }
            }
            Work::Send(n) => {
                let messages = (0..n).map(|_| Message::new(body.clone())).collect();
                self.queue.send(messages).await.expect("a send");
            }
            Work::Take(n) => {
                let taken = self.queue.receive(Receive::new(n, Duration::from_secs(60))).await.expect("a receive");
                let settlements = taken.into_iter().map(|d| (d.receipt, Settle::Complete)).collect();
                let settled = self.queue.settle(settlements).await.expect("a settle");
                assert!(settled.iter().all(Result::is_ok));
            }
            Work::Forward(n) => {
                let received: Vec<_> = {
                    let mut received = self.received.lock().expect("no panic");
                    let left = received.len() - n;
                    received.drain(left..).collect()
                };
                let how = || match self.in_two_steps {
                    true => Settle::Complete,
                    false => Settle::forward([(self.address.clone().expect("an address"), Message::new(body.clone()))]),
                };
                if self.in_two_steps {
                    let messages = (0..n).map(|_| Message::new(body.clone())).collect();
                    self.other.send(messages).await.expect("a send");
                }
                let settlements = received.into_iter().map(|receipt| (receipt, how())).collect();
                let settled = self.queue.settle(settlements).await.expect("a settle");
                assert!(settled.iter().all(Result::is_ok));
            }
        }
    }
}

impl Subject for Ours {
    fn prepare(&self, operations: usize) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if self.work.is_queue() {
                self.queue.purge().await.expect("a purge");
                self.other.purge().await.expect("a purge");
            }
            if let Work::Take(n) | Work::Forward(n) = self.work {
                let mut left = operations * n;
                while left > 0 {
                    let some = left.min(256);
                    let messages = (0..some).map(|_| Message::new(Bytes::from_static(&BODY))).collect();
                    self.queue.send(messages).await.expect("a send");
                    left -= some;
                }
            }
            if let Work::Forward(_) = self.work {
                self.received.lock().expect("no panic").clear();
                loop {
                    let taken =
                        self.queue.receive(Receive::new(256, Duration::from_secs(3600))).await.expect("a receive");
                    if taken.is_empty() {
                        break;
                    }
                    self.received.lock().expect("no panic").extend(taken.into_iter().map(|taken| taken.receipt));
                }
            }
        })
    }

    fn work(self: Arc<Self>, caller: usize, operations: usize) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            for i in 0..operations {
                self.once(caller, i).await;
            }
        })
    }
}
