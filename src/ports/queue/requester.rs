//! Questions and answers over queues: a question names the queue for its answer, and an id that tells which question it answers.
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use tokio::sync::{Notify, Semaphore};

use super::{Delivery, Message, Queue, QueueError, QueueExt, Receive, Settle};
use crate::{
    entropy::Entropy,
    port::{ErrorClass, Failure},
    race::{First, race},
    sync::Mutex,
    time::{Clock, Instant},
};

/// The header that names the queue for the answer.
const REPLY_TO: &str = "reply-to";
/// The header that tells which question an answer is to.
const CORRELATION_ID: &str = "correlation-id";
/// How long an answer is hidden while its asker is looked for.
const LOOK: Duration = Duration::from_secs(30);
/// How often a reply queue is asked that cannot wait by itself.
const POLL: Duration = Duration::from_millis(100);

/// Where an answer is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplyTo<'a> {
    /// The name of the queue for the answer.
    pub queue: &'a str,
    /// Which question it answers.
    pub correlation_id: &'a str,
}

impl<'a> ReplyTo<'a> {
    /// As a message's headers have it, if they do.
    pub fn of(headers: &'a BTreeMap<String, String>) -> Option<Self> {
        Some(Self { queue: headers.get(REPLY_TO)?, correlation_id: headers.get(CORRELATION_ID)? })
    }

    /// The answer, to be sent to the queue of that name.
    pub fn answer(&self, body: impl Into<bytes::Bytes>) -> Message {
        Message::new(body).header(CORRELATION_ID, self.correlation_id)
    }
}

/// Asks questions through a queue, and waits for their answers in another, which is this requester's own.
///
/// Any number of questions may wait at once. One of them at a time looks into the reply queue, for all; no task is spawned. A clone is the
/// same.
#[derive(Clone)]
pub struct Requester(Arc<Inner>);

struct Inner {
    requests: Arc<dyn Queue>,
    replies: Arc<dyn Queue>,
    name: String,
    clock: Clock,
    entropy: Entropy,
    /// The answers that came, by question; a question that waits has an entry.
    waiting: Mutex<HashMap<String, Option<Delivery>>>,
    came: Notify,
    /// Who looks into the reply queue.
    turn: Semaphore,
}

/// Why there is no answer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// None came in time. The question may be answered yet; its answer will be thrown away.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// A queue failed.
    #[error(transparent)]
    Failed(#[from] QueueError),
}

impl Requester {
    /// Asks through `requests`, and is answered through `replies`, which those who answer know as `name`.
    pub fn new(requests: Arc<dyn Queue>, replies: Arc<dyn Queue>, name: impl Into<String>) -> Self {
        Self::make(requests, replies, name.into(), Clock::default(), Entropy::default())
    }

    fn make(requests: Arc<dyn Queue>, replies: Arc<dyn Queue>, name: String, clock: Clock, entropy: Entropy) -> Self {
        let (waiting, came, turn) = (Mutex::default(), Notify::new(), Semaphore::new(1));
        Self(Arc::new(Inner { requests, replies, name, clock, entropy, waiting, came, turn }))
    }

    /// The same on this clock, with ids from this stream. tokio's clock and a stream seeded by the system by default.
    #[must_use]
    pub fn with(self, clock: &Clock, entropy: &Entropy) -> Self {
        let Inner { requests, replies, name, .. } = &*self.0;
        Self::make(requests.clone(), replies.clone(), name.clone(), clock.clone(), entropy.clone())
    }

    /// Sends the question, and waits for its answer for so long.
    ///
    /// # Errors
    /// [`RequestError::TimedOut`] where none came; those of the queues that do not pass by themselves.
    ///
    /// # Cancel safety
    /// Dropped, the question may have been sent, and its answer is thrown away.
    pub async fn request(&self, question: Message, within: Duration) -> Result<Delivery, RequestError> {
        let inner = &*self.0;
        let by = inner.clock.now() + within;
        let id = format!("{:016x}{:016x}", inner.entropy.next_u64(), inner.entropy.next_u64());
        inner.waiting.lock().insert(id.clone(), None);
        let waits = Waits { inner, id: &id };
        let question = question.header(REPLY_TO, inner.name.clone()).header(CORRELATION_ID, id.clone());
        let answer = async {
            inner.requests.send_one(question).await?;
            loop {
                // Made before the look: what comes in between is heard.
                let came = inner.came.notified();
                if let Some(answer) = waits.answer() {
                    return Ok(answer);
                }
                // An error means that it was closed, which it never is. Who has its turn looks to the end: nothing else brings its answer.
                if let First::Other(_turn) = race(came, inner.turn.acquire()).await {
                    inner.look(by).await?;
                }
            }
        };
        match race(answer, inner.clock.sleep_until(by)).await {
            First::One(answer) => answer,
            First::Other(()) => Err(RequestError::TimedOut(within)),
        }
    }
}

impl Inner {
    /// Looks into the reply queue once.
    async fn look(&self, by: Instant) -> Result<(), QueueError> {
        let wait = by - self.clock.now();
        let began = self.clock.now();
        let taken = match self.replies.receive(Receive::new(32, LOOK).wait(wait)).await {
            Ok(taken) => taken,
            Err(error) if error.class() == ErrorClass::Permanent => return Err(error),
            Err(_) => Vec::new(),
        };
        if taken.is_empty() && self.clock.now() - began < POLL {
            self.clock.sleep(POLL).await;
        }
        // Told before it is settled: an answer that is dropped in between comes back, and finds nobody who waits.
        let mut settlements = Vec::with_capacity(taken.len());
        {
            let mut waiting = self.waiting.lock();
            for answer in taken {
                settlements.push((answer.receipt.clone(), Settle::Complete));
                let asker = answer.headers.get(CORRELATION_ID).and_then(|id| waiting.get_mut(id));
                if let Some(place) = asker {
                    *place = Some(answer);
                }
            }
        }
        self.came.notify_waiters();
        if !settlements.is_empty() {
            // What is not settled comes back, and is thrown away then.
            drop(self.replies.settle(settlements).await);
        }
        Ok(())
    }
}

/// A question that waits; nobody waits for its answer once this is dropped.
struct Waits<'a> {
    inner: &'a Inner,
    id: &'a str,
}

impl Waits<'_> {
    fn answer(&self) -> Option<Delivery> {
        self.inner.waiting.lock().get_mut(self.id)?.take()
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.inner.waiting.lock().remove(self.id);
    }
}

impl fmt::Debug for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requester").field("name", &self.0.name).finish_non_exhaustive()
    }
}
