//! Turns of writers that compete for the head of a partition. Knows no store.
//!
//! A writer that is alone replaces the head again and again, each time with one request. Another
//! one needs two, a read and a write, and would lose to it for ever. Therefore a writer that has
//! lost puts a *ticket* and a *flag* into the partition, by a write that requires nothing and so
//! cannot lose. Each append of a writer without a turn requires that there is no flag.
//!
//! | state | its append | afterwards |
//! |---|---|---|
//! | `Free`: no other writer is known | requires that there is no flag | `Free`; `Wanted` if it lost |
//! | `Wanted` | none: it puts its ticket and the flag | `Queued` |
//! | `Queued`: its ticket is there | none: it looks at all tickets until its own is the first | `Holds`; `Wanted` if its ticket is gone |
//! | `Holds`, and more is to come | requires nothing; the last one of a turn puts its ticket behind all others | `Holds`, then `Queued` |
//! | `Holds`, and no more is to come | deletes its ticket | `Free` |
//! | `Holds`, and no other ticket is there | deletes its ticket, and the flag that it has seen | `Free` |
//!
//! The place of a ticket is the offset behind which its writer first wanted to append, so the
//! writer that has waited longest is the first. A ticket whose writer does not append within four
//! times the time that its requests take, on the observer's own clock, is deleted by the others:
//! its process may be dead. Tickets order the writers only. A head is replaced by version in any
//! case, so writers that know no tickets, and turns that two writers take for theirs, cost a
//! conflict.
use std::time::Duration;

use super::stored::{self, Ticket};
use crate::{
    store::{Precondition, PutOptions, Version, Write},
    time::Instant,
};

/// Most writes of a turn in one batch.
pub(super) const WRITES: usize = 2;

/// Number of conflicts in a row behind which a writer wants a turn. A writer whose requests take
/// longer than [`BUSY`] wants one at once.
const CONFLICTS: u32 = 2;

/// Longest pause between two appends of a writer that keeps its turn meanwhile.
const BUSY: Duration = Duration::from_millis(10);

/// Appends of all writers in one round. Each has the same number in its turn, and one at least.
const ROUND: u32 = 32;

/// Time within which the appends of a turn are to end.
const TURN: Duration = Duration::from_millis(100);

/// Shortest and longest time for which a first ticket is waited for.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(400));

/// Shortest time for which it is waited for between two appends of its turn.
const BETWEEN: Duration = Duration::from_millis(25);

/// Shortest and longest pause between two looks at the tickets.
const LOOKS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Time after which the store deletes tickets and flags that were not renewed, if it can.
const LIFE: Duration = Duration::from_secs(10);

/// The tickets of a partition, as of one moment.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Tickets {
    pub(super) flag: Option<Version>,
    /// In any order.
    pub(super) all: Vec<(Ticket, Version)>,
}

/// The state of a writer, by the table above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Wanted,
    Queued,
    Holds {
        /// Appends that are left, this one included.
        left: u32,
        /// The flag, if there is no other ticket.
        alone: Option<Option<Version>>,
    },
}

/// The next step of a writer that is not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It has its turn.
    Append,
    /// It puts its ticket.
    Join,
    /// It looks again after this time.
    Wait(Duration),
    /// It deletes a ticket that was waited for long enough.
    Skip(u64, Version),
}

/// The first ticket and the head, as a waiting writer last saw them.
#[derive(Debug, Clone, Copy)]
struct Seen {
    id: u64,
    version: Version,
    head: Option<Version>,
    /// Both are the same since then.
    since: Instant,
    /// The head has moved while it was the first.
    has_appended: bool,
}

/// One writer of a partition.
#[derive(Debug, Clone)]
pub(super) struct Turn {
    id: u64,
    state: State,
    /// Its last append ended a moment ago, so that another one is expected behind this one.
    is_busy: bool,
    conflicts: u32,
    ended: Option<Instant>,
    /// Time that its requests take.
    takes: Duration,
    first: Option<Seen>,
    /// Number of tickets that it skipped since the head last changed.
    skipped: u32,
}

impl Turn {
    pub(super) const fn new(id: u64) -> Self {
        let (state, takes) = (State::Free, Duration::ZERO);
        Self { id, state, is_busy: false, conflicts: 0, ended: None, takes, first: None, skipped: 0 }
    }

    /// Begins an append.
    pub(super) fn begin(&mut self, now: Instant) {
        let is_soon = |ended| now.saturating_since(ended) <= self.takes.clamp(LOOKS.0, BUSY);
        self.is_busy = self.ended.take().is_some_and(is_soon);
        self.conflicts = 0;
        self.state = match self.state {
            // Others may have taken its ticket for that of a dead process.
            State::Holds { .. } if !self.is_busy => State::Queued,
            State::Wanted => State::Free,
            state => state,
        };
    }

    /// Notes the time that a request took. One that was slow by chance does not count as all.
    pub(super) fn took(&mut self, time: Duration) {
        self.takes = if self.takes.is_zero() { time } else { (self.takes * 7 + time) / 8 };
    }

    /// Returns `true` if the writer must wait for its turn.
    pub(super) const fn must_wait(&self) -> bool {
        matches!(self.state, State::Wanted | State::Queued)
    }

    /// Returns `true` if no other writer is known.
    pub(super) const fn is_free(&self) -> bool {
        matches!(self.state, State::Free)
    }

    /// Returns `true` if the ticket is to be put.
    pub(super) const fn wants_ticket(&self) -> bool {
        matches!(self.state, State::Wanted)
    }

    /// Notes that an append was refused because another writer has replaced the head.
    pub(super) fn lost(&mut self) {
        self.conflicts += 1;
        self.state = match self.state {
            State::Free if self.takes > BUSY || self.conflicts >= CONFLICTS => State::Wanted,
            State::Holds { .. } => State::Queued,
            state => state,
        };
    }

    /// Notes that an append was refused because other writers wait.
    pub(super) fn refused(&mut self) {
        self.state = if self.state == State::Free { State::Wanted } else { State::Queued };
    }

    /// Returns the writes that put its ticket.
    pub(super) fn join(&self, place: u64, has_ttl: bool) -> Vec<Write> {
        let mut options = PutOptions::new();
        options.ttl = has_ttl.then_some(LIFE);
        let ticket = Ticket { id: self.id, place, takes: self.takes };
        let flag = Write::put(stored::FLAG, stored::encode_flag(), options);
        vec![flag, Write::put(stored::ticket_row(self.id), ticket.encode(), options)]
    }

    /// Notes that its ticket was put.
    pub(super) fn joined(&mut self) {
        self.state = State::Queued;
    }

    /// Returns the next step after a look at the tickets and the head.
    pub(super) fn look(&mut self, tickets: &Tickets, head: Option<Version>, now: Instant) -> Step {
        let order = |ticket: &Ticket| (ticket.place, ticket.id);
        let Some(own) = tickets.all.iter().map(|(ticket, _)| ticket).find(|ticket| ticket.id == self.id) else {
            self.state = State::Wanted;
            return Step::Join;
        };
        let before = tickets.all.iter().filter(|(ticket, _)| order(ticket) < order(own));
        let ahead = before.clone().count() as u32;
        let Some((first, version)) = before.min_by_key(|(ticket, _)| order(ticket)) else {
            let writers = tickets.all.len() as u32;
            let alone = (writers == 1).then_some(tickets.flag);
            // The slowest one has as many in its turn.
            let takes = tickets.all.iter().map(|(ticket, _)| ticket.takes.as_micros()).max().unwrap_or(0);
            let fit = u32::try_from(TURN.as_micros() / takes.max(1)).unwrap_or(u32::MAX);
            let left = (ROUND / writers).min(fit).max(1);
            self.state = State::Holds { left, alone };
            self.first = None;
            return Step::Append;
        };
        let seen = match self.first {
            Some(seen) if (seen.id, seen.version) == (first.id, *version) => {
                let has_moved = seen.head != head;
                let since = if has_moved { now } else { seen.since };
                Seen { head, since, has_appended: seen.has_appended || has_moved, ..seen }
            }
            _ => Seen { id: first.id, version: *version, head, since: now, has_appended: false },
        };
        if self.first.is_none_or(|before| before.head != head) {
            self.skipped = 0;
        }
        self.first = Some(seen);
        let waited = now.saturating_since(seen.since);
        let patience = if seen.has_appended {
            (first.takes.min(PATIENCE.1) * 4).clamp(BETWEEN, PATIENCE.1)
        } else {
            // Processes that die together are not waited for one after the other.
            (first.takes.min(PATIENCE.1) * 4).clamp(PATIENCE.0, PATIENCE.1) / (1 << self.skipped.min(2))
        };
        if waited >= patience {
            self.skipped += 1;
            return Step::Skip(first.id, *version);
        }
        let look = (self.takes / 2).clamp(LOOKS.0, LOOKS.1);
        // The writers before the next one have whole turns.
        Step::Wait((look * (2 * ahead - 1)).min(LOOKS.1).min(patience - waited))
    }

    /// Returns the writes that go with an append behind the head; `next` is the offset behind it.
    pub(super) fn writes(&self, next: u64, has_ttl: bool) -> Vec<Write> {
        let State::Holds { left, alone } = self.state else {
            return vec![Write::Check { row: stored::FLAG.to_owned(), when: Precondition::Absent }];
        };
        let ticket = || Write::delete(stored::ticket_row(self.id), Precondition::Any);
        match alone {
            Some(Some(flag)) => vec![Write::delete(stored::FLAG, Precondition::Version(flag)), ticket()],
            Some(None) => vec![ticket()],
            None if !self.is_busy => vec![ticket()],
            None if left == 1 => self.join(next, has_ttl),
            None => Vec::new(),
        }
    }

    /// Notes that an append was applied, with its [`writes`](Self::writes).
    pub(super) fn appended(&mut self) {
        self.state = match self.state {
            State::Holds { alone: Some(_), .. } => State::Free,
            State::Holds { .. } if !self.is_busy => State::Free,
            State::Holds { left: 1, .. } => State::Queued,
            State::Holds { left, alone } => State::Holds { left: left - 1, alone },
            state => state,
        };
    }

    /// Notes that the outcome of an append was unknown for a while: its ticket may be there or not.
    pub(super) fn is_uncertain(&mut self) {
        if matches!(self.state, State::Holds { .. }) {
            self.state = State::Queued;
        }
    }

    /// Ends an append.
    pub(super) fn end(&mut self, now: Instant) {
        self.ended = Some(now);
    }
}
