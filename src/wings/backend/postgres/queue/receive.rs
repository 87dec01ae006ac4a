//! Receiving: the statement, its rows, and the marks below which nothing can be received.
//!
//! A transaction that stays open keeps dead rows, and the indexes keep their entries. A scan from
//! the beginning of an index would visit all of them, again with each request. So a receiver
//! remembers a mark in each index, and scans from there. `queue.sql` says why no message is behind
//! a mark.
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio_postgres::{Row, types::Type};

use super::super::link::{Effect, Link, knows};
use super::{
    send::{decode, message_id, micros},
    settle,
    views::Sweep,
};
use crate::{
    backend::ConnectionEvent,
    gather::SendBatch,
    port::{BoxFuture, PortError},
    queue::{Delivery, Receipt, Unexplained},
    sync::Mutex,
    time::{Instant, Timestamp},
};

/// Maximum size of the messages of a receive or a peek. Only a single message may be larger.
pub(crate) const MAX_BYTES: i64 = 16 << 20;

/// The marks move after so many answers and so much time: seldom at a quiet queue, and before many
/// dead entries have gathered at a busy one.
const MOVES: [(u64, Duration); 2] = [(16, Duration::from_secs(1)), (256, Duration::from_millis(20))];

/// The bit of a receipt that tells that the message has a group. No delivery has such a number.
const GROUPED: u32 = 1 << 31;

/// Receives messages of one queue.
pub(crate) struct Receiver {
    link: Arc<Link>,
    queue: i64,
    /// Number that distinguishes the queue's receipts from those of others.
    guard: u32,
    marks: Mutex<Marks>,
    /// Messages and empty answers since the marks moved. Only a count, so `Relaxed` suffices.
    seen: AtomicU64,
    receive: String,
    move_marks: String,
    sweep: Arc<Sweep>,
}

/// The marks, as `queue_marks` has them.
#[derive(Clone, Default)]
struct Marks {
    epoch: i64,
    id: i64,
    at: i64,
    next_id: i64,
    next_at: i64,
    writers: Option<Vec<String>>,
    moved: Instant,
    is_moving: bool,
}

/// The answer to a receive.
pub(crate) enum Taken {
    Some(Vec<Delivery>),
    /// There is no visible message. The next one becomes visible after this time, as far as the
    /// server knows.
    None(Option<Duration>),
    /// Other receivers are about to take the visible messages, or to give them back.
    Busy,
    /// Other receivers of this handle, with which the request shared a statement, got all messages
    /// that it found.
    Outrun,
}

impl Receiver {
    /// Creates a receiver; `is_direct` states that sessions have the settings that
    /// `queue_deliver` wants.
    pub(crate) fn new(link: Arc<Link>, queue: i64, guard: u32, is_direct: bool, sweep: Arc<Sweep>) -> Self {
        let receive = if is_direct { "queue_deliver" } else { "queue_deliver_pooled" };
        let receive =
            link.sql(&format!("SELECT * FROM {{s}}.{receive}($1, $2, $3, $4, $5, $6, $7) WHERE {}", knows("$1")));
        let move_marks = link.sql("SELECT * FROM {s}.queue_marks($1, $2, $3, $4, $5, $6, $7)");
        Self { link, queue, guard, marks: Mutex::default(), seen: AtomicU64::new(0), receive, move_marks, sweep }
    }

    /// Takes up to `max` messages.
    async fn take(&self, max: usize, visibility: Duration) -> Result<Taken, PortError> {
        self.move_marks_if_due().await;
        let (epoch, id, at) = {
            let marks = self.marks.lock();
            (marks.epoch, marks.id, marks.at)
        };
        let (max, visibility) = (i32::try_from(max).unwrap_or(i32::MAX), micros(visibility).max(1));
        let params: [super::super::link::Param<'_>; 7] = [
            (&self.queue, Type::INT8),
            (&max, Type::INT4),
            (&visibility, Type::INT8),
            (&MAX_BYTES, Type::INT8),
            (&epoch, Type::INT8),
            (&id, Type::INT8),
            (&at, Type::INT8),
        ];
        let rows = self.link.query(Effect::Write, &self.receive, &params).await?;
        self.seen.fetch_add(rows.len() as u64, Ordering::Relaxed);
        let mut taken = Vec::with_capacity(rows.len());
        for row in &rows {
            let Some(id) = self.link.column::<Option<i64>>(row, 0)? else {
                return Ok(match self.link.column::<Option<i64>>(row, 1)? {
                    Some(0) => Taken::Busy,
                    next => Taken::None(next.map(|next| Duration::from_micros(next.unsigned_abs()))),
                });
            };
            match self.link.column::<Option<&[u8]>>(row, 6)? {
                Some(body) => taken.push(self.delivery(row, id, Bytes::copy_from_slice(body))?),
                None => {
                    let (message, place) = (format!("id {id}"), self.link.sql("{s}.messages, with visible_at = -1"));
                    self.link.tell(ConnectionEvent::SetAside { message, place });
                }
            }
        }
        // The order of an UPDATE's rows is not stated.
        taken.sort_unstable_by(|one, other| one.id.cmp(&other.id));
        Ok(Taken::Some(taken))
    }

    fn delivery(&self, row: &Row, id: i64, body: Bytes) -> Result<Delivery, PortError> {
        let number = |i| self.link.column::<i32>(row, i).map(i32::unsigned_abs);
        let (accepted_at, deliveries) = (self.link.column::<i64>(row, 2)?, number(3)?);
        let group = text(self.link.column(row, 8)?);
        let receipt = self.receipt(id, deliveries, group.is_some());
        let mut delivery = Delivery::new(message_id(id), receipt, body, deliveries, timestamp(accepted_at));
        delivery.age = Duration::from_micros(self.link.column::<i64>(row, 1)?.max(0).unsigned_abs());
        let unexplained = Unexplained::from_number(number(5)?);
        delivery.attempts = number(4)?;
        (delivery.expiries, delivery.crashes) = (unexplained.expiries(), unexplained.crashes());
        delivery.headers = decode(self.link.column(row, 7)?);
        delivery.group = group;
        delivery.reason = text(self.link.column(row, 9)?);
        delivery.errors = settle::decode(self.link.column(row, 10)?);
        Ok(delivery)
    }

    /// Returns the receipt of a delivery. It names the queue, so that no other one takes it for one
    /// of its own. It also tells if the message has a group, because those without are settled by a
    /// simpler statement.
    fn receipt(&self, id: i64, delivery: u32, has_group: bool) -> Receipt {
        let delivery = delivery | if has_group { GROUPED } else { 0 };
        Receipt::from_numbers(id.unsigned_abs(), u64::from(self.guard) << 32 | u64::from(delivery))
    }

    /// Returns the message, the delivery, and `true` if the message has a group, of a receipt of
    /// this queue.
    pub(crate) fn delivery_of(&self, receipt: &Receipt) -> Option<(i64, i32, bool)> {
        let (id, delivery) = receipt.as_numbers()?;
        let (guard, delivery) = ((delivery >> 32) as u32, delivery as u32);
        let number = (delivery & !GROUPED).cast_signed();
        (guard == self.guard).then_some((i64::try_from(id).ok()?, number, delivery & GROUPED != 0))
    }

    async fn move_marks_if_due(&self) {
        let seen = self.seen.load(Ordering::Relaxed);
        let now = self.link.clock.now();
        let moving = {
            let mut marks = self.marks.lock();
            let since = now - marks.moved;
            let is_due = MOVES.iter().any(|(answers, time)| seen >= *answers && since >= *time);
            if !is_due || marks.is_moving {
                return;
            }
            self.seen.store(0, Ordering::Relaxed);
            (marks.is_moving, marks.moved) = (true, now);
            Moving { receiver: self, marks: marks.clone() }
        };
        moving.run().await;
        self.sweep.moved(&self.link);
    }
}

/// The largest receive.
const MAX_TAKEN: usize = 1000;

/// A request to receive: the maximum number of messages, their visibility time-out, and how often
/// the caller has looked in vain.
pub(crate) type Request = (usize, Duration, u32);

/// Receives for several callers at once.
pub(crate) struct SharedReceiver(pub(crate) Arc<Receiver>);

impl SendBatch<Request, Result<Taken, PortError>> for SharedReceiver {
    fn send(&self, requests: Vec<Request>) -> BoxFuture<'_, Vec<Result<Taken, PortError>>> {
        Box::pin(async move {
            let mut answers: Vec<_> = requests.iter().map(|_| None).collect();
            for (_, visibility, _) in &requests {
                // Those that share a statement: the messages have one visibility time-out.
                let open = (0..requests.len()).filter(|at| answers[*at].is_none() && requests[*at].1 == *visibility);
                let mut open: Vec<usize> = open.collect();
                // Those that were outrun go first.
                open.sort_by_key(|at| std::cmp::Reverse(requests[*at].2));
                let wants: Vec<usize> = open.iter().map(|at| requests[*at].0).collect();
                if wants.is_empty() {
                    continue;
                }
                let most = wants.iter().fold(0, |sum: usize, want| sum.saturating_add(*want)).min(MAX_TAKEN);
                let taken = self.0.take(most, *visibility).await;
                open.into_iter().zip(share(taken, &wants)).for_each(|(at, answer)| answers[at] = Some(answer));
            }
            answers.into_iter().map(|answer| answer.unwrap_or(Ok(Taken::Busy))).collect()
        })
    }

    fn weight(&self, (most, ..): &Request) -> usize {
        *most
    }
}

/// Deals the messages out to the requests, one at a time.
fn share(taken: Result<Taken, PortError>, wants: &[usize]) -> Vec<Result<Taken, PortError>> {
    let taken = match taken {
        Ok(Taken::Some(taken)) => taken,
        Ok(Taken::None(next)) => return wants.iter().map(|_| Ok(Taken::None(next))).collect(),
        Ok(Taken::Busy | Taken::Outrun) => return wants.iter().map(|_| Ok(Taken::Busy)).collect(),
        Err(error) => return wants.iter().map(|_| Err(error.clone())).collect(),
    };
    let mut shares: Vec<Vec<Delivery>> = wants.iter().map(|_| Vec::new()).collect();
    let mut turn = 0;
    for delivery in taken {
        let next = (turn..).take(wants.len()).map(|at| at % wants.len()).find(|at| shares[*at].len() < wants[*at]);
        let Some(next) = next else { break };
        shares[next].push(delivery);
        turn = next + 1;
    }
    // A request that got none looks again: there may be more.
    shares.into_iter().map(|share| Ok(if share.is_empty() { Taken::Outrun } else { Taken::Some(share) })).collect()
}

/// A move of the marks that is under way.
struct Moving<'a> {
    receiver: &'a Receiver,
    marks: Marks,
}

impl Moving<'_> {
    /// Asks the server for the next marks. If it fails, the old ones stay: they only cost work.
    async fn run(mut self) {
        let Marks { epoch, id, at, next_id, next_at, writers, .. } = &self.marks;
        let params: [super::super::link::Param<'_>; 7] = [
            (&self.receiver.queue, Type::INT8),
            (epoch, Type::INT8),
            (id, Type::INT8),
            (at, Type::INT8),
            (next_id, Type::INT8),
            (next_at, Type::INT8),
            (writers, Type::TEXT_ARRAY),
        ];
        let Receiver { link, move_marks, .. } = self.receiver;
        let Ok(rows) = link.query(Effect::Read, move_marks, &params).await else { return };
        let moved = || -> Result<Marks, PortError> {
            let number = |i| rows.first().map_or(Ok(0), |row| link.column::<i64>(row, i));
            let writers = rows.first().map_or(Ok(None), |row| link.column(row, 5))?;
            let (epoch, id, at, next_id, next_at) = (number(0)?, number(1)?, number(2)?, number(3)?, number(4)?);
            Ok(Marks { epoch, id, at, next_id, next_at, writers, moved: self.marks.moved, is_moving: true })
        };
        if let Ok(moved) = moved() {
            self.marks = moved;
        }
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        *self.receiver.marks.lock() = Marks { is_moving: false, ..self.marks.clone() };
    }
}

/// Returns the wall time of a number of microseconds.
pub(crate) const fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_millis(micros.unsigned_abs() / 1000)
}

/// Returns the text of bytes that were stored from one.
pub(crate) fn text(bytes: Option<&[u8]>) -> Option<String> {
    bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::MessageId;

    fn delivery(id: u64) -> Delivery {
        let body = Bytes::from_static(b"x");
        Delivery::new(MessageId::from_numbers(id, 0), Receipt::from_numbers(id, 1), body, 1, Timestamp::from_millis(0))
    }

    #[test]
    fn a_request_without_a_share_is_outrun_and_no_other_transaction_holds_its_message() {
        let shares = share(Ok(Taken::Some(vec![delivery(1), delivery(2)])), &[1, 1, 1]);
        let outrun = shares.iter().map(|share| matches!(share, Ok(Taken::Outrun)));
        assert_eq!(outrun.collect::<Vec<_>>(), [false, false, true]);
        let busy = share(Ok(Taken::Busy), &[1, 1]);
        assert!(busy.iter().all(|share| matches!(share, Ok(Taken::Busy))));
    }
}
