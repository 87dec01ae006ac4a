//! Notices as hints: each makes its receiver look at the state earlier than its next poll.
use std::{future::pending, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Notice, Notices, Notifier};
use crate::{
    port::{AskError, PortError, ask},
    time::{Clock, Instant},
};

/// A subscription to hints with a bounded rate, so that a flood of hints causes no flood of
/// requests. Silent while it is not subscribed.
pub(crate) struct Hints {
    notices: Option<Notices>,
    /// Minimum interval between two hints.
    apart: Duration,
    /// Time before which no hint is received.
    deaf_until: Instant,
}

impl Hints {
    pub(crate) fn new(apart: Duration) -> Self {
        Self { notices: None, apart, deaf_until: Instant::default() }
    }

    /// Subscribes within the time limit, unless that is done or there is no notifier. After an
    /// error the caller polls, and may subscribe again.
    pub(crate) async fn subscribe(
        &mut self,
        notifier: Option<&Arc<dyn Notifier>>,
        topic: &str,
        (clock, limit): (&Clock, Duration),
    ) -> Result<(), AskError<PortError>> {
        if self.notices.is_none()
            && let Some(notifier) = notifier
        {
            self.notices = Some(ask(clock, limit, notifier.subscribe(topic)).await?);
        }
        Ok(())
    }

    /// Waits for a hint that is meant for the caller, or for a gap in which one may have been lost.
    /// After a gap no hint is received for one `poll`: a connection that breaks repeatedly must
    /// cause no more requests than polling does.
    ///
    /// # Cancel safety
    /// Dropping the future loses no hint.
    pub(crate) async fn recv(&mut self, clock: &Clock, poll: Duration, is_meant: impl Fn(&Bytes) -> bool) {
        let Some(notices) = &mut self.notices else { return pending().await };
        if clock.now() < self.deaf_until {
            clock.sleep_until(self.deaf_until).await;
        }
        let apart = loop {
            match notices.recv().await {
                Notice::Message(hint) if is_meant(&hint) => break self.apart,
                Notice::Message(_) => {}
                Notice::Gap => break poll,
            }
        };
        self.deaf_until = clock.now() + apart;
    }
}
