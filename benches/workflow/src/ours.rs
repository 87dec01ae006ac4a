//! Our saga and scheduler.
use std::{path::Path, sync::Arc};

use futures::future::join_all;
use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    codec::Codec,
    queue::Queue,
    saga::{Action, Compensation, Plan, Saga, SagaConfig, SagaOutcome, Step, StepOutcome},
    scheduler::{Scheduler, SchedulerConfig, Submission},
    store::{InMemoryStore, Store},
};

use crate::{STEPS, State};

/// A step that is ready at once.
struct Ready;

impl Action<State> for Ready {
    async fn execute(&self, _: &Step<State>) -> StepOutcome<State> {
        StepOutcome::changed(|state: &mut State| state.done += 1)
    }
}

impl Compensation<State> for Ready {
    async fn compensate(&self, _: &Step<State>) -> StepOutcome<State> {
        StepOutcome::completed()
    }
}

/// Opens a file whose writes are synced.
fn sqlite(folder: &Path) -> Sqlite {
    Sqlite::open(SqliteConfig::at(folder.join("ours.db")).durability(Durability::Full)).expect("it opens")
}

fn over(store: Arc<dyn Store>) -> Saga<State> {
    let plan = (0..STEPS).fold(Plan::new(), |plan, n| plan.step(format!("step-{n}"), Ready));
    let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    Saga::new("bench", store, codec, plan, SagaConfig::default()).expect("a saga")
}

pub fn saga(folder: Option<&Path>) -> Saga<State> {
    over(match folder {
        Some(folder) => Arc::new(sqlite(folder).store()),
        None => Arc::new(InMemoryStore::new()),
    })
}

pub async fn run(saga: Saga<State>, sagas: usize, concurrent: usize) {
    let one_after_the_other = |task: usize| {
        let saga = saga.clone();
        tokio::spawn(async move {
            for n in (task..sagas).step_by(concurrent) {
                let ended = saga.run(&n.to_string(), State::new()).await;
                assert!(matches!(ended, Ok(SagaOutcome::Completed(state)) if state.done == STEPS as u32));
            }
        })
    };
    for task in join_all((0..concurrent).map(one_after_the_other)).await {
        task.expect("no panic");
    }
}

/// A store, and a queue with submissions.
pub struct World {
    pub store: Arc<dyn Store>,
    pub queue: Arc<dyn Queue>,
    orders: Scheduler<State>,
}

pub async fn submitted(folder: &Path, sagas: usize) -> World {
    let sqlite = sqlite(folder);
    let (store, queue) = (Arc::new(sqlite.store()), Arc::new(sqlite.queue("orders").expect("a queue")));
    let config = SchedulerConfig::default();
    let orders = Scheduler::new(over(store.clone()), queue.clone(), config).expect("a scheduler");
    for n in 0..sagas {
        orders.submit(Submission::new(n.to_string(), State::new())).await.expect("a submission");
    }
    World { store, queue, orders }
}

/// Runs all submissions.
pub async fn schedule(world: &World, sagas: usize, concurrent: usize) {
    assert_eq!(concurrent, SchedulerConfig::default().concurrency as usize);
    let mut events = world.orders.saga().events();
    let all = async {
        let mut completed = 0;
        while completed < sagas {
            let event = events.recv().await.expect("no event is missed");
            completed += usize::from(matches!(event.what, steadfast::saga::SagaEvent::Completed { .. }));
        }
    };
    world.orders.run(all).await.expect("it runs");
    assert_eq!(world.queue.depth().await.expect("a depth").total(), 0);
}
