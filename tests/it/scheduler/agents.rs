//! Agents behind a queue.
use std::{cell::RefCell, sync::Arc, time::Duration};

use steadfast::{
    queue::{InMemoryQueue, Message, Queue, QueueExt, RequestError, Requester},
    queue_listener::{IdleConfig, QueueListenerConfig},
    scheduler::{Agent, AgentCall},
    time::Clock,
};

const S: fn(u64) -> Duration = Duration::from_secs;

/// Agents receive requests ahead of their handlers while these are quick, and may turn slow.
// Guarantee: scheduler 6.
#[test]
fn a_request_that_waits_in_its_agent_for_too_long_is_not_begun() {
    let (clock, time) = Clock::manual();
    let requests = Arc::new(InMemoryQueue::builder("couriers").clock(&clock).build());
    let config = QueueListenerConfig::default().tasks(1, 1);
    let agent = Agent::builder(requests.clone(), config).clock(&clock).build().unwrap();
    let ask = |i: u32| AgentCall::request(format!("{i}"), "body", S(5));
    time.block_on(requests.send((0..40).map(ask).collect())).unwrap();
    let began = RefCell::new(Vec::new());
    let handler = async |call: AgentCall| {
        began.borrow_mut().push((clock.now(), call.left));
        if began.borrow().len() > 10 {
            clock.sleep(S(2)).await;
        }
        Ok::<_, String>(call.body)
    };
    let start = clock.now();
    time.block_on(agent.run(clock.sleep(S(120)), handler)).unwrap();
    let began = began.into_inner();
    assert!((11..=13).contains(&began.len()), "{began:?}");
    assert!(began.iter().all(|(at, left)| *at - start + *left == S(5)), "{began:?}");
    assert_eq!(time.block_on(requests.depth()).unwrap().total(), 0);
}

// Guarantee: scheduler 6.
#[test]
fn an_agent_answers_while_its_caller_waits_and_says_nothing_after() {
    let (clock, time) = Clock::manual();
    let queue = |name| Arc::new(InMemoryQueue::builder(name).clock(&clock).build());
    let (requests, replies) = (queue("couriers"), queue("scheduler-1"));
    let found = replies.clone();
    let config = QueueListenerConfig::default()
        .idle(IdleConfig::between(S(1), S(1)))
        .retry(steadfast::backoff::BackoffConfig::default().between(S(1), S(1)));
    let agent = Agent::builder(requests.clone(), config)
        .clock(&clock)
        .replies(move |name| (name == "scheduler-1").then(|| found.clone() as _))
        .build()
        .unwrap();
    let requester = Requester::builder(requests.clone(), replies.clone(), "scheduler-1").clock(&clock).build();
    let (calls, finished) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    time.block_on(async {
        let handler = async |call: AgentCall| {
            calls.borrow_mut().push(call.key.clone());
            match call.key.as_str() {
                "slow" => clock.sleep(S(20)).await,
                "fails" if calls.borrow().iter().filter(|key| *key == "fails").count() == 1 => return Err("not now"),
                _ => {}
            }
            finished.borrow_mut().push(call.key);
            Ok(call.body)
        };
        let asks = async {
            let ask = async |key: &str| requester.request(AgentCall::request(key, "body", S(10)), S(10)).await;
            assert_eq!(ask("quick").await.unwrap().body, "body");
            assert_eq!(ask("fails").await.unwrap().body, "body");
            assert!(matches!(ask("slow").await, Err(RequestError::TimedOut(_))));
            // A request that comes when its time has passed is not even begun.
            requests.send_one(AgentCall::request("late", "body", S(10)).delay(S(11))).await.unwrap();
            requests.send_one(Message::new("no request")).await.unwrap();
            clock.sleep(S(40)).await;
        };
        tokio::select! {
            ended = agent.run(std::future::pending(), handler) => panic!("{ended:?}"),
            () = asks => {}
        }
    });
    assert_eq!(*calls.borrow(), ["quick", "fails", "fails", "slow"]);
    assert_eq!(*finished.borrow(), ["quick", "fails"], "the slow handler was dropped");
    let depth = |queue: &dyn Queue| time.block_on(queue.depth()).unwrap().total();
    assert_eq!((depth(&*requests), depth(&*replies)), (0, 0), "no reply is left");
    assert_eq!(depth(&*requests.dead_letters().unwrap()), 1);
}
