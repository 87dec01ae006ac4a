//! Slow stores, slow settlements, CPU-bound handlers: they delay no other message and cost no
//! lease.
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use futures::FutureExt;
use steadfast::{
    entropy::Entropy,
    notify::{InMemoryNotifier, Notifier},
    queue::{IdempotencyFilter, InMemoryQueue, Message, Queue, QueueExt},
    queue_listener::{Disposition, Level, QueueListener, QueueListenerConfig, Work},
    store::{InMemoryStore, Store},
    testing::faults::{FaultConfig, FaultNetwork},
    time::Instant,
};

use crate::queue_listener::world::{MS, Mode, S, World, text};

fn fill(queue: &InMemoryQueue, world: &World, messages: usize) {
    for first in (0..messages).step_by(100) {
        let batch = (first..messages.min(first + 100)).map(|i| Message::new(format!("{i}"))).collect();
        world.time.block_on(queue.send(batch)).unwrap();
    }
}

fn network(world: &World, latency: Duration) -> FaultNetwork {
    FaultNetwork::new(FaultConfig::default().latency(latency, latency), 1, &world.clock).unwrap()
}

/// Counts how often each message began.
#[derive(Default)]
struct Began(RefCell<BTreeMap<String, u32>>);

impl Began {
    fn begins(&self, work: &Work) {
        *self.0.borrow_mut().entry(text(&work.body)).or_default() += 1;
    }

    fn twice(&self) -> usize {
        self.0.borrow().values().filter(|n| **n > 1).count()
    }
}

#[test]
fn a_task_that_waits_for_capacity_takes_the_next_message_after_a_settlement() {
    let world = World::new();
    fill(&world.queue, &world, 40);
    let listener = world.listener(QueueListenerConfig::default().batch(1).tasks(1, 1), 1);
    world.line.is("settle", Mode::Refuses);
    let mended = world.now() + MS(9_703);
    let stop = async {
        world.clock.sleep_until(mended).await;
        world.line.is("settle", Mode::Well);
        world.clock.sleep(S(30)).await;
    };
    world.run(S(60), listener.run(stop, async |_: Work| {})).expect("it ends").unwrap();
    assert_eq!(listener.state().handled, 40);
    let (settled, received) = (world.line.calls("settle"), world.line.calls("receive"));
    let first = *settled.iter().find(|at| **at >= mended).unwrap();
    let waits = |at: &&Instant| **at > mended.saturating_sub(S(2)) && **at < first;
    assert_eq!(received.iter().filter(waits).count(), 0, "nothing is taken while much is unsettled");
    assert!(received.contains(&first), "settled at {first:?}, taken at {received:?}");
}

#[test]
fn a_filter_over_a_slow_or_hanging_store_costs_no_message_its_lease() {
    for (latency, by_batch) in [(1_000, false), (3_600_000, false), (1_000, true), (4_000, true)] {
        let world = World::new();
        fill(&world.queue, &world, 400);
        let store: Arc<dyn Store> = Arc::new(InMemoryStore::builder().clock(&world.clock).build());
        let store = network(&world, MS(latency)).client("node").store(store);
        let filter = IdempotencyFilter::new(store, "seen", S(36_000));
        let listener = world.builder(QueueListenerConfig::default(), 1).idempotency_filter(filter).build().unwrap();
        let began = Began::default();
        let stop = async {
            while world.depth_now().await > 0 {
                world.clock.sleep(S(1)).await;
            }
        };
        let start = world.now();
        let run = async {
            if by_batch {
                let handler = async |works: Vec<Work>| {
                    works.iter().for_each(|work| began.begins(work));
                    works.iter().map(|_| Disposition::Complete).collect()
                };
                listener.run_batches(stop, handler).await
            } else {
                listener.run(stop, async |work: Work| began.begins(&work)).await
            }
        };
        world.run(S(3600), run).expect("it ends").unwrap();
        let state = listener.state();
        assert_eq!(
            (began.twice(), state.leases_lost, state.handled, state.dead_lettered),
            (0, 0, 400, 0),
            "{latency} ms"
        );
        // Two requests each, at most five seconds, sixteen at once.
        let bound = S(2 * 5 * 400 / 16 + 30);
        assert!(world.now() - start <= bound, "{latency} ms: {:?}", world.now() - start);
    }
}

#[test]
fn a_message_that_cannot_be_settled_costs_no_other_a_second_delivery() {
    for mode in [Mode::Refuses, Mode::Hangs, Mode::LosesReplies] {
        for takes in [0, 5, 200] {
            let world = World::new();
            fill(&world.queue, &world, 1_500);
            world.line.cannot_settle("700", mode);
            let listener = world.listener(QueueListenerConfig::default(), 1);
            let began = Began::default();
            let run = listener.run(world.clock.sleep(S(120)), async |work: Work| {
                began.begins(&work);
                if takes > 0 {
                    world.clock.sleep(MS(takes)).await;
                }
            });
            world.run(S(300), run).expect("it ends").unwrap();
            let again =
                began.0.borrow().iter().filter(|(_, n)| **n > 1).map(|(body, _)| body.clone()).collect::<Vec<_>>();
            assert!(again.is_empty() || again == ["700"], "{mode:?}, {takes} ms: {} twice", again.len());
            assert!(world.depth().total() <= 1, "{mode:?}, {takes} ms: {:?}", world.depth());
        }
    }
}

#[test]
fn settlements_that_take_a_second_delay_no_handler() {
    let world = World::new();
    fill(&world.queue, &world, 320);
    world.line.takes("settle", S(1));
    let listener = world.listener(QueueListenerConfig::default().tasks(16, 16), 1);
    let began = Began::default();
    let run = listener.run(world.clock.sleep(S(40)), async |work: Work| {
        began.begins(&work);
        world.clock.sleep(S(1)).await;
    });
    let ended = async {
        while listener.state().handled < 320 {
            world.clock.sleep(MS(100)).await;
        }
        world.now()
    };
    let start = world.now();
    let (_, ended) = world.time.block_on(async { tokio::join!(run, ended) });
    assert!(ended - start <= S(23), "20 rounds of a second: {:?}", ended - start);
    assert_eq!(began.twice(), 0);
}

/// CPU-bound handlers block the thread of the whole run: here they advance the time by themselves.
#[test]
fn cpu_bound_handlers_begin_with_enough_lease_and_are_settled_one_by_one() {
    for (takes, messages) in [(MS(300), 200), (S(1), 100), (S(5), 60), (S(12), 40)] {
        let world = World::new();
        fill(&world.queue, &world, messages);
        let listener = world.listener(QueueListenerConfig::default(), 1);
        let began = Began::default();
        let lost = Cell::new(0);
        let run = listener.run(world.clock.sleep(takes * messages as u32 + S(60)), async |work: Work| {
            began.begins(&work);
            world.time.advance(takes);
            // No other listener can have it now.
            let again = world.queue.peek(1_000).now_or_never().unwrap().unwrap();
            lost.set(lost.get() + usize::from(again.iter().any(|peeked| peeked.id == work.id && !peeked.hidden)));
            let left = again.iter().filter(|peeked| peeked.hidden).count();
            assert!(left <= 20, "what is done is settled: {left} are in hand");
        });
        world.time.block_on(run).unwrap();
        let state = listener.state();
        assert_eq!((began.twice(), lost.get(), state.leases_lost), (0, 0, 0), "{takes:?}");
        assert_eq!((state.handled, state.dead_lettered), (messages as u64, 0), "{takes:?}");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "no clock of ours moves a thread")]
fn handlers_that_compute_are_run_at_once_where_threads_are_there() {
    const AT_ONCE: usize = 8;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(AT_ONCE + 1).enable_all().build().unwrap();
    // Repeated, because it is chance which thread a task is woken on.
    for round in 0..40 {
        let (quick_before, is_spawned) = ([0, 500][round % 2], round % 4 >= 2);
        runtime.block_on(async {
            let queue = Arc::new(InMemoryQueue::new("jobs"));
            for _ in 0..quick_before / 100 {
                queue.send((0..100).map(|_| Message::new("quick")).collect()).await.unwrap();
            }
            queue.send((0..AT_ONCE).map(|_| Message::new("computes")).collect()).await.unwrap();
            let config = QueueListenerConfig::default().tasks(1, AT_ONCE as u32);
            let listener = QueueListener::builder(queue.clone(), config).build().unwrap();
            // Each blocks until all of them do.
            let all = Arc::new((Mutex::new(0usize), Condvar::new()));
            let met = Arc::new(std::sync::atomic::AtomicUsize::new(0));
            let over = Arc::new(tokio::sync::Notify::new());
            let (meet, count, stop) = (all.clone(), met.clone(), over.clone());
            let handler = move |work: Work| {
                let (meet, count, stop) = (meet.clone(), count.clone(), stop.clone());
                async move {
                    if &work.body[..] == b"quick" {
                        return;
                    }
                    let (here, told) = &*meet;
                    let mut here = here.lock().unwrap();
                    *here += 1;
                    told.notify_all();
                    let (here, timed_out) =
                        told.wait_timeout_while(here, Duration::from_secs(10), |here| *here < AT_ONCE).unwrap();
                    drop(here);
                    if !timed_out.timed_out() && count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1 == AT_ONCE
                    {
                        stop.notify_one();
                    }
                }
            };
            let of = listener.clone();
            let run = async move {
                let spawn = |task| drop(tokio::spawn(task));
                of.run_on(spawn, over.notified(), handler).await
            };
            let run = async { if is_spawned { tokio::spawn(run).await.unwrap() } else { run.await } };
            let ended = tokio::time::timeout(Duration::from_secs(60), run).await;
            ended.unwrap_or_else(|_| panic!("not all met: {:?}", listener.state())).unwrap();
            assert_eq!(met.load(std::sync::atomic::Ordering::SeqCst), AT_ONCE);
        });
    }
}

#[test]
fn two_listeners_on_one_queue_have_about_equal_shares() {
    for takes in [S(10), S(1), MS(200)] {
        let world = World::new();
        fill(&world.queue, &world, 600);
        let listeners = [1, 2].map(|seed| world.listener(QueueListenerConfig::default(), seed));
        let start = world.now();
        let stop = || async {
            while world.depth_now().await > 0 {
                world.clock.sleep(MS(100)).await;
            }
        };
        let handler = async |_: Work| world.clock.sleep(takes).await;
        let both = async { tokio::join!(listeners[0].run(stop(), handler), listeners[1].run(stop(), handler)) };
        let (one, two) = world.time.block_on(both);
        one.and(two).unwrap();
        let shares = listeners.each_ref().map(|listener| listener.state().handled);
        assert!(shares.iter().all(|share| (240..=360).contains(share)), "{takes:?}: {shares:?}");
        let bound = takes * 19 + takes + S(2);
        assert!(world.now() - start <= bound, "{takes:?}: {:?}", world.now() - start);
    }
}

#[test]
fn six_hundred_renewals_of_seventy_milliseconds_lose_no_lease() {
    for by_batch in [true, false] {
        let world = World::new();
        fill(&world.queue, &world, 600);
        world.line.takes("extend", MS(70));
        let config = QueueListenerConfig::default().batch(600);
        let config = if by_batch { config.tasks(1, 1) } else { config.tasks(600, 600) };
        let listener = world.listener(config, 1);
        let began = Began::default();
        let stop = world.clock.sleep(S(200));
        let run = async {
            if by_batch {
                let handler = async |works: Vec<Work>| {
                    works.iter().for_each(|work| began.begins(work));
                    world.clock.sleep(S(120)).await;
                    works.iter().map(|_| Disposition::Complete).collect()
                };
                listener.run_batches(stop, handler).await
            } else {
                let handler = async |work: Work| {
                    began.begins(&work);
                    world.clock.sleep(S(120)).await;
                };
                listener.run(stop, handler).await
            }
        };
        world.time.block_on(run).unwrap();
        let state = listener.state();
        assert_eq!((state.leases_lost, state.handled, began.twice()), (0, 600, 0), "by batch: {by_batch}");
    }
}

#[test]
fn waiting_messages_are_renewed_concurrently() {
    let world = World::new();
    world.line.takes("extend", MS(700));
    let config = QueueListenerConfig::default().tasks(2, 2);
    let listener = world.listener(config, 1);
    fill(&world.queue, &world, 300);
    let began = Began::default();
    let first = Cell::new(0);
    let run = listener.run(world.clock.sleep(S(2_000)), async |work: Work| {
        began.begins(&work);
        first.set(first.get() + 1);
        // So quick that it takes many, then slow: the messages that it took wait.
        world.clock.sleep(if first.get() <= 40 { MS(1) } else { S(12) }).await;
    });
    let most = async {
        let mut most = 0;
        for _ in 0..300 {
            world.clock.sleep(S(1)).await;
            most = most.max(listener.state().buffered);
        }
        most
    };
    let (ran, most) = world.time.block_on(async { tokio::join!(run, most) });
    ran.unwrap();
    assert!(most >= 8, "some waited: {most}");
    assert_eq!((listener.state().leases_lost, began.twice(), listener.state().handled), (0, 0, 300));
}

/// Waits of messages sent to one of two idle queues, which wake their receivers.
fn urgent_waits(notified: bool) -> Vec<Duration> {
    let world = World::new();
    let bulk = Arc::new(InMemoryQueue::builder("bulk").clock(&world.clock).build());
    let notifier = Arc::new(InMemoryNotifier::new());
    let builder = world
        .builder(QueueListenerConfig::default(), 1)
        .level(Level::default().priority(1))
        .source(bulk.clone(), Level::default());
    let builder = if notified { builder.notifier(notifier.clone(), "urgent") } else { builder };
    let listener = builder.build().unwrap();
    let waits = RefCell::new(Vec::new());
    let sent = Cell::new(world.now());
    let run = listener.run(world.clock.sleep(S(1_100)), async |_| waits.borrow_mut().push(world.now() - sent.get()));
    let send = async {
        for i in 0..20 {
            world.clock.sleep(S(47) + MS(331 * i)).await;
            sent.set(world.now());
            let queue = if i % 4 == 3 { &bulk } else { &world.queue };
            queue.send_one(Message::new("job")).await.unwrap();
            if notified {
                notifier.publish("urgent", "".into()).await.unwrap();
            }
        }
    };
    world.time.block_on(async { tokio::join!(run, send).0 }).unwrap();
    let requests = listener.state().requests;
    // After each message the delays restart.
    assert!(requests <= 3_000, "{requests}");
    waits.into_inner()
}

#[test]
fn a_listener_waits_in_all_its_queues_at_once() {
    for notified in [true, false] {
        let waits = urgent_waits(notified);
        assert_eq!(waits.len(), 20);
        assert!(waits.iter().all(|wait| *wait <= MS(50)), "notified: {notified}: {waits:?}");
    }
}

#[test]
fn a_queue_that_answers_before_the_wait_is_over_is_polled_with_pauses() {
    for several in [false, true] {
        let world = World::new();
        world.line.answers_early(true);
        let builder = world.builder(QueueListenerConfig::default(), 1);
        let other = Arc::new(InMemoryQueue::builder("other").clock(&world.clock).build());
        let builder = if several { builder.source(other, Level::default()) } else { builder };
        let listener = builder.build().unwrap();
        let run = listener.run(world.clock.sleep(S(3600)), async |_| {});
        world.time.block_on(run).unwrap();
        let early = world.line.calls("receive").len();
        assert!(early <= 300, "{early} requests in an hour");
    }
}

#[test]
fn the_order_of_setters_does_not_matter() {
    let config = QueueListenerConfig::default();
    let one = config.margin(S(3)).call_timeout(S(2)).visibility(S(60));
    let other = config.visibility(S(60)).call_timeout(S(2)).margin(S(3));
    assert_eq!(one, other);
    assert_eq!((one.lease_margin(), one.call_limit()), (S(3), S(2)));
    assert_eq!((config.lease_margin(), config.call_limit()), (S(2), S(5)));
    let longer = config.visibility(S(300));
    assert_eq!((longer.lease_margin(), longer.call_limit()), (S(20), S(50)));
    let read: QueueListenerConfig = toml::from_str("visibility = \"5m\"").unwrap();
    assert_eq!(read, longer);
}

#[test]
fn a_message_whose_lease_ends_during_the_filter_request_is_not_begun() {
    let world = World::new();
    world.send("job");
    let store: Arc<dyn Store> = Arc::new(InMemoryStore::builder().clock(&world.clock).build());
    let store = network(&world, S(29)).client("node").store(store);
    let filter = IdempotencyFilter::new(store, "seen", S(600));
    let config = QueueListenerConfig::default().call_timeout(S(40));
    let listener = world.builder(config, 1).idempotency_filter(filter).build().unwrap();
    world.line.is("extend", Mode::Refuses);
    let began = Cell::new(0);
    // Continues after the answer: a stopping run begins nothing anyway.
    let run = listener.run(world.clock.sleep(S(45)), async |_: Work| began.set(began.get() + 1));
    world.time.block_on(run).unwrap();
    assert_eq!(began.get(), 0, "its lease ended a second later");
    assert_eq!(listener.state().leases_lost, 2, "given up, it came back once, and the filter took as long");
    let taken = world.run(S(60), async {
        loop {
            if let Some(taken) = world.queue.receive_one(S(1)).await.unwrap() {
                break taken;
            }
            world.clock.sleep(S(1)).await;
        }
    });
    let taken = taken.unwrap();
    assert_eq!((taken.attempts, taken.expiries), (0, 0), "it was given back");
}

// Guarantee: queue_listener 16.
#[test]
fn a_batch_run_or_a_spawned_run_dropped_at_any_await_loses_no_message() {
    for spawned in [false, true] {
        let world = World::new();
        let ids: BTreeSet<_> = (0..12).map(|i| world.send(&format!("{i}"))).collect();
        let done = Arc::new(Mutex::new(BTreeSet::new()));
        let tasks = Arc::new(Mutex::new(Vec::new()));
        for polls in 0..80 {
            let config = QueueListenerConfig::default().batch(3).tasks(1, 2).max_expiries(u32::MAX);
            let listener = world.listener(config, polls);
            let (clock, seen) = (world.clock.clone(), done.clone());
            let mut run: std::pin::Pin<Box<dyn Future<Output = _>>> = if spawned {
                let tasks = tasks.clone();
                let spawn = move |task| tasks.lock().unwrap().push(task);
                let handler = move |work: Work| {
                    let (clock, seen) = (clock.clone(), seen.clone());
                    async move {
                        clock.sleep(MS(3)).await;
                        seen.lock().unwrap().insert(work.id.clone());
                    }
                };
                Box::pin({
                    let listener = listener.clone();
                    async move { listener.run_on(spawn, pending(), handler).await }
                })
            } else {
                let handler = move |works: Vec<Work>| {
                    let (clock, seen) = (clock.clone(), seen.clone());
                    async move {
                        clock.sleep(MS(3)).await;
                        let mut seen = seen.lock().unwrap();
                        works
                            .into_iter()
                            .map(|work| {
                                seen.insert(work.id.clone());
                                Disposition::Complete
                            })
                            .collect()
                    }
                };
                Box::pin({
                    let listener = listener.clone();
                    async move { listener.run_batches(pending(), handler).await }
                })
            };
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            for _ in 0..polls {
                let _ = run.as_mut().poll(&mut cx);
                let mut spawned = std::mem::take(&mut *tasks.lock().unwrap());
                spawned.retain_mut(|task: &mut steadfast::port::BoxFuture<'static, ()>| {
                    task.as_mut().poll(&mut cx).is_pending()
                });
                tasks.lock().unwrap().extend(spawned);
                if let Some(next) = world.time.next_timer() {
                    world.time.advance_to(next.min(world.now() + S(1)));
                }
            }
            drop(run);
            // The tasks end with their run, at their next await.
            let mut left = std::mem::take(&mut *tasks.lock().unwrap());
            left.retain_mut(|task| task.as_mut().poll(&mut cx).is_pending());
            assert_eq!(left.len(), 0, "after {polls} polls");
            let left: BTreeSet<_> =
                world.time.block_on(world.queue.peek(100)).unwrap().into_iter().map(|peeked| peeked.id).collect();
            let gone: BTreeSet<_> = ids.difference(&left).cloned().collect();
            assert!(gone.is_subset(&done.lock().unwrap()), "after {polls} polls");
            world.time.advance(S(301));
            assert_eq!(world.depth().visible, left.len() as u64, "and visible again");
        }
        assert_eq!(world.depth().total(), 0, "spawned: {spawned}");
        let _ = Entropy::from_seed(1);
    }
}

/// Regression: after slow handlers, one that completed at once made the listener take messages one
/// by one, and the handler that took an hour was that one.
#[test]
fn a_quick_handler_after_slow_ones_stops_no_polls_beside_one_that_takes_an_hour() {
    let world = World::new();
    let listener = world.listener(QueueListenerConfig::default(), 1);
    let begun = RefCell::new(Vec::new());
    let run = listener.run(world.clock.sleep(S(4000)), async |work: Work| match &*work.body {
        b"hour" => world.clock.sleep(S(3600)).await,
        b"slow" => world.clock.sleep(S(10)).await,
        _ => begun.borrow_mut().push(world.now()),
    });
    let sends = async {
        for body in ["hour", "slow"] {
            world.queue.send_one(Message::new(body)).await.unwrap();
        }
        let mut sent = Vec::new();
        for _ in 0..100 {
            world.clock.sleep(S(15)).await;
            sent.push(world.now());
            world.queue.send_one(Message::new("quick")).await.unwrap();
        }
        world.clock.sleep(MS(100)).await;
        assert_eq!(*begun.borrow(), sent, "each begins at once");
    };
    world.time.block_on(async { tokio::join!(run, sends).0 }).unwrap();
}
