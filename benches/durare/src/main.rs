//! durare's part of `benches/workflow`: workflows of five steps in a SQLite file, whose writes are synced.
//!
//! Arguments: the file, the number of workflows, and how many run at once. Prints seconds.
use std::{sync::Arc, time::Instant};

use durare::{DurableContext, DurableEngine, Result, SqliteProvider, WorkflowOptions};
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

/// A state of 100 bytes as JSON.
#[derive(Clone, Serialize, Deserialize)]
struct State {
    done: u32,
    text: String,
}

#[durare::step]
async fn ready(ctx: &DurableContext, state: State) -> Result<State> {
    let mut state = state;
    state.done += 1;
    Ok(state)
}

#[durare::workflow]
async fn bench(ctx: DurableContext, state: State) -> Result<State> {
    let mut state = state;
    for _ in 0..5 {
        state = ready(&ctx, state).await?;
    }
    Ok(state)
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let [_, file, workflows, concurrent] = &*words else { panic!("wants a file and two numbers") };
    let (workflows, concurrent): (usize, usize) =
        (workflows.parse().expect("a number"), concurrent.parse().expect("a number"));
    // As `SqliteProvider::connect`, but synced.
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .foreign_keys(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(std::time::Duration::from_secs(30));
    let pool = SqlitePoolOptions::new().max_connections(5).connect_with(options).await.expect("a pool");
    let engine = DurableEngine::new(Arc::new(SqliteProvider::from_pool(pool))).await?;
    let start = Instant::now();
    let one_after_the_other = |task: usize| {
        let engine = &engine;
        async move {
            for n in (task..workflows).step_by(concurrent) {
                let state = State { done: 0, text: "x".repeat(80) };
                let options = WorkflowOptions::with_id(n.to_string());
                let ended: State = engine.start_with(Bench, state, options).await?.await?;
                assert_eq!(ended.done, 5);
            }
            Ok::<_, durare::Error>(())
        }
    };
    for ended in join_all((0..concurrent).map(one_after_the_other)).await {
        ended?;
    }
    println!("{}", start.elapsed().as_secs_f64());
    Ok(())
}
