//! A write that waits for its transaction.
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::port::{PortError, PortErrorKind};

/// The work of a write within a transaction, at the file's time. The outer error is SQLite's, the
/// inner one a refusal that wrote nothing. The work runs again if its transaction is rolled back.
pub(super) type Work<T, E> = dyn FnMut(&Connection, i64) -> rusqlite::Result<Result<T, E>> + Send;

/// A write with any type of result.
pub(super) trait Job: Send {
    fn run(&mut self, connection: &Connection, now: i64) -> rusqlite::Result<()>;
    fn answer(self: Box<Self>, committed: Result<(), PortError>);
}

/// A write in the writer's list.
pub(super) struct PendingWrite {
    pub(super) job: Box<dyn Job>,
    /// End of the wait for another program's lock, by the machine's clock. Set at the first
    /// attempt.
    pub(super) deadline: Option<Duration>,
}

pub(super) struct JobOf<T, E> {
    work: Box<Work<T, E>>,
    result: Option<Result<T, E>>,
    /// If set, the work is skipped if the caller's future was dropped before the work begins.
    only_if_awaited: bool,
    reply: oneshot::Sender<Result<T, E>>,
}

impl<T, E> JobOf<T, E> {
    pub(super) fn new(work: Box<Work<T, E>>, only_if_awaited: bool, reply: oneshot::Sender<Result<T, E>>) -> Self {
        Self { work, result: None, only_if_awaited, reply }
    }
}

impl<T: Send, E: From<PortError> + Send> Job for JobOf<T, E> {
    fn run(&mut self, connection: &Connection, now: i64) -> rusqlite::Result<()> {
        // The transaction's time was read before this check. So work that begins for a caller whose
        // future is dropped later began before that drop.
        if !(self.only_if_awaited && self.reply.is_closed()) {
            self.result = Some((self.work)(connection, now)?);
        }
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), PortError>) {
        let answer = match (committed, self.result) {
            // A refusal may depend on what another write of the group wrote, so it also waits for
            // the commit.
            (Err(error), _) => Err(error.into()),
            (Ok(()), Some(result)) => result,
            (Ok(()), None) => Err(PortError::new(PortErrorKind::Closed, "sqlite: the write did not run").into()),
        };
        // The caller's future may have been dropped.
        let _ = self.reply.send(answer);
    }
}
