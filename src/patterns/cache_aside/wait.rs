//! The wait for a flight: how long one get waits, and when it looks whether anybody still drives the load.
use std::{
    future::{Future, poll_fn},
    hash::Hash,
    pin::Pin,
    task::Poll,
    time::Duration,
};

use super::{
    inner::{Inner, Landed},
    report::Report,
};
use crate::{
    flight::{Given, Seat},
    race::{First, race},
    time::Instant,
};

/// The first look whether the load is still driven comes after a quarter of the limit, and at most after this time.
const FIRST_LOOK: Duration = Duration::from_millis(250);

/// The time between two looks doubles up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The limits of one get, which hold whoever drives the load. It counts from its first wait.
pub(super) struct Wait {
    /// After this time it gives up.
    limit: Option<Duration>,
    /// After this time it serves what is stale.
    soft: Option<Duration>,
    pause: Duration,
    began: Option<Instant>,
    /// The seat was polled in this poll already.
    polled: bool,
}

/// What ended a wait.
pub(super) enum Waited<V> {
    /// The flight's outcome; `None` where it was lost.
    Landed(Option<Given<Landed<V>>>),
    Soft,
    Limit,
}

/// What a wait is interrupted by.
enum Due {
    Look,
    Soft,
    Limit,
}

impl Wait {
    pub(super) fn new<K: Hash + Eq, V>(inner: &Inner<K, V>, soft: Option<Duration>) -> Self {
        let has_remote = inner.shared.as_ref().is_some_and(|shared| shared.remote.is_some());
        let remote = inner.config.remote;
        let beside = if has_remote { remote.timeout.saturating_add(remote.wait) } else { Duration::ZERO };
        let limit = inner.config.hard_timeout.map(|hard| hard.saturating_add(beside));
        let pause = limit.map_or(FIRST_LOOK, |limit| (limit / 4).min(FIRST_LOOK));
        Self { limit, soft, pause, began: None, polled: false }
    }

    /// Skips the first poll of the seat: the caller has polled it with the same waker, just before.
    pub(super) fn after_a_poll(mut self) -> Self {
        self.polled = true;
        self
    }

    /// Waits for the flight, and takes it over where its driver stalls.
    pub(super) async fn on<K, V>(&mut self, report: &Report, seat: &mut Seat<K, Landed<V>>) -> Waited<V>
    where
        K: Hash + Eq,
    {
        let mut polled = std::mem::take(&mut self.polled);
        loop {
            let landed = poll_fn(|cx| match std::mem::take(&mut polled) {
                true => Poll::Pending,
                false => Pin::new(&mut *seat).poll(cx),
            });
            // A flight that is over needs no timer.
            match race(landed, self.due(report)).await {
                First::One(outcome) => return Waited::Landed(outcome),
                First::Other(Due::Look) => seat.take_over(),
                First::Other(Due::Soft) => return Waited::Soft,
                First::Other(Due::Limit) => return Waited::Limit,
            }
        }
    }

    async fn due(&mut self, report: &Report) -> Due {
        let now = report.now();
        let began = *self.began.get_or_insert(now);
        let at = |after: Option<Duration>| after.map_or(Instant::FAR_FUTURE, |after| began + after);
        let (look, soft, limit) = (now + self.pause, at(self.soft), at(self.limit));
        self.pause = self.pause.saturating_mul(2).min(LONGEST_PAUSE);
        let next = look.min(soft).min(limit);
        report.clock.sleep_until(next).await;
        if next == limit {
            Due::Limit
        } else if next == soft {
            self.soft = None;
            Due::Soft
        } else {
            Due::Look
        }
    }
}
