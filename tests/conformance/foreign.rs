//! Backends of another crate: written with public items alone, they pass the suites. Each calls the checks of arguments
//! that the crate's own backends call.
use std::{
    collections::{BTreeMap, HashMap},
    ops::RangeBounds,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    lease::{Acquired, Held, Lease, LeaseError, LeaseFuture, Renewed, check_grant, check_holder},
    notify::{Notice, NoticeSource, Notices, Notifier, check_notice},
    port::{BoxFuture, Capabilities, Capability, FencingToken, PortError, PortErrorKind, PortFuture},
    queue::{
        Address, Delivery, Depth, ErrorHistory, Message, MessageId, Peeked, Queue, QueueError, QueueFuture, Receipt,
        Receive, Settle, check_visibility,
    },
    store::{
        Continuation, DeleteOptions, Key, Order, Page, PutOptions, Record, Row, Scan, Store, StoreError, StoreFuture,
        Version, Write,
    },
    testing::conformance::Fixture,
    time::{Clock, Instant, Timestamp},
};
use tokio::sync::{Notify, broadcast};

const CAN_STORE: Capabilities =
    Capabilities::of("foreign", &[Capability::Linearizable, Capability::AtomicBatch, Capability::OrderedVersions])
        .largest_value(1 << 20)
        .largest_batch(50)
        .largest_key(500);
const CAN_QUEUE: Capabilities =
    Capabilities::of("foreign", &[Capability::Linearizable, Capability::Ordered, Capability::ErrorHistory])
        .largest_value(1 << 20)
        .largest_batch(50)
        .largest_key(500);
const CAN_LEASE: Capabilities =
    Capabilities::of("foreign", &[Capability::Linearizable, Capability::Fencing]).largest_key(500);
const CAN_NOTIFY: Capabilities =
    Capabilities::of("foreign", &[Capability::Push]).largest_value(1 << 16).largest_key(500);

fn unsupported() -> PortError {
    PortError::new(PortErrorKind::Unsupported, "foreign: a request of a later release")
}

/// Rows by partition and name.
type Rows = BTreeMap<(String, String), Record>;

/// The rows, and the number of writes.
#[derive(Debug, Default)]
struct ForeignStore(Mutex<(Rows, u64)>);

impl ForeignStore {
    /// Applies all writes or none.
    fn write(&self, partition: &str, writes: Vec<Write>) -> Result<Vec<Applied>, StoreError> {
        let (rows, count) = &mut *self.0.lock().unwrap();
        // Without ordered appends each write has a row.
        let key = |write: &Write| (partition.to_owned(), write.row().unwrap_or_default().to_owned());
        for (i, write) in writes.iter().enumerate() {
            if !matches!(write, Write::Put { .. } | Write::Delete { .. } | Write::Check { .. }) {
                return Err(unsupported().into());
            }
            write.when().check(rows.get(&key(write)).map(|record| record.version)).map_err(|e| e.of_write(i))?;
        }
        let mut applied = Vec::new();
        for write in writes {
            let key = key(&write);
            applied.push(match write {
                Write::Put { value, .. } => {
                    *count += 1;
                    rows.insert(key, Record::new(value, Version::new(*count)));
                    Applied::Put(Version::new(*count))
                }
                Write::Delete { .. } => Applied::Deleted(rows.remove(&key).is_some()),
                _ => Applied::Checked,
            });
        }
        Ok(applied)
    }
}

enum Applied {
    Put(Version),
    Deleted(bool),
    Checked,
}

impl Store for ForeignStore {
    fn capabilities(&self) -> Capabilities {
        CAN_STORE
    }

    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        Box::pin(async move {
            key.check(&CAN_STORE)?;
            Ok(self.0.lock().unwrap().0.get(&(key.partition.to_owned(), key.row.to_owned())).cloned())
        })
    }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            key.check(&CAN_STORE)?;
            let write = Write::put(key.row, value, options);
            write.check(&CAN_STORE)?;
            match self.write(key.partition, vec![write])?[..] {
                [Applied::Put(version)] => Ok(version),
                _ => unreachable!("one put has one version"),
            }
        })
    }

    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            key.check(&CAN_STORE)?;
            let write = Write::delete(key.row, options);
            write.check(&CAN_STORE)?;
            Ok(matches!(self.write(key.partition, vec![write])?[..], [Applied::Deleted(true)]))
        })
    }

    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        Box::pin(async move {
            scan.check(&CAN_STORE)?;
            let (limit, (from, to)) = (scan.limit.min(CAN_STORE.max_batch()), scan.bounds());
            let bounds = (from, to.as_ref().map(String::as_str));
            let state = self.0.lock().unwrap();
            let found = state.0.iter().filter(|((partition, row), _)| {
                *partition == scan.partition
                    && RangeBounds::<str>::contains(&bounds, row.as_str())
                    && scan.rows.contains(row)
            });
            let row = |((_, row), record): (&(String, String), &Record)| {
                Row::new(row.clone(), record.value.clone(), record.version)
            };
            let mut rows: Vec<Row> = match scan.order {
                Order::Ascending => found.map(row).collect(),
                Order::Descending => found.rev().map(row).collect(),
            };
            let more = rows.len() > limit;
            rows.truncate(limit);
            let next = rows.last().filter(|_| more).map(|last| Continuation::behind(&*last.row));
            Ok(Page::new(rows, next))
        })
    }

    fn batch<'a>(&'a self, partition: &'a str, writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        Box::pin(async move {
            Write::check_batch(partition, &writes, &CAN_STORE)?;
            let version = |applied| match applied {
                Applied::Put(version) => Some(version),
                Applied::Deleted(_) | Applied::Checked => None,
            };
            Ok(self.write(partition, writes)?.into_iter().map(version).collect())
        })
    }
}

/// A row of the queue. `receipt` is the number of the delivery that may settle it; 0 is none.
#[derive(Debug, Clone)]
struct Stored {
    number: u64,
    message: Message,
    sent_at: Timestamp,
    accepted: Instant,
    deliveries: u32,
    attempts: u32,
    expiries: u32,
    crashes: u32,
    begun: bool,
    receipt: u64,
    visible: Instant,
    reason: Option<String>,
    /// As a column of text has them.
    errors: Option<String>,
}

impl Stored {
    fn id(&self) -> MessageId {
        MessageId::from_numbers(self.number, 0)
    }

    fn history(&self) -> ErrorHistory {
        self.errors.as_deref().map(ErrorHistory::decode).unwrap_or_default()
    }

    fn deliver(&mut self, receipt: u64, now: Instant, visible: Instant) -> Delivery {
        let expired = u32::from(self.receipt != 0);
        (self.attempts, self.expiries) = (self.attempts + expired, self.expiries + expired);
        self.crashes += u32::from(self.receipt != 0 && std::mem::take(&mut self.begun));
        (self.deliveries, self.receipt, self.visible) = (self.deliveries + 1, receipt, visible);
        let receipt = Receipt::from_numbers(self.number, receipt);
        let mut delivery = Delivery::new(self.id(), receipt, self.message.body.clone(), self.deliveries, self.sent_at);
        delivery.headers = self.message.headers.clone();
        (delivery.attempts, delivery.expiries, delivery.age) = (self.attempts, self.expiries, now - self.accepted);
        (delivery.reason, delivery.errors, delivery.crashes) = (self.reason.clone(), self.history(), self.crashes);
        delivery.age = now - self.accepted;
        delivery
    }

    fn peeked(&self, now: Instant) -> Peeked {
        let body = self.message.body.clone();
        let mut peeked = Peeked::new(self.id(), body, self.deliveries, self.sent_at, self.visible > now);
        peeked.headers = self.message.headers.clone();
        (peeked.attempts, peeked.expiries, peeked.crashes) = (self.attempts, self.expiries, self.crashes);
        (peeked.reason, peeked.errors) = (self.reason.clone(), self.history());
        peeked
    }
}

/// The messages of a queue, or its dead letters: the second list.
#[derive(Debug, Clone)]
struct ForeignQueue {
    lists: Arc<Mutex<[Vec<Stored>; 2]>>,
    numbers: Arc<AtomicU64>,
    changed: Arc<Notify>,
    clock: Clock,
    name: u64,
    list: usize,
}

impl ForeignQueue {
    fn new(clock: &Clock) -> Self {
        static NAMES: AtomicU64 = AtomicU64::new(0);
        Self {
            lists: Arc::default(),
            numbers: Arc::new(AtomicU64::new(1)),
            changed: Arc::default(),
            clock: clock.clone(),
            name: NAMES.fetch_add(1, Relaxed),
            list: 0,
        }
    }

    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Relaxed)
    }

    fn lists(&self) -> MutexGuard<'_, [Vec<Stored>; 2]> {
        self.lists.lock().unwrap()
    }

    /// Takes visible messages, or returns the time at which the next one becomes visible.
    fn take(&self, max: usize, visibility: Duration) -> Result<Vec<Delivery>, Instant> {
        let now = self.clock.now();
        let list = &mut self.lists()[self.list];
        let visible = list.iter_mut().filter(|stored| stored.visible <= now).take(max);
        let taken: Vec<_> = visible.map(|stored| stored.deliver(self.next_number(), now, now + visibility)).collect();
        let next = || list.iter().map(|stored| stored.visible).min().unwrap_or(Instant::FAR_FUTURE);
        if taken.is_empty() { Err(next()) } else { Ok(taken) }
    }

    fn extend_to(&self, receipt: &Receipt, visibility: Duration, begun: Option<bool>) -> Result<(), QueueError> {
        check_visibility(visibility)?;
        let mut lists = self.lists();
        let held = |stored: &&mut Stored| receipt.as_numbers() == Some((stored.number, stored.receipt));
        let stored = lists[self.list].iter_mut().find(held).ok_or(QueueError::LeaseLost)?;
        stored.visible = self.clock.now() + visibility;
        stored.begun = begun.unwrap_or(stored.begun);
        self.changed.notify_waiters();
        Ok(())
    }

    fn settle_one(&self, receipt: &Receipt, how: Settle) -> Result<(), QueueError> {
        let (mut lists, now) = (self.lists(), self.clock.now());
        let held = |stored: &Stored| receipt.as_numbers() == Some((stored.number, stored.receipt));
        let at = lists[self.list].iter().position(held).ok_or(QueueError::LeaseLost)?;
        let stored = &mut lists[self.list][at];
        stored.begun = false;
        let fails = |stored: &mut Stored, error: Option<Box<_>>| {
            let mut errors = stored.history();
            error.into_iter().for_each(|error| errors.push(*error));
            stored.errors = errors.encode();
        };
        match how {
            Settle::Complete => drop(lists[self.list].remove(at)),
            Settle::Abandon { after, error } => {
                fails(stored, error);
                let begun = stored.crashes + u32::from(stored.crashes > 0);
                stored.attempts -= stored.expiries.saturating_sub(begun);
                (stored.attempts, stored.expiries, stored.crashes) = (stored.attempts + 1, 0, 0);
                (stored.receipt, stored.visible) = (0, now + after);
            }
            Settle::Release { after } => (stored.receipt, stored.visible) = (0, now + after),
            Settle::DeadLetter { .. } if self.list == 1 => return Err(unsupported().into()),
            Settle::DeadLetter { reason, error } => {
                fails(stored, error);
                let mut dead = lists[0].remove(at);
                (dead.receipt, dead.visible, dead.reason) = (0, now, Some(reason));
                lists[1].push(dead);
            }
            _ => return Err(unsupported().into()),
        }
        Ok(())
    }
}

impl Queue for ForeignQueue {
    fn capabilities(&self) -> Capabilities {
        CAN_QUEUE
    }

    fn identity(&self) -> String {
        format!("foreign-{}-{}", self.name, self.list)
    }

    fn address(&self) -> Option<Address> {
        None
    }

    fn send<'a>(&'a self, messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        Box::pin(async move {
            Message::check(&messages, &CAN_QUEUE)?;
            let stored = |message| Stored {
                number: self.next_number(),
                message,
                sent_at: self.clock.wall(),
                accepted: self.clock.now(),
                deliveries: 0,
                attempts: 0,
                expiries: 0,
                crashes: 0,
                begun: false,
                receipt: 0,
                visible: self.clock.now(),
                reason: None,
                errors: None,
            };
            let stored: Vec<_> = messages.into_iter().map(stored).collect();
            let ids = stored.iter().map(Stored::id).collect();
            self.lists()[self.list].extend(stored);
            self.changed.notify_waiters();
            Ok(ids)
        })
    }

    fn receive<'a>(&'a self, receive: Receive) -> QueueFuture<'a, Vec<Delivery>> {
        Box::pin(async move {
            let max = receive.check(&CAN_QUEUE)?;
            let end = self.clock.now() + receive.wait;
            loop {
                // Registered before the look, so that no change between the two is missed.
                let mut changed = pin!(self.changed.notified());
                changed.as_mut().enable();
                let next = match self.take(max, receive.visibility) {
                    Ok(taken) => return Ok(taken),
                    Err(_) if self.clock.now() >= end => return Ok(Vec::new()),
                    Err(next) => next,
                };
                tokio::select! {
                    () = changed => {}
                    () = self.clock.sleep_until(next.min(end)) => {}
                }
            }
        })
    }

    fn settle<'a>(&'a self, settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>> {
        Box::pin(async move {
            let settled = settlements.into_iter().map(|(receipt, how)| self.settle_one(&receipt, how)).collect();
            self.changed.notify_waiters();
            Ok(settled)
        })
    }

    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> QueueFuture<'a, ()> {
        Box::pin(async move { self.extend_to(receipt, visibility, None) })
    }

    fn mark_begun<'a>(&'a self, receipt: &'a Receipt, visibility: Duration, begun: bool) -> QueueFuture<'a, ()> {
        Box::pin(async move { self.extend_to(receipt, visibility, Some(begun)) })
    }

    fn depth(&self) -> QueueFuture<'_, Depth> {
        Box::pin(async move {
            let (lists, now) = (self.lists(), self.clock.now());
            let (visible, hidden): (Vec<_>, Vec<_>) = lists[self.list].iter().partition(|m| m.visible <= now);
            let in_flight = hidden.iter().filter(|stored| stored.deliveries > 0).count() as u64;
            Ok(Depth::new(visible.len() as u64, hidden.len() as u64 - in_flight, in_flight))
        })
    }

    fn peek(&self, max: usize) -> QueueFuture<'_, Vec<Peeked>> {
        Box::pin(async move {
            let now = self.clock.now();
            let first = self.lists()[self.list].clone().into_iter().take(max.min(CAN_QUEUE.max_batch()));
            Ok(first.map(|stored| stored.peeked(now)).collect())
        })
    }

    fn purge(&self) -> QueueFuture<'_, u64> {
        Box::pin(async move { Ok(self.lists()[self.list].drain(..).count() as u64) })
    }

    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        (self.list == 0).then(|| Arc::new(Self { list: 1, ..self.clone() }) as Arc<dyn Queue>)
    }
}

#[derive(Debug, Clone)]
struct Grant {
    holder: String,
    token: FencingToken,
    term: Duration,
    ends: Instant,
    release_requested: bool,
}

impl Grant {
    fn held(&self, now: Instant) -> Option<Held> {
        (now < self.ends).then(|| Held::new(self.holder.clone(), self.token, self.term, self.ends - now))
    }
}

/// Grants by name, and the last token.
#[derive(Debug)]
struct ForeignLease(Mutex<(HashMap<String, Grant>, u64)>, Clock);

impl ForeignLease {
    /// Changes the grant of this holder and token, if its term is not over.
    fn with<T>(
        &self,
        (name, holder, token): (&str, &str, FencingToken),
        change: impl FnOnce(&mut Grant, Instant) -> T,
    ) -> Result<T, LeaseError> {
        let (mut state, now) = (self.0.lock().unwrap(), self.1.now());
        let grant = state.0.get_mut(name);
        let grant = grant.filter(|grant| grant.holder == holder && grant.token == token && now < grant.ends);
        grant.map(|grant| change(grant, now)).ok_or(LeaseError::NotHeld)
    }

    fn held(&self, name: &str) -> Option<Held> {
        let (state, now) = (self.0.lock().unwrap(), self.1.now());
        state.0.get(name)?.held(now)
    }
}

impl Lease for ForeignLease {
    fn capabilities(&self) -> Capabilities {
        CAN_LEASE
    }

    fn acquire<'a>(&'a self, name: &'a str, holder: &'a str, term: Duration) -> LeaseFuture<'a, Acquired> {
        Box::pin(async move {
            check_grant(name, holder, term, &CAN_LEASE)?;
            // Under one lock, so that no other holder is granted the name between the look and the grant.
            let (mut state, now) = (self.0.lock().unwrap(), self.1.now());
            let other = state.0.get(name).and_then(|grant| grant.held(now)).filter(|held| held.holder != holder);
            if let Some(held) = other {
                return Ok(Acquired::Held(held));
            }
            state.1 += 1;
            let (token, ends) = (FencingToken::new(state.1), now + term);
            let grant = Grant { holder: holder.to_owned(), token, term, ends, release_requested: false };
            state.0.insert(name.to_owned(), grant);
            Ok(Acquired::Granted(token))
        })
    }

    fn renew<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
        term: Duration,
    ) -> LeaseFuture<'a, Renewed> {
        Box::pin(async move {
            check_grant(name, holder, term, &CAN_LEASE)?;
            self.with((name, holder, token), |grant, now| {
                (grant.ends, grant.term) = (now + term, term);
                Renewed::new(grant.release_requested)
            })
        })
    }

    fn release<'a>(&'a self, name: &'a str, holder: &'a str, token: FencingToken) -> LeaseFuture<'a, ()> {
        Box::pin(async move {
            check_holder(name, holder, &CAN_LEASE)?;
            self.with((name, holder, token), |grant, now| grant.ends = now)
        })
    }

    fn read<'a>(&'a self, name: &'a str) -> LeaseFuture<'a, Option<Held>> {
        Box::pin(async move {
            CAN_LEASE.check_key("name", name)?;
            Ok(self.held(name))
        })
    }

    fn request_release<'a>(&'a self, name: &'a str, token: FencingToken) -> LeaseFuture<'a, ()> {
        Box::pin(async move {
            CAN_LEASE.check_key("name", name)?;
            let holder = self.held(name).map(|held| held.holder).unwrap_or_default();
            // A request for a grant that ended has no effect.
            let _ = self.with((name, &holder, token), |grant, _| grant.release_requested = true);
            Ok(())
        })
    }
}

#[derive(Debug, Clone, Default)]
struct ForeignNotifier(Arc<Mutex<HashMap<String, broadcast::Sender<Bytes>>>>);

impl ForeignNotifier {
    fn topic(&self, topic: &str) -> broadcast::Sender<Bytes> {
        self.0.lock().unwrap().entry(topic.to_owned()).or_insert_with(|| broadcast::Sender::new(4096)).clone()
    }
}

impl Notifier for ForeignNotifier {
    fn capabilities(&self) -> Capabilities {
        CAN_NOTIFY
    }

    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> PortFuture<'a, ()> {
        Box::pin(async move {
            check_notice(topic, &notice, &CAN_NOTIFY)?;
            // It fails without subscribers.
            let _ = self.topic(topic).send(notice);
            Ok(())
        })
    }

    fn subscribe<'a>(&'a self, topic: &'a str) -> PortFuture<'a, Notices> {
        Box::pin(async move {
            CAN_NOTIFY.check_key("topic", topic)?;
            let topic = self.topic(topic);
            Ok(Notices::new(Subscription(topic.subscribe(), topic)))
        })
    }
}

/// The second field keeps the topic.
struct Subscription(broadcast::Receiver<Bytes>, #[expect(dead_code, reason = "kept")] broadcast::Sender<Bytes>);

impl NoticeSource for Subscription {
    fn recv(&mut self) -> BoxFuture<'_, Notice> {
        Box::pin(async { self.0.recv().await.map_or(Notice::Gap, Notice::Message) })
    }
}

mod store {
    use super::*;

    steadfast::store_conformance!(async || {
        let (_, time) = Clock::manual();
        Fixture::new(Arc::new(ForeignStore::default()) as Arc<dyn Store>).on_manual_time(&time)
    });
}

mod queue {
    use super::*;

    steadfast::queue_conformance!(async || {
        let (clock, time) = Clock::manual();
        Fixture::new(Arc::new(ForeignQueue::new(&clock)) as Arc<dyn Queue>).on_manual_time(&time)
    });
}

mod lease {
    use super::*;

    steadfast::lease_conformance!(async || {
        let (clock, time) = Clock::manual();
        Fixture::new(Arc::new(ForeignLease(Mutex::default(), clock)) as Arc<dyn Lease>).on_manual_time(&time)
    });
}

mod notify {
    use super::*;

    steadfast::notifier_conformance!(async || {
        let (_, time) = Clock::manual();
        Fixture::new(Arc::new(ForeignNotifier::default()) as Arc<dyn Notifier>).on_manual_time(&time)
    });
}

/// Returns the texts of these refusals.
fn texts(refused: impl IntoIterator<Item = Result<(), PortError>>) -> Vec<String> {
    refused
        .into_iter()
        .map(|refused| {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), PortErrorKind::Invalid);
            error.to_string()
        })
        .collect()
}

#[test]
fn the_checks_for_backends_name_the_field_and_the_rule() {
    let can = Capabilities::of("foreign", &[]).largest_key(3).largest_value(2);
    let term = Duration::from_secs(1);
    let keys = [can.check_key("topic", ""), can.check_key("topic", "long")];
    let rules = ["invalid `topic`: must not be empty", "invalid `topic`: must be at most 3 bytes, is 4"];
    assert_eq!(texts(keys), rules);
    assert_eq!(texts([can.check_value("value", b"abc")]), ["invalid `value`: must be at most 2 bytes, is 3"]);
    assert_eq!(texts([check_notice("", b"", &can)]), rules[..1]);
    assert_eq!(texts([check_notice("t", b"abc", &can)]), ["invalid `notice`: must be at most 2 bytes, is 3"]);
    assert_eq!(texts([check_visibility(Duration::ZERO)]), ["invalid `visibility`: must be longer than zero"]);
    let grants = [
        check_grant("", "me", term, &can),
        check_grant("job", "", term, &can),
        check_grant("job", "me", Duration::ZERO, &can),
    ];
    let rules = ["name`: must not be empty", "holder`: must not be empty", "term`: must be longer than zero"];
    assert_eq!(texts(grants), rules.map(|rule| format!("invalid `{rule}")));
    // At their limits all pass.
    can.check_key("topic", "abc").unwrap();
    can.check_value("value", b"ab").unwrap();
    check_notice("abc", b"ab", &can).unwrap();
    check_visibility(Duration::from_nanos(1)).unwrap();
    check_grant("abc", "abc", Duration::from_nanos(1), &can).unwrap();
}
