//! The considerations of a scheduler. The others are shown in `tests/it/scheduler`.
use std::{future::pending, time::Duration};

use steadfast::{
    observe::Subscription,
    saga::{Saga, SagaPhase},
    scheduler::{Scheduler, SchedulerEvent as Event},
    time::Instant,
};

use crate::{
    saga::world::{Answer, S, State, World as Services, codec},
    scheduler::world::{World, order},
};

/// Lets a saga lose its message while its process dies in the second step.
fn lose(world: &World, orders: &Scheduler<State>, id: &str) {
    world.submit(orders, order(id));
    world.saga.services.answer("room", [Answer::Hangs]);
    world.kill_after(orders, S(5));
    world.block_on(world.queue.purge()).unwrap();
}

/// Returns the times at which messages were sent again.
fn resent(world: &World, events: &mut Subscription<Event>) -> Vec<Instant> {
    let mut resent = Vec::new();
    while let Some(Ok(event)) = world.saga.within(Duration::ZERO, events.recv()) {
        assert!(matches!(event.what, Event::Resent { cancels: false, .. }), "{event:?}");
        resent.push(event.at);
    }
    resent
}

/// 3 (default): the table of the page.
#[test]
fn the_interval_of_a_supervisor_trades_requests_for_delay_as_its_table_says() {
    for (interval, requests, after, latest) in [(10, 720, 70, 80), (30, 240, 90, 120), (300, 24, 600, 600)] {
        let world = World::new();
        let supervisor = |name: &str, interval: u64| {
            let store = world.saga.network.client(name).store(world.saga.store.clone());
            let config = Services::config().scan_interval(S(interval));
            let saga = Saga::builder("trip", store, codec(), world.saga.trip(), config).clock(&world.clock);
            let saga = saga.build().unwrap();
            Scheduler::builder(saga, world.queue.clone(), World::config()).clock(&world.clock).build().unwrap()
        };
        // A hundred sagas wait for longer than the test.
        world.saga.services.answer("room", vec![Answer::Pending(S(1_000_000)); 100]);
        let orders = world.process("a", world.saga.trip());
        (0..100).for_each(|i| world.submit(&orders, order(&i.to_string())));
        world.run(&[&orders], S(60));
        assert_eq!(world.block_on(orders.saga().list_open()).unwrap().len(), 100);
        let idle = supervisor("idle", interval);
        let before = world.saga.requests();
        world.block_on(idle.supervise(world.clock.sleep(S(3600)))).unwrap();
        assert_eq!(world.saga.requests() - before, requests, "each {interval} s");

        // A saga changes for the last time just after a look.
        let supervisor = supervisor("finds", interval);
        let mut events = supervisor.events();
        let lost = world.process("b", world.saga.trip());
        let last = world.block_on(async {
            let dies = async {
                world.clock.sleep(Duration::from_millis(1)).await;
                let last = world.clock.now();
                world.saga.services.answer("room", [Answer::Hangs]);
                lost.submit(order("lost")).await.unwrap();
                tokio::select! {
                    _ = lost.run(pending()) => {}
                    () = world.clock.sleep(S(2)) => {}
                }
                world.queue.purge().await.unwrap();
                last
            };
            let (last, supervised) = tokio::join!(dies, supervisor.supervise(world.clock.sleep(S(650))));
            supervised.unwrap();
            last
        });
        let resent = resent(&world, &mut events);
        let delay = resent[0] - last;
        assert!(delay > S(after - 1) && delay <= S(after) && after <= latest, "each {interval} s: after {delay:?}");
    }
}

/// 5 (default): claims by compare-and-set, messages with de-duplication.
#[test]
fn several_schedulers_and_supervisors_resume_a_lost_saga_once() {
    let world = World::new();
    let processes = ["a", "b", "c", "d"].map(|name| world.process(name, world.saga.trip()));
    lose(&world, &processes[0], "42");
    let mut events = processes.each_ref().map(Scheduler::events);
    world.saga.services.answer("room", [Answer::Takes(S(20))]);
    world.block_on(async {
        let run = async |orders: &Scheduler<State>| {
            let stop = || world.clock.sleep(S(300));
            let (ran, supervised) = tokio::join!(orders.run(stop()), orders.supervise(stop()));
            ran.unwrap();
            supervised.unwrap();
        };
        futures::future::join_all(processes[1..].iter().map(run)).await;
    });
    let resent: usize = events.iter_mut().map(|events| resent(&world, events).len()).sum();
    let status = world.block_on(processes[0].read("42")).unwrap().unwrap();
    assert_eq!((resent, status.failures, status.epoch.as_u64()), (1, 1, 2));
    assert_eq!((status.phase, world.depths()), (SagaPhase::Completed, (0, 0)));
    assert_eq!(world.saga.services.log(), "seat room room charge mail");
}

/// 8 (default): a supervisor with another plan calls no service, and changes nothing of the saga but a count.
#[test]
fn a_supervisor_that_knows_no_step_sends_one_message_and_does_nothing_else() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    lose(&world, &orders, "42");
    let before = world.block_on(orders.read("42")).unwrap().unwrap();
    let stranger = world.process("b", world.saga.steps(&["another"]));
    assert!(world.saga.within(S(130), stranger.supervise(pending())).is_none());
    let mut after = world.block_on(orders.read("42")).unwrap().unwrap();
    assert_eq!(std::mem::replace(&mut after.failures, before.failures), 1);
    assert_eq!((after, world.depths(), world.saga.services.log().as_str()), (before, (1, 0), "seat room"));
    // A process that knows the steps carries the saga on.
    world.run(&[&orders], S(60));
    assert_eq!(world.block_on(orders.read("42")).unwrap().unwrap().phase, SagaPhase::Completed);
}
