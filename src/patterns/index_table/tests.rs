//! Names of entries, stored forms, and counts of keys.
use bytes::Bytes;
use proptest::prelude::*;

use super::{
    IndexKey, RowKey,
    key::{beside, entry, entry_beside, parse, parse_beside, partition_of, partitions, prefix, unique_entry},
    repair::Counts,
    stored::{State, claim, copy, is_claim_of, owner, plain, tombstone},
};
use crate::store::Key;

/// Texts with the characters of which names are made.
fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!['\u{1}', '\u{2}', '\u{3}', 'a', 'b', '日']), 0..6)
        .prop_map(|chars| chars.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn an_entry_is_read_back_and_has_the_order_of_its_parts(
        (first, second, other, part, row) in (text(), text(), text(), text(), text()),
        longer in text(),
    ) {
        let (key, of) = (IndexKey::new(&first, &second), Key::new(&part, &row));
        let name = entry(&key, of);
        prop_assert_eq!(parse(&name), Some((key.clone(), Some(RowKey::from(of)))));
        prop_assert_eq!(parse(&unique_entry(&key)), Some((key, None)));
        // By the second part first, then by the row.
        let of_other = entry(&IndexKey::new(&first, &other), of);
        prop_assert_eq!(name.cmp(&of_other), second.cmp(&other));
        prop_assert_eq!(name.starts_with(&prefix(&first, &other)), second.starts_with(&other));
        // No entry of another first part has the prefix.
        let apart = entry(&IndexKey::new(&longer, &second), of);
        prop_assert_eq!(apart.starts_with(&prefix(&first, "")), first == longer);
    }

    #[test]
    fn an_entry_beside_a_row_is_read_back_by_its_index_alone_and_has_the_order_of_its_parts(
        (index, first, second, other, part, row) in (text(), text(), text(), text(), text(), text()),
    ) {
        let (key, of) = (IndexKey::new(&first, &second), Key::new(&part, &row));
        let name = entry_beside(&index, &key, &row);
        prop_assert_eq!(parse_beside(&index, Key::new(&part, &name)), Some((key, RowKey::from(of))));
        let of_other = entry_beside(&index, &IndexKey::new(&first, &other), &row);
        prop_assert_eq!(name.cmp(&of_other), second.cmp(&other));
        prop_assert!(name.starts_with(&(beside(&index) + &prefix(&first, &second))));
        prop_assert_eq!(name.starts_with(&(beside(&other) + &prefix(&first, ""))), index == other);
        prop_assert_eq!(parse_beside(&other, Key::new(&part, &name)).is_some(), index == other);
    }

    #[test]
    fn a_name_of_something_else_is_no_entry(name in text()) {
        if let Some((key, of)) = parse(&name) {
            let again = of.map_or_else(|| unique_entry(&key), |of| entry(&key, of.as_key()));
            prop_assert_eq!(again, name);
        }
    }

    #[test]
    fn coarse_keys_are_those_with_more_than_a_tenth(
        counts in prop::collection::vec(1u64..60, 0..200),
    ) {
        let mut counted = Counts::default();
        for (nth, count) in counts.iter().enumerate() {
            for _ in 0..*count {
                counted.add(&nth.to_string());
            }
        }
        let all: u64 = counts.iter().sum();
        let many = |count: &u64| all >= 100 && count * 10 > all;
        let naive: Vec<_> =
            counts.iter().enumerate().filter(|(_, n)| many(n)).map(|(nth, n)| (nth.to_string(), *n)).collect();
        prop_assert_eq!(counted.all, all);
        prop_assert_eq!(counted.coarse(), naive);
    }
}

#[test]
fn the_partition_of_a_key_is_the_same_on_every_machine_and_one_of_sixteen() {
    let all: Vec<_> = partitions("by-actor").collect();
    assert_eq!((all.len(), all[0].as_str(), all[15].as_str()), (16, "index/by-actor/00", "index/by-actor/15"));
    let golden = ["Weaver", "Hurt", ""].map(|first| partition_of("by-actor", first));
    assert_eq!(golden, ["index/by-actor/15", "index/by-actor/11", "index/by-actor/02"]);
    assert!((0..100).all(|n| all.contains(&partition_of("by-actor", &n.to_string()))));
}

#[test]
fn stored_forms_come_back_as_they_were_and_damage_is_noticed() {
    let of = Key::new("action", "日\u{1}");
    for kept in [None, Some(Bytes::new()), Some(Bytes::from_static(b"Alien"))] {
        let (claimed, entry) = (claim(of, kept.as_ref()), plain(kept.as_ref()));
        assert_eq!(owner("x", claimed.clone()).unwrap(), (RowKey::from(of), kept.clone()));
        assert!(is_claim_of(of, &claimed) && !is_claim_of(Key::new("action", "x"), &claimed));
        assert_eq!(copy("x", entry.clone()).unwrap(), kept);
        let whole = entry.len();
        for end in (0..whole).filter(|end| *end != 1) {
            assert!(copy("x", entry.slice(..end)).is_err(), "cut at {end}");
        }
        for (value, told) in [([2].to_vec(), "newer release"), ([&entry[..], &[7]].concat(), "cannot be decoded")] {
            let error = copy("x", value.into()).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
    let claimed = claim(of, None);
    let state = State { is_built: true, is_looked_up: false };
    assert_eq!(State::decode("x", state.encode()).unwrap(), state);
    for end in 0..claimed.len() {
        assert!(owner("x", claimed.slice(..end)).is_err(), "cut at {end}");
    }
    for end in 0..state.encode().len() {
        assert!(State::decode("x", state.encode().slice(..end)).is_err(), "cut at {end}");
    }
    for at in 0..3 {
        let mut damaged = state.encode().to_vec();
        damaged[at] = 7;
        let told = State::decode("x", damaged.into()).unwrap_err().to_string();
        assert!(told.contains(if at == 0 { "newer release" } else { "cannot be decoded" }), "{told}");
    }
    assert!(super::is_deleted(&tombstone()) && !super::is_deleted(&plain(None)) && !super::is_deleted(&Bytes::new()));
}
