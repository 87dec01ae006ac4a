//! Leading for as long as elected: a task with each term, ended before the term is.
use std::{future::Future, pin::pin};

use super::{LeaderElection, LeaderElectionEvent as Event, Leadership, Term, TermEnd};
use crate::{
    port::PortError,
    race::{First, race},
};

impl LeaderElection {
    /// Campaigns, runs the task whenever it is elected, and campaigns again, until `shutdown` is ready.
    ///
    /// The task is told to end by [`Term::lost`], and is **waited for** before the lease is given up. Where the term runs out it is
    /// dropped at its deadline, so that it never acts beyond; where the term is only to be given up (shutdown, a request, health) the
    /// lease is renewed until it has ended, however long that takes, and an event tells of a task that stalls.
    /// A task that ends by itself gives the lease up, and this candidate lets others ask first.
    ///
    /// # Errors
    /// As [`campaign`](Self::campaign).
    ///
    /// # Cancel safety
    /// Dropped, it drops the task with it; for others the name is free when the term has passed. Prefer `shutdown`.
    pub async fn run<F: Future<Output = ()>>(
        &self,
        shutdown: impl Future<Output = ()>,
        mut task: impl FnMut(Term) -> F,
    ) -> Result<(), PortError> {
        let mut shutdown = pin!(shutdown);
        loop {
            let mut leadership = match race(shutdown.as_mut(), self.campaign()).await {
                First::One(()) => return Ok(()),
                First::Other(elected) => elected?,
            };
            let why = leadership.serve(&mut task, shutdown.as_mut()).await;
            // A lease that could not be given up is free when its term has passed.
            let _ = leadership.give_up(why).await;
            drop(leadership);
            if why == TermEnd::Shutdown {
                return Ok(());
            }
            let pause = self.0.config.poll.saturating_add(self.0.some_of_a_poll());
            if let First::One(()) = race(shutdown.as_mut(), self.0.clock.sleep(pause)).await {
                return Ok(());
            }
        }
    }
}

impl Leadership {
    /// Runs the task to its end, or to the end of the term.
    async fn serve<F: Future<Output = ()>>(
        &mut self,
        task: &mut impl FnMut(Term) -> F,
        shutdown: impl Future<Output = ()>,
    ) -> TermEnd {
        let mut task = pin!(task(self.term()));
        let why = match race(task.as_mut(), race(self.lost(), shutdown)).await {
            First::One(()) => return TermEnd::Finished,
            First::Other(First::One(why)) => why,
            First::Other(First::Other(())) => {
                self.ending(TermEnd::Shutdown);
                TermEnd::Shutdown
            }
        };
        let inner = self.election().0.clone();
        let (clock, config) = (&inner.clock, &inner.config);
        let token = self.token();
        if !matches!(why, TermEnd::NotRenewed | TermEnd::Superseded) {
            let told = clock.now();
            let mut report = told + config.grace;
            // One future for all of the wait: a report cuts no renewal short that is under way.
            let mut kept = pin!(self.kept());
            loop {
                match race(task.as_mut(), race(kept.as_mut(), clock.sleep_until(report))).await {
                    First::One(()) => return why,
                    First::Other(First::One(())) => break,
                    First::Other(First::Other(())) => {
                        let now = clock.now();
                        report = now + config.grace.max(config.poll);
                        inner.event(|| Event::TaskStalled { token, since: now - told });
                    }
                }
            }
        }
        // Nothing renews it any more.
        if let First::Other(()) = race(task, clock.sleep_until(self.deadline())).await {
            inner.event(|| Event::TaskDropped { token });
        }
        why
    }

    /// Renews until the term is over.
    async fn kept(&mut self) {
        while !matches!(self.lost().await, TermEnd::NotRenewed | TermEnd::Superseded) {}
    }
}
