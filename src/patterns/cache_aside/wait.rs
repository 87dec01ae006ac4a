//! The wait of one get for a flight: its time limits, and its checks for a stalled driver.
use std::{hash::Hash, time::Duration};

use super::{
    RemoteConfig,
    report::Report,
    state::{Inner, LoadOutcome},
};
use crate::{
    flight::{FlightResult, Seat},
    race::{Continued, First, race},
    time::Instant,
};

/// Maximum time before the first check for a stalled driver, which otherwise comes after a quarter
/// of the limit.
const FIRST_LOOK: Duration = Duration::from_millis(250);

/// Maximum time between two checks, which doubles each time.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The time limits of one get, counted from its first wait. They hold whichever caller drives the
/// load.
pub(super) struct Wait {
    /// Time after which the get fails.
    limit: Option<Duration>,
    /// Time after which the get serves a stale value.
    soft: Option<Duration>,
    pause: Duration,
    began: Option<Instant>,
    /// `true` if the seat has been polled in this poll already.
    polled: bool,
}

/// The end of a wait.
pub(super) enum Waited<V> {
    /// The flight ended, with its outcome, or `None` if it was lost.
    Ended(Option<FlightResult<LoadOutcome<V>>>),
    Soft,
    Limit,
}

/// The next timer of a wait.
enum Due {
    Look,
    Soft,
    Limit,
}

impl Wait {
    pub(super) fn new<K: Hash + Eq, V>(inner: &Inner<K, V>, soft: Option<Duration>, hard: Option<Duration>) -> Self {
        let has_remote = inner.shared.as_ref().is_some_and(|shared| shared.remote.is_some());
        let beside = |remote: &RemoteConfig| remote.timeout.saturating_add(remote.wait);
        let beside = if has_remote { beside(&inner.config.load().remote) } else { Duration::ZERO };
        let limit = hard.map(|hard| hard.saturating_add(beside));
        let pause = limit.map_or(FIRST_LOOK, |limit| (limit / 4).min(FIRST_LOOK));
        Self { limit, soft, pause, began: None, polled: false }
    }

    /// Skips the first poll of the seat, which the caller has just polled with the same waker.
    pub(super) fn after_a_poll(mut self) -> Self {
        self.polled = true;
        self
    }

    /// Counts the time limits from this time.
    pub(super) const fn since(mut self, began: Instant) -> Self {
        self.began = Some(began);
        self
    }

    /// Waits for the flight, and takes it over if its driver stalls.
    pub(super) async fn on<K, V>(&mut self, report: &Report, seat: &mut Seat<K, LoadOutcome<V>>) -> Waited<V>
    where
        K: Hash + Eq,
    {
        loop {
            let outcome = Continued::new(&mut *seat, std::mem::take(&mut self.polled));
            // A flight that has ended needs no timer.
            match race(outcome, self.due(report)).await {
                First::One(outcome) => return Waited::Ended(outcome),
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
