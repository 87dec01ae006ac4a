//! Attacks: rows that share a key, puts that contend for keys, values that a codec changes.
use steadfast::{entropy::Entropy, port::PortErrorKind};

use super::*;

/// Returns the output of a future that ends within this time.
async fn within<T>(clock: &Clock, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    futures::pin_mut!(future);
    match futures::future::select(future, std::pin::pin!(clock.sleep(limit))).await {
        futures::future::Either::Left((output, _)) => Some(output),
        futures::future::Either::Right(_) => None,
    }
}

// Guarantee: index_table 2.
#[test]
fn a_row_that_loses_a_unique_key_takes_the_claim_of_no_other_row_with_it() {
    for is_deleted in [false, true] {
        let world = World::new();
        let table = world.built();
        world.put(&table, &numbered("Alien", "1"));
        world.write(&numbered("Heat", "1"));
        if is_deleted {
            assert!(world.run(table.delete(at("Heat"), Precondition::Any)).unwrap());
        } else {
            world.put(&table, &numbered("Heat", "2"));
        }
        let found = world.run(table.lookup("by-isan", "1").rows()).unwrap().rows;
        assert_eq!(found.into_iter().map(|row| row.value.title).collect::<Vec<_>>(), ["Alien"]);
        assert_eq!(world.entries("by-isan"), if is_deleted { 1 } else { 2 });
        assert!(is_duplicate(&world.run(table.put(at("Gravity"), &numbered("Gravity", "1"), Precondition::Any))));
    }
}

/// A table with two unique indexes: by number, and by the first of the cast.
fn with_two(world: &World, seed: u64) -> IndexTable<Movie> {
    let [base, actors, isans] = world.stores.clone().map(|store| world.script.store(store));
    IndexTable::builder(base, json(), IndexTableConfig::default())
        .unique("by-isan", isans, |movie: &Movie| movie.isan.clone())
        .unique("by-star", actors, |movie: &Movie| movie.cast.first().cloned())
        .clock(&world.clock)
        .entropy(&Entropy::from_seed(seed))
        .build()
        .unwrap()
}

// Guarantee: index_table 2.
#[test]
fn of_two_puts_with_the_same_two_unique_keys_one_is_written_and_the_other_is_refused() {
    // Also behind a put that has claimed the second key, and has died.
    for is_claimed in [false, true] {
        let world = World::new();
        let tables = [1, 2].map(|seed| with_two(&world, seed));
        world.run(tables[0].build_indexes(["action"])).unwrap();
        if is_claimed {
            world.script.by(|call| match (call.method, call.target.as_str()) {
                ("put", "Dead") => PortAnswer::fail(PortErrorKind::Unavailable),
                _ => PortAnswer::pass(),
            });
            let dead = movie("Dead", &["Weaver"]);
            assert!(world.run(tables[0].put(at("Dead"), &dead, Precondition::Any)).is_err());
        }
        // Each put comes late to another one of the two keys.
        let mut late = 0;
        world.script.by(move |call| {
            let is_star = call.target.starts_with("Weaver");
            let is_late = call.method == "put" && (is_star && late == 0 || late == 1 && !is_star);
            late += u8::from(is_late);
            PortAnswer::pass().request_takes(Duration::from_millis(if is_late { 10 } else { 1 }))
        });
        let [alien, heat] =
            ["Alien", "Heat"].map(|title| Movie { isan: Some("1".to_owned()), ..movie(title, &["Weaver"]) });
        let puts = world.run(async {
            let one = tables[0].put(at("Alien"), &alien, Precondition::Any);
            let other = tables[1].put(at("Heat"), &heat, Precondition::Any);
            within(&world.clock, SECOND * 60, async { futures::join!(one, other) }).await
        });
        let (one, other) = puts.expect("both puts end");
        assert!(one.is_ok() && is_duplicate(&other) || is_duplicate(&one) && other.is_ok(), "{one:?} {other:?}");
    }
}
// Guarantee: index_table 2.
#[test]
fn a_claim_that_refused_puts_renew_all_the_time_is_taken_over() {
    let world = World::new();
    let table = with_two(&world, 1);
    world.run(table.build_indexes(["action"])).unwrap();
    world.put(&table, &movie("Brazil", &["Pryce"]));
    let refused = Movie { isan: Some("1".to_owned()), ..movie("Heat", &["Pryce"]) };
    world.run(async {
        let renewing = async {
            loop {
                assert!(is_duplicate(&table.put(at("Heat"), &refused, Precondition::Any).await));
                world.clock.sleep(SECOND / 2).await;
            }
        };
        let alien = numbered("Alien", "1");
        let put = within(&world.clock, SECOND * 20, table.put(at("Alien"), &alien, Precondition::Any));
        futures::pin_mut!(renewing, put);
        match futures::future::select(renewing, put).await {
            futures::future::Either::Right((put, _)) => put.expect("it ends").unwrap(),
            futures::future::Either::Left((never, _)) => never,
        }
    });
}
// Guarantee: index_table 7.
#[test]
fn a_row_that_its_store_cannot_have_is_refused_before_anything_is_written() {
    let world = World::new();
    let small = ScriptedPort::changing(&world.clock, |can| can.largest_value(20).largest_key(20));
    let [base, actors, isans] = world.stores.clone();
    let table = IndexTable::builder(small.store(base), json(), IndexTableConfig::default())
        .index("by-actor", actors, by_actor)
        .unique("by-isan", isans, |movie: &Movie| movie.isan.clone())
        .clock(&world.clock)
        .build()
        .unwrap();
    let alien = Movie { isan: Some("1".to_owned()), ..movie("Alien", &["Weaver"]) };
    let told = world.run(table.put(at("Alien"), &alien, Precondition::Any)).unwrap_err();
    assert!(told.to_string().contains("`value`"), "{told}");
    let long = "a key of more than twenty bytes";
    for key in [at(long), Key::new(long, "Alien"), at("")] {
        let told = world.run(table.put(key, &alien, Precondition::Any)).unwrap_err();
        assert!(matches!(told, IndexTableError::Invalid(_)), "{told}");
    }
    assert_eq!((world.entries("by-actor"), world.entries("by-isan")), (0, 0));
}
// Guarantee: index_table 1.
#[test]
fn a_row_that_does_not_decode_hides_no_other_and_is_replaced_by_its_version() {
    for is_deleted in [false, true] {
        let world = World::new();
        let table = world.built();
        for title in ["Alien", "Aliens", "Avatar"] {
            world.put(&table, &movie(title, &["Weaver"]));
        }
        world.run(world.stores[0].put(at("Aliens"), "{".into(), Precondition::Any.into())).unwrap();
        let page = world.run(table.lookup("by-actor", "Weaver").rows()).unwrap();
        assert_eq!(page.rows.iter().map(|row| row.value.title.as_str()).collect::<Vec<_>>(), ["Alien", "Avatar"]);
        let [(key, version)] = &page.unreadable[..] else { panic!("{page:?}") };
        assert_eq!((key.as_key(), page.stale), (at("Aliens"), 0));
        let when = Precondition::Version(*version);
        if is_deleted {
            assert!(world.run(table.delete(at("Aliens"), when)).unwrap());
        } else {
            world.run(table.put(at("Aliens"), &movie("Aliens", &["Hurt"]), when)).unwrap();
        }
        assert_eq!(world.titles(&table, "Hurt").len(), usize::from(!is_deleted));
        assert_eq!(world.titles(&table, "Weaver"), ["Alien", "Avatar"]);
        // The entry that it had is stale.
        assert_eq!(world.run(table.repair("action")).unwrap().removed, 1);
    }
}
// Guarantee: index_table 1, 2.
#[test]
fn a_row_has_the_keys_of_what_is_stored_also_where_the_codec_changes_it() {
    let world = World::new();
    let lower = Codec::new(
        |mail: &String| Ok::<_, std::fmt::Error>(mail.to_lowercase().into_bytes()),
        |bytes| String::from_utf8(bytes.to_vec()),
    );
    let [base, domains, mails] = world.stores.clone();
    let table = IndexTable::builder(base, lower, IndexTableConfig::default())
        .index("by-domain", domains, |mail: &String| mail.split('@').next_back().map(Into::into).into_iter().collect())
        .unique("by-mail", mails, |mail: &String| Some(mail.clone()))
        .clock(&world.clock)
        .build()
        .unwrap();
    world.run(table.build_indexes(["users"])).unwrap();
    let put = |row, mail: &str| world.run(table.put(Key::new("users", row), &mail.to_owned(), Precondition::Any));
    put("ada", "ADA@X").unwrap();
    let found = |index, key| world.run(table.lookup(index, key).rows()).unwrap().rows.len();
    assert_eq!((found("by-domain", "x"), found("by-mail", "ada@x")), (1, 1));
    assert!(is_duplicate(&put("eve", "Ada@x")));
}
// Guarantee: index_table 6.
#[test]
fn a_damaged_entry_is_counted_and_ends_no_repair() {
    let world = World::new();
    let table = world.built();
    world.put(&table, &numbered("Alien", "1"));
    // Each partition of an index has a damaged value, or a damaged name, before all others.
    for nth in 0..16 {
        for (index, store, name) in [("by-isan", 2, "\u{1}\u{1}"), ("by-actor", 1, "\u{1}")] {
            let partition = format!("index/{index}/{nth:02}");
            let put = world.stores[store].put(Key::new(&partition, name), "x".into(), Precondition::Any.into());
            world.run(put).unwrap();
        }
    }
    world.run(world.stores[0].delete(at("Alien"), Precondition::Any.into())).unwrap();
    // A row whose claim is damaged.
    world.write(&numbered("Heat", ""));
    let report = world.run(table.repair("action")).unwrap();
    assert_eq!((report.rows, report.removed, report.damaged), (1, 1, 33));
    world.run(world.table().build_indexes(["action"])).unwrap();
}
// Guarantee: index_table 7.
#[test]
fn a_row_in_a_partition_of_an_index_is_refused() {
    let world = World::new();
    let table = world.built();
    for partition in ["index/by-actor", "index/by-actor/00", "index/by-isan/15"] {
        let key = Key::new(partition, "x");
        for refused in [
            world.run(table.put(key, &movie("Alien", &[]), Precondition::Any)).map(drop),
            world.run(table.delete(key, Precondition::Any)).map(drop),
            world.run(table.repair(partition)).map(drop),
            world.run(table.build_indexes(["action", partition])).map(drop),
        ] {
            let told = refused.unwrap_err().to_string();
            assert!(told.contains("`partition`") && told.contains(partition), "{told}");
        }
    }
    for partition in ["index/by-actor/16", "index/by-actors", "index"] {
        world.run(table.put(Key::new(partition, "x"), &movie("Alien", &[]), Precondition::Any)).unwrap();
    }
}
// Guarantee: index_table 6.
#[test]
fn indexes_of_one_store_whose_names_share_a_beginning_are_repaired_apart() {
    let world = World::new();
    let [base, store, _] = world.stores.clone();
    let config = IndexTableConfig::default();
    let table = (0..16)
        .map(|nth| format!("a/{nth:02}"))
        .chain(["a".to_owned()])
        .fold(IndexTable::builder(base, json(), config).clock(&world.clock), |builder, name| {
            builder.index(name, store.clone(), by_actor)
        });
    let table = table.build().unwrap();
    world.run(table.build_indexes(["action"])).unwrap();
    world.put(&table, &movie("Alien", &["Weaver"]));
    let report = world.run(table.repair("action")).unwrap();
    assert_eq!((report.damaged, report.added, report.removed), (0, 0, 0));
    assert!(report.indexes.iter().all(|index| index.entries == 1), "{report:?}");
}
// Guarantee: index_table 1.
#[test]
fn a_row_that_does_not_decode_is_named_once_though_several_of_its_keys_are_found() {
    let world = World::new();
    let [base, store, _] = world.stores.clone();
    let by_each = |movie: &Movie| movie.cast.iter().map(|actor| IndexKey::new("all", actor)).collect();
    let table = IndexTable::builder(base, json(), IndexTableConfig::default())
        .index("by-each", store, by_each)
        .clock(&world.clock)
        .build()
        .unwrap();
    world.run(table.build_indexes(["action"])).unwrap();
    world.put(&table, &movie("Alien", &["a", "c"]));
    world.put(&table, &movie("Heat", &["b", "d"]));
    for title in ["Alien", "Heat"] {
        world.run(world.stores[0].put(at(title), "{".into(), Precondition::Any.into())).unwrap();
    }
    let page = world.run(table.lookup("by-each", "all").rows()).unwrap();
    let named: Vec<_> = page.unreadable.iter().map(|(key, _)| key.row.as_str()).collect();
    assert_eq!(named, ["Alien", "Heat"]);
}
// Guarantee: index_table 6.
#[test]
fn an_entry_that_names_a_row_that_no_store_has_is_damaged_and_ends_no_repair() {
    let world = World::new();
    let table = world.built();
    world.put(&table, &numbered("Alien", "1"));
    let long = "x".repeat(1_010);
    for nth in 0..16 {
        for name in ["a\u{1}\u{1}b\u{1}\u{1}action\u{1}\u{1}", "a\u{1}\u{1}b\u{1}\u{1}\u{1}\u{1}Alien"] {
            let partition = format!("index/by-actor/{nth:02}");
            let put = world.stores[1].put(Key::new(&partition, name), "\u{1}".into(), Precondition::Any.into());
            world.run(put).unwrap();
        }
    }
    world.write(&movie("Heat", &["Pacino"]));
    let report = world.run(table.repair("action")).unwrap();
    assert_eq!((report.rows, report.added, report.damaged), (2, 1, 32));
    // A look-up of the key says so, and one of another key finds its rows.
    let told = world.run(table.lookup("by-actor", "a").rows()).unwrap_err().to_string();
    assert!(told.contains("cannot be decoded"), "{told}");
    assert_eq!(world.titles(&table, "Pacino"), ["Heat"]);
    let told = world.run(table.lookup("by-actor", long).rows()).map(|page| page.rows.len());
    assert!(matches!(told, Ok(0) | Err(IndexTableError::Invalid(_))), "{told:?}");
}
// Guarantee: index_table 1.
#[test]
fn pages_find_each_row_that_stays_once_while_others_move() {
    let world = World::new();
    let table = world.built();
    for n in 0..40 {
        world.put(&table, &movie(&format!("{n:02}"), &["Weaver"]));
    }
    for limit in [1, 3, 7] {
        let (mut found, mut after, mut round) = (Vec::new(), None, 0);
        loop {
            let mut lookup = table.lookup("by-actor", "Weaver").limit(limit);
            if let Some(after) = after {
                lookup = lookup.after(after);
            }
            let page = world.run(lookup.rows()).unwrap();
            assert!(page.rows.len() <= limit);
            found.extend(page.rows.into_iter().map(|row| row.value.title));
            // Odd rows come and go.
            let odd = format!("{:02}", (round * 2 + 1) % 40);
            world.put(&table, &movie(&odd, if round % 2 == 0 { &["Hurt"] } else { &["Weaver"] }));
            round += 1;
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let even: Vec<_> = found.iter().filter(|title| title.parse::<u32>().unwrap() % 2 == 0).collect();
        assert_eq!(even, (0..20).map(|n| format!("{:02}", n * 2)).collect::<Vec<_>>().iter().collect::<Vec<_>>());
        assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{found:?}");
    }
    let refused = world.run(table.lookup("by-actor", "Weaver").limit(0).rows());
    assert!(matches!(&refused, Err(IndexTableError::Invalid(error)) if error.to_string().contains("`limit`")));
    assert_eq!(world.run(table.lookup("by-actor", "Weaver").limit(usize::MAX).keys()).unwrap().next, None);
}
// Guarantee: index_table 2.
#[test]
fn two_rows_that_swap_their_unique_keys_are_both_refused_and_keep_them() {
    let world = World::new();
    let (table, other) = (world.built(), world.table());
    world.put(&table, &numbered("Alien", "1"));
    world.put(&table, &numbered("Heat", "2"));
    let (alien, heat) = (numbered("Alien", "2"), numbered("Heat", "1"));
    let (one, two) = world.run(async {
        futures::join!(
            table.put(at("Alien"), &alien, Precondition::Any),
            other.put(at("Heat"), &heat, Precondition::Any)
        )
    });
    assert!(is_duplicate(&one) && is_duplicate(&two), "{one:?} {two:?}");
    for (isan, title) in [("1", "Alien"), ("2", "Heat")] {
        assert_eq!(world.run(table.lookup("by-isan", isan).rows()).unwrap().rows[0].value.title, title);
    }
    let never = Precondition::Version(steadfast::store::Version::new(0));
    for key in [at("Alien"), at("New")] {
        let refused = world.run(table.put(key, &movie(key.row, &["Holm"]), never));
        assert!(matches!(refused, Err(IndexTableError::Conflict { .. })), "{refused:?}");
    }
    assert_eq!((world.entries("by-isan"), world.entries("by-actor")), (2, 0));
}
// Guarantee: index_table 1.
#[test]
fn a_delete_of_a_lost_entry_that_comes_late_spares_the_entry_of_a_later_put() {
    for index in ["by-actor", "by-isan"] {
        let world = World::new();
        let (table, other) = (world.built(), world.table());
        let alien = Movie { isan: Some("1".to_owned()), ..movie("Alien", &["Weaver"]) };
        world.put(&table, &alien);
        world.script.always("delete", PortAnswer::pass().request_takes(SECOND * 2));
        let gone = movie("Alien", &[]);
        world.run(async {
            let loses = table.put(at("Alien"), &gone, Precondition::Any);
            let gains = async {
                world.clock.sleep(SECOND).await;
                other.put(at("Alien"), &alien, Precondition::Any).await.unwrap();
            };
            futures::join!(loses, gains).0.unwrap();
        });
        let first = if index == "by-actor" { "Weaver" } else { "1" };
        assert_eq!(world.run(table.lookup(index, first).rows()).unwrap().rows.len(), 1, "{index}");
    }
}
// Guarantee: index_table 1, 7.
#[test]
fn a_page_with_more_rows_than_a_request_to_the_store_names_has_all_of_them() {
    let world = World::new();
    let small = ScriptedPort::changing(&world.clock, |can| can.largest_batch(3));
    let [base, actors, _] = world.stores.clone();
    let table = IndexTable::builder(small.store(base), json(), IndexTableConfig::default())
        .index("by-actor", actors, by_actor)
        .clock(&world.clock)
        .build()
        .unwrap();
    world.run(table.build_indexes(["action"])).unwrap();
    let titles: Vec<_> = (0..8).map(|n| n.to_string()).collect();
    titles.iter().for_each(|title| world.put(&table, &movie(title, &["Weaver"])));
    small.forget();
    assert_eq!(world.titles(&table, "Weaver"), titles);
    assert_eq!(small.calls("scan").len(), 3);
    let report = world.run(table.repair("action")).unwrap();
    assert_eq!((report.rows, report.added, report.removed), (8, 0, 0));
}
// Guarantee: index_table 2.
#[test]
fn puts_that_wait_for_each_other_do_not_wait_equally_long() {
    let waits = [1, 2].map(|seed| {
        let world = World::new();
        let table = with_two(&world, seed);
        world.run(table.build_indexes(["action"])).unwrap();
        world.script.by(|call| match (call.method, call.target.as_str()) {
            ("put", "Dead") => PortAnswer::fail(PortErrorKind::Unavailable),
            _ => PortAnswer::pass(),
        });
        assert!(world.run(table.put(at("Dead"), &numbered("Dead", "1"), Precondition::Any)).is_err());
        world.script.by(|_| PortAnswer::pass());
        let began = world.clock.now();
        world.put(&table, &numbered("Heat", "1"));
        world.clock.now() - began
    });
    assert!(waits[0] != waits[1] && waits.iter().all(|wait| (SECOND..=SECOND * 2).contains(wait)), "{waits:?}");
}
// Guarantee: index_table 4.
#[test]
fn a_row_that_loses_a_shared_key_during_a_repair_is_no_duplicate() {
    let world = World::new();
    let table = world.built();
    world.put(&table, &numbered("Alien", "1"));
    world.write(&numbered("Heat", "1"));
    world.script.by(|call| match call.method {
        "put" if call.target.starts_with('1') => PortAnswer::pass().request_takes(SECOND * 2),
        _ => PortAnswer::pass(),
    });
    let report = world.run(async {
        let changes = async {
            world.clock.sleep(SECOND).await;
            let value = json::<Movie>().encode(&numbered("Heat", "2")).unwrap();
            world.stores[0].put(at("Heat"), value.into(), Precondition::Any.into()).await.unwrap();
        };
        futures::join!(table.repair("action"), changes).0.unwrap()
    });
    assert_eq!(report.duplicates, []);
}
