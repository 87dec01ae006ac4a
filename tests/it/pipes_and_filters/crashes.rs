//! Processes of a chain that end at any request, and requests that fail.
use std::{collections::BTreeMap, sync::Arc};

use steadfast::{
    pipes_and_filters::{Emit, LINEAGE},
    queue::{Message, Queue},
    queue_listener::Work,
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
};

use super::world::{S, Way, World, by_group};
use crate::engines::Engine;

/// Runs a chain of three filters in a process that ends somewhere, and then in another one.
fn chain(engine: Engine, way: Way, process: &CrashingProcess) {
    let world = World::on(engine);
    let queues = ["0", "1", "2", "3"].map(|name| world.queue(name));
    world.send(&queues[0], ["a", "b"].map(|body| Message::new(body).group("g")));
    // The second filter doubles.
    let handler = |copies: usize| {
        move |work: Work| async move { Emit::many((0..copies).map(|_| Message::new(work.body.clone()))) }
    };
    let run = async |wrap: &dyn Fn(Arc<dyn Queue>) -> Arc<dyn Queue>, time: u64| {
        let filters = [0, 1, 2].map(|at| {
            let (to, config) = (wrap(way.to(&queues[at + 1])), World::config().max_tasks(1));
            world.filter_with(&format!("f{at}"), &wrap(queues[at].clone()), config).output(to).build().unwrap()
        });
        // No polls of empty queues after the end.
        let stop = async || {
            for _ in 0..time {
                if filters[2].listener().state().handled >= 4 {
                    break;
                }
                world.clock.sleep(S(1)).await;
            }
        };
        tokio::try_join!(
            filters[0].run(stop(), handler(1)),
            filters[1].run(stop(), handler(2)),
            filters[2].run(stop(), handler(1)),
        )
        .unwrap();
    };
    world.run(process.run(async { run(&|queue| process.queue(queue), 50).await }));
    world.run(run(&|queue| queue, 100));
    let taken = world.take(&queues[3]);
    assert_eq!(by_group(&taken), BTreeMap::from([("g".into(), ["a", "a", "b", "b"].map(str::to_owned).into())]));
    let mut lineages: Vec<_> = taken.iter().map(|taken| &taken.headers[LINEAGE]).collect();
    lineages.dedup();
    assert_eq!(lineages.len(), 4);
    assert!(queues[..3].iter().all(|queue| world.depth(queue) == 0 && world.dead(queue).is_empty()));
}

// Guarantee: pipes_and_filters 2, 3.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn a_chain_whose_process_crashes_at_any_request_delivers_each_message_once_and_in_order() {
    for engine in Engine::ALL {
        for way in Way::ALL {
            let requests = crash_at_every_write(|process| chain(engine, way, process));
            // Three filters, each with two deliveries at least.
            assert!(requests >= 12, "{requests}");
        }
    }
}

// Guarantee: pipes_and_filters 2, 3.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn a_chain_delivers_each_message_once_and_in_order_whichever_request_fails() {
    for engine in Engine::ALL {
        for way in Way::ALL {
            fail_at_every_write(|process| chain(engine, way, process));
        }
    }
}
