//! Puts, deletes and look-ups.
use steadfast::port::{Capability, Failure, PortErrorKind};

use super::*;

// Guarantee: index_table 1.
#[test]
fn a_row_is_found_by_each_of_its_keys_until_the_next_put() {
    let world = World::new();
    let table = world.built();
    world.put(&table, &movie("Alien", &["Weaver", "Hurt"]));
    assert_eq!(
        (world.titles(&table, "Weaver"), world.titles(&table, "Hurt")),
        (vec!["Alien".to_owned()], vec!["Alien".to_owned()])
    );
    world.put(&table, &movie("Alien", &["Weaver", "Holm"]));
    assert_eq!(world.titles(&table, "Hurt"), [""; 0]);
    assert_eq!((world.titles(&table, "Weaver").len(), world.titles(&table, "Holm").len()), (1, 1));
    assert_eq!(world.entries("by-actor"), 2);
    assert!(world.run(table.delete(at("Alien"), Precondition::Any)).unwrap());
    assert!(!world.run(table.delete(at("Alien"), Precondition::Any)).unwrap());
    assert_eq!(world.run(table.get(at("Alien"))).unwrap(), None);
    assert_eq!((world.titles(&table, "Weaver").len(), world.entries("by-actor")), (0, 0));
    // The tombstone is in nobody's way.
    world.run(table.put(at("Alien"), &movie("Alien", &["Weaver"]), Precondition::Absent)).unwrap();
    assert_eq!(world.titles(&table, "Weaver"), ["Alien"]);
}

#[test]
fn a_tombstone_is_gone_after_grace_and_a_row_that_took_its_place_stays() {
    let world = World::new();
    let table = world.built();
    for title in ["Alien", "Aliens"] {
        world.put(&table, &movie(title, &["Weaver"]));
        world.run(table.delete(at(title), Precondition::Any)).unwrap();
    }
    let stored = || world.run(world.stores[0].scan_all(Scan::partition("action"))).unwrap();
    assert!(stored().len() == 2 && stored().iter().all(|row| steadfast::index_table::is_deleted(&row.value)));
    world.put(&table, &movie("Aliens", &["Weaver"]));
    world.time.advance(SECOND * 3_601);
    assert_eq!(stored().len(), 1);
    assert_eq!(world.titles(&table, "Weaver"), ["Aliens"]);
}

#[test]
fn a_look_up_has_the_order_of_the_second_part_a_prefix_and_pages() {
    let world = World::new();
    let table = world.built();
    for title in ["Heat", "Avatar", "Alien", "Aliens"] {
        world.put(&table, &movie(title, &["Weaver"]));
    }
    world.put(&table, &movie("Annie", &["Weave"]));
    assert_eq!(world.titles(&table, "Weaver"), ["Alien", "Aliens", "Avatar", "Heat"]);
    let with = |prefix: &str| world.run(table.lookup("by-actor", "Weaver").prefix(prefix).keys()).unwrap().rows.len();
    assert_eq!([with("A"), with("Alien"), with("Aliens"), with("B")], [3, 2, 1, 0]);
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let lookup = table.lookup("by-actor", "Weaver").limit(3);
        let page = world
            .run(
                match after {
                    Some(after) => lookup.after(after),
                    None => lookup,
                }
                .rows(),
            )
            .unwrap();
        assert!(page.rows.len() <= 3);
        seen.extend(page.rows.into_iter().map(|row| row.key.row));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, ["Alien", "Aliens", "Avatar", "Heat"]);
}

// Guarantee: index_table 5.
#[test]
fn a_put_that_changes_no_key_costs_two_requests_and_each_changed_key_three_more() {
    let world = World::new();
    let table = world.built();
    let cost = |act: &dyn Fn()| {
        world.script.forget();
        act();
        ["get", "put", "delete", "scan", "batch"].map(|method| world.script.calls(method).len()).iter().sum::<usize>()
    };
    let put = |cast: &[&str]| world.put(&table, &movie("Alien", cast));
    put(&["Weaver", "Hurt"]);
    assert_eq!(cost(&|| put(&["Weaver", "Hurt"])), 2);
    assert_eq!(cost(&|| put(&["Weaver", "Holm"])), 5);
    assert_eq!(cost(&|| put(&["Cruise", "Kidman"])), 8);
    assert_eq!(cost(&|| world.put(&table, &numbered("Heat", "1"))), 3);
    assert_eq!(cost(&|| world.put(&table, &numbered("Heat", "2"))), 5);
    let other = Key::new("drama", "Alien");
    world.run(table.put(other, &movie("Alien", &["Cruise"]), Precondition::Any)).unwrap();
    // The first look-up of a process reads the state of the index, and notes itself.
    assert_eq!(cost(&|| assert_eq!(world.titles(&table, "Cruise").len(), 2)), 5);
    assert_eq!(cost(&|| assert_eq!(world.titles(&table, "Cruise").len(), 2)), 3);
    assert_eq!(cost(&|| drop(world.run(table.lookup("by-actor", "Cruise").keys()).unwrap())), 1);
    let fresh = world.table();
    assert_eq!(cost(&|| assert_eq!(world.titles(&fresh, "Cruise").len(), 2)), 4);
}

// Guarantee: index_table 4.
#[test]
fn rows_that_were_there_before_stay_as_they_are_and_are_found_once_the_indexes_are_built() {
    let world = World::new();
    let old: Vec<Movie> = (0..250).map(|n| movie(&format!("Old {n:03}"), &["Weaver"])).collect();
    old.iter().for_each(|movie| world.write(movie));
    let rows = || world.run(world.stores[0].scan_all(Scan::partition("action"))).unwrap();
    let (before, table) = (rows(), world.table());
    let building = world.run(table.lookup("by-actor", "Weaver").rows()).unwrap_err();
    assert!(matches!(&building, IndexTableError::Building { index } if index == "by-actor"), "{building}");
    assert_eq!(building.class(), steadfast::port::ErrorClass::Transient);
    // Puts keep the index meanwhile: of a new row, and of one that was there.
    world.put(&table, &movie("New", &["Weaver"]));
    world.put(&table, &movie("Old 007", &["Craig"]));
    let report = world.run(table.build_indexes(["action"])).unwrap();
    assert_eq!((report.rows, report.added, report.unreadable), (251, 249, 0));
    let mut found = 0;
    let mut lookup = table.lookup("by-actor", "Weaver");
    loop {
        let page = world.run(lookup.rows()).unwrap();
        found += page.rows.len();
        match page.next {
            Some(next) => lookup = table.lookup("by-actor", "Weaver").after(next),
            None => break,
        }
    }
    assert_eq!((found, world.titles(&table, "Craig").len()), (250, 1));
    // Not touched, and not rewritten.
    assert_eq!(before.iter().filter(|row| rows().contains(row)).count(), 249);
    // It stays built.
    assert_eq!(world.titles(&world.table(), "Craig"), ["Old 007"]);
}

#[test]
fn a_precondition_holds_for_the_row_as_it_is() {
    let world = World::new();
    let table = world.built();
    let put = |when| world.run(table.put(at("Alien"), &movie("Alien", &["Weaver"]), when));
    let first = put(Precondition::Absent).unwrap();
    let conflict = put(Precondition::Absent).unwrap_err();
    assert!(matches!(conflict, IndexTableError::Conflict { current } if current == Some(first)), "{conflict}");
    let second = put(Precondition::Version(first)).unwrap();
    assert!(put(Precondition::Version(first)).is_err());
    let delete = |when| world.run(table.delete(at("Alien"), when));
    assert!(
        matches!(delete(Precondition::Version(first)), Err(IndexTableError::Conflict { current }) if current == Some(second))
    );
    assert!(delete(Precondition::Version(second)).unwrap());
    // A tombstone is no row.
    assert!(matches!(put(Precondition::Version(second)), Err(IndexTableError::Conflict { current: None })));
    assert!(matches!(delete(Precondition::Version(second)), Err(IndexTableError::Conflict { current: None })));
}

#[test]
fn a_put_whose_answer_is_lost_says_that_it_may_have_been_written() {
    let world = World::new();
    let table = world.built();
    world.put(&table, &movie("Alien", &["Weaver"]));
    world.script.by(|call| match call.method {
        "put" => PortAnswer::lose(PortErrorKind::Unavailable),
        _ => PortAnswer::pass(),
    });
    let lost = world.run(table.put(at("Alien"), &movie("Alien", &["Weaver"]), Precondition::Any)).unwrap_err();
    assert!(lost.may_have_been_applied(), "{lost}");
    // A store that does not answer is waited for, but not for ever.
    world.script.by(|call| if call.method == "get" { PortAnswer::hang() } else { PortAnswer::pass() });
    let late = world.run(table.get(at("Alien"))).unwrap_err();
    assert!(late.to_string().contains("did not answer in time"), "{late}");
}

// Guarantee: index_table 7.
#[test]
fn what_breaks_a_rule_is_refused_by_its_name() {
    let world = World::new();
    let store = || world.stores[0].clone();
    let none = |_: &Movie| Vec::new();
    let refused = |base: Arc<dyn Store>, config, names: &[&str], index: Arc<dyn Store>| {
        let mut builder = IndexTable::builder(base, json(), config);
        for name in names {
            builder = builder.index(*name, index.clone(), none);
        }
        builder.build().map(drop).unwrap_err().to_string()
    };
    let (config, clock) = (IndexTableConfig::default(), &world.clock);
    let lacking = |capability| ScriptedPort::changing(clock, move |can| can.without(capability)).store(store());
    for (text, told) in [
        ("`index`", refused(store(), config, &["a", "b", "a"], store())),
        ("`index`", refused(store(), config, &[""], store())),
        ("`linearizable`", refused(lacking(Capability::Linearizable), config, &["a"], store())),
        ("`linearizable`", refused(store(), config, &["a"], lacking(Capability::Linearizable))),
        ("`time to live`", refused(lacking(Capability::TimeToLive), config, &["a"], store())),
        ("`patience`", refused(store(), config.patience(Duration::ZERO), &["a"], store())),
        ("`grace`", refused(store(), config.grace(SECOND * 59), &["a"], store())),
        ("`grace`", refused(store(), config.patience(SECOND * 7).grace(SECOND * 69), &["a"], store())),
        ("`page`", refused(store(), config.page(0), &["a"], store())),
    ] {
        assert!(told.contains(text), "{text}: {told}");
    }

    let table = world.built();
    let put = |movie: &Movie| world.run(table.put(at("x"), movie, Precondition::Any)).unwrap_err().to_string();
    let twice = put(&movie("Alien", &["Weaver", "Hurt", "Weaver"]));
    assert!(twice.contains("`index key`") && twice.contains("twice"), "{twice}");
    let unknown = world.run(table.lookup("by-year", "1979").keys()).unwrap_err().to_string();
    assert!(unknown.contains("`index`") && unknown.contains("by-year"), "{unknown}");
    let delete = world.run(table.delete(at("x"), Precondition::Absent)).unwrap_err().to_string();
    assert!(delete.contains("`when`"), "{delete}");
    let short = ScriptedPort::changing(clock, |can| can.largest_key(60)).store(store());
    let table = IndexTable::builder(store(), json(), config).index("by-actor", short, by_actor).clock(clock).build();
    let long = movie("Alien", &["W".repeat(50).as_str()]);
    let long = world.run(table.unwrap().put(at("x"), &long, Precondition::Any)).unwrap_err().to_string();
    assert!(long.contains("`index key`") && long.contains("60 bytes"), "{long}");
    // Nothing was written.
    assert_eq!(world.run(world.stores[0].get(at("x"))).unwrap(), None);
}

#[test]
fn a_row_that_does_not_decode_is_named_and_no_put_takes_its_place() {
    let world = World::new();
    let table = world.built();
    world.put(&table, &movie("Alien", &["Weaver"]));
    world.run(world.stores[0].put(at("Alien"), "{".into(), Precondition::Any.into())).unwrap();
    for told in [
        world.run(table.get(at("Alien"))).map(drop),
        world.run(table.put(at("Alien"), &movie("Alien", &[]), Precondition::Any)).map(drop),
        world.run(table.delete(at("Alien"), Precondition::Any)).map(drop),
    ] {
        let error = told.unwrap_err();
        assert_eq!(error.backend().map(|error| error.kind()), Some(PortErrorKind::Corrupt));
        assert!(error.to_string().contains("\"action\"/\"Alien\""), "{error}");
    }
}

#[test]
fn a_put_that_waited_for_longer_than_half_of_grace_begins_anew() {
    let world = World::new();
    let table = world.built();
    // The process stands still behind the entry.
    let (mut is_first, time) = (true, world.time.clone());
    world.script.by(move |call| {
        if call.method == "put" && call.target.contains("Weaver") && std::mem::take(&mut is_first) {
            time.advance(SECOND * 31);
        }
        PortAnswer::pass()
    });
    let short = IndexTableConfig::default().grace(SECOND * 60);
    let [base, actors, _] = world.stores.clone().map(|store| world.script.store(store));
    let brief = IndexTable::builder(base, json(), short)
        .index("by-actor", actors, by_actor)
        .clock(&world.clock)
        .build()
        .unwrap();
    world.script.forget();
    world.run(brief.put(at("Alien"), &movie("Alien", &["Weaver"]), Precondition::Any)).unwrap();
    // The row and its entry are read and written twice, but the row is put once.
    assert_eq!((world.script.calls("get").len(), world.script.calls("put").len()), (2, 3));
    assert_eq!(world.titles(&table, "Weaver"), ["Alien"]);
}
