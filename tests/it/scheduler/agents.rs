//! Agents behind a queue.
use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use steadfast::{
    queue::{InMemoryQueue, Message, Queue, QueueExt, RequestError, Requester},
    queue_listener::{IdleConfig, QueueListenerConfig},
    saga::{Action, Compensated, Compensation, Executed, Participant, Plan, SagaPhase, Step, StepOutcome},
    scheduler::{Agent, AgentCall},
    store::{Scan, StoreError, StoreExt, Write},
    time::Clock,
};

use super::world::{World, order};
use crate::saga::world::{Answer, S, State};

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
            assert_eq!(call.headers["traceparent"], "00-1-1-01");
            match call.key.as_str() {
                "slow" => clock.sleep(S(20)).await,
                "fails" if calls.borrow().iter().filter(|key| *key == "fails").count() == 1 => return Err("not now"),
                _ => {}
            }
            finished.borrow_mut().push(call.key);
            Ok(call.body)
        };
        let asks = async {
            let request = |key: &str| AgentCall::request(key, "body", S(10)).header("traceparent", "00-1-1-01");
            let ask = async |key: &str| requester.request(request(key), S(10)).await;
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

/// A step that asks an agent for a courier, and tells it to send the courier home.
#[derive(Clone)]
struct Courier(Requester);

impl Courier {
    async fn ask(&self, step: &Step<State>, what: &'static str) -> Result<String, RequestError> {
        let request = AgentCall::request(step.key(), format!("{what} {}", step.action_key()), S(5));
        let reply = self.0.request(request, S(5)).await?;
        Ok(String::from_utf8_lossy(&reply.body).into_owned())
    }
}

impl Action<State> for Courier {
    async fn execute(&self, step: &Step<State>) -> StepOutcome<State> {
        match self.ask(step, "send").await {
            Ok(courier) => StepOutcome::changed(|state: &mut State| state.push(courier)),
            Err(error) => StepOutcome::unknown(error),
        }
    }
}

impl Compensation<State> for Courier {
    async fn compensate(&self, step: &Step<State>) -> StepOutcome<State> {
        match self.ask(step, "recall").await {
            Ok(_) => StepOutcome::completed(),
            Err(error) => StepOutcome::unknown(error),
        }
    }
}

/// An agent whose first replies are lost, and its participant, which names another courier for each new request.
struct Couriers {
    agent: Agent,
    participant: Participant,
    requests: Arc<dyn Queue>,
    calls: RefCell<Vec<String>>,
}

impl Couriers {
    fn new(world: &World, lost_replies: u32) -> (Self, Courier) {
        let queue = |name| Arc::new(InMemoryQueue::builder(name).clock(&world.clock).build()) as Arc<dyn Queue>;
        let (requests, replies) = (queue("couriers"), queue("scheduler-1"));
        let (found, lost) = (replies.clone(), AtomicU32::new(lost_replies));
        let agent =
            Agent::builder(requests.clone(), QueueListenerConfig::default().idle(IdleConfig::between(S(1), S(1))))
                .clock(&world.clock)
                .replies(move |_| {
                    lost.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_err().then(|| found.clone())
                })
                .build()
                .unwrap();
        let participant = Participant::new(world.saga.store.clone(), "couriers").unwrap();
        let requester = Requester::builder(requests.clone(), replies, "scheduler-1").clock(&world.clock).build();
        (Self { agent, participant, requests, calls: RefCell::default() }, Courier(requester))
    }

    async fn answer(&self, call: AgentCall) -> Result<Bytes, StoreError> {
        let body = String::from_utf8_lossy(&call.body).into_owned();
        let (what, action) = body.split_once(' ').unwrap();
        self.calls.borrow_mut().push(what.to_owned());
        let row = |what: &str| vec![Write::append("log/", what.to_owned())];
        if what == "recall" {
            let done = self.participant.compensate(action, row("recalled")).await?;
            return Ok(format!("{done:?}").into());
        }
        let courier: Bytes = format!("courier {}", self.calls.borrow().len()).into();
        match self.participant.execute(&call.key, row("sent"), courier.clone()).await? {
            Executed::Applied => Ok(courier),
            Executed::AlreadyApplied(earlier) => Ok(earlier),
            _ => Ok("too late".into()),
        }
    }

    /// Runs a scheduler and the agent for so long.
    fn run(&self, world: &World, courier: &Courier, seconds: u64) {
        let plan = Plan::new().step("courier", courier.clone()).pivot("charge", world.saga.calls());
        let orders = world.process("a", plan);
        world.submit(&orders, order("42"));
        world.block_on(async {
            let stop = || world.clock.sleep(S(seconds));
            tokio::try_join!(orders.run(stop()), self.agent.run(stop(), |call| self.answer(call))).unwrap();
        });
    }

    fn effects(&self, world: &World) -> Vec<String> {
        let rows = world.block_on(world.saga.store.scan_all(Scan::partition("couriers").prefix("log/"))).unwrap();
        rows.iter().map(|row| String::from_utf8_lossy(&row.value).into_owned()).collect()
    }
}

/// A step, its agent and the participant of the service: the action is carried out once, and its reply is repeated.
// Guarantee: scheduler 6.
// Guarantee: saga 13.
#[test]
fn a_step_whose_agent_loses_its_replies_gets_the_reply_of_the_one_request_that_was_applied() {
    let world = World::new();
    let (couriers, courier) = Couriers::new(&world, 2);
    couriers.run(&world, &courier, 60);
    let read = world.process("b", world.saga.trip());
    let status = world.block_on(read.read("42")).unwrap().unwrap();
    assert_eq!((status.phase, status.state), (SagaPhase::Completed, vec!["courier 1".to_owned(), "charge".to_owned()]));
    assert_eq!((couriers.calls.borrow().join(" ").as_str(), status.steps[0].attempts), ("send send send", 3));
    assert_eq!((couriers.effects(&world), world.depths()), (vec!["sent".to_owned()], (0, 0)));
}

// Guarantee: saga 13.
#[test]
fn a_compensation_through_an_agent_undoes_an_action_once_and_bars_its_late_request() {
    let world = World::new();
    let (couriers, courier) = Couriers::new(&world, 1);
    world.saga.services.answer("charge", [Answer::Failed]);
    couriers.run(&world, &courier, 60);
    let read = world.process("b", world.saga.trip());
    let status = world.block_on(read.read("42")).unwrap().unwrap();
    assert_eq!(status.phase, SagaPhase::Compensated, "{status:?}");
    // A copy of the action's request comes once more.
    let late = AgentCall::request("trip/42/courier", "send trip/42/courier", S(60));
    world.block_on(couriers.requests.send_one(late)).unwrap();
    world.block_on(couriers.agent.run(world.clock.sleep(S(10)), |call| couriers.answer(call))).unwrap();
    assert_eq!(*couriers.calls.borrow(), ["send", "send", "recall", "send"]);
    assert_eq!(couriers.effects(&world), ["sent", "recalled"]);
    let again = world.block_on(couriers.participant.compensate("trip/42/courier", vec![])).unwrap();
    assert_eq!(again, Compensated::AlreadyCompensated);
}
