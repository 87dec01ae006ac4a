//! Campaigning, and a node's view of the leader.
use std::{sync::Arc, time::Duration};

use super::{
    Call, Leader, LeaderElectionConfig, LeaderElectionEvent as Event, Leadership, Observer, Term,
    builder::Health,
    hints::{FREE, RESIGN},
    observers::Transitions,
    term_times::TermTimes,
};
use crate::{
    config::Name,
    entropy::Entropy,
    lease::{Acquired, Held, Lease, LeaseError},
    notify::Notifier,
    observe::{Events, Subscription},
    port::{AskError, Capability, ErrorClass, Failure, FencingToken, PortError, PortErrorKind, ask},
    race::race,
    sync::Mutex,
    time::{Clock, scaled},
};

/// One candidate for the leadership of a name. The [module's page](super) states the guarantees.
///
/// A clone is the same candidate and shares its state; only one clone may campaign at a time. When
/// one is elected, a term that another clone was in ends.
#[derive(Clone)]
pub struct LeaderElection(pub(super) Arc<ElectionInner>);

pub(super) struct ElectionInner {
    pub(super) leases: Arc<dyn Lease>,
    pub(super) name: Name,
    /// The candidate's id with a random number, so that no other holder has the same.
    pub(super) holder: String,
    pub(super) topic: String,
    pub(super) config: LeaderElectionConfig,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    pub(super) notifier: Option<Arc<dyn Notifier>>,
    pub(super) health: Option<Health>,
    pub(super) events: Events<Event>,
    pub(super) transitions: Transitions,
    /// The term that this node is in, until it has been given up or dropped.
    pub(super) standing: Mutex<Option<Term>>,
}

/// The health of one node of an election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ElectionHealth {
    /// `true` while this node is in a term that has not been given up or dropped.
    pub leading: bool,
    /// Time since the term was granted or last renewed.
    pub since_renewal: Option<Duration>,
    /// `false` if this node leads and its last renewal is older than the term and the tolerance.
    /// Such a node hangs and should be restarted.
    pub healthy: bool,
}

impl LeaderElection {
    /// Returns the candidate's id with its random number.
    pub fn holder(&self) -> &str {
        &self.0.holder
    }

    /// Returns `true` if this node leads now.
    pub fn is_leader(&self) -> bool {
        self.term().is_some_and(|term| term.is_leader())
    }

    /// Returns the term that this node is in.
    pub fn term(&self) -> Option<Term> {
        self.0.standing.lock().clone()
    }

    /// Returns the leader as this node last saw it. The view is updated while this node campaigns
    /// or leads.
    pub fn leader(&self) -> Leader {
        self.0.transitions.leader()
    }

    /// Subscribes to every change of leader that this node sees from now on, in order. The first
    /// item is the current state.
    pub fn observe(&self) -> Observer {
        self.0.transitions.observe()
    }

    /// Subscribes to this node's events from now on. Unlike [`observe`](Self::observe), a slow
    /// reader may miss events, and is told so.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    /// Returns this node's health, for a service's health endpoint.
    pub fn health(&self) -> ElectionHealth {
        let since = self.term().map(|term| self.0.clock.now() - term.since());
        let config = &self.0.config;
        let healthy = since.is_none_or(|since| since <= config.term.saturating_add(config.health_tolerance));
        ElectionHealth { leading: since.is_some(), since_renewal: since, healthy }
    }

    /// Asks the current leader to resign. Any node may call this.
    ///
    /// With a notifier the leader is told by a notice, and in any case at its next renewal. Returns
    /// `false` if no node leads, as far as the lease can tell; a leader that has died may still
    /// show.
    ///
    /// # Errors
    /// Those of the lease.
    ///
    /// # Cancel safety
    /// If the future is dropped, the request was either made or not.
    pub async fn request_resign(&self) -> Result<bool, LeaseError> {
        self.request_resign_if(|_| true).await
    }

    /// Asks the current leader to resign if the condition holds for its id.
    pub(crate) async fn request_resign_if(&self, is_meant: impl Fn(&str) -> bool) -> Result<bool, LeaseError> {
        let name = self.0.name.as_str();
        let Some(held) = self.0.leases.read(name).await?.filter(|held| is_meant(&held.holder)) else {
            return Ok(false);
        };
        self.0.leases.request_release(name, held.token).await?;
        self.0.publish(RESIGN).await;
        Ok(true)
    }

    /// Campaigns until this node is elected.
    ///
    /// No task renews the term in the background: poll [`Leadership::lost`] beside your work.
    /// [`run`](Self::run) does all of that.
    ///
    /// # Errors
    /// Only permanent failures, such as a missing permission or a record that is not a lease. A
    /// store that cannot be reached is asked again.
    ///
    /// # Cancel safety
    /// If the future is dropped while a call is in flight, this node may have been elected without
    /// knowing it. Then no node leads until the term has passed or this candidate campaigns again.
    pub async fn campaign(&self) -> Result<Leadership, PortError> {
        let inner = &self.0;
        let can = inner.leases.capabilities();
        let is_forgetful = can.has(Capability::Shared) && !can.has(Capability::Durable);
        if is_forgetful || !can.has(Capability::Linearizable) {
            inner.event(|| Event::GrantsMayBeForgotten { backend: can.backend() });
        }
        let mut hints = inner.subscribe().await;
        let mut before = None;
        loop {
            let wait = if inner.is_fit() {
                match inner.ask(&mut before).await? {
                    Asked::Elected(term, count) => {
                        inner.enter(&term, before);
                        return Ok(Leadership::new(self.clone(), term, count, hints));
                    }
                    Asked::Again(wait) => wait,
                }
            } else {
                inner.some_of_a_poll()
            };
            // A notice is a hint that the name may be free, so the candidate asks before its poll is due.
            race(inner.heard(&mut hints, FREE), inner.clock.sleep(wait)).await;
        }
    }
}

/// Result of one attempt to acquire the lease.
enum Asked {
    Elected(Term, TermTimes),
    /// Not elected; the time to wait before the next attempt.
    Again(Duration),
}

impl ElectionInner {
    async fn ask(&self, before: &mut Option<String>) -> Result<Asked, PortError> {
        let (config, began) = (&self.config, self.clock.now());
        let asked = self.leases.acquire(self.name.as_str(), &self.holder, config.term);
        match ask(&self.clock, config.call_timeout, asked).await {
            Ok(Acquired::Granted(token)) => {
                let now = self.clock.now();
                let Some(count) = TermTimes::granted(config, began, now) else {
                    self.event(|| Event::GrantedTooLate { token, took: now - began });
                    return Ok(Asked::Again(self.some_of_a_poll()));
                };
                Ok(Asked::Elected(Term::new(&self.name, token, &self.clock, config, count), count))
            }
            Ok(Acquired::Held(held)) => {
                let wait = self.until_free(&held);
                *before = Some(held.holder.clone());
                self.follow(held);
                Ok(Asked::Again(wait))
            }
            Err(AskError::Failed(error)) => {
                self.failed(Call::Acquire, &error, None);
                match error {
                    LeaseError::Failed(error) if error.class() == ErrorClass::Permanent => Err(error),
                    error => Ok(Asked::Again(self.after_failure(&error))),
                }
            }
            Err(AskError::TimedOut) => {
                self.event(|| Event::CallFailed { call: Call::Acquire, kind: None, left: None });
                Ok(Asked::Again(self.some_of_a_poll()))
            }
        }
    }

    /// Records that this node leads. The new grant invalidates an earlier term of this node, which
    /// is ended first.
    fn enter(&self, term: &Term, after: Option<String>) {
        let mut standing = self.standing.lock();
        if let Some(before) = standing.replace(term.clone()) {
            before.end();
        }
        drop(standing);
        self.transitions.tell(Leader::Own(term.token()));
        self.event(|| Event::Elected { token: term.token(), after });
    }

    /// Records that this node no longer leads. Its work as leader must have ended.
    pub(super) fn leave(&self, token: FencingToken) {
        let mut standing = self.standing.lock();
        if standing.as_ref().is_some_and(|term| term.token() == token) {
            *standing = None;
        }
        drop(standing);
        if self.transitions.leader() == Leader::Own(token) {
            self.transitions.tell(Leader::Unknown);
        }
    }

    fn follow(&self, Held { holder, token, .. }: Held) {
        if self.transitions.tell(Leader::Other { holder: holder.clone(), token }) {
            self.event(|| Event::Following { holder, token });
        }
    }

    pub(super) fn is_fit(&self) -> bool {
        self.health.as_ref().is_none_or(|is_fit| is_fit())
    }

    pub(super) fn event(&self, event: impl FnOnce() -> Event) {
        self.events.send(Some(&self.name), self.clock.now(), event);
    }

    pub(super) fn failed(&self, call: Call, error: &LeaseError, left: Option<Duration>) {
        let kind = error.backend().map_or(PortErrorKind::Other, PortError::kind);
        self.event(|| Event::CallFailed { call, kind: Some(kind), left });
    }

    /// Returns between 70 and 90 % of the poll interval at random, so that candidates that began
    /// together spread out.
    pub(super) fn some_of_a_poll(&self) -> Duration {
        scaled(self.config.poll, 0.7 + 0.2 * self.entropy.unit())
    }

    /// Returns the wait until the name may be free, with a small random part, so that not all
    /// candidates write at once; at most one poll.
    fn until_free(&self, held: &Held) -> Duration {
        let poll = self.some_of_a_poll();
        if held.free_in.is_zero() || held.free_in >= poll {
            return poll;
        }
        held.free_in.saturating_add(scaled(self.config.poll, 0.1 * self.entropy.unit()))
    }

    /// Returns the delay that the backend asked for, but at least 70 to 90 % of the poll interval.
    pub(super) fn after_failure(&self, error: &LeaseError) -> Duration {
        let asked = error.backend().and_then(PortError::retry_after).unwrap_or_default();
        asked.max(self.some_of_a_poll())
    }
}

crate::build::debug_fields!(LeaderElection, |this| name: this.0.name, holder: this.0.holder, leader: this.leader());
