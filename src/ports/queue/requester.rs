//! Request and reply over queues. A request names the queue for its reply, and carries a
//! correlation id.
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::sync::{Notify, Semaphore};

use super::{Delivery, Message, Queue, QueueError, QueueExt, Receive, Settle};
use crate::{
    build::{Builder, Common, Component, HasEntropy},
    entropy::Entropy,
    port::{self, ErrorClass, Failure},
    race::{First, race},
    sync::Mutex,
    time::{Clock, Instant},
};

/// Header with the name of the reply queue.
const REPLY_TO: &str = "reply-to";
/// Header with the id of the request that a reply belongs to.
const CORRELATION_ID: &str = "correlation-id";
/// Visibility time-out of a reply while its request is looked up. A request that is dropped
/// meanwhile may have taken the replies of others, which are then late by this time. A reply that
/// returns although it was delivered is discarded.
const LOOK: Duration = Duration::from_secs(2);
/// Interval between two polls of a reply queue that cannot wait by itself.
const POLL: Duration = Duration::from_millis(100);

/// Address for the reply to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplyTo<'a> {
    /// Name of the reply queue.
    pub queue: &'a str,
    /// Id of the request.
    pub correlation_id: &'a str,
}

impl<'a> ReplyTo<'a> {
    /// Reads the address from the headers of a message, if it has one.
    pub fn of(headers: &'a BTreeMap<String, String>) -> Option<Self> {
        Some(Self { queue: headers.get(REPLY_TO)?, correlation_id: headers.get(CORRELATION_ID)? })
    }

    /// Returns a reply, to be sent to the queue of that name.
    pub fn reply(&self, body: impl Into<bytes::Bytes>) -> Message {
        Message::new(body).header(CORRELATION_ID, self.correlation_id)
    }
}

/// Sends requests through one queue and waits for the replies in another, which belongs to this
/// requester alone.
///
/// Any number of requests may wait at once. One of them at a time polls the reply queue on behalf
/// of all; no task is spawned. Clones share their state.
#[derive(Clone)]
pub struct Requester(Arc<Inner>);

struct Inner {
    requests: Arc<dyn Queue>,
    replies: Arc<dyn Queue>,
    name: String,
    clock: Clock,
    entropy: Entropy,
    /// Replies that arrived, by request id. Each waiting request has an entry.
    waiting: Mutex<HashMap<String, Option<Delivery>>>,
    came: Notify,
    /// Permit to poll the reply queue.
    turn: Semaphore,
}

/// Error of a request without a reply.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// No reply arrived in time. The request may still be handled; its reply will be discarded.
    #[error("no reply within {0:?}")]
    TimedOut(Duration),
    /// A queue failed.
    #[error(transparent)]
    Failed(#[from] QueueError),
}

/// Arguments of a requester, beside name, clock and entropy.
pub struct RequesterSpec {
    requests: Arc<dyn Queue>,
    replies: Arc<dyn Queue>,
    name: String,
}

impl Component for Requester {
    type Built = Self;
    type Spec = RequesterSpec;

    fn assemble(spec: RequesterSpec, common: Common) -> Self {
        let RequesterSpec { requests, replies, name } = spec;
        let (entropy, clock) = (common.entropy(), common.clock);
        let (waiting, came, turn) = (Mutex::default(), Notify::new(), Semaphore::new(1));
        Self(Arc::new(Inner { requests, replies, name, clock, entropy, waiting, came, turn }))
    }
}

impl HasEntropy for Requester {}

impl Requester {
    /// Creates a requester that sends to `requests` and receives from `replies`. The other side
    /// knows the reply queue as `name`.
    pub fn new(requests: Arc<dyn Queue>, replies: Arc<dyn Queue>, name: impl Into<String>) -> Self {
        Self::builder(requests, replies, name).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new).
    pub fn builder(requests: Arc<dyn Queue>, replies: Arc<dyn Queue>, name: impl Into<String>) -> Builder<Self> {
        Builder::new(RequesterSpec { requests, replies, name: name.into() })
    }

    /// Sends a request and waits for its reply, at most for `within`.
    ///
    /// # Errors
    /// [`RequestError::TimedOut`] if no reply arrived in time; permanent failures of the queues.
    ///
    /// # Cancel safety
    /// Not cancel safe: the request may have been sent, and its reply is discarded.
    pub async fn request(&self, request: Message, within: Duration) -> Result<Delivery, RequestError> {
        let inner = &*self.0;
        let by = inner.clock.now() + within;
        let id = inner.entropy.id();
        inner.waiting.lock().insert(id.clone(), None);
        let waits = Waits { inner, id: &id };
        let request = request.header(REPLY_TO, inner.name.clone()).header(CORRELATION_ID, id.clone());
        let reply = async {
            inner.requests.send_one(request).await?;
            loop {
                // Created before the check, so that a reply in between is noticed.
                let came = inner.came.notified();
                if let Some(reply) = waits.take() {
                    return Ok(reply);
                }
                // The semaphore is never closed. The future that has the permit keeps polling: no
                // other brings its reply.
                if let First::Other(_turn) = race(came, inner.turn.acquire()).await {
                    inner.look(by).await?;
                }
            }
        };
        port::within(&inner.clock, within, reply).await.unwrap_or(Err(RequestError::TimedOut(within)))
    }
}

impl Inner {
    /// Polls the reply queue once.
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
        // Delivered to its request before it is settled. If this future is dropped in between, the
        // reply is received again and discarded.
        let mut settlements = Vec::with_capacity(taken.len());
        {
            let mut waiting = self.waiting.lock();
            for reply in taken {
                settlements.push((reply.receipt.clone(), Settle::Complete));
                let request = reply.headers.get(CORRELATION_ID).and_then(|id| waiting.get_mut(id));
                if let Some(place) = request {
                    *place = Some(reply);
                }
            }
        }
        self.came.notify_waiters();
        if !settlements.is_empty() {
            // A reply that is not settled is received again and discarded.
            drop(self.replies.settle(settlements).await);
        }
        Ok(())
    }
}

/// Entry of a waiting request; removed on drop.
struct Waits<'a> {
    inner: &'a Inner,
    id: &'a str,
}

impl Waits<'_> {
    fn take(&self) -> Option<Delivery> {
        self.inner.waiting.lock().get_mut(self.id)?.take()
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.inner.waiting.lock().remove(self.id);
    }
}

crate::build::debug_fields!(Requester, |this| name: this.0.name);
