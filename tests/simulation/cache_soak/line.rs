//! A process's connections to the remote tier and to the notifier. Each is healthy or faulty, as
//! the phase says.
use std::{
    collections::HashMap,
    future::{Future, pending},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use steadfast::{
    entropy::Entropy,
    notify::{Notice, NoticeSource, Notices, Notifier},
    port::{BoxFuture, Capabilities, PortError, PortErrorKind, PortFuture},
    store::{
        DeleteOptions, Key, Page, Precondition, PutOptions, Record, Scan, Store, StoreError, StoreFuture, Version,
        Write,
    },
    time::{Clock, Instant},
};

use super::{
    truth::{PROCESSES, Truth},
    world::Without,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tier {
    /// One answer in 1,000 arrives too late.
    Well,
    Slow,
    Away,
    Hangs,
    /// Bits of read records are flipped.
    Damaged,
    /// Requests are applied, and their answers are lost.
    LosesReplies,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notes {
    Well,
    /// Some notices are lost without a report.
    Lost,
    /// Some notices are lost, and a gap is reported.
    Gaps,
    Away,
    Hangs,
}

/// The phase of one process.
#[derive(Debug)]
pub(super) struct Phase {
    pub(super) tier: Tier,
    pub(super) notes: Notes,
    /// Time since which the tier is healthy.
    pub(super) well_since: Instant,
}

/// Times of the last request for a row, and of its answer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Asked {
    pub(super) began: Instant,
    pub(super) answered: Option<Instant>,
}

/// One process's connection to the shared store and notifier.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) process: usize,
    pub(super) store: Arc<dyn Store>,
    pub(super) notifier: Arc<dyn Notifier>,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    pub(super) phase: Arc<Mutex<Phase>>,
    pub(super) truth: Arc<Mutex<Truth>>,
    pub(super) asked: Mutex<HashMap<String, Asked>>,
    /// Number of notices that each process has sent.
    pub(super) sent: Arc<[AtomicU64; PROCESSES]>,
    pub(super) without: Without,
}

fn lost() -> PortError {
    PortError::new(PortErrorKind::Unavailable, "the line is down")
}

impl Line {
    fn tier(&self) -> Tier {
        self.phase.lock().unwrap().tier
    }

    async fn carry<T>(
        &self,
        writes: bool,
        asked: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut takes = MS(1 + self.entropy.up_to(4));
        let slow_one_in = if self.without == Without::LeavingByRate { 15 } else { 1_000 };
        match self.tier() {
            Tier::Well if self.entropy.up_to(slow_one_in - 1) == 0 => takes = MS(150 + self.entropy.up_to(3_000)),
            Tier::Well | Tier::Damaged | Tier::LosesReplies => {}
            Tier::Slow => takes = MS(30 + self.entropy.up_to(150)),
            Tier::Away => return Err(lost().into()),
            Tier::Hangs => pending().await,
        }
        self.clock.sleep(takes / 2).await;
        let answer = asked.await;
        self.clock.sleep(takes / 2).await;
        match self.tier() {
            Tier::Hangs => pending().await,
            Tier::LosesReplies if writes && self.entropy.up_to(3) == 0 => Err(lost().outcome_unknown().into()),
            _ => answer,
        }
    }

    /// Flips a bit of a record that was read.
    fn damage(&self, record: &mut Record) {
        let damaged = self.tier() == Tier::Damaged && self.without != Without::Checksum;
        if damaged && !record.value.is_empty() && self.entropy.up_to(4) == 0 {
            let mut bytes = BytesMut::from(&record.value[..]);
            let at = self.entropy.up_to(bytes.len() as u64 - 1) as usize;
            bytes[at] ^= 1 << self.entropy.up_to(7);
            record.value = bytes.freeze();
            self.truth.lock().unwrap().flips += 1;
        }
    }

    /// Returns `true` if this row was requested since then, and answered.
    pub(super) fn asked_since(&self, key: u32, since: Instant) -> (bool, bool) {
        let asked = self.asked.lock().unwrap().get(&key.to_string()).copied().unwrap_or_default();
        (asked.began >= since, asked.answered.is_some_and(|answered| answered >= since))
    }

    /// Records the first notice of each process that this one receives.
    fn hears(&self, since: impl Fn(usize) -> Option<u64>) {
        let mut truth = self.truth.lock().unwrap();
        for (by, heard) in truth.heard_of[self.process].iter_mut().enumerate() {
            heard.since = since(by);
        }
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent[self.process].load(Relaxed)
    }
}

/// The store through this process's connection.
#[derive(Debug, Clone)]
pub(super) struct ToStore(pub(super) Arc<Line>);

impl Store for ToStore {
    fn capabilities(&self) -> Capabilities {
        self.0.store.capabilities()
    }
    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        Box::pin(async move {
            let line = &*self.0;
            let began = line.clock.now();
            let row = key.row.to_owned();
            line.asked.lock().unwrap().insert(row.clone(), Asked { began, answered: None });
            let mut record = line.carry(false, line.store.get(key)).await?;
            if let Some(asked) = line.asked.lock().unwrap().get_mut(&row) {
                asked.answered = Some(line.clock.now());
            }
            if let Some(record) = &mut record {
                line.damage(record);
            }
            Ok(record)
        })
    }
    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, mut how: PutOptions) -> StoreFuture<'a, Version> {
        if self.0.without == Without::Comparing {
            how.when = Precondition::Any;
        }
        Box::pin(async move { self.0.carry(true, self.0.store.put(key, value, how)).await })
    }
    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            if self.0.without == Without::Deleting {
                return self.0.carry(true, async { Ok(true) }).await;
            }
            self.0.carry(true, self.0.store.delete(key, options)).await
        })
    }
    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        Box::pin(async move { self.0.carry(false, self.0.store.scan(scan)).await })
    }
    fn batch<'a>(&'a self, partition: &'a str, writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        Box::pin(async move { self.0.carry(true, self.0.store.batch(partition, writes)).await })
    }
}

/// The notifier through this process's connection. Each notice carries its sender and its number.
#[derive(Debug, Clone)]
pub(super) struct ToNotifier(pub(super) Arc<Line>);

impl ToNotifier {
    async fn ready(&self) -> Result<(), PortError> {
        match self.0.phase.lock().unwrap().notes {
            Notes::Away => return Err(lost()),
            Notes::Hangs => {}
            _ => return Ok(()),
        }
        pending().await
    }
}

impl Notifier for ToNotifier {
    fn capabilities(&self) -> Capabilities {
        self.0.notifier.capabilities()
    }
    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> PortFuture<'a, ()> {
        Box::pin(async move {
            self.ready().await?;
            let mut bytes = BytesMut::with_capacity(notice.len() + 16);
            bytes.put_u64(self.0.process as u64);
            bytes.put_u64(self.0.sent[self.0.process].fetch_add(1, Relaxed));
            bytes.put(notice);
            self.0.notifier.publish(topic, bytes.freeze()).await
        })
    }
    fn subscribe<'a>(&'a self, topic: &'a str) -> PortFuture<'a, Notices> {
        Box::pin(async move {
            self.ready().await?;
            let notices = self.0.notifier.subscribe(topic).await?;
            self.0.hears(|by| Some(self.0.sent[by].load(Relaxed)));
            Ok(Notices::new(Hears { line: self.0.clone(), notices, gap: false }))
        })
    }
}

/// The notices that a process receives.
struct Hears {
    line: Arc<Line>,
    notices: Notices,
    gap: bool,
}

impl NoticeSource for Hears {
    fn recv(&mut self) -> BoxFuture<'_, Notice> {
        Box::pin(async move {
            loop {
                if std::mem::take(&mut self.gap) {
                    return Notice::Gap;
                }
                let Notice::Message(bytes) = self.notices.recv().await else { return Notice::Gap };
                let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
                let (by, number) = (number(0) as usize, number(8));
                let notes = self.line.phase.lock().unwrap().notes;
                let swallowed = self.line.without == Without::Notices && by != self.line.process;
                let is_lost = notes != Notes::Well && self.line.entropy.up_to(2) == 0;
                self.gap = is_lost && notes == Notes::Gaps;
                let mut truth = self.line.truth.lock().unwrap();
                let heard = &mut truth.heard_of[self.line.process][by];
                // Notices from before a subscription are not received by it.
                heard.below = number + 1;
                if is_lost {
                    heard.lost.push_back(number);
                    if heard.lost.len() > 1_000 {
                        heard.lost.pop_front();
                    }
                }
                let is_swallowed = swallowed && self.line.entropy.up_to(3) == 0;
                if !is_lost && !is_swallowed {
                    return Notice::Message(bytes.slice(16..));
                }
            }
        })
    }
}

impl Drop for Hears {
    fn drop(&mut self) {
        self.line.hears(|_| None);
    }
}
