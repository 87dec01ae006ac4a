//! Random puts, deletes and look-ups, beside the plainest model.
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    beside::{assert_exact, built},
    *,
};

#[derive(Debug, Clone)]
enum Act {
    Put(usize, Vec<usize>, Option<u8>),
    Delete(usize),
    /// Past the table, and a repair behind it.
    Write(usize, Vec<usize>),
    LookUp(usize, &'static str),
}

const TITLES: [&str; 4] = ["Alien", "Aliens", "A\u{1}", "日本"];
const ACTORS: [&str; 3] = ["Weaver", "Weaver\u{1}", ""];

fn act() -> impl Strategy<Value = Act> {
    let cast = || prop::sample::subsequence(vec![0, 1, 2], 0..=3);
    let prefix = prop::sample::select(vec!["", "A", "Alien", "\u{1}", "日"]);
    prop_oneof![
        3 => (0..4usize, cast(), prop::option::of(0..3u8)).prop_map(|(row, cast, isan)| Act::Put(row, cast, isan)),
        1 => (0..4usize).prop_map(Act::Delete),
        1 => (0..4usize, cast()).prop_map(|(row, cast)| Act::Write(row, cast)),
        3 => (0..3usize, prefix).prop_map(|(actor, prefix)| Act::LookUp(actor, prefix)),
    ]
}

fn of(row: usize, cast: &[usize], isan: Option<u8>) -> Movie {
    let cast: Vec<_> = cast.iter().map(|actor| ACTORS[*actor]).collect();
    Movie { isan: isan.map(|n| n.to_string()), ..movie(TITLES[row], &cast) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    // Guarantee: index_table 1, 2, 9.
    #[test]
    fn look_ups_are_those_of_a_naive_model(acts in prop::collection::vec(act(), 1..40)) {
        let world = World::new();
        let (table, mut rows) = (built(&world), BTreeMap::<usize, Movie>::new());
        for act in acts {
            match act {
                Act::Put(row, cast, isan) => {
                    let movie = of(row, &cast, isan);
                    let is_taken = isan.is_some() && rows.iter().any(|(at, of)| *at != row && of.isan == movie.isan);
                    let put = world.run(table.put(at(TITLES[row]), &movie, Precondition::Any));
                    prop_assert_eq!(is_duplicate(&put), is_taken);
                    if !is_taken {
                        put.unwrap();
                        rows.insert(row, movie);
                    }
                }
                Act::Delete(row) => {
                    let is_there = rows.remove(&row).is_some();
                    prop_assert_eq!(world.run(table.delete(at(TITLES[row]), Precondition::Any)).unwrap(), is_there);
                }
                Act::Write(row, cast) => {
                    let movie = of(row, &cast, None);
                    world.write(&movie);
                    rows.insert(row, movie);
                    world.run(table.repair("action")).unwrap();
                }
                Act::LookUp(actor, prefix) => {
                    let found = world.run(table.lookup("by-actor", ACTORS[actor]).prefix(prefix).rows()).unwrap();
                    let beside = table.lookup("by-cast", ACTORS[actor]).within("action").prefix(prefix);
                    prop_assert_eq!(&world.run(beside.rows()).unwrap(), &found);
                    let mut naive: Vec<_> = rows
                        .values()
                        .filter(|movie| movie.cast.iter().any(|of| of == ACTORS[actor]) && movie.title.starts_with(prefix))
                        .cloned()
                        .collect();
                    naive.sort_by(|one, other| one.title.cmp(&other.title));
                    prop_assert_eq!(found.rows.into_iter().map(|row| row.value).collect::<Vec<_>>(), naive);
                }
            }
            assert_exact(&world);
        }
        world.run(table.repair("action")).unwrap();
        prop_assert_eq!(world.entries("by-actor"), rows.values().map(|movie| movie.cast.len()).sum::<usize>());
        prop_assert_eq!(world.entries("by-isan"), rows.values().filter(|movie| movie.isan.is_some()).count());
    }
}
