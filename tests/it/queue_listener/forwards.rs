//! Handlers that answer with results, which the listener forwards.
use std::{
    cell::Cell,
    future::{Ready, pending, ready},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    claim_check::{ClaimCheck, ClaimCheckConfig},
    entropy::Entropy,
    queue::{Address, IdempotencyFilter, InMemoryQueue, Message, Queue, QueueExt, Receive},
    queue_listener::{Disposition, QueueListener, QueueListenerConfig, Work},
    store::InMemoryStore,
    testing::{
        CrashingProcess, crash_at_every_write, fail_at_every_write,
        faults::{FaultConfig, FaultNetwork},
    },
    time::block_on,
};

use crate::{
    engines::Engine,
    queue_listener::world::{MS, Mode, S, World, text},
};

/// The queue of results, and its address.
fn results(world: &World, bound: usize) -> (InMemoryQueue, Address) {
    let queue = InMemoryQueue::builder("results").bounded(bound).clock(&world.clock).build();
    let address = queue.address().unwrap();
    (queue, address)
}

/// A handler that counts its runs and answers with one result.
fn one_result<'a>(runs: &'a Cell<u32>, target: &'a Address) -> impl Fn(Work) -> Ready<Disposition> + 'a {
    |work: Work| {
        runs.set(runs.get() + 1);
        ready(Disposition::forward([(target.clone(), Message::new(work.body.clone()))]))
    }
}

fn total(world: &World, queue: &InMemoryQueue) -> u64 {
    world.time.block_on(queue.depth()).unwrap().total()
}

// Guarantee: queue_listener 22.
#[test]
fn the_results_of_handled_messages_are_sent_and_the_messages_end() {
    let world = World::new();
    let (queue, target) = results(&world, 1000);
    let listener = world.listener(QueueListenerConfig::default(), 1);
    (0..100).for_each(|_| drop(world.send("a")));
    let runs = Cell::new(0);
    world.time.block_on(listener.run(world.clock.sleep(S(10)), one_result(&runs, &target))).unwrap();
    assert_eq!((runs.get(), listener.state().handled, listener.state().leases_lost), (100, 100, 0));
    assert_eq!((total(&world, &queue), world.depth().total(), world.dead()), (100, 0, Vec::new()));
}

// Guarantee: queue_listener 22.
#[test]
fn a_forward_to_a_full_queue_is_repeated_until_there_is_room() {
    let world = World::new();
    let (queue, target) = results(&world, 1);
    let listener = world.listener(QueueListenerConfig::default(), 1);
    (0..5).for_each(|_| drop(world.send("a")));
    let (runs, emptied) = (Cell::new(0), Cell::new(0));
    world.time.block_on(async {
        let run = listener.run(world.clock.sleep(S(600)), one_result(&runs, &target));
        let empties = async {
            loop {
                world.clock.sleep(S(3)).await;
                emptied.set(emptied.get() + queue.purge().await.unwrap());
            }
        };
        tokio::select! { biased; ran = run => ran.unwrap(), () = empties => {} }
    });
    assert_eq!((runs.get(), emptied.get() + total(&world, &queue), listener.state().handled), (5, 5, 5));
    assert_eq!((world.depth().total(), world.dead()), (0, Vec::new()));
}

// Guarantee: queue_listener 22.
#[test]
fn a_forward_that_is_refused_for_good_is_a_failed_attempt() {
    let world = World::new();
    let listener = world.listener(QueueListenerConfig::default().max_attempts(3), 1);
    let _ = world.send("a");
    let (runs, target) = (Cell::new(0), Address::new("elsewhere"));
    world.time.block_on(listener.run(world.clock.sleep(S(600)), one_result(&runs, &target))).unwrap();
    assert_eq!((runs.get(), listener.state().leases_lost, world.depth().total()), (3, 0, 0));
    let letters = world.time.block_on(world.queue.dead_letters().unwrap().peek(10)).unwrap();
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    let refused = "the forward was refused: cannot forward to `elsewhere`: it is no queue of this `memory`";
    let reason = letter.reason.as_deref().unwrap_or_default();
    assert!(reason.starts_with(&format!("exceeded max attempts: {refused}")), "{reason}");
    assert!(letter.errors.len() == 3 && letter.errors.iter().all(|error| error.text == refused), "{:?}", letter.errors);
}

#[test]
fn a_queue_that_cannot_forward_says_so_in_the_reason() {
    let world = World::new();
    let (_, target) = results(&world, 1000);
    let checked = ClaimCheck::builder(world.queue.clone(), Arc::new(InMemoryStore::new()), ClaimCheckConfig::default());
    let checked = Arc::new(checked.clock(&world.clock).build().unwrap());
    let listener = QueueListener::builder(checked, QueueListenerConfig::default().max_attempts(1));
    let listener = listener.clock(&world.clock).build().unwrap();
    let _ = world.send("a");
    let runs = Cell::new(0);
    world.time.block_on(listener.run(world.clock.sleep(S(10)), one_result(&runs, &target))).unwrap();
    let letters = world.time.block_on(world.queue.dead_letters().unwrap().peek(10)).unwrap();
    let reason = letters[0].reason.as_deref().unwrap_or_default();
    assert!(reason.contains("refused: the backend `memory` lacks the capability `forward`"), "{reason}");
}

// Guarantee: queue_listener 22.
#[test]
fn results_are_sent_once_though_replies_are_lost_or_the_queue_is_away() {
    for mode in [Mode::LosesReplies, Mode::Refuses, Mode::Hangs] {
        for away in [S(8), S(70)] {
            let world = World::new();
            let (queue, target) = results(&world, 1000);
            let listener = world.listener(QueueListenerConfig::default(), 1);
            (0..3).for_each(|_| drop(world.send("a")));
            world.line.is("settle", mode);
            let runs = Cell::new(0);
            world.time.block_on(async {
                let run = listener.run(world.clock.sleep(S(300)), one_result(&runs, &target));
                let returns = async {
                    world.clock.sleep(away).await;
                    world.line.is("settle", Mode::Well);
                    std::future::pending::<()>().await;
                };
                tokio::select! { biased; ran = run => ran.unwrap(), () = returns => {} }
            });
            let (sent, left) = (total(&world, &queue), world.depth().total());
            assert_eq!((runs.get(), sent, left), (3, 3, 0), "{mode:?} for {away:?}");
        }
    }
}

/// A record of the message before its settlement would complete it without its results.
// Guarantee: queue_listener 14, 22.
#[test]
fn a_message_whose_results_were_not_sent_is_handled_again_despite_the_filter() {
    let world = World::new();
    let (queue, target) = results(&world, 1000);
    let filter = IdempotencyFilter::new(Arc::new(InMemoryStore::new()), "handled", Duration::from_secs(3600));
    let listener =
        |seed| world.builder(QueueListenerConfig::default(), seed).idempotency_filter(filter.clone()).build().unwrap();
    let _ = world.send("a");
    let runs = Cell::new(0);
    world.line.is("settle", Mode::Refuses);
    world.time.block_on(listener(1).run(world.clock.sleep(S(5)), one_result(&runs, &target))).unwrap();
    assert_eq!((runs.get(), total(&world, &queue)), (1, 0));
    world.line.is("settle", Mode::Well);
    world.time.block_on(listener(2).run(world.clock.sleep(S(300)), one_result(&runs, &target))).unwrap();
    assert_eq!((runs.get(), total(&world, &queue), world.depth().total()), (2, 1, 0));
}

/// Expiries would make the messages suspect for the next process, and then dead letters.
// Guarantee: queue_listener 22.
#[test]
fn messages_whose_target_is_full_for_long_count_no_expiries() {
    let world = World::new();
    let (queue, target) = results(&world, 1);
    world.time.block_on(queue.send(vec![Message::new("full")])).unwrap();
    let runs = Cell::new(0);
    (0..20).for_each(|_| drop(world.send("a")));
    let listener = |seed| world.listener(QueueListenerConfig::default(), seed);
    let (first, second) = (listener(1), listener(2));
    let run = |listener: &QueueListener| {
        let (listener, ends, handler) = (listener.clone(), world.clock.sleep(S(600)), one_result(&runs, &target));
        async move { listener.run(ends, handler).await.unwrap() }
    };
    world.time.block_on(async { tokio::join!(run(&first), run(&second)) });
    for listener in [first, second] {
        assert_eq!((listener.state().leases_lost, listener.state().failed), (0, 0));
    }
    let left = world.time.block_on(world.queue.peek(100)).unwrap();
    assert!(left.len() == 20 && left.iter().all(|left| (left.attempts, left.expiries) == (0, 0)), "{left:?}");
    assert!(runs.get() < 20 * 600 / 15, "the handler ran {} times in ten minutes", runs.get());
    let requests = world.line.calls("settle").len();
    assert!(requests < 5_000, "{requests} requests for 20 messages in ten minutes");
}

/// Its lease would end long after the listener, and count an expiry.
// Guarantee: queue_listener 8, 22.
#[test]
fn a_listener_that_stops_releases_messages_whose_target_is_full() {
    let world = World::new();
    let (queue, target) = results(&world, 1);
    world.time.block_on(queue.send(vec![Message::new("full")])).unwrap();
    let runs = Cell::new(0);
    let _ = world.send("a");
    let config = QueueListenerConfig::default().visibility(S(3600)).call_timeout(S(5));
    world.time.block_on(world.listener(config, 1).run(world.clock.sleep(S(60)), one_result(&runs, &target))).unwrap();
    world.time.advance(S(2));
    let left = world.time.block_on(world.queue.peek(10)).unwrap();
    assert!(left.len() == 1 && !left[0].hidden && left[0].expiries == 0, "{left:?}");
    assert_eq!(runs.get(), 1);
}

// Guarantee: queue_listener 22.
#[test]
fn a_handler_without_results_completes_its_message_in_any_queue() {
    assert_eq!(Disposition::forward([]), Disposition::Complete);
}

/// A listener remembers decisions that it could not settle. The results of a forward may be large.
#[test]
fn results_that_were_sent_after_a_failure_are_not_kept() {
    struct Body {
        _kept: Arc<()>,
    }
    impl AsRef<[u8]> for Body {
        fn as_ref(&self) -> &[u8] {
            b"result"
        }
    }
    let world = World::new();
    let (queue, target) = results(&world, 1000);
    let listener = world.listener(QueueListenerConfig::default(), 1);
    let _ = world.send("a");
    let kept = Arc::new(());
    world.line.is("settle", Mode::Refuses);
    let handler = async |_: Work| {
        let result = Message::new(Bytes::from_owner(Body { _kept: kept.clone() }));
        Disposition::forward([(target.clone(), result)])
    };
    world.time.block_on(async {
        let returns = async {
            world.clock.sleep(S(8)).await;
            world.line.is("settle", Mode::Well);
        };
        let (ran, ()) = tokio::join!(listener.run(world.clock.sleep(S(60)), handler), returns);
        ran.unwrap();
        assert_eq!(queue.purge().await.unwrap(), 1);
    });
    assert_eq!((Arc::strong_count(&kept), listener.state().handled), (1, 1));
}

/// Processes are killed at random, requests fail, come twice or lose their replies, and the target
/// is full now and then.
// Guarantee: queue_listener 15, 22.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn each_result_is_sent_once_whatever_is_killed_and_lost() {
    const MESSAGES: usize = 40;
    for seed in 0..20 {
        let world = World::new();
        let (queue, target) = results(&world, 5);
        let entropy = Entropy::from_seed(seed);
        let faults = FaultConfig::default().errors(0.05).lost_replies(0.1).doubled(0.1).latency(MS(1), MS(300));
        let network = FaultNetwork::new(faults, seed, &world.clock).unwrap();
        for i in 0..MESSAGES {
            let message = Message::new(i.to_string());
            let message = if i % 4 == 0 { message.group(format!("group-{}", i % 8)) } else { message };
            let _ = world.time.block_on(world.queue.send(vec![message])).unwrap();
        }
        let process = async |name: String| loop {
            let jobs = network.client(&name).queue(world.queue.clone());
            let listener = QueueListener::builder(jobs, QueueListenerConfig::default().max_expiries(1000));
            let listener = listener.clock(&world.clock).entropy(&entropy).build().unwrap();
            let handler = async |work: Work| {
                world.clock.sleep(MS(entropy.up_to(2000))).await;
                Disposition::forward([(target.clone(), Message::new(work.body.clone()))])
            };
            let killed = world.clock.sleep(MS(entropy.up_to(90_000)));
            tokio::select! { biased; () = killed => {}, ran = listener.run(pending(), handler) => ran.unwrap() }
        };
        let mut sent = Vec::new();
        let reads = async {
            for _ in 0..5_000 {
                world.clock.sleep(MS(entropy.up_to(20_000))).await;
                let taken = queue.receive(Receive::new(10, S(60))).await.unwrap();
                for taken in taken {
                    queue.complete(&taken.receipt).await.unwrap();
                    sent.push(text(&taken.body).parse::<usize>().unwrap());
                }
                if world.queue.depth().await.unwrap().total() == 0 && queue.depth().await.unwrap().total() == 0 {
                    break;
                }
            }
        };
        world.time.block_on(async {
            let processes = async { tokio::join!(process("a".into()), process("b".into())) };
            tokio::select! { biased; () = reads => {}, _ = processes => {} }
        });
        sent.sort_unstable();
        assert_eq!((sent, world.dead()), ((0..MESSAGES).collect(), Vec::new()), "seed {seed}");
    }
}

/// One process answers each message with two results; another one takes over what it left.
fn two_processes(engine: Engine, process: &CrashingProcess) {
    let world = engine.world();
    let letters = world.queue.dead_letters().unwrap();
    let target = letters.address().unwrap();
    let handler = async |work: Work| {
        let result = |text: &'static str| (target.clone(), Message::new([&work.body[..], text.as_bytes()].concat()));
        Disposition::forward([result("1"), result("2")])
    };
    let listener = |queue: Arc<dyn Queue>, seed| {
        // One task, which asks for no depth.
        let listener = QueueListener::builder(queue, QueueListenerConfig::default().max_tasks(1));
        listener.clock(&world.clock).entropy(&Entropy::from_seed(seed)).build().unwrap()
    };
    world.run(world.queue.send(["a", "b"].map(Message::new).into())).unwrap();
    let crashing = listener(process.queue(world.queue.clone()), 1);
    world.run(process.run(async { crashing.run(world.clock.sleep(S(2)), &handler).await.unwrap() }));
    world.run(listener(world.queue.clone(), 2).run(world.clock.sleep(S(120)), &handler)).unwrap();
    let peeked = block_on(letters.peek(10)).unwrap();
    let mut results: Vec<_> = peeked.iter().map(|peeked| text(&peeked.body)).collect();
    results.sort_unstable();
    assert_eq!((results, world.depths().0), (["a1", "a2", "b1", "b2"].map(str::to_owned).into(), 0));
}

// Guarantee: queue_listener 22.
#[test]
fn results_of_a_process_that_crashes_at_any_request_are_sent_once() {
    for engine in Engine::ALL {
        let requests = crash_at_every_write(|process| two_processes(engine, process));
        assert!(requests >= 2, "{requests}");
    }
}

// Guarantee: queue_listener 22.
#[test]
fn results_are_sent_once_whichever_request_fails() {
    for engine in Engine::ALL {
        fail_at_every_write(|process| two_processes(engine, process));
    }
}
