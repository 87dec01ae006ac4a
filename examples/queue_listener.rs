//! The cost of an idle hour of a listener, and the delay until it begins a job then. In memory and on SQLite.
//!
//! The hour passes in tokio's paused time; the delay is measured by the machine's clock. The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
use std::{
    error::Error,
    io::{self, Write as _},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::Parser;
use serde_json::json;
use steadfast::{
    backend::sqlite::{Sqlite, SqliteConfig},
    notify::{InMemoryNotifier, Notifier},
    queue::{AnnouncingQueue, InMemoryQueue, Message, Queue, QueueExt},
    queue_listener::{QueueListener, QueueListenerConfig, Work},
    time::Clock,
};
use tokio::sync::mpsc;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Measures the cost of an idle hour of a listener, and the delay until it begins a job then: in
/// memory and on SQLite.
#[derive(Parser)]
struct Args {}

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> ExitCode {
    let Args {} = Args::parse();
    match measure().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr(), "queue_listener: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn measure() -> Result<bool> {
    let folder = tempfile::tempdir()?;
    let sqlite = Sqlite::open(SqliteConfig::at(folder.path().join("jobs.db")))?;
    let memory = wakes(Arc::new(InMemoryQueue::new("jobs")), Arc::new(InMemoryNotifier::new())).await?;
    let file = wakes(Arc::new(sqlite.queue("jobs")?), Arc::new(sqlite.notifier())).await?;
    let mut holds = true;
    let mut results = serde_json::Map::new();
    for (name, (requests, wake)) in [("memory", memory), ("sqlite", file)] {
        let a_minute = requests as f64 / 60.0;
        writeln!(io::stdout(), "{name:<7} {a_minute:.2} requests a minute while idle; the job began after {wake:?}")?;
        // A poll comes after half a minute: what came within ten seconds was a notice, even if the machine stalled.
        holds &= a_minute <= 2.0 && wake <= Duration::from_secs(10);
        results.insert(name.into(), json!({ "requests_a_minute": a_minute, "wake_us": wake.as_micros() as u64 }));
    }
    writeln!(io::stdout(), "summary: {}", serde_json::Value::Object(results))?;
    Ok(holds)
}

/// Returns the requests of a listener in an idle hour, and the delay between sending and starting a job.
async fn wakes(queue: Arc<dyn Queue>, notifier: Arc<dyn Notifier>) -> Result<(u64, Duration)> {
    let listener = QueueListener::builder(queue.clone(), QueueListenerConfig::default())
        .notifier(notifier.clone(), "jobs")
        .build()?;
    let jobs = AnnouncingQueue::new(queue, notifier, "jobs");
    let (begin, mut begun) = mpsc::unbounded_channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn({
        let listener = listener.clone();
        async move {
            let handler = |_: Work| {
                let _ = begin.send(());
                async {}
            };
            listener.run(async { drop(stopped.await) }, handler).await
        }
    });

    Clock::tokio().sleep(HOUR).await;
    let requests = listener.state().requests;
    tokio::time::resume();
    // On the executor's clock, which runs in real time again.
    let sent = Clock::tokio().now();
    jobs.send_one(Message::new("job")).await?;
    begun.recv().await;
    let wake = Clock::tokio().now() - sent;
    drop(stop);
    running.await??;
    tokio::time::pause();
    Ok((requests, wake))
}
