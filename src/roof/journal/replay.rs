//! Replaying: in turn, at a pace, behind a gate.
use std::{future::Future, time::Duration};

use super::{Gate, Journal, JournalEvent as Event, Replay, Replayed, defer::Inner};
use crate::{
    port::PortError,
    queue_listener::{Cancelled, Handled, Work},
    race::{First, race},
};

/// How long a shut gate is not looked at, at the most; and how long a refused entry waits, where nobody knows better.
const LOOK: Duration = Duration::from_secs(1);

impl Journal {
    /// Takes entries while `gate` is open and has them done, until `shutdown` is ready; then stops in order. Run it beside your service, in as many
    /// processes as you like.
    ///
    /// `replay` does what the entry says, through the same pipeline as the calls, and under the entry's key. An entry whose call is refused waits in
    /// hand, for as long as the refusal says but [30 s](Handled::LONGEST_REFUSAL) at most, and so does one that fails when the gate shuts over it; one that fails while the gate is open is tried again later, and is a dead letter after
    /// [`max_attempts`](super::JournalConfig::max_attempts).
    ///
    /// # Errors
    /// Only what does not pass by itself: no permission, a queue that was closed. It stops in order before.
    ///
    /// # Cancel safety
    /// Dropped, it drops what it has in hand; those entries are replayed after their visibility time-out, by whoever runs then. Prefer `shutdown`.
    pub async fn run<F, H>(
        &self,
        shutdown: impl Future<Output = ()>,
        gate: impl Fn() -> Gate,
        replay: F,
    ) -> Result<(), PortError>
    where
        F: Fn(Replay) -> H,
        H: Future<Output: Into<Replayed>>,
    {
        let inner = &*self.0;
        // It was made before, of the same settings.
        let listener = inner.listener().map_err(|e| PortError::invalid(e.field(), e.rule()))?;
        let (gate, replay) = (&gate, &replay);
        listener.run(shutdown, |work: Work| inner.replay(work, gate, replay)).await
    }
}

impl Inner {
    async fn replay<F, H>(&self, work: Work, gate: impl Fn() -> Gate, replay: &F) -> Handled
    where
        F: Fn(Replay) -> H,
        H: Future<Output: Into<Replayed>>,
    {
        let cancel = work.cancel().clone();
        let Some(entry) = Replay::of(work.into_delivery()) else {
            return Handled::dead_letter("no entry of a journal: it has no idempotency key");
        };
        loop {
            if !self.may_go(&gate, &cancel).await {
                return Handled::HandBack;
            }
            match replay(entry.clone()).await.into() {
                Replayed::Done => {
                    self.tell(|| Event::Replayed { key: entry.key.clone(), deliveries: entry.deliveries() });
                    return Handled::Complete;
                }
                Replayed::Poison { reason } => {
                    self.tell(|| Event::Poisoned { key: entry.key.clone(), reason: reason.clone() });
                    return Handled::dead_letter(reason);
                }
                Replayed::Failed { after, error } if !gate().is_shut() => {
                    let (key, deliveries) = (&entry.key, entry.deliveries());
                    self.tell(|| Event::Failed { key: key.clone(), deliveries, error: error.clone() });
                    return Handled::Retry { after, error };
                }
                // Not its fault: it waits here, so that its deliveries are not used up by an outage.
                Replayed::Failed { .. } => {}
                Replayed::Refused { after } => {
                    if !self.waits_for_the_other_side(after.unwrap_or(LOOK), &gate, &cancel).await {
                        return Handled::HandBack;
                    }
                }
            }
        }
    }

    /// Waits after a refusal, for [`LONGEST_REFUSAL`](Handled::LONGEST_REFUSAL) at most: a hint that is wrong, or that the service
    /// comes back before, costs no more. A gate that shuts meanwhile knows better. Returns false as [`may_go`](Self::may_go) does.
    async fn waits_for_the_other_side(&self, wait: Duration, gate: impl Fn() -> Gate, cancel: &Cancelled) -> bool {
        let until = self.clock().now() + wait.min(Handled::LONGEST_REFUSAL);
        loop {
            let left = until - self.clock().now();
            if left.is_zero() || gate().is_shut() {
                return true;
            }
            if let First::One(()) = race(cancel.cancelled(), self.clock().sleep(left.min(LOOK))).await {
                return false;
            }
        }
    }

    /// Waits until the gate is open and it is this entry's turn; false where the run stops, or the entry's lease cannot be kept.
    async fn may_go(&self, gate: impl Fn() -> Gate, cancel: &Cancelled) -> bool {
        loop {
            while let Gate::Shut(wait) = gate() {
                self.waits(wait);
                let wait = self.clock().sleep(wait.clamp(Duration::from_millis(1), LOOK));
                if let First::One(()) = race(cancel.cancelled(), wait).await {
                    return false;
                }
            }
            self.goes_on();
            if let First::One(()) = race(cancel.cancelled(), self.pace.acquire()).await {
                return false;
            }
            // It may have shut while this one waited for its turn.
            if !gate().is_shut() {
                return true;
            }
        }
    }
}
