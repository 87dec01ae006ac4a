//! Concurrent requests share a statement.
//!
//! While a request of a handle is under way, the next one begins a batch in a task of its own, and
//! those that come meanwhile gather for the batch after it, or fill one that begins at once. A lone
//! request waits for nobody, and runs in its caller's future. Nothing depends on a caller's future
//! being polled: a caller that is held up, or dropped, delays nobody else.
use std::{collections::VecDeque, sync::Arc};

use tokio::sync::oneshot;

use crate::{
    port::{BoxFuture, PortError, PortErrorKind},
    race::yield_now,
    spawn::Spawner,
    sync::Mutex,
};

/// Sends jobs in batches. It returns one answer for each job.
pub(crate) trait SendBatch<J, R>: Send + Sync {
    fn send(&self, jobs: Vec<J>) -> BoxFuture<'_, Vec<R>>;
    /// Returns the size of a job, such as its [`row`]s. It is above 0.
    fn weight(&self, job: &J) -> usize;
}

/// Gathers jobs of one kind.
pub(crate) struct Gather<J, R>(Arc<GatherCore<J, R>>);

struct GatherCore<J, R> {
    sender: Box<dyn SendBatch<J, R>>,
    state: Mutex<State<J, R>>,
    /// Maximum size of a batch, in the unit of [`SendBatch::weight`]. A larger job is sent alone.
    most: usize,
    order: Order,
    /// Name of the user, for errors.
    user: &'static str,
    spawner: Spawner,
}

/// The order of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// A lone job is sent in its caller's future, and batches run beside it and each other.
    Any,
    /// Each batch begins when the one before has ended, in the order of the jobs.
    Strict,
}

struct State<J, R> {
    /// `true` while a lone request runs in its caller's future.
    has_lone: bool,
    /// Number of batches that are under way.
    batches: usize,
    waiting: VecDeque<Waiting<J, R>>,
    /// The size of the jobs that wait.
    rows: usize,
}

struct Waiting<J, R> {
    job: J,
    rows: usize,
    answer: oneshot::Sender<R>,
}

/// Number of bytes that count as one more row.
const ROW_BYTES: usize = 64 << 10;
/// Maximum number of batches under way. One is enough while they are small: the more jobs share a
/// commit, the better. Those that wait for it begin another one if they fill it.
const BATCHES: usize = 4;
/// Maximum number of jobs that wait; further ones fail as throttled.
const MAX_WAITING: usize = 16_384;

/// Returns the size of a row with a value of so many bytes.
#[allow(dead_code, reason = "used by a backend")]
pub(crate) const fn row(bytes: usize) -> usize {
    1 + bytes / ROW_BYTES
}

impl<J: Send + 'static, R: Send + 'static> Gather<J, R> {
    /// Creates one that sends a lone job at once, in its caller's future.
    #[allow(dead_code, reason = "used by a backend")]
    pub(crate) fn new(user: &'static str, most: usize, sender: impl SendBatch<J, R> + 'static) -> Self {
        Self::of(user, most, Order::Any, Spawner::Tokio, Box::new(sender))
    }

    /// Creates one that sends one batch at a time, each in a task, in the order of the jobs. Its
    /// user limits the number of jobs that wait.
    pub(crate) fn in_order(most: usize, spawner: Spawner, sender: impl SendBatch<J, R> + 'static) -> Self {
        Self::of("", most, Order::Strict, spawner, Box::new(sender))
    }

    fn of(user: &'static str, most: usize, order: Order, spawner: Spawner, sender: Box<dyn SendBatch<J, R>>) -> Self {
        let state = Mutex::new(State { has_lone: false, batches: 0, waiting: VecDeque::new(), rows: 0 });
        Self(Arc::new(GatherCore { sender, state, most, order, user, spawner }))
    }

    /// Sends a job, alone or with others, and returns its answer.
    ///
    /// # Cancel safety
    /// If the future is dropped, the job is sent or not.
    pub(crate) async fn send(&self, job: J) -> Result<R, PortError> {
        let lost = || PortError::new(PortErrorKind::Closed, "the runtime is shutting down").outcome_unknown();
        let core = &self.0;
        let answered = {
            let mut state = core.state.lock();
            if core.order == Order::Any && !state.has_lone && state.batches == 0 {
                state.has_lone = true;
                Err(job)
            } else if core.order == Order::Any && state.waiting.len() >= MAX_WAITING {
                let message = format!("{}: too many requests wait", core.user);
                return Err(PortError::new(PortErrorKind::Throttled, message));
            } else {
                let (answer, answered) = oneshot::channel();
                let rows = core.sender.weight(&job);
                state.rows += rows;
                state.waiting.push_back(Waiting { job, rows, answer });
                Ok(answered)
            }
        };
        match answered {
            Ok(answered) => {
                core.begin_batch();
                answered.await.map_err(|_| lost())
            }
            Err(job) => {
                let _lone = Lone(core);
                core.sender.send(vec![job]).await.pop().ok_or_else(lost)
            }
        }
    }
}

impl<J: Send + 'static, R: Send + 'static> GatherCore<J, R> {
    /// Sends the waiting jobs in a task, if no batch is under way or they fill another one.
    fn begin_batch(self: &Arc<Self>) {
        let batch = {
            let mut state = self.state.lock();
            let most = if self.order == Order::Any { BATCHES } else { 1 };
            let may_begin = state.batches == 0 || state.rows >= self.most && state.batches < most;
            if !may_begin {
                return;
            }
            let (mut batch, mut rows) = (Vec::new(), 0);
            let fits = |next: &Waiting<J, R>, rows| rows == 0 || rows + next.rows <= self.most;
            while state.waiting.front().is_some_and(|next| fits(next, rows))
                && let Some(waiting) = state.waiting.pop_front()
            {
                state.rows -= waiting.rows;
                // A job whose caller is gone was not sent, and need not be.
                if !waiting.answer.is_closed() {
                    rows += waiting.rows;
                    batch.push(waiting);
                }
            }
            if batch.is_empty() {
                return;
            }
            state.batches += 1;
            batch
        };
        // Created here: also a task that is dropped before its first poll begins the next batch.
        let next = NextBatch(self.clone());
        self.spawner.spawn(async move {
            let (jobs, callers): (Vec<_>, Vec<_>) = batch.into_iter().map(|one| (one.job, one.answer)).unzip();
            let answers = next.0.sender.send(jobs).await;
            for (caller, answer) in callers.into_iter().zip(answers) {
                // A caller whose future was dropped needs no answer.
                let _ = caller.send(answer);
            }
            // Those that were answered may have their next job at once: it joins the next batch.
            yield_now().await;
            drop(next);
        });
    }
}

/// Ends a batch, also by a panic, and begins the next one.
struct NextBatch<J: Send + 'static, R: Send + 'static>(Arc<GatherCore<J, R>>);

impl<J: Send + 'static, R: Send + 'static> Drop for NextBatch<J, R> {
    fn drop(&mut self) {
        self.0.state.lock().batches -= 1;
        self.0.begin_batch();
    }
}

/// Ends a lone request.
struct Lone<'a, J, R>(&'a GatherCore<J, R>);

impl<J, R> Drop for Lone<'_, J, R> {
    fn drop(&mut self) {
        self.0.state.lock().has_lone = false;
    }
}

#[cfg(all(test, not(steadfast_loom)))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use tokio::sync::Semaphore;

    use crate::gather::*;

    /// Answers each job with ten times its number, once a permit is there.
    struct Server {
        permits: Semaphore,
        batches: Mutex<Vec<Vec<u32>>>,
        under_way: AtomicUsize,
    }

    impl SendBatch<u32, u32> for Arc<Server> {
        fn send(&self, jobs: Vec<u32>) -> BoxFuture<'_, Vec<u32>> {
            Box::pin(async move {
                assert!(
                    self.under_way.fetch_add(1, SeqCst) <= BATCHES,
                    "some batches at a time, beside a lone request"
                );
                self.batches.lock().push(jobs.clone());
                self.permits.acquire().await.unwrap().forget();
                self.under_way.fetch_sub(1, SeqCst);
                jobs.into_iter().map(|job| job * 10).collect()
            })
        }

        fn weight(&self, job: &u32) -> usize {
            if *job > 1000 { 3 } else { 1 }
        }
    }

    fn gather(permits: usize) -> (Arc<Server>, Arc<Gather<u32, u32>>) {
        let server = Arc::new(Server {
            permits: Semaphore::new(permits),
            batches: Mutex::default(),
            under_way: AtomicUsize::new(0),
        });
        (server.clone(), Arc::new(Gather::new("test", 3, server)))
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
        let mut tasks = spawn(&gather, &[1, 2, 3, 4]).await;
        assert_eq!(*server.batches.lock(), [vec![1], vec![2]]);
        tasks.extend(spawn(&gather, &[5, 6]).await);
        server.permits.add_permits(9);
        for (task, answer) in tasks.into_iter().zip([10, 20, 30, 40, 50, 60]) {
            assert_eq!(task.await.unwrap(), answer);
        }
        assert_eq!(*server.batches.lock(), [vec![1], vec![2], vec![3, 4, 5], vec![6]]);
    }

    #[tokio::test]
    async fn jobs_that_fill_a_batch_do_not_wait_for_one_that_is_under_way() {
        let (server, gather) = gather(0);
        let tasks = spawn(&gather, &[1, 2, 3, 4]).await;
        assert_eq!(*server.batches.lock(), [vec![1], vec![2]], "two jobs wait for a third");
        let more = spawn(&gather, &[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]).await;
        let begun = [vec![1], vec![2], vec![3, 4, 5], vec![6, 7, 8], vec![9, 10, 11]];
        assert_eq!(*server.batches.lock(), begun, "so many batches and no more");
        server.permits.add_permits(99);
        for (task, job) in tasks.into_iter().chain(more).zip(1..) {
            assert_eq!(task.await.unwrap(), job * 10);
        }
    }

    #[tokio::test]
    async fn answered_callers_that_send_again_at_once_share_the_next_batch() {
        let (server, gather) = gather(0);
        let callers: Vec<_> = (0..3)
            .map(|_| {
                let gather = gather.clone();
                tokio::task::spawn(async move {
                    for job in 0..3 {
                        gather.send(job).await.unwrap();
                    }
                })
            })
            .collect();
        settle().await;
        for _ in 0..9 {
            server.permits.add_permits(1);
            settle().await;
        }
        for caller in callers {
            caller.await.unwrap();
        }
        let batches = server.batches.lock().len();
        assert!(batches <= 6, "{batches} batches for 9 jobs: {:?}", server.batches.lock());
    }

    #[tokio::test]
    async fn batches_in_order_begin_one_after_the_other() {
        let (server, _) = gather(0);
        let gather = Arc::new(Gather::in_order(3, Spawner::Tokio, server.clone()));
        let tasks = spawn(&gather, &[1, 2, 3, 4, 5, 6]).await;
        for begun in [&[vec![1]][..], &[vec![1], vec![2, 3, 4]], &[vec![1], vec![2, 3, 4], vec![5, 6]]] {
            assert_eq!(*server.batches.lock(), begun);
            server.permits.add_permits(1);
            settle().await;
        }
        for (task, job) in tasks.into_iter().zip(1..) {
            assert_eq!(task.await.unwrap(), job * 10);
        }
    }

    #[tokio::test]
    async fn a_batch_ends_before_the_job_that_would_make_it_too_large() {
        let (server, gather) = gather(0);
        let tasks = spawn(&gather, &[1, 2, 3, 2000, 4, 5]).await;
        server.permits.add_permits(9);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*server.batches.lock(), [vec![1], vec![2], vec![3], vec![2000], vec![4, 5]]);
    }

    #[tokio::test]
    async fn a_dropped_caller_neither_stops_the_others_nor_is_sent_if_it_still_waits() {
        let (server, gather) = gather(0);
        let mut tasks = spawn(&gather, &[1, 2, 3, 4]).await;
        // The first runs in its caller's future, the second is under way in a task, the others wait.
        tasks[0].abort();
        tasks[1].abort();
        tasks[3].abort();
        settle().await;
        tasks.extend(spawn(&gather, &[5]).await);
        server.permits.add_permits(9);
        let [_, _, third, _, last] = <[_; 5]>::try_from(tasks).unwrap();
        assert_eq!((third.await.unwrap(), last.await.unwrap()), (30, 50));
        assert_eq!(*server.batches.lock(), [vec![1], vec![2], vec![3, 5]]);
        assert_eq!(gather.send(6).await.unwrap(), 60);
    }

    #[tokio::test]
    async fn a_caller_that_is_not_polled_any_more_delays_nobody() {
        let (server, gather) = gather(0);
        let mut held = Box::pin(gather.send(1));
        assert!(futures::poll!(&mut held).is_pending());
        let mut waits = Box::pin(gather.send(2));
        assert!(futures::poll!(&mut waits).is_pending());
        server.permits.add_permits(9);
        // Neither of the two is polled from here on.
        assert_eq!(gather.send(3).await.unwrap(), 30);
        assert_eq!(gather.send(4).await.unwrap(), 40);
        assert_eq!((held.await.unwrap(), waits.await.unwrap()), (10, 20));
    }
}
