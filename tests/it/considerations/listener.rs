//! Queue listener: the considerations of the pattern's source that a default, an event, an option or a refusal
//! meets.
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    future::pending,
    sync::Arc,
    time::Duration,
};

use steadfast::{
    Pipeline,
    entropy::Entropy,
    notify::InMemoryNotifier,
    queue::{AnnouncingQueue, IdempotencyFilter, InMemoryQueue, Message, Queue, QueueExt, Requester},
    queue_listener::{Disposition, Level, PriorityOrder, QueueListenerConfig, Work},
    retry::{Retry, RetryConfig},
    store::InMemoryStore,
    throttling::{
        AdaptiveLimitConfig, AdaptiveLimiter, ConcurrencyLimitConfig, ConcurrencyLimiter, Quota, RateLimitConfig,
        RateLimiter,
    },
    timeout::Timeout,
};

use crate::queue_listener::world::{MS, Mode, S, World, text};

fn default() -> QueueListenerConfig {
    QueueListenerConfig::default()
}

fn send(world: &World, messages: usize) {
    let batch = (0..messages).map(|n| Message::new(format!("{n}"))).collect();
    world.time.block_on(world.queue.send(batch)).unwrap();
}

#[test]
fn messages_are_received_and_settled_in_batches() {
    let world = World::new();
    send(&world, 320);
    let listener = world.listener(default(), 1);
    world.time.block_on(listener.run(world.clock.sleep(S(5)), async |_| {})).unwrap();
    let asked = world.line.calls("receive").len() + world.line.calls("settle").len();
    assert!(listener.state().handled == 320 && asked <= 160, "{asked} requests for 320 messages");
}

#[test]
fn an_idle_queue_is_polled_by_one_task() {
    let world = World::new();
    let listener = world.listener(default(), 1);
    let run = listener.run(world.clock.sleep(S(3_600)), async |_| {});
    let looks = async {
        world.clock.sleep(S(3_599)).await;
        listener.state().tasks
    };
    let (_, tasks) = world.time.block_on(async { tokio::join!(run, looks) });
    assert_eq!(tasks, 1);
}

#[test]
fn tasks_are_scaled_out_by_depth_and_in_when_the_queue_stays_empty() {
    let world = World::new();
    send(&world, 1_000);
    send(&world, 1_000);
    let listener = world.listener(default(), 1);
    let run = listener.run(world.clock.sleep(S(3_600)), async |_| world.clock.sleep(MS(100)).await);
    let looks = async {
        world.clock.sleep(S(3)).await;
        let busy = listener.state().tasks;
        world.clock.sleep(S(3_500)).await;
        (busy, listener.state().tasks)
    };
    let (_, (busy, idle)) = world.time.block_on(async { tokio::join!(run, looks) });
    assert!(busy > 4 && idle == 1, "{busy} {idle}");
}

#[test]
fn polls_of_an_empty_or_busy_queue_back_off_at_random() {
    for mode in [Mode::Well, Mode::Refuses] {
        let polls = |seed| {
            let world = World::new();
            world.line.is("receive", mode);
            let listener = world.listener(default().tasks(1, 1), seed);
            world.time.block_on(listener.run(world.clock.sleep(S(600)), async |_| {})).unwrap();
            world.line.calls("receive")
        };
        let (one, other) = (polls(1), polls(2));
        let early = one.iter().filter(|at| **at - one[0] <= S(10)).count();
        let late = one.iter().filter(|at| **at - one[0] > S(590)).count();
        assert!(early > late && one.len() < 200, "{mode:?}: {early} at first, {late} at last");
        assert_ne!(one[1..], other[1..], "{mode:?}: two listeners keep apart");
    }
}

#[test]
fn one_listener_takes_from_several_queues_where_one_has_a_limit() {
    let world = World::new();
    let second = Arc::new(InMemoryQueue::builder("second").clock(&world.clock).build());
    send(&world, 50);
    world.time.block_on(second.send((0..50).map(|_| Message::new("x")).collect())).unwrap();
    let listener = world.builder(default(), 1).source(second, Level::default().priority(0)).build().unwrap();
    world.time.block_on(listener.run(world.clock.sleep(S(120)), async |_| {})).unwrap();
    assert_eq!(listener.state().handled, 100);
}

#[test]
fn a_notice_wakes_an_idle_listener_at_once() {
    let world = World::new();
    let notifier = Arc::new(InMemoryNotifier::new());
    let listener = world.builder(default(), 1).notifier(notifier.clone(), "jobs").build().unwrap();
    let jobs = AnnouncingQueue::new(world.queue.clone(), notifier, "jobs");
    let began = Cell::new(None);
    let run = listener.run(world.clock.sleep(S(3_700)), async |_| began.set(Some(world.now())));
    let sends = async {
        world.clock.sleep(S(3_600)).await;
        let sent = world.now();
        jobs.send_one(Message::new("job")).await.unwrap();
        sent
    };
    let (_, sent) = world.time.block_on(async { tokio::join!(run, sends) });
    assert!(began.get().unwrap() - sent <= MS(50));
}

#[test]
fn a_message_that_comes_twice_is_handled_once_behind_the_filter() {
    let world = World::new();
    let store = Arc::new(InMemoryStore::builder().clock(&world.clock).build());
    let filter = IdempotencyFilter::new(store, "seen", S(600)).by(|delivery| delivery.headers["order"].clone());
    let listener = world.builder(default(), 1).idempotency_filter(filter).build().unwrap();
    let twice = || Message::new("pay").header("order", "7");
    world.time.block_on(world.queue.send_one(twice())).unwrap();
    let handled = Cell::new(0);
    let run = listener.run(world.clock.sleep(S(120)), async |_| handled.set(handled.get() + 1));
    let again = async {
        world.clock.sleep(S(10)).await;
        world.queue.send_one(twice()).await.unwrap();
    };
    world.time.block_on(async { tokio::join!(run, again).0 }).unwrap();
    assert_eq!((handled.get(), world.depth().total()), (1, 0));
}

#[test]
fn messages_of_one_group_are_handled_in_order_and_one_at_a_time() {
    let world = World::new();
    let batch = (0..50).map(|n| Message::new(format!("{n}")).group("account 7")).collect();
    world.time.block_on(world.queue.send(batch)).unwrap();
    let listener = world.listener(default(), 1);
    let (order, running) = (RefCell::new(Vec::new()), Cell::new(0));
    let run = listener.run(world.clock.sleep(S(60)), async |work: Work| {
        assert_eq!(running.replace(1), 0, "one at a time");
        order.borrow_mut().push(text(&work.body).parse::<u32>().unwrap());
        world.clock.sleep(MS(5)).await;
        running.set(0);
    });
    world.time.block_on(run).unwrap();
    assert!(order.into_inner().into_iter().eq(0..50));
}

#[test]
fn the_work_of_a_consumer_that_crashed_comes_back_and_nothing_accepted_is_lost() {
    let world = World::new();
    send(&world, 40);
    let crashes = world.listener(default(), 1);
    let begun = Cell::new(0);
    world.run(
        S(1),
        crashes.run(pending(), async |_| {
            begun.set(begun.get() + 1);
            pending::<()>().await
        }),
    );
    assert!(begun.get() > 0 && world.depth().total() == 40);
    let listener = world.listener(default(), 2);
    let handled = RefCell::new(BTreeSet::new());
    let run = listener.run(world.clock.sleep(S(7_200)), async |work: Work| {
        handled.borrow_mut().insert(text(&work.body));
    });
    world.time.block_on(run).unwrap();
    assert_eq!((handled.borrow().len(), world.depth().total()), (40, 0));
}

#[test]
fn a_poison_message_is_set_aside_with_its_reason_and_the_others_are_handled() {
    let world = World::new();
    send(&world, 20);
    let listener = world.listener(default().max_attempts(3), 1);
    let run = listener.run(world.clock.sleep(S(86_400)), async |work: Work| match &work.body[..] {
        b"7" => Disposition::retry("no such account"),
        _ => Disposition::Complete,
    });
    world.time.block_on(run).unwrap();
    let dead = world.dead();
    assert!(dead.len() == 1 && dead[0].0 == "7" && dead[0].1.contains("no such account"), "{dead:?}");
    assert_eq!(listener.state().handled, 19);
}

#[test]
fn an_answer_finds_its_question_by_a_correlation_id_on_a_reply_queue() {
    let world = World::new();
    let replies = Arc::new(InMemoryQueue::builder("replies").clock(&world.clock).build());
    let requester = Requester::builder(world.queue.clone(), replies.clone(), "replies")
        .clock(&world.clock)
        .entropy(&Entropy::from_seed(1))
        .build();
    let listener = world.listener(default(), 1);
    let run = listener.run(world.clock.sleep(S(30)), async |work: Work| {
        let n: u64 = text(&work.body).parse().unwrap();
        world.clock.sleep(MS(100 - 10 * n)).await; // the last is answered first
        replies.send_one(work.reply_to().unwrap().reply(format!("{}", n * n))).await.unwrap();
    });
    let asks = (0..5_u64).map(|n| requester.request(Message::new(format!("{n}")), S(20)));
    let (_, answers) = world.time.block_on(async { tokio::join!(run, futures::future::join_all(asks)) });
    let answers: Vec<_> = answers.into_iter().map(|answer| text(&answer.unwrap().body)).collect();
    assert_eq!(answers, ["0", "1", "4", "9", "16"]);
}

#[test]
fn a_limiter_in_the_handler_levels_a_peak_for_what_is_behind_it() {
    let world = World::new();
    send(&world, 100);
    let limit = RateLimitConfig::from(Quota::per_second(10).burst(1)).max_wait(S(60));
    let limiter = RateLimiter::builder(limit).clock(&world.clock).build().unwrap();
    let listener = world.listener(default(), 1);
    let at = RefCell::new(Vec::new());
    let run = listener.run(world.clock.sleep(S(60)), async |_| {
        limiter.acquire().await;
        at.borrow_mut().push(world.now());
    });
    world.time.block_on(run).unwrap();
    let at = at.into_inner();
    assert!(at.len() == 100 && at[99] - at[0] >= Duration::from_millis(9_890), "{:?}", at[99] - at[0]);
}

#[test]
fn the_higher_priority_goes_first_and_the_lowest_waits_for_a_bounded_time() {
    let world = World::new();
    let low = Arc::new(InMemoryQueue::builder("low").clock(&world.clock).build());
    send(&world, 1_000);
    world.time.block_on(low.send_one(Message::new("low"))).unwrap();
    let config = default().tasks(1, 1).batch(1);
    let builder = world.builder(config, 1).level(Level::default().priority(1));
    let listener =
        builder.source(low, Level::default().priority(0).max_wait(S(5))).order(PriorityOrder::Strict).build().unwrap();
    let start = world.now();
    let (begun, waited) = (Cell::new(0), Cell::new(None));
    let run = listener.run(world.clock.sleep(S(60)), async |work: Work| {
        begun.set(begun.get() + 1);
        if &work.body[..] == b"low" {
            assert!(begun.get() > 10, "the higher goes first");
            waited.set(Some(world.now() - start));
        }
        world.clock.sleep(MS(100)).await;
    });
    world.time.block_on(run).unwrap();
    assert!(waited.get().is_some_and(|waited| waited <= S(6)), "{waited:?}");
}

#[test]
fn a_listener_without_a_limit_in_its_handler_is_warned_of_and_one_with_many_handlers_too() {
    let world = World::new();
    let many = world.listener(default().tasks(1, 64), 1);
    let limits = |warnings: Vec<String>| {
        let has = |word: &str| warnings.iter().any(|warning| warning.contains(word));
        (has("a peak in the queue reaches the service behind it"), has("up to 64 concurrent handlers"))
    };
    assert_eq!(limits(many.explain().warnings()), (true, true));
    let none = Pipeline::new().then(Timeout::new(S(1)));
    assert_eq!(limits(many.explain_with(&none.explain()).warnings()), (true, true));
    let rate = Pipeline::new().then(RateLimiter::new(Quota::per_second(50)).unwrap());
    assert_eq!(limits(many.explain_with(&rate.explain()).warnings()), (false, true));
    for pipeline in [
        Pipeline::new().then(AdaptiveLimiter::new(AdaptiveLimitConfig::default()).unwrap()).explain(),
        Pipeline::new().then(ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(8)).unwrap()).explain(),
    ] {
        assert_eq!(many.explain_with(&pipeline).warnings(), [""; 0]);
    }
    // The default's sixteen are not warned of, and the handler's own warnings are kept.
    let few = world.listener(default(), 1);
    let retry = Pipeline::new().then(Retry::new(RetryConfig::default()).unwrap());
    let explained = few.explain_with(&retry.explain());
    assert_eq!(limits(explained.warnings()), (true, false));
    assert_eq!(explained.warnings().len(), 1 + retry.explain().warnings().len());
    let text = explained.to_string();
    assert!(text.contains("1. queue listener: takes up to 32 messages a poll for 1 to 16 handlers"), "{text}");
    assert!(text.contains("2. retry: "), "{text}");
}
