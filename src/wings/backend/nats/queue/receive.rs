//! Receives: a pull of the shared consumer, and a claim of each message that it delivers.
use std::{collections::HashMap, sync::atomic::Ordering, time::Duration};

use async_nats::{Message, StatusCode, Subscriber};
use futures_util::StreamExt as _;
use tokio::sync::oneshot;

use super::{
    super::{
        api::{ConsumerInfo, NO_CONSUMER, Nothing, Place, Pull},
        link::{Effect, Health},
        setup::version,
    },
    NatsQueue,
    clean::Claims,
    record::Record,
    wire::Parts,
};
use crate::{
    backend::ConnectionEvent,
    port::{PortError, PortErrorKind},
    queue::{Delivery, QueueError, Receipt, Receive, Settle},
    race::{First, race},
    spawn::Spawner,
    sync::Mutex,
    time::{Instant, Timestamp, nanos},
};

/// Time for which the server keeps a pull.
const KEPT: Duration = Duration::from_secs(30);
/// Interval at which the server says that it still has the pull.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Silence after which a pull counts as lost.
const SILENCE: Duration = Duration::from_secs(12);
/// Pause after a pull that the server refused, and between looks at servers that are behind.
const PAUSE: Duration = Duration::from_millis(5);
/// Time for which the server looks for messages, and an older one waits for the first.
const LOOK: Duration = Duration::from_millis(10);
/// Releases from this one on answer each pull without a time. Earlier ones forget one that came
/// while others were about to take the last messages.
const ANSWERS: (u32, u32, u32) = (2, 12, 4);
/// Largest size of the messages of one pull together, unless one is larger.
const LARGEST: usize = 8 << 20;
/// Number of times that a claim is tried while others change its record.
const TRIES: usize = 4;

/// A receive, whose caller may be gone.
pub(super) struct Waiter {
    max: usize,
    visibility: Duration,
    end: Instant,
    caller: oneshot::Sender<Handed>,
}

/// The result of a receive, and the address to which its caller says that it has it.
type Handed = (Result<Vec<Delivery>, QueueError>, oneshot::Sender<()>);

/// Pulls whose receives have ended, of one part of a queue. Each takes the next receive.
pub(super) type LeftPulls = Mutex<Vec<oneshot::Sender<Waiter>>>;

/// A pull of one message that the server keeps for a while.
struct KeptPull {
    messages: Subscriber,
    /// The server has forgotten it then.
    until: Instant,
    began: Health,
}

/// The end of a wait for a message of a pull.
enum Came {
    Message(Message),
    /// The server ends the pull, which has had so few messages that these are missing.
    Ended(Option<usize>),
    /// The server still has the pull.
    Alive,
    /// Another pull may be answered.
    Again,
    Gone,
    Silent,
    Failed(&'static str),
}

impl NatsQueue {
    pub(super) async fn receive_some(&self, receive: Receive) -> Result<Vec<Delivery>, QueueError> {
        let max = receive.check(&super::CAN)?;
        let (caller, answer) = oneshot::channel();
        let end = self.core.nats.link.base().clock.now() + receive.wait;
        let waiter = Waiter { max, visibility: receive.visibility, end, caller };
        if let Some(waiter) = self.adopted(waiter) {
            // A task of its own gives back what nobody waits for any more.
            let queue = self.clone();
            Spawner::Tokio.spawn(async move { queue.serve(waiter).await });
        }
        let gone = |_| self.core.nats.link.failure(PortErrorKind::Unavailable, "the runtime of the receive has ended");
        let (taken, caller_has_it) = answer.await.map_err(gone)?;
        // Nothing is awaited behind this.
        let _ = caller_has_it.send(());
        taken
    }

    /// Gives the receive to a pull that another one has left; returns it if there is none.
    fn adopted(&self, mut waiter: Waiter) -> Option<Waiter> {
        loop {
            let Some(left) = self.part().left.lock().pop() else { return Some(waiter) };
            match left.send(waiter) {
                Ok(()) => return None,
                Err(back) => waiter = back,
            }
        }
    }

    /// Serves a receive, and those that follow while the server keeps its pull.
    async fn serve(&self, mut waiter: Waiter) {
        let clock = self.core.nats.link.base().clock.clone();
        let mut kept = None;
        loop {
            let taken = self.take(&mut waiter, &mut kept).await;
            let receipts: Vec<_> = taken.iter().flatten().map(|delivery| delivery.receipt.clone()).collect();
            let (caller_has_it, handed) = oneshot::channel();
            let sent = waiter.caller.send((taken, caller_has_it));
            // A caller may be dropped with the messages that it was sent.
            if (sent.is_err() || handed.await.is_err()) && !receipts.is_empty() {
                let all = receipts.into_iter().map(|receipt| (receipt, Settle::release(Duration::ZERO)));
                // Unreleased, they return when their visibility is over.
                let _ = self.settle_all(all.collect()).await;
            }
            let Some(left) = kept.as_mut() else { return Claims(self).clean_at_times().await };
            let (adopt, mut adopted) = oneshot::channel();
            self.part().left.lock().push(adopt);
            let mut until = left.until;
            let next = loop {
                let ends = race(clock.sleep_until(until), &mut adopted);
                match race(left.messages.next(), ends).await {
                    First::Other(First::Other(next)) => break next.ok(),
                    First::One(Some(message)) if message.status.is_none() => {
                        kept = None;
                        self.give_back(message).await;
                        break None;
                    }
                    First::One(Some(message)) if message.status == Some(StatusCode::IDLE_HEARTBEAT) => {}
                    // Its message is under way.
                    First::One(Some(message)) if missing(&message) == Some(0) => until = clock.now() + SILENCE,
                    _ => {
                        kept = None;
                        break None;
                    }
                }
            };
            adopted.close();
            // A receive that came while the pull ended is served, too.
            match next.or_else(|| adopted.try_recv().ok()) {
                Some(next) => waiter = next,
                None => return,
            }
        }
    }

    async fn give_back(&self, message: Message) {
        if let Some(reply) = message.reply {
            self.core.nats.link.tell(reply.into_string(), nak(0)).await;
        }
    }

    async fn take(&self, waiter: &mut Waiter, kept: &mut Option<KeptPull>) -> Result<Vec<Delivery>, QueueError> {
        self.remind().await?;
        let clock = self.core.nats.link.base().clock.clone();
        let patience = clock.now() + self.core.nats.link.base().config.request_timeout;
        let mut look = self.look();
        loop {
            let (mut pulled, may_have_more) = match self.pull(waiter.max, look).await {
                // The consumer may live on an older server than the one that is connected.
                Err(error) if look.is_none() && error.kind() == PortErrorKind::TimedOut => {
                    look = Some(LOOK);
                    continue;
                }
                pulled => pulled?,
            };
            if pulled.is_empty() && look.is_none() && waiter.end <= clock.now() {
                // The server answers that by a count, which a purge leaves too low.
                pulled = self.pull(waiter.max, Some(LOOK)).await?.0;
            }
            let has_pulled = !pulled.is_empty();
            let mut taken = self.claim_all(pulled, waiter.visibility).await?;
            let is_over = waiter.end <= clock.now();
            if taken.is_empty() && !has_pulled && !waiter.caller.is_closed() {
                if !is_over {
                    let first = self.wait(waiter, kept).await?;
                    taken = self.claim_all(first, waiter.visibility).await?;
                    if !taken.is_empty() && taken.len() < waiter.max && !waiter.caller.is_closed() {
                        // Others that come a little later are left to the next receive.
                        let (others, _) = self.pull(waiter.max - 1, self.look().map(|look| look / 2)).await?;
                        taken.extend(self.claim_all(others, waiter.visibility).await?);
                    }
                } else if clock.now() < patience && (may_have_more || self.has_more().await?) {
                    // The servers of a cluster tell each other of messages that were accepted, and one that stalls needs
                    // more time to look.
                    clock.sleep(PAUSE).await;
                    look = look.map(|look| (look * 2).min(LOOK * 16));
                    continue;
                }
            }
            // Messages that cannot be received hide no other.
            if !taken.is_empty() || waiter.caller.is_closed() || waiter.end <= clock.now() && !has_pulled {
                return Ok(taken);
            }
        }
    }

    /// Returns the time of each pull that does not wait. `None` if the server needs none.
    fn look(&self) -> Option<Duration> {
        let release = version(&self.core.nats.link.client().server_info().version);
        (release < Some(ANSWERS)).then_some(LOOK)
    }

    /// Asks the consumer for messages.
    async fn ask(&self, pull: &Pull) -> Result<(Subscriber, Health), PortError> {
        let link = &self.core.nats.link;
        let client = link.client();
        let began = *link.health().borrow();
        let inbox = client.new_inbox();
        let subscribed = link.supervise(Effect::Once, client.subscribe(inbox.clone())).await?;
        let messages = subscribed.map_err(|error| link.failure(PortErrorKind::Unavailable, error))?;
        let body = serde_json::to_vec(pull).map_err(|error| link.failure(PortErrorKind::Other, error))?;
        let (api, stream) = (link.base().config.api(), &self.part().stream.name);
        let subject = format!("{api}.CONSUMER.MSG.NEXT.{stream}.{}", super::CONSUMER);
        let asked = link.supervise(Effect::Once, client.publish_with_reply(subject, inbox, body.into())).await?;
        asked.map_err(|error| link.failure(PortErrorKind::Unavailable, error))?;
        Ok((messages, began))
    }

    fn max_bytes(&self) -> usize {
        LARGEST.max(self.core.nats.link.client().max_payload().saturating_mul(2))
    }

    /// Pulls the messages that are there, and tells whether the server may have more. With a time
    /// the server looks for messages, and waits so long for the first one.
    async fn pull(&self, batch: usize, time: Option<Duration>) -> Result<(Vec<Message>, bool), PortError> {
        let link = &self.core.nats.link;
        let max_bytes = self.max_bytes();
        let pull = Pull { batch, max_bytes, no_wait: true, expires: time.map(nanos), idle_heartbeat: None };
        let (mut messages, began) = self.ask(&pull).await?;
        let (mut pulled, mut most) = (Vec::new(), batch);
        let limit = link.base().config.request_timeout.saturating_add(time.unwrap_or_default());
        while pulled.len() < most {
            match self.next(&mut messages, began, limit, std::future::pending()).await {
                Came::Message(message) => pulled.push(message),
                // In a cluster the end may come before messages.
                Came::Ended(missing) => most = missing.map_or(pulled.len(), |missing| batch.saturating_sub(missing)),
                Came::Again => return Ok((pulled, true)),
                Came::Alive => {}
                Came::Silent if pulled.is_empty() => {
                    let limit = humantime::format_duration(limit);
                    return Err(link.failure(PortErrorKind::TimedOut, format_args!("no answer within {limit}")));
                }
                Came::Failed(why) if pulled.is_empty() => return Err(self.consumer_or(why).await),
                Came::Silent | Came::Failed(_) | Came::Gone => break,
            }
        }
        Ok((pulled, false))
    }

    /// Waits for the next message, by a pull that the server keeps.
    async fn wait(&self, waiter: &mut Waiter, kept: &mut Option<KeptPull>) -> Result<Vec<Message>, PortError> {
        let clock = self.core.nats.link.base().clock.clone();
        let pull = match kept.as_mut().filter(|kept| clock.now() < kept.until) {
            Some(pull) => pull,
            None => {
                let (max_bytes, expires) = (self.max_bytes(), Some(nanos(KEPT)));
                let idle_heartbeat = Some(nanos(HEARTBEAT));
                let until = clock.now() + KEPT;
                let asked = self.ask(&Pull { batch: 1, max_bytes, no_wait: false, expires, idle_heartbeat }).await?;
                kept.insert(KeptPull { messages: asked.0, until, began: asked.1 })
            }
        };
        let mut is_under_way = false;
        loop {
            let left = waiter.end - clock.now();
            let limit = if is_under_way { SILENCE } else { SILENCE.min(left) };
            let gone = waiter.caller.closed();
            match self.next(&mut pull.messages, pull.began, limit, gone).await {
                Came::Message(message) => {
                    *kept = None;
                    return Ok(vec![message]);
                }
                // Its message is under way.
                Came::Ended(Some(0)) => is_under_way = true,
                Came::Alive => {}
                Came::Ended(_) => {
                    *kept = None;
                    return Ok(Vec::new());
                }
                Came::Gone => return Ok(Vec::new()),
                // The server keeps it for the next receive.
                Came::Silent if waiter.end <= clock.now() && !is_under_way => return Ok(Vec::new()),
                Came::Silent => {
                    *kept = None;
                    return Ok(Vec::new());
                }
                Came::Again => {
                    *kept = None;
                    clock.sleep(PAUSE * 20).await;
                    return Ok(Vec::new());
                }
                Came::Failed(why) => {
                    *kept = None;
                    return Err(self.consumer_or(why).await);
                }
            }
        }
    }

    /// Waits for the next message of a pull, or its end.
    async fn next(
        &self,
        messages: &mut Subscriber,
        began: Health,
        limit: Duration,
        gone: impl Future<Output = ()>,
    ) -> Came {
        let link = &self.core.nats.link;
        let mut health = link.health();
        let lost = async { drop(health.wait_for(|now| now.losses != began.losses).await) };
        let ends = race(gone, race(lost, link.base().clock.sleep(limit)));
        let message = match race(messages.next(), ends).await {
            First::One(Some(message)) => message,
            First::One(None) => return Came::Failed("the subscription has ended"),
            First::Other(First::One(())) => return Came::Gone,
            First::Other(First::Other(First::One(()))) => return Came::Failed("the connection was lost"),
            First::Other(First::Other(First::Other(()))) => return Came::Silent,
        };
        match message.status {
            None => Came::Message(message),
            Some(StatusCode::IDLE_HEARTBEAT) => Came::Alive,
            Some(StatusCode::NO_RESPONDERS) => {
                Came::Failed("no consumer takes the request: has the cluster a leader, was it deleted?")
            }
            // Nothing but the settings of the consumer limits a pull.
            Some(_) if message.description.as_deref().is_some_and(is_limited) => {
                Came::Failed("the consumer's limits of requests were changed, and are restored")
            }
            Some(status) => match (missing(&message), status.as_u16()) {
                (Some(missing), _) => Came::Ended(Some(missing)),
                (None, 404) => Came::Ended(None),
                // Others wait for the messages that are there, or the consumer changes its leader.
                (None, _) => Came::Again,
            },
        }
    }

    /// Tells the server until when messages are hidden, after each loss of the connection: one that
    /// was killed has forgotten the last that it was told.
    async fn remind(&self) -> Result<(), PortError> {
        let link = &self.core.nats.link;
        let losses = link.health().borrow().losses;
        let part = self.part();
        if part.reminded.load(Ordering::Acquire) > losses {
            return Ok(());
        }
        let mut claims = Claims(self).not_done().await?;
        while !claims.is_empty() {
            let now = self.now().await?;
            // The server ignores the words for a delivery before the last acknowledged one, or behind
            // the last.
            let last = self.consumer().await?.delivered.consumer_seq;
            for (nth, claim) in claims.iter().enumerate() {
                let (name, message) = (&part.stream.name, claim.message.number);
                let subject = format!("$JS.ACK.{name}.{}.1.{message}.{last}.0.0", super::CONSUMER);
                let words = nak(claim.hides_for(now).unwrap_or_default());
                // The server notes them in order.
                if nth + 1 == claims.len() {
                    link.answer(subject, words).await?;
                } else {
                    link.tell(subject, words).await;
                }
            }
            // Its holder may have given a message back meanwhile, and told the server before: those
            // whose claim has changed are said again.
            let told: HashMap<_, _> = claims.iter().map(|claim| (claim.message, claim.number)).collect();
            claims = Claims(self).not_done().await?;
            claims.retain(|claim| told.get(&claim.message).is_some_and(|number| *number != claim.number));
        }
        part.reminded.store(losses + 1, Ordering::Release);
        Ok(())
    }

    /// Returns `true` if the server had too little time to look for a message, or if the consumer
    /// of a replicated stream does not know all of its messages yet.
    async fn has_more(&self) -> Result<bool, PortError> {
        let is_replicated = self.part().stream.replicas > 1;
        if !is_replicated && self.look().is_none() {
            return Ok(false);
        }
        let (known, delivered) = self.known_by_consumer().await?;
        Ok(known > delivered || is_replicated && self.info(&Nothing {}).await?.state.messages != delivered)
    }

    /// Returns the numbers of messages that the consumer knows, and of those that it has delivered.
    pub(super) async fn known_by_consumer(&self) -> Result<(u64, u64), PortError> {
        let info = self.consumer().await?;
        Ok((info.num_pending + info.num_ack_pending, info.num_ack_pending))
    }

    pub(super) async fn consumer(&self) -> Result<ConsumerInfo, PortError> {
        let link = &self.core.nats.link;
        let call = format!("CONSUMER.INFO.{}.{}", self.part().stream.name, super::CONSUMER);
        let info = link.api::<ConsumerInfo>(&call, &Nothing {}, Effect::Reads).await?;
        match info {
            Ok(info) => Ok(info),
            Err(error) if error.err_code == NO_CONSUMER => Err(self.consumer_or("the consumer was deleted").await),
            Err(error) => Err(link.rejected("the consumer of the queue cannot be read", &error)),
        }
    }

    /// Creates the consumer again, if an operator has deleted it, and returns the error of this
    /// request.
    async fn consumer_or(&self, why: &str) -> PortError {
        let link = &self.core.nats.link;
        let created = super::open_consumer(link, &self.part().stream.name).await;
        created.err().unwrap_or_else(|| link.failure(PortErrorKind::Unavailable, why))
    }

    /// Claims these messages. An error of some is returned if there are no others.
    async fn claim_all(&self, pulled: Vec<Message>, visibility: Duration) -> Result<Vec<Delivery>, PortError> {
        if pulled.is_empty() {
            return Ok(Vec::new());
        }
        let now = self.now().await?;
        let claims = pulled.iter().map(|message| self.claim(message, now, visibility));
        let (mut taken, mut failed) = (Vec::new(), None);
        for claimed in futures_util::future::join_all(claims).await {
            match claimed {
                Ok(claimed) => taken.extend(claimed),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if taken.is_empty() => Err(error),
            _ => Ok(taken),
        }
    }

    /// Claims a message for a delivery. `None` if it is hidden, or another receiver has it.
    async fn claim(&self, message: &Message, now: u64, visibility: Duration) -> Result<Option<Delivery>, PortError> {
        let link = &self.core.nats.link;
        let place = message.reply.as_deref().and_then(Place::parse);
        let (Some(place), Some(reply)) = (place, &message.reply) else {
            return Err(link.unexpected("CONSUMER.MSG.NEXT"));
        };
        let parts = Parts::of_map(message.headers.as_ref());
        let hide = async |time: u64| link.tell(reply.to_string(), nak(time)).await;
        if let Some(left) = due(&message.subject).map(|due| due.saturating_sub(now)).filter(|left| *left > 0) {
            hide(left).await;
            return Ok(None);
        }
        let span = nanos(visibility);
        // A first delivery has no record, most often.
        let mut found = if place.attempt > 1 { self.record(place.message()).await? } else { None };
        for _ in 0..TRIES {
            let (last, known) = match &found {
                Some((number, record)) => (*number, record.clone()),
                None => (0, None),
            };
            if known.is_none() && last != 0 {
                let (message, place) = (format!("{}.{}", self.part().claims, place.message()), &self.core.claims.name);
                let place = format!("number {last} of the stream {place}");
                link.base().send(|| ConnectionEvent::SetAside { message, place });
            }
            let record = known.or_else(|| parts.record.clone()).unwrap_or_default();
            if record.done {
                self.finish(place.message(), reply).await?;
                return Ok(None);
            }
            if record.moves.is_some() {
                self.finish_move(place.message(), &record, reply).await?;
                return Ok(None);
            }
            if let Some(left) = record.hides_for(now) {
                link.answer(reply.to_string(), nak(left)).await?;
                // Its holder may have given it back meanwhile, and told the server before.
                if let Some((number, Some(record))) = self.record(place.message()).await?
                    && number != last
                {
                    hide(record.hides_for(now).unwrap_or_default()).await;
                }
                return Ok(None);
            }
            let claimed = record.delivered(now, span);
            match self.write_record(place.message(), last, &claimed).await {
                Ok(Some(number)) => {
                    // Confirmed, so that it comes before what another handle tells the server.
                    link.answer(reply.to_string(), nak(span)).await?;
                    return Ok(Some(self.delivery(message, &place, parts, &claimed, now, number)));
                }
                Ok(None) => found = self.record(place.message()).await?,
                // Without room for a claim the message is delivered without one: its settlement makes room.
                Err(error) if error.kind() == PortErrorKind::Full => {
                    if last != 0 {
                        self.forget(place.message()).await?;
                    }
                    hide(span).await;
                    return Ok(Some(self.delivery(message, &place, parts, &claimed, now, 0)));
                }
                Err(error) => return Err(error),
            }
        }
        // Others are claiming it.
        Ok(None)
    }

    fn delivery(
        &self,
        message: &Message,
        place: &Place,
        parts: Parts,
        record: &Record,
        now: u64,
        claim: u64,
    ) -> Delivery {
        let reply = message.reply.as_deref().unwrap_or_default();
        let id = parts.deduplication_id.map(|id| format!(" {id}")).unwrap_or_default();
        let receipt = Receipt::new(format!("{:x} {claim} {reply}{id}", self.tag()));
        let accepted = parts.accepted.unwrap_or(place.stored_at);
        let id =
            parts.number.map_or_else(|| self.id(place.sequence), |number| super::MessageId::from_numbers(number, 0));
        let sent_at = Timestamp::from_millis(accepted / 1_000_000);
        let mut delivery = Delivery::new(id, receipt, message.payload.clone(), record.deliveries, sent_at);
        delivery.headers = parts.headers;
        delivery.attempts = record.attempts;
        (delivery.expiries, delivery.crashes) = (record.unexplained().expiries(), record.unexplained().crashes());
        delivery.age = Duration::from_nanos(now.saturating_sub(accepted));
        delivery.reason = parts.reason;
        delivery.errors = record.errors();
        delivery
    }
}

/// Returns `true` for the words about a pull that exceeds a limit of the consumer's settings.
fn is_limited(words: &str) -> bool {
    ["MaxRequestBatch", "MaxRequestExpires", "MaxRequestMaxBytes"].iter().any(|limit| words.contains(limit))
}

/// Returns the number of messages that a pull did not get, from the status at its end.
fn missing(status: &Message) -> Option<usize> {
    status.headers.as_ref()?.get("Nats-Pending-Messages")?.as_str().parse().ok()
}

/// Returns the words that hide a delivered message for a time, in nanoseconds.
pub(super) fn nak(time: u64) -> String {
    /// A year, after which the message is hidden again.
    const MOST: u64 = 365 * 24 * 3600 * 1_000_000_000;
    if time == 0 { "-NAK".to_owned() } else { format!("-NAK {{\"delay\": {}}}", time.min(MOST)) }
}

/// Returns the time at which a delayed message is due, in nanoseconds since 1970.
pub(super) fn due(subject: &str) -> Option<u64> {
    let millis: u64 = subject.split('.').nth(3)?.parse().ok()?;
    Some(millis.saturating_mul(1_000_000))
}
