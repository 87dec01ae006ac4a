//! The actions of operators, and conflicts between them.
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
};

use http::StatusCode;
use steadfast::{
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State},
    codec::Codec,
    console::{ConsoleEvent, ConsoleRefusal},
    leader_election::{Leader, LeaderElection, LeaderElectionConfig},
    lease::InMemoryLease,
    queue::{InMemoryQueue, Message, Queue, QueueExt},
    queue_listener::{QueueControl, QueueListener, QueueListenerConfig, Work},
    saga::{Plan, Saga, SagaConfig, SagaOutcome, SagaPhase, Step, StepOutcome},
    store::InMemoryStore,
    time::Clock,
};

use super::{HANGS, Moody, OWN, S, act, builder, bury, form, get, post, state, within};
use crate::world::MS;

fn breaker() -> CircuitBreaker {
    CircuitBreaker::builder(CircuitBreakerConfig::default()).name("payments").build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_operator_isolates_and_closes_a_breaker() {
    let breaker = breaker();
    let console = builder().watch("payments", &breaker).build().unwrap();
    let page = get(&console, "olga", "/?component=payments&do=isolate").await;
    assert!(page.text.contains("Rejects all calls from now on"), "{}", page.text);
    let told = act(&console, "olga", ("payments", "", "isolate"), "").await;
    assert!(told.text.contains("The breaker is isolated."), "{}", told.text);
    assert_eq!(breaker.state(), State::Isolated);
    let shown = state(&console).await;
    assert_eq!(shown["components"][0]["trouble"], "open");
    assert_eq!(shown["components"][0]["why"], "rejected by the circuit breaker: isolated manually");
    for (action, shadow) in [("close", false), ("shadow", true), ("enforce", false), ("reset", false)] {
        act(&console, "olga", ("payments", "", action), "").await;
        assert_eq!((breaker.state(), breaker.is_shadow()), (State::Closed, shadow), "{action}");
    }
}

// Guarantee: console 5.
#[tokio::test(start_paused = true)]
async fn the_second_of_two_operators_gets_a_conflict() {
    let breaker = breaker();
    let console = builder().watch("payments", &breaker).build().unwrap();
    let (one, other) = (
        form(&console, "olga", "payments", "", "isolate").await,
        form(&console, "otto", "payments", "", "isolate").await,
    );
    let reset = form(&console, "otto", "payments", "", "reset").await;
    assert_eq!(post(&console, "olga", &OWN, &one).await.status, StatusCode::SEE_OTHER);
    // An action that is possible now, too, but was told of for another state.
    assert_eq!(post(&console, "otto", &OWN, &reset).await.status, StatusCode::CONFLICT);
    assert_eq!(breaker.state(), State::Isolated);
    let mut events = console.events();
    let answer = post(&console, "otto", &OWN, &other).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert!(answer.text.contains("Nothing was done: the state has changed since the page was made: now isolated."));
    let event = events.recv().await.unwrap().what;
    assert!(
        matches!(event, ConsoleEvent::Refused { reason: ConsoleRefusal::Conflict, ref user, .. } if user == "otto")
    );
}

#[tokio::test(start_paused = true)]
async fn a_form_that_is_sent_again_acts_once() {
    let queue = InMemoryQueue::new("deliveries");
    bury(&queue, "one", "no address").await;
    let console = builder().queue("deliveries", queue.clone()).build().unwrap();
    let mut events = console.events();
    let fields = form(&console, "olga", "deliveries", "", "redrive").await;
    // The first answer was lost.
    for _ in 0..2 {
        let answer = post(&console, "olga", &OWN, &fields).await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER);
        let told = get(&console, "olga", &format!("/{}", answer.header("location"))).await;
        assert!(told.text.contains("1 dead letter sent again."), "{}", told.text);
    }
    assert_eq!(queue.depth().await.unwrap().visible, 1);
    assert!(matches!(events.recv().await.unwrap().what, ConsoleEvent::Began { .. }));
    assert!(matches!(events.recv().await.unwrap().what, ConsoleEvent::Acted { .. }));
    assert!(matches!(events.try_recv(), Ok(None)));
    // The id of a form is for one action.
    let mut other = fields.clone();
    other.push(("note".to_owned(), "another one".to_owned()));
    assert_eq!(post(&console, "olga", &OWN, &other).await.status, StatusCode::CONFLICT);
    let event = events.recv().await.unwrap().what;
    assert!(matches!(event, ConsoleEvent::Refused { reason: ConsoleRefusal::Conflict, .. }), "{event:?}");
}

#[tokio::test(start_paused = true)]
async fn dead_letters_are_sent_again_one_by_one_or_deleted() {
    let queue = InMemoryQueue::new("deliveries");
    for body in ["one", "two", "three"] {
        bury(&queue, body, "no address").await;
    }
    let console = builder().queue("deliveries", queue.clone()).build().unwrap();
    let letters = get(&console, "olga", "/?component=deliveries&of=letters").await.text;
    let of = letters.split("of=letter%20").nth(2).unwrap().split('"').next().unwrap();
    act(&console, "olga", ("deliveries", &format!("letter {of}"), "redrive"), "").await;
    assert_eq!(&queue.receive_one(S(30)).await.unwrap().unwrap().body[..], b"two");

    let page = get(&console, "olga", "/?component=deliveries&of=letters&do=purge").await;
    assert!(page.text.contains("Deletes 2 dead letters for ever: those that are listed"), "{}", page.text);
    let dead = queue.dead_letters().unwrap();
    let told = act(&console, "olga", ("deliveries", "letters", "purge"), " ").await;
    assert!(told.text.contains("The action failed: a note is required."));
    assert_eq!(dead.depth().await.unwrap().total(), 2);
    // A letter that comes in between stays.
    let mut fields = form(&console, "olga", "deliveries", "letters", "purge").await;
    fields.push(("note".to_owned(), "agreed with billing".to_owned()));
    bury(&queue, "four", "no address").await;
    let answer = post(&console, "olga", &OWN, &fields).await;
    let told = get(&console, "olga", &format!("/{}", answer.header("location"))).await;
    assert!(told.text.contains("2 dead letters deleted."), "{}", told.text);
    let left = dead.peek(9).await.unwrap();
    assert_eq!(left.iter().map(|letter| &letter.body[..]).collect::<Vec<_>>(), [b"four"]);
    assert!(!left[0].hidden);

    // Of more than are listed, as many as were told.
    for n in 0..49 {
        bury(&queue, n.to_string(), "no address").await;
    }
    let told = act(&console, "olga", ("deliveries", "letters", "purge"), "agreed with billing").await;
    assert!(told.text.contains("50 dead letters deleted."), "{}", told.text);
    assert_eq!(dead.depth().await.unwrap().total(), 0);
}

#[tokio::test(start_paused = true)]
async fn letters_that_come_in_between_are_neither_a_conflict_nor_sent_again() {
    let queue = InMemoryQueue::new("deliveries");
    for body in ["one", "two"] {
        bury(&queue, body, "no address").await;
    }
    let console = builder().queue("deliveries", queue.clone()).build().unwrap();
    let page = get(&console, "olga", "/?component=deliveries&do=redrive").await;
    assert!(page.text.contains("Sends 2 dead letters to the queue again"), "{}", page.text);
    bury(&queue, "three", "no address").await;
    let answer = post(&console, "olga", &OWN, &page.fields()).await;
    let told = get(&console, "olga", &format!("/{}", answer.header("location"))).await;
    assert!(told.text.contains("2 dead letters sent again."), "{}", told.text);
    assert_eq!(queue.depth().await.unwrap().visible, 2);
    assert_eq!(queue.dead_letters().unwrap().depth().await.unwrap().total(), 1);
}

#[tokio::test(start_paused = true)]
async fn letters_are_deleted_only_if_they_are_those_that_were_told() {
    let queue = InMemoryQueue::new("deliveries");
    for body in ["one", "two"] {
        bury(&queue, body, "no address").await;
    }
    let console = builder().queue("deliveries", queue.clone()).build().unwrap();
    let mut fields = form(&console, "olga", "deliveries", "letters", "purge").await;
    fields.push(("note".to_owned(), "agreed with billing".to_owned()));
    // As many as before, and another one among them.
    steadfast::queue::redrive(&queue, 1, |letter| &letter.body[..] == b"two").await.unwrap();
    let again = queue.receive_one(S(30)).await.unwrap().unwrap();
    queue.complete(&again.receipt).await.unwrap();
    bury(&queue, "three", "no address").await;
    assert_eq!(post(&console, "olga", &OWN, &fields).await.status, StatusCode::CONFLICT);
    assert_eq!(queue.dead_letters().unwrap().depth().await.unwrap().total(), 2);
    // The page of the conflict and the next form are of the state that it was about, at once.
    let told = act(&console, "olga", ("deliveries", "letters", "purge"), "agreed with billing").await;
    assert!(told.text.contains("2 dead letters deleted."), "{}", told.text);
}

#[tokio::test(start_paused = true)]
async fn a_form_of_a_state_that_has_come_back_is_a_conflict() {
    let breaker = breaker();
    let console = builder().watch("payments", &breaker).build().unwrap();
    breaker.isolate();
    let close = form(&console, "olga", "payments", "", "close").await;
    tokio::time::advance(S(60)).await;
    breaker.close();
    breaker.isolate();
    assert_eq!(post(&console, "olga", &OWN, &close).await.status, StatusCode::CONFLICT);
    assert_eq!(breaker.state(), State::Isolated);
    breaker.close();
    // Two who reset a closed breaker: nothing of its state tells them apart.
    let one = form(&console, "olga", "payments", "", "reset").await;
    let other = form(&console, "otto", "payments", "", "reset").await;
    assert_eq!(post(&console, "olga", &OWN, &one).await.status, StatusCode::SEE_OTHER);
    let answer = post(&console, "otto", &OWN, &other).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    // A script that reloads the page would send the form again.
    assert!(!answer.text.contains("<script") && !answer.text.contains("data-live"));
}

#[tokio::test(start_paused = true)]
async fn a_breaker_in_shadow_mode_says_that_it_rejects_nothing() {
    let breaker = breaker();
    let console = builder().watch("payments", &breaker).build().unwrap();
    breaker.set_shadow(true);
    let page = get(&console, "olga", "/?component=payments&do=isolate").await.text;
    assert!(page.contains("In shadow mode it rejects no call."), "{page}");
    act(&console, "olga", ("payments", "", "isolate"), "").await;
    let shown = state(&console).await;
    assert_eq!(shown["components"][0]["trouble"], serde_json::Value::Null);
    let why = shown["components"][0]["why"].as_str().unwrap();
    assert!(why.starts_with("in shadow mode, it rejects no call; otherwise: rejected"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_the_control_of_its_queue_pauses_is_not_offered_to_resume() {
    let (queue, control) =
        (InMemoryQueue::new("deliveries"), QueueControl::new(Arc::new(InMemoryStore::new())).unwrap());
    let listener = QueueListener::builder(Arc::new(queue.clone()), QueueListenerConfig::default());
    let listener = listener.control(&control).build().unwrap();
    let console = builder().watch("dispatch", &listener).build().unwrap();
    assert_eq!(state(&console).await["components"][0]["why"], "no task runs: it takes no message");
    let running = listener.clone();
    tokio::spawn(async move { running.run(std::future::pending(), async |_: Work| {}).await });
    control.pause(&queue).await.unwrap();
    Clock::tokio().sleep(S(120)).await;
    assert!(listener.state().paused);
    let page = get(&console, "olga", "/?component=dispatch").await.text;
    assert!(page.contains("the control of its queues paused all of them"), "{page}");
    assert!(!page.contains("do=resume"), "{page}");
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_paused_by_its_control() {
    let queue = InMemoryQueue::new("deliveries");
    let control = QueueControl::new(Arc::new(InMemoryStore::new())).unwrap();
    let console = builder().control(&control).queue("deliveries", queue.clone()).build().unwrap();
    let id = queue.send_one(Message::new("one")).await.unwrap();
    let page = get(&console, "olga", "/?component=deliveries&do=pause").await;
    assert!(page.text.contains("1 message would wait now."), "{}", page.text);
    act(&console, "olga", ("deliveries", "", "pause"), "").await;
    assert!(control.is_paused(&queue).await.unwrap());
    assert_eq!(state(&console).await["components"][0]["state"], "paused");
    act(&console, "olga", ("deliveries", &format!("message {id}"), "cancel"), "").await;
    assert_eq!(control.list_cancellations(&queue).await.unwrap(), [id.to_string()]);
    act(&console, "olga", ("deliveries", "", "resume"), "").await;
    assert!(!control.is_paused(&queue).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_listener_is_paused_in_its_process() {
    let queue = InMemoryQueue::new("deliveries");
    let listener = QueueListener::new(Arc::new(queue), QueueListenerConfig::default()).unwrap();
    let console = builder().watch("dispatch", &listener).build().unwrap();
    act(&console, "olga", ("dispatch", "", "pause"), "").await;
    assert!(listener.state().paused);
    assert_eq!(state(&console).await["components"][0]["trouble"], "stuck");
    act(&console, "olga", ("dispatch", "", "resume"), "").await;
    assert!(!listener.state().paused);
}

/// A saga whose pivot fails until it is repaired, and the number of attempts.
fn orders(repaired: &Arc<AtomicBool>, attempts: &Arc<AtomicU32>) -> Saga<u32> {
    let (repaired, attempts) = (repaired.clone(), attempts.clone());
    let plan = Plan::<u32>::new()
        .step_fn("reserve", |_| async { StepOutcome::completed() }, |_| async { StepOutcome::completed() })
        .pivot("charge", move |_: Step<u32>| {
            let (repaired, attempts) = (repaired.clone(), attempts.clone());
            async move {
                attempts.fetch_add(1, SeqCst);
                match repaired.load(SeqCst) {
                    true => StepOutcome::completed(),
                    false => StepOutcome::unknown("the bank does not answer"),
                }
            }
        })
        .step("mail", |_: Step<u32>| async { StepOutcome::completed() });
    let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    Saga::new("order", Arc::new(InMemoryStore::new()), codec, plan, SagaConfig::default()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_stuck_saga_is_retried_and_completes() {
    let (repaired, attempts) = (Arc::default(), Arc::default());
    let orders = orders(&repaired, &attempts);
    assert!(matches!(orders.run("8e03", 7).await.unwrap(), SagaOutcome::Stuck { .. }));
    let console = builder().watch("orders", &orders).build().unwrap();
    let shown = state(&console).await;
    assert_eq!(shown["components"][0]["why"], "1 saga cannot go on without an operator");
    let one = get(&console, "olga", "/?component=orders&of=8e03").await.text;
    assert!(one.contains("at step `charge`: the bank does not answer"), "{one}");
    assert!(one.contains("outcome unknown"));

    // Another operator retries first, in vain: the state is another one.
    let late = form(&console, "otto", "orders", "8e03", "retry").await;
    act(&console, "olga", ("orders", "8e03", "retry"), "").await;
    Clock::tokio().sleep(S(1200)).await;
    assert_eq!(orders.read("8e03").await.unwrap().unwrap().phase, SagaPhase::Stuck);
    assert_eq!(post(&console, "otto", &OWN, &late).await.status, StatusCode::CONFLICT);
    repaired.store(true, SeqCst);
    let told = act(&console, "olga", ("orders", "8e03", "retry"), "").await;
    assert!(told.text.contains("The saga is completed."), "{}", told.text);
    assert_eq!(orders.read("8e03").await.unwrap().unwrap().phase, SagaPhase::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_long_action_keeps_off_another_one_but_no_wake() {
    let (repaired, attempts) = (Arc::default(), Arc::default());
    let orders = orders(&repaired, &attempts);
    assert!(matches!(orders.run("8e03", 7).await.unwrap(), SagaOutcome::Stuck { .. }));
    let console = builder().watch("orders", &orders).build().unwrap();
    let skip = {
        let mut fields = form(&console, "otto", "orders", "8e03", "skip").await;
        fields.push(("note".to_owned(), "asked the bank".to_owned()));
        fields
    };
    let retry = form(&console, "olga", "orders", "8e03", "retry").await;
    // The response is dropped, and the action goes on.
    assert!(within(MS(50), post(&console, "olga", &OWN, &retry)).await.is_none());
    let answer = post(&console, "otto", &OWN, &skip).await;
    assert!(answer.text.contains("Nothing was done: olga acts on this now."), "{}", answer.text);
    let id = &retry.iter().find(|(name, _)| name == "form").unwrap().1;
    let told = get(&console, "olga", &format!("/?component=orders&of=8e03&told={id}")).await;
    assert!(told.text.contains("The action goes on."), "{}", told.text);
    let woken = act(&console, "otto", ("orders", "8e03", "wake"), "").await;
    assert!(woken.text.contains("The saga was woken."), "{}", woken.text);
    Clock::tokio().sleep(S(1200)).await;
    let told = get(&console, "olga", &format!("/?component=orders&of=8e03&told={id}")).await;
    assert!(told.text.contains("The action failed: the saga is stuck at `charge`"), "{}", told.text);
}

#[tokio::test(start_paused = true)]
async fn a_saga_that_went_on_is_not_cancelled_by_what_was_told_before() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let step = |gate: &Arc<tokio::sync::Semaphore>| {
        let gate = gate.clone();
        move |_: Step<u32>| {
            let gate = gate.clone();
            async move {
                gate.acquire().await.unwrap().forget();
                StepOutcome::completed()
            }
        }
    };
    let undo = |_: Step<u32>| async { StepOutcome::completed() };
    let plan = Plan::<u32>::new().step_fn("one", step(&gate), undo).step_fn("two", step(&gate), undo).step_fn(
        "three",
        step(&gate),
        undo,
    );
    let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    let orders = Saga::new("order", Arc::new(InMemoryStore::new()), codec, plan, SagaConfig::default()).unwrap();
    let console = builder().watch("orders", &orders).build().unwrap();
    let running = orders.clone();
    tokio::spawn(async move { running.run("8e03", 7).await });
    let go_on = async || {
        gate.add_permits(1);
        Clock::tokio().sleep(MS(10)).await;
    };
    go_on().await;
    let page = get(&console, "olga", "/?component=orders&of=8e03&do=cancel").await;
    assert!(page.text.contains("Compensates the saga: 1 step took effect so far."), "{}", page.text);
    let mut late = page.fields();
    late.push(("note".to_owned(), "the customer called".to_owned()));
    go_on().await;
    assert_eq!(post(&console, "olga", &OWN, &late).await.status, StatusCode::CONFLICT);
    assert_eq!(orders.read("8e03").await.unwrap().unwrap().phase, SagaPhase::Forward);
    let page = get(&console, "olga", "/?component=orders&of=8e03&do=cancel").await;
    assert!(page.text.contains("Compensates the saga: 2 steps took effect so far."), "{}", page.text);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_counted_too_slowly_can_still_be_paused() {
    let queue = Moody::new();
    let control = QueueControl::new(Arc::new(InMemoryStore::new())).unwrap();
    let console = builder().control(&control).queue("deliveries", queue.clone()).build().unwrap();
    queue.is(HANGS);
    let page = get(&console, "olga", "/?component=deliveries").await.text;
    assert!(page.contains("its messages were not counted within 1.5s"), "{page}");
    let told = act(&console, "olga", ("deliveries", "", "pause"), "").await;
    assert!(told.text.contains("The queue is paused."), "{}", told.text);
    assert!(control.is_paused(&queue).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_step_is_skipped_or_undone_with_a_note() {
    let (repaired, attempts) = (Arc::default(), Arc::default());
    let orders = orders(&repaired, &attempts);
    for (id, action, phase) in [("1", "skip", SagaPhase::Completed), ("2", "undo", SagaPhase::Compensated)] {
        assert!(matches!(orders.run(id, 7).await.unwrap(), SagaOutcome::Stuck { .. }));
        let console = builder().watch("orders", &orders).build().unwrap();
        let told = act(&console, "olga", ("orders", id, action), "").await;
        assert!(told.text.contains("a note is required"), "{}", told.text);
        act(&console, "olga", ("orders", id, action), "asked the bank").await;
        let status = orders.read(id).await.unwrap().unwrap();
        assert_eq!(status.phase, phase);
        assert!(status.steps[1].note.contains("asked the bank"), "{status:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_is_asked_to_resign() {
    let leases = Arc::new(InMemoryLease::new());
    let config = LeaderElectionConfig::of_term(S(10));
    let election = LeaderElection::new(leases, "nightly", config).unwrap();
    let console = builder().watch("nightly", &election).build().unwrap();
    assert_eq!(state(&console).await["components"][0]["trouble"], "leaderless");
    let mut leadership = election.campaign().await.unwrap();
    tokio::time::advance(S(1)).await;
    assert!(matches!(election.leader(), Leader::Own(_)));
    let told = act(&console, "olga", ("nightly", "", "resign"), "").await;
    assert!(told.text.contains("The leader was asked to resign."), "{}", told.text);
    assert!(within(S(30), leadership.lost()).await.is_some());
    drop(leadership);
}
