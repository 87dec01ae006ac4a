//! The listener's decision on a delivery, by the result of its handler.
use std::{sync::Arc, time::Duration};

use crate::{
    backoff::Backoff,
    port::PortError,
    queue::{Address, AttemptError, AttemptErrorKind, Message, Settle},
    queue_listener::{Disposition, lease::Lease, run::state::RunState, settle::PendingSettlement},
    time::{Timestamp, scaled},
    work::SHORTEST_DELAY,
};

/// Maximum delay of a refused message whose refusal gives none; the minimum is half of it.
const UNKNOWN: Duration = Duration::from_secs(1);

/// Maximum random delay that is added to that of a refusal.
const LATEST: Duration = Duration::from_secs(1);

/// Mean delay of a suspect message that could not begin.
const PUT_OFF: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub(crate) enum Decision {
    /// The handler completed.
    Complete,
    /// The handler completed with these results.
    Forward(Arc<[(Address, Message)]>),
    /// The message was handled before.
    Duplicate,
    /// The attempt failed; the message is delivered again after the delay.
    Retry {
        after: Duration,
        failure: Box<Failed>,
    },
    DeadLetter {
        reason: String,
        failure: Option<Box<Failed>>,
    },
    /// The message was not tried. It is delivered again after the delay.
    Release {
        after: Duration,
    },
    /// A dependency of the handler refused the message or is away. It is delivered again after the
    /// delay, and no attempt is counted.
    Refused {
        after: Duration,
        error: String,
    },
    /// The handler asked for a later delivery, which is no attempt.
    Snooze {
        after: Duration,
    },
    /// The message was cancelled. Without a reason it is removed.
    Cancelled {
        reason: Option<String>,
    },
    /// The lease was lost, which is already reported. If the queue still accepts the release, it
    /// explains the end of the delivery.
    LeaseLost,
}

/// A failed attempt, as the queue records it.
#[derive(Debug, Clone)]
pub(crate) struct Failed {
    pub(crate) at: Timestamp,
    pub(crate) kind: AttemptErrorKind,
    pub(crate) error: String,
}

impl Failed {
    fn of_attempt(&self, attempt: u32) -> AttemptError {
        let text = &self.error[..self.error.floor_char_boundary(AttemptError::MAX_TEXT)];
        AttemptError::new(attempt, self.at, self.kind, text)
    }
}

impl Decision {
    /// The message is delivered again at once.
    pub(crate) const RELEASE: Self = Self::Release { after: Duration::ZERO };

    /// Returns `true` if the message is not delivered again.
    pub(crate) fn ends_the_message(&self) -> bool {
        use Decision::{Cancelled, Complete, DeadLetter, Duplicate, Forward};
        matches!(self, Complete | Forward(_) | Duplicate | DeadLetter { .. } | Cancelled { .. })
    }

    pub(crate) fn settle(&self, attempt: u32) -> Settle {
        match self {
            Self::Complete | Self::Duplicate | Self::Cancelled { reason: None } => Settle::Complete,
            Self::Forward(messages) => Settle::Forward { messages: messages.to_vec() },
            Self::Cancelled { reason: Some(reason) } => Settle::dead_letter(reason.clone()),
            Self::Retry { after, failure } => Settle::abandon(*after).because(failure.of_attempt(attempt)),
            Self::DeadLetter { reason, failure: None } => Settle::dead_letter(reason.clone()),
            Self::DeadLetter { reason, failure: Some(failure) } => {
                Settle::dead_letter(reason.clone()).because(failure.of_attempt(attempt))
            }
            Self::LeaseLost => Settle::release(Duration::ZERO),
            Self::Release { after } | Self::Refused { after, .. } | Self::Snooze { after } => Settle::release(*after),
        }
    }
}

impl RunState {
    /// Decides how a delivery is settled, by the result of its handler. An error is of this kind.
    pub(crate) fn decide(&self, lease: Lease, disposition: Disposition, kind: AttemptErrorKind) -> PendingSettlement {
        let decision = match disposition {
            Disposition::Complete => {
                self.completes(&lease);
                Decision::Complete
            }
            Disposition::Forward { messages } => {
                self.completes(&lease);
                Decision::Forward(messages.into())
            }
            // A handler that completes has done its work; any other result is too late.
            _ if self.inner.is_cancelled(&lease) => self.cancelled(&lease),
            Disposition::Retry { after, error } => self.failed(&lease, after, (kind, error)),
            Disposition::Release => self.released(&lease),
            Disposition::Refused { after, error } => {
                self.outages.change(|outage| outage.refused(self.now()));
                self.refused(after, error)
            }
            Disposition::Snooze { after } => {
                Decision::Snooze { after: after.clamp(SHORTEST_DELAY, Disposition::LONGEST_SNOOZE) }
            }
            Disposition::DeadLetter { reason } => {
                let failure = self.failure(AttemptErrorKind::DeadLettered, reason.clone());
                self.dead_letter(&lease, &reason, Some(failure))
            }
        };
        lease.settlement(decision)
    }

    /// Decides on the message of a handler that panicked.
    #[cold]
    pub(crate) fn panicked(&self, lease: Lease, panic: &str) -> PendingSettlement {
        self.decide(lease, Disposition::retry(panic), AttemptErrorKind::Panicked)
    }

    /// Records a success, which ends the outage if the message was refused in it.
    #[inline]
    pub(crate) fn completes(&self, lease: &Lease) {
        if self.outages.is_open() {
            self.outages.change(|outage| outage.succeeded(lease.releases() > 0));
        }
    }

    #[cold]
    fn failed(&self, lease: &Lease, after: Option<Duration>, (kind, error): (AttemptErrorKind, String)) -> Decision {
        let now = self.now();
        if let Some(failures) = self.outages.change(|outage| outage.failed(&lease.id, lease.releases() > 0, now)) {
            return Decision::Refused { after: self.pause(failures), error };
        }
        self.attempt_failed(lease, after, (kind, error))
    }

    /// Decides on a message whose forward the queue refused for good. The attempt failed.
    #[cold]
    pub(crate) fn forward_refused(&self, settlement: &PendingSettlement, refused: &PortError) -> Decision {
        let failure = (AttemptErrorKind::Failed, format!("the forward was refused: {refused}"));
        self.attempt_failed(&settlement.lease, None, failure)
    }

    /// Decides on a message whose forward is given up because a target stays full. It is delivered
    /// again later, and no attempt is counted.
    #[cold]
    pub(crate) fn forward_delayed(&self, full: &PortError) -> Decision {
        self.refused(None, format!("the forward was refused: {full}"))
    }

    fn attempt_failed(
        &self,
        lease: &Lease,
        after: Option<Duration>,
        (kind, error): (AttemptErrorKind, String),
    ) -> Decision {
        if lease.attempt >= self.inner.config.load().max_attempts {
            let reason = format!("exceeded max attempts: {error}");
            return self.dead_letter(lease, &reason, Some(self.failure(kind, error)));
        }
        let after = after.unwrap_or_else(|| self.pause(lease.attempt));
        Decision::Retry { after, failure: self.failure(kind, error) }
    }

    /// Returns the failure of an attempt that ends now.
    fn failure(&self, kind: AttemptErrorKind, error: String) -> Box<Failed> {
        Box::new(Failed { at: self.inner.clock.wall(), kind, error })
    }

    /// Returns the decision on a refused message. Up to 10 % of random delay, at most `LATEST`,
    /// keep many messages from returning together. The more messages are refused, the longer is a
    /// further random delay: they take at most half of the polls, so that others are found.
    fn refused(&self, after: Option<Duration>, error: String) -> Decision {
        let (entropy, config) = (&self.inner.entropy, self.inner.config.load());
        let after = match after {
            Some(after) => {
                let after = after.clamp(SHORTEST_DELAY, Disposition::LONGEST_REFUSAL);
                after.saturating_add(scaled((after / 10).min(LATEST), entropy.unit()))
            }
            None => scaled(UNKNOWN, 0.5 + entropy.unit() / 2.0),
        };
        let now = self.now();
        let hidden = self.outages.change(|outage| outage.hidden(now));
        let polls = hidden / u32::try_from(config.batch).unwrap_or(u32::MAX).max(1);
        let spread = config.idle.min.saturating_mul(polls.saturating_mul(2)).min(Disposition::LONGEST_REFUSAL);
        let after = if spread.is_zero() { after } else { after.saturating_add(scaled(spread, entropy.unit())) };
        self.outages.change(|outage| outage.hides_until(now + after));
        Decision::Refused { after, error }
    }

    /// Returns the decision on a message that its handler released. A handler that was asked to
    /// stop leaves it to others at once. Any other one may release it again and again, so the delay
    /// doubles with each earlier release, refusal or snooze of the message.
    #[cold]
    fn released(&self, lease: &Lease) -> Decision {
        if self.lifecycle.stops() || self.inner.is_source_paused(lease.source) {
            return Decision::RELEASE;
        }
        let after = SHORTEST_DELAY.saturating_mul(1 << lease.releases().min(16)).min(Disposition::LONGEST_REFUSAL);
        let jitter = scaled((after / 10).min(LATEST), self.inner.entropy.unit());
        Decision::Release { after: after.saturating_add(jitter) }
    }

    /// Returns the decision on a suspect message that cannot begin now.
    pub(crate) fn put_off(&self) -> Decision {
        Decision::Release { after: scaled(PUT_OFF, 0.5 + self.inner.entropy.unit()) }
    }

    /// Returns the delay before the next attempt.
    fn pause(&self, attempts: u32) -> Duration {
        // The delay has long reached its maximum by then, so the iterator need not go further.
        let before = attempts.saturating_sub(1).min(64) as usize;
        let config = self.inner.config.load().retry;
        Backoff::checked(config, &self.inner.entropy).nth(before).unwrap_or(config.cap)
    }

    /// Returns the decision for a dead letter, with details for people. In a queue without dead
    /// letters the message is retried with the maximum delay.
    #[cold]
    pub(crate) fn dead_letter(&self, lease: &Lease, why: &str, failure: Option<Box<Failed>>) -> Decision {
        let reason = self.reason(lease, why);
        if self.inner.sources[lease.source].has_dead_letters {
            Decision::DeadLetter { reason, failure }
        } else {
            let kind = failure.map_or(AttemptErrorKind::Failed, |failure| failure.kind);
            Decision::Retry { after: self.inner.config.load().retry.cap, failure: self.failure(kind, reason) }
        }
    }

    /// Returns the decision on a cancelled message. A queue without dead letters removes it.
    #[cold]
    pub(crate) fn cancelled(&self, lease: &Lease) -> Decision {
        let has_dead_letters = self.inner.sources[lease.source].has_dead_letters;
        Decision::Cancelled { reason: has_dead_letters.then(|| self.reason(lease, "cancelled")) }
    }

    /// Returns the decision on a message that must not begin: it was cancelled, or its attempts are
    /// used up.
    pub(crate) fn barred(&self, lease: &Lease) -> Option<Decision> {
        if self.inner.is_cancelled(lease) {
            return Some(self.cancelled(lease));
        }
        let exceeds = lease.exceeds(self.inner.config.load().max_attempts);
        exceeds.then(|| self.dead_letter(lease, "exceeded max attempts without being settled", None))
    }

    /// Returns the reason of a dead letter, with details for people.
    fn reason(&self, lease: &Lease, why: &str) -> String {
        format!(
            "{why} (attempt {}, delivery {}, dead-lettered at {})",
            lease.attempt,
            lease.deliveries,
            self.inner.clock.wall()
        )
    }
}
