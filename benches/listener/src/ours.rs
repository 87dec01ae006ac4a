//! Ours, and the same by hand.
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    queue::{InMemoryQueue, Message, Queue, Receive, Settle},
    queue_listener::{QueueListener, QueueListenerConfig, Work},
};
use tokio::sync::Notify;

use crate::{Cell, Mode};

const VISIBILITY: Duration = Duration::from_secs(60);

/// A queue with the cell's messages.
pub async fn filled(cell: Cell, folder: &Path) -> Arc<dyn Queue> {
    let queue: Arc<dyn Queue> = match cell.mode {
        Mode::Memory => Arc::new(InMemoryQueue::new("jobs")),
        Mode::Sqlite => {
            let config = SqliteConfig::at(folder.join("jobs.db")).durability(Durability::Full);
            Arc::new(Sqlite::open(config).expect("it opens").queue("jobs").expect("a queue"))
        }
    };
    let mut left = cell.messages;
    while left > 0 {
        let some = left.min(1000);
        queue.send((0..some).map(|_| Message::new(&[7u8; 100][..])).collect()).await.expect("a send");
        left -= some;
    }
    queue
}

/// What each handler does: nothing but count.
struct Left {
    left: AtomicUsize,
    done: Notify,
}

impl Left {
    fn new(cell: Cell) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(cell.messages), done: Notify::new() })
    }

    async fn handle(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.done.notify_one();
        }
    }
}

/// As one writes it: take some, handle each, complete them together.
async fn one_loop(queue: Arc<dyn Queue>, cell: Cell, left: Arc<Left>) {
    loop {
        let taken = queue.receive(Receive::new(cell.batch, VISIBILITY)).await.expect("a receive");
        if taken.is_empty() {
            return;
        }
        let mut settlements = Vec::with_capacity(taken.len());
        for delivery in taken {
            left.handle().await;
            settlements.push((delivery.receipt, Settle::Complete));
        }
        let settled = queue.settle(settlements).await.expect("a settle");
        assert!(settled.iter().all(Result::is_ok));
    }
}

pub async fn by_hand(queue: &Arc<dyn Queue>, cell: Cell) {
    let left = Left::new(cell);
    let tasks: Vec<_> = (0..cell.tasks).map(|_| tokio::spawn(one_loop(queue.clone(), cell, left.clone()))).collect();
    for task in tasks {
        task.await.expect("no panic");
    }
}

pub async fn by_hand_in_place(queue: &Arc<dyn Queue>, cell: Cell) {
    let left = Left::new(cell);
    futures::future::join_all((0..cell.tasks).map(|_| one_loop(queue.clone(), cell, left.clone()))).await;
}

fn make(queue: &Arc<dyn Queue>, cell: Cell) -> QueueListener {
    let tasks = cell.tasks as u32;
    let config = QueueListenerConfig::default().batch(cell.batch).tasks(tasks, tasks).visibility(VISIBILITY);
    QueueListener::builder(queue.clone(), config).build().expect("a listener")
}

pub async fn listener(queue: &Arc<dyn Queue>, cell: Cell) {
    let left = Left::new(cell);
    let handler = async |_: Work| left.handle().await;
    let listener = make(queue, cell);
    listener.run(left.done.notified(), handler).await.expect("it runs");
    assert_eq!(listener.state().handled, cell.messages as u64);
}

pub async fn spawned(queue: &Arc<dyn Queue>, cell: Cell) {
    let left = Left::new(cell);
    let (listener, of) = (make(queue, cell), left.clone());
    let handler = move |_: Work| {
        let left = of.clone();
        async move { left.handle().await }
    };
    let spawn = |task| drop(tokio::spawn(task));
    listener.run_on(spawn, left.done.notified(), handler).await.expect("it runs");
    assert_eq!(listener.state().handled, cell.messages as u64);
}

/// Allocations a message, in memory.
pub fn allocations(say: &mut impl FnMut(String) -> Result<(), String>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    let folder = std::env::temp_dir();
    for batch in [1, 32] {
        let cell = Cell { mode: Mode::Memory, batch, tasks: 1, messages: 10_000 };
        let count = |work: &dyn Fn(&Arc<dyn Queue>)| {
            let queue = runtime.block_on(filled(cell, &folder));
            allocation_counter::measure(|| work(&queue)).count_total as f64 / cell.messages as f64
        };
        let ours = count(&|queue| runtime.block_on(listener(queue, cell)));
        let by_hand = count(&|queue| runtime.block_on(by_hand_in_place(queue, cell)));
        say(format!("batch {batch:>2}: listener {ours:.2}, loop {by_hand:.2}, added {:.2} a message", ours - by_hand))?;
    }
    Ok(())
}
