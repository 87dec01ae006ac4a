//! Agents behind a queue: they answer requests of steps while there is time, and say nothing after.
use std::{collections::BTreeMap, fmt, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;

use super::reply::{Replier, Replies};
use crate::{
    build::{Builder, Common, Component, HasEntropy},
    config::ConfigError,
    port::{PortError, within},
    queue::{Delivery, Message, Queue},
    queue_listener::{QueueListener, QueueListenerConfig, Work},
    time::Clock,
    work::Disposition,
};

/// Header of a request with the idempotency key.
const KEY: &str = "idempotency-key";

/// A service that answers requests from a queue, for steps that reach it by a
/// [`Requester`](crate::queue::Requester).
///
/// A request carries the time for which its step waits. When that has passed, the agent drops the
/// handler and sends no reply: the step counts the attempt as unknown, and asks again under the
/// same key. Replies to earlier requests are discarded by the requester. The handler applies the
/// request through a [`Participant`](crate::saga::Participant), which repeats its reply for a
/// repeated key.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use steadfast::{
///     queue::{InMemoryQueue, Requester},
///     saga::{Executed, Participant},
///     scheduler::{Agent, AgentCall},
///     store::InMemoryStore,
///     time::Clock,
/// };
///
/// # let (clock, driver) = Clock::manual();
/// # driver.block_on(async {
/// let queue = |name| Arc::new(InMemoryQueue::builder(name).clock(&clock).build());
/// let (requests, replies) = (queue("couriers"), queue("scheduler-1"));
/// let found = replies.clone();
/// let agent = Agent::builder(requests.clone(), Default::default())
///     .clock(&clock)
///     .replies(move |name| (name == "scheduler-1").then(|| found.clone() as _))
///     .build()?;
/// let couriers = Participant::new(Arc::new(InMemoryStore::new()), "couriers")?;
/// let agent = agent.run(clock.sleep(Duration::from_secs(60)), async |call: AgentCall| {
///     match couriers.execute(&call.key, vec![], "courier 7").await? {
///         Executed::AlreadyApplied(reply) => Ok(reply),
///         _ => Ok::<_, steadfast::store::StoreError>("courier 7".into()),
///     }
/// });
///
/// // In a step, with `step.key()`:
/// let requester = Requester::builder(requests, replies, "scheduler-1").clock(&clock).build();
/// let limit = Duration::from_secs(5);
/// let request = AgentCall::request("order/42/courier", "to the moon", limit);
/// let (_, reply) = tokio::join!(agent, requester.request(request, limit));
/// assert_eq!(reply?.body, "courier 7");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// Clones share their state.
#[derive(Clone)]
pub struct Agent {
    queue: Arc<dyn Queue>,
    listener: QueueListener,
    limit: Duration,
    clock: Clock,
    replies: Option<Replies>,
}

/// One request to an [`Agent`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AgentCall {
    /// The idempotency key, the same for each attempt of a step.
    pub key: String,
    /// The body of the request.
    pub body: Bytes,
    /// The headers of the request, such as `traceparent`: those that its sender has set, and those
    /// of this crate.
    pub headers: BTreeMap<String, String>,
    /// Time for which the step still waits, as of the delivery.
    pub left: Duration,
}

impl AgentCall {
    /// Returns the message of a request: the key of the step, the body, and the time for which the
    /// step waits. Pass the same time to [`Requester::request`](crate::queue::Requester::request).
    pub fn request(key: impl Into<String>, body: impl Into<Bytes>, limit: Duration) -> Message {
        Message::new(body).header(KEY, key).expires_after(limit)
    }

    fn of(delivery: &Delivery) -> Option<Self> {
        let (key, left) = (delivery.headers.get(KEY)?.clone(), delivery.time_left()?);
        Some(Self { key, body: delivery.body.clone(), headers: delivery.headers.clone(), left })
    }
}

/// Arguments of an agent, beside clock and entropy.
pub struct AgentSpec {
    queue: Arc<dyn Queue>,
    config: QueueListenerConfig,
    replies: Option<Replies>,
}

impl Builder<Agent> {
    /// Sets the function that returns the reply queue of a name that a request gave. Without it no
    /// reply is sent.
    pub fn replies(mut self, find: impl Fn(&str) -> Option<Arc<dyn Queue>> + Send + Sync + 'static) -> Self {
        self.spec.replies = Some(Arc::new(find));
        self
    }
}

impl Component for Agent {
    type Built = Result<Self, ConfigError>;
    type Spec = AgentSpec;

    fn assemble(AgentSpec { queue, config, replies }: AgentSpec, common: Common) -> Self::Built {
        let (clock, limit) = (common.clock.clone(), config.call_limit());
        let mut listener = QueueListener::builder(queue.clone(), config);
        listener.common = common;
        Ok(Self { queue, listener: listener.build()?, limit, clock, replies })
    }
}

impl HasEntropy for Agent {}

impl Agent {
    /// Creates a builder of an agent of this queue of requests, with the settings of its listener.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CAgent%3E): `replies`.
    pub fn builder(requests: Arc<dyn Queue>, config: QueueListenerConfig) -> Builder<Self> {
        Builder::new(AgentSpec { queue: requests, config, replies: None })
    }

    /// Answers requests until `shutdown` is ready. `handler` returns the body of the reply. If it
    /// fails, the request is delivered again while there is time.
    ///
    /// # Errors
    /// Permanent failures of the queue.
    ///
    /// # Cancel safety
    /// A dropped future drops its handlers. Their requests are delivered again.
    pub async fn run<F, H, E>(&self, shutdown: impl Future<Output = ()>, handler: F) -> Result<(), PortError>
    where
        F: Fn(AgentCall) -> H,
        H: Future<Output = Result<Bytes, E>>,
        E: fmt::Display,
    {
        let handler = &handler;
        self.listener.run(shutdown, |work: Work| self.answer(work, handler)).await
    }

    async fn answer<F, H, E>(&self, work: Work, handler: &F) -> Disposition
    where
        F: Fn(AgentCall) -> H,
        H: Future<Output = Result<Bytes, E>>,
        E: fmt::Display,
    {
        let Some(call) = AgentCall::of(&work) else { return Disposition::dead_letter("no request to an agent") };
        let left = call.left;
        if left.is_zero() {
            return Disposition::Complete;
        }
        let body = match within(&self.clock, left, handler(call)).await {
            // No caller waits: it has counted the attempt as unknown.
            None => return Disposition::Complete,
            Some(Err(error)) => return Disposition::retry(error),
            Some(Ok(body)) => body,
        };
        let Some(to) = work.reply_to() else { return Disposition::Complete };
        let Some(queue) = self.replies.as_ref().and_then(|find| find(to.queue)) else { return Disposition::Complete };
        let replier = Replier { queue: &self.queue, clock: &self.clock, limit: self.limit };
        let replied = replier.complete(&work, &queue, to.reply(body), to.correlation_id.to_owned()).await;
        // The handler repeats its reply.
        replied.unwrap_or_else(|error| Disposition::Refused { after: None, error: error.to_string() })
    }
}

crate::build::debug_fields!(Agent, |this| queue: this.queue);
