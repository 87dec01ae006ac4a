//! Outputs without room: the pressure goes back to the input, and nothing is lost.
use std::{
    cell::Cell,
    future::{Ready, ready},
};

use steadfast::{
    pipes_and_filters::{Emit, Filter},
    port::PortErrorKind,
    queue::{Message, Queue},
    queue_listener::{Disposition, Work},
    testing::{PortAnswer, ScriptedPort},
};

use super::world::{MS, S, Way, World, texts};

/// A handler that counts its runs.
fn counted(runs: &Cell<u32>) -> impl Fn(Work) -> Ready<Emit> + '_ {
    |work: Work| {
        runs.set(runs.get() + 1);
        ready(Emit::one(Message::new(work.body.clone())))
    }
}

// Guarantee: pipes_and_filters 4.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn messages_for_a_full_output_are_held_for_an_hour_with_their_leases_and_cost_no_attempt() {
    for way in Way::ALL {
        let world = World::new();
        let (input, output) = (world.queue("in"), world.bounded("out", 1));
        let filter = world.filter("f", &input).output(way.to(&output)).build().unwrap();
        world.send(&output, [Message::new("full")]);
        world.send(&input, (0..200).map(|i| Message::new(i.to_string())));
        let runs = Cell::new(0);
        let hour = async {
            world.clock.sleep(S(3600)).await;
            let state = filter.listener().state();
            let held = if way == Way::Forwarded { state.held } else { state.in_flight };
            // At least as many as there are tasks, and at most one batch more.
            assert!((16..=48).contains(&held), "{way:?}: {held} held");
            // The rest waits where it is: the pressure reaches the senders, if the input is bounded.
            let left = input.peek(1000).await.unwrap();
            assert_eq!(left.len(), 200);
            assert!(left.iter().all(|left| left.deliveries <= 1 && left.attempts == 0), "{way:?}: {left:?}");
            assert!(u64::from(runs.get()) == held && held <= 48, "{way:?}: {} runs", runs.get());
            output.purge().await.unwrap();
        };
        let empties = async {
            hour.await;
            let mut taken = Vec::new();
            for _ in 0..20_000 {
                taken.extend(output.receive(steadfast::queue::Receive::new(1, S(30))).await.unwrap());
                output.purge().await.unwrap();
                world.clock.sleep(MS(100)).await;
                if taken.len() == 200 {
                    break;
                }
            }
            taken
        };
        let taken = world.run(async {
            let run = async { filter.run(std::future::pending(), counted(&runs)).await.unwrap() };
            tokio::select! { biased; taken = empties => taken, () = run => unreachable!() }
        });
        let mut numbers: Vec<u32> = texts(&taken).iter().map(|text| text.parse().unwrap()).collect();
        numbers.sort_unstable();
        assert_eq!((numbers, runs.get()), ((0..200).collect(), 200), "{way:?}");
        let state = filter.listener().state();
        assert_eq!((state.failed, state.leases_lost, state.dead_lettered), (0, 0, 0), "{way:?}");
    }
}

/// The pressure of the last queue reaches the first one, over two filters.
// Guarantee: pipes_and_filters 4.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn the_input_of_a_filter_that_is_held_up_fills_in_turn() {
    for way in Way::ALL {
        let world = World::new();
        let queues = [("0", 1000), ("1", 20), ("2", 5)].map(|(name, bound)| world.bounded(name, bound));
        world.send(&queues[0], (0..300).map(|i| Message::new(i.to_string())));
        let filter = |name: &str, at: usize| -> Filter {
            world.filter(name, &queues[at]).output(way.to(&queues[at + 1])).build().unwrap()
        };
        let (first, second) = (filter("first", 0), filter("second", 1));
        let handler = async |work: Work| Emit::one(Message::new(work.body.clone()));
        let stop = || world.clock.sleep(S(600));
        world.run(async { tokio::try_join!(first.run(stop(), handler), second.run(stop(), handler)) }).unwrap();
        let depths = [0, 1, 2].map(|at| world.depth(&queues[at]));
        assert_eq!((depths.iter().sum::<u64>(), depths[1], depths[2]), (300, 20, 5), "{way:?}: {depths:?}");
    }
}

#[test]
fn the_slowest_filter_of_a_chain_is_warned_of_and_slows_those_before_it() {
    let world = World::new();
    let queues = [("0", 1000), ("1", 20), ("2", 1000)].map(|(name, bound)| world.bounded(name, bound));
    let filter = |name: &str, at: usize| {
        let config = World::config().tasks(1, 4);
        world.filter_with(name, &queues[at], config).output(queues[at + 1].clone()).build().unwrap()
    };
    let (quick, slow) = (filter("quick", 0), filter("slow", 1));
    let warns = |filter: &Filter| {
        let warnings = filter.explain().warnings().join("; ");
        (warnings.contains("because an output is full"), warnings.contains("all 4 tasks are busy"))
    };
    assert_eq!((warns(&quick), warns(&slow)), ((false, false), (false, false)));
    world.send(&queues[0], (0..200).map(|i| Message::new(i.to_string())));
    let passes = async |work: Work| Emit::one(Message::new(work.body.clone()));
    let slowly = async |work: Work| {
        world.clock.sleep(S(10)).await;
        Emit::one(Message::new(work.body.clone()))
    };
    let watch = async {
        world.clock.sleep(S(125)).await;
        let seen = (warns(&quick), warns(&slow));
        world.clock.sleep(S(900)).await;
        (seen, (warns(&quick), warns(&slow)))
    };
    let (stop, ends) = (world.clock.sleep(S(1100)), world.clock.sleep(S(1100)));
    let (seen, ran) = world.run(async {
        tokio::join!(watch, async { tokio::try_join!(quick.run(stop, passes), slow.run(ends, slowly)) })
    });
    ran.unwrap();
    assert_eq!(seen, (((true, false), (false, true)), ((false, false), (false, false))));
    assert_eq!(queues.each_ref().map(|queue| world.depth(queue)), [0, 0, 200]);
}

/// Messages for the other output come through, until as many as there are tasks wait for the full one.
// Guarantee: pipes_and_filters 4.
#[test]
fn one_full_output_of_several_holds_its_own_messages_and_loses_none() {
    for way in Way::ALL {
        let world = World::new();
        let (input, even, odd) = (world.queue("in"), world.queue("even"), world.bounded("odd", 1));
        let filter = world.filter("f", &input).output(way.to(&even)).named_output("odd", way.to(&odd)).build().unwrap();
        world.send(&input, (0..20).map(|i| Message::new(i.to_string())));
        let handler = async |work: Work| {
            let message = Message::new(work.body.clone());
            if work.body.last().is_some_and(|digit| digit % 2 == 1) {
                Emit::to("odd", message)
            } else {
                Emit::one(message)
            }
        };
        let later = async {
            world.clock.sleep(S(60)).await;
            assert_eq!((even.depth().await.unwrap().total(), odd.depth().await.unwrap().total()), (10, 1), "{way:?}");
            for _ in 0..9 {
                odd.purge().await.unwrap();
                world.clock.sleep(S(10)).await;
            }
        };
        let ((), ran) = world.run(async { tokio::join!(later, filter.run(world.clock.sleep(S(200)), handler)) });
        ran.unwrap();
        assert_eq!((world.depth(&input), world.depth(&odd), filter.listener().state().handled), (0, 1, 20), "{way:?}");
    }
}

/// A message with two results, of which one has no room: neither is sent twice.
// Guarantee: pipes_and_filters 3, 4.
#[test]
fn results_that_were_sent_before_another_output_was_full_are_not_sent_again() {
    for way in Way::ALL {
        let world = World::new();
        let (input, free, full) = (world.queue("in"), world.queue("free"), world.bounded("full", 1));
        let filter =
            world.filter("f", &input).output(way.to(&free)).named_output("full", way.to(&full)).build().unwrap();
        world.send(&full, [Message::new("full")]);
        world.send(&input, [Message::new("a")]);
        let handler = async |_: Work| Emit::one(Message::new("1")).and(Emit::to("full", Message::new("2")));
        let later = async {
            // Longer than the window of the queue, and than the time limit of the handler.
            world.clock.sleep(S(900)).await;
            full.purge().await.unwrap();
        };
        let ((), ran) = world.run(async { tokio::join!(later, filter.run(world.clock.sleep(S(1000)), handler)) });
        ran.unwrap();
        let sent = (texts(&world.take(&free)), texts(&world.take(&full)));
        assert_eq!(sent, (vec!["1".to_owned()], vec!["2".to_owned()]), "{way:?}");
        assert_eq!(filter.listener().state().failed, 0);
    }
}

/// Its lease would end long after the filter, and count an expiry.
// Guarantee: pipes_and_filters 4.
#[test]
fn a_filter_that_stops_releases_what_it_holds() {
    for way in Way::ALL {
        let world = World::new();
        let (input, output) = (world.queue("in"), world.bounded("out", 1));
        let filter = world.filter("f", &input).output(way.to(&output)).build().unwrap();
        world.send(&output, [Message::new("full")]);
        world.send(&input, (0..100).map(|i| Message::new(i.to_string())));
        let runs = Cell::new(0);
        world.run(filter.run(world.clock.sleep(S(60)), counted(&runs))).unwrap();
        world.time.advance(S(2));
        let left = world.run(input.peek(1000)).unwrap();
        assert!(left.len() == 100 && left.iter().all(|left| !left.hidden && left.attempts == 0), "{way:?}: {left:?}");
        assert_eq!(filter.listener().state().held, 0);
    }
}

/// Its work is done: the time limit is that of the handler alone.
// Guarantee: pipes_and_filters 4.
#[test]
fn the_time_limit_of_the_handler_is_not_that_of_a_full_output() {
    let world = World::new();
    let (input, output) = (world.queue("in"), world.bounded("out", 1));
    let filter = world.filter("f", &input).output(Way::Sent.to(&output)).build().unwrap();
    world.send(&output, [Message::new("full")]);
    world.send(&input, ["late", "slow"].map(Message::new));
    let handler = async |work: Work| {
        if work.body == "slow" {
            world.clock.sleep(S(3600)).await;
        }
        work.cancelled().await; // after 20 s; the margin is left
        Emit::one(Message::new(work.body.clone()))
    };
    let later = async {
        world.clock.sleep(S(120)).await;
        output.purge().await.unwrap();
        // The slow one fails each time: five attempts of 20 s and the margin.
        world.clock.sleep(S(60)).await;
    };
    let ((), ran) = world.run(async { tokio::join!(later, filter.run(world.clock.sleep(S(180)), handler)) });
    ran.unwrap();
    assert_eq!(texts(&world.take(&output)), ["late"]);
    let dead = world.dead(&input);
    assert!(dead.len() == 1 && dead[0].contains("the handler timed out"), "{dead:?}");
}

/// A server without memory refuses each request that forwards, as Redis does at its `maxmemory`: as a whole, and not each
/// forward.
// Guarantee: pipes_and_filters 4.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn messages_on_a_full_server_are_held_with_their_leases_or_released_by_a_stop() {
    for stops in [false, true] {
        let world = World::new();
        let (input, output) = (world.queue("in"), world.queue("out"));
        let server = ScriptedPort::new(&world.clock);
        server.by(|call| match call.method == "settle" && call.target.contains("forward") {
            true => PortAnswer::fail(PortErrorKind::Full),
            false => PortAnswer::pass(),
        });
        let filter = world.filter("f", &server.queue(input.clone())).output(output.clone()).build().unwrap();
        world.send(&input, (0..100).map(|i| Message::new(i.to_string())));
        let runs = Cell::new(0);
        let later = async {
            // Ten times the window of the queue.
            world.clock.sleep(S(300)).await;
            let (left, held) = (input.peek(1000).await.unwrap(), filter.listener().state().held);
            assert!(left.iter().all(|left| (left.deliveries <= 1) && left.attempts == 0), "{left:?}");
            assert!((16..=48).contains(&held) && u64::from(runs.get()) == held, "{held} held, {} runs", runs.get());
            if !stops {
                server.always("", PortAnswer::pass());
            }
        };
        let stop = world.clock.sleep(if stops { S(301) } else { S(400) });
        world.run(async { tokio::join!(later, filter.run(stop, counted(&runs))) }).1.unwrap();
        world.time.advance(S(2));
        let left = world.run(input.peek(1000)).unwrap();
        assert!(left.iter().all(|left| !left.hidden && left.expiries == 0), "{left:?}");
        let expected = if stops { (0, 100, 0) } else { (100, 0, 0) };
        assert_eq!((world.depth(&output), left.len(), filter.listener().state().leases_lost), expected);
    }
}

#[test]
fn a_paused_filter_keeps_what_it_holds_until_there_is_room() {
    let world = World::new();
    let (input, output) = (world.queue("in"), world.bounded("out", 1));
    let filter = world.filter("f", &input).output(output.clone()).build().unwrap();
    world.send(&output, [Message::new("full")]);
    world.send(&input, [Message::new("a")]);
    let handler = async |work: Work| match work.deliveries {
        1 => Emit::one(Message::new(work.body.clone())),
        _ => Disposition::dead_letter("delivered twice").into(),
    };
    let later = async {
        world.clock.sleep(S(10)).await;
        filter.listener().pause();
        world.clock.sleep(S(60)).await;
        output.purge().await.unwrap();
        filter.listener().drain().await;
        assert_eq!(output.depth().await.unwrap().total(), 1);
    };
    let ((), ran) = world.run(async { tokio::join!(later, filter.run(world.clock.sleep(S(200)), handler)) });
    ran.unwrap();
    assert_eq!((texts(&world.take(&output)), world.depth(&input)), (vec!["a".to_owned()], 0));
}
