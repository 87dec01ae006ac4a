//! Parts that take their settings when they start: children of a supervisor.
use std::{
    future::pending,
    sync::{Arc, Mutex},
};

use steadfast::{
    entropy::Entropy,
    reconfiguration::{InEffect, Reconfigurer, ReconfigurerConfig, ReconfigurerEvent as Event, SubmitError},
    supervisor::{Child, ChildContext, Supervisor, SupervisorConfig},
};

use super::{Failure, Part, Settings};
use crate::world::{S, World};

/// A child that notes the section with which it starts, and does not start with 50.
struct Listener {
    world: World,
    started: Arc<Mutex<Vec<u32>>>,
    supervisor: Supervisor,
    part: Part,
    changes: Reconfigurer<Settings>,
}

impl Listener {
    fn new() -> Self {
        let world = World::new();
        let (in_effect, started, part) =
            (InEffect::new(Settings::default()), Arc::new(Mutex::new(Vec::new())), Part::default());
        let (settings, starts) = (in_effect.clone(), started.clone());
        let child = Child::new("listener", move |cx: ChildContext| {
            let section = settings.get().sections[1];
            starts.lock().unwrap().push(section);
            async move {
                if section == 50 {
                    return Err("no such queue".to_owned());
                }
                cx.ready();
                cx.stopping().await;
                Ok(())
            }
        });
        let pool = world.pool.clone();
        let supervisor = Supervisor::builder(SupervisorConfig::default()).clock(&world.clock);
        let supervisor = supervisor.entropy(&Entropy::from_seed(1)).spawner(move |task| pool.spawn(task));
        let supervisor = supervisor.child(child.waits_for_ready()).build().unwrap();
        let handle = supervisor.handle("listener").unwrap();
        // The restart comes last, wherever it is named.
        let changes = Reconfigurer::builder(in_effect, ReconfigurerConfig::default())
            .restart("listener", |s: &mut Settings| &mut s.sections[1], handle)
            .part("limit", |s: &mut Settings| &mut s.sections[0], part.clone())
            .clock(&world.clock)
            .build()
            .unwrap();
        Self { world, started, supervisor, part, changes }
    }

    fn run<F: Future>(&self, script: F) -> F::Output {
        let run = self.supervisor.run(pending());
        let both = async { futures::future::select(Box::pin(script), Box::pin(run)).await };
        match self.world.run(S(600), both).expect("it ends") {
            futures::future::Either::Left((output, _)) => output,
            futures::future::Either::Right((ended, _)) => panic!("{ended:?}"),
        }
    }

    fn started(&self) -> Vec<u32> {
        self.started.lock().unwrap().clone()
    }
}

fn settings(limit: u32, listener: u32) -> Settings {
    let mut settings = Settings::default();
    (settings.sections[0], settings.sections[1]) = (limit, listener);
    settings
}

// Guarantee: reconfiguration 3.
#[test]
fn a_child_restarts_last_with_its_new_section_and_only_if_that_has_changed() {
    let l = Listener::new();
    assert_eq!(l.changes.parts().collect::<Vec<_>>(), ["limit", "listener"]);
    l.run(async {
        l.world.clock.sleep(S(1)).await;
        let applied = l.changes.submit(settings(7, 8)).await.unwrap();
        assert_eq!(
            (applied.parts, applied.restarted),
            (vec!["limit".to_owned(), "listener".into()], vec!["listener".to_owned()])
        );
        assert_eq!((l.started(), l.part.runs()), (vec![0, 8], 7));
        assert!(l.changes.submit(settings(9, 8)).await.unwrap().restarted.is_empty());
        assert_eq!(l.started(), [0, 8]);
        // If a part fails, no child restarts.
        l.part.fails(&[Failure::Error]);
        let error = l.changes.submit(settings(10, 9)).await.unwrap_err();
        assert!(matches!(error, SubmitError::Failed { .. }), "{error}");
        assert_eq!(l.started(), [0, 8]);
    });
}

// Guarantee: reconfiguration 3.
#[test]
fn a_child_that_does_not_start_again_gets_its_old_section_and_so_do_all_parts() {
    let l = Listener::new();
    let mut events = l.changes.events();
    l.run(async {
        l.world.clock.sleep(S(1)).await;
        let error = l.changes.submit(settings(7, 50)).await.unwrap_err();
        assert!(matches!(&error, SubmitError::NotRestarted { part, .. } if part == "listener"), "{error}");
        l.world.clock.sleep(S(60)).await;
        assert_eq!((l.part.runs(), l.started().last().copied()), (0, Some(0)));
        assert_eq!(events.recv().await.unwrap().what, Event::RolledBack { part: Some("listener".to_owned()) });
        l.changes.submit(settings(8, 3)).await.unwrap();
        assert_eq!((l.part.runs(), l.started().last().copied()), (8, Some(3)));
    });
}

// Guarantee: reconfiguration 4.
#[test]
fn a_submit_that_is_dropped_while_a_child_restarts_is_undone() {
    let l = Listener::new();
    l.run(async {
        l.world.clock.sleep(S(1)).await;
        {
            let mut submit = Box::pin(l.changes.submit(settings(7, 8)));
            assert!(futures::poll!(submit.as_mut()).is_pending());
            assert_eq!(l.part.runs(), 7);
        }
        assert_eq!((l.part.runs(), l.changes.settings().sections[1]), (0, 0));
        l.world.clock.sleep(S(60)).await;
        assert_eq!(l.started().last(), Some(&0), "{:?}", l.started());
    });
}
