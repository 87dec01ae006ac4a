//! The supervisor: finds open sagas without an executor, and sends messages that resume them.
use std::{future::Future, pin::pin};

use super::{Scheduler, SchedulerEvent as Event, scheduler::SchedulerInner, submission};
use crate::{
    port::{ErrorClass, ask},
    race::{First, race},
    saga::{AllSeen, SagaError},
};

impl<T: Send + Sync + 'static> Scheduler<T> {
    /// Watches the open sagas until `shutdown` is ready. One process is enough, and several are
    /// safe.
    ///
    /// A message carries each saga, and comes back after a crash. The supervisor is for messages
    /// that are gone: purged, dead-lettered, or lost with their queue. Every
    /// [`scan_interval`](crate::saga::SagaConfig::scan_interval) of the saga it reads the open
    /// sagas. One whose record did not change for
    /// [`takeover_after`](crate::saga::SagaConfig::takeover_after) beyond its own delay gets a new
    /// message. After [`max_failures`](super::SchedulerConfig::max_failures) the message also
    /// cancels the saga; after twice as many the saga is stuck. While messages wait in the queue,
    /// it neither cancels nor gives up: the saga's own may be among them.
    ///
    /// It knows nothing of the steps, calls no service, and restarts no process.
    ///
    /// # Errors
    /// Permanent failures of the store. Other failures are events of the saga.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing but the times since which records were seen unchanged.
    pub async fn supervise(&self, shutdown: impl Future<Output = ()>) -> Result<(), SagaError> {
        let inner = &*self.0;
        let (mut shutdown, mut seen) = (pin!(shutdown), AllSeen::new());
        loop {
            match race(shutdown.as_mut(), inner.look(&mut seen)).await {
                First::One(()) => return Ok(()),
                First::Other(Err(SagaError::Store(error))) if error.class() == ErrorClass::Permanent => {
                    return Err(SagaError::Store(error));
                }
                First::Other(_) => {}
            }
            let wait = inner.common.clock.sleep(inner.saga.core().scan_interval());
            if let First::One(()) = race(shutdown.as_mut(), wait).await {
                return Ok(());
            }
        }
    }
}

impl<T: Send + Sync + 'static> SchedulerInner<T> {
    /// Looks once at all open sagas.
    async fn look(&self, seen: &mut AllSeen) -> Result<(), SagaError> {
        let most = self.config.load().max_failures;
        // While messages wait, that of a silent saga may be among them.
        let depth = ask(&self.common.clock, self.limit(), self.queue.depth()).await;
        let limit = if depth.is_ok_and(|depth| depth.visible == 0) { u32::MAX } else { most };
        let silent = self.saga.core().silent(seen, limit, most.saturating_mul(2)).await?;
        for silent in silent {
            let (id, failures) = (silent.id.clone(), silent.failures);
            if silent.is_stranded {
                self.event(|| Event::Stranded { id, failures });
                continue;
            }
            let cancels = failures > most;
            // A message that cannot be sent is sent after the next time without a change.
            let message = submission::resume(silent, cancels, &self.queue.capabilities());
            if self.send(&self.queue, message).await.is_ok() {
                self.event(|| Event::Resent { id, failures, cancels });
            }
        }
        Ok(())
    }
}
