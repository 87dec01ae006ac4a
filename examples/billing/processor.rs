//! A process that handles items until it is stopped or killed.
use std::{path::Path, time::Duration};

use bytes::Bytes;
use serde_json::json;
use steadfast::{
    backoff::BackoffConfig,
    queue::{AnnouncingQueue, Message, Queue, QueueExt},
    queue_listener::{Disposition, QueueListener, QueueListenerConfig, Work},
    store::{Key, PutOptions},
    time::Clock,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::{
    Result,
    engine::Engine,
    transactions::{Part, add_up},
};

pub(crate) const ITEMS: &str = "items";
pub(crate) const DONE: &str = "done";
pub(crate) const PARTIALS: &str = "partials";

/// Interval of a process's reports.
pub(crate) const REPORT: Duration = Duration::from_millis(50);

/// Settings of all listeners here. The items of a killed process are redelivered after two seconds; a kill is not the
/// fault of an item.
pub(crate) fn config() -> QueueListenerConfig {
    let retry = BackoffConfig::default().between(Duration::from_millis(50), Duration::from_secs(1));
    QueueListenerConfig::default()
        .visibility(Duration::from_secs(2))
        .max_attempts(1000)
        .batch(8)
        .tasks(1, 4)
        .retry(retry)
}

/// Handles items until its input ends.
pub(crate) async fn process(folder: &Path, engine: &Engine) -> Result<()> {
    let backend = engine.open().await?;
    let [items, done, partials] = [ITEMS, DONE, PARTIALS].map(|name| engine.name(name));
    let (store, notifier) = (backend.store(), backend.notifier());
    let listener = QueueListener::builder(backend.queue(&items).await?, config());
    let listener = listener.notifier(notifier.clone(), items).build()?;
    let done = AnnouncingQueue::new(backend.queue(&done).await?, notifier, done);

    let transactions = folder.join("transactions.csv");
    let handler = async |work: Work| -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let part: Part = serde_json::from_slice(&work.body)?;
        let path = transactions.clone();
        let totals = tokio::task::spawn_blocking(move || add_up(&path, part)).await??;
        // Stored under the item's key, so that a repeated item is stored once.
        let row = format!("{:08}", part.item);
        store.put(Key::new(&partials, &row), Bytes::from(serde_json::to_vec(&totals)?), PutOptions::new()).await?;
        done.send_one(Message::new(row)).await?;
        Ok(())
    };
    let handler = async |work: Work| Disposition::from(handler(work).await);

    let told_to_end = async {
        let mut input = BufReader::new(tokio::io::stdin()).lines();
        while let Ok(Some(_)) = input.next_line().await {}
    };
    let reports = async {
        loop {
            report(&listener).await?;
            Clock::tokio().sleep(REPORT).await;
        }
    };
    tokio::select! {
        ended = listener.run(told_to_end, handler) => ended?,
        failed = reports => return failed,
    }
    report(&listener).await
}

async fn report(listener: &QueueListener) -> Result<()> {
    let state = listener.state();
    let line =
        json!({ "requests": state.requests, "polls": state.polls, "tasks": state.tasks, "handled": state.handled });
    let mut out = tokio::io::stdout();
    out.write_all(format!("{line}\n").as_bytes()).await?;
    Ok(out.flush().await?)
}

/// Returns the number of waiting items.
pub(crate) async fn waiting(queue: &dyn Queue) -> Result<u64> {
    Ok(queue.depth().await?.total())
}
