//! Reads messages of a stream in order, by a consumer of its own.
use std::time::Duration;

use async_nats::{Message, StatusCode, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::watch;

use super::{
    api::{ConsumerConfig, ConsumerInfo, NewConsumer, Nothing, Place},
    link::{Effect, Health, Link},
};
use crate::{
    port::PortError,
    race::{First, race},
    time::nanos,
};

/// Interval at which the server says that it has nothing to say.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Silence after which a consumer counts as lost.
const SILENCE: Duration = Duration::from_secs(12);
/// Time after which the server deletes a consumer that was left behind.
const ABANDONED: Duration = Duration::from_secs(30);

/// A message of a stream.
pub(super) struct Entry {
    pub(super) message: Message,
    pub(super) place: Place,
}

impl Entry {
    /// Returns the value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        Some(self.message.headers.as_ref()?.get(name)?.as_str())
    }
}

/// A consumer of the server, which delivers messages in order, and each once.
pub(super) struct Reader {
    link: Link,
    stream: String,
    consumer: String,
    messages: Subscriber,
    health: watch::Receiver<Health>,
    began: Health,
    /// Number of the last delivery.
    delivered: u64,
    /// Number of messages that were there at the beginning.
    pub(super) pending: u64,
}

impl Reader {
    /// Creates a consumer, and subscribes to it: to the last message of each subject that matches
    /// one of these, without their bodies, and later ones.
    pub(super) async fn open(link: &Link, stream: &str, filters: &[String]) -> Result<Self, PortError> {
        let mut health = link.health();
        let began = *health.borrow_and_update();
        let inbox = link.client().new_inbox();
        let messages = link.subscribe(inbox.clone()).await?;
        let config = ConsumerConfig {
            deliver_subject: &inbox,
            deliver_policy: "last_per_subject",
            ack_policy: "none",
            max_deliver: 1,
            filter_subjects: filters,
            headers_only: true,
            flow_control: true,
            idle_heartbeat: nanos(HEARTBEAT),
            inactive_threshold: nanos(ABANDONED),
            num_replicas: 1,
            mem_storage: true,
        };
        let consumer = NewConsumer { stream_name: stream, config };
        let created = link.api(&format!("CONSUMER.CREATE.{stream}"), &consumer, Effect::Once).await?;
        let created: ConsumerInfo = created.map_err(|error| link.rejected("the stream cannot be read", &error))?;
        let (consumer, pending) = (created.name, created.num_pending);
        let (link, stream) = (link.clone(), stream.to_owned());
        Ok(Self { link, stream, consumer, messages, health, began, delivered: 0, pending })
    }

    /// Waits for the next message. `None` means that messages may be missing: open another reader.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Option<Entry> {
        loop {
            let clock = self.link.base().clock.clone();
            let began = self.began;
            let ends = async {
                let lost = self.health.wait_for(|now| now.losses != began.losses || now.drops != began.drops);
                race(lost, clock.sleep(SILENCE)).await;
            };
            let First::One(message) = race(self.messages.next(), ends).await else { return None };
            let message = message?;
            if message.status == Some(StatusCode::IDLE_HEARTBEAT) {
                self.answer(&message).await;
                continue;
            }
            let place = Place::parse(message.reply.as_deref()?)?;
            if place.delivery != self.delivered + 1 {
                return None;
            }
            self.delivered = place.delivery;
            return Some(Entry { message, place });
        }
    }

    /// Answers a request of the server's flow control. A plain heartbeat needs no answer, unless
    /// the server waits for one.
    async fn answer(&self, message: &Message) {
        let stalled = message.headers.as_ref().and_then(|headers| headers.get("Nats-Consumer-Stalled"));
        let to = stalled.map(|subject| subject.as_str().to_owned());
        let to = to.or_else(|| message.reply.as_ref().map(|reply| reply.to_string()));
        if let Some(to) = to {
            // Unanswered, the consumer falls silent and is opened anew.
            let _ = self.link.client().publish(to, Bytes::new()).await;
        }
    }

    /// Deletes the consumer. Without this the server deletes it after a while.
    pub(super) async fn close(self) {
        let call = format!("CONSUMER.DELETE.{}.{}", self.stream, self.consumer);
        let _: Result<_, PortError> = self.link.api::<serde::de::IgnoredAny>(&call, &Nothing {}, Effect::Reads).await;
    }
}
