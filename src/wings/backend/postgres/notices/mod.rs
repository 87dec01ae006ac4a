//! Notices by `LISTEN` and `NOTIFY`.
pub(super) mod listen;
pub(super) mod wake;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tokio_postgres::types::Type;

use self::listen::Subscription;
use super::{
    Postgres,
    handle::PostgresCore,
    link::{Effect, Link, Param},
};
use crate::{
    backend::common::base64::{decode, encode},
    entropy::Entropy,
    gather::{Gather, SendBatch, row},
    hash::stable_hash,
    notify::{Notice, NoticeSource, Notices, Notifier, check_notice},
    port::{BoxFuture, Capabilities, Capability, PortError},
};

/// The notifier of a schema, from [`Postgres::notifier`]. A clone is the same notifier.
///
/// Notices are not stored. All subscriptions of a handle share one connection; after it was lost,
/// each receives a gap. So does one with more than 10,000 unread parts of notices: a part has 5,000
/// bytes.
#[derive(Clone)]
pub struct PostgresNotifier(Arc<PostgresCore>);

/// The parts of the notifier that all its handles of one [`Postgres`] share.
pub(crate) struct NotifierCore {
    publishes: Gather<Published, Result<(), PortError>>,
    /// Distinguishes the notices of this handle from all others: the server merges equal payloads.
    publisher: u64,
    /// Number of the next notice. Unique, and nothing else.
    number: AtomicU64,
}

const CAN: Capabilities =
    Capabilities::of("postgres", &[Capability::Shared, Capability::Push]).largest_value(1 << 20).largest_key(1024);

/// Bytes of a notice in one payload, whose limit is 8,000 bytes of text.
const PART: usize = 5000;

/// Maximum number of notices in a statement.
const MOST: usize = 256;

/// A notice as the payloads of its channel.
struct Published {
    channel: String,
    payloads: Vec<String>,
}

struct Publisher(Arc<Link>);

impl SendBatch<Published, Result<(), PortError>> for Publisher {
    fn send(&self, jobs: Vec<Published>) -> BoxFuture<'_, Vec<Result<(), PortError>>> {
        Box::pin(async move {
            let channels: Vec<&str> =
                jobs.iter().flat_map(|job| job.payloads.iter().map(|_| job.channel.as_str())).collect();
            let payloads: Vec<&str> = jobs.iter().flat_map(|job| &job.payloads).map(String::as_str).collect();
            let notify = "SELECT count(pg_notify(c, p)) FROM unnest($1, $2) AS n (c, p)";
            let params: [Param<'_>; 2] = [(&channels, Type::TEXT_ARRAY), (&payloads, Type::TEXT_ARRAY)];
            let sent = self.0.query(Effect::Write, notify, &params).await.map(drop);
            jobs.iter().map(|_| sent.clone()).collect()
        })
    }

    fn weight(&self, job: &Published) -> usize {
        job.payloads.iter().map(|payload| row(payload.len())).sum()
    }
}

impl NotifierCore {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        let publishes = Gather::new("postgres", MOST, Publisher(link.clone()));
        Self { publishes, publisher: Entropy::from_os().next_u64(), number: AtomicU64::new(0) }
    }

    /// Splits a notice into payloads, none of which equals another one.
    fn payloads(&self, notice: &[u8]) -> Vec<String> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let parts = notice.len().div_ceil(PART).max(1);
        let part = |i: usize| {
            let bytes = notice.chunks(PART).nth(i).unwrap_or_default();
            format!("{:x}.{number:x}.{i:x}.{parts:x}:{}", self.publisher, encode(bytes))
        };
        (0..parts).map(part).collect()
    }
}

impl Postgres {
    /// Returns the notifier of this schema.
    pub fn notifier(&self) -> PostgresNotifier {
        PostgresNotifier(self.0.clone())
    }
}

/// Returns the channel of a topic. Names of channels are short, so it contains a hash of 128 bits.
fn channel(link: &Link, topic: &str) -> String {
    let (one, other) = (stable_hash(topic.as_bytes()), stable_hash(format!("steadfast {topic}").as_bytes()));
    format!("sf_{:x}_t{one:016x}{other:016x}", link.schema_id())
}

impl Notifier for PostgresNotifier {
    fn capabilities(&self) -> Capabilities {
        if self.0.hears { CAN } else { CAN.without(Capability::Push) }
    }

    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> BoxFuture<'a, Result<(), PortError>> {
        Box::pin(async move {
            check_notice(topic, &notice, &CAN)?;
            let (notifier, channel) = (&self.0.notifier, channel(&self.0.link, topic));
            let payloads = notifier.payloads(&notice);
            notifier.publishes.send(Published { channel, payloads }).await?
        })
    }

    fn subscribe<'a>(&'a self, topic: &'a str) -> BoxFuture<'a, Result<Notices, PortError>> {
        Box::pin(async move {
            CAN.check_key("topic", topic)?;
            if !self.0.hears {
                return Err(self.0.listener.deafness());
            }
            let subscription = self.0.listener.subscribe(&channel(&self.0.link, topic)).await?;
            Ok(Notices::new(Received { subscription, partial: Vec::new(), read: 0, _core: self.0.clone() }))
        })
    }
}

/// The subscription to a topic.
struct Received {
    subscription: Subscription,
    /// The parts of a notice that were read, and their number. They arrive one behind the other.
    partial: Vec<u8>,
    read: usize,
    /// Keeps the connection open.
    _core: Arc<PostgresCore>,
}

/// Reads the index of a part, the number of parts, and the bytes.
fn parse(payload: &[u8]) -> Option<(usize, usize, Vec<u8>)> {
    let (head, bytes) = std::str::from_utf8(payload).ok()?.split_once(':')?;
    let mut numbers = head.split('.').skip(2).map(|number| usize::from_str_radix(number, 16).ok());
    Some((numbers.next()??, numbers.next()??, decode(bytes)?))
}

impl NoticeSource for Received {
    fn recv(&mut self) -> BoxFuture<'_, Notice> {
        Box::pin(async move {
            loop {
                let payload = match self.subscription.recv().await {
                    Notice::Gap => {
                        (self.partial, self.read) = (Vec::new(), 0);
                        return Notice::Gap;
                    }
                    Notice::Message(payload) => payload,
                };
                // Another program's payload.
                let Some((i, parts, bytes)) = parse(&payload) else { continue };
                if i == 0 {
                    (self.partial, self.read) = (Vec::new(), 0);
                }
                // The rest of a notice whose beginning was before the subscription, or before a gap.
                if i != self.read {
                    continue;
                }
                self.partial.extend_from_slice(&bytes);
                self.read += 1;
                if self.read == parts {
                    self.read = 0;
                    return Notice::Message(std::mem::take(&mut self.partial).into());
                }
            }
        })
    }
}

impl fmt::Debug for PostgresNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresNotifier").field("link", &self.0.link).finish_non_exhaustive()
    }
}
