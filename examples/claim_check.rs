//! Scanned documents go through a queue that carries only claims to them; the bodies lie in a store. One SQLite file holds both.
//!
//! The sender ends before the listener begins, on a new handle of the same file. Every document arrives as it was sent, and its
//! body is removed when it is handled. A document whose body was deleted becomes a dead letter with that reason. The last line is
//! the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
use std::{
    path::Path,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use serde_json::json;
use steadfast::{
    backend::sqlite::{Sqlite, SqliteConfig},
    claim_check::{ClaimCheck, ClaimCheckConfig},
    queue::{Message, Queue, QueueExt},
    queue_listener::{Disposition, QueueListener, QueueListenerConfig, Work},
    store::{Key, Scan, Store, StoreExt},
    time::Clock,
};

#[path = "common/mod.rs"]
mod common;
use common::{end, no_arguments, say};

/// Documents, of 1 to 5 MB.
const SCANS: usize = 5;
const MB: usize = 1_000_000;
/// Messages without a large body, which stay in the queue.
const NOTES: usize = 3;
const PATIENCE: Duration = Duration::from_secs(180);

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments("Large documents go through a queue that carries only claims to them; the bodies lie in a store.");
    end(show().await)
}

/// The queue of a service: the same for its sender and its listener, which share the store of the bodies.
fn documents(sqlite: &Sqlite) -> common::Result<Arc<dyn Queue>> {
    let (queue, bodies) = (sqlite.queue("documents")?, sqlite.store());
    // The lifetime ends bodies that no message claims any more.
    let config = ClaimCheckConfig::default().keep(Duration::from_secs(7 * 24 * 3600));
    Ok(Arc::new(ClaimCheck::new(Arc::new(queue), Arc::new(bodies), config)?))
}

/// The sender knows nothing of claims: it sends messages of any size.
async fn send(queue: &dyn Queue) -> common::Result<()> {
    for scan in 1..=SCANS {
        queue.send_one(Message::new(page(scan)).header("pages", scan.to_string())).await?;
    }
    for note in 1..=NOTES {
        queue.send_one(Message::new(format!("note {note}"))).await?;
    }
    Ok(())
}

/// Returns the bytes of a document, which differ from place to place.
fn page(scan: usize) -> Vec<u8> {
    (0..scan * MB).map(|at| (at * at / 7 + scan) as u8).collect()
}

/// Returns the messages of the queue, the length of the longest body among them, and the number of stored bodies.
async fn looked_at(sqlite: &Sqlite) -> common::Result<(usize, usize, usize)> {
    let queued = sqlite.queue("documents")?.peek(100).await?;
    let longest = queued.iter().map(|message| message.body.len()).max().unwrap_or(0);
    Ok((queued.len(), longest, sqlite.store().scan_all(Scan::partition("claim-check")).await?.len()))
}

/// Handles messages until the queue is empty. Returns the documents and the notes that came unchanged.
async fn handle(queue: Arc<dyn Queue>) -> common::Result<(usize, usize)> {
    let listener = QueueListener::new(queue.clone(), QueueListenerConfig::default())?;
    let (scans, notes) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let handler = async |work: Work| match work.headers.get("pages") {
        Some(pages) => match pages.parse() {
            Ok(pages) if work.body == page(pages) => {
                scans.fetch_add(1, Relaxed);
                Disposition::Complete
            }
            _ => Disposition::dead_letter("not the document that was sent"),
        },
        None => {
            notes.fetch_add(usize::from(work.body.starts_with(b"note")), Relaxed);
            Disposition::Complete
        }
    };
    let clock = Clock::tokio();
    let finished = async {
        let begin = clock.now();
        // An error is no reason to end: the listener tries again too.
        while clock.now() - begin < PATIENCE && !queue.peek(1).await.is_ok_and(|left| left.is_empty()) {
            clock.sleep(Duration::from_millis(10)).await;
        }
    };
    listener.run(finished, handler).await?;
    Ok((scans.into_inner(), notes.into_inner()))
}

async fn show() -> common::Result<(serde_json::Value, bool)> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("documents.db");
    let open = |file: &Path| Sqlite::open(SqliteConfig::at(file));

    let sqlite = open(&file)?;
    send(&*documents(&sqlite)?).await?;
    let (queued, longest, stored) = looked_at(&sqlite).await?;
    say(format!(
        "{queued} messages are queued; the longest body among them has {longest} bytes, {stored} bodies are stored"
    ));

    // A body is deleted whose message is still queued.
    let store = sqlite.store();
    let rows = store.scan_all(Scan::partition("claim-check")).await?;
    let lost = rows.first().ok_or("nothing is stored")?;
    store.delete(Key::new("claim-check", &lost.row), Default::default()).await?;
    drop((store, sqlite));

    let sqlite = open(&file)?;
    let queue = documents(&sqlite)?;
    let (scans, notes) = handle(queue.clone()).await?;
    let (_, _, left) = looked_at(&sqlite).await?;
    let letters = queue.dead_letters().ok_or("the queue has no dead letters")?.peek(10).await?;
    let reasons: Vec<_> = letters.iter().filter_map(|letter| letter.reason.as_deref()).collect();
    say(format!("{scans} documents and {notes} notes came unchanged; {left} bodies are left"));
    say(format!("dead letters: {reasons:?}"));

    let summary = json!({
        "queued": queued, "longest_body": longest, "stored": stored,
        "documents": scans, "notes": notes, "left": left, "dead_letters": letters.len(),
    });
    let claims = queued == SCANS + NOTES && longest < 10 && stored == SCANS;
    Ok((summary, claims && (scans, notes, left, letters.len()) == (SCANS - 1, NOTES, 0, 1)))
}
