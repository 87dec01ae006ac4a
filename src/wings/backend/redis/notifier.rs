//! Notifications through the channels of a server.
use std::{fmt, sync::Arc};

use bytes::Bytes;

use super::{handle::RedisCore, pubsub::Subscription};
use crate::{
    notify::{Notice, NoticeSource, Notices, Notifier, check_notice},
    port::{BoxFuture, Capabilities, Capability, PortError},
};

/// The notifier on a Redis server, from [`Redis::notifier`](super::Redis::notifier). A clone is the
/// same notifier.
///
/// The server keeps no notice. A subscriber that is more than 1,024 notices or 16 MiB behind
/// receives a gap in their place.
#[derive(Clone)]
pub struct RedisNotifier(Arc<RedisCore>);

const CAN: Capabilities =
    Capabilities::of("redis", &[Capability::Shared, Capability::Push]).largest_value(1 << 20).largest_key(1024);

impl RedisNotifier {
    pub(super) const fn new(core: Arc<RedisCore>) -> Self {
        Self(core)
    }
}

impl Notifier for RedisNotifier {
    fn capabilities(&self) -> Capabilities {
        CAN
    }

    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> BoxFuture<'a, Result<(), PortError>> {
        Box::pin(async move {
            check_notice(topic, &notice, &CAN)?;
            let mut publish = redis::cmd("PUBLISH");
            publish.arg(self.0.keys.channel("n", topic)).arg(&notice[..]);
            self.0.link.run(&publish).await?;
            Ok(())
        })
    }

    fn subscribe<'a>(&'a self, topic: &'a str) -> BoxFuture<'a, Result<Notices, PortError>> {
        Box::pin(async move {
            CAN.check_key("topic", topic)?;
            let subscription = self.0.pubsub.subscribe(self.0.keys.channel("n", topic)).await?;
            Ok(Notices::new(TopicSubscription(subscription)))
        })
    }
}

struct TopicSubscription(Subscription);

impl NoticeSource for TopicSubscription {
    fn recv(&mut self) -> BoxFuture<'_, Notice> {
        Box::pin(self.0.recv())
    }
}

impl fmt::Debug for RedisNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisNotifier").field("server", &self.0.target().address()).finish_non_exhaustive()
    }
}
