//! A plain queue that upholds the contract, with one fault at most.
//!
//! Each operation looks at all messages under one lock. A fault is the mistake of a backend: the
//! comment beside its name says which.
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    port::{Capabilities, Capability, PortError, PortErrorKind},
    queue::{
        Address, AttemptError, Delivery, Depth, ErrorHistory, Message, MessageId, Peeked, Queue, QueueError,
        QueueFuture, Receipt, Receive, Settle,
    },
    time::{Clock, Instant, Timestamp},
};
use tokio::{sync::Notify, task::yield_now};

use super::queue_faults::Fault;

/// Number of messages at which the queue is full.
pub(crate) const BOUND: usize = 1_500;
/// Time for which the queue remembers a de-duplication id.
const WINDOW: Duration = Duration::from_secs(300);
const HOUR: Duration = Duration::from_secs(3_600);
const HALF_MINUTE: Duration = Duration::from_secs(30);

const MAIN: usize = 0;
const DEAD: usize = 1;
const NEIGHBOUR: usize = 2;

/// A handle on the queue, or on its dead letters.
#[derive(Debug, Clone)]
pub(crate) struct NaiveQueue {
    core: Arc<Core>,
    /// `MAIN`, `DEAD` or `NEIGHBOUR`.
    line: usize,
    handle: usize,
}

#[derive(Debug)]
struct Core {
    fault: Fault,
    clock: Clock,
    state: Mutex<State>,
    /// Notified after each change, one for each handle and line.
    changed: [[Notify; 3]; 2],
}

#[derive(Debug, Default)]
struct State {
    lines: [Vec<Row>; 3],
    /// Sent messages by line and de-duplication id.
    sent: BTreeMap<(usize, String), (MessageId, Instant)>,
    /// De-duplication ids in the order of sending.
    sent_order: VecDeque<(usize, String)>,
    last_id: u64,
    last_receipt: [u64; 4],
    /// Groups that a fault forgot to unlock.
    locked: BTreeSet<String>,
    settled: BTreeSet<u64>,
    /// Receives that a fault goes on with after their receivers were dropped.
    servants: Vec<Servant>,
}

#[derive(Debug)]
struct Servant {
    line: usize,
    max: usize,
    visibility: Duration,
    end: Instant,
    taken: Arc<Mutex<Vec<Delivery>>>,
}

#[derive(Debug, Clone)]
struct Row {
    id: u64,
    body: Bytes,
    headers: BTreeMap<String, String>,
    group: Option<String>,
    deduplication_id: Option<String>,
    sent_at: Timestamp,
    accepted: Instant,
    visible_at: Instant,
    deliveries: u32,
    attempts: u32,
    expiries: u32,
    crashes: u32,
    /// `true` if the handling of the delivery was recorded as begun.
    begun: bool,
    /// Number of the delivery that may settle the message; 0 is none.
    receipt: u64,
    /// Handle that received the message last.
    handle: usize,
    reason: Option<String>,
    errors: ErrorHistory,
}

impl NaiveQueue {
    fn id(&self, number: u64) -> MessageId {
        match self.core.fault {
            Fault::ReceiptsAndIdsAreTexts => MessageId::new(format!("message {number}")),
            _ => MessageId::from_numbers(number, 0),
        }
    }
}

const CAN: Capabilities = Capabilities::of(
    "naive",
    &[
        Capability::Shared,
        Capability::Linearizable,
        Capability::Groups,
        Capability::Ordered,
        Capability::Deduplication,
        Capability::Delay,
        Capability::Push,
        Capability::ErrorHistory,
        Capability::Forward,
    ],
)
.deduplicating_for(WINDOW)
.largest_value(4 << 20)
.largest_batch(100)
.largest_key(1024);

impl NaiveQueue {
    /// Creates two handles of an empty queue with this fault.
    pub(crate) fn two_handles(fault: Fault, clock: &Clock) -> (Self, Self) {
        let (clock, state, changed) = (clock.clone(), Mutex::default(), Default::default());
        let core = Arc::new(Core { fault, clock, state, changed });
        let handle = |handle| Self { core: core.clone(), line: MAIN, handle };
        (handle(0), handle(1))
    }

    /// Returns another queue of the same backend.
    pub(crate) fn neighbour(&self) -> Self {
        Self { line: NEIGHBOUR, ..self.clone() }
    }

    fn is(&self, fault: Fault) -> bool {
        self.core.fault == fault
    }

    fn is_dead(&self, fault: Fault) -> bool {
        self.line == DEAD && self.is(fault)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.core.state.lock().unwrap()
    }

    fn can(&self) -> Capabilities {
        match self.core.fault {
            Fault::MessagesComeInAnyOrder => CAN.without(Capability::Ordered),
            Fault::ReceiversPoll => CAN.without(Capability::Push),
            Fault::CapabilitiesAreFew => {
                let few = CAN.without(Capability::Groups).without(Capability::Delay).without(Capability::Deduplication);
                few.without(Capability::Forward).without(Capability::ErrorHistory)
            }
            _ => CAN,
        }
    }

    fn now(&self) -> Instant {
        match self.core.fault {
            Fault::TimeIsThatOfTheWallClock => Instant::from_nanos(self.core.clock.wall().as_millis() * 1_000_000),
            _ => self.core.clock.now(),
        }
    }

    fn rows<'a>(&self, state: &'a mut State) -> &'a mut Vec<Row> {
        &mut state.lines[self.line]
    }

    /// Wakes the receivers that wait at a line.
    fn wake(&self, line: usize) {
        if self.is(Fault::ReceiversPoll) {
            return;
        }
        for (handle, changed) in self.core.changed.iter().enumerate() {
            if handle == self.handle || !self.is(Fault::OtherHandlesAreNotWoken) {
                if self.is(Fault::OneReceiverIsWoken) {
                    changed[line].notify_one();
                } else {
                    changed[line].notify_waiters();
                }
            }
        }
    }

    /// Rounds a duration as some backends do.
    fn hidden_for(&self, visibility: Duration) -> Duration {
        match self.core.fault {
            Fault::VisibilityIsCapped => visibility.min(HALF_MINUTE),
            Fault::VisibilityIsCappedAtADay => visibility.min(HOUR * 24),
            Fault::VisibilityInWholeSeconds => Duration::from_secs(visibility.as_secs() + 1),
            Fault::VisibilityIsFixed => HALF_MINUTE,
            Fault::NeverVisibleAgain => HOUR * 1_000_000,
            Fault::DeadLettersAreNotHidden if self.line == DEAD => Duration::ZERO,
            _ => visibility,
        }
    }

    // Sending.

    fn check(&self, messages: &[Message]) -> Result<(), QueueError> {
        let lax = CAN.largest_value(usize::MAX);
        match self.core.fault {
            Fault::SizesAreNotChecked => Message::check(messages, &lax)?,
            Fault::BatchesAreNotChecked => Message::check(messages, &CAN.largest_batch(usize::MAX))?,
            Fault::EmptyKeysAreAccepted => {
                let mut messages = messages.to_vec();
                for message in &mut messages {
                    message.group.take_if(|group| group.is_empty());
                    message.deduplication_id.take_if(|id| id.is_empty());
                }
                Message::check(&messages, &CAN)?;
            }
            Fault::LongKeysAreAccepted => Message::check(messages, &CAN.largest_key(usize::MAX))?,
            _ => Message::check(messages, &self.can())?,
        }
        Ok(())
    }

    /// Returns the first message with the same de-duplication id.
    fn known(&self, state: &State, message: &Message) -> Option<MessageId> {
        let key = (self.line, self.deduplication_key(message)?);
        let (id, end) = state.sent.get(&key)?;
        (*end > self.now()).then(|| id.clone())
    }

    fn deduplication_key(&self, message: &Message) -> Option<String> {
        let id = message.deduplication_id.clone()?;
        Some(match self.core.fault {
            Fault::IdsIgnoreCase => id.to_lowercase(),
            Fault::IdsAreTrimmed => id.trim().to_owned(),
            Fault::LongIdsAreCut => id.chars().take(255).collect(),
            _ => id,
        })
    }

    fn remember(&self, state: &mut State, message: &Message, id: &MessageId) {
        let Some(text) = self.deduplication_key(message) else { return };
        let window = match self.core.fault {
            Fault::IdsAreRememberedForLonger => WINDOW + WINDOW / 3,
            Fault::IdsAreForgottenAtOnce => Duration::ZERO,
            Fault::IdsAreForgottenEarly => WINDOW / 2,
            Fault::IdsAreForgottenAfterASecond => Duration::from_secs(1),
            Fault::IdsAreKeptForever => HOUR * 1_000_000,
            _ => WINDOW,
        };
        let key = (self.line, text);
        state.sent.insert(key.clone(), (id.clone(), self.now() + window));
        state.sent_order.push_back(key);
        if self.is(Fault::FewIdsAreRemembered) && state.sent_order.len() > 10 {
            let oldest = state.sent_order.pop_front().unwrap();
            state.sent.remove(&oldest);
        }
    }

    /// Adds a message unless it is a duplicate, and returns its id.
    fn add(&self, state: &mut State, message: Message, before: &BTreeSet<String>) -> MessageId {
        let now = self.now();
        let known = self.known(state, &message).filter(|_| {
            // The ids are compared with those of earlier requests.
            !self.is(Fault::DuplicatesWithinARequestAreAccepted)
                || message.deduplication_id.as_ref().is_some_and(|id| before.contains(id))
        });
        if let Some(id) = known {
            match self.core.fault {
                Fault::DuplicatesReplaceTheBody => {
                    if let Some(row) = self.rows(state).iter_mut().find(|row| self.id(row.id) == id) {
                        row.body = message.body;
                    }
                }
                Fault::DuplicatesRenewTheWindow => self.remember(state, &message, &id),
                Fault::DuplicatesGetAnIdOfTheirOwn => {
                    state.last_id += 1;
                    return self.id(state.last_id);
                }
                _ => {}
            }
            return id;
        }
        state.last_id += 1;
        if self.is(Fault::IdsOfMessagesRepeat) {
            state.last_id = state.lines.iter().flatten().map(|row| row.id).max().unwrap_or(0) + 1;
        }
        let id = self.id(state.last_id);
        self.remember(state, &message, &id);
        let delay = match self.core.fault {
            Fault::DelayIsIgnored => Duration::ZERO,
            Fault::DelayIsCapped => message.delay.min(Duration::from_secs(900)),
            _ => message.delay,
        };
        let mut row = Row {
            id: state.last_id,
            body: message.body,
            headers: message.headers,
            group: message.group,
            deduplication_id: message.deduplication_id,
            sent_at: self.core.clock.wall(),
            accepted: now,
            visible_at: now + delay,
            deliveries: 0,
            attempts: 0,
            expiries: 0,
            crashes: 0,
            begun: false,
            receipt: 0,
            handle: 0,
            reason: None,
            errors: ErrorHistory::default(),
        };
        match self.core.fault {
            Fault::BodiesAreCut => row.body.truncate(64 << 10),
            Fault::BodiesAreText => row.body = String::from_utf8_lossy(&row.body).into_owned().into(),
            Fault::HeadersAreLowerCase => {
                row.headers = row.headers.into_iter().map(|(name, value)| (name.to_lowercase(), value)).collect();
            }
            Fault::EmptyHeadersAreDropped => row.headers.retain(|_, value| !value.is_empty()),
            Fault::LongGroupsAreCut => row.group = row.group.map(|group| group.chars().take(255).collect()),
            Fault::GroupsIgnoreCase => row.group = row.group.map(|group| group.to_lowercase()),
            Fault::SentAtIsZero => row.sent_at = Timestamp::from_millis(0),
            Fault::SentAtIsInSeconds => row.sent_at = Timestamp::from_millis(row.sent_at.as_millis() / 1_000),
            Fault::DelayCountsAsADelivery if !delay.is_zero() => row.deliveries = 1,
            _ => {}
        }
        let rows = self.rows(state);
        match self.core.fault {
            Fault::LastInFirstOut => rows.insert(0, row),
            Fault::EmptyBodiesAreDropped if row.body.is_empty() => {}
            Fault::OrderIsOfTextualIds => {
                let at = rows.iter().position(|other| other.id.to_string() > row.id.to_string());
                rows.insert(at.unwrap_or(rows.len()), row);
            }
            _ => rows.push(row),
        }
        id
    }

    async fn send_all(&self, messages: Vec<Message>) -> Result<Vec<MessageId>, QueueError> {
        if self.is(Fault::MessagesAreCheckedOneByOne) {
            let mut ids = Vec::new();
            for message in messages {
                self.check(std::slice::from_ref(&message))?;
                ids.push(self.add(&mut self.state(), message, &BTreeSet::new()));
            }
            return Ok(ids);
        }
        if self.is(Fault::RefusedIdsAreRemembered) {
            let state = &mut *self.state();
            for message in &messages {
                state.last_id += 1;
                let id = self.id(state.last_id);
                if self.known(state, message).is_none() && Message::check(&messages, &CAN).is_err() {
                    self.remember(state, message, &id);
                }
            }
        }
        self.check(&messages)?;
        let before: BTreeSet<String> = self.state().sent.keys().map(|(_, id)| id.clone()).collect();
        if self.is(Fault::MessagesAreSentOneByOne) {
            let mut ids = Vec::new();
            for message in messages {
                ids.push(self.add(&mut self.state(), message, &before));
                self.wake(self.line);
                yield_now().await;
            }
            return Ok(ids);
        }
        let mut ids = Vec::new();
        {
            let state = &mut *self.state();
            let mut new: Vec<&Message> = Vec::new();
            for message in &messages {
                let again = |other: &&Message| {
                    message.deduplication_id.is_some() && other.deduplication_id == message.deduplication_id
                };
                let is_new = self.known(state, message).is_none() && !new.iter().any(again);
                if is_new || self.is(Fault::AFullQueueRefusesDuplicates) {
                    new.push(message);
                }
            }
            let room = BOUND.saturating_sub(state.lines[self.line].len());
            if new.len() > room && !self.is(Fault::AFullQueueIsNotRefused) {
                let kind = match self.core.fault {
                    Fault::AFullQueueIsUnavailable => PortErrorKind::Unavailable,
                    _ => PortErrorKind::Full,
                };
                if self.is(Fault::AFullQueueAcceptsAPart) {
                    messages.into_iter().take(room).for_each(|message| drop(self.add(state, message, &before)));
                }
                return Err(PortError::new(kind, "the queue is full").into());
            }
            for message in messages {
                ids.push(self.add(state, message, &before));
            }
        }
        match self.core.fault {
            Fault::IdsAreReversed => ids.reverse(),
            Fault::IdsAreOfNoMessage => {
                ids.iter_mut().for_each(|id| *id = MessageId::new(format!("sent-{id}")));
            }
            _ => {}
        }
        if !self.is(Fault::NobodyIsWokenBySending) {
            self.wake(self.line);
        }
        Ok(ids)
    }

    // Receiving.

    /// Returns `true` if the message may be received.
    fn is_visible(&self, state: &State, at: usize, now: Instant) -> bool {
        let (rows, row) = (&state.lines[self.line], &state.lines[self.line][at]);
        if row.visible_at > now {
            return false;
        }
        let Some(group) = &row.group else {
            return !self.is(Fault::AGroupBlocksAllMessages)
                || !rows[..at].iter().any(|row| row.group.is_some() && row.visible_at > now);
        };
        let is_ahead = |ahead: &&Row| ahead.group.as_ref() == Some(group);
        let mut ahead = rows[..at].iter().filter(is_ahead);
        match self.core.fault {
            Fault::GroupsAreIgnored => true,
            Fault::GroupsOfDeadLettersAreIgnored if self.line == DEAD => true,
            // The messages ahead that are hidden without a receiver do not count.
            Fault::AnAbandonedMessageFreesItsGroup => ahead.all(|row| row.visible_at > now && row.receipt == 0),
            Fault::ADelayedMessageFreesItsGroup => ahead.all(|row| row.visible_at > now && row.deliveries == 0),
            // Only what is hidden blocks: all visible ones of a group come at once.
            Fault::OnlyHiddenMessagesBlockTheirGroup => ahead.all(|row| row.visible_at <= now),
            Fault::APurgeLeavesGroupsLocked => ahead.next().is_none() && !state.locked.contains(group),
            Fault::AGroupBlocksAllMessages => !rows[..at].iter().any(|row| row.group.is_some()),
            _ => ahead.next().is_none(),
        }
    }

    fn candidates(&self, state: &State, max: usize, now: Instant) -> Vec<usize> {
        let rows = state.lines[self.line].len();
        let looked_at = match self.core.fault {
            Fault::OnlyTheFirstMessagesAreLookedAt => rows.min(20),
            _ => rows,
        };
        let max = match self.core.fault {
            Fault::OneMessageIsReturnedAtATime => max.min(1),
            Fault::MaxIsIgnored => usize::MAX,
            Fault::MaxIsOneMore => max + 1,
            _ => max,
        };
        let visible = |at: &usize| self.is_visible(state, *at, now);
        match self.core.fault {
            Fault::MessagesComeInAnyOrder => (0..looked_at).rev().filter(visible).take(max).collect(),
            _ => (0..looked_at).filter(visible).take(max).collect(),
        }
    }

    fn deliver(&self, state: &mut State, at: usize, until: Instant) -> Delivery {
        state.last_receipt[0] += 1;
        let (line, handle) = (self.line, self.handle);
        let mut next = state.last_receipt[0];
        let row = &mut state.lines[line][at];
        if row.receipt != 0 {
            // The receipt is still valid, so the last delivery expired.
            row.attempts += u32::from(!self.is(Fault::AnExpiryIsFree));
            row.expiries += u32::from(!self.is(Fault::AnExpiryIsNotTold));
            let crashed = row.begun || self.is(Fault::EachExpiryIsACrash);
            row.crashes += u32::from(crashed && !self.is(Fault::ACrashIsNotTold));
            if !self.is(Fault::AMarkIsOfAllLaterDeliveries) {
                row.begun = false;
            }
        }
        row.deliveries += 1;
        match self.core.fault {
            Fault::ReceiptsAreIdsOfMessages => next = row.id,
            Fault::ReceiptsAreCountedByQueue => {
                state.last_receipt[1 + line] += 1;
                next = state.last_receipt[1 + line];
            }
            Fault::DeliveriesAreNotCounted => row.deliveries = 1,
            _ => {}
        }
        let row = &mut state.lines[line][at];
        (row.receipt, row.handle, row.visible_at) = (next, handle, until);
        match self.core.fault {
            Fault::VisibilityFromSending => row.visible_at = row.accepted + (until - self.now()),
            Fault::TheFirstVisibilityStays if row.deliveries > 1 => row.visible_at = row.accepted + HALF_MINUTE,
            Fault::SentAtIsOfTheDelivery => row.sent_at = self.core.clock.wall(),
            Fault::GroupsAreLostOnRedelivery if row.deliveries > 1 => row.group = None,
            Fault::HeadersAreLostOnRedelivery if row.deliveries > 1 => row.headers.clear(),
            _ => {}
        }
        let receipt = match self.core.fault {
            Fault::ReceiptsAreCountedByQueue => Receipt::from_numbers(0, next),
            Fault::ReceiptsAreIdsOfMessages => Receipt::from_numbers(row.id, 0),
            _ => Receipt::from_numbers(row.id, next),
        };
        let receipt = match (self.core.fault, receipt.as_numbers()) {
            (Fault::ReceiptsAndIdsAreTexts, Some((id, next))) => Receipt::new(format!("{line}/{id}/{next}")),
            _ => receipt,
        };
        let mut delivery = Delivery::new(self.id(row.id), receipt, row.body.clone(), row.deliveries, row.sent_at);
        (delivery.attempts, delivery.expiries, delivery.crashes) = (row.attempts, row.expiries, row.crashes);
        delivery.headers.clone_from(&row.headers);
        delivery.group.clone_from(&row.group);
        delivery.reason.clone_from(&row.reason);
        delivery.errors.clone_from(&row.errors);
        delivery.age = match self.core.fault {
            Fault::TheAgeIsZero => Duration::ZERO,
            Fault::TheAgeIsThatOfTheDelivery => until - self.now(),
            Fault::TheAgeIsOfTheWallClock => {
                let passed = self.core.clock.wall().as_millis().saturating_sub(row.sent_at.as_millis());
                Duration::from_millis(passed)
            }
            _ => self.now() - row.accepted,
        };
        match self.core.fault {
            Fault::RedeliveriesHaveAnotherId if row.deliveries > 1 => {
                delivery.id = MessageId::from_numbers(row.id, row.deliveries.into());
            }
            Fault::DeadLettersHaveAnotherId if line == DEAD => delivery.id = MessageId::from_numbers(row.id, 1),
            Fault::DeadLettersLoseTheirReason => delivery.reason = None,
            Fault::ErrorsAreLost => delivery.errors = ErrorHistory::default(),
            _ => {}
        }
        delivery
    }

    /// Delivers the messages that are visible now.
    fn take(&self, max: usize, visibility: Duration) -> Vec<Delivery> {
        let (now, state) = (self.now(), &mut *self.state());
        let until = now + self.hidden_for(visibility);
        let taken = self.candidates(state, max, now);
        taken.into_iter().map(|at| self.deliver(state, at, until)).collect()
    }

    /// Takes messages with a pause between two steps, as two requests to a server.
    async fn take_in_steps(&self, max: usize, visibility: Duration) -> Vec<Delivery> {
        let now = self.now();
        let until = now + self.hidden_for(visibility);
        let chosen: Vec<u64> = {
            let state = &*self.state();
            let blocked: BTreeSet<_> =
                state.lines[self.line].iter().filter(|row| row.visible_at > now).collect_groups();
            match self.core.fault {
                Fault::GroupsAreCheckedBefore => {
                    let free = |row: &&Row| row.group.as_ref().is_none_or(|group| !blocked.contains(group));
                    state.lines[self.line].iter().filter(free).map(|row| row.id).collect()
                }
                _ => self.candidates(state, max, now).into_iter().map(|at| state.lines[self.line][at].id).collect(),
            }
        };
        let mut removed = Vec::new();
        if self.is(Fault::ATakenMessageIsOutOfTheQueueForAMoment) && !chosen.is_empty() {
            let state = &mut *self.state();
            let rows = self.rows(state);
            removed = rows.extract_if(.., |row| chosen.contains(&row.id)).collect();
        }
        if self.is(Fault::ATakenMessageIsHiddenForAnHourAtFirst) {
            let state = &mut *self.state();
            let rows = self.rows(state).iter_mut().filter(|row| chosen.contains(&row.id));
            rows.for_each(|row| row.visible_at = now + HOUR);
        }
        yield_now().await;
        yield_now().await;
        let state = &mut *self.state();
        let rows = self.rows(state);
        rows.append(&mut removed);
        rows.sort_by_key(|row| row.id);
        let mut groups = BTreeSet::new();
        let mut taken = Vec::new();
        for id in chosen {
            let Some(at) = state.lines[self.line].iter().position(|row| row.id == id) else { continue };
            let row = &state.lines[self.line][at];
            if self.is(Fault::GroupsAreCheckedBefore) {
                // Hidden messages are passed over, and the next of their group is taken instead.
                let first = row.group.as_ref().is_none_or(|group| !groups.contains(group));
                if row.visible_at > now || !first || taken.len() == max {
                    continue;
                }
                groups.extend(row.group.clone());
            }
            taken.push(self.deliver(state, at, until));
        }
        taken
    }

    async fn receive_waiting(&self, max: usize, receive: Receive) -> Vec<Delivery> {
        let begun = self.now();
        let wait = match self.core.fault {
            Fault::AWaitEndsEarly => receive.wait / 2,
            Fault::AWaitIsIgnored => Duration::ZERO,
            Fault::AWaitEndsLate => receive.wait * 10,
            _ => receive.wait,
        };
        let mut end = begun + wait;
        if self.is(Fault::AWaitNeverEnds) && !wait.is_zero()
            || self.is(Fault::AWaitOfZeroNeverEnds) && wait.is_zero() && self.state().last_id == 0
        {
            end = Instant::FAR_FUTURE;
        }
        let changed = &self.core.changed[self.handle][self.line];
        loop {
            let changed = changed.notified();
            let now = self.now();
            let visibility = match self.core.fault {
                Fault::VisibilityFromTheStartOfTheWait => (begun + receive.visibility) - now,
                _ => receive.visibility,
            };
            let over = now >= end && now > begun;
            let taken = match self.core.fault {
                Fault::TheLastLookIsMissing if over => Vec::new(),
                Fault::ATakenMessageIsOutOfTheQueueForAMoment
                | Fault::ATakenMessageIsHiddenForAnHourAtFirst
                | Fault::GroupsAreCheckedBefore
                | Fault::TwoReceiversTakeOneMessage => self.take_in_steps(max, visibility).await,
                _ => self.take(max, visibility),
            };
            if !taken.is_empty() || now >= end {
                return taken;
            }
            let returns = self.state().lines[self.line].iter().map(|row| row.visible_at).filter(|at| *at > now).min();
            let returns = match self.core.fault {
                Fault::AWaitMissesWhatComesBack => None,
                Fault::ReceiversPoll => Some(now + Duration::from_secs(1)),
                _ => returns,
            };
            let sleep = self.core.clock.sleep_until(returns.map_or(end, |at| at.min(end)));
            match self.core.fault {
                // A waiting receiver polls seldom, and does not look when its wait is over.
                Fault::TheLastLookIsMissing => self.core.clock.sleep_until(end).await,
                _ => tokio::select! {
                    () = changed => {}
                    () = sleep => {}
                },
            }
        }
    }

    /// Receives by a part of the backend that takes messages for the receiver, and does not notice that it was dropped.
    async fn receive_by_a_servant(&self, max: usize, receive: Receive) -> Vec<Delivery> {
        let end = self.now() + receive.wait;
        let taken = Arc::new(Mutex::new(Vec::new()));
        let visibility = match self.core.fault {
            Fault::AWaitHidesForAnHour | Fault::ADroppedWaitHidesForAnHour => HOUR,
            Fault::ADroppedWaitLosesMessages => HOUR * 1_000_000,
            _ => receive.visibility,
        };
        let servant = Servant { line: self.line, max, visibility, end, taken: taken.clone() };
        self.state().servants.push(servant);
        loop {
            let changed = self.core.changed[self.handle][self.line].notified();
            self.serve();
            let taken = std::mem::take(&mut *taken.lock().unwrap());
            if !taken.is_empty() {
                if !self.is(Fault::AWaitHidesForAnHour) {
                    let until = self.now() + receive.visibility;
                    let mut state = self.state();
                    let rows = state.lines[self.line].iter_mut();
                    let rows = rows.filter(|row| taken.iter().any(|delivery| delivery.id == self.id(row.id)));
                    rows.for_each(|row| row.visible_at = until);
                }
                return taken;
            }
            let now = self.now();
            if now >= end {
                return Vec::new();
            }
            let returns = self.state().lines[self.line].iter().map(|row| row.visible_at).filter(|at| *at > now).min();
            let sleep = self.core.clock.sleep_until(returns.map_or(end, |at| at.min(end)));
            tokio::select! {
                () = changed => {}
                () = sleep => {}
            }
        }
    }

    /// Takes messages for receivers that wait, or waited.
    fn serve(&self) {
        let now = self.now();
        loop {
            let (line, max, visibility, taken) = {
                let mut state = self.state();
                state.servants.retain(|servant| servant.end > now);
                let has_messages = |servant: &&Servant| {
                    let queue = Self { line: servant.line, ..self.clone() };
                    !queue.candidates(&state, 1, now).is_empty()
                };
                let Some(at) = state.servants.iter().position(|servant| has_messages(&servant)) else { return };
                let servant = state.servants.remove(at);
                (servant.line, servant.max, servant.visibility, servant.taken)
            };
            *taken.lock().unwrap() = Self { line, ..self.clone() }.take(max, visibility);
        }
    }

    // Settling.

    /// Returns the line and the place of the message that this receipt may settle.
    fn find(&self, state: &State, receipt: &Receipt) -> Option<(usize, usize)> {
        let (id, number) = match receipt.as_text() {
            Some(text) => {
                let text = text.strip_prefix(&format!("{}/", self.line))?;
                let (id, number) = text.split_once('/')?;
                (id.parse().ok()?, number.parse().ok()?)
            }
            None => receipt.as_numbers()?,
        };
        let now = self.now();
        let fits = |row: &Row| match self.core.fault {
            Fault::ReceiptsAreCountedByQueue => row.receipt == number && number != 0,
            Fault::ReceiptsAreIdsOfMessages => row.id == id && row.receipt != 0,
            Fault::AReceiptOfAnEarlierDeliveryIsValid => row.id == id && row.receipt != 0,
            Fault::LateSettlementsAreRefused => row.id == id && row.receipt == number && row.visible_at > now,
            Fault::AReceiptIsValidAtOneHandle => row.id == id && row.receipt == number && row.handle == self.handle,
            _ => row.id == id && row.receipt == number && number != 0,
        };
        let lines: &[usize] = match self.core.fault {
            Fault::AReceiptOfTheDeadLettersIsValid => &[self.line, DEAD, MAIN],
            _ => &[self.line],
        };
        lines.iter().find_map(|line| Some((*line, state.lines[*line].iter().position(fits)?)))
    }

    fn settle_one(&self, state: &mut State, receipt: &Receipt, how: &Settle) -> Result<(), QueueError> {
        if self.is(Fault::NonsenseIsInvalid) && receipt.as_numbers().is_none() {
            return Err(PortError::invalid("receipt", "must be one of this queue").into());
        }
        let now = self.now();
        let is_letter = matches!(how, Settle::DeadLetter { .. });
        if is_letter && self.line == DEAD {
            if self.is(Fault::ARefusedDeadLetterIsGone)
                && let Some((line, at)) = self.find(state, receipt)
            {
                state.lines[line].remove(at);
            }
            if !self.is(Fault::DeadLettersOfDeadLettersAreAccepted) {
                return Err(PortError::new(PortErrorKind::Unsupported, "a dead letter cannot be one again").into());
            }
        }
        let mut targets = Vec::new();
        if let Settle::Forward { messages } = how {
            self.can().require(Capability::Forward)?;
            targets = self.targets(state, messages)?;
        }
        let Some((line, at)) = self.find(state, receipt) else {
            if self.is(Fault::AStaleReceiptForwards) {
                self.send_to(state, targets);
            }
            return match (self.core.fault, how) {
                (Fault::AStaleReceiptIsAnswered, _) => Ok(()),
                (Fault::AStaleReceiptReleases, Settle::Release { .. }) => Ok(()),
                (Fault::AReceiptMaySettleTwice, _)
                    if state.settled.contains(&receipt.as_numbers().unwrap_or((0, 0)).1) =>
                {
                    Ok(())
                }
                (Fault::AStaleReceiptAddsItsError, Settle::Abandon { error: Some(error), .. }) => {
                    let id = receipt.as_numbers().map(|(id, _)| id);
                    let row = state.lines[self.line].iter_mut().find(|row| Some(row.id) == id);
                    row.into_iter().for_each(|row| row.errors.push((**error).clone()));
                    Err(QueueError::LeaseLost)
                }
                (Fault::AStaleReceiptIsInvalid, _) => {
                    Err(PortError::new(PortErrorKind::Invalid, "no such delivery").into())
                }
                _ => Err(QueueError::LeaseLost),
            };
        };
        state.settled.insert(state.lines[line][at].receipt);
        let expired = state.lines[line][at].visible_at <= now;
        if self.is(Fault::ALateSettlementIsAnsweredOnly) && expired {
            return Ok(());
        }
        match how {
            Settle::Complete => {
                let row = state.lines[line].remove(at);
                if self.is(Fault::IdsAreForgottenWhenCompleted)
                    && let Some(id) = row.deduplication_id
                {
                    state.sent.remove(&(line, id));
                }
            }
            Settle::Abandon { after, error } => self.give_back(state, (line, at), *after, error.as_deref(), true),
            Settle::Release { after } => self.give_back(state, (line, at), *after, None, false),
            Settle::DeadLetter { reason, error } => {
                let mut row = state.lines[line].remove(at);
                if let Some(error) = error.as_deref().filter(|_| !self.is(Fault::TheLastErrorIsLost)) {
                    self.add_error(&mut row, error);
                }
                (row.receipt, row.visible_at, row.reason) = (0, now, Some(reason.clone()));
                row.begun = self.is(Fault::ADeadLetterKeepsTheMark);
                match self.core.fault {
                    Fault::ADeadLetterIsInBothQueues => {
                        let row = Row { visible_at: now, ..row.clone() };
                        state.lines[MAIN].insert(at, row);
                    }
                    Fault::ADeadLetterIsLost => return Ok(()),
                    Fault::ADeadLetterWithAKnownIdIsLost if row.deduplication_id.is_some() => return Ok(()),
                    Fault::DeadLettersStayHidden => row.visible_at = now + Duration::from_secs(10),
                    Fault::DeadLettersForgetTheirCounts => (row.attempts, row.expiries) = (0, 0),
                    Fault::DeadLettersForgetTheirCrashes => row.crashes = 0,
                    Fault::DeadLettersAreNewMessages => row.deliveries = 0,
                    Fault::DeadLettersLoseTheirHeaders => row.headers.clear(),
                    Fault::DeadLettersLoseTheirGroup => row.group = None,
                    Fault::DeadLettersAreCut => row.body.truncate(64 << 10),
                    Fault::TheAgeOfADeadLetterBeginsAnew => row.accepted = now,
                    Fault::SentAtIsOfTheDeadLetter => row.sent_at = self.core.clock.wall(),
                    _ => {}
                }
                match self.core.fault {
                    Fault::GroupsOfDeadLettersAreReversed if row.group.is_some() => state.lines[DEAD].insert(0, row),
                    _ => state.lines[DEAD].push(row),
                }
            }
            Settle::Forward { .. } => {
                if self.is_too_much(state, line, &targets) {
                    match self.core.fault {
                        Fault::AForwardToAFullQueueSendsAPart => {
                            targets.truncate(1);
                            self.send_to(state, targets);
                        }
                        Fault::AForwardToAFullQueueEndsItsMessage => drop(state.lines[line].remove(at)),
                        _ => {}
                    }
                    return Err(PortError::new(PortErrorKind::Full, "a target is full").into());
                }
                if !self.is(Fault::AForwardLeavesItsMessage) {
                    state.lines[line].remove(at);
                }
                if !self.is(Fault::AForwardOnlyCompletes) {
                    self.send_to(state, targets);
                }
            }
            _ => return Err(PortError::new(PortErrorKind::Unsupported, "an unknown settlement").into()),
        }
        Ok(())
    }

    /// Returns the lines of the messages of a forward, if all of them can be sent.
    fn targets(&self, state: &mut State, messages: &[(Address, Message)]) -> Result<Vec<(usize, Message)>, QueueError> {
        if messages.is_empty() && self.is(Fault::AForwardOfNothingIsRefused) {
            return Err(PortError::invalid("messages", "must not be empty").into());
        }
        let mut targets = Vec::new();
        for (address, message) in messages {
            let lines = [MAIN, DEAD, NEIGHBOUR].into_iter();
            let line =
                lines.into_iter().find(|line| Self { line: *line, ..self.clone() }.address().as_ref() == Some(address));
            let line = line.filter(|line| *line != DEAD || !self.is(Fault::DeadLettersAreNoTarget));
            match line {
                Some(line) => targets.push((line, message.clone())),
                None if self.is(Fault::AForwardToAnotherBackendIsDropped) => {}
                None => {
                    if self.is(Fault::AForwardSendsBeforeItChecks) {
                        self.send_to(state, targets);
                    }
                    return Err(address.refuse(&CAN).into());
                }
            }
        }
        let messages: Vec<Message> = targets.iter().map(|(_, message)| message.clone()).collect();
        if !self.is(Fault::ForwardedMessagesAreNotChecked) {
            Message::check(&messages, &CAN)?;
        }
        match self.core.fault {
            Fault::ForwardedMessagesAreReversed => targets.reverse(),
            Fault::ForwardedDuplicatesAreRefused => {
                let known = |(line, message): &(usize, Message)| {
                    Self { line: *line, ..self.clone() }.known(state, message).is_some()
                };
                if targets.iter().any(known) {
                    return Err(PortError::invalid("deduplication_id", "was sent before").into());
                }
            }
            _ => {}
        }
        for (_, message) in &mut targets {
            match self.core.fault {
                Fault::ForwardedMessagesLoseTheirGroup => message.group = None,
                Fault::ForwardedMessagesLoseTheirDelay => message.delay = Duration::ZERO,
                Fault::ForwardedMessagesLoseTheirHeaders => message.headers.clear(),
                Fault::ForwardedDuplicatesAreAccepted => message.deduplication_id = None,
                _ => {}
            }
        }
        Ok(targets)
    }

    /// Returns `true` if a target has no room for its messages of a forward, which ends a message
    /// of `from`.
    fn is_too_much(&self, state: &State, from: usize, messages: &[(usize, Message)]) -> bool {
        let is_full = |line: usize| {
            let (target, mut ids) = (Self { line, ..self.clone() }, BTreeSet::new());
            let new = messages.iter().filter(|(to, message)| {
                let is_first = message.deduplication_id.as_ref().is_none_or(|id| ids.insert(id.clone()));
                *to == line && is_first && target.known(state, message).is_none()
            });
            state.lines[line].len() + new.count()
                > BOUND + usize::from(line == from && !self.is(Fault::AForwardToItsOwnFullQueueIsRefused))
        };
        !self.is(Fault::AForwardIgnoresThatAQueueIsFull) && [MAIN, DEAD, NEIGHBOUR].into_iter().any(is_full)
    }

    /// Sends the messages of a forward.
    fn send_to(&self, state: &mut State, messages: Vec<(usize, Message)>) {
        for (line, message) in messages {
            let target = Self { line, ..self.clone() };
            target.add(state, message, &BTreeSet::new());
            if !self.is(Fault::NobodyIsWokenByAForward) {
                target.wake(line);
            }
        }
    }

    fn add_error(&self, row: &mut Row, error: &AttemptError) {
        if self.is(Fault::CapabilitiesAreFew) {
            return;
        }
        row.errors.push(error.clone());
        if self.is(Fault::TheOldestErrorsAreLost) && row.errors.len() > 10 {
            let latest = row.errors[1..].to_vec();
            row.errors = ErrorHistory::default();
            latest.into_iter().for_each(|error| row.errors.push(error));
        }
        if self.is(Fault::OneErrorIsKept) {
            row.errors = ErrorHistory::default();
            row.errors.push(error.clone());
        }
    }

    /// Ends a delivery without removing its message.
    fn give_back(
        &self,
        state: &mut State,
        (line, at): (usize, usize),
        after: Duration,
        error: Option<&AttemptError>,
        abandons: bool,
    ) {
        let (now, fault) = (self.now(), self.core.fault);
        let row = &mut state.lines[line][at];
        if let Some(error) = error {
            self.add_error(row, error);
        }
        let expired = row.visible_at <= now;
        let counts = if abandons { fault != Fault::AnAbandonIsFree } else { fault == Fault::AReleaseIsAnAttempt };
        if abandons && fault != Fault::AnAbandonKeepsWhatNeverBegan {
            let crashes =
                if fault == Fault::AnAbandonForgetsCrashes { 0 } else { row.crashes + u32::from(row.crashes > 0) };
            row.attempts = row.attempts.saturating_sub(row.expiries.saturating_sub(crashes));
        }
        row.attempts += u32::from(counts);
        if fault != Fault::AReleaseKeepsTheMark {
            row.begun = false;
        }
        if abandons && fault != Fault::AnAbandonKeepsCrashes || fault == Fault::AReleaseEndsCrashes {
            row.crashes = 0;
        }
        if abandons && fault != Fault::AnAbandonKeepsExpiries || fault == Fault::AReleaseEndsExpiries {
            row.expiries = 0;
        }
        match fault {
            Fault::AReleaseTakesBackItsDelivery if !abandons => row.deliveries -= 1,
            Fault::AReleaseClearsErrors if !abandons => row.errors = ErrorHistory::default(),
            Fault::ALateAbandonCountsTwice if expired && abandons => row.attempts += 1,
            _ => {}
        }
        let until = match fault {
            Fault::AnAbandonIgnoresItsDelay if abandons => now,
            Fault::AReleaseIgnoresItsDelay if !abandons => now,
            Fault::ADelayIsAtMostTheVisibility => (now + after).min(row.visible_at),
            Fault::ADelayIsAddedToTheVisibility => row.visible_at + after,
            Fault::AnAbandonWaitsForTheVisibility if after.is_zero() => row.visible_at,
            Fault::ADelayInWholeSeconds => now + Duration::from_secs(after.as_secs()),
            _ => now + after,
        };
        row.visible_at = until;
        if fault != Fault::ASettledReceiptStaysValid {
            row.receipt = 0;
        }
        if fault == Fault::AReturnedMessageIsLastOfItsGroup {
            let row = state.lines[line].remove(at);
            state.lines[line].push(row);
        }
    }

    fn extend_to(&self, receipt: &Receipt, visibility: Duration) -> Result<(), QueueError> {
        if visibility.is_zero() && !self.is(Fault::AZeroExtensionIsAccepted) {
            return Err(PortError::invalid("visibility", "must be longer than zero").into());
        }
        let (now, state) = (self.now(), &mut *self.state());
        let Some((line, at)) = self.find(state, receipt) else {
            let answered = [Fault::AStaleExtensionIsAnswered, Fault::AStaleReceiptIsAnswered];
            return if answered.contains(&self.core.fault) { Ok(()) } else { Err(QueueError::LeaseLost) };
        };
        let row = &mut state.lines[line][at];
        let until = now + self.hidden_for(visibility);
        match self.core.fault {
            Fault::AnExtensionIsAdded => row.visible_at = row.visible_at + visibility,
            Fault::AnExtensionNeverShortens => row.visible_at = row.visible_at.max(until),
            Fault::AnExtensionIsIgnored => {}
            Fault::AnExtensionIsCapped => row.visible_at = now + visibility.min(HALF_MINUTE),
            Fault::AnExtensionNeverLengthens => row.visible_at = row.visible_at.min(until),
            Fault::AnExtensionIsOfTheFirstVisibility => row.visible_at = now + Duration::from_millis(200),
            _ => row.visible_at = until,
        }
        match self.core.fault {
            Fault::AnExtensionCountsAsADelivery => row.deliveries += 1,
            Fault::AnExtensionCountsAsAnAttempt => row.attempts += 1,
            Fault::AnExtensionEndsTheReceipt => {
                state.last_receipt[0] += 1;
                row.receipt = state.last_receipt[0];
            }
            Fault::AnExtensionIsOfAllMessages => {
                state.lines[line].iter_mut().filter(|row| row.visible_at > now).for_each(|row| row.visible_at = until);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Groups of some messages.
trait CollectGroups {
    fn collect_groups(self) -> BTreeSet<String>;
}

impl<'a, I: Iterator<Item = &'a Row>> CollectGroups for I {
    fn collect_groups(self) -> BTreeSet<String> {
        self.filter_map(|row| row.group.clone()).collect()
    }
}

impl Queue for NaiveQueue {
    fn capabilities(&self) -> Capabilities {
        self.can()
    }

    fn identity(&self) -> String {
        let core = format!("{:p}", Arc::as_ptr(&self.core));
        match self.core.fault {
            Fault::EachHandleHasAnIdentity => format!("naive-{core}-{}-{}", self.line, self.handle),
            Fault::TheIdentityIsThatOfTheBackend => format!("naive-{core}-{}", self.line % 2),
            Fault::DeadLettersHaveTheIdentityOfTheQueue => format!("naive-{core}"),
            Fault::TheIdentityIsEmpty => String::new(),
            Fault::TheIdentityIsLong => format!("naive-{core}-{}-{}", self.line, "x".repeat(128)),
            _ => format!("naive-{core}-{}", self.line),
        }
    }

    fn address(&self) -> Option<Address> {
        Some(Address::new(format!("naive {:p} {}", Arc::as_ptr(&self.core), self.line)))
    }

    fn send<'a>(&'a self, messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        Box::pin(async move {
            let sent = self.send_all(messages).await;
            self.serve();
            sent
        })
    }

    fn receive<'a>(&'a self, receive: Receive) -> QueueFuture<'a, Vec<Delivery>> {
        Box::pin(async move {
            if self.is(Fault::MaxAboveTheBatchIsRefused) && receive.max > CAN.max_batch() {
                return Err(PortError::invalid("max", "must be at most 100").into());
            }
            let max = match self.core.fault {
                Fault::InvalidReceivesAreAccepted => receive.max.min(CAN.max_batch()),
                _ => receive.check(&CAN)?,
            };
            Ok(match self.core.fault {
                Fault::ADroppedWaitLosesMessages
                | Fault::ADroppedWaitHidesForAnHour
                | Fault::AWaitHidesForAnHour
                | Fault::ADroppedWaitGoesOn
                    if !receive.wait.is_zero() =>
                {
                    self.receive_by_a_servant(max, receive).await
                }
                _ => {
                    self.serve();
                    self.receive_waiting(max, receive).await
                }
            })
        })
    }

    fn settle<'a>(&'a self, settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>> {
        Box::pin(async move {
            if self.is(Fault::LargeSettlementsAreRefused) && settlements.len() > CAN.max_batch() {
                return Err(PortError::invalid("settlements", "must have at most 100 entries").into());
            }
            if self.is(Fault::ARefusedForwardFailsAll) {
                let state = &mut *self.state();
                for (_, how) in &settlements {
                    if let Settle::Forward { messages } = how {
                        self.targets(state, messages)?;
                    }
                }
            }
            if self.is(Fault::OneStaleReceiptFailsAll) {
                let state = &*self.state();
                if settlements.iter().any(|(receipt, _)| self.find(state, receipt).is_none()) {
                    return Err(QueueError::LeaseLost);
                }
            }
            if self.is(Fault::TwoSettlementsOfOneReceiptSucceed) {
                let valid: Vec<bool> = {
                    let state = &*self.state();
                    settlements.iter().map(|(receipt, _)| self.find(state, receipt).is_some()).collect()
                };
                yield_now().await;
                let state = &mut *self.state();
                let settled = settlements.iter().zip(valid).map(|((receipt, how), valid)| {
                    let settled = self.settle_one(state, receipt, how);
                    if valid { Ok(()) } else { settled }
                });
                return Ok(settled.collect());
            }
            let (mut settled, mut woken) = (Vec::new(), [true, false]);
            for (at, (receipt, how)) in settlements.iter().enumerate() {
                if self.is(Fault::OnlyTheFirstSettlementsAreMade) && at >= 100 {
                    settled.push(Ok(()));
                    continue;
                }
                settled.push(self.settle_one(&mut self.state(), receipt, how));
                woken[DEAD] |= matches!(how, Settle::DeadLetter { .. });
                if matches!(how, Settle::Complete) && self.is(Fault::NobodyIsWokenByAFreedGroup) {
                    woken[MAIN] = false;
                }
            }
            if self.is(Fault::AnswersAreSorted) {
                settled.sort_by_key(Result::is_err);
            }
            match self.core.fault {
                Fault::NobodyIsWokenBySettling => woken = [false; 2],
                Fault::NobodyIsWokenByADeadLetter => woken[DEAD] = false,
                _ => {}
            }
            if woken[MAIN] {
                self.wake(self.line);
            }
            if woken[DEAD] {
                self.wake(DEAD);
            }
            Ok(settled)
        })
    }

    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> QueueFuture<'a, ()> {
        Box::pin(async move {
            let extended = self.extend_to(receipt, visibility);
            if !self.is(Fault::NobodyIsWokenByAnExtension) {
                self.wake(self.line);
            }
            extended
        })
    }

    fn mark_begun<'a>(&'a self, receipt: &'a Receipt, visibility: Duration, begun: bool) -> QueueFuture<'a, ()> {
        Box::pin(async move {
            self.extend_to(receipt, if self.is(Fault::AMarkDoesNotExtend) { HOUR } else { visibility })?;
            let state = &mut *self.state();
            let is_ignored = match begun {
                true => self.is(Fault::AMarkIsIgnored),
                false => self.is(Fault::AMarkIsNeverTakenBack),
            };
            if let (Some((line, at)), false) = (self.find(state, receipt), is_ignored) {
                let row = &mut state.lines[line][at];
                row.begun = begun;
                row.crashes += u32::from(self.is(Fault::AMarkIsACrash));
            }
            self.wake(self.line);
            Ok(())
        })
    }

    fn depth(&self) -> QueueFuture<'_, Depth> {
        Box::pin(async move {
            let (now, state) = (self.now(), &*self.state());
            let (mut visible, mut delayed, mut in_flight) = (0, 0, 0);
            for row in &state.lines[self.line] {
                let is_behind = |ahead: &Row| ahead.group == row.group && ahead.id < row.id;
                let behind = row.group.is_some() && state.lines[self.line].iter().any(is_behind);
                let hidden = match self.core.fault {
                    Fault::DepthCountsTheExpiredAsInFlight => row.visible_at > now || row.receipt != 0,
                    Fault::DepthCountsTheDueAsDelayed => row.visible_at > now || row.visible_at > row.accepted,
                    Fault::DepthCountsReturnedAsVisible => {
                        row.visible_at > now && (row.receipt != 0 || row.deliveries == 0)
                    }
                    _ => row.visible_at > now,
                };
                let was_delivered = match self.core.fault {
                    Fault::DepthCountsDelayedAsInFlight => true,
                    Fault::DepthCountsReturnedAsDelayed => row.receipt != 0,
                    _ => row.deliveries > 0,
                };
                match (hidden, was_delivered) {
                    _ if behind && self.is(Fault::DepthForgetsTheRestOfAGroup) => {}
                    (true, _) if self.is(Fault::DepthForgetsHiddenMessages) => {}
                    (true, true) if !behind => in_flight += 1,
                    (true, false) if !behind => delayed += 1,
                    _ => visible += 1,
                }
            }
            if self.line == MAIN && self.is(Fault::DepthCountsDeadLetters) {
                visible += state.lines[DEAD].len() as u64;
            }
            Ok(Depth::new(visible, delayed, in_flight))
        })
    }

    fn peek(&self, max: usize) -> QueueFuture<'_, Vec<Peeked>> {
        Box::pin(async move {
            let (now, state) = (self.now(), &mut *self.state());
            let fault = self.core.fault;
            let mut rows = state.lines[self.line].clone();
            if fault == Fault::APeekIsOfTheLatest {
                rows.reverse();
            }
            if fault == Fault::APeekOmitsHiddenMessages {
                rows.retain(|row| row.visible_at <= now);
            }
            let max = if fault == Fault::APeekIgnoresItsMaximum { usize::MAX } else { max };
            let peeked = rows.into_iter().take(max).map(|mut row| {
                let hidden = row.visible_at > now;
                match fault {
                    Fault::APeekOmitsHeaders => row.headers.clear(),
                    Fault::APeekOmitsGroups => row.group = None,
                    Fault::APeekOmitsReasons => row.reason = None,
                    Fault::APeekOmitsErrors => row.errors = ErrorHistory::default(),
                    Fault::APeekOmitsSentAt => row.sent_at = Timestamp::from_millis(0),
                    Fault::APeekOmitsCounts => (row.attempts, row.expiries, row.crashes) = (0, 0, 0),
                    Fault::APeekCutsBodies => row.body.truncate(1 << 10),
                    _ => {}
                }
                let hidden = match fault {
                    Fault::APeekShowsAllAsVisible => false,
                    Fault::APeekShowsDelayedAsVisible => hidden && row.deliveries > 0,
                    _ => hidden,
                };
                let mut peeked = Peeked::new(self.id(row.id), row.body.clone(), row.deliveries, row.sent_at, hidden);
                (peeked.attempts, peeked.expiries, peeked.crashes) = (row.attempts, row.expiries, row.crashes);
                (peeked.headers, peeked.group) = (row.headers, row.group);
                (peeked.reason, peeked.errors) = (row.reason, row.errors);
                peeked
            });
            let peeked: Vec<Peeked> = peeked.collect();
            for row in state.lines[self.line].iter_mut().filter(|row| peeked.iter().any(|it| it.id == self.id(row.id)))
            {
                match fault {
                    Fault::APeekHidesMessages => row.visible_at = now + HALF_MINUTE,
                    Fault::APeekIsADelivery => row.deliveries += 1,
                    _ => {}
                }
            }
            Ok(peeked)
        })
    }

    fn purge(&self) -> QueueFuture<'_, u64> {
        Box::pin(async move {
            let (now, state) = (self.now(), &mut *self.state());
            let line = match self.core.fault {
                Fault::APurgeOfDeadLettersPurgesTheQueue => MAIN,
                _ => self.line,
            };
            let fault = self.core.fault;
            let stays = |row: &Row| match fault {
                Fault::APurgeLeavesDeliveredMessages => row.visible_at > now && row.deliveries > 0,
                Fault::APurgeLeavesDelayedMessages => row.visible_at > now && row.deliveries == 0,
                Fault::APurgeDoesNothing => true,
                _ => false,
            };
            let before = state.lines[line].len() as u64;
            let visible = state.lines[line].iter().filter(|row| row.visible_at <= now).count() as u64;
            let locked = state.lines[line].iter().filter(|row| row.visible_at > now).collect_groups();
            state.lines[line].retain(stays);
            let gone = before - state.lines[line].len() as u64;
            state.locked.extend(locked);
            if fault == Fault::APurgeForgetsIds {
                state.sent.clear();
            }
            if fault == Fault::APurgeDeletesDeadLetters {
                state.lines[DEAD].clear();
            }
            if fault == Fault::APurgeCountsVisibleMessages {
                return Ok(visible);
            }
            Ok(gone)
        })
    }

    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        let offered = self.line != DEAD || self.is_dead(Fault::DeadLettersHaveDeadLetters);
        offered.then(|| Arc::new(Self { line: DEAD, ..self.clone() }) as Arc<dyn Queue>)
    }
}
