//! The capacity of a run: lost messages and those of aborted tasks take none of it.
use std::{
    cell::{Cell, RefCell},
    future::{Future, pending, poll_fn},
    pin::pin,
    task::Poll,
};

use steadfast::{
    port::BoxFuture,
    queue::{Message, QueueExt},
    queue_listener::{Disposition, QueueListener, QueueListenerConfig, Work},
    testing::ScriptedPort,
};

use crate::queue_listener::world::{MS, Mode, S, World, text};

/// Tasks that a run passed to its spawner.
type Tasks = RefCell<Vec<Option<BoxFuture<'static, ()>>>>;

/// Polls a run and its tasks until the condition holds.
async fn beside(tasks: &Tasks, mut run: impl Future + Unpin, until: impl Future<Output = ()>) {
    let (mut until, mut run) = (pin!(until), pin!(&mut run));
    poll_fn(|cx| {
        assert!(run.as_mut().poll(cx).is_pending(), "the run has no end");
        let n = tasks.borrow().len();
        for at in 0..n {
            let task = tasks.borrow_mut()[at].take();
            let task = task.and_then(|mut task| task.as_mut().poll(cx).is_pending().then_some(task));
            tasks.borrow_mut()[at] = task;
        }
        until.as_mut().poll(cx)
    })
    .await;
}

#[test]
fn a_message_whose_lease_is_lost_takes_no_capacity_of_later_ones() {
    for lost in [1, 3] {
        let world = World::new();
        let config = QueueListenerConfig::default().batch(1).tasks(1, 1).visibility(S(10));
        let listener = world.listener(config, 1);
        (0..lost).for_each(|i| drop(world.send(&format!("hangs {i}"))));
        world.line.is("extend", Mode::Refuses);
        let hangs = Cell::new(lost);
        let run = listener.run(pending(), async |work: Work| {
            if text(&work.body).starts_with("hangs") && hangs.get() > 0 {
                hangs.set(hangs.get() - 1);
                pending::<()>().await;
            }
        });
        let sends = async {
            world.clock.sleep(S(120)).await;
            // Messages that arrive at the end of a wait are renewed.
            world.line.is("extend", Mode::Well);
            for i in 0..20 {
                world.queue.send_one(Message::new(format!("late {i}"))).await.unwrap();
            }
            world.clock.sleep(S(120)).await;
        };
        world.time.block_on(async {
            tokio::select! { _ = run => {}, () = sends => {} }
        });
        assert_eq!((world.depth().total(), listener.state().leases_lost), (0, lost), "{:?}", listener.state());
    }
}

#[test]
fn a_task_aborted_during_a_partial_settlement_returns_its_capacity() {
    for at in 0..12 {
        let world = World::new();
        let config = QueueListenerConfig::default().batch(6).tasks(2, 2).visibility(S(10));
        // At most two settlements per request.
        let narrow = ScriptedPort::changing(&world.clock, |can| can.largest_batch(2));
        let queue = narrow.queue(world.line.clone());
        let listener = QueueListener::builder(queue, config).clock(&world.clock).build().unwrap();
        world.line.takes("settle", MS(3));
        let tasks: Tasks = RefCell::default();
        let spawn = |task| tasks.borrow_mut().push(Some(task));
        let mut run = Box::pin(listener.run_on(spawn, pending(), |_: Work| async {}));
        (0..12).for_each(|i| drop(world.send(&format!("{i}"))));
        world.time.block_on(async {
            beside(&tasks, &mut run, world.clock.sleep(MS(at))).await;
            drop(tasks.borrow_mut()[0].take());
            beside(&tasks, &mut run, world.clock.sleep(S(300))).await;
        });
        assert_eq!(world.depth().total(), 0, "aborted after {at} ms: {:?}", listener.state());
        assert!(narrow.calls("settle").iter().all(|call| call.target.matches("complete").count() <= 2));
    }
}

#[test]
fn a_drain_ends_when_the_last_working_task_is_aborted() {
    let world = World::new();
    let listener = world.listener(QueueListenerConfig::default().batch(1).tasks(2, 2), 1);
    world.send("hangs");
    let tasks: Tasks = RefCell::default();
    let spawn = |task| tasks.borrow_mut().push(Some(task));
    let mut run = Box::pin(listener.run_on(spawn, pending(), |_: Work| pending::<Disposition>()));
    let is_drained = Cell::new(false);
    world.time.block_on(async {
        beside(&tasks, &mut run, world.clock.sleep(S(1))).await;
        let mut drain = Box::pin(listener.drain());
        let mut drains = async |time| {
            let drains = poll_fn(|cx| {
                is_drained.set(is_drained.get() || drain.as_mut().poll(cx).is_ready());
                if is_drained.get() { Poll::Ready(()) } else { Poll::Pending }
            });
            let until = async {
                tokio::select! { biased; () = drains => {}, () = world.clock.sleep(time) => {} }
            };
            beside(&tasks, &mut run, until).await;
        };
        drains(S(1)).await;
        assert!(!is_drained.get(), "a handler runs");
        // The first of the two tasks has the message.
        tasks.borrow_mut()[0] = None;
        drains(S(5)).await;
    });
    assert_eq!((is_drained.get(), listener.state().tasks), (true, 1));
}

/// Bug: the number of tasks was that of the run that changed last. A run that ended set it to zero
/// while another one had tasks, and each run admitted messages for the tasks of the other.
#[test]
fn the_tasks_of_two_runs_of_one_listener_add_up() {
    let world = World::new();
    let listener = world.listener(QueueListenerConfig::default().tasks(2, 4), 1);
    let run = |time| listener.run(world.clock.sleep(time), async |_: Work| Disposition::Complete);
    let (first, second) = (run(S(10)), run(S(20)));
    let began = world.now();
    let looks = async {
        for (at, tasks) in [(5, 4), (15, 2), (25, 0)] {
            world.clock.sleep_until(began + S(at)).await;
            assert_eq!((listener.state().tasks, listener.state().most_tasks), (tasks, 4), "after {at} s");
        }
    };
    let (first, second, ()) = world.time.block_on(async { tokio::join!(first, second, looks) });
    assert!(first.is_ok() && second.is_ok());
}

/// Regression: the first run, which was idle, woke the waiting drain at each of its checks, so that
/// it never waited and no other future made progress.
#[test]
fn a_drain_of_two_runs_waits_for_the_handler_of_the_second() {
    let world = World::new();
    let listener = world.listener(QueueListenerConfig::default().tasks(1, 1), 1);
    let takes =
        async |time| listener.run(world.clock.sleep(S(1000)), async |_: Work| world.clock.sleep(time).await).await;
    let drains = async {
        world.clock.sleep(S(1)).await;
        world.send("long");
        world.send("longer");
        world.clock.sleep(S(51)).await;
        listener.drain().await;
        world.now()
    };
    let start = world.now();
    let (first, second, drained) = world.time.block_on(async { tokio::join!(takes(S(10)), takes(S(400)), drains) });
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    assert!(drained - start >= S(401) && drained - start <= S(402), "{:?}", drained - start);
}
