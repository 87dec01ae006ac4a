//! Being the leader: renewing the term for as long as somebody polls, and giving it up.
use std::fmt;

use super::{
    Call, LeaderElection, LeaderElectionEvent as Event, Term, TermEnd,
    hints::{FREE, Hints, RESIGN},
    state::Count,
};
use crate::{
    lease::LeaseError,
    port::{FencingToken, PortError, PortErrorKind},
    race::{First, race},
    time::Instant,
};

/// A term that this node was elected for.
///
/// It lasts for as long as [`lost`](Self::lost) is polled. Dropped, it ends here at once; for others it is free when the term has
/// passed, as nobody gives the lease up: [`resign`](Self::resign) does.
#[must_use = "dropped, it ends"]
pub struct Leadership {
    election: LeaderElection,
    term: Term,
    count: Count,
    hints: Hints,
    /// Requests that end a term are told once; whoever has work to end goes on renewing meanwhile.
    told: bool,
    over: Option<TermEnd>,
    /// Whether its end was told.
    ended: bool,
}

impl Leadership {
    pub(super) fn new(election: LeaderElection, term: Term, count: Count, hints: Hints) -> Self {
        Self { election, term, count, hints, told: false, over: None, ended: false }
    }

    /// The term, to hand to whatever works under it.
    pub fn term(&self) -> Term {
        self.term.clone()
    }

    /// The token to write under.
    pub fn token(&self) -> FencingToken {
        self.term.token()
    }

    /// Whether it lasts, by the clock at this moment.
    pub fn is_leader(&self) -> bool {
        self.term.is_leader()
    }

    /// From when on nothing may be done under it, if it is not renewed before; the clock's origin once it has ended.
    pub fn deadline(&self) -> Instant {
        self.term.deadline()
    }

    /// Renews the term for as long as this is polled, and comes back when the work must end: with
    /// [`NotRenewed`](TermEnd::NotRenewed) there is the time of [`grace`](super::LeaderElectionConfig::grace) left to do so, with
    /// [`Superseded`](TermEnd::Superseded) none; with [`ResignRequested`](TermEnd::ResignRequested) and
    /// [`Unhealthy`](TermEnd::Unhealthy) the term lasts for as long as this is called again, and it is for you to
    /// [`resign`](Self::resign).
    ///
    /// # Cancel safety
    /// Dropped and called again it goes on where it was. A renewal that was under way may have been applied: the term is counted as
    /// if it had not.
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
                    // Perhaps a request to resign, which the renewal tells of.
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
            let renewed = race(renewed, inner.clock.sleep(budget)).await;
            let after = inner.clock.now();
            let left = || Some(self.count.deadline(&inner.config) - after);
            match renewed {
                First::One(Ok(renewed)) => {
                    self.count.renewed(&inner.config, now);
                    self.term.counted(&inner.config, self.count);
                    if renewed.release_requested && !self.told {
                        self.told = true;
                        self.ending(TermEnd::ResignRequested);
                        return TermEnd::ResignRequested;
                    }
                }
                First::One(Err(LeaseError::NotHeld)) => {
                    self.term.end();
                    self.over = Some(TermEnd::Superseded);
                    self.ending(TermEnd::Superseded);
                }
                First::One(Err(error)) => {
                    inner.failed(Call::Renew, &error, left());
                    self.count.failed(after, inner.after_failure(&error));
                }
                First::Other(()) => {
                    inner.event(|| Event::CallFailed { call: Call::Renew, kind: None, left: left() });
                    self.count.failed(after, inner.some_of_a_poll() / 4);
                }
            }
        }
    }

    /// Ends the term here, and gives the lease up, so that a successor need not wait for the term to pass. Call it when the work has
    /// ended.
    ///
    /// # Errors
    /// Where the lease could not be given up: the term has ended here all the same, and for others it does when it has passed.
    ///
    /// # Cancel safety
    /// Dropped, the term has ended here; the lease is given up or not.
    pub async fn resign(mut self) -> Result<(), LeaseError> {
        self.give_up(TermEnd::Finished).await
    }

    pub(super) async fn give_up(&mut self, why: TermEnd) -> Result<(), LeaseError> {
        self.term.end();
        let why = self.over.replace(why).unwrap_or(why);
        let inner = self.election.0.clone();
        let (token, timeout) = (self.term.token(), inner.config.call_timeout);
        let released = inner.leases.release(inner.name.as_str(), &inner.holder, token);
        let released = match race(released, inner.clock.sleep(timeout)).await {
            First::One(released) => released,
            First::Other(()) => {
                let error = PortError::new(PortErrorKind::TimedOut, "the lease was not given up in time");
                Err(error.outcome_unknown().into())
            }
        };
        if let Err(error) = &released
            && !error.is_not_held()
        {
            inner.failed(Call::Release, error, None);
        }
        inner.leave(token);
        // Not before: dropped while it gives up, it says so when it is dropped.
        self.ended = true;
        inner.event(|| Event::Ended { token, why, released: released.is_ok() });
        if released.is_ok() {
            inner.publish(FREE).await;
        }
        released
    }

    /// Tells the work to end.
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
        // Nobody renews it any more.
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
