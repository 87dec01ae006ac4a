//! The store and the queue in memory, compared with naive models.
use std::time::Duration;

use proptest::prelude::*;
use steadfast::{
    port::FencingToken,
    queue::{Address, Delivery, InMemoryQueue, Message, Queue, QueueError, QueueExt, Receive},
    store::{DeleteOptions, InMemoryStore, Key, Precondition, PutOptions, Scan, Store, StoreError, StoreExt, Version},
    time::{Clock, Instant},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const ROWS: [&str; 3] = ["a", "b", "c"];

#[derive(Debug, Clone)]
enum StoreOp {
    Put { row: usize, when: When, ttl: Option<u64>, fence: Option<u64> },
    Delete { row: usize, when: When, fence: Option<u64> },
    Get { row: usize },
    Scan,
    Pass(u64),
}

/// The precondition of a write. A version is that of an earlier write, counted back from the
/// newest.
#[derive(Debug, Clone, Copy)]
enum When {
    Any,
    Absent,
    Ago(usize),
}

fn store_op() -> impl Strategy<Value = StoreOp> {
    let when = prop_oneof![2 => Just(When::Any), 1 => Just(When::Absent), 3 => (0usize..3).prop_map(When::Ago)];
    let (row, fence) = (0..ROWS.len(), proptest::option::weighted(0.3, 0u64..6));
    let put = (row.clone(), when.clone(), proptest::option::weighted(0.3, 1u64..50), fence.clone());
    prop_oneof![
        5 => put.prop_map(|(row, when, ttl, fence)| StoreOp::Put { row, when, ttl, fence }),
        2 => (row.clone(), when, fence).prop_map(|(row, when, fence)| StoreOp::Delete { row, when, fence }),
        2 => row.prop_map(|row| StoreOp::Get { row }),
        1 => Just(StoreOp::Scan),
        2 => (1u64..40).prop_map(StoreOp::Pass),
    ]
}

/// A model of one row with its whole history.
#[derive(Default, Clone)]
struct Row {
    live: Option<(String, Version, Option<Instant>)>,
    versions: Vec<Version>,
    fence: u64,
}

impl Row {
    fn current(&self, now: Instant) -> Option<(String, Version)> {
        let (value, version, ends) = self.live.clone()?;
        ends.is_none_or(|ends| now < ends).then_some((value, version))
    }

    fn precondition(&self, when: When) -> Precondition {
        match when {
            When::Any => Precondition::Any,
            When::Absent => Precondition::Absent,
            When::Ago(n) => {
                let version = self.versions.iter().rev().nth(n).copied();
                Precondition::Version(version.unwrap_or(Version::new(9999)))
            }
        }
    }

    /// Returns the expected refusal as text.
    fn refusal(&self, when: Precondition, fence: Option<u64>, now: Instant) -> Option<String> {
        let current = self.current(now).map(|(_, version)| version);
        let holds = match when {
            Precondition::Any => true,
            Precondition::Absent => current.is_none(),
            Precondition::Version(version) => current == Some(version),
            _ => unreachable!(),
        };
        if fence.is_some_and(|token| token < self.fence) {
            Some(format!("fenced by {}", self.fence))
        } else {
            (!holds).then(|| format!("conflict with {current:?}"))
        }
    }
}

fn words(error: StoreError) -> String {
    match error {
        StoreError::Conflict { write: 0, current } => format!("conflict with {current:?}"),
        StoreError::Fenced { write: 0, highest } => format!("fenced by {highest}"),
        other => other.to_string(),
    }
}

proptest! {
    #[test]
    fn the_store_equals_its_model(ops in proptest::collection::vec(store_op(), 1..80)) {
        let (clock, time) = Clock::manual();
        let store = InMemoryStore::builder().clock(&clock).build();
        let mut model: [Row; 3] = Default::default();
        for (i, op) in ops.into_iter().enumerate() {
            let now = clock.now();
            match op {
                StoreOp::Put { row, when, ttl, fence } => {
                    let (name, row) = (ROWS[row], &mut model[row]);
                    let when = row.precondition(when);
                    let mut options = PutOptions::new().when(when);
                    (options.ttl, options.fence) = (ttl.map(MS), fence.map(FencingToken::new));
                    let put = time.block_on(store.put(Key::new("p", name), i.to_string().into(), options));
                    match row.refusal(when, fence, now) {
                        Some(refusal) => prop_assert_eq!(put.map_err(words), Err(refusal)),
                        None => {
                            let version = put.unwrap();
                            prop_assert!(row.versions.iter().all(|before| *before < version));
                            row.versions.push(version);
                            row.live = Some((i.to_string(), version, ttl.map(|ttl| now + MS(ttl))));
                            row.fence = row.fence.max(fence.unwrap_or(0));
                        }
                    }
                }
                StoreOp::Delete { row, when, fence } => {
                    let (name, row) = (ROWS[row], &mut model[row]);
                    let when = match row.precondition(when) {
                        Precondition::Absent => Precondition::Any,
                        when => when,
                    };
                    let mut options = DeleteOptions::new().when(when);
                    options.fence = fence.map(FencingToken::new);
                    let deleted = time.block_on(store.delete(Key::new("p", name), options)).map_err(words);
                    let expected = match row.refusal(when, fence, now) {
                        Some(refusal) => Err(refusal),
                        None => {
                            row.fence = row.fence.max(fence.unwrap_or(0));
                            let was = row.current(now).is_some();
                            row.live = None;
                            Ok(was)
                        }
                    };
                    prop_assert_eq!(deleted, expected);
                }
                StoreOp::Get { row } => {
                    let got = time.block_on(store.get(Key::new("p", ROWS[row]))).unwrap();
                    let got = got.map(|r| (String::from_utf8(r.value.to_vec()).unwrap(), r.version));
                    prop_assert_eq!(got, model[row].current(now));
                }
                StoreOp::Scan => {
                    let rows = time.block_on(store.scan_all(Scan::partition("p").limit(2))).unwrap();
                    let rows: Vec<_> = rows.into_iter().map(|r| (r.row, r.version)).collect();
                    let live = |(name, row): (&&str, &Row)| Some(((*name).to_owned(), row.current(now)?.1));
                    prop_assert_eq!(rows, ROWS.iter().zip(&model).filter_map(live).collect::<Vec<_>>());
                }
                StoreOp::Pass(ms) => time.advance(MS(ms)),
            }
        }
    }
}

#[derive(Debug, Clone)]
enum QueueOp {
    Send {
        group: Option<u8>,
        delay: u64,
        id: Option<u8>,
    },
    Receive {
        max: usize,
        visibility: u64,
    },
    /// With one of the receipts that were issued so far.
    Complete(usize),
    Abandon(usize, u64),
    Release(usize, u64),
    Extend(usize, u64),
    DeadLetter(usize),
    /// Messages to the queue itself, or to a bounded one, with de-duplication ids.
    Forward(usize, Vec<(Target, Option<u8>)>),
    /// Empties the bounded queue.
    Drain,
    Pass(u64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Target {
    Itself,
    Bounded,
    Foreign,
}

/// Room of the bounded target.
const ROOM: usize = 3;

fn queue_op() -> impl Strategy<Value = QueueOp> {
    let group = proptest::option::weighted(0.6, 0u8..2);
    let delay = prop_oneof![3 => Just(0u64), 1 => 1u64..30];
    let id = proptest::option::weighted(0.2, 0u8..3);
    let receipt = 0usize..12;
    let target = prop_oneof![8 => Just(Target::Itself), 8 => Just(Target::Bounded), 1 => Just(Target::Foreign)];
    let forwarded = (target, proptest::option::weighted(0.4, 0u8..3));
    prop_oneof![
        4 => (group, delay, id).prop_map(|(group, delay, id)| QueueOp::Send { group, delay, id }),
        4 => (1usize..4, 1u64..30).prop_map(|(max, visibility)| QueueOp::Receive { max, visibility }),
        2 => receipt.clone().prop_map(QueueOp::Complete),
        1 => (receipt.clone(), 0u64..20).prop_map(|(r, after)| QueueOp::Abandon(r, after)),
        1 => (receipt.clone(), 0u64..20).prop_map(|(r, after)| QueueOp::Release(r, after)),
        1 => (receipt.clone(), 1u64..30).prop_map(|(r, visibility)| QueueOp::Extend(r, visibility)),
        1 => receipt.clone().prop_map(QueueOp::DeadLetter),
        2 => (receipt, proptest::collection::vec(forwarded, 0..4)).prop_map(|(r, messages)| QueueOp::Forward(r, messages)),
        1 => Just(QueueOp::Drain),
        2 => (1u64..25).prop_map(QueueOp::Pass),
    ]
}

/// A message of the model, in the order of sending.
#[derive(Clone)]
struct Sent {
    body: String,
    group: Option<u8>,
    visible_at: Instant,
    /// Deliveries, attempts and expiries.
    counts: (u32, u32, u32),
    /// The number of the receipt that may settle the message.
    receipt: Option<usize>,
    accepted: Instant,
}

/// De-duplication ids of the model, with the ends of their windows.
#[derive(Default, Clone)]
struct Known(Vec<(u8, Instant)>);

impl Known {
    /// Returns `true` if the message with this id is accepted now.
    fn admits(&mut self, id: Option<u8>, now: Instant, window: Duration) -> bool {
        self.0.retain(|(_, end)| now < *end);
        let is_new = id.is_none_or(|id| self.0.iter().all(|(known, _)| *known != id));
        if is_new {
            self.0.extend(id.map(|id| (id, now + window)));
        }
        is_new
    }
}

proptest! {
    // Guarantee: queue 12, 13.
    #[test]
    fn the_queue_equals_its_model(ops in proptest::collection::vec(queue_op(), 1..100)) {
        let (clock, time) = Clock::manual();
        let window = MS(60);
        let queue = InMemoryQueue::builder("jobs").deduplicating_for(window).clock(&clock).build();
        let dead = queue.dead_letters().unwrap();
        let mut model: Vec<Sent> = Vec::new();
        let bounded = InMemoryQueue::builder("bounded").bounded(ROOM).deduplicating_for(window).clock(&clock).build();
        let (mut sent, mut sent_to_bounded, mut in_bounded) = (Known::default(), Known::default(), 0);
        let mut receipts: Vec<Delivery> = Vec::new();
        let mut dead_letters = 0;
        for (i, op) in ops.into_iter().enumerate() {
            let now = clock.now();
            // One of the last twelve, counted from the newest.
            let pick = |n: usize, all: &Vec<Delivery>| all.len().checked_sub(n + 1);
            let holder = |number: usize, model: &Vec<Sent>| model.iter().position(|m| m.receipt == Some(number));
            match op {
                QueueOp::Send { group, delay, id } => {
                    let mut message = Message::new(i.to_string()).delay(MS(delay));
                    message.group = group.map(|g| g.to_string());
                    message.deduplication_id = id.map(|id| id.to_string());
                    time.block_on(queue.send_one(message)).unwrap();
                    if sent.admits(id, now, window) {
                        model.push(Sent {
                            body: i.to_string(), group, visible_at: now + MS(delay), counts: (0, 0, 0), receipt: None, accepted: now,
                        });
                    }
                }
                QueueOp::Receive { max, visibility } => {
                    let taken = time.block_on(queue.receive(Receive::new(max, MS(visibility)))).unwrap();
                    let mut expected = Vec::new();
                    for at in 0..model.len() {
                        let behind = model[at].group.is_some() && model[..at].iter().any(|m| m.group == model[at].group);
                        if expected.len() < max && !behind && model[at].visible_at <= now {
                            let number = receipts.len() + expected.len();
                            let message = &mut model[at];
                            let expired = u32::from(message.receipt.is_some());
                            let (deliveries, attempts, expiries) = message.counts;
                            message.counts = (deliveries + 1, attempts + expired, expiries + expired);
                            (message.visible_at, message.receipt) = (now + MS(visibility), Some(number));
                            expected.push((message.body.clone(), message.counts, now - message.accepted));
                        }
                    }
                    let bodies = taken.iter().map(|d| {
                        (String::from_utf8(d.body.to_vec()).unwrap(), (d.deliveries, d.attempts, d.expiries), d.age)
                    });
                    prop_assert_eq!(bodies.collect::<Vec<_>>(), expected);
                    receipts.extend(taken);
                }
                QueueOp::Complete(n) => {
                    let Some(number) = pick(n, &receipts) else { continue };
                    let done = time.block_on(queue.complete(&receipts[number].receipt));
                    let at = holder(number, &model);
                    prop_assert_eq!(done.is_ok(), at.is_some());
                    at.map(|at| model.remove(at));
                }
                QueueOp::DeadLetter(n) => {
                    let Some(number) = pick(n, &receipts) else { continue };
                    let done = time.block_on(queue.dead_letter(&receipts[number].receipt, "no"));
                    let at = holder(number, &model);
                    prop_assert_eq!(done.is_ok(), at.is_some());
                    dead_letters += u64::from(at.map(|at| model.remove(at)).is_some());
                }
                QueueOp::Abandon(n, after) => {
                    let Some(number) = pick(n, &receipts) else { continue };
                    let done = time.block_on(queue.abandon(&receipts[number].receipt, MS(after)));
                    let at = holder(number, &model);
                    prop_assert_eq!(done.is_ok(), at.is_some());
                    if let Some(at) = at {
                        (model[at].visible_at, model[at].receipt) = (now + MS(after), None);
                        let (deliveries, attempts, expiries) = model[at].counts;
                        model[at].counts = (deliveries, attempts - expiries + 1, 0);
                    }
                }
                QueueOp::Release(n, after) => {
                    let Some(number) = pick(n, &receipts) else { continue };
                    let done = time.block_on(queue.release(&receipts[number].receipt, MS(after)));
                    let at = holder(number, &model);
                    prop_assert_eq!(done.is_ok(), at.is_some());
                    if let Some(at) = at {
                        (model[at].visible_at, model[at].receipt) = (now + MS(after), None);
                    }
                }
                QueueOp::Extend(n, visibility) => {
                    let Some(number) = pick(n, &receipts) else { continue };
                    let done = time.block_on(queue.extend(&receipts[number].receipt, MS(visibility)));
                    let at = holder(number, &model);
                    prop_assert_eq!(done.is_ok(), at.is_some());
                    if let Some(at) = at {
                        model[at].visible_at = now + MS(visibility);
                    }
                }
                QueueOp::Forward(n, messages) => {
                    let Some(number) = pick(n, &receipts) else { continue };
                    let (own, other) = (queue.address().unwrap(), bounded.address().unwrap());
                    let forwarded = messages.iter().enumerate().map(|(k, (target, id))| {
                        let mut message = Message::new(format!("{i}.{k}"));
                        message.deduplication_id = id.map(|id| id.to_string());
                        let address = match target {
                            Target::Itself => own.clone(),
                            Target::Bounded => other.clone(),
                            Target::Foreign => Address::new("foreign"),
                        };
                        (address, message)
                    });
                    let done = time.block_on(queue.forward(&receipts[number].receipt, forwarded));
                    let at = holder(number, &model);
                    let (mut known, mut known_to_bounded) = (sent.clone(), sent_to_bounded.clone());
                    let (mut for_itself, mut for_bounded) = (Vec::new(), 0);
                    for (k, (target, id)) in messages.iter().enumerate() {
                        match target {
                            Target::Itself if known.admits(*id, now, window) => for_itself.push(format!("{i}.{k}")),
                            Target::Bounded if known_to_bounded.admits(*id, now, window) => for_bounded += 1,
                            _ => {}
                        }
                    }
                    let kind = match &done {
                        Ok(()) => "done",
                        Err(QueueError::LeaseLost) => "lost",
                        Err(error) if error.to_string().contains("full") => "full",
                        Err(error) if error.to_string().contains("must be at most") => "too many",
                        Err(_) => "foreign",
                    };
                    let expected = match at {
                        _ if messages.iter().any(|(target, _)| *target == Target::Foreign) => "foreign",
                        None => "lost",
                        Some(_) if for_bounded > ROOM => "too many",
                        Some(_) if in_bounded + for_bounded > ROOM => "full",
                        Some(at) => {
                            model.remove(at);
                            model.extend(for_itself.into_iter().map(|body| Sent {
                                body, group: None, visible_at: now, counts: (0, 0, 0), receipt: None, accepted: now,
                            }));
                            (sent, sent_to_bounded) = (known, known_to_bounded);
                            in_bounded += for_bounded;
                            "done"
                        }
                    };
                    prop_assert_eq!(kind, expected);
                }
                QueueOp::Drain => {
                    prop_assert_eq!(time.block_on(bounded.purge()).unwrap(), in_bounded as u64);
                    in_bounded = 0;
                }
                QueueOp::Pass(ms) => time.advance(MS(ms)),
            }
            prop_assert_eq!(time.block_on(bounded.depth()).unwrap().total(), in_bounded as u64);
            prop_assert_eq!(time.block_on(queue.depth()).unwrap().total(), model.len() as u64);
            prop_assert_eq!(time.block_on(dead.depth()).unwrap().total(), dead_letters);
        }
    }
}
