//! The watermark and its bitmap against a plain set, and the stored form against damage.
use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::{
    checkpoint::{Checkpoint, Suspect},
    finished::Finished,
};
use crate::port::FencingToken;

/// Finished positions above a watermark, one by one.
#[derive(Debug, Clone)]
struct Naive(u64, BTreeSet<u64>);

impl Naive {
    fn add(&mut self, position: u64) -> bool {
        let is_new = position > self.0 && self.1.insert(position);
        while self.1.remove(&(self.0 + 1)) {
            self.0 += 1;
        }
        is_new
    }

    fn skip_to(&mut self, position: u64) -> u64 {
        let lost = (self.0 + 1..=position).filter(|position| !self.1.contains(position)).count() as u64;
        self.0 = self.0.max(position);
        self.1.retain(|above| *above > position);
        while self.1.remove(&(self.0 + 1)) {
            self.0 += 1;
        }
        lost
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// This far above the watermark.
    Add(u64),
    Skip(u64),
    /// The checkpoint is written and read by a new owner.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..200_u64).prop_map(Step::Add),
        30 => (1..4_u64).prop_map(Step::Add),
        1 => (0..150_u64).prop_map(Step::Skip),
        3 => Just(Step::Restart),
    ]
}

fn agrees(set: &Finished, naive: &Naive) {
    assert_eq!(set.watermark(), naive.0);
    assert!(set.above().eq(naive.1.iter().copied()));
    assert_eq!(set.count_above(), naive.1.len() as u64);
    for position in naive.0.saturating_sub(3)..naive.0 + 210 {
        assert_eq!(set.contains(position), position <= naive.0 || naive.1.contains(&position), "{position}");
    }
}

proptest! {
    #[test]
    fn the_watermark_and_the_bits_above_it_are_those_of_a_plain_set(
        start in prop_oneof![Just(0_u64), 0..300_u64, Just(u64::MAX / 2)],
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let (mut set, mut naive) = (Finished::up_to(start), Naive(start, BTreeSet::new()));
        agrees(&set, &naive);
        for step in steps {
            let before = set.watermark();
            match step {
                Step::Add(above) => prop_assert_eq!(set.add(before + above), naive.add(before + above)),
                Step::Skip(above) => prop_assert_eq!(set.skip_to(before + above), naive.skip_to(before + above)),
                Step::Restart => {
                    let checkpoint = Checkpoint { finished: set.clone(), ..Checkpoint::default() };
                    let read = Checkpoint::decode(&checkpoint.encode()).unwrap();
                    prop_assert_eq!(&read, &checkpoint);
                    set = read.finished;
                }
            }
            prop_assert!(set.watermark() >= before, "it never moves back");
            agrees(&set, &naive);
        }
    }

    #[test]
    fn a_checkpoint_is_read_as_it_was_written(
        topic: u64, epoch: u64, writes: u64, claims: u32, careful_until: u64, lost: u64,
        suspect in prop::option::of((any::<u64>(), any::<u32>(), any::<bool>())),
        watermark in prop_oneof![0..u64::MAX / 2, 0..200_u64],
        above in prop::collection::vec(2..5_000_u64, 0..30),
    ) {
        let mut finished = Finished::up_to(watermark);
        for above in &above {
            finished.add(watermark + above);
        }
        let suspect = suspect.map(|(position, crashes, is_running)| Suspect { position, crashes, is_running });
        let checkpoint = Checkpoint { topic, epoch, writes, claims, careful_until, lost, suspect, finished };
        prop_assert_eq!(Checkpoint::decode(&checkpoint.encode()), Ok(checkpoint));
    }

    #[test]
    fn a_damaged_checkpoint_is_refused_or_differs_in_one_number(
        above in prop::collection::vec(2..200_u64, 0..30), at: prop::sample::Index, byte: u8, cut: prop::sample::Index,
    ) {
        let mut finished = Finished::up_to(77);
        for above in &above {
            finished.add(77 + above);
        }
        let suspect = Some(Suspect { position: 78, crashes: 1, is_running: true });
        let record = Checkpoint { finished, suspect, epoch: 5, ..Checkpoint::default() }.encode();
        prop_assert!(Checkpoint::decode(&record[..cut.index(record.len())]).is_err(), "it is cut");
        let mut damaged = record.to_vec();
        damaged[at.index(record.len())] = byte;
        if let Ok(read) = Checkpoint::decode(&damaged) {
            prop_assert_eq!(&*read.encode(), &*damaged, "one record has one form");
        }
    }

    #[test]
    fn any_bytes_are_refused_or_have_one_form(bytes: Vec<u8>) {
        if let Ok(read) = Checkpoint::decode(&bytes) {
            prop_assert_eq!(&*read.encode(), &*bytes);
        }
    }
}

#[test]
fn a_checkpoint_that_asks_for_too_much_memory_or_too_high_positions_is_refused() {
    let record = |at: &str, above: &str| format!("checkpoint 1\ntopic 0\nowner 1 1 0\nat {at} 0 0\n{above}end\n");
    let decode = |record: String| Checkpoint::decode(record.as_bytes());
    assert!(decode(record("5", "above 2\n")).is_ok());
    let damaged = Err("the checkpoint is damaged");
    assert_eq!(decode(record("5", &format!("above{} 1\n", " 0".repeat(1_000_000)))), damaged);
    assert_eq!(decode(record("5", &format!("above{} 2\n", " 0".repeat(2_000)))), damaged);
    assert_eq!(decode(record(&u64::MAX.to_string(), "")), damaged);
    assert_eq!(decode(record("5", "above 1\n")), damaged, "the event behind the watermark is not finished");
    assert_eq!(decode(record("5", "above 2 0\n")), damaged);
    assert_eq!(decode(record("05", "")), damaged);
    let newer = "checkpoint 2\nanything".to_owned();
    assert_eq!(decode(newer), Err("the checkpoint was written by a newer release"));
    assert_eq!(decode("order 42".to_owned()), Err("the record is not a checkpoint"));
}

#[test]
fn two_claims_in_a_row_that_found_events_and_finished_none_make_the_next_owner_careful() {
    let mut checkpoint = Checkpoint::default();
    for (token, careful_until) in [(1, 0), (2, 0), (3, 100), (4, 100)] {
        checkpoint.begin(FencingToken::new(token), 11, 100);
        assert_eq!(checkpoint.careful_until, careful_until, "{token}");
        // A claim whose reply was lost is the same claim.
        let again = checkpoint.clone();
        checkpoint.begin(FencingToken::new(token), 11, 100);
        assert_eq!(checkpoint, again);
    }
    let mut idle = Checkpoint::default();
    for token in 1..9 {
        idle.begin(FencingToken::new(token), 1, 100);
    }
    assert_eq!((idle.claims, idle.careful_until), (0, 0), "there was nothing to do");
}

#[test]
fn an_owner_that_dies_while_a_recorded_event_runs_is_counted_for_that_event_alone() {
    let suspect = |crashes, is_running| Some(Suspect { position: 7, crashes, is_running });
    let mut checkpoint = Checkpoint { suspect: suspect(0, true), ..Checkpoint::default() };
    checkpoint.begin(FencingToken::new(1), 11, 100);
    assert_eq!(checkpoint.suspect, suspect(1, false));
    // This owner dies before the event runs again.
    checkpoint.begin(FencingToken::new(2), 11, 100);
    assert_eq!(checkpoint.suspect, suspect(1, false));
}
