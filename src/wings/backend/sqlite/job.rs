//! A write that waits for its transaction.
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::port::{PortError, PortErrorKind};

/// Work within a transaction, at the file's time: the outer error is SQLite's, the inner one a
/// refusal that wrote nothing. It may be done more than once, if the transaction comes to nothing.
pub(super) type Work<T, E> = dyn FnMut(&Connection, i64) -> rusqlite::Result<Result<T, E>> + Send;

/// A write of any type of answer.
pub(super) trait Job: Send {
    fn run(&mut self, connection: &Connection, now: i64) -> rusqlite::Result<()>;
    fn answer(self: Box<Self>, committed: Result<(), PortError>);
}

/// A write in the queue of the writer.
pub(super) struct Waiting {
    pub(super) job: Box<dyn Job>,
    /// End of its wait for another program's lock, by the machine's clock; set at the first try.
    pub(super) deadline: Option<Duration>,
}

pub(super) struct JobOf<T, E> {
    work: Box<Work<T, E>>,
    result: Option<Result<T, E>>,
    /// Skips the work where the caller is gone before it begins.
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
        // After the transaction's time was read: what is begun for a caller that then goes, was
        // begun before it went.
        if !(self.only_if_awaited && self.reply.is_closed()) {
            self.result = Some((self.work)(connection, now)?);
        }
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), PortError>) {
        let answer = match (committed, self.result) {
            // A refusal, too, stands on what is committed: it may have seen what a neighbour wrote.
            (Err(error), _) => Err(error.into()),
            (Ok(()), Some(result)) => result,
            (Ok(()), None) => Err(PortError::new(PortErrorKind::Closed, "sqlite: the write was not done").into()),
        };
        // The caller may be gone.
        let _ = self.reply.send(answer);
    }
}
