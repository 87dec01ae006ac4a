//! Being the leader: the value that an elected node holds, and giving it up. Its renewal is in
//! `renewal.rs`.

use super::{Call, LeaderElection, LeaderElectionEvent as Event, Term, TermEnd, hints::FREE, term_times::TermTimes};
use crate::{
    lease::LeaseError,
    notify::Hints,
    port::{FencingToken, ask},
    time::Instant,
};

/// A term for which this node was elected.
///
/// The term is renewed while [`lost`](Self::lost) is polled. Dropping this value ends the term on
/// this node at once, but does not release the lease: other candidates wait until the term has
/// passed. [`resign`](Self::resign) releases it.
#[must_use = "dropped, it ends"]
pub struct Leadership {
    pub(super) election: LeaderElection,
    pub(super) term: Term,
    pub(super) count: TermTimes,
    pub(super) hints: Hints,
    /// Set once the work was told of a request to end the term. It is told once; `lost` may then be
    /// called again to keep the term while the work ends.
    pub(super) told: bool,
    pub(super) over: Option<TermEnd>,
    /// `true` once the `Ended` event was sent.
    ended: bool,
}

impl Leadership {
    pub(super) fn new(election: LeaderElection, term: Term, count: TermTimes, hints: Hints) -> Self {
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

crate::build::debug_fields!(Leadership, |this| term: this.term, over: this.over);
