//! Settlement fails for minutes while messages can be received: the process knows the decisions of
//! its handlers.
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    time::Duration,
};

use steadfast::{
    queue::{Queue, QueueExt},
    queue_listener::{Disposition, QueueListener, QueueListenerConfig, Work},
};

use crate::queue_listener::world::{MS, Mode, S, World, text};

fn config() -> QueueListenerConfig {
    QueueListenerConfig::default().tasks(1, 4)
}

/// Runs the listener while settlement fails in this way for this time, and two minutes more.
/// Returns how often each message was handled.
fn run(
    world: &World,
    listener: &QueueListener,
    (mode, time): (Mode, Duration),
    decide: impl Fn(&str, u32) -> Disposition,
) -> BTreeMap<String, u32> {
    let times = RefCell::new(BTreeMap::new());
    let handler = async |work: Work| {
        world.clock.sleep(MS(10)).await;
        let body = text(&work.body);
        let n = *times.borrow_mut().entry(body.clone()).and_modify(|n| *n += 1).or_insert(1);
        decide(&body, n)
    };
    let runs = listener.run(world.clock.sleep(time + S(120)), handler);
    world.time.block_on(async { tokio::join!(runs, breaks_for(world, mode, time)) }).0.unwrap();
    times.into_inner()
}

/// Settlement fails from the start, and works again after this time.
async fn breaks_for(world: &World, mode: Mode, time: Duration) {
    world.line.is("settle", mode);
    world.clock.sleep(time).await;
    world.line.is("settle", Mode::Well);
}

#[test]
fn handled_messages_are_settled_by_their_decision_when_settlement_works_again() {
    for (mode, minutes) in [(Mode::Refuses, 5), (Mode::Hangs, 5), (Mode::LosesReplies, 5), (Mode::Refuses, 60)] {
        let world = World::new();
        (0..40).for_each(|i| drop(world.send(&format!("{i}"))));
        let listener = world.listener(config(), 1);
        let times = run(&world, &listener, (mode, S(60 * minutes)), |_, _| Disposition::Complete);
        assert_eq!(world.dead(), [], "{mode:?} for {minutes} min");
        assert_eq!(world.depth().total(), 0, "{mode:?} for {minutes} min");
        let again: Vec<_> = times.iter().filter(|(_, times)| **times != 1).collect();
        assert!(times.len() == 40 && again.is_empty(), "{mode:?} for {minutes} min: {again:?}");
    }
}

#[test]
fn each_decision_is_kept_and_no_innocent_message_becomes_a_dead_letter() {
    let world = World::new();
    for body in ["done", "fails once", "poison", "refused", "handed back"] {
        (0..5).for_each(|i| drop(world.send(&format!("{body} {i}"))));
    }
    let listener = world.listener(config(), 1);
    let times = run(&world, &listener, (Mode::Refuses, S(600)), |body, n| match body.rsplit_once(' ').unwrap().0 {
        "fails once" if n == 1 => Disposition::retry_after(S(1), "the first time"),
        "poison" => Disposition::dead_letter("it is poison"),
        "refused" if world.now().as_nanos() < 605_000_000_000 => Disposition::refused(None, "away"),
        "handed back" if world.now().as_nanos() < 605_000_000_000 => Disposition::Release,
        _ => Disposition::Complete,
    });
    let mut dead = world.dead();
    dead.sort();
    assert_eq!(dead.len(), 5, "{dead:?}");
    assert!(
        dead.iter().all(|(body, reason)| body.starts_with("poison") && reason.starts_with("it is poison")),
        "{dead:?}"
    );
    assert_eq!(world.depth().total(), 0);
    let of = |what: &str| times.iter().filter(|(body, _)| body.starts_with(what)).map(|(_, n)| *n).collect::<Vec<_>>();
    assert_eq!((of("done"), of("fails once"), of("poison")), (vec![1; 5], vec![2; 5], vec![1; 5]));
    // These had no decision: they are handled again and are not suspect.
    assert!(of("refused").iter().chain(&of("handed back")).all(|n| *n > 5), "{times:?}");
}

/// That it was delivered to processes that ended is no evidence that a handler began.
#[test]
fn a_message_that_another_process_could_not_settle_is_suspect_here_and_is_handled() {
    let world = World::new();
    world.send("job");
    // Another process had it, and ended.
    for _ in 0..2 {
        drop(world.time.block_on(world.queue.receive_one(S(1))).unwrap().unwrap());
        world.time.advance(S(2));
    }
    let listener = world.listener(config().max_expiries(2), 1);
    let times = run(&world, &listener, (Mode::Well, S(10)), |_, _| Disposition::Complete);
    assert_eq!((times.len(), world.dead().len(), world.depth().total()), (1, 0, 0));
    assert_eq!(world.line.calls("extend").len(), 1, "its beginning was recorded");
}

/// Regression: each delivery of a suspect message that was refused, and could not be settled, was an
/// attempt, here and in the queue.
#[test]
fn a_suspect_message_that_is_refused_while_settlement_fails_keeps_its_attempts() {
    for by in ["one", "batch"] {
        let world = World::new();
        world.send("job");
        drop(world.time.block_on(world.queue.receive_one(S(1))).unwrap().unwrap());
        world.time.advance(S(2));
        let listener = world.listener(config().max_attempts(3), 1);
        let times = Cell::new(0);
        let refuse = || {
            times.set(times.get() + 1);
            Disposition::refused(None, "away")
        };
        let stop = world.clock.sleep(S(660));
        let breaks = breaks_for(&world, Mode::Refuses, S(600));
        world.time.block_on(async {
            let runs = async {
                match by {
                    "one" => listener.run(stop, async |_: Work| refuse()).await,
                    _ => {
                        listener
                            .run_batches(stop, async |works: Vec<Work>| works.iter().map(|_| refuse()).collect())
                            .await
                    }
                }
            };
            tokio::join!(runs, breaks).0.unwrap();
        });
        assert!(times.get() > 20, "{by}: {}", times.get());
        assert_eq!(world.dead(), [], "{by}");
        let left = world.time.block_on(world.queue.peek(1)).unwrap();
        assert_eq!((left.len(), left[0].crashes), (1, 0), "{by}: no death is recorded: {left:?}");
        // Another process, which knows nothing of this.
        let other = world.listener(config().max_attempts(3), 2);
        let tried = run(&world, &other, (Mode::Well, S(60)), |_, _| Disposition::retry("fails"));
        assert_eq!((tried["job"], world.dead().len()), (3, 1), "{by}: {:?}", world.dead());
    }
}
