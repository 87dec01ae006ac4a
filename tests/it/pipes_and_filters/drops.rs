//! Runs of a filter that are dropped at every await point. Each request takes time, so that the points before and after
//! its effect are reached, and all messages are counted after each drop.
use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    task::Poll,
};

use steadfast::{
    pipes_and_filters::{Emit, Filter},
    port::BoxFuture,
    queue::{Message, Queue},
    queue_listener::Work,
    testing::{
        drop_at_every_await,
        faults::{FaultConfig, FaultNetwork},
    },
    time::Clock,
};

use super::world::{MS, S, Way, World, texts};

/// A filter behind a slow network, its queues, and the same filter without a network.
struct Pair {
    world: World,
    input: Arc<dyn Queue>,
    output: Arc<dyn Queue>,
    far: Filter,
    near: Filter,
    /// Handlers that are under way.
    under_way: Arc<AtomicU32>,
    sent: Cell<u32>,
    came: RefCell<Vec<String>>,
    way: Way,
}

impl Pair {
    fn new(way: Way) -> Self {
        let world = World::new();
        let (input, output) = (world.queue("in"), world.queue("out"));
        let latency = FaultConfig::default().latency(MS(1), MS(1));
        let client = FaultNetwork::new(latency, 1, &world.clock).unwrap().client("far");
        let filter = |name: &str, input: Arc<dyn Queue>, output: &Arc<dyn Queue>| {
            world.filter_with(name, &input, World::config()).output(way.to(output)).build().unwrap()
        };
        let far = filter("f", client.queue(input.clone()), &client.queue(output.clone()));
        let near = filter("f", input.clone(), &output);
        let (under_way, sent, came) = (Arc::default(), Cell::new(0), RefCell::default());
        Self { world, input, output, far, near, under_way, sent, came, way }
    }

    fn send(&self) {
        self.world.send(&self.input, [Message::new(self.sent.replace(self.sent.get() + 1).to_string())]);
    }

    /// Asserts that no message is lost and none came twice, finishes the rest, and counts again.
    fn check(&self, polls: usize) {
        assert_eq!(self.under_way.load(SeqCst), 0, "{polls}");
        let (left, out) = (self.world.depth(&self.input), self.world.depth(&self.output));
        let all = u64::from(self.sent.get()) - self.came.borrow().len() as u64;
        match self.way {
            // The end of a message and the sending of its result are one step.
            Way::Forwarded => assert_eq!(left + out, all, "{polls}: {left} and {out}"),
            Way::Sent => assert!(left + out >= all && out <= all, "{polls}: {left} and {out} of {all}"),
        }
        self.world
            .run(self.near.run(self.world.clock.sleep(S(30)), handler(&self.world.clock, &self.under_way)))
            .unwrap();
        self.came.borrow_mut().extend(texts(&self.world.take(&self.output)));
        let mut came = self.came.borrow().clone();
        came.sort_by_key(|body| body.parse::<u32>().unwrap());
        assert_eq!(came, (0..self.sent.get()).map(|i| i.to_string()).collect::<Vec<_>>(), "{polls}");
        assert_eq!((self.world.depth(&self.input), self.world.dead(&self.input)), (0, vec![]), "{polls}");
    }
}

/// Takes some time, and passes the body on.
fn handler(clock: &Clock, under_way: &Arc<AtomicU32>) -> impl Fn(Work) -> BoxFuture<'static, Emit> + use<> {
    struct UnderWay(Arc<AtomicU32>);
    impl Drop for UnderWay {
        fn drop(&mut self) {
            self.0.fetch_sub(1, SeqCst);
        }
    }
    let (clock, under_way) = (clock.clone(), under_way.clone());
    move |work: Work| {
        let (clock, under_way) = (clock.clone(), under_way.clone());
        Box::pin(async move {
            under_way.fetch_add(1, SeqCst);
            let _under_way = UnderWay(under_way);
            clock.sleep(MS(10)).await;
            Emit::one(Message::new(work.body.clone()))
        })
    }
}

/// Runs a filter, drops the run at each await point, and checks the messages after `end`.
fn drop_everywhere<F: Future>(run: impl Fn(&Pair, BoxFuture<'static, ()>) -> F, end: impl Fn(&Pair)) {
    for way in Way::ALL {
        let pair = Pair::new(way);
        let begin = || {
            pair.send();
            let clock = pair.world.clock.clone();
            run(&pair, Box::pin(async move { clock.sleep(MS(100)).await }))
        };
        let ended = |polls| {
            end(&pair);
            pair.check(polls);
        };
        let polls = drop_at_every_await(&pair.world.time, begin, ended);
        assert!(polls >= 8, "{way:?}: {polls}");
    }
}

// Guarantee: pipes_and_filters 2, 3.
#[test]
fn a_run_dropped_at_any_await_loses_and_doubles_nothing() {
    let run = |pair: &Pair, stop| {
        let (far, handler) = (pair.far.clone(), handler(&pair.world.clock, &pair.under_way));
        async move { far.run(stop, handler).await.unwrap() }
    };
    drop_everywhere(run, |_| ());
}

// Guarantee: pipes_and_filters 2, 3.
#[test]
fn a_run_on_other_tasks_that_is_dropped_at_any_await_loses_and_doubles_nothing() {
    type Tasks = Arc<Mutex<Vec<BoxFuture<'static, ()>>>>;
    let tasks = Tasks::default();
    // Polls each task once.
    let poll_tasks = |tasks: &Tasks, cx: &mut std::task::Context<'_>| {
        let mut own = std::mem::take(&mut *tasks.lock().unwrap());
        own.retain_mut(|task| task.as_mut().poll(cx).is_pending());
        tasks.lock().unwrap().append(&mut own);
    };
    let run = |pair: &Pair, stop| {
        let (far, handler) = (pair.far.clone(), handler(&pair.world.clock, &pair.under_way));
        let (spawned, tasks) = (tasks.clone(), tasks.clone());
        async move {
            let mut run = pin!(far.run_on(move |task| spawned.lock().unwrap().push(task), stop, handler));
            poll_fn(|cx| {
                let polled = run.as_mut().poll(cx);
                poll_tasks(&tasks, cx);
                polled
            })
            .await
            .unwrap();
        }
    };
    let end = |pair: &Pair| {
        // A task of a dropped run ends at its next await.
        let left = tasks.lock().unwrap().len();
        pair.world.run(poll_fn(|cx| {
            poll_tasks(&tasks, cx);
            if tasks.lock().unwrap().is_empty() { Poll::Ready(()) } else { Poll::Pending }
        }));
        assert!(left <= 16, "{left}");
    };
    drop_everywhere(run, end);
}
