//! The division of partitions: equal, stable, and without theft.
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::balance::{Plan, View, plan};

type Members = BTreeMap<String, BTreeSet<u16>>;

fn name(i: usize) -> String {
    format!("m{i:02}")
}

/// Members with these partitions, of which each has one owner at most.
fn members(owners: &[Option<usize>], count: usize) -> Members {
    let mut members: Members = (0..count).map(|i| (name(i), BTreeSet::new())).collect();
    for (partition, owner) in owners.iter().enumerate() {
        if let Some(owner) = owner {
            members.get_mut(&name(owner % count)).unwrap().insert(partition as u16);
        }
    }
    members
}

/// A view in which no member is new.
fn view(members: &Members) -> View {
    View { live: members.clone(), ..View::default() }
}

fn counts(members: &Members) -> Vec<usize> {
    let mut counts: Vec<_> = members.values().map(BTreeSet::len).collect();
    counts.sort_unstable_by(|one, other| other.cmp(one));
    counts
}

/// Each member does its part.
fn carry_out(partitions: u16, members: &Members) -> (Members, usize) {
    let (mut after, mut moved) = (members.clone(), 0);
    for me in members.keys() {
        let Plan { take, ask } = plan(partitions, &view(members), me);
        for (owner, partition) in ask {
            assert!(after.get_mut(&owner).unwrap().remove(&partition), "asked once, and its owner");
            assert!(after.get_mut(me).unwrap().insert(partition));
            moved += 1;
        }
        for partition in take {
            assert!(after.values().all(|own| !own.contains(&partition)), "{partition} was free, and falls to one");
            after.get_mut(me).unwrap().insert(partition);
        }
    }
    (after, moved)
}

#[test]
fn ten_partitions_on_four_members_are_three_three_two_and_two() {
    let (after, _) = carry_out(10, &members(&[None; 10], 4));
    assert_eq!(counts(&after), [3, 3, 2, 2]);
    let (after, moved) = carry_out(10, &members(&[Some(1); 10], 4));
    assert_eq!((counts(&after), moved), (vec![3, 3, 2, 2], 7));
}

#[test]
fn a_partition_that_two_members_name_for_a_moment_moves_no_other_one() {
    // m0 has given partition 0 to m1, and has not announced that yet.
    let members: Members = [(name(0), [0, 1, 2].into()), (name(1), [0, 3].into())].into();
    for me in members.keys() {
        assert_eq!(plan(4, &view(&members), me), Plan::default(), "{me}");
    }
}

#[test]
fn the_partitions_of_a_dead_member_fall_to_no_newcomer_unless_all_are_new() {
    // m0 was started a moment ago. Partitions 2 and 3 are free.
    let live = members(&[Some(1), Some(2), None, None], 3);
    let parts = |newcomers: &[usize], left: &[u16]| {
        let newcomers = newcomers.iter().copied().map(name).collect();
        let view = View { live: live.clone(), newcomers, left: left.iter().copied().collect() };
        (0..3).map(|i| plan(4, &view, &name(i)).take).collect::<Vec<_>>()
    };
    assert_eq!(parts(&[0], &[2, 3]), [vec![], vec![2], vec![3]]);
    assert_eq!(parts(&[0], &[3]), [vec![2], vec![3], vec![]]);
    let equal = [vec![2, 3], vec![], vec![]];
    for (newcomers, left) in [(&[][..], &[2, 3][..]), (&[0, 1, 2], &[2, 3]), (&[0], &[]), (&[0], &[0, 1])] {
        assert_eq!(parts(newcomers, left), equal, "{newcomers:?} {left:?}");
    }
}

#[test]
fn a_newcomer_asks_for_its_share_once_the_partitions_of_dead_members_have_owners() {
    let newcomers: BTreeSet<_> = [name(0)].into();
    let mut view =
        View { newcomers, left: [4, 5].into(), ..view(&members(&[Some(1), Some(1), Some(2), Some(2), None, None], 3)) };
    assert_eq!(plan(6, &view, &name(0)), Plan::default());
    view.live.get_mut(&name(1)).unwrap().insert(4);
    view.live.get_mut(&name(2)).unwrap().insert(5);
    assert_eq!(plan(6, &view, &name(0)).ask.len(), 2);
}

proptest! {
    #[test]
    fn one_round_makes_equal_shares_with_the_fewest_moves_and_then_nothing_moves(
        owners in prop::collection::vec(prop::option::of(0..8_usize), 1..70), count in 1..9_usize,
    ) {
        let partitions = owners.len() as u16;
        let before = members(&owners, count);
        let (after, moved) = carry_out(partitions, &before);
        let (floor, rest) = (owners.len() / count, owners.len() % count);
        let fair: Vec<_> = (0..count).map(|i| floor + usize::from(i < rest)).collect();
        prop_assert_eq!(counts(&after), fair);
        // A member gives what it has above the ceiling, and one more for each ceiling too many.
        let above: usize = before.values().map(|own| own.len().saturating_sub(floor + 1)).sum();
        let ceilings = before.values().filter(|own| own.len() > floor).count();
        prop_assert_eq!(moved, above + ceilings.saturating_sub(rest));
        let (again, moved) = carry_out(partitions, &after);
        prop_assert_eq!((again, moved), (after, 0));
    }

    /// A member that is to wait for the lease of a dead owner has begun to wait. It was once
    /// another one after each claim of a partition beside it, and the wait began anew: 44 s until
    /// all 1,024 partitions had owners.
    #[test]
    fn a_free_partition_keeps_its_taker_while_others_are_claimed(
        owners in prop::collection::vec(prop::option::of(0..8_usize), 1..70), count in 1..9_usize,
        claimed in prop::collection::vec(any::<bool>(), 70),
    ) {
        let partitions = owners.len() as u16;
        let mut before = view(&members(&owners, count));
        before.left = (0..partitions).filter(|partition| partition % 3 > 0).collect();
        let mut after = before.clone();
        let mut waits = BTreeMap::new();
        for me in before.live.keys() {
            for partition in plan(partitions, &before, me).take {
                if claimed[usize::from(partition)] {
                    after.live.get_mut(me).unwrap().insert(partition);
                } else {
                    waits.insert(partition, me.clone());
                }
            }
        }
        let takes = |me: &String| plan(partitions, &after, me).take.into_iter().map(|at| (at, me.clone())).collect::<Vec<_>>();
        prop_assert_eq!(after.live.keys().flat_map(takes).collect::<BTreeMap<_, _>>(), waits);
    }

    /// The views of some members are older.
    #[test]
    fn members_with_different_views_converge_when_their_views_do(
        owners in prop::collection::vec(prop::option::of(0..5_usize), 1..40), count in 2..6_usize,
        stale in prop::collection::vec(0..6_usize, 0..40),
    ) {
        let partitions = owners.len() as u16;
        let mut history = vec![members(&owners, count)];
        for late in stale {
            let now = history.last().unwrap().clone();
            let me = name(late % count);
            // This one sees itself as it is, and the others as they were.
            let mut seen = history[history.len().saturating_sub(1 + late)].clone();
            seen.insert(me.clone(), now[&me].clone());
            let Plan { take, ask } = plan(partitions, &view(&seen), &me);
            let mut after = now.clone();
            for (owner, partition) in ask {
                if after.get_mut(&owner).unwrap().remove(&partition) {
                    after.get_mut(&me).unwrap().insert(partition);
                }
            }
            for partition in take {
                // The lease of another one decides.
                if now.values().all(|own| !own.contains(&partition)) {
                    after.get_mut(&me).unwrap().insert(partition);
                }
            }
            history.push(after);
        }
        let (after, _) = carry_out(partitions, history.last().unwrap());
        let counts = counts(&after);
        prop_assert!(counts[0] - counts[count - 1] <= 1, "{:?}", counts);
        prop_assert_eq!(counts.iter().sum::<usize>(), owners.len());
    }
}
