//! steno with a store that keeps nothing.
use std::sync::Arc;

use steno::{
    Action, ActionContext, ActionError, ActionFunc, ActionRegistry, DagBuilder, Node, SagaCachedState,
    SagaCreateParams, SagaDag, SagaId, SagaName, SagaNodeEvent, SagaType, SecStore,
};

use crate::{STEPS, State};

#[derive(Debug)]
struct NoStore;

#[async_trait::async_trait]
impl SecStore for NoStore {
    async fn saga_create(&self, _: SagaCreateParams) -> Result<(), anyhow::Error> {
        Ok(())
    }

    async fn record_event(&self, _: SagaNodeEvent) {}

    async fn saga_update(&self, _: SagaId, _: SagaCachedState) {}
}

#[derive(Debug)]
struct Bench;

impl SagaType for Bench {
    type ExecContextType = ();
}

async fn ready(context: ActionContext<Bench>) -> Result<u32, ActionError> {
    let state = context.saga_params::<State>()?;
    Ok(state.done + 1)
}

async fn undo(_: ActionContext<Bench>) -> Result<(), anyhow::Error> {
    Ok(())
}

pub async fn run(sagas: usize) {
    let sec = steno::sec(slog::Logger::root(slog::Discard, slog::o!()), Arc::new(NoStore));
    let action: Arc<dyn Action<Bench>> = ActionFunc::new_action("ready", ready, undo);
    let mut registry = ActionRegistry::new();
    registry.register(action.clone());
    let registry = Arc::new(registry);
    let mut builder = DagBuilder::new(SagaName::new("bench"));
    for n in 0..STEPS {
        builder.append(Node::action(format!("step-{n}"), "ready", &*action));
    }
    let dag = builder.build().expect("a DAG");
    for n in 0..sagas {
        let params = serde_json::to_value(State::new()).expect("JSON");
        let id = SagaId::from_u128(n as u128);
        let dag = Arc::new(SagaDag::new(dag.clone(), params));
        let saga = sec.saga_create(id, Arc::new(()), dag, registry.clone()).await.expect("a saga");
        sec.saga_start(id).await.expect("a start");
        assert!(saga.await.kind.is_ok());
    }
    sec.shutdown().await;
}
