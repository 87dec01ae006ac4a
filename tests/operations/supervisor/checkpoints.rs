//! Checkpoints: what the next instance goes on from, in any process.
use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use steadfast::{
    entropy::Entropy,
    store::{InMemoryStore, Store},
    supervisor::{CheckpointError, Child, ChildContext, Restart, Supervisor, SupervisorConfig},
    testing::{crash_at_every_write, drop_at_every_await, fail_at_every_write},
};

use super::{builder, steady};
use crate::{
    engines::Engine,
    moody_store::{Mode, Moody},
    world::{MS, S, World},
};

const STEPS: u64 = 50;
const EVERY: u64 = 10;

/// Counts of the steps that were done.
#[derive(Default)]
struct Done(Vec<AtomicU64>);

impl Done {
    fn new() -> Arc<Self> {
        Arc::new(Self((0..STEPS).map(|_| AtomicU64::new(0)).collect()))
    }
}

fn number(bytes: Option<Bytes>) -> u64 {
    bytes.map_or(0, |bytes| u64::from_be_bytes(bytes[..].try_into().unwrap()))
}

/// Does the steps that are left, and saves every tenth.
async fn work(cx: ChildContext, done: Arc<Done>) -> Result<(), CheckpointError> {
    let from = number(cx.checkpoint().await?);
    for step in from..STEPS {
        done.0[step as usize].fetch_add(1, SeqCst);
        if (step + 1) % EVERY == 0 {
            cx.save_checkpoint((step + 1).to_be_bytes().to_vec()).await?;
        }
    }
    Ok(())
}

fn worker(world: &World, seed: u64, store: Arc<dyn Store>, done: &Arc<Done>) -> Supervisor {
    let done = done.clone();
    let child = Child::new("steps", move |cx| work(cx, done.clone())).restart(Restart::Transient);
    let built = builder(world, steady(MS(100))).entropy(&Entropy::from_seed(seed)).checkpoints(store);
    built.child(child).build().unwrap()
}

// Guarantee: supervisor 6.
#[test]
fn a_process_that_crashes_at_any_request_repeats_no_more_steps_than_lie_between_two_saves() {
    for engine in Engine::ALL {
        let requests = crash_at_every_write(|process| {
            let engine = engine.world();
            let (world, done, store) = (World::at(&engine.time), Done::new(), engine.store.clone());
            let first = worker(&world, 1, process.store(store.clone()), &done);
            let run = process.run(first.run(pending()));
            // A process that crashed hangs: its tasks end with it.
            let _ = world.run(S(120), run);
            let second = worker(&world, 2, store, &done);
            world.run(S(120), second.run(pending())).expect("the rest is done").unwrap();
            let repeated: u64 = done.0.iter().map(|step| step.load(SeqCst).saturating_sub(1)).sum();
            assert!(done.0.iter().all(|step| step.load(SeqCst) > 0), "a step is lost");
            assert!(repeated <= EVERY, "{repeated} steps are repeated");
        });
        assert!(requests >= 5, "{requests}");
    }
}

// Guarantee: supervisor 6.
#[test]
fn a_save_of_a_replaced_instance_is_superseded() {
    let world = World::new();
    let store: Arc<dyn Store> = Arc::new(InMemoryStore::builder().clock(&world.clock).build());
    let contexts = Arc::new(std::sync::Mutex::new(Vec::new()));
    let process = |seed| {
        let contexts = contexts.clone();
        let child = Child::new("steps", move |cx: ChildContext| {
            contexts.lock().unwrap().push(cx);
            pending::<Result<(), String>>()
        });
        let built = builder(&world, SupervisorConfig::default()).entropy(&Entropy::from_seed(seed));
        built.checkpoints(store.clone()).child(child).build().unwrap()
    };
    let (one, other) = (process(1), process(2));
    let mut runs = [&one, &other].map(|process| Box::pin(process.run(pending())));
    for run in &mut runs {
        world.run(MS(1), run.as_mut());
    }
    let contexts = contexts.lock().unwrap().clone();
    let (earlier, later) = (&contexts[0], &contexts[1]);
    world.run(S(1), async {
        assert_eq!(earlier.checkpoint().await.unwrap(), None);
        earlier.save_checkpoint("1").await.unwrap();
        assert_eq!(later.checkpoint().await.unwrap().as_deref(), Some(&b"1"[..]));
        let error = earlier.save_checkpoint("2").await.unwrap_err();
        assert!(matches!(error, CheckpointError::Superseded), "{error}");
        // Also when it asks again.
        let error = earlier.checkpoint().await.unwrap_err();
        assert!(matches!(error, CheckpointError::Superseded), "{error}");
        later.save_checkpoint("3").await.unwrap();
        assert_eq!(later.checkpoint().await.unwrap().as_deref(), Some(&b"3"[..]));
    });
}

// Guarantee: supervisor 6.
#[test]
fn an_instance_that_has_ended_takes_no_checkpoint_over() {
    let world = World::new();
    let store: Arc<dyn Store> = Arc::new(InMemoryStore::builder().clock(&world.clock).build());
    let contexts = Arc::new(std::sync::Mutex::new(Vec::new()));
    let kept = contexts.clone();
    let child = Child::new("steps", move |cx: ChildContext| {
        kept.lock().unwrap().push(cx.clone());
        async move { if cx.instance() == 1 { Err("broken".to_owned()) } else { pending().await } }
    });
    let supervisor = builder(&world, steady(MS(100))).checkpoints(store).child(child).build().unwrap();
    let script = async {
        world.clock.sleep(S(1)).await;
        let contexts = contexts.lock().unwrap().clone();
        let (earlier, later) = (&contexts[0], &contexts[1]);
        later.save_checkpoint("new").await.unwrap();
        let error = earlier.save_checkpoint("old").await.unwrap_err();
        assert!(matches!(error, CheckpointError::Superseded), "{error}");
        assert_eq!(later.checkpoint().await.unwrap().as_deref(), Some(&b"new"[..]));
    };
    world.run(S(60), async { futures::future::select(Box::pin(script), Box::pin(supervisor.run(pending()))).await });
}

// Guarantee: supervisor 6.
#[test]
fn a_save_whose_reply_is_lost_is_this_instances_own_when_it_saves_again() {
    let requests = fail_at_every_write(|process| {
        let world = World::new();
        let store: Arc<dyn Store> = Arc::new(InMemoryStore::builder().clock(&world.clock).build());
        let child = Child::new("steps", |cx: ChildContext| async move {
            for step in 1u64..=3 {
                let mut tries = 0;
                while let Err(error) = cx.save_checkpoint(step.to_be_bytes().to_vec()).await {
                    tries += 1;
                    assert!(matches!(error, CheckpointError::Store(_)) && tries < 5, "step {step}: {error}");
                }
            }
            Ok::<_, String>(())
        });
        let built = builder(&world, SupervisorConfig::default().max_restarts(0)).checkpoints(process.store(store));
        let supervisor = built.child(child.restart(Restart::Transient)).build().unwrap();
        let run = process.run(supervisor.run(pending()));
        world.run(S(120), run).expect("it ends").expect("it does not crash").unwrap();
    });
    assert!(requests >= 4, "{requests}");
}

#[test]
fn a_save_or_a_read_dropped_at_every_await_is_made_or_not_and_a_later_one_succeeds() {
    let world = World::new();
    let kept = Arc::new(std::sync::Mutex::new(None));
    let keep = kept.clone();
    let child = Child::new("steps", move |cx: ChildContext| {
        *keep.lock().unwrap() = Some(cx);
        pending::<Result<(), String>>()
    });
    let slow = Moody::new(&world.clock);
    slow.is(Mode::Slow(MS(10)));
    let supervisor =
        builder(&world, SupervisorConfig::default()).checkpoints(Arc::new(slow)).child(child).build().unwrap();
    let mut run = Box::pin(supervisor.run(pending()));
    world.run(MS(1), run.as_mut());
    let cx = kept.lock().unwrap().clone().unwrap();
    let mut saved = 0u64;
    let polls = drop_at_every_await(
        &world.time,
        || cx.save_checkpoint(7u64.to_be_bytes().to_vec()),
        |_| {
            saved += 1;
            let again = world.run(S(60), cx.save_checkpoint(saved.to_be_bytes().to_vec())).unwrap();
            again.unwrap();
            assert_eq!(number(world.run(S(60), cx.checkpoint()).unwrap().unwrap()), saved);
        },
    );
    assert!(polls >= 2, "{polls}");
    let polls = drop_at_every_await(
        &world.time,
        || cx.checkpoint(),
        |_| {
            saved += 1;
            world.run(S(60), cx.save_checkpoint(saved.to_be_bytes().to_vec())).unwrap().unwrap();
            assert_eq!(number(world.run(S(60), cx.checkpoint()).unwrap().unwrap()), saved);
        },
    );
    assert!(polls >= 2, "{polls}");
    // Without a store there are none.
    let without = Child::new("a", |cx: ChildContext| async move { cx.save_checkpoint("1").await });
    let supervisor = builder(&world, SupervisorConfig::default().max_restarts(0)).child(without).build().unwrap();
    let error = world.run(S(60), supervisor.run(pending())).unwrap().unwrap_err();
    assert!(error.to_string().contains("has no store for checkpoints"), "{error}");
}
