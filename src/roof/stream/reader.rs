//! The reading side of a partition.
//!
//! Rows are never changed, so those that were read serve the next reads: a reader that follows a
//! partition causes one request for each page. A trim removes them, and so does a restore from a
//! backup. So the last row that is known is read again with each page: if it is another one, or
//! gone, all of them are read anew.
use std::{collections::VecDeque, ops::Bound, pin::pin, time::Duration};

use super::{
    Position, Read, Recorded,
    append::unanswered,
    store_topic::{ATTEMPT, Partition, StoreTopicInner},
    stored::{self, StoredEvents},
};
use crate::{
    port::{PortError, ask},
    race::race,
    store::{Continuation, Row, Scan, Store},
    time::Instant,
};

/// Number of bytes of a row that may come with each look for a page behind it, also in vain.
const SMALL: usize = 4 << 10;
/// Time after which a larger one is read again although no page is there.
const COMPARES: Duration = Duration::from_secs(60);

/// Rows of a partition without holes between them, as they were read last.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// When the last row is to be read again.
    compare_at: Option<Instant>,
    /// The row with which the last page began, for a reader that compares its last event.
    before: Option<StoredEvents>,
    rows: VecDeque<StoredEvents>,
    /// Events in a row, as of the last page.
    events_per_row: usize,
}

/// Bytes of rows that a window keeps for the next read, at most, behind the first row.
const KEPT: usize = 1 << 20;
/// Most rows in a page.
const PAGE: usize = 64;
/// First and longest delay between two polls of a waiting read; the latter with a notifier, too.
const POLLS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

impl Window {
    /// Returns the events from this offset on that it has, at most `max`.
    fn events(&mut self, partition: u16, from: u64, max: usize) -> Result<Vec<Recorded>, PortError> {
        let mut taken = Vec::new();
        let mut next = from;
        for row in self.before.iter_mut().chain(&mut self.rows) {
            // Rows behind `before` may have been dropped.
            if row.end() <= from || row.first > next {
                continue;
            }
            next = row.end();
            let found = row.events(from, max - taken.len())?;
            let at = |offset| Position::new(partition, offset);
            taken.extend(found.into_iter().map(|(offset, event)| Recorded::new(at(offset), event)));
            if taken.len() == max {
                break;
            }
        }
        Ok(taken)
    }

    /// Returns the last row, if the next one begins with this offset.
    fn last_before(&self, offset: u64) -> Option<StoredEvents> {
        self.rows.back().filter(|last| last.end() == offset).cloned()
    }

    /// Replaces the rows by those of a page, and what was before it.
    fn fill(&mut self, before: Option<StoredEvents>, rows: VecDeque<StoredEvents>) {
        let events: u64 = rows.iter().map(|row| row.count).sum();
        self.events_per_row = usize::try_from(events).unwrap_or(usize::MAX) / rows.len().max(1);
        (self.before, self.rows) = (before, rows);
    }

    /// Drops the rows behind those that a read of events before `until` needs, as far as they are
    /// large.
    fn shrink(&mut self, until: u64) {
        // The last row read is kept in any case: it tells where the next one begins.
        while self.rows.len() > 1 && self.rows.front().is_some_and(|row| row.end() < until) {
            self.rows.pop_front();
        }
        let mut size = 0;
        let fitting = self.rows.iter().take_while(|row| {
            size += row.size;
            size <= KEPT
        });
        let kept = fitting.count().max(1);
        self.rows.truncate(kept);
    }

    /// Returns the number of rows with so many events, by experience.
    const fn rows_for(&self, events: usize) -> usize {
        let rows = if self.events_per_row == 0 { PAGE } else { events.div_ceil(self.events_per_row) };
        if rows > PAGE { PAGE } else { rows }
    }
}

impl Partition {
    /// Forgets the rows that were read, after a trim or a restore.
    pub(super) fn forget_rows(&self) {
        let mut window = self.window.lock();
        window.before = None;
        window.rows.clear();
    }

    /// Keeps the rows of a page, and returns the events that are asked for.
    fn keep(
        &self,
        (partition, read): (u16, &Read),
        before: Option<StoredEvents>,
        rows: VecDeque<StoredEvents>,
    ) -> Result<Vec<Recorded>, PortError> {
        let Some(first) = rows.front().map(|row| row.first) else { return Ok(Vec::new()) };
        let mut window = self.window.lock();
        window.fill(before, rows);
        let events = window.events(partition, read.from.max(first), read.max)?;
        window.shrink(events.last().map_or(0, |last| last.position.offset + 1));
        Ok(events)
    }
}

impl StoreTopicInner {
    pub(super) async fn read(&self, partition: u16, read: Read) -> Result<Vec<Recorded>, PortError> {
        read.check()?;
        let part = self.part(partition)?;
        let (until, mut pause) = (self.clock.now() + read.wait, POLLS.0);
        loop {
            // Listens before it reads: an append behind the read wakes it.
            let mut changed = pin!(part.changed.notified());
            changed.as_mut().enable();
            let events = self.read_now(part, partition, &read).await?;
            let now = self.clock.now();
            if !events.is_empty() || now >= until {
                return Ok(events);
            }
            let next_poll = until.min(now + pause);
            pause = (pause * 2).min(POLLS.1);
            let polls = async { self.clock.sleep_until(next_poll).await };
            race(changed, race(polls, self.hear())).await;
        }
    }

    /// Returns the events that there are.
    async fn read_now(&self, part: &Partition, partition: u16, read: &Read) -> Result<Vec<Recorded>, PortError> {
        let (found, last, limit) = {
            let mut window = part.window.lock();
            let found = window.events(partition, read.from, read.max)?;
            (found, window.last_before(read.from), window.rows_for(read.max))
        };
        if !found.is_empty() {
            return Ok(found);
        }
        if let Some(last) = last {
            match self.rows_behind(part, &last, limit).await? {
                Some(rows) => return part.keep((partition, read), Some(last), rows),
                None => part.forget_rows(),
            }
        }
        let mut is_row_start = read.from == 1;
        loop {
            let rows = if is_row_start {
                self.rows_from(part, read.from, limit).await?.0
            } else {
                match self.row_with(part, read.from).await? {
                    Some(row) => VecDeque::from([row]),
                    None => self.rows_from(part, read.from, limit).await?.0,
                }
            };
            let Some(first) = rows.front().map(|row| row.first) else { return Ok(Vec::new()) };
            // A row that begins behind `from`: the events before it are trimmed, or `from` lies within a row
            // that was appended since.
            if first > read.from && self.row_with(part, first - 1).await?.is_some() {
                is_row_start = false;
                continue;
            }
            return part.keep((partition, read), None, rows);
        }
    }

    /// Returns the rows behind this one. `None` if it is another one, or gone, or if the store has
    /// returned it alone, although more follow.
    async fn rows_behind(
        &self,
        part: &Partition,
        last: &StoredEvents,
        limit: usize,
    ) -> Result<Option<VecDeque<StoredEvents>>, PortError> {
        let is_same =
            |row: &StoredEvents| (row.first, row.count, row.request) == (last.first, last.count, last.request);
        let now = self.clock.now();
        if last.size > SMALL && part.window.lock().compare_at.is_some_and(|at| now < at) {
            let rows = self.rows_from(part, last.end(), limit).await?.0;
            // Behind that read, so that no row of a log that was restored in between passes.
            let is_there = rows.is_empty() || self.rows_from(part, last.first, 1).await?.0.front().is_some_and(is_same);
            return Ok(is_there.then_some(rows));
        }
        part.window.lock().compare_at = Some(now + COMPARES);
        let (mut rows, has_more) = self.rows_from(part, last.first, limit.max(1) + 1).await?;
        let is_there = rows.pop_front().is_some_and(|row| is_same(&row));
        Ok((is_there && !(rows.is_empty() && has_more)).then_some(rows))
    }

    /// Returns the row that has this offset.
    async fn row_with(&self, part: &Partition, offset: u64) -> Result<Option<StoredEvents>, PortError> {
        let range = (Bound::Included(stored::events_row(0)), Bound::Included(stored::events_row(offset)));
        let scan = Scan::partition(&part.name).range(range.0, range.1).descending().limit(1);
        let Some(row) = self.scan_some(scan).await?.0.pop() else { return Ok(None) };
        let row = StoredEvents::open(&row.row, row.value)?;
        Ok((row.end() > offset).then_some(row))
    }

    /// Returns rows that begin with this offset or behind it, without holes between them, and
    /// `true` if more may follow.
    async fn rows_from(
        &self,
        part: &Partition,
        offset: u64,
        limit: usize,
    ) -> Result<(VecDeque<StoredEvents>, bool), PortError> {
        let range = (Bound::Included(stored::events_row(offset)), Bound::Included(stored::events_row(u64::MAX)));
        let scan = Scan::partition(&part.name).range(range.0, range.1).limit(limit.max(1));
        let mut rows: VecDeque<StoredEvents> = VecDeque::new();
        let (page, next) = self.scan_some(scan).await?;
        for row in page {
            let row = StoredEvents::open(&row.row, row.value)?;
            // A page is one snapshot: a hole within it is damage.
            if rows.back().is_some_and(|before| before.end() != row.first) {
                return Err(stored::damaged(&stored::events_row(row.first)));
            }
            rows.push_back(row);
        }
        Ok((rows, next.is_some()))
    }

    /// Returns the first page that has rows.
    pub(super) async fn scan_some(&self, mut scan: Scan) -> Result<(Vec<Row>, Option<Continuation>), PortError> {
        loop {
            let page = ask(&self.clock, ATTEMPT, self.store.scan(&scan)).await.map_err(unanswered)?;
            match page.next {
                Some(next) if page.rows.is_empty() => scan = scan.after(next),
                next => return Ok((page.rows, next)),
            }
        }
    }
}
