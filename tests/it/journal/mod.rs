//! Journals: rejected calls are deferred and replayed later.
mod crashes;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use steadfast::{
    Builder, Pipeline, Priority,
    backoff::{BackoffConfig, Jitter},
    call::with_priority,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State},
    journal::{Entry, Gate, IDEMPOTENCY_KEY, Journal, JournalConfig, JournalEvent as Event, Replay, Replayed, Served},
    port::PortErrorKind,
    queue::{InMemoryQueue, Message, Queue, QueueExt, redrive},
    queue_listener::Disposition,
    store::InMemoryStore,
    testing::{
        drop_at_every_await,
        faults::{FaultConfig, FaultNetwork},
    },
    throttling::{Gauge, Shedder, ShedderConfig},
    time::{Instant, Timestamp},
};

use crate::cache_aside::world::{MS, S, World};

/// Twenty a second, tried again after a second.
fn config() -> JournalConfig {
    let retry = BackoffConfig::default().between(S(1), S(1)).jitter(Jitter::None);
    JournalConfig::default().per_second(20).retry(retry)
}

/// Opens after three consecutive failures, for 10 s.
fn breaker(world: &World) -> CircuitBreaker {
    let rules: CircuitBreakerConfig = toml::from_str(
        r#"
        trip = { consecutive_failures = 3 }
        open = { initial_delay = "10s", max_delay = "10s", jitter = 0.0 }
        half_open = { permitted_calls = 2, success_rate = 1.0 }
        "#,
    )
    .unwrap();
    CircuitBreaker::builder(rules).clock(&world.clock).build().unwrap()
}

/// The service: its calls, their times, and its health.
#[derive(Clone)]
struct Bank {
    done: Arc<Mutex<Vec<(String, Instant)>>>,
    is_down: Arc<Mutex<bool>>,
    asked: Arc<Mutex<u32>>,
    world: Arc<World>,
}

impl Bank {
    fn new(world: &Arc<World>) -> Self {
        Self { done: Arc::default(), is_down: Arc::default(), asked: Arc::default(), world: world.clone() }
    }

    fn down(&self, down: bool) {
        *self.is_down.lock().unwrap() = down;
    }

    async fn charge(&self, key: String) -> Result<(), &'static str> {
        *self.asked.lock().unwrap() += 1;
        if *self.is_down.lock().unwrap() {
            return Err("the bank is closed");
        }
        self.done.lock().unwrap().push((key, self.world.time.now()));
        Ok(())
    }

    fn keys(&self) -> Vec<String> {
        self.done.lock().unwrap().iter().map(|(key, _)| key.clone()).collect()
    }

    fn asked(&self) -> u32 {
        *self.asked.lock().unwrap()
    }
}

struct Service {
    world: Arc<World>,
    queue: Arc<InMemoryQueue>,
    breaker: CircuitBreaker,
    journal: Journal,
    bank: Bank,
}

impl Service {
    fn journal(world: &World, queue: &Arc<InMemoryQueue>, config: JournalConfig) -> Builder<Journal> {
        Journal::builder(queue.clone(), config).name("payments").clock(&world.clock)
    }

    fn builder(&self, config: JournalConfig) -> Builder<Journal> {
        Self::journal(&self.world, &self.queue, config)
    }

    fn new(config: JournalConfig) -> Self {
        let world = Arc::new(World::new());
        let queue = Arc::new(InMemoryQueue::builder("payments").clock(&world.clock).build());
        let journal = Self::journal(&world, &queue, config).build().unwrap();
        Self { breaker: breaker(&world), bank: Bank::new(&world), queue, journal, world }
    }

    /// A payment: now, or deferred.
    fn pay(&self, entry: &Entry) -> Result<Served<()>, &'static str> {
        let result = self.world.run(self.breaker.call(|| self.bank.charge(entry.key.clone())));
        let served = self.world.run(self.journal.or_defer(result, || entry.clone()));
        served.map_err(|error| error.into_operation().unwrap_or("refused"))
    }

    /// The bank is down, and the breaker is open.
    fn break_down(&self) {
        self.bank.down(true);
        for i in 0..3 {
            assert_eq!(self.pay(&Entry::new(format!("lost-{i}"), "")), Err("the bank is closed"));
        }
        assert_eq!(self.breaker.state(), State::Open);
    }

    /// Replays in the background, as one process does.
    fn replay(&self) {
        let run = self.run(&self.journal, std::future::pending());
        self.world.background.spawn(run);
        self.world.turn();
    }

    fn run(
        &self,
        journal: &Journal,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> futures::future::BoxFuture<'static, ()> {
        let (journal, breaker, bank) = (journal.clone(), self.breaker.clone(), self.bank.clone());
        Box::pin(async move {
            let gate = || Gate::of(&breaker);
            let replay = |entry: Replay| {
                let (breaker, bank) = (breaker.clone(), bank.clone());
                async move { Replayed::of_call(breaker.call(|| bank.charge(entry.key.clone())).await) }
            };
            journal.run(shutdown, gate, replay).await.unwrap();
        })
    }

    fn left(&self) -> u64 {
        self.world.run(self.queue.depth()).unwrap().total()
    }

    fn dead(&self) -> u64 {
        self.world.run(self.queue.dead_letters().unwrap().depth()).unwrap().total()
    }
}

fn told(events: &mut steadfast::observe::Subscription<Event>) -> Vec<Event> {
    std::iter::from_fn(|| events.try_recv().unwrap().map(|event| event.what)).collect()
}

// Guarantee: journal 1.
#[test]
fn a_rejected_call_is_deferred_and_replayed_when_the_breaker_closes() {
    let service = Service::new(config());
    service.replay();
    assert_eq!(service.pay(&Entry::new("first", "")), Ok(Served::Now(())));
    service.break_down();
    let mut events = service.journal.events();
    let keys: Vec<String> = (0..30).map(|i| format!("order-{i}")).collect();
    for key in &keys {
        assert_eq!(service.pay(&Entry::new(key, "10 euro")), Ok(Served::Later));
    }
    service.world.pass(S(9));
    assert_eq!((service.bank.keys().len(), service.left()), (1, 30), "nothing is tried while it is open");
    service.bank.down(false);
    // No direct calls: entries are the probes and close the breaker.
    service.world.pass(S(60));
    let mut done = service.bank.keys().split_off(1);
    done.sort_by_key(|key| key[6..].parse::<u32>().unwrap());
    assert_eq!((done, service.left(), service.dead()), (keys, 0, 0));
    assert_eq!(service.breaker.state(), State::Closed);
    let told = told(&mut events);
    assert_eq!(told.iter().filter(|event| matches!(event, Event::Deferred { .. })).count(), 30);
    assert_eq!(told.iter().filter(|event| matches!(event, Event::Replayed { deliveries: 1, .. })).count(), 30);
    assert_eq!(told.iter().filter(|event| matches!(event, Event::Waiting { .. })).count(), 1, "told once");
    assert!(told.contains(&Event::Replaying));
}

// Guarantee: journal 5.
#[test]
fn replays_after_an_outage_keep_to_the_configured_pace() {
    let service = Service::new(config().per_second(5));
    service.break_down();
    for i in 0..50 {
        assert_eq!(service.pay(&Entry::new(format!("order-{i}"), "")), Ok(Served::Later));
    }
    service.bank.down(false);
    service.world.pass(S(20));
    service.replay();
    service.world.pass(S(8));
    // The pace can be changed meanwhile; an invalid one is refused as a whole.
    assert_eq!(service.journal.reconfigure(config().per_second(0)).unwrap_err().field(), "per_second");
    assert_eq!(service.journal.config().per_second, 5);
    service.journal.clone().reconfigure(config().per_second(10)).unwrap();
    service.world.pass(S(3));
    let done = service.bank.done.lock().unwrap().clone();
    assert_eq!(done.len(), 50);
    let most =
        |from: usize, to: usize| done[from..to].windows(2).map(|pair| pair[1].1 - pair[0].1).min().unwrap_or_default();
    assert!(most(0, 40) >= MS(199) && most(42, 50) >= MS(99), "{:?} {:?}", most(0, 40), most(42, 50));
}

// Guarantee: journal 4.
#[test]
fn a_long_outage_uses_up_no_attempts_of_an_entry() {
    let service = Service::new(config().max_attempts(3));
    service.break_down();
    for i in 0..10 {
        assert_eq!(service.pay(&Entry::new(format!("order-{i}"), "")), Ok(Served::Later));
    }
    service.replay();
    let before = service.bank.asked();
    service.world.pass(S(900));
    // Each time the open time is over, entries probe and fail.
    let probes = service.bank.asked() - before;
    assert!((60..=180).contains(&probes), "{probes}");
    assert_eq!((service.left(), service.dead()), (10, 0));
    service.bank.down(false);
    service.world.pass(S(30));
    assert_eq!((service.bank.keys().len(), service.left(), service.dead()), (10, 0, 0));
}

// Guarantee: journal 2.
#[test]
fn entries_of_one_order_key_are_replayed_in_order() {
    let service = Service::new(config().concurrency(8).per_second(100));
    service.break_down();
    for i in 0..60 {
        let entry = Entry::new(format!("{}-{i:02}", i % 3), "").in_order_of(format!("account-{}", i % 3));
        assert_eq!(service.pay(&entry), Ok(Served::Later));
    }
    service.bank.down(false);
    service.replay();
    // One fails midway and is tried again: the entries behind it wait.
    service.world.pass(S(10) + MS(35));
    service.breaker.force_open(S(5));
    service.world.pass(S(30));
    let done = service.bank.keys();
    assert_eq!(done.len(), 60);
    for account in ["0-", "1-", "2-"] {
        let of: Vec<_> = done.iter().filter(|key| key.starts_with(account)).collect();
        assert!(of.is_sorted() && of.len() == 20, "{of:?}");
    }
}

// Guarantee: journal 3.
#[test]
fn a_key_is_kept_once_and_is_sent_with_each_replay() {
    let service = Service::new(config());
    let entry = Entry::new("order-1", "10 euro").header("currency", "eur").in_order_of("acme");
    for _ in 0..3 {
        service.world.run(service.journal.defer_entry(entry.clone())).unwrap();
    }
    service.world.run(service.journal.defer("order-2", "20 euro")).unwrap();
    assert_eq!(service.left(), 2);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let shutdown = service.world.clock.sleep(S(5));
    let replay = async |entry: Replay| seen.lock().unwrap().push(entry);
    service.world.run(service.journal.run(shutdown, || Gate::Open, replay)).unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2);
    let first = seen.iter().find(|replay| replay.key == "order-1").unwrap();
    assert_eq!((&**first, first.deliveries()), (&entry, 1));
    assert!(first.deferred_at() > Timestamp::from_millis(0));
    let error = service.world.run(service.journal.defer("", "x")).unwrap_err();
    assert!(error.to_string().contains("`key`"), "{error}");
}

// Guarantee: journal 7.
#[test]
fn an_entry_that_can_never_be_replayed_becomes_a_dead_letter_and_delays_no_other() {
    let service = Service::new(config().max_attempts(3));
    for key in ["bad", "good", "worse", "fine"] {
        service.world.run(service.journal.defer(key, "")).unwrap();
    }
    let mut events = service.journal.events();
    let done = Mutex::new(Vec::new());
    let replay = async |entry: Replay| match entry.key.as_str() {
        "bad" => Replayed::failed("no such account"),
        "worse" => Replayed::poison("not a payment"),
        key => {
            done.lock().unwrap().push(key.to_owned());
            Replayed::Done
        }
    };
    service.world.run(service.journal.run(service.world.clock.sleep(S(10)), || Gate::Open, replay)).unwrap();
    assert_eq!(*done.lock().unwrap(), ["good", "fine"]);
    assert_eq!((service.left(), service.dead()), (0, 2));
    let told = told(&mut events);
    assert_eq!(told.iter().filter(|event| matches!(event, Event::Failed { .. })).count(), 3);
    assert!(told.contains(&Event::Poisoned { key: "worse".into(), reason: "not a payment".into() }));
    // It can be sent again, under its key.
    let again = service.world.run(redrive(&*service.queue, 10, |letter| letter.headers[IDEMPOTENCY_KEY] == "bad"));
    assert_eq!((again.unwrap(), service.left(), service.dead()), (1, 1, 1));
}

// Guarantee: journal 1, 3.
#[test]
fn an_entry_whose_replay_was_killed_is_replayed_again_under_the_same_key() {
    let service = Service::new(config());
    for i in 0..20 {
        service.world.run(service.journal.defer(format!("order-{i:02}"), "")).unwrap();
    }
    // The call is made, and the process is killed before the settlement, repeatedly.
    for _ in 0..5 {
        let mut run = Box::pin(service.run(&service.journal, std::future::pending()));
        let before = service.bank.keys().len();
        assert!(before < 20, "there is one to kill at");
        while service.bank.keys().len() == before {
            let _: std::task::Poll<()> = service.world.begin(&mut run);
            let next = service.world.time.next_timer().unwrap();
            service.world.time.advance_to(next);
        }
        drop(run);
        service.world.pass(S(31));
    }
    service.replay();
    service.world.pass(S(30));
    let mut keys = service.bank.keys();
    keys.sort();
    keys.dedup();
    assert_eq!((keys.len(), service.left(), service.dead()), (20, 0, 0), "none is lost");
}

#[test]
fn a_journal_with_a_store_replays_no_recorded_key_again() {
    let service = Service::new(config());
    let store = Arc::new(InMemoryStore::builder().clock(&service.world.clock).build());
    let error = service.builder(config()).remembering(store.clone(), Duration::ZERO).build().unwrap_err();
    assert_eq!(error.field(), "window");
    let journal = service.builder(config()).remembering(store, S(3600)).build().unwrap();
    // Sent twice by a sender without deduplication.
    for _ in 0..2 {
        let message = Message::new("").header(IDEMPOTENCY_KEY, "order-1");
        service.world.run(service.queue.send_one(message)).unwrap();
    }
    service.world.run(service.run(&journal, service.world.clock.sleep(S(5))));
    assert_eq!((service.bank.keys(), service.left()), (vec!["order-1".to_owned()], 0));
}

/// Two unnamed journals, or journals named after `remembering`, once shared their records.
#[test]
fn journals_of_different_queues_do_not_share_recorded_keys() {
    let named = |journal: Builder<Journal>, name: Option<&str>| match name {
        Some(name) => journal.name(name),
        None => journal,
    };
    for (before, after) in [(None, None), (None, Some("each")), (Some("each"), None), (Some("each"), Some("each"))] {
        let service = Service::new(config());
        let world = &service.world;
        let store = Arc::new(InMemoryStore::builder().clock(&world.clock).build());
        let mut done = 0;
        for _ in 0..2 {
            let queue = Arc::new(InMemoryQueue::builder("payments").clock(&world.clock).build());
            let journal = named(Journal::builder(queue.clone(), config()), before);
            let journal = journal.remembering(store.clone(), S(3600)).clock(&world.clock);
            let journal = named(journal, after).build().unwrap();
            world.run(journal.defer("42", "")).unwrap();
            world.run(service.run(&journal, world.clock.sleep(S(5))));
            done += 1;
            assert_eq!(service.bank.keys(), vec!["42".to_owned(); done], "{before:?} {after:?}");
            assert_eq!(world.run(queue.depth()).unwrap().total(), 0);
        }
    }
}

#[test]
fn journals_of_one_queue_share_recorded_keys_whatever_their_names_and_wrappers() {
    let service = Service::new(config());
    let world = &service.world;
    let store = Arc::new(InMemoryStore::builder().clock(&world.clock).build());
    let network = FaultNetwork::new(FaultConfig::default(), 1, &world.clock).unwrap();
    for (name, queue) in
        [("one", service.queue.clone() as Arc<dyn Queue>), ("other", network.client("b").queue(service.queue.clone()))]
    {
        let message = Message::new("").header(IDEMPOTENCY_KEY, "42");
        world.run(queue.send_one(message)).unwrap();
        let journal = Journal::builder(queue, config())
            .name(name)
            .clock(&world.clock)
            .remembering(store.clone(), S(3600))
            .build()
            .unwrap();
        world.run(service.run(&journal, world.clock.sleep(S(5))));
        assert_eq!((service.bank.keys(), service.left()), (vec!["42".to_owned()], 0));
    }
}

// Guarantee: journal 4.
#[test]
fn a_run_that_waits_for_the_gate_stops_at_once_and_replays_after_a_manual_close() {
    let service = Service::new(config());
    for i in 0..10 {
        service.world.run(service.journal.defer(format!("order-{i}"), "")).unwrap();
    }
    service.breaker.isolate();
    let start = service.world.time.now();
    let stop = service.world.clock.sleep(S(600));
    service.world.run(service.run(&service.journal, stop));
    assert!(service.world.time.now() - start < S(602), "{:?}", service.world.time.now() - start);
    assert_eq!((service.left(), service.dead(), service.bank.asked()), (10, 0, 0));
    // Visible at once, for the next process.
    assert_eq!(service.world.run(service.queue.depth()).unwrap().visible, 10);
    service.replay();
    service.world.pass(S(100));
    service.breaker.close();
    service.world.pass(S(2) + MS(500));
    assert_eq!(service.bank.keys().len(), 10, "within a second, and at its pace");
}

// Guarantee: journal 8.
#[test]
fn the_caller_gets_the_rejection_if_the_journal_cannot_defer() {
    let service = Service::new(config());
    let network = FaultNetwork::new(FaultConfig::default(), 1, &service.world.clock).unwrap();
    let client = network.client("a");
    let journal =
        Journal::builder(client.queue(service.queue.clone()), config()).clock(&service.world.clock).build().unwrap();
    let mut events = journal.events();
    service.breaker.isolate();
    let refused = || service.world.run(service.breaker.call(async || Ok::<_, ()>(1)));
    client.cut();
    let error = service.world.run(journal.or_defer(refused(), || Entry::new("a", ""))).unwrap_err();
    assert!(error.is_rejected());
    client.heal();
    client.pause();
    let error = service.world.run(journal.defer("b", "")).unwrap_err();
    assert!(error.to_string().contains("timed out"), "{error}");
    let kinds: Vec<_> = told(&mut events)
        .into_iter()
        .map(|event| if let Event::DeferFailed { key, kind } = event { (key, kind) } else { panic!("{event:?}") })
        .collect();
    let [unavailable, timed_out] = [PortErrorKind::Unavailable, PortErrorKind::TimedOut].map(Some);
    assert_eq!(kinds, [("a".to_owned(), unavailable), ("b".to_owned(), timed_out)]);
    // Other results are returned unchanged.
    service.breaker.close();
    let failed = service.world.run(service.breaker.call(async || Err::<(), _>("no")));
    let error = service.world.run(journal.or_defer(failed, || Entry::new("c", ""))).unwrap_err();
    assert_eq!((error.into_operation(), service.left()), (Ok("no"), 0));
}

// Guarantee: journal 7.
#[test]
fn a_message_that_is_no_entry_becomes_a_dead_letter() {
    let service = Service::new(config());
    service.world.run(service.queue.send_one(Message::new("hello"))).unwrap();
    service.world.run(service.run(&service.journal, service.world.clock.sleep(S(2))));
    assert_eq!((service.left(), service.dead(), service.bank.asked()), (0, 1, 0));
}

// Guarantee: throttling 17.
#[test]
fn calls_of_low_priority_are_deferred_until_nothing_is_shed() {
    let service = Service::new(config());
    let load = Gauge::new();
    let rules = ShedderConfig::default().limit("load", 0.7, 0.8).sustain(S(1)).recovery(S(2));
    let shedder = Shedder::builder(rules).gauge("load", load.clone()).clock(&service.world.clock).build().unwrap();
    let pipeline = Pipeline::new().then(shedder.clone());
    let work = |priority, key: &str| {
        let result = service.world.run(pipeline.call(with_priority(priority, || service.bank.charge(key.to_owned()))));
        service.world.run(service.journal.or_defer(result, || Entry::new(key, ""))).unwrap()
    };
    assert_eq!(work(Priority::Low, "early"), Served::Now(()));
    load.set(0.9);
    service.world.pass(S(30));
    for i in 0..20 {
        assert_eq!(work(Priority::Low, &format!("report-{i}")), Served::Later);
    }
    assert_eq!(work(Priority::Critical, "alarm"), Served::Now(()));
    let (journal, bank, watch) = (service.journal.clone(), service.bank.clone(), shedder.clone());
    service.world.background.spawn({
        let watch = watch.clone();
        async move { watch.run(std::future::pending()).await }
    });
    service.world.background.spawn(async move {
        let gate = || if watch.shed_share(Priority::Low) > 0.0 { Gate::Shut(S(1)) } else { Gate::Open };
        let replay = |entry: Replay| {
            let bank = bank.clone();
            async move { bank.charge(entry.key.clone()).await }
        };
        journal.run(std::future::pending(), gate, replay).await.unwrap();
    });
    service.world.pass(S(60));
    assert_eq!((service.bank.keys().len(), service.left()), (2, 20), "it is still busy");
    load.set(0.1);
    service.world.pass(S(20));
    assert_eq!((service.bank.keys().len(), service.left(), service.dead()), (22, 0, 0));
}

#[test]
fn an_invalid_setting_is_reported_by_name() {
    let queue = || Arc::new(InMemoryQueue::new("q"));
    let refused = |config| Journal::new(queue(), config).unwrap_err();
    assert_eq!(refused(config().per_second(0)).field(), "per_second");
    assert_eq!(refused(config().concurrency(0)).field(), "concurrency");
    assert_eq!(refused(config().visibility(Duration::ZERO)).field(), "visibility");
    assert_eq!(refused(config().max_attempts(0)).field(), "max_attempts");
    assert_eq!(refused(config().retry(BackoffConfig::default().between(S(2), S(1)))).field(), "retry.base");
    assert!(toml::from_str::<JournalConfig>("colour = 3").is_err());
    assert_eq!(toml::from_str::<JournalConfig>("").unwrap(), JournalConfig::default());
    assert_eq!(toml::from_str::<JournalConfig>(&toml::to_string(&config()).unwrap()).unwrap(), config());
    assert_eq!(Gate::shut_for(Duration::ZERO), Gate::Open);
    assert_eq!(Replayed::from(Err::<(), _>("x")), Replayed::failed("x"));
}

// Guarantee: journal 1.
#[test]
fn a_journal_dropped_at_any_await_loses_no_entry() {
    let service = Service::new(config());
    let network = FaultNetwork::new(FaultConfig::default().latency(MS(1), MS(1)), 1, &service.world.clock).unwrap();
    let queue = network.client("a").queue(service.queue.clone());
    let journal = Journal::builder(queue, config()).clock(&service.world.clock).build().unwrap();
    let time = &service.world.time;
    // Deferred or not, and only once.
    let polls = drop_at_every_await(time, || journal.defer("order-1", ""), |_| assert!(service.left() <= 1));
    assert!(polls >= 2 && service.left() == 1, "{polls}");
    let (clock, done) = (&service.world.clock, &Mutex::new(0));
    let polls = drop_at_every_await(
        time,
        || {
            let open_at = time.now() + S(2);
            let gate = move || Gate::shut_for(open_at - time.now());
            let replay = async move |_: Replay| {
                clock.sleep(MS(5)).await;
                *done.lock().unwrap() += 1;
            };
            journal.run(clock.sleep(S(4)), gate, replay)
        },
        |_| {
            time.advance(S(31));
            // It is in the queue or was replayed, never neither.
            let left = service.left();
            assert_eq!(service.dead(), 0);
            assert!(left == 1 || *done.lock().unwrap() > 0);
            // Each run finds a fresh entry.
            service.world.run(service.queue.purge()).unwrap();
            *done.lock().unwrap() = 0;
            service.world.run(service.queue.send_one(Message::new("").header(IDEMPOTENCY_KEY, "k"))).unwrap();
        },
    );
    assert!(polls > 10, "{polls}");
}

// Guarantee: journal 4.
#[test]
fn a_redeployment_while_the_gate_is_shut_costs_no_entry_an_attempt() {
    let service = Service::new(config());
    for i in 0..20 {
        service.world.run(service.journal.defer(format!("order-{i:02}"), "")).unwrap();
    }
    service.breaker.isolate();
    for _ in 0..40 {
        service.world.run(service.run(&service.journal, service.world.clock.sleep(S(20))));
        assert_eq!((service.left(), service.dead(), service.bank.asked()), (20, 0, 0));
    }
    let peeked = service.world.run(service.queue.peek(100)).unwrap();
    assert!(peeked.iter().all(|entry| entry.attempts == 0 && entry.expiries == 0), "handed back, none was tried");
    service.breaker.close();
    service.world.run(service.run(&service.journal, service.world.clock.sleep(S(20))));
    let mut keys = service.bank.keys();
    keys.sort();
    assert!(keys.into_iter().eq((0..20).map(|i| format!("order-{i:02}"))), "each once");
    assert_eq!((service.left(), service.dead()), (0, 0));
}

/// Regression: entries that waited for the gate in killed processes became dead letters, untried.
// Guarantee: journal 4.
#[test]
fn processes_that_are_killed_while_the_gate_is_shut_cost_no_entry() {
    for seed in 0..5 {
        let service = Service::new(config());
        for i in 0..20 {
            service.world.run(service.journal.defer(format!("order-{i:02}"), "")).unwrap();
        }
        service.breaker.isolate();
        let entropy = steadfast::entropy::Entropy::from_seed(seed);
        for _ in 0..11 {
            let mut run = service.run(&service.journal, std::future::pending());
            let end = service.world.time.now() + S(20 + entropy.up_to(60));
            while service.world.time.now() < end {
                let _: std::task::Poll<()> = service.world.begin(&mut run);
                let next = service.world.time.next_timer().unwrap();
                service.world.time.advance_to(next);
            }
            drop(run);
            service.world.pass(S(31));
        }
        assert_eq!((service.left(), service.dead(), service.bank.asked()), (20, 0, 0), "seed {seed}");
        service.breaker.close();
        service.replay();
        service.world.pass(S(120));
        let mut keys = service.bank.keys();
        keys.sort();
        assert!(keys.into_iter().eq((0..20).map(|i| format!("order-{i:02}"))), "each once");
        assert_eq!((service.left(), service.dead()), (0, 0), "seed {seed}");
    }
}

// Guarantee: journal 4.
#[test]
fn a_redeployment_during_rejections_costs_no_entry_an_attempt() {
    let service = Service::new(config());
    for i in 0..20 {
        service.world.run(service.journal.defer(format!("order-{i:02}"), "")).unwrap();
    }
    service.breaker.isolate();
    // The gate does not know the breaker: each entry is begun and rejected.
    let replay = async |_: Replay| Replayed::of_call(service.breaker.call(async || Ok::<_, &str>(())).await);
    for _ in 0..40 {
        let shutdown = service.world.clock.sleep(S(20));
        service.world.run(service.journal.run(shutdown, || Gate::Open, replay)).unwrap();
    }
    let peeked = service.world.run(service.queue.peek(100)).unwrap();
    assert!(peeked.len() == 20 && peeked.iter().all(|entry| entry.attempts == 0), "refused is not tried");
    assert_eq!(service.dead(), 0);
}

/// Was: an entry that was refused with a hint of an hour waited for the hour, in hand, though the
/// service was back after a minute.
// Guarantee: journal 6.
#[test]
fn a_rejected_entry_is_tried_again_within_30_s_of_the_recovery_whatever_the_delay_was() {
    for hint in [S(3_600), S(86_400 * 365), Duration::MAX] {
        let service = Service::new(config());
        let world = &service.world;
        for i in 0..10 {
            world.run(service.journal.defer(format!("order-{i}"), "")).unwrap();
        }
        let begin = world.time.now();
        let (time, asked, done) = (&world.time, &Mutex::new(0), &Mutex::new(Vec::new()));
        let replay = |entry: Replay| {
            *asked.lock().unwrap() += 1;
            let is_back = time.now() - begin >= S(60);
            if is_back {
                done.lock().unwrap().push(entry.key.clone());
            }
            std::future::ready(if is_back { Replayed::Done } else { Replayed::Refused { after: Some(hint) } })
        };
        // The gate does not know of the rejections.
        let run =
            service.journal.run(world.clock.sleep(S(60) + Disposition::LONGEST_REFUSAL + S(2)), || Gate::Open, replay);
        world.run(run).unwrap();
        assert_eq!((done.lock().unwrap().len(), service.left(), service.dead()), (10, 0, 0), "{hint:?}");
        let asked = *asked.lock().unwrap();
        assert!((12..=40).contains(&asked), "refused entries were tried {asked} times");
    }
}

// Guarantee: journal 6.
#[test]
fn a_rejected_entry_is_replayed_when_a_gate_that_shut_meanwhile_opens() {
    let service = Service::new(config());
    let world = &service.world;
    world.run(service.journal.defer("order", "")).unwrap();
    let begin = world.time.now();
    let (time, tries) = (&world.time, &Mutex::new(Vec::new()));
    let replay = |_: Replay| {
        let at = time.now() - begin;
        tries.lock().unwrap().push(at.as_secs());
        std::future::ready(if at < S(5) { Replayed::Refused { after: Some(S(25)) } } else { Replayed::Done })
    };
    let gate = move || if (S(2)..S(10)).contains(&(time.now() - begin)) { Gate::Shut(S(1)) } else { Gate::Open };
    world.run(service.journal.run(world.clock.sleep(S(40)), gate, replay)).unwrap();
    assert_eq!((&*tries.lock().unwrap(), service.left()), (&vec![0, 10], 0));
}
