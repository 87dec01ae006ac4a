//! Renewal of the leader's term, until the work has to end.
use super::{Call, LeaderElectionEvent as Event, Leadership, TermEnd, hints::RESIGN};
use crate::{
    lease::LeaseError,
    port::{AskError, ask},
    race::{First, race},
};

impl Leadership {
    /// Renews the term while it is polled, and returns when the work must end.
    ///
    /// - After [`NotRenewed`](TermEnd::NotRenewed) the work has
    ///   [`grace`](super::LeaderElectionConfig::grace) left to end.
    /// - After [`Superseded`](TermEnd::Superseded) it has no time left.
    /// - After [`ResignRequested`](TermEnd::ResignRequested) and [`Unhealthy`](TermEnd::Unhealthy)
    ///   the term lasts as long as this is called again; the caller ends its work and calls
    ///   [`resign`](Self::resign).
    ///
    /// # Cancel safety
    /// If the future is dropped, a later call continues. A renewal in flight may have been applied;
    /// the term is counted as if it had not.
    pub async fn lost(&mut self) -> TermEnd {
        loop {
            if let Some(end) = self.over {
                return end;
            }
            let inner = self.election.0.clone();
            let now = inner.clock.now();
            let Some(budget) = self.count.budget(&inner.config, now) else {
                self.over = Some(TermEnd::NotRenewed);
                self.ending(TermEnd::NotRenewed);
                continue;
            };
            if now < self.count.next_renewal() {
                let next = self.count.next_renewal().min(self.count.warning(&inner.config));
                match race(inner.heard(&mut self.hints, RESIGN), inner.clock.sleep_until(next)).await {
                    // The notice may be a request to resign, and the renewal's reply says so.
                    First::One(()) => self.count.hurry(inner.clock.now()),
                    First::Other(()) => {}
                }
                continue;
            }
            if !self.told && !inner.is_fit() {
                self.told = true;
                self.ending(TermEnd::Unhealthy);
                return TermEnd::Unhealthy;
            }
            let renewed = inner.leases.renew(inner.name.as_str(), &inner.holder, self.term.token(), inner.config.term);
            let renewed = ask(&inner.clock, budget, renewed).await;
            let after = inner.clock.now();
            let left = || Some(self.count.deadline(&inner.config) - after);
            match renewed {
                Ok(renewed) => {
                    self.count.renewed(&inner.config, now);
                    self.term.counted(&inner.config, self.count);
                    if renewed.release_requested && !self.told {
                        self.told = true;
                        self.ending(TermEnd::ResignRequested);
                        return TermEnd::ResignRequested;
                    }
                }
                Err(AskError::Failed(LeaseError::NotHeld)) => {
                    self.term.end();
                    self.over = Some(TermEnd::Superseded);
                    self.ending(TermEnd::Superseded);
                }
                Err(AskError::Failed(error)) => {
                    inner.failed(Call::Renew, &error, left());
                    self.count.failed(after, inner.after_failure(&error));
                }
                Err(AskError::TimedOut) => {
                    inner.event(|| Event::CallFailed { call: Call::Renew, kind: None, left: left() });
                    self.count.failed(after, inner.some_of_a_poll() / 4);
                }
            }
        }
    }

    /// Renews until the term is over.
    pub(super) async fn kept(&mut self) {
        while !matches!(self.lost().await, TermEnd::NotRenewed | TermEnd::Superseded) {}
    }
}
