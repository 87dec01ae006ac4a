//! The machines against naive models, and damaged rows.
use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;

use super::{
    Projection, Sourced, Undecodable,
    source::Item,
    state::{Checkpoint, Generations, Origin, Parked, ParkedStreams, Rivalry, SourcePlaces, Turn, cut, fold},
};
use crate::{
    port::{PortError, PortErrorKind},
    store::Version,
    stream::{Event, Position, Recorded},
    time::Instant,
};

/// An event: the rows that it adds its number to, and those that it deletes.
#[derive(Debug, Clone)]
struct Change(Vec<(u8, bool)>);

struct Sums;

impl Projection for Sums {
    type Event = (u64, Change);
    type Row = u64;

    fn keys(&self, event: &Sourced<Self::Event>) -> Vec<String> {
        event.event.1.0.iter().map(|(key, _)| key.to_string()).collect()
    }

    fn fold(&self, key: &str, row: Option<u64>, event: &Sourced<Self::Event>) -> Option<u64> {
        let (_, deletes) = event.event.1.0.iter().rfind(|(of, _)| of.to_string() == key)?;
        // Not commutative, so that the order counts.
        (!deletes).then(|| row.unwrap_or(1).wrapping_mul(31).wrapping_add(event.event.0))
    }
}

/// A key that no row can have; other keys come before and behind it.
const REFUSED: u8 = 30;

fn check(key: &str) -> Result<(), PortError> {
    match key.parse() {
        Ok(REFUSED) => Err(PortError::invalid("keys", "must not be refused")),
        _ => Ok(()),
    }
}

/// A record: a stream for each of its events, and the event; `None` does not decode.
type Record = Vec<(u8, Option<Change>)>;

fn records() -> impl Strategy<Value = Vec<Record>> {
    let key = prop_oneof![30 => 0u8..6, 1 => Just(REFUSED)];
    let change = prop::collection::vec((key, prop::bool::weighted(0.2)), 0..4).prop_map(Change);
    let event = (0u8..4, prop::option::weighted(0.93, change));
    prop::collection::vec(prop::collection::vec(event, 0..3), 0..40)
}

/// The rows and the parked streams behind all records, by the plainest way.
fn naive(records: &[Record]) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let (mut rows, mut parked) = (BTreeMap::<String, u64>::new(), BTreeMap::new());
    for (offset, record) in (1..).zip(records) {
        for (stream, change) in record {
            let stream = stream.to_string();
            match change {
                _ if parked.contains_key(&stream) => {}
                None => drop(parked.insert(stream, offset)),
                Some(Change(changes)) if changes.iter().any(|(key, _)| *key == REFUSED) => {
                    parked.insert(stream, offset);
                }
                Some(Change(changes)) => {
                    let last: BTreeMap<_, _> = changes.iter().copied().collect();
                    for (key, deletes) in last {
                        let row = rows.remove(&key.to_string()).unwrap_or(1);
                        if !deletes {
                            rows.insert(key.to_string(), row.wrapping_mul(31).wrapping_add(offset));
                        }
                    }
                }
            }
        }
    }
    (rows, parked)
}

fn items(records: &[Record]) -> Vec<Item<(u64, Change)>> {
    let item = |(offset, record): (u64, &Record)| {
        let position = Position::new(0, offset);
        let events = record.iter().map(|(stream, change)| {
            let stream = Some(stream.to_string());
            match change.clone() {
                Some(change) => Ok(Sourced { stream, ..Sourced::new("log", position, (offset, change)) }),
                None => Err((stream, PortError::new(PortErrorKind::Corrupt, "damaged"))),
            }
        });
        Item { slot: 0, recorded: Recorded::new(position, Event::new("")), events: Ok(events.collect()) }
    };
    (1..).zip(records).map(item).collect()
}

proptest! {
    // Guarantee: materialized_view 1, 6.
    #[test]
    fn pages_of_any_size_fold_as_the_naive_model_does(records in records(), most in 4usize..12, sizes in prop::collection::vec(1usize..9, 50)) {
        let items = items(&records);
        let (mut rows, mut parked, mut at) = (BTreeMap::new(), ParkedStreams::new(), 0);
        for size in sizes.iter().cycle() {
            if at >= items.len() {
                break;
            }
            let page = &items[at..items.len().min(at + size)];
            let cut = cut(&Sums, page, (|_| 0, check), &parked, Undecodable::Park, most);
            if cut.taken == 0 {
                // Only a record that is too wide by itself ends a page before its first record.
                let alone = items[at].events.as_ref().unwrap().iter().filter_map(|event| event.as_ref().ok());
                let keys: std::collections::BTreeSet<_> = alone.flat_map(|event| Sums.keys(event)).collect();
                prop_assert!(keys.len() > most);
                return Ok(());
            }
            prop_assert!(cut.keys.len() <= most);
            prop_assert!(cut.keys.values().all(|key| cut.folds.iter().any(|(of, _)| of == key)));
            let mut of_page: Vec<(&str, Option<u64>)> = vec![("", None); cut.keys.len()];
            for (key, nth) in &cut.keys {
                of_page[*nth] = (key, rows.remove(key));
            }
            fold(&Sums, &mut of_page, &cut.folds);
            rows.extend(of_page.into_iter().filter_map(|(key, row)| Some((key.to_owned(), row?))));
            parked.extend(cut.parked);
            at += cut.taken;
        }
        let (wanted, left_out) = naive(&records);
        prop_assert_eq!(rows, wanted);
        let parked: BTreeMap<_, _> = parked.into_iter().map(|((_, stream), parked)| (stream, parked.position.offset)).collect();
        prop_assert_eq!(parked, left_out);
    }

    // Guarantee: materialized_view 4.
    #[test]
    fn no_generation_is_served_or_built_once_it_is_old(steps in prop::collection::vec(0u8..7, 0..60)) {
        let (mut generations, mut seen) = (Generations::default(), Vec::new());
        for step in steps {
            match step {
                0 | 1 => seen.push(generations.begin(if step == 1 { Origin::Loading } else { Origin::Events })),
                2 => drop(generations.switch()),
                3 => generations.lose(),
                4 => drop(generations.loaded(generations.last)),
                5 => drop((!generations.old.is_empty()).then(|| generations.old.remove(0))),
                _ => {
                    let row = generations.encode();
                    prop_assert_eq!(Generations::decode("v/1", row).unwrap(), generations.clone());
                }
            }
            let next = generations.next.as_ref().map(|next| next.generation);
            let in_use: Vec<_> = generations.live.into_iter().chain(next).collect();
            prop_assert!(in_use.iter().all(|used| !generations.old.contains(used) && *used <= generations.last));
            prop_assert!(generations.live != next || next.is_none());
            prop_assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "a number came twice");
        }
        generations.retire();
        prop_assert!(generations.live.is_none() && generations.next.is_none());
    }

    // Guarantee: materialized_view 4.
    #[test]
    fn a_generation_follows_another_one_only_without_a_step_back(ours in prop::collection::vec(0u64..4, 3), theirs in prop::collection::vec(0u64..4, 3)) {
        let at = |offsets: &[u64]| {
            let mut checkpoint = Checkpoint::before([("a", 2), ("b", 1)].into_iter());
            for (slot, offset) in offsets.iter().enumerate() {
                checkpoint.place_mut(slot).unwrap().offset = *offset;
            }
            checkpoint
        };
        let is_later = ours.iter().zip(&theirs).all(|(ours, theirs)| ours >= theirs);
        for has_caught_up in [false, true] {
            prop_assert_eq!(at(&ours).may_follow(Some(&at(&theirs)), has_caught_up), is_later);
            prop_assert_eq!(at(&ours).may_follow(None, has_caught_up), has_caught_up);
        }
    }
}

#[test]
fn a_projector_that_lost_waits_until_the_checkpoint_stood_still_though_there_was_more() {
    let (standby, second) = (Duration::from_secs(5), Duration::from_secs(1));
    let (mut rivalry, start) = (Rivalry::default(), Instant::default() + second);
    assert_eq!(rivalry.turn(Version::new(1), start, standby), Turn::Works);
    rivalry.lost(start, standby);
    // The version is seen for the first time, and again once it has changed.
    assert_eq!(rivalry.turn(Version::new(1), start + second, standby), Turn::Waits(start + second * 6));
    assert_eq!(rivalry.turn(Version::new(2), start + second * 7, standby), Turn::Waits(start + second * 12));
    assert_eq!(rivalry.turn(Version::new(2), start + second * 12, standby), Turn::Looks);
    rivalry.looked(false, start + second * 12, standby);
    assert_eq!(rivalry.turn(Version::new(2), start + second * 17, standby), Turn::Looks);
    rivalry.looked(true, start + second * 17, standby);
    assert_eq!(rivalry.turn(Version::new(2), start + second * 18, standby), Turn::Waits(start + second * 22));
    assert_eq!(rivalry.turn(Version::new(2), start + second * 22, standby), Turn::Works);
}

#[test]
fn a_damaged_row_is_an_error_or_another_row_and_never_a_panic() {
    let mut checkpoint = Checkpoint::before([("log-1", 1), ("clicks", 3)].into_iter());
    checkpoint.place_mut(2).unwrap().offset = 300;
    checkpoint.place_mut(2).unwrap().hash = Some(u64::MAX);
    let parked = Parked { position: Position::new(1, 9), reason: "it is unknown".to_owned() };
    checkpoint.parked.insert((1, "sales".to_owned()), parked);
    (checkpoint.rows, checkpoint.bytes, checkpoint.diverged) = (5, 700, Some((1, Position::new(2, 9))));
    let mut generations = Generations::default();
    generations.begin(Origin::Events);
    generations.switch();
    generations.begin(Origin::Loading);
    let rows = [checkpoint.encode(), generations.encode()];
    assert_eq!(Checkpoint::decode("c", rows[0].clone()).unwrap(), checkpoint);
    assert_eq!(Generations::decode("v", rows[1].clone()).unwrap(), generations);
    let reads = |row: bytes::Bytes| {
        let read = (Checkpoint::decode("c", row.clone()).err(), Generations::decode("v", row).err());
        (read.0.map(|error| error.kind()), read.1.map(|error| error.kind()))
    };
    for (nth, row) in rows.iter().enumerate() {
        for end in 0..row.len() {
            let read = reads(row.slice(..end));
            assert_eq!([read.0, read.1][nth], Some(PortErrorKind::Corrupt), "cut at {end}");
        }
        for at in 0..row.len() {
            for flipped in [0x01, 0x80, 0xff] {
                let mut damaged = row.to_vec();
                damaged[at] ^= flipped;
                let read = reads(damaged.into());
                assert!(at > 0 || [read.0, read.1][nth].is_some(), "another format at {at}");
            }
        }
        let mut newer = row.to_vec();
        newer[0] = 2;
        let read = reads(newer.into());
        assert_eq!([read.0, read.1][nth], Some(PortErrorKind::TooNew));
    }
    // Another set of partitions is another place, not a later one.
    let other = Checkpoint {
        sources: vec![SourcePlaces { identity: "log-1".to_owned(), places: Vec::new() }],
        ..Checkpoint::default()
    };
    assert!(!checkpoint.covers(&other) && !other.covers(&checkpoint));
}
