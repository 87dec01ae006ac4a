//! Functions beside a listener's run, dropped at every await point: `drain` and the request of a
//! requester.
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::{Future, pending, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
};

use steadfast::{
    port::PortError,
    queue::{InMemoryQueue, Message, Queue, QueueExt, Requester},
    queue_listener::{QueueListenerConfig, Work},
    testing::{
        drop_at_every_await,
        faults::{FaultConfig, FaultNetwork},
    },
};

use crate::queue_listener::world::{MS, S, World, text};

type Run<'a> = RefCell<Pin<Box<dyn Future<Output = Result<(), PortError>> + 'a>>>;

/// The future, with a run beside it that outlives it.
async fn beside<F: Future>(run: &Run<'_>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        assert!(run.borrow_mut().as_mut().poll(cx).is_pending(), "the run has no end");
        future.as_mut().poll(cx)
    })
    .await
}

#[test]
fn a_drain_dropped_at_any_await_leaves_the_listener_paused_and_loses_no_message() {
    let world = World::new();
    ["settle", "receive"].iter().for_each(|what| world.line.takes(what, MS(3)));
    let listener = world.listener(QueueListenerConfig::default().batch(4).tasks(1, 3), 1);
    let handled = RefCell::new(BTreeMap::<String, u32>::new());
    let run: Run<'_> = RefCell::new(Box::pin(listener.run(pending(), async |work: Work| {
        world.clock.sleep(MS(20)).await;
        *handled.borrow_mut().entry(text(&work.body)).or_default() += 1;
    })));
    let (sent, is_drained) = (Cell::new(0), Cell::new(false));
    let polls = drop_at_every_await(
        &world.time,
        || {
            for _ in 0..7 {
                world.send(&format!("{}", sent.replace(sent.get() + 1)));
            }
            listener.resume();
            is_drained.set(false);
            beside(&run, async {
                world.clock.sleep(MS(150)).await;
                listener.drain().await;
                is_drained.set(true);
            })
        },
        |_| {
            let state = listener.state();
            if is_drained.get() {
                assert!(state.paused && state.in_flight == 0 && state.buffered == 0, "{state:?}");
                assert_eq!(world.depth().in_flight, 0);
            }
        },
    );
    assert!(polls >= 10, "{polls}");
    assert!(is_drained.get(), "the last one came to its end");
    assert!(listener.state().paused);
    // A dropped drain has paused the listener, which stays paused until it is resumed.
    listener.resume();
    world.time.block_on(beside(&run, world.clock.sleep(S(1))));
    world.send("late");
    let mut drain = Box::pin(listener.drain());
    let _ = drain.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    drop(drain);
    assert!(listener.state().paused);
    world.time.block_on(beside(&run, world.clock.sleep(S(60))));
    assert!(!handled.borrow().contains_key("late") && world.depth().total() == 1, "it takes no more");
    listener.resume();
    world.time.block_on(beside(&run, world.clock.sleep(S(60))));
    assert_eq!((handled.borrow().len(), world.depth().total()), (sent.get() + 1, 0), "none is lost");
    assert!(handled.borrow().values().all(|times| *times == 1), "each once: {:?}", handled.borrow());
}

#[test]
fn a_request_dropped_at_any_await_takes_no_reply_of_another() {
    let world = World::new();
    let replies = Arc::new(InMemoryQueue::builder("replies").clock(&world.clock).build());
    let config = FaultConfig::default().latency(MS(1), MS(2));
    let network = FaultNetwork::new(config, 1, &world.clock).unwrap();
    let far = |queue: Arc<dyn Queue>| network.client("asker").queue(queue);
    let requester = Requester::builder(far(world.queue.clone()), far(replies.clone()), "replies")
        .clock(&world.clock)
        .entropy(&steadfast::entropy::Entropy::from_seed(1))
        .build();
    let listener = world.listener(QueueListenerConfig::default(), 1);
    let answers = replies.clone();
    let run: Run<'_> = RefCell::new(Box::pin(listener.run(pending(), async |work: Work| {
        world.clock.sleep(MS(5)).await;
        let reply_to = work.reply_to().expect("each is a question");
        answers.send_one(reply_to.reply(format!("answer to {}", text(&work.body)))).await.map(drop)
    })));
    let asked = Cell::new(0);
    let ask = |what: &'static str| {
        let question = format!("{what} {}", asked.replace(asked.get() + 1));
        let requester = &requester;
        async move {
            let answer = requester.request(Message::new(question.clone()), S(20)).await.unwrap();
            assert_eq!(text(&answer.body), format!("answer to {question}"));
        }
    };
    // One request waits for its reply while the other, which may be polling for it, is dropped.
    let other = RefCell::new(None);
    let polls = drop_at_every_await(
        &world.time,
        || {
            *other.borrow_mut() = Some(Box::pin(ask("other")));
            beside(&run, async {
                let mut first = pin!(ask("first"));
                poll_fn(|cx| {
                    let mut place = other.borrow_mut();
                    if place.as_mut().is_some_and(|other| other.as_mut().poll(cx).is_ready()) {
                        *place = None;
                    }
                    first.as_mut().poll(cx)
                })
                .await;
            })
        },
        |_| {
            let begun = world.now();
            if let Some(other) = other.borrow_mut().take() {
                world.time.block_on(beside(&run, other));
            }
            world.time.block_on(beside(&run, ask("next")));
            assert!(world.now() - begun < S(5), "an answer came late: {:?}", world.now() - begun);
        },
    );
    assert!(polls >= 6, "{polls}");
    // The next requests that poll discard replies to dropped requests.
    for _ in 0..12 {
        world.time.block_on(beside(&run, world.clock.sleep(S(5))));
        world.time.block_on(beside(&run, ask("last")));
    }
    assert_eq!(world.time.block_on(replies.depth()).unwrap().total(), 0);
    assert_eq!(world.depth().total(), 0);
}
