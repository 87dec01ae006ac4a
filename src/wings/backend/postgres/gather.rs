//! Requests that meet share a statement.
//!
//! While one request of a handle is under way, those that come gather, and go together as soon as
//! it is answered. A lone request waits for nobody, and runs in its caller's future. If that future
//! is dropped, a task goes on with the request, because it may carry the requests of other callers.
use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::sync::oneshot;

use crate::{
    port::{BoxFuture, PortError, PortErrorKind},
    spawn::Spawner,
    sync::Mutex,
};

/// Sends jobs in batches, one batch at a time. It returns one answer for each job.
pub(super) trait SendBatch<J, R>: Send + Sync {
    fn send(&self, jobs: Vec<J>) -> BoxFuture<'_, Vec<R>>;
    /// Returns the approximate size of a job, in bytes.
    fn weight(&self, job: &J) -> usize;
}

/// Gathers jobs of one kind.
pub(super) struct Gather<J, R>(Arc<GatherCore<J, R>>);

struct GatherCore<J, R> {
    sender: Box<dyn SendBatch<J, R>>,
    state: Mutex<State<J, R>>,
    /// Maximum number of jobs in a batch.
    most: usize,
}

struct State<J, R> {
    is_sending: bool,
    waiting: VecDeque<Waiting<J, R>>,
}

struct Waiting<J, R> {
    job: J,
    turn: oneshot::Sender<Turn<R>>,
}

/// What a waiting caller is told.
enum Turn<R> {
    /// Its job was sent along with others.
    Answer(R),
    /// The caller drives the next batch, which contains its job; the answer follows on the second
    /// channel.
    Drive(Drive, oneshot::Receiver<Turn<R>>),
}

/// A batch ends at this size, or with the job that reaches it.
const BATCH_BYTES: usize = 4 << 20;
/// Maximum number of jobs that wait; further ones fail as throttled.
const MAX_WAITING: usize = 16_384;

impl<J: Send + 'static, R: Send + 'static> Gather<J, R> {
    pub(super) fn new(most: usize, sender: impl SendBatch<J, R> + 'static) -> Self {
        let state = Mutex::new(State { is_sending: false, waiting: VecDeque::new() });
        Self(Arc::new(GatherCore { sender: Box::new(sender), state, most }))
    }

    /// Sends a job, alone or with others, and returns its answer.
    ///
    /// # Cancel safety
    /// If the future is dropped, the job is sent or not.
    pub(super) async fn send(&self, job: J) -> Result<R, PortError> {
        let lost = || PortError::new(PortErrorKind::Closed, "postgres: the runtime is shutting down").outcome_unknown();
        let (turn, mut told) = oneshot::channel();
        if let Some(job) = self.0.enqueue(job, turn)? {
            let answer = Arc::new(Mutex::new(None));
            GatherCore::drive_one(self.0.clone(), job, answer.clone()).await;
            let answer = answer.lock().take();
            return answer.ok_or_else(lost);
        }
        loop {
            match told.await.map_err(|_| lost())? {
                Turn::Answer(answer) => return Ok(answer),
                Turn::Drive(drive, next) => {
                    drive.await;
                    told = next;
                }
            }
        }
    }
}

impl<J: Send + 'static, R: Send + 'static> GatherCore<J, R> {
    /// Lets the job wait for the batch that is under way. Returns it if there is none: the caller
    /// sends it.
    fn enqueue(&self, job: J, turn: oneshot::Sender<Turn<R>>) -> Result<Option<J>, PortError> {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.is_sending, true) {
            return Ok(Some(job));
        }
        if state.waiting.len() >= MAX_WAITING {
            return Err(PortError::new(PortErrorKind::Throttled, "postgres: too many requests wait"));
        }
        state.waiting.push_back(Waiting { job, turn });
        Ok(None)
    }

    /// Returns the future that sends a lone job.
    fn drive_one(core: Arc<Self>, job: J, answer: Arc<Mutex<Option<R>>>) -> Drive {
        // Created here, so that also a future that is dropped before its first poll begins the next batch.
        let next = NextBatch(core);
        Drive::new(async move {
            let mut answers = next.0.sender.send(vec![job]).await;
            *answer.lock() = answers.pop();
        })
    }

    /// Returns the future that sends a batch.
    fn drive(core: Arc<Self>, batch: Vec<Waiting<J, R>>) -> Drive {
        let next = NextBatch(core);
        Drive::new(async move {
            let (jobs, turns): (Vec<_>, Vec<_>) = batch.into_iter().map(|one| (one.job, one.turn)).unzip();
            let answers = next.0.sender.send(jobs).await;
            for (turn, answer) in turns.into_iter().zip(answers) {
                // A caller whose future was dropped needs no answer.
                let _ = turn.send(Turn::Answer(answer));
            }
        })
    }

    /// Hands the waiting jobs to one of their callers, or ends sending.
    fn begin_next(self: &Arc<Self>) {
        let mut batch = {
            let mut state = self.state.lock();
            // Jobs whose callers are gone were not sent, and need not be.
            state.waiting.retain(|waiting| !waiting.turn.is_closed());
            let (mut jobs, mut bytes) = (0, 0);
            for waiting in &state.waiting {
                if jobs == self.most || bytes >= BATCH_BYTES {
                    break;
                }
                jobs += 1;
                bytes += self.sender.weight(&waiting.job);
            }
            state.is_sending = jobs > 0;
            state.waiting.drain(..jobs).collect::<Vec<_>>()
        };
        let Some(first) = batch.first_mut() else { return };
        let (turn, next) = oneshot::channel();
        let driver = std::mem::replace(&mut first.turn, turn);
        let drive = Self::drive(self.clone(), batch);
        // If the caller is gone, the batch is dropped here, and goes on in a task.
        drop(driver.send(Turn::Drive(drive, next)));
    }
}

/// Begins the next batch when one has ended, also by a panic.
struct NextBatch<J: Send + 'static, R: Send + 'static>(Arc<GatherCore<J, R>>);

impl<J: Send + 'static, R: Send + 'static> Drop for NextBatch<J, R> {
    fn drop(&mut self) {
        self.0.begin_next();
    }
}

/// A future that goes on in a task if it is dropped.
struct Drive(Option<BoxFuture<'static, ()>>);

impl Drive {
    fn new(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Some(Box::pin(work)))
    }
}

impl Future for Drive {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(work) = &mut self.0 else { return Poll::Ready(()) };
        let polled = work.as_mut().poll(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            Spawner::Tokio.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use tokio::sync::Semaphore;

    use super::*;

    /// Answers each job with ten times its number, once a permit is there.
    struct Server {
        permits: Semaphore,
        batches: Mutex<Vec<Vec<u32>>>,
        under_way: AtomicUsize,
    }

    impl SendBatch<u32, u32> for Arc<Server> {
        fn send(&self, jobs: Vec<u32>) -> BoxFuture<'_, Vec<u32>> {
            Box::pin(async move {
                assert_eq!(self.under_way.fetch_add(1, SeqCst), 0, "one batch at a time");
                self.batches.lock().push(jobs.clone());
                self.permits.acquire().await.unwrap().forget();
                self.under_way.fetch_sub(1, SeqCst);
                jobs.into_iter().map(|job| job * 10).collect()
            })
        }

        fn weight(&self, job: &u32) -> usize {
            if *job > 1000 { BATCH_BYTES } else { 1 }
        }
    }

    fn gather(permits: usize) -> (Arc<Server>, Arc<Gather<u32, u32>>) {
        let server = Arc::new(Server {
            permits: Semaphore::new(permits),
            batches: Mutex::default(),
            under_way: AtomicUsize::new(0),
        });
        (server.clone(), Arc::new(Gather::new(3, server)))
    }

    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    /// Spawns requests, in this order.
    async fn spawn(gather: &Arc<Gather<u32, u32>>, jobs: &[u32]) -> Vec<tokio::task::JoinHandle<u32>> {
        let mut tasks = Vec::new();
        for job in jobs.iter().copied() {
            let gather = gather.clone();
            tasks.push(tokio::task::spawn(async move { gather.send(job).await.unwrap() }));
            settle().await;
        }
        tasks
    }

    #[tokio::test]
    async fn a_lone_request_is_sent_at_its_first_poll() {
        let (server, gather) = gather(2);
        assert_eq!(gather.send(1).await.unwrap(), 10);
        assert_eq!(gather.send(2).await.unwrap(), 20);
        assert_eq!(*server.batches.lock(), [vec![1], vec![2]]);
    }

    #[tokio::test]
    async fn requests_that_meet_go_together_and_each_has_its_own_answer() {
        let (server, gather) = gather(0);
        let tasks = spawn(&gather, &[1, 2, 3, 4, 5, 6]).await;
        server.permits.add_permits(9);
        for (task, answer) in tasks.into_iter().zip([10, 20, 30, 40, 50, 60]) {
            assert_eq!(task.await.unwrap(), answer);
        }
        assert_eq!(*server.batches.lock(), [vec![1], vec![2, 3, 4], vec![5, 6]]);
    }

    #[tokio::test]
    async fn a_batch_ends_with_the_job_that_makes_it_large() {
        let (server, gather) = gather(0);
        let tasks = spawn(&gather, &[1, 2000, 2, 3]).await;
        server.permits.add_permits(9);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*server.batches.lock(), [vec![1], vec![2000], vec![2, 3]]);
    }

    #[tokio::test]
    async fn a_dropped_caller_neither_stops_the_others_nor_is_sent_if_it_still_waits() {
        let (server, gather) = gather(0);
        let tasks = spawn(&gather, &[1, 2, 3, 4]).await;
        // The first one drives the batch under way; the third waits.
        tasks[0].abort();
        tasks[2].abort();
        settle().await;
        server.permits.add_permits(1);
        settle().await;
        // The second one was told to drive the batch of 2 and 4.
        tasks[1].abort();
        settle().await;
        server.permits.add_permits(9);
        let [_, _, _, last] = <[_; 4]>::try_from(tasks).unwrap();
        assert_eq!(last.await.unwrap(), 40);
        assert_eq!(*server.batches.lock(), [vec![1], vec![2, 4]]);
        assert_eq!(gather.send(5).await.unwrap(), 50);
    }
}
