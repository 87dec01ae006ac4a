//! The commands of one aggregate in one process: decided one after the other on one state, and
//! committed together.
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use futures_util::future::join_all;

use super::{
    aggregate::{Aggregate, ExecuteError, Executed},
    aggregates::{AggregateInner, panicked},
    commit::{Commit, Committed, Job},
    error::CommitError,
    event::AggregateEvent,
    send::Done,
};
use crate::{
    backoff::Backoff,
    gather::SendBatch,
    port::{BoxFuture, ErrorClass, Failure, PortError},
    sync::Mutex,
};

/// A command that waits for its turn.
pub(super) struct Order<A: Aggregate> {
    pub(super) id: String,
    pub(super) command: A::Command,
}

/// The answer to a command.
pub(super) type Reply<A> = Result<Executed, ExecuteError<<A as Aggregate>::Error>>;

/// A state and its version. It may be old, and is never wrong.
#[derive(Clone, Default)]
pub(super) struct Known<A> {
    pub(super) state: A,
    pub(super) version: u64,
}

/// Decides the commands of one aggregate.
pub(super) struct Decider<A: Aggregate> {
    inner: Arc<AggregateInner<A>>,
    stream: String,
    known: Mutex<Option<Known<A>>>,
}

/// The decision about a command, on the state behind the commands before it.
enum Decision<A: Aggregate> {
    /// Its commit is in the job.
    Accepted(Vec<A::Event>),
    /// It has no events.
    Nothing,
    Rejected(A::Error),
}

/// A decision with what follows from it.
enum Step<A: Aggregate> {
    /// Its events, the commit, and the state behind them.
    Accepted(Vec<A::Event>, Box<Job>, Known<A>),
    Other(Decision<A>),
}

/// Returns `true` if nothing was written, and another attempt would not change that.
fn is_refusal(error: &CommitError) -> bool {
    !error.may_have_been_applied() && error.class() == ErrorClass::Permanent
}

/// Commands that were decided one after the other.
struct Decided<A: Aggregate> {
    /// By the index of the command.
    decisions: Vec<(usize, Decision<A>)>,
    /// The commits of the accepted ones.
    job: Option<Job>,
}

/// The course of the commands that came together.
struct Course<A: Aggregate> {
    orders: Vec<Order<A>>,
    replies: Vec<Option<Reply<A>>>,
    conflicts: u32,
}

impl<A: Aggregate> Course<A> {
    fn open(&self) -> Vec<usize> {
        (0..self.orders.len()).filter(|i| self.replies[*i].is_none()).collect()
    }

    fn reply(&mut self, i: usize, reply: Reply<A>) {
        self.replies[i] = Some(reply);
    }

    fn fail(&mut self, error: &PortError) {
        for i in self.open() {
            self.reply(i, Err(ExecuteError::Store(error.clone())));
        }
    }

    fn repeated(&self, token: Option<super::Token>) -> Reply<A> {
        Ok(Executed { token, version: None, is_repeated: true, conflicts: self.conflicts })
    }
}

impl<A: Aggregate> Decider<A> {
    pub(super) fn new(inner: Arc<AggregateInner<A>>, stream: String) -> Self {
        Self { inner, stream, known: Mutex::default() }
    }

    async fn run(&self, course: &mut Course<A>) {
        let mut known = self.known.lock().take();
        // A state that was true at a moment since the commands came: a rejection needs one.
        let mut is_fresh = false;
        let mut delays = self.delays();
        let (mut must_read, mut attempts, mut most) = (false, 0, usize::MAX);
        loop {
            let open = course.open();
            if open.is_empty() {
                break;
            }
            let mut state = match known.take() {
                Some(state) if !must_read => state,
                before => match self.inner.read(&self.stream, before).await {
                    Ok(read) => {
                        (is_fresh, must_read) = (true, false);
                        read
                    }
                    Err(error) => return course.fail(&error),
                },
            };
            let decided = self.decide(&state, (&open, most), course);
            let Some(job) = decided.job else {
                if is_fresh {
                    self.settle(decided.decisions, course).await;
                } else {
                    must_read = true;
                }
                known = Some(state);
                continue;
            };
            let of_job = decided.decisions.iter().filter(|(_, made)| matches!(made, Decision::Accepted(_)));
            let of_job: Vec<usize> = of_job.map(|(i, _)| *i).collect();
            let expected = state.version;
            match self.inner.log.send(job).await {
                Ok(Done::Committed(done)) => {
                    (is_fresh, attempts, delays) = (true, 0, self.delays());
                    let rest = self.apply(decided.decisions, done, &mut state, course);
                    self.settle(rest, course).await;
                }
                Ok(Done::Repeated { command, token }) => {
                    let reply = course.repeated(Some(token));
                    if let Some(i) = of_job.get(command) {
                        course.reply(*i, reply);
                    }
                }
                Err(CommitError::Conflict { stream, actual, .. }) => {
                    (course.conflicts, attempts, must_read) = (course.conflicts + 1, attempts + 1, true);
                    self.inner.send(AggregateEvent::Conflicted { stream: stream.clone(), attempts });
                    if attempts >= self.inner.config.max_attempts {
                        let conflict = || ExecuteError::Conflict { stream: stream.clone(), expected, actual, attempts };
                        self.give_up(of_job, conflict, course).await;
                        attempts = 0;
                    } else {
                        self.inner.clock.sleep(delays.next().unwrap_or_default()).await;
                    }
                    if actual < expected {
                        // The store has lost events: the state is of none that exists.
                        continue;
                    }
                }
                Err(CommitError::CommandReused { command, by }) => {
                    let Some(i) = of_job.into_iter().find(|i| course.orders[*i].id == command) else { continue };
                    course.reply(i, Err(ExecuteError::Refused(CommitError::CommandReused { command, by })));
                }
                // One of several may be the cause.
                Err(error) if of_job.len() > 1 && is_refusal(&error) => most = 1,
                Err(error) => of_job.into_iter().for_each(|i| course.reply(i, Err(error.clone().into()))),
            }
            known = Some(state);
        }
        *self.known.lock() = known;
    }

    /// Answers commands that met conflicts in each attempt. One that was accepted before is
    /// repeated.
    async fn give_up(
        &self,
        commands: Vec<usize>,
        conflict: impl Fn() -> ExecuteError<A::Error>,
        course: &mut Course<A>,
    ) {
        let log = &self.inner.log.inner;
        for i in commands {
            let reply = match log.has_accepted(&course.orders[i].id, &self.stream).await {
                Ok(true) => {
                    log.token().await.map_err(ExecuteError::Store).and_then(|token| course.repeated(Some(token)))
                }
                // Nothing was written, also if that cannot be read.
                _ => Err(conflict()),
            };
            course.reply(i, reply);
        }
    }

    fn delays(&self) -> Backoff {
        Backoff::checked(self.inner.config.retry, &self.inner.entropy)
    }

    /// Decides commands one after the other, as many as a request has room for, at most so many
    /// with events. One that cannot be committed is answered at once.
    fn decide(&self, state: &Known<A>, (open, most): (&[usize], usize), course: &mut Course<A>) -> Decided<A> {
        let writes = self.inner.log.inner.limits.writes;
        let mut behind = state.clone();
        let mut decided = Decided { decisions: Vec::new(), job: None::<Job> };
        for &i in open {
            if decided.job.as_ref().is_some_and(|job| job.commands.len() >= most) {
                break;
            }
            let order = &course.orders[i];
            let step = catch_unwind(AssertUnwindSafe(|| self.step(&behind, order)));
            let step = step.unwrap_or_else(|panic| {
                let at = format!("the command {:?} of {:?}", order.id, self.stream);
                Err(ExecuteError::Store(panicked(&*panic, &at)))
            });
            let (decision, job, next) = match step {
                Ok(Step::Accepted(events, job, next)) => (Decision::Accepted(events), job, next),
                Ok(Step::Other(decision)) => {
                    decided.decisions.push((i, decision));
                    continue;
                }
                Err(error) => {
                    course.reply(i, Err(error));
                    continue;
                }
            };
            match &mut decided.job {
                Some(whole) if !whole.takes(&job, writes) => break,
                Some(whole) => whole.push(*job),
                None => decided.job = Some(*job),
            }
            decided.decisions.push((i, decision));
            behind = next;
        }
        decided
    }

    /// Decides one command.
    fn step(&self, behind: &Known<A>, order: &Order<A>) -> Result<Step<A>, ExecuteError<A::Error>> {
        let inner = &self.inner;
        let events = match behind.state.decide(&order.command) {
            Ok(events) if events.is_empty() => return Ok(Step::Other(Decision::Nothing)),
            Ok(events) => events,
            Err(reason) => return Ok(Step::Other(Decision::Rejected(reason))),
        };
        let mut next = behind.clone();
        events.iter().for_each(|event| next.state.evolve(event));
        next.version += events.len() as u64;
        let commit = inner.add_events(Commit::new(&order.id), &self.stream, behind.version, &events)?;
        // A snapshot for which the request has no room is left out.
        let with_snapshot = inner.snapshot(behind.version, &next).map(|snapshot| commit.clone().snapshot(snapshot));
        let job = match with_snapshot.map(|commit| inner.log.inner.prepare(commit)) {
            Some(Ok(job)) => Ok(job),
            _ => inner.log.inner.prepare(commit),
        };
        Ok(Step::Accepted(events, Box::new(job?), next))
    }

    /// Answers the accepted commands, and returns the others.
    fn apply(
        &self,
        decisions: Vec<(usize, Decision<A>)>,
        done: Vec<Committed>,
        state: &mut Known<A>,
        course: &mut Course<A>,
    ) -> Vec<(usize, Decision<A>)> {
        let (mut done, mut rest) = (done.into_iter(), Vec::new());
        for (i, decision) in decisions {
            let Decision::Accepted(events) = decision else {
                rest.push((i, decision));
                continue;
            };
            events.iter().for_each(|event| state.state.evolve(event));
            state.version += events.len() as u64;
            let token = done.next().map(|committed| committed.token);
            let (version, conflicts) = (Some(state.version), course.conflicts);
            course.reply(i, Ok(Executed { token, version, is_repeated: false, conflicts }));
        }
        rest
    }

    /// Answers commands without a commit. One that was accepted before is no rejection.
    async fn settle(&self, decisions: Vec<(usize, Decision<A>)>, course: &mut Course<A>) {
        let asked = decisions.iter().map(|(i, _)| {
            let id = &course.orders[*i].id;
            self.inner.log.inner.has_accepted(id, &self.stream)
        });
        let accepted = join_all(asked).await;
        for ((i, decision), accepted) in decisions.into_iter().zip(accepted) {
            let reply = match (accepted, decision) {
                (Err(error), _) => Err(ExecuteError::Store(error)),
                (Ok(true), _) => match self.inner.log.token().await {
                    Ok(token) => course.repeated(Some(token)),
                    Err(error) => Err(ExecuteError::Store(error)),
                },
                (Ok(false), Decision::Rejected(reason)) => Err(ExecuteError::Rejected(reason)),
                (Ok(false), _) => {
                    Ok(Executed { token: None, version: None, is_repeated: false, conflicts: course.conflicts })
                }
            };
            course.reply(i, reply);
        }
    }
}

impl<A: Aggregate> SendBatch<Order<A>, Reply<A>> for Decider<A> {
    fn send(&self, orders: Vec<Order<A>>) -> BoxFuture<'_, Vec<Reply<A>>> {
        Box::pin(async move {
            let replies = orders.iter().map(|_| None).collect();
            let mut course = Course { orders, replies, conflicts: 0 };
            self.run(&mut course).await;
            let lost = || {
                let error = PortError::new(crate::port::PortErrorKind::Other, "events: no answer");
                Err(ExecuteError::Store(error.outcome_unknown()))
            };
            course.replies.into_iter().map(|reply| reply.unwrap_or_else(lost)).collect()
        })
    }

    fn weight(&self, _: &Order<A>) -> usize {
        1
    }
}
