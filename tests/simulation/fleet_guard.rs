//! Members of a fleet that lose a dependency, crash, stall, or are cut off, with clocks that run at different rates.
//!
//! Never do more members count as ejected than the slots of the largest fleet that there may have been. After all faults
//! have ended, as many have left as there are slots, and all return when the dependency is back.
use std::{
    collections::BTreeMap,
    future::{Future, pending},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    entropy::Entropy,
    health::{Check, Group, GroupReason, Health, HealthConfig},
    store::{DeleteOptions, InMemoryStore, Key, Page, PutOptions, Scan, Store, StoreFuture, Version},
    testing::faults::{FaultClient, FaultConfig, FaultNetwork, for_each_seed},
    time::{Clock, Instant, ManualClock},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;
const MEMBERS: usize = 6;
const SLOTS: usize = 3;
/// Maximum drift of a clock.
const DRIFT: f64 = 0.02;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Mechanism that is removed, to check that violations are found.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// A member counts the slots that are taken and adds its own, instead of inserting one that must be absent.
    Slots,
}

/// The store without the slots' rows: each member has rows of its own.
#[derive(Debug)]
struct MereCount {
    store: Arc<dyn Store>,
    /// The name that a member gives the row of a slot.
    member: usize,
    names: Mutex<BTreeMap<String, String>>,
}

impl MereCount {
    fn row(&self, row: &str) -> String {
        if !row.starts_with("slot ") {
            return row.to_owned();
        }
        let mut names = self.names.lock().unwrap();
        names.entry(row.to_owned()).or_insert_with(|| format!("{row} of {}", self.member)).clone()
    }
}

impl Store for MereCount {
    forward_store! { store: capabilities, get, batch }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move { self.store.put(Key::new(key.partition, &self.row(key.row)), value, options).await })
    }
    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool> {
        Box::pin(async move { self.store.delete(Key::new(key.partition, &self.row(key.row)), options).await })
    }
    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        self.store.scan(scan)
    }
}

struct Member {
    client: FaultClient,
    health: Health,
    task: Task,
    /// Number of steps for which the process stands still.
    stalled: u64,
}

struct World {
    time: ManualClock,
    entropy: Entropy,
    network: FaultNetwork,
    store: Arc<dyn Store>,
    is_broken: Arc<AtomicBool>,
    members: Vec<Member>,
    without: Without,
    ejections: u64,
    violation: Option<String>,
}

impl World {
    fn new(seed: u64, without: Without) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let trouble = entropy.unit() * 0.2;
        let faults = FaultConfig::default()
            .errors(trouble)
            .lost_replies(trouble)
            .doubled(trouble)
            .latency(Duration::ZERO, MS(entropy.up_to(900)));
        let network = FaultNetwork::new(faults, entropy.next_u64(), &clock).unwrap();
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        let mut world = Self {
            time,
            entropy,
            network,
            store,
            is_broken: Arc::default(),
            members: Vec::new(),
            without,
            ejections: 0,
            violation: None,
        };
        for i in 0..MEMBERS {
            let member = world.start(i);
            world.members.push(member);
        }
        world
    }

    fn start(&self, i: usize) -> Member {
        let client = self.network.client(&format!("member-{i}"));
        let rate = 1.0 + DRIFT * (2.0 * self.entropy.unit() - 1.0);
        let clock = self.time.clock_at_rate(rate);
        let store: Arc<dyn Store> = client.store(self.store.clone());
        let store = match self.without {
            Without::Slots => Arc::new(MereCount { store, member: i, names: Mutex::default() }) as Arc<dyn Store>,
            _ => store,
        };
        let broken = self.is_broken.clone();
        let check = Check::dependency("db", move || {
            let broken = broken.clone();
            async move { if broken.load(SeqCst) { Err("away") } else { Ok(()) } }
        });
        let config = HealthConfig::default().failure_threshold(1).success_threshold(1).cache_ttl(S(2));
        let health = Health::builder(config)
            .name("shop")
            .clock(&clock)
            .entropy(&Entropy::from_seed(self.entropy.next_u64()))
            .spawner(drop)
            .check(check.required())
            .fleet(store, format!("member-{i}"))
            .build()
            .unwrap();
        let runs = health.clone();
        Member { client, health, task: Box::pin(async move { runs.run(pending()).await }), stalled: 0 }
    }

    fn disturb(&mut self) {
        let i = self.entropy.up_to(MEMBERS as u64 - 1) as usize;
        match self.entropy.up_to(199) {
            0..=3 => self.is_broken.store(true, SeqCst),
            4 => self.is_broken.store(false, SeqCst),
            5..=6 => self.members[i] = self.start(i),
            7..=9 => self.members[i].stalled = self.entropy.up_to(150),
            10..=11 => self.members[i].client.cut(),
            12..=19 => self.members[i].client.heal(),
            20..=21 => self.members[i].client.pause(),
            22..=29 => self.members[i].client.resume(),
            _ => {}
        }
        for member in &mut self.members {
            member.stalled = member.stalled.saturating_sub(1);
        }
    }

    fn settle(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            for member in self.members.iter_mut().filter(|member| member.stalled == 0) {
                let _: Poll<()> = member.task.as_mut().poll(&mut cx);
            }
        }
    }

    fn ejected(&self) -> usize {
        let is_ejected =
            |member: &&Member| member.health.last_report(&Group::Readiness).reason == Some(GroupReason::Ejected);
        self.members.iter().filter(is_ejected).count()
    }

    /// Lets the time pass in steps, and looks after each.
    fn pass(&mut self, time: Duration, disturbs: bool) {
        let until: Instant = self.time.now() + time;
        while self.time.now() < until && self.violation.is_none() {
            if disturbs {
                self.disturb();
            }
            self.time.advance(MS(100 + self.entropy.up_to(400)));
            self.settle();
            let ejected = self.ejected();
            self.ejections = self.ejections.max(ejected as u64);
            if ejected > SLOTS {
                self.violation = Some(format!("{ejected} of {MEMBERS} members left, with {SLOTS} slots"));
            }
        }
    }

    fn run(mut self) -> (Option<String>, u64) {
        self.pass(S(120), true);
        for member in &mut self.members {
            member.stalled = 0;
            member.client.heal();
            member.client.resume();
        }
        self.network.configure(FaultConfig::default()).unwrap();
        // A member that was never ready has no part in this.
        self.is_broken.store(false, SeqCst);
        self.pass(S(20), false);
        self.is_broken.store(true, SeqCst);
        self.pass(S(70), false);
        if self.violation.is_none() && self.ejected() != SLOTS {
            self.violation = Some(format!("{} members left after all faults, with {SLOTS} slots", self.ejected()));
        }
        self.is_broken.store(false, SeqCst);
        self.pass(S(40), false);
        if self.violation.is_none() && self.ejected() != 0 {
            self.violation = Some(format!("{} members have not returned", self.ejected()));
        }
        (self.violation, self.ejections)
    }
}

// Guarantee: health 4.
#[test]
fn never_more_members_leave_than_there_are_slots() {
    let (seeds, mut ejections) = (super::schedules(40), 0);
    for_each_seed(0..seeds, |seed| {
        let (violation, ejected) = World::new(seed, Without::Nothing).run();
        ejections += u64::from(ejected > 0);
        assert_eq!(violation, None, "seed {seed}");
    });
    println!("{seeds} schedules, of which {ejections} had ejections");
    assert!(ejections > seeds / 2);
}

#[test]
fn a_fleet_without_one_of_its_guards_is_missed() {
    super::assert_missed(Without::Slots, super::controls(40, 500), |seed| World::new(seed, Without::Slots).run().0);
}
