//! The fifth law, in real time: what more callers of one handle carry, and for how long each waits.
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::future::join_all;
use steadfast::{
    backend,
    queue::{Message, Queue, QueueExt},
    store::{Key, PutOptions, Store},
};

/// An engine on which it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Memory,
    Sqlite,
    #[cfg(feature = "servers")]
    Postgres,
    #[cfg(feature = "servers")]
    Redis,
    #[cfg(feature = "servers")]
    Nats,
}

/// What the callers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Each replaces a record of its own, of 100 bytes.
    Put,
    /// Each sends a message of 100 bytes, receives one and completes it.
    Message,
}

pub const CALLERS: [usize; 6] = [1, 4, 16, 64, 256, 1024];

/// Operations a second of all callers, and the 99th percentile of their durations.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    pub of_all: f64,
    pub p99: Duration,
}

impl Engine {
    pub const ALL: &[Self] = &[
        Self::Memory,
        Self::Sqlite,
        #[cfg(feature = "servers")]
        Self::Postgres,
        #[cfg(feature = "servers")]
        Self::Redis,
        #[cfg(feature = "servers")]
        Self::Nats,
    ];

    /// Measures all works by all numbers of callers, each for so long.
    pub fn measure(self, time: Duration) -> Vec<(Work, Vec<(usize, Rate)>)> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let place = Place::new(self, folder.path());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let backend = backend::open(&place.url).await.expect("it connects");
            let (store, queue) = (backend.store(), backend.queue("scale").await.expect("a queue"));
            let mut all = Vec::new();
            for work in [Work::Put, Work::Message] {
                let mut rates = Vec::new();
                for callers in CALLERS {
                    rates.push((callers, rate(work, &store, &queue, callers, time).await));
                }
                all.push((work, rates));
            }
            all
        })
    }
}

async fn rate(work: Work, store: &Arc<dyn Store>, queue: &Arc<dyn Queue>, callers: usize, time: Duration) -> Rate {
    static BODY: [u8; 100] = [b'x'; 100];
    let began = Instant::now();
    let caller = |caller: usize| {
        let (store, queue) = (store.clone(), queue.clone());
        tokio::spawn(async move {
            let (row, mut took) = (format!("row-{caller}"), Vec::new());
            while began.elapsed() < time {
                let asked = Instant::now();
                let body = Bytes::from_static(&BODY);
                match work {
                    Work::Put => drop(store.put(Key::new("scale", &row), body, PutOptions::new()).await.expect("put")),
                    Work::Message => {
                        queue.send_one(Message::new(body)).await.expect("accepted");
                        if let Some(message) = queue.receive_one(Duration::from_secs(300)).await.expect("no failure") {
                            queue.complete(&message.receipt).await.expect("settled");
                        }
                    }
                }
                took.push(asked.elapsed());
            }
            took
        })
    };
    let took = join_all((0..callers).map(caller)).await;
    let elapsed = began.elapsed();
    let mut took: Vec<Duration> = took.into_iter().flat_map(|took| took.expect("no panic")).collect();
    took.sort_unstable();
    let p99 = took.get(took.len() * 99 / 100).copied().unwrap_or_default();
    Rate { of_all: took.len() as f64 / elapsed.as_secs_f64(), p99 }
}

/// The URL of an engine, with the server that ends with it.
struct Place {
    url: String,
    #[cfg(feature = "servers")]
    _server: Option<Box<dyn std::any::Any>>,
}

impl Place {
    fn new(engine: Engine, folder: &Path) -> Self {
        #[cfg(feature = "servers")]
        {
            use crate::server;
            let keep = |url: String, server: Box<dyn std::any::Any>| Self { url, _server: Some(server) };
            match engine {
                Engine::Postgres => {
                    let server = server::Postgres::start();
                    return keep(server.url(), Box::new(server));
                }
                Engine::Redis => {
                    let server = server::Redis::start();
                    return keep(server.url(), Box::new(server));
                }
                Engine::Nats => {
                    let server = server::Nats::start();
                    return keep(server.url(), Box::new(server));
                }
                Engine::Memory | Engine::Sqlite => {}
            }
        }
        let url = match engine {
            Engine::Memory => "memory:".to_owned(),
            _ => format!("sqlite:{}", folder.join("scale.db").display()),
        };
        Self {
            url,
            #[cfg(feature = "servers")]
            _server: None,
        }
    }
}
