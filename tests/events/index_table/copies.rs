//! Copies of rows in the entries of an index.
use steadfast::{
    port::{Failure, PortErrorKind},
    testing::drop_at_every_await,
};

use super::*;

fn summary(movie: &Movie) -> String {
    format!("{}: {}", movie.title, movie.cast.join(", "))
}

fn cast(title: &str, isan: &str, cast: &[&str]) -> Movie {
    Movie { isan: Some(isan.to_owned()), ..movie(title, cast) }
}

/// A table whose indexes are built, and have copies.
fn copying(world: &World) -> IndexTable<Movie> {
    let table = opened(world, world.stores.clone().map(|store| world.script.store(store)));
    world.run(table.build_indexes(["action"])).unwrap();
    table
}

fn opened(world: &World, [base, actors, isans]: [Arc<dyn Store>; 3]) -> IndexTable<Movie> {
    IndexTable::builder(base, json(), IndexTableConfig::default())
        .index("by-actor", actors, by_actor)
        .unique("by-isan", isans, |movie: &Movie| movie.isan.clone())
        .copying("by-actor", summary)
        .copying("by-isan", summary)
        .clock(&world.clock)
        .build()
        .unwrap()
}

fn copies(world: &World, table: &IndexTable<Movie>, index: &str, first: &str) -> Vec<String> {
    let page = world.run(table.lookup(index, first).copies()).unwrap();
    page.rows.into_iter().map(|found| String::from_utf8(found.copy.to_vec()).unwrap()).collect()
}

/// Each copy is that of the row as it is, and each row with the key has one.
fn assert_same(world: &World, table: &IndexTable<Movie>) {
    for (index, firsts) in [("by-actor", ["Weaver", "Hurt", "Holm"]), ("by-isan", ["1", "2", "3"])] {
        for first in firsts {
            let rows = world.run(table.lookup(index, first).rows()).unwrap().rows;
            let wanted: Vec<_> = rows.iter().map(|row| summary(&row.value)).collect();
            assert_eq!(copies(world, table, index, first), wanted, "{index}: {first}");
        }
    }
}

fn cost(world: &World, act: impl FnOnce()) -> usize {
    world.script.forget();
    act();
    ["get", "put", "delete", "scan", "batch"].map(|method| world.script.calls(method).len()).iter().sum()
}

// Guarantee: index_table 5, 8.
#[test]
fn copies_come_from_the_index_alone_and_change_with_their_row() {
    let world = World::new();
    let table = copying(&world);
    assert_same(&world, &table);
    let put = |movie: Movie| cost(&world, || world.put(&table, &movie));
    // The row, and two requests for each key.
    assert_eq!(put(movie("Alien", &["Weaver", "Hurt"])), 2 + 2 * 2);
    assert_eq!(put(movie("Alien", &["Weaver", "Hurt"])), 2);
    // One key is lost, one is new, and the copy changes under the third.
    assert_eq!(put(movie("Alien", &["Weaver", "Holm"])), 2 + 4 + 2);
    let look = || assert_eq!(copies(&world, &table, "by-actor", "Weaver"), ["Alien: Weaver, Holm"]);
    assert_eq!(cost(&world, look), 1);
    // A unique key.
    assert_eq!(put(cast("Heat", "1", &[])), 2 + 2);
    assert_eq!(put(cast("Heat", "2", &[])), 2 + 5);
    assert_eq!(put(cast("Heat", "2", &["Hurt"])), 2 + 3 + 2);
    assert_eq!(copies(&world, &table, "by-isan", "2"), ["Heat: Hurt"]);
    assert_same(&world, &table);
    let page = world.run(table.lookup("by-isan", "2").copies()).unwrap();
    assert_eq!((page.rows[0].key.as_key(), page.stale), (at("Heat"), 0));
    assert!(world.run(table.delete(at("Heat"), Precondition::Any)).unwrap());
    assert_same(&world, &table);
}

// Guarantee: index_table 2, 5.
#[test]
fn a_put_that_gains_no_unique_key_claims_none_although_its_copy_changes() {
    let world = World::new();
    let table = copying(&world);
    world.put(&table, &cast("Alien", "1", &[]));
    world.script.by(|call| match (call.method, call.target.as_str()) {
        ("put", "Dead") => PortAnswer::fail(PortErrorKind::Unavailable),
        _ => PortAnswer::pass(),
    });
    assert!(world.run(table.put(at("Dead"), &cast("Dead", "2", &[]), Precondition::Any)).is_err());
    // A row that was written past the table, with the key of another row, and one that a dead put
    // has claimed.
    for isan in ["1", "2"] {
        world.write(&cast("Heat", isan, &[]));
        let began = world.clock.now();
        world.put(&table, &cast("Heat", isan, &["Hurt"]));
        assert_eq!(world.clock.now(), began, "it waits for no claim");
    }
    assert_same(&world, &table);
}

// Guarantee: index_table 3, 8.
#[test]
fn of_two_writes_of_a_row_at_once_neither_leaves_an_entry_that_is_stale_or_has_no_copy() {
    let new = cast("Alien", "2", &["Weaver"]);
    // A put, or a delete.
    for writes in [[Some(&new), Some(&new)], [None, None], [Some(&new), None], [None, Some(&new)]] {
        let world = World::new();
        let tables = [copying(&world), copying(&world)];
        world.put(&tables[0], &cast("Alien", "1", &["Weaver", "Hurt"]));
        // Both have written the entries before one of them writes the row.
        world.script.by(|call| match (call.method, call.target.as_str()) {
            ("put", "Alien") => PortAnswer::pass().request_takes(SECOND * 2),
            _ => PortAnswer::pass(),
        });
        let write = async |nth: usize| match writes[nth] {
            Some(movie) => tables[nth].put(at("Alien"), movie, Precondition::Any).await.map(drop),
            None => tables[nth].delete(at("Alien"), Precondition::Any).await.map(drop),
        };
        both(&world, write);
        world.script.by(|_| PortAnswer::pass());
        assert_same(&world, &tables[0]);
        let report = world.run(tables[0].repair("action")).unwrap();
        assert_eq!((report.added, report.removed, report.copied), (0, 0, 0), "{writes:?}");
        // Nobody waits for a claim that was left behind.
        let began = world.clock.now();
        world.put(&tables[1], &cast("Heat", "1", &[]));
        assert_eq!(world.clock.now(), began);
    }
}

// Guarantee: index_table 1.
#[test]
fn a_delete_that_finds_the_row_deleted_takes_no_entry_of_a_put_on_its_way() {
    let world = World::new();
    let of = |slow: &'static str, takes: u32| {
        let script = ScriptedPort::new(&world.clock);
        script.by(move |call| match call.method {
            "put" if call.target.starts_with(slow) => PortAnswer::pass().request_takes(SECOND * takes),
            _ => PortAnswer::pass(),
        });
        opened(&world, world.stores.clone().map(|store| script.store(store)))
    };
    let table = copying(&world);
    let old = movie("Alien", &["Hurt"]);
    world.put(&table, &old);
    let (first, second, third) = (of("Alien", 2), of("Hurt", 4), of("Alien", 3));
    world.run(async {
        let late = async {
            world.clock.sleep(SECOND).await;
            // It has read the row, and rewrites the entry behind the put.
            assert!(!second.delete(at("Alien"), Precondition::Any).await.unwrap());
        };
        let put = async {
            world.clock.sleep(SECOND * 3).await;
            third.put(at("Alien"), &old, Precondition::Any).await.unwrap();
        };
        let (deleted, (), ()) = futures::join!(first.delete(at("Alien"), Precondition::Any), late, put);
        assert!(deleted.unwrap());
    });
    assert_eq!(copies(&world, &table, "by-actor", "Hurt"), ["Alien: Hurt"]);
    assert_same(&world, &table);
}

#[test]
fn a_put_that_is_refused_for_a_key_takes_no_copy_out() {
    let world = World::new();
    let table = copying(&world);
    world.put(&table, &cast("Alien", "1", &["Weaver"]));
    world.put(&table, &cast("Heat", "2", &[]));
    let again = cast("Alien", "2", &["Weaver", "Holm"]);
    assert!(is_duplicate(&world.run(table.put(at("Alien"), &again, Precondition::Any))));
    let report = world.run(table.repair("action")).unwrap();
    assert_eq!((report.added, report.removed, report.copied), (0, 0, 0));
    assert_same(&world, &table);
}

// Guarantee: index_table 8.
#[test]
fn a_write_that_is_dropped_anywhere_leaves_no_copy_but_that_of_the_row() {
    let world = World::new();
    let table = copying(&world);
    // Each request waits once, so that there is an await point behind each.
    world.script.by(|_| PortAnswer::pass().request_takes(Duration::from_millis(1)));
    let one = cast("Alien", "1", &["Weaver", "Hurt"]);
    world.put(&table, &one);
    let check = |_| {
        assert_same(&world, &table);
        world.put(&table, &one);
        assert_same(&world, &table);
        assert_eq!(copies(&world, &table, "by-isan", "1"), ["Alien: Weaver, Hurt"]);
    };
    for other in [cast("Alien", "2", &["Weaver", "Holm"]), cast("Alien", "1", &["Hurt", "Holm"])] {
        let puts = || table.put(at("Alien"), &other, Precondition::Any);
        assert!(drop_at_every_await(&world.time, puts, check) > 4);
    }
    let deletes = || table.delete(at("Alien"), Precondition::Any);
    assert!(drop_at_every_await(&world.time, deletes, check) > 3);
    // A repair fills in what was taken out and not written.
    world.script.by(|call| match call.method {
        "put" if call.target == "Alien" => PortAnswer::fail(PortErrorKind::Unavailable),
        _ => PortAnswer::pass(),
    });
    let other = cast("Alien", "1", &["Hurt", "Weaver"]);
    assert!(world.run(table.put(at("Alien"), &other, Precondition::Any)).is_err());
    world.script.by(|_| PortAnswer::pass());
    assert_same(&world, &table);
    let report = world.run(table.repair("action")).unwrap();
    assert_eq!((report.copied, report.added, report.removed), (3, 0, 0));
    assert_eq!(cost(&world, || drop(copies(&world, &table, "by-actor", "Weaver"))), 1);
    assert_eq!(world.run(table.repair("action")).unwrap().copied, 0);
    assert_same(&world, &table);
}

// Guarantee: index_table 8.
#[test]
fn a_copy_that_is_filled_in_late_takes_the_place_of_no_later_one() {
    for is_deleted in [false, true] {
        let world = World::new();
        let (table, other) = (copying(&world), copying(&world));
        let mut puts = 0;
        world.script.by(move |call| {
            let is_entry = call.method == "put" && call.target.starts_with("Weaver");
            puts += u8::from(is_entry);
            // The first one adds the entry, the second one has its copy.
            if is_entry && puts == 2 { PortAnswer::pass().request_takes(SECOND * 3) } else { PortAnswer::pass() }
        });
        world.run(async {
            let (first, second) = (movie("Alien", &["Weaver"]), movie("Alien", &["Weaver", "Holm"]));
            let slow = table.put(at("Alien"), &first, Precondition::Any);
            let fast = async {
                world.clock.sleep(SECOND).await;
                if is_deleted {
                    other.delete(at("Alien"), Precondition::Any).await.map(drop)
                } else {
                    other.put(at("Alien"), &second, Precondition::Any).await.map(drop)
                }
            };
            let (slow, fast) = futures::join!(slow, fast);
            slow.unwrap();
            fast.unwrap();
        });
        let wanted: &[&str] = if is_deleted { &[] } else { &["Alien: Weaver, Holm"] };
        assert_eq!(copies(&world, &table, "by-actor", "Weaver"), wanted);
        assert_same(&world, &table);
    }
}

// Guarantee: index_table 8.
#[test]
fn a_repair_fills_in_no_copy_of_a_row_that_a_put_on_its_way_replaces() {
    let world = World::new();
    let (table, other) = (copying(&world), copying(&world));
    world.put(&table, &movie("Alien", &["Weaver", "Hurt"]));
    let mut is_slow = true;
    world.script.by(move |call| match (call.method, call.target.as_str()) {
        ("put", "Alien") if std::mem::take(&mut is_slow) => PortAnswer::pass().request_takes(SECOND * 3),
        _ => PortAnswer::pass(),
    });
    let report = world.run(async {
        // The copy alone changes.
        let alien = movie("Alien", &["Hurt", "Weaver"]);
        let put = table.put(at("Alien"), &alien, Precondition::Any);
        let repair = async {
            world.clock.sleep(SECOND).await;
            other.repair("action").await
        };
        let (put, report) = futures::join!(put, repair);
        put.unwrap();
        report.unwrap()
    });
    assert_eq!((report.copied, report.removed), (2, 0));
    assert_eq!(copies(&world, &table, "by-actor", "Weaver"), ["Alien: Hurt, Weaver"]);
    assert_same(&world, &table);
}

// Guarantee: index_table 8.
#[test]
fn an_index_gets_copies_later_and_rows_that_were_written_past_the_table_are_repaired() {
    let world = World::new();
    world.put(&world.built(), &cast("Alien", "1", &["Weaver"]));
    let table = copying(&world);
    // They were filled in as the indexes were repaired. The first look-up of each index notes itself.
    assert_eq!(cost(&world, || assert_same(&world, &table)), 6 * 2 + 2 + 2 * 2);
    world.write(&cast("Alien", "1", &["Weaver", "Holm"]));
    assert_eq!(copies(&world, &table, "by-isan", "1"), ["Alien: Weaver"]);
    let report = world.run(table.repair("action")).unwrap();
    assert_eq!((report.added, report.copied), (1, 3));
    assert_same(&world, &table);
    // A process without copies takes them out of entries that it adds.
    let plain = world.table();
    world.put(&plain, &movie("Alien", &[]));
    world.put(&plain, &cast("Alien", "2", &["Hurt", "Holm"]));
    assert_same(&world, &table);
}

// Guarantee: index_table 6, 7.
#[test]
fn a_copy_that_breaks_a_rule_is_refused_and_a_damaged_one_is_no_answer() {
    let world = World::new();
    let [base, actors, isans] = world.stores.clone();
    let refused = |names: &[&str]| {
        let builder = IndexTable::builder(base.clone(), json(), IndexTableConfig::default());
        let builder = builder.index("by-actor", actors.clone(), by_actor);
        let builder = names.iter().fold(builder, |builder, name| builder.copying(*name, summary));
        builder.build().map(drop).unwrap_err().to_string()
    };
    for (told, name) in [(refused(&["by-year"]), "by-year"), (refused(&["by-actor", "by-actor"]), "by-actor")] {
        assert!(told.contains("`copying`") && told.contains(name), "{told}");
    }
    let none = world.run(world.built().lookup("by-actor", "Weaver").copies()).unwrap_err().to_string();
    assert!(none.contains("`index`") && none.contains("copies"), "{none}");

    let small = ScriptedPort::changing(&world.clock, |can| can.largest_value(20)).store(actors.clone());
    let table = opened(&world, [base, small, isans]);
    let long = movie("Alien", &["Weaver", "Hurt", "Holm"]);
    let told = world.run(table.put(at("Alien"), &long, Precondition::Any)).unwrap_err();
    assert!(matches!(told, IndexTableError::Invalid(_)) && told.to_string().contains("`copy`"), "{told}");
    assert_eq!((world.run(table.get(at("Alien"))).unwrap(), world.entries("by-actor")), (None, 0));
    // A row that was written past the table is read, since no entry has its copy.
    world.write(&long);
    let report = world.run(table.repair("action")).unwrap();
    assert_eq!((report.added, report.copied), (3, 0));
    assert_eq!(copies(&world, &table, "by-actor", "Weaver"), ["Alien: Weaver, Hurt, Holm"]);

    let whole = copying(&world);
    let place = "Weaver\u{1}\u{1}Alien\u{1}\u{1}action\u{1}\u{1}Alien";
    let damaged = |value: &'static [u8]| {
        for nth in 0..16 {
            let partition = format!("index/by-actor/{nth:02}");
            if world.run(actors.get(Key::new(&partition, place))).unwrap().is_some() {
                world.run(actors.put(Key::new(&partition, place), value.into(), Precondition::Any.into())).unwrap();
            }
        }
        let told = world.run(whole.lookup("by-actor", "Weaver").copies()).unwrap_err();
        assert_eq!(world.run(whole.repair("action")).unwrap().damaged, 1);
        told.backend().map(|error| error.kind())
    };
    assert_eq!(damaged(b"x"), Some(PortErrorKind::TooNew));
    assert_eq!(damaged(&[1, 9]), Some(PortErrorKind::Corrupt));
}

/// On a server: plain and unique indexes whose copies are those of rows that are put, change, are
/// deleted, and are written past the table.
#[cfg(feature = "nats")]
pub(crate) async fn are_right_on(store: Arc<dyn Store>) {
    let table = IndexTable::builder(store.clone(), json(), IndexTableConfig::default())
        .index("by-actor", store.clone(), by_actor)
        .unique("by-isan", store.clone(), |movie: &Movie| movie.isan.clone())
        .copying("by-actor", summary)
        .copying("by-isan", summary)
        .build()
        .unwrap();
    table.build_indexes(["action"]).await.unwrap();
    let copies = async |index: &str, first: &str| {
        let page = table.lookup(index, first).copies().await.unwrap();
        page.rows.into_iter().map(|found| String::from_utf8(found.copy.to_vec()).unwrap()).collect::<Vec<_>>()
    };
    let put = async |movie: &Movie| table.put(at(&movie.title), movie, Precondition::Any).await.unwrap();
    put(&cast("Alien", "1", &["Weaver", "Hurt"])).await;
    put(&cast("Heat", "2", &["Weaver"])).await;
    put(&cast("Alien", "3", &["Weaver", "Holm"])).await;
    assert!(table.delete(at("Heat"), Precondition::Any).await.unwrap());
    assert_eq!(copies("by-actor", "Weaver").await, ["Alien: Weaver, Holm"]);
    assert_eq!(copies("by-isan", "3").await, ["Alien: Weaver, Holm"]);
    for (index, lost) in [("by-actor", "Hurt"), ("by-isan", "1"), ("by-isan", "2")] {
        assert!(copies(index, lost).await.is_empty(), "{index}: {lost}");
    }
    let past = json().encode(&cast("Alien", "3", &["Holm"])).unwrap();
    store.put(at("Alien"), past.into(), Precondition::Any.into()).await.unwrap();
    let report = table.repair("action").await.unwrap();
    assert_eq!((report.added, report.removed, report.copied), (0, 1, 2));
    assert_eq!((copies("by-actor", "Holm").await, copies("by-isan", "3").await.len()), (vec!["Alien: Holm".into()], 1));
}
