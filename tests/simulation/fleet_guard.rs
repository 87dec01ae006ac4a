//! Members of a fleet that lose a dependency, together or alone, crash, stall, stop, leave for good and come, or are cut
//! off, with clocks that run at different rates.
//!
//! Never do more members count as ejected than the slots of a fleet of all that lived, or whose rows were there, within the
//! time of grace.
//! After all faults have ended, as many have left as there are slots, and all return when the dependency is back.
use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures::FutureExt as _;
use steadfast::{
    entropy::Entropy,
    health::{Check, Group, GroupReason, Health, HealthConfig},
    store::{DeleteOptions, InMemoryStore, Key, Page, PutOptions, Scan, Store, StoreFuture, Version},
    testing::faults::{FaultClient, FaultConfig, FaultNetwork, for_each_seed},
    time::{Clock, Instant, ManualClock},
};
use tokio::sync::Notify;

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;
const MEMBERS: usize = 6;
const SLOTS: usize = 3;
/// Time after which a smaller fleet has fewer slots for certain: a slot is renewed by rows that were read at most 3 s before, and
/// counts for 25 s of a clock that drifts.
const GRACE: Duration = Duration::from_secs(30);
/// Maximum drift of a clock.
const DRIFT: f64 = 0.02;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Mechanism that is removed, to check that violations are found.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// A member counts the slots that are taken and adds its own, instead of inserting one that must be absent.
    Slots,
    /// Rows live for ten seconds, and a member counts on its own for more than that.
    Lives,
}

/// The store with rows that live for a shorter time than was asked for.
#[derive(Debug)]
struct ShortLives(Arc<dyn Store>);

impl Store for ShortLives {
    forward_store! { 0: capabilities, get, delete, batch, scan }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        self.0.put(key, value, options.ttl(S(10)))
    }
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
    /// `None` once it has ended.
    task: Option<Task>,
    stop: Arc<Notify>,
    is_broken: Arc<AtomicBool>,
    /// Number of steps for which the process stands still.
    stalled: u64,
}

struct World {
    time: ManualClock,
    entropy: Entropy,
    network: FaultNetwork,
    store: Arc<dyn Store>,
    members: Vec<Member>,
    without: Without,
    /// The last time at which each member lived or its row was there: a late write of one that has died makes it a member again.
    seen_at: [Instant; MEMBERS],
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
            members: Vec::new(),
            without,
            seen_at: [Instant::default(); MEMBERS],
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
            Without::Lives => Arc::new(ShortLives(store)) as Arc<dyn Store>,
            Without::Nothing => store,
        };
        let is_broken = Arc::new(AtomicBool::new(false));
        let broken = is_broken.clone();
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
        let (runs, stop) = (health.clone(), Arc::new(Notify::new()));
        let stopped = stop.clone();
        let task: Task = Box::pin(async move {
            let shutdown = async {
                stopped.notified().await;
                runs.stopping().await;
            };
            runs.run(shutdown).await;
        });
        Member { client, health, task: Some(task), stop, is_broken, stalled: 0 }
    }

    fn disturb(&mut self) {
        let i = self.entropy.up_to(MEMBERS as u64 - 1) as usize;
        match self.entropy.up_to(199) {
            0..=2 => self.breaks(true),
            3 => self.breaks(false),
            4 => self.members[i].is_broken.store(true, SeqCst),
            5..=6 => self.members[i] = self.start(i),
            30 => self.members[i].task = None,
            31 => self.members[i].stop.notify_one(),
            32 => {
                // One that has left for good comes back.
                let gone = self.members.iter().position(|member| member.task.is_none());
                if let Some(i) = gone {
                    self.members[i] = self.start(i);
                }
            }
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
                member.task.take_if(|task| task.as_mut().poll(&mut cx) == Poll::Ready(()));
            }
        }
    }

    fn ejected(&self) -> usize {
        let is_ejected =
            |member: &&Member| member.health.last_report(&Group::Readiness).reason == Some(GroupReason::Ejected);
        self.members.iter().filter(|member| member.task.is_some()).filter(is_ejected).count()
    }

    fn breaks(&self, is_broken: bool) {
        self.members.iter().for_each(|member| member.is_broken.store(is_broken, SeqCst));
    }

    /// Returns the slots of a fleet of all that lived, or whose rows were there, within the time of grace.
    fn slots(&mut self) -> usize {
        let now = self.time.now();
        let rows = self.store.scan(&Scan::partition("health shop")).now_or_never().unwrap().unwrap().rows;
        for (i, seen) in self.seen_at.iter_mut().enumerate() {
            if self.members[i].task.is_some() || rows.iter().any(|row| row.row == format!("member member-{i}")) {
                *seen = now;
            }
        }
        self.seen_at.iter().filter(|at| now - **at <= GRACE).count() / 2
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
            let slots = self.slots();
            if ejected > slots {
                self.violation = Some(format!("{ejected} members left, with {slots} slots"));
            }
        }
    }

    fn run(mut self) -> (Option<String>, u64) {
        self.pass(S(240), true);
        for i in 0..MEMBERS {
            if self.members[i].task.is_none() || self.entropy.unit() < 0.2 {
                self.members[i] = self.start(i);
            }
        }
        for member in &mut self.members {
            member.stalled = 0;
            member.client.heal();
            member.client.resume();
        }
        self.network.configure(FaultConfig::default()).unwrap();
        // A member that was never ready has no part in this.
        self.breaks(false);
        // Those that were stopping end, and others come in their place.
        self.pass(S(40), false);
        for i in 0..MEMBERS {
            if self.members[i].task.is_none() {
                self.members[i] = self.start(i);
            }
        }
        self.pass(S(40), false);
        self.breaks(true);
        self.pass(S(70), false);
        if self.violation.is_none() && self.ejected() != SLOTS {
            self.violation = Some(format!("{} members left after all faults, with {SLOTS} slots", self.ejected()));
        }
        self.breaks(false);
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
    super::assert_met(ejections > seeds / 2, ejections);
}

#[test]
fn a_fleet_without_one_of_its_guards_is_missed() {
    for without in [Without::Slots, Without::Lives] {
        super::assert_missed(without, super::controls(40, 500), |seed| World::new(seed, without).run().0);
    }
}
