//! Being the leader: renewing the term while polled, and giving it up.
use std::fmt;

use super::{
    Call, LeaderElection, LeaderElectionEvent as Event, Term, TermEnd,
    count::Count,
    hints::{FREE, RESIGN},
};
use crate::{
    lease::LeaseError,
    notify::Hints,
    port::{AskError, FencingToken, ask},
    race::{First, race},
    time::Instant,
};

/// A term for which this node was elected.
///
/// The term is renewed while [`lost`](Self::lost) is polled. Dropping this value ends the term on
/// this node at once, but does not release the lease: other candidates wait until the term has
/// passed. [`resign`](Self::resign) releases it.
#[must_use = "dropped, it ends"]
pub struct Leadership {
    election: LeaderElection,
    term: Term,
    count: Count,
    hints: Hints,
    /// Set once the work was told of a request to end the term. It is told once; `lost` may then be
    /// called again to keep the term while the work ends.
    told: bool,
    over: Option<TermEnd>,
    /// `true` once the `Ended` event was sent.
    ended: bool,
}

impl Leadership {
    pub(super) fn new(election: LeaderElection, term: Term, count: Count, hints: Hints) -> Self {
        Self { election, term, count, hints, told: false, over: None, ended: false }
    }

    /// Returns the term, to be handed to the work that runs under it.
    pub fn term(&self) -> Term {
        self.term.clone()
    }

    /// Returns the fencing token for writes under this term.
    pub fn token(&self) -> FencingToken {
        self.term.token()
    }

    /// Returns `true` if the term lasts by the clock at this moment.
    pub fn is_leader(&self) -> bool {
        self.term.is_leader()
    }

    /// Returns the time from which the holder must not act, unless the term is renewed before. Once
    /// the term has ended this is the clock's origin.
    pub fn deadline(&self) -> Instant {
        self.term.deadline()
    }

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

    /// Ends the term on this node and releases the lease, so that a successor need not wait for the
    /// term to pass.
    ///
    /// Call it when the work has ended.
    ///
    /// # Errors
    /// If the lease could not be released. The term has ended on this node all the same; other
    /// candidates wait until it has passed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the term has ended on this node; the lease was either released or
    /// not.
    pub async fn resign(mut self) -> Result<(), LeaseError> {
        self.give_up(TermEnd::Finished).await
    }

    pub(super) async fn give_up(&mut self, why: TermEnd) -> Result<(), LeaseError> {
        self.term.end();
        let why = self.over.replace(why).unwrap_or(why);
        let inner = self.election.0.clone();
        let (token, timeout) = (self.term.token(), inner.config.call_timeout);
        let released = inner.leases.release(inner.name.as_str(), &inner.holder, token);
        let released = ask(&inner.clock, timeout, released).await;
        let released = released.map_err(|error| error.or_timed_out("releasing the lease timed out"));
        if let Err(error) = &released
            && !error.is_not_held()
        {
            inner.failed(Call::Release, error, None);
        }
        inner.leave(token);
        // Set only now: if the future is dropped during the release, `drop` sends the event.
        self.ended = true;
        inner.event(|| Event::Ended { token, why, released: released.is_ok() });
        if released.is_ok() {
            inner.publish(FREE).await;
        }
        released
    }

    /// Tells the work to end, and reports it.
    pub(super) fn ending(&self, why: TermEnd) {
        self.term.tell();
        let token = self.term.token();
        self.election.0.event(|| Event::Ending { token, why });
    }

    pub(super) fn election(&self) -> &LeaderElection {
        &self.election
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        // Without this value nothing renews the term.
        self.term.end();
        let token = self.term.token();
        self.election.0.leave(token);
        if !self.ended {
            let why = self.over.unwrap_or(TermEnd::Dropped);
            self.election.0.event(|| Event::Ended { token, why, released: false });
        }
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership").field("term", &self.term).field("over", &self.over).finish_non_exhaustive()
    }
}
