//! Requests to the queue, the filter and the notifier: counted, limited in time, and reported if
//! they fail. The limit follows the time that the queue takes to answer.
//
// Both values of `Answers` are estimates. No other data is read on the strength of them, so
// `Relaxed` suffices, and a concurrent update may be lost.
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    port::{self, Failure},
    queue::Delivery,
    queue_listener::{QueueCall, QueueListenerEvent as Event, listener::Inner},
    time::nanos,
};

/// Requests of one run.
pub(crate) struct Requests {
    pub(crate) inner: Arc<Inner>,
    answers: Answers,
    /// Longest time limit of a request: half of the visibility time-out.
    longest: Duration,
}

impl Requests {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { longest: inner.visibility() / 2, answers: Answers::default(), inner }
    }

    /// Makes a request with a time limit, and reports its failure. Returns `None` if it timed out.
    pub(crate) async fn make<T, E: Failure>(
        &self,
        call: QueueCall,
        within: Duration,
        request: impl Future<Output = Result<T, E>>,
    ) -> Option<Result<T, E>> {
        if !matches!(call, QueueCall::Filter | QueueCall::Notify | QueueCall::Control) {
            self.inner.counters.requests.add(1);
        }
        let answer = match call {
            QueueCall::Extend | QueueCall::Depth => self.timed(call, within, request).await,
            _ => self.bounded(call, within, request).await,
        };
        if let Some(Err(error)) = &answer {
            self.failed(call, error);
        }
        answer
    }

    /// Returns the time limit of one request to the queue.
    pub(crate) fn limit(&self) -> Duration {
        self.answers.limit(self.inner.call_limit(), self.longest)
    }

    /// Returns the time for which a wait that has to end still waits for its answer.
    pub(crate) fn patience(&self) -> Duration {
        self.answers.patience(self.limit())
    }

    /// Records a request that timed out.
    pub(crate) fn timed_out(&self) {
        self.answers.timed_out();
    }

    /// Applies the time limit to a request to the queue that is already counted, and records how
    /// long it took.
    pub(crate) async fn timed<T>(
        &self,
        call: QueueCall,
        within: Duration,
        request: impl Future<Output = T>,
    ) -> Option<T> {
        let sent = self.inner.clock.now();
        let answer = self.bounded(call, within, request).await;
        match answer {
            Some(_) => self.answers.came_after(self.inner.clock.now() - sent, self.inner.call_limit()),
            None => self.answers.timed_out(),
        }
        answer
    }

    /// Applies the time limit to a request that is already counted.
    pub(crate) async fn bounded<T>(
        &self,
        call: QueueCall,
        within: Duration,
        request: impl Future<Output = T>,
    ) -> Option<T> {
        let answer = port::within(&self.inner.clock, within, request).await;
        if answer.is_none() {
            self.inner.event(|| Event::CallFailed { call, kind: None });
        }
        answer
    }

    /// Reports a request that failed.
    #[cold]
    pub(crate) fn failed(&self, call: QueueCall, error: &impl Failure) {
        if let Some(backend) = error.backend() {
            self.inner.event(|| Event::CallFailed { call, kind: Some(backend.kind()) });
        }
    }

    /// Returns the identity under which a message is remembered, if there is a filter.
    #[inline]
    pub(crate) fn filter_key(&self, delivery: &Delivery) -> Option<String> {
        self.inner.filter.as_ref().map(|filter| filter.id(delivery))
    }

    /// Returns `true` if the message was handled before. If the store fails, returns `false`: a
    /// message may be handled twice, but is never skipped.
    pub(crate) async fn is_duplicate(&self, delivery: &Delivery) -> bool {
        let Some(filter) = &self.inner.filter else { return false };
        let id = filter.id(delivery);
        let known = self.make(QueueCall::Filter, self.inner.call_limit(), filter.was_handled(&id)).await;
        matches!(known, Some(Ok(true)))
    }

    /// Records that the message was handled.
    pub(crate) async fn remember(&self, id: &str) {
        let Some(filter) = &self.inner.filter else { return };
        // A failure is reported by `make`; the message is completed nevertheless.
        let _ = self.make(QueueCall::Filter, self.inner.call_limit(), filter.record(id)).await;
    }
}

/// Largest number of times that the time limit is doubled.
const DOUBLINGS: u32 = 10;

/// Shortest time for which a stop waits for the answer of a request that may take messages.
const LEAST: Duration = Duration::from_millis(50);

/// Recent times of answers.
#[derive(Default)]
struct Answers {
    /// Number of times that the time limit is doubled: once for each request in a row that timed
    /// out.
    doublings: AtomicU32,
    /// The slowest recent answer, in nanoseconds.
    slowest: AtomicU64,
}

impl Answers {
    /// Returns the time limit of a request. It grows from `base` while requests time out, so that a
    /// queue that is slow, but works, can be used; at most to `most`.
    fn limit(&self, base: Duration, most: Duration) -> Duration {
        base.saturating_mul(1 << self.doublings.load(Relaxed)).min(most).max(base)
    }

    /// Records a request that timed out.
    fn timed_out(&self) {
        let doublings = self.doublings.load(Relaxed);
        self.doublings.store((doublings + 1).min(DOUBLINGS), Relaxed);
    }

    /// Records an answer that came after this time.
    fn came_after(&self, time: Duration, base: Duration) {
        let slowest = self.slowest.load(Relaxed);
        self.slowest.store(nanos(time).max(slowest - slowest / 8), Relaxed);
        if time <= base && self.doublings.load(Relaxed) > 0 {
            self.doublings.store(0, Relaxed);
        }
    }

    /// Returns the time for which a wait that has to end still waits for its answer: four times
    /// that of the slowest recent answer. A request that the wait has just made may take messages.
    fn patience(&self, most: Duration) -> Duration {
        Duration::from_nanos(self.slowest.load(Relaxed)).saturating_mul(4).max(LEAST).min(most)
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_limit_grows_while_requests_time_out_and_falls_with_a_quick_answer() {
        let (base, most) = (Duration::from_secs(5), Duration::from_secs(15));
        let answers = Answers::default();
        assert_eq!(answers.limit(base, most), base);
        answers.timed_out();
        assert_eq!(answers.limit(base, most), base * 2);
        answers.timed_out();
        answers.came_after(Duration::from_secs(6), base);
        assert_eq!(answers.limit(base, most), most, "a slow answer keeps it");
        answers.came_after(base, base);
        assert_eq!(answers.limit(base, most), base);
        assert_eq!(answers.limit(base, Duration::from_secs(1)), base);
    }

    #[test]
    fn a_stop_waits_as_long_as_recent_answers_took() {
        let answers = Answers::default();
        let most = Duration::from_secs(5);
        assert_eq!(answers.patience(most), LEAST);
        answers.came_after(Duration::from_millis(100), most);
        assert_eq!(answers.patience(most), Duration::from_millis(400));
        (0..100).for_each(|_| answers.came_after(Duration::from_millis(1), most));
        assert_eq!(answers.patience(most), LEAST);
        answers.came_after(most, most);
        assert_eq!(answers.patience(most), most);
    }
}
