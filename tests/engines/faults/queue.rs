//! Messages through a queue whose server fails, with workers that are dropped at any point.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use steadfast::{
    entropy::Entropy,
    port::{Capability, ErrorClass, Failure},
    queue::{Message, Queue, Receive, Settle},
};
use tokio::{task::JoinHandle, time::sleep};

use super::{Engine, MS, PATIENCE, again, ledger::Ledger, size};
use crate::server::Lane;

/// Visibility time-out of each delivery: longer than the handling, and shorter than the longest faults.
const VISIBILITY: Duration = Duration::from_secs(2);
const WORKERS: usize = 8;
const SENDERS: u64 = 2;
/// Number of messages in a request of a sender, if the queue takes so many.
const BATCH: u64 = 20;
/// Largest number of messages that wait.
const BACKLOG: u64 = 4_000;

#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill,
    Stop,
    Cut,
    Delay,
    HalfOpen,
    NoReplies,
}

const FAULTS: [Fault; 6] = [Fault::Kill, Fault::Stop, Fault::Cut, Fault::Delay, Fault::HalfOpen, Fault::NoReplies];

impl Fault {
    /// Does it, and mends it. `long` faults outlast the time-outs of requests.
    async fn happen(self, engine: &Engine, long: bool) {
        let time = if long { MS(6_500) } else { MS(300) };
        match self {
            Self::Kill => {
                engine.act(|engine| engine.server.kill()).await;
                sleep(if long { time } else { MS(50) }).await;
                engine.act(|engine| engine.server.start_again()).await;
            }
            Self::Stop => {
                engine.act(|engine| engine.server.stop()).await;
                sleep(time).await;
                engine.act(|engine| engine.server.cont()).await;
            }
            Self::Cut => engine.proxy.cut(),
            Self::Delay => {
                engine.proxy.delay(MS(25));
                sleep(time).await;
                engine.proxy.delay(Duration::ZERO);
            }
            Self::HalfOpen => {
                engine.proxy.hold();
                sleep(time).await;
                engine.proxy.pass();
            }
            Self::NoReplies => {
                engine.proxy.hold_lane(Lane::Replies);
                sleep(MS(100)).await;
                // What was done has no answer.
                engine.proxy.cut();
                engine.proxy.pass();
            }
        }
    }
}

/// Receives and completes until there is no more to do.
async fn worker(queue: Arc<dyn Queue>, ledger: Arc<Ledger>, life: u64, is_done: Arc<AtomicBool>) {
    while !is_done.load(SeqCst) {
        let asked = Instant::now();
        match queue.receive(Receive::new(16, VISIBILITY).wait(MS(500))).await {
            Ok(deliveries) => {
                let runs: Vec<_> = deliveries.iter().map(|delivery| ledger.begin(life, asked, delivery)).collect();
                let settlements = deliveries.into_iter().map(|delivery| (delivery.receipt, Settle::Complete)).collect();
                match queue.settle(settlements).await {
                    Ok(settled) => {
                        runs.iter()
                            .zip(&settled)
                            .for_each(|(run, settled)| ledger.end(*run, settled.as_ref().copied()));
                    }
                    Err(error) => runs.iter().for_each(|run| ledger.end(*run, Err(&error))),
                }
            }
            Err(error) => {
                assert!(error.class() != ErrorClass::Permanent, "receive: {error}");
                sleep(MS(20)).await;
            }
        }
    }
}

async fn sender(queue: Arc<dyn Queue>, ledger: Arc<Ledger>, number: u64, messages: u64, failed: Arc<AtomicU64>) {
    let mut next = number;
    let has_groups = queue.capabilities().has(Capability::Groups);
    let batch_of = BATCH.min(queue.capabilities().max_batch() as u64);
    while next < messages {
        while next > ledger.handled() + BACKLOG {
            sleep(MS(5)).await;
        }
        let numbers: Vec<_> = (0..batch_of).map(|i| next + i * SENDERS).filter(|next| *next < messages).collect();
        let group = |at: u64| (has_groups && at % 10 == number).then(|| format!("group {number} {}", at % 7));
        let batch = || {
            let message = |at: &u64| {
                // Sent again after a fault, it is accepted once.
                let message = Message::new(at.to_string()).deduplicate(format!("id {at}"));
                group(*at).into_iter().fold(message, Message::group)
            };
            numbers.iter().map(message).collect()
        };
        let (ids, failures) = again("send", || queue.send(batch())).await;
        failed.fetch_add(failures, SeqCst);
        numbers.iter().zip(ids).for_each(|(at, id)| ledger.accepted(*at, id, group(*at)));
        next += batch_of * SENDERS;
    }
}

/// The workers, of which one after the other is dropped at any point and replaced.
struct Workers {
    queues: [Arc<dyn Queue>; 2],
    ledger: Arc<Ledger>,
    running: Vec<(u64, JoinHandle<()>)>,
    lives: u64,
    is_done: Arc<AtomicBool>,
}

impl Workers {
    fn start(&mut self) {
        let queue = self.queues[self.lives as usize % 2].clone();
        let worker = worker(queue, self.ledger.clone(), self.lives, self.is_done.clone());
        self.running.push((self.lives, tokio::spawn(worker)));
        self.lives += 1;
    }

    async fn replace(&mut self, at: usize) {
        let (life, worker) = self.running.swap_remove(at);
        self.ledger.killed(life);
        worker.abort();
        if let Err(error) = worker.await {
            assert!(error.is_cancelled(), "a worker failed: {error}");
        }
        self.start();
    }

    /// Waits until each has the answer to its last settlement.
    async fn end(self) {
        self.is_done.store(true, SeqCst);
        for (_, worker) in self.running {
            worker.await.expect("no worker fails");
        }
    }
}

/// Waits for work in which messages are handled that were not handled before.
async fn progresses<T>(ledger: &Ledger, messages: u64, work: impl Future<Output = T>) -> T {
    let (mut work, mut handled, mut at) = (std::pin::pin!(work), 0, Instant::now());
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = sleep(MS(500)) => {}
        }
        if ledger.handled() > handled {
            (handled, at) = (ledger.handled(), Instant::now());
        }
        assert!(at.elapsed() < PATIENCE, "{handled} of {messages} handled, and no progress within {PATIENCE:?}");
    }
}

/// Sends messages through a queue, with each kind of fault at least once, and checks that every one was handled.
async fn messages_and_faults(engine: Engine, seed: u64) {
    let messages = size("STEADFAST_MESSAGES", 6_000);
    // Each kind at each ten thousand messages; in a larger run some faults are long.
    let rounds = (messages / 10_000).max(1) as usize;
    let (entropy, ledger, failed) =
        (Entropy::from_seed(seed), Arc::new(Ledger::default()), Arc::<AtomicU64>::default());
    let (one, other) = (engine.open().await, engine.open().await);
    let queues = [one.queue("jobs").await.unwrap(), other.queue("jobs").await.unwrap()];

    let began = Instant::now();
    let senders: Vec<_> = (0..SENDERS)
        .map(|number| {
            let queue = queues[number as usize].clone();
            tokio::spawn(sender(queue, ledger.clone(), number, messages, failed.clone()))
        })
        .collect();
    let mut workers = Workers {
        queues: queues.clone(),
        ledger: ledger.clone(),
        running: Vec::new(),
        lives: 0,
        is_done: Arc::default(),
    };
    (0..WORKERS).for_each(|_| workers.start());

    let mut faults: Vec<_> = (0..rounds).flat_map(|round| FAULTS.map(|fault| (fault, round % 4 == 1))).collect();
    for at in (1..faults.len()).rev() {
        faults.swap(at, entropy.up_to(at as u64) as usize);
    }
    let disturb = {
        let (engine, ledger, count) = (engine.clone(), ledger.clone(), faults.len() as u64 + 1);
        async move {
            for (number, (fault, long)) in faults.into_iter().enumerate() {
                // Each fault hits traffic: it waits for progress since the last one.
                while ledger.handled() < messages * (number as u64 + 1) / count {
                    sleep(MS(2)).await;
                }
                let from = Instant::now();
                fault.happen(&engine, long).await;
                ledger.fault(&format!("{fault:?}"), from, VISIBILITY + MS(5_000));
            }
        }
    };
    let mut disturbing = tokio::spawn(disturb);
    let kills = async {
        loop {
            sleep(MS(20 + entropy.up_to(100))).await;
            let at = entropy.up_to(WORKERS as u64 - 1) as usize;
            workers.replace(at).await;
        }
    };
    tokio::select! {
        () = kills => unreachable!("it never ends"),
        done = progresses(&ledger, messages, &mut disturbing) => done.unwrap(),
    }
    for sender in senders {
        progresses(&ledger, messages, sender).await.unwrap();
    }
    let directly = engine.open_directly().await.queue("jobs").await.unwrap();
    let (mut least, mut at) = (u64::MAX, Instant::now());
    loop {
        let left = again("depth", || directly.depth()).await.0.total();
        if left == 0 {
            break;
        }
        if left < least {
            (least, at) = (left, Instant::now());
        }
        assert!(at.elapsed() < PATIENCE, "{left} messages stay in the queue for {PATIENCE:?}");
        sleep(MS(10)).await;
    }
    let lives = workers.lives;
    workers.end().await;
    let dead = directly.dead_letters().unwrap().depth().await.unwrap().total();
    assert_eq!(dead, 0, "dead letters that nobody asked for");
    let summary = ledger.check(VISIBILITY);
    println!(
        "{summary}; {} faults, {lives} workers, {} failed sends; {:.1} s",
        rounds * FAULTS.len(),
        failed.load(SeqCst),
        began.elapsed().as_secs_f64()
    );
}

#[cfg(feature = "nats")]
#[test]
fn nats_loses_no_message_while_its_server_fails() {
    super::run(messages_and_faults(Engine::new(crate::server::Nats::start()), 3));
}

#[cfg(feature = "nats")]
#[test]
fn nats_of_release_2_10_loses_no_message_while_its_server_fails() {
    super::run(messages_and_faults(Engine::new(crate::server::Nats::old()), 4));
}

#[cfg(feature = "postgres")]
#[test]
fn postgres_loses_no_message_while_its_server_fails() {
    super::run(messages_and_faults(Engine::new(crate::server::Postgres::start()), 1));
}

#[cfg(feature = "redis")]
#[test]
fn redis_loses_no_message_while_its_server_fails() {
    super::run(messages_and_faults(Engine::new(crate::server::Redis::durable()), 2));
}
