//! A term of office, as the leader's work sees it.
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::sync::watch;

use super::{LeaderElectionConfig, state::Count};
use crate::{
    config::Name,
    port::FencingToken,
    race::{First, race},
    time::{Clock, Instant},
};

/// A term of office: whether it lasts, and the token that goes with its writes. A clone is the same term.
#[derive(Clone)]
pub struct Term {
    shared: Arc<Shared>,
    clock: Clock,
}

struct Shared {
    name: Name,
    token: FencingToken,
    /// From when on nothing may be done; pushed out by renewals.
    deadline: AtomicU64,
    /// Ended, whatever the deadline says: for good, so that a renewal that is counted late revives nothing.
    ended: AtomicBool,
    /// When work is told to end.
    warning: AtomicU64,
    /// The start of the last call that was granted or renewed.
    since: AtomicU64,
    told: watch::Sender<bool>,
}

impl Term {
    pub(super) fn new(
        name: &Name,
        token: FencingToken,
        clock: &Clock,
        config: &LeaderElectionConfig,
        count: Count,
    ) -> Self {
        let shared = Shared {
            name: name.clone(),
            token,
            deadline: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            warning: AtomicU64::new(0),
            since: AtomicU64::new(0),
            told: watch::Sender::new(false),
        };
        let term = Self { shared: Arc::new(shared), clock: clock.clone() };
        term.counted(config, count);
        term
    }

    /// What is led.
    pub fn name(&self) -> &Name {
        &self.shared.name
    }

    /// The token to write under: above that of every term before, and below that of every one after.
    pub fn token(&self) -> FencingToken {
        self.shared.token
    }

    /// Whether it lasts, by the clock at this moment. True is good for actions that complete at once; what takes longer needs a
    /// [fenced](super::Fenced) resource.
    pub fn is_leader(&self) -> bool {
        self.clock.now() < self.deadline()
    }

    /// From when on nothing may be done under it, if it is not renewed before; the clock's origin once it has ended.
    pub fn deadline(&self) -> Instant {
        if self.shared.ended.load(Ordering::Acquire) {
            return Instant::default();
        }
        Instant::from_nanos(self.shared.deadline.load(Ordering::Acquire))
    }

    /// The work is to end: the term is about to run out, or is to be given up. What has not ended by the
    /// [deadline](Self::deadline) of a term that ran out is dropped.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn lost(&self) {
        let mut told = self.shared.told.subscribe();
        while !*told.borrow_and_update() {
            let warning = Instant::from_nanos(self.shared.warning.load(Ordering::Acquire));
            if self.clock.now() >= warning {
                return;
            }
            // Ready when told, and when it is time; the time may have been pushed out meanwhile.
            match race(told.changed(), self.clock.sleep_until(warning)).await {
                First::One(_) | First::Other(()) => {}
            }
        }
    }

    /// Whether the work was told to end.
    pub fn is_ending(&self) -> bool {
        let warning = Instant::from_nanos(self.shared.warning.load(Ordering::Acquire));
        *self.shared.told.borrow() || self.clock.now() >= warning
    }

    pub(super) fn counted(&self, config: &LeaderElectionConfig, count: Count) {
        self.shared.since.store(count.since().as_nanos(), Ordering::Release);
        self.shared.warning.store(count.warning(config).as_nanos(), Ordering::Release);
        self.shared.deadline.store(count.deadline(config).as_nanos(), Ordering::Release);
    }

    /// Tells the work to end.
    pub(super) fn tell(&self) {
        self.shared.told.send_replace(true);
    }

    /// Ends it now, whatever the clock says.
    pub(super) fn end(&self) {
        self.shared.ended.store(true, Ordering::Release);
        self.tell();
    }

    pub(super) fn since(&self) -> Instant {
        Instant::from_nanos(self.shared.since.load(Ordering::Acquire))
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term")
            .field("name", self.name())
            .field("token", &self.token())
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}
