//! The writing side of a partition: appends and trims, each by one batch that replaces the head.
//!
//! The head is replaced by version only, so batches take effect one after the other, and each one
//! appends exactly behind the one before. An append whose reply is lost sends the same batch again.
//! It then gets a conflict if it was applied, and finds its own number in the head, or in the row
//! that it would have written.
use std::{collections::BTreeMap, time::Duration};

use super::{
    Appended, Bounds, Event,
    request::Request,
    store_topic::{ATTEMPT, Partition, StoreTopicInner, failed},
    stored::{self, Head, RequestId, StoredEvents},
};
use crate::{
    backoff::{Backoff, BackoffConfig},
    port::{AskError, Capability, ErrorClass, PortError, PortErrorKind, ask},
    store::{Key, Precondition, PutOptions, Scan, Store, StoreError, Version, Write},
    time::Instant,
};

/// Time for which an append tries to learn its outcome after a lost reply, and competes with other
/// writers.
const PATIENCE: Duration = Duration::from_secs(15);

/// Delays between attempts.
const DELAYS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Number of conflicts in a row behind which a writer waits for a moment.
const CONFLICTS: u32 = 2;

/// Rows that one batch of a trim deletes at most: their events are read.
const TRIMMED_ROWS: usize = 16;

/// An append under way.
struct Attempt {
    request: RequestId,
    /// The first failure with an unknown outcome, behind the current head.
    unknown: Option<PortError>,
    /// The requests with an unknown outcome, and their answers if they were applied. One of them at
    /// most is: all require the same head.
    sent: Vec<(RequestId, Vec<Appended>)>,
    conflicts: u32,
    until: Instant,
    delays: Backoff,
}

impl StoreTopicInner {
    pub(super) async fn append(&self, partition: u16, events: Vec<Event>) -> Result<Vec<Appended>, PortError> {
        let part = self.part(partition)?;
        Event::check(&events, &self.can)?;
        if events.iter().any(|event| event.id.is_some()) {
            self.can.require(Capability::Deduplication)?;
        }
        let Some(mut request) = Request::new(events, &self.store.capabilities()) else {
            return Err(PortError::invalid("events", "must be smaller together, or come in several requests"));
        };
        let mut attempt = Attempt {
            request: self.request_id(),
            unknown: None,
            sent: Vec::new(),
            conflicts: 0,
            until: self.clock.now() + PATIENCE,
            delays: Backoff::checked(BackoffConfig::default().between(DELAYS.0, DELAYS.1), &self.entropy),
        };
        let known = *part.head.lock();
        let mut behind = match known {
            Some(known) => at(Some(known)),
            None => at(self.read_head(part).await?),
        };
        while !request.is_empty() {
            let (head, version) = behind;
            let (after, writes) = request.writes((&head, version), attempt.request, self.window);
            let (rows, written) = (writes.len() - request.id_rows().len(), writes.len());
            let error = match ask(&self.clock, ATTEMPT, self.store.batch(&part.name, writes)).await {
                Ok(done) => {
                    let version = done.first().copied().flatten().filter(|_| done.len() == written);
                    part.remember(after, version.ok_or_else(|| stored::damaged(stored::HEAD))?);
                    return Ok(request.answers(partition, head.next));
                }
                Err(AskError::Failed(StoreError::Failed(error))) => error,
                Err(AskError::TimedOut) => {
                    PortError::new(PortErrorKind::TimedOut, "stream: the store did not answer in time")
                        .outcome_unknown()
                }
                Err(AskError::Failed(StoreError::Conflict { write: 0, .. })) => {
                    let now = self.read_on(part, &mut attempt).await?;
                    if let Some(answers) = self.find_own(part, &head, now.as_ref(), &mut attempt).await? {
                        return Ok(answers);
                    }
                    // Another append has taken the place: this one was not applied, and never will be.
                    (attempt.unknown, behind) = (None, at(now));
                    attempt.sent.clear();
                    self.compete(&mut attempt).await?;
                    continue;
                }
                Err(AskError::Failed(StoreError::Conflict { write, .. })) if write >= rows => {
                    let accepted = self.read_ids(part, request.id_rows()).await?;
                    // An id that was just forgotten is no duplicate: try again.
                    if request.exclude(&accepted) {
                        attempt.request = self.request_id();
                    }
                    self.compete(&mut attempt).await?;
                    continue;
                }
                Err(AskError::Failed(other)) => return Err(failed(other)),
            };
            // The same batch again: one of the two at most is applied.
            if attempt.sent.last().is_none_or(|(sent, _)| *sent != attempt.request) {
                attempt.sent.push((attempt.request, request.answers(partition, head.next)));
            }
            self.after_failure(&mut attempt, error).await?;
        }
        Ok(request.answers(partition, 0))
    }

    /// Waits before the next attempt after a failure, if its outcome must be learned.
    async fn after_failure(&self, attempt: &mut Attempt, error: PortError) -> Result<(), PortError> {
        if attempt.unknown.is_none() && !error.may_have_been_applied() {
            return Err(error);
        }
        let is_over = self.clock.now() >= attempt.until || error.class() == ErrorClass::Permanent;
        let first = attempt.unknown.get_or_insert(error);
        if is_over {
            return Err(first.clone());
        }
        self.clock.sleep(attempt.delays.next().unwrap_or(DELAYS.1)).await;
        Ok(())
    }

    /// Waits for a moment after several conflicts in a row.
    async fn compete(&self, attempt: &mut Attempt) -> Result<(), PortError> {
        attempt.conflicts += 1;
        if attempt.conflicts <= CONFLICTS {
            return Ok(());
        }
        if self.clock.now() >= attempt.until {
            let message = "stream: other writers were faster all the time; nothing was appended";
            return Err(PortError::new(PortErrorKind::Throttled, message));
        }
        let pause = self.entropy.up_to(DELAYS.0.as_micros() as u64);
        self.clock.sleep(Duration::from_micros(pause)).await;
        Ok(())
    }

    /// Returns the head, also if the store fails for a while and the outcome of an attempt is
    /// unknown.
    async fn read_on(&self, part: &Partition, attempt: &mut Attempt) -> Result<Option<(Head, Version)>, PortError> {
        loop {
            match self.read_head(part).await {
                Ok(head) => return Ok(head),
                Err(error) if attempt.unknown.is_none() => return Err(error),
                Err(error) => self.after_failure(attempt, error.outcome_unknown()).await?,
            }
        }
    }

    /// Returns the answers of an attempt with an unknown outcome, if it was applied behind
    /// `before`.
    async fn find_own(
        &self,
        part: &Partition,
        before: &Head,
        now: Option<&(Head, Version)>,
        attempt: &mut Attempt,
    ) -> Result<Option<Vec<Appended>>, PortError> {
        let (Some(unknown), Some((now, _))) = (attempt.unknown.clone(), now) else { return Ok(None) };
        let applied = if now.appended_at == before.next {
            now.request
        } else if now.next == before.next {
            // Only a trim has replaced the head.
            return Ok(None);
        } else {
            // Others have appended since: the row behind the old head tells whose it is.
            let row = stored::events_row(before.next);
            let found = loop {
                match self.get(part, &row).await {
                    Ok(found) => break found,
                    Err(error) => self.after_failure(attempt, error.outcome_unknown()).await?,
                }
            };
            match found {
                Some((value, _)) => StoredEvents::open(&row, value)?.request,
                // It was trimmed since: nothing tells.
                None => return Err(unknown),
            }
        };
        let own = attempt.sent.iter().position(|(request, _)| *request == applied);
        Ok(own.map(|own| attempt.sent.swap_remove(own).1))
    }

    fn request_id(&self) -> RequestId {
        (self.entropy.next_u64(), self.entropy.next_u64())
    }

    /// Returns the offsets of the ids that are remembered, by row.
    async fn read_ids(&self, part: &Partition, rows: Vec<String>) -> Result<BTreeMap<String, u64>, PortError> {
        let scan = Scan::partition(&part.name).named(rows);
        let page = ask(&self.clock, ATTEMPT, self.store.scan(&scan)).await.map_err(unanswered)?;
        let mut offsets = BTreeMap::new();
        for row in page.rows {
            offsets.insert(row.row.clone(), stored::decode_offset(&row.row, row.value)?);
        }
        Ok(offsets)
    }

    async fn get(&self, part: &Partition, row: &str) -> Result<Option<(bytes::Bytes, Version)>, PortError> {
        let read = ask(&self.clock, ATTEMPT, self.store.get(Key::new(&part.name, row))).await;
        Ok(read.map_err(unanswered)?.map(|record| (record.value, record.version)))
    }

    /// Reads the head, `None` before the first append.
    pub(super) async fn read_head(&self, part: &Partition) -> Result<Option<(Head, Version)>, PortError> {
        let Some((value, version)) = self.get(part, stored::HEAD).await? else { return Ok(None) };
        let head = Head::decode(value)?;
        part.remember(head, version);
        Ok(Some((head, version)))
    }

    pub(super) async fn bounds(&self, partition: u16) -> Result<Bounds, PortError> {
        let head = self.read_head(self.part(partition)?).await?.map_or(Head::NEW, |(head, _)| head);
        Ok(Bounds::new(head.first, head.next))
    }

    pub(super) async fn trim(&self, partition: u16, before: u64) -> Result<u64, PortError> {
        let part = self.part(partition)?;
        let mut deleted = 0;
        loop {
            let Some((head, version)) = self.read_head(part).await? else { return Ok(deleted) };
            let before = before.min(head.next);
            if before <= head.first {
                return Ok(deleted);
            }
            let (first, mut writes) = self.rows_below(part, &head, before).await?;
            if writes.is_empty() {
                // A concurrent trim has deleted them.
                let is_same = self.read_head(part).await?.is_some_and(|(_, now)| now == version);
                if is_same {
                    return Err(stored::damaged(&stored::events_row(head.first)));
                }
                continue;
            }
            let after = Head { first, ..head };
            writes.insert(0, Write::put(stored::HEAD, after.encode(), Precondition::Version(version)));
            match ask(&self.clock, ATTEMPT, self.store.batch(&part.name, writes)).await {
                Ok(done) => {
                    part.forget_rows();
                    if let Some(version) = done.first().copied().flatten() {
                        part.remember(after, version);
                    }
                    deleted += first - head.first;
                }
                // An append came first.
                Err(AskError::Failed(StoreError::Conflict { write: 0, .. })) => {}
                Err(error) => return Err(unanswered(error)),
            }
        }
    }

    /// Returns the writes that delete the next events below `before`, and the first offset that is
    /// left. There are none if the rows do not begin with the head's first offset. A row with
    /// events on both sides is replaced by one with the rest.
    async fn rows_below(&self, part: &Partition, head: &Head, before: u64) -> Result<(u64, Vec<Write>), PortError> {
        use std::ops::Bound::{Excluded, Included};
        let range = (Included(stored::events_row(head.first)), Excluded(stored::events_row(before)));
        let scan = Scan::partition(&part.name).range(range.0, range.1).limit(TRIMMED_ROWS.min(self.can.max_batch()));
        let (rows, _) = self.scan_some(scan).await?;
        let (mut first, mut writes) = (head.first, Vec::new());
        for row in rows {
            let events = StoredEvents::open(&row.row, row.value)?;
            if events.first != first {
                break;
            }
            writes.push(Write::delete(row.row, Precondition::Version(row.version)));
            first = events.end().min(before);
            if events.end() > before {
                let rest = events.events(before, usize::MAX)?;
                let rest: Vec<&Event> = rest.iter().map(|(_, event)| event).collect();
                let value = stored::encode_events(events.request, &rest);
                writes.push(Write::put(stored::events_row(before), value, PutOptions::from(Precondition::Absent)));
            }
        }
        Ok((first, writes))
    }
}

/// Returns the head behind which to append, and its version if it exists.
fn at(known: Option<(Head, Version)>) -> (Head, Option<Version>) {
    known.map_or((Head::NEW, None), |(head, version)| (head, Some(version)))
}

impl Partition {
    /// Remembers a head, unless a newer one is known.
    fn remember(&self, head: Head, version: Version) {
        let mut known = self.head.lock();
        if known.is_none_or(|(known, _)| (known.next, known.first) <= (head.next, head.first)) {
            *known = Some((head, version));
        }
    }
}

/// Returns the failure of a request without a precondition that could fail.
pub(super) fn unanswered(error: AskError<StoreError>) -> PortError {
    failed(error.or_timed_out("stream: the store did not answer in time"))
}
