//! A listener whose configuration is replaced while it runs.
use std::{
    cell::{Cell, RefCell},
    future::pending,
};

use steadfast::{
    queue::{Message, QueueExt},
    queue_listener::{Disposition, QueueListenerConfig, Work},
    time::Instant,
};

use crate::queue_listener::world::{MS, S, World};

/// Counts the handlers that run at once.
#[derive(Default)]
struct Together {
    now: Cell<u32>,
    most: Cell<u32>,
}

impl Together {
    fn begin(&self) -> impl Drop {
        struct Handler<'a>(&'a Together);
        impl Drop for Handler<'_> {
            fn drop(&mut self) {
                self.0.now.set(self.0.now.get() - 1);
            }
        }
        self.now.set(self.now.get() + 1);
        self.most.set(self.most.get().max(self.now.get()));
        Handler(self)
    }

    /// Returns the highest number since the last call.
    fn most(&self) -> u32 {
        self.most.replace(self.now.get())
    }
}

#[test]
fn the_number_of_handlers_follows_the_number_of_tasks_up_and_down() {
    let world = World::new();
    let listener = world.listener(QueueListenerConfig::default().tasks(1, 2), 1);
    (0..400).for_each(|i| drop(world.send(&format!("{i}"))));
    let (together, handled) = (Together::default(), Cell::new(0));
    let run = listener.run(pending(), async |_: Work| {
        let _running = together.begin();
        world.clock.sleep(MS(500)).await;
        handled.set(handled.get() + 1);
    });
    let changes = async {
        for max in [2, 8, 3, 1, 5] {
            listener.reconfigure(listener.config().tasks(1, max)).unwrap();
            // The handlers that run end; those that begin are within the new maximum.
            world.clock.sleep(S(1)).await;
            together.most();
            world.clock.sleep(S(10)).await;
            assert_eq!(together.most(), max);
            assert!(listener.state().tasks <= max, "{:?}", listener.state());
        }
        listener.reconfigure(listener.config().tasks(4, 4)).unwrap();
        world.clock.sleep(S(60)).await;
        assert_eq!(listener.state().tasks, 4, "these wait for work");
    };
    let ended = world.run(S(3600), async {
        tokio::select! { biased; () = changes => true, _ = run => false }
    });
    assert_eq!(ended, Some(true));
    assert_eq!((handled.get(), world.depth().total()), (400, 0));
}

/// Regression: tasks of handlers of batches stayed while they found messages.
#[test]
fn the_number_of_handlers_of_batches_follows_the_number_of_tasks_up_and_down() {
    let world = World::new();
    let listener = world.listener(QueueListenerConfig::default().tasks(1, 2).batch(2), 1);
    (0..800).for_each(|i| drop(world.send(&format!("{i}"))));
    let together = Together::default();
    let run = listener.run_batches(pending(), async |works: Vec<Work>| {
        let _running = together.begin();
        world.clock.sleep(MS(500)).await;
        works.iter().map(|_| Disposition::Complete).collect()
    });
    let changes = async {
        for max in [2, 8, 3, 1, 5] {
            listener.reconfigure(listener.config().tasks(1, max)).unwrap();
            world.clock.sleep(S(1)).await;
            together.most();
            world.clock.sleep(S(10)).await;
            assert_eq!(together.most(), max);
        }
    };
    let ended = world.run(S(3600), async {
        tokio::select! { biased; () = changes => true, _ = run => false }
    });
    assert_eq!(ended, Some(true));
}

#[test]
fn attempts_delays_and_time_limits_are_those_of_the_newest_configuration() {
    let world = World::new();
    let config = QueueListenerConfig::default().max_attempts(100).tasks(1, 2);
    let listener = world.listener(config, 1);
    world.send("fails");
    let begun = RefCell::new(Vec::<Instant>::new());
    let run = listener.run(pending(), async |work: Work| {
        begun.borrow_mut().push(world.now());
        match &*work.body {
            b"fails" => Disposition::retry("not yet"),
            _ => {
                work.cancelled().await;
                Disposition::Complete
            }
        }
    });
    let changes = async {
        world.clock.sleep(S(30)).await;
        let attempts = begun.borrow().len();
        assert!(attempts >= 2, "{attempts}");
        let retry = listener.config().retry.between(S(600), S(600));
        listener.reconfigure(listener.config().retry(retry).handler_timeout(S(5))).unwrap();
        world.clock.sleep(S(300)).await;
        assert!(begun.borrow().len() <= attempts + 1, "the next attempt comes after ten minutes");

        world.queue.send_one(Message::new("waits for its limit")).await.unwrap();
        world.clock.sleep(S(60)).await;
        assert_eq!(listener.state().handled, 1, "{:?}", listener.state());

        listener.reconfigure(listener.config().max_attempts(1)).unwrap();
        world.clock.sleep(S(1300)).await;
    };
    let ended = world.run(S(7200), async {
        tokio::select! { biased; () = changes => true, _ = run => false }
    });
    assert_eq!(ended, Some(true));
    assert_eq!(world.dead().len(), 1, "the message that failed has had its attempts");
}
