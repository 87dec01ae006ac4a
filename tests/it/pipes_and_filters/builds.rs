//! Filters that are refused when they are built.
use std::sync::Arc;

use steadfast::{
    backend::sqlite::{Sqlite, SqliteConfig},
    config::ConfigError,
    pipes_and_filters::Filter,
    queue::InMemoryQueue,
    queue_listener::IdleConfig,
};

use super::world::{MS, S, Way, World, elsewhere};
use crate::engines::Engine;

fn refused(built: Result<Filter, ConfigError>) -> String {
    built.unwrap_err().to_string()
}

// Guarantee: pipes_and_filters 6.
#[test]
fn the_input_as_output_no_output_and_two_outputs_of_one_name_are_refused() {
    for engine in Engine::ALL {
        let world = World::on(engine);
        let (input, output) = (world.queue("in"), world.queue("out"));
        let filter = || world.filter("f", &input);
        let (forwards, sends) = (input.clone(), Way::Sent.to(&input));
        for itself in [forwards, sends] {
            let text = refused(filter().output(itself).build());
            assert!(text.contains("`output`") && text.contains("must be another queue than the input"), "{text}");
        }
        assert!(refused(filter().build()).contains("`output`: must be given at least once"));
        let twice = [filter().output(output.clone()).output(world.queue("b")), {
            filter().named_output("odd", output.clone()).named_output("odd", output.clone())
        }];
        for twice in twice {
            assert!(refused(twice.build()).contains("`output`: must have a name of its own"));
        }
        assert!(refused(filter().named_output("", output.clone()).build()).contains("must not have an empty name"));
        filter().output(output.clone()).named_output("odd", output.clone()).build().unwrap();
        // The dead letters of the input are another queue.
        filter().output(input.dead_letters().unwrap()).build().unwrap();
    }
}

#[test]
fn a_name_that_makes_lineage_ids_ambiguous_is_refused() {
    let world = World::new();
    let (input, output) = (world.queue("in"), world.queue("out"));
    for name in ["", "a/b", "a b", "a\n", "ä", &"x".repeat(65)] {
        let text = refused(world.filter(name, &input).output(output.clone()).build());
        assert!(text.contains("`name`: must"), "{text}");
    }
    world.filter(&"x".repeat(64), &input).output(output).build().unwrap();
}

// Guarantee: pipes_and_filters 3.
#[test]
fn an_output_elsewhere_must_recognize_repeated_messages_for_longer_than_they_are_delivered() {
    let world = World::new();
    let (input, output) = (world.queue("in"), Way::Sent.to(&world.queue("out")));
    let longest = World::config().longest_redelivery().unwrap();
    let window = |window| {
        let queue = InMemoryQueue::builder("out").clock(&world.clock).deduplicating_for(window).build();
        world.filter("f", &input).output(elsewhere(Arc::new(queue)))
    };
    let text = refused(window(longest).build());
    assert!(text.contains("recognizes repeated messages for") && text.contains("allow_duplicates"), "{text}");
    window(longest + S(1)).build().unwrap();
    window(longest).allow_duplicates().build().unwrap();
    // The defaults: two hours of attempts, and a handler without a limit.
    let by_default = || Filter::builder("f", input.clone(), Default::default());
    assert!(refused(by_default().output(output.clone()).build()).contains("`handler_timeout`"));
    by_default().output(output).allow_duplicates().build().unwrap();
    // Forwarded results need no window.
    by_default().output(world.queue("out")).build().unwrap();
}

/// Addresses of both have a text.
// Guarantee: pipes_and_filters 3.
#[test]
fn queues_of_two_files_or_of_memory_and_a_file_are_of_two_engines() {
    let (world, other) = (World::on(Engine::Sqlite), World::on(Engine::Sqlite));
    let (input, memory) = (world.queue("in"), World::new().queue("out"));
    let defaults = |output| Filter::builder("f", input.clone(), Default::default()).output(output);
    for foreign in [other.queue("out"), memory] {
        assert!(refused(defaults(foreign).build()).contains("another engine"));
    }
    defaults(world.queue("out")).build().unwrap();
    // Another handle of the same file.
    let folder = tempfile::tempdir().unwrap();
    let open = || Sqlite::open(SqliteConfig::at(folder.path().join("a.db"))).unwrap();
    let (one, another) = (open().queue("in").unwrap(), open().queue("out").unwrap());
    Filter::builder("f", Arc::new(one), Default::default()).output(Arc::new(another)).build().unwrap();
}

#[test]
fn a_filter_explains_its_outputs_and_warns_of_duplicates() {
    let world = World::new();
    let (input, output) = (world.queue("in"), world.queue("out"));
    let filter = world.filter("f", &input).output(output.clone()).named_output("odd", Way::Sent.to(&output));
    let text = filter.build().unwrap().explain().to_string();
    assert!(text.contains("the output in the step that ends the message; to `odd` before the message ends"), "{text}");
    assert!(!text.contains("duplicates are allowed"), "{text}");
    let risky = Filter::builder("f", input, Default::default()).output(Way::Sent.to(&output)).allow_duplicates();
    let warnings = risky.build().unwrap().explain().warnings().join("\n");
    assert!(warnings.contains("duplicates are allowed") && warnings.contains("`lineage`"), "{warnings}");
}

/// Regression: a message of a process that died was delivered again after the window, at the next poll of another one.
// Guarantee: pipes_and_filters 3.
#[test]
fn the_delays_between_polls_of_the_input_are_a_part_of_redeliveries() {
    let (world, elsewhere) = (World::on(Engine::Sqlite), World::new());
    let (input, output) = (world.queue("in"), elsewhere.queue("out"));
    let filter = |idle| {
        let config = World::config().idle(IdleConfig::between(MS(100), idle));
        world.filter_with("f", &input, config).output(output.clone()).build()
    };
    assert!(refused(filter(S(60))).contains("deliver a message again for up to"));
    filter(S(5)).unwrap();
    // A queue in memory wakes its receivers.
    world.filter("f", &elsewhere.queue("in")).output(Way::Sent.to(&output)).build().unwrap();
}
