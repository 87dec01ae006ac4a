//! Outages of the service behind the handlers cost messages only time; messages that fail by
//! themselves become dead letters.
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use steadfast::{
    Pipeline,
    backoff::{Backoff, Jitter},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State},
    entropy::Entropy,
    notify::InMemoryNotifier,
    queue::{InMemoryQueue, Message, Queue, QueueExt},
    queue_listener::{Disposition, Level, QueueListenerConfig, Work},
    time::Instant,
};

use crate::queue_listener::world::{MS, S, World, text};

/// A service that is away for some time, and counts its calls.
struct Service<'a> {
    world: &'a World,
    away: AtomicBool,
    asked: AtomicU32,
    /// Times at which the messages were handled.
    done: Mutex<BTreeMap<String, Instant>>,
}

impl<'a> Service<'a> {
    fn new(world: &'a World, away: bool) -> Self {
        Self { world, away: AtomicBool::new(away), asked: AtomicU32::new(0), done: Mutex::default() }
    }

    async fn ask(&self, work: &Work) -> Result<(), &'static str> {
        self.asked.fetch_add(1, SeqCst);
        self.world.clock.sleep(MS(5)).await;
        if self.away.load(SeqCst) {
            return Err("the service is away");
        }
        self.done.lock().unwrap().entry(text(&work.body)).or_insert(self.world.now());
        Ok(())
    }
}

fn breaker(world: &World, config: CircuitBreakerConfig, seed: u64) -> CircuitBreaker {
    CircuitBreaker::builder(config).clock(&world.clock).entropy(&Entropy::from_seed(seed)).build().unwrap()
}

fn fill(world: &World, of: &str, messages: usize) {
    for first in (0..messages).step_by(100) {
        let batch = (first..messages.min(first + 100)).map(|i| Message::new(format!("{of}-{i}"))).collect();
        world.time.block_on(world.queue.send(batch)).unwrap();
    }
}

/// A number of messages for a service that is away for a given time, and of listeners, each with
/// its breaker.
fn outage(messages: usize, away: Duration, listeners: usize, seed: u64) {
    let world = World::new();
    fill(&world, "job", messages);
    let service = Service::new(&world, true);
    let config = QueueListenerConfig::default();
    let breakers: Vec<_> =
        (0..listeners).map(|i| breaker(&world, CircuitBreakerConfig::default(), seed + i as u64)).collect();
    let pipelines: Vec<_> = breakers.iter().map(|breaker| Pipeline::new().then(breaker.clone())).collect();
    let listeners: Vec<_> = (0..listeners).map(|i| world.listener(config, seed * 10 + i as u64)).collect();
    let runs = listeners.iter().zip(&pipelines).map(|(listener, pipeline)| {
        let service = &service;
        listener.run(world.clock.sleep(away + S(180)), async move |work: Work| {
            Disposition::of_call(pipeline.call(|| service.ask(&work)).await)
        })
    });
    let returns = async {
        world.clock.sleep(away).await;
        service.away.store(false, SeqCst);
        let open = breakers.iter().filter_map(|breaker| breaker.snapshot().retry_after).max();
        (world.now(), service.asked.load(SeqCst), open.unwrap_or_default())
    };
    let (ran, (back, asked, open)) =
        world.time.block_on(async { tokio::join!(futures::future::join_all(runs), returns) });
    ran.into_iter().for_each(|ran| ran.unwrap());
    assert_eq!(world.dead(), [], "{messages} messages, away {away:?}");
    assert_eq!((service.done.lock().unwrap().len(), world.depth().total()), (messages, 0));
    let last = *service.done.lock().unwrap().values().max().unwrap() - back;
    let bound = open.max(S(50)) + S(10);
    assert!(
        last <= bound,
        "{messages} messages, away {away:?}: the last is done {last:?} after, the breakers were open for {open:?}"
    );
    // The failures until it opens, then at most five probes for each half-open phase.
    let opened = away.as_secs() as u32 / 60 + 8;
    let most = listeners.len() as u32 * (40 + 5 * opened);
    assert!(asked <= most, "asked {asked} times while it was away, {most} at most");
    let requests: u64 = listeners.iter().map(|listener| listener.state().requests).sum();
    let most = (messages as u64 + 25) * (away.as_secs() + 180) / 10 + 30 * (away.as_secs() + 180) + 1000;
    assert!(requests <= most, "{requests} requests, {most} at most");
}

#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn an_hour_without_the_service_behind_a_breaker_makes_no_dead_letter() {
    for (messages, seed) in [(1, 1), (2, 2), (20, 3), (2_000, 4)] {
        outage(messages, S(3600), 1, seed);
    }
}

#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn minutes_without_the_service_make_no_dead_letter_for_any_number_of_messages_and_listeners() {
    outage(2_000, S(180), 1, 9);
    for seed in 0..2 {
        for messages in [1, 7, 20, 200] {
            outage(messages, S(180 + 7 * seed), 1 + seed as usize % 2, seed);
        }
    }
}

#[test]
fn a_refusal_costs_no_attempt_and_has_its_own_event() {
    let world = World::new();
    world.send("job");
    let breaker = breaker(&world, CircuitBreakerConfig::default(), 1);
    breaker.force_open(S(300));
    let pipeline = Pipeline::new().then(breaker);
    let listener = world.listener(QueueListenerConfig::default().max_attempts(1), 1);
    let seen = Cell::new((0, 0));
    let run = listener.run(world.clock.sleep(S(400)), async |work: Work| {
        seen.set((work.attempt(), work.deliveries));
        Disposition::of_call(pipeline.call(async || Ok::<_, &str>(())).await)
    });
    world.time.block_on(run).unwrap();
    let state = listener.state();
    assert_eq!((state.handled, state.failed, state.dead_lettered), (1, 0, 0));
    assert_eq!(seen.get(), (1, state.refused as u32 + 1), "each refusal was a delivery, and no attempt");
    assert!((10..30).contains(&state.refused), "each half a minute: {}", state.refused);
}

#[test]
fn messages_for_a_healthy_service_are_handled_while_another_service_refuses() {
    for away_first in [true, false] {
        let world = World::new();
        let order = if away_first { ["away", "well"] } else { ["well", "away"] };
        order.into_iter().for_each(|of| fill(&world, of, 300));
        let (away, well) = (Service::new(&world, true), Service::new(&world, false));
        let pipelines = [1, 2].map(|seed| Pipeline::new().then(breaker(&world, CircuitBreakerConfig::default(), seed)));
        let listener = world.listener(QueueListenerConfig::default(), 1);
        let start = world.now();
        let run = listener.run(world.clock.sleep(S(900)), async |work: Work| {
            let (service, pipeline) =
                if work.body.starts_with(b"away") { (&away, &pipelines[0]) } else { (&well, &pipelines[1]) };
            Disposition::of_call(pipeline.call(|| service.ask(&work)).await)
        });
        let more = async {
            // One each ten seconds, as long as the other service is away.
            let mut waits = Vec::new();
            for i in 0..60 {
                world.clock.sleep(S(10)).await;
                let name = format!("well-later-{i}");
                world.queue.send(vec![Message::new(name.clone())]).await.unwrap();
                waits.push((name, world.now()));
            }
            away.away.store(false, SeqCst);
            waits
        };
        let (ran, sent) = world.time.block_on(async { tokio::join!(run, more) });
        ran.unwrap();
        assert_eq!((world.dead(), world.depth().total()), (vec![], 0));
        let done = well.done.lock().unwrap();
        let first = (0..300).map(|i| done[&format!("well-{i}")] - start).max().unwrap();
        assert!(first <= S(30), "the others held them up for {first:?}");
        let longest = sent.iter().map(|(name, at)| done[name] - *at).max().unwrap();
        assert!(longest <= S(30), "one waited {longest:?}");
        assert!(away.asked.load(SeqCst) - 300 < 150, "asked {} times", away.asked.load(SeqCst));
    }
}

#[test]
fn a_message_that_fails_behind_its_own_breaker_becomes_a_dead_letter_in_the_end() {
    let world = World::new();
    world.send("poison");
    let breaker = breaker(&world, CircuitBreakerConfig::default().count_window(10, 3), 1);
    let pipeline = Pipeline::new().then(breaker.clone());
    let listener = world.listener(QueueListenerConfig::default(), 1);
    let (tried, opened) = (AtomicU32::new(0), Cell::new(false));
    let run = listener.run(world.clock.sleep(S(24 * 3600)), async |_: Work| {
        opened.set(opened.get() || breaker.state() == State::Open);
        let fails = async || {
            tried.fetch_add(1, SeqCst);
            Err::<(), _>("it cannot be read")
        };
        Disposition::of_call(pipeline.call(fails).await)
    });
    world.time.block_on(run).unwrap();
    assert!(opened.get());
    assert_eq!(world.dead().len(), 1);
    assert!(tried.load(SeqCst) < 850, "in bounded work: {}", tried.load(SeqCst));
}

#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn a_message_that_fails_behind_a_limit_of_most_calls_costs_bounded_work() {
    for neighbours in [false, true] {
        let world = World::new();
        world.send("poison");
        let (entropy, tried) = (Entropy::from_seed(7), Cell::new(0));
        let listener = world.listener(QueueListenerConfig::default(), 1);
        let run = listener.run(world.clock.sleep(S(12 * 3600)), async |work: Work| {
            if entropy.unit() < 0.9 {
                return Disposition::refused(None, "the limit is reached");
            }
            if work.body != "poison" {
                return Disposition::Complete;
            }
            tried.set(tried.get() + 1);
            Disposition::retry("it cannot be read")
        });
        let sends = async {
            for n in 0..if neighbours { 11 * 720 } else { 0 } {
                world.queue.send_one(Message::new(n.to_string())).await.unwrap();
                world.clock.sleep(S(5)).await;
            }
        };
        world.time.block_on(async { tokio::join!(run, sends).0 }).unwrap();
        let (attempts, most) = (QueueListenerConfig::default().max_attempts, if neighbours { 1 } else { 720 });
        assert_eq!((world.dead().len(), world.depth().total()), (1, 0), "neighbours: {neighbours}");
        assert!((attempts..=attempts + most).contains(&tried.get()), "neighbours: {neighbours}, {}", tried.get());
    }
}

#[test]
fn the_default_schedule_always_outlasts_an_hour_and_poison_costs_bounded_work() {
    let config = QueueListenerConfig::default();
    let mut shortest = Duration::MAX;
    for seed in 0..1_000 {
        let delays = Backoff::new(config.retry, &Entropy::from_seed(seed)).unwrap();
        shortest = shortest.min(delays.take(config.max_attempts as usize - 1).sum());
    }
    assert!(shortest >= S(3600), "{shortest:?}");
    let full = Backoff::new(config.retry.jitter(Jitter::None), &Entropy::from_seed(0)).unwrap();
    let least: Duration = full.take(config.max_attempts as usize - 1).map(|delay| delay / 2).sum();
    assert!(least >= S(3600), "each delay is at least half: {least:?}");

    let world = World::new();
    world.send("poison");
    let listener = world.listener(config, 1);
    let mut tried = 0;
    let tries = RefCell::new(&mut tried);
    let run = listener.run(world.clock.sleep(S(3 * 3600)), async |_: Work| {
        **tries.borrow_mut() += 1;
        Err::<(), _>("it cannot be read")
    });
    world.time.block_on(run).unwrap();
    assert_eq!((world.dead().len(), tried), (1, config.max_attempts));
}

#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn handlers_that_fail_for_a_while_make_no_dead_letter() {
    for (messages, away) in [(2_000, 30), (100, 600), (100, 3500)] {
        let world = World::new();
        fill(&world, "job", messages);
        let service = Service::new(&world, true);
        let listener = world.listener(QueueListenerConfig::default(), 1);
        let run = listener.run(world.clock.sleep(S(away + 120)), async |work: Work| service.ask(&work).await);
        let returns = async {
            world.clock.sleep(S(away)).await;
            service.away.store(false, SeqCst);
        };
        world.time.block_on(async { tokio::join!(run, returns).0 }).unwrap();
        assert_eq!((world.dead(), service.done.lock().unwrap().len()), (vec![], messages), "away {away} s");
    }
}

#[test]
fn returned_messages_are_polled_for_though_only_notices_wake_the_listener() {
    let world = World::new();
    let notifier = Arc::new(InMemoryNotifier::new());
    let config = QueueListenerConfig::default().tasks(0, 4);
    let listener = world.builder(config, 1).notifier(notifier, "jobs").build().unwrap();
    world.send("job");
    let began = RefCell::new(Vec::new());
    let run = listener.run(world.clock.sleep(S(4000)), async |_: Work| {
        began.borrow_mut().push(world.now());
        match began.borrow().len() {
            1 => Disposition::retry_after(S(1800), "not yet"),
            2 => Disposition::refused(Some(S(20)), "not now"),
            _ => Disposition::Complete,
        }
    });
    world.time.block_on(run).unwrap();
    let began = began.into_inner();
    let gaps: Vec<_> = began.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps.len(), 2, "{gaps:?}");
    assert!(gaps[0] >= S(1800) && gaps[0] <= S(1801), "{gaps:?}");
    assert!(gaps[1] >= S(20) && gaps[1] <= S(22), "{gaps:?}");
    assert_eq!((listener.state().handled, listener.state().tasks), (1, 0));
}

/// Refused messages of a backlog, and others in the same queue and in a lower one.
#[test]
fn a_backlog_of_refused_messages_hides_neither_others_nor_a_lower_queue() {
    for after in [None, Some(S(30))] {
        let world = World::new();
        for (what, time) in [("receive", MS(5)), ("settle", MS(5))] {
            world.line.takes(what, time);
        }
        fill(&world, "away", 10_000);
        let lower = Arc::new(InMemoryQueue::builder("lower").clock(&world.clock).build());
        let config = QueueListenerConfig::default();
        let builder = world.builder(config, 1).level(Level::default().priority(1));
        let listener = builder.source(lower.clone(), Level::default()).build().unwrap();
        let done = RefCell::new(BTreeMap::new());
        let run = listener.run(world.clock.sleep(S(120)), async |work: Work| {
            if work.body.starts_with(b"away") {
                return Disposition::refused(after, "the service is away");
            }
            done.borrow_mut().insert(text(&work.body), world.now());
            Disposition::Complete
        });
        let sends = async {
            let mut sent = Vec::new();
            for i in 0..100 {
                world.clock.sleep(S(1)).await;
                for (queue, of) in [(&world.queue as &dyn Queue, "same"), (&*lower, "lower")] {
                    sent.push((format!("{of}-{i}"), world.now()));
                    queue.send(vec![Message::new(format!("{of}-{i}"))]).await.unwrap();
                }
            }
            sent
        };
        let (ran, sent) = world.time.block_on(async { tokio::join!(run, sends) });
        ran.unwrap();
        let done = done.borrow();
        let mut waits: Vec<_> =
            sent.iter().map(|(name, at)| done.get(name).map_or(S(3600), |done| *done - *at)).collect();
        waits.sort_unstable();
        let (median, longest) = (waits[waits.len() / 2], waits[waits.len() - 1]);
        println!("after {after:?}: median {median:?}, longest {longest:?}, {} requests", listener.state().requests);
        assert!(median <= S(1) && longest <= S(10), "after {after:?}: median {median:?}, longest {longest:?}");
        assert_eq!(world.dead(), []);
    }
}

/// Regression: a message with lost deliveries passed for one that was refused in the outage of
/// another service, and its failures were not counted for six hours.
#[test]
fn a_poisoned_message_has_its_attempts_in_the_outage_of_another_service() {
    for lost in [0, 20] {
        let world = World::new();
        world.send("poison");
        for _ in 0..lost {
            world.time.block_on(world.queue.receive_one(S(1))).unwrap().unwrap();
            world.time.advance(S(2));
        }
        let listener = world.listener(QueueListenerConfig::default().max_attempts(3), 1);
        let tries = Cell::new(0);
        let run = listener.run(world.clock.sleep(S(3 * 3600)), async |work: Work| {
            if work.body == "poison" {
                tries.set(tries.get() + 1);
                return Disposition::retry("it cannot be read");
            }
            Disposition::refused(Some(S(30)), "the service is away")
        });
        world.send("for another service");
        world.time.block_on(run).unwrap();
        assert_eq!((tries.get(), world.dead().len()), (3, 1), "{lost} deliveries were lost");
    }
}
