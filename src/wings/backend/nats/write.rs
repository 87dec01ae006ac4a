//! Writes of the store: one message, or an atomic batch of several.
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use async_nats::{HeaderMap, header::NATS_MESSAGE_TTL};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use tokio::sync::MutexGuard;

use super::{
    api::{EXPECTED, EXPECTED_OF},
    batch::Draft,
    names::Place,
    snapshot::Most,
    store::{DELETED, FENCE, Head, LIFE, NUMBER, NatsStore, REMAINS, version_of},
};
use crate::{
    hash::stable_hash,
    port::{FencingToken, PortError, PortErrorKind, within},
    store::{Precondition, Rows, Scan, Sequence, StoreError, Version, Write},
    time::{Instant, nanos},
};

/// Number of rows that are read at once.
const AT_ONCE: usize = 64;
/// First pause after two conflicts in a row; the later ones are longer.
const PAUSE: Duration = Duration::from_millis(1);
/// A life that is longer has no end.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The effect of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    Put(Version),
    /// `true` if there was a record.
    Deleted(bool),
    Checked,
}

/// The messages of places.
type Heads = BTreeMap<Place, Option<Head>>;

/// The number that the last message of a subject must have; without a subject, of the message's
/// own.
type Expectation = (Option<String>, u64);

/// A write as messages.
#[derive(Default)]
struct Plan {
    messages: Vec<(Draft, Option<Expectation>)>,
    /// Requirements on subjects that the batch does not write.
    checks: Vec<(String, u64)>,
    /// The effects of the writes; the versions of puts are filled in with the answer.
    done: Vec<Done>,
    /// Places of messages whose numbers are versions, with the write, and whether they have a life.
    versions: Vec<(usize, usize, bool)>,
    /// Last numbers of the sequences to which the batch appends.
    lasts: BTreeMap<String, u64>,
    /// Sequences of which the batch puts a row of their form, although they have not begun.
    touched: BTreeSet<String>,
}

impl Plan {
    fn push(&mut self, subject: String, headers: HeaderMap, payload: Bytes, expects: Option<Expectation>) {
        self.messages.push((Draft { subject, headers, payload }, expects));
    }
}

impl NatsStore {
    /// Carries out writes to one partition, all or none. `is_single` if it is the only one, whose
    /// delete tells whether there was a record.
    pub(super) async fn commit(
        &self,
        partition: &str,
        writes: &[Write],
        is_single: bool,
    ) -> Result<Vec<Done>, StoreError> {
        let base = self.core.link.base();
        let until = base.clock.now() + base.config.request_timeout;
        let mut pause = PAUSE;
        let mut is_careful = false;
        let _turn = self.turn(partition, writes, until).await;
        loop {
            // A future on the heap: those of all cases in one would be some kilobytes on the stack.
            if let Some(done) = Box::pin(self.attempt(partition, writes, is_single, is_careful)).await? {
                return Ok(done);
            }
            if base.clock.now() >= until {
                let message = "the same rows are written all the time: ask again";
                return Err(self.core.link.failure(PortErrorKind::Throttled, message).into());
            }
            if is_careful {
                base.clock.sleep(Duration::from_nanos(base.entropy.up_to(nanos(pause)))).await;
                pause = (pause * 2).min(Duration::from_millis(10));
            }
            // Most requirements are compared by the server alone, or with an answer that it would
            // confirm. Only a conflict has to be looked at.
            is_careful = true;
        }
    }

    /// Waits for the turn of a batch that appends. Without it the batch only conflicts more.
    async fn turn(&self, partition: &str, writes: &[Write], until: Instant) -> Option<MutexGuard<'_, ()>> {
        writes.iter().find(|write| matches!(write, Write::Append { .. }))?;
        let turns = &self.core.turns;
        let turn = &turns[(stable_hash(partition.as_bytes()) % turns.len() as u64) as usize];
        let clock = &self.core.link.base().clock;
        within(clock, until - clock.now(), turn.lock()).await
    }

    /// Returns `None` if another write was faster, or if that cannot be told without care: rows are
    /// then read in any case, and their reads are confirmed.
    async fn attempt(
        &self,
        partition: &str,
        writes: &[Write],
        is_single: bool,
        is_careful: bool,
    ) -> Result<Option<Vec<Done>>, StoreError> {
        let is_sure = is_careful || !self.confirms;
        let confirm = is_careful && self.confirms;
        let needs = self.needs(partition, writes, is_single, is_careful);
        let heads = Box::pin(self.heads(partition, needs, confirm)).await?;
        let mut plan = Plan::default();
        for (i, write) in writes.iter().enumerate() {
            let added = match write {
                Write::Append { sequence, value, after } => {
                    Box::pin(self.append(&mut plan, &heads, partition, (sequence, value, *after), confirm)).await
                }
                _ => self.add(&mut plan, &heads, partition, write, is_single).map(Some),
            };
            match added {
                Ok(Some(())) => {}
                Ok(None) => return Ok(None),
                Err(StoreError::Failed(error)) if error.kind() != PortErrorKind::Invalid => return Err(error.into()),
                Err(error) if is_sure => return Err(error.of_write(i)),
                // The answer may be of a leader that was replaced, and does not know.
                Err(_) => return Ok(None),
            }
        }
        self.finish(&mut plan, &heads, partition);
        if plan.messages.is_empty() {
            return Ok(is_sure.then_some(plan.done));
        }
        Box::pin(self.send(plan)).await
    }

    /// Returns the places whose messages must be known.
    fn needs(&self, partition: &str, writes: &[Write], is_single: bool, is_careful: bool) -> Vec<Place> {
        let names = &self.core.names;
        let mut needs = BTreeSet::new();
        for write in writes {
            let Some(row) = write.row() else {
                if let Write::Append { sequence, .. } = write {
                    needs.insert(names.sequence(partition, sequence));
                }
                continue;
            };
            let of = Sequence::of_row(row).filter(|_| self.batches());
            let is_put = matches!(write, Write::Put { .. });
            let tells = is_single && matches!(write, Write::Delete { .. });
            let is_compared = match write.when() {
                Precondition::Any => false,
                Precondition::Absent => is_careful,
                // A message's number alone tells neither the end of its life, nor its place in a
                // sequence.
                Precondition::Version(version) => is_careful || of.is_some() || !is_plain(version),
            };
            if write.fence().is_some() || is_compared || (tells && write.when() == Precondition::Any) {
                needs.insert(names.record(partition, row));
            }
            if let Some(of) = of.filter(|_| is_put) {
                needs.insert(names.record(partition, row));
                needs.insert(names.sequence(partition, of.as_str()));
            }
        }
        needs.into_iter().collect()
    }

    async fn heads(&self, partition: &str, needs: Vec<Place>, confirm: bool) -> Result<Heads, StoreError> {
        // Any server answers the one request for all, so that it has to be confirmed in a cluster.
        if needs.len() > 1 && self.snapshots() && (confirm || self.core.stream.replicas == 1) {
            let subjects = needs.iter().map(Place::subject).collect();
            if let Some(mut found) = self.snapshot(partition, subjects, Most::default(), confirm).await? {
                let head = |place: Place| (found.remove(&place.subject()), place);
                return Ok(needs.into_iter().map(head).map(|(head, place)| (place, head)).collect());
            }
        }
        let found = needs.into_iter().map(|place| self.head_of(place, confirm));
        let mut found = stream::iter(found.collect::<Vec<_>>()).buffered(AT_ONCE);
        let mut heads = Heads::new();
        while let Some(head) = found.next().await {
            heads.extend([head?]);
        }
        Ok(heads)
    }

    async fn head_of(&self, place: Place, confirm: bool) -> Result<(Place, Option<Head>), PortError> {
        let head = self.read(&place, confirm).await?;
        Ok((place, head))
    }

    /// Adds a put, a delete or a check.
    fn add(
        &self,
        plan: &mut Plan,
        heads: &Heads,
        partition: &str,
        write: &Write,
        is_single: bool,
    ) -> Result<(), StoreError> {
        let row = write.row().unwrap_or_default();
        let record = self.core.names.record(partition, row);
        let (when, token) = (write.when(), write.fence().map(FencingToken::as_u64));
        let known = heads.get(&record).map(Option::as_ref);
        let current = known.flatten().and_then(Head::version);
        let seen = known.flatten().and_then(|head| head.fence);
        let expects = match known {
            Some(head) => {
                if let (Some(token), Some(seen)) = (token, seen)
                    && token < seen
                {
                    return Err(StoreError::Fenced { write: 0, highest: FencingToken::new(seen) });
                }
                when.check(current)?;
                Some(head.map_or(0, |head| head.number))
            }
            // Without a token the number alone decides: the server compares. 0 means that there is
            // no message.
            None => match when {
                Precondition::Any => None,
                Precondition::Absent => Some(0),
                Precondition::Version(version) => Some(version.as_u64() / 2),
            },
        };
        let fence = token.or(seen);
        let mut headers = HeaderMap::new();
        if let Some(fence) = fence {
            headers.insert(FENCE, fence.to_string().as_str());
        }
        let subject = record.subject();
        let own = expects.map(|number| (None, number));
        match write {
            Write::Put { value, options, .. } => {
                if let Some(of) = Sequence::of_row(row).filter(|_| self.batches()) {
                    let has_begun = heads.get(&self.core.names.sequence(partition, of.as_str()));
                    match has_begun.is_some_and(Option::is_some) {
                        true if current.is_none() => return Err(of.refuse_put(row)),
                        true => {}
                        false => drop(plan.touched.insert(of.as_str().to_owned())),
                    }
                }
                let life = options.ttl.filter(|ttl| *ttl < LONGEST);
                if let Some(life) = life {
                    headers.insert(LIFE, nanos(life).to_string().as_str());
                    // The fence goes with its message, which therefore stays.
                    if fence.is_none() {
                        expire(&mut headers, life + REMAINS);
                    }
                }
                plan.versions.push((plan.done.len(), plan.messages.len(), life.is_some()));
                plan.done.push(Done::Put(Version::new(0)));
                plan.push(subject, headers, value.clone(), own);
            }
            Write::Delete { .. } => {
                plan.done.push(Done::Deleted(current.is_some() || known.is_none()));
                let changes = current.is_some() || fence != seen || known.is_none();
                if changes || !is_single {
                    headers.insert(DELETED, "1");
                    if fence.is_none() && self.lives() {
                        expire(&mut headers, REMAINS);
                    }
                    plan.push(subject, headers, Bytes::new(), own);
                }
            }
            _ => {
                plan.done.push(Done::Checked);
                plan.checks.push((subject, expects.unwrap_or_default()));
            }
        }
        Ok(())
    }

    /// Adds an append. `None` if the rows of a sequence that has not begun cannot be told.
    async fn append(
        &self,
        plan: &mut Plan,
        heads: &Heads,
        partition: &str,
        (name, value, after): (&str, &Bytes, Option<u64>),
        confirm: bool,
    ) -> Result<Option<()>, StoreError> {
        let sequence = Sequence::new(name);
        let last = match plan.lasts.get(name) {
            Some(last) => *last,
            None => match heads.get(&self.core.names.sequence(partition, name)) {
                Some(Some(head)) => head.last().ok_or_else(|| self.unexpected())?,
                _ => 0,
            },
        };
        let number = sequence.next(last, after)?;
        if last == 0 {
            let touched = self.core.names.touched(partition, name);
            let before = self.read(&touched, confirm).await?;
            let Some(row) = self.row_of(partition, sequence).await? else { return Ok(None) };
            if let Some(row) = row {
                // An append that was faster creates the head together with its rows.
                let head = self.read(&self.core.names.sequence(partition, name), confirm).await?;
                return if head.is_some() { Ok(None) } else { Err(sequence.refuse_first(&row)) };
            }
            plan.checks.push((touched.subject(), before.map_or(0, |head| head.number)));
        }
        plan.lasts.insert(name.to_owned(), number);
        let mut headers = HeaderMap::new();
        headers.insert(NUMBER, number.to_string().as_str());
        let subject = self.core.names.record(partition, &sequence.row(number)).subject();
        plan.done.push(Done::Put(Version::new(number)));
        // Only appends create rows of a sequence that has begun.
        plan.push(subject, headers, value.clone(), None);
        Ok(Some(()))
    }

    /// Returns a row of the form of a sequence that has not begun. The outer `None` means that the
    /// partition was changed meanwhile.
    async fn row_of(&self, partition: &str, sequence: Sequence<'_>) -> Result<Option<Option<String>>, StoreError> {
        use std::ops::Bound::Included;
        let (lowest, highest) = sequence.bounds();
        let mut scan = Scan::partition(partition);
        scan.rows = Rows::Range(Included(lowest), Included(highest));
        let Some(rows) = self.rows(&scan).await? else { return Ok(None) };
        Ok(Some(rows.into_keys().find(|row| Sequence::of_row(row) == Some(sequence))))
    }

    /// Adds the heads of sequences, the marks of those that must not begin meanwhile, and the
    /// carriers of checks for which no other message has room.
    fn finish(&self, plan: &mut Plan, heads: &Heads, partition: &str) {
        let names = &self.core.names;
        for (name, last) in std::mem::take(&mut plan.lasts) {
            let head = names.sequence(partition, &name);
            let before = heads.get(&head).and_then(Option::as_ref).map_or(0, |head| head.number);
            plan.push(head.subject(), HeaderMap::new(), last.to_string().into(), Some((None, before)));
        }
        for name in std::mem::take(&mut plan.touched) {
            let has_not_begun = (Some(names.sequence(partition, &name).subject()), 0);
            let subject = names.touched(partition, &name).subject();
            plan.push(subject, self.passing(), Bytes::new(), Some(has_not_begun));
        }
        let mut checks = std::mem::take(&mut plan.checks).into_iter().map(|(subject, number)| (Some(subject), number));
        for (_, expects) in &mut plan.messages {
            if expects.is_none() {
                *expects = checks.next();
            }
        }
        for check in checks {
            plan.push(names.carrier(partition), self.passing(), Bytes::new(), Some(check));
        }
    }

    /// Returns the headers of a message that nobody needs after a while.
    pub(super) fn passing(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if self.lives() {
            expire(&mut headers, REMAINS);
        }
        headers
    }

    /// Stores the messages of a plan. `None` if an expectation was wrong.
    async fn send(&self, plan: Plan) -> Result<Option<Vec<Done>>, StoreError> {
        let link = &self.core.link;
        let with_expectation = |(mut draft, expects): (Draft, Option<Expectation>)| {
            if let Some((of, number)) = expects {
                draft.headers.insert(EXPECTED, number.to_string().as_str());
                if let Some(of) = of {
                    draft.headers.insert(EXPECTED_OF, of.as_str());
                }
            }
            draft
        };
        let mut messages: Vec<Draft> = plan.messages.into_iter().map(with_expectation).collect();
        let count = messages.len() as u64;
        let is_mark =
            messages.iter().all(|draft| draft.headers.get(DELETED).is_some() && draft.headers.get(FENCE).is_none());
        let stored = match messages.len() {
            1 => {
                let Draft { subject, headers, payload } = messages.remove(0);
                link.store(subject, (!headers.is_empty()).then_some(headers), payload).await?
            }
            _ => link.store_batch(&messages).await?,
        };
        let last = match stored {
            Ok(last) => last,
            Err(error) if error.is_conflict() => return Ok(None),
            Err(error) => return Err(link.rejected("the records cannot be written", &error).into()),
        };
        if is_mark && !self.lives() {
            self.note_mark(last);
        }
        let mut done = plan.done;
        for (write, message, lives) in plan.versions {
            done[write] = Done::Put(version_of(last + 1 - count + message as u64, lives));
        }
        Ok(Some(done))
    }
}

/// Returns `true` if the version is the number of a message whose record has no life.
const fn is_plain(version: Version) -> bool {
    version.as_u64() > 1 && version.as_u64().is_multiple_of(2)
}

/// Lets the server remove a message after this time, in whole seconds.
fn expire(headers: &mut HeaderMap, after: Duration) {
    let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
    headers.insert(NATS_MESSAGE_TTL, seconds.to_string().as_str());
}
