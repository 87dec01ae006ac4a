//! The machines of a topic: the stored form, and the writes of a request.
#![allow(clippy::unwrap_used, reason = "tests")]
use std::time::Duration;

use proptest::prelude::*;

use super::{
    Event,
    append_request::Request,
    stored::{self, Head, StoredEvents, Ticket},
    turns::{self, Step, Tickets, Turn},
};
use crate::{
    port::Capabilities,
    store::{Sequence, Version, Write},
    time::Instant,
};

fn event() -> impl Strategy<Value = Event> {
    let text = || proptest::string::string_regex("[a-z日/]{0,6}").unwrap();
    let headers = proptest::collection::btree_map(text(), text(), 0..4);
    let key = proptest::option::of(text());
    let id = proptest::option::weighted(0.4, 0..9_u8);
    (proptest::collection::vec(any::<u8>(), 0..300), key, id, headers).prop_map(|(body, key, id, headers)| {
        let mut event = Event::new(body);
        (event.key, event.id, event.headers) = (key, id.map(|id| id.to_string()), headers);
        event
    })
}

proptest! {
    #[test]
    fn events_come_back_from_their_row_from_any_offset_on(
        events in proptest::collection::vec(event(), 1..20), first in 1..1000_u64,
        reads in proptest::collection::vec((0..25_u64, 1..25_usize), 1..6),
    ) {
        let value = stored::encode_events((7, 8), &events.iter().collect::<Vec<_>>());
        prop_assert!(value.len() <= stored::OVERHEAD + events.iter().map(stored::encoded_size).sum::<usize>());
        let mut row = StoredEvents::open(&stored::events_row(first), value).unwrap();
        prop_assert_eq!((row.end() - first, row.request), (events.len() as u64, (7, 8)));
        // A read goes on behind the one before, or begins anew.
        for (skip, max) in reads {
            let expected: Vec<_> = (first..).zip(events.clone()).skip(skip as usize).take(max).collect();
            prop_assert_eq!(row.events(first + skip, max).unwrap(), expected);
        }
    }

    #[test]
    fn damaged_rows_are_refused_or_read_and_never_panic(
        events in proptest::collection::vec(event(), 1..6), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let whole = stored::encode_events((1, 2), &events.iter().collect::<Vec<_>>());
        let mut damaged = whole.to_vec();
        let at = at.index(damaged.len());
        damaged[at] = byte;
        let name = stored::events_row(5);
        if let Ok(mut row) = StoredEvents::open(&name, damaged.into()) {
            drop(row.events(5, usize::MAX));
        }
        let cut = whole.slice(..cut.index(whole.len()));
        let read = StoredEvents::open(&name, cut).and_then(|mut row| row.events(5, usize::MAX));
        prop_assert!(read.is_err());
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        drop(Head::decode(bytes.clone().into()));
        drop(stored::decode_offset("i/1", bytes.clone().into()));
        drop(stored::decode_topic("t", bytes.clone().into()));
        let _ = Ticket::decode("h/0000000000000001", bytes.clone().into());
        if let Ok(mut row) = StoredEvents::open(&stored::events_row(u64::MAX), bytes.into()) {
            drop(row.events(1, 1000));
        }
    }

    #[test]
    fn the_writes_of_a_request_append_its_new_events_once_in_rows_that_fit(
        events in proptest::collection::vec(event(), 1..40), next in 1..500_u64, largest in 600..2000_usize,
    ) {
        let can = Capabilities::of("test", &[]).largest_value(largest).largest_batch(90);
        let request = Request::new(events.clone(), &can).unwrap();
        let head = Head { next, ..Head::NEW };
        let (after, writes) = request.writes((&head, Some(Version::new(3))), (1, 2), Some(Duration::from_secs(1)), |_| Vec::new());
        prop_assert!(writes.len() <= 90 - turns::WRITES);
        let (mut offset, mut stored_events, mut ids) = (next, Vec::new(), Vec::new());
        for write in &writes[1..] {
            let Write::Put { row, value, options } = write else { panic!("{write:?}") };
            prop_assert!(value.len() <= largest && Sequence::of_row(row).is_none());
            if row.starts_with("i/") {
                ids.push((row.clone(), stored::decode_offset(row, value.clone()).unwrap()));
                prop_assert!(options.ttl.is_some());
                continue;
            }
            let mut of_row = StoredEvents::open(row, value.clone()).unwrap();
            prop_assert_eq!(of_row.first, offset);
            offset = of_row.end();
            stored_events.extend(of_row.events(0, usize::MAX).unwrap());
        }
        prop_assert_eq!((after.next, after.appended_at, after.request), (offset, next, (1, 2)));
        // The answers name the places of the events, or that of the first with the same id.
        for (answer, event) in request.answers(0, next).iter().zip(&events) {
            let (_, stored) = stored_events.iter().find(|(offset, _)| *offset == answer.position.offset).unwrap();
            prop_assert!(stored == event || answer.is_duplicate && stored.id == event.id);
        }
        let named: Vec<_> = stored_events.iter().filter_map(|(at, e)| e.id.as_deref().map(|id| (stored::id_row(id), *at))).collect();
        prop_assert_eq!(ids, named);
    }
}

#[test]
fn a_head_comes_back_and_an_impossible_one_is_refused() {
    let head = Head { first: 3, next: 9, request: (u64::MAX, 0), appended_at: 5 };
    assert_eq!(Head::decode(head.encode()).unwrap(), head);
    for impossible in [Head { first: 0, ..head }, Head { first: 10, ..head }] {
        assert!(Head::decode(impossible.encode()).is_err());
    }
}

#[test]
fn events_that_need_more_rows_than_a_batch_has_are_refused_and_larger_rows_are_tried_first() {
    let can = Capabilities::of("test", &[]).largest_batch(10);
    let events = |n: usize, size: usize| (0..n).map(|_| Event::new(vec![7; size])).collect::<Vec<_>>();
    // Fifteen rows of 128 KiB, or fewer that are larger.
    let (head, none) = (Head::NEW, None::<Version>);
    let request = Request::new(events(15, 120_000), &can).unwrap();
    assert!(request.writes((&head, none), (1, 2), None, |_| Vec::new()).1.len() <= 10);
    assert!(Request::new(events(15, 120_000), &can.largest_value(200_000)).is_none());
}

const MS: fn(u64) -> Duration = Duration::from_millis;

#[test]
fn a_ticket_comes_back_and_one_of_a_newer_release_is_ignored() {
    let ticket = Ticket { id: 7, place: u64::MAX, takes: MS(3) };
    assert_eq!(Ticket::decode(&stored::ticket_row(7), ticket.encode()), Some(ticket));
    let mut newer = ticket.encode().to_vec();
    newer[0] = 2;
    assert_eq!(Ticket::decode(&stored::ticket_row(7), newer.into()), None);
    assert_eq!(Ticket::decode("h/no-number", ticket.encode()), None);
}

#[test]
fn a_first_ticket_is_waited_for_as_long_as_the_head_moves_and_its_writers_requests_take() {
    let at = |ms: u64| Instant::from_nanos(1 + ms * 1_000_000);
    for (takes, patience, between) in [(MS(0), 100, 25), (MS(50), 200, 200), (MS(900), 400, 400)] {
        let first = (Ticket { id: 9, place: 1, takes }, Version::new(4));
        let own = (Ticket { id: 1, place: 2, takes: MS(0) }, Version::new(5));
        let tickets = Tickets { flag: Some(Version::new(6)), all: vec![own, first] };
        let mut turn = Turn::new(1);
        turn.joined();
        let mut look = |ms, head| turn.look(&tickets, Some(Version::new(head)), at(ms));
        assert!(matches!(look(0, 1), Step::Wait(_)));
        assert!(matches!(look(patience - 1, 1), Step::Wait(pause) if pause == MS(1)), "{takes:?}");
        // It has appended meanwhile, and is to append again soon.
        assert!(matches!(look(patience, 2), Step::Wait(_)), "{takes:?}");
        assert!(matches!(look(patience + between - 1, 2), Step::Wait(_)), "{takes:?}");
        assert_eq!(look(patience + between, 2), Step::Skip(9, Version::new(4)), "{takes:?}");
    }
    // Of a writer that has not appended in its turn.
    let first = (Ticket { id: 9, place: 1, takes: MS(3) }, Version::new(4));
    let own = (Ticket { id: 1, place: 2, takes: MS(0) }, Version::new(5));
    let tickets = Tickets { flag: None, all: vec![first, own] };
    let mut turn = Turn::new(1);
    turn.joined();
    assert!(matches!(turn.look(&tickets, None, at(0)), Step::Wait(_)));
    assert!(matches!(turn.look(&tickets, None, at(99)), Step::Wait(_)));
    assert_eq!(turn.look(&tickets, None, at(100)), Step::Skip(9, Version::new(4)));
}

#[test]
fn processes_that_died_together_are_not_waited_for_one_after_the_other() {
    let mut turn = Turn::new(1);
    turn.joined();
    let ticket = |id| (Ticket { id, place: id, takes: MS(1) }, Version::new(id));
    let mut tickets = Tickets { flag: Some(Version::new(1)), all: (2..18).map(ticket).collect() };
    tickets.all.push((Ticket { id: 1, place: 99, takes: MS(1) }, Version::new(1)));
    let took = (0..).find(|ms| {
        match turn.look(&tickets, None, Instant::from_nanos(1 + ms * 1_000_000)) {
            Step::Skip(id, _) => tickets.all.retain(|(ticket, _)| ticket.id != id),
            Step::Append => return true,
            Step::Wait(_) | Step::Join => {}
        }
        false
    });
    assert!(took.unwrap() <= 600, "{took:?} ms for 16 dead processes");
}
