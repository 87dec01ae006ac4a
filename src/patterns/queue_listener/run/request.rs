//! Requests to the queue and to what goes with it: counted, bounded in time, and told of where they fail.
use std::{future::Future, time::Duration};

use crate::{
    port::Failure,
    queue_listener::{QueueCall, QueueListenerEvent as Event, run::state::Shift},
    race::{First, race},
};

impl Shift {
    /// Makes a request, which may take so long; tells of its failure. `None` where it took too long.
    pub(crate) async fn request<T, E: Failure>(
        &self,
        call: QueueCall,
        within: Duration,
        request: impl Future<Output = Result<T, E>>,
    ) -> Option<Result<T, E>> {
        if !matches!(call, QueueCall::Filter | QueueCall::Notify) {
            self.inner.counters.requests.add(1);
        }
        let answer = self.rest(call, within, request).await;
        if let Some(Err(error)) = &answer {
            self.tell_failure(call, error);
        }
        answer
    }

    /// The rest of a request that was counted.
    pub(crate) async fn rest<T>(
        &self,
        call: QueueCall,
        within: Duration,
        request: impl Future<Output = T>,
    ) -> Option<T> {
        // A request that is ready at once needs no timer.
        match race(request, async { self.inner.clock.sleep(within).await }).await {
            First::One(answer) => Some(answer),
            First::Other(()) => {
                self.event(|| Event::CallFailed { call, kind: None });
                None
            }
        }
    }

    #[cold]
    pub(crate) fn tell_failure(&self, call: QueueCall, error: &impl Failure) {
        if let Some(backend) = error.backend() {
            self.event(|| Event::CallFailed { call, kind: Some(backend.kind()) });
        }
    }
}
