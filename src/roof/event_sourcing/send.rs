//! The sending of commits: requests, and what follows a refusal or a lost reply.
use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;

use super::{
    commit::{Command, Committed, Job, Part},
    error::{Cause, CommitError},
    state::{self, Guards, Limits},
    store::EventStoreInner,
    stored::{self, IdRow, RequestId},
    token::Token,
};
use crate::{
    gather::SendBatch,
    port::{AskError, BoxFuture, ErrorClass, PortError, PortErrorKind, ask},
    store::{Key, Precondition, PutOptions, StoreError, Version},
    time::Instant,
};

/// Time limit of one request to the store.
pub(super) const ATTEMPT: Duration = Duration::from_secs(5);
/// Time behind the first lost reply for which commits that came together are sent again, and the
/// outcome of a request is asked for.
const PATIENCE: Duration = Duration::from_secs(15);
/// First and longest delay between two questions.
const DELAYS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Maximum number of attempts of a commit whose id row or claim changes all the time.
const ROUNDS: u32 = 16;

/// The answer to a job.
pub(super) type Answer = Result<Done, CommitError>;

/// The success of a job.
#[derive(Debug)]
pub(super) enum Done {
    /// It took effect: an answer for each command.
    Committed(Vec<Committed>),
    /// Nothing was written, because this command was accepted before.
    Repeated { command: usize, token: Token },
}

/// Sends the commits of a process, one request at a time.
pub(super) struct Requests(pub(super) Arc<EventStoreInner>);

impl SendBatch<Job, Answer> for Requests {
    fn send(&self, jobs: Vec<Job>) -> BoxFuture<'_, Vec<Answer>> {
        Box::pin(async move {
            let mut answers: Vec<Option<Answer>> = jobs.iter().map(|_| None).collect();
            let mut waiting: Vec<usize> = (0..jobs.len()).collect();
            // The commits behind these wait for all of them.
            let mut until = None;
            while !waiting.is_empty() {
                let (request, others) = state::share(&jobs, &waiting, self.0.limits);
                for (i, answer) in self.0.send(&jobs, &request, &mut until).await {
                    self.0.counts.answer(&answer, jobs[i].commands.len());
                    answers[i] = Some(answer);
                }
                waiting = others;
            }
            let lost = || Err(CommitError::Store(PortError::new(PortErrorKind::Other, "events: no answer")));
            answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect()
        })
    }

    /// Returns the number of writes, or more if so many commits would exceed their limit.
    fn weight(&self, job: &Job) -> usize {
        let Limits { writes, commits } = self.0.limits;
        job.writes.len().max(writes.div_ceil(commits.max(1))).min(writes)
    }
}

/// The outcome of a request.
enum Sent {
    Applied(Vec<Option<Version>>),
    /// It was applied, and the reply was lost.
    AppliedBefore,
    /// A write was refused. Nothing was applied.
    Refused {
        write: usize,
        current: Option<Version>,
    },
    Failed(PortError),
}

/// The fate of a request whose reply was lost.
enum Fate {
    Applied,
    /// It is not applied, and never will be. The mark that keeps it from that has this version.
    Void(Version),
    /// It is not applied, because the id was used before.
    Used,
    Unknown(PortError),
}

impl EventStoreInner {
    /// Sends commits that share a request. `until` is the end of the attempts, once a reply was
    /// lost.
    async fn send(
        self: &Arc<Self>,
        jobs: &[Job],
        request: &[usize],
        until: &mut Option<Instant>,
    ) -> Vec<(usize, Answer)> {
        if let [only] = request {
            return vec![(*only, self.send_alone(&jobs[*only], until).await)];
        }
        match self.attempt(jobs, request, (Guards::new(), &mut *until)).await {
            Sent::Applied(numbers) => {
                let mut from = 0;
                let mut answers = Vec::new();
                for &i in request {
                    let to = from + jobs[i].writes.len();
                    let done = jobs[i].done(&self.name, numbers.get(from..to).unwrap_or_default());
                    answers.push((i, Ok(Done::Committed(done))));
                    from = to;
                }
                self.announce();
                answers
            }
            Sent::AppliedBefore => {
                self.announce();
                let read = join_all(request.iter().map(|i| async { (*i, self.read_own(&jobs[*i]).await) }));
                read.await
            }
            // An argument of one of them may be the cause.
            Sent::Failed(error) if error.class() == ErrorClass::Permanent && !error.may_have_been_applied() => {
                self.send_apart(jobs, request, until).await
            }
            Sent::Failed(error) => request.iter().map(|i| (*i, Err(CommitError::Store(error.clone())))).collect(),
            Sent::Refused { .. } => self.send_apart(jobs, request, until).await,
        }
    }

    /// Sends commits of a refused request one by one, so that none fails for another's cause.
    async fn send_apart(
        self: &Arc<Self>,
        jobs: &[Job],
        request: &[usize],
        until: &mut Option<Instant>,
    ) -> Vec<(usize, Answer)> {
        let (chains, begun) = (state::chains(jobs, request), *until);
        let sent = chains.iter().map(|chain| async move {
            let (mut answers, mut until) = (Vec::new(), begun);
            for &i in chain {
                answers.push((i, self.send_alone(&jobs[i], &mut until).await));
            }
            (answers, until)
        });
        let mut answers = Vec::new();
        for (of_chain, ends) in join_all(sent).await {
            answers.extend(of_chain);
            *until = until.iter().copied().chain(ends).min();
        }
        answers
    }

    async fn send_alone(self: &Arc<Self>, job: &Job, until: &mut Option<Instant>) -> Answer {
        let mut guards = Guards::new();
        for _ in 0..ROUNDS {
            let (write, current) =
                match self.attempt(std::slice::from_ref(job), &[0], (guards.clone(), &mut *until)).await {
                    Sent::Applied(numbers) => {
                        self.announce();
                        return Ok(Done::Committed(job.done(&self.name, &numbers)));
                    }
                    Sent::AppliedBefore => {
                        self.announce();
                        return self.read_own(job).await;
                    }
                    Sent::Failed(error) => return Err(CommitError::Store(error)),
                    Sent::Refused { write, current } => (write, current),
                };
            // Nothing was written, so an error of a read is no doubt about that.
            match job.parts.get(write) {
                Some(&Part::Id(command)) => {
                    let Command { id, request, first, .. } = &job.commands[command];
                    match self.read_id(id).await.map_err(CommitError::Store)? {
                        None => drop(guards.insert(write, Precondition::Absent)),
                        Some((IdRow::Void { .. }, version)) => {
                            guards.insert(write, Precondition::Version(version));
                        }
                        Some((IdRow::Used { request: used, .. }, _)) if used == *request => {
                            return self.read_own(job).await;
                        }
                        Some((IdRow::Used { stream, .. }, _)) if stream == *first => {
                            let token = self.token().await.map_err(CommitError::Store)?;
                            return Ok(Done::Repeated { command, token });
                        }
                        Some((IdRow::Used { stream, .. }, _)) => {
                            return Err(CommitError::CommandReused { command: id.clone(), by: stream });
                        }
                    }
                }
                Some(Part::Stream { stream, expected, is_append }) => {
                    let actual = match current {
                        _ if !is_append => self.version(stream).await.map_err(CommitError::Store)?,
                        current => current.map_or(0, Version::as_u64),
                    };
                    // A check was refused, and the stream has come to the version since: try again.
                    if actual != *expected || *is_append {
                        return Err(CommitError::Conflict { stream: stream.clone(), expected: *expected, actual });
                    }
                }
                Some(Part::Claim(claim)) => {
                    if let Some(by) = self.holder(claim).await.map_err(CommitError::Store)? {
                        return Err(CommitError::Taken { claim: claim.clone(), by });
                    }
                }
                Some(Part::Row(row)) => return Err(CommitError::RowConflict { row: row.clone() }),
                Some(Part::Log | Part::Snapshot) | None => {
                    return Err(CommitError::Store(stored::damaged(stored::LOG)));
                }
            }
        }
        let message = format!(
            "events: the rows of the command {:?} change all the time; nothing was written",
            job.commands[0].id
        );
        Err(CommitError::Store(PortError::new(PortErrorKind::Throttled, message)))
    }

    /// Sends one request until its outcome is known.
    async fn attempt(
        &self,
        jobs: &[Job],
        request: &[usize],
        (mut guards, limit): (Guards, &mut Option<Instant>),
    ) -> Sent {
        let first = request.first().and_then(|i| jobs[*i].commands.first());
        let Some(first) = first else { return Sent::Applied(Vec::new()) };
        let (mut pause, mut losses) = (DELAYS.0, 0);
        loop {
            let begun = self.clock.now();
            if limit.is_some_and(|until| begun >= until) {
                let message = "events: nothing was applied: replies to requests before it are lost";
                return Sent::Failed(PortError::new(PortErrorKind::TimedOut, message));
            }
            let writes = state::writes(jobs, request, &guards);
            self.counts.request();
            let error = match ask(&self.clock, ATTEMPT, self.store.batch(&self.partition, writes)).await {
                Ok(numbers) => return Sent::Applied(numbers),
                Err(AskError::Failed(StoreError::Conflict { write, current })) => {
                    return Sent::Refused { write, current };
                }
                Err(AskError::Failed(StoreError::Fenced { write, .. })) => {
                    return Sent::Refused { write, current: None };
                }
                Err(AskError::Failed(StoreError::Failed(error))) if !error.may_have_been_applied() => {
                    return Sent::Failed(error);
                }
                Err(error) => unanswered(error),
            };
            self.counts.lost_reply();
            let until = *limit.get_or_insert(begun + PATIENCE);
            let guard = guards.get(&0).copied().unwrap_or(Precondition::Absent);
            match self.fate(first, guard, (error.clone(), until)).await {
                Fate::Applied => return Sent::AppliedBefore,
                Fate::Used => return Sent::Refused { write: 0, current: None },
                Fate::Unknown(error) => return Sent::Failed(error.outcome_unknown()),
                Fate::Void(version) => drop(guards.insert(0, Precondition::Version(version))),
            }
            losses += 1;
            // A smaller request may pass where a large one does not.
            if request.len() > 1 && losses > 1 {
                return Sent::Refused { write: 0, current: None };
            }
            if self.clock.now() + pause >= until {
                let message = format!("events: given up, nothing was applied: each reply is lost: {error}");
                return Sent::Failed(PortError::new(error.kind(), message).with_source(Cause::GivenUp));
            }
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(DELAYS.1);
        }
    }

    /// Learns whether a request was applied. A mark on its first id row, whose state the request
    /// requires, keeps it from being applied later.
    async fn fate(&self, first: &Command, guard: Precondition, (mut error, until): (PortError, Instant)) -> Fate {
        let (row, mark) = (stored::id_row(&first.id), IdRow::Void { request: first.request }.encode());
        let (mut pause, mut guard) = (DELAYS.0, guard);
        loop {
            let left = until.saturating_since(self.clock.now()).max(DELAYS.1);
            let options = PutOptions::from(guard).ttl(self.config.remember);
            let put = self.store.put(Key::new(&self.partition, &row), mark.clone(), options);
            let found = match ask(&self.clock, ATTEMPT.min(left), put).await {
                Ok(version) => return Fate::Void(version),
                Err(AskError::Failed(StoreError::Conflict { .. })) => self.read_id(&first.id).await,
                Err(failed) => Err(unanswered(failed)),
            };
            match found {
                Ok(Some((IdRow::Used { request, .. }, _))) if request == first.request => return Fate::Applied,
                Ok(Some((IdRow::Void { request }, version))) if request == first.request => return Fate::Void(version),
                Ok(Some(_)) => return Fate::Used,
                // It expired: the request that required it can no longer be applied.
                Ok(None) => guard = Precondition::Absent,
                Err(failed) => error = failed,
            }
            if self.clock.now() >= until {
                return Fate::Unknown(error);
            }
            self.clock.sleep(pause.min(until.saturating_since(self.clock.now()))).await;
            pause = (pause * 2).min(DELAYS.1);
        }
    }

    /// Returns the answer to a commit whose reply was lost, from the log.
    async fn read_own(&self, job: &Job) -> Answer {
        let found = async {
            let mut done = self.find(job).await?;
            for (done, command) in done.iter_mut().zip(&job.commands) {
                // The store numbered what was appended to any version.
                for (stream, ..) in &job.appends {
                    if !done.versions.contains_key(stream)
                        && let Some(version) = self.find_version(stream, &command.id).await?
                    {
                        done.versions.insert(stream.clone(), version);
                    }
                }
            }
            Ok::<_, PortError>(done)
        };
        match found.await {
            Ok(done) => Ok(Done::Committed(done)),
            // It was applied, whatever the read says.
            Err(error) => Err(CommitError::Store(error.outcome_unknown())),
        }
    }

    async fn read_id(&self, id: &str) -> Result<Option<(IdRow, Version)>, PortError> {
        let row = stored::id_row(id);
        let Some((value, version)) = self.get(&row).await? else { return Ok(None) };
        Ok(Some((IdRow::decode(&row, value)?, version)))
    }

    /// Returns `true` if a command was accepted for this stream, and is remembered.
    pub(super) async fn has_accepted(&self, command: &str, first: &str) -> Result<bool, PortError> {
        let found = self.read_id(command).await?;
        Ok(matches!(found, Some((IdRow::Used { stream, .. }, _)) if stream == first))
    }

    pub(super) fn request_id(&self) -> RequestId {
        (self.entropy.next_u64(), self.entropy.next_u64())
    }
}

/// Returns the failure of a request without a precondition that could fail.
pub(super) fn unanswered(error: AskError<StoreError>) -> PortError {
    match error.or_timed_out("events: the store did not answer in time") {
        StoreError::Failed(error) => error,
        other => stored::foreign(&other),
    }
}
