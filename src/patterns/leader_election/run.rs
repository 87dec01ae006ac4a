//! Running a task for each term of this node, and ending it before the term ends.
use std::{future::Future, pin::pin};

use super::{LeaderElection, LeaderElectionEvent as Event, Leadership, Term, TermEnd};
use crate::{
    port::PortError,
    race::{First, race},
};

impl LeaderElection {
    /// Runs `task` whenever this node is elected, until `shutdown` is ready.
    ///
    /// [`Term::lost`] tells the task to end, and the task is **waited for** before the lease is
    /// released. There are three cases:
    ///
    /// - The term runs out: the task is dropped at the term's deadline, so it never acts beyond it.
    /// - The term is to be given up (shutdown, a request, bad health): the lease is renewed until
    ///   the task has ended, however long that takes. An event reports a task that stalls.
    /// - The task ends by itself: the lease is released, and this candidate pauses for more than a
    ///   poll, so that others can be elected first.
    ///
    /// # Errors
    /// Those of [`campaign`](Self::campaign).
    ///
    /// # Cancel safety
    /// If the future is dropped, its task is dropped with it, and other candidates wait until the
    /// term has passed. Prefer `shutdown`.
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
            // A lease that could not be released is free when its term has passed.
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
    /// Runs the task to its end or to the end of the term, and returns why it ended.
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
            // One future for the whole wait, so that a report does not interrupt a renewal in flight.
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
        // The term is not renewed any more: its deadline stands.
        if let First::Other(()) = race(task, clock.sleep_until(self.deadline())).await {
            inner.event(|| Event::TaskDropped { token });
        }
        why
    }
}
