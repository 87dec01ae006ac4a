//! A simulated day of the listener. The service behind it is in turn away, slow and refusing; there
//! is poison among the messages; processes are killed and redeployed; the answers of the queue take
//! longer than their limit; the stores of claims and of the filter are slow or away; notices are
//! lost. At the end only poison is among the dead letters,
//! and each further run of a handler has a recorded cause. Controls show that a missing guard of
//! the queue is found.
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    future::{Future, pending},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use steadfast::{
    Pipeline,
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    claim_check::{ClaimCheck, ClaimCheckConfig},
    entropy::Entropy,
    notify::{InMemoryNotifier, Notifier},
    port::PortErrorKind,
    queue::{AnnouncingQueue, IdempotencyFilter, InMemoryQueue, Message, Queue},
    queue_listener::{Disposition, QueueListener, Work},
    testing::faults::{FaultClient, FaultConfig, FaultNetwork, for_each_seed},
    time::{Clock, Instant, ManualClock},
    timeout::Timeout,
};

use crate::{
    listener_world::{Cause, End, Health, Ledger, Line, Planted, Service, Slowness, UnderWay, drive},
    moody_store::{Mode, Moody},
};

const S: fn(u64) -> Duration = Duration::from_secs;
const PROCESSES: usize = 3;

/// Backend of the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    InMemory,
    InAFile,
}

/// Result of a schedule.
#[derive(Debug, Default)]
#[expect(dead_code, reason = "the counts are printed")]
struct Tally {
    messages: usize,
    runs: u64,
    service_calls: u64,
    kills: u64,
    redeployments: u64,
    /// Further runs, by their recorded causes.
    causes: BTreeMap<Cause, u64>,
    call_failures: BTreeMap<String, u64>,
    /// Calls of the service that were repeated although an earlier one had taken effect.
    repeated_effects: u64,
    poison: usize,
    /// All of the following must be empty.
    dead_innocents: Vec<String>,
    poison_at_large: usize,
    lost: usize,
    unexplained: Vec<String>,
    overlaps: u64,
    left: u64,
}

impl Tally {
    fn is_clean(&self) -> bool {
        self.dead_innocents.is_empty()
            && self.unexplained.is_empty()
            && (self.poison_at_large, self.lost, self.overlaps, self.left) == (0, 0, 0, 0)
    }
}

struct World {
    time: ManualClock,
    clock: Clock,
    entropy: Entropy,
    under_way: UnderWay,
    planted: Planted,
    /// One for each process, and one for the sender.
    queues: Vec<Arc<dyn Queue>>,
    slowness: Arc<Slowness>,
    claims: Arc<Moody>,
    handled: Arc<Moody>,
    notices: FaultClient,
    notifier: Arc<dyn Notifier>,
    service: Service,
    ledger: Ledger,
    kills: Cell<u64>,
    redeployments: Cell<u64>,
    sent: Cell<u32>,
    /// Numbers of the messages that always fail, and of those that kill their process.
    failing: RefCell<BTreeSet<u32>>,
    killing: RefCell<BTreeSet<u32>>,
    _folder: Option<tempfile::TempDir>,
}

impl World {
    fn new(seed: u64, kept: Kept, planted: Planted) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let (mut folder, mut queues): (_, Vec<Arc<dyn Queue>>) = (None, Vec::new());
        match kept {
            Kept::InMemory => {
                let queue = Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
                queues.extend((0..=PROCESSES).map(|_| queue.clone() as Arc<dyn Queue>));
            }
            Kept::InAFile => {
                let temporary = tempfile::tempdir().unwrap();
                let config = SqliteConfig::at(temporary.path().join("soak.db")).durability(Durability::Relaxed);
                for _ in 0..=PROCESSES {
                    let sqlite = Sqlite::open_with_clock(config.clone(), &clock).unwrap();
                    queues.push(Arc::new(sqlite.queue("jobs").unwrap()));
                }
                folder = Some(temporary);
            }
        }
        let notices = FaultNetwork::new(FaultConfig::default(), seed, &clock).unwrap().client("notices");
        let (health, asked) = (Mutex::new(Health::Well), AtomicU64::new(0));
        Self {
            service: Service { health, asked, clock: clock.clone(), entropy: Entropy::from_seed(entropy.next_u64()) },
            notifier: notices.notifier(Arc::new(InMemoryNotifier::new())),
            slowness: Arc::default(),
            claims: Arc::new(Moody::new(&clock)),
            handled: Arc::new(Moody::new(&clock)),
            under_way: Arc::new(AtomicUsize::new(0)),
            ledger: Ledger::default(),
            kills: Cell::default(),
            redeployments: Cell::default(),
            sent: Cell::default(),
            failing: RefCell::default(),
            killing: RefCell::default(),
            _folder: folder,
            notices,
            queues,
            planted,
            time,
            clock,
            entropy,
        }
    }

    fn between(&self, least: u64, most: u64) -> Duration {
        S(least + self.entropy.up_to(most - least))
    }

    /// The queue as one process sees it, with claims, over its own connection.
    fn line(&self, process: usize) -> Arc<dyn Queue> {
        let line = Line {
            queue: self.queues[process].clone(),
            clock: self.clock.clone(),
            entropy: Entropy::from_seed(self.entropy.next_u64()),
            under_way: self.under_way.clone(),
            planted: self.planted,
            lost: (0.001, 0.0),
            slowness: self.slowness.clone(),
        };
        let config = ClaimCheckConfig::default().threshold(100).compress(false);
        let claims = ClaimCheck::builder(Arc::new(line), self.claims.clone(), config)
            .clock(&self.clock)
            .entropy(&Entropy::from_seed(self.entropy.next_u64()))
            .build()
            .unwrap();
        Arc::new(claims)
    }

    /// Runs consecutive processes of one place; each is killed or redeployed in the end.
    async fn process(&self, process: usize) {
        for number in 0.. {
            let by = (process, number);
            let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default())
                .clock(&self.clock)
                .entropy(&Entropy::from_seed(self.entropy.next_u64()))
                .build()
                .unwrap();
            let pipeline = Pipeline::new().then(breaker).then(Timeout::builder(S(10)).clock(&self.clock).build());
            let listener = QueueListener::builder(self.line(process), Default::default())
                .clock(&self.clock)
                .entropy(&Entropy::from_seed(self.entropy.next_u64()))
                .idempotency_filter(IdempotencyFilter::new(self.handled.clone(), "handled", S(7 * 86_400)))
                .notifier(self.notifier.clone(), "jobs")
                .build()
                .unwrap();
            let mut events = listener.events();
            let crash = tokio::sync::Notify::new();
            let (service, ledger) = (&self.service, &self.ledger);
            let handler = async |work: Work| -> Disposition {
                let number: u32 = std::str::from_utf8(&work.body[..8]).unwrap().parse().unwrap();
                let run = self.ledger.begin(&self.clock, &work.id, number, by);
                if self.killing.borrow().contains(&number) {
                    crash.notify_one();
                    pending::<()>().await;
                }
                if self.failing.borrow().contains(&number) {
                    run.end(End::Failed);
                    return Disposition::retry("there is no such drone");
                }
                let result = pipeline.call(|| service.call(ledger, number)).await;
                run.end(match &result {
                    Ok(()) => End::Completed,
                    Err(error) if error.is_rejected() => End::Refused,
                    Err(_) => End::Failed,
                });
                Disposition::of_call(result)
            };
            let lives = self.between(600, 4 * 3600);
            let is_killed = self.entropy.unit() < 0.5;
            let shutdown = async { if is_killed { pending().await } else { self.clock.sleep(lives).await } };
            let kill = async {
                let crashes = crash.notified();
                if is_killed {
                    tokio::select! { () = crashes => {}, () = self.clock.sleep(lives) => {} }
                } else {
                    crashes.await;
                }
            };
            let hear = async {
                loop {
                    match events.recv().await {
                        Ok(event) => self.ledger.told(by, event.what),
                        Err(_) => drop(self.ledger.missed_events.fetch_add(1, SeqCst)),
                    }
                }
            };
            let was_killed = tokio::select! {
                biased;
                () = hear => unreachable!("it hears for ever"),
                ended = listener.run(shutdown, handler) => {
                    ended.expect("nothing that does not pass by itself");
                    false
                }
                () = kill => true,
            };
            while let Ok(Some(event)) = events.try_recv() {
                self.ledger.told(by, event.what);
            }
            let counter = if was_killed { &self.kills } else { &self.redeployments };
            counter.set(counter.get() + 1);
            if was_killed {
                self.ledger.killed(by, self.clock.now());
            }
            self.clock.sleep(self.between(1, 60)).await;
        }
    }

    /// Sends bursts of messages until then; some large, some poison.
    async fn sends(&self, until: Instant) {
        let queue =
            AnnouncingQueue::builder(self.line(PROCESSES), self.notifier.clone(), "jobs").clock(&self.clock).build();
        while self.clock.now() < until {
            let burst = 1 + self.entropy.up_to(40);
            let messages = (0..burst).map(|_| {
                let number = self.sent.replace(self.sent.get() + 1);
                let fate = self.entropy.unit();
                if fate < 0.003 {
                    self.failing.borrow_mut().insert(number);
                } else if fate < 0.0035 {
                    self.killing.borrow_mut().insert(number);
                }
                let padding = if self.entropy.unit() < 0.2 { 500 } else { 0 };
                Message::new(format!("{number:08}{}", " ".repeat(padding))).deduplicate(format!("{number}"))
            });
            let messages: Vec<_> = messages.collect();
            // The store of claims may be away, or never answer.
            loop {
                let sent = tokio::select! {
                    sent = queue.send(messages.clone()) => sent.is_ok(),
                    () = self.clock.sleep(S(60)) => false,
                };
                if sent {
                    break;
                }
                self.clock.sleep(S(10)).await;
            }
            self.clock.sleep(self.between(30, 300)).await;
        }
    }

    /// Makes the service healthy, then away, slow or refusing, in turn.
    async fn weather(&self, until: Instant) {
        let turn = [Health::Away, Health::Slow, Health::Refusing];
        for health in turn.into_iter().cycle() {
            self.clock.sleep(self.between(600, 2400)).await;
            if self.clock.now() > until {
                break;
            }
            *self.service.health.lock().unwrap() = health;
            self.clock.sleep(self.between(60, 3600)).await;
            *self.service.health.lock().unwrap() = Health::Well;
        }
    }

    /// Makes a store healthy, then slow or away, in turn.
    async fn moods(&self, store: &Moody, until: Instant) {
        let modes = [Mode::Slow(Duration::from_millis(170)), Mode::Fails(PortErrorKind::Unavailable), Mode::Hangs];
        for mode in modes.into_iter().chain([Mode::Slow(S(1)), Mode::Fails(PortErrorKind::Throttled)]).cycle() {
            self.clock.sleep(self.between(900, 5400)).await;
            if self.clock.now() > until {
                break;
            }
            store.is(mode);
            self.clock.sleep(self.between(60, 2400)).await;
            store.is(Mode::Well);
        }
    }

    /// Makes the answers of the queue slow for some time: those to `receive`, to all other requests,
    /// and to all. A control has none: its deviation is to be seen alone.
    async fn answers_are_slow(&self, until: Instant) {
        if self.planted != Planted::Nothing {
            return;
        }
        for (receive, others) in [(6_000, 0), (0, 1_500), (12_000, 6_000)].into_iter().cycle() {
            self.clock.sleep(self.between(900, 5400)).await;
            if self.clock.now() > until {
                break;
            }
            self.slowness.receive.store(receive, SeqCst);
            self.slowness.others.store(others, SeqCst);
            self.clock.sleep(self.between(60, 2400)).await;
            self.slowness.receive.store(0, SeqCst);
            self.slowness.others.store(0, SeqCst);
        }
    }

    async fn notices_are_lost(&self, until: Instant) {
        while self.clock.now() < until {
            self.clock.sleep(self.between(600, 7200)).await;
            if self.entropy.unit() < 0.5 {
                self.notices.cut()
            } else {
                self.notices.pause()
            }
            self.clock.sleep(self.between(60, 3600)).await;
            self.notices.heal();
            self.notices.resume();
        }
    }

    /// Injects faults for this time, then leaves time for the remaining messages.
    async fn day(&self, time: Duration) -> u64 {
        let until = self.clock.now() + time;
        let faults = async {
            tokio::join!(
                self.sends(until),
                self.weather(until),
                self.moods(&self.claims, until),
                self.moods(&self.handled, until),
                self.answers_are_slow(until),
                self.notices_are_lost(until),
            );
        };
        let control = async {
            faults.await;
            // A queue that breaks its contract may never finish.
            let hours = if self.planted == Planted::HidesTooShort { 1 } else { 48 };
            for _ in 0..hours * 60 {
                self.clock.sleep(S(60)).await;
                if self.depth().await == 0 {
                    return 0;
                }
            }
            self.depth().await
        };
        let mut processes = Vec::new();
        for process in 0..PROCESSES {
            processes.push(Box::pin(self.process(process)) as std::pin::Pin<Box<dyn Future<Output = ()> + '_>>);
        }
        let left = tokio::select! {
            biased;
            left = control => left,
            _ = futures::future::join_all(processes) => unreachable!("processes do not end"),
        };
        left
    }

    async fn depth(&self) -> u64 {
        self.queues[PROCESSES].depth().await.unwrap().total()
    }
}

/// Runs one schedule.
fn soak(seed: u64, time: Duration, kept: Kept, planted: Planted) -> Tally {
    let world = World::new(seed, kept, planted);
    let left = drive(&world.time, &world.under_way, pin!(world.day(time)));
    let dead = world.queues[PROCESSES].dead_letters().unwrap();
    // It uses no counting connection, and all timers may have ended.
    world.under_way.fetch_add(1, SeqCst);
    let dead = drive(&world.time, &world.under_way, dead.peek(1000)).unwrap();
    let number = |body: &[u8]| std::str::from_utf8(body.get(..8)?).ok()?.parse::<u32>().ok();
    let (failing, killing) = (world.failing.borrow(), world.killing.borrow());
    let is_poison = |number: u32| failing.contains(&number) || killing.contains(&number);
    let mut at_large: BTreeSet<u32> = failing.union(&killing).copied().collect();
    let mut dead_innocents = Vec::new();
    for letter in &dead {
        // The body of a large message is in the store of claims.
        let numbered = number(&letter.body).or_else(|| world.ledger.number(&letter.id));
        match numbered {
            Some(number) if is_poison(number) => drop(at_large.remove(&number)),
            _ => dead_innocents.push(format!("{numbered:?} {:?}, {} attempts", letter.reason, letter.attempts)),
        }
    }
    let effects = world.ledger.effects.lock().unwrap();
    let lost = (0..world.sent.get()).filter(|n| !is_poison(*n) && !effects.contains_key(n)).count();
    let (causes, unexplained) = world.ledger.explain();
    let overlaps = world.ledger.overlaps.load(SeqCst);
    assert_eq!(world.ledger.missed_events.load(SeqCst), 0, "all events are heard");
    Tally {
        messages: world.sent.get() as usize,
        runs: world.ledger.runs(),
        service_calls: world.service.asked.load(SeqCst),
        kills: world.kills.get(),
        redeployments: world.redeployments.get(),
        call_failures: world.ledger.call_failures.lock().unwrap().clone(),
        repeated_effects: effects.values().map(|n| u64::from(n - 1)).sum(),
        poison: failing.len() + killing.len(),
        lost: lost.saturating_sub(dead_innocents.len()),
        poison_at_large: at_large.len(),
        dead_innocents,
        unexplained,
        overlaps,
        causes,
        left,
    }
}

/// Returns the length of the run: a day, or two hours in an unoptimized build. `STEADFAST_HOURS`
/// sets it.
fn day() -> Duration {
    let asked = std::env::var("STEADFAST_HOURS").ok().map(|n| n.parse().expect("STEADFAST_HOURS is a number"));
    S(3600 * asked.unwrap_or(if cfg!(debug_assertions) { 2 } else { 24 }))
}

#[expect(clippy::print_stderr, reason = "the counts are what is to be seen")]
fn check(kept: Kept, seed: u64, time: Duration) {
    let tally = soak(seed, time, kept, Planted::Nothing);
    eprintln!("seed {seed}: {tally:#?}");
    assert!(tally.is_clean(), "seed {seed}: see above");
    assert!(tally.messages > 100 && tally.kills > 0 && tally.poison > 0, "it was a day");
}

#[test]
fn hours_of_faults_dead_letter_only_poison_and_each_further_run_is_explained() {
    for_each_seed(0..1, |seed| check(Kept::InMemory, seed, day()));
}

#[test]
fn hours_of_faults_over_a_file_dead_letter_only_poison_and_each_further_run_is_explained() {
    for_each_seed(100..101, |seed| check(Kept::InAFile, seed, day()));
}

#[test]
fn hours_with_a_release_that_counts_as_an_attempt_are_found_faulty() {
    let tally = soak(0, S(2 * 3600), Kept::InMemory, Planted::ReleaseCounts);
    assert!(!tally.dead_innocents.is_empty(), "{tally:#?}");
}

#[test]
fn hours_with_deliveries_that_count_as_attempts_are_found_faulty() {
    let tally = soak(0, S(2 * 3600), Kept::InMemory, Planted::DeliveriesCount);
    assert!(!tally.dead_innocents.is_empty(), "{tally:#?}");
}

#[test]
fn hours_with_messages_hidden_too_short_are_found_faulty() {
    let tally = soak(0, S(3600), Kept::InMemory, Planted::HidesTooShort);
    assert!(tally.overlaps > 0, "{tally:#?}");
}
