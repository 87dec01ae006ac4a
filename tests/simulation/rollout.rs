//! Roll-outs under seeded schedules: a fleet whose processes die by a change or by chance, and are cut off or paused, and two
//! drivers whose requests are lost, doubled, come late, and who die.
//!
//! A change that ends its process is parsed by members of the first stage alone, by each of them twice at most. A stage lasts for
//! its time, none is left out, and no aborted number comes back. No reachable member keeps one. In the end each roll-out has
//! ended, and all members run the same number.
use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::FutureExt as _;
use steadfast::{
    config_store::{
        Change, ConfigPublisher, ConfigStore, ConfigStoreConfig, ConfigStoreEvent, Documents, PublisherConfig,
        RejectReason::Quarantined, Veto,
    },
    entropy::Entropy,
    observe::Event,
    reconfiguration::{Rollout, RolloutConfig, RolloutError},
    store::{InMemoryStore, PutOptions, Store},
    testing::faults::{FaultConfig, FaultNetwork, for_each_seed},
    time::{Clock, Instant, ManualClock},
};

use super::{
    rollout_parts::{AnyHead, Effect, HEAD, Head, Local, Member, Node, Observed, Task, Without, lot},
    services,
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;
const MEMBERS: usize = 6;
const DRIVERS: usize = 2;
const STAGES: [f64; 3] = [0.05, 0.5, 1.0];
/// Time for which a stage must be well, by default.
const BAKE: Duration = Duration::from_secs(60);
/// Time after which a reachable member has left an aborted number: a poll, give or take a fifth, and four requests of its look.
const LEFT: Duration = Duration::from_secs(36 + 6);

struct World {
    clock: Clock,
    time: ManualClock,
    entropy: Entropy,
    store: Arc<Observed>,
    networks: [FaultNetwork; 2],
    members: Vec<(Arc<Member>, Node)>,
    drivers: Vec<Node>,
    without: Without,
    /// Number of changes that were begun; `None` once there are no more.
    changes: Arc<Mutex<Option<u64>>>,
    head: Head,
    entered_at: Instant,
    /// First thresholds, by numbers.
    first: BTreeMap<u64, u64>,
    aborted: BTreeMap<u64, Instant>,
    /// Number of times that a member parsed what ends it.
    fatal: BTreeMap<(u64, usize), u32>,
    completed: u64,
    violation: Option<String>,
}

/// The result of a schedule.
struct Lived {
    violation: Option<String>,
    aborted: usize,
    completed: u64,
}

impl World {
    fn new(seed: u64, without: Without) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let store = InMemoryStore::builder().clock(&clock).build();
        let store = Arc::new(Observed { store, clock: clock.clone(), heads: Mutex::default() });
        // Members are late or cut off, so that it is known which of them reach the store.
        let late = FaultConfig::default().doubled(0.1).late(0.5).latency(MS(0), MS(300));
        let of_members = FaultNetwork::new(late, entropy.next_u64(), &clock).unwrap();
        let of_drivers = services::network(&entropy, [0, 300, 2_000], &clock);
        let now = clock.now();
        let member = |i: usize| {
            let store = InMemoryStore::builder().clock(&clock).build();
            let local = Local { store, defers: without == Without::Record, deferred: Mutex::default() };
            let member = Member {
                name: format!("member-{i}-{seed}"),
                local: Arc::new(local),
                parses: Mutex::default(),
                number: AtomicU64::new(0),
                settings: Mutex::default(),
                is_dead: AtomicBool::new(false),
                dies: Mutex::default(),
            };
            (Arc::new(member), Node::new(&of_members, &format!("member-{i}"), now))
        };
        let mut world = Self {
            members: (0..MEMBERS).map(member).collect(),
            drivers: (0..DRIVERS).map(|i| Node::new(&of_drivers, &format!("driver-{i}"), now + S(75))).collect(),
            networks: [of_members, of_drivers],
            changes: Arc::new(Mutex::new(Some(0))),
            head: Head::default(),
            entered_at: now,
            first: BTreeMap::new(),
            aborted: BTreeMap::new(),
            fatal: BTreeMap::new(),
            completed: 0,
            violation: None,
            clock,
            time,
            entropy,
            store,
            without,
        };
        let publisher = world.publisher(world.store.clone());
        publisher.publish(Change::to("billing", "good 0")).now_or_never().unwrap().unwrap();
        // All members have a good revision before the first change.
        world.pass(S(75), false);
        world
    }

    fn publisher(&self, store: Arc<dyn Store>) -> ConfigPublisher {
        let built = ConfigPublisher::builder(store, "shop", PublisherConfig::default());
        built.clock(&self.clock).entropy(&Entropy::from_seed(self.entropy.next_u64())).build().unwrap()
    }

    /// A life of a member.
    fn life(&self, i: usize) -> Task {
        let (member, node) = &self.members[i];
        member.is_dead.store(false, SeqCst);
        *member.dies.lock().unwrap() = None;
        let (noted, recorded, member) = (member.clone(), member.clone(), member.clone());
        let load = move |documents: &Documents| {
            let text = documents.text("billing").map_err(|error| error.to_string())?.to_owned();
            noted.parses.lock().unwrap().push((noted.number.load(SeqCst), text.clone()));
            noted.is_dead.store(Effect::of(&text) == Effect::Deadly, SeqCst);
            Ok::<_, String>(text)
        };
        let store = node.client.store(self.store.clone());
        let built = ConfigStore::builder(store, "shop", load, ConfigStoreConfig::default())
            .layers(["billing"])
            .local(member.local.clone())
            .member(&member.name)
            .on_event(move |event: &Event<ConfigStoreEvent>| {
                if let ConfigStoreEvent::TrialBegan { number, .. } = event.what {
                    recorded.number.store(number, SeqCst);
                }
            })
            .clock(&self.clock)
            .entropy(&Entropy::from_seed(self.entropy.next_u64()));
        Box::pin(async move {
            let Ok(settings) = built.build().await else { return };
            let accept = |_| async {
                // Nothing happens behind a death.
                if member.is_dead.load(SeqCst) {
                    pending::<()>().await;
                }
                Ok::<_, Veto>(())
            };
            accept(()).await.unwrap_or_else(|_: Veto| unreachable!());
            *member.settings.lock().unwrap() = Some(settings.clone());
            settings.run(pending(), |_| accept(())).await;
        })
    }

    /// A life of a driver: it goes on with what is under way, or begins another change.
    fn drive(&self, i: usize) -> Task {
        let store: Arc<dyn Store> = match self.without {
            Without::Version => Arc::new(AnyHead(self.store.clone())),
            _ => self.store.clone(),
        };
        let publisher = self.publisher(self.drivers[i].client.store(store));
        let rollout = Rollout::builder(&publisher, RolloutConfig::default()).clock(&self.clock).build().unwrap();
        let (clock, changes) = (self.clock.clone(), self.changes.clone());
        let entropy = Entropy::from_seed(self.entropy.next_u64());
        Box::pin(async move {
            loop {
                clock.sleep(MS(entropy.up_to(30_000))).await;
                let Err(RolloutError::NotUnderWay) = rollout.resume().await else { continue };
                let change = changes.lock().unwrap().as_mut().map(|changes| {
                    *changes += 1;
                    *changes
                });
                let Some(change) = change else { continue };
                let text = match entropy.up_to(4) {
                    0 | 1 => format!("deadly {change}"),
                    2 => format!("slow {} {change}", 1 + entropy.up_to(19)),
                    _ => format!("good {change}"),
                };
                let _ = rollout.run(Change::to("billing", text).staged(STAGES)).await;
            }
        })
    }

    fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    fn disturb(&mut self) {
        let now = self.clock.now();
        let i = self.entropy.up_to((MEMBERS + DRIVERS) as u64 - 1) as usize;
        let what = self.entropy.up_to(399);
        let (down, is_short) = (self.entropy.up_to(90), self.entropy.up_to(3) > 0);
        let until = now + if is_short { S(1) } else { S(down) };
        match what {
            0..=4 => self.kill(i, until),
            _ => {
                let node = match i.checked_sub(MEMBERS) {
                    None => &mut self.members[i].1,
                    Some(driver) => &mut self.drivers[driver],
                };
                match what {
                    5..=8 => node.client.cut(),
                    9..=14 => node.client.pause(),
                    15..=40 => return node.mend(now),
                    _ => return,
                }
                node.is_reaching = false;
            }
        }
    }

    fn kill(&mut self, i: usize, until: Instant) {
        match i.checked_sub(MEMBERS) {
            None => {
                let (member, node) = &mut self.members[i];
                node.die(until);
                member.local.end_write(false);
                *member.settings.lock().unwrap() = None;
            }
            Some(driver) => self.drivers[driver].die(until),
        }
    }

    fn start(&mut self) {
        let now = self.clock.now();
        for i in 0..MEMBERS {
            if self.members[i].1.task.is_none() && self.members[i].1.starts_at <= now {
                let life = self.life(i);
                self.members[i].1.run(life, now);
            }
        }
        for i in 0..DRIVERS {
            if self.drivers[i].task.is_none() && self.drivers[i].starts_at <= now {
                let task = self.drive(i);
                self.drivers[i].run(task, now);
            }
        }
    }

    /// Lets all that were woken go on.
    fn settle(&mut self) {
        let now = self.clock.now();
        for _ in 0..3 {
            for i in 0..MEMBERS {
                if !self.members[i].1.poll() {
                    self.kill(i, now + S(2));
                }
                self.look_at(i);
            }
            for driver in &mut self.drivers {
                assert!(driver.poll(), "a driver has no end");
            }
        }
        self.look_at_heads();
    }

    /// Looks at what a member has parsed.
    fn look_at(&mut self, i: usize) {
        let now = self.clock.now();
        let member = self.members[i].0.clone();
        for (number, text) in std::mem::take(&mut *member.parses.lock().unwrap()) {
            let effect = Effect::of(&text);
            if effect == Effect::Good {
                continue;
            }
            // A head that was written in this moment is known before it is parsed.
            self.look_at_heads();
            let count = self.fatal.entry((number, i)).or_default();
            *count += 1;
            if *count > 2 {
                let count = *count;
                self.violate(format!("{} has parsed {number} {count} times", member.name));
            }
            if self.first.get(&number).is_none_or(|threshold| lot(&member.name, number) >= *threshold) {
                self.violate(format!("{} has parsed {number}, and is not in the first stage", member.name));
            }
            if let Effect::Slow(time) = effect {
                *member.dies.lock().unwrap() = Some((now + S(time), text));
            }
        }
        let is_over = |(at, text): &(Instant, String)| {
            let runs = member.settings.lock().unwrap().as_ref().is_some_and(|settings| **settings.current() == *text);
            *at <= now && runs
        };
        let dies = member.dies.lock().unwrap().as_ref().is_some_and(is_over);
        if dies || member.is_dead.load(SeqCst) {
            member.is_dead.store(false, SeqCst);
            self.kill(i, now + S(1));
        } else {
            member.local.end_write(true);
        }
    }

    fn look_at_heads(&mut self) {
        let heads = std::mem::take(&mut *self.store.heads.lock().unwrap());
        for (at, bytes) in heads {
            let next = Head::read(&bytes);
            let before = std::mem::replace(&mut self.head, next.clone());
            if next.stable < before.stable {
                self.violate(format!("{} is in effect after {}", next.stable, before.stable));
            }
            if let Some(ended) =
                before.stage.as_ref().filter(|ended| next.stage.as_ref().map(|s| s.number) != Some(ended.number))
            {
                match next.stable == ended.number {
                    true => self.completed += 1,
                    false => drop(self.aborted.insert(ended.number, at)),
                }
            }
            let Some(stage) = next.stage.filter(|stage| stage.threshold > 0) else { continue };
            if self.aborted.contains_key(&stage.number) || next.stable >= stage.number {
                self.violate(format!("{} has ended, and is rolled out again", stage.number));
            }
            let (number, step) = (stage.number, stage.step);
            match before.stage.filter(|before| before.number == number && before.threshold > 0) {
                None => {
                    self.first.entry(number).or_insert(stage.threshold);
                    self.entered_at = at;
                    if step > 0 {
                        self.violate(format!("{number} begins with step {step}"));
                    }
                }
                Some(before) if step == before.step + 1 => {
                    if at - self.entered_at < BAKE {
                        self.violate(format!("step {step} of {number} after {:?}", at - self.entered_at));
                    }
                    self.entered_at = at;
                }
                // The same once more, by a doubled request.
                Some(before) if before == stage => {}
                Some(before) => self.violate(format!("step {step} of {number} after {before:?}")),
            }
        }
    }

    /// Looks for members that keep an aborted number.
    fn look_at_numbers(&mut self) {
        let now = self.clock.now();
        for i in 0..MEMBERS {
            let (member, node) = &self.members[i];
            let Some(settings) = &*member.settings.lock().unwrap() else { continue };
            let number = settings.current().number();
            let Some(at) = self.aborted.get(&number) else { continue };
            if node.is_reaching && now > (*at).max(node.reaches_since) + LEFT {
                let violation = format!("{} runs {number}, which was aborted at {at:?}, at {now:?}", member.name);
                self.violation.get_or_insert(violation);
            }
        }
    }

    fn pass(&mut self, time: Duration, disturbs: bool) {
        let until = self.clock.now() + time;
        while self.clock.now() < until && self.violation.is_none() {
            self.start();
            if disturbs {
                self.disturb();
            }
            self.time.advance(MS(50 + self.entropy.up_to(450)));
            self.settle();
            self.look_at_numbers();
        }
    }

    fn live(mut self) -> Lived {
        self.pass(S(900), true);
        *self.changes.lock().unwrap() = None;
        self.networks.iter().for_each(|network| network.configure(FaultConfig::default()).unwrap());
        let now = self.clock.now();
        for node in self.members.iter_mut().map(|(_, node)| node).chain(&mut self.drivers) {
            node.mend(now);
            node.starts_at = node.starts_at.min(now);
        }
        self.pass(S(600), false);
        if self.head.stage.is_some() {
            self.violate(format!("a roll-out has no end: {:?}", self.head));
        }
        for i in 0..MEMBERS {
            let state = self.members[i].0.settings.lock().unwrap().as_ref().map(ConfigStore::state);
            let runs = state.as_ref().map(|state| state.number);
            // A good revision, in whose trial it was killed twice by chance.
            let is_quarantined = state.is_some_and(|state| state.rejected == Some((self.head.stable, Quarantined)));
            if runs != Some(self.head.stable) && !is_quarantined {
                self.violate(format!("member {i} runs {runs:?} in the end, and not {}", self.head.stable));
            }
        }
        Lived { violation: self.violation, aborted: self.aborted.len(), completed: self.completed }
    }

    /// Rolls deadly changes out without any other fault. Returns the members that parse each. With `restores` each change has the
    /// number of the first, as if lots were drawn without it.
    fn canaries(mut self, restores: bool) -> Vec<BTreeSet<usize>> {
        *self.changes.lock().unwrap() = None;
        self.networks.iter().for_each(|network| network.configure(FaultConfig::default()).unwrap());
        self.pass(S(40), false);
        let publisher = self.publisher(self.store.clone());
        let rollout = Rollout::builder(&publisher, RolloutConfig::default()).clock(&self.clock).build().unwrap();
        let first = self.store.get(HEAD).now_or_never().unwrap().unwrap().unwrap().value;
        let mut canaries = Vec::new();
        for change in 0..5 {
            let begin = rollout.run(Change::to("billing", format!("deadly {change}")).staged(STAGES));
            // It ends with the first stage; the drivers go on.
            let mut begin = Box::pin(begin);
            assert!((&mut begin).now_or_never().is_none());
            drop(begin);
            self.fatal.clear();
            self.pass(S(200), false);
            assert_eq!(self.head.stage, None);
            canaries.push(self.fatal.keys().map(|(_, member)| *member).collect());
            if restores {
                self.store.put(HEAD, first.clone(), PutOptions::new()).now_or_never().unwrap().unwrap();
                self.store.heads.lock().unwrap().clear();
                (self.head, self.first) = (Head::read(&first), BTreeMap::new());
                self.aborted.clear();
                self.pass(S(45), false);
            }
        }
        assert_eq!(self.violation, None);
        canaries
    }
}

// Guarantee: reconfiguration 6, 7.
#[test]
fn only_the_first_stage_parses_what_kills_and_no_member_keeps_an_aborted_number() {
    let (seeds, mut aborted, mut completed) = (super::schedules(30), 0, 0);
    for_each_seed(0..seeds, |seed| {
        let lived = World::new(seed, Without::Nothing).live();
        assert_eq!(lived.violation, None, "seed {seed}");
        (aborted, completed) = (aborted + lived.aborted as u64, completed + lived.completed);
    });
    println!("{seeds} schedules: {aborted} roll-outs aborted, {completed} completed; no violation");
    super::assert_met(aborted > seeds && completed > seeds / 10, (aborted, completed));
}

#[test]
fn a_guard_of_a_roll_out_that_is_taken_out_is_missed() {
    for without in [Without::Record, Without::Version] {
        super::assert_missed(without, super::controls(60, 500), |seed| World::new(seed, without).live().violation);
    }
}

// Guarantee: reconfiguration 6.
#[test]
fn bad_changes_have_other_canaries_unless_lots_are_drawn_without_the_number() {
    let seeds = super::controls(6, 100);
    let same = |restores: bool| {
        let is_same = |seed: &u64| {
            let canaries = World::new(*seed, Without::Nothing).canaries(restores);
            assert!(canaries.iter().all(|canaries| canaries.len() == 1), "seed {seed}: {canaries:?}");
            canaries.iter().all(|of_one| *of_one == canaries[0])
        };
        (0..seeds).filter(is_same).count() as u64
    };
    let (with, without) = (same(false), same(true));
    println!("of {seeds} fleets {with} have one canary for five changes; without the number {without}");
    assert!(with <= seeds / 6 && without == seeds, "{with} {without} of {seeds}");
}
