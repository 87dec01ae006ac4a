//! Futures that are dropped at each of their await points.
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use steadfast::{
    event_sourcing::{
        AggregateConfig, AggregateStore, COMMAND_ID, Commit, EventStore, EventStoreConfig, Expected::*, Outbox,
        OutboxConfig,
    },
    queue::{InMemoryQueue, Message, Queue, QueueExt},
    store::{InMemoryStore, Store},
    stream::{Read, Topic},
    testing::{
        drop_at_every_await,
        faults::{FaultConfig, FaultNetwork},
    },
    time::{Clock, ManualClock},
    work::Disposition,
};

use crate::{
    aggregates::{Book, Seats, codec, states},
    append, event,
};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The tasks that a log spawned.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<Vec<Task>>>);

impl Tasks {
    /// Polls all tasks, also those that they spawn; returns `true` if all have ended.
    fn poll(&self, cx: &mut Context<'_>) -> bool {
        let (mut waiting, mut running) = (Vec::new(), std::mem::take(&mut *self.0.lock().unwrap()));
        while !running.is_empty() {
            running.retain_mut(|task| task.as_mut().poll(cx).is_pending());
            waiting.append(&mut running);
            running.append(&mut self.0.lock().unwrap());
        }
        self.0.lock().unwrap().append(&mut waiting);
        self.0.lock().unwrap().is_empty()
    }

    /// Polls a future, and the tasks beside it. They stay if the future is dropped.
    async fn beside<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        poll_fn(|cx| {
            let polled = future.as_mut().poll(cx);
            if polled.is_pending() {
                self.poll(cx);
            }
            polled
        })
        .await
    }

    /// Waits for the end of all tasks.
    async fn end(&self) {
        poll_fn(|cx| if self.poll(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

/// A store behind a network whose requests and replies take time.
struct World {
    clock: Clock,
    time: ManualClock,
    tasks: Tasks,
    store: Arc<dyn Store>,
}

impl World {
    fn new() -> Self {
        let (clock, time) = Clock::manual();
        let slow = FaultConfig::default().latency(Duration::from_millis(1), Duration::from_millis(2));
        let network = FaultNetwork::new(slow, 1, &clock).unwrap();
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        Self { clock, time, tasks: Tasks::default(), store: network.client("a").store(store) }
    }

    fn open(&self) -> impl Future<Output = EventStore> {
        let tasks = self.tasks.clone();
        let log = EventStore::builder(self.store.clone(), "log", EventStoreConfig::default())
            .outbox("mails", InMemoryQueue::new("mails").capabilities())
            .spawner(move |task| tasks.0.lock().unwrap().push(task))
            .clock(&self.clock);
        async { log.build().await.unwrap() }
    }

    /// Runs a future to its end.
    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.time.block_on(self.tasks.beside(future))
    }

    /// Drops a future at each await, and returns the number of its polls.
    fn drops<T>(&self, mut make: impl AsyncFnMut(usize) -> T, mut check: impl FnMut(usize)) -> usize {
        // One after the other: the numbers begin at zero.
        let make = std::cell::RefCell::new(&mut make);
        let begun = std::cell::Cell::new(0);
        drop_at_every_await(
            &self.time,
            || {
                let n = begun.replace(begun.get() + 1);
                let make = &make;
                #[allow(clippy::await_holding_refcell_ref, reason = "one future at a time")]
                self.tasks.beside(async move { make.borrow_mut()(n).await })
            },
            |polls| {
                self.time.block_on(self.tasks.end());
                check(polls);
            },
        )
    }
}

#[test]
fn a_log_that_is_dropped_while_it_opens_is_created_or_not_and_opens_again() {
    let world = World::new();
    let polls = world.drops(async |_| world.open().await, |_| assert_eq!(world.run(world.open()).state().pending, 0));
    assert!(polls > 2, "{polls}");
    let (one, other) = (world.run(world.open()), world.run(world.open()));
    assert_eq!(one.topic().identity(), other.topic().identity());
}

// Guarantee: event_sourcing 5.
#[test]
fn a_commit_that_is_dropped_at_any_await_is_whole_or_absent_and_its_id_tells() {
    let world = World::new();
    let log = world.run(world.open());
    let commit = |n: usize| {
        let (a, b) = (format!("a{n}"), format!("b{n}"));
        append(&format!("cmd {n}"), &a, Version(0), "A").append(b, Any, [event("B")]).claim(format!("c{n}"))
    };
    let polls = world.drops(
        async |n| log.commit(commit(n)).await.unwrap(),
        |n| {
            assert_eq!(log.state().pending, 0);
            let versions = [format!("a{n}"), format!("b{n}")].map(|stream| world.run(log.version(&stream)).unwrap());
            assert_eq!(versions[0], versions[1], "after {n} polls");
            let is_held = world.run(log.holder(&format!("c{n}"))).unwrap().is_some();
            assert_eq!(
                (is_held, world.run(log.commit(commit(n))).unwrap().is_repeated),
                (versions[0] == 1, versions[0] == 1)
            );
        },
    );
    assert!(polls > 2, "{polls}");
}

// Guarantee: event_sourcing 10.
#[test]
fn a_command_that_is_dropped_at_any_await_is_executed_once() {
    let world = World::new();
    let seats = aggregates(world.run(world.open()), &world.clock);
    let polls = world.drops(
        async |n| seats.execute("conf", format!("cmd {n}"), Book(0)).await.unwrap(),
        |n| {
            assert_eq!(seats.log().state().pending, 0);
            world.run(seats.execute("conf", format!("cmd {n}"), Book(0))).unwrap();
            assert_eq!(world.run(seats.load("conf")).unwrap().1, n as u64 + 1);
        },
    );
    assert!(polls > 2, "{polls}");
}

// Guarantee: event_sourcing 16.
#[test]
fn a_handler_that_is_dropped_at_any_await_executes_its_command_once() {
    let world = World::new();
    let seats = aggregates(world.run(world.open()), &world.clock);
    let queue = InMemoryQueue::builder("commands").clock(&world.clock).build();
    let sent = AtomicU64::new(0);
    let polls = world.drops(
        async |n| {
            let command = Message::new("0").group("conf").header(COMMAND_ID, n.to_string());
            queue.send_one(command).await.unwrap();
            sent.fetch_add(1, SeqCst);
            let message = queue.receive_one(Duration::from_millis(1)).await.unwrap().unwrap();
            seats.handle(&message, |_| Ok::<_, String>(Book(0))).await
        },
        |_| {
            assert_eq!(seats.log().state().pending, 0);
            world.run(world.clock.sleep(Duration::from_secs(1)));
            let message = world.run(queue.receive_one(Duration::from_secs(60))).unwrap();
            // Dropped before the command was sent.
            let Some(message) = message else { return };
            assert_eq!(world.run(seats.handle(&message, |_| Ok::<_, String>(Book(0)))), Disposition::Complete);
            assert_eq!(world.run(seats.handle(&message, |_| Ok::<_, String>(Book(0)))), Disposition::Complete);
            assert_eq!(world.run(seats.load("conf")).unwrap().1, sent.load(SeqCst));
            world.run(queue.complete(&message.receipt)).unwrap();
        },
    );
    assert!(polls > 2, "{polls}");
    let (state, version) = world.run(seats.load("conf")).unwrap();
    assert_eq!((state.booked, version), (0, sent.load(SeqCst)));
    let commands = world.run(seats.history("conf")).unwrap().into_iter().map(|(stored, _)| stored.command);
    assert_eq!(commands.collect::<std::collections::BTreeSet<_>>().len() as u64, version);
}

#[test]
fn reads_and_loads_that_are_dropped_at_any_await_change_nothing() {
    let world = World::new();
    let log = world.run(world.open());
    let seats = aggregates(log.clone(), &world.clock);
    for n in 0..5 {
        world.run(seats.execute("conf", n.to_string(), Book(1))).unwrap();
    }
    let seen = || {
        let (state, version) = world.run(seats.load("conf")).unwrap();
        assert_eq!((state.booked, version, log.state().pending), (5, 5, 0));
    };
    let topic = log.topic();
    let polls = [
        world.drops(async |_| log.read("conf", 0, 9).await.unwrap().len(), |_| seen()),
        world.drops(async |_| seats.load("conf").await.unwrap().1, |_| seen()),
        world.drops(async |_| seats.load_at("conf", 3).await.unwrap().booked, |_| seen()),
        world.drops(async |_| seats.history("conf").await.unwrap().len(), |_| seen()),
        world
            .drops(async |_| seats.add(Commit::new("add"), "conf", &Book(1)).await.unwrap().id().is_some(), |_| seen()),
        world.drops(async |_| seats.verify("conf").await.unwrap(), |_| seen()),
        world.drops(async |_| log.commits(0, 9).await.unwrap().len(), |_| seen()),
        world.drops(async |_| log.token().await.unwrap(), |_| seen()),
        world.drops(async |_| log.row("u/x").await.unwrap(), |_| seen()),
        world.drops(async |_| topic.read(0, Read::from(1)).await.unwrap().len(), |_| seen()),
        world.drops(
            async |_| topic.read(0, Read::from(9).wait(Duration::from_millis(200))).await.unwrap().len(),
            |_| seen(),
        ),
        world.drops(async |_| topic.bounds(0).await.unwrap(), |_| seen()),
    ];
    assert!(polls.iter().all(|polls| *polls >= 2), "{polls:?}");
}

// Guarantee: event_sourcing 7.
#[test]
fn a_trim_that_is_dropped_at_any_await_has_deleted_the_oldest_commits_or_none() {
    let world = World::new();
    let log = world.run(world.open());
    for n in 0..3 {
        world.run(log.commit(append(&n.to_string(), "a", Any, "A"))).unwrap();
    }
    let polls = world.drops(
        async |_| log.trim(u64::MAX).await.unwrap(),
        |n| {
            let kept = world.run(log.commits(0, 99)).unwrap();
            let last = n as u64 + 3;
            assert!(!kept.is_empty());
            assert!(kept.iter().map(|commit| commit.number).eq(last + 1 - kept.len() as u64..=last));
            assert_eq!(world.run(log.version("a")).unwrap(), last);
            world.run(log.commit(append(&format!("more {n}"), "a", Version(last), "A"))).unwrap();
        },
    );
    assert!(polls > 2, "{polls}");
    world.run(log.trim(u64::MAX)).unwrap();
    assert_eq!(world.run(log.commits(0, 99)).unwrap().len(), 1);
}

// Guarantee: event_sourcing 14.
#[test]
fn an_outbox_that_is_dropped_at_any_await_sends_each_message_once() {
    let world = World::new();
    let log = world.run(world.open());
    let mails: Arc<dyn Queue> = Arc::new(InMemoryQueue::builder("mails").clock(&world.clock).build());
    let config = OutboxConfig::default().standby(Duration::from_millis(1));
    let outbox = Outbox::builder(&log, "mails", mails.clone(), config).clock(&world.clock).build().unwrap();
    let send = |n: usize| {
        let commit = Commit::new(n.to_string()).append("a", Any, [event("A")]);
        world.run(log.commit(commit.send("mails", Message::new(n.to_string())))).unwrap();
    };
    send(0);
    let polls = world.drops(
        async |_| outbox.run(world.clock.sleep(Duration::from_millis(300))).await.unwrap(),
        |n| {
            world.run(outbox.run(world.clock.sleep(Duration::from_secs(2)))).unwrap();
            assert_eq!(world.run(mails.depth()).unwrap().total(), n as u64 + 1, "after {n} polls");
            send(n + 1);
        },
    );
    assert!(polls > 2, "{polls}");
}

fn aggregates(log: EventStore, clock: &Clock) -> AggregateStore<Seats> {
    let config = AggregateConfig::default().snapshot_every(3);
    AggregateStore::builder(log, codec(), config).snapshots(states(), 1).clock(clock).build().unwrap()
}
