//! Futures of a scheduler, an agent and a participant that are dropped at every await point. Each request takes time, so
//! that the points before and after its effect are reached.
use std::{
    cell::{Cell, RefCell},
    future::pending,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    entropy::Entropy,
    queue::{InMemoryQueue, Queue, QueueExt},
    saga::{Compensated, Executed, Participant, SagaPhase, StepState},
    scheduler::{Agent, AgentCall, Scheduler},
    store::{DeleteOptions, Precondition, Scan, Store, StoreError, StoreExt, Write},
    testing::{
        drop_at_every_await,
        faults::{FaultClient, FaultConfig},
    },
};

use super::world::{World, order};
use crate::saga::world::{Answer, S, State};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A client whose requests take a millisecond in each direction.
fn slow_client(world: &World) -> FaultClient {
    world.saga.network.configure(FaultConfig::default().latency(MS(1), MS(1))).unwrap();
    world.saga.network.client("slow")
}

/// A process with such a client. It takes messages for itself only, so that the others of a test have theirs.
fn slow(world: &World) -> Scheduler<State> {
    let client = slow_client(world);
    let store = client.store(world.saga.store.clone());
    let saga = world.process_on("slow", world.saga.trip(), store, world.queue.clone()).saga().clone();
    let replies = client.queue(world.replies.clone());
    Scheduler::builder(saga, client.queue(world.queue.clone()), World::config())
        .clock(&world.clock)
        .entropy(&Entropy::from_seed(8))
        .replies(move |_| Some(replies.clone()))
        .build()
        .unwrap()
}

/// The calls of this saga's services, as words.
fn log_of(world: &World, id: &str) -> String {
    let calls = world.saga.services.calls().into_iter().filter(|call| call.key.split('/').nth(1) == Some(id));
    calls.map(|call| call.name).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_dropped_submission_was_accepted_or_not_and_the_next_one_makes_it_one() {
    let world = World::new();
    let (orders, n) = (slow(&world), Cell::new(0));
    let polls = drop_at_every_await(
        &world.saga.time,
        || {
            n.set(n.get() + 1);
            let (orders, order) = (orders.clone(), order(&n.get().to_string()));
            async move { orders.submit(order).await.unwrap() }
        },
        |polls| {
            let accepted = world.depths().0;
            assert!(accepted == n.get() || accepted == n.get() - 1, "{accepted} after {polls} polls");
            world.submit(&orders, order(&n.get().to_string()));
            assert_eq!(world.depths(), (n.get(), 0));
        },
    );
    assert!(polls >= 3, "{polls}");
    world.run(&[&orders], S(60));
    assert_eq!((world.saga.services.calls().len() as u64, world.depths()), (4 * n.get(), (0, 0)));
}

#[test]
fn a_run_dropped_at_any_await_starts_each_saga_once_and_tells_its_end() {
    let world = World::new();
    let (orders, other, n) = (slow(&world), world.process("b", world.saga.trip()), Cell::new(0));
    let id = || n.get().to_string();
    let repeated = Cell::new(0);
    let polls = drop_at_every_await(
        &world.saga.time,
        || {
            n.set(n.get() + 1);
            world.submit(&other, order(&id()).reply_to("web-1", id()));
            world.saga.services.answer("room", [Answer::Takes(MS(20))]);
            let (orders, stop) = (orders.clone(), world.clock.sleep(S(2)));
            async move { orders.run(stop).await.unwrap() }
        },
        |polls| {
            assert_eq!(orders.saga().running(), 0, "{polls}");
            // The lease of the dropped run ends, and another process goes on.
            world.run(&[&other], S(40));
            let status = world.block_on(other.read(&id())).unwrap().unwrap();
            let epoch = status.epoch.as_u64();
            assert_eq!((status.phase, world.depths()), (SagaPhase::Completed, (0, 0)), "{polls}");
            // One attempt was under way at most, and ran again.
            let log = log_of(&world, &id());
            let mut once: Vec<_> = log.split(' ').collect();
            once.dedup();
            assert_eq!(once, ["seat", "room", "charge", "mail"], "{polls}: {log}");
            let again = log.split(' ').count() - once.len();
            assert!(again <= 1 && epoch <= 2 && (again as u64) < epoch, "{polls}: {log}, epoch {epoch}");
            repeated.set(repeated.get() + again);
            assert_eq!(world.told(), ["received", "completed"].map(|told| format!("{} {told}", id())), "{polls}");
        },
    );
    assert!(polls >= 30 && repeated.get() > 0, "{polls} polls, {} attempts ran again", repeated.get());
}

#[test]
fn a_supervisor_dropped_at_any_await_loses_no_saga_and_counts_it_once() {
    let world = World::new();
    let (orders, other, n) = (slow(&world), world.process("b", world.saga.trip()), Cell::new(0));
    let id = || n.get().to_string();
    let polls = drop_at_every_await(
        &world.saga.time,
        || {
            n.set(n.get() + 1);
            world.submit(&other, order(&id()).reply_to("web-1", id()));
            world.saga.services.answer("room", [Answer::Hangs]);
            world.kill_after(&other, S(5));
            world.block_on(world.queue.purge()).unwrap();
            let (orders, stop) = (orders.clone(), world.clock.sleep(S(70)));
            async move { orders.supervise(stop).await.unwrap() }
        },
        |polls| {
            let found = world.block_on(other.read(&id())).unwrap().unwrap();
            assert!(found.failures <= 1 && world.depths().0 <= u64::from(found.failures), "{polls}: {found:?}");
            // Another one finds what was not sent.
            assert!(world.saga.within(S(130), other.supervise(pending())).is_none());
            world.run(&[&other], S(40));
            let found = world.block_on(other.read(&id())).unwrap().unwrap();
            assert_eq!((found.phase, world.depths()), (SagaPhase::Completed, (0, 0)), "{polls}: {found:?}");
            assert!((1..=2).contains(&found.failures), "{polls}: {found:?}");
            assert_eq!(log_of(&world, &id()), "seat room room charge mail", "{polls}");
            assert_eq!(world.told(), ["received", "completed"].map(|told| format!("{} {told}", id())), "{polls}");
        },
    );
    assert!(polls >= 15, "{polls}");
}

#[test]
fn a_dropped_wake_woke_the_saga_or_not_and_a_dropped_read_changes_nothing() {
    let world = World::new();
    let (orders, other, n) = (slow(&world), world.process("b", world.saga.trip()), Cell::new(0));
    let id = || n.get().to_string();
    let wait = || {
        n.set(n.get() + 1);
        world.submit(&other, order(&id()));
        world.saga.services.answer("room", [Answer::Pending(S(100_000))]);
        world.run(&[&other], S(5));
        let status = world.block_on(other.read(&id())).unwrap().unwrap();
        assert_eq!((status.steps[1].state, world.depths()), (StepState::Waiting, (n.get(), 0)));
    };
    let polls = drop_at_every_await(
        &world.saga.time,
        || {
            wait();
            let (orders, id) = (orders.clone(), id());
            async move { orders.wake(&id).await.unwrap() }
        },
        |polls| {
            // One message waits for each saga; that of the wake is there or not.
            assert!((n.get()..=n.get() + 1).contains(&world.depths().0), "{polls}");
            world.block_on(other.wake(&id())).unwrap();
            world.run(&[&other], S(10));
            let status = world.block_on(other.read(&id())).unwrap().unwrap();
            assert_eq!((status.phase, world.depths()), (SagaPhase::Completed, (n.get(), 0)), "{polls}");
            assert_eq!(log_of(&world, &id()), "seat room room charge mail", "{polls}");
        },
    );
    assert!(polls >= 6, "{polls}");
    let before = (world.block_on(other.read(&id())).unwrap(), world.saga.rows(), world.depths());
    let polls = drop_at_every_await(
        &world.saga.time,
        || {
            let (orders, id) = (orders.clone(), id());
            async move { orders.read(&id).await.unwrap() }
        },
        |_| assert_eq!((world.block_on(other.read(&id())).unwrap(), world.saga.rows(), world.depths()), before),
    );
    assert!(polls >= 3, "{polls}");
}

/// A participant of the seats.
fn seats(store: Arc<dyn Store>) -> Participant {
    Participant::new(store, "seats").unwrap()
}

/// The effects that were written, in their order.
fn effects(world: &World) -> Vec<String> {
    let rows = world.block_on(world.saga.store.scan_all(Scan::partition("seats").prefix("log/"))).unwrap();
    rows.iter().map(|row| String::from_utf8_lossy(&row.value).into_owned()).collect()
}

fn take() -> Vec<Write> {
    vec![Write::put("12A", "taken", Precondition::Absent), Write::append("log/", "taken")]
}

fn free() -> Vec<Write> {
    vec![Write::delete("12A", DeleteOptions::new()), Write::append("log/", "freed")]
}

#[test]
fn requests_to_a_participant_that_are_dropped_are_applied_as_a_whole_or_not_at_all_and_once() {
    let world = World::new();
    let (dropped, quick) =
        (seats(slow_client(&world).store(world.saga.store.clone())), seats(world.saga.store.clone()));
    let n = Cell::new(0);
    let key = || format!("trip/{}/seat", n.get());
    let polls = drop_at_every_await(
        &world.saga.time,
        || {
            n.set(n.get() + 1);
            let (dropped, key) = (dropped.clone(), key());
            async move { dropped.execute(&key, take(), "12A").await.unwrap() }
        },
        |polls| {
            // The record of the key and its rows.
            let reply = world.block_on(quick.reply(&key())).unwrap();
            let taken = effects(&world).iter().filter(|effect| *effect == "taken").count();
            assert_eq!(taken, n.get() - usize::from(reply.is_none()), "{polls}");
            let expected = if reply.is_some() { Executed::AlreadyApplied("12A".into()) } else { Executed::Applied };
            assert_eq!(world.block_on(quick.execute(&key(), take(), "12A")).unwrap(), expected, "{polls}");
            assert_eq!(world.block_on(quick.compensate(&key(), free())).unwrap(), Compensated::Applied);
            assert_eq!(effects(&world), ["taken", "freed"].repeat(n.get()), "{polls}");
        },
    );
    assert!(polls >= 5, "{polls}");
    // Half of the compensations are of actions that never came.
    let (mut expected, begun) = (effects(&world), n.get());
    for was_executed in [true, false] {
        let polls = drop_at_every_await(
            &world.saga.time,
            || {
                n.set(n.get() + 1);
                if was_executed {
                    world.block_on(quick.execute(&key(), take(), "12A")).unwrap();
                }
                let (dropped, key) = (dropped.clone(), key());
                async move { dropped.compensate(&key, free()).await.unwrap() }
            },
            |polls| {
                if was_executed {
                    let is_undone = world.block_on(quick.reply(&key())).unwrap().is_none();
                    let freed = effects(&world).len() - expected.len() == 2;
                    assert_eq!(freed, is_undone, "{polls}");
                    expected.extend(["taken", "freed"].map(str::to_owned));
                }
                let again = world.block_on(quick.compensate(&key(), free())).unwrap();
                let first = if was_executed { Compensated::Applied } else { Compensated::NeverExecuted };
                assert!(again == first || again == Compensated::AlreadyCompensated, "{polls}: {again:?}");
                assert_eq!(world.block_on(quick.execute(&key(), take(), "12A")).unwrap(), Executed::TooLate);
                assert_eq!(effects(&world), expected, "{polls}");
            },
        );
        assert!(polls >= 5, "{polls}");
    }
    assert!(n.get() >= begun + 10);
    let rows = world.block_on(world.saga.store.scan_all(Scan::partition("seats"))).unwrap();
    let polls = drop_at_every_await(
        &world.saga.time,
        || dropped.reply("trip/1/seat"),
        |_| {
            let now = world.block_on(world.saga.store.scan_all(Scan::partition("seats"))).unwrap();
            assert_eq!(now, rows);
        },
    );
    assert!(polls >= 3, "{polls}");
}

async fn answer(seats: &Participant, call: AgentCall) -> Result<Bytes, StoreError> {
    match seats.execute(&call.key, vec![Write::append("log/", call.key.clone())], "12A").await? {
        Executed::AlreadyApplied(reply) => Ok(reply),
        _ => Ok("12A".into()),
    }
}

#[test]
fn an_agent_dropped_at_any_await_applies_each_request_once_and_replies() {
    let world = World::new();
    let client = slow_client(&world);
    let requests: Arc<dyn Queue> = Arc::new(InMemoryQueue::builder("couriers").clock(&world.clock).build());
    let agent = |requests: Arc<dyn Queue>, replies: Arc<dyn Queue>| {
        let agent = Agent::builder(requests, Default::default()).clock(&world.clock).entropy(&Entropy::from_seed(9));
        agent.replies(move |_| Some(replies.clone())).build().unwrap()
    };
    let dropped = agent(client.queue(requests.clone()), client.queue(world.replies.clone()));
    let other = agent(requests.clone(), world.replies.clone());
    let (far, near) = (seats(client.store(world.saga.store.clone())), seats(world.saga.store.clone()));
    let (n, expected) = (Cell::new(0), RefCell::new(Vec::new()));
    let polls = drop_at_every_await(
        &world.saga.time,
        || {
            n.set(n.get() + 1);
            expected.borrow_mut().push(n.get().to_string());
            let request = AgentCall::request(n.get().to_string(), "please", S(100));
            let request = request.header("reply-to", "web-1").header("correlation-id", n.get().to_string());
            world.block_on(requests.send_one(request)).unwrap();
            let (dropped, far, stop) = (&dropped, &far, world.clock.sleep(S(1)));
            async move { dropped.run(stop, |call| answer(far, call)).await.unwrap() }
        },
        |polls| {
            world.block_on(other.run(world.clock.sleep(S(60)), |call| answer(&near, call))).unwrap();
            assert_eq!(effects(&world), *expected.borrow(), "{polls}");
            let reply = world.block_on(world.replies.receive_one(S(30))).unwrap().expect("a reply");
            assert_eq!((reply.headers["correlation-id"].clone(), &*reply.body), (n.get().to_string(), &b"12A"[..]));
            world.block_on(world.replies.complete(&reply.receipt)).unwrap();
            let depth = |queue: &Arc<dyn Queue>| world.block_on(queue.depth()).unwrap().total();
            assert_eq!((depth(&requests), depth(&world.replies)), (0, 0), "{polls}");
        },
    );
    assert!(polls >= 8, "{polls}");
}
