//! Repairs, and what they report.
use steadfast::port::PortErrorKind;

use super::*;

// Guarantee: index_table 3.
#[test]
fn stale_entries_are_counted_by_look_ups_and_removed_by_a_repair() {
    let world = World::new();
    let table = world.built();
    world.put(&table, &movie("Alien", &["Weaver", "Hurt"]));
    world.put(&table, &movie("Heat", &["Weaver"]));
    // The process dies behind the row.
    world.script.always("delete", PortAnswer::fail(PortErrorKind::Unavailable));
    world.put(&table, &movie("Alien", &["Hurt"]));
    world.script.by(|_| PortAnswer::pass());
    let mut events = table.events();
    let page = world.run(table.lookup("by-actor", "Weaver").rows()).unwrap();
    assert_eq!((page.rows.len(), page.rows[0].value.title.as_str(), page.stale), (1, "Heat", 1));
    let told = IndexTableEvent::StaleEntries { index: "by-actor".to_owned(), entries: 1 };
    assert_eq!(events.try_recv().unwrap().unwrap().what, told);
    // Of another partition.
    assert_eq!(world.run(table.repair("drama")).unwrap().removed, 0);
    let report = world.run(table.repair("action")).unwrap();
    assert_eq!((report.rows, report.added, report.removed), (2, 0, 1));
    assert_eq!((world.entries("by-actor"), world.titles(&table, "Hurt")), (2, vec!["Alien".to_owned()]));
    let told: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect();
    assert!(told.contains(&IndexTableEvent::Repaired { added: 0, removed: 1, unreadable: 0 }), "{told:?}");
}

// Guarantee: index_table 3, 6.
#[test]
fn rows_that_were_written_past_the_table_are_repaired_and_an_unreadable_one_is_counted() {
    let world = World::new();
    let table = world.built();
    for (title, actor) in [("Alien", "Weaver"), ("Heat", "Pacino"), ("Brazil", "Pryce")] {
        world.put(&table, &movie(title, &[actor]));
    }
    world.write(&movie("Alien", &["Hurt"]));
    world.write(&Movie { isan: Some("5".to_owned()), ..movie("Gravity", &["Bullock"]) });
    world.run(world.stores[0].delete(at("Heat"), Precondition::Any.into())).unwrap();
    world.run(world.stores[0].put(at("Brazil"), "{".into(), Precondition::Any.into())).unwrap();
    assert_eq!((world.titles(&table, "Hurt").len(), world.titles(&table, "Weaver").len()), (0, 0));
    let report = world.run(table.repair("action")).unwrap();
    assert_eq!((report.rows, report.unreadable, report.added, report.removed), (3, 1, 3, 2));
    assert_eq!(
        (world.titles(&table, "Hurt"), world.titles(&table, "Bullock")),
        (vec!["Alien".to_owned()], vec!["Gravity".to_owned()])
    );
    assert!(is_duplicate(&world.run(table.put(at("Heat"), &numbered("Heat", "5"), Precondition::Any))));
    // What an unreadable row has is not known: its entry stays.
    assert_eq!(world.entries("by-actor"), 3);
    let report = world.run(table.repair("action")).unwrap();
    assert_eq!((report.unreadable, report.added, report.removed), (1, 0, 0));
}

// Guarantee: index_table 3.
#[test]
fn a_repair_removes_no_entry_that_a_put_on_its_way_needs() {
    for had_a_row in [false, true] {
        let world = World::new();
        let (table, other) = (world.built(), world.table());
        if had_a_row {
            world.put(&table, &movie("Alien", &[]));
        }
        let mut is_slow = true;
        world.script.by(move |call| match (call.method, call.target.as_str()) {
            ("put", "Alien") if std::mem::take(&mut is_slow) => PortAnswer::pass().request_takes(SECOND * 3),
            _ => PortAnswer::pass(),
        });
        let (put, report) = world.run(async {
            let alien = movie("Alien", &["Weaver"]);
            let put = table.put(at("Alien"), &alien, Precondition::Any);
            let repair = async {
                world.clock.sleep(SECOND).await;
                other.repair("action").await
            };
            futures::join!(put, repair)
        });
        put.unwrap();
        assert_eq!(report.unwrap().removed, 1);
        assert_eq!(world.titles(&table, "Weaver"), ["Alien"]);
    }
}

// Guarantee: index_table 6.
#[test]
fn a_repair_reports_an_index_that_was_never_looked_up_and_each_key_with_over_a_tenth_of_all_entries() {
    let world = World::new();
    let table = world.built();
    for n in 0..120 {
        let rare = format!("actor {n}");
        let cast: &[&str] = if n < 30 { &["Weaver", &rare] } else { &[&rare] };
        world.put(&table, &Movie { isan: Some(n.to_string()), ..movie(&format!("movie {n}"), cast) });
    }
    let mut events = table.events();
    let report = world.run(table.repair("action")).unwrap();
    let [actors, isans] = &report.indexes[..] else { panic!("{report:?}") };
    assert_eq!((actors.index.as_str(), actors.entries, actors.is_looked_up), ("by-actor", 150, false));
    assert_eq!(actors.coarse, [("Weaver".to_owned(), 30)]);
    assert_eq!((isans.entries, isans.coarse.len()), (120, 0));
    let told: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect();
    let coarse =
        IndexTableEvent::CoarseKey { index: "by-actor".to_owned(), key: "Weaver".to_owned(), entries: 30, all: 150 };
    assert!(told.contains(&coarse) && told.contains(&IndexTableEvent::NeverLookedUp { index: "by-isan".to_owned() }));
    // One process looks it up, and another one repairs.
    world.titles(&world.table(), "Weaver");
    let report = world.run(table.repair("action")).unwrap();
    assert_eq!(report.indexes.iter().map(|index| index.is_looked_up).collect::<Vec<_>>(), [true, false]);
}

// Guarantee: index_table 4.
#[test]
fn two_rows_with_one_unique_key_are_reported_and_the_index_is_not_served_until_one_changes() {
    let world = World::new();
    world.write(&numbered("Alien", "1"));
    world.write(&numbered("Heat", "1"));
    let table = world.table();
    assert!(is_duplicate(&world.run(table.build_indexes(["action"]))));
    let found = world.run(table.repair("action")).unwrap().duplicates;
    assert_eq!((found.len(), found[0].key.first(), found[0].row.row.as_str()), (1, "1", "Heat"));
    assert!(matches!(world.run(table.lookup("by-isan", "1").keys()), Err(IndexTableError::Building { .. })));
    world.put(&table, &numbered("Heat", "2"));
    world.run(table.build_indexes(["action"])).unwrap();
    assert_eq!(world.run(table.lookup("by-isan", "1").rows()).unwrap().rows[0].value.title, "Alien");
}

#[test]
fn an_index_of_a_newer_release_is_refused_and_not_written() {
    let world = World::new();
    let newer = bytes::Bytes::from_static(&[2, 1, 1]);
    world.run(world.stores[1].put(Key::new("index/by-actor", "state"), newer, Precondition::Any.into())).unwrap();
    let table = world.table();
    for told in [
        world.run(table.lookup("by-actor", "Weaver").keys()).map(drop),
        world.run(table.build_indexes(["action"])).map(drop),
    ] {
        assert!(told.unwrap_err().to_string().contains("newer release"));
    }
}
