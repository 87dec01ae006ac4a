//! Outputs that are full or away for long, and what happens meanwhile.
use std::{
    cell::Cell,
    future::{Ready, pending, ready},
};

use steadfast::{
    pipes_and_filters::{Emit, FilterEvent},
    port::PortErrorKind,
    queue::{Message, Queue, QueueExt, Receive},
    queue_listener::Work,
    testing::{PortAnswer, ScriptedPort},
};

use tokio::sync::Notify;

use super::world::{S, Way, World, text, texts};

fn same(work: Work) -> Ready<Emit> {
    ready(Emit::one(Message::new(work.body.clone())))
}

/// Regression: the next filter, or an agent, was given the time for which the results had been held.
// Guarantee: pipes_and_filters 5.
#[test]
fn the_time_for_which_results_are_held_is_subtracted_from_the_remaining_time() {
    for way in Way::ALL {
        let world = World::new();
        let (input, output) = (world.queue("in"), world.bounded("out", 1));
        let filter = world.filter("f", &input).output(way.to(&output)).build().unwrap();
        world.send(&output, [Message::new("full")]);
        world.send(&input, [Message::new("a").expires_after(S(600)), Message::new("b").expires_after(S(20))]);
        let taken = world.run(async {
            let empties = async {
                world.clock.sleep(S(300)).await;
                let mut taken = Vec::new();
                while taken.len() < 2 {
                    output.purge().await.unwrap();
                    world.clock.sleep(S(10)).await;
                    taken.extend(output.receive_one(S(30)).await.unwrap());
                }
                taken
            };
            tokio::select! { biased; taken = empties => taken, ran = filter.run(pending(), same) => unreachable!("{ran:?}") }
        });
        for taken in taken {
            let (left, late) = (taken.time_left().unwrap(), S(20));
            let expected = if taken.body == "b" { S(0) } else { S(290) };
            assert!(left <= expected && left + late >= expected, "{way:?}: {left:?} left of {taken:?}");
        }
    }
}

/// Regression: nothing was reported, because the message was delivered only once.
// Guarantee: pipes_and_filters 3.
#[test]
fn a_result_that_is_sent_again_long_after_a_lost_reply_is_reported() {
    for (away, sent) in [(60, 1), (600, 2)] {
        let world = World::new();
        let (input, queue) = (world.queue("in"), world.queue("out"));
        // The first reply is lost, and then the output is away.
        let (output, until) = (ScriptedPort::elsewhere(&world.clock), world.clock.now() + S(away));
        output.by(move |call| match call.method {
            "send" if call.number == 1 => PortAnswer::lose(PortErrorKind::Unavailable),
            "send" if call.began < until => PortAnswer::fail(PortErrorKind::Unavailable),
            _ => PortAnswer::pass(),
        });
        let filter = world.filter("f", &input).output(output.queue(queue.clone())).build().unwrap();
        let mut events = filter.events();
        world.send(&input, [Message::new("a")]);
        world.run(filter.run(world.clock.sleep(S(700)), same)).unwrap();
        let mut reports = 0;
        loop {
            match events.try_recv() {
                Ok(Some(event)) => reports += usize::from(matches!(event.what, FilterEvent::MayRepeat { .. })),
                Ok(None) => break,
                // A failure for each request.
                Err(_) => {}
            }
        }
        assert_eq!((world.take(&queue).len(), reports, world.depth(&input)), (sent, sent - 1, 0), "{away} s");
    }
}

/// Regression: its signal to stop was taken for one of the filter, and its message was released and handled again.
// Guarantee: pipes_and_filters 4.
#[test]
fn a_handler_that_ends_behind_its_time_limit_does_not_run_again_while_its_output_is_full() {
    for way in Way::ALL {
        let world = World::new();
        let (input, output) = (world.queue("in"), world.bounded("out", 1));
        let filter = world.filter("f", &input).output(way.to(&output)).build().unwrap();
        world.send(&output, [Message::new("full")]);
        world.send(&input, [Message::new("late")]);
        let runs = Cell::new(0);
        let handler = async |work: Work| {
            runs.set(runs.get() + 1);
            work.cancelled().await; // after 20 s; the margin is left
            Emit::one(Message::new(work.body.clone()))
        };
        let later = async {
            world.clock.sleep(S(300)).await;
            output.purge().await.unwrap();
        };
        let ((), ran) = world.run(async { tokio::join!(later, filter.run(world.clock.sleep(S(330)), handler)) });
        ran.unwrap();
        assert_eq!((texts(&world.take(&output)), runs.get()), (vec!["late".to_owned()], 1), "{way:?}");
    }
}

/// Regression: what is held was offered again long after the end of a short stop, so that it was not released.
// Guarantee: pipes_and_filters 4.
#[test]
fn a_filter_that_stops_quickly_releases_what_it_holds() {
    for (way, at) in Way::ALL.into_iter().flat_map(|way| (600..610).map(move |at| (way, at))) {
        let world = World::new();
        let (input, output) = (world.queue("in"), world.bounded("out", 1));
        let config = World::config().visibility(S(3600)).call_timeout(S(1)).stop_within(S(0), S(1));
        let filter = world.filter_with("f", &input, config).output(way.to(&output)).allow_duplicates().build().unwrap();
        world.send(&output, [Message::new("full")]);
        world.send(&input, (0..20).map(|i| Message::new(i.to_string())));
        world.run(filter.run(world.clock.sleep(S(at)), same)).unwrap();
        world.time.advance(S(2));
        let left = world.run(input.peek(1000)).unwrap();
        assert!(left.len() == 20 && left.iter().all(|left| !left.hidden), "{way:?}, {at}: {left:?}");
    }
}

/// Results of one message for a queue that never has room for them.
#[test]
fn more_results_than_the_output_ever_holds_make_their_message_a_dead_letter() {
    for way in Way::ALL {
        let world = World::new();
        let (input, output) = (world.queue("in"), world.bounded("out", 3));
        let filter = world.filter("f", &input).output(way.to(&output)).build().unwrap();
        world.send(&input, [Message::new("a")]);
        let handler = async |_: Work| Emit::many((0..4).map(|i| Message::new(i.to_string())));
        world.run(filter.run(world.clock.sleep(S(600)), handler)).unwrap();
        let dead = world.dead(&input);
        assert!(dead.len() == 1 && dead[0].contains("at most 3"), "{way:?}: {dead:?}");
        assert_eq!(world.depth(&output), 0);
    }
}

/// Regression: each death of the process was an expiry of what it held, until all of it were dead letters.
// Guarantee: pipes_and_filters 4.
#[test]
fn held_results_are_not_suspected_of_what_kills_the_process() {
    let world = World::new();
    let (input, output) = (world.queue("in"), world.bounded("out", 1));
    world.send(&output, [Message::new("full")]);
    world.send(&input, ["a", "bad", "b"].map(Message::new));
    let mut came = Vec::new();
    for life in 0..10 {
        let filter = world.filter("f", &input).output(output.clone()).build().unwrap();
        let dies = Notify::new();
        let handler = async |work: Work| {
            if work.body == "bad" {
                dies.notify_one();
                pending::<()>().await;
            }
            Emit::one(Message::new(work.body.clone()))
        };
        let empties = async {
            loop {
                world.clock.sleep(S(1)).await;
                // The first lives find no room.
                if life > 5 {
                    for taken in output.receive(Receive::new(1, S(30))).await.unwrap() {
                        output.complete(&taken.receipt).await.unwrap();
                        came.push(text(&taken.body));
                    }
                }
            }
        };
        world.run(async {
            tokio::select! {
                biased;
                () = dies.notified() => {}
                ran = filter.run(world.clock.sleep(S(100)), handler) => ran.unwrap(),
                () = empties => {}
            }
        });
    }
    came.sort();
    assert_eq!(
        (came.join(" "), world.dead(&input).len(), world.depth(&input)),
        ("a b full".to_owned(), 1, 0),
        "{:?}",
        world.dead(&input)
    );
}
