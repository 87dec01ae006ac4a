//! Hostile messages, cycles, and outputs that fail one by one.
use std::{
    cell::Cell,
    collections::HashSet,
    future::{Ready, pending, ready},
    sync::{Arc, Mutex},
};

use steadfast::{
    pipes_and_filters::{Emit, Filter, FilterEvent, LINEAGE},
    port::PortErrorKind,
    queue::{Address, Message, Queue, QueueError, QueueFuture, Receipt, Settle},
    queue_listener::Work,
    testing::{PortAnswer, ScriptedPort},
    time::Clock,
};

use super::world::{MS, S, Way, World, text, texts};
use crate::engines::Engine;

fn same(work: Work) -> Ready<Emit> {
    ready(Emit::one(Message::new(work.body.clone())))
}

fn run(world: &World, filter: &Filter, seconds: u64) {
    world.run(filter.run(world.clock.sleep(S(seconds)), same)).unwrap();
}

#[test]
fn hostile_headers_neither_stop_a_filter_nor_reach_another_message() {
    let lineages = ["", " ", "\0", "a\nb", "ä", "/", "a/f.0", &"x".repeat(128), &"x".repeat(129), &"y".repeat(100_000)];
    let times = ["", "-1", "1e9", "99999999999999999999999", "18446744073709551615", "soon"];
    for way in Way::ALL {
        let world = World::new();
        let (input, output) = (world.queue("in"), world.queue("out"));
        let filter = world.filter("f", &input).output(way.to(&output)).build().unwrap();
        for (i, lineage) in lineages.iter().enumerate() {
            world.send(&input, [Message::new(i.to_string()).header(LINEAGE, *lineage)]);
        }
        for (i, time) in times.iter().enumerate() {
            world.send(&input, [Message::new(format!("t{i}")).header("expires-after", *time)]);
        }
        run(&world, &filter, 10);
        let taken = world.take(&output);
        assert_eq!((taken.len(), world.dead(&input)), (lineages.len() + times.len(), vec![]), "{way:?}");
        let ids: HashSet<_> = taken.iter().map(|taken| taken.headers[LINEAGE].clone()).collect();
        assert_eq!(ids.len(), taken.len());
        assert!(ids.iter().all(|id| id.len() <= 128 && id.bytes().all(|byte| byte.is_ascii_graphic())), "{ids:?}");
        for taken in taken.iter().filter(|taken| taken.body.starts_with(b"t")) {
            // A time that is none is passed on as it is.
            let (time, i) = (&taken.headers["expires-after"], text(&taken.body)[1..].parse::<usize>().unwrap());
            assert!(time == times[i] || i == 4, "{time}");
        }
    }
}

// Guarantee: pipes_and_filters 1.
#[test]
fn a_message_in_a_cycle_keeps_an_id_of_its_own_in_each_round() {
    for way in Way::ALL {
        let world = World::new();
        let (a, b, out) = (world.queue("a"), world.queue("b"), world.queue("out"));
        let there = world.filter("there", &a).output(way.to(&b)).build().unwrap();
        let back = world.filter("back", &b).output(way.to(&a)).named_output("out", way.to(&out)).build().unwrap();
        let seen = Mutex::new(HashSet::new());
        let rounds = Cell::new(0);
        let goes = async |work: Work| {
            rounds.set(rounds.get() + 1);
            assert!(seen.lock().unwrap().insert(work.headers.get(LINEAGE).cloned()));
            let message = Message::new(work.body.clone());
            if rounds.get() < 200 { Emit::one(message) } else { Emit::to("out", message) }
        };
        world.send(&a, [Message::new("a")]);
        let stop = || world.clock.sleep(S(30));
        world.run(async { tokio::try_join!(there.run(stop(), same), back.run(stop(), goes)) }).unwrap();
        assert_eq!((rounds.get(), world.take(&out).len(), world.depth(&a), world.depth(&b)), (200, 1, 0, 0), "{way:?}");
    }
}

/// Returns an output of another engine whose first sends have these answers.
fn failing(queue: Arc<dyn Queue>, answers: impl IntoIterator<Item = PortAnswer>) -> Arc<dyn Queue> {
    let (script, answers) = (ScriptedPort::elsewhere(&Clock::tokio()), Vec::from_iter(answers));
    script.by(move |call| {
        let answer = answers.get(call.number - 1).filter(|_| call.method == "send");
        answer.copied().unwrap_or(PortAnswer::pass())
    });
    script.queue(queue)
}

// Guarantee: pipes_and_filters 3, 4.
#[test]
fn outputs_that_fail_one_by_one_receive_each_result_once() {
    use PortErrorKind::{Full, Throttled, TimedOut, Unavailable};
    let world = World::new();
    let input = world.queue("in");
    let queues = ["x", "y", "z"].map(|name| world.queue(name));
    let outputs = queues.clone().map(|queue| {
        let (fail, lose) = (PortAnswer::fail, PortAnswer::lose);
        failing(queue, [lose(Unavailable), fail(Throttled), fail(Full), lose(TimedOut), fail(Unavailable)])
    });
    let mut filter = world.filter("f", &input);
    for (name, queue) in ["x", "y", "z"].into_iter().zip(&outputs) {
        filter = filter.named_output(name, queue.clone());
    }
    let filter = filter.build().unwrap();
    let mut events = filter.events();
    world.send(&input, [Message::new("a")]);
    let handler = async |_: Work| {
        ["z", "x", "y"].into_iter().map(|to| Emit::to(to, Message::new(to))).fold(Emit::none(), Emit::and)
    };
    world.run(filter.run(world.clock.sleep(S(100)), handler)).unwrap();
    assert_eq!(queues.each_ref().map(|queue| texts(&world.take(queue)).concat()), ["x", "y", "z"]);
    let mut failed = Vec::new();
    while let Some(event) = events.try_recv().unwrap() {
        let FilterEvent::SendFailed { output, .. } = event.what else { panic!("{event:?}") };
        failed.push(output);
    }
    assert_eq!(failed.concat(), ["x", "y", "z"].map(|name| name.repeat(5)).concat());
    assert_eq!((filter.listener().state().handled, filter.listener().state().failed), (1, 0));
}

// Guarantee: pipes_and_filters 5.
#[test]
fn results_that_an_output_refuses_for_good_make_their_message_a_dead_letter() {
    let world = World::new();
    let (input, output) = (world.queue("in"), world.queue("out"));
    let denied = [PortAnswer::fail(PortErrorKind::Denied); 5];
    let filter = world.filter("f", &input).output(failing(output, denied)).build().unwrap();
    world.send(&input, [Message::new("a")]);
    run(&world, &filter, 100);
    let dead = world.dead(&input);
    assert!(dead.len() == 1 && dead[0].contains("the output `` refused the results: "), "{dead:?}");
}

#[test]
fn results_for_an_output_that_does_not_exist_are_failed_attempts() {
    let world = World::new();
    let (input, output) = (world.queue("in"), world.queue("out"));
    let filter = world.filter("f", &input).named_output("odd", output.clone()).build().unwrap();
    world.send(&input, ["one", "even"].map(Message::new));
    let handler = async |work: Work| match &work.body[..] {
        b"one" => Emit::one(Message::new("1")),
        _ => Emit::to("odd", Message::new("1")).and(Emit::to("even", Message::new("2"))),
    };
    world.run(filter.run(world.clock.sleep(S(100)), handler)).unwrap();
    let mut dead = world.dead(&input);
    dead.sort();
    assert!(dead.len() == 2 && dead[0].contains("no output ``") && dead[1].contains("no output `even`"), "{dead:?}");
    assert_eq!(world.depth(&output), 0, "all results of a message or none");
}

/// It was sent, its process died, and all processes were away for longer than the window.
// Guarantee: pipes_and_filters 3.
#[test]
fn a_result_that_may_have_been_sent_long_ago_is_sent_and_reported() {
    for (away, sent) in [(10, 1), (600, 2)] {
        let world = World::new();
        let (input, output) = (world.queue("in"), world.queue("out"));
        world.send(&input, [Message::new("a")]);
        let filter = |input: &Arc<dyn Queue>| world.filter("f", input).output(Way::Sent.to(&output)).build().unwrap();
        let unsettled = ScriptedPort::new(&world.clock);
        unsettled.always("settle", PortAnswer::hang());
        let dies = filter(&unsettled.queue(input.clone()));
        world.run(async {
            let killed = world.clock.sleep(MS(100));
            tokio::select! { biased; () = killed => {}, ran = dies.run(pending(), same) => ran.unwrap() }
        });
        assert_eq!(world.depth(&output), 1);
        world.time.advance(S(away));
        let lives = filter(&input);
        let mut events = lives.events();
        run(&world, &lives, 30);
        let taken = world.take(&output);
        let lineages: HashSet<_> = taken.iter().map(|taken| &taken.headers[LINEAGE]).collect();
        assert_eq!((taken.len(), lineages.len(), world.depth(&input)), (sent, 1, 0), "{away} s later");
        let event = events.try_recv().unwrap().map(|event| event.what);
        assert_eq!(matches!(event, Some(FilterEvent::MayRepeat { .. })), sent == 2, "{event:?}");
    }
}

/// The way of results is one of the other engine's, and that of a queue which is not what it was.
#[test]
fn a_forward_that_the_engine_refuses_after_all_is_a_failed_attempt() {
    /// States an address of another queue's engine.
    #[derive(Debug)]
    struct Liar(Arc<dyn Queue>, Address);
    impl Queue for Liar {
        forward_queue! { 0: capabilities, identity, send, receive, extend, depth, peek, purge, dead_letters }
        fn address(&self) -> Option<Address> {
            Some(self.1.clone())
        }
        fn settle<'a>(&'a self, settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>> {
            self.0.settle(settlements)
        }
    }
    let (world, other) = (World::on(Engine::Sqlite), World::new());
    let (input, output) = (world.queue("in"), world.queue("out"));
    let engine = format!("sqlite-{}", input.identity().split('-').nth(1).unwrap());
    let foreign = Liar(other.queue("out"), Address::new("elsewhere").of_engine(engine));
    let config = World::config().tasks(1, 1).max_attempts(2);
    let filter = world.filter_with("f", &input, config).output(Arc::new(foreign)).named_output("out", output.clone());
    let filter = filter.build().unwrap();
    world.send(&input, [Message::new("a")]);
    let handler = async |_: Work| Emit::to("out", Message::new("1")).and(Emit::one(Message::new("2")));
    world.run(filter.run(world.clock.sleep(S(20)), handler)).unwrap();
    assert!(world.dead(&input)[0].contains("the forward was refused: cannot forward to `elsewhere`"));
    assert_eq!(world.depth(&output), 0);
}

/// Two filters of one name on two queues: the ids of their messages begin with the queue.
// Guarantee: pipes_and_filters 1.
#[test]
fn messages_of_two_queues_with_one_id_are_not_taken_for_each_other() {
    let world = World::new();
    let (east, west, output) = (world.queue("east"), world.queue("west"), world.queue("out"));
    for (input, body) in [(&east, "e"), (&west, "w")] {
        world.send(input, [Message::new(body)]);
        let filter = world.filter("parse", input).output(Way::Sent.to(&output)).build().unwrap();
        run(&world, &filter, 5);
    }
    assert_eq!(texts(&world.take(&output)), ["e", "w"]);
}

#[test]
fn a_message_that_kills_its_process_becomes_a_dead_letter_and_others_come_through() {
    for way in Way::ALL {
        let world = World::new();
        let (input, output) = (world.queue("in"), world.queue("out"));
        world.send(&input, ["a", "bad", "b"].map(Message::new));
        for _ in 0..8 {
            let filter = world.filter("f", &input).output(way.to(&output)).build().unwrap();
            let dies = Cell::new(false);
            let handler = async |work: Work| {
                if work.body == "bad" {
                    dies.set(true);
                    pending::<()>().await;
                }
                Emit::one(Message::new(work.body.clone()))
            };
            world.run(async {
                let killed = async {
                    for _ in 0..300 {
                        world.clock.sleep(MS(100)).await;
                        if dies.get() {
                            break;
                        }
                    }
                };
                tokio::select! { biased; () = killed => {}, ran = filter.run(pending(), handler) => ran.unwrap() }
            });
        }
        let mut came = texts(&world.take(&output));
        came.sort();
        assert_eq!((came, world.dead(&input).len()), (vec!["a".to_owned(), "b".to_owned()], 1), "{way:?}");
    }
}
