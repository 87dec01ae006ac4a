//! Keys that one row at most has.
use steadfast::port::PortErrorKind;

use super::*;

// Guarantee: index_table 2.
#[test]
fn one_row_at_most_has_a_unique_key() {
    let world = World::new();
    let table = world.built();
    world.put(&table, &numbered("Alien", "1"));
    let taken = world.run(table.put(at("Heat"), &numbered("Heat", "1"), Precondition::Any));
    let Err(IndexTableError::Duplicate { index, key }) = taken else { panic!("{taken:?}") };
    assert_eq!((index.as_str(), key), ("by-isan", IndexKey::from("1")));
    assert_eq!(world.run(table.get(at("Heat"))).unwrap(), None);
    // The row itself keeps it, gives it away, and takes it back.
    world.put(&table, &numbered("Alien", "1"));
    world.put(&table, &numbered("Alien", "2"));
    world.put(&table, &numbered("Heat", "1"));
    assert!(is_duplicate(&world.run(table.put(at("Alien"), &numbered("Alien", "1"), Precondition::Any))));
    assert!(world.run(table.delete(at("Heat"), Precondition::Any)).unwrap());
    world.put(&table, &numbered("Alien", "1"));
    assert_eq!(world.run(table.lookup("by-isan", "1").rows()).unwrap().rows[0].value, numbered("Alien", "1"));
    assert_eq!(world.entries("by-isan"), 1);
    // A row without a number has no entry.
    world.put(&table, &movie("Alien", &[]));
    assert_eq!(world.entries("by-isan"), 0);
}

/// Leaves a claim of "Alien" for the number 1, whose put has failed.
fn claimed(world: &World) -> IndexTable<Movie> {
    let table = world.built();
    world.script.by(|call| match (call.method, call.target.as_str()) {
        ("put", "Alien") => PortAnswer::fail(PortErrorKind::Unavailable),
        _ => PortAnswer::pass(),
    });
    assert!(world.run(table.put(at("Alien"), &numbered("Alien", "1"), Precondition::Any)).is_err());
    world.script.by(|_| PortAnswer::pass());
    assert_eq!(world.entries("by-isan"), 1);
    table
}

// Guarantee: index_table 2.
#[test]
fn a_claim_whose_row_lacks_it_is_taken_over_once_it_was_unchanged_for_patience() {
    let world = World::new();
    let table = claimed(&world);
    let mut events = table.events();
    let began = world.clock.now();
    world.put(&table, &numbered("Heat", "1"));
    assert!((SECOND..=SECOND * 2).contains(&(world.clock.now() - began)));
    assert_eq!(events.try_recv().unwrap().unwrap().what, IndexTableEvent::TookOver { index: "by-isan".to_owned() });
    assert_eq!(world.run(table.lookup("by-isan", "1").rows()).unwrap().rows[0].value.title, "Heat");
    // The row that the claim was for comes back without waiting.
    let began = world.clock.now();
    assert!(is_duplicate(&world.run(table.put(at("Alien"), &numbered("Alien", "1"), Precondition::Any))));
    assert_eq!(world.clock.now(), began);
}

#[test]
fn the_row_of_a_claim_goes_on_with_it_at_once() {
    let world = World::new();
    let table = claimed(&world);
    let began = world.clock.now();
    world.put(&table, &numbered("Alien", "1"));
    assert_eq!(world.clock.now(), began);
    assert_eq!(world.run(table.lookup("by-isan", "1").rows()).unwrap().rows.len(), 1);
}

// Guarantee: index_table 2.
#[test]
fn a_put_that_is_on_its_way_while_its_key_is_taken_over_is_refused() {
    for had_a_row in [false, true] {
        let world = World::new();
        let table = world.built();
        if had_a_row {
            world.put(&table, &movie("Alien", &[]));
        }
        let mut is_slow = true;
        world.script.by(move |call| match (call.method, call.target.as_str()) {
            ("put", "Alien") if std::mem::take(&mut is_slow) => PortAnswer::pass().request_takes(SECOND * 3),
            _ => PortAnswer::pass(),
        });
        let other = world.table();
        let (slow, fast) = world.run(async {
            let (alien, heat) = (numbered("Alien", "1"), numbered("Heat", "1"));
            let slow = table.put(at("Alien"), &alien, Precondition::Any);
            let fast = async {
                world.clock.sleep(SECOND / 10).await;
                other.put(at("Heat"), &heat, Precondition::Any).await
            };
            futures::join!(slow, fast)
        });
        fast.unwrap();
        assert!(is_duplicate(&slow), "{slow:?}");
        assert_eq!(world.run(table.lookup("by-isan", "1").rows()).unwrap().rows[0].value.title, "Heat");
        let alien = world.run(table.get(at("Alien"))).unwrap();
        assert_eq!(alien.map(|row| row.value), had_a_row.then(|| movie("Alien", &[])));
    }
}
