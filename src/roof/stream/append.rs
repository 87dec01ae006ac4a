//! The writing side of a partition: appends and trims, each by one batch that replaces the head.
//!
//! The head is replaced by version only, so batches take effect one after the other, and each one
//! appends exactly behind the one before. An append whose reply is lost sends the same batch again.
//! It then gets a conflict if it was applied, and finds its own number in the head, or in the row
//! that it would have written. Writers that lose to others take turns ([`Turn`]).
use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
    time::Duration,
};

use super::{
    Appended, Bounds, Event,
    append_request::Request,
    store_topic::{ATTEMPT, Partition, StoreTopicInner, failed},
    stored::{self, Head, RequestId, StoredEvents, Ticket},
    turns::{Step, Tickets, Turn},
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
    until: Instant,
    delays: Backoff,
}

/// A writer of a partition while it appends or trims.
struct Writer<'a> {
    part: &'a Partition,
    turn: Turn,
    /// It is that of the handle, and returns to it.
    is_of_handle: bool,
}

impl Deref for Writer<'_> {
    type Target = Turn;

    fn deref(&self) -> &Turn {
        &self.turn
    }
}

impl DerefMut for Writer<'_> {
    fn deref_mut(&mut self) -> &mut Turn {
        &mut self.turn
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if self.is_of_handle {
            *self.part.turn.lock() = Some(self.turn.clone());
        }
    }
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
            until: self.clock.now() + PATIENCE,
            delays: Backoff::checked(BackoffConfig::default().between(DELAYS.0, DELAYS.1), &self.entropy),
        };
        let known = *part.head.lock();
        let mut behind = match known {
            Some(known) => at(Some(known)),
            None => at(self.read_head(part).await?),
        };
        let mut writer = self.writer(part);
        let mut begun = self.clock.now();
        writer.begin(begun);
        while !request.is_empty() {
            // While the outcome of a batch is unknown, only the same batch behind the same head tells it.
            if attempt.unknown.is_none() && writer.must_wait() {
                behind = at(self.wait_for_turn(&mut writer, behind.0.next, attempt.until).await?);
                begun = self.clock.now();
            }
            let (head, version) = behind;
            let mut of_turn = 0;
            let writes_of_turn = |next| {
                // An earlier copy of the batch may still be on its way: that comes first.
                let writes = if attempt.unknown.is_some() { Vec::new() } else { writer.writes(next, self.has_ttl()) };
                of_turn = writes.len();
                writes
            };
            let (after, writes) = request.writes((&head, version), attempt.request, self.window, writes_of_turn);
            let (rows, written) = (writes.len() - request.id_rows().len(), writes.len());
            let answered = ask(&self.clock, ATTEMPT, self.store.batch(&part.name, writes)).await;
            let now = self.clock.now();
            writer.took(now - begun);
            begun = now;
            let error = match answered {
                Ok(done) => {
                    let version = done.first().copied().flatten().filter(|_| done.len() == written);
                    part.remember(after, version.ok_or_else(|| stored::damaged(stored::HEAD))?);
                    if attempt.unknown.is_none() {
                        writer.appended();
                    }
                    writer.end(now);
                    return Ok(request.answers(partition, head.next));
                }
                Err(AskError::Failed(StoreError::Failed(error))) => error,
                Err(AskError::TimedOut) => {
                    PortError::new(PortErrorKind::TimedOut, "stream: the store did not answer in time")
                        .outcome_unknown()
                }
                Err(AskError::Failed(StoreError::Conflict { write: 0, .. })) => {
                    writer.lost();
                    part.forget_head(version);
                    if attempt.unknown.is_none() && writer.must_wait() {
                        self.compete(attempt.until)?;
                        continue;
                    }
                    let now = self.read_on(part, &mut attempt).await?;
                    begun = self.clock.now();
                    if let Some(answers) = self.find_own(part, &head, now.as_ref(), &mut attempt).await? {
                        return Ok(answers);
                    }
                    // Another append has taken the place: this one was not applied, and never will be.
                    (attempt.unknown, behind) = (None, at(now));
                    attempt.sent.clear();
                    self.compete(attempt.until)?;
                    continue;
                }
                // Others wait, or have begun to wait since this writer looked.
                Err(AskError::Failed(StoreError::Conflict { write, .. })) if write <= of_turn => {
                    writer.refused();
                    self.compete(attempt.until)?;
                    continue;
                }
                Err(AskError::Failed(StoreError::Conflict { write, .. })) if write >= rows => {
                    let accepted = self.read_ids(part, request.id_rows()).await?;
                    // An id that was just forgotten is no duplicate: try again.
                    if request.exclude(&accepted) {
                        attempt.request = self.request_id();
                    }
                    self.compete(attempt.until)?;
                    continue;
                }
                Err(AskError::Failed(other)) => return Err(failed(other)),
            };
            // The same batch again: one of the two at most is applied.
            if attempt.sent.last().is_none_or(|(sent, _)| *sent != attempt.request) {
                attempt.sent.push((attempt.request, request.answers(partition, head.next)));
            }
            writer.is_uncertain();
            self.after_failure(&mut attempt, error).await?;
            begun = self.clock.now();
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

    /// Gives up after the time for which a writer competes with others.
    fn compete(&self, until: Instant) -> Result<(), PortError> {
        if self.clock.now() < until {
            return Ok(());
        }
        let message = "stream: other writers were faster all the time; nothing was written";
        Err(PortError::new(PortErrorKind::Throttled, message))
    }

    /// Returns the writer of an append: that of the handle, unless another append has it.
    fn writer<'a>(&self, part: &'a Partition) -> Writer<'a> {
        let of_handle = part.turn.lock().take();
        let is_of_handle = of_handle.is_some();
        let turn = of_handle.unwrap_or_else(|| Turn::new(self.entropy.next_u64()));
        Writer { part, turn, is_of_handle }
    }

    fn has_ttl(&self) -> bool {
        self.store.capabilities().has(Capability::TimeToLive)
    }

    /// Waits until the writer has its turn, and returns the head as of that moment. `place` is the
    /// offset behind which it wanted to append.
    async fn wait_for_turn(
        &self,
        writer: &mut Writer<'_>,
        place: u64,
        until: Instant,
    ) -> Result<Option<(Head, Version)>, PortError> {
        let part = writer.part;
        let mut step = if writer.wants_ticket() { Step::Join } else { Step::Wait(Duration::ZERO) };
        loop {
            self.compete(until)?;
            match step {
                Step::Append => {}
                // The next look shows whether it was applied.
                Step::Join => {
                    let _ = ask(&self.clock, ATTEMPT, self.store.batch(&part.name, writer.join(place, self.has_ttl())))
                        .await;
                    writer.joined();
                }
                Step::Wait(pause) if pause.is_zero() => {}
                Step::Wait(pause) => self.clock.sleep(pause).await,
                Step::Skip(id, version) => {
                    let skip = vec![Write::delete(stored::ticket_row(id), Precondition::Version(version))];
                    let _ = ask(&self.clock, ATTEMPT, self.store.batch(&part.name, skip)).await;
                }
            }
            let begun = self.clock.now();
            let (head, tickets) = self.look(part).await?;
            let now = self.clock.now();
            writer.took(now - begun);
            step = writer.turn.look(&tickets, head.map(|(_, version)| version), now);
            match step {
                Step::Append => return Ok(head),
                // Its ticket was not put, or others have skipped it.
                Step::Join => self.clock.sleep(DELAYS.0).await,
                Step::Wait(_) | Step::Skip(..) => {}
            }
        }
    }

    /// Reads the head and the tickets.
    async fn look(&self, part: &Partition) -> Result<(Option<(Head, Version)>, Tickets), PortError> {
        let (from, to) = stored::head_and_tickets();
        let mut scan = Scan::partition(&part.name).range(from, to);
        let (mut head, mut tickets) = (None, Tickets::default());
        loop {
            let (rows, next) = self.scan_some(scan.clone()).await?;
            for row in rows {
                match &*row.row {
                    stored::HEAD => head = Some((Head::decode(row.value)?, row.version)),
                    stored::FLAG => tickets.flag = Some(row.version),
                    name => tickets.all.extend(Ticket::decode(name, row.value).map(|ticket| (ticket, row.version))),
                }
            }
            let Some(next) = next else { break };
            scan = scan.after(next);
        }
        if let Some((head, version)) = head {
            part.remember(head, version);
        }
        Ok((head, tickets))
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
        // Appends that meet it are other writers.
        let turn = Turn::new(self.entropy.next_u64());
        let mut writer = Writer { part, turn, is_of_handle: false };
        let (mut place, mut until) = (1, self.clock.now() + PATIENCE);
        loop {
            let found = if writer.must_wait() {
                self.wait_for_turn(&mut writer, place, until).await?
            } else {
                self.read_head(part).await?
            };
            let Some((head, version)) = found else { return Ok(deleted) };
            place = head.next;
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
            let of_it = 1 + writes.len();
            writes.insert(0, Write::put(stored::HEAD, after.encode(), Precondition::Version(version)));
            if !writer.is_free() {
                writes.extend(writer.writes(place, self.has_ttl()));
            }
            match ask(&self.clock, ATTEMPT, self.store.batch(&part.name, writes)).await {
                Ok(done) => {
                    until = self.clock.now() + PATIENCE;
                    writer.appended();
                    part.forget_rows();
                    if let Some(version) = done.first().copied().flatten() {
                        part.remember(after, version);
                    }
                    deleted += first - head.first;
                }
                // An append came first.
                Err(AskError::Failed(StoreError::Conflict { write: 0, .. })) => {
                    writer.lost();
                    self.compete(until)?;
                }
                // Others have begun to wait.
                Err(AskError::Failed(StoreError::Conflict { write, .. })) if write >= of_it => writer.refused(),
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
            let mut events = StoredEvents::open(&row.row, row.value)?;
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
    /// Forgets a head that was refused: of a partition that was restored, the one that is read now
    /// is older.
    fn forget_head(&self, refused: Option<Version>) {
        self.head.lock().take_if(|(_, version)| Some(*version) == refused);
    }

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
