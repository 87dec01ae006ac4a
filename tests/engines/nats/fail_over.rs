//! A cluster of three whose leaders are killed and paused, under load.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use steadfast::{
    lease::{Acquired, Lease},
    port::{ErrorClass, Failure},
    queue::{Message, Queue, QueueExt, Receive, Settle},
    store::{Key, Scan, Store, StoreError, StoreExt},
};
use tokio::time::sleep;

use super::{connect, run};
use crate::{faults::size, server::NatsCluster};

const MS: fn(u64) -> Duration = Duration::from_millis;
const VISIBILITY: Duration = Duration::from_secs(20);
/// Longest time without progress: an election takes up to 10 s, and the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Debug, Default)]
struct Seen {
    ends: AtomicBool,
    /// Messages by number: accepted, and the number of completions.
    accepted: Mutex<BTreeSet<u64>>,
    completed: Mutex<BTreeMap<u64, u64>>,
    /// Records that were accepted, and the largest version of the counter.
    records: Mutex<BTreeSet<u64>>,
    counted: AtomicU64,
    reads: AtomicU64,
    /// All tokens that were granted, and the largest of those that were told.
    tokens: Mutex<BTreeSet<u64>>,
    told: AtomicU64,
    failures: AtomicU64,
}

impl Seen {
    /// Records a failure that passes by itself.
    async fn failed(&self, what: &str, error: &(impl Failure + ?Sized)) {
        assert!(error.class() != ErrorClass::Permanent, "{what}: {error}");
        self.failures.fetch_add(1, SeqCst);
        sleep(MS(20)).await;
    }

    fn goes_on(&self) -> bool {
        !self.ends.load(SeqCst)
    }

    /// Returns the numbers of what was done of each kind.
    fn progress(&self) -> [u64; 4] {
        let completed = self.completed.lock().unwrap().len() as u64;
        let (records, tokens) = (self.records.lock().unwrap().len() as u64, self.tokens.lock().unwrap().len() as u64);
        [completed, records, self.counted.load(SeqCst), tokens]
    }
}

async fn send(queue: Arc<dyn Queue>, seen: Arc<Seen>) {
    let mut number = 0;
    while seen.goes_on() {
        number += 1;
        // Sent again after a failure, it is accepted once.
        let message = || Message::new(number.to_string()).deduplicate(number.to_string());
        loop {
            match queue.send_one(message()).await {
                Ok(_) => break,
                Err(error) => seen.failed("send", &error).await,
            }
        }
        seen.accepted.lock().unwrap().insert(number);
        sleep(MS(2)).await;
    }
}

async fn work(queue: Arc<dyn Queue>, seen: Arc<Seen>) {
    while seen.goes_on() {
        let deliveries = match queue.receive(Receive::new(16, VISIBILITY).wait(MS(500))).await {
            Ok(deliveries) => deliveries,
            Err(error) => {
                seen.failed("receive", &error).await;
                continue;
            }
        };
        for delivery in deliveries {
            let number: u64 = String::from_utf8_lossy(&delivery.body).parse().unwrap();
            match queue.settle(vec![(delivery.receipt, Settle::Complete)]).await {
                Ok(settled) if settled[0].is_ok() => {
                    *seen.completed.lock().unwrap().entry(number).or_default() += 1;
                }
                Ok(_) => {}
                Err(error) => seen.failed("complete", &error).await,
            }
        }
    }
}

async fn insert(store: Arc<dyn Store>, seen: Arc<Seen>) {
    for number in 0.. {
        if !seen.goes_on() {
            return;
        }
        // Pages are for partitions of some thousand rows.
        match store.insert(Key::new(&format!("records {}", number / 1_000), &number.to_string()), "x").await {
            Ok(_) => drop(seen.records.lock().unwrap().insert(number)),
            Err(error) => seen.failed("insert", &error).await,
        }
        sleep(MS(2)).await;
    }
}

/// Counts by compare-and-set, and checks that no read is older than what was accepted before it.
async fn count(store: Arc<dyn Store>, seen: Arc<Seen>) {
    let key = Key::new("counter", "n");
    while seen.goes_on() {
        let before = seen.counted.load(SeqCst);
        let record = match store.get(key).await {
            Ok(record) => record,
            Err(error) => {
                seen.failed("get", &error).await;
                continue;
            }
        };
        seen.reads.fetch_add(1, SeqCst);
        let value = record.as_ref().map_or(0, |record| String::from_utf8_lossy(&record.value).parse().unwrap());
        assert!(value >= before, "a read gives {value}, and {before} was accepted before it");
        let next = (value + 1).to_string();
        let written = match record {
            Some(record) => store.replace(key, next, record.version).await,
            None => store.insert(key, next).await,
        };
        match written {
            Ok(_) => drop(seen.counted.fetch_max(value + 1, SeqCst)),
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => seen.failed("replace", &error).await,
        }
    }
}

/// Acquires and releases, and checks that each token is new, and above those that were told before it was asked for.
async fn grant(lease: Arc<dyn Lease>, holder: String, seen: Arc<Seen>) {
    while seen.goes_on() {
        let before = seen.told.load(SeqCst);
        match lease.acquire("job", &holder, Duration::from_secs(1)).await {
            Ok(Acquired::Granted(token)) => {
                let number = token.as_u64();
                assert!(number > before, "the token {number} is not above {before}, which was told before");
                assert!(seen.tokens.lock().unwrap().insert(number), "the token {number} repeats");
                seen.told.fetch_max(number, SeqCst);
                if let Err(error) = lease.release("job", &holder, token).await
                    && !error.is_not_held()
                {
                    seen.failed("release", &error).await;
                }
            }
            Ok(Acquired::Held(_)) => sleep(MS(10)).await,
            Err(error) => seen.failed("acquire", &error).await,
        }
        sleep(MS(5)).await;
    }
}

/// Waits until everything makes progress.
async fn all_go_on(seen: &Seen, when: &str) -> Duration {
    let (before, began) = (seen.progress(), Instant::now());
    loop {
        let now = seen.progress();
        if now.iter().zip(before).all(|(now, before)| *now > before + 3) {
            return began.elapsed();
        }
        assert!(began.elapsed() < PATIENCE, "{when}: no progress from {before:?} to {now:?}");
        sleep(MS(20)).await;
    }
}

#[test]
fn nothing_accepted_is_lost_and_no_token_repeats_when_leaders_are_killed_or_paused() {
    run(async {
        let rounds = size("STEADFAST_PROMOTIONS", 3);
        let cluster = NatsCluster::start();
        let seen = Arc::new(Seen::default());
        let (one, other) = (connect(cluster.url(), "steadfast").await, connect(cluster.url(), "steadfast").await);
        let queues: [Arc<dyn Queue>; 2] =
            [Arc::new(one.queue("jobs").await.unwrap()), Arc::new(other.queue("jobs").await.unwrap())];
        let stores: [Arc<dyn Store>; 2] = [Arc::new(one.store()), Arc::new(other.store())];
        let mut tasks = vec![
            tokio::spawn(send(queues[0].clone(), seen.clone())),
            tokio::spawn(insert(stores[0].clone(), seen.clone())),
        ];
        for at in 0..2 {
            tasks.push(tokio::spawn(work(queues[at].clone(), seen.clone())));
            tasks.push(tokio::spawn(count(stores[at].clone(), seen.clone())));
            let lease: Arc<dyn Lease> = Arc::new([&one, &other][at].lease());
            tasks.push(tokio::spawn(grant(lease, format!("holder {at}"), seen.clone())));
        }
        all_go_on(&seen, "before the first").await;
        let mut streams = tokio::task::block_in_place(|| cluster.servers()[0].streams());
        streams.retain(|name| name.starts_with("steadfast_"));
        assert_eq!(streams.len(), 5, "the store's, and the queue's with claims, ids and dead letters: {streams:?}");
        let mut pauses = Vec::new();
        for round in 0..rounds {
            let stream = streams[round as usize % streams.len()].clone();
            let is_kill = round % 4 < 2;
            let name = format!("round {round}, the leader of {stream} {}", if is_kill { "killed" } else { "paused" });
            let disturb = |cluster: &NatsCluster| {
                let leader = cluster.leader(&stream).port();
                let at = cluster.servers().iter().position(|server| server.port() == leader).unwrap();
                let server = &cluster.servers()[at];
                if is_kill {
                    server.kill()
                } else {
                    server.stop()
                }
                at
            };
            let leader = tokio::task::block_in_place(|| disturb(&cluster));
            pauses.push(all_go_on(&seen, &name).await);
            let server = &cluster.servers()[leader];
            tokio::task::block_in_place(|| if is_kill { server.start_again() } else { server.cont() });
            all_go_on(&seen, &format!("{name}, and back")).await;
            // Without two that are current, no majority would be left by the next one that goes.
            if !tokio::task::block_in_place(|| streams.iter().all(|stream| cluster.catches_up(stream))) {
                break;
            }
        }
        seen.ends.store(true, SeqCst);
        for task in tasks {
            task.await.unwrap();
        }
        // What was in flight comes back.
        let (mut least, mut at) = (u64::MAX, Instant::now());
        seen.ends.store(false, SeqCst);
        let rest = tokio::spawn(work(queues[0].clone(), seen.clone()));
        loop {
            match queues[0].depth().await {
                Ok(left) if left.total() == 0 => break,
                Ok(left) if left.total() < least => (least, at) = (left.total(), Instant::now()),
                Ok(_) => sleep(MS(20)).await,
                Err(error) => seen.failed("depth", &error).await,
            }
            assert!(at.elapsed() < PATIENCE, "{least} messages stay in the queue");
        }
        seen.ends.store(true, SeqCst);
        rest.await.unwrap();
        let (accepted, completed) = (seen.accepted.lock().unwrap().clone(), seen.completed.lock().unwrap().clone());
        let twice = completed.values().filter(|count| **count > 1).count();
        // A completion without an answer is in none of the two.
        let unanswered = accepted.iter().filter(|number| !completed.contains_key(number)).count() as u64;
        assert!(unanswered <= seen.failures.load(SeqCst), "{unanswered} messages were lost");
        assert_eq!(twice, 0, "completed twice");
        // A server that has just come back may have to catch up before it lists them.
        let last = seen.records.lock().unwrap().last().copied().unwrap_or_default();
        let mut found = BTreeSet::<u64>::new();
        for partition in 0..=last / 1_000 {
            let (scan, began) = (Scan::partition(format!("records {partition}")), Instant::now());
            let records = loop {
                match stores[1].scan_all(scan.clone()).await {
                    Ok(records) => break records,
                    Err(error) => {
                        assert!(began.elapsed() < PATIENCE, "the records cannot be read: {error}");
                        seen.failed("scan", &error).await;
                    }
                }
            };
            found.extend(records.iter().map(|row| row.row.parse::<u64>().unwrap()));
        }
        let lost: Vec<_> = seen.records.lock().unwrap().difference(&found).copied().collect();
        assert_eq!(lost, [0; 0], "accepted records are lost");
        let tokens = seen.tokens.lock().unwrap();
        pauses.sort();
        println!(
            "{} leaders gone: {} messages, {unanswered} completed without an answer; {} records; counted to {} with \
             {} reads; {} tokens; {} failed calls; away for {:?} (median), {:?} at most",
            pauses.len(),
            accepted.len(),
            found.len(),
            seen.counted.load(SeqCst),
            seen.reads.load(SeqCst),
            tokens.len(),
            seen.failures.load(SeqCst),
            pauses[pauses.len() / 2],
            pauses[pauses.len() - 1]
        );
    });
}
