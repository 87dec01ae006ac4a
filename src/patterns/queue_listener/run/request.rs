//! Requests to the queue, the filter and the notifier: counted, limited in time, and reported if
//! they fail.
use std::{future::Future, time::Duration};

use crate::{
    port::{self, Failure},
    queue_listener::{QueueCall, QueueListenerEvent as Event, run::state::RunState},
};

impl RunState {
    /// Makes a request with a time limit, and reports its failure. Returns `None` if it timed out.
    pub(crate) async fn request<T, E: Failure>(
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
            self.report_failure(call, error);
        }
        answer
    }

    /// Returns the time limit of one request to the queue.
    pub(crate) fn call_limit(&self) -> Duration {
        self.answers.limit(self.inner.call_limit(), self.parts.half)
    }

    /// Applies the time limit to a request to the queue that is already counted, and records how
    /// long it took.
    pub(crate) async fn timed<T>(
        &self,
        call: QueueCall,
        within: Duration,
        request: impl Future<Output = T>,
    ) -> Option<T> {
        let sent = self.now();
        let answer = self.bounded(call, within, request).await;
        match answer {
            Some(_) => self.answers.came_after(self.now() - sent, self.inner.call_limit()),
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
            self.event(|| Event::CallFailed { call, kind: None });
        }
        answer
    }

    #[cold]
    pub(crate) fn report_failure(&self, call: QueueCall, error: &impl Failure) {
        if let Some(backend) = error.backend() {
            self.event(|| Event::CallFailed { call, kind: Some(backend.kind()) });
        }
    }
}
