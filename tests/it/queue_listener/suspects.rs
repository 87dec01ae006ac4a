//! Messages whose earlier deliveries ended without a settlement: a death that was recorded counts,
//! a lost answer does not, and others are handled meanwhile.
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::{Future, pending},
    rc::Rc,
};

use steadfast::{
    entropy::Entropy,
    queue::{Address, Message, Queue, QueueExt, Receive},
    queue_listener::{Disposition, QueueListenerConfig, Work},
};
use tokio::sync::Notify;

use crate::queue_listener::world::{MS, Mode, S, World, text};

const DEFAULT: fn() -> QueueListenerConfig = QueueListenerConfig::default;

/// Takes all visible messages as a process that dies at once.
fn taken_by_a_dying_process(world: &World, times: usize) {
    for _ in 0..times {
        world.time.block_on(world.queue.receive(Receive::new(1000, S(30)))).unwrap();
        world.time.advance(S(31));
    }
}

// Guarantee: queue_listener 6.
/// Regression: deliveries whose answers came after the time limit counted as deaths.
#[test]
fn answers_that_come_late_for_an_hour_make_no_dead_letter() {
    for (slow, takes, polled) in [
        (&["receive"][..], 6, false),
        (&["receive"], 6, true),
        (&["receive"], 25, true),
        (&["receive", "settle", "extend"], 6, false),
        (&["receive", "settle", "extend"], 6, true),
        (&["settle", "extend"], 40, true),
        (&["receive", "settle", "extend"], 300, true),
    ] {
        let world = if polled { World::polled() } else { World::new() };
        let messages = if slow.len() == 3 && takes == 6 { 1_000 } else { 200 };
        (0..messages).for_each(|i| drop(world.send(&format!("{i}"))));
        slow.iter().for_each(|what| world.line.answers_after(what, S(takes)));
        let listener = world.listener(DEFAULT(), 1);
        let began = RefCell::new(BTreeMap::<String, u32>::new());
        let stop = async {
            world.clock.sleep(S(3600)).await;
            slow.iter().for_each(|what| world.line.answers_after(what, MS(0)));
            world.clock.sleep(S(1200)).await;
        };
        let run = listener.run(stop, async |work: Work| {
            *began.borrow_mut().entry(text(&work.body)).or_default() += 1;
        });
        world.time.block_on(run).unwrap();
        let name = format!("{slow:?} takes {takes} s, polled: {polled}");
        assert_eq!((world.dead(), world.depth().total()), (Vec::new(), 0), "{name}");
        assert_eq!(began.borrow().len(), messages, "{name}");
    }
}

// Guarantee: queue_listener 6.
/// Regression: deliveries that nobody tried used up the attempts of a message that then failed.
#[test]
fn a_message_whose_answers_were_lost_for_an_hour_has_all_its_attempts() {
    let world = World::new();
    world.send("recovers");
    world.send("fails");
    taken_by_a_dying_process(&world, 120);
    let listener = world.listener(DEFAULT().max_attempts(3), 1);
    let (began, tried) = (world.now(), RefCell::new(Vec::new()));
    let run = listener.run(world.clock.sleep(S(600)), async |work: Work| {
        let body = text(&work.body);
        let failures = tried.borrow().iter().filter(|(tried, _)| *tried == body).count();
        tried.borrow_mut().push((body.clone(), world.now() - began));
        if body == "fails" || failures < 2 { Disposition::retry("fails") } else { Disposition::Complete }
    });
    world.time.block_on(run).unwrap();
    let of =
        |body: &str| tried.borrow().iter().filter(|(tried, _)| tried == body).map(|(_, at)| *at).collect::<Vec<_>>();
    assert_eq!((of("recovers").len(), of("fails").len()), (3, 3), "{:?}", world.dead());
    assert!(of("fails")[1] - of("fails")[0] < S(10), "the delays begin anew, too: {:?}", of("fails"));
    let dead = world.time.block_on(world.queue.dead_letters().unwrap().peek(2)).unwrap();
    let numbers: Vec<u32> = dead[0].errors.iter().map(|error| error.attempt).collect();
    assert_eq!((dead.len(), text(&dead[0].body), numbers), (1, "fails".to_owned(), vec![1, 2, 3]));
    assert!(dead[0].reason.as_ref().unwrap().contains("(attempt 3, delivery 123,"), "{:?}", dead[0].reason);
}

// Guarantee: queue_listener 22.
/// A forward that is refused for good counts likewise.
#[test]
fn a_forward_that_is_refused_after_lost_answers_is_a_first_attempt() {
    let world = World::new();
    world.send("forwards");
    taken_by_a_dying_process(&world, 20);
    let listener = world.listener(DEFAULT().max_attempts(3), 1);
    let tries = Cell::new(0);
    let run = listener.run(world.clock.sleep(S(600)), async |_: Work| {
        tries.set(tries.get() + 1);
        Disposition::forward([(Address::new("elsewhere"), Message::new("result"))])
    });
    world.time.block_on(run).unwrap();
    assert_eq!((tries.get(), world.dead().len()), (3, 1));
}

/// While the answers take longer than the time limit, but less than a lease, messages are handled.
#[test]
fn a_queue_that_is_slower_than_the_time_limit_is_used_all_the_same() {
    for polled in [false, true] {
        let world = if polled { World::polled() } else { World::new() };
        (0..200).for_each(|i| drop(world.send(&format!("{i}"))));
        world.line.answers_after("receive", S(6));
        let listener = world.listener(DEFAULT(), 1);
        world.time.block_on(listener.run(world.clock.sleep(S(600)), async |_: Work| {})).unwrap();
        assert_eq!((listener.state().handled, world.dead().len()), (200, 0), "polled: {polled}");
    }
}

// Guarantee: queue_listener 6.
/// Regression: a suspect message waited for all handlers, and nothing else was taken meanwhile.
#[test]
fn healthy_messages_flow_beside_a_suspect_one_that_hangs() {
    let world = World::new();
    world.send("hangs");
    taken_by_a_dying_process(&world, 1);
    let listener = world.listener(DEFAULT(), 1);
    let (handled, longest) = (Cell::new(0), Cell::new(S(0)));
    let run = listener.run(world.clock.sleep(S(3700)), async |work: Work| {
        if work.body == "hangs" {
            pending::<()>().await;
        }
        handled.set(handled.get() + 1);
        longest.set(longest.get().max(work.age));
    });
    let sends = async {
        for i in 0..3600 {
            world.queue.send_one(Message::new(format!("{i}"))).await.unwrap();
            world.clock.sleep(S(1)).await;
        }
    };
    world.run(S(4000), async { tokio::join!(run, sends).0 }).expect("it stops").unwrap();
    assert_eq!(handled.get(), 3600);
    assert!(longest.get() <= S(25), "a message waited for {:?}", longest.get());
}

// Guarantee: queue_listener 6.
#[test]
fn a_suspect_message_begins_beside_a_handler_that_takes_an_hour() {
    let world = World::new();
    world.send("takes an hour");
    let listener = world.listener(DEFAULT(), 1);
    let began = RefCell::new(BTreeMap::<String, steadfast::time::Instant>::new());
    let run = listener.run(world.clock.sleep(S(5000)), async |work: Work| {
        began.borrow_mut().insert(text(&work.body), world.now());
        if work.body == "takes an hour" {
            world.clock.sleep(S(3600)).await;
        }
    });
    let start = world.now();
    let others = async {
        world.clock.sleep(S(5)).await;
        // Messages of a process that dies.
        world.queue.send((0..8).map(|i| Message::new(format!("suspect {i}"))).collect()).await.unwrap();
        world.queue.receive(Receive::new(10, S(30))).await.unwrap();
        for i in 0..60 {
            world.clock.sleep(S(60)).await;
            world.queue.send_one(Message::new(format!("healthy {i}"))).await.unwrap();
        }
    };
    world.run(S(6000), async { tokio::join!(run, others).0 }).expect("it stops").unwrap();
    let began = began.into_inner();
    assert_eq!(began.len(), 1 + 8 + 60);
    for i in 0..8 {
        // Each waits for the long handler a third of a lease, and messages flow for as long.
        let waited = began[&format!("suspect {i}")] - start;
        assert!(waited <= S(40 + 8 * 25), "suspect {i} began after {waited:?}");
    }
    assert_eq!(world.dead().len(), 0);
}

// Guarantee: queue_listener 6.
/// Regression: each short suspect message closed the intake for a third of the visibility time-out,
/// one after the other, and nothing else was taken meanwhile.
#[test]
fn healthy_messages_flow_between_many_short_suspects_beside_a_handler_that_takes_an_hour() {
    let world = World::new();
    world.send("takes an hour");
    let listener = world.listener(DEFAULT(), 1);
    let (suspects, handled, longest) = (Cell::new(0), Cell::new(0), Cell::new(S(0)));
    let run = listener.run(world.clock.sleep(S(5000)), async |work: Work| match &*work.body {
        b"takes an hour" => world.clock.sleep(S(3600)).await,
        b"suspect" => {
            world.clock.sleep(MS(5)).await;
            suspects.set(suspects.get() + 1);
        }
        _ => {
            handled.set(handled.get() + 1);
            longest.set(longest.get().max(work.age));
        }
    });
    let others = async {
        world.clock.sleep(S(5)).await;
        // Messages of a process that dies.
        world.queue.send((0..200).map(|_| Message::new("suspect")).collect()).await.unwrap();
        world.queue.receive(Receive::new(200, S(30))).await.unwrap();
        for i in 0..4800 {
            world.clock.sleep(S(1)).await;
            world.queue.send_one(Message::new(format!("{i}"))).await.unwrap();
        }
    };
    world.run(S(6000), async { tokio::join!(run, others).0 }).expect("it stops").unwrap();
    assert!(longest.get() <= S(15), "a message waited for {:?}", longest.get());
    assert_eq!((handled.get(), suspects.get(), world.dead().len()), (4800, 200, 0));
}

/// A message whose handler takes five hours is done, although its first deliveries were lost.
#[test]
fn a_long_job_whose_answers_were_lost_is_done() {
    let world = World::polled();
    world.send("job");
    taken_by_a_dying_process(&world, 15);
    let listener = world.listener(DEFAULT(), 1);
    let done = Cell::new(0);
    let run = listener.run(world.clock.sleep(S(24 * 3600)), async |_: Work| {
        world.clock.sleep(S(18_900)).await;
        done.set(done.get() + 1);
    });
    world.time.block_on(run).unwrap();
    assert_eq!((done.get(), world.dead().len()), (1, 0));
}

/// Runs listeners with this handler, one life after another, each until a handler ends its process
/// or the queue is empty. Returns the dead letters.
fn lives<H: Future<Output = ()>>(world: &World, seed: u64, handler: impl Fn(Work, Rc<Notify>) -> H) -> Vec<String> {
    let (mut lives, killed) = (0, Rc::new(Notify::new()));
    while world.depth().total() > 0 {
        lives += 1;
        assert!(lives < 40, "seed {seed}: it does not end");
        let listener = world.listener(DEFAULT(), seed * 100 + lives);
        let empties = async {
            while world.depth_now().await > 0 {
                world.clock.sleep(S(1)).await;
            }
        };
        let run = listener.run(empties, |work| handler(work, killed.clone()));
        world.run(S(4 * 3600), async {
            tokio::select! { biased; () = killed.notified() => {}, _ = run => {} }
        });
        world.time.advance(S(5));
    }
    world.dead().into_iter().map(|(body, _)| body).collect()
}

// Guarantee: queue_listener 6.
/// Poison among long handlers and lost answers: it alone becomes a dead letter.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn poison_is_found_among_long_handlers_and_lost_answers_without_an_innocent() {
    for seed in 0..15 {
        let world = World::polled();
        let entropy = Entropy::from_seed(seed);
        (0..60).for_each(|i| drop(world.send(&format!("well-{i}"))));
        world.send("kills");
        (0..4).for_each(|i| drop(world.send(&format!("long-{i}"))));
        (60..100).for_each(|i| drop(world.send(&format!("well-{i}"))));
        taken_by_a_dying_process(&world, entropy.up_to(4) as usize);
        let takes = if entropy.unit() < 0.5 { 500 } else { 30_000 };
        let dead = lives(&world, seed, async |work, killed| {
            let body = text(&work.body);
            world.clock.sleep(MS(entropy.up_to(takes))).await;
            match &*body {
                "kills" => dies(&killed).await,
                _ if body.starts_with("long") => world.clock.sleep(S(900)).await,
                _ => {}
            }
        });
        assert_eq!(dead, ["kills"], "seed {seed}");
    }
}

// Guarantee: queue_listener 6.
/// Regression: a handler that ended its process later than one visibility time-out after it began
/// had left its probation to the next suspect message, which was accused of each death.
#[test]
fn poison_that_kills_late_is_found_and_no_job_beside_it() {
    for seed in 0..3 {
        let world = World::polled();
        world.send("kills");
        (0..20).for_each(|i| drop(world.send(&format!("job-{i}"))));
        taken_by_a_dying_process(&world, 1);
        let dead = lives(&world, seed, async |work, killed| {
            if work.body == "kills" {
                world.clock.sleep(S(45)).await;
                dies(&killed).await;
            }
            world.clock.sleep(S(20)).await;
        });
        assert_eq!(dead, ["kills"], "seed {seed}");
    }
}

/// Ends the process of the handler that awaits it.
async fn dies(killed: &Notify) {
    killed.notify_one();
    pending().await
}

// Guarantee: queue_listener 8.
/// Regression: the answer of a poll or wait that came after the stop was lost, and its messages
/// were suspect.
#[test]
fn orderly_stops_make_no_message_suspect_though_answers_take_long() {
    for (takes, polled) in [(80, false), (80, true), (400, false), (1_500, true), (3_000, true)] {
        let world = if polled { World::polled() } else { World::new() };
        let what = ["receive", "settle", "extend"];
        what.iter().for_each(|what| world.line.answers_after(what, MS(takes)));
        let entropy = Entropy::from_seed(takes);
        let suspects = Cell::new(0);
        for life in 0..40 {
            let listener = world.listener(DEFAULT(), life);
            let stop = world.clock.sleep(MS(2_000 + 4 * takes + entropy.up_to(3 * takes)));
            let run = listener.run(stop, async |work: Work| {
                suspects.set(suspects.get() + work.expiries);
                Disposition::Complete
            });
            let sends = async {
                loop {
                    world.queue.send_one(Message::new("job")).await.unwrap();
                    world.clock.sleep(MS(entropy.up_to(60))).await;
                }
            };
            world.time.block_on(async {
                tokio::select! { biased; ran = run => ran.unwrap(), () = sends => {} }
            });
        }
        world.time.advance(S(60));
        let left = world.time.block_on(world.queue.peek(10_000)).unwrap();
        let unexplained: u32 = left.iter().map(|left| left.expiries).sum();
        assert_eq!((suspects.get(), unexplained), (0, 0), "answers take {takes} ms, polled: {polled}");
        let taken = world.time.block_on(world.queue.receive(Receive::new(1000, S(30)))).unwrap();
        assert!(taken.iter().all(|taken| taken.expiries == 0), "answers take {takes} ms, polled: {polled}");
    }
}

/// A record that fails keeps the handler from beginning: its death could not be told from a lost
/// answer. The message is tried again.
#[test]
fn a_suspect_message_does_not_begin_without_its_record() {
    for mode in [Mode::Refuses, Mode::LosesReplies, Mode::Hangs] {
        let world = World::polled();
        world.send("suspect");
        taken_by_a_dying_process(&world, 1);
        let listener = world.listener(DEFAULT(), 1);
        let runs = Cell::new(0);
        world.line.is("extend", mode);
        let stop = async {
            world.clock.sleep(S(600)).await;
            assert_eq!(runs.get(), 0, "{mode:?}");
            world.line.is("extend", Mode::Well);
            world.clock.sleep(S(120)).await;
        };
        world.time.block_on(listener.run(stop, async |_: Work| runs.set(runs.get() + 1))).unwrap();
        assert_eq!((runs.get(), world.dead().len(), world.depth().total()), (1, 0, 0), "{mode:?}");
        assert!(world.line.calls("extend").len() < 700, "{mode:?}: {}", world.line.calls("extend").len());
    }
}
