//! A plain topic in memory, with one fault at a time.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use steadfast::{
    port::{Capabilities, Capability, PortError, PortFuture},
    stream::{Appended, Bounds, Event, Position, Read, Recorded, Topic},
    testing::conformance::{Fixture, topic},
    time::{Clock, Instant},
};
use tokio::sync::Notify;

use super::assert_each_fault_is_found;

/// The faults, and the case that finds each.
const FAULTS: &[(Fault, &str)] = {
    use Fault::*;
    &[
        (PositionsBeginAtZero, "positions_begin_at_one_and_have_no_hole"),
        (EachRequestLeavesAHole, "positions_begin_at_one_and_have_no_hole"),
        (HandlesCountAlone, "positions_begin_at_one_and_have_no_hole"),
        (RequestsAreReversed, "a_request_has_consecutive_positions_in_its_order"),
        (AnswersAreReversed, "a_request_has_consecutive_positions_in_its_order"),
        (PartitionsAreOne, "partitions_are_apart"),
        (PartitionsAreCountedModuloTwo, "partitions_are_apart"),
        (EmptyRequestsTakeAPosition, "an_empty_request_appends_nothing"),
        (EmptyRequestsFail, "an_empty_request_appends_nothing"),
        (ConcurrentRequestsAreMixed, "concurrent_requests_leave_no_hole_and_are_not_mixed"),
        (PositionsAreGivenBeforeTheAppend, "concurrent_requests_leave_no_hole_and_are_not_mixed"),
        (TheOtherHandleSeesEventsLate, "an_accepted_event_is_seen_through_each_handle"),
        (BoundsAreLate, "an_accepted_event_is_seen_through_each_handle"),
        (BodiesAreText, "events_come_back_as_they_were"),
        (KeysAreLost, "events_come_back_as_they_were"),
        (HeadersAreLost, "events_come_back_as_they_were"),
        (IdsAreLost, "events_come_back_as_they_were"),
        (EmptyBodiesAreDropped, "events_come_back_as_they_were"),
        (LargeBodiesAreCut, "the_largest_event_is_accepted_and_a_larger_one_is_not"),
        (LargerBodiesAreAccepted, "the_largest_event_is_accepted_and_a_larger_one_is_not"),
        (LongKeysAreAccepted, "the_largest_event_is_accepted_and_a_larger_one_is_not"),
        (TheLargestRequestIsRefused, "the_largest_request_is_accepted_and_a_larger_one_is_not"),
        (LargerRequestsAreAccepted, "the_largest_request_is_accepted_and_a_larger_one_is_not"),
        (LargerRequestsAreCut, "the_largest_request_is_accepted_and_a_larger_one_is_not"),
        (UnknownPartitionsAreTheFirst, "invalid_arguments_are_refused_and_append_nothing"),
        (APositionOfZeroIsTheFirst, "invalid_arguments_are_refused_and_append_nothing"),
        (AMaximumOfZeroIsAccepted, "invalid_arguments_are_refused_and_append_nothing"),
        (EventsBeforeABadOneAreAppended, "invalid_arguments_are_refused_and_append_nothing"),
        (DroppedAppendsAreApart, "a_dropped_append_is_all_or_none"),
        (HandlesHaveTheirOwnIdentity, "the_identity_is_short_and_that_of_each_handle"),
        (TheIdentityIsLong, "the_identity_is_short_and_that_of_each_handle"),
        (TheIdentityIsTheName, "the_identity_is_short_and_that_of_each_handle"),
        (IdsAreNotKnown, "an_id_is_accepted_once"),
        (IdsAreKnownByTheHandle, "an_id_is_accepted_once"),
        (DuplicatesHaveNewPositions, "an_id_is_accepted_once"),
        (DuplicatesAreNotTold, "an_id_is_accepted_once"),
        (ADuplicateRefusesItsRequest, "an_id_is_accepted_once"),
        (IdsOfOneRequestAreNotCompared, "an_id_that_comes_twice_in_a_request_is_appended_once"),
        (IdsAreReadBeforeTheAppend, "concurrent_events_with_one_id_are_appended_once"),
        (IdsAreOfTheTopic, "ids_of_partitions_are_apart"),
        (IdsAreForgottenHalfway, "an_id_is_remembered_for_the_window"),
        (ReadsBeginAtTheRequest, "a_read_begins_anywhere_and_returns_at_most_the_maximum"),
        (ReadsReturnWholeRequests, "a_read_begins_anywhere_and_returns_at_most_the_maximum"),
        (ReadsAreEmptyWithinARequest, "a_read_begins_anywhere_and_returns_at_most_the_maximum"),
        (ReadsBeyondTheEndFail, "a_read_beyond_the_end_is_empty"),
        (ReadsBeyondTheEndReturnTheLast, "a_read_beyond_the_end_is_empty"),
        (ReadersPassEventsUnderWay, "a_reader_misses_no_event_while_others_append"),
        (AHandleHasOneReader, "several_readers_do_not_disturb_each_other"),
        (WaitingReadsAreNotWoken, "a_waiting_read_is_woken_by_an_append"),
        (OwnAppendsAloneWake, "a_waiting_read_is_woken_by_an_append"),
        (ReadsDoNotWait, "a_waiting_read_is_woken_by_an_append"),
        (ReadsWaitForEver, "a_waiting_read_ends_with_its_time"),
        (AnyPartitionEndsAWait, "a_waiting_read_ends_with_its_time"),
        (TrimsDoNothing, "a_trim_deletes_a_prefix"),
        (TrimsDeleteTheGivenPosition, "a_trim_deletes_a_prefix"),
        (TrimsCountTwice, "a_trim_deletes_a_prefix"),
        (LowerTrimsMoveBack, "a_trim_deletes_a_prefix"),
        (ReadsFromBelowAreEmpty, "a_trim_deletes_a_prefix"),
        (TrimsDeleteWholeRequests, "a_trim_ends_within_a_request"),
        (TrimsKeepTheLastEvent, "a_trim_beyond_the_end_deletes_all_and_positions_go_on"),
        (ATrimOfAllBeginsAnew, "a_trim_beyond_the_end_deletes_all_and_positions_go_on"),
        (TrimsBeyondTheEndMoveIt, "a_trim_beyond_the_end_deletes_all_and_positions_go_on"),
        (TrimsLoseConcurrentAppends, "a_trim_beside_appends_loses_nothing"),
        (TrimsAreOfTheHandle, "a_trim_is_seen_through_each_handle"),
        (TrimsForgetIds, "a_trim_does_not_forget_ids"),
        (ARestartForgetsTheEnd, "what_was_accepted_outlives_a_restart"),
        (ARestartForgetsTrims, "what_was_accepted_outlives_a_restart"),
        (ARestartForgetsIds, "what_was_accepted_outlives_a_restart"),
        (ARestartForgetsTheLastEvent, "what_was_accepted_outlives_a_restart"),
    ]
};

/// A fault of the topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[rustfmt::skip]
enum Fault {
    PositionsBeginAtZero, EachRequestLeavesAHole, HandlesCountAlone, RequestsAreReversed, AnswersAreReversed,
    PartitionsAreOne, PartitionsAreCountedModuloTwo, EmptyRequestsTakeAPosition, EmptyRequestsFail,
    ConcurrentRequestsAreMixed, PositionsAreGivenBeforeTheAppend, TheOtherHandleSeesEventsLate, BoundsAreLate,
    BodiesAreText, KeysAreLost, HeadersAreLost, IdsAreLost, EmptyBodiesAreDropped, LargeBodiesAreCut,
    LargerBodiesAreAccepted, LongKeysAreAccepted, TheLargestRequestIsRefused, LargerRequestsAreAccepted,
    LargerRequestsAreCut, UnknownPartitionsAreTheFirst, APositionOfZeroIsTheFirst, AMaximumOfZeroIsAccepted,
    EventsBeforeABadOneAreAppended, DroppedAppendsAreApart, HandlesHaveTheirOwnIdentity, TheIdentityIsLong,
    TheIdentityIsTheName, IdsAreNotKnown, IdsAreKnownByTheHandle, DuplicatesHaveNewPositions, DuplicatesAreNotTold,
    ADuplicateRefusesItsRequest, IdsOfOneRequestAreNotCompared, IdsAreReadBeforeTheAppend, IdsAreOfTheTopic,
    IdsAreForgottenHalfway, ReadsBeginAtTheRequest, ReadsReturnWholeRequests, ReadsAreEmptyWithinARequest,
    ReadsBeyondTheEndFail, ReadsBeyondTheEndReturnTheLast, ReadersPassEventsUnderWay, AHandleHasOneReader,
    WaitingReadsAreNotWoken, OwnAppendsAloneWake, ReadsDoNotWait, ReadsWaitForEver, AnyPartitionEndsAWait,
    TrimsDoNothing, TrimsDeleteTheGivenPosition, TrimsCountTwice, LowerTrimsMoveBack, ReadsFromBelowAreEmpty,
    TrimsDeleteWholeRequests, TrimsKeepTheLastEvent, ATrimOfAllBeginsAnew, TrimsBeyondTheEndMoveIt,
    TrimsLoseConcurrentAppends, TrimsAreOfTheHandle, TrimsForgetIds, ARestartForgetsTheEnd, ARestartForgetsTrims,
    ARestartForgetsIds, ARestartForgetsTheLastEvent,
}

use Fault::*;

const WINDOW: Duration = Duration::from_secs(60);
const CAN: Capabilities = Capabilities::of("planted", &[Capability::Deduplication, Capability::Durable])
    .deduplicating_for(WINDOW)
    .largest_batch(100)
    .largest_value(4096)
    .largest_key(200);

#[derive(Debug, Clone, Default)]
struct Part {
    /// Events with their offsets, and the first offset of their request.
    events: Vec<(u64, u64, Event)>,
    next: u64,
    ids: BTreeMap<String, (u64, Instant)>,
    /// Reads so far.
    reads: u64,
    /// Requests of which some events are to be seen, and others not yet.
    under_way: u64,
}

/// What the events of a request have in common.
struct Request {
    partition: u16,
    at: usize,
    /// The offset of the first event.
    first: u64,
    /// Positions of the ids, as they were known before.
    known: Option<Vec<Option<u64>>>,
    /// The position that was given before.
    given: Option<u64>,
}

#[derive(Debug, Default)]
struct State {
    parts: Vec<Part>,
    /// Identity of the last handle.
    handles: usize,
}

#[derive(Debug, Clone)]
struct Plain {
    fault: Option<Fault>,
    state: Arc<Mutex<State>>,
    /// The state of this handle alone.
    own: Arc<Mutex<BTreeMap<String, u64>>>,
    number: usize,
    name: &'static str,
    changed: Arc<Notify>,
    own_changed: Arc<Notify>,
    clock: Clock,
    reader: Arc<Mutex<Option<u64>>>,
}

const PARTITIONS: u16 = 5;

impl Plain {
    fn new(fault: Option<Fault>, clock: &Clock, name: &'static str) -> Self {
        let part = Part { next: u64::from(fault != Some(PositionsBeginAtZero)), ..Part::default() };
        let state = State { parts: vec![part; usize::from(PARTITIONS)], handles: 0 };
        Self {
            fault,
            state: Arc::new(Mutex::new(state)),
            own: Arc::default(),
            number: 0,
            name,
            changed: Arc::default(),
            own_changed: Arc::default(),
            clock: clock.clone(),
            reader: Arc::default(),
        }
    }

    fn handle(&self) -> Self {
        let number = {
            let mut state = self.lock();
            state.handles += 1;
            state.handles
        };
        let (own, own_changed, reader) = (Arc::default(), Arc::default(), Arc::default());
        Self { own, own_changed, number, reader, ..self.clone() }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn check(&self, partition: u16) -> Result<usize, PortError> {
        if partition < PARTITIONS {
            return Ok(match self.fault {
                Some(PartitionsAreOne) => 0,
                Some(PartitionsAreCountedModuloTwo) => usize::from(partition % 2),
                _ => usize::from(partition),
            });
        }
        if self.has(UnknownPartitionsAreTheFirst) {
            return Ok(0);
        }
        Err(PortError::invalid("partition", "must exist"))
    }

    fn check_events(&self, events: &mut Vec<Event>) -> Result<(), PortError> {
        let can = match self.fault {
            Some(LargerBodiesAreAccepted) => CAN.largest_value(usize::MAX),
            Some(LongKeysAreAccepted) => CAN.largest_key(usize::MAX),
            Some(LargerRequestsAreAccepted) => CAN.largest_batch(usize::MAX),
            Some(TheLargestRequestIsRefused) => CAN.largest_batch(CAN.max_batch() - 1),
            _ => CAN,
        };
        if self.has(LargerRequestsAreCut) {
            events.truncate(can.max_batch());
        }
        let checked = Event::check(events, &can);
        if checked.is_err() && self.has(EventsBeforeABadOneAreAppended) {
            let mut part = self.lock();
            part.parts[0].next += 1;
        }
        checked
    }

    fn changed_event(&self, mut event: Event) -> Event {
        match self.fault {
            Some(BodiesAreText) => event.body = String::from_utf8_lossy(&event.body).into_owned().into(),
            Some(KeysAreLost) => event.key = None,
            Some(HeadersAreLost) => event.headers.clear(),
            Some(IdsAreLost) => event.id = None,
            Some(LargeBodiesAreCut) => event.body.truncate(3500),
            _ => {}
        }
        event
    }

    /// Returns the known position of an id.
    fn known(&self, part: &Part, event: &Event) -> Option<u64> {
        let id = event.id.as_ref()?;
        if self.has(IdsAreKnownByTheHandle) {
            return self.own.lock().unwrap().get(id).copied();
        }
        let life = if self.has(IdsAreForgottenHalfway) { WINDOW / 2 } else { WINDOW };
        let (offset, since) = part.ids.get(id)?;
        (self.clock.now() - *since < life && !self.has(IdsAreNotKnown)).then_some(*offset)
    }

    async fn append_all(&self, partition: u16, mut events: Vec<Event>) -> Result<Vec<Appended>, PortError> {
        let at = self.check(partition)?;
        self.check_events(&mut events)?;
        if events.is_empty() {
            if self.has(EmptyRequestsFail) {
                return Err(PortError::invalid("events", "must not be empty"));
            }
            self.lock().parts[at].next += u64::from(self.has(EmptyRequestsTakeAPosition));
            return Ok(Vec::new());
        }
        if self.has(RequestsAreReversed) {
            events.reverse();
        }
        let known = self.has(IdsAreReadBeforeTheAppend).then(|| self.known_before(at, &events));
        if known.is_some() {
            self.clock.sleep(Duration::from_millis(2)).await;
        }
        let given = self.has(PositionsAreGivenBeforeTheAppend).then(|| self.lock().parts[at].next);
        if given.is_some() {
            self.clock.sleep(Duration::from_millis(2)).await;
        }
        let mut appended = Vec::new();
        if self.has(DroppedAppendsAreApart)
            || self.has(ConcurrentRequestsAreMixed)
            || self.has(ReadersPassEventsUnderWay)
        {
            let (first, reads) = {
                let part = &self.lock().parts[at];
                (part.next, part.reads)
            };
            let request = Request { partition, at, first, known, given };
            for (n, event) in events.into_iter().enumerate() {
                self.pause_before(n, at, reads).await;
                appended.push(self.append_one(&mut self.lock(), &request, n, event)?);
            }
        } else {
            let mut state = self.lock();
            let request = Request { partition, at, first: state.parts[at].next, known, given };
            for (n, event) in events.into_iter().enumerate() {
                appended.push(self.append_one(&mut state, &request, n, event)?);
            }
            state.parts[at].next += u64::from(self.has(EachRequestLeavesAHole));
        }
        if self.has(HandlesCountAlone) && self.number > 1 {
            appended.iter_mut().for_each(|one| one.position.offset += 1);
        }
        if self.has(AnswersAreReversed) {
            appended.reverse();
        }
        self.own_changed.notify_waiters();
        if !self.has(OwnAppendsAloneWake) {
            self.changed.notify_waiters();
        }
        Ok(appended)
    }

    /// Appends one event of a request.
    fn append_one(&self, state: &mut State, request: &Request, n: usize, event: Event) -> Result<Appended, PortError> {
        let Request { partition, at, first, .. } = *request;
        let ids_at = if self.has(IdsAreOfTheTopic) { 0 } else { at };
        let duplicate = match &request.known {
            Some(known) => known[n],
            None => self.known(&state.parts[ids_at], &event),
        };
        let is_of_request = duplicate.is_some_and(|offset| offset >= first);
        if let Some(offset) = duplicate.filter(|_| !(is_of_request && self.has(IdsOfOneRequestAreNotCompared))) {
            if self.has(ADuplicateRefusesItsRequest) {
                return Err(PortError::invalid("id", "must be new"));
            }
            let offset = if self.has(DuplicatesHaveNewPositions) { state.parts[at].next } else { offset };
            let position = Position::new(partition, offset);
            let answer = Appended::duplicate_of(position);
            return Ok(if self.has(DuplicatesAreNotTold) { Appended::new(position) } else { answer });
        }
        let (now, offset) = (self.clock.now(), state.parts[at].next);
        if let Some(id) = event.id.clone() {
            self.own.lock().unwrap().insert(id.clone(), offset);
            state.parts[ids_at].ids.insert(id, (offset, now));
        }
        let part = &mut state.parts[at];
        part.next += 1;
        if !(self.has(EmptyBodiesAreDropped) && event.body.is_empty()) {
            part.events.push((offset, first, self.changed_event(event)));
        }
        Ok(Appended::new(Position::new(partition, request.given.map_or(offset, |given| given + n as u64))))
    }

    /// Pauses before an event of a request, if others may come between.
    async fn pause_before(&self, n: usize, at: usize, reads: u64) {
        match self.fault {
            Some(DroppedAppendsAreApart) if n > 0 => tokio::task::yield_now().await,
            Some(ConcurrentRequestsAreMixed) if n == 1 => self.clock.sleep(Duration::from_millis(2)).await,
            Some(ReadersPassEventsUnderWay) if n == 2 => self.wait_for_a_reader(at, reads).await,
            _ => {}
        }
    }

    /// Waits until the partition was read again, for a while at most: not every case has a reader beside the append.
    async fn wait_for_a_reader(&self, at: usize, reads: u64) {
        self.lock().parts[at].under_way += 1;
        for _ in 0..50 {
            if self.lock().parts[at].reads > reads {
                break;
            }
            self.clock.sleep(Duration::from_millis(1)).await;
        }
        self.lock().parts[at].under_way -= 1;
    }

    fn known_before(&self, at: usize, events: &[Event]) -> Vec<Option<u64>> {
        let state = self.lock();
        events.iter().map(|event| self.known(&state.parts[at], event)).collect()
    }

    fn read_now(&self, partition: u16, read: &Read) -> Result<Vec<Recorded>, PortError> {
        let at = self.check(partition)?;
        let mut checked = *read;
        if self.has(APositionOfZeroIsTheFirst) {
            checked.from = checked.from.max(1);
        }
        if self.has(AMaximumOfZeroIsAccepted) {
            checked.max = checked.max.max(1);
        }
        checked.check()?;
        let mut state = self.lock();
        let part = &mut state.parts[at];
        part.reads += 1;
        let (mut from, mut max) = (checked.from, checked.max);
        if self.has(AHandleHasOneReader) {
            let mut reader = self.reader.lock().unwrap();
            // The place of the last reader serves the next one, if that is behind it.
            from = reader.filter(|last| from > 1 && from < *last).unwrap_or(from);
            *reader = Some(from + max as u64);
        }
        if from > part.next {
            if self.has(ReadsBeyondTheEndFail) {
                return Err(PortError::invalid("from", "must not be beyond the end"));
            }
            if self.has(ReadsBeyondTheEndReturnTheLast) {
                from = part.next - 1;
            }
        }
        let of_request = part.events.iter().find(|(offset, _, _)| *offset == from).map(|(_, request, _)| *request);
        match (self.fault, of_request) {
            (Some(ReadsBeginAtTheRequest), Some(request)) => from = request,
            (Some(ReadsAreEmptyWithinARequest), Some(request)) if request != from => return Ok(Vec::new()),
            (Some(ReadsReturnWholeRequests), _) => max = max.max(9),
            (Some(ReadsFromBelowAreEmpty), None) => return Ok(Vec::new()),
            _ => {}
        }
        let all = part.events.iter().filter(|(offset, _, _)| *offset >= from);
        let mut found: Vec<_> =
            all.map(|(offset, _, event)| Recorded::new(Position::new(partition, *offset), event.clone())).collect();
        if self.has(ReadersPassEventsUnderWay) && part.under_way > 0 && !found.is_empty() {
            found.remove(0);
        }
        if self.has(TheOtherHandleSeesEventsLate) && self.number > 1 && found.len() == 1 {
            found.clear();
        }
        found.truncate(max);
        Ok(found)
    }

    fn trim_now(&self, partition: u16, before: u64) -> Result<u64, PortError> {
        let at = self.check(partition)?;
        let mut state = self.lock();
        let part = &mut state.parts[at];
        let (end, count) = (part.next, part.events.len());
        let mut before = before + u64::from(self.has(TrimsDeleteTheGivenPosition) && before < end);
        match self.fault {
            Some(TrimsDoNothing) => return Ok(before.saturating_sub(1).min(count as u64)),
            Some(TrimsAreOfTheHandle) if self.number > 0 => {
                self.own.lock().unwrap().insert(format!("trim {at}"), before);
                return Ok(before.min(end).saturating_sub(1));
            }
            Some(TrimsKeepTheLastEvent) => before = before.min(end.saturating_sub(1)),
            Some(TrimsBeyondTheEndMoveIt) if before < u64::MAX => part.next = end.max(before),
            Some(TrimsLoseConcurrentAppends) if count > 6 => before = before.max(end - 2),
            Some(TrimsForgetIds) => part.ids.clear(),
            _ => {}
        }
        if self.has(TrimsDeleteWholeRequests) {
            let boundary = part.events.iter().find(|(offset, _, _)| *offset == before).map(|(_, request, _)| *request);
            before = boundary.filter(|request| *request < before).unwrap_or(before);
        }
        part.events.retain(|(offset, _, _)| *offset >= before);
        let deleted = (count - part.events.len()) as u64;
        if self.has(ATrimOfAllBeginsAnew) && part.events.is_empty() {
            part.next = 1;
        }
        if self.has(LowerTrimsMoveBack) && deleted == 0 && before > 1 && count > 0 {
            let event = part.events[0].2.clone();
            part.events.insert(0, (before, before, event));
        }
        Ok(if self.has(TrimsCountTwice) { deleted.max(before.saturating_sub(1).min(end)) } else { deleted })
    }

    /// Restarts the handles of the same state.
    fn restarts(&self) {
        let mut state = self.lock();
        for part in &mut state.parts {
            match self.fault {
                Some(ARestartForgetsTheEnd) => part.next = part.events.last().map_or(1, |(offset, _, _)| offset + 1),
                Some(ARestartForgetsTrims) if part.events.is_empty() && part.next > 1 => {
                    part.events.push((1, 1, Event::new("trimmed")));
                }
                Some(ARestartForgetsIds) => part.ids.clear(),
                Some(ARestartForgetsTheLastEvent) => drop(part.events.pop()),
                _ => {}
            }
        }
    }
}

impl Topic for Plain {
    fn capabilities(&self) -> Capabilities {
        CAN
    }

    fn identity(&self) -> String {
        match self.fault {
            Some(HandlesHaveTheirOwnIdentity) => format!("planted {} {}", self.name, self.number),
            Some(TheIdentityIsLong) => "x".repeat(129),
            Some(TheIdentityIsTheName) => "planted".to_owned(),
            _ => format!("planted {}", self.name),
        }
    }

    fn name(&self) -> &str {
        "planted"
    }

    fn partitions(&self) -> u16 {
        PARTITIONS
    }

    fn append(&self, partition: u16, events: Vec<Event>) -> PortFuture<'_, Vec<Appended>> {
        Box::pin(self.append_all(partition, events))
    }

    fn read(&self, partition: u16, read: Read) -> PortFuture<'_, Vec<Recorded>> {
        Box::pin(async move {
            let until = self.clock.now() + read.wait;
            loop {
                let (own, any) = (self.own_changed.notified(), self.changed.notified());
                let (mut own, mut any) = (std::pin::pin!(own), std::pin::pin!(any));
                own.as_mut().enable();
                any.as_mut().enable();
                let found = self.read_now(partition, &read)?;
                let may_end = read.wait.is_zero() || !self.has(ReadsWaitForEver);
                let is_over = may_end && self.clock.now() >= until;
                if !found.is_empty() || is_over || self.has(ReadsDoNotWait) {
                    return Ok(found);
                }
                if self.has(WaitingReadsAreNotWoken) {
                    self.clock.sleep(read.wait).await;
                    return Ok(Vec::new());
                }
                tokio::select! {
                    () = own => {}
                    () = any => if self.has(AnyPartitionEndsAWait) {
                        return Ok(vec![Recorded::new(Position::new(partition, 1), Event::new("other"))]);
                    },
                    () = self.clock.sleep_until(until), if !self.has(ReadsWaitForEver) => {}
                }
            }
        })
    }

    fn bounds(&self, partition: u16) -> PortFuture<'_, Bounds> {
        Box::pin(async move {
            let at = self.check(partition)?;
            let own_trim = self.own.lock().unwrap().get(&format!("trim {at}")).copied();
            let state = self.lock();
            let part = &state.parts[at];
            let first = part.events.first().map_or(part.next, |(offset, _, _)| *offset);
            let next = part.next - u64::from(self.has(BoundsAreLate) && self.number > 1 && part.next > 1);
            Ok(Bounds::new(own_trim.unwrap_or(first), next))
        })
    }

    fn trim(&self, partition: u16, before: u64) -> PortFuture<'_, u64> {
        Box::pin(async move {
            if self.has(TrimsLoseConcurrentAppends) {
                tokio::task::yield_now().await;
            }
            self.trim_now(partition, before)
        })
    }
}

async fn fixture(fault: Option<Fault>) -> Fixture<dyn Topic> {
    let (clock, time) = Clock::manual();
    let (topic, neighbour) = (Plain::new(fault, &clock, "a"), Plain::new(fault, &clock, "b"));
    let handles = move || -> Fixture<dyn Topic> {
        let (port, other) = (Arc::new(topic.handle()), Arc::new(topic.handle()));
        topic.restarts();
        Fixture::new(port as Arc<dyn Topic>).with_second_handle(other).with_neighbour(Arc::new(neighbour.handle()))
    };
    handles().on_manual_time(&time).with_restart(async move || handles())
}

#[test]
fn each_fault_of_a_topic_is_found_by_the_case_that_is_named() {
    assert_each_fault_is_found(&topic::cases(), FAULTS, fixture);
}
