//! Indexes beside the rows: entries in the partition of their row, in one batch with it.
use std::collections::BTreeMap;

use bytes::Bytes;
use steadfast::{
    entropy::Entropy,
    index_table::RepairReport,
    port::{Capability, Failure, PortErrorKind},
    testing::drop_at_every_await,
};

use super::*;

/// A copy that changes with all of the cast, also where a key stays.
fn billing(movie: &Movie) -> String {
    movie.cast.join(", ")
}

/// A table with indexes of all kinds, over these stores.
fn opened(world: &World, [base, actors, isans]: [Arc<dyn Store>; 3]) -> IndexTable<Movie> {
    IndexTable::builder(base, json(), IndexTableConfig::default())
        .index("by-actor", actors, by_actor)
        .unique("by-isan", isans, |movie: &Movie| movie.isan.clone())
        .beside("by-cast", by_actor)
        .beside("by-title", |movie: &Movie| vec![IndexKey::from(&*movie.title)])
        .copying("by-cast", billing)
        .clock(&world.clock)
        .entropy(&Entropy::from_seed(1))
        .build()
        .unwrap()
}

/// A table whose indexes are built, with two that lie beside the rows.
pub(super) fn built(world: &World) -> IndexTable<Movie> {
    let table = opened(world, world.stores.clone().map(|store| world.script.store(store)));
    world.run(table.build_indexes(["action"])).unwrap();
    table
}

/// A table over the rows alone, with both indexes beside them.
fn alone(world: &World, base: Arc<dyn Store>) -> IndexTable<Movie> {
    IndexTable::builder(base, json(), IndexTableConfig::default())
        .beside("by-cast", by_actor)
        .beside("by-title", |movie: &Movie| vec![IndexKey::from(&*movie.title)])
        .copying("by-cast", billing)
        .clock(&world.clock)
        .build()
        .unwrap()
}

/// A table of a release with one index beside the rows, and without copies.
fn without_copies(world: &World, base: Arc<dyn Store>) -> IndexTable<Movie> {
    IndexTable::builder(base, json(), IndexTableConfig::default())
        .beside("by-cast", by_actor)
        .clock(&world.clock)
        .build()
        .unwrap()
}

fn escaped(part: &str) -> String {
    part.replace('\u{1}', "\u{1}\u{2}")
}

/// The name of an entry.
fn entry(index: &str, first: &str, second: &str, row: &str) -> String {
    let [index, first, second, row] = [index, first, second, row].map(escaped);
    format!("index/{index}\u{1}\u{1}{first}\u{1}\u{1}{second}\u{1}\u{1}{row}")
}

/// The rows of a partition past the table: its movies, and the entries beside them.
fn stored(world: &World, partition: &str) -> (Vec<Movie>, BTreeMap<String, Bytes>) {
    let rows = world.run(world.stores[0].scan_all(Scan::partition(partition))).unwrap();
    let (entries, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.row.starts_with("index/"));
    let movies = rows.iter().filter_map(|row| json().decode(&row.value).ok()).collect();
    (movies, entries.into_iter().map(|entry| (entry.row, entry.value)).collect())
}

/// Each movie has its entries beside it with their copies, and there are no others.
pub(super) fn assert_exact(world: &World) {
    let (movies, entries) = stored(world, "action");
    let mut wanted = BTreeMap::new();
    for movie in movies {
        let title = &movie.title;
        let copy = billing(&movie);
        let value = Bytes::from([&[1, u8::try_from(copy.len()).unwrap()], copy.as_bytes()].concat());
        wanted.extend(movie.cast.iter().map(|actor| (entry("by-cast", actor, title, title), value.clone())));
        wanted.insert(entry("by-title", title, "", title), Bytes::from_static(&[1]));
    }
    assert_eq!(entries, wanted);
}

fn titles(world: &World, table: &IndexTable<Movie>, actor: &str) -> Vec<String> {
    let page = world.run(table.lookup("by-cast", actor).within("action").rows()).unwrap();
    page.rows.into_iter().map(|row| row.value.title).collect()
}

fn changes(report: &RepairReport) -> (u64, u64, u64) {
    (report.added, report.removed, report.copied)
}

// Guarantee: index_table 9.
#[test]
fn a_row_and_the_entries_beside_it_are_written_in_one_batch() {
    let world = World::new();
    let table = alone(&world, world.script.store(world.stores[0].clone()));
    world.run(table.build_indexes(["action"])).unwrap();
    let calls = |act: &dyn Fn()| {
        world.script.forget();
        act();
        assert_exact(&world);
        world.script.calls("").into_iter().map(|call| call.method).collect::<Vec<_>>()
    };
    let put = |cast: &[&str]| world.put(&table, &movie("Alien", cast));
    assert_eq!(calls(&|| put(&["Weaver", "Hurt"])), ["get", "batch"]);
    assert_eq!(calls(&|| put(&["Weaver", "Hurt"])), ["get", "put"]);
    assert_eq!(calls(&|| world.put(&table, &numbered("Heat", "1"))), ["get", "batch"]);
    assert_eq!(calls(&|| world.put(&table, &numbered("Heat", "2"))), ["get", "put"]);
    assert_eq!(calls(&|| put(&["Weaver", "Holm"])), ["get", "batch"]);
    // The copies alone change.
    assert_eq!(calls(&|| put(&["Holm", "Weaver"])), ["get", "batch"]);
    // The first look-up of a process reads the state of the index, and notes itself.
    let look = || assert_eq!(titles(&world, &table, "Weaver"), ["Alien"]);
    assert_eq!(calls(&look), ["get", "put", "scan", "scan"]);
    assert_eq!(calls(&look), ["scan", "scan"]);
    let copies = || {
        let page = world.run(table.lookup("by-cast", "Weaver").within("action").copies()).unwrap();
        assert_eq!((page.rows[0].key.as_key(), page.rows[0].copy.as_ref()), (at("Alien"), "Holm, Weaver".as_bytes()));
    };
    assert_eq!(calls(&copies), ["scan"]);
    let delete = || assert!(world.run(table.delete(at("Alien"), Precondition::Any)).unwrap());
    assert_eq!(calls(&delete), ["get", "batch"]);
    assert_eq!(titles(&world, &table, "Weaver"), [""; 0]);
    // In the place of the tombstone.
    assert_eq!(calls(&|| put(&["Weaver"])), ["get", "batch"]);
    assert_eq!(titles(&world, &table, "Weaver"), ["Alien"]);
}

// Guarantee: index_table 1.
#[test]
fn a_look_up_beside_the_rows_has_one_partition_an_order_a_prefix_and_pages() {
    let world = World::new();
    let table = built(&world);
    for title in ["Heat", "Avatar", "Alien", "Aliens"] {
        world.put(&table, &movie(title, &["Weaver"]));
        let drama = Key::new("drama", title);
        world.run(table.put(drama, &movie(title, &["Weaver", "Hurt"]), Precondition::Any)).unwrap();
    }
    world.put(&table, &movie("Annie", &["Weave"]));
    assert_eq!(titles(&world, &table, "Weaver"), ["Alien", "Aliens", "Avatar", "Heat"]);
    assert_eq!(titles(&world, &table, "Hurt"), [""; 0]);
    let look = |actor: &str| table.lookup("by-cast", actor).within("drama");
    let hurt = world.run(look("Hurt").prefix("Al").keys()).unwrap();
    let found: Vec<_> = hurt.rows.iter().map(|row| row.as_key()).collect();
    assert_eq!(found, [Key::new("drama", "Alien"), Key::new("drama", "Aliens")]);
    let (mut lookup, mut seen) = (look("Weaver").limit(3), Vec::new());
    loop {
        let page = world.run(lookup.rows()).unwrap();
        assert!(page.rows.len() <= 3);
        seen.extend(page.rows.into_iter().map(|row| row.key.row));
        match page.next {
            Some(next) => lookup = look("Weaver").limit(3).after(next),
            None => break,
        }
    }
    assert_eq!(seen, ["Alien", "Aliens", "Avatar", "Heat"]);
    assert!(world.run(table.lookup("by-cast", "Weaver").within("comedy").rows()).unwrap().rows.is_empty());
}

// Guarantee: index_table 7.
#[test]
fn a_look_up_names_the_partition_of_an_index_beside_the_rows_and_of_no_other() {
    let world = World::new();
    let table = built(&world);
    let told = |lookup: steadfast::index_table::Lookup<'_, Movie>| {
        let error = world.run(lookup.rows()).unwrap_err();
        assert!(matches!(error, IndexTableError::Invalid(_)), "{error}");
        error.to_string()
    };
    for (text, told) in [
        ("must name the partition", told(table.lookup("by-cast", "Weaver"))),
        ("must be left out", told(table.lookup("by-actor", "Weaver").within("action"))),
        ("must be left out", told(table.lookup("by-isan", "1").within("action"))),
        ("must", told(table.lookup("by-cast", "Weaver").within(""))),
    ] {
        assert!(told.contains("`within`") && told.contains(text), "{told}");
    }
    let unknown = told(table.lookup("by-year", "1979").within("action"));
    assert!(unknown.contains("`index`") && unknown.contains("by-year"), "{unknown}");
    let none = world.run(table.lookup("by-title", "Alien").within("action").copies()).unwrap_err().to_string();
    assert!(none.contains("`index`") && none.contains("copies"), "{none}");
}

// Guarantee: index_table 7, 9.
#[test]
fn an_index_beside_the_rows_that_breaks_a_rule_is_refused_by_its_name() {
    let world = World::new();
    let base = || world.stores[0].clone();
    let refused = |store: Arc<dyn Store>, names: &[&str], copied: &[&str]| {
        let mut builder = IndexTable::builder(store, json(), IndexTableConfig::default());
        builder = builder.index("by-actor", world.stores[1].clone(), by_actor);
        builder = names.iter().fold(builder, |builder, name| builder.beside(*name, by_actor));
        builder = copied.iter().fold(builder, |builder, name| builder.copying(*name, billing));
        builder.build().map(drop).unwrap_err().to_string()
    };
    let lacking = ScriptedPort::changing(&world.clock, |can| can.without(Capability::AtomicBatch)).store(base());
    let narrow = ScriptedPort::changing(&world.clock, |can| can.largest_batch(2)).store(base());
    for (texts, told) in [
        (["`store`", "`atomic batch`"], refused(lacking.clone(), &["by-cast"], &[])),
        (["`store`", "batches of 3 writes"], refused(narrow, &["by-cast"], &[])),
        (["`index`", "taken"], refused(base(), &["by-actor"], &[])),
        (["`index`", "taken"], refused(base(), &["by-cast", "by-cast"], &[])),
        (["`index`", "must have a name"], refused(base(), &[""], &[])),
        (["`copying`", "each once"], refused(base(), &["by-cast"], &["by-cast", "by-cast"])),
    ] {
        assert!(texts.iter().all(|text| told.contains(text)), "{texts:?}: {told}");
    }
    // Without such an index nothing of this is needed.
    let plain = IndexTable::builder(lacking, json(), IndexTableConfig::default())
        .index("by-actor", world.stores[1].clone(), by_actor)
        .clock(&world.clock)
        .build();
    let (plain, alien, key) = (plain.unwrap(), movie("Alien", &["Weaver"]), Key::new("drama", "index/Alien"));
    world.run(plain.put(key, &alien, Precondition::Any)).unwrap();
    assert!(world.run(plain.get(key)).unwrap().is_some());
    assert!(world.run(plain.delete(key, Precondition::Any)).unwrap());

    let table = built(&world);
    for told in [
        world.run(table.put(at("index/Alien"), &alien, Precondition::Any)).map(drop),
        world.run(table.delete(at("index/"), Precondition::Any)).map(drop),
        world.run(table.get(at("index/by-cast"))).map(drop),
    ] {
        let told = told.unwrap_err();
        assert!(matches!(told, IndexTableError::Invalid(_)), "{told}");
        assert!(told.to_string().contains("`row`") && told.to_string().contains("\"index/\""), "{told}");
    }
    let put = |table: &IndexTable<Movie>, movie: &Movie| {
        let told = world.run(table.put(at("Alien"), movie, Precondition::Any)).unwrap_err();
        assert!(matches!(told, IndexTableError::Invalid(_)), "{told}");
        told.to_string()
    };
    let twice = put(&without_copies(&world, base()), &movie("Alien", &["Weaver", "Weaver"]));
    assert!(twice.contains("`index key`") && twice.contains("twice"), "{twice}");
    let short = ScriptedPort::changing(&world.clock, |can| can.largest_key(60)).store(base());
    let long = put(&without_copies(&world, short), &movie("Alien", &["W".repeat(50).as_str()]));
    assert!(long.contains("`index key`") && long.contains("60 bytes"), "{long}");
    let small = ScriptedPort::changing(&world.clock, |can| can.largest_value(70)).store(base());
    let [_, actors, isans] = world.stores.clone();
    // The row fits, and its copy does not.
    let small = IndexTable::builder(small, json(), IndexTableConfig::default())
        .index("by-actor", actors, by_actor)
        .unique("by-isan", isans, |movie: &Movie| movie.isan.clone())
        .beside("by-cast", by_actor)
        .copying("by-cast", |movie: &Movie| movie.title.repeat(20))
        .clock(&world.clock)
        .build();
    let large = put(&small.unwrap(), &alien);
    assert!(large.contains("`copy`") && large.contains("70 bytes"), "{large}");
    // Nothing was written, in none of the indexes.
    let (movies, entries) = stored(&world, "action");
    assert_eq!((movies.len(), entries.len(), world.entries("by-actor"), world.entries("by-isan")), (0, 0, 0, 0));
}

// Guarantee: index_table 9.
#[test]
fn a_row_has_as_many_keys_beside_it_as_a_batch_can_change() {
    let world = World::new();
    let five = ScriptedPort::changing(&world.clock, |can| can.largest_batch(6));
    let table = IndexTable::builder(five.store(world.stores[0].clone()), json(), IndexTableConfig::default())
        .index("by-actor", world.stores[1].clone(), by_actor)
        .beside("by-cast", by_actor)
        .beside("by-isan", |movie: &Movie| movie.isan.iter().map(|isan| IndexKey::from(&**isan)).collect())
        .clock(&world.clock)
        .build()
        .unwrap();
    world.run(table.build_indexes(["action"])).unwrap();
    let names = || stored(&world, "action").1.into_keys().collect::<Vec<_>>();
    let of = |cast: &[&str]| cast.iter().map(|actor| entry("by-cast", actor, "Alien", "Alien")).collect::<Vec<_>>();
    // Two keys become two others in one batch of five writes.
    world.put(&table, &movie("Alien", &["Hurt", "Weaver"]));
    world.put(&table, &movie("Alien", &["Cartwright", "Holm"]));
    assert_eq!(names(), of(&["Cartwright", "Holm"]));
    for many in [movie("Alien", &["A", "B", "C"]), Movie { isan: Some("1".to_owned()), ..movie("Alien", &["A", "B"]) }]
    {
        let told = world.run(table.put(at("Alien"), &many, Precondition::Any)).unwrap_err();
        assert!(matches!(told, IndexTableError::Invalid(_)), "{told}");
        assert!(told.to_string().contains("`index key`") && told.to_string().contains("at most 2"), "{told}");
    }
    assert_eq!((names(), world.entries("by-actor")), (of(&["Cartwright", "Holm"]), 2));
    // A row with more keys, written past the table, has the first ones after a repair, and no others.
    world.write(&Movie { isan: Some("1".to_owned()), ..movie("Alien", &["Weaver", "Holm", "Cartwright", "Hurt"]) });
    let report = world.run(table.repair("action")).unwrap();
    assert_eq!((names(), changes(&report)), (of(&["Cartwright", "Holm"]), (2, 0, 0)));
    world.write(&Movie { isan: Some("1".to_owned()), ..movie("Alien", &["Weaver", "Holm", "Hurt", "Dallas"]) });
    world.run(table.repair("action")).unwrap();
    assert_eq!(names(), of(&["Dallas", "Holm"]));
    assert_eq!(changes(&world.run(table.repair("action")).unwrap()), (0, 0, 0));
    world.put(&table, &movie("Alien", &["Weaver"]));
    assert_eq!(names(), of(&["Weaver"]));
}

// Guarantee: index_table 9.
#[test]
fn two_writes_of_a_row_that_meet_leave_the_entries_of_the_last_one_beside_it() {
    for writes in [[Some(["Weaver"]), Some(["Hurt"])], [Some(["Weaver"]), None], [None, Some(["Hurt"])], [None, None]] {
        let world = World::new();
        let tables = [built(&world), built(&world)];
        world.put(&tables[0], &movie("Alien", &["Holm"]));
        // Both have read the row before one of them writes it.
        world.script.by(|call| match call.method {
            "batch" => PortAnswer::pass().request_takes(SECOND * 2),
            _ => PortAnswer::pass(),
        });
        let write = async |nth: usize| match writes[nth] {
            Some(cast) => {
                let movie = movie("Alien", &cast);
                tables[nth].put(at("Alien"), &movie, Precondition::Any).await.map(drop)
            }
            None => tables[nth].delete(at("Alien"), Precondition::Any).await.map(drop),
        };
        both(&world, write);
        world.script.by(|_| PortAnswer::pass());
        assert_exact(&world);
        let last = world.run(tables[0].get(at("Alien"))).unwrap().map(|row| row.value.cast);
        assert_eq!(last, writes[1].map(|cast| cast.map(str::to_owned).to_vec()));
        let report = world.run(tables[0].repair("action")).unwrap();
        assert_eq!(changes(&report), (0, 0, 0), "{writes:?}");
    }
}

// Guarantee: index_table 2, 9.
#[test]
fn a_put_that_is_refused_changes_nothing_beside_its_row() {
    let world = World::new();
    let table = built(&world);
    world.put(&table, &numbered("Heat", "1"));
    world.put(&table, &movie("Alien", &["Weaver"]));
    let before = stored(&world, "action");
    let taken = Movie { isan: Some("1".to_owned()), ..movie("Alien", &["Hurt"]) };
    assert!(is_duplicate(&world.run(table.put(at("Alien"), &taken, Precondition::Any))));
    assert!(world.run(table.put(at("Alien"), &movie("Alien", &["Hurt"]), Precondition::Absent)).is_err());
    world.script.always("batch", PortAnswer::fail(PortErrorKind::Unavailable));
    assert!(world.run(table.put(at("Alien"), &movie("Alien", &["Hurt"]), Precondition::Any)).is_err());
    assert!(world.run(table.delete(at("Alien"), Precondition::Any)).is_err());
    assert_eq!(stored(&world, "action"), before);
    assert_exact(&world);
}

// Guarantee: index_table 3, 9.
#[test]
fn a_repair_brings_entries_in_line_with_rows_that_were_written_past_the_table_and_touches_none() {
    let world = World::new();
    let table = built(&world);
    for (title, actor) in [("Alien", "Weaver"), ("Brazil", "Pryce"), ("Gandhi", "Kingsley"), ("Heat", "Pacino")] {
        world.put(&table, &movie(title, &[actor, "Extra"]));
        world.run(table.put(Key::new("drama", title), &movie(title, &[actor]), Precondition::Any)).unwrap();
    }
    world.write(&movie("Alien", &["Hurt", "Extra"]));
    world.write(&movie("Gravity", &["Bullock"]));
    world.run(world.stores[0].delete(at("Heat"), Precondition::Any.into())).unwrap();
    world.run(world.stores[0].put(at("Brazil"), "{".into(), Precondition::Any.into())).unwrap();
    // Of another partition.
    world.run(world.stores[0].delete(Key::new("drama", "Alien"), Precondition::Any.into())).unwrap();
    let of_drama = stored(&world, "drama").1;

    let page = world.run(table.lookup("by-cast", "Extra").within("action").rows()).unwrap();
    let found: Vec<_> = page.rows.iter().map(|row| row.value.title.as_str()).collect();
    assert_eq!((found, page.stale, page.unreadable.len()), (vec!["Alien", "Gandhi"], 1, 1));
    let stale = world.run(table.lookup("by-cast", "Weaver").within("action").rows()).unwrap();
    assert_eq!((stale.rows.len(), stale.stale, titles(&world, &table, "Hurt").len()), (0, 1, 0));

    let versions = || {
        let rows = world.run(world.stores[0].scan_all(Scan::partition("action"))).unwrap();
        let rows = rows.into_iter().filter(|row| !row.row.starts_with("index/"));
        rows.map(|row| (row.row, row.version)).collect::<Vec<_>>()
    };
    let alone = alone(&world, world.stores[0].clone());
    let before = versions();
    let report = world.run(alone.repair("action")).unwrap();
    // Alien has another key and another copy, Gravity has two keys, and Heat had three.
    assert_eq!((report.rows, report.unreadable, changes(&report)), (4, 1, (3, 4, 1)));
    assert_eq!(versions(), before);
    assert_eq!(titles(&world, &table, "Hurt"), ["Alien"]);
    // What an unreadable row has is not known: its entries stay.
    let names = stored(&world, "action").1.into_keys().filter(|name| name.ends_with("Brazil"));
    assert_eq!(names.count(), 3);
    assert_eq!(stored(&world, "drama").1, of_drama);
    let report = world.run(alone.repair("action")).unwrap();
    assert_eq!((report.unreadable, changes(&report)), (1, (0, 0, 0)));
    // Where it is replaced by its version, its former entries are stale until a repair.
    let page = world.run(table.lookup("by-cast", "Pryce").within("action").rows()).unwrap();
    let when = Precondition::Version(page.unreadable[0].1);
    world.run(table.put(at("Brazil"), &movie("Brazil", &["De Niro"]), when)).unwrap();
    let report = world.run(table.repair("action")).unwrap();
    // Of the plain index two keys are missing and five stale, of this one two stale.
    assert_eq!(changes(&report), (2, 5 + 2, 0), "{report:?}");
    assert_exact(&world);
}

// Guarantee: index_table 9.
#[test]
fn a_repair_that_meets_a_put_does_nothing_for_the_row_that_was_there_before_it() {
    let of = |cast: &[&str]| movie("Alien", cast);
    // A missing entry, which the put loses; a stale one, which it gains; a former copy; and a deleted row that comes back.
    for (written, past, put) in [
        (of(&[]), Some(of(&["Weaver"])), of(&[])),
        (of(&["Weaver"]), Some(of(&[])), of(&["Weaver"])),
        (of(&["Weaver", "Holm"]), Some(of(&["Holm", "Weaver"])), of(&["Weaver", "Holm", "Hurt"])),
        (of(&["Hurt"]), None, of(&["Hurt"])),
    ] {
        let world = World::new();
        let base = || world.stores[0].clone();
        let table = alone(&world, base());
        world.run(table.build_indexes(["action"])).unwrap();
        world.put(&table, &written);
        match &past {
            Some(movie) => world.write(movie),
            None => drop(world.run(base().delete(at("Alien"), Precondition::Any.into())).unwrap()),
        }
        // The batch of the repair comes behind the put.
        let mut is_first = true;
        world.script.by(move |call| match call.method {
            "batch" if std::mem::take(&mut is_first) => PortAnswer::pass().request_takes(SECOND * 3),
            _ => PortAnswer::pass(),
        });
        let repairing = alone(&world, world.script.store(base()));
        let report = world.run(async {
            let put = async {
                world.clock.sleep(SECOND).await;
                table.put(at("Alien"), &put, Precondition::Any).await.unwrap();
            };
            let (report, ()) = futures::join!(repairing.repair("action"), put);
            report.unwrap()
        });
        assert_exact(&world);
        assert_eq!((world.script.calls("batch").len(), changes(&report)), (1, (0, 0, 0)), "{past:?}");
    }
}

// Guarantee: index_table 4, 6.
#[test]
fn an_index_beside_rows_that_are_there_is_built_while_puts_keep_it() {
    let world = World::new();
    for n in 0..250 {
        world.write(&movie(&format!("Old {n:03}"), if n < 60 { &["Weaver", "Hurt"] } else { &["Hurt"] }));
    }
    let table = opened(&world, world.stores.clone());
    let building = world.run(table.lookup("by-cast", "Weaver").within("action").rows()).unwrap_err();
    assert!(matches!(&building, IndexTableError::Building { index } if index == "by-cast"), "{building}");
    world.put(&table, &movie("New", &["Weaver"]));
    world.put(&table, &movie("Old 007", &["Craig"]));
    let of_drama = Key::new("drama", "Old");
    world.run(table.put(of_drama, &movie("Old", &["Weaver"]), Precondition::Any)).unwrap();
    let report = world.run(table.build_indexes(["action", "drama"])).unwrap();
    // The cast of 249 rows in the plain index, too. A put writes no key that its row had before, as its title.
    assert_eq!(changes(&report), (250 + 2 * (249 + 59), 0, 0));
    assert_exact(&world);
    assert_eq!(world.run(table.lookup("by-cast", "Weaver").within("action").rows()).unwrap().rows.len(), 60);
    assert_eq!(titles(&world, &opened(&world, world.stores.clone()), "Craig"), ["Old 007"]);

    let mut events = table.events();
    let report = world.run(table.repair("action")).unwrap();
    let [.., cast, title] = &report.indexes[..] else { panic!("{report:?}") };
    assert_eq!((cast.index.as_str(), cast.entries, cast.is_looked_up), ("by-cast", 249 + 59 + 2, true));
    assert_eq!(cast.coarse, [("Hurt".to_owned(), 249), ("Weaver".to_owned(), 60)]);
    assert_eq!((title.entries, title.is_looked_up, title.coarse.len()), (251, false, 0));
    let told: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect();
    assert!(told.contains(&IndexTableEvent::NeverLookedUp { index: "by-title".to_owned() }), "{told:?}");
    // Each partition has keys of its own.
    let report = world.run(table.build_indexes(["action", "drama"])).unwrap();
    assert_eq!((report.indexes[2].entries, report.indexes[2].coarse.len()), (311, 2));
}

// Guarantee: index_table 3, 9.
#[test]
fn a_future_that_is_dropped_anywhere_leaves_each_row_with_its_entries_beside_it() {
    let world = World::new();
    let table = built(&world);
    world.script.by(|_| PortAnswer::pass().request_takes(Duration::from_millis(1)));
    let (one, other) = (movie("Alien", &["Weaver", "Hurt"]), movie("Alien", &["Hurt", "Holm"]));
    world.put(&table, &one);
    let check = |_| {
        assert_exact(&world);
        world.put(&table, &one);
        assert_exact(&world);
    };
    let puts = || table.put(at("Alien"), &other, Precondition::Any);
    assert!(drop_at_every_await(&world.time, puts, check) >= 4);
    let deletes = || table.delete(at("Alien"), Precondition::Any);
    assert!(drop_at_every_await(&world.time, deletes, check) >= 3);
    let spoil = || {
        world.write(&movie("Gravity", &["Bullock"]));
        let stale = entry("by-cast", "Clooney", "Gravity", "Gravity");
        let put = world.stores[0].put(at(&stale), Bytes::from_static(&[1]), Precondition::Any.into());
        world.run(put).unwrap();
    };
    spoil();
    assert!(drop_at_every_await(&world.time, || table.repair("action"), |_| spoil()) > 30);
    assert!(drop_at_every_await(&world.time, || table.build_indexes(["action"]), |_| spoil()) > 30);
    world.run(table.repair("action")).unwrap();
    assert_exact(&world);
    let lookups = || table.lookup("by-cast", "Weaver").within("action").rows();
    assert!(drop_at_every_await(&world.time, lookups, |_| {}) >= 2);
}

// Guarantee: index_table 8.
#[test]
fn copies_beside_the_rows_come_later_by_a_repair() {
    let world = World::new();
    let plain = without_copies(&world, world.stores[0].clone());
    world.run(plain.build_indexes(["action"])).unwrap();
    world.put(&plain, &movie("Alien", &["Weaver", "Hurt"]));
    let table = built(&world);
    let copies = || {
        let page = world.run(table.lookup("by-cast", "Weaver").within("action").copies()).unwrap();
        page.rows.into_iter().map(|found| String::from_utf8(found.copy.to_vec()).unwrap()).collect::<Vec<_>>()
    };
    // They were filled in as the other indexes were built.
    assert_eq!(copies(), ["Weaver, Hurt"]);
    assert_exact(&world);
    // A process without copies adds entries without them, and the row is read.
    world.put(&plain, &movie("Alien", &[]));
    world.put(&plain, &movie("Alien", &["Weaver"]));
    assert_eq!(copies(), ["Weaver"]);
    assert_eq!(world.run(table.repair("action")).unwrap().copied, 1);
    assert_exact(&world);
    // A row that was written past the table may have one that is too large: it is read from the row.
    let small = ScriptedPort::changing(&world.clock, |can| can.largest_value(20));
    let small = opened(&world, world.stores.clone().map(|store| small.store(store)));
    world.write(&movie("Alien", &["Weaver", "Hurt", "Holm", "Stanton"]));
    assert_eq!(copies(), ["Weaver"]);
    let report = world.run(small.repair("action")).unwrap();
    assert_eq!((report.copied, copies()), (1, vec!["Weaver, Hurt, Holm, Stanton".to_owned()]));
}

// Guarantee: index_table 6.
#[test]
fn a_damaged_entry_beside_the_rows_is_counted_and_stays_and_one_of_a_newer_release_too() {
    for (value, kind) in [(&[1, 9][..], PortErrorKind::Corrupt), (b"x", PortErrorKind::TooNew)] {
        let world = World::new();
        let table = built(&world);
        world.put(&table, &movie("Alien", &["Weaver"]));
        let name = entry("by-cast", "Weaver", "Alien", "Alien");
        let write = |name: &str, value: &[u8]| {
            let put = world.stores[0].put(at(name), Bytes::copy_from_slice(value), Precondition::Any.into());
            world.run(put).unwrap();
        };
        write(&name, value);
        let told = world.run(table.lookup("by-cast", "Weaver").within("action").rows()).unwrap_err();
        assert_eq!(told.backend().map(|error| error.kind()), Some(kind));
        let foreign = "index/by-cast\u{1}\u{1}Weaver";
        write(foreign, value);
        let report = world.run(table.repair("action")).unwrap();
        assert_eq!((report.damaged, changes(&report)), (2, (0, 0, 0)));
        for name in [&*name, foreign] {
            world.run(world.stores[0].delete(at(name), Precondition::Any.into())).unwrap();
        }
        assert_eq!(world.run(table.repair("action")).unwrap().added, 1);
        assert_exact(&world);
    }
}

// Guarantee: index_table 6.
#[test]
fn indexes_beside_the_rows_whose_names_share_a_beginning_are_kept_apart() {
    let world = World::new();
    let names = ["a", "a/b", "a\u{1}", "a\u{1}\u{1}b", "b"];
    let builder = IndexTable::builder(world.stores[0].clone(), json(), IndexTableConfig::default());
    let builder = names.iter().fold(builder.clock(&world.clock), |builder, name| builder.beside(*name, by_actor));
    let table = builder.build().unwrap();
    world.run(table.build_indexes(["action"])).unwrap();
    world.put(&table, &movie("Alien", &["Weaver", "b/Weaver", "b\u{1}\u{1}Weaver", "\u{1}"]));
    let report = world.run(table.repair("action")).unwrap();
    assert_eq!((report.damaged, changes(&report)), (0, (0, 0, 0)));
    assert!(report.indexes.iter().all(|index| index.entries == 4), "{report:?}");
    for name in names {
        let found = world.run(table.lookup(name, "Weaver").within("action").keys()).unwrap().rows;
        assert_eq!(found.len(), 1, "{name:?}");
    }
    // The rows of an index that is gone stay, and are no rows of the table.
    let table = without_copies(&world, world.stores[0].clone());
    let report = world.run(table.build_indexes(["action"])).unwrap();
    assert_eq!((report.rows, report.unreadable, changes(&report)), (1, 0, (4, 0, 0)));
}

/// A table on a server, with an index beside its rows that has copies.
#[cfg(feature = "nats")]
fn on(store: Arc<dyn Store>) -> Result<IndexTable<Movie>, steadfast::config::ConfigError> {
    let builder = IndexTable::builder(store, json(), IndexTableConfig::default()).beside("by-cast", by_actor);
    builder.copying("by-cast", billing).build()
}

/// A store without batches is refused by the name of what it lacks.
#[cfg(feature = "nats")]
pub(crate) fn is_refused_beside(store: Arc<dyn Store>) {
    assert!(!store.capabilities().has(Capability::AtomicBatch), "{store:?}");
    let told = on(store).unwrap_err().to_string();
    assert!(told.contains("`store`") && told.contains("`atomic batch`") && told.contains("nats"), "{told}");
}

/// Puts, look-ups, and a repair of a row that was written past the table.
#[cfg(feature = "nats")]
pub(crate) async fn lies_beside(store: Arc<dyn Store>) {
    let table = on(store.clone()).unwrap();
    table.build_indexes(["action"]).await.unwrap();
    let put = async |movie: &Movie| table.put(at(&movie.title), movie, Precondition::Any).await.unwrap();
    put(&movie("Alien", &["Weaver", "Hurt"])).await;
    put(&movie("Alien", &["Weaver", "Holm"])).await;
    put(&movie("Heat", &["Weaver"])).await;
    assert!(table.delete(at("Heat"), Precondition::Any).await.unwrap());
    let copies = async |actor: &str| {
        let page = table.lookup("by-cast", actor).within("action").copies().await.unwrap();
        page.rows.into_iter().map(|found| (found.key.row, found.copy)).collect::<Vec<_>>()
    };
    let of_alien = |copy: &'static str| vec![("Alien".to_owned(), Bytes::from_static(copy.as_bytes()))];
    assert_eq!((copies("Hurt").await, copies("Weaver").await), (vec![], of_alien("Weaver, Holm")));
    let past = json().encode(&movie("Alien", &["Hurt", "Weaver"])).unwrap();
    store.put(at("Alien"), past.into(), Precondition::Any.into()).await.unwrap();
    assert_eq!(changes(&table.repair("action").await.unwrap()), (1, 1, 1));
    assert_eq!((copies("Hurt").await, copies("Holm").await), (of_alien("Hurt, Weaver"), vec![]));
    assert_eq!(changes(&table.repair("action").await.unwrap()), (0, 0, 0));
}
