//! Replay of entries: in order, at a pace, behind a gate.
use std::{future::Future, time::Duration};

use super::{Gate, Journal, JournalEvent as Event, Replay, Replayed, defer::Inner};
use crate::{
    port::PortError,
    queue_listener::Work,
    race::{First, race},
    work::{Cancelled, Disposition},
};

/// Maximum interval between two checks of a shut gate; and the delay of a refused entry whose
/// refusal gives none.
const LOOK: Duration = Duration::from_secs(1);

/// Maximum delay of a suspect entry that finds the gate shut.
const RETURN: Duration = Duration::from_secs(10);

impl Journal {
    /// Replays entries while `gate` is open, until `shutdown` completes; then stops. Run it beside
    /// your service, in any number of processes.
    ///
    /// `replay` makes the call of an entry, through the same pipeline as direct calls, and under
    /// the key of the entry. An entry whose call is rejected stays in memory for the delay of the
    /// rejection, [30 s](Disposition::LONGEST_REFUSAL) at most. So does one that fails while the
    /// gate is shut. An entry that fails while the gate is open is tried again later, and becomes a
    /// dead letter after [`max_attempts`](super::JournalConfig::max_attempts).
    ///
    /// # Errors
    /// Only permanent ones: no permission, or a closed queue. The run stops in the same way first.
    ///
    /// # Cancel safety
    /// A dropped run drops its entries. They are replayed after their visibility time-out, by any
    /// process that runs then. Prefer `shutdown`.
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
        // The same settings were valid before.
        let listener = inner.listener().map_err(|e| PortError::invalid(e.field(), e.rule()))?;
        let (gate, replay) = (&gate, &replay);
        listener.run(shutdown, |work: Work| inner.replay(work, gate, replay)).await
    }
}

impl Inner {
    async fn replay<F, H>(&self, work: Work, gate: impl Fn() -> Gate, replay: &F) -> Disposition
    where
        F: Fn(Replay) -> H,
        H: Future<Output: Into<Replayed>>,
    {
        let (cancel, is_suspect) = (work.cancel().clone(), work.expiries > 0);
        let Some(entry) = Replay::of(work.into_delivery()) else {
            return Disposition::dead_letter("not a journal entry: no idempotency key");
        };
        loop {
            if let Err(disposition) = self.may_go(&gate, &cancel, is_suspect).await {
                return disposition;
            }
            match replay(entry.clone()).await.into() {
                Replayed::Done => {
                    self.emit(|| Event::Replayed { key: entry.key.clone(), deliveries: entry.deliveries() });
                    return Disposition::Complete;
                }
                Replayed::Poison { reason } => {
                    self.emit(|| Event::Poisoned { key: entry.key.clone(), reason: reason.clone() });
                    return Disposition::dead_letter(reason);
                }
                Replayed::Failed { after, error } if !gate().is_shut() => {
                    let (key, deliveries) = (&entry.key, entry.deliveries());
                    self.emit(|| Event::Failed { key: key.clone(), deliveries, error: error.clone() });
                    return Disposition::Retry { after, error };
                }
                // The service is to blame: the entry waits here, so that an outage uses up no
                // deliveries.
                Replayed::Failed { .. } => {}
                Replayed::Refused { after } if is_suspect => {
                    return Disposition::refused(after, "the call was rejected");
                }
                Replayed::Refused { after } => {
                    if !self.wait_after_refusal(after.unwrap_or(LOOK), &gate, &cancel).await {
                        return Disposition::Release;
                    }
                }
            }
        }
    }

    /// Waits after a refusal, at most for [`LONGEST_REFUSAL`](Disposition::LONGEST_REFUSAL), which
    /// bounds the cost of a wrong delay. If the gate shuts meanwhile, the wait ends. Returns
    /// `false` if the run stops or the lease cannot be kept.
    async fn wait_after_refusal(&self, wait: Duration, gate: impl Fn() -> Gate, cancel: &Cancelled) -> bool {
        let until = self.clock().now() + wait.min(Disposition::LONGEST_REFUSAL);
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

    /// Waits until the gate is open and the rate limit admits the entry.
    ///
    /// A suspect entry does not wait for the gate here: the listener has recorded that its handler
    /// began, so that a death of the process during the wait would count, though its call was not
    /// made.
    ///
    /// # Errors
    /// The disposition of an entry that is not replayed now.
    async fn may_go(&self, gate: impl Fn() -> Gate, cancel: &Cancelled, is_suspect: bool) -> Result<(), Disposition> {
        loop {
            while let Gate::Shut(wait) = gate() {
                self.report_waiting(wait);
                if is_suspect {
                    return Err(Disposition::refused(Some(wait.clamp(LOOK, RETURN)), "the gate is shut"));
                }
                let wait = self.clock().sleep(wait.clamp(Duration::from_millis(1), LOOK));
                if let First::One(()) = race(cancel.cancelled(), wait).await {
                    return Err(Disposition::Release);
                }
            }
            self.report_replaying();
            if let First::One(()) = race(cancel.cancelled(), self.pace.acquire()).await {
                return Err(Disposition::Release);
            }
            // The gate may have shut during the wait for the rate limit.
            if !gate().is_shut() {
                return Ok(());
            }
        }
    }
}
