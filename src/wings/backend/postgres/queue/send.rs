//! Sending: messages of several requests in one statement, and their encoding.
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio_postgres::types::{ToSql, Type};

use super::super::link::{Effect, Link, Param, knows};
use super::settle::{is_deadlock, is_locked};
use crate::{
    gather::{SendBatch, row},
    port::{BoxFuture, PortError},
    queue::{Message, MessageId, QueueError},
};

/// The longest time that is stored: no clock reaches it.
const FOREVER: i64 = 1 << 62;

/// Number of attempts at a statement that met a deadlock.
pub(crate) const ATTEMPTS: usize = 4;

/// Returns a duration in microseconds.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(FOREVER).min(FOREVER)
}

/// Messages as the columns of a statement, each with the number of its queue.
#[derive(Default)]
pub(crate) struct Columns<'a> {
    pub(crate) queues: Vec<i64>,
    bodies: Vec<&'a [u8]>,
    headers: Vec<Option<Vec<u8>>>,
    delays: Vec<i64>,
    /// `None` if no message has a group.
    groups: Option<Vec<Option<&'a [u8]>>>,
    /// `None` if no message has a de-duplication id.
    ids: Option<Vec<Option<&'a [u8]>>>,
}

impl<'a> Columns<'a> {
    pub(crate) fn of(messages: impl Iterator<Item = (i64, &'a Message)>) -> Self {
        let mut columns = Self::default();
        for (at, (queue, message)) in messages.enumerate() {
            columns.queues.push(queue);
            columns.bodies.push(&message.body);
            columns.headers.push(encode(&message.headers));
            columns.delays.push(micros(message.delay));
            add(&mut columns.groups, at, message.group.as_deref());
            add(&mut columns.ids, at, message.deduplication_id.as_deref());
        }
        columns
    }

    /// Returns `true` if no message has a group, a de-duplication id or a delay.
    fn are_plain(&self) -> bool {
        self.groups.is_none() && self.ids.is_none() && self.delays.iter().all(|delay| *delay == 0)
    }

    /// Returns the parameters in the order of `queue_send`, without the window.
    pub(crate) fn params(&self) -> [Param<'_>; 6] {
        [
            (&self.queues, Type::INT8_ARRAY),
            (&self.bodies, Type::BYTEA_ARRAY),
            (&self.headers, Type::BYTEA_ARRAY),
            (&self.delays, Type::INT8_ARRAY),
            (&self.groups, Type::BYTEA_ARRAY),
            (&self.ids, Type::BYTEA_ARRAY),
        ]
    }
}

fn add<'a>(column: &mut Option<Vec<Option<&'a [u8]>>>, at: usize, text: Option<&'a str>) {
    if text.is_some() || column.is_some() {
        let column = column.get_or_insert_default();
        column.resize(at, None);
        column.push(text.map(str::as_bytes));
    }
}

/// Sends the messages of the requests of one queue.
pub(crate) struct Sender {
    pub(crate) link: Arc<Link>,
    pub(crate) queue: i64,
    pub(crate) window: i64,
    sql: String,
    hasty: String,
    plain: String,
}

/// The answer to a request.
pub(crate) enum Sent {
    Done(Result<Vec<MessageId>, QueueError>),
    /// Nothing was done, because a transaction holds a group or a de-duplication id of the batch.
    Busy(Vec<Message>),
}

/// Ends a statement of several requests that waits for another transaction, so that it does not
/// make those wait that have nothing to do with it: each is sent again alone.
pub(crate) const HASTE: &str = " FROM set_config('lock_timeout', '200ms', true)";

/// The statement that sends messages.
pub(crate) const SEND: &str = "SELECT {s}.queue_send($1, $2, $3, $4, $5, $6, $7)";

/// The number of the queue in [`SEND`].
pub(crate) const FIRST: &str = "($1)[1]";

/// The statement that sends messages without a group, a de-duplication id or a delay. It takes its
/// lock of the table before the ids, as `queue_send` does; a ready message has no place in time, so
/// that the clock is not checked.
const SEND_PLAIN: &str = "INSERT INTO {s}.messages (queue, id, visible_at, due, accepted_at, size, body, headers)
    SELECT $1, nextval('{s}.message_ids'), 0, 0, (SELECT {s}.now_us()),
        octet_length(m.body) + coalesce(octet_length(m.headers), 0), m.body, m.headers
    FROM unnest($2, $3) AS m (body, headers) WHERE {knows} RETURNING id";

impl Sender {
    pub(crate) fn new(link: Arc<Link>, queue: i64, window: i64) -> Arc<Self> {
        let knows_first = knows(FIRST);
        let sql = link.sql(&format!("{SEND} WHERE {knows_first}"));
        let hasty = link.sql(&format!("{SEND}{HASTE} WHERE {knows_first}"));
        let plain = link.sql(&SEND_PLAIN.replace("{knows}", &knows("$1")));
        Arc::new(Self { link, queue, window, sql, hasty, plain })
    }

    /// Sends one request of a batch that met a lock. If it meets one again, it waits for it.
    pub(crate) async fn send_alone(&self, request: Vec<Message>) -> Result<Vec<MessageId>, QueueError> {
        let request = [request];
        let ids = match self.send_all(&request, &self.hasty).await {
            Err(error) if is_locked(&error) => {
                let _permit = self.link.patience().await?;
                self.send_all(&request, &self.sql).await?
            }
            ids => ids?,
        };
        Ok(ids.into_iter().map(message_id).collect())
    }

    async fn send_all(&self, requests: &[Vec<Message>], sql: &str) -> Result<Vec<i64>, PortError> {
        let messages = requests.iter().flatten().map(|message| (self.queue, message));
        let columns = Columns::of(messages);
        if columns.are_plain() {
            let params: [Param<'_>; 3] = [
                (&self.queue, Type::INT8),
                (&columns.bodies, Type::BYTEA_ARRAY),
                (&columns.headers, Type::BYTEA_ARRAY),
            ];
            let rows = self.link.query(Effect::Write, &self.plain, &params).await?;
            return rows.iter().map(|row| self.link.column(row, 0)).collect();
        }
        let params = with(columns.params(), (&self.window, Type::INT8));
        let mut attempt = 1;
        loop {
            match self.link.query(Effect::Write, sql, &params).await {
                Err(error) if attempt < ATTEMPTS && is_deadlock(&error) => attempt += 1,
                answer => return ids_in(&self.link, &answer?),
            }
        }
    }
}

/// Reads the only column of the only row of an answer.
pub(crate) fn ids_in(link: &Link, rows: &[tokio_postgres::Row]) -> Result<Vec<i64>, PortError> {
    rows.first().map_or_else(|| Ok(Vec::new()), |row| link.column(row, 0))
}

/// Adds a parameter behind the others.
pub(crate) fn with<'a>(params: [Param<'a>; 6], (value, of): (&'a (dyn ToSql + Sync), Type)) -> Vec<Param<'a>> {
    params.into_iter().chain([(value, of)]).collect()
}

/// Returns the id of a message from its number.
pub(crate) const fn message_id(number: i64) -> MessageId {
    MessageId::from_numbers(number.unsigned_abs(), 0)
}

impl SendBatch<Vec<Message>, Sent> for Arc<Sender> {
    fn send(&self, requests: Vec<Vec<Message>>) -> BoxFuture<'_, Vec<Sent>> {
        Box::pin(async move {
            let sql = if requests.len() > 1 { &self.hasty } else { &self.sql };
            match self.send_all(&requests, sql).await {
                Ok(ids) => {
                    let mut ids = ids.into_iter().map(message_id);
                    let of = |request: &Vec<Message>| Sent::Done(Ok(ids.by_ref().take(request.len()).collect()));
                    requests.iter().map(of).collect()
                }
                Err(error) if requests.len() > 1 && is_locked(&error) => requests.into_iter().map(Sent::Busy).collect(),
                Err(error) => requests.iter().map(|_| Sent::Done(Err(error.clone().into()))).collect(),
            }
        })
    }

    fn weight(&self, request: &Vec<Message>) -> usize {
        request.iter().map(|message| row(message.size())).sum()
    }
}

/// Encodes headers: each name and value behind its length in bytes. `None` if there are none.
fn encode(headers: &BTreeMap<String, String>) -> Option<Vec<u8>> {
    if headers.is_empty() {
        return None;
    }
    let texts = headers.iter().flat_map(|(name, value)| [name, value]);
    Some(texts.fold(String::new(), |all, text| all + &format!("{}:{text}", text.len())).into_bytes())
}

/// Decodes the headers of [`encode`].
pub(crate) fn decode(headers: Option<&[u8]>) -> BTreeMap<String, String> {
    let mut rest = headers.and_then(|headers| std::str::from_utf8(headers).ok());
    let mut next = || {
        let (length, behind) = rest?.split_once(':')?;
        let (found, behind) = behind.split_at_checked(length.parse().ok()?)?;
        rest = Some(behind);
        Some(found.to_owned())
    };
    let mut headers = BTreeMap::new();
    while let (Some(name), Some(value)) = (next(), next()) {
        headers.insert(name, value);
    }
    headers
}
