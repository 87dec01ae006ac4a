//! Channels: one connection of its own for all subscriptions of a handle.
//!
//! The connection is made with the first subscription. Pushed messages are delivered in the order
//! of the socket, also relative to the confirmations of subscriptions.
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use redis::{PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tokio::sync::{mpsc, oneshot};

use super::{
    connection::{self, Driver},
    failure::{failed, failure},
    link::Base,
};
use crate::{
    backend::common::mailbox::Mailbox,
    backoff::Backoff,
    notify::Notice,
    port::{PortError, PortErrorKind, within},
    race::{First, race},
    spawn::Spawner,
    sync::Mutex,
};

/// Maximum numbers of notices, and of their bytes, that a subscription may be behind.
const BEHIND: usize = 1024;
const BEHIND_BYTES: usize = 16 << 20;

/// Maximum number of channels in one request.
const CHANNELS: usize = 500;

/// Time without requests after which the connection is tested: a peer that vanished closes nothing.
const QUIET: Duration = Duration::from_secs(15);

/// The subscriptions of a handle. Dropping it and all subscriptions closes the connection.
pub(super) struct PubSub {
    base: Base,
    requests: Mutex<Option<mpsc::UnboundedSender<Request>>>,
}

enum Request {
    Subscribe(String, oneshot::Sender<Result<Subscription, PortError>>),
    /// The channel may have no subscription any more.
    Unsubscribe(String),
}

/// A subscription to a channel. Dropping it ends it.
pub(super) struct Subscription {
    mailbox: Arc<Mailbox>,
    channel: String,
    requests: mpsc::UnboundedSender<Request>,
}

/// The channels of a connection.
#[derive(Default)]
struct Channels(Mutex<HashMap<Bytes, Channel>>);

#[derive(Default)]
struct Channel {
    mailboxes: Vec<Weak<Mailbox>>,
    /// One for each request to subscribe that the server has not confirmed yet.
    pending: VecDeque<Pending>,
}

enum Pending {
    Join(Arc<Mailbox>, oneshot::Sender<()>),
    /// The connection was restored: notices may have been missed.
    Gap,
}

impl PubSub {
    pub(super) fn new(base: Base) -> Self {
        Self { base, requests: Mutex::new(None) }
    }

    /// Subscribes to the notices that are published to the channel from now on. Connects if this is
    /// the first subscription.
    pub(super) async fn subscribe(&self, channel: String) -> Result<Subscription, PortError> {
        let (reply, answer) = oneshot::channel();
        self.request(Request::Subscribe(channel, reply));
        let closed =
            || failure(&self.base.connector.target, PortErrorKind::Unavailable, "the connection for channels was lost");
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    fn request(&self, request: Request) {
        let mut requests = self.requests.lock();
        let request = match &*requests {
            Some(running) => match running.send(request) {
                Ok(()) => return,
                Err(mpsc::error::SendError(back)) => back,
            },
            None => request,
        };
        // The first request, or the runtime of the earlier task has ended.
        let (sender, receiver) = mpsc::unbounded_channel();
        // A new channel accepts it.
        let _ = sender.send(request);
        let task = Task { base: self.base.clone(), channels: Arc::default(), sender: sender.downgrade(), receiver };
        *requests = Some(sender);
        Spawner::Tokio.spawn(task.run());
    }
}

impl Subscription {
    /// Waits for the next notice. Dropping the future loses none.
    pub(super) async fn recv(&mut self) -> Notice {
        self.mailbox.recv().await
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // The task counts the mailboxes.
        self.mailbox = Arc::new(Mailbox::of(0, 0));
        // An error means that the connection is closed already.
        let _ = self.requests.send(Request::Unsubscribe(std::mem::take(&mut self.channel)));
    }
}

impl Channels {
    /// Delivers a pushed message.
    fn push(&self, push: PushInfo) {
        let mut data = push.data.into_iter();
        let (Some(Value::BulkString(name)), body) = (data.next(), data.next()) else { return };
        let mut channels = self.0.lock();
        let Some(channel) = channels.get_mut(&name[..]) else { return };
        match push.kind {
            PushKind::Message => {
                let Some(Value::BulkString(body)) = body else { return };
                channel.tell(&Notice::Message(Bytes::from(body)));
            }
            PushKind::Subscribe => match channel.pending.pop_front() {
                Some(Pending::Join(mailbox, joined)) => {
                    let told = joined.send(());
                    // The subscriber may have given up.
                    if told.is_ok() {
                        channel.mailboxes.push(Arc::downgrade(&mailbox));
                    }
                }
                Some(Pending::Gap) => channel.tell(&Notice::Gap),
                None => {}
            },
            _ => {}
        }
    }

    /// Adds a request that the next confirmation answers.
    fn expect(&self, name: &str, pending: Pending) {
        let mut channels = self.0.lock();
        channels.entry(Bytes::copy_from_slice(name.as_bytes())).or_default().pending.push_back(pending);
    }

    /// Removes the channel, and returns `true`, if no subscription needs it.
    fn remove_unused(&self, name: &str) -> bool {
        let mut channels = self.0.lock();
        let Some(channel) = channels.get_mut(name.as_bytes()) else { return false };
        channel.mailboxes.retain(|mailbox| mailbox.strong_count() > 0);
        let is_unused = channel.mailboxes.is_empty() && channel.pending.is_empty();
        if is_unused {
            channels.remove(name.as_bytes());
        }
        is_unused
    }

    /// Forgets the requests of a lost connection, and returns the channels with subscriptions, each
    /// of which expects a gap.
    fn renew(&self) -> Vec<Bytes> {
        let mut channels = self.0.lock();
        channels.retain(|_, channel| {
            channel.pending.clear();
            channel.mailboxes.retain(|mailbox| mailbox.strong_count() > 0);
            channel.pending.push_back(Pending::Gap);
            !channel.mailboxes.is_empty()
        });
        channels.keys().cloned().collect()
    }
}

impl Channel {
    fn tell(&mut self, notice: &Notice) {
        self.mailboxes.retain(|mailbox| mailbox.upgrade().inspect(|mailbox| mailbox.put(notice.clone())).is_some());
    }
}

/// The task that owns the connection.
struct Task {
    base: Base,
    channels: Arc<Channels>,
    sender: mpsc::WeakUnboundedSender<Request>,
    receiver: mpsc::UnboundedReceiver<Request>,
}

impl Task {
    async fn run(mut self) {
        // The first request waits for the first attempt to connect.
        let Some(mut waiting) = self.receiver.recv().await.map(Some) else { return };
        let mut backoff = self.base.backoff();
        loop {
            let (connection, driver) = loop {
                // Without a first request the connection was lost a moment ago.
                let delay = backoff.next().filter(|_| waiting.is_none()).unwrap_or_default();
                let attempt = async {
                    self.base.clock.sleep(delay).await;
                    let channels = self.channels.clone();
                    self.base.connect_for_pushes(Arc::new(move |push| channels.push(push))).await
                };
                let attempted = if waiting.is_some() {
                    attempt.await
                } else {
                    match refuse_while(attempt, &mut self.receiver, &self.channels, &self.base).await {
                        Some(attempted) => attempted,
                        None => return,
                    }
                };
                match (attempted, waiting.take()) {
                    (Ok(connected), first) => {
                        waiting = first;
                        break connected;
                    }
                    (Err(error), Some(Request::Subscribe(_, reply))) => {
                        self.refuse(reply, &error);
                        match self.receiver.recv().await {
                            Some(next) => waiting = Some(next),
                            None => return,
                        }
                    }
                    (Err(_), _) => {}
                }
            };
            if !self.serve(connection, driver, waiting.take(), &mut backoff).await {
                return;
            }
        }
    }

    /// Refuses a request, and those that came during the same attempt to connect.
    fn refuse(&mut self, first: oneshot::Sender<Result<Subscription, PortError>>, error: &PortError) {
        // Each subscriber may have given up.
        let _ = first.send(Err(error.clone()));
        while let Ok(request) = self.receiver.try_recv() {
            match request {
                Request::Subscribe(_, reply) => drop(reply.send(Err(error.clone()))),
                Request::Unsubscribe(channel) => drop(self.channels.remove_unused(&channel)),
            }
        }
    }

    /// Serves requests on this connection until it is lost. Returns `false` if the handle and all
    /// subscriptions were dropped. A server that refuses the subscriptions is tried less often.
    async fn serve(
        &mut self,
        mut connection: MultiplexedConnection,
        driver: Driver,
        first: Option<Request>,
        backoff: &mut Backoff,
    ) -> bool {
        let (channels, base, receiver, sender) = (&self.channels, &self.base, &mut self.receiver, &self.sender);
        let limit = base.config.request_timeout;
        let serve = async {
            for some in channels.renew().chunks(CHANNELS) {
                let names: Vec<&[u8]> = some.iter().map(|name| &name[..]).collect();
                if !is_answered(within(&base.clock, limit, connection.subscribe(&names)).await) {
                    return true;
                }
            }
            *backoff = base.backoff();
            let mut next = first;
            loop {
                let request = match next.take() {
                    Some(request) => request,
                    None => match race(receiver.recv(), base.clock.sleep(QUIET)).await {
                        First::One(Some(request)) => request,
                        First::One(None) => return false,
                        First::Other(()) => {
                            let ping = redis::cmd("PING");
                            if !is_answered(within(&base.clock, limit, connection::send(&mut connection, &ping)).await)
                            {
                                return true;
                            }
                            continue;
                        }
                    },
                };
                let is_lost = match request {
                    Request::Subscribe(channel, reply) => {
                        let Some(requests) = sender.upgrade() else { return false };
                        let (joined, has_joined) = oneshot::channel();
                        let mailbox = Arc::new(Mailbox::of(BEHIND, BEHIND_BYTES));
                        channels.expect(&channel, Pending::Join(mailbox.clone(), joined));
                        let subscribed = within(&base.clock, limit, connection.subscribe(&channel)).await;
                        let is_lost = subscribed.is_none();
                        let subscription = Subscription { mailbox, channel, requests };
                        let answer = match subscribed {
                            Some(Ok(())) if has_joined.await.is_ok() => Ok(subscription),
                            Some(Err(error)) => Err(failed(&base.connector.target, &error, false).error),
                            Some(Ok(())) => {
                                Err(failure(&base.connector.target, PortErrorKind::Unavailable, "not subscribed"))
                            }
                            None => Err(failure(
                                &base.connector.target,
                                PortErrorKind::TimedOut,
                                "no answer to a subscription",
                            )),
                        };
                        // The subscriber may have given up: dropping the subscription ends it.
                        let _ = reply.send(answer);
                        is_lost
                    }
                    Request::Unsubscribe(channel) if channels.remove_unused(&channel) => {
                        !is_answered(within(&base.clock, limit, connection.unsubscribe(&channel)).await)
                    }
                    Request::Unsubscribe(_) => false,
                };
                if is_lost {
                    return true;
                }
            }
        };
        match race(race(serve, driver), base.moved.notified()).await {
            First::One(First::One(goes_on)) => goes_on,
            First::One(First::Other(())) | First::Other(()) => true,
        }
    }
}

/// Returns `true` if the server answered in time.
fn is_answered<T>(answer: Option<Result<T, redis::RedisError>>) -> bool {
    matches!(answer, Some(Ok(_)))
}

/// Waits for an attempt to connect, and refuses requests meanwhile. Returns `None` if the handle
/// and all subscriptions were dropped.
async fn refuse_while<T>(
    attempt: impl Future<Output = T>,
    receiver: &mut mpsc::UnboundedReceiver<Request>,
    channels: &Channels,
    base: &Base,
) -> Option<T> {
    let refuse = async {
        while let Some(request) = receiver.recv().await {
            match request {
                Request::Subscribe(_, reply) => {
                    let error =
                        failure(&base.connector.target, PortErrorKind::Unavailable, "not connected, and trying again");
                    // The subscriber may have given up.
                    let _ = reply.send(Err(error));
                }
                Request::Unsubscribe(channel) => {
                    channels.remove_unused(&channel);
                }
            }
        }
    };
    match race(attempt, refuse).await {
        First::One(attempted) => Some(attempted),
        First::Other(()) => None,
    }
}
