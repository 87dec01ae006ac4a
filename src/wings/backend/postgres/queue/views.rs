//! Depth, peek and purge of a queue, and the sweep of de-duplication ids.
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
};

use bytes::Bytes;
use tokio_postgres::{Row, types::Type};

use super::super::link::{Effect, Link, knows};
use super::{
    receive::{MAX_BYTES, text, timestamp},
    schema::SOUND,
    send::{decode, message_id},
    settle,
};
use crate::{
    port::PortError,
    queue::{Depth, Peeked, Unexplained},
    spawn::Spawner,
};

/// Number of messages that one statement purges, and their size: large values are in many rows.
const PURGED: (i32, i64) = (20_000, 32 << 20);

const DEPTH: &str = "SELECT count(*) FILTER (WHERE visible_at BETWEEN 0 AND now OR visible_at = 9223372036854775807),
        count(*) FILTER (WHERE visible_at > now AND visible_at < 9223372036854775807 AND deliveries = 0),
        count(*) FILTER (WHERE visible_at > now AND visible_at < 9223372036854775807 AND deliveries > 0)
    FROM {s}.messages, (SELECT {s}.now_us() AS now) AS clock WHERE queue = $1 AND {knows}";

const PEEK: &str = "SELECT id, deliveries, accepted_at, attempts, expiries, body, headers, grp, reason, errors,
        visible_at > now AND visible_at < 9223372036854775807
    FROM (
        SELECT m.*, sum(m.size) OVER (ORDER BY m.id) AS total, row_number() OVER (ORDER BY m.id) AS place
        FROM (SELECT * FROM {s}.messages m WHERE queue = $1 AND visible_at >= 0 AND {sound} AND {knows}
            ORDER BY id LIMIT $2) m) p,
        (SELECT {s}.now_us() AS now) AS clock
    WHERE total <= $3 OR place = 1 ORDER BY id";

/// Operations on all messages of a queue.
pub(crate) struct Views {
    link: Arc<Link>,
    queue: i64,
}

impl Views {
    pub(crate) const fn new(link: Arc<Link>, queue: i64) -> Self {
        Self { link, queue }
    }

    fn sql(&self, template: &str) -> String {
        self.link.sql(&template.replace("{sound}", SOUND).replace("{knows}", &knows("$1")))
    }

    pub(crate) async fn depth(&self) -> Result<Depth, PortError> {
        let rows = self.link.query(Effect::Read, &self.sql(DEPTH), &[(&self.queue, Type::INT8)]).await?;
        let number = |i| rows.first().map_or(Ok(0), |row| self.link.column::<i64>(row, i).map(i64::unsigned_abs));
        Ok(Depth::new(number(0)?, number(1)?, number(2)?))
    }

    pub(crate) async fn peek(&self, max: usize) -> Result<Vec<Peeked>, PortError> {
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let params: [super::super::link::Param<'_>; 3] =
            [(&self.queue, Type::INT8), (&max, Type::INT8), (&MAX_BYTES, Type::INT8)];
        let rows = self.link.query(Effect::Read, &self.sql(PEEK), &params).await?;
        rows.iter().map(|row| self.peeked(row)).collect()
    }

    fn peeked(&self, row: &Row) -> Result<Peeked, PortError> {
        let number = |i| self.link.column::<i32>(row, i).map(i32::unsigned_abs);
        let (id, body) = (message_id(self.link.column(row, 0)?), Bytes::copy_from_slice(self.link.column(row, 5)?));
        let sent_at = timestamp(self.link.column(row, 2)?);
        let mut peeked = Peeked::new(id, body, number(1)?, sent_at, self.link.column(row, 10)?);
        let unexplained = Unexplained::from_number(number(4)?);
        peeked.attempts = number(3)?;
        (peeked.expiries, peeked.crashes) = (unexplained.expiries(), unexplained.crashes());
        peeked.headers = decode(self.link.column(row, 6)?);
        peeked.group = text(self.link.column(row, 7)?);
        peeked.reason = text(self.link.column(row, 8)?);
        peeked.errors = settle::decode(self.link.column(row, 9)?);
        Ok(peeked)
    }

    /// Deletes the messages that are there, some with each statement: a large queue takes longer
    /// than a request may.
    pub(crate) async fn purge(&self) -> Result<u64, PortError> {
        let sql = self.sql("SELECT p_after, p_upto, o_gone FROM {s}.queue_purge($1, $2, $3, $4, $5) WHERE {knows}");
        let (mut after, mut upto, mut gone) = (i64::MIN, None::<i64>, 0);
        loop {
            let params: [super::super::link::Param<'_>; 5] = [
                (&self.queue, Type::INT8),
                (&PURGED.0, Type::INT4),
                (&PURGED.1, Type::INT8),
                (&after, Type::INT8),
                (&upto, Type::INT8),
            ];
            let rows = self.link.query(Effect::Write, &sql, &params).await?;
            let Some(row) = rows.first() else { return Ok(gone) };
            let some = self.link.column::<i64>(row, 2)?;
            gone += some.unsigned_abs();
            let Some(last) = self.link.column::<Option<i64>>(row, 0)? else { return Ok(gone) };
            (after, upto) = (last, self.link.column(row, 1)?);
        }
    }
}

/// The sweep of de-duplication ids whose window is over, along with sends and receives: a program
/// that sends by `send_message` sweeps none itself.
///
/// The time up to which they were swept is remembered, as the marks of receivers are. An id that is
/// missed, because its send was slow, stays until another process begins.
#[derive(Default)]
pub(crate) struct Sweep {
    sends: AtomicU64,
    moves: AtomicU64,
    swept: AtomicI64,
    is_running: AtomicBool,
}

/// Number of sends between two sweeps, each of up to 128 ids.
const SWEEP_EVERY: u64 = 32;
/// Number of moves of a receiver's marks between two sweeps, and the statements of each.
const SWEEP_MOVES: (u64, u32) = (16, 64);

impl Sweep {
    /// Sweeps some ids, if it is time to. A failure is left to the next sweep.
    pub(crate) async fn run_if_due(&self, link: &Link) {
        // Counters alone: they publish nothing.
        if self.sends.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY != SWEEP_EVERY - 1 {
            return;
        }
        self.run(link).await;
    }

    /// Counts a move of a receiver's marks, and sweeps in a task of its own if that is due.
    pub(crate) fn moved(self: &Arc<Self>, link: &Arc<Link>) {
        let moves = self.moves.fetch_add(1, Ordering::Relaxed);
        if moves % SWEEP_MOVES.0 != SWEEP_MOVES.0 - 1 || self.is_running.swap(true, Ordering::Relaxed) {
            return;
        }
        let (sweep, link) = (self.clone(), link.clone());
        Spawner::Tokio.spawn(async move {
            for _ in 0..SWEEP_MOVES.1 {
                if !sweep.run(&link).await {
                    break;
                }
            }
            sweep.is_running.store(false, Ordering::Relaxed);
        });
    }

    /// Sweeps some ids; returns `false` if there was none, or the server failed.
    async fn run(&self, link: &Link) -> bool {
        let (sql, from) = (link.sql("SELECT {s}.queue_sweep($1)"), self.swept.load(Ordering::Relaxed));
        let Ok(rows) = link.query(Effect::Read, &sql, &[(&from, Type::INT8)]).await else { return false };
        let swept = rows.first().map(|row| link.column::<Option<i64>>(row, 0));
        let Some(Ok(Some(swept))) = swept else { return false };
        self.swept.fetch_max(swept, Ordering::Relaxed);
        true
    }
}
