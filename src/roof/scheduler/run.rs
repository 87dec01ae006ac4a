//! Running sagas: one message for each, until it ends.
use std::{
    convert::Infallible,
    future::{Future, pending},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::watch;

use super::{
    STATUS, Scheduler, SchedulerEvent as Event,
    reply::Replier,
    scheduler::SchedulerInner,
    submission::{self, Kind, Parts, SAGA_ID, number_of},
};
use crate::{
    port::{ErrorClass, Failure, PortError},
    queue::{Message, Queue, QueueError, ReplyTo},
    queue_listener::Work,
    race::{First, race},
    saga::{SagaError, SagaPhase, Start, Turn, Turned},
    work::Disposition,
};

/// Delay after which a message looks again for a saga that runs elsewhere, to keep its place in its
/// group.
const LOOK: Duration = Duration::from_secs(5);

/// Delay of a message that this process cannot handle, but another process may.
const ELSEWHERE: Duration = Duration::from_secs(30);

const LATE: &str = "the deadline has passed";
const STALLED: &str = "no process carried the saga on";

impl<T: Send + Sync + 'static> Scheduler<T> {
    /// Runs submitted sagas until `shutdown` is ready; then releases each at its next step. Run
    /// it in any number of processes.
    ///
    /// # Errors
    /// Permanent failures of the queue, such as a missing permission.
    ///
    /// # Cancel safety
    /// A dropped future is a crash of its executions: their messages are delivered again after
    /// their visibility time-out.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) -> Result<(), PortError> {
        let inner = &*self.0;
        // A stop waits as long as a step may take, and the saga's settings may have changed. They
        // were valid, and so are these.
        let update = || _ = inner.update_listener();
        update();
        let shutdown = async {
            shutdown.await;
            update();
        };
        inner.listener.run(shutdown, |work: Work| inner.handle(work)).await
    }
}

impl<T: Send + Sync + 'static> SchedulerInner<T> {
    async fn handle(&self, work: Work) -> Disposition {
        let Some(Parts { id, kind, deadline, epoch }) = Parts::of(&work.headers) else {
            return self.dead_letter("", "no message of a scheduler");
        };
        let mut start = None;
        if kind == Kind::Submit {
            let state = match self.saga.decode(&work.body) {
                Ok(state) => state,
                Err(error) => return self.dead_letter(id, &error.to_string()),
            };
            let rows = self.rows.as_ref().map(|rows| rows(id, &state)).unwrap_or_default();
            let origin = submission::origin(&work.headers, work.group.as_deref());
            start = Some(Start { state: work.body.clone(), rows, origin });
        }
        match self.crashes_too_often(&work, id).await {
            Ok(false) => {}
            Ok(true) => return self.dead_letter(id, "its process died too often before the saga was claimed"),
            Err(error) => return self.failed(id, error),
        }
        // Told before the saga exists, so that one that exists was told.
        let is_new = match kind {
            Kind::Submit if work.deliveries > 1 => self.saga.core().exists(id).await.map(|exists| !exists),
            kind => Ok(kind == Kind::Submit),
        };
        match is_new {
            Ok(false) => {}
            Ok(true) => {
                if let Err(error) = self.tell_received(&work, id).await {
                    return self.reply_failed(id, &error);
                }
            }
            Err(error) => return self.failed(id, error),
        }
        // By the age of the message at its delivery, and this process's clock from then on.
        let clock = &self.common.clock;
        let deadline = deadline.map(|deadline| clock.now() + deadline.saturating_sub(work.age));
        let is_late = deadline.is_some_and(|at| at <= clock.now());
        let (stop, stopped) = watch::channel(work.is_cancelled());
        let turn = Turn {
            id,
            start,
            request: number_of(&self.queue.identity(), &work.id),
            epoch,
            cancel: match kind {
                _ if is_late => Some(LATE),
                Kind::Cancel => Some(STALLED),
                _ => None,
            },
            deadline: deadline.filter(|_| !is_late).map(|at| (at, LATE)),
            stopped,
        };
        let stops = async {
            work.cancelled().await;
            stop.send_replace(true);
            pending::<Infallible>().await
        };
        let turned = match race(self.saga.core().turn(turn), stops).await {
            First::One(turned) => turned,
            First::Other(never) => match never {},
        };
        match turned {
            Ok(Turned::Ended) => self.ended(&work, id).await,
            // Released at its next step, as this process stops.
            Ok(Turned::Deferred(Duration::ZERO)) => Disposition::Release,
            Ok(Turned::Deferred(delay)) if is_late => Disposition::snooze(delay), // past its pivot
            Ok(Turned::Deferred(delay)) => {
                Disposition::snooze(deadline.map_or(delay, |at| delay.min(at - clock.now())))
            }
            // Another message has its execution, such as a wake. One that may have had it before sees
            // to its deadline and tells its end, and keeps its place in its group.
            Ok(Turned::Busy) if work.group.is_some() || kind != Kind::Wake && work.deliveries > 1 => {
                if is_late && work.deliveries > 1 {
                    // If the request fails, the next delivery repeats it.
                    let _ = self.saga.core().request_cancel(id, LATE).await;
                }
                Disposition::snooze(LOOK)
            }
            Ok(Turned::Busy | Turned::Absent) => Disposition::Complete,
            Err(error) => self.failed(id, error),
        }
    }

    /// Returns `true` if processes died in the handling of the message more often than its saga was
    /// claimed: they die before they come to the saga. A delivery whose handling did not begin,
    /// such as one whose answer was lost, does not count.
    async fn crashes_too_often(&self, work: &Work, id: &str) -> Result<bool, SagaError> {
        // The first death is not recorded: until then nothing made the message suspect.
        let most = self.config.load().max_deliveries.saturating_sub(1).max(1);
        if work.crashes < most {
            return Ok(false);
        }
        let claims = match self.saga.read(id).await {
            Ok(status) => status.map_or(0, |status| status.epoch.as_u64()),
            Err(SagaError::Incompatible(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        Ok(u64::from(work.crashes) >= claims.saturating_add(most.into()))
    }

    fn failed(&self, id: &str, error: SagaError) -> Disposition {
        let text = error.to_string();
        match error {
            // No limit is consumed while the store is unavailable.
            SagaError::Store(error) => Disposition::Refused { after: error.retry_after(), error: text },
            SagaError::Incompatible(_) => Disposition::Refused { after: Some(ELSEWHERE), error: text },
            _ => self.dead_letter(id, &text),
        }
    }

    fn dead_letter(&self, id: &str, reason: &str) -> Disposition {
        self.event(|| Event::DeadLettered { id: id.to_owned(), reason: reason.to_owned() });
        Disposition::dead_letter(reason)
    }

    /// Completes the message of a saga that ended, with a status message.
    async fn ended(&self, work: &Work, id: &str) -> Disposition {
        let Some((queue, to)) = self.reply_queue(work) else { return Disposition::Complete };
        let (status, body) = match self.status(id).await {
            Ok(Some(found)) => found,
            Ok(None) => return Disposition::Complete,
            Err(error) => return self.failed(id, error),
        };
        let replier = self.replier();
        let message = status_message(&to, body.into(), status, id);
        let completed = replier.complete(work, &queue, message, self.once(&to, status, id));
        completed.await.unwrap_or_else(|error| self.reply_failed(id, &error))
    }

    /// Returns the status of a saga that ended as a word, and the body of its status message: the
    /// encoded state of a completed saga, else the reason.
    async fn status(&self, id: &str) -> Result<Option<(&'static str, Vec<u8>)>, SagaError> {
        let Some(found) = self.saga.read(id).await? else { return Ok(None) };
        Ok(Some(match found.phase {
            SagaPhase::Completed => {
                let state =
                    self.saga.encode(&found.state).map_err(|error| SagaError::Incompatible(error.to_string()))?;
                ("completed", state)
            }
            SagaPhase::Compensated => ("compensated", found.reason.into_bytes()),
            SagaPhase::Stuck => ("stuck", found.reason.into_bytes()),
            _ => return Ok(None),
        }))
    }

    async fn tell_received(&self, work: &Work, id: &str) -> Result<(), QueueError> {
        let Some((queue, to)) = self.reply_queue(work) else { return Ok(()) };
        let message = status_message(&to, Bytes::new(), "received", id);
        self.replier().send(&queue, message, self.once(&to, "received", id)).await
    }

    /// Returns the de-duplication id of a status message. Sagas of other names, and other
    /// submissions of the same saga, may reply to the same queue.
    fn once(&self, to: &ReplyTo<'_>, status: &str, id: &str) -> String {
        format!("{}/{}/{id}/{status}/{}", self.name, id.len(), to.correlation_id)
    }

    fn replier(&self) -> Replier<'_> {
        Replier { queue: &self.queue, clock: &self.common.clock, limit: self.limit() }
    }

    fn reply_failed(&self, id: &str, error: &QueueError) -> Disposition {
        let (is_permanent, error) = (error.class() == ErrorClass::Permanent, error.to_string());
        self.event(|| Event::ReplyFailed { id: id.to_owned(), error: error.clone() });
        // Such as a state that is too large for a message: no repetition helps.
        if is_permanent {
            return self.dead_letter(id, &format!("its status message was refused: {error}"));
        }
        Disposition::Refused { after: None, error }
    }

    /// Returns the queue for status messages, and their address.
    fn reply_queue<'a>(&self, work: &'a Work) -> Option<(Arc<dyn Queue>, ReplyTo<'a>)> {
        let to = work.reply_to()?;
        Some((self.replies.as_ref()?(to.queue)?, to))
    }
}

fn status_message(to: &ReplyTo<'_>, body: Bytes, status: &str, id: &str) -> Message {
    to.reply(body).header(STATUS, status).header(SAGA_ID, id)
}
