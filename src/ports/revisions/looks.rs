//! The moments at which a process looks at a head: at a notice, after a gap, and from time to time.
use std::{sync::Arc, time::Duration};

use crate::{
    entropy::Entropy,
    notify::{Hints, Notifier},
    race::race,
    time::{Clock, Instant, scaled},
};

/// Time limit of a subscription. Without it the process polls.
const SUBSCRIBING: Duration = Duration::from_secs(5);

/// Interval between two looks at the request of notices, however many there are.
const APART: Duration = Duration::from_millis(100);

pub(crate) struct Looks {
    clock: Clock,
    entropy: Entropy,
    notifier: Option<Arc<dyn Notifier>>,
    topic: String,
    hints: Hints,
    is_subscribed: bool,
    due: Instant,
    /// Interval of the looks without a notice.
    interval: Duration,
}

impl Looks {
    /// Creates the looks at a head. The first is due at once.
    pub(crate) fn new(clock: &Clock, entropy: &Entropy, (notifier, topic): (Option<&Arc<dyn Notifier>>, &str)) -> Self {
        Self {
            clock: clock.clone(),
            entropy: entropy.clone(),
            notifier: notifier.cloned(),
            topic: topic.to_owned(),
            hints: Hints::new(APART),
            is_subscribed: false,
            due: clock.now(),
            interval: APART,
        }
    }

    /// Sets the next look, after a pause of `interval`, give or take a fifth.
    pub(crate) fn looked(&mut self, interval: Duration) {
        self.interval = interval;
        self.due = self.clock.now() + scaled(interval, 0.8 + 0.4 * self.entropy.unit());
    }

    /// Waits until a look is due.
    ///
    /// # Cancel safety
    /// Dropping the future loses no notice.
    pub(crate) async fn is_due(&mut self) {
        let Self { clock, notifier, topic, hints, is_subscribed, due, interval, .. } = self;
        let clock = &*clock;
        let hinted = async {
            // Without a subscription the head is polled until the next attempt.
            let subscribed = hints.subscribe(notifier.as_ref(), topic, (clock, SUBSCRIBING)).await;
            // A notice that came between the last look and the subscription is lost: look again.
            if !*is_subscribed && notifier.is_some() && subscribed.is_ok() {
                *is_subscribed = true;
                return;
            }
            hints.recv(clock, *interval, |_| true).await;
        };
        race(clock.sleep_until(*due), hinted).await;
    }
}
