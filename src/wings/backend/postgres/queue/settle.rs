//! Settling and extending: the settlements of several requests in one statement.
use std::{
    collections::{BTreeSet, HashSet},
    error::Error as _,
    sync::Arc,
};

use tokio_postgres::{Row, error::SqlState, types::Type};

use super::super::link::{Effect, Link, knows};
use super::{
    PostgresQueue,
    send::{ATTEMPTS, Columns, HASTE, micros},
};
use crate::{
    gather::{SendBatch, row},
    port::{BoxFuture, PortError, PortErrorKind},
    queue::{AttemptError, ErrorHistory, Message, QueueError, Settle},
};

/// A request of settlements ends with the one that would make it larger than this.
const PART_BYTES: usize = 16 << 20;

/// A settlement that was checked: the message, its delivery, and the effect.
pub(crate) struct Ready {
    pub(crate) id: i64,
    pub(crate) receipt: i32,
    pub(crate) has_group: bool,
    pub(crate) effect: Settlement,
}

pub(crate) enum Settlement {
    Settle(Settle),
    /// A forward, with the number of the queue of each message.
    Forward(Vec<(i64, Message)>),
    /// An extension by these microseconds. It may record whether the handling has begun.
    Extend(i64, Option<bool>),
}

impl Ready {
    /// Returns the size of the messages that it forwards, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.effect.forwards().iter().map(|(_, message)| message.size()).sum()
    }
}

impl Settlement {
    /// Returns the number of the kind, as `queue_settle` has it. A forward whose targets were not
    /// looked up has none: as a completion it would lose its messages.
    fn kind(&self) -> Result<i16, PortError> {
        Ok(match self {
            Self::Settle(Settle::Complete) | Self::Forward(_) => 0,
            Self::Settle(Settle::Abandon { .. }) => 1,
            Self::Settle(Settle::Release { .. }) => 2,
            Self::Settle(Settle::DeadLetter { .. }) => 3,
            Self::Extend(_, None) => 4,
            Self::Extend(_, Some(true)) => 5,
            Self::Extend(_, Some(false)) => 6,
            Self::Settle(Settle::Forward { .. }) => {
                return Err(PortError::new(PortErrorKind::Unsupported, "a forward without the numbers of its queues"));
            }
        })
    }

    fn after(&self) -> i64 {
        match self {
            Self::Settle(Settle::Abandon { after, .. } | Settle::Release { after }) => micros(*after),
            Self::Extend(after, _) => *after,
            _ => 0,
        }
    }

    fn reason(&self) -> Option<&[u8]> {
        match self {
            Self::Settle(Settle::DeadLetter { reason, .. }) => Some(reason.as_bytes()),
            _ => None,
        }
    }

    /// Returns the error of the attempt, as a history of one entry.
    fn error(&self) -> Option<Vec<u8>> {
        match self {
            Self::Settle(Settle::Abandon { error, .. } | Settle::DeadLetter { error, .. }) => encode(error.as_deref()?),
            _ => None,
        }
    }

    fn forwards(&self) -> &[(i64, Message)] {
        match self {
            Self::Forward(messages) => messages,
            _ => &[],
        }
    }
}

fn encode(error: &AttemptError) -> Option<Vec<u8>> {
    let mut history = ErrorHistory::default();
    history.push(error.clone());
    history.encode().map(String::into_bytes)
}

/// Decodes the errors of a message: histories of one entry each.
pub(crate) fn decode(errors: Option<Vec<&[u8]>>) -> ErrorHistory {
    let Some(errors) = errors else { return ErrorHistory::default() };
    ErrorHistory::decode(&String::from_utf8_lossy(&errors.concat()))
}

impl PostgresQueue {
    /// Settles in requests whose forwarded messages are not too large together. Once one of them is
    /// made, the failure of a later one is that of its settlements.
    pub(crate) async fn settle_in_parts(&self, ready: Vec<Ready>) -> Result<Vec<Result<(), QueueError>>, QueueError> {
        let (mut answers, mut rest) = (Vec::with_capacity(ready.len()), ready.into_iter().peekable());
        while rest.peek().is_some() {
            let (mut part, mut bytes) = (Vec::new(), 0);
            while let Some(next) = rest.next_if(|next| part.is_empty() || bytes + next.size() <= PART_BYTES) {
                bytes += next.size();
                part.push(next);
            }
            let number = part.len();
            match self.settle_ready(part).await {
                Ok(done) => {
                    answers.extend(done.into_iter().map(|done| if done { Ok(()) } else { Err(QueueError::LeaseLost) }))
                }
                Err(error) if answers.is_empty() => return Err(error),
                Err(error) => answers.extend((0..number).map(|_| Err(error.clone()))),
            }
        }
        Ok(answers)
    }

    pub(crate) async fn settle_ready(&self, ready: Vec<Ready>) -> Result<Vec<bool>, QueueError> {
        let mut wakes = BTreeSet::new();
        for Ready { effect, .. } in &ready {
            match effect {
                Settlement::Settle(Settle::Abandon { .. } | Settle::Release { .. }) | Settlement::Extend(..) => {
                    wakes.insert(self.0.id);
                }
                Settlement::Settle(Settle::DeadLetter { .. }) => drop(wakes.insert(-self.0.id)),
                Settlement::Settle(_) => {}
                Settlement::Forward(messages) => wakes.extend(messages.iter().map(|(queue, _)| *queue)),
            }
        }
        let (done, shown) = match self.0.settles.send(ready).await? {
            Settled::Done(done) => done?,
            Settled::Busy(ready) => self.0.settler.settle_alone(ready).await?,
        };
        if shown {
            wakes.insert(self.0.id);
        }
        wakes.into_iter().for_each(|queue| self.wake(queue));
        Ok(done)
    }
}

/// Settles messages of one queue.
pub(crate) struct Settler {
    link: Arc<Link>,
    queue: i64,
    window: i64,
    sql: String,
    hasty: String,
    complete: String,
}

/// The answer to a request.
pub(crate) enum Settled {
    Done(Result<Made, QueueError>),
    /// Nothing was done, because a transaction holds a group or a de-duplication id of the batch.
    Busy(Vec<Ready>),
}

/// The statement that completes messages without a group. As a join, it might be planned as a scan
/// of the queue, while that is short.
const COMPLETE: &str = "DELETE FROM {s}.messages m WHERE m.ctid = ANY (ARRAY(
        SELECT found.tid FROM unnest($2, $3) AS r (id, receipt) CROSS JOIN LATERAL (
            SELECT m.ctid AS tid FROM {s}.messages m WHERE m.queue = $1 AND m.id = r.id
            AND m.receipt = r.receipt AND r.receipt <> 0 AND m.grp IS NULL FOR UPDATE) AS found)) AND {knows}
    RETURNING m.id, m.receipt";

/// For each settlement of a request `true` if its receipt was valid; and `true` if the next message
/// of a group became visible.
pub(crate) type Made = (Vec<bool>, bool);

impl Settler {
    pub(crate) fn new(link: Arc<Link>, queue: i64, window: i64) -> Arc<Self> {
        let settle = "SELECT {s}.queue_settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";
        let knows = knows("$1");
        let sql = link.sql(&format!("{settle} WHERE {knows}"));
        let hasty = link.sql(&format!("{settle}{HASTE} WHERE {knows}"));
        let complete = link.sql(&COMPLETE.replace("{knows}", &knows));
        Arc::new(Self { link, queue, window, sql, hasty, complete })
    }

    /// Sends a statement, again if it met a deadlock.
    async fn query(&self, sql: &str, params: &[super::super::link::Param<'_>]) -> Result<Vec<Row>, PortError> {
        let mut attempt = 1;
        loop {
            match self.link.query(Effect::Write, sql, params).await {
                Err(error) if attempt < ATTEMPTS && is_deadlock(&error) => attempt += 1,
                answer => return answer,
            }
        }
    }

    /// Completes messages without a group.
    async fn complete_all(&self, all: &[&Ready]) -> Result<Vec<bool>, PortError> {
        let ids: Vec<i64> = all.iter().map(|ready| ready.id).collect();
        let receipts: Vec<i32> = all.iter().map(|ready| ready.receipt).collect();
        let params: [super::super::link::Param<'_>; 3] =
            [(&self.queue, Type::INT8), (&ids, Type::INT8_ARRAY), (&receipts, Type::INT4_ARRAY)];
        let mut ended = HashSet::new();
        for row in self.query(&self.complete, &params).await? {
            ended.insert((self.link.column::<i64>(&row, 0)?, self.link.column::<i32>(&row, 1)?));
        }
        // Of two equal receipts the first one completes the message.
        let done = all.iter().map(|ready| ended.remove(&(ready.id, ready.receipt)));
        Ok(done.chain([false]).collect())
    }

    /// Settles one request of a batch that met a lock. If it meets one again, it waits for it.
    async fn settle_alone(&self, request: Vec<Ready>) -> Result<Made, QueueError> {
        let request = [request];
        let mut done = match self.settle_all(&request, &self.hasty).await {
            Err(error) if is_locked(&error) => {
                let _permit = self.link.patience().await?;
                self.settle_all(&request, &self.sql).await?
            }
            done => done?,
        };
        let shown = done.pop().unwrap_or_default();
        Ok((done, shown))
    }

    async fn settle_all(&self, requests: &[Vec<Ready>], sql: &str) -> Result<Vec<bool>, PortError> {
        let all: Vec<&Ready> = requests.iter().flatten().collect();
        if all.iter().all(|ready| !ready.has_group && matches!(ready.effect, Settlement::Settle(Settle::Complete))) {
            return self.complete_all(&all).await;
        }
        let ids: Vec<i64> = all.iter().map(|ready| ready.id).collect();
        let receipts: Vec<i32> = all.iter().map(|ready| ready.receipt).collect();
        let kinds: Vec<i16> = all.iter().map(|ready| ready.effect.kind()).collect::<Result<_, _>>()?;
        let afters: Vec<i64> = all.iter().map(|ready| ready.effect.after()).collect();
        let reasons: Vec<Option<&[u8]>> = all.iter().map(|ready| ready.effect.reason()).collect();
        let errors: Vec<Option<Vec<u8>>> = all.iter().map(|ready| ready.effect.error()).collect();
        // Each forwarded message with the place of its settlement, which starts at 1.
        let forwards =
            || (1_i32..).zip(&all).flat_map(|(at, ready)| ready.effect.forwards().iter().map(move |f| (at, f)));
        let of: Vec<i32> = forwards().map(|(at, _)| at).collect();
        let of = (!of.is_empty()).then_some(of);
        let columns = Columns::of(forwards().map(|(_, (queue, message))| (*queue, message)));
        let mut params: Vec<super::super::link::Param<'_>> = vec![
            (&self.queue, Type::INT8),
            (&ids, Type::INT8_ARRAY),
            (&receipts, Type::INT4_ARRAY),
            (&kinds, Type::INT2_ARRAY),
            (&afters, Type::INT8_ARRAY),
            (&reasons, Type::BYTEA_ARRAY),
            (&errors, Type::BYTEA_ARRAY),
            (&of, Type::INT4_ARRAY),
        ];
        params.extend(columns.params());
        params.push((&self.window, Type::INT8));
        let rows = self.query(sql, &params).await?;
        rows.first().map_or_else(|| Ok(Vec::new()), |row| self.link.column(row, 0))
    }
}

/// Returns `true` if the server ended the statement because of a deadlock: it changed nothing.
pub(crate) fn is_deadlock(error: &PortError) -> bool {
    code(error) == Some(&SqlState::T_R_DEADLOCK_DETECTED)
}

/// Returns `true` if the statement waited for too long for another transaction: it changed nothing.
pub(crate) fn is_locked(error: &PortError) -> bool {
    code(error) == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

fn code(error: &PortError) -> Option<&SqlState> {
    let source = error.source().and_then(|source| source.downcast_ref::<tokio_postgres::Error>());
    source.and_then(tokio_postgres::Error::code)
}

impl SendBatch<Vec<Ready>, Settled> for Arc<Settler> {
    fn send(&self, requests: Vec<Vec<Ready>>) -> BoxFuture<'_, Vec<Settled>> {
        Box::pin(async move {
            let sql = if requests.len() > 1 { &self.hasty } else { &self.sql };
            match self.settle_all(&requests, sql).await {
                Ok(mut done) => {
                    let shown = done.pop().unwrap_or_default();
                    let mut done = done.into_iter();
                    let of =
                        |request: &Vec<Ready>| Settled::Done(Ok((done.by_ref().take(request.len()).collect(), shown)));
                    requests.iter().map(of).collect()
                }
                Err(error) if requests.len() > 1 && is_locked(&error) => {
                    requests.into_iter().map(Settled::Busy).collect()
                }
                Err(error) => requests.iter().map(|_| Settled::Done(Err(error.clone().into()))).collect(),
            }
        })
    }

    fn weight(&self, request: &Vec<Ready>) -> usize {
        let forwards = request.iter().flat_map(|ready| ready.effect.forwards());
        request.len() + forwards.map(|(_, message)| row(message.size())).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::{PortErrorKind, Settle, Settlement};

    #[test]
    fn a_forward_is_never_encoded_as_a_completion() {
        let forward = Settlement::Settle(Settle::Forward { messages: Vec::new() });
        assert_eq!(forward.kind().unwrap_err().kind(), PortErrorKind::Unsupported);
        assert_eq!(Settlement::Settle(Settle::Complete).kind().unwrap(), 0);
    }
}
