//! Reading and writing the record of a saga.
use std::{future::Future, sync::Arc, time::Duration};

use super::{
    SagaError, SagaEvent as Event,
    core::{LocalRun, SagaCore},
    state::{Owner, Phase, Progress},
};
use crate::{
    backoff::{Backoff, BackoffConfig, Curve, Jitter},
    port::{AskError, ErrorClass, Failure, PortError, PortErrorKind, ask},
    store::{DeleteOptions, Key, Precondition, PutOptions, Store, StoreError, Version, Write},
};

/// Value of the index row of an open saga.
pub(super) const OPEN: &str = "open";
/// Value of the index row of a stuck saga.
pub(super) const STUCK: &str = "stuck";

/// Prefix of the rows of users.
const USERS: &str = "u/";

pub(super) fn record_row(id: &str) -> String {
    ["r/", id].concat()
}

pub(super) fn index_row(id: &str) -> String {
    ["i/", id].concat()
}

/// A record as it was read.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) progress: Progress,
    pub(super) version: Version,
}

/// A record cannot be read, for this reason.
pub(super) type Unreadable = &'static str;

impl SagaCore {
    /// Repeats a request while the store fails, for `store_timeout`. A refusal on its merits, and a
    /// permanent failure, are returned at once.
    pub(super) async fn patiently<T, F>(&self, request: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let clock = &self.clock;
        let (call_timeout, until) = {
            let config = self.config.load();
            (config.call_timeout, clock.now() + config.store_timeout)
        };
        let mut delays = None;
        loop {
            let error = match ask(clock, call_timeout, request()).await {
                Ok(answer) => return Ok(answer),
                Err(AskError::Failed(error)) if error.class() == ErrorClass::Permanent => return Err(error),
                Err(error) => {
                    let kind = error.kind();
                    self.event(|| Event::StoreFailed { kind });
                    error.or_timed_out("the store did not answer in time")
                }
            };
            let delays = delays.get_or_insert_with(|| Backoff::checked(delays_of_store(), &self.entropy));
            let asked = error.backend().and_then(PortError::retry_after).unwrap_or_default();
            let delay = delays.next().unwrap_or_default().max(asked);
            if clock.now() + delay >= until {
                return Err(error);
            }
            clock.sleep(delay).await;
        }
    }

    /// Reads a record.
    pub(super) async fn read(&self, id: &str) -> Result<Option<Result<Stored, Unreadable>>, SagaError> {
        let row = record_row(id);
        let key = Key::new(&self.partition, &row);
        let record = self.patiently(|| self.store.get(key)).await.map_err(of_store)?;
        Ok(record.map(|record| {
            let progress = Progress::decode(&record.value)?;
            Ok(Stored { progress, version: record.version })
        }))
    }

    /// Reads a record that must exist and be readable.
    pub(super) async fn read_known(&self, id: &str) -> Result<Stored, SagaError> {
        match self.read(id).await? {
            Some(Ok(stored)) => Ok(stored),
            Some(Err(reason)) => Err(self.incompatible(id, reason)),
            None => Err(SagaError::NotFound),
        }
    }

    /// Reports that this process cannot run a saga.
    pub(super) fn incompatible(&self, id: &str, reason: &str) -> SagaError {
        self.event(|| Event::Incompatible { id: id.to_owned(), reason: reason.to_owned() });
        SagaError::Incompatible(reason.to_owned())
    }

    /// Rejects a state that leaves no room for the progress of its saga.
    fn check_room(&self, next: &Progress) -> Result<(), String> {
        let (needs, most) = (next.size_without_texts(), self.store.capabilities().max_value());
        if needs <= most {
            return Ok(());
        }
        Err(format!("is too large: its record may need {needs} bytes, and the store takes at most {most}"))
    }

    /// Returns the writes of one step of a saga: the record, and its index row if that changes. The
    /// record comes first, so that its conflict is the one that the store names.
    fn writes(&self, id: &str, when: Precondition, before: Option<Phase>, next: &Progress) -> Vec<Write> {
        let value = next.encode_within(self.store.capabilities().max_value());
        let is_over = index(next.phase).is_none();
        let ttl = is_over.then_some(self.config.load().retention);
        let mut writes = vec![Write::put(record_row(id), value, PutOptions { when, ttl, fence: None })];
        let (before, after) = (before.and_then(index), index(next.phase));
        if before != after {
            writes.push(match after {
                Some(text) => Write::put(index_row(id), text, PutOptions::new()),
                None => Write::delete(index_row(id), DeleteOptions::new()),
            });
        }
        writes
    }

    /// Applies writes in one request, and returns the version of the record.
    async fn apply(&self, writes: &[Write]) -> Result<Version, StoreError> {
        if let [Write::Put { row, value, options }] = writes {
            return self.store.put(Key::new(&self.partition, row), value.clone(), *options).await;
        }
        let versions = self.store.batch(&self.partition, writes.to_vec()).await?;
        let missing = || PortError::new(PortErrorKind::Other, "the backend returned no version of the record");
        Ok(versions.first().copied().flatten().ok_or_else(missing)?)
    }

    /// Starts a saga, unless one with this id exists.
    pub(super) async fn start(
        self: &Arc<Self>,
        progress: Progress,
        rows: &[Write],
        local: LocalRun,
    ) -> Result<Started, SagaError> {
        check_rows(rows).map_err(|rule| SagaError::Invalid(PortError::invalid("rows", rule)))?;
        let id = local.id.clone();
        self.check_room(&progress).map_err(|rule| SagaError::Invalid(PortError::invalid("state", rule)))?;
        let mut writes = self.writes(&id, Precondition::Absent, None, &progress);
        let own = writes.len();
        writes.extend_from_slice(rows);
        loop {
            let version = match self.patiently(|| self.apply(&writes)).await {
                Ok(version) => version,
                Err(StoreError::Conflict { write: 0, .. }) => match self.read(&id).await? {
                    // The reply to an earlier request was lost. A signal may have come since.
                    Some(Ok(Stored { progress: stored, version })) if stored.is_write(&progress) => {
                        return Ok(Started::Now(Execution::new(self.clone(), stored, version, local)));
                    }
                    Some(stored) => return Ok(Started::Exists(stored.ok())),
                    // It ended and expired in this moment.
                    None => continue,
                },
                Err(error) if is_refusal(&error, own) && !rows.is_empty() => return Err(SagaError::RowRefused(error)),
                Err(StoreError::Failed(error)) if error.kind() == PortErrorKind::Invalid => {
                    return Err(SagaError::Invalid(error));
                }
                Err(error) => return Err(of_store(error)),
            };
            return Ok(Started::Now(Execution::new(self.clone(), progress, version, local)));
        }
    }

    /// Writes a signal of a caller, such as a cancellation, which changes no owner. Returns `false`
    /// if the record changed meanwhile.
    pub(super) async fn signal(&self, id: &str, stored: &Stored, next: &Progress) -> Result<bool, SagaError> {
        let when = Precondition::Version(stored.version);
        let writes = self.writes(id, when, Some(stored.progress.phase), next);
        match self.patiently(|| self.apply(&writes)).await {
            Ok(_) => Ok(true),
            Err(StoreError::Conflict { .. }) => Ok(false),
            Err(error) => Err(of_store(error)),
        }
    }
}

/// One execution of a saga: the record as this execution wrote it last.
pub(super) struct Execution {
    pub(super) core: Arc<SagaCore>,
    pub(super) progress: Progress,
    pub(super) version: Version,
    pub(super) local: LocalRun,
}

/// The result of a start.
pub(super) enum Started {
    Now(Execution),
    /// A saga with this id exists, with this record if it can be read.
    Exists(Option<Stored>),
}

/// The fate of a write.
pub(super) enum Written {
    Applied,
    /// Not applied: a signal changed the record. The execution has the new one.
    Changed,
    /// Not applied: the store refuses the rows or the state, for this reason.
    Refused(String),
}

impl Execution {
    pub(super) fn new(core: Arc<SagaCore>, progress: Progress, version: Version, local: LocalRun) -> Self {
        Self { core, progress, version, local }
    }

    pub(super) fn id(&self) -> &Arc<str> {
        &self.local.id
    }

    /// Replaces the record by `next`, together with rows of the user.
    ///
    /// After a lost reply the own write is recognised by its owner, epoch and number. If another
    /// executor has taken the saga over, nothing is written.
    pub(super) async fn write(&mut self, mut next: Progress, rows: &[Write]) -> Result<Written, SagaError> {
        if let Err(rule) = check_rows(rows) {
            return Ok(Written::Refused(rule));
        }
        if next.state != self.progress.state
            && let Err(rule) = self.core.check_room(&next)
        {
            return Ok(Written::Refused(format!("the state of the saga {rule}")));
        }
        next.writes = self.progress.writes.saturating_add(1);
        let (core, id) = (self.core.clone(), self.id().clone());
        let when = Precondition::Version(self.version);
        let mut writes = core.writes(&id, when, Some(self.progress.phase), &next);
        let own = writes.len();
        writes.extend_from_slice(rows);
        match core.patiently(|| core.apply(&writes)).await {
            Ok(version) => {
                (self.progress, self.version) = (next, version);
                Ok(Written::Applied)
            }
            Err(StoreError::Conflict { write: 0, .. }) => {
                let Some(Ok(Stored { progress: stored, version })) = core.read(&id).await? else {
                    return Err(SagaError::Superseded);
                };
                let written = if stored.is_write(&next) {
                    Written::Applied
                } else if stored.is_write(&self.progress) {
                    Written::Changed
                } else {
                    return Err(SagaError::Superseded);
                };
                (self.progress, self.version) = (stored, version);
                Ok(written)
            }
            Err(error) if is_refusal(&error, own) => Ok(Written::Refused(error.to_string())),
            Err(error) => Err(of_store(error)),
        }
    }
}

impl Progress {
    /// Returns `true` if this record is that write of an execution, whatever signals came since.
    fn is_write(&self, written: &Self) -> bool {
        let of = |progress: &Self| -> (Option<Owner>, u64, u64) { (progress.owner, progress.epoch, progress.writes) };
        of(self) == of(written)
    }
}

/// Delays between requests to a store that fails.
const fn delays_of_store() -> BackoffConfig {
    BackoffConfig {
        curve: Curve::Exponential,
        base: Duration::from_millis(100),
        factor: 2.0,
        cap: Duration::from_secs(2),
        jitter: Jitter::Full,
        immediate_first: false,
    }
}

fn index(phase: Phase) -> Option<&'static str> {
    match phase {
        Phase::Forward | Phase::Compensating => Some(OPEN),
        Phase::StuckForward | Phase::StuckCompensating => Some(STUCK),
        Phase::Completed | Phase::Compensated => None,
    }
}

/// Returns `true` if the store refuses rows behind the first `own`, or the size of a value.
fn is_refusal(error: &StoreError, own: usize) -> bool {
    match error {
        StoreError::Conflict { write, .. } | StoreError::Fenced { write, .. } => *write >= own,
        StoreError::Failed(error) => {
            matches!(error.kind(), PortErrorKind::Invalid | PortErrorKind::Unsupported)
                && !error.may_have_been_applied()
        }
    }
}

/// Rejects rows outside those of users.
fn check_rows(rows: &[Write]) -> Result<(), String> {
    for write in rows {
        let row = match write {
            Write::Append { sequence, .. } => sequence,
            other => other.row().unwrap_or_default(),
        };
        if !row.starts_with(USERS) {
            return Err(format!("the row of a step must begin with `{USERS}`, is {row:?}"));
        }
    }
    Ok(())
}

/// Returns the error of a request that did not fail on its merits.
pub(super) fn of_store(error: StoreError) -> SagaError {
    match error {
        StoreError::Failed(error) => SagaError::Store(error),
        other => SagaError::Store(PortError::new(PortErrorKind::Other, other.to_string())),
    }
}
