//! Notifications by plain subjects.
use std::{fmt, sync::Arc, time::Duration};

use async_nats::Subscriber;
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::watch;

use super::{
    handle::NatsCore,
    link::{Health, Link},
};
use crate::{
    notify::{Notice, NoticeSource, Notices, Notifier, check_notice},
    port::{BoxFuture, Capabilities, Capability, PortError},
    race::{First, race},
    time::Instant,
};

/// The notifier on NATS, from [`Nats::notifier`](super::Nats::notifier). A clone is the same
/// notifier.
///
/// Notices are not stored: they pass through the servers' memory. A subscriber receives a gap after
/// each reconnection, and after the client has dropped messages to any slow subscription of the
/// handle (65,536 wait at most).
///
/// The servers of a cluster tell each other of a subscription. A subscriber waits for 100 ms
/// meanwhile, and receives a gap 10 s later, in case that they took longer.
#[derive(Clone)]
pub struct NatsNotifier(Arc<NatsCore>);

const CAN: Capabilities = Capabilities::of("nats", &[Capability::Shared, Capability::Push]).largest_key(1024);

/// Room in a message beside its notice.
const HEADROOM: usize = 4096;

/// Time in which the servers of a cluster tell each other of a subscription, mostly and at most.
const SPREADS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

impl NatsNotifier {
    pub(super) const fn new(core: Arc<NatsCore>) -> Self {
        Self(core)
    }
}

impl Notifier for NatsNotifier {
    fn capabilities(&self) -> Capabilities {
        CAN.largest_value(self.0.link.client().max_payload().saturating_sub(HEADROOM))
    }

    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> BoxFuture<'a, Result<(), PortError>> {
        Box::pin(async move {
            check_notice(topic, &notice, &self.capabilities())?;
            self.0.link.publish(self.0.names.topic(topic), notice).await
        })
    }

    fn subscribe<'a>(&'a self, topic: &'a str) -> BoxFuture<'a, Result<Notices, PortError>> {
        Box::pin(async move {
            CAN.check_key("topic", topic)?;
            let link = self.0.link.clone();
            let mut health = link.health();
            let seen = *health.borrow_and_update();
            let messages = link.subscribe(self.0.names.topic(topic)).await?;
            let is_cluster = link.client().server_info().cluster.is_some();
            let clock = &link.base().clock;
            if is_cluster {
                clock.sleep(SPREADS[0]).await;
            }
            let spread = is_cluster.then(|| clock.now() + SPREADS[1]);
            Ok(Notices::new(TopicSubscription { link, messages, health, seen, spread }))
        })
    }
}

struct TopicSubscription {
    link: Link,
    messages: Subscriber,
    health: watch::Receiver<Health>,
    /// State of the connection up to which gaps were reported.
    seen: Health,
    /// Time at which all servers know of the subscription, until that was reported.
    spread: Option<Instant>,
}

impl TopicSubscription {
    async fn next(&mut self) -> Notice {
        let (clock, seen) = (self.link.base().clock.clone(), self.seen);
        let changed = |now: &Health| now.is_up && (now.losses, now.drops) != (seen.losses, seen.drops);
        let gap = async {
            let spread = async {
                match self.spread {
                    Some(at) => clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let changes = async { self.health.wait_for(changed).await.ok().map(|now| *now) };
            match race(changes, spread).await {
                First::One(Some(now)) => Some(now),
                First::One(None) => std::future::pending().await,
                First::Other(()) => None,
            }
        };
        match race(self.messages.next(), gap).await {
            First::One(Some(message)) => return Notice::Message(message.payload),
            // The client ends with the handle.
            First::One(None) => std::future::pending().await,
            First::Other(None) => self.spread = None,
            First::Other(Some(now)) => {
                // The subscription is restored ahead of this request. Another loss is another gap.
                let _ = self.link.round_trip().await;
                self.seen = now;
            }
        }
        Notice::Gap
    }
}

impl NoticeSource for TopicSubscription {
    fn recv(&mut self) -> BoxFuture<'_, Notice> {
        Box::pin(self.next())
    }
}

impl fmt::Debug for NatsNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsNotifier").field("server", &self.0.link.target().address()).finish_non_exhaustive()
    }
}
