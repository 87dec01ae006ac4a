//! The shapes of the laws, in sizes that take seconds.
use crate::{
    bodies::Way,
    death::Owned,
    processes,
    rooms::Room,
    sizes::{self, Subject},
};

#[test]
fn no_count_of_a_room_grows_faster_than_its_law() {
    let mut broken = Vec::new();
    for room in Room::ALL {
        // A group of 1,024 partitions has the same parts as one of 32.
        let sizes: &[usize] = match room {
            Room::Stream(1024) => continue,
            Room::Stream(_) => &[8, 32],
            _ => &[10, 40],
        };
        for load in [false, true] {
            broken.extend(processes::grow(room, load, sizes).broken());
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_time_without_an_owner_does_not_depend_on_the_number_of_processes() {
    for owned in [Owned::Leadership, Owned::Message, Owned::Partitions(32), Owned::Saga, Owned::Load] {
        for processes in [2, 8, 32] {
            let time = owned.without_owner(processes);
            assert!(
                time.is_some_and(|time| time <= owned.at_most()),
                "{}: {time:?} of {processes} processes, at most {:?}",
                owned.name(),
                owned.at_most()
            );
        }
    }
}

#[test]
fn an_operation_costs_at_most_half_more_with_each_decade_of_a_size() {
    let sizes = [1_000, 10_000];
    let mut broken = Vec::new();
    for subject in Subject::ALL {
        let costs: Vec<_> = sizes.iter().map(|size| subject.measure(*size)).collect();
        broken.extend(sizes::broken(subject, &sizes, &costs));
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn a_body_passes_the_wire_with_a_twentieth_more_and_a_constant_frame() {
    let broken: Vec<_> = Way::ALL
        .iter()
        .flat_map(|way| [100, 10_000, 1 << 20].map(|size| way.broken(size, way.measure(size))))
        .flatten()
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
}
