//! A message that kills its process: it alone becomes a dead letter, and costs each other message
//! one delivery at most.
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::pending,
};

use steadfast::{
    entropy::Entropy,
    queue::{Queue, QueueExt},
    queue_listener::{Disposition, QueueListener, QueueListenerConfig, QueueListenerEvent as Event, Work},
};

use crate::queue_listener::world::{MS, S, World, text, told};

/// Handlers of single messages or of batches.
#[derive(Debug, Clone, Copy)]
enum By {
    One,
    Batch,
}

/// Deliveries of a process before it was killed.
struct Lives<'a> {
    world: &'a World,
    entropy: Entropy,
    takes: u64,
    began: RefCell<BTreeMap<String, u32>>,
}

impl Lives<'_> {
    /// One process: it ends when a message kills it, or when it finds nothing for a long time.
    async fn live(&self, listener: &QueueListener, by: By) -> bool {
        let killed = tokio::sync::Notify::new();
        let handle = async |work: &Work| {
            let body = text(&work.body);
            *self.began.borrow_mut().entry(body.clone()).or_default() += 1;
            self.world.clock.sleep(MS(self.entropy.up_to(self.takes))).await;
            if body.starts_with("kills") {
                killed.notify_one();
                pending::<()>().await;
            }
        };
        let dies = async {
            killed.notified().await;
            true
        };
        let runs = async {
            let stop = async {
                self.world.clock.sleep(S(1)).await;
                while self.world.depth_now().await > 0 {
                    self.world.clock.sleep(S(1)).await;
                }
            };
            match by {
                By::One => listener.run(stop, async |work: Work| handle(&work).await).await.unwrap(),
                By::Batch => {
                    let handler = async |works: Vec<Work>| {
                        futures::future::join_all(works.iter().map(&handle)).await;
                        works.iter().map(|_| Disposition::Complete).collect()
                    };
                    listener.run_batches(stop, handler).await.unwrap();
                }
            }
            false
        };
        tokio::select! { biased; died = dies => died, died = runs => died }
    }
}

/// Messages, killers among them, and processes that are restarted when they die.
fn crashes(messages: usize, killers: usize, processes: usize, takes: u64, by: By, seed: u64) {
    let world = World::new();
    let entropy = Entropy::from_seed(seed);
    let mut bodies: Vec<_> = (0..messages - killers).map(|i| format!("well-{i}")).collect();
    for i in 0..killers {
        bodies.insert(entropy.up_to(bodies.len() as u64) as usize, format!("kills-{i}"));
    }
    bodies.iter().for_each(|body| drop(world.send(body)));
    let lives = Lives { world: &world, entropy, takes, began: RefCell::default() };
    let process = async |i: u64| {
        let mut deaths = 0;
        loop {
            let listener = world.listener(QueueListenerConfig::default(), seed * 100 + i * 10 + deaths);
            if !lives.live(&listener, by).await {
                return deaths;
            }
            deaths += 1;
            // Restarts the process.
            world.clock.sleep(S(1)).await;
        }
    };
    let all = futures::future::join_all((0..processes as u64).map(process));
    let deaths: u64 = world.run(S(3600 * 10), all).expect("it comes to an end").into_iter().sum();
    let mut dead: Vec<_> = world.dead().into_iter().map(|(body, _)| body).collect();
    dead.sort();
    let expected: Vec<_> = (0..killers).map(|i| format!("kills-{i}")).collect();
    assert_eq!(dead, expected, "{messages} {killers} {processes} {takes} {by:?} {seed}");
    // A batch may contain two killers, one of which dies of the other.
    // One that takes longer than a lease may die after it has left its probation to another.
    let most = if takes > 30_000 { 10 } else { 5 };
    assert!(deaths <= most * killers as u64, "{deaths} deaths");
    for (body, began) in &*lives.began.borrow() {
        // Others flow beside a suspect message that takes longer than a third of a lease.
        let most = if body.starts_with("kills") || takes > 10_000 { 8 } else { 2 };
        assert!(*began <= most, "{body} began {began} times: {messages} {killers} {processes} {takes} {by:?} {seed}");
    }
}

// Guarantee: queue_listener 6.
#[test]
fn only_the_message_that_kills_its_process_becomes_a_dead_letter() {
    for seed in 0..2 {
        crashes(100, 1, 1, 0, By::One, seed);
        crashes(100, 1, 1, 200, By::One, seed);
        crashes(100, 1, 1, 60_000, By::One, seed);
        crashes(100, 1, 1, 1_000, By::Batch, seed);
    }
}

#[test]
fn several_killing_messages_in_several_processes_make_no_other_dead_letter() {
    for seed in 0..2 {
        crashes(100, 3, 1, 500, By::One, seed);
        crashes(150, 3, 3, 2_000, By::One, seed);
        crashes(60, 2, 2, 40_000, By::One, seed);
        crashes(100, 3, 2, 500, By::Batch, seed);
    }
}

#[test]
fn a_suspect_message_is_handled_alone_for_a_bounded_time_and_its_lease_is_renewed_meanwhile() {
    let world = World::new();
    world.send("suspect");
    // Its first receiver dies.
    world.time.block_on(world.queue.receive_one(S(30))).unwrap().unwrap();
    for i in 0..20 {
        world.send(&format!("long-{i}"));
    }
    let listener = world.listener(QueueListenerConfig::default(), 1);
    let mut events = listener.events();
    let (now, alone) = (Cell::new(0), Cell::new(None));
    let run = listener.run(world.clock.sleep(S(2_000)), async |work: Work| {
        now.set(now.get() + 1);
        if &work.body[..] == b"suspect" {
            assert_eq!((work.attempt(), work.expiries, work.crashes, now.get()), (2, 1, 0, 1));
            alone.set(Some(()));
            world.clock.sleep(S(9)).await;
            assert_eq!(now.get(), 1, "nothing began beside it");
            let depth = world.queue.depth().await.unwrap();
            assert_eq!(depth.in_flight, 1, "and nothing else is in hand");
            world.clock.sleep(S(91)).await;
            assert!(now.get() > 1, "the others do not wait for its end");
        } else {
            // Much longer than a lease.
            world.clock.sleep(S(90)).await;
        }
        now.set(now.get() - 1);
    });
    world.time.block_on(run).unwrap();
    assert!(alone.get().is_some());
    let state = listener.state();
    assert_eq!((state.handled, state.leases_lost, state.dead_lettered), (21, 0, 0));
    let told = told(&mut events);
    assert!(!told.iter().any(|event| matches!(event, Event::LeaseLost { .. })), "{told:?}");
}

#[test]
fn a_stopped_handler_or_a_released_lease_makes_no_message_suspect() {
    let world = World::new();
    world.send("job");
    let config = QueueListenerConfig::default().stop_within(S(1), S(2));
    for seed in 0..10 {
        let listener = world.listener(config, seed);
        let run = listener.run(world.clock.sleep(S(1)), async |_: Work| pending::<()>().await);
        world.time.block_on(run).unwrap();
    }
    let taken = world.time.block_on(world.queue.receive_one(S(30))).unwrap().unwrap();
    assert_eq!((taken.deliveries, taken.attempts, taken.expiries), (11, 0, 0), "a redeployment costs no attempt");
}
