//! Waiting receivers. One subscription of the queue wakes one of them, and that one the next.
//!
//! A receive that finds nothing leaves a mark on the server: the time until which it does not look
//! again by itself. The script that makes a message visible before that time removes the mark and
//! publishes to the queue's channel. So a busy queue publishes nothing, and no send that a waiting
//! receiver must know of is silent.
use std::{
    future::{pending, ready},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use redis::Value;
use tokio::sync::Notify;

use super::{
    MAX_BYTES, RECEIVE, RedisQueue, codec,
    codec::{Decoder, Entry},
};
use crate::{
    backend::redis::{pubsub::Subscription, script::micros},
    port::PortError,
    queue::{Delivery, Receive},
    race::{First, race},
};

/// Longest interval at which a receiver without a subscription looks.
const UNSUBSCRIBED: Duration = Duration::from_secs(1);

/// The waiting receivers of a queue in this process.
pub(super) struct Waiters {
    channel: String,
    /// Subscription of the queue, from the first wait on. The receiver with the lock hears for all.
    subscription: tokio::sync::Mutex<Option<Subscription>>,
    /// Set once there is a subscription: the lock may then be held for as long as a receiver waits.
    is_subscribed: AtomicBool,
    /// Notified when the next waiting receiver is to look.
    next: Notify,
    /// Number of waiting receivers. It only decides about wake-ups that would be in vain.
    waiting: AtomicUsize,
}

/// The result of a look at the queue.
enum Look {
    Taken(Vec<Delivery>),
    /// No message is visible; the next may be after this time.
    Empty(Option<Duration>),
    /// There was no room in the answer, or all that it had was damaged.
    Again,
}

impl Waiters {
    pub(super) fn new(channel: String) -> Self {
        Self {
            channel,
            subscription: tokio::sync::Mutex::new(None),
            is_subscribed: AtomicBool::new(false),
            next: Notify::new(),
            waiting: AtomicUsize::new(0),
        }
    }

    fn enter(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(self)
    }

    fn is_subscribed(&self) -> bool {
        self.is_subscribed.load(Ordering::Acquire)
    }

    /// Waits until this receiver is to look.
    async fn woken(&self) {
        let hears = async {
            if self.is_subscribed()
                && let Some(subscription) = &mut *self.subscription.lock().await
            {
                subscription.recv().await;
                // One look answers all notices that have arrived.
                while let First::One(_) = race(subscription.recv(), ready(())).await {}
            } else {
                pending().await
            }
        };
        race(self.next.notified(), hears).await;
    }
}

/// A waiting receiver. On drop, wakes the next one: messages may remain, and both the notice and
/// the time of the next return were known to this one alone.
struct Waiting<'a>(&'a Waiters);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, Ordering::SeqCst) > 1 {
            self.0.next.notify_one();
        }
    }
}

impl RedisQueue {
    /// Takes visible messages. With `waits`, leaves a mark if there is none.
    async fn look(&self, max: usize, visibility: Duration, waits: bool) -> Result<Look, PortError> {
        let mut call = self.call(&RECEIVE);
        call.arg(MAX_BYTES).items(1).weighing(max);
        call.arg(max).arg(micros(visibility)).arg(u8::from(waits));
        let [answer]: [Value; 1] = self.answer(call).await?.try_into().map_err(|_| self.unexpected())?;
        let answer = match answer {
            Value::Array(answer) => answer,
            // Others of the request received as much as fits into an answer.
            Value::Nil => return Ok(Look::Again),
            _ => return Err(self.unexpected()),
        };
        if let [] | [_] = &answer[..] {
            return Ok(Look::Empty(answer.first().and_then(codec::number).map(Duration::from_micros)));
        }
        let (mut taken, mut damaged) = (Vec::new(), Vec::new());
        for entry in Decoder::new(answer) {
            match entry.ok_or_else(|| self.unexpected())? {
                Entry::Message(found) => taken.push(found.into_delivery(self.0.tag)),
                Entry::Damaged(id) => damaged.push(id),
            }
        }
        let set_aside = if damaged.is_empty() { Ok(()) } else { self.set_aside(damaged).await };
        if taken.is_empty() {
            // Messages that cannot be set aside return, and would be found for ever.
            set_aside?;
            return Ok(Look::Again);
        }
        Ok(Look::Taken(taken))
    }

    pub(super) async fn wait_for(&self, max: usize, receive: Receive) -> Result<Vec<Delivery>, PortError> {
        let (waiters, clock) = (&self.0.waiters, &self.0.redis.link.base().clock);
        let begin = clock.now();
        let end = begin + receive.wait;
        // Behind many messages that are damaged others may wait, but not for as long as that takes.
        let last = begin + receive.wait.max(self.0.redis.config().request_timeout);
        let _waiting = (!receive.wait.is_zero()).then(|| waiters.enter());
        let mut is_subscribed = waiters.is_subscribed();
        loop {
            let next = match self.look(max, receive.visibility, is_subscribed).await? {
                Look::Taken(taken) => return Ok(taken),
                Look::Empty(next) => next,
                Look::Again if clock.now() < last => continue,
                Look::Again => return Ok(Vec::new()),
            };
            let now = clock.now();
            if now >= end {
                return Ok(Vec::new());
            }
            if !is_subscribed && (waiters.is_subscribed() || self.subscribe(clock.sleep_until(end)).await) {
                // The next look leaves the mark, and nothing may come between it and the wait.
                is_subscribed = true;
                continue;
            }
            // A notice may be lost with its server.
            let poll = self.0.redis.config().poll;
            let look = if is_subscribed { poll } else { poll.min(UNSUBSCRIBED) };
            let until = end.min(now + next.map_or(look, |next| next.min(look)));
            race(waiters.woken(), clock.sleep_until(until)).await;
        }
    }

    /// Subscribes, unless that is done. Returns `false` after an error, or if `ends` is first.
    async fn subscribe(&self, ends: impl Future<Output = ()>) -> bool {
        let waiters = &self.0.waiters;
        let subscribe = async {
            let mut subscription = waiters.subscription.lock().await;
            if subscription.is_none() {
                *subscription = self.0.redis.pubsub.subscribe(waiters.channel.clone()).await.ok();
                waiters.is_subscribed.store(subscription.is_some(), Ordering::Release);
            }
            subscription.is_some()
        };
        matches!(race(subscribe, ends).await, First::One(true))
    }
}
