//! Messages of a chain: their lineage ids, their outputs, and what they inherit.
use std::{cell::RefCell, collections::HashSet};

use steadfast::{
    pipes_and_filters::{Emit, LINEAGE},
    queue::{Message, QueueExt, Requester},
    queue_listener::{Disposition, Work},
};

use super::world::{MS, S, Way, World, by_group, text, texts};
use crate::engines::Engine;

// Guarantee: pipes_and_filters 1.
#[test]
fn each_message_carries_the_way_on_which_it_came_into_being() {
    for engine in Engine::ALL {
        for way in Way::ALL {
            let world = World::on(engine);
            let (lines, words, kept) = (world.queue("lines"), world.queue("words"), world.queue("kept"));
            let split = world.filter("split", &lines).output(way.to(&words)).build().unwrap();
            let keep = world.filter("keep", &words).output(way.to(&kept)).build().unwrap();
            world.send(&lines, ["a b", "c"].map(Message::new));
            let splits =
                async |work: Work| Emit::many(text(&work.body).split(' ').map(|word| Message::new(word.to_owned())));
            let keeps = async |work: Work| Emit::one(Message::new(work.body.clone()));
            let stop = || world.clock.sleep(S(10));
            world.run(async { tokio::try_join!(split.run(stop(), splits), keep.run(stop(), keeps)) }).unwrap();
            let taken = world.take(&kept);
            let lineage =
                |body: &str| taken.iter().find(|taken| taken.body == body.as_bytes()).unwrap().headers[LINEAGE].clone();
            let (a, b, c) = (lineage("a"), lineage("b"), lineage("c"));
            let first = a.strip_suffix("/split.0/keep.0").unwrap();
            assert_eq!(b, format!("{first}/split.1/keep.0"));
            assert!(c.ends_with("/split.0/keep.0") && !c.starts_with(first), "{c}");
            // 16 digits for the queue, and the id of the message.
            assert!(first.len() > 17 && first.as_bytes()[16] == b'-', "{first}");
        }
    }
}

// Guarantee: pipes_and_filters 1.
#[test]
fn a_result_that_is_sent_again_is_recognized_by_its_lineage_id() {
    let world = World::new();
    let (input, output) = (world.queue("in"), world.queue("out"));
    let filter = world.filter("f", &input).output(Way::Sent.to(&output)).build().unwrap();
    // Two messages of one lineage id, as of a producer that repeats itself.
    world.send(&input, ["a", "a"].map(|body| Message::new(body).header(LINEAGE, "order-42")));
    let handler = async |work: Work| Emit::one(Message::new(work.body.clone()));
    world.run(filter.run(world.clock.sleep(S(10)), handler)).unwrap();
    let taken = world.take(&output);
    assert_eq!((texts(&taken), &*taken[0].headers[LINEAGE]), (vec!["a".to_owned()], "order-42/f.0"));
    assert_eq!(filter.listener().state().handled, 2);
}

/// A forwarded result needs no recognition. A producer that gives many messages one lineage id would lose them.
// Guarantee: pipes_and_filters 2.
#[test]
fn forwarded_results_are_not_taken_for_each_other() {
    let world = World::new();
    let (input, output) = (world.queue("in"), world.queue("out"));
    let filter = world.filter("f", &input).output(output.clone()).build().unwrap();
    world.send(&input, ["a", "b"].map(|body| Message::new(body).header(LINEAGE, "same")));
    let handler = async |work: Work| Emit::one(Message::new(work.body.clone()));
    world.run(filter.run(world.clock.sleep(S(10)), handler)).unwrap();
    assert_eq!(world.take(&output).len(), 2);
}

#[test]
fn a_handler_emits_none_one_or_many_and_to_named_outputs() {
    for way in Way::ALL {
        let world = World::new();
        let (input, even, odd) = (world.queue("in"), world.queue("even"), world.queue("odd"));
        let filter = world.filter("f", &input).output(way.to(&even)).named_output("odd", way.to(&odd)).build().unwrap();
        world.send(&input, (0..6).map(|i| Message::new(i.to_string())));
        let handler = async |work: Work| {
            let same = || Message::new(work.body.clone());
            Ok::<_, String>(match text(&work.body).parse::<u32>().map_err(|e| e.to_string())? {
                0 => Emit::none(),
                4 => Emit::many([same(), same()]).and(Emit::to("odd", same())),
                n if n % 2 == 1 => Emit::to("odd", same()),
                _ => Emit::one(same()),
            })
        };
        world.run(filter.run(world.clock.sleep(S(10)), handler)).unwrap();
        let sorted = |queue| {
            let mut bodies = texts(&world.take(queue));
            bodies.sort();
            bodies.concat()
        };
        assert_eq!((sorted(&even), sorted(&odd), world.depth(&input)), ("244".into(), "1345".into(), 0), "{way:?}");
    }
}

// Guarantee: pipes_and_filters 5.
#[test]
fn headers_group_and_reply_address_travel_with_the_results() {
    for way in Way::ALL {
        let world = World::new();
        let (input, output) = (world.queue("in"), world.queue("out"));
        let filter = world.filter("f", &input).output(way.to(&output)).build().unwrap();
        let message = Message::new("a").group("g").header("tenant", "7").header("unit", "km");
        world.send(&input, [message.header("reply-to", "web-1").header("correlation-id", "r-1")]);
        let handler = async |work: Work| {
            let (same, other) = (Message::new(work.body.clone()), Message::new("b"));
            Emit::many([same, other.header("unit", "mile").group("h")])
        };
        world.run(filter.run(world.clock.sleep(S(10)), handler)).unwrap();
        let taken = world.take(&output);
        let header = |i: usize, name: &str| taken[i].headers[name].clone();
        assert_eq!((taken[0].group.as_deref(), taken[1].group.as_deref()), (Some("g"), Some("h")));
        for i in 0..2 {
            let of = ["tenant", "reply-to", "correlation-id"].map(|name| header(i, name));
            assert_eq!(of, ["7", "web-1", "r-1"], "{way:?}");
        }
        assert_eq!((&*header(0, "unit"), &*header(1, "unit")), ("km", "mile"), "a result's own header is kept");
    }
}

/// The queues and the handler take time, which the reader of the last queue no longer has.
// Guarantee: pipes_and_filters 5.
#[test]
fn the_remaining_time_shrinks_by_that_of_each_filter() {
    for way in Way::ALL {
        let world = World::new();
        let (input, output) = (world.queue("in"), world.queue("out"));
        let filter = world.filter("f", &input).output(way.to(&output)).build().unwrap();
        world.send(
            &input,
            [Message::new("a").expires_after(S(60)), Message::new("b"), Message::new("c").expires_after(S(4))],
        );
        world.time.advance(S(10));
        let handler = async |work: Work| {
            world.clock.sleep(S(5)).await;
            Emit::one(Message::new(work.body.clone()))
        };
        world.run(filter.run(world.clock.sleep(S(5) + MS(100)), handler)).unwrap();
        let left = |body: &str| {
            let taken = world.run(output.peek(10)).unwrap();
            let of = taken.into_iter().find(|taken| taken.body == body.as_bytes()).unwrap();
            of.headers.get("expires-after").map(|nanos| nanos.parse::<u64>().unwrap() / 1_000_000_000)
        };
        assert_eq!((left("a"), left("b"), left("c")), (Some(45), None, Some(0)), "{way:?}");
        let taken = world.take(&output);
        assert!(
            taken.iter().any(|taken| taken.time_left() == Some(S(45) - MS(100)) || taken.time_left() > Some(S(44)))
        );
    }
}

/// A filter receives messages ahead of its handlers while these are quick, and they may turn slow.
// Guarantee: pipes_and_filters 5.
#[test]
fn the_remaining_time_shrinks_while_a_message_waits_for_its_handler() {
    let world = World::new();
    let (input, output) = (world.queue("in"), world.queue("out"));
    let filter = world.filter_with("f", &input, World::config().tasks(1, 1)).output(output.clone()).build().unwrap();
    world.send(&input, (0..40).map(|i| Message::new(i.to_string()).expires_after(S(600))));
    let (start, count) = (world.clock.now(), std::cell::Cell::new(0));
    let handler = async |_: Work| {
        count.set(count.get() + 1);
        if count.get() > 10 {
            world.clock.sleep(S(2)).await;
        }
        // The time at which it is emitted.
        Emit::one(Message::new((world.clock.now() - start).as_secs().to_string()))
    };
    world.run(filter.run(world.clock.sleep(S(100)), handler)).unwrap();
    let taken = world.run(output.peek(100)).unwrap();
    assert_eq!(taken.len(), 40);
    for taken in taken {
        let left = taken.headers["expires-after"].parse::<u64>().unwrap() / 1_000_000_000;
        assert_eq!(left + text(&taken.body).parse::<u64>().unwrap(), 600);
    }
}

/// A request that goes through a filter is answered by the service behind it.
// Guarantee: pipes_and_filters 5.
#[test]
fn a_request_through_a_filter_gets_its_reply() {
    let world = World::new();
    let (requests, checked, replies) = (world.queue("requests"), world.queue("checked"), world.queue("replies"));
    let check = world.filter("check", &requests).output(checked.clone()).build().unwrap();
    let asker = Requester::builder(requests, replies.clone(), "web-1").clock(&world.clock).build();
    let stop = || world.clock.sleep(S(20));
    let checks = async |work: Work| Emit::one(Message::new([&work.body[..], b", checked"].concat()));
    let serves = async {
        world.clock.sleep(S(1)).await;
        let taken = checked.receive_one(S(30)).await.unwrap().unwrap();
        let to = steadfast::queue::ReplyTo::of(&taken.headers).unwrap();
        assert_eq!(to.queue, "web-1");
        replies.send_one(to.reply(taken.body.clone())).await.unwrap();
    };
    let answer = world.run(async {
        let run = async { check.run(stop(), checks).await.unwrap() };
        tokio::join!(asker.request(Message::new("42"), S(10)), run, serves).0
    });
    assert_eq!(answer.unwrap().body, "42, checked");
}

/// Attempts fail at random, and processes compete.
// Guarantee: pipes_and_filters 5.
#[test]
fn order_within_a_group_holds_from_the_first_queue_to_the_last() {
    for engine in Engine::ALL {
        for way in Way::ALL {
            let world = World::on(engine);
            let queues = ["0", "1", "2", "3"].map(|name| world.queue(name));
            let messages = if engine == Engine::Memory { 300 } else { 150 };
            world.send(&queues[0], (0..messages).map(|i| Message::new(i.to_string()).group(format!("g{}", i % 3))));
            let entropy = steadfast::entropy::Entropy::from_seed(1);
            let handler = async |work: Work| {
                world.clock.sleep(MS(entropy.up_to(50))).await;
                if entropy.up_to(29) == 0 { Err("bad luck") } else { Ok(Emit::one(Message::new(work.body.clone()))) }
            };
            let filters: Vec<_> = (0..6)
                .map(|i| {
                    let (from, to) = (&queues[i % 3], &queues[i % 3 + 1]);
                    world.filter(&format!("f{}", i % 3), from).output(way.to(to)).build().unwrap()
                })
                .collect();
            let runs = filters.iter().map(|filter| filter.run(world.clock.sleep(S(60 + 2 * messages)), handler));
            world.run(futures::future::try_join_all(runs)).unwrap();
            assert!(queues[..3].iter().all(|queue| world.depth(queue) == 0 && world.dead(queue).is_empty()));
            let groups = by_group(&world.take(&queues[3]));
            for group in 0..3 {
                let expected: Vec<_> = (0..messages).filter(|i| i % 3 == group).map(|i| i.to_string()).collect();
                assert_eq!(groups[&format!("g{group}")], expected, "{engine:?} {way:?}");
            }
        }
    }
}

// Guarantee: pipes_and_filters 5.
#[test]
fn a_poison_message_becomes_a_dead_letter_where_it_failed_and_can_be_sent_again() {
    for way in Way::ALL {
        let world = World::new();
        let queues = ["0", "1", "2"].map(|name| world.queue(name));
        let first = world.filter("first", &queues[0]).output(way.to(&queues[1])).build().unwrap();
        let second = world.filter("second", &queues[1]).output(way.to(&queues[2])).build().unwrap();
        world.send(&queues[0], ["good", "bad"].map(Message::new));
        let is_fixed = RefCell::new(false);
        let passes = async |work: Work| Emit::one(Message::new(work.body.clone()));
        let parses = async |work: Work| match &work.body[..] {
            b"bad" if !*is_fixed.borrow() => Err("cannot be parsed"),
            body => Ok(Emit::one(Message::new(body.to_vec()))),
        };
        let both = || {
            let stop = || world.clock.sleep(S(100));
            world.run(async { tokio::try_join!(first.run(stop(), passes), second.run(stop(), parses)) }).unwrap();
        };
        both();
        assert_eq!((world.dead(&queues[0]), world.dead(&queues[1]).len()), (vec![], 1), "{way:?}");
        assert!(world.dead(&queues[1])[0].starts_with("exceeded max attempts: cannot be parsed"));
        let before = world.take(&queues[2]);
        *is_fixed.borrow_mut() = true;
        assert_eq!(world.run(steadfast::queue::redrive(&*queues[1], 10, |_| true)).unwrap(), 1);
        both();
        let after = world.take(&queues[2]);
        assert_eq!((texts(&before), texts(&after)), (vec!["good".into()], vec!["bad".into()]));
        let lineages: HashSet<_> = before.iter().chain(&after).map(|taken| taken.headers[LINEAGE].clone()).collect();
        assert!(lineages.len() == 2 && lineages.iter().all(|id| id.ends_with("/first.0/second.0")), "{lineages:?}");
    }
}

#[test]
fn a_handler_may_snooze_refuse_or_give_up_its_message_as_that_of_a_listener() {
    let world = World::new();
    let (input, output) = (world.queue("in"), world.queue("out"));
    let filter = world.filter("f", &input).output(output.clone()).build().unwrap();
    world.send(&input, ["early", "hopeless"].map(Message::new));
    let handler = async |work: Work| match (&work.body[..], work.deliveries) {
        (b"early", 1) => Disposition::snooze(S(5)).into(),
        (b"early", 2) => Emit::from(Disposition::refused(Some(S(1)), "away")),
        (b"early", _) => Emit::one(Message::new("late")),
        _ => Disposition::dead_letter("no use").into(),
    };
    world.run(filter.run(world.clock.sleep(S(60)), handler)).unwrap();
    let state = filter.listener().state();
    assert_eq!((state.snoozed, state.refused, state.dead_lettered, state.failed), (1, 1, 1, 0));
    assert_eq!((texts(&world.take(&output)), world.dead(&input).len()), (vec!["late".to_owned()], 1));
}
