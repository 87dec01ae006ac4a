//! Helpers of the listener, dropped listeners and failing networks: no message is lost.
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::{Arc, Mutex},
};

use steadfast::{
    entropy::Entropy,
    notify::InMemoryNotifier,
    queue::{AnnouncingQueue, Depth, InMemoryQueue, Message, Queue, QueueExt, RequestError, Requester, redrive},
    queue_listener::{Disposition, QueueListener, QueueListenerConfig, QueueListenerEvent as Event, Work},
    testing::faults::{FaultConfig, FaultNetwork},
    testing::{PortAnswer, ScriptedPort},
};

use crate::queue_listener::world::{MS, Mode, S, World, text};

#[test]
fn a_send_through_an_announcing_queue_wakes_a_listener_that_no_longer_polls() {
    let world = World::new();
    let notifier = Arc::new(InMemoryNotifier::new());
    let config = QueueListenerConfig::default().tasks(0, 4);
    let listener = world.builder(config, 1).notifier(notifier.clone(), "jobs").build().unwrap();
    let sender = AnnouncingQueue::builder(world.queue.clone(), notifier, "jobs").clock(&world.clock).build();
    let waits = RefCell::new(Vec::new());
    let sent = Cell::new(world.now());
    let run = listener.run(world.clock.sleep(S(20_000)), async |_| waits.borrow_mut().push(world.now() - sent.get()));
    let send = async {
        for _ in 0..4 {
            world.clock.sleep(S(3600)).await;
            assert_eq!(listener.state().tasks, 0);
            sent.set(world.now());
            sender.send_one(Message::new("job")).await.unwrap();
            // Sent without a notice: tasks that were woken find it nevertheless.
            world.clock.sleep(MS(10)).await;
            sender.send_one(Message::new("job")).await.unwrap();
        }
    };
    world.time.block_on(async { tokio::join!(run, send).0 }).unwrap();
    let waits = waits.into_inner();
    assert_eq!(waits.len(), 8);
    assert!(
        waits.iter().step_by(2).all(|wait| wait.is_zero()) && waits.iter().all(|wait| *wait <= MS(250)),
        "{waits:?}"
    );
}

#[test]
fn a_message_sent_between_the_last_poll_and_the_subscription_is_found_at_once() {
    for seed in 0..10 {
        let world = World::polled();
        let script = ScriptedPort::new(&world.clock);
        script.always("subscribe", PortAnswer::pass().request_takes(MS(4_500)));
        let notifier = script.notifier(Arc::new(InMemoryNotifier::new()));
        let builder = world.builder(QueueListenerConfig::default(), seed).notifier(notifier.clone(), "jobs");
        let listener = builder.build().unwrap();
        let jobs = AnnouncingQueue::new(world.queue.clone(), notifier, "jobs");
        let (begun, found) = (world.now(), Cell::new(None));
        let run = listener.run(world.clock.sleep(S(20)), async |_| found.set(Some(world.now() - begun)));
        // Its notice comes before the subscription, so no listener receives it.
        let sends = async {
            world.clock.sleep(MS(4_400)).await;
            let polls = world.line.calls("receive");
            let last = *polls.last().unwrap() - begun;
            assert!(last < MS(4_400), "{last:?}");
            jobs.send_one(Message::new("job")).await.unwrap();
        };
        world.time.block_on(async { tokio::join!(run, sends) }).0.unwrap();
        assert_eq!(found.get(), Some(MS(4_500)), "seed {seed}");
    }
}

#[test]
fn redrive_sends_each_selected_dead_letter_again_once() {
    let world = World::new();
    for body in ["a", "b", "c"] {
        world.send(body);
    }
    let listener = world.listener(QueueListenerConfig::default(), 1);
    let run = listener.run(world.clock.sleep(S(1)), async |work: Work| Disposition::dead_letter(text(&work.body)));
    world.time.block_on(run).unwrap();
    let chosen = |letter: &steadfast::queue::Delivery| !letter.reason.as_ref().unwrap().starts_with('b');
    assert_eq!(world.time.block_on(redrive(&*world.queue, 10, chosen)).unwrap(), 2);
    assert_eq!(world.dead().into_iter().map(|(body, _)| body).collect::<Vec<_>>(), ["b"]);
    assert_eq!(world.depth().visible, 2);
    let dead = world.queue.dead_letters().unwrap();
    assert_eq!(world.time.block_on(dead.depth()).unwrap().visible, 1, "what was not chosen is back");
    let again = world.time.block_on(world.queue.receive_one(S(1))).unwrap().unwrap();
    assert_eq!((again.deliveries, again.reason), (1, None));
    assert!(world.time.block_on(redrive(&*dead, 10, |_| true)).is_err(), "dead letters have none");
}

#[test]
fn the_depth_and_the_dead_letters_are_a_minute_old_at_most_and_cost_nothing_unread() {
    let world = World::polled();
    (0..200).for_each(|n| drop(world.send(&n.to_string())));
    let listener = world.listener(QueueListenerConfig::default().tasks(2, 2), 1);
    let run = listener.run(world.clock.sleep(S(8_000)), async |work: Work| {
        world.clock.sleep(S(2)).await;
        let n: u64 = text(&work.body).parse().unwrap();
        if n.is_multiple_of(20) { Disposition::dead_letter("no") } else { Disposition::Complete }
    });
    let scrapes = async {
        let mut seen = Vec::new();
        for n in 0..30_usize {
            world.clock.sleep(S(15)).await;
            let state = listener.state();
            let dead = world.queue.dead_letters().unwrap().depth().await.unwrap().total();
            let left = world.queue.depth().await.unwrap().total();
            seen.push((left, dead));
            // The oldest value is that of a minute and one scrape ago.
            if let Some((most_left, least_dead)) = n.checked_sub(5).map(|before| seen[before]) {
                assert!((left..=most_left).contains(&state.depth.unwrap().total()), "scrape {n}: {state:?}");
                assert!((least_dead..=dead).contains(&state.dead_letters.unwrap()), "scrape {n}: {state:?}");
            }
        }
        assert_eq!((listener.state().depth.unwrap(), listener.state().dead_letters), (Depth::default(), Some(10)));
        world.clock.sleep(S(1)).await;
        let asked = world.line.calls("depth").len();
        world.clock.sleep(S(3_600)).await;
        assert_eq!(world.line.calls("depth").len(), asked, "a listener that nobody looks at makes no request");
    };
    world.time.block_on(async { tokio::join!(run, scrapes) }).0.unwrap();
}

#[test]
fn the_depth_is_read_again_when_the_queue_is_found_empty() {
    let world = World::polled();
    (0..5_000).for_each(|n| drop(world.send(&n.to_string())));
    let listener = world.listener(QueueListenerConfig::default(), 1);
    let run = listener.run(world.clock.sleep(S(60)), async |_| world.clock.sleep(MS(1)).await);
    world.time.block_on(run).unwrap();
    let state = listener.state();
    assert_eq!((state.handled, state.depth.unwrap().visible), (5_000, 0), "{state:?}");
}

#[test]
fn a_request_gets_its_own_reply_or_times_out() {
    let world = World::new();
    let replies = Arc::new(InMemoryQueue::builder("replies").clock(&world.clock).build());
    let requester = Requester::builder(world.queue.clone(), replies.clone(), "replies-of-node-1")
        .clock(&world.clock)
        .entropy(&Entropy::from_seed(1))
        .build();
    let listener = world.listener(QueueListenerConfig::default(), 1);
    let run = listener.run(world.clock.sleep(S(30)), async |work: Work| {
        let n: u64 = text(&work.body).parse().unwrap();
        // Later requests are answered first; one is never answered.
        world.clock.sleep(MS(1000 - 50 * n)).await;
        if n == 7 {
            return;
        }
        let to = work.reply_to().expect("it is a question");
        assert_eq!(to.queue, "replies-of-node-1");
        replies.send_one(to.reply(format!("{}", n * n))).await.unwrap();
    });
    let ask = async |n: u64| requester.request(Message::new(format!("{n}")), S(5)).await;
    let asks = futures::future::join_all((0..10).map(ask));
    let (_, answers) = world.time.block_on(async { tokio::join!(run, asks) });
    for (n, answer) in answers.into_iter().enumerate() {
        match answer {
            Ok(answer) => assert_eq!(text(&answer.body), format!("{}", n * n)),
            Err(error) => assert!(matches!(error, RequestError::TimedOut(_)) && n == 7, "{n}: {error}"),
        }
    }
    assert_eq!(world.time.block_on(replies.depth()).unwrap().total(), 0);
    // A late reply is discarded by the next request that polls.
    world.time.block_on(replies.send_one(Message::new("late").header("correlation-id", "gone"))).unwrap();
    assert!(world.time.block_on(requester.request(Message::new("1"), S(1))).is_err());
    assert_eq!(world.time.block_on(replies.depth()).unwrap().total(), 0);
}

// Guarantee: queue_listener 16.
#[test]
fn a_run_dropped_at_any_await_loses_no_message() {
    for (latency, mode) in [(0, Mode::Well), (5, Mode::Well), (5, Mode::LosesReplies)] {
        let world = World::new();
        world.line.is("settle", mode);
        let network =
            FaultNetwork::new(FaultConfig::default().latency(MS(latency), MS(latency)), 1, &world.clock).unwrap();
        let queue = network.client("node").queue(world.line.clone());
        let ids: BTreeSet<_> = (0..12).map(|i| world.send(&format!("{i}"))).collect();
        let done = RefCell::new(BTreeSet::new());
        let mut ended = 0;
        for polls in 0..120 {
            let config = QueueListenerConfig::default().batch(3).tasks(1, 2).max_attempts(u32::MAX);
            let config = config.max_expiries(u32::MAX);
            let builder = QueueListener::builder(queue.clone(), config).clock(&world.clock);
            let listener = builder.entropy(&Entropy::from_seed(polls)).build().unwrap();
            let mut run = Box::pin(listener.run(pending(), async |work: Work| {
                world.clock.sleep(MS(3)).await;
                done.borrow_mut().insert(work.id.clone());
                if work.deliveries.is_multiple_of(3) { Err("again") } else { Ok(()) }
            }));
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            for _ in 0..polls {
                let _ = run.as_mut().poll(&mut cx);
                if let Some(next) = world.time.next_timer() {
                    world.time.advance_to(next.min(world.now() + S(1)));
                }
            }
            drop(run);
            // Each is still in the queue, or was handled.
            let left: BTreeSet<_> =
                world.time.block_on(world.queue.peek(100)).unwrap().into_iter().map(|peeked| peeked.id).collect();
            let gone: BTreeSet<_> = ids.difference(&left).cloned().collect();
            assert!(gone.is_subset(&done.borrow()), "after {polls} polls");
            ended = gone.len();
            // And is visible again.
            world.time.advance(S(301));
            assert_eq!(world.depth().visible, left.len() as u64);
        }
        assert_eq!(ended, ids.len());
    }
}

/// Listeners that are dropped and restarted, over a failing network, with failing handlers. Each
/// message is completed or becomes a dead letter. Each delivery but the first is explained by a
/// failure, a release, a lost lease, or a drop.
fn storm(seed: u64, messages: u32) {
    let world = World::new();
    let faults = FaultConfig::default().errors(0.05).lost_replies(0.02).late(0.02).latency(MS(0), MS(20));
    let network = FaultNetwork::new(faults, seed, &world.clock).unwrap();
    let entropy = Entropy::from_seed(seed);
    for lot in 0..messages / 100 {
        let batch = (0..100).map(|i| Message::new(format!("{}", lot * 100 + i))).collect();
        world.time.block_on(world.queue.send(batch)).unwrap();
    }
    let handled = RefCell::new(BTreeMap::<u32, u32>::new());
    let (extra, explained) = (Cell::new(0u64), Cell::new(0u64));
    let (mut completed, mut restarts) = (0, 0);
    while world.depth().total() > 0 {
        assert!(restarts < 2000, "it comes to an end");
        restarts += 1;
        let config =
            QueueListenerConfig::default().batch(16).tasks(1, 8).max_attempts(50).max_expiries(50).visibility(S(10));
        let config = config.retry(steadfast::backoff::BackoffConfig::default().between(MS(10), MS(100)));
        let queues = ["a", "b"].map(|name| network.client(name).queue(world.queue.clone()));
        let listeners = queues.map(|queue| {
            let builder = QueueListener::builder(queue, config).clock(&world.clock);
            builder.entropy(&Entropy::from_seed(entropy.next_u64())).build().unwrap()
        });
        let mut events = listeners.each_ref().map(QueueListener::events);
        let handler = async |work: Work| {
            if work.deliveries > 1 {
                extra.set(extra.get() + 1);
            }
            if entropy.unit() < 0.5 {
                world.clock.sleep(MS(entropy.up_to(50))).await;
            }
            if entropy.unit() < 0.05 {
                return Err("at random");
            }
            *handled.borrow_mut().entry(text(&work.body).parse().unwrap()).or_default() += 1;
            Ok(())
        };
        let time = MS(200 + entropy.up_to(3000));
        if entropy.unit() < 0.5 {
            // Killed.
            let both =
                async { tokio::join!(listeners[0].run(pending(), &handler), listeners[1].run(pending(), &handler)) };
            assert!(world.run(time, both).is_none());
            // Its outstanding messages when it was killed.
            let depth = world.depth();
            explained.set(explained.get() + depth.in_flight);
        } else {
            let stop = || world.clock.sleep(time);
            let both = async { tokio::join!(listeners[0].run(stop(), &handler), listeners[1].run(stop(), &handler)) };
            let (one, two) = world.time.block_on(both);
            one.and(two).unwrap();
            // Lost replies to polls: messages that no listener received.
            explained.set(explained.get() + world.depth().in_flight);
        }
        for (listener, events) in listeners.iter().zip(&mut events) {
            completed += listener.state().handled;
            let state = listener.state();
            explained.set(explained.get() + state.failed + state.leases_lost + state.released);
            // Each lost lease has at least one event.
            if let Ok(Some(_)) = events.try_recv() {
                let lost = told_or_missed(events);
                assert!(lost.is_none_or(|lost| lost == state.leases_lost), "{lost:?} {}", state.leases_lost);
            }
        }
    }
    let handled = handled.into_inner();
    let dead = world.time.block_on(world.queue.dead_letters().unwrap().depth()).unwrap().total();
    assert_eq!(handled.len() as u64 + dead, u64::from(messages), "each is handled or set aside, none is lost");
    assert!(
        completed > 0 && extra.get() <= explained.get() + network.counts().lost_replies * 16,
        "{extra:?} {explained:?}"
    );
}

/// Number of lost leases that events reported; `None` if events were missed.
fn told_or_missed(events: &mut steadfast::observe::Subscription<Event>) -> Option<u64> {
    let mut lost = 0;
    loop {
        match events.try_recv() {
            Ok(Some(event)) => lost += u64::from(matches!(event.what, Event::LeaseLost { .. })),
            Ok(None) => return Some(lost),
            Err(_) => return None,
        }
    }
}

// Guarantee: queue_listener 15.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn dropped_listeners_and_a_failing_network_lose_no_message() {
    let messages = std::env::var("STEADFAST_MESSAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    steadfast::testing::faults::for_each_seed(0..4, |seed| storm(seed, messages / 4));
}

#[test]
fn spawned_tasks_handle_all_messages_and_end_with_the_run() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let queue = Arc::new(InMemoryQueue::new("jobs"));
        let send = async |n: u32| {
            for _ in 0..n {
                queue.send((0..100).map(|i| Message::new(format!("{i}"))).collect()).await.unwrap();
            }
        };
        send(20).await;
        let listener = QueueListener::builder(queue.clone(), Default::default()).build().unwrap();
        let threads = Arc::new(Mutex::new(std::collections::HashSet::new()));
        let (seen, all) = (threads.clone(), Arc::new(tokio::sync::Notify::new()));
        let (count, over) = (Arc::new(std::sync::atomic::AtomicU32::new(0)), all.clone());
        let handler = move |_: Work| {
            let (seen, count, over) = (seen.clone(), count.clone(), over.clone());
            async move {
                tokio::task::yield_now().await;
                seen.lock().unwrap().insert(std::thread::current().id());
                if count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 1999 {
                    over.notify_one();
                }
            }
        };
        let spawn = |task| drop(tokio::spawn(task));
        listener.run_on(spawn, all.notified(), handler).await.unwrap();
        assert_eq!(queue.depth().await.unwrap().total(), 0);
        assert_eq!((listener.state().handled, listener.state().tasks), (2000, 0));
        // The dropped run drops its tasks.
        send(1).await;
        let hangs = listener.run_on(spawn, pending(), |_: Work| pending::<()>());
        tokio::select! {
            _ = hangs => unreachable!("nothing stops it"),
            () = async { while listener.state().in_flight == 0 { tokio::task::yield_now().await } } => {}
        }
        while listener.state().in_flight > 0 {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_run_can_be_spawned_if_its_handler_can() {
    fn is_send(_: &impl Send) {}
    let world = World::new();
    let listener = world.listener(QueueListenerConfig::default(), 1);
    is_send(&listener.run(pending(), async |_: Work| {}));
    is_send(
        &listener
            .run_batches(pending(), async |works: Vec<Work>| works.iter().map(|_| Disposition::Complete).collect()),
    );
    is_send(&listener.run_on(|task| drop(tokio::spawn(task)), pending(), async |_: Work| {}));
    is_send(&listener.drain());
}

#[test]
fn settings_are_read_from_a_document_and_invalid_ones_reported_by_name() {
    let world = World::new();
    let config = QueueListenerConfig::default();
    let low = steadfast::backoff::BackoffConfig::default().between(S(2), S(1));
    for (config, field) in [
        (config.batch(0), "batch"),
        (config.tasks(0, 0), "max_tasks"),
        (config.tasks(3, 2), "min_tasks"),
        (config.tasks(0, 2), "min_tasks"),
        (config.visibility(S(0)), "visibility"),
        (config.margin(S(11)), "margin"),
        (config.call_timeout(S(0)), "call_timeout"),
        (config.max_attempts(0), "max_attempts"),
        (config.max_expiries(0), "max_expiries"),
        (config.stop_within(S(2), S(1)), "drain_timeout"),
        (config.handler_timeout(S(0)), "handler_timeout"),
        (config.idle(steadfast::queue_listener::IdleConfig::between(S(2), S(1))), "idle.min"),
        (config.busy(low), "busy.base"),
        (config.retry(low), "retry.base"),
    ] {
        assert_eq!(world.builder(config, 1).build().unwrap_err().field(), field);
    }
    let read: QueueListenerConfig = toml::from_str("batch = 8\nvisibility = \"1m\"\n[idle]\nmax = \"5m\"").unwrap();
    assert_eq!((read.batch, read.visibility, read.idle.max, read.max_tasks), (8, S(60), S(300), 16));
    assert!(toml::from_str::<QueueListenerConfig>("batches = 8").is_err());
}

#[test]
fn a_waiting_message_starts_a_task_though_the_depth_cannot_be_requested() {
    let world = World::new();
    world.line.is("depth", Mode::Refuses);
    (0..12).for_each(|i| drop(world.send(&format!("{i}"))));
    let listener = world.builder(QueueListenerConfig::default().tasks(1, 8), 1).scaling(|_| 6).build().unwrap();
    let run = listener.run(world.clock.sleep(S(20)), async |_| world.clock.sleep(S(1)).await);
    let looks = async {
        world.clock.sleep(MS(10)).await;
        (listener.state().in_flight, listener.state().buffered)
    };
    let (ran, looked) = world.time.block_on(async { tokio::join!(run, looks) });
    ran.unwrap();
    // It receives no more than the tasks of the rule can begin.
    assert_eq!(looked, (6, 0), "as many as the rule asks for");
    assert_eq!((listener.state().handled, listener.state().most_tasks), (12, 6));
}

#[test]
fn a_notice_during_an_empty_poll_leads_to_another_poll() {
    use steadfast::notify::Notifier;
    let world = World::new();
    let network = FaultNetwork::new(FaultConfig::default().latency(MS(50), MS(50)), 1, &world.clock).unwrap();
    let queue = network.client("node").queue(world.line.clone());
    let notifier = Arc::new(InMemoryNotifier::new());
    let builder = QueueListener::builder(queue, QueueListenerConfig::default().tasks(1, 1)).clock(&world.clock);
    let listener = builder.notifier(notifier.clone(), "jobs").entropy(&Entropy::from_seed(1)).build().unwrap();
    let begun = Cell::new(None);
    let run = listener.run(world.clock.sleep(S(3700)), async |_| begun.set(begun.get().or(Some(world.now()))));
    let send = async {
        world.clock.sleep(S(3600)).await;
        // One poll a minute reaches the queue; its answer takes 50 ms.
        let last = *world.line.calls("receive").last().unwrap();
        world.clock.sleep_until(last + S(60) + MS(100) + MS(20)).await;
        assert!(world.now() - *world.line.calls("receive").last().unwrap() == MS(20), "it has just looked");
        world.queue.send_one(Message::new("job")).await.unwrap();
        notifier.publish("jobs", "".into()).await.unwrap();
        world.now()
    };
    let (_, sent) = world.time.block_on(async { tokio::join!(run, send) });
    assert!(begun.get().unwrap() - sent <= MS(200));
}
