//! Ours: the ports, as a pattern sees them.
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use steadfast::{
    backend::{self, Backend},
    queue::{Message, Queue, Receive, Settle},
    store::{Key, Precondition, PutOptions, Store, Version},
};

use crate::{BODY, RECORDS, Work, measure::Subject};

struct Ours {
    work: Work,
    store: Arc<dyn Store>,
    queue: Arc<dyn Queue>,
    /// The version that each caller wrote last.
    versions: Mutex<Vec<Option<Version>>>,
    rows: Vec<String>,
}

pub async fn postgres(work: Work, url: &str) -> Arc<dyn Subject> {
    subject(work, backend::open(url).await.expect("it connects")).await
}

pub async fn redis(work: Work, url: &str) -> Arc<dyn Subject> {
    subject(work, backend::open(url).await.expect("it connects")).await
}

async fn subject(work: Work, backend: Backend) -> Arc<dyn Subject> {
    let (store, queue) = (backend.store(), backend.queue("jobs").await.expect("a queue"));
    let rows: Vec<String> = (0..RECORDS).map(|i| format!("row-{i:04}")).collect();
    if !work.is_queue() {
        for row in &rows {
            store.put(Key::new("bench", row), Bytes::from_static(&BODY), PutOptions::new()).await.expect("a put");
        }
    }
    let versions = Mutex::new(vec![None; 64]);
    Arc::new(Ours { work, store, queue, versions, rows })
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
        }
    }
}

impl Subject for Ours {
    fn prepare(&self, operations: usize) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if self.work.is_queue() {
                self.queue.purge().await.expect("a purge");
            }
            if let Work::Take(n) = self.work {
                let mut left = operations * n;
                while left > 0 {
                    let some = left.min(256);
                    let messages = (0..some).map(|_| Message::new(Bytes::from_static(&BODY))).collect();
                    self.queue.send(messages).await.expect("a send");
                    left -= some;
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
